"""The type of a field of a config: what it may be, what it means, and what it was before it was."""

from typing import Any, NamedTuple

NO_PAST = object()


class Field(NamedTuple):
  """One field of a config.

  type: int, float, bool, str or tuple. allowed: a tuple of choices, bounds as a text such as
  '[0, 1)' (a round bracket excludes its end), the type of a tuple's members, or None.

  default: what BERT was released with, or what changes nothing; a config file states every field
  itself, so defaults complete the configs of released models only. past: of a field that was added
  after runs had been written without it, the value that those runs had in effect. Their config.json
  is read as if it said so, and their fingerprint stays the same. NO_PAST: every run states it.
  """

  type: type
  allowed: Any
  meaning: str
  default: Any
  past: Any = NO_PAST


def pairs_with_positive_numbers(value):
  """Is a tuple of the form ((name, number above 0), ...)?"""
  return all(
    isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], (int, float)) and pair[1] > 0
    for pair in value
  )
