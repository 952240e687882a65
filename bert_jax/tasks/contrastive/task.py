"""The rows and scores of sentence vectors.

In training the texts of an item stand side by side in a row, each [CLS] text [SEP] and a segment of
its own, cut at task.max_length; if they do not fit, the longest lose tokens from their end.

An evaluation encodes each distinct text once, cut at task.max_length or at the row. Pairs with
scores: Pearson's and Spearman's correlation of the similarities with the scores (STS). Others are
retrieval: for each anchor all distinct positives and negatives of the data are ranked. recall_at_k
is the share of anchors with a positive among the k nearest; mrr the mean of 1 / the rank of an
anchor's nearest positive. A tie counts as a miss. Each of contrastive.widths is scored as well.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.corpus.tokenized import digest_of
from bert_jax.errors import InputError
from bert_jax.models import ModelConfig
from bert_jax.objectives.contrastive import Contrastive
from bert_jax.rows.examples import Examples, by_example
from bert_jax.tasks import labelled
from bert_jax.tasks.contrastive.reading import Item, is_scored, read
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.labelled import Scored, correlations
from bert_jax.tokenizers import Tokenizer

DEPTHS = 1, 5, 10  # k of recall_at_k
AT_ONCE = 256  # anchors that are compared with all candidates at a time


def texts_per_item(config: ConfigDict) -> int:
  return 2 + len(config.contrastive.negative_columns)


def width_of(config: ConfigDict) -> int:
  """The width of the vectors that a config's model makes of texts."""
  return ModelConfig(**config.model).vector_size


def objective(config: ConfigDict, tokenizer: Tokenizer) -> Contrastive:
  names = 'loss', 'temperature', 'pooling', 'normalize', 'chunks'
  fields = {name: config.contrastive[name] for name in names}
  fields |= {'texts': texts_per_item(config), 'widths': tuple(config.contrastive.widths)}
  return labelled.objective(Contrastive, config, scores=score_names(config), **fields)


def score_names(config: ConfigDict) -> tuple[str, ...]:
  """The metrics of an evaluation; the last one judges the run."""
  retrieval = *(f'recall_at_{k}' for k in DEPTHS), 'mrr'
  names = ('pearson', 'spearman') if is_scored(config, 'eval') else retrieval
  return tuple(f'{name}{end}' for end in endings(config) for name in names)


def endings(config: ConfigDict) -> dict[str, int]:
  """The endings of score names, {ending: width of the vectors}; '' is the whole width."""
  widths = [w for w in config.contrastive.widths if w != width_of(config)]
  return {f'_{w}': w for w in sorted(widths)} | {'': width_of(config)}


class Items(Examples):
  """The rows of training items. Each item has K texts; a missing one gets weight 0."""

  def __init__(
    self, config: ConfigDict, tokenizer: Tokenizer, items: list[Item], problems: Problems
  ):
    K, length, limit = texts_per_item(config), config.data.seq_length, labelled.limit(config)
    ends = sum(tokenizer.ends)
    texts = list(dict.fromkeys(text for item in items for text in item.texts))
    ids_of = dict(zip(texts, tokenizer.ids_batch(texts)))
    self.read, numbers, parts, text_ids = list(ids_of.values()), {}, [], []
    for item in items:
      ids = [ids_of[text] for text in item.texts]
      lengths = np.array([len(x) for x in ids])
      room = fair_share(np.minimum(lengths, limit - ends), length - ends * K)
      if cut := int((lengths > room).sum()):
        problems.counts[f'texts cut (of {limit} tokens, or of a row of {length})'] += cut
      parts += [(x[:room],) for x in ids]
      # Texts that differ in capitals that the tokenizer drops, or after the cut, are one text.
      text_ids += [numbers.setdefault(x[: limit - ends].tobytes(), len(numbers) + 1) for x in ids]
    there = [bool(x) for item in items for x in item.texts]
    of_text: dict[str, np.ndarray] = {'weights': np.array(there, np.float32)}
    if config.contrastive.loss == 'in_batch':
      of_text['text_ids'] = np.array(text_ids, np.int32)
      if not any(x for item in items for x in item.texts[2:]) and len(set(text_ids[1::K])) < 2:
        problems.log()
        fix = 'give pairs with different positives, or contrastive.negative_columns'
        raise InputError(f'all pairs of data.train have one positive, told from nothing; {fix}.')
    else:
      scores = np.array([item.score for item in items], np.float32)
      of_text['scores'] = np.repeat(scores, K)
      if len(set(scores.tolist())) < 2:
        raise InputError('all scores of data.train are equal; give pairs of different scores.')
    options = labelled.shape(config) | {'items': np.repeat(np.arange(len(items)), K)}
    super().__init__(tokenizer, parts, per_example=of_text, ends=tokenizer.ends, **options)


def fair_share(lengths: Sequence[int] | np.ndarray, room: int) -> int:
  """The largest cap on lengths with which they sum to `room` at most; only the longest are cut."""
  lengths, left = sorted(int(n) for n in lengths), int(room)
  for i, n in enumerate(lengths):
    share = left // (len(lengths) - i)
    if n > share:
      return share
    left -= n
  return lengths[-1]


