"""Facts about TPUs from libtpu's compiler, which needs no TPU, and from the maker's publications.

The HBM of a chip follows from the programs that the compiler refuses, its speed from the cycles
estimated for a large matrix product. The speeds of links, memory and clock are only published.
"""

import importlib.util
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.errors import InputError, first_line
from bert_jax.run import speed
from bert_jax.tools.preflight import compilation, hlo, schedules

LARGE = 8192  # rows and columns of the matrices whose product calibrates the cycles


TOPOLOGY = re.compile(r'(v2|v3|v4|v5e|v5p|v6e|tpu7x):\d+x\d+(x\d+)?')
KNOWN = 'CHIP:AxB (v5e:4x4, v6e:8x8, v2 and v3 too) or CHIP:AxBxC (v5p:2x2x4, v4 and tpu7x too)'


class Published(NamedTuple):
  """The published facts of a kind of chip; None: not known. A side of a slice is closed to a ring
  if it is a multiple of `ring` chips, and so are all others where there are three."""

  interconnect: float | None = None  # bytes a second of all links of a chip, both directions added
  links: int = 0  # to its neighbours
  network: float | None = None  # bytes a second to other slices
  ring: int = 0
  memory: float | None = None  # bytes a second between a device and its HBM
  clock: float | None = None  # cycles a second: its peak over what its matrix units do in a cycle


# {a regex of a part of jax's device_kind, as in speed.PEAK_FLOPS: Published}, read in 2026 in
# cloud.google.com/tpu/docs/v5e, v5p, v6e and tpu7x; those of v2 to v4 give no bandwidth of the
# links. v5e and v6e: the network of a pod of 256 chips, divided.
PUBLISHED = {
  'TPU v5 lite|TPU v5e': Published(400e9, 4, 6.4e12 / 8 / 256, 16, 819e9, 1.5e9),
  'TPU v5p?': Published(1200e9, 6, 50e9 / 8, 4, 2765e9, 1.75e9),
  'TPU v6 lite|TPU v6e': Published(800e9, 4, 25.6e12 / 8 / 256, 16, 1640e9, 1.75e9),
  'TPU7x?': Published(1200e9, 6, 100e9 / 8, 4, 3690e9, 2.2e9),
}


def published_of(device_kind: str) -> Published:
  """The Published of a kind of device; all unknown if it is not in the table."""
  known = (x for kind, x in PUBLISHED.items() if re.search(rf'(?:{kind})\b', device_kind))
  return next(known, Published())


def devices_of(topology: str, slices: int = 1) -> list[jax.Device]:
  """The devices of a topology, CHIP:AxB; needs libtpu, and no TPU."""
  if not TOPOLOGY.fullmatch(topology):
    raise InputError(f'--topology {topology!r} does not exist; use {KNOWN}.')
  if importlib.util.find_spec('libtpu') is None:
    raise InputError("the TPU compiler is missing; pip install 'jax[tpu]' (no TPU is needed).")
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')  # two processes may compile at once
  schedules.ask()
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
    raise InputError(f'--topology {topology} does not exist ({reason}); use {KNOWN}.') from None


class Chip:
  """A kind of chip: its HBM in bytes, its peak in FLOPs a second, and the seconds of a cycle if a
  large product ran at that peak."""

  def __init__(self, device: jax.Device):
    one = jax.sharding.SingleDeviceSharding(device)

    def compiled(what: str, function: Callable, size: int, dtype: Any) -> compilation.Compiled:
      shape = jax.ShapeDtypeStruct((size, size), dtype, sharding=one)
      return compilation.compiled(jax.jit(function).lower(shape), [device], what)

    program = hlo.Program(compiled('a product for', lambda x: x @ x, LARGE, jnp.bfloat16).text)
    self.hbm = compiled('1 TB for', lambda x: x + 1, 2**19, jnp.float32).limit
    self.published = published_of(device.device_kind)
    self.peak = speed.peak_flops_of(device.device_kind)
    self.seconds_per_cycle = 2 * LARGE**3 / self.peak / sum(program.cycles().values())

  def as_estimated(self, kernel: compilation.Kernel) -> int:
    """The cycles of a kernel in those of the estimates, 0 if they are not known: of its schedule or
    of what it moves, whichever takes longer."""
    if not self.published.clock or not self.published.memory or not kernel.cycles:
      return 0
    moving = kernel.bytes / self.published.memory
    return round(max(kernel.cycles / self.published.clock, moving) / self.seconds_per_cycle)
