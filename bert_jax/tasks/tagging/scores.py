"""How tags are scored, on lists of tags of each sentence.

Chunks (O and B- I- E- S-), as conlleval (https://www.clips.uantwerpen.be/conll2000/chunking/) and
seqeval in its default mode do: an entity is right if its type, first and last token are; a tag that
breaks its scheme begins or ends an entity as conlleval has it. Precision, recall and F1 over all
entities, F1 of each type, and the share of right tokens.

Other tags: the share of right tokens, and the mean F1 of all tags that are given or predicted
(scikit-learn's macro).
"""

import itertools
from collections import Counter

import numpy as np

ENTITY_SCORES = ('entity_precision', 'entity_recall', 'entity_f1')


def scores(gold, predicted, chunks):
  """{metric: share} of [S] lists of tags each, see above."""
  flat = [list(itertools.chain(*side)) for side in (gold, predicted)]
  out = {'token_accuracy': float(np.mean(np.array(flat[0]) == np.array(flat[1])))}
  if not chunks:
    from sklearn import metrics as sklearn_metrics

    f1 = sklearn_metrics.f1_score(*flat, average='macro', zero_division=0)
    return out | {'macro_f1': float(f1)}
  total, classes = entities(gold, predicted)
  out |= dict(zip(ENTITY_SCORES, _shares(total)))
  return out | {f'f1_{name}': _shares(counts)[2] for name, counts in classes.items()}


def entities(gold, predicted):
  """((right, found, gold) over all, {type: the same}): numbers of entities."""
  from seqeval.metrics.sequence_labeling import get_entities  # here and below: slow to import

  sides = [set(get_entities([list(tags) for tags in side])) for side in (gold, predicted)]
  right, found, there = (
    Counter(kind for kind, _, _ in own) for own in (sides[0] & sides[1], sides[1], sides[0])
  )
  classes = {kind: (right[kind], found[kind], there[kind]) for kind in sorted(found | there)}
  return (right.total(), found.total(), there.total()), classes


def conlleval(gold, predicted):
  """What the official scorer prints."""
  total, classes = entities(gold, predicted)
  accuracy = scores(gold, predicted, True)['token_accuracy']
  shown = '{}: {:6.2f}%; {}: {:6.2f}%; {}: {:6.2f}'

  def line(counts):
    precision, recall, f1 = (100 * share for share in _shares(counts))
    return shown.format('precision', precision, 'recall', recall, 'FB1', f1)

  right, found, there = total
  tokens = sum(map(len, gold))
  lines = [
    f'processed {tokens} tokens with {there} phrases; found: {found} phrases; correct: {right}.',
    f'accuracy: {100 * accuracy:6.2f}%; {line(total)}',
    *(f'{name:>17}: {line(counts)}  {counts[1]}' for name, counts in classes.items()),
  ]
  return ''.join(f'{text}\n' for text in lines)


def tag_table(gold, predicted):
  """Precision, recall and F1 of each tag, as scikit-learn shows them."""
  from sklearn import metrics as sklearn_metrics

  flat = (list(itertools.chain(*side)) for side in (gold, predicted))
  return sklearn_metrics.classification_report(*flat, digits=4, zero_division=0)


def _shares(counts):
  """Precision, recall and F1 of (right, found, gold)."""
  right, found, there = counts
  return (
    right / found if found else 0.0,
    right / there if there else 0.0,
    2 * right / (found + there) if found + there else 0.0,
  )


def conll_lines(answer):
  """An answer as conlleval reads it, 'token gold predicted' a line, and a blank line.

  Blanks part the columns, so those in a token become '_', which is an unknown gold tag's sign too.
  """
  cells = [['_'.join(token.split()) or '_' for token in answer['tokens']], answer['prediction']]
  if 'gold' in answer:
    cells.insert(1, [tag or '_' for tag in answer['gold']])
  return ''.join(f'{" ".join(row)}\n' for row in zip(*cells)) + '\n'
