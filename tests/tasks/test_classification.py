"""Classification, regression and pairs: scores, long texts, weights, faulty tables."""

import json

import jax
import numpy as np
import pytest
from scipy.special import softmax
from sklearn import metrics as sklearn_metrics
from small_tables import WORDS, load, table

from bert_jax import config as c
from bert_jax import predict, train
from bert_jax.config import InputError
from bert_jax.convert import to_huggingface
from bert_jax.rows import windows
from bert_jax.rows.examples import by_example
from bert_jax.tasks.classification import task as classification


def outputs_of(config, tokenizer, split='eval'):
  """(source, outputs of a randomly initialised model over it)."""
  config = c.check(classification.resolve(config))
  source = classification.sources(config, tokenizer, (split,))[split]
  objective = classification.objective(config, tokenizer)
  params = objective.init(jax.random.key(1))
  # Larger weights, so that answers differ.
  params = jax.tree.map(lambda x: x * 8 if x.ndim == 2 else x, params)
  batch = jax.tree.map(lambda *x: np.stack(x), *(source[i] for i in range(len(source))))
  return source, jax.device_get(jax.jit(objective.predict)(params, batch))


@pytest.mark.parametrize('implementation', ['einsum', 'xla'])
def test_packed_and_unpacked_answers_are_the_same(tmp_path, vocab, tokenizer, implementation):
  path = table(tmp_path / 'dev.tsv', np.random.default_rng(0), 60)
  answers = {}
  for slots in (1, 7):
    config = load(
      vocab,
      'configs/finetune.py:task=sst2',
      f'--config.data.train={path}',
      f'--config.data.eval={path}',
      '--config.data.seq_length=32',
      f'--config.data.examples_per_row={slots}',
      f'--config.model.attention_implementation={implementation}',
      '--config.model.attention_probs_dropout_prob=0',
    )
    source, outputs = outputs_of(config, tokenizer)
    answers[slots] = source.answers(outputs)
  assert len(source) < 30 and len(answers[1]) == len(answers[7]) == 60
  for one, two in zip(answers[1], answers[7]):
    assert one['where'] == two['where'] and one['gold'] == two['gold']
    assert one['probabilities'] == pytest.approx(two['probabilities'], abs=1e-5)
  shares = [answer['probabilities']['1'] for answer in answers[1]]
  assert max(shares) - min(shares) > 0.05


def test_scores_are_those_of_scikit_learn(tmp_path, vocab, tokenizer):
  for labels, own in ((('0', '1'), 'f1'), (('a', 'b', 'c'), 'macro_f1')):
    path = table(tmp_path / 'dev.tsv', np.random.default_rng(1), 80, labels)
    config = load(
      vocab,
      'configs/finetune.py',
      f'--config.data.train={path}',
      f'--config.data.eval={path}',
      '--config.data.seq_length=32',
    )
    source, outputs = outputs_of(config, tokenizer)
    score = source.score(source.answers(outputs))
    gold = [line.split('\t')[1] for line in path.read_text().splitlines()[1:]]
    _, (logits,) = by_example(outputs, 'logits')
    predicted = [labels[k] for k in logits.argmax(-1)]
    average = {'average': 'binary', 'pos_label': '1'} if own == 'f1' else {'average': 'macro'}
    assert score[own] == pytest.approx(sklearn_metrics.f1_score(gold, predicted, **average))
    assert score['matthews'] == pytest.approx(sklearn_metrics.matthews_corrcoef(gold, predicted))
    assert score['classification_accuracy'] == np.mean(np.array(gold) == np.array(predicted))


def test_a_text_in_windows_is_read_whole_and_its_logits_averaged(tmp_path, vocab, tokenizer):
  path = tmp_path / 'dev.tsv'
  long = ' '.join(WORDS * 6)
  path.write_text(f'sentence\tlabel\n{long}\t0\nriver\t1\n')
  config = load(
    vocab,
    'configs/finetune.py',
    f'--config.data.train={path}',
    f'--config.data.eval={path}',
    '--config.data.seq_length=64',
    '--config.task.max_length=18',
    '--config.table.long_texts=windows',
  )
  source, outputs = outputs_of(config, tokenizer)
  assert list(source.text_of) == [0] * 7 + [1]  # 16 of 60 tokens, every 8
  ids = [list(ids) for (ids,) in source.texts[:7]]
  whole = list(tokenizer.ids_batch([long])[0])
  assert ids[0] == whole[:16] and ids[6] == whole[48:64] and ids[1][:8] == ids[0][8:]
  weights = np.concatenate([source[i]['weights'] for i in range(len(source))])
  assert sorted(weights[weights > 0]) == pytest.approx([1 / 7] * 7 + [1])  # texts count alike
  answers = source.answers(outputs)
  _, (logits,) = by_example(outputs, 'logits')
  expected = softmax(logits[:7].mean(axis=0))
  assert list(answers[0]['probabilities'].values()) == pytest.approx(list(expected), abs=1e-6)
  # A text with a window that was not predicted has no answer.
  outputs['example_ids'] = np.where(outputs['example_ids'] == 3, 0, outputs['example_ids'])
  assert [a['texts'] for a in source.answers(outputs)] == [['river']]


