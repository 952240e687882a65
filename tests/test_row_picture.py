"""The picture of a packed row shows what a model reads."""

import os
import subprocess
import sys

import numpy as np
import pytest
import row_picture
from conftest import ROOT
from test_predict import load_pretrain

from bert_jax.config import InputError
from bert_jax.workdir import trained

TEXTS = ['old river', 'new market\tgarden', 'good old old river']


@pytest.fixture
def model(vocab, tokenizer):
  return trained.Trained(load_pretrain(vocab, 1), tokenizer, {}, 0)


def test_a_row_as_it_is_read(model):
  row = row_picture.packed_row(model, TEXTS)
  first, second = '[CLS] old river [SEP]', '[CLS] new market [SEP] garden [SEP]'
  pieces = [*f'{first} {second} [CLS] good old old river [SEP]'.split(), *['[PAD]'] * 8]
  assert row.segments.tolist() == [1] * 4 + [2] * 6 + [3] * 6 + [0] * 8
  assert row.positions.tolist() == [*range(4), *range(6), *range(6), *[0] * 8]
  assert len(row.hidden) == round(0.15 * 16)
  assert row.hidden == {at: pieces[at] for at in row.hidden}
  assert all('[' not in piece for piece in row.hidden.values())
  there = [i for i in range(24) if i not in row.hidden]
  assert [row.pieces[i] for i in there] == [pieces[i] for i in there]
  assert row.sees.sum() == 4 * 4 + 6 * 6 + 6 * 6 and not row.sees[3, 4] and not row.sees[23, 23]
  other = row_picture.packed_row(model, TEXTS, seed=1)
  assert other.hidden != row.hidden


def test_it_runs_as_its_command_says():
  env = {name: x for name, x in os.environ.items() if name != 'PYTHONPATH'}
  command = [sys.executable, 'tests/row_picture.py', '--help']
  assert not subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL).returncode


def test_it_is_drawn_and_its_mistakes_are_sentences(model, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(row_picture.trained, 'load', lambda source: model)
  path = tmp_path / 'row.svg'
  row_picture.main(['--model', 'W', '--out', str(path), *TEXTS])
  drawn = path.read_text()
  assert drawn.startswith('<?xml') and 'which token sees which' in drawn
  for texts, sentence in (
    (['old ' * 200], 'the texts have 202 tokens; a picture shows 128'),
    (['old', ' '], "' ' has no words"),
    (['a\tb\tc'], 'more than a text or two with a tab between'),
  ):
    with pytest.raises(InputError, match=sentence):
      row_picture.packed_row(model, texts)
  row = row_picture.PackedRow(['a'], {}, np.zeros(1, int), np.ones(1, int))
  with pytest.raises(InputError, match='x.odd cannot be written'):
    row_picture.draw(row, ['a'], tmp_path / 'x.odd')
