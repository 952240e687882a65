"""Texts longer than a BERT: longer tables of positions, windows."""

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


# ---- windows -------------------------------------------------------------------------------------


def long_table(tmp_path):
  path = tmp_path / 'dev.tsv'
  rows = [' '.join(WORDS * 3), 'river', ' '.join(WORDS * 6), ' '.join(WORDS[:5] * 4)]
  path.write_text('sentence\tlabel\n' + ''.join(f'{x}\t{i % 2}\n' for i, x in enumerate(rows)))
  return path


@pytest.mark.parametrize('keep', ['tail', 'windows'])
def test_predict_reads_long_texts_as_evaluation_does(keep, tmp_path, vocab, tokenizer):
  more = f"""data.seq_length=64 task.max_length=16 table.long_texts={keep}
    model.max_position_embeddings=16 model.dtype=float32"""
  config = finetune(vocab, long_table(tmp_path), more, task='sst2')
  source, objective = source_of(config, tokenizer), classification.objective(config, tokenizer)
  params = telling(objective, 1)
  outputs, _ = predicted(objective, params, source)
  model = predict.Model(trained.Trained(config, tokenizer, params, 1))
  answers = source.answers(outputs)
  for answer, shares in zip(answers, model.classify([a['text'] for a in answers])):
    assert shares == pytest.approx(answer['probabilities'], abs=1e-5)
  assert len({round(a['probability'], 6) for a in answers}) > 2
  assert model.counts['examples cut (longer than 16 tokens)'] == 3 * (keep == 'tail')
  (inside,) = (a for a in answers if a['length'] <= model.limit - 2)  # an exported program has one
  _, found = exported(model, 'classify', inside['text'])
  shares = np.exp(found['logits']) / np.exp(found['logits']).sum()
  np.testing.assert_allclose(shares, list(inside['probabilities'].values()), atol=1e-5)
