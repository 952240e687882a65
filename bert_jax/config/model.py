"""The fields in the block `model`, which describes a Transformer, and the sizes of BERTs."""

from bert_jax import models
from bert_jax.errors import InputError
from bert_jax.field import Field
from bert_jax.tasks import TASKS

FIELDS = {
  'model.vocab_size': Field(int, '[5, inf)', 'pieces in the vocabulary', 30522),
  'model.hidden_size': Field(int, '[1, inf)', 'width of the residual stream', 768),
  'model.num_hidden_layers': Field(int, '[1, inf)', 'blocks', 12),
  'model.num_attention_heads': Field(int, '[1, inf)', 'heads per block; divides hidden_size', 12),
  'model.intermediate_size': Field(int, '[1, inf)', 'width of the feed-forward layer', 3072),
  'model.max_position_embeddings': Field(int, '[1, inf)', 'longest row the position table covers',
    512),
  'model.type_vocab_size': Field(int, '[0, inf)', 'token types (2: first and second text); 0: none',
    2),
  'model.hidden_act': Field(str, ('gelu', 'gelu_tanh', 'relu', 'swish'),
    'gelu is the exact, erf one', 'gelu'),
  'model.position_embeddings': Field(str, ('learned', 'sinusoidal', 'scaled_sinusoidal', 'rotary',
    'alibi', 'relative', 'none'), 'how tokens know their position, see models/positions.py',
    'learned'),
  'model.norm_placement': Field(str, ('post', 'pre'), 'LayerNorm after each sum (BERT) or before',
    'post'),
  'model.layer_norm_eps': Field(float, '(0, 1)', 'added to the variance', 1e-12),
  'model.initializer_range': Field(float, '(0, inf)', 'standard deviation of new weights', 0.02),
  'model.hidden_dropout_prob': Field(float, '[0, 1)', 'dropout on embeddings and sub-layer outputs',
    0.1),
  'model.attention_probs_dropout_prob': Field(float, '[0, 1)', 'dropout on attention probabilities',
    0.1),
  'model.tie_word_embeddings': Field(bool, None, 'MLM decoder = word embeddings', True),
  'model.vocab_multiple': Field(int, '[1, inf)', 'embedding rows are padded to a multiple of this',
    128),
  'model.attention_implementation': Field(str, ('einsum', 'xla', 'cudnn', 'splash'),
    'see models/attention.py', 'einsum'),
  'model.dtype': Field(str, ('float32', 'bfloat16'), 'type of matrix products', 'float32'),
  'model.scan_layers': Field(bool, None, 'one compiled block for all layers: compiles faster',
    False),
  'model.remat': Field(str, ('none', 'dots', 'full'),
    'recompute in the backward pass to save memory', 'none'),
  'model.mixer': Field(str, ('attention', 'fourier', 'lstm', 'conv', 'bag'),
    'how tokens read each other, see models/mixers.py', 'attention', past='attention'),
  'model.feed_forward': Field(str, ('mlp', 'glu'),
    "BERT's two layers, or with a gate beside the first", 'mlp', past='mlp'),
  'model.norm': Field(str, ('layer_norm', 'rms_norm'), 'rms_norm subtracts no mean', 'layer_norm',
    past='layer_norm'),
  'model.attention_window': Field(int, '[0, inf)',
    'a token sees so many around it, half on either side; 0: all', 0, past=0),
  'model.global_attention_every': Field(int, '[0, inf)',
    'every n-th layer, from the first on, has no window; 0: none', 0, past=0),
  'model.rotary_theta': Field(float, '(1, inf)', 'base of the wavelengths of rotary positions',
    10_000.0, past=10_000.0),
  'model.local_rotary_theta': Field(float, '[0, inf)',
    'the same of the layers with a window; 0: rotary_theta', 0.0, past=0.0),
  'model.conv_width': Field(int, '[1, inf)',
    'tokens that the mixer conv sums for each: itself and half of the others on either side', 7,
    past=7),
  'model.embedding_size': Field(int, '[0, inf)',
    'width of the embeddings, with a dense layer to hidden_size; 0: hidden_size, and no layer', 0,
    past=0),
  'model.share_layers': Field(bool, None, 'all layers have the same weights, one copy (ALBERT)',
    False, past=False),
  'model.num_decoder_layers': Field(int, '[0, inf)',
    'blocks of a decoder after the encoder; 0: as many as the encoder has', 0, past=0),
  'model.embedding_norm': Field(bool, None, 'a norm after the embeddings', True, past=True),
  'model.embedding_scale': Field(bool, None,
    'the vectors of words times the root of their width (Vaswani et al. 2017)', False, past=False),
  'model.first_norm': Field(bool, None,
    'with norm_placement=pre: a norm before the mixer of the first layer too', True, past=True),
  'model.norm_bias': Field(bool, None, 'LayerNorms add a bias', True, past=True),
  'model.attention_bias': Field(bool, None, 'the dense layers of attention add a bias', True,
    past=True),
  'model.feed_forward_bias': Field(str, ('all', 'output', 'none'),
    'which dense layers of the feed-forward layer add a bias', 'all', past='all'),
  'model.head_bias': Field(bool, None, 'the dense layers of pooler and MLM head add a bias', True,
    past=True),
  'model.decoder_bias': Field(bool, None, 'the MLM head adds a bias for each word', True,
    past=True),
  'model.mlm_head': Field(str, ('transform', 'dense', 'none'),
    'before the product with the words: dense, activation and norm (BERT), without norm, nothing',
    'transform', past='transform'),
  'model.pooler': Field(str, ('tanh', 'transform', 'none'),
    'dense and tanh on [CLS] (BERT); dense, activation and norm; nothing', 'tanh', past='tanh'),
  'model.attention_output_dropout_prob': Field(float, '[0, 1)',
    'dropout on what attention, or another mixer, adds; 0: hidden_dropout_prob', 0.0, past=0.0),
  'model.scaled_initializer': Field(bool, None,
    'new layers that add to the residual stream: initializer_range / sqrt(2 * layers)', False,
    past=False),
  'model.causal': Field(bool, None, 'no token sees a later one (GPT)', False, past=False),
  'model.relative_clamp': Field(int, '[0, inf)',
    'relative positions: longer distances count as this one; 0: all differ', 0, past=0),
  'model.memory_length': Field(int, '[0, inf)',
    'vectors that each layer keeps of the tokens before a row, or a stretch of it '
    '(Transformer-XL); 0: none', 0, past=0),
  'model.recurrent_length': Field(int, '[0, inf)',
    'rows are read in stretches of so many tokens, each with the memory of those before; 0: whole',
    0, past=0),
  'model.extend_positions': Field(str, ('none', 'interpolate', 'tile'),
    'how the position table of init_from becomes max_position_embeddings long; none: it stays',
    'none', past='none'),
  'model.new_top_layers': Field(int, '[0, inf)',
    'so many last layers of the encoder of init_from are not taken and begin anew', 0, past=0),
  'model.global_tokens': Field(int, '[0, inf)',
    'with a window: the first tokens of each example that see all of it and that all see', 0,
    past=0),
}  # fmt: skip


