"""What a workdir says of its run, whole and damaged in every file."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import small_pretrain
from running import edit, flipped, without_a_model

from bert_jax import config as config_lib
from bert_jax.files import seal, write_sealed
from bert_jax.metrics import Level
from bert_jax.train import train
from bert_jax.workdir import contents, recorded, records


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
  path = shutil.copytree(pretrained[0], tmp_path / 'S' / 'run')
  table = [{'tokens': '1-16', 'examples': 9, 'mlm': 4.5}, {'tokens': '17-32', 'examples': 2}]
  scores(path).parent.mkdir(parents=True, exist_ok=True)
  write_sealed(scores(path), {'by_length': table})
  return path


def scores(path):
  data = contents.read_config(path).data
  return contents.answers_folder(path, data.train, data.eval, 20) / 'scores.json'


def test_a_whole_workdir_is_read_as_what_it_holds(run):
  found = records.read(run)
  lines = [json.loads(line) for line in (run / 'metrics.jsonl').read_text().splitlines()]
  assert not found.faults and found.path == run and found.judge == 'mlm'
  assert found.config == contents.read_config(run) and found.fields['steps'] == 20
  assert [{'step': p.step, 'split': p.kind, **p.values} for p in found.points] == lines
  assert found.final('mlm') == lines[-1]['mlm'] and found.final('no') is None
  assert found.checkpoints == (10, 20) and found.newest['step'] == 20 == found.last_step()
  assert (found.summary.state, found.summary.step, found.summary.steps) == ('finished', 20, 20)
  assert found.examples['mlm'] == 9 and 'nsp' not in found.examples
  facts = json.loads((run / 'run.json').read_text())
  assert found.facts.made_by == facts['made_by'] and found.facts.commands == facts['commands']
  eval_facts = facts['data']['eval']
  assert found.facts.data['eval'].fingerprint == eval_facts['fingerprint']
  assert found.facts.data['eval'].baselines['mlm'] == tuple(eval_facts['baselines']['mlm'])
  assert found.facts.config == found.summary.config == config_lib.fingerprint(found.config)
  assert [p.step for p in found.curve] == [10, 20]


def test_what_is_written_is_what_is_read():
  levels = {'f1': Level(0.25, 'prior')}
  split = recorded.Split(9, 'abc', 8, 7, levels, {})
  made_by, commands, stages = {'commit': 'a', 'cores': 2}, [{'argv': []}], [[0, 1.0], [4, 2.0]]
  facts = recorded.Facts(made_by, commands, {'eval': split}, 12, 5, stages, 'W', 'f')
  summary = recorded.Summary('running', 3, 9, 'mlm', 'f', 7, 8, {'eval': {'step': 2}})
  for record in (facts, summary):
    assert type(record).from_json(json.loads(json.dumps(record.to_json()))) == record


META = 'checkpoints/20/meta/metadata'
# {file: (what of a run is lost without it, a change of its JSON)}
FILES = {
  'config.json': ('config', lambda x: x['optimizer'].update(learning_rate=0.5)),
  'run.json': ('facts', lambda x: x.update(parameters=3)),
  'summary.json': ('summary', lambda x: x.update(step=19)),
  'metrics.jsonl': ('points', None),
  META: ('newest', lambda x: x['metrics'].update(mlm=1.0)),
  'scores.json': ('examples', lambda x: x['by_length'][0].update(mlm=1.0)),
}
KINDS = 'cut', 'edited', 'another', 'missing'


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('name', FILES)
def test_a_damaged_or_exchanged_file_is_left_out_and_named(name, kind, run, other):
  """And the rest is used."""
  lost, change = FILES[name]
  path = scores(run) if name == 'scores.json' else run / name
  whole, text = records.read(run), path.read_text()
  if kind == 'missing':
    path.unlink()
  elif kind == 'another':
    if name == 'scores.json':
      return  # it is of the same kind as any other
    shutil.copy(other / name, path)
  elif kind == 'edited' and change:
    edit(path, change)
  elif kind == 'edited':
    path.write_text(text.replace('1', '2'))
  else:
    path.write_text(text[: len(text) // 2])
  found = records.read(run)
  if kind != 'missing' or name in ('config.json', 'metrics.jsonl', META):
    words = Path(name).name, 'checkpoint 20', 'is of another run'
    assert any(word in fault for fault in found.faults for word in words), found.faults
  assert all(fault.count('\n') == 0 for fault in found.faults)
  if lost == 'config' or (kind == 'another' and name != 'metrics.jsonl'):
    assert found.config is None
    return
  if lost == 'newest':
    assert found.checkpoints == (10,)
  else:
    empty = {'facts': recorded.Facts(), 'summary': recorded.Summary(), 'points': ()}
    assert getattr(found, lost) == empty.get(lost, {})
  for part in {'facts', 'summary', 'points', 'newest'} - {lost}:
    assert getattr(found, part) == getattr(whole, part), part
  assert records.read_summary(run).state in ('finished', '')


@pytest.mark.parametrize('name', [*FILES, 'sweep.json'])
def test_a_flipped_bit_is_never_silent(run, name):
  """Each digit that is another, and bits here and there: the same is read, or a fault is told."""
  runs = {'a': {'arm': 'a', 'spec': 'f.py', 'fields': ['--config.seed=1']}}
  write_sealed(run / 'sweep.json', {'config': 'f.py', 'baseline': 'a', 'runs': runs})
  path = scores(run) if name == 'scores.json' else run / name
  read = records.read_sweep if name == 'sweep.json' else records.read
  whole, data = read(run), path.read_bytes()
  digits = [8 * i for i, byte in enumerate(data) if chr(byte).isdigit()]
  anywhere = range(0, 8 * len(data), 8 * len(data) // 12 + 1)
  for place in [*digits[:: len(digits) // 12 or 1], *anywhere]:
    path.write_bytes(flipped(data, place))
    found = read(run)
    assert found.faults or found == whole, place


def test_how_the_runs_of_a_sweep_ended(tmp_path):
  (tmp_path / 'logs').mkdir()
  runs = {name: {'arm': name, 'spec': '', 'fields': []} for name in 'abc'}
  write_sealed(tmp_path / 'sweep.json', {'baseline': 'b', 'runs': runs})
  (tmp_path / 'logs' / 'a.json').write_text(json.dumps({'state': 'done', 'config': 'x'}))
  (tmp_path / 'logs' / 'b.json').write_text('{"sta')
  found = records.read_sweep(tmp_path)
  assert [found.ended[x].state for x in 'abc'] == ['done', '', ''] and found.baseline == 'b'
  assert len(found.faults) == 1 and records.read_sweep(tmp_path / 'none') is None


def test_what_lies_below_a_folder_is_found_once_or_named(run, other, tmp_path):
  (tmp_path / 'S' / 'again').symlink_to(run)
  shutil.copytree(other, tmp_path / 'S' / 'damaged')
  edit(tmp_path / 'S' / 'damaged' / 'config.json', lambda x: x | {'seal': seal({})})
  runs, remarks = records.below(tmp_path / 'S', tmp_path / 'nowhere')
  assert [x.path.resolve() for x in runs] == [run.resolve()]
  for words in ('damaged is left out', 'nowhere is no folder'):
    assert sum(words in remark for remark in remarks) == 1, words
