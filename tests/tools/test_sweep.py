"""The runs of a sweep: which there are, that each is trained once, and that they are the same runs
as by hand."""

import io
import itertools
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import pytest
from conftest import ROOT, small_overrides
from test_report import checkpoint_at

from bert_jax import config as c
from bert_jax import train
from bert_jax.config import InputError
from bert_jax.tasks import TASKS
from bert_jax.tools.preflight.estimate import objective_of
from bert_jax.tools.sweep import __main__ as sweep
from bert_jax.tools.sweep import arms as sweep_arms
from bert_jax.tools.sweep import child, jobs, plan
from bert_jax.workdir import contents, lock, records

PRETRAIN = 'configs/pretrain.py:runlocal'
READY = 'configs/ablations.py'


def planned(root, *words, spec=PRETRAIN, fields=()):
  """(the runs of a command line, the content of its sweep.json, which is written)."""
  args = sweep.parser().parse_args(['--config', spec, '--workdir', str(root), *words])
  runs = sweep.planned(args, list(fields))
  content = plan.content_of(root, runs, args.config, args.baseline)
  sweep.write(root, content)
  return runs, content


def swept(capsys, *command):
  """(exit status, stdout, stderr) of a sweep, which this process leads: its runs have their own."""
  code = 0
  try:
    sweep.main(list(command))
  except SystemExit as end:
    code = end.code
  return code, *capsys.readouterr()


def run_of(folder, *fields):
  config = c.load(PRETRAIN, [f'--config.{field}' for field in fields])
  return sweep_arms.PlannedRun(folder, '', PRETRAIN, [], config)


# ---- Arms ---------------------------------------------------------------------------------------


def test_a_sweep_is_every_combination_in_a_folder_of_its_own():
  vary = ['optimizer.beta1=0.8,0.9', 'init_from=,a/b', ':size=tiny,mini']
  arms = sweep_arms.arms_of(PRETRAIN, vary)
  every = [*itertools.product(('0.8', '0.9'), ('none', 'a_b'), ('tiny', 'mini'))]
  assert list(arms) == [f'optimizer.beta1={x},init_from={y},size={z}' for x, y, z in every]
  runs = sweep_arms.runs_of(PRETRAIN, arms, (0, 1), ['--config.steps=3'])
  assert [run.folder for run in runs[-2:]] == [f'{[*arms][-1]},seed={seed}' for seed in (0, 1)]
  assert runs[-1].spec == f'{PRETRAIN},size=mini'
  fields = 'steps=3', 'optimizer.beta1=0.9', 'init_from=a/b', 'seed=1'
  assert runs[-1].fields == [f'--config.{field}' for field in fields]
  assert (runs[-1].config.seed, runs[0].config.init_from) == (1, '')
  assert runs[0].config.model.hidden_size < runs[-1].config.model.hidden_size
  (only,) = sweep_arms.runs_of(PRETRAIN, sweep_arms.arms_of(PRETRAIN, []), (7,))
  assert (only.folder, only.arm) == ('seed=7', '')


def test_fields_move_together():
  arms = sweep_arms.arms_of(PRETRAIN, ['a=1,2;b=3,4', "c=x/y,don't"])
  expected = [('1', '3', 'x/y'), ('1', '3', "don't"), ('2', '4', 'x/y'), ('2', '4', "don't")]
  assert [tuple(arm.values()) for arm in arms.values()] == expected
  assert list(arms)[-1] == 'a=2,b=4,c=don_t'


def test_one_value_at_a_time_changes_around_fields():
  vary = ['optimizer.beta1=0.8,0.90', 'batch_size=16,32,64']  # 0.9 and 32 are the config's
  arms = sweep_arms.arms_of(PRETRAIN, vary, '')
  assert arms == {
    'baseline': {},
    'optimizer.beta1=0.8': {'optimizer.beta1': '0.8'},
    'batch_size=16': {'batch_size': '16'},
    'batch_size=64': {'batch_size': '64'},
  }
  arms = sweep_arms.arms_of(PRETRAIN, vary, 'batch_size=64;optimizer.beta1=0.8')
  base = 'batch_size=64,optimizer.beta1=0.8'
  assert list(arms) == [base, 'optimizer.beta1=0.90', 'batch_size=16', 'batch_size=32']
  assert arms['batch_size=16'] == {'batch_size': '16', 'optimizer.beta1': '0.8'}


