"""The three properties of faults.py, tried a few times; by hand, many times."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
  'words', ['kills --tries 2 --only prepared', 'files --tries 4', 'inputs --tries 20']
)
def test_nothing_is_silent_a_traceback_or_lost(words):
  command = [sys.executable, 'tests/faults.py', *words.split()]
  out = subprocess.run(command, capture_output=True, text=True, timeout=600)
  last = out.stdout.strip().splitlines()[-1:]
  assert out.returncode == 0 and last and last[0].endswith('; 0 bad'), (
    out.stdout + out.stderr[-2000:]
  )
