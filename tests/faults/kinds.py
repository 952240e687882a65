"""Faults that befall a run or a tool as a whole: kills, signals, full disks, a second run, readers
meanwhile, numbers that are not finite, other devices, lost processes.

Each function gives the Trys of a case; none if its fault did not take place, as a signal after the
end: then the campaign tries it again, at another moment."""

import ctypes
import functools
import json
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path

from faults import families, files, runs
from faults.files import Try, begun_before, failure, judge_end, sums_of
from faults.runs import Ended, Run, run, steps

from bert_jax.workdir import lock

PHASES = tuple(dict.fromkeys(phase for phase, *_ in runs.PHASES))
KILL, TERM, BREAK = [signal.SIGKILL], [signal.SIGTERM], [signal.SIGINT]
SIGNALS = {'SIGTERM': TERM, 'SIGHUP': [signal.SIGHUP], 'Ctrl-C': BREAK, 'Ctrl-C twice': 2 * BREAK}
EVERY = 2  # steps between checkpoints of a run whose numbers overflow
W = 'R'  # the workdir of a case
train = lambda known, folder=W, **changes: families.train_command(known.name, folder, **changes)


def durations(phases):
  """{phase: seconds of each time that a run was in it}."""
  out = {}
  for (phase, start), (_, end) in zip(phases, phases[1:]):
    out.setdefault(phase, []).append(end - start)
  return out


