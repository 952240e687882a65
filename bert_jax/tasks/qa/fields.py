"""The fields in the block `qa`: windows of contexts, and how answers are chosen."""

from bert_jax.field import Field, affecting

FIELDS = affecting({'rows'}, {
  'qa.doc_stride': Field(128, 'tokens between the starts of two windows of a context',
    allowed='[1, inf)'),
  'qa.max_query_length': Field(64, 'tokens of a question; a longer one is cut', allowed='[1, inf)'),
  'qa.max_answer_length': Field(30, 'tokens of an answer', allowed='[1, inf)',
    affects={'objective', 'evaluation'}),
  'qa.n_best_size': Field(20, 'spans kept of each question', allowed='[1, inf)',
    affects={'objective', 'evaluation'}),
  'qa.unanswerable': Field(False, 'a question may have no answer (SQuAD 2.0)'),
  'qa.null_threshold': Field(0.0, 'no answer where its lead over the best span is above this',
    affects={'objective', 'evaluation'}),
  'qa.answer_units': Field('words', 'of the F1; characters for Chinese (CMRC)',
    allowed=('words', 'characters'), affects={'objective', 'evaluation'}),
})  # fmt: skip
