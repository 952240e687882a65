"""One exact pass over a split, while a model is trained and after it, and the files of its answers:
scores.json (by length, too), predictions.jsonl with probabilities, worst.jsonl (the answers whose
label was least likely), and files for official scorers.
"""

import contextlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from bert_jax import gradients, hosts, metrics, sharding, step
from bert_jax.errors import log, quoted, writing
from bert_jax.files import Path, make_folder, write_sealed, write_whole
from bert_jax.objectives import losses
from bert_jax.objectives.base import Objective
from bert_jax.rows.ahead import Ahead
from bert_jax.rows.batches import Batches
from bert_jax.tasks.scored import NAMED, Scored

WORST = 100  # answers in worst.jsonl
HELD, HELD_BYTES = 32, 1 << 28  # batches, and bytes of their answers, that stay on all devices
LEAST = 10  # the fewest answers by which a run is called collapsed


class Interrupted(Exception):
  """An evaluation was broken off."""


def one_pass(
  eval_step: Callable[..., Any],
  params: Any,
  carry: Any,
  batches: Batches,
  constants: step.Constants,
  count: int = 0,
  objective: Objective | None = None,
  ends: Callable[[], bool] = lambda: False,
  scores: Mapping[str, Callable[[list[dict]], float]] | None = None,
) -> tuple[dict[str, float], list[dict[str, Any]]]:
  """Evaluates a split: (its metrics, the answers of a Scored source, else []).
  carry: of the first batch. count: of Batches.part. objective: adds `loss` and its derived metrics.
  A model that gives one answer to everything gets the metric `constant`, 1. ends: asked before each
  batch whether to break off, which raises Interrupted. scores: Family.scores. Of several processes
  the first one alone has the answers and scores them, and tells the others the scores."""
  source: Any = batches.source
  totals, outputs = {}, []
  numbers, computed, predicted = batches.part(count), [], []
  held = HELD

  def fetch():
    nonlocal totals
    for terms in metrics.host_sum(computed):
      totals = metrics.add(totals, terms)
    gathered = multihost_utils.process_allgather(predicted, tiled=True)
    if hosts.first():
      outputs.extend(gathered)
    computed.clear()
    predicted.clear()

  with contextlib.closing(Ahead(lambda k: batches[numbers[k]], len(numbers))) as ahead:
    for k, number in enumerate(numbers):
      if ends():
        raise Interrupted
      batch, _ = ahead.take(k)
      terms, out, carry = eval_step(params, carry, batch, np.int32(number), constants)
      if objective:
        terms = terms | {'tokens': _tokens(batch['segment_ids'])}
      jax.block_until_ready(computed[-1:])  # a batch late, so that the device computes meanwhile
      computed.append(terms)
      if out and isinstance(source, Scored):
        predicted.append(out)
        size = sum(x.nbytes for x in jax.tree.leaves(out))
        held = min(HELD, HELD_BYTES // max(1, size))
      if len(computed) >= held:
        fetch()
    fetch()
  is_collapsed = _all_alike(totals)
  if objective:
    totals |= _derived(objective, totals)
    del totals['tokens']
  result = _values(totals, batches, count)
  if is_collapsed:
    result['constant'] = 1.0
  scored, answers = _scored(source, outputs, scores or {}) if outputs else ({}, [])
  return result | hosts.from_first(scored), answers


def _values(totals, batches, count):
  """The values of terms, their scales, and what was measured of the same rows before."""
  source = batches.source
  result = metrics.values(totals, levels(batches, count))
  for name, (term, factor) in source.scales.items():
    if term in result:
      result[name] = result[term] * factor
  if len(batches.part(count)) == len(batches):
    result |= source.measured
  return result


def _derived(objective, totals):
  """`loss`, as in training, and what else follows from the terms of an evaluation."""
  out = dict(objective.derived_metrics(totals))
  weights = objective.loss_weights
  parts = [weights[x] * totals[x].value for x in weights if x in totals and totals[x].weight]
  if parts:
    out['loss'] = metrics.Mean(sum(parts), 1.0)
  return out


def _all_alike(totals):
  """Whether every answer was as the first of its batch. The counts are taken out of `totals`."""
  counts = [totals.pop(name) for name in list(totals) if name.endswith(losses.ALIKE)]
  asked = [count for count in counts if count.weight]
  return bool(asked) and all(x.total == x.weight >= LEAST - 1 for x in asked)


def _scored(source, outputs, family_scores):
  """(the scores, the answers) of what a model predicts for some batches."""
  arrays = jax.tree.map(lambda *parts: np.concatenate(parts), *outputs)
  answers = list(source.answers(arrays))
  known = [answer for answer in answers if 'gold' in answer]
  scores = dict(source.score(answers))
  if known:
    for name, score in family_scores.items():
      scores[name] = float(score(known))
    by_label = source.by_label(known)
    if len(by_label) <= NAMED:
      scores |= {f'f1_{x["label"]}': x['f1'] for x in by_label}
  elif answers:
    log.warning('nothing is scored: no example has a label (%s)', source.unscored)
  if len(answers) >= LEAST and source.constant(answers):
    scores['constant'] = 1.0
  return scores, answers


def warn(result: Mapping[str, float], source: Any, answers: list[dict], judge: str) -> None:
  """Warns of a model that gives one answer to everything, or some labels never, and of one that is
  worse by its metric `judge` than the logistic regression of run/frozen.py or than a guess. It is
  asked after a run's last evaluation: in an early one this is usual, and its line of metrics says
  so."""
  if not hosts.first():
    return
  if 'constant' in result:
    log.warning(
      'the run has collapsed, or has learned too little so far: it predicts %s everywhere',
      source.constant(answers) if answers else 'the same',
    )
  elif answers:
    of = f'of {sum("gold" in answer for answer in answers)}'
    missed = [x for x in source.by_label(answers) if not x['answered']]
    named = [f'{quoted(x["label"])} ({x["examples"]} {of})' for x in missed[:NAMED]]
    if named:
      log.warning('never answered: %s; %s', ', '.join(named), source.for_missed)
  value, level = result.get(judge, np.nan), source.baselines.get(judge)
  frozen = result.get(judge + metrics.REGRESSION, np.nan)
  if value < frozen:
    log.warning(
      f'{judge} is {value:.3f}, less than the {frozen:.3f} of a logistic regression on the vectors '
      'of the weights before training; another optimizer.learning_rate, or more steps, may do '
      'better'
    )
  if level and result.get(f'{judge}_below_{level.kind}', 0) < 0:
    log.warning(
      f'{judge} is {value:.3f}, worse than its {level.kind}, a guess without the input; train '
      'longer, or with another optimizer.learning_rate'
    )


def count_part(batches: Batches, count: int) -> None:
  """Counts the baselines of the rows that `count` batches hold, which are the same at each step."""
  source: Any = batches.source
  numbers = batches.part(count)
  if not source.levels or len(numbers) == len(batches):
    return
  totals = {}
  for number in numbers:
    batch, terms = batches[number], {}
    for level in source.levels:
      terms |= level(batch)
    totals = metrics.add(totals, metrics.host_sum(terms))
  counted = metrics.values(totals, {})
  source.part = {}
  for name, level in source.baselines.items():
    if name in counted:
      source.part[name] = level._replace(value=counted[name])


def levels(batches: Batches, count: int) -> dict[str, metrics.Level]:
  """The baselines of the rows that one_pass reads, as far as they were counted."""
  source: Any = batches.source
  if len(batches.part(count)) < len(batches):
    return {**source.baselines, **source.part}
  return dict(source.baselines)


@jax.jit
def _tokens(segment_ids):
  """The Mean of positions that hold a token: (how many do, how many there are)."""
  return metrics.mean(segment_ids > 0, jnp.ones_like(segment_ids))


def empty_carry(objective: Objective, config: ConfigDict, mesh: jax.sharding.Mesh) -> Any:
  """Zeros on the mesh: the carry of an evaluation's first batch."""
  shapes = objective.eval_carry(config.batch_size)
  return jax.jit(lambda: gradients.zeros(shapes), out_shardings=sharding.batch_sharding(mesh))()


def beside(
  result: Mapping[str, float], source: Any, answers: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
  """What to judge the metrics of a source by; see metrics.beside."""
  return metrics.beside(result, source.baselines, sum('gold' in answer for answer in answers))


def write(
  folder: Path, source: Scored, answers: list[dict[str, Any]], result: Mapping[str, float]
) -> None:
  """Writes scores.json, predictions.jsonl, worst.jsonl and the files of the official formats."""
  if not hosts.first():
    return
  with_loss = [answer for answer in answers if 'loss' in answer]
  worst = sorted(with_loss, key=lambda answer: -answer['loss'])[:WORST]
  texts = {'predictions.jsonl': _lines(answers), 'worst.jsonl': _lines(worst)}
  texts |= source.files(answers)
  scores = {**result, **beside(result, source, answers), 'by_length': source.by_length(answers)}
  scores['by_label'] = source.by_label(answers)
  scores['predictions_crc32'] = zlib.crc32(texts['predictions.jsonl'].encode())
  with writing(folder, 'write elsewhere (evaluate --out)'):
    make_folder(folder)
    for name, text in texts.items():
      write_whole(folder / name, text)
    write_sealed(folder / 'scores.json', json.loads(metrics.to_json(scores)))
  log.info('answers: %s', folder)


def _lines(answers):
  return ''.join(json.dumps(answer, ensure_ascii=False) + '\n' for answer in answers)
