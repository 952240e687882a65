"""The campaign of faults: what it damages, how it judges, and a short form of it."""

import json
import os
import random
import signal
from types import SimpleNamespace

import pytest
from faults import __main__ as faultbench
from faults import files as fault_files
from faults import kinds as fault_kinds
from faults.files import Try, Whole
from faults.runs import Ended, lines, steps

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py"\nKeyError: 1\n'


@pytest.mark.parametrize(
  ('code', 'log', 'verdict'),
  [
    (0, 'step 1\n', ''),
    (2, 'step 1\nerror: no such file; name another.\n', ''),
    (130, 'stopped by a signal at step 3; the same command continues\n', ''),
    (2, 'error: a\nerror: b\n', 'tracebacks'),  # two sentences
    (1, 'step 1\n', 'tracebacks'),  # none
    (2, f'error: {"9" * 5000} is no number\n', 'tracebacks'),  # all that was refused is quoted
    (-signal.SIGSEGV, '', 'tracebacks'),
    (0, TRACEBACK, 'tracebacks'),  # of a thread
    (2, f'{TRACEBACK}error: no such file.\n', 'tracebacks'),
    (None, '', 'lost'),  # stuck
  ],
)
def test_how_a_program_may_end(code, log, verdict):
  assert fault_files.failure(Ended(code, '', log)) == verdict


@pytest.mark.parametrize(
  ('output', 'log', 'verdict'),
  [
    ('{"mlm": 1}', '', 'survived'),
    ('{"mlm": 2}', 'checkpoint 20 is damaged: trying the one before it', 'survived'),
    ('{"mlm": 2}', 'checkpoint 24 is not of step 24, and was renamed', 'survived'),
    ('{"mlm": 2}', '', 'silent'),  # of another checkpoint, and not a word
    ('{"mlm": 3}', 'checkpoint 20 is damaged: trying the one before it', 'silent'),
  ],
)
def test_how_a_reader_is_judged(output, log, verdict):
  ended = Ended(0, output, log)
  assert fault_files.judge_reading(ended, output, '{"mlm": 1}', ['{"mlm": 2}']) == verdict
  refused = Ended(2, output, 'error: it is damaged; mend it.')
  assert fault_files.judge_reading(refused, '', '{"mlm": 1}', []) == 'named'


WHOLE = Whole('bits', {(n, 'train'): {'step': n, 'split': 'train', 'loss': 1 / n} for n in (1, 2)})


def logged(workdir, *losses):
  """A workdir with a metrics.jsonl that holds these losses of the steps 1, 2..."""
  row = lambda n, loss: json.dumps({'step': n, 'split': 'train', 'loss': loss, 'mfu': 9.0})
  rows = [f'{row(n, loss)}\n' for n, loss in enumerate(losses, 1)]
  (workdir / 'metrics.jsonl').write_text(''.join(rows))
  return workdir


@pytest.mark.parametrize(
  ('begin', 'state', 'losses', 'least', 'verdict'),
  [
    (0, 'bits', (1, 1 / 2), 0, 'survived'),
    (1, 'bits', (0, 1 / 2), 1, 'survived'),  # what stood there before it began is not its own
    (0, 'others', (1, 1 / 2), 0, 'silent'),
    (0, 'bits', (1, 0.5 + 1e-9), 0, 'silent'),
    (0, 'bits', (1,), 0, 'silent'),  # a line is missing
    (0, 'bits', (1, 1 / 2), 1, 'lost'),  # there was a checkpoint of step 1
  ],
)
def test_how_the_end_of_a_run_is_judged(begin, state, losses, least, verdict, tmp_path):
  started = SimpleNamespace(begin=begin, state=state)
  assert fault_files.judge_end(logged(tmp_path, *losses), started, WHOLE, least) == verdict


def test_a_line_that_is_there_twice_is_not_the_same(tmp_path):
  path = logged(tmp_path, 1, 1 / 2) / 'metrics.jsonl'
  path.write_text(path.read_text() * 2)
  with pytest.raises(RuntimeError, match='twice'):
    lines(tmp_path)
  started = SimpleNamespace(begin=0, state='bits')
  assert fault_files.judge_end(tmp_path, started, WHOLE) == 'silent'


def test_other_devices_may_round_otherwise_and_nothing_else():
  other = {k: line | {'loss': line['loss'] + 5e-6} for k, line in WHOLE.lines.items()}
  assert fault_kinds.close(other, WHOLE.lines)
  wrong = {k: line | {'loss': line['loss'] + 5e-5} for k, line in WHOLE.lines.items()}
  assert not fault_kinds.close(wrong, WHOLE.lines)
  assert not fault_kinds.close({(1, 'train'): WHOLE.lines[1, 'train']}, WHOLE.lines)


