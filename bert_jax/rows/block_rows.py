"""Plans the rows of a large prepared corpus block by block, when a batch first needs the block.

Each unit (corpus/blocks.py) is planned as in rows/corpus_rows.py from its documents. Rows that
are cut once are counted beforehand (in up to COUNTED units; the counts are kept beside the corpus),
so that each comes once in a pass. Where there are more units, or pairs are cut anew, some units are
counted and the others estimated from their tokens, sentences and documents: a unit that then has
more rows leaves some out, and one that has fewer gives some twice.

Each unit comes once in a pass (cut into pairs in one of dupe_factor ways). The units are permuted,
so are the rows in each, and all follow one another in a sequence, which is cut into `window` lanes
of equal length; a batch takes a few consecutive rows from each lane. So all rows of some steps are
from `window` units, and a host reads only the units of its own rows. Place i of this order is
arithmetic, so that a run resumes at once.
"""

import functools
import io
import itertools
import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import tqdm

from bert_jax.corpus.blocks import Blocks
from bert_jax.corpus.prepared import RECORD_TOKENS
from bert_jax.corpus.tokenized import Corpus, digest_of, offsets, spaced
from bert_jax.errors import log
from bert_jax.files import UNREADABLE, Path, read_npz, write_whole
from bert_jax.rows.corpus_rows import OF_EXAMPLES, OF_TEXT, Rows
from bert_jax.rows.sentence_pairs import PAIRS, further_labels
from bert_jax.tokenizers import Tokenizer

COUNTED = 4096  # up to so many units of a corpus are all counted, if rows are cut once
FEWER, LEAST = 256, 16  # units that are counted if there are more; the least for each language
COUNTED_PAIRS = 32  # units that are counted for each language, if rows are pairs
VERSION = 1  # version of the counts on disk: raise it when rows are cut otherwise


