"""Runs one config many times, with several seeds and values of fields, and prints a table.

    python -m bert_jax.tools.sweep --config configs/finetune.py:runlocal --workdir S --seeds 3 \
        --vary optimizer.learning_rate=1e-4,3e-4 [--jobs 2] [--config.NAME=VALUE ...]

configs/README.md has a table of the ways to vary. --vary :size=tiny,mini varies an argument of the
config file (configs/pretrain.py:size=tiny). A value may be a tuple or list; one with a comma is
quoted: --vary "masking.policy=token,'token,phrase@500'". {seed} in a value stands for the seed.

Every run has its folder below --workdir; logs/ there has its output and how it ended (jobs.py). A
run that fails does not stop the rest. With --jobs the last digits depend on each one's cores.
"""

import argparse
import contextlib
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from bert_jax import config as config_lib
from bert_jax import files
from bert_jax.command_line import aligned, command_line, command_parser
from bert_jax.errors import InputError, log
from bert_jax.files import Path
from bert_jax.timeline import EVALUATION
from bert_jax.tools.report import __main__ as report
from bert_jax.tools.sweep import jobs as sweep_jobs
from bert_jax.tools.sweep import plan
from bert_jax.tools.sweep.arms import Run
from bert_jax.workdir import lock, provenance, records


def write(root: Path, content: dict[str, Any]) -> None:
  files.make_folder(root / records.LOGS)
  files.write_sealed(root / records.SWEEP, content, indent=1)


def command_of(run: Run, root: Path) -> str:
  """The command that trains a run, for a scheduler."""
  words = 'python', '-m', 'bert_jax.train', '--config', run.spec.rstrip(':')
  command = shlex.join([*words, '--workdir', str(root / run.folder), *run.fields])
  return f'JAX_COMPILATION_CACHE_DIR={shlex.quote(str(root / ".jax_cache"))} {command}'


