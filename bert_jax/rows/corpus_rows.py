"""Rows of a tokenized corpus: planned once as ranges of tokens, so row i is a function of i alone.

An example is [CLS] A [SEP] or [CLS] A [SEP] B [SEP]. The kind of rows says how A and B are chosen:

  nsp     next-sentence pairs (Devlin et al. 2018): label 1 where B is from another document
  sop     sentence-order pairs (ALBERT, Lan et al. 2019): label 1 where the two are swapped
  full    consecutive tokens of a document, as many as the row holds (the last one: the rest)
  single  whole sentences of a document, as many as the row holds
  lm      stretches of a document, each beginning with the last token of the previous stretch, so
          that every token is predicted once from the tokens before it. [CLS] stands at the
          beginning of the document only, and [SEP] at its end only

No example crosses a document. A row holds one example, or several packed ones, each with its
segment id and with positions from 0; attention never crosses segments.

A plan is [examples, 5] int64: first token and end of A, of B (0, 0: none), label (-1: none).
"""

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from bert_jax.corpus.tokenized import Corpus, digest_of
from bert_jax.errors import InputError
from bert_jax.rows.packing import pack
from bert_jax.rows.row_arrays import build_rows, spread
from bert_jax.rows.sentence_pairs import PAIRS, further_labels, plan_pairs
from bert_jax.tokenizers import Tokenizer

# The names of Rows.totals, but for further labels: counts of the plan, and of its text.
OF_EXAMPLES = 'examples', 'tokens', 'cut_tokens', 'labelled', 'ones'
OF_TEXT = 'text_tokens', 'documents', 'alone', 'characters', 'bytes'
Examples = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list]  # see Rows.examples
Plan = tuple[np.ndarray, np.ndarray]  # [examples, 5], marks [examples, 2] (see build_rows)


