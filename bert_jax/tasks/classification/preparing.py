"""Writes a table of labelled texts as ids of tokens and of labels (rows/prepared_examples.py)."""

import itertools
import logging
import time
from collections import Counter
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
  problems, writer = Problems('train', config.data.skip_damaged), None
  labels = Labels(table)
  with tqdm.tqdm(desc='preparing', unit=' examples', unit_scale=True, disable=None) as bar:
    examples = read(config, 'train', problems, whole=True)
    while part := list(itertools.islice(examples, prepared_examples.PART)):
      writer = writer or prepared_examples.Writer(out, tokenizer)  # the data could be read
      sides = [tokenizer.ids_batch(texts) for texts in zip(*(x.texts for x in part))]
      writer.add(list(zip(*sides)))
      labels.add([x.label for x in part])
      bar.update(len(part))
  facts = {
    'data': config.data.train,
    **{name: table[name] for name in (*KIND, *COLUMNS)},
    'labels': list(labels.label_set),
    'label_counts': dict(labels.counts),
    'counts': dict(problems.counts),
  }
  meta = writer.close(facts, labels.arrays())
  problems.log()
  seconds = time.perf_counter() - started
  log.info(
    '%s: %s examples of %s tokens in %.0f s, %s a second',
    out,
    f'{meta["examples"]:,}',
    f'{meta["tokens"]:,}',
    seconds,
    f'{meta["examples"] / seconds:,.0f}',
  )
  return meta


class Labels:
  """The labels of examples, kept as numbers. table: config.table."""

  def __init__(self, table):
    self.table, self.counts, self.parts = table, Counter(), []
    self.number = {name: k for k, name in enumerate(names(table.labels))}

  def add(self, labels):
    """Adds the labels of some examples, in the form of reading.Example."""
    if self.table.regression:
      self.parts.append(np.array(labels, np.float32))
      return
    of_texts = labels if self.table.multi_label else [(label,) for label in labels]
    for names_of_text in of_texts:
      self.counts.update(names_of_text)
      for name in names_of_text:
        self.number.setdefault(name, len(self.number))
    if len(self.number) > MOST_LABELS:
      label_set(self.table, self.number)  # an InputError
    numbers = np.array([self.number[name] for x in of_texts for name in x], np.int32)
    self.parts.append((np.array([len(x) for x in of_texts], np.int32), numbers))

  @property
  def label_set(self):
    """The label set: from the config, or the labels that occur, sorted."""
    if self.table.regression:
      return ()
    return tuple(self.table.labels) or label_set(self.table, set(self.counts))

  def arrays(self):
    """Yields the parts of labels.npy."""
    place = {name: k for k, name in enumerate(names(self.label_set))}
    order = np.array([place[name] for name in self.number], np.int32)
    for part in self.parts:
      if self.table.regression:
        yield part
      elif self.table.multi_label:
        sizes, numbers = part
        out = np.zeros((len(sizes), len(place)), np.float32)
        out[np.repeat(np.arange(len(sizes)), sizes), order[numbers]] = 1
        yield out
      else:
        yield order[part[1]]
