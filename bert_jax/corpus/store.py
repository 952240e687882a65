"""Reads a prepared corpus: arrays on the disk, of which a run maps what its rows need.

  corpus.json      settings, counts, languages, fingerprints; written last, and sealed
  plan.json        the settings that preparing began with
  vocab.txt, ...   the vocabulary, as Tokenizer.save writes it
  chunks.npz       a column [chunks] for each of COLUMNS, and `unigrams` [languages, vocab_size]
  documents.npy    uint32 [documents, 2]: tokens and text_hash of each, in order, up to LENGTHS
  shards/00000/    a shard, see ARRAYS; shard.npz, which comes last, has what `prepare` goes on from

A chunk is a run of whole documents of one language in one shard (shards.cut). A run reads the table
of chunks when it starts, and a chunk when its rows are reached; then its checksum is compared.
"""

import functools
import hashlib
import io
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bert_jax.copies import fetched
from bert_jax.corpus.tokenized import Corpus, digest_of, offsets, spaced
from bert_jax.errors import InputError, first_line
from bert_jax.files import UNREADABLE, Path, read_npz, seal
from bert_jax.text import files
from bert_jax.text.documents import is_held_out
from bert_jax.text.values import json_value
from bert_jax.tokenizers import Tokenizer

META, PLAN, TABLE, DOCUMENTS = 'corpus.json', 'plan.json', 'chunks.npz', 'documents.npy'
FACTS = 'shard.npz'
COLUMNS = 'shard', 'language', 'documents', 'sentences', 'tokens', 'crc32'
# {array of a shard, a .npy: the column of chunks that counts its elements}. tokens: uint16 or
# int32. starts: see units.Record. sentences: int32, the tokens of each. documents: OF_DOCUMENTS.
ARRAYS = {
  'tokens': 'tokens',
  'starts': 'tokens',
  'sentences': 'sentences',
  'documents': 'documents',
}
OF_DOCUMENTS = 'tokens', 'sentences', 'characters', 'bytes', 'hash', 'language'  # uint32 [D, 6]
EVALUATED = 4096  # the most chunks whose held-out documents are evaluated
LENGTHS = 1 << 24  # documents, up to which the lengths of all are read when a run starts
SAMPLED = 4  # units whose tokens are counted to estimate the unigram frequencies
OPEN_SHARDS = 64  # that stay mapped
AGAIN = 'bring it back, or delete it and corpus.json and run the prepare that made them again'


def shard_path(folder: Path, number: int) -> Path:
  return folder / 'shards' / f'{number:05}'


def finished(folder: Path) -> int:
  """The number of finished shards of a corpus, counted from the first."""
  number = 0
  while (shard_path(folder, number) / FACTS).is_file():
    number += 1
  return number


def is_prepared(spec: str) -> bool:
  """Whether a spec is the folder of a prepared corpus, finished or not."""
  return bool(spec) and any(files.exists(Path(spec) / name) for name in (META, PLAN))


