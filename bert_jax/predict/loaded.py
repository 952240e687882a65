"""A trained model on one device, and what the tasks compute with it (tasks/ask.py)."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax import models
from bert_jax.command_line import show_log
from bert_jax.errors import InputError, log
from bert_jax.models import layers
from bert_jax.objectives.encode import encode, encode_mlm
from bert_jax.predict import cpu_kernels, hidden_states, packed_rows
from bert_jax.tasks import TASKS
from bert_jax.workdir import trained


class Loaded:
  """The tokenizer, config and weights of a trained model, and its functions.

  source: a run's workdir, a Hugging Face folder, or a trained.Trained. checkpoint, dtype: as of
  model.Model. counts: what happened to texts.
  """

  def __init__(self, source: Any, checkpoint: str | int = '', dtype: str = ''):
    show_log()
    origin = source if isinstance(source, trained.Trained) else trained.load(source, checkpoint)
    self.tokenizer, self.step, self.vector = origin.tokenizer, origin.step, origin.vector
    self.unread_head, self.unread_modules = origin.unread_head, origin.unread_modules
    config = origin.config.copy_and_resolve_references()
    # These fields were set for the device of the training.
    config.model.update(scan_layers=False, remat='none', attention_implementation='auto')
    if dtype not in ('', 'float32', 'bfloat16'):
      raise InputError(f'dtype is {dtype!r}; use float32 or bfloat16.')
    on_cpu = jax.default_backend() == 'cpu'
    if dtype or on_cpu:
      config.model.dtype = dtype or 'float32'
    self.config: Any = config_lib.check(config)
    self.family = TASKS[self.config.objective]
    self.objective: Any = self.family.objective(self.config, self.tokenizer)
    dtype = self.config.model.dtype
    params = {}
    for part, tree in models.unstack_layers(origin.params).items():
      # Classifiers always compute in float32.
      is_of_words = part in ('encoder', 'decoder', 'mlm', 'pooler')
      params[part] = _cast(tree, dtype if is_of_words else 'float32')
    # Where it is faster, kernels are transposed.
    self._turned = on_cpu and dtype == 'float32'
    self.weights = jax.device_put(cpu_kernels.turned(params) if self._turned else params)
    # The most tokens of an example, as in its training and evaluation.
    self.limit = self.family.limit(self.config)
    if not self.limit:  # distances as long as with a memory
      self.limit = self.config.data.seq_length + self.config.model.memory_length
    self.counts = Counter()

  def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles function(weights, ...), which may apply any module to the weights or to parts."""

    def run(*arguments):
      with cpu_kernels.dense(self._turned):
        return function(*arguments)

    return jax.jit(layers.traced_in(self.config.model.dtype, run))

  @functools.cached_property
  def inside(self) -> Callable[..., Any]:
    """Compiled hidden_states.inside; InputError for a model without attention."""
    model = self.objective.model
    if model.mixer != 'attention':
      raise InputError(f'this model has no attention to show: its model.mixer is {model.mixer}.')
    return self.compiled(functools.partial(hidden_states.inside, model))

  def outputs(self, function: Callable[..., Any], examples: Any) -> dict[str, Any]:
    """Runs a function made by `compiled` over R rows of Examples: {name: [R, ...]}."""
    return packed_rows.outputs(function, self.weights, examples, self.row_length)

  @property
  def row_length(self) -> int:
    """The tokens of a row if each text has one to itself; 0: several share rows of any length."""
    return self.limit if self.config.model.mixer == 'fourier' else 0

  def note(self, counts: dict[str, int], read: Iterable[Any]) -> None:
    """Adds to the counts what happened to texts, and the unknown pieces among the ids read."""
    self.counts.update(counts)
    unknown = sum(int(np.sum(ids == self.tokenizer.unk_id)) for ids in read)
    if unknown:
      self.counts['pieces that are not in the vocabulary ([UNK])'] += unknown

  def log_counts(self, said: Counter[str]) -> None:
    """Warns of what happened to texts, by the counts but for those that are said already."""
    for what, number in (self.counts.copy() - said).items():
      log.warning('%s: %d', what, number)

  def hidden(self, params: Any, batch: Any) -> jax.Array:
    """The hidden states [B, T, D] of a batch after the last layer."""
    return encode(self.objective.model, params['encoder'], batch)

  def word_hidden(self, params: Any, batch: Any) -> jax.Array:
    """The hidden states [B, T, D] of a batch from which masked words are predicted."""
    return encode_mlm(self.objective.model, params, batch)

  def mlm_logits(self, params: Any, hidden_BKD: jax.Array) -> jax.Array:
    """The masked-LM head's logits [B, K, V] of hidden states."""
    return models.word_logits(self.objective.model, params, hidden_BKD)


def _cast(tree, dtype):
  """A tree of arrays on the host with its matrices cast to a type; biases and scales stay."""
  kind = jnp.dtype(dtype)
  return jax.tree.map(lambda x: np.asarray(x, kind if np.ndim(x) > 1 else None), tree)