class BlockRows:
  """Random access to the rows of one language of a large corpus. kind, dupe_factor, settings: as in
  corpus_rows.Rows. Row (cut * units + unit, j) is row j of a unit. rows_of: [units] the rows of
  each; misses: the expected share of rows in a pass that are left out or given twice."""

  def __init__(
    self,
    blocks: Blocks,
    tokenizer: Tokenizer,
    *,
    kind: str,
    seed: Sequence[int] = (0,),
    dupe_factor: int = 1,
    **settings: Any,
  ):
    self.blocks, self.window, self.seq_length = blocks, blocks.window, settings['seq_length']
    self.baselines, self.levels, self.scales = {}, [], {}
    pair = PAIRS.get(kind)
    self.seed, self.cuts = tuple(map(int, seed)), dupe_factor if pair else 1
    self.needed = pair.documents if pair else 1  # documents
    defaults = {'short_seq_prob': 0.0, 'examples_per_row': 1, 'language': 0, 'kind': kind}
    settings = defaults | settings
    self._cut = functools.partial(Rows, tokenizer=tokenizer, **settings)
    self._open = OrderedDict()  # the Rows in use, by cut * units + unit
    self.most_open = 2 * self.window  # since lanes do not end at the same time
    # The records of a window stay in memory, since its rows are read in any order.
    sizes = blocks.unit_sums('tokens') + RECORD_TOKENS * blocks.unit_sums('records')
    blocks.index.room += int(np.sort(sizes)[-self.window :].sum())
    facts = VERSION, blocks.fingerprint, sorted(settings.items())
    digest = repr((*facts, self.seed, self.cuts))
    # The number of rows depends on the seed only for pairs.
    counts_of = digest_of([digest if pair else repr(facts)])
    kept = blocks.index.folder / 'index' / f'rows-{counts_of}.npz'
    self.rows_of, self.totals, self.misses = self._count(kept, pair)
    self.row_at = offsets(self.rows_of)  # [units + 1] in one cut
    self.fingerprint = digest_of([digest, self.rows_of.tobytes()])

  fill: Any = Rows.fill  # in the units that were counted

  @property
  def sample(self) -> Corpus:
    """A Corpus like the whole text: the unit in the middle."""
    return self.blocks.unit(self.blocks.units // 2)

  def __len__(self) -> int:
    return self.cuts * int(self.row_at[-1])

  __getitem__: Any = Rows.__getitem__

  def gather(self, numbers: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
    """{name: [R, ...]} of the rows with these numbers."""
    cut, within = np.divmod(np.asarray(numbers, np.int64), self.row_at[-1])
    unit = self.row_at.searchsorted(within, side='right') - 1
    place, within = cut * self.blocks.units + unit, within - self.row_at[unit]
    parts, order = [], np.argsort(place, kind='stable')
    for new in {*place.tolist()} - self._open.keys():
      self.blocks.expect(new % self.blocks.units)
    for of_unit in np.split(order, np.flatnonzero(np.diff(place[order])) + 1):
      rows = self._rows(int(place[of_unit[0]]))
      parts.append(rows.examples(within[of_unit] % len(rows)))
    built, back = rows.build(parts), np.argsort(order)
    return {name: array[back] for name, array in built.items()}

  def _rows(self, place: int) -> Rows:
    """The Rows at a place, of which the last ones stay open; if it has none, at the next one."""
    if place in self._open:
      self._open.move_to_end(place)
      return self._open[place]
    places = self.cuts * self.blocks.units
    plans = (self._plan((place + k) % places) for k in itertools.count())
    rows = self._open[place] = next(rows for rows in plans if rows)
    while len(self._open) > self.most_open:
      self._open.popitem(last=False)
    return rows

  def _plan(self, place: int) -> Rows | None:
    """Plans the Rows of a unit in one cut; None if it has too few documents."""
    corpus = self.blocks.unit(place % self.blocks.units)
    enough = corpus.number_of_documents >= self.needed
    return self._cut(corpus, seed=(*self.seed, place)) if enough else None

  def _count(self, kept: Path, pair: Any) -> tuple[np.ndarray, dict[str, int], float]:
    """Counts or estimates rows: (rows_of, totals as in Rows, misses). kept: the file of counts."""
    units, index = self.blocks.units, self.blocks.index
    most = fewer = COUNTED_PAIRS
    if not pair:
      most = COUNTED * len(self.blocks.blocks) // len(index)
      fewer = max(LEAST, FEWER // len(index.meta['languages']))
    number = units if units <= most else min(units, fewer)
    chosen = spaced(units, number)
    names = OF_EXAMPLES + OF_TEXT + further_labels(pair)
    counts = self._kept(kept, chosen, names)
    of_units = [self.blocks.unit_sums(x) for x in ('tokens', 'sentences', 'documents')]
    about, counts = np.stack(of_units, axis=1), counts
    counted, rows, scale = chosen, counts[:, 0], 1.0
    rows_of, misses = np.zeros(units, np.int64), 0.0
    if len(counted) < units:
      slopes = np.linalg.lstsq(about[counted], rows, rcond=None)[0]
      rows_of = np.maximum(1, np.rint(about @ slopes)).astype(np.int64)
      misses = np.abs(rows_of[counted] - rows).sum() / 2 / max(1, rows.sum())
      scale = about[:, 0].sum() / about[counted, 0].sum()
    rows_of[counted] = rows
    if self.cuts > 1:  # each has another number of rows
      misses += self._missed(rows_of, counted[:: -(-len(counted) // 8)])
    sums = np.rint(counts[:, 1:].sum(axis=0) * scale).astype(int).tolist()
    totals = dict(zip(names, sums, strict=True))
    totals = {k: x if k in OF_TEXT else x * self.cuts for k, x in totals.items()}
    return rows_of, totals, float(misses)

  def _missed(self, rows_of, units):
    """The share of rows by which the last cut of some units differs from what is expected."""
    plan = lambda unit: self._plan((self.cuts - 1) * len(rows_of) + int(unit))
    last = {unit: len(plan(unit) or ()) for unit in units}
    expected, found = rows_of[np.array([*last], int)], np.array([*last.values()], np.int64)
    return float(np.abs(expected - found).sum() / 2 / max(1, expected.sum()))

  def _kept(self, path: Path, chosen: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """[chosen, 1 + totals] rows and totals of units, from disk or counted now; -1: unreadable."""
    counts = np.zeros((len(chosen), 1 + len(names)), np.int64)
    try:
      kept = read_npz(path)['counts']
      if (kept.shape, kept.dtype) == (counts.shape, counts.dtype):
        return kept
      raise ValueError
    except FileNotFoundError:
      pass
    except UNREADABLE:
      log.warning('%s is damaged; its rows are counted again', path)
    for k, unit in enumerate(tqdm.tqdm(chosen, 'counting rows', unit=' blocks', disable=None)):
      if rows := self._plan(int(unit)):
        counts[k] = [len(rows), *(rows.totals[name] for name in names)]
    data = io.BytesIO()
    np.savez_compressed(data, counts=counts)
    try:
      write_whole(path, data.getvalue())
    except OSError as error:
      log.info('the rows will be counted again at the next start: %s', error)
    return counts


class Order:
  """The numbers of the rows of BlockRows in endless passes, each permuted anew, for batches."""

  def __init__(self, rows: BlockRows, seed: int, batch_size: int, first: int = 0):
    self.rows, self.seed, self.batch_size, self.first = rows, seed, batch_size, first
    self.lanes = min(rows.window, batch_size)
    self._units = functools.lru_cache(2)(self._permuted_units)
    self._within = functools.lru_cache(4 * self.lanes)(self._permuted_rows)

  def __len__(self) -> int:
    return sys.maxsize

  def __getitem__(self, i: SupportsIndex) -> int:
    size = int(self.rows.row_at[-1])
    number, place = divmod(int(i), size)
    step, row = divmod(place, self.batch_size)
    lane = row * self.lanes // self.batch_size
    # Rows begin..end - 1 of each batch are from this lane.
    begin, end = (-(-k * self.batch_size // self.lanes) for k in (lane, lane + 1))
    steps, rest = divmod(size, self.batch_size)
    at = steps * begin + min(rest, begin) + step * (end - begin) + row - begin
    order, ends = self._units(number)
    k = int(ends.searchsorted(at, side='right'))
    unit = int(order[k])
    at += int(self.rows.rows_of[unit] - ends[k])
    if at == self.rows.rows_of[unit] // 2 and k + 1 < len(order):
      self.rows.blocks.expect(int(order[k + 1]))  # which follows in this lane
    j = self._within(number, unit)[at]
    return self.first + number % self.rows.cuts * size + int(self.rows.row_at[unit] + j)

  def _permuted_units(self, number):
    """(the units in the order of a pass, the row at which each ends)."""
    order = np.random.default_rng([self.seed, number]).permutation(self.rows.blocks.units)
    return order, np.cumsum(self.rows.rows_of[order])

  def _permuted_rows(self, number, unit):
    rows = int(self.rows.rows_of[unit])
    return np.random.default_rng([self.seed, number, unit]).permutation(rows)
