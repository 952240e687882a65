"""What every objective offers to training, evaluation and prediction, and what several share.

B batch, T tokens, N examples in a row, D hidden size, C classes.
"""

import abc
import dataclasses
import inspect

import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.errors import InputError
from bert_jax.metrics import mean

CHUNK = 64  # at most so many tokens of each row have logits of all words at a time


class Objective(abc.ABC):
  """What a model is trained to predict. Subclasses are frozen dataclasses with pure methods."""

  loss_weights: dict  # {term: weight}: the loss is the sum of weight * term's mean
  metrics: tuple  # names of everything an evaluation reports: terms and scores
  labels: tuple = ()  # the classes of its classifier, in the order of their numbers
  answer_fields: tuple = ()  # fields of its own on which the form of its answers depends

  def __new__(cls, *args, **kwargs):
    fields = getattr(cls, '__dataclass_fields__', ())
    named = [x for x in ('loss_weights', 'metrics') if not hasattr(cls, x) and x not in fields]
    annotated = [name for name in inspect.get_annotations(cls) if name not in fields]
    if annotated:
      fault = f'objective {cls.__name__} has the field {annotated[0]} but is no dataclass'
      raise InputError(f'{fault}; write @dataclasses.dataclass(frozen=True) above its class.')
    if missing := named + sorted(cls.__abstractmethods__):
      fault = f'objective {cls.__name__} has no {" and no ".join(missing)}'
      raise InputError(f'{fault}; add it to its class, see bert_jax/objectives/base.py.')
    return super().__new__(cls)

  @abc.abstractmethod
  def spec(self, batch_size):
    """The arrays of a batch: {name: ShapeDtypeStruct [B, ...]}. They hold segment_ids [B, T], by
    which steps count tokens, and for `encode` all four of row_spec."""

  @abc.abstractmethod
  def init(self, rng):
    """Parameters, a plain nested dict."""

  def carry(self, batch_size):
    """Arrays that each step hands to the next (Transformer-XL's memory), {name: ShapeDtypeStruct}.
    The leading axis is the batch: row b of a step continues row b of the step before, but
    not where a pass over the data ends: nothing marks that place, and the carry goes on (see
    rows/batches.py). The first step of a run, or of an evaluation, gets zeros. Default: nothing."""
    return {}

  def eval_carry(self, batch_size):
    """The same of an evaluation, whose carry may have other shapes. Default: those of a run."""
    return self.carry(batch_size)

  def given(self, config):
    """A tree of weights that are not trained (a teacher's), read before the run. Default: {}."""
    return {}

  def prepare(self, batch, rng, step=None):
    """Corrupts a batch on the device, before it is split into microbatches. Default: the batch as
    it is. step: the number of the training step; None in an evaluation."""
    return batch

  def seen(self, batch):
    """{name: number}: counts of a batch, which a run adds up over its steps. Default: tokens."""
    return {'seen_tokens': jnp.sum(batch['segment_ids'] > 0, dtype=jnp.float32)}

  def shares(self, sums):
    """{name: Mean}: further metrics, which follow on the host from those of some steps or of an
    evaluation. sums: {name: Mean} of the terms and of `tokens`, the real ones. Default: none."""
    return {}

  def apart(self, params):
    """The parameters as an optimizer steps them, where those of the model are sums of others; each
    may be None, if it is frozen. `joined` is the inverse. Default: as they are."""
    return params

  def joined(self, params):
    return params

  @abc.abstractmethod
  def terms(self, params, batch, rng, train, carry=None, given=None):
    """({name: Mean} of a prepared batch, the carry for the next step).
    The Means named in loss_weights make up the loss; the others are metrics. The weight of a Mean
    of the loss may depend on the batch only, never on params, since the step needs it before the
    forward pass.
    Dropout is on if `train`. rng: in an evaluation too, for an objective that samples."""

  def predict(self, params, batch, rng=None, carry=None, given=None):
    """{name: array [B, ...]}, from which a task makes and scores its answers. Default: nothing."""
    return {}

  @abc.abstractmethod
  def flops(self, batch_size):
    """Floating-point operations of a forward pass over one batch, matrix products only."""


