"""What XLA makes of the steps of all objectives on many chips, see tests/programs.py."""

import difflib
import functools
import json
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT
from layouts import TASKS
from programs import golden_of, text

WHOLE = 'transformer_xl', 'contrastive'  # whose batches have no microbatches
EXEMPT = 'contrastive', 'electra'  # which gather vectors, and whose generator draws for all rows
SEGMENTATION_FAULT = -11  # of libtpu 0.0.42.1 at random, while it tries shapes of a product
CASES = [(task, parts) for task in TASKS for parts in ((1,) if task in WHOLE else (1, 4))]
QUICK = 'pretrain', 4
CASES = [pytest.param(*x, marks=[] if x == QUICK else [pytest.mark.slow]) for x in CASES]


@functools.cache
def facts_of(task, parts):
  """What tests/programs.py says of a task with so many microbatches."""
  flags = f'{os.environ.get("XLA_FLAGS", "")} --xla_force_host_platform_device_count=8'
  env = dict(os.environ, PYTHONPATH=str(ROOT), XLA_FLAGS=flags)
  command = [sys.executable, 'tests/programs.py', '--tasks', task, '--parts', str(parts), '--json']
  for _ in range(3):
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    if done.returncode != SEGMENTATION_FAULT:
      break
  assert done.returncode == 0, done.stderr[-3000:]
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize('task, parts', CASES)
def test_a_step_on_many_chips_is_as_it_should_be(task, parts):
  """For each version of the compiler: gradients cross and parameters are gathered once however many
  microbatches there are, no array grows with the square of the rows, products are as precise as
  said, and the state stays."""
  facts = facts_of(task, parts)
  assert facts['kept'] == facts['state'] and not facts['host'] and not facts['square']
  for product in facts['products']:
    # To a CPU all products of float32 are exact.
    assert 'cpu' in facts['by'] or 'f32 x f32 default' not in product, product
    layer = re.match('(attention|feed-forward): (.*)', product)
    assert not layer or layer[2] == 'bf16 x bf16 default', product
  if task not in EXEMPT:
    moved = lambda kinds: sum(x for name, x in facts['moved'].items() if name.startswith(kinds))
    # In bfloat16 once is half of these bytes, or two thirds with what is summed in float32.
    most = 1.3 * facts['parameters']
    assert 0 < moved(('all-reduce', 'reduce-scatter')) < most and moved('all-gather') < most


@pytest.mark.parametrize('task, parts', CASES)
def test_a_step_on_many_chips_is_the_recorded_one(task, parts):
  """By the version of the compiler that the text names; `python tests/programs.py --write`."""
  facts, golden = facts_of(task, parts), golden_of(task, parts).read_text()
  if golden.partition('\n')[0] != facts['by']:
    pytest.skip(f'recorded by {golden.partition(":")[0]}')
  assert text(facts) == golden, ''.join(
    difflib.unified_diff(golden.splitlines(True), text(facts).splitlines(True))
  )
