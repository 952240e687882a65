"""Prepared examples: the same rows and the same training as of the table; damage is named."""

import json
import shutil

import numpy as np
import pytest
from running import same_bits
from small_tables import WORDS, load, sentence

from bert_jax import tokenizers
from bert_jax.config import InputError
from bert_jax.corpus.tokenized import DamagedRecord
from bert_jax.rows import prepared_examples
from bert_jax.rows.prepared_examples import Prepared
from bert_jax.tasks.classification import task
from bert_jax.tools import prepare_examples

KINDS = {  # {kind: (fields, rng -> label)}
  'labels': ([], lambda rng: 'cab'[rng.integers(3)]),
  'whole': ([], lambda rng: f'{rng.integers(3)}.0'),  # as pandas writes 0, 1, 2 beside gaps
  'pairs': (['table.pair_column=second'], lambda rng: 'ab'[rng.integers(2)]),
  'numbers': (['table.regression=true'], lambda rng: f'{rng.normal():.3f}'),
  'several': (['table.multi_label=true'], lambda rng: ','.join(rng.permutation(list('cba'))[:2])),
}
COLUMN = '--config.table.text_column=sentence'
SHAPE = ['data.seq_length=16', 'data.examples_per_row=3']


def prepared(path, vocab, out, *fields):
  given = '--config=configs/finetune.py:task=table', f'--config.data.train={path}', *fields
  prepare_examples.main([*given, f'--vocab={vocab}', f'--out={out}'])


@pytest.fixture(scope='module')
def folders(vocab, tmp_path_factory):
  """{kind: (table, the folder that was prepared of it, fields)}; a part has 7 examples."""
  root, out = tmp_path_factory.mktemp('examples'), {}
  (root / 'V').mkdir()
  shutil.copy(vocab, root / 'V/vocab.txt')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(prepared_examples, 'PART', 7)
    patch.setattr(prepared_examples, 'BLOCK', 14)
    for kind, (fields, label) in KINDS.items():
      rng = np.random.default_rng(0)
      rows = [f'{sentence(rng, 1, 14)}\t{sentence(rng)}\t{label(rng)}' for _ in range(61)]
      path = root / f'{kind}.tsv'
      path.write_text('\n'.join(['sentence\tsecond\tlabel', *rows]) + '\n')
      fields = [f'--config.{x}' for x in (*SHAPE, *fields)]
      prepared(path, root / 'V', root / kind, COLUMN, *fields)
      out[kind] = path, root / kind, fields
    yield out


def source_of(vocab, tokenizer, path, fields, *more):
  given = [f'--config.data.train={path}', COLUMN, *fields]
  more = [f'--config.{x}' for x in more]
  config = task.resolve(load(vocab, 'configs/finetune.py:task=table', *given, *more))
  return task.sources(config, tokenizer, ('train',))['train'], config


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('how', ['', 'cut', 'unpacked'])
def test_rows_are_those_of_the_table(vocab, tokenizer, folders, kind, how):
  path, folder, fields = folders[kind]
  more = ['task.max_length=9', 'task.train_examples=20'] * (how == 'cut')
  more += ['data.examples_per_row=1', 'task.max_length=8'] * (how == 'unpacked')
  more += ['table.long_texts=head_tail'] * (how == 'unpacked' and kind != 'pairs')
  ours, config = source_of(vocab, tokenizer, folder, fields, *more)
  theirs, other = source_of(vocab, tokenizer, path, fields, *more)
  assert config.table.labels == other.table.labels
  assert len(ours) == len(theirs) > 5 and ours.baselines == theirs.baselines
  assert ours.prior == theirs.prior != ()
  for i in range(len(ours)):
    same_bits(ours[i], theirs[i])
    assert {x: a.dtype for x, a in ours[i].items()} == {x: a.dtype for x, a in theirs[i].items()}


def test_what_is_written_says_what_was_read(folders):
  meta = json.loads((folders['labels'][1] / 'examples.json').read_text())
  assert meta['labels'] == ['a', 'b', 'c'] and sum(meta['label_counts'].values()) == 61
  assert meta['examples'] == meta['counts']['examples'] == 61 and meta['counts']['records'] == 61
  assert Prepared(folders['several'][1]).labels.sum(axis=1).tolist() == [2.0] * 61
  assert len(Prepared(folders['labels'][1]).sums) == 5  # blocks of 14


@pytest.mark.parametrize('name', ['examples.json', 'ends.npy', 'labels.npy', 'checksums.npy'])
@pytest.mark.parametrize('damage', ['flipped', 'missing'])
def test_a_damaged_file_is_named(folders, tmp_path, name, damage):
  folder = tmp_path / 'E'
  shutil.copytree(folders['labels'][1], folder)
  content = bytearray((folder / name).read_bytes())
  content[-30] ^= 1
  (folder / name).write_bytes(content) if damage == 'flipped' else (folder / name).unlink()
  said = f'{name}.*prepare the examples again|cannot be read as JSON'
  with pytest.raises(InputError, match=said):
    Prepared(folder)


