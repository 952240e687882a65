"""Labelled texts as token ids, one after the other, so that millions of them take little memory."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.corpus.tokenized import offsets
from bert_jax.tasks.classification import label_sets
from bert_jax.tasks.classification.reading import Example
from bert_jax.tokenizers import Tokenizer

PART = 4096  # examples that are encoded at once


class Ids(Sequence):
  """The ids of E texts. ids: of all of them, without special tokens. sizes: [E] their numbers."""

  def __init__(self, ids: np.ndarray, sizes: np.ndarray):
    self.ids, self.begins = ids, offsets(sizes)

  def __len__(self) -> int:
    return len(self.begins) - 1

  def __getitem__(self, i: Any) -> Any:
    return self.ids[self.begins[i] : self.begins[i + 1]]


class Encoded(NamedTuple):
  examples: list[Example]  # []: they are not kept
  sides: list[Ids]  # of the first texts and, of pairs, of the second ones
  sizes: np.ndarray  # [sides, E] their tokens
  labels: np.ndarray  # [E] or [E, L], see label_sets.label_array
  known: np.ndarray  # [E] whether there is a label


def encode(
  config: ConfigDict, tokenizer: Tokenizer, examples: Iterable[Example], keep: bool
) -> Encoded:
  """Encodes examples. keep: also keep their texts."""
  table, examples = config.table, iter(examples)
  names = label_sets.values(table)
  kept, sizes, labels, known = [], [], [], []
  ids: list[bytearray] = []  # of the first texts and, of pairs, of the second ones
  while part := list(itertools.islice(examples, PART)):
    sides = [tokenizer.ids_batch(texts) for texts in zip(*(example.texts for example in part))]
    ids = ids or [bytearray() for _ in sides]
    for of_side, side in zip(ids, sides):
      of_side += np.concatenate(side).tobytes()
    sizes.append([list(map(len, side)) for side in sides])
    of_part = [example.label for example in part]
    labels.append(label_sets.label_array(of_part, names, table))
    known += [label is not None for label in of_part]
    if keep:
      kept += part
  sizes = np.concatenate(sizes, axis=1)
  sides = [Ids(np.frombuffer(held, np.int32), of_side) for held, of_side in zip(ids, sizes)]
  return Encoded(kept, sides, sizes, np.concatenate(labels), np.array(known))
