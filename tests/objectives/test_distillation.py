"""Learning from a teacher: what is learned, whose layers it starts from, and what is kept."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import layouts
import numpy as np
import pytest
from conftest import small_overrides, small_pretrain
from references import drawn
from refusal import one_sentence
from running import begun, goes_on, untrained
from scipy import special
from small_tables import load as load_small
from small_tables import table
from test_objectives import MODEL, T
from toys import load

from bert_jax import config as config_lib
from bert_jax.evaluate import evaluate
from bert_jax.objectives.classification import Classification
from bert_jax.objectives.distillation import Distilled, DistilledLanguageModel, cosine
from bert_jax.predict import Model
from bert_jax.run.inputs import read_inputs
from bert_jax.timeline import Moment
from bert_jax.tools import convert
from bert_jax.tools.preflight import estimate
from bert_jax.workdir import contents

pytestmark = pytest.mark.usefixtures('steps_once')


def test_cosines_of_nothing_have_a_gradient():
  x = jnp.array([[3.0, 4.0], [1.0, 1.0], [0.0, 0.0]])
  y = jnp.array([[6.0, 8.0], [-2.0, -2.0], [1.0, 0.0]])
  np.testing.assert_allclose(cosine(x, y), [1, -1, 0], atol=1e-6)
  assert np.isfinite(jax.grad(lambda x: cosine(x, y).sum())(x)).all()


# ---- every head ----------------------------------------------------------------------------------

SMALL = [line for line in layouts.SMALL if 'layers' not in line]
SMALL += ['model.mixer=bag', 'model.position_embeddings=none']  # the least that mixes tokens
HEADS = {
  'classification': ('finetune.py:task=sst2', ''),
  'several labels': ('finetune.py:task=table', 'table.multi_label=true table.labels=a,b,c'),
  'a number': ('finetune.py:task=stsb', ''),
  'tags': ('finetune.py:task=ner', 'tagging.labels=a,b,c'),
  'spans': ('finetune.py:task=squad', ''),
  'choices': ('finetune.py:task=copa', ''),
  'words': ('distill.py:runlocal', ''),
}


def objectives(head, layers=1):
  """(objective of a head, its parameters)."""
  spec, more = HEADS[head]
  packed = 'data.examples_per_row=2 task.max_length=16' if head != 'words' else ''
  config = load(f'configs/{spec}', *SMALL, f'model.num_hidden_layers={layers}', more, packed)
  objective = estimate.objective_of(config)
  return objective, drawn(objective.init, seed=layers)


def batch_of(objective):
  """A prepared batch."""
  prepare = jax.jit(lambda batch: objective.prepare(batch, jax.random.key(9), Moment()))
  return prepare(layouts.batch_of(objective.spec(4), 200, 0))


def taught_by(student, teacher_, weights):
  kind = DistilledLanguageModel if hasattr(student, 'hidden_terms') else Distilled
  return kind(student, teacher_, weights, '', 2.0, soft_weight=0.5, label_weight=0.25)


@pytest.mark.parametrize('head', HEADS)
def test_each_head_learns_its_own_terms_and_the_answers_of_the_teacher(head):
  (student, params), (deeper, weights) = (objectives(head, layers) for layers in (1, 2))
  alike, taught = (taught_by(student, x, None) for x in (student, deeper))
  key, batch = jax.random.key(3), dict(batch_of(student))
  batch['segment_ids'] = jnp.asarray(batch['segment_ids']).at[2:, -3:].set(0)

  @jax.jit
  def run(params, teacher):
    alone, _ = student.terms(params, batch, key, True)
    of_itself, _ = alike.terms(params, batch, key, False, None, {'teacher': params})
    return alone, of_itself, taught.terms(params, batch, key, True, None, {'teacher': teacher})[0]

  alone, still, terms = run(params, weights)
  for name, mean in alone.items():  # dropout and all
    np.testing.assert_allclose(terms[name].total, mean.total, 1e-5, err_msg=name)
  assert still['soft'].weight > 0 and abs(still['soft'].value) < 1e-5
  assert terms['soft'].value > 1e-3 and all(np.isfinite(x.total) for x in terms.values())
  if head == 'tags':  # a teacher counts as a forward pass, which is a third
    assert taught.flops(4) == pytest.approx(student.flops(4) + deeper.flops(4) / 3)
  if head == 'words':
    real = np.asarray(batch['segment_ids']) > 0
    assert terms['cosine'].weight == real.sum() < real.size and abs(still['cosine'].value) < 1e-5
    weighted = dataclasses.replace(taught, hidden_weight=0.7)
    assert weighted.loss_weights['cosine'] == 0.7
  own = {name: 0.25 * weight for name, weight in student.loss_weights.items()}
  assert own.items() < taught.loss_weights.items() and taught.loss_weights['soft'] == 0.5


@pytest.mark.parametrize('several', [False, True])
def test_the_soft_loss_is_its_formula(several):
  """The divergence of the classes or, with several labels, the mean of the labels' own."""
  objective = Classification(MODEL, T, tuple('abcd'), multi_label=several, examples_per_row=2)
  rng, weights = np.random.default_rng(3), np.array([[0.5, 2], [1, 0], [0, 1]])
  mine, theirs = rng.normal(size=(2, 3, 2, 4)) * 2

  def shares(x):
    if several:
      return np.stack([special.expit(-x / 3), special.expit(x / 3)], axis=-1)
    return special.softmax(x / 3, axis=-1)

  p, q = shares(theirs), shares(mine)
  nats = (p * np.log(p / q)).sum(axis=-1)
  nats = nats.mean(axis=-1) if several else nats
  found = objective.soft(jnp.asarray(mine), jnp.asarray(theirs), {'weights': weights}, 3.0)
  assert found.value == pytest.approx(9 * (weights * nats).sum() / 4.5, rel=1e-5)


