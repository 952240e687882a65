"""Transformer-XL (Dai et al. 2019, https://arxiv.org/abs/1901.02860): a causal language model with
a memory of the text before each row.

    python -m bert_jax.train --config configs/transformer_xl.py:runlocal --workdir W \
        --config.data.train="$DATA/*.txt"
    python -m bert_jax.evaluate --workdir W --config.language_model.eval_memory=256

Row b of a batch continues row b of the batch before, and each layer sees the vectors that it had of
the last model.memory_length tokens. The memory is a part of the checkpoint. As in the paper it goes
on where a document ends. Evaluations may have a longer one (language_model.eval_memory), and say
bits_per_character and bits_per_byte. The vocabulary is the bytes of UTF-8, unless tokenizer.kind or
tokenizer.path says otherwise. Arguments, which can be combined:

size=base      12 layers of 512, rows and memory of 512 (the paper's for enwik8, 41M parameters)
     large     24 layers of 1,024, rows and memory of 768 (the same, 277M)
runlocal       a few minutes on a laptop, on data.train or, without it, on the English documentation
               that is part of every installation

The paper's evaluations on enwik8: of base --config.language_model.eval_memory=2100, of large
eval_memory=3800 (there distances beyond 820 count as 820, here all differ).
--config.model.memory_length=0 is the model without a memory. Dropout is that of this project's
blocks: there is none between the two layers of a feed-forward block and after the last layer, where
the paper's code has some.
To fine-tune it on long texts, without a memory: configs/finetune.py --config.init_from=W
--config.model.position_embeddings=relative --config.data.seq_length=2048
--config.data.examples_per_row=1.
"""

from bert_jax import config as c

# u, v and W of relative positions are those of each layer. The positions have no other table.
XL = dict(
  vocab_size=261, causal=True, position_embeddings='relative', type_vocab_size=0,
  embedding_scale=True, embedding_norm=False, attention_bias=False, hidden_act='relu',
  layer_norm_eps=1e-5, mlm_head='none', pooler='none', attention_probs_dropout_prob=0.0)
# The rate falls from its peak to 0 along a cosine. The paper's batches are 22 and 64 rows.
SIZES = {
  'base': dict(
    model=XL | dict(hidden_size=512, num_hidden_layers=12, num_attention_heads=8,
                    intermediate_size=2048, memory_length=512),
    batch_size=24, steps=400_000, data=dict(seq_length=512)),
  'large': dict(
    model=XL | dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=8,
                    intermediate_size=3072, hidden_dropout_prob=0.15, memory_length=768,
                    attention_probs_dropout_prob=0.15),
    batch_size=64, steps=400_000, data=dict(seq_length=768), optimizer=dict(warmup=4000.0)),
}


def get_config(arg=''):
  arg = c.parse_arg(arg, size=SIZES, runlocal=False)
  size = SIZES[arg.size]
  config = c.defaults('language_model')
  config.model = c.bert('base', dtype='bfloat16', **size['model'])
  config.update(dict(
    tokenizer=dict(kind='bytes', character_coverage=1.0, do_lower_case=False),
    corpus=dict(short_seq_prob=0.0, dupe_factor=1),
    optimizer=dict(name='adamw', learning_rate=2.5e-4, schedule='cosine', warmup=0.0, eps=1e-8,
                   weight_decay=0.0, clip_norm=0.25),
    eval=dict(every=4000, batches=0),
    checkpoint=dict(every=4000, best_metric='bits_per_character'), log=dict(every=200)))
  config.update({name: value for name, value in size.items() if name != 'model'})
  if arg.runlocal:
    config.model = c.bert('tiny', **XL | dict(hidden_dropout_prob=0.0, memory_length=64))
    config.update(dict(
      batch_size=16, steps=1500, data=dict(seq_length=64), corpus=dict(eval_share=0.02),
      optimizer=dict(learning_rate=2e-3, warmup=0.05),
      eval=dict(every=750, batches=100), checkpoint=dict(every=250, best_metric=''),
      log=dict(every=100)))
  return config
