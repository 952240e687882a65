"""The baseline of a classifier that starts from trained weights: a logistic regression on the mean
of the last hidden states of each text, before the first step. It costs one pass over the evaluated
rows and over at most MOST training examples, and of few rows it may be better than fine-tuning."""

import time
from typing import Any

import jax
import numpy as np

from bert_jax import metrics, models
from bert_jax.errors import log
from bert_jax.models import layers, pooling
from bert_jax.objectives.contrastive import unit
from bert_jax.objectives.encode import encode
from bert_jax.rows.batches import batches_of
from bert_jax.run.initialization import WEIGHTS
from bert_jax.run.inputs import Inputs
from bert_jax.run.metrics_log import health
from bert_jax.tasks import TASKS
from bert_jax.workdir import records

MOST = 5000  # training examples, spread over all


def measured(inputs: Inputs, params: Any) -> dict[str, float]:
  """{NAME_logistic_regression: the score NAME on the evaluated rows}, of a run that goes on as it
  was recorded. {}: the family has no such baseline, labels are numbers, the run does not start from
  trained weights, or has several processes."""
  config, sources, begun = inputs.config, inputs.sources, time.perf_counter()
  of_vectors = TASKS[config.objective].of_vectors
  if inputs.in_workdir:
    return dict(records.read_facts(inputs.workdir).split('eval').measured)
  has_labels = of_vectors and inputs.objective.labels
  if not has_labels or inputs.start.kind != WEIGHTS or jax.process_count() > 1:
    return {}
  model = models.ModelConfig(**config.model)

  def vectors(params, batch):
    hidden_BTD = encode(model, params['encoder'], batch)
    vectors_BND = unit(pooling.text_vectors(hidden_BTD, batch, 'mean'))
    return {'example_ids': batch['example_ids'], 'vectors': vectors_BND}

  function = jax.jit(layers.traced_in(config.model.dtype, vectors))

  def outputs(batches, count):
    made = [jax.device_get(function(params, batches[k])) for k in batches.part(count)]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *made)

  of_run = inputs.tokenizer, inputs.objective, inputs.mesh
  train, examples = sources['train'], len(sources['train'].texts)
  batches = batches_of(train, config, *of_run)
  learned = outputs(batches, max(1, len(batches) * min(MOST, examples) // examples))
  evaluated = outputs(inputs.eval_batches, 0)
  scores = of_vectors(config, train, learned, sources['eval'], evaluated)
  if scores:
    log.info(
      'before training: a logistic regression on the vectors of these weights has %s '
      '(%d training examples, %.1f s)',
      health(scores, {}),
      np.count_nonzero(learned['example_ids']),
      time.perf_counter() - begun,
    )
  return {name + metrics.REGRESSION: value for name, value in scores.items()}
