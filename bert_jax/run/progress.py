"""How far a run has come: a bar on a terminal and in a notebook, lines elsewhere."""

import sys
import time

import tqdm

from bert_jax import hosts, notebooks
from bert_jax.cells import in_notebook
from bert_jax.errors import log
from bert_jax.files import Path


class Progress:
  """A bar with loss, tokens/s and ETA on a terminal, and in a notebook, where the curve of the
  run follows it; elsewhere plain lines."""

  def __init__(self, steps: int, start: int, workdir: Path):
    self.workdir, self.draws = workdir, in_notebook() and hosts.first()
    disable = None if hosts.first() else True  # None: shown on a terminal only
    self.bar = tqdm.tqdm(
      total=steps,
      initial=start,
      unit='step',
      dynamic_ncols=True,
      disable=False if self.draws else disable,
      file=sys.stdout if self.draws else sys.stderr,
    )

  @property
  def is_bar(self) -> bool:
    """Is a bar shown, which has the step and the ETA?"""
    return not self.bar.disable

  def update(self, text: str) -> None:
    """Moves on by one step; text: metrics of the last steps, or ''."""
    self.bar.update()
    if text:
      self.bar.set_postfix_str(text)

  def line(self, text: str) -> None:
    """Writes a line with the time of day to the log, above the bar if there is one."""
    text = f'{time.strftime("%H:%M:%S")}  {text}'
    if self.is_bar:
      self.bar.write(text, file=self.bar.fp)
    else:
      log.info(text)

  def close(self) -> None:
    self.bar.close()
    if self.draws:
      self.draws = False  # it is closed at the end of a run, and once more where the run is left
      notebooks.show_curve(self.workdir)
