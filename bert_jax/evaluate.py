"""Evaluates a model on a split, exactly: while it is trained, and from the command line.

    python -m bert_jax.evaluate --workdir W [--config.data.eval=FILE] [--checkpoint best]

prints the metrics of a finished run as one line of JSON, with the number of examples and what each
metric is without reading the input (metrics.beside). The answers of a fine-tuned model are
written to W/eval/NAME-STEP (or --out): scores.json (by length, too), predictions.jsonl with
probabilities, worst.jsonl (the answers whose label was least likely), and files for official
scorers.
"""

import argparse
import contextlib
import json
import logging
import re
import zlib
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from bert_jax import config as config_lib
from bert_jax import hosts, metrics, models, sharding, step, tokenizers
from bert_jax.convert import from_huggingface
from bert_jax.errors import InputError, unwritten
from bert_jax.files import write_whole
from bert_jax.rows.ahead import Ahead
from bert_jax.rows.batches import Batches
from bert_jax.rows.examples import Scored
from bert_jax.run import teacher
from bert_jax.tasks import TASKS
from bert_jax.workdir import checkpoint, contents, int8, trained
from bert_jax.workdir import weights as run_weights

log = logging.getLogger('bert_jax')

WORST = 100  # answers in worst.jsonl
LEAST = 10  # answers that it takes to call a run collapsed


def batches_of(source, config, tokenizer, objective, mesh, seed=None, growth=None):
  """The Batches of a source for the model of a config; seed, growth: see Batches."""
  model, rows = config.model, config.batch_size
  words = min(tokenizer.vocab_size, model.vocab_size)
  limits = {'input_ids': words, 'target_ids': words, 'target_labels': words}
  if model.type_vocab_size:
    limits['token_type_ids'] = model.type_vocab_size
  if models.has_position_table(model) and not model.recurrent_length:
    limits['position_ids'] = limits['target_position_ids'] = model.max_position_embeddings
  where, skips = sharding.batch_sharding(mesh), config.data.skip_damaged
  lanes = bool(objective.eval_carry(rows) if seed is None else objective.carry(rows))
  hosts.agree(source.fingerprint)
  return Batches(
    source,
    objective.spec(rows),
    where,
    limits=limits,
    seed=seed,
    skip_damaged=skips,
    lanes=lanes,
    growth=growth,
  )


class Evaluation(NamedTuple):
  """The metrics of a checkpoint, of step `step`, on a named set; beside: see metrics.beside."""

  name: str
  metrics: dict
  step: int
  beside: dict


class Interrupted(Exception):
  """An evaluation was broken off."""


def run(eval_step, params, carry, batches, constants, count=0, shares=None, ends=lambda: False):
  """({metric: float}, the answers of a Scored source, else []). Metrics are totals in float64,
  divided by their weights at the end.
  carry: what the objective carries into the first batch. count: how many batches to look at, 0 for
  all. They are spread evenly over the split, since neighbours in a corpus are alike, unless the
  batches are lanes, which are read from their beginning. shares: that of the objective, if
  it has any. A model that gives the same answer to everything gets the metric `constant`, 1. ends:
  asked before each batch whether to break off, which raises Interrupted."""
  totals, outputs, damaged = {}, [], batches.damaged_rows
  count = min(count or len(batches), len(batches))
  number = lambda k: k if batches.lanes else k * len(batches) // count
  with contextlib.closing(Ahead(lambda k: batches[number(k)], count)) as ahead:
    for k in range(count):
      if ends():
        raise Interrupted
      batch, _ = ahead.take(k)
      terms, out, carry = eval_step(params, carry, batch, np.int32(number(k)), constants)
      if shares:
        terms = terms | {'tokens': _tokens(batch['segment_ids'])}
      totals = metrics.add(totals, metrics.host_sum(terms))
      if out and isinstance(batches.source, Scored):
        outputs.append(multihost_utils.process_allgather(out, tiled=True))
  if shares:
    totals |= shares(totals)
    del totals['tokens']
  result = metrics.values(totals, batches.source.baselines)
  for name, (term, factor) in getattr(batches.source, 'scales', {}).items():
    result |= {name: result[term] * factor} if term in result else {}
  if batches.skip_damaged and (damaged := hosts.total(batches.damaged_rows - damaged)):
    result['damaged_rows'] = damaged
  if not outputs:
    return result, []
  joined = {name: np.concatenate([out[name] for out in outputs]) for name in outputs[0]}
  answers = batches.source.answers(joined)
  result |= batches.source.score(answers)
  if answers and not any('gold' in answer for answer in answers):
    log.warning('nothing is scored: no example has a label')
  if len(answers) >= LEAST and (constant := batches.source.constant(answers)):
    log.warning('the run has collapsed: it predicts %s for every example', constant)
    result['constant'] = 1.0
  return result, answers


@jax.jit
def _tokens(segment_ids):
  """How many of the positions hold a token, and how many there are."""
  return metrics.mean(segment_ids > 0, jnp.ones_like(segment_ids))


def evaluate(workdir, overrides=(), which='latest', out='', in_int8=False):
  """(metrics, step) of a workdir's checkpoint on the data.eval of its config or the overrides.
  The answers are written to the folder `out`; '': to one in the workdir. in_int8: with weights as
  they are in int8."""
  (result,) = evaluate_on(workdir, [('', '')], overrides, which, out, in_int8)
  return result.metrics, result.step


