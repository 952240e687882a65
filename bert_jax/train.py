"""The run: set up, compile, loop. Read it from top to bottom.

    python -m bert_jax.train --config configs/pretrain.py:size=base --workdir W [--config.seed=1]

A run is a function of (config, step): the batch, the masks and the dropout of step n follow from
the seed and n alone. Started again in the same workdir it continues from the newest good checkpoint
and ends with the same bits as if it had never stopped.
"""

import argparse
import contextlib
import dataclasses
import logging
import math
import signal
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from bert_jax import (
  checkpoint,
  evaluate,
  hosts,
  initialization,
  manifest,
  metrics,
  sharding,
  step,
  workdirs,
)
from bert_jax import config as config_lib
from bert_jax.convert import hub
from bert_jax.errors import InputError
from bert_jax.rows import batches as batching
from bert_jax.tasks import TASKS
from bert_jax.tokenizers import training

log = logging.getLogger('bert_jax')


def train(config, workdir):
  """Runs a config in a workdir -> (State, final metrics {name: float}).

  The order in which a run starts: 1. the workdir's own newest checkpoint, 2. config.resume_from's,
  3. weights from config.init_from, 4. scratch. Everything that can be wrong with the input is found
  before anything is compiled or written. Asked to stop (SIGTERM, Ctrl-C), it finishes the step,
  saves, and raises KeyboardInterrupt.
  """
  config_lib.show_log()
  hosts.check()
  config, workdir = config_lib.check(config), Path(workdir).expanduser()
  continued, meta = initialization.continued(workdir, config.resume_from)

  # ---- devices ---------------------------------------------------------------------------------
  config = initialization.adopt_model(config, workdir)
  mesh = sharding.mesh_of(config)

  # ---- data ------------------------------------------------------------------------------------
  task = TASKS[config.objective]
  config = config_lib.check(task.resolve(config))
  workdirs.check(workdir, config)
  beginning = continued or (config.init_from and hub.folder(config.init_from)) or None
  tokenizer = training.of_run(config, beginning, lambda: task.texts(config))
  sources = task.sources(config, tokenizer)
  objective = task.objective(config, tokenizer)
  if config.checkpoint.best_metric not in ('', *objective.metrics):
    raise InputError(
      f'checkpoint.best_metric {config.checkpoint.best_metric!r} is not among the metrics of this '
      f'objective: {", ".join(objective.metrics)}.'
    )
  limits = evaluate.limits(config.model, tokenizer)
  spec, where = objective.spec(config.batch_size), sharding.batch_sharding(mesh)
  options = {'limits': limits, 'skip_damaged': config.data.skip_damaged}
  batches = batching.Batches(sources['train'], spec, where, seed=config.seed, **options)
  eval_batches = None
  if 'eval' in sources:
    eval_batches = batching.Batches(sources['eval'], spec, where, **options)
  else:
    log.warning('nothing is evaluated: data.eval is empty')
  baselines = sources['train'].baselines
  steps = config.steps or math.ceil(config.epochs * len(sources['train']) / config.batch_size)
  identity = {'config': config_lib.fingerprint(config), 'data': sources['train'].fingerprint}

  # ---- state and the compiled step -------------------------------------------------------------
  init_key, _, eval_key = step.keys(config.seed, config.prng_impl)
  program = step.program(config, objective, mesh, steps)
  with contextlib.ExitStack() as stack:
    stopping = stack.enter_context(stop_signals())
    stack.enter_context(jax.set_mesh(mesh))
    stack.enter_context(sharding.activation_rules())
    if continued:
      manifest.check_continues(meta, program.state, identity, steps, own=continued == workdir)
    weights = None
    if config.init_from and not continued:
      weights = initialization.weights_of(config, mesh)

    started = time.perf_counter()
    compiled = program.lower().compile()
    if eval_batches:
      eval_step = jax.jit(step.make_eval_step(objective, key=eval_key))
      index = jax.ShapeDtypeStruct((), jnp.int32)
      eval_step = eval_step.lower(program.state.params, program.batch, index).compile()
    flops = 3 * objective.flops(config.batch_size)  # backward is twice the forward pass
    log.info('%s', sharding.describe(program.state.params, mesh))
    log.info(
      'mesh %s; step compiled in %.1f s: %s, %.3g FLOPs',
      dict(mesh.shape), time.perf_counter() - started, memory(compiled), flops,
    )  # fmt: skip

    # ---- where this run begins -----------------------------------------------------------------
    hosts.wait('compiled')
    if hosts.first():
      workdirs.claim(workdir, config)
      if continued != workdir:
        tokenizer.save(workdir)
    hosts.wait('claimed')
    hosts.exists(workdir / workdirs.CONFIG)
    judged = ' '.join(
      (config.checkpoint.best_metric, config.checkpoint.best_mode,
       sources['eval'].fingerprint if eval_batches else '')
    )  # fmt: skip
    checkpoints = checkpoint.Checkpoints(workdir, config.checkpoint, identity, judged)
    stack.enter_context(contextlib.closing(checkpoints))
    results, seen = {}, {}
    if continued:
      with contextlib.ExitStack() as others:
        source = checkpoints
        if continued != workdir:
          source = others.enter_context(contextlib.closing(checkpoint.Checkpoints(continued)))
        state, meta = source.restore(program.state)
      results, seen = meta['metrics'], meta.get('seen', {})
      log.info('continuing at step %d of %d', int(state.step), steps)
    else:
      state = jax.jit(program.make_state, out_shardings=program.layout)(init_key)
      if weights:
        params = initialization.warm_start(state.params, weights)
        state, weights = dataclasses.replace(state, params=params), None
    workdirs.write_facts(workdir, sources, mesh)

    # ---- the loop ------------------------------------------------------------------------------
    start = int(state.step)
    writer = stack.enter_context(
      contextlib.closing(metrics.Writer(workdir, start, config.log.tensorboard))
    )
    progress = stack.enter_context(contextlib.closing(metrics.Progress(steps, start)))
    clock = metrics.Clock(flops)
    window, pending, stop, early = {}, None, False, False
    stops = hosts.Vote(mesh)
    if continued != workdir:
      checkpoints.best['step'] = start
    if eval_batches and start < steps and exhausted(config, checkpoints, start):
      log.info('this run has stopped early, at step %d', start)
      return state, results

    for number in range(start + 1, steps + 1):
      state, out = compiled(state, batches[number - 1])
      clock.steps += 1
      # The metrics of a step are fetched while the next one runs.
      if pending is not None:
        window, seen = take(window, seen, pending, number - 1, workdir)
      pending = out

      stop = stops.cast(stopping())
      final = number == steps or stop
      log_now = final or number % config.log.every == 0
      eval_now = eval_batches is not None and (number == steps or due(number, config.eval.every))
      save_now = final or due(number, config.checkpoint.every)
      if log_now or eval_now or save_now:
        window, seen = take(window, seen, pending, number, workdir)
        pending = None
      shown = ''
      if log_now:
        tokens = window.pop('tokens')
        shown = metrics.values(window, baselines)
        speed = clock.read(tokens.total) | {'fill': float(tokens.value)}
        if config.data.skip_damaged and (damaged := hosts.total(batches.damaged_rows)):
          speed['damaged_rows'] = damaged
        writer.write(number, 'train', shown | speed | seen)
        shown = (
          f'{metrics.health(shown, baselines)}  {speed["tokens_per_s"]:,.0f} tokens/s  '
          f'MFU {speed["mfu"]:.1%}'
        )
        if progress.bar.disable:
          left = (steps - number) / speed['steps_per_s']
          progress.line(f'step {number}/{steps}  {shown}  ETA {left:.0f} s')
        window = {}
      progress.update(shown)

      clock.pause()
      if eval_now:
        count = 0 if number == steps else config.eval.batches
        results, answers = evaluate.run(eval_step, state.params, eval_batches, count)
        writer.write(number, 'eval', results)
        progress.line(
          f'step {number}/{steps}  eval  ' + metrics.health(results, eval_batches.source.baselines)
        )
        save_now |= checkpoints.is_best(results, number) or config.eval.patience > 0
      if save_now:
        checkpoints.save(state, results if eval_now else {}, seen)
      early = eval_now and number < steps and exhausted(config, checkpoints, number)
      if eval_now and answers and (early or number == steps):
        folder = evaluate.folder_of(workdir, config.data.eval, number)
        evaluate.write(folder, eval_batches.source, answers, results)
      clock.go()
      if stop or early:
        break

    checkpoints.wait()
    if early:
      log.info(
        'stopped early: no better %s than at step %d (evaluate --checkpoint best)',
        config.checkpoint.best_metric, checkpoints.best['step'],
      )  # fmt: skip
    elif stop and int(state.step) < steps:
      raise KeyboardInterrupt(
        f'stopped by a signal at step {int(state.step)} of {steps}; the same command continues'
      )
    return state, results


