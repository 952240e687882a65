"""Raw text in, documents of sentences out.

A corpus is named by a spec: a file, a glob, a folder, or `tfds:NAME[:SPLIT]`. Files are read as a
stream, one document in memory at a time. A file's suffix tells its format (`.gz` may follow any):

  sentences   .txt, none or unknown: one sentence a line, a blank line between documents, as in
              google-research/bert
  paragraphs  .md: a blank line between paragraphs, wrapped lines joined; a heading opens a document
  jsonl       .jsonl, .json: one object a line whose text field is a document, a paragraph a line
  wiki        any file that begins with `<doc `: WikiExtractor output, a paragraph a line

Whatever else is found in a file is repaired and counted (invalid UTF-8) or is an InputError.
"""

from __future__ import annotations

import glob
import gzip
import itertools
import json
import logging
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.config import InputError

_log = logging.getLogger('bert_jax')

Lines = Iterable[tuple[int, str]]  # line numbers from 1, lines without their ends


class Document(NamedTuple):
  name: str  # 'file.txt:12', the line where it starts; decides whether the document is held out
  sentences: list[str]


# -------------------------------------------------------------------------------------------------
# Documents
# -------------------------------------------------------------------------------------------------


def documents(
  spec: str, *, format: str = 'auto', text_field: str = 'text', counts: Counter
) -> Iterator[Document]:
  """Yields the documents of a corpus in a fixed order, and counts what it reads.

  Args:
    spec: file, glob, folder or `tfds:NAME[:SPLIT]`, see the top of this file.
    format: 'auto' or one of 'sentences', 'paragraphs', 'jsonl', 'wiki'.
    text_field: the field of a JSON object or of a TFDS example that holds the text.
    counts: is added to: files, bytes (uncompressed), documents, sentences, empty_documents
      (skipped), invalid_utf8_lines (repaired).

  Raises:
    InputError: the corpus is missing, empty, damaged, not text, or not in the format.
  """
  if format != 'auto' and format not in _READERS:
    raise InputError(f'format {format!r} is unknown; use one of auto, {", ".join(_READERS)}')
  if spec.startswith('tfds:'):
    found = _tfds_documents(spec, text_field, counts)
  else:
    found = itertools.chain.from_iterable(
      _file_documents(path, format, text_field, counts) for path in expand(spec)
    )
  empty = True
  for document in found:
    if document.sentences:
      empty = False
      counts['documents'] += 1
      counts['sentences'] += len(document.sentences)
      yield document
    else:
      counts['empty_documents'] += 1
  if empty:
    raise InputError(f'{spec} holds no text, only white space; give it at least one document')


def held_out(name: str, share: float) -> bool:
  """Whether a document belongs to the held-out share (0 to 1); a function of its name alone."""
  return zlib.crc32(name.encode()) < share * 2**32


def _file_documents(
  path: Path, format: str, text_field: str, counts: Counter
) -> Iterator[Document]:
  numbered = lines(path, counts)
  first = next(numbered)
  if format == 'auto':
    wiki = first[1].startswith('<doc ')
    format = 'wiki' if wiki else _SUFFIXES.get(suffix(path), 'sentences')
  rest = itertools.chain([first], numbered)
  return (
    _jsonl(path, rest, text_field, counts) if format == 'jsonl' else _READERS[format](path, rest)
  )


def _sentences(path: Path, numbered: Lines) -> Iterator[Document]:
  start, sentences = 0, []
  for number, line in itertools.chain(numbered, [(0, '')]):
    line = line.strip()
    if line:
      start = start or number
      sentences.append(line)
    elif sentences:
      yield Document(f'{path.name}:{start}', sentences)
      start, sentences = 0, []


def _paragraphs(path: Path, numbered: Lines) -> Iterator[Document]:
  start, sentences, has_body = 0, [], False
  for number, text, is_heading in _blocks(numbered):
    if is_heading and has_body:  # a title directly above a heading stays with it
      yield Document(f'{path.name}:{start}', sentences)
      start, sentences, has_body = 0, [], False
    start = start or number
    sentences += [text] if is_heading else split_sentences(text)
    has_body = has_body or not is_heading
  yield Document(f'{path.name}:{start}', sentences)


_HEADING = re.compile(r'#{1,6}\s+(.+?)(?:\s+#+)?')
_RULE = re.compile(r'([-*_=])(?:\s*\1){2,}')  # a break, or the line under a title


