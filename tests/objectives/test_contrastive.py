"""Sentence vectors: the losses, their gradients, what is read, what is scored, and whole runs."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from small_tables import WORDS, sentence
from test_processes import local, logged, same, succeeded
from test_train import same_bits

from bert_jax import config as c
from bert_jax import models
from bert_jax.config import InputError
from bert_jax.models import flops
from bert_jax.objectives.contrastive import Contrastive
from bert_jax.objectives.encode import encode, row_spec
from bert_jax.predict import Model
from bert_jax.tasks.contrastive import reading, task
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tools import convert
from bert_jax.tools.preflight import estimate
from bert_jax.train import train
from bert_jax.workdir import trained

D = 16
MODEL = models.ModelConfig(
  **c.bert(
    'tiny',
    vocab_size=40,
    hidden_size=D,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
    dtype='float32',
    vocab_multiple=8,
    initializer_range=0.2,
  )
)


def objective(**changes):
  fields = dict(
    loss='in_batch', texts=2, temperature=0.05, widths=(), pooling='mean', normalize=True, chunks=1
  )
  fields |= changes
  return Contrastive(MODEL, 24, examples_per_row=fields['texts'] * 2, **fields)


def batch_of(of, rows=4, seed=0):
  """A batch of two items in each row, whose texts have 1 to 4 tokens; the last item has no text."""
  rng, N = np.random.default_rng(seed), of.examples_per_row
  out = {name: np.zeros(spec.shape, spec.dtype) for name, spec in of.spec(rows).items()}
  for b in range(rows):
    at = 0
    for n in range(N):
      if b == rows - 1 and n >= of.texts:
        continue
      size = rng.integers(1, 5)
      out['input_ids'][b, at : at + size] = rng.integers(5, 40, size)
      out['position_ids'][b, at : at + size] = np.arange(size)
      out['segment_ids'][b, at : at + size] = n + 1
      out['cls_positions'][b, n], out['weights'][b, n] = at, 1
      at += size
  count = rows * N
  if 'text_ids' in out:
    out['text_ids'] = 1 + np.arange(count, dtype=np.int32).reshape(rows, N)
  else:
    scores = rng.integers(0, 4, (rows, 2)).astype(np.float32)
    out['scores'] = np.repeat(scores, of.texts, axis=1)
  return out


@pytest.fixture(scope='module')
def params():
  return objective().init(jax.random.key(1))


def loss_of(of, params, batch, rng=None):
  """(loss, terms)."""
  terms, carry = of.terms(params, batch, rng, rng is not None)
  assert carry is None
  return sum(terms[name].total / terms[name].weight for name in of.loss_weights), terms


def gradient(of, params, batch, rng=None):
  return jax.jit(jax.grad(lambda params: loss_of(of, params, batch, rng)[0]))(params)


def close(a, b, tolerance=1e-5):
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    np.testing.assert_allclose(x, y, atol=tolerance, rtol=tolerance)


def items_of(of, params, batch):
  """[items, K, D] vectors of length 1, by a plain mean of hidden states, [items, K] there, ids."""
  hidden = np.asarray(encode(MODEL, params['encoder'], batch))
  vectors = np.zeros((*batch['weights'].shape, D))
  for b, n in zip(*np.nonzero(batch['weights'])):
    vectors[b, n] = hidden[b, batch['segment_ids'][b] == n + 1].mean(axis=0)
  names = [vectors, batch['weights'], batch['text_ids' if 'text_ids' in batch else 'scores']]
  return [x.reshape(-1, of.texts, *x.shape[2:]) for x in names]


def by_loops(vectors, there, ids, temperature=0.05):
  """(mean loss, share of hits, how many texts are masked, of how many others): the formula."""
  unit = lambda x: x / np.linalg.norm(x)
  nats, hits, masked, others, positives = [], [], 0, 0, {}
  for anchor, positive in zip(ids[:, 0], ids[:, 1]):
    positives.setdefault(anchor, set()).add(positive)
  for i in range(len(vectors)):
    if not there[i, :2].all():
      continue
    own = unit(vectors[i, 0]) @ unit(vectors[i, 1]) / temperature
    rest = []
    for j in range(len(vectors)):
      for k in range(1, vectors.shape[1]):
        if (i, 1) == (j, k) or not there[j, k]:
          continue
        others += 1
        if ids[j, k] in positives[ids[i, 0]] | {ids[i, 0]}:
          masked += 1
        else:
          rest.append(unit(vectors[i, 0]) @ unit(vectors[j, k]) / temperature)
    nats.append(np.log(np.exp(own) + np.exp(rest).sum()) - own)
    hits.append(own > max(rest, default=-np.inf))
  return np.mean(nats), np.mean(hits), masked, others


# ---- losses --------------------------------------------------------------------------------------


@pytest.mark.parametrize('texts', [2, 3, 4])
def test_the_loss_of_a_batch_is_that_of_the_formula(params, texts):
  of = objective(texts=texts)
  batch = batch_of(of)
  if texts > 2:
    batch['weights'][0, 2] = batch['weights'][1, -1] = 0  # items without a negative
  loss, terms = loss_of(of, params, batch)
  expected, hits, masked, others = by_loops(*items_of(of, params, batch))
  assert float(loss) == pytest.approx(expected, abs=1e-5) and expected > 0.1
  assert float(terms['in_batch_accuracy'].value) == pytest.approx(hits)
  assert float(terms['in_batch'].weight) == 7  # the eighth item has no text
  assert (masked, others) == (0, float(terms['false_negatives'].weight))


def test_texts_that_are_no_negatives_are_masked_and_counted(params):
  of = objective(texts=3)
  batch = batch_of(of)
  plain, _ = loss_of(of, params, batch)
  ids = batch['text_ids'].reshape(-1, 3)
  ids[1, 1] = ids[0, 1]  # two items have the same positive
  ids[2, 0] = ids[3, 0]  # or the same anchor
  ids[4, 1] = ids[5, 0]  # a positive is the anchor of another item
  ids[6, 2] = ids[0, 1]  # or a hard negative of it
  loss, terms = loss_of(of, params, batch)
  expected, _, masked, others = by_loops(*items_of(of, params, batch))
  assert float(loss) == pytest.approx(expected, abs=1e-5)
  ids[5, 2] = ids[3, 1]  # a hard negative elsewhere is what another item has as 2's positive
  again, terms_again = loss_of(of, params, batch)
  expected_again, _, masked_again, _ = by_loops(*items_of(of, params, batch))
  assert float(again) == pytest.approx(expected_again, abs=1e-5)
  assert masked_again == masked + 2 == float(terms_again['false_negatives'].total)
  # 0 and 1 mask each other's positive and the negative of 6; 2 and 3 each other's positive; 4 and 5
  # the text that is 4's own positive, and the positive of 4 again for 5.
  assert masked == 7 == float(terms['false_negatives'].total)
  assert float(terms['false_negatives'].weight) == others
  assert float(plain) > float(loss) + 1e-3


def test_pairs_with_scores_are_put_in_their_order(params):
  of = objective(loss='cosent')
  batch = batch_of(of)
  loss, terms = loss_of(of, params, batch)
  vectors, there, scores = items_of(of, params, batch)
  norms = np.maximum(np.linalg.norm(vectors, axis=-1), 1e-9)
  similar, total = (vectors[:, 0] * vectors[:, 1]).sum(-1) / norms.prod(-1), 1.0
  for i in range(7):
    for j in range(7):
      if scores[i, 0] > scores[j, 0]:
        total += np.exp((similar[j] - similar[i]) / 0.05)
  assert float(loss) == pytest.approx(np.log(total), rel=1e-5) and there[7].sum() == 0
  batch['scores'][:] = 2.0  # nothing to learn, and no NaN
  terms, _ = of.terms(params, batch, None, False)
  assert float(terms['cosent'].total) == float(terms['cosent'].weight) == 0
  total = lambda params: of.terms(params, batch, None, False)[0]['cosent'].total
  close(jax.grad(total)(params), jax.tree.map(jnp.zeros_like, params))


@pytest.mark.parametrize('loss', ['in_batch', 'cosent'])
def test_the_order_of_a_batch_does_not_matter(params, loss):
  of = objective(loss=loss)
  batch = batch_of(of)
  order = np.random.default_rng(1).permutation(4)
  moved = {name: x[order] for name, x in batch.items()}
  one, other = (loss_of(of, params, x)[0] for x in (batch, moved))
  assert float(one) == pytest.approx(float(other), rel=1e-6)


def test_the_losses_of_widths_add_up_over_cut_vectors(params):
  batch = batch_of(objective())
  loss, terms = loss_of(objective(widths=(D, 4, 7)), params, batch)
  vectors, there, ids = items_of(objective(), params, batch)
  expected = {w: by_loops(vectors[..., :w], there, ids) for w in (4, 7, D)}
  assert float(loss) == pytest.approx(sum(x[0] for x in expected.values()), abs=1e-4)
  for width in (4, 7, D):
    value = float(terms[f'in_batch_{width}'].value)
    assert value == pytest.approx(expected[width][0], abs=1e-5)
  assert float(terms['in_batch_accuracy'].value) == pytest.approx(expected[D][1])


def test_pooling_and_length(params):
  batch = batch_of(objective())
  hidden = encode(MODEL, params['encoder'], batch)
  first = objective(pooling='cls').vectors(params, batch)
  np.testing.assert_allclose(first[1, 2], hidden[1, batch['cls_positions'][1, 2]], atol=1e-6)
  mean = objective().vectors(params, batch)
  assert not np.asarray(mean[3, 2:]).any()  # no text is there
  with_length, _ = loss_of(objective(normalize=False, temperature=1.0), params, batch)
  vectors, there, _ = items_of(objective(), params, batch)
  similar = vectors[:7, 0] @ vectors[:7, 1].T
  nats = np.log(np.exp(similar).sum(1)) - np.diag(similar)
  assert float(with_length) == pytest.approx(nats.mean(), rel=1e-4)


# ---- chunks --------------------------------------------------------------------------------------


@pytest.mark.parametrize('chunks', [2, 4])
def test_the_gradient_in_chunks_is_that_of_the_whole_batch(params, chunks):
  batch = batch_of(objective(), rows=8)
  batch['text_ids'][1, 1] = batch['text_ids'][0, 1]  # so that it matters which row is which
  whole, parts = (gradient(objective(chunks=n), params, batch) for n in (1, chunks))
  assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(whole)) > 1e-2
  close(whole, parts)


def test_chunks_take_the_memory_of_one(params):
  def temporaries(chunks):
    of = objective(chunks=chunks)
    loss = lambda params, batch: loss_of(of, params, batch)[0]
    lowered = jax.jit(jax.grad(loss)).lower(params, batch_of(of, rows=64))
    return lowered.compile().memory_analysis().temp_size_in_bytes

  assert temporaries(16) < 0.3 * temporaries(1)


def test_the_gradient_in_chunks_has_the_dropout_of_its_vectors(params):
  """Of a plain gradient through all chunks, each encoded once under its own key."""
  of, batch, key = objective(chunks=2), batch_of(objective()), jax.random.key(7)

  class Plain(Contrastive):
    def vectors(self, params, batch, rng=None):
      halves = [
        objective().vectors(
          params, {name: x[i::2] for name, x in batch.items()}, jax.random.fold_in(rng, i)
        )
        for i in (0, 1)
      ]
      return jnp.stack([halves[row % 2][row // 2] for row in range(4)])

  fields = {k: getattr(of, k) for k in of.__dataclass_fields__}
  plain = Plain(**fields)
  close(loss_of(of, params, batch, key)[0], loss_of(plain, params, batch, key)[0])
  close(gradient(of, params, batch, key), gradient(plain, params, batch, key))
  other = gradient(of, params, batch, jax.random.key(8))
  with pytest.raises(AssertionError):
    close(gradient(of, params, batch, key), other)


def test_a_text_is_its_own_positive_under_another_dropout(params):
  of = objective()
  batch = batch_of(of)
  for name in ('input_ids', 'position_ids', 'segment_ids'):
    batch[name][:] = 0
  for n in range(4):
    at = slice(n * 3, n * 3 + 3)
    batch['input_ids'][:, at] = np.arange(5, 17).reshape(4, 3)
    batch['position_ids'][:, at], batch['segment_ids'][:, at] = np.arange(3), n + 1
    batch['cls_positions'][:, n] = n * 3
  still, moved = (of.vectors(params, batch, key) for key in (None, jax.random.key(0)))
  np.testing.assert_allclose(still[:, 0], still[:, 1], atol=1e-6)
  assert float(jnp.abs(moved[:, 0] - moved[:, 1]).max()) > 1e-2


# ---- reading -------------------------------------------------------------------------------------

ROWS = [('a b', 'c d', 'e'), ('b', 'f g h', ''), ('c', 'a', 'd d')]


def config(spec, *overrides, arg='task=pairs', eval_spec=''):
  fields = [f'data.train={spec}', f'data.eval={eval_spec}', 'model.max_position_embeddings=512']
  return c.load(f'configs/contrastive.py:{arg}', [f'--config.{x}' for x in (*fields, *overrides)])


def read(config, split='train', skip=False):
  problems = Problems(split, skip)
  return list(reading.read(config, split, problems)), problems


def fails(config, split='train'):
  with pytest.raises(InputError) as error:
    read(config, split)
  assert '\n' not in str(error.value)
  return str(error.value)


def squad(path, paragraphs):
  """SQuAD's JSON of {paragraph: [(question, is there no answer)]}."""
  number, content = 0, []
  for text, questions in paragraphs.items():
    qas = []
    for question, impossible in questions:
      qas.append({'id': f'q{number}', 'question': question, 'is_impossible': impossible})
      number += 1
    content.append({'context': text, 'qas': qas})
  path.write_text(json.dumps({'data': [{'paragraphs': content}]}))
  return path


