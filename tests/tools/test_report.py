"""The table of many runs."""

import dataclasses
import itertools
import json
import shutil
import statistics

import numpy as np
import pytest

from bert_jax import config as c
from bert_jax.config import InputError
from bert_jax.files import seal
from bert_jax.tools.report import __main__ as report
from bert_jax.tools.report import arms, figures, pages, tables
from bert_jax.workdir import records

PRETRAIN = 'configs/pretrain.py:runlocal'


def workdir(folder, lines, *fields, spec=PRETRAIN, levels=(), rows='', rows_read=0, **facts):
  """The files by which a report knows a run. lines: (step, split, {metric: value}); fields:
  'NAME=VALUE'; levels: baselines; rows: fingerprint of the evaluation, and how many it has; facts:
  more of run.json."""
  folder.mkdir(parents=True)
  config = c.load(spec, [f'--config.{field}' for field in fields])
  (folder / 'config.json').write_text(c.to_json(config))
  of_eval = {'baselines': dict(levels), 'fingerprint': rows, 'rows': rows_read}
  facts['data'] = {'eval': of_eval}
  (folder / 'run.json').write_text(json.dumps(facts))
  rows = (json.dumps({'step': step, 'split': split} | own) for step, split, own in lines)
  (folder / 'metrics.jsonl').write_text(''.join(f'{row}\n' for row in rows))
  return folder


def checkpoint_at(run, step, **meta):
  """A checkpoint of a run, as far as it is read to know how far the run has come."""
  meta |= {'step': step}
  path = run / 'checkpoints' / str(step) / 'meta' / 'metadata'
  path.parent.mkdir(parents=True)
  path.write_text(json.dumps(meta | {'seal': seal(meta)}))


def cells(text):
  """The cells of the rows of the first table of a text."""
  text = text.split('\n\n')[1]
  return [[cell.strip() for cell in line.split('  ') if cell.strip()] for line in text.splitlines()]


def test_examples_are_told_apart_by_a_baseline_that_earlier_versions_record_too(tmp_path):
  """The entropy of labels is recorded by later ones only, as are accuracies beside unigrams."""
  scores = {'classification_accuracy': (0.7, 'majority'), 'f1': (0.4, 'majority')}
  entropy, spec = {'classification': (0.61, 'entropy')}, 'configs/finetune.py:task=sst2'
  spans = {'qa': (4.5, 'uniform'), 'f1': (20.0, 'unanswered')}
  words = {'mlm': (6.5, 'unigram'), 'mlm_accuracy': (0.04, 'majority')}
  known = {'a': scores, 'b': scores | entropy, 'c': {}, 'd': spans, 'e': words}
  for name, levels in known.items():
    lines = [(2, 'eval', {'f1': 0.5, 'classification': 0.6})]
    workdir(tmp_path / name, lines, 'data.eval=x', spec=spec, levels=levels)
  _, found = arms.judged(records.below(tmp_path)[0])
  own = {path.name: {k: x for k, x in of.items() if 'of a' in k} for path, of in found.items()}
  accuracy = {'classification_accuracy of a majority': 0.7}
  others = {'c': {}, 'd': {'qa of a uniform': 4.5}, 'e': {'mlm of a unigram': 6.5}}
  assert own == {'a': accuracy, 'b': accuracy, **others}
  # The entropy also tells that a score is a loss.
  (panel,) = report.read(tmp_path / 'b').panels
  assert tables.more_tables(panel)[0].header == ('arm', 'classification, loss')


def test_runs_differ_in_their_fewest_steps_only_where_rows_are_few(tmp_path):
  """Those of an earlier version had no min_steps, and seeds of both are one arm."""
  spec = 'configs/finetune.py:task=sst2'  # 3 epochs of rows in steps of 4
  for name, least in (('a', 100), ('b', 0)):
    workdir(tmp_path / name, [(2, 'eval', {'f1': 0.5})], f'min_steps={least}', spec=spec)
  for rows, found in ((133, {}), (132, {'min_steps': [100, 0]})):
    for name in 'ab':
      (tmp_path / name / 'run.json').write_text(json.dumps({'data': {'train': {'rows': rows}}}))
    assert arms.varied(records.below(tmp_path)[0]) == found


