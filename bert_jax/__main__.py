"""The program of an installed package: `bert-jax train ..` is `python -m bert_jax.train ..`, and
`bert-jax convert ..` is `python -m bert_jax.tools.convert ..`."""

import argparse
import os
import sys

from bert_jax import files

COMMANDS = 'train evaluate predict config tools.convert tools.preflight tools.prepare tools.probe'
COMMANDS += ' tools.replay tools.report tools.sweep tools.vocab'


def main() -> None:
  """Becomes the command. As of any `python -m`, a clone in the current folder goes before what is
  installed, which is said if they differ."""
  modules = {module.split('.')[-1]: f'bert_jax.{module}' for module in COMMANDS.split()}
  about = ['bert-jax COMMAND --help says more.', '']
  for name, module in modules.items():
    path = files.PACKAGE.joinpath(*module.split('.')[1:])
    source = path / '__main__.py' if path.is_dir() else path.with_suffix('.py')
    about.append(f'{name:10} {source.read_text().splitlines()[0].strip(chr(34))}')
  raw = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser('bert-jax', epilog='\n'.join(about), formatter_class=raw)
  parser.add_argument('command', choices=modules, metavar='COMMAND')
  parser.add_argument('arguments', nargs=argparse.REMAINDER)
  args = parser.parse_args()
  here = files.Path()
  if files.difference(here):
    print(
      f'the bert_jax of {here.resolve()} runs, another version than in {files.PACKAGE}',
      file=sys.stderr,
    )
  os.execv(sys.executable, [sys.executable, '-m', modules[args.command], *args.arguments])


if __name__ == '__main__':
  main()
