"""The runs of a sweep: which there are, that each is trained once, and that they are the same runs
as by hand."""

import io
import itertools
import json
import os
import re
import runpy
import shlex
import shutil
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
from bert_jax.timeline import Moment
from bert_jax.tools.preflight.estimate import objective_of
from bert_jax.tools.sweep import __main__ as sweep
from bert_jax.tools.sweep import arms as sweep_grid
from bert_jax.tools.sweep import child, draws, plan
from bert_jax.tools.sweep import jobs as sweep_jobs
from bert_jax.workdir import contents, lock, records
from bert_jax.workdir.recorded import Facts, Outcome, Point, Run, Split

PRETRAIN = 'configs/pretrain.py:runlocal'


def runs_of(vary, seeds=(0,), spec='f.py', **more):
  arms, _ = sweep_grid.arms_of(spec, vary, **more)
  return {run.folder: run for run in sweep_grid.runs_of(spec, arms, seeds)}


@pytest.fixture(autouse=True)
def files_without_sweep(monkeypatch):
  """'f.py' is a config file that is not there and has no sweep()."""
  real = sweep_grid.arms_of_file
  monkeypatch.setattr(sweep_grid, 'arms_of_file', lambda x: {} if x[:4] == 'f.py' else real(x))


def test_a_sweep_is_every_combination_in_a_folder_of_its_own():
  assert sweep_grid.arms_of('f.py', ['a=1,2', 'b=3,4'])[1] == 'a=1,b=3'  # the first is the baseline
  assert sweep_grid.arms_of('f.py', []) == ({'': {}}, '')
  found = runs_of(['optimizer.beta1=0.8,0.9', 'init_from=,a/b'], (0, 1))
  every = itertools.product(('0.8', '0.9'), ('none', 'a_b'), (0, 1))
  assert list(found) == [f'optimizer.beta1={x},init_from={y},seed={z}' for x, y, z in every]
  fields = found['optimizer.beta1=0.9,init_from=a_b,seed=1'].fields
  assert fields == [f'--config.{x}' for x in ('optimizer.beta1=0.9', 'init_from=a/b', 'seed=1')]
  assert found['optimizer.beta1=0.8,init_from=none,seed=0'].fields[1] == '--config.init_from='
  with pytest.raises(InputError, match="--vary 'seed' is not NAME=VALUE"):
    runs_of(['seed'])


def test_a_sweep_varies_arguments_of_the_config_file():
  found = runs_of([':b=1,2', 'steps=3'], spec='f.py:a')
  fields = ['--config.steps=3', '--config.seed=0']
  assert [tuple(run)[:4] for run in found.values()] == [
    (f'b={b},steps=3,seed=0', f'b={b},steps=3', f'f.py:a,b={b}', fields) for b in '12'
  ]
  (run,) = runs_of([':size=4/256'], spec='configs/pretrain.py').values()
  assert c.load(run.spec).model.hidden_size == 256
  (run,) = runs_of([], spec='configs/pretrain.py').values()
  assert c.load(run.spec) == c.load('configs/pretrain.py') and run.folder == 'seed=0'


SEEDS = {'3': (0, 1, 2), '5,6,9': (5, 6, 9), '7,': (7,), '5-7': (5, 6, 7), '20261125,': (20261125,)}


def test_seeds_are_a_number_or_a_list():
  for text, seeds in SEEDS.items():
    assert draws.seeds_of(text) == seeds
  # The last one is long, and said to be none at once.
  for text in (
    '0',
    'x',
    '1,1',
    '9-5',
    '',
    '-3',
    '1,a',
    '\u00b2',
    '5,\u0663',
    '123456789 ' * 9 + ';',
  ):
    with pytest.raises(InputError, match='--seeds is .* give how many, or a list such as 5,6,9'):
      draws.seeds_of(text)


def test_a_sweep_of_millions_of_runs_is_a_slip():
  for seeds in ('20261125', '0-99999999'):
    with pytest.raises(InputError, match='--seeds .*one seed is named by a comma'):
      draws.seeds_of(seeds)
  with pytest.raises(InputError, match='--seeds is'):
    draws.seeds_of('0-' + '9' * 40)
  with pytest.raises(InputError, match='10,000; give fewer'):
    runs_of([f'a={",".join(map(str, range(200)))}'], range(100))
  with pytest.raises(InputError, match='--vary: these are 1,000,000,000,000 runs'):
    runs_of([f'{name}={",".join(map(str, range(1000)))}' for name in 'abcd'])
  with pytest.raises(InputError, match='--random: these are 99,999,999'):
    runs_of(['a=1,2'], draws=99_999_999)


def planned(root, *words, spec=PRETRAIN, fields=()):
  """(the runs of a command line, the content of its sweep.json, which is written)."""
  args = sweep.parser().parse_args(['--config', spec, '--workdir', str(root), *words])
  runs, baseline = plan.planned(args, fields)
  content = plan.content_of(root, runs, baseline, args)
  sweep.write(root, content)
  return runs, content


def test_a_plan_names_folders_of_its_own_and_runs_no_code(tmp_path):
  (tmp_path / 'S').mkdir()
  (tmp_path / 'evil.py').write_text('raise SystemExit("it ran")')
  planned = {'arm': 'a', 'spec': f'{tmp_path}/evil.py', 'fields': [3]}
  runs = {'../secret': planned, 'b,seed=0': planned | {'arm': '../../b'}, 'a,seed=0': planned}
  (tmp_path / 'S' / 'sweep.json').write_text(json.dumps({'runs': runs}))
  found = records.read_sweep(tmp_path / 'S')
  assert list(found.runs) == ['a,seed=0'] and 'no name of a run' in found.faults[0]
  arms, _ = sweep_grid.arms_before(str(tmp_path / 'S'))
  assert list(arms) == ['a']
  (tmp_path / 'S' / 'sweep.json').write_text(json.dumps({'runs': {'a,seed=0': planned}}))
  contents.claim(tmp_path / 'S' / 'a,seed=0', c.load(PRETRAIN))
  args = sweep.parser().parse_args(['--config', PRETRAIN, '--workdir', str(tmp_path / 'S')])
  for spec in (PRETRAIN, planned['spec']):
    config = c.load(PRETRAIN, ['--config.seed=1'])
    run = sweep_grid.Run('a,seed=0', 'a', spec, ['--config.seed=1'], config)
    assert plan.content_of(tmp_path / 'S', [run], '', args)['runs']['a,seed=0']['spec'] == spec


def test_a_sweep_of_another_config_file_writes_over_no_run(tmp_path):
  """As fine-tuning would with --from S --workdir S, whose arms are called alike: neither the plan
  nor how a run ended is lost, and a dry run says so. The same config may be written otherwise."""
  more = '--vary', 'model.hidden_dropout_prob=0.1,0.2', '--seeds', '1'
  runs, content = planned(tmp_path, *more)
  for run in runs:
    contents.claim(tmp_path / run.folder, run.config)
    outcome = Outcome('done', config=sweep_jobs.fingerprint(run.config))
    (tmp_path / 'logs' / f'{run.folder}.json').write_text(json.dumps(outcome._asdict()))
  same, _ = planned(tmp_path, *more, spec=f'{ROOT}/{PRETRAIN}')
  assert [sweep_jobs.state_of(tmp_path, run).state for run in same] == ['done', 'done']
  planned(tmp_path, *more)
  before = (tmp_path / 'sweep.json').read_bytes()
  for words in ((), ('--dry-run',)):
    with pytest.raises(InputError, match=f'is a run of {PRETRAIN}; give this sweep a --workdir'):
      planned(tmp_path, *more, *words, spec='configs/causal_lm.py:runlocal')
  assert (tmp_path / 'sweep.json').read_bytes() == before and content['baseline']


