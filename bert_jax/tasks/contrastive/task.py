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
from bert_jax.models import ModelConfig
from bert_jax.objectives.contrastive import Contrastive
from bert_jax.rows.examples import Examples, by_example
from bert_jax.tasks import labelled
from bert_jax.tasks.contrastive.reading import Item, is_scored, read
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.scored import Scored, always, correlations
from bert_jax.tokenizers import Tokenizer

DEPTHS = 1, 5, 10  # k of recall_at_k
AT_ONCE = 256  # anchors that are compared with all candidates at a time


def texts_per_item(config: ConfigDict) -> int:
  return 2 + len(config.contrastive.negative_columns)


def width_of(config: ConfigDict) -> int:
  """The width of the vectors that a config's model makes of texts."""
  return ModelConfig(**config.model).vector_size


def objective(config: ConfigDict, tokenizer: Tokenizer) -> Contrastive:
  fields = config.contrastive
  return labelled.objective(
    Contrastive,
    config,
    scores=score_names(config),
    texts=texts_per_item(config),
    loss=fields.loss,
    temperature=fields.temperature,
    widths=tuple(fields.widths),
    pooling=fields.pooling,
    normalize=fields.normalize,
    chunks=fields.chunks,
  )


def score_names(config: ConfigDict) -> tuple[str, ...]:
  """The metrics of an evaluation; the last one judges the run."""
  names = ('pearson', 'spearman')
  if not is_scored(config, 'eval'):
    names = (*(f'recall_at_{k}' for k in DEPTHS), 'mrr')
  return tuple(f'{name}{ending}' for ending in endings(config) for name in names)