def test_a_config_file_has_arms_of_its_own(tmp_path):
  path = tmp_path / 'mine.py'
  pretrain = Path('configs/pretrain.py').absolute()
  path.write_text(
    f"import runpy\nget_config = runpy.run_path('{pretrain}')['get_config']\n"
    "def sweep(arg):\n  return {'low': {'optimizer.beta1': 0.8}, 'high': {'optimizer.no_decay': "
    "'a', 'optimizer.lr_multipliers': (('a', 2.0),)}}\n"
  )
  arms = sweep_arms.arms_of(str(path), ['steps=1,2'])
  assert list(arms) == ['low,steps=1', 'low,steps=2', 'high,steps=1', 'high,steps=2']
  run = sweep_arms.runs_of(str(path), arms, (0,))[-1]
  assert run.config.optimizer.lr_multipliers == (('a', 2.0),)
  arms = sweep_arms.arms_of(str(path), [], only='high,low')
  assert list(arms) == ['high', 'low']
  path.write_text("def sweep(arg):\n  return {'a b': {'steps': 1}, 'a/b': {'steps': 2}}\n")
  with pytest.raises(InputError, match='two arms are called a_b'):
    sweep_arms.arms_of(str(path), [])
  path.write_text('def sweep(arg):\n  return [1]\n')
  with pytest.raises(InputError, match=r'mine.py: sweep\(arg\) returns no'):
    sweep_arms.arms_of(str(path), [])


def test_runs_start_from_those_of_another_sweep(tmp_path, capsys):
  """Each from the one of the same arm and seed; the baseline is the other sweep's."""
  root, spec = tmp_path / 'S', 'configs/finetune.py:runlocal'
  more = '--vary', 'masking.masked_lm_prob=0.15,0.3', '--baseline', 'masking.masked_lm_prob=0.3'
  runs, content = planned(root, *more, '--seeds', '4,7')
  assert content['baseline'] == runs[0].arm == 'masking.masked_lm_prob=0.3'
  for run in runs[:3]:
    checkpoint_at(root / run.folder, 5)
  (root / runs[1].folder / 'summary.json').write_text('{"state": "running"}')
  words = f'--config {spec} --workdir {tmp_path}/T --from {root} --seeds 4,7 --vary steps=5,6'
  code, _, said = swept(capsys, *words.split())
  assert code == 2 and not (tmp_path / 'T').exists()
  assert f'2 of the 4 runs to start from are not finished, the first of which is {root}/' in said
  code, said, _ = swept(capsys, *words.split(), '--print')  # a scheduler may wait for them
  commands = [shlex.split(line) for line in said.splitlines()]
  folders = [line[line.index('--workdir') + 1].rpartition('/')[2] for line in commands]
  expected = [(run.arm, n, run.config.seed) for run in runs for n in (5, 6)]
  assert {*folders} == {f'{arm},steps={n},seed={seed}' for arm, n, seed in expected}
  for folder, line in zip(folders, commands):
    assert f'--config.init_from={root}/{re.sub(",steps=.", "", folder)}' in line


