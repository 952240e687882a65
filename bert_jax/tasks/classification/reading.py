"""Reads labelled texts and pairs of texts: from a table with named columns, or the embedded task.

A row without the columns, or with a label that is not in the set, cannot be used (see
tasks/faulty_records.py). Empty texts and repeated ids are kept and counted. A row without a label
(there is no such column, or see label_sets.label_of) is predicted but not scored; it is left out of
training, and counted. With multi_label an empty cell or a null means that the text has no label.

The embedded task asks which package a docstring comes from. It is evaluated on the modules that
pre-training on the embedded corpus with corpus.eval_share=0.1 holds out.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import InputError, listed, log
from bert_jax.tasks.ask import names_of
from bert_jax.tasks.classification.label_sets import SEPARATORS, label_of
from bert_jax.tasks.faulty_records import Problems, decimal_commas, reads
from bert_jax.text import documentation, documents
from bert_jax.text.tables import Row, columns_of, first_of, resembling
from bert_jax.text.values import decimal_number

EMBEDDED_EVAL_SHARE = 0.1  # the share of the modules that is held out
FIELDS = (
  'table.text_column, pair_column (a second text), label_column, '
  'or table.columns if there is no header'
)
HINT = f'name one of these with {FIELDS}'
SHOWING = 1000  # rows that show what stands between labels


class Example(NamedTuple):
  where: str
  id: str
  texts: tuple[str, ...]  # one or two
  label: Any  # a str, a float (regression) or a tuple of str (multi_label); None: not known


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
  share = 0.0 if whole else config.table.eval_share
  if not share or (split == 'eval' and config.data.eval):
    yield from _read(config, split, problems)
    return
  examples = list(_read(config, 'train', problems))
  out = {x.texts for x in examples if documents.held_out(x.texts, share)}
  by_label = config.table.every_label_trained and not config.table.regression
  kept = only_ones(examples, out) if by_label else set()
  out -= kept
  if not out:
    none = f'table.eval_share={share} of the {len(examples)} examples of data.train holds out none'
    advice = 'use a larger share, or name a file in data.eval'
    if kept:
      none += f' but the only texts of {len(kept)} labels, which stay in training'
      advice += '; if the labels are numbers, set table.regression=true'
    raise InputError(f'{none}; {advice}.')
  name = 'examples held out of training (table.eval_share)'
  problems.counts[name] = sum(example.texts in out for example in examples)
  if repeated := len(examples) - len({example.texts for example in examples}):
    problems.counts['with the text of another (on its side of the split)'] = repeated
  if kept:
    problems.counts['texts kept in training, the only ones of a label'] = len(kept)
  yield from (example for example in examples if (example.texts in out) == (split == 'eval'))


def only_ones(examples: Sequence[Example], out: Set[tuple[str, ...]]) -> set[tuple[str, ...]]:
  """Chooses, of the texts `out` to be held out, one of each label that no other text has."""
  of_label, kept = defaultdict(set), set()
  for example in examples:
    for label in (example.label,) if isinstance(example.label, str) else example.label:
      of_label[label].add(example.texts)
  for _, texts in sorted(of_label.items()):
    if texts <= out and kept.isdisjoint(texts):
      kept.add(min(texts))
  return kept


@reads('examples')
def _read(config, split, problems):
  spec, table = config.data[split], config.table
  if spec:
    rows = problems.rows(spec, of=split, columns=tuple(table.columns))
    text_columns = [name for name in (table.text_column, table.pair_column) if name]
    label_column = table.label_column
  else:
    rows, text_columns, label_column = embedded(split), ['text'], 'label'
  commas = table.regression and decimal_commas(config, table.columns, label_column)
  any_text = number_of = 0
  for number, (where, row) in enumerate(rows):
    there = first_of(row, label_column)
    id_columns = [table.id_column] if table.id_column else names_of(row)[:1]
    # A row of JSON lacks what is null.
    wanted = text_columns + id_columns + [label_column] * bool(split == 'train' and row.header)
    with problems.of_record(where):
      values = problems.columns(row, wanted, where, HINT)
      texts = tuple(values[: len(text_columns)])
      example_id = (values[len(text_columns)] if id_columns else '') or str(number)
      # With several labels a null says that there is none, as an empty cell of CSV does.
      null = first_of(row.no_text, label_column)
      cell = row[there] if there else '' if null and table.multi_label else None
      label = None if cell is None else label_of(cell, table, row.delimiter, commas)
      if isinstance(label, float) and (how := decimal_number(cell or '', row.delimiter, commas)[1]):
        problems.note(how, where)
      if spec.startswith('tfds:') and label in ('-1', -1.0):  # so TFDS says that there is none
        label = None
      if label is None:
        fault = f'it has no label in column {label_column!r} of {listed(columns_of(row))}'
        what = 'a label' if there or null else f'a column {label_column!r} of labels'
        fault += '' if there or null else resembling(label_column, columns_of(row))
        if problems.lacks(what, where, split, f'{fault}; name another with {FIELDS}'):
          continue
      if label == ():
        problems.note('with none of the labels (kept)', where)
      if not all(map(str.strip, texts)):
        problems.note('empty texts (kept)', where)
      number_of, any_text = number_of + 1, any_text or any(map(str.strip, texts))
      yield Example(where, example_id, texts, label)
  if number_of and not any_text:
    fault = f'all {number_of:,} texts in {" and ".join(map(repr, text_columns))} are empty'
    raise InputError(f'{fault}; name another column in table.text_column.')


def with_separator(config: ConfigDict) -> ConfigDict:
  """The config with the commonest separator of labels in training data filled in; '' means ','."""
  table, spec = config.table, config.data.train
  if not table.multi_label or table.label_separator or not spec:
    return config
  problems = Problems('train', True, config.data.text_encoding)
  rows = itertools.islice(problems.rows(spec, columns=tuple(table.columns)), SHOWING)
  cells = (row.get(first_of(row, table.label_column), '') for _, row in rows)
  counts = Counter(mark for cell in cells if cell[:1] != '[' for mark in SEPARATORS if mark in cell)
  mark = max(SEPARATORS, key=lambda mark: counts[mark])
  if mark != ',':
    log.info('labels of a text stand between %r (table.label_separator)', mark)
    config = config.copy_and_resolve_references()
    config.table.label_separator = mark
  return config
