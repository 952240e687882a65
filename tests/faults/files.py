"""Single faults in the files of a workdir, a prepared corpus and a released folder, and what the
programs that read them make of it."""

import collections
import hashlib
import random
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from faults.runs import Run, lines, run, steps, train_command

ANY_FILE = ('flipped bit', 'byte 0xFF', 'cut', 'deleted', 'emptied')
OF_LINES = ('swapped lines', 'deleted line')
OF_CHECKPOINTS = ('renamed',)
NAME = 'checkpoints/STEP'  # the kind of the folder of a checkpoint


class Try(NamedTuple):
  """One fault and its outcome: survived, named, silent, tracebacks or lost."""

  row: str
  outcome: str
  note: str = ''


class Whole(NamedTuple):
  """What an undisturbed run ends with."""

  state: str
  lines: dict


class Subject(NamedTuple):
  """A folder that gets the fault, and the programs that read it.
  beside: what they need too. workdir: that of `train`. reads: {name: command}. expected: {name:
  output without a fault}. others: {name: outputs of the other checkpoints}. whole: of `train`."""

  folder: str
  beside: tuple
  workdir: str
  train: tuple
  reads: dict
  expected: dict = {}
  others: dict = {}
  whole: Any = None


TEXTS = 'text.txt', 'questions.txt'
EVALUATE = 'evaluate', '--workdir', 'S'
PREDICT = {x: ('predict', '--model', x, '--input', 'questions.txt') for x in 'SH'}
CONVERT = {x: ('convert', '--from', x, '--to', 'hf:OUT') for x in 'SH'}
OF_A_RUN = {'evaluate': EVALUATE, 'evaluate best': (*EVALUATE, '--checkpoint', 'best')}
OF_A_RUN |= {'predict': PREDICT['S'], 'convert': CONVERT['S']}
OF_RELEASED = {'predict': PREDICT['H'], 'convert': CONVERT['H']}
OF_A_CORPUS = {'evaluate': ('evaluate', '--workdir', 'Q')}
SUBJECTS = {
  'workdir': Subject('S', TEXTS, 'S', train_command('S'), OF_A_RUN),
  'prepared corpus': Subject('D', ('Q',), 'Q', train_command('Q', 'D'), OF_A_CORPUS),
  'released folder': Subject(
    'H', TEXTS, 'F', train_command('F', init_from='H', steps=3), OF_RELEASED
  ),
}


def whole(folder, workdir, started, ended):
  if ended.code or not started.state:
    raise RuntimeError(f'an undisturbed run failed:\n{ended.log[-3000:]}')
  return Whole(started.state, lines(Path(folder) / workdir))


def make(base, name):
  """Makes the folder of a subject in `base`, where W is a finished run -> the whole Subject."""
  subject = SUBJECTS[name]
  if name == 'prepared corpus':
    prepared = ['--input', 'text.txt', '--vocab', 'W', '--out', 'D', '--processes', '1']
    if run(base, ('prepare', *prepared))[1].code:
      raise RuntimeError('prepare failed')
  if name == 'released folder':
    run(base, ('convert', '--from', 'W', '--to', 'hf:H'))
  else:
    stopped = Run(base, subject.train)
    stopped.reach('evaluating', 2)
    stopped.send(15)
    stopped.end()
  copies = {kind: copy(base, Path(base) / f'{name}-{kind}', subject) for kind in ('train', 'read')}
  ended = run(copies['train'], subject.train)
  expected = answers(copies['read'], subject.reads)
  others = collections.defaultdict(list)
  for step in steps(Path(base) / subject.folder):
    options = {'convert': '--which', 'evaluate': '--checkpoint', 'predict': '--checkpoint'}
    reads = {name: subject.reads[name] + (options[name], step) for name in options}
    for read, (_, output) in answers(copies['read'], reads).items():
      others[read].append(output)
  others['evaluate best'] = others['evaluate']
  for read, (ended_read, _) in expected.items():
    if ended_read.code:
      raise RuntimeError(f'{read} failed without a fault:\n{ended_read.log[-3000:]}')
  return subject._replace(
    whole=whole(copies['train'], subject.workdir, *ended),
    others=dict(others),
    expected={read: output for read, (_, output) in expected.items()},
  )


def copy(base, folder, subject):
  """A copy of what the programs of a subject need, as a new folder."""
  for name in (subject.folder, *subject.beside):
    source, target = Path(base) / name, Path(folder) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
  return Path(folder)


def answers(folder, reads):
  """{name: (Ended, what it gave)} of programs that only read."""
  out = {}
  for name, ended in zip(reads, Run(folder, *reads.values()).end()):
    output = ended.out
    if name == 'convert':  # the folder, without the card, which names times and versions
      files = [p for p in sorted((folder / 'OUT').rglob('*')) if p.is_file() and p.suffix != '.md']
      output = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
      shutil.rmtree(folder / 'OUT', ignore_errors=True)
    out[name] = ended, output
  return out


