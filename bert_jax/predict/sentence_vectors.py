"""A vector for each text: the mean of its last hidden states, or that of [CLS].

The mean goes over all tokens, [CLS] and [SEP] too, as sentence-transformers has it (Reimers &
Gurevych 2019). Of a text that is too long, windows that overlap by half are averaged, each counting
as many times as it has tokens.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import models
from bert_jax.errors import InputError
from bert_jax.objectives import base
from bert_jax.rows.examples import Examples, by_example
from bert_jax.tasks.ask import OfText, grouped
from bert_jax.tasks.classification.task import cut

POOLINGS = 'mean', 'cls'


class Embed(OfText):
  """pooling: mean or cls; '': what the model was trained with. normalize: to length 1."""

  options = ('pooling', 'no_normalize')

  def __init__(self, model, pooling='', normalize=True):
    super().__init__(model)
    pooling = pooling or model.pooling
    if pooling not in POOLINGS:
      raise InputError(f'pooling is {pooling!r}; use one of {", ".join(POOLINGS)}.')
    self.pooling, self.normalize = pooling, normalize

  def examples(self, records, problems):
    return Whole(self.model, records, problems, self.normalize)

  def outputs(self, params, batch):
    hidden_BTD = base.encode(self.model.objective.model, params['encoder'], batch)
    if self.pooling == 'cls':
      vectors_BND = models.gather_positions(hidden_BTD, batch['cls_positions'])
    else:
      slots_N = jnp.arange(1, batch['example_ids'].shape[1] + 1)
      own_BNT = (batch['segment_ids'][:, None] == slots_N[:, None]).astype(hidden_BTD.dtype)
      sums_BND = jnp.einsum(
        'bnt,btd->bnd', own_BNT, hidden_BTD, preferred_element_type=jnp.float32,
        precision=jax.lax.Precision.HIGHEST,
      )  # fmt: skip
      vectors_BND = sums_BND / jnp.maximum(own_BNT.sum(-1, keepdims=True), 1)
    return {'vectors': vectors_BND.astype(jnp.float32), 'example_ids': batch['example_ids']}

  def shown(self, answer):
    return {'embedding': answer['vector']}


class Whole(Examples):
  """An example is a text, or a window of it."""

  def __init__(self, model, records, problems, normalize):
    self.normalize, room = normalize, model.limit - 2
    texts, text_of = [], []
    self.read = model.tokenizer.ids_batch(records)
    for i, ids in enumerate(self.read):
      own = [(ids,)]
      if len(ids) > room:
        problems.counts[f'texts in windows (longer than {model.limit} tokens)'] += 1
        own = cut((ids,), room, 'windows')
      texts += own
      text_of += [i] * len(own)
    self.text_of = np.array(text_of, np.int64)
    super().__init__(model.tokenizer, texts, seq_length=model.limit, slots=64)

  def answers(self, outputs):
    numbers, (vectors,) = by_example(outputs, 'vectors')
    out = []
    for i, (own, weights) in grouped(self.text_of[numbers], vectors, self.lengths[numbers]):
      vector = np.average(own, axis=0, weights=weights)
      if self.normalize:
        vector = vector / max(np.linalg.norm(vector), 1e-12)
      out.append({'id': i, 'vector': vector.astype(np.float32)})
    return out
