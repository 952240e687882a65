"""Facts about TPUs from libtpu's compiler, which needs no TPU, and from the maker's publications.

The HBM of a chip follows from the programs that the compiler refuses, its speed from the cycles
estimated for a large matrix product. The speed of the links is only published.
"""

import importlib.util
import math
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.errors import InputError, first_line
from bert_jax.run import speed
from bert_jax.tools.preflight import compilation, hlo

LARGE = 8192  # rows and columns of the matrices whose product calibrates the cycles


def _sizes(shapes: str) -> dict[int, str]:
  """{number of chips: shape of the slice} as offered in the cloud."""
  return {math.prod(map(int, shape.split('x'))): shape for shape in shapes.split()}


LITE = _sizes('1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16')
FLAT = LITE | _sizes('16x32 32x32')
CUBE = _sizes('2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16 16x16x24')
KNOWN = (
  f'v5e:{" ".join(LITE.values())}, v6e: the same, v2 and v3: also 16x32 32x32, '
  f'v5p:{" ".join(CUBE.values())}, v4: the same, tpu7x:AxBxC; or the name of the cloud, such as '
  'v5litepod-16, v6e-8 or v5p-16'
)
# {the cloud's accelerator type TYPE-N: (name of the chip, what N counts for each chip, shapes)}
ACCELERATORS = {
  'v2': ('v2', 2, FLAT),  # for v2 to v5p, N counts cores
  'v3': ('v3', 2, FLAT),
  'v4': ('v4', 2, CUBE),
  'v5p': ('v5p', 2, CUBE),
  'v5litepod': ('v5e', 1, LITE),
  'v5e': ('v5e', 1, LITE),
  'v6e': ('v6e', 1, LITE),
}
CHIP = '|'.join({chip: '' for chip, *_ in ACCELERATORS.values()} | {'tpu7x': ''})


class Published(NamedTuple):
  """The published facts of a kind of chip; None: not known. A side of a slice is closed to a ring
  if it is a multiple of `ring` chips, and so are all others where there are three."""

  flops_per_cycle: int | None  # in bfloat16, of a device (v2, v3 and TPU7x have two on a chip)
  interconnect: float | None = None  # bytes a second of all links of a chip, both directions added
  links: int = 0  # to its neighbours
  network: float | None = None  # bytes a second to other slices
  ring: int = 0
  source: str = ''


UNIT = 2 * 128**2  # FLOPs of a matrix unit of 128 x 128 in a cycle
DOCS = 'cloud.google.com/tpu/docs'
# {a regex of a part of jax's device_kind, as in speed.PEAK_FLOPS: Published}, read in 2026. The
# pages of v2 to v4 give no bandwidth of the links, TPU7x's page no size of its matrix units.
# v5e and v6e: the network of a pod of 256 chips, divided. v6e: an older page counts 4 units
# of 256 x 256, a newer one 2, with which the compiler's cycles would be faster than the chip is.
PUBLISHED = {
  'TPU v2': Published(UNIT),
  'TPU v3': Published(2 * UNIT),
  'TPU v4 lite': Published(4 * UNIT),
  'TPU v4': Published(8 * UNIT),
  'TPU v5 lite|TPU v5e': Published(4 * UNIT, 400e9, 4, 6.4e12 / 8 / 256, 16, f'{DOCS}/v5e'),
  'TPU v5p?': Published(8 * UNIT, 1200e9, 6, 50e9 / 8, 4, f'{DOCS}/v5p'),
  'TPU v6 lite|TPU v6e': Published(16 * UNIT, 800e9, 4, 25.6e12 / 8 / 256, 16, f'{DOCS}/v6e'),
  'TPU7x?': Published(None, 1200e9, 6, 100e9 / 8, 4, f'{DOCS}/tpu7x'),
}


def published_of(device_kind: str) -> Published:
  """The Published of a kind of device; all unknown if it is not in the table."""
  known = (x for kind, x in PUBLISHED.items() if re.search(rf'(?:{kind})\b', device_kind))
  return next(known, Published(None))