def rules(config):
  """Yields (what must hold, the sentence if it does not)."""
  model, implementation = config.model, config.model.attention_implementation
  yield (
    model.hidden_size % model.num_attention_heads == 0,
    f'model.hidden_size {model.hidden_size} does not divide into model.num_attention_heads '
    f'{model.num_attention_heads}; use a multiple.',
  )
  # Positions are counted within an example, so a row of several may be longer than their table.
  family, row = TASKS[config.objective], config.data.seq_length
  limit = family.limit(config) or row
  longest = model.recurrent_length or limit
  yield (
    not models.has_position_table(model) or longest <= model.max_position_embeddings,
    f'{family.limit_field if limit != row else "data.seq_length"} {longest} is longer than model.'
    f'max_position_embeddings {model.max_position_embeddings}; raise the one or lower the other.',
  )
  yield from memory_rules(config)
  sentence = models.unsupported(models.ModelConfig(**model))
  yield not sentence, sentence
  yield (
    model.mixer != 'fourier' or config.data.examples_per_row == 1,
    f'model.mixer=fourier mixes all tokens of a row, and data.examples_per_row='
    f'{config.data.examples_per_row} would mix examples; set it to 1.',
  )
  yield (
    not model.share_layers or config.optimizer.layer_lr_decay == 1,
    f'optimizer.layer_lr_decay={config.optimizer.layer_lr_decay} gives each layer another rate, '
    'and with model.share_layers=true there is one for all; set it to 1.',
  )
  yield (
    implementation != 'cudnn' or model.dtype == 'bfloat16',
    'model.attention_implementation=cudnn computes in bfloat16; set model.dtype=bfloat16.',
  )
  yield (
    implementation != 'splash' or config.data.seq_length % 128 == 0,
    f'model.attention_implementation=splash takes rows of a multiple of 128 tokens, and '
    f'data.seq_length is {config.data.seq_length}; change one of them.',
  )


