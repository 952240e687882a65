"""One exact pass over a split, while a model is trained and after it, and the files of its answers:
scores.json (by length, too), predictions.jsonl with probabilities, worst.jsonl (the answers whose
label was least likely), and files for official scorers.
"""

import contextlib
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from bert_jax import hosts, metrics, sharding, step
from bert_jax.errors import unwritten
from bert_jax.files import make_folder, write_whole
from bert_jax.rows.ahead import Ahead
from bert_jax.tasks.scored import Scored

log = logging.getLogger('bert_jax')

WORST = 100  # answers in worst.jsonl
LEAST = 10  # the fewest answers by which a run is called collapsed


class Interrupted(Exception):
  """An evaluation was broken off."""


def one_pass(
  eval_step, params, carry, batches, constants, count=0, shares=None, ends=lambda: False
):
  """Evaluates a split: ({metric: float}, the answers of a Scored source, else []). Metrics are
  totals in float64, divided by their weights at the end.
  carry: the carry of the first batch. count: how many batches to evaluate, 0 for all. They are
  spread evenly over the split, since neighbours in a corpus are alike, unless the batches are
  lanes, which are read from their beginning. shares: Objective.shares, or None. A model that gives
  the same answer to everything gets the metric `constant`, 1. ends: asked before each batch
  whether to break off, which raises Interrupted."""
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
  """The Mean of positions that hold a token: (how many do, how many there are)."""
  return metrics.mean(segment_ids > 0, jnp.ones_like(segment_ids))


def empty_carry(objective, config, mesh):
  """Zeros on the mesh: the carry of an evaluation's first batch."""
  where = sharding.batch_sharding(mesh)
  shapes = objective.eval_carry(config.batch_size)
  return jax.jit(lambda: step.zeros(shapes), out_shardings=where)()


def beside(result, source, answers):
  """What to judge the metrics of a source by; see metrics.beside."""
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
    make_folder(folder)
    for name, content in files.items():
      write_whole(folder / name, content)
  except OSError as error:
    raise unwritten(folder, error, 'write elsewhere (evaluate --out)') from None
  log.info('answers: %s', folder)
