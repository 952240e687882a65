"""What a config may say: every field with its type, its range and its meaning, and the checks.

A config is a Python file with `get_config(arg) -> ConfigDict` that spells out every field. What the
command line changes (`--config.model.hidden_size=64`) and what the file says are checked against
FIELDS here, before anything is compiled; a mistake is one sentence that says what to do.
"""

import ast
import contextlib
import difflib
import hashlib
import json
import logging
import runpy
import sys
from pathlib import Path

from ml_collections import ConfigDict


class InputError(ValueError):
  """A mistake in what the user gave us, told in one sentence that says what to do about it.

  Command lines print it without a traceback; notebooks see it as a ValueError.
  """


# name: (type, what is allowed, meaning). Allowed: a tuple of choices, or (low, high) bounds as a
# string, where '(' excludes its end. A name ending in a dot opens a block of fields.
FIELDS = {
  'objective': (str, ('mlm_nsp', 'classification'), 'what is learned: selects data, heads and loss'),
  'seed': (int, '[0, inf)', 'the seed of everything random in the run'),
  'prng_impl': (str, ('threefry2x32', 'rbg'), 'random bits: the same on any mesh, or fast on TPUs'),
  'init_from': (str, None, 'workdir whose weights, model sizes and vocabulary this run starts from'),
  'resume_from': (str, None, 'workdir whose whole state (step, optimizer) this run continues'),
  'batch_size': (int, '[1, inf)', 'rows per step, over all devices'),
  'steps': (int, '[0, inf)', 'optimizer steps; 0: `epochs` counts'),
  'epochs': (float, '[0, inf)', 'passes over the training rows; 0: `steps` counts'),
  'model.vocab_size': (int, '[5, inf)', 'pieces in the vocabulary'),
  'model.hidden_size': (int, '[1, inf)', 'width of the residual stream'),
  'model.num_hidden_layers': (int, '[1, inf)', 'blocks'),
  'model.num_attention_heads': (int, '[1, inf)', 'heads per block; divides hidden_size'),
  'model.intermediate_size': (int, '[1, inf)', 'width of the feed-forward layer'),
  'model.max_position_embeddings': (int, '[1, inf)', 'longest row the position table covers'),
  'model.type_vocab_size': (int, '[0, inf)', 'token types (2: first and second text); 0: none'),
  'model.hidden_act': (str, ('gelu', 'gelu_tanh', 'relu', 'swish'), 'gelu is the exact, erf one'),
  'model.position_embeddings': (str, ('learned', 'sinusoidal', 'none'), 'how position is told'),
  'model.norm_placement': (str, ('post', 'pre'), 'LayerNorm after each sum (BERT) or before'),
  'model.layer_norm_eps': (float, '(0, 1)', 'added to the variance'),
  'model.initializer_range': (float, '(0, inf)', 'standard deviation of new weights'),
  'model.hidden_dropout_prob': (float, '[0, 1)', 'dropout on embeddings and sub-layer outputs'),
  'model.attention_probs_dropout_prob': (float, '[0, 1)', 'dropout on attention probabilities'),
  'model.tie_word_embeddings': (bool, None, 'MLM decoder = word embeddings'),
  'model.vocab_multiple': (int, '[1, inf)', 'embedding rows are padded to a multiple of this'),
  'model.attention_implementation': (str, ('einsum', 'xla', 'cudnn'), 'see models/attention.py'),
  'model.dtype': (str, ('float32', 'bfloat16'), 'type of matrix products'),
  'model.scan_layers': (bool, None, 'one compiled block for all layers: compiles faster'),
  'model.remat': (str, ('none', 'dots', 'full'), 'recompute in the backward pass to save memory'),
  'tokenizer.kind': (str, ('wordpiece', 'unigram', 'bpe'), 'to train if `path` is empty'),
  'tokenizer.path': (str, None, "vocab.txt or *.model; empty: init_from's, else train one"),
  'tokenizer.do_lower_case': (bool, None, 'lower-case and strip accents (uncased)'),
  'data.train': (str, None, 'file, glob, folder or tfds:NAME; empty: the embedded documentation'),
  'data.eval': (str, None, 'the same, to evaluate on; empty: a held-out share of a corpus'),
  'data.seq_length': (int, '[8, inf)', 'tokens per row, [CLS] and [SEP] included'),
  'corpus.format': (str, ('auto', 'sentences', 'paragraphs', 'jsonl', 'wiki'), 'see data/text.py'),
  'corpus.text_field': (str, None, 'field of a JSONL or TFDS record that holds the text'),
  'corpus.eval_share': (float, '[0, 1)', 'documents held out for evaluation if data.eval is empty'),
  'corpus.rows': (str, ('nsp', 'full'), 'sentence pairs for NSP, or one stretch of text per row'),
  'corpus.short_seq_prob': (float, '[0, 1]', 'share of NSP rows with a random, shorter length'),
  'corpus.dupe_factor': (int, '[1, inf)', 'times the corpus is cut into rows, differently each'),
  'masking.masked_lm_prob': (float, '(0, 1)', 'share of tokens to predict'),
  'masking.max_predictions_per_seq': (int, '[1, inf)', 'most predictions in a row (static)'),
  'masking.mask_share': (float, '[0, 1]', 'of these, replaced by [MASK]'),
  'masking.random_share': (float, '[0, 1]', 'of these, replaced by a random piece; the rest stay'),
  'loss.nsp_weight': (float, '[0, inf)', 'lambda in MLM + lambda * NSP; 0: no NSP head'),
  'task.text_column': (str, None, 'column of the text'),
  'task.pair_column': (str, None, 'column of the second text; empty: single texts'),
  'task.label_column': (str, None, 'column of the label'),
  'task.columns': (tuple, None, 'names of the columns of a TSV without header; empty: it has one'),
  'task.labels': (tuple, None, 'the label set, in order; empty: those of the training data, sorted'),
  'task.regression': (bool, None, 'labels are numbers: squared error, Pearson and Spearman'),
  'task.train_examples': (int, '[0, inf)', 'train on this many examples only; 0: all'),
  'optimizer.name': (str, ('bert_adamw', 'adamw'), 'without (BERT) or with bias correction'),
  'optimizer.learning_rate': (float, '[0, inf)', 'peak'),
  'optimizer.schedule': (str, ('linear', 'cosine', 'constant', 'inverse_sqrt', 'wsd'),
                         'see optim.py; linear is BERT\'s, counted from step 0'),
  'optimizer.warmup': (float, '[0, inf)', 'steps of linear warm-up; below 1: a share of the run'),
  'optimizer.decay': (float, '[0, inf)', 'steps of decay at the end for wsd; below 1: a share'),
  'optimizer.beta1': (float, '[0, 1)', ''),
  'optimizer.beta2': (float, '[0, 1)', ''),
  'optimizer.eps': (float, '(0, inf)', ''),
  'optimizer.weight_decay': (float, '[0, inf)', ''),
  'optimizer.no_decay': (str, None, 'regex on parameter paths: no weight decay'),
  'optimizer.clip_norm': (float, '[0, inf)', 'clip gradients to this global norm; 0: do not'),
  'optimizer.accumulation': (int, '[1, inf)', 'microbatches per step; divides batch_size'),
  'optimizer.freeze': (str, None, 'regex on parameter paths: not trained'),
  'optimizer.lr_multipliers': (tuple, None, '((regex, factor), ...); the first match counts'),
  'optimizer.layer_lr_decay': (float, '(0, 1]', 'factor on the rate per layer below the heads'),
  'mesh.data': (int, '[-1, inf)', 'devices that split the batch; -1: all the rest'),
  'mesh.fsdp': (int, '[-1, inf)', 'devices that split the batch and the parameters'),
  'mesh.tensor': (int, '[-1, inf)', 'devices that split each layer'),
  'eval.every': (int, '[0, inf)', 'steps between evaluations; 0: only at the end'),
  'eval.batches': (int, '[0, inf)', 'batches per evaluation while training; 0: all of them'),
  'checkpoint.every': (int, '[0, inf)', 'steps between checkpoints; 0: only at the end'),
  'checkpoint.keep_latest': (int, '[1, inf)', 'newest checkpoints to keep'),
  'checkpoint.keep_every': (int, '[0, inf)', 'also keep those at multiples of this step; 0: none'),
  'checkpoint.best_metric': (str, None, 'also keep the best by this eval metric; empty: none'),
  'checkpoint.best_mode': (str, ('min', 'max'), 'is a low or a high best_metric good'),
  'log.every': (int, '[1, inf)', 'steps between lines of metrics'),
  'log.tensorboard': (bool, None, 'write TensorBoard event files too'),
}

