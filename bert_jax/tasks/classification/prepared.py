"""Labelled texts as ids of tokens and of labels on the disk (rows/prepared_examples.py): `prepare`
writes them for tools/prepare_examples.py, `Texts` reads them in a training."""

import itertools
import time
from collections import Counter
from typing import Any

import numpy as np
import tqdm
from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.errors import InputError, listed, log
from bert_jax.files import Path
from bert_jax.rows import prepared_examples
from bert_jax.rows.examples import Examples
from bert_jax.rows.prepared_examples import Prepared
from bert_jax.rows.windows import cut
from bert_jax.tasks import labelled
from bert_jax.tasks.classification import label_sets
from bert_jax.tasks.classification.label_sets import names
from bert_jax.tasks.classification.reading import read, with_separator
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tokenizers import Tokenizer

# Fields that are fixed when a table is prepared.
KIND = 'regression', 'multi_label'
COLUMNS = 'text_column', 'pair_column', 'label_column'


def prepare(config: ConfigDict, tokenizer: Tokenizer, out: Path) -> dict[str, Any]:
  """Writes the training examples of a config to a folder; returns the content of examples.json."""
  config = with_separator(config)
  table, started, arrays, counts = config.table, time.perf_counter(), [], Counter()
  problems = Problems.of(config, 'train')
  examples = read(config, 'train', problems, whole=True)
  parts = iter(lambda: list(itertools.islice(examples, prepared_examples.PART)), [])
  first = next(parts)
  writer = prepared_examples.Writer(out, tokenizer)  # now that the data could be read
  with tqdm.tqdm(desc='preparing', unit=' examples', unit_scale=True, disable=None) as bar:
    for part in itertools.chain([first], parts):
      sides = [tokenizer.ids_batch(texts) for texts in zip(*(x.texts for x in part))]
      writer.add(list(zip(*sides)))
      labels = [x.label for x in part]
      if not table.regression:
        counts.update(itertools.chain.from_iterable(labels if table.multi_label else zip(labels)))
      if len(counts) > label_sets.MOST_LABELS:
        label_sets.label_set(table, counts)  # an InputError
      array = label_sets.label_array(labels, list(counts), table)
      arrays.append((len(part), *np.nonzero(array)) if table.multi_label else array)
      bar.update(len(part))
  if not table.labels and label_sets.no_labels(counts):
    means = f'{config.data.train} has the label -1 beside 0, 1, 2, which says that there is none'
    labels = ','.join(sorted(set(counts) - {'-1'}))
    raise InputError(f'{means}; set table.labels={labels}, which leaves such rows out.')
  named = counts if table.labels else label_sets.numbers_whole(counts)
  known = () if table.regression else table.labels or label_sets.label_set(table, named)
  facts = {'data': config.data.train} | {name: table[name] for name in (*KIND, *COLUMNS)}
  facts |= {'labels': list(known), 'label_counts': dict(named), 'counts': dict(problems.counts)}
  meta = writer.close(facts, _in_order(arrays, counts, names(known)))
  problems.log()
  seconds, number = time.perf_counter() - started, meta['examples']
  size = f'{number:,} examples of {meta["tokens"]:,} tokens in {seconds:.0f} s'
  log.info('%s: %s, %s a second', out, size, f'{number / seconds:,.0f}')
  return meta


def _in_order(arrays, found, known):
  """Yields label arrays with labels in the order of the label set, not in which they were found."""
  of = lambda label: label if label in known else label.removesuffix('.0')  # see numbers_whole
  order = np.array([known.index(of(label)) for label in found], np.int32)
  for array in arrays:
    if isinstance(array, tuple):  # of several labels: (examples, the places that are 1)
      size, rows, columns = array
      out = np.zeros((size, len(known)), np.float32)
      out[rows, order[columns]] = 1
      yield out
    else:
      yield array if array.dtype.kind == 'f' else order[array]


def resolve(config: ConfigDict, prepared: Prepared) -> ConfigDict:
  """Fills labels and vocabulary of prepared examples into a config, or raises InputError."""
  config, meta = config.copy_and_resolve_references(), prepared.meta
  _check(config.table, config.data.train, prepared)
  if not config.table.regression:
    config.table.labels = tuple(meta['labels'])
  if config.table.class_weights == ('balanced',):
    numbers, labels = _chosen(config, prepared, Problems('train'))
    known = names(meta['labels'])
    counts = labels.sum(0, float) if labels.ndim == 2 else np.bincount(labels, None, len(known))
    counts = dict(zip(known, counts.astype(int).tolist(), strict=True))
    with config.ignore_type():
      config.table.class_weights = label_sets.balanced(known, counts, len(numbers))
  if not (config.init_from or config.tokenizer.path):
    config.tokenizer.path = str(tokenizers.in_folder(prepared.folder))
    config.tokenizer.do_lower_case = getattr(prepared.tokenizer, 'do_lower_case', True)
    config.model.vocab_size = prepared.tokenizer.vocab_size
  return config


