"""Language models of all kinds: their losses by formula, rows, bits, runs, and what they write."""

import dataclasses
import functools
import math
import re
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
from bert_jax.rows.row_arrays import TOKENS
from bert_jax.run import initialization, warm_start
from bert_jax.tasks import TASKS
from bert_jax.tasks.pretraining.generate import Generate
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
  of_rows = lambda x: objective.prepare(x, jax.random.key(0), in_stage(0))['kind']
  assert np.mean(jax.jit(of_rows)(rows(2000)) == 0) == pytest.approx(0.25, abs=0.03)
  is_masked, run = np.array([0, 1, 1, 0, 1, 0]), terms_of(objective, params)
  prepare = jax.jit(lambda batch: objective.prepare(batch, jax.random.key(1), in_stage(0)))
  prepared = prepare(batch)
  same = {name: prepared[name] for name in ('segment_ids', 'masked_weights')}
  mixed = run(batch, {'kind': jnp.asarray(is_masked), **same})
  each = [run(batch, {'kind': jnp.full(6, k), **same}) for k in (0, 1)]
  for k, (kind, name) in enumerate((('causal', 'lm'), ('masked', 'mlm'))):
    np.testing.assert_allclose(each[k][name].value, alone(kind)(batch)[name].value, rtol=1e-5)
    assert each[1 - k][name].weight == 0 and each[1 - k][name].total == 0
    # The loss of the rows of this kind, without the weights of the others.
    counted = jnp.asarray(is_masked == k)[:, None]
    few = {name: x * counted for name, x in same.items()}
    few = run(batch, {'kind': jnp.full(6, k), **few})
    np.testing.assert_allclose(mixed[name].total, few[name].total, rtol=1e-5)
    np.testing.assert_allclose(mixed[name].weight, few[name].weight)


def test_kinds_change_by_step():
  objective = language_model('causal,masked,diffusion')
  params, batch = drawn(objective.init), rows()
  kinds = 'language_model.kind=causal,masked@5,diffusion@9 model.causal=false steps=12'
  timeline = c.timeline_of(load('configs/pretrain.py:runlocal,objective=causal', kinds))
  run, names = terms_of(objective, params), {'causal': 'lm', 'masked': 'mlm', 'diffusion': 'bound'}
  drawn_kinds = [x for x in names if x != 'causal']
  expected = {x: alone(x)(batch)[names[x]].value for x in drawn_kinds}
  kind_at = {0: 'causal', 4: 'causal', 5: 'masked', 8: 'masked', 9: 'diffusion'}
  for step, kind in kind_at.items():
    stage = timeline.at(jnp.int32(step)).stage('language_model.kind')
    terms = run(batch, stage=stage)
    assert {x for x in names.values() if terms[x].weight} == {names[kind]}
    if kind in expected:
      np.testing.assert_allclose(terms[names[kind]].value, expected[kind], rtol=1e-5)

  @jax.jit
  def evaluated(batch):
    batch = objective.prepare(batch, jax.random.key(1), EVALUATION)
    return objective.terms(params, batch, None, False)[0], batch['noise']

  # An evaluation has all of them, on all rows. Hits are counted where a token is asked for.
  terms, noise_BT = evaluated(batch)
  assert terms['lm_accuracy'].weight == terms['lm'].weight < batch['input_ids'].size
  assert 0 < terms['bound_accuracy'].weight == np.sum(noise_BT > 0) < terms['bound'].weight
  assert {'lm', 'mlm', 'bound'} < terms.keys() and all(terms[x].weight for x in terms)


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


