"""Classification and regression of texts and pairs: GLUE, any table with named columns."""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.errors import InputError, quoted
from bert_jax.field import pairs_with_positive_numbers
from bert_jax.tasks import labelled, remarks
from bert_jax.tasks.classification import label_remarks, linear, preparing, task
from bert_jax.tasks.classification.ask import Classify, Pair
from bert_jax.tasks.classification.fields import FIELDS
from bert_jax.tasks.record import Card, Head, PlainBaseline, Prediction, Released
from bert_jax.tokenizers import Tokenizer


def rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  table, weights, single = config.table, config.table.class_weights, not config.table.pair_column
  yield from labelled.rules(config, pairs=not single)
  advice = 'leave table.labels and table.class_weights empty and table.multi_label false'
  has_labels = table.labels or table.multi_label or weights
  yield not (table.regression and has_labels), f'table.regression has no label set; {advice}.'
  odd = f"table.class_weights is {quoted(weights)}; write ((label, weight), ...) or ('balanced',)."
  yield weights == ('balanced',) or pairs_with_positive_numbers(weights), odd
  lm = f'table.lm_weight is {table.lm_weight}'
  both = f'{lm}, for causal models; set model.causal=true, or it to 0.'
  yield not table.lm_weight or config.model.causal, both
  taught = f'{lm}, which no teacher knows of; set it to 0.'
  yield not table.lm_weight or not config.teacher, taught
  share = f'table.eval_share {table.eval_share} is a share of data.train, which is empty'
  yield not table.eval_share or config.data.train, f'{share}; name the training data.'
  long = f'table.long_texts={table.long_texts}'
  cut = f'{long} is for single texts; of a pair the longer text loses its end.'
  yield single or table.long_texts == 'head', cut
  if table.long_texts == 'hierarchical':
    row, window = config.data.seq_length, config.task.max_length
    setting, two = f'{long} puts all windows of a text into one row', window and row >= 2 * window
    less = f'data.seq_length {row} holds less than two of task.max_length {window}'
    advice = 'set task.max_length=128, say, and data.seq_length to a multiple of it'
    yield two, f'{setting}, and {less}; {advice}.'
    slots, most = config.data.examples_per_row, row // max(1, window)
    few = f'up to {most}, and data.examples_per_row is {slots}; set it to {most} or more.'
    yield not two or slots >= most, f'{setting}, {few}'


def main_metric(config: ConfigDict) -> str:
  if config.table.regression:
    return 'pearson'
  return 'micro_f1' if config.table.multi_label else 'classification_accuracy'


def from_released(config: ConfigDict, released: Released) -> None:
  labels, table = released.labels(), config.table
  if released.problem == 'regression' and len(labels) > 1:
    outputs = f'{len(labels)} outputs, and ours has one'
    raise InputError(f'the regression has {outputs}, so it cannot be read.')
  table.multi_label = released.problem == 'multi_label_classification'
  table.regression = not table.multi_label and len(labels) == 1
  if odd := [label for label in labels if '|' in label]:
    fault = f'the label {quoted(odd[0])} holds a |, which stands between two spellings here'
    raise InputError(f'{fault}; rename it in id2label.')
  if not table.regression:
    table.labels = labels


def problem(config: ConfigDict) -> str:
  if config.table.regression:
    return 'regression'
  return f'{"multi" if config.table.multi_label else "single"}_label_classification'


def stand_in(config: ConfigDict) -> ConfigDict:
  if not config.table.labels and not config.table.regression:
    config.table.labels = ('0', '1')
  return config


def remarks_on(config: ConfigDict, tokenizer: Tokenizer, sources: Mapping[str, Any]) -> list[str]:
  out = remarks.about_examples(config, tokenizer, task.texts(config), sources['train'])
  return out + label_remarks.remarks(config, sources)


def card(config: ConfigDict) -> Card:
  long = config.table.long_texts
  return Card(
    f'`{config.objective}`',
    reads_pairs=bool(config.table.pair_column),
    all_labels=config.table.multi_label,
    longer_texts='windows' if long == 'hierarchical' else long,
    shares_of_examples=('classification_accuracy',),
  )


BASELINE_FIELDS = ('data.train', 'data.eval', 'task.train_examples', *FIELDS)
ASKS = {'classify': Classify, 'pair': Pair}
LACKS = 'classifier; fine-tune one (configs/finetune.py)'
PARTS = ('encoder', 'pooler', 'classifier')

CLASSIFICATION = labelled.family(
  'classification',
  task,
  formats=('table',),
  main_metric=main_metric,
  fields=FIELDS,
  rules=rules,
  predictions={name: Prediction(ask, lacks=LACKS) for name, ask in ASKS.items()},
  heads=(Head('ForSequenceClassification', PARTS, 'text-classification'),),
  from_released=from_released,
  remarks=remarks_on,
  problem=problem,
  stand_in=stand_in,
  reads_stretches=True,
  training_fields=('table.eval_share',),
  text_columns=lambda config: tuple(config.table.text_column.split('|')),
  cuts=lambda config: 'left' if config.table.long_texts == 'tail' else 'right',
  card=card,
  plain_baseline=PlainBaseline('TF-IDF + linear SVM', BASELINE_FIELDS, linear.metrics),
  prepare=preparing.prepare,
)
