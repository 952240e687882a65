"""The fields in the blocks `tokenizer` and `data`: the texts that a run reads."""

from bert_jax.field import Field

FIELDS = {
  'tokenizer.kind': Field(str, ('wordpiece', 'unigram', 'bpe', 'byte_bpe', 'bytes'),
    "to train if `path` is empty; unigram, bpe: SentencePiece's; byte_bpe: RoBERTa's, of bytes; "
    'bytes: those of UTF-8, nothing to train', 'wordpiece'),
  'tokenizer.path': Field(str, None, "a file with one; empty: init_from's, else train one", ''),
  'tokenizer.character_coverage': Field(float, '(0, 1]', 'share of characters a new one keeps',
    0.99999),
  'tokenizer.do_lower_case': Field(bool, None, 'lower-case and strip accents (uncased)', True),
  'data.train': Field(str, None,
    'file, glob, folder, tfds:NAME, prepared corpus, or LANGUAGE=one of them,...; '
    'empty: the embedded documentation', ''),
  'data.eval': Field(str, None, 'the same, to evaluate on; empty: a held-out share of a corpus',
    ''),
  'data.seq_length': Field(int, '[8, inf)', 'tokens per row, [CLS] and [SEP] included', 128),
  'data.examples_per_row': Field(int, '[1, inf)',
    'the most examples packed into a row; 1: no packing', 1),
  'data.skip_damaged': Field(bool, None, 'what cannot be read is left out, counted and named',
    False),
}  # fmt: skip
