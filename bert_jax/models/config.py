"""The settings of a model.

Names are BERT's own (Devlin et al. 2018, https://arxiv.org/abs/1810.04805), as in every released
config.json. Parameters and the statistics of norms are float32; matrix products run in `dtype`.
"""

import dataclasses

# What the letters of an array's name stand for, in every file of this package:
#   B batch  T tokens  D hidden_size  H heads  d head size  F intermediate_size  K predictions
#   N examples in a row  V vocabulary (padded)  L layers  E width of the embeddings


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """One Transformer. bert_jax/config/model.py says what each field means and which values it has.
  The default of a field is what older models, saved without it, have."""

  vocab_size: int
  hidden_size: int
  num_hidden_layers: int
  num_attention_heads: int
  intermediate_size: int
  max_position_embeddings: int
  type_vocab_size: int
  hidden_act: str
  position_embeddings: str
  norm_placement: str
  layer_norm_eps: float
  initializer_range: float
  hidden_dropout_prob: float
  attention_probs_dropout_prob: float
  tie_word_embeddings: bool
  vocab_multiple: int
  attention_implementation: str
  dtype: str
  scan_layers: bool
  remat: str
  mixer: str = 'attention'
  feed_forward: str = 'mlp'
  norm: str = 'layer_norm'
  attention_window: int = 0
  global_attention_every: int = 0
  rotary_theta: float = 10_000.0
  local_rotary_theta: float = 0.0
  conv_width: int = 7
  embedding_size: int = 0
  share_layers: bool = False
  num_decoder_layers: int = 0
  embedding_norm: bool = True
  embedding_scale: bool = False
  first_norm: bool = True
  norm_bias: bool = True
  attention_bias: bool = True
  feed_forward_bias: str = 'all'
  head_bias: bool = True
  decoder_bias: bool = True
  mlm_head: str = 'transform'
  pooler: str = 'tanh'
  attention_output_dropout_prob: float = 0.0
  scaled_initializer: bool = False
  causal: bool = False
  relative_clamp: int = 0
  memory_length: int = 0
  recurrent_length: int = 0
  extend_positions: str = 'none'
  new_top_layers: int = 0
  global_tokens: int = 0

  @property
  def head_size(self):
    return self.hidden_size // self.num_attention_heads

  @property
  def embedding_width(self):
    return self.embedding_size or self.hidden_size

  @property
  def stacks_layers(self):
    """Do the parameters of layers have a leading axis of layers? Shared ones are one copy."""
    return self.scan_layers and not self.share_layers

  @property
  def padded_vocab_size(self):
    """Rows of the embedding table: vocab_size rounded up, so that it splits evenly over devices."""
    return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

  def of_words(self, count):
    """This model, with the same tables, of which the first `count` rows alone are words. Released
    weights may have rows that their vocabulary has no piece for."""
    return dataclasses.replace(self, vocab_size=count, vocab_multiple=self.padded_vocab_size)


def share_of_heads(heads, size):
  """How many heads a model has that is `size` times as wide as one with so many."""
  return max(1, round(heads * size))
