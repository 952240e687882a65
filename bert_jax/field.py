"""A field of a config: its default, its meaning, its allowed values, and what it bears on."""

import dataclasses
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

NO_PAST = object()


@dataclasses.dataclass(frozen=True)
class Field:
  """One field of a config.
  default: the value that BERT was released with, or that changes nothing; the field has its type.
  allowed: a tuple of choices, bounds such as '[0, 1)' (a round bracket excludes its end), the type
  of a tuple's members, or None. past: for a field that a fork adds, the value that its earlier runs
  had in effect, with which a config.json without the field is read, and keeps its fingerprint.
  by_step: its value may change during a run (timeline.py): it is a text such as
  token,phrase@1000, and `allowed` holds for each value, choices or bounds of integers.

  affects: what it bears on, beside how a run learns. When a run goes on, a field may have another
  value if one of the last two is among these, or if it is the run's length (LENGTH in
  config/compare.py). All others keep their value; and whether a run that reads a corpus has a
  data.eval stays as it is, though its path may change.
    rows        which rows a run reads
    vocabulary  the pieces of the vocabulary
    weights     which parameters there are, and what they mean
    start       where a run begins
    judging     how and when a run is evaluated, and which checkpoint counts
    free        nothing that is learned: devices, files, or a path whose content has a checksum"""

  default: Any
  meaning: str
  _: dataclasses.KW_ONLY
  allowed: Any = None
  past: Any = NO_PAST
  affects: AbstractSet[str] = frozenset()
  by_step: bool = False

  @property
  def type(self) -> type:
    return type(self.default)

  @property
  def decides(self) -> bool:
    """Whether the field decides what a run learns, so that a run that goes on keeps it."""
    return self.affects.isdisjoint({'judging', 'free'})


def affecting(purposes: AbstractSet[str], fields: Mapping[str, Field]) -> dict[str, Field]:
  """The given fields, where a field without `affects` gets `purposes`."""
  out = dict(fields)
  for name, field in fields.items():
    if not field.affects:
      out[name] = dataclasses.replace(field, affects=purposes)
  return out


def pairs_with_positive_numbers(value: tuple[Any, ...]) -> bool:
  """Does a tuple have the form ((name, number above 0), ...)?"""
  for pair in value:
    if not isinstance(pair, tuple) or len(pair) != 2:
      return False
    if not isinstance(pair[1], (int, float)) or pair[1] <= 0:
      return False
  return True
