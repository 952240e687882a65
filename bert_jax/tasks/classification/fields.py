"""The fields in the block `table`: the columns of labelled texts, and how they are learned."""

from bert_jax.field import Field, affecting

FIELDS = affecting({'rows'}, {
  'table.text_column': Field('sentence',
    'column of the text; a|b: the first of these that is there'),
  'table.pair_column': Field('', 'column of the second text; empty: single texts'),
  'table.label_column': Field('label', 'column of the label'),
  'table.id_column': Field('', 'column that names a row; empty: rows are numbered from 0'),
  'table.columns': Field((), 'names of the columns of a TSV without header; empty: it has one',
    allowed=str),
  'table.labels': Field((),
    'the label set, in order (a|b: spelt a or b); empty: what the training data has, sorted',
    allowed=str),
  'table.regression': Field(False, 'labels are numbers: squared error, Pearson and Spearman'),
  'table.multi_label': Field(False, 'a text has any number of labels, separated by commas'),
  'table.eval_share': Field(0.0,
    'share of data.train that leaves it, to evaluate on if data.eval is empty; 0: none',
    allowed='[0, 1)', past=0.0),
  'table.class_weights': Field((), "((label, weight in the loss), ...); ('balanced',): 1/share",
    affects={'objective'}),
  'table.pooling': Field('cls',
    'what is classified: the pooled [CLS] (BERT), or the mean of all tokens, without a pooler',
    allowed=('cls', 'mean'), past='cls', affects={'objective'}),
  'table.long_texts': Field('head',
    'what is kept of a text that is too long; windows: all of it, logits averaged; hierarchical: '
    'the windows that a row holds, whose vectors are classified together',
    allowed=('head', 'tail', 'head_tail', 'windows', 'hierarchical')),
  'table.lm_weight': Field(0.0,
    'of the loss of a causal language model on the texts, beside the loss of labels (GPT: 0.5)',
    allowed='[0, inf)', past=0.0, affects={'objective'}),
})  # fmt: skip
