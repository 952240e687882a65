"""Runs of fine-tuning: GLUE and its files, transfer, collapsed runs."""

import json
import math
import re
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published import jsonl
from running import untrained
from small_tables import finetune, sentence
from test_classification import outputs_of, source_of

from bert_jax import evaluate, models
from bert_jax.errors import InputError
from bert_jax.files import seal
from bert_jax.run import warm_start
from bert_jax.run.inputs import read_inputs

NLI, TWO = ('neutral', 'entailment', 'contradiction'), ('entailment', 'not_entailment')
PAIR = '0|{0}|{2}|{1}'
GLUE = {  # {task: the header of its files, or '', a line, labels}; |: a tab
  'cola': ('', 'gj04|{1}||{0}', '01'),
  'sst2': ('sentence|label', '{0}|{1}', '01'),
  'mrpc': ('Quality|#1 ID|#2 ID|#1 String|#2 String', '{1}|1|2|{0}|{2}', '01'),
  'stsb': ('index|x|sentence1|sentence2|score', '0|x|{0}|{2}|{1}', ('0.5', '4.75')),
  'qqp': ('id|1|2|question1|question2|is_duplicate', '0|1|2|{0}|{2}|{1}', '01'),
  'mnli': ('index|sentence1|sentence2|label1|gold_label', '0|{0}|{2}|neutral|{1}', NLI),
  'qnli': ('index|question|sentence|label', PAIR, TWO),
  'rte': ('index|sentence1|sentence2|label', PAIR, TWO),
  'wnli': ('index|sentence1|sentence2|label', PAIR, '01'),
}
RUN = 'optimizer.warmup=0 batch_size=4'  # of one size, one program

pytestmark = pytest.mark.usefixtures('steps_once')


def glue_file(path, name, number, seed, labelled=True):
  header, line, labels = GLUE[name]
  rng = np.random.default_rng(seed)
  rows = [line.format(sentence(rng), labels[i % len(labels)], sentence(rng)) for i in range(number)]
  if not labelled:  # as the published test files: an index, and no label
    is_text = re.compile('sentence|question|String')
    wanted = [x for x in header.split('|') if is_text.search(x)] or ['sentence']
    header = '|'.join(['index', *wanted])
    rows = ['|'.join([str(i), *(sentence(rng) for _ in wanted)]) for i in range(number)]
  lines = [header] * bool(header) + rows
  path.write_text('\n'.join(lines).replace('|', '\t') + '\n')


@pytest.fixture(scope='module')
def glue_run(tmp_path_factory, vocab):
  """(workdir, the folder of its data) of a model of SST-2 with random weights."""
  home = tmp_path_factory.mktemp('glue')
  for name, number, labelled in (('train', 40, True), ('dev', 20, True), ('test', 10, False)):
    glue_file(home / f'{name}.tsv', 'sst2', number, number, labelled)
  config = finetune(vocab, home / 'train.tsv', RUN, task='sst2', evaluation=home / 'dev.tsv')
  return untrained(config, home / 'run'), home


def leaderboard(text):
  """The predictions of a file for GLUE's leaderboard, of ten examples."""
  first, *lines = text.splitlines()
  index, predicted = zip(*(line.split('\t') for line in lines), strict=True)
  assert first == 'index\tprediction' and index == tuple(map(str, range(10)))
  return predicted


@pytest.mark.parametrize('task', GLUE)
def test_a_leaderboard_file_has_what_was_answered(task, tmp_path, vocab, tokenizer):
  for name, seed, labelled in (('train', 0, True), ('test', 2, False)):
    glue_file(tmp_path / f'{name}.tsv', task, 10, seed, labelled)
  train, test = tmp_path / 'train.tsv', tmp_path / 'test.tsv'
  config = finetune(vocab, train, RUN, task=task, evaluation=test)
  source, outputs = outputs_of(config, tokenizer)
  answers = source.answers(outputs)
  found = leaderboard(source.files(answers)['predictions.tsv'])
  if task == 'stsb':
    assert [float(x) for x in found] == pytest.approx([a['prediction'] for a in answers], abs=1e-3)
  else:
    assert list(found) == [str(a['prediction']) for a in answers]
    assert task != 'mnli' or {*found} <= {*NLI}


