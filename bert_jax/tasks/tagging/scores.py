"""Scores of predicted tags. `gold` and `predicted` are [S] lists of tags, one of each sentence.

Tags of chunks (O and B- I- E- S-, or M- for I-) are scored as conlleval
(https://www.clips.uantwerpen.be/conll2000/chunking/) and the default mode of seqeval do: an entity
is right if its type, its first and its last token are; a tag that breaks its scheme begins or ends
an entity as in conlleval. The scores are precision, recall and F1 over all entities, the F1 of each
type, and the share of right tokens. On IOB tags the numbers equal conlleval's; on BIOES and BMES,
where its old Perl script knows no S- and M- and sees no end at an E- before a B-, seqeval's.

Other tags are scored by the share of right tokens and the mean F1 of all tags that are given or
predicted (scikit-learn's macro).
"""

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from bert_jax.tasks.tagging.chunks import as_bioes

ENTITY_SCORES = ('entity_precision', 'entity_recall', 'entity_f1')
Tags = Sequence[Sequence[str]]  # of each sentence
Counts = tuple[int, ...]  # of entities: right, predicted, gold


def tag_scores(gold: Tags, predicted: Tags, chunks: bool) -> dict[str, float]:
  """Scores predicted tags, {metric: score from 0 to 1}. chunks: whether the tags mark chunks."""
  flat = [list(itertools.chain(*side)) for side in (gold, predicted)]
  out = {'token_accuracy': float(np.mean(np.array(flat[0]) == np.array(flat[1])))}
  if not chunks:
    from sklearn import metrics as sklearn_metrics

    f1 = sklearn_metrics.f1_score(*flat, average='macro', zero_division=0)
    return out | {'macro_f1': float(f1)}
  total, types = entities(gold, predicted)
  out |= dict(zip(ENTITY_SCORES, _shares(total)))
  return out | {f'f1_{name}': _shares(counts)[2] for name, counts in types.items()}


def entities(gold: Tags, predicted: Tags) -> tuple[Counts, dict[str, Counts]]:
  """Counts entities: (of all types, {type: of it})."""
  from seqeval.metrics.sequence_labeling import get_entities  # slow to import

  golds, guesses = (set(get_entities(list(map(as_bioes, x)))) for x in (gold, predicted))
  counts = [Counter(kind for kind, *_ in side) for side in (golds & guesses, guesses, golds)]
  types = sorted(counts[1] | counts[2])
  total = tuple(count.total() for count in counts)
  return total, {kind: tuple(count[kind] for count in counts) for kind in types}


def conlleval(gold: Tags, predicted: Tags) -> str:
  """The report of chunks that the official scorer, conlleval, prints."""
  total, types = entities(gold, predicted)
  accuracy = tag_scores(gold, predicted, True)['token_accuracy']
  shown = '{}: {:6.2f}%; {}: {:6.2f}%; {}: {:6.2f}'

  def line(counts):
    precision, recall, f1 = (100 * share for share in _shares(counts))
    return shown.format('precision', precision, 'recall', recall, 'FB1', f1)

  right, found, true = total
  tokens = sum(map(len, gold))
  lines = [
    f'processed {tokens} tokens with {true} phrases; found: {found} phrases; correct: {right}.',
    f'accuracy: {100 * accuracy:6.2f}%; {line(total)}',
    *(f'{name:>17}: {line(counts)}  {counts[1]}' for name, counts in types.items()),
  ]
  return ''.join(f'{text}\n' for text in lines)


def tag_table(gold: Tags, predicted: Tags) -> str:
  """Precision, recall and F1 of each tag, as scikit-learn shows them."""
  from sklearn import metrics as sklearn_metrics

  flat = (list(itertools.chain(*side)) for side in (gold, predicted))
  return str(sklearn_metrics.classification_report(*flat, digits=4, zero_division=0))


def _shares(counts):
  """Precision, recall and F1 from the numbers (right, predicted, gold)."""
  right, found, true = counts
  f1 = 2 * right / (found + true) if found + true else 0.0
  return right / found if found else 0.0, right / true if true else 0.0, f1


def conll_lines(answer: dict) -> str:
  """Writes an answer for conlleval: lines 'token gold predicted' and a blank line.
  Blanks separate the columns, so blanks in a token become '_'. An unknown gold tag is '_', too."""
  cells = [['_'.join(token.split()) or '_' for token in answer['tokens']], answer['prediction']]
  if 'gold' in answer:
    cells.insert(1, [tag or '_' for tag in answer['gold']])
  return ''.join(f'{" ".join(row)}\n' for row in zip(*cells)) + '\n'