@pytest.mark.parametrize(
  'keep, expected', [('head', '0 1 2 3'), ('tail', '6 7 8 9'), ('head_tail', '0 7 8 9')]
)
def test_what_is_kept_of_a_long_text(keep, expected):
  ((kept,),) = windows.cut((np.arange(10),), 4, keep)
  assert ' '.join(map(str, kept)) == expected


def test_several_labels_of_a_text(tmp_path, vocab, tokenizer):
  path = tmp_path / 'dev.jsonl'
  rows = [('river', ['a', 'b']), ('market', []), ('old', ['b']), ('new', ['c'])]
  path.write_text(''.join(json.dumps({'sentence': t, 'label': y}) + '\n' for t, y in rows))
  config = load(
    vocab,
    'configs/finetune.py',
    f'--config.data.train={path}',
    f'--config.data.eval={path}',
    '--config.data.seq_length=32',
    '--config.table.multi_label=true',
  )
  source, outputs = outputs_of(config, tokenizer)
  held = np.concatenate([source[i]['labels'][source[i]['weights'] > 0] for i in range(len(source))])
  assert held.tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]]
  answers = source.answers(outputs)
  assert [list(a['gold']) for a in answers] == [y for _, y in rows]
  perfect = [dict(a, prediction=a['gold']) for a in answers]
  assert source.score(perfect) == {'micro_f1': 1.0, 'macro_f1': 1.0, 'subset_accuracy': 1.0}
  for label in ('"[a"', '{"a": 1}', '[["a"]]', '[null]'):
    path.write_text(f'{{"sentence": "old", "label": {label}}}\n')
    with pytest.raises(InputError, match='dev.jsonl:1: label .* is no list of labels'):
      classification.sources(config, tokenizer, ('eval',))
  path.write_text('{"sentence": "old"}\n{"sentence": "new", "label": null}\n')  # not known
  found = classification.sources(config, tokenizer, ('eval',))['eval']
  assert [e.label for e in found.examples] == [None, None]
  none = [dict(a, prediction=[]) for a in answers]
  assert source.score(none) == {'micro_f1': 0.0, 'macro_f1': 0.0, 'subset_accuracy': 0.25}


def labelled(tmp_path, vocab, *overrides, labels=('["a", "b"]', '["a", "c"]', '[]')):
  """A config of texts with these labels, a line of JSON each."""
  path = tmp_path / 'rows.jsonl'
  path.write_text(
    ''.join(f'{{"sentence": "{WORDS[i]}", "label": {label}}}\n' for i, label in enumerate(labels))
  )
  return load(
    vocab,
    'configs/finetune.py',
    f'--config.data.train={path}',
    f'--config.data.eval={path}',
    '--config.data.seq_length=32',
    *overrides,
  )


def answers_of(config, tokenizer, logits):
  """(source, its answers to a model that gives these logits [E, labels])."""
  config = c.check(classification.resolve(config))
  source = classification.sources(config, tokenizer, ('eval',))['eval']
  ids = np.arange(1, len(logits) + 1)[None]
  outputs = {'logits': np.array([logits], np.float32), 'example_ids': ids}
  return source, source.answers(outputs)


def test_a_label_is_held_from_a_half_on(tmp_path, vocab, tokenizer):
  config = labelled(tmp_path, vocab, '--config.table.multi_label=true')
  odds = np.log([[0.45 / 0.55, 0.55 / 0.45, 0.01], [99, 0.9, 1.1], [0.1, 0.2, 0.3]])
  source, answers = answers_of(config, tokenizer, odds)
  assert [a['prediction'] for a in answers] == [['b'], ['a', 'c'], []]
  assert answers[0]['probabilities'] == pytest.approx({'a': 0.45, 'b': 0.55, 'c': 1 / 101})
  # Each label is a question of its own: -log of what is given to yes or to no.
  assert answers[0]['loss'] == pytest.approx(-np.log([0.45, 0.55, 100 / 101]).sum(), abs=1e-5)
  assert answers[2]['loss'] == pytest.approx(np.log([1.1, 1.2, 1.3]).sum(), abs=1e-5)
  # Of 4 labels, 3 are found and one a is missed: an F1 of 2/3 for a, and of 1 for b and c.
  assert source.score(answers) == pytest.approx(
    {'micro_f1': 6 / 7, 'macro_f1': 8 / 9, 'subset_accuracy': 2 / 3}
  )