def test_fields_move_together_and_values_may_have_commas():
  found = runs_of(['a=1,2;b=3,4', "c=(1,2),'x,y;z'"])
  assert [run.fields[:3] for run in found.values()] == [
    [f'--config.a={a}', f'--config.b={b}', f'--config.c={value}']
    for a, b in ('13', '24')
    for value in ('(1,2)', 'x,y;z')
  ]
  assert all(re.fullmatch(r'[\w.,=-]+', name) for name in found) and len(found) == 4
  # As a field reads it.
  (run, _) = runs_of(["optimizer.lr_multipliers=(('a', 2.0),),()"], spec=PRETRAIN).values()
  assert c.load(run.spec, run.fields).optimizer.lr_multipliers == (('a', 2.0),)
  for wrong, said in (
    ('a=1,2;b=3', 'has 2 of a, 1 of b; give each as many values'),
    ('a=(1,2', 'not closed'),
    ('a=1)', 'not closed'),
    ("a='1,2", 'not closed'),
    ('a=x/y,x_y', 'two arms are called a=x_y'),
    ('a=1;a=2', 'sets a twice; give it once'),
  ):
    with pytest.raises(InputError, match=re.escape(said)):
      runs_of([wrong])
  with pytest.raises(InputError, match='^a is in several --vary, .* as one, --vary a=V1,V2'):
    runs_of(['a=1', 'b=2;a=3'])


def test_one_factor_at_a_time_around_a_baseline(monkeypatch):
  vary = ['optimizer.beta1=0.8,0.9', 'batch_size=16,32,64']  # 0.9 and 32 are the config's
  arms, name = sweep_grid.arms_of(PRETRAIN, vary, '')
  assert name == 'baseline' and arms == {
    'baseline': {},
    'optimizer.beta1=0.8': {'optimizer.beta1': '0.8'},
    'batch_size=16': {'batch_size': '16'},
    'batch_size=64': {'batch_size': '64'},
  }
  arms, _ = sweep_grid.arms_of(PRETRAIN, vary, 'batch_size=64;optimizer.beta1=0.8')
  name = 'batch_size=64,optimizer.beta1=0.8'
  assert arms[name] == {'batch_size': '64', 'optimizer.beta1': '0.8'}
  assert list(arms) == [name, 'optimizer.beta1=0.9', 'batch_size=16', 'batch_size=32']
  # A value that is the baseline's own is no other arm.
  assert list(sweep_grid.arms_of(PRETRAIN, vary[1:], 'batch_size=16')[0])[::2] == [
    'batch_size=16',
    'batch_size=64',
  ]
  assert arms['batch_size=16'] == {'batch_size': '16', 'optimizer.beta1': '0.8'}
  # Epochs that are given are exact, those of the baseline too, which has 3, else of 100 steps.
  spec, both = 'configs/finetune.py:task=sst2', {'min_steps': '0', 'epochs': '2'}
  expected = {'baseline': {'min_steps': '0'}, 'epochs=2': both}
  assert sweep_grid.arms_of(spec, ['epochs=3,2'], '')[0] == expected
  arms, _ = sweep_grid.arms_of(spec, ['epochs=3,2'], '', overrides=['--config.min_steps=7'])
  assert arms == {'baseline': {}, 'epochs=2': {'epochs': '2'}}
  # But not where their fewest steps are given beside them, or by an arm.
  arms, _ = sweep_grid.arms_of(spec, ['epochs=2,4;min_steps=50,70'], '')
  assert arms['baseline'] == {} and list(arms.values())[1] == {'epochs': '2', 'min_steps': '50'}
  arms, _ = sweep_grid.arms_of(spec, ['epochs=2,4'], 'min_steps=70')
  assert arms['min_steps=70'] == {'min_steps': '70'} and arms['epochs=2']['min_steps'] == '70'
  monkeypatch.setattr(sweep_grid, 'arms_of_file', lambda _: {'a': {'min_steps': '60'}, 'b': {}})
  arms, _ = sweep_grid.arms_of(spec, ['epochs=2,4'], '')
  assert [arms[x]['min_steps'] for x in ('a', 'b', 'epochs=2')] == ['60', '0', '60']
  monkeypatch.undo()
  for wrong, said in (
    ('batchsize=64', 'did you mean'),
    ('batch_size=16,32', 'has several values'),
    ('7', "--baseline '7' is not NAME=VALUE"),
  ):
    with pytest.raises(InputError, match=said):
      sweep_grid.arms_of(PRETRAIN, vary, wrong)


def test_a_baseline_is_an_arm_by_its_name(tmp_path):
  """It comes first, and its folders are the same: nothing is trained twice."""
  spec, ready = 'configs/ablations.py:positions,runlocal', 'position_embeddings'
  arms, _ = sweep_grid.arms_of(spec, [])
  others = [name for name in arms if name != f'{ready}=rotary']
  for text in (f'{ready}=rotary', f'model.{ready}=rotary'):  # by its only field, too
    found, baseline = sweep_grid.arms_of(spec, [], text)
    assert found == arms and baseline == f'{ready}=rotary'
    assert list(found) == [baseline, *others]
  rates = 'configs/ablations.py:masking_rate,runlocal'
  found, baseline = sweep_grid.arms_of(rates, [], 'masking.masked_lm_prob=.20')
  assert baseline == 'masked_lm_prob=0.2' and len(found) == 7
  # Each value is changed in it.
  found, baseline = sweep_grid.arms_of(spec, ['batch_size=8,16'], f'{ready}=rotary')
  assert list(found) == [baseline, *others, 'batch_size=8', 'batch_size=16']
  assert found['batch_size=8'] == arms[baseline] | {'batch_size': '8'}
  # An arm of --vary as it is printed, and of --random.
  vary = ['optimizer.beta1=0.8,0.9', 'batch_size=16,8']
  arms, first = sweep_grid.arms_of(PRETRAIN, vary)
  for quotation in ('', '"'):
    name = 'optimizer.beta1=0.9,batch_size=8'
    found, baseline = sweep_grid.arms_of(PRETRAIN, vary, f'{quotation}{name}{quotation}')
    assert found == arms and next(iter(found)) == baseline == name != first
  arms, _ = sweep_grid.arms_of(PRETRAIN, ['optimizer.beta1=uniform(0.8,0.9)'], draws=3)
  last = list(arms)[-1]
  drawn = sweep_grid.arms_of(PRETRAIN, ['optimizer.beta1=uniform(0.8,0.9)'], last, 3)
  assert drawn == (arms, last)
  for text in ('0.9', '0.90'):  # otherwise written: one run, one name
    found, name = sweep_grid.arms_of(PRETRAIN, vary[:1], f'optimizer.beta1={text}')
    assert list(found) == [name, 'optimizer.beta1=0.8'] and name == 'optimizer.beta1=0.9'
  plain = '--seeds', '1', '--vary', 'batch_size=16,8'
  before = planned(tmp_path, *plain)[1]
  again = planned(tmp_path, *plain, '--baseline', 'batch_size=8')[1]
  assert again['runs'] == before['runs'] and again['baseline'] == 'batch_size=8'
  have = f'not an arm, of which there are {", ".join(f"{ready}={x}" for x in ("learned", "sinus"))}'
  for axes, text, said in (
    ([], 'rotary', f"{have}.*; nor a setting: --baseline 'rotary' is not NAME=VALUE"),
    ([], f'{ready}=rotry', f"{have}.*; did you mean '{ready}=rotary'"),
    ([f'model.{ready}=alibi'], 'norm=post', f"{have}.*; nor .* did you mean 'model.norm'"),
    (['steps=5,6'], 'steps=9,6', f'not an arm, of .* "{ready}=learned,steps=5", '),
  ):
    with pytest.raises(InputError, match=said):
      sweep_grid.arms_of(spec, axes, text)


def test_a_field_that_every_arm_sets_is_not_given_beside_them():
  for spec, vary, baseline in (
    (PRETRAIN, ['model.norm=rms_norm,layer_norm'], None),
    (PRETRAIN, ['batch_size=8'], 'model.norm=rms_norm'),
    ('configs/ablations.py:norm,runlocal', [], None),
  ):
    arms, _ = sweep_grid.arms_of(spec, vary, baseline)
    with pytest.raises(InputError, match='^every arm sets model.norm, so that --config.model.norm'):
      sweep_grid.runs_of(spec, arms, (0,), ['--config.model.norm=rms_norm'])
  arms, _ = sweep_grid.arms_of(PRETRAIN, ['batch_size=8,16'], '')  # one keeps it
  assert len(sweep_grid.runs_of(PRETRAIN, arms, (0,), ['--config.batch_size=4'])) == 3


