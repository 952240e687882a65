"""Parses --vary and other options into the arms of a sweep, and plans their runs and folders.

An arm is {NAME: text}, the fields (or, as :NAME, the arguments of the config file) that it sets,
and its name begins the folders of its runs: NAME,seed=0.
"""

import hashlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.errors import InputError, log, quoted, suggestion
from bert_jax.tools.sweep.draws import RANGE, check_number, drawn
from bert_jax.workdir import records

Arm = dict[str, str]
LONGEST = 200  # bytes in the name of an arm; file systems take 255
# A quotation, which begins where a value does, or the beginning of one.
QUOTATION = re.compile(r"""((?:^|[=,;:([{])\s*)(['"]).*?\2""")
BEGUN = re.compile(r"""(?:^|[=,;:([{])\s*['"]""")


class Run(NamedTuple):
  folder: str  # its name below the folder of the sweep
  arm: str
  spec: str  # FILE:ARGS of the config
  fields: list[str]  # ['--config.NAME=VALUE', ...]
  config: ConfigDict = ConfigDict()  # of these, once it is loaded


def parts_of(text: str, separator: str) -> list[str]:
  """Splits a text outside brackets and quotations: 'a,(b,c),"d,e"' -> ['a', '(b,c)', '"d,e"']."""
  out, part = [], ''
  for piece in text.split(separator):
    part += piece
    bare = QUOTATION.sub(r'\1', part)
    depth = len(re.findall(r'[(\[{]', bare)) - len(re.findall(r'[)\]}]', bare))
    if depth or BEGUN.search(bare):
      part += separator
    else:
      out.append(part)
      part = ''
  if part:
    raise InputError(f'{quoted(text)} has a bracket or a quotation that is not closed; close it.')
  return out


def value_of(text: str) -> str:
  """The text of a value, without the quotation marks around it."""
  return text[1:-1] if re.fullmatch(r'(["\']).*\1', text) else text


def axis_of(text: str, option: str = '--vary') -> list[Arm]:
  """Parses fields that move together: 'a=1,2;b=3,4' -> [{'a': '1', 'b': '3'}, {'a': '2', ...}]."""
  columns = {}
  for part in parts_of(text, ';'):
    name, equals, values = part.strip().partition('=')
    if not equals or not name:
      raise InputError(f'{option} {quoted(text)} is not NAME=VALUE,... (;NAME=VALUE,...)')
    if name in columns:
      raise InputError(f'{option} {quoted(text)} sets {name} twice; give it once.')
    columns[name] = list(map(value_of, parts_of(values, ',')))
  if len(set(map(len, columns.values()))) > 1:
    each = ', '.join(f'{len(values)} of {name}' for name, values in columns.items())
    raise InputError(f'{option} {quoted(text)} has {each}; give each as many values.')
  return [dict(zip(columns, values)) for values in zip(*columns.values())]


def name_of(arm: Arm) -> str:
  """The name of an arm: 'a=1,b=x_y', with _ for characters unsuited to a folder's name."""
  shown = ((name.strip(':'), value.strip('/')[-80:]) for name, value in arm.items())
  text = ','.join(f'{name}={value or "none"}' for name, value in shown)
  return re.sub(r'[^\w.,=+@{}-]', '_', text)


def fitting(name: str) -> str:
  """Shortens an arm's name so that a folder's name can hold it and the seed."""
  if len(name.encode()) <= LONGEST:
    return name
  kept = name.encode()[:LONGEST].decode(errors='ignore')
  return f'{kept}+{hashlib.sha256(name.encode()).hexdigest()[:8]}'


def arms_of_file(spec: str) -> dict[str, Arm]:
  """{name: {field: text}} of sweep(arg) in a config file, the baseline first; {} without it."""
  arms, where = config_lib.call(spec, 'sweep')
  if not where:
    return {}
  is_dict = isinstance(arms, dict) and arms
  if not is_dict or not all(isinstance(arm, dict) for arm in arms.values()):
    raise InputError(f'{where}: sweep(arg) returns no {{name of an arm: {{field: value}}}}.')
  as_text = lambda value: value if isinstance(value, str) else repr(value)
  return {
    re.sub(r'[^\w.,=+@-]', '_', str(name)): {field: as_text(x) for field, x in arm.items()}
    for name, arm in arms.items()
  }


