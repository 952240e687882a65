"""The fields in the block `contrastive`, and the defaults of runs that learn sentence vectors."""

from bert_jax.field import Field, affecting
from bert_jax.models.pooling import POOLINGS
from bert_jax.objectives.contrastive import LOSSES
from bert_jax.tasks.contrastive import reading

FIELDS = affecting({'rows'}, {
  'contrastive.loss': Field('in_batch',
    'in_batch: negatives are the other texts of the global batch; cosent: pairs with scores',
    allowed=LOSSES),
  'contrastive.temperature': Field(0.05,
    'similarities are divided by it; 1 / the scale of sentence-transformers', allowed='(0, inf)',
    affects={'objective'}),
  'contrastive.widths': Field((),
    'widths of which each has a loss (Matryoshka), the whole one too if it is named; (): only that',
    affects={'objective'}),
  'contrastive.pooling': Field('mean',
    'the vector of a text: the mean of its hidden states, or the one of [CLS]', allowed=POOLINGS,
    affects={'objective'}),
  'contrastive.normalize': Field(True,
    'vectors have length 1, and similarity is the cosine; false: it is the product',
    affects={'objective'}),
  'contrastive.chunks': Field(1,
    'parts in which a batch is encoded, the gradient being that of the whole (GradCache)',
    allowed='[1, inf)', affects={'objective'}),
  'contrastive.anchor_column': Field('anchor|question|query|sentence1',
    'column of the anchor; a|b: the first of these that is there'),
  'contrastive.positive_column': Field('positive|paragraph|answer|sentence2',
    'the same of its positive; empty: a text is its own, under another dropout (SimCSE)'),
  'contrastive.negative_columns': Field((), 'columns of hard negatives', allowed=str),
  'contrastive.score_column': Field('',
    'column of the score of a pair, for cosent and, in a table, data.eval; empty: none'),
  'contrastive.columns': Field((),
    'names of the columns of a TSV without header; empty: it has one', allowed=str),
  'contrastive.eval_format': Field('', 'the format of data.eval; empty: task.format',
    allowed=('', *reading.FORMATS)),
})  # fmt: skip
DEFAULTS = {'batch_size': 64, 'data.examples_per_row': 2, 'optimizer.learning_rate': 2e-5}
