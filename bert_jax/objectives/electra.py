"""ELECTRA (Clark et al. 2020, https://arxiv.org/abs/2003.10555): a small generator fills the masks
of a text, and the discriminator predicts for every token whether it was replaced.

The discriminator, the model to be used later, is called `encoder` as in all objectives. The two
embeddings are shared (ELECTRA), or shared with disentangled gradients (DeBERTa-v3, He et al. 2021,
https://arxiv.org/abs/2111.09543), or not. The generator learns nothing from the discriminator:
drawing tokens has no gradient.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.extend.random import threefry2x32_p

from bert_jax import models
from bert_jax.metrics import mean
from bert_jax.models import dropout, layers
from bert_jax.objectives.base import Batch, Key, Params, Terms
from bert_jax.objectives.encode import apply, encode, encode_mlm, init_words
from bert_jax.objectives.losses import label_terms, share_equal_to_first
from bert_jax.objectives.masking import put_at
from bert_jax.objectives.mlm_nsp import MlmNsp

SHARING = 'shared', 'disentangled', 'separate'


def generator_of(model: models.ModelConfig, size: float, depth: float = 1.0) -> models.ModelConfig:
  """The generator's ModelConfig: with `depth` times the discriminator's layers, and `size` times
  its heads and its feed-forward layer. Embeddings have the discriminator's width, and a dense layer
  narrows them."""
  heads = models.share_of_heads(model.num_attention_heads, size)
  hidden = model.hidden_size * heads // model.num_attention_heads
  return dataclasses.replace(
    model,
    hidden_size=hidden,
    num_hidden_layers=max(1, round(depth * model.num_hidden_layers)),
    num_attention_heads=heads,
    num_key_value_heads=0,
    intermediate_size=model.intermediate_size * heads // model.num_attention_heads,
    embedding_size=0 if model.embedding_width == hidden else model.embedding_width,
  )


class ReplacedHead(nn.Module):
  """The float32 logits [B, T] of being replaced, from hidden states [B, T, D] and positions [B, T].

  It is a dense layer, an activation and a dense layer over the vector of each token, or over the
  norm of its sum with the vector of the example's [CLS] (config.replaced_head)."""

  config: models.ModelConfig

  @nn.compact
  def __call__(self, x_BTD: jax.Array, position_ids_BT: jax.Array) -> jax.Array:
    config = self.config
    if config.replaced_head == 'context':
      first_BT = jnp.arange(x_BTD.shape[1]) - position_ids_BT
      x_BTD = layers.norm(config)(x_BTD + models.gather_positions(x_BTD, first_BT))
    x_BTD = layers.dense(config, config.hidden_size, 'dense')(x_BTD)
    x_BTD = layers.ACTIVATIONS[config.hidden_act](x_BTD)
    return layers.exact_dense(config, 1, 'score')(x_BTD)[..., 0]


