"""Corpora become rows as BERT's reference cuts them, and batches are a function of (seed, step)."""

import contextlib
import itertools
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from toys import load

from bert_jax import sharding, tokenizers
from bert_jax.config import InputError
from bert_jax.corpus import tokenized
from bert_jax.corpus.units import Marker
from bert_jax.objectives.encode import row_spec, slot_spec
from bert_jax.rows import batches
from bert_jax.rows import order as order_lib
from bert_jax.rows.ahead import Ahead
from bert_jax.rows.corpus_rows import Rows
from bert_jax.rows.language_mixture import Mixture, language_shares
from bert_jax.rows.packing import pack
from bert_jax.rows.plans import Cutting
from bert_jax.rows.row_arrays import build_rows
from bert_jax.rows.source import Source
from bert_jax.tasks.pretraining import resolution, task
from bert_jax.text.documents import held_out, text_hash


def tokenize(documents, tokenizer):
  named = ((f'd{i}', document) for i, document in enumerate(documents))
  return tokenized.tokenize(named, Marker(tokenizer), Counter())


def tokens_of(text):
  return text.piece(0, len(text))[0]


def counts_of(text, tokenizer):
  return tokenized.predictable(text.unigrams(tokenizer.vocab_size), tokenizer)


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
  words = lambda: [f'w{rng.randint(300, 400)}' for _ in range(rng.randint(20))]
  sentences = lambda d: [' '.join([f'w{d}', *words()]) for _ in range(rng.randint(2, 31))]
  documents = map(sentences, range(300))
  return tokenize(documents, tokenizer)


def rows_of(text, tokenizer, seed=0, language=0, **cutting):
  return Rows(text, tokenizer, Cutting(**cutting), seed=seed, language=language)


def planned(*args, **settings):
  """The PlannedRows of a Corpus."""
  return rows_of(*args, **settings).planned(0)


def times_used(text, *spans):
  """How often each token of a text is in some spans [n, 2]."""
  begins, ends = (np.bincount(x, minlength=len(text) + 1) for x in np.concatenate(spans).T)
  return np.cumsum(begins - ends)[:-1]


def pairs(text, tokenizer, **changes):
  settings = dict(kind='nsp', seq_length=64, short_seq_prob=0.1, dupe_factor=2, seed=(0, 0))
  return rows_of(text, tokenizer, **(settings | changes))


def test_labels_say_where_the_second_half_is_from(text, tokenizer):
  rows = pairs(text, tokenizer).planned(0)
  assert (np.diff(rows.plan)[:, [0, 2]] > 0).all()  # neither half is empty
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
  size = lambda rows: np.diff(rows.planned(0).plan[:, :4].reshape(-1, 2, 2))[..., 0].sum(1)
  assert size(none).max() == 61
  assert (size(none) < 30).mean() < 0.12  # ends of documents
  # Drawn between 2 and 61 tokens, then filled up to the end of a sentence (10 tokens on average).
  short = (size(pairs(text, tokenizer, short_seq_prob=1.0)) < 30).mean()
  assert 0.3 < short < 0.5


def test_without_short_rows_all_text_is_used_or_counted(text, tokenizer):
  """Each token is in an A half or a true B half once, or was cut; none is lost silently."""
  rows = pairs(text, tokenizer, short_seq_prob=0.0, dupe_factor=1, seq_length=4096).planned(0)
  assert rows.cut_tokens == 0
  true_b = rows.plan[rows.plan[:, 4] == 0, 2:4]
  assert (times_used(text, rows.plan[:, :2], true_b) == 1).all()


def test_unknown_pieces_are_never_predicted_and_do_not_count(tokenizer):
  tokens = tokenize([['w1 w2 nothing nothing', 'nothing']], tokenizer)
  counts = counts_of(tokens, tokenizer)
  assert counts[tokenizer.unk_id] == 0 and counts.sum() == 2
  assert tokenized.unigram_table(counts, counts)[counts > 0] == pytest.approx(np.log(2))


