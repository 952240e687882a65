"""The long table of a report, what it compares, and its pages."""

import csv
import dataclasses
import itertools
import json
import re
import shutil
import statistics
import zlib

import numpy as np
import pandas as pd
import pytest
from matplotlib import figure
from scipy import stats as scipy_stats

from bert_jax import config as c
from bert_jax.config import InputError
from bert_jax.files import seal
from bert_jax.tasks.record import PlainBaseline
from bert_jax.tools import report
from bert_jax.tools.report import __main__ as command
from bert_jax.tools.report import comparison, figures, linear, panels, sentences
from bert_jax.workdir.contents import answers_folder

PRETRAIN = 'configs/pretrain.py:runlocal'
TABLE = 'configs/finetune.py:task=table'


def workdir(folder, lines, *fields, spec=PRETRAIN, levels=(), part=(), rows='', size=0, **facts):
  """The files by which a report knows a run. lines: (step, split, {metric: value}); fields:
  'NAME=VALUE'; levels: baselines of all rows, part: of those of the curve; rows: fingerprint of the
  evaluation, and size: how many it has; facts: more of run.json."""
  folder.mkdir(parents=True)
  config = c.load(spec, [f'--config.{field}' for field in fields])
  (folder / 'config.json').write_text(c.to_json(config))
  of_eval = {'baselines': dict(levels), 'fingerprint': rows, 'rows': size}
  facts['data'] = {'eval': of_eval | ({'part': dict(part)} if part else {})}
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


def sweep(folder, values, metric='mlm', baseline='', fields=(), **more):
  """A sweep of one evaluation a run. values: {arm: [value of seed 0, 1, ...]}; an arm is named by
  the field that it sets, or by fields with commas between. Its plan is in the order of `values`."""
  planned = {}
  for arm, by_seed in values.items():
    for seed, value in enumerate(by_seed):
      name = f'{arm},seed={seed}'
      planned[name] = {'arm': arm, 'spec': '', 'fields': []}
      if value is not None:
        lines = [(2, 'eval', {metric: value})]
        workdir(folder / name, lines, *arm.split(','), f'seed={seed}', 'steps=2', *fields, **more)
  (folder / 'sweep.json').write_text(json.dumps({'baseline': baseline, 'runs': planned}))
  return folder


def beta(x):
  return f'optimizer.beta1=0.{x}'


def compared(*folders, metric='mlm', **options):
  (panel,) = report.read(*folders, **options).panels
  return panel.compared(metric)


# ---- Means and differences ----------------------------------------------------------------------


def test_means_differences_and_p_are_scipys(tmp_path):
  """Of three arms that lack other seeds, in which seeds move together."""
  rng = np.random.default_rng(0)
  shared = rng.normal(size=6)
  values = {beta(x): [*(5 + shared + rng.normal(x / 9, 0.3, 6))] for x in (7, 5, 8)}
  values[beta(5)][1] = values[beta(8)][4] = None
  found = compared(sweep(tmp_path / 'S', values, baseline=beta(5)))
  assert list(found.index) == [beta(5), beta(7), beta(8)]
  ps = {}
  for arm, row in found.iterrows():
    numbers = [x for x in values[arm] if x is not None]
    assert (row.seeds, row['mean'], row.sd) == (
      len(numbers), statistics.fmean(numbers), statistics.stdev(numbers))  # fmt: skip
    within = scipy_stats.ttest_1samp(numbers, 0).confidence_interval()
    assert (row.low, row.high) == pytest.approx((within.low, within.high))
    if arm != beta(5):
      pairs = [(a, b) for a, b in zip(values[arm], values[beta(5)]) if None not in (a, b)]
      test = scipy_stats.ttest_rel(*zip(*pairs))
      within, ps[arm] = test.confidence_interval(), test.pvalue
      assert (row.shared, row.p) == (len(pairs), pytest.approx(test.pvalue))
      assert (row.difference_low, row.difference_high) == pytest.approx((within.low, within.high))
  low, high = sorted(ps, key=ps.get)
  assert found.p_corrected[low] == pytest.approx(min(1, 2 * ps[low]))
  assert found.p_corrected[high] == pytest.approx(max(ps[high], found.p_corrected[low]))
  assert found.p.isna()[beta(5)] and found.difference.isna()[beta(5)]