def test_passes_over_another_table_are_batches(tmp_path, vocab):
  """Three passes over two rows are a batch of four and another one that is filled up."""
  epochs = 'data.examples_per_row=1 steps=0 epochs=3'
  (tmp_path / 'dev.csv').write_text('sentence,label\n"old river, bad",a\nold river,b\n')
  config = finetune(vocab, tmp_path / 'dev.csv', RUN, epochs, task='table')
  inputs = read_inputs(config, tmp_path / 'run')
  assert inputs.steps == 2 and inputs.config.table.labels == ('a', 'b')
  labels = [inputs.batches[step]['labels'].ravel().tolist() for step in (0, 1)]
  assert [sorted(x) for x in labels] == [[0, 0, 1, 1]] * 2
  weights = np.asarray(inputs.eval_batches[0]['weights'])
  assert len(inputs.eval_batches) == 1 and weights.ravel().tolist() == [1, 1, 0, 0]


def test_evaluation_writes_what_was_answered(glue_run, tmp_path):
  evaluate.evaluate(glue_run[0], out=(folder := tmp_path / 'out'))
  written = (folder / 'predictions.jsonl').read_bytes()
  answers = [json.loads(line) for line in written.splitlines()]
  assert len(answers) == 20 and {a['where'] for a in answers} >= {'dev.tsv:2', 'dev.tsv:21'}
  for answer in answers:
    own = answer['probabilities'][str(answer['gold'])]  # a key of JSON is a text
    assert answer['loss'] == pytest.approx(-math.log(own), rel=1e-5)
  scores = json.loads((folder / 'scores.json').read_text())
  right = np.mean([a['gold'] == a['prediction'] for a in answers])
  assert scores['accuracy'] == pytest.approx(right)
  assert scores['predictions_crc32'] == zlib.crc32(written)
  assert scores['examples'] == 20 and 0.5 <= scores['accuracy_majority'] < 1
  by_length = scores['by_length']
  assert [x['tokens'] for x in by_length] == ['0-64'] and by_length[0]['examples'] == 20
  assert by_length[0]['f1'] == scores['f1']


def test_several_sets_are_a_table_of_their_metrics(glue_run, tmp_path):
  workdir, home = glue_run
  for language, seed in (('de', 5), ('hi', 6)):
    glue_file(tmp_path / f'{language}.tsv', 'sst2', 15, seed)
  specs = f'{tmp_path}/{{language}}.tsv', f'en={home}/dev.tsv'
  results = evaluate.evaluate_sets(workdir, specs, ['de', 'hi'])
  assert list(results) == ['de', 'hi', 'en']
  rows = evaluate.table(results).splitlines()
  column = rows[0].split().index('accuracy') + 1
  shown = [float(row.split()[column]) for row in rows[1:]]
  assert shown[-1] == pytest.approx(np.mean(shown[:-1]), abs=1e-4)
  written = workdir / 'eval' / 'sets'
  scores = json.loads((written / 'scores.json').read_text())
  assert scores.pop('seal') == seal(scores)
  for name in ('de', 'hi'):
    answers = (written / name / 'predictions.jsonl').read_text().splitlines()
    assert {json.loads(x)['where'].partition(':')[0] for x in answers} == {f'{name}.tsv'}


