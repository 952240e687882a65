"""What the fields of a config must be to each other; each by itself is checked in config.py."""

import re

from bert_jax.config.fields import FORMATS, POLICIES, InputError


def check_combinations(config):
  """InputError unless the fields of a config, each right by itself, go together."""
  m, o = config.model, config.optimizer
  # Positions are counted in each example of a row, so a row may be longer than the table of them.
  limit = 0 if config.objective == 'mlm_nsp' else config.task.max_length
  longest = limit or config.data.seq_length
  rules = [
    (
      m.hidden_size % m.num_attention_heads == 0,
      f'model.hidden_size {m.hidden_size} does not divide into model.num_attention_heads '
      f'{m.num_attention_heads}; use a multiple.',
    ),
    (
      m.position_embeddings == 'none' or longest <= m.max_position_embeddings,
      f'{"task.max_length" if limit else "data.seq_length"} {longest} is longer than model.'
      f'max_position_embeddings {m.max_position_embeddings}; raise the one or lower the other.',
    ),
    (
      m.attention_implementation == 'einsum' or m.attention_probs_dropout_prob == 0,
      f'model.attention_implementation={m.attention_implementation} cannot drop attention '
      'probabilities; set model.attention_probs_dropout_prob=0 or use einsum.',
    ),
    (
      (config.steps > 0) != (config.epochs > 0),
      f'steps is {config.steps} and epochs is {config.epochs}; set exactly one of them above 0.',
    ),
    (
      config.batch_size % o.accumulation == 0,
      f'batch_size {config.batch_size} does not divide into optimizer.accumulation '
      f'{o.accumulation} microbatches; use a multiple.',
    ),
    (
      [config.mesh.data, config.mesh.fsdp, config.mesh.tensor].count(-1) <= 1,
      'only one axis of the mesh can be -1 (all the rest).',
    ),
    (
      0 not in (config.mesh.data, config.mesh.fsdp, config.mesh.tensor),
      'a mesh axis is 0; use 1 for an axis that splits nothing, -1 for all the rest.',
    ),
    (
      all(
        isinstance(p, tuple)
        and len(p) == 2
        and isinstance(p[0], str)
        and isinstance(p[1], (int, float))
        and p[1] >= 0
        for p in o.lr_multipliers
      ),
      f'optimizer.lr_multipliers is {o.lr_multipliers!r}; write ((regex, factor), ...) with '
      'factors of 0 or more.',
    ),
    (
      o.schedule != 'wsd' or o.decay > 0,
      'optimizer.schedule=wsd decays over the last optimizer.decay steps; set it above 0.',
    ),
    (
      m.attention_implementation != 'cudnn' or m.dtype == 'bfloat16',
      'model.attention_implementation=cudnn computes in bfloat16; set model.dtype=bfloat16.',
    ),
    (
      m.attention_implementation != 'splash' or config.data.seq_length % 128 == 0,
      f'model.attention_implementation=splash takes rows of a multiple of 128 tokens, and '
      f'data.seq_length is {config.data.seq_length}; change one of them.',
    ),
    (
      not config.checkpoint.best_metric or config.eval.batches == 0,
      f'checkpoint.best_metric compares whole evaluations but eval.batches is '
      f'{config.eval.batches}; set eval.batches=0.',
    ),
    (
      not config.eval.patience or (config.eval.every and config.checkpoint.best_metric),
      'eval.patience counts evaluations without a better checkpoint.best_metric; set that and '
      'eval.every.',
    ),
    (
      not (config.init_from and config.resume_from),
      'init_from (weights only) and resume_from (the whole state) are both set; choose one.',
    ),
  ]
  if config.objective == 'mlm_nsp':
    masking_stages(config.masking.policy)
    rules += [
      (
        config.masking.mask_share + config.masking.random_share <= 1,
        'masking.mask_share and masking.random_share add up to more than 1.',
      ),
      (
        config.loss.nsp_weight == 0 or config.corpus.rows in ('nsp', 'sop'),
        f'loss.nsp_weight is {config.loss.nsp_weight} but corpus.rows={config.corpus.rows} makes '
        'no sentence pairs; set loss.nsp_weight=0 or corpus.rows=nsp.',
      ),
      (
        config.loss.nsp_weight == 0 or m.type_vocab_size >= 2 or m.type_vocab_size == 0,
        'NSP rows have two token types; set model.type_vocab_size to 2, or to 0 for none.',
      ),
      (
        all(
          isinstance(p, tuple) and len(p) == 2 and isinstance(p[1], (int, float)) and p[1] > 0
          for p in config.corpus.weights
        ),
        f'corpus.weights is {config.corpus.weights!r}; write ((language, factor), ...) with '
        'factors above 0; corpus.languages leaves languages out.',
      ),
    ]
  else:
    rules += [
      (
        not 0 < limit < 8,
        f'task.max_length is {limit}; examples take 8 tokens at least, 0 is the whole row.',
      ),
      (
        longest <= config.data.seq_length,
        f'task.max_length {limit} is longer than data.seq_length {config.data.seq_length}, the row '
        'that examples go into; lower the one or raise the other.',
      ),
      (
        config.objective != 'choice' or limit > 3,
        f'task.max_length is {limit}; set it to the tokens of one choice, which share a row of '
        'data.seq_length.',
      ),
      (
        config.task.format in FORMATS[config.objective],
        f'task.format={config.task.format} is not one of objective {config.objective}: '
        f'{", ".join(FORMATS[config.objective])}.',
      ),
      (
        config.objective not in ('qa', 'choice') or m.type_vocab_size != 1,
        'pairs have two token types; set model.type_vocab_size to 2, or to 0 for none.',
      ),
    ]
  if config.objective == 'classification':
    table = config.table
    weights = table.class_weights
    rules += [
      (
        not (table.regression and (table.labels or table.multi_label or weights)),
        'table.regression has no label set; leave table.labels and table.class_weights empty and '
        'table.multi_label false.',
      ),
      (
        not table.pair_column or m.type_vocab_size != 1,
        'pairs have two token types; set model.type_vocab_size to 2, or to 0 for none.',
      ),
      (
        weights == ('balanced',)
        or all(
          isinstance(p, tuple) and len(p) == 2 and isinstance(p[1], (int, float)) and p[1] > 0
          for p in weights
        ),
        f"table.class_weights is {weights!r}; write ((label, weight), ...) or ('balanced',).",
      ),
      (
        not table.pair_column or table.long_texts == 'head',
        f'table.long_texts={table.long_texts} is for single texts; of a pair the longer text loses '
        'its end.',
      ),
    ]
  for holds, sentence in rules:
    if not holds:
      raise InputError(sentence)
  for pattern in (o.no_decay, o.freeze, *(pattern for pattern, _ in o.lr_multipliers)):
    try:
      re.compile(pattern)
    except re.error as error:
      raise InputError(f'{pattern!r} in config.optimizer is not a regex: {error}.') from None


def masking_stages(policy):
  """'token,phrase@1000' -> ((0, 'token'), (1000, 'phrase')): each policy and its first step."""
  stages = []
  for part in policy.split(','):
    name, at, step = part.strip().partition('@')
    if name not in POLICIES or (at and not step.isdigit()):
      raise InputError(
        f'masking.policy={policy} is not understood at {part.strip()!r}; use one of '
        f'{", ".join(POLICIES)}, or several with their first steps: token,phrase@1000,entity@2000.'
      )
    stages.append((int(step or 0), name))
  first, *later = [step for step, _ in stages]
  if first or any(a >= b for a, b in zip([0, *later], later, strict=False)):
    raise InputError(
      f'masking.policy={policy} does not begin at step 0 and go up; write it like '
      'token,phrase@1000,entity@2000.'
    )
  return tuple(stages)