def test_seeds_are_one_line_and_other_fields_another(tmp_path):
  values = [2.0, 2.5, 3.6]
  for seed, value in enumerate(values):
    lines = [(1, 'eval', {'mlm': 9.0}), (2, 'eval', {'mlm': value}), (2, 'train', {'mlm': 1.0})]
    # How often it was saved, and on how many devices it ran, set no run apart.
    same = f'checkpoint.every={seed}', f'log.every={1 + seed}'
    levels = {'mlm': (4.25, 'unigram')}
    workdir(tmp_path / f'a{seed}', lines, f'seed={seed}', *same, levels=levels)
  workdir(tmp_path / 'b', [(2, 'eval', {'mlm': 1.5})], 'optimizer.beta1=0.8')
  _, seeds, other = cells(text := report.table(report.read(tmp_path)))
  assert other == ['beta1=0.8', '1', '1.5000', *5 * '-']
  middle = f'{np.mean(values):.4f} ± {statistics.stdev(values):.4f}'
  assert seeds[:3] == ['beta1=0.9', '3', middle] and text.startswith(
    'masked words and next sentences: mlm, nats\n'
  )
  assert 'To beat: 4.2500 nats (unigram), on held-out text; lower is better.' in text
  # 4.302653 is the value of Student's t for 2 degrees of freedom in printed tables.
  half = 4.302653 * statistics.stdev(values) / 3**0.5
  assert seeds[3] == f'{2.7 - half:.4f} to {2.7 + half:.4f}'


def plan(folder, **more):
  """The sweep.json of a folder whose runs are called ARM,seed=N, in the order Z to A."""
  names = sorted((path.name for path in folder.iterdir() if path.is_dir()), reverse=True)
  runs = {name: {'arm': name.rpartition(',seed=')[0]} for name in names}
  (folder / 'sweep.json').write_text(json.dumps({'runs': runs | more.pop('runs', {})} | more))


def test_arms_stand_in_the_order_of_their_plan(tmp_path):
  runs = {f'batch={n},seed=0': {'arm': f'batch={n}'} for n in (32, 128, 64)}
  for name in runs:
    size = f'batch_size={name.partition(",")[0].partition("=")[2]}'
    workdir(tmp_path / 'S' / name, [(4, 'eval', {'mlm': 2.0})], size)
  (tmp_path / 'S' / 'sweep.json').write_text(json.dumps({'runs': runs}))
  _, *rows = cells(report.table(report.read(tmp_path)))
  assert [row[0] for row in rows] == ['batch=32', 'batch=128', 'batch=64']


def test_an_arm_has_the_name_of_its_sweep_else_its_fields_else_its_folder(tmp_path):
  names = 'norm_bias', 'attention_bias', 'head_bias', 'decoder_bias', 'embedding_norm'
  many = [f'model.{name}=false' for name in names]
  costs = {'parameters': 1234567, 'flops_per_step': 5e8}
  for name, fields in (('plain', []), ('bare', many)):
    for seed in range(2):
      lines = [(4, 'eval', {'mlm': 2.0 + seed})]
      folder = tmp_path / 'runs' / f'arch={name},seed={seed}'
      workdir(folder, lines, f'seed={seed}', *fields, costs=costs)
  labels = lambda: sorted(row[0] for row in cells(report.table(report.read(tmp_path)))[1:])
  _, *rows = cells(text := report.table(report.read(tmp_path)))
  assert [(row[0], row[1]) for row in rows] == [('arch=bare', '2'), ('arch=plain', '2')]
  assert text.count('1,234,567   2e+09') == 2
  # Arms of one name have the folder above behind it; within one folder the fields.
  workdir(tmp_path / 'more' / 'arch=bare,seed=0', lines, many[0], 'steps=9')
  assert labels() == ['arch=bare (more)', 'arch=bare (runs)', 'arch=plain']
  (panel,) = report.read(tmp_path, renamed=['more=M', 'arch=bare=B']).panels
  assert [arm.label for arm in panel.arms] == ['B (M)', 'B (runs)', 'arch=plain']
  workdir(tmp_path / 'runs' / 'arch=bare,seed=9', lines, 'seed=9', many[1])
  assert [label.count('norm_bias=') for label in labels()] == [0, 0, 1, 1]
  # The name that the sweep has given goes before.
  shutil.rmtree(tmp_path / 'more')
  shutil.rmtree(tmp_path / 'runs' / 'arch=bare,seed=9')
  (tmp_path / 'runs' / 'arch=bare,seed=0').rename(tmp_path / 'runs' / 'other')
  plan(tmp_path / 'runs', runs={'other': {'arm': 'arch=bare'}})
  assert labels() == ['arch=bare', 'arch=plain']
  plan(tmp_path / 'runs', runs=dict.fromkeys(('other', 'arch=bare,seed=1'), {'arm': 'model.x=1'}))
  assert labels() == ['arch=plain', 'x=1']


