"""Compares configs by the fields that decide a run's numbers, which a resumed run must keep."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config.check import fields, flatten
from bert_jax.field import NO_PAST, Field
from bert_jax.files import Path
from bert_jax.tasks import TASKS

ROWS = 'rows'  # the folder of a workdir for rows that were in memory
LENGTH = 'steps', 'epochs', 'min_steps'  # they decide, and may change as a run goes on


def pasts(known: Mapping[str, Field]) -> dict[str, Any]:
  """{name: past value, in effect before the field existed} for the fields that have one."""
  return {name: field.past for name, field in known.items() if field.past is not NO_PAST}


def fingerprint(config: ConfigDict) -> str:
  """A short hash of the fields that decide a run's numbers, without its length, which may change,
  and without those at their past value."""
  fixed = _deciding(config)
  for name, past in pasts(fields(config.objective)).items():
    if fixed.get(name) == past:
      del fixed[name]
  for name in LENGTH:
    fixed.pop(name, None)
  return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def without_workdir(data: str) -> str:
  """A spec of data; of rows in a workdir, which may be moved, their name, which has a checksum."""
  path = Path(data)
  return path.name if path.parent.name == ROWS else data


def changes(old: ConfigDict, new: ConfigDict) -> list[str]:
  """The differences of two configs that decide a run's numbers: ['seed: 0 -> 1', ...]."""
  before, after = _deciding(old), _deciding(new)
  out = []
  for name in before | after:
    if before.get(name) != after.get(name):
      out.append(f'{name}: {before.get(name)!r} -> {after.get(name)!r}')
  return out


def _deciding(config: ConfigDict) -> dict[str, Any]:
  """{name: value} of the fields that decide a run's numbers, and whether data.eval is given."""
  known = fields(config.objective)
  fixed = {name: value for name, value in flatten(config).items() if known[name].decides}
  fixed['data.train'] = without_workdir(config.data.train)
  if TASKS[config.objective].reads_corpus:
    fixed['data.eval is given'] = bool(config.data.eval)
  return fixed
