"""BERT pre-training: masked LM + next-sentence prediction on text, raw or prepared.

    python -m bert_jax.train --config configs/pretrain.py:size=base --workdir W \
        --config.data.train="$DATA/*.txt" --config.tokenizer.path=vocab.txt

Arguments, which can be combined:

size=tiny     mini small medium base large, or layers/width such as 6/256
arch=modern   another encoder, and its paper's settings; without size= as large as its base model:
              modern (ModernBERT), mosaic (MosaicBERT), neo (NeoBERT), cramming, albert, fnet;
              lstm, conv and bag, which are BERT with another mixer than attention; and tutorial,
              BERT as PyTorch tutorials simplify it.
              Another pre-training, of BERT: roberta (with a byte-level vocabulary of
              its own; tokenizer.path names another), electra, deberta (DeBERTa-v3, by replaced
              tokens too), spanbert, wwm (BERT-wwm) and ernie
              (ERNIE 1.0: words, phrases, then entities are masked as one; name files of them with
              corpus.phrases and corpus.entities)
continued     goes on with the pre-training of a model on your text: --config.init_from=SRC and
              --config.data.train; by masked words alone, or name its arch (albert, electra,
              deberta, fnet)
objective=causal  the model trained otherwise (bert_jax/objectives/language_model.py): causal,
              masked, hybrid (half of the rows causal), diffusion, or causal_then_masked (masked
              from half of the steps on); configs/causal_lm.py has GPT's shapes. Or another family,
              by its name, such as one of a notebook
runlocal      about a minute on a laptop, on data.train or, without it, on the English documentation
              that is part of every installation
data=wikipedia  the Wikipedia of TFDS: English, or the languages of lang=zh and lang=multi
lang=zh       Chinese: the size of its vocabulary, and whole words by a segmenter
              (pip install jieba) as in BERT-wwm
lang=multi    M-BERT: 104 languages, seen in proportion to P(L)^0.7, one cased vocabulary of
              110,000; prepare its text first, since it does not fit into memory
phase=128     the first of two phases: 90 % of the steps, on rows of 128 tokens
phase=512     the second: the other steps, on rows of 512; --config.resume_from=W continues the
              weights, the optimizer and the schedule of the first

The values are those of Devlin et al. 2018 and of its released code. Prepare a corpus that is used
more than once, or that does not fit into memory (python -m bert_jax.tools.prepare).
"""

from bert_jax import config as c

# The Wikipedias of M-BERT, cased (google-research/bert, multilingual.md). Its 104 languages count
# simplified and traditional Chinese as two, which share zh here.
M_BERT = tuple(
  '''af an ar ast az azb ba bar be bg bn bpy br bs ca ce ceb cs cv cy da de el en es et eu fa fi fr
  fy ga gl gu he hi hr ht hu hy id io is it ja jv ka kk kn ko ky la lb lmo lt lv mg min mk ml mn mr
  ms my nds ne new nl nn no oc pa pl pms pnb pt ro ru scn sco sh sk sl sq sr su sv sw ta te tg th tl
  tr tt uk ur uz vi vo war yo zh'''.split())  # noqa: SIM905


# {arch: what it changes in the config below}. `layers` and `ratio` (feed-forward width / hidden
# size) are its base model's. Where a paper gives tokens or hours, steps are computed from them. By
# these `accumulation` and `remat` a step fits 16 chips of 16 GB (v5e:4x4).
NO_BIAS = dict(norm_bias=False, attention_bias=False, feed_forward_bias='none', head_bias=False)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
MLM_ONLY = dict(corpus=dict(rows='full', short_seq_prob=0.0, dupe_factor=1),
                loss=dict(nsp_weight=0.0))
