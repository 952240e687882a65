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
MOST_RUNS = 10_000  # of a sweep


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
    if name in columns:
      raise InputError(f'{option} {quoted(text)} sets {name} twice; give it once.')
    columns[name] = values.split(',')
  if len({len(values) for values in columns.values()}) > 1:
    raise InputError(f'{option} {quoted(text)}: give each field as many values.')
  return [dict(zip(columns, values)) for values in zip(*columns.values())]


def name_of(arm: Arm) -> str:
  """The name of an arm: 'a=1,b=x_y', with _ for characters unsuited to a folder's name."""
  shown = ((name.strip(':'), value.strip('/')[-80:]) for name, value in arm.items())
  text = ','.join(f'{name}={value or "none"}' for name, value in shown)
  return re.sub(r'[^\w.,=+@{}-]', '_', text)


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
    out[re.sub(r'[^\w.,=+@-]', '_', str(name))] = texts
  return out


def arms_before(root: str) -> dict[str, Arm]:
  """{name: {'init_from': ROOT/NAME,seed={seed}}} of another sweep's arms, its baseline first."""
  sweep = records.read_sweep(root)
  if sweep is None or not sweep.runs:
    raise InputError(f'--from {root} holds no sweep; give the --workdir of one.')
  names = list(dict.fromkeys(run.arm for run in sweep.runs.values()))
  names.sort(key=lambda name: name != sweep.baseline)
  return {
    name: {'init_from': f'{root}/{",".join(filter(None, (name, "seed={seed}")))}'} for name in names
  }


def check_known(name: str, arms: Mapping[str, Arm], option: str) -> None:
  """InputError if an option names an arm that there is not."""
  if name not in arms:
    known, hint = ', '.join(arms) or 'none', suggestion(name, arms) or '.'
    raise InputError(f'{option} {quoted(name)} is no arm; there are {known}{hint}')


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
  axes, listed = [axis_of(text) for text in vary], arms_of_file(spec)
  if before and listed:
    raise InputError(f'{spec} has arms of its own, and --from has others; use a file without arms.')
  listed = arms_before(before) if before else listed
  if only:
    for name in only.split(','):
      check_known(name, listed, '--arms')
    listed = {name: listed[name] for name in only.split(',')}
  if around is not None:
    if listed:
      raise InputError(
        '--around varies a config without arms; --vary combines with those of a file.'
      )
    return arms_around(spec, axes, around, overrides)
  names = [name for axis in axes for name in axis[0]]
  names += dict.fromkeys(name for arm in listed.values() for name in arm)
  for name in names:
    if names.count(name) > 1:
      raise InputError(f'{name} is set twice, by several --vary or by the arms; give it once.')
  out = {}
  for name, arm in (listed or {'': {}}).items():
    for changes in itertools.product(*axes):
      added = {field: value for change in changes for field, value in change.items()}
      full = ','.join(filter(None, (name, name_of(added))))
      if full in out:
        raise InputError(f'two arms are called {full}; leave one out, or write it otherwise.')
      out[full] = arm | added
  return out


def arms_around(
  spec: str, axes: Sequence[Sequence[Arm]], around: str, overrides: Sequence[str]
) -> dict[str, Arm]:
  """The arm of the fields `around`, first, and those that change one value in it."""
  bases = axis_of(around, '--around') if around else [{}]
  if len(bases) > 1:
    raise InputError(f'--around {quoted(around)} has several values; give one of each field.')
  (base,) = bases
  changes = list(itertools.chain(*axes))
  gives = {name for arm in (base, *changes) for name in arm} | set(config_lib.names_of(overrides))
  if 'epochs' in gives and 'min_steps' not in gives:
    base = {'min_steps': '0', **base}  # epochs that an arm gives are exact: so are the others'
  out, configs = {name_of(bases[0]) or 'baseline': base}, []
  for change in ({}, *changes):
    file, fields = arguments_of(spec, base | change, '0')
    config = config_lib.load(file, [*overrides, *fields])
    name = name_of(change)
    if configs and config != configs[0]:
      if name in out:
        raise InputError(f'two arms are called {name}; leave one out.')
      out[name] = base | change
    configs.append(config)
  return out


def arguments_of(spec: str, arm: Arm, seed: str) -> tuple[str, list[str]]:
  """An arm's config, (FILE:ARGS, ['--config.NAME=VALUE', ...]), with {seed} replaced."""
  arm = {name: value.replace('{seed}', seed) for name, value in arm.items()}
  path, _, args = spec.partition(':')
  of_file = [f'{name[1:]}={value}' for name, value in arm.items() if name.startswith(':')]
  fields = [f'--config.{name}={value}' for name, value in arm.items() if name[:1] != ':']
  return f'{path}:{",".join(filter(None, (args, *of_file)))}', fields


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
  check_number(len(arms) * len(seeds), f'runs of {len(arms):,} arms and {len(seeds):,} seeds')
  out = []
  for name, arm in arms.items():
    for seed in map(str, seeds):
      file, fields = arguments_of(spec, arm, seed)
      fields = [*overrides, *fields, f'--config.seed={seed}']
      folder = ','.join(filter(None, (name, f'seed={seed}')))
      out.append(PlannedRun(folder, name, file, fields, config_lib.load(file, fields)))
  return out


def seeds_of(text: str) -> list[int]:
  """Parses seeds: '3' is 0, 1, 2; '5,6,9' and '5-7' name the seeds themselves."""
  seeds = []
  if match := re.fullmatch(r'(?:(\d{1,9})-)?(\d{1,9})', text.strip(), re.ASCII):
    first = int(match[1] or 0)
    last = int(match[2]) if match[1] is not None else int(match[2]) - 1
    check_number(last - first, f'seeds in --seeds {text} (one seed is named by a comma: 42,)')
    seeds = list(range(first, last + 1))
  elif re.fullmatch(r'[\d\s,]*', text, re.ASCII):
    seeds = [int(part) for part in re.findall(r'\d+', text)]
  if not seeds or len(set(seeds)) < len(seeds):
    raise InputError(f'--seeds is {quoted(text)}; give how many, or a list such as 5,6,9 or 5-9.')
  return seeds


def check_number(count: int, things: str) -> None:
  if count > MOST_RUNS:
    raise InputError(f'{count:,} {things}: a sweep has at most {MOST_RUNS:,}; give fewer.')
