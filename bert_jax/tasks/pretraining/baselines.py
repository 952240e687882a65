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
  languages: Mapping[str, Any],
  counts: Mapping[str, tuple[np.ndarray, np.ndarray]],
  targets: Callable[[Batch], tuple[jax.Array, jax.Array]] | None = None,
) -> float:
  """Adds the baselines of some losses and their accuracies to a source; returns the baseline of the
  loss. languages: {name: a task.Language}. counts: {language: how often each piece is to be
  predicted in training [V], and in this split [V]}. targets: of a batch, (pieces [B, T], whether
  one is there [B, T]); None: all at their places."""
  number = 1 + max(language.number for language in languages.values())
  words = len(next(iter(counts.values()))[0])
  nats_LV, top_L = np.zeros((number, words), np.float32), np.zeros(number, int)
  level, hit, of_source = 0.0, 0.0, source.baselines
  for name, (train_V, here_V) in counts.items():
    language = languages[name]
    k, shares_V = language.number, here_V / here_V.sum()
    nats_V = unigram_table(train_V, here_V)
    nats_LV[k] = np.where(train_V + here_V > 0, nats_V, 0.0)  # 0: not predicted
    top_L[k] = train_V.argmax()
    nats = float(shares_V @ nats_V)
    level += language.share * nats
    hit += language.share * float(shares_V[top_L[k]])
    if name:
      of_source |= {f'{term}_{name}': LossLevel(nats, 'unigram') for term in terms}
  of_source |= dict.fromkeys(terms, LossLevel(level, 'unigram'))
  of_source |= {f'{term}_accuracy': Level(hit, 'majority') for term in terms}

  @jax.jit
  def of_batch(batch: Batch, nats_LV: jax.Array, top_L: jax.Array) -> dict[str, Mean]:
    # Padding is a special piece, which has no nats.
    pieces_BT, there_BT = targets(batch) if targets else (batch['input_ids'], True)
    language_B1 = batch.get('language', jnp.zeros(len(pieces_BT), jnp.int32))[:, None]
    nats_BT = nats_LV[language_B1, pieces_BT]
    hits_BT = pieces_BT == top_L[language_B1]
    counted_BT = there_BT * (nats_BT > 0)
    out = {}
    for term in terms:
      out[term] = mean(nats_BT, counted_BT)
      out[f'{term}_accuracy'] = mean(hits_BT, counted_BT)
      for name in filter(None, counts):
        in_language_BT = counted_BT * (language_B1 == languages[name].number)
        out[f'{term}_{name}'] = mean(nats_BT, in_language_BT)
    return out

  source.levels.append(lambda batch: of_batch(batch, nats_LV, top_L))
  return level


def add_pairs(source: Any, kind: str, totals: Sequence[Mapping[str, int]]) -> None:
  """Adds the baseline of the accuracy of a kind of sentence pairs, from Rows.totals of corpora."""
  name = f'{kind}_accuracy'
  label, share = sentence_pairs.prior(totals)
  source.baselines[name] = Level(share, 'prior')

  @jax.jit
  def of_batch(batch: Batch) -> dict[str, Mean]:
    return {name: mean(batch['labels'] == label, batch['weights'])}

  source.levels.append(of_batch)
