"""Reads configs from config files, from the command line, and from the config.json of a run."""

import ast
import json
import re
import runpy
import traceback
from collections.abc import Collection, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config.check import ALL, SHARED, check, checked, fields, flatten, nested, set_field
from bert_jax.config.compare import pasts
from bert_jax.errors import InputError, first_line, quoted, suggestion
from bert_jax.files import Path
from bert_jax.tasks import TASKS
from bert_jax.text import documentation_tasks
from bert_jax.text.values import json_value

# The keys in a workdir's config.json that are no fields (workdir/contents.py).
BESIDE = ('earlier_lengths', 'seal')
ROOT = Path(__file__).parents[2]  # the folder that holds configs/, whatever folder one is in


def defaults(objective: str) -> ConfigDict:
  """The config of an objective with every field at its default."""
  values = {name: field.default for name, field in fields(objective).items()}
  return nested({**values, **TASKS[objective].defaults, 'objective': objective})


def parse_arg(arg: str, **defaults: str | bool | Collection[str]) -> ConfigDict:
  """Parses the argument of a config file, such as 'size=tiny,runlocal'. defaults: {name: value};
  several values are all that are allowed, the first of which is the default."""
  allowed = {name: [*x] for name, x in defaults.items() if not isinstance(x, (str, bool))}
  out = ConfigDict(defaults | {name: values[0] for name, values in allowed.items()})
  for part in filter(None, arg.split(',')):
    name, equals, value = part.partition('=')
    if name not in defaults:
      hint = suggestion(name, defaults) or '.'
      known = f'There are {", ".join(defaults)}.'
      raise InputError(f'config argument {quoted(name)} is not known here{hint} {known}')
    if not equals and not isinstance(defaults[name], bool):
      raise InputError(f'config argument {quoted(name)} wants a value: {name}=...')
    if name in allowed and value not in allowed[name]:
      use = ', '.join(filter(None, allowed[name]))
      raise InputError(f'{name} {quoted(value)} is not known; use one of {use}.')
    out[name] = _parse(name, value, type(out[name])) if equals else True
  return out


def load(spec: str, overrides: Sequence[str] = ()) -> ConfigDict:
  """Loads the checked config of 'configs/pretrain.py:size=tiny' with ['--config.seed=1', ...]."""
  config, where = call(spec, 'get_config')
  if not where:
    raise InputError(f'config file {spec.partition(":")[0]} defines no get_config(arg).')
  if not isinstance(config, ConfigDict):
    fault = f'{where}: get_config returns {quoted(config)}, a {type(config).__name__}'
    raise InputError(f'{fault}; return a ConfigDict, as configs/pretrain.py does.')
  return override(config, overrides)


