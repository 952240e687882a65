"""Prints every field that a config may have, or the fields of one config after its checks.

python -m bert_jax.config | less
python -m bert_jax.config configs/pretrain.py:size=tiny --config.seed=1 [--tpus 16]

Values that differ from the objective's default are marked; values that change by step are listed.
"""

import argparse
import sys
import textwrap
from collections.abc import Iterator

from ml_collections import ConfigDict

from bert_jax import sharding
from bert_jax.command_line import command_line, command_parser
from bert_jax.config import SHARED, defaults, flatten, load, timeline_of
from bert_jax.field import Field
from bert_jax.tasks import TASKS

COLUMNS = 100


def table() -> str:
  """All fields as text. One that several objectives have alike stands once, below their names."""
  out = [_entry(name, field) for name, field in SHARED.items()]
  objectives: dict[str, list[str]] = {}  # {entry of a field: the objectives that have it}
  for task in TASKS.values():
    for name, field in task.fields.items():
      objectives.setdefault(_entry(name, field), []).append(task.name)
  entries: dict[str, list[str]] = {}  # {title: entries below it}
  for entry, names in objectives.items():
    entries.setdefault(f'-- objective={" | ".join(names)}', []).append(entry)
  for title, below in entries.items():
    out += [_filled(title, 4), *below]
  return '\n'.join(out)


def _entry(name: str, field: Field) -> str:
  facts = [name, field.type.__name__, repr(field.default)]
  if isinstance(field.allowed, tuple):
    facts.append(' | '.join(choice or "''" for choice in field.allowed))
  elif isinstance(field.allowed, str):
    facts.append(field.allowed)
  elif field.allowed is str:
    facts.append('texts')
  return _filled('  '.join(facts), 8) + '\n' + _filled('    ' + field.meaning, 4)


def lines(config: ConfigDict, tpus: int = 0) -> Iterator[str]:
  """`name=value  # not DEFAULT` for each field; then the values that change during the run, and how
  it divides over so many TPUs."""
  usual = flatten(defaults(config.objective))
  for name, value in flatten(config).items():
    line = f'{name}={value!r}'
    if value != usual[name] and name != 'objective':
      line += f'  # not {usual[name]!r}'
    yield _filled(line, 4)
  if config.steps:
    for change in timeline_of(config).changes():
      yield f'# {change}'
  if tpus:
    mesh = sharding.check_tpus(tpus, config, TASKS[config.objective])
    rows = config.batch_size // (mesh['data'] * mesh['fsdp'])
    yield f'# divides over {tpus} TPUs: mesh {mesh}, {rows} rows of a batch on each data shard'


def _filled(text: str, indent: int) -> str:
  return textwrap.fill(text, COLUMNS, subsequent_indent=' ' * indent, break_on_hyphens=False)


def main() -> None:
  raw = argparse.RawDescriptionHelpFormatter
  parser = command_parser('config', __doc__, description=__doc__, formatter_class=raw)
  add = parser.add_argument
  add('--config', default='', metavar='FILE[:ARGS]', help='may stand alone first')
  add(
    '--tpus',
    default=0,
    type=int,
    metavar='N',
    help='check too that mesh, batch and model fit on N devices of TPUs (chips; of v2, v3 cores)',
  )
  add('--workdir', default='', help='not looked at')
  words = sys.argv[1:]
  if words and not words[0].startswith('-'):
    words = ['--config', *words]
  args, overrides = parser.parse_known_args(words)
  with command_line():
    if args.config:
      print('\n'.join(lines(load(args.config, overrides), args.tpus)))
    else:
      print(table())


if __name__ == '__main__':
  main()