def times(runs: Sequence[Run], root: Path, processes: int) -> tuple[Mapping[str, float], str]:
  """Estimates durations: ({folder: seconds of a run} as far as known, how they are known). An arm
  without a finished run takes as long as the FLOPs of its steps say, by a run that is done, else by
  one that is being trained, beside which nothing is tried, else by a trial. The first run of an
  arm, and those that begin beside it, compile its program, which the others find."""
  ended = {run.folder: sweep_jobs.state_of(root, run) for run in runs}
  known, how_known = sweep_jobs.expected(root, runs, ended), 'as long as the runs that are done'
  sure = {run.folder: known[run.arm] for run in runs if run.arm in known}
  if len(sure) == len(runs):
    return sure, how_known
  done = [run for run in runs if ended[run.folder].state == 'done']
  if begun := done or [run for run in runs if lock.is_held(root / run.folder)]:
    # One that was stopped has begun more than once, or lost the seconds of some steps.
    came = lambda run: sweep_jobs.steps_of(records.read(root / run.folder))
    compiled_in = lambda run: records.read(root / run.folder).facts.compile_seconds or 0.0
    took = lambda run: ended[run.folder].seconds
    first = sorted(done, key=took)[(len(done) - 1) // 2] if done else max(begun, key=came)
    how = f'{first.folder}, which is {"done" if done else "being trained"}'
    there, seconds, spent = sweep_jobs.so_far(root / first.folder)
    start, compiling = spent.get('setup', 0.0), there.facts.compile_seconds or 0.0
    if done:
      start = max(start, ended[first.folder].seconds - seconds - spent.get('eval', 0.0)) - compiling
      compiling = max(map(compiled_in, done))  # most have found the program of another
      start += compiling
  else:
    first, how = runs[0], f'a trial of {runs[0].folder}'
    log.info('trying %s for some seconds', first.folder)
    try:
      there, seconds, start = sweep_jobs.tried(first, min(processes, len(runs)))
      compiling = there.facts.compile_seconds or 0.0
    except InputError as error:
      return {}, str(error)
  if not (steps_done := sweep_jobs.steps_of(there)):
    return sure, f'{how}, has no line of metrics yet'
  rows, held = (there.facts.split(name).rows for name in ('train', 'eval'))
  by_arm, evaluating, per_flop = {}, {}, None
  for arm, config in {run.arm: run.config for run in (first, *runs)}.items():
    if not (steps := config_lib.step_count(config, rows)):
      continue  # run.json, which says how many rows there are, is missing or damaged
    flops, timeline = plan.flops_of(config), config_lib.timeline_of(config, steps)
    per_flop = per_flop or seconds / (timeline.flops_before(steps_done, flops) or math.inf)
    all_rows, every = -(-held // config.batch_size), config.eval.every or steps
    part = min(config.eval.batches or all_rows, all_rows)
    batches = -(-steps // every) * part + (all_rows if part < all_rows else 0)
    forward = flops(EVALUATION._replace(rows=config.batch_size)) / 3  # without gradients
    evaluating[arm] = batches * forward * per_flop
    by_arm[arm] = start + timeline.flops_before(steps, flops) * per_flop + evaluating[arm]
  of_evals = sweep_jobs.duration(evaluating.get(first.arm, math.nan))
  how += f': {start:.0f} s to start, {seconds / steps_done:.2g} s a step, {of_evals} to evaluate'
  undone = [run for run in runs if ended[run.folder].state != 'done']
  # Runs begin in groups of as many as there are processes; this numbers the groups.
  turns = {run.folder: i // processes for i, run in enumerate(undone)}
  firsts = {run.arm: turns[run.folder] for run in reversed(undone)}
  later = lambda run: compiling * (turns[run.folder] > firsts[run.arm])
  each = {run.folder: by_arm[run.arm] - later(run) for run in undone if run.arm in by_arm}
  return each | sure, f'{how_known}; of another arm by {how}' if sure else how


def show(runs: Sequence[Run], root: Path, processes: int) -> None:
  """Prints the runs, their progress, and the expected time left."""
  seconds, known_by = times(runs, root, processes)
  left, faults, rows = 0.0, [], [('run', 'steps', 'time left', 'state')]
  for run in runs:
    there = records.read(root / run.folder)
    saved = max(there.checkpoints, default=0)
    state = sweep_jobs.state_of(root, run, faults).state or ('begun' if saved else '-')
    length = config_lib.step_count(run.config, there.facts.split('train').rows)
    last = length or there.summary.steps  # which may be of an earlier command
    each = seconds.get(run.folder, math.nan)
    if saved and last:  # one that goes on spends the seconds of its start again
      again = sweep_jobs.so_far(root / run.folder)[2].get('setup', 0.0)
      each -= (each - min(again, each)) * min(1, saved / last)
    each = 0.0 if state == 'done' else each
    left += each
    shown = sweep_jobs.duration(each)
    rows.append((run.folder, f'{saved} of {last or f"{run.config.epochs:g} epochs"}', shown, state))
  print('\n'.join(aligned(rows)))
  for fault in faults:
    log.warning('%s', fault)
  total = f'{sweep_jobs.duration(left / processes)} with --jobs {processes}'
  print(f'{len(runs)} runs; time left: {total} ({known_by})')


def train(runs: Sequence[Run], root: Path, processes: int) -> None:
  """Trains the runs and prints their table; InputError if one did not end well."""
  try:
    ended = sweep_jobs.run_all(runs, root, processes)
  except KeyboardInterrupt:
    done = sum(sweep_jobs.state_of(root, run).state == 'done' for run in runs)
    text = f'stopped; {done} of {len(runs)} runs are done; run the same again to continue'
    raise KeyboardInterrupt(text) from None
  wrong = {name: x for name, x in ended.items() if x.state != 'done'}
  if len(wrong) < len(ended):
    print(report.table(report.read(root)))
  if wrong:
    counts, first = f'{len(wrong)} of {len(ended)} runs did not end', next(iter(wrong))
    fault = f'{counts}, the first of which wrote {root / records.LOGS / first}.txt'
    raise InputError(f'{fault}; run the same again to try them once more.')


def parser() -> argparse.ArgumentParser:
  out = command_parser('tools.sweep', __doc__)
  add = out.add_argument
  add('--config', required=True, metavar='FILE[:ARGS]')
  add('--workdir', required=True, help='folder of the runs')
  add('--seeds', default='3', help='how many, or a list: 5,6,9 or 5-9; default: %(default)s')
  add('--vary', action='append', default=[], metavar='NAME=V1,V2', help='may be repeated')
  about = (
    'the arm to compare with, by its name; or fields, around which one --vary at a time changes'
  )
  add('--baseline', metavar='ARM or NAME=V;NAME=V', help=about)
  add('--arms', default='', metavar='ARM,ARM', help='of the config file or of --from: only these')
  add('--random', type=int, default=0, metavar='N', help='draw so many arms from --vary')
  add('--random-seed', type=int, default=0, metavar='SEED', help='of that draw')
  add('--from', dest='before', default='', metavar='DIR', help='start from the runs of this sweep')
  add('--tokens', type=float, default=0, help='train each run on so many tokens (rows x length)')
  add('--flops', type=float, default=0, help='train each run for so many operations')
  add('--jobs', type=int, default=1, help='runs at once; 0: one on each core; on a TPU 1')
  about = 'show the runs and the expected time, by what is done or 40 s of steps of the first'
  add('--dry-run', action='store_true', help=about)
  add('--print', action='store_true', help='print a command for each run, for a scheduler')
  return out


def main(argv: Sequence[str] | None = None) -> None:
  args, overrides = parser().parse_known_args(argv)
  with command_line():
    jax.config.update('jax_platforms', 'cpu')  # a TPU is for the runs
    if args.tokens and args.flops:
      raise InputError('--tokens and --flops are two budgets; give one.')
    if min(args.jobs, args.random, args.tokens, args.flops) < 0:
      raise InputError('--jobs, --random, --tokens and --flops are not negative.')
    runs, baseline = plan.planned(args, overrides)
    root, processes = Path(args.workdir).expanduser(), args.jobs or provenance.cores()
    with contextlib.nullcontext() if args.dry_run else lock.held(root):
      content = plan.content_of(root, runs, baseline, args)
      if baseline and content['baseline'] == baseline and args.baseline is None:
        log.info('the baseline is %s, the first arm (--baseline names another)', baseline)
      log.info('%s', plan.size_of(runs))
      if fields := plan.other_evaluations(runs):
        log.warning('the arms differ in %s: a report compares no losses', ', '.join(fields))
      if args.print:
        write(root, content)  # for the report, and for --from
        print('\n'.join(command_of(run, root) for run in runs))
        return
      undone = [run for run in runs if sweep_jobs.state_of(root, run).state != 'done']
      sweep_jobs.check_files(undone, root)
      if args.dry_run:
        show(runs, root, processes)
        return
      write(root, content)
      train(runs, root, processes)


if __name__ == '__main__':
  main()
