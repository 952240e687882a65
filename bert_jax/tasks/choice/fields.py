"""The field of multiple choice, in the block `task`."""

from bert_jax.field import Field

FIELDS = {
  'task.choices': Field(0,
    'of a question: a row has a part for each, of data.seq_length / task.choices tokens, in which '
    'attention stays; 0: the choices of a question share a row, and attention costs what it does',
    allowed='[0, inf)', past=0, affects={'rows'}),
}  # fmt: skip