ARCHITECTURES = {
  # Warner et al. 2024 (https://arxiv.org/abs/2412.13663), the first phase, of 1.7e12 tokens in rows
  # of 1,024, at a constant rate. 3e11 more follow, and the rate falls over the last sixth of them:
  # --config.resume_from=W --config.data.seq_length=8192 --config.batch_size=576
  # --config.model.rotary_theta=160000 --config.steps=438750 --config.optimizer.horizon=1
  # --config.optimizer.learning_rate=3e-4
  'modern': MLM_ONLY | dict(
    # Recomputed so that 48 rows fit a chip of 16 GB (v5e:4x4).
    layers=22, ratio=1.5,
    model=NO_BIAS | NO_DROPOUT | dict(
      vocab_size=50368, type_vocab_size=0, max_position_embeddings=8192,
      position_embeddings='rotary', rotary_theta=10_000.0, local_rotary_theta=10_000.0,
      attention_window=128, global_attention_every=3, attention_output_dropout_prob=0.1,
      feed_forward='glu', norm_placement='pre', first_norm=False, layer_norm_eps=1e-5,
      scaled_initializer=True, pooler='transform', remat='full'),
    tokenizer=dict(do_lower_case=False), batch_size=4608, steps=375_000,
    data=dict(seq_length=1024), masking=dict(masked_lm_prob=0.3),
    # From 768 rows to all over 5e10 tokens, as there. Their decay, 1e-5 here and in MosaicBERT, is
    # not multiplied by the peak of the rate, as ours is.
    optimizer=dict(name='stable_adamw', learning_rate=8e-4, schedule='wsd_sqrt', warmup=3800.0,
                   decay=0.024, horizon=1.17, beta2=0.98, weight_decay=0.0125, clip_norm=0.0,
                   accumulation=6, batch_warmup=21_200.0)),
  # Portes et al. 2023 (https://arxiv.org/abs/2312.17482).
  'mosaic': MLM_ONLY | dict(
    layers=12, ratio=4,
    model=dict(position_embeddings='alibi', feed_forward='glu', feed_forward_bias='output',
               attention_probs_dropout_prob=0.0),
    batch_size=4096, steps=70_000,
    masking=dict(masked_lm_prob=0.3),
    optimizer=dict(name='adamw', learning_rate=5e-4, schedule='wsd', warmup=0.06, decay=0.94,
                   final_rate=0.02, beta2=0.98, weight_decay=0.02, clip_norm=0.0,
                   accumulation=2)),
  # Le Breton et al. 2025 (https://arxiv.org/abs/2502.19587), the first phase. There the rate has
  # come to its end after nine tenths of the steps.
  'neo': MLM_ONLY | dict(
    layers=28, ratio=8 / 3,
    model=NO_BIAS | NO_DROPOUT | dict(
      type_vocab_size=0, max_position_embeddings=4096, position_embeddings='rotary',
      feed_forward='glu', hidden_act='swish', norm='rms_norm', norm_placement='pre',
      embedding_norm=False, layer_norm_eps=1e-5, mlm_head='none', tie_word_embeddings=False),
    batch_size=2048, steps=1_000_000, data=dict(seq_length=1024), mesh=dict(gather='layer'),
    masking=dict(masked_lm_prob=0.2, mask_share=1.0,
                 random_share=0.0),
    optimizer=dict(name='adamw', learning_rate=6e-4, schedule='cosine', warmup=2000.0,
                   final_rate=0.1, beta2=0.95, eps=1e-8, weight_decay=0.1, accumulation=16)),
  # Geiping & Goldstein 2022 (https://arxiv.org/abs/2212.14034), the later recipe of its code, of at
  # most 1.5e10 tokens. The batch grows over the first 60 % of them, the rate rises over 75 %. There
  # it rises from a quarter of its peak. Norms alone have a bias.
  'cramming': MLM_ONLY | dict(
    layers=16, ratio=2,
    model=NO_BIAS | NO_DROPOUT | dict(
      vocab_size=32768, type_vocab_size=0, position_embeddings='scaled_sinusoidal',
      feed_forward='glu', norm_placement='pre', norm_bias=True, mlm_head='none',
      decoder_bias=False),
    batch_size=8192, steps=22_500, masking=dict(masked_lm_prob=0.25),
    optimizer=dict(name='adamw', learning_rate=1e-3, schedule='wsd', warmup=0.84, decay=0.16,
                   beta2=0.98, eps=1e-12, clip_norm=0.5, accumulation=64, batch_warmup=0.75)),
  # Lan et al. 2019 (https://arxiv.org/abs/1909.11942), without dropout as in its second release.
  # There up to 3 words in a row are masked as one.
  'albert': dict(
    layers=12, ratio=4,
    model=NO_DROPOUT | dict(vocab_size=30000, embedding_size=128, share_layers=True,
                            hidden_act='gelu_tanh'),
    tokenizer=dict(kind='unigram'), batch_size=4096, steps=125_000, data=dict(seq_length=512),
    corpus=dict(rows='sop', dupe_factor=40), masking=dict(policy='whole_word'),
    optimizer=dict(name='lamb', learning_rate=1.76e-3, warmup=3125.0, accumulation=8)),
  # Lee-Thorp et al. 2021 (https://arxiv.org/abs/2105.03824).
  'fnet': dict(
    layers=12, ratio=4,
    model=dict(vocab_size=32000, type_vocab_size=4, mixer='fourier', hidden_act='gelu_tanh'),
    tokenizer=dict(kind='bpe', do_lower_case=False), data=dict(seq_length=512),
    optimizer=dict(name='adamw', clip_norm=0.0)),
  'lstm': dict(layers=12, ratio=4, model=dict(mixer='lstm', position_embeddings='none')),
  'conv': dict(layers=12, ratio=4, model=dict(mixer='conv', position_embeddings='none')),
  'bag': dict(layers=12, ratio=4, model=dict(mixer='bag', position_embeddings='none')),
  # Liu et al. 2019 (https://arxiv.org/abs/1907.11692), table 9. After the warm-up the rate falls to
  # 0 at the end, from its peak. There a row goes on with the next document where one ends, and
  # tokens see both; here it ends, or holds several apart (data.examples_per_row).
  'roberta': dict(
    batch_size=8192, steps=500_000,
    model=dict(vocab_size=50265, type_vocab_size=0, layer_norm_eps=1e-5),
    tokenizer=dict(kind='byte_bpe', do_lower_case=False), data=dict(seq_length=512),
    corpus=dict(rows='full'), loss=dict(nsp_weight=0.0),
    optimizer=dict(name='adamw', learning_rate=6e-4, warmup=0.048, schedule='wsd', decay=0.952,
                   beta2=0.98, clip_norm=0.0, accumulation=16)),
  # Clark et al. 2020 (https://arxiv.org/abs/2003.10555), table 6, and its released code. The
  # generator of base is a third as wide, those of small and large a quarter.
  'electra': dict(
    objective='electra', steps=766_000, data=dict(seq_length=512), generator=dict(size=1 / 3),
    optimizer=dict(learning_rate=2e-4)),
  # He et al. 2021 (https://arxiv.org/abs/2111.09543), base, and its released code: whole words are
  # masked. size=large takes --config.optimizer.learning_rate=3e-4.
  'deberta': dict(
    objective='electra', batch_size=8192, steps=500_000, data=dict(seq_length=512),
    model=dict(vocab_size=128_000, type_vocab_size=0, layer_norm_eps=1e-7, mask_decoder=2,
               position_embeddings='disentangled', position_buckets=256, pooler='gelu',
               replaced_head='context', remat='dots'),
    tokenizer=dict(kind='unigram', do_lower_case=False),
    generator=dict(size=1.0, depth=0.5, embeddings='disentangled'),
    masking=dict(policy='whole_word', mask_share=1.0),
    # It never sees a word that it has to predict, so it is not judged by such words.
    eval_masking=dict(policy='whole_word', mask_share=1.0, random_share=0.0),
    optimizer=dict(name='adamw', learning_rate=6e-4, warmup=10_000.0, beta2=0.98,
                   accumulation=16)),
  # Joshi et al. 2020 (https://arxiv.org/abs/1907.10529), section 4. The command of its code has a
  # weight decay of 0.01, and predicts 15 tokens of a span by its boundaries, not 20.
  'spanbert': dict(
    steps=2_400_000, model=dict(vocab_size=28996), tokenizer=dict(do_lower_case=False),
    data=dict(seq_length=512), corpus=dict(rows='full'),
    masking=dict(policy='span'),
    loss=dict(nsp_weight=0.0, sbo_weight=1.0),
    optimizer=dict(name='adamw', eps=1e-8, weight_decay=0.1)),
  # Sun et al. 2019 (https://arxiv.org/abs/1904.09223), with the sizes of its released model.
  'ernie': dict(
    batch_size=128, data=dict(seq_length=512),
    model=dict(vocab_size=18000, hidden_act='relu', max_position_embeddings=513,
               layer_norm_eps=1e-5),
    masking=dict(policy='whole_word,phrase@0.333333,entity@0.666666')),
  # Cui et al. 2019 (https://arxiv.org/abs/1906.08101), the first phase.
  'wwm': dict(
    batch_size=2560, steps=100_000, masking=dict(policy='whole_word'),
    optimizer=dict(name='lamb', warmup=0.1)),
  'tutorial': dict(layers=12, ratio=4, model=dict(embedding_norm=False, pooler='none',
                                                  mlm_head='dense')),
}

