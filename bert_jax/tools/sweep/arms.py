"""The arms of a sweep, from --vary, the config file's sweep(arg) or another sweep, and their runs.

An arm is {NAME: text}: the fields (or, as :NAME, the arguments of the config file) that it sets.
Its name begins the folders of its runs: NAME,seed=0. The first arm is the baseline.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.errors import InputError, quoted, suggestion
from bert_jax.workdir import records

Arm = dict[str, str]
MOST_SEEDS = 1000


class PlannedRun(NamedTuple):
  folder: str  # its name below the folder of the sweep
  arm: str
  spec: str  # FILE:ARGS of the config
  fields: list[str]  # ['--config.NAME=VALUE', ...]
  config: ConfigDict  # of these


def axis_of(text: str, option: str = '--vary') -> list[Arm]:
  """Parses fields that move together: 'a=1,2;b=3,4' -> [{'a': '1', 'b': '3'}, {'a': '2', ...}]."""
  columns = {}
  for part in text.split(';'):
    name, equals, values = part.strip().partition('=')
    if not (equals and name):
      raise InputError(f'{option} {quoted(text)} is not NAME=VALUE,... (;NAME=VALUE,...)')
    columns[name] = values.split(',')
  if len({len(values) for values in columns.values()}) > 1:
    raise InputError(f'{option} {quoted(text)}: give each field as many values.')
  return [dict(zip(columns, values)) for values in zip(*columns.values())]


def name_of(arm: Arm) -> str:
  """The name of an arm: 'a=1,b=x_y', with _ for characters unsuited to a folder's name."""
  parts = []
  for name, value in arm.items():
    shown = value.strip('/')[-80:] or 'none'
    parts.append(f'{name.strip(":")}={shown}')
  return re.sub(r'[^\w.,=+@{}-]', '_', ','.join(parts))


def joined(*parts: str) -> str:
  """The parts of a name that are not empty, with commas between."""
  return ','.join(part for part in parts if part)


def arms_of_file(spec: str) -> dict[str, Arm]:
  """{name: {field: text}} of sweep(arg) in a config file; {} without it."""
  arms = config_lib.call(spec, 'sweep')
  if arms is None:
    return {}
  if not (isinstance(arms, dict) and arms and all(isinstance(x, dict) for x in arms.values())):
    raise InputError(f'{spec}: sweep(arg) returns no {{name of an arm: {{field: value}}}}.')
  out = {}
  for name, arm in arms.items():
    texts = {field: x if isinstance(x, str) else repr(x) for field, x in arm.items()}
    add(out, re.sub(r'[^\w.,=+@-]', '_', str(name)), texts)
  return out


def arms_before(root: str) -> dict[str, Arm]:
  """{name: {'init_from': ROOT/NAME,seed={seed}}} of another sweep's arms, its baseline first."""
  sweep = records.read_sweep(root)
  if sweep is None or not sweep.runs:
    raise InputError(f'--from {root} holds no sweep; give the --workdir of one.')
  names = list(dict.fromkeys(run.arm for run in sweep.runs.values()))
  names.sort(key=lambda name: name != sweep.baseline)
  return {name: {'init_from': f'{root}/{joined(name, "seed={seed}")}'} for name in names}


def check_known(name: str, arms: Mapping[str, Arm], option: str) -> None:
  """InputError if an option names an arm that there is not."""
  if name not in arms:
    known = ', '.join(arms) or 'none'
    raise InputError(
      f'{option} {quoted(name)} is no arm{suggestion(name, arms)}; there are {known}.'
    )