def topology_of(name: str) -> str:
  """Converts an accelerator type of the cloud, v5litepod-16 or v5e-16 (SkyPilot writes
  tpu-v5litepod-16), to CHIP:AxB, which stays."""
  name = name.lower().removeprefix('tpu-')
  chip, _, shape = name.partition(':')
  if shape and chip in ('v5e', 'v6e') and shape not in LITE.values():
    raise InputError(
      f'--topology {name} is not offered; there are {chip}:{" ".join(LITE.values())}.'
    )
  kind, _, number = name.rpartition('-')
  if kind not in ACCELERATORS or not number.isdigit():
    if not re.fullmatch(rf'({CHIP}):\d+x\d+(x\d+)?', name):
      raise InputError(f'--topology {name!r} does not exist; use {KNOWN}.')
    return name
  chip, each, shapes = ACCELERATORS[kind]
  if int(number) % each or int(number) // each not in shapes:
    known = ', '.join(f'{kind}-{n * each}' for n in shapes)
    raise InputError(f'--topology {name} is not offered; there are {known}.')
  return f'{chip}:{shapes[int(number) // each]}'


def counted(topology: str, slices: int = 1) -> tuple[str, int, int, int]:
  """(jax's name of a device, how many devices, chips and hosts) of so many slices of a topology."""
  chip, _, shape = topology_of(topology).partition(':')
  kind, number = f'TPU {chip}'.replace(' tpu', ''), math.prod(map(int, shape.split('x')))
  each, most = 2 if chip in ('v2', 'v3', 'tpu7x') else 1, 8 if chip in ('v5e', 'v6e') else 4
  hosts = 1 if number <= most else number // 4
  return kind, slices * number * each, slices * number, slices * hosts


def devices_of(topology: str, slices: int = 1) -> list[jax.Device]:
  """The devices of a topology, CHIP:AxB or a name of the cloud; needs libtpu, and no TPU."""
  name, topology = topology, topology_of(topology)
  if importlib.util.find_spec('libtpu') is None:
    raise InputError("the TPU compiler is missing; pip install 'jax[tpu]' (no TPU is needed).")
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')  # two processes may compile at once
  from jax.experimental import topologies

  options: dict[str, Any] = {'num_slices': slices} if slices > 1 else {}
  if re.fullmatch(r'\w+:1x1(x1)?', topology):
    options['chips_per_host_bounds'] = [1, 1, 1]
  if topology.startswith('v4:'):  # its two cores are one device, as JAX has them on such a machine
    options['chip_config_name'] = 'megacore'
  try:
    with compilation.quiet():
      return list(topologies.get_topology_desc(topology, 'tpu', **options).devices)
  except Exception as error:
    reason = first_line(error).removeprefix('INVALID_ARGUMENT: ')
    raise InputError(f'--topology {name} does not exist ({reason}); use {KNOWN}.') from None


class Chip:
  """A kind of chip: its HBM in bytes, the FLOPs of a cycle of a large product, and the seconds of a
  cycle if that ran at the chip's peak, and by the published clock (data_sheet_seconds)."""

  def __init__(self, device: jax.Device):
    one = jax.sharding.SingleDeviceSharding(device)

    def compiled(what: str, function: Callable, size: int, dtype: Any) -> compilation.Compiled:
      shape = jax.ShapeDtypeStruct((size, size), dtype, sharding=one)
      return compilation.compiled(jax.jit(function).lower(shape), [device], what)

    program = hlo.Program(compiled('a product for', lambda x: x @ x, LARGE, jnp.bfloat16).text)
    self.hbm = compiled('1 TB for', lambda x: x + 1, 2**19, jnp.float32).limit
    self.published = published_of(device.device_kind)
    self.peak = speed.peak_flops_of(device.device_kind)
    self.flops_per_cycle = 2 * LARGE**3 / sum(program.cycles().values())
    self.seconds_per_cycle = self.flops_per_cycle / self.peak
    known = self.published.flops_per_cycle
    self.data_sheet_seconds = known / self.peak if known else None
