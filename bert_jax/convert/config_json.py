"""What the config.json of a released model says, in our words.

Hugging Face's config.json of a BERT, RoBERTa or DistilBERT, and the bert_config.json of Google's
releases. An option of theirs that computes something else than our model does is an error that
names it: weights that load and compute something else are worse than none. Keys other than those
below are not looked at.

hidden_act gelu is the erf form (Hendrycks and Gimpel 2016), as Hugging Face reads Google's releases
too; google-research/bert computes its tanh approximation, which differs by 5e-4 at most.
"""

from typing import NamedTuple

from bert_jax.errors import InputError
from bert_jax.text import files

ACTIVATIONS = {'gelu': 'gelu', 'gelu_new': 'gelu_tanh', 'gelu_pytorch_tanh': 'gelu_tanh',
               'relu': 'relu', 'silu': 'swish', 'swish': 'swish'}  # fmt: skip
SIZES = ('vocab_size', 'hidden_size', 'num_hidden_layers', 'num_attention_heads',
         'intermediate_size', 'max_position_embeddings', 'type_vocab_size')  # fmt: skip
OTHERS = {'layer_norm_eps': 1e-12, 'initializer_range': 0.02, 'hidden_dropout_prob': 0.1,
          'attention_probs_dropout_prob': 0.1}  # fmt: skip
# DistilBERT's names of the same.
DISTIL = {'dim': 'hidden_size', 'n_layers': 'num_hidden_layers', 'n_heads': 'num_attention_heads',
          'hidden_dim': 'intermediate_size', 'activation': 'hidden_act',
          'dropout': 'hidden_dropout_prob',
          'attention_dropout': 'attention_probs_dropout_prob'}  # fmt: skip
FAMILIES = ('bert', 'roberta', 'distilbert')
# Options that must be what they are in a BERT.
FIXED = {'position_embedding_type': ('absolute', None), 'is_decoder': (False, None),
         'add_cross_attention': (False, None), 'pruned_heads': ({}, None),
         'auto_map': (None,), 'feed_forward_type': ('original', None),
         'is_encoder_decoder': (False, None)}  # fmt: skip
# What JSON must hold under a key, if it is there.
TYPES = {name: (int, 'a whole number') for name in (*SIZES, 'pad_token_id')} | {
  name: ((int, float), 'a number') for name in OTHERS
} | {name: (str, 'a text') for name in ('hidden_act', 'model_type', 'problem_type')} | {
  'architectures': (list, 'a list'), 'bert_jax': (dict, 'an object'),
  'id2label': (dict, 'an object'), 'tie_word_embeddings': (bool, 'true or false'),
}  # fmt: skip
MAY_BE_NULL = ('pad_token_id', 'problem_type', 'architectures', 'bert_jax', 'id2label',
               'tie_word_embeddings')  # fmt: skip


class Description(NamedTuple):
  family: str
  model: dict  # fields of config.model
  labels: tuple  # of id2label, in order, or ()
  problem: str  # '', regression, single_label_classification or multi_label_classification
  architecture: str  # 'BertForMaskedLM', or ''
  offset: int  # rows of the position table that stand before position 0
  ours: dict  # what our own export says besides


def is_model(folder):
  """Does a folder hold a released model, that is, a config.json that is none of a run of ours?"""
  return _file(folder) is not None


def read(folder):
  """The Description of a folder; InputError if it is of another kind of model."""
  path = _file(folder)
  theirs = files.json_of(path)
  _check_types(path, theirs, ('model_type',))
  family = theirs.get('model_type', 'bert')
  family = {'xlm-roberta': 'roberta', 'camembert': 'roberta'}.get(family, family)
  if family not in FAMILIES:
    raise InputError(
      f'{path} says model_type {family!r}; weights are read of {", ".join(FAMILIES)}.'
    )
  if family == 'distilbert':
    theirs = {'type_vocab_size': 0} | {DISTIL.get(k, k): v for k, v in theirs.items()}
  _check_types(path, theirs, TYPES)
  for name, allowed in FIXED.items():
    if theirs.get(name) not in allowed:
      raise InputError(
        f'{path} says {name} {theirs[name]!r:.60}; our encoder has '
        f'{"none of it" if allowed[0] is None else f"{allowed[0]!r} only"}, so it would not be the '
        'same model.'
      )
  act = theirs.get('hidden_act', 'gelu')
  if act not in ACTIVATIONS:
    raise InputError(
      f'{path} says hidden_act {act!r}; our encoder has {", ".join(ACTIVATIONS)} only.'
    )
  if lacking := [name for name in SIZES if name not in theirs]:
    raise InputError(f'{path} does not say {", ".join(lacking)}; add it.')
  model = {name: theirs[name] for name in SIZES}
  model |= {name: theirs.get(name, value) for name, value in OTHERS.items()} | {
    'hidden_act': ACTIVATIONS[act],
    'position_embeddings': 'learned',
    'norm_placement': 'post',
    'tie_word_embeddings': theirs.get('tie_word_embeddings') is not False,
  }
  offset = 0
  if family == 'roberta':  # positions are counted from the id of its padding + 1
    offset = (1 if theirs.get('pad_token_id') is None else theirs['pad_token_id']) + 1
    model['max_position_embeddings'] -= offset
  if model['type_vocab_size'] == 1:
    model['type_vocab_size'] = 2  # its one row for both texts
  ours = theirs.get('bert_jax') or {}
  if isinstance(own := ours.get('model'), dict) and own.get('type_vocab_size') == 0:
    model['type_vocab_size'] = 0
  architectures = theirs.get('architectures') or ['']
  if not isinstance(architectures[0], str):
    raise InputError(f'{path} says architectures is {architectures!r:.60}; write names.')
  return Description(
    family, model, _labels(path, theirs), theirs.get('problem_type') or '', architectures[0],
    offset, ours,
  )  # fmt: skip


def _check_types(path, theirs, names):
  for name in names:
    if name not in theirs or (theirs[name] is None and name in MAY_BE_NULL):
      continue
    kind, told = TYPES[name]
    value = theirs[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
      raise InputError(f'{path} says {name} is {value!r:.60}; write {told}.')
    if name in SIZES and value < (name != 'type_vocab_size'):
      raise InputError(f'{path} says {name} is {value}; write a positive number.')


def _labels(path, theirs):
  labels = theirs.get('id2label') or {}
  try:
    labels = {int(i): str(label) for i, label in labels.items()}
    return tuple(labels[i] for i in range(len(labels)))
  except (ValueError, KeyError, AttributeError):
    raise InputError(f'id2label in {path} does not count from 0; number the labels.') from None


def _file(folder):
  for name in ('config.json', 'bert_config.json'):
    path = folder / name
    if path.is_file():
      content = files.json_of(path)
      if 'objective' not in content and ('model_type' in content or 'hidden_size' in content):
        return path
  return None
