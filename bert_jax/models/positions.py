"""Position encodings: a table added to the embeddings (learned or sinusoidal), queries and keys
rotated by their position (rotary), a bias of the attention scores (ALiBi), or scores of their own
(relative, disentangled and relative_bias, see relative.py; with a table, too: learned_and_bias)."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bert_jax.models import layers, relative
from bert_jax.models.config import ModelConfig
from bert_jax.models.tokens import Pattern, distance


class Positions(NamedTuple):
  """One kind of position encoding: a function for each place where it enters a model, or None.

  embed(config, position_ids [B, T]) -> [B, T, E], added to the embeddings; called inside their
  module, where it may create parameters.
  turn(x [B, T, H, d], position_ids [B, T], theta) -> x rotated: the queries or keys.
  bias(heads, pattern) -> added to the scores; broadcasts to [B, H, Tq, Tk].
  own_scores: an OwnScores: a module that scores queries and keys by their distance.
  distances: a module of the vectors [R, D] or numbers of relative distances that layers share.
  """

  embed: Callable[[ModelConfig, Array], Array] | None = None
  turn: Callable[[Array, Array, Any], Array] | None = None
  bias: Callable[[int, Pattern], Array] | None = None
  own_scores: type[relative.OwnScores] | None = None
  distances: type[relative.Distances] | None = None


def learned(config: ModelConfig, position_ids_BT: Array) -> Array:
  table = layers.embed(config, config.max_position_embeddings, 'position_embeddings')
  return table(position_ids_BT)


def sinusoidal(config: ModelConfig, position_ids_BT: Array) -> Array:
  table = sinusoidal_table(config.max_position_embeddings, config.embedding_width)
  return jnp.asarray(table)[position_ids_BT]


class ScaledSinusoidal(nn.Module):
  """The sinusoidal table times one learned number, which begins at 1 / sqrt(E) (Hua et al. 2022,
  https://arxiv.org/abs/2202.10447; Geiping & Goldstein 2022)."""

  config: ModelConfig

  @nn.compact
  def __call__(self, position_ids_BT: Array) -> Array:
    start = nn.initializers.constant(self.config.embedding_width**-0.5)
    return self.param('scale', start, (1,)) * sinusoidal(self.config, position_ids_BT)


def sinusoidal_table(length: int, width: int) -> np.ndarray:
  """The original Transformer's position table (Vaswani et al. 2017, section 3.5): [length, width].
  Even columns hold sin(position / 10000^(column / width)), odd columns the cosine of this angle."""
  angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
  pairs = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
  return pairs.reshape(length, -1)[:, :width].astype(np.float32)


def extended(table_PE: np.ndarray, rows: int, how: str) -> np.ndarray:
  """Makes a table of learned positions longer, [rows, E]. how: 'tile' repeats it from its start
  (Longformer, Beltagy et al. 2020, https://arxiv.org/abs/2004.05150); 'interpolate' spreads its
  rows evenly from the first place to the last and interpolates linearly between them."""
  if how == 'tile':
    return table_PE[np.arange(rows) % len(table_PE)]
  at = np.linspace(0, len(table_PE) - 1, rows)
  low = np.minimum(at.astype(int), max(0, len(table_PE) - 2))
  share = (at - low)[:, None].astype(table_PE.dtype)
  return (1 - share) * table_PE[low] + share * table_PE[low + 1]


def rotary(x_BTHd: Array, position_ids_BT: Array, theta: Any) -> Array:
  """Rotates each pair of numbers (i, i + d/2) of x as a point of a plane, in float32, by the angle
  position / theta^(2i/d) (Su et al. 2021, https://arxiv.org/abs/2104.09864; pairs as in GPT-NeoX,
  Llama and ModernBERT), so the product of a query and a key depends on their distance alone."""
  d = x_BTHd.shape[-1]
  turns_d = jnp.asarray(theta, jnp.float32) ** (-jnp.arange(0, d, 2, dtype=jnp.float32) / d)
  angle_BT1d = position_ids_BT[:, :, None, None].astype(jnp.float32) * turns_d
  return _turned(x_BTHd, jnp.cos(angle_BT1d), jnp.sin(angle_BT1d))


@jax.custom_vjp
def _turned(x_BTHd: Array, cos_BT1d: Array, sin_BT1d: Array) -> Array:
  """Rotates pairs as `rotary` does, by halves that are never arrays of their own: a TPU would store
  each, join them, and store the whole, and a CPU joins them in one thread."""
  halves = x_BTHd.astype(jnp.float32).reshape(*x_BTHd.shape[:-1], 2, -1)
  signed = jnp.stack([-sin_BT1d, sin_BT1d], axis=-2)
  turned = halves * cos_BT1d[..., None, :] + halves[..., ::-1, :] * signed
  return turned.reshape(x_BTHd.shape).astype(x_BTHd.dtype)


def _turned_forward(x_BTHd, cos_BT1d, sin_BT1d):
  return _turned(x_BTHd, cos_BT1d, sin_BT1d), (cos_BT1d, sin_BT1d)


def _turned_backward(kept, g_BTHd):
  cos_BT1d, sin_BT1d = kept
  return _turned(g_BTHd, cos_BT1d, -sin_BT1d), None, None


_turned.defvjp(_turned_forward, _turned_backward)


def alibi(heads: int, pattern: Pattern) -> Array:
  """The ALiBi bias [B or 1, H, Tq, Tk]: minus the distance of query and key, in either direction,
  times the slope of the head (Press et al. 2022, https://arxiv.org/abs/2108.12409)."""
  slopes_H11 = jnp.asarray(alibi_slopes(heads), jnp.float32)[:, None, None]
  return -slopes_H11 * jnp.abs(distance(pattern))[:, None].astype(jnp.float32)


def alibi_slopes(heads: int) -> list[float]:
  """The paper's slopes: 2^(-8/n), 2^(-16/n).. for n heads. If n is no power of 2, the slopes of the
  power of 2 below it, followed by every other slope of the power above it."""
  power = 2 ** math.floor(math.log2(heads))
  slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
  return slopes + [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]


POSITIONS = {
  'learned': Positions(embed=learned),
  'sinusoidal': Positions(embed=sinusoidal),
  'scaled_sinusoidal': Positions(
    embed=lambda config, ids_BT: ScaledSinusoidal(config, name='position_embeddings')(ids_BT)
  ),
  'rotary': Positions(turn=rotary),
  'alibi': Positions(bias=alibi),
  'relative': Positions(own_scores=relative.Relative),
  'disentangled': Positions(own_scores=relative.Disentangled, distances=relative.Distances),
  'relative_bias': Positions(own_scores=relative.RelativeBias, distances=relative.Biases),
  'learned_and_bias': Positions(learned, None, None, relative.RelativeBias, relative.Biases),
  'none': Positions(),
}


def has_position_table(config: ModelConfig) -> bool:
  """Does the model add a position table, which has config.max_position_embeddings rows?"""
  return POSITIONS[config.position_embeddings].embed is not None