def test_a_run_is_judged_by_its_own_metric(tmp_path):
  table, none = 'finetune.py:task=table', 'checkpoint.best_metric='
  for k, (spec, fields, metric) in enumerate(
    (
      ('pretrain.py', [], 'mlm'),
      ('pretrain.py', ['checkpoint.best_metric=nsp', 'eval.batches=0'], 'nsp'),
      (table, ['table.labels=a,b'], 'classification_accuracy'),
      (table, ['table.regression=true'], 'pearson'),
      (table, ['table.multi_label=true'], 'micro_f1'),
      ('finetune.py:task=squad', [none], 'f1'),
      ('finetune.py:task=swag', [none], 'choice_accuracy'),
      ('finetune.py:task=gap', [none], 'coreference_accuracy'),
    )
  ):
    run = records.read(workdir(tmp_path / str(k), [], *fields, spec=f'configs/{spec}'))
    assert run.judge == metric, spec


def test_a_run_that_may_stop_early_counts_its_best(tmp_path):
  lines = [(k, 'eval', {'mlm': x}) for k, x in enumerate((3.0, 2.0, 2.5, None), 1)]
  lines.append((4, 'train', {'mlm': 1.0, 'loss': 1.0}))
  stops = 'checkpoint.best_metric=mlm', 'eval.batches=0', 'eval.patience=2', 'eval.every=1'
  workdir(tmp_path / 'a', lines)
  workdir(tmp_path / 'b', lines, *stops, 'checkpoint.best_mode=min')
  workdir(tmp_path / 'c', lines, *stops, 'checkpoint.best_mode=max')
  result = report.read(tmp_path)
  assert [run.final('mlm') for run in result.runs] == [None, 2.0, 3.0]
  assert result.runs[0].final('nsp') is None
  assert dataclasses.replace(result.runs[1], points=()).final('mlm') is None
  said = [x for x in report.table(result).splitlines() if x.startswith('Values are of the last')]
  assert len(said) == 1 and 'of b, c, where a run may stop early' in said[0]
  with pytest.raises(InputError, match='no run has an evaluated nsp; there are mlm.$'):
    report.read(tmp_path, metric='nsp')


def test_runs_without_a_last_number_or_an_end_are_in_no_mean(tmp_path):
  steps = 'steps=0', 'epochs=2.0'
  for seed, (step, last, state) in enumerate(
    [(4, 2.0, 'finished'), (4, None, 'finished'), (2, 9.0, 'running'), (4, 3.0, 'finished')]
  ):
    lines = [(1, 'eval', {'mlm': 5.0}), (step, 'eval', {'mlm': last})]
    path = workdir(tmp_path / f'a{seed}', lines, f'seed={seed}', *steps)
    (path / 'summary.json').write_text(json.dumps({'state': state, 'step': step}))
  found = report.read(tmp_path)
  ((row,),) = [panel.rows('mlm') for panel in found.panels]
  assert row.values == {0: 2.0, 3: 3.0} and row.mean == 2.5
  assert '2.5000 ± 0.7071' in report.table(found)
  said = '\n'.join(found.remarks)
  assert 'a1: its last mlm is no number' in said and 'a2: unfinished: at step 2' in said


