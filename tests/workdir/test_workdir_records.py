"""What a workdir says of its run, whole and damaged in every file, as each reader of it sees it."""

import contextlib
import json
import math
import re
import shutil
from pathlib import Path

import pytest
from conftest import small_pretrain
from running import edit, flipped, without_a_model

from bert_jax import config as config_lib
from bert_jax import notebooks
from bert_jax.errors import InputError
from bert_jax.files import seal
from bert_jax.tasks import TASKS
from bert_jax.tools import convert, report, rerun
from bert_jax.tools.sweep import __main__ as sweep
from bert_jax.tools.sweep import arms as sweep_arms
from bert_jax.tools.sweep import plan
from bert_jax.train import train
from bert_jax.workdir import contents, recorded, records, trained


@pytest.fixture(scope='module')
def other(corpus_file, tmp_path_factory):
  """The workdir of another run, of another seed and of two numbers."""
  path = tmp_path_factory.mktemp('other') / 'run'
  with without_a_model():
    train(small_pretrain(corpus_file, 'seed=3 eval.seed=3'), path)
  return path


@pytest.fixture
def run(pretrained, tmp_path):
  """A copy of a workdir, with scores by length as tasks have them."""
  path = tmp_path / 'S' / 'run'
  shutil.copytree(pretrained[0], path)
  table = [{'tokens': '1-16', 'examples': 9, 'mlm': 4.5}, {'tokens': '17-32', 'examples': 2}]
  scores(path).parent.mkdir(parents=True, exist_ok=True)
  scores(path).write_text(json.dumps({'by_length': table}))
  return path


def scores(path):
  config = contents.read_config(path)
  spec = contents.evaluated_on(config.data.train, config.data.eval)
  return contents.answers_folder(path, spec, 20) / 'scores.json'


def test_scores_are_of_the_examples_that_have_gold(tmp_path):
  for number, split in enumerate(({'examples': 50}, {'examples': 50, 'scored': 40})):
    (tmp_path / 'run.json').write_text(json.dumps({'data': {'eval': {'rows': 9} | split}}))
    assert records.read_facts(tmp_path).split('eval').scored == (50, 40)[number]


def test_a_whole_workdir_is_read_as_what_it_holds(pretrained, run):
  found, lines = records.read(run), (run / 'metrics.jsonl').read_text().splitlines()
  assert not found.faults and found.path == run and found.judge == 'mlm'
  assert found.config == contents.read_config(run) and found.fields['steps'] == 20
  said = [(x['step'], x['split']) for x in map(json.loads, lines)]
  assert [(p.step, p.kind) for p in found.points] == said
  last = json.loads(lines[-1])
  assert found.points[-1].values == {k: x for k, x in last.items() if k not in ('step', 'split')}
  assert found.final('mlm') == last['mlm'] and found.final('no') is None
  assert found.collapsed() == ('constant' in last)
  assert found.checkpoints == (10, 20) and found.newest['step'] == 20 == found.last_step()
  assert (found.summary.state, found.summary.step, found.summary.steps) == ('finished', 20, 20)
  assert found.by_length('mlm') == {'1-16': (9, 4.5)} and found.by_length('nsp') == {}
  facts = json.loads((run / 'run.json').read_text())
  assert found.facts.made_by == {name: facts[name] for name in records.MADE_BY}
  assert found.facts.commands == tuple(facts['commands'])
  assert found.facts.data['eval'].fingerprint == facts['data']['eval']['fingerprint']
  assert found.facts.data['train'].rows == facts['data']['train']['rows'] > 0
  level = found.facts.data['eval'].baselines['mlm']
  assert level == tuple(facts['data']['eval']['baselines']['mlm']) and level.kind == 'unigram'
  assert found.facts.config == found.summary.config == config_lib.fingerprint(found.config)
  assert [p.step for p in found.curve] == [10, 20]


