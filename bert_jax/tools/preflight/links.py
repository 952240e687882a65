"""Finds the communication between the devices of a compiled program, and estimates its time.

The compiler gives collectives no cycles. Here each takes as long as its bytes need on the links
that join the chips of its group, at the bandwidth that the maker publishes: all links of a group
work at once and in both directions, groups that lie between one another share their links, and
nothing is added for the start of a message, so the time is a lower bound. A collective that is
started, and done further down in the schedule, is taken to overlap with computing; others block.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from bert_jax.tools.preflight.chips import Published
from bert_jax.tools.preflight.hlo import Instruction, Program, arrays, collective

Groups = tuple[tuple[int, ...], ...]  # of positions in mesh.devices.flat


class Transfer(NamedTuple):
  """A collective (see hlo.Program.moved); groups: of devices that talk to one another, or pairs."""

  kind: str
  bytes: int
  groups: Groups


@dataclass
class Row:
  """All similar transfers of a step. beside: they overlap with computing."""

  kind: str
  axes: str
  beside: bool
  number: int = 0
  bytes: int = 0
  seconds: float = 0.0


def _numbers(text: str) -> list[int]:
  return [int(n) for n in re.findall(r'\d+', text)]


def _iota(shape: str, dims: str, order: str) -> np.ndarray:
  """[2,4]<=[4,2]T(1,0): 0, 1, ... fill an array [4,2], transposed, and reshaped to [2,4]."""
  ids = np.arange(math.prod(_numbers(dims))).reshape(_numbers(dims))
  if order:
    ids = ids.transpose(_numbers(order))
  return ids.reshape(_numbers(shape)) if shape else ids


def _mesh_groups(sizes: str, dims: str, order: str, axes: str) -> np.ndarray:
  """Parses groups like mesh['a'=2,'b'=8], device_ids=([8,2]T(1,0)) {'a','b':(2)4}: devices that
  differ only along named axes; for 'b':(2)4, b is split into axes of 2, 4 and the rest."""
  wanted = {}
  for name, before, size in re.findall(r"'([\w.]+)'(?::\((\d+)\)(\d+))?", axes):
    wanted[name] = int(before or 1), int(size or 0)
  shape, along = [], []
  for name, size in re.findall(r"'?([\w.]+)'?=(\d+)", sizes):
    before, part = wanted.get(name, (1, 0))
    part = part or int(size)
    if name in wanted:
      along.append(len(shape) + 1)
    shape += [before, part, int(size) // (before * part)]
  ids = _iota('', dims or str(math.prod(shape)), order)
  rest = [i for i in range(len(shape)) if i not in along]
  ids = ids.reshape(shape).transpose(rest + along)
  return ids.reshape(-1, math.prod(shape[i] for i in along))


def groups_of(text: str, number: int) -> Groups:
  """Parses the groups of a collective among `number` devices, by default one: {{0,1},{2,3}} or
  [2,2]<=[4] or mesh['x'=2,'y'=2] {'y'}; for a permutation the pairs (source, target)."""
  iota = r'\[([\d,]+)\](?:T\(([\d,]+)\))?'
  mesh = rf'_groups=@?mesh\[([^\]]*)\](?:, device_ids=\({iota}\))? \{{(.*?)\}}'
  if match := re.search(mesh, text):
    groups = _mesh_groups(*match.groups(default=''))
  elif match := re.search(rf'_groups=\[([\d,]+)\]<={iota}', text):
    groups = _iota(*match.groups(default=''))
  elif match := re.search(r'(?:_groups|target_pairs)=\{(\{[\d,{} ]*\})\}', text):
    groups = [_numbers(part) for part in re.findall(r'\{([^{}]+)\}', match[1])]
  else:
    groups = [range(number)]
  return tuple(tuple(int(i) for i in group) for group in groups)


class Network:
  """The links between the devices of a mesh. known: whether their bandwidth is published."""

  def __init__(self, mesh: Mesh, published: Published):
    devices = list(mesh.devices.flat)
    self.mesh, self.published = mesh, published
    # Several devices may be one chip.
    self.places = [(getattr(d, 'slice_index', 0) or 0, *d.coords) for d in devices]
    self.sides = [1 + max(column) for column in list(zip(*self.places))[1:]]
    rings = [n % published.ring == 0 if published.ring else False for n in self.sides]
    self.rings = [ring and (published.links == 4 or all(rings)) for ring in rings]
    self.one_way = (published.interconnect or 0) / 2 / (published.links or 1)  # of a link
    self.slices = len({place[0] for place in self.places})
    self.known = bool(published.interconnect and (self.slices == 1 or published.network))

  def axes(self, transfer: Transfer) -> str:
    """The mesh axes along which the devices of a group differ, such as 'data+fsdp'."""
    differ = set()
    for group in transfer.groups:
      positions = np.unravel_index(group, tuple(self.mesh.shape.values()))
      differ |= {name for name, x in zip(self.mesh.shape, positions) if len(set(x)) > 1}
    return '+'.join(name for name in self.mesh.shape if name in differ)

  def seconds(self, transfer: Transfer) -> float:
    """The least seconds of a transfer, all groups of which talk at once; 0 if nothing is known.

    A chip that gathers an array of S bytes from the n chips of its group receives S (n - 1) / n of
    them; a reduction sends as much. Between slices each chip moves its n-th part: a `send` is of
    this part alone, which is summed over the slices. A permutation is taken to pass one link."""
    if not self.known:
      return 0.0
    network = self.published.network or math.inf
    if transfer.kind == 'send':
      on_chip = len(self.places) / len(set(self.places))
      return on_chip * 2 * transfer.bytes * (self.slices - 1) / self.slices / network
    if transfer.kind == 'collective-permute':
      crosses = any(len({self.places[i][0] for i in pair}) > 1 for pair in transfer.groups)
      return transfer.bytes / (network if crosses else self.one_way)
    places = {self.places[i] for i in transfer.groups[0]}
    slices = len({place[0] for place in places})
    chips = len(places) // slices
    size = transfer.bytes * (2 if transfer.kind == 'all-reduce' else 1)
    inside = (chips - 1) / self._speed(places) if chips > 1 else 0.0
    # Devices of one chip share its links. A program of several slices may name the groups of one.
    named = {self.places[i][0] for group in transfer.groups for i in group}
    here = {place for place in self.places if place[0] in named}
    share = len(transfer.groups) * len(places) / len(here)
    return share * size / chips * (inside + (slices - 1) / slices / network)

  def _speed(self, places: set[tuple]) -> float:
    """Bytes a second that a chip receives from its group over the links of a slice: one link of
    each side along which it extends, two around a ring, shared by groups in between."""
    ways = 0.0
    for stand, length, ring in zip(list(zip(*places))[1:], self.sides, self.rings):
      steps = len(set(stand)) - 1
      if steps:
        apart = -(-(max(stand) - min(stand)) // steps)
        is_closed = ring and (steps + 1) * apart == length
        ways += (2 if is_closed else 1) / apart
    return ways * self.one_way


def rows(program: Program, network: Network) -> list[Row]:
  """The transfers of a step, those that take longest first."""
  by_kind = {}
  for name, instruction, times, beside in _collectives(program, program.entry):
    kind, size = program.moved(name, instruction)
    if kind == 'collective-permute':  # a sum of operands, results and a context
      size = max(arrays(instruction.type))
    transfer = Transfer(kind, size, groups_of(instruction.rest, network.mesh.size))
    axes = 'slices' if kind == 'send' else network.axes(transfer)
    row = by_kind.setdefault((kind, axes, beside), Row(kind, axes, beside))
    row.number += times
    row.bytes += times * size
    row.seconds += times * network.seconds(transfer)
  return sorted(by_kind.values(), key=lambda row: -row.seconds)


def _collectives(
  program: Program, name: str, times: int = 1, beside: bool = False
) -> Iterator[tuple[str, Instruction, int, bool]]:
  """Yields (computation, collective, how often it runs, whether it overlaps with computing) of the
  computation `name`, which runs `times` times.

  On TPUs an asynchronous collective may be a chain of fusions, of which the first starts it, the
  next ones compute something and move a piece, and the last waits for its end. All of them contain
  the collective, with the number of the chain."""
  chains = set()
  for instruction in program.computations[name]:
    if collective(instruction.opcode):
      yield name, instruction, times, beside or instruction.opcode.endswith('-start')
    elif instruction.opcode in ('while', 'call', 'conditional', 'async-start'):
      trips, is_started = program.trips(instruction), instruction.opcode == 'async-start'
      for called in instruction.called:
        yield from _collectives(program, called, times * trips, beside or is_started)
    elif instruction.opcode == 'fusion':
      for where, inner in program.below(instruction):
        if collective(inner.opcode):
          chain = re.search(r'chain_id="?(\d+)', inner.rest)
          if chain is None or chain[1] not in chains:
            yield where, inner, times, beside or chain is not None
          if chain:
            chains.add(chain[1])
