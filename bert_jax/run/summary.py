"""Writes summary.json of a workdir: how far its run has come, how it ended, its last metrics, and
where its time went.

  state     running (or killed), finished, 'stopped early' (eval.patience), stopped (by a signal or
            max_hours; the same command continues it), failed
  metric    the name of the metric that the run is judged by
  eval, whole, train    the last line of each kind in metrics.jsonl: `whole` counts, else `eval`
  bytes, crc32   the length of metrics.jsonl, and its checksum
  best      the step and value that checkpoint.best_metric was best at, if there is one
  seconds   of this process: setup (reading, compiling, restoring), step, data (waiting for it),
            eval, save; goodput: the share of `step`
"""

import math
import time
from typing import Any

from bert_jax import config as config_lib
from bert_jax import files, hosts
from bert_jax.errors import first_line, log
from bert_jax.run.log import Writer
from bert_jax.run.setup import Run
from bert_jax.tasks import TASKS
from bert_jax.workdir import records


class Summary:
  """Writes summary.json when it is entered, when something was saved, and at the end."""

  def __init__(self, run: Run, writer: Writer, setup: float):
    self.run, self.writer, self.setup = run, writer, setup
    self.state = 'running'

  def __enter__(self) -> 'Summary':
    self.write()
    return self

  def __exit__(self, kind: Any, error: Any, _: Any) -> None:
    if kind:
      self.state = 'stopped' if issubclass(kind, KeyboardInterrupt) else 'failed'
    self.write(first_line(error) if self.state == 'failed' else '')

  def maybe(self, step: int) -> None:
    """Writes summary.json if there is a checkpoint or an evaluation of this step."""
    evaluated = self.writer.last.get('eval', {}).get('step')
    if step in (self.run.checkpoints.newest.get('step'), evaluated):
      self.write()

  def write(self, error: str = '') -> None:
    if not hosts.first():
      return
    inputs, best = self.run.inputs, self.run.checkpoints.best
    config, seconds = inputs.config, {'setup': self.setup} | self.run.clock.totals()
    judge = TASKS[config.objective].judge(config).metric
    facts: dict[str, Any] = dict(state=self.state, step=self.run.tally.step, steps=inputs.steps)
    facts |= dict(objective=config.objective, seed=config.seed, metric=judge)
    facts |= dict(zip(('bytes', 'crc32'), self.writer.written))
    facts |= {'config': config_lib.fingerprint(config)} | ({'error': error} if error else {})
    facts |= self.writer.last
    goodness = best['goodness']
    if config.checkpoint.best_metric and math.isfinite(goodness):
      value = goodness if config.checkpoint.best_mode == 'max' else -goodness
      facts['best'] = {'step': best['step'], judge: value}
    facts['seconds'] = {name: round(x, 3) for name, x in seconds.items()}
    facts['goodput'] = seconds['step'] / max(sum(seconds.values()), 1e-9)
    facts['time'] = time.strftime('%Y-%m-%d %H:%M:%S')
    path = inputs.workdir / records.SUMMARY
    try:
      files.write_sealed(path, facts)
    except OSError as error:  # nothing depends on it
      log.warning('%s cannot be written: %s', path, error.strerror or error)