def test_a_mean_with_collapsed_runs_says_so(tmp_path):
  for seed, (value, more) in enumerate(((0.9, {}), (0.92, {}), (0.91, {}), (0.5, {'constant': 1}))):
    scores = {'classification_accuracy': value} | more
    fields, spec = (f'seed={seed}', 'epochs=0', 'steps=2'), 'configs/finetune.py:task=sst2'
    workdir(tmp_path / f's{seed}', [(2, 'eval', scores)], *fields, spec=spec)
  _, row = cells(text := report.table(report.read(tmp_path)))
  assert row[1:3] == ['4', '0.8075 ± 0.2052 (1 of 4 collapsed, 0.9100 ± 0.0100 without)']
  assert 'Collapsed runs (one answer for every example) are in all means, and in all tests.' in text
  assert f'{tmp_path}/s3: collapsed: one answer for every example' in text
  scores = {'classification_accuracy': 0.4, 'constant': 1}
  for beta in '78':
    more = f'optimizer.beta1=0.{beta}', *fields[1:]
    workdir(tmp_path / f't{beta}', [(2, 'eval', scores)], *more, spec=spec)
  lines = pages.latex(report.read(tmp_path)).splitlines()  # each other note has a mark of its own
  assert r'beta1=0.9 & 4 & 0.8075 $\pm$ 0.2052\dag{} & - & - \\' in lines
  assert r'\par \dag{} 1 of 4 collapsed, 0.9100 $\pm$ 0.0100 without' in lines
  for beta in '78':
    assert rf'beta1=0.{beta} & 1 & 0.4000\ddag{{}} & - & - \\' in lines


def test_what_runs_of_an_arm_have_in_common_is_said_once(tmp_path):
  for seed, more in enumerate(({'constant': 1}, {}, {'constant': 1})):
    scores = {'mlm': 2.0 + seed} | more
    workdir(tmp_path / f's{seed}', [(2, 'eval', scores)], f'seed={seed}', 'steps=2')
  fields = 'optimizer.beta1=0.8', 'steps=2'
  workdir(tmp_path / 'other', [(2, 'eval', {'mlm': 4.0, 'constant': 1})], *fields)
  why = 'collapsed: one answer for every example'
  found = report.read(tmp_path)
  said = [x for x in found.remarks if why in x]
  assert said == [f'{tmp_path}/other: {why}', f'mlm_nsp: beta1=0.9, seeds 0, 2: {why}']
  assert len([x for x in found.status.values() if x == why]) == 3  # the listing has each


def test_a_heading_says_what_is_learned(tmp_path):
  """Of arms that learn something else it is the name of the objective."""
  alone = 'loss.nsp_weight=0', 'corpus.rows=full'
  for name, fields in (('a', alone), ('b', ()), ('c', (*alone, 'optimizer.beta1=0.8'))):
    workdir(tmp_path / name, [(2, 'eval', {'mlm': 2.0})], *fields, 'steps=2')
  of = lambda *names: report.read(*(tmp_path / name for name in names)).panels[0].learned
  assert of('a', 'c') == 'masked words alone' and of('b') == 'masked words and next sentences'
  (one,), (other,) = (report.read(tmp_path / name).panels for name in 'ab')
  assert dataclasses.replace(one, arms=[*one.arms, *other.arms]).learned == 'mlm_nsp'