def test_numbers_are_scored_by_value_and_by_rank(tmp_path, vocab, tokenizer):
  config = labelled(tmp_path, vocab, '--config.table.regression=true', labels=(1, 2, 3, 4))
  source, answers = answers_of(config, tokenizer, [[1.5], [2.0], [2.5], [30.0]])
  assert [a['loss'] for a in answers] == pytest.approx([0.25, 0, 0.25, 676])
  gold, found = np.array([1, 2, 3, 4]) - 2.5, np.array([1.5, 2, 2.5, 30]) - 9
  pearson = gold @ found / np.sqrt(gold @ gold * (found @ found))
  assert source.score(answers) == pytest.approx({'pearson': pearson, 'spearman': 1.0})


def test_the_majority_is_that_of_what_is_labelled(tmp_path, vocab, tokenizer):
  config = labelled(
    tmp_path, vocab, '--config.table.labels=a,b', labels=('"b"', 'null', 'null', '"b"', '"a"')
  )
  source = classification.sources(config, tokenizer, ('eval',))['eval']
  assert source.baselines['classification_accuracy'] == (pytest.approx(2 / 3), 'majority')


@pytest.mark.parametrize(
  'labels, alike, options',
  [
    ('abbb', 'b', ''),  # the second label, of which the F1 is
    ('aaab', 'a', ''),
    ('abbcc', 'b', ''),
    (['["a","b"]', '["a","c"]', '["a"]'], ['a'], '--config.table.multi_label=true'),
    (['["a","b"]', '["c"]', '[]'], [], '--config.table.multi_label=true'),
  ],
)
def test_each_score_has_that_of_the_commonest_answer(
  tmp_path, vocab, tokenizer, labels, alike, options
):
  labels = [f'"{x}"' if len(x) == 1 else x for x in labels]
  config = labelled(tmp_path, vocab, *filter(None, [options]), labels=labels)
  config = c.check(classification.resolve(config))
  source = classification.sources(config, tokenizer, ('eval',))['eval']
  answers = [{'gold': json.loads(x), 'prediction': alike} for x in labels]
  scores = {name: x for name, (x, kind) in source.baselines.items() if kind == 'majority'}
  assert scores == pytest.approx(source.scores(answers))


def test_a_correlation_is_zero_by_chance(tmp_path, vocab, tokenizer):
  config = labelled(tmp_path, vocab, '--config.table.regression=true', labels=(1, 2, 3))
  source = classification.sources(c.check(config), tokenizer, ('eval',))['eval']
  assert source.baselines == {'pearson': (0, 'chance'), 'spearman': (0, 'chance')}


def test_class_weights_count_in_the_loss_and_not_in_the_accuracy(tmp_path, vocab, tokenizer):
  path = tmp_path / 'train.tsv'
  path.write_text('sentence\tlabel\n' + 'river\ta\n' * 3 + 'market\tb\n')
  options = [f'--config.data.train={path}', '--config.data.seq_length=16']
  balanced = load(
    vocab, 'configs/finetune.py', *options, "--config.table.class_weights=('balanced',)"
  )
  balanced = classification.resolve(balanced)
  balanced.data.train = 'gone.tsv'  # the numbers are in the config
  objective = classification.objective(c.from_json(c.to_json(balanced)), tokenizer)
  assert objective.class_weights == pytest.approx((4 / 6, 2.0), abs=1e-5)
  config = load(vocab, 'configs/finetune.py', *options, "--config.table.class_weights=(('b',3.0),)")
  config = classification.resolve(config)
  objective = classification.objective(config, tokenizer)
  source = classification.sources(config, tokenizer, ('train',))['train']
  batch = {name: x[None] for name, x in source[0].items()}
  params = objective.init(jax.random.key(0))
  logits = objective.logits(params, batch)[0, :4]
  nats = -np.log(softmax(logits, axis=-1))[range(4), [0, 0, 0, 1]]
  terms, _ = objective.terms(params, batch, None, False)
  assert float(terms['classification'].value) == pytest.approx(nats @ [1, 1, 1, 3] / 6, rel=1e-5)
  assert float(terms['classification_accuracy'].weight) == 4
  config.table.class_weights = (('x', 2.0),)
  with pytest.raises(InputError, match="'x', which is not a label"):
    classification.objective(config, tokenizer)


