"""Transformers as plain Flax Linen modules, without losses, tasks or devices."""

from bert_jax.models import recurrence
from bert_jax.models.config import ModelConfig, share_of_heads
from bert_jax.models.embeddings import word_table
from bert_jax.models.encoder import Encoder, init_encoder
from bert_jax.models.heads import Classifier, MaskedLMHead, Pooler, count_parameters, word_logits
from bert_jax.models.pooling import gather_positions
from bert_jax.models.positions import extended, has_position_table
from bert_jax.models.refusals import unsupported
from bert_jax.models.stack import stack_layers, unstack_layers
from bert_jax.models.tokens import Causal, Layer, Tokens