def test_sweeps_below_a_folder_have_their_plans(tmp_path):
  """A folder with a run, a sweep and another of other baselines is as these sweeps alone."""
  workdir(tmp_path / 'pretrain', [(9, 'eval', {'mlm': 2.0})], 'steps=9')
  workdir(tmp_path / 'longer', [(9, 'eval', {'mlm': 1.9})], 'steps=9', 'optimizer.beta1=0.8')
  for sweep, values in (('S', '78'), ('T', '56')):
    spec = f'configs/finetune.py:task={"sst2" if sweep == "S" else "squad"}'
    metric = 'classification_accuracy' if sweep == 'S' else 'qa_f1'
    for x in values:
      name = f'beta1=0.{x}'
      fields = f'optimizer.beta1=0.{x}', 'steps=2', 'epochs=0'
      path = tmp_path / 'more' / sweep / f'{name},seed=0'
      workdir(path, [(2, 'eval', {metric: int(x) / 10})], *fields, spec=spec)
    gone = {f'{sweep},seed=1': {'arm': 'gone'}}
    plan(tmp_path / 'more' / sweep, baseline=f'beta1=0.{values[0]}', runs=gone)
  found = report.read(tmp_path)
  baselines = {panel.arms[0].runs[0].path.parent.name: panel.baseline for panel in found.panels}
  assert baselines == {'S': 'beta1=0.7', 'T': 'beta1=0.5', tmp_path.name: ''}
  alone = report.read(tmp_path / 'more' / 'S')
  same = next(x for x in found.panels if x.baseline == alone.panels[0].baseline)
  assert same.rows(same.metrics[0]) == alone.panels[0].rows(same.metrics[0])
  for sweep in 'ST':
    said = f'{tmp_path}/more/{sweep}: planned and without results: {sweep},seed=1'
    assert found.remarks.count(said) == 1
  assert not any('baseline' in x for x in found.remarks)


def test_each_table_has_the_baseline_of_its_own_sweep(tmp_path):
  """Of two sweeps of one objective that were evaluated otherwise, too; and a pre-training stands
  before a fine-tuning whose folder comes later, in the folder above as by name."""
  for sweep, rows in (('S', 'full'), ('S-more', 'nsp')):
    for arm in ('0.1', '0.2'):
      path, fields = tmp_path / sweep / f'{sweep}{arm},seed=0', (f'corpus.rows={rows}', 'steps=2')
      fields = *fields, f'loss.nsp_weight={int(rows == "nsp")}', f'optimizer.beta1={arm}'
      workdir(path, [(2, 'eval', {'mlm': 2.0})], *fields, rows=rows)
    plan(tmp_path / sweep, baseline=f'{sweep}0.{1 if sweep == "S" else 2}')
  fields = 'steps=2', 'epochs=0'
  tuned, scores = tmp_path / 'S-sst2' / 'a,seed=0', {'classification_accuracy': 0.7}
  workdir(tuned, [(2, 'eval', scores)], *fields, spec='configs/finetune.py:task=sst2')
  for folders in ([tmp_path], [tmp_path / x for x in ('S', 'S-more', 'S-sst2')]):
    found = report.read(*folders)
    assert [panel.baseline for panel in found.panels] == ['S0.1', 'S-more0.2', '']
    assert [panel.objective for panel in found.panels] == ['mlm_nsp', 'mlm_nsp', 'classification']
  with_name = report.read(tmp_path, baseline='S-more0.1')  # the user's holds for all
  assert {panel.baseline for panel in with_name.panels} == {'S-more0.1', ''}


