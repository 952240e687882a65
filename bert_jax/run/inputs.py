"""The inputs of a run: what is read and checked before anything is compiled or written."""

import dataclasses
import json
import math
from collections.abc import Collection
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import files, sharding
from bert_jax.errors import InputError, log
from bert_jax.files import Path
from bert_jax.metrics import LossLevel
from bert_jax.rows.batches import Batches, batches_of
from bert_jax.run import initialization, profiling, teacher, trackers
from bert_jax.step import Program
from bert_jax.tasks import TASKS, teaching
from bert_jax.tasks.labelled import DEFAULTS
from bert_jax.timeline import RATE, Timeline
from bert_jax.tokenizers import run_tokenizer
from bert_jax.workdir import checkpoint, contents, manifest

FEW_STEPS = DEFAULTS['min_steps']  # with fewer, fine-tuning has usually hardly begun to learn
MANY_PASSES = 100  # over a text; 64 cost little, 1,024 much (T5's paper, table 9)


@dataclasses.dataclass
class Inputs:
  """The inputs of a run, read and checked before anything is compiled or written."""

  config: Any  # complete, with the values that follow from the data
  workdir: Path
  beginning: initialization.Beginning
  mesh: jax.sharding.Mesh
  tokenizer: Any
  objective: Any
  sources: dict[str, Any]  # {split: Source}
  batches: Batches
  eval_batches: Batches | None
  steps: int
  timeline: Timeline
  student: str = ''  # the workdir of the run for which this one is the teacher, trained first

  @property
  def in_workdir(self) -> bool:
    """Does the run continue in the workdir that it was stopped in?"""
    return self.beginning.continues and self.beginning.folder == self.workdir

  @property
  def log_every(self) -> int:
    """The steps between lines of metrics."""
    return self.config.log.every or min(50, math.ceil(self.steps / 10))

  def passes(self, rows: int) -> float:
    """How often so many rows read the training text; rows of pairs are made of it several times."""
    source = self.batches.source
    return rows / len(source) * getattr(source, 'cuts', 1)

  @property
  def identity(self) -> dict[str, str]:
    """The fingerprints by which a checkpoint knows its config, its data and its vocabulary."""
    data, vocabulary = self.sources['train'].fingerprint, self.tokenizer.fingerprint
    out = {'config': config_lib.fingerprint(self.config), 'data': data, 'vocabulary': vocabulary}
    if 'eval' in self.sources:
      out['eval'] = self.sources['eval'].fingerprint
    if teaching.has_teacher(self.config):
      out['teacher'] = self.objective.fingerprint
    if sets := contents.named_sets(self.config, 'train'):
      out['sets'] = json.dumps(sets, sort_keys=True)
    return out


def read_inputs(config: ConfigDict, workdir: Path, set_by_user: Collection[str] = ()) -> Inputs:
  """The Inputs of a run, or an InputError. set_by_user: see train.train."""
  config = config_lib.check(config)
  trackers.check(config)
  checkpoint.check_processes(workdir)
  beginning = initialization.beginning_of(config, workdir)
  config = initialization.adopt_model(config, beginning, set_by_user)
  task = TASKS[config.objective]
  mesh = sharding.mesh_of(config, task)
  goes_on: Any = beginning.folder if beginning.continues else workdir
  config = initialization.resolved(config, goes_on)
  contents.check(workdir, config)
  begins = not (beginning.continues and beginning.folder == workdir)
  if begins:
    run_tokenizer.check_path(config)
  if config.steps:  # checked before the data is read; with epochs the data decides the steps
    config_lib.timeline_of(config).rates(0)
  log.info('reading the data')
  teacher_folder = teacher.folder_of(config) if teaching.has_teacher(config) else None
  folder = beginning.folder or teacher_folder
  tokenizer = run_tokenizer.load_or_train(config, folder, lambda: task.texts(config))
  lesson = teacher.lesson(config, task.objective(config, tokenizer), tokenizer)
  sources = task.sources(config, tokenizer)
  config = initialization.with_prior(config, sources['train'])
  objective = lesson(task.objective(config, tokenizer))
  if config.checkpoint.best_metric not in ('', *objective.metrics, *task.scores):
    known = ', '.join((*objective.metrics, *task.scores))
    raise InputError(f'checkpoint.best_metric is not among the metrics of this objective: {known}.')
  best, levels = config.checkpoint.best_metric, getattr(sources.get('eval'), 'baselines', {})
  is_error = best in objective.loss_weights or isinstance(levels.get(best), LossLevel)
  if begins and is_error and config.checkpoint.best_mode == 'max':
    fault = f'checkpoint.best_metric={best} is good where it is low'
    raise InputError(f'{fault}; set checkpoint.best_mode=min.')
  common = config, tokenizer, objective, mesh
  steps = config_lib.step_count(config, len(sources['train']))
  timeline = config_lib.timeline_of(config, steps)
  timeline.check_stages()
  batches = batches_of(sources['train'], *common, seed=config.seed, position=timeline.position)
  eval_batches = batches_of(sources['eval'], *common) if 'eval' in sources else None
  if eval_batches is None:
    log.warning('nothing is evaluated: data.eval is empty')
  for each in filter(None, (batches, eval_batches)):
    each.check()
  profiling.check(config, steps)
  if not (task.reads_corpus or beginning.folder):
    log.info('init_from is empty: the model begins with random weights')
  if config_lib.is_lengthened(config, rows := len(sources['train'])):
    said = 'the training data fill only %d rows: min_steps=%d makes %.3g epochs in place of %g'
    said += ' (min_steps=0: just these)'
    log.info(said, rows, steps, steps * config.batch_size / rows, config.epochs)
  if config.epochs and steps < FEW_STEPS and not beginning.continues:
    epochs = math.ceil(1.05 * config.epochs * FEW_STEPS / steps)  # 1.05: a margin for other rows
    more = f'min_steps (to {FEW_STEPS}' if config.min_steps else f'epochs (to {epochs}'
    advice = f'raise {more}, say) and perhaps optimizer.learning_rate'
    log.warning('%d steps are few to learn a task: with so little data, %s', steps, advice)
  parts = sources, batches, eval_batches
  out = Inputs(config, workdir, beginning, mesh, tokenizer, objective, *parts, steps, timeline)
  if task.reads_corpus and (passes := out.passes(timeline.rows_before(steps))) > MANY_PASSES:
    advice = 'it teaches little after the first dozens; give more text, or train for fewer steps'
    log.info('%s steps read this text %s times: %s', f'{steps:,}', f'{passes:,.0f}', advice)
  return out


