"""Sentence vectors: texts that belong together become neighbours.

    python -m bert_jax.train --config configs/contrastive.py:task=squad,size=minilm --workdir W \
        --config.data.train=squad=$DATA/train-v1.1.json,tydi=$DATA/tydiqa.goldp.en.train.json \
        --config.data.eval=$DATA/xquad.en.json
    python -m bert_jax.predict --model W --task embed --input lines.txt --output vectors.jsonl
    python -m bert_jax.tools.convert --from W --to hf:OUT       # loads in sentence-transformers

In the place of size=minilm, --config.init_from=W0 starts from any pre-trained run, and takes its
model. Arguments:

task=pairs      a table with the columns anchor (or question, query, sentence1) and positive (or
                paragraph, answer, sentence2); other names: contrastive.anchor_column and so on
task=triples    the same, and hard negatives in the column negative
task=stsb       pairs with a score (the columns of GLUE's STS-B): CoSENT
task=squad      questions and their paragraphs, in the JSON of SQuAD, XQuAD, TyDi
task=simcse     text files: each line twice, with two draws of dropout; data.eval is STS-B
size=base       minilm, or one of SIZES in bert_jax/config/model.py: from scratch
runlocal        tiny, from scratch, 200 steps; without data.train, task=pairs reads examples made of
                the documentation in every installation (docs:pairs)

A batch has one item in each row: batch_size is the number of pairs, and each has all the others'
texts for negatives. Where it does not fit into memory, contrastive.chunks=8 encodes it in eight
parts, for the same gradient.
"""

from bert_jax import config as c

STSB = dict(anchor_column='sentence1', positive_column='sentence2', score_column='score')
TASKS = {
  'pairs': dict(),
  'triples': dict(contrastive=dict(negative_columns=('negative',)),
                  data=dict(seq_length=192, examples_per_row=3)),
  'stsb': dict(batch_size=16, epochs=4.0, contrastive=STSB | dict(loss='cosent')),
  'squad': dict(batch_size=32, epochs=3.0, task=dict(format='squad'), data=dict(seq_length=256)),
  # The rate, the batch and the temperature of Gao et al. 2021; they pool by [CLS].
  'simcse': dict(optimizer=dict(learning_rate=3e-5), task=dict(format='lines', max_length=64),
                 contrastive=STSB | dict(eval_format='table')),
}


def get_config(arg=''):
  arg = c.parse_arg(arg, task=TASKS, size='', runlocal=False)
  minilm = arg.size == 'minilm'
  config = c.defaults('contrastive')
  config.model = c.bert(arg.size or 'base')
  config.update(dict(
    init_from=c.MINILM if minilm else '', epochs=1.0,
    optimizer=dict(eps=1e-8), checkpoint=dict(every=500)))
  config.update(TASKS[arg.task])
  if arg.runlocal:
    if not minilm:
      config.model = c.bert(arg.size or 'tiny', vocab_size=8192)
      config.optimizer.learning_rate = 5e-4
    config.update(dict(
      batch_size=32, epochs=0.0, steps=200, eval=dict(every=100), checkpoint=dict(every=100),
      log=dict(every=20), data=dict(train=f'docs:{arg.task}')))
  return config
