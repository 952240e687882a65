"""Vocabularies of byte-level BPE that are trained here: the same everywhere, and RoBERTa's form."""

import os
import random
import subprocess
import sys

import pytest
from conftest import ROOT

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.config import InputError
from bert_jax.tasks.pretraining import task
from bert_jax.tokenizers import run_tokenizer
from bert_jax.tokenizers.byte_level_trainer import train_byte_level
from bert_jax.tools import vocab as vocab_tool

TEXT = ['The river crosses the old bridge.', 'An old river! Zürich, 北京 and the bridge'] * 3


def test_a_trained_vocabulary_is_robertas_and_nothing_is_lost(tmp_path):
  path = tmp_path / 'tokenizer.json'
  counts = train_byte_level(TEXT, path, vocab_size=300)
  trained = tokenizers.load(path)
  assert trained.vocab_size == 300 and counts['pieces'] + counts['unused'] == 300
  assert trained.pieces[:4] == ['<s>', '<pad>', '</s>', '<unk>'] and trained.pieces[-1] == '<mask>'
  assert (trained.cls_id, trained.pad_id, trained.sep_id, trained.mask_id) == (0, 1, 2, 299)
  assert {'Ġriver', 'Ġthe', 'Ġold'} <= set(trained.pieces)
  for text in (*TEXT, 'unseen ☃ words'):
    (ids,) = trained.ids_batch([text])
    assert trained.decode(ids) == text
  same = [trained.ids_batch([text])[0].tolist() for text in ('river', 'a river')]
  assert same[1][-len(same[0]) :] == same[0]  # a blank before each text


def test_training_gives_the_same_bytes_in_every_process(tmp_path):
  code = (
    'from bert_jax.tokenizers.byte_level_trainer import train_byte_level as train\n'
    'import sys; train(open("text").read().split("|"), sys.argv[1], vocab_size=400)'
  )
  rng = random.Random(0)
  words = [''.join(rng.choices('abcdef', k=rng.randrange(1, 6))) for _ in range(2000)]
  (tmp_path / 'text').write_text(' '.join(words))
  for seed in ('1', '2'):
    env = dict(os.environ, PYTHONHASHSEED=seed, PYTHONPATH=str(ROOT), JAX_PLATFORMS='cpu')
    subprocess.run([sys.executable, '-c', code, seed], cwd=tmp_path, env=env, check=True)
  assert (tmp_path / '1').read_bytes() == (tmp_path / '2').read_bytes()
  assert '<unused0>' not in (tmp_path / '1').read_text()


def test_a_small_language_counts_more_if_asked_and_a_small_vocabulary_is_refused(tmp_path):
  texts = {'a': ['alpha beta gamma'] * 100, 'b': ['omega psi'] * 5}
  shares = {}
  for sampling in (1.0, 0.5):
    path = tmp_path / f'{sampling}.json'
    shares[sampling] = train_byte_level(texts, path, vocab_size=300, sampling=sampling)['shares']
  assert shares[1.0]['b'] == pytest.approx(9 * 5 / (9 * 5 + 1600), abs=1e-5)
  assert shares[0.5]['b'] > 3 * shares[1.0]['b']
  with pytest.raises(InputError, match='cannot hold 256 bytes .* use 261 or more'):
    train_byte_level(TEXT, tmp_path / 'x.json', vocab_size=200)


def test_a_run_and_the_tool_train_one(corpus_file, tmp_path, capsys):
  given = ['--kind', 'byte_bpe', '--size', '300', '--input', str(corpus_file)]
  with pytest.raises(SystemExit):
    vocab_tool.main([*given, '--out', str(tmp_path / 'V')])
  assert 'keeps capitals; say --cased' in capsys.readouterr().err
  vocab_tool.main([*given, '--out', str(tmp_path / 'V'), '--cased'])
  config = config_lib.load(
    'configs/pretrain.py:arch=roberta,runlocal',
    [f'--config.data.train={corpus_file}', '--config.model.vocab_size=300'],
  )
  texts = lambda: task.texts(config)
  ours = run_tokenizer.load_or_train(config, None, texts)
  assert isinstance(ours, tokenizers.ByteLevel) and ours.vocab_size == 300
  assert tokenizers.load_folder(tmp_path / 'V').vocab_size == 300
  config.tokenizer.do_lower_case = True
  with pytest.raises(
    InputError, match='byte_bpe keeps capitals; set tokenizer.do_lower_case=false'
  ):
    run_tokenizer.load_or_train(config, None, texts)
