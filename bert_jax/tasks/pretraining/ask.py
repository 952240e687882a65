"""Questions to a pre-trained model.

fill-mask      {"text"} with [MASK]s: the likeliest pieces for each. In a text that is too long a
               mask is filled in the window where it has most context on its shorter side
perplexity     {"text"}: exp of the mean of -log p of each token given the previous ones, if the
               model is causal; else the pseudo-perplexity of Salazar et al. 2020
               (https://arxiv.org/abs/1910.14659), with each token alone masked. A text that is too
               long is cut, and counted
next-sentence  {"text", "pair"}: does the pair follow the text?
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax, nn
from ml_collections import ConfigDict

from bert_jax import models, tokenizers
from bert_jax.errors import InputError
from bert_jax.objectives.encode import apply, next_tokens, pooled
from bert_jax.objectives.losses import nats_in_chunks
from bert_jax.rows import windows
from bert_jax.rows.examples import Examples, by_example, tokens_of
from bert_jax.rows.sentence_pairs import PAIRS
from bert_jax.tasks.ask import Packed, grouped
from bert_jax.tasks.classification import Classify
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tokenizers import RESERVED

MASK = RESERVED[4]
Outputs = Mapping[str, np.ndarray]  # what an Ask's `outputs` gave for all rows
PLACES = 'example_ids', 'cls_positions'  # the arrays that tokens_of reads
AT_ONCE = 256  # vectors for which probabilities of all pieces are held; a power of two


def with_masks(tokenizer: tokenizers.Tokenizer, text: str) -> str:
  """Writes each mask of a text as [MASK], for vocabularies that write <mask>, as RoBERTa's."""
  return text.replace(tokenizer.pieces[tokenizer.mask_id], MASK)


class FillMask(Packed):
  """Fills the masks of a text with the top_k likeliest pieces each."""

  exports = {'logits': '[B, T, V]'}

  def __init__(self, model: Any, top_k: int = 5):
    if model.config.model.causal:
      causal = 'this model is causal: at a [MASK] it knows nothing of the text after it'
      raise InputError(f'{causal}; use a masked one, or let this one write (--task generate).')
    super().__init__(model)
    self.top_k = min(top_k, model.tokenizer.vocab_size)

  def record(self, fields: dict[str, Any]) -> str:
    text = super().record(fields)
    if MASK not in with_masks(self.model.tokenizer, text):
      raise InputError('no [MASK] in the text')
    return text

  def examples(self, records: Sequence[str], problems: Problems) -> 'Masks':
    return Masks(self.model, records, problems)

  def outputs(self, params: dict, batch: dict) -> dict[str, Any]:
    """The likeliest pieces and their probabilities, [B, T, top_k] each, zeros where no mask is. All
    X = B * T vectors are sorted, masks first, and cut into P parts of S; parts without are skipped.
    """
    (B, T), slots = batch['asked'].shape, batch['example_ids'].size
    flat_XD = self.model.word_hidden(params, batch).reshape(B * T, -1)
    asked_X = batch['asked'].reshape(-1)
    order_X = jnp.argsort(-asked_X)
    size = min(AT_ONCE, slots)  # one part is enough where each text has one mask
    asked_PS = asked_X[order_X].reshape(-1, size)  # B, T and size are powers of two
    vectors_PSD = flat_XD[order_X].reshape(-1, size, flat_XD.shape[1])

    def best(vectors_SD):
      # Probabilities are over all rows of the table; only rows with a piece can be answers.
      shares_SV = nn.softmax(self.model.mlm_logits(params, vectors_SD[None])[0])
      return tuple(lax.top_k(shares_SV[:, : self.model.tokenizer.vocab_size], self.top_k))

    none = lambda _: (jnp.zeros((size, self.top_k)), jnp.zeros((size, self.top_k), jnp.int32))
    best_or_none = lambda part: lax.cond(part[0].any(), best, none, part[1])
    # The first part is always computed, outside of the loop, which is slower.
    others = lax.map(best_or_none, (asked_PS[1:], vectors_PSD[1:]))
    both = zip(best(vectors_PSD[0]), others)
    values, ids = (jnp.concatenate([first[None], rest]) for first, rest in both)
    back_X = jnp.argsort(order_X)
    values, ids = (x.reshape(B * T, -1)[back_X].reshape(B, T, -1) for x in (values, ids))
    return {'values': values, 'ids': ids} | {name: batch[name] for name in PLACES}

  def exported(self, params: dict, batch: dict) -> dict[str, Any]:
    return {'logits': self.model.mlm_logits(params, self.model.word_hidden(params, batch))}

  def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
    masks = [[{'piece': piece, 'probability': p} for piece, p in mask] for mask in answer['masks']]
    return {'text': answer['text'], 'masks': masks}

  def returned(self, answers: list[dict | None]) -> list[list[list[tuple[str, float]]]]:
    return [answer['masks'] if answer else [] for answer in answers]


