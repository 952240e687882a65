"""For notebooks (Jupyter, Colab): the machine, mounted folders that outlive it, and the curve of a
run.
"""

import base64
import functools
import importlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from bert_jax.buckets import Bucket
from bert_jax.cells import in_notebook
from bert_jax.errors import InputError, log
from bert_jax.files import Path, write_whole
from bert_jax.metrics import LOSSES, Level
from bert_jax.workdir import records
from bert_jax.workdir.recorded import Point

# {kind of a Point: (color, marker, line)}. The evaluation of all rows is no point of the line.
LOOKS = {'train': ('0.6', '', '-'), 'eval': ('C0', 'o', '-'), 'whole': ('C0', 'D', '')}
DRIVE, DRIVE_MOUNT = 'drive:', '/content/drive'


@functools.cache
def machine() -> str:
  """Returns 'tpu', 'gpu' or 'cpu', and prints what there is. A process of its own looks, since one
  that has used a TPU or GPU keeps it, or most of its memory, from the processes of a sweep."""
  code = 'import jax; x = jax.devices(); print(x[0].platform, len(x), x[0].device_kind)'
  advice = 'if this notebook has used it already, restart the runtime (Runtime > Restart session)'
  out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
  if out.returncode:
    reason = (out.stderr + out.stdout).strip().splitlines()[-1:]
    raise InputError(f'JAX finds no device here ({advice}): {"".join(reason)[:300]}')
  platform, count, kind = out.stdout.strip().splitlines()[-1].split(maxsplit=2)
  print(f'{count} x {kind}, {os.cpu_count()} cores')
  return platform


def folder(name: str) -> Path:
  """The Path of a folder that is to outlive this machine: 'drive:NAME', of your Google Drive, which
  Colab mounts; 'gs://BUCKET/NAME', in a bucket (Colab asks for your permission); or a path."""
  if not name.strip():
    raise InputError('FOLDER is empty; name a folder, such as runs/mine.')
  if name.startswith(DRIVE):
    _colab_module('drive').mount(DRIVE_MOUNT)
    return Path(DRIVE_MOUNT, 'MyDrive', name.removeprefix(DRIVE))
  path = Path(name).expanduser()
  if isinstance(path, Bucket) and path.protocol == 'gs' and 'google.colab' in sys.modules:
    _colab_module('auth').authenticate_user()
  return path


def _colab_module(name):
  try:
    return importlib.import_module(f'google.colab.{name}')
  except ImportError:
    raise InputError(
      f'{DRIVE}NAME is a folder of Google Drive, which Colab alone can mount; give a path here.'
    ) from None


def show_curve(workdir: Path) -> None:
  """Shows the curve of a run, if it has one, below the cell; outside a notebook it is written to
  curve.png in the workdir."""
  picture = drawn(workdir)
  if picture and in_notebook():
    from IPython import display

    display.display({'image/png': base64.b64encode(picture).decode()}, raw=True)
  elif picture:
    write_whole(workdir / 'curve.png', picture)
    log.info('curve: %s', workdir / 'curve.png')
  else:
    log.warning('there is no curve: no metric is known at two steps; lower log.every')


def drawn(workdir: Path) -> bytes:
  """The curve of a run as a PNG: its loss and the metric by which it is judged, beside their
  baselines. A metric known at fewer than two steps is left out; b'' if there is no other."""
  run = records.read(workdir)
  names = []
  for name in curves_of(run.training, run.judge, run.facts.split('train').baselines):
    if len({point.step for point in run.points if point.values.get(name) is not None}) > 1:
      names.append(name)
  if not names:
    return b''
  from matplotlib.figure import Figure

  figure = Figure(figsize=(6 * len(names), 3.2), layout='constrained')
  for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names):
    title = name
    for kind, (color, marker, line) in LOOKS.items():
      points = [p for p in run.points if p.kind == kind and p.values.get(name) is not None]
      if points:
        steps = [point.step for point in points]
        values = [point.values[name] for point in points]
        axis.plot(steps, values, color=color, marker=marker, linestyle=line, label=kind)
        title = f'{name} {values[-1]:.3g} ({kind})'
    for split in ('train', 'eval'):
      level = run.facts.split(split).baselines.get(name)
      if level:
        label = f'{level.kind} of {split}, {level.value:.3g}'
        axis.axhline(level.value, color=LOOKS[split][0], ls=':', label=label)
    axis.set(xlabel='step', ylabel=name, title=title)
    axis.legend(frameon=False)
  file = io.BytesIO()
  figure.savefig(file, format='png', dpi=90)
  return file.getvalue()


def curves_of(training: Sequence[Point], judge: str, baselines: Mapping[str, Level]) -> list[str]:
  """The metrics whose curves are drawn: the one by which a run is judged and, if training does not
  tell it, its loss, by its name if it has a baseline, since it has the unit of that."""
  logged = set()
  for point in training:
    logged.update(point.values)
  if judge in logged:
    return [judge]
  losses = [name for name, level in baselines.items() if level.kind in LOSSES and name in logged]
  return [losses[0] if losses else 'loss', judge]
