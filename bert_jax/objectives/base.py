"""What every objective offers to training, evaluation and prediction. B batch, T tokens."""

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.metrics import Mean
from bert_jax.models import flops
from bert_jax.timeline import Moment

Batch = Mapping[str, jax.Array]
Params = dict[str, Any]
Spec = dict[str, jax.ShapeDtypeStruct]
Key = jax.Array | None  # a random key; None: without dropout
Terms = tuple[dict[str, Mean], Any]  # the terms of a batch, and the carry


class Objective(abc.ABC):
  """What a model is trained to predict. Subclasses are frozen dataclasses with pure methods."""

  labels: tuple[str, ...] = ()  # the classes of its classifier, in the order of their numbers
  rows_meet: ClassVar[bool] = False  # see `terms`
  answer_fields: ClassVar[tuple[str, ...]] = ()  # attributes that shape its answers

  @property
  @abc.abstractmethod
  def loss_weights(self) -> Mapping[str, float]:
    """{term: weight}: the loss is the sum of weight * term's mean."""

  @property
  @abc.abstractmethod
  def metrics(self) -> tuple[str, ...]:
    """The names of everything that an evaluation reports: terms and scores."""

  @abc.abstractmethod
  def spec(self, batch_size: int) -> Spec:
    """The arrays of a batch, each [B, ...]: segment_ids, to count tokens; for `encode` row_spec."""

  @abc.abstractmethod
  def init(self, rng: jax.Array) -> Params:
    """Parameters, a plain nested dict."""

  def with_prior(self, params: Params) -> Params:
    """What `init` gives, with what follows from the training rows. Default: as it is."""
    return params

  def exported(self, params: Params) -> Params:
    """Parameters to export, whose head gives numbers in their units. Default: as they are."""
    return params

  def adopted(self, params: Params) -> Params:
    """Parameters that another objective has `exported`, to begin with. Default: as they are."""
    return params

  def limits(self, vocab_size: int) -> dict[str, int]:
    """{array of a batch: the number that all its ids lie below}. vocab_size: of the tokenizer."""
    model = getattr(self, 'model', None)
    if not model:
      return {}
    limits = {'input_ids': min(vocab_size, model.vocab_size)}
    if model.type_vocab_size > 1:
      limits['token_type_ids'] = model.type_vocab_size
    if models.has_position_table(model):
      limits['position_ids'] = model.max_position_embeddings
    return limits

  def carry(self, batch_size: int) -> Any:
    """Shapes of the arrays that each step hands to the next (Transformer-XL's memory). The leading
    axis is the batch: row b of a step continues row b of the step before. Nothing marks where a
    pass over the data ends (see rows/batches.py). The first step gets zeros. Default: {}."""
    return {}

  def eval_carry(self, batch_size: int) -> Any:
    """Shapes of the carry in an evaluation. Default: as in training."""
    return self.carry(batch_size)

  def constants(self, config: Any) -> Any:
    """Weights that are not trained (a teacher's); without a config only their shapes count."""
    return {}

  def prepare(self, batch: Batch, rng: jax.Array, moment: Moment) -> Batch:
    """Corrupts a batch on the device, before it is split into microbatches. Default: the batch as
    it is. moment: of the training step, or timeline.EVALUATION."""
    return batch

  def counts(self, batch: Batch) -> dict[str, jax.Array]:
    """Counts of a batch, which a run adds up over its steps. Default: tokens."""
    return {'seen_tokens': jnp.sum(batch['segment_ids'] > 0, dtype=jnp.float32)}

  def derived_metrics(self, sums: Mapping[str, Mean]) -> dict[str, Mean]:
    """Further metrics, computed on the host from the sums over some steps or an evaluation.
    sums: {name: Mean} of the terms and of `tokens`, the real ones. Default: none."""
    return {}

  def apply_update(self, params: Params, update: Callable[[Params], tuple[Params, Any]]) -> Any:
    """One step of the optimizer: (new parameters, new optimizer state). params: the trained ones,
    None in place of a frozen one. update: a function of parameters that makes it. An objective
    whose optimizer is to see other numbers turns params into these, and the result of it back."""
    return update(params)

  @abc.abstractmethod
  def terms(
    self, params: Any, batch: Batch, rng: Key, train: bool, carry: Any = None, constants: Any = None
  ) -> Terms:
    """The losses and metrics of a prepared batch, and the carry for the next step. The Means named
    in loss_weights make up the loss; the weight of such a Mean may depend on the batch only, never
    on params, since the step needs it before the forward pass. Dropout is on if `train`. rng: given
    in an evaluation too, for an objective that samples. Each device computes its own rows
    (gradients.py), so a Mean is a sum over rows, and draws count rows (electra.drawn). If `terms`
    compares rows, or has a Mean that is no such sum, set rows_meet = True: XLA splits the step."""

  def predict(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
    """The arrays [B, ...] from which a task makes and scores its answers. Default: none."""
    return {}

  def flops(self, batch_size: int, moment: Moment | None = None) -> float:
    """Floating-point operations of the matrix products in `terms` of one batch. moment: a step of
    the training, for an objective that changes by step, or an evaluation; None: the last step."""
    known = vars(self).setdefault('_flops', {})
    now = Moment(train=moment is None or moment.train)

    def forward(params, batch, rng, carry, constants):
      batch = self.prepare(batch, rng, now)
      return self.terms(params, batch, rng, True, carry, constants)

    if (batch_size, now.train) not in known:
      rng = jax.random.key(0)
      known[batch_size, now.train] = flops.products(
        forward,
        jax.eval_shape(self.init, rng),
        self.spec(batch_size),
        rng,
        self.carry(batch_size),
        self.constants(None),
      )
    return known[batch_size, now.train]
