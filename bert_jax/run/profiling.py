"""Traces some steps of a run by jax.profiler: which operations take the time of a step.

    python -m bert_jax.train ... --config.profile=10:13
    pip install xprof && xprof WORKDIR/profile       # or https://ui.perfetto.dev

Here the steps 11, 12 and 13 are traced, in the first process.
"""

import jax
from ml_collections import ConfigDict

from bert_jax import files, hosts
from bert_jax.config.run import profile_window
from bert_jax.copies import place, staged
from bert_jax.errors import InputError, log, writing
from bert_jax.files import Path
from bert_jax.run.speed import Clock
from bert_jax.step import State


def check(config: ConfigDict, steps: int) -> None:
  """InputError if the run ends before the steps to be traced."""
  if (profile_window(config.profile) or (0, 0))[1] > steps:
    fault = f'profile={config.profile} is past the end of the run'
    raise InputError(f'{fault}, which has {steps} steps; name steps up to that.')


class Profile:
  """Traces the steps of config.profile. Call begin(n) before step n + 1, end(n) after step n."""

  def __init__(self, config: ConfigDict, workdir: Path, clock: Clock):
    self.clock, self.folder, self.on = clock, workdir / 'profile', False
    self.start, self.stop = (hosts.first() and profile_window(config.profile)) or (0, 0)

  def begin(self, number: int) -> None:
    if self.start <= number < self.stop and not self.on:
      with self.clock.doing('save'), writing(self.folder):
        files.make_folder(staged(self.folder))
        jax.profiler.start_trace(staged(self.folder))
      self.on = True

  def end(self, number: int, state: State) -> None:
    if self.on and number >= self.stop:
      jax.block_until_ready(state)
      self.close()
      log.info('profile of the steps until %d: %s', number, self.folder)

  def close(self) -> None:
    if self.on:
      self.on = False
      try:
        with self.clock.doing('save'):
          jax.profiler.stop_trace()
          place(staged(self.folder), self.folder)
      except (OSError, RuntimeError) as error:
        log.warning('the profile could not be written: %s', error)
