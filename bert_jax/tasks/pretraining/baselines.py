"""Baselines of pre-training: what is reached without context, by the frequencies of pieces.

They are counted on a whole split (`source.baselines`) and on its batches (`source.levels`), since
an evaluation while training reads a part of the rows only (see evaluation.count_part).
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


def add(
  source: Any,
  terms: Sequence[str],
  counts: Mapping[str, tuple[np.ndarray, ...]],
  share: Mapping[str, float],
  languages: Sequence[str],
  targets: Callable[[Batch], tuple[jax.Array, jax.Array]] | None = None,
) -> float:
  """Adds the baselines of some losses and their accuracies to a source; returns that of the loss.
  counts: {language: how often each piece is to be predicted in training [V], and in this split}.
  share: {language: its share of the text}. languages: in the order of their numbers in a batch.
  targets: of a batch, (pieces [B, T], whether one is there [B, T]); None: all at their places."""
  (words,) = {len(of) for _, of in counts.values()}
  nats_LV, top_L = np.zeros((len(languages), words), np.float32), np.zeros(len(languages), int)
  level, hit, baselines = 0.0, 0.0, source.baselines
  for name, (train, of) in counts.items():
    k, shares_V, nats_V = languages.index(name), of / of.sum(), unigram_table(train, of)
    nats_LV[k], top_L[k] = np.where(train + of > 0, nats_V, 0.0), train.argmax()  # 0: not predicted
    own = float(shares_V @ nats_V)
    level, hit = level + share[name] * own, hit + share[name] * float(shares_V[top_L[k]])
    baselines |= {f'{term}_{name}': LossLevel(own, 'unigram') for term in terms if name}
  baselines |= dict.fromkeys(terms, LossLevel(level, 'unigram'))
  baselines |= {f'{term}_accuracy': Level(hit, 'majority') for term in terms}

  @jax.jit
  def of_batch(batch: Batch, nats_LV: jax.Array, top_L: jax.Array) -> dict[str, Mean]:
    # Padding is a special piece, which has no nats.
    pieces_BT, there_BT = targets(batch) if targets else (batch['input_ids'], True)
    language_B1 = batch.get('language', jnp.zeros(len(pieces_BT), jnp.int32))[:, None]
    nats_BT = nats_LV[language_B1, pieces_BT]
    hits_BT = pieces_BT == top_L[language_B1]
    out, counted_BT = {}, there_BT * (nats_BT > 0)
    for term in terms:
      out |= {term: mean(nats_BT, counted_BT), f'{term}_accuracy': mean(hits_BT, counted_BT)}
      for name in filter(None, counts):
        counted = counted_BT * (language_B1 == languages.index(name))
        out[f'{term}_{name}'] = mean(nats_BT, counted)
    return out

  source.levels.append(lambda batch: of_batch(batch, nats_LV, top_L))
  return level


def add_pairs(source: Any, kind: str, totals: Sequence[Mapping[str, int]]) -> None:
  """Adds the baseline of the accuracy of a kind of sentence pairs, from Rows.totals of corpora."""
  name, (label, share) = f'{kind}_accuracy', sentence_pairs.prior(totals, kind)
  source.baselines[name] = Level(share, 'prior')
  of_batch = lambda batch: {name: mean(batch['labels'] == label, batch['weights'])}
  source.levels.append(jax.jit(of_batch))
