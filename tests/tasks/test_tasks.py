"""Labelled data becomes rows without losing or inventing anything, and its mistakes are named."""

import numpy as np
import pytest
from small_tables import fields

from bert_jax import config as c
from bert_jax.errors import InputError
from bert_jax.rows import windows
from bert_jax.tasks.classification import reading, task
from bert_jax.tasks.faulty_records import Problems
from bert_jax.text import documentation, documents
from bert_jax.tokenizers import WordPiece


@pytest.fixture(scope='module')
def tokenizer():
  return WordPiece(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcdefghij', 'good', 'bad'])


def config(folder, *more, spec='configs/finetune.py'):
  data = f'data.train={folder}/train.tsv data.eval={folder}/dev.tsv data.seq_length=8'
  return c.load(spec, fields(data, 'data.examples_per_row=1', *more))


def write(folder, train, dev='sentence\tlabel\na\tx\n'):
  (folder / 'train.tsv').write_text(train)
  (folder / 'dev.tsv').write_text(dev)
  return folder


def rows(config, tokenizer, split='train'):
  return task.sources(task.resolve(config), tokenizer, (split,))[split]


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


def test_train_examples_takes_the_same_few_for_every_seed(tmp_path, tokenizer):
  lines = ''.join(f'{x}\t{"xy"[i % 2]}\n' for i, x in enumerate('abcdefghij'))
  write(tmp_path, *[f'sentence\tlabel\n{lines}'] * 2)
  assert task.resolve(config(tmp_path, 'table.labels=y,x')).table.labels == ('y', 'x')  # as given
  few = 'task.train_examples=4'
  one, two = (rows(config(tmp_path, few, f'seed={s}'), tokenizer) for s in (0, 1))
  assert len(one) == 4 and one.fingerprint == two.fingerprint
  # Drawn from all of them in their order, since a file may be sorted; evaluation is of everything.
  chosen = [e.texts[0] for e in one.examples]
  assert chosen == sorted(chosen) and chosen not in (list('abcd'), list('ghij'))
  assert len(rows(config(tmp_path, few), tokenizer, 'eval')) == 10
  assert one.fingerprint != rows(config(tmp_path), tokenizer).fingerprint


@pytest.mark.parametrize(
  'train, sentence',
  [
    ('sentence\tlabel\na\tx\n', "single label .*'x'"),
    ('sentence\tlabel\na\ta|b\na\tc\n', r"'a\|b' has a"),
    ('sentense\tlabel\na\tx\nb\ty\n', "no column 'sentence'.*did you.*table.text_column, "),
  ],
)
def test_bad_tables_are_one_sentence(tmp_path, tokenizer, train, sentence):
  given = config(write(tmp_path, train))
  with pytest.raises(InputError, match=sentence) as caught:
    task.sources(task.resolve(given), tokenizer)
  assert '\n' not in str(caught.value)


def test_the_embedded_task_keeps_what_pretraining_holds_out(tmp_path, monkeypatch):
  """Evaluation texts come from modules that pre-training on the same documentation never reads."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  monkeypatch.setattr(documentation, 'PACKAGES', ('flax', 'grain', 'optax'))
  monkeypatch.setattr(documentation, 'labelled', documentation.labelled.__wrapped__)
  finetune = c.load('configs/quickstart.py:stage=finetune')
  read = {x: list(reading.read(finetune, x, Problems(x))) for x in ('train', 'eval')}
  modules, texts = (
    {split: {of(e) for e in examples} for split, examples in read.items()}
    for of in (lambda e: e.where, lambda e: e.texts)
  )
  assert len(modules['eval']) > 9 and not modules['train'] & modules['eval']
  assert not texts['train'] & texts['eval']
  for spec in ('configs/quickstart.py:stage=pretrain', 'configs/pretrain.py:runlocal'):
    share = c.load(spec).corpus.eval_share
    assert all(documents.held_out(module, share) for module in modules['eval'])
