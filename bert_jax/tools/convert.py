"""Converts weights, accounts for every tensor, and reads the result again before it is done.

    python -m bert_jax.tools.convert --from SRC --to W          # a workdir of ours
    python -m bert_jax.tools.convert --from SRC --to hf:OUT     # a Hugging Face folder

SRC is a workdir, a Hugging Face folder, the path of one inside an installed package, hf:NAME on the
Hub (pip install huggingface_hub), or a folder of a TensorFlow checkpoint.
"""

import contextlib
import dataclasses
import json
import math
import os
import shutil
import signal
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import files, models, step
from bert_jax.buckets import Bucket
from bert_jax.command_line import aligned, command_line, command_parser
from bert_jax.convert import from_huggingface, hub, model_card, to_huggingface
from bert_jax.errors import InputError, log, printable, quoted
from bert_jax.files import Path
from bert_jax.tasks import TASKS
from bert_jax.tools import arguments
from bert_jax.workdir import checkpoint, contents, lock, provenance, records, trained

HF = 'hf:'


def folder_of(target: str) -> Path:
  out = Path(target.removeprefix(HF)).expanduser().absolute()
  if out == Path.cwd() or not out.name:
    raise InputError(f'--to {target} is the folder that this runs in; name a new one.')
  arguments.check_writable(out, '--to')
  if out.exists() and any(out.iterdir()):
    raise InputError(f'{out} is not empty; give --to a new folder.')
  return out


def convert(
  source: str,
  target: str,
  which: str = 'latest',
  positions: int = 0,
  strict: bool = True,
  part: str = '',
  languages: Sequence[str] = (),
  verbose: bool = False,
  begun: Callable[[Path], None] = lambda partial: None,
) -> None:
  """Converts a source to a target (see the module), checks what was written, and reports it.
  part: which model of a run that has several (Family.other_models). languages: codes, for the card.
  verbose: prints the table, and each unused tensor. begun: called with the temporary folder."""
  out = folder_of(target)
  folder, facts, missing = hub.folder(source), {'source': str(source)}, {}
  log.info('reading %s', folder)
  if from_huggingface.is_model(folder):
    trained.refuse_which(source, which)
    weights = from_huggingface.read(folder, positions)
    _report(weights, strict, verbose)
    model, sources = trained.from_weights(folder, weights), weights.sources
  else:
    contents.read_config(folder)
    if not target.startswith(HF):
      raise InputError(f'{source} is a run already; --to hf:OUT makes a Hugging Face folder.')
    if not strict:
      raise InputError(f'{source} is a run, of which all is used; leave out --allow-unused.')
    model, sources = trained.load(source, which, positions), {}
    facts = _facts_of_run(folder, model)
  if part:
    model = trained.part_of(model, part)
  table, tokenizer = table_of(model), model.tokenizer
  with lock.whole_folder(out) as partial:
    begun(partial)
    log.info('writing %s', out)
    if target.startswith(HF):
      facts |= {'name': out.name, 'languages': languages}
      if 'constant' in facts.get('metrics', {}):
        log.warning('the run has collapsed: it gave the same answer to every example')
      names, left_out = export_run(partial, model, facts)
      _tell('left out', left_out, verbose)
      missing = model_card.to_fill_in(model.config, facts)
    else:
      write_workdir(partial, model, facts)
      names = {path: name for path, (name, _) in sources.items()}
    del model
    log.info('reading %s again', out)
    table = {path: table[path] for path in names}
    _compare(table, tokenizer, trained.load(partial), out)
  if verbose:
    _print(table, names, sources)
  print(_done(target, out, table, sources))
  if missing:
    first = f'see the first lines of {out / "README.md"}; then hf upload ORG/NAME {out}'
    print(f'before publishing: fill in {", ".join(missing)}, {first}')


def export_run(
  out: Path, model: trained.Trained, facts: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, str]]:
  """Writes a model as a Hugging Face folder; returns what to_huggingface.write does."""
  objective = TASKS[model.config.objective].objective(model.config, model.tokenizer)
  labels = getattr(objective, 'labels', ())
  facts = {'versions': provenance.versions(), 'name': out.name, **facts, 'labels': labels}
  return to_huggingface.write(out, model, labels, facts | {'losses': tuple(objective.loss_weights)})


def write_workdir(workdir: Path, model: trained.Trained, facts: Mapping[str, Any]) -> None:
  """Writes a model as a workdir to start from, evaluate or predict with, but not to continue."""
  config = model.config
  identity: dict[str, Any] = {'config': config_lib.fingerprint(config), 'data': ''}
  identity |= {'converted': facts, 'vocabulary': model.tokenizer.fingerprint}
  identity |= {'vector': list(model.vector)}
  contents.claim(workdir, config)
  model.tokenizer.save(workdir)
  checkpoints = checkpoint.Checkpoints(workdir, config.checkpoint, identity)
  with contextlib.closing(checkpoints):
    number: Any = np.int32(model.step)  # on the host
    checkpoints.save(step.State(number, model.params, {}, {}), {}, {})
    checkpoints.wait()
  content = {**provenance.versions(), 'commands': [provenance.command()], **facts}
  files.write_sealed(workdir / records.FACTS, content)


def _facts_of_run(folder: Path, model: trained.Trained) -> dict[str, Any]:
  run = records.read(folder)
  for fault in run.faults:
    log.warning('%s', fault)
  known, names = run.facts, ('bert_jax', 'commit', 'python', 'packages')
  versions = {name: known.made_by[name] for name in names if name in known.made_by}
  others = {'data': {split: dataclasses.asdict(x) for split, x in known.data.items()}}
  others |= {'commands': known.commands, 'source': known.source, 'versions': versions}
  out = {'metrics': model.metrics, 'step': model.step, 'is_part': run.is_part_at(model.step)}
  return out | {k: x for k, x in others.items() if x}


