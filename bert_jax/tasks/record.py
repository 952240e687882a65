"""What a task family says about itself; config, prediction, conversion and reports read it here."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from bert_jax.errors import InputError

REQUIRED = ('resolve', 'texts', 'objective', 'sources', 'main_metric')


class Prediction(NamedTuple):
  """Something that a trained model can be asked.

  ask: the subclass of tasks.ask.Ask that answers. parts: of the parameters that it needs. lacks:
  what a model without them does not have, and what to do, as the end of a sentence.
  """

  ask: type
  parts: tuple = ()
  lacks: str = ''


class Head(NamedTuple):
  """A kind of model in Hugging Face's terms.

  ending: of its class there, after the architecture. parts: of our parameters that it has.
  pipeline: what its model card calls the task, if it has a name for it.
  """

  ending: str
  parts: tuple
  pipeline: str = ''


class Released(NamedTuple):
  """What the files of a released model say about its head."""

  parts: tuple  # of our parameters that are there
  labels: Callable  # () -> what its classifier tells apart, in order
  problem: str  # Hugging Face's problem_type, or ''
  limit: int  # tokens of an example


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """The record of a task family, whose `name` is what config.objective says.

  resolve(config) -> config           fills in what only the data can tell, such as a label set
  texts(config) -> texts              what a vocabulary is trained on
  objective(config, tokenizer) -> Objective
  sources(config, tokenizer, splits) -> {split: Source}
  main_metric(config) -> str          what a run is judged by if its config does not say

  fields: {name: Field} that its configs have besides those of every objective. rules(config) ->
  [(what must hold, sentence if it does not)]. defaults: {name: value} where the default of a field
  is another one for this family. reads_corpus: it is trained on documents, some of which are held
  out where data.eval is empty; the others read files of labelled examples (labelled.py).

  predictions: {name: Prediction}; the first whose parts a model has is its default. heads: what the
  model is in other libraries, the most demanding first; (): none of them has it.
  from_released(config, released): changes the config of a released model to what its head is.
  """

  name: str
  resolve: Callable = None
  texts: Callable = None
  objective: Callable = None
  sources: Callable = None
  main_metric: Callable = None
  fields: dict[str, Any] = dataclasses.field(default_factory=dict)
  rules: Callable = lambda config: ()
  defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
  reads_corpus: bool = False
  predictions: dict[str, Prediction] = dataclasses.field(default_factory=dict)
  heads: tuple = ()
  from_released: Callable = lambda config, released: None

  @property
  def blocks(self):
    """The names of the config's blocks that its fields are in."""
    return tuple(dict.fromkeys(name.partition('.')[0] for name in self.fields))

  @property
  def parts(self):
    """Parts of the parameters that a model of other libraries may have for it."""
    return tuple(dict.fromkeys(part for head in self.heads for part in head.parts))

  def check_whole(self):
    """InputError if the family was registered without something that every run needs."""
    if missing := [name for name in REQUIRED if getattr(self, name) is None]:
      raise InputError(
        f'the record of objective {self.name!r} has no {" and no ".join(missing)}; add it where '
        'the record is made, see bert_jax/tasks/record.py.'
      )


def records(namespace):
  """{objective: its record} of all the records in a module's namespace."""
  return {record.name: record for record in namespace.values() if isinstance(record, Task)}