# Blocks that only some objectives read; a config holds the others and these.
OBJECTIVE_BLOCKS = {'mlm_nsp': ('corpus', 'masking', 'loss'), 'classification': ('task',)}
# Fields a run may be continued under with other values: they do not change its numbers.
FREE_TO_CHANGE = ('mesh.', 'checkpoint.', 'log.', 'eval.', 'data.eval')

# The 24 released miniatures (Turc et al. 2019, https://arxiv.org/abs/1908.08962), base being the
# largest of them, and BERT-large: (layers, hidden size). Heads are 64 wide, feed-forward 4 times.
SIZES = {f'{L}/{H}': (L, H) for L in (2, 4, 6, 8, 10, 12) for H in (128, 256, 512, 768)}
SIZES |= {'24/1024': (24, 1024)}
SIZES |= {'tiny': (2, 128), 'mini': (4, 256), 'small': (4, 512), 'medium': (8, 512),
          'base': (12, 768), 'large': (24, 1024)}


def bert(size, **changes):
  """The `model` block of a BERT of a released size, every field of it, with `changes` applied."""
  if size not in SIZES:
    raise InputError(f'size {size!r} is not known; use one of {", ".join(SIZES)}.')
  layers, hidden = SIZES[size]
  block = dict(
    vocab_size=30522, hidden_size=hidden, num_hidden_layers=layers,
    num_attention_heads=hidden // 64, intermediate_size=4 * hidden,
    max_position_embeddings=512, type_vocab_size=2, hidden_act='gelu',
    position_embeddings='learned', norm_placement='post', layer_norm_eps=1e-12,
    initializer_range=0.02, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
    tie_word_embeddings=True, vocab_multiple=128, attention_implementation='einsum',
    dtype='float32', scan_layers=False, remat='none')
  unknown = set(changes) - set(block)
  if unknown:
    raise InputError(f'model has no field {", ".join(sorted(unknown))}.')
  return block | changes


