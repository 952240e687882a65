"""What all families of labelled examples share: the fields of `task`, rules, defaults, sources."""

import numpy as np
from ml_collections import ConfigDict

from bert_jax import models
from bert_jax.field import Field, affecting
from bert_jax.metrics import Level
from bert_jax.tasks import remarks, teaching
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.record import Card, Family

# BERT's recipe for fine-tuning (Devlin et al. 2018, appendix A.3), with bias correction. Without
# it, as in BERT's release, the first steps are several times as long, and training on small data
# sets collapses (Mosbach et al. 2021, Zhang et al. 2021).
DEFAULTS = {
  'batch_size': 8,
  'steps': 0,
  'epochs': 3.0,
  'data.examples_per_row': 16,
  'optimizer.name': 'adamw',
  'optimizer.learning_rate': 3e-5,
  'optimizer.warmup': 0.1,
  'eval.every': 0,
  'eval.batches': 0,
  'checkpoint.every': 1000,
  'checkpoint.keep_latest': 1,
  'checkpoint.best_mode': 'max',
  'log.every': 50,
}


def task_fields(*formats):
  """The fields of the block `task` for a family that reads these formats (the first: default)."""
  layout = 'how the files are laid out, see the module that reads them'
  most = 'tokens of an example (or choice), [CLS] and [SEP] included; 0, not of choices: seq_length'
  return affecting(
    {'rows'},
    {
      'task.format': Field(formats[0], layout, allowed=formats),
      'task.max_length': Field(0, most, allowed='[0, inf)'),
      'task.train_examples': Field(
        0, 'train on this many examples only; 0: all', allowed='[0, inf)'
      ),
    },
  )


def rules(config, pairs=False):
  """Yields (what must hold, the sentence if not) for each rule. pairs: the family reads pairs."""
  if 'teacher' in config:
    yield from teaching.rules(config)
  limit = config.task.max_length
  small = f'task.max_length is {limit}; examples take 8 tokens at least, 0 is the whole row.'
  yield not 0 < limit < 8, small
  row = f'data.seq_length {config.data.seq_length}, the row that examples go into'
  long = f'task.max_length {limit} is longer than {row}; lower the one or raise the other.'
  yield limit <= config.data.seq_length, long
  one_type = 'pairs have two token types; set model.type_vocab_size to 2, or to 0 for none.'
  yield not pairs or config.model.type_vocab_size != 1, one_type


def family(name, task, *, formats, fields=(), defaults=(), has_teacher=True, **more):
  """Makes the record of a family that reads files of these formats, from the functions in `task`.
  fields: in addition to the fields of every such family. defaults: override or extend DEFAULTS.
  has_teacher: its models can be distilled from a teacher."""
  names = ('resolve', 'texts', 'objective', 'sources')
  functions = {name: getattr(task, name) for name in names if hasattr(task, name)}

  def remarks_on(config, tokenizer, sources):
    return remarks.about_examples(config, tokenizer, task.texts(config), sources['train'])

  fields, defaults = task_fields(*formats) | dict(fields), DEFAULTS | dict(defaults)
  functions |= {'rules': rules, 'remarks': remarks_on, 'limit_field': 'task.max_length'}
  functions |= {'card': card()}
  if has_teacher:
    fields |= teaching.FIELDS
    functions |= {'rules_to_begin': teaching.rules_to_begin, 'taught': teaching.by_answers}
  functions |= more
  return Family(name=name, fields=fields, defaults=defaults, **functions)


def card(**said):
  """The `card` function of a family whose Card does not depend on the config."""
  return lambda config: Card(f'`{config.objective}`', **{'longer_texts': 'head'} | said)


def objective(kind, config, *arguments, **options):
  """Makes an objective of a class `kind`, an OfExamples, for a config's model and rows."""
  model, data = models.ModelConfig(**config.model), config.data
  options['examples_per_row'] = data.examples_per_row
  return kind(model, data.seq_length, *arguments, **options)


def limit(config: ConfigDict) -> int:
  """The most tokens of an example, special ones included."""
  return config.task.max_length or config.data.seq_length


def shape(config):
  """The arguments of rows.examples.Examples for the size of a row."""
  shape = {'seq_length': config.data.seq_length, 'slots': config.data.examples_per_row}
  return shape | {
    'align': config.model.recurrent_length or 1
  }  # the positions at which stretches begin


def sources_of(read, rows, has_eval=lambda config: False):
  """Makes the `sources` function of a family from two functions: read(config, split, problems)
  yields examples, rows(config, tokenizer, examples, problems) makes rows of them. has_eval(config):
  there is evaluation data even without data.eval."""

  def sources(config, tokenizer, splits=('train', 'eval')):
    def rows_of(split, problems):
      examples = problems.chosen(list(read(config, split, problems)), config.task.train_examples)
      return rows(config, tokenizer, examples, problems)

    return in_splits(config, splits, rows_of, has_eval(config))

  return sources


def in_splits(config, splits, rows_of, has_eval=False):
  """Reads the splits, {split: rows_of(split, problems)}, and logs the problems. Without data.eval
  there is no `eval`, unless has_eval. rows_of makes a scored.Scored of the examples of a split."""
  out = {}
  for split in splits:
    if split == 'train' or config.data.eval or has_eval:
      problems = Problems(split, config.data.skip_damaged)
      out[split] = rows_of(split, problems)
      problems.log(out[split])
  return out


def majority(labels):
  """The baseline accuracy of always answering the most frequent of these label numbers."""
  return Level(float(np.bincount(labels).max() / len(labels)), 'majority')


def always(kind, scores):
  """Baselines of a kind, from the {metric: score} of one constant answer."""
  return {name: Level(float(score), kind) for name, score in scores.items()}


def f1_of_all(share):
  """The F1 of giving one label to every example, when it is right for this share of them."""
  return 2 * share / (1 + share)
