"""A campaign of faults against this installation: what is survived, named, silent or lost?

    python tests/faults --out FOLDER          # 100 kills, 300 faults, 10,000 inputs
    python tests/faults --quick               # under 10 minutes on 2 cores
    python tests/faults --only kill --case 3  # a single case, such as a bad one

A tiny run is killed, stopped by signals, starved of disk space, started twice, driven to numbers
that are not finite, moved to other devices, robbed of one of its processes; single bytes, lines and
files of a workdir, a prepared corpus and a released folder are damaged, and inputs of every reader
mutated. A try is

  survived    it ended with the result of an undisturbed run, bit for bit, or gave that of an older
              checkpoint and said so
  named       it was refused with one sentence, and goes on once the fault is mended
  silent      it gave another result without a word
  tracebacks  it ended with a traceback, or without a sentence
  lost        work that was on the disk before is gone, or the run cannot go on, or does not end

The table is printed, and written to FOLDER as faults.md and faults.json with the bad tries, whose
folders stay there. The exit status is 0 if nothing was silent, a traceback or lost, else 1.
"""

import collections
import concurrent.futures
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from unittest import mock

import tqdm

sys.path[:0] = [str(path) for path in Path(__file__).resolve().parents[1:3]]  # tests, and the root

from faults import files as fault_files  # noqa: E402
from faults import inputs as fault_inputs  # noqa: E402
from faults import kinds as fault_kinds  # noqa: E402
from faults import runs as fault_runs  # noqa: E402

from bert_jax.command_line import command_line  # noqa: E402
from bert_jax.errors import InputError  # noqa: E402
from bert_jax.tools import arguments  # noqa: E402
from bert_jax.workdir import provenance  # noqa: E402

OUTCOMES = ('survived', 'named', 'silent', 'tracebacks', 'lost')
SUBJECTS = {'workdir': 'workdir', 'corpus': 'prepared corpus', 'released': 'released folder'}
CASES = {  # {kind: cases of --quick, and of a campaign}
  'kill': (9, 56),
  'signal': (6, 36),
  'workdir': (18, 190),
  'corpus': (6, 70),
  'released': (6, 70),
  'disk': (2, 12),
  'two': (2, 9),
  'finite': (1, 8),
  'devices': (1, 4),
  'processes': (1, 6),
  'inputs': (2, 10),
}
INPUTS = 1000  # in a case
ENVIRONMENT = {  # of the runs; small programs that run for a few steps need no fast code
  'JAX_PLATFORMS': 'cpu',
  'OPENBLAS_NUM_THREADS': '1',
  'TOKENIZERS_PARALLELISM': 'false',
  'XLA_FLAGS': '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true',
  'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
}


def begin(base):
  """Writes the texts and makes the undisturbed run, twice -> (Whole, {phase: its durations})."""
  rng, names = random.Random(0), ('river', 'market', 'engine', 'garden')
  line = lambda name: f'the {name} holds the old {rng.choice(names)} number {rng.randrange(20)} .'
  documents = ('\n'.join(line(name) for _ in range(10)) for name in names * 10)
  (base / 'text.txt').write_text('\n\n'.join(documents) + '\n')
  (base / 'questions.txt').write_text('the [MASK] holds the old river .\nthe river [MASK] .\n')
  for workdir in ('W', 'again'):  # the second compiles nothing, as the runs of the campaign
    ended = fault_runs.run(base, fault_runs.train_command(workdir))
    whole = fault_files.whole(base, workdir, *ended)
  if fault_files.judge_end(base / 'W', ended[0], whole) != 'survived':
    raise RuntimeError('two undisturbed runs differ; nothing can be judged here')
  return whole, fault_kinds.durations(ended[0].phases)


def case(kind, number, seed, base, folder, known):
  """The Trys of a case in a new folder. known: {kind: what `begin` or fault_files.make gave}."""
  rng = random.Random(f'{seed} {kind} {number}')
  folder.mkdir(parents=True)
  try:
    if kind == 'inputs':
      return mutated(1000 * seed + number)
    if kind in SUBJECTS:
      return fault_files.single_fault(base, folder, SUBJECTS[kind], known[kind], number, rng)
    shutil.copy(base / 'text.txt', folder)
    return fault_kinds.KINDS[kind](folder, *known['run'], number, rng)
  except Exception:
    return [fault_files.Try(kind, 'tracebacks', f'of the campaign: {traceback.format_exc()}')]


def mutated(seed):
  """The Trys of damaged files of every format."""
  counts, bad = fault_inputs.run(INPUTS, seed, 1)
  row, out = f'damaged files of {len(counts)} formats', []
  for verdict, outcome in (('read', 'survived'), ('named', 'named')):
    number = sum(n.get(verdict, 0) for n in counts.values())
    out += [fault_files.Try(row, outcome)] * number
  for i, name, done, verdict, text in bad:
    outcome = 'tracebacks' if verdict == 'traceback' else 'lost'
    out.append(fault_files.Try(row, outcome, f'input {i}, {done} {name}: {verdict}: {text}'))
  return out


