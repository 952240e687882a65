"""Labelled texts stored on disk as token ids, for data sets that are too large for memory.

  examples.json   what was read, the labels, seals; written last, when the folder is finished
  vocab.txt, ...  the vocabulary, as Tokenizer.save writes it
  ids.bin         the ids of all texts, one after the other, without special tokens
  ends.npy        [E, sides] int64: where in ids.bin each text ends; sides: 1, or 2 of pairs
  labels.npy      [E] int32 numbers of labels, [E] float32 numbers, or [E, L] float32: which of L
  checksums.npy   [blocks] uint32: the CRC-32 of the ids of each block of BLOCK examples

tools/prepare_examples.py writes it. A block of ids is checked when it is first read, all else when
it is opened.
"""

import json
import re
import zlib
from pathlib import Path

import numpy as np

from bert_jax import tokenizers
from bert_jax.corpus.tokenized import DamagedRecord
from bert_jax.errors import InputError
from bert_jax.files import seal, write_whole
from bert_jax.text import files

META, IDS, ENDS, LABELS, SUMS = (
  'examples.json',
  'ids.bin',
  'ends.npy',
  'labels.npy',
  'checksums.npy',
)
# Names that Tokenizer.files may give, for any kind of vocabulary.
VOCABULARIES = 'tokenizer_config.json', 'vocab.txt', 'spm.model', 'tokenizer.json'
PART, BLOCK = 4096, 65_536  # examples that are written at once, and that share a checksum


def is_prepared(spec):
  """Whether data.train, or data.eval, names a folder of prepared examples. InputError if it is not
  finished."""
  if not spec or files.exists(Path(spec) / META):
    return bool(spec)
  if files.exists(Path(spec) / IDS):
    raise InputError(f'{spec} is not finished; run the prepare_examples that made it again.')
  return False


def unfinished(folder):
  """The files that a stopped preparation left in a folder, to be written anew."""
  there = [path.name for path in folder.iterdir()] if folder.is_dir() else []
  if META in there or IDS not in there:
    return []
  written = IDS, ENDS, LABELS, SUMS, *VOCABULARIES
  return [folder / name for name in there if name in written or re.fullmatch(r'\..*\.tmp', name)]


def id_type(tokenizer):
  """The dtype of the ids in ids.bin."""
  return np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32


class Writer:
  """Writes a folder of prepared examples in parts, in their order."""

  def __init__(self, folder, tokenizer):
    self.folder, self.tokenizer = Path(folder), tokenizer
    self.folder.mkdir(parents=True, exist_ok=True)
    self.id_type = id_type(tokenizer)
    self.ends, self.sums, self.tokens, self.number = [], [], 0, 0
    self.sum = 0  # checksum of the block that is not full yet

  def add(self, texts):
    """Writes a part: PART tuples of one or two id arrays, the last time fewer."""
    content = np.concatenate([part for ids in texts for part in ids]).astype(self.id_type).tobytes()
    with open(self.folder / IDS, 'ab') as file:
      file.write(content)
    self.sum, self.number = zlib.crc32(content, self.sum), self.number + len(texts)
    if self.number % BLOCK == 0:
      self.sums, self.sum = [*self.sums, self.sum], 0
    lengths = np.array([[len(part) for part in ids] for ids in texts], np.int64)
    ends = self.tokens + np.cumsum(lengths).reshape(lengths.shape)
    self.ends.append(ends)
    self.tokens = int(ends[-1, -1])

  def close(self, facts, labels):
    """Finishes the folder and returns the content of examples.json. facts: its further content.
    labels: an iterable of arrays [n] or [n, L], which one after the other are labels.npy."""
    arrays = {ENDS: np.concatenate(self.ends)}
    arrays[SUMS] = np.array(self.sums + [self.sum] * bool(self.number % BLOCK), np.uint32)
    for name, array in arrays.items():
      np.save(self.folder / name, array)
    out, first = None, 0
    for part in labels:
      if out is None:
        shape = self.number, *part.shape[1:]
        out = np.lib.format.open_memmap(self.folder / LABELS, 'w+', part.dtype, shape)
      out[first : first + len(part)] = part
      first += len(part)
    out.flush()
    self.tokenizer.save(self.folder)
    meta = facts | {
      'examples': self.number,
      'tokens': self.tokens,
      'vocabulary': self.tokenizer.fingerprint,
      'checksums': {name: _checksum(self.folder / name) for name in (*arrays, LABELS)},
    }
    meta['seal'] = seal(meta)
    write_whole(self.folder / META, json.dumps(meta, indent=2, ensure_ascii=False) + '\n')
    return meta


class Prepared:
  """A folder of prepared examples, opened. meta: examples.json. labels: see labels.npy. InputError
  if a file is missing or damaged."""

  def __init__(self, folder):
    self.folder = Path(folder).expanduser()
    self.meta = files.json_of(self.folder / META)
    if self.meta.get('seal') != seal(self.meta):
      raise self._damaged(META)
    for name, checksum in self.meta['checksums'].items():
      if not (self.folder / name).is_file() or _checksum(self.folder / name) != checksum:
        raise self._damaged(name)
    self.tokenizer = tokenizers.load_folder(self.folder)
    if self.tokenizer.fingerprint != self.meta['vocabulary']:
      raise self._damaged('the vocabulary')
    load = lambda name: np.load(self.folder / name, mmap_mode='r')
    self.ends, self.labels, self.sums = load(ENDS), load(LABELS), load(SUMS)
    path, dtype = self.folder / IDS, id_type(self.tokenizer)
    if not path.is_file() or path.stat().st_size != self.meta['tokens'] * np.dtype(dtype).itemsize:
      raise self._damaged(IDS)
    self.ids = np.memmap(path, dtype, 'r', shape=(self.meta['tokens'],))
    self.sides, self.intact = self.ends.shape[1], {}  # {block: whether its checksum holds}

  def __len__(self):
    return len(self.ends)

  def lengths(self):
    """[E, sides] int32, the token count of each text."""
    flat = np.diff(self.ends.reshape(-1), prepend=0)
    return flat.astype(np.int32).reshape(self.ends.shape)

  def texts(self, e):
    """The texts of an example, as one or two id arrays."""
    self._check(e // BLOCK)
    begin = int(self.ends[e - 1, -1]) if e else 0
    return tuple(
      np.asarray(self.ids[a:b], np.int32) for a, b in zip([begin, *self.ends[e]], self.ends[e])
    )

  def _check(self, block):
    first, last = block * BLOCK, min((block + 1) * BLOCK, len(self))
    if block not in self.intact:
      begin = int(self.ends[first - 1, -1]) if first else 0
      ids = self.ids[begin : int(self.ends[last - 1, -1])]
      self.intact[block] = zlib.crc32(ids) == self.sums[block]
    if not self.intact[block]:
      raise DamagedRecord(
        f'{self.folder / IDS}: examples {first:,} to {last - 1:,} are damaged; prepare them again, '
        'or set data.skip_damaged=true to leave such rows empty and count them'
      )

  def _damaged(self, name):
    return InputError(f'{name} of {self.folder} is missing or damaged; prepare the examples again')


def _checksum(path):
  """The CRC-32 of a file."""
  checksum = 0
  with open(path, 'rb') as file:
    while part := file.read(2**20):
      checksum = zlib.crc32(part, checksum)
  return checksum