def evaluate_on(workdir, parts, overrides=(), which='latest', out='', in_int8=False):
  """Yields the Evaluation on each (name, data.eval or '') of parts; compiles only once."""
  hosts.check()
  if from_huggingface.is_model(Path(workdir).expanduser()):
    raise InputError(
      f'{workdir} is a released model and no run; make it a workdir, to be evaluated with '
      f'--config.data.eval=FILE, by: python -m bert_jax.tools.convert --from {workdir} --to W'
    )
  config = config_lib.override(contents.read_config(workdir), overrides)
  tokenizer = tokenizers.load_folder(workdir)
  task = TASKS[config.objective]
  objective = teacher.taught(config, task.objective(config, tokenizer), tokenizer)
  mesh = sharding.mesh_of(config)
  shapes = trained.shapes_of(config, tokenizer, mesh)
  # The checkpoint is read first, since a mistake in it shows sooner than large data is read.
  params, number = run_weights.load_params(workdir, shapes, which)
  if in_int8:
    hosts.refuse_several('bert_jax.evaluate --int8')
    params = jax.tree.map(lambda x, y: jax.device_put(y, x.sharding), params, int8.rounded(params))
  is_given = config.data.train or config.data.eval or all(spec for _, spec in parts)
  if not is_given and (checkpoint.newest_meta(workdir) or {}).get('converted'):
    raise InputError(
      f'{workdir} holds converted weights and no data; name what they are to be evaluated on: '
      '--config.data.eval=FILE.'
    )
  sources = {}
  for name, spec in parts:
    if spec:
      config = config_lib.override(config, [f'--config.data.eval={spec}'])
    of_splits = task.sources(config, tokenizer, ('eval',))
    task.check_sources(of_splits, '')
    sources[name] = of_splits.get('eval')
    if sources[name] is None:
      raise InputError('there is nothing to evaluate on; set --config.data.eval=FILE.')
  with jax.set_mesh(mesh), sharding.activation_rules():
    eval_step = jax.jit(step.make_eval_step(objective))
    carry = empty_carry(objective, config, mesh)
    constants = sharding.put(step.constants_of(config, objective), mesh)
    for (name, spec), source in zip(parts, sources.values(), strict=True):
      batches = batches_of(source, config, tokenizer, objective, mesh)
      inputs = params, carry, batches, constants
      result, answers = run(eval_step, *inputs, shares=objective.shares)
      if answers:
        place = f'{number}-int8' if in_int8 else number
        folder = Path(out, name) if out else folder_of(workdir, spec or config.data.eval, place)
        write(folder, source, answers, result)
      yield Evaluation(name, result, number, beside(result, source, answers))


def empty_carry(objective, config, mesh):
  """What an objective carries into the first batch of an evaluation, on the mesh."""
  where = sharding.batch_sharding(mesh)
  shapes = objective.eval_carry(config.batch_size)
  return jax.jit(lambda: step.zeros(shapes), out_shardings=where)()


def folder_of(workdir, spec, number):
  """The folder in a workdir for the answers on data.eval=spec at step `number`."""
  name = re.sub(r'[^\w.=-]+', '_', spec.removeprefix('tfds:')).strip('_') or 'embedded'
  if len(name) > 60:
    name = f'{name[-51:]}-{zlib.crc32(spec.encode()):08x}'
  return Path(workdir).expanduser() / 'eval' / f'{name}-{number}'


def beside(result, source, answers):
  """metrics.beside of the metrics and answers of a source."""
  scored = sum('gold' in answer for answer in answers)
  return metrics.beside(result, source.baselines, scored)


def write(folder, source, answers, result):
  """Writes scores.json, predictions.jsonl, worst.jsonl and the files of the official formats."""
  if not hosts.first():
    return

  def lines(answers):
    return ''.join(json.dumps(answer, ensure_ascii=False) + '\n' for answer in answers)

  worst = sorted((a for a in answers if 'loss' in a), key=lambda a: -a['loss'])[:WORST]
  files = {'predictions.jsonl': lines(answers), 'worst.jsonl': lines(worst)}
  scores = result | beside(result, source, answers) | {'by_length': source.by_length(answers)}
  files |= source.files(answers) | {'scores.json': metrics.to_json(scores) + '\n'}
  try:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
      write_whole(folder / name, content)
  except OSError as error:
    raise unwritten(folder, error, 'write elsewhere (evaluate --out)') from None
  log.info('answers: %s', folder)


def main(argv=None):
  parser = argparse.ArgumentParser(
    prog='python -m bert_jax.evaluate',
    allow_abbrev=False,
    description='Evaluates a finished run; --config.NAME=VALUE changes fields of its config.',
  )
  parser.add_argument('--workdir', required=True, help='the run')
  parser.add_argument('--checkpoint', default='latest', help='latest, best or a step')
  parser.add_argument('--out', default='', help='folder for the answers; default: in the workdir')
  parser.add_argument('--int8', action='store_true', help='with weights as they are in int8')
  hosts.add_argument(parser)
  args, overrides = parser.parse_known_args(argv)
  with config_lib.command_line(), hosts.together():
    hosts.join(args.distributed)
    where = overrides, args.checkpoint, args.out, args.int8
    (result,) = evaluate_on(args.workdir, [('', '')], *where)
    if hosts.first():
      about = {'workdir': args.workdir, 'step': result.step}
      print(metrics.to_json(about | result.metrics | result.beside))


if __name__ == '__main__':
  main()
