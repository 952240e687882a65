"""Reads the text of a compiled program (HLO): cycles, and bytes between devices.

A TPU's compiler writes `estimated_cycles` beside each instruction it schedules. They come from a
cost model and not from a clock.
"""

import collections
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

UNKNOWN = 2**64 - 1  # the compiler's mark of an instruction that it cannot estimate
COLLECTIVE = re.compile(
  r'all-reduce|all-gather|reduce-scatter|(ragged-)?all-to-all|collective-(permute|broadcast)|send'
)
# First match wins; matched against JAX's name of an operation, such as
# jit(train_step)/transpose(jvp(Encoder))/layer_3/attention/query/dot_general. A fusion has the name
# of its last operation.
COMPONENTS = (
  ('dropout', r'bernoulli|random_bits|threefry|rng_bit|Dropout'),
  ('LayerNorm', r'LayerNorm'),
  ('attention', r'/attention/'),
  ('feed-forward', r'/layer(s|_\d+)/(gate|intermediate|output|jit)'),
  ('embeddings', r'/embeddings/'),
  ('head', r'MaskedLMHead|Pooler|Classifier|Scorer|/loss/'),
  ('optimizer', r'/optimizer/'),
  ('corruption', r'/corruption/'),
)

_BITS = {'pred': 8, 's4': 4, 'u4': 4, 's2': 2, 'u2': 2, 'bf16': 16, 'token': 0, 'opaque': 0}
_COMPUTATION = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$')
_ARRAY = re.compile(r'\b([a-z]\w*)\[([\d,]*)\]')
_CALLED = re.compile(r'(?:calls|to_apply|body|branch_computations)=\{?(%[\w.\-]+(?:, %[\w.\-]+)*)')


class Instruction(NamedTuple):
  name: str
  type: str  # of the result: bf16[8,128]{...} or a tuple of such types
  opcode: str
  rest: str  # operands and attributes

  @property
  def op_name(self) -> str:
    """JAX's name of the operation it comes from, or ''."""
    match = re.search(r'op_name="([^"]*)"', self.rest)
    return match[1] if match else ''

  @property
  def cycles(self) -> int:
    """The estimated cycles; 0 if there is no estimate, or if it is UNKNOWN."""
    match = re.search(r'"estimated_cycles":"(\d+)"', self.rest)
    number = int(match[1]) if match else 0
    return number if number != UNKNOWN else 0

  @property
  def called(self) -> list[str]:
    match = _CALLED.search(self.rest)
    return [name.strip(' %') for name in match[1].split(',')] if match else []

  @property
  def operands(self) -> list[str]:
    return re.findall(r'%([\w.\-]+)', self.rest.partition('), ')[0])

  @property
  def component(self) -> str:
    if collective(self.opcode):
      return 'collectives'
    return next((part for part, regex in COMPONENTS if re.search(regex, self.op_name)), 'other')


def collective(opcode: str) -> str:
  """The kind of collective of an opcode, 'all-reduce' for all-reduce-start too; else ''."""
  plain = opcode.removesuffix('-start')
  return plain if COLLECTIVE.fullmatch(plain) else ''