def arms_of(
  spec: str,
  vary: Sequence[str],
  around: str | None = None,
  before: str = '',
  only: str = '',
  overrides: Sequence[str] = (),
) -> dict[str, Arm]:
  """The arms of a sweep: all combinations of the values of each --vary with the arms of the file's
  sweep() or of the sweep in the folder `before`. around: fields 'a=1;b=2' ('': none), in which one
  value changes at a time. only: 'a,b', arms of the file or of `before`."""
  axes = [axis_of(text) for text in vary]
  listed = arms_of_file(spec)
  if before:
    if listed:
      raise InputError(f'{spec} has arms of its own, and --from has others; use a file without.')
    listed = arms_before(before)
  if only:
    chosen = {}
    for name in only.split(','):
      check_known(name, listed, '--arms')
      add(chosen, name, listed[name])
    listed = chosen
  if around is not None:
    if listed:
      raise InputError('--around varies a config without arms; --vary combines with those.')
    return arms_around(spec, axes, around, overrides)
  out = {}
  for name, arm in (listed or {'': {}}).items():
    for changes in itertools.product(*axes):
      added = {}
      for change in changes:
        check_new(change, arm | added)
        added |= change
      add(out, joined(name, name_of(added)), arm | added)
  return out


def check_new(change: Arm, arm: Arm) -> None:
  """InputError if a change sets a field that an arm sets already."""
  for name in change.keys() & arm.keys():
    raise InputError(f'{name} is set twice, by several --vary or by the arms; give it once.')


def add(arms: dict[str, Arm], name: str, arm: Arm) -> None:
  """Adds an arm to {name: arm}; InputError if there is one of its name."""
  if name in arms:
    raise InputError(f'two arms are called {name}; leave one out, or write it otherwise.')
  arms[name] = arm


def arms_around(
  spec: str, axes: Sequence[Sequence[Arm]], around: str, overrides: Sequence[str]
) -> dict[str, Arm]:
  """The arm of the fields `around`, first, and those that change one value in it."""
  bases = axis_of(around, '--around') if around else [{}]
  if len(bases) > 1:
    raise InputError(f'--around {quoted(around)} has several values; give one of each field.')
  (base,) = bases

  def config_with(change: Arm) -> ConfigDict:
    file, fields = arguments_of(spec, base | change, '0')
    return config_lib.load(file, [*overrides, *fields])

  as_it_is = config_with({})
  out = {name_of(base) or 'baseline': base}
  for axis in axes:
    for change in axis:
      if config_with(change) != as_it_is:
        add(out, name_of(change), base | change)
  return out


def arguments_of(spec: str, arm: Arm, seed: str) -> tuple[str, list[str]]:
  """An arm's config, (FILE:ARGS, ['--config.NAME=VALUE', ...]), with {seed} replaced."""
  path, _, args = spec.partition(':')
  fields = []
  for name, text in arm.items():
    value = text.replace('{seed}', seed)
    if name.startswith(':'):
      args = joined(args, f'{name[1:]}={value}')
    else:
      fields.append(f'--config.{name}={value}')
  return f'{path}:{args}', fields


def runs_of(
  spec: str, arms: Mapping[str, Arm], seeds: Sequence[int], overrides: Sequence[str] = ()
) -> list[PlannedRun]:
  """The runs of {name: arm}: all seeds of one arm, then of the next. overrides: fields of all."""
  given = config_lib.names_of(overrides)
  if 'seed' in given or any('seed' in arm for arm in arms.values()):
    raise InputError('the seeds of a sweep are given by --seeds, such as --seeds 5,6; drop seed=.')
  for name in given:
    if all(name in arm for arm in arms.values()):
      raise InputError(f'every arm sets {name}, so --config.{name} changes nothing; drop it.')
  out = []
  for name, arm in arms.items():
    for seed in seeds:
      file, fields = arguments_of(spec, arm, str(seed))
      fields = [*overrides, *fields, f'--config.seed={seed}']
      config = config_lib.load(file, fields)
      out.append(PlannedRun(joined(name, f'seed={seed}'), name, file, fields, config))
  return out


def seeds_of(text: str) -> list[int]:
  """Parses seeds: '3' is 0, 1, 2; '5,6,9' and '5,' name the seeds themselves."""
  try:
    if ',' in text:
      seeds = [int(part) for part in text.split(',') if part]
    else:
      seeds = list(range(min(int(text), MOST_SEEDS + 1)))
  except ValueError:
    seeds = []
  if not 0 < len(set(seeds)) == len(seeds) <= MOST_SEEDS or min(seeds) < 0:
    raise InputError(
      f'--seeds is {quoted(text)}; give how many, {MOST_SEEDS} at most, or a list such as 5,6,9 '
      '(one seed has a comma: 42,).'
    )
  return seeds
