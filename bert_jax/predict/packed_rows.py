"""Examples through a model: packed into rows of a few fixed shapes, so that few are compiled.

Several examples share a row, whatever they are: attention crosses none. Rows are as long as a power
of two, and batches have as many rows as a power of four, up to TOKENS.
"""

import jax
import numpy as np

from bert_jax.rows.packing import pack

SHORTEST = 16  # tokens of a row
PACKED = 128  # tokens of the rows that several short examples are packed into
TOKENS = 2048  # of a batch, where a row is not longer than that
PER_SLOT = 8  # tokens of a row for each example that it can hold


def outputs(function, params, examples):
  """{name: [R, ...]} of function(params, batch) over all rows of Examples, on the host.

  The rows are others than those of examples[i], but hold the same, so Examples.answers reads them.
  """
  found = [
    function(params, {name: np.stack([row[name] for row in rows]) for name in rows[0]})
    for rows in batches(examples)
  ]
  return _joined(jax.device_get(found))


def batches(examples):
  """Yields lists of rows (see Examples), as many and as long as one of a few shapes."""
  items = [item for row in examples.items_of_row for item in row]
  lengths = np.array([examples.lengths[item.start : item.stop].sum() for item in items], np.int64)
  groups = {}
  short = int(lengths[lengths <= PACKED].sum())
  for k, length in enumerate(lengths):
    room = power_of_two(min(PACKED, short) if length <= PACKED else int(length))
    groups.setdefault(room, []).append(k)
  for room, own in groups.items():
    most = max(map(len, items))  # examples of one item
    slots = max(room // PER_SLOT, power_of_two(most, 1))
    order, row_at = pack(lengths[own], room, slots // most)
    rows = [[items[own[i]] for i in order[a:b]] for a, b in zip(row_at, row_at[1:])]
    yield from _batches(examples, rows, room, slots)


def _batches(examples, rows, room, slots):
  sizes = [1]
  while 4 * sizes[-1] * room <= TOKENS:
    sizes.append(4 * sizes[-1])
  while rows:
    # The next larger shape, if it is half full at least.
    size = next((n for n in sizes if len(rows) <= n <= 2 * len(rows)), None)
    size = size or max(n for n in sizes if n <= len(rows))
    out = [examples.row(items, room, slots) for items in rows[:size]]
    empty = {name: np.zeros_like(x) for name, x in out[0].items()}
    yield out + [empty] * (size - len(out))
    rows = rows[size:]


def power_of_two(number, least=SHORTEST):
  """The power of two that is not below number."""
  return max(least, 1 << (number - 1).bit_length())


def _joined(found):
  """Outputs of batches of several lengths as if of one: filled up with zeros."""
  out = {}
  for name in found[0] if found else ():
    arrays = [x[name] for x in found]
    shape = np.max([x.shape[1:] for x in arrays], axis=0)
    out[name] = np.concatenate([
      np.pad(x, [(0, 0), *((0, int(n - own)) for n, own in zip(shape, x.shape[1:]))])
      for x in arrays
    ])  # fmt: skip
  return out
