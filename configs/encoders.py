"""What attention buys: encoders of 641,000 parameters, trained on as many tokens.

    python -m bert_jax.tools.vocab --input "$DATA/books/*.md" --kind wordpiece --size 8192 --out V
    python -m bert_jax.tools.prepare --input "$DATA/books/*.md" --vocab V --out D
    python -m bert_jax.tools.sweep --config configs/encoders.py --workdir S --config.data.train=D \
        --vary :arch=bert,modern,modern-recipe,modern-flops,lstm,conv,bag,fnet

arch is one of those above. bert, lstm, conv, bag and fnet differ in what stands in the place of
attention, modern in the whole block (configs/pretrain.py). Each has 2 layers of 64 units, and the
feed-forward width that makes its parameters as many as BERT's. All learn masked words alone, by
BERT's optimizer, and without dropout, since they see no text twice. modern-recipe is modern with
ModernBERT's recipe, too (30 % masked, StableAdamW, a constant rate that falls over the last fifth),
and modern-flops the same in fewer steps, which cost as many operations as BERT's.

The learning rate is 2e-3 for all; --vary optimizer.learning_rate=1e-3,2e-3,4e-3 tries others.
"""

import runpy
from pathlib import Path

from bert_jax import config as c

STEPS = 1000
# {arch: (that of configs/pretrain.py, feed-forward width)}
ARCHITECTURES = {
  'bert': ('', 256),
  'modern': ('modern', 186),
  'modern-recipe': ('modern', 186),
  'modern-flops': ('modern', 186),
  'lstm': ('lstm', 208),
  'conv': ('conv', 301),
  'bag': ('bag', 369),
  'fnet': ('fnet', 368),
}


def get_config(arg=''):
  name = c.parse_arg(arg, arch=ARCHITECTURES).arch
  arch, width = ARCHITECTURES[name]
  pretrain = runpy.run_path(str(Path(__file__).with_name('pretrain.py')))['get_config']
  config = pretrain(f'arch={arch},runlocal')
  common = pretrain('runlocal')
  config.update(dict(
    steps=STEPS, batch_size=16,
    model=dict(hidden_size=64, num_attention_heads=2, intermediate_size=width,
               max_position_embeddings=64, hidden_dropout_prob=0.0,
               attention_probs_dropout_prob=0.0),
    tokenizer=common.tokenizer,
    corpus=dict(rows='full', short_seq_prob=0.0, eval_share=0.05), loss=dict(nsp_weight=0.0),
    eval=dict(every=STEPS // 2, batches=100), checkpoint=dict(every=STEPS // 2, keep_latest=1),
    log=dict(every=100, tensorboard=False)))
  if name.startswith('modern-'):
    config.optimizer.decay = 0.2
  else:
    config.update(dict(masking=common.masking, optimizer=common.optimizer))
  config.optimizer.update(dict(learning_rate=2e-3, warmup=0.2))
  if config.model.embedding_size:
    config.model.embedding_size = config.model.hidden_size
  if name == 'modern-flops':
    config.steps = round(STEPS * 0.69)
  return config
