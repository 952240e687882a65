"""For notebooks (Jupyter, Colab): the machine, mounted folders that outlive it, outputs of a cell,
and the curve of a run.
"""

import base64
import functools
import importlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import InputError
from bert_jax.workdir import records
from bert_jax.workdir.recorded import Point

LOOKS = {'train': dict(color='0.6'), 'eval': dict(color='C0', marker='o', markersize=4)}
DRIVE, BUCKET = 'drive:', 'gs://'  # prefixes of folders that must be mounted
DRIVE_MOUNT, BUCKETS = '/content/drive', '~/buckets'  # where they are mounted
APT = 'https://packages.cloud.google.com/apt'
INSTALL_GCSFUSE = f"""set -e
curl -fsSL {APT}/doc/apt-key.gpg > /usr/share/keyrings/cloud.google.asc
echo "deb [signed-by=/usr/share/keyrings/cloud.google.asc] {APT} gcsfuse-$(lsb_release -cs) main" \
  > /etc/apt/sources.list.d/gcsfuse.list
apt-get -qq update
apt-get -qq install gcsfuse"""
ABOUT_GCSFUSE = 'https://cloud.google.com/storage/docs/cloud-storage-fuse/install'


@functools.cache
def machine() -> str:
  """Returns 'tpu', 'gpu' or 'cpu', and prints what there is. A process of its own looks, since one
  that has used a TPU or GPU keeps it, or most of its memory, from the processes of a sweep."""
  code = 'import jax; x = jax.devices(); print(x[0].platform, len(x), x[0].device_kind)'
  advice = 'if this notebook has used it already, restart the runtime (Runtime > Restart session)'
  said = _run([sys.executable, '-c', code], f'JAX finds no device here ({advice})')
  platform, count, kind = said.strip().splitlines()[-1].split(maxsplit=2)
  cores = f'{os.cpu_count()} cores'
  print(f'{cores}, no TPU and no GPU' if platform == 'cpu' else f'{count} x {kind}, {cores}')
  return platform


def folder(name: str) -> Path:
  """The Path of a folder that is to outlive this machine; mounts Google Drive or the bucket.
  name: 'drive:NAME', a folder of your Google Drive (on Colab); 'gs://BUCKET/NAME', one of a bucket
  (mounted by gcsfuse; on Colab it is installed first); or a path."""
  if name.startswith(DRIVE):
    _colab_module('drive').mount(DRIVE_MOUNT)
    return Path(DRIVE_MOUNT, 'MyDrive', name.removeprefix(DRIVE))
  if not name.startswith(BUCKET):
    if '://' in name:
      raise InputError(f'{name} cannot be mounted; give {BUCKET}BUCKET/FOLDER or {DRIVE}NAME.')
    return Path(name).expanduser()
  bucket, _, inside = name.removeprefix(BUCKET).partition('/')
  if not bucket:
    raise InputError(f'{name} names no bucket; write {BUCKET}BUCKET/FOLDER.')
  point = Path(BUCKETS, bucket).expanduser()
  if not point.is_mount():
    _mount(bucket, point)
  return point / inside


def _mount(bucket, point):
  if 'google.colab' in sys.modules:
    _colab_module('auth').authenticate_user()
    if not shutil.which('gcsfuse'):
      _run(['bash', '-c', INSTALL_GCSFUSE], 'gcsfuse cannot be installed')
  elif not shutil.which('gcsfuse'):
    raise InputError(f'a bucket is mounted by gcsfuse; install it first: {ABOUT_GCSFUSE}')
  point.mkdir(parents=True, exist_ok=True)
  # A checkpoint is written into a folder that is then renamed, which buckets without folders of
  # their own (a hierarchical namespace) allow by this flag only.
  options = ['--implicit-dirs', '--rename-dir-limit=100000']
  _run(['gcsfuse', *options, bucket, str(point)], f'{BUCKET}{bucket} cannot be mounted')


def _run(command, failed):
  """Runs a command and returns its output."""
  out = subprocess.run(command, capture_output=True, text=True)
  if out.returncode:
    said = (out.stderr + out.stdout).strip().splitlines() or ['no reason was given']
    raise InputError(f'{failed}: {said[-1][:300]}')
  return out.stdout


def _colab_module(name):
  """Imports a module of Colab; InputError elsewhere."""
  try:
    return importlib.import_module(f'google.colab.{name}')
  except ImportError:
    fault = f'{DRIVE}NAME is a folder of Google Drive, which Colab alone can mount'
    raise InputError(f'{fault}; give a path here.') from None


class Output:
  """An output of a cell in which each text or picture replaces the one before; a file for tqdm."""

  encoding = 'utf-8'

  def __init__(self):
    from IPython import display

    self.handle: Any = display.display({'text/plain': ''}, raw=True, display_id=True)

  def show(self, kind: str, content: str) -> None:
    self.handle.update({kind: content}, raw=True)

  def write(self, text: str) -> None:
    if text := text.strip('\r\n '):
      self.show('text/plain', text)

  def flush(self) -> None:
    pass


def show_curve(workdir: Path) -> None:
  """Shows the curve of a run in a cell."""
  if picture := drawn(workdir):
    Output().show('image/png', picture)


def drawn(workdir: Path) -> str:
  """The curve of a run as a PNG in base64; '' if it has written less than two lines."""
  run = records.read(workdir)
  if len(run.points) < 2:
    return ''
  from matplotlib.figure import Figure

  judge, facts = run.judge, run.facts
  baselines = facts.split('eval' if 'eval' in facts.data else 'train').baselines
  names = [judge] if any(judge in point.values for point in run.training) else ['loss', judge]
  figure = Figure(figsize=(5.2 * len(names) + 1.8, 3.2), layout='constrained')
  for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names):
    for (kind, look), points in zip(LOOKS.items(), (run.training, run.evaluations)):
      points = [point for point in points if point.values.get(name) is not None]
      if points := without_jag(points) if kind == 'train' else points:
        values = [point.values[name] for point in points]
        axis.plot([point.step for point in points], values, label=kind, **look)
    if name in baselines:
      level, kind = baselines[name]
      axis.axhline(level, color='0.3', ls=':', lw=1, label=kind)
    axis.set(xlabel='step', ylabel=name)
    axis.spines[['top', 'right']].set_visible(False)
    if axis.get_legend_handles_labels()[1]:
      axis.legend(frameon=False, fontsize=8)
  file = io.BytesIO()
  figure.savefig(file, format='png', dpi=90)
  return base64.b64encode(file.getvalue()).decode()


def without_jag(points: Sequence[Point]) -> Sequence[Point]:
  """Training points without the last one, if that is the mean of less than half as many steps as
  the one before it: it would be a jag at the end of a curve."""
  before, last, end = [0, 0, 0, *(point.step for point in points)][-3:]
  is_jag = len(points) > 2 and 2 * (end - last) < last - before
  return points[:-1] if is_jag else points