def call(spec: str, name: str) -> tuple[Any, str]:
  """(the result of a config file's get_config or sweep, 'FILE:LINE'); (None, '') if it has none."""
  path, _, arg = spec.partition(':')
  if not Path(path).is_file() and (ROOT / path).is_file():
    path = str(ROOT / path)
  if not Path(path).is_file():
    near = ', '.join(str(p) for p in sorted(Path('configs').glob('*.py')))
    advice = f'there are {near}' if near else 'run from the folder that holds configs/'
    path, advice = (spec, 'copy it to a disk and name it') if arg[:2] == '//' else (path, advice)
    raise InputError(f'config file {path} does not exist here; {advice}.')
  line = 0
  try:
    function = runpy.run_path(path).get(name)
    if function is None:
      return None, ''
    line = getattr(getattr(function, '__code__', None), 'co_firstlineno', 0)
    return function(arg), f'{path}:{line}'
  except InputError:
    raise
  except (Exception, SystemExit, GeneratorExit) as error:
    trace = traceback.extract_tb(error.__traceback__)
    lines = [line, *(frame.lineno for frame in trace if frame.filename == path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1]
    where, kind = f'{path}:{line}' if line else path, type(error).__name__
    said = f'{where} is wrong: {kind}: {first_line(error)}'
    raise InputError(f'{said}; mend the config file.') from error


def override(config: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
  """Copies a config with ['--config.a.b=1', '--config.a.c', '2'] applied, and checks the copy."""
  config = config.copy_and_resolve_references()
  words, given = list(overrides), names_of(overrides)
  while words:
    word = words.pop(0)
    if not word.startswith('--config.'):
      advice = 'fields of the config are set as --config.NAME=VALUE (in Python a list of these)'
      raise InputError(f'argument {word!r} is not known; {advice}, --help lists the rest.')
    name, equals, text = word.removeprefix('--config.').partition('=')
    known = flatten(config)
    if name not in known:
      hint = f'; it is a block: set {name}.FIELD.' if name in config else _near(name, config)
      hint = hint or '; python -m bert_jax.config lists all, --find WORD some.'
      raise InputError(f'config has no field {quoted(name)}{hint}')
    if not equals:
      text = 'true' if isinstance(known[name], bool) else words.pop(0) if words else ''
      if text.startswith('--config.'):
        raise InputError(f'--config.{name} wants a value: --config.{name}=...')
    set_field(config, name, _parse(f'config.{name}', text, ALL[name].type))
  needed = fields(config.objective) if 'objective' in given and config.objective in TASKS else ()
  if lacks := [name for name in needed if name not in flatten(config)]:
    fault = f'objective {config.objective} has fields that this config lacks ({lacks[0]})'
    advice = (
      'choose it in a config file that knows it, such as configs/pretrain.py:objective=electra'
    )
    raise InputError(f'{fault}; {advice} (in a sweep --vary :objective=mlm_nsp,electra).')
  if 'epochs' in given and 'min_steps' not in given:
    config.min_steps = 0
  for length, other in (('steps', 'epochs'), ('epochs', 'steps')):
    if length in given and config[length] > 0 and other not in given:
      config[other] = type(config[other])(0)  # of the file, where only one can count
  if config.data.train.startswith(documentation_tasks.PREFIX) and not config.data.eval:
    config.data.eval = f'{config.data.train}:eval'
  return check(config)


def _near(name: str, config: ConfigDict) -> str:
  """What a name may mean that is no field of a config: whose its block is, if of other objectives
  alone; then the field with its last word, or that other programs call so, or see suggestion."""
  known, block, last = flatten(config), name.split('.')[0], name.split('.')[-1]
  has = lambda task: any(x.startswith(f'{block}.') for x in task.fields)
  others = [] if block in config else [x for x, task in TASKS.items() if has(task)]
  of = f'; {block}.* is of {", ".join(others)}, not of {config.objective}' * bool(others)
  if found := suggestion(last, [x for x in known if x.split('.')[-1] == last]):
    return of + found
  for x in known:
    meaning, _, elsewhere = ALL[x].meaning.partition(' (elsewhere: ')
    if last in re.findall(r'\w+', elsewhere):
      return f'{of}; did you mean {x!r} ({meaning})?'
  return f'{of}.' if of else suggestion(name, known)


def names_of(overrides: Sequence[str]) -> tuple[str, ...]:
  """The names of the fields that ['--config.a.b=1', '--config.a.c', '2'] sets."""
  words = (word for word in overrides if word.startswith('--config.'))
  return tuple(word.removeprefix('--config.').partition('=')[0] for word in words)


def _parse(name: str, text: str, kind: type) -> Any:
  if kind is str:
    return text
  if kind is bool and text.lower() in ('true', 'false'):
    return text.lower() == 'true'
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError, MemoryError, RecursionError):
    value = text
  if kind is tuple and isinstance(value, (list, str)):
    value = tuple(value) if isinstance(value, list) else tuple(filter(None, text.split(',')))
  return checked(name, value, kind)


def to_json(config: ConfigDict) -> str:
  return json.dumps(config.to_dict(), indent=2) + '\n'


def from_json(text: str) -> ConfigDict:
  """Reads and checks a config that `to_json` wrote; fields added since get their past value."""

  def tuples(value: Any) -> Any:  # JSON has lists only
    if isinstance(value, dict):
      return {k: tuples(v) for k, v in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value

  content = {k: v for k, v in json_value(text).items() if k not in BESIDE}
  values = flatten(ConfigDict(tuples(content)))
  known = fields(values['objective']) if 'objective' in values else SHARED
  return check(nested(pasts(known) | values))