def campaign(cases, seed, jobs, out):
  """Runs [(kind, number), ...] -> {(kind, number): its Trys}."""
  kinds, results = {kind for kind, _ in cases}, {}
  with tempfile.TemporaryDirectory(prefix='faultbench-') as base, mock.patch.dict(os.environ):
    base = Path(base)
    os.environ |= ENVIRONMENT | {'JAX_COMPILATION_CACHE_DIR': str(base / 'compiled')}
    context = multiprocessing.get_context('spawn')
    with concurrent.futures.ProcessPoolExecutor(jobs, context) as pool:
      known = {'run': pool.submit(begin, base).result()} if kinds != {'inputs'} else {}
      made = {k: pool.submit(fault_files.make, base, SUBJECTS[k]) for k in SUBJECTS if k in kinds}
      known |= {kind: future.result() for kind, future in made.items()}
      shuffled = random.Random(seed).sample(cases, len(cases))  # so that the time left is right
      folders = {each: base / '{}-{}'.format(*each) for each in shuffled}
      submit = lambda each: pool.submit(case, *each, seed, base, folders[each], known)
      futures = {submit(each): each for each in shuffled}
      done = concurrent.futures.as_completed(futures)
      for future in tqdm.tqdm(done, 'faults', len(cases), unit='case', disable=None):
        each = futures[future]
        results[each] = future.result()
        if any(is_bad(x) for x in results[each]):
          shutil.copytree(folders[each], out / folders[each].name, dirs_exist_ok=True)
        shutil.rmtree(folders[each], ignore_errors=True)
  return {each: results[each] for each in cases}


def is_bad(each):
  return each.outcome not in ('survived', 'named')


def table(results):
  """The lines of the table in markdown."""
  counts = collections.defaultdict(collections.Counter)
  for each in results:
    counts[each.row][each.outcome] += 1
  counts['all'] = sum(counts.values(), collections.Counter())
  rows = [[row, n.total(), *(n[x] for x in OUTCOMES)] for row, n in counts.items()]
  head = ['fault', 'tries', *OUTCOMES]
  return ['| ' + ' | '.join(map(str, row)) + ' |' for row in (head, ['---'] * len(head), *rows)]


def main(argv=None):
  parser = arguments.parser('faultbench', __doc__)
  add = parser.add_argument
  add('--out', default='faults', help='folder of the results and of what went wrong')
  add('--quick', action='store_true', help='a short campaign')
  add('--seed', type=int, default=0, help='of the moments, places and kinds of the faults')
  add('--jobs', type=int, default=arguments.cores(), help='cases at once; default: one per core')
  add('--only', choices=CASES, help='one kind of fault')
  add('--case', type=int, help='one case of --only, by its number from 0')
  args = parser.parse_args(argv)
  started = time.time()
  with command_line():
    if args.case is not None and not args.only:
      raise InputError('--case is one of a kind; name that with --only KIND.')
    if args.jobs < 1:
      raise InputError(f'--jobs is {args.jobs}; use 1 or more.')
    out = Path(args.out).expanduser()
    arguments.check_writable(out)
    numbers = {kind: range(many[not args.quick]) for kind, many in CASES.items()}
    if args.only:
      numbers = {args.only: numbers[args.only] if args.case is None else [args.case]}
    out.mkdir(parents=True, exist_ok=True)
    cases = [(kind, number) for kind, those in numbers.items() for number in those]
    results = campaign(cases, args.seed, args.jobs, out)
    bad = [
      {'kind': kind, 'case': number, **each._asdict()}
      for (kind, number), tries in results.items()
      for each in filter(is_bad, tries)
    ]
    words = sys.argv[1:] if argv is None else argv
    command = ' '.join(['python tests/faults', *words])
    minutes, date = (time.time() - started) / 60, time.strftime('%Y-%m-%d')
    head = f'`{command}`, {date}, {minutes:.0f} minutes with {args.jobs} at once:'
    lines = [head, '', *table([each for tries in results.values() for each in tries])]
    (out / 'faults.md').write_text('\n'.join(lines) + '\n')
    facts = {'command': command, 'minutes': minutes, 'versions': provenance.versions(), 'bad': bad}
    facts['tries'] = [[*key, *each] for key, tries in results.items() for each in tries]
    (out / 'faults.json').write_text(json.dumps(facts, indent=1) + '\n')
    print('\n'.join(lines))
    for each in bad:
      again = f'--only {each["kind"]} --case {each["case"]} --seed {args.seed}'
      print(f'\n{each["row"]}: {each["outcome"]} ({again}): {each["note"]}', file=sys.stderr)
    sys.exit(bool(bad))


if __name__ == '__main__':
  main()