# What is different again in arch=X,runlocal. LAMB moves a weight by a share of its length.
LOCAL = {
  'albert': dict(optimizer=dict(learning_rate=0.01)),
  'wwm': dict(optimizer=dict(learning_rate=0.01)),
  'ernie': dict(
    corpus=dict(phrases='configs/lexicons/phrases.txt', entities='configs/lexicons/entities.txt')),
}


# {objective: language_model.kind}
LANGUAGE_MODELS = {'causal': 'causal', 'masked': 'masked', 'hybrid': 'hybrid',
                   'diffusion': 'diffusion', 'causal_then_masked': 'causal,masked@0.5'}


def model_of(arch, size, **changes):
  """The block `model` of an architecture; size: '' for that of its base model."""
  changes = arch['model'] | changes
  model = c.bert(size or 'base', **changes)
  if not size:
    model['num_hidden_layers'] = arch['layers']
  model['intermediate_size'] = round(arch['ratio'] * model['hidden_size'] / 8) * 8
  if model['mixer'] == 'fourier':  # FNet has a dense layer after the embeddings, as wide as they
    model['embedding_size'] = model['hidden_size']
  return model


def get_config(arg=''):
  arg = c.parse_arg(
    arg, size='', runlocal=False, data=('', 'wikipedia'), lang=('en', 'zh', 'multi'),
    phase=('', '128', '512'), arch=('', *ARCHITECTURES), continued=False,
    objective=('', *LANGUAGE_MODELS, *c.objectives(reads_corpus=True)))
  arch = dict(layers=12, ratio=4, model={}) | ARCHITECTURES.get(arg.arch, {})
  if arg.objective and 'objective' in arch:
    raise c.InputError(f'arch={arg.arch} has an objective of its own; leave out objective=.')
  kind = LANGUAGE_MODELS.get(arg.objective)
  objective = 'language_model' if kind else arg.objective or arch.get('objective', 'mlm_nsp')
  config = c.defaults(objective)
  config.model = model_of(arch, arg.size, dtype='bfloat16')
  config.mesh.fsdp = 0
  config.update({k: x for k, x in arch.items() if k not in ('layers', 'ratio', 'model')})
  if arg.arch == 'electra' and arg.size not in ('', 'base'):
    config.generator.size = 0.25
  if arg.lang == 'zh':
    config.update(dict(
      model=dict(vocab_size=21128), tokenizer=dict(character_coverage=0.9995),
      corpus=dict(segmenter='jieba')))
    if config.masking.policy == 'token':
      config.update(dict(masking=dict(policy='whole_word'),
                         eval_masking=dict(policy='whole_word')))
  if arg.lang == 'multi':
    config.update(dict(
      model=dict(vocab_size=110_000), tokenizer=dict(character_coverage=0.9995,
                                                     do_lower_case=False),
      corpus=dict(languages=M_BERT, sampling=0.7)))
  if arg.data == 'wikipedia':
    language = {'multi': '{language}'}.get(arg.lang, arg.lang)
    config.data.train = f'tfds:wikipedia/20230601.{language}'
  if arg.runlocal:
    config.model = model_of(arch, arg.size or 'tiny', vocab_size=8192, remat='none')
    config.update(dict(
      batch_size=32, steps=500, data=dict(seq_length=64),
      corpus=dict(dupe_factor=1, eval_share=0.1),
      optimizer=dict(learning_rate=1e-3, warmup=0.1, horizon=1.0, accumulation=1,
                     batch_warmup=0.0),
      eval=dict(every=250, batches=20), checkpoint=dict(every=100), log=dict(every=50)))
    if config.optimizer.schedule == 'wsd':  # the warm-up is longer here
      config.optimizer.decay = min(config.optimizer.decay, 0.9)
    config.update(LOCAL.get(arg.arch, {}))
  if arg.continued:  # after Gururangan et al. 2020 (https://arxiv.org/abs/2004.10964)
    config.update(MLM_ONLY if not arg.arch else {})
    config.update(dict(
      init_from='<name a model: init_from or, in Python, model>',
      steps=config.steps if arg.runlocal else 12_500,
      batch_size=min(config.batch_size, 256),
      optimizer=dict(
        name='adamw', learning_rate=1e-4, schedule='linear', warmup=0.06, decay=0.0, horizon=1.0,
        beta2=0.98, eps=1e-6, weight_decay=0.01, clip_norm=1.0, accumulation=1,
        batch_warmup=0.0)))
  if kind:
    config.update(dict(
      model=dict(causal=arg.objective == 'causal'),
      corpus=dict(rows='lm', short_seq_prob=0.0, dupe_factor=1),
      loss=dict(nsp_weight=0.0, sbo_weight=0.0),
      language_model=dict(kind=kind)))
  if arg.phase == '128':  # nine tenths of the steps and of the schedule
    config.update(dict(steps=config.steps * 9 // 10, optimizer=dict(horizon=10 / 9)))
  if arg.phase == '512':
    config.update(dict(
      resume_from='<the --workdir of phase=128>',  # the user replaces this; there is no such folder
      data=dict(seq_length=512)))
  return config
