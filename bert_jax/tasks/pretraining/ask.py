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


def with_masks(tokenizer: tokenizers.Tokenizer, text: str) -> str:
  """Writes each mask of a text as [MASK], for vocabularies that write <mask>, as RoBERTa's."""
  return text.replace(tokenizer.pieces[tokenizer.mask_id], MASK)


class FillMask(Packed):
  """Fills the masks of a text with the top_k likeliest pieces each."""

  exports, shows = {'logits': '[B, T, V]'}, ('masks',)

  def __init__(self, model: Any, top_k: int = 5):
    super().__init__(model)
    self.top_k = min(top_k, model.tokenizer.vocab_size)

  @classmethod
  def suits(cls, model: Any) -> bool:
    return not model.config.model.causal

  def record(self, fields: dict[str, Any]) -> str:
    text = super().record(fields)
    if MASK not in with_masks(self.model.tokenizer, text):
      raise InputError('no [MASK] in the text')
    return text

  def examples(self, records: Sequence[str], problems: Problems) -> 'Masks':
    return Masks(self.model, records, problems)

  def outputs(self, params: dict, batch: dict) -> dict[str, Any]:
    """The likeliest pieces at the mask of each example and their probabilities, [B, N, top_k]."""
    at_BN = batch['masked_positions'][..., 0]
    hidden_BND = models.gather_positions(self.model.word_hidden(params, batch), at_BN)
    # Probabilities are over all rows of the table; only rows with a piece can be answers.
    shares_BNV = nn.softmax(self.model.mlm_logits(params, hidden_BND))
    values, ids = lax.top_k(shares_BNV[..., : self.model.tokenizer.vocab_size], self.top_k)
    return {'values': values, 'ids': ids, 'example_ids': batch['example_ids']}

  def exported(self, params: dict, batch: dict) -> dict[str, Any]:
    return {'logits': self.model.mlm_logits(params, self.model.word_hidden(params, batch))}

  def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
    masks = []
    for mask in answer['masks']:
      masks.append([{'piece': piece, 'probability': share} for piece, share in mask])
    return {'masks': masks}

  def returned(self, answers: list[dict | None]) -> list[list[list[tuple[str, float]]]]:
    return [answer['masks'] if answer else [] for answer in answers]


class Masks(Examples):
  """Texts, or windows of texts, an example for each mask. text_of [E]: the number of its text."""

  def __init__(self, model: Any, records: Sequence[str], problems: Problems):
    self.records, self.read, self.text_of = records, [], []
    texts, places, room = [], [], model.limit - 2
    for i, text in enumerate(records):
      ids = model.tokenizer.encode_with_masks(with_masks(model.tokenizer, text))
      at = np.flatnonzero(ids == model.tokenizer.mask_id)
      if not len(at):
        continue
      self.read.append(ids)
      first, last = at[0], at[-1] + 1
      if last - first > room:  # no window holds all masks: use the windows of the whole text
        first, last = 0, len(ids)
      bounds = windows.around(first, last, len(ids), room)
      for place, k in zip(at, windows.owners(bounds, at)):
        start, stop = bounds[k]
        texts.append((ids[start:stop],))
        places.append(1 + place - start)
        self.text_of.append(i)
    super().__init__(
      model.tokenizer,
      texts,
      seq_length=model.limit,
      slots=max(1, model.limit // 8),  # so many distributions over the pieces are held at once
      positions={'masked_positions': np.array(places, np.int32)[:, None]},
    )

  def answers(self, outputs: Outputs) -> list[dict]:
    answers = [{'id': i, 'masks': []} for i in range(len(self.records))]
    numbers, (values, ids) = by_example(outputs, 'values', 'ids')
    for e, shares, best in zip(numbers, values, ids):
      pieces = list(map(self.tokenizer.shown, best))
      answers[self.text_of[e]]['masks'].append(list(zip(pieces, map(float, shares))))
    return answers


class Perplexity(Packed):
  shows = 'perplexity', 'log_probability', 'tokens'

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
  example's text, which is one example to a causal model, else n: each of its n pieces is masked.
  within_words: so are the pieces behind it in its word (Kauf & Ivanova 2023,
  https://arxiv.org/abs/2305.10588). InputError if the model is causal."""

  def __init__(
    self,
    model: Any,
    records: Sequence,
    texts: Sequence[np.ndarray],
    problems: Problems,
    within_words: bool = False,
  ):
    self.records, self.causal = records, model.config.model.causal
    if self.causal and within_words:
      raise InputError('this model is causal: it reads a word from left to right anyway.')
    cut = [ids[: model.limit - 2] for ids in texts]
    number = sum(len(ids) > model.limit - 2 for ids in texts)
    if number:
      problems.counts[f'texts cut (longer than {model.limit} tokens)'] += number
    sizes, targets, places = [len(ids) for ids in cut], {}, {}
    if self.causal:
      self.read, self.text_of = list(texts), np.flatnonzero(sizes)
      examples = [(cut[i],) for i in self.text_of]
    else:
      self.read, self.text_of, examples = cut, np.repeat(np.arange(len(sizes)), sizes), []
      for ids in cut:
        is_masked = np.eye(len(ids), dtype=bool)
        if within_words:
          starts = model.tokenizer.word_starts(ids, np.zeros(min(1, len(ids)), int))
          word = np.cumsum(starts)
          is_masked |= np.triu(word[:, None] == word)
        masked = np.where(is_masked, model.tokenizer.mask_id, ids)
        examples += [(row,) for row in masked]
      at = np.concatenate([np.arange(1, n + 1, dtype=np.int32) for n in (*sizes, 0)])
      targets['targets'] = np.concatenate([*cut, np.zeros(0, np.int32)])
      places['masked_positions'] = at[:, None]
    super().__init__(
      model.tokenizer,
      examples,
      seq_length=model.limit,
      slots=64,
      per_example=targets,
      positions=places,
    )

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
    answers = []
    for i, logs in self.logs(outputs):
      answers.append(
        {
          'id': i,
          'perplexity': float(np.exp(-logs.mean())),
          'log_probability': float(logs.sum()),
          'tokens': len(logs),
        }
      )
    return answers


class NextSentence(Classify):
  """Asks the pre-training head (NSP or SOP) whether a text follows another, as Classify asks."""

  fields = 'text', 'pair'

  @property
  def labels(self) -> tuple[str, ...]:
    return PAIRS[self.model.objective.pairs].labels

  def outputs(self, params: dict, batch: dict) -> dict[str, Any]:
    model, hidden_BTD = self.model.objective.model, self.model.hidden(params, batch)
    pooled_BND = pooled(model, params, batch, hidden_BTD)
    logits = apply(models.Classifier(model, len(self.labels)), params['nsp'], pooled_BND)
    return {'logits': logits, 'example_ids': batch['example_ids']}

  def config(self, row: int = 0) -> ConfigDict:
    return ConfigDict(
      {
        'table': {
          'labels': self.labels,
          'label_type': 'text',
          'multi_label': False,
          'regression': False,
          'ends': True,
          'long_texts': 'head',
        },
        'task': {'max_length': self.model.limit},
        'data': {'seq_length': self.model.limit, 'examples_per_row': 64},
        'model': self.model.config.model,
      }
    )

  def returned(self, answers: list[dict | None]) -> list[float | None]:
    """The probability of each pair that the second text follows the first."""
    return [next(iter(x['probabilities'].values())) if x else None for x in answers]
