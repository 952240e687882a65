"""BERT pre-training: masked LM + next-sentence prediction on text, raw or prepared.

    python -m bert_jax.train --config configs/pretrain.py:size=base --workdir W \
        --config.data.train="$DATA/*.txt" --config.tokenizer.path=vocab.txt

Arguments, which can be combined:

size=tiny     mini small medium base large, or layers/width such as 6/256
runlocal      about a minute on a laptop, on data.train or, without it, on the English documentation
              that is part of every installation
data=wikipedia  the Wikipedia of TFDS: English, or the languages of lang=zh and lang=multi
lang=zh       Chinese: the size of its vocabulary, and whole words by a segmenter
              (pip install jieba) as in BERT-wwm
lang=multi    M-BERT: 104 languages, seen in proportion to P(L)^0.7, one cased vocabulary of
              110,000; prepare its text first, since it does not fit into memory
arch=roberta  Liu et al. 2019, table 9: no pairs and no NSP, rows of 512, large batches; name its
              byte-level vocabulary with tokenizer.path, or a BPE is trained
arch=electra  Clark et al. 2020, table 6: a generator of a third of the width, of a quarter with
              another size than base, and a discriminator, which is the model
arch=spanbert Joshi et al. 2020: spans masked, and predicted from their boundaries too; no pairs
arch=ernie    ERNIE 1.0 (Sun et al. 2019): words, then phrases, then entities masked as one; name
              files of them with corpus.phrases and corpus.entities
arch=wwm      BERT-wwm (Cui et al. 2019): whole words masked, large batches by LAMB
phase=128     the first of two phases: 90 % of the steps, on rows of 128 tokens
phase=512     the second: the other steps, on rows of 512; --config.resume_from=W continues the
              weights, the optimizer and the schedule of the first

The values are those of Devlin et al. 2018 and of its released code. Prepare a corpus that is used
more than once, or that does not fit into memory (python -m bert_jax.tools.prepare).
"""

from ml_collections import ConfigDict

from bert_jax import config as c

# The Wikipedias of M-BERT, cased (google-research/bert, multilingual.md). Its 104 languages count
# simplified and traditional Chinese as two, which share zh here.
M_BERT = tuple(
  '''af an ar ast az azb ba bar be bg bn bpy br bs ca ce ceb cs cv cy da de el en es et eu fa fi fr
  fy ga gl gu he hi hr ht hu hy id io is it ja jv ka kk kn ko ky la lb lmo lt lv mg min mk ml mn mr
  ms my nds ne new nl nn no oc pa pl pms pnb pt ro ru scn sco sh sk sl sq sr su sv sw ta te tg th tl
  tr tt uk ur uz vi vo war yo zh'''.split())  # noqa: SIM905

# {arch: the fields in which its pre-training differs from BERT's, as its paper says}.
ARCHS = {
  '': {},
  'roberta': dict(
    batch_size=8192, steps=500_000, model=dict(vocab_size=50265, type_vocab_size=0),
    tokenizer=dict(kind='bpe', do_lower_case=False), data=dict(seq_length=512),
    corpus=dict(rows='full'), masking=dict(max_predictions_per_seq=77), loss=dict(nsp_weight=0.0),
    # The rate falls from its peak, after the warm-up, to 0 at the end.
    optimizer=dict(name='adamw', learning_rate=6e-4, warmup=0.048, schedule='wsd', decay=0.952,
                   beta2=0.98, clip_norm=0.0)),
  'electra': dict(
    objective='electra', steps=766_000, data=dict(seq_length=512), corpus=dict(rows='full'),
    masking=dict(max_predictions_per_seq=77, mask_share=0.85, random_share=0.0),
    loss=dict(nsp_weight=0.0, replaced_weight=50.0),
    generator=dict(size=1 / 3, embeddings='shared'), optimizer=dict(learning_rate=2e-4)),
  'spanbert': dict(
    steps=2_400_000, model=dict(vocab_size=28996), tokenizer=dict(do_lower_case=False),
    data=dict(seq_length=512), corpus=dict(rows='full'),
    masking=dict(policy='span', max_predictions_per_seq=77),
    loss=dict(nsp_weight=0.0, sbo_weight=1.0),
    optimizer=dict(name='adamw', eps=1e-8, weight_decay=0.1)),
  'ernie': dict(
    model=dict(vocab_size=18000, hidden_act='relu'),
    masking=dict(policy='whole_word,phrase@333333,entity@666666')),
  'wwm': dict(
    batch_size=2560, steps=100_000, masking=dict(policy='whole_word'),
    optimizer=dict(name='lamb', warmup=0.1)),
}
# What is different again in arch=X,runlocal.
LOCAL = {
  'ernie': dict(
    masking=dict(policy='whole_word,phrase@167,entity@333'),
    corpus=dict(phrases='configs/lexicons/phrases.txt', entities='configs/lexicons/entities.txt')),
  'wwm': dict(optimizer=dict(learning_rate=4e-3)),
}


