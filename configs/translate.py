"""Translation by an encoder-decoder Transformer (Vaswani et al. 2017), and other pairs of texts.

    python -m bert_jax.train --config configs/translate.py:runlocal --workdir W \
        --config.data.train="$DATA/train.{language}.gz" --config.data.eval="$DATA/val.{language}.gz"
    echo 'A dog runs.' | python -m bert_jax.predict --model W --task translate
    python -m bert_jax.evaluate --workdir W \
        --config.data.eval="$DATA/test_2016_flickr.{language}.gz"

where $DATA is data/task1/raw of Multi30k, whose 29,000 sentences describe pictures, and which has
train.en.gz, train.de.gz, val.en.gz and so on:

    git clone https://github.com/multi30k/dataset multi30k

Data may also be two files (en=FILE,de=FILE), a table or TFDS
(tfds:wmt16_translate/de-en); see bert_jax/tasks/translation/reading.py. Both languages share a
vocabulary, which is trained on data.train unless tokenizer.path names one. Arguments:

pair=en-de    the names of the source and the target: of columns, or what {language} stands for;
              pair=source-target for columns of these names
size=base     the models of Vaswani et al., table 3: base or big; or small, of 4 + 4 layers of 128
              for some ten thousand pairs (Wu et al. 2021, https://arxiv.org/abs/2105.14462)
runlocal      a few minutes on a laptop, size=small; without data.train, passages of the
              documentation in every installation and their first sentences (docs:en-de)
denoise       BART's pre-training on documents (data.train as in configs/pretrain.py); a run with
              --config.init_from=W then begins with its weights

For summaries and other long sources: pair=source-target with --config.data.seq_length=1024
--config.translation.target_length=128 --config.translation.too_long=cut. A table without a header
is given the names of its columns by --config.translation.columns=en,de.
"""

from bert_jax import config as c

# {size: (layers of each tower, width, heads, feed-forward width, dropout, pieces, rows in a step)}
SIZES = {
  'base': (6, 512, 8, 2048, 0.1, 37_000, 128),
  'big': (6, 1024, 16, 4096, 0.3, 37_000, 128),
  'small': (4, 128, 4, 256, 0.3, 8192, 32),
}


def get_config(arg=''):
  arg = c.parse_arg(arg, pair='en-de', size=('', *SIZES), runlocal=False, denoise=False)
  arg.size = arg.size or ('small' if arg.runlocal else 'base')
  layers, width, heads, inner, dropout, pieces, rows = SIZES[arg.size]
  small = arg.size == 'small'
  config = c.defaults('denoising' if arg.denoise else 'translation')
  # The range of new weights is Glorot's of a square matrix; words times the root of their width
  # are then as long as positions.
  config.model = c.bert(
    'base', vocab_size=pieces, hidden_size=width, num_hidden_layers=layers,
    num_attention_heads=heads, intermediate_size=inner, max_position_embeddings=1024,
    type_vocab_size=0, hidden_act='relu', position_embeddings='sinusoidal', embedding_norm=False,
    embedding_scale=True, layer_norm_eps=1e-5, initializer_range=round(width**-0.5, 4),
    hidden_dropout_prob=dropout, mlm_head='none', dtype='float32' if small else 'bfloat16')
  config.update(dict(
    batch_size=rows, steps=3000 if small else 100_000,
    tokenizer=dict(kind='bpe', character_coverage=1.0, do_lower_case=False),
    data=dict(seq_length=128 if small else 256, examples_per_row=1 if arg.denoise else 16),
    # The rate of the paper: width^-0.5 * warm-up^-0.5 at its peak, and for small twice as much.
    optimizer=dict(
      name='adamw', learning_rate=3e-3 if small else round((width * 4000)**-0.5, 6),
      schedule='inverse_sqrt', warmup=500.0 if small else 4000.0, beta2=0.98, eps=1e-9,
      weight_decay=0.0, clip_norm=1.0 if small else 0.0),
    eval=dict(every=1000 if small else 5000, batches=0),
    checkpoint=dict(every=500 if small else 5000, keep_latest=2), log=dict(every=50)))
  if not arg.denoise:
    source, _, target = arg.pair.partition('-')
    if not (source and target):
      raise c.InputError(f'pair={arg.pair} names no two columns; write pair=en-de.')
    config.update(dict(translation=dict(source_column=source, target_column=target)))
  if arg.runlocal:
    config.update(dict(
      batch_size=16, steps=400, optimizer=dict(warmup=100.0), eval=dict(every=0, batches=0),
      checkpoint=dict(every=100), log=dict(every=20)))
    config.data.train = '' if arg.denoise else f'docs:{arg.pair}'
  return config
