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

import itertools
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.config import InputError
from bert_jax.data.files import Lines, decode, expand, lines, parse_json, suffix, tfds_rows


class Document(NamedTuple):
  name: str  # 'file.txt:12', the line where it starts; decides whether the document is held out
  sentences: list[str]


# -------------------------------------------------------------------------------------------------
# Documents
# -------------------------------------------------------------------------------------------------


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
    found = _tfds_documents(spec, split, text_field, counts)
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


def _tfds_documents(spec: str, split: str, text_field: str, counts: Counter) -> Iterator[Document]:
  _, rows = tfds_rows(spec, split)
  for name, row in rows:
    row = {k: decode(v, counts) if isinstance(v, bytes) else v for k, v in row.items()}
    yield Document(name, _text_of(row, text_field, name))


def _text_of(row: dict[str, Any], field: str, where: str) -> list[str]:
  """The sentences of a row's text field; a line is a paragraph."""
  if field not in row:
    raise InputError(
      f'{where} has no field {field!r}, only {", ".join(row) or "none"}; set corpus.text_field'
    )
  text = row[field]
  if not isinstance(text, str):
    raise InputError(
      f'{where}: field {field!r} holds {text!r:.40}, not text; set corpus.text_field'
    )
  return [sentence for line in text.splitlines() for sentence in split_sentences(line)]


_READERS = {'sentences': _sentences, 'paragraphs': _paragraphs, 'jsonl': _jsonl, 'wiki': _wiki}
_SUFFIXES = {'.md': 'paragraphs', '.jsonl': 'jsonl', '.json': 'jsonl'}


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
