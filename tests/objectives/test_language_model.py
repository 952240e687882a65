"""Language models of all kinds: their losses by formula, rows, bits, runs, and what they write."""

import dataclasses
import functools
import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_overrides
from references import drawn
from refusal import one_sentence
from running import untrained
from test_objectives import MASKING, MODEL
from test_rows import text, tokenize, tokenizer  # noqa: F401 (fixtures)
from toys import load

from bert_jax import config as c
from bert_jax import models
from bert_jax.metrics import Mean
from bert_jax.objectives.classification import Classification
from bert_jax.objectives.encode import encode
from bert_jax.objectives.language_model import LanguageModel
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.predict import Model
from bert_jax.rows.corpus_rows import Rows
from bert_jax.rows.plans import Cutting
from bert_jax.run import initialization, warm_start
from bert_jax.tasks import TASKS
from bert_jax.timeline import EVALUATION, Moment
from bert_jax.workdir import trained

T = 16
LONG = dataclasses.replace(MODEL, max_position_embeddings=T)


def language_model(kind, model=LONG, **changes):
  return LanguageModel(model, T, 0.0, MASKING, stages=tuple(kind.split(',')), **changes)


def in_stage(number):
  return Moment(values={'language_model.kind': jnp.int32(number)})


def rows(B=6, seed=0):
  """Random tokens: two documents in each row, then padding."""
  rng = np.random.default_rng(seed)
  segments = np.array([[1] * 6 + [2] * 7 + [0] * 3] * (B - 1) + [[1] * T])
  positions = np.array([[*range(6), *range(7), 0, 0, 0]] * (B - 1) + [[*range(T)]])
  out = {'input_ids': np.where(segments, rng.integers(5, 20, (B, T)), 0)}
  out |= {'token_type_ids': 0 * segments, 'position_ids': positions, 'segment_ids': segments}
  return {name: jnp.asarray(x, jnp.int32) for name, x in out.items()}


def terms_of(objective, params):
  """A compiled function of a batch, arrays to change in it and a stage: {name: Mean}."""

  @jax.jit
  def run(batch, changes=(), stage=0):
    batch = objective.prepare(batch, jax.random.key(1), in_stage(stage)) | dict(changes)
    return objective.terms(params, batch, jax.random.key(2), True)[0]

  return run


@functools.cache
def alone(kind):
  """terms_of the objective of one kind; all kinds have the same parameters."""
  objective = language_model(kind)
  return terms_of(objective, drawn(objective.init))


# ---- what the kinds have in common ---------------------------------------------------------------


def test_a_hybrid_of_no_or_all_causal_rows_is_a_masked_or_causal_model_bit_for_bit():
  """The program of the loss and its gradient is the same one."""

  def program(objective):
    def loss(params):
      batch = objective.prepare(rows(), jax.random.key(1), in_stage(0))
      terms, _ = objective.terms(params, batch, jax.random.key(2), True)
      return sum(w * terms[x].total / terms[x].weight for x, w in objective.loss_weights.items())

    return jax.jit(jax.grad(loss)).lower(drawn(objective.init)).as_text()

  masked, causal = (program(language_model(kind)) for kind in ('masked', 'causal'))
  assert masked == program(MlmNsp(LONG, T, 0.0, MASKING)) != causal
  assert masked == program(language_model('hybrid', causal_share=0.0))
  assert causal == program(language_model('hybrid', causal_share=1.0))


def test_rows_of_a_hybrid_are_those_of_the_two_kinds():
  """Whatever the kinds of the other rows: each row's loss is that of a batch of its kind."""
  objective = language_model('hybrid', causal_share=0.25)
  params, batch = drawn(objective.init), rows()
  assert objective.loss_weights == {'lm': 0.25, 'mlm': 0.75} and objective.kinds[0] == 'causal'
  prepare = jax.jit(lambda batch: objective.prepare(batch, jax.random.key(1), in_stage(0)))
  share = np.mean(prepare(rows(2000))['kind'] == 0)
  assert share == pytest.approx(0.25, abs=0.03)
  is_masked, run = np.array([0, 1, 1, 0, 1, 0]), terms_of(objective, params)
  prepared = prepare(batch)
  same = {name: prepared[name] for name in ('segment_ids', 'masked_weights')}
  mixed = run(batch, same | {'kind': jnp.asarray(is_masked)})
  for k, (kind, name, other) in enumerate((('causal', 'lm', 'mlm'), ('masked', 'mlm', 'lm'))):
    of_kind = {'kind': jnp.full(6, k)}
    every = run(batch, same | of_kind)
    np.testing.assert_allclose(every[name].value, alone(kind)(batch)[name].value, rtol=1e-5)
    assert every[other].weight == 0 and every[other].total == 0
    # The loss of the rows of this kind, without the weights of the others.
    counted = jnp.asarray(is_masked == k)[:, None]
    few = run(batch, of_kind | {name: x * counted for name, x in same.items()})
    np.testing.assert_allclose(mixed[name].total, few[name].total, rtol=1e-5)
    np.testing.assert_allclose(mixed[name].weight, few[name].weight)


