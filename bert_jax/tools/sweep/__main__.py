"""Runs one config many times, with several seeds and values of fields, and prints a table.

    python -m bert_jax.tools.sweep --config configs/finetune.py:runlocal --workdir S --seeds 3 \
        --vary optimizer.learning_rate=1e-4,3e-4 [--jobs 2] [--config.NAME=VALUE ...]

--vary may be repeated: all combinations are run. --vary 'a=1,2;b=3,4' moves a and b together.
--vary :size=tiny,mini varies an argument of the config file (configs/pretrain.py:size=tiny). A
value may be a tuple or list; one with a comma is quoted: --vary "masking.policy=token,'token,
phrase@500'" (in one line). {seed} in a value stands for the seed.

--baseline 'a=1;b=2' (or '', the config as it is) runs it and, one at a time, each value of --vary.
--random 20 draws arms instead, from lists and from log(1e-4,1e-2), uniform(0,0.3), integers(2,8).
A config file with sweep(arg) -> {name: {field: value}}, the baseline first, has arms of its own, of
which --arms a,b chooses some.
--from S starts each run from the finished run of the same arm and seed of a sweep in S
(config.init_from).

Every run has its folder below --workdir; logs/ there has its output and how it ended. Started
again, the sweep leaves out finished runs and continues interrupted ones. A run that fails does not
stop the rest. With --jobs each run has a share of the cores; on another number of cores its numbers
differ in their last digits.
"""

import argparse
import logging
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from bert_jax import config as config_lib
from bert_jax.command_line import aligned, command_line
from bert_jax.errors import InputError
from bert_jax.tasks import TASKS
from bert_jax.tools import arguments
from bert_jax.tools.report import __main__ as report
from bert_jax.tools.sweep import jobs as sweep_jobs
from bert_jax.tools.sweep import plan
from bert_jax.tools.sweep.arms import Run
from bert_jax.tools.sweep.jobs import Job
from bert_jax.workdir import records

log = logging.getLogger('bert_jax')

SHARE = 0.2  # of this machine's peak that runs are assumed to reach, before any has been timed


def command_of(run: Run, root: Path) -> str:
  """The command that trains a run, for a scheduler."""
  words = 'python', '-m', 'bert_jax.train', '--config', run.spec.rstrip(':')
  command = shlex.join([*words, '--workdir', str(root / run.folder), *run.fields])
  return f'JAX_COMPILATION_CACHE_DIR={shlex.quote(str(root / ".jax_cache"))} {command}'


def times(jobs: Sequence[Job], root: Path) -> tuple[Mapping[str, float], str]:
  """Estimates durations: ({folder: seconds of a run, NaN if unknown}, how they are known)."""
  ended = {job.run.folder: sweep_jobs.state_of(root, job) for job in jobs}
  if known := sweep_jobs.expected(jobs, ended):
    return known, 'as long as the runs that are done'
  from bert_jax.run import speed

  peak, by_arm = speed.peak_flops(), {}
  for arm, config in {job.run.arm: job.config for job in jobs}.items():
    timeline = config_lib.timeline_of(config)
    flops = timeline.flops_before(config.steps, plan.flops_of(config))
    by_arm[arm] = flops / peak / SHARE or math.nan
  how = f'a guess: {SHARE:.0%} of {peak:.2g} FLOPs a second, without compilation and evaluation'
  return {job.run.folder: by_arm[job.run.arm] for job in jobs}, how


def show(jobs: Sequence[Job], root: Path, processes: int) -> None:
  """Prints the runs, their progress, and the expected time left."""
  seconds, known_by = times(jobs, root)
  left, rows = 0.0, [('run', 'steps', 'time left', 'state')]
  for job in jobs:
    run, config = records.read(root / job.run.folder), job.config
    saved = max(run.checkpoints, default=0)
    state = sweep_jobs.state_of(root, job).state or ('begun' if saved else '-')
    last = config.steps or run.summary.steps
    each = seconds[job.run.folder] * (1 - min(1, saved / last) if last else 1)
    each = 0.0 if state == 'done' else each
    left += each
    shown = '?' if math.isnan(each) else sweep_jobs.duration(each)
    rows.append((job.run.folder, f'{saved} of {last or f"{config.epochs:g} epochs"}', shown, state))
  print('\n'.join(aligned(rows)))
  total = 'unknown, since the data decides how many steps an epoch has'
  if not math.isnan(left):
    total = f'{sweep_jobs.duration(left / processes)} with --jobs {processes}'
  print(f'{len(jobs)} runs; time left: {total} ({known_by})')