def exhausted(config, checkpoints, number):
  """Has the run been evaluated eval.patience times without a better checkpoint.best_metric?"""
  patience, every = config.eval.patience, config.eval.every
  return patience > 0 and (number - checkpoints.best['step']) // every >= patience


def due(number, every):
  return every > 0 and number % every == 0


def take(window, seen, out, number, workdir):
  """Adds a step's metrics to the window and its counts to those of all steps since the first; a
  loss that is not finite ends the run here."""
  out = metrics.host_sum(out)
  seen = {name: seen.get(name, 0.0) + float(n) for name, n in out.pop('seen').items()}
  for name in ('loss', 'grad_norm'):
    if math.isfinite(out[name]):
      continue
    raise InputError(
      f'the {name} is {float(out[name])} at step {number}, so the run stops; the checkpoints in '
      f'{workdir} are from before it. A lower optimizer.learning_rate, more warmup or float32 '
      'usually helps.'
    )
  return metrics.add(window, out), seen


def memory(compiled):
  """Memory of a compiled step on each device, as a sentence."""
  sizes = compiled.memory_analysis()
  if sizes is None:
    return 'memory unknown'
  return (
    f'{sizes.argument_size_in_bytes / 2**20:,.0f} MiB of state and batch, '
    f'{sizes.temp_size_in_bytes / 2**20:,.0f} MiB of temporaries per device'
  )