def test_runs_of_one_seed_are_averaged(tmp_path):
  for name, value in (('S', 3.0), ('T', 3.5), ('U', 4.0)):
    for seed in range(1 + (name == 'S')):
      lines = [(2, 'eval', {'mlm': value + seed})]
      workdir(tmp_path / name / f'a,seed={seed}', lines, f'seed={seed}', 'steps=2')
  row = report.read(tmp_path).panels[0].compared('mlm').loc['a']
  assert (row.seeds, row['mean']) == (2, (3.5 + 4.0) / 2)


def test_what_never_leaves_a_guess_is_said_and_a_guess_does_not_beat_itself(tmp_path):
  """A mean that is exactly the majority, and a loss that is hardly better than chance."""
  levels = {'nsp_accuracy': (0.5, 'majority'), 'mlm': (6.0, 'unigram')}
  for arm, (accuracy, loss) in {8: (0.5, 5.95), 7: (0.75, 5.99)}.items():
    for seed in range(3):
      lines = [(2, 'eval', {'nsp_accuracy': accuracy, 'mlm': loss + seed / 100})]
      fields = beta(arm), f'seed={seed}', 'steps=2', 'checkpoint.best_metric=nsp_accuracy'
      workdir(tmp_path / f'{arm},seed={seed}', lines, *fields, 'eval.batches=0', levels=levels)
  (panel,) = report.read(tmp_path).panels
  first, second, third = sentences.notes(panel)
  assert first == 'To beat: 0.5000 (majority).' and second == 'Not beaten by 8.'
  assert third.endswith(' mlm, 5.9600 at best, where a guess has 6.0000 (unigram).')
  for seed in range(3):
    shutil.rmtree(tmp_path / f'7,seed={seed}')
  (panel,) = report.read(tmp_path).panels
  assert 'No arm beats a guess' in list(sentences.notes(panel))[1]


def test_runs_that_share_no_step_have_no_curve():
  """As folds of other sizes, which are evaluated at their last step."""
  df = pd.DataFrame({'run': ['a', 'b'], 'step': [2, 3], 'value': [0.5, 0.6]})
  curve = figures.mean_curve(df, 'f1')
  assert not len(curve)
  figure.Figure().subplots().fill_between(curve.x, curve.low, curve.high)


def test_each_point_stands_beside_what_a_guess_scores_on_its_own_rows(tmp_path):
  lines = [(s, 'eval', {'mlm': 6 - s / 5}) for s in (1, 2)] + [(2, 'whole', {'mlm': 5.7})]
  sizes = {'levels': {'mlm': (6.0, 'unigram')}, 'part': {'mlm': (5.5, 'unigram')}, 'size': 10**6}
  workdir(tmp_path / 'a', lines, 'steps=2', **sizes)
  df = report.long(tmp_path)
  assert df.groupby('kind')['level'].unique().map(list).to_dict() == {'eval': [5.5], 'whole': [6.0]}
  assert df[df.final].value.tolist() == [5.7]
  (panel,) = report.read(tmp_path).panels
  drawn = figures.curves(panel).axes[0].lines
  assert [list(line.get_ydata()) for line in drawn] == [[5.8, 5.6], [5.5] * 2]
  # What depends on the model, such as what ELECTRA's generator leaves, is a level and no score.
  own = {'replaced_accuracy': 0.9, 'replaced_accuracy_majority': 0.85}
  workdir(tmp_path / 'E' / 'b', [(2, 'eval', own)], 'steps=2')
  (row,) = report.long(tmp_path / 'E').itertuples()
  assert (row.metric, row.value, row.level) == ('replaced_accuracy', 0.9, 0.85)