@dataclasses.dataclass(frozen=True)
class Electra(MlmNsp):
  """Replaced token detection; texts are masked as in MlmNsp.

  generator: the model that fills the masks, see generator_of.
  sharing: one of SHARING, what the two models share of their embeddings.
  replaced_weight: the weight of the discriminator's loss beside the generator's."""

  generator: models.ModelConfig = dataclasses.field(kw_only=True)
  sharing: str = 'shared'
  replaced_weight: float = 50.0

  @property
  def loss_weights(self) -> dict[str, float]:
    return {'mlm': 1.0, 'replaced': self.replaced_weight}

  @property
  def metrics(self) -> tuple[str, ...]:
    return (
      *super().metrics,
      'replaced_accuracy_majority',
      'replaced_recall',
      'replaced_precision',
    )

  def init(self, rng: jax.Array) -> Params:
    encoder_key, generator_key, mlm_key, head_key = jax.random.split(rng, 4)
    encoder = models.init_encoder(self.model, encoder_key)
    tower = models.init_encoder(self.generator, generator_key)
    tables = encoder['embeddings']
    own = tower.pop('embeddings')
    if self.sharing == 'shared':
      own = {name: x for name, x in own.items() if name not in _shared(tables)}
    if self.sharing == 'disentangled':  # both begin with the same tables
      own |= _tables(encoder)
    if own:
      tower['embeddings'] = own
    generator = {'encoder': tower, 'mlm': {}} | init_words(self.generator, mlm_key, encoder)
    x_BTD = jnp.zeros((1, 1, self.model.hidden_size))
    ids_BT = jnp.zeros((1, 1), jnp.int32)
    head = ReplacedHead(self.model).init(head_key, x_BTD, ids_BT)
    return {'encoder': encoder, 'generator': generator, 'replaced': head['params']}

  def adopted(self, params: Params) -> Params:
    """Copies the encoder's tables into a generator that has tables of its own, if the parameters
    come from a model without a generator: both begin with the same tables."""
    if self.sharing != 'disentangled' or 'generator' in params:
      return params
    return params | {'generator': {'encoder': {'embeddings': _tables(params['encoder'])}}}

  def apply_update(self, params: Params, update: Callable[[Params], tuple[Params, Any]]) -> Any:
    """With disentangled gradients the optimizer steps the difference of the discriminator's tables
    from the generator's, so that they move by their own gradients and with the generator's."""
    params, opt_state = update(self._with_tables(params, jnp.subtract))
    return self._with_tables(params, jnp.add), opt_state

  def _with_tables(self, params, combine):
    if self.sharing != 'disentangled':
      return params
    embeddings = dict(params['encoder']['embeddings'])
    others = params['generator']['encoder']['embeddings']
    for name, table in _tables(params['encoder']).items():
      if jax.tree.leaves(table) and jax.tree.leaves(others[name]):  # else they are frozen
        embeddings[name] = jax.tree.map(combine, table, others[name])
    return params | {'encoder': params['encoder'] | {'embeddings': embeddings}}

  def generator_params(self, params: Params) -> Params:
    """The generator with its embeddings, as the parameters {encoder, mlm} of an MlmNsp."""
    encoder = params['generator']['encoder']
    if self.sharing == 'shared':
      tables = params['encoder']['embeddings']
      shared = {name: tables[name] for name in _shared(tables)}
      encoder = encoder | {'embeddings': shared | encoder.get('embeddings', {})}
    return {'encoder': encoder, 'mlm': params['generator']['mlm']}

  def generated(self, params: Params, batch: Batch, rng: Key = None) -> jax.Array:
    """The generator's logits [B, K, V] at masked_positions; rng turns dropout on."""
    generator = self.generator_params(params)
    hidden_BTD = encode_mlm(self.generator, generator, batch, rng)
    at_masks_BKD = models.gather_positions(hidden_BTD, batch['masked_positions'])
    return models.word_logits(self.generator, generator, at_masks_BKD)

  def filled(self, batch: Batch, mlm_BKV: jax.Array, rng: jax.Array) -> tuple[Batch, jax.Array]:
    """Fills the masks with drawn tokens: (batch, replaced [B, T]: does a token differ now?)"""
    ids_BT = batch['input_ids']
    positions_BK = batch['masked_positions']
    labels_BK = batch['masked_labels']
    chosen_BK = batch['masked_weights'] > 0
    drawn_BK = drawn(rng, mlm_BKV).astype(jnp.int32)
    new_BK = jnp.where(chosen_BK, drawn_BK, labels_BK)
    new_BT = put_at(ids_BT, positions_BK, new_BK)
    differs_BK = chosen_BK & (drawn_BK != labels_BK)
    replaced_BT = put_at(jnp.zeros(ids_BT.shape, bool), positions_BK, differs_BK)
    return {**batch, 'input_ids': new_BT}, replaced_BT

  def terms(
    self, params: Any, batch: Batch, rng: Key, train: bool, carry: Any = None, constants: Any = None
  ) -> Terms:
    draw_key, *keys = jax.random.split(rng, 3)  # pyrefly: ignore[bad-argument-type] (not None)
    generator_key, encoder_key = keys if train else (None, None)
    # The generator predicts the masked words, and is drawn from.
    mlm_BKV = self.generated(params, batch, generator_key)
    terms = label_terms('mlm', mlm_BKV, batch['masked_labels'], batch['masked_weights'])
    filled, replaced_BT = self.filled(batch, mlm_BKV, draw_key)
    # The discriminator reads what is filled in, and says of every token whether it was replaced.
    hidden_BTD = encode(self.model, params['encoder'], filled, encoder_key)
    head = ReplacedHead(self.model)
    logits_BT = apply(head, params['replaced'], hidden_BTD, batch['position_ids'])
    real_BT = (batch['segment_ids'] > 0).astype(jnp.float32)
    with jax.named_scope('loss'):
      nats_BT = optax.sigmoid_binary_cross_entropy(logits_BT, replaced_BT)
      said_BT = logits_BT > 0
      hit_BT = (said_BT & replaced_BT).astype(jnp.float32)
      terms |= {
        'replaced': mean(nats_BT, real_BT),
        'replaced_accuracy': mean((said_BT == replaced_BT).astype(jnp.float32), real_BT),
        'replaced_recall': mean(hit_BT, real_BT * replaced_BT),
        'replaced_precision': mean(hit_BT, real_BT * said_BT),
      }
    if not train:
      terms |= self.by_language(batch, mlm_BKV)
      # What always answering that nothing is replaced scores.
      terms['replaced_accuracy_majority'] = mean(1.0 - replaced_BT, real_BT)
      terms |= share_equal_to_first('replaced', said_BT, real_BT)
    return terms, carry


