"""Reads labelled texts and pairs of texts: from a table with named columns, or the embedded task.

A row without a text, or with a label that is not in the set, cannot be used (see
tasks/faulty_records.py). Texts without a letter are kept, and warned of. A row without a label
(there is no such column, or see label_sets.LabelReader) is predicted but not scored; it is left out
of training, and counted. With multi_label an empty cell or a null means that the text has none.

The embedded task asks which package a docstring comes from. It is evaluated on the modules that
pre-training on the embedded corpus with corpus.eval_share=0.1 holds out.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import InputError, listed, log, quoted, suggestion
from bert_jax.tasks.ask import ID_COLUMNS
from bert_jax.tasks.classification import label_sets
from bert_jax.tasks.classification.label_sets import LabelReader
from bert_jax.tasks.faulty_records import Problems, reads
from bert_jax.text import documentation, documents
from bert_jax.text.tables import Row, columns_of, first_of

EMBEDDED_EVAL_SHARE = 0.1  # the share of the modules that is held out
FIELDS = (
  'table.text_column, pair_column (a second text), label_column, '
  'or, if a file has no header, all columns with table.columns'
)
NO_LETTER = 'texts without a letter (kept)'  # a kind of fault
HINT = f'name one of these with {FIELDS}'


class Example(NamedTuple):
  where: str
  id: str
  texts: tuple[str, ...]  # one or two
  # One of label_sets.values, a float (regression) or a tuple (multi_label); None: not known.
  label: Any


def embedded(split: str) -> Iterator[tuple[str, Row]]:
  """Yields (module, row) of the embedded task, without texts that occur in both splits."""
  modules_held_out = set()
  for module, sentences in documentation.documents():
    if documents.held_out(sentences, EMBEDDED_EVAL_SHARE):
      modules_held_out.add(module)
  for row in documentation.labelled():
    in_eval = modules_held_out.intersection(row['modules'])
    if in_eval == (set(row['modules']) if split == 'eval' else set()):
      yield row['modules'][0], Row(text=row['text'], label=row['label'])


def read(
  config: ConfigDict, split: str, problems: Problems, whole: bool = False
) -> Iterator[Example]:
  """Yields the Examples of a split; unusable ones go to `problems`.
  whole: keep in data.train what table.eval_share would hold out."""
  share = 0.0 if whole or config.data.eval else config.table.eval_share
  if not share:
    yield from _read(config, split, problems)
    return
  examples = list(_read(config, 'train', problems))
  held_out = _held_out(examples, share, problems)
  for example in examples:
    if (example.texts in held_out) == (split == 'eval'):
      yield example


def _held_out(examples, share, problems):
  """The texts of `examples` that are held out, drawn by themselves alone."""
  texts = {example.texts for example in examples}
  held_out = {x for x in texts if documents.held_out(x, share)}
  if len(held_out) in (0, len(texts)):
    raise InputError(
      f'table.eval_share={share} of the {len(examples)} examples of data.train, with '
      f'{len(texts)} different texts, holds out {"all" if held_out else "none"}; use another share '
      'or name a file in data.eval.'
    )
  count = sum(example.texts in held_out for example in examples)
  problems.counts['examples held out of training (table.eval_share)'] = count
  if not 0.5 < count / (share * len(examples)) < 1.5 and problems.split == 'train':
    log.warning(
      f'table.eval_share={share} holds out {count} of {len(examples)} examples, drawn by hashes of '
      'their texts; of a small table give rows to evaluate on in their place'
    )
  return held_out


def label_type(config: ConfigDict) -> str:
  """What table.label_type is of the training data: text, unless all labels are numbers or truth
  values, and its first label is no text. The cells of a CSV or TSV count as pandas reads them."""
  table = config.table
  if not label_sets.values_of(table.labels):
    return 'text'
  rows = Problems.of(config, 'train').rows(config.data.train, columns=tuple(table.columns))
  for _, row in rows:
    name = first_of(row, table.label_column)
    label = row.record.get(name)
    if name and label != []:
      first = label[0] if isinstance(label, list) else label
      is_nested = row.record and name not in row.record
      return 'text' if is_nested or isinstance(first, str) else 'value'
  return 'text'


@reads('examples')
def _read(config, split, problems):
  spec, table = config.data[split], config.table
  if spec:
    rows = problems.rows(spec, of=split, columns=tuple(table.columns))
    text_columns = [name for name in (table.text_column, table.pair_column) if name]
    label_column = table.label_column
  else:
    rows, text_columns, label_column = embedded(split), ['text'], 'label'
  labels = LabelReader(table, problems)
  for number, (where, row) in enumerate(rows):
    id_column = table.id_column or first_of(row, ID_COLUMNS)
    wanted = [*text_columns, id_column] if id_column else [*text_columns]
    if split == 'train' and row.header and not row.record:  # of a record the label may be null
      wanted.append(label_column)
    with problems.of_record(where):
      values = problems.columns(row, wanted, where, HINT)
      texts = tuple(values[: len(text_columns)])
      example_id = values[len(text_columns)] if id_column else ''
      label = _label(row, label_column, labels, where)
      if label is None and not _may_lack_label(row, label_column, where, split, problems):
        continue
      if label == ():
        problems.note('with none of the labels (kept)', where)
      if not all(any(map(str.isalpha, text)) for text in texts):
        problems.note(NO_LETTER, where)
      yield Example(where, example_id or str(number), texts, label)


def _label(row, column, labels, where):
  """The label of a row; None: not known."""
  name = first_of(row, column)
  if not name:
    # With several labels a null says that there is none, as an empty cell of CSV does.
    return () if labels.table.multi_label and first_of(row.no_text, column) else None
  return labels.label(row[name], where)


def _may_lack_label(row, column, where, split, problems):
  """Counts a row without a label; whether it is kept, as in evaluations."""
  has_column = first_of(row, column) or first_of(row.no_text, column)
  if has_column:
    return not problems.lacks('a label', where, split)
  there = f'{listed(columns_of(row))}{suggestion(column, columns_of(row))}'
  more = f'; labels are a column of the table (table.label_column), which has {there}'
  return not problems.lacks(f'the column {quoted(column)}', where, split, more)