def test_kinds_change_by_step():
  objective = language_model('causal,masked,diffusion')
  params, batch = drawn(objective.init), rows()
  kinds = 'language_model.kind=causal,masked@5,diffusion@9 model.causal=false steps=12'
  timeline = c.timeline_of(load('configs/pretrain.py:runlocal,objective=causal', kinds))
  run, terms_now = terms_of(objective, params), {}
  for step, name in {0: 'lm', 4: 'lm', 5: 'mlm', 8: 'mlm', 9: 'bound'}.items():
    stage = timeline.at(jnp.int32(step)).stage('language_model.kind')
    terms = terms_now[name] = run(batch, stage=stage)
    assert [x for x in ('lm', 'mlm', 'bound') if terms[x].weight] == [name]
  for kind, name in (('masked', 'mlm'), ('diffusion', 'bound')):
    expected = alone(kind)(batch)[name].value
    np.testing.assert_allclose(terms_now[name][name].value, expected, rtol=1e-5)

  @jax.jit
  def evaluated(batch):
    batch = objective.prepare(batch, jax.random.key(1), EVALUATION)
    return objective.terms(params, batch, None, False)[0], batch['noise']

  # An evaluation has all of them, on all rows. Hits are counted where a token is asked for.
  terms, noise_BT = evaluated(batch)
  assert terms['lm_accuracy'].weight == terms['lm'].weight < batch['input_ids'].size
  assert 0 < terms['bound_accuracy'].weight == np.sum(noise_BT > 0) < terms['bound'].weight
  assert all(terms[x].weight for x in ('lm', 'mlm', 'bound'))


# ---- causal --------------------------------------------------------------------------------------


def test_the_causal_loss_is_that_of_each_next_token_of_its_document():
  objective = language_model('causal')
  params, batch = drawn(objective.init), rows()
  model = dataclasses.replace(LONG, causal=True)

  @jax.jit
  def run(params):
    logits = models.word_logits(model, params, encode(model, params['encoder'], batch))
    return logits, objective.terms(params, batch, None, False)[0]

  logits, terms = run(params)
  logs, ids, segments = jax.nn.log_softmax(logits), batch['input_ids'], batch['segment_ids']
  rows_of, at = np.nonzero((segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] > 0))
  assert len(at) == 5 * (5 + 6) + 15 == terms['lm'].weight
  expected = -logs[rows_of, at, ids[rows_of, at + 1]].sum()
  np.testing.assert_allclose(terms['lm'].total, expected, rtol=1e-5)
  shares = objective.derived_metrics(jax.device_get(terms) | {'tokens': Mean(1.0, 1.0)})
  np.testing.assert_allclose(shares['perplexity'].value, math.exp(terms['lm'].value), rtol=1e-5)


# ---- diffusion -----------------------------------------------------------------------------------


def noise_of(batch, moment):
  objective = language_model('diffusion')
  out = jax.jit(lambda batch: objective.prepare(batch, jax.random.key(0), moment))(batch)
  noise = np.asarray(out['noise'])
  np.testing.assert_array_equal(out['noised_ids'] == 4, noise > 0)
  return noise


def test_tokens_are_masked_at_a_rate_and_weigh_its_inverse():
  many = rows(4000)
  many['input_ids'] = many['input_ids'].at[:, 12].set(2)
  for moment in (in_stage(0), EVALUATION):
    noise = noise_of(many, moment)
    hidden = noise > 0
    assert not hidden[:, 12].any() and not hidden[:-1, 13:].any()  # special pieces and padding
    some = hidden.any(axis=1)
    rates = 1 / noise.max(axis=1)[some]
    of_tokens = np.where(hidden, noise, noise.max(axis=1, keepdims=True))[some]
    assert (of_tokens * rates[:, None]).std() < 1e-6  # one rate in each row
    assert 0.97 < noise[:, :12].mean() < 1.03  # each token is expected to weigh 1
    at_half = some.nonzero()[0][(rates > 0.4) & (rates < 0.6)]
    np.testing.assert_allclose(hidden[at_half[:-1], :12].mean(), 0.5, atol=0.02)
  # In an evaluation the rates are spread evenly; where they are high, every row has a mask.
  between = np.diff(np.sort(rates[rates > 0.7]))
  assert len(between) > 1000
  np.testing.assert_allclose(between, between.mean(), atol=1e-5)
  # Of a batch that is partly empty, over its rows.
  few = {name: x.at[1000:].set(0) for name, x in many.items()}
  noise = noise_of(few, EVALUATION)
  assert noise.max(axis=1)[noise.any(axis=1)].min() < 1 / 0.99 and not noise[1000:].any()


