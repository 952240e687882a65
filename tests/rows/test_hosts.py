"""Rows are a function of (seed, step): the same on several hosts as on one, from any step on."""

import json
import os
import socket
import subprocess
import sys

import host_rows
import pytest
from conftest import ROOT

from bert_jax import config as config_lib
from bert_jax import hosts
from bert_jax.corpus import shards
from bert_jax.errors import InputError
from bert_jax.text import documents
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.prepare.steps import Settings

STEPS, FIRST = 24, 15
KINDS = {
  'packed': ['corpus.rows=full', 'data.examples_per_row=4', 'loss.nsp_weight=0'],
  'nsp': ['corpus.rows=nsp', 'corpus.dupe_factor=2'],
  'mixed': ['corpus.rows=nsp', 'corpus.sampling=0.5', 'data.examples_per_row=2'],
  'chunks': ['corpus.rows=nsp', 'corpus.dupe_factor=2', 'corpus.window=4'],
}
FOLDERS = {'mixed': 'two', 'chunks': 'chunks'}


@pytest.fixture(scope='module')
def corpora(corpus_file, tmp_path_factory):
  folder = tmp_path_factory.mktemp('hosts')
  words = sorted(set(corpus_file.read_text().split()))
  (folder / 'vocab').mkdir()
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words]
  (folder / 'vocab' / 'vocab.txt').write_text('\n'.join(pieces) + '\n')
  lines = corpus_file.read_text()
  other = folder / 'other.txt'
  other.write_text('\n\n'.join(lines.split('\n\n')[:9]))
  one, two = [('', corpus_file)], [('a', corpus_file), ('b', other)]
  for name, inputs in (('one', one), ('two', two), ('chunks', one)):
    files = tuple((k, f) for k, spec in inputs for f in documents.sources(str(spec)))
    with pytest.MonkeyPatch.context() as patch:
      if name == 'chunks':
        for constant, value in (('CHUNK_TOKENS', 400), ('CHUNK_DOCUMENTS', 3), ('WHOLE', 0)):
          patch.setattr(shards, constant, value)
      prepare.prepare(Settings(files, str(folder / 'vocab')), folder / name)
  return folder


def rows(config_files, hosts, first):
  """{step/row: hash} of all hosts together, each with one device, for each of the configs."""
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{s.getsockname()[1]}'
  env = dict(os.environ, JAX_PLATFORMS='cpu', PYTHONPATH=str(ROOT))
  options = dict(cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  command = [sys.executable, 'tests/host_rows.py', address, str(hosts)]
  given = [*map(str, (first, STEPS, *config_files))]
  processes = [subprocess.Popen([*command, str(i), *given], **options) for i in range(hosts)]
  out = [{} for _ in config_files]
  for process in processes:
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr[-3000:]
    for all_rows, own in zip(out, json.loads(stdout.splitlines()[-1]), strict=True):
      assert len(own) == (STEPS - first) * 8 // hosts  # no host makes the rows of another
      all_rows |= own
  return out


def test_rows_do_not_depend_on_hosts_or_on_where_a_run_resumes(corpora, tmp_path):
  files, later = [], []
  for kind, changes in KINDS.items():
    fields = [f'data.train={corpora / FOLDERS.get(kind, "one")}', 'batch_size=8', *changes]
    config = config_lib.load('configs/pretrain.py:runlocal', [f'--config.{x}' for x in fields])
    files.append(tmp_path / f'{kind}.json')
    files[-1].write_text(config_lib.to_json(config))
    own = host_rows.rows(files[-1], 0, STEPS)
    assert len(own) == STEPS * 8 and len(set(own.values())) > 50
    later.append({at: x for at, x in own.items() if int(at.split('/')[0]) >= FIRST})
  assert rows(files, 2, first=FIRST) == later


def test_processes_whose_rows_differ_are_one_sentence(monkeypatch):
  """As those of a host that cannot read a block of its copy of the corpus."""
  monkeypatch.setattr(hosts, 'from_all', lambda number: [number, number, number + 1])
  with pytest.raises(InputError, match='process 2 reads other rows than process 0'):
    hosts.agree('a7f')
  monkeypatch.setattr(hosts, 'from_all', lambda number: [number, number])
  hosts.agree('a7f')
