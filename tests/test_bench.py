"""Benchmarks: what they measure is there, and what cannot be measured is named. No times."""

import json
import sys

import pytest

from bert_jax.tools import bench, bench_all, bench_peers, prepare
from bert_jax.tools.bench_all import Aim


def lines(capsys):
  return [json.loads(x) for x in capsys.readouterr().out.splitlines() if x[:1] == '{']


def test_aims_take_the_worst_of_the_results_that_they_are_about():
  results = [{'what': 'loading, full', 'tokens/s': 3e6}, {'what': 'loading, nsp', 'tokens/s': 9e5},
             {'what': 'loading, odd'}, {'what': 'prepare', 'tokens/s': 1.0}]  # fmt: skip
  fast = Aim('loading', 'tokens/s', least=1e6).verdict(results)
  assert (fast['measured'], fast['verdict'], fast['wanted']) == (9e5, 'missed', 'at least 1e+06')
  assert Aim('loading, full', 'tokens/s', least=1e6).verdict(results)['verdict'] == 'reached'
  slow = Aim('loading', 'tokens/s', most=1e6).verdict(results)
  assert (slow['measured'], slow['verdict'], slow['wanted']) == (3e6, 'missed', 'at most 1e+06')
  assert Aim('loading', 'MB/s', least=1).verdict(results)['measured'] is None


def test_every_measurement_is_a_command_and_every_aim_can_be_reached():
  for command, needs, aims in bench_all.MEASUREMENTS:
    name = command.split()[0]
    assert name in bench.PROGRAMS and name != 'all' and aims
    known = {'input', *bench.PROGRAMS[name][1]}
    assert set(needs) <= known, name
    assert all(aim.least < float('inf') and aim.most > 0 for aim in aims)


SMALL = '--seconds 0.02 --seq-length 32 --batch-size 4 --repeat 1'


def test_all_measures_what_it_has_data_for_and_names_the_rest(
  corpus_file, pretrained, tmp_path, monkeypatch, capfd
):
  corpus, out = str(tmp_path / 'D'), tmp_path / 'out.json'
  vocabulary = str(pretrained[0] / 'vocab.txt')
  prepare.main(['--input', str(corpus_file), '--vocab', vocabulary, '--out', corpus])
  capfd.readouterr()
  aims = [Aim('loading', 'tokens/s', least=1), Aim('loading', 'GB/s', least=1)]
  monkeypatch.setattr(bench_all, 'MEASUREMENTS', ((f'loading {SMALL}', ('corpus',), aims),))
  bench.main(['all'])
  assert [x['verdict'] for x in lines(capfd)] == ['not measured: give --corpus'] * 2
  bench.main(['all', '--corpus', corpus, '--json', str(out), '--repeat', '1'])
  *results, speed, missing = lines(capfd)
  kinds = 'full', 'single, packed', 'nsp', 'sop'
  assert [x['what'] for x in results] == [f'loading, {name} rows of 32' for name in kinds]
  assert all(x['tokens/s'] > 0 and 0.5 < x['filled'] <= 1 for x in results)
  assert speed['measured'] == min(x['tokens/s'] for x in results)
  assert speed['verdict'] == 'reached'
  assert missing['verdict'] == 'not measured: its peer is not installed'
  assert json.loads(out.read_text()) == {'results': results, 'aims': [speed, missing]}
  with pytest.raises(SystemExit):
    bench.main(['all', '--only', 'lodaing'])
  assert 'no measurement; use one of loading' in capfd.readouterr().err


def test_a_measurement_that_fails_is_named(monkeypatch, capfd):
  monkeypatch.setattr(bench_all, 'MEASUREMENTS', (
    ('loading', ('corpus',), [Aim('loading', 'tokens/s', least=1)]),))  # fmt: skip
  bench.main(['all', '--corpus', 'not/there'])
  out, err = capfd.readouterr()
  assert json.loads(out)['verdict'] == 'not measured: it failed, see above'
  assert 'not/there' in err


def test_without_peers_there_is_no_ratio(monkeypatch, capsys):
  monkeypatch.setattr(bench_peers, 'installed', lambda *names: False)
  monkeypatch.setitem(sys.modules, 'torch', None)
  small = ['--size', 'tiny', '--repeat', '1', '--steps', '1', '--batch-size', '2', '--seq-length',
           '16', '--config.model.vocab_size=100']  # fmt: skip
  bench.main(['pretrain', *small])
  (line,) = lines(capsys)
  assert line['what'] == 'pretrain, tiny, 2 x 16, float32: bert_jax' and line['tokens/s'] > 0


@pytest.mark.slow
def test_what_a_training_holds_and_stops_for(capfd):
  bench.main(['memory', '--size', 'tiny', '--repeat', '1'])
  (line,) = lines(capfd)
  assert 0.2 < line['GiB at most'] < 4 and line['s a save stops it'] > 0
  assert line['GB of a checkpoint'] == pytest.approx(0.05, abs=0.02)  # 4.4 M parameters, moments
