"""Distillation: a student with every second layer of a trained model, its teacher, learns from it.

    python -m bert_jax.train --config configs/distill.py --workdir W2 --config.teacher=W \
        --config.data.train="$DATA/*.txt"
    python -m bert_jax.train --config configs/distill.py:task=sst2 --workdir W3 \
        --config.teacher=W1 --config.data.train=$DATA/SST-2/train.tsv \
        --config.data.eval=$DATA/SST-2/dev.tsv

The first is pre-training as of DistilBERT (Sanh et al. 2019, https://arxiv.org/abs/1910.01108, and
its released code): the loss is 5 times the soft cross-entropy to the teacher at the masked words, 2
times that of masked words, and 1 - the cosine between the last hidden states; no token types, no
pooler, no pairs. Its release takes layers 0, 2, 4, 7, 9 and 11 of 12, learns from the teacher at
all tokens, and masks rare words more often. The second learns a task, whose teacher was fine-tuned
for it (configs/finetune.py): half of the loss is that of the labels, half the soft cross-entropy to
the teacher.

teacher is a workdir, a Hugging Face folder, or hf:NAME. The student has its sizes, vocabulary and
every second of its layers. With --config.distillation.every_layer=0 it starts from
--config.init_from instead, such as the student of a pre-training, or from scratch, and may have
other sizes, if the vocabulary is the teacher's; where the width differs, there is no cosine:
--config.distillation.hidden_weight=0.

Arguments:

task=sst2      a task of configs/finetune.py; without it, pre-training
unpacked       of a task: one example in a row
runlocal       some minutes on a laptop. Its teacher is trained first, on the same data:

    python -m bert_jax.train --config configs/pretrain.py:runlocal --workdir W
    python -m bert_jax.train --config configs/distill.py:runlocal --workdir W2 --config.teacher=W
"""

import runpy
from pathlib import Path

from bert_jax import config as c


def get_config(arg=''):
  arg = c.parse_arg(arg, task='', unpacked=False, runlocal=False)
  flags = [name for name in ('unpacked', 'runlocal') if arg[name]]
  folder = Path(__file__).parent
  if arg.task:
    finetune = runpy.run_path(str(folder / 'finetune.py'))['get_config']
    config = finetune(','.join([f'task={arg.task}', *flags]))
    config.distillation.every_layer = 2
    return config
  if arg.unpacked:
    raise c.InputError('unpacked is for a task; rows of pre-training are full.')
  pretrain = runpy.run_path(str(folder / 'pretrain.py'))['get_config']
  config = c.defaults('distillation')
  config.update(pretrain(','.join(flags)))
  config.update(dict(
    objective='distillation', distillation=dict(every_layer=2), model=dict(type_vocab_size=0),
    corpus=dict(rows='full', short_seq_prob=0.0, dupe_factor=1), loss=dict(nsp_weight=0.0)))
  if not arg.runlocal:
    config.update(dict(
      epochs=3.0, steps=0, batch_size=4096, data=dict(seq_length=512),
      model=dict(num_hidden_layers=6),
      optimizer=dict(name='adamw', learning_rate=5e-4, warmup=0.05, weight_decay=0.0, clip_norm=5.0,
                     accumulation=32)))
  return config