def _blocks(numbered: Lines) -> Iterator[tuple[int, str, bool]]:
  """Yields (line number, text, is it a heading) per heading and per paragraph."""
  start, paragraph = 0, []
  for number, line in itertools.chain(numbered, [(0, '')]):
    line = line.strip()
    heading = _HEADING.fullmatch(line)
    if line and not heading and not _RULE.fullmatch(line):
      start = start or number
      paragraph.append(line)
      continue
    if paragraph:
      yield start, ' '.join(paragraph), False
      start, paragraph = 0, []
    if heading:
      yield number, heading[1], True


def _wiki(path: Path, numbered: Lines) -> Iterator[Document]:
  start, sentences = 0, []
  for number, line in itertools.chain(numbered, [(0, '</doc>')]):
    line = line.strip()
    opens = line.startswith('<doc ')
    if opens or line == '</doc>':
      if start:
        yield Document(f'{path.name}:{start}', sentences)
      start, sentences = number if opens else 0, []
    elif line:
      start = start or number
      sentences += split_sentences(line) if sentences else [line]  # the first line is the title


def _jsonl(path: Path, numbered: Lines, text_field: str, counts: Counter) -> Iterator[Document]:
  for number, line in numbered:
    if line.strip():
      where = f'{path}:{number}'
      row = parse_json(line, where, counts)
      yield Document(f'{path.name}:{number}', _text_of(row, text_field, where))


def _tfds_documents(spec: str, text_field: str, counts: Counter) -> Iterator[Document]:
  _, rows = tfds_rows(spec)
  for name, row in rows:
    row = {k: decode(v, counts) if isinstance(v, bytes) else v for k, v in row.items()}
    yield Document(name, _text_of(row, text_field, name))


def _text_of(row: dict[str, Any], field: str, where: str) -> list[str]:
  """The sentences of a row's text field; a line is a paragraph."""
  if field not in row:
    raise InputError(
      f'{where} has no field {field!r}, only {", ".join(row) or "none at all"}; set text_field'
    )
  text = row[field]
  if not isinstance(text, str):
    raise InputError(f'{where}: field {field!r} holds {text!r:.40}, not text; set text_field')
  return [sentence for line in text.splitlines() for sentence in split_sentences(line)]


_READERS = {'sentences': _sentences, 'paragraphs': _paragraphs, 'jsonl': _jsonl, 'wiki': _wiki}
_SUFFIXES = {'.md': 'paragraphs', '.jsonl': 'jsonl', '.json': 'jsonl'}


# -------------------------------------------------------------------------------------------------
# Files, lines, rows: also what tables.py reads with
# -------------------------------------------------------------------------------------------------


def expand(spec: str) -> list[Path]:
  """The files a spec names, sorted: a file, a glob, or a folder with all below it.

  Inside folders, names that begin with '.' or '_' are left out (.git, .DS_Store, Spark's _SUCCESS).
  """
  path = Path(spec).expanduser()
  if path.is_file():
    return [path]
  if path.is_dir():
    below = [
      file
      for file in path.rglob('*')
      if file.is_file() and not any(part[0] in '._' for part in file.relative_to(path).parts)
    ]
    if not below:
      raise InputError(f'{spec} is a folder without files; give the folder that holds the data')
    return sorted(below)
  matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
  matches = sorted(match for match in matches if match.is_file())
  if not matches and glob.has_magic(spec):
    raise InputError(f'no file matches {spec}; check the pattern, and quote it in a shell')
  if not matches:
    raise InputError(f'{spec} does not exist; give a file, a glob, a folder or tfds:NAME')
  return matches


def suffix(path: Path) -> str:
  """'.txt' of both a.txt and a.txt.gz."""
  return Path(path.name.removesuffix('.gz')).suffix.lower()


