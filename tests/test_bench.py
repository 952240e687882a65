"""Benchmarks: what they measure is there, and what cannot be measured is named. No times."""

import contextlib
import io
import json
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from bench import __main__ as bench
from bench import data as bench_data
from bench import everything as bench_all
from bench import peers as bench_peers
from bench.peers import spread
from running import without_a_model

from bert_jax import config as c
from bert_jax.errors import InputError
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.workdir import checkpoint


@pytest.fixture(autouse=True)
def log_as_before(caplog):
  """The benchmark makes the package's log quiet; later tests of this process read it."""
  caplog.set_level('INFO', 'bert_jax')


def lines(capsys):
  return [json.loads(x) for x in capsys.readouterr().out.splitlines() if x[:1] == '{']


def test_aims_take_the_worst_of_the_results_that_they_are_about():
  results = [
    {'what': 'loading, full', 'tokens/s': 3e6},
    {'what': 'loading, nsp', 'tokens/s': 9e5},
    {'what': 'loading, odd'},
    {'what': 'prepare', 'tokens/s': 1.0},
  ]
  measured = [{'what': 'prepare', **spread('tokens/s', [3, 1, 9])}]
  for aim, found, expected in (
    ('loading | tokens/s >= 1e6', results, (9e5, 'missed', '>= 1e6')),
    ('loading, full | tokens/s >= 1e6', results, (3e6, 'reached', '>= 1e6')),
    ('loading | tokens/s <= 1e6', results, (3e6, 'missed', '<= 1e6')),
    ('loading | MB/s >= 1', results, (None, 'not measured: give --corpus', '>= 1')),
    ('prepare | tokens/s', measured, (3, 'known', '')),
  ):
    said = bench_all.verdict(aim, found, 'give --corpus')
    assert (said['measured'], said['verdict'], said['wanted']) == expected
  assert said['least and most'] == [1, 9]


def test_ratios_are_those_of_a_round_and_the_first_round_does_not_count():
  clock = iter([100, 100, 2, 8, 3, 4, 9, 12])
  measured = bench_peers.in_turn({'bert_jax': 0, 'torch': 0}, 3, lambda side: next(clock))
  assert measured == {'bert_jax': [2, 3, 9], 'torch': [8, 4, 12]}
  both = {'ours / torch': 0.75, 'ours / torch, least and most': [0.25, 0.75]}
  assert bench_peers.ratios(measured) == both


def test_every_measurement_is_a_command_and_every_aim_can_be_reached():
  for command, needs, *aims in bench_all.MEASUREMENTS:
    name, parts = command.split()[0], [bench_all.AIM.fullmatch(aim) for aim in aims]
    assert name in bench.PROGRAMS and name != 'all' and parts
    known = {'input', *bench_all.HERE, *bench.PROGRAMS[name][1]}
    assert set(needs.split()) <= known, name
    assert all(0 <= float(part[4] or 0) < float('inf') for part in parts)


def run_here(command, **_):
  """In place of subprocess.run: a measurement, of which some processes are a part."""
  with contextlib.redirect_stdout(io.StringIO()) as out:
    bench.main(command[2:])
  return types.SimpleNamespace(returncode=0, stdout=out.getvalue())


SMALL = '--seconds 0.02 --seq-length 32 --batch-size 4 --processes 1'


def test_all_measures_what_it_has_data_for_and_names_the_rest(
  corpus_file, pretrained, tmp_path, monkeypatch, capfd
):
  corpus, out = str(tmp_path / 'D'), tmp_path / 'out.json'
  vocabulary = str(pretrained[0] / 'vocab.txt')
  given = ['--input', str(corpus_file), '--vocab', vocabulary, '--out', corpus]
  prepare.main([*given, '--processes', '1'])
  capfd.readouterr()
  aims = [f'loading | {x} >= 1' for x in ('tokens/s', 'GB/s', 'ours / torch')]
  monkeypatch.setattr(bench_all, 'MEASUREMENTS', [(f'loading {SMALL}', 'corpus', *aims)])
  monkeypatch.setattr(bench_peers, 'installed', lambda name: name not in ('torch', 'onnx'))
  monkeypatch.setattr(bench_all.subprocess, 'run', run_here)
  bench.main(['all'])
  assert [x['verdict'] for x in lines(capfd)] == ['not measured: give --corpus'] * 3
  bench.main(['all', '--corpus', corpus, '--json', str(out), '--repeat', '1'])
  *results, speed, unknown, missing = lines(capfd)
  kinds = 'full', 'single, packed', 'nsp', 'sop'
  names = [f'loading, one core, {kind} rows of 32' for kind in kinds]
  assert [x['what'] for x in results] == names
  for x in results:
    least, most = x['tokens/s, least and most']
    assert 0 < least <= x['tokens/s'] == x['tokens/s a core'] <= most and 0.5 < x['filled'] <= 1
  assert speed['measured'] == min(x['tokens/s'] for x in results)
  assert speed['verdict'] == 'reached'
  assert unknown['verdict'] == 'not measured: no result has it'
  assert missing['verdict'] == 'not measured: its peer is not installed: pip install torch onnx'
  kept = {'results': results, 'aims': [speed, unknown, missing], 'failed': []}
  assert json.loads(out.read_text()) == kept
  with pytest.raises(SystemExit):
    bench.main(['all', '--only', 'lodaing'])
  assert 'no measurement; use one of loading' in capfd.readouterr().err


