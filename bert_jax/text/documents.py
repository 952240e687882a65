"""Reads a corpus of raw text as documents of sentences.

A corpus is named by a spec: a file, a glob, a folder, or `tfds:NAME[:SPLIT]`. A file's suffix tells
its format (`.gz` or `.zst` may follow any):

  sentences   .txt, none or unknown: one sentence a line, a blank line between documents, as in
              google-research/bert
  lines       a paragraph a line, to be split into sentences; a blank line between documents
  paragraphs  .md: a blank line between paragraphs, wrapped lines joined; a heading opens a document
  jsonl       .jsonl, .json: one object a line whose text field is a document, a paragraph a line
  wiki        any file that begins with `<doc `: WikiExtractor output, a paragraph a line
  wikitext    any file that begins with a line like ` = Title = `: WikiText-2 and -103, a paragraph
              a line; headings (` = = Section = = `) open documents, as in Markdown

Files are read as a stream and cut into blocks of whole documents. Cutting is quick, since it only
looks for the lines that open a document; then any process can read a block into documents without
the rest of the file. A line of more than 16 MB (text8 is one line of 100 MB) is read as several of
1 MB, each a document of its own. Invalid UTF-8 is repaired and counted; any other fault is an
InputError.
"""

import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.errors import InputError, listed, quoted
from bert_jax.text import files, utf8
from bert_jax.text.files import parse_json
from bert_jax.text.headings import RULE, heading_of, wikitext_heading
from bert_jax.text.sentences import split_sentences
from bert_jax.text.utf8 import Lines, decode

BLOCK_BYTES = 1 << 20  # a block ends where the first document begins after so many bytes
LONGEST_DOCUMENT = 16 << 20  # bytes; a longer one is cut here, and counted
LONGEST_SENTENCE = 10_000  # characters; a longer one is cut at a blank, and counted
_TFDS_ROWS = 256  # rows of a TFDS dataset in a block


class Document(NamedTuple):
  name: str  # 'file.txt:12', the line where it starts; decides whether the document is held out
  sentences: list[str]


class Block(NamedTuple):
  """Some whole documents of a file that are not yet parsed, or rows of a TFDS dataset."""

  path: str
  format: str
  first: int  # number of its first line or row
  data: bytes  # its lines; of a TFDS dataset, the number of rows
  position: int  # bytes of the file on disk, or rows, read when it ends: for a progress bar
  is_cut: bool  # it begins amid a document that became too long for one block


def documents(
  spec: str,
  *,
  split: str = 'train',
  format: str = 'auto',
  text_field: str = 'text',
  counts: Counter,
) -> Iterator[Document]:
  """Yields the documents of a corpus in a fixed order, and counts what it reads.
  Args:
    spec: file, glob, folder or `tfds:NAME[:SPLIT]`, see the top of this file.
    split: the split of a TFDS dataset whose spec names none.
    format: 'auto' or one of 'sentences', 'lines', 'paragraphs', 'jsonl', 'wiki', 'wikitext'.
    text_field: the field of a JSON object or of a TFDS example that holds the text.
    counts: these keys are increased: files, bytes (uncompressed), documents, sentences,
      empty_documents (skipped), invalid_utf8_lines (repaired), cut_sentences and cut_documents
      (split because too long).
  InputError: the corpus is missing, empty, damaged, not text, or not in the format."""
  empty = True
  for path in sources(spec, format):
    if not path.startswith('tfds:'):
      counts['files'] += 1
    for block in blocks(path, format, split):
      for document in read_block(block, text_field, counts):
        empty = False
        yield document
  if empty:
    raise InputError(f'{spec} holds no text, only white space; give it at least one document')


def sources(spec: str, format: str = 'auto') -> list[str]:
  """The paths to give to `blocks`: the files of a spec, in order, or the spec of a TFDS dataset."""
  if format != 'auto' and format not in _READERS:
    raise InputError(f'format {format!r} is unknown; use one of auto, {", ".join(_READERS)}')
  return [spec] if spec.startswith('tfds:') else [str(path) for path in files.expand(spec)]