@pytest.mark.parametrize('form', ['tsv', 'headerless', 'jsonl'])
def test_triples_are_read_of_all_tables_alike(form, tmp_path):
  names, fields = ('query', 'positive', 'negative'), []
  path = tmp_path / f'train.{"jsonl" if form == "jsonl" else "tsv"}'
  if form == 'jsonl':
    path.write_text(''.join(json.dumps(dict(zip(names, row))) + '\n' for row in ROWS))
  else:
    head = [] if form == 'headerless' else [names]
    path.write_text(''.join('\t'.join(row) + '\n' for row in [*head, *ROWS]))
  if form == 'headerless':
    fields = [f'contrastive.columns={",".join(names)}']
  items, problems = read(config(path, *fields, arg='task=triples'))
  assert [item.texts for item in items] == ROWS and problems.counts['pairs'] == 3
  pairs, _ = read(config(path, *fields, arg='task=pairs'))
  assert [item.texts for item in pairs] == [row[:2] for row in ROWS]
  alone, _ = read(config(path, *fields, 'contrastive.positive_column='))
  assert [item.texts for item in alone] == [(row[0], row[0]) for row in ROWS]


def test_questions_belong_to_their_paragraph(tmp_path):
  paragraphs = {'c d': [('a ?', False), ('no ?', True)], 'e f': [('b ?', False), ('g ?', False)]}
  path = squad(tmp_path / 'dev.json', paragraphs)
  items, problems = read(config(f'a={path},b={path}', arg='task=squad'))
  assert [item.texts for item in items[:3]] == [('a ?', 'c d'), ('b ?', 'e f'), ('g ?', 'e f')]
  assert len(items) == 6 and items[0].id == 'q0'
  assert problems.counts['questions without an answer in their paragraph (left out)'] == 2
  assert problems.counts[reading.AGAIN] == 4


