"""Linear probes of a model's layers, and statistics of where its attention heads look.

Linear probes: a logistic regression (scikit-learn, C = 1, on standardized features) reads the part
of speech of a word from the hidden state of its first piece, for each layer alone, 0 being the
embeddings. Four of five sentences train it, the fifth is scored. Beside it stand the most frequent
tag, the most frequent tag of each word (of an unknown word: of all), and the control task of Hewitt
and Liang 2019 (https://arxiv.org/abs/1909.03368): tags that are drawn for each word, whose accuracy
says what a probe learns by heart.

Attention: for each head the mean share of the first token ([CLS]), the last ([SEP]), the token
itself, and its neighbours; the entropy in nats, and the mean distance in tokens, of all pieces.
"""

import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.command_line import progress
from bert_jax.predict import Model, hidden_states
from bert_jax.predict.packed_rows import power_of_two
from bert_jax.rows.row_arrays import TOKENS, build_row
from bert_jax.tools.probe.data import Sentence

WORDS = 6000  # that a probe is trained on; a quarter of that is scored
PATTERNS = 'first', 'last', 'itself', 'before', 'after', 'entropy', 'distance'


class Word(NamedTuple):
  """A word of a sentence that a probe reads."""

  sentence: int  # its number
  at: int  # the position of the word's first piece
  text: str
  tag: str


def _arrays(model: Model, sentence: Sentence, length: int) -> list[np.ndarray]:
  """The arrays of a row [1, length] of a sentence alone."""
  row = build_row(model.tokenizer, [[(sentence.ids, 0)]], length)
  return [row[name][None] for name in TOKENS]


def hidden(model: Model, sentences: Sequence[Sentence]) -> Iterator[np.ndarray]:
  """Yields the hidden states of the pieces of each Sentence, [L + 1, n, D]."""

  def layers(params: Any, row: Any) -> jax.Array:
    states: Any = hidden_states.captured(model.objective.model, params, row)[0]
    return jnp.concatenate(states).astype(jnp.float32)

  function = model.compiled(layers)
  for sentence in progress(sentences, 'layers', 'sentences'):
    n = len(sentence.ids)
    length = model.row_length or power_of_two(n + 2)
    row = _arrays(model, sentence, length)
    states = jax.device_get(function(model.weights['encoder'], row))
    yield states[:, 1 : n + 1]


