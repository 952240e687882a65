"""Texts with marked spans, a pronoun and its candidates: GAP and Winograd schemas as published.

  gap  GAP (Webster et al. 2018, https://arxiv.org/abs/1810.05201): its TSV files, or tfds:gap; the
       candidates are A and B
  wsc  SuperGLUE's WSC (Wang et al. 2019, https://arxiv.org/abs/1905.00537; JSONL, or
       tfds:super_glue/wsc.fixed) and CLUEWSC2020 (JSONL); span2 is the pronoun, span1 the
       candidate. SuperGLUE counts indices in words, CLUE in characters: the unit is taken in which
       more spans of the file lie where they should

Faults, each counted and named (see problems.py):

  a name is not at its offset    the nearest place is taken; without one, the example is faulty, but
                                 for WSC counted in words: there the words at the index are taken
  A and B are both TRUE, or not TRUE or FALSE; a label is neither true nor false     faulty
  a pronoun of unknown gender    kept; it counts in the overall F1 only
  an id that came before         kept; GAP's scores take the first, as the official scorer does
"""

import json
import re
from typing import NamedTuple

from bert_jax.errors import InputError
from bert_jax.text import tables

GENDERS = dict.fromkeys(('he', 'his', 'him'), 'masculine') | dict.fromkeys(
  ('she', 'her', 'hers'), 'feminine'
)


SPANS = ('Pronoun', 'A', 'B')  # of GAP, with their offsets in characters


class Example(NamedTuple):
  where: str
  id: str
  text: str
  spans: tuple  # (from, to) in characters: of the pronoun, then of each candidate
  gold: int | None  # number of the candidate, their number for none of them; None: not known


def read(config, split, problems):
  """The Examples of a split, faulty ones left to `problems`."""
  spec = config.data[split]
  if not spec:
    raise InputError(f'data.{split} is empty; name a file of task.format={config.task.format}.')
  rows = tables.records(
    spec,
    split='train' if split == 'train' else 'validation',
    counts=problems.counts,
    wrong=problems.wrong,
  )
  reader = {'gap': _gap, 'wsc': _wsc}[config.task.format]
  fate = 'not in the scores of GAP' if config.task.format == 'gap' else 'kept'
  for example in reader(rows, split, problems):
    problems.counts['examples'] += 1
    problems.seen(example.id, example.where, fate)
    yield example


def _gap(rows, split, problems):
  for where, row in rows:
    told = any(row.get(f'{name}-coref', '').strip() for name in 'AB')  # not in a test set
    marked = ('A-coref', 'B-coref') if split == 'train' or told else ()
    columns = ('ID', 'Text', *SPANS, *(f'{name}-offset' for name in SPANS), *marked)
    found = problems.columns(row, columns, where)
    if found is None:
      continue
    own, text, *_ = found
    spans = []
    for name in SPANS:
      offset = row[f'{name}-offset'].strip()
      if not offset.isdecimal():
        problems.wrong(where, f'{name}-offset {offset!r} is no number', 'unreadable offsets')
        break
      span = _place(text, row[name], int(offset), where, problems)
      if span is None:
        break
      spans.append(span)
    if len(spans) < 3:
      continue
    gold = None
    if marked:
      marks = [row[name].strip().lower() for name in marked]
      if set(marks) - {'true', 'false'} or marks == ['true', 'true']:
        problems.wrong(
          where,
          f'A-coref and B-coref are {marks[0]!r} and {marks[1]!r}; write TRUE for one of them at '
          'most, and FALSE',
          'examples without one answer',
        )
        continue
      gold = (marks + ['true']).index('true')
    if row['Pronoun'].lower() not in GENDERS:
      problems.note('pronouns of unknown gender (in the overall F1 only)', where)
    yield Example(where, own, text, tuple(spans), gold)


def _place(text, name, offset, where, problems):
  """(from, to) of a name that should be at an offset; None: it is nowhere, see Problems.wrong."""
  if name and text.startswith(name, offset):
    return offset, offset + len(name)
  found = _nearest(text, name, offset)
  if found is None:
    problems.wrong(where, f'{name!r} is nowhere in its text', 'names that are not in their text')
  else:
    problems.note('offsets that are off (the nearest place taken)', where)
  return found


def _nearest(text, name, offset):
  """(from, to) of the occurrence next to offset: of the whole word, else within one, else in
  another case; None."""
  plain = re.escape(name)
  for pattern, flags in ((rf'\b{plain}\b', 0), (plain, 0), (plain, re.IGNORECASE)):
    spans = [match.span() for match in re.finditer(pattern, text, flags) if name]
    if spans:
      return min(spans, key=lambda span: abs(span[0] - offset))
  return None


def _wsc(rows, split, problems):
  found, fits = [], {'words': 0, 'characters': 0}
  for number, (where, row) in enumerate(rows):
    try:
      target = json.loads(row['target']) if 'target' in row else row
      named = [(target[f'span{k}_text'] + '', int(target[f'span{k}_index'])) for k in (2, 1)]
      text, label = row['text'], row['label'] if split == 'train' else row.get('label', '-1')
    except (KeyError, ValueError, TypeError, OverflowError) as error:
      problems.wrong(
        where,
        f'no text, target (span1_text, span1_index, span2_text, span2_index), label: {error!r}',
        'records without their fields',
      )
      continue
    answer = {'true': 0, '1': 0, 'false': 1, '0': 1, '-1': None}.get(label.lower(), label)
    if answer == label or (split == 'train' and answer is None):
      problems.wrong(where, f'label {label!r} is neither true nor false', 'unknown labels')
      continue
    own = str(row.get('idx', row.get('id', number)))
    found.append((where, own, text, named, answer))
    for span, index in named:
      fits['words'] += _in_word(text, span, index) is not None
      fits['characters'] += bool(span) and text.startswith(span, index)
  unit = max(fits, key=fits.get)
  problems.counts[f'spans, of which {fits[unit]:,} lie where their index says, in {unit}'] = (
    2 * len(found)
  )
  for where, own, text, named, gold in found:
    place, spans = _words if unit == 'words' else _place, []
    for span in named:
      if (found_at := place(text, *span, where, problems)) is None:
        break
      spans.append(found_at)
    else:
      yield Example(where, own, text, tuple(spans), gold)


def _in_word(text, span, index):
  """(from, to) of a span that begins in word `index` of the text, in any case; None."""
  words = [match.span() for match in re.finditer(r'\S+', text)]
  if not span or not 0 <= index < len(words):
    return None
  start, end = words[index]
  match = re.compile(re.escape(span), re.IGNORECASE).search(text, start)
  return match.span() if match and match.start() < end else None


def _words(text, span, index, where, problems):
  """(from, to) of a span that should begin with word `index`; None: see Problems.wrong."""
  if found := _in_word(text, span, index):
    return found
  words = [match.span() for match in re.finditer(r'\S+', text)]
  if not 0 <= index < len(words):
    problems.wrong(
      where, f'index {index} of {span!r} is past the {len(words)} words', 'unreadable offsets'
    )
    return None
  if found := _nearest(text, span, words[index][0]):
    problems.note('offsets that are off (the nearest place taken)', where)
    return found
  problems.note('spans that are not in their text (the words at their index taken)', where)
  return words[index][0], words[min(index + max(1, len(span.split())), len(words)) - 1][1]
