"""The Model: the weights, tokenizer and config of one source, and the questions it answers."""

import logging
from collections import Counter
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax import models, tokenizers
from bert_jax.command_line import show_log
from bert_jax.errors import InputError
from bert_jax.objectives import base
from bert_jax.predict import cpu_kernels, packed_rows
from bert_jax.predict.hidden_states import Attention
from bert_jax.predict.nearest import Search
from bert_jax.predict.sentence_vectors import Embed
from bert_jax.tasks import TASKS
from bert_jax.tasks.record import Prediction
from bert_jax.workdir import int8, trained

# {task: (its objectives, or () of a task that any model can do, Prediction)}.
PREDICTIONS = {}
for _task in TASKS.values():
  for _name, _prediction in _task.predictions.items():
    _others = PREDICTIONS[_name][0] if _name in PREDICTIONS else ()
    PREDICTIONS[_name] = (*_others, _task.name), _prediction
PREDICTIONS |= {
  'embed': ((), Prediction(Embed)),
  'search': ((), Prediction(Search)),
  'attention': ((), Prediction(Attention)),
}


def known(task):
  """InputError if a task does not exist."""
  if task not in PREDICTIONS:
    raise InputError(f'task {task!r} is not known; use one of {", ".join(PREDICTIONS)}.')


