"""Labelled texts stored on disk as token ids, for data sets that are too large for memory.

  examples.json   what was read, the labels, seals; written last, when the folder is finished
  vocab.txt, ...  the vocabulary, as Tokenizer.save writes it
  ids.bin         the ids of all texts, one after the other, without special tokens
  ends.npy        [E, sides] int64: where in ids.bin each text ends; sides: 1, or 2 of pairs
  labels.npy      [E] int32 numbers of labels, [E] float32 numbers, or [E, L] float32: which of L
  checksums.npy   [blocks] uint32: the CRC-32 of the ids of each block of BLOCK examples

A block of ids is checked when it is first read, all else when the folder is opened.
"""

import itertools
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax import tokenizers
from bert_jax.buckets import remove_tree
from bert_jax.copies import fetched, place, staged
from bert_jax.corpus.tokenized import DamagedRecord
from bert_jax.errors import InputError
from bert_jax.files import Path, seal, write_npy, write_whole
from bert_jax.text import files

META, IDS, ENDS, LABELS = 'examples.json', 'ids.bin', 'ends.npy', 'labels.npy'
SUMS = 'checksums.npy'
# Names that Tokenizer.files may give, for any kind of vocabulary.
VOCABULARIES = 'tokenizer_config.json', 'vocab.txt', 'spm.model', 'tokenizer.json'
PART, BLOCK = 4096, 65_536  # examples that are written at once, and that share a checksum


def is_prepared(spec: str) -> bool:
  """Whether data.train or data.eval names a folder of prepared examples, which is finished."""
  if not spec or files.exists(Path(spec) / META):
    return bool(spec)
  if files.exists(Path(spec) / IDS):
    raise InputError(f'{spec} is not finished; run the prepare_examples that made it again.')
  return False


def unfinished(folder: Path) -> list[Path]:
  """The files that a stopped preparation left in a folder, to be written anew."""
  there = [path.name for path in folder.iterdir()] if folder.is_dir() else []
  if META in there or not {IDS, ENDS, SUMS} & {*there}:
    return []
  written = IDS, ENDS, LABELS, SUMS, *VOCABULARIES
  return [folder / name for name in there if name in written or re.fullmatch(r'\..*\.tmp', name)]


def id_type(tokenizer: tokenizers.Tokenizer) -> type:
  """The dtype of the ids in ids.bin."""
  return np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32


class Writer:
  """Writes a folder of prepared examples in parts, in their order."""

  def __init__(self, folder: Path, tokenizer: tokenizers.Tokenizer):
    self.out, self.folder = folder, staged(folder)
    self.tokenizer, self.id_type = tokenizer, id_type(tokenizer)
    if self.folder != folder:
      remove_tree(self.folder)
    self.folder.mkdir(parents=True, exist_ok=True)
    self.ends, self.sums, self.tokens, self.number = [], [], 0, 0
    self.sum = 0  # checksum of the block that is not full yet

  def add(self, texts: Sequence[Sequence[np.ndarray]]) -> None:
    """Writes a part: one or two id arrays of each of PART examples, the last time fewer."""
    content = np.concatenate([part for ids in texts for part in ids]).astype(self.id_type).tobytes()
    with open(self.folder / IDS, 'ab') as file:
      file.write(content)
    self.sum, self.number = zlib.crc32(content, self.sum), self.number + len(texts)
    if self.number % BLOCK == 0:
      self.sums, self.sum = [*self.sums, self.sum], 0
    lengths = np.array([[len(part) for part in ids] for ids in texts], np.int64)
    self.ends.append(self.tokens + np.cumsum(lengths).reshape(lengths.shape))
    self.tokens += int(lengths.sum())

  def close(self, facts: dict[str, Any], labels: Iterable[np.ndarray]) -> dict[str, Any]:
    """Finishes the folder; returns examples.json with these facts. labels: parts of labels.npy."""
    write_npy(self.folder / ENDS, np.concatenate(self.ends))
    rest = [self.sum] * bool(self.number % BLOCK)
    write_npy(self.folder / SUMS, np.array(self.sums + rest, np.uint32))
    parts = iter(labels)
    first = next(parts)
    descr = np.lib.format.dtype_to_descr(first.dtype)
    header = dict(descr=descr, fortran_order=False, shape=(self.number, *first.shape[1:]))
    with open(self.folder / LABELS, 'wb') as file:
      np.lib.format.write_array_header_1_0(file, header)
      for part in itertools.chain([first], parts):
        file.write(part.astype(first.dtype).tobytes())
    self.tokenizer.save(self.folder)
    meta = facts | {
      'examples': self.number,
      'tokens': self.tokens,
      'vocabulary': self.tokenizer.fingerprint,
      'checksums': {name: _checksum(self.folder / name) for name in (ENDS, SUMS, LABELS)},
    }
    meta['seal'] = seal(meta)
    write_whole(self.folder / META, json.dumps(meta, indent=2, ensure_ascii=False) + '\n')
    place(self.folder, self.out, last=(META,))
    return meta


