"""Corpora become rows as BERT's reference cuts them, and batches are a function of (seed, step)."""

import numpy as np
import pytest

from bert_jax import sharding
from bert_jax.config import InputError
from bert_jax.data import batching, corpus, docs, tokenizers, vocabulary
from bert_jax.objectives import base


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
  words = [f'w{i}' for i in range(400)]
  path = tmp_path_factory.mktemp('vocab') / 'vocab.txt'
  path.write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words]) + '\n')
  return tokenizers.load(path)


@pytest.fixture(scope='module')
def text(tokenizer):
  """300 documents of 2 to 30 sentences of 1 to 20 words; word w<d> is everywhere in document d."""
  rng = np.random.RandomState(0)
  documents = [
    [
      ' '.join([f'w{d}'] + [f'w{rng.randint(300, 400)}' for _ in range(rng.randint(20))])
      for _ in range(rng.randint(2, 31))
    ]
    for d in range(300)
  ]
  return corpus.tokenize(documents, tokenizer)


def pairs(text, tokenizer, **changes):
  settings = dict(seq_length=64, short_seq_prob=0.1, dupe_factor=2, seed=(0, False)) | changes
  return corpus.NspRows(text, tokenizer, **settings)


def test_rows_are_cls_a_sep_b_sep(text, tokenizer):
  rows = pairs(text, tokenizer)
  for i in range(0, len(rows), 97):
    row = rows[i]
    ids, segments, types = row['input_ids'], row['segment_ids'], row['token_type_ids']
    n = segments.sum()
    assert ids[0] == tokenizer.cls_id and ids[n - 1] == tokenizer.sep_id
    assert (ids[:n] == tokenizer.sep_id).sum() == 2 and (ids[n:] == tokenizer.pad_id).all()
    first = list(ids).index(tokenizer.sep_id)
    assert (types[: first + 1] == 0).all() and (types[first + 1 : n] == 1).all()
    assert (row['position_ids'][:n] == np.arange(n)).all() and (segments[:n] == 1).all()
    assert first > 1 and n > first + 2  # neither half is empty


def test_labels_say_where_the_second_half_is_from(text, tokenizer):
  rows = pairs(text, tokenizer)
  owner = np.searchsorted(text.sentences[text.documents], rows.plan[:, [0, 2]], side='right')
  same = owner[:, 0] == owner[:, 1]
  label = rows.plan[:, 4]
  assert (same == (label == 0)).all()
  true = rows.plan[label == 0]
  assert (true[:, 2] >= true[:, 1]).all()  # B comes after A
  # Half, plus the rows of a single sentence, whose B is always random.
  assert 0.5 < label.mean() < 0.62


def test_short_rows_and_lengths(text, tokenizer):
  none = pairs(text, tokenizer, short_seq_prob=0.0)
  size = lambda rows: np.diff(rows.plan[:, :4].reshape(-1, 2, 2))[..., 0].sum(1)
  assert size(none).max() == 61
  assert (size(none) < 30).mean() < 0.12  # ends of documents
  # Drawn between 2 and 61 tokens, then filled up to the end of a sentence (10 tokens on average).
  short = (size(pairs(text, tokenizer, short_seq_prob=1.0)) < 30).mean()
  assert 0.3 < short < 0.5


def test_without_short_rows_all_text_is_used_or_counted(text, tokenizer):
  """Each token is in an A half or a true B half once, or was cut; none is lost silently."""
  rows = pairs(text, tokenizer, short_seq_prob=0.0, dupe_factor=1, seq_length=4096)
  assert rows.cut_tokens == 0
  used = np.zeros(len(text.tokens), int)
  for a0, a1, b0, b1, label in rows.plan:
    used[a0:a1] += 1
    if label == 0:
      used[b0:b1] += 1
  assert (used == 1).all()


def test_full_rows_cover_every_token_once(text, tokenizer):
  rows = corpus.FullRows(text, tokenizer, seq_length=32)
  seen = np.concatenate(
    [rows[i]['input_ids'][1 : rows[i]['segment_ids'].sum() - 1] for i in range(len(rows))]
  )
  assert (seen == text.tokens).all()


def test_the_plan_follows_its_seed(text, tokenizer):
  a, b, c = (pairs(text, tokenizer, seed=s) for s in (0, 0, 1))
  assert a.fingerprint == b.fingerprint != c.fingerprint


def test_unknown_pieces_are_never_predicted_and_do_not_count(tokenizer):
  tokens = corpus.tokenize([['w1 w2 nothing nothing', 'nothing']], tokenizer)
  counts = corpus.unigram_counts(tokens, tokenizer)
  assert counts[tokenizer.unk_id] == 0 and counts.sum() == 2
  assert corpus.unigram_nats(counts) == pytest.approx(np.log(2))


