"""Ready ablations: one change at a time, over seeds, evaluated on the same rows and masks.

    python -m bert_jax.tools.sweep --config configs/ablations.py:masking_rate,runlocal \
        --workdir S --jobs 2
    python -m bert_jax.tools.report S

The first argument is one of ABLATIONS; the first arm of each is its baseline. A+B are the arms of
both around one baseline, and A,B are all combinations of their arms. With runlocal a run
takes a minute or so on the embedded documentation, by the quickstart's recipe for 500 steps;
without it the recipe is BERT's (configs/pretrain.py; size=base and the other sizes), on your text:
--config.data.train=D. layer_decay fine-tunes, as configs/finetune.py: it wants
--config.init_from=W and takes task=sst2 and the like.

Where arms differ in their rows or their vocabulary, losses cannot be compared, and the report puts
them into tables of their own; fine-tune from all of them (sweep --from S) and compare these runs.
"""

import itertools
import math
import runpy
from pathlib import Path

from bert_jax import config as c


def over(name, *values):
  """{arm: {name: value}} for the values of one field."""
  return {f'{name.split(".")[-1]}={value}': {name: value} for value in values}


def shaped(b, *layers):
  """Arms of other depths, as wide as it takes to have b's parameters, to a few per cent: those of
  its words, V x W, and of its layers, 12 x L x W squared."""
  words, base = b.model.vocab_size, b.model
  room = words * base.hidden_size + 12 * base.num_hidden_layers * base.hidden_size**2
  arms, unit = {}, 2 * base.num_attention_heads  # which rotary positions halve, too
  for count in (base.num_hidden_layers, *layers):
    width = (math.sqrt(words**2 + 48 * count * room) - words) / (24 * count)
    width = round(width / unit) * unit
    arms[f'{count}x{width}'] = {
      'model.num_hidden_layers': count, 'model.hidden_size': width,
      'model.intermediate_size': 4 * width}
  return arms


def growing(b):
  """Tokens that see each other: a quarter of the row, a half, and all, for a third of the steps
  each (Li et al. 2021, https://arxiv.org/abs/2108.06084, but with equally many in each step)."""
  length = b.data.seq_length
  return f'{length // 4},{length // 2}@0.333333,{length}@0.666667'


def batches(b, *factors):
  """Arms with another batch, as many rows in all (and in each evaluation), and a rate that goes
  with the batch's root."""
  return {f'batch_size={round(b.batch_size * x)}': {
    'batch_size': round(b.batch_size * x), 'steps': round(b.steps / x),
    'eval.batches': round(b.eval.batches / x),
    'optimizer.learning_rate': round(b.optimizer.learning_rate * x**0.5, 7)} for x in factors}


def optimizers(b):
  """Each with a rate of its own kind; --vary optimizer.learning_rate=... tries others."""
  rate = 1e-3 if b.optimizer.name == 'muon' else b.optimizer.learning_rate
  factors = dict(bert_adamw=1, adamw=1, stable_adamw=1, lamb=10, muon=4)
  return {name: {'optimizer.name': name, 'optimizer.learning_rate': round(rate * x, 7)}
          for name, x in factors.items()}


# Words that stand together, as all arms of the masking policy read them.
LEXICONS = {'corpus.phrases': 'configs/lexicons/phrases.txt',
            'corpus.entities': 'configs/lexicons/entities.txt'}

