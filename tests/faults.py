"""Three properties, each tried many times at random: of kills, of damaged files, of odd inputs.

    python tests/faults.py kills --tries 5           # every family, on a disk and in a bucket
    python tests/faults.py files --tries 20
    python tests/faults.py inputs --tries 1000 --only tags --seed 3

kills   A run that is killed (kill -9) at random moments, and started again each time, ends as one
        that was not: the same bits of parameters and optimizer state, each line of metrics.jsonl.
files   Where a file of a workdir, of its data, of a prepared corpus or of an exported model is
        damaged, what is read is what was there before, or the checkpoint before with a warning, or
        it is refused in one sentence.
inputs  A mutated table or text is read, or refused in one sentence.

A line is printed for each try that is bad, then what was tried. Exit status 1 if any was bad.
"""

import argparse
import collections
import contextlib
import functools
import hashlib
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE / 'run')]

import conftest  # noqa: E402, F401 (the environment of the tests, before JAX is imported)
import fake_bucket  # noqa: E402, F401 (az:// is a bucket in a folder)
import jax  # noqa: E402
import numpy as np  # noqa: E402
import recorder  # noqa: E402
import test_golden_runs as golden  # noqa: E402

from bert_jax import config as config_lib  # noqa: E402
from bert_jax import train  # noqa: E402
from bert_jax.buckets import Path as AnyPath  # noqa: E402
from bert_jax.errors import InputError  # noqa: E402
from bert_jax.run.inputs import read_inputs  # noqa: E402
from bert_jax.run.speed import MEASURED  # noqa: E402
from bert_jax.tools import convert  # noqa: E402
from bert_jax.tools.prepare import __main__ as prepare  # noqa: E402
from bert_jax.workdir import checkpoint, lock, records, trained  # noqa: E402

FORK = multiprocessing.get_context('fork')
SECONDS = 300  # after which a run counts as stuck
LONGEST = 1500  # characters of a sentence
BUCKET = 'az://mine/W'
# What every run does, whatever its golden run does.
OFTEN = golden.settings("""steps=12 eval.every=4 eval.batches=0 checkpoint.every=2
checkpoint.keep_latest=3 log.every=1 checkpoint.best_metric=""")
RUNS = golden.RUNS | recorder.MORE_RUNS
RUNS['a prepared corpus'] = RUNS['nsp'][0], RUNS['nsp'][1] | {'data.train': '{texts}/prepared'}
TAUGHT = RUNS['from a teacher']
RUNS['from a teacher'] = TAUGHT[0], TAUGHT[1] | {'model.num_hidden_layers': '1'}
# Of the damage of files and inputs: which runs, of which what is read.
READ = {
  'lines': 'nsp',
  'a prepared corpus': 'a prepared corpus',
  'pairs': 'labels of pairs',
  'numbers': 'a number',
  'tags': 'tags',
  'squad': 'answers',
  'copa': 'choices',
  'gap': 'coreference',
  'translation': 'translation',
}


def overrides(name: str, texts: str, teacher: str = '') -> tuple[str, list[str]]:
  """(config file with arguments, overrides) of a run on the texts of a folder."""
  spec, own = RUNS[name]
  family = golden.PRETRAIN if 'pretrain' in spec else golden.FINETUNE
  fields = golden.COMMON | family | own | OFTEN | {'tokenizer.path': '{texts}/vocab.txt'}
  if 'data' in fields:
    data = fields.pop('data')
    fields |= {'data.train': data, 'data.eval': data}
  given = [f'--config.{k}={x}'.format(texts=texts, teacher=teacher) for k, x in fields.items()]
  file, _, arguments = spec.partition(':')
  return f'{HERE.parent / "configs" / file}:{arguments}', given


def write_texts(folder: Path) -> None:
  """What the runs read: the texts of the golden runs, and a prepared corpus of one of them."""
  folder.mkdir(parents=True, exist_ok=True)
  golden.write_texts(folder)
  arguments = f'--input {folder}/corpus.txt --vocab {folder}/vocab.txt --out {folder}/prepared'
  prepare.run(prepare.parser().parse_args([*arguments.split(), '--processes', '1']))


