"""BabyLM's strict-small track: ten million words, at most ten times, on a laptop.

    python -m bert_jax.train --config configs/babylm.py:size=tiny --workdir W \
        --config.data.train="$DATA/babylm/*.txt"
    python -m bert_jax.tools.probe --model W --only pairs --sentences 0 \
        --pairs "blimp=$DATA/blimp_filtered/*.jsonl" \
        --pairs "supplement=$DATA/supplement_filtered/*.jsonl"

The words and the items are those of the challenge (https://babylm.github.io): a line is a sentence
or an utterance, an empty line ends a document. Byte-level pieces are learned from the same words.

Arguments, which can be combined:

size=tiny         4 layers of 128; small: 6 of 256, 5.5 M parameters; base: 12 of 512, for a GPU
objective=masked  pseudo-log-likelihoods choose a sentence; causal: likelihoods; hybrid: half of the
                  rows causal, as in GPT-BERT (Charpentier & Samuel 2024,
                  https://arxiv.org/abs/2410.24159)

The three objectives have equal FLOPs: a causal model predicts each token, and so takes fewer steps.
A step reads 8,192 tokens (tiny: 2,048), in rows that are cut to 32, then 64, then 128 tokens; a
masked model reads 131 M in all (tiny: 20 M). The shape is ModernBERT's, and a masked model is
exported as one. It learns with 30 % of the tokens masked, and is evaluated, as all recipes are,
with 15 % (eval_masking.masked_lm_prob). What was tried is in tests/MEASURED.md. The rules allow ten
million words (`cat $DATA/babylm/*.txt | wc -w`), read ten times at most.
"""

from bert_jax import config as c

VOCABULARY = 8192
# Layers, width, steps, and rows of a step.
SIZES = {
  'tiny': (4, 128, 10_000, 16),
  'small': (6, 256, 16_000, 64),
  'base': (12, 512, 16_000, 64),
}
# The share of the tokens that is predicted.
OBJECTIVES = {'masked': 0.3, 'causal': 1.0, 'hybrid': 0.65}


def flops(layers, width, objective):
  """Of a token, by the weights that it meets, in units that are the same for all objectives."""
  return 8.5 * layers * width**2 + OBJECTIVES[objective] * VOCABULARY * width


def get_config(arg=''):
  arg = c.parse_arg(arg, size=SIZES, objective=OBJECTIVES)
  layers, width, steps, rows = SIZES[arg.size]
  of_masked = flops(layers, width, 'masked') / flops(layers, width, arg.objective)
  config = c.defaults('language_model')
  config.model = c.bert(
    f'{layers}/{width}', vocab_size=VOCABULARY, max_position_embeddings=128, type_vocab_size=0,
    position_embeddings='rotary', norm_placement='pre', first_norm=False, layer_norm_eps=1e-5,
    norm_bias=False, attention_bias=False, feed_forward='glu', feed_forward_bias='none',
    intermediate_size=round(1.5 * width), pooler='none', head_bias=False,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, causal=arg.objective == 'causal')
  config.update(dict(
    batch_size=rows, steps=round(steps * of_masked),
    tokenizer=dict(kind='byte_bpe', do_lower_case=False),
    data=dict(seq_length=128, examples_per_row=16),
    corpus=dict(rows='lm', short_seq_prob=0.0, dupe_factor=1, eval_share=0.02,
                lengths='32,64@0.3,128@0.6'),
    language_model=dict(kind=arg.objective), masking=dict(masked_lm_prob=0.3),
    optimizer=dict(name='muon', schedule='cosine', learning_rate=1e-3 * rows**0.5, warmup=0.02),
    eval=dict(every=1000, batches=1280 // rows), checkpoint=dict(every=1000), log=dict(every=0)))
  return config