def test_logits_of_all_tokens_are_never_there_at_once():
  model = dataclasses.replace(MODEL, vocab_size=977, max_position_embeddings=128)
  objective = LanguageModel(model, 128, 0.0, MASKING)
  ids = jnp.ones((2, 128), jnp.int32)
  batch = dict.fromkeys(('input_ids', 'token_type_ids', 'position_ids', 'segment_ids'), ids)
  params = jax.eval_shape(objective.init, jax.random.key(0))
  loss = lambda params: objective.terms(params, batch, jax.random.key(0), True)[0]['lm'].total
  compiled = jax.jit(jax.grad(loss)).lower(params).compile().as_text()
  shapes = {tuple(map(int, x.split(','))) for x in re.findall(r'f32\[([\d,]+)\]', compiled)}
  of_words = [math.prod(x) for x in shapes if 977 in x]
  assert of_words and max(of_words) <= 64 * 977


# ---- diffusion -----------------------------------------------------------------------------------


def test_the_bound_of_a_model_blind_to_its_input_is_the_unigram_entropy():
  """Its layers mix nothing and its words are all alike, so it predicts the bias of the head."""
  tiny = {'hidden_size': 4, 'intermediate_size': 4, 'vocab_size': 7, 'max_position_embeddings': 64}
  tiny |= {'mixer': 'bag', 'position_embeddings': 'none', 'tie_word_embeddings': False}
  blind = dataclasses.replace(MODEL, **tiny, mlm_head='none')
  objective = LanguageModel(blind, 64, 0.0, MASKING, stages=('diffusion',))
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  shares = np.array([0.9, 0.1])
  params['mlm']['bias'] = jnp.array([-1e9] * 5 + np.log(shares).tolist())
  B, batches = 4096, 5
  ids = 5 + (np.arange(B * 64) % 10 == 0).astype(np.int32).reshape(B, 64)
  batch = {x: jnp.ones((B, 64), jnp.int32) for x in ('position_ids', 'segment_ids')}
  batch |= {'input_ids': jnp.asarray(ids), 'token_type_ids': jnp.zeros((B, 64), jnp.int32)}

  @jax.jit
  def total(key):
    def one(number):
      prepared = objective.prepare(batch, jax.random.fold_in(key, number), EVALUATION)
      return objective.terms(params, prepared, None, False)[0]['bound']

    sums = jax.lax.map(one, jnp.arange(batches))
    return sums.total.sum() / sums.weight.sum()

  entropy = -(shares * np.log(shares)).sum()
  assert abs(total(jax.random.key(0)) - entropy) < 3e-3


def test_tokens_are_masked_at_a_rate_and_weigh_its_inverse():
  objective, many = language_model('diffusion'), rows(4000)
  prepare = lambda batch, moment: objective.prepare(batch, jax.random.key(0), moment)
  run = lambda batch, moment: jax.jit(lambda batch: prepare(batch, moment))(batch)
  for moment in (in_stage(0), EVALUATION):
    out = run(many, moment)
    noise, hidden = np.asarray(out['noise']), np.asarray(out['noised_ids'] == 4)
    np.testing.assert_array_equal(hidden, noise > 0)
    assert not hidden[np.asarray(many['segment_ids']) == 0].any()
    some = hidden.any(axis=1)
    rates = 1 / noise.max(axis=1, where=noise > 0, initial=0)[some]
    of_tokens = np.where(noise > 0, noise, noise.max(axis=1, keepdims=True))[some]
    assert (of_tokens * rates[:, None]).std() < 1e-6  # one rate in each row
    assert 0.97 < noise[:, :13].mean() < 1.03  # each token is expected to weigh 1
    at_half = some.nonzero()[0][(rates > 0.4) & (rates < 0.6)]
    np.testing.assert_allclose(hidden[at_half[:-1], :13].mean(), 0.5, atol=0.02)
  # In an evaluation the rates are spread evenly; where they are high, every row has a mask.
  rates = np.sort(1 / noise[noise.any(axis=1)].max(axis=1))
  between = np.diff(rates[rates > 0.7])
  assert len(between) > 1000
  np.testing.assert_allclose(between, between.mean(), atol=1e-5)
  # Special pieces are never masked.
  special = {name: x.at[:, 2].set(2) if name == 'input_ids' else x for name, x in many.items()}
  assert not (np.asarray(run(special, in_stage(0))['noise'])[:, 2]).any()
  # Of a batch that is partly empty, over its rows.
  few = {name: x.at[1000:].set(0) for name, x in many.items()}
  noise = np.asarray(run(few, EVALUATION)['noise'])
  rates = 1 / noise[noise.any(axis=1)].max(axis=1)
  assert rates.max() > 0.99 and not noise[1000:].any()