# ---- kills ---------------------------------------------------------------------------------------


class Run:
  """A training in a process of its own, which tells when it saves a checkpoint."""

  def __init__(self, folder: Path, name: str, workdir: str):
    self.log = folder / 'log.txt'
    self.saves, there = FORK.Pipe(duplex=False)
    arguments = folder, name, workdir, self.log, there
    self.process = FORK.Process(target=_train, args=arguments)
    self.process.start()
    there.close()

  def kill_at(self, rng: random.Random, seconds: float) -> bool:
    """Kills the run at a random moment: a while after one of its checkpoints begins to be saved, or
    of all `seconds` that it takes. Was it killed before its end?"""
    if rng.random() < 0.5:
      for _ in range(rng.randrange(1, 6)):
        if not self.saves.poll(seconds + 10):
          break
        with contextlib.suppress(EOFError):
          self.saves.recv()
      time.sleep(rng.uniform(0, 0.2))
    else:
      time.sleep(rng.uniform(0, 1.1 * seconds))
    was_alive = self.process.is_alive()
    if was_alive:
      os.kill(self.process.pid, signal.SIGKILL)
    self.process.join()
    return was_alive and self.process.exitcode == -signal.SIGKILL

  def ended(self) -> str:
    """Waits for the end: '' or what is wrong with it."""
    self.process.join(SECONDS)
    if self.process.is_alive():
      self.process.kill()
      return 'it did not end'
    log = self.log.read_text(errors='replace')
    if self.process.exitcode or 'Traceback' in log:
      return f'exit {self.process.exitcode}: {log[-1500:]}'
    return ''


def _train(folder, name, workdir, log, there):
  """The process of a Run."""
  os.chdir(folder)
  os.environ |= {'FAKE_BUCKET': str(folder / 'store'), 'XDG_CACHE_HOME': str(folder / 'cache')}
  lock.BEAT_SECONDS, lock.STALE_SECONDS = 0.2, 1.0
  save = checkpoint.Checkpoints.save

  def telling(*arguments, **options):
    there.send(True)
    return save(*arguments, **options)

  checkpoint.Checkpoints.save = telling
  output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
  os.dup2(output, 1)
  os.dup2(output, 2)
  spec, given = overrides(name, 'texts', 'teacher')
  sys.argv = ['train', f'--config={spec}', '--workdir', workdir, *given]
  code = 0
  try:
    train.main(sys.argv[1:])
  except SystemExit as end:
    code = end.code or 0
  except BaseException:
    traceback.print_exc()
    code = 1
  sys.stdout.flush()
  os._exit(code)


def result(folder: Path, workdir: str) -> dict:
  """All that a finished run computed: checksums of its last state, and its metrics."""
  os.environ['FAKE_BUCKET'] = str(folder / 'store')
  path = AnyPath(workdir if '://' in workdir else folder / workdir)
  run = records.read(path)
  lines = []
  for text in (path / 'metrics.jsonl').read_text().splitlines():
    line = json.loads(text)
    lines.append({k: x for k, x in line.items() if k not in (*MEASURED, 'steps')})
  return {'arrays': run.newest['arrays'], 'lines': lines, 'faults': list(run.faults)}


def try_kills(name: str, workdir: str, folder: Path, tries: int, rng: random.Random) -> list[str]:
  """What went wrong in a run that was killed so often; RuntimeError if it fails without a kill."""
  whole = fresh(folder / 'whole')
  before = time.monotonic()
  wrong = Run(whole, name, workdir).ended()
  seconds = time.monotonic() - before
  if wrong:
    raise RuntimeError(f'{name}, not killed: {wrong}')
  expected, killed = result(whole, workdir), fresh(folder / 'killed')
  count = 0
  for _ in range(5 * tries):
    count += Run(killed, name, workdir).kill_at(rng, seconds)
    if count == tries:
      break
  wrong = Run(killed, name, workdir).ended()
  counts['kills'] += count
  if wrong:
    return [wrong]
  found = result(killed, workdir)
  return [
    f'{what} differ after {count} kills' for what in expected if found[what] != expected[what]
  ]


