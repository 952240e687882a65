"""Repeats one step of a run and finds the first module whose numbers are not finite.

    python -m bert_jax.tools.replay W --step 120

The steps from the newest checkpoint before it on are repeated. Of the step itself it shows the
rows, the loss and its terms, the norm of the gradient of each module, and the first module whose
output is not finite though its input is. Nothing is written.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import hosts, metrics, sharding, step
from bert_jax.command_line import command_line, command_parser, progress
from bert_jax.convert import hub
from bert_jax.errors import InputError, log
from bert_jax.files import Path
from bert_jax.models.layers import traced_in
from bert_jax.objectives.base import Objective
from bert_jax.run import initialization, setup, warm_start
from bert_jax.run.inputs import Inputs, check_continues, read_inputs
from bert_jax.run.tally import number
from bert_jax.tasks import teaching
from bert_jax.timeline import Timeline
from bert_jax.workdir import checkpoint, contents


def replay(workdir: Path | str, at: int) -> dict[str, Any]:
  """The facts of step `at` of a workdir's run."""
  workdir = Path(workdir).expanduser()
  inputs = read_inputs(contents.read_config(workdir), workdir)
  if not 1 <= at <= inputs.steps:
    raise InputError(f'--step is {at}; give a step of {workdir}, 1 to {inputs.steps}.')
  with jax.set_mesh(inputs.mesh), sharding.activation_rules():
    program = step.program(inputs.config, inputs.objective, inputs.mesh, inputs.timeline)
    if inputs.start.continues:
      check_continues(inputs, program)  # is it the same data and vocabulary?
    state = _state_before(inputs, program, at)
    log.info('from step %d on', int(state.step))
    if int(state.step) < at - 1:
      train_step = program.lower().compile()
      constants = sharding.put(program.constants, inputs.mesh)
      for n in progress(range(int(state.step), at - 1), 'repeating', 'steps'):
        state, _ = train_step(state, inputs.batches[n], constants)
    return _facts(inputs, program, state)


def _state_before(inputs: Inputs, program: Any, at: int) -> step.State:
  """The State of the newest checkpoint before step `at`, else the initial one."""
  config = inputs.config
  for folder in (inputs.workdir, config.resume_from):
    if not folder or not hosts.exists(Path(folder).expanduser() / 'checkpoints'):
      continue
    with contextlib.closing(checkpoint.Checkpoints(folder)) as checkpoints:
      saved = [number for number in checkpoints.steps() if number < at]
      if saved:
        state, _ = checkpoints.restored(max(saved), program.state)
        return state
  if config.resume_from:
    raise InputError(f'there is no checkpoint before step {at} to begin from.')
  weights = None
  source = teaching.source_of(config)
  if source:
    start = initialization.Start(initialization.WEIGHTS, hub.folder(source))
    weights = warm_start.load_weights(start, config, inputs.objective, inputs.mesh)
  return setup.finish_state(inputs, setup.begin_state(inputs, program), weights)


def _facts(inputs: Inputs, program: Any, state: step.State) -> dict[str, Any]:
  """The facts, {name: value}, of the step after `state`."""
  objective, before = inputs.objective, int(state.step)
  batch = inputs.batches[before]
  config = inputs.config.copy_and_resolve_references()
  config.optimizer.skip_nonfinite = 1  # gives the norm of each module
  train_step = step.program(config, objective, inputs.mesh, inputs.timeline).train_step
  constants = sharding.put(program.constants, inputs.mesh)
  _, out = jax.jit(train_step)(state, batch, constants)
  out = metrics.host_sum(out)
  norms = {name: number(x) for name, x in out.pop('module_norms').items()}
  out.pop('seen')
  terms = metrics.values(metrics.add({}, out), {})
  look = traced_in(config.model.dtype, first_not_finite)
  return {
    'step': before + 1,
    'rows': inputs.batches.row_numbers(before),
    **{name: number(x) for name, x in terms.items()},
    'module_norms': norms,
    'first_not_finite': look(objective, state, batch, constants, inputs.timeline),
  }


def first_not_finite(
  objective: Objective, state: step.State, batch: Any, constants: Any, timeline: Timeline
) -> str:
  """The path of the first module whose output in the forward pass of a step is not finite, though
  its input is; '' if there is none. Scanned layers are named by number."""
  within, paths, seen = [], [], []  # seen: (module, whether its output is finite), as they come

  def is_float(x):
    return hasattr(x, 'dtype') and jnp.issubdtype(x.dtype, jnp.inexact)

  def finite(tree):
    out = jnp.array(True)
    for x in jax.tree.leaves(tree):
      if is_float(x):
        out &= jnp.all(jnp.isfinite(x))
    return out

  def noted(module, out):
    """out, plus a zero that notes whether it is finite, since a scan allows no effects."""

    def note(ok):
      seen.append((module, bool(ok)))
      return np.float32(0)

    zero = jax.pure_callback(note, jax.ShapeDtypeStruct((), np.float32), finite(out))
    return jax.tree.map(lambda x: x + zero.astype(x.dtype) if is_float(x) else x, out)

  def look(call, args, kwargs, context):
    within.append(type(context.module).__name__)  # first a tower or a head, which has no path
    out = call(*args, **kwargs)
    if context.method_name == '__call__':  # an inner module comes before the one around it
      module = len(paths)
      paths.append('/'.join([within[0], *context.module.path]))
      out = noted(module, out)
    within.pop()
    return out

  def forward(state, batch, constants):
    key = jax.random.fold_in(constants.train_key, state.step)
    corrupt_key, dropout_key = jax.random.split(key)
    batch = objective.prepare(batch, corrupt_key, timeline.at(state.step))
    terms = objective.terms(state.params, batch, dropout_key, True, state.carry, constants.fixed)
    return jax.tree.map(jnp.asarray, terms)

  with nn.intercept_methods(look):
    jax.block_until_ready(jax.jit(forward)(state, batch, constants))
  jax.effects_barrier()
  return _first_of(seen, paths)


def _first_of(seen, paths):
  """The path of the first module that is not finite. seen: (its number, is it finite?).
  Modules are numbered as they are called; those of scanned layers come once for each layer."""
  layers, wrong = Counter(), []
  for module, ok in seen:
    if not ok:
      wrong.append((layers[module], module))
    layers[module] += 1
  if not wrong:
    return ''
  first = min(module for _, module in wrong)
  if layers[first] == 1:
    return paths[first]
  stack = paths[first].partition('/layer')[0] + '/layer'
  in_stack = []
  for layer, module in wrong:
    if layers[module] > 1 and paths[module].startswith(stack):
      in_stack.append((layer, module))
  layer, module = min(in_stack)
  return f'{paths[module]} of layer {layer}'


def main(argv: Sequence[str] | None = None) -> None:
  parser = command_parser('tools.replay', __doc__)
  parser.add_argument('workdir', metavar='W', help='the workdir of a run')
  parser.add_argument('--step', type=int, required=True, help='which one is repeated')
  args = parser.parse_args(argv)
  with command_line():
    print(json.dumps(replay(args.workdir, args.step), ensure_ascii=False))


if __name__ == '__main__':
  main()