# ---- rows and bits -------------------------------------------------------------------------------


def test_every_token_is_the_next_one_of_another_once(text, tokenizer):  # noqa: F811
  source = Rows(text, tokenizer, Cutting('lm', seq_length=32, examples_per_row=8))
  targets, begins, ends = Counter(), 0, 0
  for row in (source[i] for i in range(len(source))):
    ids, segments = row['input_ids'], row['segment_ids']
    for segment in range(1, segments.max() + 1):
      part = ids[segments == segment]
      assert len(part) >= 2 and not np.isin(part[1:], [tokenizer.cls_id]).any()
      assert not np.isin(part[:-1], [tokenizer.sep_id]).any()
      begins, ends = begins + (part[0] == tokenizer.cls_id), ends + (part[-1] == tokenizer.sep_id)
      targets.update(part[1:].tolist())
      np.testing.assert_array_equal(row['position_ids'][segments == segment], range(len(part)))
  documents = len(text.documents) - 1
  assert begins == ends == documents == targets.pop(tokenizer.sep_id)
  assert targets == Counter(text.piece(0, len(text))[0].tolist())
  rows = source.gather(range(len(source)))['segment_ids']
  assert source.planned(0).lengths().sum() == (rows > 0).sum()


def test_every_language_has_a_unigram_line_of_each_loss(tmp_path, tokenizer):  # noqa: F811
  for name in ('en', 'de'):
    (tmp_path / name).write_text('w1 w2 w3\nw4 w1\n\nw5 w6\n\n' * 20)
  data = f'data.train=en={tmp_path}/en,de={tmp_path}/de corpus.eval_share=0.3'
  config = load('configs/pretrain.py:runlocal,objective=diffusion', data)
  record = TASKS['language_model']
  config = record.resolve(config)
  for source in record.sources(config, tokenizer).values():
    levels = source.baselines
    assert levels['bound_en'] == levels['mlm_en'] != levels['lm_en']
    named = {x for x in record.objective(config, tokenizer).metrics if x.startswith('bound_')}
    assert named <= levels.keys()


# ---- runs ----------------------------------------------------------------------------------------


SMALL = """
  steps=12 model.dtype=float32 data.examples_per_row=4
  masking.max_predictions_per_seq=0"""


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
  assert alone['generated'] == greedy[2]['generated']
  assert alone['log_probability'] == pytest.approx(greedy[2]['log_probability'], abs=1e-4)
  # Scores are those of the real perplexity.
  whole = f'{prompts[0]} {greedy[0]["generated"]}'
  (both, _), (before, _) = causal.ask('perplexity').replies([whole, prompts[0]])
  if both['tokens'] - before['tokens'] == 6:
    difference = both['log_probability'] - before['log_probability']
    assert difference == pytest.approx(greedy[0]['log_probability'], abs=1e-3)
  drawn = [causal.generate(prompts, max_tokens=6, temperature=1.5, seed=s) for s in (1, 1, 2)]
  assert drawn[0] == drawn[1] != drawn[2]
  assert drawn[0][0]['generated'] != drawn[0][3]['generated']


