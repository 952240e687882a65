"""Reads JSON and whole numbers that users write, so that no input ends in a traceback: Python's own
readers raise other errors than ValueError for deep nesting, and refuse long numbers."""

import ast
import json
import math
import re
from typing import Any

_ARRAY = re.compile(r'\barray\((\[.*?\])(?:,\s*dtype=\w+)?\)', re.DOTALL)  # of NumPy
_ITEM = re.compile(  # a text or a number, and the blanks between it and the next
  r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[-+.\w]+)(\s+(?=['"\-+.\w]))?""", re.DOTALL
)
MOST_DIGITS = 18  # of a whole number, which then fits an int64


class NotJson(ValueError):
  """A text is not valid JSON; the message ends a sentence. line: where, or 0."""

  def __init__(self, message: str, line: int = 0):
    super().__init__(message)
    self.line = line


def json_value(text: str | bytes) -> Any:
  """Parses a JSON text; any fault is a NotJson."""
  try:
    return json.loads(text)
  except json.JSONDecodeError as error:
    raise NotJson(f'not JSON ({error.msg} at column {error.colno})', error.lineno) from None
  except (ValueError, RecursionError) as error:  # a bad byte, a long number, deep nesting
    raise NotJson(f'not JSON ({error})') from None


def printed_value(text: str) -> Any:
  """Parses JSON, or a value as pandas prints it into a table; NotJson if a text is neither."""
  try:
    return json_text(text)[0]
  except NotJson as error:
    # NumPy prints no comma between items, and two texts without one are one text for Python.
    divided = _ITEM.sub(lambda x: f'{x[1]}, ' if x[2] else x[1], _ARRAY.sub(r'\1', text))
    try:
      return ast.literal_eval(divided)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
      raise error from None


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
    value = float(text)
  except ValueError:
    return None
  return value if math.isfinite(value) else None