def chosen(arms: Mapping[str, Arm], only: str, source: str) -> Mapping[str, Arm]:
  """Chooses the arms named in 'a,b', in that order: the first is the baseline. '': all."""
  if not only:
    return arms
  names = [value_of(part.strip()) for part in parts_of(only, ',')]
  for name in names:
    if name not in arms:
      have = _shown(arms) or 'none: drop --arms'
      new = ' (--vary with --baseline "" adds others)' * bool(arms and source != '--from')
      if whole := next((arm for arm in arms if name in arm.split(',')), ''):
        have += f""" (in a shell --arms '"{whole}"')"""
      fault = f'--arms {quoted(name)} is not an arm of {source}, which has {have}{new}'
      raise InputError(f'{fault}{suggestion(name, arms) or "."}')
  return {name: arms[name] for name in names}


def _shown(arms):
  return ', '.join(f'"{name}"' if ',' in name else name for name in arms)


def arms_before(root: str) -> tuple[dict[str, Arm], str]:
  """({name: {'init_from': ROOT/NAME,seed={seed}}} of another sweep's arms, its baseline or '')."""
  sweep = records.read_sweep(root)
  if sweep is None or not sweep.runs or not all(run.arm for run in sweep.runs.values()):
    raise InputError(f'--from {root} holds no sweep; give the --workdir of one.')
  names = dict.fromkeys(run.arm for run in sweep.runs.values())
  arms = {name: {'init_from': f'{root}/{_joined(name, "seed={seed}")}'} for name in names}
  return arms, sweep.baseline


def arms_of(
  spec: str,
  vary: Sequence[str],
  baseline: str | None = None,
  draws: int = 0,
  draw_seed: int = 0,
  before: str = '',
  overrides: Sequence[str] = (),
  only: str = '',
) -> tuple[dict[str, Arm], str]:
  """Makes the arms of a sweep: ({name: arm}, name of the baseline or ''): all combinations of the
  texts of --vary with the arms of the file's sweep() or of --from (before). baseline: one of these,
  which comes first; or 'a=1;b=2', '' for the config, or an arm of the file beside --vary: one axis
  at a time varies around it. draws, draw_seed: so many arms of a random search instead. only:
  'a,b', arms of the file or of --from; '': all."""
  axes = [axis_of(text) for text in vary]
  source = '--from' if before else 'sweep() of the config file'
  of_file = arms_of_file(spec)
  if before and of_file:
    fault = f'{spec} has arms of its own, such as {[*of_file][-1]}, and --from has others'
    raise InputError(f'{fault}; use a file without, such as configs/finetune.py, and --vary.')
  every, first = arms_before(before) if before else (of_file, '')
  listed = chosen(every, only, source)
  first = first if before and not only else next(iter(listed), '')
  changes = [change for axis in axes for arm in axis for change in arm.items()]
  twice = [name for arm in listed.values() for name in arm if name in dict(changes)]
  ranges = [value for _, value in changes if RANGE.fullmatch(value)]
  if twice and (baseline is None or before or draws):  # else a value replaces that of the first arm
    adds = '' if before else '; --baseline "" makes each value an arm beside these'
    fault = f'{twice[0]} is set by {source} and by --vary; drop one, or choose by --arms'
    raise InputError(f'{fault}{adds}.')
  if ranges and not draws:
    raise InputError(f'{ranges[0]} is a range, for a random search; add --random 20.')
  names = [name for axis in axes for name in axis[0]]
  if (baseline is None or before or draws) and (
    again := [name for name in names if names.count(name) > 1]
  ):
    one = f'write its values as one, --vary {again[0]}=V1,V2'
    raise InputError(f'{again[0]} is in several --vary, whose combinations set it once; {one}.')
  check_number(draws or math.prod(map(len, axes)), '--random' if draws else '--vary')
  if draws and not axes:
    raise InputError('--random draws from --vary, which is missing.')
  is_whole = not twice and len(set(names)) == len(names)
  arms, base = _crossed(axes, listed, first, draws, draw_seed) if is_whole else ({}, '')
  if baseline is None:
    return arms, base
  if (named := value_of(baseline.strip())) in arms and named:
    return {named: arms[named]} | arms, named
  if before or draws:
    other = f'{"--random" if draws else source} has other arms; drop one, or name one of these'
    raise InputError(f'--baseline varies one --vary at a time, and {other}: {_shown(arms)}.')
  return _around(spec, axes, baseline, overrides, listed, arms or listed)


def _crossed(axes, listed, first, draws, draw_seed):
  """All combinations of arms, or so many that are drawn: ({name: arm}, the baseline's or '')."""
  if draws:
    combined = drawn(axes, draws, draw_seed)
  else:
    combined = [{k: v for x in some for k, v in x.items()} for some in itertools.product(*axes)]
  arms = {}
  for (name, start), more in itertools.product((listed or {'': {}}).items(), combined):
    full = fitting(_joined(name, name_of(more)))
    if full in arms and not draws:
      raise InputError(f'two arms are called {full}; leave one out, or write its values otherwise.')
    arms[full] = start | more
  if draws and (fewer := draws * max(1, len(listed)) - len(arms)):
    log.warning('%d of the arms that --random has drawn are equal to others: left out', fewer)
  has_first = first in listed or not (listed or draws)  # without a list the first values are it
  base = fitting(_joined(first, name_of(combined[0]))) if has_first else ''
  return arms, base if base in arms else ''