def read_meta(folder: Path | str, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
  """The content of a finished corpus.json; InputError if damaged or of another vocabulary."""
  path = Path(folder).expanduser() / META
  if not path.is_file():
    raise InputError(f'{folder} is not finished; run the bert_jax.tools.prepare that made it again')
  meta = files.json_of(path)
  if meta.get('seal') != seal(meta):
    raise InputError(f'{path} is damaged, or of an earlier version; prepare the corpus again.')
  if tokenizer is not None and tokenizer.fingerprint != meta['vocabulary']:
    raise InputError(
      f'{folder} was prepared with another vocabulary than this run has; prepare it again with '
      '--vocab, or begin from weights with its vocabulary'
    )
  return meta


def read_facts(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """What a shard says of itself: ({fact: value}, {name: array})."""
  path = folder / FACTS
  try:
    arrays = read_npz(path)
    return json_value(arrays.pop('facts').tobytes()), arrays
  except (*UNREADABLE, MemoryError) as error:
    raise InputError(f'{path} is damaged ({first_line(error)}); prepare the corpus anew') from error


class Store:
  """An opened prepared corpus.

  columns: {name: [chunks] int64}.
  unigrams: int64 [languages, vocab_size].
  at: {column: [chunks + 1] where each chunk begins among all such elements}.
  """

  def __init__(self, folder: Path | str, tokenizer: Tokenizer | None = None):
    self.folder = Path(folder).expanduser()
    self.meta = read_meta(self.folder, tokenizer)
    self.columns = read_npz(io.BytesIO(self._checked(TABLE)))
    self.unigrams = self.columns.pop('unigrams')
    self.at = {name: offsets(self.columns[name]) for name in {*ARRAYS.values()}}
    self._shard = functools.lru_cache(OPEN_SHARDS)(self._opened)

  def text(self, language: int, window: int) -> 'Corpus | Chunks':
    """The text of a language, by its number: whole, or in chunks if it is large."""
    chunks = np.flatnonzero(self.columns['language'] == language)
    most = self.meta['whole'] // len(self.meta['languages'])
    if self.columns['tokens'][chunks].sum() > most:
      return Chunks(self, language, window)
    return self.corpus(chunks, digest_of([self.meta['fingerprint'], str(language)]))

  def corpus(
    self, chunks: Iterable[int], fingerprint: str, is_kept: Callable[[Any], Any] | None = None
  ) -> Corpus:
    """The Corpus of some chunks, one after the other. is_kept: of the documents' hashes."""
    parts = []
    for chunk in chunks:
      part = self._chunk(int(chunk))
      parts.append(part.select(is_kept(part.hashes)) if is_kept else part)
    return Corpus(
      np.concatenate([part.tokens for part in parts]),
      np.concatenate([part.starts for part in parts]),
      np.concatenate([np.diff(part.sentences) for part in parts]),
      np.concatenate([np.diff(part.documents) for part in parts]),
      fingerprint,
      np.concatenate([part.sizes for part in parts]),
      np.concatenate([part.hashes for part in parts]),
    )

  def _chunk(self, chunk: int) -> Corpus:
    arrays = self._arrays(chunk)
    documents = dict(zip(OF_DOCUMENTS, arrays['documents'].T, strict=True))
    sizes = np.stack([documents['characters'], documents['bytes']], axis=1).astype(np.int64)
    return Corpus(
      arrays['tokens'],
      arrays['starts'],
      arrays['sentences'],
      documents['sentences'],
      fingerprint='',
      sizes=sizes,
      hashes=documents['hash'],
    )

  def _arrays(self, chunk: int) -> dict[str, np.ndarray]:
    """{name: the part of a shard's array that is this chunk}; InputError if it is damaged."""
    shard = int(self.columns['shard'][chunk])
    opened = self._shard(shard)
    first = int(self.columns['shard'].searchsorted(shard))  # the first chunk of the shard
    out, checksum = {}, 0
    for name, column in ARRAYS.items():
      begin, end = self.at[column][[chunk, chunk + 1]] - self.at[column][first]
      out[name] = opened[name][begin:end]
      checksum = zlib.crc32(out[name].tobytes(), checksum)
    if checksum != self.columns['crc32'][chunk]:
      raise InputError(f'chunk {chunk} of {shard_path(self.folder, shard)} is damaged; {AGAIN}')
    return out

  def _opened(self, shard: int) -> dict[str, np.ndarray]:
    """{name: array} of a shard, mapped."""
    folder = fetched(shard_path(self.folder, shard))  # a network's OSError is no damage
    try:
      return {name: np.load(folder / f'{name}.npy', mmap_mode='r') for name in ARRAYS}
    except (OSError, ValueError, EOFError) as error:
      path = shard_path(self.folder, shard)
      raise InputError(f'{path} is damaged ({first_line(error)}); {AGAIN}') from None

  @functools.cached_property
  def lengths(self) -> Any:
    """[documents, 2] tokens and text_hash of each document; None if they are too many."""
    if self.meta['documents']:
      return np.load(io.BytesIO(self._checked(DOCUMENTS)))
    return None

  def _checked(self, name: str) -> bytes:
    """The content of a file; InputError if it is not what corpus.json was written with."""
    path = self.folder / name
    data = files.read_bytes(path) or b''
    if hashlib.sha256(data).hexdigest() != self.meta[name.partition('.')[0]]:
      raise InputError(f'{path} is missing, damaged, or of another corpus; {AGAIN}')
    return data


class Chunks:
  """The documents of one language of a large prepared corpus, in units that are read on demand.

  A unit is a chunk, or several where only a small share of the documents is kept. Held-out
  documents are those of at most EVALUATED chunks.
  window: units whose rows are mixed at a time.
  share, held: see `divided`.
  """

  def __init__(
    self, store: Store, language: int, window: int, share: float = 0.0, held: bool = False
  ):
    self.store = store
    self.language = language
    self.window = window
    self.share = share
    self.held = held
    self.kept = share if held else 1 - share  # the share of the documents
    self.chunks = np.flatnonzero(store.columns['language'] == language)
    self.of_unit = min(len(self.chunks), int(1 / self.kept), EVALUATED)  # chunks
    self.firsts = np.arange(0, len(self.chunks), self.of_unit)  # the first one of each unit
    if held:
      chunks = EVALUATED * len(self.chunks) // len(store.columns['tokens'])
      self.firsts = self.firsts[spaced(len(self.firsts), max(1, chunks // self.of_unit))]
    facts = store.meta['fingerprint'], language, share, held, self.of_unit, len(self.firsts)
    self.fingerprint = digest_of([repr(facts)])

  def divided(self, share: float) -> tuple['Chunks', 'Chunks | None']:
    """Splits by a hash of the texts: (Chunks to train on, held-out Chunks or None)."""
    train = Chunks(self.store, self.language, self.window, share)
    if not share:
      return train, None
    return train, Chunks(self.store, self.language, self.window, share, held=True)

  @property
  def units(self) -> int:
    """The number of units."""
    return len(self.firsts)

  def unit(self, number: int) -> Corpus:
    """Reads one unit."""
    fingerprint = digest_of([self.fingerprint, str(number)])
    is_kept = self._is_kept if self.share else None
    return self.store.corpus(self.chunks_of(number), fingerprint, is_kept)

  def _is_kept(self, hashes: np.ndarray) -> np.ndarray:
    return is_held_out(hashes, self.share) == self.held

  def chunks_of(self, number: int) -> np.ndarray:
    """The numbers of the chunks of a unit."""
    return self.chunks[self.firsts[number] : self.firsts[number] + self.of_unit]

  @functools.cached_property
  def sums(self) -> dict[str, np.ndarray]:
    """{column: [units] its sum over the documents that are kept, or as expected of them}."""
    out = {}
    for column in ('tokens', 'sentences', 'documents'):
      out[column] = self._of_units(self.store.columns[column][self.chunks]) * self.kept
    if self.share and self.store.lengths is not None:
      out['tokens'] = self.sums_over_documents(lambda lengths: lengths)
      out['documents'] = self.sums_over_documents(np.ones_like)
    return out

  def _of_units(self, of_chunks: np.ndarray) -> np.ndarray:
    """[units] the sums of what each of `chunks` has."""
    at = offsets(of_chunks)
    return at[np.minimum(self.firsts + self.of_unit, len(self.chunks))] - at[self.firsts]

  def sums_over_documents(self, of_lengths: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """[units] of each unit the sum over its documents that are kept. of_lengths: what is summed, as
    a function of the lengths of documents in tokens [D], with a number for each of them [D]."""
    lengths, hashes = self.store.lengths.T
    numbers = of_lengths(lengths.astype(np.int64))
    if self.share:
      numbers = numbers * self._is_kept(hashes)
    of_chunks = np.add.reduceat(numbers, self.store.at['documents'][:-1])
    return self._of_units(of_chunks[self.chunks])

  def __len__(self) -> int:
    """The number of tokens."""
    return round(self.sums['tokens'].sum())

  @property
  def number_of_documents(self) -> int:
    return round(self.sums['documents'].sum())

  def unigrams(self, vocab_size: int) -> np.ndarray:
    """Estimates how often each id occurs, [vocab_size] int64, from SAMPLED units."""
    counts, tokens = np.zeros(vocab_size, np.int64), 0
    for number in spaced(self.units, SAMPLED):
      corpus = self.unit(int(number))
      counts, tokens = counts + corpus.unigrams(vocab_size), tokens + len(corpus)
    return np.rint(counts * (len(self) / max(1, tokens))).astype(np.int64)
