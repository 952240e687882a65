"""What is wrong with a task's data: counted, and the places named.

A record that cannot be read (a column is missing, a label is unknown) stops the run with its place;
with data.skip_damaged=true it is left out, counted and named. A fault that harms nothing (an empty
text, an offset that is off) is kept or mended, counted and named.
"""

import logging
from collections import Counter, defaultdict

import numpy as np

from bert_jax.errors import InputError
from bert_jax.text import tables

log = logging.getLogger('bert_jax')

NAMED = 3  # places told of each kind


class Problems:
  """Of one split. counts is for readers to add to, such as tables.records."""

  def __init__(self, split, skip=False):
    self.split, self.skip = split, skip
    self.counts = Counter()
    self.places = defaultdict(list)
    self.ids = set()

  def note(self, kind, where):
    """A fault that harms nothing."""
    self.counts[kind] += 1
    if len(self.places[kind]) < NAMED:
      self.places[kind].append(where)

  def seen(self, own, where, fate='kept'):
    """Notes an id that came before."""
    if own in self.ids:
      self.note(f'ids that came before ({fate})', where)
    self.ids.add(own)

  def chosen(self, examples, number):
    """The examples, or that many of the training ones (0: all), the same for every seed."""
    if self.split != 'train' or not 0 < number < len(examples):
      return examples
    keep = np.random.default_rng(0).permutation(len(examples))[:number]
    self.counts['not used (task.train_examples)'] = len(examples) - number
    return [examples[i] for i in sorted(keep)]

  def wrong(self, where, sentence, kind):
    """A record that cannot be used: InputError; or a note, and the caller leaves it out."""
    if not self.skip:
      raise InputError(f'{where}: {sentence} (data.skip_damaged=true leaves such records out).')
    self.note(f'{kind} (skipped)', where)

  def columns(self, row, names, where, hint=''):
    """A table's row's values in these columns; one that is not there makes it wrong, and None."""
    try:
      return [tables.column(row, name, where) for name in names]
    except InputError as error:
      sentence = str(error).removeprefix(f'{where} ').rstrip('.') + hint
    return self.wrong(where, sentence, 'rows without a column')

  def log(self):
    """One line: what there is, what was wrong with it and where."""
    told = []
    for kind, number in self.counts.items():
      places = self.places.get(kind, [])
      more = ', ...' if number > len(places) else ''
      named = f' ({", ".join(places)}{more})' if places else ''
      told.append(f'{number:,} {kind.replace("_", " ")}{named}')
    log.info('%s: %s', self.split, ', '.join(told))

  def log_rows(self, source):
    """One line: how examples became rows."""
    number = len(source.texts)
    log.info(
      '%s: %s examples in %s rows of %d tokens (%.1f in each, %.0f %% filled)',
      self.split, f'{number:,}', f'{len(source):,}', source.seq_length,
      number / max(1, len(source)), 100 * source.fill,
    )  # fmt: skip
