"""Prepares a large table of labelled texts for fine-tuning: its token ids are put on the disk.

    python -m bert_jax.tools.prepare_examples --config configs/finetune.py:task=table \
        --config.data.train='big/*.tsv' --config.table.text_column=text --vocab SRC --out E
    python -m bert_jax.train --config configs/finetune.py:task=table --workdir W \
        --config.data.train=E --config.data.eval=dev.tsv --config.table.text_column=text

The table is read and checked as a training reads it, once. A run on the folder E begins in seconds
and holds little more than the numbers of its texts and labels; one on the table holds all texts.
Texts are kept whole; a run cuts them (task.max_length, table.long_texts). The vocabulary is that of
--vocab, the folder of tools.vocab, of a run or of released weights, which then start the training.
"""

import itertools
import json
import logging
import time
from collections import Counter
from pathlib import Path

import numpy as np
import tqdm

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.command_line import command_line
from bert_jax.convert import hub
from bert_jax.errors import InputError
from bert_jax.rows import prepared_examples
from bert_jax.tasks.classification.prepared import COLUMNS, KIND
from bert_jax.tasks.classification.reading import MOST_LABELS, label_set, names, read
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tools import arguments
from bert_jax.workdir import lock

log = logging.getLogger('bert_jax')


def prepare(config, vocab, out):
  """Writes the training examples of a config to the folder `out`; returns its examples.json."""
  table, started = config.table, time.perf_counter()
  tokenizer = tokenizers.load_folder(hub.folder(vocab))
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
    """labels: those of some examples, as reading.Example has them."""
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
    """The label set: that of the config, or the labels that there are, sorted."""
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


def main(argv=None):
  parser = arguments.parser('prepare_examples', __doc__)
  add = parser.add_argument
  add('--config', required=True, metavar='FILE[:ARGS]', help='such as configs/finetune.py')
  add('--vocab', required=True, help='folder of a vocabulary, of a run or of released weights')
  add('--out', required=True, help='folder to write')
  args, overrides = parser.parse_known_args(argv)
  with command_line():
    config, out = config_lib.load(args.config, overrides), Path(args.out).expanduser()
    if config.objective != 'classification':
      raise InputError(f'--config is of {config.objective}; name one of texts with labels')
    if not config.data.train or prepared_examples.is_prepared(config.data.train):
      raise InputError('name the table in --config.data.train')
    begun = prepared_examples.unfinished(out)
    there = {out} if out.is_file() else set(out.iterdir()) if out.is_dir() else set()
    if there - {*begun, out / lock.NAME}:
      raise InputError(f'{out} is there already; give --out a new or an empty folder')
    arguments.check_writable(out)
    with lock.held(out):
      for path in begun:
        path.unlink()
      meta = prepare(config, args.vocab, out)
    print(json.dumps({'out': str(out), **meta}, ensure_ascii=False))


if __name__ == '__main__':
  main()
