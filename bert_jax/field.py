"""A field of a config: its type, allowed values, meaning, default, and its value in older runs."""

from typing import Any, NamedTuple

NO_PAST = object()


class Field(NamedTuple):
  """One field of a config.
  type: int, float, bool, str or tuple. allowed: a tuple of choices, bounds as a text such as
  '[0, 1)' (a round bracket excludes its end), the type of a tuple's members, or None.
  default: the value that BERT was released with, or that changes nothing. A config has every field:
  a config file states them all or begins with these (`config.defaults`), as the configs of released
  models do. past: for a field that was added later, the value that the runs before it had in
  effect, and every BERT; a config.json without it, of a run or a model, is read as if it said so,
  and such a run keeps its fingerprint. NO_PAST: every run's config.json has the field. by_step: its
  value may change during a run (timeline.py): it is a text such as token,phrase@1000, and `allowed`
  is of each part, choices or bounds of whole numbers."""

  type: type
  allowed: Any
  meaning: str
  default: Any
  past: Any = NO_PAST
  by_step: bool = False


def pairs_with_positive_numbers(value):
  """Is a tuple of the form ((name, number above 0), ...)?"""
  return all(
    isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], (int, float)) and pair[1] > 0
    for pair in value
  )
