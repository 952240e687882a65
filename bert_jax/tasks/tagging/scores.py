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
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bert_jax.errors import InputError, quoted
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.tagging.conll import Sentence

SCHEMES = ('IOB2', 'IOB1', 'BIOES')
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


def are_chunks(labels: Sequence[str], places: Mapping[str, str] | None = None) -> bool:
  """Whether tags mark chunks such as entities (O and B- I- M- E- S-), not classes of tokens.
  InputError if some mark chunks and others do not. places: {tag: where it is}, for the error."""
  marked = [label for label in labels if label != 'O' and is_chunk(label)]
  others = [label for label in labels if not is_chunk(label)]
  if marked and others and 'O' in labels:
    where = f'{places[others[0]]}: ' if places else ''
    fault = f'tag {quoted(others[0])} is neither O nor begins with B- I- M- E- S-'
    advice = f'mend it, as {quoted(marked[0])} does (BILOU: write E- for L- and S- for U-)'
    raise InputError(f'{where}the {fault}; {advice}.')
  return bool(marked) and not others


def check_chunks(sentences: Sequence[Sentence], problems: Problems) -> None:
  """Counts chunks, and the tags that break their scheme, which are kept. InputError if these are
  more than half as many. The scheme is BIOES if there is an E- or S-, else what fewer tags break:
  IOB1 (Ramshaw and Marcus 1995: B- only between adjacent chunks of a type) or IOB2 (always B-)."""
  breaks = {scheme: [] for scheme in SCHEMES}  # the places where a tag breaks each scheme
  marks, number = {tag[0] for sentence in sentences for tag in sentence.tags or () if tag}, 0
  for sentence in sentences:
    tags = ['O', *as_bioes(tag or 'O' for tag in sentence.tags or ()), 'O']
    for i, (before, tag) in enumerate(itertools.pairwise(tags), 1):
      alike = before[0] != 'O' and tag[2:] == before[2:]
      goes_on, ends = before[0] in 'BI', tag[0] in 'IE'
      inside = alike and goes_on and ends
      number += tag[0] != 'O' and not inside
      begins = {mark: tag[0] == mark and not alike for mark in 'IB'}
      for scheme, broken in zip(SCHEMES, (*begins.values(), not inside and (goes_on or ends))):
        if broken:
          breaks[scheme].append(f'{sentence.where}, token {min(i, len(sentence.tokens))}')
  schemes = ('BIOES',) if marks & {'E', 'S', 'M'} else ('IOB2', 'IOB1')
  scheme = min(schemes, key=lambda name: len(breaks[name]))
  name, places = 'BMES' if 'M' in marks else scheme, breaks[scheme]
  if number:
    problems.counts[f'chunks ({name})'] += number
  for place in places:
    problems.note(f'tags that break {name} (kept)', place)
  if 2 * len(places) > number:
    fault = f'{places[0]}: {len(places):,} tags break {name}, the scheme that their first letters '
    fault += f'mark, and data.{problems.split} has {number:,} chunks'
    fix = 'write all tags in one of IOB1, IOB2, BIOES and BMES, or name their column'
    raise InputError(f'{fault}; {fix} (tagging.tag_column).')


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


def table(gold: Tags, predicted: Tags, chunks: bool) -> str:
  """Precision, recall and F1 of each type of entity or, without chunks, of each tag."""
  if not chunks:
    from sklearn.metrics import classification_report

    flat = (list(itertools.chain(*side)) for side in (gold, predicted))
    return str(classification_report(*flat, digits=4, zero_division=0))
  from seqeval.metrics import classification_report as of_entities

  sides = [list(map(as_bioes, side)) for side in (gold, predicted)]
  has_some = any(tag != 'O' for side in sides for tags in side for tag in tags)
  return str(of_entities(*sides, digits=4, zero_division=0)) if has_some else 'no entities\n'


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
