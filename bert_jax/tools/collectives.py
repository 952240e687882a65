"""What the devices of a compiled program send one another, and a model of the time it takes.

The compiler gives collectives no cycles. Here each takes as long as its bytes need on the links
that join the chips of its group, at the bandwidth that the maker publishes: all links of a group
work at once and in both directions, and nothing is added for the start of a message, so the time is
the least that it can be. The schedule says what waits: a collective that is started, and done
further down, moves beside what is computed in between; all others are waited for. One moves at a
time.
"""

import collections
import math
import re
from typing import NamedTuple

import numpy as np

from bert_jax.tools.compiled_program import arrays, collective


class Transfer(NamedTuple):
  """kind: of collective; bytes: as compiled_program.Program.moved; groups: tuples of positions in
  mesh.devices.flat, of the devices that talk to one another (of a permutation, pairs)."""

  kind: str
  bytes: int
  groups: tuple


class Row(NamedTuple):
  """All transfers of a step that are alike. axes: names of mesh axes, such as 'data+fsdp'; beside:
  they move while something is computed; seconds: that they take; waited: that are waited for."""

  kind: str
  axes: str
  beside: bool
  number: int
  bytes: int
  seconds: float
  waited: float


def _iota(text):
  """The array of positions in [4,2]T(1,0), where 0, 1, ... fill [4,2], which is then transposed; in
  [2,4]<=[4,2]T(1,0) it takes the shape [2,4] after that."""
  shape, dims, order = re.match(r'(?:\[([\d,]+)\]<=)?\[([\d,]+)\](?:T\(([\d,]+)\))?', text).groups()
  numbers = lambda x: [int(n) for n in x.split(',')]
  ids = np.arange(math.prod(numbers(dims))).reshape(numbers(dims))
  ids = ids.transpose(numbers(order)) if order else ids
  return ids.reshape(numbers(shape)) if shape else ids


