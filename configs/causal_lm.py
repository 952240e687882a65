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

from ml_collections import ConfigDict

from bert_jax import config as c

# What all have in common; the MLM head is nothing but the product with the word embeddings.
GPT = dict(
  causal=True, type_vocab_size=0, mlm_head='none', decoder_bias=False, layer_norm_eps=1e-5,
  pooler='none', embedding_norm=False)
SIZES = {
  'gpt1': dict(
    model=GPT | dict(vocab_size=40478, hidden_act='gelu_tanh'),
    batch_size=64, steps=1_500_000, data=dict(seq_length=512),
    optimizer=dict(learning_rate=2.5e-4, warmup=2000.0, eps=1e-8)),
  'gpt2': dict(
    model=GPT | dict(vocab_size=50257, max_position_embeddings=1024, hidden_act='gelu_tanh',
                     norm_placement='pre', scaled_initializer=True, hidden_dropout_prob=0.0,
                     attention_probs_dropout_prob=0.0),
    batch_size=480, steps=600_000, data=dict(seq_length=1024),
    optimizer=dict(learning_rate=6e-4, warmup=2000.0, beta2=0.95, eps=1e-8, weight_decay=0.1)),
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
  arg = c.parse_arg(arg, size='gpt2', runlocal=False)
  if arg.size not in SIZES:
    raise c.InputError(f'size={arg.size} is not known; use one of {", ".join(SIZES)}.')
  size = SIZES[arg.size]
  config = ConfigDict(dict(
    objective='language_model', seed=0, prng_impl='threefry2x32', init_from='', resume_from='',
    max_hours=0.0, profile='', batch_size=256, steps=600_000, epochs=0.0,
    model=c.bert('base', dtype='bfloat16', **size['model']),
    tokenizer=dict(kind='bpe', path='', character_coverage=0.99999, do_lower_case=False),
    data=dict(train='', eval='', seq_length=512, examples_per_row=16, skip_damaged=False),
    corpus=dict(format='auto', text_field='text', eval_share=0.01, rows='lm',
                short_seq_prob=0.0, dupe_factor=1, languages=(), sampling=1.0,
                weights=(), window=32, lengths='', segmenter='', phrases='',
                entities=''),
    language_model=dict(kind='causal', causal_share=0.5, eval_memory=0),
    masking=dict(policy='token', masked_lm_prob=0.15, max_predictions_per_seq=0, mask_share=0.8,
                 random_share=0.1),
    eval_masking=dict(policy='token', masked_lm_prob=0.15, mask_share=0.8, random_share=0.1),
    loss=dict(nsp_weight=0.0, sbo_weight=0.0),
    optimizer=dict(
      name='adamw', learning_rate=6e-4, schedule='cosine', warmup=2000.0, horizon=1.0,
      decay=0.0, final_rate=0.0, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01,
      no_decay='LayerNorm|bias', clip_norm=1.0, accumulation=1, skip_nonfinite=0,
      batch_warmup=0.0, freeze='', lr_multipliers=(), layer_lr_decay=1.0),
    mesh=dict(data=-1, fsdp=1, tensor=1, slices=1),
    spikes=dict(window=0, zscore=6.0, rollback=0),
    eval=dict(every=10_000, batches=50, seed=0, patience=0),
    checkpoint=dict(every=10_000, minutes=5.0, keep_latest=2, keep_every=0,
                    best_metric='', best_mode='min'),
    log=dict(every=100, tensorboard=True, wandb='off', parameters=False)))
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
