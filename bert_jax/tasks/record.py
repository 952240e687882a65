"""The record of a task family: all that the rest of the package needs to know about it."""

import dataclasses
import math
import types
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_jax.errors import InputError, quoted

if TYPE_CHECKING:
  from ml_collections import ConfigDict

  from bert_jax.objectives.base import Objective
  from bert_jax.rows.source import Source
  from bert_jax.tasks.ask import Ask
  from bert_jax.tasks.teaching import Lesson, Teacher
  from bert_jax.tokenizers import Tokenizer


class Option(NamedTuple):
  """An option of a Prediction: an argument of its Ask, and of the command line."""

  kind: type  # int, float, str or bool
  help: str  # with the default
  low: float = -math.inf  # bounds of a number
  high: float = math.inf

  def check(self, name: str, value: Any) -> None:
    """InputError for a value that is no such number, or out of bounds."""
    if self.kind not in (int, float):
      return
    kind: Any = Integral if self.kind is int else Real
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not self.low <= value <= self.high:
      noun = 'a whole number' if self.kind is int else 'a number'
      raise InputError(f'{name} is {quoted(value)}; give {noun} from {self.low} to {self.high}.')


class Prediction(NamedTuple):
  """A kind of question that a trained model answers, such as fill-mask."""

  ask: type['Ask']
  parts: tuple[str, ...] = ()  # the parts of the parameters that it needs
  lacks: str = ''  # what a model without them lacks, and what to do, as the end of a sentence
  options: Mapping[str, Option] = types.MappingProxyType({})  # by argument of `ask`, in order


class Head(NamedTuple):
  """A class of Hugging Face transformers in which a family's models are exported and imported."""

  class_suffix: str  # the end of the class's name, after the architecture
  parameters: tuple[str, ...]  # our parts of parameters that it has, its own head last
  pipeline: str = ''  # the task in its model card; '': there is none
  found_by_class_name: bool = False  # other heads have the same parts: only the name tells
  # {part for training alone (a generator), not exported: the field that is 0 without it, or ''}.
  training_only: Mapping[str, str] = types.MappingProxyType({})
  causal: bool = False  # its attention is causal
  # Is a released model with this head, if it has no bert_jax config, loaded as this family? False:
  # the head is only used for export.
  import_as_this_family: bool = True


class Released(NamedTuple):
  """The facts about a released model's head that its files give."""

  parts: tuple[str, ...]  # the parts of our parameters that are there
  labels: Callable[[], tuple[str, ...]]  # the labels of its classifier, in order
  problem: str  # Hugging Face's problem_type, or ''
  limit: int  # the most tokens of an example
  makes_vectors: bool = False  # do its files say how a vector is made of a text?
  pairs: str = 'nsp'  # what its head for pairs of texts predicts: nsp, or sop (ALBERT)
  begin: str = ''  # what its targets begin with: cls, or sep (BART); '': it has no decoder
  pooling: str = 'cls'  # what its sequence classifier reads, see Description of convert
  activation: str = ''  # what its one output goes through, see Description
  writing: Mapping[str, Any] = types.MappingProxyType({})  # how it writes, see Description
  cut_side: str = 'right'  # the side on which its tokenizer cuts texts


class AsReleased(NamedTuple):
  """What files of Hugging Face say of a model besides its sizes."""

  problem: str = ''  # problem_type
  pooling: str = 'cls'  # classifier_pooling
  activation: str = ''  # activation_fn of sentence-transformers, of one output
  cut_side: str = 'right'  # the side on which its tokenizer cuts texts


class PlainBaseline(NamedTuple):
  """A model without a neural network, such as an SVM, that reports show beside a family's runs."""

  name: str
  fields: tuple[str, ...]  # the fields of the config on which its metrics depend
  metrics: Callable[['ConfigDict', 'Tokenizer'], dict[str, float]]


