"""Plans the runs of a sweep: their configs, their steps within a budget, and sweep.json."""

import argparse
import bisect
import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import files
from bert_jax.errors import InputError, unwritten
from bert_jax.run import initialization
from bert_jax.timeline import Moment
from bert_jax.tools.sweep import arms as sweep_grid
from bert_jax.tools.sweep.arms import Run
from bert_jax.workdir import contents, records

log = logging.getLogger('bert_jax')
Runs = Sequence[tuple[Run, ConfigDict]]


def planned(args: argparse.Namespace, overrides: Sequence[str]) -> tuple[Runs, str]:
  """Plans the runs of the command line and checks them: ([(Run, config), ...], the baseline)."""
  spec, before = args.config, args.before
  search = args.baseline, args.random, args.random_seed
  grid, name = sweep_grid.arms_of(spec, args.vary, *search, before, overrides, args.arms)
  runs = sweep_grid.runs_of(spec, grid, sweep_grid.seeds_of(args.seeds))
  runs = [run._replace(fields=[*overrides, *run.fields]) for run in runs]
  out, steps = [(run, config_lib.load(run.spec, run.fields)) for run in runs], {}
  if before and (sentence := unfinished_sources(out)):
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


def within_budget(config: ConfigDict, tokens: float, flops: float) -> int:
  """The number of steps within a budget: tokens counts all positions of the rows, flops the matrix
  products of the training. The cost of a step may depend on how many there are."""
  of_moment = flops_of(config) if flops else lambda moment: moment.rows * config.data.seq_length
  cost = lambda steps: config_lib.timeline_of(config, steps).flops_before(steps, of_moment)
  budget, most = flops or tokens, 1
  while cost(most) <= budget:
    most *= 2
  steps = bisect.bisect_right(range(1, most + 1), budget, key=cost)
  before = cost(steps) if steps else 0
  exact = steps + (budget - before) / (cost(steps + 1) - before)
  if exact < 1:
    raise InputError(f'the budget does not pay for a step ({exact:.2g}); give more.')
  return round(exact)


def flops_of(config: ConfigDict) -> Callable[[Moment], float]:
  """Makes a function of a Moment: the FLOPs of a training step. The model is init_from's, if set,
  with the config's vocabulary and labels."""
  from bert_jax.tools.preflight.estimate import objective_of

  config = initialization.adopt_model(config, initialization.beginning_of(config, ''))
  objective, rows = objective_of(config), config.batch_size
  return lambda moment: 3 * objective.flops(rows, moment) * moment.rows / rows


def unfinished_sources(runs: Runs) -> str:
  """A sentence naming the sources (init_from) that are not finished runs; '' if all are."""
  sources, missing = dict.fromkeys(config.init_from for _, config in runs), []
  for name in sources:
    run = records.read(name)
    # Earlier versions wrote no summary.
    if run.summary.state not in ('', *records.ENDED) or not run.checkpoints:
      missing.append(name)
  if not missing:
    return ''
  return (
    f'--from: {len(missing)} of the {len(sources)} runs to start from are not finished, the first '
    f'of which is {missing[0]}; give the command of that sweep again, with these seeds (it leaves '
    'out what is done), or choose others with --seeds and --arms.'
  )


def other_evaluations(runs: Runs) -> list[str]:
  """The fields in which arms differ and that affect what is evaluated."""
  configs = [config_lib.flatten(config) for _, config in runs]
  affecting = config_lib.fields_affecting('rows', 'eval_rows', 'vocabulary', 'evaluation')
  differ = lambda name: len({str(config.get(name)) for config in configs}) > 1
  return [name for name in configs[0] if name in affecting and differ(name)]


def content_of(root: Path, runs: Runs, baseline: str, args: argparse.Namespace) -> dict[str, Any]:
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
  now = {run.folder: {'arm': run.arm, 'spec': run.spec, 'fields': run.fields} for run, _ in runs}
  both = {name: run._asdict() for name, run in earlier.items()} | now
  return {'config': args.config, 'baseline': baseline, 'runs': both}


def write(root: Path, content: dict[str, Any]) -> None:
  """Writes sweep.json."""
  try:
    files.make_folder(root / records.LOGS)
    files.write_json(root / records.SWEEP, content, indent=1)
  except OSError as error:
    raise unwritten(root, error) from None


def fingerprint(config: ConfigDict) -> str:
  """A short hash of all fields, including evaluation's."""
  fields = json.dumps(config_lib.flatten(config), sort_keys=True, default=str)
  return hashlib.sha256(fields.encode()).hexdigest()[:16]
