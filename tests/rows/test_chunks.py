"""Rows of a large prepared corpus: planned by chunk, mixed within a window, once in each pass."""

import hashlib
import resource
import shutil
from collections import Counter
from unittest import mock

import jax
import numpy as np
import pytest
from running import flipped
from toys import load

from bert_jax import files, sharding, tokenizers
from bert_jax.corpus import shards, store
from bert_jax.corpus.store import Chunks, Store
from bert_jax.errors import InputError
from bert_jax.objectives.encode import row_spec, slot_spec
from bert_jax.rows import batches
from bert_jax.rows import order as order_lib
from bert_jax.rows.corpus_rows import Rows
from bert_jax.rows.plans import Cutting
from bert_jax.tasks.pretraining import resolution, task
from bert_jax.text import documents
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.prepare.steps import Settings

EXACT = {'full': dict(kind='full'), 'lm': dict(kind='lm')}
ESTIMATED = {
  'single': dict(kind='single'),
  'packed': dict(kind='full', examples_per_row=4),
  'nsp': dict(kind='nsp', short_seq_prob=0.1, dupe_factor=3),
  'sop': dict(kind='sop', short_seq_prob=0.1, dupe_factor=3),
}
DOCUMENTS = 360  # of each of two files; those of the second are of the language 'b'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A corpus of two languages and three shards in chunks of 300 tokens and 4 documents: document d
  is of 3 to 60 words w<d> with numbers between them, in sentences of 6. Beside it is one of the
  same text that is planned as a whole."""
  out, rng = tmp_path_factory.mktemp('chunks'), np.random.default_rng(0)
  words = [f'w{i}' for i in range(2 * DOCUMENTS)] + [f'n{i}' for i in range(60)]
  (out / 'vocab.txt').write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words]))
  texts = []
  for d in range(2 * DOCUMENTS):
    text = [x for i in range(rng.integers(3, 61)) for x in (f'w{d}', f'n{i}')]
    texts.append('\n'.join(' '.join(text[i : i + 6]) for i in range(0, len(text), 6)))
  parts = ('one', 'a', 0, 100), ('two', 'a', 100, DOCUMENTS), ('b', 'b', DOCUMENTS, None)
  inputs = []
  for name, language, begin, end in parts:
    (out / f'{name}.txt').write_text('\n\n'.join(texts[begin:end]) + '\n')
    inputs.append((language, str(out / f'{name}.txt')))
  settings = Settings(tuple(inputs), str(out), shard_mb=0)
  prepare.prepare(settings, out / 'whole')
  with pytest.MonkeyPatch.context() as patch:
    for name, value in (('CHUNK_TOKENS', 300), ('CHUNK_DOCUMENTS', 4), ('WHOLE', 1000)):
      patch.setattr(shards, name, value)
    prepare.prepare(settings, out / 'D')
  return out / 'D'


@pytest.fixture(scope='module')
def tokenizer(folder):
  return tokenizers.load_folder(folder)


@pytest.fixture(scope='module')
def opened(folder, tokenizer):
  return Store(folder, tokenizer)


@pytest.fixture(scope='module')
def whole(folder, tokenizer):
  """The Corpus of language 'a'."""
  return Store(folder.with_name('whole'), tokenizer).text(0, 1)


def rows_of(text, tokenizer, settings, seed=(0, 0)):
  return Rows(text, tokenizer, Cutting(seq_length=20, **settings), seed=seed)


@pytest.fixture
def make(opened, tokenizer):
  """Makes the Rows of language 'a' in chunks."""
  return lambda settings, window=2: rows_of(Chunks(opened, 0, window), tokenizer, settings)


def batches_of(source, size=8, **options):
  spec = row_spec(size, 20) | slot_spec(size, 1, labels=np.int32)
  where = sharding.batch_sharding(sharding.make_mesh(1, 1, 1, jax.devices()[:1]))
  return batches.Batches(source, spec, where, limits={}, **({'seed': 0} | options))


def a_pass(rows, number=0, *, seed=0, size=8):
  """The numbers of the rows in one pass over them, in batches of a size."""
  order = order_lib.endless(rows, seed, size)
  return [order[number * len(rows) + i] for i in range(len(rows))]


def examples(rows):
  """How often each example is in some rows."""
  ids, segments = rows['input_ids'], rows['segment_ids']
  numbers = ((r, s) for r in range(len(ids)) for s in range(1, segments[r].max() + 1))
  return Counter(tuple(ids[r][segments[r] == s]) for r, s in numbers)


# ---- chunks --------------------------------------------------------------------------------------


def test_a_chunk_is_a_run_of_whole_documents_of_one_language(opened, folder, tokenizer):
  columns, at_once = opened.columns, Store(folder.with_name('whole'), tokenizer)
  assert len(columns['tokens']) > 60 and columns['documents'].sum() == 2 * DOCUMENTS
  assert (np.diff(columns['shard']) >= 0).all() and set(columns['shard']) == {0, 1, 2}
  assert columns['tokens'].min() >= 150 and columns['documents'].min() >= 4
  assert 300 <= np.median(columns['tokens']) < 400
  for language in (0, 1):
    all_of_it, chunks = at_once.text(language, 1), opened.text(language, 1)
    corpora = [chunks.unit(k) for k in range(chunks.units)]
    assert chunks.units > 30 and len(chunks) == len(all_of_it)
    for name in ('tokens', 'starts', 'sizes', 'hashes'):
      joined = np.concatenate([getattr(corpus, name) for corpus in corpora])
      np.testing.assert_array_equal(joined, getattr(all_of_it, name))
    for name in ('sentences', 'documents'):
      joined = np.concatenate([np.diff(getattr(corpus, name)) for corpus in corpora])
      np.testing.assert_array_equal(joined, np.diff(getattr(all_of_it, name)))
    counts = all_of_it.unigrams(opened.unigrams.shape[1])
    np.testing.assert_array_equal(opened.unigrams[language], counts)
    np.testing.assert_array_equal(chunks.sums_over_documents(lambda x: x), chunks.sums['tokens'])


def test_a_language_of_few_tokens_is_one_unit(opened, whole, monkeypatch):
  for most, units in ((len(whole), 1), (len(whole) - 1, len(Chunks(opened, 0, 1).chunks))):
    monkeypatch.setitem(opened.meta, 'whole', 2 * most + 1)  # of two languages
    assert opened.text(0, 1).units == units


def test_documents_that_are_long_or_few(monkeypatch):
  """Chunks end with their language, take many short documents and few long ones."""
  for name, value in (('CHUNK_TOKENS', 100), ('CHUNK_DOCUMENTS', 4), ('MOST_TOKENS', 800)):
    monkeypatch.setattr(shards, name, value)
  for tokens, languages, begins in (
    ([50] * 10, [0] * 10, [0, 4, 10]),
    ([50] * 8, [0] * 5 + [1] * 3, [0, 5, 8]),
    ([900] * 3 + [30] * 9, [0] * 12, [0, 1, 2, 3, 7, 12]),
    # Limits that are just reached: of tokens, of the rest after a chunk.
    ([100] * 4 + [800], [0] * 5, [0, 4, 5]),
    ([400] * 2 + [30] * 6, [0] * 8, [0, 2, 8]),
  ):
    assert shards.cut(np.array(tokens, int), np.array(languages, int)).tolist() == begins


def test_documents_are_held_out_as_in_memory(opened, whole, tokenizer):
  share = 0.3
  held = documents.is_held_out(whole.hashes, share)
  for part, keep in zip(Chunks(opened, 0, 2).divided(share), (~held, held), strict=True):
    expected, corpora = whole.select(keep), [part.unit(k) for k in range(part.units)]
    tokens = np.concatenate([corpus.tokens for corpus in corpora])
    np.testing.assert_array_equal(tokens, expected.tokens)
    assert part.sums['tokens'].tolist() == [len(corpus) for corpus in corpora]
    assert len(part) == len(expected)
    assert part.number_of_documents == expected.number_of_documents
    counts = part.unigrams(tokenizer.vocab_size)
    assert counts.sum() == pytest.approx(len(expected), rel=0.3)
    # Units of few documents that are kept are as large as others.
    assert 200 < np.median([len(corpus) for corpus in corpora]) < 800
  assert Chunks(opened, 0, 2).divided(0.0)[1] is None


def test_fingerprints_tell_shares_parts_seeds_and_texts_apart(opened, tokenizer):
  found = set()
  for share in (0.0, 0.1, 0.2):
    parts = [part for part in Chunks(opened, 0, 2).divided(share) if part]
    found |= {rows_of(part, tokenizer, EXACT['full']).fingerprint for part in parts}
  assert len(found) == 5
  text = Chunks(opened, 0, 2)
  again, other = (rows_of(text, tokenizer, ESTIMATED['nsp'], (seed, 0)) for seed in (0, 1))
  assert again.fingerprint != other.fingerprint
  changed = mock.Mock(wraps=opened, columns=opened.columns, meta=opened.meta | {'fingerprint': 'y'})
  assert Chunks(changed, 0, 2).fingerprint != text.fingerprint  # as with other marks of words


def test_of_many_chunks_some_documents_are_evaluated(opened, tokenizer, monkeypatch):
  """All of them are left out of training. Each row of an evaluation comes once."""
  train, held = Chunks(opened, 0, 2).divided(0.2)  # in units of 5 chunks
  every = rows_of(held, tokenizer, EXACT['full'])
  monkeypatch.setattr(store, 'EVALUATED', 50)
  kept, again = Chunks(opened, 0, 2).divided(0.2)
  assert kept.fingerprint == train.fingerprint
  assert again.units == 50 * len(again.chunks) // len(opened.columns['tokens']) // 5 < held.units
  assert again.firsts[0] == 0 and again.firsts[-1] == held.firsts[-1]
  rows = rows_of(again, tokenizer, EXACT['full'])
  some, all_rows = (examples(x.gather(range(len(x)))) for x in (rows, every))
  assert not some - all_rows and 0 < some.total() < all_rows.total()


# ---- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize('kind', EXACT)
def test_each_row_comes_once_in_a_pass(make, whole, tokenizer, kind):
  """And the rows are those of a plan of the whole corpus."""
  rows, in_memory = make(EXACT[kind]), rows_of(whole, tokenizer, EXACT[kind])
  assert rows.units > 30 and rows.missed == 0 and len(rows) == len(in_memory)
  numbers = np.arange(len(rows))
  assert examples(rows.gather(numbers)) == examples(in_memory.gather(numbers))
  for name, total in in_memory.totals.items():
    assert rows.totals[name] == pytest.approx(total, rel=0.1), name
  passes = [a_pass(rows), a_pass(rows, 1), a_pass(rows, 7), a_pass(rows, seed=1)]
  assert all(sorted(one) == numbers.tolist() for one in passes)
  assert len({*map(tuple, passes)}) == 4
  # The units come in another order, too.
  units = [rows.row_at.searchsorted(one, side='right') - 1 for one in passes[:2]]
  firsts = [list(dict.fromkeys(one.tolist())) for one in units]
  assert sorted(firsts[0]) == sorted(firsts[1]) and firsts[0] != firsts[1]


@pytest.mark.parametrize('kind', ESTIMATED)
def test_rows_of_other_kinds_are_about_as_many_as_expected(make, whole, tokenizer, kind):
  """What is left out or given twice is little, and said."""
  rows = make(ESTIMATED[kind])
  units, cuts = rows.units, rows.cuts
  actual = [len(rows.planned(place)) for place in range(cuts * units)]
  off = np.abs(np.tile(rows.rows_of, cuts) - actual).sum() / 2 / sum(actual)
  assert 0 < off < 0.05 and rows.missed == pytest.approx(off, abs=0.02)  # of 40 rows a unit
  assert len(rows) == pytest.approx(sum(actual), rel=0.03) and len(rows) % cuts == 0
  assert rows.totals['examples'] == pytest.approx(
    rows_of(whole, tokenizer, ESTIMATED[kind]).totals['examples'], rel=0.1
  )
  if kind in ('single', 'packed'):
    in_memory = rows_of(whole, tokenizer, ESTIMATED[kind])
    found, once = (examples(x.gather(range(len(x)))) for x in (rows, in_memory))
    assert set(found) <= set(once) and len(found) > 0.95 * len(once)


def test_pairs_are_cut_anew_in_each_part_of_a_pass(make, tokenizer):
  rows = make(ESTIMATED['nsp'])
  units = rows.units
  a, b = ([rows.planned(cut * units + k).plan for k in range(units)] for cut in (0, 1))
  assert all(x.shape != y.shape or (x != y).any() for x, y in zip(a, b, strict=True))
  numbers = a_pass(rows)
  assert sorted(numbers) == list(range(len(rows)))
  found = rows.gather(numbers)
  assert found['weights'].sum() > 0.9 * len(rows)
  for ids, types in zip(found['input_ids'][:200], found['token_type_ids'][:200]):
    words = [tokenizer.pieces[i] for i in ids]
    for half in (0, 1):  # no half is of two documents
      assert len({w for w, t in zip(words, types) if w[0] == 'w' and t == half}) <= 1


@pytest.mark.parametrize('size, window', [(7, 3), (250, 16), (1, 4)])
def test_lanes_of_any_batch_cover_a_pass(make, size, window):
  rows = make(EXACT['full'], window)
  assert sorted(a_pass(rows, size=size)) == list(range(len(rows)))


def test_rows_come_back_in_the_order_asked_for(make):
  rows = make(EXACT['full'])
  numbers = np.random.default_rng(0).permutation(len(rows))[:50]
  for name, array in rows.gather(numbers).items():
    np.testing.assert_array_equal(array, [rows[i][name] for i in numbers])


@pytest.mark.parametrize('kind, is_enough', [('full', True), ('nsp', False)])
def test_a_unit_of_too_few_documents_gives_rows_of_the_next(make, monkeypatch, kind, is_enough):
  rows = make(dict(kind=kind))
  units = [rows.text.unit(k) for k in range(2)]
  one = units[0].select(np.arange(units[0].number_of_documents) < 1)
  monkeypatch.setattr(rows.text, 'unit', mock.Mock(side_effect=[one, units[1]]))
  assert rows._plan(0).corpus is (one if is_enough else units[1])


def test_a_batch_is_a_function_of_seed_and_step(make):
  """Whatever was read before, and however little stays open."""
  whole = batches_of(make(ESTIMATED['nsp']))
  steps = [np.asarray(whole[step]['input_ids']) for step in range(60)]
  for step in (47, 3, 59):
    again = make(ESTIMATED['nsp'])
    np.testing.assert_array_equal(batches_of(again)[step]['input_ids'], steps[step])
    assert len(again._planned) <= 2 * 8


def test_a_pass_is_mixed_well(make, whole, tokenizer):
  """A batch of 16 rows beside one of a full permutation: how many documents it holds, how often two
  neighbours are of one document, and how far it is from the mean of the corpus, as the variance of
  the mean number of its documents, over that of independent rows."""
  size, found = 16, {}
  in_memory = rows_of(whole, tokenizer, EXACT['full'])
  for name, source in (('chunks', make(EXACT['full'], 8)), ('all', in_memory)):
    document = source.gather(a_pass(source, size=size))['input_ids'][:, 1]
    of_batch = document[: len(document) // size * size].reshape(-1, size)
    held = np.mean([len(set(batch)) for batch in of_batch])
    same = np.mean(of_batch[:, 1:] == of_batch[:, :-1])
    found[name] = held, same, of_batch.mean(axis=1).var() * size / document.var()
  (held, same, spread), (most, _, independent) = found['chunks'], found['all']
  assert held > 0.85 * most and same < 0.15
  assert 0.6 < independent < 1.4 and spread < 2


def config_of(folder, *overrides):
  rows = 'corpus.rows=full loss.nsp_weight=0 data.seq_length=20 corpus.eval_share=0.2'
  config = load('configs/pretrain.py:runlocal', f'data.train={folder}', rows, *overrides)
  return resolution.resolve(config)


def test_a_run_of_two_languages_reads_chunks(folder, tokenizer):
  """Its rows are those of a corpus that is planned as a whole; languages are mixed."""
  few = task.sources(config_of(folder.with_name('whole')), tokenizer)
  many = task.sources(config_of(folder, 'corpus.window=6'), tokenizer)
  for split in ('train', 'eval'):
    assert all(part.units == 1 for part in few[split].parts.values())
    assert all(part.units > 1 and part.window == 3 for part in many[split].parts.values())
    assert len(many[split]) == len(few[split])
    for name, (value, _) in few[split].baselines.items():
      rel = 0.15 if name.endswith('accuracy') else 0.05  # the share of one piece
      assert many[split].baselines[name][0] == pytest.approx(value, rel=rel), name
    one, two = (x[split].gather(np.arange(len(x[split]))) for x in (few, many))
    assert examples(one) == examples(two)
  order = order_lib.endless(many['train'], 0, 8)
  numbers = [order[i] for i in range(2000)]
  languages = many['train'].gather(numbers)['language']
  assert 0.4 < languages.mean() < 0.6 and len(set(numbers)) > 1000
  only = task.sources(config_of(folder, 'corpus.languages=b'), tokenizer)['train']
  assert (only.gather(range(9))['language'] == 0).all() and only.text.language == 1


# ---- start, memory, files ------------------------------------------------------------------------


class Simulated(Store):
  """A corpus of chunks of 512 documents of 512 tokens on average; their arrays are made up."""

  read = 0

  def _arrays(self, chunk):
    self.read += 1
    rng, none = np.random.default_rng(chunk), np.zeros(512, int)
    sizes = rng.integers(4, 61, 512) * 16
    columns = sizes, none + 16, 5 * sizes, 5 * sizes, rng.integers(0, 2**32, 512), none
    return {
      'tokens': rng.integers(5, 700, sizes.sum()).astype(np.uint16),
      'starts': np.full(sizes.sum(), 7, np.uint8),
      'sentences': np.repeat(sizes // 16, 16).astype(np.int32),
      'documents': np.stack(columns, axis=1).astype(np.uint32),
    }


def simulated(folder, chunks, tokenizer):
  """A Simulated of so many chunks."""
  folder.mkdir()
  sizes = {'documents': 512, 'sentences': 512 * 16, 'tokens': 1 << 18, 'language': 0, 'crc32': 0}
  table = {name: np.full(chunks, value, np.int64) for name, value in sizes.items()}
  table['shard'] = np.arange(chunks) // 61
  with open(folder / store.TABLE, 'wb') as file:
    np.savez(file, unigrams=np.ones((1, tokenizer.vocab_size), np.int64), **table)
  digest = hashlib.sha256((folder / store.TABLE).read_bytes()).hexdigest()
  meta = {'languages': [''], 'fingerprint': '', 'whole': 0, 'vocabulary': tokenizer.fingerprint}
  files.write_sealed(folder / store.META, meta | {'chunks': digest, 'documents': ''})
  return Simulated(folder, tokenizer)


def test_a_start_reads_no_more_and_takes_no_more_memory_for_250_gb(
  tokenizer, tmp_path, monkeypatch
):
  """250,000 chunks are 6.6e10 tokens. A run goes on at a late step: its first row is looked up."""
  before, reads = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, {}
  for chunks in (300, 250_000):
    opened = simulated(tmp_path / str(chunks), chunks, tokenizer)
    for kind in ('nsp', 'full'):
      opened.read = 0
      train, held = opened.text(0, 16).divided(0.01)
      rows = Rows(train, tokenizer, Cutting(kind, 128, 0.1, dupe_factor=5))
      evaluated = Rows(held, tokenizer, Cutting(kind, 128, 0.1), seed=(0, 1))
      assert 0 <= order_lib.endless(rows, 0, 256)[256 * 900_000] < len(rows)
      assert len(held) == pytest.approx(min(chunks, 4096) * 0.01 * 2**18, rel=0.3)
      assert max(rows.missed, evaluated.missed) < 0.025
      reads[kind, chunks] = opened.read
    if chunks > 300:
      assert len(rows) == pytest.approx(chunks * 2**18 / 110, rel=0.1)
  assert reads['nsp', 250_000] < 17 * 100 and reads['full', 250_000] < 17 * 100
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 3e5  # KB


@pytest.mark.parametrize('name', ['corpus.json', store.TABLE, store.DOCUMENTS, *store.ARRAYS])
def test_damage_is_named_in_every_file(folder, tokenizer, tmp_path, name):
  """A flipped bit, a file that is cut short, and one that is missing; with the fix."""
  if name in store.ARRAYS:
    name = f'shards/00001/{name}.npy'
  data = (folder / name).read_bytes()
  for number, damaged in enumerate((flipped(data, len(data) * 4), data[: len(data) // 2], None)):
    out = shutil.copytree(folder, tmp_path / str(number))
    (out / name).unlink()
    if damaged is not None:
      (out / name).write_bytes(damaged)
    with pytest.raises(InputError, match='prepare|corpus.json .*; is it whole'):
      for source in task.sources(config_of(out), tokenizer).values():
        source.gather(range(len(source)))


def test_a_network_that_fails_is_no_damage(opened, monkeypatch):
  monkeypatch.setattr(store, 'fetched', mock.Mock(side_effect=OSError('not now')))
  with pytest.raises(OSError, match='not now'):
    opened._opened(0)
