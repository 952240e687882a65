"""Labelled texts as token ids: in memory or, of a training table with LARGE examples or more, in
temporary files that are mapped. Either way a run has the same rows."""

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.corpus.tokenized import offsets
from bert_jax.tasks.classification import label_sets
from bert_jax.tasks.classification.reading import Example, read
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tokenizers import Tokenizer

LARGE = 100_000  # examples of a table that is mapped
PART = 4096  # examples that are encoded at once


class Encoded(NamedTuple):
  """The examples of a split. examples: (): they are mapped, and their texts are not kept."""

  examples: Sequence[Example]
  sides: list[Sequence[np.ndarray]]  # the ids of the first texts and, of pairs, of the second ones
  sizes: np.ndarray  # [sides, E] their tokens
  labels: np.ndarray  # [E] or [E, L], see label_sets.label_array
  known: np.ndarray  # [E] whether there is a label


class MappedTexts(Sequence):
  """The ids of texts, read from a file when they are asked for. sizes: [E] their tokens."""

  def __init__(self, file: Any, sizes: np.ndarray):
    self.ids, self.begins = np.asarray(np.memmap(file, np.int32, 'r')), offsets(sizes)

  def __len__(self) -> int:
    return len(self.begins) - 1

  def __getitem__(self, i: Any) -> Any:
    return self.ids[self.begins[i] : self.begins[i + 1]]


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
  examples, few = read(config, split, problems), config.task.train_examples
  if split != 'train' or few:
    return in_memory(config, tokenizer, problems.chosen(list(examples), few))
  first = list(itertools.islice(examples, LARGE))
  if len(first) < LARGE:
    return in_memory(config, tokenizer, first)
  return _mapped(config, tokenizer, itertools.chain(first, examples))


def _mapped(config: ConfigDict, tokenizer: Tokenizer, examples: Iterator[Example]) -> Encoded:
  """The Encoded examples of training data, whose ids are in a file for each side."""
  sizes, labels = [], []
  files = [tempfile.TemporaryFile() for _ in range(2 if config.table.pair_column else 1)]
  while part := list(itertools.islice(examples, PART)):
    encoded = in_memory(config, tokenizer, part)
    for file, texts in zip(files, encoded.sides, strict=True):
      for ids in texts:
        file.write(np.ascontiguousarray(ids, np.int32).tobytes())
    sizes.append(encoded.sizes)
    labels.append(encoded.labels)
  sizes, labels = np.concatenate(sizes, axis=1), np.concatenate(labels)
  sides = []
  for file, of_side in zip(files, sizes):
    file.flush()
    sides.append(MappedTexts(file, of_side))
  return Encoded((), sides, sizes, labels, known=np.ones(len(labels), bool))