REFUSED = {  # {words of the command: what the sentence says}
  '--vary seed': "'seed' is not NAME=VALUE",
  '--vary a=1,2;b=3': 'as many values',
  '--vary data.train=x/y,x_y': 'two arms are called data.train=x_y',
  '--vary a=1 --vary b=2;a=3': 'a is set twice',
  '--vary seed=1,2': 'are given by --seeds',
  '--vary batchsize=1,2': 'did you mean',
  '--around batch_size=1,2': 'has several values',
  '--vary batch_size=8,16 --baseline batch_size=32': 'there are batch_size=8, batch_size=16',
  '--seeds 1,1': '--seeds is',
  '--seeds 20261125': '(one seed has a comma: 42,)',
  '--from none': 'holds no sweep',
  f'--config {READY}:norm --vary model.norm=rms_norm': 'model.norm is set twice',
  f'--config {READY}:norm --arms norm=layer': 'did you mean',
  f'--config {READY}:norm --arms norm=rms_norm,norm=rms_norm': 'two arms are called',
  f'--config {READY}:norm --config.model.norm=rms_norm': 'every arm sets model.norm',
  f'--config {READY}:norm+pairs': 'are not of one config',
  f'--config {READY}:batch,learning_rate': 'two of the ablations set optimizer.learning_rate',
}


@pytest.mark.parametrize('words', REFUSED)
def test_a_slip_is_one_sentence_before_anything_begins(words, tmp_path, capsys):
  command = ['--config', PRETRAIN, '--workdir', str(tmp_path / 'S'), '--dry-run', *words.split(' ')]
  code, _, said = swept(capsys, *command)
  assert code == 2 and said.count('\n') == 1 and REFUSED[words] in said
  assert not (tmp_path / 'S').exists()


def test_seeds_are_a_number_or_a_list():
  for text, seeds in {'3': [0, 1, 2], '5,6,9': [5, 6, 9], '7,': [7]}.items():
    assert sweep_arms.seeds_of(text) == seeds


# ---- Ready ablations ----------------------------------------------------------------------------


def test_every_ready_ablation_is_a_sweep():
  """All arms load and differ; they are evaluated alike, on as many rows, except where rows or
  vocabularies are what is varied."""
  file = runpy.run_path(READY)
  for number, (name, (kind, _)) in enumerate(file['ABLATIONS'].items()):
    spec = f'{READY}:{name}{",runlocal" if number % 2 else ""}'
    configs = [run.config for run in sweep_arms.runs_of(spec, sweep_arms.arms_of(spec, []), (0,))]
    assert len({c.fingerprint(config) for config in configs}) == len(configs) > 1, name
    rows = {config.eval.batches * config.batch_size for config in configs}
    assert max(rows) <= 1.05 * min(rows), name  # each curve is of as many rows
    under = {str(TASKS[config.objective].judged_under(config)) for config in configs}
    assert len(under) == 1 or name in ('packing', 'pairs', 'objectives'), under
    if kind == 'words':
      assert {config.loss.nsp_weight for config in configs} == {0.0}
  with pytest.raises(InputError, match='name one of the ablations masking_rate'):
    c.load(f'{READY}:runlocal')


def test_ready_ablations_stand_side_by_side_or_cross():
  first = {'model.norm': 'layer_norm', 'model.position_embeddings': 'learned'}
  arms = sweep_arms.arms_of(f'{READY}:norm+positions,runlocal', [])
  assert len(arms) == 1 + 1 + 4 and next(iter(arms.values())) == first
  assert arms['position_embeddings=alibi'] == first | {'model.position_embeddings': 'alibi'}
  arms = sweep_arms.arms_of(f'{READY}:norm,positions,runlocal', [])
  assert len(arms) == 2 * 5
  both = {'model.norm': 'rms_norm', 'model.position_embeddings': 'alibi'}
  assert arms['norm=rms_norm,position_embeddings=alibi'] == both


def test_arms_of_other_depths_have_as_many_parameters():
  spec, counts = f'{READY}:depth_width,runlocal', []
  for run in sweep_arms.runs_of(spec, sweep_arms.arms_of(spec, []), (0,)):
    shapes = jax.eval_shape(objective_of(run.config).init, jax.random.key(0))
    counts.append(sum(x.size for x in jax.tree.leaves(shapes)))
  assert max(counts) < 1.08 * min(counts)  # widths are multiples of 8


# ---- The plan -----------------------------------------------------------------------------------


