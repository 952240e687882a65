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
import bisect
import contextlib
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import files
from bert_jax.command_line import aligned, command_line, command_parser
from bert_jax.errors import InputError, log
from bert_jax.files import Path
from bert_jax.run import initialization
from bert_jax.tasks import TASKS
from bert_jax.timeline import Moment
from bert_jax.tools import arguments
from bert_jax.tools.report import __main__ as report
from bert_jax.tools.sweep import arms as sweep_arms
from bert_jax.tools.sweep import jobs as sweep_jobs
from bert_jax.tools.sweep.arms import Run
from bert_jax.workdir import contents, lock, records

MOST_STEPS = 2**40


def planned(args: argparse.Namespace, overrides: Sequence[str]) -> tuple[list[Run], str]:
  """Plans the runs of the command line and checks them: (the runs, the name of the baseline)."""

  def load(run, *fields):
    fields = [*run.fields, *fields]
    return run._replace(fields=fields, config=config_lib.load(run.spec, fields))

  spec, before = args.config, args.before
  search = args.baseline, args.random, args.random_seed
  grid, name = sweep_arms.arms_of(spec, args.vary, *search, before, overrides, args.arms)
  runs = sweep_arms.runs_of(spec, grid, sweep_arms.seeds_of(args.seeds), overrides)
  runs = distinct([load(run) for run in runs])
  if before and (sentence := unfinished_sources(runs)):
    if not args.print:
      raise InputError(sentence)
    log.warning('%s', sentence)  # a scheduler may wait for them
  if args.tokens or args.flops:
    configs = {run.arm: run.config for run in reversed(runs)}
    steps = {arm: within_budget(x, args.tokens, args.flops) for arm, x in configs.items()}
    runs = [load(run, f'--config.steps={steps[run.arm]}', '--config.epochs=0.0') for run in runs]
  return runs, name


def distinct(runs: Sequence[Run]) -> list[Run]:
  """The runs but for arms that differ from an earlier one only in fields that change nothing there,
  which is said; InputError if that leaves one arm."""
  firsts, same, out = {}, {}, []
  for run in runs:
    values = config_lib.flatten(run.config)
    idle = {*TASKS[run.config.objective].without_effect(run.config)}
    key = repr([(name, x) for name, x in values.items() if name not in idle])
    first, before = firsts.setdefault(key, (run, values))
    if names := sorted(name for name in idle if values[name] != before[name]):
      same.setdefault((', '.join(names), first.arm), {})[run.arm] = run
    else:
      out.append(run)
  for (names, arm), others in same.items():
    if len({run.arm for run in out}) == 1:
      raise InputError(f'all arms are the same: {names} changes nothing here; vary another field.')
    more = f' and {len(others) - 1} more' * (len(others) > 1)
    log.warning('%s changes nothing in %s; left out: %s%s', names, arm, next(iter(others)), more)
  return out


def within_budget(config: ConfigDict, tokens: float, flops: float) -> int:
  """The number of steps within a budget of tokens (positions of rows) or FLOPs."""
  of_moment = flops_of(config) if flops else lambda moment: moment.rows * config.data.seq_length
  cost = lambda steps: config_lib.timeline_of(config, steps).flops_before(steps, of_moment)
  budget = flops or tokens
  steps = bisect.bisect_right(range(1, MOST_STEPS), budget, key=cost)
  before = cost(steps) if steps else 0
  exact = steps + (budget - before) / (cost(steps + 1) - before)
  if exact < 1:
    raise InputError(f'the budget does not pay for a step ({exact:.2g}); give more.')
  return round(exact)


def flops_of(config: ConfigDict) -> Callable[[Moment], float]:
  """Makes a function of a Moment: the FLOPs of a training step, with the sizes of init_from."""
  from bert_jax.tools.preflight.estimate import objective_of

  config = initialization.adopt_model(config, initialization.beginning_of(config, ''))
  objective, rows = objective_of(config), config.batch_size
  return lambda moment: 3 * objective.flops(rows, moment) * moment.rows / rows


def unfinished_sources(runs: Sequence[Run]) -> str:
  """A sentence naming the sources (init_from) that are not finished runs; '' if all are."""
  sources, missing = dict.fromkeys(run.config.init_from for run in runs), []
  for name in sources:
    run = records.read(name)
    # Earlier versions wrote no summary.
    if (run.summary.state and not run.summary.has_ended) or not run.checkpoints:
      missing.append(name)
  if not missing:
    return ''
  how = f'{len(missing)} of the {len(sources)} runs to start from are not finished'
  again = 'give the command of that sweep again, or choose others with --seeds and --arms'
  return f'--from: {how}, the first of which is {missing[0]}; {again}.'