@dataclasses.dataclass(frozen=True)
class OfExamples(Objective):
  """An objective of labelled examples, of which a row may hold several. Subclasses have `logits`,
  `of_logits`: {name: Mean} of the terms of a batch with these logits, and `head_flops`: those of
  `flops` that are not the encoder's.

  scores: metrics that the task's scorer computes. kinds: {name: data type} of the numbers of an
  example besides those of slot_spec. beside: the arrays of a batch that stand beside its logits.
  reports: the names of its terms.
  """

  model: models.ModelConfig
  seq_length: int
  examples_per_row: int = dataclasses.field(default=1, kw_only=True)
  scores: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)

  kinds, beside, reports = {}, ('example_ids',), ()

  @property
  def metrics(self):
    return *self.reports, *self.scores

  def spec(self, batch_size):
    kinds = {'example_ids': jnp.int32} | self.kinds
    slots = slot_spec(batch_size, self.examples_per_row, **kinds)
    return row_spec(batch_size, self.seq_length) | slots

  def terms(self, params, batch, rng, train, carry=None, given=None):
    return self.of_logits(self.logits(params, batch, rng if train else None), batch), carry

  def softmaxes(self, logits, batch):
    """(logits [..., C] over which the softmaxes of a batch go, their weights [...]), in which a
    student is to agree with its teacher."""
    return logits, batch['weights']

  def soft(self, logits, theirs, batch, temperature):
    """The Mean of soft_nats between the logits of a batch and those of a teacher."""
    (mine, weights), (theirs, _) = (self.softmaxes(x, batch) for x in (logits, theirs))
    return mean(soft_nats(mine, theirs, temperature), weights)

  def predict(self, params, batch, rng=None, carry=None, given=None):
    return {'logits': self.logits(params, batch)} | {name: batch[name] for name in self.beside}

  def flops(self, batch_size):
    encoder = models.encoder_flops(self.model, batch_size, self.seq_length)
    return encoder + self.head_flops(batch_size)


class Pooled(OfExamples):
  """Gives each example logits by `head`, a module, over its pooled [CLS] (BERT, 3.2)."""

  def init(self, rng):
    return init_model(self.model, rng, pooler=models.Pooler(self.model), classifier=self.head)

  def logits(self, params, batch, rng=None):
    """[B, N, C]; rng turns dropout on."""
    return pooled_logits(self.model, self.head, params, batch, rng)

  def head_flops(self, batch_size):
    return models.head_flops(self.model, batch_size * self.examples_per_row)


def row_spec(batch_size, seq_length):
  """The four arrays that describe the tokens of a batch, each [B, T] int32."""
  row = jax.ShapeDtypeStruct((batch_size, seq_length), jnp.int32)
  return dict.fromkeys(('input_ids', 'token_type_ids', 'position_ids', 'segment_ids'), row)


def cut_rows(batch, length):
  """The batch, in whose rows no token sees beyond a multiple of `length`, an int or an int32
  scalar: there the examples are cut, and positions begin anew. The parts are numbered from 1 on, as
  the examples of a row are."""
  position_BT = batch['position_ids'] % length
  real_BT = batch['segment_ids'] > 0
  segment_BT = jnp.cumsum(real_BT & (position_BT == 0), axis=1, dtype=jnp.int32)
  segment_BT = jnp.where(real_BT, segment_BT, 0)
  return batch | {'segment_ids': segment_BT, 'position_ids': position_BT}


def slot_spec(batch_size, slots, **kinds):
  """Arrays [B, N] with a number for each example of each row: where it starts, its weight (1, or 0
  for an empty slot), and those of `kinds`: {name: data type}."""
  kinds = {'cls_positions': jnp.int32, 'weights': jnp.float32} | kinds
  return {name: jax.ShapeDtypeStruct((batch_size, slots), kind) for name, kind in kinds.items()}


