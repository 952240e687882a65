"""The pages of a report and their statistics, the latter against simulation and scipy's tests."""

import csv
import dataclasses
import io
import itertools
import json
import random
import re
import shutil
import statistics
import xml.etree.ElementTree as ElementTree
from unittest import mock

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath
from matplotlib.ticker import EngFormatter, FixedLocator
from test_report import PRETRAIN, checkpoint_at, plan, workdir

from bert_jax import config as c
from bert_jax.errors import InputError
from bert_jax.metrics import Level
from bert_jax.tools.report import __main__ as report
from bert_jax.tools.report import arms as report_arms
from bert_jax.tools.report import curves, panels, tables
from bert_jax.tools.report import figures as report_figures
from bert_jax.tools.report import pages as report_pages
from bert_jax.tools.report import parts as report_parts
from bert_jax.tools.report import statistics as stats
from bert_jax.tools.report.panels import Row
from bert_jax.workdir import records


def test_intervals_cover_what_they_say():
  """Of 3 or 12 seeds, normal or uniform, 93 to 97 of 100 intervals hold the mean."""
  rng = np.random.default_rng(0)
  for n in (3, 12):
    for draw in (rng.normal, lambda size: rng.uniform(-1, 1, size)):
      found = [stats.interval(list(values)) for values in draw(size=(1500, n))]
      assert 0.93 <= np.mean([low <= 0 <= high for low, high in found]) <= 0.97, (n, draw)


def test_false_alarms_of_a_whole_table_are_rare():
  """Six arms that do not differ, with five seeds, whose effects they share: at most one table of
  20 has a corrected p below 0.05; without the correction many have."""
  rng, wrong, uncorrected = np.random.default_rng(1), 0, 0
  for _ in range(400):
    shared = rng.normal(size=5)
    arms = {k: dict(enumerate(shared + rng.normal(size=5))) for k in range(7)}
    found = stats.differences(arms, 0).values()
    wrong += any(x.corrected < 0.05 for x in found)
    uncorrected += any(x.p < 0.05 for x in found)
  assert 0.02 < wrong / 400 <= 0.05 and uncorrected / 400 > 0.1


def test_false_alarms_with_few_examples_are_rare():
  """Six arms that do not differ, with three seeds and 100 examples, whose answers differ between
  seeds in one or two: Matthews' correlation is then nearly the same in all seeds by chance."""
  rng, size, wrong, unrounded = np.random.default_rng(2), 100, 0, 0
  for _ in range(250):
    right, false = (
      np.round(x + rng.normal(0, 0.5, (7, 3))) for x in rng.uniform((35, 15), (36, 16))
    )
    missed, rejected = 50 - right, 50 - false
    scores = (right * rejected - false * missed) / np.sqrt(
      (right + false) * (right + missed) * (rejected + false) * (rejected + missed)
    )
    arms = {k: dict(enumerate(values.tolist())) for k, values in enumerate(scores)}
    for step in (0, 1 / size):
      alarm = any((x.corrected or 1) < 0.05 for x in stats.differences(arms, 0, step).values())
      wrong, unrounded = wrong + alarm * (step > 0), unrounded + alarm * (step == 0)
  assert wrong / 250 <= 0.05 and unrounded / 250 > 0.1
  # What differs by more is still seen, also where all seeds agree; so is nothing where nothing is.
  for more, low, high in ((0.05, 0, 0.01), (0.01, 0.05, 1), (0.0, 1, 1)):
    by_seed = {0: 0.70, 1: 0.73, 2: 0.71}
    other = {seed: round(value + more, 2) for seed, value in by_seed.items()}
    found = stats.difference(other, by_seed, 1 / size)
    assert low <= found.p <= high and found.interval[0] < more < found.interval[1]


def test_a_difference_is_that_of_scipys_paired_test():
  from scipy import stats as scipy_stats

  a, b = {0: 1.0, 1: 2.5, 2: 2.0, 4: 4.0, 9: 7.0}, {1: 2.0, 0: 1.2, 4: 3.1, 2: 1.7, 8: 0.0}
  found = stats.difference(a, b)
  pairs = [(a[k], b[k]) for k in (0, 1, 2, 4)]
  expected = scipy_stats.ttest_rel(*zip(*pairs))
  assert found.seeds == 4 and found.p == pytest.approx(expected.pvalue)
  within = expected.confidence_interval()
  assert found.interval == pytest.approx((within.low, within.high))
  assert stats.difference(a, {8: 1.0}) is None
  cases = (1, 3, '+0.5000 (1 seed)'), (2, 3, '+0.5000 (2 seeds)'), (3, 3, '+0.5000')
  for shared, of_base, said in (*cases, (3, 4, '+0.5000 (3 seeds)')):
    difference = stats.Difference(shared, 0.5, None, None)
    row = Row('a', {0: 1.0, 1: 2.0, 5: 2.5}, {}, 1.5, None, difference)
    base = Row('b', dict.fromkeys(range(of_base), 1.0), {}, 1.0, None, None)
    assert tables.cells(row, base)[4] == said
  assert stats.difference({0: 2.0, 1: 3.0}, {0: 1.0, 1: 1.0}) == (2, 1.5, None, None, None)
  same = {0: 1.0, 1: 2.0, 2: 3.0}
  assert stats.difference(same, same)[1:4] == (0, None, None)
  # The same difference in all seeds, as scores of few examples have it, has no spread to judge by.
  more = {seed: value + 0.01 for seed, value in same.items()}
  assert stats.difference(more, same)[2:4] == (None, None)


def test_holm():
  # The example of Wikipedia's article on the method: 0.01, 0.04, 0.03, 0.005.
  assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
  assert stats.holm([0.9, 0.8]) == [1.0, 1.0] and stats.holm([]) == []


LEVELS, COSTS = {'mlm': (6.0, 'unigram')}, {'parameters': 1000, 'flops_per_step': 2e6}


def grid(tmp_path, arms, seeds=5):
  """Workdirs of a sweep of masking rates: {rate: mean}; the values of a seed move together."""
  rng = random.Random(0)
  effect = [rng.gauss(0, 0.2) for _ in range(seeds)]
  for rate, mean in arms.items():
    for seed in range(seeds):
      final = mean + effect[seed] + rng.gauss(0, 0.01)
      lines = []
      for s in (250, 500):
        scores = {'mlm': 9 - (9 - final) * s / 500, 'nsp_accuracy': 0.5 + s / 5000}
        speed = {'steps': 250, 'steps_per_s': 5.0, 'seen_tokens': 100.0 * s}
        lines += [(s, 'train', scores | speed), (s, 'eval', scores)]
      fields = f'masking.masked_lm_prob={rate}', f'seed={seed}'
      workdir(tmp_path / ','.join(fields), lines, *fields, levels=LEVELS, costs=COSTS)
  return tmp_path


@pytest.fixture
def no_pictures(monkeypatch):
  monkeypatch.setattr(report_figures, 'panel_figures', lambda *_: ())


def made(folder, *more):
  """{name: text} of the files of a report."""
  report.main([str(folder), *more])
  return {
    p.name: p.read_text()
    for p in (folder / 'report').iterdir()
    if p.suffix in ('.html', '.md', '.csv', '.tex')
  }


def rows_of(markdown, after):
  lines = markdown.split(after, 1)[1].strip().splitlines()
  lines = lines[: next((i for i, x in enumerate(lines) if not x.startswith('|')), None)]
  return [[cell.strip() for cell in line.strip('|').split('|')] for line in lines[2:]]