def blocks(path: str, format: str = 'auto', split: str = 'train') -> Iterator[Block]:
  """Cuts a file, or a TFDS dataset, into blocks; the same bytes give the same blocks."""
  if path.startswith('tfds:'):
    files.tfds_source.cache_clear()  # the dataset may have been prepared anew
    _, rows = files.tfds_source(path, split)
    for first in range(0, len(rows), _TFDS_ROWS):
      number = min(_TFDS_ROWS, len(rows) - first)
      yield Block(path, split, first, str(number).encode(), first + number, False)
    return
  by_suffix = _SUFFIXES.get(files.suffix(Path(path)), 'sentences') if format == 'auto' else format
  # An object of JSON cannot be cut.
  numbered = files.raw_lines(Path(path), 0 if by_suffix == 'jsonl' else LONGEST_DOCUMENT)
  if format == 'auto':
    format, numbered = _format_of(numbered, by_suffix)
  number, raw, position = next(numbered)
  opens = _OPENS[format]()
  opens(raw)
  lines, size, first, is_cut = [raw], len(raw), number, False
  for number, raw, at in numbered:
    goes_on = not lines[-1].endswith(b'\n')  # the line before was cut
    opening = not goes_on and opens(raw)
    if (opening and size >= BLOCK_BYTES) or size >= LONGEST_DOCUMENT or goes_on:
      yield Block(path, format, first, b''.join(lines), position, is_cut)
      lines, size, first, is_cut = [], 0, number, not opening
    lines.append(raw)
    size += len(raw)
    position = at
  yield Block(path, format, first, b''.join(lines), position, is_cut)


def _format_of(numbered, otherwise):
  """(format, the lines again), where the first lines tell the format, else the file's suffix."""
  head, first = [], ''
  for line in numbered:
    head.append(line)
    first = line[1][:LONGEST_SENTENCE].decode(errors='replace').lstrip('\ufeff').rstrip('\r\n')
    if first.strip():
      break
  format = otherwise
  if len(head) == 1 and first.startswith('<doc '):
    format = 'wiki'
  elif otherwise == 'sentences' and wikitext_heading(first.strip()):
    format = 'wikitext'
  return format, itertools.chain(head, numbered)


def read_block(block: Block, text_field: str, counts: Counter) -> Iterator[Document]:
  """Yields the documents of a block that are not empty; counts as `documents` does."""
  for document in _read(block, text_field, counts):
    if sentences := [part for s in document.sentences for part in _bounded(s, counts)]:
      counts['documents'] += 1
      counts['sentences'] += len(sentences)
      yield Document(document.name, sentences)
    else:
      counts['empty_documents'] += 1


def _read(block: Block, text_field: str, counts: Counter) -> Iterator[Document]:
  if block.path.startswith('tfds:'):
    _, rows = files.tfds_source(block.path, block.format)
    return _tfds_documents(rows, block, text_field, counts)
  if block.is_cut:
    counts['cut_documents'] += 1
  path = Path(block.path)
  numbered = utf8.decoded_lines(path, block.data, block.first, counts)
  if block.format == 'jsonl':
    return _jsonl(path, numbered, text_field, counts)
  return _READERS[block.format](path, numbered)


def _bounded(sentence: str, counts: Counter) -> list[str]:
  """The parts of a sentence, each of LONGEST_SENTENCE characters at most."""
  if len(sentence) <= LONGEST_SENTENCE:  # nearly all
    return [sentence] if (sentence := sentence.strip()) else []
  parts, start = [], 0  # the rest is not copied: a sentence may have 100 million characters
  while len(sentence) - start > LONGEST_SENTENCE:
    counts['cut_sentences'] += 1
    end = sentence.rfind(' ', start + 1, start + LONGEST_SENTENCE) + 1 or start + LONGEST_SENTENCE
    parts.append(sentence[start:end].strip())
    start = end
  return [part for part in (*parts, sentence[start:].strip()) if part]


def held_out(name: str, share: float) -> bool:
  """Whether a document belongs to the held-out share (0 to 1); a function of its name alone."""
  return is_held_out(name_hash(name), share)


def name_hash(name: str) -> int:
  """The hash of a document's name that decides whether it is held out, 0 to 2**32 - 1."""
  return zlib.crc32(name.encode())


def is_held_out(hashes, share: float):
  """Whether the document with this name_hash is held out; elementwise for an array of hashes."""
  return hashes < share * 2**32


def _sentences(path: Path, numbered: Lines) -> Iterator[Document]:
  start, sentences = 0, []
  for number, line in itertools.chain(numbered, [(0, '')]):
    if line := line.strip():
      start = start or number
      sentences.append(line)
    elif sentences:
      yield Document(f'{path.name}:{start}', sentences)
      start, sentences = 0, []


def _paragraphs(path: Path, numbered: Lines) -> Iterator[Document]:
  return _by_headings(path, _blocks(numbered))