def test_lines_are_their_own_positives(tmp_path):
  (tmp_path / 'train.txt').write_text('a b\n\nc\n')
  found = config(tmp_path / 'train.txt', arg='task=simcse')
  items, problems = read(found)
  assert [item.texts for item in items] == [('a b', 'a b'), ('c', 'c')]
  assert items[1].where == 'train.txt:3' and problems.counts['blank_lines'] == 1
  rows = task.Items(found, Words(), items, problems)
  assert [len(ids) for (ids,) in rows.texts] == [2, 2, 1, 1]


def test_scored_pairs_and_what_is_judged_by_what(tmp_path):
  path = tmp_path / 'dev.tsv'
  path.write_text('sentence1\tsentence2\tscore\na\tb\t4.5\nc\td\t0\n')
  scored = config(path, arg='task=stsb', eval_spec=path)
  assert [item.score for item in read(scored)[0]] == [4.5, 0.0]
  assert task.score_names(scored) == ('pearson', 'spearman')
  # Trained on pairs without scores, judged by scores; or the other way round.
  pairs = config(path, 'contrastive.score_column=score', eval_spec=path)
  assert [item.score for item in read(pairs)[0]] == [None, None]
  assert [item.score for item in read(pairs, 'eval')[0]] == [4.5, 0.0]
  ranked = config(path, 'contrastive.eval_format=squad', arg='task=stsb', eval_spec=path)
  assert task.score_names(ranked)[-1] == 'mrr' and not reading.is_scored(ranked, 'eval')


