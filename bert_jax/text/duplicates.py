"""Recognises documents that repeat an earlier one, exactly (but for white space) or nearly.

Near-duplicates share most of their runs of five words: MinHash (Broder 1997) estimates how many,
and locality-sensitive hashing in bands says which documents to compare. A document is one if it has
a band in common with an earlier one, removed or not, and their estimated Jaccard similarity is at
least SIMILARITY. So `Seen`, by document, and `near_of_band`, by band in any process, agree.
"""

import hashlib
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import InputError
from bert_jax.text.sentences import UNSPACED

SIMILARITY = 0.8  # the least Jaccard similarity of near-duplicates
_WORDS = 5  # words in a shingle
_PERMUTATIONS = 128  # the standard error of a similarity s is (s (1 - s) / 128) ** 0.5
_SEED = 1
_CHUNK = 1024  # shingles at a time, which fit the processor's cache
_STEP = 64  # signatures at a time

_TOKENS = re.compile(rf'[{UNSPACED}]|[^\s{UNSPACED}]+')


def exact_key(text: str) -> int:
  """64-bit hash (0 <= key < 2**64) of a text, ignoring white space; the same on every machine."""
  words = ' '.join(text.split()).encode()
  return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), 'little')


class Signer:
  """Computes MinHash signatures and the bands by which near-duplicates are found.
  The number of bands is chosen for few misses, since every hit is checked: 14 bands of 9 find a
  pair of similarity 0.8 with probability 0.87, of 0.9 with 0.999. Pickles; needs datasketch."""

  def __init__(self):
    try:
      from datasketch import MinHash, MinHashLSH

      self._empty = MinHash(_PERMUTATIONS, _SEED, hashfunc=zlib.crc32, scheme='affine32')
    except (ImportError, TypeError):  # version 1 has no schemes
      fault = 'near-duplicate removal needs datasketch'
      raise InputError(f"{fault}; run: pip install 'datasketch>=2'") from None
    index = MinHashLSH(SIMILARITY, _PERMUTATIONS, weights=(0.1, 0.9))
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
    """The band keys of n signatures, uint16 [n, 128], as uint64 [n, bands]."""
    count, rows = self._multipliers.shape
    values = signatures[:, : count * rows].reshape(-1, count, rows)
    return np.einsum('nbr,br->nb', values, self._multipliers, dtype=np.uint64)


def near_of_band(members: Iterable[tuple[Any, np.ndarray]]) -> Iterator[Any]:
  """Yields the order keys of the documents in one band that are near-duplicates of an earlier one.
  members: (order key, signature) of all documents with this band's key, in any order."""
  keys, signatures = zip(*sorted(members, key=lambda member: member[0]))
  for i, key in enumerate(keys):
    if _is_near(signatures[i], signatures, range(i - 1, -1, -1)):
      yield key


class Seen:
  """Remembers documents and recognises later ones that duplicate them. kind: 'exact', or 'near',
  which recognises both. A document takes about 100 bytes, with 'near' about 2 KB."""

  def __init__(self, kind: str):
    self.signer = Signer() if kind == 'near' else None
    self._keys: dict[int, None] = {}  # the exact_key of each document, in order
    self._by_band: dict[int, list[int]] = {}  # {key of a band: numbers of its documents}
    self._signatures: list[np.ndarray] = []
    self._saved = 0  # documents that state() has returned

  def __len__(self) -> int:
    return len(self._keys)

  def is_duplicate(self, key: int, signature: np.ndarray | None = None) -> str:
    """Adds a document; 'exact', 'near' or '': how it duplicates an earlier one.
    key: its exact_key. signature: from a Signer, if kind is 'near'."""
    if key in self._keys:
      return 'exact'  # later documents are compared with the first one, which is the same text
    is_near = False
    if self.signer:
      assert signature is not None
      bands = self.signer.bands(signature)
      same_band = set()
      for band in bands:
        same_band.update(self._by_band.get(band, ()))
      is_near = _is_near(signature, self._signatures, same_band)
      self._add_bands(bands, signature)
    self._keys[key] = None
    return 'near' if is_near else ''

  def _add_bands(self, bands: list[int], signature: np.ndarray) -> None:
    for band in bands:
      self._by_band.setdefault(band, []).append(len(self._signatures))
    self._signatures.append(signature)

  def state(self) -> dict[str, np.ndarray]:
    """The documents since the last call, for saving: keys uint64 [n], signatures uint16 [n, 128].
    Exact duplicates are left out; signatures are there if kind is 'near'."""
    first, self._saved = self._saved, len(self)
    state: dict[str, np.ndarray] = {}
    state['keys'] = np.array(list(self._keys)[first:], np.uint64)
    if self.signer:
      signatures = np.array(self._signatures[first:], np.uint16)
      state['signatures'] = signatures.reshape(-1, _PERMUTATIONS)
    return state

  def add(self, state: dict[str, np.ndarray]) -> None:
    """Adds what `state` returned in an earlier process; `state` will not return it again."""
    for key in state['keys'].tolist():
      self._keys[key] = None
    if self.signer:
      for signature in state['signatures']:
        self._add_bands(self.signer.bands(signature), signature)
    self._saved = len(self)


def _is_near(
  signature: np.ndarray, signatures: Sequence[np.ndarray], numbers: Iterable[int]
) -> bool:
  """Whether the estimated similarity to one of signatures[numbers] is at least SIMILARITY."""
  # In steps: where many share a band they are mostly copies, and one of the first is near.
  numbers = iter(numbers)
  while some := list(itertools.islice(numbers, _STEP)):
    others = np.array([signatures[i] for i in some])
    agreeing = np.count_nonzero(others == signature, axis=1)
    if agreeing.max() / signature.size >= SIMILARITY:
      return True
  return False
