"""Reads files by lines and JSON files, and reports damage with its place.

A spec is a file, a glob, a folder, a set by its name (`tfds:NAME[:SPLIT]`, see tfds.py, or
`hf:NAME`, see arrow.py), or `docs:NAME` (documentation_tasks.py).
What can be repaired (invalid UTF-8) is repaired and counted; anything else wrong is an InputError
that says where.
"""

import errno
import glob
import gzip
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from bert_jax.buckets import Bucket
from bert_jax.errors import InputError
from bert_jax.files import Path, read_bytes
from bert_jax.text import documentation_tasks, encodings, values

RECORDS = '.parquet', '.arrow', '.feather'  # suffixes of files that hold records and no lines
JSON_LINES = {'.ndjson': '.jsonl', '.jsonlines': '.jsonl'}  # other suffixes of the same
IN_MEMORY = re.compile(r'(?:.*/)?(train|eval)-[0-9a-f]{16}\.parquet')  # see interactive.py
SHARD = re.compile(r'-\d{5}-of-\d{5}')  # in the name of a file that is one of several


def is_named(spec: str) -> bool:
  """Whether a spec is the name of a set and no path of files."""
  return spec.startswith(('tfds:', 'hf:'))


def called(name: str) -> str:
  """What the file of a name is called in messages: as it is, but for rows that were in memory."""
  return IN_MEMORY.sub(r'table of \1', name)


def parts(spec: str, languages: Iterable[str] = ()) -> list[tuple[str, str]]:
  """Splits a spec into [(name, spec), ...]: `NAME=SPEC,...` or {language}; else [('', spec)]. What
  begins with a folder that exists, or names files as it stands, has no names."""
  if '{language}' in spec:
    if not languages:
      raise InputError(f'{spec} wants languages; name them in corpus.languages (--languages)')
    return [(name, spec.replace('{language}', name)) for name in languages]
  folder = spec.split('/')[0]  # or file, such as year=2020, or a pattern of some
  if not re.match(r'[\w-]+=.', spec) or exists(folder) or glob.glob(folder):
    return [('', spec)]
  named = [part.partition('=') for part in re.split(r',(?=[\w-]+=)', spec)]
  return [(name, part) for name, _, part in named]


def _pattern(path: Path) -> str:
  """A pattern of `glob` for a path, whose folder stands for itself if it exists: my [v2]/*.txt."""
  for folder in map(str, path.parents):
    if glob.has_magic(folder) and exists(folder):
      return glob.escape(folder) + str(path)[len(folder) :]
  return str(path)


def exists(path: str | Path) -> bool:
  """Whether a path exists; False for what cannot be a path, such as a long list of files. OSError
  if it cannot be looked up: a bucket that does not answer, a folder that may not be read.
  InputError for a bucket whose package is missing."""
  try:
    return Path(path).expanduser().exists()
  except InputError:
    raise
  except ValueError:
    return False
  except OSError as error:
    if error.errno != errno.ENAMETOOLONG:
      raise
    return False


def expand(spec: str) -> list[Path]:
  """The files a spec names, sorted: a file, a glob, a folder with all below it, or docs:NAME.
  Inside folders, names that begin with '.' or '_' are left out (.git, Spark's _SUCCESS)."""
  if spec.startswith(documentation_tasks.PREFIX):
    return documentation_tasks.files(spec)
  path = Path(spec).expanduser()
  try:
    if path.is_file():
      return [path]
  except OSError as error:
    raise InputError(
      f'{spec:.60} cannot be looked up ({error.strerror}); a text is given in a list, [text]'
    ) from error
  if path.is_dir():
    if saved_by_datasets(path):
      raise InputError(f'{spec} is a data set of `save_to_disk`; write hf:{path.absolute()}')
    found = []
    for file in path.rglob('*'):
      if not any(part[0] in '._' for part in file.relative_to(path).parts):
        found.append(file)
    advice = f'{spec} is a folder without files; give the folder that holds the data'
  else:
    if isinstance(path, Bucket):
      found = Bucket(_pattern(path)).matches()
    else:
      found = [Path(name) for name in glob.glob(_pattern(path), recursive=True)]
    advice = f'{spec!r} does not exist; give a file, a glob, a folder, tfds:NAME or hf:NAME'
    if glob.has_magic(spec):
      advice = f'no file matches {spec}; check the pattern'
  paths = sorted(file for file in found if isinstance(file, Bucket) or file.is_file())
  if not paths:
    raise InputError(advice)
  return paths


def saved_by_datasets(folder: Path) -> bool:
  """Whether `save_to_disk` of Hugging Face's `datasets` made a folder."""
  return any((folder / name).is_file() for name in ('state.json', 'dataset_dict.json'))


def suffix(path: Path) -> str:
  """A file's suffix without the compression: '.txt' for a.txt, a.txt.gz and a.txt.zst; '.jsonl' for
  the others of JSON lines, too."""
  name = _bare(path).suffix.lower()
  return JSON_LINES.get(name, name)


def _bare(path: Path) -> Path:
  return Path(path.name.removesuffix('.gz').removesuffix('.zst'))


def lines(path: Path, counts: Counter, encoding: str = '') -> Iterator[tuple[int, str]]:
  """Yields (line number, line) of a file, see raw_lines and encodings.decoded."""
  counts['files'] += 1
  numbered = ((number, raw) for number, raw, _ in raw_lines(path, encoding))
  return encodings.decoded(path, numbered, counts)