def test_a_sweep_joins_the_earlier_one_in_its_folder(tmp_path):
  """Its arms are added to what has begun; the baseline stays unless --baseline names another."""

  def content(*words):
    return planned(tmp_path, '--seeds=1', *words)[1]

  runs, _ = planned(tmp_path, '--seeds=1', '--vary=batch_size=16,8,4')
  for run in runs[:2]:
    contents.claim(tmp_path / run.folder, run.config)
  again = content('--vary=batch_size=8,17')
  assert again['baseline'] == 'batch_size=16'
  assert list(again['runs']) == [f'batch_size={x},seed=0' for x in (16, 8, 17)]
  assert content('--vary=batch_size=8,17', '--baseline=batch_size=8')['baseline'] == 'batch_size=8'


def test_a_plan_names_folders_of_its_own(tmp_path):
  planned_run = {'arm': 'a', 'spec': 'x.py', 'fields': []}
  runs = {'../secret': planned_run, 'b,seed=0': planned_run | {'arm': '../../b'}, 'a': planned_run}
  (tmp_path / 'sweep.json').write_text(json.dumps({'runs': runs}))
  found = records.read_sweep(tmp_path)
  assert list(found.runs) == ['a'] and 'no name of a run' in found.faults[0]


def test_an_evaluation_that_is_never_reached_is_said(tmp_path, capsys):
  words = f'--config {PRETRAIN} --workdir {tmp_path} --seeds 2 --dry-run --config.steps=49'.split()
  for every, expected in (50, 1), (49, 0), (0, 0):
    code, said, log = swept(capsys, *words, f'--config.eval.every={every}')
    assert code == 0 and log.count('eval.every=50 is never reached in 49 steps') == expected
  assert said.splitlines()[1] == 'seed=0  0 of 49  -'


def test_what_is_missing_is_told_before_the_first_run(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(jobs, 'started', lambda *_: pytest.fail('a run'))
  run, released = tmp_path / 'run', tmp_path / 'released'
  for folder, content in ((run, c.to_json(c.load(PRETRAIN))), (released, '{"hidden_size": 8}')):
    folder.mkdir()
    (folder / 'config.json').write_text(content)
  (tmp_path / 'a.txt').write_text('A text.')
  finetune = 'configs/finetune.py:runlocal'
  for spec, vary, said in (
    (PRETRAIN, f'data.train={tmp_path}/a.txt,{tmp_path}/b.txt', "b.txt' does not exist"),
    (PRETRAIN, 'tokenizer.path=,v.txt', 'tokenizer.path=v.txt is no file'),
    (finetune, f'init_from=,{tmp_path}/none', 'none holds no run and no model'),
    (finetune, f'init_from=,{run}', 'run holds no checkpoint; train it first'),
    (finetune, f'init_from=,{released}', 'released has no model.safetensors'),
  ):
    words = f'--config {spec} --workdir {tmp_path}/S --seeds 2 --vary {vary} --config.steps=4'
    code, _, log = swept(capsys, *words.split())
    assert code == 2 and said in log and vary.partition('=')[0] in log, log
    assert not (tmp_path / 'S' / 'sweep.json').exists()


# ---- Training -----------------------------------------------------------------------------------


def test_a_sweep_trains_as_by_hand(tmp_path, corpus_file, capsys, monkeypatch):
  """Each run once, by the command that --print gives."""
  root = tmp_path / 'S'
  monkeypatch.setattr(child, '__name__', 'child_without_a_model')
  monkeypatch.setenv('PYTHONPATH', f'{ROOT}/tests')
  often = [f'--config.{name}.every=2' for name in ('eval', 'checkpoint', 'log')]
  command = f'--config {PRETRAIN} --workdir {root} --seeds 1 --config.steps=4'.split()
  command = [*small_overrides(corpus_file), *command, *often]
  code, said, log = swept(capsys, *command)
  assert code == 0 and 'masked words and next sentences: mlm' in said, log[-3000:]
  assert 'step 2/4' in (root / 'logs' / 'seed=0.txt').read_text()
  assert log.count('seed=0: warning: so few tokens are held out that') == 1
  _, said, _ = swept(capsys, *command, '--print')
  environment, *words = shlex.split(said)
  assert environment == f'JAX_COMPILATION_CACHE_DIR={root}/.jax_cache' and words[0] == 'python'
  ran = json.loads((root / 'seed=0' / 'run.json').read_text())['commands'][0]['argv'][1:]
  assert words[1:] == ['-m', 'bert_jax.train', *ran]
  _, said, _ = swept(capsys, *command, '--dry-run')
  assert re.search(r'seed=0 +4 of 4 +done\n', said)


def test_as_many_runs_as_processes_train_at_once_each_on_its_cores(tmp_path, monkeypatch):
  together, places, cores, shares = threading.Barrier(2), [], set(range(5)), []

  def started(run, root, number, count):
    """Ends once another run trains, too."""
    places.append((number, count))
    (root / run.folder).mkdir()
    together.wait(20)
    return subprocess.Popen(['true'], stdin=subprocess.PIPE)

  monkeypatch.setattr(jobs, 'started', started)
  ended = jobs.run_all([run_of(f'seed={i}') for i in range(6)], tmp_path, 2)
  assert [*ended.values()] == ['done'] * 6
  assert set(places) == {(0, 2), (1, 2)} and len(places) == 6
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: cores)
  monkeypatch.setattr(os, 'sched_setaffinity', lambda _, some: shares.append(set(some)))
  for number in range(2):
    child.take_cores(number, 2)
  assert shares == [{0, 2, 4}, {1, 3}]


