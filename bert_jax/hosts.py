"""Several processes that are one run: how they find each other, and what they must agree on.

Every process runs the same program on the same data, and its arrays span the devices of all of
them. The first one alone writes logs and answers; checkpoints are written by all together, so the
workdir is a folder that all of them see. With one process everything here does nothing.
"""

import contextlib
import ctypes
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.errors import InputError, farewell, first_line

log = logging.getLogger('bert_jax')

JOIN_SECONDS = 300  # how long processes wait for each other at the start
LOST_SECONDS = 60  # a process that has been silent for so long is gone
LEAVE_SECONDS = 5
VISIBLE_SECONDS = 60  # how long it may take until all processes see what one has written
STATUS = re.compile(
  '(UNKNOWN|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED): '
)  # what errors between processes begin with
AGAIN = (
  'is gone or unreachable; start all of them again, and the run goes on from its newest checkpoint.'
)
ADDRESS, COUNT, INDEX = 'JAX_COORDINATOR_ADDRESS', 'JAX_NUM_PROCESSES', 'JAX_PROCESS_ID'


class Alone(InputError):
  """The other processes did not come; they may at the next start."""

  code = 3


def add_argument(parser):
  parser.add_argument(
    '--distributed', nargs='?', const=JOIN_SECONDS, type=int, metavar='SECONDS',
    help='this is one of several processes (TPU pod, SLURM, Open MPI, Kubernetes, or '
    f'{ADDRESS}, {COUNT} and {INDEX} of the environment, which need no flag); '
    f'SECONDS: how long to wait for the others, {JOIN_SECONDS} unless given',
  )  # fmt: skip


def join(seconds=None):
  """Makes this process one of several if it was asked to be, or if srun or GKE started it so.

  It must come before anything else is asked of JAX. seconds: --distributed. Alone (exit code 3) if
  the others do not come in time.
  """
  pod = ',' in os.environ.get('TPU_WORKER_HOSTNAMES', '')
  if not (seconds or _launched() or pod):
    return
  seconds = seconds or JOIN_SECONDS
  who = {}
  if ADDRESS in os.environ:
    who = _from_environment()
    if who['process_id'] > 0:
      _reach(who['coordinator_address'], seconds)
  advice = (
    f'start all of them within {seconds} seconds, each with {ADDRESS}=HOST:PORT (of process 0), '
    f'{COUNT} and {INDEX}, or by srun or on a TPU pod with --distributed.'
  )

  def too_late():  # after a while more the client would abort the process
    print(f'error: the other processes of this run did not come; {advice}', file=sys.stderr)
    sys.stderr.flush()
    os._exit(Alone.code)

  waiting = threading.Timer(seconds, too_late)
  waiting.daemon = True
  waiting.start()
  try:
    jax.distributed.initialize(
      **who, initialization_timeout=seconds + 30, heartbeat_timeout_seconds=LOST_SECONDS
    )
  except (ValueError, RuntimeError) as error:
    kind = Alone if STATUS.match(str(error)) else InputError
    raise kind(
      f'the processes of this run did not come together ({first_line(error)}); {advice}'
    ) from None
  finally:
    waiting.cancel()
  if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # JAX's own handler only takes note of it
  _speak_when_aborted()
  if not first():
    log.setLevel(logging.WARNING)


def _speak_when_aborted():
  """A process that waits on its devices for a lost one is aborted by JAX's client, with a trace of
  its C++; this puts a sentence behind that."""
  global _aborted  # C keeps no reference
  who = f'process {jax.process_index()} of {jax.process_count()}'

  def aborted(_):
    said = f'error: {who} was aborted for the reason above: mostly, another one {AGAIN}\n'
    os.write(2, said.encode())
    os._exit(Alone.code)

  _aborted = ctypes.CFUNCTYPE(None, ctypes.c_int)(aborted)
  ctypes.CDLL(None).signal(signal.SIGABRT, _aborted)


def _launched():
  return ADDRESS in os.environ or os.environ.get('SLURM_STEP_NUM_TASKS', '1') != '1'


def refuse_several(command):
  """InputError if a command that runs in one process was started as one of several."""
  if _launched():
    raise InputError(
      f'{command} runs in one process, and this is one of several (by {ADDRESS} or srun); start it '
      'alone. bert_jax.train and bert_jax.evaluate run in several.'
    )


