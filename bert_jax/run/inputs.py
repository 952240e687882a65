"""The inputs of a run: what is read and checked before anything is compiled or written."""

import dataclasses
import math
import re
from collections.abc import Collection
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import files, sharding
from bert_jax.errors import InputError, counted, listed, log
from bert_jax.files import Path
from bert_jax.metrics import LossLevel
from bert_jax.rows.batches import Batches, batches_of
from bert_jax.run import initialization, memory, teacher, trackers
from bert_jax.step import Program
from bert_jax.tasks import TASKS, teaching
from bert_jax.text.files import parts
from bert_jax.timeline import RATE, Timeline
from bert_jax.tokenizers import run_tokenizer
from bert_jax.workdir import checkpoint, contents, manifest


@dataclasses.dataclass
class Inputs:
  """The inputs of a run, read and checked before anything is compiled or written."""

  config: Any  # complete, with the values that follow from the data
  asked: dict[str, Any]  # {field: the value that the command gave} of those that were filled in
  workdir: Path
  start: initialization.Start
  mesh: jax.sharding.Mesh
  tokenizer: Any
  objective: Any
  sources: dict[str, Any]  # {split: Source}
  batches: Batches
  eval_batches: Batches | None
  steps: int
  timeline: Timeline

  @property
  def in_workdir(self) -> bool:
    """Does the run continue in the workdir that it was stopped in?"""
    return self.start.continues and self.start.folder == self.workdir

  @property
  def log_every(self) -> int:
    """The steps between lines of metrics."""
    return self.config.log.every or min(50, math.ceil(self.steps / 10))

  def is_due(self, step: int, every: int) -> bool:
    """Whether a step is the last one, or one of every so many; every=0: the last one alone."""
    return step == self.steps or (every > 0 and step % every == 0)

  def passes(self, rows: int) -> float:
    """How often so many rows read the training text; rows of pairs are made of it several times."""
    source = self.batches.source
    return rows / len(source) * source.cuts

  @property
  def identity(self) -> dict[str, str]:
    """The fingerprints by which a checkpoint knows its config, its data and its vocabulary."""
    out = {
      'config': config_lib.fingerprint(self.config),
      'data': self.sources['train'].fingerprint,
      'vocabulary': self.tokenizer.fingerprint,
    }
    if 'eval' in self.sources:
      out['eval'] = self.sources['eval'].fingerprint
    if teaching.has_teacher(self.config):
      out['teacher'] = self.objective.fingerprint
    return out


def read_inputs(given: ConfigDict, workdir: Path, set_by_user: Collection[str] = ()) -> Inputs:
  """The Inputs of a run, or an InputError. set_by_user: see train.train."""
  memory.one_heap()  # before JAX begins its threads
  given = config_lib.check(given)
  trackers.check(given)
  checkpoint.check_processes(workdir)
  contents.check_folder(workdir)
  contents.warn_of_others(workdir)
  check_place(given, workdir)
  start = initialization.start_of(given, workdir)
  config = initialization.config_of(start, given, workdir, set_by_user)
  task = TASKS[config.objective]
  mesh = sharding.mesh_of(config, task)
  if start.folder != workdir:
    run_tokenizer.check_path(config)
  if config.steps:  # checked before the data is read; with epochs the data decides the steps
    config_lib.timeline_of(config).rates(0)
  log.info('reading the data')
  folder = start.folder
  if not folder and teaching.has_teacher(config):
    folder = teacher.folder_of(config)
  tokenizer = run_tokenizer.load_or_train(config, folder, lambda: task.texts(config))
  lesson = teacher.lesson(config, task.objective(config, tokenizer), tokenizer)
  sources = task.sources(config, tokenizer)
  config = initialization.with_prior(config, sources['train'])
  objective = lesson(task.objective(config, tokenizer))
  _check_evaluation(config, objective, sources)
  steps = config_lib.step_count(config, len(sources['train']))
  timeline = config_lib.timeline_of(config, steps)
  timeline.check_stages()
  batches = batches_of(
    sources['train'],
    config,
    tokenizer,
    objective,
    mesh,
    seed=config.seed,
    position=timeline.position,
  )
  batches.check()
  eval_batches = None
  if 'eval' in sources:
    eval_batches = batches_of(sources['eval'], config, tokenizer, objective, mesh)
    eval_batches.check()
  inputs = Inputs(
    config=config,
    asked=initialization.asked_for(given, config, workdir),
    workdir=workdir,
    start=start,
    mesh=mesh,
    tokenizer=tokenizer,
    objective=objective,
    sources=sources,
    batches=batches,
    eval_batches=eval_batches,
    steps=steps,
    timeline=timeline,
  )
  _tell_of_length(inputs)
  return inputs


def check_place(config: ConfigDict, workdir: Path) -> None:
  """InputError if a workdir lies in a folder of data, whose files would be others once it runs."""
  above = Path(workdir).expanduser().absolute().parents
  for split in ('train', 'eval'):
    for _, spec in parts(config.data[split], ['{language}']):
      folder, is_recursive, _ = spec.partition('**')
      if is_recursive:
        folder = re.split(r'[^/]*[*?[]', folder)[0]
      if spec and Path(folder).expanduser().absolute() in above:
        raise InputError(
          f'{workdir} lies in data.{split}={spec}, whose files would be others once the run writes '
          'there; name a workdir elsewhere.'
        )


