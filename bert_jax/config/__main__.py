"""Prints every field that a config may have, or the fields of one config after its checks.

python -m bert_jax.config | less
python -m bert_jax.config --find rate
python -m bert_jax.config configs/pretrain.py:size=tiny --config.seed=1 [--find rate] [--tpus 16]

Values that differ from the objective's default are marked; values that change by step are listed.
"""

import argparse
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from ml_collections import ConfigDict

from bert_jax import sharding
from bert_jax.command_line import command_line, command_parser
from bert_jax.config import ALL, SHARED, defaults, flatten, load, timeline_of
from bert_jax.errors import InputError
from bert_jax.field import Field
from bert_jax.tasks import TASKS

COLUMNS = 100


def table(words: str = '') -> str:
  """All fields as text, or those with all the words in name, choices or meaning; InputError if
  none. A field that several objectives have alike stands once, below their names."""
  owners: dict[str, list[str]] = {}
  for task in TASKS.values():
    for name in _found(words, task.fields):
      owners.setdefault(_entry(name, task.fields[name]), []).append(task.name)
  blocks = {'': [_entry(name, SHARED[name]) for name in _found(words, SHARED)]}
  for entry, names in owners.items():
    blocks.setdefault(_filled(f'-- objective={" | ".join(names)}', 4), []).append(entry)
  if not (parts := [x for title, some in blocks.items() for x in (title, *some) if some and x]):
    raise _none_found(words)
  return '\n'.join(parts)


def _found(words: str, fields: Mapping[str, Field]) -> list[str]:
  """The names of the fields that have all the words in name, choices or meaning."""
  said = {}
  for name, field in fields.items():
    choices = field.allowed if isinstance(field.allowed, tuple) else ()
    said[name] = ' '.join((name, *choices, field.meaning)).lower()
  return [name for name, text in said.items() if all(x in text for x in words.lower().split())]


def _none_found(words: str) -> InputError:
  fault = f'no field has {words!r} in its name, choices or meaning'
  return InputError(f'{fault}; without --find all are shown.')


def _entry(name: str, field: Field) -> str:
  allowed = field.allowed
  if isinstance(allowed, tuple):
    allowed = ' | '.join(choice or "''" for choice in allowed)
  elif not isinstance(allowed, str):
    allowed = 'texts' if allowed is str else ''
  facts = filter(None, (name, field.type.__name__, repr(field.default), allowed))
  return _filled('  '.join(facts), 8) + '\n' + _filled('    ' + field.meaning, 4)


def lines(config: ConfigDict, tpus: int = 0, words: str = '') -> Iterator[str]:
  """`name=value  # not DEFAULT` for each field that has the words, see table; then the values that
  change during the run, and how it divides over so many TPUs."""
  usual, values = flatten(defaults(config.objective)), flatten(config)
  if not (found := _found(words, {name: ALL[name] for name in values})):
    raise _none_found(words)
  for name in found:
    value = values[name]
    differs = value != usual[name] and name != 'objective'
    yield _filled(f'{name}={value!r}' + f'  # not {usual[name]!r}' * differs, 4)
  for change in timeline_of(config).changes() if config.steps else ():
    yield f'# {change}'
  if tpus:
    mesh = sharding.check_tpus(tpus, config, TASKS[config.objective])
    rows = config.batch_size // (mesh['data'] * mesh['fsdp'])
    yield f'# divides over {tpus} TPUs: mesh {mesh}, {rows} rows of a batch on each data shard'


def shown(args: argparse.Namespace, overrides: Sequence[str]) -> str:
  """What the command prints: a config, which is checked, or the table of fields."""
  if not args.config and args.tpus:
    raise InputError('--tpus is about a config; name one.')
  if not args.config:
    return table(args.find)
  tpus = _number(args.tpus) if args.tpus else 0
  return '\n'.join(lines(load(args.config, overrides), tpus, args.find))


def _number(tpus: str) -> int:
  """Parses a number of TPU devices, which come alone, as a pair, or four on a host."""
  number = int(tpus) if tpus.isdecimal() and len(tpus) < 9 else 0
  if number not in (1, 2) and (number < 1 or number % 4):
    raise InputError(
      f'--tpus {tpus} is no number of TPUs; use 1, 2 or a multiple of 4, such as 16.'
    )
  return number


def _filled(text: str, indent: int) -> str:
  return textwrap.fill(text, COLUMNS, subsequent_indent=' ' * indent, break_on_hyphens=False)


if __name__ == '__main__':
  settings = dict(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser = command_parser('config', __doc__, **settings)
  parser.add_argument('--config', default='', metavar='FILE[:ARGS]', help='may stand alone first')
  parser.add_argument('--find', default='', metavar='WORDS', help='only fields that are about them')
  on_tpus = 'check too that mesh, batch and model fit on N devices of TPUs (chips; of v2, v3 cores)'
  parser.add_argument('--tpus', default='', metavar='N', help=on_tpus)
  parser.add_argument('--workdir', default='', help='not looked at')
  words = sys.argv[1:]
  is_file = bool(words) and not words[0].startswith('-')
  args, overrides = parser.parse_known_args(['--config', *words] if is_file else words)
  with command_line():
    print(shown(args, overrides))
