"""Checks a config: its set of fields, their types and ranges, and all rules on them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config import data, model, optimizer, run
from bert_jax.errors import InputError, quoted, suggestion
from bert_jax.field import Field
from bert_jax.tasks import TASKS
from bert_jax.tasks.record import Family
from bert_jax.timeline import Timeline, parsed

# {name: Field}: the fields that every objective has, and the fields of all objectives together.
SHARED: dict[str, Field] = run.FIELDS | model.FIELDS | data.FIELDS | optimizer.FIELDS
ALL = SHARED | {name: field for task in TASKS.values() for name, field in task.fields.items()}
TYPES = {int: 'a whole number', float: 'a number', bool: 'true or false', str: 'a text'}
TYPES |= {tuple: 'a tuple'}
OURS = frozenset(TASKS)  # the families of this package


def fields(objective: str) -> dict[str, Field]:
  if objective not in TASKS:
    raise InputError(
      f'objective {objective!r} is not known; there are {", ".join(TASKS)}; a new one needs a line '
      'in bert_jax/tasks/__init__.py, or config.add in a notebook.'
    )
  return {**SHARED, **TASKS[objective].fields}


def objectives(reads_corpus: bool) -> tuple[str, ...]:
  """The objectives that are trained on documents or, if not reads_corpus, on labelled examples."""
  return tuple(name for name, task in TASKS.items() if task.reads_corpus == reads_corpus)


def add(record: Family) -> str:
  """Makes a record from outside of this package known, in place of an earlier one of its name, and
  returns the name. InputError: it has the name of a family of this package."""
  if record.name in OURS:
    raise InputError(
      f'{record.name!r} is the name of a family of this package; give the record another, '
      'dataclasses.replace(RECORD, name=...).'
    )
  TASKS[record.name] = record
  SHARED['objective'] = dataclasses.replace(SHARED['objective'], allowed=tuple(TASKS))
  ALL.update(record.fields)
  return record.name


def step_count(config: ConfigDict, rows: float) -> int:
  """The steps of a run on so many training rows: config.steps, or by config.epochs and min_steps;
  0: there are no rows to count epochs by."""
  if config.steps or not rows:
    return config.steps
  return max(math.ceil(config.epochs * rows / config.batch_size), config.min_steps)


def timeline_of(config: ConfigDict, steps: int = 0) -> Timeline:
  """The Timeline of a run of `steps` steps; 0: as many as the config says."""
  return Timeline(config, steps or config.steps, fields(config.objective))


def check(config: ConfigDict) -> ConfigDict:
  """The config; InputError unless it has the fields of its objective and keeps all rules."""
  values = flatten(config)
  for name in values:
    if name not in ALL:
      raise InputError(
        f'config has a field {quoted(name)} that nothing reads{suggestion(name, ALL)}.'
      )
  for name, field in SHARED.items():
    _check_field(config, values, name, field)
  task = TASKS[config.objective]
  known = fields(task.name)
  for name in values:
    if name not in known:
      raise InputError(f'config.{name} means nothing to objective {task.name!r}; remove it.')
  for name, field in task.fields.items():
    _check_field(config, values, name, field)
  for rules in (model.rules, optimizer.rules, run.rules, task.rules):
    for holds, sentence in rules(config):
      if not holds:
        raise InputError(sentence)
  if config.steps:
    timeline_of(config).check_stages()
  return config


def _check_field(config: ConfigDict, values: Mapping[str, Any], name: str, field: Field) -> None:
  if name not in values:
    raise InputError(
      f'config.{name} is missing; begin a config file with config.defaults(objective), choose the '
      'objective there (configs/pretrain.py:objective=NAME), or give a new Field a `past`.'
    )
  allowed = None if field.by_step else field.allowed
  value = checked(f'config.{name}', values[name], field.type, allowed)
  if field.by_step:
    parsed(name, field, value, config.steps)  # or an InputError
  if value is not values[name]:  # an integer became a float; a ConfigDict is slow to write to
    set_field(config, name, value)


def checked(name: str, value: Any, kind: type, allowed: Any = None) -> Any:
  """A field's value converted to its type; InputError if it is of another type or not allowed."""
  if kind is float and isinstance(value, int) and not isinstance(value, bool):
    value = float(value)
  if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
    raise InputError(f'{name} is {quoted(value)}, which is not {TYPES[kind]}.')
  if allowed is str:
    value = tuple(map(str, value))
  if isinstance(allowed, tuple) and value not in allowed:
    raise InputError(f'{name} is {quoted(value)}; use one of {", ".join(allowed)}.')
  if isinstance(allowed, str):
    low, high = map(float, allowed[1:-1].split(','))
    excluded = low if allowed[0] == '(' else None, high if allowed[-1] == ')' else None
    if not low <= value <= high or value in excluded:
      raise InputError(f'{name} is {quoted(value)}, outside {allowed}.')
  return value


def flatten(config: ConfigDict, prefix: str = '') -> dict[str, Any]:
  """Flattens a config by the full names of its fields: {'model.hidden_size': 128, ...}."""
  out = {}
  for key, value in config.items():
    if isinstance(value, ConfigDict):
      out.update(flatten(value, f'{prefix}{key}.'))
    else:
      out[prefix + key] = value
  return out


def nested(values: Mapping[str, Any]) -> ConfigDict:
  """Builds a config from {'model.hidden_size': 128, ...}."""
  out = {}
  for name, value in values.items():
    *blocks, leaf = name.split('.')
    inner = out
    for block in blocks:
      inner = inner.setdefault(block, {})
    inner[leaf] = value
  return ConfigDict(out)


def set_field(config: ConfigDict, name: str, value: Any) -> None:
  """Sets a field by its full name: config.a.b = value for 'a.b'."""
  *blocks, leaf = name.split('.')
  block = config
  for key in blocks:
    block = block[key]
  with block.ignore_type():
    block[leaf] = value
