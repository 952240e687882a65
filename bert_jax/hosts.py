"""Several processes, often on several hosts, that are one run: joining, waiting, agreeing, ending.

Every process runs the same program on the same data, and the run's arrays span the devices of all
of them. Only the first process writes logs and answers; all write the checkpoints together, so the
workdir must be a folder that all of them see. In a single process all of this does nothing.
"""

import argparse
import contextlib
import json
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Iterator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.errors import InputError, farewell, first_line, log
from bert_jax.files import Path

JOIN_SECONDS = 300  # how long processes wait for each other at the start
LOST_SECONDS = 60  # a process that has been silent for so long counts as lost
LEAVE_SECONDS = 5  # how long the first process waits for the messages of the others when it fails
# How errors between processes begin.
STATUS = re.compile('(UNKNOWN|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED): ')
AGAIN = 'is gone or unreachable; start all again, and the run goes on from its newest checkpoint.'
ADDRESS, COUNT, INDEX = 'JAX_COORDINATOR_ADDRESS', 'JAX_NUM_PROCESSES', 'JAX_PROCESS_ID'


class Alone(InputError):
  """The other processes of the run did not join, or see other files; a restart may help."""

  code = 3


def add_argument(parser: argparse.ArgumentParser) -> None:
  """Adds the option --distributed, whose value is the argument of `join`."""
  parser.add_argument(
    '--distributed',
    nargs='?',
    const=JOIN_SECONDS,
    type=int,
    metavar='SECONDS',
    help=f'one of several processes (TPU pod, SLURM, Open MPI, Kubernetes; {ADDRESS} needs no '
    f'flag); SECONDS: to wait for the others ({JOIN_SECONDS})',
  )


def join(seconds: int | None = None) -> None:
  """Joins the other processes of the run, if --distributed (`seconds`), srun or GKE says that there
  are any, before JAX's devices are used. Raises Alone (exit code 3) if they do not come in time."""
  is_pod = ',' in os.environ.get('TPU_WORKER_HOSTNAMES', '')
  is_step = os.environ.get('SLURM_STEP_NUM_TASKS', '1') != '1'
  if not (seconds or is_pod or is_step or ADDRESS in os.environ):
    return
  seconds = seconds or JOIN_SECONDS
  address, count, index = _from_environment() if ADDRESS in os.environ else (None, None, None)
  advice = (
    f'start all of them within {seconds} seconds, each with {ADDRESS}=HOST:PORT (of process 0), '
    f'{COUNT} and {INDEX}, or by srun or on a TPU pod with --distributed.'
  )

  def end():  # a little later JAX's client would abort the process
    os.write(2, f'error: the other processes of this run did not come; {advice}\n'.encode())
    os._exit(Alone.code)

  handler, timer = signal.getsignal(signal.SIGTERM), threading.Timer(seconds, end)
  timer.daemon = True
  timer.start()
  try:
    jax.distributed.initialize(
      address,
      count,
      index,
      initialization_timeout=seconds + 30,
      heartbeat_timeout_seconds=LOST_SECONDS,
    )
  except (ValueError, RuntimeError) as error:
    kind = Alone if STATUS.match(str(error)) else InputError
    raise kind(f'the processes did not come together ({first_line(error)}); {advice}') from None
  finally:
    timer.cancel()
  if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGTERM, handler)  # JAX's handler would only note the signal
  if not first():
    log.setLevel(logging.WARNING)


def _from_environment() -> tuple[str, int, int]:
  """(address of the coordinator, number of processes, which one this is)."""
  try:
    return os.environ[ADDRESS], int(os.environ[COUNT]), int(os.environ[INDEX])
  except (KeyError, ValueError) as error:
    raise InputError(
      f'{ADDRESS} is set, and {COUNT} or {INDEX} is not a number ({error}); the index goes from 0 '
      'to the number of processes - 1.'
    ) from None


def who() -> str:
  return f'process {jax.process_index()} of {jax.process_count()}'