def test_warnings_of_runs_are_shown_once(tmp_path, monkeypatch, capsys):
  def started(run, root, number, count):
    (root / run.folder).mkdir()
    log = (
      f'warning: of an earlier try\n==== {run.folder}\nwarning: few\nread\nwarning: {run.folder}\n'
    )
    (root / 'logs' / f'{run.folder}.txt').write_text(log)
    return subprocess.Popen(['true'], stdin=subprocess.PIPE)

  monkeypatch.setattr(jobs, 'started', started)
  jobs.run_all([run_of('a'), run_of('b')], tmp_path, 1)
  shown = [x for x in capsys.readouterr().err.splitlines() if x.startswith(('a:', 'b:'))]
  expected = ['a: warning: a', 'a: warning: few', 'a: done']
  assert shown == [*expected, 'b: warning: b', 'b: done']


def test_how_a_run_ended_is_its_exit_code_and_the_last_line_that_it_printed(tmp_path, monkeypatch):
  given, ends = [], {'a': [0], 'b': [3], 'c': [2], 'd': ['kill -9 $$']}

  def started(run, root, number, count):
    given.append(run.folder)
    end = ends[run.folder].pop(0)
    (root / run.folder).mkdir(exist_ok=True)
    command = f'echo error: why it ended >> {root}/logs/{run.folder}.txt; '
    command += end if isinstance(end, str) else f'exit {end}'
    return subprocess.Popen(['sh', '-c', command], stdin=subprocess.PIPE)

  monkeypatch.setattr(jobs, 'started', started)
  runs = [run_of(name) for name in ends]
  ended = jobs.run_all(runs, tmp_path, 1)  # a failed one does not stop the rest
  assert given == ['a', 'b', 'c', 'd']
  assert ended == {'a': 'done', 'b': 'stopped', 'c': 'failed', 'd': 'failed'}
  errors = {name: records.read_outcome(tmp_path, name).error for name in ends}
  killed = 'its process was killed (status -9)'
  assert errors == {'a': '', 'b': 'why it ended', 'c': 'why it ended', 'd': killed}
  assert [jobs.state_of(tmp_path, run) for run in runs] == [*ended.values()]
  assert jobs.state_of(tmp_path, run_of('a', 'eval.batches=3')) == ''  # another evaluation
  ends |= {'b': [0], 'c': [0], 'd': [0]}
  assert {*jobs.run_all(runs, tmp_path, 1).values()} == {'done'}
  assert given[4:] == ['b', 'c', 'd']  # what is done is left out


