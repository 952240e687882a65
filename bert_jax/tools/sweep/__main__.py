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

import bisect
import contextlib
import hashlib
import json
import logging
import math
import shlex
from pathlib import Path

from bert_jax import config as config_lib
from bert_jax import files
from bert_jax.command_line import aligned, command_line
from bert_jax.errors import InputError, unwritten
from bert_jax.run import initialization
from bert_jax.tasks import TASKS
from bert_jax.timeline import Moment
from bert_jax.tools import arguments
from bert_jax.tools.report import __main__ as report
from bert_jax.tools.sweep import arms as sweep_grid
from bert_jax.tools.sweep import jobs as sweep_jobs
from bert_jax.workdir import contents, records

log = logging.getLogger('bert_jax')

SHARE = 0.2  # of this machine's peak that runs are assumed to reach, before any has been timed


def within_budget(config, tokens, flops):
  """The number of steps within a budget: tokens counts all positions of the rows, flops the matrix
  products of the training."""
  of_moment = flops_of(config) if flops else lambda moment: moment.rows * config.data.seq_length
  steps = steps_for(config, flops or tokens, of_moment)
  if steps < 1:
    raise InputError(f'the budget does not pay for a step ({steps:.2g}); give more.')
  return round(steps)


def steps_for(config, budget, of_moment):
  """How many steps a budget pays for, with a fraction. of_moment: the cost of a step at a Moment.
  The schedule, and with it the cost, may depend on the number of steps."""
  cost = lambda steps: config_lib.timeline_of(config, steps).flops_before(steps, of_moment)
  most = 1
  while cost(most) <= budget:
    most *= 2
  steps = bisect.bisect_right(range(1, most + 1), budget, key=cost)
  before = cost(steps) if steps else 0
  return steps + (budget - before) / (cost(steps + 1) - before)


def flops_of(config):
  """Makes a function of a Moment: the FLOPs of a training step. The model is init_from's, if set,
  with the config's vocabulary and labels."""
  from bert_jax.tools.preflight.__main__ import objective_of

  config = initialization.adopt_model(config, initialization.beginning_of(config, ''))
  objective, rows = objective_of(config), config.batch_size
  return lambda moment: 3 * objective.flops(rows, moment) * moment.rows / rows


def flops_of_step(config):
  """The FLOPs of the last training step of a config."""
  return flops_of(config)(Moment(rows=config.batch_size))


def planned(args, overrides):
  """Plans the runs of the command line and checks them: ([(Run, config), ...], the baseline)."""
  grid, name = sweep_grid.arms_of(
    args.config,
    args.vary,
    args.baseline,
    args.random,
    args.random_seed,
    vars(args)['from'],
    overrides,
    args.arms,
  )
  runs = sweep_grid.runs_of(args.config, grid, sweep_grid.seeds_of(args.seeds))
  runs = [run._replace(fields=[*overrides, *run.fields]) for run in runs]
  out, steps = [(run, config_lib.load(run.spec, run.fields)) for run in runs], {}
  if vars(args)['from'] and (sentence := unfinished_sources(out)):
    if not args.print:
      raise InputError(sentence)
    log.warning('%s', sentence)  # a scheduler may wait for them
  if not (args.tokens or args.flops):
    return out, name
  for i, (run, config) in enumerate(out):
    if run.arm not in steps:
      steps[run.arm] = within_budget(config, args.tokens, args.flops)
    fields = [*run.fields, f'--config.steps={steps[run.arm]}', '--config.epochs=0.0']
    out[i] = run._replace(fields=fields), config_lib.load(run.spec, fields)
  return out, name


def unfinished_sources(runs):
  """A sentence naming the sources (init_from) that are not finished runs; '' if all are."""
  folders = {config.init_from: Path(config.init_from).expanduser() for _, config in runs}
  missing = []
  for name, folder in folders.items():
    run = records.read(folder)
    # Earlier versions wrote no summary.
    if run.summary.state not in ('', *records.ENDED) or not run.checkpoints:
      missing.append(name)
  return (
    ''
    if not missing
    else (
      f'--from: {len(missing)} of the {len(folders)} runs to start from are not finished, the '
      f'first of which is {missing[0]}; give the command of that sweep again, with these seeds (it '
      'leaves out what is done), or choose others with --seeds and --arms.'
    )
  )


def other_evaluations(runs):
  """The fields in which arms differ and that affect what is evaluated."""
  configs = [config_lib.flatten(config) for _, config in runs]
  of_evaluation = config_lib.fields_affecting('rows', 'eval_rows', 'vocabulary', 'evaluation')
  return [
    name
    for name in configs[0]
    if name in of_evaluation and len({str(config.get(name)) for config in configs}) > 1
  ]


def command_of(run, root):
  """The command that trains a run, for a scheduler."""
  words = [
    'python',
    '-m',
    'bert_jax.train',
    '--config',
    run.spec.rstrip(':'),
    '--workdir',
    str(root / run.folder),
    *run.fields,
  ]
  return f'JAX_COMPILATION_CACHE_DIR={shlex.quote(str(root / ".jax_cache"))} {shlex.join(words)}'


def times(jobs, configs, root):
  """Estimates durations: ({folder: seconds of a run, NaN if unknown}, how they are known)."""
  ended = {job.run.folder: sweep_jobs.state_of(root, job) for job in jobs}
  known = sweep_jobs.expected(jobs, ended)
  if known:
    return known, 'as long as the runs that are done'
  from bert_jax.run import speed

  peak, of_arm = speed.peak_flops(), {}
  for job, config in zip(jobs, configs):
    if job.run.arm not in of_arm:
      timeline = config_lib.timeline_of(config)
      flops = timeline.flops_before(config.steps, flops_of(config))
      of_arm[job.run.arm] = flops / peak / SHARE or math.nan
  return (
    {job.run.folder: of_arm[job.run.arm] for job in jobs},
    f'a guess: {SHARE:.0%} of {peak:.2g} FLOPs a second, without compilation and evaluation',
  )


