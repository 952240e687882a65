"""Towers: the parts of a tree of parameters that are made of layers.

A tower is any subtree that holds `layer_0`, `layer_1`, ... or, scanned, `layers` with a leading
axis of layers. A model may have several (a generator beside a discriminator, a decoder after an
encoder), each with another number of layers. A tower is named by its path, 'encoder' or
'generator/encoder'; the path of a tree that is itself a tower is ''.
"""

import re

import jax

from bert_jax.sharding import path_name

# The tower of a parameter's path, and which layer of it: a number, or none for all, stacked.
LAYER = re.compile(r'(?:(?P<tower>.*?)/)?(?:layer_(?P<number>\d+)|layers)/')


def layer_of(name):
  """(tower, number of the layer or None) of a parameter's path, or None if it is in no layer."""
  match = LAYER.match(name)
  return match and (match['tower'] or '', match['number'] and int(match['number']))


def layer_counts(params):
  """{tower: its number of layers} of a tree of arrays or shapes."""
  counts = {}
  for path, x in jax.tree_util.tree_flatten_with_path(params)[0]:
    if layer := layer_of(path_name(path)):
      tower, number = layer
      counts[tower] = max(counts.get(tower, 0), x.shape[0] if number is None else number + 1)
  return counts


def tower_of(name, towers):
  """The innermost of some towers that holds a parameter's path, or None."""
  return max((t for t in towers if not t or name.startswith(f'{t}/')), key=len, default=None)
