"""Decoding: causal attention and its cache, greedy choice, sampling, beam search."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import drawn, log_softmax
from scipy.stats import chisquare
from test_models import model, weights

from bert_jax import models
from bert_jax.models import encoder
from bert_jax.models.decoding import sampling
from bert_jax.models.decoding.beam_search import beam_search
from bert_jax.models.decoding.sampling import NONE, Choice
from bert_jax.models.positions import POSITIONS

KINDS = {
  'learned': dict(position_embeddings='learned'),
  'rotary': dict(position_embeddings='rotary', norm_placement='pre'),
  'alibi': dict(position_embeddings='alibi', feed_forward='glu', num_key_value_heads=1),
  'disentangled': dict(position_embeddings='disentangled', max_relative_positions=5),
  'relative_bias': dict(position_embeddings='relative_bias', max_relative_positions=7)
  | dict(position_buckets=6),
  'window': dict(position_embeddings='rotary', attention_window=3),
}
# Other positions that enter the attention, a fork's too.
MORE = [x for x, kind in POSITIONS.items() if any(kind[1:]) and x not in KINDS]
KINDS |= {x: dict(position_embeddings=x) for x in MORE}
KINDS = {kind: fields | dict(num_hidden_layers=1) for kind, fields in KINDS.items()}
KINDS['windows'] = dict(
  attention_window=3, global_attention_every=2, scan_layers=True, num_key_value_heads=1
)
KINDS['shared'] = dict(share_layers=True, mlm_head='none')


@functools.cache
def causal(kind):
  """(model, its parameters)"""
  config = model(causal=True, **KINDS[kind])
  encoder = weights(config)
  head = drawn(models.MaskedLMHead(config).init, jnp.zeros((1, 1, 24)), models.word_table(encoder))
  return config, {'encoder': encoder, 'mlm': head['params']}


@functools.partial(jax.jit, static_argnums=0)
def whole(config, params, ids):
  """Logits [B, T, V] of rows that are read as a whole; nothing depends on what follows a text."""
  at = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
  arrays = ids, 0 * ids, at, jnp.ones_like(ids)
  hidden = models.Encoder(config).apply({'params': params['encoder']}, *arrays)
  return models.word_logits(config, params, hidden)


def padded(texts, length):
  ids = np.zeros((len(texts), length), np.int32)
  for row, text in zip(ids, texts):
    row[: len(text)] = text
  return ids


@pytest.mark.parametrize(
  'kind',
  [
    'alibi',
    'disentangled',
    'relative_bias',
    pytest.param('window', marks=pytest.mark.slow),
    'windows',
    'shared',
    *MORE,
  ],
)  # others: see below
def test_decoding_with_a_cache_is_the_full_forward(kind):
  """Prompts of three lengths in a batch, and seven tokens after each: the logits of every step."""
  config, params = causal(kind)
  lengths, more, C = np.array([5, 1, 8]), 7, 16
  ids = np.random.default_rng(0).integers(5, 99, (3, C)).astype(np.int32)
  expected = np.asarray(whole(config, params, ids))
  prefill, step = encoder.one_token_steps(config, params)
  prompts = np.where(np.arange(8) < lengths[:, None], ids[:, :8], 0)
  logits, cache = jax.jit(prefill, static_argnums=2)(prompts, lengths, C)
  step, rows = jax.jit(step), np.arange(3)
  for n in range(more):
    np.testing.assert_allclose(logits, expected[rows, lengths - 1 + n], atol=1e-5)
    logits, cache = step(cache, ids[rows, lengths + n], lengths + n)
  assert len({x.shape for x in jax.tree.leaves(cache)}) == 1
  for x in jax.tree.leaves(cache):
    assert x.shape[0] == 3 and x.shape[-3:-1] == (C, config.key_value_heads)


def naive(config, params, prompt, tokens):
  """The greedy continuation of one prompt, every token from the whole text anew."""
  ids = list(prompt)
  for _ in range(tokens):
    logits = whole(config, params, padded([ids], 24))
    ids.append(int(np.argmax(logits[0, len(ids) - 1])))
  return ids[len(prompt) :]


@functools.cache
def machine(kind, choice, tokens, C):
  """Compiled (begin, advance) of a model."""
  config, params = causal(kind)
  prefill, step = encoder.one_token_steps(config, params)

  def begin(ids, lengths, keys):
    logits, cache = prefill(ids, lengths, C)
    return sampling.begin(cache, logits, lengths, keys, choice, max_tokens=tokens, length=C)

  advance = lambda state, upto: sampling.advance(step, state, choice, length=C, upto=upto)
  return jax.jit(begin), jax.jit(advance)


def decoded(kind, prompts, choice, tokens=8, C=24, seed=0, upto=()):
  begin, advance = machine(kind, choice, tokens, C)
  lengths = np.array([len(p) for p in prompts])
  keys = jax.random.split(jax.random.key(seed), 16)[: len(prompts)]
  state = begin(padded(prompts, max(lengths)), lengths, keys)
  for n in upto or (tokens,):
    state = advance(state, n)
  return state


def texts(ids):
  return [[int(i) for i in row if i != NONE] for row in np.asarray(ids)]


PROMPTS = [[7, 8, 9, 10, 11], [12], [30, 31, 32]]


def test_greedy_decoding_is_the_naive_one_and_ends_at_a_stop_token():
  expected = [naive(*causal('learned'), prompt, 8) for prompt in PROMPTS]
  state = decoded('learned', PROMPTS, Choice())
  assert texts(state.ids) == expected
  stop = expected[0][3]
  cut = [x[: x.index(stop) + 1] if stop in x else x for x in expected]
  ended = decoded('learned', PROMPTS, Choice(stop_ids=(stop,)))
  assert texts(ended.ids) == cut and cut != expected
  scores = zip(PROMPTS * 2, expected + cut, [*state.scores, *ended.scores], strict=True)
  for prompt, made, score in scores:
    logs = log_softmax(np.asarray(whole(*causal('learned'), padded([prompt + made], 24)))[0])
    total = logs[len(prompt) - 1 + np.arange(len(made)), made].sum()
    np.testing.assert_allclose(score, total, rtol=1e-5)
  # As many tokens at once as one likes: streamed, it is the same.
  streamed = decoded('learned', PROMPTS, Choice(), upto=(2, 3, 4, 5, 8))
  assert texts(streamed.ids) == expected


def test_a_sequence_ends_where_the_model_has_no_more_places():
  state = decoded('learned', PROMPTS, Choice(), tokens=8, C=8)
  # The last token needs no place, since nothing is read after it.
  assert [len(x) for x in texts(state.ids)] == [4, 8, 6]
  longer = decoded('learned', PROMPTS, Choice(), tokens=8)
  assert [x[:n] for x, n in zip(texts(longer.ids), (4, 8, 6))] == texts(state.ids)


def test_a_draw_does_not_depend_on_the_rest_of_the_batch():
  choice = Choice(temperature=1.0)
  both = texts(decoded('rotary', PROMPTS, choice).ids)
  others = [PROMPTS[0], [40, 41], [50]]
  assert texts(decoded('rotary', others, choice).ids)[0] == both[0]
  assert texts(decoded('rotary', PROMPTS, choice, seed=1).ids) != both
  assert texts(decoded('rotary', PROMPTS, choice, upto=range(1, 9)).ids) == both


def first_tokens(choice, logits, rows=20_000):
  """How often each token is drawn first."""
  V = len(logits)
  keys = jax.random.split(jax.random.key(5), rows)
  many = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (rows, V))
  state = sampling.begin({}, many, jnp.ones(rows), keys, choice, max_tokens=1, length=9)
  return np.bincount(np.asarray(state.ids[:, 0]), minlength=V)


def is_drawn(counts, logits):
  """Are these the numbers of draws from a softmax?"""
  shares = np.exp(logits)
  return chisquare(counts, counts.sum() * shares / shares.sum()).pvalue > 1e-3


LOGITS = np.array([1.0, -0.5, 2.0, 0.3, 1.7, -1.2, 0.0, 0.9])


@pytest.mark.parametrize(
  'options, kept',
  [
    (dict(top_k=3), [2, 4, 0]),
    (dict(top_k=99), range(8)),
    (dict(top_p=0.61), [2, 4, 0]),  # probabilities in order: 0.346, 0.257, 0.127, 0.115, 0.063..
    (dict(top_p=1e-6), [2]),
    (dict(top_k=4, top_p=0.73), [2, 4, 0]),  # of what top_k leaves: 0.409, 0.303, 0.151, 0.136
    (dict(temperature=0.6), range(8)),
  ],
)
def test_only_the_likeliest_tokens_are_drawn_and_as_often_as_their_shares(options, kept):
  options = dict(temperature=1.0) | options
  counts = first_tokens(Choice(**options), LOGITS)
  assert set(np.flatnonzero(counts)) == set(kept)
  if len(kept) > 1:
    assert is_drawn(counts[sorted(kept)], LOGITS[sorted(kept)] / options['temperature'])
    assert not is_drawn(counts[sorted(kept)], LOGITS[sorted(kept)] / 0.66)  # and the test can tell


def test_no_more_tokens_are_kept_than_add_up_to_top_p():
  kept = Choice(temperature=1.0, top_p=0.5).kept(jnp.zeros((1, 4)))
  assert np.isfinite(kept).sum() == 2


V, N = 4, 5  # of a toy whose logits follow from all tokens before
TABLE = np.random.default_rng(3).normal(size=(V ** (N + 1), V)).astype(np.float32) * 1.5


def toy_step(cache, ids_B, places_B):
  history = cache['history'] * V + ids_B
  return jnp.asarray(TABLE)[history], {'history': history}


STARTS, ONES = np.array([1, 2, 3]), np.ones(3, np.int32)


@functools.cache
def toy_machine(beams, max_tokens, length, end, early):
  def run(starts, places, penalty):
    options = dict(max_tokens=max_tokens, length=length, length_penalty=penalty, end_id=end)
    arrays = {'history': starts}, jnp.asarray(TABLE)[starts], places
    return beam_search(toy_step, *arrays, beams=beams, early_stopping=early, **options)

  return jax.jit(run)


def toy_search(
  beams, starts=STARTS, places=ONES, max_tokens=N, length=99, penalty=0.0, early=False, end=NONE
):
  """(texts, scores) of a beam search on the toy."""
  ids, scores = toy_machine(beams, max_tokens, length, end, early)(starts, places, penalty)
  return texts(ids), np.asarray(scores)


def searched_by_lists(start, beams, end, penalty):
  """The best (ids, score) of a beam search, written with lists."""
  logs, running, ended = log_softmax(TABLE), [(0.0, start, [])], []
  for count in range(1, N + 1):
    candidates = [
      (total + logs[history, i], history * V + i, [*ids, i])
      for total, history, ids in running
      for i in range(V)
    ]
    candidates.sort(key=lambda x: -x[0])
    running = []
    for rank, (total, history, ids) in enumerate(candidates):
      if ids[-1] != end and count < N:
        running.append((total, history, ids))
      elif rank < beams:
        ended.append((total / count**penalty, ids))
    running = running[:beams]
    ended = sorted(ended, reverse=True)[:beams]
    is_full = len(ended) == beams
    if not running or (is_full and running[0][0] / count**penalty <= ended[-1][0]):
      break
  return ended[0][1], ended[0][0]


@pytest.mark.parametrize('end', [0, 2])
@pytest.mark.parametrize('beams', [1, 2, 3])
def test_a_beam_search_is_the_one_written_with_lists(beams, end):
  starts = np.arange(V**2, V**2 + 40)
  for penalty in (0.0, 1.5):
    ones = np.ones(40, np.int32)
    ids, scores = toy_search(beams, starts % V, ones, penalty=penalty, end=end)
    for row, score, start in zip(ids, scores, starts % V):
      expected, best = searched_by_lists(start, beams, end, penalty)
      assert row == expected
      np.testing.assert_allclose(score, best, rtol=1e-5)


def test_masks_that_are_filled_by_draws_are_drawn_each_by_itself():
  rows, masks = 400, 3
  open_BN = np.tile(np.arange(1, 1 + masks), (rows, 1))
  ids, _ = sampling.unmask(
    lambda ids_BT: jnp.zeros((rows, masks, 16)),
    jnp.zeros((rows, 6), jnp.int32),
    jnp.asarray(open_BN),
    jax.random.split(jax.random.key(0), rows),
    Choice(temperature=1.0),
  )
  for one, other in itertools.combinations(np.asarray(ids).T, 2):
    assert np.mean(one == other) == pytest.approx(1 / 16, abs=0.04)


def test_a_beam_ends_where_the_model_has_no_more_places():
  """Prompts of 1, 2 and 3 tokens and a model of 4 places: as many tokens as are left, and one more,
  which nothing is read after."""
  ids, scores = toy_search(3, places=STARTS, length=4)
  assert [len(x) for x in ids] == [4, 3, 2]
  alone = toy_search(3, starts=STARTS[1:2], places=ONES[:1], max_tokens=3)
  assert alone[0] == ids[1:2]
  np.testing.assert_allclose(alone[1], scores[1:2], rtol=1e-6)


def test_a_search_may_end_with_as_many_sequences_as_beams():
  """As transformers' early_stopping=True: later and better ones are not waited for."""
  asked = dict(penalty=2.0, end=0, max_tokens=N)
  usual, early = toy_search(2, **asked), toy_search(2, early=True, **asked)
  assert usual[0] != early[0]
  assert all(len(a) <= len(b) for a, b in zip(early[0], usual[0]))
  assert (early[1] <= usual[1] + 1e-6).all()