@pytest.mark.parametrize(
  'row, said',
  [
    (('', 'b', 'c'), 'train.tsv:2: the anchor is empty; write one'),
    (('a', ' ', 'c'), 'train.tsv:2: the positive is empty; write one'),
    (('a', 'b', 'b'), "train.tsv:2: a negative is the positive, 'b'; remove one of them"),
  ],
)
def test_a_record_that_cannot_be_used_is_named_or_left_out(row, said, tmp_path):
  path = tmp_path / 'train.tsv'
  rows = [('anchor', 'positive', 'negative'), row, *ROWS]
  path.write_text(''.join('\t'.join(row) + '\n' for row in rows))
  found = config(path, arg='task=triples')
  assert said in fails(found)
  items, problems = read(found, skip=True)
  assert [item.texts for item in items] == ROWS and problems.left_out == 1


def test_what_is_wrong_with_the_data_is_one_sentence(tmp_path):
  path = tmp_path / 'train.tsv'
  path.write_text('sentence1\tsentence2\tscore\na\tb\thigh\n')
  assert "the score (column 'score') is no number" in fails(config(path, arg='task=stsb'))
  path.write_text('anchor\ttext\na\tb\n')
  assert "no column 'positive|paragraph|answer|sentence2'" in fails(config(path))
  with pytest.raises(InputError, match='data.train is empty; name a table of pairs'):
    task.resolve(config(''))
  for rows, said in ((1, 'one pair'), (3, '3 pairs with one and the same positive')):
    path.write_text('anchor\tpositive\n' + ''.join(f'{i}\tb\n' for i in range(rows)))
    with pytest.raises(InputError, match=f'{said}, so there is nothing to tell a positive from'):
      task.sources(config(path), Words(), ('train',))
  path.write_text('sentence1\tsentence2\tscore\na\tb\t1\nc\td\t1\n')
  with pytest.raises(InputError, match='all scores of data.train are equal'):
    task.sources(config(path, arg='task=stsb'), Words(), ('train',))


