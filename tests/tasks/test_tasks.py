"""Labelled data becomes rows without losing or inventing anything, and its mistakes are named."""

import numpy as np
import pytest

from bert_jax import config as c
from bert_jax import tokenizers
from bert_jax.config import InputError
from bert_jax.rows import windows
from bert_jax.tasks.classification import reading, task
from bert_jax.tasks.faulty_records import Problems


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
  path = tmp_path_factory.mktemp('vocab') / 'vocab.txt'
  words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcdefghij', 'good', 'bad']
  path.write_text('\n'.join(words) + '\n')
  return tokenizers.load(path)


def config(folder, *overrides, spec='configs/finetune.py'):
  return c.load(
    spec,
    [
      f'--config.data.train={folder}/train.tsv',
      f'--config.data.eval={folder}/dev.tsv',
      '--config.data.seq_length=8',
      '--config.data.examples_per_row=1',
      *overrides,
    ],
  )


def write(folder, train, dev='sentence\tlabel\na\tx\n'):
  (folder / 'train.tsv').write_text(train)
  (folder / 'dev.tsv').write_text(dev)
  return folder


def rows(config, tokenizer, split='train'):
  return task.sources(task.resolve(config), tokenizer, (split,))[split]


def test_labels_come_from_the_training_data_in_a_fixed_order(tmp_path):
  write(tmp_path, 'sentence\tlabel\na\tzebra\nb\tape\nc\tzebra\n')
  assert task.resolve(config(tmp_path)).table.labels == ('ape', 'zebra')
  given = config(tmp_path, '--config.table.labels=zebra,ape')
  assert task.resolve(given).table.labels == ('zebra', 'ape')


def test_rows_hold_text_label_and_weight(tmp_path, tokenizer):
  write(tmp_path, 'sentence\tlabel\ngood a\ty\nbad b\tx\n')
  source = rows(config(tmp_path), tokenizer)
  row = source[0]
  assert list(row['input_ids']) == [2, 15, 5, 3, 0, 0, 0, 0]
  assert row['labels'] == [1] and row['weights'] == [1] and row['cls_positions'] == [0]
  assert source.baselines['classification_accuracy'] == (0.5, 'majority')


