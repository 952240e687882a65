"""MPNet (Song et al. 2020, https://arxiv.org/abs/2004.09297): a RoBERTa without token types, with a
BERT's vocabulary, and biases of relative distances that all layers share."""

from bert_jax.convert.families.record import ATTENTION, renamed
from bert_jax.convert.families.roberta import ROBERTA

_ATTENTION = 'mpnet.encoder.layer.#.attention.'
_CHANGED = {f'encoder/layer_#/attention/{x}': f'{_ATTENTION}attn.{x[0]}' for x in ATTENTION}
_CHANGED['encoder/layer_#/attention_LayerNorm'] = f'{_ATTENTION}LayerNorm'
_CHANGED['encoder/distances/biases'] = 'mpnet.encoder.relative_attention_bias'
_BUCKETS = 32  # what its class computes with, whatever its config.json says


def _modules(of_roberta):
  names = renamed(of_roberta, 'roberta.', 'mpnet.') | _CHANGED
  del names['encoder/embeddings/token_type_embeddings']
  return names


(_classifier,) = ROBERTA.classifiers
MPNET = ROBERTA._replace(
  name='mpnet',
  classes='MPNet',
  modules=_modules(ROBERTA.modules),
  prefix='mpnet.',
  classifiers=(_classifier._replace(modules=_modules(_classifier.modules)),),
  defaults={'type_vocab_size': 0},
  unsaid=('type_vocab_size',),
  fields=dict(position_embeddings='learned_and_bias', max_relative_positions=128)
  | dict(position_buckets=_BUCKETS // 2),
  fixed={'relative_attention_num_buckets': (_BUCKETS,), 'pad_token_id': (1,)},
  write=lambda model: {'relative_attention_num_buckets': _BUCKETS},
  # Its positions are counted over pieces whose id is not 1.
  fits=lambda exported: ROBERTA.fits(exported) and exported.tokenizer.pad_id == 1,
)
