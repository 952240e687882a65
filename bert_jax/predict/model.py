"""A trained model with its tokenizer and config, and a method for each question it can answer."""

import functools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import jax

from bert_jax import models
from bert_jax.copies import keep_compiled
from bert_jax.errors import InputError, listed, log
from bert_jax.predict import cpu_kernels, hidden_states, packed_rows
from bert_jax.predict.loaded import Loaded
from bert_jax.predict.sentence_vectors import EMBED
from bert_jax.tasks import TASKS
from bert_jax.tasks.ask import Ask, Empty
from bert_jax.tasks.record import Prediction
from bert_jax.text import frames

Asked = Iterable[Any]  # a list or generator of texts or records, or a DataFrame

# What any model can be asked, whatever it was trained for.
OF_ALL = {'embed': EMBED}
# {task: Prediction}; where families share a task, the last family's.
PREDICTIONS: dict[str, Prediction] = {}
for _family in TASKS.values():
  PREDICTIONS.update(_family.predictions)
PREDICTIONS.update(OF_ALL)


def method_of(task: str) -> str:
  """The name of a Model's method for a task."""
  return 'find_answers' if task == 'answer' else task.replace('-', '_')


class Model(Loaded):
  """A trained model on one device, with a method for each task.

  A method takes a list, a generator or a DataFrame, and options (None: the default). It returns for
  each element a dict as the command line prints it: its fields, and the answer or `error` beside;
  of a DataFrame one. Methods called as tasks answer texts in short. Of one text, tuple (a pair) or
  dict the one answer is returned.

  source: a run's workdir, a Hugging Face folder, or a trained.Trained. checkpoint: as of
  bert_jax.load. dtype: of matrix products and their weights, 'float32' or 'bfloat16'; '': as in its
  config, but float32 on a CPU, where bfloat16 takes two to three times as long.

  Texts are str; pairs and other records are tuples or dicts of the fields in predict/README.md.
  counts: how many texts were cut or read in windows, and how many pieces were unknown.
  """

  def __repr__(self):  # one line: a notebook shows the value of a cell
    model = self.config.model
    size = f'{model.num_hidden_layers} layers x {model.hidden_size}'
    number = f'{models.count_parameters(self.weights):,} parameters'
    tasks = f'asked to {", ".join(self.tasks)}'
    return f'Model({self.config.objective}, {size}, {number}, step {self.step:,}, {tasks})'

  def __dir__(self):  # without what tasks compute with, and the methods of those that it lacks
    lacks = {method_of(task) for task in PREDICTIONS.keys() - self.tasks.keys()}
    inner = {name for name in vars(Loaded) if name[0] != '_'}
    return sorted({*super().__dir__()} - lacks - inner - {'ask'})

  # ---- A method for each task. Its options are described in predict/README.md. -------------------

  def predict(self, values: Asked, **options: Any) -> Any:
    """As `answer` by the default task: of each text a dict with it, and its answer beside."""
    return self.answer(self.default_task, values, **options)

  def fill_mask(self, values: Asked, top_k: int | None = None) -> Any:
    """For each text a list for each of its masks: [(piece, probability), ...], the best first."""
    return self._short('fill-mask', values, top_k=top_k)

  def perplexity(self, values: Asked) -> Any:
    """For each text a number, NaN where there is none."""
    return self._short('perplexity', values)

  def next_sentence(self, values: Asked) -> Any:
    """For each pair the probability that the second text follows the first."""
    return self._short('next-sentence', values)

  def generate(
    self,
    values: Asked,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
  ) -> Any:
    """For each prompt the text that goes on from it."""
    return self._short(
      'generate',
      values,
      max_tokens=max_tokens,
      temperature=temperature,
      top_k=top_k,
      top_p=top_p,
      seed=seed,
    )

  def translate(self, values: Asked, beams: int | None = None) -> Any:
    """For each text its translation."""
    return self._short('translate', values, beams=beams)

  def classify(self, values: Asked) -> Any:
    """For each text or pair {label: probability}, or a number."""
    return self._short('classify', values)

  def pair(self, values: Asked) -> Any:
    """As classify, of pairs."""
    return self._short('pair', values)

  def tag(self, values: Asked) -> Any:
    """For each text, or list of tokens, a tag for each token, and entities if tags mark them."""
    return self._short('tag', values)

  def find_answers(self, values: Asked, top_k: int | None = None) -> Any:
    """For each (question, context) the best spans of the context."""
    return self._short('answer', values, top_k=top_k)

  def choose(self, values: Asked) -> Any:
    """For each (context, question, choice, choice, ...) the probabilities of the choices."""
    return self._short('choose', values)

  def coreference(self, values: Asked) -> Any:
    """For each record which of two names its pronoun means."""
    return self._short('coreference', values)

  def embed(
    self,
    values: Asked,
    pooling: str | None = None,
    normalize: bool | None = None,
    prompt: str | None = None,
  ) -> Any:
    """The vectors of texts as one array [number of texts, D]; NaN where there is none."""
    return self._short('embed', values, pooling=pooling, normalize=normalize, prompt=prompt)

  def states(self, texts: Iterable[str | tuple[str, str]]) -> list[hidden_states.States]:
    """For each text or pair the attention and hidden states of all layers."""
    if isinstance(texts, str):
      raise InputError('states takes a list of texts, or of pairs; put what is asked in [].')
    parts = [(text,) if isinstance(text, str) else text for text in texts]
    said = self.counts.copy()
    found = [hidden_states.states(self, part) for part in parts]
    self.log_counts(said)
    return found

  def answer(self, task: str, values: Asked, **options: Any) -> Any:
    """Answers values by a task, which may be of a family of your own. Elements of a list that have
    no answer are counted; InputError if none can have one, unless texts are empty."""
    return self._answers(task, values, options)

  def _short(self, task, values, **options):
    return self._answers(task, values, options, is_short=True)

  def _answers(self, task, values, options, is_short=False):
    if isinstance(values, (str, tuple, dict)):
      return self._answers(task, [values], options, is_short)[0]
    is_frame = frames.is_frame(values)
    if not is_frame and (isinstance(values, bytes) or not isinstance(values, Iterable)):
      raise InputError(
        f'{task} takes texts, or a list of texts or pairs, and got a {type(values).__name__}.'
      )
    ask = self.ask(task, **options)
    if is_frame:
      unit, read, records = 'row', [], ask.of_table(frames.records(values, task), task)
    else:
      values = list(values)
      read = [_read(ask, value) for value in values]
      unit, records = 'element', [record for _, record in read]
      mistakes = [x for x in records if isinstance(x, InputError) and not isinstance(x, Empty)]
      if records and len(mistakes) == len(records):
        raise InputError(f'{task}: element 0: {records[0]}')
    said = self.counts.copy()
    replies = list(ask.each(records))
    self.log_counts(said)
    lacking = [i for i, (answer, _) in enumerate(replies) if answer is None]
    if lacking:
      first = lacking[0]
      log.warning(
        f'{task}: {len(lacking)} of {len(replies)} {unit}s have no answer; the first is '
        f'{unit} {first}: {replies[first][1]}'
      )
    are_rows = is_frame or (values and all(isinstance(value, dict) for value in values))
    if is_short and not are_rows:
      return ask.returned([answer for answer, _ in replies])
    shown = [{'error': why} if answer is None else ask.shown(answer) for answer, why in replies]
    if is_frame:
      return frames.beside(values, shown)
    return [fields | answer for (fields, _), answer in zip(read, shown)]

  def warm_up(self, task: str = '', **options: Any) -> None:
    """Answers texts of every shape that packed_rows gives them, so that no later one, or of a pair
    or a question with its context, waits for a compilation; what is compiled is kept for other
    processes. task: '' is the default task. options: as later, since they shape the program."""
    keep_compiled()
    task = task or self.default_task
    ask, said = self.ask(task, **options), self.counts
    self.counts = Counter()
    short = dict.fromkeys(ask.fields, 'a')
    *_, field = short
    room = packed_rows.SHORTEST
    while room < 2 * self.limit:
      log.info(f'{task}: compiling for texts of {room} tokens')
      list(ask.replies([ask.record(short)] * (room // 5)))  # so many share the slots of two rows
      for rows in 1, 4, 16:
        if rows == 1 or rows * room <= packed_rows.TOKENS:
          long = ask.record(short | {field: 'a ' * (room - 8)})
          list(ask.replies([long] * rows))
      room *= 2
    self.counts = said

  # ---- What answers. -----------------------------------------------------------------------------

  @property
  def default_task(self) -> str:
    """The default task: embed, if files say how vectors are made, else the objective's first for
    which the model has all parts; InputError if its head is not read, so that another task would be
    answered."""
    if self.unread_head:
      raise InputError(self.unread_head)
    if self.vector.pooling:
      return 'embed'
    return next(iter(self.tasks))

  @property
  def tasks(self) -> dict[str, Prediction]:
    """What the model can be asked: its objective's tasks for which it has all parts, then those of
    any model."""
    both = {**self.family.predictions, **OF_ALL}
    return {task: x for task, x in both.items() if self._has_parts(x)}

  def _has_parts(self, prediction):
    model = self.config.model  # whose pooler and MLM head may be without parameters
    needed = set(prediction.parts)
    if model.pooler == 'none':
      needed.discard('pooler')
    if model.mlm_head == 'none' and model.tie_word_embeddings and not model.decoder_bias:
      needed.discard('mlm')
    return needed <= self.weights.keys() and prediction.ask.suits(self)

  @property
  def params(self) -> dict[str, Any]:
    """The parameters as the objective's modules expect them, on the host."""
    params = jax.device_get(self.weights)
    return cpu_kernels.turned(params) if self._turned else params

  @functools.cached_property
  def _asks(self) -> dict[tuple, Ask]:
    return {}

  def ask(self, task: str, **options: Any) -> Ask:
    """The tasks.ask.Ask of a task with these options; InputError if this model cannot do it."""
    prediction = self.tasks.get(task)
    if not prediction:
      known = self.family.predictions.get(task) or PREDICTIONS.get(task)
      if not known:
        raise InputError(f'task {task!r} is not known; use one of {", ".join(PREDICTIONS)}.')
      lacked = known.lacks or f'head for {task!r}; use one that was trained for it'
      raise InputError(
        self.unread_head
        or f'this model was trained for {self.config.objective!r} and has no {lacked}.'
      )
    given: dict[str, Any] = {}
    for name, value in options.items():
      if value is None:
        continue
      if name not in prediction.options:
        known = listed(prediction.options) or 'none'
        raise InputError(f'{task} has no option {name!r}; its options are: {known}.')
      prediction.options[name].check(name, value)
      given[name] = value
    key = (task, *sorted(given.items()))
    if key not in self._asks:
      self._asks[key] = prediction.ask(self, **given)
    return self._asks[key]


def _read(ask, value):
  """(the fields of an element of a list, its record or the InputError why it is none)."""
  fields = {}
  try:
    fields = ask.fields_of(value)
    return fields, ask.element(fields)
  except InputError as error:
    return fields, error
