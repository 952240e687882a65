"""Texts for a model to translate, or whatever else it was trained to write: {"text"}."""

import dataclasses

from bert_jax.errors import InputError
from bert_jax.tasks.ask import OfHead, texts_of
from bert_jax.tasks.translation.reading import Pair
from bert_jax.tasks.translation.task import Pairs


class Translate(OfHead):
  """beams: of the search; None: as many as translation.beams says, and 4 if that is 0."""

  options, examples_of, shows = ('beams',), Pairs, ('text', 'translation', 'score')

  def __init__(self, model, beams=None):
    if beams is not None and (type(beams) is not int or beams < 1):
      raise InputError(f'beams is {beams!r}; search with 1 or more.')
    beams = beams or model.objective.beams or 4
    self.objective = dataclasses.replace(model.objective, beams=beams)
    super().__init__(model)

  def outputs(self, params, batch):
    return self.objective.predict(params, batch)

  def record(self, given):
    (text,) = texts_of(given, self.fields)
    return Pair('', '', text, None)

  def shown(self, answer):
    return super().shown(answer | {'text': answer['source'], 'translation': answer['prediction']})
