"""Examples of the documentation for every task: each config that is run without data has some."""

import json

import numpy as np
import pytest
from refusal import refused

from bert_jax import config as c
from bert_jax.run.inputs import read_inputs
from bert_jax.text import documentation, documentation_tasks

OF_FINETUNE = 'table', 'sst2', 'ner', 'conll2003', 'squad'
CONFIGS = [f'configs/finetune.py:task={task},runlocal' for task in OF_FINETUNE]
CONFIGS += ['configs/contrastive.py:task=pairs,runlocal']
CONFIGS += ['configs/translate.py:runlocal', 'configs/translate.py:pair=long-short,runlocal']
WORDS = 'Return the number of rows in an array that np.sum or getName gives for x1 and 27 others'
SMALL = ['model.vocab_size=140', 'batch_size=8', 'optimizer.accumulation=1']


@pytest.fixture
def docs(tmp_path, monkeypatch):
  """Documentation of 60 modules in place of what is installed, and a cache of its own."""
  rng, words = np.random.default_rng(3), WORDS.split()

  def documents():
    for n in range(60):
      lengths = rng.integers(5, 14, 4 + n % 9)
      yield f'room{n % 7}.part{n}', [f'{" ".join(rng.choice(words, size))} .' for size in lengths]

  monkeypatch.setattr(documentation, 'documents', documents)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  documentation_tasks._passages.cache_clear()
  yield
  documentation_tasks._passages.cache_clear()


@pytest.mark.parametrize('spec', CONFIGS)
def test_a_config_without_data_has_a_first_batch_and_something_to_evaluate(spec, docs, tmp_path):
  config = c.load(spec, [f'--config.{field}' for field in SMALL])
  inputs = read_inputs(config, tmp_path / 'W')
  batch = inputs.batches[0]
  assert all(len(x) == 8 for x in batch.values()) and (batch['segment_ids'] > 0).any()
  assert len(inputs.eval_batches.source) > 0


@pytest.mark.parametrize('name', ['squad', 'table', 'ner', 'en-de', 'pairs'])
def test_files_are_the_same_each_time_and_share_nothing_with_those_to_evaluate_on(name, docs):
  read = lambda spec: {path.name: path.read_text() for path in documentation_tasks.files(spec)}
  first = read(f'docs:{name}')
  for path in documentation_tasks.files(f'docs:{name}'):
    path.unlink()
  documentation_tasks._passages.cache_clear()
  held_out = json.dumps(read(f'docs:{name}:eval'))
  assert first and held_out not in json.dumps(first)


def test_passages_and_questions_are_as_published(docs):
  """Four sentences of 4 to 40 words; an answer stands where its question says."""
  train, held_out = map(documentation_tasks._passages, ('train', 'eval'))
  assert 0 < len(held_out) < len(train) / 2 and {len(x) for _, x in train} == {4}
  assert all(4 <= len(sentence.split()) <= 40 for _, x in train for sentence in x)
  (path,) = documentation_tasks.files('docs:squad')
  found = [x for a in json.loads(path.read_text())['data'] for x in a['paragraphs']]
  for context, qa in [(x['context'], qa) for x in found for qa in x['qas']]:
    (answer,) = qa['answers']
    assert context[answer['answer_start'] :].startswith(answer['text'])


@pytest.mark.parametrize('spec', ['docs:squat', 'docs:squad:test', 'docs:'])
def test_what_is_no_task_is_named_with_those_that_are(spec, docs):
  with refused(f'{spec}: the documentation has no .* data.train, .* squad, .*en-de'):
    documentation_tasks.files(spec)
