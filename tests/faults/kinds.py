"""Faults that befall a run or a tool as a whole: kills, signals, full disks, a second run, readers
meanwhile, numbers that are not finite, other devices, lost processes. Each case gives its Trys."""

import ctypes
import functools
import itertools
import json
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path

from faults import families, readings
from faults.files import Try, failure, judge_end, sums_of
from faults.runs import Run, lines, run, steps

from bert_jax import config as config_lib
from bert_jax.workdir import lock

KILLED = ('reading', 'compiling', 'claiming', 'training', 'saving', 'evaluating', 'closing')
KILLS = 2  # in a case
SIGNALS = (
  ('SIGTERM', [signal.SIGTERM]),
  ('SIGHUP', [signal.SIGHUP]),
  ('Ctrl-C', [signal.SIGINT]),
  ('Ctrl-C twice', [signal.SIGINT, signal.SIGINT]),
)
EVERY = 2  # steps between checkpoints of a run whose numbers overflow
W = 'R'  # the workdir of a case


def durations(phases):
  """{phase: seconds of each time that a run was in it}."""
  out = {}
  for (phase, start), (_, end) in zip(phases, phases[1:]):
    out.setdefault(phase, []).append(end - start)
  return out


def wait_in(started, phase, seconds, rng):
  """Waits for a random moment of a phase; False if the run ended before."""
  count = rng.randrange(1, len(seconds[phase]) // 2 + 2)
  if not started.reach(phase, count):
    return False
  time.sleep(rng.uniform(0, 1.2 * max(seconds[phase])))
  return started.process.exitcode is None


def finish(workdir, started, ended, whole, least):
  """(outcome, note) of a run that was stopped before and now should end with the same bits."""
  if started.begin is not None and started.begin < least:
    return 'lost', f'begun at {started.begin}, not at {least}'
  failed = failure(ended)
  outcome = failed or ('lost' if ended.code else judge_end(workdir, started, whole, least))
  return outcome, '' if outcome == 'survived' else f'begun at {started.begin}: {ended.log[-800:]}'


def train(known, workdir=W, **changes):
  return families.train_command(known.name, workdir, **changes)


def killed(base, folder, known, number, rng, row='kill -9', changes=None, whole=None):
  """kill -9 at random moments: twice, then the run goes on to its end. changes: to a finished run,
  which is then to end as `whole`."""
  out, rows, begin, whole = [], [], families.STEPS if changes else 0, whole or known.whole
  workdirs = (f'{W}{k}' for k in itertools.count())
  workdir, least = next(workdirs), begin
  while True:
    if changes and not (folder / workdir).exists():
      shutil.copytree(base / 'W', folder / workdir)
    started = Run(folder, train(known, workdir, **(changes or {})))
    phase, done = rng.choice(KILLED), len(out + rows) == KILLS
    if not done and wait_in(started, phase, known.seconds, rng):
      started.send(signal.SIGKILL)
    (ended,) = started.end()
    traced = 'Traceback' in ended.log
    if ended.code == -signal.SIGKILL and (started.begin or least) >= least and not traced:
      rows.append(f'{row}: {phase}')
      least = max(steps(folder / workdir), default=0)
      continue
    outcome, note = finish(folder / workdir, started, ended, whole, least)
    out += [Try(row, outcome, note) for row in rows]
    if done or len(out) == KILLS:
      return out
    rows, least, workdir = [], begin, next(workdirs)  # it ended before it was killed


def extended(base, folder, known, number, rng):
  """A finished run gets more steps, and is killed."""
  more = {'steps': families.MORE}
  return killed(base, folder, known, number, rng, 'kill -9 with more steps', more, known.extended)


def signalled(base, folder, known, number, rng):
  """A signal at a random moment: the run saves, says how it goes on, and does."""
  name, numbers = rng.choice(SIGNALS)
  started = Run(folder, train(known))
  wait_in(started, rng.choice(KILLED), known.seconds, rng)
  for i, each in enumerate(numbers):
    time.sleep(i * rng.uniform(0, 0.3))
    started.send(each)
  (ended,) = started.end()
  # It had not begun, or had ended and printed its result.
  quiet = ended.code in (0, *(-n for n in numbers)) or started.codes == [0]
  if (failed := failure(ended)) and not quiet or 'Traceback' in ended.log:
    return [Try(name, failed or 'tracebacks', ended.log[-800:])]
  least = max(steps(folder / W), default=0)
  return [Try(name, *finish(folder / W, *run(folder, train(known)), known.whole, least))]


def full_disk(base, folder, known, number, rng):
  """A disk that is too small: one sentence, again while it is full; with room, the same bits."""
  size, most = rng.randrange(100, 1500), 0
  disk = folder / 'disk'
  disk.mkdir()
  data, mounted = train(known, f'disk/{W}'), mount(disk, size)
  if not mounted:  # which takes rights: a limit on each file instead
    most = rng.randrange(200, 20_000)
  try:
    for _ in range(2):
      _, ended = run(folder, data, most=most)
      if failed := failure(ended) or ('lost' if ended.code == 2 else ''):
        return [Try('full disk', failed, f'{size} KB, exit {ended.code}: {ended.log[-800:]}')]
    if mounted:
      mount(disk, 64 << 10, again=True)
    least = max(steps(disk / W), default=0)
    return [Try('full disk', *finish(disk / W, *run(folder, data), known.whole, least))]
  finally:
    if mounted:
      ctypes.CDLL(None).umount2(os.fsencode(disk), 2)


NEW_MOUNTS, NEW_USER, PRIVATE, AGAIN = 0x20000, 0x10000000, 0x44000, 32
_mounts = []  # has this process its own view of the mounts?


def mount(folder, kilobytes, again=False):
  """Mounts a disk of this size in the memory, or changes its size, for this process and its
  children only; False if that is not allowed here."""
  try:
    libc = ctypes.CDLL(None, use_errno=True)
    if not _mounts:
      user, group = os.getuid(), os.getgid()
      if libc.unshare(NEW_MOUNTS):
        if libc.unshare(NEW_MOUNTS | NEW_USER):
          return False
        Path('/proc/self/setgroups').write_text('deny')
        Path('/proc/self/uid_map').write_text(f'0 {user} 1')
        Path('/proc/self/gid_map').write_text(f'0 {group} 1')
      libc.mount(b'none', b'/', None, PRIVATE, None)
      _mounts.append(True)
    options = f'size={kilobytes}k'.encode()
    return not libc.mount(b'none', os.fsencode(folder), b'tmpfs', AGAIN * again, options)
  except (AttributeError, OSError):  # not Linux
    return False


def second_run(base, folder, known, number, rng):
  """A run is held up, and the same command is started: it is refused, and the first goes on."""
  phase = ('training', 'saving', 'evaluating')[number % 3]
  while True:
    first = Run(folder, train(known))
    wait_in(first, phase, {phase: known.seconds[phase][:4]}, rng)
    first.send(signal.SIGSTOP)
    if (folder / W / lock.NAME).exists():
      break
    first.send(signal.SIGCONT)  # it has ended, or is about to
    (ended,) = first.end()
    if failed := failure(ended):
      return [Try('two runs in one workdir', failed, ended.log[-800:])]
    shutil.rmtree(folder / W, ignore_errors=True)
  try:
    (second,) = Run(folder, train(known), name='second').end()
  finally:
    first.send(signal.SIGCONT)
  (ended,) = first.end()
  outcome, note = finish(folder / W, first, ended, known.whole, 0)
  if failed := failure(second):
    outcome, note = failed, second.log[-800:]
  elif outcome == 'survived':
    outcome = 'named' if second.refusal else 'silent'
  return [Try('two runs in one workdir', outcome, note or second.log[-300:])]


def not_finite(base, folder, known, number, rng):
  """The weights grow by a factor in each step until they overflow: the run stops, names the step,
  and again at the same step from the checkpoint before it."""
  skips = 'optimizer.skip_nonfinite' in config_lib.ALL and number % 2
  fields = {'learning_rate': 10 ** rng.uniform(4, 7), 'schedule': 'constant', 'warmup': 0}
  fields |= {'skip_nonfinite': 3} if skips else {}
  fields = {f'optimizer.{name}': value for name, value in fields.items()}
  command = train(known, **fields, **{'checkpoint.every': EVERY})
  sentences, least = [], 0
  for _ in range(2):
    started, ended = run(folder, command)
    if failed := failure(ended) or ('' if ended.code else 'silent'):
      return [Try('not finite', failed, ended.log[-800:])]
    sentences.append(ended.refusal)
    if started.begin != least:
      return [Try('not finite', 'lost', f'begun at {started.begin}, not at {least}')]
    least = max(steps(folder / W), default=0)
  same = skips or len(set(sentences)) == 1
  said = [re.search(r' (?:at|after) step (\d+)', sentence) for sentence in sentences]
  named = same and all(said) and (least > 0 or int(said[0][1]) <= EVERY)
  return [Try('not finite', 'named' if named else 'silent', ' / '.join(sentences))]


def devices(base, folder, known, number, rng):
  """Stopped and continued on 1, 8, 4 and 1 devices: the same rows, losses equal to 1e-5."""
  least = 0
  for place, count in enumerate((1, 8, 4, 1)):
    started = Run(folder, train(known), devices=count)
    last = place == 3
    if not last and started.reach('saving', 3 + rng.randrange(3)):
      started.send(signal.SIGTERM)
    (ended,) = started.end()
    if failed := failure(ended) or ('lost' if started.begin != least else ''):
      return [Try('1 -> 8 -> 4 -> 1 devices', failed, f'{count} devices: {ended.log[-800:]}')]
    least = max(steps(folder / W), default=0)
  same = not ended.code and close(lines(folder / W), known.whole.lines)
  return [Try('1 -> 8 -> 4 -> 1 devices', 'survived' if same else 'silent', ended.log[-300:])]


def close(some, others, tolerance=1e-5):
  """Are the metrics of two runs equal, but for rounding?"""
  equal = lambda x, y: x == y or (isinstance(x, float) and abs(x - y) <= tolerance * max(1, abs(x)))
  flat = lambda lines: {(key, name): x for key, line in lines.items() for name, x in line.items()}
  some, others = flat(some), flat(others)
  return some.keys() == others.keys() and all(equal(x, others[key]) for key, x in some.items())


def pair(folder, known):
  """Starts the run as two processes."""
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{free.getsockname()[1]}'
  environment = {'JAX_COORDINATOR_ADDRESS': address, 'JAX_NUM_PROCESSES': '2'}
  return [Run(folder, train(known), name=i, JAX_PROCESS_ID=i, **environment) for i in '01']


def lost_process(base, folder, known, number, rng):
  """kill -9 of one of two processes: the other ends by itself; both started again end as the run of
  one process does, but for rounding."""
  row = 'a process of two killed'
  both, victim = pair(folder), number % 2
  phase = KILLED[1 + number // 2 % (len(KILLED) - 1)]
  wait_in(both[victim], phase, known.seconds, rng)
  both[victim].send(signal.SIGKILL)
  (other,) = both[1 - victim].end()
  both[victim].end()
  if other.code is None or 'Traceback' in other.log:
    return [Try(row, 'lost' if other.code is None else 'tracebacks', other.log[-800:])]
  least = max(steps(folder / W), default=0)
  both = pair(folder, known)
  ends = [started.end()[0] for started in both]
  if any(end.code for end in ends) or both[0].begin != least:
    return [Try(row, 'lost', f'{both[0].begin}, not {least}: {ends[0].log[-400:]} {ends[1].log}')]
  same = both[0].state == both[1].state and close(lines(folder / W), known.whole.lines)
  return [Try(row, 'survived' if same else 'silent', ends[0].log[-300:])]


def meanwhile(base, folder, known, number, rng):
  """A run saves after each step and removes the checkpoint before, and its workdir is read."""
  often = {'checkpoint.every': 1, 'checkpoint.keep_latest': 1 + number % 2}
  started = Run(folder, train(known, **often))
  started.reach('saving')
  reader = Run(folder, functools.partial(watch, folder), name='reader')
  (ended,) = started.end()
  (folder / 'ended').touch()
  (last,) = reader.end()
  sums = [sum for _, *both in started.saved for sum in both]
  out = [Try('read while it saves', *finish(folder / W, started, ended, known.whole, 0))]
  for line in last.out.splitlines():
    code, log, given = json.loads(line)
    outcome = 'survived' if given.split()[:1] and given.split()[0] in sums else 'silent'
    outcome = 'named' if code else outcome
    if 'Traceback' in log or 'delete the workdir' in log or code is None:
      outcome = 'tracebacks' if 'Traceback' in log else 'lost'
    out.append(Try('read while it saves', outcome, log[-800:]))
  return out if not last.code else [*out, Try('read while it saves', 'tracebacks', last.log[-800:])]


def watch(folder):
  """Reads the workdir of a case until its run has ended."""
  readings.stop_before_computing()
  commands = ('evaluate', '--workdir', W), ('load', W)
  while not (folder / 'ended').exists():
    for command in commands:
      ended = readings.read(command)
      print(json.dumps([ended.code, ended.log, ended.out]))
  return 0


def tools(base, folder, known, number, rng):
  """A tool that writes a folder is killed and started again, or two begin at the same time."""
  commands = families.tools(known.name)
  name = list(commands)[number // 2 % len(commands)] if commands else ''
  if not name:
    return []
  begun = time.monotonic()
  run(folder, commands[name])
  seconds, right = time.monotonic() - begun, sums_of(folder)
  shutil.rmtree(folder / 'OUT')
  row = f'{name} killed' if number % 2 else f'two of {name} in one folder'
  first = Run(folder, commands[name], name='first')
  time.sleep(rng.uniform(0, seconds if number % 2 else seconds / 2))
  if number % 2:
    first.send(signal.SIGKILL)
    first.end()
    if sums_of(folder) == right:  # it had ended
      return [Try(row, 'survived')]
    ends = [run(folder, commands[name])[1]]
  else:
    second = Run(folder, commands[name], name='second')
    ends = [first.end()[0], second.end()[0]]
  if faults := [x for x in ends if failure(x)]:
    return [Try(row, failure(faults[0]), faults[0].log[-800:])]
  if all(x.code for x in ends):
    return [Try(row, 'lost', ends[-1].log[-800:])]
  same = sums_of(folder) == right and not list(folder.glob('*.partial'))
  outcome = 'named' if any(x.code for x in ends) else 'survived'
  return [Try(row, outcome if same else 'silent', ends[-1].log[-800:])]


KINDS = {
  'kill': killed,
  'extend': extended,
  'meanwhile': meanwhile,
  'tools': tools,
  'signal': signalled,
  'disk': full_disk,
  'two': second_run,
  'finite': not_finite,
  'devices': devices,
  'processes': lost_process,
}
