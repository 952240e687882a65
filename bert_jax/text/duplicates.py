"""Recognises documents that repeat an earlier one, exactly (but for white space) or nearly.

Near-duplicates share most of their runs of five words: MinHash (Broder 1997) estimates how many,
and locality-sensitive hashing in bands says which documents to compare. A document is one if it has
a band in common with an earlier one, removed or not, and their estimated Jaccard similarity is at
least the threshold. So `Seen`, by document, and `near_of_band`, by band in any process, agree.
"""

import array
import hashlib
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bert_jax.errors import InputError
from bert_jax.text.sentences import UNSPACED

_WORDS = 5  # words in a shingle
_PERMUTATIONS = 128  # the standard error of a similarity s is (s (1 - s) / 128) ** 0.5
_SEED = 1
_CHUNK = 1024  # shingles, keys or signatures at a time, which fit the processor's cache

_TOKENS = re.compile(rf'[{UNSPACED}]|[^\s{UNSPACED}]+')


def exact_key(text: str) -> int:
  """64-bit hash (0 <= key < 2**64) of a text, ignoring white space; the same on every machine."""
  words = ' '.join(text.split()).encode()
  return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), 'little')


class Signer:
  """Computes MinHash signatures and the bands by which near-duplicates are found.
  threshold: the least Jaccard similarity of near-duplicates; 0.8 is usual. The number of bands is
  chosen for few misses, since every hit is checked: at threshold 0.8, 14 bands of 9 find a pair of
  similarity 0.8 with probability 0.87, of 0.9 with 0.999. Pickles; needs datasketch."""

  def __init__(self, threshold: float):
    if not 0 < threshold <= 0.99:
      raise InputError(f'near threshold {threshold} is not between 0 and 0.99; 0.8 is usual')
    try:
      from datasketch import MinHash, MinHashLSH

      self._empty = MinHash(_PERMUTATIONS, _SEED, hashfunc=zlib.crc32, scheme='affine32')
    except (ImportError, TypeError):  # version 1 has no schemes
      fault = 'near-duplicate removal needs datasketch'
      raise InputError(f"{fault}; run: pip install 'datasketch>=2'") from None
    index = MinHashLSH(threshold, _PERMUTATIONS, weights=(0.1, 0.9))
    self.threshold, self.num_bands = threshold, index.b
    random = np.random.RandomState(_SEED)  # numpy promises that its numbers never change
    self._multipliers = random.randint(0, 1 << 64, (index.b, index.r), np.uint64)

  def signature(self, text: str) -> np.ndarray:
    """The MinHash of a text's runs of five words, uint16 [128]; case does not count.
    A word is a stretch between white space; in scripts without blanks (Chinese, Thai, ...) every
    character is one. 16 bits of each minimum are kept: two different ones agree once in 65,536."""
    text = text.lower()
    words = text.split() if text.isascii() else _TOKENS.findall(text)
    words = ' '.join(words).encode().split(b' ')
    runs = [itertools.islice(words, i, None) for i in range(min(_WORDS, len(words)))]
    shingles = map(b' '.join, zip(*runs))
    minhash = self._empty.copy()
    while some := list(itertools.islice(shingles, _CHUNK)):
      minhash.update_batch(some)
    return minhash.hashvalues.astype(np.uint16)

  def bands(self, signature: np.ndarray) -> list[int]:
    """64-bit keys, the same in all processes; similar documents probably share one."""
    return self.bands_of(signature[None])[0].tolist()

  def bands_of(self, signatures: np.ndarray) -> np.ndarray:
    """The band keys of n signatures, uint16 [n, 128], as uint64 [n, num_bands]."""
    count, rows = self._multipliers.shape
    values = signatures[:, : count * rows].reshape(-1, count, rows)
    return np.einsum('nbr,br->nb', values, self._multipliers, dtype=np.uint64)


def near_of_band(members: Iterable[tuple[Any, np.ndarray]], threshold: float) -> Iterator[Any]:
  """Yields the order keys of the documents in one band that are near-duplicates of an earlier one.
  members: (order key, signature) of all documents with this band's key, in any order."""
  keys, signatures = zip(*sorted(members, key=lambda member: member[0]))
  signatures = np.array(signatures)
  for i, key in enumerate(keys):
    if _is_near(signatures[i], signatures, range(i - 1, -1, -1), threshold):
      yield key


