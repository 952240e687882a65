"""Translates texts, {"text"}, or writes whatever else the model was trained to write."""

import dataclasses
import math
from typing import Any

from bert_jax.errors import InputError
from bert_jax.tasks.ask import LENGTH_PENALTY, OfHead, texts_of
from bert_jax.tasks.record import Option
from bert_jax.tasks.translation.reading import Pair
from bert_jax.tasks.translation.task import Pairs

BEAMS = 4  # of a model that was trained with translation.beams=0


class Translate(OfHead):
  """Translates by beam search. beams, length_penalty, max_tokens (of an answer): None: as in
  training. Texts that are too long are cut, and counted."""

  examples_of, shows = Pairs, ('text', 'translation', 'score')

  def __init__(
    self,
    model: Any,
    beams: int | None = None,
    length_penalty: float | None = None,
    max_tokens: int | None = None,
  ):
    of = model.objective
    beams = of.beams or BEAMS if beams is None else beams
    longest = of.longest if max_tokens is None else min(of.longest, max_tokens)
    for name, value in (('beams', beams), ('max_tokens', longest)):
      if type(value) is not int or value < 1:
        raise InputError(f'{name} is {value!r}; use 1 or more, such as {BEAMS}.')
    penalty = of.length_penalty if length_penalty is None else float(length_penalty)
    if not math.isfinite(penalty):
      raise InputError(f'length_penalty is {penalty}; use 1 for the mean.')
    words = of.model.with_vocab_size(model.tokenizer.vocab_size)
    search = {'beams': beams, 'longest': longest, 'length_penalty': penalty}
    self.objective = dataclasses.replace(of, model=words, **search)
    super().__init__(model)

  def outputs(self, params: dict, batch: dict) -> dict[str, Any]:
    return self.objective.predict(params, batch)

  def record(self, fields: dict[str, Any]) -> Pair:
    (text,) = texts_of(fields, self.fields)
    return Pair('', '', text, None)

  def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
    return super().shown(answer | {'text': answer['source'], 'translation': answer['prediction']})

  def returned(self, answers: list[dict | None]) -> list[str | None]:
    return [answer['prediction'] if answer else None for answer in answers]


OPTIONS = {
  'beams': Option(int, 'default: as in its config'),
  'length_penalty': LENGTH_PENALTY,
  'max_tokens': Option(int, 'default: as trained'),
}
