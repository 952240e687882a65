"""Headings of Markdown and of WikiText; looking for them takes time linear in a line's length."""

import re

RULE = re.compile(r'([-*_=])(?:\s*\1){2,}')  # a break in Markdown, or the line under a title
_MARKS = re.compile(r'#{1,6}\s+')


def heading_of(line: str) -> str:
  """The text of a Markdown heading, without the marks that may close it; '' if the line is none.
  line: without blanks at its ends."""
  if not (match := _MARKS.match(line)):
    return ''
  text = line[match.end() :]
  bare = text.rstrip('#')
  return bare.rstrip() if bare != text and bare[-1:].isspace() else text


def wikitext_heading(line: str) -> str:
  """The text of a WikiText heading, `= = Title = =`; '' if the line is none.
  line: without blanks at its ends."""
  words = line.split() if line.startswith('= ') and line.endswith(' =') else []
  level = next((k for k, word in enumerate(words) if word != '='), 0)
  closed = level and words[-level:] == ['='] * level and words[-level - 1] != '='
  return ' '.join(words[level:-level]) if closed else ''