def memory_rules(config):
  model, objective = config.model, config.objective
  memory, stretch = f'model.memory_length={model.memory_length}', model.recurrent_length
  yield (
    not model.relative_clamp or model.position_embeddings == 'relative',
    f'model.relative_clamp={model.relative_clamp} is for model.position_embeddings=relative; set '
    'it to 0.',
  )
  yield (
    model.extend_positions == 'none' or bool(config.init_from),
    f'model.extend_positions={model.extend_positions} extends the positions of init_from, which is '
    'empty; set it to none.',
  )
  family = TASKS[objective]
  follow = ' or '.join(name for name, x in TASKS.items() if x.rows_follow)
  able = [name for name, x in TASKS.items() if x.reads_stretches]
  yield (
    not stretch or family.reads_stretches,
    f'model.recurrent_length={stretch} reads the long texts of {" and ".join(able)} in stretches, '
    f'and this objective is {objective}; set it to 0.',
  )
  limit, sizes = family.limit_field, (config.data.seq_length, family.limit(config))
  yield (
    not stretch or not any(size % stretch for size in sizes),
    f'data.seq_length and {limit} are {" and ".join(map(str, sizes))}, and not made of '
    f'stretches of model.recurrent_length={stretch}; use multiples of it.',
  )
  yield (
    not stretch or model.memory_length > 0,
    f'model.recurrent_length={stretch} cuts rows into stretches that know nothing of each other '
    'without model.memory_length; set that above 0.',
  )
  yield (
    not model.memory_length or stretch or family.rows_follow,
    f'{memory} is for objective={follow}, whose rows follow each other, or for rows that are '
    'read in stretches (model.recurrent_length); set it to 0.',
  )


# {size: (layers, hidden size)} of the 24 released models of Turc et al. 2019
# (https://arxiv.org/abs/1908.08962), of which base is the largest, and of BERT-large. Attention
# heads are 64 wide, the feed-forward layer 4 times the hidden size.
SIZES = {f'{L}/{H}': (L, H) for L in (2, 4, 6, 8, 10, 12) for H in (128, 256, 512, 768)}
SIZES |= {'24/1024': (24, 1024)}
SIZES |= {
  'tiny': (2, 128),
  'mini': (4, 256),
  'small': (4, 512),
  'medium': (8, 512),
  'base': (12, 768),
  'large': (24, 1024),
}


def bert(size, **changes):
  """All fields of the `model` block for a BERT of a released size, with `changes` applied."""
  if size not in SIZES:
    raise InputError(f'size {size!r} is not known; use one of {", ".join(SIZES)}.')
  layers, hidden = SIZES[size]
  block = {name.removeprefix('model.'): field.default for name, field in FIELDS.items()}
  block |= {'hidden_size': hidden, 'num_hidden_layers': layers}
  block |= {'num_attention_heads': hidden // 64, 'intermediate_size': 4 * hidden}
  if unknown := set(changes) - set(block):
    raise InputError(f'model has no field {", ".join(sorted(unknown))}.')
  return block | changes
