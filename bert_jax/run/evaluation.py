"""One exact pass over a split, while a model is trained and after it, and the files of its answers:
scores.json (by length, too), predictions.jsonl with probabilities, worst.jsonl (the answers whose
label was least likely), and files for official scorers.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from bert_jax import gradients, hosts, metrics, sharding, step
from bert_jax.errors import InputError, log, writing
from bert_jax.files import Path, exists, make_folder, write_whole
from bert_jax.objectives import losses
from bert_jax.objectives.base import Objective
from bert_jax.rows.ahead import Ahead
from bert_jax.rows.batches import Batches
from bert_jax.tasks.labelled import Scored

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
  shares: Callable[[Mapping[str, metrics.Mean]], Mapping[str, metrics.Mean]] | None = None,
  ends: Callable[[], bool] = lambda: False,
  scores: Mapping[str, Callable[[list[dict]], float]] | None = None,
) -> tuple[dict[str, float], list[dict[str, Any]]]:
  """Evaluates a split: (its metrics, the answers of a Scored source, else []).
  carry: of the first batch. count: of Batches.part. shares: the derived_metrics of the
  objective. A model that gives
  one answer to everything gets the metric `constant`, 1. ends: asked before each batch whether to
  break off, which raises Interrupted. scores: Family.scores. Of several processes the first one
  alone has the answers and scores them, and tells the others the scores."""
  source: Any = batches.source
  totals, outputs = {}, []
  numbers, computed, predicted = batches.part(count), [], []

  def fetch():
    nonlocal totals
    for terms in metrics.host_sum(computed):
      totals = metrics.add(totals, terms)
    gathered = multihost_utils.process_allgather(predicted, tiled=True)
    outputs.extend(gathered if hosts.first() else ())
    computed.clear()
    predicted.clear()

  with contextlib.closing(Ahead(lambda k: batches[numbers[k]], len(numbers))) as ahead:
    for k, number in enumerate(numbers):
      if ends():
        raise Interrupted
      batch, _ = ahead.take(k)
      terms, out, carry = eval_step(params, carry, batch, np.int32(number), constants)
      if shares:
        terms = terms | {'tokens': _tokens(batch['segment_ids'])}
      jax.block_until_ready(computed[-1:])  # a batch late, so that the device computes meanwhile
      computed.append(terms)
      predicted += [out] if out and isinstance(source, Scored) else []
      size = sum(x.nbytes for x in jax.tree.leaves(predicted[-1:]))
      if len(computed) >= min(HELD, HELD_BYTES // (size or 1)):
        fetch()
    fetch()
  alike = [totals.pop(name) for name in [*totals] if name.endswith(losses.ALIKE)]
  if shares:
    totals |= shares(totals)
    del totals['tokens']
  result = metrics.values(totals, levels(batches, count))
  for name, (term, factor) in getattr(source, 'scales', {}).items():
    result |= {name: result[term] * factor} if term in result else {}
  alike = [x for x in alike if x.weight]  # else nothing of its kind was asked
  if alike and all(x.total == x.weight >= LEAST - 1 for x in alike):
    result['constant'] = 1.0
  scored, answers = _scored(source, outputs, scores or {}) if outputs else ({}, [])
  return result | hosts.from_first(scored), answers


def _scored(source, outputs, further):
  """(the scores, the answers) of what a model predicts for some batches."""
  answers = list(source.answers(jax.tree.map(lambda *parts: np.concatenate(parts), *outputs)))
  known, scores = [x for x in answers if 'gold' in x], source.score(answers)
  scores |= {name: _number(name, score(known)) for name, score in further.items() if known}
  if answers and not known:
    log.warning('nothing is scored: no example has a label')
  if len(answers) >= LEAST and source.constant(answers):
    scores = scores | {'constant': 1.0}
  return scores, answers


def _number(name, value):
  """What a score of Family.scores returned."""
  try:
    return float(value)
  except (TypeError, ValueError):
    fault = f'score {name!r} of Family.scores is of type {type(value).__name__}'
    raise InputError(f'{fault}; let it return a number.') from None


def warn_of_collapse(result: Mapping[str, float], source: Any, answers: list[dict]) -> None:
  """Warns of a model that gives one answer to everything, after its last evaluation. In an early
  one this is usual, and its line of metrics says so."""
  if hosts.first() and 'constant' in result:
    which = source.constant(answers) if answers else 'the same'
    why = 'the run has collapsed, or has learned too little so far'
    log.warning('%s: it predicts %s for every example', why, which)


def count_part(batches: Batches, count: int) -> None:
  """Counts the baselines of the rows that `count` batches hold, which are the same at each step."""
  source: Any = batches.source
  totals, numbers = {}, batches.part(count)
  if not hasattr(source, 'levels') or len(numbers) == len(batches):
    return
  for number in numbers:
    batch, terms = batches[number], {}
    for level in source.levels:
      terms |= level(batch)
    totals = metrics.add(totals, metrics.host_sum(terms))
  known, own = source.baselines, metrics.values(totals, {})
  source.part = {name: x._replace(value=own[name]) for name, x in known.items() if name in own}


def levels(batches: Batches, count: int) -> dict[str, metrics.Level]:
  """The baselines of the rows that one_pass reads, as far as they were counted."""
  source: Any = batches.source
  is_part = len(batches.part(count)) < len(batches)
  return {**source.baselines, **(getattr(source, 'part', {}) if is_part else {})}


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
  """Writes scores.json, predictions.jsonl, worst.jsonl and the files of the official formats, and
  removes files of an earlier evaluation that this one does not write."""
  if not hosts.first():
    return
  lines = lambda answers: ''.join(json.dumps(x, ensure_ascii=False) + '\n' for x in answers)
  worst = sorted((a for a in answers if 'loss' in a), key=lambda a: -a['loss'])[:WORST]
  files = {'predictions.jsonl': lines(answers), 'worst.jsonl': lines(worst)}
  scores = {**result, **beside(result, source, answers), 'by_length': source.by_length(answers)}
  files |= source.files(answers) | {'scores.json': metrics.to_json(scores) + '\n'}
  again = exists(folder / 'scores.json')  # else the files of such names are the user's
  with writing(folder, 'write elsewhere (evaluate --out)'):
    make_folder(folder)
    for name, content in files.items():
      write_whole(folder / name, content)
    for name in {*source.leaves_out} - files.keys() if again else ():
      (folder / name).unlink(missing_ok=True)
  log.info('answers: %s', folder)
