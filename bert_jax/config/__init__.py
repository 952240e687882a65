"""Configs: read, changed from the command line, checked, written.

A config file is a Python file with `get_config(arg) -> ConfigDict`, which has every field. The
file and the changes of the command line (`--config.model.hidden_size=64`) are checked against the
types and rules of the fields before anything is compiled; a mistake is one sentence with the fix.

The fields that every objective has are in model.py, data.py, optimizer.py and run.py, the others in
the record of a task family in tasks/. `python -m bert_jax.config` prints all.
"""

import ast
import difflib
import hashlib
import json
import re
import runpy
import traceback
from pathlib import Path

from ml_collections import ConfigDict

from bert_jax.config import data, model, optimizer, run
from bert_jax.config.model import SIZES, bert
from bert_jax.errors import InputError, first_line, quoted
from bert_jax.field import NO_PAST
from bert_jax.files import write_whole
from bert_jax.tasks import TASKS
from bert_jax.text.values import json_value

# Names from other modules that are used as bert_jax.config.NAME too.
__all__ = ['SIZES', 'InputError', 'bert', 'first_line', 'write_whole']

# {name: Field}: the fields that every objective has, and those of all objectives together.
SHARED = run.FIELDS | model.FIELDS | data.FIELDS | optimizer.FIELDS
ALL = SHARED | {name: field for task in TASKS.values() for name, field in task.fields.items()}
# What stands in the config.json of a workdir beside the config (workdirs.py).
BESIDE = ('earlier_lengths', 'seal')
# A run may be continued with other values of these fields: they do not change its numbers.
FREE_TO_CHANGE = (
  'mesh.',
  'max_hours',
  'profile',
  'checkpoint.',
  'log.',
  'eval.',
  'eval_masking.',
  'data.eval',
  'data.skip_damaged',
  'teacher',
  'language_model.eval_memory',
)


def fields(objective):
  """{name: Field} that a config of this objective has."""
  return SHARED | _task(objective).fields


def _task(objective):
  if objective not in TASKS:
    known = f'{", ".join(TASKS)}; a new one needs a line in bert_jax/tasks/__init__.py'
    raise InputError(f'objective {objective!r} is not known; there are {known}.')
  return TASKS[objective]


def defaults(objective):
  """The config of an objective with every field at its default: for released models, which come
  without a config, and for config files to begin with."""
  values = {name: field.default for name, field in fields(objective).items()}
  return nested(values | TASKS[objective].defaults | {'objective': objective})


def objective_blocks(objective):
  """The blocks of a config that only this objective has, at their defaults."""
  return nested({name: field.default for name, field in _task(objective).fields.items()})


def parse_arg(arg, **defaults):
  """'size=tiny,runlocal' -> ConfigDict of the names that a config file knows, with its defaults."""
  out = ConfigDict(defaults)
  for part in filter(None, arg.split(',')):
    name, given, value = part.partition('=')
    if name not in defaults:
      raise InputError(
        f'config argument {quoted(name)} is not known here{_meant(name, defaults)}; '
        f'there are: {", ".join(defaults)}.'
      )
    if not given and not isinstance(defaults[name], bool):
      raise InputError(f'config argument {quoted(name)} wants a value: {name}=...')
    out[name] = _parse(name, value, type(defaults[name])) if given else True
  return out


def load(spec, overrides=()):
  """'configs/pretrain.py:size=tiny' and ['--config.seed=1', ...] -> a checked ConfigDict."""
  config, where = call(spec, 'get_config')
  if not where:
    raise InputError(f'config file {spec.partition(":")[0]} defines no get_config(arg).')
  if not isinstance(config, ConfigDict):
    what = f'get_config returns {quoted(config)}, a {type(config).__name__}'
    raise InputError(f'{where}: {what}; return a ConfigDict, as configs/pretrain.py does.')
  return override(config, overrides)