class Model:
  """A trained model on one device, with a method for each task that it can be asked to do.

  source: a run's workdir, a Hugging Face folder, or a trained.Trained. which: 'latest', 'best' or a
  step of a run. dtype: of matrix products and their weights, 'float32' or 'bfloat16'; '': as in its
  config, but float32 on a CPU, where bfloat16 takes two to three times as long. in_int8: with
  weights as they are in int8 (bert_jax/workdir/int8.py).

  Texts are str; pairs and other records are tuples or dicts of the fields in tasks/FAMILY/ask.py.
  counts: how many texts were cut or read in windows, and how many pieces were unknown.
  """

  def __init__(self, source, which='latest', dtype='', in_int8=False):
    show_log()
    origin = source if isinstance(source, trained.Trained) else trained.load(source, which)
    self.config = origin.config.copy_and_resolve_references()
    self.tokenizer, self.step = origin.tokenizer, origin.step
    self.pooling = origin.vector.pooling or 'mean'
    self.normalizes = origin.vector.normalized or not origin.vector.pooling
    self.cuts = bool(origin.vector.pooling)  # long texts, as in the training of vectors
    # These fields were set for the device that it was trained on.
    self.config.model.update(scan_layers=False, remat='none', attention_implementation='einsum')
    if dtype not in ('', 'float32', 'bfloat16'):
      raise InputError(f'dtype is {dtype!r}; use float32 or bfloat16.')
    if dtype or jax.default_backend() == 'cpu':
      self.config.model.dtype = dtype or 'float32'
    self.config = config_lib.check(self.config)
    self.objective = TASKS[self.config.objective].objective(self.config, self.tokenizer)
    params, self.in_int8 = models.unstack_layers(origin.params), in_int8
    # Classifiers compute in float32 always, and what was in int8 stays exact.
    parts = () if in_int8 else ('encoder', 'decoder', 'mlm', 'pooler')
    types = dict.fromkeys(parts, self.config.model.dtype)
    params = int8.rounded(params) if in_int8 else params
    params = {part: _in(types.get(part, 'float32'), tree) for part, tree in params.items()}
    # Where it is faster, kernels are transposed.
    self._turned = jax.default_backend() == 'cpu' and self.config.model.dtype == 'float32'
    self.weights = jax.device_put(cpu_kernels.turned(params) if self._turned else params)
    # The most tokens of an example, as in its training and evaluation.
    self.limit = self.config.data.seq_length
    if 'task' in self.config:
      self.limit = self.config.task.max_length or self.limit
    else:  # distances as long as with a memory
      self.limit += self.config.model.memory_length
    self.counts = Counter()
    self._asks, self._generator = {}, None
    spare = self.config.model.vocab_size - self.tokenizer.vocab_size
    if spare < 0:
      raise InputError(
        f'the vocabulary has {self.tokenizer.vocab_size} pieces and the weights have '
        f'{self.config.model.vocab_size} rows for them; put back the one they were trained with.'
      )
    if spare > 0 and 'mlm' in self.weights:
      rows = 'the weights have %d rows that the vocabulary has no piece for; none fills a mask'
      logging.getLogger('bert_jax').warning(rows, spare)

  def __repr__(self):  # one line: a notebook shows the value of a cell
    model = self.config.model
    size = f'{model.num_hidden_layers} layers x {model.hidden_size}'
    size += f', {models.count_parameters(self.weights):,} parameters'
    return f'Model({self.config.objective}, {size}, step {self.step:,})'

  @property
  def params(self):
    """The parameters as the objective's modules expect them, on the host."""
    params = jax.device_get(self.weights)
    return cpu_kernels.turned(params) if self._turned else params

  def compiled(self, function):
    """Compiles function(weights, ...), which may apply any module to the weights or to parts."""

    @jax.jit
    def run(*args):
      with cpu_kernels.dense(self._turned):
        return function(*args)

    return run

  @property
  def default_task(self):
    """The task if none is named: the first of its objective that the model has all parts for."""
    predictions = TASKS[self.config.objective].predictions
    return next((name for name, x in predictions.items() if self._has_parts(x)), 'embed')

  def _has_parts(self, prediction):
    model = self.config.model  # whose pooler and MLM head may be without parameters
    without = {'pooler'} if model.pooler == 'none' else set()
    if model.mlm_head == 'none' and model.tie_word_embeddings and not model.decoder_bias:
      without.add('mlm')
    return set(prediction.parts) - without <= self.weights.keys()

  def answering(self, task):
    """The Model that does a task: this, or that of its generator (ELECTRA), which fills masks."""
    known(task)
    if 'generator' not in self.weights or 'mlm_nsp' not in PREDICTIONS[task][0]:
      return self
    if not self._generator:
      whole = trained.Trained(self.config, self.tokenizer, self.params, self.step)
      dtype, generator = self.config.model.dtype, trained.generator_of(whole)
      self._generator = Model(generator, dtype=dtype, in_int8=self.in_int8)
      self._generator.counts = self.counts
    return self._generator

  def ask(self, task, **options):
    """The tasks.ask.Ask of a task with these options; InputError if this model cannot do it."""
    key = (task, *sorted(options.items()))
    if key in self._asks:
      return self._asks[key]
    if (other := self.answering(task)) is not self:
      return self._asks.setdefault(key, other.ask(task, **options))
    objectives, prediction = PREDICTIONS[task]
    lacks = prediction.lacks or f'head for {task!r}; use one that was trained for it'
    if objectives and self.config.objective not in objectives:
      raise InputError(f'this model was trained for {self.config.objective!r} and has no {lacks}.')
    if not self._has_parts(prediction):
      raise InputError(f'the weights of this model came without a {lacks}.')
    return self._asks.setdefault(key, prediction.ask(self, **options))

  def outputs(self, function, examples):
    """{name: [R, ...]} of a function that `compiled` made, over R rows of Examples."""
    alone = self.limit if self.config.model.mixer == 'fourier' else 0
    return packed_rows.outputs(function, self.weights, examples, alone)

  def note(self, counts, read):
    """Adds counts of what was done to texts, and of the unknown pieces among the ids read."""
    self.counts.update(counts)
    if unknown := sum(int(np.sum(ids == self.tokenizer.unk_id)) for ids in read):
      self.counts['pieces that are not in the vocabulary ([UNK])'] += unknown

  def hidden(self, params, batch):
    """The hidden states [B, T, D] of a batch after the last layer."""
    return base.encode(self.objective.model, params['encoder'], batch)

  def mlm_logits(self, params, hidden_BKD):
    """The masked-LM head's logits [B, K, V] of hidden states."""
    return base.word_logits(self.objective.model, params, hidden_BKD)

  # The tasks as methods: each takes a list and returns one answer for each element.

  def _all(self, task, values, **options):
    ask, records = self.ask(task, **options), []
    for i, value in enumerate(_listed(task, values)):
      try:
        records.append(ask.parsed(value))
      except InputError as error:
        raise InputError(f'{task}: element {i}: {error}') from None
    return ask.answers(records)

  def _shown(self, task, values, **options):
    shown = self.ask(task, **options).shown
    return [answer and shown(answer) for answer in self._all(task, values, **options)]

  def fill_mask(self, texts, top_k=5):
    """For each text the candidates for each of its [MASK]s: [[(piece, probability), ...], ...]."""
    ask, texts = self.ask('fill-mask', top_k=top_k), _listed('fill-mask', texts)
    return [answer['masks'] if answer else [] for answer in ask.answers(tokenizers.checked(texts))]

  def classify(self, texts):
    """For each text, or (text, second text): {label: probability}, or a float (regression)."""
    return self._classified('classify', texts)

  def pair(self, pairs):
    """As classify, for pairs. A released model does not say whether its classifier reads pairs."""
    return self._classified('pair', pairs)

  def _classified(self, task, values):
    answers = self._all(task, values)
    key = 'prediction' if self.objective.regression else 'probabilities'
    return [answer[key] for answer in answers]

  def tag(self, texts):
    """For each text, or list of tokens: {'entities': [..]} or {'tags': [..]} (tasks/tagging)."""
    texts = _listed('tag', texts)
    values = [{'tokens': list(x)} if isinstance(x, (list, tuple)) else x for x in texts]
    return self._shown('tag', values)

  def answer(self, questions, top_k=5):
    """For each (question, context): {'answer', 'probability', 'start', 'end', 'nbest'}."""
    return self._shown('answer', questions, top_k=top_k)

  def choose(self, questions):
    """For each (context, question, choice, choice, ...): {'prediction': number, ...}."""
    return self._shown('choose', questions)

  def coreference(self, records):
    """For each dict of text, pronoun, a, b and their offsets: {'prediction', ...}."""
    return self._shown('coreference', records)

  def embed(self, texts, pooling='', normalize=None):
    """The vectors of texts: float32 [number of texts, hidden_size]. Options: see Embed."""
    answers = self._all('embed', texts, pooling=pooling, normalize=normalize)
    empty = np.zeros((0, self.config.model.hidden_size), np.float32)
    return np.stack([answer['vector'] for answer in answers]) if answers else empty

  def search(self, questions, index, **options):
    """For each question {'text', 'nearest': [{'line', 'score', 'text'}, ..]}, of the lines of the
    file `index`. Options: top_k, keep_index, pooling."""
    return self._shown('search', questions, index=str(index), **options)

  def generate(self, prompts, **options):
    """How each text goes on: {'generated': text, 'tokens': number, ..}. Options: max_tokens,
    temperature, top_k, top_p, seed, beams and others (tasks/pretraining/generate.py)."""
    if not isinstance(stop := options.get('stop', ''), str):
      options['stop'] = tuple(stop)
    return self._shown('generate', prompts, **options)

  def perplexity(self, texts):
    """The perplexity of each text, the pseudo-perplexity if the model is not causal; NaN for a text
    without tokens."""
    answers = self._all('perplexity', texts)
    return [answer['perplexity'] if answer else float('nan') for answer in answers]

  def next_sentence(self, pairs):
    """For each (text, pair) the probability that the pair follows the text."""
    answers = self._all('next-sentence', pairs)
    return [next(iter(answer['probabilities'].values())) for answer in answers]

  def translate(self, texts, **options):
    """What the model writes for each text. Options: beams, length_penalty, max_tokens."""
    return [answer['translation'] for answer in self._shown('translate', texts, **options)]

  def states(self, texts):
    """For each text or pair its hidden_states.States: tokens, hidden states and attention."""
    return self._all('attention', texts)


def _listed(task, values):
  if not isinstance(values, Iterable) or isinstance(values, (str, bytes, dict)):
    kind = f'{task} takes a list of texts, or of pairs, and got a {type(values).__name__}'
    raise InputError(f'{kind}; put what is asked in [].')
  return values


def _in(dtype, tree):
  """A tree of arrays on the host with its matrices cast to a type; biases and scales stay."""
  kind = jnp.dtype(dtype)
  return jax.tree.map(lambda x: np.asarray(x, kind if np.ndim(x) > 1 else None), tree)
