"""The encoder-decoder: what sees what, its loss, its cache, and the text that infilling leaves."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_models import model

from bert_jax import models
from bert_jax.models import encoder_decoder
from bert_jax.models.positions import sinusoidal_table
from bert_jax.objectives import translation
from bert_jax.objectives.infilling import infill
from bert_jax.objectives.translation import Denoising, Translation
from bert_jax.timeline import Moment

CLS, SEP, MASK = 2, 3, 4
S, T = 14, 12
KINDS = {
  'vaswani': dict(
    position_embeddings='sinusoidal',
    embedding_scale=True,
    embedding_norm=False,
    hidden_act='relu',
    mlm_head='none',
    type_vocab_size=0,
  ),
  'bart': dict(mlm_head='none', type_vocab_size=0, num_decoder_layers=1),
  'rotary': dict(position_embeddings='rotary', norm_placement='pre', scan_layers=True),
  'narrow': dict(embedding_size=8, tie_word_embeddings=False, share_layers=True),
}


def objective(kind='vaswani', slots=3, **changes):
  options = {'examples_per_row': slots, 'begin_id': CLS, 'end_id': SEP, 'longest': T} | changes
  return Translation(model(**KINDS[kind]), S, target_length=T, **options)


def params_of(objective):
  """Random parameters, in which those that begin at 0 or 1 are others, too."""
  params = objective.init(jax.random.key(0))
  keys = jax.random.split(jax.random.key(1), len(jax.tree.leaves(params)))
  noise = jax.tree.unflatten(jax.tree.structure(params), list(keys))
  return jax.tree.map(lambda x, key: x + 0.1 * jax.random.normal(key, x.shape), params, noise)


# Two pairs in the first row, one in the second.
PAIRS = [([11, 12, 13], [21, 22, 23, 24]), ([14, 15], [25, 26]), ([16, 17, 18, 19], [27])]


def batch_of(rows, slots=3):
  """The batch of rows of pairs, with an array for each side."""
  names = 'input_ids', 'segment_ids', 'position_ids', 'token_type_ids'
  out = {name: np.zeros((len(rows), S), np.int32) for name in names}
  sides = 'target_ids', 'target_labels', 'target_position_ids', 'target_segment_ids'
  out |= {name: np.zeros((len(rows), T), np.int32) for name in sides}
  out['example_ids'] = np.zeros((len(rows), slots), np.int32)
  for b, row in enumerate(rows):
    at = to = 0
    for k, (source, target) in enumerate(row):
      source, target = [CLS, *source, SEP], [*target, SEP]
      here, there = slice(at, at + len(source)), slice(to, to + len(target))
      out['input_ids'][b, here], out['position_ids'][b, here] = source, range(len(source))
      out['target_ids'][b, there] = [CLS, *target[:-1]]
      out['target_labels'][b, there] = target
      out['target_position_ids'][b, there] = range(len(target))
      out['segment_ids'][b, here] = out['target_segment_ids'][b, there] = k + 1
      out['example_ids'][b, k] = 1 + k
      at, to = here.stop, there.stop
  return out


# ---- what sees what ------------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['vaswani', 'rotary'])
def test_no_logit_depends_on_a_later_target_or_on_another_pair_of_its_row(kind):
  """By the gradient of the logits for the vectors of tokens: here of words that stand once."""
  of = objective(kind)
  batch = {name: x[:1] for name, x in batch_of([PAIRS[:2]]).items()}
  # Every token a word of its own, [CLS] and [SEP] too.
  ids, targets = np.arange(5, 5 + S), np.arange(5 + S, 5 + S + T)
  batch |= {'input_ids': ids[None], 'target_ids': targets[None]}
  params = params_of(of)
  weights = jax.random.normal(jax.random.key(2), (of.model.padded_vocab_size,))
  head = jax.tree.map(jnp.array, params)  # whose table is no variable here

  def logits(table):
    params['encoder']['embeddings']['word_embeddings'] = {'embedding': table}
    logits = models.word_logits(of.model, head, of.hidden(params, batch))
    return logits[0, :, :99] @ weights[:99]

  table = params['encoder']['embeddings']['word_embeddings']['embedding']
  gradient = np.abs(jax.jit(jax.jacrev(logits))(table)).max(axis=-1)  # [T, V]
  depends = {'source': gradient[:, ids], 'target': gradient[:, targets]}
  on, segments = batch['target_segment_ids'][0], batch['segment_ids'][0]
  may_see = {
    'source': on[:, None] == segments,
    'target': (on[:, None] == on) & (np.arange(T)[:, None] >= np.arange(T)),
  }
  for side, may in may_see.items():
    may = may & (on > 0)[:, None]
    assert (depends[side][may] > 0).all() and may.any()
    assert not depends[side][~may & (on > 0)[:, None]].any(), side


@pytest.mark.parametrize('kind', KINDS)
def test_packed_pairs_have_the_logits_of_single_ones(kind):
  of = objective(kind)
  params, run = params_of(of), jax.jit(of.logits)
  packed = batch_of([PAIRS[:2], PAIRS[2:]])
  whole = run(params, packed)
  places = [(0, 1), (0, 2), (1, 1)]
  for pair, (b, k) in zip(PAIRS, places):
    alone = batch_of([[pair], []])
    n = (alone['target_segment_ids'][0] > 0).sum()
    in_row = np.flatnonzero(packed['target_segment_ids'][b] == k)
    np.testing.assert_allclose(whole[b, in_row], run(params, alone)[0, :n], atol=1e-5)
  terms = jax.jit(lambda batch: of.terms(params, batch, None, False)[0])
  single = [terms(batch_of([[pair], []])) for pair in PAIRS]
  for name, total in terms(packed).items():
    np.testing.assert_allclose(sum(x[name].total for x in single), total.total, rtol=1e-5)
    assert sum(x[name].weight for x in single) == total.weight == 10


def test_words_share_a_table_and_the_decoder_has_no_types():
  params = objective('bart').init(jax.random.key(0))
  assert set(params) == {'encoder', 'decoder', 'mlm'} and set(params['mlm']) == {'bias'}
  assert set(params['decoder']['embeddings']) == {'LayerNorm', 'position_embeddings'}
  assert {'layer_0'} == {x for x in params['decoder'] if x.startswith('layer')}
  assert 'embeddings' not in objective('vaswani').init(jax.random.key(0))['decoder']
  # The base model of Vaswani et al., table 3, has 65 million: 37,000 shared pieces.
  base = dict(
    vocab_size=37_000,
    hidden_size=512,
    num_hidden_layers=6,
    num_attention_heads=8,
    intermediate_size=2048,
    vocab_multiple=1,
  )
  config = model(**KINDS['vaswani'] | base)
  count = models.count_parameters(
    jax.eval_shape(lambda key: encoder_decoder.init(config, key), jax.random.key(0))
  )
  layer = 4 * (512 * 512 + 512) + 2 * 512
  inner = 2 * 512 * 2048 + 2048 + 512 + 2 * 512
  assert count == 37_000 * 512 + 6 * (layer + inner) + 6 * (2 * layer + inner) == 63_082_496


def test_scaled_embeddings_are_words_times_the_root_of_their_width_plus_positions():
  config = model(**KINDS['vaswani'])
  module = models.embeddings.Embeddings(config)
  ids, at = jnp.array([[5, 7]]), jnp.array([[0, 3]])
  params = module.init(jax.random.key(0), ids, None, at, True)
  table = params['params']['word_embeddings']['embedding']
  expected = table[ids[0]] * np.sqrt(24) + sinusoidal_table(4, 24)[np.array([0, 3])]
  np.testing.assert_allclose(module.apply(params, ids, None, at, True)[0], expected, atol=1e-6)


# ---- loss ----------------------------------------------------------------------------------------

LOGITS = np.array([[2.0, -1.0, 0.5, 0.0, 1.5], [0.3, 0.2, -0.7, 4.0, -2.0], [1.0] * 5])
LABELS = np.array([0, 2, 4])


@pytest.mark.parametrize('smoothing, expected', [(0.0, 2.355654), (0.1, 2.366987), (0.3, 2.389654)])
def test_label_smoothing_is_that_of_torch(smoothing, expected, monkeypatch):
  """torch.nn.functional.cross_entropy(LOGITS, LABELS, label_smoothing=smoothing)."""
  of = dataclasses.replace(objective(), smoothing=smoothing)
  of = dataclasses.replace(of, model=dataclasses.replace(of.model, vocab_size=5))
  padded = np.full((1, 4, 8), -3e38, np.float32)  # rows of the table that are no words
  padded[0, :3, :5], padded[0, 3, :5] = LOGITS, 7.0
  monkeypatch.setattr(Translation, 'hidden', lambda self, *a: jnp.asarray(padded))
  monkeypatch.setattr(models, 'word_logits', lambda model, params, x: x)
  segments = np.array([[1, 1, 2, 0]])
  batch = {'target_labels': np.array([[*LABELS, 1]]), 'target_segment_ids': segments}
  terms, _ = of.terms({}, batch, None, False)
  assert float(terms['translation'].value) == pytest.approx(expected, abs=1e-5)
  assert float(terms['translation_nats'].value) == pytest.approx(NATS, abs=1e-5)
  assert float(terms['translation_accuracy'].value) == pytest.approx(1 / 3)
  assert all(term.weight == 3 for term in terms.values())


NATS = 2.355654


# ---- writing -------------------------------------------------------------------------------------


def searched(of, params, pair, beams):
  """(ids, score) of a beam search that reads the whole pair anew for each token."""
  source, _ = pair
  limit = len(source) + 2 + translation.MORE
  run = jax.jit(of.logits)
  beams_now, ended = [(0.0, [])], []
  for n in range(1, of.longest + 1):
    rows = batch_of([[(source, [*ids, 0])] for _, ids in beams_now])
    logs = jax.nn.log_softmax(run(params, rows)[:, n - 1])
    new = [
      (s + float(p), [*ids, i])
      for (s, ids), of_beam in zip(beams_now, logs)
      for i, p in enumerate(of_beam[:99])
    ]
    new = sorted(new, key=lambda x: -x[0])[: 2 * beams]
    is_over = lambda ids: ids[-1] == SEP or len(ids) == of.longest or len(ids) > limit
    ended += [(s / n, ids) for s, ids in new[:beams] if is_over(ids)]
    ended = sorted(ended, key=lambda x: -x[0])[:beams]
    beams_now = [(s, ids) for s, ids in new if not is_over(ids)][:beams]
    if not beams_now or (len(ended) == beams and beams_now[0][0] / n <= ended[-1][0]):
      break
  return ended[0][1], ended[0][0]


ENDS = 3.0  # added to the logit of [SEP], so that random models end a text


@pytest.mark.parametrize('kind, beams', [('vaswani', 3), ('rotary', 1), ('narrow', 2)])
def test_a_cached_search_of_packed_sources_is_one_that_reads_everything_anew(kind, beams):
  of = objective(kind, beams=beams, longest=8)
  params = params_of(of)
  params['mlm']['bias'] = params['mlm']['bias'].at[SEP].add(ENDS)
  out = jax.jit(of.predict)(params, batch_of([PAIRS[:2], PAIRS[2:], []]))
  assert out['example_ids'][:, 0].tolist() == [1, 1, 0]
  for pair, (b, k) in zip(PAIRS, [(0, 0), (0, 1), (1, 0)]):
    ids, score = searched(of, params, pair, beams)
    written = [int(i) for i in out['written'][b, k] if i >= 0]
    assert written == ids
    np.testing.assert_allclose(out['scores'][b, k], score, rtol=1e-4)
  assert [i for i in out['written'][1, 1].tolist() if i >= 0] == [SEP]  # no source, no text


def test_a_text_has_at_most_so_many_tokens_more_than_its_source(monkeypatch):
  monkeypatch.setattr(translation, 'MORE', 1)
  of = objective(beams=2, longest=T)
  params = params_of(of)
  params['mlm']['bias'] = params['mlm']['bias'].at[SEP].set(-50.0)
  out = of.predict(params, batch_of([PAIRS[:2]]))
  counts = (np.asarray(out['written'][0]) >= 0).sum(axis=-1)
  assert counts.tolist()[:2] == [7, 6]  # 3 and 2 tokens, [CLS], [SEP], one more, and the end


# ---- infilling -----------------------------------------------------------------------------------


def texts(seed, B=40, length=60, least=3, most=40):
  """(ids, segments): rows of [CLS] text [SEP], each token another one."""
  rng = np.random.default_rng(seed)
  ids, segments = np.zeros((2, B, length), np.int32)
  for b in range(B):
    at = 0
    for k in itertools.count(1):
      n = int(min(length - at, rng.integers(least, most)))
      if n < 3:
        break
      ids[b, at : at + n] = [CLS, *range(5 + at, 3 + at + n), SEP]
      segments[b, at : at + n] = k
      at += n
  return ids, segments


def test_infilling_keeps_the_order_hides_the_share_and_crosses_no_text():
  ids, segments = texts(0)
  run = jax.jit(lambda key: infill(key, ids, segments, rate=0.3, mean_span=3.0, mask_id=MASK))
  out = jax.device_get(run(jax.random.key(0)))
  for b, k in zip(*map(np.ravel, np.meshgrid(range(40), range(1, 1 + segments.max())))):
    whole = ids[b][segments[b] == k].tolist()
    left = out['input_ids'][b][out['segment_ids'][b] == k].tolist()
    if not whole:
      assert not left
      continue
    n = len(whole) - 2
    assert left[0] == CLS and left[-1] == SEP and len(left) <= len(whole)
    kept = [x for x in left if x != MASK]
    assert kept == sorted(kept, key=whole.index) and set(kept) <= set(whole)
    assert len(whole) - len(kept) == min(n, max(1, round(0.3 * n)))
    assert MASK in left
    at = out['position_ids'][b][out['segment_ids'][b] == k]
    assert at.tolist() == list(range(len(left)))
  assert out['ordinary'].tolist() == [sum(row > 4) for row in ids]
  assert (out['input_ids'][out['segment_ids'] == 0] == 0).all()
  assert (np.diff(np.where(out['segment_ids'] == 0, 99, out['segment_ids']), axis=1) >= 0).all()


def test_spans_have_poissons_lengths():
  """On long texts, where few spans are cut: their mean, and the share of those of length 0."""
  ids, segments = texts(1, B=60, length=402, least=402, most=403)
  out = infill(jax.random.key(1), ids, segments, rate=0.3, mean_span=3.0, mask_id=MASK)
  spans = (out['input_ids'] == MASK).sum(axis=1)
  assert abs(float(120 / spans.mean()) - 3.0) < 0.12  # about 2,400 spans
  lengths = []
  for row, left in zip(ids, np.asarray(out['input_ids'])):
    left = [x for x in left.tolist() if x]
    for before, mask, after in zip(left, left[1:], left[2:]):
      if mask == MASK and MASK not in (before, after):
        lengths.append(row.tolist().index(after) - row.tolist().index(before) - 1)
  zero = np.mean(np.array(lengths) == 0)
  assert abs(zero - np.exp(-3)) < 0.025
  other = infill(jax.random.key(2), ids, segments, rate=0.3, mean_span=3.0, mask_id=MASK)
  assert (other['input_ids'] != out['input_ids']).any()


def test_denoising_predicts_the_text_from_what_infilling_left():
  options = dict(rate=0.3, mean_span=3.0, mask_id=MASK)
  of = Denoising(model(**KINDS['bart']), 60, target_length=60, infilling=options)
  ids, segments = texts(2, B=4)
  plain = dict.fromkeys(('position_ids', 'token_type_ids'), np.zeros_like(ids))
  plain |= {'input_ids': ids, 'segment_ids': segments}
  assert set(of.spec(4)) == set(plain)
  batch = of.prepare(plain, jax.random.key(0), Moment())
  on = np.asarray(batch['target_segment_ids']) > 0
  assert (np.asarray(batch['target_ids']) == ids).all()
  np.testing.assert_array_equal(np.asarray(batch['target_labels'])[on], np.roll(ids, -1, 1)[on])
  assert not on[ids == SEP].any() and (on | (ids == SEP) | (segments == 0)).all()
  params = of.init(jax.random.key(0))
  terms, _ = of.terms(params, batch, None, False)
  assert float(terms['masked'].value) == pytest.approx(0.3, abs=0.02)
  assert terms['denoising'].weight == on.sum()