def train(jobs: Sequence[Job], root: Path, processes: int) -> None:
  """Trains the jobs and prints their table; InputError if one did not end well."""
  try:
    ended = sweep_jobs.run_all(jobs, root, processes)
  except KeyboardInterrupt:
    done = sum(sweep_jobs.state_of(root, job).state == 'done' for job in jobs)
    text = f'stopped; {done} of {len(jobs)} runs are done, and the same command continues'
    raise KeyboardInterrupt(text) from None
  wrong = {name: x for name, x in ended.items() if x.state != 'done'}
  if len(wrong) < len(ended):
    print(report.table(report.read(root)))
  if wrong:
    name, first = next(iter(wrong.items()))
    raise InputError(
      f'{len(wrong)} of {len(ended)} runs did not end, the first of which is {name}: '
      f'{first.error} (see {root / records.LOGS}/{name}.txt). The same command tries them again.'
    )


def parser() -> argparse.ArgumentParser:
  out = arguments.parser('sweep', __doc__)
  add = out.add_argument
  add('--config', required=True, metavar='FILE[:ARGS]')
  add('--workdir', required=True, help='folder of the runs')
  add('--seeds', default='3', help='how many, or a list: 5,6,9 or 5-9; default: %(default)s')
  add('--vary', action='append', default=[], metavar='NAME=V1,V2', help='may be repeated')
  add('--baseline', metavar='NAME=V;NAME=V', help='one --vary at a time changes around this')
  add('--arms', default='', metavar='ARM,ARM', help='of the config file or of --from: only these')
  add('--random', type=int, default=0, metavar='N', help='draw so many arms from --vary')
  add('--random-seed', type=int, default=0, metavar='SEED', help='of that draw')
  add('--from', dest='before', default='', metavar='DIR', help='start from the runs of this sweep')
  add('--tokens', type=float, default=0, help='train each run on so many tokens (rows x length)')
  add('--flops', type=float, default=0, help='train each run for so many operations')
  add('--jobs', type=int, default=1, help='runs at once; 0: one on each core; on a TPU 1')
  add('--dry-run', action='store_true', help='show the runs and the expected time')
  add('--print', action='store_true', help='print a command for each run, for a scheduler')
  return out


def main(argv: Sequence[str] | None = None) -> None:
  args, overrides = parser().parse_known_args(argv)
  with command_line():
    if args.tokens and args.flops:
      raise InputError('--tokens and --flops are two budgets; give one.')
    if min(args.jobs, args.random, args.tokens, args.flops) < 0:
      raise InputError('--jobs, --random, --tokens and --flops are not negative.')
    runs, baseline = plan.planned(args, overrides)
    root, processes = Path(args.workdir).expanduser(), args.jobs or arguments.cores()
    content = plan.content_of(root, runs, baseline, args)
    if args.print:
      plan.write(root, content)  # for the report, and for --from
      print('\n'.join(command_of(run, root) for run, _ in runs))
      return
    if fields := plan.other_evaluations(runs):
      log.warning(
        'the arms differ in %s, which decides what an evaluation is made of: a report does not '
        'compare their losses',
        ', '.join(fields),
      )
    jobs = [
      Job(run, config, plan.fingerprint(config), TASKS[config.objective].judge(config).metric)
      for run, config in runs
    ]
    if args.dry_run:
      show(jobs, root, processes)
      return
    plan.write(root, content)
    train(jobs, root, processes)


if __name__ == '__main__':
  main()
