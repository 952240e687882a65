"""Runs a config in a workdir, or continues the run that is there.

    python -m bert_jax.train --config configs/pretrain.py:size=base --workdir W [--config.seed=1]

A run is a function of (config, step): the batch, the masks and the dropout of step n follow from
the seed and n alone. Started again in the same workdir it continues from the newest good checkpoint
and ends with the same bits as if it had never stopped. What happens before the first step is in
run/setup.py, what happens beside the steps in run/session.py.
"""

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import hosts, metrics, notebooks, sharding
from bert_jax.cells import in_notebook
from bert_jax.command_line import command_line, command_parser, show_log
from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.run import setup
from bert_jax.run.inputs import Inputs, read_inputs
from bert_jax.run.session import Session
from bert_jax.step import State
from bert_jax.workdir import records


def train(
  config: ConfigDict, workdir: str | Path, set_by_user: Collection[str] = ()
) -> tuple[State, Mapping[str, float]]:
  """Runs a config in a workdir; returns its last State and the metrics of its last evaluation, or
  of the best where checkpoint.best_metric is set. A run starts from 1. the newest checkpoint of the
  workdir, 2. the newest of config.resume_from, 3. weights of config.init_from, 4. scratch. Mistakes
  in the input are errors before anything is compiled or written. Asked to stop (SIGTERM, Ctrl-C),
  or after config.max_hours, it saves and raises KeyboardInterrupt. set_by_user: names of fields
  that the user gave, which init_from must not change."""
  started = time.monotonic()
  show_log()
  return train_on(read_inputs(config, Path(workdir).expanduser(), set_by_user), started)


def train_on(inputs: Inputs, started: float) -> tuple[State, Mapping[str, float]]:
  """Trains on Inputs, as train. started: time.monotonic() when the run began."""
  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(inputs.mesh))
    stack.enter_context(sharding.activation_rules())
    ended = setup.ended(inputs)
    if ended:
      if in_notebook() and hosts.first():
        notebooks.show_curve(inputs.workdir)
      return ended
    return loop(*setup.prepare(inputs, stack, started))


def loop(run: setup.Run, state: State) -> tuple[State, Mapping[str, float]]:
  """Trains from a State to the end; returns what train returns."""
  with contextlib.ExitStack() as stack:
    session = Session(run, state, stack)
    step = int(jax.device_get(state.step))  # how many steps are done
    decision = session.evaluator.catch_up(step, state)  # an evaluation that a stop broke off
    while step < run.inputs.steps and not decision.ends:
      traced = jax.profiler.StepTraceAnnotation('train', step_num=step + 1)
      with traced, jax.transfer_guard('disallow'):  # nothing crosses from or to the host unasked
        batch = session.batch(step)  # made while the step before was computed
        state, metrics = run.train_step(state, batch, run.constants)
      step += 1
      session.tally.take(step, metrics)  # still on the devices
      decision = session.decide(step)  # waits for the devices, and so for the other processes
      session.logger.log_if_due(step)
      session.saver.save_if_due(step, state, decision)  # before the evaluation, which may fail
      decision = max(decision, session.evaluator.evaluate_if_due(step, state))
      session.summary.write_if_due(step)
    return session.end(step, state, decision)


def main(argv: Sequence[str] | None = None) -> None:
  more = '--config.NAME=VALUE sets any field of the config; python -m bert_jax.config lists all.'
  parser = command_parser('train', __doc__, epilog=more)
  example = 'such as configs/pretrain.py:size=tiny'
  parser.add_argument('--config', required=True, metavar='FILE[:ARGS]', help=example)
  parser.add_argument('--workdir', default='', help='where the run is written, and resumed from')
  hosts.add_argument(parser)
  args, overrides = parser.parse_known_args(argv)
  with command_line(), hosts.together():
    hosts.join(args.distributed)
    config = config_lib.load(args.config, overrides)
    if not args.workdir:
      raise InputError('--workdir is missing; name the folder this run is to be written to.')
    _, results = train(config, args.workdir, config_lib.names_of(overrides))
    if hosts.first():
      data = records.read_facts(args.workdir).split('eval')
      known = metrics.beside(results, data.baselines, data.scored)
      print(metrics.to_json({'workdir': args.workdir, **results, **known}))


if __name__ == '__main__':
  main()
