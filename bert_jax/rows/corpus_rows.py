"""The rows of a corpus, in memory or on the disk.

A text comes in units (corpus/tokenized.py, corpus/store.py): one, if it is in memory or small, or
many chunks of a large prepared corpus. Each unit is planned by itself (plans.py), when a batch
first needs it.

In several units a row is known by its place, cut * units + unit, and its number there. How many
rows each unit has must be known from the beginning: for the kinds `full` and `lm` it follows from
the lengths of the documents; for others, and where rows are packed, it is estimated from units that
are counted. A unit that then has more rows leaves some out, and one that has fewer gives some
twice.
"""

import functools
import itertools
import os
from collections import OrderedDict
from collections.abc import Sequence
from concurrent import futures

import numpy as np

from bert_jax.corpus.store import Chunks
from bert_jax.corpus.tokenized import Corpus, digest_of, offsets, spaced
from bert_jax.rows.plans import OF_TEXT, ROWS_OF_LENGTHS, Cutting, PlannedRows
from bert_jax.rows.row_arrays import build_rows
from bert_jax.rows.source import Arrays, Source
from bert_jax.tokenizers import Tokenizer

SAMPLED = 16  # units whose rows are counted
THREADS = 8  # that plan units, whose shards may have to be copied from a bucket first


class Rows(Source):
  """Random access to the rows of a text, {name: array} as in build_rows, with `language`, its
  number.

  rows_of: [units] the rows of each unit in one cut.
  totals: as of PlannedRows, estimated if there are several units.
  missed: the expected share of rows of a pass that are left out or given twice."""

  def __init__(
    self,
    text: Corpus | Chunks,
    tokenizer: Tokenizer,
    cutting: Cutting,
    *,
    seed: int | Sequence[int] = (0,),
    language: int = 0,
  ):
    super().__init__()
    self.text = text
    self.tokenizer = tokenizer
    self.cutting = cutting
    self.language = language
    self.seed = tuple(map(int, np.atleast_1d(seed)))
    self.window = text.window
    self.cuts = cutting.cuts
    self._planned = OrderedDict()  # {place: future PlannedRows}, of which the last ones stay
    if isinstance(text, Corpus) or text.units == 1:
      planned = self.planned(0)
      self.rows_of = np.array([len(planned)])
      self.totals = planned.totals
      self.missed = 0.0
      self.fingerprint = planned.fingerprint
    else:
      rows_of, totals, missed = self._count(text)
      self.rows_of = rows_of
      self.totals = totals
      self.missed = missed
      facts = repr((text.fingerprint, cutting, self.seed))
      self.fingerprint = digest_of([facts, rows_of.tobytes()])
    self.row_at = offsets(self.rows_of)  # [units + 1] in one cut

  @property
  def units(self) -> int:
    """Into how many units the text is divided."""
    return self.text.units

  @property
  def sample(self) -> Corpus:
    """A Corpus like the whole text: all of it, or the unit in the middle."""
    return self.text.unit(self.units // 2)

  @property
  def fill(self) -> float:
    """Share of all positions that hold a token."""
    return self.totals['tokens'] / max(1, len(self) * self.cutting.seq_length)

  def __len__(self) -> int:
    """The number of rows in a pass. row_at counts the rows of one cut, or of all cuts if there is
    only one unit."""
    rows = int(self.row_at[-1])
    return rows * self.cuts if self.units > 1 else rows

  def gather(self, numbers: Sequence[int] | np.ndarray) -> Arrays:
    """{name: [R, ...]} of the rows with these numbers. Rows of one place are made together."""
    cut, row = np.divmod(np.asarray(numbers, np.int64), self.row_at[-1])
    unit = self.row_at.searchsorted(row, side='right') - 1
    places = cut * self.units + unit
    within = row - self.row_at[unit]  # the number of each row in its unit
    order = np.argsort(places, kind='stable')
    begins = np.flatnonzero(np.diff(places[order])) + 1
    rows_of_places = np.split(order, begins)
    # All places are planned at once, in threads, and those that were asked for last stay.
    for chosen in rows_of_places:
      self.expect(int(places[chosen[0]]))
    parts = []
    for chosen in rows_of_places:
      planned = self.planned(int(places[chosen[0]]))
      parts.append(planned.examples(within[chosen] % len(planned)))
    while len(self._planned) > 2 * max(self.window, len(rows_of_places)):
      self._planned.popitem(last=False)
    as_asked = np.argsort(order)
    return {name: array[as_asked] for name, array in self._built(parts).items()}

  def _built(self, parts) -> Arrays:
    """The arrays of R rows. parts: results of PlannedRows.examples."""
    held = np.concatenate([of_part for of_part, _ in parts])  # [R] examples in each row
    columns = zip(*(examples for _, examples in parts), strict=True)
    sizes, labels, has_cls_sep, tokens, starts = map(np.concatenate, columns)
    rows = len(held)
    out = build_rows(
      self.tokenizer,
      np.repeat(np.arange(rows), held),
      sizes,
      tokens,
      starts,
      seq_length=self.cutting.seq_length,
      rows=rows,
      slots=self.cutting.examples_per_row,
      labels=labels,
      has_cls_sep=has_cls_sep,
    )
    out['language'] = np.full(rows, self.language, np.int32)
    return out

  def expect(self, place: int) -> None:
    """Begins to plan the rows of a place, in a thread."""
    if place in self._planned:
      self._planned.move_to_end(place)
    else:
      self._planned[place] = _pool(os.getpid()).submit(self._plan, place)

  def planned(self, place: int) -> PlannedRows:
    """The PlannedRows of a place; if it has none, those of the next one that has some."""
    self.expect(place)
    return self._planned[place].result()

  def _plan(self, place: int) -> PlannedRows:
    """Plans the rows of a place: of a single unit all cuts, else one cut, drawn by the place."""
    if self.units == 1:
      return PlannedRows(self.text.unit(0), self.cutting, self.cuts, self.seed)
    for number in itertools.count(place):
      corpus = self.text.unit(number % self.units)
      if corpus.number_of_documents >= self.cutting.documents:
        seed = *self.seed, number
        return PlannedRows(corpus, self.cutting, 1, seed)
    raise AssertionError

  def _count(self, text: Chunks) -> tuple[np.ndarray, dict[str, int], float]:
    """(rows_of, totals, missed) of several units, from SAMPLED of them."""
    places = spaced(self.units * self.cuts, SAMPLED)
    counted = [self.planned(int(place)) for place in places]
    # What the sample has, scaled by its share of the tokens.
    scale = len(text) / sum(len(planned.corpus) for planned in counted)
    totals = {}
    for name in counted[0].totals:
      total = sum(planned.totals[name] for planned in counted) * scale
      if name not in OF_TEXT:
        total *= self.cuts
      totals[name] = round(total)
    # The rows of each unit: exactly, by the lengths of its documents, if the kind allows that.
    rows_of_lengths = ROWS_OF_LENGTHS.get(self.cutting.kind)
    if rows_of_lengths and self.cutting.examples_per_row == 1 and text.store.lengths is not None:
      rows_of = text.sums_over_documents(
        lambda tokens: rows_of_lengths(tokens, self.cutting.seq_length)
      )
      return rows_of, totals, 0.0
    # Else by least squares from its tokens, sentences and documents.
    rows = np.array([len(planned) for planned in counted])
    facts_of_units = np.stack(list(text.sums.values()), axis=1)
    units = places % self.units
    slopes = np.linalg.lstsq(facts_of_units[units], rows, rcond=None)[0]
    rows_of = np.maximum(1, np.rint(facts_of_units @ slopes)).astype(np.int64)
    # A row too many in one unit is a row too few in another.
    off = np.abs(rows_of[units] - rows).sum() / 2
    return rows_of, totals, float(off / max(1, rows.sum()))


@functools.cache
def _pool(process: int) -> futures.ThreadPoolExecutor:
  """The threads of a process; one that was forked has none of its parent's."""
  return futures.ThreadPoolExecutor(THREADS, 'rows')
