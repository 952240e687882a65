"""Reads texts with a marked pronoun and its marked candidates: GAP and Winograd schemas.

  gap  GAP (Webster et al. 2018, https://arxiv.org/abs/1810.05201): its TSV files, or tfds:gap; the
       candidates are A and B. This and the next also of .parquet and hf:NAME (text/tables.py)
  wsc  SuperGLUE's WSC (Wang et al. 2019, https://arxiv.org/abs/1905.00537; JSONL, or
       tfds:super_glue/wsc.fixed) and CLUEWSC2020 (JSONL); span2 is the pronoun, span1 the
       candidate. SuperGLUE counts indices in words, CLUE in characters: the unit is the one in
       which more spans of the data are where their index says

A name that is not at its offset is taken at the nearest place. If the text does not have it, the
example cannot be used or, for WSC with indices in words, the words at the index are taken.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import quoted
from bert_jax.tasks.coreference.gap_scores import GENDERS
from bert_jax.tasks.faulty_records import Problems, Unusable, is_empty, reads, says_no_label
from bert_jax.text.tables import with_nulls
from bert_jax.text.values import json_value, whole_number

MARKS = {'A-coref', 'B-coref'}  # the columns of GAP's answer
TRUTHS = {'true': 0, '1': 0, 'false': 1, '0': 1}
SPANS = ('Pronoun', 'A', 'B')  # the columns of GAP's spans
OFFSETS = 'unreadable offsets'  # a kind of fault
HINT = f'GAP has the columns ID, Text and, of {", ".join(SPANS)}, their text and NAME-offset'


class Example(NamedTuple):
  where: str
  id: str
  text: str
  spans: tuple  # (from, to) in characters of the pronoun, then of each of its C candidates
  gold: int | None  # the number of the right candidate; C: none of them is right; None: not known


@reads('examples', 'kept; the scores of GAP take the first', 'data of the format in task.format')
def read(config: ConfigDict, split: str, problems: Problems) -> Iterator[Example]:
  """Yields the Examples of a split; unusable ones go to `problems`."""
  reader = {'gap': _gap, 'wsc': _wsc}[config.task.format]
  yield from reader(problems.rows(config.data[split]), split, problems)


def _gap(rows, split, problems):
  for where, row in rows:
    has_gold = not all(is_empty(row.get(name, '')) for name in MARKS)  # a test set has none
    marked = MARKS if has_gold or (split == 'train' and not {*row, *row.no_text} & MARKS) else ()
    columns = ('ID', 'Text', *SPANS, *(f'{name}-offset' for name in SPANS), *sorted(marked))
    with problems.of_record(where):
      cells = dict(zip(columns, problems.columns(row, columns, where, HINT)))
      spans = tuple(_gap_span(cells, name, where, problems) for name in SPANS)
      gold = None
      if marked:
        marks = [cells[name].strip().lower() for name in sorted(marked)]
        if set(marks) - {'true', 'false'} or marks == ['true', 'true']:
          fault = 'A-coref and B-coref are {} and {}; write TRUE for one at most, and FALSE'
          raise Unusable(fault.format(*map(quoted, marks)), 'examples without one answer')
        gold = (marks + ['true']).index('true')
      elif problems.lacks('an answer', where, split):
        continue
      if cells['Pronoun'].lower() not in GENDERS:
        problems.note('pronouns of unknown gender (in the overall F1 only)', where)
      yield Example(where, cells['ID'] or where, cells['Text'], spans, gold)


def _gap_span(cells, name, where, problems):
  if (offset := whole_number((said := cells[f'{name}-offset']).removesuffix('.0'))) is None:
    raise Unusable(f'{name}-offset {quoted(said)} is no number', OFFSETS)
  return _place(cells['Text'], cells[name], offset, where, problems)


def _place(text, name, offset, where, problems):
  """Finds a name near an offset: (from, to)."""
  if name and text.startswith(name, offset):
    return offset, offset + len(name)
  if not (span := _nearest(text, name, offset)):
    raise Unusable(f'{quoted(name)} is nowhere in its text', 'names that are not in their text')
  problems.note('offsets that are off (the nearest place taken)', where)
  return span


def _nearest(text, name, offset):
  """Finds the occurrence nearest to an offset: (from, to), or None. Whole words go before parts."""
  plain = re.escape(name)
  for pattern, flags in ((rf'\b{plain}\b', 0), (plain, 0), (plain, re.IGNORECASE)):
    if spans := [match.span() for match in re.finditer(pattern, text, flags) if name]:
      return min(spans, key=lambda span: abs(span[0] - offset))
  return None


def _wsc(rows, split, problems):
  read, fits = [], {'words': 0, 'characters': 0}
  layout = 'no text, target (span1_text, span1_index, span2_text, span2_index), label'
  for number, (where, row) in enumerate(rows):
    with problems.of_record(where, layout, 'records without their fields'):
      problems.columns(row, row.no_text.keys() & {'text', 'span1_text', 'span2_text'}, where)
      cells = with_nulls(row)
      target = json_value(row['target']) if 'target' in row else cells
      pair = [(target[f'span{k}_text'], target[f'span{k}_index']) for k in (2, 1)]
      named = [('' if span is None else span + '', _index(at)) for span, at in pair]
      text, label = cells['text'], row.get('label', '').strip().removesuffix('.0')
      if (is_unknown := says_no_label(label)) and problems.lacks('an answer', where, split):
        continue
      answer = None if is_unknown else TRUTHS.get(label.lower(), label)
      if answer == label:
        raise Unusable(f'label {quoted(label)} is neither true nor false', 'unknown labels')
      example_id = str(row.get('idx', row.get('id', number)))
      read.append((where, example_id, text, named, answer))
      for span, index in named:
        fits['words'] += _in_word(text, span, index) is not None
        fits['characters'] += bool(span) and text.startswith(span, index)
  unit = max(fits, key=lambda name: fits[name])
  kind = f'spans, of which {fits[unit]:,} lie where their index says, in {unit}'
  problems.counts[kind] = 2 * len(read)
  place = _words if unit == 'words' else _place
  for where, example_id, text, named, gold in read:
    with problems.of_record(where):
      spans = tuple(place(text, name, at, where, problems) for name, at in named)
      yield Example(where, example_id, text, spans, gold)


def _index(value):
  """Parses the index of a span, which is a number or a text."""
  if (number := whole_number(str(value))) is None:
    raise ValueError(f'index {quoted(value)} is no number')
  return number


def _in_word(text, span, index):
  """Finds a span, in any case, that begins in word `index` of the text: (from, to), or None."""
  words = list(re.finditer(r'\S+', text))
  if not span or index >= len(words):
    return None
  match = re.compile(re.escape(span), re.IGNORECASE).search(text, words[index].start())
  return match.span() if match and match.start() < words[index].end() else None


def _words(text, span, index, where, problems):
  """Finds a span that should begin with word `index`: (from, to)."""
  if place := _in_word(text, span, index):
    return place
  words = list(re.finditer(r'\S+', text))
  if index >= len(words):
    raise Unusable(f'index {index} of {quoted(span)} is past the {len(words)} words', OFFSETS)
  if place := _nearest(text, span, words[index].start()):
    problems.note('offsets that are off (the nearest place taken)', where)
    return place
  problems.note('spans that are not in their text (the words at their index taken)', where)
  last = words[index : index + max(1, len(span.split()))][-1]
  return words[index].start(), last.end()
