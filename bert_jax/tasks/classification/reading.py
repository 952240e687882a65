"""Reads labelled texts and pairs of texts: from a table with named columns, or the embedded task.

A row without the columns, or with a label that is not in the set, cannot be used (see
tasks/faulty_records.py). Empty texts and repeated ids are kept and counted. A row without a label
(there is no such column, its cell is empty, or TFDS writes -1) is predicted but not scored; in
training it cannot be used. With multi_label an empty cell means that the text has no label.

The embedded task asks which package a docstring comes from. It is evaluated on the modules that
pre-training on the embedded corpus with corpus.eval_share=0.1 holds out, so that a model
pre-trained there has not seen their texts.
"""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import InputError, listed, quoted
from bert_jax.tasks.faulty_records import names_data
from bert_jax.text import documentation, documents
from bert_jax.text.values import json_value

EMBEDDED_EVAL_SHARE = 0.1  # the share of the modules that is held out
HINT = ' with table.text_column, pair_column, label_column, or table.columns if there is no header'
MOST_LABELS = 1000  # more are probably numbers or texts
INDEX = ('index', 'idx')  # columns that number the rows of GLUE's test sets


class Example(NamedTuple):
  where: str
  id: str
  texts: tuple[str, ...]  # one or two
  label: Any  # a str, a float (regression) or a tuple of str (multi_label); None: not known


def embedded(split):
  """Yields (module, row) of the embedded task, without texts that occur in both splits."""
  for row in documentation.labelled():
    held_out = {documents.held_out(module, EMBEDDED_EVAL_SHARE) for module in row['modules']}
    if held_out == {split == 'eval'}:
      yield row['modules'][0], row


def read(config, split, problems, whole=False):
  """Yields the Examples of a split; unusable ones go to `problems`.
  whole: keep in data.train what table.eval_share would hold out."""
  share = 0.0 if whole else config.table.eval_share
  if not share or (split == 'eval' and config.data.eval):
    yield from _read(config, split, problems)
    return
  examples = list(_read(config, 'train', problems))
  out = held_out(examples, share)
  if examples and not out:
    raise InputError(
      f'table.eval_share={share} of the {len(examples)} examples of data.train holds out none; use '
      'a larger share, or name a file in data.eval.'
    )
  name = 'examples held out of training (table.eval_share)'
  problems.counts[name] = sum(example.texts in out for example in examples)
  if repeated := len(examples) - len({example.texts for example in examples}):
    problems.counts['that repeat the texts of another, and stay with it'] = repeated
  yield from (example for example in examples if (example.texts in out) == (split == 'eval'))


def held_out(examples, share):
  """Chooses a share of the texts, the same for each label, by their hashes alone.
  Examples with equal texts stay together, so that no text is both trained and evaluated on."""
  labels = {}
  for example in examples:
    labels.setdefault(example.texts, example.label)

  def order(texts):
    digest = hashlib.sha256('\n'.join(texts).encode()).hexdigest()
    label = labels[texts]
    return (label, '', digest) if isinstance(label, float) else (0.0, str(label), digest)

  return {
    texts
    for k, texts in enumerate(sorted(labels, key=order))
    if int((k + 1) * share) > int(k * share)  # evenly, label by label
  }


@names_data
def _read(config, split, problems):
  spec, table = config.data[split], config.table
  if spec:
    rows = problems.rows(spec, of=split, columns=tuple(table.columns))
    text_columns = [name for name in (table.text_column, table.pair_column) if name]
    label_column = table.label_column
  else:
    rows, text_columns, label_column = embedded(split), ['text'], 'label'
  for number, (where, row) in enumerate(rows):
    # A test set has no label column, or nothing in it; TFDS writes -1.
    there = next((name for name in label_column.split('|') if name in row), '')
    label = row.get(there, '')
    if spec.startswith('tfds:') and label in ('-1', '-1.0'):
      label = ''
    id_columns = [table.id_column] if table.id_column else [n for n in INDEX if n in row][:1]
    wanted = [*text_columns, *id_columns, *([label_column] if split == 'train' else [])]
    if (values := problems.columns(row, wanted, where, HINT)) is None:
      continue
    texts = tuple(values[: len(text_columns)])
    example_id = values[len(text_columns)] if id_columns else str(number)
    if split != 'train' and not (there if table.multi_label else label):
      problems.counts['without a label (predicted, not scored)'] += 1
      label = None
    else:
      label, fault = _label(label, table)
      if fault:
        problems.wrong(where, fault, 'rows with an unknown label')
        continue
    problems.counts['examples'] += 1
    if any(not part.strip() for part in texts):
      problems.note('empty texts (kept)', where)
    problems.note_id(example_id if id_columns else None, where)
    yield Example(where, example_id, texts, label)
  if not problems.ids:
    problems.nothing(spec, 'examples')


def _label(label, table):
  """Parses the label in a cell: (label, '') or (None, what is wrong with it)."""
  if table.regression:
    try:
      value = float(label)
      if np.isfinite(value):
        return value, ''
    except ValueError:
      pass
    return None, f'label {quoted(label)} is not a number; table.regression=true wants numbers'
  labels = (label,)
  if table.multi_label:
    try:
      labels = json_value(label) if label[:1] in ('[', '{') else label.split(',')
      if not isinstance(labels, list) or not all(isinstance(part, str | int) for part in labels):
        raise ValueError
    except ValueError:
      return None, f'label {quoted(label)} is no list of labels; write ["a", "b"] or a,b'
    labels = tuple(name for part in labels if (name := str(part).strip()))
  elif not label.strip():
    return None, 'the label is empty; write one'
  elif not table.labels and label[0] == '[' and label[-1] == ']':
    return None, f'label {quoted(label)} is a list; set table.multi_label=true'
  if table.labels:
    known = {s: name.split('|')[0] for name in table.labels for s in name.split('|')}
    if unknown := [name for name in labels if name not in known]:
      where = f'the label set {listed(table.labels)}'
      return None, f'label {quoted(unknown[0])} is not in {where}; mend the row or set table.labels'
    labels = tuple(known[name] for name in labels)
  return (labels if table.multi_label else labels[0]), ''


def names(labels):
  """The names of labels; a label with several spellings (a|b) has the first."""
  return tuple(label.split('|')[0] for label in labels)


def label_set(table, found):
  """The label set of training data: the labels found in it, sorted."""
  labels = tuple(sorted(found))
  if len(labels) < 2:
    needs = 'classification needs two at least (for numbers set table.regression=true)'
    raise InputError(f'the training data has the single label {listed(labels)}; {needs}.')
  if len(labels) > MOST_LABELS:
    fault = f'column {table.label_column!r} holds {len(labels)} different labels, for example '
    advice = 'name another table.label_column or set table.regression=true'
    raise InputError(f'{fault}{listed(labels[:3])}; {advice}.')
  if odd := [label for label in labels if '|' in label]:
    fault = f'label {quoted(odd[0])} has a | in it, which parts the spellings of a label'
    raise InputError(f'{fault}; write it otherwise.')
  return labels


def balanced(labels, counts, number):
  """Balanced class weights, ((label, 1 / its share), ...). counts: {label: examples with it};
  number: of all examples."""
  known = dict.fromkeys(names(labels))
  return tuple((name, round(number / (len(known) * max(1, counts[name])), 6)) for name in known)