def test_no_table_is_silent_about_runs_that_have_not_ended(tmp_path):
  """Nor is the one for a paper: of arms with fewer runs than planned and of arms without one."""
  for arm, steps in (('a', (4, 4, 4)), ('b', (4, 2, 4)), ('c', (2, 2, 2))):
    for seed, step in enumerate(steps):
      fields = f'seed={seed}', 'steps=4', f'optimizer.beta1=0.{ord(arm)}'
      workdir(tmp_path / f'{arm},seed={seed}', [(step, 'eval', {'mlm': 2.0 + seed})], *fields)
  plan(tmp_path, baseline='a', runs={f'd,seed={n}': {'arm': 'd'} for n in (0, 1)})
  (panel,) = report.read(tmp_path).panels
  assert panel.missing == {'c': (3, 3), 'b': (1, 3), 'd': (2, 2)}
  said = 'Runs that failed or have not ended are in no mean: c (3 of 3), b (1 of 3), d (2 of 2).'
  assert said in tables.narrow(panel)[1] and said in list(tables.notes(panel))
  tuned, fields = tmp_path / 'sst2' / 'a,seed=0', ('steps=2', 'epochs=0')
  scores = {'classification_accuracy': 0.7}
  workdir(tuned, [(2, 'eval', scores)], *fields, spec='configs/finetune.py:task=sst2')
  text = pages.latex(report.read(tmp_path))
  assert text.count(said) == 2 and text.index(f': {said}') < text.index(r'\par Runs that')
  shutil.rmtree(tmp_path / 'sst2')
  shutil.rmtree(tmp_path / 'b,seed=1')
  for name in 'cd':
    for seed in range(3):
      shutil.rmtree(tmp_path / f'{name},seed={seed}', ignore_errors=True)
  (tmp_path / 'sweep.json').unlink()
  (panel,) = report.read(tmp_path).panels
  assert not panel.missing and not list(tables.absent(panel))


def test_an_arm_that_collapsed_gets_no_p_value(tmp_path):
  """Nor does it count in the correction of the others."""
  for arm, base in (('0.1', 3.0), ('0.2', 2.0), ('0.3', 4.0)):
    for seed in range(3):
      more = {'constant': 1.0} if arm == '0.3' else {}
      scores = {'mlm': base + 0.1 * seed + 0.01 * int(arm[2]) * seed**2} | more
      fields = f'model.hidden_dropout_prob={arm}', f'seed={seed}', 'steps=2'
      workdir(tmp_path / f'{arm},{seed}', [(2, 'eval', scores)], *fields)
  read = report.read(tmp_path, baseline='hidden_dropout_prob=0.1')
  base, sound, gone = read.panels[0].rows('mlm')
  assert gone.difference.p is gone.difference.corrected is None and gone.difference.interval
  assert sound.difference.p == sound.difference.corrected < 0.05 and base.difference is None
  best = 'hidden_dropout_prob=0.2 differs most from hidden_dropout_prob=0.1, of the arms that '
  best += 'learned: -0.9'
  assert figures.headline(read.panels[0], 'mlm').startswith(best)  # the other's is +1.07
  said = 'in all means, and in all tests but of arms of which all did: hidden_dropout_prob=0.3.'
  assert said in report.table(read)
  read = report.read(tmp_path, baseline='hidden_dropout_prob=0.3')
  (panel,) = read.panels
  said = 'The baseline collapsed, so nothing is tested.'
  assert said in report.table(read) and said in tables.narrow(panel)[1]
  assert [row.difference.p for row in panel.rows('mlm')[1:]] == [None, None]


def test_what_is_to_be_looked_at_is_named_with_its_sweep(tmp_path):
  for folder, seeds in (('S-a', 3), ('S-b', 2), ('S-c', 2)):
    for seed in range(seeds):
      scores = {'classification_accuracy': 0.5 + seed / 7, 'constant': 1.0}
      if folder == 'S-c':
        del scores['constant']
      fields = f'seed={seed}', 'steps=2', 'epochs=0', f'data.eval={folder}.tsv'
      spec = 'configs/finetune.py:task=sst2'
      workdir(tmp_path / folder / f'x,{seed}', [(2, 'eval', scores)], *fields, spec=spec)
  remarks = report.read(tmp_path / 'S-a', tmp_path / 'S-b', renamed=['S-b=CoLA']).remarks
  for said in ('in S-a, seeds 0, 1, 2: collapsed', 'in CoLA, seeds 0, 1: collapsed'):
    assert any(said in x for x in remarks), remarks
  (remark,) = [x for x in report.read(tmp_path / 'S-a').remarks if 'collapsed' in x]
  assert ' in S-a' not in remark
  (remark,) = report.read(tmp_path / 'S-a', tmp_path / 'S-c').remarks  # of the one sweep alone
  assert ' in S-a, seeds' in remark


