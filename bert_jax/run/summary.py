"""summary.json of a workdir: how far its run has come, how it ended, its last metrics, and where
its time went.

  state     running (or killed), finished, 'stopped early' (eval.patience), stopped (by a signal or
            max_hours; the same command continues it), failed
  step, steps, objective, seed
  metric    the name of the metric that the run is judged by
  eval, train    the last line of each kind in metrics.jsonl
  best      the step and value that checkpoint.best_metric was best at, if there is one
  seconds   of this process: setup (reading, compiling, restoring), step, data (waiting for it),
            eval, save; goodput: the share of `step`
"""

import contextlib
import json
import logging
import math
import time
from pathlib import Path

from bert_jax import hosts
from bert_jax.errors import first_line
from bert_jax.files import write_whole
from bert_jax.tasks import TASKS

log = logging.getLogger('bert_jax')


NAME = 'summary.json'
ENDED = 'finished', 'stopped early'  # states of a run that has nothing left to do


def ended_at(workdir):
  """The step at which a run has ended by its summary, or None."""
  facts = _read(workdir)
  return facts.get('step') if facts.get('state') in ENDED else None


def state_of(workdir):
  """The state that the summary of a run says, or ''."""
  return _read(workdir).get('state') or ''


def last_step(workdir):
  """The step that a run ends at by its summary, or 0."""
  return _read(workdir).get('steps') or 0


def _read(workdir):
  with contextlib.suppress(OSError, ValueError):
    facts = json.loads((Path(workdir) / NAME).read_text())
    return facts if isinstance(facts, dict) else {}
  return {}


class Summary:
  """Writes summary.json when it is entered, whenever `write` is called, and at the end.
  step, state: of the run, which the training loop sets. setup: seconds before the first step."""

  def __init__(self, run, writer, step, setup):
    self.run, self.writer, self.step, self.setup = run, writer, step, setup
    self.state = 'running'

  def __enter__(self):
    self.write()
    return self

  def __exit__(self, kind, error, _):
    if kind:
      self.state = 'stopped' if issubclass(kind, KeyboardInterrupt) else 'failed'
    self.write({'error': first_line(error)} if self.state == 'failed' else {})

  def write(self, more=()):
    if not hosts.first():
      return
    inputs, best = self.run.inputs, self.run.checkpoints.best
    config, seconds = inputs.config, {'setup': self.setup} | self.run.clock.totals()
    judge = config.checkpoint.best_metric or TASKS[config.objective].main_metric(config)
    facts = {
      'state': self.state,
      'step': self.step,
      'steps': inputs.steps,
      'objective': config.objective,
      'seed': config.seed,
      'metric': judge,
      **dict(more),
      **self.writer.last,
    }
    goodness = best.get('goodness', -math.inf)
    if config.checkpoint.best_metric and math.isfinite(goodness):
      value = goodness if config.checkpoint.best_mode == 'max' else -goodness
      facts['best'] = {'step': best['step'], judge: value}
    facts['seconds'] = {name: round(x, 3) for name, x in seconds.items()}
    facts['goodput'] = seconds['step'] / max(sum(seconds.values()), 1e-9)
    facts['time'] = time.strftime('%Y-%m-%d %H:%M:%S')
    path = Path(inputs.workdir) / NAME
    try:
      write_whole(path, json.dumps(facts, indent=2) + '\n')
    except OSError as error:  # nothing depends on it
      log.warning('%s cannot be written: %s', path, error.strerror or error)
