"""A field of a config: its default, its meaning, its allowed values, and what it bears on."""

import dataclasses
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

NO_PAST = object()

# What a field may affect. The first nine decide what a run computes, see Field.decides.
PURPOSES = {
  'rows': 'which rows a run is trained and evaluated on',
  'vocabulary': 'the pieces of the vocabulary',
  'weights': 'which parameters there are, and what they mean',
  'model': 'what a trained model answers',
  'objective': 'what is learned, and how a trained model is asked',
  'masks': 'what is hidden of a row',
  'schedule': 'how long a run is, and what changes during it',
  'bits': 'the same mathematics, rounded or drawn in another way',
  'start': 'where a run begins',
  'eval_rows': 'which rows a run is evaluated on',
  'evaluation': 'what else an evaluation is made of',
  'judging': 'when a run is evaluated, and which checkpoint counts',
  'place': 'the devices that it runs on',
  'record': 'what is written down, and when',
  'checked': 'the field names something whose checksum is in each checkpoint',
}
DECISIVE = frozenset(list(PURPOSES)[:9])


@dataclasses.dataclass(frozen=True)
class Field:
  """One field of a config.
  default: the value that BERT was released with, or that changes nothing; the field has its type.
  allowed: a tuple of choices, bounds such as '[0, 1)' (a round bracket excludes its end), the type
  of a tuple's members, or None. past: for a field that was added later, the value that earlier runs
  had in effect, with which a config.json without the field is read, and keeps its fingerprint.
  affects: some of PURPOSES. by_step: its value may change during a run (timeline.py): it is a text
  such as token,phrase@1000, and `allowed` holds for each value, choices or bounds of integers."""

  default: Any
  meaning: str
  _: dataclasses.KW_ONLY
  allowed: Any = None
  past: Any = NO_PAST
  affects: AbstractSet[str] = frozenset()
  by_step: bool = False

  def __post_init__(self):
    if unknown := set(self.affects) - set(PURPOSES):
      raise ValueError(f'a field affects {", ".join(unknown)}; use some of {", ".join(PURPOSES)}.')
    object.__setattr__(self, 'affects', frozenset(self.affects))

  @property
  def type(self) -> type:
    return type(self.default)

  @property
  def decides(self) -> bool:
    """Does the field decide the numbers of a run? If not, it may change when a run goes on, and so
    may a field whose data has a checksum. A field without `affects` decides."""
    return not self.affects or bool(DECISIVE & self.affects and 'checked' not in self.affects)


def affecting(purposes: AbstractSet[str], fields: Mapping[str, Field]) -> dict[str, Field]:
  """The given fields, where a field without `affects` gets `purposes`."""
  added = lambda field: field if field.affects else dataclasses.replace(field, affects=purposes)
  return {name: added(field) for name, field in fields.items()}


def pairs_with_positive_numbers(value: tuple) -> bool:
  """Does a tuple have the form ((name, number above 0), ...)?"""
  is_pair = lambda x: isinstance(x, tuple) and len(x) == 2 and isinstance(x[1], (int, float))
  return all(is_pair(x) and x[1] > 0 for x in value)