def test_ready_ablations_stand_side_by_side_or_cross():
  arms, baseline = sweep_grid.arms_of('configs/ablations.py:norm+positions,runlocal', [])
  assert baseline == 'norm=layer_norm,position_embeddings=learned' and len(arms) == 1 + 1 + 4
  first = {'model.norm': 'layer_norm', 'model.position_embeddings': 'learned'}
  assert arms[baseline] == first and arms['norm=rms_norm'] == first | {'model.norm': 'rms_norm'}
  assert arms['position_embeddings=alibi'] == first | {'model.position_embeddings': 'alibi'}
  arms, baseline = sweep_grid.arms_of('configs/ablations.py:norm,positions,runlocal', [])
  assert len(arms) == 2 * 5 and arms[baseline] == first
  both = arms['norm=rms_norm,position_embeddings=alibi']
  assert both == {'model.norm': 'rms_norm', 'model.position_embeddings': 'alibi'}
  # An arm keeps what it sets itself; what two set otherwise cannot cross.
  arms, _ = sweep_grid.arms_of('configs/ablations.py:batch+learning_rate,runlocal', [])
  rates = {name: arm['optimizer.learning_rate'] for name, arm in arms.items()}
  assert rates['batch_size=64'] == '0.0056569' and rates['learning_rate=0.008'] == '0.008'
  with pytest.raises(InputError, match='two of the ablations set optimizer.learning_rate'):
    sweep_grid.arms_of('configs/ablations.py:batch,learning_rate,runlocal', [])
  with pytest.raises(InputError, match='norm and pairs are not of one config'):
    sweep_grid.arms_of('configs/ablations.py:norm+pairs', [])


def test_arms_that_differ_in_nothing_that_has_an_effect_are_no_runs(tmp_path, caplog):
  of = lambda spec, *words: plan.planned(
    sweep.parser().parse_args(['--config', spec, '--workdir', str(tmp_path), '--seeds=2', *words]),
    [],
  )
  rates = '--vary=masking.masked_lm_prob=0.15,0.3,0.6'
  runs, baseline = of('configs/ablations.py:objectives,runlocal', '--arms=causal,masked', rates)
  rate = 'masking.masked_lm_prob'
  kept = [f'causal,{rate}=0.15', *(f'masked,{rate}={x}' for x in (0.15, 0.3, 0.6))]
  assert [run.arm for run in runs[::2]] == kept and len(runs) == 8 and baseline == kept[0]
  said = f'{rate} changes nothing in {kept[0]} that a report compares; left out: '
  said += f'causal,{rate}=0.3 and 1 more'
  assert caplog.text.count(said) == 1
  all_same = f'all arms are the same: {rate} changes nothing here that a report compares; vary'
  with pytest.raises(InputError, match=all_same):
    of('configs/ablations.py:objectives,runlocal', '--arms=causal', rates)
  of('configs/pretrain.py:runlocal', factors := '--vary=corpus.dupe_factor=2,3')
  with pytest.raises(InputError, match='corpus.dupe_factor changes nothing here'):
    of('configs/ablations.py:norm,runlocal', '--arms=norm=layer_norm', factors)
  # The report counts runs of these as copies.
  lines = '--vary=log.every=10,20;optimizer.beta1=0.9,0.9'
  with pytest.raises(InputError, match='the same: log.every changes nothing here'):
    of(PRETRAIN, lines)
  runs, _ = of(PRETRAIN, '--vary=optimizer.beta1=0.8,0.7,0.80')
  assert [run.arm for run in runs[::2]] == ['optimizer.beta1=0.8', 'optimizer.beta1=0.7']
  assert 'equal to optimizer.beta1=0.8; left out: optimizer.beta1=0.80' in caplog.text
  runs, _ = of(PRETRAIN, '--vary=eval.seed={seed},0')  # equal in one seed alone
  assert len(runs) == 4
  with pytest.raises(InputError, match='optimizer.beta1=0.8 is also optimizer.beta1=0.80; vary'):
    of(PRETRAIN, '--vary=optimizer.beta1=0.8,0.80')
  for words, fields in ((['--vary=seed=1,2'], []), ([], ['--config.seed=5'])):
    with pytest.raises(InputError, match='are given by --seeds, such as --seeds 3 .*; drop seed='):
      planned(tmp_path, *words, fields=fields)
  for argument in ('task=sst2', 'objective=causal'):
    with pytest.raises(InputError, match=f'{argument} changes nothing in masking_rate; leave it'):
      of(f'configs/ablations.py:masking_rate,runlocal,{argument}')


def test_a_name_is_as_short_as_a_folder_wants_it():
  vary = [f'optimizer.a_field_with_a_long_name_{i}=1,2' for i in range(8)]
  arms, _ = sweep_grid.arms_of('f.py', vary)
  runs = sweep_grid.runs_of('f.py', arms, (12,))
  assert len({run.folder for run in runs}) == 2**8
  assert all(len(run.folder) < 240 and run.folder.endswith(',seed=12') for run in runs)


