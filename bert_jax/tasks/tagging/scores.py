"""Scores of tags, and the schemes in which tags mark chunks such as entities.

The tags of entities are O and B- I- (IOB), with E- S- (BIOES), or B- M- E- S- (BMES, usual for
Chinese), where M- is what I- is in BIOES. BILOU is not read. They are scored as conlleval
(https://www.clips.uantwerpen.be/conll2000/chunking/) and the default mode of seqeval do: an entity
is right if its type, its first and its last token are; a tag that breaks its scheme begins or ends
an entity as in conlleval. The scores are precision, recall and F1 over all entities, the F1 of each
type, and the share of right tokens. On IOB tags the numbers equal conlleval's; on BIOES and BMES,
where its old Perl script knows no S- and M- and sees no end at an E- before a B-, seqeval's.

Other tags are scored by the share of right tokens and the mean F1 of all tags that are given or
predicted (scikit-learn's macro).
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from bert_jax.errors import InputError, quoted

_CHUNK_TAG = re.compile(r'O|[BIES](-.+)?|M-.+')
ENTITY_SCORES = ('entity_precision', 'entity_recall', 'entity_f1')
Tags = Sequence[Sequence[str]]  # of the tokens of each sentence
Counts = tuple[int, ...]  # of entities: right, predicted, gold


def is_chunk(label: str) -> bool:
  """Whether a tag is O, or one of B- I- M- E- S- and a type."""
  return bool(_CHUNK_TAG.fullmatch(label))


def as_bioes(tags: Iterable[str]) -> list[str]:
  """Writes I- for M- in tags, since libraries do not know M-."""
  return [f'I{tag[1:]}' if tag.startswith('M-') else tag for tag in tags]


def are_chunks(labels: Sequence[str]) -> bool:
  """Whether tags mark chunks such as entities (O and B- I- M- E- S-), not classes of tokens.
  InputError if some mark chunks and others do not."""
  marked = [label for label in labels if label != 'O' and is_chunk(label)]
  others = [label for label in labels if not is_chunk(label)]
  if marked and others and 'O' in labels:
    raise InputError(
      f'the tag {quoted(others[0])} is neither O nor begins with B- I- M- E- S-; '
      f'mend it, as {quoted(marked[0])} does (BILOU: write E- for L- and S- for U-).'
    )
  return bool(marked) and not others


def tag_scores(gold: Tags, predicted: Tags, chunks: bool) -> dict[str, float]:
  """Scores predicted tags, {metric: score from 0 to 1}. chunks: whether the tags mark chunks."""
  right = list(itertools.chain.from_iterable(gold))
  given = list(itertools.chain.from_iterable(predicted))
  out = {'token_accuracy': float(np.mean(np.array(right) == np.array(given)))}
  if not chunks:
    from sklearn import metrics as sklearn_metrics

    f1 = sklearn_metrics.f1_score(right, given, average='macro', zero_division=0)
    return out | {'macro_f1': float(f1)}
  total, types = entities(gold, predicted)
  out |= dict(zip(ENTITY_SCORES, _shares(total)))
  return out | {f'f1_{name}': _shares(counts)[2] for name, counts in types.items()}


def entities(gold: Tags, predicted: Tags) -> tuple[Counts, dict[str, Counts]]:
  """Counts entities: (of all types, {type: of it})."""
  from seqeval.metrics.sequence_labeling import get_entities  # slow to import

  golds = set(get_entities(list(map(as_bioes, gold))))
  guesses = set(get_entities(list(map(as_bioes, predicted))))
  right, given, there = map(_by_type, (golds & guesses, guesses, golds))
  types: dict[str, Counts] = {}
  for kind in sorted(given | there):
    types[kind] = right[kind], given[kind], there[kind]
  return (right.total(), given.total(), there.total()), types


def _by_type(entities):
  return Counter(kind for kind, _, _ in entities)


def _shares(counts):
  """Precision, recall and F1 from the numbers (right, predicted, gold)."""
  right, predicted, gold = counts
  precision = right / predicted if predicted else 0.0
  recall = right / gold if gold else 0.0
  f1 = 2 * right / (predicted + gold) if predicted + gold else 0.0
  return precision, recall, f1


def conll_lines(answer: dict) -> str:
  """Writes an answer for conlleval: lines 'token gold predicted' and a blank line.
  Blanks separate the columns, so blanks in a token become '_'. An unknown gold tag is '_', too."""
  columns = [['_'.join(token.split()) or '_' for token in answer['tokens']]]
  if 'gold' in answer:
    columns.append([tag or '_' for tag in answer['gold']])
  columns.append(answer['prediction'])
  return ''.join(f'{" ".join(row)}\n' for row in zip(*columns)) + '\n'