def lines(path: Path, counts: Counter) -> Iterator[tuple[int, str]]:
  """Yields (line number, line) of a plain or .gz file, without byte order mark and line ends.

  Invalid UTF-8 becomes U+FFFD, is counted, and its first line is logged. A file without a byte,
  with a NUL byte, or with a broken gzip stream is an InputError.
  """
  counts['files'] += 1
  size, number, warned = 0, 0, False
  try:
    with gzip.open(path) if path.suffix == '.gz' else open(path, 'rb') as file:
      for number, raw in enumerate(file, 1):
        if b'\0' in raw:
          raise InputError(
            f'{path} is not text: line {number} has a NUL byte, at byte {size + raw.index(0)}; '
            'leave the file out, or convert it to UTF-8 if it is UTF-16'
          )
        size += len(raw)
        counts['bytes'] += len(raw)
        invalid = counts['invalid_utf8_lines']
        line = decode(raw, counts)
        if counts['invalid_utf8_lines'] > invalid and not warned:
          warned = True
          message = '%s:%d is not valid UTF-8; bad bytes of this file become U+FFFD and are counted'
          _log.warning(message, path, number)
        if number == 1:
          line = line.removeprefix('\ufeff')
        yield number, line.rstrip('\r\n')
  except (EOFError, gzip.BadGzipFile, zlib.error) as error:
    raise InputError(
      f'{path} is a broken or truncated gzip file (after line {number}: {error}); fetch it again'
    ) from error
  except OSError as error:
    raise InputError(f'{path} cannot be read: {error.strerror or error}') from error
  if not number:
    raise InputError(f'{path} is empty; remove it, or write it again')


def decode(raw: bytes, counts: Counter) -> str:
  """UTF-8 to str; what is invalid becomes U+FFFD and is counted."""
  try:
    return raw.decode()
  except UnicodeDecodeError:
    counts['invalid_utf8_lines'] += 1
    return raw.decode(errors='replace')


def parse_json(line: str, where: str, counts: Counter) -> dict[str, Any]:
  """The JSON object of one line; half a surrogate pair is invalid UTF-8 and treated like it."""
  try:
    row = json.loads(line)
  except json.JSONDecodeError as error:
    raise InputError(
      f'{where} is not JSON ({error.msg} at column {error.colno}); write one JSON object per line'
    ) from error
  if not isinstance(row, dict):
    raise InputError(f'{where} holds a JSON {type(row).__name__}; write one JSON object per line')
  if _ESCAPED_SURROGATE.search(line):
    repaired, halves = _SURROGATE.subn('\ufffd', json.dumps(row, ensure_ascii=False))
    if halves:
      counts['invalid_utf8_lines'] += 1
      return json.loads(repaired)
  return row


_ESCAPED_SURROGATE = re.compile(r'\\u[dD][89a-fA-F]')
_SURROGATE = re.compile('[\ud800-\udfff]')
_TFDS = re.compile(r'tfds:(?P<name>[^:]+(?::[\d*]+\.[\d*]+\.[\d*]+)?)(?::(?P<split>.+))?')


def tfds_rows(
  spec: str, split: str = 'train'
) -> tuple[dict[str, Any], Iterator[tuple[str, dict[str, Any]]]]:
  """Opens `tfds:NAME[:SPLIT]`; returns (its features, an iterator over (name, raw row)).

  NAME is what `tfds.builder` takes (`glue/sst2`, `my_corpus:1.0.0`; looked up in TFDS_DATA_DIR) or,
  beginning with / . or ~, the folder of a prepared dataset. SPLIT may be a slice, `train[:10%]`,
  and wins over `split`. Only ArrayRecord data is read: it needs no TensorFlow and loses no row.
  """
  match = _TFDS.fullmatch(spec)
  if not match:
    raise InputError(f'{spec!r} names no dataset; write tfds:NAME or tfds:NAME:SPLIT')
  name, split = match['name'], match['split'] or split
  try:
    builder = _tfds_builder(name)
  except InputError:
    raise
  except Exception as error:  # TFDS raises a dozen unrelated types
    raise InputError(
      f'{spec} cannot be opened ({_brief(error)}); prepare it once where TensorFlow is installed, '
      "with 'tfds build NAME --file_format=array_record', and set TFDS_DATA_DIR or give its folder"
    ) from error
  try:
    source = builder.as_data_source(split=split)
  except Exception as error:
    raise InputError(
      f'{spec} cannot be read ({_brief(error)}); its splits are {", ".join(builder.info.splits)}'
    ) from error
  return dict(builder.info.features), _rows(source, f'{builder.info.full_name}:{split}')