class Prepared:
  """An opened folder of prepared examples, or an InputError. meta: examples.json."""

  def __init__(self, folder: Path | str):
    self.folder = fetched(Path(folder).expanduser())
    self.meta = files.json_of(self.folder / META)
    self._check(META, self.meta.get('seal') == seal(self.meta))
    for name, checksum in self.meta['checksums'].items():
      path = self.folder / name
      self._check(name, path.is_file() and _checksum(path) == checksum)
    self.tokenizer = tokenizers.load_folder(self.folder)
    self._check('the vocabulary', self.tokenizer.fingerprint == self.meta['vocabulary'])
    arrays = (np.load(self.folder / name, mmap_mode='r') for name in (ENDS, LABELS, SUMS))
    self.ends, self.labels, self.sums = arrays
    path, dtype, tokens = self.folder / IDS, id_type(self.tokenizer), self.meta['tokens']
    size = tokens * np.dtype(dtype).itemsize
    self._check(IDS, path.is_file() and path.stat().st_size == size)
    self.ids = np.memmap(path, dtype, 'r', shape=(tokens,))
    self.sides, self.intact = self.ends.shape[1], {}  # {block: whether its checksum holds}

  def __len__(self) -> int:
    return len(self.ends)

  def lengths(self) -> np.ndarray:
    """[E, sides] int32, the token count of each text."""
    return np.diff(self.ends.reshape(-1), prepend=0).astype(np.int32).reshape(self.ends.shape)

  def texts(self, e: int) -> tuple[np.ndarray, ...]:
    """The texts of an example, as one or two id arrays."""
    block = e // BLOCK
    first, last = block * BLOCK, min((block + 1) * BLOCK, len(self))
    if block not in self.intact:
      ids = self.ids[self._begin(first) : self._begin(last)]
      self.intact[block] = zlib.crc32(ids.tobytes()) == self.sums[block]
    if not self.intact[block]:
      fault = f'{self.folder / IDS}: examples {first:,} to {last - 1:,} are damaged'
      raise DamagedRecord(f'{fault}; prepare them again, or set data.skip_damaged=true')
    bounds = itertools.pairwise([self._begin(e), *self.ends[e]])
    return tuple(np.asarray(self.ids[a:b], np.int32) for a, b in bounds)

  def _begin(self, e):
    """Where in ids.bin the texts of example e begin."""
    return int(self.ends[e - 1, -1]) if e else 0

  def _check(self, name, is_whole):
    if not is_whole:
      raise InputError(f'{name} of {self.folder} is missing or damaged; prepare the examples again')


def _checksum(path):
  """The CRC-32 of a file."""
  return zlib.crc32(np.memmap(path, np.uint8, 'r').data) if path.stat().st_size else 0