def _check_evaluation(config, objective, sources):
  """InputError if no evaluated example has a label, there is no metric checkpoint.best_metric, or
  best_mode is not its mode."""
  evaluated = sources.get('eval')
  if getattr(evaluated, 'scored', None) == 0:
    raise InputError(
      f'no example of the evaluation has a label, so there is no score ({evaluated.unscored}); '
      'without labels give no evaluation, and ask the trained model.'
    )
  best = config.checkpoint.best_metric
  known = [*objective.metrics, 'loss', *TASKS[config.objective].scores]
  known += [f'f1_{label}' for label in getattr(evaluated, 'labels', ())]
  if not best:
    return
  if best not in known:
    raise InputError(
      f'this objective has no {best} for checkpoint.best_metric; it has {listed(known, 20)}.'
    )
  level = evaluated.baselines.get(best) if 'eval' in sources else None
  is_loss = best in ('loss', *objective.loss_weights) or isinstance(level, LossLevel)
  if is_loss and config.checkpoint.best_mode == 'max':
    raise InputError(
      f'checkpoint.best_metric={best} is good where it is low; set checkpoint.best_mode=min.'
    )


def _tell_of_length(inputs):
  """Says what is unusual in how long a run is, and in what it has."""
  config = inputs.config
  if inputs.eval_batches is None:
    best = config.checkpoint.best_metric
    lost = f', so no step is the best by checkpoint.best_metric={best}' if best else ''
    log.warning('nothing is evaluated: data.eval is empty%s', lost)
  usual = TASKS[config.objective].defaults.get('min_steps', 0)
  if config.epochs and not config.min_steps and inputs.steps < usual:
    log.warning(
      f'{counted(inputs.steps, "steps")} by epochs={config.epochs:g}, as given: few to learn from; '
      f'min_steps={usual} is the least without epochs'
    )
  if not (TASKS[config.objective].reads_corpus or inputs.start.folder):
    log.info('init_from is empty: the model begins with random weights')


# ---- a run that goes on --------------------------------------------------------------------------


def check_continues(inputs: Inputs, program: Program) -> None:
  """InputError unless a run can continue from the checkpoint where it starts."""
  folder: Any = inputs.start.folder
  meta, identity, number = inputs.start.meta, inputs.identity, inputs.start.meta['step']
  if meta['vocabulary'] != identity['vocabulary']:
    raise InputError(f'the vocabulary is not the one of checkpoint {number}; bring it back.')
  if inputs.in_workdir:
    _check_same_run(meta, identity, inputs.steps)
  else:
    if meta['data'] != identity['data']:
      log.info('resume_from: the training data is another one than up to step %d', number)
    if number >= inputs.steps:
      raise InputError(f'config.resume_from is at step {number} already; set steps above {number}.')
  for part in manifest.PARTS:
    manifest.compare(meta, part, manifest.flat(getattr(program.state, part)))
  if inputs.in_workdir and files.exists(folder / contents.CONFIG):
    before = contents.read_config(folder)
    steps = config_lib.step_count(before, len(inputs.sources['train']))
    check_past(inputs.timeline, config_lib.timeline_of(before, steps), number)


def _check_same_run(meta, identity, steps):
  """InputError unless what a run is now is what its checkpoint says."""
  number = meta['step']
  advice = 'bring it back, or use another workdir with config.init_from to start from its weights'
  names = {
    'teacher': 'the teacher',
    'data': 'the training data',
    # The points of one curve, and the best of them, are measured on the same rows.
    'eval': 'the evaluation data',
  }
  for name, words in names.items():
    if name == 'eval' and name not in meta:
      continue  # nothing was evaluated until now
    if meta.get(name) != identity.get(name):
      raise InputError(
        f'{words} is not what it was at checkpoint {number} (fingerprint {identity.get(name)}, '
        f'then {meta.get(name)}); {advice}.'
      )
  if meta['config'] != identity['config']:
    raise InputError(f'{contents.CONFIG} was changed since checkpoint {number}; bring it back.')
  if number > steps:
    raise InputError(
      f'the run has come to step {number} already, and its fields now end it at {steps}; set steps '
      '(or epochs) to as much or more, or use another workdir.'
    )


def check_past(now: Timeline, then: Timeline, step: int) -> None:
  """InputError if a run's steps up to `step` would differ in its Timeline `now` from the one until
  here, `then`; if only the learning rate differs, it is logged."""
  changed = now.changed_before(min(step, then.steps, now.steps), then)
  decisive = [field for field in changed if field != RATE]
  if decisive:
    raise InputError(
      f'the run has come to step {step}, and in one of {now.steps} steps its past would be another '
      f'({", ".join(decisive)}), since what happens at a step depends on the length; leave the '
      'length, or begin another run from this one (config.init_from).'
    )
  if now.steps != then.steps:
    rates = 'its rate of learning is as if it had been so from the start'
    if changed:
      rates = 'from here on its rate of learning is of the new length, until here of the old one'
    log.info('this run now has %d steps, before %d: %s', now.steps, then.steps, rates)