def drawn(key: jax.Array, logits_BKV: jax.Array) -> jax.Array:
  """Tokens [B, K] drawn by their logits, as jax.random.categorical draws them.

  With a threefry key they are the same in any layout: inside jax.shard_map a device makes the bits
  of its own rows."""
  B, K, V = logits_BKV.shape
  part, parts = dropout.shard_of_rows()
  if parts == 1:
    return jax.random.categorical(key, logits_BKV)
  words = jax.random.key_data(key)
  if words.size > 2:  # the bits of rbg depend on the layout anyway
    return jax.random.categorical(jax.random.fold_in(key, part), logits_BKV)
  # A number's bits are a hash of its place, which has two words and counts from the first row on.
  begins = np.arange(B * parts, dtype=np.uint64) * np.uint64(K * V)

  def of_this_shard(begins):
    begins = jnp.asarray(begins.astype(np.uint32))
    return lax.dynamic_slice_in_dim(begins, part * B, B)[:, None, None]

  high_B11 = of_this_shard(begins >> 32)
  low_B11 = of_this_shard(begins & 0xFFFFFFFF)
  prediction_BKV = lax.broadcasted_iota(jnp.uint32, (B, K, V), 1)
  word_BKV = lax.broadcasted_iota(jnp.uint32, (B, K, V), 2)
  place_BKV = prediction_BKV * jnp.uint32(V) + word_BKV  # in its row
  low_BKV = low_B11 + place_BKV
  high_BKV = high_B11 + (low_BKV < place_BKV)  # and what is carried over
  hashed = threefry2x32_p.bind(words[0], words[1], high_BKV, low_BKV)
  # Uniform in [0, 1) from the highest 23 bits, and then Gumbel's distribution.
  one_BKV = ((hashed[0] ^ hashed[1]) >> 9) | jnp.uint32(0x3F800000)
  uniform_BKV = lax.bitcast_convert_type(one_BKV, jnp.float32) - 1
  gumbel_BKV = -jnp.log(-jnp.log(jnp.maximum(uniform_BKV, jnp.finfo(jnp.float32).tiny)))
  return jnp.argmax(gumbel_BKV + logits_BKV, axis=-1)


def _tables(encoder):
  """The tables among the embeddings of an encoder, {name: parameters}."""
  return {name: x for name, x in encoder['embeddings'].items() if name.endswith('_embeddings')}


def _shared(embeddings):
  """The parts of embeddings that ELECTRA shares: all but the dense layer that narrows them."""
  return [name for name in embeddings if name != 'projection']
