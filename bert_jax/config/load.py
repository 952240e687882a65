"""Reads configs from config files, from the command line, and from the config.json of a run."""

import ast
import contextlib
import json
import re
import runpy
import traceback
from collections.abc import Collection, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax import files
from bert_jax.config.check import ALL, check, checked, fields, flatten, nested, set_field
from bert_jax.config.compare import pasts
from bert_jax.errors import InputError, first_line, listed, quoted, suggestion
from bert_jax.files import Path
from bert_jax.tasks import TASKS
from bert_jax.text import documentation_tasks
from bert_jax.text.values import json_value

CONFIGS = files.PACKAGE / 'configs'  # a link to the clone's, or the installed package's own
# The keys in a workdir's config.json that are no fields (workdir/contents.py).
BESIDE = ('asked', 'seal')


def defaults(objective: str) -> ConfigDict:
  """The config of an objective with every field at its default."""
  values = {name: field.default for name, field in fields(objective).items()}
  return nested({**values, **TASKS[objective].defaults, 'objective': objective})


def parse_arg(arg: str, **defaults: str | bool | Collection[str]) -> ConfigDict:
  """Parses the argument of a config file, such as 'size=tiny,runlocal'. defaults: {name: value};
  several values are all that are allowed, the first of which is the default."""
  out, choices = ConfigDict(), {}
  for name, default in defaults.items():
    if not isinstance(default, (str, bool)):
      choices[name] = list(default)
      default = choices[name][0]
    out[name] = default
  for part in filter(None, arg.split(',')):
    name, equals, value = part.partition('=')
    if name not in out:
      raise InputError(
        f'config argument {quoted(name)} is not known here{suggestion(name, defaults)}; there are '
        f'{", ".join(defaults)}.'
      )
    if not equals and not isinstance(out[name], bool):
      raise InputError(f'config argument {quoted(name)} wants a value: {name}=...')
    if name in choices and value not in choices[name]:
      use = ', '.join(filter(None, choices[name]))
      raise InputError(f'{name} {quoted(value)} is not known; use one of {use}.')
    out[name] = _parsed(name, value, type(out[name])) if equals else True
  return out


def load(spec: str, overrides: Sequence[str] = ()) -> ConfigDict:
  """Loads the checked config of 'configs/pretrain.py:size=tiny' with ['--config.seed=1', ...]."""
  return override(of_file(spec), overrides)


def of_file(spec: str) -> ConfigDict:
  """The config that a config file returns, not checked."""
  config = call(spec, 'get_config')
  if not isinstance(config, ConfigDict):
    raise InputError(
      f'config file {spec.partition(":")[0]} has no get_config(arg) that returns a ConfigDict, as '
      'configs/pretrain.py does.'
    )
  return config


def call(spec: str, name: str) -> Any:
  """The result of a config file's get_config(arg) or sweep(arg); None if it has none."""
  path, _, arg = spec.partition(':')
  path = str(files.brought(path))
  if not Path(path).is_file():
    there = ', '.join(f'configs/{x.name}' for x in sorted(CONFIGS.glob('*.py')))
    raise InputError(f'config file {path} does not exist here; there are {there}.')
  clone = Path(path).resolve().parent.parent
  if other := files.difference(clone):
    raise InputError(
      f'{path} is of {clone}, whose bert_jax/{other} is another version than in the package that '
      f'runs, {files.PACKAGE}; pip install {clone}/bert_jax, or run python -m bert_jax.train there.'
    )
  try:
    function = runpy.run_path(path).get(name)
    return function(arg) if function else None
  except InputError:
    raise
  except Exception as error:
    line = error.lineno if isinstance(error, SyntaxError) else 0
    for frame in traceback.extract_tb(error.__traceback__):
      if frame.filename == path:
        line = frame.lineno
    raise InputError(
      f'{path}:{line} is wrong: {type(error).__name__}: {first_line(error)}; mend the config file.'
    ) from error