def call(spec, name):
  """(what a function of a config file, get_config or sweep, returns for the arguments in a spec,
  'FILE:LINE' of it); (None, '') if the file has none. A mistake in the file is one sentence."""
  path, _, arg = spec.partition(':')
  if not Path(path).is_file():
    near = ', '.join(str(p) for p in sorted(Path('configs').glob('*.py')))
    raise InputError(
      f'config file {path} does not exist'
      + (f'; there are {near}.' if near else '; run from the folder that holds configs/.')
    )
  line = 0
  try:
    function = runpy.run_path(path).get(name)
    if function is None:
      return None, ''
    line = getattr(getattr(function, '__code__', None), 'co_firstlineno', 0)
    return function(arg), f'{path}:{line}'
  except InputError:
    raise
  except Exception as error:
    frames = [
      frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path
    ]
    line = error.lineno if isinstance(error, SyntaxError) else (frames or [line])[-1]
    where = f'{path}:{line}' if line else path
    raise InputError(
      f'{where} is wrong: {type(error).__name__}: {first_line(error)}; mend the config file.'
    ) from error


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
      hint = hint or '; python -m bert_jax.config lists all.'
      raise InputError(f'config has no field {quoted(name)}{hint}')
    if not given:
      text = 'true' if isinstance(fields[name], bool) else words.pop(0) if words else ''
      if text.startswith('--config.'):
        raise InputError(f'--config.{name} wants a value: --config.{name}=...')
    set_field(config, name, _parse(name, text, ALL[name].type))
  return check(config)


def names_of(overrides):
  """The names of the fields that ['--config.a.b=1', '--config.a.c', '2'] sets."""
  words = (word for word in overrides if word.startswith('--config.'))
  return tuple(word.removeprefix('--config.').partition('=')[0] for word in words)


def set_field(config, name, value):
  """config.a.b = value for name 'a.b'."""
  *blocks, leaf = name.split('.')
  for block in blocks:
    config = config[block]
  with config.ignore_type():
    config[leaf] = value


def check(config):
  """The config itself; InputError unless it has exactly the fields of its objective, each of its
  type and range, and all rules hold."""
  given = flatten(config)
  for name in given:
    if name not in ALL:
      meant = _meant(name, ALL) or '.'
      raise InputError(f'config has a field {quoted(name)} that nothing reads{meant}')
  for name, field in SHARED.items():
    _check_field(config, given, name, field)
  task = TASKS[config.objective]
  task.check_whole()
  for name in given:
    if name not in SHARED and name not in task.fields:
      raise InputError(f'config.{name} means nothing to objective {task.name!r}; remove it.')
  for name, field in task.fields.items():
    _check_field(config, given, name, field)
  for rules in (model.rules, optimizer.rules, run.rules, task.rules):
    for holds, sentence in rules(config):
      if not holds:
        raise InputError(sentence)
  return config


def check_beginning(config):
  """InputError if a run that begins breaks a rule that runs of earlier versions may have broken."""
  of_task = TASKS[config.objective].rules_to_begin(config)
  for holds, sentence in (*optimizer.rules_to_begin(config), *of_task):
    if not holds:
      raise InputError(sentence)


def judged_otherwise(config):
  """['eval.seed=0', ...]: in what its evaluations differ from those that the run would have under
  the fields' past, such as its seed and its masking."""
  task, old = TASKS[config.objective], config.copy_and_resolve_references()
  for name, value in pasts(fields(config.objective)).items():
    if name.startswith(FREE_TO_CHANGE):
      set_field(old, name, value)
  before = task.judged_under(old)
  return [f'{k}={v}' for k, v in task.judged_under(config).items() if v != before[k]]


def _check_field(config, given, name, field):
  if name not in given:
    raise InputError(f'config.{name} is missing from the config file; add it.')
  value = _checked(name, given[name], field.type, field.allowed)
  if value is not given[name]:  # an integer became a float; a ConfigDict is slow to write to
    set_field(config, name, value)