@pytest.mark.parametrize('beams', [1, 2])
def test_what_no_text_has_is_never_written(causal, monkeypatch, beams):
  ask, reserved = causal.ask('generate', max_tokens=6, beams=beams), causal.tokenizer.reserved
  assert set(ask.choice.never_ids) == {reserved[name] for name in ('[PAD]', '[CLS]', '[MASK]')}
  written, answer = [], Generate._answer

  def note(self, prompt, ids, new, score, ended):
    written.append(set(new.tolist()))
    return answer(self, prompt, ids, new, score, ended)

  monkeypatch.setattr(Generate, '_answer', note)
  ask.replies(['the river'])
  ask = Generate(causal, max_tokens=6, beams=beams)
  ask.choice = dataclasses.replace(ask.choice, never_ids=tuple(written[0]))
  ask.replies(['the river'])
  assert written[1] and not written[0] & written[1]


def test_masks_are_filled_one_by_one(masked, runs):
  (answer,) = masked.generate(['the river'], max_tokens=5)
  assert answer['tokens'] == 5 and not answer['ended']
  words, model = masked.tokenizer, masked.objective.model
  ids = [*words.begin_ids, *words.ids_batch(['the river'])[0]]
  # From left to right, beside passes over rows with masks.
  row, expected = np.array([[*ids, *[words.mask_id] * 5]]), []
  batch = dict(zip(TOKENS, (row, 0 * row, np.arange(row.shape[1])[None], 1 + 0 * row)))

  @jax.jit
  def run(params, batch):
    return models.word_logits(model, params, encode(model, params['encoder'], batch))

  for at in range(len(ids), row.shape[1]):
    logits = np.array(run(masked.params, batch))[0, at]
    logits[list(words.special_ids)] = -np.inf
    expected.append(int(logits.argmax()))
    row[0, at] = expected[-1]
  prompt = words.decode(ids)
  assert answer['generated'] == words.decode([*ids, *expected]).removeprefix(prompt)
  # A hybrid reads masks, too, and writes as a causal model.
  found = trained.load(runs['causal_then_masked'][0])
  found.config.language_model.kind = 'hybrid'
  assert Model(found).ask('generate').is_causal and not masked.ask('generate').is_causal


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  'options, sentence',
  [
    (dict(beams=0), 'beams is 0'),
    (dict(temperature=-0.5), 'temperature is -0.5'),
    (dict(top_k=5), 'set temperature above 0'),
    (dict(top_p=0.0, temperature=1.0), 'top_p is 0.0'),
    (dict(max_tokens=0), 'max_tokens is 0'),
    (dict(repetition_penalty=0.0), 'repetition_penalty is 0.0'),
    (dict(beams=4, temperature=1.0), 'which draws nothing'),
    (dict(stop=('zq',)), 'not in the vocabulary'),
    (dict(stop=('river market',)), 'name one piece'),
    (dict(max_tokens=2.5), 'max_tokens is 2.5; give a whole number'),
    (dict(temperature='1'), "temperature is '1'; give a number"),
    (dict(seed=2**70, temperature=1.0), 'seed is 1180'),
    (dict(length_penalty=2.0), 'which only a beam search reads'),
    (dict(beams=2, length_penalty=float('nan')), 'length_penalty is nan'),
  ],
)
def test_a_wrong_option_is_one_sentence(causal, options, sentence):
  with one_sentence(sentence):
    causal.ask('generate', **options)


def test_what_a_model_cannot_do_is_one_sentence(causal, masked):
  with one_sentence('this model is causal: at a [MASK] it knows nothing'):
    causal.fill_mask(['the [MASK]'])
  assert masked.fill_mask(['the [MASK]'])[0]
  long = 'the river ' * 40
  (reply,) = causal.ask('generate').replies([long])
  assert reply[0] is None and 'the prompt is 81 tokens long, and this model reads 32' in reply[1]
  (reply,) = masked.ask('generate', max_tokens=31).replies(['the river'])
  assert 'with its 31 masks; cut it' in reply[1]
  for options, said in (
    ({'beams': 2}, 'a masked model fills all its masks'),
    ({'stop': ('river',)}, 'a masked model fills all its masks'),
  ):
    with one_sentence(said):
      masked.ask('generate', **options)


HYBRID = 'language_model.kind=hybrid model.causal=false'


