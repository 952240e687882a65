"""TF-IDF and a linear support vector machine, the baseline of classifiers of texts.

Pieces and pairs of neighbouring pieces of the run's vocabulary, of whole texts, count as
(1 + log count) * inverse document frequency; of a pair of texts each side by itself. They go into
scikit-learn's LinearSVC (one for each label, LinearSVR for numbers) at its default C = 1.
"""

import numpy as np
from ml_collections import ConfigDict

from bert_jax.errors import InputError
from bert_jax.tasks.classification import task
from bert_jax.tokenizers import Tokenizer


def metrics(config: ConfigDict, tokenizer: Tokenizer) -> dict[str, float]:
  """Trains the linear SVM on data.train and returns its metrics on data.eval."""
  sources = task.sources(config, tokenizer)
  return svm_scores(config, sources['train'], sources['eval'])


def svm_scores(config: ConfigDict, train: task.Texts, evaluation: task.Texts) -> dict[str, float]:
  """Trains the linear SVM on one source and scores it on another: {metric: number}."""
  from scipy import sparse  # these are slow to import
  from sklearn.feature_extraction.text import TfidfVectorizer
  from sklearn.multiclass import OneVsRestClassifier
  from sklearn.svm import LinearSVC, LinearSVR

  def pieces(source, side):
    ids = source.tokenizer.ids_batch([example.texts[side] for example in source.examples])
    return [' '.join(map(str, text.tolist())) for text in ids]

  def features(side):
    tfidf = TfidfVectorizer(token_pattern=r'\d+', ngram_range=(1, 2), sublinear_tf=True)
    try:
      tfidf.fit(pieces(train, side))
    except ValueError:
      raise InputError('the texts of the training data are empty, all of them.') from None
    return [tfidf.transform(pieces(source, side)) for source in (train, evaluation)]

  sides = [features(side) for side in range(len(train.examples[0].texts))]
  seen, unseen = (sparse.hstack(parts).tocsr() for parts in zip(*sides))
  labels = [example.label for example in train.examples]
  model = LinearSVC(class_weight=dict(config.table.class_weights) or None, random_state=0)
  if train.regression:
    model = LinearSVR(random_state=0)
  elif train.multi_label:
    labels = np.array([[name in held for name in train.labels] for held in labels], int)
    model = OneVsRestClassifier(LinearSVC(random_state=0))
  predicted = model.fit(seen, labels).predict(unseen)
  if train.multi_label:
    predicted = [[name for name, on in zip(train.labels, row) if on] for row in predicted]
  both = zip(predicted, (example.label for example in evaluation.examples), strict=True)
  return evaluation.score([{'prediction': x, 'gold': y} for x, y in both if y is not None])