def kinds(root):
  """{kind: paths} of the files of a folder; files that differ in numbers only are of one kind."""
  out = collections.defaultdict(list)
  for path in sorted(root.rglob('*'), key=lambda p: (p.stat().st_size, str(p))):
    name = re.sub(r'[0-9a-f]{32}', 'HASH', str(path.relative_to(root)))
    if path.is_file():
      out[re.sub(r'\d+', 'N', name)].append(path)
    elif re.fullmatch(r'checkpoints/\d+', name):
      out[NAME].append(path)
  return dict(sorted(out.items()))


def inject(root, number, rng):
  """Puts fault `number` into a folder -> (path in the folder, the fault in words)."""
  by_kind = kinds(root)
  kind = list(by_kind)[number % len(by_kind)]
  path = rng.choice(by_kind[kind])
  if kind == NAME:
    higher = path.with_name(str(max(map(int, (p.name for p in by_kind[kind]))) + 3))
    path.rename(higher)
    return path.relative_to(root), f'{path.name} renamed to {higher.name}'
  data = path.read_bytes()
  texts = data.splitlines(keepends=True)
  faults = ANY_FILE + (OF_LINES if len(set(texts)) > 1 and b'\0' not in data else ())
  fault = faults[(number // len(by_kind) + number) % len(faults)]
  path.unlink()
  if fault != 'deleted':
    path.write_bytes(_damaged(data, texts, fault, rng))
  return path.relative_to(root), f'{path.relative_to(root)}: {fault}'


def _damaged(data, texts, fault, rng):
  """The bytes of a file with a fault in it."""
  if not data or fault == 'emptied':
    return b'' if data else b'\0'
  if fault == 'cut':
    return data[: rng.randrange(len(data))]
  if fault in OF_LINES:
    i = rng.randrange(len(texts) - 1)
    if fault == 'deleted line':
      return b''.join(texts[:i] + texts[i + 1 :])
    j = rng.choice([j for j in range(len(texts)) if texts[j].strip() != texts[i].strip()] or [i])
    texts[i], texts[j] = texts[j], texts[i]
    return b''.join(texts)
  out, place = bytearray(data), rng.randrange(len(data))
  out[place] = out[place] ^ (1 << rng.randrange(8)) if fault == 'flipped bit' else 0xFF
  return bytes(out) if bytes(out) != data else data[:place] + b'\xfe' + data[place + 1 :]


def single_fault(base, folder, name, subject, number, rng):
  """Puts a fault into a folder and runs all the programs that read it -> a Try of each."""
  copies = {kind: copy(base, folder / kind, subject) for kind in ('train', 'read')}
  seed = rng.random()  # the same fault for both
  for kind in copies.values():
    path, fault = inject(kind / subject.folder, number, random.Random(seed))
  out = [Try(f'{name}: train', *judge_training(base, copies['train'], subject, path, fault))]
  for read, (ended, output) in answers(copies['read'], subject.reads).items():
    verdict = judge_reading(ended, output, subject.expected[read], subject.others.get(read, ()))
    out.append(Try(f'{name}: {read.split()[0]}', verdict, f'{read}, {fault}'))
  return out


def judge_reading(ended, output, expected, others):
  """The outcome of a program that read a damaged folder. Another checkpoint's output is right if it
  was said that one is damaged, or was renamed."""
  if failed := failure(ended):
    return failed
  if ended.code:
    return 'named'
  said = re.search('is damaged|was renamed', ended.log)
  return 'survived' if output == expected or (said and output in others) else 'silent'


def failure(ended):
  """'tracebacks' or 'lost' if a program did not end as it should, in the right way or with one
  sentence; else ''."""
  if 'Traceback (most recent' in ended.log:
    return 'tracebacks'
  if ended.code is None:
    return 'lost'  # stuck
  return '' if not ended.code or ended.refusal else 'tracebacks'


def judge_training(base, folder, subject, path, fault):
  """(outcome, note) of the run that continues in, or from, a damaged folder. One that is refused
  must go on to the same bits once the file is mended."""
  root = folder / subject.folder
  harmed = {path.parts[1], fault.split()[-1]} if path.parts[0] == 'checkpoints' else set()
  good = [n for n in steps(folder / subject.workdir) if str(n) not in harmed]
  started, ended = run(folder, subject.train)
  note = f'train, {fault}'
  if failed := failure(ended):
    return failed, note
  if not ended.code:
    return judge_end(folder / subject.workdir, started, subject.whole, min(good, default=0)), note
  if 'renamed' in fault:
    for moved in (root / 'checkpoints').glob('*'):
      if moved.name == fault.split()[-1]:
        moved.rename(root / path)
  else:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(base) / subject.folder / path, root / path)
  started, again = run(folder, subject.train)
  if again.code or judge_end(folder / subject.workdir, started, subject.whole) != 'survived':
    return 'lost', f'{note}, refused ({ended.refusal}), and after it was mended: {again.log[-500:]}'
  return 'named', note


def judge_end(workdir, started, whole, least=0):
  """The outcome of a run that ended well. least: the step that it must begin with, or later."""
  if started.begin is not None and started.begin < least:
    return 'lost'
  expected = {key: line for key, line in whole.lines.items() if key[0] > (started.begin or 0)}
  try:
    same = lines(workdir, started.begin or 0) == expected
  except RuntimeError:
    same = False
  return 'survived' if same and started.state == whole.state else 'silent'