def test_a_random_search_draws_the_same_arms_and_goes_on(caplog):
  vary = ['optimizer.learning_rate=log(1e-4,1e-2)', 'model.norm=layer_norm,rms_norm']
  vary += ['seed2=integers(2,4)', 'd=uniform(0,0.5)']
  first, _ = sweep_grid.arms_of('f.py', vary, draws=20)
  more, _ = sweep_grid.arms_of('f.py', vary, draws=200)
  assert list(more.items())[:20] == list(first.items())
  rates = sorted(float(arm['optimizer.learning_rate']) for arm in more.values())
  assert 1e-4 <= rates[0] < 2e-4 and 5e-3 < rates[-1] <= 1e-2
  assert 6e-4 < rates[len(rates) // 2] < 1.6e-3  # the middle of the logarithms
  assert {arm['seed2'] for arm in more.values()} == {'2', '3', '4'}
  assert {arm['model.norm'] for arm in more.values()} == {'layer_norm', 'rms_norm'}
  assert sweep_grid.arms_of('f.py', vary, draws=20, draw_seed=1)[0] != first
  assert sweep_grid.arms_of('f.py', ['a=1,2', 'b=1,2'], draws=20)[1] == ''
  assert '16 of the arms that --random has drawn are equal' in caplog.text
  with pytest.raises(InputError, match='is a range, for a random search; add --random'):
    sweep_grid.arms_of('f.py', vary)
  with pytest.raises(InputError, match='no range of numbers'):
    sweep_grid.arms_of('f.py', ['a=log(0,1)'], draws=2)


def test_a_config_file_has_arms_of_its_own(tmp_path):
  path = tmp_path / 'mine.py'
  pretrain = Path('configs/pretrain.py').absolute()
  path.write_text(
    f"import runpy\nget_config = runpy.run_path('{pretrain}')['get_config']\n"
    "def sweep(arg):\n  return {'low': {'optimizer.beta1': 0.8}, 'high': {'optimizer.no_decay': "
    "'a', 'optimizer.lr_multipliers': (('a', 2.0),)}}\n"
  )
  arms, baseline = sweep_grid.arms_of(str(path), ['steps=1,2'])
  assert baseline == 'low,steps=1' and list(arms)[2:] == ['high,steps=1', 'high,steps=2']
  runs = sweep_grid.runs_of(str(path), arms, (0,))
  assert c.load(runs[-1].spec, runs[-1].fields).optimizer.lr_multipliers == (('a', 2.0),)
  # Around one baseline, its first arm.
  arms, baseline = sweep_grid.arms_of(str(path), ['steps=7,9;epochs=0,0'], 'batch_size=16')
  assert baseline == 'low' and list(arms) == ['low', 'high', 'steps=7,epochs=0', 'steps=9,epochs=0']
  assert arms['low'] == {'optimizer.beta1': '0.8', 'batch_size': '16'}
  assert arms['high']['batch_size'] == '16' and 'optimizer.beta1' not in arms['high']
  assert arms['steps=7,epochs=0'] == arms['low'] | {'steps': '7', 'epochs': '0'}
  twice = (
    'optimizer.beta1 is set by sweep.. of the config file and by --vary; .* --arms; --baseline ""'
  )
  with pytest.raises(InputError, match=twice):
    sweep_grid.arms_of(str(path), ['optimizer.beta1=0.7'])
  arms, baseline = sweep_grid.arms_of(str(path), [], only="'high', low")
  assert list(arms) == ['high', 'low'] and baseline == 'high'
  with pytest.raises(InputError, match="--arms 'hi' is not an arm of sweep.. .* has low, high"):
    sweep_grid.arms_of(str(path), [], only='low,hi')
  adds = r'which has low, high .--vary with --baseline "" adds others.'
  with pytest.raises(InputError, match=f"{adds}; did you mean 'high'"):
    sweep_grid.arms_of(str(path), [], only='hihg')
  arms, _ = sweep_grid.arms_of(str(path), ['optimizer.beta1=0.7'], '', only='low')
  assert arms['optimizer.beta1=0.7'] == {'optimizer.beta1': '0.7'} and len(arms) == 2
  with pytest.raises(InputError, match='which has none: drop --arms'):
    sweep_grid.arms_of(PRETRAIN, [], only='low')
  path.write_text('def sweep(arg):\n  return [1]\n')
  with pytest.raises(InputError, match=r'mine.py:1: sweep\(arg\) returns no'):
    sweep_grid.arms_of(str(path), [])


def test_runs_start_from_those_of_another_sweep(tmp_path, capsys):
  """Each from the one of the same arm and seed, in the folder that it was trained in."""
  root, there, spec = tmp_path / 'S', tmp_path / 'T', 'configs/finetune.py:runlocal'
  runs, _ = planned(root, '--vary', 'masking.masked_lm_prob=0.15,0.3', '--seeds', '4,7')
  after = f'--config {spec} --workdir {there} --from {root} --seeds 4,7 --vary steps=5,6;epochs=0,0'
  after = after.split()
  for folder, state in (('0.15,seed=4', 'finished'), ('0.15,seed=7', 'running')):
    path = root / f'masking.masked_lm_prob={folder}'
    checkpoint_at(path, 5)
    (path / 'summary.json').write_text(json.dumps({'state': state, 'step': 5}))
  unfinished = f'3 of the 4 runs to start from are not finished, the first of which is {path}; '
  for more in ([], ['--dry-run']):
    code, _, said = swept(capsys, *after, *more)
    assert code == 2 and unfinished in said and not there.exists()
  sweep.main([*after, '--print'])
  said = capsys.readouterr()
  assert unfinished in said.err
  starts = dict(
    re.search(r'--workdir (\S+) .*--config.init_from=(\S+)', ' '.join(shlex.split(line))).groups()
    for line in said.out.splitlines()
  )
  name = lambda run, steps: f'{run.arm},steps={steps},epochs=0,{run.folder.rpartition(",")[2]}'
  expected = {name(run, n): f'{root}/{run.folder}' for run in runs for n in (5, 6)}
  assert starts == {f'{there}/{folder}': source for folder, source in expected.items()}
  assert json.loads((there / 'sweep.json').read_text())['runs'].keys() == expected.keys()
  cases = ('low', '', 'low,steps=5'), ('', '', ''), ('', 'low', 'low,steps=5')
  for baseline, only, expected in cases:
    runs = {str(i): {'arm': x} for i, x in enumerate(('hi', 'low'))}
    (root / 'sweep.json').write_text(json.dumps({'baseline': baseline, 'runs': runs}))
    assert sweep_grid.arms_of(spec, ['steps=5,6'], before=str(root), only=only)[1] == expected
  before = {f'a.b={b},c={c}': {'arm': f'a.b={b},c={c}'} for b in (1, 2) for c in (1, 3)}
  (root / 'sweep.json').write_text(json.dumps({'runs': before}))
  chosen = lambda only: list(sweep_grid.arms_of(spec, [], before=str(root), only=only)[0])
  assert chosen("'a.b=2,c=1','a.b=1,c=3'") == ['a.b=2,c=1', 'a.b=1,c=3']
  with pytest.raises(
    InputError, match='--arms \'b=2\' is not an arm of --from, which has "a.b=1,c=1"'
  ):
    chosen('b=2')
  with pytest.raises(InputError, match=r"""\(in a shell --arms '"a.b=2,c=1"'\)"""):
    chosen('a.b=2')  # of which a shell has taken the quotation marks
  named = sweep_grid.arms_of(spec, [], 'a.b=2,c=1', before=str(root))
  assert named[1] == next(iter(named[0])) == 'a.b=2,c=1' and len(named[0]) == 4
  with pytest.raises(
    InputError, match='--from has other arms; drop one, or name one of these: "a.b'
  ):
    sweep_grid.arms_of(spec, ['steps=5,6'], '', before=str(root))
  with pytest.raises(InputError, match='ablations.py:layer_decay has arms of its own'):
    sweep_grid.arms_of('configs/ablations.py:layer_decay', [], before=str(root))
  for content in ('{"runs": 3}', '{}', '{'):
    (root / 'sweep.json').write_text(content)
    for before in (root, tmp_path / 'none'):
      with pytest.raises(InputError, match='holds no sweep; give the --workdir of one'):
        sweep_grid.arms_of(spec, [], before=str(before))


def test_every_ready_ablation_is_a_sweep():
  """All arms load; arms of one that learns masked words alone are evaluated alike, except where
  rows and vocabularies are what is varied."""
  file = runpy.run_path('configs/ablations.py')
  for number, (name, (kind, _)) in enumerate(file['ABLATIONS'].items()):
    spec = f'configs/ablations.py:{name}{",runlocal" if number % 2 else ""}'
    arms, baseline = sweep_grid.arms_of(spec, [])
    runs = sweep_grid.runs_of(spec, arms, (0,))
    loaded = [run._replace(config=c.load(run.spec, run.fields)) for run in runs]
    assert len(loaded) > 1 and baseline == next(iter(arms))
    assert len({c.fingerprint(run.config) for run in loaded}) == len(loaded), name
    rows = {run.config.eval.batches * run.config.batch_size for run in loaded}
    assert max(rows) <= 1.05 * min(rows), name  # each curve is of as many rows
    differ = plan.other_evaluations(loaded)
    apart = name in ('packing', 'vocabulary_size', 'vocabulary_kind', 'pairs')
    assert bool([x for x in differ if x[:7] != 'corpus.' or x == 'corpus.rows']) == apart, differ
    assert 'corpus.lengths' not in differ
    if kind == 'words':
      assert {run.config.loss.nsp_weight for run in loaded} == {0.0}
  with pytest.raises(InputError, match='name one of the ablations masking_rate'):
    c.load('configs/ablations.py:runlocal')


def test_a_sweep_says_how_long_its_runs_are_and_of_what_text():
  def said(spec, *each):
    load = lambda fields: c.load(spec, [f'--config.{x}' for x in fields.split()])
    return plan.size_of([sweep_grid.Run('', '', spec, [], load(fields)) for fields in each or ['']])

  # 1 M steps of 256 rows of 128 tokens are 32.8 B.
  whole = said('configs/pretrain.py:size=base')
  assert '1 runs, the longest of 1,000,000 steps of 256 rows, 32.8 B tokens' in whole
  assert 'data.train is empty' in whole and 'runlocal' in whole
  few, many = (f'data.train=a.txt batch_size={n} steps=700000' for n in (16, 24))
  named = said('configs/pretrain.py:size=base', few, many)
  assert named == '2 runs, the longest of 700,000 steps of 24 rows, 2.15 B tokens'
  assert 'empty' not in said('configs/pretrain.py:runlocal')
  short = said('configs/pretrain.py:runlocal', 'steps=37 batch_size=24 data.seq_length=48')
  assert short.endswith('37 steps of 24 rows, 42,624 tokens')
  assert said('configs/finetune.py:runlocal', 'epochs=1', 'epochs=2.5').endswith('to 2.5 epochs')


def test_arms_of_other_depths_have_as_many_parameters():
  spec, counts = 'configs/ablations.py:depth_width,runlocal', []
  for arm in sweep_grid.arms_of(spec, [])[0].values():
    config = c.load(*sweep_grid.arguments_of(spec, arm, '0'))
    shapes = jax.eval_shape(objective_of(config).init, jax.random.key(0))
    counts.append(sum(x.size for x in jax.tree.leaves(shapes)))
  assert max(counts) < 1.08 * min(counts)  # widths are multiples of 8


def flops_of_step(config):
  return plan.flops_of(config)(Moment(rows=config.batch_size))


def test_budgets_make_arms_comparable(tmp_path):
  vary = '--seeds=1', '--vary=batch_size=16,32;data.seq_length=64,32'
  parse = lambda *more: planned(tmp_path, *vary, *more)[0]
  assert [run.config.steps for run in parse('--tokens', '102400')] == [100, 100]
  flops = [flops_of_step(run.config) * run.config.steps for run in parse('--flops', '1e12')]
  assert flops == pytest.approx([1e12, 1e12], rel=0.02)
  with pytest.raises(InputError, match='does not pay for a step'):
    parse('--tokens', '100')


def test_the_flops_of_a_run_are_those_of_the_model_that_it_starts_from(tmp_path):
  spec, size = 'configs/finetune.py:runlocal', '--config.model.hidden_size=64'
  contents.claim(tmp_path / 'W', c.load(PRETRAIN, [size]))
  start = f'--config.init_from={tmp_path}/W'
  alone, started = (flops_of_step(c.load(spec, [x])) for x in (size, start))
  assert alone == started
  words = '--seeds', '1', '--flops', str(7 * alone)
  (run,), _ = planned(tmp_path / 'S', *words, spec=spec, fields=[start])
  assert run.config.steps == 7


def test_a_folder_belongs_to_one_sweep_at_a_time(tmp_path, capsys):
  command = f'--config {PRETRAIN} --workdir {tmp_path} --seeds 1'.split()
  with lock.held(tmp_path):
    for more in ([], ['--print']):
      code, said, log = swept(capsys, *command, *more)
      assert code == lock.Busy.code and f'{tmp_path} is in use: process ' in log and not said
  # A sweep that was killed leaves its lock, which holds nobody up.
  code = f'import os, time\nfrom bert_jax.workdir import lock\nwith lock.held({str(tmp_path)!r}):'
  subprocess.run([sys.executable, '-c', f'{code} os.kill(os.getpid(), 9)'], cwd=ROOT)
  assert (tmp_path / lock.NAME).read_text() and not (tmp_path / records.SWEEP).exists()
  code, said, log = swept(capsys, *command, '--print')
  assert not code and said.count('bert_jax.train') == 1 and 'waiting' not in log


def test_a_sweep_joins_the_earlier_one_in_its_folder(tmp_path, capsys, caplog, monkeypatch):
  """Its arms are added, and the baseline stays unless --baseline names another; of a plan what
  has not begun is replaced."""
  root = tmp_path / 'S'
  joined = lambda vary, *more: planned(root, '--seeds', '1', '--vary', vary, *more)[1]
  assert joined('batch_size=16,8')['baseline'] == 'batch_size=16'
  again = joined('batch_size=8,17')
  assert again['baseline'] == 'batch_size=8' and len(again['runs']) == 2
  assert 'has not begun is left out: batch_size=16,seed=0\n' in caplog.text
  assert joined('batch_size=16', '--baseline', '')['baseline'] == 'baseline'
  (root / 'baseline,seed=0').mkdir()  # of batch_size=16 a scheduler has not begun the run
  again = joined('optimizer.beta1=0.8')
  assert again['baseline'] == 'baseline' and len(again['runs']) == 2
  assert f'{root} keeps its baseline, baseline (' in caplog.text
  caplog.clear()
  (root / 'sweep.json').write_text(json.dumps(again | {'baseline': 'batch_size=16'}))
  assert joined('batch_size=8', '--baseline', '')['baseline'] == 'baseline'
  assert 'keeps its baseline' not in caplog.text
  assert 'has runs of' not in caplog.text
  specs = {name: run | {'spec': 'slip.py'} for name, run in again['runs'].items()}
  (root / 'sweep.json').write_text(json.dumps(again | {'runs': specs}))
  joined('optimizer.beta2=0.9')
  assert f'{root} has runs of slip.py too: a report has' in caplog.text
  (root / 'sweep.json').write_text(json.dumps(again | {'baseline': 'baseline'}))
  monkeypatch.setattr(sweep, 'show', lambda *_: None)
  command = f'--config {PRETRAIN} --workdir {root} --seeds 1 --vary optimizer.beta1=0.8 --dry-run'
  _, _, said = swept(capsys, *command.split())
  assert f'{root} keeps its baseline, baseline (' in said and 'the first arm' not in said
  # An arm that was trained is not another one of the same name.
  words = '--seeds', '1', '--vary', 'batch_size=16', '--baseline', ''
  around = lambda *fields: planned(root, *words, fields=[f'--config.{x}' for x in fields])
  around('optimizer.beta1=0.7')
  around()
  contents.claim(root / 'baseline,seed=0', c.load(PRETRAIN, ['--config.seed=0']))
  around('steps=7', 'epochs=0')  # a run may have another length
  with pytest.raises(InputError, match=r'with another config \(optimizer.beta1: 0.9 -> 0.7'):
    around('optimizer.beta1=0.7')
  with pytest.raises(InputError, match='no such steps; set it to 0'):
    joined('optimizer.decay=0.1')


@pytest.mark.parametrize(
  'length, steps',
  [('--config.steps=400', '400'), ('--config.steps=0 --config.epochs=2.0', '2 epochs')],
)
def test_what_is_trained_already_is_no_time_left(length, steps, tmp_path, capsys, monkeypatch):
  words = f'--config {PRETRAIN} --workdir {tmp_path} --seeds 4 --jobs 2 {length} --dry-run'
  names = [f'seed={seed}' for seed in range(4)]
  for seed, saved in ((1, 100), (1, 300), (1, 350), (3, 400)):
    checkpoint_at(tmp_path / f'seed={seed}', saved)
    if saved == 350:  # it is damaged, so the run goes on from the one before it
      (tmp_path / f'seed={seed}' / 'checkpoints' / '350' / 'meta' / 'metadata').write_text('{}')
    # Seconds of setup are spent again; it had fewer epochs.
    summary = {'steps': 400 if seed == 3 else 350, 'seconds': {'setup': 200.0}}
    rows = {'rows': 200 * c.load(PRETRAIN).batch_size}
    (tmp_path / f'seed={seed}' / 'run.json').write_text(json.dumps({'data': {'train': rows}}))
    (tmp_path / f'seed={seed}' / 'summary.json').write_text(json.dumps(summary))
  monkeypatch.setattr(sweep, 'times', lambda *_: (dict.fromkeys(names, 1000.0), 'known'))
  ended = lambda _, run, *faults: Outcome('done' if run.folder == 'seed=3' else '')
  monkeypatch.setattr(sweep_jobs, 'state_of', ended)
  sweep.main(words.split())
  said = [re.split(' {2,}', line) for line in capsys.readouterr().out.splitlines()]
  assert said[1:5] == [
    ['seed=0', f'0 of {steps}', '17 min', '-'],
    ['seed=1', '300 of 400', '7 min', 'begun'],
    ['seed=2', f'0 of {steps}', '17 min', '-'],
    ['seed=3', '400 of 400', '0 s', 'done'],
  ]
  assert said[5] == ['4 runs; time left: 20 min with --jobs 2 (known)']


def test_the_expected_time_counts_starts_epochs_and_evaluations(monkeypatch, tmp_path):
  """By a trial of the first run: 0.5 s for each of 4 steps, 9 s to start, of which the second seed
  of an arm needs no 4 s to compile."""
  given = 'steps=0 epochs=3.0 eval.every=10 eval.batches=2 data.seq_length=32'
  given = [f'--config.{x}' for x in given.split()]
  runs, _ = planned(tmp_path, '--seeds', '2', '--vary', 'batch_size=8,16', fields=given)
  flops = flops_of_step(runs[0].config)
  data = {'train': Split(rows=121), 'eval': Split(rows=50)}
  facts = Facts(data=data, flops_per_step=flops, compile_seconds=4.0)
  there = Run(tmp_path, runs[0].config, {}, '', facts, points=(Point(4, 'train', {'steps': 4}),))
  monkeypatch.setattr(sweep_jobs, 'tried', lambda run, count: (there, 2.0, 9.0))
  found, how = sweep.times(runs, tmp_path, 1)
  assert how == 'a trial of batch_size=8,seed=0: 9 s to start, 0.5 s a step, 3 s to evaluate'
  # 46 and 23 steps of 8 and 16 rows; five and three evaluations of 2 batches, and one of 7 and 4.
  one, two = 46 + (5 * 2 + 7) / 3, 23 + (3 * 2 + 4) / 3
  each = [9 + 0.5 * one, 5 + 0.5 * one, 9 + 0.5 * two * 2, 5 + 0.5 * two * 2]
  assert [*found.values()] == pytest.approx(each)
  found, _ = sweep.times(runs, tmp_path, 3)  # the first three begin together: all of these compile
  assert [*found.values()] == pytest.approx([each[0]] * 2 + each[2:])


def test_the_expected_time_of_evaluations_is_of_their_own_masks(monkeypatch, tmp_path):
  """An arm of six times as many masked words has longer steps, and evaluations as short."""
  given = ['--config.steps=40', '--config.eval.every=0', '--config.eval.batches=3']
  vary = '--seeds=1', '--vary', 'masking.masked_lm_prob=0.1,0.6'
  runs, _ = planned(tmp_path, *vary, fields=given)
  facts = Facts(data={'train': Split(rows=500), 'eval': Split(rows=90)})
  points = (Point(5, 'train', {'steps': 5}),)
  there = Run(tmp_path, runs[0].config, {}, '', facts, points=points)
  monkeypatch.setattr(sweep_jobs, 'tried', lambda run, count: (there, 2.0, 9.0))
  found, _ = sweep.times(runs, tmp_path, 1)
  few, many = (flops_of_step(run.config) for run in runs)
  assert many > 1.3 * few
  more = 40 * (many / few - 1) * 2.0 / 5
  assert found[runs[1].folder] - found[runs[0].folder] == pytest.approx(more)


def test_a_dry_run_tries_nothing_beside_a_run_that_is_trained(monkeypatch, tmp_path, capsys):
  """The run itself says how long its steps take, of which 2 s were for 3 steps until a stop; those
  of two other steps, killed before their line, are lost."""
  words = f'--config {PRETRAIN} --workdir {tmp_path} --seeds 1 --vary batch_size=8,16 --dry-run'
  words = [*words.split(), '--config.steps=46', '--config.eval.every=0']
  monkeypatch.setattr(sweep_jobs, 'tried', lambda *_: pytest.fail('a trial'))
  monkeypatch.setattr(lock, 'is_held', lambda folder: folder.name == 'batch_size=16,seed=0')
  folder = tmp_path / 'batch_size=16,seed=0'
  _, said, _ = swept(capsys, *words)
  assert said.count(' ?  ') == 2 and f'? with --jobs 1 ({folder.name}, which is being' in said
  folder.mkdir()
  (folder / 'summary.json').write_text('{"seconds": {"setup": 7.0, "step": 1.0}}')
  values = ((3, 3, 1.5, 0.5), (7, 2, 1.0, 0.5))
  lines = [dict(zip(('step', 'steps', 'step_seconds', 'data_seconds'), x)) for x in values]
  lines = [line | {'split': 'train'} for line in lines]
  (folder / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  _, said, _ = swept(capsys, *words)
  assert '7 s to start, 0.7 s a step' in said
  assert [re.split(' {2,}', line)[2] for line in said.splitlines()[1:3]] == ['23 s', '39 s']


def test_a_finished_arm_tells_the_time_of_a_larger_one_by_its_flops(monkeypatch, tmp_path, capsys):
  """A run of 12 s, of which 4 are 8 steps and 1 is evaluations: steps of twice the rows take twice
  as long, its start does not."""
  words = f'--config {PRETRAIN} --workdir {tmp_path} --seeds 1 --vary batch_size=8,16 --dry-run'
  words = [*words.split(), '--config.steps=8', '--config.eval.every=0']
  monkeypatch.setattr(sweep_jobs, 'tried', lambda *_: pytest.fail('a trial'))
  folder = tmp_path / 'batch_size=8,seed=0'
  ended = lambda _, run, *faults: Outcome('done' * (run.folder == folder.name), '', 12.0)
  monkeypatch.setattr(sweep_jobs, 'state_of', ended)
  folder.mkdir()
  (folder / 'summary.json').write_text('{"seconds": {"setup": 3.0, "eval": 1.0}}')
  line = dict(step=8, split='train', steps=8, step_seconds=3.5, data_seconds=0.5)
  (folder / 'metrics.jsonl').write_text(json.dumps(line))
  _, said, _ = swept(capsys, *words)
  assert [re.split(' {2,}', line)[2] for line in said.splitlines()[1:3]] == ['0 s', '15 s']
  assert 'of another arm by batch_size=8,seed=0, which is done: 7 s to start, 0.5 s a step' in said
  # It has found the program that another one took 5 s to compile, as the next arm's first will.
  (folder / 'run.json').write_text('{"costs": {"compile_seconds": 1.6}}')
  slow = tmp_path / 'batch_size=8,seed=1'
  shutil.copytree(folder, slow)
  (slow / 'run.json').write_text('{"costs": {"compile_seconds": 5.2}}')
  both = lambda _, run, *faults: Outcome(
    'done' * ('=8,' in run.folder), '', 12.0 + ('1' in run.folder)
  )
  monkeypatch.setattr(sweep_jobs, 'state_of', both)
  _, said, _ = swept(capsys, *words, '--seeds', '2')
  assert [re.split(' {2,}', line)[2] for line in said.splitlines()[3:5]] == ['19 s', '13 s']
  monkeypatch.setattr(sweep_jobs, 'state_of', ended)
  shutil.rmtree(slow)
  (folder / 'run.json').unlink()
  # Of how many rows an epoch is, run.json says, which is not there.
  _, said, _ = swept(capsys, *words, '--config.steps=0', '--config.epochs=3')
  assert [re.split(' {2,}', line)[2] for line in said.splitlines()[1:3]] == ['0 s', '?']
  # A run that was stopped and begun again took longer than others do.
  for seed in (1, 2):
    shutil.copytree(folder, tmp_path / f'batch_size=8,seed={seed}')
  took = {f'batch_size=8,seed={seed}': x for seed, x in enumerate((90.0, 12.0, 11.0))}
  ended = lambda _, run, *faults: Outcome('done' * (run.folder in took), '', took.get(run.folder))
  monkeypatch.setattr(sweep_jobs, 'state_of', ended)
  for each in ('12 s', '51 s'):  # the median of three, and of two
    _, said, _ = swept(capsys, *words, '--seeds', '4')
    assert [re.split(' {2,}', line)[2] for line in said.splitlines()[4:6]] == [each, '15 s']
    took.pop('batch_size=8,seed=2', None)


def test_a_trial_that_fails_is_said_below_the_table(monkeypatch, tmp_path, capsys):
  def started(run, root, *_):
    (root / 'logs' / f'{run.folder}.txt').write_text('..\nerror: there is no such text.\n')
    return subprocess.Popen(['false'])

  monkeypatch.setattr(sweep_jobs, 'started', started)
  words = f'--config {PRETRAIN} --workdir {tmp_path}/S --seeds 2 --dry-run'
  code, said, log = swept(capsys, *words.split())
  assert not code and said.count(' ?  ') == 2, log
  assert 'time left: ? with --jobs 1 (the trial of seed=0 has failed: there is no such' in said


LATE = """
import json, pathlib, sys, threading, time
folder, there = pathlib.Path(sys.argv[1]), threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), there.set())).start()
summary = lambda state: (folder / 'summary.json').write_text(
  json.dumps({'state': state, 'seconds': {'setup': 1.5, 'eval': 0.75}}))
time.sleep(1.5)
folder.mkdir()
summary('running')
if folder.name.endswith('-teacher'):
  sys.exit(not there.wait(6))
with open(folder / 'metrics.jsonl', 'w') as file:
  for step in range(1, 99):
    line = dict(step=step, split='train', step_seconds=0.1, data_seconds=0.0)
    if not there.wait(0.1):
      print(json.dumps(line), file=file, flush=True)
summary('stopped')
"""


def test_the_time_of_a_trial_begins_with_its_steps(monkeypatch, tmp_path):
  """A trial of 1 s, of a run that needs 1.5 s before its first step, is 1 s of steps."""

  def started(run, root, *_):
    (root / 'logs' / f'{run.folder}.txt').write_text('stopped at step 7\n')
    words = [sys.executable, '-c', LATE, f'{root / run.folder}{role}']
    return subprocess.Popen(words, stdin=subprocess.PIPE)

  monkeypatch.setattr(sweep_jobs, 'started', started)
  monkeypatch.setattr(sweep_jobs, 'TRIAL', 1)
  (run,) = planned(tmp_path, '--seeds', '1')[0]
  began, role = time.monotonic(), '-teacher'  # which may train for hours
  with pytest.raises(InputError, match='the trial of seed=0 has failed: stopped at step 7'):
    sweep_jobs.tried(run, 1)
  assert time.monotonic() - began < 6
  began, role = time.monotonic(), ''
  there, steps, start = sweep_jobs.tried(run, 1)
  assert 4 <= len(there.training) <= 20 and steps == pytest.approx(0.1 * len(there.training))
  assert start + steps + 0.75 == pytest.approx(time.monotonic() - began, abs=0.5)


def small(corpus_file):
  often = [f'--config.{name}.every=2' for name in ('eval', 'checkpoint', 'log')]
  return [*small_overrides(corpus_file), '--config.steps=4', *often]


def swept(capsys, *command):
  """(exit status, stdout, stderr) of a sweep, which this process leads: its runs have their own."""
  code = 0
  try:
    sweep.main(list(command))
  except SystemExit as end:
    code = end.code
  return code, *capsys.readouterr()


def test_a_sweep_trains_each_run_once_and_a_failed_one_does_not_stop_the_rest(
  tmp_path, corpus_file, capsys, monkeypatch
):
  root = tmp_path / 'S'
  monkeypatch.setattr(child, '__name__', 'child_without_a_model')
  monkeypatch.setenv('PYTHONPATH', f'{ROOT}/tests')
  vary = '--seeds 1 --vary optimizer.learning_rate=1e-3,1e30'
  command = [*f'--config {PRETRAIN} --workdir {root} {vary}'.split(), *small(corpus_file)]
  real = sweep_jobs.started

  def started(run, *more):
    """Of the second run a process that fails."""
    return real(run, *more) if '1e-3' in run.folder else subprocess.Popen(['false'])

  _, said, log = swept(capsys, *command, '--dry-run')  # whose trial ends by itself
  assert 's to start' in said and 'trial of optimizer.learning_rate=1e-3,seed=0' in said, log
  assert 'the baseline is optimizer.learning_rate=1e-3' in log and not root.exists()
  monkeypatch.setattr(sweep_jobs, 'started', started)
  code, said, log = swept(capsys, *command, '--jobs', '2')
  assert code == 2, log[-3000:]
  names = [f'optimizer.learning_rate={x},seed=0' for x in ('1e-3', '1e30')]
  ends = {name: json.loads((root / 'logs' / f'{name}.json').read_text()) for name in names}
  assert [ends[name]['state'] for name in names] == ['done', 'failed'], ends
  assert f'1 of 2 runs did not end, the first of which wrote {root}/logs/{names[1]}.txt;' in log
  assert '2 of 2 ' in log and 'step 2/4' not in log  # quiet: in the logs of the runs
  assert 'step 2/4' in (root / 'logs' / f'{names[0]}.txt').read_text()
  assert 'masked words and next sentences: mlm' in said
  # The same run by hand is the command that --print gives.
  _, said, log = swept(capsys, *command, '--print')
  printed = said.splitlines()
  assert len(printed) == 2 and '2 runs, the longest of 4 steps' in log
  environment, *words = shlex.split(printed[0])
  assert environment == f'JAX_COMPILATION_CACHE_DIR={root}/.jax_cache' and words[0] == 'python'
  ran = json.loads((root / names[0] / 'run.json').read_text())['commands'][0]['argv'][1:]
  assert words[1:] == ['-m', 'bert_jax.train', *ran]
  _, said, _ = swept(capsys, *command, '--dry-run')
  assert '2 runs; time left:' in said and 'as long as the runs that are done' in said
  ended = root / 'logs' / f'{names[0]}.json'
  ended.write_bytes(ended.read_bytes()[:-9])
  _, said, log = swept(capsys, *command, '--dry-run')
  assert re.search(rf'{names[0]} .* begun\n', said) and f'{ended} cannot be read' in log


def run_of(folder, arm=''):
  return sweep_grid.Run(folder, arm, 'f.py', [], c.defaults('mlm_nsp'))


def test_as_many_runs_as_processes_train_at_once_each_on_its_cores(tmp_path, monkeypatch):
  together, places, cores, shares = threading.Barrier(2), [], set(range(5)), []

  def started(run, root, number, count):
    """Ends once another run trains, too."""
    places.append((number, count))
    (root / run.folder).mkdir()
    together.wait(20)
    return subprocess.Popen(['true'], stdin=subprocess.PIPE)

  monkeypatch.setattr(sweep_jobs, 'started', started)
  ended = sweep_jobs.run_all([run_of(f'seed={i}') for i in range(6)], tmp_path, 2)
  assert [x.state for x in ended.values()] == ['done'] * 6, ended
  assert set(places) == {(0, 2), (1, 2)} and len(places) == 6
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: cores)
  monkeypatch.setattr(os, 'sched_setaffinity', lambda _, some: shares.append(set(some)))
  for number in range(2):
    child.take_cores(number, 2)
  assert shares == [{0, 2, 4}, {1, 3}]


def test_how_a_run_ended_is_its_exit_code_and_the_last_line_that_it_printed(
  tmp_path, monkeypatch, caplog
):
  given, ends = [], {'a': [0], 'b': [3], 'c': [2], 'd': ['kill -9 $$']}

  def started(run, root, number, count):
    given.append(run.folder)
    end = ends[run.folder].pop(0)
    (root / run.folder).mkdir(exist_ok=True)
    command = f'echo error: why it ended >> {root}/logs/{run.folder}.txt; '
    command += end if isinstance(end, str) else f'exit {end}'
    return subprocess.Popen(['sh', '-c', command], stdin=subprocess.PIPE)

  monkeypatch.setattr(sweep_jobs, 'started', started)
  jobs = [run_of(name) for name in ends]
  ended = sweep_jobs.run_all(jobs, tmp_path, 1)
  assert given == ['a', 'b', 'c', 'd']
  assert {name: (x.state, x.error) for name, x in ended.items()} == {
    'a': ('done', ''),
    'b': ('stopped', 'why it ended'),
    'c': ('failed', 'why it ended'),
    'd': ('failed', 'its process was killed (status -9)'),
  }
  # That is written, and what is done is left out.
  assert [sweep_jobs.state_of(tmp_path, job) for job in jobs] == list(ended.values())
  other = c.defaults('mlm_nsp')
  other.eval.batches += 1  # another evaluation is another run
  assert sweep_jobs.state_of(tmp_path, jobs[0]._replace(config=other)).state == ''
  ends |= {'b': [0], 'c': [0], 'd': [0]}
  caplog.set_level('INFO', 'bert_jax')
  assert {x.state for x in sweep_jobs.run_all(jobs, tmp_path, 1).values()} == {'done'}
  assert '1 of 4 runs are done already' in caplog.text
  assert given[4:] == ['b', 'c', 'd']


def test_a_file_that_is_missing_is_told_before_the_first_run(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(sweep_jobs, 'started', lambda *_: pytest.fail('a run'))
  (tmp_path / 'a.txt').write_text('A text.')
  command = f'--config {PRETRAIN} --workdir {tmp_path}/S --seeds 2 --vary'.split()
  for vary, said in (
    (f'data.train={tmp_path}/a.txt,{tmp_path}/b.txt', 'b.txt does not exist; give a file'),
    (f'data.eval=,{tmp_path}/*.csv', 'no file matches'),
    ('tokenizer.path=,v.txt', 'tokenizer.path=v.txt is no file'),
  ):
    for dry in ((), ('--dry-run',)):  # without a trial, and without a plan of what cannot begin
      code, _, log = swept(capsys, *command, vary, '--config.steps=4', *dry)
      assert code == 2 and said in log and vary.partition('=')[0] in log, log
      assert not (tmp_path / 'S' / 'sweep.json').exists()


def test_weights_that_are_missing_are_told_before_the_first_run(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(sweep_jobs, 'started', lambda *_: pytest.fail('a run'))
  spec, run, released = 'configs/finetune.py:runlocal', tmp_path / 'run', tmp_path / 'released'
  for folder, content in ((run, c.to_json(c.load(PRETRAIN))), (released, '{"hidden_size": 8}')):
    folder.mkdir()
    (folder / 'config.json').write_text(content)
  command = f'--config {spec} --workdir {tmp_path}/S --seeds 2 --vary'.split()
  for vary, said in (
    (f'init_from=,{tmp_path}/none', 'none holds no run and no model: there is no such folder'),
    (f'init_from=,{run}', 'run holds no checkpoint; train it first'),
    (f'init_from=,{released}', 'released has no model.safetensors, no pytorch_model.bin'),
    (f'teacher=,{tmp_path}/none', 'none holds no run and no model'),
    (f'teacher=,{tmp_path}/none.py', 'none.py does not exist'),
    (f'resume_from=,{run}', 'run has no checkpoint; train it first'),
  ):
    code, _, log = swept(capsys, *command, vary)
    assert code == 2 and said in log and f'config.{vary.partition("=")[0]}' in log, log
    assert not (tmp_path / 'S' / 'sweep.json').exists()
  # A run that goes on needs them no more, but for its teacher.
  begun, gone = tmp_path / 'S' / 'x=1,seed=0', f'--config.init_from={tmp_path}/none'
  checkpoint_at(begun, 5)
  of = lambda *fields: [sweep_grid.Run('x=1,seed=0', 'x=1', spec, [], c.load(spec, fields))]
  sweep_jobs.check_files(of(gone), tmp_path / 'S')
  with pytest.raises(InputError, match='^x=1,seed=0: config.init_from: '):
    sweep_jobs.check_files(of(gone), tmp_path / 'T')
  with pytest.raises(InputError, match='^x=1,seed=0: config.teacher: '):
    sweep_jobs.check_files(of(gone, f'--config.teacher={tmp_path}/none'), tmp_path / 'S')


def test_the_files_of_each_language_are_looked_up_where_the_config_names_the_languages():
  by_language = ['--config.data.train=no/corpus.{language}']
  spec = 'configs/translate.py:runlocal'  # whose columns are the languages
  config = c.load(spec, [*by_language, '--config.data.eval=no/eval.tsv'])
  run = sweep_grid.Run('a', 'a', spec, [], config)
  with pytest.raises(InputError, match='^a: data.eval: no/eval.tsv does not exist'):
    sweep_jobs.check_files([run], Path('no'))
  with pytest.raises(InputError, match='^a: data.train: .* wants languages; name them in corpus'):
    sweep_jobs.check_files([run._replace(config=c.load(PRETRAIN, by_language))], Path('no'))


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

  monkeypatch.setattr(sweep_jobs, 'started', started)
  monkeypatch.setattr(sweep_jobs.futures, 'wait', interrupted)
  jobs = [run_of(f'seed={i}') for i in range(4)]
  for run in jobs:
    (tmp_path / run.folder).mkdir()
  with pytest.raises(KeyboardInterrupt):
    sweep_jobs.run_all(jobs, tmp_path, 2)
  states = [sweep_jobs.state_of(tmp_path, job).state for job in jobs]
  assert sorted(begun) == ['seed=0', 'seed=1'] and states == ['stopped', 'stopped', '', '']


def test_a_child_tries_a_workdir_that_is_held_again(tmp_path, monkeypatch, capsys):
  words = ['0', '1', '--workdir', str(tmp_path / 'run'), '--config', PRETRAIN]
  holds = lambda _, workdir, __: lock.held(Path(workdir)).__enter__()
  monkeypatch.setattr(train, 'train', holds)
  monkeypatch.setattr(sys, 'argv', ['child', *words])
  watched = threading.Event()
  monkeypatch.setattr(child, '_end_with_the_sweep', watched.set)
  for name, value in (('TRIES', 2), ('PAUSE', 0)):
    monkeypatch.setattr(child, name, value)
  with lock.held(tmp_path / 'run'), pytest.raises(SystemExit) as end:
    child.main()
  assert end.value.code == 3 and capsys.readouterr().err.count('is in use') == 2
  assert watched.wait(9) and sys.argv == [train.__file__, *words[2:]]


def test_a_child_ends_with_the_sweep(monkeypatch):
  """When its standard input is closed it is asked to stop, and in the end it is made to."""
  asked = []
  monkeypatch.setattr(sys, 'stdin', io.StringIO())
  monkeypatch.setattr(child, 'PATIENCE', 0)
  monkeypatch.setattr(os, 'kill', lambda *given: asked.append(given))
  monkeypatch.setattr(os, '_exit', asked.append)
  child._end_with_the_sweep()
  assert asked == [(os.getpid(), signal.SIGTERM), 1]


def test_the_expected_time_is_that_of_the_runs_that_are_done(tmp_path):
  jobs = [run_of(f'{arm},seed={seed}', arm) for arm in 'ab' for seed in (0, 1)]
  ended = {'a,seed=0': Outcome('done', '', 10.0)}
  ended['a,seed=1'], ended['b,seed=0'] = Outcome('done', '', 13.0), Outcome('failed', '', 30.0)
  assert sweep_jobs.expected(tmp_path, jobs, ended) == {'a': 11.5}
  for seed, compiling in enumerate((1.5, 5.25)):  # the second found no program
    (tmp_path / f'a,seed={seed}').mkdir()
    content = json.dumps({'costs': {'compile_seconds': compiling}})
    (tmp_path / f'a,seed={seed}' / 'run.json').write_text(content)
  assert sweep_jobs.expected(tmp_path, jobs, ended) == {'a': (10 - 1.5 + 13 - 5.25) / 2 + 1.5}
  assert [sweep_jobs.duration(x) for x in (45, 720, 9000)] == ['45 s', '12 min', '2.5 h']


def test_children_share_what_is_compiled_and_the_gpus(tmp_path, monkeypatch):
  made = []
  (tmp_path / 'logs').mkdir()
  monkeypatch.setattr(sweep_jobs.subprocess, 'Popen', lambda *a, env, **_: made.append((*a, env)))
  monkeypatch.setattr(Path, 'glob', lambda *_: ['nvidia0', 'nvidia1'])
  for name in ('CUDA_VISIBLE_DEVICES', 'XLA_PYTHON_CLIENT_MEM_FRACTION'):
    monkeypatch.delenv(name, raising=False)
  sweep_jobs.started(run_of('x'), tmp_path, 2, 3)
  ((command, env),) = made
  assert command[1:5] == ['-m', child.__name__, '2', '3'] and env['CUDA_VISIBLE_DEVICES'] == '0'
  assert env['JAX_COMPILATION_CACHE_DIR'] == str(tmp_path / '.jax_cache')
  assert env['XLA_PYTHON_CLIENT_MEM_FRACTION'] == '0.45'  # two of three are on one GPU


def test_runs_that_go_on_with_another_number_of_steps_are_named(tmp_path, caplog):
  """If until where they are that makes other learning rates; a run without a checkpoint begins."""
  fields = '--config.optimizer.schedule=wsd', '--config.optimizer.warmup=5'
  fields += ('--config.optimizer.decay=10',)
  steps = lambda number, *more: planned(
    tmp_path, '--seeds', '4', fields=[*fields, *more, f'--config.steps={number}']
  )
  for run in steps(40)[0][:3]:
    contents.claim(tmp_path / run.folder, run.config)
  steps(60)
  for seed, step in enumerate((20, 35)):
    checkpoint_at(tmp_path / f'seed={seed}', step)
  steps(40)
  assert 'another number of steps' not in caplog.text
  other = c.load('configs/finetune.py:task=sst2', ['--config.steps=60', '--config.epochs=0'])
  assert not plan._moved_at(tmp_path, run_of('seed=1')._replace(config=other))  # of another task
  steps(60)  # the second had begun to decay
  assert (
    '1 run with another number of steps than before, such as seed=1 from step 35' in caplog.text
  )


def test_a_folder_of_a_resolved_run_is_the_same_sweep(tmp_path):
  """What a run fills in itself, such as a number of predictions, is no other config."""
  given = ['--config.masking.max_predictions_per_seq=0']
  one = lambda *fields: planned(tmp_path, '--seeds', '1', fields=[*given, *fields])
  ((run,), _) = one()
  config = c.override(run.config, ['--config.masking.max_predictions_per_seq=9'])
  contents.claim(tmp_path / run.folder, config)
  assert one()[1]['runs'].keys() == {run.folder}
  with pytest.raises(InputError, match='was trained with another config .data.seq_length'):
    one('--config.data.seq_length=48')
