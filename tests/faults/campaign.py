"""A campaign of faults against this installation: what is survived, named, silent or lost?

    python tests/faults --out FOLDER                   # all families: see README.md
    python tests/faults --quick                        # each family three times, all kinds
    python tests/faults --out F --only memory --resume # one family, added to the table of F
    python tests/faults --only tags --kind kill --case 3  # a single case, such as a bad one

README.md says what is done to what. A try is

  survived    it ended with the result of an undisturbed run, bit for bit, or gave that of an older
              checkpoint and said so
  named       it was refused with one sentence, and goes on once the fault is mended
  silent      it gave another result without a word
  tracebacks  it ended with a traceback, or without a sentence
  lost        work that was on the disk before is gone, or the run cannot go on, or does not end

The tables are printed, and written to FOLDER as faults.md and faults.json with the bad tries, whose
folders stay there. The exit status is 0 if nothing was silent, a traceback or lost, else 1.
"""

import collections
import concurrent.futures
import functools
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from unittest import mock

import conftest
from faults import families, files, kinds, runs

from bert_jax.command_line import command_line, command_parser
from bert_jax.errors import InputError
from bert_jax.files import write_json
from bert_jax.tools import arguments
from bert_jax.workdir import provenance

GOOD = 'survived', 'named'
OUTCOMES = *GOOD, 'silent', 'tracebacks', 'lost'
is_bad = lambda tried: tried.outcome not in GOOD
INPUTS_ALONE = 'inputs'  # the family of the cases that need no run
ALL = tuple(families.FAMILIES)
WRITERS = tuple(name for name in ALL if families.tools(name))
KINDS = kinds.KINDS | {'files': files.damaged, 'inputs': files.mutated}
CASES = {  # {kind: (families, how many cases of each)}
  'kill': (ALL, 5),
  'files': (ALL, 18),
  'extend': (ALL, 1),
  'signal': (ALL, 1),
  'trained': (ALL, 2),
  'meanwhile': (ALL, 1),
  'tools': (WRITERS, 2),
  'disk': (ALL, 1),
  'two': (ALL, 1),
  'finite': (ALL, 1),
  'devices': (ALL, 1),
  'processes': (ALL, 1),
  'inputs': ((INPUTS_ALONE,), 20),
}
# Of which --quick tries a case on every family; each other kind, on every so many families.
QUICK = 'kill', 'files', 'inputs'
FAULTS_OF = {'files': files.FAULTS, 'trained': 1}  # {kind: faults in files of a case}
WHOSE = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
ATTEMPTS = 9  # at a fault that did not take place, such as a signal after the end
ENVIRONMENT = {  # of the runs
  'JAX_PLATFORMS': 'cpu',
  'OPENBLAS_NUM_THREADS': '1',
  'TOKENIZERS_PARALLELISM': 'false',
  'XLA_FLAGS': conftest.QUICK,
  'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
}


def begin(base, name, extends, seed):
  """Makes the folders of a family, its undisturbed run W, and S, which is killed -> files.Known.
  extends: makes one that goes on after its end, too."""
  (base / 'texts').mkdir(parents=True)
  if name == INPUTS_ALONE:
    return None
  (base / 'I').mkdir()
  families.golden.write_texts(base / 'texts')
  nouns = families.golden.WORDS[:8]
  (base / 'texts' / 'phrases.txt').write_text(''.join(f'near {x}\n' for x in nouns))
  (base / 'texts' / 'entities.txt').write_text(''.join(f'{x}\n' for x in nouns[:4]))
  for file in ('texts', 'I'):
    (base / file / 'lines.txt').write_text(families.LINES)
  for command in families.before(name):
    undisturbed(base, command)
  whole, started = undisturbed(base, families.train_command(name, 'W'), 'W')
  killed = killed_late(base, name, started, random.Random(f'{seed} {name}'))
  saved, extended = {step: sums for step, *sums in killed.saved}, whole
  if any(whole.saved[step] != sums for step, sums in saved.items()):
    raise RuntimeError(f'two undisturbed runs of {name} differ; nothing can be judged here')
  if extends:
    shutil.copytree(base / 'W', base / 'X')
    extended, _ = undisturbed(base, families.train_command(name, 'X', steps=families.MORE), 'X')
  read = runs.Run(base, functools.partial(files.expected, base)).end(600)
  if read.code:
    raise RuntimeError(f'{name}: {read.log[-3000:]}')
  right, newest = json.loads(read.out.splitlines()[-1]), max(runs.steps(base / 'S'))
  if not right['workdir']['train'].startswith(f'{newest} {saved[newest][0]} '):
    raise RuntimeError(f'{name}: another state is read at step {newest} than the run had')
  seconds = kinds.durations(started.phases) | kinds.durations(killed.phases)
  return files.Known(name, whole, extended, seconds, killed.phases[-1][0], right)


