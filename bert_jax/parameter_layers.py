"""Finds the tower and the layer of a parameter by its path.

A tower is any subtree that holds `layer_0`, `layer_1`.. or `layers`, which come after the others
and whose arrays have a leading axis of layers (see models/stack.py). A model may have several, of
different numbers of layers. A tower is named by its path, such as 'generator/encoder'; '' is the
path of a tree that is itself a tower.
"""

import re
from collections.abc import Iterable
from typing import Any

import jax

from bert_jax.sharding import path_name

# Matches a parameter's path up to its layer: the tower, and the layer's number if not stacked.
LAYER = re.compile(r'(?:(?P<tower>.*?)/)?(?:layer_(?P<number>\d+)|layers)/')


def layer_of(name: str) -> tuple[str, int | None] | None:
  """(tower, number of the layer; None: layers are stacked) of a path; None if it is in no layer."""
  match = LAYER.match(name)
  if not match:
    return None
  number = int(match['number']) if match['number'] else None
  return match['tower'] or '', number


def layer_counts(params: Any) -> dict[str, int]:
  """The number of layers of each tower in a tree of arrays or shapes; shared layers are one."""
  apart, stacked = {}, {}
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    layer = layer_of(path_name(path))
    if layer:
      tower, number = layer
      if number is None:
        stacked[tower] = x.shape[0]
      else:
        apart[tower] = max(apart.get(tower, 0), number + 1)
  return {tower: apart.get(tower, 0) + stacked.get(tower, 0) for tower in apart | stacked}


def tower_of(name: str, towers: Iterable[str]) -> str | None:
  """The innermost of some towers that holds a parameter's path, or None."""
  return max((t for t in towers if not t or name.startswith(f'{t}/')), key=len, default=None)
