"""Rows of a large prepared corpus: planned by block, mixed within a window, once in each pass."""

import io
import json
import os
import resource
import shutil
from collections import Counter
from unittest import mock

import jax
import numpy as np
import pytest
import simulated_corpus
from running import flipped
from toys import load

from bert_jax import sharding, tokenizers
from bert_jax.corpus import blocks, prepared
from bert_jax.corpus.tokenized import DamagedRecord
from bert_jax.errors import InputError
from bert_jax.files import Path, seal
from bert_jax.objectives.encode import row_spec, slot_spec
from bert_jax.rows import batches, block_rows
from bert_jax.rows.block_rows import BlockRows
from bert_jax.rows.corpus_rows import Rows
from bert_jax.rows.language_mixture import Mixture
from bert_jax.tasks.pretraining import task
from bert_jax.text import documents
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.prepare.steps import Settings

FIXED = {kind: dict(kind=kind) for kind in ('full', 'single', 'lm')}
FIXED['packed'] = dict(kind='full', examples_per_row=4)
DOCUMENTS = 360  # of each of two files; those of the second are of the language 'b'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A corpus of two languages and three shards in blocks of 300 tokens and 4 documents: document d
  is of 3 to 60 words w<d> with numbers between them, in sentences of 6."""
  out, rng = tmp_path_factory.mktemp('blocks'), np.random.default_rng(0)
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
    inputs += [(language, path) for path in documents.sources(str(out / f'{name}.txt'))]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(blocks, 'BLOCK_TOKENS', 300)
    patch.setattr(blocks, 'BLOCK_DOCUMENTS', 4)
    prepare.prepare(Settings(tuple(inputs), str(out), shard_mb=0), out / 'D')
  return out / 'D'


@pytest.fixture(scope='module')
def tokenizer(folder):
  return tokenizers.load_folder(folder)


@pytest.fixture
def index(folder, tokenizer):
  return blocks.Index(folder, prepared.read_meta(folder, tokenizer))


def rows_of(index, tokenizer, settings, window=4):
  return BlockRows(
    blocks.Blocks(index, 0, -(-window // 2)), tokenizer, seq_length=20, seed=(0, 0), **settings
  )


def of_language(folder, tokenizer, number=0):
  loaded = prepared.load(folder, tokenizer)
  return loaded.corpus.select(loaded.languages == number)


def batches_of(source, size=8, **options):
  spec = row_spec(size, 20) | slot_spec(size, 1, labels=np.int32)
  where = sharding.batch_sharding(sharding.make_mesh(1, 1, 1, jax.devices()[:1]))
  return batches.Batches(source, spec, where, limits={}, **({'seed': 0} | options))


def a_pass(rows, number=0, *, seed=0, size=8):
  """The numbers of the rows in one pass over them, in batches of a size."""
  order = batches.endless(rows, seed, size)
  return [order[number * len(rows) + i] for i in range(len(rows))]


def examples(rows):
  """The examples of some rows, sorted."""
  ids, segments = rows['input_ids'], rows['segment_ids']
  return sorted(
    tuple(ids[r][segments[r] == s])
    for r in range(len(ids))
    for s in range(1, segments[r].max() + 1)
  )


def test_a_block_is_a_run_of_whole_documents_of_one_language(index, folder, tokenizer):
  columns, loaded = index.columns, prepared.load(folder, tokenizer)
  assert len(index) > 60 and columns['documents'].sum() == 2 * DOCUMENTS
  assert set(columns['shard']) == {0, 1, 2} and columns['tokens'].sum() == len(loaded.corpus)
  assert (np.diff(columns['shard']) >= 0).all() and set(columns['language']) == {0, 1}
  assert columns['tokens'].min() >= 150 and columns['documents'].min() >= 4
  assert 300 <= np.median(columns['tokens']) < 400
  np.testing.assert_array_equal(index.unigrams, loaded.unigrams)
  for language in (0, 1):
    whole = of_language(folder, tokenizer, language)
    units = blocks.Blocks(index, language, 2)
    corpora = [units.unit(k) for k in range(units.units)]
    for name in ('sentences', 'documents'):
      joined = np.concatenate([np.diff(getattr(corpus, name)) for corpus in corpora])
      np.testing.assert_array_equal(joined, np.diff(getattr(whole, name)))
    tokens = [corpus.piece(0, len(corpus))[0] for corpus in corpora]
    np.testing.assert_array_equal(np.concatenate(tokens), whole.piece(0, len(whole))[0])
    np.testing.assert_array_equal(np.concatenate([x.sizes for x in corpora]), whole.sizes)


def test_a_language_of_few_blocks_is_one_unit(index, monkeypatch):
  number = len(blocks.Blocks(index, 0, 2).blocks)
  for most, units in ((number, 1), (number - 1, number)):
    monkeypatch.setattr(blocks, 'WHOLE', 2 * most)  # of two languages
    assert blocks.Blocks(index, 0, 2).units == units and number > 30


def test_documents_that_are_long_or_few(monkeypatch):
  """Blocks end with their language, take many short documents and few long ones."""
  for name, value in (('BLOCK_TOKENS', 100), ('BLOCK_DOCUMENTS', 4), ('MOST_TOKENS', 800)):
    monkeypatch.setattr(blocks, name, value)
  for tokens, languages, begins in (
    ([1] * 40, [0] * 40, [0, 40]),
    ([50] * 10, [0] * 10, [0, 4, 10]),
    ([50] * 8, [0] * 5 + [1] * 3, [0, 5, 8]),
    ([10] * 14, [0] * 14, [0, 14]),
    ([900] * 3 + [30] * 9, [0] * 12, [0, 1, 2, 3, 7, 12]),
    # Limits that are just reached: of tokens, of the rest after a block, of documents.
    ([100] * 4 + [800], [0] * 5, [0, 4, 5]),
    ([400] * 2 + [30] * 6, [0] * 8, [0, 2, 8]),
    ([30] * 4 + [10] * 5, [0] * 9, [0, 4, 9]),
    ([50] * 8, [0] * 8, [0, 4, 8]),
    ([], [], [0]),
  ):
    assert blocks.cut(np.array(tokens, int), np.array(languages, int)).tolist() == begins


def test_the_shards_of_a_unit_are_expected_before_its_rows(index, tokenizer, monkeypatch):
  expected, rows = [], rows_of(index, tokenizer, FIXED['full'])
  monkeypatch.setattr(blocks.Blocks, 'expect', lambda self, unit: expected.append(unit))
  order, late = block_rows.Order(rows, 3, 8), []
  for place in range(len(rows)):
    unit = int(rows.row_at.searchsorted(order[place], side='right')) - 1
    late += [unit] if unit not in (*expected, *late) else []
  units = rows.blocks.units
  assert len(late) <= order.lanes < units and len({*expected}) >= units - order.lanes
  # The first one of each lane is when its rows are asked for, before one of them is read.
  del expected[:]

  def read(place):
    raise LookupError(sorted(expected))

  monkeypatch.setattr(rows, '_rows', read)
  with pytest.raises(LookupError) as asked:
    rows.gather([int(rows.row_at[unit]) for unit in late])
  assert asked.value.args == (sorted(late),)


@pytest.mark.parametrize('kind', FIXED)
def test_each_row_comes_once_in_a_pass(index, folder, tokenizer, kind):
  """And the rows are those of a plan of the whole corpus; packed ones hold the same examples."""
  rows = rows_of(index, tokenizer, FIXED[kind])
  assert rows.blocks.units > 30 and rows.misses == 0
  whole = Rows(of_language(folder, tokenizer), tokenizer, seq_length=20, **FIXED[kind])
  numbers = np.arange(len(rows))
  found = rows.gather(numbers)
  assert examples(found) == examples(whole.gather(np.arange(len(whole))))
  assert rows.totals == whole.totals and (kind == 'packed' or len(rows) == len(whole))
  passes = [a_pass(rows), a_pass(rows, 1), a_pass(rows, 7), a_pass(rows, seed=1)]
  assert all(sorted(one) == numbers.tolist() for one in passes)
  assert len({*map(tuple, passes)}) == 4


def test_lanes_of_any_batch_cover_a_pass(index, tokenizer):
  for size, window in ((7, 3), (250, 16), (1, 4)):
    rows = rows_of(index, tokenizer, FIXED['full'], window)
    assert sorted(a_pass(rows, size=size)) == list(range(len(rows)))


@pytest.mark.parametrize('kind', ['nsp', 'sop'])
def test_pairs_are_cut_anew_and_their_number_is_expected(index, tokenizer, kind):
  settings = dict(kind=kind, short_seq_prob=0.1, dupe_factor=3)
  rows = rows_of(index, tokenizer, settings)
  units = rows.blocks.units
  rows.most_open = 3 * units  # each is planned once
  cuts = [[rows._rows(cut * units + k) for k in range(units)] for cut in range(3)]
  assert all((a.plan != b.plan).any() for a, b in zip(*cuts[:2]) if a.plan.shape == b.plan.shape)
  actual = sum(len(plan) for cut in cuts for plan in cut)
  assert len(rows) == pytest.approx(actual, rel=0.03) and len(rows) % 3 == 0
  assert rows.totals['examples'] == pytest.approx(actual, rel=0.03)
  numbers = a_pass(rows)
  assert sorted(numbers) == list(range(len(rows)))
  # In each third of a pass every unit comes once, in another way.
  for k, third in enumerate(np.split(np.array(numbers), 3)):
    assert set(third * 3 // len(rows)) == {k}
  found = rows.gather(numbers)
  assert found['weights'].sum() > 0.9 * len(rows)
  for ids, types in zip(found['input_ids'][:200], found['token_type_ids'][:200]):
    words = [tokenizer.pieces[i] for i in ids]
    first, second = ({w for w, t in zip(words, types) if w[0] == 'w' and t == x} for x in (0, 1))
    assert len(first) <= 1 and len(second) <= 1  # no half is of two documents


def test_rows_beyond_what_was_expected_and_too_few(index, tokenizer, monkeypatch):
  """Where units are too many to be counted: what is given twice or left out is little, and said."""
  exact = rows_of(index, tokenizer, FIXED['full'])
  monkeypatch.setattr(block_rows, 'COUNTED', 20)
  monkeypatch.setattr(block_rows, 'FEWER', 32)  # 16 of each language
  rows = rows_of(index, tokenizer, FIXED['full'])
  assert rows.blocks.units > 20 and len(rows) == pytest.approx(len(exact), rel=0.03)
  off = np.abs(rows.rows_of - exact.rows_of)
  assert 0 < off.mean() < 2 and 0 < rows.misses < 0.05
  assert rows.totals['text_tokens'] == pytest.approx(exact.totals['text_tokens'], rel=0.05)
  found = rows.gather(np.arange(len(rows)))
  once = {tuple(x) for x in exact.gather(np.arange(len(exact)))['input_ids'].tolist()}
  seen = [tuple(x) for x in found['input_ids'].tolist()]
  assert set(seen) <= once and len(set(seen)) > 0.95 * len(once)


def test_rows_come_back_in_the_order_asked_for(index, tokenizer):
  rows = rows_of(index, tokenizer, FIXED['full'])
  numbers = np.random.default_rng(0).permutation(len(rows))[:50]
  for name, array in rows.gather(numbers).items():
    np.testing.assert_array_equal(array, [rows[i][name] for i in numbers])


@pytest.mark.parametrize('share', [0.0, 0.1, 0.7])
def test_documents_are_held_out_as_in_memory(index, folder, tokenizer, share):
  of_a = of_language(folder, tokenizer)
  held = documents.is_held_out(of_a.hashes, share)
  kept, out = blocks.Blocks(index, 0, 2).divided(share)
  for part, keep in ((kept, ~held), (out, held)):
    if part is None:
      assert not share
      continue
    expected, corpora = of_a.select(keep), [part.unit(k) for k in range(part.units)]
    tokens = [corpus.piece(0, len(corpus))[0] for corpus in corpora if len(corpus)]
    np.testing.assert_array_equal(np.concatenate(tokens), expected.piece(0, len(expected))[0])
    assert len(part) == pytest.approx(len(expected), rel=0.3)
    counts, exact = (x.unigrams(tokenizer.vocab_size) for x in (part, expected))
    assert counts.sum() == pytest.approx(exact.sum(), rel=0.3)
    # Units of few documents that are kept are as large as others.
    assert np.median([len(corpus) for corpus in corpora]) == pytest.approx(360, rel=0.4)


@pytest.mark.parametrize('most', [20, 50, 1000])
def test_of_many_blocks_some_documents_are_evaluated(index, tokenizer, monkeypatch, most):
  """All of them are left out of training. Each row of an evaluation comes once."""
  settings = dict(seq_length=20, seed=(0, 0), kind='full')
  train, held = blocks.Blocks(index, 0, 2).divided(0.2)  # in units of 5 blocks
  every = BlockRows(held, tokenizer, **settings)
  monkeypatch.setattr(blocks, 'EVALUATED', most)
  for again, part in zip(blocks.Blocks(index, 0, 2).divided(0.2), (train, held)):
    rows, before = BlockRows(again, tokenizer, **settings), BlockRows(part, tokenizer, **settings)
    if part is train or most == 1000:
      assert rows.fingerprint == before.fingerprint and again.units == part.units
      continue
    assert again.units == most * len(again.blocks) // len(index) // 5 < part.units
    assert again.firsts[0] == 0 and again.firsts[-1] == part.firsts[-1]
    assert set(again.firsts) < set(part.firsts) and rows.misses == 0
    assert len(again) == pytest.approx(len(part) * again.units / part.units, rel=0.4)
    all_rows = examples(every.gather(np.arange(len(every))))
    some = examples(rows.gather(np.arange(len(rows))))
    assert not Counter(some) - Counter(all_rows) and 0 < len(some) < len(all_rows)


def config_of(folder, *overrides):
  rows = 'corpus.rows=full loss.nsp_weight=0 data.seq_length=20 corpus.eval_share=0.2'
  config = load('configs/pretrain.py:runlocal', f'data.train={folder}', rows, *overrides)
  return task.resolve(config)


def test_a_run_of_two_languages_reads_blocks(folder, tokenizer, monkeypatch):
  """A corpus of few blocks is read as before; languages are mixed."""
  many = task.sources(config_of(folder, 'corpus.window=6'), tokenizer)
  monkeypatch.setattr(blocks, 'WHOLE', 1000)
  few = task.sources(config_of(folder), tokenizer)
  for split in ('train', 'eval'):
    assert all(isinstance(part, Rows) for part in few[split].parts.values())
    assert all(isinstance(part, BlockRows) for part in many[split].parts.values())
    assert {part.window for part in many[split].parts.values()} == {3}
    assert len(many[split]) == len(few[split])
    for name, (value, _) in few[split].baselines.items():
      rel = 0.15 if name.endswith('accuracy') else 0.05  # the share of one piece
      assert many[split].baselines[name][0] == pytest.approx(value, rel=rel), name
    one, two = (x[split].gather(np.arange(len(x[split]))) for x in (few, many))
    assert examples(one) == examples(two)
  order = batches.endless(many['train'], 0, 8)
  numbers = [order[i] for i in range(2000)]
  languages = many['train'].gather(numbers)['language']
  assert 0.4 < languages.mean() < 0.6 and len(set(numbers)) > 1000


@pytest.mark.parametrize('kind, needed', [('full', 1), ('sop', 1), ('nsp', 2)])
def test_a_unit_of_just_enough_documents_has_rows(index, tokenizer, monkeypatch, kind, needed):
  rows = rows_of(index, tokenizer, dict(kind=kind))
  unit = rows.blocks.unit(3)
  for number in range(4):
    some = unit.select(np.arange(unit.number_of_documents) < number)
    monkeypatch.setattr(rows.blocks, 'unit', mock.Mock(return_value=some))
    assert (rows._plan(0) is not None) == (number >= needed)


def test_lanes_keep_what_they_read_open(index, tokenizer, monkeypatch):
  """More lanes than the window has units plan each unit once, not at every step."""
  plans, plan = Counter(), BlockRows._plan
  source = rows_of(index, tokenizer, FIXED['full'], window=2)
  monkeypatch.setattr(BlockRows, '_plan', lambda self, k: plans.update([k]) or plan(self, k))
  in_lanes = batches_of(source, 24, lanes=True)
  for step in range(4):
    in_lanes[step]
  assert len(plans) > 10 and max(plans.values()) == 1, plans


def test_a_batch_is_a_function_of_seed_and_step(index, tokenizer):
  """Whatever was read before, and however little stays open."""
  settings = dict(kind='nsp', short_seq_prob=0.1, dupe_factor=2)
  whole = batches_of(rows_of(index, tokenizer, settings))
  steps = [np.asarray(whole[step]['input_ids']) for step in range(60)]
  for step in (47, 3, 59):
    again = rows_of(index, tokenizer, settings)
    again.most_open = 1
    np.testing.assert_array_equal(batches_of(again)[step]['input_ids'], steps[step])
    assert len(again._open) == 1


def test_a_pass_is_mixed_well(index, folder, tokenizer):
  """A batch of 16 rows beside one of a full permutation: how many documents it holds, how often two
  neighbours are of one document, and how far it is from the mean of the corpus, as the variance of
  the mean number of its documents, over that of independent rows."""
  window, size = 16, 16  # of each of the two languages 8 blocks of about 6 documents
  rows = rows_of(index, tokenizer, FIXED['full'], window)
  whole = Rows(of_language(folder, tokenizer), tokenizer, seq_length=20, kind='full')
  found = {}
  for name, source in (('blocks', rows), ('all', whole)):
    document = source.gather(a_pass(source, size=size))['input_ids'][:, 1]
    of_batch = document[: len(document) // size * size].reshape(-1, size)
    held = np.mean([len(set(batch)) for batch in of_batch])
    same = np.mean(of_batch[:, 1:] == of_batch[:, :-1])
    found[name] = held, same, of_batch.mean(axis=1).var() * size / document.var()
  (held, same, spread), (most, _, independent) = found['blocks'], found['all']
  assert held > 0.85 * most and same < 0.15
  assert 0.6 < independent < 1.4 and spread < 2


def test_each_language_of_a_batch_is_of_all_its_blocks(index, tokenizer):
  parts = {
    name: BlockRows(blocks.Blocks(index, k, 8), tokenizer, seq_length=20, seed=(0, 0), kind='full')
    for k, name in enumerate('ab')
  }
  order = batches.endless(Mixture(parts, {'a': 0.5, 'b': 0.5}), 0, 16)
  lanes, count = parts['a'].window, len(parts['a'])
  numbers = np.array([order[i] for i in range(16 * 40)]).reshape(-1, 16)
  units = [parts['a'].row_at.searchsorted(some[some < count], side='right') for some in numbers]
  assert lanes == 8 and np.mean([len(set(some)) for some in units]) > 6.5


# ---- start, memory, files ------------------------------------------------------------------------


def test_a_record_that_a_bucket_does_not_give_now_is_not_damaged(index, monkeypatch):
  reader = index.reader
  bucket = [Path('gs://mine/D/x')] * len(reader.paths)
  for paths, error, said in (
    (reader.paths, OSError, DamagedRecord),
    (bucket, ValueError, DamagedRecord),
    (bucket, OSError, OSError),
  ):
    monkeypatch.setattr(reader, 'paths', paths)
    monkeypatch.setattr(reader, '_opened', mock.Mock(side_effect=error('not now')))
    with pytest.raises(said):
      reader(0)


def test_a_corpus_of_many_shards_keeps_few_open(folder, tokenizer, monkeypatch):
  found = []
  for most in (1, 64):
    monkeypatch.setattr(prepared, 'OPEN_SHARDS', most)
    reader = blocks.Index(folder, prepared.read_meta(folder, tokenizer)).reader
    records = np.random.default_rng(0).permutation(reader.ends[-1])[:60]
    before = shards_open()
    found.append([reader(record)[0].tolist() for record in records])
    assert shards_open() - before == min(most, len(reader.paths))
  assert found[0] == found[1] and len(reader.paths) == 3


def shards_open():
  """How many files of records this process has open."""
  links = [os.path.join('/proc/self/fd', x) for x in os.listdir('/proc/self/fd')]
  return sum(os.readlink(x).endswith('.array_record') for x in links if os.path.exists(x))


def test_a_start_reads_no_more_and_takes_no_more_memory_for_250_gb(
  tokenizer, tmp_path, monkeypatch
):
  """250,000 blocks are 6.6e10 tokens."""
  read, reads, part = [], {}, simulated_corpus.Simulated.part
  monkeypatch.setattr(
    simulated_corpus.Simulated, 'part', lambda *given: read.append(1) or part(*given)
  )
  for module, name in (block_rows, 'COUNTED'), (block_rows, 'FEWER'), (blocks, 'EVALUATED'):
    monkeypatch.setattr(module, name, 256)
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  for number in (40, 250_000):
    facts = simulated_corpus.simulated(tmp_path / str(number), number)
    for kind in ('nsp', 'full'):
      read.clear()
      source, held, evaluated = simulated_corpus.begun(
        tmp_path / str(number), facts, tokenizer, kind
      )
      assert len(held) == pytest.approx(min(number, 256) * 0.01 * 2**18, rel=0.3)
      assert kind == 'nsp' or evaluated.misses == 0
      reads[kind, number] = len(read)
    if number > 40:
      assert len(source) == pytest.approx(number * 2**18 / 110, rel=0.1)
  for kind in ('nsp', 'full'):
    assert reads[kind, 250_000] < block_rows.COUNTED + block_rows.FEWER
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2.5e5  # KB


def test_counts_are_kept_and_made_again_where_they_are_damaged(
  folder, index, tokenizer, tmp_path, monkeypatch, caplog
):
  (tmp_path / 'index').mkdir()
  monkeypatch.setattr(index, 'folder', tmp_path)
  first = rows_of(index, tokenizer, FIXED['full'])
  (path,) = (tmp_path / 'index').iterdir()
  monkeypatch.setattr(BlockRows, '_plan', None)  # nothing is planned again
  again = rows_of(index, tokenizer, FIXED['full'])
  assert again.fingerprint == first.fingerprint and again.totals == first.totals
  monkeypatch.undo()
  monkeypatch.setattr(index, 'folder', tmp_path)
  data = path.read_bytes()
  for damaged in (flipped(data, len(data) * 4 + 4), b'', data[:60]):
    path.write_bytes(damaged)
    other = rows_of(index, tokenizer, FIXED['full'])
    assert other.fingerprint == first.fingerprint and 'is damaged' in caplog.text
    caplog.clear()
  longer = rows_of(index, tokenizer, FIXED['lm'])
  assert len(list((tmp_path / 'index').iterdir())) == 2
  assert longer.fingerprint != first.fingerprint


@pytest.fixture
def copy(folder, tokenizer, tmp_path):
  """(a copy of the corpus, to be damaged, its Index)."""
  out = shutil.copytree(folder, tmp_path / 'D')
  return out, blocks.Index(out, prepared.read_meta(out, tokenizer))


def test_a_table_that_is_not_the_corpus_own_is_refused(copy, tokenizer):
  out, _ = copy
  path, _ = blocks.paths(out)
  data, other = path.read_bytes(), io.BytesIO()
  with np.load(path) as file:
    np.savez_compressed(other, **{name: x + (name == 'tokens') for name, x in file.items()})
  for damaged in (other.getvalue(), flipped(data, len(data) * 4), b''):
    path.write_bytes(damaged)
    with pytest.raises(InputError, match='blocks.npz is not the one that corpus.json was written'):
      task.sources(config_of(out), tokenizer)
  path.unlink()
  with pytest.raises(InputError, match='blocks.npz is missing; delete corpus.json and run'):
    task.sources(config_of(out), tokenizer)


def test_other_records_are_other_rows(folder, tokenizer, index):
  """Prepared again with other marks of words: the table of blocks is the same."""
  meta = prepared.read_meta(folder, tokenizer)
  other = blocks.Index(folder, meta | {'fingerprint': 'of other records'})
  one, two = (rows_of(x, tokenizer, FIXED['full']) for x in (index, other))
  assert one.rows_of.tolist() == two.rows_of.tolist() and one.fingerprint != two.fingerprint


def test_records_that_have_changed_are_named(index, tokenizer, monkeypatch):
  rows = rows_of(index, tokenizer, FIXED['full'])
  read = index.read
  monkeypatch.setattr(index, 'read', lambda record: tuple(x[:-1] for x in read(record)))
  with pytest.raises(InputError, match='tokens and its index says .*; prepare it again'):
    rows.gather([0])


def test_an_older_corpus_is_read_as_before(folder, copy, tokenizer, monkeypatch):
  out, _ = copy
  meta = json.loads((out / prepared.META).read_text())
  del meta['blocks']
  (out / prepared.META).write_text(json.dumps(meta | {'seal': seal(meta)}))
  for path in blocks.paths(out):
    path.unlink()
  found = task.sources(config_of(out), tokenizer)['train']
  monkeypatch.setattr(blocks, 'WHOLE', 1000)
  same = task.sources(config_of(folder), tokenizer)['train']
  assert found.fingerprint == same.fingerprint