def override(config: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
  """Copies a config with ['--config.a.b=1', ...] applied, and checks the copy."""
  config = config.copy_and_resolve_references()
  known, given = flatten(config), names_of(overrides)
  for word in overrides:
    name, equals, text = word.removeprefix('--config.').partition('=')
    if not word.startswith('--config.') or not equals:
      raise InputError(
        f'argument {word!r} is not known; fields of the config are set as --config.NAME=VALUE (in '
        'Python a list of these), --help lists the rest.'
      )
    if name not in known:
      raise InputError(f'config has no field {quoted(name)}{_meant(name, config)}.')
    set_field(config, name, _parsed(f'config.{name}', text, ALL[name].type, ALL[name].allowed))
  if 'epochs' in given and 'min_steps' not in given:
    config.min_steps = 0
  for length, other in (('steps', 'epochs'), ('epochs', 'steps')):
    if length in given and config[length] > 0 and other not in given:
      config[other] = type(config[other])(0)  # of the file, where only one can count
  if config.data.train.startswith(documentation_tasks.PREFIX) and not config.data.eval:
    config.data.eval = f'{config.data.train}:eval'
  return check(config)


def _meant(name: str, config: ConfigDict) -> str:
  """What a name may mean that is no field of a config, as the end of a sentence: fields with its
  last word, or that other programs call so (`elsewhere` in their meaning)."""
  known = flatten(config)
  last = name.split('.')[-1]
  alike = []
  for field in known:
    _, _, elsewhere = ALL[field].meaning.partition(' (elsewhere: ')
    if last == field.split('.')[-1] or last in re.findall(r'\w+', elsewhere):
      alike.append(field)
  if alike and name not in ALL:
    return f' (did you mean {listed(alike)}?)'
  for field in ALL:
    if field == name or field.endswith(f'.{name}'):
      owners = ', '.join(task.name for task in TASKS.values() if field in task.fields)
      return f'; {field} is a field of {owners}, and the config file chose another objective'
  words = known if '.' in name else [field.split('.')[-1] for field in known]
  return suggestion(name, words) or '; python -m bert_jax.config lists all'


def names_of(overrides: Sequence[str]) -> tuple[str, ...]:
  """The names of the fields that ['--config.a.b=1', ...] sets."""
  return tuple(word.removeprefix('--config.').partition('=')[0] for word in overrides)


def _parsed(name: str, text: str, kind: type, allowed: Any = None) -> Any:
  """The value of a field that a text of the command line stands for; InputError if it has none."""
  if kind is str:
    return text
  if kind is bool and text.lower() in ('true', 'false'):
    return text.lower() == 'true'
  is_list_of_texts = kind is tuple and allowed is str and not text.startswith(('(', '['))
  value: Any = text
  if not is_list_of_texts:  # 1.10 is a label, too
    with contextlib.suppress(ValueError, SyntaxError):
      value = ast.literal_eval(text)
  if kind is tuple and isinstance(value, str):
    value = tuple(part for part in value.split(',') if part)
  if kind is tuple and isinstance(value, (list, dict)):
    value = tuple(value.items() if isinstance(value, dict) else value)
  return checked(name, value, kind)


def to_json(config: ConfigDict) -> str:
  return json.dumps(config.to_dict(), indent=2) + '\n'


def from_json(text: str) -> ConfigDict:
  """Reads and checks a config that `to_json` wrote; fields added since get their past value."""
  content = {name: value for name, value in json_value(text).items() if name not in BESIDE}
  values = flatten(ConfigDict(_with_tuples(content)))
  return check(nested(pasts(fields(values.get('objective', ''))) | values))


def _with_tuples(value: Any) -> Any:
  """A value of JSON, which has lists only, with tuples in their place."""
  if isinstance(value, dict):
    return {name: _with_tuples(part) for name, part in value.items()}
  if isinstance(value, list):
    return tuple(_with_tuples(part) for part in value)
  return value
