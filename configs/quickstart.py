"""The quickstart: a small BERT from raw text to a fine-tuned classifier, on a laptop.

    bash launch/quickstart

runs `stage=pretrain` once (a vocabulary, then MLM + NSP on the docstrings of the Python standard
library and of the packages installed here) and `stage=finetune` six times: from the pre-trained
weights and from scratch, with 3 seeds each, on 500 docstrings labelled with the package they are
from. Pre-training sees nothing of the evaluation split. The commands are in launch/quickstart.
"""

from bert_jax import config as c


def get_config(arg=''):
  arg = c.parse_arg(arg, stage=('pretrain', 'finetune'))
  config = c.defaults('mlm_nsp' if arg.stage == 'pretrain' else 'classification')
  # A model leaves the unigram line once it attends to neighbours, which takes steps, not tokens.
  # After 500 steps at a rate of 2e-3, training loss is 0.99 nats below it with these positions,
  # norms, initial weights and Muon, and 0.27 with BERT's and AdamW. Muon bears twice that rate.
  config.model = c.bert(
    'tiny', vocab_size=8192, max_position_embeddings=128, num_attention_heads=4,
    position_embeddings='rotary', norm_placement='pre', norm='rms_norm', hidden_act='gelu_tanh',
    initializer_range=0.06)
  if arg.stage == 'pretrain':
    config.update(dict(
      batch_size=32, steps=1600, data=dict(seq_length=64),
      # One pass over the text cannot overfit, so there is no dropout (Geiping & Goldstein 2022).
      model=dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
      corpus=dict(eval_share=0.1, dupe_factor=2),
      optimizer=dict(name='muon', learning_rate=4e-3, schedule='cosine', warmup=0.1, beta2=0.98),
      eval=dict(every=400, batches=40), checkpoint=dict(every=400, keep_latest=1)))
  else:
    config.update(dict(
      epochs=10.0, data=dict(examples_per_row=8), task=dict(train_examples=500),
      table=dict(text_column='text', pooling='mean'), optimizer=dict(learning_rate=5e-4),
      checkpoint=dict(every=0), log=dict(every=20)))
  return config
