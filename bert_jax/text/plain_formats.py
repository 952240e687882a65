"""The formats of plain text: what opens a document, and what is a paragraph or a heading in it."""

import re
from collections.abc import Callable, Iterator

from bert_jax.text.sentences import split_sentences

RULE = re.compile(r'([-*_=])(?:\s*\1){2,}')  # a break in Markdown, or the line under a title
_MARKS = re.compile(r'#{1,6}\s+')

Paragraphs = list[tuple[str, list[str]]]  # texts, with their sentences


def _by_sentence(lines: list[str]) -> Paragraphs:
  return [(line, [line]) for line in lines if line]


def _by_line(lines: list[str]) -> Paragraphs:
  return [(line, split_sentences(line)) for line in lines]


def _by_wikitext_line(lines: list[str]) -> Paragraphs:
  out = []
  for line in lines:
    title = wikitext_heading(line)
    out.append((title, [title]) if title else (line, split_sentences(line)))
  return out


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
  lines = [line for line in lines if line and not line.startswith('<doc ')] or ['']
  return [(lines[0], [lines[0]]), *_by_line(lines[1:])]


def heading_of(line: str) -> str:
  """The text of a Markdown heading, without the marks that may close it; '' if the line, which has
  no blanks at its ends, is none. Like the next, it takes time linear in the line's length."""
  match = _MARKS.match(line)
  if not match:
    return ''
  text = line[match.end() :]
  bare = text.rstrip('#')
  return bare.rstrip() if bare != text and bare[-1:].isspace() else text


def wikitext_heading(line: str) -> str:
  """The text of a WikiText heading, `= = Title = =`; '' if the line is none."""
  words = line.split() if line.startswith('= ') and line.endswith(' =') else []
  level = next((k for k, word in enumerate(words) if word != '='), 0)
  closed = level and words[-level:] == ['='] * level and words[-level - 1] != '='
  return ' '.join(words[level:-level]) if closed else ''


# These say whether a line opens a document. before: the lines before it, the last one first.


def _after_blank(before: Iterator[str], line: str) -> bool:
  return bool(line) and not next(before, '')


def _at_heading(heading: Callable[[str], str], before: Iterator[str], line: str) -> bool:
  """A heading opens a document, unless it follows another one."""
  if not heading(line):
    return False
  last = next(filter(None, before), '')
  return bool(last) and not heading(last)


def _at_markdown(before: Iterator[str], line: str) -> bool:
  return _at_heading(heading_of, before, line)


def _at_wikitext(before: Iterator[str], line: str) -> bool:
  return _at_heading(wikitext_heading, before, line)


def _at_wiki(before: Iterator[str], line: str) -> bool:
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
  'paragraphs': _at_markdown,
  'jsonl': _at_line,
  'wiki': _at_wiki,
  'wikitext': _at_wikitext,
}
BLANK = {'paragraphs': RULE, 'wiki': re.compile('</doc>')}  # lines that count as blank
SUFFIXES = {'.md': 'paragraphs', '.jsonl': 'jsonl', '.json': 'jsonl'}