@contextlib.contextmanager
def stop_signals():
  """Yields a function: was the run asked to stop? SIGTERM and the first Ctrl-C save and end it; the
  second Ctrl-C ends it at once."""
  asked = threading.Event()
  old = {}
  if threading.current_thread() is threading.main_thread():

    def ask(number, frame):
      if asked.is_set() and number == signal.SIGINT:
        signal.default_int_handler(number, frame)
      asked.set()

    old = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
  try:
    yield asked.is_set
  finally:
    for number, handler in old.items():
      signal.signal(number, handler)


def main(argv=None):
  parser = argparse.ArgumentParser(
    prog='python -m bert_jax.train',
    allow_abbrev=False,
    description='Runs a config in a workdir, or continues the run that is there.',
    epilog='Any field of the config is set as --config.NAME=VALUE, for example '
    '--config.optimizer.learning_rate=3e-4; python -m bert_jax.config lists them all.',
  )
  parser.add_argument(
    '--config',
    required=True,
    metavar='FILE[:ARGS]',
    help='for example configs/pretrain.py:size=tiny,runlocal',
  )
  parser.add_argument('--workdir', default='', help='where the run is written, and resumed from')
  hosts.add_argument(parser)
  args, overrides = parser.parse_known_args(argv)
  with config_lib.command_line(), hosts.together():
    hosts.join(args.distributed)
    config = config_lib.load(args.config, overrides)
    if not args.workdir:
      raise InputError('--workdir is missing; name the folder this run is to be written to.')
    _, results = train(config, args.workdir)
    if hosts.first():
      print(metrics.to_json({'workdir': args.workdir} | results))


if __name__ == '__main__':
  main()
