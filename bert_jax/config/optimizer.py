"""The config fields of the block `optimizer`; optim.py explains them."""

import re
from collections.abc import Iterator

from ml_collections import ConfigDict

from bert_jax.field import Field, pairs_with_positive_numbers
from bert_jax.optim import OPTIMIZERS
from bert_jax.timeline import SCHEDULES

FIELDS = {
  'optimizer.name': Field('bert_adamw', 'bert_adamw: AdamW without bias correction; see optim.py',
    allowed=tuple(OPTIMIZERS), affects={'weights'}),
  'optimizer.learning_rate': Field(1e-4, 'peak; 0 where it is the default: 3e-5, or 2e-4 '
    'for an encoder narrower than 512 (elsewhere: lr, peak_lr)', allowed='[0, inf)'),
  'optimizer.schedule': Field('linear', "see timeline.py; linear is BERT's, counted from step 0",
    allowed=tuple(SCHEDULES)),
  'optimizer.warmup': Field(10_000.0, 'steps of linear warm-up; below 1: a share of the run '
    '(elsewhere: warmup_steps, num_warmup_steps, warmup_ratio)',
    allowed='[0, inf)'),
  'optimizer.horizon': Field(1.0, 'length of the schedule, in lengths of this run; what is over is '
    'for a run that continues it', allowed='[1, inf)'),
  'optimizer.decay': Field(0.0, 'steps of decay at the end for wsd and wsd_sqrt; below 1: a share',
    allowed='[0, inf)'),
  'optimizer.final_rate': Field(0.0, 'what a rate that falls to 0 falls to instead, as a share of '
    'the peak', allowed='[0, 1)'),
  'optimizer.beta1': Field(0.9, 'decay of the mean of gradients (elsewhere: momentum)',
    allowed='[0, 1)'),
  'optimizer.beta2': Field(0.999, 'decay of the mean of their squares', allowed='[0, 1)'),
  'optimizer.eps': Field(1e-6, 'added to the root of that', allowed='(0, inf)'),
  'optimizer.weight_decay': Field(0.01, 'of AdamW, times the learning rate', allowed='[0, inf)'),
  'optimizer.no_decay': Field('LayerNorm|bias', 'regex on parameter paths: no weight decay'),
  'optimizer.clip_norm': Field(1.0, 'clip gradients to this global norm; 0: do not',
    allowed='[0, inf)'),
  'optimizer.accumulation': Field(1, 'microbatches per step; divides batch_size (elsewhere: '
    'gradient_accumulation_steps, grad_accum)',
    allowed='[1, inf)'),
  'optimizer.skip_nonfinite': Field(0, 'steps in a row without a finite loss and gradient that end '
    'the run, which skips them until then; 0: the first one ends it', allowed='[0, inf)'),
  'optimizer.batch_warmup': Field(0.0, 'steps over which batches grow, from one microbatch to all; '
    'those without rows cost nothing; below 1: a share', allowed='[0, inf)'),
  'optimizer.freeze': Field('', 'regex on parameter paths: not trained',
    affects={'weights'}),
  'optimizer.lr_multipliers': Field((), '((regex, factor), ...); the first match counts'),
  'optimizer.layer_lr_decay': Field(1.0, 'factor on the rate per layer below the heads',
    allowed='(0, 1]'),
  'optimizer.layer_lr_last': Field(1, 'layer_lr_decay to this power is the factor of the last '
    'layer: 2 as in ELECTRA', allowed='[1, inf)'),
}  # fmt: skip


def rules(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  optimizer, parts = config.optimizer, config.optimizer.accumulation
  yield (
    config.batch_size % parts == 0,
    f'batch_size {config.batch_size} does not divide into optimizer.accumulation {parts} '
    'microbatches; use a multiple.',
  )
  grows = optimizer.batch_warmup > 0
  yield not grows or parts > 1, 'optimizer.batch_warmup wants optimizer.accumulation above 1.'
  yield not grows or config.steps > 0, 'optimizer.batch_warmup wants steps in place of epochs.'
  yield (
    pairs_with_positive_numbers(optimizer.lr_multipliers),
    f'optimizer.lr_multipliers is {optimizer.lr_multipliers!r}; write ((regex, factor), ...) with '
    'factors above 0 (optimizer.freeze is 0).',
  )
  yield (
    optimizer.schedule.startswith('wsd') == (optimizer.decay > 0),
    f'optimizer.decay is {optimizer.decay:g} with optimizer.schedule={optimizer.schedule}; wsd and '
    'wsd_sqrt have such steps, the others have 0.',
  )
  for pattern in (optimizer.no_decay, optimizer.freeze, *dict(optimizer.lr_multipliers)):
    try:
      re.compile(pattern)
    except re.error as error:
      yield False, f'{pattern!r} in config.optimizer is not a regex: {error}.'
