"""Labelled texts as token ids: in memory or, of a training table with LARGE examples or more, in
files of the user's cache that are mapped. Either way a run has the same rows.

  ids.bin     the int32 ids of all texts, one after the other, without special tokens
  sizes.npy   [sides, E] the tokens of each text; sides: 1, or 2 of pairs
  labels.npy  see label_sets.label_array
  facts.json  the counts of the reader, and the checksum of the other files
"""

import itertools
import json
import os
import tempfile
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.buckets import remove_tree
from bert_jax.copies import cache_folder
from bert_jax.corpus.tokenized import digest_of, offsets
from bert_jax.errors import about, log
from bert_jax.files import Path, write_json
from bert_jax.tasks.classification import label_sets
from bert_jax.tasks.classification.reading import Example, read
from bert_jax.tasks.faulty_records import Problems
from bert_jax.text import arrow, files
from bert_jax.tokenizers import Tokenizer

LARGE = 100_000  # examples of a table that is mapped
PART = 4096  # examples that are encoded at once
IDS, SIZES, LABELS, FACTS = 'ids.bin', 'sizes.npy', 'labels.npy', 'facts.json'
# Fields of a table that do not bear on what is read of it.
OF_THE_MODEL = 'prior', 'class_weights', 'pooling', 'ends', 'long_texts', 'eval_share'


class Encoded(NamedTuple):
  """The examples of a split. examples: (): they are mapped, and their texts are not kept."""

  examples: Sequence[Example]
  sides: list[Sequence[np.ndarray]]  # the ids of the first texts and, of pairs, of the second ones
  sizes: np.ndarray  # [sides, E] their tokens
  labels: np.ndarray  # [E] or [E, L], see label_sets.label_array
  known: np.ndarray  # [E] whether there is a label
  digest: str = ''  # stands for all of it; '': it is not known


class MappedTexts(Sequence):
  """The ids of texts, read from a file when they are asked for."""

  def __init__(self, ids: np.ndarray, begins: np.ndarray, sizes: np.ndarray):
    self.ids, self.begins, self.sizes = ids, begins, sizes

  def __len__(self) -> int:
    return len(self.begins)

  def __getitem__(self, i: Any) -> Any:
    return self.ids[self.begins[i] : self.begins[i] + self.sizes[i]]


def in_memory(config: ConfigDict, tokenizer: Tokenizer, examples: Sequence[Example]) -> Encoded:
  labels = [example.label for example in examples]
  sides: list[Any] = []
  for side in range(len(examples[0].texts)):
    sides.append(tokenizer.ids_batch([example.texts[side] for example in examples]))
  return Encoded(
    examples,
    sides,
    sizes=np.array([list(map(len, side)) for side in sides], np.int64),
    labels=label_sets.label_array(labels, label_sets.names(config.table.labels), config.table),
    known=np.array([label is not None for label in labels]),
  )


def of_split(config: ConfigDict, tokenizer: Tokenizer, split: str, problems: Problems) -> Encoded:
  """The examples of a split, or as many as task.train_examples says; mapped if they are many."""
  folder = _folder(config, tokenizer) if split == 'train' else None
  facts = _facts(folder) if folder else None
  if folder and facts:
    return _mapped(config, folder, facts, problems)
  examples = read(config, split, problems)
  few = list(itertools.islice(examples, LARGE)) if folder else list(examples)
  if folder and len(few) == LARGE:
    facts = _write(config, tokenizer, folder, itertools.chain(few, examples), problems)
    return _mapped(config, folder, facts, problems)
  return in_memory(config, tokenizer, problems.chosen(few, config.task.train_examples))


def _folder(config, tokenizer):
  """Where the examples of data.train are kept; None: they are not, since they are in no files of
  this machine, or a share of them is held out."""
  if config.table.eval_share or not config.data.train:
    return None
  table, data = config.table, config.data
  sources: list[Any] = []
  with about('data.train'):
    for _, spec in files.parts(data.train):
      if spec.startswith('hf:'):
        sources.append(arrow.hf_set(spec, 'train')[2])
        continue
      if files.is_named(spec):
        return None
      for path in files.split_files(spec, 'train'):
        if not os.path.isfile(path):
          return None
        state = os.stat(path)
        sources.append((os.path.abspath(path), state.st_size, state.st_mtime_ns))
  fields = {name: x for name, x in table.items() if name not in OF_THE_MODEL}
  # Evaluation data may tell how numbers are read, see faulty_records.decimal_commas.
  other_numbers = data.eval if table.regression else ''
  reading = data.skip_damaged, data.text_encoding, other_numbers
  facts = (sources, sorted(fields.items()), reading, tokenizer.fingerprint)
  return Path(cache_folder() / 'examples' / digest_of([repr(facts)]))


def _write(config, tokenizer, folder, examples, problems):
  """Writes a folder of examples, which appears whole; returns its facts."""
  remove_tree(folder)  # a damaged one
  folder.parent.mkdir(parents=True, exist_ok=True)
  sizes, labels = [], []
  with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
    unfinished = Path(scratch) / 'whole'
    unfinished.mkdir()
    with (unfinished / IDS).open('wb') as file:
      while part := list(itertools.islice(examples, PART)):
        encoded = in_memory(config, tokenizer, part)
        for texts in zip(*encoded.sides):  # the texts of a pair stand side by side
          for ids in texts:
            file.write(np.ascontiguousarray(ids, np.int32).tobytes())
        sizes.append(encoded.sizes)
        labels.append(encoded.labels)
    np.save(unfinished / SIZES, np.concatenate(sizes, axis=1).astype(np.int32))
    np.save(unfinished / LABELS, np.concatenate(labels))
    facts = {'counts': dict(problems.counts), 'checksum': _checksum(unfinished)}
    write_json(unfinished / FACTS, facts)
    try:
      os.rename(unfinished, folder)
    except OSError:
      if not folder.exists():  # else another process was faster
        raise
  log.info('the token ids of data.train are kept in %s', folder)
  return facts


def _facts(folder):
  """The facts of a folder of examples; None: it is not there, or damaged."""
  try:
    facts = json.loads((folder / FACTS).read_text())
    return facts if facts['checksum'] == _checksum(folder) else None
  except (OSError, ValueError, KeyError):
    return None


def _checksum(folder):
  """The CRC-32 of the arrays in a folder, one after the other."""
  checksum = 0
  for name in (IDS, SIZES, LABELS):
    with (folder / name).open('rb') as file:
      while block := file.read(1 << 20):
        checksum = zlib.crc32(block, checksum)
  return checksum


def _mapped(config, folder, facts, problems):
  """The Encoded examples in a folder."""
  sizes = np.load(folder / SIZES)
  labels = np.load(folder / LABELS, mmap_mode='r')
  ids = np.asarray(np.memmap(folder / IDS, np.int32, 'r'))
  begins = offsets(sizes.T.reshape(-1))[:-1].reshape(sizes.T.shape).T
  problems.counts = Counter(facts['counts'])
  few, size = config.task.train_examples, sizes.shape[1]
  numbers = problems.chosen(range(size), few)
  if len(numbers) < size:
    sizes, begins, labels = sizes[:, numbers], begins[:, numbers], labels[numbers]
  return Encoded(
    (),
    [MappedTexts(ids, begins[side], sizes[side]) for side in range(len(sizes))],
    sizes,
    labels,
    known=np.ones(len(labels), bool),
    digest=digest_of([str(facts['checksum']), str(few)]),
  )
