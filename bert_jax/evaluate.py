"""One exact pass over a split, in training and from the command line.

    python -m bert_jax.evaluate --workdir W [--config.data.eval=FILE] [--checkpoint best]

prints the metrics of a finished run as one line of JSON.
"""

import argparse

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax import checkpoint, metrics, sharding, step
from bert_jax import config as config_lib
from bert_jax.config import InputError
from bert_jax.data import batching, tokenizers
from bert_jax.tasks import TASKS


def limits(model, tokenizer):
  """Exclusive upper bounds of the integer arrays of a batch (see data.batching)."""
  out = {'input_ids': min(tokenizer.vocab_size, model.vocab_size)}
  if model.type_vocab_size:
    out['token_type_ids'] = model.type_vocab_size
  if model.position_embeddings != 'none':
    out['position_ids'] = model.max_position_embeddings
  return out


def run(eval_step, objective, params, batches, count=0):
  """{metric: float}: totals over weights, summed in float64.

  count: batches to look at, spread evenly over the split, since neighbours in a corpus are alike;
  0 is all of them.
  """
  totals, outputs, damaged = {}, [], batches.damaged_rows
  count = min(count or len(batches), len(batches))
  for i in (k * len(batches) // count for k in range(count)):
    terms, out = eval_step(params, batches[i], np.int32(i))
    totals = metrics.add(totals, metrics.host_sum(terms))
    if out:
      outputs.append(multihost_utils.process_allgather(out, tiled=True))
  result = metrics.values(totals, batches.source.baselines)
  if batches.damaged_rows > damaged:
    result['damaged_rows'] = batches.damaged_rows - damaged
  if outputs:
    joined = {name: np.concatenate([out[name] for out in outputs]) for name in outputs[0]}
    result |= objective.score(joined)
  return result


def evaluate(workdir, overrides=(), which='latest'):
  """(metrics, step) of a workdir's checkpoint on its data.eval, or another given by overrides."""
  config = config_lib.override(checkpoint.read_config(workdir), overrides)
  tokenizer = tokenizers.load_folder(workdir)
  task = TASKS[config.objective]
  objective = task.objective(config, tokenizer)
  source = task.sources(config, tokenizer, ('eval',)).get('eval')
  if source is None:
    raise InputError('there is nothing to evaluate on; set --config.data.eval=FILE.')
  mesh = sharding.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
  sharding.check_fits(mesh, config)
  init_key, _, eval_key = step.keys(config.seed, config.prng_impl)
  with jax.set_mesh(mesh), sharding.activation_rules():
    shapes = jax.eval_shape(objective.init, init_key)
    shapes = jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      shapes,
      sharding.tree_shardings(shapes, mesh),
    )
    params, number = checkpoint.load_params(workdir, shapes, which)
    batches = batching.Batches(
      source,
      objective.spec(config.batch_size),
      sharding.batch_sharding(mesh),
      limits=limits(config.model, tokenizer),
      skip_damaged=config.data.skip_damaged,
    )
    eval_step = jax.jit(step.make_eval_step(objective, key=eval_key))
    return run(eval_step, objective, params, batches), number


def main(argv=None):
  parser = argparse.ArgumentParser(
    prog='python -m bert_jax.evaluate',
    allow_abbrev=False,
    description='Evaluates a finished run; --config.NAME=VALUE changes fields of its config.',
  )
  parser.add_argument('--workdir', required=True, help='the run')
  parser.add_argument('--checkpoint', default='latest', help='latest, best or a step')
  args, overrides = parser.parse_known_args(argv)
  with config_lib.command_line():
    result, number = evaluate(args.workdir, overrides, args.checkpoint)
    print(metrics.to_json({'workdir': args.workdir, 'step': number} | result))


if __name__ == '__main__':
  main()
