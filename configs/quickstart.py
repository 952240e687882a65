"""The quickstart: a small BERT from raw text to a fine-tuned classifier, on a laptop.

    bash launch/quickstart

runs `stage=pretrain` once (a vocabulary, then MLM + NSP on the docstrings of the Python standard
library and of the packages installed here) and `stage=finetune` six times: from the pre-trained
weights and from scratch, with 3 seeds each, on 500 docstrings labelled with the package they are
from. Pre-training sees nothing of the evaluation split. The commands are in launch/quickstart.
"""

from ml_collections import ConfigDict

from bert_jax import config as c


def get_config(arg=''):
  arg = c.parse_arg(arg, stage='pretrain')
  optimizer = dict(
    name='muon', learning_rate=4e-3, schedule='cosine', warmup=0.1, horizon=1.0, decay=0.0,
    final_rate=0.0, beta1=0.9, beta2=0.98, eps=1e-6, weight_decay=0.01, no_decay='LayerNorm|bias',
    clip_norm=1.0,
    accumulation=1, skip_nonfinite=0, batch_warmup=0.0, freeze='', lr_multipliers=(),
    layer_lr_decay=1.0)
  # A model leaves the unigram line once it attends to neighbours, which takes steps, not tokens.
  # After 500 steps at a rate of 2e-3, training loss is 0.99 nats below it with these positions,
  # norms, initial weights and Muon, and 0.27 with BERT's and AdamW. Muon bears twice that rate.
  model = c.bert(
    'tiny', vocab_size=8192, max_position_embeddings=128, num_attention_heads=4,
    position_embeddings='rotary', norm_placement='pre', norm='rms_norm', hidden_act='gelu_tanh',
    initializer_range=0.06)
  common = dict(
    seed=0, prng_impl='threefry2x32', init_from='', resume_from='', max_hours=0.0, profile='',
    model=model,
    tokenizer=dict(kind='wordpiece', path='', character_coverage=0.99999,
                   do_lower_case=True),
    data=dict(train='', eval='', seq_length=64, examples_per_row=1, skip_damaged=False),
    mesh=dict(data=-1, fsdp=1, tensor=1, slices=1),
    spikes=dict(window=0, zscore=6.0, rollback=0),
    log=dict(every=100, tensorboard=True, wandb='off', parameters=False))
  if arg.stage == 'pretrain':
    # One pass over the text cannot overfit, so there is no dropout (Geiping & Goldstein 2022).
    common['model'] |= dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return ConfigDict(common | dict(
      objective='mlm_nsp', batch_size=32, steps=1600, epochs=0.0,
      corpus=dict(format='auto', text_field='text', eval_share=0.1, rows='nsp',
                  short_seq_prob=0.1, dupe_factor=2, languages=(), sampling=1.0,
                  weights=(), window=32, lengths='', segmenter='', phrases='',
                  entities=''),
      masking=dict(policy='token', masked_lm_prob=0.15, max_predictions_per_seq=0, mask_share=0.8,
                   random_share=0.1),
      eval_masking=dict(policy='token', masked_lm_prob=0.15, mask_share=0.8, random_share=0.1),
      loss=dict(nsp_weight=1.0, sbo_weight=0.0), optimizer=optimizer,
      eval=dict(every=400, batches=40, seed=0, patience=0),
      checkpoint=dict(every=400, minutes=5.0, keep_latest=1, keep_every=0,
                      best_metric='', best_mode='min')))
  if arg.stage != 'finetune':
    raise c.InputError(f'stage {arg.stage!r} is not known; use pretrain or finetune.')
  return ConfigDict(common | dict(
    objective='classification', batch_size=8, steps=0, epochs=10.0,
    data=dict(train='', eval='', seq_length=128, examples_per_row=8, skip_damaged=False),
    task=dict(format='table', max_length=0, train_examples=500),
    table=dict(text_column='text', pair_column='', label_column='label', id_column='', columns=(),
               labels=(), regression=False, multi_label=False, class_weights=(),
               long_texts='head', pooling='mean', eval_share=0.0, lm_weight=0.0),
    teacher='', distillation=dict(temperature=2.0, soft_weight=0.5, label_weight=0.5,
                                  every_layer=0),
    optimizer=optimizer | dict(name='adamw', learning_rate=5e-4, schedule='linear', beta2=0.999),
    eval=dict(every=0, batches=0, seed=0, patience=0),
    log=dict(every=20, tensorboard=True, wandb='off', parameters=False),
    checkpoint=dict(every=0, minutes=5.0, keep_latest=1, keep_every=0,
                    best_metric='', best_mode='max')))