def test_earlier_versions_read_all_rows_at_the_end_and_a_part_before(run):
  """Of each length that a run had. Where a part holds all rows, the last point is as the others."""
  kinds = lambda: [(p.step, p.kind) for p in records.read(run).evaluations]
  batches = lambda n: edit(
    run / 'config.json', lambda x: sealed(x | {'eval': x['eval'] | {'batches': n}})
  )
  for n, last in ((0, 'eval'), (3, 'whole'), (4, 'eval')):  # 30 rows, in batches of 8
    batches(n)
    assert kinds() == [(10, 'eval'), (20, last)], n
    assert [records.read(run).is_part_at(step) for step in (10, 20)] == [n == 3, False]
  batches(3)
  edit(run / 'config.json', lambda x: sealed(x | {'earlier_lengths': [[10, 0]]}))
  assert kinds() == [(10, 'whole'), (20, 'whole')]
  # A part has baselines of its own, so a point of it stays one, also at the end of a run.
  text = (run / 'metrics.jsonl').read_text()
  is_first = lambda x: (x['step'], x['split']) == (10, 'eval')
  below = lambda x: x | ({'mlm_below_unigram': 0.37} if is_first(x) else {})
  other = [json.dumps(below(json.loads(x))) for x in text.splitlines()]
  (run / 'metrics.jsonl').write_text(''.join(f'{x}\n' for x in other))
  assert kinds() == [(10, 'eval'), (20, 'whole')]
  (run / 'metrics.jsonl').write_text(text)
  # A run that writes a line of its own for all rows has no such points.
  text = (run / 'metrics.jsonl').read_text().splitlines()
  more = [json.dumps(json.loads(x) | {'split': 'whole'}) for x in text if '"eval"' in x]
  text[-1:] = [more[0], text[-1], more[1]]
  (run / 'metrics.jsonl').write_text(''.join(f'{x}\n' for x in text))
  assert kinds() == [(10, 'eval'), (10, 'whole'), (20, 'eval'), (20, 'whole')]
  assert not [x for x in records.read(run).faults if 'not as the run wrote' not in x]


def sealed(content):
  return content | {'seal': seal(content)}


@pytest.mark.parametrize(
  'steps, resumed, every',
  [((), '', 0), ((37,), '', 37), ((100, 300, 400), '', 100), ((1250, 1300, 1310), 'W', 50)],
)
def test_how_many_steps_a_line_of_metrics_is_the_mean_of(steps, resumed, every):
  points = [recorded.Point(step, 'train', {}) for step in steps]
  run = recorded.Run(Path('R'), None, {'resume_from': resumed}, '', points=points)
  assert run.log_every == every


def test_what_a_run_is_judged_by_is_said_once():
  load = lambda *fields: config_lib.load('configs/pretrain.py:runlocal', fields)
  judge = lambda config: TASKS[config.objective].judge(config)
  config = load('--config.eval.seed=7')
  assert judge(config).metric == 'mlm' and judge(config).under['eval.seed'] == 7
  best = '--config.checkpoint.best_metric=nsp', '--config.eval.batches=0'
  assert judge(load(*best, '--config.checkpoint.best_mode=max')).metric == 'nsp'


# ---- Damages ------------------------------------------------------------------------------------

# {name: (file, what happens to the workdir, with another run's beside; words of the fault or '',
# what is lost: 'config', 'facts', 'summary', 'points', 'newest', 'all' checkpoints, or '')}
DAMAGES = {}


def damage(file, said, lost='', **changes):
  """Several ways in which a file is damaged: {name: its new text, a change of its JSON, or a
  function of its path and the same path in another run}."""
  for name, change in changes.items():

    def apply(path, other, change=change):
      target = scores(path) if file == 'scores.json' else path / file
      if isinstance(change, str):
        target.write_text(change)
      elif change.__code__.co_argcount == 1:
        edit(target, change)
      else:
        change(target, other / file)

    DAMAGES[f'{file}: {name}'] = file, apply, said, lost


def adding(*rows):
  """A change that adds lines to a file."""
  return lambda path, other: path.write_text(path.read_text() + ''.join(f'{x}\n' for x in rows))


def early(path, other):
  """Takes the file of another run, as earlier versions wrote it: without a fingerprint."""
  edit(other, lambda x: x.pop('config') and None)
  shutil.copy(other, path)