def get_config(arg=''):
  arg = c.parse_arg(arg, size='', runlocal=False, data='', lang='en', phase='', arch='')
  for name, known in (('data', ('', 'wikipedia')), ('lang', ('en', 'zh', 'multi')),
                      ('phase', ('', '128', '512'))):
    if arg[name] not in known:
      raise c.InputError(f'{name}={arg[name]} is not known; use one of {", ".join(known[-2:])}.')
  if arg.arch not in ARCHS:
    known = ', '.join(filter(None, ARCHS))
    raise c.InputError(f'arch={arg.arch} is not known; use one of {known}.')
  config = ConfigDict(dict(
    objective='mlm_nsp', seed=0, prng_impl='threefry2x32', init_from='', resume_from='',
    batch_size=256, steps=1_000_000, epochs=0.0,
    model=c.bert(arg.size or 'base', dtype='bfloat16'),
    tokenizer=dict(kind='wordpiece', path='', character_coverage=0.99999,
                   do_lower_case=True),
    data=dict(train='', eval='', seq_length=128, examples_per_row=1, skip_damaged=False),
    corpus=dict(format='auto', text_field='text', eval_share=0.01, rows='nsp',
                short_seq_prob=0.1, dupe_factor=5, languages=(), sampling=1.0,
                weights=(), segmenter='', phrases='', entities=''),
    masking=dict(policy='token', masked_lm_prob=0.15, max_predictions_per_seq=20, mask_share=0.8,
                 random_share=0.1),
    loss=dict(nsp_weight=1.0, sbo_weight=0.0),
    optimizer=dict(
      name='bert_adamw', learning_rate=1e-4, schedule='linear', warmup=10_000.0, horizon=1.0,
      decay=0.0, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01, no_decay='LayerNorm|bias',
      clip_norm=1.0, accumulation=1, batch_warmup=0.0, freeze='', lr_multipliers=(),
      layer_lr_decay=1.0),
    mesh=dict(data=-1, fsdp=1, tensor=1, slices=1),
    eval=dict(every=10_000, batches=50, patience=0),
    checkpoint=dict(every=10_000, keep_latest=2, keep_every=0, best_metric='', best_mode='min'),
    log=dict(every=100, tensorboard=True)))
  config.update(ARCHS[arg.arch])
  if arg.arch == 'electra' and arg.size not in ('', 'base'):
    config.generator.size = 0.25
  if arg.lang == 'zh':
    config.update(dict(
      model=dict(vocab_size=21128), tokenizer=dict(character_coverage=0.9995),
      corpus=dict(segmenter='jieba'), masking=dict(policy='whole_word')))
  if arg.lang == 'multi':
    config.update(dict(
      model=dict(vocab_size=110_000), tokenizer=dict(character_coverage=0.9995,
                                                     do_lower_case=False),
      corpus=dict(languages=M_BERT, sampling=0.7)))
  if arg.data == 'wikipedia':
    language = {'multi': '{language}'}.get(arg.lang, arg.lang)
    config.data.train = f'tfds:wikipedia/20230601.{language}'
  if arg.runlocal:
    fields = ARCHS[arg.arch].get('model', {}) | {'vocab_size': 8192}
    config.model = c.bert(arg.size or 'tiny', **fields)
    config.update(dict(
      batch_size=32, steps=500, data=dict(seq_length=64),
      corpus=dict(dupe_factor=1, eval_share=0.1),
      masking=dict(max_predictions_per_seq=10),
      optimizer=dict(learning_rate=1e-3, warmup=0.1), eval=dict(every=250, batches=20),
      checkpoint=dict(every=100), log=dict(every=50)))
    config.update(LOCAL.get(arg.arch, {}))
  if arg.phase == '128':  # nine tenths of the steps and of the schedule
    config.update(dict(steps=config.steps * 9 // 10, optimizer=dict(horizon=10 / 9)))
  if arg.phase == '512':
    config.update(dict(
      resume_from='<the --workdir of phase=128>',  # the user replaces this; there is no such folder
      data=dict(seq_length=512), masking=dict(max_predictions_per_seq=77)))
  return config
