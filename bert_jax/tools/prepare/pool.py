"""The blocks of a corpus, tokenized by one process or by several, in order.

Worker processes import what they run, so it stands here and not in the command's own module.
"""

import collections
import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import tqdm

from bert_jax.errors import InputError
from bert_jax.tools.prepare.steps import Maker, Settings, blocks

_maker: Maker  # of this process, if it is a worker


def _start(settings):
  global _maker
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process' to handle
  parent = multiprocessing.parent_process()
  threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
  _maker = Maker(settings)


def _end_with(parent):
  parent.join()  # a main process that was killed with -9 cannot end its workers
  os._exit(1)


def _make(language, block):
  return _maker(language, block)


@contextlib.contextmanager
def results(settings: Settings, processes: int, skip: int) -> Iterator[Iterator[tuple[Any, Any]]]:
  """A context with an iterator over (items, counts) of all blocks after the first `skip`."""
  with contextlib.ExitStack() as stack:
    remaining = itertools.islice(_with_bar(settings, stack), skip, None)
    if processes == 1:
      yield itertools.starmap(Maker(settings), remaining)
      return
    context = multiprocessing.get_context('spawn')
    pool = futures.ProcessPoolExecutor(processes, context, _start, (settings,))
    stack.callback(pool.shutdown, wait=False, cancel_futures=True)
    try:
      yield _in_order(pool, remaining, 2 * processes + 1)
    except futures.process.BrokenProcessPool:
      again = 'run the same command again with fewer --processes: finished shards stay'
      killed = 'a worker process was killed, perhaps for lack of memory'
      raise InputError(f'{killed}; {again}') from None


def _in_order(pool, blocks, ahead):
  """Yields the results of (language number, block) in order, with `ahead` of them in the pool."""
  waiting = collections.deque()
  for pair in blocks:
    waiting.append(pool.submit(_make, *pair))
    if len(waiting) > ahead:
      yield waiting.popleft().result()
  while waiting:
    yield waiting.popleft().result()


def _with_bar(settings, stack):
  """Yields blocks(settings) with a progress bar in MB/s, or in rows of a TFDS dataset."""
  size = sum(settings.file_sizes())
  unit: Any = {'unit': 'B', 'unit_scale': True, 'total': size} if size else {'unit': 'row'}
  bar = stack.enter_context(tqdm.tqdm(desc='preparing', disable=None, **unit))
  positions = collections.Counter()  # {file: the position read up to}
  for language, block in blocks(settings):
    yield language, block
    bar.update(block.position - positions[block.path])
    positions[block.path] = block.position