class Card(NamedTuple):
  """The parts of an exported model's model card that depend on its family."""

  trained_for: str  # what it was trained to do, in Markdown
  all_labels: bool = False  # an input has any number of labels
  number: str = ''  # what a regression predicts; '': it is none
  # How `bert_jax.predict` treats a text that is too long: head and tail say which end it
  # keeps; '': as text of a corpus, which is cut into rows.
  longer_texts: str = ''
  languages: tuple[str, ...] = ()  # names of the languages of its corpora


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """All that the package knows of a task family. Functions of one argument take a config."""

  name: str  # the value of config.objective

  # Its data. resolve fills in what only the data can tell, such as a label set; stand_in does so
  # without the data, where only sizes matter.
  resolve: Callable[['ConfigDict'], 'ConfigDict'] = lambda config: config
  stand_in: Callable[['ConfigDict'], 'ConfigDict'] = lambda config: config
  texts: Callable[['ConfigDict'], Any]  # texts on which a vocabulary is trained
  sources: Callable[..., dict[str, 'Source']]  # (config, tokenizer, splits) -> their rows
  # Warnings about data and settings that do not go well together, shown before the first step.
  remarks: Callable[['ConfigDict', 'Tokenizer', dict], list] = lambda config, tokenizer, sources: []
  # Whether it is trained on documents, some of which are held out if data.eval is empty. Other
  # families read files of labelled examples (labelled.py).
  reads_corpus: bool = False
  plain_baseline: PlainBaseline | None = None
  # (config, training rows, vectors of these, evaluated rows, vectors of those) -> the scores of a
  # classifier of vectors. Vectors are outputs of rows, {'vectors': [R, N, D], 'example_ids'}.
  of_vectors: Callable[..., dict[str, float]] | None = None

  # Its own config fields. A rule is (what must hold, the sentence if not).
  fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # that differ here
  rules: Callable[['ConfigDict'], Iterable[tuple[bool, str]]] = lambda config: ()
  # The names of its fields that change nothing in a run of a config, of which a user is told.
  without_effect: Callable[['ConfigDict'], Iterable[str]] = lambda config: ()
  limit_field: str = ''  # the most tokens of an example (0: a row); '': rows are no examples
  rows_follow: bool = False  # whether a row continues the text of the previous row (memory)

  # The column of the one label that a text has; '': it has none or several, or a number.
  label_column: Callable[['ConfigDict'], str] = lambda config: ''

  # Its model.
  objective: Callable[['ConfigDict', 'Tokenizer'], 'Objective']
  microbatches: Callable[['ConfigDict'], int] = lambda config: 1  # in which its loss splits a batch
  # The numbers of attention heads of its further towers, {name in messages: number}.
  heads_besides: Callable[['ConfigDict'], dict[str, int]] = lambda config: {}
  # (config, objective, teacher) -> what is distilled; None: the family has no teachers.
  taught: Callable[['ConfigDict', 'Objective', 'Teacher'], 'Lesson'] | None = None
  heads: tuple[Head, ...] = ()  # most parts first; (): no class is known
  # Adapts the config of a released model to its head.
  from_released: Callable[['ConfigDict', Released], None] = lambda config, released: None
  # What files of Hugging Face say of its models besides their sizes.
  as_released: Callable[['ConfigDict'], 'AsReleased'] = lambda config: AsReleased()
  # Config field of the label shares that a new head starts from; filled in from the training rows.
  prior: str = ''
  begin: str = ''  # the field for the first token of targets; '': [CLS], if there are targets
  numbers: str = ''  # the field that says whether labels are numbers
  sigmoid: str = ''  # the field that says whether these are sigmoids
  writing: str = ''  # the field that says how a released model writes, see Released.writing
  # The fields for the pooling and the length of the sentence vectors that it is trained to make.
  vector: tuple[str, ...] = ()
  # {part of the parameters: Trained -> the Trained of another model inside it}
  other_models: Mapping[str, Callable] = dataclasses.field(default_factory=dict)

  # Its answers. The first prediction that a model has the parts for is its default.
  predictions: Mapping[str, Prediction] = dataclasses.field(default_factory=dict)

  # How it is judged: by main_metric, if the config names no other (NAME_accuracy is the share of
  # right examples). judged_under: what an evaluation depends on beside data and weights.
  main_metric: Callable[['ConfigDict'], str]
  judged_under: Callable[['ConfigDict'], dict[str, Any]] = lambda config: {}
  # {name: a further score of an evaluation, of its answers with gold (scored.Scored.answers)}.
  scores: Mapping[str, Callable[[list[dict]], float]] = dataclasses.field(default_factory=dict)
  card: Callable[['ConfigDict'], Card] = lambda config: Card(f'`{config.objective}`')

  @property
  def blocks(self) -> tuple[str, ...]:
    """The names of the config blocks that hold its fields."""
    return tuple(dict.fromkeys(name.partition('.')[0] for name in self.fields if '.' in name))

  @property
  def parts(self) -> tuple[str, ...]:
    """The parts of our parameters that can be exported to Hugging Face transformers."""
    return tuple(dict.fromkeys(part for head in self.heads for part in head.parameters))

  def judge(self, config: 'ConfigDict') -> str:
    """The metric that judges a run: checkpoint.best_metric or, if empty, the main metric."""
    return config.checkpoint.best_metric or self.main_metric(config)

  def limit(self, config: 'ConfigDict') -> int:
    """The most tokens of an example, special ones included; 0: its rows are no examples."""
    block, _, field = self.limit_field.partition('.')
    return (config[block][field] or config.data.seq_length) if field else 0


def records(namespace: Mapping[str, Any]) -> dict[str, Family]:
  """Returns {objective: its record} of all the records in a module's namespace."""
  out = {}
  for record in namespace.values():
    if isinstance(record, Family) and out.setdefault(record.name, record) is not record:
      raise InputError(f'two records have the name {record.name!r}; give one another name.')
  return out