@pytest.mark.parametrize(
  'override, said',
  [
    ('batch_size=1', 'batch_size 1 is too small: a batch of one pair has no other text'),
    ('optimizer.accumulation=2', 'would part the batch that negatives come from; set it to 1'),
    ('contrastive.chunks=5', 'batch_size 64 does not divide into contrastive.chunks=5'),
    ('contrastive.widths=(8,8)', 'name different whole numbers up to the width of the model, 768'),
    ('contrastive.widths=(769,)', 'name different whole numbers up to the width of the model, 768'),
    ('data.examples_per_row=3', 'use a multiple of 2, the texts of an item'),
    ('data.seq_length=15', 'has no room for 2 texts of 8 tokens; raise it'),
    ('contrastive.loss=cosent', 'name their contrastive.score_column'),
    ('contrastive.temperature=0', 'outside (0, inf)'),
  ],
)
def test_a_wrong_field_is_one_sentence(override, said):
  with pytest.raises(InputError) as error:
    config('x', override)
  assert said in str(error.value) and '\n' not in str(error.value)


def test_more_wrong_fields():
  with pytest.raises(InputError, match='are those of a head, and contrastive has none; leave'):
    config('x', 'teacher=W')
  drops = ('model.hidden_dropout_prob=0', 'model.attention_probs_dropout_prob=0')
  with pytest.raises(InputError, match='told from itself by dropout, and there is none'):
    config('x', *drops, arg='task=simcse')
  config('x', *drops, arg='task=squad')
  with pytest.raises(InputError, match='lines, which nothing can be judged by'):
    config('x', 'contrastive.eval_format=', arg='task=simcse', eval_spec='y')
  with pytest.raises(InputError, match='CLS. of a causal model sees no text'):
    config('x', 'model.causal=true', 'contrastive.pooling=cls')
  with pytest.raises(InputError, match='has no negatives'):
    config('x', 'contrastive.negative_columns=n', 'data.examples_per_row=3', arg='task=stsb')


# ---- rows ----------------------------------------------------------------------------------------


class Words:
  """A tokenizer of letters, whatever their case."""

  pad_id, cls_id, sep_id, unk_id = 0, 1, 2, 3
  vocab_size = 40

  def ids_batch(self, texts):
    return [np.array([ord(x.lower()) - 92 for x in t if x.strip()], np.int32) for t in texts]


def test_items_share_a_row_and_equal_texts_have_equal_numbers():
  found = config('x', 'data.seq_length=32', 'data.examples_per_row=6', arg='task=triples')
  items = [reading.Item('w', str(i), row) for i, row in enumerate([*ROWS, ('D', 'C d', 'q')])]
  rows = task.Items(found, Words(), items, Problems('train'))
  assert len(rows) == 2
  of = estimate.objective_of(found)
  for i, row in enumerate(rows):
    for name, spec in of.spec(1).items():
      assert row[name].shape == spec.shape[1:] and row[name].dtype == spec.dtype, name
    assert row['groups'].tolist() == [1, 1, 1, 2, 2, 2]
    assert row['weights'].tolist() == [1, 1, 1, 1, 1, 1 - (i == 0)]  # the second has no negative
  ids = np.stack([row['text_ids'] for row in rows]).ravel()
  texts = [text for item in items for text in item.texts]
  equal = lambda a, b: a.replace(' ', '').lower() == b.replace(' ', '').lower()
  for (i, a), (j, b) in ((x, y) for x in zip(ids, texts) for y in zip(ids, texts)):
    assert (i == j) == equal(a, b)
  assert ids.min() >= 1


def test_the_longest_texts_of_an_item_are_cut_and_counted():
  found = config('x', 'data.seq_length=20', 'task.max_length=14')
  items = [
    reading.Item('w', '0', ('a' * 4, 'b' * 30)),
    reading.Item('w', '1', ('c' * 9, 'd' * 9)),
    reading.Item('w', '2', ('e' * 13, 'f')),
  ]
  problems = Problems('train')
  rows = task.Items(found, Words(), items, problems)
  assert [len(ids) for (ids,) in rows.texts] == [4, 12, 8, 8, 12, 1]
  assert problems.counts['texts cut (of 14 tokens, or of a row of 20)'] == 4
  rng = np.random.default_rng(0)
  for _ in range(200):
    lengths, room = rng.integers(0, 20, rng.integers(1, 6)), int(rng.integers(8, 60))
    share = task.fair_share(lengths, room)
    assert np.minimum(lengths, share).sum() <= room
    if (lengths > share).any():  # no token more would fit
      assert np.minimum(lengths, share + 1).sum() > room


# ---- scores --------------------------------------------------------------------------------------


