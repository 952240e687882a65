"""Finds the communication between the devices of a compiled program, and models its time.

The compiler gives collectives no cycles. Here each takes as long as its bytes need on the links
that join the chips of its group, at the bandwidth that the maker publishes: all links of a group
work at once and in both directions, groups that use the same link share it, and nothing is added
for the start of a message, so the time is a lower bound. The schedule says what waits: a collective
that is started, and done further down, overlaps with the computation in between; all others block.
One moves at a time.
"""

import collections
import itertools
import math
import re
from typing import NamedTuple

import numpy as np

from bert_jax.tools.preflight.hlo import arrays, collective


class Transfer(NamedTuple):
  """A collective. kind, bytes: as hlo.Program.moved; groups: tuples of positions in
  mesh.devices.flat, of the devices that talk to one another (pairs for a permutation)."""

  kind: str
  bytes: int
  groups: tuple


class Row(NamedTuple):
  """All similar transfers of a step. axes: names of mesh axes, such as 'data+fsdp'; beside: they
  overlap with computation; seconds: that they take; waited: seconds that do not overlap."""

  kind: str
  axes: str
  beside: bool
  number: int
  bytes: int
  seconds: float
  waited: float


def _iota(text):
  """Parses an array of positions: in [4,2]T(1,0) 0, 1, ... fill [4,2], which is transposed;
  [2,4]<=[4,2]T(1,0) is reshaped to [2,4] after that."""
  shape, dims, order = re.match(r'(?:\[([\d,]+)\]<=)?\[([\d,]+)\](?:T\(([\d,]+)\))?', text).groups()
  numbers = lambda x: [int(n) for n in x.split(',')]
  ids = np.arange(math.prod(numbers(dims))).reshape(numbers(dims))
  ids = ids.transpose(numbers(order)) if order else ids
  return ids.reshape(numbers(shape)) if shape else ids


def _mesh_groups(sizes, order, axes):
  """Parses groups like mesh['a'=2,'b'=8], device_ids=([8,2]T(1,0)) {'a','b':(2)4}: devices that
  differ only along the named axes; for 'b':(2)4, b is split into axes of 2, 4 and the rest, and the
  one of 4 is meant."""
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
  """Parses the groups of a collective among `number` devices from the text of its attributes:
  {{0,1},{2,3}} or [2,2]<=[4] or mesh['x'=2,'y'=2] {'y'}; for a permutation the pairs (source,
  target). By default all devices are one group."""
  if match := re.search(
    r'_groups=@?mesh\[([^\]]*)\](?:, device_ids=\((.*?\]\S*)\))? \{(.*?)\}', text
  ):
    groups = _mesh_groups(*match.groups())
  elif match := re.search(r'_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)', text):
    groups = _iota(match[1])
  elif match := re.search(r'(?:_groups|target_pairs)=\{(\{[\d,{} ]*\})\}', text):
    groups = [re.findall(r'\d+', part) for part in re.findall(r'\{([^{}]+)\}', match[1])]
  else:
    groups = [range(number)]
  return tuple(tuple(int(i) for i in group) for group in groups)