def test_what_is_never_chosen_is_in_no_text():
  counts = first_tokens(Choice(temperature=1.0, never_ids=(2,)), LOGITS, rows=999)
  assert counts[2] == 0 and (np.delete(counts, 2) > 0).all()


# ---- masks ---------------------------------------------------------------------------------------


def toy_read(ids_BT):
  """Logits [B, N, V + 1] at the last N of T tokens, which follow from all tokens."""
  places = jnp.arange(ids_BT.shape[1] - N, ids_BT.shape[1])
  waves = jnp.arange(1, V + 2) * (1.0 + places[:, None])
  total_B = (ids_BT * jnp.arange(1, 1 + ids_BT.shape[1])).sum(axis=1)
  return 3 * jnp.sin(waves + 0.7 * total_B[:, None, None])


def test_masks_are_filled_in_their_order_each_seeing_those_before():
  prompts = np.array([[0, 1], [2, 3], [1, 1], [3, 0]])
  ids = np.pad(prompts, ((0, 0), (0, N)), constant_values=V)
  open_BN = jnp.broadcast_to(jnp.arange(2, 2 + N), (4, N))
  keys = jax.random.split(jax.random.key(0), 4)
  out, scores = sampling.unmask(toy_read, ids, open_BN, keys, Choice())
  for prompt, row, score in zip(prompts, out, scores):
    filled, total = [*prompt, *[V] * N], 0.0
    for n in range(N):
      logs = log_softmax(np.asarray(toy_read(jnp.array([filled])))[0, n].astype(np.float64))
      filled[2 + n] = int(logs.argmax())
      total += logs.max()
    assert row.tolist() == filled[2:]
    np.testing.assert_allclose(score, total, rtol=1e-4)
