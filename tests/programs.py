"""Says what XLA makes of a training step on many chips, one text for each family.

    python tests/programs.py [--task A --task B] [--parts 1,4] [--write | --json]

The chips are a TPU v5e:4x4 if libtpu is installed, else 8 devices of the CPU (XLA_FLAGS says how
many there are). parts: optimizer.accumulation. --write: into tests/golden/programs, whose texts are
the programs of one version of libtpu, which they name. tests/test_programs.py asserts what must
hold for each version.
"""

import argparse
import collections
import importlib.util
import json
import re
from pathlib import Path

import jax
from layouts import TASKS, made

from bert_jax import models, sharding
from bert_jax.tools.preflight import chips, compilation, hlo, links

GOLDEN = Path(__file__).parent / 'golden' / 'programs'
BFLOAT16 = ['model.dtype=bfloat16', 'batch_size=192']  # no other array is as long as all rows
LONG = 'configs/pretrain.py:arch=modern'  # with rows long enough for splash
LONG_ROWS = ['data.seq_length=512', 'model.num_hidden_layers=2', 'model.num_attention_heads=2']
LONG_ROWS.append('optimizer.batch_warmup=0')
PRECISION = re.compile(r'operand_precision=\{(\w+)')
DTYPE = re.compile(r'\b(f32|bf16|f64)\[')
ARRAY = re.compile(r'(f32|bf16)\[\d+,\d+,\d+,\d+\]\{[\d,]+')
HOST = 'infeed', 'outfeed', 'send', 'recv'


class Unplaced(links.Network):
  """Devices whose links nobody knows."""

  def __init__(self, mesh):
    self.mesh, self.known = mesh, False


def golden_of(task: str, parts: int) -> Path:
  return GOLDEN / f'{task}-{parts}.txt'


def has_tpu() -> bool:
  return importlib.util.find_spec('libtpu') is not None


def described(task: str, parts: int) -> dict:
  """{'moved': {'KIND AXES': bytes}, 'sums': types of what is summed, ...} of a step, see `text`."""
  shape = (4, 4, 1) if has_tpu() else (2, 4, 1)
  devices = chips.devices_of('v5e:4x4') if has_tpu() else jax.devices()
  changes = [*BFLOAT16, f'optimizer.accumulation={parts}']
  changes += ['contrastive.chunks=1'] * (task == 'contrastive')  # which libtpu 0.0.42.1 survives
  changes += LONG_ROWS * (task == 'modern')
  program, config = made(LONG if task == 'modern' else task, shape, changes, devices)
  with jax.set_mesh(program.mesh), sharding.activation_rules(), compilation.quiet():
    lowered = program.lower()
    compiled = lowered.compile(sharding.compiler_options(program.mesh) or None)
  written = as_written(lowered.as_text('hlo', debug_info=True))
  text = compiled.as_text()
  made_of = hlo.Program(text)
  rows = links.rows(made_of, Unplaced(program.mesh))
  moved, numbers = collections.Counter(), collections.Counter()
  for row in rows:
    name = f'{row.kind} {row.axes}{" beside" if row.beside else ""}'
    moved[name] += row.bytes
    numbers[name] += row.number
  every = [i for lines in made_of.computations.values() for i in lines]
  summed = (i for i in every if hlo.collective(i.opcode) in ('all-reduce', 'reduce-scatter'))
  largest = config.batch_size // parts
  layout = f'mesh.data={shape[0]}, mesh.fsdp={shape[1]}, bfloat16'
  return {
    'by': f'{compilation.versions()}, {devices[0].device_kind}: {layout}',
    'task': task,
    'parts': parts,
    'parameters': 4 * models.count_parameters(program.state.params),
    'moved': dict(sorted(moved.items())),
    'numbers': dict(numbers),
    'sums': sorted({kind for i in summed for kind in DTYPE.findall(i.type)}),
    'products': products(written),
    'scatters': scatters(written),
    'kernels': kernels(every),
    'square': sorted({i.op_name or i.name for i in every if is_square(i.type, largest)}),
    'kept': text.partition('\n')[0].count('-alias)'),
    'state': len(jax.tree.leaves(program.state)),
    'host': sorted({i.opcode for i in every if i.opcode.removesuffix('-start') in HOST}),
  }


