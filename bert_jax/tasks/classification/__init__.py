"""Classification and regression of texts and pairs: GLUE, any table with named columns."""

from bert_jax.errors import InputError, quoted
from bert_jax.field import pairs_with_positive_numbers
from bert_jax.tasks import labelled, remarks
from bert_jax.tasks.classification import label_remarks, linear, preparing, task
from bert_jax.tasks.classification.ask import Classify, Pair
from bert_jax.tasks.classification.fields import FIELDS
from bert_jax.tasks.record import Card, Head, PlainBaseline, Prediction


def rules(config):
  table, weights = config.table, config.table.class_weights
  yield from labelled.rules(config, pairs=bool(table.pair_column))
  advice = 'leave table.labels and table.class_weights empty and table.multi_label false'
  has_labels = bool(table.labels or table.multi_label or weights)
  yield not (table.regression and has_labels), f'table.regression has no label set; {advice}.'
  odd = f"table.class_weights is {quoted(weights)}; write ((label, weight), ...) or ('balanced',)."
  yield weights == ('balanced',) or pairs_with_positive_numbers(weights), odd
  both = (
    f'table.lm_weight is {table.lm_weight}, for causal models; set model.causal=true, or it to 0.'
  )
  yield not table.lm_weight or config.model.causal, both
  taught = f'table.lm_weight is {table.lm_weight}, which no teacher knows of; set it to 0.'
  yield not table.lm_weight or not config.teacher, taught
  single = f'table.long_texts={table.long_texts} is for single texts'
  share = f'table.eval_share {table.eval_share} is a share of data.train, which is empty'
  yield not table.eval_share or bool(config.data.train), f'{share}; name the training data.'
  cut = f'{single}; of a pair the longer text loses its end.'
  yield not table.pair_column or table.long_texts == 'head', cut
  yield from hierarchical_rules(config)


def hierarchical_rules(config):
  row, window = config.data.seq_length, config.task.max_length
  several = not window or row < 2 * window
  is_hierarchical = config.table.long_texts == 'hierarchical'
  setting = 'table.long_texts=hierarchical puts all windows of a text into one row'
  yield (
    not is_hierarchical or not several,
    f'{setting}, and data.seq_length {row} holds less than two of task.max_length {window}; set '
    'task.max_length=128, say, and data.seq_length to a multiple of it.',
  )
  slots, most = config.data.examples_per_row, row // max(1, window)
  yield (
    not is_hierarchical or several or slots >= most,
    f'{setting}, up to {most}, and data.examples_per_row is {slots}; set it to {most} or more.',
  )


def main_metric(config):
  if config.table.regression:
    return 'pearson'
  return 'micro_f1' if config.table.multi_label else 'classification_accuracy'


def from_released(config, released):
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


def problem(config):
  if config.table.regression:
    return 'regression'
  return f'{"multi" if config.table.multi_label else "single"}_label_classification'


def stand_in(config):
  if not config.table.labels and not config.table.regression:
    config.table.labels = ('0', '1')
  return config


def remarks_on(config, tokenizer, sources):
  out = remarks.about_examples(config, tokenizer, task.texts(config), sources['train'])
  return out + label_remarks.remarks(config, sources)


def card(config):
  table = config.table
  return Card(
    f'`{config.objective}`',
    reads_pairs=bool(table.pair_column),
    all_labels=table.multi_label,
    longer_texts='windows' if table.long_texts == 'hierarchical' else table.long_texts,
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