def without_checkpoints(path, other):
  shutil.rmtree(path.parent / 'checkpoints')
  shutil.copy(other, path)


missing = lambda path, other: path.unlink()
taken = lambda path, other: shutil.copy(other, path)
rate = lambda x: x['optimizer'].update(learning_rate=0.5)
cut = dict(truncated='{"objective": "mlm_nsp", "mod', list='[1]')
data = lambda x: x['data']['eval']

damage(
  'config.json',
  'config.json',
  'config',
  **cut,
  empty='',
  edited_without_seal=lambda x: rate(x) or x.pop('seal') and None,
  unknown_field=lambda x: sealed(x | {'no_field': 1}),
  text_for_block=lambda x: sealed(x | {'optimizer': 'adam'}),
)
damage('config.json', 'config.json is not as the run wrote it', 'config', edited=rate)
damage('config.json', 'config.json is missing', 'config', missing=missing)
damage('config.json', 'is of another run', 'config', another=taken)
damage('run.json', 'run.json', 'facts', **cut, empty='')
damage('run.json', 'run.json is missing', 'facts', missing=missing)
damage('run.json', 'run.json is of another run', 'facts', another=taken)
damage('run.json', 'run.json is of other training data', 'facts', early=early)
damage(
  'run.json',
  'run.json: ',
  costs=lambda x: x | {'costs': 'many'},
  parameters=lambda x: x | {'costs': {'parameters': '1 M', 'flops_per_step': True}},
  stages=lambda x: x['costs'].update(flops_by_stage=[{'step': 0, 'flops': 'many'}]),
  data=lambda x: x | {'data': [1]},
  split=lambda x: x | {'data': {'eval': 3, 'train': x['data']['train']}},
  baseline=lambda x: data(x).update(baselines={'mlm': 'five'}),
  level=lambda x: data(x).update(baselines={'mlm': ['5', 'unigram']}),
  fingerprint=lambda x: data(x).update(fingerprint=5),
  commands=lambda x: x | {'commands': 'python'},
  command=lambda x: x | {'commands': [{'argv': 'python'}]},
  packages=lambda x: x | {'packages': 'jax'},
  earlier=lambda x: x | {'earlier': [{'python': '3.9'}]},
)
damage('summary.json', 'summary.json', 'summary', **cut, deep='[' * 9999)
damage('summary.json', 'is of another run', 'summary', another=taken, early=early)
damage(
  'summary.json',
  'summary.json: ',
  state=lambda x: x | {'state': 3},
  step=lambda x: x | {'step': '20', 'steps': [20]},
  eval=lambda x: x | {'eval': 'good'},
)
wrong_types = '{"step": "25", "split": "eval"}', '{"step": 25, "split": "dev"}', '{"step": 25}'
low = '{"step": 22, "split": "train", "mlm": "low", "nsp": 0.5}'
half = lambda path, other: path.write_text(''.join(path.read_text().splitlines(True)[:4]))
binary = '\x00\x01\n{\n'
damage('metrics.jsonl', 'metrics.jsonl', 'points', list='[]\n', binary=binary, text='good\n')
damage('metrics.jsonl', '', missing=missing)
damage('metrics.jsonl', 'are left out, 1; the first is line 7', cut=adding('{"step": 25, "spl'))
damage('metrics.jsonl', 'left out, 3; the first is line 7', types=adding(*wrong_types))
damage('metrics.jsonl', "line 7: mlm is 'low'", value=adding(low))
damage('metrics.jsonl', 'lacks the evaluation at step 20', half=half, empty='')
damage('metrics.jsonl', 'is of another run', 'points', another=taken)
damage('metrics.jsonl', 'another run than summary', 'points', alone=without_checkpoints)
META = 'checkpoints/20/meta/metadata'


def other_number(path, other):
  text = re.sub(r'"mlm": (\d)', lambda x: f'"mlm": {9 - int(x[1])}', path.read_text(), count=1)
  path.write_text(text)


def renamed(path, other):
  path.parents[1].rename(path.parents[2] / '30')