def other_evaluations(runs: Sequence[Run]) -> list[str]:
  """The fields in which arms differ and that affect what is evaluated."""
  configs = [config_lib.flatten(run.config) for run in runs]
  affecting = config_lib.fields_affecting('rows', 'eval_rows', 'vocabulary', 'evaluation')
  differ = lambda name: len({str(config.get(name)) for config in configs}) > 1
  return [name for name in configs[0] if name in affecting and differ(name)]


def content_of(
  root: Path, runs: Sequence[Run], baseline: str, args: argparse.Namespace
) -> dict[str, Any]:
  """The content of sweep.json, with the earlier runs if one of these has begun: of a plan that was
  only printed, perhaps with a slip, nothing stays. InputError if one had another config, or if a
  new one cannot begin."""
  path, sweep = root / records.SWEEP, records.read_sweep(root)
  if sweep and any(fault.startswith(str(path)) for fault in sweep.faults):
    raise InputError(f'{path} is damaged; remove it: the same command writes it anew.')
  now = {run.folder: {'arm': run.arm, 'spec': run.spec, 'fields': run.fields} for run in runs}
  earlier = sweep.runs if sweep else {}
  has_begun = lambda name: records.read_outcome(root, name).state or files.exists(root / name)
  begun = earlier if any(map(has_begun, earlier)) else {}
  gone = [name for name in earlier if name not in begun and name not in now]
  before = sweep.baseline if sweep and begun else ''
  for run in runs:
    if not files.exists(root / run.folder / contents.CONFIG):
      if sentence := config_lib.why_none_begins(run.config):
        raise InputError(f'{run.folder}: {sentence}')
    elif was := begun.get(run.folder):
      _check_same(root / run.folder, run, was)
  if gone and not args.dry_run:
    more = f' and {len(gone) - 1} more' * (len(gone) > 1)
    log.warning('%s: what was planned and has not begun is left out: %s%s', path, gone[0], more)
  kept = before if before and args.baseline is None else baseline
  if baseline and kept != baseline:
    log.warning('%s keeps its baseline, %s (report --baseline names another)', root, kept)
  both = {name: run._asdict() for name, run in begun.items()} | now
  return {'config': args.config, 'baseline': kept, 'runs': both}


