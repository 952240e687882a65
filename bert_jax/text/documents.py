"""Reads a corpus of raw text as documents of sentences.

A corpus is named by a spec: a file, a glob, a folder, or a set (`tfds:NAME`, `hf:NAME`). Its format
is named (corpus.format), or a file's suffix tells it (`.gz` or `.zst` may follow all but the last):

  sentences   .txt, none or unknown: one sentence a line, a blank line between documents, as in
              google-research/bert
  lines       a paragraph a line, to be split into sentences; a blank line between documents
  paragraphs  .md: a blank line between paragraphs, wrapped lines joined; a heading opens a document
  jsonl       .jsonl, .ndjson, .jsonlines, .json: one object a line whose text field is a document
  wiki        WikiExtractor's output, `<doc ...>` before each document, a paragraph a line
  wikitext    WikiText-2 and -103, a paragraph a line; headings open documents
  records     .parquet, .arrow, .feather: rows whose text field is a document, as in jsonl, whatever
              format is named. In a folder with such files, and no .txt, they alone are read

Files are read as a stream and cut into portions of whole documents. Cutting is quick, since it only
looks for the lines that open a document; then any process can read a portion without the rest of
the file. Invalid UTF-8 is repaired and counted; other faults, and lines of 64 MB, are errors.
"""

import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from bert_jax.errors import InputError, listed, log, quoted
from bert_jax.files import Path
from bert_jax.text import encodings, files, record_sources
from bert_jax.text.encodings import Lines
from bert_jax.text.files import parse_json
from bert_jax.text.plain_formats import OPENS, PARAGRAPHS, SUFFIXES, bare
from bert_jax.text.record_sources import Portion
from bert_jax.text.sentences import split_sentences

PORTION_BYTES = 1 << 20  # a portion ends where the first document begins after so many bytes
LONGEST_DOCUMENT = 16 << 20  # bytes; a longer one is cut here, and counted
LONGEST_SENTENCE = 10_000  # characters; a longer one is cut at a blank, and counted


class Sentences(list[str]):
  """The sentences of a document, without white space at their ends. text: what they were."""

  def __init__(self, sentences: Iterable[str], text: str):
    super().__init__(sentences)
    self.text = text


class Document(NamedTuple):
  name: str  # 'file.txt:12', the line where it starts
  sentences: Sentences


def documents(
  spec: str,
  *,
  split: str = 'train',
  format: str = 'auto',
  text_field: str = 'text',
  counts: Counter,
  skip: bool = False,
  encoding: str = '',
) -> Iterator[Document]:
  """Yields the documents of a corpus in a fixed order.
  split: of a set whose spec names none. format: 'auto' or one of those above. text_field: holds the
  text of a record. encoding: as data.text_encoding. counts: increased are files, bytes
  (uncompressed), documents, sentences, empty_documents, invalid_utf8_lines, cut_sentences,
  cut_documents and, with `skip`, left_out_records, which have no text.
  InputError: the corpus is missing, empty, damaged, or not in the format."""
  before = counts['documents']
  for path in sources(spec, format):
    if not files.is_named(path):
      counts['files'] += 1
    for portion in portions(path, format, split, encoding, text_field):
      yield from read_portion(portion, text_field, counts, skip)
  if counts['documents'] == before:
    left_out = counts['left_out_records']
    empty = f'{left_out:,} records without one' if left_out else 'white space'
    raise InputError(f'{spec} holds no text, only {empty}; give it at least one document')


def sources(spec: str, format: str = 'auto') -> list[str]:
  """The paths to give to `portions`: the files of a spec, in order, or the spec of a set."""
  if format != 'auto' and format not in OPENS:
    raise InputError(f'format {format!r} is unknown; use one of auto, {", ".join(OPENS)}')
  if files.is_named(spec):
    return [spec]
  paths = [str(path) for path in files.expand(spec)]
  return record_sources.tables_of(spec, paths) or paths


def portions(
  path: str,
  format: str = 'auto',
  split: str = 'train',
  encoding: str = '',
  text_field: str = 'text',
) -> Iterator[Portion]:
  """Cuts a file, or a set, into portions; the same bytes give the same portions."""
  if record_sources.has_records(path):
    yield from record_sources.portions(path, split, text_field)
    return
  numbered = files.raw_lines(Path(path), encoding)
  if format == 'auto':
    format = SUFFIXES.get(files.suffix(Path(path)), 'sentences')
    if format != 'jsonl':
      numbered = files.not_json(Path(path), numbered, ' or set corpus.format (--format)')

  def text_of(raw):
    return bare(raw.decode(errors='replace'), format)

  lines, size, first, position, is_cut = [], 0, 1, 0, False
  for number, raw, at in numbered:
    opens = size >= PORTION_BYTES and OPENS[format](map(text_of, reversed(lines)), text_of(raw))
    if opens or size >= LONGEST_DOCUMENT:
      yield Portion(path, format, first, b''.join(lines), position, is_cut)
      lines, size, first, is_cut = [], 0, number, not opens
    lines.append(raw)
    size += len(raw)
    position = at
  yield Portion(path, format, first, b''.join(lines), position, is_cut)


