"""Keeps the memory of a step on a CPU for the next step."""

import ctypes
import os

# Options of mallopt(3) in glibc's malloc.h.
TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8
MOST = 16  # cores: on more, threads would wait for each other


def keep() -> None:
  """Has this process keep what it frees, in one heap for all threads, where its C library is glibc.
  Else the system takes back the temporaries of each step (hundreds of MiB) and clears as many pages
  for the next one: a fifth of a small model's step (tests/MEASURED.md). It counts for threads that
  begin later."""
  mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
  if mallopt and (os.cpu_count() or 1) <= MOST:
    for option, value in ((TRIM_THRESHOLD, -1), (MMAP_MAX, 0), (ARENA_MAX, 1)):
      mallopt(option, value)
