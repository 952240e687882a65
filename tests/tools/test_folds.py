"""Cross-validation: the folds, their runs and programs, and what they say together."""

import warnings

import jax
import numpy as np
import pandas as pd
import pytest
import small_tables
from jax.experimental.compilation_cache import compilation_cache
from scipy.stats import binomtest

import bert_jax
from bert_jax.errors import InputError
from bert_jax.tools import folds, report
from bert_jax.workdir import records

SMALL = """model.hidden_size=16 model.intermediate_size=32 model.num_hidden_layers=1
  model.num_attention_heads=2 log.tensorboard=false data.seq_length=32 batch_size=1 epochs=1
  data.examples_per_row=1 min_steps=0 optimizer.learning_rate=0.05 table.pooling=mean"""
RATE = 'optimizer.learning_rate'


def table(number=37):
  """Labels of shares 3:2:1, told by one word, in an index of its own."""
  rng = np.random.default_rng(0)
  labels = rng.permutation([0, 0, 0, 1, 1, 2] * number)[:number]
  texts = [f'{small_tables.sentence(rng, most=20)} {small_tables.WORDS[k]}' for k in labels]
  named = [f'kind {k}' for k in labels]
  return pd.DataFrame({'sentence': texts, 'label': named}, index=100 + np.arange(number))


@pytest.fixture(scope='module')
def small(vocab):
  return small_tables.fields_of(SMALL, vocab)


@pytest.fixture(scope='module')
def validated(small, tmp_path_factory):
  """(Folds of two arms on three folds, the names of what was compiled for them)."""
  before, cache = jax.config.jax_compilation_cache_dir, tmp_path_factory.mktemp('cache')
  jax.config.update('jax_compilation_cache_dir', str(cache))
  compilation_cache.reset_cache()
  folder = tmp_path_factory.mktemp('folds') / 'W'
  out = bert_jax.cross_validate(table(), folder, 3, **small | {RATE: np.array([0.05, 0.001])})
  jax.config.update('jax_compilation_cache_dir', before)
  compilation_cache.reset_cache()
  return out, [path.name.partition('-')[0] for path in cache.glob('*-cache')]


# ---- folds ---------------------------------------------------------------------------------------


def test_each_row_is_held_out_once_and_labels_are_spread_evenly():
  rows = table()
  fold_of = folds.split(rows, 5, 'label', '', 0)
  assert set(fold_of) == set(range(5)) and len(fold_of) == len(rows)
  counts = pd.crosstab(fold_of, rows.label.to_numpy())
  assert (counts.max() - counts.min() <= 1).all()
  np.testing.assert_array_equal(fold_of, folds.split(rows, 5, 'label', '', 0))
  assert (fold_of != folds.split(rows, 5, 'label', '', 1)).any()
  plain = np.bincount(folds.split(rows, 5, '', '', 0))
  assert plain.max() - plain.min() <= 1


def test_rows_of_a_group_stay_together():
  rows = table().assign(author=np.arange(37) % 7)
  fold_of = folds.split(rows, 3, 'label', 'author', 0)
  assert (pd.Series(fold_of).groupby(rows.author.to_numpy()).nunique() == 1).all()
  assert set(fold_of) == {0, 1, 2}
  rows = rows.assign(author=[None, '', np.nan, None] + ['a', 'NA', '-'] * 11)
  with pytest.raises(InputError, match='4 rows have no author; give each its own'):
    folds.split(rows, 3, 'label', 'author', 0)


@pytest.mark.parametrize('given, said', [
  (dict(folds=40), 'folds=40 is not possible .*; give 2 or more, and at most 18: so many'),
  (dict(folds=8, groups='label'), 'folds=8 is not possible .* at most 3: so many'),
  ({RATE: [0.1, 1e-1]}, r'learning_rate is \[0.1, 0.1\]; give different values'),
  (dict(epochs=[]), r'epochs is \[\]; give different values'),
  (dict(folds=20, groups='sentence'), 'folds=20 is not possible .* at most 18: so many'),
  (dict(folds=1), 'folds=1 is not possible .* give 2 or more'),
  (dict(groups='writer'), "there is no column 'writer', only 'sentence', 'label'"),
  (dict(epochs=[1, 2], seq_length=[3]), "'epochs', 'seq_length' are lists; give one of them"),
  ({RATE: [0.1, 'fast']}, 'optimizer.learning_rate'),
  (dict(groups=table().label), 'groups is no text; put them into a column'),
  (dict(folds='5'), "folds is '5'; give one whole number"),
  (dict(eval=table(1)), "each fold has its own rows; leave out 'eval', which names others"),
  (dict(train='a.csv'), "leave out 'train'"),
  (dict(model=['tiny', 'nowhere']), 'nowhere'),
  (dict(seed=-1), 'seed is -1; give one whole number from 0 on'),
  (dict(seed=[1, 2]), r'seed is \[1, 2\]; give one whole number'),
])  # fmt: skip
def test_what_cannot_be_is_one_sentence_before_anything_is_written(given, said, tmp_path):
  with pytest.raises(InputError, match=said):
    bert_jax.cross_validate(table(), tmp_path / 'W', **{'model': 'tiny'} | given)
  assert list(tmp_path.iterdir()) == []


def test_warnings_of_the_runs_are_said_once(caplog):
  caplog.set_level('INFO', 'bert_jax')
  said = set()
  for name in 'fold_0', 'fold_1':
    with folds.warning_once(name, said):
      for text in 'few', name, 'few':
        folds.log.warning('%s', text)
        folds.log.info('read')
  folds.log.warning('few')
  warned = [x.message for x in caplog.records if x.levelname == 'WARNING']
  assert warned == ['fold_0: few', 'fold_0: fold_0', 'fold_1: fold_1', 'few']
  assert caplog.messages.count('read') == 6


