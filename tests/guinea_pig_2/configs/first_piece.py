"""A model of the first piece of a row, with a memory of the row before."""

from bert_jax import config as c


def get_config(arg=''):
  config = c.defaults('first_piece')
  sizes = {'vocab_size': 200, 'hidden_size': 32, 'num_attention_heads': 2}
  config.model = c.bert('2/128', **sizes, intermediate_size=64, max_position_embeddings=32)
  config.update(dict(batch_size=8, data=dict(seq_length=32), corpus=dict(eval_share=0.3)))
  return config
