"""What a cell of a notebook shows: texts and pictures that replace each other, and log lines."""

import contextlib
import html
import logging
import sys
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import Stopped

FEW = 4  # so many log lines are shown as they are; of more the newest one, which unfolds to all


def in_notebook() -> bool:
  """Is this process the kernel of a notebook?"""
  return hasattr(_shell(), 'kernel')


def _shell() -> Any:
  return getattr(sys.modules.get('IPython'), 'get_ipython', lambda: None)()


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
  """A context, or decorator, in which a notebook shows an interruption as one sentence. One without
  a sentence comes where nothing can be saved: while data are read, or steps compiled."""
  try:
    yield
  except KeyboardInterrupt as error:
    if str(error) or not in_notebook():
      raise
    raise Stopped('at once; the same cell goes on from what is saved, or begins again') from None


class Output:
  """An output of a cell in which each text or picture replaces the one before; a file for tqdm."""

  encoding = 'utf-8'
  newest: Any = None  # the Output that was made last

  def __init__(self):
    from IPython import display

    self.handle: Any = display.display({'text/plain': ''}, raw=True, display_id=True)
    Output.newest = self

  def show(self, **contents: str) -> None:
    """Shows a text, or a picture in base64, in one form or several: text_plain, image_png."""
    self.handle.update({k.replace('_', '/'): x for k, x in contents.items()}, raw=True)

  def write(self, text: str) -> None:
    if text := text.strip('\r\n '):
      self.show(text_plain=text)

  def flush(self) -> None:
    pass


class Log(logging.Handler):
  """Shows log lines in an output of their cell, warnings below the others. What another cell logs,
  or the same cell after another Output such as a bar, has an output of its own."""

  cell = 0  # its number
  out: Any = None

  def emit(self, record: logging.LogRecord) -> None:
    cell = _shell().execution_count
    if self.out is None or (self.cell, self.out) != (cell, Output.newest):
      self.cell, self.out, self.lines, self.warnings = cell, Output(), [], []
    (self.warnings if record.levelno > logging.INFO else self.lines).append(self.format(record))
    self.out.show(text_html=self._html(), text_plain='\n'.join(self.lines + self.warnings))

  def _html(self):
    style = 'style="white-space: pre-wrap"'
    block = lambda lines: f'<pre {style}>{html.escape(chr(10).join(lines))}</pre>'
    if len(self.lines) <= FEW:
      return block(self.lines + self.warnings)
    said = f'{len(self.lines)} lines, the last: <code>{html.escape(self.lines[-1])}</code>'
    return f'<details><summary>{said}</summary>{block(self.lines)}</details>{block(self.warnings)}'
