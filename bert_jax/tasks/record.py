"""The record of a task family, which config, prediction, conversion and reports read."""

import dataclasses
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from bert_jax.errors import InputError


class Prediction(NamedTuple):
  """A kind of question that a trained model answers.
  ask: the subclass of tasks.ask.Ask that answers it. parts: the parts of the parameters that it
  needs. lacks: what a model without them lacks, and what to do, as the end of a sentence."""

  ask: type
  parts: tuple = ()
  lacks: str = ''


class Head(NamedTuple):
  """A kind of model of Hugging Face's library.
  ending: the end of its class name there, after the architecture. parts: the parts of our
  parameters that it has, its own last, which stands on the others. pipeline: the name of the task
  in its model card; '': there is none. by_name: another kind has the same parts, so that a model is
  one of these only if its class is called so. beside: {part: the field that is 0 without
  it, or ''} of the parts that it has in training alone (a generator), which are left out. causal:
  no token of such a model sees a later one. read: a model of this kind that comes without a config
  of ours is one of this family; else models of the family go out so, and come in as another's."""

  ending: str
  parts: tuple
  pipeline: str = ''
  by_name: bool = False
  beside: dict = types.MappingProxyType({})
  causal: bool = False
  read: bool = True


class Released(NamedTuple):
  """What the files of a released model say about its head."""

  parts: tuple  # the parts of our parameters that are there
  labels: Callable  # () -> the labels of its classifier, in order
  problem: str  # Hugging Face's problem_type, or ''
  limit: int  # the most tokens of an example
  pairs: str = 'nsp'  # what its head for pairs of texts says: nsp, or sop (ALBERT)
  begin: str = ''  # what its targets begin with: cls, or sep (BART); '': it writes none


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """The record of a task family, whose `name` is what config.objective says.

  resolve(config) -> config           fills in what only the data can tell, such as a label set
  stand_in(config) -> config          the same without the data, where only sizes matter
  texts(config) -> texts              what a vocabulary is trained on
  objective(config, tokenizer) -> Objective
  sources(config, tokenizer, splits) -> {split: Source}
  main_metric(config) -> str          what a run is judged by if its config does not say

  fields: {name: Field}, the fields of its configs besides those of every objective. rules(config)
  -> [(what must hold, sentence if it does not)]. rules_to_begin: the same for runs that begin;
  those that an earlier version began may break them. defaults: {name: value}, for fields whose
  default differs in this family. reads_corpus: it is trained on documents, some of which are held
  out if data.eval is empty; other families read files of labelled examples (labelled.py).
  judged_under(config) -> {name: value}: what decides the numbers of an evaluation besides its data
  and the weights. remarks(config, tokenizer, sources) -> sentences on what the data and the
  settings do to each other, shown before the first step.

  predictions: {name: Prediction}; the first whose parts a model has is its default. heads: the
  kinds of model that it is in Hugging Face's library, the one with most parts first; (): none.
  from_released(config, released): adapts the config of a released model to its head.
  problem(config) -> Hugging Face's problem_type of its models, or ''. begin: the name of the field
  that says what targets begin with; '': there is none, and those of a decoder begin with [CLS].
  vector(config) -> (pooling, is it scaled to length 1) of the vectors that its models are trained
  to make of texts; (): of none.
  """

  name: str
  resolve: Callable = lambda config: config
  stand_in: Callable = lambda config: config
  texts: Callable = None
  objective: Callable = None
  sources: Callable = None
  main_metric: Callable = None
  fields: dict[str, Any] = dataclasses.field(default_factory=dict)
  rules: Callable = lambda config: ()
  rules_to_begin: Callable = lambda config: ()
  judged_under: Callable = lambda config: {}
  remarks: Callable = lambda config, tokenizer, sources: []
  defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
  reads_corpus: bool = False
  predictions: dict[str, Prediction] = dataclasses.field(default_factory=dict)
  heads: tuple = ()
  from_released: Callable = lambda config, released: None
  problem: Callable = lambda config: ''
  begin: str = ''
  vector: Callable = lambda config: ()

  @property
  def blocks(self):
    """The names of the blocks of the config that hold its fields."""
    return tuple(dict.fromkeys(name.partition('.')[0] for name in self.fields if '.' in name))

  @property
  def parts(self):
    """The parts of our parameters that some kind of model of Hugging Face's has."""
    return tuple(dict.fromkeys(part for head in self.heads for part in head.parameters))

  def check_whole(self):
    """InputError if the record lacks something that every run needs, or a prediction."""
    required = 'texts', 'objective', 'sources', 'main_metric', 'resolve', 'rules', 'from_released'
    missing = [name for name in required if not callable(getattr(self, name))]
    given = self.predictions.items()
    missing += [f'Prediction {name!r}' for name, x in given if not isinstance(x, Prediction)]
    if missing:
      fault = f'the record of objective {self.name!r} has no {" and no ".join(missing)}'
      raise InputError(f'{fault}; add it where the record is made, see bert_jax/tasks/record.py.')

  def check_sources(self, sources, needed='train'):
    """InputError unless these are {split: Source}, with the split that is needed."""
    fault = ''
    if not isinstance(sources, dict):
      fault = f'returns a {type(sources).__name__}'
    elif needed and needed not in sources:
      fault = f'returns no {needed!r}'
    for split, source in sources.items() if not fault else ():
      needs = '__len__', '__getitem__', 'fingerprint', 'baselines'
      if lacking := [name for name in needs if not hasattr(source, name)]:
        fault = f'returns for {split!r} a {type(source).__name__} without {" and ".join(lacking)}'
    if fault:
      advice = 'return {split: Source}, see bert_jax/rows/batches.py'
      raise InputError(f'sources() of objective {self.name!r} {fault}; {advice}.')

  def check_metrics(self, config, objective):
    """InputError if a run would be judged by a metric that its objective does not compute."""
    judge, known = self.main_metric(config), tuple(objective.metrics)
    if judge not in known:
      advice = 'let it name one of them, see bert_jax/tasks/record.py'
      has = f'whose objective has {", ".join(known)}'
      raise InputError(f'main_metric of objective {self.name!r} is {judge!r}, {has}; {advice}.')


def records(namespace):
  """{objective: its record} of all the records in a module's namespace."""
  out = {}
  for record in namespace.values():
    if isinstance(record, Family) and out.setdefault(record.name, record) is not record:
      raise InputError(f'two records have the name {record.name!r}; give one another name.')
  return out
