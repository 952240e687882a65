"""Sentence vectors: the losses, their gradients, what is read, what is scored, and whole runs."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import test_objectives
from references import drawn
from refusal import one_sentence
from running import untrained
from small_tables import WORDS
from test_objectives import close
from toys import load

from bert_jax.objectives.contrastive import Contrastive
from bert_jax.objectives.encode import encode
from bert_jax.predict import Model
from bert_jax.tasks.contrastive import reading, task
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tools import convert

D = 16
MODEL = dataclasses.replace(
  test_objectives.MODEL, vocab_size=40, max_position_embeddings=32, hidden_dropout_prob=0.1
)


def objective(**changes):
  fields = {'loss': 'in_batch', 'texts': 2, 'temperature': 0.05, 'widths': (), 'pooling': 'mean'}
  fields |= {'normalize': True, 'chunks': 1} | changes
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
  return drawn(objective().init)


hidden_of = jax.jit(functools.partial(encode, MODEL))


@functools.partial(jax.jit, static_argnums=0)
def loss_of(of, params, batch, rng=None):
  """(loss, terms)."""
  terms, carry = of.terms(params, batch, rng, rng is not None)
  assert carry is None
  return sum(terms[name].total / terms[name].weight for name in of.loss_weights), terms


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradient(of, params, batch, rng=None):
  return jax.value_and_grad(lambda params: loss_of(of, params, batch, rng)[0])(params)


@functools.partial(jax.jit, static_argnums=0)
def vectors_of(of, params, batch, rng=None):
  return of.vectors(params, batch, rng)


def items_of(of, params, batch):
  """[items, K, D] vectors of length 1, by a plain mean of hidden states, [items, K] there, ids."""
  hidden = np.asarray(hidden_of(params['encoder'], batch))
  vectors = np.zeros((*batch['weights'].shape, D))
  for b, n in zip(*np.nonzero(batch['weights'])):
    vectors[b, n] = hidden[b, batch['segment_ids'][b] == n + 1].mean(axis=0)
  arrays = vectors, batch['weights'], batch.get('text_ids', batch.get('scores'))
  return [x.reshape(-1, of.texts, *x.shape[2:]) for x in arrays]


def by_loops(vectors, there, ids, temperature=0.05):
  """The formula: (mean loss, share of hits and by chance, texts that are masked, of how many)."""
  unit = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)
  nats, hits, masked, others, chances = [], [], 0, 0, []
  for i in np.flatnonzero(there[:, :2].all(axis=1)):
    own, rest = unit[i, 0] @ unit[i, 1] / temperature, []
    right = {ids[i, 0], *ids[ids[:, 0] == ids[i, 0], 1]}
    for j, k in np.argwhere(there > 0):
      if k == 0 or (j, k) == (i, 1):
        continue
      others += 1
      if ids[j, k] in right:
        masked += 1
      else:
        rest.append(unit[i, 0] @ unit[j, k] / temperature)
    nats.append(np.log(np.exp(own) + np.exp(rest).sum()) - own)
    hits.append(own > max(rest, default=-np.inf))
    chances.append(1 / (1 + len(rest)))
  return np.mean(nats), (np.mean(hits), np.mean(chances)), masked, others


# ---- losses --------------------------------------------------------------------------------------


def test_the_loss_of_a_batch_is_that_of_the_formula(params):
  of = objective(texts=4)
  batch = batch_of(of)
  there = batch['weights'].reshape(-1, 4)
  there[0, 2] = there[3, 3] = 0  # items without a negative
  there[2, 0] = there[4, 1] = 0  # and without an anchor or a positive, whose others are candidates
  loss, terms = loss_of(of, params, batch)
  expected, hits, masked, others = by_loops(*items_of(of, params, batch))
  assert float(loss) == pytest.approx(expected, abs=1e-5) and expected > 0.1
  assert float(terms['in_batch_accuracy'].value) == pytest.approx(hits[0])
  assert float(terms['in_batch_accuracy_chance'].value) == pytest.approx(hits[1])
  assert sorted(float(x.weight) for x in terms.values()) == [5, 5, 5, others]  # the last is empty
  assert (masked, others) == (0, float(terms['false_negatives'].weight))


def test_texts_that_are_no_negatives_are_masked_and_counted(params):
  of = objective(texts=3)
  batch = batch_of(of)
  ids = batch['text_ids'].reshape(-1, 3)
  ids[1, 1] = ids[0, 1]  # two items have the same positive
  ids[2, 0] = ids[3, 0]  # or the same anchor
  ids[4, 1] = ids[5, 0]  # a positive is the anchor of another item
  ids[6, 2] = ids[0, 1]  # or a hard negative of it
  ids[5, 2] = ids[3, 1]  # a hard negative elsewhere is what another item has as 2's positive
  loss, terms = loss_of(of, params, batch)
  expected, _, masked, others = by_loops(*items_of(of, params, batch))
  assert float(loss) == pytest.approx(expected, abs=1e-5)
  # 0 and 1 mask each other's positive and the negative of 6; 2 and 3 each other's positive and the
  # negative of 5; 4 and 5 the text that is 4's own positive, and the positive of 4 again for 5.
  assert masked == 9 == float(terms['false_negatives'].total)
  assert float(terms['false_negatives'].weight) == others


@pytest.mark.parametrize('empty_score', [-1.0, 5.0])
def test_pairs_with_scores_are_put_in_their_order(params, empty_score):
  of = objective(loss='cosent', temperature=0.5)  # at which each pair of pairs counts
  batch = batch_of(of)
  batch['scores'][-1, of.texts :] = empty_score
  loss, _ = loss_of(of, params, batch)
  vectors, there, scores = items_of(of, params, batch)
  norms = np.maximum(np.linalg.norm(vectors, axis=-1), 1e-9)
  similar = (vectors[:, 0] * vectors[:, 1]).sum(-1) / norms.prod(-1)
  assert scores[7, 0] == empty_score and there[7].sum() == 0
  higher = [(i, j) for i, j in np.ndindex(7, 7) if scores[i, 0] > scores[j, 0]]
  total = 1 + sum(np.exp((similar[j] - similar[i]) / 0.5) for i, j in higher)
  assert float(loss) == pytest.approx(np.log(total), rel=1e-5)
  # Pairs of which all have one score teach nothing, and count nowhere.
  batch['scores'][:] = 2.0
  _, terms = loss_of(of, params, batch)
  assert terms['cosent'].total == terms['cosent'].weight == 0


def test_pooling_and_length(params):
  batch = batch_of(objective())
  hidden = hidden_of(params['encoder'], batch)
  first = vectors_of(objective(pooling='cls'), params, batch)
  np.testing.assert_allclose(first[1, 2], hidden[1, batch['cls_positions'][1, 2]], atol=1e-5)
  mean = vectors_of(objective(), params, batch)
  assert not np.asarray(mean[3, 2:]).any()  # no text is there
  with_length, _ = loss_of(objective(normalize=False, temperature=1.0), params, batch)
  vectors, there, _ = items_of(objective(), params, batch)
  similar = vectors[:7, 0] @ vectors[:7, 1].T
  nats = np.log(np.exp(similar).sum(1)) - np.diag(similar)
  assert float(with_length) == pytest.approx(nats.mean(), rel=1e-4)


# ---- chunks --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_chunks_take_the_memory_of_one(params):
  def temporaries(of):
    lowered = loss_and_gradient.lower(of, params, batch_of(of, rows=64))
    return lowered.compile().memory_analysis().temp_size_in_bytes

  assert temporaries(objective(chunks=16)) < 0.3 * temporaries(objective())


def test_the_gradient_in_chunks_has_the_dropout_of_its_vectors(params):
  """Of a plain gradient through all chunks, each encoded once under its own key."""
  of, batch, key = objective(chunks=2), batch_of(objective(), rows=6), jax.random.key(7)
  batch['text_ids'][1, 1] = batch['text_ids'][0, 1]  # so that it matters which row is which

  class Plain(Contrastive):
    def vectors(self, params, batch, rng=None):
      halves = []
      for i in (0, 1):
        half = {name: x[i::2] for name, x in batch.items()}
        halves.append(objective().vectors(params, half, jax.random.fold_in(rng, i)))
      return jnp.stack(halves, axis=1).reshape(6, *halves[0].shape[1:])

  found = loss_and_gradient(of, params, batch, key)
  close(found, loss_and_gradient(Plain(**vars(of)), params, batch, key))
  with pytest.raises(AssertionError):
    close(found, loss_and_gradient(of, params, batch, jax.random.key(8)))


# ---- reading -------------------------------------------------------------------------------------

ROWS = [('a b', 'c d', 'e'), ('b', 'f g h', ''), ('c', 'a', 'd d')]


def config(spec, *overrides, arg='task=pairs', eval_spec=''):
  data = f'data.train={spec} data.eval={eval_spec} model.max_position_embeddings=512'
  return load(f'configs/contrastive.py:{arg}', data, *overrides)


def read(config, split='train', skip=False):
  problems = Problems(split, skip)
  return list(reading.read(config, split, problems)), problems


def written(path, *rows):
  """A file of these rows: a TSV, or a .jsonl of objects whose fields the first row names."""
  if path.suffix == '.jsonl':
    lines = [json.dumps(dict(zip(rows[0], row))) for row in rows[1:]]
  else:
    lines = ['\t'.join(row) for row in rows]
  path.write_text(''.join(f'{line}\n' for line in lines))
  return path


@pytest.mark.parametrize('form', ['tsv', 'jsonl'])
def test_triples_are_read_of_all_tables_alike(form, tmp_path):
  path = written(tmp_path / f'train.{form}', ('query', 'positive', 'negative'), *ROWS)
  items, problems = read(config(path, arg='task=triples'))
  assert [item.texts for item in items] == ROWS and problems.counts['pairs'] == 3
  alone, _ = read(config(path, 'contrastive.positive_column='))
  assert [item.texts for item in alone] == [(row[0], row[0]) for row in ROWS]


def test_questions_belong_to_their_paragraph(tmp_path):
  first = [
    {'id': 'q0', 'question': 'a ?'},
    {'id': 'q1', 'question': 'no ?', 'is_impossible': True},
  ]
  last = [{'id': 'q2', 'question': 'b ?', 'is_impossible': False}]
  paragraphs = [{'context': 'c d', 'qas': first}, {'context': 'e f', 'qas': last}]
  path = tmp_path / 'dev.json'
  path.write_text(json.dumps({'data': [{'paragraphs': paragraphs}]}))
  items, problems = read(config(f'a={path},b={path}', arg='task=squad'))
  assert [item.texts for item in items] == 2 * [('a ?', 'c d'), ('b ?', 'e f')]
  assert items[0].id == 'q0'
  assert problems.counts['questions without an answer in their paragraph (left out)'] == 2


def test_lines_are_their_own_positives(tmp_path):
  found = config(written(tmp_path / 'train.txt', ['a b'], [''], ['c']), arg='task=simcse')
  items, problems = read(found)
  assert [item.texts for item in items] == [('a b', 'a b'), ('c', 'c')]
  assert items[1].where == 'train.txt:3' and problems.counts['blank_lines'] == 1
  rows = task.Items(found, Words(), items, problems)
  assert [len(ids) for (ids,) in rows.texts] == [2, 2, 1, 1]


SCORED = 'sentence1', 'sentence2', 'score'


def test_scored_pairs_and_what_is_judged_by_what(tmp_path):
  rows = 'ab4', ('c', 'd', 'nan'), ('e', 'f', '0.5')
  path = written(tmp_path / 'dev.tsv', SCORED, *rows)
  scored = config(path, arg='task=stsb', eval_spec=path)
  items, problems = read(scored)
  assert [item.score for item in items] == [4.0, 0.5]
  assert problems.places == {'without a score (left out of training)': ['dev.tsv:3']}
  items, problems = read(scored, 'eval')
  assert [item.score for item in items] == [4.0, None, 0.5]
  judged = task.Judged(scored, Words(), items, problems)
  vectors = np.eye(8)[: len(judged.read)]
  outputs = {'example_ids': np.arange(1, 1 + len(vectors))[None], 'vectors': vectors[None]}
  assert ['gold' in answer for answer in judged.answers(outputs)] == [True, False, True]
  # Trained on pairs without scores, judged by scores; or the other way round.
  pairs = config(path, 'contrastive.score_column=score', eval_spec=path)
  assert {item.score for item in read(pairs)[0]} == {None}
  assert [item.score for item in read(pairs, 'eval')[0]] == [4.0, None, 0.5]
  ranked = config(path, 'contrastive.eval_format=squad', arg='task=stsb', eval_spec=path)
  assert task.score_names(ranked)[-1] == 'mrr' and not reading.is_scored(ranked, 'eval')


@pytest.mark.parametrize('row', [('', 'b', 'c'), ('a', ' ', 'c'), ('a', 'b', 'b')])
def test_a_record_that_cannot_be_used_is_named_or_left_out(row, tmp_path):
  path = written(tmp_path / 'train.tsv', ('anchor', 'positive', 'negative'), row, *ROWS)
  found = config(path, arg='task=triples')
  with one_sentence('train.tsv:2: '):
    read(found)
  items, problems = read(found, skip=True)
  assert [item.texts for item in items] == ROWS and problems.left_out == 1


DRY = 'model.hidden_dropout_prob=0 model.attention_probs_dropout_prob=0'


@pytest.mark.parametrize(
  'override, said, arg',
  [
    ('optimizer.accumulation=2', 'set it to 1', 'pairs'),
    ('contrastive.chunks=5', 'contrastive.chunks=5', 'pairs'),
    ('data.examples_per_row=3', 'multiple of 2', 'pairs'),
    ('contrastive.loss=cosent', 'score_column', 'pairs'),
    (DRY, 'dropout', 'simcse'),
  ],
)
def test_a_wrong_field_is_one_sentence(override, said, arg):
  with one_sentence(said):
    read(config('x', override, arg=f'task={arg}'))


# ---- rows ----------------------------------------------------------------------------------------


class Words:
  """A tokenizer of letters, whatever their case."""

  pad_id, cls_id, sep_id, unk_id = 0, 1, 2, 3
  vocab_size = 40

  ends = True, True

  def ids_batch(self, texts):
    return [np.array([ord(x.lower()) - 92 for x in t if x.strip()], np.int32) for t in texts]


def test_items_share_a_row_and_equal_texts_have_equal_numbers():
  found = config('x', 'data.seq_length=32', 'data.examples_per_row=6', arg='task=triples')
  items = items_from(*ROWS, ('D', 'C d', 'q'))
  rows = task.Items(found, Words(), items, Problems('train'))
  assert [row['groups'].tolist() for row in rows] == 2 * [[1, 1, 1, 2, 2, 2]]
  weights = [row['weights'].tolist() for row in rows]
  assert weights == [[1, 1, 1, 1, 1, 0], [1] * 6]  # the second has no negative
  ids = np.stack([row['text_ids'] for row in rows]).ravel()
  texts = [text.replace(' ', '').lower() for item in items for text in item.texts]
  for i, a in zip(ids, texts):
    assert [i == j for j in ids] == [a == b for b in texts]
  assert ids.min() >= 1


def test_the_longest_texts_of_an_item_are_cut_and_counted():
  found = config('x', 'data.seq_length=20', 'task.max_length=14')
  items = items_from(('a' * 4, 'b' * 30), ('c' * 9, 'd' * 9), ('e' * 13, 'f'))
  problems = Problems('train')
  rows = task.Items(found, Words(), items, problems)
  assert [len(ids) for (ids,) in rows.texts] == [4, 12, 8, 8, 12, 1]
  assert problems.counts['texts cut (of 14 tokens, or of a row of 20)'] == 4


# ---- scores --------------------------------------------------------------------------------------


def judged(found, items, vectors):
  """The answers and scores of the evaluation of items, of which each text has a given vector."""
  source = task.Judged(found, Words(), items, Problems('eval'))
  order = list(source.number)
  ids, found_at = np.zeros((len(order), 2), np.int32), np.zeros((len(order), 2, D), np.float32)
  for row, text in enumerate(reversed(order)):  # in any order
    ids[row, 0] = source.number[text] + 1
    found_at[row, 0, : len(vectors[text])] = vectors[text]
  answers = source.answers({'example_ids': ids, 'vectors': found_at})
  return answers, source.score(answers), source


def items_from(*rows):
  """Items of these texts and, after them, a score if the row ends with a number."""
  texts = lambda row: tuple(x for x in row if isinstance(x, str))
  scores = [row[-1] if isinstance(row[-1], float) else None for row in rows]
  return [reading.Item('w', str(i), texts(rows[i]), scores[i]) for i in range(len(rows))]


@pytest.mark.parametrize('first, rank', [(1, 1), (np.nan, 3)])
def test_ranks_of_paragraphs_by_hand(first, rank):
  """Vectors that are no numbers are last, not first."""
  found = config('x', 'contrastive.normalize=false contrastive.temperature=2', eval_spec='y')
  items = items_from('qa', 'rb', 'sc', 'sa', 'ab')
  vectors = {'q': [first, 0], 'r': [0, 1], 's': [1, 1], 'a': [3, 1], 'b': [2, 2], 'c': [1, 2]}
  answers, _, source = judged(found, items, vectors)
  # q: a 3, b 2, c 1. r: b 2, c 2, a 1: a tie is a miss. s: a 4, b 4, c 3: a and c are right. a: of
  # itself it is no answer, b 8, c 5.
  assert [answer['rank'] for answer in answers] == [rank, 2, 2, 2, 1]
  assert answers[4]['prediction'] == answers[4]['gold'] == 'b'
  assert answers[4]['loss'] == pytest.approx(np.log(np.exp(4) + np.exp(2.5)) - 4, abs=1e-5)
  chance = {name: x for name, (x, kind) in source.baselines.items() if kind == 'chance'}
  by_chance = {'recall_at_1': 1 / 3, 'recall_at_5': 1, 'recall_at_10': 1, 'mrr': 11 / 18}
  assert chance == pytest.approx(by_chance)  # of three candidates


def test_texts_of_equal_tokens_are_one_candidate():
  found, long, longer = config('x', 'task.max_length=8', eval_spec='y'), 'abcdefg', 'abcdefzz'
  items = items_from(('q', long), 'qh', ('r', longer))
  numbers = {'q': [1, 0], 'r': [1, 0], long: [2, 0], 'h': [1, 1], longer: [2, 0]}
  answers, scores, source = judged(found, items, numbers)
  assert len(source) and len(source.read) == 4 and [a['rank'] for a in answers] == [1, 1, 1]
  assert [a['length'] for a in answers] == [1 + 7, 1 + 1, 1 + 7]  # before the cut


def test_ranks_of_random_vectors_are_those_of_a_sort():
  rng = np.random.default_rng(0)
  texts = [f'{chr(97 + i % 26)}{"z" * (i // 26)}' for i in range(80)]
  items = items_from(*zip(texts[:40], texts[40:]))
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
  found, first = config('x', arg='task=stsb', eval_spec='y'), ('a', 'b', 1.0)
  fingerprints = set()
  for rows in ([('c', 'd', 2.0)], [('c', 'd', 3.0)], [('c', 'd', 2.0), ('a', 'd', 2.0)]):
    source = task.Judged(found, Words(), items_from(first, *rows), Problems('eval'))
    fingerprints.add(source.fingerprint)
  assert len(fingerprints) == 3


def test_similarities_are_correlated_with_scores():
  rng = np.random.default_rng(0)
  texts = [chr(97 + i) for i in range(24)]
  gold, vectors = rng.normal(size=12), {text: rng.normal(size=D) for text in texts}
  items = items_from(*zip(texts[::2], texts[1::2], gold.tolist()))
  found = config('x', arg='task=stsb', eval_spec='y')
  answers, scores, source = judged(found, items, vectors)
  unit = np.array([vectors[text] / np.linalg.norm(vectors[text]) for text in texts])
  similar = (unit[::2] * unit[1::2]).sum(axis=1)
  np.testing.assert_allclose([a['prediction'] for a in answers], similar, atol=1e-6)
  assert scores['spearman'] == pytest.approx(scipy.stats.spearmanr(similar, gold).statistic)
  assert scores['pearson'] == pytest.approx(scipy.stats.pearsonr(similar, gold).statistic)
  assert not source.constant(answers)


# ---- runs ----------------------------------------------------------------------------------------


def test_vectors_of_a_run_are_those_of_its_export_in_sentence_transformers(vocab, tmp_path):
  lines, table = tmp_path / 'train.txt', written(tmp_path / 'dev.tsv', SCORED, 'ab4', 'cd1')
  lines.write_text('old river\ngood new market\n' * 8)
  sizes = f"""model.vocab_size={len(WORDS) + 5} model.hidden_size=16 model.num_hidden_layers=1
    model.num_attention_heads=2 model.intermediate_size=32 model.dtype=float32 data.seq_length=32
    batch_size=8 steps=2 log.tensorboard=false tokenizer.path={vocab} task.max_length=16"""
  pooled = 'contrastive.normalize=false contrastive.pooling=cls'
  data = f'data.train={lines} data.eval={table}'
  found = load('configs/contrastive.py:task=simcse,runlocal', sizes, pooled, data)
  workdir = untrained(found, tmp_path / 'run')
  texts = ['old river', 'good', 'bad market new engine']
  texts.append(' '.join(WORDS[i % len(WORDS)] for i in range(70)))  # is cut
  model = Model(workdir)
  vectors = model.embed(texts)
  assert list(model.counts.values()) == [1]
  convert.convert(str(workdir), f'hf:{tmp_path}/out')
  np.testing.assert_allclose(Model(tmp_path / 'out').embed(texts), vectors, atol=1e-5)
  library = pytest.importorskip('sentence_transformers')
  theirs = library.SentenceTransformer(str(tmp_path / 'out'), device='cpu')
  assert theirs.similarity_fn_name == 'dot' and theirs.max_seq_length == 16
  np.testing.assert_allclose(theirs.encode(texts), vectors, atol=1e-5)
