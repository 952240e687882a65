"""A run's metrics as the event files that TensorBoard reads.

They are written at once, by the thread that trains: tensorboardX's SummaryWriter hands them to a
thread of its own, for which a run waits for ever once that thread has failed at a full disk.
"""

import time
from pathlib import Path


class TensorBoard:
  """Writes event files into a folder. start: TensorBoard hides what earlier files of the folder
  have of the steps after this one, since a run that continues from it writes them again."""

  def __init__(self, folder, start):
    from tensorboardX import event_file_writer, summary  # here: they are slow to import
    from tensorboardX.proto import event_pb2

    self.scalar, self.event = summary.scalar, event_pb2.Event
    # Files that begin in the same second have names of their own.
    self.file = event_file_writer.EventsWriter(str(Path(folder) / 'events'), f'.{start}')
    begins = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._write(step=start + 1, session_log=begins)

  def _write(self, **content):
    self.file.write_event(self.event(wall_time=time.time(), **content))

  def write(self, step, split, metrics):
    """Raises OSError where it cannot be written."""
    for name, value in metrics.items():
      self._write(step=step, summary=self.scalar(f'{split}/{name}', value))
    self.file.flush()

  def close(self):
    self.file.close()
