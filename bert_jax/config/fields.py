"""Every field a config may have: its type, its range, its meaning; and the sizes BERT comes in."""


class InputError(ValueError):
  """A mistake in what the user gave us, told in one sentence that says what to do about it.

  Command lines print it without a traceback and end with `code`: 2, for which nothing is worth
  trying again as it is (launch/ relies on it). Notebooks see a ValueError.
  """

  code = 2


# How the files of a fine-tuning task may be laid out, by objective (see the modules in tasks/).
FORMATS = {
  'classification': ('table',),
  'tagging': ('columns', 'conllu'),
  'qa': ('squad',),
  'choice': ('race', 'swag', 'dream', 'copa'),
  'coreference': ('gap', 'wsc'),
}

# name: (type, what is allowed, meaning). Allowed: a tuple of choices, bounds as a text (a round
# bracket excludes its end), the type of a tuple's members, or None.
FIELDS = {
  'objective': (
    str,
    ('mlm_nsp', 'classification', 'tagging', 'qa', 'choice', 'coreference'),
    'what is learned: selects data, heads and loss',
  ),
  'seed': (int, '[0, 2147483647]', 'the seed of everything random in the run'),
  'prng_impl': (str, ('threefry2x32', 'rbg'), 'random bits: the same on any mesh, or fast on TPUs'),
  'init_from': (
    str,
    None,
    'workdir, Hugging Face folder or name, or TensorFlow checkpoint, whose weights, sizes and '
    'vocabulary this run starts from',
  ),
  'resume_from': (str, None, 'workdir whose whole state (step, optimizer) this run continues'),
  'batch_size': (int, '[1, inf)', 'rows per step, over all devices'),
  'steps': (int, '[0, inf)', 'optimizer steps; 0: `epochs` counts'),
  'epochs': (float, '[0, inf)', 'passes over the training rows; 0: `steps` counts'),
  'model.vocab_size': (int, '[5, inf)', 'pieces in the vocabulary'),
  'model.hidden_size': (int, '[1, inf)', 'width of the residual stream'),
  'model.num_hidden_layers': (int, '[1, inf)', 'blocks'),
  'model.num_attention_heads': (int, '[1, inf)', 'heads per block; divides hidden_size'),
  'model.intermediate_size': (int, '[1, inf)', 'width of the feed-forward layer'),
  'model.max_position_embeddings': (int, '[1, inf)', 'longest row the position table covers'),
  'model.type_vocab_size': (int, '[0, inf)', 'token types (2: first and second text); 0: none'),
  'model.hidden_act': (str, ('gelu', 'gelu_tanh', 'relu', 'swish'), 'gelu is the exact, erf one'),
  'model.position_embeddings': (str, ('learned', 'sinusoidal', 'none'), 'how position is told'),
  'model.norm_placement': (str, ('post', 'pre'), 'LayerNorm after each sum (BERT) or before'),
  'model.layer_norm_eps': (float, '(0, 1)', 'added to the variance'),
  'model.initializer_range': (float, '(0, inf)', 'standard deviation of new weights'),
  'model.hidden_dropout_prob': (float, '[0, 1)', 'dropout on embeddings and sub-layer outputs'),
  'model.attention_probs_dropout_prob': (float, '[0, 1)', 'dropout on attention probabilities'),
  'model.tie_word_embeddings': (bool, None, 'MLM decoder = word embeddings'),
  'model.vocab_multiple': (int, '[1, inf)', 'embedding rows are padded to a multiple of this'),
  'model.attention_implementation': (
    str,
    ('einsum', 'xla', 'cudnn', 'splash'),
    'see models/attention.py',
  ),
  'model.dtype': (str, ('float32', 'bfloat16'), 'type of matrix products'),
  'model.scan_layers': (bool, None, 'one compiled block for all layers: compiles faster'),
  'model.remat': (str, ('none', 'dots', 'full'), 'recompute in the backward pass to save memory'),
  'tokenizer.kind': (str, ('wordpiece', 'unigram', 'bpe'), 'to train if `path` is empty'),
  'tokenizer.path': (str, None, "a file with one; empty: init_from's, else train one"),
  'tokenizer.character_coverage': (float, '(0, 1]', 'share of characters a new one keeps'),
  'tokenizer.do_lower_case': (bool, None, 'lower-case and strip accents (uncased)'),
  'data.train': (
    str,
    None,
    'file, glob, folder, tfds:NAME, prepared corpus, or LANGUAGE=one of them,...; '
    'empty: the embedded documentation',
  ),
  'data.eval': (str, None, 'the same, to evaluate on; empty: a held-out share of a corpus'),
  'data.seq_length': (int, '[8, inf)', 'tokens per row, [CLS] and [SEP] included'),
  'data.examples_per_row': (int, '[1, inf)', 'the most examples packed into a row; 1: no packing'),
  'data.skip_damaged': (bool, None, 'what cannot be read is left out, counted and named'),
  'corpus.format': (
    str,
    ('auto', 'sentences', 'lines', 'paragraphs', 'jsonl', 'wiki'),
    'see text/documents.py',
  ),
  'corpus.text_field': (str, None, 'field of a JSONL or TFDS record that holds the text'),
  'corpus.eval_share': (float, '[0, 1)', 'documents held out for evaluation if data.eval is empty'),
  'corpus.rows': (
    str,
    ('nsp', 'sop', 'full', 'single'),
    'what an example is, see rows/corpus_rows.py',
  ),
  'corpus.short_seq_prob': (float, '[0, 1]', 'share of pairs with a random, shorter length'),
  'corpus.dupe_factor': (int, '[1, inf)', 'times the corpus is cut into pairs, differently each'),
  'corpus.languages': (tuple, str, 'to use, in order; empty: all that data.train has'),
  'corpus.sampling': (float, '[0, 1]', 'S: a language is seen in proportion to P(L)^S of tokens'),
  'corpus.weights': (tuple, None, '((language, factor), ...) on top of that'),
  'corpus.segmenter': (str, ('', 'jieba'), 'marks whole words of Chinese'),
  'corpus.phrases': (str, None, 'lexicon, one a line: units of masking.policy=phrase'),
  'corpus.entities': (str, None, 'lexicon, one a line: units of masking.policy=entity'),
  'masking.policy': (
    str,
    None,
    'token, whole_word, span, phrase or entity; or by step, as in token,phrase@1000,entity@2000',
  ),
  'masking.masked_lm_prob': (float, '(0, 1)', 'share of tokens to predict'),
  'masking.max_predictions_per_seq': (int, '[1, inf)', 'most predictions in a row (static)'),
  'masking.mask_share': (float, '[0, 1]', 'of these, replaced by [MASK]'),
  'masking.random_share': (float, '[0, 1]', 'of these, replaced by a random piece; the rest stay'),
  'loss.nsp_weight': (float, '[0, inf)', 'lambda in MLM + lambda * NSP (or SOP); 0: no such head'),
  'task.format': (
    str,
    tuple(name for names in FORMATS.values() for name in names),
    "how the objective's files are laid out, see its module in tasks/",
  ),
  'task.max_length': (
    int,
    '[0, inf)',
    'tokens of one example (or choice), [CLS] and [SEP] included; 0, not of choices: seq_length',
  ),
  'task.train_examples': (int, '[0, inf)', 'train on this many examples only; 0: all'),
  'table.text_column': (str, None, 'column of the text; a|b: the first of these that is there'),
  'table.pair_column': (str, None, 'column of the second text; empty: single texts'),
  'table.label_column': (str, None, 'column of the label'),
  'table.id_column': (str, None, 'column that names a row; empty: rows are numbered from 0'),
  'table.columns': (tuple, str, 'names of the columns of a TSV without header; empty: it has one'),
  'table.labels': (
    tuple,
    str,
    'the label set, in order (a|b: spelt a or b); empty: those of the training data, sorted',
  ),
  'table.regression': (bool, None, 'labels are numbers: squared error, Pearson and Spearman'),
  'table.multi_label': (bool, None, 'a text has any number of labels, separated by commas'),
  'table.class_weights': (
    tuple,
    None,
    "((label, weight in the loss), ...); ('balanced',): 1/share",
  ),
  'table.long_texts': (
    str,
    ('head', 'tail', 'head_tail', 'windows'),
    'what is kept of a text that is too long; windows: all of it, logits averaged',
  ),
  'tagging.token_column': (int, None, 'column of the token, from 0; -1 is the last'),
  'tagging.tag_column': (int, None, 'column of the tag'),
  'tagging.labels': (tuple, str, 'the tags, in order; empty: those of the training data, sorted'),
  'tagging.label_pieces': (str, ('first', 'all'), 'pieces of a word that carry its tag'),
  'tagging.document_context': (bool, None, 'fill rows with the sentences around (-DOCSTART-)'),
  'qa.doc_stride': (int, '[1, inf)', 'tokens between the starts of two windows of a context'),
  'qa.max_query_length': (int, '[1, inf)', 'tokens of a question; a longer one is cut'),
  'qa.max_answer_length': (int, '[1, inf)', 'tokens of an answer'),
  'qa.n_best_size': (int, '[1, inf)', 'spans kept of each question'),
  'qa.unanswerable': (bool, None, 'a question may have no answer (SQuAD 2.0)'),
  'qa.null_threshold': (float, None, 'no answer where its lead over the best span is above this'),
  'qa.answer_units': (str, ('words', 'characters'), 'of the F1; characters for Chinese (CMRC)'),
  'optimizer.name': (str, ('bert_adamw', 'adamw'), 'without (BERT) or with bias correction'),
  'optimizer.learning_rate': (float, '[0, inf)', 'peak'),
  'optimizer.schedule': (
    str,
    ('linear', 'cosine', 'constant', 'inverse_sqrt', 'wsd'),
    "see optim.py; linear is BERT's, counted from step 0",
  ),
  'optimizer.warmup': (float, '[0, inf)', 'steps of linear warm-up; below 1: a share of the run'),
  'optimizer.horizon': (
    float,
    '[1, inf)',
    'length of the schedule, in lengths of this run; what is over is for a run that continues it',
  ),
  'optimizer.decay': (float, '[0, inf)', 'steps of decay at the end for wsd; below 1: a share'),
  'optimizer.beta1': (float, '[0, 1)', ''),
  'optimizer.beta2': (float, '[0, 1)', ''),
  'optimizer.eps': (float, '(0, inf)', ''),
  'optimizer.weight_decay': (float, '[0, inf)', ''),
  'optimizer.no_decay': (str, None, 'regex on parameter paths: no weight decay'),
  'optimizer.clip_norm': (float, '[0, inf)', 'clip gradients to this global norm; 0: do not'),
  'optimizer.accumulation': (int, '[1, inf)', 'microbatches per step; divides batch_size'),
  'optimizer.freeze': (str, None, 'regex on parameter paths: not trained'),
  'optimizer.lr_multipliers': (tuple, None, '((regex, factor), ...); the first match counts'),
  'optimizer.layer_lr_decay': (float, '(0, 1]', 'factor on the rate per layer below the heads'),
  'mesh.data': (int, '[-1, inf)', 'devices that split the batch; -1: all the rest'),
  'mesh.fsdp': (int, '[-1, inf)', 'devices that split the batch and the parameters'),
  'mesh.tensor': (int, '[-1, inf)', 'devices that split each layer'),
  'mesh.slices': (int, '[1, inf)', 'TPU slices that mesh.data goes over first'),
  'eval.every': (int, '[0, inf)', 'steps between evaluations; 0: only at the end'),
  'eval.batches': (int, '[0, inf)', 'batches per evaluation while training; 0: all of them'),
  'eval.patience': (
    int,
    '[0, inf)',
    'stop after this many evaluations without a better checkpoint.best_metric; 0: never',
  ),
  'checkpoint.every': (int, '[0, inf)', 'steps between checkpoints; 0: only at the end'),
  'checkpoint.keep_latest': (int, '[1, inf)', 'newest checkpoints to keep'),
  'checkpoint.keep_every': (int, '[0, inf)', 'also keep those at multiples of this step; 0: none'),
  'checkpoint.best_metric': (str, None, 'also keep the best by this eval metric; empty: none'),
  'checkpoint.best_mode': (str, ('min', 'max'), 'is a low or a high best_metric good'),
  'log.every': (int, '[1, inf)', 'steps between lines of metrics'),
  'log.tensorboard': (bool, None, 'write TensorBoard event files too'),
}

