"""Baselines of pre-training: what is reached without context, by the frequencies of pieces.

They are counted on a whole split (`source.baselines`) and on each of its batches (`source.levels`),
since an evaluation while training reads a part of the rows only (see evaluation.one_pass).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.corpus.tokenized import unigram_table
from bert_jax.metrics import Level, LossLevel, Mean, mean
from bert_jax.objectives.base import Batch
from bert_jax.rows import sentence_pairs


def own_tokens(batch: Batch) -> tuple[jax.Array, jax.Array]:
  """The targets of a model that predicts a token at its own place, see add."""
  return batch['input_ids'], batch['segment_ids'] > 0


def add(
  source: Any,
  terms: Sequence[str],
  counts: Mapping[str, tuple[np.ndarray, ...]],
  share: Mapping[str, float],
  languages: Sequence[str],
  targets: Callable[[Batch], tuple[jax.Array, jax.Array]] = own_tokens,
) -> float:
  """Adds the baselines of some losses and their accuracies to a source; returns that of the loss.
  counts: {language: how often each piece is to be predicted in training [V], and in this split}.
  share: {language: its share of the text}. languages: in the order of their numbers in a batch.
  targets: of a batch, (pieces [B, T], whether one is there [B, T])."""
  (words,) = {len(of) for _, of in counts.values()}
  nats_LV, hits_LV, known_LV = np.zeros((3, len(languages), words), np.float32)
  level, hit, baselines = 0.0, 0.0, source.baselines
  for name, (train, of) in counts.items():
    k, shares_V = languages.index(name), of / of.sum()
    nats_LV[k], known_LV[k] = nats_V, _ = unigram_table(train, of), train + of > 0
    hits_LV[k, train.argmax()] = 1.0
    own, most = float(shares_V @ nats_V), float(shares_V[train.argmax()])
    level, hit = level + share[name] * own, hit + share[name] * most
    baselines |= {f'{term}_{name}': LossLevel(own, 'unigram') for term in terms if name}
  baselines |= dict.fromkeys(terms, LossLevel(level, 'unigram'))
  baselines |= {f'{term}_accuracy': Level(hit, 'majority') for term in terms}

  @jax.jit
  def of_batch(batch: Batch) -> dict[str, Mean]:
    pieces_BT, there_BT = targets(batch)
    language_B1 = batch.get('language', jnp.zeros(len(pieces_BT), jnp.int32))[:, None]
    nats_BT, hits_BT, known_BT = jnp.stack([nats_LV, hits_LV, known_LV])[:, language_B1, pieces_BT]
    out, counted_BT = {}, there_BT * known_BT
    for term in terms:
      out |= {term: mean(nats_BT, counted_BT), f'{term}_accuracy': mean(hits_BT, counted_BT)}
      for name in filter(None, counts):
        counted = counted_BT * (language_B1 == languages.index(name))
        out[f'{term}_{name}'] = mean(nats_BT, counted)
    return out

  source.levels.append(of_batch)
  return level


def add_pairs(source: Any, kind: str, totals: Sequence[Mapping[str, int]]) -> None:
  """Adds the baseline of the accuracy of a kind of sentence pairs, from Rows.totals of corpora."""
  name, (label, share) = f'{kind}_accuracy', sentence_pairs.prior(totals, kind)
  source.baselines[name] = Level(share, 'prior')
  of_batch = lambda batch: {name: mean(batch['labels'] == label, batch['weights'])}
  source.levels.append(jax.jit(of_batch))
