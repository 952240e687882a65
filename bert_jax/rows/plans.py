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
from bert_jax.rows.sentence_pairs import PAIRS, Pair, plan_pairs

OF_TEXT = 'text_tokens', 'documents', 'characters', 'bytes'  # counts in PlannedRows.totals
# Token counts of A and B [E, 2], labels [E], has_cls_sep [E, 2] (see build_rows), and tokens and
# starts of all A and B.
Examples = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Plan = tuple[np.ndarray, np.ndarray]  # [examples, 5], has_cls_sep [examples, 2]


@dataclasses.dataclass(frozen=True)
class Cutting:
  """How a text is cut into rows.

  kind: one of KINDS.
  short_seq_prob: for pairs, see plan_pairs.
  dupe_factor: how many times the text is cut into pairs, differently each time; for other kinds it
  is cut once.
  examples_per_row: the most in one row."""

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
    """How many times the text is cut."""
    return self.dupe_factor if self.pair else 1

  @property
  def documents(self) -> int:
    """The fewest documents of which rows can be made."""
    return self.pair.documents if self.pair else 1


class PlannedRows:
  """The rows of one Corpus: row r holds examples row_at[r] to row_at[r + 1] of the plan. cuts: how
  many times it is cut. seed: for pairs."""

  def __init__(self, corpus: Corpus, cutting: Cutting, cuts: int, seed: int | Sequence[int]):
    self.corpus = corpus
    self.cutting = cutting
    self.cut_tokens = 0
    length = cutting.seq_length
    if cutting.pair:
      rng = np.random.default_rng(seed)
      plans = []
      for _ in range(cuts):
        plan, cut = plan_pairs(corpus, length - 3, cutting.pair, cutting.short_seq_prob, rng)
        plans.append(plan)
        self.cut_tokens += cut
      self.plan = np.concatenate(plans)
      self.has_cls_sep = np.ones((len(self.plan), 2), bool)
    else:
      self.plan, self.has_cls_sep = PLANS[cutting.kind](corpus, length)
    self.row_at = np.arange(len(self.plan) + 1)
    if cutting.examples_per_row > 1:
      order, self.row_at = pack(self.lengths(), length, cutting.examples_per_row)
      self.plan = self.plan[order]
      self.has_cls_sep = self.has_cls_sep[order]

  @property
  def fingerprint(self) -> str:
    is_packed = self.cutting.examples_per_row > 1
    facts = self.plan, self.row_at if is_packed else 0, self.cutting.seq_length
    arrays = [np.asarray(fact, np.int64).tobytes() for fact in facts]
    return digest_of([self.corpus.fingerprint, *arrays])

  def __len__(self) -> int:
    return len(self.row_at) - 1

  def lengths(self) -> np.ndarray:
    """[examples] the length of each example in tokens, [CLS] and [SEP] included."""
    begin_a, end_a, begin_b, end_b, _ = self.plan.T
    has_b = end_b > begin_b  # then there is a second [SEP]
    return end_a - begin_a + end_b - begin_b + self.has_cls_sep.sum(axis=1) + has_b

  @functools.cached_property
  def totals(self) -> dict[str, int]:
    """Counts of the plan and of its text. tokens: in examples, [CLS] and [SEP] included; labelled,
    ones: examples with a label, and with label 1."""
    label = self.plan[:, 4]
    characters, size = self.corpus.sizes.sum(axis=0)
    counts = {
      'examples': len(label),
      'tokens': self.lengths().sum(),
      'cut_tokens': self.cut_tokens,
      'labelled': (label >= 0).sum(),
      'ones': (label == 1).sum(),
      'text_tokens': len(self.corpus),
      'documents': self.corpus.number_of_documents,
      'characters': characters,
      'bytes': size,
    }
    return {name: int(count) for name, count in counts.items()}

  def examples(self, numbers: np.ndarray) -> tuple[np.ndarray, Examples]:
    """(how many examples are in each of R rows [R], these E examples)."""
    first = self.row_at[numbers]
    held = self.row_at[numbers + 1] - first
    chosen = spread(first, held)  # [E] the numbers of these examples
    ranges = self.plan[chosen, :4].reshape(-1, 2)  # [2 E, 2] of A and B in turn
    sizes = np.diff(ranges).reshape(-1)
    tokens, starts = self.corpus.stretches(ranges[:, 0], sizes)
    labels = self.plan[chosen, 4]
    return held, (sizes.reshape(-1, 2), labels, self.has_cls_sep[chosen], tokens, starts)


def plan_full(corpus: Corpus, seq_length: int) -> Plan:
  """Plans stretches that fill a row, the last one of a document shorter."""
  room = seq_length - 2
  begin, end = corpus.document_at[:-1], corpus.document_at[1:]
  which, number = _stretches(_full_rows(end - begin, seq_length))
  start = begin[which] + room * number
  stop = np.minimum(start + room, end[which])
  return _without_second(start, stop)


def _full_rows(tokens: np.ndarray, seq_length: int) -> np.ndarray:
  return -(-tokens // (seq_length - 2))


def plan_single(corpus: Corpus, seq_length: int) -> Plan:
  """Plans whole sentences, as many as fit; one longer than a row goes on in the next."""
  room = seq_length - 2
  at = corpus.sentences
  ends = corpus.document_at[1:]
  # One example of each document that has sentences left, again and again.
  document = np.arange(len(ends))
  start = corpus.document_at[:-1]
  documents, starts, stops = [], [], []
  while len(document):
    whole = at[at.searchsorted(start + room, side='right') - 1]
    stop = np.minimum(np.where(whole > start, whole, start + room), ends[document])
    documents.append(document)
    starts.append(start)
    stops.append(stop)
    more = stop < ends[document]
    document = document[more]
    start = stop[more]
  order = np.argsort(np.concatenate(documents), kind='stable')
  return _without_second(np.concatenate(starts)[order], np.concatenate(stops)[order])


def plan_lm(corpus: Corpus, seq_length: int) -> Plan:
  """Plans stretches of seq_length tokens of [CLS] document [SEP], which overlap by one token."""
  begin = corpus.document_at[:-1]
  size = np.diff(corpus.document_at)
  step = seq_length - 1
  which, number = _stretches(_lm_rows(size, seq_length))
  at = step * number  # its place in [CLS] document [SEP]
  has_cls = at == 0
  has_sep = at + seq_length >= size[which] + 2
  start = np.maximum(at - 1, 0)
  stop = np.minimum(at + step, size[which])
  plan, _ = _without_second(begin[which] + start, begin[which] + stop)
  return plan, np.stack([has_cls, has_sep], axis=1)


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
