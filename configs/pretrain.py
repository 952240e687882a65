"""BERT pre-training: masked LM + next-sentence prediction on raw text.

    python -m bert_jax.train --config configs/pretrain.py:size=base --workdir W \
        --config.data.train="$DATA/*.txt" --config.tokenizer.path=vocab.txt

Arguments: `size` (tiny mini small medium base large, or layers/width such as 6/256) and `runlocal`:
about a minute on a laptop, on the English documentation every installation carries, or on
data.train. The values are those of Devlin et al. 2018 and of its released code, first phase: rows
of 128 tokens.
"""

from ml_collections import ConfigDict

from bert_jax import config as c


def get_config(arg=''):
  arg = c.parse_arg(arg, size='', runlocal=False)
  config = ConfigDict(dict(
    objective='mlm_nsp', seed=0, prng_impl='threefry2x32', init_from='', resume_from='',
    batch_size=256, steps=1_000_000, epochs=0.0,
    model=c.bert(arg.size or 'base', dtype='bfloat16'),
    tokenizer=dict(kind='wordpiece', path='', character_coverage=0.99999,
                   do_lower_case=True),
    data=dict(train='', eval='', seq_length=128),
    corpus=dict(format='auto', text_field='text', eval_share=0.01, rows='nsp',
                short_seq_prob=0.1, dupe_factor=5),
    masking=dict(masked_lm_prob=0.15, max_predictions_per_seq=20, mask_share=0.8,
                 random_share=0.1),
    loss=dict(nsp_weight=1.0),
    optimizer=dict(
      name='bert_adamw', learning_rate=1e-4, schedule='linear', warmup=10_000.0, decay=0.0,
      beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01, no_decay='LayerNorm|bias',
      clip_norm=1.0, accumulation=1, freeze='', lr_multipliers=(), layer_lr_decay=1.0),
    mesh=dict(data=-1, fsdp=1, tensor=1),
    eval=dict(every=10_000, batches=50),
    checkpoint=dict(every=10_000, keep_latest=2, keep_every=0, best_metric='', best_mode='min'),
    log=dict(every=100, tensorboard=True)))
  if arg.runlocal:
    config.model = c.bert(arg.size or 'tiny', vocab_size=8192)
    config.update(dict(
      batch_size=32, steps=500, data=dict(seq_length=64),
      corpus=dict(dupe_factor=1, eval_share=0.1),
      masking=dict(max_predictions_per_seq=10),
      optimizer=dict(learning_rate=1e-3, warmup=0.1), eval=dict(every=250, batches=20),
      checkpoint=dict(every=100), log=dict(every=50)))
  return config