def _wikitext(path: Path, numbered: Lines) -> Iterator[Document]:
  stripped = ((number, line.strip()) for number, line in numbered)
  parts = ((number, line, wikitext_heading(line)) for number, line in stripped if line)
  return _by_headings(path, ((number, title or line, bool(title)) for number, line, title in parts))


def _by_headings(path: Path, parts: Iterator[tuple[int, str, bool]]) -> Iterator[Document]:
  """Groups paragraphs, (line number, text, whether it is a heading), into documents."""
  start, sentences, has_body = 0, [], False
  for number, text, is_heading in parts:
    if is_heading and has_body:  # a title directly above a heading stays with it
      yield Document(f'{path.name}:{start}', sentences)
      start, sentences, has_body = 0, [], False
    start = start or number
    sentences += [text] if is_heading else split_sentences(text)
    has_body = has_body or not is_heading
  yield Document(f'{path.name}:{start}', sentences)


def _lines(path: Path, numbered: Lines) -> Iterator[Document]:
  for name, lines in _sentences(path, numbered):
    yield Document(name, [sentence for line in lines for sentence in split_sentences(line)])


def _blocks(numbered: Lines) -> Iterator[tuple[int, str, bool]]:
  """Yields (line number, text, whether it is a heading) for each heading and each paragraph."""
  start, paragraph = 0, []
  for number, line in itertools.chain(numbered, [(0, '')]):
    line = line.strip()
    heading = heading_of(line)
    if line and not heading and not RULE.fullmatch(line):
      start = start or number
      paragraph.append(line)
      continue
    if paragraph:
      yield start, ' '.join(paragraph), False
      start, paragraph = 0, []
    if heading:
      yield number, heading, True


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


def _tfds_documents(
  rows: files.TfdsRows, block: Block, text_field: str, counts: Counter
) -> Iterator[Document]:
  for i in range(block.first, block.position):
    name, row = rows(i)
    counts['bytes'] += sum(len(v) for k, v in row.items() if k == text_field)
    row = {k: decode(v, counts) if isinstance(v, bytes) else v for k, v in row.items()}
    yield Document(name, _text_of(row, text_field, name))


def _text_of(row: dict[str, Any], field: str, where: str) -> list[str]:
  """The sentences of a row's text field; a line is a paragraph."""
  if field not in row:
    there = listed(row) or 'none'
    raise InputError(
      f'{where} has no field {field!r}, only {there}; set corpus.text_field (--text-field)'
    )
  text = row[field]
  if not isinstance(text, str):
    raise InputError(
      f'{where}: field {field!r} holds {quoted(text)}, not text; set corpus.text_field '
      '(--text-field)'
    )
  return [sentence for line in text.splitlines() for sentence in split_sentences(line)]


_READERS = {
  'sentences': _sentences,
  'lines': _lines,
  'paragraphs': _paragraphs,
  'jsonl': _jsonl,
  'wiki': _wiki,
  'wikitext': _wikitext,
}
_SUFFIXES = {'.md': 'paragraphs', '.jsonl': 'jsonl', '.json': 'jsonl'}


def _opens_sentences() -> Callable[[bytes], bool]:
  """Makes a function that takes each line in turn and says whether it opens a document."""
  blank = True

  def opens(raw):
    nonlocal blank
    before = blank
    blank = not 32 < raw[0] < 127 and not _stripped(raw)  # most lines need not be decoded
    return before and not blank

  return opens


def _stripped(raw: bytes) -> str:
  """A line as the readers see it: decoded, and stripped of white space of any script (U+3000)."""
  return raw.decode(errors='replace').strip()


def _opens_by_headings(heading: Callable, rule=None) -> Callable[[bytes], bool]:
  """Like _opens_sentences, where a heading after a paragraph opens a document."""
  has_body = False

  def opens(raw):
    nonlocal has_body
    if not (line := _stripped(raw)):
      return False
    if heading(line):
      before, has_body = has_body, False
      return before
    has_body = has_body or not (rule and rule.fullmatch(line))
    return False

  return opens


_OPENS = {
  'sentences': _opens_sentences,
  'lines': _opens_sentences,
  'paragraphs': lambda: _opens_by_headings(heading_of, RULE),
  'wikitext': lambda: _opens_by_headings(wikitext_heading),
  'jsonl': lambda: lambda raw: True,
  'wiki': lambda: lambda raw: raw.lstrip().startswith(b'<doc '),
}
