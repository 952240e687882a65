"""Reads labelled texts that tools/prepare_examples.py has put on the disk as token ids."""

import logging
from collections import Counter
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.errors import InputError, listed
from bert_jax.rows.examples import Examples
from bert_jax.rows.prepared_examples import Prepared
from bert_jax.rows.windows import cut
from bert_jax.tasks import labelled
from bert_jax.tasks.classification.baselines import baselines_of
from bert_jax.tasks.classification.reading import balanced, names
from bert_jax.tasks.faulty_records import Problems

# The fields for reading a table; they are fixed when it is prepared.
KIND = 'regression', 'multi_label'
COLUMNS = 'text_column', 'pair_column', 'label_column'

log = logging.getLogger('bert_jax')


def resolve(config: ConfigDict, prepared: Prepared) -> ConfigDict:
  """Fills the labels and the vocabulary of prepared examples into the config. InputError if they
  were not prepared for this config."""
  config, meta = config.copy_and_resolve_references(), prepared.meta
  _check(config.table, config.data.train, prepared)
  if not config.table.regression:
    config.table.labels = tuple(meta['labels'])
  if config.table.class_weights == ('balanced',):
    with config.ignore_type():
      config.table.class_weights = balanced(meta['labels'], *_counted(config, prepared))
  if not (config.init_from or config.tokenizer.path):
    config.tokenizer.path = str(tokenizers.in_folder(prepared.folder))
    config.tokenizer.do_lower_case = getattr(prepared.tokenizer, 'do_lower_case', True)
    config.model.vocab_size = prepared.tokenizer.vocab_size
  return config


def _check(table, folder, prepared):
  meta = prepared.meta
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
    several = f'table.long_texts={table.long_texts} makes several examples of a text'
    advice = f'and {folder} has one of each; use head, tail or head_tail'
    raise InputError(f'{several}, {advice}.')


def _chosen(config, prepared):
  """The numbers of the examples to train on, [E]; None: all."""
  number = config.task.train_examples
  if not 0 < number < len(prepared):
    return None
  return np.sort(np.random.default_rng(0).permutation(len(prepared))[:number])


def _counted(config, prepared):
  """Counts the labels of the examples to train on: (Counter, number of examples)."""
  keep = _chosen(config, prepared)
  if keep is None:
    return Counter(prepared.meta['label_counts']), len(prepared)
  labels, known = prepared.labels[keep], names(prepared.meta['labels'])
  counts = labels.sum(0) if labels.ndim == 2 else np.bincount(labels, minlength=len(known))
  return Counter(dict(zip(known, counts.astype(int).tolist(), strict=True))), len(keep)


class Texts(Examples):
  """The rows of prepared examples: [CLS] text [SEP] or [CLS] text [SEP] second text [SEP].
  For training alone: answers need texts, which are not kept."""

  def __init__(
    self,
    config: ConfigDict,
    tokenizer: tokenizers.Tokenizer,
    prepared: Prepared,
    problems: Problems,
  ):
    if tokenizer.fingerprint != prepared.meta['vocabulary']:
      was = f'{prepared.folder} was prepared with another vocabulary than the one of this run'
      advice = (
        'prepare the table again with --vocab, the folder of the vocabulary or of the weights'
      )
      raise InputError(f'{was}; {advice}.')
    limit, long_texts = labelled.limit(config), config.table.long_texts
    more = tokenizer.between - 1 if prepared.sides == 2 else 0  # extra [SEP]s between two texts
    room = limit - 1 - prepared.sides - more
    sizes, labels = prepared.lengths().sum(1), prepared.labels
    if (keep := _chosen(config, prepared)) is not None:
      problems.counts['not used (task.train_examples)'] = len(prepared) - len(keep)
      sizes, labels = sizes[keep], labels[keep]
    if cuts := int((sizes > room).sum()):
      problems.counts[f'examples cut (longer than {limit} tokens)'] = cuts
    problems.counts['examples'] = len(sizes)
    per_example = {'labels': labels, 'weights': np.broadcast_to(np.float32(1), len(sizes))}
    digest = (prepared.meta['seal'], config.task.train_examples, room, long_texts)
    options = labelled.shape(config) | {'per_example': per_example, 'digest': repr(digest)}
    options['lengths'] = np.minimum(sizes, room) + np.int32(1 + prepared.sides + more)
    texts: Any = _Kept(prepared, tokenizer, keep, room, long_texts)
    super().__init__(tokenizer, texts, **options)
    self.baselines |= baselines_of(labels, len(prepared.meta['labels']))


class _Kept:
  """Random access to the texts of prepared examples, cut to `room` tokens. keep: [E] which
  examples; None: all."""

  def __init__(self, prepared, tokenizer, keep, room, long_texts):
    self.prepared, self.tokenizer, self.keep = prepared, tokenizer, keep
    self.room, self.long_texts = room, long_texts

  def __len__(self):
    return len(self.prepared) if self.keep is None else len(self.keep)

  def __getitem__(self, e):
    ids = self.prepared.texts(int(e if self.keep is None else self.keep[e]))
    if sum(map(len, ids)) > self.room:
      (ids,) = cut(ids, self.room, self.long_texts)
    return self.tokenizer.pair(*ids) if len(ids) == 2 else ids