# ---- rows and bits -------------------------------------------------------------------------------


def test_every_token_is_the_next_one_of_another_once(text, tokenizer):  # noqa: F811
  source = Rows(text, tokenizer, Cutting('lm', seq_length=32, examples_per_row=8))
  targets, begins = Counter(), 0
  for row in (source[i] for i in range(len(source))):
    ids, segments = row['input_ids'], row['segment_ids']
    for segment in range(1, segments.max() + 1):
      part = ids[segments == segment]
      assert len(part) >= 2 and tokenizer.cls_id not in part[1:]
      assert tokenizer.sep_id not in part[:-1]
      begins += part[0] == tokenizer.cls_id
      targets.update(part[1:].tolist())
      np.testing.assert_array_equal(row['position_ids'][segments == segment], range(len(part)))
  assert begins == len(text.documents) - 1 == targets.pop(tokenizer.sep_id)
  assert targets == Counter(text.piece(0, len(text))[0].tolist())


# ---- runs ----------------------------------------------------------------------------------------


SMALL = """
  steps=12 model.dtype=float32 data.examples_per_row=4"""


def small(corpus_file, objective, *overrides):
  given = ' '.join(x.removeprefix('--config.') for x in small_overrides(corpus_file))
  return load(f'configs/pretrain.py:runlocal,objective={objective}', given, SMALL, *overrides)


@pytest.fixture(scope='module')
def runs(corpus_file, tmp_path_factory):
  """{objective: (workdir, parameters)} of models that nobody has trained."""
  folder = tmp_path_factory.mktemp('runs')
  kinds = 'causal_then_masked', 'causal'
  made = (untrained(small(corpus_file, kind), folder / kind) for kind in kinds)
  return {workdir.name: (workdir, trained.load(workdir).params) for workdir in made}


@pytest.fixture(scope='module')
def causal(runs):
  return Model(runs['causal'][0])


@pytest.fixture(scope='module')
def masked(runs):
  return Model(runs['causal_then_masked'][0])


def test_what_was_trained_one_way_starts_any_other(runs, corpus_file):
  ways = {'masked': 'causal', 'hybrid': 'causal'}
  ways |= dict.fromkeys(('causal', 'diffusion'), 'causal_then_masked')
  for target, source in ways.items():
    workdir, trained_params = runs[source]
    config = small(corpus_file, target, f'init_from={workdir}', 'seed=3')
    beginning = initialization.start_of(config, '')
    adopted = initialization.adopt_model(config, beginning)
    assert adopted.model.causal == (target == 'causal')
    own = language_model(target, models.ModelConfig(**adopted.model))
    shapes = jax.eval_shape(own.init, jax.random.key(0))
    taken = warm_start.names_taken(shapes, trained_params)
    assert len(taken) == len(jax.tree.leaves(shapes))


@pytest.mark.parametrize('source', ['causal', 'causal_then_masked'])
def test_a_classifier_reads_as_its_model_was_trained_unless_told_otherwise(runs, source):
  workdir, _ = runs[source]
  for given in ('', 'model.causal=false', 'model.causal=true'):
    start = f'init_from={workdir} data.seq_length=32'
    config = load('configs/finetune.py:task=sst2', start, given)
    beginning, named = initialization.start_of(config, ''), ['model.causal'] * bool(given)
    adopted = initialization.adopt_model(config, beginning, named)
    assert adopted.model.causal == (given.endswith('true') if given else source == 'causal')


