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

import functools
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.command_line import progress
from bert_jax.predict import Model, hidden_states
from bert_jax.predict.packed_rows import power_of_two
from bert_jax.rows.row_arrays import TOKENS, build_row
from bert_jax.tools.probe.data import Sentence

Word = tuple[int, int, str, str]  # the sentence's number, position of the first piece, word, tag


def _arrays(model: Model, sentence: Sentence, length: int) -> list[np.ndarray]:
  row = build_row(model.tokenizer, [[(sentence.ids, 0)]], length)
  return [row[name][None] for name in TOKENS]


def hidden(model: Model, sentences: Sequence[Sentence]) -> Iterator[np.ndarray]:
  """Yields the hidden states of the pieces of each Sentence, [L + 1, n, D]."""

  def layers(params: Any, row: Any) -> jax.Array:
    states: Any = hidden_states.captured(model.objective.model, params, row)[0]
    return jnp.concatenate(states).astype(jnp.float32)

  function = model.compiled(layers)
  fixed = model.limit if model.config.model.mixer == 'fourier' else 0  # it mixes padding too
  for sentence in progress(sentences, 'layers', 'sentences'):
    n = len(sentence.ids)
    arrays = _arrays(model, sentence, fixed or power_of_two(n + 2))
    yield jax.device_get(function(model.weights['encoder'], arrays))[:, 1 : n + 1]


def words_of(sentences: Sequence[Sentence], most: int, counts: Counter[str]) -> list[list[Word]]:
  """[words that train, words that are scored], all with a tag: `most`, and a quarter of that."""
  parts: list[list[Word]] = [[], []]
  for i, sentence in enumerate(sentences):
    for word, tag, at in zip(sentence.words, sentence.tags, sentence.first):
      if tag and at >= 0:
        parts[i % 5 == 4].append((i, int(at), word, tag))
      elif tag:
        counts['tagged words without a piece, or cut off (not probed)'] += 1
  for part, limit in zip(parts, (most, most // 4)):
    counts['words not probed (--words)'] += max(0, len(part) - limit)
    del part[limit:]
  return parts


def linear(
  model: Model, sentences: Sequence[Sentence], most: int, counts: Counter[str]
) -> dict[str, Any]:
  """Probes each layer: {'accuracy': [L + 1], 'control': [L + 1], 'majority', 'of_the_word',
  'words_trained', 'words_scored', 'tags'}, or {} if there are too few words with tags."""
  trained, scored = words_of(sentences, most, counts)
  gold, gold_scored = [tag for *_, tag in trained], [tag for *_, tag in scored]
  tags = sorted(set(gold))
  if len(tags) < 2 or not scored:
    return {}
  x, x_scored = _features(model, sentences, trained), _features(model, sentences, scored)
  drawn, drawn_scored = _drawn(trained, tags), _drawn(scored, tags)
  accuracy, control = [], []
  for layer in progress(range(len(x)), 'linear probes', 'layers'):
    accuracy.append(_accuracy(x[layer], gold, x_scored[layer], gold_scored))
    control.append(_accuracy(x[layer], drawn, x_scored[layer], drawn_scored))
  of_word = defaultdict(Counter)
  for _, _, word, tag in trained:
    of_word[word][tag] += 1
  usual = Counter(gold).most_common(1)[0][0]
  guesses = []
  for _, _, word, _ in scored:
    guesses.append(of_word[word].most_common(1)[0][0] if word in of_word else usual)
  return {
    'accuracy': accuracy,
    'control': control,
    'majority': float(np.mean([tag == usual for tag in gold_scored])),
    'of_the_word': float(np.mean([a == b for a, b in zip(guesses, gold_scored)])),
    'words_trained': len(trained),
    'words_scored': len(scored),
    'tags': tags,
  }


def _features(model: Model, sentences: Sequence[Sentence], words: Sequence[Word]) -> np.ndarray:
  """The hidden states of the first pieces of words, [L + 1, W, D]."""
  places = defaultdict(list)  # {number of a sentence: the positions of its words}
  for number, at, *_ in words:
    places[number].append(at)
  states = hidden(model, [sentences[number] for number in places])
  return np.concatenate([x[:, at] for x, at in zip(states, places.values())], axis=1)


def _drawn(words: Sequence[Word], tags: Sequence[str]) -> list[str]:
  """A tag for each word, the same one wherever the word stands: the control task."""
  return [tags[zlib.crc32(word.encode()) % len(tags)] for _, _, word, _ in words]


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
  model.ask('attention')  # InputError if the model has no attention
  function = model.compiled(functools.partial(hidden_states.inside, model.objective.model))
  total, queries = np.zeros(()), 0
  for sentence in progress(sentences, 'attention', 'sentences'):
    n = len(sentence.ids) + 2
    arrays = _arrays(model, sentence, power_of_two(n))
    maps = jax.device_get(function(model.weights['encoder'], arrays)[1])[:, :, :n, :n]
    total = total + _patterns(maps.astype(np.float64))
    queries += n - 2
  if not queries:
    return []
  names = 'first', 'last', 'itself', 'before', 'after', 'entropy', 'distance'
  out = []
  for layer, head in np.ndindex(total.shape[1:]):
    means = map(float, total[:, layer, head] / queries)
    out.append({'layer': layer, 'head': head} | dict(zip(names, means)))
  return out


def _patterns(maps: np.ndarray) -> np.ndarray:
  """Statistics [7, L, H] of maps [L, H, n, n], summed over all but the first and last query."""
  n = maps.shape[-1]
  queries = np.arange(1, n - 1)
  shares = maps[:, :, queries]  # of what each query attends to
  entropy = -np.sum(shares * np.log(np.maximum(shares, 1e-30)), axis=-1)
  distance = np.sum(shares * np.abs(queries[:, None] - np.arange(n)), axis=-1)
  itself, before, after = (shares[:, :, queries - 1, queries + k] for k in (0, -1, 1))
  values = shares[..., 0], shares[..., -1], itself, before, after, entropy, distance
  return np.stack([value.sum(axis=-1) for value in values])
