"""The plan of a sweep: the runs that the command line asks for, checked before the first begins,
and what sweep.json says of them."""

import argparse
import bisect
import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import files
from bert_jax.errors import InputError, counted, log
from bert_jax.files import Path
from bert_jax.run import initialization
from bert_jax.tasks import TASKS
from bert_jax.timeline import Moment
from bert_jax.tools.report.arms import WITHOUT_EFFECT
from bert_jax.tools.sweep import arms as sweep_arms
from bert_jax.tools.sweep import draws, jobs
from bert_jax.tools.sweep.arms import Run
from bert_jax.workdir import contents, records, saved_steps

MOST_STEPS = 2**40
MANY_TOKENS = 1e9  # many times the embedded documentation


def planned(args: argparse.Namespace, overrides: Sequence[str]) -> tuple[list[Run], str]:
  """Plans the runs of the command line and checks them: (the runs, the name of the baseline)."""

  def load(run, *fields):
    fields = [*run.fields, *fields]
    return run._replace(fields=fields, config=config_lib.load(run.spec, fields))

  spec, before = args.config, args.before
  search = args.baseline, args.random, args.random_seed
  grid, name = sweep_arms.arms_of(spec, args.vary, *search, before, overrides, args.arms)
  runs = sweep_arms.runs_of(spec, grid, draws.seeds_of(args.seeds), overrides)
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


def size_of(runs: Sequence[Run]) -> str:
  """A sentence on how long the runs are, and on text that is too short for that many steps."""

  def tokens_of(config):
    steps = config.steps
    rows = config_lib.timeline_of(config, steps).rows_before(steps) if steps else 0
    return rows * config.data.seq_length

  longest = max((run.config for run in runs), key=lambda config: (tokens_of(config), config.epochs))
  if not longest.steps:
    return f'{len(runs)} runs of up to {longest.epochs:g} epochs'
  tokens = tokens_of(longest)
  count = f'{tokens / 1e9:.3g} B' if tokens >= MANY_TOKENS else f'{tokens:,.0f}'
  each = f'{longest.steps:,} steps of {longest.batch_size} rows, {count} tokens'
  sentence = f'{len(runs)} runs, the longest of {each}'
  if tokens < MANY_TOKENS or longest.data.train or not TASKS[longest.objective].reads_corpus:
    return sentence
  advice = 'name more text, or try it in short (runlocal in --config, or --config.steps)'
  return f'{sentence}; data.train is empty, so they read the documentation over and over: {advice}'


def distinct(runs: Sequence[Run]) -> list[Run]:
  """The runs but for arms that are equal to an earlier one, or differ from it only in fields that
  change nothing there that a report compares, which is said: it would count their runs as copies.
  InputError if that leaves one arm. A baseline is the first of its equals."""
  firsts, same, out = {}, {}, []
  for arm, group in itertools.groupby(runs, key=lambda run: run.arm):
    some = list(group)
    each, config = [config_lib.flatten(run.config) for run in some], some[0].config
    idle = {*TASKS[config.objective].without_effect(config), *WITHOUT_EFFECT}
    key = repr([[(name, x) for name, x in of.items() if name not in idle] for of in each])
    first, before = firsts.setdefault(key, (arm, each[0]))
    if first == arm:
      out += some
      continue
    names = sorted(name for name in idle if each[0].get(name) != before.get(name))
    same.setdefault((', '.join(names), first), []).append(arm)
  for (names, arm), others in same.items():
    if len({run.arm for run in out}) == 1:
      no_other = f'{names} changes nothing here that a report compares'
      why = no_other if names else f'{arm} is also {others[0]}'
      raise InputError(f'all arms are the same: {why}; vary another field.')
    no_other = f'{names} changes nothing in {arm} that a report compares'
    why = no_other if names else f'equal to {arm}'
    more = f' and {len(others) - 1} more' * (len(others) > 1)
    log.warning('%s; left out: %s%s', why, others[0], more)
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
  """Makes a function of a Moment: the FLOPs of a training step, with the sizes of init_from; of an
  evaluation, three times those of a batch."""
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
  affecting = config_lib.fields_affecting('rows', 'vocabulary', 'judging')
  affecting = {name for name in affecting if not name.startswith(('eval.', 'checkpoint.'))}
  affecting.add('eval.seed')
  differ = lambda name: len({str(config.get(name)) for config in configs}) > 1
  return [name for name in configs[0] if name in affecting and differ(name)]


