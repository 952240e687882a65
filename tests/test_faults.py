"""The campaign of faults: what it damages, how it judges, and a short form of it."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from faults import campaign as faultbench
from faults import families
from faults import files as fault_files
from faults import kinds as fault_kinds
from faults.files import Try, Whole
from faults.runs import Ended, lines, steps

from bert_jax import config as c

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


RIGHT = {step: f'mlm {step}' for step in (10, 20, 24)}
DAMAGED, RENAMED = 'checkpoint 24 is damaged: trying the one before it', '25 was renamed'


@pytest.mark.parametrize(
  ('output', 'log', 'good', 'verdict'),
  [
    ('mlm 24', '', 24, 'survived'),
    ('mlm 20', DAMAGED, 20, 'survived'),
    ('mlm 20', RENAMED, 20, 'survived'),
    ('mlm 20', '', 20, 'lost'),  # of another checkpoint, and not a word
    ('mlm 10', DAMAGED, 20, 'lost'),  # there was a newer one that is whole
    ('mlm 20', DAMAGED, 24, 'lost'),
    ('mlm 3', DAMAGED, 20, 'silent'),
  ],
)
def test_how_a_reader_is_judged(output, log, good, verdict):
  given = output, 'evaluate', RIGHT, good
  assert fault_files.judge_reading(Ended(0, output, log), *given) == verdict
  refused = Ended(2, output, 'error: it is damaged; mend it.')
  assert fault_files.judge_reading(refused, *given) == 'named'
  if log:  # which one was the best is not known without its metadata
    best = fault_files.judge_reading(Ended(0, output, log), output, 'evaluate best', RIGHT, good)
    assert (best == 'survived') == (output != 'mlm 3')


def test_a_report_names_the_file_that_is_not_as_it_was(tmp_path):
  right, path = {0: 'mlm 3.2\n'}, tmp_path / 'a,0' / 'run.json'

  def judge(text, path=path):
    return fault_files.judge_reading(Ended(0, text, ''), text, 'report', right, 0, path)

  assert judge('mlm 3.2\n') == 'survived'
  assert judge(f'mlm 3.1\n{path} is damaged: left out\n') == 'named'
  assert judge(f'mlm 3.1\n{path.parent}: run.json is of another run than config.json\n') == 'named'
  assert judge(f'mlm 3.1\n{path} cannot be read as JSON; is it whole?\n') == 'named'
  for text in 'mlm 3.1\n', f'{path.parent} 3.1\n', 'mlm 3.1\nb,0/summary.json: left out\n':
    assert judge(text) == 'silent', 'of a row of a table, or of another file'
  assert judge('mlm 3.1\nx.json is damaged\n', Path('sweep.json')) == 'silent'
  assert judge('mlm 3.1\nG/sweep.json is damaged\n', Path('sweep.json')) == 'named'


@pytest.mark.parametrize(
  ('code', 'out', 'log', 'verdict'),
  [
    (0, 'a 12\n', '', 'survived'),
    (0, 'c 12\n', '', 'silent'),
    (0, '', '', 'silent'),
    (2, '', 'error: there is no checkpoint; wait.\n', 'named'),
    (2, '', 'error: all checkpoints are damaged; bring them back.\n', 'lost'),
    (0, 'a 12\n', DAMAGED, 'lost'),  # of a healthy run
    (2, '', '', 'tracebacks'),  # without a sentence
    (1, '', TRACEBACK, 'tracebacks'),
    (None, '', '', 'lost'),
  ],
)
def test_how_a_reader_of_a_healthy_run_is_judged(code, out, log, verdict):
  assert fault_kinds.judge_reader(Ended(code, out, log), {'a', 'b'}) == verdict


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
  assert fault_files.close(other, WHOLE.lines, 1e-5)
  wrong = {k: line | {'loss': line['loss'] + 5e-5} for k, line in WHOLE.lines.items()}
  assert not fault_files.close(wrong, WHOLE.lines, 1e-5)
  assert not fault_files.close({(1, 'train'): WHOLE.lines[1, 'train']}, WHOLE.lines, 1e-5)


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


def known_of(family='tags'):
  seconds = dict.fromkeys(fault_kinds.PHASES, [0.0, 0.0])
  whole = Whole('bits', {})
  return fault_files.Known(family, whole, whole, seconds, 'training', {})


class Ran:
  """A Run that has ended by itself, or by each signal that it gets."""

  state, process = 'bits', SimpleNamespace(exitcode=None)
  phases = [('training', 1.0), ('saving', 2.0)]
  saved = [(2, 'a', 'b')]

  def __init__(self, folder, command, *_, begin=0, reaches=False, **__):
    self.begin, self.reaches, self.code = begin, reaches, 0

  def reach(self, phase, count=1):
    return self.reaches

  def send(self, number):
    self.code = -number if self.reaches else 0

  def end(self, seconds=0):
    return Ended(self.code, '', '')


@pytest.mark.parametrize('kind', sorted(fault_kinds.KINDS.keys() - {'finite', 'trained', 'extend'}))
def test_a_fault_that_did_not_take_place_is_no_try(kind, tmp_path, monkeypatch):
  for name in ('OUT', 'S'):
    (tmp_path / name).mkdir()
  monkeypatch.setattr(fault_kinds, 'Run', Ran)
  monkeypatch.setattr(fault_kinds, 'run', lambda *x, **_: (Ran(*x), Ended(0, '', '')))
  monkeypatch.setattr(fault_kinds, 'mount', lambda *_: False)
  assert fault_kinds.KINDS[kind](tmp_path, tmp_path, known_of(), 1, random.Random(0)) == []


def test_a_run_must_begin_at_the_newest_checkpoint_that_is_whole(tmp_path, monkeypatch):
  """A run that begins at an older one has lost steps, whichever was damaged."""
  root = folder_of(tmp_path / 'base' / 'S').parent
  subject = families.Subject('S', {'train': ('train', '--config=x', '--workdir', 'S')})
  monkeypatch.setattr(families, 'subjects', lambda _: {'workdir': subject})
  lost = []
  for begin in (10, 20):
    for path in ('checkpoints/10/meta', 'checkpoints/20/meta', 'config.json'):
      given = root, tmp_path / f'{begin} {path}'.replace('/', ' '), known_of(), 0, random.Random(0)
      ran = Ran('', '', begin=begin), Ended(0, '', '')
      monkeypatch.setattr(fault_kinds, 'run', lambda *_, ran=ran: ran)
      fault = Path(path), f'{path}: cut'
      monkeypatch.setattr(fault_files, 'inject', lambda *_, fault=fault: fault)
      (tried,) = fault_kinds.trained(*given)
      lost += [(begin, path)] * (tried.outcome == 'lost')
  assert lost == [(10, 'checkpoints/10/meta'), (10, 'config.json')]


def test_the_run_that_was_killed_goes_on_from_its_newest_checkpoint(tmp_path, monkeypatch):
  base = folder_of(tmp_path / 'base' / 'S').parent
  for begin, outcome in (20, 'survived'), (10, 'lost'):
    ran = Ran('', '', begin=begin), Ended(0, '', '')
    monkeypatch.setattr(fault_kinds, 'run', lambda *_, ran=ran: ran)
    given = base, tmp_path / str(begin), known_of(), 0, random.Random(0)
    (tried,) = fault_kinds.killed(*given)
    assert (tried.row, tried.outcome) == ('kill -9: training', outcome)


@pytest.mark.parametrize(('mended', 'outcome'), [('right', 'named'), ('wrong', 'lost')])
def test_every_program_that_refuses_a_fault_reads_on_once_it_is_mended(
  mended, outcome, tmp_path, monkeypatch
):
  root = folder_of(tmp_path / 'base' / 'S').parent
  reads = {name: (name,) for name in ('evaluate', 'train', 'predict')}
  monkeypatch.setattr(families, 'subjects', lambda _: {'workdir': families.Subject('S', reads)})
  known, whole = (known_of()._replace(right={'workdir': dict.fromkeys(reads, 'right')}), root / 'S')

  def answer(place, command):
    is_whole = contents(place / 'S') == contents(whole)
    refusal = Ended(2, '', 'error: it is damaged; mend it.')
    return (Ended(0, mended, ''), mended) if is_whole else (refusal, '')

  monkeypatch.setattr(fault_files, 'answer', answer)
  for number in (0, 7, 13, 29):
    tries = fault_files.single_fault(root, tmp_path / 'x', 'workdir', known, number, '0')
    assert [x.row for x in tries] == [f'workdir: {name}' for name in reads]
    assert [x.outcome for x in tries] == [outcome] * 3


def test_a_reader_of_a_workdir_without_a_checkpoint_ends_with_one_sentence(tmp_path):
  ended = fault_files.read(('load', str(tmp_path)))
  assert ended.code == 2 and ended.refusal, ended.log


def test_every_family_is_trained_and_read():
  assert set(families.FAMILIES) >= set('memory teacher lexicon blocks languages examples'.split())  # noqa: SIM905
  read = [families.subjects(family) for family in families.FAMILIES]
  commands = [x for of in read for subject in of.values() for x in subject.reads.values()]
  assert {'train', 'evaluate', 'predict', 'convert', 'report', 'sweep'} == {x[0] for x in commands}
  assert sum('released folder' in of for of in read) >= 5
  for family in families.FAMILIES:
    _, spec, _, _, *fields = families.train_command(family, 'W')
    assert c.load(spec.removeprefix('--config='), fields).steps == families.STEPS


@pytest.fixture
def campaign(tmp_path, monkeypatch):
  """main(*arguments) of a campaign of the family `tags` -> its exit status. asked: the cases that
  the last one tried; outcomes: {case: its outcome}, else `named`. No `disk` fault takes place."""
  state = SimpleNamespace(asked=[], outcomes={}, facts={}, table='')

  def tried(cases, seed, jobs, out):
    state.asked = cases
    for each in cases:
      outcome = state.outcomes.get(each, 'named')
      yield each, [] if each[1] == 'disk' else [Try(f'of {each[1]}', outcome, 'a note')], 1.5

  def main(*arguments):
    with pytest.raises(SystemExit) as end:
      faultbench.main(['--out', str(tmp_path), '--only', 'tags', *arguments])
    state.facts = json.loads((tmp_path / 'faults.json').read_text())
    state.table = (tmp_path / 'faults.md').read_text()
    return end.value.code

  monkeypatch.setattr(faultbench, 'campaign', tried)
  state.main = main
  return state


def test_the_exit_status_and_the_way_to_repeat_a_bad_case(campaign, capsys):
  one = ['--kind', 'signal', '--case', '2', '--seed', '5']
  for outcome, code in ('named', 0), ('silent', 1), ('lost', 1), ('tracebacks', 1):
    campaign.outcomes['tags', 'signal', 2] = outcome
    assert campaign.main(*one) == code and campaign.asked == [('tags', 'signal', 2)]
    assert (' '.join(['--only', 'tags', *one]) in capsys.readouterr().err) == bool(code)
    assert campaign.facts['cases'] == [['tags', 'signal', 2, [['of signal', outcome, 'a note']]]]
    assert f'| {outcome} |' in campaign.table
  with pytest.raises(SystemExit) as end:
    faultbench.main(['--case', '1'])
  assert end.value.code == 2 and '--only FAMILY' in capsys.readouterr().err


def test_a_campaign_that_goes_on_repeats_its_bad_cases_alone(campaign, monkeypatch, capsys):
  bad = ('tags', 'files', 3)
  campaign.outcomes[bad] = 'silent'
  assert campaign.main('--kind', 'files') == 1 and len(campaign.asked) == 18
  assert campaign.main('--kind', 'disk', '--resume') == 1
  assert campaign.asked == [('tags', 'disk', 0)] and 'did not take place | 1 |' in campaign.table
  campaign.outcomes.clear()
  assert campaign.main('--resume') == 0
  assert [x for x in campaign.asked if x[1] in ('files', 'disk')] == [bad]
  assert '| of files | 18 | 0 | 18 | 0 | 0 | 0 |' in campaign.table
  assert campaign.facts['seconds']['tags'] == 1.5 * (18 + 1 + len(campaign.asked))
  assert campaign.main('--resume') == 0 and not campaign.asked
  assert campaign.main('--resume', '--seed', '7') == 2
  monkeypatch.setattr(faultbench.provenance, 'versions', lambda: {'jax': '0'})
  assert campaign.main('--resume') == 2
  assert capsys.readouterr().err.count('another seed or version') == 2


def test_a_quick_campaign_tries_all_families_and_all_kinds():
  args = SimpleNamespace(quick=True, only='', kind='', case=None)
  quick = faultbench.chosen(args)
  of = {name: [kind for x, kind, _ in quick if x == name] for name in families.FAMILIES}
  assert {kind for _, kind, _ in quick} == {*faultbench.CASES}
  assert all({'kill', 'files'} < {*of_family} and len(of_family) == 3 for of_family in of.values())
  args.quick = False
  for name, kind, number in faultbench.chosen(args):
    with_kind, many = faultbench.CASES[kind]
    assert name in with_kind and number < many and (kind == 'tools' or name in (*of, 'inputs'))
  args.kind, args.quick = 'signal', True
  assert {name for name, *_ in faultbench.chosen(args)} == {*families.FAMILIES}


@pytest.mark.slow
def test_the_quick_campaign_finds_nothing(tmp_path):
  command = [sys.executable, 'tests/faults', '--quick', '--out', str(tmp_path)]
  ended = subprocess.run(command, capture_output=True, text=True)
  assert ended.returncode == 0, ended.stderr[-9000:]
  cases = json.loads((tmp_path / 'faults.json').read_text())['cases']
  each = {}  # {(kind, number of the case): how many tries in each}
  for _, kind, number, tries in cases:
    each.setdefault((kind, number), []).append(len(tries))
  took_place = {kind for (kind, _), numbers in each.items() if any(numbers)}
  assert took_place == {*faultbench.CASES}
  whole = {}  # tries of the whole campaign, whose cases from the third on are alike
  for kind, (of, many) in faultbench.CASES.items():
    mean = lambda n, kind=kind: np.mean(each.get((kind, n)) or each[kind, 0])
    whole[kind] = len(of) * sum(mean(min(n, 2)) for n in range(many))
  assert whole['kill'] >= 200 and whole['inputs'] >= 20_000
  of, many = faultbench.CASES['files']
  assert len(of) * many * fault_files.FAULTS >= 1500 and whole['files'] >= 3000
