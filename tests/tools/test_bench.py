"""Benchmarks: ratios, and that a measurement gives its numbers. No times."""

import json
import sys

import pytest
from bench import __main__ as bench
from bench import peers as bench_peers
from running import without_a_model


@pytest.fixture(autouse=True)
def log_as_before(caplog):
  """The benchmark makes the package's log quiet; later tests of this process read it."""
  caplog.set_level('INFO', 'bert_jax')


def lines(capsys):
  return [json.loads(x) for x in capsys.readouterr().out.splitlines() if x[:1] == '{']


def test_ratios_are_those_of_a_round_and_the_first_round_does_not_count():
  clock = iter([100, 100, 2, 8, 3, 4, 9, 12])
  measured = bench_peers.in_turn({'bert_jax': 0, 'torch': 0}, 3, lambda side: next(clock))
  assert measured == {'bert_jax': [2, 3, 9], 'torch': [8, 4, 12]}
  both = {'ours / torch': 0.75, 'ours / torch, least and most': [0.25, 0.75]}
  assert bench_peers.ratios(measured) == both


@pytest.mark.slow
def test_without_peers_there_is_no_ratio(monkeypatch, capsys):
  monkeypatch.setattr(bench_peers, 'installed', lambda *names: False)
  monkeypatch.setitem(sys.modules, 'torch', None)
  small = 'pretrain --size tiny --repeat 1 --steps 1 --batch-size 2 --seq-length 16'
  with without_a_model():
    bench.main(small.split(' '))
  (line,) = lines(capsys)
  assert line['what'] == 'pretrain, tiny, 2 x 16, float32: bert_jax' and line['tokens/s'] > 0