def test_the_files_of_a_report(tmp_path):
  others = 'classification-f1-final-0.png', 'qa-f1-lengths.svg', 'my-final-notes.txt'
  (tmp_path / 'report').mkdir()
  for name in others:
    (tmp_path / 'report' / name).write_text('')
  files = made(grid(tmp_path, {0.15: 4.0, 0.3: 4.1, 0.6: 4.1}), '--baseline', 'masked_lm_prob=0.3')
  rows = rows_of(files['report.md'], '## masked words and next sentences: mlm, nats\n')
  assert [row[0] for row in rows] == [f'masked_lm_prob={x}' for x in (0.3, 0.15, 0.6)]
  assert rows[0][4] == 'baseline' and -0.12 < float(rows[1][4]) < -0.08 and rows[0][1] == '5'
  assert float(rows[1][7].replace('<', '')) < 0.01 < 0.05 < float(rows[2][7])
  assert 'To beat: 6.0000 nats (unigram), on held-out text; lower is better.' in files['report.md']
  html = files['report.html']
  assert html.count('<svg') == 3 and 'http' not in re.sub(r'<svg.*?</svg>', '', html, flags=re.S)
  assert not re.search(r'(src|href)="(?!#)', html)  # nothing is fetched
  assert 'masking.masked_lm_prob' in html and 'optimizer.beta1' not in html
  assert 'All sweeps' not in html + files['report.md']  # whose table would be that of the only one
  # The first picture is entitled by what stands out in the table.
  said, tested = f'{rows[1][0]} differs most from {rows[0][0]}: {rows[1][4]} (', 'p = '
  assert f'<figure><figcaption>{said}{tested}' in html and f'![{said}{tested}' in files['report.md']
  lines = list(csv.DictReader(files['results.csv'].splitlines()))
  assert len(lines) == 15 and {line['seed'] for line in lines} == set('01234')
  line = lines[0]
  assert (line['tokens'], line['seconds'], line['flops']) == ('50000.0', '100.0', '1000000000.0')
  by_arm = [float(x['mlm']) for x in lines if x['arm'] == 'masked_lm_prob=0.15']
  assert rows[1][2] == f'{statistics.mean(by_arm):.4f} ± {statistics.stdev(by_arm):.4f}'
  table = [line.split(' & ') for line in files['table.tex'].splitlines() if '&' in line]
  assert [row[:2] for row in table[1:]] == [
    [rf'masked\_lm\_prob={x}', '5'] for x in (0.3, 0.15, 0.6)
  ]
  assert [len(row) for row in table] == 4 * [5]
  # How wide it is, by the letters of TeX, which are some 6 % wider at this size.
  roman = f'{matplotlib.get_data_path()}/fonts/ttf/cmr10.ttf'
  roman, measure = FontProperties(fname=roman, size=8), TextToPath().get_text_width_height_descent
  cells = (rows[1][0], rows[1][1] * 5, rows[1][2], f'{rows[1][4]} + 0.0000', 'corrected')
  wide = 1.06 * sum(measure(x.replace('±', '+'), roman, False)[0] for x in cells) + 30
  said = int(re.search(r'% About (\d+) pt wide', files['table.tex'])[1])
  assert (
    said == pytest.approx(wide, rel=0.06) and r'\setlength{\tabcolsep}{3pt}' in files['table.tex']
  )
  difference, half = (float(x) for x in table[2][3].replace('$', '').split('\\pm'))
  low, high = map(float, rows[1][5].split(' to '))
  assert difference == float(rows[1][4]) and half == pytest.approx((high - low) / 2, abs=1e-4)
  names = [f'mlm_nsp-mlm-{kind}' for kind in ('final', 'curves', 'scores')]
  for name in names:
    content = [(tmp_path / 'report' / f'{name}.{x}').read_bytes()[:8] for x in ('pdf', 'png')]
    assert content[0].startswith(b'%PDF') and content[1] == b'\x89PNG\r\n\x1a\n'
    ElementTree.parse(tmp_path / 'report' / f'{name}.svg')
  # They are as wide as one or two columns of a paper, in fonts that journals take.
  for ending, width in ('', 6.75), ('-column', 3.25):
    pdf = (tmp_path / 'report' / f'mlm_nsp-mlm-final{ending}.pdf').read_bytes()
    (box,) = re.findall(rb'/MediaBox \[ ?0 0 ([\d.]+)', pdf)
    assert float(box) == pytest.approx(72 * width)
    assert b'/CIDFontType2' in pdf and b'/Type3' not in pdf
  # Pictures of other runs go.
  assert [x for x in others if (tmp_path / 'report' / x).exists()] == ['my-final-notes.txt']


def test_labelled_data_that_was_changed_between_runs_sets_them_apart(tmp_path, no_pictures):
  """By the fingerprint of the rows; those of another length differ, and are of the same data."""
  lines, more = [(500, 'eval', {'classification_accuracy': 0.5})], 'steps=500'
  of = lambda rows: {'spec': 'configs/finetune.py:runlocal', 'rows': rows}
  make = lambda name, rows, field: workdir(tmp_path / name, lines, field, more, **of(rows))
  make('a', 'x', 'seed=0')
  make('b', 'x', 'optimizer.beta1=0.8')
  make('c', 'z', 'data.seq_length=64')
  (panel,) = report.read(tmp_path).panels
  assert len(panel.arms) == 3
  shutil.rmtree(tmp_path / 'b')
  make('b', 'y', 'optimizer.beta1=0.8')
  assert {panel.evaluated_on for panel in report.read(tmp_path).panels} == {
    'data.seq_length=64',
    *(f'data.seq_length=128; rows of data.eval={x}' for x in 'xy'),
  }


def test_an_evaluation_goes_by_its_file_and_not_by_its_checksum(tmp_path):
  for name, loss in ('a', 2.0), ('b', 3.0):
    lines = [(500, 'eval', {'mlm': loss})]
    workdir(tmp_path / name, lines, f'data.eval={name}.txt', rows=f'{name}{10**15}')
  found = report.read(tmp_path)
  assert [x.evaluated_on for x in found.panels] == ['data.eval=a.txt', 'data.eval=b.txt']
  both = tables.overview(found)  # two columns, though metric and folder are the same
  assert both.header[2:] == ('mlm: data.eval=a.txt', 'mlm: data.eval=b.txt')
  assert [row[2:] for row in both.rows] == [('2.0000', '-'), ('-', '3.0000')]
  # The score of a guess tells examples in files of one name apart, and is not said of others.
  spec, name = 'configs/finetune.py:task=sst2', 'classification_accuracy'
  for n, text in enumerate(('c.tsv', 'd.tsv', 'd.tsv')):
    lines, levels = [(500, 'eval', {name: 0.8})], {name: (0.5 + n / 8, 'majority')}
    fields = f'data.eval={text}', f'optimizer.beta1=0.{n + 5}'
    workdir(tmp_path / 'T' / f'{n}', lines, *fields, spec=spec, levels=levels)
  found = {x.evaluated_on for x in report.read(tmp_path / 'T').panels}
  told = {f'data.eval=d.tsv; {name} of a majority={x}' for x in (0.625, 0.75)}
  assert found == {'data.eval=c.tsv', *told}
  # Tasks of other folders and files are apart on purpose: they go by their folders.
  shutil.move(tmp_path / 'T' / '2', tmp_path / 'U' / '2')
  levels = ('T', 0.625), ('U', 0.75)
  for run, apart in ('0', True), ('1', False):
    found = report.read(tmp_path / 'T' / run, tmp_path / 'U')
    assert any('their own, 2, since' in x for x in found.remarks) != apart
    assert [panel.told_by for panel in found.panels] == (
      ['T', 'U'] if apart else [f'{x}; {name} of a majority={y}' for x, y in levels]
    )
  # Runs of earlier versions, which do not record the loss of a mean, stand beside others.
  for n, levels in enumerate(({}, {'classification': (2.1, 'mean')})):
    lines, spec = [(500, 'eval', {'classification': 1.5})], 'configs/finetune.py:task=stsb'
    workdir(tmp_path / 'R' / f'{n}', lines, f'optimizer.beta1=0.{n}', spec=spec, levels=levels)
  assert len(report.read(tmp_path / 'R').panels) == 1


