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


def words_of(
  sentences: Sequence[Sentence], most: int, counts: Counter[str]
) -> dict[bool, list[Word]]:
  """{is it scored: [Word]} of the words with a tag: `most` train, a quarter of that is scored."""
  out = {False: [], True: []}
  for i, sentence in enumerate(sentences):
    for word, tag, at in zip(sentence.words, sentence.tags, sentence.first):
      if tag and at >= 0:
        out[i % 5 == 4].append((i, int(at), word, tag))
      elif tag:
        counts['tagged words without a piece, or cut off (not probed)'] += 1
  for scored, limit in ((False, most), (True, most // 4)):
    counts['words not probed (--words)'] += max(0, len(out[scored]) - limit)
    out[scored] = out[scored][:limit]
  return out


def linear(
  model: Model, sentences: Sequence[Sentence], most: int, counts: Counter[str]
) -> dict[str, Any]:
  """Probes each layer: {'accuracy': [L + 1], 'control': [L + 1], 'majority', 'of_the_word',
  'words_trained', 'words_scored', 'tags'}, or {} if there are too few words with tags."""
  words = words_of(sentences, most, counts)
  tags = sorted({tag for *_, tag in words[False]})
  if len(tags) < 2 or not words[True]:
    return {}
  places = defaultdict(list)  # {number of a sentence: the positions of its words}
  for i, at, *_ in words[False] + words[True]:
    places[i].append(at)
  numbers, parts = sorted(places), {False: [], True: []}
  for i, states in zip(numbers, hidden(model, [sentences[i] for i in numbers])):
    parts[i % 5 == 4].append(states[:, places[i]])
  features = {scored: np.concatenate(x, axis=1) for scored, x in parts.items()}
  gold = {scored: [tag for *_, tag in words[scored]] for scored in words}
  draw = lambda word: tags[zlib.crc32(word.encode()) % len(tags)]
  drawn = {scored: [draw(word) for _, _, word, _ in words[scored]] for scored in words}
  of_word, every = defaultdict(Counter), Counter(gold[False])
  for _, _, word, tag in words[False]:
    of_word[word][tag] += 1
  usual = every.most_common(1)[0][0]
  guess = [of_word[w].most_common(1)[0][0] if w in of_word else usual for _, _, w, _ in words[True]]
  layers = progress(range(len(features[False])), 'linear probes', 'layers')
  accuracy = lambda n, y: _accuracy(features[False][n], y[False], features[True][n], y[True])
  accuracies = [[accuracy(n, y) for y in (gold, drawn)] for n in layers]
  return {
    'accuracy': [a for a, _ in accuracies],
    'control': [b for _, b in accuracies],
    'majority': float(np.mean([tag == usual for tag in gold[True]])),
    'of_the_word': float(np.mean([a == b for a, b in zip(guess, gold[True])])),
    'words_trained': len(gold[False]),
    'words_scored': len(gold[True]),
    'tags': tags,
  }


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
  return [
    {'layer': layer, 'head': head} | dict(zip(names, map(float, total[:, layer, head] / queries)))
    for layer in range(total.shape[1])
    for head in range(total.shape[2])
  ]


def _patterns(maps: np.ndarray) -> np.ndarray:
  """Statistics [7, L, H] of maps [L, H, n, n], summed over all but the first and last query."""
  n = maps.shape[-1]
  q = np.arange(1, n - 1)
  of = maps[:, :, q]
  near = [of[:, :, q - 1, q + k] for k in (0, -1, 1)]
  entropy = -np.sum(of * np.log(np.maximum(of, 1e-30)), axis=-1)
  distance = np.sum(of * np.abs(q[:, None] - np.arange(n)), axis=-1)
  values = [of[..., 0], of[..., -1], *near, entropy, distance]
  return np.stack([value.sum(axis=-1) for value in values])
