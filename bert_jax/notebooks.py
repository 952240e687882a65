"""For notebooks (Jupyter, Colab): the machine, mounted folders that outlive it, and the curve of a
run.
"""

import base64
import functools
import importlib
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from bert_jax import cells
from bert_jax.buckets import Bucket
from bert_jax.errors import InputError, Paused, Stopped
from bert_jax.files import Path
from bert_jax.metrics import CROSS_ENTROPIES, LOSSES, Level
from bert_jax.workdir import records
from bert_jax.workdir.recorded import Point

# {kind of a Point: how it is drawn}. The evaluation of all rows is no point of the line.
LOOKS = {'train': dict(color='0.6'), 'eval': dict(color='C0', marker='o', markersize=4)}
LOOKS['whole'] = dict(color='C0', marker='D', linestyle='', markerfacecolor='none')
WHOLE = 'eval, all rows'
# Begins a shell's line: what follows is told to stop when its standard input has come to an end.
ENDS_WITH = 'exec 3<&0 </dev/null; { cat <&3; kill -TERM -$$; } >/dev/null 2>&1 &\n'
DRIVE, DRIVE_MOUNT = 'drive:', '/content/drive'


@functools.cache
def machine() -> str:
  """Returns 'tpu', 'gpu' or 'cpu', and prints what there is. A process of its own looks, since one
  that has used a TPU or GPU keeps it, or most of its memory, from the processes of a sweep."""
  code = 'import jax; x = jax.devices(); print(x[0].platform, len(x), x[0].device_kind)'
  advice = 'if this notebook has used it already, restart the runtime (Runtime > Restart session)'
  out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
  if out.returncode:
    *_, said = (out.stderr + out.stdout).strip().splitlines() or ['no reason was given']
    raise InputError(f'JAX finds no device here ({advice}): {said[:300]}')
  platform, count, kind = out.stdout.strip().splitlines()[-1].split(maxsplit=2)
  cores = f'{os.cpu_count()} cores'
  print(f'{cores}, no TPU and no GPU' if platform == 'cpu' else f'{count} x {kind}, {cores}')
  if platform == 'cpu':  # here and in the runs of a sweep libtpu, if installed, would complain
    os.environ['JAX_PLATFORMS'] = 'cpu'
    jax.config.update('jax_platforms', 'cpu')
  return platform


def folder(name: str) -> Path:
  """The Path of a folder that is to outlive this machine: 'drive:NAME', of your Google Drive, which
  Colab mounts; 'gs://BUCKET/NAME', in a bucket (Colab asks for your permission); or a path.
  InputError for another word before a colon, likely one of these misspelt: ./a:b is a path."""
  if not name.strip():
    raise InputError('FOLDER is empty; name a folder, such as runs/mine.')
  if name.startswith(DRIVE):
    _colab_module('drive').mount(DRIVE_MOUNT)
    return Path(DRIVE_MOUNT, 'MyDrive', name.removeprefix(DRIVE))
  path = Path(name).expanduser()
  if not isinstance(path, Bucket) and (word := re.match(r'\w+:', name)):
    places = f'{DRIVE}NAME is on Google Drive, gs://BUCKET/NAME in a bucket'
    raise InputError(f'{name}: {word[0]} is not known; {places}, ./{name} on this machine.')
  if isinstance(path, Bucket) and path.protocol == 'gs' and 'google.colab' in sys.modules:
    _colab_module('auth').authenticate_user()
  return path


def _colab_module(name):
  try:
    return importlib.import_module(f'google.colab.{name}')
  except ImportError:
    fault = f'{DRIVE}NAME is a folder of Google Drive, which Colab alone can mount'
    raise InputError(f'{fault}; give a path here.') from None


def run(command: str) -> None:
  """Runs a command of the shell and shows its lines. InputError if it fails, so that *Run all* ends
  there, which it does not after a line with `!`. An interruption of the cell is the command's, and
  so is the end of this process, however it comes, which closes the pipe that ENDS_WITH reads."""
  pipes: Any = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'stdin': subprocess.PIPE}
  text: Any = {'encoding': 'utf-8', 'errors': 'replace'}
  whole = ENDS_WITH + command
  process = subprocess.Popen(whole, shell=True, start_new_session=True, **pipes, **text)
  with process:
    lines: Any = process.stdout
    try:
      for line in lines:
        print(line, end='')
      process.wait()  # before its standard input ends: it may write elsewhere
    except KeyboardInterrupt:
      os.killpg(process.pid, signal.SIGINT)
      print(*lines, sep='', end='')  # what it says at its end
      process.wait()
      raise Stopped('the command has ended, see its last line; the same cell goes on') from None
  if process.returncode:
    fault = f'the command has ended with status {process.returncode}, see its last line'
    may_pass = process.returncode == Paused.code
    mend = '' if may_pass else 'mend that (a setting in its cell, and run that), then '
    raise InputError(f'{fault}; {mend}run this cell and those below.')


