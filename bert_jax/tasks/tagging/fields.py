"""The fields in the block `tagging`: the columns of tokens and tags, and the label set."""

from bert_jax.field import Field, affecting

FIELDS = affecting({'rows'}, {
  'tagging.token_column': Field(0, 'column of the token, from 0; -1 is the last'),
  'tagging.tag_column': Field(-1, 'column of the tag'),
  'tagging.labels': Field((), 'the tags, in order; empty: what the training data has, sorted',
    allowed=str),
  'tagging.label_pieces': Field('first', 'pieces of a word that carry its tag',
    allowed=('first', 'all')),
  'tagging.document_context': Field(False, 'fill rows with the sentences around (-DOCSTART-)'),
})  # fmt: skip