def _from_environment():
  try:
    count, index = int(os.environ[COUNT]), int(os.environ[INDEX])
  except (KeyError, ValueError):
    raise InputError(
      f'{ADDRESS} is set, so {COUNT} (how many processes) and {INDEX} (which one this is, from 0) '
      'must be numbers too.'
    ) from None
  address = os.environ[ADDRESS]
  if not re.fullmatch(r'.+:\d+', address) or not 0 <= index < count:
    raise InputError(
      f'{ADDRESS}={address} {COUNT}={count} {INDEX}={index} does not say which process this is; '
      'the address is HOST:PORT and the index goes from 0 to the number of processes - 1.'
    )
  return dict(coordinator_address=address, num_processes=count, process_id=index)


def _reach(address, seconds):
  """Waits until somebody listens at HOST:PORT; the distributed client would abort the process."""
  host, _, port = address.rpartition(':')
  end = time.monotonic() + seconds
  while True:
    try:
      return socket.create_connection((host.strip('[]'), int(port)), timeout=5).close()
    except OSError as error:
      reason = error.strerror or str(error)
    if time.monotonic() > end:
      raise Alone(
        f'the coordinator {address} cannot be reached within {seconds} seconds ({reason}); start '
        f'process 0 there, open its port, or mend {ADDRESS}.'
      )
    time.sleep(0.5)


def check():
  """InputError on a pod whose processes do not know of each other."""
  if jax.process_count() > 1 and not jax.distributed.is_initialized():
    raise InputError(
      f'this is one of {jax.process_count()} processes; start each with --distributed (in a '
      'notebook: jax.distributed.initialize() first).'
    )


def first():
  """Is this the process that writes?"""
  return jax.process_index() == 0


def wait(name):
  """Returns when every process has come to the place called `name`."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


def total(number):
  """The sum of a number over the processes; all must ask."""
  return int(sum(_of_each(number)))


def _of_each(number):
  """A number of every process, by their index."""
  if jax.process_count() == 1:
    return [number]
  return multihost_utils.process_allgather(np.asarray(number, np.int64)).tolist()


def exists(path):
  """Is something at a path? All must ask, and InputError if only some of them see it."""
  sees = _of_each(path.exists())
  if any(sees) and not all(sees):  # a network file system may be a minute behind
    end = time.monotonic() + VISIBLE_SECONDS
    while not path.exists() and time.monotonic() < end:
      time.sleep(1)
    sees = _of_each(path.exists())
  if any(sees) and not all(sees):
    raise InputError(
      f'process {sees.index(0)} does not see {path}, and process {sees.index(1)} does; use a '
      'folder that all processes see.'
    )
  return bool(all(sees))


class Vote:
  """Whether any process has said yes, found without waiting: cast in one step, read in a later one.

  The votes travel over the devices, so every process reads the same answer at the same step.
  """

  def __init__(self, mesh):
    self.alone = jax.process_count() == 1
    self.over = NamedSharding(mesh, P(mesh.axis_names))
    self.shape = (mesh.size,)
    out = NamedSharding(mesh, P())
    self.any = jax.jit(jnp.max, out_shardings=out)
    self.pending = False

  def cast(self, yes):
    """Casts this step's vote and returns the outcome of the last one's; alone, of this one's."""
    if self.alone:
      return yes
    votes = jax.make_array_from_callback(
      self.shape, self.over, lambda index: np.full(1, yes, np.int32)
    )
    before, self.pending = self.pending, self.any(votes)
    return bool(before)


@contextlib.contextmanager
def together():
  """Ends this process with one sentence, and the others soon after it, when one of several fails.

  JAX's own way out waits minutes for processes that may never come.
  """
  try:
    yield
  except BrokenPipeError:
    raise
  except (InputError, OSError, KeyboardInterrupt) as error:
    agreed = isinstance(error, KeyboardInterrupt) and str(error)  # all of them stop at this step
    if not jax.distributed.is_initialized() or agreed:
      raise
    _leave(*farewell(error))
  except Exception as error:
    if not jax.distributed.is_initialized():
      raise
    if not is_loss(error):
      traceback.print_exc()
      _leave('error: this process of several has failed, as above', 1)
    who = f'process {jax.process_index()} of {jax.process_count()}'
    _leave(f'error: {who} stops: {first_line(error)}; another one {AGAIN}', Alone.code)


def is_loss(error):
  """Does an exception come from what is between processes, and not from what was asked of it?

  Some versions of JAX raise a JaxRuntimeError, others a ValueError; the text begins with a status.
  """
  return jax.process_count() > 1 and bool(STATUS.match(str(error)))


def _leave(said, code):
  print(said, file=sys.stderr, flush=True)
  sys.stdout.flush()
  if first():
    time.sleep(LEAVE_SECONDS)  # the others cannot speak any more once the coordinator is gone
  os._exit(code)