def words_of(sentences: Sequence[Sentence]) -> tuple[list[Word], list[Word]]:
  """(words that train, words that are scored), all with a tag: WORDS, and a quarter of that."""
  trained, scored = [], []
  for i, sentence in enumerate(sentences):
    part = scored if i % 5 == 4 else trained
    for text, tag, at in zip(sentence.words, sentence.tags, sentence.first):
      if tag and at >= 0:
        part.append(Word(i, int(at), text, tag))
  return trained[:WORDS], scored[: WORDS // 4]


def linear(model: Model, sentences: Sequence[Sentence]) -> dict[str, Any]:
  """Probes each layer: {'accuracy': [L + 1], 'control': [L + 1], 'majority', 'of_the_word',
  'words_trained', 'words_scored', 'tags'}, or {} if there are too few words with tags."""
  trained, scored = words_of(sentences)
  gold = [word.tag for word in trained]
  gold_scored = [word.tag for word in scored]
  tags = sorted(set(gold))
  if len(tags) < 2 or not scored:
    return {}
  x = _features(model, sentences, trained)
  x_scored = _features(model, sentences, scored)
  drawn = _drawn(trained, tags)
  drawn_scored = _drawn(scored, tags)
  accuracy, control = [], []
  for layer in progress(range(len(x)), 'linear probes', 'layers'):
    accuracy.append(_accuracy(x[layer], gold, x_scored[layer], gold_scored))
    control.append(_accuracy(x[layer], drawn, x_scored[layer], drawn_scored))
  majority, of_the_word = _guesses(trained, scored)
  return {
    'accuracy': accuracy,
    'control': control,
    'majority': majority,
    'of_the_word': of_the_word,
    'words_trained': len(trained),
    'words_scored': len(scored),
    'tags': tags,
  }


def _guesses(trained: Sequence[Word], scored: Sequence[Word]) -> tuple[float, float]:
  """The accuracies of the most frequent tag, and of the most frequent tag of each word."""
  of_word = defaultdict(Counter)
  for word in trained:
    of_word[word.text][word.tag] += 1
  usual = Counter(word.tag for word in trained).most_common(1)[0][0]
  by_usual, by_word = [], []
  for word in scored:
    guess = usual
    if word.text in of_word:
      guess = of_word[word.text].most_common(1)[0][0]
    by_usual.append(word.tag == usual)
    by_word.append(word.tag == guess)
  return float(np.mean(by_usual)), float(np.mean(by_word))


def _features(model: Model, sentences: Sequence[Sentence], words: Sequence[Word]) -> np.ndarray:
  """The hidden states of the first pieces of words, [L + 1, W, D]."""
  places = defaultdict(list)  # {number of a sentence: the positions of its words}
  for word in words:
    places[word.sentence].append(word.at)
  states = hidden(model, [sentences[number] for number in places])
  of_words = []
  for of_sentence, at in zip(states, places.values()):
    of_words.append(of_sentence[:, at])
  return np.concatenate(of_words, axis=1)


def _drawn(words: Sequence[Word], tags: Sequence[str]) -> list[str]:
  """A tag for each word, the same one wherever the word stands: the control task."""
  out = []
  for word in words:
    number = zlib.crc32(word.text.encode())
    out.append(tags[number % len(tags)])
  return out


def _accuracy(x: np.ndarray, y: Sequence, x_scored: np.ndarray, y_scored: Sequence) -> float:
  """The accuracy of a logistic regression on x_scored [m, D], after training on x [n, D]."""
  # Imported here because it is slow to import and few commands need it.
  from sklearn import exceptions, linear_model, pipeline, preprocessing

  model = linear_model.LogisticRegression(max_iter=200)
  probe = pipeline.make_pipeline(preprocessing.StandardScaler(), model)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', exceptions.ConvergenceWarning)  # 200 steps for every layer
    probe.fit(x, y)
  return float(probe.score(x_scored, y_scored))


def attention(model: Model, sentences: Sequence[Sentence]) -> list[dict[str, float]]:
  """Statistics of each attention head: a list of {'layer', 'head', 'first', 'last', ...}."""
  function = model.inside
  total = np.zeros(())
  queries = 0
  for sentence in progress(sentences, 'attention', 'sentences'):
    n = len(sentence.ids) + 2
    arrays = _arrays(model, sentence, power_of_two(n))
    _, maps = jax.device_get(function(model.weights['encoder'], arrays))
    maps = maps[:, :, :n, :n].astype(np.float64)  # [L, H, n, n], without padding
    total = total + _patterns(maps)
    queries += n - 2
  out = []
  for layer, head in np.ndindex(total.shape[1:]):
    of_head = {'layer': layer, 'head': head}
    for name, summed in zip(PATTERNS, total[:, layer, head]):
      of_head[name] = float(summed / queries)
    out.append(of_head)
  return out


def _patterns(maps: np.ndarray) -> np.ndarray:
  """Statistics [7, L, H] of maps [L, H, n, n], summed over all but the first and last query."""
  n = maps.shape[-1]
  queries = np.arange(1, n - 1)
  shares = maps[:, :, queries]  # [L, H, n - 2, n], of what each query attends to
  number = np.arange(n - 2)
  logs = np.log(np.maximum(shares, 1e-30))
  apart = np.abs(queries[:, None] - np.arange(n))
  statistics = {
    'first': shares[..., 0],
    'last': shares[..., -1],
    'itself': shares[:, :, number, queries],
    'before': shares[:, :, number, queries - 1],
    'after': shares[:, :, number, queries + 1],
    'entropy': -np.sum(shares * logs, axis=-1),
    'distance': np.sum(shares * apart, axis=-1),
  }
  return np.stack([statistics[name].sum(axis=-1) for name in PATTERNS])
