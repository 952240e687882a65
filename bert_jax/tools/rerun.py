"""Repeats a run from its config in a new workdir, and says whether the results are the same.

    python -m bert_jax.tools.rerun W --workdir AGAIN             # trains; given again, it continues
    python -m bert_jax.tools.rerun W --workdir AGAIN --dry-run   # only says what is not the same

Each difference in code, packages, machine and data is named first. Then the run is trained, and
its metrics and the checksums of its last state are compared. --config.NAME=VALUE changes a field,
such as data.train if the data lies elsewhere. The exit status is 1 if a comparison fails.
"""

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from bert_jax import config as config_lib
from bert_jax import files, train
from bert_jax.command_line import command_line, command_parser
from bert_jax.errors import InputError, log
from bert_jax.files import Path
from bert_jax.run import speed
from bert_jax.run.inputs import Inputs, read_inputs
from bert_jax.workdir import checkpoint, contents, provenance, records
from bert_jax.workdir.recorded import Run

# Not compared: times, and `steps`, since the first line after a start counts from there.
NOT_COMPARED = (*speed.MEASURED, 'steps')


def rerun(
  workdir: Path | str, new: Path | str, overrides: Sequence[str] = (), dry_run: bool = False
) -> dict[str, Any]:
  """Compares, repeats (unless dry_run) and returns the findings, {name: value}."""
  started = time.monotonic()
  workdir, new = Path(workdir).expanduser(), Path(new).expanduser()
  if workdir.resolve() == new.resolve():
    raise InputError(f'--workdir {new} is the run that is to be repeated; name another folder.')
  run = records.read(workdir)
  if run.config is None:
    raise InputError(run.faults[0])
  for fault in run.faults:
    log.warning('%s', fault)
  inputs = read_inputs(config_lib.override(run.config, overrides), new)
  others = differences(run, inputs)
  for other in others:
    log.warning('not the same: %s', other)
  if dry_run:
    return {'not_the_same': others}
  train.train_on(inputs, started)
  return {'workdir': str(new), 'not_the_same': others} | outcome(run, records.read(new))


def differences(run: Run, inputs: Inputs) -> list[str]:
  """Sentences on how a repetition differs from the run."""
  was, here = run.facts.made_by, contents.made_by(inputs.mesh)
  if not was:
    return ['there is no run.json that can be read']
  packages = here.pop('packages')
  out = []
  for name, value in here.items():
    if was.get(name) != value:
      out.append(f'{name}: {was.get(name)} -> {value}')
  packages_then = run.facts.made_by.get('packages', packages)
  for name, version in packages.items():
    if packages_then.get(name) != version:
      out.append(f'{name} {packages_then.get(name)} -> {version}')
  changes = run.path / contents.CHANGES
  if files.read_text(changes) != provenance.code_changes():
    out.append(f'the changed code ({changes})')
  if run.config is not None:
    out += config_lib.changes(run.config, inputs.config)
  for split, source in inputs.sources.items():
    before = run.facts.split(split).fingerprint
    if before != source.fingerprint:
      out.append(f'the data of {split}: fingerprint {before} -> {source.fingerprint}')
  if run.newest.get('vocabulary', inputs.tokenizer.fingerprint) != inputs.tokenizer.fingerprint:
    out.append('the vocabulary')
  return out


def lines(run: Run) -> dict[tuple[int, str], dict[str, float | None]]:
  """A run's metrics that do not depend on the clock, {(step, kind of the Point): values}."""
  out = {}
  for point in run.points:
    values = {name: x for name, x in point.values.items() if name not in NOT_COMPARED}
    out[point.step, point.kind] = values
  return out


def outcome(run: Run, again: Run) -> dict[str, Any]:
  """Compares a run with its repetition: {'lines', 'same_lines', 'first_difference', 'state',
  'same'}. A repetition that ended before the run did, or has no line in common with it, is not the
  same."""
  was, now = lines(run), lines(again)
  common = [key for key in was if key in now]
  differ = [key for key in common if was[key] != now[key]]
  first = ''
  if differ:
    step, kind = differ[0]
    before, after = was[differ[0]], now[differ[0]]
    names = [name for name in before | after if before.get(name) != after.get(name)]
    first = f'step {step}, {kind}: {", ".join(names)}'
  elif again.measured_step() < run.measured_step():
    first = f'step {again.measured_step()} is the last one of {run.measured_step()}'
  state, has_same_bits = 'not compared: the two have no checkpoint of the same step', True
  number = run.newest.get('step', -1)
  if number in again.checkpoints:
    with contextlib.closing(checkpoint.Checkpoints(again.path)) as checkpoints:
      has_same_bits = checkpoints.meta(number)['arrays'] == run.newest['arrays']
    state = f'step {number}: {"the same" if has_same_bits else "other"} bits'
  return {
    'lines': len(common),
    'same_lines': len(common) - len(differ),
    'first_difference': first,
    'state': state,
    'same': not first and has_same_bits and bool(common),
  }


def main(argv: Sequence[str] | None = None) -> None:
  parser = command_parser('tools.rerun', __doc__)
  parser.add_argument('source', metavar='W', help='the workdir of the run to be repeated')
  parser.add_argument('--workdir', required=True, help='where it is repeated')
  parser.add_argument('--dry-run', action='store_true', help='only say what is not the same')
  args, overrides = parser.parse_known_args(argv)
  with command_line():
    result = rerun(args.source, args.workdir, overrides, args.dry_run)
    print(json.dumps(result, ensure_ascii=False))
  if not result.get('same', not result['not_the_same']):
    sys.exit(1)


if __name__ == '__main__':
  main()