def _check(table, folder, prepared):
  meta, long = prepared.meta, f'table.long_texts={table.long_texts}'
  for name in KIND:
    if table[name] != meta[name]:
      was = f'{folder} was prepared with table.{name}={str(meta[name]).lower()}'
      raise InputError(f'{was}; set it so, or prepare the table again.')
  if bool(table.pair_column) != (prepared.sides == 2):
    held, other = ('pairs', 'single texts') if prepared.sides == 2 else ('single texts', 'pairs')
    wanted = f'table.pair_column asks for {other}; set or empty it'
    raise InputError(f'{folder} holds {held} and {wanted}.')
  for name in COLUMNS:
    if table[name] != meta.get(name, table[name]):  # earlier versions did not record it
      was = f'{folder} was prepared with table.{name}={meta[name]}'
      log.warning('%s, and other tables are read with %s: is it the same?', was, table[name])
  if not table.regression and tuple(table.labels) not in ((), tuple(meta['labels'])):
    setting = f'table.labels is {listed(names(table.labels))}, and the labels of {folder} are'
    raise InputError(f'{setting} {listed(meta["labels"])}; leave table.labels empty.')
  if table.eval_share:
    share = f'table.eval_share={table.eval_share} is a share of a table and {folder} is prepared'
    raise InputError(f'{share}; name a table in data.eval.')
  if table.long_texts in ('windows', 'hierarchical'):
    one = f'{long} makes several examples of a text, and {folder} has one of each'
    raise InputError(f'{one}; use head, tail or head_tail.')


def _chosen(config, prepared, problems):
  """(the numbers, the labels) of the examples to train on."""
  numbers = problems.chosen(range(len(prepared)), config.task.train_examples)
  is_all = len(numbers) == len(prepared)
  return numbers, prepared.labels if is_all else prepared.labels[numbers]


class Texts(Examples):
  """The rows of prepared examples: [CLS] text [SEP] or [CLS] text [SEP] second text [SEP].
  For training alone: answers need texts, which are not kept."""

  def __init__(
    self, config: ConfigDict, tokenizer: Tokenizer, prepared: Prepared, problems: Problems
  ):
    if tokenizer.fingerprint != prepared.meta['vocabulary']:
      was = f'{prepared.folder} was prepared with another vocabulary than the one of this run'
      raise InputError(f'{was}; prepare the table again with --vocab.')
    limit, long_texts = labelled.limit(config), config.table.long_texts
    more = tokenizer.between - 1 if prepared.sides == 2 else 0  # extra [SEP]s between two texts
    room = limit - 1 - prepared.sides - more
    numbers, labels = _chosen(config, prepared, problems)
    sizes = prepared.lengths().sum(1)
    sizes = sizes if len(numbers) == len(sizes) else sizes[numbers]
    self.cut = int((sizes > room).sum())
    if self.cut:
      problems.counts[f'examples cut (longer than {limit} tokens)'] = self.cut
    problems.counts['examples'] = len(sizes)
    per_example = {'labels': labels, 'weights': np.broadcast_to(np.float32(1), len(sizes))}
    digest = (prepared.meta['seal'], config.task.train_examples, room, long_texts)
    options = labelled.shape(config) | {'per_example': per_example, 'digest': repr(digest)}
    options['lengths'] = np.minimum(sizes, room) + np.int32(1 + prepared.sides + more)
    texts: Any = _Kept(prepared, tokenizer, numbers, room, long_texts)
    super().__init__(tokenizer, texts, **options)
    weights = label_sets.class_weights(config.table)
    self.baselines |= label_sets.baselines_of(labels, len(prepared.meta['labels']), weights)
    self.prior = label_sets.prior_of(labels, len(prepared.meta['labels']))


class _Kept:
  """Random access to the texts of prepared examples by their numbers, cut to `room` tokens."""

  def __init__(self, prepared, tokenizer, numbers, room, long_texts):
    self.prepared, self.tokenizer, self.numbers = prepared, tokenizer, numbers
    self.room, self.long_texts = room, long_texts

  def __len__(self):
    return len(self.numbers)

  def __getitem__(self, e):
    ids = self.prepared.texts(self.numbers[int(e)])
    if sum(map(len, ids)) > self.room:
      (ids,) = cut(ids, self.room, self.long_texts)
    return self.tokenizer.pair(*ids) if len(ids) == 2 else ids