def all_of_another(path, other):
  shutil.rmtree(path.parents[2])
  shutil.copytree(other.parents[2], path.parents[2])


damage(META, 'its metadata does not match its seal', 'newest', flipped=other_number)
damage(META, 'its metadata is missing', 'newest', missing=missing)
damage(META, 'metadata does not hold a JSON object', 'newest', list='[]')
damage(META, 'it is of step 20', 'newest', renamed=renamed)
damage(META, 'checkpoint 20 is of another run', 'all', another=all_of_another)
odd = lambda x: {'by_length': [*x['by_length'], 'long', {'tokens': 3}]}
damage('scores.json', 'scores.json', 'lengths', truncated='{"by_')
damage('scores.json', 'has no tokens', types=odd)


@pytest.fixture(scope='module')
def model(pretrained):
  return trained.load(str(pretrained[0]))


@pytest.fixture(scope='module')
def whole(pretrained):
  return records.read(pretrained[0])


WITHOUT = shutil.ignore_patterns('checkpoints')


@pytest.fixture
def other_copy(other, tmp_path):
  path = Path(shutil.copytree(other, tmp_path / 'other', ignore=WITHOUT))
  (path / 'checkpoints').symlink_to(other / 'checkpoints')
  return path


@pytest.mark.parametrize('name', DAMAGES)
def test_each_reader_stands_each_damage(name, run, whole, other_copy, model, tmp_path, monkeypatch):
  """It is a sentence, it is left out, and the rest is used; nobody dies of it."""
  _, apply, said, lost = DAMAGES[name]
  sound = shutil.copytree(run, tmp_path / 'S' / 'sound', ignore=WITHOUT)
  edit(sound / 'config.json', lambda x: sealed(x | {'batch_size': x['batch_size'] * 2}))
  for file in ('run.json', 'summary.json'):
    edit(sound / file, lambda x: x.pop('config') and None)
  apply(run, other_copy)
  found = records.read(run)
  assert any(said in fault for fault in found.faults) if said else not found.faults, found.faults
  assert all(isinstance(fault, str) and fault.count('\n') == 0 for fault in found.faults)

  # Nothing but what is damaged is lost.
  assert (found.config is None) == (lost == 'config')
  assert (found.facts == recorded.Facts()) == (lost == 'facts')
  assert (found.summary.state == '') == (lost == 'summary' or name == 'summary.json: state')
  kept = {'newest': (10,), 'all': ()}.get(lost, (10, 20))
  kept = kept if (run / 'checkpoints').exists() else ()
  assert (found.checkpoints, found.newest.get('step', 0)) == (kept, max(kept, default=0))
  assert all(point.step > 20 for point in found.points if point not in whole.points)
  kept = {'points': 0, '': None}.get(lost, len(whole.points))
  assert kept is None or len(found.points) == kept
  assert found.judge == 'mlm' or lost == 'config'

  # report: the run is there or named; the other one is there.
  result = report.read(run.parent)
  shown = set(result.results.values.run)
  told = '\n'.join(result.results.remarks)
  assert str(sound) in shown
  if lost == 'config' or not (run / 'metrics.jsonl').exists():
    assert str(run) not in shown and str(run) in told
  assert not said or lost == 'config' or any(fault in told for fault in found.faults)

  # rerun, the curve of a notebook, a model card, the end of a run, a sweep that starts from it.
  again = rerun.outcome(whole, found)
  assert again['lines'] == len({(p.step, p.kind) for p in found.points if p.step <= 20})
  monkeypatch.setattr('matplotlib.figure.Figure.savefig', lambda *_, **__: None)
  assert notebooks.drawn(run) == b''
  facts = convert.facts_of_run(run, model) if found.checkpoints == (10, 20) else {}
  assert not facts or ('data' in facts) == bool(found.facts.data)
  assert records.read_summary(run).state in ('finished', '')
  config = config_lib.load('configs/finetune.py:runlocal', [f'--config.init_from={run}'])
  started = sweep_arms.PlannedRun('x', 'x', 'f.py', [], config)
  refused = pytest.raises(InputError, match='--from')
  with contextlib.nullcontext() if found.checkpoints else refused:
    plan.check_sources([started], only_printed=False)


