"""Plans the rows of a large prepared corpus block by block, when a batch first needs the block.

Each unit (corpus/blocks.py) is planned as in rows/corpus_rows.py from its documents alone; NSP's
random halves are from the same unit. The number of rows of a unit is known beforehand: for rows
that are cut once, every unit is counted (up to COUNTED units; the counts are kept beside the
corpus), so that each row comes once in a pass. Where there are more units, or pairs are cut anew,
some units are counted and the others estimated from their tokens, sentences and documents. A unit
that then has more rows leaves some out, and one that has fewer gives some twice; the share of such
rows in the counted units is logged.

Each unit comes once in a pass (cut into pairs in one of dupe_factor ways). The units are permuted,
so are the rows in each, and all follow one another in a sequence, which is cut into `window` lanes
of equal length; a batch takes a few consecutive rows from each lane. So all rows of some steps are
from `window` units, which change one at a time, and a host reads only the units of the lanes that
its devices' rows are in. Place i of this order is arithmetic, so that a run resumes anywhere at
once. How well that mixes 256 rows of 128 tokens of a corpus whose blocks have 512 documents each:

  corpus.window               documents in a batch   of these in the next batch, too
  32                          254                    5
  64                          255                    2
  a permutation of all rows   256                    0
"""

import contextlib
import functools
import hashlib
import io
import logging
import sys
from collections import OrderedDict

import numpy as np
import tqdm

from bert_jax.corpus.prepared import RECORD_TOKENS, TOKEN_BYTES
from bert_jax.corpus.tokenized import DamagedRecord, offsets
from bert_jax.errors import InputError
from bert_jax.files import UNREADABLE, write_whole
from bert_jax.rows.corpus_rows import Rows
from bert_jax.rows.free_memory import free_memory
from bert_jax.rows.sentence_pairs import PAIRS, further_labels

log = logging.getLogger('bert_jax')

COUNTED = 4096  # up to so many units of a corpus are all counted, if rows are cut once
FEWER, LEAST = 256, 16  # units that are counted if there are more; the least for each language
COUNTED_PAIRS = 32  # units that are counted for each language, if rows are pairs
VERSION = 1  # version of the counts on disk: raise it when rows are cut otherwise
PLAN_BYTES = 3  # bytes of memory in the plan for each token of an open unit
TOTALS = (
  'examples',
  'tokens',
  'cut_tokens',
  'labelled',
  'ones',
  'text_tokens',
  'documents',
  'alone',
  'characters',
  'bytes',
)