def parse_arg(arg, **defaults):
  """'size=tiny,runlocal' with the names and defaults a config file knows -> ConfigDict of them."""
  out = ConfigDict(defaults)
  for part in filter(None, arg.split(',')):
    name, given, value = part.partition('=')
    if name not in defaults:
      raise InputError(f'config argument {name!r} is not known here{_meant(name, defaults)}; '
                       f'there are: {", ".join(defaults)}.')
    out[name] = _parse(name, value, type(defaults[name])) if given else True
  return out


def load(spec, overrides=()):
  """'configs/pretrain.py:size=tiny' plus ['--config.seed=1', ...] -> a checked ConfigDict."""
  path, _, arg = spec.partition(':')
  if not Path(path).is_file():
    near = ', '.join(str(p) for p in sorted(Path('configs').glob('*.py')))
    raise InputError(f'config file {path} does not exist' + (f'; there are {near}.' if near else
                     '; run from the folder that holds configs/.'))
  get_config = runpy.run_path(path).get('get_config')
  if get_config is None:
    raise InputError(f'config file {path} defines no get_config(arg).')
  return override(get_config(arg), overrides)


def override(config, overrides):
  """A copy of config with ['--config.a.b=1', '--config.a.c', '2'] applied, then checked."""
  config = config.copy_and_resolve_references()
  words = list(overrides)
  while words:
    word = words.pop(0)
    if not word.startswith('--config.'):
      raise InputError(f'argument {word!r} is not known; fields of the config are set as '
                       '--config.NAME=VALUE, --help lists the rest.')
    name, given, text = word.removeprefix('--config.').partition('=')
    fields = flatten(config)
    if name not in fields:
      hint = f'; it is a block: set {name}.FIELD.' if name in config else _meant(name, fields)
      raise InputError(f'config has no field {name!r}{hint or "."}')
    if not given:
      text = 'true' if isinstance(fields[name], bool) else words.pop(0) if words else ''
    set_field(config, name, _parse(name, text, FIELDS[name][0]))
  return check(config)