class Network:
  """The links between the devices of a mesh, by chips.Published."""

  def __init__(self, mesh, published):
    devices = list(mesh.devices.flat)
    self.mesh, self.published = mesh, published
    # Several devices may be one chip.
    self.places = [(getattr(d, 'slice_index', 0) or 0, *d.coords) for d in devices]
    self.sides = [1 + max(column) for column in list(zip(*self.places))[1:]]
    rings = [n % published.ring == 0 for n in self.sides] if published.ring else [False]
    flat = published.links == 4
    self.rings = [ring and (flat or all(rings)) for ring in rings]
    slices = len({place[0] for place in self.places})
    self.known = bool(published.interconnect and (slices == 1 or published.network))
    self.speeds = {}  # {groups of a Transfer: bytes a second within a slice}

  def axes(self, transfer):
    """The mesh axes along which the devices of a group differ, such as 'data+fsdp'."""
    differ = set()
    for group in transfer.groups:
      positions = np.unravel_index(group, tuple(self.mesh.shape.values()))
      differ |= {name for name, x in zip(self.mesh.shape, positions) if len(set(x)) > 1}
    return '+'.join(name for name in self.mesh.shape if name in differ)

  def seconds(self, transfer):
    """The least seconds of a transfer, all groups of which talk at once. Only where `known`.

    A chip that gathers an array of S bytes from the n chips of its group receives S (n - 1) / n of
    them; a reduction sends as much. Between slices each chip moves its n-th part."""
    if transfer.kind == 'collective-permute':
      return self._permutation(transfer)
    places = {self.places[i] for i in transfer.groups[0]}
    slices = len({place[0] for place in places})
    chips = len(places) // slices
    size = transfer.bytes * (2 if transfer.kind == 'all-reduce' else 1)
    if transfer.groups not in self.speeds:
      self.speeds[transfer.groups] = self._speed(transfer.groups)
    inside = size * (chips - 1) / chips / self.speeds[transfer.groups] if chips > 1 else 0.0
    if slices == 1:
      return inside
    # Devices of one chip share its network.
    share = _most({self.places[i] for i in group} for group in transfer.groups)
    return inside + share * size / chips * (slices - 1) / slices / self.published.network

  def _speed(self, groups):
    """Bytes a second that a chip receives from its group over the links of a slice: one link of
    each side along which the group extends, or two around a ring, divided by how many groups share
    the link."""
    used = [self._links(group) for group in groups]
    ways = sum(
      one_or_two / _most(links[side][1] for links in used if side in links)
      for side, (one_or_two, _) in used[0].items()
    )
    return ways * self._one_way

  def _links(self, group):
    """The sides of a slice along which a group's chips extend, with all links between the outermost
    chips: {side: (1, or 2 around a ring, {link})}."""
    columns = [sorted(set(column)) for column in zip(*(self.places[i] for i in group))]
    out = {}
    for side, (length, ring) in enumerate(zip(self.sides, self.rings), start=1):
      stand = columns[side]
      if len(stand) == 1:
        continue
      around = ring and set(np.diff(stand)) == {length / len(stand)}
      links = range(length) if around else range(stand[0], stand[-1])
      lines = columns[:side] + columns[side + 1 :]
      out[side] = 1 + around, set(itertools.product(links, *lines))
    return out

  def _permutation(self, transfer):
    """Seconds of a permutation, whose messages wait for one another where they share a link."""
    pairs = [(self.places[a], self.places[b]) for a, b in transfer.groups]
    if any(a[0] != b[0] for a, b in pairs):
      return transfer.bytes / self.published.network
    return transfer.bytes * _most(self._route(a, b) for a, b in pairs) / self._one_way

  def _route(self, a, b):
    """The links from place a to b, {link from a place to the next}, side after side."""
    at, links = list(a), set()
    for side, (length, ring) in enumerate(zip(self.sides, self.rings), start=1):
      step = 1 if b[side] > a[side] else -1
      if ring and 2 * abs(b[side] - a[side]) > length:  # the other way round the ring is shorter
        step = -step
      while at[side] != b[side]:
        before = tuple(at)
        at[side] = (at[side] + step) % length
        links.add((before, tuple(at)))
    return links

  @property
  def _one_way(self):
    return self.published.interconnect / 2 / self.published.links


def _most(sets):
  """In how many of these sets the most frequent member is; 0 if all are empty."""
  counts = collections.Counter(itertools.chain.from_iterable(sets))
  return max(counts.values(), default=0)


class Timeline:
  """Simulates the schedule of a step with its collectives. seconds: of the step; rows: [Row].
  program: an hlo.Program; network: a Network (if it is not `known`, collectives take no time);
  seconds_per_cycle: of the computing."""

  def __init__(self, program, network, seconds_per_cycle):
    self.program, self.network, self.seconds_per_cycle = program, network, seconds_per_cycle
    self.sums = collections.defaultdict(lambda: np.zeros(4))
    self.seconds = self._run(program.entry, 1)
    rows = [
      Row(*key, round(number), round(size), float(took), float(waited))
      for key, (number, size, took, waited) in self.sums.items()
    ]
    self.rows = sorted(rows, key=lambda row: -row.waited)

  def bytes(self):
    """The bytes of all transfers of each kind, {kind: bytes as in Row}."""
    out = collections.Counter()
    for row in self.rows:
      out[row.kind] += row.bytes
    return dict(out)

  def _run(self, name, times):
    """Seconds of a computation, which runs `times` times in a step."""
    now = free = 0.0
    moving = {}  # {name of a collective: (when it ends, its sums)}
    for instruction in self.program.computations[name]:
      moves = list(self._moves(name, instruction))
      if instruction.opcode in ('while', 'call', 'conditional') or (
        instruction.opcode == 'async-start' and not moves
      ):
        trips = self.program.trips(instruction)
        now += trips * sum(self._run(called, times * trips) for called in instruction.called)
      for what, key, transfer in moves:
        if what == 'update':  # the same transfer under a new name
          if key in moving:
            moving[instruction.name] = moving.pop(key)
          continue
        if what == 'done':
          ended, sums = moving.pop(key, (0.0, np.zeros(4)))
          sums[3] += times * max(0.0, ended - now)
          now = max(now, ended)
          continue
        took = self.network.seconds(transfer) if self.network.known else 0.0
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
    """Yields ('whole', 'start', 'update' or 'done', key, Transfer) of the collectives of an
    instruction.

    On TPUs an asynchronous collective is a chain of fusions: the first holds the custom call
    AsyncCollectiveStart, the next ones compute something and move a piece, the last holds
    AsyncCollectiveDone. All of them contain the collective, with the number of the chain."""
    if re.fullmatch(r'(async|.*)-(done|update)', instruction.opcode):
      plain, _, what = instruction.opcode.rpartition('-')
      if plain == 'async' or collective(plain):
        yield what, (instruction.operands or [''])[0], None
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
