"""Classification and regression of texts and pairs: GLUE, any table with named columns."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from bert_jax.errors import InputError, listed, quoted
from bert_jax.field import Field, affecting, pairs_with_positive_numbers
from bert_jax.tasks import labelled, remarks, teaching
from bert_jax.tasks.ask import OfHead, RecordProblems, texts_in
from bert_jax.tasks.classification import label_sets, linear, task
from bert_jax.tasks.classification.label_sets import LabelReader
from bert_jax.tasks.classification.reading import Example
from bert_jax.tasks.classification.task import Texts
from bert_jax.tasks.faulty_records import Unusable
from bert_jax.tasks.record import AsReleased, Card, Head, PlainBaseline, Prediction, Released
from bert_jax.text.tables import Row, first_of
from bert_jax.text.values import finite_number
from bert_jax.tokenizers import Tokenizer

if TYPE_CHECKING:
  from bert_jax.predict.loaded import Loaded

FIELDS = affecting({'rows'}, {
  'table.text_column': Field('sentence', 'column of the text; a|b: the first that is there'),
  'table.pair_column': Field('', 'column of the second text; empty: single texts'),
  'table.label_column': Field('label', 'column of the label'),
  'table.id_column': Field('',
    'column that names a row; empty: index, idx or id, or rows are numbered from 0'),
  'table.columns': Field((), 'columns of a TSV without header; empty: it has one', allowed=str),
  'table.labels': Field((),
    'the label set, in order (a|b: spelt a or b); empty: as in training data, sorted', allowed=str,
    affects={'rows', 'weights'}),
  'table.label_type': Field('data', "labels in answers: text, or value: numbers, True and False; "
    'data: as the column of the training data has them, of a CSV as pandas reads it',
    allowed=('data', 'text', 'value'), past='text', affects={'judging'}),
  'table.regression': Field(False, 'labels are numbers: squared and absolute error, correlation',
    affects={'rows', 'weights'}),
  'table.multi_label': Field(False, 'a text has any number of labels, see table.label_separator',
    affects={'rows', 'weights'}),
  'table.label_separator': Field(',', 'stands between the labels of a text'),
  'table.eval_share': Field(0.0,
    'share of data.train to evaluate on without data.eval; 0: none',
    allowed='[0, 1)',
    affects={'rows'}),
  'table.prior': labelled.prior_field('share of each label, or mean and scale of numbers'),
  'table.ends': Field(True,
    '[CLS] stands before and [SEP] behind each text; false: as a prompt begins (GPT-2: alone)'),
  'table.long_texts': Field('head',
    'what is kept of a text that is too long; windows: all of it, logits averaged',
    allowed=('head', 'tail', 'head_tail', 'windows')),
}) | {
  'table.class_weights': Field((), "((label, weight in the loss), ...); ('balanced',): 1/share"),
  'table.pooling': Field('cls',
    'what is classified: the pooled [CLS] (BERT), the mean of all tokens without a pooler, through '
    'it (ModernBERT), or of each through it (EuroBERT)',
    allowed=('cls', 'mean', 'pooled_mean', 'late_mean')),
  'table.sigmoid': Field(False,
    'of a regression: numbers are from 0 to 1, sigmoids of what the head gives (cross-encoders)',
    past=False),
}  # fmt: skip

# {table.sigmoid: what a CrossEncoder of sentence-transformers calls it}.
SIGMOID = 'torch.nn.modules.activation.Sigmoid'
ACTIVATIONS = {False: 'torch.nn.modules.linear.Identity', True: SIGMOID}
# {table.pooling: what a released model calls it, see convert/families/record.py}.
POOLED = {'cls': 'cls', 'pooled_mean': 'mean', 'late_mean': 'late'}


def rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  table, weights = config.table, config.table.class_weights
  yield from labelled.rules(config)
  yield (
    not (table.regression and (table.labels or table.multi_label or weights)),
    'table.regression has no label set; leave table.labels and table.class_weights empty and '
    'table.multi_label false.',
  )
  yield (
    not table.sigmoid or table.regression,
    'table.sigmoid=true is for numbers; set table.regression=true, or leave it.',
  )
  yield (
    weights == ('balanced',) or pairs_with_positive_numbers(weights),
    f"table.class_weights is {quoted(weights)}; write ((label, weight), ...) or ('balanced',).",
  )
  yield (
    table.multi_label or table.label_separator == ',',
    f'table.label_separator={table.label_separator} parts the labels of a text that has several; '
    'set table.multi_label=true, or leave it.',
  )
  yield (
    not table.pair_column or table.long_texts == 'head',
    f'table.long_texts={table.long_texts} is for single texts; of a pair the longer text loses its '
    'end.',
  )


def main_metric(config: ConfigDict) -> str:
  if config.table.regression:
    return 'pearson'
  return 'micro_f1' if config.table.multi_label else 'accuracy'


def label_column(config: ConfigDict) -> str:
  table = config.table
  return '' if table.regression or table.multi_label else table.label_column


def from_released(config: ConfigDict, released: Released) -> None:
  labels, table = released.labels(), config.table
  if released.problem == 'regression' and len(labels) > 1:
    raise InputError(
      f'the regression has {len(labels)} outputs, and ours has one, so it cannot be read.'
    )
  table.pooling = {theirs: ours for ours, theirs in POOLED.items()}[released.pooling]
  table.ends = not config.model.causal
  if released.cut_side == 'left':
    table.long_texts = 'tail'
  elif released.activation:  # it is a cross-encoder
    table.pair_column = 'pair'
  table.multi_label = released.problem == 'multi_label_classification'
  table.label_type = 'text'
  table.regression = not table.multi_label and len(labels) == 1
  table.sigmoid = _is_sigmoid(released.activation, len(labels), table) and table.regression
  if any('|' in label for label in labels):
    raise InputError(f'a label of {listed(labels)} has a | in it; rename it in id2label.')
  if not table.regression:
    table.labels = labels


def _is_sigmoid(activation, outputs, table):
  """Whether a cross-encoder's outputs go through a sigmoid, by torch's name of its activation."""
  name = re.sub(r'^torch\.nn\.(.*\.)?', '', activation)
  is_sigmoid = name == 'Sigmoid'
  is_known = is_sigmoid or name in ('', 'Identity')
  if not is_known or (is_sigmoid and outputs > 1 and not table.multi_label):
    raise InputError(
      f'config.json, or config_sentence_transformers.json, says that activation_fn (once '
      f'sbert_ce_default_activation_function) is {quoted(activation)} over {outputs} outputs, and '
      'what is read is Sigmoid over one, or Identity; for its outputs without it, or softmax over '
      f'several, write {quoted(ACTIVATIONS[False])} there.'
    )
  return is_sigmoid


def as_released(config: ConfigDict) -> AsReleased:
  if config.model.causal and config.table.ends:
    raise InputError(
      'this causal classifier reads each text between [CLS] and [SEP], and those of Hugging Face '
      'read it alone; train one with table.ends=false.'
    )
  problem = 'single_label_classification'
  if config.table.regression:
    problem = 'regression'
  elif config.table.multi_label:
    problem = 'multi_label_classification'
  return AsReleased(
    problem,
    pooling=POOLED.get(config.table.pooling, 'cls'),
    activation=ACTIVATIONS[config.table.sigmoid] if problem == 'regression' else '',
    cut_side='left' if config.table.long_texts == 'tail' else 'right',
  )


def without_effect(config: ConfigDict) -> tuple[str, ...]:
  """The share to hold out, where other rows are evaluated."""
  return ('table.eval_share',) if config.data.eval else ()


def stand_in(config: ConfigDict) -> ConfigDict:
  if not config.table.labels and not config.table.regression:
    config.table.labels = ('0', '1')
  return config


def remarks_on(config: ConfigDict, tokenizer: Tokenizer, sources: Mapping[str, Any]) -> list[str]:
  table, train = config.table, sources['train']
  longer = 'raise task.max_length' if config.task.max_length else 'raise data.seq_length'
  if not table.pair_column:
    longer += ', or set table.long_texts=windows'
  out = remarks.about_examples(config, tokenizer, sources)
  out += remarks.about('cut', train.cut / max(1, train.size), longer)
  if label_column(config):
    alone = [table.labels[k] for k in (train.label_counts == 1).nonzero()[0]]
    fix = f'find more texts with {listed(alone)}, or leave these rows out'
    if len(alone) > train.size / 2:
      fix = 'table.label_column and table.text_column may be the wrong way round'
    out += remarks.about('once', len(alone), fix)
    if table.long_texts != 'windows':
      out += remarks.about_contradictions(train)
  spelt = Counter(map(str.casefold, table.labels))
  alike = [label for label in table.labels if spelt[label.casefold()] > 1]
  out += remarks.about('alike', len(alike), f'write {listed(alike)} in one way')
  if all(finite_number(label) is not None for label in table.labels):
    as_numbers = 'table.regression=true learns them as numbers'
    out += remarks.about('numbers', len(table.labels), as_numbers)
  return out


def card(config: ConfigDict) -> Card:
  table, positive = config.table, label_sets.positive(config.table)
  return Card(
    trained_for=f'`{config.objective}`' + (f' (f1 is of {positive!r})' if positive else ''),
    all_labels=table.multi_label,
    number=table.label_column.split('|')[0] if table.regression else '',
    longer_texts=table.long_texts,
  )


class Classify(OfHead):
  """Asks a classifier: {"text"} or, if it reads pairs, {"text", "pair"}."""

  examples_of, exports = Texts, {'logits': '[B, labels]'}
  columns = {x: f'table.{x}_column' for x in ('text', 'pair', 'label')}
  shows = 'prediction', 'probability', 'probabilities'
  tabs = True  # so that a pair is never taken for a single text

  def __init__(self, model: 'Loaded'):
    super().__init__(model)
    if 'table' in model.config and model.config.table.pair_column:
      self.fields = ('text', 'pair')
    elif not model.step:
      self.advice = '; --task pair reads pairs'

  def record(self, fields: dict[str, Any]) -> Example:
    if 'pair' in fields and 'pair' not in self.fields:
      raise InputError(f'this model reads single texts{self.advice}')
    return Example('', '', tuple(texts_in(fields, self.fields)), None)

  def given(self, row: Row) -> dict[str, Any]:
    """As its columns, but a label of a CSV as in answers, so that the two can be compared."""
    out, name = super().given(row), first_of(row, self.spelt('label'))
    if name and not row.record and 'table' in self.model.config:
      with contextlib.suppress(Unusable):
        labels = LabelReader(self.model.config.table, RecordProblems())
        out[name] = labels.label(row[name], '')
    return out

  def returned(self, answers: list[dict | None]) -> list:
    name = 'prediction' if self.model.objective.regression else 'probabilities'
    return [answer and answer[name] for answer in answers]


class Pair(Classify):
  """Classifies pairs of texts. A released classifier does not say whether it reads pairs."""

  fields = ('text', 'pair')

  @classmethod
  def suits(cls, model: 'Loaded') -> bool:
    return not model.step or bool(model.config.table.pair_column)


BASELINE_FIELDS = ('data.train', 'data.eval', 'task.train_examples', *{*FIELDS} - {'table.prior'})
LACKS = 'classifier; fine-tune one (configs/finetune.py)'
NO_PAIRS = 'classifier of pairs; fine-tune one (configs/finetune.py)'
PARTS = ('encoder', 'pooler', 'classifier')

CLASSIFICATION = labelled.family(
  'classification',
  objective=task.objective,
  texts=task.texts,
  sources=task.sources,
  resolve=task.resolve,
  formats=('table',),
  label_column=label_column,
  main_metric=main_metric,
  fields=FIELDS,
  rules=rules,
  without_effect=without_effect,
  predictions={
    'classify': Prediction(Classify, lacks=LACKS),
    'pair': Prediction(Pair, lacks=NO_PAIRS),
  },
  heads=(
    Head('ForSequenceClassification', PARTS, 'text-classification'),
    Head('ForSequenceClassification', PARTS[::2], 'text-classification', causal=True),
  ),
  from_released=from_released,
  prior='table.prior',
  numbers='table.regression',
  sigmoid='table.sigmoid',
  remarks=remarks_on,
  as_released=as_released,
  stand_in=stand_in,
  card=card,
  plain_baseline=PlainBaseline('TF-IDF + linear SVM', BASELINE_FIELDS, linear.metrics),
  of_vectors=linear.vector_scores,
)
