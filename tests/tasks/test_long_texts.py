"""Texts longer than a BERT: longer tables, global tokens, windows together, a memory."""

import shutil

import numpy as np
import pytest
from published import predicted, telling
from running import read_weights
from small_tables import WORDS, fields, finetune
from test_classification import source_of
from test_predict_states import exported
from test_train import labelled, small_finetune  # noqa: F401 (a fixture)

from bert_jax import models, predict
from bert_jax.objectives.classification import over_groups
from bert_jax.run.inputs import read_inputs
from bert_jax.tasks.classification import task as classification
from bert_jax.workdir import contents, trained

# ---- positions -----------------------------------------------------------------------------------


def test_a_table_is_tiled_or_interpolated():
  table = np.array([[0.0, 9.0], [3.0, 9.0], [6.0, 0.0]], np.float32)
  tiled = models.extended(table, 7, 'tile')
  np.testing.assert_array_equal(tiled, table[[0, 1, 2, 0, 1, 2, 0]])
  between = models.extended(table, 5, 'interpolate')
  np.testing.assert_allclose(between, [[0, 9], [1.5, 9], [3, 9], [4.5, 4.5], [6, 0]], atol=1e-6)
  assert tiled.dtype == between.dtype == np.float32
  np.testing.assert_allclose(models.extended(table, 3, 'interpolate'), table, atol=1e-6)


@pytest.fixture(params=['tile', 'interpolate'])
def longer(request, labelled, pretrained):  # noqa: F811
  """The config of a run that begins with the pre-trained one and has longer positions."""
  sizes = 'model.max_position_embeddings=96 data.seq_length=96'
  begins = f'init_from={pretrained[0]} model.extend_positions={request.param}'
  return small_finetune(labelled, *fields(sizes, begins))


def test_a_run_with_longer_positions_goes_on(pretrained, longer, tmp_path):
  """With the same command: its own table is as long as it is to be."""
  given = ('model.extend_positions', 'model.max_position_embeddings')
  inputs = read_inputs(longer, tmp_path / 'run', given)
  contents.claim(tmp_path / 'run', inputs.config, inputs.asked)
  inputs.tokenizer.save(tmp_path / 'run')
  shutil.copytree(pretrained[0] / 'checkpoints', tmp_path / 'run' / 'checkpoints')
  again = read_inputs(longer, tmp_path / 'run', given)
  assert again.in_workdir and again.config == inputs.config
  assert again.config.model.max_position_embeddings == 96


def test_a_run_begins_with_longer_positions(pretrained, longer, tmp_path):
  def table_of(params):
    return np.asarray(params['encoder']['embeddings']['position_embeddings']['embedding'])

  before = table_of(pretrained[1].params)
  assert len(before) == 64
  found = table_of(read_weights(longer, tmp_path / 'run')[1])
  np.testing.assert_array_equal(found, models.extended(before, 96, longer.model.extend_positions))


# ---- windows together ----------------------------------------------------------------------------


def test_vectors_of_a_group_are_weighed_by_a_softmax():
  rng = np.random.default_rng(0)
  x, query = rng.normal(size=(1, 5, 4)).astype(np.float32), rng.normal(size=4).astype(np.float32)
  groups = np.array([[1, 1, 2, 1, 0]])
  out = np.asarray(over_groups(query, x, groups))[0]
  shares = np.exp(x[0] @ query)[[0, 1, 3]]
  expected = (shares[:, None] * x[0, [0, 1, 3]]).sum(axis=0) / shares.sum()
  for n in (0, 1, 3):
    np.testing.assert_allclose(out[n], expected, rtol=1e-5)
  np.testing.assert_allclose(out[2], x[0, 2], rtol=1e-6)
  mean = np.asarray(over_groups(0 * query, x, groups))[0, 0]
  np.testing.assert_allclose(mean, x[0, [0, 1, 3]].mean(axis=0), rtol=1e-5)


def long_table(tmp_path):
  path = tmp_path / 'dev.tsv'
  rows = [' '.join(WORDS * 3), 'river', ' '.join(WORDS * 6), ' '.join(WORDS[:5] * 4)]
  path.write_text('sentence\tlabel\n' + ''.join(f'{x}\t{i % 2}\n' for i, x in enumerate(rows)))
  return path


PARTS = 'data.seq_length=64 task.max_length=16'
HIERARCHICAL = f'{PARTS} table.long_texts=hierarchical'


def test_windows_of_a_text_are_classified_together(tmp_path, vocab, tokenizer):
  path = long_table(tmp_path)
  config = finetune(vocab, path, HIERARCHICAL, task='sst2')
  source, objective = source_of(config, tokenizer), classification.objective(config, tokenizer)
  outputs, _ = predicted(objective, telling(objective, 1), source)
  assert list(source.text_of) == [0, 0, 0, 0, 1, 2, 2, 2, 2, 3, 3]
  ids, logits = outputs['example_ids'], outputs['logits']
  of_text = {}
  for row, slot in zip(*np.nonzero(ids)):
    of_text.setdefault(source.text_of[ids[row, slot] - 1], []).append((row, logits[row, slot]))
  for windows in of_text.values():
    assert len({row for row, _ in windows}) == 1
    for _, x in windows:
      np.testing.assert_allclose(x, windows[0][1], rtol=1e-5, atol=1e-6)
  assert len(source.answers(outputs)) == 4


@pytest.mark.parametrize(
  'more, alone',  # alone: how many are short enough for an exported program, which reads one window
  [
    (HIERARCHICAL, 1),
    (f'{PARTS} table.long_texts=tail', 1),
    (f'{PARTS} table.long_texts=windows', 1),
  ],
)
def test_predict_reads_them_as_evaluation_does(more, alone, tmp_path, vocab, tokenizer):
  more = f'{more} model.max_position_embeddings=16 model.dtype=float32'
  config = finetune(vocab, long_table(tmp_path), more, task='sst2')
  source, objective = source_of(config, tokenizer), classification.objective(config, tokenizer)
  params = telling(objective, 1)
  if 'windows' in params:
    params['windows']['query'] = np.random.default_rng(0).normal(size=16).astype(np.float32)
  outputs, _ = predicted(objective, params, source)
  model = predict.Model(trained.Trained(config, tokenizer, params, 1))
  answers = source.answers(outputs)
  for answer, shares in zip(answers, model.classify([a['texts'][0] for a in answers])):
    assert shares == pytest.approx(answer['probabilities'], abs=1e-5)
  assert len({round(a['probability'], 6) for a in answers}) > 2
  assert model.counts['examples cut (longer than 16 tokens)'] == 3 * ('tail' in more)
  inside = [a for a in answers if a['length'] <= model.limit - 2]
  assert len(inside) == alone
  _, found = exported(model, 'classify', *inside[0]['texts'])
  shares = np.exp(found['logits']) / np.exp(found['logits']).sum()
  np.testing.assert_allclose(shares, list(inside[0]['probabilities'].values()), atol=1e-5)
