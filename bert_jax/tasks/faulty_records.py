"""Counts faults in the data of a task by kind and names the first places of each.

A record that cannot be read (a column is missing, a label is unknown) stops the run with an error
that names its place; with data.skip_damaged=true it is left out and counted. A fault that harms
nothing (an empty text, a wrong offset) is kept or mended, and counted. Where nothing can be read,
the run stops in any case, with the cause and the count.
"""

import functools
import logging
from collections import Counter, defaultdict

import numpy as np

from bert_jax.errors import InputError, about
from bert_jax.text import files, tables

log = logging.getLogger('bert_jax')

NAMED = 3  # places that are named of each kind
REMEMBERED = 1_000_000  # ids kept to notice repeated ones; each takes 0.1 kB


def names_data(read):
  """Decorates a generator read(config, split, problems): its errors say data.train or data.eval."""

  @functools.wraps(read)
  def wrapped(config, split, problems, **options):
    with about(f'data.{split}'):
      yield from read(config, split, problems, **options)

  return wrapped


class Problems:
  """The faults in the data of one split, and its counts of records, tokens and so on.
  counts: {what is counted: number}; readers increase it, too. places: {kind of fault: the first
  places where it was met}. skip: leave out records that cannot be used, instead of an error."""

  def __init__(self, split, skip=False):
    self.split, self.skip = split, skip
    self.counts = Counter()
    self.places = defaultdict(list)
    self.ids = set()  # of the first REMEMBERED records that could be read
    self.cause, self.left_out = '', 0  # why the first record was left out; how many were

  def note(self, kind, where):
    """Counts a fault that harms nothing."""
    self.counts[kind] += 1
    if len(self.places[kind]) <= NAMED and where not in self.places[kind]:
      self.places[kind].append(where)

  def note_id(self, record_id, where, fate='kept'):
    """Counts the id of a record if it is a repeated one. None: the record has no id."""
    if record_id is not None and record_id in self.ids:
      self.note(f'ids that came before ({fate})', where)
    if len(self.ids) < REMEMBERED:
      self.ids.add(record_id)

  def chosen(self, examples, number):
    """All examples or, in training, `number` of them (0: all), the same ones for every seed."""
    if self.split != 'train' or not 0 < number < len(examples):
      return examples
    keep = np.random.default_rng(0).permutation(len(examples))[:number]
    self.counts['not used (task.train_examples)'] = len(examples) - number
    return [examples[i] for i in sorted(keep)]

  def wrong(self, where, sentence, kind):
    """Raises InputError for an unusable record, or counts it if unusable records are left out."""
    if not self.skip:
      fits = 'data.skip_damaged=true leaves such records out'
      advice = fits if self.ids else 'no record before it could be read: is it the right file?'
      raise InputError(f'{where}: {sentence} ({advice}).')
    self.cause = self.cause or f'{where}: {sentence}'
    self.left_out += 1
    self.note(f'{kind} (skipped)', where)

  def nothing(self, spec, kind):
    """Raises InputError for data that holds no records of a kind, such as 'questions'."""
    why = 'is it the right file?'
    if self.cause:
      why = f'all {self.left_out:,} records were left out, the first of them since {self.cause}.'
    raise InputError(f'data.{self.split}={spec} holds no {kind}; {why}')

  def rows(self, spec, validation='validation', of='', **options):
    """Yields (where, row) of a split, see tables.records. validation: TFDS' name of eval. of: the
    split, if not self.split."""
    split = 'train' if (of or self.split) == 'train' else validation
    options |= {'split': split, 'counts': self.counts, 'wrong': self.wrong}
    try:
      yield from tables.records(spec, **options)
    except InputError:
      if self.cause and not self.counts['records']:
        self.nothing(spec, 'records')
      raise

  def columns(self, row, names, where, hint=''):
    """The values of some columns of a row; None, and the row is `wrong`, if one is missing."""
    place = getattr(row, 'header', '') or where
    try:
      return [tables.column(row, name, place, hint) for name in names]
    except InputError as error:
      sentence = str(error).removeprefix(f'{place} ')
    return self.wrong(place, sentence, 'rows without a column')

  def json(self, path, where):
    """The content of a JSON file; None, and the file is `wrong`, if it cannot be read."""
    return files.whole_json(path, where, self.counts, self.wrong)

  def log(self, source=None):
    """Logs how many rows the examples of `source` take, and all counts, with places of faults."""
    if source is not None:
      number = len(source.texts)
      log.info(
        '%s: %s examples in %s rows of %d tokens (%.1f in each, %.0f %% filled)',
        self.split,
        f'{number:,}',
        f'{len(source):,}',
        source.seq_length,
        number / max(1, len(source)),
        100 * source.fill,
      )
    parts = []
    for kind, number in self.counts.items():
      places = self.places.get(kind, [])
      more = ', ...' if len(places) > NAMED else ''
      named = f' ({", ".join(places[:NAMED])}{more})' if places else ''
      parts.append(f'{number:,} {kind.replace("_", " ")}{named}')
    log.info('%s: %s', self.split, ', '.join(parts))
