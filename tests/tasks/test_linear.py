"""Linear baselines of classifiers: of words, in a report, and of the vectors a run starts from."""

import json

import numpy as np
import pytest
from running import lines, untrained
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC, LinearSVR
from small_tables import finetune, sentence

from bert_jax import config as c
from bert_jax import evaluate
from bert_jax.predict.model import Model
from bert_jax.rows.source import Source
from bert_jax.run import evaluation
from bert_jax.tasks.classification import linear
from bert_jax.tasks.classification import task as classification
from bert_jax.tools.report import panels, sentences
from bert_jax.train import train
from bert_jax.workdir import records


def written(path, rows):
  path.write_text('\n'.join(['sentence\tpair\tlabel', *map('\t'.join, rows)]) + '\n')
  return path


def drawn(number, seed, label):
  rng = np.random.default_rng(seed)
  texts = [(sentence(rng, 3), sentence(rng, 3)) for _ in range(number)]
  return [(a, b, label(a, b)) for a, b in texts]


def config_of(tmp_path, vocab, train, evaluation, *more):
  data, dev = written(tmp_path / 'train.tsv', train), written(tmp_path / 'dev.tsv', evaluation)
  return c.check(classification.resolve(finetune(vocab, data, *more, evaluation=dev)))


def scores_of(config, tokenizer):
  return linear.metrics(config, tokenizer)


# Each word of the tables is one piece of their vocabulary.
VECTORS = dict(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r'\w+')


@pytest.mark.parametrize('weights', [None, {'a': 1.0, 'b': 9.0}])
def test_scores_are_those_of_scikit_learn_on_words(weights, tmp_path, vocab, tokenizer):
  """A tenth of the labels are noise, so that not all are right."""
  noise = np.random.default_rng(9)
  label = lambda a, b: 'ab'[('good' in a) ^ (noise.random() < 0.1)]
  train, dev = drawn(60, 0, label), drawn(40, 1, label)
  model = LinearSVC(random_state=0, class_weight=weights)
  pipeline = make_pipeline(TfidfVectorizer(**VECTORS), model)
  pipeline.fit([row[0] for row in train], [row[2] for row in train])
  gold, predicted = [row[2] for row in dev], pipeline.predict([row[0] for row in dev])
  more = [f'table.class_weights={tuple(weights.items())}'.replace(' ', '')] if weights else []
  out = scores_of(config_of(tmp_path, vocab, train, dev, *more), tokenizer)
  assert out['accuracy'] == np.mean(np.array(gold) == predicted)
  assert out['f1'] == pytest.approx(f1_score(gold, predicted, pos_label='b'))
  assert 0.5 < out['accuracy'] < 1
  # A run learns from so many examples; so does the line beside it.
  few = config_of(tmp_path, vocab, train, dev, 'task.train_examples=8', *more)
  assert scores_of(few, tokenizer) != out


def test_sides_of_a_pair_are_told_apart(tmp_path, vocab, tokenizer):
  """The label is whether the first text has a word that the second has not."""
  label = lambda a, b: str(int('old' in a and 'old' not in b))
  train, dev = drawn(300, 2, label), drawn(80, 3, label)
  pair = 'table.pair_column=pair'
  out = scores_of(config_of(tmp_path, vocab, train, dev, pair), tokenizer)
  assert out['accuracy'] > 0.8
  features = [TfidfVectorizer(**VECTORS).fit([row[k] for row in train]) for k in (0, 1)]
  seen, unseen = (
    sparse.hstack([features[k].transform([row[k] for row in rows]) for k in (0, 1)])
    for rows in (train, dev)
  )
  model = LinearSVC(random_state=0).fit(seen.tocsr(), [row[2] for row in train])
  predicted = model.predict(unseen.tocsr())
  assert out['accuracy'] == np.mean(predicted == [row[2] for row in dev])


def test_numbers(tmp_path, vocab, tokenizer):
  value = lambda a, b: f'{len(a.split()) + 3 * ("new" in a)}'
  train, dev = drawn(60, 4, value), drawn(40, 5, value)
  out = scores_of(config_of(tmp_path, vocab, train, dev, 'table.regression=true'), tokenizer)
  pipeline = make_pipeline(TfidfVectorizer(**VECTORS), LinearSVR(random_state=0))
  pipeline.fit([row[0] for row in train], [float(row[2]) for row in train])
  predicted = pipeline.predict([row[0] for row in dev])
  gold = [float(row[2]) for row in dev]
  assert out['pearson'] == pytest.approx(np.corrcoef(gold, predicted)[0, 1])


