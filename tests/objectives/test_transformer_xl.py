"""Transformer-XL: its attention by formula, its memory, its rows, its runs."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import fields
from references import drawn
from refusal import one_sentence
from test_objectives import MASKING, MODEL, close
from toys import load

from bert_jax import config as c
from bert_jax import evaluate, models, tokenizers
from bert_jax.gradients import zeros
from bert_jax.models import recurrence
from bert_jax.models.relative import Relative
from bert_jax.models.tokens import Pattern, Tokens
from bert_jax.objectives.encode import encode
from bert_jax.objectives.language_model import LanguageModel
from bert_jax.objectives.losses import label_nats
from bert_jax.predict import Model, cpu_kernels
from bert_jax.rows.row_arrays import TOKENS
from bert_jax.tasks import TASKS
from bert_jax.tokenizers.byte_level import byte_tokenizer
from bert_jax.train import train
from bert_jax.workdir import contents

pytestmark = pytest.mark.usefixtures('steps_once')
D, H, d = 16, 2, 8
SIZES = {'hidden_size': D, 'num_attention_heads': H, 'num_hidden_layers': 2, 'memory_length': 64}
PLAIN = {'type_vocab_size': 0, 'attention_bias': False, 'mlm_head': 'none', 'embedding_norm': False}
XL = dataclasses.replace(MODEL, **SIZES, **PLAIN, position_embeddings='relative', causal=True)
T = 8


def stream(length, B=1, seed=0):
  """Tokens [B, length] of one text."""
  return np.random.default_rng(seed).integers(5, XL.vocab_size, (B, length)).astype(np.int32)


def row_of(ids_BT, real=None):
  """The batch of rows with these ids, of which the first `real` [B] are tokens."""
  real = np.full(len(ids_BT), ids_BT.shape[1]) if real is None else np.asarray(real)
  at_BT = np.tile(np.arange(ids_BT.shape[1], dtype=np.int32), (len(ids_BT), 1))
  segments_BT = (at_BT < real[:, None]).astype(np.int32)
  return dict(zip(TOKENS, (ids_BT, 0 * at_BT, at_BT, segments_BT)))


def objective(model=XL, length=T, **changes):
  return LanguageModel(model, length, 0.0, MASKING, **changes)


def encoder_params(model):
  return drawn(functools.partial(models.init_encoder, model))


# ---- attention -----------------------------------------------------------------------------------


def by_loop(params, q_TH, k_TH, later):
  """The scores of the paper, (q_i + u) k_j + (q_i + v) W r(i - j), one by one; queries are the last
  of the keys."""
  u, v = (np.asarray(params[x], float).reshape(H, d) for x in ('content_bias', 'position_bias'))
  W = np.asarray(params['distance']['kernel'], float)
  Tq, Tk = len(q_TH), len(k_TH)
  out = np.full((H, Tq, Tk), np.nan)
  for h, i, j in itertools.product(range(H), range(Tq), range(Tk)):
    distance = Tk - Tq + i - j
    if distance < 0 and not later:
      continue
    turns = [distance / 10000 ** (2 * n / D) for n in range(D // 2)]
    Wr = (np.concatenate([np.sin(turns), np.cos(turns)]) @ W).reshape(H, d)[h]
    content = (q_TH[i, h] + u[h]) @ k_TH[j, h]
    out[h, i, j] = (content + (q_TH[i, h] + v[h]) @ Wr) / np.sqrt(d)
  return out


@pytest.mark.parametrize('causal, keys', [(True, 12), (False, 5), (False, 12)])
def test_scores_are_the_four_terms(causal, keys):
  rng = np.random.default_rng(0)
  q, k = (rng.normal(size=(2, n, H, d)).astype(np.float32) for n in (5, keys))
  ids = [Tokens(jnp.ones((2, n), jnp.int32)) for n in (5, keys)]
  pattern, module = Pattern(*ids, causal=causal), Relative(XL, True)
  params = drawn(lambda key: module.init(key, q, k, pattern, None)['params'])
  assert {x.shape for x in jax.tree.leaves(params)} == {(D,), (D, D)}
  q_u, bias = jax.jit(lambda p: module.apply({'params': p}, q, k, pattern, None))(params)
  scores = np.einsum('bqhd,bkhd->bhqk', q_u, k) / np.sqrt(d) + np.asarray(bias)
  for b in range(2):
    expected = by_loop(params, q[b], k[b], later=not causal)
    known = ~np.isnan(expected)
    assert known.all() != causal
    close(scores[b][known], expected[known])


# ---- memory --------------------------------------------------------------------------------------


def read_on(model, params, ids_BN, size=T):
  """Hidden states [B, N, D] of a text that is read in rows of `size` tokens, and the memory."""
  B = len(ids_BN)
  memory = zeros(recurrence.empty(model, B, model.memory_length))
  step = jax.jit(lambda *of_row: recurrence.encode(model, params, *of_row, causal=True))
  out = []
  for at in range(0, ids_BN.shape[1], size):
    row = row_of(ids_BN[:, at : at + size])
    taken = jnp.full(B, row['input_ids'].shape[1], jnp.int32)
    hidden, memory = step(row, memory, taken)
    out.append(hidden)
  return jnp.concatenate(out, axis=1), memory


@pytest.mark.parametrize(
  'positions, scan, norm',
  [
    ('relative', True, 'pre'),
    ('rotary', True, 'post'),
    ('disentangled', False, 'post'),
    ('relative_bias', True, 'pre'),
    ('alibi', False, 'pre'),
  ],
)
def test_rows_with_a_memory_are_one_forward_pass_over_all(positions, scan, norm):
  """With a memory as long as the text, to 1e-5."""
  changes = dict(position_embeddings=positions, scan_layers=scan, norm_placement=norm)
  model = dataclasses.replace(XL, **changes, remat='full' if scan else 'none')
  params, ids = encoder_params(model), stream(40, B=2)
  whole = jax.jit(functools.partial(encode, model))(params, row_of(ids))
  rows, memory = read_on(model, params, ids)
  close(rows, whole)
  np.testing.assert_array_equal(memory['segment_ids'], [[0] * 24 + [1] * 40] * 2)


def test_a_short_memory_is_a_window_of_as_many_keys():
  """In one layer a memory of M and rows of one token see the last M + 1 tokens."""
  model = dataclasses.replace(XL, num_hidden_layers=1, memory_length=5)
  params, ids = encoder_params(model), stream(20)
  rows, _ = read_on(model, params, ids, size=1)
  windowed = dataclasses.replace(model, attention_window=6)
  whole = jax.jit(functools.partial(encode, windowed))(params, row_of(ids))
  close(rows, whole)


def test_the_objective_reads_a_corpus_as_one_text():
  """Rows of a corpus overlap by a token and end with their documents. Read with a memory they give
  the loss of one causal pass over what they follow each other as, to 1e-5."""
  rng, lanes = np.random.default_rng(1), 2
  model = dataclasses.replace(XL, memory_length=60, causal=False)  # the objective is
  xl = objective(model)
  params = drawn(xl.init)
  memory, losses, texts = zeros(xl.carry(lanes)), [], [[], []]
  targets = [[], []]
  run = jax.jit(lambda batch, memory: xl.terms(params, batch, None, False, memory))
  for sizes in ((8, 8), (8, 3), (5, 8), (8, 0), (1, 8), (8, 8)):  # 0: an empty row
    ids = rng.integers(5, XL.vocab_size, (lanes, T)).astype(np.int32)
    for lane, n in enumerate(sizes):
      texts[lane] += ids[lane, : max(0, n - 1)].tolist()
      targets[lane] += ids[lane, 1:n].tolist()
    terms, memory = run(row_of(ids, sizes), memory)
    losses.append(terms['lm'])
  total, weight = sum(x.total for x in losses), sum(x.weight for x in losses)
  assert weight == sum(map(len, targets))
  plain, held = dataclasses.replace(XL, memory_length=0), [len(text) for text in texts]
  ids, labels = (np.array([x + [0] * (max(held) - len(x)) for x in y]) for y in (texts, targets))

  @jax.jit
  def whole(params):
    hidden = encode(plain, params['encoder'], row_of(ids, held))
    return label_nats(models.word_logits(model, params, hidden), labels)[0]

  nats = whole(params)
  expected = sum(nats[lane, :n].sum() for lane, n in enumerate(held))
  np.testing.assert_allclose(total, expected, rtol=1e-5)
  assert memory['segment_ids'].sum(axis=1).tolist() == [min(60, n) for n in held]


def test_a_longer_memory_in_evaluations():
  xl = objective(eval_memory=100)
  assert {x.shape[1] for x in jax.tree.leaves(xl.carry(2))} == {64}
  assert {x.shape[1] for x in jax.tree.leaves(xl.eval_carry(2))} == {100}
  half = objective(dataclasses.replace(XL, dtype='bfloat16')).carry(2)
  assert half['states']['layer_0']['attention']['states'].dtype == jnp.bfloat16


# ---- bytes ---------------------------------------------------------------------------------------


def test_bytes_are_a_vocabulary(tmp_path):
  tokenizer = byte_tokenizer()
  assert tokenizer.vocab_size == 261 and tokenizer.special_ids == (0, 1, 2, 3, 4)
  text = '  Bytes of  "ü" 漢\t[MASK] \x00 \n '
  word, ids = tokenizer.ids_batch(['word', text])
  assert len(ids) == len(text.encode()) and ids.min() > 4
  assert tokenizer.decode([*word, *ids, *ids[:1]]) == f'word{text} ', 'blanks are bytes, too'
  again = tokenizers.load(tokenizer.save(tmp_path))
  np.testing.assert_array_equal(again.ids_batch([text])[0], ids)


# ---- runs ----------------------------------------------------------------------------------------


SMALL = """
  model.hidden_size=32 model.intermediate_size=64 model.num_hidden_layers=1 model.memory_length=48
  model.hidden_dropout_prob=0.1 batch_size=8 data.seq_length=32 eval.every=0 eval.batches=0
  log.every=1 log.tensorboard=false"""
# It learns a little, and saves at steps 20 and 24.
LEARNS = """
  optimizer.learning_rate=5e-3 optimizer.beta2=0.95 model.initializer_range=0.1 steps=24
  checkpoint.every=20 optimizer.skip_nonfinite=1"""


def small(corpus_file, *overrides):
  """On the bytes of 40 documents of some hundred each: a layer, 32 wide, batches of 8 x 32."""
  given = fields(f'data.train={corpus_file} corpus.eval_share=0.2', SMALL, *overrides)
  return c.load('configs/transformer_xl.py:runlocal', given)


@pytest.fixture(scope='module')
def trained(corpus_file, tmp_path_factory):
  """(workdir, State, metrics) of a run that has learned a little. To be read."""
  workdir = tmp_path_factory.mktemp('xl') / 'run'
  return workdir, *train(small(corpus_file, LEARNS), workdir)


@pytest.fixture(scope='module')
def model(trained):
  return Model(trained[0])


def test_it_is_evaluated_with_a_longer_memory_and_without(trained):
  workdir, _, metrics = trained
  longer, _ = evaluate.evaluate(workdir, fields('language_model.eval_memory=100'))
  none, _ = evaluate.evaluate(workdir, fields('model.memory_length=0'))
  assert len({x['lm'] for x in (metrics, longer, none)}) == 3
  assert abs(longer['lm'] - metrics['lm']) < 0.2


def test_it_is_fine_tuned_on_whole_rows_of_2048_tokens(trained, tmp_path):
  """Without a memory; its answer depends on the first word of a text of 2,000 bytes."""
  rng = np.random.default_rng(0)
  rows = [
    f'{"new" if i % 2 else "old"} {" ".join(map(str, rng.integers(0, 9, 990)))}' for i in range(6)
  ]
  path = tmp_path / 'a.tsv'
  path.write_text('text\tlabel\n' + ''.join(f'{x}\t{i % 2}\n' for i, x in enumerate(rows)))
  given = f"""init_from={trained[0]} data.train={path} data.eval={path} table.text_column=text
    data.seq_length=2048 data.examples_per_row=1 batch_size=2 epochs=0 steps=2
    model.position_embeddings=relative log.tensorboard=false"""
  train(load('configs/finetune.py:task=table', given), tmp_path / 'run')
  tuned = Model(tmp_path / 'run')
  assert tuned.config.model.memory_length == 0 and tuned.config.model.causal
  text = rows[1]
  answers = tuned.classify([text, f'old {text[4:]}'])
  assert len(tuned.tokenizer.ids_batch([text])[0]) > 1900 and not any(
    'cut' in x for x in tuned.counts
  )
  assert answers[0] != answers[1]


def test_bits_are_those_of_all_bytes(trained):
  """The metric against the loss, summed over the held-out text, and its length."""
  workdir, _, metrics = trained
  config, tokenizer = contents.read_config(workdir), tokenizers.load_folder(workdir)
  rows = TASKS['language_model'].sources(config, tokenizer)['eval']
  text = rows.sample  # all of it
  _, size = text.sizes.sum(axis=0)
  targets = (rows.gather(range(len(rows)))['segment_ids'] > 0).sum() - len(rows)
  assert targets == len(text) + len(text.sizes)
  bits = metrics['lm'] * targets / np.log(2) / size
  assert metrics['bits_per_byte'] == pytest.approx(bits, rel=1e-6)
  assert metrics['bits_per_byte'] == metrics['bits_per_character']  # ASCII


def test_what_it_writes_is_what_it_finds_likeliest(model):
  """Each token that is written with a cache, against a full forward pass."""
  assert model.limit == 32 + 48
  prompts, tokenizer = ['the river', 'a'], model.tokenizer
  weights = model.weights
  logits = jax.jit(lambda batch: model.mlm_logits(weights, model.hidden(weights, batch)))
  for prompt, answer in zip(prompts, model.generate(prompts, max_tokens=10)):
    ids = [tokenizer.cls_id, *tokenizer.ids_batch([prompt])[0]]
    for _ in range(answer['tokens']):
      row = np.zeros((1, 32), np.int32)
      row[0, : len(ids)] = ids
      with cpu_kernels.dense(model._turned):
        ids.append(int(jnp.argmax(logits(row_of(row, [len(ids)]))[0, len(ids) - 1])))
    assert tokenizer.decode(ids) == prompt + answer['prediction']


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  'changes, sentence',
  [
    ('optimizer.accumulation=2', 'optimizer.accumulation'),
    ('data.examples_per_row=4', 'set data.examples_per_row=1'),
    ('corpus.rows=full', 'corpus.rows'),
    ('model.position_embeddings=learned', 'learned'),
    ('model.memory_length=0 language_model.eval_memory=9', 'memory'),
  ],
)
def test_what_does_not_go_with_a_memory_is_a_sentence(changes, sentence, corpus_file, tmp_path):
  with one_sentence(sentence):
    train(small(corpus_file, changes), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
