"""Benchmarks: each measurement runs, without peers where none is installed. No times."""

import json
import subprocess
import sys

import pytest
from bench import peers


def test_ratios_are_those_of_a_round_and_the_first_round_does_not_count():
  clock = iter([100, 100, 2, 8, 3, 4, 9, 12])
  measured = peers.in_turn({'bert_jax': 0, 'torch': 0}, 3, lambda side: next(clock))
  assert measured == {'bert_jax': [2, 3, 9], 'torch': [8, 4, 12]}
  assert peers.ratios(measured)['ours / torch'] == 0.75


@pytest.mark.parametrize(
  'words',
  ['pretrain --size tiny --steps 1 --seq-length 16'],
)
def test_a_measurement_prints_what_it_measured(words):
  command = [sys.executable, 'tests/bench', *words.split(), '--repeat', '1']
  out = subprocess.run(command, capture_output=True, text=True, timeout=600)
  assert not out.returncode, out.stderr[-2000:]
  results = [json.loads(line) for line in out.stdout.splitlines()]
  assert results and all('what' in line for line in results)