def test_faulty_rows_stop_the_run_or_are_counted_and_named(tmp_path, vocab, tokenizer, caplog):
  path = tmp_path / 'dev.tsv'
  path.write_bytes(b'\xef\xbb\xbfsentence\tlabel\r\nriver\t0\r\nold\t2\r\n\t1\r\nnew\r\nbad\t1\r\n')
  options = [f'--config.data.train={path}', f'--config.data.eval={path}']
  spec = 'configs/finetune.py:task=sst2'
  with pytest.raises(InputError, match=r"dev.tsv:3: label '2' is not in the label set"):
    classification.sources(load(vocab, spec, *options), tokenizer)
  caplog.set_level('INFO', 'bert_jax')
  config = load(vocab, spec, *options, '--config.data.skip_damaged=true')
  source = classification.sources(config, tokenizer, ('eval',))['eval']
  assert [e.texts[0] for e in source.examples] == ['river', '', 'bad']
  assert '1 rows with an unknown label (skipped) (dev.tsv:3)' in caplog.text
  assert '1 lines with another number of columns (skipped)' in caplog.text and ':5)' in caplog.text
  assert '1 empty texts (kept) (dev.tsv:4)' in caplog.text


def test_fields_that_are_missing_or_empty(tmp_path, vocab, tokenizer, caplog):
  path = tmp_path / 'dev.jsonl'
  path.write_text(
    '{"sentence": "river", "label": "1"}\n{"label": "1"}\n{"sentence": "old", "label": null}\n'
    '{"sentence": "new", "label": ""}\n'
  )
  spec = [
    'configs/finetune.py:task=sst2',
    f'--config.data.train={path}',
    f'--config.data.eval={path}',
  ]
  with pytest.raises(InputError, match=r"dev.jsonl:2: has no column 'sentence'"):
    classification.sources(load(vocab, *spec), tokenizer, ('eval',))
  caplog.set_level('INFO', 'bert_jax')
  config = load(vocab, *spec, '--config.data.skip_damaged=true')
  found = classification.sources(config, tokenizer)
  assert [e.texts[0] for e in found['eval'].examples] == ['river', 'old', 'new']
  assert found['eval'].gold == [1, None, None]
  assert '2 without a label (predicted, not scored)' in caplog.text
  assert [e.texts[0] for e in found['train'].examples] == ['river']
  assert '1 rows with an unknown label (skipped) (dev.jsonl:4)' in caplog.text
  path.write_text('{"sentence": "a", "label": "a|b"}\n{"sentence": "a", "label": "c"}\n')
  with pytest.raises(InputError, match="'a|b' has a"):
    classification.resolve(load(vocab, 'configs/finetune.py', *spec[1:]))


