"""Reads JSON and whole numbers that users write, so that no input ends in a traceback: Python's own
readers raise other errors than ValueError for deep nesting, and refuse long numbers."""

import json
import math
import re
from typing import Any

DEEPEST = 100  # levels of lists and objects in JSON; data sets have ten at most
MOST_DIGITS = 18  # of a whole number, which then fits an int64


class NotJson(ValueError):
  """A text is not valid JSON; the message ends a sentence. line: where, or 0."""

  def __init__(self, message: str, line: int = 0):
    super().__init__(message)
    self.line = line


def json_value(text: str | bytes) -> Any:
  """Parses a JSON text; any fault is a NotJson."""
  try:
    value = json.loads(text)
  except json.JSONDecodeError as error:
    raise NotJson(f'not JSON ({error.msg} at column {error.colno})', error.lineno) from None
  except RecursionError:
    raise NotJson('JSON nested too deeply') from None
  except UnicodeDecodeError as error:
    raise NotJson(f'not UTF-8 ({error.reason} at byte {error.start})') from None
  except ValueError:
    raise NotJson('JSON with a number of more than 4,300 digits') from None
  brackets = ('[', '{') if isinstance(text, str) else (b'[', b'{')
  if sum(map(text.count, brackets)) > DEEPEST and _depth(value) > DEEPEST:
    raise NotJson(f'JSON nested too deeply, in more than {DEEPEST} levels')
  return value


def json_text(text: str) -> tuple[Any, int]:
  """Parses a JSON text: (value, how many halves of surrogate pairs became U+FFFD)."""
  value, halves = json_value(text), 0
  if re.search(r'\\u[dD][89a-fA-F]', text):
    repaired, halves = re.subn('[\ud800-\udfff]', '\ufffd', json.dumps(value, ensure_ascii=False))
    value = json.loads(repaired)
  return value, halves


def whole_number(text: str) -> int | None:
  """Parses decimal digits as an integer; None if there are other characters or too many digits."""
  text = text.strip()
  return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None


def finite_number(text: str) -> float | None:
  """Parses a finite number; None if the text is none."""
  try:
    return value if math.isfinite(value := float(text)) else None
  except ValueError:
    return None


def decimal_number(text: str, delimiter: str = '') -> float | None:
  """Parses a finite number that may be written with a decimal comma, '3,5' or '1.234,5'; None if
  the text is none. Three digits behind a single comma are thousands in English, so that '1,234' is
  a number only in a table whose cells `;` divides, as such tables do where commas are decimal."""
  text = text.strip()
  if (value := finite_number(text)) is not None:
    return value
  match = re.fullmatch(r'([-+]?\d{1,3}(?:\.\d{3})+|[-+]?\d+),(\d+)', text)
  if not match or (len(match[2]) == 3 and '.' not in match[1] and delimiter != ';'):
    return None
  return finite_number(f'{match[1].replace(".", "")}.{match[2]}')


def _depth(value: Any) -> int:
  """The levels of lists and objects in a JSON value, counted up to DEEPEST + 1."""
  depth, level = 0, [value]
  while depth <= DEEPEST and (held := [x for x in level if isinstance(x, (dict, list))]):
    depth += 1
    level = [y for x in held for y in (x.values() if isinstance(x, dict) else x)]
  return depth
