"""Runs examples through a model in batches of a few fixed shapes, so that few are compiled.

Several examples share a row, since attention does not cross them. The length of a row is a power of
two and the number of rows in a batch a power of four, for at most TOKENS tokens.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from bert_jax.rows.examples import Examples
from bert_jax.rows.packing import pack

SHORTEST = 16  # tokens of a row
PACKED = 128  # tokens of the rows that several short examples are packed into
TOKENS = 2048  # the most in a batch, unless a single row is longer
PER_SLOT = 8  # a row of T tokens holds at most T / PER_SLOT examples


def outputs(
  function: Callable, params: Any, examples: Examples, alone: int = 0
) -> dict[str, np.ndarray]:
  """Runs function(params, batch) over all rows of Examples: {name: [R, ...]} on the host; shorter
  rows end in zeros. alone: if not 0, each item has a row of so many tokens to itself."""
  made = []
  for rows in batches(examples, alone):
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    made.append(function(params, batch))
  of_batches = jax.device_get(made)
  out = {}
  for name in of_batches[0] if of_batches else ():
    arrays = [outputs[name] for outputs in of_batches]
    longest = np.max([x.shape[1:] for x in arrays], axis=0)
    padded = []
    for x in arrays:
      behind = [(0, int(n)) for n in longest - x.shape[1:]]
      padded.append(np.pad(x, [(0, 0), *behind]))
    out[name] = np.concatenate(padded)
  return out


def batches(examples: Examples, alone: int = 0) -> Iterator[list[dict[str, np.ndarray]]]:
  """Yields batches, lists of rows of Examples, in the few shapes that this module allows."""
  items = []
  for row in range(len(examples)):
    items += examples.items_of_row(row)
  lengths = examples.tokens_of_items(items)
  short = int(lengths[lengths <= PACKED].sum())
  items_of_room = {}  # {length of a row: the numbers of the items that go into rows of this length}
  for k, length in enumerate(lengths):
    room = alone
    if not room:
      room = power_of_two(max(int(length), min(PACKED, short)))
    items_of_room.setdefault(room, []).append(k)
  for room, numbers in items_of_room.items():
    most = max(map(len, items))  # examples of one item
    slots = max(room // PER_SLOT, power_of_two(most, 1))
    most_items = 1 if alone else slots // most
    order, row_at = pack(lengths[numbers], room, most_items)
    in_order = [items[numbers[i]] for i in order]
    rows = [in_order[begin:end] for begin, end in itertools.pairwise(row_at)]
    sizes = [1]
    while 4 * sizes[-1] * room <= TOKENS:
      sizes.append(4 * sizes[-1])
    while rows:
      # The next larger number of rows, if at least half of them are filled; else a smaller number.
      size = next((n for n in sizes if len(rows) <= n <= 2 * len(rows)), None)
      size = size or max(n for n in sizes if n <= len(rows))
      out = [examples.row(items_of_row, room, slots) for items_of_row in rows[:size]]
      empty = {name: np.zeros_like(x) for name, x in out[0].items()}
      yield out + [empty] * (size - len(out))
      rows = rows[size:]


def power_of_two(number: int, least: int = SHORTEST) -> int:
  """The smallest power of two that is at least number, and at least `least`."""
  return max(least, 1 << (number - 1).bit_length())
