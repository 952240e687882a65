"""The config fields of the blocks `tokenizer` and `data`: the texts that a run reads."""

from bert_jax.field import Field, affecting

FIELDS = affecting({'vocabulary'}, {
  'tokenizer.kind': Field('wordpiece', 'to train if `path` is empty; unigram, bpe: '
    "SentencePiece's; byte_bpe: RoBERTa's, of bytes; bytes: those of UTF-8, nothing to train",
    allowed=('wordpiece', 'unigram', 'bpe', 'byte_bpe', 'bytes')),
  'tokenizer.path': Field('', "a file with one; empty: init_from's, else train one"),
  'tokenizer.character_coverage': Field(0.99999, 'share of characters a new one keeps',
    allowed='(0, 1]'),
  'tokenizer.do_lower_case': Field(True, 'lower-case and strip accents (uncased)'),
}) | affecting({'rows'}, {
  'data.train': Field('', 'file, glob, folder, tfds:NAME, hf:NAME, prepared corpus, or '
    'LANGUAGE=one of them,...; empty: the embedded documentation'),
  'data.eval': Field('', 'data to evaluate on, as data.train; empty: a share held out, of a corpus '
    'or table (elsewhere: eval_share, validation_file)',
    affects={'rows', 'judging'}),
  'data.seq_length': Field(128, 'tokens per row, [CLS] and [SEP] included (elsewhere: '
    'max_seq_length, max_seq_len, sequence_length, context_length, block_size)',
    allowed='[8, inf)'),
  'data.examples_per_row': Field(1, 'the most examples packed into a row; 1: no packing',
    allowed='[1, inf)'),
  'data.text_encoding': Field('', 'of files that are not UTF-8, such as cp1251; empty: by a byte '
    'order mark, else UTF-8', affects={'rows', 'judging'}),
  'data.skip_damaged': Field(False, 'records that cannot be read are left out, counted and named',
    affects={'rows', 'judging'}),
})  # fmt: skip
