"""The fields in the block `optimizer`; optim.py explains them."""

import re

from bert_jax.field import Field

FIELDS = {
  'optimizer.name': Field(str, ('bert_adamw', 'adamw', 'stable_adamw', 'lamb', 'muon'),
    'bert_adamw: AdamW without bias correction; see optim.py', 'bert_adamw'),
  'optimizer.learning_rate': Field(float, '[0, inf)', 'peak', 1e-4),
  'optimizer.schedule': Field(str,
    ('linear', 'cosine', 'constant', 'inverse_sqrt', 'wsd', 'wsd_sqrt'),
    "see optim.py; linear is BERT's, counted from step 0", 'linear'),
  'optimizer.warmup': Field(float, '[0, inf)',
    'steps of linear warm-up; below 1: a share of the run', 10_000.0),
  'optimizer.horizon': Field(float, '[1, inf)',
    'length of the schedule, in lengths of this run; what is over is for a run that continues it',
    1.0),
  'optimizer.decay': Field(float, '[0, inf)',
    'steps of decay at the end for wsd and wsd_sqrt; below 1: a share', 0.0),
  'optimizer.final_rate': Field(float, '[0, 1)',
    'what a rate that falls to 0 falls to instead, as a share of the peak', 0.0, past=0.0),
  'optimizer.beta1': Field(float, '[0, 1)', 'decay of the mean of gradients', 0.9),
  'optimizer.beta2': Field(float, '[0, 1)', 'decay of the mean of their squares', 0.999),
  'optimizer.eps': Field(float, '(0, inf)', 'added to the root of that', 1e-6),
  'optimizer.weight_decay': Field(float, '[0, inf)', 'of AdamW, times the learning rate', 0.01),
  'optimizer.no_decay': Field(str, None, 'regex on parameter paths: no weight decay',
    'LayerNorm|bias'),
  'optimizer.clip_norm': Field(float, '[0, inf)', 'clip gradients to this global norm; 0: do not',
    1.0),
  'optimizer.accumulation': Field(int, '[1, inf)', 'microbatches per step; divides batch_size', 1),
  'optimizer.skip_nonfinite': Field(int, '[0, inf)',
    'steps in a row without a finite loss and gradient that end the run, which skips them until '
    'then; 0: the first one ends it', 0, past=0),
  'optimizer.batch_warmup': Field(float, '[0, inf)',
    'steps over which a batch grows from one microbatch to all; below 1: a share', 0.0, past=0.0),
  'optimizer.freeze': Field(str, None, 'regex on parameter paths: not trained', ''),
  'optimizer.lr_multipliers': Field(tuple, None, '((regex, factor), ...); the first match counts',
    ()),
  'optimizer.layer_lr_decay': Field(float, '(0, 1]', 'factor on the rate per layer below the heads',
    1.0),
}  # fmt: skip


def rules(config):
  """Yields (what must hold, the sentence if it does not)."""
  optimizer = config.optimizer
  yield (
    config.batch_size % optimizer.accumulation == 0,
    f'batch_size {config.batch_size} does not divide into optimizer.accumulation '
    f'{optimizer.accumulation} microbatches; use a multiple.',
  )
  yield (
    not optimizer.batch_warmup or optimizer.accumulation > 1,
    'optimizer.batch_warmup adds microbatches one by one; set optimizer.accumulation above 1.',
  )
  yield (
    not optimizer.batch_warmup or config.steps > 0,
    'optimizer.batch_warmup makes the number of steps in an epoch unclear; set steps instead.',
  )
  yield (
    all(map(_is_multiplier, optimizer.lr_multipliers)),
    f'optimizer.lr_multipliers is {optimizer.lr_multipliers!r}; write ((regex, factor), ...) with '
    'factors of 0 or more.',
  )
  yield (
    not optimizer.schedule.startswith('wsd') or optimizer.decay > 0,
    f'optimizer.schedule={optimizer.schedule} decays over the last optimizer.decay steps; set it '
    'above 0.',
  )
  patterns = (pattern for pattern, _ in optimizer.lr_multipliers)
  for pattern in (optimizer.no_decay, optimizer.freeze, *patterns):
    fault = _fault(pattern)
    yield not fault, f'{pattern!r} in config.optimizer is not a regex: {fault}.'


def rules_to_begin(config):
  """The same of a run that begins."""
  optimizer = config.optimizer
  decays = optimizer.schedule.startswith('wsd')
  yield (
    decays or not optimizer.decay,
    f'optimizer.decay is {optimizer.decay:g}, and optimizer.schedule={optimizer.schedule} has no '
    'such steps; set it to 0, or the schedule to wsd.',
  )
  both = optimizer.warmup + optimizer.decay
  shares = optimizer.warmup < 1 and optimizer.decay < 1
  yield (
    not (decays and shares and both > 1 + 1e-6),
    f'optimizer.warmup and optimizer.decay are {both:g} of the run together, and the rate would '
    'fall where the warm-up ends; lower one of them.',
  )


def _is_multiplier(pair):
  if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
    return False
  return isinstance(pair[1], (int, float)) and pair[1] >= 0


def _fault(pattern):
  """What is wrong with a regex, or ''."""
  try:
    re.compile(pattern)
  except re.error as error:
    return str(error)
  return ''
