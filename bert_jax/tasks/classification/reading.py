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
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import InputError, listed, quoted
from bert_jax.tasks.faulty_records import Problems, reads
from bert_jax.text import documentation, documents
from bert_jax.text.values import finite_number, json_value

EMBEDDED_EVAL_SHARE = 0.1  # the share of the modules that is held out
HINT = ' with table.text_column, pair_column, label_column, or table.columns if there is no header'
MOST_LABELS = 1000  # more are probably numbers or texts
INDEX = ('index', 'idx')  # columns that number the rows of GLUE's test sets


class Example(NamedTuple):
  where: str
  id: str
  texts: tuple[str, ...]  # one or two
  label: Any  # a str, a float (regression) or a tuple of str (multi_label); None: not known


def embedded(split: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields (module, row) of the embedded task, without texts that occur in both splits."""
  for row in documentation.labelled():
    held_out = {documents.held_out(module, EMBEDDED_EVAL_SHARE) for module in row['modules']}
    if held_out == {split == 'eval'}:
      yield row['modules'][0], row


def read(
  config: ConfigDict, split: str, problems: Problems, whole: bool = False
) -> Iterator[Example]:
  """Yields the Examples of a split; unusable ones go to `problems`.
  whole: keep in data.train what table.eval_share would hold out."""
  share = 0.0 if whole else config.table.eval_share
  if not share or (split == 'eval' and config.data.eval):
    yield from _read(config, split, problems)
    return
  examples = list(_read(config, 'train', problems))
  out = held_out(examples, share)
  if not out:
    number = f'table.eval_share={share} of the {len(examples)} examples of data.train'
    advice = 'use a larger share, or name a file in data.eval'
    raise InputError(f'{number} holds out none; {advice}.')
  name = 'examples held out of training (table.eval_share)'
  problems.counts[name] = sum(example.texts in out for example in examples)
  if repeated := len(examples) - len({example.texts for example in examples}):
    problems.counts['that repeat the texts of another, and stay with it'] = repeated
  yield from (example for example in examples if (example.texts in out) == (split == 'eval'))


def held_out(examples: Sequence[Example], share: float) -> set[tuple[str, ...]]:
  """Chooses a share of the texts, the same for each label, by their hashes alone.
  Examples with equal texts stay together, so that no text is both trained and evaluated on."""
  labels = {}
  for example in examples:
    labels.setdefault(example.texts, example.label)

  def order(texts):
    digest, label = hashlib.sha256('\n'.join(texts).encode()).hexdigest(), labels[texts]
    return (label, '', digest) if isinstance(label, float) else (0.0, str(label), digest)

  numbered = enumerate(sorted(labels, key=order))
  return {x for k, x in numbered if int((k + 1) * share) > int(k * share)}  # label by label


@reads('examples')
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
      try:
        label = label_of(label, table)
      except ValueError as fault:
        problems.wrong(where, str(fault), 'rows with an unknown label')
        continue
    if not all(map(str.strip, texts)):
      problems.note('empty texts (kept)', where)
    yield Example(where, example_id, texts, label)


def label_of(cell: str, table: ConfigDict) -> Any:
  """The label in a cell, as in an Example; ValueError if it cannot be one."""
  if table.regression:
    if (number := finite_number(cell)) is None:
      raise ValueError(f'label {quoted(cell)} is not a number; table.regression=true wants numbers')
    return number
  labels = _labels_of(cell) if table.multi_label else (cell,)
  if not table.multi_label and not cell.strip():
    raise ValueError('the label is empty; write one')
  if not (table.multi_label or table.labels) and cell[0] == '[' and cell[-1] == ']':
    raise ValueError(f'label {quoted(cell)} is a list; set table.multi_label=true')
  if table.labels:
    known = {s: name.split('|')[0] for name in table.labels for s in name.split('|')}
    if unknown := [name for name in labels if name not in known]:
      fault = f'label {quoted(unknown[0])} is not in the label set {listed(table.labels)}'
      raise ValueError(f'{fault}; mend the row or set table.labels')
    labels = tuple(known[name] for name in labels)
  return labels if table.multi_label else labels[0]


def _labels_of(cell):
  """The labels of a text that may have several, from a JSON list or between commas."""
  try:
    labels = json_value(cell) if cell[:1] in ('[', '{') else cell.split(',')
    if isinstance(labels, list) and all(isinstance(part, str | int) for part in labels):
      return tuple(name for part in labels if (name := str(part).strip()))
  except ValueError:
    pass
  raise ValueError(f'label {quoted(cell)} is no list of labels; write ["a", "b"] or a,b')


def names(labels: Sequence[str]) -> tuple[str, ...]:
  """The names of labels; a label with several spellings (a|b) has the first."""
  return tuple(label.split('|')[0] for label in labels)


def label_set(table: ConfigDict, found: Collection[str]) -> tuple[str, ...]:
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


def balanced(
  labels: Sequence[str], counts: Mapping[str, int], number: int
) -> tuple[tuple[str, float], ...]:
  """Balanced class weights, ((label, 1 / its share), ...). counts: {label: examples with it};
  number: of all examples."""
  known = dict.fromkeys(names(labels))
  return tuple((name, round(number / (len(known) * max(1, counts[name])), 6)) for name in known)