class Seen:
  """Remembers documents and recognises later ones that duplicate them. kind: 'exact', or 'near',
  which recognises both. A document takes 16 to 20 bytes, with 'near' about 530."""

  def __init__(self, kind: str, threshold: float = 0.8):
    if kind not in ('exact', 'near'):
      raise InputError(f"kind of duplicates {kind!r} is not known; use 'exact' or 'near'")
    self.signer = Signer(threshold) if kind == 'near' else None
    # Number n of the table is key n % width of document n // width: its exact_key, then its bands.
    self._width, self._table = 1 + (self.signer.num_bands if self.signer else 0), _Table()
    self._signatures = array.array('H')  # of all documents, one behind the other
    self._saved = 0  # documents that state() has returned

  def __len__(self) -> int:
    return len(self._table.keys) // self._width

  def is_duplicate(self, key: int, signature: np.ndarray | None = None) -> str:
    """Adds a document; 'exact', 'near' or '': how it duplicates an earlier one.
    key: its exact_key. signature: from a Signer with the same threshold, if kind is 'near'."""
    if any(number % self._width == 0 for number in self._table.find(key)):
      return 'exact'  # later documents are compared with the first one, which is the same text
    near, bands = False, []
    if self.signer:
      assert signature is not None
      bands = self.signer.bands(signature)
      same_band = (n // self._width for band in bands for n in self._table.find(band))
      near = _is_near(signature, self._signed(), same_band, self.signer.threshold)
      self._signatures.frombytes(signature.tobytes())
    self._table.add(np.array([key, *bands], np.uint64))
    return 'near' if near else ''

  def _signed(self) -> np.ndarray:
    """A view of all signatures, [n, 128]; while it is held, none can be added."""
    return np.asarray(self._signatures).reshape(-1, _PERMUTATIONS)

  def state(self) -> dict[str, np.ndarray]:
    """The documents since the last call, for saving: keys uint64 [n], signatures uint16 [n, 128].
    Exact duplicates are left out; signatures are there if kind is 'near'."""
    new, self._saved = slice(self._saved, len(self)), len(self)
    out = {'keys': np.asarray(self._table.keys)[:: self._width][new].copy()}
    return out | {'signatures': self._signed()[new].copy()} if self.signer else out

  def add(self, state: dict[str, np.ndarray]) -> None:
    """Adds what `state` returned in an earlier process; `state` will not return it again."""
    if self._saved < len(self):
      raise ValueError('documents were seen that state() has not given yet; call add() first')
    keys = state['keys'][:, None]
    if self.signer:
      keys = np.concatenate([keys, self.signer.bands_of(state['signatures'])], axis=1)
      self._signatures.frombytes(state['signatures'].tobytes())
    self._table.add(keys.ravel())
    self._saved = len(self)


class _Table:
  """A chained hash table, from 64-bit keys (repeats allowed) to their numbers 0, 1, 2, ...
  It takes 16 to 20 bytes a key. The keys' high bits say which chain they are in."""

  def __init__(self):
    self.keys = array.array('Q')
    self._before = array.array('I')  # number + 1 of the previous key of its chain; 0: none
    self._last, self._shift = np.zeros(16, np.uint32), 60  # number + 1 of each chain's last key

  def add(self, keys: np.ndarray) -> None:
    first, count = len(self.keys), len(self.keys) + len(keys)
    self.keys.frombytes(keys.tobytes())
    self._before.frombytes(bytes(4 * len(keys)))
    if count > len(self._last):
      self._shift = 64 - count.bit_length()
      self._last = np.zeros(1 << count.bit_length(), np.uint32)
      first = 0
    for start in range(first, count, _CHUNK):
      chains = np.asarray(self.keys[start : start + _CHUNK]) >> np.uint64(self._shift)
      for number, chain in enumerate(chains.tolist(), start):
        self._before[number] = self._last[chain]
        self._last[chain] = number + 1

  def find(self, key: int) -> Iterator[int]:
    """The numbers of all entries with this key, the last one first."""
    number = int(self._last[key >> self._shift])
    while number:
      if self.keys[number - 1] == key:
        yield number - 1
      number = int(self._before[number - 1])


def _is_near(
  signature: np.ndarray, signatures: np.ndarray, numbers: Iterable[int], threshold: float
) -> bool:
  """Whether the estimated similarity to one of signatures[numbers] is at least the threshold."""
  # In growing steps: where many share a band they are mostly copies, and the next one is near.
  numbers, step = iter(numbers), 4
  while some := list(itertools.islice(numbers, step)):
    equal = np.count_nonzero(signatures[some] == signature, axis=1)
    if equal.max() / signature.size >= threshold:
      return True
    step = min(2 * step, _CHUNK)
  return False