def _setting(baseline, arms, spec):
  """The fields that --baseline sets; InputError, with the arms that there are, if it sets none."""
  try:
    base, *more = axis_of(baseline, '--baseline')
    if more:
      raise InputError(f'--baseline {quoted(baseline)} has several values; a baseline has one.')
    if any(name[0] != ':' and name not in config_lib.ALL for name in base):
      config_lib.load(*arguments_of(spec, base, '0'))  # which says what may be meant
  except InputError as error:
    if not any(arms):
      raise
    fault = f'--baseline {quoted(baseline)} is not an arm, of which there are {_shown(arms)}'
    hint = suggestion(baseline, arms) or f'; nor a setting: {error}'
    raise InputError(f'{fault}{hint}') from None
  return base


def _around(spec, axes, baseline, overrides, listed, arms):
  """The baseline (of `listed` arms the one that is named, else the first), the others of these, and
  arms that change one value of one axis, named by it, as the baseline is by what it sets."""

  def load(arm: Arm) -> ConfigDict:
    file, fields = arguments_of(spec, arm, '0')
    return config_lib.load(file, [*overrides, *fields])

  named = value_of(baseline.strip())
  base = _setting(baseline, arms, spec) if baseline and named not in listed else {}
  is_base = lambda arm: arm.keys() == base.keys() and load(arm) == load(base)  # 0.10 is 0.1
  if same := [name for name, arm in listed.items() if name == named or base and is_base(arm)]:
    listed, base = {same[0]: listed[same[0]]} | listed, {}
  base = next(filter(is_base, itertools.chain(*axes)), base)
  gives_epochs = lambda x: x.get('epochs', '').strip('0.') and 'min_steps' not in x
  is_exact = any(map(gives_epochs, itertools.chain(*axes)))
  is_given = 'min_steps' in config_lib.names_of(overrides)
  # As epochs have it that are given: compared like with like.
  fewest = {'min_steps': '0'} if is_exact and not is_given else {}
  listed = listed or {fitting(name_of(base)) or 'baseline': {}}
  arms = {name: fewest | arm | base for name, arm in listed.items()}
  name_of_base, base = next(iter(arms.items()))
  first = load(base)
  for change in itertools.chain(*axes):
    if load(base | change) == first:
      continue
    if (name := fitting(name_of(change))) in arms:
      raise InputError(f'two arms are called {name}; leave one out.')
    arms[name] = base | change
  return arms, name_of_base


def arguments_of(spec: str, arm: Arm, seed: str) -> tuple[str, list[str]]:
  """An arm's config, (FILE:ARGS, ['--config.NAME=VALUE', ...]), with {seed} replaced."""
  arm = {name: value.replace('{seed}', seed) for name, value in arm.items()}
  path, _, args = spec.partition(':')
  of_file = [f'{name[1:]}={value}' for name, value in arm.items() if name.startswith(':')]
  fields = [f'--config.{name}={value}' for name, value in arm.items() if name[:1] != ':']
  return f'{path}:{_joined(args, *of_file)}', fields


def runs_of(
  spec: str, arms: Mapping[str, Arm], seeds: Sequence[int], overrides: Sequence[str] = ()
) -> list[Run]:
  """The Runs of {name: arm}: all seeds of one arm, then of the next. overrides: fields of all.
  InputError if any sets the seed."""
  if 'seed' in config_lib.names_of(overrides) or any('seed' in arm for arm in arms.values()):
    raise InputError(
      'the seeds of a sweep are given by --seeds, such as --seeds 3 or --seeds 5,6; drop seed=.'
    )
  for name in config_lib.names_of(overrides):
    if all(name in arm for arm in arms.values()):
      advice = f'--config.{name} changes nothing; drop it, or choose by --vary or --arms'
      raise InputError(f'every arm sets {name}, so that {advice}.')
  check_number(len(arms) * len(seeds), f'{len(arms):,} arms and {len(seeds):,} seeds')
  out = []
  for name, arm in arms.items():
    for seed in map(str, seeds):
      file, fields = arguments_of(spec, arm, seed)
      fields = [*overrides, *fields, f'--config.seed={seed}']
      out.append(Run(_joined(name, f'seed={seed}'), name, file, fields))
  return out


def _joined(*names: str) -> str:
  return ','.join(name for name in names if name)