def endings(config: ConfigDict) -> dict[str, int]:
  """The endings of score names, {ending: width of the vectors}; '' is the whole width."""
  whole = width_of(config)
  return {f'_{w}': w for w in sorted(config.contrastive.widths) if w != whole} | {'': whole}


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
      cut = int((lengths > room).sum())
      if cut:
        problems.counts[f'texts cut (of {limit} tokens, or of a row of {length})'] += cut
      for x in ids:
        parts.append((x[:room],))
        # Texts that differ in capitals that the tokenizer drops, or after the cut, are one text.
        text_ids.append(numbers.setdefault(x[: limit - ends].tobytes(), len(numbers) + 1))
    is_there = [bool(text) for item in items for text in item.texts]
    of_text: dict[str, np.ndarray] = {'weights': np.array(is_there, np.float32)}
    if config.contrastive.loss == 'in_batch':
      of_text['text_ids'] = np.array(text_ids, np.int32)
    else:
      scores = np.array([item.score for item in items], np.float32)
      of_text['scores'] = np.repeat(scores, K)
    super().__init__(
      tokenizer,
      parts,
      per_example=of_text,
      items=np.repeat(np.arange(len(items)), K),
      ends=tokenizer.ends,
      **labelled.shape(config),
    )


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
    fields = config.contrastive
    self.items_read, self.has_scores = items, is_scored(config, 'eval')
    self.temperature, self.normalize = fields.temperature, fields.normalize
    self.endings, room = endings(config), labelled.limit(config) - sum(tokenizer.ends)
    texts = list(dict.fromkeys(text for item in items for text in item.texts if text))
    first, self.number, self.read = {}, {}, []  # as in Items, equal tokens are one text
    for text, ids in zip(texts, tokenizer.ids_batch(texts)):
      self.number[text] = first.setdefault(ids[:room].tobytes(), len(first))
      if self.number[text] == len(self.read):
        self.read.append(ids)
    cut = sum(len(ids) > room for ids in self.read)
    if cut:
      problems.counts[f'texts cut (longer than {labelled.limit(config)} tokens)'] += cut
    count = problems.counts['distinct texts'] = len(self.read)
    super().__init__(
      tokenizer,
      [(ids[:room],) for ids in self.read],
      per_example={  # weights of 0: the rows hold no items, so they have no loss
        'weights': np.zeros(count, np.float32),
        'text_ids': np.zeros(count, np.int32),
        'scores': np.zeros(count, np.float32),
      },
      ends=tokenizer.ends,
      **labelled.shape(config),
    )
    self.size = len(items)
    facts = [repr((item.texts, item.score)) for item in items]
    self.fingerprint = digest_of([self.fingerprint, *facts])
    if self.has_scores:
      self.scored = sum(item.score is not None for item in items)
      chance = {'pearson': 0.0, 'spearman': 0.0}
    else:
      candidates = len({self.number[text] for item in items for text in item.texts[1:] if text})
      chance = {f'recall_at_{k}': min(1, k / candidates) for k in DEPTHS}
      chance['mrr'] = float(np.mean(1 / np.arange(1, 1 + candidates)))
    for ending in self.endings:
      of_width = {f'{name}{ending}': value for name, value in chance.items()}
      self.baselines |= always('chance', of_width)

  def answers(self, outputs: Any) -> list[dict]:
    numbers, (vectors,) = by_example(outputs, 'vectors')
    row_of = {int(number): row for row, number in enumerate(numbers)}
    rows = {text: row_of[i] for text, i in self.number.items() if i in row_of}  # of vectors
    items, answers = [], []
    for item in self.items_read:
      if all(text in rows for text in item.texts if text):
        items.append(item)
        length = sum(len(self.read[self.number[text]]) for text in item.texts[:2] if text)
        answers.append({'id': item.id, 'where': item.where, 'length': length})
    for ending, width in self.endings.items():
      part = vectors[:, :width].astype(np.float32)
      if self.normalize:
        part = part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)
      if self.has_scores:
        self._add_similarities(answers, items, rows, part, ending)
      else:
        self._add_ranks(answers, items, rows, part, ending)
    return answers

  def _add_similarities(self, answers, items, rows, vectors, ending):
    for answer, item in zip(answers, items):
      one, two = (vectors[rows[text]] for text in item.texts[:2])
      answer |= dict(zip(('text', 'pair'), item.texts))
      answer[f'prediction{ending}'] = float(one @ two)
      if item.score is not None:
        answer['gold'] = item.score

  def _add_ranks(self, answers, items, rows, vectors, ending):
    candidates = {}  # {row of vectors: its text}
    for item in items:
      for text in item.texts[1:]:
        if text:
          candidates.setdefault(rows[text], text)
    texts = list(candidates.values())
    column = {row: i for i, row in enumerate(candidates)}
    positives = {}  # {row of an anchor: the columns of its positives}
    for item in items:
      anchor, positive = (rows[text] for text in item.texts[:2])
      positives.setdefault(anchor, set()).add(column[positive])
    of_candidates = vectors[list(candidates)]
    for start in range(0, len(items), AT_ONCE):
      part = items[start : start + AT_ONCE]
      anchors = [rows[item.texts[0]] for item in part]
      similarities = vectors[anchors] @ of_candidates.T
      for answer, item, anchor, similar in zip(answers[start:], part, anchors, similarities):
        gold, itself = list(positives[anchor]), column.get(anchor)
        if itself is not None and itself not in gold:  # a text is no answer to itself
          similar[itself] = -np.inf
        best = similar[gold].max()
        others = np.delete(similar, gold)
        answer[f'rank{ending}'] = int(1 + np.sum(~(others < best)))  # NaN ranks last
        if not ending:
          logits = similar / self.temperature
          top = logits.max()
          nats = top + np.log(np.exp(logits - top).sum()) - best / self.temperature
          answer |= {
            'question': item.texts[0],
            'prediction': texts[int(similar.argmax())],
            'gold': item.texts[1],
            'loss': float(nats),
          }

  def scores(self, answers: list[dict]) -> dict[str, float]:
    out = {}
    for ending in self.endings:
      if self.has_scores:
        gold = [answer['gold'] for answer in answers]
        predicted = [answer[f'prediction{ending}'] for answer in answers]
        for name, value in correlations(gold, predicted).items():
          out[name + ending] = value
      else:
        ranks = np.array([answer[f'rank{ending}'] for answer in answers])
        for k in DEPTHS:
          out[f'recall_at_{k}{ending}'] = float(np.mean(ranks <= k))
        out[f'mrr{ending}'] = float(np.mean(1 / ranks))
    return out


def rows(
  config: ConfigDict, tokenizer: Tokenizer, items: list[Item], problems: Problems
) -> Items | Judged:
  return (Items if problems.split == 'train' else Judged)(config, tokenizer, items, problems)


texts = labelled.texts_of(read, lambda item: dict.fromkeys(filter(None, item.texts)))
sources = labelled.sources_of(rows, read)