def set_field(config, name, value):
  """config.a.b = value for name 'a.b'."""
  *blocks, leaf = name.split('.')
  for block in blocks:
    config = config[block]
  with config.ignore_type():
    config[leaf] = value


def check(config):
  """config itself if every field is there, known, of its type and range, and they fit together."""
  fields = flatten(config)
  for name in fields:
    if name not in FIELDS:
      raise InputError(f'config has a field {name!r} that nothing reads{_meant(name, FIELDS) or "."}')
  objective = fields.get('objective')
  others = [b for o, blocks in OBJECTIVE_BLOCKS.items() if o != objective for b in blocks
            if b not in OBJECTIVE_BLOCKS.get(objective, ())]
  for name, (kind, allowed, _) in FIELDS.items():
    if name.partition('.')[0] in others:
      if name in fields:
        raise InputError(f'config.{name} means nothing to objective {objective!r}; remove it.')
      continue
    if name not in fields:
      raise InputError(f'config.{name} is missing from the config file; add it.')
    set_field(config, name, _checked(name, fields[name], kind, allowed))
  _check_combinations(config)
  return config


def _checked(name, value, kind, allowed):
  if kind is float and isinstance(value, int) and not isinstance(value, bool):
    value = float(value)
  if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
    raise InputError(f'config.{name} is {value!r}, which is not {_a(kind)}.')
  if isinstance(allowed, tuple) and value not in allowed:
    raise InputError(f'config.{name} is {value!r}; use one of {", ".join(allowed)}.')
  if isinstance(allowed, str):
    low, high = (float(x) for x in allowed[1:-1].split(','))
    inside = (value > low if allowed[0] == '(' else value >= low) and (
      value < high if allowed[-1] == ')' else value <= high)
    if not inside:
      raise InputError(f'config.{name} is {value}, outside {allowed}.')
  return value


def _check_combinations(config):
  m, o = config.model, config.optimizer
  rules = [
    (m.hidden_size % m.num_attention_heads == 0,
     f'model.hidden_size {m.hidden_size} does not divide into model.num_attention_heads '
     f'{m.num_attention_heads}; use a multiple.'),
    (m.position_embeddings == 'none' or config.data.seq_length <= m.max_position_embeddings,
     f'data.seq_length {config.data.seq_length} is longer than model.max_position_embeddings '
     f'{m.max_position_embeddings}; raise the one or lower the other.'),
    (m.attention_implementation == 'einsum' or m.attention_probs_dropout_prob == 0,
     f'model.attention_implementation={m.attention_implementation} cannot drop attention '
     'probabilities; set model.attention_probs_dropout_prob=0 or use einsum.'),
    ((config.steps > 0) != (config.epochs > 0),
     f'steps is {config.steps} and epochs is {config.epochs}; set exactly one of them above 0.'),
    (config.batch_size % o.accumulation == 0,
     f'batch_size {config.batch_size} does not divide into optimizer.accumulation '
     f'{o.accumulation} microbatches; use a multiple.'),
    ([config.mesh.data, config.mesh.fsdp, config.mesh.tensor].count(-1) <= 1,
     'only one axis of the mesh can be -1 (all the rest).'),
    (0 not in (config.mesh.data, config.mesh.fsdp, config.mesh.tensor),
     'a mesh axis is 0; use 1 for an axis that splits nothing, -1 for all the rest.'),
    (all(isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) and
         isinstance(p[1], (int, float)) for p in o.lr_multipliers),
     f'optimizer.lr_multipliers is {o.lr_multipliers!r}; write ((regex, factor), ...).'),
    (not (config.init_from and config.resume_from),
     'init_from (weights only) and resume_from (the whole state) are both set; choose one.'),
  ]
  if config.objective == 'mlm_nsp':
    rules += [
      (config.masking.mask_share + config.masking.random_share <= 1,
       'masking.mask_share and masking.random_share add up to more than 1.'),
      (config.loss.nsp_weight == 0 or config.corpus.rows == 'nsp',
       f"loss.nsp_weight is {config.loss.nsp_weight} but corpus.rows='full' makes no sentence "
       "pairs; set loss.nsp_weight=0 or corpus.rows='nsp'."),
      (config.loss.nsp_weight == 0 or m.type_vocab_size >= 2 or m.type_vocab_size == 0,
       'NSP rows have two token types; set model.type_vocab_size to 2, or to 0 for none.'),
    ]
  else:
    rules += [
      (not (config.task.regression and config.task.labels),
       'task.regression has no label set; leave task.labels empty.'),
      (not config.task.pair_column or m.type_vocab_size != 1,
       'pairs have two token types; set model.type_vocab_size to 2, or to 0 for none.'),
    ]
  for holds, sentence in rules:
    if not holds:
      raise InputError(sentence)