def judged(found, items, vectors):
  """The answers and scores of the evaluation of items, of which each text has a given vector."""
  source = task.Judged(found, Words(), items, Problems('eval'))
  order = list(source.number)
  packed = {
    'example_ids': np.zeros((len(order), 2), np.int32),
    'vectors': np.zeros((len(order), 2, D), np.float32),
  }
  for row, text in enumerate(reversed(order)):  # in any order
    packed['example_ids'][row, 0] = source.number[text] + 1
    packed['vectors'][row, 0, : len(vectors[text])] = vectors[text]
  answers = source.answers(packed)
  return answers, source.score(answers), source


def test_ranks_have_those_of_chance():
  found = config('x', 'contrastive.normalize=false', eval_spec='y')
  items = [reading.Item('w', str(i), (f'q{i}', f'a{i}')) for i in range(20)]
  vectors = dict.fromkeys([f'{x}{i}' for x in 'qa' for i in range(20)], [1.0])
  _, _, source = judged(found, items, vectors)
  chance = {name: x for name, (x, kind) in source.baselines.items() if kind == 'chance'}
  mean = sum(1 / k for k in range(1, 21)) / 20
  expected = {'recall_at_1': 0.05, 'recall_at_5': 0.25, 'recall_at_10': 0.5, 'mrr': mean}
  assert chance == pytest.approx(expected)


def test_ranks_of_paragraphs_by_hand():
  found = config('x', 'contrastive.normalize=false', eval_spec='y')
  item = lambda i, *texts: reading.Item('w', str(i), texts)
  items = [
    item(0, 'q', 'a'),
    item(1, 'r', 'b'),
    item(2, 's', 'c'),
    item(3, 's', 'a'),
    item(4, 'a', 'b'),
  ]
  vectors = {'q': [1, 0], 'r': [0, 1], 's': [1, 1], 'a': [3, 1], 'b': [2, 2], 'c': [1, 2]}
  answers, scores, source = judged(found, items, vectors)
  # q: a 3, b 2, c 1. r: b 2, c 2, a 1: a tie is a miss. s: a 4, b 4, c 3: a and c are right. a: of
  # itself it is no answer, b 8, c 5.
  assert [answer['rank'] for answer in answers] == [1, 2, 2, 2, 1]
  assert scores['recall_at_1'] == pytest.approx(2 / 5) and scores['recall_at_5'] == 1
  assert scores['mrr'] == pytest.approx((1 + 1 / 2 + 1 / 2 + 1 / 2 + 1) / 5)
  assert answers[0]['prediction'] == answers[0]['gold'] == 'a' and answers[4]['prediction'] == 'b'
  logits = np.array([3, 2, 1]) / 0.05
  assert answers[0]['loss'] == pytest.approx(np.log(np.exp(logits - 60).sum()) + 60 - 60, abs=1e-5)
  assert len(source.texts) == 6  # each text once
  assert not source[0]['weights'].any()
  # Vectors that are no numbers are last, not first.
  answers, scores, _ = judged(found, items, vectors | {'q': [np.nan, 0]})
  assert [answer['rank'] for answer in answers] == [3, 2, 2, 2, 1]


def test_texts_of_equal_tokens_are_one_candidate():
  found = config('x', 'task.max_length=8', eval_spec='y')
  items = [
    reading.Item('w', '0', ('q', 'a b c d e f g')),
    reading.Item('w', '1', ('q', 'h')),
    reading.Item('w', '2', ('r', 'a b c d e f z z')),
  ]
  numbers = {'q': [1, 0], 'r': [1, 0], 'a b c d e f g': [2, 0], 'h': [1, 1]}
  answers, scores, source = judged(found, items, numbers | {items[2].texts[1]: [2, 0]})
  assert len(source) and len(source.read) == 4 and [a['rank'] for a in answers] == [1, 1, 1]
  assert [a['length'] for a in answers] == [1 + 7, 1 + 1, 1 + 7]  # before the cut


def test_ranks_of_random_vectors_are_those_of_a_sort():
  rng = np.random.default_rng(0)
  texts = [f'{chr(97 + i % 26)}{"z" * (i // 26)}' for i in range(80)]
  items = [reading.Item('w', str(i), (texts[i], texts[40 + i])) for i in range(40)]
  vectors = {text: rng.normal(size=D) for text in texts}
  sizes = 'contrastive.widths=(4,)', 'model.hidden_size=16', 'model.num_attention_heads=2'
  found = config('x', *sizes, eval_spec='y')
  answers, scores, _ = judged(found, items, vectors)
  for end, width in (('', D), ('_4', 4)):
    part = np.array([vectors[text][:width] for text in texts])
    part /= np.linalg.norm(part, axis=1, keepdims=True)
    order = np.argsort(-(part[:40] @ part[40:].T), axis=1)
    ranks = np.argmax(order == np.arange(40)[:, None], axis=1) + 1
    assert [answer[f'rank{end}'] for answer in answers] == ranks.tolist()
    assert scores[f'mrr{end}'] == pytest.approx((1 / ranks).mean())
    assert scores[f'recall_at_10{end}'] == pytest.approx((ranks <= 10).mean())
  assert set(scores) == set(task.score_names(found))