# ---- batches -------------------------------------------------------------------------------------


def make_batches(source, tokenizer, batch_size=8, seed=0, limits=None, **options):
  where = sharding.batch_sharding(sharding.make_mesh(-1, 1, 1))
  spec = row_spec(batch_size, 64) | slot_spec(batch_size, 1, labels=np.int32)
  limits = limits or {'input_ids': tokenizer.vocab_size}
  return batches.Batches(source, spec, where, limits=limits, seed=seed, **options)


def test_rows_are_padded_with_the_padding_of_the_vocabulary():
  """Which is 1 in RoBERTa's. A row holds a pair and a text without [CLS]."""
  names = SimpleNamespace(pad_id=1, cls_id=7, sep_id=8)
  found = build_rows(
    names,
    np.array([0, 0]),
    np.array([[2, 1], [1, 0]]),
    np.arange(20, 24),
    np.arange(5, 9),
    seq_length=10,
    rows=1,
    slots=3,
    labels=np.array([4, -1]),
    has_cls_sep=np.array([[True, True], [False, True]]),
  )
  assert {name: array[0].tolist() for name, array in found.items()} == {
    'input_ids': [7, 20, 21, 8, 22, 8, 23, 8, 1, 1],
    'token_type_ids': [0, 0, 0, 0, 1, 1, 0, 0, 0, 0],
    'position_ids': [0, 1, 2, 3, 4, 5, 0, 1, 0, 0],
    'segment_ids': [1, 1, 1, 1, 1, 1, 2, 2, 0, 0],
    'unit_starts': [0, 5, 6, 0, 7, 0, 8, 0, 0, 0],
    'cls_positions': [0, 6, 0],
    'labels': [4, 0, 0],
    'weights': [1, 0, 0],
  }


class Numbers(Source):
  """A Source whose rows say their number, plus `first`."""

  spec = row_spec(8, 64) | slot_spec(8, 1, labels=np.int32)

  def __init__(self, rows, first=0):
    super().__init__()
    self.rows, self.first, self.fingerprint = rows, first, f'{first}'

  def __len__(self):
    return self.rows

  def __getitem__(self, i):
    assert 0 <= i < self.rows
    row = {k: np.full(s.shape[1:], self.first + i, s.dtype) for k, s in self.spec.items()}
    return row | {'weights': np.ones(1, np.float32)}


def column(batches, steps, name='labels'):
  """[steps, B] the first value of each row."""
  return np.stack([np.asarray(batches[i][name])[:, 0] for i in range(steps)])


@pytest.mark.parametrize('rows', [40, 43, 5])
def test_in_lanes_each_row_of_a_batch_continues_the_one_before(rows, tokenizer):
  batches = make_batches(Numbers(rows), tokenizer, lanes=True)
  steps = 4 * rows // 8 + 1
  table = column(batches, steps)
  passes = [table.ravel()[p * rows : (p + 1) * rows] for p in range(3)]
  for order in passes:
    assert sorted(order) == list(range(rows))
  jumps = (table[1:] - table[:-1]) % rows != 1
  assert jumps.sum(axis=0).max() <= 4  # a lane goes on elsewhere once in each pass
  firsts = {order[0] for order in passes}
  assert rows == 5 or len(firsts) > 1  # and begins at another place
  again = make_batches(Numbers(rows), tokenizer, lanes=True)
  np.testing.assert_array_equal(again[steps - 1]['labels'][:, 0], table[-1])
  other = make_batches(Numbers(rows), tokenizer, lanes=True, seed=1)
  assert (column(other, 3) != table[:3]).any()