def _checked(name, value, kind, allowed):
  """The value of a field, as its type; InputError if it is of another type or not allowed."""
  if kind is float and isinstance(value, int) and not isinstance(value, bool):
    value = float(value)
  if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
    raise InputError(f'config.{name} is {quoted(value)}, which is not {_a(kind)}.')
  if allowed is str:
    value = tuple(map(str, value))
  if isinstance(allowed, tuple) and value not in allowed:
    raise InputError(f'config.{name} is {quoted(value)}; use one of {", ".join(allowed)}.')
  if isinstance(allowed, str):
    low, high = (float(x) for x in allowed[1:-1].split(','))
    above = value > low if allowed[0] == '(' else value >= low
    below = value < high if allowed[-1] == ')' else value <= high
    if not (above and below):
      raise InputError(f'config.{name} is {quoted(value)}, outside {allowed}.')
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


def nested(values):
  """A ConfigDict of {'model.hidden_size': 128, ...}."""
  out = {}
  for name, value in values.items():
    *blocks, leaf = name.split('.')
    inner = out
    for block in blocks:
      inner = inner.setdefault(block, {})
    inner[leaf] = value
  return ConfigDict(out)


def to_json(config):
  """The text of a config.json."""
  return json.dumps(config.to_dict(), indent=2) + '\n'


def from_json(text):
  """A config from the text that `to_json` wrote, checked again. Fields that were added to the
  library since then get the value that was in effect without them."""

  def tuples(value):  # JSON has lists only
    if isinstance(value, dict):
      return {k: tuples(v) for k, v in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value

  content = {k: v for k, v in json_value(text).items() if k not in BESIDE}
  given = flatten(ConfigDict(tuples(content)))
  known = fields(given['objective']) if given.get('objective') in TASKS else SHARED
  return check(nested(pasts(known) | given))


def fingerprint(config):
  """A short hash of the fields that decide a run's numbers.
  A field at its past value is left out, so that a config keeps the fingerprint that it had before
  the field was added."""
  known = fields(config.objective)
  fixed = {name: x for name, x in _fixed(config).items() if x != known[name].past}
  if TASKS[config.objective].reads_corpus:
    # Without data.eval a share of data.train is held out, so only whether it is set matters. The
    # name is that in the fingerprints of the first runs.
    del fixed['data.eval']
    fixed['data.eval is given'] = bool(config.data.eval)
  return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def changes(old, new):
  """['seed: 0 -> 1', ...]: the differences of two configs in what decides a run's numbers."""
  a, b = _fixed(old), _fixed(new)
  if 'data.eval' in a and 'data.eval' in b and bool(a['data.eval']) == bool(b['data.eval']):
    del a['data.eval'], b['data.eval']
  return [f'{k}: {a.get(k)!r} -> {b.get(k)!r}' for k in a | b if a.get(k) != b.get(k)]


def _fixed(config):
  """{name: value} of the fields that decide a run's numbers. data.eval is one of them where a share
  of the corpus is held out without it."""
  return {
    name: value
    for name, value in (pasts(fields(config.objective)) | flatten(config)).items()
    if not name.startswith(FREE_TO_CHANGE)
    or (name == 'data.eval' and TASKS[config.objective].reads_corpus)
  }


def pasts(known):
  """{name: past value} of those fields of {name: Field} that have one."""
  return {name: field.past for name, field in known.items() if field.past is not NO_PAST}


def _parse(name, text, kind):
  """The text of a command line as a value of the field's type."""
  if kind is str:
    return text
  if kind is bool and text.lower() in ('true', 'false'):
    return text.lower() == 'true'
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError, MemoryError, RecursionError):
    value = text
  if kind is float and isinstance(value, int):
    value = float(value)
  if kind is tuple and isinstance(value, (list, str)):
    value = tuple(value) if isinstance(value, list) else tuple(filter(None, text.split(',')))
  if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
    raise InputError(f'{name}={text:.80} is not {_a(kind)}.')
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
  """'; did you mean X?' if a known name has all words of this one or is similar, else ''."""
  words = lambda text: set(re.split('[._]', text))
  whole = [x for x in known if words(name) <= words(x)]
  near = difflib.get_close_matches(name, whole or list(known), 1, 0 if whole else 0.6)
  return f'; did you mean {near[0]!r}?' if near else ''