class Masks(Examples):
  """Texts, or windows of texts, with the masks that are to be filled in each."""

  def __init__(self, model: Any, records: Sequence[str], problems: Problems):
    self.records, self.read, self.asked, texts, flags = records, [], [], [], []
    room = model.limit - 2
    for i, text in enumerate(records):
      ids = model.tokenizer.encode_with_masks(with_masks(model.tokenizer, text))
      at = np.flatnonzero(ids == model.tokenizer.mask_id)
      if not len(at):
        continue
      self.read.append(ids)
      if len(ids) > room:
        problems.counts[f'texts in windows (longer than {model.limit} tokens)'] += 1
      first, last = at[0], at[-1] + 1
      if last - first > room:  # no window holds all masks: use the windows of the whole text
        first, last = 0, len(ids)
      bounds = windows.around(first, last, len(ids), room)
      starts, stops = zip(*bounds)
      window_of = windows.owners(starts, stops, at)
      for k in np.unique(window_of):
        start, stop = bounds[k]
        texts.append((ids[start:stop],))
        self.asked.append((i, 1 + at[window_of == k] - start))
        flags.append(np.zeros(stop - start + 2, np.int32))
        flags[-1][self.asked[-1][1]] = 1
    per_token = {'asked': (flags, np.int32)}
    super().__init__(model.tokenizer, texts, seq_length=model.limit, slots=64, per_token=per_token)

  def answers(self, outputs: Outputs) -> list[dict]:
    out = [{'id': i, 'text': text, 'masks': []} for i, text in enumerate(self.records)]
    values, ids = (tokens_of(outputs, name, self.lengths) for name in ('values', 'ids'))
    for e, (i, at) in enumerate(self.asked):
      for shares, best in zip(values[e][at], ids[e][at]):
        pieces = (self.tokenizer.pieces[piece] for piece in best)
        out[i]['masks'].append(list(zip(pieces, map(float, shares))))
    return out


class Perplexity(Packed):
  def examples(self, records: Sequence[str], problems: Problems) -> 'TokenScores':
    return TokenScores(self.model, records, self.model.tokenizer.ids_batch(records), problems)

  def outputs(self, params: dict, batch: dict) -> dict[str, Any]:
    if self.model.config.model.causal:
      hidden_BTD = self.model.hidden(params, batch)
      labels_BT, _ = next_tokens(batch)
      nats_BT, _ = nats_in_chunks(self.model.objective.model, params, hidden_BTD, labels_BT)
      return {'logs': -nats_BT} | {name: batch[name] for name in PLACES}
    at_BN = batch['masked_positions'][..., 0]
    hidden_BND = models.gather_positions(self.model.word_hidden(params, batch), at_BN)
    logs = nn.log_softmax(self.model.mlm_logits(params, hidden_BND))
    logs = jnp.take_along_axis(logs, batch['targets'][..., None], axis=-1).squeeze(-1)
    return {'logs': logs, 'example_ids': batch['example_ids']}

  def returned(self, answers: list[dict | None]) -> list[float]:
    return [answer['perplexity'] if answer else math.nan for answer in answers]


