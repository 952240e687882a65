"""Linear baselines of classifiers of texts: of words, and of the vectors of a model.

Of words it is TF-IDF and a linear support vector machine.
Pieces and pairs of neighbouring pieces of the run's vocabulary, of whole texts, count as
(1 + log count) * inverse document frequency; of a pair of texts each side by itself. They go into
scikit-learn's LinearSVC (one for each label, LinearSVR for numbers) at its default C = 1.

Of vectors of length 1 it is scikit-learn's LogisticRegression at C = 3, which is better than its
default of 1 on two of four data sets, and worse on one (tests/MEASURED.md).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.errors import InputError
from bert_jax.rows.examples import by_example
from bert_jax.tasks.classification import label_sets, task
from bert_jax.tasks.classification.reading import read
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tokenizers import Tokenizer


def metrics(config: ConfigDict, tokenizer: Tokenizer) -> dict[str, float]:
  """Trains the linear SVM on data.train and returns its metrics on data.eval."""
  from scipy import sparse  # these are slow to import
  from sklearn.feature_extraction.text import TfidfVectorizer
  from sklearn.multiclass import OneVsRestClassifier
  from sklearn.svm import LinearSVC, LinearSVR

  def pieces(examples, side):
    ids = tokenizer.ids_batch([example.texts[side] for example in examples])
    return [' '.join(map(str, text.tolist())) for text in ids]

  problems = Problems.of(config, 'train')
  train = list(problems.chosen(read(config, 'train', problems), config.task.train_examples))
  evaluation = task.sources(config, tokenizer, ('eval',))['eval']
  train_features, eval_features = [], []
  for side in range(len(train[0].texts)):
    tfidf = TfidfVectorizer(token_pattern=r'\d+', ngram_range=(1, 2), sublinear_tf=True)
    try:
      train_features.append(tfidf.fit_transform(pieces(train, side)))
    except ValueError:
      raise InputError('the texts of the training data are empty, all of them.') from None
    eval_features.append(tfidf.transform(pieces(evaluation.examples, side)))
  labels = label_sets.label_array([x.label for x in train], evaluation.labels, config.table)
  if evaluation.regression:
    model = LinearSVR(random_state=0)
  elif evaluation.multi_label:
    model = OneVsRestClassifier(LinearSVC(random_state=0))
  else:
    weights = dict(enumerate(label_sets.class_weights(config.table)))
    model = LinearSVC(class_weight=weights or None, random_state=0)
  model.fit(sparse.hstack(train_features).tocsr(), labels)
  return _scores(evaluation, model.predict(sparse.hstack(eval_features).tocsr()))


def _scores(evaluation, predicted):
  """The scores of what scikit-learn predicts for each text: a number, also of a label, or [L]."""
  answers = []
  for example, prediction in zip(evaluation.examples, predicted, strict=True):
    if evaluation.multi_label:
      prediction = [name for name, on in zip(evaluation.labels, np.atleast_1d(prediction)) if on]
    elif not evaluation.regression:
      prediction = evaluation.labels[prediction]
    if example.label is not None:
      answers.append({'prediction': prediction, 'gold': example.label})
  return evaluation.score(answers)


def vector_scores(
  config: ConfigDict,
  train: task.Texts,
  train_outputs: Mapping[str, np.ndarray],
  evaluation: task.Texts,
  outputs: Mapping[str, np.ndarray],
) -> dict[str, float]:
  """Trains a logistic regression on vectors of some training rows and scores it on all evaluated
  ones: {metric: number}; {} if those have one label. Outputs: see Family.of_vectors. Each window of
  a text is learned from; the vector of an evaluated text is the mean of its windows'."""
  from sklearn.linear_model import LogisticRegression  # slow to import
  from sklearn.multiclass import OneVsRestClassifier

  numbers, (vectors,) = by_example(train_outputs, 'vectors')
  labels = train.per_example['labels'][numbers]
  if len(np.unique(labels)) < 2:
    return {}
  model: Any = LogisticRegression(C=3.0, max_iter=1000)
  if evaluation.multi_label:
    model = OneVsRestClassifier(model)
  else:
    model.class_weight = dict(enumerate(label_sets.class_weights(config.table))) or None
  model.fit(vectors, labels)
  numbers, (vectors,) = by_example(outputs, 'vectors')
  total = np.zeros((evaluation.size, vectors.shape[-1]))
  np.add.at(total, evaluation.text_of[numbers], vectors)
  return _scores(evaluation, model.predict(total / np.bincount(evaluation.text_of)[:, None]))
