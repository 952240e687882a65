"""The speed of a run: what the clock counts, the peak of a device, and the FLOPs of a step."""

import math
import os
import struct
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from conftest import ROOT

from bert_jax import metrics
from bert_jax.config import load
from bert_jax.metrics import Level, LossLevel, Mean
from bert_jax.rows.source import Source
from bert_jax.run import evaluation, speed
from bert_jax.run.inputs import Inputs
from bert_jax.run.trackers import TensorBoard


def test_the_clock_counts_training_alone(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(speed.time, 'perf_counter', lambda: now[0])
  monkeypatch.setattr(speed, 'peak_flops', lambda: 1e6)
  clock = speed.Clock(3e5)
  clock.steps, clock.batches, now[0] = 6, 6, 104.0
  with clock.doing('eval'):
    now[0] = 140.0
    with clock.doing('save'):
      now[0] = 150.0
  clock.steps, clock.batches, clock.waited, now[0] = 10, 8, 2.0, 154.0
  # 8 full batches in 8 seconds: 2.4e6 of the 8e6 FLOPs that the device could have done.
  speeds = {'steps': 10, 'steps_per_s': 1.25, 'tokens_per_s': 500, 'data_wait': 0.25, 'mfu': 0.3}
  times = {'step_seconds': 6, 'data_seconds': 2, 'eval_seconds': 36, 'save_seconds': 10}
  assert clock.read(4000) == speeds | times | {'goodput': 6 / 54}
  clock.steps, clock.batches, now[0] = 1, 1, 156.0  # the next reading begins where that one ended
  speeds = {'steps': 1, 'steps_per_s': 0.5, 'tokens_per_s': 15, 'data_wait': 0, 'mfu': 0.15}
  times = {'step_seconds': 2, 'data_seconds': 0, 'eval_seconds': 0, 'save_seconds': 0}
  assert clock.read(30) == speeds | times | {'goodput': 1}
  assert clock.seconds_per_batch() == 56 / 9


@pytest.mark.parametrize(
  'steps, every, expected', [(29, 0, 3), (3, 0, 1), (371, 0, 38), (5000, 0, 50), (29, 7, 7)]
)
def test_a_short_run_has_lines_enough_for_a_curve(steps, every, expected):
  config = load('configs/finetune.py', [f'--config.log.every={every}'])
  given: Any = SimpleNamespace(config=config, steps=steps)
  assert Inputs.log_every.fget(given) == expected  # pyrefly: ignore[missing-attribute]


def test_lines_are_utf8_in_every_locale(tmp_path):
  # Names of metrics have labels in them, and the checksum of the lines is of UTF-8.
  code = r"from bert_jax import files; files.append('a').write('f1_\u00c4\n')"
  plain = {'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'}
  where = {'cwd': tmp_path, 'env': os.environ | plain | {'PYTHONPATH': str(ROOT)}}
  subprocess.run([sys.executable, '-c', code], check=True, **where)
  assert (tmp_path / 'a').read_bytes() == 'f1_Ä\n'.encode()


def test_a_loss_is_told_from_a_score_by_its_baseline_not_by_its_name():
  terms = {'accuracy': Mean(6.0, 2.0), 'hits': Mean(0.9, 3.0), 'nats': Mean(8.0, 5.0)}
  baselines = {'accuracy': LossLevel(4.5, 'unigram'), 'hits': Level(0.25, 'prior')}
  values = metrics.values(terms, baselines)
  assert values == {'accuracy': 3.0, 'hits': 0.3, 'nats': 1.6, 'accuracy_below_unigram': 1.5}
  own = {'replaced_accuracy': 0.87, 'replaced_accuracy_majority': 0.85, 'constant': 1.0}
  assert metrics.own_levels(own) == {'replaced_accuracy': Level(0.85, 'majority')}


# What jax calls a device, and its dense bfloat16 operations by its maker's data sheet, in 1e12 a
# second. A TPU v2 has 46 a chip, which is two devices.
PEAKS = """TPU v2: 23, TPU v3: 61.5, TPU v4: 275, TPU v5 lite: 197, TPU v5: 459, TPU v5p: 459,
TPU v6 lite: 918, TPU v6e: 918, TPU7x: 1153.5, Tesla T4: 65, NVIDIA L4: 121, NVIDIA L40S: nan,
Tesla V100-SXM2-16GB: 125, NVIDIA A100-SXM4-40GB: 312, NVIDIA H100 80GB HBM3: 989,
NVIDIA H200: 989, cpu: nan"""


def test_the_peak_of_a_device_is_that_of_its_data_sheet():
  for kind, peak in (pair.split(': ') for pair in PEAKS.replace('\n', ' ').split(', ')):
    assert speed.peak_flops_of(kind) == pytest.approx(1e12 * float(peak), nan_ok=True), kind


def test_the_peak_is_that_of_all_devices_together(monkeypatch):
  device = SimpleNamespace(device_kind='TPU v4')
  monkeypatch.setattr(jax, 'devices', lambda: [device] * 4)
  monkeypatch.setattr(jax, 'device_count', lambda: 4)
  assert speed.peak_flops() == 1.1e15
  device.device_kind = 'TPU v99'
  assert math.isnan(speed.peak_flops())


def test_event_files_are_written_without_torch(tmp_path):
  """tensorboardX imports torch where it is installed, which takes seconds."""
  (tmp_path / 'torch.py').write_text('raise SystemExit("torch was imported")')
  code = f"""import sys
sys.path.insert(0, {str(tmp_path)!r})
import pathlib
from bert_jax.run.trackers import TensorBoard
TensorBoard(pathlib.Path({str(tmp_path)!r}), 0).close()
try:
  import torch
except SystemExit:
  print('torch can be imported afterwards')"""
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
  assert done.stdout == 'torch can be imported afterwards\n', done.stderr


def test_tensorboard_reads_what_a_run_writes_and_hides_what_it_writes_again(tmp_path):
  """The records of an event file: a length, its checksum, an Event, the checksum of that."""
  from tensorboardX.proto.event_pb2 import Event, SessionLog

  board = TensorBoard(tmp_path, 3)
  board.write(4, 'train', {'loss': 1.5, 'mlm': 2.0})
  board.write(5, 'eval', {'mlm': 2.25})
  (path,) = tmp_path.glob('events.out.tfevents.*')
  data, events = path.read_bytes(), []  # which are on the disk before it is closed
  while data:
    (size,) = struct.unpack('<Q', data[:8])
    events.append(Event.FromString(data[12 : 12 + size]))
    data = data[16 + size :]
  board.close()
  first, begins, *steps = events
  assert first.file_version == 'brain.Event:2'
  assert (begins.step, begins.session_log.status) == (4, SessionLog.START)
  first = lambda event: event.summary.value[0]
  values = [(each.step, first(each).tag, first(each).simple_value) for each in steps]
  assert values == [(4, 'train/loss', 1.5), (4, 'train/mlm', 2.0), (5, 'eval/mlm', 2.25)]


def test_sums_on_the_host_are_exact_beyond_float32():
  many, one = (metrics.host_sum({'x': Mean(np.float32(x), np.float32(1))}) for x in (2**24, 1))
  assert metrics.add(many, one)['x'].total == 2**24 + 1


@pytest.mark.parametrize('value, is_said', [(6.61, True), (6.589, False), (None, False)])
def test_a_run_that_ends_worse_than_a_guess_is_warned_of(value, is_said, caplog):
  """By the level of the rows that were evaluated, which may be a part."""
  source = Source()
  source.baselines = {'mlm': LossLevel(7.5, 'unigram'), 'nsp_accuracy': Level(0.5, 'prior')}
  result = {'nsp_accuracy': 0.4}
  if value is not None:
    result |= {'mlm': value, 'mlm_below_unigram': 6.59 - value}
  evaluation.warn(result, source, [], 'mlm')
  assert ('mlm is 6.610, worse than its unigram, a guess' in caplog.text) == is_said
  evaluation.warn(result, source, [], 'nsp_accuracy')
  assert len(caplog.records) == is_said
