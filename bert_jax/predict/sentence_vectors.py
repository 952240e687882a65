"""Computes a vector for each text of its last hidden states, pooled by one of POOLINGS, and the
projection of that, if the model has one.

All tokens count, [CLS] and [SEP] included, so that an empty text has a vector, as in
sentence-transformers (Reimers & Gurevych 2019). Of a text that is too long, a model that was
trained on vectors reads the beginning, as in training; others read windows that overlap by half,
whose mean is weighted by their tokens.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax.convert import sentence_transformers
from bert_jax.errors import InputError, listed, quoted
from bert_jax.models.pooling import POOLINGS
from bert_jax.objectives.contrastive import unit
from bert_jax.objectives.encode import text_vectors
from bert_jax.rows.examples import Examples, by_example
from bert_jax.rows.windows import cut
from bert_jax.tasks.ask import Packed, RecordProblems, grouped
from bert_jax.tasks.record import Option, Prediction

if TYPE_CHECKING:
  from bert_jax.predict.loaded import Loaded


class Embed(Packed):
  """Answers a text with its vector. pooling: one of POOLINGS; '': as trained. normalize: scale
  vectors to length 1; None: as trained or as sentence-transformers' files in its folder say, else
  yes. prompt: the name of what is put before each text, '' is nothing; None: the model's default.
  skipped: how many tokens of it are left out of the pooling."""

  reads_empty = True
  shows = ('embedding',)
  exports = {'embedding': '[B, vector_size]', 'hidden': '[B, T, D]'}

  def __init__(
    self,
    model: 'Loaded',
    pooling: str = '',
    normalize: bool | None = None,
    prompt: str | None = None,
  ):
    super().__init__(model)
    if model.unread_modules:
      raise InputError(model.unread_modules)
    trained = model.vector
    if prompt is not None:
      if prompt and prompt not in {*trained.prompts, *sentence_transformers.OF_ALL}:
        names = listed(trained.prompts) or 'none'
        raise InputError(f'prompt is {quoted(prompt)}; the prompts of this model are: {names}.')
      trained = trained._replace(prompt=prompt)
    self.vector, self.skipped = trained, 0
    before = trained.read_as('')
    if before and not trained.pools_prompt:
      (ids,) = model.tokenizer.ids_batch([before])
      self.skipped = min(model.tokenizer.ends[0] + len(ids), model.limit - 1)
    self.pooling = pooling or trained.pooling or 'mean'
    if self.pooling not in POOLINGS:
      raise InputError(f'pooling is {self.pooling!r}; use one of {", ".join(POOLINGS)}.')
    as_trained = trained.normalized or not trained.pooling
    self.normalize = as_trained if normalize is None else normalize

  def examples(self, records: Sequence[str], problems: RecordProblems) -> 'Windows':
    return Windows(self, records, problems)

  def outputs(self, params: Any, batch: Any) -> dict[str, Any]:
    hidden_BTD = self.model.hidden(params, batch)
    vectors_BND = self._vectors(params, batch, hidden_BTD)
    return {'vectors': vectors_BND, 'example_ids': batch['example_ids']}

  def exported(self, params: Any, batch: Any) -> dict[str, Any]:
    hidden_BTD = self.model.hidden(params, batch)
    vector_BD = self._vectors(params, batch, hidden_BTD)[:, 0]
    return {'embedding': unit(vector_BD) if self.normalize else vector_BD, 'hidden': hidden_BTD}

  def _vectors(self, params, batch, hidden_BTD):
    model = self.model.objective.model
    return text_vectors(model, params, hidden_BTD, batch, self.pooling, self.skipped)

  def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
    return {'embedding': answer['vector']}

  # pyrefly: ignore[bad-override]: an array in place of a list
  def returned(self, answers: list[Any]) -> np.ndarray:
    """The vectors as one array [number of texts, D]; NaN where there is none."""
    nothing = {'vector': np.full(self.model.objective.model.vector_size, np.nan, np.float32)}
    vectors = [(answer or nothing)['vector'] for answer in answers]
    return np.array(vectors, np.float32).reshape(-1, len(nothing['vector']))


POOLING = Option(str, f"{', '.join(POOLINGS)}; default: the model's, or mean")
NORMALIZE = Option(bool, 'vectors of length 1; default: as trained, else yes')
PROMPT = Option(str, "name of the prompt before each text; default: the model's, '': none")
OPTIONS = {'pooling': POOLING, 'normalize': NORMALIZE, 'prompt': PROMPT}
EMBED = Prediction(Embed, options=OPTIONS)


class Windows(Examples):
  """Texts as examples: one for each text, or for each window of a long one."""

  def __init__(self, ask: Embed, records: Sequence[str], problems: RecordProblems):
    self.normalize, model = ask.normalize, ask.model
    ends = model.tokenizer.ends
    room = model.limit - sum(ends)
    texts = []
    text_of = []
    self.read = model.tokenizer.ids_batch([ask.vector.read_as(text) for text in records])
    for i, ids in enumerate(self.read):
      if not len(ids) and not any(ends):
        continue  # no token at all
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