def test_a_run_has_the_score_of_a_logistic_regression_on_the_vectors_it_starts_from(
  tmp_path, vocab, caplog
):
  noise = np.random.default_rng(9)
  label = lambda a, b: 'ab'[('good' in a) ^ (noise.random() < 0.2)]
  rows, dev = drawn(60, 0, label), drawn(40, 1, label)
  config = config_of(tmp_path, vocab, rows, dev, 'eval.every=1 model.dtype=float32')
  config.init_from = str(untrained(config, tmp_path / 'start'))
  vectors = Model(config.init_from).embed([row[0] for row in rows + dev])
  model = LogisticRegression(C=3.0, max_iter=1000).fit(vectors[:60], [row[2] for row in rows])
  expected = model.score(vectors[60:], [row[2] for row in dev])
  _, result = train(config, tmp_path / 'run')
  name = 'accuracy_logistic_regression'
  assert result[name] == expected and 0.5 < expected < 1
  (scores,) = (tmp_path / 'run').rglob('scores.json')
  by_label = json.loads(scores.read_text())['by_label']
  assert {f'f1_{x["label"]}': x['f1'] for x in by_label}.items() <= result.items()
  assert result['f1_b'] == result['f1']
  first, second = lines(tmp_path / 'run', 'eval')
  assert first[name] == second[name] == expected
  facts = records.read_facts(tmp_path / 'run')
  assert facts.split('eval').measured[name] == expected
  # Neither a run that goes on nor an evaluation measures it again.
  config.steps = 3
  assert train(config, tmp_path / 'run')[1][name] == expected
  assert caplog.text.count('before training: a logistic regression') == 1
  assert f'(logistic regression on the frozen starting vectors: {expected:.2f})' in caplog.text
  said = f'accuracy is {result["accuracy"]:.3f}, less than the {expected:.3f} of a logistic'
  assert result['accuracy'] < expected and said in caplog.text
  caplog.clear()
  evaluation.warn(result | {'accuracy': expected}, Source(), [], 'accuracy')
  assert not caplog.text
  assert evaluate.evaluate(tmp_path / 'run')[0][name] == expected
  (panel,) = panels.read(tmp_path / 'run').panels
  said = f'A logistic regression on the vectors of the weights before training: {expected:.4f}.'
  assert said in sentences.notes(panel)
  # Of other rows it is not known.
  other = evaluate.evaluate(tmp_path / 'run', [f'--config.data.eval={tmp_path}/train.tsv'])[0]
  assert 'f1' in other and name not in other


@pytest.mark.parametrize('long_texts', ['head', 'windows'])
@pytest.mark.parametrize('several', [False, True])
def test_a_logistic_regression_of_vectors_is_scikit_learns(
  several, long_texts, tmp_path, vocab, tokenizer
):
  """Of several labels of a text one is trained for each. The windows of a text are averaged."""
  label = lambda a, b: ','.join(sorted({*a.split()} & {'good', 'bad'})) or 'new'
  rows, dev = drawn(90, 0, label), drawn(40, 1, label)
  if not several:
    rows, dev = ([(a, b, y[:3]) for a, b, y in part] for part in (rows, dev))
  more = f'table.multi_label={several} table.long_texts={long_texts} task.max_length=8'
  weights = {} if several else {'bad': 3.0, 'goo': 0.5}
  more += f' table.class_weights={tuple(weights.items())}'.replace(', ', ',')
  config = config_of(tmp_path, vocab, rows, dev, *more.split())
  sources = classification.sources(config, tokenizer)
  given, rng = {}, np.random.default_rng(2)
  for split, source in sources.items():
    ids = np.stack([source[i]['example_ids'] for i in range(len(source))])
    is_of = source.per_example['labels'].reshape(len(source.texts), -1)
    by_example = rng.normal(size=(len(source.texts), 4)) + is_of[:, :1]
    given[split] = by_example, {'example_ids': ids, 'vectors': by_example[ids - 1]}
  found = linear.vector_scores(
    config, sources['train'], given['train'][1], sources['eval'], given['eval'][1]
  )
  names = config.table.labels
  by_number = {k: weights.get(name, 1.0) for k, name in enumerate(names)}
  model = LogisticRegression(C=3.0, max_iter=1000, class_weight=None if several else by_number)
  model = OneVsRestClassifier(model) if several else model
  model.fit(given['train'][0], sources['train'].per_example['labels'])
  logits = model.decision_function(given['eval'][0])
  of = sources['eval'].text_of
  means = np.stack([logits[of == k].mean(axis=0) for k in range(len(dev))])
  assert (len(of) > len(dev)) == (long_texts == 'windows')
  gold = [row[2].split(',') for row in dev]
  if several:
    truth = np.array([np.isin(names, x) for x in gold])
    assert found['micro_f1'] == pytest.approx(f1_score(truth, means > 0, average='micro'))
  else:
    predicted = [names[k] for k in means.argmax(axis=1)]
    right = np.mean([a == b for a, (b,) in zip(predicted, gold, strict=True)])
    assert found['accuracy'] == right and 0.4 < right < 1


def test_a_label_that_is_the_only_one(tmp_path, vocab, tokenizer):
  """Of several labels a text may have one alone; the other texts have none."""
  label = lambda a, b: 'good' if 'good' in a else ''
  rows, dev = drawn(60, 0, label), drawn(40, 1, label)
  fields = 'table.multi_label=True', 'table.labels=good,'
  config = config_of(tmp_path, vocab, rows, dev, *fields)
  assert scores_of(config, tokenizer)['subset_accuracy'] > 0.9
  sources, given = classification.sources(config, tokenizer), []
  for source in sources.values():
    ids = np.stack([source[i]['example_ids'] for i in range(len(source))])
    given += [source, {'example_ids': ids, 'vectors': source.per_example['labels'][ids - 1]}]
  assert linear.vector_scores(config, *given)['subset_accuracy'] == 1
