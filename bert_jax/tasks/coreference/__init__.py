"""Coreference: whom a pronoun stands for (GAP, Winograd schemas)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bert_jax.errors import InputError, quoted
from bert_jax.tasks import labelled
from bert_jax.tasks.ask import OfHead, texts_in
from bert_jax.tasks.coreference import task
from bert_jax.tasks.coreference.reading import Example
from bert_jax.tasks.coreference.task import Pronouns
from bert_jax.tasks.record import Prediction

if TYPE_CHECKING:
  from bert_jax.predict.loaded import Loaded


class Coreference(OfHead):
  """Asks a coreference model: {"text", "pronoun", "a", "b"}, without "b" for Winograd schemas. The
  offset of a span ("a-offset", ..) in characters may be left out if the text has it once."""

  examples_of, tabs = Pronouns, True
  shows = 'prediction', 'probability', 'probabilities'

  def __init__(self, model: 'Loaded'):
    super().__init__(model)
    self.fields = ('text', 'pronoun', *'ab'[: model.objective.candidates])
    self.others = tuple(f'{name}-offset' for name in self.fields[1:])

  def record(self, fields: Mapping[str, Any]) -> Example:
    text, *spans = texts_in(fields, self.fields)
    places = (_place(fields, text, name, span) for name, span in zip(self.fields[1:], spans))
    return Example('', '', text, tuple(places), None)


def _place(fields, text, name, span):
  """Finds the field `name` in its text: (from, to) in characters."""
  number = text.count(span) if span else 0
  if not number:
    raise InputError(f'{name} {quoted(span)} is not in the text; write it as it stands there')
  offset = fields.get(f'{name}-offset')
  if offset is None and number == 1:
    offset = text.index(span)
  if type(offset) is not int or offset < 0 or not text.startswith(span, offset):
    fault = f'{quoted(span)} is {number} times in the text'
    raise InputError(f'{fault}, and not at {name}-offset {quoted(offset)}; say where')
  return offset, offset + len(span)


COREFERENCE = labelled.family(
  'coreference',
  objective=task.objective,
  texts=task.texts,
  sources=task.sources,
  formats=('gap', 'wsc', 'cluewsc'),
  main_metric=lambda config: 'accuracy',
  predictions={'coreference': Prediction(Coreference)},
)
