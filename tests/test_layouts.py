"""Every objective on every layout: 8 devices compute what one does."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT


@pytest.mark.parametrize(
  'meshes',
  [
    ['2,2,2'],
    pytest.param(['8,1,1', '1,8,1', '4,1,2', '1,4,2', '2,4,1'], marks=pytest.mark.slow),
  ],
  ids=' '.join,
)
def test_eight_devices_compute_what_one_does(meshes):
  env = dict(os.environ, PYTHONPATH=str(ROOT), XLA_FLAGS='--xla_force_host_platform_device_count=8')
  command = [sys.executable, 'tests/layouts.py', '1,1,1', *meshes]
  out = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1200)
  assert out.returncode == 0, out.stderr[-3000:]
  (_, one), *others = map(json.loads, out.stdout.splitlines())
  assert [mesh for mesh, _ in others] == meshes
  for mesh, all_losses in others:
    for task, losses in all_losses.items():
      assert np.isfinite(losses).all() and losses[0] > 0, (mesh, task)
      np.testing.assert_allclose(losses, one[task], rtol=1e-5, err_msg=f'{mesh} {task}')
