"""Reads pairs of a source and a target: parallel files, tables, TFDS.

A spec such as data.train is one of

  en=FILE,de=FILE        two files of text, of which line n of one is line n of the other, named as
                         the columns translation.source_column and target_column; of JSON lines
                         the text in a column of that name, or `text`
  train.{language}.gz    two such files: {language} stands for these names
  a table                .tsv, .csv, .jsonl, .parquet, hf:NAME with these two columns, see
                         text/tables.py; or translation.en, translation.de, as of
                         {"translation": {"en": .., "de": ..}}, which Hugging Face's sets have
  tfds:wmt16_translate/de-en    TFDS; its columns are the languages

A pair with an empty source or target cannot be used. Files of different lengths stop the run, since
nothing says where a line was lost. Without targets, evaluation data is translated, not scored.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.tasks.faulty_records import Problems, Unusable, reads
from bert_jax.text import files, tables

FIELDS = 'translation.source_column, target_column, or columns if there is no header'
HINT = f'name one of these with {FIELDS}'


class Pair(NamedTuple):
  where: str
  id: str
  source: str
  target: str | None  # None: not known


def parallel(spec: str, split: str, names: Sequence[str]) -> list[Path]:
  """The parallel files that a spec names (the target's may be missing); [] if it names tables."""
  source, target = (name.split('|')[0] for name in names)
  parts = dict(files.parts(spec, (source, target)))
  if not tables.first_of(parts, names[0]):
    return []
  paths = []
  for name in names:
    side = tables.first_of(parts, name)
    if side:
      paths += files.split_files(parts[side], split)
  if len(paths) > 2 or (split == 'train' and len(paths) < 2):
    raise InputError(
      f'{spec} is {len(paths)} files; write {source}=FILE,{target}=FILE, whose lines are pairs'
    )
  return paths


def aligned(
  paths: Sequence[Path], names: Sequence[str], problems: Problems
) -> Iterator[tuple[str, tables.Row]]:
  """Yields (where, row) of parallel files; InputError if one of them ends before another."""
  sides = [_texts(path, name, problems) for path, name in zip(paths, names)]
  for number, line_of in enumerate(itertools.zip_longest(*sides), 1):
    if None in line_of:
      ended = line_of.index(None)
      raise InputError(
        f'{paths[ended]} ends after line {number - 1} and {paths[1 - ended]} goes on with line '
        f'{number}; pairs are the lines of equal number, so bring both files of one release'
      )
    problems.counts['records'] += 1
    row = tables.Row((name.split('|')[0], text) for name, (_, text) in zip(names, line_of))
    yield f'{paths[0].name}:{number}', row


def _texts(path, name, problems):
  """Yields (number, text) of a parallel file: its lines or, of JSON lines, their texts."""
  if not files.suffix(path).startswith('.json'):
    yield from problems.lines(path)
    return
  for number, line in files.lines(path, problems.counts, problems.encoding):
    where = f'{path}:{number}'
    row = tables.row_of(files.parse_json(line, where, problems.counts))
    yield number, tables.column(row, f'{name}|text', where, 'call it so')


@reads('pairs', name='two parallel files (en=FILE,de=FILE) or a table of pairs')
def read(config: ConfigDict, split: str, problems: Problems) -> Iterator[Pair]:
  """Yields the Pairs of a split; unusable ones go to `problems`."""
  spec, fields = config.data[split], config.translation
  names = fields.source_column, fields.target_column
  paths = parallel(spec, split, names)
  if paths:
    rows = aligned(paths, names, problems)
  else:
    rows = problems.rows(spec, columns=tuple(fields.columns))
  source, target = names
  for number, (where, row) in enumerate(rows):
    with problems.of_record(where):
      if not tables.first_of(row, source):
        row = tables.fields(row, 'translation') or row
      has_target = bool(tables.first_of(row, target))
      columns = [source, target] if has_target or split == 'train' else [source]
      texts = problems.columns(row, columns, where, HINT)
      if not all(map(str.strip, texts)):
        raise Unusable(
          'its source or its target is empty; write one, or remove the pair',
          'pairs without a text',
        )
      if not has_target:
        problems.note('without a target (translated, not scored)', where)
      yield Pair(where, str(number), texts[0], texts[1] if has_target else None)