def content_of(
  root: Path, runs: Sequence[Run], baseline: str, args: argparse.Namespace
) -> dict[str, Any]:
  """The content of sweep.json, with the earlier runs that have begun: of a plan that was only
  printed, perhaps with a slip, nothing else stays. InputError if one had another config."""
  path, sweep = root / records.SWEEP, records.read_sweep(root)
  if sweep and any(fault.startswith(str(path)) for fault in sweep.faults):
    raise InputError(f'{path} is damaged; remove it: the same command writes it anew.')
  now = {run.folder: {'arm': run.arm, 'spec': run.spec, 'fields': run.fields} for run in runs}
  earlier = sweep.runs if sweep else {}
  has_begun = lambda name: records.read_outcome(root, name).state or files.exists(root / name)
  begun = {name: run for name, run in earlier.items() if has_begun(name)}
  gone = [name for name in earlier if name not in begun and name not in now]
  there = {run.arm for run in (*begun.values(), *runs)}
  before = sweep.baseline if sweep and begun and sweep.baseline in there else ''
  moved = []
  for run in runs:
    was = begun.get(run.folder)
    if was and files.exists(root / run.folder / contents.CONFIG):
      _check_same(root, run, was)
      moved += [f'{run.folder} from step {step} on' for step in [_moved_at(root, run)] if step]
  if moved:
    text = '%s with another number of steps than before, such as %s: %s'
    why = 'their learning rates until there belong to the other; a new --workdir trains all anew'
    log.warning(text, counted(len(moved), 'runs'), moved[0], why)
  if gone and not args.dry_run:
    more = f' and {len(gone) - 1} more' * (len(gone) > 1)
    log.warning('%s: what was planned and has not begun is left out: %s%s', path, gone[0], more)
  kept = before if before and args.baseline is None else baseline
  if baseline and kept != baseline:
    log.warning('%s keeps its baseline, %s (report --baseline names another)', root, kept)
  if others := sorted({run.spec for run in begun.values()} - {run.spec for run in runs}):
    meant = 'a report has the arms of all; another --workdir keeps them apart'
    log.warning('%s has runs of %s too: %s', root, ', '.join(others), meant)
  both = {name: run._asdict() for name, run in begun.items()} | now
  return {'config': args.config, 'baseline': kept, 'runs': both}


def _moved_at(root, run):
  """The step from which a run goes on with another number of steps, if until there that gives other
  learning rates, else 0."""
  folder = root / run.folder
  with contextlib.suppress(InputError):
    step, *_ = *saved_steps.newest_first(folder / 'checkpoints'), 0
    rows, then = records.read_facts(folder).split('train').rows, contents.read_config(folder)
    return step * config_lib.have_other_rates(then, run.config, rows, step)
  return 0


def _check_same(root, run, was):
  """InputError if a run of an earlier sweep has another config now. Its training checks it, too,
  when the plan and the record of how that run ended are already overwritten."""
  fault, changes = '', []
  if was.spec and was.spec != run.spec:  # which is not loaded: it is code
    known = records.read_outcome(root, run.folder).config
    fault = f'is a run of {was.spec}' if known not in ('', jobs.fingerprint(run.config)) else ''
  elif was.fields != run.fields:
    with contextlib.suppress(InputError):
      changes = config_lib.changes(config_lib.load(run.spec, [*map(str, was.fields)]), run.config)
    if others := [x for x in changes if x.partition(':')[0] not in contents.MOVES]:
      fault = f'was trained with another config ({"; ".join(others[:3])})'
  if fault:
    raise InputError(f'{root / run.folder} {fault}; give this sweep a --workdir of its own.')
