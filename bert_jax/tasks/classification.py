"""Labelled texts and pairs: a table with named columns, or the embedded task.

The embedded task asks which package a docstring comes from. It is evaluated on the modules that
pre-training on the embedded corpus with corpus.eval_share=0.1 holds out, so that no text is seen
beforehand.
"""

import hashlib
import logging
from collections import Counter

import numpy as np

from bert_jax import models
from bert_jax.config import InputError
from bert_jax.data import docs, tables, text
from bert_jax.data.rows import build_row
from bert_jax.objectives.classification import Classification

log = logging.getLogger('bert_jax')

EMBEDDED_EVAL_SHARE = 0.1  # of the modules


def resolve(config):
  """Fills in task.labels from the training data, sorted, if it is empty."""
  if config.task.regression or config.task.labels:
    return config
  labels = sorted({label for _, _, label, _ in _examples(config, 'train', Counter())})
  if len(labels) < 2:
    raise InputError(
      f'the training data has the single label {labels}; classification needs two '
      'at least (for numbers set task.regression=true).'
    )
  if len(labels) > 1000:
    raise InputError(
      f'column {config.task.label_column!r} holds {len(labels)} different labels, '
      'for example ' + ', '.join(labels[:3]) + '; name another task.label_column or '
      'set task.regression=true.'
    )
  config = config.copy_and_resolve_references()
  config.task.labels = tuple(labels)
  return config


def texts(config):
  for first, second, _, _ in _examples(config, 'train', Counter()):
    yield first
    if second is not None:
      yield second


def objective(config, tokenizer):
  del tokenizer
  return Classification(
    models.ModelConfig(**config.model), config.data.seq_length, tuple(config.task.labels)
  )


def sources(config, tokenizer, splits=('train', 'eval')):
  out = {}
  for split in splits:
    if split == 'eval' and config.data.train and not config.data.eval:
      continue
    counts = Counter()
    examples = list(_examples(config, split, counts))
    limit = config.task.train_examples
    if split == 'train' and 0 < limit < len(examples):
      keep = np.random.default_rng(0).permutation(len(examples))[:limit]  # the same for every seed
      examples = [examples[i] for i in sorted(keep)]
      counts['not used (task.train_examples)'] = counts['examples'] - limit
    rows = LabelledRows(
      examples, tokenizer, labels=tuple(config.task.labels), seq_length=config.data.seq_length
    )
    if rows.cut:
      counts[f'cut to {config.data.seq_length} tokens'] = rows.cut
    log.info('%s: %s', split, ', '.join(f'{n:,} {k}' for k, n in counts.items()))
    out[split] = rows
  return out


class LabelledRows:
  """One example per row: [CLS] text [SEP] or [CLS] text [SEP] second text [SEP], and its label.

  A pair that is too long loses tokens from the end of the longer text, as BERT's run_classifier.py.
  """

  def __init__(self, examples, tokenizer, *, labels, seq_length):
    self.tokenizer, self.seq_length = tokenizer, seq_length
    firsts = tokenizer.ids_batch([first for first, _, _, _ in examples])
    if pairs := bool(examples) and examples[0][1] is not None:
      seconds = tokenizer.ids_batch([second for _, second, _, _ in examples])
    self.texts = list(zip(firsts, seconds)) if pairs else [(ids,) for ids in firsts]
    number = {label: i for i, label in enumerate(labels)}
    self.labels = np.array(
      [number[label] if labels else label for _, _, label, _ in examples],
      np.int32 if labels else np.float32,
    )
    room = seq_length - 2 - pairs
    self.cut = sum(sum(map(len, parts)) > room for parts in self.texts)
    self.texts = [truncate(parts, room) for parts in self.texts]
    self.baselines = {}
    if labels and len(examples):
      majority = np.bincount(self.labels).max() / len(examples)
      self.baselines['classification_accuracy'] = (float(majority), 'majority')
    digest = hashlib.sha256(self.labels.tobytes())
    for parts in self.texts:
      for ids in parts:
        digest.update(ids.tobytes() + b'|')
    self.fingerprint = digest.hexdigest()[:16]

  def __len__(self):
    return len(self.texts)

  def __getitem__(self, i):
    examples = [[(ids, 0) for ids in self.texts[i]]]
    return build_row(self.tokenizer, examples, self.seq_length) | {
      'labels': self.labels[i : i + 1],
      'weights': np.ones(1, np.float32),
    }


def truncate(parts, room):
  """One or two token arrays shortened to `room` tokens in all, the longer one first, at its end."""
  if sum(map(len, parts)) <= room:
    return parts
  if len(parts) == 1:
    return (parts[0][:room],)
  a, b = map(len, parts)
  a = max(min(a, room - room // 2), room - b)  # equally long in the end, the odd token to the first
  return parts[0][:a], parts[1][: room - a]


def _embedded(split):
  """(module, row) of the embedded task; a text in modules of both splits is in neither."""
  for row in docs.labelled():
    held_out = {text.held_out(module, EMBEDDED_EVAL_SHARE) for module in row['modules']}
    if held_out == {split == 'eval'}:
      yield row['modules'][0], row


def _examples(config, split, counts):
  """(text, second text or None, label, where) of a split; a label is a str, or a float
  (regression)."""
  spec, task = config.data[split], config.task
  if not config.data.train:
    if spec:
      raise InputError(
        f'data.{split} is {spec} but data.train is empty; set both, or neither for '
        'the embedded documentation.'
      )
    rows = _embedded(split)
    columns = ('text', '', 'label')
  else:
    rows = tables.records(
      spec,
      split='train' if split == 'train' else 'validation',
      columns=tuple(task.columns),
      counts=counts,
    )
    columns = (task.text_column, task.pair_column, task.label_column)
  for where, row in rows:
    first, label = tables.column(row, columns[0], where), tables.column(row, columns[2], where)
    second = tables.column(row, columns[1], where) if columns[1] else None
    if task.regression:
      try:
        label = float(label)
        if not np.isfinite(label):
          raise ValueError
      except ValueError:
        raise InputError(
          f'{where}: label {label!r} is not a number; task.regression=true wants numbers.'
        ) from None
    elif task.labels and label not in task.labels:
      raise InputError(
        f'{where}: label {label!r} is not in the label set '
        f'{", ".join(map(repr, task.labels))}; mend the row or set task.labels.'
      )
    counts['examples'] += 1
    if not first.strip():
      counts['empty texts (kept)'] += 1
    yield first, second, label, where
