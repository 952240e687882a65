"""Measures the memory that is free on the machine, or left to its container or job."""

import contextlib
import sys
from pathlib import Path

PROC = Path('/proc')
CGROUPS = {  # {cgroup controllers: (folder, file of the limit, key of the use in memory.stat)}
  'memory': ('/sys/fs/cgroup/memory', 'memory.limit_in_bytes', 'total_rss'),  # version 1
  '': ('/sys/fs/cgroup', 'memory.max', 'anon'),  # version 2
}


def free_memory():
  """Bytes of memory that this process may take; a huge number where the system does not say."""
  free = [sys.maxsize]
  with contextlib.suppress(OSError, KeyError):
    free.append(int(_table(PROC / 'meminfo')['MemAvailable:']) * 1024)
  with contextlib.suppress(OSError):
    for line in (PROC / 'self' / 'cgroup').read_text().splitlines():
      _, controllers, path = line.split(':', 2)
      if controllers in CGROUPS:
        free += _limits(*CGROUPS[controllers], path)
  return max(0, min(free))


def _limits(root, limit, taken, path):
  """Yields the bytes left in a cgroup and in each of its parents that has a limit."""
  folder = Path(root + path)
  for group in (folder, *folder.parents):
    with contextlib.suppress(OSError, KeyError, ValueError):  # 'max': none
      yield int((group / limit).read_text()) - int(_table(group / 'memory.stat')[taken])


def _table(path):
  """{name: value} as text, from the lines of a file."""
  return dict(line.split()[:2] for line in path.read_text().splitlines())