def test_damaged_ids_are_named_where_they_are_read(folders, tmp_path):
  folder = tmp_path / 'E'
  shutil.copytree(folders['labels'][1], folder)
  whole = Prepared(folder)
  content = bytearray((folder / 'ids.bin').read_bytes())
  content[int(whole.ends[20, -1]) * 2 - 1] ^= 1  # of example 20, in the second block
  (folder / 'ids.bin').write_bytes(content)
  damaged = Prepared(folder)
  np.testing.assert_array_equal(damaged.texts(3)[0], whole.texts(3)[0])
  with pytest.raises(DamagedRecord, match='examples 14 to 27 are damaged; prepare them again'):
    damaged.texts(15)
  (folder / 'ids.bin').write_bytes(content[:-2])
  with pytest.raises(InputError, match=r'ids.bin of .* is missing or damaged'):
    Prepared(folder)
  (folder / 'vocab.txt').write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'x']))
  with pytest.raises(InputError, match='the vocabulary of .* is missing or damaged'):
    Prepared(folder)


@pytest.mark.parametrize(
  'kind, field, sentence',
  [
    ('labels', 'table.multi_label=true', 'was prepared with table.multi_label=false'),
    ('numbers', 'table.regression=false', 'was prepared with table.regression=true'),
    ('labels', 'table.pair_column=second', 'holds single texts and table.pair_column asks for'),
    ('labels', 'table.labels=("x","y")', 'the labels of .* are .* leave table.labels empty'),
    ('labels', 'table.eval_share=0.1', 'name a table in data.eval'),
    ('labels', 'table.long_texts=windows', 'use head, tail or head_tail'),
  ],
)
def test_what_a_prepared_table_cannot_be(vocab, tokenizer, folders, kind, field, sentence):
  _, folder, fields = folders[kind]
  with pytest.raises(InputError, match=sentence):
    source_of(vocab, tokenizer, folder, fields, field)


def test_an_evaluation_wants_the_table(vocab, tokenizer, folders):
  path, folder, fields = folders['labels']
  _, config = source_of(vocab, tokenizer, path, fields)
  config.data.eval = str(folder)
  with pytest.raises(InputError, match='is prepared, and answers need the texts; name the table'):
    task.sources(config, tokenizer, ('eval',))


def test_another_vocabulary_is_refused(vocab, folders, tmp_path):
  (tmp_path / 'vocab.txt').write_text(vocab.read_text() + 'another\n')
  other = tokenizers.load(tmp_path / 'vocab.txt')
  with pytest.raises(InputError, match='prepared with another vocabulary'):
    source_of(vocab, other, folders['labels'][1], folders['labels'][2])


def test_what_was_not_finished_is_named_and_begun_anew(vocab, folders, tmp_path):
  """Killed before its last file: with its vocabulary, and a file that was being written."""
  path, folder, fields = folders['labels']
  out = shutil.copytree(folder, tmp_path / 'E')
  (out / 'examples.json').unlink()
  (out / '.examples.json.12.tmp').write_text('{')
  given = [f'--config.data.train={out}', COLUMN]
  with pytest.raises(InputError, match='E is not finished; run the prepare_examples that made it'):
    task.resolve(load(vocab, 'configs/finetune.py:task=table', *given, *fields))
  prepared(path, folder, out, COLUMN, *fields)
  names = ({x.name for x in where.iterdir()} - {'run.lock'} for where in (out, folder))
  assert next(names) == next(names)
  assert Prepared(out).texts(60)[0].tolist() == Prepared(folder).texts(60)[0].tolist()


def test_balanced_weights_are_of_the_examples_that_are_trained_on(vocab, tokenizer, folders):
  path, folder, fields = folders['labels']
  for number in (0, 20):
    more = f'task.train_examples={number}', "table.class_weights=('balanced',)"
    both = (source_of(vocab, tokenizer, data, fields, *more)[1] for data in (path, folder))
    one, two = (config.table.class_weights for config in both)
    assert one == two


def test_what_cannot_be_prepared(folders, tmp_path, capsys):
  path, folder, fields = folders['labels']
  out = tmp_path / 'E'

  def said(data, out, *fields):
    with pytest.raises(SystemExit):
      prepared(data, folder, out, *fields)
    return capsys.readouterr().err

  assert 'give --out a new or an empty folder' in said(path, folder)
  assert 'name the table' in said(folder, out)
  assert 'not.tsv' in said('not.tsv', out, COLUMN) and not out.exists()
  (tmp_path / 'one.tsv').write_text('sentence\tlabel\n' + f'{WORDS[0]}\tx\n' * 3)
  assert "single label 'x'" in said(tmp_path / 'one.tsv', out, COLUMN)
  prepared(path, folder, out, COLUMN)  # what was begun is begun anew
  assert Prepared(out).texts(60)[0].tolist() == Prepared(folder).texts(60)[0].tolist()