def test_a_copy_of_a_run_is_no_other_seed(tmp_path):
  for seed, value in enumerate((2.0, 3.0)):
    workdir(tmp_path / f'a{seed}', [(2, 'eval', {'mlm': value})], f'seed={seed}')
  shutil.copytree(tmp_path / 'a1', tmp_path / 'copy')
  workdir(tmp_path / 'unfinished', [(1, 'eval', {'mlm': 9.0})], 'seed=1', 'log.every=7')
  _, row = cells(text := report.table(report.read(tmp_path)))
  assert row[1:3] == ['2', '2.5000 ± 0.7071']
  assert f'{tmp_path}/copy: a copy of {tmp_path}/a1: counted once' in text
  assert f'{tmp_path}/unfinished: a copy of {tmp_path}/a1: counted once' in text
  # The same run by other code is no copy.
  facts = json.loads((tmp_path / 'copy' / 'run.json').read_text())
  (tmp_path / 'copy' / 'run.json').write_text(json.dumps(facts | {'commit': 'abc'}))
  result = report.read(tmp_path)
  assert len(arms.without_copies(result.runs)[0]) == 3


def test_several_folders_are_one_report_and_no_two_arms_are_called_alike(tmp_path):
  for name, beta in (('a', 0.8), ('b', 0.9)):
    (tmp_path / name).mkdir()
    workdir(tmp_path / name / 'run', [(1, 'eval', {'mlm': 2.0})], f'optimizer.beta1={beta}')
  folders = tmp_path / 'a', tmp_path / 'b', tmp_path / 'a' / 'run'
  _, one, two = cells(report.table(report.read(*folders)))
  assert [one[0], two[0]] == ['beta1=0.8', 'beta1=0.9'] and one[1] == '1'
  with pytest.raises(InputError, match='two arms are called X; give --label another name'):
    report.read(*folders, renamed=['beta1=0.8=X', 'beta1=0.9=X'])


@pytest.mark.parametrize(
  ('schedule', 'warmup', 'differ'),
  [
    ('linear', 5, True),
    ('constant', 5, False),
    ('constant', 0.1, True),
    ('inverse_sqrt', 5, False),
  ],
)
def test_runs_that_went_on_with_more_steps_are_named_beside_others(
  schedule, warmup, differ, tmp_path
):
  """If their learning rates were others at first, and unless all went on alike."""
  rates = f'optimizer.schedule={schedule}', f'optimizer.warmup={warmup}'
  for arm, seed in itertools.product((0.8, 0.9), (0, 1)):
    fields = f'optimizer.beta1={arm}', f'seed={seed}', 'steps=60', *rates
    path = workdir(tmp_path / f'{arm},{seed}', [(60, 'eval', {'mlm': arm + seed})], *fields)
    if arm == 0.8:
      earlier = [[40, 0.0], [40, 0.0, {'data.train': 'x'}]][: 1 + seed]  # one was moved, too
      config = json.loads((path / 'config.json').read_text()) | {'earlier_lengths': earlier}
      (path / 'config.json').write_text(json.dumps(config))
  why = 'its first learning rates are those of such a run'
  said = f'mlm_nsp: beta1=0.8, seeds 0, 1: it had 40 steps before: {why}'
  assert report.read(tmp_path).remarks == [said] * differ
  for seed in (0, 1):
    shutil.rmtree(tmp_path / f'0.9,{seed}')
  assert not report.read(tmp_path).remarks


def test_fields_of_an_arm_are_shortened_beside_a_folder_in_another(tmp_path):
  for sweep, steps in (('a/S', 2), ('b/S', 3)):
    for beta in (0.8, 0.9):
      both = f'optimizer.beta1={beta}', 'optimizer.beta2=0.99'
      path = tmp_path / sweep / f'{",".join(both)},seed=0'
      workdir(path, [(steps, 'eval', {'mlm': beta})], *both, f'steps={steps}')
    plan(tmp_path / sweep)
  labels = {arm.label for panel in report.read(tmp_path).panels for arm in panel.arms}
  assert 'beta1=0.8 (b/S)' in labels and len(labels) == 4, labels


