"""The blocks of a prepared corpus: its index in parts, each read when its rows are reached.

A block is a run of whole documents of one language in one shard. It has BLOCK_TOKENS tokens and
BLOCK_DOCUMENTS documents at least, unless it reaches MOST_TOKENS or the run ends before. A run
keeps only the table of them in memory, so its start hardly depends on the size of the corpus.

  index/blocks.npz   the table: one array [blocks] for each of COLUMNS, and the unigram counts of
                     each language; corpus.json holds its checksum
  index/blocks.bin   the part of the index for each block, compressed: the arrays of PARTS as int32
"""

import functools
import hashlib
import io
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.copies import fetched, place, staged
from bert_jax.corpus import prepared
from bert_jax.corpus.tokenized import Corpus, DamagedRecord, Piece, digest_of, offsets, spaced
from bert_jax.errors import InputError, first_line
from bert_jax.files import UNREADABLE, Path, read_npz, write_whole
from bert_jax.text.documents import is_held_out

BLOCK_TOKENS, BLOCK_DOCUMENTS, MOST_TOKENS = 1 << 18, 16, 1 << 22
COLUMNS = ('shard', 'language', 'documents', 'sentences', 'records', 'tokens', 'stored', 'crc32')
OF_DOCUMENTS = 'hashes', 'characters', 'bytes', 'document_sentences', 'document_records'
# {array of a shard's index: the column that says how long it is in a block}.
PARTS = dict.fromkeys(OF_DOCUMENTS, 'documents')
PARTS |= {'sentences': 'sentences', 'record_tokens': 'records'}
WHOLE = 8  # blocks: a corpus of at most so many is planned at once, like text in memory
EVALUATED = 4096  # the most blocks whose held-out documents are evaluated
SAMPLED = 4  # units whose tokens are counted to estimate the unigram frequencies


def paths(folder: Path) -> tuple[Path, Path]:
  """(path of the table, path of the parts)."""
  return folder / 'index' / 'blocks.npz', folder / 'index' / 'blocks.bin'


def table_of(folder: Path, meta: Mapping[str, Any]) -> bytes:
  """The table's file. OSError or ValueError if corpus.json, with content `meta`, is not of it."""
  data = paths(folder)[0].read_bytes()
  if hashlib.sha256(data).hexdigest() != meta['blocks']:
    raise ValueError('not the one that corpus.json was written with')
  return data


def has_blocks(folder: Path, meta: Mapping[str, Any]) -> bool:
  """Is the block index of corpus.json there? A corpus of an older version has none, and passes."""
  try:
    return 'blocks' not in meta or bool(table_of(folder, meta) and paths(folder)[1].is_file())
  except (OSError, ValueError):
    return False