def test_crossed_arms_have_main_effects_and_interactions(tmp_path):
  """Against the means of cells, seed by seed; three by two, with a field that follows another."""
  rng, values = np.random.default_rng(1), {}
  for a, b in itertools.product((8, 7, 6), (0.1, 0.0)):
    arm = f'{beta(a)},model.hidden_dropout_prob={b},model.attention_probs_dropout_prob={b}'
    values[arm] = [*(a / 3 + b * (1 + a) + rng.normal(0, 0.1, 4))]
  (panel,) = report.read(sweep(tmp_path / 'S', values, baseline=next(iter(values)))).panels
  factors = comparison.crossed(panel.factors)
  assert list(factors) == ['model.attention_probs_dropout_prob', 'optimizer.beta1']
  found = comparison.effects(panel.df, 'mlm', factors, panel.baseline)
  cell = np.array(list(values.values())).reshape(3, 2, 4)
  names = [beta(7), beta(6), 'model.attention_probs_dropout_prob=0.0']
  both = [f'{names[2]} x {name}' for name in names[:2]]
  expected = [cell[i].mean(0) - cell[0].mean(0) for i in (1, 2)]
  expected += [cell[:, 1].mean(0) - cell[:, 0].mean(0)]
  expected += [cell[i, 1] - cell[0, 1] - cell[i, 0] + cell[0, 0] for i in (1, 2)]
  for name, by_seed in zip(names + both, expected, strict=True):
    test = scipy_stats.ttest_1samp(by_seed, 0)
    assert found.difference[name] == pytest.approx(by_seed.mean())
    assert found.p[name] == pytest.approx(test.pvalue)
  shutil.rmtree(tmp_path / 'S')
  del values[arm]  # no full grid
  (panel,) = report.read(sweep(tmp_path / 'S', values, baseline=next(iter(values)))).panels
  assert not len(comparison.crossed(panel.factors).columns)


def labelled(folder, arms, right, baseline=''):
  """A sweep of classifiers. right: {arm: [which examples are right, of each seed]}."""
  given = 'data.train=a.tsv', 'data.eval=b.tsv', 'table.labels=x,y', 'epochs=0'
  values = {arm: [float(np.mean(of_seed)) for of_seed in right[arm]] for arm in arms}
  more = {'levels': {'accuracy': (0.5, 'majority')}, 'spec': TABLE}
  sweep(folder, values, 'accuracy', baseline, given, **more)
  for arm, seed in itertools.product(arms, range(3)):
    out = answers_folder(folder / f'{arm},seed={seed}', '', 'b.tsv', 2)
    out.mkdir(parents=True)
    rows = enumerate(right[arm][seed])
    answers = [{'id': f'{n}', 'gold': 'x', 'prediction': 'yx'[int(good)]} for n, good in rows]
    scores = {'tokens': '0-64', 'examples': len(answers), 'accuracy': 0.5}
    write_answers(out, '\n'.join(map(json.dumps, answers)), scores)
  return folder


def write_answers(folder, text, scores):
  (folder / 'predictions.jsonl').write_text(text)
  known = {'by_length': [scores], 'predictions_crc32': zlib.crc32(text.encode())}
  (folder / 'scores.json').write_text(json.dumps(known))