POLICIES = ('token', 'whole_word', 'span', 'phrase', 'entity')

# Blocks that only some objectives read; a config holds the others and these.
OBJECTIVE_BLOCKS = {
  'mlm_nsp': ('corpus', 'masking', 'loss'),
  'classification': ('task', 'table'),
  'tagging': ('task', 'tagging'),
  'qa': ('task', 'qa'),
  'choice': ('task',),
  'coreference': ('task',),
}
# Fields a run may be continued under with other values: they do not change its numbers.
FREE_TO_CHANGE = ('mesh.', 'checkpoint.', 'log.', 'eval.', 'data.eval', 'data.skip_damaged')

# The 24 released miniatures (Turc et al. 2019, https://arxiv.org/abs/1908.08962), base being the
# largest of them, and BERT-large: (layers, hidden size). Heads are 64 wide, feed-forward 4 times.
SIZES = {f'{L}/{H}': (L, H) for L in (2, 4, 6, 8, 10, 12) for H in (128, 256, 512, 768)}
SIZES |= {'24/1024': (24, 1024)}
SIZES |= {
  'tiny': (2, 128),
  'mini': (4, 256),
  'small': (4, 512),
  'medium': (8, 512),
  'base': (12, 768),
  'large': (24, 1024),
}


def bert(size, **changes):
  """The `model` block of a BERT of a released size, every field of it, with `changes` applied."""
  if size not in SIZES:
    raise InputError(f'size {size!r} is not known; use one of {", ".join(SIZES)}.')
  layers, hidden = SIZES[size]
  block = dict(
    vocab_size=30522,
    hidden_size=hidden,
    num_hidden_layers=layers,
    num_attention_heads=hidden // 64,
    intermediate_size=4 * hidden,
    max_position_embeddings=512,
    type_vocab_size=2,
    hidden_act='gelu',
    position_embeddings='learned',
    norm_placement='post',
    layer_norm_eps=1e-12,
    initializer_range=0.02,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
    tie_word_embeddings=True,
    vocab_multiple=128,
    attention_implementation='einsum',
    dtype='float32',
    scan_layers=False,
    remat='none',
  )
  unknown = set(changes) - set(block)
  if unknown:
    raise InputError(f'model has no field {", ".join(sorted(unknown))}.')
  return block | changes