def test_only_tokens_of_the_example_and_choices_of_the_question_are_in_a_softmax():
  def shares(head, **more):
    student, params = objectives(head)
    batch = batch_of(student) | more
    logits = jax.jit(student.logits)(params, batch)
    return np.asarray(jax.nn.softmax(student.softmaxes(logits, batch)[0]))

  of_first = shares('spans')[:, 0, :, :16].sum(-1)
  np.testing.assert_allclose(of_first, 1, atol=1e-6)
  # Each is the only one of its question.
  alone = shares('choices', groups=jnp.tile(jnp.array([[1, 2]]), (4, 1)))
  np.testing.assert_allclose(alone, np.tile(np.eye(2), (4, 1, 1)), atol=1e-6)


# ---- runs ----------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def taught_from(corpus_file, tmp_path_factory):
  """The workdir of a teacher of pre-training with three layers, token types and a pooler."""
  config = small_pretrain(corpus_file, 'model.num_hidden_layers=3')
  return untrained(config, tmp_path_factory.mktemp('teacher') / 'run')


def distilled(corpus_file, taught_from, *settings):
  """The config of a small student in pre-training, with the sizes of its teacher."""
  own = [x for x in small_overrides(corpus_file) if '.model.' not in x and '.masking.' not in x]
  given = [x.removeprefix('--config.') for x in own]
  return load('configs/distill.py:runlocal', *given, f'teacher={taught_from}', *settings)


@pytest.fixture(scope='module')
def student(corpus_file, taught_from, tmp_path_factory):
  """The workdir of a student of that teacher, as it is after 20 steps."""
  workdir = tmp_path_factory.mktemp('student') / 'run'
  begun(distilled(corpus_file, taught_from), workdir, 20)
  return workdir


def test_a_teacher_may_be_moved_but_not_exchanged(corpus_file, taught_from, student, tmp_path):
  workdir = shutil.copytree(student, tmp_path / 'run')
  moved = shutil.copytree(taught_from, tmp_path / 'moved')
  goes_on(distilled(corpus_file, moved, 'steps=21'), workdir)
  other = untrained(contents.read_config(taught_from), tmp_path / 'other', seed=2)
  with one_sentence('the teacher is not what it was at checkpoint 20'):
    goes_on(distilled(corpus_file, other, 'steps=21'), workdir)


