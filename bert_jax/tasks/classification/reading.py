"""Where labelled texts and pairs come from: a table with named columns, or the embedded task.

A row without the columns, or with a label that is not in the set, is faulty (see problems.py). An
empty text and an id that comes twice are kept, counted and named. Without a label (no such column,
an empty cell, TFDS's -1) a text is predicted and not scored, but faulty in training; of several
labels (multi_label) an empty cell means none of them.

The embedded task asks which package a docstring comes from. It is evaluated on the modules that
pre-training on the embedded corpus with corpus.eval_share=0.1 holds out, so that no text is seen
beforehand.
"""

import json
from typing import Any, NamedTuple

import numpy as np

from bert_jax.text import documentation, documents, tables

EMBEDDED_EVAL_SHARE = 0.1  # of the modules
HINT = ' with table.text_column, pair_column, label_column, or table.columns if there is no header'
INDEX = ('index', 'idx')  # columns that number the rows of GLUE's test sets, in files and in TFDS


class Example(NamedTuple):
  where: str
  id: str
  texts: tuple[str, ...]  # one or two
  label: Any  # a str, a float (regression), a tuple of str (multi_label), None (not known)


def embedded(split):
  """(module, row) of the embedded task; a text in modules of both splits is in neither."""
  for row in documentation.labelled():
    held_out = {documents.held_out(module, EMBEDDED_EVAL_SHARE) for module in row['modules']}
    if held_out == {split == 'eval'}:
      yield row['modules'][0], row


def read(config, split, problems):
  """The Examples of a split, faulty ones left to `problems`."""
  spec, table = config.data[split], config.table
  if spec:
    rows = tables.records(
      spec,
      split='train' if split == 'train' else 'validation',
      columns=tuple(table.columns),
      counts=problems.counts,
      wrong=problems.wrong,
    )
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
    found = problems.columns(row, wanted, where, HINT)
    if found is None:
      continue
    texts = tuple(found[: len(text_columns)])
    own = found[len(text_columns)] if id_columns else str(number)
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
    problems.seen(own, where)
    yield Example(where, own, texts, label)


def _label(label, table):
  """(the label of a table as it is learned, '') or (None, what is wrong with it)."""
  if table.regression:
    try:
      value = float(label)
      if np.isfinite(value):
        return value, ''
    except ValueError:
      pass
    return None, f'label {label!r} is not a number; table.regression=true wants numbers'
  own = (label,)
  if table.multi_label:
    try:
      own = json.loads(label) if label[:1] in ('[', '{') else label.split(',')
      if not isinstance(own, list) or not all(isinstance(part, str | int) for part in own):
        raise ValueError
    except ValueError:
      return None, f'label {label!r} is no list of labels; write ["a", "b"] or a,b'
    own = tuple(name for part in own if (name := str(part).strip()))
  elif not label.strip():
    return None, 'the label is empty; write one'
  elif not table.labels and label[0] == '[' and label[-1] == ']':
    return None, f'label {label!r} is a list; set table.multi_label=true'
  if table.labels:
    known = {s: name.split('|')[0] for name in table.labels for s in name.split('|')}
    unknown = [name for name in own if name not in known]
    if unknown:
      return None, (
        f'label {unknown[0]!r} is not in the label set {", ".join(map(repr, table.labels))}; mend '
        'the row or set table.labels'
      )
    own = tuple(known[name] for name in own)
  return (own if table.multi_label else own[0]), ''


def names(labels):
  """The names of labels, the first of several spellings."""
  return tuple(label.split('|')[0] for label in labels)