class Judged(Scored):
  """The rows and scores of an evaluation: each distinct text of the items is one example."""

  def __init__(
    self, config: ConfigDict, tokenizer: Tokenizer, items: list[Item], problems: Problems
  ):
    self.items_read, self.has_scores = items, is_scored(config, 'eval')
    self.temperature, self.normalize = config.contrastive.temperature, config.contrastive.normalize
    self.endings, room = endings(config), labelled.limit(config) - sum(tokenizer.ends)
    distinct = list(dict.fromkeys(x for item in items for x in item.texts if x))
    first, self.number, self.read = {}, {}, []  # as in Items, equal tokens are one text
    for text, ids in zip(distinct, tokenizer.ids_batch(distinct)):
      self.number[text] = first.setdefault(ids[:room].tobytes(), len(first))
      if self.number[text] == len(self.read):
        self.read.append(ids)
    if cut := sum(len(ids) > room for ids in self.read):
      problems.counts[f'texts cut (longer than {labelled.limit(config)} tokens)'] += cut
    problems.counts['distinct texts'] = len(self.read)
    # Weights of 0: the rows hold no items, so they have no loss.
    of_text = {'weights': np.zeros(len(self.read), np.float32)}
    of_text |= {'text_ids': np.zeros(len(self.read), np.int32), 'scores': of_text['weights']}
    parts, shape = [(ids[:room],) for ids in self.read], labelled.shape(config)
    super().__init__(tokenizer, parts, per_example=of_text, ends=tokenizer.ends, **shape)
    self.size = len(items)
    if self.has_scores:
      self.scored = sum(item.score is not None for item in items)
    facts = (repr((item.texts, item.score)) for item in items)
    self.fingerprint = digest_of([self.fingerprint, *facts])
    chance: dict[str, float] = dict.fromkeys(('pearson', 'spearman'), 0)
    if not self.has_scores:
      candidates = len({self.number[text] for item in items for text in item.texts[1:] if text})
      chance = {f'recall_at_{k}': min(1, k / candidates) for k in DEPTHS}
      chance['mrr'] = float(np.mean(1 / np.arange(1, 1 + candidates)))
    by_name = {f'{name}{end}': x for end in self.endings for name, x in chance.items()}
    self.baselines |= labelled.always('chance', by_name)

  def answers(self, outputs: Any) -> list[dict]:
    numbers, (vectors,) = by_example(outputs, 'vectors')
    row_of = dict(zip(numbers.tolist(), range(len(numbers))))
    rows = {text: row_of[i] for text, i in self.number.items() if i in row_of}  # of vectors
    items = [item for item in self.items_read if all(x in rows for x in item.texts if x)]
    lengths = [sum(len(self.read[self.number[x]]) for x in item.texts[:2] if x) for item in items]
    out = [{'id': x.id, 'where': x.where, 'length': n} for x, n in zip(items, lengths)]
    add = self._add_similarities if self.has_scores else self._add_ranks
    for end, width in self.endings.items():
      part = vectors[:, :width].astype(np.float32)
      if self.normalize:
        part = part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)
      add(out, items, rows, part, end)
    return out

  def _add_similarities(self, out, items, rows, vectors, end):
    for answer, item in zip(out, items):
      one, two = (vectors[rows[text]] for text in item.texts[:2])
      answer |= {'texts': list(item.texts[:2]), f'prediction{end}': float(one @ two)}
      answer |= {} if item.score is None else {'gold': item.score}

  def _add_ranks(self, out, items, rows, vectors, end):
    candidates, golds = {}, {}  # {row: its text}; {row of an anchor: the columns of its positives}
    for text in (x for item in items for x in item.texts[1:] if x):
      candidates.setdefault(rows[text], text)
    texts, column = list(candidates.values()), {row: i for i, row in enumerate(candidates)}
    of_candidates = vectors[list(candidates)]
    for item in items:
      golds.setdefault(rows[item.texts[0]], set()).add(column[rows[item.texts[1]]])
    for start in range(0, len(items), AT_ONCE):
      anchors = [rows[item.texts[0]] for item in items[start : start + AT_ONCE]]
      similar = vectors[anchors] @ of_candidates.T
      for answer, item, anchor, of_all in zip(out[start:], items[start:], anchors, similar):
        gold, itself = list(golds[anchor]), column.get(anchor)
        if itself is not None and itself not in gold:  # a text is no answer to itself
          of_all[itself] = -np.inf
        best = of_all[gold].max()
        others = np.delete(of_all, gold)
        answer[f'rank{end}'] = int(1 + np.sum(~(others < best)))  # NaN ranks last
        if end:
          continue
        logits = of_all / self.temperature
        top = logits.max()
        nats = top + np.log(np.exp(logits - top).sum()) - best / self.temperature
        answer |= {'question': item.texts[0], 'prediction': texts[int(of_all.argmax())]}
        answer |= {'gold': item.texts[1], 'loss': float(nats)}

  def scores(self, answers: list[dict]) -> dict[str, float]:
    out = {}
    for end in self.endings:
      if not self.has_scores:
        ranks = np.array([answer[f'rank{end}'] for answer in answers])
        out |= {f'recall_at_{k}{end}': float(np.mean(ranks <= k)) for k in DEPTHS}
        out[f'mrr{end}'] = float(np.mean(1 / ranks))
        continue
      sides = ([a[key] for a in answers] for key in ('gold', f'prediction{end}'))
      out |= {name + end: x for name, x in correlations(*sides).items()}
    return out


def rows(
  config: ConfigDict, tokenizer: Tokenizer, items: list[Item], problems: Problems
) -> Items | Judged:
  return (Items if problems.split == 'train' else Judged)(config, tokenizer, items, problems)


texts = labelled.texts_of(read, lambda item: dict.fromkeys(filter(None, item.texts)))
sources = labelled.sources_of(rows, read)