def test_one_document_cannot_make_pairs(tokenizer):
  single = corpus.tokenize([['w1 w2', 'w3']], tokenizer)
  with pytest.raises(InputError, match='at least 2 documents.*blank lines'):
    pairs(single, tokenizer)


def test_unigram_nats_is_entropy(text, tokenizer):
  counts = corpus.unigram_counts(text, tokenizer)
  p = counts[counts > 0] / counts.sum()
  assert corpus.unigram_nats(counts) == pytest.approx(-(p * np.log(p)).sum(), rel=1e-6)
  assert corpus.unigram_nats(np.array([1, 1, 1, 1])) == pytest.approx(np.log(4))


# ---- batches -------------------------------------------------------------------------------------


def make_batches(source, tokenizer, batch_size=8, seed=0, limits=None, devices=None):
  mesh = sharding.make_mesh(-1, 1, 1, devices)
  spec = base.row_spec(batch_size, 64) | base.example_spec(batch_size, 1, np.int32)
  return batching.Batches(
    source,
    spec,
    sharding.batch_sharding(mesh),
    limits=limits or {'input_ids': tokenizer.vocab_size},
    seed=seed,
  )


def test_a_batch_is_a_function_of_seed_and_step(text, tokenizer):
  rows = pairs(text, tokenizer)
  a, b, c = (make_batches(rows, tokenizer, seed=s) for s in (0, 0, 1))
  forward = [np.asarray(a[i]['input_ids']) for i in range(12)]
  for i in (7, 3, 11, 0):  # any order
    assert (np.asarray(b[i]['input_ids']) == forward[i]).all()
  assert any((np.asarray(c[i]['input_ids']) != forward[i]).any() for i in range(12))


def test_each_pass_is_a_permutation_and_passes_differ(text, tokenizer):
  class Numbers:
    fingerprint = ''

    def __len__(self):
      return 40

    def __getitem__(self, i):
      return {name: np.full(s.shape[1:], i, s.dtype) for name, s in self.spec.items()}

  source = Numbers()
  source.spec = base.row_spec(8, 64) | base.example_spec(8, 1, np.int32)
  batches = make_batches(source, tokenizer)
  passes = [
    np.concatenate([np.asarray(batches[5 * p + i]['labels'])[:, 0] for i in range(5)])
    for p in range(3)
  ]
  for order in passes:
    assert sorted(order) == list(range(40))
  assert (passes[0] != passes[1]).any() and (passes[1] != passes[2]).any()
  assert (passes[0] != np.arange(40)).any()


def test_the_last_evaluation_batch_is_filled_with_rows_of_weight_zero(text, tokenizer):
  rows = pairs(text, tokenizer)
  batches = make_batches(rows, tokenizer, batch_size=7, seed=None)
  total = sum(float(batches[i]['weights'].sum()) for i in range(len(batches)))
  assert total == len(rows)
  last = batches[len(batches) - 1]
  empty = np.asarray(last['weights'])[:, 0] == 0
  assert empty.sum() == len(batches) * 7 - len(rows)
  assert not np.asarray(last['segment_ids'])[empty].any()


def test_ids_outside_their_table_are_named(text, tokenizer):
  rows = pairs(text, tokenizer)
  batches = make_batches(rows, tokenizer, limits={'input_ids': 100})
  with pytest.raises(InputError, match=r'row \d+ has input_ids \d+, outside \[0, 100\)'):
    for i in range(20):
      batches[i]
  batches = make_batches(rows, tokenizer, limits={'position_ids': 20})
  with pytest.raises(InputError, match='position_ids'):
    batches[0]


def test_no_rows_is_an_error(tokenizer):
  empty = corpus.FullRows(corpus.tokenize([], tokenizer), tokenizer, seq_length=64)
  with pytest.raises(InputError, match='no rows'):
    make_batches(empty, tokenizer)


def test_embedded_corpus_makes_a_vocabulary_and_rows(tmp_path):
  """The first documents of the real default corpus, through the real vocabulary trainer."""
  first = [sentences for _, (_, sentences) in zip(range(60), docs.documents())]
  vocabulary.train_wordpiece((s for d in first for s in d), tmp_path / 'v.txt', vocab_size=2000)
  own = tokenizers.load(tmp_path / 'v.txt')
  tokens = corpus.tokenize(first, own)
  rows = pairs(tokens, own)
  assert len(own.pieces) == 2000 and len(rows) > 100
  unknown = (tokens.tokens == own.unk_id).mean()
  assert unknown < 0.01
  assert 4 < corpus.unigram_nats(corpus.unigram_counts(tokens, own)) < np.log(2000)
