"""Uploads an exported model to the Hugging Face Hub, once its card says what only its author knows.

    python -m bert_jax.tools.convert --from W --to hf:OUT --language en
    python -m bert_jax.tools.push OUT --to hf:ORG/NAME --private

It needs `pip install huggingface_hub` and a key that may write: `hf auth login`, or HF_TOKEN.
"""

import re
from collections.abc import Sequence

from bert_jax.command_line import command_line, command_parser
from bert_jax.convert import from_huggingface, hub, model_card
from bert_jax.copies import fetched
from bert_jax.errors import InputError, first_line
from bert_jax.files import Path


def push(folder: Path, name: str, *, private: bool, unfinished: bool, dry_run: bool) -> str:
  """Uploads a Hugging Face folder as the model `name` (ORG/NAME) in one commit and returns its
  address, '' if dry_run. The card's examples name the model as it is called on the Hub."""
  try:
    from huggingface_hub import CommitOperationAdd, HfApi, utils

    utils.validate_repo_id(name)
  except ImportError:
    raise InputError('the Hub needs a package; pip install huggingface_hub.') from None
  except ValueError as error:
    raise InputError(f'{name} is no name on the Hub: {first_line(error)}.') from None
  if not from_huggingface.is_model(folder):
    raise InputError(f'{folder} is no exported model; make one: tools.convert --to hf:OUT.')
  folder = fetched(folder)
  from_huggingface.read(folder)  # a file that is cut short or another model's is an error
  card = folder / 'README.md'
  text = card.read_text() if card.exists() else ''
  if model_card.UNFINISHED in text and not unfinished:
    advice = 'fill in what its first lines name and remove them, or say --unfinished'
    raise InputError(f'{card} lacks what only you know; {advice}.')
  text = text.replace(f"'{folder.absolute().name}'", f"'{name}'")
  paths = {str(x.relative_to(folder)): x for x in sorted(folder.rglob('*')) if x.is_file()}
  paths = {file: x for file, x in paths.items() if not re.search(r'(^|/)\.', file)}
  for file, path in paths.items():
    print(f'{path.stat().st_size:14,} bytes  {file}')
  if dry_run:
    return ''
  content = lambda path: text.encode() if path == card else str(path)
  added = [CommitOperationAdd(file, content(path)) for file, path in paths.items()]
  try:
    api = HfApi()
    address = api.create_repo(name, private=private, exist_ok=True)
    api.create_commit(name, added, commit_message='A model made with bert_jax')
  except Exception as error:  # of the network, the key or the Hub
    advice = 'check the name, the connection and the key (hf auth login)'
    raise InputError(f'{name} was not uploaded ({first_line(error)}); {advice}.') from None
  return str(address)


def main(argv: Sequence[str] | None = None) -> None:
  parser = command_parser('tools.push', __doc__)
  add = parser.add_argument
  add('folder', metavar='OUT', help='an exported model, of tools.convert --to hf:OUT')
  add('--to', required=True, metavar='hf:ORG/NAME', help='its name on the Hub')
  add('--private', action='store_true', help='if it is new there: for you alone')
  add('--unfinished', action='store_true', help='although the card lacks what only you know')
  add('--dry-run', action='store_true', help='check it and list its files; upload nothing')
  args = parser.parse_args(argv)
  with command_line():
    name = args.to.removeprefix(hub.HUB)
    if name == args.to or not hub.NAME.fullmatch(name):
      raise InputError(f'--to {args.to} is no name on the Hub; write --to {hub.HUB}ORG/NAME.')
    how = {x: getattr(args, x) for x in ('private', 'unfinished', 'dry_run')}
    address = push(Path(args.folder), name, **how)
    print(f'done: {address}' if address else f'nothing uploaded; to {name} without --dry-run')


if __name__ == '__main__':
  main()