def fresh(folder: Path) -> Path:
  """A new folder with the texts, a teacher and an empty bucket."""
  folder.mkdir(parents=True)
  (folder / 'store').mkdir()
  for name in ('texts', 'teacher'):
    (folder / name).symlink_to(folder.parents[1] / name)
  return folder


def kills(folder: Path, only: str, tries: int, rng: random.Random, places: str):
  make_teacher = any('teacher' in RUNS[name][1] for name in RUNS if only in name)
  if make_teacher:
    (folder / 'store').mkdir()
    wrong = Run(folder, 'nsp', 'teacher').ended()
    if wrong:
      raise RuntimeError(f'the teacher: {wrong}')
  for number, name in enumerate(RUNS):
    for place, workdir in (('disk', 'W'), ('bucket', BUCKET)):
      if only in name and place in places:
        bad = try_kills(name, workdir, folder / f'{number}-{place}', tries, rng)
        yield from (f'{name}, on a {place}: {sentence}' for sentence in bad)


# ---- files and inputs ----------------------------------------------------------------------------


def flipped(rng, data):
  place = rng.randrange(8 * len(data))
  changed = bytearray(data)
  changed[place // 8] ^= 1 << place % 8
  return bytes(changed)


def cut(rng, data):
  return data[: rng.randrange(len(data))]


def emptied(rng, data):
  return b''


def with_odd_bytes(rng, data):
  odd = [b'\xff', b'\x00', b'"', b'\t', b',', b'\r', b'\n\n', b'{', b'\xef\xbb\xbf', '‮😀'.encode()]
  at = rng.randrange(len(data) + 1)
  return data[:at] + rng.choice(odd) + data[at:]


def without_a_line(rng, data):
  lines = data.splitlines(keepends=True)
  lines.pop(rng.randrange(len(lines)))
  return b''.join(lines)


def with_a_line_again(rng, data):
  lines = data.splitlines(keepends=True)
  lines.insert(rng.randrange(len(lines)), rng.choice(lines))
  return b''.join(lines)


DAMAGE = flipped, cut, emptied
MUTATIONS = *DAMAGE, with_odd_bytes, without_a_line, with_a_line_again


def digest(tree) -> str:
  """A hash of all arrays of a tree."""
  out = hashlib.sha256()
  for path, x in jax.tree.leaves_with_path(tree):
    array = np.asarray(x)
    out.update(f'{path} {array.dtype} {array.shape}'.encode() + array.tobytes())
  return out.hexdigest()


def rows_of(batches) -> list:
  return [jax.device_get(batches[step]) for step in range(len(batches))]


def read_data(name: str, folder: Path) -> str:
  """A checksum of all that a run reads before it trains."""
  spec, given = overrides(name, str(folder / 'texts'))
  inputs = read_inputs(config_lib.load(spec, given), folder / 'W')
  splits = [inputs.batches, inputs.eval_batches]
  return digest([rows_of(batches) for batches in splits if batches])


def read_model(path: Path) -> str:
  model = trained.load(path)
  return digest(model.params) + model.tokenizer.fingerprint + str(config_lib.flatten(model.config))


class Warned(logging.Handler):
  """Counts what is logged as a warning or worse."""

  def __init__(self):
    super().__init__(logging.WARNING)
    self.count = 0

  def emit(self, record):
    self.count += 1


def outcome(read, right: set[str]) -> str:
  """'' if a reading gives one of the right results, the first without a word, or one sentence."""
  warned = Warned()
  logging.getLogger('bert_jax').addHandler(warned)
  try:
    got = read()
  except InputError as error:
    sentence = str(error)
    counts['refused'] += 1
    if '\n' in sentence or len(sentence) > LONGEST:
      return f'not one sentence: {sentence[:300]}'
    return ''
  except Exception:
    return f'a traceback: {traceback.format_exc()[-1500:]}'
  finally:
    logging.getLogger('bert_jax').removeHandler(warned)
  if right and got not in right:
    return 'another result, without a word' if not warned.count else 'another result'
  return ''


def files_below(folder: Path) -> list[Path]:
  return sorted(path for path in folder.rglob('*') if path.is_file() and path.stat().st_size)


def damaged(path: Path, ways, rng: random.Random) -> str:
  """Damages a file; returns how."""
  way = rng.choice(ways)
  path.write_bytes(way(rng, path.read_bytes()))
  return f'{path.name} {way.__name__}'


def files(folder: Path, only: str, tries: int, rng: random.Random, places: str):
  for name in ('nsp', 'labels of pairs'):
    spec, given = overrides(name, str(folder / 'texts'))
    workdir = folder / f'{name} run'
    train.train(config_lib.load(spec, given), workdir)
    export = folder / f'{name} export'
    convert.main(['--from', str(workdir), '--to', f'hf:{export}'])
    steps = records.read(workdir).checkpoints
    states = {digest(trained.load(workdir, step).params): step for step in steps[-2:]}
    for kind, source in (('a workdir', workdir), ('an exported model', export)):
      if only not in kind:
        continue
      right = {read_model(source)}
      for number in range(tries):
        place = folder / f'{name} {kind} {number}'
        shutil.copytree(source, place)
        chosen = rng.choice(files_below(place))
        how = damaged(chosen, DAMAGE, rng)
        counts['files'] += 1
        wrong = outcome(functools.partial(read_model, place), right)
        if wrong == 'another result' and digest(trained.load(place).params) in states:
          wrong = ''  # of the checkpoint before, which was said
        if kind == 'an exported model' and chosen.name == 'config.json':
          wrong = wrong.removeprefix('another result, without a word')  # others write it, unsealed
        if wrong:
          yield f'{kind} of {name}, {chosen.relative_to(place)}: {how}: {wrong}'
        shutil.rmtree(place)
  if only in 'a prepared corpus':
    right = {read_data('a prepared corpus', folder)}
    for number in range(tries):
      place = folder / f'prepared {number}'
      shutil.copytree(folder / 'texts', place / 'texts')
      chosen = rng.choice(files_below(place / 'texts' / 'prepared'))
      how = damaged(chosen, DAMAGE, rng)
      counts['files'] += 1
      wrong = outcome(functools.partial(read_data, 'a prepared corpus', place), right)
      if wrong:
        yield f'a prepared corpus, {how}: {wrong}'
      shutil.rmtree(place)


def inputs(folder: Path, only: str, tries: int, rng: random.Random, places: str):
  names = [(kind, name) for kind, name in READ.items() if only in kind and 'prepared' not in kind]
  for number in range(tries):
    kind, name = rng.choice(names)
    place = folder / f'input {number}'
    place.mkdir()
    shutil.copytree(folder / 'texts', place / 'texts', ignore=shutil.ignore_patterns('prepared'))
    _, given = overrides(name, str(place / 'texts'))
    (data,) = [x.partition('=')[2] for x in given if x.startswith('--config.data.train=')]
    hows = [
      damaged(Path(data), MUTATIONS, rng)
      for _ in range(rng.randrange(1, 4))
      if Path(data).stat().st_size
    ]
    counts['inputs'] += 1
    wrong = outcome(functools.partial(read_data, name, place), set())
    if wrong:
      yield f'{kind} ({", ".join(hows)}): {wrong}'
    shutil.rmtree(place)


PROPERTIES = {'kills': kills, 'files': files, 'inputs': inputs}
counts = collections.Counter()


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('property', choices=PROPERTIES)
  parser.add_argument('--tries', type=int, default=5, help='of each family, or in all; default: 5')
  parser.add_argument('--only', default='', metavar='TEXT', help='what has this in its name')
  parser.add_argument('--places', default='disk,bucket', help='where runs are killed')
  parser.add_argument('--seed', type=int, default=0)
  args = parser.parse_args()
  bad = 0
  with tempfile.TemporaryDirectory(prefix='faults-') as folder:
    folder = Path(folder)
    write_texts(folder / 'texts')
    rng = random.Random(args.seed)
    for sentence in PROPERTIES[args.property](folder, args.only, args.tries, rng, args.places):
      bad += 1
      print(f'BAD {sentence}', flush=True)
  tried = ', '.join(f'{number} {name}' for name, number in sorted(counts.items()))
  print(f'{tried}; {bad} bad')
  raise SystemExit(bad > 0)


if __name__ == '__main__':
  main()