def test_the_fingerprint_of_an_evaluation_knows_scores_and_pairs():
  found, item = config('x', arg='task=stsb', eval_spec='y'), reading.Item
  marks = [
    task.Judged(found, Words(), items, Problems('eval')).fingerprint
    for items in (
      [item('w', '0', ('a', 'b'), 1.0), item('w', '1', ('c', 'd'), 2.0)],
      [item('w', '0', ('a', 'b'), 1.0), item('w', '1', ('c', 'd'), 3.0)],
      [
        item('w', '0', ('a', 'b'), 1.0),
        item('w', '1', ('c', 'd'), 2.0),
        item('w', '2', ('a', 'd'), 2.0),
      ],
    )
  ]
  assert len(set(marks)) == 3


def test_similarities_are_correlated_with_scores():
  rng = np.random.default_rng(0)
  texts = [chr(97 + i) for i in range(24)]
  gold = rng.normal(size=12)
  items = [reading.Item('w', str(i), tuple(texts[2 * i : 2 * i + 2]), gold[i]) for i in range(12)]
  vectors = {text: rng.normal(size=D) for text in texts}
  found = config('x', arg='task=stsb', eval_spec='y')
  answers, scores, source = judged(found, items, vectors)
  cosine = lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)
  similar = [cosine(*(vectors[text] for text in item.texts)) for item in items]
  np.testing.assert_allclose([a['prediction'] for a in answers], similar, atol=1e-6)
  assert scores['spearman'] == pytest.approx(scipy.stats.spearmanr(similar, gold).statistic)
  assert scores['pearson'] == pytest.approx(scipy.stats.pearsonr(similar, gold).statistic)
  assert not source.constant(answers)
  same = dict.fromkeys(texts, np.ones(D))
  answers, scores, source = judged(found, items, same)
  assert source.constant(answers) == '1.000' and np.isnan(scores['spearman'])


# ---- runs ----------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def topics(tmp_path_factory):
  """Tables of pairs that share a rare word, for a small run to learn."""
  folder, rng = tmp_path_factory.mktemp('topics'), np.random.default_rng(0)
  for name, number in (('train', 64), ('dev', 24)):
    rows = ['anchor\tpositive']
    for _ in range(number):
      words = rng.choice(WORDS, 3, replace=False)
      rows.append(f'{" ".join(words)}\t{" ".join(rng.permutation(words))} {sentence(rng, 1, 3)}')
    (folder / f'{name}.tsv').write_text('\n'.join(rows) + '\n')
  return folder


def small(folder, vocab, *overrides, arg='task=pairs,runlocal'):
  fields = [
    f'data.train={folder}/train.tsv',
    f'data.eval={folder}/dev.tsv',
    f'tokenizer.path={vocab}',
    f'model.vocab_size={len(WORDS) + 5}',
    'model.hidden_size=16',
    'model.num_hidden_layers=1',
    'model.num_attention_heads=2',
    'model.intermediate_size=32',
    'model.dtype=float32',
    'data.seq_length=32',
    'batch_size=8',
    'steps=6',
    'eval.every=3',
    'checkpoint.every=3',
    'log.every=2',
    'log.tensorboard=false',
    'contrastive.chunks=2',
    *overrides,
  ]
  return c.load(f'configs/contrastive.py:{arg}', [f'--config.{x}' for x in fields])


@pytest.fixture(scope='module')
def run(topics, vocab, tmp_path_factory):
  """(workdir, State, metrics) of a finished small run. Do not write into it."""
  workdir = tmp_path_factory.mktemp('contrastive') / 'run'
  return workdir, *train(small(topics, vocab), workdir)


def test_a_run_is_scored_and_resumes_with_the_same_bits(run, topics, vocab, tmp_path):
  workdir, state, results = run
  assert {'recall_at_1', 'recall_at_5', 'recall_at_10', 'mrr'} == set(results)
  assert set(state.params) == {'encoder'}
  lines = [json.loads(x) for x in (workdir / 'metrics.jsonl').read_text().splitlines()]
  first = next(line for line in lines if line['split'] == 'train')
  assert {'in_batch', 'in_batch_accuracy', 'false_negatives'} <= set(first)
  with pytest.raises(KeyboardInterrupt):
    train(small(topics, vocab, 'max_hours=1e-9'), tmp_path)  # saved after its first step
  again, metrics = train(small(topics, vocab), tmp_path)
  same_bits(state, again)
  assert metrics == results


