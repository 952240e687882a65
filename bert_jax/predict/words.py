"""What a masked language model is asked.

fill-mask    {"text"} with [MASK]s: the likeliest pieces for each. In a text that is too long a
             mask is filled in the window where it has most context on its shorter side
perplexity   {"text"}: the pseudo-perplexity of Salazar et al. 2020
             (https://arxiv.org/abs/1910.14659), exp of the mean of -log p of each token with it
             alone masked. A text that is too long is cut, and counted
"""

import jax.numpy as jnp
import numpy as np
from jax import lax, nn

from bert_jax.config import InputError
from bert_jax.data.examples import Examples, by_example
from bert_jax.predict.asks import Packed, grouped, texts_of
from bert_jax.tasks.tagging import best_windows, windows

MASK = '[MASK]'


class FillMask(Packed):
  """top_k: pieces told for each mask."""

  def __init__(self, model, top_k=5):
    super().__init__(model)
    self.top_k = min(top_k, model.tokenizer.vocab_size)

  def record(self, given):
    (text,) = texts_of(given, self.fields)
    if MASK not in text:
      raise InputError('no [MASK] in the text')
    return text

  def examples(self, records, problems):
    return Masks(self.model, records, problems)

  def outputs(self, params, batch):
    B, N, K = batch['masked_positions'].shape
    shares = nn.softmax(self.model.mlm_logits(params, batch, B, N * K))
    values, ids = (x.reshape(B, N, K, -1) for x in lax.top_k(shares, self.top_k))
    return {'values': values, 'ids': ids, 'example_ids': batch['example_ids']}

  def shown(self, answer):
    masks = [[{'piece': piece, 'probability': p} for piece, p in own] for own in answer['masks']]
    return {'text': answer['text'], 'masks': masks}


class Masks(Examples):
  """An example is a text, or a window of it, with the masks that are filled in it."""

  def __init__(self, model, records, problems):
    self.records, self.asked, texts = records, [], []
    room = model.limit - 2
    for i, text in enumerate(records):
      ids = model.tokenizer.encode_with_masks(text)
      at = np.flatnonzero(ids == model.tokenizer.mask_id)
      if not len(at):
        continue
      if len(ids) > room:
        problems.counts[f'in windows (longer than {model.limit} tokens)'] += 1
      own = windows(at[0], at[-1] + 1, len(ids), room)
      window_of = best_windows(own, at)
      for k in np.unique(window_of):
        start, stop = own[k]
        texts.append((ids[start:stop],))
        self.asked.append((i, 1 + at[window_of == k] - start))
    most = max((len(at) for _, at in self.asked), default=1)
    positions = np.zeros((len(texts), 1 << (most - 1).bit_length()), np.int32)
    for row, (_, at) in zip(positions, self.asked):
      row[: len(at)] = at
    super().__init__(
      model.tokenizer, texts, seq_length=model.limit, slots=64,
      positions={'masked_positions': positions},
    )  # fmt: skip

  def answers(self, outputs):
    found = [[] for _ in self.records]
    if self.asked:
      numbers, (values, ids) = by_example(outputs, 'values', 'ids')
      for e, shares, own in zip(numbers, values, ids):
        i, at = self.asked[e]
        for k in range(len(at)):
          pieces = (self.tokenizer.pieces[piece] for piece in own[k])
          found[i].append(list(zip(pieces, map(float, shares[k]))))
    return [
      {'id': i, 'text': text, 'masks': masks}
      for i, (text, masks) in enumerate(zip(self.records, found))
    ]


class Perplexity(Packed):
  def record(self, given):
    (text,) = texts_of(given, self.fields)
    return text

  def examples(self, records, problems):
    return EachMasked(self.model, records, problems)

  def outputs(self, params, batch):
    B, N = batch['targets'].shape
    logs = nn.log_softmax(self.model.mlm_logits(params, batch, B, N))
    own = jnp.take_along_axis(logs, batch['targets'][..., None], axis=-1)[..., 0]
    return {'logs': own, 'example_ids': batch['example_ids']}


class EachMasked(Examples):
  """A text of n pieces is n examples, with one of them masked in each."""

  def __init__(self, model, records, problems):
    tokenizer, room = model.tokenizer, model.limit - 2
    self.records, texts, targets, at, text_of = records, [], [], [], []
    for i, ids in enumerate(tokenizer.ids_batch(records)):
      if len(ids) > room:
        problems.counts[f'cut (longer than {model.limit} tokens)'] += 1
        ids = ids[:room]
      masked = np.tile(ids, (len(ids), 1))
      np.fill_diagonal(masked, tokenizer.mask_id)
      texts += [(row,) for row in masked]
      targets += ids.tolist()
      at += range(1, len(ids) + 1)
      text_of += [i] * len(ids)
    self.text_of = np.array(text_of, np.int64)
    super().__init__(
      tokenizer, texts, seq_length=model.limit, slots=64,
      per_example={'targets': np.array(targets, np.int32)},
      positions={'masked_positions': np.array(at, np.int32)[:, None]},
    )  # fmt: skip

  def answers(self, outputs):
    numbers, (logs,) = by_example(outputs, 'logs')
    return [
      {
        'id': i, 'text': self.records[i], 'perplexity': float(np.exp(-own.mean())),
        'log_probability': float(own.sum()), 'tokens': len(own),
      }
      for i, (own,) in grouped(self.text_of[numbers], logs.astype(np.float64))
    ]  # fmt: skip
