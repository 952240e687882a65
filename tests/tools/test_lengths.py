"""Scores by the length of a text: in scores.json and in reports."""

import dataclasses
import json

import numpy as np
import pytest
from test_report import workdir

from bert_jax import metrics, tokenizers
from bert_jax.tasks.choice import reading, task
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.labelled import Scored
from bert_jax.tools.report import __main__ as report
from bert_jax.tools.report import arms as report_arms
from bert_jax.tools.report import figures as report_figures
from bert_jax.tools.report import statistics as report_statistics
from bert_jax.workdir.contents import answers_folder


class Right(Scored):
  """Answers that are right or wrong."""

  def answers(self, outputs):
    return outputs

  def scores(self, answers):
    return {'right': float(np.mean([a['gold'] == a['prediction'] for a in answers]))}


def test_each_answer_is_scored_among_those_of_its_length(vocab):
  source = Right(tokenizers.load(vocab), [(np.array([5], np.int32),)], seq_length=8)
  lengths = {0: 1, 64: 1, 65: 0, 100: 1, 128: 0, 129: 0, 3000: 1}
  times = {0: 11, 64: 10, 65: 8, 100: 7, 128: 6, 129: 20, 3000: 19}
  lengths = [(n, p) for n, p in lengths.items() for _ in range(times[n])]
  answers = [{'length': n, 'gold': 1, 'prediction': p} for n, p in lengths]
  answers.append({'length': 9, 'prediction': 0})  # nobody knows
  nan = pytest.approx(float('nan'), nan_ok=True)  # 19 say nothing of texts of a length
  assert source.by_length(answers) == [
    {'tokens': '0-64', 'examples': 21, 'right': 1.0},
    {'tokens': '65-128', 'examples': 21, 'right': 1 / 3},
    {'tokens': '129-256', 'examples': 20, 'right': 0.0},
    {'tokens': '2049-4096', 'examples': 19, 'right': nan},
  ]


def test_the_length_of_a_question_is_that_of_all_of_it(vocab):
  """However much of it is cut."""
  tokenizer, problems = tokenizers.load(vocab), Problems('eval', False)
  question = reading.Question('here', 'q', 'a ' * 50, 'b b', ('a', 'b ' * 40), 0)
  for limit in (20, 400):
    _, lengths = task._pairs(tokenizer, [question], limit, problems)
    assert lengths == [50 + len(tokenizer.ids_batch([question.seconds[1]])[0])]


def test_a_table_within_metrics_is_valid_json():
  given = {'a': float('nan'), 'by_length': [{'f1': float('inf'), 'tokens': '0-64'}]}
  assert json.loads(metrics.to_json(given)) == {
    'a': None,
    'by_length': [{'f1': None, 'tokens': '0-64'}],
  }
  assert metrics.to_json({'f1_GERÄT': 1}) == '{"f1_GERÄT": 1}'


SPEC = 'configs/finetune.py:task=table'
GIVEN = 'data.train=a.tsv', 'data.eval=b.tsv', 'table.labels=x,y'


@pytest.fixture
def runs(tmp_path):
  for seed, scores in enumerate(((0.9, 0.7), (0.8, 0.4))):
    lines = [(4, 'eval', {'classification_accuracy': 0.8, 'loss': 1.0})]
    folder = workdir(tmp_path / str(seed), lines, *GIVEN, f'seed={seed}', spec=SPEC)
    (folder / 'run.json').write_text('{"data": {"train": {"baselines": {}}}}')
    table = [
      {'tokens': tokens, 'examples': 27, 'classification_accuracy': score}
      for tokens, score in zip(('65-128', '1025-2048'), scores)
    ]
    # Too few to say anything of texts of this length; they count in all.
    table.append({'tokens': '2049-4096', 'examples': 19, 'classification_accuracy': 0.0})
    table.append({'tokens': '4097-8192', 'examples': 5, 'classification_accuracy': None})
    out = answers_folder(folder, 'b.tsv', 4)
    out.mkdir(parents=True)
    (out / 'scores.json').write_text(json.dumps({'by_length': table}))
  return tmp_path


def test_a_report_has_a_column_for_each_length(runs):
  text = report.table(report.read(runs)).splitlines()
  less = '24 are left out, of lengths with fewer than 20'
  at = text.index(f'By the length of the texts, mean (examples; {less})')
  assert text[at + 1].split() == ['arm', '65-128', 'tokens', '1025-2048', 'tokens']
  assert text[at + 2].split() == ['all', 'runs', '0.8500', '(27)', '0.5500', '(27)']


def test_scores_are_rounded_to_the_examples_that_were_scored(runs):
  panel, accuracy = report.read(runs).panels[0], [0.8] * 3
  (arm,) = panel.arms
  arm.runs += [dataclasses.replace(arm.runs[0], fields={**arm.runs[0].fields, 'seed': 2})]
  interval = lambda name: panel.rows(name)[0].interval
  assert interval('classification_accuracy') == report_statistics.interval(accuracy, 1 / 78)
  assert interval('loss') is None  # a loss is of no steps, and all are the same
  top = report_statistics.top_of('f1', [31.0, 0.5])
  assert report_statistics.step_of(50, top) == 2  # percent
  top = report_statistics.top_of('mean_absolute_error', [31.0, 0.5])
  assert report_statistics.step_of(50, top) == 0  # in the units of the labels


def test_a_panel_draws_them(runs):
  (panel,) = report.read(runs).panels
  drawn = {name: figure for name, _, figure in report_figures.panel_figures(panel)}
  (axis,) = drawn['lengths'].axes
  (line,) = axis.get_lines()
  assert [x.get_text() for x in axis.get_xticklabels()] == ['65-128\n(27)', '1025-2048\n(27)']
  assert list(line.get_xdata()) == [0, 1]
  assert list(line.get_ydata()) == pytest.approx([0.85, 0.55])
  assert axis.get_xticklabels()[0].get_fontsize() == 7  # less only where there is little room
  assert 'classification_accuracy' in axis.get_ylabel()
  (first,), scores = panel.arms, ['65-128', '1025-2048']
  assert report_figures.widest(panel, panel.metrics[0], scores) == ''  # of one arm
  arms = [dataclasses.replace(first, label=str(i), runs=[x]) for i, x in enumerate(first.runs)]
  panel = dataclasses.replace(panel, arms=arms)
  said = report_figures.widest(panel, panel.metrics[0], scores)
  assert said == 'The arms differ most at 1025-2048 tokens, by 0.3000. '
  for path in runs.glob('*/**/scores.json'):  # of one length there is nothing to draw
    path.write_text(json.dumps({'by_length': json.loads(path.read_text())['by_length'][:1]}))
  (panel,) = report.read(runs).panels
  drawn = [name for name, *_ in report_figures.panel_figures(panel)]
  assert report_arms.lengths(panel.arms, panel.metrics[0]) == ['65-128'] and 'lengths' not in drawn
  assert 'By the length' not in report.table(report.read(runs))
  for path in runs.glob('*/**/scores.json'):
    path.unlink()
  (panel,) = report.read(runs).panels
  assert 'By the length' not in report.table(report.read(runs))
  assert 'lengths' not in [name for name, *_ in report_figures.panel_figures(panel)]