def wait_in(started, phase, seconds, rng, begins=True):
  """Waits for a random moment of a phase, the first time unless it `begins` anew and so enters it
  more often; False if the run ended before."""
  count = rng.randrange(1, begins * len(seconds[phase]) // 2 + 2)
  if not started.reach(phase, count):
    return False
  time.sleep(rng.uniform(0, 1.2 * max(seconds[phase])))
  return started.process.exitcode is None


def finish(workdir, started, ended, whole, least, tolerance=0):
  """(outcome, note) of a run that was stopped before and should now end as judge_end asks for."""
  outcome = failure(ended) or 'lost' * bool(ended.code)
  outcome = outcome or judge_end(workdir, started, whole, least, tolerance)
  note = f'begun at {started.begin}, to begin at {least}: {ended.log[-800:]}'
  return outcome, note * (outcome != 'survived')


def stopped(base, folder, known, number, rng, ways, begin='', devices=(1, 1), more=0):
  """A run is stopped at random moments by {name: signals}, then it goes on to its end. begin: the
  folder that it begins with. devices: how many it has at first, after a stop, .. more: steps that
  a finished run is to end with."""
  rows, command, whole, exact = [], train(known), known.whole, len({*devices}) == 1
  if begin:
    shutil.copytree(base / begin, folder / W)
  if more:
    command, whole = train(known, steps=more), known.extended
  least = max(steps(folder / W), default=0)
  for count in devices:
    started, name = Run(folder, command, devices=count), rng.choice(list(ways))
    phase, is_last = rng.choice(PHASES) if exact else 'saving', len(rows) == len(devices) - 1
    sent = not is_last and wait_in(started, phase, known.seconds, rng, exact and not begin)
    for i, each in enumerate(ways[name] if sent else ()):
      time.sleep(i * rng.uniform(0, 0.3))
      started.send(each)
    ended = started.end()
    at_once = ended.code in [-n for n in ways[name]]  # by SIGKILL, or before it had begun
    was_stopped = sent and (at_once or ended.refusal) and 'Traceback' not in ended.log
    if not was_stopped or begun_before(started, least):
      break
    met = started.phases[-1:] if 'kill' in name else []
    rows.append(': '.join([name, *(phase for phase, _ in met)]))
    least = max(steps(folder / W), default=0)
  tolerance = 0 if exact else families.tolerance(known.name)
  outcome, note = finish(folder / W, started, ended, whole, least, tolerance)
  if outcome == 'survived' and len(rows) < (1 if exact else len(devices) - 1):  # it ended before
    return []
  return [Try(row, outcome, note) for row in rows or [name]]


def killed(base, folder, known, number, rng):
  """The run that `begin` has killed goes on to its end, in case 1 after another kill; in the other
  cases a new run is killed three times."""
  if number:
    begin, devices = ('S', (1, 1)) if number == 1 else ('', (1, 1, 1, 1))
    return stopped(base, folder, known, number, rng, {'kill -9': KILL}, begin, devices)
  shutil.copytree(base / 'S', folder / W)
  least = max(steps(folder / W))
  outcome, note = finish(folder / W, *run(folder, train(known)), known.whole, least)
  return [Try(f'kill -9: {known.met}', outcome, note)]


def full_disk(base, folder, known, number, rng):
  """A disk that is too small: one sentence, again while it is full; with room, the same bits."""
  size, most = int(100 * 15 ** rng.random()), 0
  disk = folder / 'disk'
  disk.mkdir()
  data, mounted = train(known, f'disk/{W}'), mount(disk, size)
  if not mounted:  # which takes rights: a limit on each file instead
    most = rng.randrange(200, 20_000)
  try:
    for _ in range(2):
      _, ended = run(folder, data, most=most)
      if ended.code == 0 and 'Traceback' not in ended.log:  # it had room
        return []
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


def trained(base, folder, known, number, rng):
  """A run goes on to its end in, or from, a damaged folder, or once that is mended."""
  subjects = families.subjects(known.name).items()
  subjects = [(k, x) for k, x in subjects if 'S' in (x.folder, *x.copies)]
  name, subject = subjects[number % len(subjects)]
  place = files.copy(base, folder / 'faulty', subject.folder, *subject.copies)
  path, fault = files.inject(place / subject.folder, rng.randrange(1000), rng, subject.only)
  least = max(files.whole_steps(steps(place / 'S'), path, fault), default=0)
  started, ended = run(place, subject.reads['train'])
  if refused := ended.code and not failure(ended):
    files.mend(base, place, subject, path, fault)
    least, (started, ended) = 0, run(place, subject.reads['train'])
  outcome, note = finish(place / 'S', started, ended, known.whole, least)
  if refused:
    outcome = 'named' if outcome == 'survived' else 'lost'
  return [Try(f'{name}: trained', outcome, f'{fault}: {note}')]


def second_run(base, folder, known, number, rng):
  """A run is held up, and the same command is started: it is refused, and the first goes on."""
  phase = rng.choice(('training', 'saving', 'evaluating'))
  first = Run(folder, train(known))
  wait_in(first, phase, {phase: known.seconds[phase][:4]}, rng)
  first.send(signal.SIGSTOP)
  try:
    is_held = (folder / W / lock.NAME).exists()  # else it has ended
    second = Run(folder, train(known), name='second').end() if is_held else None
  finally:
    first.send(signal.SIGCONT)
  outcome, note = finish(folder / W, first, first.end(), known.whole, 0)
  if outcome == 'survived':
    if not second:
      return []
    outcome, note = failure(second) or ('named' if second.refusal else 'silent'), second.log[-800:]
  return [Try('two runs in one workdir', outcome, note)]


def not_finite(base, folder, known, number, rng):
  """The weights grow by a factor in each step until they overflow: the run stops, names the step,
  and again at the same step from the checkpoint before it."""
  skips, rate = rng.randrange(2), 10 ** rng.uniform(4, 7)
  fields = {'learning_rate': rate, 'schedule': 'constant', 'warmup': 0, 'decay': 0}
  fields['skip_nonfinite'] = 3 * skips
  fields = {f'optimizer.{name}': value for name, value in fields.items()}
  command, sentences, least = train(known, **fields, **{'checkpoint.every': EVERY}), [], 0
  for _ in range(2):
    started, ended = run(folder, command)
    failed = failure(ended) or ('' if ended.code else 'silent')
    if failed := failed or 'lost' * (started.begin != least):
      return [Try('not finite', failed, f'begun at {started.begin} of {least}: {ended.log[-800:]}')]
    sentences.append(ended.refusal)
    least = max(steps(folder / W), default=0)
  same = skips or len(set(sentences)) == 1
  said = [re.search(r' (?:at|after) step (\d+)', sentence) for sentence in sentences]
  named = same and all(said) and (least > 0 or int(said[0][1]) <= EVERY)
  return [Try('not finite', 'named' if named else 'silent', ' / '.join(sentences))]


def lost_process(base, folder, known, number, rng):
  """kill -9 of one of two processes: the other ends by itself; both started again end as the run of
  one process does, but for rounding."""

  def pair():
    with socket.socket() as free:
      free.bind(('127.0.0.1', 0))
      address = f'127.0.0.1:{free.getsockname()[1]}'
    settings = {'JAX_COORDINATOR_ADDRESS': address, 'JAX_NUM_PROCESSES': '2'}
    return [Run(folder, train(known), name=i, JAX_PROCESS_ID=i, **settings) for i in '01']

  row, both, victim = 'a process of two killed', pair(), rng.randrange(2)
  phase = rng.choice(PHASES[1:])
  wait_in(both[victim], phase, known.seconds, rng)
  both[victim].send(signal.SIGKILL)
  other, killed = both[1 - victim].end(), both[victim].end()
  if other.code is None or 'Traceback' in other.log:
    return [Try(row, 'lost' if other.code is None else 'tracebacks', other.log[-800:])]
  if killed.code != -signal.SIGKILL:
    return []
  least = max(steps(folder / W), default=0)
  both = pair()
  ends = [started.end() for started in both]
  faulty = next((k for k in (0, 1) if ends[k].code != 0), 0)
  end = both[faulty], ends[faulty], known.whole, least, families.tolerance(known.name)
  outcome, note = finish(folder / W, *end)
  own = known.name == 'memory'  # each process holds the memory of its own rows
  same = outcome != 'survived' or own or both[0].state == both[1].state
  return [Try(row, outcome if same else 'silent', note)]


def meanwhile(base, folder, known, number, rng):
  """A run saves after each step and removes the checkpoint before, and its workdir is read."""
  row, kept = 'read while it saves', rng.choice((1, 2))
  often = {'checkpoint.every': 1, 'checkpoint.keep_latest': kept}
  started = Run(folder, train(known, **often))
  started.reach('saving')
  reader = Run(folder, functools.partial(watch, folder), name='reader')
  ended = started.end()
  (folder / 'ended').touch()
  last = reader.end()
  sums = {sum for _, *both in started.saved for sum in both}
  read = [Ended(*json.loads(line)) for line in last.out.splitlines()]
  out = [Try(row, judge_reader(each, sums), each.log[-800:]) for each in read]
  out += [Try(row, 'tracebacks', last.log[-800:])] if last.code != 0 else []
  return out and [Try(row, *finish(folder / W, started, ended, known.whole, 0)), *out]


def judge_reader(ended, sums):
  """The outcome of a program that reads the workdir of a healthy run. sums: of what that saved."""
  if failed := failure(ended):
    return failed
  if 'damaged' in ended.log or 'delete the workdir' in ended.log:
    return 'lost'
  return 'named' if ended.code else 'survived' if {*ended.out.split()[:1]} & sums else 'silent'


def watch(folder):
  """Reads the workdir of a case until its run has ended."""
  files.stop_before_computing()
  while not (folder / 'ended').exists():
    for command in ('evaluate', '--workdir', W), ('load', W):
      print(json.dumps(files.read(command)))
  return 0


def tools(base, folder, known, number, rng):
  """A tool that writes a folder is killed and started again, or two begin at the same time."""
  kills, commands = number % 2, families.tools(known.name)
  name = rng.choice(list(commands))
  begun = time.monotonic()
  run(folder, commands[name])
  seconds, right = time.monotonic() - begun, sums_of(folder)
  shutil.rmtree(folder / 'OUT')
  row = f'{name} killed' if kills else f'two of {name} in one folder'
  first = Run(folder, commands[name], name='first')
  time.sleep(rng.uniform(0, seconds if kills else seconds / 2))
  if first.process.exitcode is not None:
    return []
  if kills:
    first.send(signal.SIGKILL)
    if first.end().code != -signal.SIGKILL:
      return []
  second = Run(folder, commands[name], name='second')
  ends = [started.end() for started in ([second] if kills else [first, second])]
  if faults := [x for x in ends if failure(x)]:
    return [Try(row, failure(faults[0]), faults[0].log[-800:])]
  if all(x.code for x in ends):
    return [Try(row, 'lost', ends[-1].log[-800:])]
  same = sums_of(folder) == right and not list(folder.glob('*.partial'))
  outcome = 'named' if any(x.code for x in ends) else 'survived'
  return [Try(row, outcome if same else 'silent', ends[-1].log[-800:])]


KINDS = {
  'kill': killed,
  'extend': functools.partial(
    stopped, ways={'kill -9 with more steps': KILL}, begin='W', more=families.MORE
  ),
  'signal': functools.partial(stopped, ways=SIGNALS, begin='S'),
  'devices': functools.partial(
    stopped, ways={'1 -> 4 -> 2 -> 1 devices': TERM}, devices=(1, 4, 2, 1)
  ),
  'trained': trained,
  'meanwhile': meanwhile,
  'tools': tools,
  'disk': full_disk,
  'two': second_run,
  'finite': not_finite,
  'processes': lost_process,
}