class Rows:
  """Random access to the rows of one corpus, {name: array} as in build_rows, with `language`, its
  number. kind: one of KINDS. short_seq_prob, seed: for pairs, see plan_pairs. dupe_factor: how many
  times the corpus is cut into pairs, differently each time; other kinds are cut once.
  examples_per_row: the most in one row. row_at [R + 1]: row r holds examples from row_at[r] on."""

  def __init__(
    self,
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    kind: str,
    seq_length: int,
    seed: int | Sequence[int] = 0,
    short_seq_prob: float = 0.0,
    dupe_factor: int = 1,
    examples_per_row: int = 1,
    language: int = 0,
  ):
    self.corpus, self.tokenizer, self.seq_length = corpus, tokenizer, seq_length
    self.sample = corpus  # a Corpus that is like the text: here all of it
    self.language, self.examples_per_row = np.int32(language), examples_per_row
    self.baselines, self.levels, self.scales, self.cut_tokens = {}, [], {}, 0
    pair = PAIRS.get(kind)
    self.cuts = dupe_factor if pair else 1
    if pair:
      if corpus.number_of_documents < (least := pair.documents):
        raise InputError(f'{kind} pairs need at least {least} documents, between blank lines.')
      each = corpus, seq_length - 3, pair, short_seq_prob, np.random.default_rng(seed)
      plans, cut = zip(*(plan_pairs(*each) for _ in range(self.cuts)), strict=True)
      self.plan, self.cut_tokens = np.concatenate(plans), sum(cut)
      self.marks = np.ones((len(self.plan), 2), bool)
    else:
      self.plan, self.marks = PLANS[kind](corpus, seq_length)
    self.further_labels, self.row_at = further_labels(pair), np.arange(len(self.plan) + 1)
    if packed := examples_per_row > 1:
      order, self.row_at = pack(self.lengths(), seq_length, examples_per_row)
      self.plan, self.marks = self.plan[order], self.marks[order]
    facts = self.plan, self.row_at if packed else 0, seq_length
    arrays = (np.asarray(x, np.int64).tobytes() for x in facts)
    self.fingerprint = digest_of([corpus.fingerprint, *arrays])

  def lengths(self) -> np.ndarray:
    """[examples] the length of each example in tokens, [CLS] and [SEP] included."""
    sizes = self.plan[:, 1] - self.plan[:, 0] + self.plan[:, 3] - self.plan[:, 2]
    return sizes + self.marks.sum(axis=1) + (self.plan[:, 3] > self.plan[:, 2])

  @functools.cached_property
  def totals(self) -> dict[str, int]:
    """Counts of the plan and of its text. tokens: in examples, [CLS] and [SEP] included; alone:
    documents of one sentence; labelled, ones: examples with a label, and with label 1; label_2, ..:
    examples with each further label of the kind of pairs."""
    label, sentences = self.plan[:, 4], np.diff(self.corpus.documents)
    labelled, ones, alone = label >= 0, label == 1, sentences == 1
    examples = len(label), self.lengths().sum(), self.cut_tokens, labelled.sum(), ones.sum()
    sizes = () if self.corpus.sizes is None else self.corpus.sizes.sum(axis=0)
    text = len(self.corpus), len(sentences), alone.sum(), *sizes
    out = dict(zip(OF_EXAMPLES + OF_TEXT, examples + text))
    out |= {name: (label == int(name[6:])).sum() for name in self.further_labels}
    return {name: int(value) for name, value in out.items()}

  @property
  def fill(self) -> float:
    """Share of all positions that hold a token."""
    return self.totals['tokens'] / max(1, len(self) * self.seq_length)

  def __len__(self) -> int:
    return len(self.row_at) - 1

  def __getitem__(self, i: int) -> dict[str, np.ndarray]:
    return {name: array[0] for name, array in self.gather([i]).items()}

  def gather(self, numbers: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
    """{name: [R, ...]} of the rows with these numbers."""
    return self.build([self.examples(numbers)])

  def examples(self, numbers: Sequence[int] | np.ndarray) -> Examples:
    """The E examples in R rows: (examples in each row [R], token counts of A and B [E, 2], labels
    [E], marks [E, 2], their texts one after the other)."""
    numbers = np.asarray(numbers)
    held = self.row_at[numbers + 1] - self.row_at[numbers]
    chosen = spread(self.row_at[numbers], held)
    ranges = self.plan[chosen, :4].reshape(-1, 2)
    texts = [self.corpus.piece(start, end) for start, end in ranges.tolist() if start < end]
    sizes = np.diff(ranges).reshape(-1, 2)
    return held, sizes, self.plan[chosen, 4], self.marks[chosen], texts

  def build(self, parts: Sequence[Examples]) -> dict[str, np.ndarray]:
    """{name: [R, ...]} of rows from results of `examples`, of this or of similar Rows."""
    *arrays, texts = zip(*parts, strict=True)
    held, sizes, labels, marks = map(np.concatenate, arrays)
    tokens, units = map(np.concatenate, zip(*itertools.chain(*texts), strict=True))
    examples = np.repeat(np.arange(len(held)), held), sizes, tokens, units
    shape = {'rows': len(held), 'slots': self.examples_per_row, 'seq_length': self.seq_length}
    out = build_rows(self.tokenizer, *examples, **shape, labels=labels, marks=marks)
    return out | {'language': np.full(len(held), self.language)}


def plan_full(corpus: Corpus, seq_length: int) -> Plan:
  """Plans stretches that fill a row, the last one of a document shorter."""
  room = seq_length - 2
  begin, end = corpus.document_at[:-1], corpus.document_at[1:]
  which, number = _stretches(-(-(end - begin) // room))
  start = begin[which] + room * number
  return _without_second(start, np.minimum(start + room, end[which]))


def plan_single(corpus: Corpus, seq_length: int) -> Plan:
  """Plans whole sentences, as many as fit; one longer than a row goes on in the next."""
  room = seq_length - 2
  at, ends = corpus.sentences, corpus.document_at[1:]
  document, start = np.arange(len(ends)), corpus.document_at[:-1]
  ranges = []
  while len(document):
    whole = at[at.searchsorted(start + room, side='right') - 1]
    end = np.minimum(np.where(whole > start, whole, start + room), ends[document])
    ranges.append((document, start, end))
    more = end < ends[document]
    document, start = document[more], end[more]
  document, start, end = (np.concatenate(x) for x in zip(*ranges, strict=True))
  order = np.argsort(document, kind='stable')
  return _without_second(start[order], end[order])


def plan_lm(corpus: Corpus, seq_length: int) -> Plan:
  """Plans stretches of seq_length tokens of [CLS] document [SEP], which overlap by one token."""
  begin, size = corpus.document_at[:-1], np.diff(corpus.document_at)
  step = seq_length - 1
  which, number = _stretches(-(-(size + 1) // step))
  at = step * number
  marks = np.stack([at == 0, at + seq_length >= size[which] + 2], axis=1)
  start, end = np.maximum(at - 1, 0), np.minimum(at + step, size[which])
  return _without_second(begin[which] + start, begin[which] + end)[0], marks


def _stretches(of_each):
  """The document of each stretch, and its number there. of_each: [D] stretches of each document."""
  return np.repeat(np.arange(len(of_each)), of_each), spread(np.zeros_like(of_each), of_each)


def _without_second(start, end):
  """The Plan for examples of [CLS] A [SEP], without a label."""
  none = np.zeros_like(start)
  plan = np.stack([start, end, none, none, none - 1], axis=1)
  return plan, np.ones((len(plan), 2), bool)


# {kind of rows without pairs: (corpus, seq_length) -> Plan}.
PLANS = {'full': plan_full, 'single': plan_single, 'lm': plan_lm}
KINDS = (*PAIRS, *PLANS)
