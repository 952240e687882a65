"""Metrics of a run as (total, weight) pairs, and baselines to judge them by."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import InputError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mean:
  """A mean as a total and a weight, divided once, when it is printed: so padding, accumulation,
  several hosts and a short last batch change no mean. Both are arrays, or numbers of the host."""

  total: Any
  weight: Any

  def __add__(self, other: 'Mean') -> 'Mean':
    return Mean(self.total + other.total, self.weight + other.weight)

  @property
  def value(self) -> Any:
    return self.total / self.weight if self.weight else float('nan')


class Level(NamedTuple):
  """A baseline: the value of a score without reading the input, and the kind of baseline."""

  value: float
  kind: str  # majority, prior, chance, ...


class LossLevel(Level):
  """A baseline of a loss, where smaller values are better; its kind is one of LOSSES."""


LOSSES = 'unigram', 'uniform', 'entropy', 'mean'  # kinds of baselines of losses; not of scores
KINDS = 'majority', 'chance'  # of baselines that an evaluation counts itself, as NAME_KIND
REGRESSION = '_logistic_regression'  # NAME of it: the score NAME of run/frozen.py's baseline


def mean(values: jax.Array | float, weights: jax.Array) -> Mean:
  """The Mean of an array, or of one number, under weights of the same shape. InputError for others:
  a weight that several values share would count once in the sum of weights, and with each value in
  the total."""
  shape, of_weights = jnp.shape(values), jnp.shape(weights)
  if shape not in ((), of_weights):
    fault = f'metrics.mean has values {list(shape)} and weights {list(of_weights)}'
    raise InputError(f'{fault}; give each value its weight, as by jnp.broadcast_to.')
  return Mean(jnp.sum(values * weights, dtype=jnp.float32), jnp.sum(weights, dtype=jnp.float32))


def host_sum(tree: Any) -> Any:
  """Fetches {name: Mean or scalar} from the device as float64, to be summed on the host."""
  return jax.tree.map(lambda x: np.asarray(x, np.float64), jax.device_get(tree))


def add(a: Mapping[str, Mean], b: Mapping[str, Any]) -> dict[str, Mean]:
  """The sum of two {name: Mean}, where a may be {}; scalars (loss) count as Means of weight 1."""
  out = {}
  for name, value in b.items():
    total = value if isinstance(value, Mean) else Mean(value, 1.0)
    out[name] = a[name] + total if name in a else total
  return out


def values(terms: Mapping[str, Mean], baselines: Mapping[str, Level]) -> dict[str, float]:
  """The values of terms, and NAME_below_KIND for losses with a baseline."""
  out = {name: float(m.value) for name, m in terms.items() if m.weight}
  for name, baseline in baselines.items():
    if name in out and isinstance(baseline, LossLevel):
      out[f'{name}_below_{baseline.kind}'] = baseline.value - out[name]
  return out


def beside(
  metrics: Mapping[str, float], baselines: Mapping[str, Level], examples: int = 0
) -> dict[str, float]:
  """What to judge metrics by: {'examples': how many were scored, NAME_KIND: a baseline of NAME}."""
  levels = {f'{name}_{kind}': x for name, (x, kind) in baselines.items() if name in metrics}
  return ({'examples': examples} if examples else {}) | levels


def own_levels(metrics: Mapping[str, Any]) -> dict[str, Level]:
  """The baselines that an evaluation has counted itself, since they depend on the model (what
  ELECTRA's generator replaces), by the names of its values: {NAME: Level} of NAME_KIND."""
  parts = ((*name.rpartition('_')[::2], x) for name, x in metrics.items())
  return {name: Level(x, kind) for name, kind, x in parts if kind in KINDS and name in metrics}


def to_json(metrics: Mapping[str, Any]) -> str:
  """One line of valid JSON; NaN and infinity become null."""
  finite = json.loads(json.dumps(metrics), parse_constant=lambda name: None)
  return json.dumps(finite, ensure_ascii=False)
