"""Reads texts with a marked pronoun and its marked candidates: GAP and Winograd schemas.

  gap      GAP (Webster et al. 2018, https://arxiv.org/abs/1810.05201): its TSV files, or tfds:gap;
           the candidates are A and B. This and the next also of .parquet and hf:NAME
  wsc      SuperGLUE's WSC (Wang et al. 2019, https://arxiv.org/abs/1905.00537; JSONL, or
           tfds:super_glue/wsc.fixed); span2 is the pronoun, span1 the candidate; their indices
           count words
  cluewsc  CLUEWSC2020 (JSONL), the same with indices that count characters

A name that is not at its offset is taken at the nearest place, in any case of letters. If the text
does not have it, the example cannot be used or, for WSC with indices in words, the words at the
index are taken.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import quoted
from bert_jax.tasks.faulty_records import Problems, Unusable, is_empty, reads, says_no_label
from bert_jax.text.tables import with_nulls
from bert_jax.text.values import json_value, whole_number

MARKS = ['A-coref', 'B-coref']  # the columns of GAP's answer
TRUTHS = {'true': 0, '1': 0, 'false': 1, '0': 1}
SPANS = ('Pronoun', 'A', 'B')  # the columns of GAP's spans
OFFSETS = 'unreadable offsets'  # a kind of fault
NEAREST = 'offsets that are off (the nearest place taken)'
HINT = f'GAP has the columns ID, Text and, of {", ".join(SPANS)}, their text and NAME-offset'
SCHEMA = 'no text, target (span1_text, span1_index, span2_text, span2_index), label'


class Example(NamedTuple):
  where: str
  id: str
  text: str
  spans: tuple  # (from, to) in characters of the pronoun, then of each of its C candidates
  gold: int | None  # the number of the right candidate; C: none of them is right; None: not known


@reads('examples', name='data of the format in task.format')
def read(config: ConfigDict, split: str, problems: Problems) -> Iterator[Example]:
  """Yields the Examples of a split; unusable ones go to `problems`."""
  rows, form = problems.rows(config.data[split]), config.task.format
  if form == 'gap':
    yield from _gap(rows, split, problems)
  else:
    yield from _schemas(rows, split, problems, _at_word if form == 'wsc' else _at_character)


def _gap(rows, split, problems):
  for where, row in rows:
    has_answer = not all(is_empty(row.get(name, '')) for name in MARKS)  # a test set has none
    marks = MARKS if has_answer else []
    with problems.of_record(where):
      names = ['ID', 'Text', *SPANS, *(f'{name}-offset' for name in SPANS), *marks]
      cells = dict(zip(names, problems.columns(row, names, where, HINT)))
      spans = []
      for name in SPANS:
        offset = _offset(cells[f'{name}-offset'], f'{name}-offset')
        spans.append(_at_character(cells['Text'], cells[name], offset, where, problems))
      gold = None
      if has_answer:
        gold = _gap_answer([cells[name].strip().lower() for name in MARKS])
      elif problems.lacks('an answer', where, split):
        continue
      yield Example(where, cells['ID'] or where, cells['Text'], tuple(spans), gold)


def _gap_answer(truths):
  """The number of the candidate that is marked true, or of none."""
  if set(truths) - {'true', 'false'} or truths == ['true', 'true']:
    a, b = map(quoted, truths)
    raise Unusable(
      f'A-coref and B-coref are {a} and {b}; write TRUE for one at most, and FALSE',
      'examples without one answer',
    )
  return [*truths, 'true'].index('true')


def _offset(cell, name):
  """A number of characters or words, which pandas may have written as 1.0."""
  offset = whole_number(str(cell).removesuffix('.0'))
  if offset is None:
    raise Unusable(f'{name} {quoted(cell)} is no number', OFFSETS)
  return offset


def _schemas(rows, split, problems, place):
  """Yields Winograd schemas. place(text, name, index, where, problems) -> where the name stands."""
  for number, (where, row) in enumerate(rows):
    with problems.of_record(where, SCHEMA, 'records without their fields'):
      cells = with_nulls(row)
      target = json_value(cells['target']) if 'target' in cells else cells
      (text,) = problems.columns(row, ('text',), where)
      label = cells.get('label', '').strip().lower().removesuffix('.0')
      gold = TRUTHS.get(label)
      if says_no_label(label):
        if problems.lacks('an answer', where, split):
          continue
      elif gold is None:
        raise Unusable(f'label {quoted(label)} is neither true nor false', 'unknown labels')
      spans = []
      for span in ('span2', 'span1'):
        index = _offset(target[f'{span}_index'], f'{span}_index')
        spans.append(place(text, target[f'{span}_text'] or '', index, where, problems))
      name = str(cells.get('idx', cells.get('id', number)))
      yield Example(where, name, text, tuple(spans), gold)


def _at_character(text, name, offset, where, problems):
  """Finds a name that should begin with a character: (from, to)."""
  if name and text.startswith(name, offset):
    return offset, offset + len(name)
  span = _nearest(text, name, offset)
  if span is None:
    raise Unusable(f'{quoted(name)} is nowhere in its text', 'names that are not in their text')
  problems.note(NEAREST, where)
  return span


def _at_word(text, name, index, where, problems):
  """Finds a name that should begin in a word: (from, to)."""
  words = list(re.finditer(r'\S+', text))
  if index >= len(words):
    raise Unusable(f'index {index} of {quoted(name)} is past the {len(words)} words', OFFSETS)
  word = words[index]
  span = _nearest(text, name, word.start())
  if span is None:
    problems.note('spans that are not in their text (the words at their index taken)', where)
    last = words[index : index + max(1, len(name.split()))][-1]
    return word.start(), last.end()
  if not word.start() <= span[0] < word.end():
    problems.note(NEAREST, where)
  return span


def _nearest(text, name, offset):
  """Finds the occurrence nearest to an offset: (from, to), or None. Whole words go before parts."""
  plain = re.escape(name)
  for pattern in (rf'\b{plain}\b', plain):
    spans = [match.span() for match in re.finditer(pattern, text, re.IGNORECASE) if name]
    if spans:
      return min(spans, key=lambda span: abs(span[0] - offset))
  return None