def cut(tokens: np.ndarray, languages: np.ndarray) -> np.ndarray:
  """Cuts a shard into blocks: [B + 1] the first document of each block, then the end.
  tokens, languages: [documents] the token count and the language of each document."""
  at, begins = offsets(tokens), [0]
  run_ends = np.append(np.flatnonzero(np.diff(languages)) + 1, len(tokens))
  while (begin := begins[-1]) < len(tokens):
    run_end = int(run_ends[run_ends.searchsorted(begin, side='right')])
    most = at.searchsorted(at[begin] + MOST_TOKENS)
    end = int(max(at.searchsorted(at[begin] + BLOCK_TOKENS), min(begin + BLOCK_DOCUMENTS, most)))
    rest = at[run_end] - at[min(end, run_end)]
    few = run_end - end < BLOCK_DOCUMENTS and rest < MOST_TOKENS
    begins.append(run_end if few or rest < BLOCK_TOKENS // 2 else end)
  return np.array(begins)


class Writer:
  """Writes the blocks of a corpus from the indexes of its shards."""

  def __init__(self, folder: Path):
    self.table_path, self.path = paths(folder)
    self.scratch = staged(self.path)
    self.columns, self.shard, self.complete = [], 0, True

  def add(self, index: Mapping[str, np.ndarray]) -> None:
    """Appends the blocks of the next shard."""
    self.complete &= all(name in index for name in PARTS)  # an older version wrote no sizes
    if self.complete:
      with open(self.scratch, 'ab' if self.shard else 'wb') as file:
        for block, data in _parts(index):
          file.write(data)
          self.columns.append((self.shard, *block, len(data), zlib.crc32(data)))
    self.shard += 1

  def close(self, unigrams: np.ndarray) -> str | None:
    """Writes the table; returns its checksum, or None if an older shard lacks sizes."""
    if not self.complete:
      self.path.unlink(missing_ok=True)
      return None
    place(self.scratch, self.path)
    table = np.array(self.columns, np.int64).reshape(-1, len(COLUMNS)).T
    columns: dict[str, Any] = dict(zip(COLUMNS, table, strict=True))
    data = io.BytesIO()
    np.savez_compressed(data, unigrams=unigrams, **columns)
    write_whole(self.table_path, data.getvalue())
    return hashlib.sha256(data.getvalue()).hexdigest()


def _parts(index):
  """Yields, for each block of a shard, (the columns `language` to `tokens`, its part)."""
  records = offsets(index['document_records'])
  tokens = offsets(index['record_tokens'])[records]
  documents = cut(np.diff(tokens), index['languages'])
  sentences = offsets(index['document_sentences'])[documents]
  bounds = {'documents': documents, 'sentences': sentences, 'records': records[documents]}
  bounds |= {'tokens': tokens[documents]}
  for k, first in enumerate(documents[:-1]):
    arrays = [index[x][bounds[of][k] : bounds[of][k + 1]] for x, of in PARTS.items()]
    sizes = [of_all[k + 1] - of_all[k] for of_all in bounds.values()]
    content = b''.join(x.astype('<i4').tobytes() for x in arrays)
    yield (index['languages'][first], *sizes), zlib.compress(content, 1)


class Index:
  """The table of blocks of a prepared corpus, in memory. meta: corpus.json. columns: {name:
  [blocks] int64}. unigrams: [languages, vocab_size] int64. room: see prepared.Reader."""

  def __init__(self, folder: Path | str, meta: Mapping[str, Any]):
    self.folder, self.meta, self.room = Path(folder).expanduser(), meta, 0
    table, self.parts = paths(self.folder)
    try:
      arrays = read_npz(io.BytesIO(table_of(self.folder, meta)))
      self.columns, self.unigrams = {name: arrays[name] for name in COLUMNS}, arrays['unigrams']
    except (*UNREADABLE, MemoryError) as error:
      fault = 'missing' if isinstance(error, FileNotFoundError) else first_line(error)
      raise InputError(f'{table} is {fault}; delete corpus.json and run prepare again') from None
    self.part_at, self.record_at = (offsets(self.columns[name]) for name in ('stored', 'records'))

  def __len__(self) -> int:
    """The number of blocks."""
    return len(self.columns['tokens'])

  def read(self, record: int) -> Piece:
    self.reader.room = max(prepared.CACHE_TOKENS, self.room)
    return self.reader(record)

  @functools.cached_property
  def reader(self) -> prepared.Reader:
    records = np.bincount(self.columns['shard'], self.columns['records'], self.meta['shards'])
    return prepared.Reader(self.folder, records.astype(np.int64))

  disk = functools.cached_property(lambda self: fetched(self.parts))

  def part(self, block: int) -> dict[str, np.ndarray]:
    """A block's part of the index, {name: array} of PARTS; or DamagedRecord."""
    disk = self.disk  # that a bucket cannot be read now is no damage
    try:
      with open(disk, 'rb') as file:
        file.seek(self.part_at[block])
        data = file.read(self.columns['stored'][block])
      if zlib.crc32(data) != self.columns['crc32'][block]:
        raise ValueError
      whole = np.frombuffer(zlib.decompress(data), '<i4')
    except (OSError, ValueError, zlib.error):
      fault = f'block {block} of {self.parts} cannot be read, or has changed'
      raise DamagedRecord(f'{fault}; delete that file and {prepared.AGAIN}') from None
    ends = np.cumsum([self.columns[of][block] for of in PARTS.values()])[:-1]
    return dict(zip(PARTS, np.split(whole, ends), strict=True))


class Blocks:
  """The documents of one language of a prepared corpus, in units loaded on demand: a block;
  several, about one block's worth, where only a share of the documents is kept; or all blocks of a
  language that has few. window: blocks whose rows are mixed at a time. share, held: see `divided`.
  Held-out documents come from at most EVALUATED blocks. Lengths of several units are expected."""

  def __init__(
    self, index: Index, language: int, window: int, share: float = 0.0, held: bool = False
  ):
    self.index, self.language, self.window = index, language, window
    self.share, self.held = share, held
    self.blocks = np.flatnonzero(index.columns['language'] == language)
    self.kept = share if held else 1 - share  # the share of the documents
    few = WHOLE // len(index.meta['languages'])
    number = len(self.blocks)
    of_unit = number if number <= few else min(number, int(1 / self.kept), EVALUATED)
    self.firsts = np.arange(0, number, of_unit)  # number of the first block of a unit
    if held and len(index) > EVALUATED:
      most = max(1, EVALUATED * number // len(index) // of_unit)
      self.firsts = self.firsts[np.linspace(0, self.units - 1, min(most, self.units)).astype(int)]
    self.blocks_of_unit = of_unit
    of_corpus = index.meta['blocks'], index.meta['fingerprint']  # the table, the records
    self.fingerprint = digest_of([repr((*of_corpus, language, share, held, of_unit))])

  def divided(self, share: float) -> tuple['Blocks', 'Blocks | None']:
    """Splits by a hash of the texts: (Blocks to train on, held-out Blocks or None)."""
    of = self.index, self.language, self.window, share
    return Blocks(*of), Blocks(*of, held=True) if share else None

  @property
  def units(self) -> int:
    """The number of units."""
    return len(self.firsts)

  def unit_sums(self, column: str) -> np.ndarray:
    """[units] the sums of a column of the table, as expected for the documents that are kept."""
    at = offsets(self.index.columns[column][self.blocks])
    ends = np.minimum(self.firsts + self.blocks_of_unit, len(self.blocks))
    return (at[ends] - at[self.firsts]) * self.kept

  def __len__(self) -> int:
    """The number of tokens."""
    return len(self.unit(0)) if self.units == 1 else int(self.unit_sums('tokens').sum())

  @property
  def number_of_documents(self) -> int:
    if self.units == 1:
      return self.unit(0).number_of_documents
    return int(self.unit_sums('documents').sum())

  def expect(self, number: int) -> None:
    """Begins to copy the shards of a unit, if they are in a bucket."""
    for shard in np.unique(self.index.columns['shard'][self._blocks_of(number)]):
      self.index.reader.expect(int(shard))

  def _blocks_of(self, unit):
    return self.blocks[self.firsts[unit] : self.firsts[unit] + self.blocks_of_unit]

  def unit(self, number: int) -> Corpus:
    """Loads one unit."""
    blocks = self._blocks_of(number)
    parts = [self.index.part(block) for block in blocks]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in PARTS}
    at = self.index.record_at
    records = np.concatenate([np.arange(at[block], at[block + 1]) for block in blocks])
    whole = prepared.corpus_of(self.index.read, records, arrays, self.fingerprint)
    return whole.select(is_held_out(whole.hashes, self.share) == self.held) if self.share else whole

  def unigrams(self, vocab_size: int) -> np.ndarray:
    """Estimates how often each id occurs, [vocab_size] int64, from SAMPLED units."""
    chosen = spaced(self.units, SAMPLED)
    counts, tokens = np.zeros(vocab_size, np.int64), 0
    for number in chosen:
      corpus = self.unit(number)
      counts, tokens = counts + corpus.unigrams(vocab_size), tokens + len(corpus)
    if len(chosen) == self.units:
      return counts
    return np.rint(counts * (len(self) / max(1, tokens))).astype(np.int64)
