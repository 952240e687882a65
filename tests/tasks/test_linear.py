"""TF-IDF and a linear support vector machine, beside classifiers in a report."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC, LinearSVR
from small_tables import finetune, sentence

from bert_jax import config as c
from bert_jax.tasks.classification import linear
from bert_jax.tasks.classification import task as classification


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
  assert out['classification_accuracy'] == np.mean(np.array(gold) == predicted)
  assert out['f1'] == pytest.approx(f1_score(gold, predicted, pos_label='b'))
  assert 0.5 < out['classification_accuracy'] < 1
  # A run learns from so many examples; so does the line beside it.
  few = config_of(tmp_path, vocab, train, dev, 'task.train_examples=8', *more)
  assert scores_of(few, tokenizer) != out


def test_sides_of_a_pair_are_told_apart(tmp_path, vocab, tokenizer):
  """The label is whether the first text has a word that the second has not."""
  label = lambda a, b: str(int('old' in a and 'old' not in b))
  train, dev = drawn(300, 2, label), drawn(80, 3, label)
  pair = 'table.pair_column=pair'
  out = scores_of(config_of(tmp_path, vocab, train, dev, pair), tokenizer)
  assert out['classification_accuracy'] > 0.8
  features = [TfidfVectorizer(**VECTORS).fit([row[k] for row in train]) for k in (0, 1)]
  seen, unseen = (
    sparse.hstack([features[k].transform([row[k] for row in rows]) for k in (0, 1)])
    for rows in (train, dev)
  )
  model = LinearSVC(random_state=0).fit(seen.tocsr(), [row[2] for row in train])
  predicted = model.predict(unseen.tocsr())
  assert out['classification_accuracy'] == np.mean(predicted == [row[2] for row in dev])


def test_numbers(tmp_path, vocab, tokenizer):
  value = lambda a, b: f'{len(a.split()) + 3 * ("new" in a)}'
  train, dev = drawn(60, 4, value), drawn(40, 5, value)
  out = scores_of(config_of(tmp_path, vocab, train, dev, 'table.regression=true'), tokenizer)
  pipeline = make_pipeline(TfidfVectorizer(**VECTORS), LinearSVR(random_state=0))
  pipeline.fit([row[0] for row in train], [float(row[2]) for row in train])
  predicted = pipeline.predict([row[0] for row in dev])
  gold = [float(row[2]) for row in dev]
  assert out['pearson'] == pytest.approx(np.corrcoef(gold, predicted)[0, 1])
