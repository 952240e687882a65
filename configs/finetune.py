"""Fine-tuning for classification: single texts, pairs, or a number for each (regression).

    python -m bert_jax.train --config configs/finetune.py:task=sst2 --workdir W2 \
        --config.init_from=W --config.data.train=$DATA/SST-2/train.tsv \
        --config.data.eval=$DATA/SST-2/dev.tsv

Arguments: `task` names the columns (docs sst2 rte stsb; any table with --config.task.text_column
and so on), `size` the model where init_from does not, `runlocal` makes it about a minute on a
laptop. `docs`, the default, needs no data: which package does a docstring come from? The recipe is
the paper's: batch 32, 3 epochs, 3e-5, 10 % warm-up.
"""

from ml_collections import ConfigDict

from bert_jax import config as c

TASKS = {
  'docs': dict(),
  'sst2': dict(text_column='sentence'),
  'rte': dict(text_column='sentence1', pair_column='sentence2',
              labels=('entailment', 'not_entailment')),
  'stsb': dict(text_column='sentence1', pair_column='sentence2', label_column='score',
               regression=True),
}


def get_config(arg=''):
  arg = c.parse_arg(arg, task='docs', size='', runlocal=False)
  if arg.task not in TASKS:
    raise c.InputError(f'task {arg.task!r} is not known; use one of {", ".join(TASKS)}.')
  config = ConfigDict(dict(
    objective='classification', seed=0, prng_impl='threefry2x32', init_from='', resume_from='',
    batch_size=32, steps=0, epochs=3.0,
    model=c.bert(arg.size or 'base'),
    tokenizer=dict(kind='wordpiece', path='', character_coverage=0.99999,
                   do_lower_case=True),
    data=dict(train='', eval='', seq_length=128, skip_damaged=False),
    task=dict(text_column='sentence', pair_column='', label_column='label', columns=(), labels=(),
              regression=False, train_examples=0) | TASKS[arg.task],
    optimizer=dict(
      name='bert_adamw', learning_rate=3e-5, schedule='linear', warmup=0.1, horizon=1.0, decay=0.0,
      beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01, no_decay='LayerNorm|bias',
      clip_norm=1.0, accumulation=1, freeze='', lr_multipliers=(), layer_lr_decay=1.0),
    mesh=dict(data=-1, fsdp=1, tensor=1),
    eval=dict(every=0, batches=0),
    checkpoint=dict(every=1000, keep_latest=1, keep_every=0, best_metric='',
                    best_mode='max'),
    log=dict(every=50, tensorboard=True)))
  if arg.runlocal:
    config.model = c.bert(arg.size or 'tiny', vocab_size=8192)
    config.update(dict(
      epochs=0.0, steps=600, data=dict(seq_length=64), optimizer=dict(learning_rate=3e-4),
      eval=dict(every=300), checkpoint=dict(every=300)))
  return config
