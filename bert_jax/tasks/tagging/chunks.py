"""Tags that mark chunks such as entities, and the schemes in which they do so.

The tags of entities are O and B- I- (IOB), with E- S- (BIOES), or B- M- E- S- (BMES, usual for
Chinese), where M- is what I- is in BIOES. BILOU is not read.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from bert_jax.errors import InputError, quoted
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.tagging.conll import Sentence

SCHEMES = ('IOB2', 'IOB1', 'BIOES')
_CHUNK_TAG = re.compile(r'O|[BIES](-.+)?|M-.+')


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
