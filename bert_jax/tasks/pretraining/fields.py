"""The fields of pre-training: in the blocks `corpus`, `masking`, `eval_masking` and `loss`."""

from bert_jax.field import Field, affecting
from bert_jax.objectives.masking import POLICIES
from bert_jax.rows.corpus_rows import KINDS

CORPUS = affecting({'rows'}, {
  'corpus.format': Field('auto', 'see text/documents.py',
    allowed=('auto', 'sentences', 'lines', 'paragraphs', 'jsonl', 'wiki', 'wikitext')),
  'corpus.text_field': Field('text', 'field of a JSONL or TFDS record that holds the text'),
  'corpus.eval_share': Field(0.01, 'documents held out for evaluation if data.eval is empty',
    allowed='[0, 1)'),
  'corpus.rows': Field('nsp', 'what an example is, see rows/corpus_rows.py',
    allowed=KINDS),
  'corpus.short_seq_prob': Field(0.1, 'share of pairs with a random, shorter length',
    allowed='[0, 1]'),
  'corpus.dupe_factor': Field(5, 'times the corpus is cut into pairs, differently each',
    allowed='[1, inf)'),
  'corpus.window': Field(32, 'blocks of a large prepared corpus whose rows are mixed at a time',
    allowed='[1, inf)', past=32),
  'corpus.lengths': Field('',
    'how far apart tokens that see each other may be in training, by step, as in '
    '32,64@2000,128@4000 or 32,64@0.3,128@0.6 (rows are cut there); empty: as far as in the row',
    allowed='[8, inf)', past='', affects={'masks', 'schedule'}, by_step=True),
  'corpus.languages': Field((), 'to use, in order; empty: all that data.train has', allowed=str),
  'corpus.sampling': Field(1.0, 'S: a language is seen in proportion to P(L)^S of tokens',
    allowed='[0, 1]'),
  'corpus.weights': Field((), '((language, factor), ...) on top of that'),
  'corpus.segmenter': Field('', 'marks whole words of Chinese', allowed=('', 'jieba')),
  'corpus.phrases': Field('', 'lexicon, one a line: units of masking.policy=phrase'),
  'corpus.entities': Field('', 'lexicon, one a line: units of masking.policy=entity'),
})  # fmt: skip
MASKING = affecting({'masks'}, {
  'masking.policy': Field('token',
    'token, whole_word, span, phrase or entity; or by step, as in token,phrase@1000,entity@2000, '
    'or token,phrase@0.5: from half of the steps on',
    allowed=tuple(POLICIES), by_step=True),
  'masking.masked_lm_prob': Field(0.15, 'share of tokens to predict', allowed='(0, 1)'),
  'masking.max_predictions_per_seq': Field(0,
    'most predictions in a row (static); 0: masked_lm_prob * data.seq_length, rounded up',
    allowed='[0, inf)'),
  'masking.mask_share': Field(0.8, 'of these, replaced by [MASK]', allowed='[0, 1]'),
  'masking.random_share': Field(0.1, 'of these, replaced by a random piece; the rest stay',
    allowed='[0, 1]'),
})  # fmt: skip
EVAL_MASKING = affecting({'evaluation'}, {
  'eval_masking.policy': Field('token',
    'as masking.policy, in evaluations; empty: evaluations mask as masking.* says',
    allowed=('', *POLICIES), past=''),
  'eval_masking.masked_lm_prob': Field(0.15, 'share of tokens to predict', allowed='(0, 1)',
    past=0.15),
  'eval_masking.mask_share': Field(0.8, 'of these, replaced by [MASK]', allowed='[0, 1]', past=0.8),
  'eval_masking.random_share': Field(0.1, 'of these, replaced by a random piece; the rest stay',
    allowed='[0, 1]', past=0.1),
})  # fmt: skip
LOSS = affecting({'objective'}, {
  'loss.nsp_weight': Field(1.0, 'lambda in MLM + lambda * NSP (or SOP); 0: no such head',
    allowed='[0, inf)'),
  'loss.sbo_weight': Field(0.0, "the same of SpanBERT's span boundary objective; 0: no such head",
    allowed='[0, inf)', past=0.0),
})  # fmt: skip
