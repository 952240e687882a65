"""Prints every field that a config may have, or the fields of one config after its checks.

python -m bert_jax.config | less -S
python -m bert_jax.config --config configs/pretrain.py:size=tiny --config.seed=1
"""

import argparse

from bert_jax.command_line import command_line
from bert_jax.config import SHARED, flatten, load
from bert_jax.tasks import TASKS


def table():
  """A text with a line for each field: name, type, allowed values, default, meaning."""
  rows = [('field', 'type', 'allowed', 'default', 'meaning')]
  rows += [_row(name, field) for name, field in SHARED.items()]
  for task in TASKS.values():
    rows.append((f'-- objective={task.name}', '', '', '', ''))
    rows += [_row(name, field) for name, field in task.fields.items()]
  widths = [max(map(len, column)) for column in zip(*rows)]
  lines = (map(str.ljust, row, widths) for row in rows)
  return '\n'.join('  '.join(cells).rstrip() for cells in lines)


def _row(name, field):
  allowed = field.allowed
  if isinstance(allowed, tuple):
    allowed = '|'.join(choice or "''" for choice in allowed)
  elif not isinstance(allowed, str):
    allowed = 'texts' if allowed is str else ''
  return name, field.type.__name__, allowed, repr(field.default), field.meaning


if __name__ == '__main__':
  parser = argparse.ArgumentParser(
    prog='python -m bert_jax.config',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument('--config', default='', metavar='FILE[:ARGS]')
  parser.add_argument('--workdir', default='', help='not looked at')
  args, overrides = parser.parse_known_args()
  with command_line():
    if args.config:
      print('\n'.join(f'{name}={x!r}' for name, x in flatten(load(args.config, overrides)).items()))
    else:
      print(table())