# {name: (the config that b is, b -> {arm: {field: value}})}. Of 'words' all arms learn masked words
# alone, on rows that depend on nothing else; of 'pairs' NSP too.
ABLATIONS = {
  'masking_rate': ('words', lambda b: over('masking.masked_lm_prob', .15, .05, .1, .2, .3, .4, .6)),
  'masking_policy': ('words', lambda b: {name: LEXICONS | arm for name, arm in over(
    'masking.policy', 'token', 'whole_word', 'span', 'phrase', 'entity').items()}),
  'corruption': ('words', lambda b: {
    f'{100 * mask:.0f}_{100 * other:.0f}_{100 - 100 * mask - 100 * other:.0f}': {
      'masking.mask_share': mask, 'masking.random_share': other}
    for mask, other in ((0.8, 0.1), (1.0, 0.0), (0.8, 0.0), (0.8, 0.2))}),
  'pairs': ('pairs', lambda b: {
    'nsp': {'corpus.rows': 'nsp'}, 'sop': {'corpus.rows': 'sop'},
    'none': {'corpus.rows': 'full', 'loss.nsp_weight': 0.0}}),
  'lambda': ('pairs', lambda b: over('loss.nsp_weight', 1.0, 0.0, 0.1, 0.3, 3.0)),
  'positions': ('words', lambda b: over(
    'model.position_embeddings', 'learned', 'sinusoidal', 'rotary', 'alibi', 'none')),
  'norm_placement': ('words', lambda b: over('model.norm_placement', 'post', 'pre')),
  'norm': ('words', lambda b: over('model.norm', 'layer_norm', 'rms_norm')),
  'activation': ('words', lambda b: over('model.hidden_act', 'gelu', 'gelu_tanh', 'relu', 'swish')),
  'feed_forward': ('words', lambda b: {
    'mlp': {}, 'glu': {'model.feed_forward': 'glu', 'model.intermediate_size':
                       round(b.model.intermediate_size / 12) * 8}}),
  'tying': ('words', lambda b: over('model.tie_word_embeddings', True, False)),
  'depth_width': ('words', lambda b: shaped(b, 1, 4, 8) if b.model.num_hidden_layers == 2
                  else shaped(b, b.model.num_hidden_layers // 2, b.model.num_hidden_layers * 2)),
  'packing': ('words', lambda b: {
    'one_example': {'corpus.rows': 'single'},
    'packed': {'corpus.rows': 'single', 'data.examples_per_row': 8},
    'full': {'corpus.rows': 'full'}}),
  'lengths': ('words', lambda b: {
    'whole_rows': {}, 'growing': {'corpus.lengths': growing(b)},
    'short': {'corpus.lengths': str(b.data.seq_length // 4)}}),
  'dropout': ('words', lambda b: {f'dropout={x}': {
    'model.hidden_dropout_prob': x, 'model.attention_probs_dropout_prob': x}
    for x in (0.1, 0.0, 0.05, 0.2)}),
  'batch': ('words', lambda b: batches(b, 1, 0.5, 2, 4)),
  'learning_rate': ('words', lambda b: over('optimizer.learning_rate', *(
    round(b.optimizer.learning_rate * x, 7) for x in (1, 0.25, 0.5, 2, 4)))),
  'vocabulary_size': ('words', lambda b: over('model.vocab_size', *(
    round(b.model.vocab_size * x) for x in (1, 0.25, 0.5, 2)))),
  'vocabulary_kind': ('words', lambda b: over('tokenizer.kind', 'wordpiece', 'bpe', 'unigram')),
  'optimizer': ('words', optimizers),
  'mixer': ('words', lambda b: {name: arm | {
    'model.position_embeddings': 'learned', 'model.embedding_size': b.model.hidden_size}
    for name, arm in over('model.mixer', 'attention', 'fourier', 'lstm', 'conv', 'bag').items()}),
  'objectives': ('objective', lambda b: {name: {':objective': name} for name in (
    'masked', 'causal', 'hybrid', 'diffusion', 'causal_then_masked')}),
  'layer_decay': ('finetune', lambda b: over('optimizer.layer_lr_decay', 1.0, .95, .9, .8, .65)),
}


# What a size says.
SHAPE = 'num_hidden_layers', 'hidden_size', 'num_attention_heads', 'intermediate_size'


def parsed(arg):
  """([[A, B], [C]] of 'A+B,C,runlocal', the other arguments)."""
  parts, names = arg.split(','), dict.fromkeys(ABLATIONS, False)
  given = [part.split('+') for part in parts if {*part.split('+')} <= names.keys()]
  rest = ','.join(part for part in parts if part.split('+') not in given)
  arg = c.parse_arg(rest, **names, runlocal=False, size='', task='', objective='')
  kinds = {ABLATIONS[name][0]: name for some in given for name in some}
  if not kinds:
    raise c.InputError(f'name one of the ablations {", ".join(ABLATIONS)}: masking_rate,runlocal.')
  if len(kinds) > 1:
    one, other, *_ = kinds.values()
    raise c.InputError(f'{one} and {other} are not of one config; sweep them one after the other.')
  for kind, name in ('finetune', 'task'), ('objective', 'objective'):
    if arg[name] and kind not in kinds:
      one = next(iter(kinds.values()))
      raise c.InputError(f'{name}={arg[name]} changes nothing in {one}; leave it out.')
  return given, arg


def merged(arms):
  """One arm with the fields of several; InputError if two set a field otherwise."""
  out = {}
  for field, value in (pair for arm in arms for pair in arm.items()):
    if out.setdefault(field, value) != value:
      raise c.InputError(f'two of the ablations set {field}; sweep them one after the other.')
  return out


def beside(ablations):
  """The arms of some ablations, one change at a time around their first arms together."""
  firsts = [next(iter(arms)) for arms in ablations]
  base = merged(arms[first] for arms, first in zip(ablations, firsts))
  others = [pair for arms in ablations for pair in list(arms.items())[1:]]
  return {','.join(firsts): base} | {name: base | arm for name, arm in others}


def sweep(arg=''):
  """{arm: {field: value}}, the baseline first."""
  b, groups = get_config(arg), []
  for names in parsed(arg)[0]:
    groups.append(beside([ABLATIONS[name][1](b) for name in names]))
  each = itertools.product(*(group.items() for group in groups))
  return {','.join(name for name, _ in some): merged(arm for _, arm in some) for some in each}


def get_config(arg=''):
  given, arg = parsed(arg)
  kind, local = ABLATIONS[given[0][0]][0], arg.runlocal
  file = lambda name: runpy.run_path(str(Path(__file__).with_name(f'{name}.py')))['get_config']
  sized = f',size={arg.size}' if arg.size else ''
  short = ',runlocal' if local else ''
  if kind == 'finetune':
    return file('finetune')(f'task={arg.task or "docs"}{sized}{short}')
  if kind == 'objective':
    config = file('pretrain')(f'objective={arg.objective or "masked"}{sized}{short}')
    if local:
      quick, kept = file('quickstart')('stage=pretrain'), ('causal', *(SHAPE if arg.size else ()))
      model = {name: x for name, x in quick.model.items() if name not in kept}
      config.update(dict(model=model, optimizer=quick.optimizer, eval=dict(every=100)))
  elif local:
    config = file('quickstart')('stage=pretrain')
    config.update(dict(steps=500, eval=dict(every=100)))
    if arg.size:
      size = c.bert(arg.size)
      config.model.update({name: size[name] for name in SHAPE})
  else:
    config = file('pretrain')(sized.strip(','))
  config.update(dict(log=dict(tensorboard=False), checkpoint=dict(keep_latest=1)))
  if kind == 'words':
    config.update(dict(loss=dict(nsp_weight=0.0),
                       corpus=dict(rows='full', short_seq_prob=0.0, dupe_factor=1)))
  return config