@pytest.mark.parametrize('task, none', [('sst2', -1), ('stsb', -1.0)])
def test_a_test_set_of_tfds_has_no_labels_and_numbers_of_its_own(
  task, none, tmp_path, vocab, tokenizer
):
  tfds = pytest.importorskip('tensorflow_datasets')
  tfds.disable_progress_bar()
  features = {'sentence': tfds.features.Text(), 'idx': np.int32}
  features['label'] = tfds.features.ClassLabel(names=['negative', 'positive'])
  if task == 'stsb':
    features = {'sentence1': features['sentence'], 'sentence2': features['sentence']}
    features |= {'label': np.float32, 'idx': np.int32}

  class Glue(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version('1.0.0')

    def _info(self):
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
      return {'train': self._generate_examples(1), 'test': self._generate_examples(none)}

    def _generate_examples(self, label):
      for k in range(10):
        yield (
          k,
          {name: WORDS[k] for name in features if 'sentence' in name} | {'label': label, 'idx': k},
        )

  Glue(data_dir=tmp_path, file_format='array_record').download_and_prepare()
  config = load(
    vocab,
    f'configs/finetune.py:task={task}',
    f'--config.data.train=tfds:{tmp_path}',
    f'--config.data.eval=tfds:{tmp_path}:test',
  )
  source, outputs = outputs_of(config, tokenizer)
  assert source.gold == [None] * 10
  answers = source.answers(outputs)
  assert source.score(answers) == {}
  assert {a['id']: a['texts'][0] for a in answers} == {str(k): WORDS[k] for k in range(10)}


def test_a_regression_that_says_the_same_has_collapsed(tmp_path, vocab, tokenizer):
  path = tmp_path / 'dev.tsv'
  path.write_text('sentence1\tsentence2\tscore\nriver\told\t1\nnew\tbad\t4\n')
  config = load(
    vocab,
    'configs/finetune.py:task=stsb',
    f'--config.data.train={path}',
    f'--config.data.eval={path}',
  )
  source, outputs = outputs_of(config, tokenizer)
  answers = source.answers(outputs)
  same = [dict(a, prediction=2.5 + 1e-6 * k) for k, a in enumerate(answers)]
  assert source.constant(same) == '2.500'
  assert not source.constant([dict(a, prediction=a['gold'] + 0.1) for a in answers])


@pytest.mark.parametrize('keep', ['tail', 'windows'])
def test_predict_reads_long_texts_as_evaluation_does(keep, tmp_path, vocab):
  path = tmp_path / 'dev.tsv'
  path.write_text(f'sentence\tlabel\n{" ".join(WORDS * 4)}\t0\nriver\t1\n')
  config = load(
    vocab,
    'configs/finetune.py:task=sst2',
    f'--config.data.train={path}',
    f'--config.data.eval={path}',
    '--config.data.seq_length=64',
    '--config.task.max_length=16',
    '--config.model.max_position_embeddings=16',
    f'--config.table.long_texts={keep}',
    '--config.optimizer.warmup=0',
    '--config.optimizer.learning_rate=0.1',
  )
  train.train(config, tmp_path / 'run')
  (folder,) = (tmp_path / 'run' / 'eval').iterdir()
  answers = [json.loads(line) for line in (folder / 'predictions.jsonl').read_text().splitlines()]
  model = predict.Model(tmp_path / 'run')
  for answer, shares in zip(answers, model.classify([a['texts'][0] for a in answers])):
    assert shares == pytest.approx(answer['probabilities'], abs=1e-5)
  cut = model.counts['examples cut (longer than 16 tokens)']
  assert cut == (keep == 'tail')


def test_a_file_without_header_may_have_one_and_may_lack_labels(tmp_path, vocab, tokenizer):
  """As XNLI's files: no header and no label in the test set; MNLI's training set has a header."""
  (tmp_path / 'train.tsv').write_text('premise\thypo\tlabel\nold\tnew\tcontradictory\n')
  (tmp_path / 'test.tsv').write_text('river\tbad\ngood\told\n')
  config = load(
    vocab,
    'configs/finetune.py:task=xnli',
    f'--config.data.train={tmp_path}/train.tsv',
    f'--config.data.eval={tmp_path}/test.tsv',
  )
  found = classification.sources(config, tokenizer)
  assert found['train'].examples[0].label == 'contradiction'
  assert [e.texts for e in found['eval'].examples] == [('river', 'bad'), ('good', 'old')]


def test_data_that_is_not_named_and_labels_that_are_lists(tmp_path, vocab):
  for task in ('sst2', 'stsb', 'mrpc'):
    with pytest.raises(InputError, match='data.train is empty; name'):
      classification.resolve(load(vocab, f'configs/finetune.py:task={task}'))
  path = tmp_path / 'train.jsonl'
  path.write_text('{"sentence": "old", "label": ["a"]}\n')
  with pytest.raises(InputError, match='is a list; set table.multi_label=true'):
    classification.resolve(load(vocab, 'configs/finetune.py', f'--config.data.train={path}'))


def test_a_test_set_without_labels_is_predicted_and_not_scored(tmp_path, vocab, tokenizer):
  train_path = table(tmp_path / 'train.tsv', np.random.default_rng(0), 8)
  path = tmp_path / 'test.tsv'
  path.write_text('index\tsentence\n0\triver\n1\tmarket\n')
  config = load(
    vocab,
    'configs/finetune.py:task=sst2',
    f'--config.data.train={train_path}',
    f'--config.data.eval={path}',
  )
  source, outputs = outputs_of(config, tokenizer)
  answers = source.answers(outputs)
  assert source.score(answers) == {} and 'gold' not in answers[0]
  lines = source.files(answers)['predictions.tsv'].splitlines()
  assert lines[0] == 'index\tprediction'
  assert [line.split('\t')[0] for line in lines[1:]] == ['0', '1']
  assert {line.split('\t')[1] for line in lines[1:]} <= {'0', '1'}


def test_a_classifier_of_means_is_not_written_as_one_of_cls():
  """Hugging Face's class would read [CLS] through a pooler; this one has none."""
  config = c.load('configs/finetune.py:task=sst2', ['--config.table.pooling=mean'])
  config.table.labels = ('a', 'b')
  objective = classification.objective(config, None)
  parts = jax.eval_shape(objective.init, jax.random.key(0)).keys()
  with pytest.raises(InputError, match='only classifier, encoder is there'):
    to_huggingface._head(config, set(parts))
