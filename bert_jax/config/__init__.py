"""Configs: read, changed from the command line, checked, written; and what command lines share.

A config is a Python file with `get_config(arg) -> ConfigDict` that spells out every field. What the
command line changes (`--config.model.hidden_size=64`) and what the file says are checked against
the table in config/fields.py, before anything is compiled; a mistake is one sentence with the fix.
"""

import ast
import contextlib
import difflib
import hashlib
import json
import logging
import os
import runpy
import sys
from pathlib import Path

from ml_collections import ConfigDict

from bert_jax.config.fields import FIELDS, FREE_TO_CHANGE, OBJECTIVE_BLOCKS, SIZES, InputError, bert
from bert_jax.config.rules import check_combinations, masking_stages

# What others take from here besides its own.
__all__ = ['SIZES', 'InputError', 'bert', 'masking_stages']


def parse_arg(arg, **defaults):
  """'size=tiny,runlocal' with the names and defaults a config file knows -> ConfigDict of them."""
  out = ConfigDict(defaults)
  for part in filter(None, arg.split(',')):
    name, given, value = part.partition('=')
    if name not in defaults:
      raise InputError(
        f'config argument {name!r} is not known here{_meant(name, defaults)}; '
        f'there are: {", ".join(defaults)}.'
      )
    if not given and not isinstance(defaults[name], bool):
      raise InputError(f'config argument {name!r} wants a value: {name}=...')
    out[name] = _parse(name, value, type(defaults[name])) if given else True
  return out


def load(spec, overrides=()):
  """'configs/pretrain.py:size=tiny' plus ['--config.seed=1', ...] -> a checked ConfigDict."""
  path, _, arg = spec.partition(':')
  if not Path(path).is_file():
    near = ', '.join(str(p) for p in sorted(Path('configs').glob('*.py')))
    raise InputError(
      f'config file {path} does not exist'
      + (f'; there are {near}.' if near else '; run from the folder that holds configs/.')
    )
  get_config = runpy.run_path(path).get('get_config')
  if get_config is None:
    raise InputError(f'config file {path} defines no get_config(arg).')
  return override(get_config(arg), overrides)


def override(config, overrides):
  """A copy of config with ['--config.a.b=1', '--config.a.c', '2'] applied, then checked."""
  config = config.copy_and_resolve_references()
  words = list(overrides)
  while words:
    word = words.pop(0)
    if not word.startswith('--config.'):
      raise InputError(
        f'argument {word!r} is not known; fields of the config are set as '
        '--config.NAME=VALUE, --help lists the rest.'
      )
    name, given, text = word.removeprefix('--config.').partition('=')
    fields = flatten(config)
    if name not in fields:
      hint = f'; it is a block: set {name}.FIELD.' if name in config else _meant(name, fields)
      raise InputError(
        f'config has no field {name!r}{hint or "; bert_jax/config/fields.py lists all."}'
      )
    if not given:
      text = 'true' if isinstance(fields[name], bool) else words.pop(0) if words else ''
      if text.startswith('--config.'):
        raise InputError(f'--config.{name} wants a value: --config.{name}=...')
    set_field(config, name, _parse(name, text, FIELDS[name][0]))
  return check(config)


def set_field(config, name, value):
  """config.a.b = value for name 'a.b'."""
  *blocks, leaf = name.split('.')
  for block in blocks:
    config = config[block]
  with config.ignore_type():
    config[leaf] = value


def check(config):
  """config itself if every field is there, known, of its type and range, and they fit together."""
  fields = flatten(config)
  for name in fields:
    if name not in FIELDS:
      raise InputError(
        f'config has a field {name!r} that nothing reads{_meant(name, FIELDS) or "."}'
      )
  objective = fields.get('objective')
  others = [
    b
    for o, blocks in OBJECTIVE_BLOCKS.items()
    if o != objective
    for b in blocks
    if b not in OBJECTIVE_BLOCKS.get(objective, ())
  ]
  for name, (kind, allowed, _) in FIELDS.items():
    if name.partition('.')[0] in others:
      if name in fields:
        raise InputError(f'config.{name} means nothing to objective {objective!r}; remove it.')
      continue
    if name not in fields:
      raise InputError(f'config.{name} is missing from the config file; add it.')
    set_field(config, name, _checked(name, fields[name], kind, allowed))
  check_combinations(config)
  return config


