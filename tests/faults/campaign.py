"""A campaign of faults against this installation: what is survived, named, silent or lost?

    python tests/faults --out FOLDER                   # all families: see README.md
    python tests/faults --quick                        # a case or two of each, and of each kind
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
SOME = 'mlm_nsp', 'memory', 'examples'
WRITERS = tuple(name for name in ALL if families.tools(name))
KINDS = kinds.KINDS | {'files': files.damaged, 'inputs': files.mutated}
CASES = {  # {kind: (families, how many cases of each)}
  'kill': (ALL, 5),
  'extend': (ALL, 2),
  'signal': (ALL, 2),
  'files': (ALL, 9),
  'trained': (ALL, 2),
  'meanwhile': (SOME, 4),
  'tools': (WRITERS, 4),
  'disk': (SOME, 4),
  'two': (SOME, 3),
  'finite': (SOME[:1], 8),
  'devices': (SOME[:2], 2),
  'processes': (SOME[:1], 6),
  'inputs': ((INPUTS_ALONE,), 20),
}
QUICK = 'kill', 'files'  # which --quick tries once on every family; the other kinds, on SOME
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


def begin(base, name, extends):
  """Makes the folders of a family, and its undisturbed run -> files.Known. extends: makes one that
  goes on after its end, too."""
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
  whole = extended = undisturbed(base, families.train_command(name, 'W'), 'W')
  stopped = runs.Run(base, families.train_command(name, 'S'))  # which compiles nothing
  stopped.reach('evaluating', 2)
  stopped.send(signal.SIGTERM)
  stopped.end()
  saved = {step: sums for step, *sums in stopped.saved}
  if any(whole.saved.get(step, sums) != sums for step, sums in saved.items()):
    raise RuntimeError(f'two undisturbed runs of {name} differ; nothing can be judged here')
  if extends:
    shutil.copytree(base / 'W', base / 'X')
    extended = undisturbed(base, families.train_command(name, 'X', steps=families.MORE), 'X')
  for command in families.after(name):
    undisturbed(base, command)
  read = runs.Run(base, functools.partial(files.expected, base)).end(600)
  if read.code:
    raise RuntimeError(f'{name}: {read.log[-3000:]}')
  right = {k: {int(n): x for n, x in of.items()} for k, of in json.loads(read.out).items()}
  for step, outputs in right['workdir'].items():  # the states that the run had in memory
    if not outputs['train'].startswith(f'{step} {saved[step][0]} '):
      raise RuntimeError(f'{name}: another state is read at step {step} than the run had')
  return files.Known(name, whole, extended, kinds.durations(stopped.phases), right)


def undisturbed(base, command, workdir=''):
  """The Whole of a program that must not fail."""
  started, ended = runs.run(base, command)
  if ended.code != 0:
    raise RuntimeError(f'{" ".join(command)} failed:\n{ended.log[-3000:]}')
  saved = {step: sums for step, *sums in started.saved}
  return files.Whole(started.state, runs.lines(base / workdir), saved)


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
  """(What a function gives, CPU minutes of this process and of the programs that it ran)."""
  used = lambda: sum(sum(resource.getrusage(x)[:2]) for x in WHOSE) / 60
  before = used()
  return function(*arguments), used() - before


def campaign(cases, seed, jobs, out):
  """Runs [(family, kind, number), ...] and yields each, as soon as it has ended, with its Trys and
  the CPU minutes that it took; those of the undisturbed runs come with a first case without any."""
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
          making[pool.submit(measured, begin, root / x, x, x in extends)] = x
          continue
        (future, *_) = concurrent.futures.wait([*making, *running], None, 'FIRST_COMPLETED').done
        if name := making.pop(future, ''):
          of_family, fault = [each for each in cases if each[0] == name], future.exception()
          for each in of_family if fault else ():
            yield each, [files.Try(each[1], 'tracebacks', f'of the campaign: {fault}')], 0
          if not fault:
            known, used = future.result()
            running |= dict(submit(each, known) for each in of_family)
            yield of_family[0], [], used
          continue
        each, (tries, used) = running.pop(future), future.result()
        folder = root / '{}-{}-{}'.format(*each)
        if any(is_bad(x) for x in tries):
          shutil.copytree(folder, out / folder.name, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        yield each, tries, used


def table(results):
  """The lines of the table in markdown, of [(what it is of, Try), ...]."""
  counts = collections.defaultdict(collections.Counter)
  for row, each in results:
    counts[row][each.outcome] += 1
  counts['all'] = sum(counts.values(), collections.Counter())
  rows = [[row, n.total(), *(n[x] for x in OUTCOMES)] for row, n in counts.items()]
  head = ['fault', 'tries', *OUTCOMES], ['---'] * 7
  return ['| ' + ' | '.join(map(str, row)) + ' |' for row in (*head, *rows)]


def written(out, results, command, minutes, seed):
  """Writes the results {(family, kind, number): Trys} as faults.json and faults.md -> its lines."""
  cases = sorted(results, key=lambda each: ([*CASES].index(each[1]), each))
  tries = [(each, x) for each in cases for x in results[each]]
  head = f'`{command}`, {time.strftime("%Y-%m-%d")}, {minutes:.0f} CPU minutes:'
  rows = [(x.row, x) for _, x in tries], [(each[0], x) for each, x in tries]
  lines = [head, *(line for part in rows for line in ('', *table(part)))]
  (out / 'faults.md').write_text('\n'.join(lines) + '\n')
  facts = {'command': command, 'seed': seed, 'minutes': minutes, 'versions': provenance.versions()}
  facts['tries'] = [[*each, *x] for each, x in tries]
  write_json(out / 'faults.json', facts)
  return lines


def earlier(path, seed):
  """({(family, kind, number): Trys}, minutes) of the good cases of faults.json; InputError if they
  are of another seed or of other versions."""
  facts, out = json.loads(path.read_text()) if path.exists() else {}, {}
  if facts and (facts.get('seed'), facts['versions']) != (seed, provenance.versions()):
    raise InputError(f'{path} is of another seed or version; leave --resume out, or change --out.')
  for *each, row, outcome, note in facts.get('tries', ()):
    out.setdefault(tuple(each), []).append(files.Try(row, outcome, note))
  good = {each: tries for each, tries in out.items() if not any(map(is_bad, tries))}
  return good, facts.get('minutes', 0)


def chosen(args):
  """The cases [(family, kind, number), ...] that the command line asks for."""
  out = []
  for kind, (of, many) in CASES.items():
    few = of if kind in QUICK else [x for x in of if x in (*SOME, INPUTS_ALONE)]
    for i, name in enumerate(few if args.quick else of):
      numbers = [args.case] if args.case is not None else [i % many] if args.quick else range(many)
      is_asked = args.only in ('', name) and args.kind in ('', kind)
      out += [(name, kind, n) for n in numbers if is_asked]
  return out


def main(argv=None):
  parser = command_parser('tools.faultbench', __doc__)
  add = parser.add_argument
  add('--out', default='faults', help='folder of the results and of what went wrong')
  add('--quick', action='store_true', help='a short campaign')
  add('--seed', type=int, default=0, help='of the moments, places and kinds of the faults')
  add('--jobs', type=int, default=arguments.cores(), help='cases at once; default: one per core')
  add('--only', default='', choices=(*ALL, INPUTS_ALONE), help='one family')
  add('--kind', default='', choices=CASES, help='one kind of fault')
  add('--case', type=int, help='one case of --only and --kind, by its number from 0')
  add('--resume', action='store_true', help='keep the good cases that --out has')
  args = parser.parse_args(argv)
  with command_line():
    if args.case is not None and not (args.only and args.kind):
      raise InputError('--case is one of a kind; name it with --only FAMILY --kind KIND.')
    if args.jobs < 1:
      raise InputError(f'--jobs is {args.jobs}; use 1 or more.')
    out = Path(args.out).expanduser()
    arguments.check_writable(out)
    out.mkdir(parents=True, exist_ok=True)
    results, minutes = earlier(out / 'faults.json', args.seed) if args.resume else ({}, 0)
    cases = [each for each in chosen(args) if each not in results]
    words = sys.argv[1:] if argv is None else argv
    command = ' '.join(['python tests/faults', *words])

    for each, tries, used in campaign(cases, args.seed, args.jobs, out):
      results[each], minutes = tries, minutes + used
      written(out, results, command, minutes, args.seed)
    print('\n'.join(written(out, results, command, minutes, args.seed)))
    bad = [(each, x) for each, tries in results.items() for x in tries if is_bad(x)]
    for (family, kind, number), x in bad:
      again = f'--only {family} --kind {kind} --case {number} --seed {args.seed}'
      print(f'\n{x.row}: {x.outcome} ({again}): {x.note}', file=sys.stderr)
    sys.exit(bool(bad))
