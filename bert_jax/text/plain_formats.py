"""The formats of plain text: what opens a document, and what is a paragraph or a heading in it."""

import functools
import re
from collections.abc import Callable, Iterator

from bert_jax.text.sentences import split_sentences

RULE = re.compile(r'([-*_=])(?:\s*\1){2,}')  # a break in Markdown, or the line under a title
_MARKS = re.compile(r'#{1,6}\s+')

Paragraphs = list[tuple[str, list[str]]]  # texts, with their sentences


def _by_line(lines: list[str], heading: Callable[[str], str] = lambda line: '') -> Paragraphs:
  titled = ((line, heading(line)) for line in lines)
  return [(title, [title]) if title else (line, split_sentences(line)) for line, title in titled]


def _by_paragraph(lines: list[str]) -> Paragraphs:
  out, paragraph = [], []
  for line in (*lines, ''):
    if line and not heading_of(line):
      paragraph.append(line)
      continue
    text, title = ' '.join(paragraph), heading_of(line)
    out += [(text, split_sentences(text))] * bool(text) + [(title, [title])] * bool(title)
    paragraph = []
  return out


def _by_wiki_line(lines: list[str]) -> Paragraphs:
  title, *rest = [line for line in lines if line and not line.startswith('<doc ')] or ['']
  return [(title, [title]), *_by_line(rest)]


def heading_of(line: str) -> str:
  """The text of a Markdown heading, without the marks that may close it; '' if the line, which has
  no blanks at its ends, is none. Like the next, it takes time linear in the line's length."""
  if not (match := _MARKS.match(line)):
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
  return bool(heading(line) and (body := next(filter(None, before), '')) and not heading(body))


# {format: the Paragraphs of a document, from its lines}
PARAGRAPHS = {
  'sentences': lambda lines: [(line, [line]) for line in lines if line],
  'lines': _by_line,
  'paragraphs': _by_paragraph,
  'wiki': _by_wiki_line,
  'wikitext': lambda lines: _by_line(lines, wikitext_heading),
}
OPENS = {
  'sentences': _after_blank,
  'lines': _after_blank,
  'paragraphs': functools.partial(_at_heading, heading_of),
  'jsonl': lambda before, line: True,
  'wiki': lambda before, line: line.startswith('<doc '),
  'wikitext': functools.partial(_at_heading, wikitext_heading),
}
BLANK = {'paragraphs': RULE, 'wiki': re.compile('</doc>')}  # lines that count as blank
SUFFIXES = {'.md': 'paragraphs', '.jsonl': 'jsonl', '.json': 'jsonl'}
