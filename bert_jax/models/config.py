"""The settings of a model.

Names are BERT's own (Devlin et al. 2018, https://arxiv.org/abs/1810.04805), as in every released
config.json. Parameters and the statistics of norms are float32; matrix products run in `dtype`.
"""

import dataclasses
from collections.abc import Collection
from typing import Any

# What the letters of an array's name stand for, in every file of this package:
#   B batch  T tokens  D hidden_size  H heads  d head size  F intermediate_size  K predictions
#   N examples in a row  V vocabulary (padded)  L layers  E width of the embeddings


def setting(
  default: Any,
  meaning: str,
  allowed: Any = None,
  *,
  affects: Collection[str] = ('weights',),
  past: Any = None,
) -> Any:
  """A field of ModelConfig, from which bert_jax/config/model.py makes a field of configs.
  allowed: choices, bounds as in '[0, 1)', or None; if the choices are the keys of a table,
  config/model.py names the table. affects: as in bert_jax/field.py. past: see
  there; None: the field has none."""
  metadata = {'meaning': meaning, 'allowed': allowed, 'affects': affects, 'past': past}
  return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """The settings of one Transformer: all fields of the block `model` of a config."""

  # fmt: off
  vocab_size: int = setting(30522, 'pieces in the vocabulary', '[5, inf)',
    affects={'vocabulary', 'weights'})
  hidden_size: int = setting(768, 'width of the residual stream (elsewhere: d_model, dim, n_embd)',
    '[1, inf)')
  num_hidden_layers: int = setting(12, 'blocks (elsewhere: layers, num_layers, n_layers, n_layer, '
    'number_of_layers)', '[1, inf)')
  num_attention_heads: int = setting(12, 'heads per block, see attention_head_size '
    '(elsewhere: heads, num_heads, n_heads, n_head)', '[1, inf)')
  intermediate_size: int = setting(3072, 'width of the feed-forward layer', '[1, inf)')
  max_position_embeddings: int = setting(512, 'longest row the position table covers', '[1, inf)')
  type_vocab_size: int = setting(2, 'token types (2: by text; 1: for both); 0: none', '[0, inf)')
  hidden_act: str = setting('gelu', 'activation; gelu is the exact, erf one')
  position_embeddings: str = setting('learned', 'how tokens know their position, see positions.py')
  norm_placement: str = setting('post', 'LayerNorm after each sum (BERT) or before')
  layer_norm_eps: float = setting(1e-12, 'added to the variance', '(0, 1)')
  initializer_range: float = setting(0.02, 'standard deviation of new weights', '(0, inf)',
    affects={'weights', 'start'})
  hidden_dropout_prob: float = setting(0.1, 'dropout on embeddings and sub-layer outputs '
    '(elsewhere: dropout, dropout_rate)', '[0, 1)', affects=())
  attention_probs_dropout_prob: float = setting(0.1, 'dropout on attention probabilities', '[0, 1)',
    affects=())
  tie_word_embeddings: bool = setting(True, 'MLM decoder = word embeddings')
  vocab_multiple: int = setting(128, 'embedding rows are padded to a multiple of this', '[1, inf)',
    affects={'weights'})
  attention_implementation: str = setting('auto', 'see attention_kernels.py', affects=())
  dtype: str = setting('float32', 'of matrix products', ('float32', 'bfloat16'), affects=())
  scan_layers: bool = setting(False, 'one compiled block for all layers', affects=())
  remat: str = setting('none', 'recompute in the backward pass to save memory', affects=())
  mixer: str = setting('attention', 'how tokens read each other, see models/mixers.py')
  feed_forward: str = setting('mlp', "BERT's two layers, or with a gate beside the first")
  norm: str = setting('layer_norm', 'rms_norm subtracts no mean')
  attention_window: int = setting(0, 'tokens that each sees, half on either side; 0: all',
    '[0, inf)')
  global_attention_every: int = setting(0,
    'every n-th layer, from the first on, has no window; 0: none', '[0, inf)')
  rotary_theta: float = setting(10_000.0, 'base of the wavelengths of rotary positions', '(1, inf)')
  local_rotary_theta: float = setting(0.0, 'the same with a window; 0: rotary_theta', '[0, inf)')
  conv_width: int = setting(7,
    'tokens that the mixer conv sums: itself and half of the others on either side',
    '[1, inf)')
  embedding_size: int = setting(0,
    'width of embeddings, with a dense layer to hidden_size; 0: hidden_size, and none',
    '[0, inf)')
  share_layers: bool = setting(False, 'all layers have the same weights, one copy (ALBERT)')
  num_decoder_layers: int = setting(0,
    'blocks of a decoder after the encoder; 0: as many as the encoder has', '[0, inf)')
  embedding_norm: bool = setting(True, 'a norm after the embeddings')
  embedding_scale: bool = setting(False,
    'the vectors of words times the root of their width (Vaswani et al. 2017)')
  first_norm: bool = setting(True, 'with norm_placement=pre: a norm before the first mixer too')
  norm_bias: bool = setting(True, 'LayerNorms add a bias')
  attention_bias: bool = setting(True, 'the dense layers of attention add a bias')
  feed_forward_bias: str = setting('all', 'which dense layers of the feed-forward layer add a bias',
    ('all', 'output', 'none'))
  head_bias: bool = setting(True, 'the dense layers of pooler and MLM head add a bias')
  decoder_bias: bool = setting(True, 'the MLM head adds a bias for each word')
  mlm_head: str = setting('transform',
    'before the product with the words: dense, activation and norm (BERT), without norm, nothing',
    ('transform', 'dense', 'none'))
  pooler: str = setting('tanh',
    'dense and this activation on [CLS]: tanh (BERT), gelu (ELECTRA), relu (DistilBERT); dense, '
    'hidden_act and norm (ModernBERT); nothing',
    ('tanh', 'transform', 'gelu', 'gelu_tanh', 'relu', 'swish', 'none'))
  token_pooler: bool = setting(False,
    'heads for tags and answers read each token through the layers of pooler (ModernBERT)')
  classifier_bias: bool = setting(True, 'classifiers add a bias (GPT-2: none)')
  attention_output_dropout_prob: float = setting(0.0,
    'dropout on what attention, or another mixer, adds; 0: hidden_dropout_prob', '[0, 1)',
    affects=())
  classifier_dropout_prob: float = setting(0.0,
    'dropout before a classifier of whole texts (DistilBERT: 0.2); 0: hidden_dropout_prob',
    '[0, 1)', affects=(), past=0.0)
  span_dropout_prob: float = setting(0.0,
    'dropout before the head for answers in a text (DistilBERT: 0.1)', '[0, 1)', affects=(),
    past=0.0)
  scaled_initializer: bool = setting(False,
    'layers that add to the residual: initializer_range / sqrt(2 * layers)', affects={'start'})
  causal: bool = setting(False, 'no token sees a later one (GPT)')
  max_relative_positions: int = setting(512,
    'positions that are disentangled or have a bias: longer distances count as this', '[4, inf)')
  position_buckets: int = setting(0,
    'the same: vectors or biases of distances on either side, of which half are of one '
    'distance each, the others of more and more; 0: all are of one', '[0, inf)')
  pos_att_type: str = setting('c2p|p2c',
    'disentangled positions: what is added to the scores, content to position and the reverse',
    ('c2p|p2c', 'c2p', 'p2c'))
  mask_decoder: int = setting(0,
    'so many times the last layer is applied, with absolute positions, before masked words are '
    'predicted (DeBERTa: 2); 0: once, without', '[0, inf)', affects=())
  replaced_head: str = setting('token',
    'what tells replaced tokens reads each alone (ELECTRA), or the norm of its sum with [CLS] '
    '(DeBERTa)', ('token', 'context'))
  memory_length: int = setting(0,
    'vectors that each layer keeps of the tokens before a row (Transformer-XL); 0: none',
    '[0, inf)', affects=())
  extend_positions: str = setting('none',
    'how the position table of init_from becomes max_position_embeddings long; none: it stays',
    ('none', 'interpolate', 'tile'), affects={'start'})
  num_key_value_heads: int = setting(0,
    'heads of keys and values, each for a group of queries (Ainslie et al. 2023); 0: of queries',
    '[0, inf)')
  attention_head_size: int = setting(0,
    'numbers of a head of queries, keys and values; 0: hidden_size / num_attention_heads',
    '[0, inf)')
  projection_size: int = setting(0,
    'width of the vectors of texts, with a dense layer from the pooled ones; 0: hidden_size, and '
    'none', '[0, inf)')
  projection_act: str = setting('tanh',
    'the activation of that layer; none: it is linear', ('tanh', 'none', 'gelu', 'relu', 'swish'))
  projection_bias: bool = setting(True, 'that layer adds a bias')
  # fmt: on

  @property
  def head_size(self) -> int:
    return self.attention_head_size or self.hidden_size // self.num_attention_heads

  @property
  def key_value_heads(self) -> int:
    return self.num_key_value_heads or self.num_attention_heads

  @property
  def distance_rows(self) -> int:
    """Rows of the table of distances, if positions have one."""
    return 2 * (self.position_buckets or self.max_relative_positions)

  @property
  def embedding_width(self) -> int:
    return self.embedding_size or self.hidden_size

  @property
  def vector_size(self) -> int:
    """The width of the vectors of texts."""
    return self.projection_size or self.hidden_size

  @property
  def stacks_layers(self) -> bool:
    """Do parameters of layers have a leading axis of layers? Shared layers have one copy."""
    return self.scan_layers and not self.share_layers

  @property
  def padded_vocab_size(self) -> int:
    """Rows of the embedding table: vocab_size rounded up, so that it splits evenly over devices."""
    return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

  def with_vocab_size(self, count: int) -> 'ModelConfig':
    """This model with a vocabulary of `count` pieces and tables of the same size. Released weights
    may have more rows than their vocabulary has pieces."""
    return dataclasses.replace(self, vocab_size=count, vocab_multiple=self.padded_vocab_size)


def share_of_heads(heads: int, size: float) -> int:
  """The number of heads of a model that is `size` times as wide as one with `heads` heads."""
  return max(1, round(heads * size))
