"""Computes a vector for each text: the mean of its last hidden states, or the state of [CLS], and
the projection of that, if the model has one.

The mean goes over all tokens, [CLS] and [SEP] included, as in sentence-transformers (Reimers &
Gurevych 2019). Of a text that is too long, a model that was trained on vectors reads the beginning,
as in training; others read windows that overlap by half, whose mean is weighted by their tokens.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax.errors import InputError
from bert_jax.models.pooling import POOLINGS
from bert_jax.objectives.contrastive import unit
from bert_jax.objectives.encode import text_vectors
from bert_jax.rows.examples import Examples, by_example
from bert_jax.rows.windows import cut
from bert_jax.tasks.ask import Packed, RecordProblems, grouped
from bert_jax.tasks.record import Option, Prediction

if TYPE_CHECKING:
  from bert_jax.predict.model import Model


class Embed(Packed):
  """Answers a text with its vector. pooling: mean or cls; '': as trained. normalize: scale vectors
  to length 1; None: as trained or as sentence-transformers' files in its folder say, else yes."""

  exports = {'embedding': '[B, vector_size]', 'hidden': '[B, T, D]'}

  def __init__(self, model: 'Model', pooling: str = '', normalize: bool | None = None):
    super().__init__(model)
    trained = model.vector
    self.pooling = pooling or trained.pooling or 'mean'
    if self.pooling not in POOLINGS:
      raise InputError(f'pooling is {self.pooling!r}; use one of {", ".join(POOLINGS)}.')
    as_trained = trained.normalized or not trained.pooling
    self.normalize = as_trained if normalize is None else normalize

  def examples(self, records: Sequence[str], problems: RecordProblems) -> 'Windows':
    return Windows(self.model, records, problems, self.normalize)

  def outputs(self, params: Any, batch: Any) -> dict[str, Any]:
    hidden_BTD = self.model.hidden(params, batch)
    vectors_BND = self._vectors(params, batch, hidden_BTD)
    return {'vectors': vectors_BND, 'example_ids': batch['example_ids']}

  def exported(self, params: Any, batch: Any) -> dict[str, Any]:
    hidden_BTD = self.model.hidden(params, batch)
    vector_BD = self._vectors(params, batch, hidden_BTD)[:, 0]
    return {'embedding': unit(vector_BD) if self.normalize else vector_BD, 'hidden': hidden_BTD}

  def _vectors(self, params, batch, hidden_BTD):
    return text_vectors(
      self.model.objective.model,
      params,
      hidden_BTD,
      batch['segment_ids'],
      batch['cls_positions'],
      self.pooling,
    )

  def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
    return {'embedding': answer['vector']}

  # pyrefly: ignore[bad-override]: an array in place of a list
  def returned(self, answers: list[Any]) -> np.ndarray:
    """The vectors as one array [number of texts, D]; NaN where there is none."""
    nothing = {'vector': np.full(self.model.objective.model.vector_size, np.nan, np.float32)}
    vectors = [(answer or nothing)['vector'] for answer in answers]
    return np.array(vectors, np.float32).reshape(-1, len(nothing['vector']))


POOLING = Option(str, "mean or cls; default: the model's, or mean")
NORMALIZE = Option(bool, 'vectors of length 1; default: as trained, else yes')
OPTIONS = {'pooling': POOLING, 'normalize': NORMALIZE}
EMBED = Prediction(Embed, options=OPTIONS)


class Windows(Examples):
  """Texts as examples: one for each text, or for each window of a long one."""

  def __init__(
    self, model: 'Model', records: Sequence[str], problems: RecordProblems, normalize: bool
  ):
    self.normalize = normalize
    ends = model.tokenizer.ends
    room = model.limit - sum(ends)
    texts = []
    text_of = []
    self.read = model.tokenizer.ids_batch([model.vector.read_as(text) for text in records])
    for i, ids in enumerate(self.read):
      parts = [(ids,)]
      if len(ids) > room:
        how, keep = 'in windows', 'windows'
        if model.vector.pooling:
          how, keep = 'cut', 'head'
        problems.counts[f'texts {how} (longer than {model.limit} tokens)'] += 1
        parts = cut((ids,), room, keep)
      texts += parts
      text_of += [i] * len(parts)
    self.text_of = np.array(text_of, np.int64)
    super().__init__(model.tokenizer, texts, seq_length=model.limit, slots=64, ends=ends)

  def answers(self, outputs: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    numbers, (vectors,) = by_example(outputs, 'vectors')
    out = []
    for i, (of_text, weights) in grouped(self.text_of[numbers], vectors, self.lengths[numbers]):
      vector = np.average(of_text, axis=0, weights=weights)
      if self.normalize:
        vector = vector / max(np.linalg.norm(vector), 1e-12)
      out.append({'id': i, 'vector': vector.astype(np.float32)})
    return out
