"""A trained model with its tokenizer and config, and a method for each question it can answer."""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax import models
from bert_jax.command_line import show_log
from bert_jax.errors import InputError, listed, log
from bert_jax.models import layers
from bert_jax.objectives.encode import encode, encode_mlm
from bert_jax.predict import cpu_kernels, packed_rows
from bert_jax.predict.hidden_states import ATTENTION
from bert_jax.predict.sentence_vectors import EMBED
from bert_jax.tasks import TASKS
from bert_jax.tasks.ask import Ask
from bert_jax.tasks.record import Prediction
from bert_jax.text import frames
from bert_jax.workdir import int8, trained

# What any model can be asked, whatever it was trained for.
OF_ALL = {'embed': EMBED, 'attention': ATTENTION}
# {task: Prediction}; where families share a task, the last family's.
PREDICTIONS = {name: x for task in TASKS.values() for name, x in task.predictions.items()} | OF_ALL


def methods(predictions: Mapping[str, Prediction]) -> dict[str, str]:
  """{name of a method: its task}."""
  return {x.method or name.replace('-', '_'): name for name, x in predictions.items()}


METHODS = methods(PREDICTIONS)


def known(task: str) -> None:
  if task not in PREDICTIONS:
    raise InputError(f'task {task!r} is not known; use one of {", ".join(PREDICTIONS)}.')