def _tfds_builder(name: str) -> Any:
  import tensorflow_datasets as tfds
  import tensorflow_datasets.text  # imported late by TFDS: without it glue is "not found"
  import tensorflow_datasets.translate  # noqa: F401

  if name[0] not in '/.~':
    builder = tfds.builder(name, try_gcs=False, file_format='array_record')
    builder.download_and_prepare()
    return builder
  found = sorted(Path(name).expanduser().glob('**/dataset_info.json'))
  if len(found) != 1:
    raise InputError(f'{name} holds {len(found)} prepared TFDS datasets; name the folder of one')
  builder = tfds.builder_from_directory(str(found[0].parent))
  if builder.info.file_format.value != 'array_record':
    raise InputError(
      f'{name} is prepared as {builder.info.file_format.value}, which needs TensorFlow or loses '
      'rows; prepare it again with --file_format=array_record'
    )
  return builder


def _rows(source: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
  for i in range(len(source)):
    try:
      row = source[i]
    except Exception as error:
      raise InputError(f'{name}:{i} is damaged ({_brief(error)}); prepare it again') from error
    # A file cut at the 64 KB blocks of ArrayRecord opens, and gives rows of None.
    if all(value is None for value in row.values()):
      raise InputError(f'{name}:{i} is damaged (the file is truncated); prepare it again')
    yield f'{name}:{i}', row


def _brief(error: Exception) -> str:
  text = str(error.args[0] if isinstance(error, KeyError) and error.args else error).strip()
  return (text.splitlines() or [type(error).__name__])[0].rstrip('.')[:200]


# -------------------------------------------------------------------------------------------------
# Sentences
# -------------------------------------------------------------------------------------------------

_OPEN = '"\'“‘„‚«‹「『（《(【[{¿¡*_—–-'
_CLOSE = '"\'”’“‘»›)]}*_）】》〉」』〕］'
_BREAK = re.compile(
  # Marks that end a sentence by themselves: CJK, Devanagari, Arabic, Armenian, Ethiopic, ...
  r"[。｡！？।॥؟۔։።၊။។᙮]+[!?…]*[\"'”’»)\]）】》〉」』〕］]*\s*"
  # Marks that end one only before white space; German closes its quotes with “ and ‘. The look
  # behind keeps a long row of dots linear; it stands second so that the search is for a mark.
  rf'|(?P<mark>[.!?…](?<![.!?…]{{2}})[.!?…]*)[{re.escape(_CLOSE)}]*\s+'
)
_LAST_WORD = re.compile(r'[^\W\d_][\w.]*$')
_TITLES = frozenset(
  ['Mr', 'Mrs', 'Ms', 'Messrs', 'Dr', 'Prof', 'St', 'Ste', 'Mt', 'Rev', 'Hon', 'Gen', 'Col', 'Maj']
  + ['Capt', 'Lt', 'Sgt', 'Gov', 'Sen', 'Rep', 'Mme', 'Mlle', 'Sr', 'Sra', 'Hr', 'Fr', 'vs', 'cf']
  + ['al', 'viz']
)
_COUNTERS = frozenset(['No', 'Nr', 'Nos', 'Vol', 'Fig', 'Sec', 'Ch', 'Art', 'p', 'pp', 'no', 'vol'])


def split_sentences(paragraph: str) -> list[str]:
  """Splits a paragraph into sentences by rules that know no language.

  A sentence ends at . ! ? or … before white space, closing quotes and brackets included, unless a
  small letter follows or the full stop belongs to an initial, an abbreviation such as U.S., a title
  or the number that opens a list item. It also ends at marks such as 。 or । wherever they are.
  Nothing but white space between sentences is lost.
  """
  sentences, start = [], 0
  for match in _BREAK.finditer(paragraph):
    if match['mark'] and not _ends_sentence(paragraph, start, match):
      continue
    sentences.append(paragraph[start : match.end()].strip())
    start = match.end()
  sentences.append(paragraph[start:].strip())
  return [sentence for sentence in sentences if sentence]


def _ends_sentence(text: str, start: int, match: re.Match) -> bool:
  following = text[match.end() : match.end() + 8].lstrip(_OPEN)[:1]
  if following.islower():
    return False
  if match['mark'] != '.':
    return True
  before = text[max(start, match.start() - 24) : match.start()]
  if before.strip().isdigit():  # "1. The first item"
    return False
  last = _LAST_WORD.search(before)
  word = last[0] if last else ''
  initial = len(word) == 1 and word.isupper() and word != 'I'
  abbreviation = '.' in word and max(map(len, word.split('.'))) == 1
  counter = word in _COUNTERS and following.isdigit()
  return not (initial or abbreviation or counter or word in _TITLES)