def _of_mesh(sizes, order, axes):
  """Groups of mesh['a'=2,'b'=8], device_ids=([8,2]T(1,0)) {'a','b':(2)4}: devices that differ only
  along the named axes; of 'b':(2)4 along that of size 4 where b is cut into axes of 2, 4 and the
  rest."""
  names = [(name, int(n)) for name, n in re.findall(r"'?([\w.]+)'?=(\d+)", sizes)]
  wanted = {}
  for name, before, size in re.findall(r"'([\w.]+)'(?::\((\d+)\)(\d+))?", axes):
    wanted[name] = (int(before), int(size)) if size else None
  shape, along = [], []
  for name, size in names:
    before, part = wanted.get(name) or (1, size)
    if name in wanted:
      along.append(len(shape) + 1)
    shape += [before, part, size // (before * part)]
  ids = _iota(order or f'[{math.prod(shape)}]')
  rest = [i for i in range(len(shape)) if i not in along]
  ids = ids.reshape(shape).transpose(rest + along)
  return ids.reshape(-1, math.prod(shape[i] for i in along))


def groups_of(text, number):
  """The groups of a collective among `number` devices, from the text of its attributes:
  {{0,1},{2,3}} or [2,2]<=[4] or mesh['x'=2,'y'=2] {'y'}; of a permutation the pairs (source,
  target). Without any, all devices are one group."""
  if match := re.search(
    r'_groups=@?mesh\[([^\]]*)\](?:, device_ids=\((.*?\]\S*)\))? \{(.*?)\}', text
  ):
    groups = _of_mesh(*match.groups())
  elif match := re.search(r'_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)', text):
    groups = _iota(match[1])
  elif match := re.search(r'(?:_groups|target_pairs)=\{(\{[\d,{} ]*\})\}', text):
    groups = [re.findall(r'\d+', part) for part in re.findall(r'\{([^{}]+)\}', match[1])]
  else:
    groups = [range(number)]
  return tuple(tuple(int(i) for i in group) for group in groups)


class Network:
  """The links between the devices of a mesh, as chips.Published says of them."""

  def __init__(self, mesh, published):
    devices = list(mesh.devices.flat)
    self.mesh, self.published = mesh, published
    # Several devices may be one chip.
    self.places = [(getattr(d, 'slice_index', 0) or 0, *d.coords) for d in devices]
    self.sides = [1 + max(column) for column in list(zip(*self.places))[1:]]
    rings = [n % published.ring == 0 for n in self.sides] if published.ring else [False]
    flat = published.links == 4
    self.rings = [ring and (flat or all(rings)) for ring in rings]

  def axes(self, transfer):
    """'fsdp', 'data+fsdp', ...: the axes of the mesh along which the devices of a group differ."""
    shape = tuple(self.mesh.shape.values())
    positions = np.unravel_index(max(transfer.groups, key=len), shape)
    return '+'.join(name for name, x in zip(self.mesh.shape, positions) if len(set(x)) > 1)

  def seconds(self, transfer):
    """How long a transfer takes at least; all of its groups talk at once.

    A chip that is to get an array of S bytes from the n chips of its group gets S (n - 1) / n of
    them, over one link for each direction in which the group extends, or two where it closes a
    ring; to sum is the same way back. Between slices each chip moves its n-th part."""
    one_way = self.published.interconnect / 2 / self.published.links
    group = max(transfer.groups, key=len)
    places = {self.places[i] for i in group}
    share = collections.Counter(
      place for group in transfer.groups for place in {self.places[i] for i in group}
    ).most_common(1)[0][1]  # devices of one chip share its links
    slices = len({place[0] for place in places})
    chips = max(1, len(places) // slices)
    if transfer.kind == 'collective-permute':
      ends = [(self.places[a], self.places[b]) for a, b in transfer.groups]
      if any(a[0] != b[0] for a, b in ends):
        return transfer.bytes / self.published.network
      return transfer.bytes / one_way if any(a != b for a, b in ends) else 0.0
    links = 0
    for side, column, ring in zip(self.sides, list(zip(*places))[1:], self.rings):
      if len(set(column)) > 1:
        links += 2 if ring and len(set(column)) == side else 1
    ways = 2 if transfer.kind == 'all-reduce' else 1
    size = share * ways * transfer.bytes
    inside = size * (chips - 1) / chips / (max(1, links) * one_way)
    between = size / chips * (slices - 1) / slices / self.published.network
    return inside + between


class Timeline:
  """The schedule of a step with its collectives. seconds: of the step; rows: [Row].
  program: a compiled_program.Program; network: a Network; seconds_per_cycle: of the computing."""

  def __init__(self, program, network, seconds_per_cycle):
    self.program, self.network, self.seconds_per_cycle = program, network, seconds_per_cycle
    self.sums = collections.defaultdict(lambda: np.zeros(4))
    self.seconds = self._run(program.entry, 1)
    rows = [
      Row(*key, round(number), round(size), float(took), float(waited))
      for key, (number, size, took, waited) in self.sums.items()
    ]
    self.rows = sorted(rows, key=lambda row: -row.waited)

  def _run(self, name, times):
    """Seconds of a computation, which runs `times` times in a step."""
    now = free = 0.0
    moving = {}  # {name of a collective: (when it has ended, its sums)}
    for instruction in self.program.computations[name]:
      moves = list(self._moves(name, instruction))
      if instruction.opcode in ('while', 'call', 'conditional') or (
        instruction.opcode == 'async-start' and not moves
      ):
        trips = self.program.trips(instruction)
        now += trips * sum(self._run(called, times * trips) for called in instruction.called)
      for what, key, transfer in moves:
        if what == 'done':
          ended, sums = moving.pop(key, (0.0, np.zeros(4)))
          sums[3] += times * max(0.0, ended - now)
          now = max(now, ended)
          continue
        took = self.network.seconds(transfer)
        free = max(now, free) + took
        row = transfer.kind, self.network.axes(transfer), what == 'start'
        sums = self.sums[row]
        sums[:3] += times, times * transfer.bytes, times * took
        if what == 'start':
          moving[key] = free, sums
        else:
          sums[3] += times * (free - now)
          now = free
      now += instruction.cycles * self.seconds_per_cycle
    return max([now, *(ended for ended, _ in moving.values())])

  def _moves(self, name, instruction):
    """Yields ('whole', 'start' or 'done', key, Transfer) of the collectives of an instruction.

    On TPUs an asynchronous collective is a chain of fusions: the first holds the custom call
    AsyncCollectiveStart, those after it compute something and move a piece, the last holds
    AsyncCollectiveDone. In all of them stands the collective, with the number of the chain."""
    if re.fullmatch(r'(async|.*)-(done|update)', instruction.opcode):
      plain = instruction.opcode.rpartition('-')[0]
      if plain == 'async' or collective(plain):
        yield 'done', (instruction.operands or [''])[0], None
    elif collective(instruction.opcode):
      what = 'start' if instruction.opcode.endswith('-start') else 'whole'
      yield what, instruction.name, self._transfer(name, instruction)
    elif instruction.opcode in ('fusion', 'async-start'):
      inner = list(self.program.below(instruction))
      marks = {}
      for where, i in inner:
        if i.opcode == 'custom-call' and (mark := re.search(r'"AsyncCollective(\w+)"', i.rest)):
          marks |= {(where, operand): mark[1].lower() for operand in i.operands}
      for where, i in inner:
        if collective(i.opcode):
          chain = re.search(r'chain_id="?(\d+)', i.rest)
          what = marks.get((where, i.name), 'part' if chain else 'whole')
          key = chain[1] if chain else i.name
          if instruction.opcode == 'async-start':
            what, key = 'start', instruction.name
          if what != 'part':
            yield what, key, self._transfer(where, i)

  def _transfer(self, name, instruction):
    kind, size = self.program.moved(name, instruction)
    if kind == 'collective-permute':  # a sum of operands, results and a context
      size = max(arrays(instruction.type))
    return Transfer(kind, size, groups_of(instruction.rest, self.network.mesh.size))