def test_scores_of_few_examples_have_intervals_and_tests_over_examples_too(tmp_path):
  """As scipy has them; and the rounding of a score adds its variance over seeds."""
  rng, arms = np.random.default_rng(2), (beta(8), beta(7))
  right = {arm: rng.random((3, 80)) < 0.6 + 0.2 * (arm == arms[1]) for arm in arms}
  folder = labelled(tmp_path / 'S', arms, right, arms[0])
  row = compared(folder, metric='accuracy').loc[arms[1]]
  hits = round(80 * row['mean'])
  share = scipy_stats.binomtest(hits, 80)
  within = share.proportion_ci(method='wilson')
  assert (row.examples_low, row.examples_high) == pytest.approx((within.low, within.high), abs=5e-3)
  ps = []
  for mine, other in zip(right[arms[1]], right[arms[0]]):
    only = int(sum(mine & ~other))
    ps.append(scipy_stats.binomtest(only, only + int(sum(~mine & other))).pvalue)
  assert (row.p_examples_low, row.p_examples_high) == pytest.approx((min(ps), max(ps)))
  plain = [float(np.mean(x)) for x in right[arms[1]]]
  error = ((statistics.variance(plain) + (1 / 80) ** 2 / 12) / 3) ** 0.5
  assert row.high - row['mean'] == pytest.approx(4.302653 * error)
  # Answers to other examples are compared with none.
  of_seed = answers_folder(folder / f'{arms[1]},seed=0', '', 'b.tsv', 2)
  text = (of_seed / 'predictions.jsonl').read_text()
  write_answers(of_seed, text.replace('"id": "0"', '"id": "z"'), {'examples': 80})
  row = compared(folder, metric='accuracy').loc[arms[1]]
  assert (row.p_examples_low, row.p_examples_high) == pytest.approx((min(ps[1:]), max(ps[1:])))
  # So are answers that are not as they were written, with a remark.
  (of_seed / 'predictions.jsonl').write_text(text[: len(text) // 2])
  found = report.read(folder)
  damaged = found.panels[0].compared('accuracy')
  assert damaged.p_examples_low[arms[1]] == row.p_examples_low
  assert str(of_seed / 'predictions.jsonl') in found.results.remarks[0]


def test_the_caption_names_the_strongest_evidence_not_the_largest_difference(tmp_path):
  values = {beta(8): [5.0, 5.3, 5.1], beta(7): [4.9, 5.19, 5.01], beta(6): [4.0, 5.9, 4.2]}
  (panel,) = report.read(sweep(tmp_path / 'S', values, baseline=beta(8))).panels
  found = panel.compared('mlm')
  assert abs(found.difference[beta(6)]) > abs(found.difference[beta(7)])
  said = sentences.strongest(panel)
  assert said.startswith(f'Strongest evidence: {beta(7)} against {beta(8)}, -0.1')
  assert f'{found.p_corrected[beta(7)]:.4f}' in said


# ---- Which runs stand in a mean -----------------------------------------------------------------


def test_a_status_says_which_runs_stand_in_a_mean(tmp_path):
  """Collapsed runs do, and are told; none that failed, goes on or has no number."""
  values = {beta(8): [0.9, 0.92, 0.91, 0.5, 0.1, 0.2, None], beta(7): [0.8, 0.7, 0.75]}
  folder = sweep(tmp_path / 'S', values, baseline=beta(8))
  runs = {seed: folder / f'{beta(8)},seed={seed}' for seed in range(7)}
  text = (runs[3] / 'metrics.jsonl').read_text()
  (runs[3] / 'metrics.jsonl').write_text(text.replace('}', ', "constant": 1}'))
  (runs[4] / 'summary.json').write_text(json.dumps({'state': 'running', 'step': 2}))
  text = (runs[5] / 'metrics.jsonl').read_text()
  (runs[5] / 'metrics.jsonl').write_text(text + text.replace('0.2', 'null'))
  (folder / 'logs').mkdir()
  ended = {'state': 'failed', 'error': 'no space'}
  (folder / 'logs' / f'{runs[6].name}.json').write_text(json.dumps(ended))
  found = report.read(folder)
  states = found.results.runs.set_index('run').status
  expected = ['finished'] * 3 + ['collapsed', 'unfinished', 'no number', 'failed']
  assert [states[str(path)] for path in runs.values()] == expected
  (panel,) = found.panels
  row = panel.compared('mlm').loc[beta(8)]
  assert (row.seeds, row.collapsed) == (4, 1)
  assert panel.compared('mlm').p[beta(7)] > 0  # one that collapsed takes nothing from the others
  assert row['mean'] == pytest.approx(3.23 / 4)
  cells = panels.comparison(panel, 'mlm').set_index('arm')
  assert cells['mean ± sd'][beta(8)].endswith('(1 of 4 collapsed)')
  odd = panels.odd_runs(found).set_index('run')
  assert odd.remark[str(runs[6])] == 'no space' and len(odd) == 4
  # A baseline whose runs all collapsed is compared with nothing; of runs that go on alone the
  # results so far are shown.
  for seed in (0, 1, 2):
    text = (runs[seed] / 'metrics.jsonl').read_text()
    (runs[seed] / 'metrics.jsonl').write_text(text.replace('}', ', "constant": 1}'))
  assert compared(folder).p.isna().all()
  for path in folder.glob('*/config.json'):
    (path.parent / 'summary.json').write_text(json.dumps({'state': 'running'}))
  assert compared(folder).seeds[beta(7)] == 3


def test_what_is_odd_among_the_runs_of_an_arm_is_said(tmp_path):
  """A field, and the commit."""
  folder = sweep(tmp_path / 'S', {beta(8): [1.0, 2.0, 3.0]})
  config = c.load(PRETRAIN, [f'--config.{x}' for x in (beta(7), 'seed=1', 'steps=2')])
  (folder / f'{beta(8)},seed=1' / 'config.json').write_text(c.to_json(config))
  facts = {'made_by': {'commit': 'fedcba'}}
  (folder / f'{beta(8)},seed=2' / 'run.json').write_text(json.dumps(facts))
  remarks = report.read(folder).results.runs.remark.tolist()
  assert 'others of its arm of another' in remarks[0]
  assert 'differs from other runs of its arm in optimizer.beta1' in remarks[1]
  assert 'of commit fedcba' in remarks[2]


def test_a_run_that_may_stop_early_counts_its_best(tmp_path):
  lines = [(k, 'eval', {'mlm': x}) for k, x in enumerate((3.0, 2.0, 2.5), 1)]
  stops = (
    'checkpoint.best_metric=mlm',
    'eval.batches=0',
    'eval.patience=2',
    'eval.every=1',
    'steps=3',
  )
  for mode, expected in ('min', 2.0), ('max', 3.0):
    workdir(tmp_path / mode, lines, *stops, f'checkpoint.best_mode={mode}')
    df = report.long(tmp_path / mode)
    assert df[df.final].value.tolist() == [expected] and len(df) == 3


# ---- Arms, sweeps and evaluations ---------------------------------------------------------------


def test_an_arm_has_the_name_of_its_plan_else_of_its_folder(tmp_path):
  """Seeds are one arm where their folders are called alike, also if each starts from its own
  weights."""
  folder = sweep(tmp_path / 'S', {beta(8): [1.0], beta(7): [2.0]})
  for seed in (0, 1):
    fields = f'init_from=X/a,seed={seed}', f'seed={seed}', f'log.every={5 + seed}', 'steps=2'
    for name in (f'alike,seed={seed}', f'by_hand{seed}'):
      workdir(folder / name, [(2, 'eval', {'mlm': 3.0})], *fields)
  found = compared(folder, baseline=beta(7))
  assert found.seeds.to_dict() == {beta(7): 1, beta(8): 1, 'alike': 2, 'by_hand0': 1, 'by_hand1': 1}
  with pytest.raises(InputError, match='no arm is called'):
    report.read(folder, baseline='optimizer.beta1=0.9')


def test_one_table_of_a_sweep_and_its_tasks(tmp_path):
  """Arms of one name are one row; each task has the baseline of its own sweep, and fine-tuning the
  fields of the runs that it started from. Arms called alike that are not have their sweep."""
  arms = {beta(8): [5.0, 5.1, 5.3], beta(7): [4.5, 4.7, 4.6]}
  folder = sweep(tmp_path / 'S', arms, baseline=beta(8))
  for task in ('sst2', 'cola'):
    planned = {}
    for arm, seed in itertools.product(arms, range(3)):
      name, lines = f'{arm},seed={seed}', [(2, 'eval', {'accuracy': 0.5 + seed / 9})]
      fields = (
        f'init_from={folder}/{name}',
        f'seed={seed}',
        'steps=2',
        'epochs=0',
        f'data.eval={task}',
      )
      workdir(tmp_path / task / name, lines, *fields, spec='configs/finetune.py:task=sst2')
      planned[name] = {'arm': arm, 'spec': '', 'fields': []}
    content = {'baseline': beta(7), 'runs': planned}
    (tmp_path / task / 'sweep.json').write_text(json.dumps(content))
  found = report.read(folder, tmp_path / 'sst2', tmp_path / 'cola')
  assert [panel.baseline for panel in found.panels] == [beta(8), beta(7), beta(7)]
  every = panels.overview(found).set_index('arm')
  assert [x.split(' (')[1][:4] for x in every] == ['S)', 'sst2', 'cola']
  assert len(every) == 2 and every.iloc[0, 0] == '5.1333 ± 0.1528, n = 3, baseline'
  assert list(found.panels[1].factors) == ['init_from: optimizer.beta1']
  rows = list(csv.DictReader(panels.results_csv(found).splitlines()))
  assert [row['sweep'] for row in rows] == ['S'] * 6 + ['sst2'] * 6 + ['cola'] * 6
  assert [row['arm'] for row in rows[:6]] == [beta(8)] * 3 + [beta(7)] * 3
  assert {row['init_from: optimizer.beta1'] for row in rows[6:]} == {'0.8', '0.7'}
  sweep(tmp_path / 'T', arms, fields=['optimizer.beta2=0.9'])
  labels = compared(folder, tmp_path / 'T').index
  assert set(labels) == {f'{arm} ({name})' for arm in arms for name in 'ST'}


def test_what_was_evaluated_otherwise_stands_apart(tmp_path):
  """By masks, rows and vocabulary; labelled examples by their file and by what a guess scores on
  them. Masks by the seed of a run are those of an arm."""
  lines = [(2, 'eval', {'mlm': 2.0})]
  own = 'eval_masking.policy=span', 'steps=2'
  workdir(tmp_path / 'a', lines, 'steps=2')
  workdir(tmp_path / 'b', lines, beta(8), 'steps=2')
  assert len(report.read(tmp_path).panels) == 1
  for seed in (3, 4):
    workdir(tmp_path / f'd,seed={seed}', lines, f'seed={seed}', f'eval.seed={seed}', *own)
  workdir(tmp_path / 'e', lines, beta(7), 'steps=2', rows='other')
  apart = [panel.apart for panel in report.read(tmp_path).panels]
  assert len(apart) == 3 and 'eval.seed=3 or 4' in apart[1] and 'rows=other' in apart[2]
  lines = [(2, 'eval', {'accuracy': 0.5})]
  for n, (name, level, rows) in enumerate((('c', 0.5, ''), ('d', 0.5, 'x'), ('d', 0.75, 'x'))):
    levels = {'accuracy': (level, 'majority'), 'f1': (0.1, 'majority')}
    fields = f'data.eval={name}.tsv', beta(n), 'steps=2', 'epochs=0'
    workdir(tmp_path / 'T' / f'{n}', lines, *fields, spec=TABLE, levels=levels, rows=rows)
  apart = [panel.apart for panel in report.read(tmp_path / 'T').panels]
  assert (
    len(apart) == 3 and apart[0].startswith(' (data.eval=c.tsv') and 'majority=0.75' in apart[2]
  )


def test_every_row_says_how_far_the_training_was(tmp_path):
  """Evaluations between two lines of training lie between them in tokens."""
  lines = [(s, 'train', {'seen_tokens': 100.0 * s, 'mlm': 4.0}) for s in (100, 200)]
  lines += [(s, 'eval', {'mlm': 4.0 - s / 500}) for s in (50, 130, 200, 210)]
  costs = {'parameters': 1000, 'flops_by_stage': [(0, 2e6)]}
  workdir(tmp_path / 'a', lines, 'steps=200', **costs)
  df = report.long(tmp_path)
  points = df[df.kind == 'eval']
  assert points.tokens.tolist()[:3] == [5e3, 13e3, 2e4] and np.isnan(points.tokens.iloc[3])
  assert points.flops.tolist() == [1e8, 2.6e8, 4e8, 4.2e8]
  assert set(df[df.kind == 'train'].metric) == {'seen_tokens', 'mlm'}


# ---- Pages --------------------------------------------------------------------------------------


def test_a_report_replaces_only_what_a_report_has_written(tmp_path):
  folder = sweep(
    tmp_path / 'S', {beta(8): [2.0, 3.0, 4.0], beta(7): [2.5, 3.1, 4.2]}, baseline=beta(8)
  )
  out, mine = tmp_path / 'out', ['our-attention-scores.png', 'my-curves.pdf', 'figure-final.svg']
  out.mkdir()
  for name in mine:
    (out / name).write_text('mine')
  command.main([str(folder), '--out', str(out)])
  page = (out / 'report.html').read_text()
  assert page.count('<svg') == 1
  assert not re.search(r'(src|href)="(?!#)', page)  # nothing is fetched
  assert (out / '0-mlm_nsp-mlm-final.pdf').is_file()
  assert '0.7 & 3 & 3.2667 ± 0.8622 & +0.2667 & ' in (out / 'table.tex').read_text()
  assert f'| {beta(7)} | 3 | 3.2667 ± 0.8622 |' in (out / 'report.md').read_text()
  shutil.rmtree(folder / f'{beta(7)},seed=0')
  command.main([str(folder), '--out', str(out)])
  assert [(out / name).read_text() for name in mine] == ['mine'] * 3
  (tmp_path / 'other').mkdir()
  (tmp_path / 'other' / 'results.csv').write_text('mine')
  with pytest.raises(SystemExit):
    command.main([str(folder), '--out', str(tmp_path / 'other')])
  assert [x.name for x in (tmp_path / 'other').iterdir()] == ['results.csv']


def test_pictures_have_the_differences_of_each_seed_and_every_score(tmp_path):
  values = {beta(8): [2.0, 3.0, 4.0], beta(7): [2.5, 3.1, 4.2]}
  folder = sweep(tmp_path / 'S', values, baseline=beta(8))
  for path in folder.glob('*/metrics.jsonl'):
    line = json.loads(path.read_text()) | {'nsp': 1.0}
    path.write_text('\n'.join(json.dumps(line | {'step': step}) for step in (1, 2)))
  (panel,) = report.read(folder).panels
  _, right = figures.finals(panel).axes
  dots = [line.get_xdata() for line in right.lines if line.get_marker() == 'o']
  assert np.concatenate(dots) == pytest.approx([0.5, 0.1, 0.2])
  assert [axis.get_ylabel() for axis in figures.curves(panel).axes] == ['mlm', 'nsp']


def test_a_linear_svm_stands_beside_each_training_data(tmp_path, monkeypatch):
  """As an arm of one seed, which is tested against nothing."""
  right = {arm: [[True, False, True, False]] * 3 for arm in (beta(8), 'task.train_examples=9')}
  folder, asked = labelled(tmp_path / 'S', list(right), right, beta(8)), []

  def metrics(config, tokenizer):
    asked.append(config.task.train_examples)
    return {'accuracy': 0.75 + asked[-1] / 100}

  svm = PlainBaseline('SVM', ('task.train_examples',), metrics)
  family = dataclasses.replace(linear.TASKS['classification'], plain_baseline=svm)
  monkeypatch.setattr(linear, 'TASKS', {'classification': family})
  monkeypatch.setattr(linear.tokenizers, 'load_folder', lambda _: None)
  found = compared(folder, metric='accuracy', svm=True)
  more = {'SVM': 0.75, 'SVM, data of task.train_examples=9': 0.84}
  assert found['mean'].to_dict() == dict.fromkeys(right, 0.5) | more
  assert found.p[[*more]].isna().all() and len(asked) == 2


def test_damaged_runs_are_named_and_the_rest_reported(tmp_path):
  folder = sweep(tmp_path / 'S', {beta(8): [2.0, 3.0, 4.0]})
  (folder / f'{beta(8)},seed=0' / 'config.json').write_text(
    '{"objective": "mlm_nsp", "no_field": 1}'
  )
  with (folder / f'{beta(8)},seed=1' / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 500, "spl')  # cut off
  found = report.read(folder)
  assert found.panels[0].compared('mlm').seeds.tolist() == [2]
  said = '\n'.join(found.results.remarks)
  assert 'seed=0 is left out' in said and 'seed=1/metrics.jsonl' in said
  assert said.splitlines()[0] in report.text(found)
  with pytest.raises(InputError, match='no run with metrics'):
    report.long(tmp_path / 'none')