def test_bad_input_is_named_and_the_rest_reported(tmp_path, no_pictures):
  grid(tmp_path, {0.15: 4.0, 0.3: 3.9}, seeds=3)
  runs = sorted(x for x in tmp_path.iterdir() if x.is_dir())
  with (runs[0] / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 500, "spl')  # cut off
  (runs[1] / 'config.json').write_text('{"objective": "mlm_nsp", "no_field": 1}')
  (tmp_path / 'stray').mkdir()
  (tmp_path / 'stray' / 'metrics.jsonl').write_text('')
  (tmp_path / 'begun').mkdir()
  for name in ('config.json', 'run.json'):
    (tmp_path / 'begun' / name).write_text((runs[0] / name).read_text())
  fields = 'masking.masked_lm_prob=0.3', 'seed=7'
  workdir(tmp_path / ','.join(fields), [(100, 'eval', {'mlm': 9.0})], *fields)
  name = 'masking.masked_lm_prob=0.4,seed=0'
  (tmp_path / 'logs').mkdir()
  (tmp_path / 'logs' / f'{name}.json').write_text(json.dumps({'state': 'failed', 'error': 'why'}))
  (tmp_path / 'logs' / 'gone.json').write_text(json.dumps({'state': 'done'}))
  planned = {'baseline': 'x', 'runs': {name: {}, 'late': {}, 'begun': {}, 'gone': {}}}
  (tmp_path / 'sweep.json').write_text(json.dumps(planned))
  for text in ('norm', 'norm=', '=norm'):
    with pytest.raises(InputError, match=f"--label '?{text}'? is not OLD=NEW"):
      report.read(tmp_path, renamed=[text])
  with pytest.raises(
    InputError, match='no arm, or several, is called as --label what=ever says .OLD is what, '
  ):
    report.read(tmp_path, renamed=['what=ever'])
  report.main([str(tmp_path)])
  text = (tmp_path / 'report' / 'report.md').read_text()
  for said in (
    'seed=0/metrics.jsonl: lines that are damaged are left out, 1; the first is line 5',
    'seed=1 is left out: ',
    "seed=1/config.json is not the config of a run of this version: config has a field 'no_field'",
    'stray has metrics.jsonl and no config.json',
    'begun has written no metrics yet',
    'seed=7: unfinished: at step 100 of 500',
    f'{name} failed: why',
    'planned and without results: late and 1 more\n',
    'no arm matches the baseline x; there are masked_lm_prob=0.15, masked_lm_prob=0.3',
    'No arm is the baseline here',
    'No interval and no test of fewer than 3 seeds: masked_lm_prob=0.15.',
  ):
    assert said in text, said
  rows = rows_of(text, '## masked words and next sentences: mlm, nats\n')
  assert [row[1] for row in rows] == ['2', '3'] and rows[0][3] == '-'
  with pytest.raises(InputError, match='nothing is no folder'):
    records.below(tmp_path / 'nothing')


def test_arms_that_beat_no_guess_are_no_result(tmp_path, no_pictures):
  for name in ('good', 'bad'):
    (tmp_path / name).mkdir()
  good = made(grid(tmp_path / 'good', {0.15: 5.0, 0.3: 6.5}, seeds=3))  # 6.0 is to beat
  bad = made(grid(tmp_path / 'bad', {0.15: 6.4, 0.3: 6.5}, seeds=3))
  for name in ('report.md', 'report.html', 'table.tex'):
    assert 'No arm beats a guess' in bad[name] and 'No arm beats a guess' not in good[name]
  told = lambda name: report.read(tmp_path / name, baseline='masked_lm_prob=0.3').panels[0]
  good, bad = (report_figures.headline(told(name), 'mlm') for name in ('good', 'bad'))
  assert good.startswith('masked_lm_prob=0.15 differs most') and bad == ''


@pytest.mark.parametrize('value, is_cut', [(6.5, False), (60.0, True)])
def test_what_is_left_out_of_a_curve_is_said(tmp_path, value, is_cut):
  """Of an arm that beats no guess, if it is far from the others."""
  (panel,) = report.read(grid(tmp_path, {0.15: 5.0, 0.3: value}, seeds=3)).panels
  captions = {name: caption for name, caption, _ in report_figures.panel_figures(panel)}
  said = 'What is far from the others is not shown of masked_lm_prob=0.3.'
  assert (said in captions['curves']) == (said in captions['scores']) == is_cut


def test_files_are_written_before_the_table_is_printed(tmp_path, no_pictures, monkeypatch):
  """The program that reads the table, such as head, may end first."""
  folder = grid(tmp_path / 'S', {0.15: 4.0}, seeds=2)
  closed = mock.Mock(**{'write.side_effect': BrokenPipeError})
  monkeypatch.setattr('sys.stdout', closed)
  report.main([str(folder), '--picture', str(tmp_path / 'curves.svg')])
  assert closed.write.called and (tmp_path / 'curves.svg').exists()
  assert '| all runs | 2 |' in (folder / 'report' / 'report.md').read_text()


def test_a_failed_run_is_called_so_in_every_file_and_counted_once(tmp_path, monkeypatch):
  root = tmp_path / 'S'
  workdir(root / 'a,seed=1', [(500, 'eval', {'mlm': 4.0})], 'seed=1')
  workdir(root / 'a,seed=2', [(200, 'eval', {'mlm': 9.0})], 'seed=2')
  plan(root)
  (root / 'logs').mkdir()
  ended = json.dumps({'state': 'failed', 'error': 'it broke'})
  (root / 'logs' / 'a,seed=2.json').write_text(ended)
  monkeypatch.chdir(tmp_path)
  made = report.read('S', root)  # one folder by two names
  results = tables.results(made)
  assert 'failed: it broke' in results and 'unfinished' not in results
  assert sum('it broke' in remark for remark in made.remarks) == 1


def test_the_table_is_printed_where_no_file_can_be_written(tmp_path, no_pictures, capsys):
  folder = grid(tmp_path / 'S', {0.15: 4.0}, seeds=2)
  (folder / 'report').write_text('')  # no folder
  with pytest.raises(SystemExit):
    report.main([str(folder)])
  said = capsys.readouterr()
  assert 'all runs' in said.out and 'report' in said.err


def test_every_dash_of_a_table_is_explained_below_it(tmp_path, no_pictures, capsys):
  """In LaTeX too. c shares a seed with the baseline a, d shares none, e has its values plus 1."""
  seeds = {'a': '012', 'b': '01', 'c': '234', 'd': '567', 'e': '012', 'f': '012', 'g': '012'}
  for arm, of in seeds.items():
    for seed in of:
      scores = {'mlm': (3 if arm == 'e' else 2) + int(seed) ** 2 / 4}
      scores['mlm'] = None if arm == 'f' else scores['mlm']
      scores |= {'constant': 1.0} if arm == 'g' else {'nsp_accuracy': 0.5} if arm == 'a' else {}
      fields = f'optimizer.beta1=0.{ord(arm)}', f'seed={seed}', 'steps=2'
      workdir(tmp_path / f'{arm},seed={seed}', [(2, 'eval', scores)], *fields)
  plan(tmp_path, baseline='a')
  files = made(tmp_path)
  for said in (
    'No interval and no test of fewer than 3 seeds: b.',
    'in all means, and in all tests but of arms of which all did: g.',
    'Without this number, or it is not finite: f.',
    'Without a seed that the baseline has too: d.',
    'No test over fewer than 3 seeds that the baseline has too: c.',
    'No test of a difference that is the same for every seed: e.',
  ):
    assert said in files['report.md'] and said in files['table.tex'], said
  rows = rows_of(files['report.md'], '## masked words and next sentences: mlm\n')
  assert sorted(row[0] for row in rows if row[6] == '-') == [*'abcdefg']
  assert '### Other scores, mean ± standard deviation; -: no such score\n' in files['report.md']
  # An arm of one sweep alone has dashes in the table of both.
  shutil.copytree(tmp_path / 'a,seed=0', other := tmp_path / 'more' / 'S' / 'a,seed=0')
  config = c.load('configs/finetune.py:task=sst2', ['--config.steps=2', '--config.epochs=0'])
  (other / 'config.json').write_text(c.to_json(config))
  line = {'step': 2, 'split': 'eval', 'classification_accuracy': 0.5}
  (other / 'metrics.jsonl').write_text(json.dumps(line))
  plan(other.parent)
  every, why = (
    made(tmp_path, '--table')['table.tex'].split('% ')[3],
    '-: no finished run of that arm',
  )
  assert rf'\par {why}' in every and why in capsys.readouterr().out
  row = ['a', '2', '1.0000', '-']
  assert tables.with_dashes(tables.Table('T', (), [row]), 'why').title == 'T; -: why'
  assert tables.with_dashes(tables.Table('T', (), [row[:3]]), 'why').title == 'T'


def test_progress_is_that_of_checkpoints_and_unfinished_runs_have_no_scores(tmp_path, no_pictures):
  grid(tmp_path, {0.15: 4.0}, seeds=2)
  for seed, step in ((7, 100), (8, 500)):
    run = tmp_path / f'masking.masked_lm_prob=0.15,seed={seed}'
    workdir(run, [(100, 'eval', {'mlm': 9.0})], f'seed={seed}')
    config = c.from_json((run / 'config.json').read_text())
    checkpoint_at(run, step, config=c.fingerprint(config))
    (run / 'summary.json').write_text(json.dumps({'state': 'running'}))
  files = made(tmp_path)
  assert 'seed=8: unfinished: not evaluated at its end' in files['report.md']
  rows = {row['seed']: row for row in csv.DictReader(io.StringIO(files['results.csv']))}
  assert rows['7']['step'] == '100' and rows['8']['step'] == '500'
  assert rows['7']['mlm'] == '' and float(rows['0']['mlm']) > 0


def test_texts_of_others_are_no_code_in_any_page(tmp_path, capsys):
  """Not for a spreadsheet, a browser, a terminal, a Markdown viewer, or matplotlib's formulas."""
  label = 'a$x_{$ \x1b]0;x\x07<script>![x](http://example.com) \\![x](http://example.com)'
  workdir(tmp_path / 'a', [(2, 'eval', {'mlm': 1.5})], "data.eval==cmd|'/C calc'!A0")
  workdir(tmp_path / 'b', [(2, 'eval', {'mlm': 1.7})], 'data.eval=b')
  labels = [x.label for x in report.read(tmp_path).panels[0].arms]
  pages = made(tmp_path, '--label', f'{labels[0]}={label}', '--title', '<script>')
  assert '\x1b' not in capsys.readouterr().out
  assert '<script' not in pages['report.md'] + pages['report.html']
  rows = list(csv.reader(io.StringIO(pages['results.csv'])))
  assert any(cell.startswith("'=cmd") for row in rows for cell in row)
  assert not any(cell.startswith('=') for row in rows for cell in row)
  without_escapes = re.sub(r'\\[\\!|[\]]', '', pages['report.md'])
  assert '(http://example.com)' in without_escapes and '](http' not in without_escapes


def test_labels_name_what_differs_and_nothing_else(tmp_path, no_pictures):
  assert report_arms.shortened(['a.b=1,c.d=2', 'a.b=2,c.d=3']) == ['b=1, d=2', 'b=2, d=3']
  assert report_arms.shortened(['x.b=1,y.b=2', '-']) == ['x.b=1, y.b=2', '-']
  # A comma in a path separates no fields: neither before a seed nor in the name of another arm.
  texts = ['o.a=1, init_from=S/o.a=2,o.c=3,seed={seed}', 'init_from=S_x,seed={seed},o.d=1']
  expected = ['a=1, init_from=o.a=2,o.c=3,seed={seed}', 'init_from=S_x,seed={seed}, d=1']
  assert report_arms.shortened(texts) == expected
  grid(tmp_path, {0.15: 4.0, 0.3: 3.9}, seeds=2)
  text = made(tmp_path, '--label', 'masked_lm_prob=0.3=30 %', '--title', 'Rates')['report.md']
  assert text.startswith('# Rates\n')
  rows = rows_of(text, '## masked words and next sentences: mlm, nats\n')
  assert [row[0] for row in rows] == ['masked_lm_prob=0.15', '30 %']


def test_an_arm_goes_by_its_label_its_name_in_the_sweep_or_its_folder(tmp_path):
  plan(grid(tmp_path, {0.15: 4.0, 0.3: 3.9}, seeds=1))
  for text in ('masked_lm_prob=0.3', 'masking.masked_lm_prob=0.3'):
    found = report.read(tmp_path, baseline=text, renamed=[f'{text}=30 %'])
    assert [panel.baseline for panel in found.panels] == ['30 %']
  with pytest.raises(InputError, match='is called as --baseline 0.3 says; there are masked'):
    report.read(tmp_path, baseline='0.3')
  for name, size in ('small', 32), ('large', 64):
    fields = f'model.hidden_size={size}', f'model.intermediate_size={4 * size}'
    workdir(tmp_path / 'sizes' / name, [(500, 'eval', {'mlm': 200 / size})], *fields, 'steps=500')
  (panel,) = report.read(tmp_path / 'sizes', baseline='small').panels
  assert panel.baseline == 'hidden_size=32, intermediate_size=128'


def test_a_page_marks_the_row_of_the_baseline():
  rows = [('30 %', '4.0'), ('15 %', '3.9'), ('30 % <b>', '4.1')]
  for baseline, marked in (('15 %', [0, 1, 0]), ('30 %', [1, 0, 0]), ('', [0, 0, 0])):
    text = report_pages.html_table(tables.Table('t', ('arm', 'mlm'), rows, baseline))
    lines = re.findall('<tr.*?</tr>', text)[1:]
    assert ['class="baseline"' in line for line in lines] == marked
    assert '>30 % &lt;b&gt;</td>' in lines[2]


def test_the_longer_side_of_the_fields_in_which_arms_differ_goes_down_the_page():
  arms = {'a': ('1', '2'), 'b': ('1', '3'), 'c': ('4', '3')}
  found = panels.Report([], [], {}, {'x': (['f', 'g'], arms), 'y': ([], {'a': ()})}, [])
  of_arms, empty = tables.differences(found)
  assert of_arms.header == ('arm', 'f', 'g') and of_arms.rows[2] == ('c', '4', '3')
  found.differences['x'] = ['f', 'g'], {'a': ('1', '2'), 'b': ('1', '3')}
  of_fields, _ = tables.differences(found)
  assert of_fields.header == ('field', 'a', 'b') and of_fields.rows[1] == ('g', '2', '3')
  assert not empty.rows


def test_a_number_stands_on_one_line_of_a_page_and_a_path_may_break():
  path = '/data/' + 'x' * report_pages.SHORT
  text = report_pages.html_table(tables.Table('t', ('a', 'p'), [(path, '0.4119, p 0.0001')]))
  wide = report_pages.html_table(tables.Table('t', ('a',), [('12,345,678 x,y' * 9,)]))
  assert '12,345,678 x,<wbr>y12' in wide
  assert re.findall('<td(.*?)>', text) == ['', ' class=whole']
  assert '>/<wbr>data/<wbr>xx' in text and '>0.4119, p 0.0001<' in text


def test_runs_that_start_from_those_of_their_seed_or_from_one_run_are_one_arm(
  tmp_path, no_pictures
):
  for arm, seed in itertools.product('abc', range(3)):
    source = 'd,seed=1' if arm == 'c' else f'{arm},seed={seed}'
    fields = f'seed={seed}', f'init_from=S/{source}'
    workdir(tmp_path / f'{arm},seed={seed}', [(500, 'eval', {'mlm': 2.0})], *fields)
  rows = rows_of(made(tmp_path)['report.md'], '## masked words and next sentences: mlm\n')
  names = 'a,seed={seed}', 'b,seed={seed}', 'd,seed=1'
  assert [row[:2] for row in rows] == [[f'init_from={x}', '3'] for x in names]
  plan(tmp_path)
  rows = rows_of(made(tmp_path)['report.md'], '## masked words and next sentences: mlm\n')
  assert [row[:2] for row in rows] == [[x, '3'] for x in 'cba']  # as planned


def test_a_label_renames_the_arm_of_every_objective(tmp_path, no_pictures):
  for arm in 'ab':
    for seed in range(2):
      fields, name = (f'seed={seed}', f'init_from=S/{arm},seed={seed}'), f'{arm},seed={seed}'
      workdir(tmp_path / name, [(500, 'eval', {'mlm': 2.0})], *fields)
      scores = {'classification_accuracy': 0.5}
      spec = 'configs/finetune.py:task=sst2'
      workdir(tmp_path / 'T' / name, [(500, 'eval', scores)], *fields, spec=spec)
  for folder in (tmp_path, tmp_path / 'T'):
    plan(folder)
  text = made(tmp_path, '--label', 'a=A')['report.md']
  for heading in (
    f'masked words and next sentences: mlm ({tmp_path.name})',
    "classification (f1 is of '1'): classification_accuracy (T)",
  ):
    assert [row[0] for row in rows_of(text, f'## {heading}\n')] == ['b', 'A']


def test_a_figure_has_as_many_axes_as_panels():
  for count in (1, 4, 5, 7):
    figure, axes = report_figures.new(count, 1, 6.75)
    assert len(figure.axes) == len(axes) == count


def test_colours_survive_grey_print():
  for count in range(2, 9):
    grey = [np.dot(colour[:3], (0.299, 0.587, 0.114)) for colour in report_parts.colours(count)]
    assert min(np.diff(grey)) > 0.07 and max(grey) < 0.67  # and white paper
  assert len(set(report_parts.MARKERS)) == len(set(report_parts.LINES)) == 8


def test_an_arm_that_beats_no_guess_presses_no_other_into_a_corner(tmp_path):
  """It stands at the edge with its mean, but as the baseline; near the others it is one of them."""
  grid(tmp_path, {0.15: 4.0, 0.3: 4.5, 0.6: 9.0, 0.9: 6.2}, seeds=3)
  found = report.read(tmp_path, baseline='masked_lm_prob=0.15')
  (axis,) = report_figures.finals(found.panels[0], 'mlm', 6.75).axes
  mean = found.panels[0].rows('mlm')[2].mean
  assert mean > 8.5 and [x.get_text() for x in axis.texts] == [f'{mean:.4g} →', 'unigram']
  assert 6.2 < axis.get_xlim()[1] < 7
  assert ' Not beaten by masked_lm_prob=0.6; masked_lm_prob=0.9.' in report.table(found)
  assert report_figures.headline(found.panels[0], 'mlm').startswith(
    'masked_lm_prob=0.3 differs most'
  )
  for run in found.panels[0].arms[2].runs:
    for point in run.points:
      point.values['mlm'] *= 10
  pictures = {name: x for name, _, x in report_figures.panel_figures(found.panels[0])}
  assert 6.2 < pictures['curves'].axes[0].get_ylim()[1] < 12
  # Nor do the lines of training; a metric that it alone has is drawn whole.
  (part,) = report_figures.side_by_side(found.panels).subfigs
  assert 6.2 < part.axes[0].get_ylim()[1] < 12
  said = {name: x for name, x, _ in report_figures.panel_figures(found.panels[0])}
  assert 'An arrow has' in said['final']
  for run in found.panels[0].arms[2].runs:
    for point in run.points:
      point.values['own'] = 70.0 + point.step / 100
  axis = plt.figure().add_subplot()
  report_parts.draw_curves(axis, found.panels[0], 'own', 'step')
  assert 70 < axis.get_ylim()[0] < 72.5 and 75 < axis.get_ylim()[1] < 77
  # Its place is that of its mean, and not that of a seed.
  for run, value in zip(found.panels[0].arms[2].runs, (5.5, 5.6, 7.2)):
    run.points[-1].values['mlm'] = value
  final, said, figure = next(report_figures.panel_figures(found.panels[0]))
  assert [x.get_text() for x in figure.axes[0].texts] == ['unigram'] and 'arrow' not in said
  found = report.read(tmp_path, baseline='masked_lm_prob=0.6')
  (axis,) = report_figures.finals(found.panels[0], 'mlm', 6.75).axes
  assert [x.get_text() for x in axis.texts] == ['unigram'] and axis.get_xlim()[1] > mean


def test_no_legend_stands_under_an_empty_place(tmp_path):
  grid(tmp_path, {0.15: 4.0}, seeds=1)
  found = report.read(tmp_path)
  figure = {name: x for name, _, x in report_figures.panel_figures(found.panels[0])}['scores']
  figure.draw_without_rendering()
  assert [axis.get_position().x1 > 0.9 for axis in figure.axes] == [False, True]
  assert [len(report_figures.new(count, 1, 6.75)[1]) for count in range(1, 8)] == list(range(1, 8))
  (part,) = report_figures.side_by_side(found.panels).subfigs
  (legend,), (axis,) = part.legends, part.axes
  assert [x.get_text() for x in legend.get_texts()] == ['all runs'] and not axis.get_legend()


def test_a_picture_for_a_column_is_whole_and_no_higher_than_a_page(tmp_path):
  """Long labels leave the axis narrower than the name of its metric is."""
  grid(tmp_path, {0.15: 4.0, 0.3: 4.0}, seeds=1)
  (panel,) = report.read(tmp_path, renamed=[f'masked_lm_prob=0.3={"x" * 32}']).panels
  figure = report_figures.finals(panel, 'nsp_accuracy', report_figures.WIDTHS['-column'])
  figure.axes[0].xaxis.label.set_text('classification_accuracy')
  figure.draw_without_rendering()
  end = figure.axes[0].xaxis.label.get_window_extent().x1
  assert figure.axes[0].bbox.width < 100 and end <= figure.bbox.x1
  heights = [report_figures.new(n, 2.4, 3.25)[0].get_figheight() for n in (1, 2, 3, 4, 9)]
  assert heights == pytest.approx([2.8, 5.2, 7.6, 5.2, 7.9])
  figure = report_figures.several(panel, [('mlm', 'step')] * 5, 2.0, 3.25)
  figure.axes[0].set_xlim(51, 520)
  figure.draw_without_rendering()
  ticks = [x for x in figure.axes[0].get_xticklabels() if x.get_text() and x.get_visible()]
  ends = [x for tick in ticks for x in tick.get_window_extent().intervalx]
  assert len(ticks) > 1 and ends == sorted(ends)  # none is over another
  assert report_figures.new(1, 20, 3.25)[0].get_figheight() == 20.4  # of 60 arms
  panel.arms[1].label = 'masked_lm_prob=0.15, policy=whole-word'
  figure = report_figures.finals(panel, 'mlm', report_figures.WIDTHS['-column'])
  figure.draw_without_rendering()
  (axis,) = figure.axes
  lines = axis.get_yticklabels()[1].get_text().split('\n')
  assert lines == panel.arms[1].label.split(' ') and axis.bbox.width > 120
  # The layout leaves room for the label of a tick at the end of the axis, since ticks are fixed.
  (low, high), ticks = axis.get_xlim(), axis.get_xticks()
  assert isinstance(axis.xaxis.get_major_locator(), FixedLocator)
  assert len(ticks) > 1 and low <= ticks[0] and ticks[-1] <= high


def test_a_picture_by_step_shows_where_a_field_changes(tmp_path):
  lines = [(s, 'eval', {'mlm': 4.0}) for s in (250, 500)]
  workdir(tmp_path / 'run', lines, 'masking.policy=token,span@130', 'steps=500')
  panel = report.read(tmp_path).panels[0]
  for along, marked in (('step', [('span', 130)]), ('tokens', [])):
    axis = plt.figure().add_subplot()
    report_parts.draw_curves(axis, panel, 'mlm', along)
    labels = [(x.get_text(), x.get_position()[0]) for x in axis.texts]
    assert [x for x in labels if x[0] == 'span'] == marked
  # As 25 k, but no 500 m, which may be minutes, and no 1 k beside 600 and 800.
  for seconds in (0.5, 1_100, 25_000):
    axis = plt.figure().add_subplot()
    axis.set_xlim(0, seconds)
    report_parts.draw_curves(axis, panel, 'mlm', 'seconds')
    assert isinstance(axis.xaxis.get_major_formatter(), EngFormatter) == (seconds > 10_000)


def test_the_evaluation_of_all_rows_stands_apart_from_the_curve(tmp_path):
  """Tables have it; the curve has the same part of the rows at each step, and their baseline."""
  for seed, last in enumerate((3.0, 3.5, 4.3)):
    lines = [(s, 'eval', {'mlm': 9 - s / 100}) for s in (250, 500)]
    lines += [(500, 'whole', {'mlm': last, 'mlm_below_unigram': 5.9 - last})]
    folder = workdir(tmp_path / str(seed), lines, f'seed={seed}', 'steps=500', levels=LEVELS)
    facts = json.loads((folder / 'run.json').read_text())
    facts['data']['eval']['part'] = {'mlm': [5.5, 'unigram']}
    (folder / 'run.json').write_text(json.dumps(facts))
  read = report.read(tmp_path)
  (panel,) = read.panels
  assert panel.metrics == ['mlm'] and panel.rows('mlm')[0].values == {0: 3.0, 1: 3.5, 2: 4.3}
  apart = curves.curve(panel.runs, 'mlm', 'step', 'whole')
  assert apart == [(500, pytest.approx(3.6), stats.interval([3.0, 3.5, 4.3]))]
  axis = plt.figure().add_subplot()
  report_parts.draw_curves(axis, panel, 'mlm', 'step')
  drawn = [([*line.get_xdata()], [*line.get_ydata()]) for line in axis.lines]
  assert ([250, 500], [6.5, 4.0]) in drawn and ([500], [pytest.approx(3.6)]) in drawn
  (level,) = axis.texts
  assert (level.get_text(), *level.get_position()) == ('unigram', 0.01, 5.5)  # at the beginning
  assert level.get_verticalalignment() == 'top'  # below, as the curve begins above
  captions = [x for _, x, _ in report_figures.panel_figures(panel)]
  assert any('Hollow: all rows, at the end' in x for x in captions)
  # Where no curve is drawn, the baseline is that of the values of all rows.
  ends = [dataclasses.replace(run, points=run.points[1:]) for run in panel.runs]
  axis, arms = plt.figure().add_subplot(), [dataclasses.replace(panel.arms[0], runs=ends)]
  report_parts.draw_curves(axis, dataclasses.replace(panel, arms=arms), 'mlm', 'step')
  assert [level.get_position()[1] for level in axis.texts] == [LEVELS['mlm'][0]]
  # While runs live, the values are of the part; arms that read other parts have the level of all.
  first, *_ = panel.runs
  panel.arms[0].runs = [dataclasses.replace(run, points=run.curve) for run in panel.runs]
  assert panel.level('mlm') == (5.5, 'unigram') and panel.named('mlm') == 'mlm, nats'
  split = dataclasses.replace(first.facts.split('eval'), part={'mlm': Level(5.25, 'unigram')})
  facts = dataclasses.replace(first.facts, data={'eval': split})
  panel.arms[0].runs[0] = dataclasses.replace(first, facts=facts)
  assert panel.level('mlm', of_curves=True) == (LEVELS['mlm'][0], 'unigram of all rows')
  # Earlier versions compared their curves, too, with the baseline of all rows.
  below = lambda loss: {'mlm': loss, 'mlm_below_unigram': LEVELS['mlm'][0] - loss}
  lines = [(s, 'eval', below(9 - s / 100)) for s in (250, 500)]
  more = {'levels': LEVELS, 'rows_read': 10**6}
  workdir(tmp_path / 'old' / 'run', lines, 'steps=500', **more)
  (panel,) = report.read(tmp_path / 'old').panels
  assert [p.step for run in panel.runs for p in run.curve] == [250]
  assert panel.level('mlm', of_curves=True) == (6.0, 'unigram of all rows')


def test_a_baseline_that_depends_on_the_model_is_none_of_the_scores(tmp_path):
  """Such as how many tokens the generator of ELECTRA leaves as they are."""
  for seed, level in enumerate((0.85, 0.87)):
    own = {'replaced_accuracy': 0.9, 'replaced_accuracy_majority': level, 'replaced': 0.3}
    workdir(tmp_path / str(seed), [(500, 'eval', own)], f'seed={seed}', 'steps=500')
  (panel,) = report.read(tmp_path).panels
  assert {*panel.metrics} == {'replaced_accuracy', 'replaced'}
  assert panel.level('replaced_accuracy') == (pytest.approx(0.86), 'majority')
  assert panel.level('replaced') is None


def test_one_table_of_a_sweep_and_its_tasks_and_what_probes_found(
  tmp_path, capsys, no_pictures, monkeypatch
):
  """The arms of all sweeps have one name, and a column for each task, by whose name its heading and
  its pictures go, too."""
  arms = 'rate=0.1', 'rate=0.3'
  values = {'S': (5.0, 4.5), 'S-sst2': (0.7, 0.72), 'S-cola': (0.6, 0.66)}
  for folder, (first, second) in values.items():
    task = folder.partition('-')[2]
    metric, spec = 'mlm', PRETRAIN
    if task:
      metric, spec = 'classification_accuracy', f'configs/finetune.py:task={task}'
    for (arm, value), seed in itertools.product(zip(arms, (first, second)), range(3)):
      name = f'{arm},seed={seed}'
      more = ('masking.masked_lm_prob=0.3',) * (arm == arms[1] and not task)
      more += (f'init_from={tmp_path}/S/{name}', f'data.eval={task}.tsv') if task else ()
      lines = [(500, 'eval', {metric: value + seed * (1 + arms.index(arm)) / 100})]
      more += f'seed={seed}', 'steps=500', 'epochs=0'
      workdir(tmp_path / folder / name, lines, *more, spec=spec)
      if not task:
        (tmp_path / folder / name / 'probe').mkdir()
        probe = {'losses': {'all': {'loss': value + 1}}, 'layers': {'accuracy': [0.2, 0.9, 0.8]}}
        probe['pairs'] = {'accuracy': 0.3, 'pairs': 180, 'ties': 45 * (arm == arms[1])}
        (tmp_path / folder / name / 'probe' / '500.json').write_text(json.dumps(probe))
    runs = {f'{arm},seed={seed}': {'arm': arm} for arm in arms for seed in range(3)}
    planned = {'baseline': arms[0], 'runs': runs}
    (tmp_path / folder / 'sweep.json').write_text(json.dumps(planned))
  folders = [str(tmp_path / folder) for folder in values]
  found = report.read(*folders)
  assert [panel.runs[0].path.parent.name for panel in found.panels] == [*values]
  assert all(panel.baseline and panel.arms[0].label == panel.baseline for panel in found.panels)
  assert not any('baseline' in x for x in found.remarks), found.remarks
  assert {arm.label for panel in found.panels for arm in panel.arms} == {*arms}
  first, *others = [tmp_path / 'S-sst2' / f'{arms[1]},seed={seed}' for seed in range(3)]
  for run in others:
    shutil.move(run, tmp_path / run.name)
  row = tables.overview(report.read(*folders[::-1])).rows[1]
  assert row[1] == '3, 1, 3' and row[3] == '0.7200'
  shutil.move(first, tmp_path / first.name)
  assert tables.overview(report.read(*folders)).rows[1][1] == '3'  # wherever it is
  others.append(first)
  for run in others:
    shutil.move(tmp_path / run.name, run)
  labels = f'{arms[1]}=30 %', 'S-cola=CoLA', 'mlm=loss', 'classification_accuracy=accuracy'
  renamed = [word for label in labels for word in ('--label', label)]
  gone = str(tmp_path / 'S-sst')
  planned['runs'][f'{arms[1]},seed=3'] = {'arm': arms[1]}
  (tmp_path / 'S-sst2' / 'sweep.json').write_text(json.dumps(planned))
  report.main([*folders, gone, '--table', '--out', str(tmp_path / 'out'), *renamed])
  said, logged = capsys.readouterr()
  assert f'{gone} is no folder: left out' in logged
  lines = [x for x in said.split('\n') if x[:1] == '|']
  header, _, *rows = [x.strip('| ').split(' | ') for x in lines]
  assert header == ['arm', 'seeds', 'loss (S)', 'accuracy (S-sst2)', 'accuracy (CoLA)']
  assert [row[:2] for row in rows] == [[arms[0], '3'], ['30 %', '3']]
  for n, (first, second) in enumerate(values.values(), 2):
    assert rows[0][n] == f'{first + 0.01:.4f} ± 0.0100, baseline'
    assert rows[1][n].startswith(f'{second + 0.02:.4f} ± 0.0200, p ')
  assert (tmp_path / 'out' / 'report.md').read_text().startswith('# S\n')
  for name in ('report.md', 'table.tex', 'report.html'):
    text = (tmp_path / 'out' / name).read_text()
    assert 'S-sst2' in text and 'CoLA' in text
    # Below the table of all sweeps, as below its own.
    assert text.count('have not ended are in no mean: 30') == 2
  assert ' (S-sst2): Runs that failed or have not ended are in no mean: 30 % (1 of 4).' in said
  # In LaTeX a task and a p take a line each, so that the table is no wider than a page.
  latex = (tmp_path / 'out' / 'table.tex').read_text()
  two = lambda *x: rf'\begin{{tabular}}[t]{{@{{}}l@{{}}}}{x[0]} \\ {x[1]}\end{{tabular}}'
  assert two('accuracy', '(CoLA)') + r' \\' in latex
  assert re.search(r'\$\\pm\$ 0.0200 \\\\ p 0[.\d]+\\end{tabular}', latex)
  assert '<h2>All sweeps</h2>' in (tmp_path / 'out' / 'report.html').read_text()
  found = report.read(*folders, renamed=labels)
  titles = [tables.main_table(panel).title.partition(': ')[2] for panel in found.panels]
  assert titles == ['loss (S)', 'accuracy (S-sst2)', 'accuracy (CoLA)']
  monkeypatch.setattr(report_figures, 'panel_figures', lambda *_: [('final', '', plt.figure())])
  pictures = lambda made: [x for of in report_pages.drawn(made, []) for x, *_ in of]
  scores = 'classification-classification_accuracy'
  tasks = [f'{scores}-S-sst2-final', f'{scores}-CoLA-final']
  assert pictures(found) == ['mlm_nsp-mlm-S-final', *tasks]
  alike = pictures(report.read(*folders, renamed=['S-cola=S sst2']))
  assert alike[1:] == [f'{scores}-S-sst2-final-{n}' for n in (1, 2)]
  (panel,) = report.read(tmp_path / 'S').panels
  pairs = ['probe_pairs_accuracy', 'probe_pairs_ties']
  assert panel.metrics == ['mlm', 'probe_loss', *pairs, 'probe_tags_accuracy']
  ties = [row.values for row in panel.rows(pairs[1])]
  assert ties == [dict.fromkeys(range(3), 0.0), dict.fromkeys(range(3), 0.25)]
  assert panel.rows('probe_loss')[1].mean == 5.5
  assert panel.rows('probe_tags_accuracy')[0].values == dict.fromkeys(range(3), 0.9)
  path = tmp_path / 'S' / f'{arms[1]},seed=2'
  other = json.loads((path / 'probe' / '500.json').read_text()) | {'settings': {'data': 7}}
  (path / 'probe' / '500.json').write_text(json.dumps(other))  # its values are in no mean
  (remark,) = [x for x in report.read(tmp_path / 'S').remarks if 'prob' in x]
  assert remark.startswith(f'{path}: it was probed on other data than most runs beside it')
  all_seeds, two = tables.more_tables(report.read(tmp_path / 'S').panels[0])[0].rows
  (panel,) = report.read(tmp_path / 'S', metric='probe_loss').panels
  said = f'With this number, and finite, only in part: {arms[1]} (2 of 3 seeds).'
  assert said in [*tables.untested(panel)]
  assert all('(2 seeds)' in cell for cell in two[1:]) and not any('(' in x for x in all_seeds[1:])


def test_every_quantity_has_the_points_that_steps_have(tmp_path):
  """Evaluations between two lines of training lie between them, in tokens and in seconds."""
  speed = lambda s: {'steps_per_s': 6.0 - s / 100, 'seen_tokens': 100.0 * s, 'mlm': 4.0}
  lines = [(s, 'train', speed(s)) for s in (100, 200)]
  lines += [(s, 'eval', {'mlm': 4.0 - s / 500}) for s in (50, 130, 200)]
  workdir(tmp_path / 'a', lines, costs=COSTS)
  runs, _ = records.below(tmp_path)
  found = curves.points(runs[0], 'mlm')
  assert [(x['tokens'], x['seconds']) for x in found] == [(5e3, 10), (13e3, 27.5), (2e4, 45)]
  assert [x['flops'] for x in found] == [1e8, 2.6e8, 4e8]
  means = curves.curve(runs, 'mlm', 'tokens')
  assert means == [(x['tokens'], x['value'], None) for x in found]

  def labels():
    pictures = report_figures.panel_figures(report.read(tmp_path).panels[0])
    return [axis.get_xlabel() for name, _, x in pictures if name == 'curves' for axis in x.axes]

  # Along tokens and FLOPs, which are in proportion to the steps, the curves would look the same.
  assert labels() == ['step', 'seconds of training']
  captions = [x for _, x, _ in report_figures.panel_figures(report.read(tmp_path).panels[0])]
  said = ' Along tokens trained on and FLOPs of the training they look the same.'
  assert any(x.endswith(said) for x in captions)
  # A step of another arm has more FLOPs.
  workdir(tmp_path / 'b', lines, 'optimizer.beta1=0.8', costs=COSTS | {'flops_per_step': 3e6})
  assert labels() == ['step', 'FLOPs of the training', 'seconds of training']
  shutil.rmtree(tmp_path / 'b')
  # Seconds of a machine that several runs share say nothing; a single point is no curve.
  (tmp_path / 'sweep.json').write_text(json.dumps({'runs': {'a': {'arm': 'a'}}}))
  (tmp_path / 'logs').mkdir()
  for jobs in (1, 2):
    (tmp_path / 'logs' / 'a.json').write_text(json.dumps({'state': 'done', 'jobs': jobs}))
    assert labels() == ['step', *['seconds of training'] * (jobs == 1)]
  (tmp_path / 'a' / 'metrics.jsonl').write_text('{"step": 50, "split": "eval", "mlm": 3.0}\n')
  assert labels() == []


def test_no_interval_is_beyond_what_a_score_can_be():
  low, high = stats.interval([0.9, 0.97, 1.0], 0, 'classification_accuracy')
  assert high == 1.0 and low == stats.interval([0.9, 0.97, 1.0])[0]
  assert stats.interval([3.0, 1.0, 0.0], 0, 'f1')[0] == 0.0  # percent
  assert stats.interval([30.0, 99.0, 97.0], 0, 'best_f1')[1] == 100.0
  assert -1 <= stats.interval([-0.5, 0.1, 0.9], 0, 'matthews')[0] < 0
  assert stats.interval([0.9, 0.97, 1.0], 0, 'mlm')[1] > 1.0
  assert stats.interval([0.9, 0.97, 1.0], 0, 'mrr')[1] == 1.0
  assert stats.interval([93.0, 99.0, 97.0], 0, 'bleu')[1] == 100.0
  # Exact matches are always in percent, and where there are some F1 is, too.
  low, (_, high) = [0.3, 0.5, 0.9], stats.interval([0.3, 0.5, 0.9])
  beside = 'best_exact', 'best_f1'
  assert stats.interval(low, 0, 'exact')[1] == stats.interval(low, 0, 'f1', beside)[1] == high > 1
  assert stats.interval(low, 0, 'f1')[1] == 1.0


def test_paths_in_which_arms_differ_are_shown_from_where_they_part():
  apart = report_arms.without_shared_folders
  assert apart(['/d/sst/x.csv', '/d/cola/x.csv', '']) == ['sst/x.csv', 'cola/x.csv', '']
  assert apart(['S/a=1', 'S2/a=1']) == ['S/a=1', 'S2/a=1'] and apart(['/d/x', '']) == ['/d/x', '']
  assert apart(['/d/x1', '/d/x12']) == ['x1', 'x12'] and apart(['/d/x', 'y']) == ['/d/x', 'y']
  for parts in (["('d/x',)", "('d/y',)"], ['en=d/x,de=d/z', 'en=d/y,de=d/z']):
    assert apart(parts) == parts


def test_labels_are_for_people(tmp_path, no_pictures):
  readable = report_arms.readable
  texts = [f'beta1=0.{k}, a={k}.5091743119266054, init_from=/tmp/S{k}/W{k}' for k in range(3)]
  expected = [f'beta1=0.{k}, a={k}.{"509" if k else "5092"}, init_from=W{k}' for k in range(3)]
  assert readable([x + ', norm=pre' for x in texts]) == expected
  # Nothing is left out by which two would be the same, or nothing would be left.
  for kept in (['x=/a/W', 'x=/b/W', 'x=1.23456', 'x=1.234567'], ['a=1', 'a=1, b=2'], ['a=1']):
    assert readable(kept) == kept
  assert readable(['seeds=(1, 2), x=1', 'seeds=(1, 3), x=1']) == ['seeds=(1, 2)', 'seeds=(1, 3)']
  # What ended all seeds of an arm is said once, also where numbers in it differ.
  grid(tmp_path, {0.15: 4.0}, seeds=1)
  (tmp_path / 'logs').mkdir()
  runs = {f'lost,seed={k}': {'arm': 'lost'} for k in range(3)}
  (tmp_path / 'sweep.json').write_text(json.dumps({'runs': runs}))
  for name, error in zip(runs, ('nan at step 3', 'nan at step 14', 'no space')):
    (tmp_path / 'logs' / f'{name}.json').write_text(json.dumps({'state': 'failed', 'error': error}))
    workdir(tmp_path / name, [], name.partition(',')[2])
    (tmp_path / name / 'metrics.jsonl').unlink()
  said = [x for x in report.read(tmp_path).remarks if 'lost' in x]
  assert said == [
    f'{tmp_path}/lost,seed=0 and 1 more of its arm failed, the first with: nan at step 3',
    f'{tmp_path}/lost,seed=2 failed: no space',
  ]
  assert made(tmp_path)['table.tex'].startswith('% Needs \\usepackage{booktabs}.\n')


def test_a_picture_of_all_runs_is_a_file_or_a_sentence(tmp_path, no_pictures, capsys, monkeypatch):
  monkeypatch.setattr(report, 'svms', mock.Mock(return_value=[]))
  folder, path = grid(tmp_path, {0.15: 4.0}, seeds=1), str(tmp_path / 'curves.svg')
  report.main([str(folder), '--metric=nsp_accuracy', '--svm', '--picture', path])
  assert report.svms.called and f'curves: {path}' in capsys.readouterr().out
  ElementTree.parse(path)
  text = (folder / 'report' / 'report.md').read_text()
  assert (
    text.startswith(f'# {folder.name}\n')
    and '## masked words and next sentences: nsp_accuracy' in text
  )
  with pytest.raises(InputError, match='--picture .*curves.doc cannot be written'):
    report.picture(report.read(folder), tmp_path / 'curves.doc')
