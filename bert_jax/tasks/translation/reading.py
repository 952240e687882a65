"""Reads pairs of a source and a target: parallel files, tables, TFDS.

A spec such as data.train is one of

  en=FILE,de=FILE        two files of text, of which line n of one is line n of the other, named as
                         the columns translation.source_column and target_column
  train.{language}.gz    two such files: {language} stands for these names
  FOLDER                 two such files, whose names contain the split and end in .en and .de (or
                         .en.gz); a folder without them is read as tables
  a table                .tsv, .csv, .jsonl, .parquet, hf:NAME with these two columns, see
                         text/tables.py; also {"translation": {"en": .., "de": ..}} or columns
                         translation.en, translation.de, as Hugging Face's datasets have them
  tfds:wmt16_translate/de-en    TFDS; its columns are the languages

A pair with an empty source or target cannot be used. Files of different lengths stop the run, since
nothing says where a line was lost. Without targets, evaluation data is translated, not scored.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import InputError, quoted
from bert_jax.files import Path
from bert_jax.tasks.faulty_records import Problems, Unusable, reads
from bert_jax.text import files, tables, values

NESTED = 'translation'  # the field of Hugging Face's records that holds both texts
FIELDS = 'translation.source_column, target_column, or columns if there is no header'
HINT = f'name one of these with {FIELDS}'


class Pair(NamedTuple):
  where: str
  id: str
  source: str
  target: str | None  # None: not known


def parallel(spec: str, split: str, names: Sequence[str]) -> list[Path]:
  """The parallel files that a spec names (the target's may be missing); [] if it names tables."""
  if files.is_named(spec):
    return []
  first = [name.split('|')[0] for name in names]
  parts = dict(files.parts(spec, first))
  sides = [parts.get(tables.first_of(parts, name), '') for name in names]
  if sides[0] and len(parts) == sum(map(bool, sides)):
    if split == 'train' and not sides[1]:
      raise InputError(f'{spec} names no {first[1]}; write {first[0]}=FILE,{first[1]}=FILE')
    return [_file(part, split) for part in filter(None, sides)]
  endings = [f'.{name}' for name in first]
  is_folder = Path(spec).expanduser().is_dir()
  if not is_folder or not {*endings} <= {files.suffix(path) for path in files.expand(spec)}:
    return []
  return [files.split_files(spec, split, one=True, kind=ending)[0] for ending in endings]


def _file(spec, split):
  paths = files.split_files(spec, split)
  if len(paths) > 1:
    raise InputError(f'{spec} is {len(paths)} files; name one, whose lines have those of the other')
  return paths[0]


def aligned(paths: Sequence[Path], problems: Problems) -> Iterator[tuple[str, list[str]]]:
  """Yields (where, lines) of parallel files; InputError if one of them ends before another."""
  sides = list(map(problems.lines, paths))
  for number, line_of in enumerate(itertools.zip_longest(*sides), 1):
    if None in line_of:
      ended = paths[line_of.index(None)]
      longer = next(path for path, line in zip(paths, line_of) if line is not None)
      fault = f'{ended} ends after line {number - 1} and {longer} goes on with line {number}'
      advice = 'pairs are the lines of equal number, so bring both files of one release'
      raise InputError(f'{fault}; {advice}')
    problems.counts['records'] += 1
    yield f'{paths[0].name}:{number}', [text for _, text in line_of]


def _unnested(row, source_name):
  """A row with the columns of the object in its column NESTED, if it lacks the source."""
  inner, is_object = tables.fields(row, NESTED), row.get(NESTED, '')[:1] == '{'
  if not (inner or is_object) or tables.first_of({**row, **row.no_text}, source_name):
    return row
  if is_object:
    try:
      inner = tables.row_of(values.printed_value(row[NESTED]))
    except (values.NotJson, AttributeError):
      fault = f'column {NESTED!r} holds {quoted(row[NESTED])}; write a JSON object'
      raise Unusable(fault, 'pairs that are no object') from None
  inner |= row
  return inner


@reads('pairs', name='two parallel files (en=FILE,de=FILE) or a table of pairs')
def read(config: ConfigDict, split: str, problems: Problems) -> Iterator[Pair]:
  """Yields the Pairs of a split; unusable ones go to `problems`."""
  spec, fields = config.data[split], config.translation
  source_name, target_name = names = fields.source_column, fields.target_column
  rows = problems.rows(spec, columns=tuple(fields.columns))
  if paths := parallel(spec, split, names):
    first = [name.split('|')[0] for name in names]
    rows = ((where, tables.Row(zip(first, texts))) for where, texts in aligned(paths, problems))
  for number, (where, row) in enumerate(rows):
    with problems.of_record(where):
      row = _unnested(row, source_name)
      there = tables.first_of(row, target_name)
      wanted = [source_name, *([target_name] if there or split == 'train' else [])]
      texts = problems.columns(row, wanted, where, HINT)
      for kind, column, text in zip(('source', 'target'), wanted, texts):
        if not text.strip():
          fault = f'the {kind} (column {column!r}) is empty; write one, or remove the pair'
          raise Unusable(fault, f'pairs without a {kind}')
      if not there:
        problems.note('without a target (translated, not scored)', where)
      yield Pair(where, str(number), *texts[:2], *([] if there else [None]))
