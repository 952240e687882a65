"""Files that are there whole or not at all."""

from pathlib import Path


def write_whole(path, data):
  """Writes a text or bytes so that a kill leaves the old file or the whole new one."""
  path = Path(path)
  scratch = path.with_name(f'.{path.name}.tmp')
  scratch.write_bytes(data.encode() if isinstance(data, str) else data)
  scratch.replace(path)
