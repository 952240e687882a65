"""What libtpu's compiler knows of TPUs, without a TPU (pip install libtpu).

How much HBM a chip has follows from the programs that the compiler refuses, its speed from the
cycles estimated for a large matrix product.
"""

import contextlib
import importlib.util
import os
import re
import sys
import tempfile

import jax
import jax.numpy as jnp

from bert_jax import speed
from bert_jax.errors import InputError, first_line
from bert_jax.tools import compiled_program

KNOWN = (
  'v5e:1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16, v6e: the same, v5p:2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 '
  '... 16x16x24, v2 and v3:2x2 ... 32x32, tpu7x:2x2x1 and larger'
)
LARGE = 8192  # rows and columns of the matrices whose product calibrates the cycles


def devices_of(topology, slices=1):
  """The devices of a topology, CHIP:AxB; needs libtpu, and no TPU."""
  if importlib.util.find_spec('libtpu') is None:
    raise InputError('the TPU compiler is missing; pip install libtpu (no TPU is needed).')
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')  # two may compile at once
  from jax.experimental import topologies

  if not re.fullmatch(r'\w+:\d+x\d+(x\d+)?', topology):
    raise InputError(f'--topology {topology!r} does not exist; use {KNOWN}.')
  options = {'num_slices': slices} if slices > 1 else {}
  if re.fullmatch(r'\w+:1x1(x1)?', topology):
    options['chips_per_host_bounds'] = [1, 1, 1]
  try:
    with quiet():
      return list(topologies.get_topology_desc(topology, 'tpu', **options).devices)
  except Exception as error:
    reason = first_line(error)
    raise InputError(f'--topology {topology} does not exist ({reason}); use {KNOWN}.') from None


@contextlib.contextmanager
def quiet():
  """Keeps stderr off the terminal; yields a function that returns what was written to it."""
  with tempfile.TemporaryFile('w+b') as file:
    sys.stderr.flush()
    stderr = os.dup(2)
    os.dup2(file.fileno(), 2)

    def written():
      file.seek(0)
      return file.read().decode(errors='replace')

    try:
      yield written
    finally:
      os.dup2(stderr, 2)
      os.close(stderr)


class Chip:
  """A kind of chip: its HBM in bytes, the seconds of a cycle and its bfloat16 FLOPs."""

  def __init__(self, device):
    one = jax.sharding.SingleDeviceSharding(device)

    def compiled(function, size, dtype):
      shape = jax.ShapeDtypeStruct((size, size), dtype, sharding=one)
      return jax.jit(function).lower(shape).compile()

    with quiet():
      program = compiled_program.Program(compiled(lambda x: x @ x, LARGE, jnp.bfloat16).as_text())
      try:
        compiled(lambda x: x + 1, 2**19, jnp.float32)  # 1 TB
        self.hbm = 0
      except Exception as error:
        self.hbm = too_large(error)[1]
    self.flops_per_cycle = 2 * LARGE**3 / sum(program.cycles().values())
    self.seconds_per_cycle = self.flops_per_cycle / speed.peak_flops_of(device.device_kind)


def too_large(error):
  """(bytes used, bytes of HBM) from the error of a program that does not fit; else InputError."""
  size = r'([\d.]+[BKMGT])'
  patterns = rf'Used {size}\w* of {size}\w* hbm', rf'\({size}\w*\) exceeds available HBM \({size}'
  match = next((m for p in patterns if (m := re.search(p, str(error)))), None)
  if not match:
    reason = first_line(error)
    raise InputError(f'the compiler takes no such program ({reason}); change the config.')
  return tuple(int(float(text[:-1]) * 1024 ** 'BKMGT'.index(text[-1])) for text in match.groups())