class Model:
  """A trained model on one device, with a method for each task.

  Each method (model.pyi lists them) takes a list, a generator or a DataFrame, and the options of
  its Prediction. It returns one answer for each element, or a DataFrame of what the command line
  prints for each row (of one without an answer its `error`), found by the columns of its fields:
  in the order of the rows and with their index.

  source: a run's workdir, a Hugging Face folder, or a trained.Trained. which: 'latest', 'best' or a
  step of a run. dtype: of matrix products and their weights, 'float32' or 'bfloat16'; '': as in its
  config, but float32 on a CPU, where bfloat16 takes two to three times as long. in_int8: round the
  weights to int8 (bert_jax/workdir/int8.py).

  Texts are str; pairs and other records are tuples or dicts of the fields in predict/README.md.
  counts: how many texts were cut or read in windows, and how many pieces were unknown.
  """

  def __init__(
    self, source: Any, which: str | int = 'latest', dtype: str = '', in_int8: bool = False
  ):
    show_log()
    origin = source if isinstance(source, trained.Trained) else trained.load(source, which)
    self.config = origin.config.copy_and_resolve_references()
    self.tokenizer, self.step, self.vector = origin.tokenizer, origin.step, origin.vector
    # These fields were set for the device of the training.
    self.config.model.update(scan_layers=False, remat='none', attention_implementation='einsum')
    if dtype not in ('', 'float32', 'bfloat16'):
      raise InputError(f'dtype is {dtype!r}; use float32 or bfloat16.')
    if dtype or jax.default_backend() == 'cpu':
      self.config.model.dtype = dtype or 'float32'
    self.config = config_lib.check(self.config)
    self.family = TASKS[self.config.objective]
    self.objective: Any = self.family.objective(self.config, self.tokenizer)
    params, self.in_int8 = models.unstack_layers(origin.params), in_int8
    # Classifiers always compute in float32, and weights from int8 stay exact.
    parts = () if in_int8 else ('encoder', 'decoder', 'mlm', 'pooler')
    types = dict.fromkeys(parts, self.config.model.dtype)
    params = int8.rounded(params) if in_int8 else params
    params = {part: _in(types.get(part, 'float32'), tree) for part, tree in params.items()}
    # Where it is faster, kernels are transposed.
    self._turned = jax.default_backend() == 'cpu' and self.config.model.dtype == 'float32'
    self.weights = jax.device_put(cpu_kernels.turned(params) if self._turned else params)
    # The most tokens of an example, as in its training and evaluation.
    self.limit = self.family.limit(self.config)
    if not self.limit:  # distances as long as with a memory
      self.limit = self.config.data.seq_length + self.config.model.memory_length
    self.counts = Counter()
    self._asks, self._methods = {}, METHODS | methods(self.family.predictions)

  def __repr__(self):  # one line: a notebook shows the value of a cell
    model = self.config.model
    size = f'{model.num_hidden_layers} layers x {model.hidden_size}'
    number = f'{models.count_parameters(self.weights):,} parameters'
    return f'Model({self.config.objective}, {size}, {number}, step {self.step:,})'

  @property
  def params(self) -> dict[str, Any]:
    """The parameters as the objective's modules expect them, on the host."""
    params = jax.device_get(self.weights)
    return cpu_kernels.turned(params) if self._turned else params

  def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles function(weights, ...), which may apply any module to the weights or to parts."""

    def run(*args):
      with cpu_kernels.dense(self._turned):
        return function(*args)

    return jax.jit(layers.traced_in(self.config.model.dtype, run))

  @property
  def default_task(self) -> str:
    """The default task: the objective's first for which the model has all parts."""
    able = (name for name, x in self.family.predictions.items() if self._has_parts(x))
    return next(able, next(iter(OF_ALL)))

  def _has_parts(self, prediction):
    model = self.config.model  # whose pooler and MLM head may be without parameters
    without = {'pooler'} if model.pooler == 'none' else set()
    if model.mlm_head == 'none' and model.tie_word_embeddings and not model.decoder_bias:
      without.add('mlm')
    return set(prediction.parts) - without <= self.weights.keys()

  def predict(self, values: Any, **options: Any) -> Any:
    """What the method of the default task returns."""
    return self._answers(self.default_task, values, **options)

  def ask(self, task: str, **options: Any) -> Ask:
    """The tasks.ask.Ask of a task with these options; InputError if this model cannot do it."""
    options = {name: value for name, value in options.items() if value is not None}
    prediction = self.family.predictions.get(task) or OF_ALL.get(task)
    taken = inspect.signature(prediction.ask).parameters if prediction else {}
    takes_all = any(x.kind is x.VAR_KEYWORD for x in taken.values())
    odd = [name for name in options if name not in taken]
    if prediction and odd and not takes_all:
      has = listed(prediction.options) or 'none'
      raise InputError(f'{task} has no option {odd[0]!r}; its options are: {has}.')
    for name, option in prediction.options.items() if prediction else ():
      if name in options:
        option.check(name, options[name])
    several = lambda x: isinstance(x, Iterable) and not isinstance(x, str)  # texts, as a list
    options = {name: tuple(x) if several(x) else x for name, x in options.items()}
    key = (task, *sorted(options.items()))
    if key in self._asks:
      return self._asks[key]
    if not prediction:
      known(task)
    head = f'head for {task!r}; use one that was trained for it'
    lacks = (prediction or PREDICTIONS[task]).lacks or head
    if not prediction:
      inside = ''.join(f' (its {x}: tools.convert --{x})' for x in self.family.other_models)
      said = f'this model was trained for {self.config.objective!r} and has no {lacks}'
      raise InputError(f'{said}{inside}.')
    if not self._has_parts(prediction):
      raise InputError(f'the weights of this model came without a {lacks}.')
    model: Any = self  # as the stub describes it
    return self._asks.setdefault(key, prediction.ask(model, **options))

  def outputs(self, function: Callable[..., Any], examples: Any) -> dict[str, Any]:
    """Runs a function made by `compiled` over R rows of Examples: {name: [R, ...]}."""
    alone = self.limit if self.config.model.mixer == 'fourier' else 0
    return packed_rows.outputs(function, self.weights, examples, alone)

  def note(self, counts: dict[str, int], read: Iterable[Any]) -> None:
    """Adds to the counts what happened to texts, and the unknown pieces among the ids read."""
    self.counts.update(counts)
    if unknown := sum(int(np.sum(ids == self.tokenizer.unk_id)) for ids in read):
      self.counts['pieces that are not in the vocabulary ([UNK])'] += unknown

  def hidden(self, params: Any, batch: Any) -> jax.Array:
    """The hidden states [B, T, D] of a batch after the last layer."""
    return encode(self.objective.model, params['encoder'], batch)

  def word_hidden(self, params: Any, batch: Any) -> jax.Array:
    """The hidden states [B, T, D] of a batch from which masked words are predicted."""
    return encode_mlm(self.objective.model, params, batch)

  def mlm_logits(self, params: Any, hidden_BKD: jax.Array) -> jax.Array:
    """The masked-LM head's logits [B, K, V] of hidden states."""
    return models.word_logits(self.objective.model, params, hidden_BKD)

  def __getattr__(self, name: str) -> Callable[..., Any]:
    """The method of a task; Python calls this when the object has no such attribute."""
    if name not in (known := vars(self).get('_methods', METHODS)):
      raise AttributeError(f'{type(self).__name__!r} has no attribute {name!r}')
    return functools.partial(self._answers, known[name])

  def __dir__(self) -> list[str]:
    return [*super().__dir__(), *vars(self).get('_methods', METHODS)]

  def _answers(self, task, values, *arguments, **options):
    """Answers values by a task's method; arguments: its options in order. Elements of a list that
    have no answer are counted; InputError if none can be one."""
    is_frame = frames.is_frame(values)
    if not (is_frame or isinstance(values, Iterable)) or isinstance(values, (str, bytes, dict)):
      kind = f'{task} takes a list of texts, or of pairs, and got a {type(values).__name__}'
      raise InputError(f'{kind}; put what is asked in [].')
    known_options = (self.family.predictions.get(task) or PREDICTIONS[task]).options
    if len(arguments) > len(known_options):
      fault = f'{task} got {len(arguments)} values of options, and has {len(known_options)}'
      raise InputError(f'{fault}; give texts as one list.')
    ask = self.ask(task, **options, **dict(zip(known_options, arguments)))
    if is_frame:
      kind, records = 'row', ask.of_table(frames.records(values, task), task)
    else:
      kind, records = 'element', [_record(ask, value) for value in values]
      if records and all(isinstance(record, InputError) for record in records):
        raise InputError(f'{task}: element 0: {records[0]}')
    replies = list(ask.each(records))
    lacking = [f'{kind} {i}: {why}' for i, (answer, why) in enumerate(replies) if answer is None]
    if lacking:
      counts = f'{len(lacking)} of {len(replies)} {kind}s'
      log.warning('%s: %s have no answer; the first is %s', task, counts, lacking[0])
    if not is_frame:
      return ask.returned([answer for answer, _ in replies])
    shown = [{'error': why} if answer is None else ask.shown(answer) for answer, why in replies]
    return frames.like(values, shown, [] if shown else self._sample(ask))

  def _sample(self, ask):
    """[the answer to a text], whose columns a table without rows has; [] if there is none."""
    before = self.counts.copy()
    ((answer, _),) = ask.each([_record(ask, dict.fromkeys(ask.fields, 'a'))])
    self.counts = before
    return [ask.shown(answer)] if answer else []


def _record(ask, value):
  """The record of an element of a list, or the InputError why it is none."""
  try:
    return ask.element(value)
  except InputError as error:
    return error


def _in(dtype, tree):
  """A tree of arrays on the host with its matrices cast to a type; biases and scales stay."""
  kind = jnp.dtype(dtype)
  return jax.tree.map(lambda x: np.asarray(x, kind if np.ndim(x) > 1 else None), tree)
