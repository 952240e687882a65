"""The memory of a step: how much it needs, and that a CPU keeps it for the next step.

Else, where the C library is glibc, the system takes back the temporaries of each step and clears as
many pages for the next one: a fifth of a small model's step (tests/MEASURED.md).
"""

import ctypes
import os
from pathlib import Path

import jax

from bert_jax.errors import log

# Options of mallopt(3) in glibc's malloc.h.
TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8
MOST_CORES = 16  # on more, threads would wait for each other
ROOM = 8  # times a step's temporaries that a machine must have: a heap has holes
is_kept = False  # whether this process keeps what it frees
CONTAINER = '/sys/fs/cgroup/memory.max'  # its limit in bytes, or 'max'


def one_heap() -> None:
  """Has all threads that begin from now on share one heap, which alone can keep large arrays."""
  _set(ARENA_MAX, 1)


def keep(step: jax.stages.Compiled, mesh: jax.sharding.Mesh) -> None:
  """Has this process keep what it frees, if a CPU computes the step and there is room; warns if
  there is not enough for one step."""
  global is_kept
  sizes = step.memory_analysis()
  if sizes is None or mesh.devices.flat[0].platform != 'cpu':
    return
  needed, there_is = sizes.temp_size_in_bytes * mesh.local_mesh.size, _there_is()
  if needed > there_is:
    log.warning(
      f'the temporaries of a step are {needed / 2**30:.1f} GiB, and this machine has '
      f'{there_is / 2**30:.1f}: the system may kill the run; lower batch_size, or raise '
      'optimizer.accumulation, which cuts a step into parts'
    )
  has_room = ROOM * needed <= there_is
  # After a run that had room, the heap of this process would have holes that large arrays do not
  # fit in. If nothing was set, the C library adapts its own thresholds, and is left alone.
  if has_room or is_kept:
    _set(TRIM_THRESHOLD, -1 if has_room else 1 << 17)
    _set(MMAP_MAX, 0 if has_room else 1 << 16)
  is_kept = has_room


def _there_is():
  """The bytes of memory of the machine, or of the container."""
  size = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
  try:
    return min(size, int(Path(CONTAINER).read_text()))
  except (OSError, ValueError):
    return size


def _set(option, value):
  mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
  if mallopt and (os.cpu_count() or 1) <= MOST_CORES:
    mallopt(option, value)


def described(step: jax.stages.Compiled) -> str:
  """How much memory a compiled step needs."""
  sizes = step.memory_analysis()
  if sizes is None:
    return 'memory unknown'
  inputs, scratch = sizes.argument_size_in_bytes / 2**20, sizes.temp_size_in_bytes / 2**20
  return f'{inputs:,.0f} MiB of state and batch, {scratch:,.0f} MiB of temporaries per device'
