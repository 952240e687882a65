"""Prepares a large table of labelled texts for fine-tuning: its token ids are put on the disk.

    python -m bert_jax.tools.prepare_examples --config configs/finetune.py:task=table \
        --config.data.train='big/*.tsv' --config.table.text_column=text --vocab SRC --out E
    python -m bert_jax.train --config configs/finetune.py:task=table --workdir W \
        --config.data.train=E --config.data.eval=dev.tsv --config.table.text_column=text

A run on E begins in seconds and holds little in memory. Texts are kept whole; a run cuts them.
"""

import json
from collections.abc import Sequence

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.command_line import command_line, command_parser
from bert_jax.convert import hub
from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.rows import prepared_examples
from bert_jax.tasks import TASKS
from bert_jax.tools import arguments
from bert_jax.workdir import lock


def main(argv: Sequence[str] | None = None) -> None:
  parser = command_parser('tools.prepare_examples', __doc__)
  add = parser.add_argument
  add('--config', required=True, metavar='FILE[:ARGS]', help='such as configs/finetune.py')
  add('--vocab', required=True, help='folder of a vocabulary, of a run or of released weights')
  add('--out', required=True, help='folder to write')
  args, overrides = parser.parse_known_args(argv)
  with command_line():
    config, out = config_lib.load(args.config, overrides), Path(args.out).expanduser()
    write = TASKS[config.objective].prepare
    if not write:
      able = ' or '.join(name for name, family in TASKS.items() if family.prepare)
      raise InputError(f'--config is of {config.objective}; name one of {able}')
    if not config.data.train or prepared_examples.is_prepared(config.data.train):
      raise InputError('name the table in --config.data.train')
    arguments.check_writable(out)
    with lock.held(out):  # before the folder is looked at, which another process may be filling
      begun = prepared_examples.unfinished(out)
      if {path for path in out.iterdir() if not lock.LOCK.fullmatch(path.name)} - {*begun}:
        raise InputError(f'{out} is there already; give --out a new or an empty folder')
      for path in begun:
        path.unlink()
      meta = write(config, tokenizers.load_folder(hub.folder(args.vocab)), out)
    print(json.dumps({'out': str(out), **meta}, ensure_ascii=False))


if __name__ == '__main__':
  main()