def test_a_sweep_that_is_stopped_lets_its_runs_save_themselves(tmp_path, monkeypatch):
  begun = []

  def started(run, root, number, count):
    """Ends, as a child of a sweep does, when its standard input is closed."""
    begun.append(run.folder)
    return subprocess.Popen(['sh', '-c', 'cat; exit 130'], stdin=subprocess.PIPE)

  def interrupted(*_):
    while len(begun) < 2:
      time.sleep(0.01)
    raise KeyboardInterrupt

  monkeypatch.setattr(jobs, 'started', started)
  monkeypatch.setattr(jobs.futures, 'wait', interrupted)
  runs = [run_of(f'seed={i}') for i in range(4)]
  for run in runs:
    (tmp_path / run.folder).mkdir()
  with pytest.raises(KeyboardInterrupt):
    jobs.run_all(runs, tmp_path, 2)
  states = [jobs.state_of(tmp_path, run) for run in runs]
  assert sorted(begun) == ['seed=0', 'seed=1'] and states == ['stopped', 'stopped', '', '']


def test_a_child_ends_with_the_sweep(tmp_path, monkeypatch):
  words, asked = ['--workdir', str(tmp_path / 'run'), '--config', PRETRAIN], []
  monkeypatch.setattr(train, 'main', lambda _: asked.append(sys.argv))
  monkeypatch.setattr(sys, 'argv', ['child', '0', '1', *words])
  monkeypatch.setattr(sys, 'stdin', io.StringIO())  # closed, as that of a sweep that is gone
  monkeypatch.setattr(os, 'kill', lambda *given: asked.append(given))
  monkeypatch.setattr(os, '_exit', asked.append)
  monkeypatch.setattr(child, 'PATIENCE', 0)
  child.main()
  while len(asked) < 3:
    time.sleep(0.01)
  asked.remove([train.__file__, *words])
  assert asked == [(os.getpid(), signal.SIGTERM), 1]


@pytest.mark.parametrize(
  'visible, devices, shares',
  [
    (None, ['0', '1', '0'], '0.45'),  # of the machine's two
    ('3', ['3', '3', '3'], '0.30'),
    ('1,0,5', ['1', '0', '5'], None),
    ('', [''] * 3, None),
  ],
)
def test_runs_share_the_gpus_that_the_user_lets_them_see(
  visible, devices, shares, tmp_path, monkeypatch
):
  made = []
  (tmp_path / 'logs').mkdir()
  monkeypatch.setattr(
    jobs.subprocess, 'Popen', lambda command, env, **_: made.append((command, env))
  )
  monkeypatch.setattr(Path, 'glob', lambda *_: ['nvidia0', 'nvidia1'])
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  monkeypatch.delenv('XLA_PYTHON_CLIENT_MEM_FRACTION', raising=False)
  if visible is not None:
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
  for number in range(3):
    jobs.started(run_of('x'), tmp_path, number, 3)
  assert [env['CUDA_VISIBLE_DEVICES'] for _, env in made] == devices
  assert {env.get('XLA_PYTHON_CLIENT_MEM_FRACTION') for _, env in made} == {shares}
  assert made[2][0][1:5] == ['-m', child.__name__, '2', '3']
  assert made[0][1]['JAX_COMPILATION_CACHE_DIR'] == str(tmp_path / '.jax_cache')


def test_a_folder_belongs_to_one_sweep_at_a_time(tmp_path, capsys):
  command = f'--config {PRETRAIN} --workdir {tmp_path} --seeds 1 --print'.split()
  with lock.held(tmp_path):
    code, said, log = swept(capsys, *command)
    assert code == lock.Busy.code and f'{tmp_path} is in use: process ' in log and not said
  code, said, log = swept(capsys, *command)
  assert not code and said.count('bert_jax.train') == 1