def not_json(path: Path, numbered: Iterator[Any], fix: str = '') -> Iterator[Any]:
  """(number, line, ..) of a file of texts. InputError if the first ones are objects of JSON, whose
  keys and quotes would be read as text. fix: what else may be done."""
  head = list(itertools.islice(numbered, 3))
  first = [line for _, line, *_ in head if line.strip()]
  if first and all(map(_is_object, first)):
    raise InputError(f'{path} holds a JSON object on each line; call it .jsonl{fix}')
  return itertools.chain(head, numbered)


def _is_object(line):
  try:
    return isinstance(values.json_value(line), dict)
  except values.NotJson:
    return False


def raw_lines(path: Path, encoding: str = '') -> Iterator[tuple[int, bytes, int]]:
  """Yields (line number, line in UTF-8, bytes read so far of the file on disk, 0 for a pipe). A
  line of 64 MB is an InputError. encoding: as data.text_encoding, see text/encodings.py."""
  number = 0
  if suffix(path) in RECORDS:
    raise InputError(
      f'{path} is a table, and lines are read here; name a text file or its --columns'
    )
  try:
    with path.open('rb', 1 << 16) as disk:
      is_pipe = not disk.seekable()
      opener = _OPENERS.get(path.suffix)
      stream, is_checked = encodings.opened(path, opener(disk) if opener else disk, encoding)
      check = encodings.Checked(path) if is_checked else None
      while raw := stream.readline(_LONGEST_LINE):
        if len(raw) >= _LONGEST_LINE:
          raise InputError(
            f'{path} has no line end in the {_LONGEST_LINE >> 20} MB of line {number + 1}; '
            'split it, and put each document on its own lines.'
          )
        number += 1
        if check:
          check(number, raw)
        yield number, raw, 0 if is_pipe else disk.tell()
  except (InputError, MemoryError):
    raise
  except Exception as error:
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
      raise InputError(f'{path} cannot be read: {error.strerror or error}') from error
    raise InputError(
      f'{path} is a broken or truncated {path.suffix} file (after line {number}: {error}); '
      'fetch it again'
    ) from error
  if not number:
    raise InputError(f'{path} is empty; remove it, or write it again')


def _zstd(disk: BinaryIO) -> Any:
  try:
    from backports import zstd
  except ImportError:
    raise InputError(f'{disk.name} needs a library; run: pip install backports.zstd') from None
  return zstd.ZstdFile(disk)


def _gzip(disk: BinaryIO) -> Any:
  return gzip.GzipFile(fileobj=disk)


_OPENERS = {'.gz': _gzip, '.zst': _zstd}
_LONGEST_LINE = 1 << 26  # bytes


def parse_json(line: str, where: str, counts: Counter) -> dict[str, Any]:
  """The JSON object of one line; half a surrogate pair is repaired and counted as invalid UTF-8."""
  try:
    row, halves = values.json_text(line)
  except values.NotJson as error:
    raise InputError(f'{where} is {error}; write one JSON object per line') from None
  if not isinstance(row, dict):
    raise InputError(f'{where} is a JSON {type(row).__name__}; write one JSON object per line')
  if halves:
    counts['invalid_utf8_lines'] += 1
  return row


def json_of(path: Path, kind: type = dict) -> Any:
  """The dict or list in a JSON file, or InputError; empty if there is no such file."""
  try:
    data = read_bytes(path)
    value = kind() if data is None else values.json_value(data)
  except (OSError, values.NotJson) as error:
    raise InputError(f'{path} cannot be read as JSON ({error}); is it whole?') from None
  if not isinstance(value, kind):
    name = 'object' if kind is dict else 'list'
    raise InputError(f'{path} does not hold a JSON {name}; is it whole?')
  return value


def names_of_split(split: str) -> tuple[str, ...]:
  """What a split may be called: the one to evaluate on ('eval', 'validation') has several names."""
  several = 'dev', 'validation', 'val', 'valid', 'testa'
  return several if split in ('eval', 'validation') else (split,)


def split_files(spec: str, split: str, *, one: bool = False, kind: str = '') -> list[Path]:
  """The files of a spec; in a folder, only those named for the split: train.tsv, x-ud-dev.conllu.
  kind: a suffix that goes before others. one: several files that are no shards of one set are an
  InputError, as are always two that differ in their suffix only, since they may be the same set."""
  paths = expand(spec)
  if not Path(spec).expanduser().is_dir():
    return paths
  paths = [path for path in paths if suffix(path) == kind] or paths
  names = names_of_split(split)
  for pattern in (r'({})\.', r'.*(?<![a-z])({})(?![a-z])'):  # the whole name, else a word of it
    for name in names:
      matches = re.compile(pattern.format(name), re.IGNORECASE).match
      named = [path for path in paths if matches(path.name)]
      stems = {str(path.parent / _bare(path).stem) for path in named}
      sets = {SHARD.sub('', stem) for stem in stems}
      if len(named) > len(stems) or (one and len(sets) > 1):
        two = f'{len(named)} files for {name}, {named[0].name} and {named[1].name}'
        raise InputError(f'{spec} holds {two}; name the one you mean')
      if named:
        return named
  there = f'no {" or ".join(names)} file but {", ".join(path.name for path in paths[:5])}'
  raise InputError(f'{spec} holds {there}; name the file you mean')