@pytest.mark.parametrize('lanes', [False, True])
def test_an_evaluation_reads_each_row_once_and_in_order(tokenizer, lanes):
  batches = make_batches(Numbers(19), tokenizer, seed=None, lanes=lanes)
  rows, real = column(batches, 3), column(batches, 3, 'weights') > 0
  assert real.tolist() == [[True] * 8, [True] * 8, [True] * 3 + [False] * 5]
  in_order = rows.T[real.T] if lanes else rows[real]
  assert in_order.tolist() == list(range(19)) and not rows[~real].any()


def test_each_pass_is_a_permutation_of_the_seed(tokenizer):
  """And a batch is the same whatever was asked before it."""
  batches = make_batches(Numbers(40), tokenizer)
  passes = column(batches, 15).reshape(3, 40)
  for order in passes:
    assert sorted(order) == list(range(40))
  assert len({tuple(order) for order in (*passes, range(40))}) == 4
  again, other = (make_batches(Numbers(40), tokenizer, seed=seed) for seed in (0, 1))
  for i in (7, 3, 14, 0):
    assert (np.asarray(again[i]['labels'])[:, 0] == passes.reshape(15, 8)[i]).all()
  assert (column(other, 5).ravel() != passes[0]).any()


# ---- other kinds, packing, mixing ----------------------------------------------------------------


def test_sentence_order_pairs_are_neighbours_half_of_them_swapped(text, tokenizer):
  rows = planned(text, tokenizer, kind='sop', seq_length=64, seed=1)
  a0, a1, b0, b1, label = rows.plan.T
  first = np.where(label == 1, b0, a0)
  second = np.where(label == 1, a0, b0)
  assert (first < second).all()
  owner = np.searchsorted(text.document_at, [a0, b0], side='right')
  assert (owner[0] == owner[1])[label >= 0].all()
  assert abs(label[label >= 0].mean() - 0.5) < 0.03
  assert (a1 > a0).all() and (b1 > b0)[label >= 0].all()
  uncut = planned(text, tokenizer, kind='sop', seq_length=4096)
  assert (times_used(text, uncut.plan[:, :2], uncut.plan[:, 2:4]) == 1).all()


def test_a_lone_token_has_no_order(tokenizer):
  rows = rows_of(tokenize([['w1'], ['w2 w3']], tokenizer), tokenizer, kind='sop', seq_length=16)
  assert rows[0]['weights'].tolist() == [0.0] and rows[0]['segment_ids'].sum() == 3
  assert rows[1]['weights'].tolist() == [1.0]


@pytest.mark.parametrize('kind', ['nsp', 'sop', 'full', 'single'])
def test_packed_rows_hold_the_same_examples(text, tokenizer, kind):
  settings, text = dict(kind=kind, seq_length=64, seed=3), text.select(np.arange(300) < 80)
  loose = rows_of(text, tokenizer, **settings)
  packed = rows_of(text, tokenizer, **settings, examples_per_row=5)
  plans = [sorted(map(tuple, rows.planned(0).plan)) for rows in (loose, packed)]
  assert plans[0] == plans[1]
  assert len(packed) <= len(loose)

  def examples(rows, most):
    for row in (rows[i] for i in range(len(rows))):
      segments = row['segment_ids']
      n = segments.max()
      assert 1 <= n <= most and (np.diff(segments[segments > 0]) >= 0).all()
      for k in range(n):
        own = segments == k + 1
        assert (row['position_ids'][own] == np.arange(own.sum())).all()
        assert row['cls_positions'][k] == np.flatnonzero(own)[0]
        label = int(row['labels'][k]) if row['weights'][k] else -1
        yield *row['input_ids'][own], *row['token_type_ids'][own], label
      assert not row['weights'][n:].any()

  assert sorted(examples(packed, 5)) == sorted(examples(loose, 1))


