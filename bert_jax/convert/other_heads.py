"""Heads of other families that compute something else than ours under the same names.

Weights with one are those of their encoder; the head is not used, and it is said why.
"""

from typing import NamedTuple


class OtherHead(NamedTuple):
  """names: what the names of its tensors begin with. parts: our parts that are not made of them.
  why: the sentence about each of its tensors."""

  names: tuple = ()
  parts: tuple = ()
  why: str = ''


_POOLED = ('pooler', 'classifier')
_ACTIVATION = 'has a dense layer with {}, where our pooler has tanh'
# {family: {tensor that shows the head: the OtherHead}}.
DENSE = {
  'distilbert': {
    'pre_classifier.weight': OtherHead(
      ('pre_classifier.', 'classifier.'),
      _POOLED,
      f"DistilBERT's classifier {_ACTIVATION.format('ReLU')}",
    ),
  },
  'electra': {
    'classifier.dense.weight': OtherHead(
      ('classifier.',),
      _POOLED,
      f"ELECTRA's classifier {_ACTIVATION.format('GELU')}",
    ),
    'sequence_summary.summary.weight': OtherHead(
      ('sequence_summary.', 'classifier.'),
      _POOLED,
      f"ELECTRA's classifier {_ACTIVATION.format('GELU')}",
    ),
  },
}
MODERNBERT = OtherHead(
  ('head.', 'classifier.'),
  _POOLED,
  "ModernBERT's classifier of tokens has a dense layer and a norm, which ours has not",
)
MEAN = MODERNBERT._replace(
  why="ModernBERT's classifier reads the mean of all tokens (classifier_pooling), ours [CLS]"
)
GENERATOR = OtherHead(
  ('generator_',), ('mlm',), "an ELECTRA's generator predicts with gelu, ours with its hidden_act"
)


def of(description, names):
  """The OtherHead of a model with tensors of these names; an empty one if its head is like ours."""
  family = description.family
  for name, head in DENSE.get(family, {}).items():
    if name in names:
      return head
  if family == 'modernbert' and 'classifier.bias' in names:
    if not description.architecture.endswith(('ForSequenceClassification', 'ForMultipleChoice')):
      return MODERNBERT
    return MEAN if description.pooling == 'mean' else OtherHead()
  if family == 'electra' and description.model['hidden_act'] != 'gelu':
    return GENERATOR
  return OtherHead()
