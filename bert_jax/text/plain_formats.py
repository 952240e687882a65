"""The formats of plain text: what opens a document, and what is a paragraph or a heading in it."""

import re
from collections.abc import Callable, Iterator

from bert_jax.text.sentences import split_sentences

RULE = re.compile(r'([-*_=])(?:\s*\1){2,}')  # a break in Markdown, or the line under a title
_MARKS = re.compile(r'#{1,6}\s+')

Heading = Callable[[str], str]
Paragraphs = list[tuple[str, list[str]]]  # texts, with their sentences


def bare(line: str, format: str) -> str:
  """A line without white space (of any script) at its ends; '' for one that counts as blank."""
  line = line.strip()
  if format == 'paragraphs' and RULE.fullmatch(line):
    return ''
  if format == 'wiki' and line == '</doc>':
    return ''
  return line


def _by_sentence(lines: list[str]) -> Paragraphs:
  return [(line, [line]) for line in lines if line]


def _by_line(lines: list[str]) -> Paragraphs:
  return [(line, split_sentences(line)) for line in lines]


def _by_paragraph(lines: list[str]) -> Paragraphs:
  out, paragraph = [], []
  for line in (*lines, ''):
    title = heading_of(line)
    if line and not title:
      paragraph.append(line)
      continue
    if paragraph:
      text = ' '.join(paragraph)
      out.append((text, split_sentences(text)))
    if title:
      out.append((title, [title]))
    paragraph = []
  return out


def _by_wiki_line(lines: list[str]) -> Paragraphs:
  lines = [line for line in lines if line and not line.startswith('<doc ')]
  if not lines:
    return []
  title, *paragraphs = lines
  return [(title, [title]), *_by_line(paragraphs)]


def _by_wikitext_line(lines: list[str]) -> Paragraphs:
  out = []
  for line in lines:
    title = wikitext_heading(line)
    if title:
      out.append((title, [title]))
    else:
      out.append((line, split_sentences(line)))
  return out


def heading_of(line: str) -> str:
  """The text of a Markdown heading, without the marks that may close it; '' if the line, which has
  no blanks at its ends, is none. It takes time linear in the line's length."""
  match = _MARKS.match(line)
  if not match:
    return ''
  text = line[match.end() :]
  unmarked = text.rstrip('#')
  if unmarked != text and unmarked[-1:].isspace():
    return unmarked.rstrip()
  return text


def wikitext_heading(line: str) -> str:
  """The text of a WikiText heading, `= = Title = =`; '' if the line is none."""
  words = line.split()
  level = 0
  while level < len(words) and words[level] == '=':
    level += 1
  title = words[level : len(words) - level]
  if not level or not title or words[-level:] != ['='] * level or title[-1] == '=':
    return ''
  return ' '.join(title)


# These say whether a line opens a document. before: the lines before it, the last one first.


def _after_blank(before: Iterator[str], line: str) -> bool:
  return bool(line) and not next(before, '')


def _at_heading(before: Iterator[str], line: str, heading: Heading = heading_of) -> bool:
  """A heading opens a document, unless it follows another one."""
  if not heading(line):
    return False
  last = next(filter(None, before), '')
  return bool(last) and not heading(last)


def _at_wikitext_heading(before: Iterator[str], line: str) -> bool:
  return _at_heading(before, line, wikitext_heading)


def _at_doc(before: Iterator[str], line: str) -> bool:
  return line.startswith('<doc ')


def _at_line(before: Iterator[str], line: str) -> bool:
  return True


# {format: the Paragraphs of a document, from its lines}
PARAGRAPHS = {
  'sentences': _by_sentence,
  'lines': _by_line,
  'paragraphs': _by_paragraph,
  'wiki': _by_wiki_line,
  'wikitext': _by_wikitext_line,
}
OPENS = {
  'sentences': _after_blank,
  'lines': _after_blank,
  'paragraphs': _at_heading,
  'jsonl': _at_line,
  'wiki': _at_doc,
  'wikitext': _at_wikitext_heading,
}
SUFFIXES = {'.md': 'paragraphs', '.jsonl': 'jsonl', '.json': 'jsonl'}