def encode(model, params, batch, rng=None, causal=False):
  """Hidden states [B, T, D] of the encoder; rng turns dropout on. causal: True, or [B] bool by row,
  if no token may see a later one. Rows of P parts, arrays [B, P, T / P], are read part by part."""
  names = 'input_ids', 'token_type_ids', 'position_ids', 'segment_ids'
  if lacking := [name for name in names if name not in batch]:
    fault = f'the batch has no {" and no ".join(lacking)}, which an encoder reads'
    raise InputError(f'{fault}; let spec return them, as base.row_spec does.')
  arrays = [batch[name] for name in names]
  if arrays[0].ndim > 2:
    parts = {name: x.reshape(-1, x.shape[-1]) for name, x in zip(names, arrays)}
    hidden_PSD = encode(model, params, parts, rng, causal)
    return hidden_PSD.reshape(len(arrays[0]), -1, hidden_PSD.shape[-1])
  length = arrays[0].shape[1]  # in a program that is exported no number
  if model.recurrent_length and not (isinstance(length, int) and length <= model.recurrent_length):
    return models.recurrence.in_stretches(model, params, arrays, rng, causal)
  return apply(models.Encoder(model), params, *arrays, rng=rng, causal=causal)


def pooled_logits(model, head, params, batch, rng=None):
  """Logits of `head` for the pooled [CLS] of each example, [B, N, C]; rng turns dropout on.
  A causal model has its last token in place of [CLS], which sees no other (GPT), and so has one
  that reads in stretches, of which only the last one has a memory of all."""
  hidden_key, head_key = two_keys(rng)
  hidden_BTD = encode(model, params['encoder'], batch, hidden_key)
  return head_logits(model, head, params, batch, hidden_BTD, head_key)


def head_logits(model, head, params, batch, hidden_BTD, head_key=None):
  """The same, of hidden states."""
  pooled_BND = pooled(model, params, batch, hidden_BTD)
  return apply(head, params['classifier'], pooled_BND, rng=head_key)


def pooled(model, params, batch, hidden_BTD):
  """The pooled vector of each example, [B, N, D], as pooled_logits has them."""
  positions_BN = batch['cls_positions']
  if model.causal or model.recurrent_length:
    segments_BT = batch['segment_ids'].reshape(positions_BN.shape[0], -1)
    positions_BN = last_positions(positions_BN, segments_BT)
  at_cls_BND = models.gather_positions(hidden_BTD, positions_BN)
  return models.Pooler(model).apply({'params': params.get('pooler', {})}, at_cls_BND)


def next_tokens(batch):
  """(labels [B, T], weights [B, T]): the token after each one, and 1 where its example has one."""
  segments_BT = batch['segment_ids']
  labels_BT, next_BT = (
    jnp.pad(x[:, 1:], ((0, 0), (0, 1))) for x in (batch['input_ids'], segments_BT)
  )
  return labels_BT, ((segments_BT > 0) & (next_BT == segments_BT)).astype(jnp.float32)


