"""How much memory is free: that of the machine, or what a container or job may still take of it."""

import contextlib
import sys
from pathlib import Path

PROC = Path('/proc')
CGROUPS = {  # {controllers of a cgroup: (folder, its limit, what it has taken, in memory.stat)}
  'memory': ('/sys/fs/cgroup/memory', 'memory.limit_in_bytes', 'total_rss'),  # of version 1
  '': ('/sys/fs/cgroup', 'memory.max', 'anon'),  # of version 2
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
  """Yields what is left in a cgroup and in those that it is part of, as far as they have limits."""
  folder = Path(root + path)
  for group in (folder, *folder.parents):
    with contextlib.suppress(OSError, KeyError, ValueError):  # 'max': none
      yield int((group / limit).read_text()) - int(_table(group / 'memory.stat')[taken])


def _table(path):
  """{name: number} of the lines of a file, as text."""
  return dict(line.split()[:2] for line in path.read_text().splitlines())