def read_portion(
  portion: Portion, text_field: str, counts: Counter, skip: bool = False
) -> Iterator[Document]:
  """Yields the documents of a portion that are not empty; counts as `documents` does."""
  path = Path(portion.path)
  if record_sources.has_records(portion.path):
    rows = record_sources.rows(portion, counts, text_field)
    records = ((name, name, record) for name, record in rows)
    read = _documents_of(records, text_field, counts, skip)
  else:
    if portion.is_cut:
      counts['cut_documents'] += 1
    lines = enumerate(io.BytesIO(portion.data), portion.first)
    numbered = encodings.decoded(path, lines, counts)
    if portion.format == 'jsonl':
      records = _jsonl(path, numbered, counts, skip)
      read = _documents_of(records, text_field, counts, skip)
    else:
      read = _plain_documents(path, numbered, portion.format)
  for document in read:
    sentences = []
    for sentence in document.sentences:
      sentences += _bounded(sentence, counts)
    if sentences:
      counts['documents'] += 1
      counts['sentences'] += len(sentences)
      yield Document(document.name, Sentences(sentences, document.sentences.text))
    else:
      counts['empty_documents'] += 1


def _bounded(sentence: str, counts: Counter) -> list[str]:
  """The parts of a sentence, each of LONGEST_SENTENCE characters at most."""
  if len(sentence) <= LONGEST_SENTENCE:  # nearly all
    sentence = sentence.strip()
    return [sentence] if sentence else []
  parts, start = [], 0  # the rest is not copied: a sentence may have 100 million characters
  while len(sentence) - start > LONGEST_SENTENCE:
    counts['cut_sentences'] += 1
    end = sentence.rfind(' ', start + 1, start + LONGEST_SENTENCE) + 1 or start + LONGEST_SENTENCE
    parts.append(sentence[start:end].strip())
    start = end
  return [part for part in (*parts, sentence[start:].strip()) if part]


def held_out(parts: Iterable[str], share: float) -> bool:
  """Whether a text, given as its sentences or columns, belongs to the held-out share (0 to 1).
  It depends on the text alone, so equal texts stay together and texts added later move none."""
  return is_held_out(text_hash(parts), share)


def text_hash(parts: Iterable[str]) -> int:
  """The hash of a text's parts that decides whether it is held out, 0 to 2**32 - 1."""
  text = '\n'.join(parts).encode(errors='replace')
  return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest())


def is_held_out(hashes: Any, share: float) -> Any:
  """Whether the text with this text_hash is held out; elementwise for an array of hashes."""
  return hashes < share * 2**32


def _plain_documents(path: Path, numbered: Lines, format: str) -> Iterator[Document]:
  start, lines = 0, []  # start: the number of the document's first line, 0 before it
  for number, line in numbered:
    line = bare(line, format)
    if start and OPENS[format](reversed(lines), line):
      yield _document(f'{path.name}:{start}', format, lines)
      start, lines = 0, []
    if line and not start:
      start = number
    lines.append(line)
  if start:
    yield _document(f'{path.name}:{start}', format, lines)


def _document(name: str, format: str, lines: list[str]) -> Document:
  paragraphs = PARAGRAPHS[format](lines)
  between = '\n\n' if format == 'paragraphs' else '\n'
  sentences = []
  for _, of_paragraph in paragraphs:
    sentences += of_paragraph
  return Document(name, Sentences(sentences, between.join(text for text, _ in paragraphs)))


Records = Iterator[tuple[str, str, dict[str, Any]]]  # name of the document, place, record


def _jsonl(path: Path, numbered: Lines, counts: Counter, skip: bool) -> Records:
  for number, line in numbered:
    if line.strip():
      where = f'{path}:{number}'
      try:
        record = parse_json(line, where, counts)
      except InputError as error:
        _leave_out(error, counts, skip)
      else:
        yield f'{path.name}:{number}', where, record


def _documents_of(records: Records, field: str, counts: Counter, skip: bool) -> Iterator[Document]:
  for name, where, record in records:
    try:
      text = _text_of(record, field, where)
    except InputError as error:
      _leave_out(error, counts, skip)
      continue
    sentences = []
    for paragraph in text.splitlines():
      sentences += split_sentences(paragraph)
    yield Document(name, Sentences(sentences, text))


def _leave_out(error: InputError, counts: Counter, skip: bool) -> None:
  """Raises the fault of a record or, with `skip`, counts it."""
  if not skip:
    raise error
  if not counts['left_out_records']:
    log.warning('%s (left out, and so are others without a text)', error)
  counts['left_out_records'] += 1


def _text_of(row: dict[str, Any], field: str, where: str) -> str:
  advice = 'set corpus.text_field (--text-field)'
  if field not in row:
    raise InputError(
      f'{where} has no field {field!r}, only '
      f'{listed(x for x in row if x != record_sources.INDEX) or "none"}; {advice}'
    )
  text = row[field]
  if not isinstance(text, str):
    holds = 'is null' if text is None else f'holds {quoted(text)}, not text'
    raise InputError(
      f'{where}: field {field!r} {holds}; {advice}, or data.skip_damaged=true (--skip-damaged) '
      'leaves such records out and counts them'
    )
  return text