def test_prediction_and_export_need_no_teacher(student, tmp_path):
  workdir = shutil.copytree(student, tmp_path / 'run')
  config = contents.read_config(workdir)
  config_lib.set_field(config, 'teacher', '/nowhere')
  (workdir / 'config.json').unlink()
  contents.claim(workdir, config)
  texts = ['the [MASK] meets the old stone .']
  answers = Model(workdir).fill_mask(texts)
  with one_sentence('config.teacher: /nowhere'):
    evaluate(workdir)
  results, _ = evaluate(workdir, ['--config.teacher='])
  assert results['mlm'] > 0 and 'soft' not in results
  convert.convert(workdir, f'hf:{tmp_path / "hf"}')
  content = json.loads((tmp_path / 'hf' / 'config.json').read_text())
  assert content['architectures'] == ['DistilBertForMaskedLM'] and content['n_layers'] == 2
  assert 'teacher' not in content['bert_jax']
  assert Model(tmp_path / 'hf').fill_mask(texts) == answers


# ---- tasks ---------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def tables(tmp_path_factory):
  folder = tmp_path_factory.mktemp('tables')
  for i, name in enumerate(('train', 'eval')):
    table(folder / f'{name}.tsv', np.random.default_rng(i), 40)
  return folder


def task_config(vocab, tables, spec, *overrides):
  data = [f'--config.data.{name}={tables}/{name}.tsv' for name in ('train', 'eval')]
  sizes = '--config.data.seq_length=32', '--config.batch_size=4'
  fast = '--config.optimizer.learning_rate=1e-3'
  return load_small(vocab, spec, *data, *sizes, fast, *overrides)


@pytest.fixture(scope='module')
def tuned(vocab, tables, tmp_path_factory):
  """The workdir of a teacher of the task, with three layers."""
  deep = '--config.model.num_hidden_layers=3'
  config = task_config(vocab, tables, 'configs/finetune.py:task=sst2', deep)
  return untrained(config, tmp_path_factory.mktemp('tuned') / 'run')


OTHER_START = 'tokenizer.path={start}/vocab.txt init_from={start}'
DISTILL, POS = 'configs/distill.py:task=sst2', 'configs/distill.py:task=pos'


@pytest.mark.parametrize(
  'spec, overrides, sentence',
  [
    (DISTILL, 'teacher=', 'every_layer=2'),
    (DISTILL, 'table.labels=yes,no', 'labels'),
    (DISTILL, 'table.multi_label=true', 'multi_label'),
    (POS, 'tagging.labels=0,1', "trained for 'classification'"),
    (DISTILL, 'tokenizer.path={other}', 'vocabulary'),
    (DISTILL, f'{OTHER_START} distillation.every_layer=0', 'another vocabulary'),
    ('configs/distill.py:runlocal', 'epochs=0 steps=2', 'masked words'),
  ],
)
def test_a_teacher_that_does_not_fit_is_refused_in_a_sentence(
  spec, overrides, sentence, vocab, tables, tuned, taught_from, tmp_path, corpus_file
):
  other = tmp_path / 'vocab.txt'
  other.write_text(vocab.read_text().replace('winter', 'summer'))
  overrides = [f'--config.{x}' for x in overrides.format(other=other, start=taught_from).split()]
  with one_sentence(sentence):
    config = task_config(vocab, tables, spec, f'--config.teacher={tuned}', *overrides)
    if 'task' not in spec:
      config.data.train, config.data.eval = str(corpus_file), ''
    read_inputs(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_hidden_states_of_another_width_have_no_cosine(corpus_file, taught_from, tmp_path):
  narrow = 'model.hidden_size=16 model.vocab_size=200 model.num_attention_heads=2'
  alone = f'tokenizer.path={taught_from}/vocab.txt distillation.every_layer=0'
  config = distilled(corpus_file, taught_from, narrow, alone)
  with one_sentence('cosine'):
    read_inputs(config, tmp_path / 'run')
  config = config_lib.override(config, ['--config.distillation.hidden_weight=0'])
  objective = read_inputs(config, tmp_path / 'run').objective
  assert 'cosine' not in {*objective.metrics, *objective.loss_weights}