@pytest.mark.parametrize(
  'changes, sentence',
  [
    ('language_model.kind=masked', 'set model.causal=false.'),
    ('model.causal=false', 'set model.causal=true.'),
    ('language_model.kind=causal,hybrid@5 model.causal=false', 'a hybrid does not change'),
    (f'{HYBRID} language_model.causal_share=1', 'ends with a model that is causal'),
    ('language_model.kind=casual', "is not understood at 'casual'; use one of"),
    ('language_model.kind=causal,masked@0 model.causal=false', 'does not begin at step 0 and'),
    ('corpus.rows=nsp', 'corpus.rows=nsp makes pairs'),
    ('loss.nsp_weight=1 corpus.rows=sop', 'language_model has no such term'),
    ('model.mixer=bag model.position_embeddings=none', 'reads later tokens too'),
  ],
)
def test_what_does_not_go_together_is_one_sentence(changes, sentence):
  with one_sentence(sentence):
    load('configs/pretrain.py:runlocal,objective=causal', changes)


def test_a_kind_a_policy_and_a_length_may_begin_at_a_share_of_the_steps():
  ready = 'configs/ablations.py:objectives,runlocal,objective=causal_then_masked'
  ernie = 'configs/pretrain.py:runlocal,arch=ernie'
  for steps in (500, 1600):
    lengths = f'steps={steps} corpus.lengths=16,64@.25 corpus.rows=full'
    changes = lambda spec, *more: c.timeline_of(load(spec, *more)).changes()
    begun = {(x.field, x.step) for x in changes(ready, lengths)}
    assert {('language_model.kind', steps // 2), ('corpus.lengths', steps // 4)} <= begun
    policies = [x.step for x in changes(ernie, f'steps={steps}') if x.field == 'masking.policy']
    assert policies == [round(steps / 3), round(2 * steps / 3)]
  with one_sentence('has a share of the steps, and steps is 0; set steps, and'):
    load(ready, 'steps=0 epochs=2.0')


@pytest.mark.parametrize('share, metric', [(0, 'mlm'), (0.5, 'lm'), (1, 'lm')])
def test_a_hybrid_is_judged_by_a_kind_that_it_has(tokenizer, share, metric):  # noqa: F811
  fields = f'language_model.causal_share={share} model.causal={share == 1}'
  config = load('configs/pretrain.py:runlocal,objective=hybrid', fields)
  record = TASKS['language_model']
  assert record.main_metric(config) == metric
  assert metric in record.objective(config, tokenizer).metrics


@pytest.mark.parametrize('size, count', [('gpt1', 116_534_784), ('gpt2', 124_439_808)])
def test_shapes_are_the_published_ones(size, count):
  """GPT-1: 116,534,784 parameters, GPT-2's smallest: 124,439,808 (transformers counts the same)."""
  config = load(f'configs/causal_lm.py:size={size}', 'model.vocab_multiple=1')
  model = models.ModelConfig(**config.model)
  shapes = jax.eval_shape(LanguageModel(model, 8, 0.0, MASKING).init, jax.random.key(0))
  assert models.count_parameters(shapes) == count and 'mlm' not in shapes


def test_the_causal_loss_of_each_language_is_that_of_its_rows():
  objective = language_model('causal', languages=('a', 'b'))
  batch = rows() | {'language': jnp.array([0, 1, 1, 0, 1, 1])}
  params = drawn(objective.init)
  run = jax.jit(lambda batch: objective.terms(params, batch, None, False)[0])
  both, is_b = run(batch), (batch['language'] == 1)[:, None]
  only = run(batch | {'segment_ids': batch['segment_ids'] * is_b})
  assert both['lm_b'].total == pytest.approx(float(only['lm'].total), rel=1e-5)
  assert both['lm_b'].weight == only['lm'].weight > both['lm_a'].weight > 0
  assert both['lm_a'].weight + both['lm_b'].weight == both['lm'].weight
  assert {'lm_a', 'lm_b'} < {*objective.metrics}
