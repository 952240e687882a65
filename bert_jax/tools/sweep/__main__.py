"""Runs one config many times, with several seeds and values of fields, and prints a table.

    python -m bert_jax.tools.sweep --config configs/finetune.py:runlocal --workdir S --seeds 3 \
        --vary optimizer.learning_rate=1e-4,3e-4 [--jobs 2] [--config.NAME=VALUE ...]

Several --vary give all combinations; --vary 'a=1,2;b=3,4' moves fields together, --vary
:size=tiny,mini an argument of the config file. {seed} in a value stands for the seed. Arms that are
no combinations, or have values with commas, are the function sweep(arg) of a config file.

Every run has its folder below --workdir; logs/ there has its output and how it ended (jobs.py);
its warnings are shown when it has ended, each of them once. A run that fails does not stop the
rest. With --jobs the last digits depend on each one's cores.
"""

import argparse
import contextlib
import shlex
from collections.abc import Sequence
from typing import Any

import jax

from bert_jax import files
from bert_jax.command_line import aligned, command_line, command_parser
from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.tools import report
from bert_jax.tools.sweep import arms as sweep_arms
from bert_jax.tools.sweep import jobs, plan
from bert_jax.tools.sweep.arms import PlannedRun
from bert_jax.workdir import lock, provenance, records


def planned(args: argparse.Namespace, overrides: Sequence[str]) -> list[PlannedRun]:
  """The runs of a command line, the baseline's first."""
  arms = sweep_arms.arms_of(
    args.config,
    args.vary,
    around=args.around,
    before=args.before,
    only=args.arms,
    overrides=overrides,
  )
  if args.baseline:
    sweep_arms.check_known(args.baseline, arms, '--baseline')
    arms = {args.baseline: arms[args.baseline]} | arms
  runs = sweep_arms.runs_of(args.config, arms, sweep_arms.seeds_of(args.seeds), overrides)
  if args.before:
    plan.check_sources(runs, args.print)
  return runs


def write(root: Path, content: dict[str, Any]) -> None:
  files.make_folder(root / records.LOGS)
  files.write_sealed(root / records.SWEEP, content, indent=1)


def command_of(run: PlannedRun, root: Path) -> str:
  """The command that trains a run, for a scheduler."""
  words = 'python', '-m', 'bert_jax.train', '--config', run.spec.rstrip(':')
  command = shlex.join([*words, '--workdir', str(root / run.folder), *run.fields])
  return f'JAX_COMPILATION_CACHE_DIR={shlex.quote(str(root / ".jax_cache"))} {command}'


def show(runs: Sequence[PlannedRun], root: Path) -> None:
  """Prints the runs and how far each has come."""
  rows = [('run', 'steps', 'state')]
  for run in runs:
    saved = max(records.read(root / run.folder).checkpoints, default=0)
    state = jobs.state_of(root, run) or '-'
    steps = run.config.steps or f'{run.config.epochs:g} epochs'
    rows.append((run.folder, f'{saved} of {steps}', state))
  print('\n'.join(aligned(rows)))
  print(f'{len(runs)} runs, the baseline is {runs[0].arm or "the config"}')


def train(runs: Sequence[PlannedRun], root: Path, processes: int) -> None:
  """Trains the runs and prints their table; InputError if one did not end well."""
  try:
    states = jobs.run_all(runs, root, processes)
  except KeyboardInterrupt:
    done = sum(jobs.state_of(root, run) == 'done' for run in runs)
    text = f'stopped; {done} of {len(runs)} runs are done; run the same again to continue'
    raise KeyboardInterrupt(text) from None
  wrong = [name for name, state in states.items() if state != 'done']
  if len(wrong) < len(states):
    print(report.text(report.read(root)))
  if wrong:
    raise InputError(
      f'{len(wrong)} of {len(states)} runs did not end, the first of which wrote '
      f'{root / records.LOGS / wrong[0]}.txt; run the same again to try them once more.'
    )


def parser() -> argparse.ArgumentParser:
  out = command_parser('tools.sweep', __doc__)
  add = out.add_argument
  add('--config', required=True, metavar='FILE[:ARGS]')
  add('--workdir', required=True, help='folder of the runs')
  add('--seeds', default='3', help='how many, or a list: 5,6,9; default: %(default)s')
  add('--vary', action='append', default=[], metavar='NAME=V1,V2', help='may be repeated')
  add('--baseline', metavar='ARM', help='the arm to compare with; default: the first')
  about = "fields ('': none) around which one value of --vary changes at a time"
  add('--around', metavar='NAME=V;NAME=V', help=about)
  add('--arms', default='', metavar='ARM,ARM', help='of the config file or of --from: only these')
  add('--from', dest='before', default='', metavar='DIR', help='start from the runs of this sweep')
  add('--jobs', type=int, default=1, help='runs at once; 0: one on each core; on a TPU 1')
  add('--dry-run', action='store_true', help='show the runs, their steps and states')
  add('--print', action='store_true', help='print a command for each run, for a scheduler')
  return out


def main(argv: Sequence[str] | None = None) -> None:
  args, overrides = parser().parse_known_args(argv)
  with command_line():
    jax.config.update('jax_platforms', 'cpu')  # a TPU is for the runs
    if args.jobs < 0:
      raise InputError('--jobs is not negative.')
    runs = planned(args, overrides)
    root = Path(args.workdir).expanduser()
    with contextlib.nullcontext() if args.dry_run else lock.held(root):
      content = plan.content_of(root, runs, args.config, args.baseline)
      plan.check_evaluations(runs)
      if not args.print:  # a scheduler may make them later
        plan.check_files([run for run in runs if jobs.state_of(root, run) != 'done'])
      if args.dry_run:
        show(runs, root)
        return
      write(root, content)
      if args.print:
        print('\n'.join(command_of(run, root) for run in runs))
        return
      train(runs, root, args.jobs or provenance.cores())


if __name__ == '__main__':
  main()