def _checked(name, value, kind, allowed):
  if kind is float and isinstance(value, int) and not isinstance(value, bool):
    value = float(value)
  if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
    raise InputError(f'config.{name} is {value!r}, which is not {_a(kind)}.')
  if allowed is str:
    value = tuple(map(str, value))
  if isinstance(allowed, tuple) and value not in allowed:
    raise InputError(f'config.{name} is {value!r}; use one of {", ".join(allowed)}.')
  if isinstance(allowed, str):
    low, high = (float(x) for x in allowed[1:-1].split(','))
    inside = (value > low if allowed[0] == '(' else value >= low) and (
      value < high if allowed[-1] == ')' else value <= high
    )
    if not inside:
      raise InputError(f'config.{name} is {value}, outside {allowed}.')
  return value


def flatten(config, prefix=''):
  """{'model.hidden_size': 128, ...}"""
  out = {}
  for key, value in config.items():
    if isinstance(value, ConfigDict):
      out |= flatten(value, f'{prefix}{key}.')
    else:
      out[prefix + key] = value
  return out


def to_json(config):
  return json.dumps(config.to_dict(), indent=2) + '\n'


def from_json(text):
  """A config as `to_json` wrote it, checked again."""

  def tuples(value):  # a ConfigDict field that once was a list stays one
    if isinstance(value, dict):
      return {k: tuples(v) for k, v in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value

  return check(ConfigDict(tuples(json.loads(text))))


def fingerprint(config):
  """A short hash of the fields that decide a run's numbers."""
  return hashlib.sha256(json.dumps(_fixed(config), sort_keys=True).encode()).hexdigest()[:16]


def changes(old, new):
  """['seed: 0 -> 1', ...]: how two configs differ in what decides a run's numbers."""
  a, b = _fixed(old), _fixed(new)
  return [f'{k}: {a.get(k)!r} -> {b.get(k)!r}' for k in a | b if a.get(k) != b.get(k)]


def _fixed(config):
  fields = flatten(config)
  if config.objective == 'mlm_nsp':  # without data.eval, a share of data.train is held out
    fields['data.eval is given'] = bool(config.data.eval)
  return {k: v for k, v in fields.items() if not k.startswith(FREE_TO_CHANGE) or ' ' in k}


def write_whole(path, data):
  """Writes a text or bytes so that a kill leaves the old file or the whole new one."""
  path = Path(path)
  scratch = path.with_name(f'.{path.name}.tmp')
  scratch.write_bytes(data.encode() if isinstance(data, str) else data)
  scratch.replace(path)


def show_log():
  """Lets our log lines out on stderr, in a notebook too, unless logging is set up otherwise."""
  logging.getLogger('absl').setLevel(logging.ERROR)  # Orbax warns of what we chose on purpose
  log = logging.getLogger('bert_jax')
  if log.level == logging.NOTSET:
    log.setLevel(logging.INFO)
  if not log.hasHandlers():
    log.addHandler(logging.StreamHandler())


@contextlib.contextmanager
def command_line():
  """What command lines share: log lines on stderr, an InputError as one sentence and exit 2."""
  logging.basicConfig(level=logging.WARNING, format='%(message)s', stream=sys.stderr, force=True)
  show_log()
  try:
    yield
  except BrokenPipeError:  # the reader of our output has seen enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except (InputError, OSError, KeyboardInterrupt) as error:
    said, code = farewell(error)
    print(said, file=sys.stderr)
    sys.exit(code)


WRONG_PATH = (
  FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError
)  # fmt: skip


def farewell(error):
  """(sentence, exit code) of what ends a program."""
  if isinstance(error, KeyboardInterrupt):
    return str(error) or 'stopped', 130
  code = getattr(error, 'code', 2)
  if isinstance(error, OSError):
    # A path that is wrong stays wrong; a disk or a network may be well again at the next start.
    code = 2 if isinstance(error, WRONG_PATH) else 3
    where = f'{error.filename}: ' if error.filename else ''
    error = f'{where}{error.strerror or error}; check the path, its permissions and the disk'
  return f'error: {error}', code


def first_line(error):
  """The first line of what an exception says, short enough for a sentence."""
  return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _parse(name, text, kind):
  """The text of a command line as a value of the field's type."""
  if kind is str:
    return text
  if kind is bool and text.lower() in ('true', 'false'):
    return text.lower() == 'true'
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError):
    value = text
  if kind is float and isinstance(value, int):
    value = float(value)
  if kind is tuple and isinstance(value, (list, str)):
    value = tuple(value) if isinstance(value, list) else tuple(filter(None, text.split(',')))
  if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
    raise InputError(f'{name}={text} is not {_a(kind)}.')
  return value


def _a(kind):
  return {
    int: 'a whole number',
    float: 'a number',
    bool: 'true or false',
    str: 'a text',
    tuple: 'a tuple',
  }[kind]


def _meant(name, known):
  """'; did you mean X?' when a known name is near, else ''."""
  near = difflib.get_close_matches(name, list(known), 1)
  return f'; did you mean {near[0]!r}?' if near else ''
