"""What XLA makes of the steps of all objectives on many chips, see tests/programs.py."""

import difflib
import json
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT
from layouts import TASKS
from programs import golden_of, text

PARTS = 1, 4
WHOLE = 'transformer_xl', 'contrastive'  # whose batches have no microbatches
QUICK = 'pretrain', 'contrastive'
OTHERS = *(task for task in TASKS if task not in QUICK), 'modern'
SLOW = [pytest.param(task, marks=pytest.mark.slow) for task in OTHERS]
SEGMENTATION_FAULT = -11  # of libtpu 0.0.42.1 at random, while it tries shapes of a product


@pytest.fixture(scope='module')
def facts_of():
  """A function that returns what tests/programs.py says of a task, {parts: facts}."""
  kept = {}

  def facts_of(task):
    flags = f'{os.environ.get("XLA_FLAGS", "")} --xla_force_host_platform_device_count=8'
    env = dict(os.environ, PYTHONPATH=str(ROOT), XLA_FLAGS=flags)
    parts = ','.join(map(str, PARTS[:1] if task in WHOLE else PARTS))
    command = [sys.executable, 'tests/programs.py', '--task', task, '--parts', parts, '--json']
    for _ in range(0 if task in kept else 3):
      done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
      if done.returncode != SEGMENTATION_FAULT:
        break
    if task not in kept:
      assert done.returncode == 0, done.stderr[-3000:]
      lines = map(json.loads, done.stdout.splitlines())
      kept[task] = {facts['parts']: facts for facts in lines}
    return kept[task]

  return facts_of


@pytest.mark.parametrize('task', [*QUICK, *SLOW])
def test_a_step_on_many_chips_is_as_it_should_be(facts_of, task):
  """For each version of the compiler: gradients cross once however many microbatches there are, no
  array grows with the square of the rows, products are as precise as said, and the state stays."""
  every = facts_of(task)
  for parts, facts in every.items():
    assert facts['kept'] == facts['state'] and not facts['host'] and not facts['square'], parts
    assert bool(facts['kernels']) == (task == 'modern' and 'TPU' in facts['by']), parts
    for product in facts['products']:
      if facts['kernels'] and product == 'attention: f32 x f32 default':
        continue  # splash's sums of output times gradient, which were bfloat16
      # To a CPU all products of float32 are exact.
      assert 'cpu' in facts['by'] or 'f32 x f32 default' not in product, (parts, product)
      layer = re.match('(attention|feed-forward): (.*)', product)
      # The gradient of scores that positions add is float32, as the gradient of logits is.
      added = ['f32 x bf16 default'] * (task == 'transformer_xl')
      assert not layer or layer[2] in ('bf16 x bf16 default', *added), (parts, product)
  if task not in WHOLE:
    one, several = (every[parts]['moved'] for parts in PARTS)
    total = lambda moved, kind: sum(x for name, x in moved.items() if name.startswith(kind))
    for kind in ('all-reduce', 'reduce-scatter', 'all-gather'):
      assert abs(total(several, kind) - total(one, kind)) < 200, (kind, one, several)  # of scalars


@pytest.mark.parametrize('task', [*QUICK, *SLOW])
def test_a_step_on_many_chips_is_the_recorded_one(facts_of, task):
  """By the version of the compiler that the text names; `python tests/programs.py --write`."""
  for parts, facts in facts_of(task).items():
    golden = golden_of(task, parts).read_text()
    if golden.partition('\n')[0] != facts['by']:
      pytest.skip(f'recorded by {golden.partition(":")[0]}')
    assert text(facts) == golden, ''.join(
      difflib.unified_diff(golden.splitlines(True), text(facts).splitlines(True))
    )
