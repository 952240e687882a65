"""Prints every field that a config may have, or the fields of one config after its checks.

python -m bert_jax.config | less
python -m bert_jax.config --find rate
python -m bert_jax.config configs/pretrain.py:size=tiny --config.seed=1 [--tpus 16]

Values that differ from the objective's default are marked; values that change by step are listed,
and what keeps a new run from beginning.
"""

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence

from ml_collections import ConfigDict

from bert_jax import sharding
from bert_jax.command_line import command_line, command_parser
from bert_jax.config import SHARED, defaults, flatten, load, timeline_of, why_none_begins
from bert_jax.errors import InputError
from bert_jax.field import Field
from bert_jax.tasks import TASKS

COLUMNS = 100


def table(words: str = '') -> str:
  """All fields as text, or those with all the words in name, choices or meaning; InputError if
  none. A field that several objectives have alike stands once, below their names."""
  owners: dict[str, list[str]] = {}
  wanted = lambda *field: all(word in _said(*field).lower() for word in words.lower().split())
  for task in TASKS.values():
    for entry in (_entry(*x) for x in task.fields.items() if wanted(*x)):
      owners.setdefault(entry, []).append(task.name)
  blocks = {'': [_entry(*x) for x in SHARED.items() if wanted(*x)]}
  for entry, names in owners.items():
    blocks.setdefault(_filled(f'-- objective={" | ".join(names)}', 4), []).append(entry)
  if not (parts := [x for title, some in blocks.items() for x in (title, *some) if some and x]):
    fault = f'no field has {words!r} in its name, choices or meaning'
    raise InputError(f'{fault}; without --find all are shown.')
  return '\n'.join(parts)


def _said(name: str, field: Field) -> str:
  choices = field.allowed if isinstance(field.allowed, tuple) else ()
  return ' '.join((name, *choices, field.meaning))


def _entry(name: str, field: Field) -> str:
  allowed = field.allowed
  if isinstance(allowed, tuple):
    allowed = ' | '.join(choice or "''" for choice in allowed)
  elif not isinstance(allowed, str):
    allowed = 'texts' if allowed is str else ''
  facts = filter(None, (name, field.type.__name__, repr(field.default), allowed))
  return _filled('  '.join(facts), 8) + '\n' + _filled('    ' + field.meaning, 4)


def lines(config: ConfigDict, tpus: int = 0) -> Iterator[str]:
  """`name=value  # not DEFAULT` for each field; then the values that change during the run, how it
  divides over so many TPUs, and why no new run begins with it, if so."""
  usual = flatten(defaults(config.objective))
  for name, value in flatten(config).items():
    differs = value != usual[name] and name != 'objective'
    yield _filled(f'{name}={value!r}' + f'  # not {usual[name]!r}' * differs, 4)
  for change in timeline_of(config).changes() if config.steps else ():
    yield f'# {change}'
  if tpus:
    mesh = sharding.check_tpus(tpus, config, TASKS[config.objective])
    rows = config.batch_size // (mesh['data'] * mesh['fsdp'])
    yield f'# divides over {tpus} TPUs: mesh {mesh}, {rows} rows of a batch on each data shard'
  if sentence := why_none_begins(config):
    yield _filled(f'# no new run begins with this: {sentence}', 4)


def shown(args: argparse.Namespace, overrides: Sequence[str]) -> str:
  """What the command prints: a config, which is checked, or the table of fields."""
  if not args.config and args.tpus:
    raise InputError('--tpus is about a config; name one.')
  if not args.config:
    return table(args.find)
  tpus = _number(args.tpus) if args.tpus else 0
  return '\n'.join(lines(load(args.config, overrides), tpus))


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