@pytest.mark.parametrize(
  'task, columns, name, label',
  [  # names of columns and labels in tfds:glue
    ('cola', 'sentence', 'acceptable', 1),
    ('sst2', 'sentence', 'negative', 0),
    ('mrpc', 'sentence1 sentence2', 'equivalent', 1),
    ('qqp', 'question1 question2', 'duplicate', 1),
    ('mnli', 'premise hypothesis', 'contradiction', 2),
    ('qnli', 'question sentence', 'entailment', 0),
    ('rte', 'sentence1 sentence2', 'not_entailment', 1),
    ('wnli', 'sentence1 sentence2', 'entailment', 1),
    ('stsb', 'sentence1 sentence2', '3.8', 3.8),
  ],
)
def test_a_model_of_glues_files_reads_tfds_too(
  task, columns, name, label, tmp_path, vocab, tokenizer
):
  row = dict(zip(columns.split(), 'ab')) | {'label': name}
  source = source_of(finetune(vocab, jsonl(tmp_path / 'dev.jsonl', row), task=task), tokenizer)
  assert source.per_example['labels'].tolist() == pytest.approx([label])


def tower(layers, value, scanned=False):
  """A small tower on the device, filled with value, value + 1... by layer."""
  kernels = [{'output': {'kernel': jnp.full((2, 3), value + i, float)}} for i in range(layers)]
  params = {f'layer_{i}': kernel for i, kernel in enumerate(kernels)}
  params |= {'embeddings': {'embedding': jnp.full((5, 2), value, float)}}
  return models.stack_layers(params) if scanned else params


@pytest.mark.parametrize('scanned', [(False, False), (False, True), (True, False), (True, True)])
def test_a_warm_start_takes_each_tower_that_there_is(scanned):
  """The source has one of two towers, and another head; layers stacked, or not, on either side."""
  params = {'generator': {'encoder': tower(1, 0, scanned[0])}, 'encoder': tower(3, 10)}
  params['head'] = {'bias': jnp.zeros(2)}
  source = {name: {'bias': jnp.ones(size)} for name, size in (('head', 4), ('mlm', 5))}
  source['encoder'] = tower(3, 20, scanned[1])
  found = warm_start.warm_start(params, source)
  jax.tree.map(np.testing.assert_array_equal, found, params | {'encoder': tower(3, 20)})
  both = warm_start.warm_start(params, {'generator': {'encoder': tower(1, 5, scanned[1])}})
  expected = params | {'generator': {'encoder': tower(1, 5, scanned[0])}}
  jax.tree.map(np.testing.assert_array_equal, both, expected)


@pytest.mark.parametrize('heads', [('mlm', 5), ('mlm', 4), ('pooler', 5)])
def test_a_head_for_masked_words_that_is_not_taken_is_said(heads, caplog):
  params = dict.fromkeys(['mlm', 'pooler'], {'bias': jnp.zeros(5)})
  source = {name: {'bias': jnp.ones(size)} for name, size in (heads, ('pooler', 5))}
  warm_start.warn_of_head(params, warm_start.names_taken(params, source))
  assert ('no head for masked words' in caplog.text) == (heads != ('mlm', 5))


KERNEL = {'output': {'kernel': jnp.ones((2, 3)), 'bias': jnp.ones(3)}}
HEAD = {'bias': jnp.ones(2)}
ANOTHER = {'layers': {'another': {'kernel': jnp.ones((2, 2, 3))}}}


@pytest.mark.parametrize(
  'source, named',
  [
    ({'decoder': tower(2, 1, True) | ANOTHER}, 'decoder/layers/output/kernel'),
    ({'decoder': tower(1, 1)}, 'decoder/layers/output/kernel'),
    ({'encoder': tower(1, 1)}, 'encoder/layer_1/output/kernel'),
    ({'encoder': tower(3, 1)}, 'encoder/layer_2/output/kernel'),
    ({'encoder': tower(3, 1, True)}, 'encoder/layer_2/output/kernel'),
    ({'encoder': tower(2, 1) | {'layer_1': KERNEL}}, 'encoder/layer_1/output/bias'),
    ({'head': HEAD, 'encoder': None}, 'decoder, encoder'),
  ],
)
def test_a_tower_is_taken_whole_or_refused(source, named):
  params = {'encoder': tower(2, 0), 'decoder': tower(2, 0, scanned=True)}
  source = {k: x for k, x in ({'encoder': tower(2, 1)} | source).items() if x}
  with pytest.raises(InputError, match=named):
    warm_start.warm_start(params, source)
