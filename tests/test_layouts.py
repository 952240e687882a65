"""Every objective on every layout: 8 devices compute what one does."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

# Two encoders, and the loss that compares rows of all devices; all others are slow.
FEW = 'electra,contrastive'
SCANNED = ',optimizer.accumulation=2,model.scan_layers=true'
PRODUCTS = (
  '8,1,1',
  '1,8,1',
  '1,1,8',
  '4,1,2',
  '1,4,2',
  '2,1,4',
  '2,4,1',
  '4,2,1,mesh.slices=2',
  '2,2,2,model.remat=full',
)


@pytest.mark.parametrize(
  'tasks, one, eight',
  [
    (FEW, '1,1,1', ('2,2,2',)),
    pytest.param('', '1,1,1', PRODUCTS, marks=pytest.mark.slow),
    pytest.param('', '1,1,1' + SCANNED, ('2,2,2' + SCANNED,), marks=pytest.mark.slow),
  ],
  ids=['2x2x2', 'all', 'scanned'],
)
def test_eight_devices_compute_what_one_does(tasks, one, eight):
  """Losses and norms of gradients of three steps, dropout on, to 1e-5."""
  flags = '--xla_force_host_platform_device_count=8'
  flags = f'{os.environ.get("XLA_FLAGS", "")} {flags}'
  command = [sys.executable, 'tests/layouts.py', '--tasks', tasks, one, *eight]
  env = dict(os.environ, PYTHONPATH=str(ROOT), XLA_FLAGS=flags)
  out = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1500)
  assert out.returncode == 0, out.stderr[-3000:]
  (_, expected), *others = map(json.loads, out.stdout.splitlines())
  assert [mesh for mesh, _ in others] == list(eight)
  for mesh, all_losses in others:
    for task, losses in all_losses.items():
      assert np.isfinite(losses).all() and losses[0] > 0, (mesh, task)
      np.testing.assert_allclose(losses, expected[task], rtol=1e-5, err_msg=f'{mesh} {task}')
