"""Causal language models: the shapes of GPT-1 and GPT-2, and a modern one, on any corpus.

    python -m bert_jax.train --config configs/causal_lm.py:size=gpt2 --workdir W \
        --config.data.train="$DATA/*.txt"
    echo 'The array is' | python -m bert_jax.predict --model W --task generate --max-tokens 20

Arguments, which can be combined:

size=gpt2      GPT-2's smallest (Radford et al. 2019) and the recipe of nanoGPT, since the paper
               gives none
  gpt1         Radford et al. 2018
  modern       rotary positions, RMSNorm before each sublayer, SwiGLU, no biases (Touvron et al.
               2023, https://arxiv.org/abs/2302.13971), as large as GPT-2's smallest
runlocal       a few minutes on a laptop, on data.train or, without it, on the English
               documentation that is part of every installation

A byte-level vocabulary is named with tokenizer.path (a tokenizer.json); else a BPE is trained. Rows
hold several documents, which do not see each other. A model that was trained otherwise, such as by
configs/pretrain.py, may be where it begins: --config.init_from=W.
"""

from bert_jax import config as c

# What all have in common; the MLM head is nothing but the product with the word embeddings.
GPT = dict(
  causal=True, type_vocab_size=0, mlm_head='none', decoder_bias=False, layer_norm_eps=1e-5,
  pooler='none', embedding_norm=False)
SIZES = {
  'gpt2': dict(
    model=GPT | dict(vocab_size=50257, max_position_embeddings=1024, hidden_act='gelu_tanh',
                     norm_placement='pre', scaled_initializer=True, hidden_dropout_prob=0.0,
                     attention_probs_dropout_prob=0.0),
    batch_size=480, steps=600_000, data=dict(seq_length=1024),
    optimizer=dict(learning_rate=6e-4, warmup=2000.0, beta2=0.95, eps=1e-8, weight_decay=0.1)),
  'gpt1': dict(
    model=GPT | dict(vocab_size=40478, hidden_act='gelu_tanh'),
    batch_size=64, steps=1_500_000, data=dict(seq_length=512),
    optimizer=dict(learning_rate=2.5e-4, warmup=2000.0, eps=1e-8)),
  'modern': dict(
    model=GPT | dict(
      vocab_size=32768, max_position_embeddings=2048, position_embeddings='rotary',
      norm_placement='pre', norm='rms_norm', norm_bias=False, attention_bias=False,
      feed_forward='glu', feed_forward_bias='none', hidden_act='swish', head_bias=False,
      intermediate_size=2048, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    batch_size=256, steps=600_000, data=dict(seq_length=2048),
    optimizer=dict(learning_rate=6e-4, warmup=2000.0, beta2=0.95, eps=1e-8, weight_decay=0.1)),
}


def get_config(arg=''):
  arg = c.parse_arg(arg, size=SIZES, runlocal=False)
  size = SIZES[arg.size]
  config = c.defaults('language_model')
  config.model = c.bert('base', dtype='bfloat16', **size['model'])
  config.update(dict(
    tokenizer=dict(kind='bpe', do_lower_case=False), data=dict(examples_per_row=16),
    corpus=dict(short_seq_prob=0.0, dupe_factor=1),
    optimizer=dict(name='adamw', schedule='cosine')))
  config.update({name: value for name, value in size.items() if name != 'model'})
  if arg.runlocal:
    inner = {'modern': dict(intermediate_size=344)}.get(arg.size, {})
    config.model = c.bert('tiny', **size['model'] | dict(vocab_size=8192) | inner)
    config.update(dict(
      batch_size=32, steps=500, data=dict(seq_length=64),
      corpus=dict(eval_share=0.1),
      optimizer=dict(learning_rate=2e-3, warmup=0.1),
      eval=dict(every=250, batches=20), checkpoint=dict(every=100), log=dict(every=50)))
  return config