@pytest.mark.slow
def test_two_processes_learn_as_one_does(run, topics, vocab, tmp_path):
  fields = c.flatten(small(topics, vocab))
  default = c.flatten(c.load('configs/contrastive.py:task=pairs,runlocal'))
  given = [f'--config.{k}={v}' for k, v in fields.items() if v != default[k]]
  arguments = '--config=configs/contrastive.py:task=pairs,runlocal', '--workdir', tmp_path / 'run'
  succeeded(local(2, 2, *arguments, *given))
  same(logged(tmp_path / 'run'), logged(run[0]))


def test_a_run_learns(topics, vocab, tmp_path):
  changes = 'steps=60', 'optimizer.learning_rate=5e-3', 'eval.every=0', 'contrastive.widths=(8,16)'
  _, results = train(small(topics, vocab, *changes), tmp_path)
  assert results['recall_at_1'] > 0.6 and results['recall_at_1_8'] > 0.4, results  # chance: 0.04


@pytest.mark.parametrize('normalize', [True, False])
def test_vectors_of_a_run_are_those_of_the_export_in_sentence_transformers(
  normalize, run, topics, vocab, tmp_path
):
  workdir = run[0]
  if not normalize:
    changes = 'contrastive.normalize=false', 'contrastive.pooling=cls', 'task.max_length=16'
    train(small(topics, vocab, *changes, 'steps=2'), workdir := tmp_path / 'run')
  found = trained.load(workdir)
  assert found.vector == (('mean', True, {}) if normalize else ('cls', False, {}))
  texts = ['old river', 'good', 'bad market new engine']
  texts.append(' '.join(WORDS[i % len(WORDS)] for i in range(70)))  # is cut
  model = Model(workdir)
  vectors = model.embed(texts)
  assert list(model.counts.values()) == [1]
  assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5) == normalize
  convert.convert(str(workdir), f'hf:{tmp_path}/out')
  np.testing.assert_allclose(Model(tmp_path / 'out').embed(texts), vectors, atol=1e-5)
  length = json.loads((tmp_path / 'out' / 'sentence_bert_config.json').read_text())
  assert length['max_seq_length'] == (32 if normalize else 16)
  similarity = json.loads((tmp_path / 'out' / 'config_sentence_transformers.json').read_text())
  assert similarity == {'similarity_fn_name': 'cosine' if normalize else 'dot'}
  library = pytest.importorskip('sentence_transformers')
  theirs = library.SentenceTransformer(str(tmp_path / 'out'), device='cpu')
  np.testing.assert_allclose(theirs.encode(texts), vectors, atol=1e-5)
  assert theirs.similarity_fn_name == ('cosine' if normalize else 'dot')


def test_lines_train_on_a_pretrained_run(run, topics, vocab, tmp_path):
  """SimCSE, from any run: its encoder is taken whole."""
  lines = tmp_path / 'train.txt'
  lines.write_text((topics / 'dev.tsv').read_text().replace('\t', '\n'))
  dev = tmp_path / 'dev.tsv'
  dev.write_text('sentence1\tsentence2\tscore\nold river\tnew river\t4\ngood\tbad\t1\n')
  changes = f'data.train={lines}', f'data.eval={dev}', f'init_from={run[0]}', 'task.max_length=16'
  found = small(topics, vocab, *changes, 'steps=2', arg='task=simcse,runlocal')
  state, results = train(found, tmp_path / 'run')
  assert set(results) == {'pearson', 'spearman'}
  assert jax.tree.structure(state.params) == jax.tree.structure(run[1].params)


def test_a_preflight_knows_its_flops():
  for arg in ('task=triples', 'task=stsb'):
    found = config('', arg=arg)
    of = estimate.objective_of(found)
    D, T, N = found.model.hidden_size, found.data.seq_length, of.examples_per_row
    rows = {name: np.zeros((8, T), np.int32) for name in row_spec(8, T)}
    params = jax.eval_shape(of.init, jax.random.key(0))
    read = lambda params, rows, of=of: encode(of.model, params['encoder'], rows)
    beside = of.flops(8) - flops.products(read, params, rows) - 2 * 8 * N * T * D  # means
    P, C = 8 * N // of.texts, 8 * N // of.texts * (of.texts - 1)
    # Similarities of anchors and candidates; which of them are known to be none.
    assert beside == (2 * P * C * (D + P) if arg == 'task=triples' else 0)


def test_real_questions_and_paragraphs(shared):
  found = config(
    f'squad={shared}/squad/train-v1.1.head.json,tydi={shared}/tydiqa/tydiqa.goldp.en.train.json',
    arg='task=squad',
    eval_spec=f'{shared}/xquad/xquad.en.json',
  )
  items, problems = read(found)
  assert len(items) == 4370 + 3696 and problems.counts[reading.AGAIN] > 3000
  items, _ = read(found, 'eval')
  assert len(items) == 1190 and len({item.texts[1] for item in items}) == 240
  path = f'{shared}/glue/STS-B/dev.tsv'
  items, _ = read(config(path, arg='task=stsb'))
  assert len(items) == 1500 and max(item.score for item in items) == 5