def test_a_label_in_one_fold_only(tmp_path):
  with pytest.raises(InputError, match='folds=5 is not possible .* at most 0: so many'):
    bert_jax.cross_validate(table()[:0], tmp_path / 'W', model='tiny')
  rows = table()
  rows.iloc[3, 1] = 'rare'
  said = "the label 'rare' is in one fold only"
  # Of what scikit-learn says besides nothing is seen.
  with warnings.catch_warnings(action='error'), pytest.raises(InputError, match=said):
    bert_jax.cross_validate(rows, tmp_path / 'W', model='tiny')
  rows.iloc[3, 1] = None  # is of no label, and only answered
  assert len(folds.split(rows, 5, 'label', '', 0)) == len(rows)


# ---- runs ----------------------------------------------------------------------------------------


def test_folds_of_any_length_and_rate_compile_once(validated):
  out, compiled = validated
  runs = [records.read(out.workdir / name) for name in records.read_sweep(out.workdir).runs]
  assert len({run.facts.steps for run in runs}) > 1 and len(runs) == 6
  assert len({tuple(run.config.table.prior) for run in runs}) > 1
  for program in 'jit_train_step', 'jit_eval_step', 'jit_make_state':
    assert compiled.count(program) == 1


def test_the_same_call_computes_only_what_lacks(validated, small, tmp_path, caplog):
  """Of rows from a file, and with a run that was stopped."""
  table().to_csv(tmp_path / 'rows.csv', index=False)
  given = tmp_path / 'rows.csv', tmp_path / 'W', 3
  with pytest.raises(KeyboardInterrupt, match='saved at step 1'):
    bert_jax.cross_validate(*given, **small, max_hours=1e-9)
  whole = bert_jax.cross_validate(*given, **small)
  # The rows and seeds are those of the first arm.
  ours = whole.metrics.loc[folds.ONE]
  pd.testing.assert_frame_equal(ours, validated[0].metrics.loc[f'{RATE}=0.05'])
  written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('metrics.jsonl')}
  assert len(written) == 3
  caplog.clear()
  again = bert_jax.cross_validate(*given, **small)
  assert caplog.text.count('this run has finished') == 3
  assert {path: path.stat().st_mtime_ns for path in written} == written
  pd.testing.assert_frame_equal(again.metrics, whole.metrics)
  with pytest.raises(InputError, match='fold_0 holds a run with another config .*data.train'):
    bert_jax.cross_validate(*given, **small, seed=1)
  for other in {RATE: [0.05, 0.1]}, {'folds': 4}:
    with pytest.raises(InputError, match='W holds other folds or values, .*; name another folder'):
      bert_jax.cross_validate(*given[:2], **{'folds': 3} | small | other)


# ---- what they say -------------------------------------------------------------------------------


def test_values_are_compared_fold_by_fold(validated):
  out, _ = validated
  scores = out.metrics.cross_entropy.unstack('fold')
  slow, fast = scores.loc[f'{RATE}=0.001'], scores.loc[f'{RATE}=0.05']
  assert [*scores.columns] == [0, 1, 2]
  compared = out.compare('cross_entropy')
  assert [*compared.index] == [f'{RATE}=0.05', f'{RATE}=0.001'] == out.arms
  np.testing.assert_allclose(compared['mean'], [fast.mean(), slow.mean()])
  np.testing.assert_allclose(compared['sd'], [fast.std(), slow.std()])
  np.testing.assert_allclose(compared.difference.iloc[1], (slow - fast).mean())
  assert compared.loc[f'{RATE}=0.001', 'shared'] == compared.folds.iloc[1] == 3
  accuracy = out.metrics.loc[f'{RATE}=0.05'].accuracy
  assert out.compare()['mean'].iloc[0] == pytest.approx(accuracy.mean())


def test_a_report_reads_the_folder(validated):
  out, _ = validated
  found = report.read(out.workdir)
  (panel,) = found.panels
  assert panel.baseline == out.arms[0] and [*panel.factors] == [RATE]
  assert not found.results.runs.remark.str.contains('differs').any()
  first, names, _, *rows, note = str(out).splitlines()
  assert (first, len(rows)) == ('accuracy over folds:', len(out.arms))
  assert note.startswith('collapsed: folds') and out.compare().collapsed.any()
  assert names.split() == [*folds.SHOWN[:5], 'collapsed']
  examples = out.compare().iloc[1]  # all rows, each of which one fold holds out
  share = binomtest(round(37 * examples['mean']), 37).proportion_ci(method='wilson')
  assert (examples.examples_low, examples.examples_high) == pytest.approx(tuple(share), abs=0.02)
  assert f'{out.compare()["mean"].iloc[1]:.4f}'.rstrip('0') in rows[-1]


def test_a_row_is_answered_by_the_model_that_has_not_seen_it(validated):
  out, _ = validated
  for arm in out.arms:
    answers = out.answers(arm)
    assert answers.index.equals(table().index)
    right = pd.Series((answers.prediction == table().label).to_numpy()).groupby(out.fold_of).mean()
    np.testing.assert_allclose(right, out.metrics.loc[arm].accuracy)
  assert answers.fold.tolist() == out.fold_of.tolist()
  with pytest.raises(InputError, match=rf"give answers\(\) one of the arms '{out.arms[0]}', "):
    out.answers()
  with pytest.raises(InputError, match='rows have a column fold, .*; rename it'):
    bert_jax.cross_validate(table().assign(fold=0), out.workdir, 3, model='tiny')