def first() -> bool:
  """Is this the process that writes logs and answers?"""
  return jax.process_index() == 0


def wait(name: str) -> None:
  """Waits until every process has called it with the same name."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


def total(number: int) -> int:
  """The sum of a number over the processes; all of them must call it."""
  return int(sum(from_all(number)))


def agree(fingerprint: str) -> None:
  """InputError if the processes have rows of different fingerprints; all of them must call it."""
  numbers = from_all(zlib.crc32(fingerprint.encode()) >> 1)
  for process, number in enumerate(numbers):
    if number != numbers[0]:
      raise InputError(
        f'process {process} reads other rows than process 0; use data that all processes see and '
        'can read.'
      )


def from_all(number: Any) -> list[Any]:
  """The number that each process gives; all of them must call it."""
  if jax.process_count() == 1:
    return [number]
  kind = np.float32 if isinstance(number, float) else np.int64
  return multihost_utils.process_allgather(np.asarray(number, kind)).tolist()


def from_first(value: Any) -> Any:
  """The value, as JSON has it, that the first process gives; all of them must call it."""
  if jax.process_count() == 1:
    return value
  text = np.frombuffer(json.dumps(value if first() else None).encode(), np.uint8)
  size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
  if not first():
    text = np.zeros(size, np.uint8)
  return json.loads(bytes(multihost_utils.broadcast_one_to_all(text)))


def exists(path: Path) -> bool:
  """Does a path exist? All processes must call this. Alone (a restart may help, since a network
  file system may be a minute behind) if only some of them see it."""
  sees = from_all(path.exists())
  if len(set(sees)) > 1:
    raise Alone(
      f'process {sees.index(0)} does not see {path}, and process {sees.index(1)} does; use a '
      'folder that all processes see.'
    )
  return bool(sees[0])


class Vote:
  """Finds the highest number of all processes without waiting: cast in one step, counted in the
  next. Votes travel over the devices, so every process sees the same outcome at the same step."""

  def __init__(self, mesh: jax.sharding.Mesh):
    self.sharding = NamedSharding(mesh, P(mesh.axis_names))  # one number for each device
    self.shape = (mesh.size,)
    self.highest = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, P()))
    self.pending: int | jax.Array = 0

  def cast(self, number: int) -> int:
    """Casts this step's vote; returns the outcome of the last step (alone: of this step)."""
    if jax.process_count() == 1:
      return number
    vote = np.full(1, number, np.int32)
    votes = jax.make_array_from_callback(self.shape, self.sharding, lambda index: vote)
    before, self.pending = self.pending, self.highest(votes)
    return int(jax.device_get(before))


@contextlib.contextmanager
def together() -> Iterator[None]:
  """A context that ends a failing process of several with one sentence; the others end soon after.
  JAX's shutdown would wait minutes for processes that may never come."""
  try:
    yield
  except (InputError, OSError, KeyboardInterrupt) as error:
    # An interruption with a message is one that all processes agreed on, at this step.
    agreed = isinstance(error, KeyboardInterrupt) and str(error)
    if not jax.distributed.is_initialized() or agreed:
      raise
    sentence, code = farewell(error)
    _leave(sentence, code)
  except Exception as error:
    if not jax.distributed.is_initialized():
      raise
    if not is_lost_connection(error):
      traceback.print_exc()
      _leave('error: this process of several has failed, as above', 1)
    _leave(f'error: {who()} stops: {first_line(error)}; another one {AGAIN}', Alone.code)


def is_lost_connection(error: Exception) -> bool:
  """Does an error say that the connection to another process is lost? Its text tells: types vary
  with the version of JAX."""
  return jax.process_count() > 1 and bool(STATUS.match(str(error)))


def _leave(message: str, code: int) -> NoReturn:
  print(message, file=sys.stderr)
  sys.stdout.flush()
  if first():
    time.sleep(LEAVE_SECONDS)  # the others cannot speak any more once the coordinator is gone
  os._exit(code)
