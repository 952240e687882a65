"""Single faults in the files of every folder that programs read, and what these make of them.

A process reads a damaged folder many times (readings.py); what it has read is compared with what it
reads there without a fault and, of a run, with the states that the run itself had in memory.
"""

import collections
import functools
import hashlib
import json
import os
import random
import re
import shutil
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from faults import families, readings
from faults.inputs import DAMAGE, of_lines, work
from faults.runs import Ended, Run, lines, steps

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
FAULTS = 8  # in a case
INPUTS = 1000  # in a case
MINUTES = 10  # after which the faults of a case count as stuck


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
  durations}; {subject: {step of the newest good checkpoint: {name of a reading: output}}}."""

  name: str
  whole: Whole
  extended: Whole
  seconds: dict
  right: dict


def copy(base: Path, folder: Path, *copied: str) -> Path:
  """A new folder with copies of some folders of `base`, and links to its others."""
  folder.mkdir(parents=True)
  for path in base.glob('*'):
    if path.name in copied:
      shutil.copytree(path, folder / path.name)
    elif path.is_dir():
      (folder / path.name).symlink_to(path)
  return folder


def sums_of(folder: Path) -> list[str]:
  """Checksums of what a program has written: the files of OUT, and I/out."""
  files = [p for p in sorted((folder / 'OUT').rglob('*')) if p.is_file()]
  files = [p for p in files if p.suffix != '.md']  # a card names times and versions
  files += [p for p in [folder / 'I' / 'out'] if p.is_file()]
  return [f'{p.name} {hashlib.sha256(p.read_bytes()).hexdigest()}' for p in files]


def answer(folder: Path, command: tuple[str, ...]) -> tuple[Ended, str]:
  """(Ended, what it gave) of a program that reads in this process."""
  os.chdir(folder)
  if not (folder / 'I').is_symlink():
    (folder / 'I' / 'out').unlink(missing_ok=True)
  ended = readings.read(command)
  given = '\n'.join([ended.out.replace(str(folder), ''), *sums_of(folder)])
  shutil.rmtree(folder / 'OUT', ignore_errors=True)
  return ended, given


def expected(base: Path) -> int:
  """Prints {subject: {step: {reading: output}}} of the folders without a fault: of a workdir, with
  each of its checkpoints as the newest."""
  readings.stop_before_computing()
  right: dict[str, dict] = {}
  for name, subject in families.subjects(base.name).items():
    right[name], known = {}, steps(base / subject.folder) or [0]
    for step in known:
      folder = copy(base, base.with_name(f'{base.name}-right'), subject.folder, *subject.copies)
      for later in known[known.index(step) + 1 :]:
        shutil.rmtree(folder / subject.folder / 'checkpoints' / str(later))
      right[name][step] = {}
      for read, command in subject.reads.items():
        ended, given = answer(folder, command)
        if not ended.code:
          right[name][step][read] = given
        elif step == known[-1]:
          raise RuntimeError(f'{base.name}, {name}: {read} failed without a fault:\n{ended.log}')
      shutil.rmtree(folder)
  print(json.dumps(right))
  return 0


def kinds(root: Path, only: str = '') -> dict[str, list[Path]]:
  """{kind: paths} of the files of a folder; files that differ in numbers only are of one kind."""
  out = collections.defaultdict(list)
  for path in sorted(root.rglob('*'), key=lambda p: (p.stat().st_size, str(p))):
    name = re.sub(r'[0-9a-f]{32}', 'HASH', str(path.relative_to(root)))
    if path.is_file() and re.search(only, name):
      out[re.sub(r'\d+', 'N', name)].append(path)
    elif re.fullmatch(r'checkpoints/\d+', name) and not only:
      out[NAME].append(path)
  return dict(sorted(out.items()))


def inject(root: Path, number: int, rng: random.Random, only: str = '') -> tuple[Path, str]:
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


def faulty(base: Path, folder: Path, known: Known, number: int, seed: str) -> int:
  """Prints a line of JSON for each fault: [subject, reading, outcome, note]; and one before it."""
  readings.stop_before_computing()
  subjects, first = families.subjects(known.name), zlib.crc32(known.name.encode()) % 1000
  for k in range(number * FAULTS, (number + 1) * FAULTS):
    name, fault = list(subjects)[k % len(subjects)], first + k // len(subjects)
    print(json.dumps([name]), flush=True)
    for each in single_fault(base, folder / 'faulty', name, known, fault, f'{seed} {k}'):
      print(json.dumps(each), flush=True)
  return 0


def single_fault(
  base: Path, place: Path, name: str, known: Known, number: int, seed: str
) -> list[Try]:
  """Lets each program that reads a folder read it with the same fault, in a new place -> a Try of
  each. One that refuses it must read what is right once it is mended."""
  subject, right, out = families.subjects(known.name)[name], known.right[name], []
  for read, command in subject.reads.items():
    shutil.rmtree(place, ignore_errors=True)
    copy(base, place, subject.folder, *subject.copies)
    rng = random.Random(seed)
    path, fault = inject(place / subject.folder, number, rng, subject.only)
    good = max(whole_steps(right, path, fault), default=0)
    ended, given = answer(place, command)
    verdict = judge_reading(ended, given, read, right, good, path)
    if verdict == 'named':
      mend(base, place, subject, path, fault)
      ended, given = answer(place, command)
      verdict = 'named' if given == right[max(right)][read] else 'lost'
    why = '' if verdict in ('survived', 'named') else f': {ended.log[-1500:]} {given[:500]}'
    out.append(Try(f'{name}: {read.split()[0]}', verdict, f'{read}, {fault}{why}'))
  return out


def whole_steps(steps: Iterable[int], path: Path, fault: str) -> list[int]:
  """The steps of the checkpoints that a fault has not changed."""
  harmed = {path.parts[1], fault.split()[-1]} if path.parts[0] == 'checkpoints' else set()
  return [step for step in steps if str(step) not in harmed]


def mend(base: Path, place: Path, subject: families.Subject, path: Path, fault: str) -> None:
  """Brings back what a fault has changed."""
  root = place / subject.folder
  if 'renamed' in fault:
    moved = [x for x in root.rglob('*') if x.name == fault.split()[-1] and x.is_dir()]
    for each in moved[:1]:
      each.rename(root / path)
  else:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(base / subject.folder / path, root / path)


def judge_reading(
  ended: Ended, given: str, read: str, right: dict, good: int, path: Path = Path('.')
) -> str:
  """The outcome of a program that read a damaged folder. right: {step: {reading: output}}. Another
  checkpoint's output is right if it was said that one is damaged, or was renamed, and only that of
  `good`, the newest that is whole; a report is named if it says of the damaged file, or of its
  folder, that something is not used."""
  if failed := failure(ended):
    return failed
  if ended.code:
    return 'named'
  outputs = {step: of.get(read) for step, of in right.items()}
  said = re.search('is damaged|was renamed', ended.log)
  if given == outputs[max(outputs)]:
    return 'survived'
  if said and (given == outputs[good] or ('best' in read and given in outputs.values())):
    return 'survived'
  if read == 'report':
    new = set(given.splitlines()) - set(outputs[max(outputs)].splitlines())
    names = {path.name, str(path.parent)} - {'.'}
    said = [x for x in new if re.search('is damaged|left out|another run|not as the run', x)]
    return 'named' if any(name in x for x in said for name in names) else 'silent'
  return 'lost' if given in outputs.values() else 'silent'


def failure(ended: Ended) -> str:
  """'tracebacks' or 'lost' if a program did not end as it should, in the right way or with one
  sentence; else ''."""
  if 'Traceback (most recent' in ended.log:
    return 'tracebacks'
  if ended.code is None:
    return 'lost'  # stuck
  return '' if not ended.code or ended.refusal else 'tracebacks'


def printed(folder: Path, function: Callable[[], int]) -> list[Try]:
  """The Trys that a function prints in a process of its own, and one of what ended that."""
  ended = Run(folder, function).end(60 * MINUTES)
  parts = [json.loads(line) for line in ended.out.splitlines()]
  out = [Try(*part) for part in parts if len(part) > 1]
  if ended.code != 0:
    kind = 'lost' if ended.code is None else 'tracebacks'
    out.append(Try(f'{(parts or [["begin"]])[-1][0]}: all', kind, ended.log[-1500:]))
  return out


def damaged(base: Path, folder: Path, known: Known, number: int, rng: random.Random) -> list[Try]:
  """The Trys of the faults of a case, all read in one process."""
  return printed(folder, functools.partial(faulty, base, folder, known, number, str(rng.random())))


def mutated(base: Path, folder: Path, known: None, number: int, rng: random.Random) -> list[Try]:
  """The Trys of damaged inputs of every format."""
  return printed(folder, functools.partial(work, rng.randrange(1 << 32), range(INPUTS)))


def judge_end(workdir: Path, started: Any, whole: Whole, least: int = 0) -> str:
  """The outcome of a run that ended well. least: the step that it must begin with, or later."""
  if started.begin is not None and started.begin < least:
    return 'lost'
  begin = started.begin or 0
  same = {key: line for key, line in whole.lines.items() if key[0] > begin}
  try:
    same = lines(workdir, begin) == same
  except RuntimeError:
    same = False
  return 'survived' if same and started.state == whole.state else 'silent'