def _check_same(folder, run, was):
  """InputError if a run of an earlier sweep has another config now. Its training checks it, too."""
  if was.spec == run.spec and was.fields != run.fields:  # another spec is not loaded: it is code
    changes = []
    with contextlib.suppress(InputError):
      changes = config_lib.changes(config_lib.load(run.spec, [*map(str, was.fields)]), run.config)
    if changes := [x for x in changes if x.partition(':')[0] not in contents.MOVES]:
      differ = f'{folder} was trained with another config ({"; ".join(changes[:3])})'
      raise InputError(f'{differ}; give this sweep a --workdir of its own.')


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
  one that is being trained, beside which nothing is tried, else by a trial. The first run of an arm
  compiles its program, which the others find."""
  ended = {run.folder: sweep_jobs.state_of(root, run) for run in runs}
  known, how_known = sweep_jobs.expected(runs, ended), 'as long as the runs that are done'
  sure = {run.folder: known[run.arm] for run in runs if run.arm in known}
  if len(sure) == len(runs):
    return sure, how_known
  done = [run for run in runs if ended[run.folder].state == 'done']
  if begun := done or [run for run in runs if lock.is_held(root / run.folder)]:
    # One that was stopped has begun more than once, or lost the seconds of some steps.
    came = lambda run: sweep_jobs.steps_of(records.read(root / run.folder))
    took = lambda run: ended[run.folder].seconds
    first = sorted(done, key=took)[(len(done) - 1) // 2] if done else max(begun, key=came)
    how = f'{first.folder}, which is {"done" if done else "being trained"}'
    there, seconds, spent = sweep_jobs.so_far(root / first.folder)
    start = spent.get('setup', 0.0)
    if done:
      start = max(start, ended[first.folder].seconds - seconds - spent.get('eval', 0.0))
  else:
    first, how = runs[0], f'a trial of {runs[0].folder}'
    log.info('trying %s for some seconds', first.folder)
    try:
      there, seconds, start = sweep_jobs.tried(first, min(processes, len(runs)))
    except InputError as error:
      return {}, str(error)
  if not (steps_done := sweep_jobs.steps_of(there)):
    return sure, f'{how}, has no line of metrics yet'
  rows, held = (there.facts.split(name).rows for name in ('train', 'eval'))
  by_arm, evaluating, per_flop = {}, {}, None
  for arm, config in {run.arm: run.config for run in (first, *runs)}.items():
    if not (steps := config_lib.step_count(config, rows)):
      continue  # run.json, which says how many rows there are, is missing or damaged
    flops, timeline = flops_of(config), config_lib.timeline_of(config, steps)
    per_flop = per_flop or seconds / (timeline.flops_before(steps_done, flops) or math.inf)
    all_rows, every = -(-held // config.batch_size), config.eval.every or steps
    part = min(config.eval.batches or all_rows, all_rows)
    batches = -(-steps // every) * part + (all_rows if part < all_rows else 0)
    total, before = (timeline.flops_before(n, flops) for n in (steps, steps - 1))
    evaluating[arm] = batches * (total - before) / 3 * per_flop  # without gradients
    by_arm[arm] = start + total * per_flop + evaluating[arm]
  of_evals = sweep_jobs.duration(evaluating.get(first.arm, math.nan))
  how += f': {start:.0f} s to start, {seconds / steps_done:.2g} s a step, {of_evals} to evaluate'
  firsts = {run.arm: run for run in reversed(runs)}
  compiling = there.facts.compile_seconds or 0.0
  later = lambda run: compiling * (run is not firsts[run.arm])
  each = {run.folder: by_arm[run.arm] - later(run) for run in runs if run.arm in by_arm}
  return each | sure, f'{how_known}; of another arm by {how}' if sure else how


def show(runs: Sequence[Run], root: Path, processes: int) -> None:
  """Prints the runs, their progress, and the expected time left."""
  seconds, known_by = times(runs, root, processes)
  left, faults, rows = 0.0, [], [('run', 'steps', 'time left', 'state')]
  for run in runs:
    there = records.read(root / run.folder)
    saved = max(there.checkpoints, default=0)
    state = sweep_jobs.state_of(root, run, faults).state or ('begun' if saved else '-')
    last = run.config.steps or there.summary.steps
    each = seconds.get(run.folder, math.nan) * (1 - min(1, saved / last) if last else 1)
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
    name, first = next(iter(wrong.items()))
    counts, where = f'{len(wrong)} of {len(ended)} runs did not end', root / records.LOGS
    fault = f'{counts}, the first of which is {name}: {first.error} (see {where})'
    raise InputError(f'{fault}; run the same again to try them once more.')


def parser() -> argparse.ArgumentParser:
  out = command_parser('tools.sweep', __doc__)
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
  about = 'show the runs and the expected time, by what is done or 40 s of steps of the first'
  add('--dry-run', action='store_true', help=about)
  add('--print', action='store_true', help='print a command for each run, for a scheduler')
  return out


def main(argv: Sequence[str] | None = None) -> None:
  args, overrides = parser().parse_known_args(argv)
  with command_line():
    if args.tokens and args.flops:
      raise InputError('--tokens and --flops are two budgets; give one.')
    if min(args.jobs, args.random, args.tokens, args.flops) < 0:
      raise InputError('--jobs, --random, --tokens and --flops are not negative.')
    runs, baseline = planned(args, overrides)
    root, processes = Path(args.workdir).expanduser(), args.jobs or arguments.cores()
    with contextlib.nullcontext() if args.dry_run else lock.held(root):
      content = content_of(root, runs, baseline, args)
      if args.print:
        write(root, content)  # for the report, and for --from
        print('\n'.join(command_of(run, root) for run in runs))
        return
      if baseline and content['baseline'] == baseline and args.baseline is None:
        log.info('the baseline is %s, the first arm (--baseline names another)', baseline)
      if fields := other_evaluations(runs):
        log.warning('the arms differ in %s: a report compares no losses', ', '.join(fields))
      undone = [run for run in runs if sweep_jobs.state_of(root, run).state != 'done']
      sweep_jobs.check_files(undone, root)
      if args.dry_run:
        show(runs, root, processes)
        return
      write(root, content)
      train(runs, root, processes)


if __name__ == '__main__':
  main()
