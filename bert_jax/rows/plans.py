"""Plans the rows of a tokenized corpus: as ranges of its tokens, so that row i depends on i alone.

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

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.corpus.tokenized import Corpus, digest_of, spread
from bert_jax.rows.packing import pack
from bert_jax.rows.sentence_pairs import PAIRS, Pair, further_labels, plan_pairs

# The names of PlannedRows.totals, but for further labels: counts of the plan, and of its text.
OF_EXAMPLES = 'examples', 'tokens', 'cut_tokens', 'labelled', 'ones'
OF_TEXT = 'text_tokens', 'documents', 'characters', 'bytes'
# Token counts of A and B [E, 2], labels [E], marks [E, 2], and tokens and starts of all A and B.
Examples = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Plan = tuple[np.ndarray, np.ndarray]  # [examples, 5], marks [examples, 2] (see build_rows)


@dataclasses.dataclass(frozen=True)
class Cutting:
  """How a text is cut into rows. kind: one of KINDS. short_seq_prob: for pairs, see plan_pairs.
  dupe_factor: how many times the text is cut into pairs, differently each time; for other kinds it
  is cut once. examples_per_row: the most in one row."""

  kind: str
  seq_length: int
  short_seq_prob: float = 0.0
  dupe_factor: int = 1
  examples_per_row: int = 1

  @property
  def pair(self) -> Pair | None:
    return PAIRS.get(self.kind)

  @property
  def cuts(self) -> int:
    return self.dupe_factor if self.pair else 1

  @property
  def documents(self) -> int:
    """The fewest documents of which rows can be made."""
    return self.pair.documents if self.pair else 1


class PlannedRows:
  """The rows of one Corpus: row r holds examples row_at[r] to row_at[r + 1] of the plan. cuts: how
  many times it is cut. seed: for pairs."""

  def __init__(self, corpus: Corpus, cutting: Cutting, cuts: int, seed: int | Sequence[int]):
    self.corpus, self.cutting, self.cut_tokens = corpus, cutting, 0
    length, pair = cutting.seq_length, cutting.pair
    if pair:
      rng, plans = np.random.default_rng(seed), []
      for _ in range(cuts):
        plan, cut = plan_pairs(corpus, length - 3, pair, cutting.short_seq_prob, rng)
        plans.append(plan)
        self.cut_tokens += cut
      self.plan = np.concatenate(plans)
      self.marks = np.ones((len(self.plan), 2), bool)
    else:
      self.plan, self.marks = PLANS[cutting.kind](corpus, length)
    self.row_at = np.arange(len(self.plan) + 1)
    if cutting.examples_per_row > 1:
      order, self.row_at = pack(self.lengths(), length, cutting.examples_per_row)
      self.plan, self.marks = self.plan[order], self.marks[order]

  @property
  def fingerprint(self) -> str:
    is_packed = self.cutting.examples_per_row > 1
    facts = self.plan, self.row_at if is_packed else 0, self.cutting.seq_length
    arrays = (np.asarray(x, np.int64).tobytes() for x in facts)
    return digest_of([self.corpus.fingerprint, *arrays])

  def __len__(self) -> int:
    return len(self.row_at) - 1

  def lengths(self) -> np.ndarray:
    """[examples] the length of each example in tokens, [CLS] and [SEP] included."""
    sizes = self.plan[:, 1] - self.plan[:, 0] + self.plan[:, 3] - self.plan[:, 2]
    return sizes + self.marks.sum(axis=1) + (self.plan[:, 3] > self.plan[:, 2])

  @functools.cached_property
  def totals(self) -> dict[str, int]:
    """Counts of the plan and of its text. tokens: in examples, [CLS] and [SEP] included; labelled,
    ones: examples with a label, and with label 1; label_2, ..: examples with each further label of
    the kind of pairs."""
    label, corpus = self.plan[:, 4], self.corpus
    characters, size = corpus.sizes.sum(axis=0)
    out = {
      'examples': len(label),
      'tokens': self.lengths().sum(),
      'cut_tokens': self.cut_tokens,
      'labelled': (label >= 0).sum(),
      'ones': (label == 1).sum(),
      'text_tokens': len(corpus),
      'documents': corpus.number_of_documents,
      'characters': characters,
      'bytes': size,
    }
    for number, name in enumerate(further_labels(self.cutting.pair), 2):
      out[name] = (label == number).sum()
    return {name: int(value) for name, value in out.items()}

  def examples(self, numbers: np.ndarray) -> tuple[np.ndarray, Examples]:
    """(how many examples are in each of R rows [R], these E examples)."""
    held = self.row_at[numbers + 1] - self.row_at[numbers]
    chosen = spread(self.row_at[numbers], held)
    ranges = self.plan[chosen, :4].reshape(-1, 2)
    sizes = np.diff(ranges).reshape(-1)
    tokens, starts = self.corpus.stretches(ranges[:, 0], sizes)
    return held, (sizes.reshape(-1, 2), self.plan[chosen, 4], self.marks[chosen], tokens, starts)


def plan_full(corpus: Corpus, seq_length: int) -> Plan:
  """Plans stretches that fill a row, the last one of a document shorter."""
  room, begin, end = seq_length - 2, corpus.document_at[:-1], corpus.document_at[1:]
  which, number = _stretches(_full_rows(end - begin, seq_length))
  start = begin[which] + room * number
  return _without_second(start, np.minimum(start + room, end[which]))


def _full_rows(tokens: np.ndarray, seq_length: int) -> np.ndarray:
  return -(-tokens // (seq_length - 2))


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
  begin, size, step = corpus.document_at[:-1], np.diff(corpus.document_at), seq_length - 1
  which, number = _stretches(_lm_rows(size, seq_length))
  at = step * number
  marks = np.stack([at == 0, at + seq_length >= size[which] + 2], axis=1)
  start, end = np.maximum(at - 1, 0), np.minimum(at + step, size[which])
  return _without_second(begin[which] + start, begin[which] + end)[0], marks


def _lm_rows(tokens: np.ndarray, seq_length: int) -> np.ndarray:
  return -(-(tokens + 1) // (seq_length - 1))


def _stretches(of_documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The document of each stretch, and its number there. of_documents: [D] stretches of each."""
  which = np.repeat(np.arange(len(of_documents)), of_documents)
  return which, spread(np.zeros_like(of_documents), of_documents)


def _without_second(start: np.ndarray, end: np.ndarray) -> Plan:
  """The Plan for examples of [CLS] A [SEP], without a label."""
  none = np.zeros_like(start)
  plan = np.stack([start, end, none, none, none - 1], axis=1)
  return plan, np.ones((len(plan), 2), bool)


# {kind of rows without pairs: (corpus, seq_length) -> Plan}.
PLANS: dict[str, Callable[[Corpus, int], Plan]] = {
  'full': plan_full,
  'single': plan_single,
  'lm': plan_lm,
}
KINDS = (*PAIRS, *PLANS)
# {kind: how many rows, if none is packed, are made of documents of so many tokens}.
ROWS_OF_LENGTHS = {'full': _full_rows, 'lm': _lm_rows}