def show(jobs, configs, root, processes):
  """Prints the runs, their progress, and the expected time left."""
  seconds, known_by = times(jobs, configs, root)
  left, rows = 0.0, [('run', 'steps', 'time left', 'state')]
  for job, config in zip(jobs, configs):
    run, steps = (
      records.read(root / job.run.folder),
      str(config.steps or f'{config.epochs:g} epochs'),
    )
    saved = max(run.checkpoints, default=0)
    state = sweep_jobs.state_of(root, job).state or ('begun' if saved else '-')
    last = config.steps or run.summary.steps
    each = seconds[job.run.folder] * (1 - min(1, saved / last) if last else 1)
    each = 0.0 if state == 'done' else each
    left += each
    shown = '?' if math.isnan(each) else sweep_jobs.duration(each)
    rows.append((job.run.folder, f'{saved} of {last or steps}', shown, state))
  print('\n'.join(aligned(rows)))
  total = 'unknown, since the data decides how many steps an epoch has'
  if not math.isnan(left):
    total = f'{sweep_jobs.duration(left / processes)} with --jobs {processes}'
  print(f'{len(jobs)} runs; time left: {total} ({known_by})')


def plan_of(root, runs, baseline, args):
  """The content of sweep.json, which reports read. The runs of an earlier sweep in the folder stay
  in it, and so does its baseline unless --baseline is given. InputError if one of these runs was
  trained with another config than it has now."""
  path, sweep = root / records.SWEEP, records.read_sweep(root)
  if sweep and any(fault.startswith(str(path)) for fault in sweep.faults):
    raise InputError(f'{path} is damaged; remove it: the same command writes it anew.')
  earlier, before = (sweep.runs, sweep.baseline) if sweep else ({}, '')
  for run, config in runs:
    _, spec, fields = earlier.get(run.folder, ('', run.spec, run.fields))
    if fields != run.fields and files.exists(root / run.folder / contents.CONFIG):
      changes = []
      with contextlib.suppress(InputError):  # the run itself checks, too
        changes = config_lib.changes(config_lib.load(spec, fields), config)
      if changes := [x for x in changes if x.partition(':')[0] not in contents.MOVES]:
        raise InputError(
          f'{root / run.folder} was trained with another config ({"; ".join(changes[:3])}); give '
          'this sweep a --workdir of its own.'
        )
  if before and baseline not in ('', before):
    kept = args.baseline is None
    now = f'stays {before}, and not {baseline}' if kept else f'was {before} and is now {baseline}'
    log.warning('the baseline of %s %s (report --baseline names another)', root, now)
  if before and args.baseline is None:
    baseline = before
  return {
    'config': args.config,
    'baseline': baseline,
    'runs': {name: run._asdict() for name, run in earlier.items()}
    | {run.folder: {'arm': run.arm, 'spec': run.spec, 'fields': run.fields} for run, _ in runs},
  }


def plan_written(root, content):
  """Writes sweep.json."""
  try:
    files.make_folder(root / records.LOGS)
    files.write_json(root / records.SWEEP, content, indent=1)
  except OSError as error:
    raise unwritten(root, error) from None


def whole(config):
  """A short hash of all fields, including evaluation's."""
  fields = json.dumps(config_lib.flatten(config), sort_keys=True, default=str)
  return hashlib.sha256(fields.encode()).hexdigest()[:16]


def parser():
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
  add('--from', default='', metavar='DIR', help='start from the runs of the sweep in this folder')
  add('--tokens', type=float, default=0, help='train each run on so many tokens (rows x length)')
  add('--flops', type=float, default=0, help='train each run for so many operations')
  add(
    '--jobs',
    type=int,
    default=1,
    metavar='N',
    help='so many runs at once; 0: one on each core; on a TPU 1',
  )
  add('--dry-run', action='store_true', help='show the runs and the expected time')
  add('--print', action='store_true', help='print a command for each run, for a scheduler')
  return out


def main(argv=None):
  args, overrides = parser().parse_known_args(argv)
  with command_line():
    if args.tokens and args.flops:
      raise InputError('--tokens and --flops are two budgets; give one.')
    if min(args.jobs, args.random, args.tokens, args.flops) < 0:
      raise InputError('--jobs, --random, --tokens and --flops are not negative.')
    runs, baseline = planned(args, overrides)
    root, processes = Path(args.workdir).expanduser(), args.jobs or arguments.cores()
    plan = plan_of(root, runs, baseline, args)
    if args.print:
      plan_written(root, plan)  # for the report, and for --from
      print('\n'.join(command_of(run, root) for run, _ in runs))
      return
    if fields := other_evaluations(runs):
      log.warning(
        'the arms differ in %s, which decides what an evaluation is made of: a report does not '
        'compare their losses',
        ', '.join(fields),
      )
    configs = [config for _, config in runs]
    judge = lambda config: TASKS[config.objective].judge(config).metric
    jobs = [sweep_jobs.Job(run, whole(config), judge(config)) for run, config in runs]
    if args.dry_run:
      show(jobs, configs, root, processes)
      return
    plan_written(root, plan)
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


if __name__ == '__main__':
  main()