def check_continues(inputs: Inputs, program: Program) -> None:
  """InputError unless a run can continue from its Beginning's checkpoint."""
  beginning: Any = inputs.beginning
  (folder, meta), identity, steps = beginning, inputs.identity, inputs.steps
  number, same_data = meta['step'], meta['data'] == identity['data']
  moves = not inputs.in_workdir
  changes = config_lib.changes(contents.read_config(folder), inputs.config) if moves else []
  back = 'bring it back, or use another workdir with config.init_from to start from its weights'
  wrong = ''
  if 'vocabulary' not in meta:
    run_tokenizer.check_fits(inputs.tokenizer, contents.read_config(folder).model, folder)
  if meta.get('vocabulary', identity['vocabulary']) != identity['vocabulary']:
    wrong = f'the vocabulary is not the one of checkpoint {number}; bring it back'
  elif moves:
    if not same_data:
      log.info('resume_from: the training data is another one than up to step %d', number)
    if number >= steps:
      wrong = f'config.resume_from is at step {number} already; set steps above {number}'
  elif meta.get('teacher') != identity.get('teacher'):
    wrong = f'the teacher is not the one of checkpoint {number}; {back}'
  elif meta.get('sets') != identity.get('sets'):
    now, then = (x.get('sets', 'none') for x in (identity, meta))
    wrong = f'the fingerprint of the training data is {now}, at checkpoint {number} {then}; {back}'
  elif not same_data:
    other = 'is not what it was, or not read as it was by an earlier version,'
    wrong = f'the training data {other} at checkpoint {number}; {back}'
  elif meta.get('eval', identity.get('eval')) != identity.get('eval'):
    # The points of one curve, and the best of them, are measured on the same rows.
    wrong = f'the evaluation data is not what it was at checkpoint {number}; {back}'
  elif meta['config'] not in contents.fingerprints(folder, inputs.config):
    wrong = f'{contents.CONFIG} was changed since checkpoint {number}; bring it back'
  elif number > steps:
    ends = f'the run has come to step {number} already, and its fields now end it at {steps}'
    wrong = f'{ends}; set steps (or epochs) to as much or more'
  if wrong:
    raise InputError(f'{wrong}.')
  try:
    for part in manifest.PARTS:
      manifest.compare(meta, part, manifest.flat(getattr(program.state, part)))
  except InputError:
    shaping = config_lib.fields_affecting('weights') | {'model.scan_layers'}
    decisive = [x for x in changes if x.partition(':')[0] in shaping]
    if not decisive:
      raise
    fault = f'config.resume_from is of another model or optimizer ({"; ".join(decisive[:3])})'
    raise InputError(f'{fault}; set these fields as there, or use config.init_from.') from None
  if not moves and files.exists(folder / contents.CONFIG):
    before = contents.read_config(folder)
    then_steps = config_lib.step_count(before, len(inputs.sources['train']))
    then = config_lib.timeline_of(before, then_steps)
    check_past(inputs.timeline, then, number)


def check_past(now: Timeline, then: Timeline, step: int) -> None:
  """InputError if a run's steps up to `step` would differ in its Timeline `now` from the one until
  here, `then`; if only the learning rate differs, it is logged."""
  changed = now.same_until(then, min(step, then.steps, now.steps))
  if past := [change for change in changed if change.field != RATE]:
    instead = ' '.join(f'--config.{x.field}={then.without_shares(x.field)}' for x in past)
    fault = f'the run has come to step {step}, and in one of {now.steps} steps its past would be'
    other = f'another ({"; ".join(map(str, past))})'
    raise InputError(f'{fault} {other}: give {instead}, as it was, or another workdir.')
  if now.steps != then.steps:
    said = 'its rate of learning is as if it had been so from the start'
    if changed:
      said = 'from here on its rate of learning is of the new length, until here of the old one'
    log.info('this run now has %d steps, before %d: %s', now.steps, then.steps, said)
  for change in now.same_until(then, min(then.steps, now.steps)):
    if change.field != RATE:
      log.info('from here on this run changes otherwise than before: %s', change)
