"""Single faults in the files of every folder that programs read, and what these make of them.

A program ends where it would begin to compute, and prints checksums of what it has read: the state,
the weights, every row. So a process reads many damaged folders, each in a fraction of a second.
What it reads is compared with what it reads there without a fault and, of a run, with the states
that the run itself had in memory.
"""

import collections
import contextlib
import functools
import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from faults import families
from faults.inputs import DAMAGE, of_lines, work
from faults.runs import PROGRAMS, Ended, Run, all_of, digest, lines, program, steps

from bert_jax import train
from bert_jax.command_line import command_line
from bert_jax.predict import model as predict_model
from bert_jax.run import evaluation, setup
from bert_jax.tools.report import pages
from bert_jax.workdir import provenance
from bert_jax.workdir import trained as of_workdir

ANY_FILE = {  # {fault: a function of (random.Random, bytes)}
  'flipped bits': DAMAGE['flipped'],
  'byte 0xFF': lambda rng, data: data[: (k := rng.randrange(len(data)))] + b'\xff' + data[k + 1 :],
  'cut': DAMAGE['cut'],
  'deleted': None,
  'emptied': lambda rng, data: b'',
}
OF_LINES = {
  'moved line': of_lines(lambda rng, x: x.insert(rng.randrange(len(x)), x.pop(len(x) // 2))),
  'deleted line': of_lines(lambda rng, x: x.pop(rng.randrange(len(x)))),
}
EXCHANGED = 'exchanged'  # with the file of another run
NAME = 'checkpoints/STEP'  # the kind of the folder of a checkpoint
FAULTS, INPUTS = 4, 1000  # in a case
SECONDS, STUCK = 60, -1  # after which a program that reads counts as stuck, and then its code
MINUTES = 10  # after which the faults of a case count as stuck
begun_before = lambda started, least: started.begin is not None and started.begin < least


class Try(NamedTuple):
  """One fault and its outcome: survived, named, silent, tracebacks or lost."""

  row: str
  outcome: str
  note: str = ''


class Whole(NamedTuple):
  """What an undisturbed run ends with. saved: {step: checksums of its state, its parameters}."""

  state: str
  lines: dict
  saved: dict = {}


class Known(NamedTuple):
  """What is known of a family: its undisturbed run, and one that goes on after its end; {phase: its
  durations}; the phase in which another run was killed; {subject: {name of a reading: output}}."""

  name: str
  whole: Whole
  extended: Whole
  seconds: dict
  met: str
  right: dict


class Done(SystemExit):
  """Raised where a program begins to compute."""


def tell(*words):
  print(*words)
  raise Done


def stop_before_computing():
  """Lets the programs of this process end where they would begin to compute."""

  def loop(run, state):
    inputs = run.inputs
    splits = (x for x in (inputs.batches, inputs.eval_batches) if x)
    rows = [[part[k] for k in range(len(part))] for part in splits]
    tell(int(state.step), digest(all_of(state)), digest((rows, run.constants)), run.results)

  def compiled(inputs, program, weights):
    begins = not inputs.start.continues
    return None, None, begins and setup.new_state(inputs, program, weights), 0.0

  def one_pass(_, params, carry, batches, constants, *others, **__):
    rows = [batches[k] for k in range(len(batches))]
    tell(digest(params), digest((carry, rows, constants)))

  def ask(model, task, **options):
    facts = model.config.to_json(), model.tokenizer.fingerprint, model.vector, model.limit, task
    tell(digest(model.weights), model.step, *facts)

  train.loop, setup.compiled, evaluation.one_pass = loop, compiled, one_pass
  provenance.code_changes, provenance.installed, pages.write = str, str, lambda *_: []
  predict_model.Model.ask = ask


def load(argv):
  """What `predict` and `convert` load."""
  with command_line():
    tell(digest(of_workdir.load(*argv).params))


PROGRAMS['load'] = SimpleNamespace(main=load)


def read(command):
  """Runs a command line in this process, in the current folder."""
  out, log = io.StringIO(), io.StringIO()
  signal.signal(signal.SIGALRM, lambda *_: sys.exit(STUCK))
  signal.alarm(SECONDS)
  try:
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(log):
      code = program(*command)
  finally:
    signal.alarm(0)
  code = None if code == STUCK else code
  return Ended(code, out.getvalue(), log.getvalue())


def copy(base, folder, *copied):
  """A new folder with copies of some folders of `base`, and links to its others."""
  folder.mkdir(parents=True)
  for path in base.iterdir():
    if path.name in copied:
      shutil.copytree(path, folder / path.name)
    elif path.is_dir():
      (folder / path.name).symlink_to(path)
  return folder


def sums_of(folder):
  """Checksums of what a program has written: the files of OUT, and I/out."""
  files = [p for p in sorted((folder / 'OUT').rglob('*')) if p.is_file()]
  files = [p for p in files if p.suffix != '.md']  # a card names times and versions
  files += [p for p in [folder / 'I' / 'out'] if p.is_file()]
  return [f'{p.name} {hashlib.sha256(p.read_bytes()).hexdigest()}' for p in files]


def answer(folder, command):
  """(Ended, what it gave) of a program that reads in this process."""
  os.chdir(folder)
  if not (folder / 'I').is_symlink():
    (folder / 'I' / 'out').unlink(missing_ok=True)
  ended = read(command)
  given = '\n'.join([ended.out.replace(str(folder), ''), *sums_of(folder)])
  shutil.rmtree(folder / 'OUT', ignore_errors=True)
  return ended, given


def expected(base):
  """Makes the other folders of a family, and prints {subject: {reading: output}} of all folders."""
  for command in families.after(base.name):
    if code := program(*command):
      return code
  stop_before_computing()
  right, place = {}, base.with_name(f'{base.name}-right')
  for name, subject in families.subjects(base.name).items():
    right[name] = {}
    for read, command in subject.reads.items():
      ended, right[name][read] = answer(fresh(base, place, subject), command)
      if ended.code:
        raise RuntimeError(f'{base.name}, {name}: {read} failed without a fault:\n{ended.log}')
  print(f'\n{json.dumps(right)}')
  return 0


def fresh(base, place, subject):
  """The place, with what a subject's programs read and write."""
  shutil.rmtree(place, ignore_errors=True)
  return copy(base, place, subject.folder, *subject.copies)


def of_earlier(base, place, subject, command):
  """{step: output} of a workdir without a fault, with each of its earlier checkpoints as the newest
  one; without those that the program refuses, since they are not the best."""
  out, known = {}, steps(base / subject.folder)
  for i, step in enumerate(known[:-1], 1):
    folder = fresh(base, place, subject)
    for later in known[i:]:
      shutil.rmtree(folder / subject.folder / 'checkpoints' / str(later))
    ended, given = answer(folder, command)
    out |= {} if ended.code else {step: given}
  return out


def kinds(root, only=''):
  """{kind: paths} of the files of a folder; files that differ in numbers only are of one kind."""
  out = collections.defaultdict(list)
  for path in sorted(root.rglob('*'), key=lambda p: (p.stat().st_size, str(p))):
    name = re.sub(r'[0-9a-f]{32}', 'HASH', str(path.relative_to(root)))
    if path.is_file() and re.search(only, name):
      out[re.sub(r'\d+', 'N', name)].append(path)
    elif re.fullmatch(r'checkpoints/\d+', name) and not only:
      out[NAME].append(path)
  return dict(sorted(out.items()))


def inject(root, number, rng, only=''):
  """Puts fault `number` into a folder -> (path in the folder, the fault in words)."""
  by_kind = kinds(root, only)
  kind = list(by_kind)[number % len(by_kind)]
  path = rng.choice(by_kind[kind])
  if kind == NAME:
    higher = path.with_name(str(max(map(int, (p.name for p in by_kind[kind]))) + 3))
    path.rename(higher)
    return path.relative_to(root), f'{path.name} renamed to {higher.name}'
  data, faults = path.read_bytes(), ANY_FILE
  if len({*data.splitlines()}) > 1 and b'\0' not in data:
    faults = faults | OF_LINES
  others = [
    x for p in by_kind[kind] if only and p.name == path.name and (x := p.read_bytes()) != data
  ]
  if others:
    faults = faults | {EXCHANGED: lambda rng, _: rng.choice(others)}
  fault = list(faults)[(number // len(by_kind) + number) % len(faults)]
  path.unlink()
  if damage := faults[fault]:
    damaged = data
    while damaged == data:
      damaged = damage(rng, data) if data else b'\0'
    path.write_bytes(damaged)
  return path.relative_to(root), f'{path.relative_to(root)}: {fault}'


def faulty(base, folder, known, number, seed):
  """Prints a line of JSON for each fault: [subject, reading, outcome, note]; and one before it."""
  stop_before_computing()
  subjects, first = families.subjects(known.name), zlib.crc32(known.name.encode()) % 1000
  for k in range(number * FAULTS, (number + 1) * FAULTS):
    name, fault = list(subjects)[k % len(subjects)], first + k // len(subjects)
    print(json.dumps([name]), flush=True)
    for each in single_fault(base, folder / 'faulty', name, known, fault, f'{seed} {k}'):
      print(json.dumps(each), flush=True)
  return 0


def single_fault(base, place, name, known, number, seed):
  """Lets each program that reads a folder read it with the same fault, in a new place -> a Try of
  each. One that refuses it must read what is right once it is mended."""
  subject, out = families.subjects(known.name)[name], []
  there = steps(base / subject.folder) or [0]
  for read, command in subject.reads.items():
    root, rng = fresh(base, place, subject) / subject.folder, random.Random(seed)
    path, fault = inject(root, number, rng, subject.only)
    good = max(whole_steps(there, path, fault), default=0)
    ended, given = answer(place, command)
    right = {there[-1]: known.right[name][read]}
    if not ended.code and given != right[there[-1]]:
      right |= of_earlier(base, place, subject, command)
      for step in right if read == 'train' and name == 'workdir' else ():
        if not right[step].startswith(f'{step} {known.whole.saved[step][0]} '):
          raise RuntimeError(f'another state is read at step {step} than the run had')
    verdict = judge_reading(ended, given, read, right, good, path)
    if verdict == 'named':
      mend(base, place, subject, path, fault)
      ended, given = answer(place, command)
      verdict = 'named' if given == known.right[name][read] else 'lost'
    why = '' if verdict in ('survived', 'named') else f': {ended.log[-1500:]} {given[:500]}'
    out.append(Try(f'{name}: {read.split()[0]}', verdict, f'{read}, {fault}{why}'))
  return out


def whole_steps(steps, path, fault):
  """The steps of the checkpoints that a fault has not changed."""
  harmed = {path.parts[1], fault.split()[-1]} if path.parts[0] == 'checkpoints' else set()
  return [step for step in steps if str(step) not in harmed]


def mend(base, place, subject, path, fault):
  """Brings back what a fault has changed."""
  root = place / subject.folder
  if 'renamed' in fault:
    moved = [x for x in root.rglob('*') if x.name == fault.split()[-1] and x.is_dir()]
    for each in moved[:1]:
      each.rename(root / path)
  else:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(base / subject.folder / path, root / path)


def judge_reading(ended, given, read, right, good, path=Path('.')):
  """The outcome of a program that read a damaged folder. right: {step: its output}. Another
  checkpoint's output is right if it was said that one is damaged, or was renamed, and only that of
  `good`, the newest that is whole; what reads a sweep is named if it says that the damaged file, or
  its folder, is not used."""
  if failed := failure(ended):
    return failed
  if ended.code:
    return 'named'
  newest = right[max(right)]
  said = re.search('is damaged|was renamed', ended.log)
  if given == newest:
    return 'survived'
  if said and (given == right.get(good) or ('best' in read and given in right.values())):
    return 'survived'
  if read in ('report', 'sweep'):
    new = {*given.splitlines(), *ended.log.splitlines()} - {*newest.splitlines()}
    names = {path.name, str(path.parent)} - {'.'}
    words = 'is damaged|left out|another run|not as (the run|it was)|cannot be read|is missing'
    said = [x for x in new if re.search(words, x)]
    return 'named' if any(name in x for x in said for name in names) else 'silent'
  return 'lost' if given in right.values() else 'silent'


def failure(ended):
  """'tracebacks' or 'lost' if a program did not end as it should, in the right way or with one
  sentence; else ''."""
  if 'Traceback (most recent' in ended.log:
    return 'tracebacks'
  if ended.code is None:
    return 'lost'  # stuck
  return '' if not ended.code or ended.refusal else 'tracebacks'


def printed(folder, function):
  """The Trys that a function prints in a process of its own, and one of what ended that."""
  ended = Run(folder, function).end(60 * MINUTES)
  said = ended.out.splitlines()  # TFDS, too, prints sentences
  parts = [json.loads(line) for line in said if line.startswith('[')]
  out = [Try(*part) for part in parts if len(part) > 1]
  if ended.code != 0:
    kind = 'lost' if ended.code is None else 'tracebacks'
    out.append(Try(f'{(parts or [["begin"]])[-1][0]}: all', kind, ended.log[-1500:]))
  return out


def damaged(base, folder, known, number, rng):
  """The Trys of the faults of a case, all read in one process."""
  return printed(folder, functools.partial(faulty, base, folder, known, number, str(rng.random())))


def mutated(base, folder, known, number, rng):
  """The Trys of damaged inputs of every format."""
  return printed(folder, functools.partial(work, rng.randrange(1 << 32), range(INPUTS)))


def judge_end(workdir, started, whole, least=0, tolerance=0):
  """The outcome of a run that ended well. least: the step that it must begin with, or later.
  tolerance: 0: it must have the same bits; else how far its metrics may be apart, relatively."""
  begin = started.begin or 0
  if begun_before(started, least):
    return 'lost'
  try:
    found = lines(workdir, 0 if tolerance else begin)
  except RuntimeError:
    return 'silent'
  if tolerance:
    return 'survived' if close(found, whole.lines, tolerance) else 'silent'
  same = found == {key: line for key, line in whole.lines.items() if key[0] > begin}
  return 'survived' if same and started.state == whole.state else 'silent'


def close(some, others, tolerance):
  """Are the metrics of two runs equal, but for a relative tolerance?"""
  equal = lambda x, y: x == y or (isinstance(x, float) and abs(x - y) <= tolerance * max(1, abs(x)))
  flat = lambda lines: {(key, name): x for key, line in lines.items() for name, x in line.items()}
  some, others = flat(some), flat(others)
  return some.keys() == others.keys() and all(equal(x, others[key]) for key, x in some.items())
