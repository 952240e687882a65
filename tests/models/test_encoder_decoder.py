"""The encoder-decoder: what sees what, its loss, its cache, and the text that infilling leaves."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from references import drawn, float64
from test_models import model

from bert_jax import models
from bert_jax.models import encoder_decoder
from bert_jax.objectives import translation
from bert_jax.objectives.infilling import infill
from bert_jax.objectives.translation import Denoising, Translation
from bert_jax.timeline import Moment

CLS, SEP, MASK = 2, 3, 4
S, T = 14, 12
PLAIN = dict(mlm_head='none', type_vocab_size=0)
VASWANI = dict(position_embeddings='sinusoidal', embedding_scale=True, embedding_norm=False)
KINDS = {
  'vaswani': PLAIN | VASWANI,
  'bart': PLAIN | dict(num_decoder_layers=1, hidden_act='relu'),
  'rotary': dict(position_embeddings='rotary', norm_placement='pre', scan_layers=True),
  'narrow': dict(embedding_size=8, tie_word_embeddings=False, share_layers=True),
}


def objective(kind='vaswani', layers=2, **changes):
  options = {'examples_per_row': 3, 'begin_id': CLS, 'end_id': SEP, 'longest': T} | changes
  config = model(**KINDS[kind], num_hidden_layers=layers)
  return Translation(config, S, target_length=T, **options)


# Two pairs in the first row, one in the second.
PAIRS = [([11, 12, 13], [21, 22, 23, 24]), ([14, 15], [25, 26]), ([16, 17, 18, 19], [27])]


def batch_of(rows):
  """The batch of rows of pairs, with an array for each side."""
  names = 'input_ids', 'segment_ids', 'position_ids', 'token_type_ids'
  out = {name: np.zeros((len(rows), S), np.int32) for name in names}
  sides = 'target_ids', 'target_labels', 'target_position_ids', 'target_segment_ids'
  out |= {name: np.zeros((len(rows), T), np.int32) for name in sides}
  out['example_ids'] = np.zeros((len(rows), 3), np.int32)
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


@pytest.mark.parametrize('kind', ['vaswani', 'rotary', 'narrow'])  # bart: released decoders
def test_logits_and_terms_of_packed_pairs_are_those_of_the_formula(kind):
  """Which lets no target see a later one or another pair of its row."""
  of = objective(kind)
  config, params = of.model, drawn(of.init)
  batch = batch_of([PAIRS[:2], PAIRS[2:], []])
  p = float64(models.unstack_layers(params) if config.stacks_layers else params)
  source = references.encoder(config, p['encoder'], batch)
  names = {'input_ids': 'target_ids', **{x: f'target_{x}' for x in ('position_ids', 'segment_ids')}}
  targets = {name: batch[x] for name, x in names.items()}
  x = references.decoder(config, p, targets, (source, batch['segment_ids']))
  x = references.transformed(config, x, p['mlm'], config.mlm_head)
  table = p['mlm'].get('decoder', models.word_table(p['encoder']))
  expected = (x @ table.T + p['mlm']['bias'])[..., :99]
  real = targets['segment_ids'] > 0
  run = jax.jit(lambda p, batch: (of.logits(p, batch), of.terms(p, batch, None, False)[0]))
  logits, terms = run(params, batch)
  np.testing.assert_allclose(logits[real][:, :99], expected[real], atol=3e-4)
  logs = references.log_softmax(expected)[real]
  labels = batch['target_labels'][real]
  loss = -logs[np.arange(len(labels)), labels].mean()
  assert float(terms['translation'].value) == pytest.approx(loss, rel=1e-4)
  assert float(terms['translation'].weight) == len(labels) == 10


# ---- loss ----------------------------------------------------------------------------------------

LOGITS = np.array([[2.0, -1.0, 0.5, 0.0, 1.5], [0.3, 0.2, -0.7, 4.0, -2.0], [1.0] * 5])
LABELS = np.array([0, 2, 4])


@pytest.mark.parametrize('smoothing, expected', [(0.0, 2.355654), (0.3, 2.389654)])
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
  terms, _ = jax.jit(lambda batch: of.terms({}, batch, None, False))(batch)
  assert float(terms['translation'].value) == pytest.approx(expected, abs=1e-5)
  assert float(terms['translation_nats'].value) == pytest.approx(2.355654, abs=1e-5)
  assert float(terms['translation_accuracy'].value) == pytest.approx(1 / 3)
  assert all(term.weight == 3 for term in terms.values())


# ---- writing -------------------------------------------------------------------------------------


def test_packed_sources_are_searched_as_each_alone():
  of = objective(layers=1, beams=3, longest=8)
  params = drawn(of.init)
  params['mlm']['bias'][SEP] += 3.0  # so that random models end a text
  predict = jax.jit(of.predict)
  packed = predict(params, batch_of([PAIRS[:2], PAIRS[2:], []]))
  assert packed['example_ids'][:, 0].tolist() == [1, 1, 0]
  for pair, (b, k) in zip(PAIRS, [(0, 0), (0, 1), (1, 0)]):
    alone = predict(params, batch_of([[pair], [], []]))
    np.testing.assert_array_equal(packed['written'][b, k], alone['written'][0, 0])
    np.testing.assert_allclose(packed['scores'][b, k], alone['scores'][0, 0], rtol=1e-4)
  texts = {tuple(row) for row in packed['written'].reshape(-1, 8).tolist()}
  assert len(texts) == 4 and (SEP, *[-1] * 7) in texts  # no source, no text


def test_a_text_has_at_most_so_many_tokens_more_than_its_source(monkeypatch):
  monkeypatch.setattr(translation, 'MORE', 1)
  of = objective(layers=1, beams=2, longest=T)
  params = drawn(of.init)
  params['mlm']['bias'][SEP] = -50.0
  out = jax.jit(of.predict)(params, batch_of([PAIRS[:2]]))
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
  kept = (out['input_ids'] > 4).sum(axis=1)
  assert out['hidden'].tolist() == (out['ordinary'] - kept).tolist()
  assert (out['input_ids'][out['segment_ids'] == 0] == 0).all()
  assert (np.diff(np.where(out['segment_ids'] == 0, 99, out['segment_ids']), axis=1) >= 0).all()


def test_spans_have_poissons_lengths():
  """On long texts, where few spans are cut: their mean, and the share of those of length 0."""
  ids, segments = texts(1, B=60, length=402, least=402, most=403)
  run = jax.jit(lambda key: infill(key, ids, segments, rate=0.3, mean_span=3.0, mask_id=MASK))
  out = run(jax.random.key(1))
  spans = (out['input_ids'] == MASK).sum(axis=1)
  assert abs(float(120 / spans.mean()) - 3.0) < 0.12  # about 2,400 spans
  lengths = []
  for row, left in zip(ids, np.asarray(out['input_ids'])):
    left = [x for x in left.tolist() if x]
    for before, mask, after in zip(left, left[1:], left[2:]):
      if mask == MASK and MASK not in (before, after):
        lengths.append(row.tolist().index(after) - row.tolist().index(before) - 1)
  assert abs(np.mean(np.array(lengths) == 0) - np.exp(-3)) < 0.025
  assert (run(jax.random.key(2))['input_ids'] != out['input_ids']).any()


def test_denoising_predicts_the_text_from_what_infilling_left():
  options = dict(rate=0.3, mean_span=3.0, mask_id=MASK)
  of = Denoising(model(**KINDS['bart']), 60, target_length=60, infilling=options)
  ids, segments = texts(2, B=4)
  plain = dict.fromkeys(('position_ids', 'token_type_ids'), np.zeros_like(ids))
  plain |= {'input_ids': ids, 'segment_ids': segments}
  batch = jax.jit(lambda batch, key: of.prepare(batch, key, Moment()))(plain, jax.random.key(0))
  on = np.asarray(batch['target_segment_ids']) > 0
  np.testing.assert_array_equal(batch['target_ids'], ids)
  np.testing.assert_array_equal(np.asarray(batch['target_labels'])[on], np.roll(ids, -1, 1)[on])
  np.testing.assert_array_equal(on, (segments > 0) & (ids != SEP))
  terms, _ = jax.jit(lambda params: of.terms(params, batch, None, False))(drawn(of.init))
  assert float(terms['masked'].value) == pytest.approx(0.3, abs=0.02)
  assert terms['denoising'].weight == on.sum()


def test_encoder_and_decoder_begin_with_other_numbers():
  params = encoder_decoder.init(model(**KINDS['vaswani']), jax.random.key(0))
  encoder, decoder = (params[tower]['layer_0'] for tower in ('encoder', 'decoder'))
  for name in ('query', 'output'):
    kernels = [layer['attention'][name]['kernel'] for layer in (encoder, decoder)]
    assert not np.allclose(*kernels)