def arrays(text: str) -> list[int]:
  """The bytes of each array in the text of a type, such as (f32[8,128]{...}, ...)."""
  out = []
  for kind, shape in _ARRAY.findall(text):
    bits = _BITS.get(kind) or int((re.search(r'\d+', kind) or ['0'])[0])
    out.append(math.prod(int(n) for n in shape.split(',') if n) * bits // 8)
  return out


def in_hbm(text: str) -> int:
  """The bytes of the arrays of a type, without those on the chip: bf16[8,128]{1,0:S(1)}."""
  return sum(arrays(re.sub(r'\w+\[[\d,]*\]\{[^}]*S\(\d+\)\}', '', text)))


class Program:
  """A module of HLO as text, `jax.stages.Compiled.as_text()`. kernel_cycles: {name: cycles} of
  those of Pallas, which the text does not tell."""

  def __init__(self, text: str, kernel_cycles: Mapping[str, int] | None = None):
    self.kernel_cycles = kernel_cycles or {}
    self.computations: dict[str, list[Instruction]] = {}
    self.entry, current = '', None
    for line in text.splitlines():
      begins, instruction = _COMPUTATION.match(line), _INSTRUCTION.match(line)
      if begins:
        current = self.computations.setdefault(begins[2], [])
        if begins[1]:
          self.entry = begins[2]
      elif current is not None and instruction:
        current.append(Instruction(*instruction.groups()))

  def scheduled(self, name: str = '', times: int = 1) -> Iterator[tuple[Instruction, int]]:
    """Yields (instruction, how often it runs) for all that is scheduled, in loops and calls too."""
    for instruction in self.computations[name or self.entry]:
      yield instruction, times
      if instruction.opcode in ('while', 'call', 'conditional', 'async-start'):
        for called in instruction.called:
          yield from self.scheduled(called, times * self.trips(instruction))

  def trips(self, instruction: Instruction) -> int:
    """How often the computation that an instruction calls runs: once but for loops, 0 if unknown. A
    loop has its count, or a condition that compares a counter from 0 with its only constant."""
    match = re.search(r'"known_trip_count":\{"n":"(\d+)"', instruction.rest)
    if match:
      return int(match[1])
    if instruction.opcode != 'while':
      return 1
    (name,) = re.findall(r'condition=%([\w.\-]+)', instruction.rest)
    condition = self.computations[name]
    ends = [i.rest for i in condition if i.opcode == 'constant' and i.type[:3] in ('s32', 'u32')]
    below = any(i.opcode == 'compare' and 'direction=LT' in i.rest for i in condition)
    return int(ends[0].partition(')')[0]) if below and len(ends) == 1 else 0

  def endless(self) -> list[str]:
    return [i.name for lines in self.computations.values() for i in lines if not self.trips(i)]

  def choices(self) -> list[str]:
    """Names of the conditionals with cycles in several branches, which are all counted."""
    names = []
    for instruction in itertools.chain(*self.computations.values()):
      if instruction.opcode == 'conditional':
        costly = [name for name in instruction.called if self._costs(name)]
        if len(costly) > 1:
          names.append(instruction.name)
    return names

  def _costs(self, name: str) -> bool:
    """Whether a computation has cycles."""
    return any(self.cost(instruction) for instruction, _ in self.scheduled(name))

  def cost(self, instruction: Instruction) -> int:
    """The cycles of an instruction or of the kernel in it; 0 if they are not known."""
    return instruction.cycles or self.kernel_cycles.get(instruction.name, 0)

  def cycles(self) -> dict[str, int]:
    """The estimated cycles of each component of the model, {component: cycles}, most first."""
    out = collections.Counter()
    for instruction, times in self.scheduled():
      cycles = self.cost(instruction)
      if cycles:
        out[instruction.component] += times * cycles
    return dict(out.most_common())

  def moved(self, name: str, instruction: Instruction) -> tuple[str, int]:
    """The (kind, bytes) of a collective in the computation `name`: of the results on one device; of
    a reduce-scatter, also the fusions called `all-reduce-scatter`, of the operands."""
    kind, sizes = collective(instruction.opcode), arrays(instruction.type)
    if kind == 'send':
      return kind, sizes[0]
    if name.startswith('all-reduce-scatter'):
      return 'reduce-scatter', sum(sizes)
    if kind == 'reduce-scatter':
      types = {i.name: i.type for i in self.computations[name]}
      return kind, sum(sum(arrays(types.get(o, ''))) for o in instruction.operands)
    if instruction.opcode.endswith('-start') and kind != 'all-reduce':
      operands = len(instruction.operands)
      sizes = sizes[operands : 2 * operands]  # of operands, results, ...
    return kind, sum(sizes)

  def below(self, instruction: Instruction) -> Iterator[tuple[str, Instruction]]:
    """Yields (computation, instruction) for all that an instruction calls, nested too."""
    for name in instruction.called:
      for inner in self.computations.get(name, ()):
        yield name, inner
        if inner.opcode in ('fusion', 'call', 'async-start'):
          yield from self.below(inner)

  def uncounted(self) -> dict[str, int]:
    """{kind: how many} of the work of a step whose time the compiler does not know."""
    out = collections.Counter()
    for instruction, times in self.scheduled():
      if f'"estimated_cycles":"{UNKNOWN}"' in instruction.rest:
        out['operations of unknown cost'] += times
      elif not self.cost(instruction) and self.is_kernel(instruction):
        out['Pallas kernels'] += times
    return dict(out)

  def kernels(self) -> dict[str, int]:
    """{name: bytes of its operands and results in HBM} of the kernels of Pallas."""
    out = {}
    for lines in self.computations.values():
      types = {i.name: i.type for i in lines}
      for i in lines:
        if self.is_kernel(i):
          out[i.name] = sum(map(in_hbm, [i.type, *(types.get(name, '') for name in i.operands)]))
    return out

  def is_kernel(self, instruction: Instruction) -> bool:
    """Whether an instruction is a kernel of Pallas, or has one in it."""
    within = [instruction]
    if instruction.opcode == 'fusion':
      within += [inner for _, inner in self.below(instruction)]
    return any('custom_call_target="tpu_custom_call"' in one.rest for one in within)