@pytest.mark.parametrize('name', ['run.json', 'summary.json', 'metrics.jsonl'])
def test_a_flipped_bit_is_never_silent(run, name):
  """Each digit that is another, and bits here and there: the same is read, or a fault is told."""
  whole, data = records.read(run), (run / name).read_bytes()
  digits = [8 * i for i, byte in enumerate(data) if chr(byte).isdigit()]
  anywhere = range(0, 8 * len(data), 8 * len(data) // 12 + 1)
  for place in [*digits[:: len(digits) // 12 or 1], *anywhere]:
    (run / name).write_bytes(flipped(data, place))
    found = records.read(run)
    assert found.faults or found == whole, place


def test_a_flipped_bit_of_a_sweep_is_never_silent(tmp_path):
  runs = {'a': {'arm': 'a', 'spec': 'f.py', 'fields': ['--config.seed=1']}}
  sweep.write(tmp_path, {'config': 'f.py', 'baseline': 'a', 'runs': runs})
  whole, data = records.read_sweep(tmp_path), (tmp_path / 'sweep.json').read_bytes()
  for place in range(0, 8 * len(data), 11):
    (tmp_path / 'sweep.json').write_bytes(flipped(data, place))
    found = records.read_sweep(tmp_path)
    assert found.faults or found == whole, place


SWEEPS = {
  'list': '[]',
  'cut': '{"runs": {"a',
  'none': '{}',
  'runs': '{"runs": 3}',
  'run': '{"runs": {"a": 3}}',
  'arm': '{"runs": {"a": {"arm": 3, "spec": "x", "fields": []}}}',
  'fields': '{"runs": {"a": {"arm": "x", "spec": "x", "fields": "none"}}}',
  'baseline': '{"baseline": 3, "runs": {"a": {"arm": "x", "spec": "x", "fields": []}}}',
}


@pytest.mark.parametrize('name', SWEEPS)
def test_a_damaged_sweep_is_named(name, run):
  (run.parent / 'sweep.json').write_text(SWEEPS[name])
  found = records.read_sweep(run.parent)
  assert len(found.faults) == 1 and 'sweep.json' in found.faults[0]
  assert found.faults[0] in report.read(run.parent).results.remarks
  with pytest.raises(InputError, match='sweep.json is damaged; remove it'):
    plan.content_of(run.parent, [], 'f.py', None)


def test_how_a_run_of_a_sweep_ended_may_be_unreadable(tmp_path):
  (tmp_path / 'logs').mkdir()
  plan = {'runs': {name: {'arm': name, 'spec': '', 'fields': []} for name in 'abc'}}
  (tmp_path / 'sweep.json').write_text(json.dumps(plan))
  (tmp_path / 'logs' / 'a.json').write_text('{"state": "done", "seconds": "5", "metrics": [1]}')
  (tmp_path / 'logs' / 'b.json').write_text('{"sta')
  found = records.read_sweep(tmp_path)
  assert [found.ended[x].state for x in 'abc'] == ['done', '', '']
  assert math.isfinite(found.ended['a'].seconds)
  assert sum('a.json: ' in x for x in found.faults) == 2 and len(found.faults) == 3
  assert records.read_sweep(tmp_path / 'none') is None


def test_a_teacher_that_a_run_has_trained_first_is_no_arm_of_a_sweep(tmp_path, corpus_file):
  """By its record: another run may have such a name."""
  config = small_pretrain(corpus_file, 'steps=2 log.every=1 checkpoint.minutes=0')
  with without_a_model():
    for name, student in (('a', ''), ('b-teacher', ''), ('c', f'{tmp_path}/a')):
      train(config, tmp_path / name, student=student)
  runs, remarks = records.below(tmp_path)
  assert [run.path.name for run in runs] == ['a', 'b-teacher']
  assert remarks == [f'{tmp_path}/c is the teacher of {tmp_path}/a: left out; name it to see it']
  (alone,), remarks = records.below(tmp_path / 'c')
  assert alone.path == tmp_path / 'c' and not remarks