@pytest.mark.parametrize(('room', 'most'), [(16, 3), (40, 8), (128, 1), (128, 32)])
def test_packing_is_the_best_fit_of_one_example_after_the_other(room, most):
  lengths = np.minimum(room, np.random.default_rng(room + most).geometric(0.1, 500))
  rows = []  # lists of examples; a row that was used later is tried first
  for example in np.argsort(-lengths, kind='stable'):
    left = lambda row: room - lengths[row].sum()
    fits = [row for row in rows if len(row) < most and left(row) >= lengths[example]]
    row = min(reversed(fits), key=left) if fits else []
    rows = [other for other in rows if other is not row] + [row]
    row.append(example)
  order, row_at = pack(lengths, room, most)
  assert [sorted(row) for row in sorted(rows, key=min)] == [
    order[a:b].tolist() for a, b in itertools.pairwise(row_at)
  ]


def test_shares_are_m_berts():
  """A language of 1,000 times the tokens is seen 1000 ** 0.7 = 126 times as often."""
  found = language_shares({'en': 1_000_000, 'is': 1_000}, 0.7)
  assert found['en'] / found['is'] == pytest.approx(1000**0.7)
  assert sum(found.values()) == pytest.approx(1)


def test_a_mixture_holds_its_shares_and_each_part_is_a_permutation(text, tokenizer):
  at, weights = np.arange(300), {'a': 0.3, 'b': 0.5, 'c': 0.2}
  own = dict(zip('abc', (at < 170, (at >= 170) & (at < 270), at >= 270)))
  parts = {
    n: rows_of(text.select(k), tokenizer, kind='full', seq_length=64) for n, k in own.items()
  }
  mixed = Mixture(parts, weights)
  ends = list(itertools.accumulate(map(len, parts.values())))
  assert len(mixed) == ends[-1]
  order = order_lib.endless(mixed, 0)
  drawn = np.array([order[i] for i in range(4 * len(mixed))])
  for (name, part), end in zip(parts.items(), ends):
    first = end - len(part)
    assert (mixed[first]['input_ids'] == part[0]['input_ids']).all()
    numbers = drawn[(first <= drawn) & (drawn < end)] - first
    assert abs(len(numbers) / len(drawn) - weights[name]) < 0.01
    for p in range(len(numbers) // len(part)):
      assert sorted(numbers[p * len(part) : (p + 1) * len(part)]) == list(range(len(part)))


def test_rows_that_are_made_together_are_those_that_are_made_alone(text, tokenizer):
  """Of each kind, packed and not, in any order and twice, and of two languages."""
  for kind, packed in itertools.product(('nsp', 'full', 'lm'), (1, 4)):
    settings = dict(kind=kind, seq_length=48, examples_per_row=packed, dupe_factor=3)
    parts = {
      n: rows_of(part, tokenizer, language=k, **settings)
      for k, (n, part) in enumerate({'a': text, 'b': text.select(np.arange(300) < 90)}.items())
    }
    mixed, few = Mixture(parts, {'a': 0.5, 'b': 0.5}), len(parts['a'])
    numbers = [few + 3, 2, few - 1, 2, few, 0]
    together = mixed.gather(numbers)
    for k, number in enumerate(numbers):
      for name, array in mixed[number].items():
        assert (together[name][k] == array).all() and together[name].dtype == array.dtype, name
    assert together['language'].tolist() == [1, 0, 0, 0, 1, 0]
    assert mixed.cuts == (3 if kind == 'nsp' else 1)  # so often a pass holds each text


# ---- what is cut, what fits ----------------------------------------------------------------------


@pytest.fixture(scope='module')
def long_pairs(tokenizer):
  """800 documents of a sentence of 5 to 31 words and one of 5 to 60: (Corpus, lengths [800, 2])."""
  rng = np.random.RandomState(3)
  sizes = np.stack([rng.randint(5, 32, 800), rng.randint(5, 61, 800)], axis=1)
  return tokenize([[' '.join(['w1'] * n) for n in pair] for pair in sizes], tokenizer), sizes


def test_pairs_are_shortened_as_the_reference_does(long_pairs, tokenizer):
  """truncate_seq_pair of create_pretraining_data.py: a token of the longer half, else of the second
  half, until both fit; each from the front or from the back, as a coin says."""
  text, sizes = long_pairs
  plan = planned(text, tokenizer, kind='sop', seq_length=35).plan
  begins = np.cumsum(sizes) - sizes.ravel()
  front = back = 0
  for a0, a1, b0, b1, label in plan:
    document = int(np.searchsorted(begins[::2], a0, side='right')) - 1
    order = (1, 0) if label else (0, 1)
    first, second = (int(sizes[document, k]) for k in order)
    while first + second > 32:
      first, second = (first - 1, second) if first > second else (first, second - 1)
    assert (a1 - a0, b1 - b0) == (first, second)
    for k, start, end in zip(order, (a0, b0), (a1, b1), strict=True):
      begin = begins[2 * document + k]
      assert begin <= start and end <= begin + sizes[document, k]
      front += start - begin
      back += begin + sizes[document, k] - end
  assert front + back == (sizes.sum(1) - 32).clip(0).sum() > 10_000
  assert abs(front / (front + back) - 0.5) < 0.02  # 4 sigma


def test_pairs_are_split_and_random_halves_begin_anywhere(tokenizer):
  """A row of 29 sentences of a token is split behind any but the last of them; a random B begins
  at any sentence of its document."""
  text = tokenize([['w1'] * 500 for _ in range(200)], tokenizer)
  plan = planned(text, tokenizer, kind='nsp', seq_length=32, seed=4).plan
  full = plan[plan[:, 0] % 500 < 450]
  sizes = np.bincount(full[:, 1] - full[:, 0], minlength=29)
  assert len(full) > 4000 and sizes[0] == 0 and len(sizes) == 29
  assert sizes[1:].min() > 0.6 * sizes[1:].mean() and sizes[1:].max() < 1.4 * sizes[1:].mean()
  begins = np.histogram(plan[plan[:, 4] == 1, 2] % 500, 5, (0, 500))[0]
  assert begins.min() > 0.8 * begins.mean() and begins.max() < 1.2 * begins.mean()


def test_single_rows_take_as_many_sentences_as_fit(text, tokenizer):
  """A plain loop over sentences gives the same rows, those that fill a row exactly among them."""
  for room in (20, 30):
    expected, exact = [], 0
    for first, last in zip(text.documents[:-1], text.documents[1:]):
      start = end = text.sentences[first]
      for sentence_end in text.sentences[first + 1 : last + 1]:
        if sentence_end - start > room:
          expected.append((start, end))
          start = end
        end = sentence_end
        exact += end - start == room
      expected.append((start, end))
    rows = planned(text, tokenizer, kind='single', seq_length=room + 2)
    assert rows.plan[:, :2].tolist() == [list(map(int, pair)) for pair in expected]
    assert exact > 10
  short = planned(text, tokenizer, kind='single', seq_length=8)  # now most sentences are longer
  assert (short.plan[1:, 0] == short.plan[:-1, 1]).all() and short.plan[-1, 1] == len(text)
  assert short.lengths().max() == 8


# ---- the splits of a run, and what a healthy loss must beat --------------------------------------


def settings(train, *overrides):
  """configs/pretrain.py:runlocal on some text, with rows of consecutive tokens."""
  rows = 'corpus.rows=full loss.nsp_weight=0 data.seq_length=32 data.examples_per_row=1'
  return load('configs/pretrain.py:runlocal', f'data.train={train}', rows, *overrides)


def sources(tokenizer, train, *overrides):
  """The splits of such a run."""
  return task.sources(resolution.resolve(settings(train, *overrides)), tokenizer)


def ordinary_words(source, tokenizer):
  """The words in the rows of a split, specials left out."""
  ids = np.concatenate([source[i]['input_ids'] for i in range(len(source))])
  return {tokenizer.pieces[i] for i in ids if i not in tokenizer.special_ids}


@pytest.fixture(scope='module')
def one_word_each(tmp_path_factory):
  """(file, words that a share of 0.3 holds out, words that it leaves): document d is twelve times
  the word w<d>; every fifth document has no token at all."""
  path = tmp_path_factory.mktemp('held') / 'text.txt'
  documents, held, kept = [], set(), set()
  for d in range(250):
    documents.append('\u200b' if d % 5 == 0 else '\n'.join([f'w{d} ' * 6] * 2))
    if d % 5:
      sentences = [line.strip() for line in documents[-1].split('\n')]
      (held if held_out(sentences, 0.3) else kept).add(f'w{d}')
  path.write_text('\n\n'.join(documents) + '\n')
  assert 40 < len(held) < 80 and len(held) + len(kept) == 200
  return path, held, kept


def test_held_out_documents_are_not_trained_on(one_word_each, tokenizer):
  path, held, kept = one_word_each
  found = sources(tokenizer, path, 'corpus.eval_share=0.3')
  assert ordinary_words(found['train'], tokenizer) == kept
  assert ordinary_words(found['eval'], tokenizer) == held
  whole = sources(tokenizer, path, f'data.eval={path}')
  for split in ('train', 'eval'):  # with data of its own to evaluate on nothing is held out
    assert ordinary_words(whole[split], tokenizer) == held | kept


def test_a_vocabulary_is_trained_on_what_is_not_held_out(one_word_each):
  path, held, kept = one_word_each
  words = lambda config: {w for s in resolution.texts(config) for w in s.split()} - {'\u200b'}
  assert words(settings(path, 'corpus.eval_share=0.3')) == kept
  assert words(settings(path, 'corpus.eval_share=0.3', f'data.eval={path}')) == held | kept


@pytest.mark.parametrize('number, kind, pairs, left', [
  (11, 'full', 0, 1), (11, 'nsp', 1, 2), (2, 'full', 0, 1), (3, 'nsp', 1, 0), (1, 'full', 0, 0),
])  # fmt: skip
def test_of_few_documents_those_of_the_least_hashes_are_held_out(
  one_word_each, tokenizer, tmp_path, caplog, number, kind, pairs, left
):
  """Neither the rows nor the vocabulary see them; of too few documents none is held out."""
  documents = one_word_each[0].read_text().split('\n\n')
  documents = [document for document in documents if 'w' in document][:number]
  (tmp_path / 'a.txt').write_text('\n\n'.join(documents * 2))
  changes = f'corpus.rows={kind}', f'loss.nsp_weight={pairs}', 'corpus.eval_share=0.001'
  given = settings(tmp_path / 'a.txt', *changes)
  if not left:
    with pytest.raises(InputError, match=f'has {number} .*, too few to hold out {1 + pairs} for'):
      resolution.resolve(given)
    return
  config = resolution.resolve(given)
  share = config.corpus.eval_share
  by_hash = sorted((text_hash(map(str.strip, x.split('\n'))), x.split()[0]) for x in documents)
  held = {word for _, word in by_hash[:left]}
  trained = {word for sentence in resolution.texts(config) for word in sentence.split()}
  assert trained == {word for _, word in by_hash} - held
  assert (share != 0.001) == (f'holds out 0; {share} is taken' in caplog.text)
  assert resolution.resolve(config).corpus.eval_share == share
  if number > 2:
    found = task.sources(config, tokenizer)
    assert ordinary_words(found['eval'], tokenizer) == held
    assert ordinary_words(found['train'], tokenizer) == trained


def test_the_unigram_line_is_that_of_the_documents_trained_on(one_word_each, tokenizer):
  """All words are as frequent. One that was never trained on counts as seen once."""
  path, held, kept = one_word_each
  found = sources(tokenizer, path, 'corpus.eval_share=0.3')
  assert found['train'].baselines['mlm'][0] == pytest.approx(np.log(len(kept)))
  expected = np.log(12 * len(kept) + len(held))
  assert found['eval'].baselines['mlm'][0] == pytest.approx(expected)


@pytest.fixture(scope='module')
def short_and_long(tmp_path_factory):
  """Two languages, 'short' of 300 documents of 4 words, 'long' of 40 of 90 words."""
  folder = tmp_path_factory.mktemp('two')
  rng = np.random.RandomState(0)
  for name, number, size, words in (('short', 300, 4, (0, 20)), ('long', 40, 90, (20, 200))):
    documents = (' '.join(f'w{i}' for i in rng.randint(*words, size)) for _ in range(number))
    (folder / f'{name}.txt').write_text('\n\n'.join(documents) + '\n')
  return f'short={folder}/short.txt,long={folder}/long.txt'


def test_shares_of_languages_are_shares_of_tokens_not_of_rows(short_and_long, tokenizer):
  """Rows of 'short' hold 6 tokens and those of 'long' 32, so many more of them are drawn."""
  size = np.array([300 * 4, 40 * 90])
  for sampling in (0.0, 0.7):
    changes = f'corpus.sampling={sampling}', f'data.eval={short_and_long}'
    train = sources(tokenizer, short_and_long, *changes)['train']
    expected = size**sampling / (size**sampling).sum()
    order = order_lib.endless(train, 0)
    found = train.gather([order[i] for i in range(700)])
    tokens = (found['segment_ids'] > 0).sum(axis=1)
    words = np.where(found['segment_ids'] > 0, found['input_ids'], 0).max(axis=1)
    np.testing.assert_array_equal(words >= 25, found['language'])  # the second language's words
    seen, rows = np.bincount(found['language'], tokens), np.bincount(found['language'])
    assert seen / seen.sum() == pytest.approx(expected, abs=0.02), sampling
  assert rows[0] > rows[1]


def test_the_line_of_all_languages_weighs_them_as_they_are_seen(short_and_long, tokenizer):
  found = sources(tokenizer, short_and_long, 'corpus.sampling=0', 'corpus.eval_share=0.3')
  lines = {split: source.baselines for split, source in found.items()}
  for split, source in found.items():
    sizes = [len(part.text) for part in source.parts.values()]
    shares = [0.5, 0.5] if split == 'train' else np.array(sizes) / sum(sizes)
    each = [lines[split][f'mlm_{name}'][0] for name in ('short', 'long')]
    assert abs(each[0] - each[1]) > 1
    assert lines[split]['mlm'][0] == pytest.approx(np.dot(shares, each))


def test_what_is_evaluated_on_is_cut_once(one_word_each, tokenizer):
  path, *_ = one_word_each
  changes = 'corpus.rows=nsp', 'loss.nsp_weight=1', 'corpus.eval_share=0.3'
  once, often = (sources(tokenizer, path, *changes, f'corpus.dupe_factor={n}') for n in (1, 5))
  assert len(often['eval']) == pytest.approx(len(once['eval']), rel=0.25)
  assert len(often['train']) > 4 * len(once['train'])


def test_pairs_follow_the_seed_of_the_run_and_the_language(one_word_each, tokenizer):
  path, *_ = one_word_each
  changes = 'corpus.rows=nsp', 'loss.nsp_weight=1', 'corpus.eval_share=0.3'
  zero, again, one = (sources(tokenizer, path, *changes, f'seed={s}') for s in (0, 0, 1))
  assert zero['train'].fingerprint == again['train'].fingerprint != one['train'].fingerprint
  # What is evaluated on follows eval.seed, so that runs of any seed are evaluated alike.
  other = sources(tokenizer, path, *changes, 'eval.seed=1')
  assert zero['eval'].fingerprint == one['eval'].fingerprint != other['eval'].fingerprint
  both = sources(tokenizer, f'a={path},b={path}', *changes)['train'].parts  # the same text twice
  assert not np.array_equal(*(part.planned(0).plan for part in both.values()))
  assert [int(part[0]['language']) for part in both.values()] == [0, 1]


# ---- batches and corpora at their edges ----------------------------------------------------------


def test_the_parts_of_a_mixture_have_orders_of_their_own():
  mixed = Mixture({'a': Numbers(64), 'b': Numbers(64)}, {'a': 0.5, 'b': 0.5})
  order = order_lib.endless(mixed, 5)
  drawn = np.array([order[i] for i in range(128)])
  first, second = drawn[drawn < 64], drawn[drawn >= 64] - 64
  assert sorted(first) == sorted(second) == list(range(64))
  assert np.mean(first == second) < 0.2  # chance: 1 in 64


def test_a_mixture_is_another_with_other_parts_or_weights():
  def fingerprint(first=0, share=0.5, second='b'):
    parts = {'a': Numbers(8, first), second: Numbers(8, 100)}
    return Mixture(parts, {'a': share, second: 1 - share}).fingerprint

  changed = fingerprint(first=1), fingerprint(share=0.4), fingerprint(second='c')
  assert len({fingerprint(), *changed}) == 4 and fingerprint() == fingerprint()


def test_text_is_tokenized_in_batches(tokenizer, monkeypatch):
  """Documents without a token are left out."""
  monkeypatch.setattr(tokenized, 'BATCH_SENTENCES', 7)
  documents = [[f'w{d} w{s}' for s in range(1 + d % 4)] for d in range(60)]
  corpus = tokenize([*documents[:50], ['\u200b'], *documents[50:]], tokenizer)
  assert corpus.hashes.tolist() == [text_hash(sentences) for sentences in documents]
  words = ' '.join(' '.join(sentences) for sentences in documents)
  assert ' '.join(tokenizer.pieces[i] for i in tokens_of(corpus)) == words


@pytest.mark.parametrize(
  'limit, changes, sentence',
  [
    (64, {}, ''),
    (63, {}, r'row 0 has position_ids 63, outside \[0, 63\)'),
    (64, {'position_ids': np.full((1, 64), -1, np.int32)}, r'row 0 has position_ids -1, outside'),
    (64, {'labels': np.zeros((1, 2), np.int32)}, r"int32\[2\] for 'labels' .* expects int32\[1\]"),
    (64, None, 'the data gives no rows'),
  ],
)
def test_rows_that_do_not_fit_a_model_are_refused(text, tokenizer, limit, changes, sentence):
  rows = pairs(
    text if changes is not None else text.select(np.zeros(300, bool)), tokenizer, kind='full'
  )
  gather = rows.gather
  rows.gather = lambda numbers: gather(numbers) | (changes or {})
  limits = {'position_ids': limit, 'no array of the batch': 1}
  with pytest.raises(InputError, match=sentence) if sentence else contextlib.nullcontext():
    make_batches(rows, tokenizer, seed=None, limits=limits).check()


# ---- ahead of the step ---------------------------------------------------------------------------


def test_the_next_batches_are_made_while_a_step_is_computed():
  """Here batches are their numbers and take a moment."""
  asked = []

  def slow(step):
    asked.append(step)
    time.sleep(0.05)
    if step == 7:
      raise InputError('batch 7')
    return step

  ahead = Ahead(slow, end=10)
  batch, waited = ahead.take(3)
  assert batch == 3 and waited > 0.04
  time.sleep(0.2)  # the step
  assert asked == [3, 4, 5]
  batch, waited = ahead.take(4)
  assert batch == 4 and waited < 0.04
  assert [ahead.take(n)[0] for n in (5, 6)] == [5, 6]
  with pytest.raises(InputError, match='batch 7'):
    ahead.take(7)
  # A run that goes back asks for other steps; none is made past the end.
  assert [ahead.take(n)[0] for n in (0, 1, 9)] == [0, 1, 9]
  ahead.close()
  assert max(asked) == 9