def test_pairs_have_two_token_types(tmp_path, tokenizer):
  table = 'sentence1\tsentence2\tlabel\na b\tc\tentailment\na\tb\tnot_entailment\n'
  write(tmp_path, table, table)
  row = rows(config(tmp_path, spec='configs/finetune.py:task=rte'), tokenizer)[0]
  assert list(row['input_ids']) == [2, 5, 6, 3, 7, 3, 0, 0]
  assert list(row['token_type_ids']) == [0, 0, 0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize(
  'a, b, room', [(10, 10, 9), (3, 10, 9), (10, 3, 9), (10, 10, 8), (2, 2, 9)]
)
def test_long_pairs_are_cut_as_the_reference_cuts_them(a, b, room):
  """google-research/bert run_classifier.py: pop from the end of the longer one, else the second."""
  first, second = list(range(a)), list(range(100, 100 + b))
  expected = first.copy(), second.copy()
  while len(expected[0]) + len(expected[1]) > room:
    (expected[0] if len(expected[0]) > len(expected[1]) else expected[1]).pop()
  got = windows.truncate((np.array(first), np.array(second)), room)
  assert tuple(map(list, got)) == expected


def test_what_is_cut_is_counted_and_said(tmp_path, tokenizer, caplog):
  caplog.set_level('INFO', 'bert_jax')
  write(tmp_path, 'sentence\tlabel\n' + 'a ' * 50 + '\tx\nb\ty\n')
  source = rows(config(tmp_path), tokenizer)
  assert '1 examples cut (longer than 8 tokens)' in caplog.text
  assert source[0]['segment_ids'].sum() == 8 and source[0]['input_ids'][-1] == tokenizer.sep_id


def test_train_examples_takes_the_same_few_for_every_seed(tmp_path, tokenizer):
  letters = 'abcdefghij'
  write(
    tmp_path, 'sentence\tlabel\n' + ''.join(f'{x}\t{"xy"[i % 2]}\n' for i, x in enumerate(letters))
  )
  one, two = (
    rows(config(tmp_path, '--config.task.train_examples=4', f'--config.seed={s}'), tokenizer)
    for s in (0, 1)
  )
  assert len(one) == 4 and one.fingerprint == two.fingerprint
  # Drawn from all of them in their order, since a file may be sorted; evaluation is of everything.
  chosen = [e.texts[0] for e in one.examples]
  assert chosen == sorted(chosen) and chosen not in (list('abcd'), list('ghij'))
  (tmp_path / 'dev.tsv').write_text((tmp_path / 'train.tsv').read_text())
  assert len(rows(config(tmp_path, '--config.task.train_examples=4'), tokenizer, 'eval')) == 10
  assert one.fingerprint != rows(config(tmp_path), tokenizer).fingerprint


def test_regression_reads_numbers(tmp_path, tokenizer):
  table = 'sentence1\tsentence2\tscore\na\tb\t4.5\nc\td\t1\n'
  write(tmp_path, table, table)
  source = rows(config(tmp_path, spec='configs/finetune.py:task=stsb'), tokenizer)
  assert source[0]['labels'].dtype == np.float32 and source[0]['labels'] == [4.5]


@pytest.mark.parametrize(
  'train, dev, overrides, sentence',
  [
    ('sentence\tlabel\na\tx\n', None, (), "single label .*'x'"),
    (
      'sentense\tlabel\na\tx\nb\ty\n',
      None,
      (),
      r"train.tsv:1: has no column 'sentence', only 'sentense', 'label' \(did you mean 'sentense'"
      r'\?\); name one of these with table.text_column, ',
    ),
    (
      'sentence\tlabel\na\tx\nb\ty\n',
      'sentence\tlabel\na\tz\n',
      (),
      r"dev.tsv:2: label 'z' is not",
    ),
    ('sentence\tlabel\na\tx\tc\n', None, (), 'train.tsv:2: 3 columns where 2'),
    ('', None, (), 'empty'),
    ('sentence\tlabel\n', None, (), 'no records'),
    ('sentence\tlabel\na\tx\n', None, ('--config.table.regression=true',), "'x' is not a number"),
  ],
)
def test_bad_tables_are_one_sentence(tmp_path, tokenizer, train, dev, overrides, sentence):
  write(tmp_path, train, *([dev] if dev else []))
  given = config(tmp_path, *overrides)
  with pytest.raises(InputError, match=sentence) as caught:
    task.sources(task.resolve(given), tokenizer)
  assert '\n' not in str(caught.value)


def test_the_embedded_task_keeps_what_pretraining_holds_out():
  """Evaluation texts come from modules that pre-training on the same documentation never reads."""
  from bert_jax.text import documents

  finetune = c.load('configs/quickstart.py:stage=finetune')
  pretrain = c.load('configs/quickstart.py:stage=pretrain')
  runlocal = c.load('configs/pretrain.py:runlocal')
  modules = {
    split: {e.where for e in reading.read(finetune, split, Problems(split))}
    for split in ('train', 'eval')
  }
  assert len(modules['eval']) > 100 and not modules['train'] & modules['eval']
  texts = {
    split: {e.texts[0] for e in reading.read(finetune, split, Problems(split))}
    for split in ('train', 'eval')
  }
  assert not texts['train'] & texts['eval']
  for share in (pretrain.corpus.eval_share, runlocal.corpus.eval_share):
    assert all(documents.held_out(module, share) for module in modules['eval'])


def test_a_glue_folder_gives_each_split_its_own_file(tmp_path, tokenizer):
  write(tmp_path, 'sentence\tlabel\na\tx\nb\ty\n', 'sentence\tlabel\nc\tx\n')
  (tmp_path / 'test.tsv').write_text('index\tsentence\n0\td\n')
  given = c.load(
    'configs/finetune.py',
    [f'--config.data.train={tmp_path}', f'--config.data.eval={tmp_path}'],
  )
  assert len(rows(given, tokenizer).texts) == 2
  assert len(rows(given, tokenizer, 'eval').texts) == 1
  for kind in ('matched', 'mismatched'):
    (tmp_path / f'dev_{kind}.tsv').write_text('sentence\tlabel\nc\tx\n')
  assert len(rows(given, tokenizer, 'eval').texts) == 1  # the exact name wins
  (tmp_path / 'dev.tsv').unlink()
  with pytest.raises(InputError, match='2 files for dev, dev_matched.tsv and dev_mismatched.tsv'):
    rows(given, tokenizer, 'eval')
  for kind in ('matched', 'mismatched'):
    (tmp_path / f'dev_{kind}.tsv').unlink()
  with pytest.raises(InputError, match='no dev or validation or val or valid or testa file but'):
    rows(given, tokenizer, 'eval')


def test_glue_files_as_published(shared, tokenizer):
  given = c.load(
    'configs/finetune.py:task=sst2',
    [
      f'--config.data.train={shared}/glue/SST-2/train.tsv',
      f'--config.data.eval={shared}/glue/SST-2/dev.tsv',
    ],
  )
  source = rows(given, tokenizer, 'eval')
  assert len(source.texts) == 872 and len(source) < 872 / 4
  assert source.baselines['classification_accuracy'][0] == pytest.approx(444 / 872)
  given = c.load(
    'configs/finetune.py:task=stsb',
    [
      f'--config.data.train={shared}/glue/STS-B/train.tsv',
      f'--config.data.eval={shared}/glue/STS-B/dev.tsv',
    ],
  )
  assert len(rows(given, tokenizer, 'eval').texts) == 1500
