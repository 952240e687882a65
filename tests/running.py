"""What tests of whole runs share: a run's lines and files, what harms and what stops it."""

import contextlib
import dataclasses
import json
import resource
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import drawn

from bert_jax import sharding, step
from bert_jax.metrics import mean
from bert_jax.objectives import base
from bert_jax.objectives.encode import row_spec
from bert_jax.run import setup, speed, warm_start
from bert_jax.run.inputs import check_continues, read_inputs
from bert_jax.tasks import TASKS
from bert_jax.tools import convert
from bert_jax.workdir import trained


def same_bits(a, b):
  flat, other = (jax.tree_util.tree_flatten_with_path(x)[0] for x in (a, b))
  for (path, x), (path2, y) in zip(flat, other, strict=True):
    assert path == path2
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y), str(path))


# ---- what a workdir holds ------------------------------------------------------------------------


def lines(workdir, split=''):
  """The lines of metrics.jsonl, of one split or all."""
  out = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  return [line for line in out if split in ('', line['split'])]


def train_lines(workdir, split='train'):
  """The lines of the training, or of another split or all, without what a clock measures."""
  measured = {*speed.MEASURED, 'steps'}
  return [{k: v for k, v in x.items() if k not in measured} for x in lines(workdir, split)]


def saved(workdir):
  """The steps of the checkpoints."""
  return sorted(int(p.name) for p in (workdir / 'checkpoints').iterdir() if p.name.isdigit())


def bytes_of(folder):
  return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def read_weights(config, workdir):
  """(Inputs, parameters) of a run that begins from others: nothing is compiled or written."""
  inputs = read_inputs(config, workdir)
  given = inputs.start, inputs.config, inputs.objective, inputs.mesh
  return inputs, warm_start.load_weights(*given)[0]


def goes_on(config, workdir, set_by_user=()):
  """The Inputs of a run that can go on from a checkpoint, as it finds before it compiles."""
  inputs = read_inputs(config, workdir, set_by_user)
  given = inputs.config, inputs.objective, inputs.mesh, inputs.timeline
  check_continues(inputs, step.program(*given))
  return inputs


def begun(config, workdir, number):
  """Writes the workdir of a run that was stopped after a step, with the parameters that it began
  with: nothing is trained."""
  inputs = read_inputs(config, workdir)
  program = step.program(inputs.config, inputs.objective, inputs.mesh, inputs.timeline)
  with jax.set_mesh(inputs.mesh), sharding.activation_rules():
    state = setup.finish_state(inputs, setup.begin_state(inputs, program))
    with contextlib.closing(setup.open_workdir(inputs)) as checkpoints:
      checkpoints.save(dataclasses.replace(state, step=state.step + number), {}, {})
      checkpoints.wait()


def untrained(config, workdir, seed=1):
  """The workdir of a model whose weights are drawn: to start from, to evaluate or to ask."""
  inputs = read_inputs(config, workdir)
  params = drawn(inputs.objective.init, seed=seed)
  model = trained.Trained(inputs.config, inputs.tokenizer, params, step=4)
  convert.write_workdir(workdir, model, {})
  return workdir


class Line(base.Objective):
  """A line of two numbers in place of BERT."""

  loss_weights = {'mlm': 1.0}
  metrics = ('mlm',)

  def __init__(self, length):
    self.length = length

  def spec(self, batch_size):
    return row_spec(batch_size, self.length)

  def init(self, rng):
    return {'kernel': jnp.ones(1), 'bias': jnp.zeros(1)}

  def terms(self, params, batch, rng, train, carry=None, constants=None):
    x_B = batch['input_ids'].mean(axis=1) / 100
    error_B = params['kernel'] * x_B + params['bias'] - 1
    return {'mlm': mean(error_B**2, jnp.ones_like(x_B))}, carry


class Wide(Line):
  """The same with a kernel that is large enough to be split between devices."""

  def init(self, rng):
    return {'kernel': jnp.ones((128, 256)), 'bias': jnp.zeros(1)}

  def terms(self, params, batch, *rest, **options):
    return super().terms(params | {'kernel': params['kernel'].mean()}, batch, *rest, **options)


@contextlib.contextmanager
def without_a_model(kind=Line):
  """While it lasts BERT is a Line, which compiles at once: for what a run does beside a step."""
  line = lambda config, tokenizer: kind(config.data.seq_length)
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(TASKS, 'mlm_nsp', dataclasses.replace(TASKS['mlm_nsp'], objective=line))
    yield


# ---- what harms it -------------------------------------------------------------------------------


def edit(path, change):
  """Changes the JSON of a file: a function returns the new content, or None and changes it."""
  content = json.loads(path.read_text())
  path.write_text(json.dumps(change(content) or content))


def flipped(data, place):
  """Bytes in which the bit at a place is another."""
  data = bytearray(data)
  data[place // 8] ^= 1 << place % 8
  return bytes(data)


def flip_a_bit(folder):
  """In the middle of the largest file: array data."""
  path = max((p for p in folder.rglob('*') if p.is_file()), key=lambda p: p.stat().st_size)
  path.write_bytes(flipped(path.read_bytes(), path.stat().st_size * 4 + 2))


@contextlib.contextmanager
def files_up_to(size):
  """While it lasts no file can grow longer, as on a full disk."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, old)
