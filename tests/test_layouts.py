"""Every objective on every layout: 8 devices compute what one does."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from layouts import TASKS

PARTS = ',optimizer.accumulation=2'
NO_CARRY = [task for task in TASKS if task != 'transformer_xl']  # microbatches have none
ALONE = '1,2,2,mesh.gather=layer'  # all axes are XLA's, but one of a single device
SCANNED = PARTS + ',model.scan_layers=true'
PRODUCTS = (
  '8,1,1',
  '1,8,1',
  '1,1,8',
  ALONE,
  '4,1,2',
  '1,4,2',
  '2,1,4',
  '2,4,1',
  '4,2,1,mesh.slices=2',
  '2,2,2,mesh.slices=2,mesh.gather=layer',
  '2,2,2,model.remat=full',
  '2,4,1,mesh.gather=layer',
  '4,2,1,mesh.sums=float32',
  '4,1,2,mesh.sums=compiler',
)


def on_eight(*arguments):
  """What tests/layouts.py prints without any PYTHONPATH, [[mesh, {task: result}], ...]."""
  flags = '--xla_force_host_platform_device_count=8'
  flags = f'{os.environ.get("XLA_FLAGS", "")} {flags}'
  command = [sys.executable, 'tests/layouts.py', *arguments]
  env = {k: x for k, x in os.environ.items() if k != 'PYTHONPATH'} | {'XLA_FLAGS': flags}
  out = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1500)
  assert out.returncode == 0, out.stderr[-3000:]
  return [json.loads(line) for line in out.stdout.splitlines()]


@pytest.mark.parametrize(
  'tasks, one, eight',
  [
    (
      ['configs/pretrain.py'],
      '1,1,1' + PARTS,
      ('2,2,2' + PARTS, '2,2,2,mesh.slices=2' + PARTS, ALONE + PARTS),
    ),
    pytest.param([], '1,1,1', PRODUCTS, marks=pytest.mark.slow),
    pytest.param(NO_CARRY, '1,1,1' + SCANNED, ('2,2,2' + SCANNED,), marks=pytest.mark.slow),
  ],
  ids=['parts', 'all', 'scanned'],
)
def test_eight_devices_compute_what_one_does(tasks, one, eight):
  """Losses and norms of gradients of three steps, dropout on, to 1e-5."""
  (_, expected), *others = on_eight(*(f'--task={task}' for task in tasks), one, *eight)
  assert [mesh for mesh, _ in others] == list(eight)
  for mesh, all_losses in others:
    for task, losses in all_losses.items():
      assert np.isfinite(losses).all() and losses[0] > 0, (mesh, task)
      np.testing.assert_allclose(losses, expected[task], rtol=1e-5, err_msg=f'{mesh} {task}')