class TokenScores(Examples):
  """Texts, cut to fit, of which each token gets a probability. text_of [E]: the number of each
  example's text, which is one example to a causal model, else n: each of its n pieces is masked."""

  def __init__(
    self, model: Any, records: Sequence, texts: Sequence[np.ndarray], problems: Problems
  ):
    self.records, self.causal = records, model.config.model.causal
    cut = [ids[: model.limit - 2] for ids in texts]
    if number := sum(len(ids) < len(whole) for ids, whole in zip(cut, texts)):
      problems.counts[f'texts cut (longer than {model.limit} tokens)'] += number
    sizes, options = [len(ids) for ids in cut], {}
    self.read, self.text_of = list(texts) if self.causal else cut, np.flatnonzero(sizes)
    examples = [(cut[i],) for i in self.text_of]
    if not self.causal:
      self.text_of = np.repeat(np.arange(len(sizes)), sizes)
      mask_id = model.tokenizer.mask_id
      masked = [np.where(np.eye(len(ids), dtype=bool), mask_id, ids) for ids in cut]
      examples = [(row,) for rows in masked for row in rows]
      at = np.concatenate([np.arange(1, n + 1, dtype=np.int32) for n in (*sizes, 0)])
      options['per_example'] = {'targets': np.concatenate([*cut, np.zeros(0, np.int32)])}
      options['positions'] = {'masked_positions': at[:, None]}
    super().__init__(model.tokenizer, examples, seq_length=model.limit, slots=64, **options)

  def logs(self, outputs: Outputs) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (number of a text, the log probabilities of its tokens)."""
    if self.causal:
      values = tokens_of(outputs, 'logs', self.lengths)
      for e, i in enumerate(self.text_of.tolist()):
        yield i, values[e][:-2].astype(np.float64)  # at [CLS] and each token but the last
      return
    numbers, (values,) = by_example(outputs, 'logs')
    for i, (logs,) in grouped(self.text_of[numbers], values.astype(np.float64)):
      yield i, logs

  def answers(self, outputs: Outputs) -> list[dict]:
    out = []
    for i, logs in self.logs(outputs):
      out.append({'id': i, 'text': self.records[i], 'perplexity': float(np.exp(-logs.mean()))})
      out[-1] |= {'log_probability': float(logs.sum()), 'tokens': len(logs)}
    return out


class NextSentence(Classify):
  """Asks the pre-training head (NSP or SOP) whether a text follows another, as Classify asks."""

  fields = 'text', 'pair'

  @property
  def labels(self) -> tuple[str, ...]:
    return PAIRS[self.model.objective.pairs].labels

  def from_parts(self, parts: Sequence[str]) -> dict[str, Any]:
    return Packed.from_parts(self, parts)

  def outputs(self, params: dict, batch: dict) -> dict[str, Any]:
    model, hidden_BTD = self.model.objective.model, self.model.hidden(params, batch)
    pooled_BND = pooled(model, params, batch, hidden_BTD)
    logits = apply(models.Classifier(model, len(self.labels)), params['nsp'], pooled_BND)
    return {'logits': logits, 'example_ids': batch['example_ids']}

  def config(self, row: int = 0) -> ConfigDict:
    table = dict(labels=self.labels, multi_label=False, regression=False, ends=True)
    data = dict(seq_length=self.model.limit, examples_per_row=64)
    blocks = dict(task=dict(max_length=self.model.limit), data=data, model=self.model.config.model)
    return ConfigDict(dict(table=table | {'long_texts': 'head'}, **blocks))

  def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
    out = dict(zip(self.fields, answer['texts']))
    return out | {'label': answer['prediction'], 'probabilities': answer['probabilities']}

  def returned(self, answers: list[dict | None]) -> list[float | None]:
    """The probability of each pair that the second text follows the first."""
    return [next(iter(x['probabilities'].values())) if x else None for x in answers]
