"""Sequence to sequence: translation, summaries, and other tables of sources and targets."""

from bert_jax import models
from bert_jax.field import Field
from bert_jax.tasks import labelled
from bert_jax.tasks.record import Head, Prediction
from bert_jax.tasks.translation import task
from bert_jax.tasks.translation.ask import OPTIONS, Translate

FIELDS = {
  'translation.source_column': Field(str, None,
    'column of the source, or name of its file; a|b: the first of these that is there', 'source'),
  'translation.target_column': Field(str, None, 'the same of the target', 'target'),
  'translation.columns': Field(tuple, str,
    'names of the columns of a TSV without header; empty: it has one', ()),
  'translation.target_length': Field(int, '[0, inf)',
    'tokens of the target side of a row; 0: data.seq_length', 0),
  'translation.begin': Field(str, ('cls', 'sep'),
    'what a target begins with: [CLS]; or [SEP], with [CLS] as its first token (BART)', 'cls',
    'cls'),
  'translation.too_long': Field(str, ('leave_out', 'cut'),
    'what training does with a pair that is longer than a row, or than task.max_length',
    'leave_out'),
  'translation.label_smoothing': Field(float, '[0, 1)',
    'share of the probability that the loss wants spread over all words', 0.1),
  'translation.beams': Field(int, '[0, inf)',
    'beams by which evaluations and predictions write; 0: evaluations write nothing', 4),
  'translation.length_penalty': Field(float, None,
    'a text is as good as its log-probability, divided by its length to this power', 1.0),
}  # fmt: skip

# The base model of Vaswani et al. 2017 (section 5), with about as many tokens in a step.
DEFAULTS = {
  'batch_size': 128,
  'steps': 100_000,
  'epochs': 0.0,
  'data.seq_length': 256,
  'tokenizer.kind': 'unigram',
  'tokenizer.do_lower_case': False,
  'model.type_vocab_size': 0,
  'model.position_embeddings': 'sinusoidal',
  'model.embedding_scale': True,
  'model.embedding_norm': False,
  'model.hidden_act': 'relu',
  'model.mlm_head': 'none',
  'optimizer.learning_rate': 7e-4,
  'optimizer.schedule': 'inverse_sqrt',
  'optimizer.warmup': 4000.0,
  'optimizer.beta2': 0.98,
  'optimizer.eps': 1e-9,
  'optimizer.weight_decay': 0.0,
  'optimizer.clip_norm': 0.0,
  'checkpoint.best_metric': 'bleu',
}


def decoder_rules(config):
  """Yields (what must hold, the sentence if it does not) for a model with a decoder."""
  sentence = models.unsupported(models.ModelConfig(**config.model), causal=True)
  yield not sentence, sentence
  causal = 'model.causal=true would hide the rest of a source from its encoder; set it to false.'
  yield not config.model.causal, causal


def rules(config):
  yield from labelled.rules(config)
  yield from decoder_rules(config)
  translation, limit = config.translation, config.task.max_length
  length, longest = translation.target_length, config.model.max_position_embeddings
  fits = (limit and limit <= longest) or length <= longest
  long = (
    f'translation.target_length {length} is longer than model.max_position_embeddings {longest}; '
    'raise the one, lower the other, or set task.max_length.'
  )
  yield not models.has_position_table(config.model) or fits, long
  same = translation.source_column != translation.target_column
  both = f'translation.source_column and target_column are both {translation.source_column!r}'
  yield same, f'{both}; name two columns.'
  best = config.checkpoint.best_metric
  unwritten = f'checkpoint.best_metric={best} is of what an evaluation writes, and with '
  yield (
    translation.beams > 0 or best not in task.SCORES,
    f'{unwritten}translation.beams=0 it writes nothing; set it to 1 or more.',
  )


def from_released(config, released):
  config.translation.begin = released.begin


HEADS = (Head('ForConditionalGeneration', ('encoder', 'decoder', 'mlm'), 'text2text-generation'),)
LACKS = 'decoder that was trained on pairs; train one with configs/translate.py'

TRANSLATION = labelled.family(
  'translation',
  task,
  formats=('pairs',),
  has_teacher=False,
  main_metric=lambda config: 'bleu' if config.translation.beams else 'translation_nats',
  fields=FIELDS,
  rules=rules,
  defaults=DEFAULTS,
  predictions={
    'translate': Prediction(Translate, ('encoder', 'decoder', 'mlm'), LACKS, options=OPTIONS)
  },
  heads=HEADS,
  from_released=from_released,
  begin='translation.begin',
)