def folder_of(root):
  files = {f'checkpoints/{step}/meta': f'{{"step": {step}}}' for step in (10, 20)}
  files |= {'vocab.txt': 'a\nb\nc\nd\n', 'config.json': '{\n "seed": 0\n}\n', 'empty': ''}
  for name, text in files.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
  return root


def contents(root):
  return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob('*') if p.is_file()}


def test_every_kind_of_file_gets_every_fault_one_at_a_time(tmp_path):
  before, injected = contents(folder_of(tmp_path / 'whole')), set()
  for number in range(5 * 7):
    root = folder_of(tmp_path / str(number))
    path, fault = fault_files.inject(root, number, random.Random(number))
    after = contents(root)
    changed = {name for name in before if after.get(name) != before[name]}
    if 'renamed' in fault:
      assert changed and sorted(steps(root))[-1] == 23
    else:
      assert changed == {str(path)} and not after.keys() - before.keys()
    injected.add((path.name, fault.rpartition(': ')[2]))
    again = folder_of(tmp_path / f'{number}-again')
    assert fault_files.inject(again, number, random.Random(number)) == (path, fault)
    assert contents(again) == after
  faults = lambda file: {fault for name, fault in injected if name == file}
  assert faults('vocab.txt') == {*fault_files.ANY_FILE, *fault_files.OF_LINES}
  assert faults('meta') == {*fault_files.ANY_FILE}


def test_how_long_a_run_was_in_a_phase():
  phases = [('reading', 1.0), ('training', 3.0), ('saving', 4.0), ('training', 4.5), ('ended', 6.5)]
  seconds = fault_kinds.durations(phases)
  assert seconds == {'reading': [2.0], 'training': [1.0, 2.0], 'saving': [0.5]}


def test_the_table():
  tries = [Try('kill -9: saving', 'survived'), Try('kill -9: saving', 'lost'), Try('disk', 'named')]
  assert faultbench.table(tries) == [
    '| fault | tries | survived | named | silent | tracebacks | lost |',
    '| --- | --- | --- | --- | --- | --- | --- |',
    '| kill -9: saving | 2 | 1 | 0 | 0 | 0 | 1 |',
    '| disk | 1 | 0 | 1 | 0 | 0 | 0 |',
    '| all | 3 | 1 | 1 | 0 | 0 | 1 |',
  ]


def test_what_is_tried_is_what_is_promised():
  full = {kind: numbers[1] for kind, numbers in faultbench.CASES.items()}
  assert full['kill'] * fault_kinds.KILLS >= 100
  assert full['workdir'] + full['corpus'] + full['released'] >= 300
  assert full['inputs'] * faultbench.INPUTS >= 10_000
  assert full.keys() == {*fault_kinds.KINDS, *faultbench.SUBJECTS, 'inputs'}


def test_the_exit_status_and_the_way_to_repeat_a_bad_case(tmp_path, monkeypatch, capsys):
  def campaign(cases, seed, jobs, out):
    assert cases == [('signal', 2)] and seed == 5
    return {cases[0]: [Try('Ctrl-C', outcome, 'begun at 0')]}

  monkeypatch.setattr(faultbench, 'campaign', campaign)
  arguments = ['--only', 'signal', '--case', '2', '--seed', '5', '--out', str(tmp_path)]
  for outcome, code in ('named', 0), ('silent', 1), ('lost', 1), ('tracebacks', 1):
    with pytest.raises(SystemExit) as end:
      faultbench.main(arguments)
    assert end.value.code == code
    assert ('--only signal --case 2 --seed 5' in capsys.readouterr().err) == bool(code)
    facts = json.loads((tmp_path / 'faults.json').read_text())
    assert len(facts['bad']) == code and f'| {outcome} |' in (tmp_path / 'faults.md').read_text()
  with pytest.raises(SystemExit) as end:
    faultbench.main(['--case', '1'])
  assert end.value.code == 2 and '--only KIND' in capsys.readouterr().err


@pytest.mark.slow
def test_what_befalls_a_run_is_survived_or_named(tmp_path):
  """The short form: a run is killed while it trains and while it saves, and its disk is full."""
  cases, before = [('kill', 1), ('disk', 0)], dict(os.environ)
  results = faultbench.campaign(cases, seed=0, jobs=1, out=tmp_path)
  outcomes = {kind: [each.outcome for each in tries] for (kind, _), tries in results.items()}
  expected = {'kill': ['survived', 'survived'], 'disk': ['survived']}
  assert outcomes == expected, results
  assert dict(os.environ) == before


@pytest.mark.slow
def test_the_quick_campaign_finds_nothing(tmp_path, capsys):
  with pytest.raises(SystemExit) as end:
    faultbench.main(['--quick', '--out', str(tmp_path)])
  assert end.value.code == 0, capsys.readouterr().err
