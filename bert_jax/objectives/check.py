"""Checks an objective's class, batch, carry and terms, before anything is compiled.

Terms are checked while a step is traced, so that nothing is traced for the check alone.
"""

import inspect
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.errors import InputError
from bert_jax.metrics import Mean


def check_class(cls: type) -> None:
  """InputError unless an objective's class has everything that base.Objective requires."""
  fields = getattr(cls, '__dataclass_fields__', ())
  if annotated := [name for name in inspect.get_annotations(cls) if name not in fields]:
    fault = f'objective {cls.__name__} has the field {annotated[0]} but is no dataclass'
    raise InputError(f'{fault}; write @dataclasses.dataclass(frozen=True) above its class.')
  if missing := sorted(getattr(cls, '__abstractmethods__', ())):
    fault = f'objective {cls.__name__} has no {" and no ".join(missing)}'
    raise InputError(f'{fault}; add it to its class, see bert_jax/objectives/base.py.')


def check(objective: Any, config: Any) -> None:
  """InputError unless a config's training step can take an objective's batch and carry."""
  accumulation, name = config.optimizer.accumulation, type(objective).__name__
  if accumulation > 1 and objective.carry(config.batch_size):
    fault = f'objective {config.objective} carries something from step to step, which does not go'
    raise InputError(f'{fault} with optimizer.accumulation={accumulation}; set it to 1.')
  if 'segment_ids' not in objective.spec(config.batch_size):
    raise InputError(f'{name}.spec has no segment_ids, by which steps count tokens; add them.')


def checked_terms(objective: Any, before: Any, pair: Any) -> tuple[dict[str, Mean], Any]:
  """Returns the `pair` that objective.terms gave; InputError unless it is (terms, carry), with all
  terms of the loss, Means of single numbers, and a carry of the form of the carry `before`."""
  name = type(objective).__name__
  if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], dict):
    raise InputError(f'{name}.terms returns no pair; return (terms, carry), see base.Objective.')
  terms, carry = pair
  if missing := sorted(set(objective.loss_weights) - set(terms)):
    raise InputError(f'{name}.terms returns no {" and no ".join(missing)}, see its loss_weights.')
  # Anything else would be added up over microbatches and devices, and never divided.
  whole = lambda x: isinstance(x, Mean) and jnp.shape(x.total) == jnp.shape(x.weight) == ()
  if odd := [term for term, x in terms.items() if not whole(x)]:
    fault = f'{name}.terms returns for {odd[0]!r} no Mean of single numbers'
    raise InputError(f'{fault}; make it by metrics.mean(values, weights).')
  form = lambda x: f'{getattr(x, "dtype", type(x).__name__)}{list(jnp.shape(x))}'
  now, then = (jax.tree.map(form, tree) for tree in (carry, before))
  if now != then:
    raise InputError(f'{name}.terms returns the carry {now}; return {then}, as {name}.carry says.')
  return pair


def check_metrics(objective: Any, terms: dict[str, Mean]) -> None:
  """InputError if an objective names a metric that neither `terms` nor `shares` computes."""
  computed = {*terms, *objective.derived_metrics(dict.fromkeys((*terms, 'tokens'), Mean(0.0, 0.0)))}
  if unknown := [name for name in objective.metrics if name not in computed]:
    fault = f'{type(objective).__name__}.metrics names {" and ".join(unknown)}'
    raise InputError(f'{fault}, which nothing computes; return it from terms, or leave it out.')
