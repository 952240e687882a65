"""How far a run has come: a bar on a terminal, lines elsewhere, a bar and a curve in a notebook."""

import re
import sys
import textwrap
import time
from typing import Any

import tqdm

from bert_jax import hosts, notebooks
from bert_jax.cells import Output, in_notebook
from bert_jax.errors import log
from bert_jax.files import Path

EVERY, SHARE = 2.0, 0.05  # seconds between drawings of a curve; the most of the time they may take
WIDTH = 110  # characters of a line in a notebook, which breaks longer ones inside a word
BAR = '{percentage:3.0f} %|{bar:40}| step {n_fmt} of {total_fmt} [{elapsed}<{remaining}]{desc}'


def opened(steps: int, start: int, workdir: Path) -> 'Progress':
  """Opens the display of a run from step `start` on: a Live in a notebook, else a Progress."""
  live = in_notebook() and hosts.first()
  return Live(steps, start, workdir) if live else Progress(steps, start)


class Progress:
  """A bar with loss, tokens/s, MFU and ETA on a terminal; elsewhere plain lines."""

  def __init__(self, steps: int, start: int):
    hidden = None if hosts.first() else True  # None: shown on a terminal only
    looks: dict[str, Any] = {'unit': 'step', 'dynamic_ncols': True, 'disable': hidden}
    self.bar = tqdm.tqdm(total=steps, initial=start, **looks)

  @property
  def is_bar(self) -> bool:
    """Is a bar shown, which has the step and the ETA?"""
    return not self.bar.disable

  def update(self, text: str) -> None:
    """Moves on by one step; text: metrics of the last steps, or ''."""
    self.bar.update()
    if text:
      self.bar.set_postfix_str(text)

  def go_back(self, step: int) -> None:
    self.bar.n = step
    self.bar.refresh()

  def line(self, text: str) -> None:
    """Writes a line with the time of day to the log, above the bar if there is one."""
    text = f'{time.strftime("%H:%M:%S")}  {text}'
    if self.is_bar:
      self.bar.write(text, file=sys.stderr)
    else:
      log.info(text)

  def busy(self, text: str) -> None:
    """Notes what is done in place of steps, for which no ETA is known."""

  def close(self) -> None:
    self.bar.close()


class Live(Progress):
  """The progress of a run in a notebook: a bar, the last metrics, and the curve of the run."""

  def __init__(self, steps: int, start: int, workdir: Path):
    self.workdir, self.said, self.next = workdir, {}, time.monotonic()
    out, self.curve = Output(), Output()
    looks: dict[str, Any] = {'bar_format': BAR, 'mininterval': 0.3, 'desc': ''}
    self.bar = tqdm.tqdm(total=steps, initial=start, file=out, **looks)

  def update(self, text: str) -> None:
    self.bar.update()
    if text:
      self._say('train', text)

  def line(self, text: str) -> None:
    """Shows the metrics of an evaluation; the text begins with its step."""
    self.said.pop('now', '')
    self._say('eval', text)

  def busy(self, text: str) -> None:
    self._say('now', text)

  def _say(self, kind, text):
    self.said[kind] = folded(f'{kind:6}{text}' if kind == 'train' else text)
    self.bar.set_description_str(''.join(f'\n{x}' for x in self.said.values()), refresh=True)
    if time.monotonic() >= self.next:
      self._draw()

  def _draw(self):
    import matplotlib.figure  # noqa: F401  # outside of the time that is measured

    started = time.monotonic()
    if picture := notebooks.drawn(self.workdir):
      self.curve.show(image_png=picture)
    now = time.monotonic()
    self.next = now + max(EVERY, (now - started) / SHARE)

  def close(self) -> None:
    if self.is_bar:  # else it is closed already
      self.bar.close()
      self._draw()


def folded(text: str) -> str:
  """A line of metrics, with two spaces between them, as lines of WIDTH that break between two."""
  whole = re.sub('(?<! ) (?! )', '\0', text)
  lines = textwrap.wrap(whole, WIDTH, subsequent_indent='  ', break_on_hyphens=False)
  return '\n'.join(lines).replace('\0', ' ')
