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
# that, as in BERT's release, the first steps are several times as long, and training on small data
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
  """The fields of the block `task` of a family that reads these formats; the first is default."""
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
  """Yields (what must hold, the sentence if it does not) for each rule. pairs: it reads pairs."""
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
  """The record of a family that reads files of these formats, and whose functions are in `task`.
  fields: added to those of every such family. defaults: added to DEFAULTS, or replacing them.
  has_teacher: can its models learn from one?"""
  names = ('resolve', 'texts', 'objective', 'sources')
  functions = {name: getattr(task, name) for name in names if hasattr(task, name)}

  def remarks_on(config, tokenizer, sources):
    return remarks.of_examples(config, tokenizer, task.texts(config), sources['train'])

  fields, defaults = task_fields(*formats) | dict(fields), DEFAULTS | dict(defaults)
  functions |= {'rules': rules, 'remarks': remarks_on, 'limit_field': 'task.max_length'}
  functions |= {'card': card()}
  if has_teacher:
    fields |= teaching.FIELDS
    functions |= {'rules_to_begin': teaching.rules_to_begin, 'taught': teaching.by_answers}
  functions |= more
  return Family(name=name, fields=fields, defaults=defaults, **functions)


def card(**said):
  """The `card` of a family of which the same is to be said whatever its config."""
  return lambda config: Card(f'`{config.objective}`', **{'longer_texts': 'head'} | said)


def objective(kind, config, *arguments, **options):
  """The objective of this class, an OfExamples, for the model and the rows of a config."""
  model, data = models.ModelConfig(**config.model), config.data
  options['examples_per_row'] = data.examples_per_row
  return kind(model, data.seq_length, *arguments, **options)


def limit(config: ConfigDict) -> int:
  """Returns the most tokens of an example, special ones included."""
  return config.task.max_length or config.data.seq_length


def shape(config):
  """The arguments of rows.examples.Examples that say how large a row is."""
  shape = {'seq_length': config.data.seq_length, 'slots': config.data.examples_per_row}
  return shape | {'align': config.model.recurrent_length or 1}  # where stretches begin


def sources_of(read, rows, has_eval=lambda config: False):
  """The `sources` of a family: its rows are rows(config, tokenizer, examples, problems) of the
  examples that read(config, split, problems) yields. has_eval(config): is there data to evaluate on
  without data.eval?"""

  def sources(config, tokenizer, splits=('train', 'eval')):
    def rows_of(split, problems):
      examples = problems.chosen(list(read(config, split, problems)), config.task.train_examples)
      return rows(config, tokenizer, examples, problems)

    return in_splits(config, splits, rows_of, has_eval(config))

  return sources


def in_splits(config, splits, rows_of, has_eval=False):
  """{split: rows_of(split, problems)}; without data.eval there is no `eval`, unless has_eval.
  rows_of reads the examples of a split and makes a scored.Scored of them. What it notes in
  `problems` is logged."""
  out = {}
  for split in splits:
    if split == 'train' or config.data.eval or has_eval:
      problems = Problems(split, config.data.skip_damaged)
      out[split] = rows_of(split, problems)
      problems.log(out[split])
  return out


def majority(labels):
  """The accuracy of always answering the commonest of these label numbers, as a baseline."""
  return Level(float(np.bincount(labels).max() / len(labels)), 'majority')


def always(kind, scores):
  """{metric: score} of the same answer to everything as baselines of this kind."""
  return {name: Level(float(score), kind) for name, score in scores.items()}


def f1_of_all(share):
  """The F1 of a label that is given to everything, and right for this share."""
  return 2 * share / (1 + share)