def _done(target, out, table, sources):
  """Two lines: what was done, and what to do next with a target."""
  numbers = sum(math.prod(row.shape) for row in table.values())
  others = ', '.join(sorted({dtype for _, dtype in sources.values()} - {'float32'}))
  size = f'{numbers:,} parameters in {len(table)} tensors{" of " * bool(others)}{others}'
  size += ' without padding'
  done = f'done: {size}, read again and compared: {out}\nnext:'
  if not target.startswith(HF):
    return f'{done} bert_jax.predict --model {out}, or train with --config.init_from={out}'
  said = json.loads((out / 'config.json').read_text())
  (architecture,) = said.get('architectures', ['AutoModel'])  # a head may have no class
  loads = f'transformers.{architecture}.from_pretrained'
  if isinstance(out, Bucket):
    return f"{done} copy it to a disk, then {loads}('{out.name}')"
  return f"{done} {loads}('{out}')"


def _tell(kind, reasons, verbose):
  """Prints reasons, {name of a tensor: why}, each once with its first tensor; verbose: all."""
  names = {}
  for name, why in sorted(reasons.items()):
    names.setdefault(name if verbose else why, []).append(name)
  for first, *others in names.values():
    more = f' and {len(others)} more' if others else ''
    print(printable(f'{kind}: {first}{more}: {reasons[first]}'))


def _report(weights, strict, verbose):
  """Prints unused and new tensors; if strict, InputError if a tensor has no place."""
  _tell('ignored', weights.ignored, verbose)
  _tell('not used', weights.unused, verbose)
  _tell('new', weights.new, verbose)
  if weights.unused and strict:
    name, why = min(weights.unused.items())
    some = f'({len(weights.unused)}, for example {name}: {why}); --allow-unused converts the rest'
    raise InputError(f'tensors of the source have no place {some}.')


class Row(NamedTuple):
  """The shape, type and checksum of an array, to compare it bit for bit without keeping it."""

  shape: tuple
  dtype: str
  crc32: int  # of its float32 bytes


def row_of(x: np.ndarray) -> Row:
  return Row(x.shape, str(x.dtype), zlib.crc32(np.ascontiguousarray(x, np.float32).data))


def table_of(model: trained.Trained) -> dict[str, Row]:
  """The parameters of a model as {our path: Row}."""
  shapes = models.ModelConfig(**model.config.model)
  flat = from_huggingface.flatten(jax.device_get(model.params), shapes)
  return {path: row_of(x) for path, x in flat.items()}


def _compare(table, tokenizer, again, out):
  """InputError unless the files, read again, equal the source bit for bit."""
  written = table_of(again)
  wrong = [x for x in sorted(table.keys() | written.keys()) if table.get(x) != written.get(x)]
  if again.tokenizer.fingerprint != tokenizer.fingerprint:
    wrong.append('the vocabulary')
  if wrong:
    raise InputError(f'{wrong[0]} in {out} is not what was to be written; do not use it.')


def _print(table, names, sources):
  rows = [('parameter', 'shape', 'dtype', 'tensor', 'crc32')]
  for path, row in sorted(table.items()):
    shape, (_, dtype) = 'x'.join(map(str, row.shape)), sources.get(path, ('', row.dtype))
    rows.append((path, shape, dtype, names[path], f'{row.crc32:08x}'))
  print('\n'.join(aligned(rows)))


def end_at_once(partial: Path) -> None:
  """Lets Ctrl-C and SIGTERM remove what is half written and end the process at once. The
  interpreter's shutdown is left out, since Orbax's threads crash in it while they write."""

  def end(number, frame):
    for _ in range(9):  # a thread may add to it meanwhile
      shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(lock.beside(partial), ignore_errors=True)
    os.write(sys.stderr.fileno(), b'stopped\n')
    os._exit(128 + number)

  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, end)


def main(argv: Sequence[str] | None = None) -> None:
  parser = command_parser('tools.convert', __doc__)
  add, kinds = parser.add_argument, 'workdir, Hugging Face folder, path of one in a package'
  about = f'{kinds}, hf:NAME on the Hub, or folder of a TensorFlow checkpoint'
  add('--from', dest='source', required=True, metavar='SRC', help=about)
  add('--to', required=True, metavar='DST', help='new workdir; hf:OUT: a new folder')
  add('--which', default='latest', help='of a run: latest, best or a step')
  add('--positions', type=int, help='rows of the position table: cut, or the rest new')
  add('--allow-unused', action='store_true', help='convert although tensors have no place')
  for objective, family in TASKS.items():
    for part in family.other_models:
      about = f'of a run of objective {objective}: its {part}'
      add(f'--{part}', dest='part', action='store_const', const=part, default='', help=about)
  add('--language', default='', metavar='CODE,CODE', help='of its text, for the model card: de,en')
  add('--verbose', action='store_true', help='print a row and a CRC-32 for each parameter')
  args = parser.parse_args(argv)
  with command_line():
    if args.to in ('', HF):
      raise InputError(f'--to {args.to} names no folder; write --to hf:OUT or W.')
    if args.positions is not None and args.positions < 1:
      raise InputError(f'--positions is {args.positions}; give a number of rows, or leave it out.')
    languages = tuple(filter(None, args.language.split(',')))
    if wrong := [code for code in languages if not model_card.CODE.fullmatch(code)]:
      raise InputError(f'--language {quoted(wrong[0])} is no code of a language; write de, en, zh.')
    options = args.positions or 0, not args.allow_unused, args.part, languages, args.verbose
    convert(args.source, args.to, args.which, *options, begun=end_at_once)


if __name__ == '__main__':
  main()