def test_the_last_token_of_each_example_is_pooled():
  model = dataclasses.replace(LONG, causal=True)
  objective = Classification(model, T, ('a', 'b'), examples_per_row=2)
  params, batch = drawn(objective.init), rows(2)
  batch |= {'cls_positions': jnp.array([[0, 6], [0, 0]]), 'weights': jnp.ones((2, 2))}

  @jax.jit
  def run(params):
    hidden = encode(model, params['encoder'], batch)
    pooled = models.Pooler(model).apply({'params': params['pooler']}, hidden)
    every = models.Classifier(model, 2).apply({'params': params['classifier']}, pooled)
    return objective.logits(params, batch), every

  logits, every = run(params)
  for b, n, last in ((0, 0, 5), (0, 1, 12), (1, 0, 15)):
    np.testing.assert_allclose(logits[b, n], every[b, last], atol=1e-5)


# ---- what they write -----------------------------------------------------------------------------


def test_a_causal_model_writes_on(causal):
  prompts = ['the river', 'the market holds the old stone', 'winter', 'the river']
  greedy = causal.generate(prompts, max_tokens=6)
  assert [x['tokens'] for x in greedy] == [6] * 4 or any(x['ended'] for x in greedy)
  (alone,) = causal.generate(prompts[2:3], max_tokens=6)
  assert alone['prediction'] == greedy[2]['prediction']
  assert alone['log_probability'] == pytest.approx(greedy[2]['log_probability'], abs=1e-4)
  drawn = [causal.generate(prompts, max_tokens=6, temperature=1.5, seed=s) for s in (1, 1, 2)]
  assert drawn[0] == drawn[1] != drawn[2]
  assert drawn[0][0]['prediction'] != drawn[0][3]['prediction']


def test_what_no_text_has_is_never_written(causal):
  reserved = causal.tokenizer.reserved
  never = causal.ask('generate').choice.never_ids
  assert set(never) == {reserved[name] for name in ('[PAD]', '[CLS]', '[MASK]')}


def test_a_hybrid_reads_masks_too_and_writes_as_a_causal_model(masked, runs):
  (answer,) = masked.generate(['the river'], max_tokens=5)
  assert answer['tokens'] == 5 and not answer['ended']
  found = trained.load(runs['causal_then_masked'][0])
  found.config.language_model.kind = 'hybrid'
  assert Model(found).ask('generate').is_causal and not masked.ask('generate').is_causal
  assert masked.default_task == 'fill-mask'


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  'option, value',
  [
    ('temperature', '1'),
    ('top_k', 5),
    ('max_tokens', 2.5),
    ('seed', 2**70),
  ],
)
def test_a_wrong_option_is_one_sentence(causal, option, value):
  with one_sentence(option):
    causal.ask('generate', **{option: value})


def test_a_causal_model_knows_nothing_at_a_mask_and_a_long_prompt_has_no_answer(causal):
  with one_sentence('or is causal, and so knows nothing of the text behind'):
    causal.fill_mask(['the [MASK]'])
  assert causal.default_task == 'generate' and 'fill_mask' not in dir(causal)
  (reply,) = causal.ask('generate').replies(['the river ' * 40])
  assert reply[0] is None and '81 tokens' in reply[1]


@pytest.mark.parametrize(
  'changes, said',
  [
    ('language_model.kind=masked', 'model.causal=false'),
    ('model.causal=false', 'model.causal=true'),
    ('language_model.kind=causal,hybrid@5 model.causal=false', 'hybrid'),
    ('language_model.kind=casual', 'casual'),
    ('corpus.rows=nsp', 'corpus.rows=nsp'),
    ('model.mixer=bag model.position_embeddings=none', 'later tokens'),
  ],
)
def test_what_does_not_go_together_is_one_sentence(changes, said):
  with one_sentence(said):
    load('configs/pretrain.py:runlocal,objective=causal', changes)


@pytest.mark.parametrize('steps', [500, 1600])
def test_a_kind_and_a_length_may_begin_at_a_share_of_the_steps(steps):
  ready = 'configs/ablations.py:objectives,runlocal,objective=causal_then_masked'
  lengths = f'steps={steps} corpus.lengths=16,64@.25 corpus.rows=full'
  begun = {(x.field, x.step) for x in c.timeline_of(load(ready, lengths)).changes()}
  assert {('language_model.kind', steps // 2), ('corpus.lengths', steps // 4)} <= begun


@pytest.mark.parametrize('share, metric', [(0, 'mlm'), (0.5, 'lm'), (1, 'lm')])
def test_a_hybrid_is_judged_by_a_kind_that_it_has(tokenizer, share, metric):  # noqa: F811
  fields = f'language_model.causal_share={share} model.causal={share == 1}'
  config = load('configs/pretrain.py:runlocal,objective=hybrid', fields)
  record = TASKS['language_model']
  assert record.main_metric(config) == metric
  assert metric in record.objective(config, tokenizer).metrics