def killed_late(base, name, whole, rng):
  """A run in S that is killed between its second evaluation and the third one, which is its last.
  whole: the same run in another folder, undisturbed."""
  begun = [at for phase, at in whole.phases if phase == 'evaluating']
  each = len(begun) // 3  # passes of an evaluation
  for _ in range(ATTEMPTS):
    started = runs.Run(base, families.train_command(name, 'S'))
    started.reach('evaluating', each + 1)
    time.sleep(rng.uniform(0, 0.8 * (begun[2 * each] - begun[each])))
    started.send(signal.SIGKILL)
    was_killed = started.end().code == -signal.SIGKILL
    if was_killed and 0 < max(runs.steps(base / 'S'), default=0) < families.STEPS:
      return started
    shutil.rmtree(base / 'S')
  raise RuntimeError(f'{name} ends too fast to be killed')


def undisturbed(base, command, workdir=''):
  """(Whole, Run) of a program that must not fail."""
  started, ended = runs.run(base, command)
  if ended.code != 0:
    raise RuntimeError(f'{" ".join(command)} failed:\n{ended.log[-3000:]}')
  saved = {step: sums for step, *sums in started.saved}
  return files.Whole(started.state, runs.lines(base / workdir), saved), started


def case(base, kind, number, seed, folder, known):
  """The Trys of a case in a new folder. base: what `begin` has made, to give `known`."""
  rng = random.Random(f'{seed} {folder.name}')
  try:
    for _ in range(ATTEMPTS):
      if tries := KINDS[kind](base, files.copy(base, folder), known, number, rng):
        return tries
      shutil.rmtree(folder)
    return []
  except Exception:
    return [files.Try(kind, 'tracebacks', f'of the campaign: {traceback.format_exc()}')]


def measured(function, *arguments):
  """(What a function gives, CPU seconds of this process and of the programs that it ran)."""
  used = lambda: sum(sum(resource.getrusage(x)[:2]) for x in WHOSE)
  before = used()
  return function(*arguments), used() - before


