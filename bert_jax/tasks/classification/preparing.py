"""Writes a table of labelled texts as ids of tokens and of labels (rows/prepared_examples.py)."""

import itertools
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tqdm
from ml_collections import ConfigDict

from bert_jax.rows import prepared_examples
from bert_jax.tasks.classification.prepared import COLUMNS, KIND
from bert_jax.tasks.classification.reading import MOST_LABELS, label_set, names, read
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tokenizers import Tokenizer

log = logging.getLogger('bert_jax')


def prepare(config: ConfigDict, tokenizer: Tokenizer, out: Path) -> dict[str, Any]:
  """Writes the training examples of a config to a folder; returns the content of examples.json."""
  table, started = config.table, time.perf_counter()
  problems, labels = Problems('train', config.data.skip_damaged), Labels(table)
  examples = read(config, 'train', problems, whole=True)
  parts = iter(lambda: list(itertools.islice(examples, prepared_examples.PART)), [])
  first = next(parts)
  writer = prepared_examples.Writer(out, tokenizer)  # now that the data could be read
  with tqdm.tqdm(desc='preparing', unit=' examples', unit_scale=True, disable=None) as bar:
    for part in itertools.chain([first], parts):
      sides = [tokenizer.ids_batch(texts) for texts in zip(*(x.texts for x in part))]
      writer.add(list(zip(*sides)))
      labels.add([x.label for x in part])
      bar.update(len(part))
  facts = {'data': config.data.train} | {name: table[name] for name in (*KIND, *COLUMNS)}
  facts |= {'labels': list(labels.label_set), 'label_counts': dict(labels.counts)}
  meta = writer.close(facts | {'counts': dict(problems.counts)}, labels.arrays())
  problems.log()
  seconds, number = time.perf_counter() - started, meta['examples']
  size = f'{number:,} examples of {meta["tokens"]:,} tokens in {seconds:.0f} s'
  log.info('%s: %s, %s a second', out, size, f'{number / seconds:,.0f}')
  return meta


class Labels:
  """The labels of examples, kept as numbers. table: config.table."""

  def __init__(self, table: ConfigDict):
    self.table, self.counts, self.parts = table, Counter(), []
    self.number = {name: k for k, name in enumerate(names(table.labels))}

  def add(self, labels: Sequence[Any]) -> None:
    """Adds the labels of some examples, in the form of reading.Example."""
    if self.table.regression:
      self.parts.append(np.array(labels, np.float32))
      return
    of_texts = labels if self.table.multi_label else [(label,) for label in labels]
    every = list(itertools.chain.from_iterable(of_texts))
    self.counts.update(every)
    for name in every:
      self.number.setdefault(name, len(self.number))
    if len(self.number) > MOST_LABELS:
      label_set(self.table, self.number)  # an InputError
    sizes = np.array([len(x) for x in of_texts], np.int32)
    self.parts.append((sizes, np.array([self.number[name] for name in every], np.int32)))

  @property
  def label_set(self) -> tuple[str, ...]:
    """The label set: from the config, or the labels that occur, sorted; () for a regression."""
    if self.table.regression:
      return ()
    return tuple(self.table.labels) or label_set(self.table, self.counts)

  def arrays(self) -> Iterator[np.ndarray]:
    """Yields the parts of labels.npy."""
    if self.table.regression:
      yield from self.parts
      return
    place = {name: k for k, name in enumerate(names(self.label_set))}
    order = np.array([place[name] for name in self.number], np.int32)
    for sizes, numbers in self.parts:
      if self.table.multi_label:
        out = np.zeros((len(sizes), len(place)), np.float32)
        out[np.repeat(np.arange(len(sizes)), sizes), order[numbers]] = 1
        yield out
      else:
        yield order[numbers]