def flatten(config, prefix=''):
  """{'model.hidden_size': 128, ...}"""
  out = {}
  for key, value in config.items():
    if isinstance(value, ConfigDict):
      out |= flatten(value, f'{prefix}{key}.')
    else:
      out[prefix + key] = value
  return out


def to_json(config):
  return json.dumps(config.to_dict(), indent=2) + '\n'


def from_json(text):
  """A config as `to_json` wrote it, checked again."""

  def tuples(value):  # a ConfigDict field that once was a list stays one
    if isinstance(value, dict):
      return {k: tuples(v) for k, v in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value

  return check(ConfigDict(tuples(json.loads(text))))


def fingerprint(config):
  """A short hash of the fields that decide a run's numbers."""
  fixed = {k: v for k, v in flatten(config).items() if not k.startswith(FREE_TO_CHANGE)}
  return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def changes(old, new):
  """['seed: 0 -> 1', ...]: the fields that decide a run's numbers and differ between two configs."""
  a, b = flatten(old), flatten(new)
  return [f'{k}: {a.get(k)!r} -> {b.get(k)!r}' for k in a | b
          if a.get(k) != b.get(k) and not k.startswith(FREE_TO_CHANGE)]


@contextlib.contextmanager
def command_line():
  """What every command line shares: log lines on stderr, an InputError as one sentence and exit 2."""
  logging.basicConfig(level=logging.WARNING, format='%(message)s', stream=sys.stderr, force=True)
  logging.getLogger('bert_jax').setLevel(logging.INFO)
  logging.getLogger('absl').setLevel(logging.ERROR)  # Orbax warns of what we chose on purpose
  try:
    yield
  except InputError as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)


def _parse(name, text, kind):
  """The text of a command line as a value of the field's type."""
  if kind is str:
    return text
  if kind is bool and text.lower() in ('true', 'false'):
    return text.lower() == 'true'
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError):
    value = text
  if kind is float and isinstance(value, int):
    value = float(value)
  if kind is tuple and isinstance(value, (list, str)):
    value = tuple(value) if isinstance(value, list) else tuple(filter(None, text.split(',')))
  if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
    raise InputError(f'{name}={text} is not {_a(kind)}.')
  return value


def _a(kind):
  return {int: 'a whole number', float: 'a number', bool: 'true or false', str: 'a text',
          tuple: 'a tuple'}[kind]


def _meant(name, known):
  """'; did you mean X?' when a known name is near, else ''."""
  near = difflib.get_close_matches(name, list(known), 1)
  return f'; did you mean {near[0]!r}?' if near else ''