def campaign(cases, seed, jobs, out):
  """Runs [(family, kind, number), ...] and yields each, as soon as it has ended, with its Trys and
  the CPU seconds that it took; those of the undisturbed runs come with a case without a kind."""
  with tempfile.TemporaryDirectory(prefix='faultbench-') as root, mock.patch.dict(os.environ):
    root = Path(root)
    os.environ |= ENVIRONMENT | {'JAX_COMPILATION_CACHE_DIR': str(root / 'compiled')}
    context = multiprocessing.get_context('spawn')
    with concurrent.futures.ProcessPoolExecutor(jobs, context) as pool:
      extends = {family for family, kind, _ in cases if kind == 'extend'}
      names, making, running = [*dict.fromkeys(family for family, *_ in cases)], {}, {}

      def submit(each, known):
        base, folder = root / each[0], root / '{}-{}-{}'.format(*each)
        return pool.submit(measured, case, base, *each[1:], seed, folder, known), each

      while names or making or running:
        if names and len(making) + len(running) < jobs:  # so that an interrupted one has cases
          x = names.pop(0)
          making[pool.submit(measured, begin, root / x, x, x in extends, seed)] = x
          continue
        (future, *_) = concurrent.futures.wait([*making, *running], None, 'FIRST_COMPLETED').done
        if name := making.pop(future, ''):
          of_family, fault = [each for each in cases if each[0] == name], future.exception()
          for each in of_family if fault else ():
            yield each, [files.Try(each[1], 'tracebacks', f'of the campaign: {fault}')], 0
          if not fault:
            known, used = future.result()
            running |= dict(submit(each, known) for each in of_family)
            yield (name, '', 0), [], used
          continue
        each, (tries, used) = running.pop(future), future.result()
        folder = root / '{}-{}-{}'.format(*each)
        if any(is_bad(x) for x in tries):
          shutil.copytree(folder, out / folder.name, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        yield each, tries, used


def table(*rows):
  """The lines of a table in markdown; the first row is its head."""
  lines = ['| ' + ' | '.join(map(str, row)) + ' |' for row in rows]
  return ['', lines[0], '| ' + ' | '.join(['---'] * len(rows[0])) + ' |', *lines[1:]]


def outcomes(tries):
  """{row: [how many tries, how many of each outcome]} of [(row, Try), ...], and of all."""
  counts = collections.defaultdict(collections.Counter)
  for row, each in tries:
    counts[row][each.outcome] += 1
  counts['all'] = sum(counts.values(), collections.Counter())
  return {row: [n.total(), *(n[x] for x in OUTCOMES)] for row, n in counts.items()}


def written(out, results, command, seconds, seed):
  """Writes the results {(family, kind, number): Trys}, and {family: CPU seconds}, as faults.json
  and faults.md -> its lines."""
  cases = sorted(results, key=lambda each: ([*CASES].index(each[1]), each))
  tries = [(each, x) for each in cases for x in results[each]]
  of_rows = outcomes([(x.row, x) for _, x in tries])
  begins = lambda *names: sum(n for row, (n, *_) in of_rows.items() if row.startswith(names))
  injected = sum(FAULTS_OF.get(kind, 0) for _, kind, _ in cases)
  minutes, head = sum(seconds.values()) / 60, ('fault', 'tries', *OUTCOMES)
  of_families = outcomes([(each[0], x) for each, x in tries])
  last = [f'{seconds.get(name, minutes * 60):.0f}' for name in of_families]
  lines = [
    f'`{command}`, {time.strftime("%Y-%m-%d")}, {minutes:.0f} CPU minutes:',
    *table(
      ('', 'tried'),
      ('kills of a run', begins('kill -9')),
      ('faults in files, each read by one to six programs', injected),
      ('inputs', begins('inputs')),
      ('of these, read here and asked of another program', begins('inputs,')),
      ('cases whose fault did not take place', sum(not results[each] for each in cases)),
    ),
    *table(head, *([row, *n] for row, n in of_rows.items())),
    *table(
      ('family', *head[1:], 'CPU seconds'),
      *([name, *n, used] for (name, n), used in zip(of_families.items(), last, strict=True)),
    ),
  ]
  (out / 'faults.md').write_text('\n'.join(lines) + '\n')
  facts = {'command': command, 'seed': seed, 'seconds': seconds, 'versions': provenance.versions()}
  write_json(out / 'faults.json', facts | {'cases': [[*each, results[each]] for each in cases]})
  return lines


def earlier(path, seed):
  """({(family, kind, number): Trys}, {family: CPU seconds}) of faults.json; InputError if it is of
  another seed or of other versions."""
  facts, out = json.loads(path.read_text()) if path.exists() else {}, {}
  if facts and (facts['seed'], facts['versions']) != (seed, provenance.versions()):
    raise InputError(f'{path} is of another seed or version; leave --resume out, or change --out.')
  for *each, tries in facts.get('cases', ()):
    out[tuple(each)] = [files.Try(*x) for x in tries]
  return out, facts.get('seconds', {})


def chosen(args):
  """The cases [(family, kind, number), ...] that the command line asks for."""
  out, others = [], [kind for kind in CASES if kind not in QUICK]
  for kind, (of, many) in CASES.items():
    for name in of:
      i = [*ALL, INPUTS_ALONE].index(name)
      is_asked = args.only in ('', name) and args.kind in ('', kind)
      if args.quick and not args.kind:
        is_asked &= kind in QUICK or kind == others[i % len(others)]
      numbers = range(many) if args.case is None else [args.case]
      numbers = [i // len(others) % many] if args.quick and args.case is None else numbers
      out += [(name, kind, n) for n in numbers if is_asked]
  return out


def main(argv=None):
  parser = command_parser('', __doc__)
  parser.prog = 'python tests/faults'
  add = parser.add_argument
  add('--out', default='faults', help='folder of the results and of what went wrong')
  add('--quick', action='store_true', help='a short campaign')
  add('--seed', type=int, default=0, help='of the moments, places and kinds of the faults')
  add('--jobs', type=int, default=provenance.cores(), help='cases at once; default: one per core')
  add('--only', default='', choices=(*ALL, INPUTS_ALONE), help='one family')
  add('--kind', default='', choices=CASES, help='one kind of fault')
  add('--case', type=int, help='one case of --only and --kind, by its number from 0')
  add('--resume', action='store_true', help='keep what --out has, and repeat its bad cases')
  args = parser.parse_args(argv)
  with command_line():
    if args.case is not None and not (args.only and args.kind):
      raise InputError('--case is one of a kind; name it with --only FAMILY --kind KIND.')
    if args.jobs < 1:
      raise InputError(f'--jobs is {args.jobs}; use 1 or more.')
    out = Path(args.out).expanduser()
    arguments.check_writable(out)
    out.mkdir(parents=True, exist_ok=True)
    results, seconds = earlier(out / 'faults.json', args.seed) if args.resume else ({}, {})
    good = {each for each, tries in results.items() if not any(map(is_bad, tries))}
    cases = [each for each in chosen(args) if each not in good]
    words = sys.argv[1:] if argv is None else argv
    command = ' '.join(['python tests/faults', *words])

    for each, tries, used in campaign(cases, args.seed, args.jobs, out):
      results |= {each: tries} if each[1] else {}
      seconds[each[0]] = seconds.get(each[0], 0) + used
      written(out, results, command, seconds, args.seed)
    print('\n'.join(written(out, results, command, seconds, args.seed)))
    bad = [(each, x) for each, tries in results.items() for x in tries if is_bad(x)]
    for (family, kind, number), x in bad:
      again = f'--only {family} --kind {kind} --case {number} --seed {args.seed}'
      print(f'\n{x.row}: {x.outcome} ({again}): {x.note}', file=sys.stderr)
    sys.exit(bool(bad))