def as_written(text: str) -> list[tuple[hlo.Instruction, list[str]]]:
  """[(instruction, types of its operands)] of a program before it is compiled."""
  text = re.sub(r'^(ENTRY )?([\w.\-]+) \{$', r'\1\2 () {', text, flags=re.MULTILINE)
  out = []
  for lines in hlo.Program(text).computations.values():
    types = {i.name: i.type for i in lines}
    operands = lambda i: i.rest.partition(')')[0].split(', ')
    out += [(i, [types.get(name, '?') for name in operands(i)]) for i in lines]
  return out


def products(program: list[tuple[hlo.Instruction, list[str]]]) -> dict[str, int]:
  """{'COMPONENT TYPES PRECISION': how many} of the matrix products that a step is written with."""
  out = collections.Counter()
  for i, operands in program:
    if i.opcode in ('dot', 'convolution'):
      kinds = ' x '.join(kind.partition('[')[0] for kind in operands)
      precision = PRECISION.search(i.rest)
      out[f'{i.component}: {kinds} {precision[1] if precision else "default"}'] += 1
  return dict(sorted(out.items()))


def scatters(program: list[tuple[hlo.Instruction, list[str]]]) -> dict[str, int]:
  every = (i.component for i, _ in program if i.opcode == 'scatter')
  return dict(sorted(collections.Counter(every).items()))


def kernels(every: list[hlo.Instruction]) -> dict[str, int]:
  """{'NAME of TYPE': how many} of Pallas kernels, with the type of their first large array."""
  found = [i for i in every if i.opcode == 'custom-call' and 'tpu_custom_call' in i.rest]
  names = [f'{i.name.partition(".")[0]} of {ARRAY.search(i.rest)[0]}' for i in found]
  return dict(sorted(collections.Counter(names).items()))


def is_square(kind: str, rows: int) -> bool:
  """Has an array of this type two axes as long as all rows of a microbatch?"""
  shapes = re.findall(r'\[([\d,]+)\]', kind)
  lengths = {str(times * rows) for times in (1, 2, 3)}  # a row may have several texts
  return any(sum(n in lengths for n in shape.split(',')) > 1 for shape in shapes)


def text(facts: dict) -> str:
  """The facts for a person to read, and to compare by lines."""
  parts = facts['parts']
  lines = [facts['by'], f'{facts["task"]}, {parts} microbatch{"es" * (parts > 1)}', '']
  lines += [f'{facts["parameters"]:>12,} bytes of parameters in float32', '', 'communication']
  for name, size in facts['moved'].items():
    lines.append(f'{size:>12,} bytes {facts["numbers"][name]:>5} {name}')
  lines += ['', f'summed over chips in {", ".join(facts["sums"])}', '', 'matrix products']
  lines += [f'{number:>12} {name}' for name, number in facts['products'].items()]
  lines += ['', 'scatters', *(f'{number:>12} {name}' for name, number in facts['scatters'].items())]
  if facts['kernels']:
    lines += ['', 'kernels', *(f'{n:>12} {name}' for name, n in facts['kernels'].items())]
  lines += ['', 'arrays with two axes of all rows', *(f'  {name}' for name in facts['square'])]
  lines += ['', f'{facts["kept"]} of {facts["state"]} arrays of the state are written over']
  lines += [f'to or from the host: {", ".join(facts["host"]) or "nothing"}']
  return '\n'.join(lines) + '\n'


if __name__ == '__main__':
  parser = argparse.ArgumentParser()
  parser.add_argument('--task', action='append', help='may be repeated; default: all of them')
  parser.add_argument('--parts', default='1,4')
  parser.add_argument('--write', action='store_true')
  parser.add_argument('--json', action='store_true')
  args = parser.parse_args()
  for task in args.task or [*TASKS, 'modern']:
    for parts in map(int, args.parts.split(',')):
      facts = described(task, parts)
      print(json.dumps(facts) if args.json else text(facts), flush=True)
      if args.write:
        GOLDEN.mkdir(exist_ok=True)
        golden_of(task, parts).write_text(text(facts))