def test_an_arm_of_several_sweeps_may_be_called_as_their_table_calls_it(tmp_path, monkeypatch):
  for sweep, steps in (('S', 2), ('T', 3)):
    for beta in (0.8, 0.9):
      fields = f'optimizer.beta1={beta}', f'steps={steps}'
      path = tmp_path / sweep / f'optimizer.beta1={beta},seed=0'
      workdir(path, [(steps, 'eval', {'mlm': beta * steps})], *fields)
    plan(tmp_path / sweep)
  read = lambda *renamed: report.read(tmp_path / 'S', tmp_path / 'T', renamed=renamed)
  labels = lambda found: sorted(arm.label for panel in found.panels for arm in panel.arms)
  assert labels(read()) == [f'beta1={x} ({y})' for x in ('0.8', '0.9') for y in 'ST']
  assert labels(read('beta1=0.8=low'))[2:] == ['low (S)', 'low (T)']
  with pytest.raises(InputError, match=r"OLD is beta=0.8, NEW is x.; .*; did you mean 'beta1=0.8'"):
    read('beta=0.8=x')
  with pytest.raises(InputError, match=r'OLD is beta1, .*; write --label beta1=0.8=NEW\.$'):
    read('beta1=0.8')  # the arm alone
  # Of two folders with the same last name as many of those above are said as tell them apart.
  shutil.copytree(tmp_path / 'T', tmp_path / 'more' / 'S')
  read = lambda *renamed: report.read(*map(tmp_path.joinpath, ('S', 'more/S')), renamed=renamed)
  here = f'{tmp_path.name}/S'
  assert labels(read())[::3] == ['beta1=0.8 (more/S)', f'beta1=0.9 ({here})']
  assert labels(read(f'{here}=here'))[::3] == ['beta1=0.8 (here)', 'beta1=0.9 (more/S)']
  monkeypatch.chdir(tmp_path / 'more' / 'S')  # and they are called so wherever one stands
  runs, _ = records.below('.', '../../S')
  assert {*arms.names_of_folders(runs).values()} == {here, 'more/S'}


def test_runs_judged_under_other_masks_are_named(tmp_path):
  """Runs of before evaluations had a masking are judged under their own, and by their seed."""
  lines = [(1, 'eval', {'mlm': 2.0})]
  own = 'eval_masking.policy=', 'eval.seed=-1'
  workdir(tmp_path / 'a', lines, 'masking.masked_lm_prob=0.4')
  workdir(tmp_path / 'b', lines)
  workdir(tmp_path / 'old', lines, *own, 'optimizer.beta1=0.8')
  assert 'cannot be compared' not in report.table(report.read(tmp_path))
  workdir(tmp_path / 'c', lines, 'masking.masked_lm_prob=0.4', *own)
  workdir(tmp_path / 'd', lines, 'seed=3', *own)
  text = report.table(report.read(tmp_path))
  assert 'stand in tables of their own, 3, since their numbers cannot be compared' in text
  rates = 'eval_masking.masked_lm_prob={}; predictions per row={}'
  for seeds, rate, count in (('0', '0.15', '10'), ('0', '0.4', '26'), ('0 or 3', '0.15', '10')):
    assert (
      f'masked words and next sentences: mlm (eval.seed={seeds}; {rates.format(rate, count)})'
      in text
    )


def test_runs_judged_on_other_rows_are_named(tmp_path):
  lines = [(1, 'eval', {'mlm': 2.0})]
  for name, rows in (('a', 'x'), ('b', 'y')):
    workdir(tmp_path / name, lines, f'seed={ord(name)}', rows=rows)
  assert '(rows of data.eval=x or y)\n' in report.table(report.read(tmp_path))
  workdir(tmp_path / 'c', lines, 'optimizer.beta1=0.8', rows='x')
  (tmp_path / 'c' / 'vocab.txt').write_text('[PAD]\n')
  found = [panel.evaluated_on for panel in report.read(tmp_path).panels]
  assert ['vocabulary=none' in x for x in found] == [True, False], found