class BlockRows:
  """Random access to the rows of one language of a large corpus. Arguments as in corpus_rows.Rows,
  but blocks, a corpus.blocks.Blocks. Row (cut * units + unit, j) is row j of a unit, which is cut
  into pairs dupe_factor times."""

  def __init__(
    self,
    blocks,
    tokenizer,
    *,
    kind,
    seq_length,
    seed=(0,),
    short_seq_prob=0.0,
    dupe_factor=1,
    examples_per_row=1,
    language=0,
  ):
    self.blocks, self.window = blocks, blocks.window
    self.seed, self.cuts = tuple(map(int, seed)), dupe_factor if kind in PAIRS else 1
    pair = PAIRS.get(kind)
    self.needed = pair.documents if pair else 1  # documents
    self._counted = TOTALS + further_labels(pair)
    arguments = dict(
      kind=kind,
      seq_length=seq_length,
      short_seq_prob=short_seq_prob,
      examples_per_row=examples_per_row,
      language=language,
    )
    self.seq_length, self.baselines, self.scales = seq_length, {}, {}
    self._cut = functools.partial(Rows, tokenizer=tokenizer, **arguments)
    self._open, self._open_tokens = OrderedDict(), 0  # the Rows in use, by cut * units + unit
    mixed = self._largest('tokens', self.window)
    self.room = 2 * mixed  # tokens of the units that are open: lanes end one after the other
    blocks.index.room += self._cached(self.window)
    facts = VERSION, blocks.fingerprint, sorted(arguments.items())
    digest = repr((*facts, self.seed, self.cuts))
    # The number of rows depends on the seed only for pairs.
    counts_of = digest if kind in PAIRS else repr(facts)
    # misses: the expected share of rows in a pass that are left out or given twice
    self.rows_of, self.totals, self.misses = self._count(kind, counts_of)
    self.row_at = offsets(self.rows_of)  # [units + 1] in one cut
    digest = hashlib.sha256(digest.encode() + self.rows_of.tobytes())
    self.fingerprint = digest.hexdigest()[:16]

  def keep_open(self, units):
    """Keeps `units` units open at once, for as many readers that each read one after the other."""
    needed, free = self.memory(units), free_memory()
    if needed > free:
      raise InputError(
        f'the {units} rows of a batch each read a block of their own, which may take '
        f'{needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free; free some, or take a '
        'smaller batch_size in a new workdir.'
      )
    self.room = max(self.room, self._largest('tokens', units))
    records = RECORD_TOKENS * self._largest('records', units)
    self.blocks.index.room = max(self.blocks.index.room, self.room + records)

  def _largest(self, column, number):
    """The sum of a column of the block table over the `number` units with the most of it."""
    return int(np.sort(self.blocks.unit_sums(column))[-number:].sum())

  def _cached(self, units):
    """The cache tokens of prepared.Reader that the records of `units` units take at most."""
    return self._largest('tokens', units) + RECORD_TOKENS * self._largest('records', units)

  def memory(self, units):
    """The most bytes of memory that `units` open units take."""
    planned = max(self.room, self._largest('tokens', units))
    return PLAN_BYTES * planned + TOKEN_BYTES * self._cached(units)

  @property
  def cut_tokens(self):
    return self.totals['cut_tokens']

  @property
  def fill(self):
    """Share of positions that hold a token, in the units that were counted."""
    return self.totals['tokens'] / max(1, len(self) * self.seq_length)

  @property
  def sample(self):
    """A Corpus like the whole text: the unit in the middle."""
    for unit in range(self.blocks.units // 2, self.blocks.units):
      with contextlib.suppress(DamagedRecord):
        return self.blocks.unit(unit)
    return self.blocks.unit(0)

  def __len__(self):
    return self.cuts * int(self.row_at[-1])

  def __getitem__(self, i):
    return {name: array[0] for name, array in self.gather([i]).items()}

  def gather(self, numbers):
    """{name: [R, ...]} of the rows with these numbers."""
    cut, within = np.divmod(np.asarray(numbers, np.int64), self.row_at[-1])
    unit = self.row_at.searchsorted(within, side='right') - 1
    place, within = cut * self.blocks.units + unit, within - self.row_at[unit]
    parts, order = [], np.argsort(place, kind='stable')
    for of_unit in np.split(order, np.flatnonzero(np.diff(place[order])) + 1):
      rows = self._rows(int(place[of_unit[0]]))
      parts.append(rows.examples(within[of_unit] % len(rows)))
    built, back = rows.build(parts), np.argsort(order)
    return {name: array[back] for name, array in built.items()}

  def _rows(self, place):
    """The Rows at a place, of which the last ones used stay open. If the unit has none, against
    expectation, those at the next place."""
    if place in self._open:
      self._open.move_to_end(place)
      return self._open[place]
    rows, tried = (), place
    while not len(rows):
      rows, tried = self._plan(tried), (tried + 1) % (self.cuts * self.blocks.units)
    self._open[place] = rows
    self._open_tokens += len(rows.corpus)
    while self._open_tokens > self.room and len(self._open) > 1:
      self._open_tokens -= len(self._open.popitem(last=False)[1].corpus)
    return rows

  def _plan(self, place):
    """Plans the Rows of a unit in one cut; () if it has too few documents."""
    corpus = self.blocks.unit(place % self.blocks.units)
    return (
      ()
      if corpus.number_of_documents < self.needed
      else self._cut(corpus, seed=(*self.seed, place))
    )

  def _count(self, kind, digest):
    """Counts or estimates rows: ([units] rows of each, totals as in Rows, the expected share of
    rows left out or given twice)."""
    units, index = self.blocks.units, self.blocks.index
    most = fewer = COUNTED_PAIRS
    if kind not in PAIRS:
      most = COUNTED * len(self.blocks.blocks) // len(index)
      fewer = max(LEAST, FEWER // len(index.meta['languages']))
    number = units if units <= most else min(units, fewer)
    chosen = np.unique(np.linspace(0, units - 1, number).round().astype(int))
    counts = self._kept(digest, chosen)
    known = counts[:, 0] >= 0  # the others cannot be read
    if not known.any():
      self.blocks.unit(int(chosen[0]))  # raises the reason
    of_units = [self.blocks.unit_sums(x) for x in ('tokens', 'sentences', 'documents')]
    about, counts = np.stack(of_units, axis=1), counts[known]
    counted, rows = chosen[known], counts[:, 0]
    if len(counted) < units:
      slopes = np.linalg.lstsq(about[counted], rows, rcond=None)[0]
      rows_of = np.maximum(1, np.rint(about @ slopes)).astype(np.int64)
      misses = np.abs(rows_of[counted] - rows).sum() / 2 / max(1, rows.sum())
    else:
      rows_of, misses = np.zeros(units, np.int64), 0.0
    rows_of[counted] = rows
    if self.cuts > 1:  # each has another number of rows
      last = {}
      for k in counted[:: -(-len(counted) // 8)]:
        with contextlib.suppress(DamagedRecord):  # its rows will be empty
          last[k] = len(self._plan((self.cuts - 1) * units + int(k)))
      some = np.array([*last], np.int64)
      missed = np.abs(rows_of[some] - np.array([*last.values()], np.int64)).sum()
      misses += float(missed / 2 / max(1, rows_of[some].sum()))
    scale = about[:, 0].sum() / about[counted, 0].sum() if len(counted) < units else 1.0
    totals = dict(
      zip(self._counted, np.rint(counts[:, 1:].sum(axis=0) * scale).astype(int).tolist())
    )
    of_text = 'text_tokens', 'documents', 'alone', 'characters', 'bytes'
    totals = {k: x if k in of_text else x * self.cuts for k, x in totals.items()}
    return rows_of, totals, float(misses)

  def _kept(self, digest, chosen):
    """[chosen, 1 + totals] rows and totals of some units, read from disk or counted now; -1 where a
    unit cannot be read."""
    shape = len(chosen), 1 + len(self._counted)
    name = f'rows-{hashlib.sha256(digest.encode()).hexdigest()[:16]}.npz'
    path = self.blocks.index.folder / 'index' / name
    try:
      with np.load(path) as file:
        counts = file['counts']
      if counts.shape == shape and counts.dtype == np.int64:
        return counts
      log.warning('%s is damaged; its rows are counted again', path)
    except FileNotFoundError:
      pass
    except UNREADABLE as error:
      log.warning('%s is damaged (%s); its rows are counted again', path, error)
    counts = np.zeros(shape, np.int64)
    for k, unit in enumerate(tqdm.tqdm(chosen, 'counting rows', unit=' blocks', disable=None)):
      try:
        rows = self._plan(int(unit))
        if len(rows):
          counts[k] = [len(rows), *(rows.totals[name] for name in TOTALS)]
      except DamagedRecord as error:
        log.warning('%s', error)
        counts[k] = -1
    if (counts >= 0).all():
      data = io.BytesIO()
      np.savez_compressed(data, counts=counts)
      try:
        write_whole(path, data.getvalue())
      except OSError as error:
        log.info('the rows will be counted again at the next start: %s', error)
    return counts


class Order:
  """The order of the rows of BlockRows in endless passes, each permuted anew (see the top of this
  file): order[i] is the row number at place i, for batches of `batch_size`."""

  def __init__(self, rows, seed, batch_size, first=0):
    self.rows, self.seed, self.batch_size, self.first = rows, seed, batch_size, first
    self.lanes = min(rows.window, batch_size)
    self._units = functools.lru_cache(2)(self._permuted_units)
    self._within = functools.lru_cache(4 * self.lanes)(self._permuted_rows)

  def __len__(self):
    return sys.maxsize

  def __getitem__(self, i):
    size = int(self.rows.row_at[-1])
    number, i = divmod(int(i), size)
    step, row = divmod(i, self.batch_size)
    lane = row * self.lanes // self.batch_size
    # Rows begin..end - 1 of each batch are from this lane.
    begin, end = (-(-k * self.batch_size // self.lanes) for k in (lane, lane + 1))
    steps, rest = divmod(size, self.batch_size)
    at = steps * begin + min(rest, begin) + step * (end - begin) + row - begin
    order, ends = self._units(number)
    k = int(ends.searchsorted(at, side='right'))
    unit = int(order[k])
    j = self._within(number, unit)[at - ends[k] + self.rows.rows_of[unit]]
    return self.first + number % self.rows.cuts * size + int(self.rows.row_at[unit] + j)

  def _permuted_units(self, number):
    """(the units in the order of a pass, the row at which each ends)."""
    order = np.random.default_rng([self.seed, number]).permutation(self.rows.blocks.units)
    return order, np.cumsum(self.rows.rows_of[order])

  def _permuted_rows(self, number, unit):
    rows = int(self.rows.rows_of[unit])
    return np.random.default_rng([self.seed, number, unit]).permutation(rows)


def check_memory(sources):
  """InputError if the units that all BlockRows among sources mix at a time exceed free memory."""
  parts = [source for source in sources if isinstance(source, BlockRows)]
  needed, free = sum(part.memory(part.window) for part in parts), free_memory()
  if needed > free:
    raise InputError(
      f'the {sum(part.window for part in parts)} blocks whose rows are mixed (corpus.window) may '
      f'take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free; free some, or set '
      'corpus.window lower, for a run in a new workdir.'
    )