def test_a_measurement_that_fails_is_named_and_the_others_go_on(monkeypatch, tmp_path, capfd):
  """One that needs what is not here is no failure."""
  ran = []

  def run(command, **_):
    ran.append(command[2])
    return types.SimpleNamespace(returncode=ran[-1] == 'start', stdout='{"what": "x", "s": 2.0}\n')

  monkeypatch.setattr(bench_all.subprocess, 'run', run)
  monkeypatch.setitem(bench_all.HERE, 'gpu', (lambda: False, 'there is no GPU here'))
  aims = 'x | s <= 3', 'x | MB <= 1'
  commands = ('pretrain', 'gpu', *aims), ('start', '', *aims), ('waiting', '', *aims)
  monkeypatch.setattr(bench_all, 'MEASUREMENTS', commands)
  monkeypatch.setattr(bench_peers, 'PEERS', ())
  with pytest.raises(SystemExit) as ended:
    bench.main(['all', '--json', str(tmp_path / 'out.json')])
  *aims, failed = [x for x in lines(capfd) if 'what' not in x]
  assert ended.value.code == 1 and failed == {'failed': ['start']} and ran == ['start', 'waiting']
  verdicts = ['not measured: there is no GPU here'] * 2
  verdicts += 'reached', 'not measured: it failed, see above'
  verdicts += 'reached', 'not measured: no result has it'
  assert [x['verdict'] for x in aims] == verdicts
  assert json.loads((tmp_path / 'out.json').read_text())['failed'] == ['start']


def test_a_process_that_fails_ends_its_measurement():
  process = subprocess.Popen(['false', '', '_loading'], stdout=subprocess.PIPE, text=True)
  with pytest.raises(InputError, match='loading failed; see above'):
    bench_peers.results_of(process)


def test_waiting_is_of_the_lines_after_the_first(monkeypatch, capsys):
  trained = []

  def train(config, folder):
    trained.append(c.check(config).corpus.rows)
    lines = [{'split': 'train', 'data_wait': x, 'tokens_per_s': 1 / x} for x in (0.9, 0.1, 0.5)]
    lines.insert(1, {'split': 'eval'})
    (Path(folder) / 'metrics.jsonl').write_text(''.join(json.dumps(x) + '\n' for x in lines))

  monkeypatch.setattr(bench_data.train, 'train', train)
  monkeypatch.setattr(bench_data.prepared, 'is_prepared', lambda spec: spec == 'D')
  bench.main(['waiting', '--corpus', 'D', '--repeat', '2'])
  found = lines(capsys)
  assert trained == ['full', 'single', 'nsp', 'sop'] and len(found) == 4
  assert found[2]['what'] == 'waiting, tiny, nsp rows, 32 x 128'
  for x in found:
    assert x['share of the time'] == 0.3 and x['tokens/s, least and most'] == [2, 10]


def test_memory_is_of_a_training_that_saves_once_more_than_it_is_asked(monkeypatch, capsys):
  """Here a save takes twice as long each time, and the first does not count."""
  waits = iter((0.0, 0.02, 0.04))

  def train(config, folder):
    assert c.check(config).steps == 3 * config.checkpoint.every
    for _ in range(3):
      checkpoint.Checkpoints.save(None, {})
    return {'params': np.zeros(500_000_000, np.uint8)}, {}

  monkeypatch.setattr(checkpoint.Checkpoints, 'save', lambda *_: time.sleep(next(waits)))
  monkeypatch.setattr(bench_data.train, 'train', train)
  monkeypatch.setattr(bench_peers, 'in_process', lambda name, x: bench.IN_A_PROCESS[name](x))
  monkeypatch.setattr(bench_peers, 'results_of', list)
  bench.main(['memory', '--size', 'tiny', '--repeat', '2'])
  (x,) = lines(capsys)
  assert x['GB of a checkpoint'] == 0.5 and x['GiB at most'] > 0
  assert 0.04 <= x['s a save stops it'] < 1


def test_without_peers_there_is_no_ratio(monkeypatch, capsys):
  monkeypatch.setattr(bench_peers, 'installed', lambda *names: False)
  monkeypatch.setitem(sys.modules, 'torch', None)
  small = 'pretrain --size tiny --repeat 1 --steps 1 --batch-size 2 --seq-length 16'
  with without_a_model():
    bench.main(small.split(' '))
  (line,) = lines(capsys)
  assert line['what'] == 'pretrain, tiny, 2 x 16, float32: bert_jax' and line['tokens/s'] > 0