def show_curve(workdir: Path) -> None:
  if picture := drawn(workdir):
    cells.Output().show(image_png=picture)


def drawn(workdir: Path) -> str:
  """The curve of a run, below a title of its last values, as a PNG in base64. A metric known at
  fewer than two steps is left out; '' if there is no other."""
  run = records.read(workdir)
  judge, facts = run.judge, run.facts
  names = curves_of(run.training, judge, facts.split('train').baselines)
  at = lambda name: {p.step for p in run.points if p.values.get(name) is not None}
  if not (names := [name for name in names if len(at(name)) > 1]):
    return ''
  from matplotlib.figure import Figure

  data = 'eval' if 'eval' in facts.data else 'train'
  split = facts.split(data)
  baselines = {**split.baselines, **split.part}
  levels = {'whole': split.baselines, 'eval': baselines}
  levels['train'] = facts.split('train').baselines
  labels = {'train': f'train, means of {run.log_every or "some"} steps', 'whole': WHOLE}
  labels['eval'] = 'eval, a part of the rows' if split.part else 'eval'
  figure = Figure(figsize=(5.2 * len(names) + 1.8, 3.2), layout='constrained')
  for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names):
    last: dict[str, Any] = {}  # {kind: value}
    for kind, look in LOOKS.items():
      points = [p for p in run.points if p.kind == kind and p.values.get(name) is not None]
      if points := without_jag(points) if kind == 'train' else points:
        values = [point.values[name] for point in points]
        last[kind] = values[-1]
        alone = {'marker': 'o'} if len(points) == 1 else {}  # a line of one point is not seen
        steps = [point.step for point in points]
        axis.plot(steps, values, label=labels.get(kind, kind), **(alone | look))
    if level := baselines.get(name):
      which = f'{level.kind} of {"a part of " * (name in split.part)}{data}, {level.value:.3g}'
      axis.axhline(level.value, color='0.3', ls=':', lw=1, label=which)
    unit = ' (cross-entropy, nats)' if level and level.kind in CROSS_ENTROPIES else ''
    axis.set(xlabel='step', ylabel=name + unit)
    axis.set_title(headline(name, last, levels), fontsize=10)
    axis.spines[['top', 'right']].set_visible(False)
    if axis.get_legend_handles_labels()[1]:
      axis.legend(frameon=False, fontsize=8)
  file = io.BytesIO()
  figure.savefig(file, format='png', dpi=90)
  return base64.b64encode(file.getvalue()).decode()


def curves_of(training: Sequence[Point], judge: str, baselines: Mapping[str, Level]) -> list[str]:
  """The metrics whose curves are drawn: the one by which a run is judged and, if training does not
  tell it, its loss, by its name if it has a baseline, since it has the unit of that."""
  there = {name for point in training for name in point.values}
  losses = [name for name, x in baselines.items() if x.kind in LOSSES and name in there]
  return [judge] if judge in there else [next(iter(losses), 'loss'), judge]


def headline(
  name: str, last: Mapping[str, float], levels: Mapping[str, Mapping[str, Level]]
) -> str:
  """A title of the last values of a metric, {kind of a Point: value}, with their distance to its
  baseline on the same rows, of levels, {kind: {metric: Level}}: 'eval, all rows: mlm 5.68, 0.59
  below unigram (6.27)'."""
  kind = next((x for x in ('whole', 'eval', 'train') if x in last), '')
  said = f'{WHOLE if kind == "whole" else kind}: {name} {last[kind]:.3g}' if kind else name
  if not (level := levels.get(kind, {}).get(name)):
    return said
  gap = last[kind] - level.value
  place = f'{abs(gap):.2f} {"below" if gap < 0 else "above"}' if abs(gap) >= 0.005 else 'at'
  return f'{said}, {place} {level.kind} ({level.value:.3g})'


def without_jag(points: Sequence[Point]) -> Sequence[Point]:
  """Training points without a last one that is the mean of much fewer steps, a jag in a curve."""
  before, last, end = [0, 0, 0, *(point.step for point in points)][-3:]
  is_jag = len(points) > 2 and 2 * (end - last) < last - before
  return points[:-1] if is_jag else points