def nats_in_chunks(model, params, hidden_BTD, labels_BT, of_logits=None):
  """(cross-entropy in nats [B, T], hits [B, T]) of labels under the MLM head. The logits of all
  tokens are never there at once, and are made again for the gradient. of_logits: another function
  than label_nats that gives arrays [B, t] for logits [B, t, V] and labels [B, t]."""
  B, T = labels_BT.shape
  size = -(-T // max(4, -(-T // CHUNK)))
  number = -(-T // size)

  def chunks(x):
    x = jnp.pad(x, [(0, 0), (0, number * size - T)] + [(0, 0)] * (x.ndim - 2))
    return x.reshape(B, number, size, *x.shape[2:]).swapaxes(0, 1)

  @jax.checkpoint
  def of_chunk(chunk):
    hidden_BtD, labels_Bt = chunk
    return (of_logits or label_nats)(word_logits(model, params, hidden_BtD), labels_Bt)

  of_chunks = jax.lax.map(of_chunk, (chunks(hidden_BTD), chunks(labels_BT)))
  return tuple(x.swapaxes(0, 1).reshape(B, number * size)[:, :T] for x in of_chunks)


def word_logits(model, params, hidden_BKD):
  """Logits [B, K, V] of the MLM head, which has no parameters of its own in some models."""
  table_VE = params['encoder']['embeddings']['word_embeddings']['embedding']
  head = models.MaskedLMHead(model)
  return head.apply({'params': params.get('mlm', {})}, hidden_BKD, table_VE)


def init_words(model, rng, encoder):
  """{'mlm': parameters of the MLM head of an encoder with these}, or {}: it has none."""
  x_BKD = jnp.zeros((1, 1, model.hidden_size))
  table_VE = encoder['embeddings']['word_embeddings']['embedding']
  variables = models.MaskedLMHead(model).init(rng, x_BKD, table_VE)
  return {'mlm': variables['params']} if variables else {}


def last_positions(positions_BN, segment_ids_BT):
  """The position of the last token of each example, from that of its first."""
  segments_BN = jnp.take_along_axis(segment_ids_BT, positions_BN, axis=1)
  is_of_BNT = segments_BN[:, :, None] == segment_ids_BT[:, None]
  return jnp.max(jnp.where(is_of_BNT, jnp.arange(segment_ids_BT.shape[1]), 0), axis=-1)


def init_model(model, rng, **heads):
  """Parameters of an encoder and of the modules that read its vectors: {name: module}. A module
  without parameters has no entry."""
  encoder_key, *keys = jax.random.split(rng, 1 + len(heads))
  x_BND = jnp.zeros((1, 1, model.hidden_size))
  params = {'encoder': models.init_encoder(model, encoder_key)}
  for (name, head), key in zip(heads.items(), keys, strict=True):
    if variables := head.init(key, x_BND):
      params[name] = variables['params']
  return params


def two_keys(rng):
  """Independent keys for dropout in the encoder and in the head; (None, None) from None."""
  return (None, None) if rng is None else jax.random.split(rng)


def apply(module, params, *arrays, rng=None, **options):
  """The module on these arrays; rng turns its dropout on."""
  rngs = {} if rng is None else {'dropout': rng}
  return module.apply({'params': params}, *arrays, deterministic=rng is None, rngs=rngs, **options)


@jax.named_scope('loss')
def label_terms(name, logits, labels, weights):
  """{name: cross-entropy in nats, name_accuracy}: logits [..., C], labels and weights [...].
  The means are weighted by `weights`."""
  nats, hits = label_nats(logits, labels)
  return {name: mean(nats, weights), f'{name}_accuracy': mean(hits, weights)}


def label_nats(logits, labels):
  """(cross-entropy in nats, 1.0 where the label is hit), each [...], of logits [..., C].
  A label is hit if its logit is above all others (a tie is a miss). The largest of the others
  serves both terms: XLA computes it while it makes the logits, and only the exponentials need
  another pass over them."""
  gold = jnp.take_along_axis(logits, labels[..., None], axis=-1)
  is_gold = jnp.arange(logits.shape[-1]) == labels[..., None]
  others = jnp.max(jnp.where(is_gold, -jnp.inf, logits), axis=-1, keepdims=True)
  top = jax.lax.stop_gradient(jnp.maximum(gold, others))
  nats = jnp.log(jnp.sum(jnp.exp(logits - top), axis=-1)) + (top - gold)[..., 0]
  return nats, (gold > others)[..., 0].astype(jnp.float32)


@jax.named_scope('loss')
def soft_nats(logits, theirs, temperature):
  """What a student loses by not giving the probabilities of its teacher, [...], of the logits
  [..., C] of both: the soft cross-entropy of Hinton et al. 2015 (https://arxiv.org/abs/1503.02531,
  section 2) at a temperature T, times T squared, which keeps its gradient as large at any T. The
  entropy of the teacher, which has no gradient, is subtracted (Kullback-Leibler divergence), so
  that agreement is 0. No gradient reaches the teacher."""
  theirs = jax.nn.log_softmax(jax.lax.stop_gradient(theirs) / temperature)
  mine = jax.nn.log_softmax(logits / temperature)
  return temperature**2 * jnp.sum(jnp.exp(theirs) * (theirs - mine), axis=-1)
