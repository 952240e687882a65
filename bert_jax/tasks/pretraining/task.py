"""Makes the rows of pre-training from text or prepared corpora, with baselines to beat."""

import logging
import math
from collections import Counter
from pathlib import Path

import numpy as np
import tqdm

from bert_jax import models, tokenizers
from bert_jax.corpus import loading, tokenized
from bert_jax.corpus.blocks import Blocks
from bert_jax.errors import InputError, quoted
from bert_jax.metrics import Level, LossLevel
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.rows.block_rows import BlockRows
from bert_jax.rows.corpus_rows import Rows
from bert_jax.rows.language_mixture import Mixture, shares
from bert_jax.rows.sentence_pairs import PAIRS, prior
from bert_jax.text import documents, files
from bert_jax.timeline import values_of

log = logging.getLogger('bert_jax')

LEXICONS = {'phrase': 'phrases', 'entity': 'entities'}  # {policy: the lexicon that marks its units}


def lengths(config):
  """The row lengths in corpus.lengths, stage by stage."""
  return tuple(map(int, values_of(config.corpus.lengths)))


def most_predictions(rate, tokens):
  """The number of predictions in a row of so many tokens at a masking rate, rounded up."""
  return math.ceil(round(rate * tokens, 6))


def resolve(config):
  """Fills in what only the data can tell: the languages and the vocabulary of a prepared corpus,
  and the number of predictions in a row. InputError if the corpora do not fit each other or the
  config."""
  config = config.copy_and_resolve_references()
  if not config.masking.max_predictions_per_seq:
    rate = config.masking.masked_lm_prob
    config.masking.max_predictions_per_seq = most_predictions(rate, config.data.seq_length)
  languages = config.corpus.languages
  metas = loading.metas(config.data.train, languages)
  is_prepared = any(meta for _, meta in metas)
  evals = loading.metas(config.data.eval, languages) if is_prepared else []
  made = [meta['vocabulary'] for _, meta in metas if meta]
  if made and len(made) < len(metas):
    raise InputError('data.train mixes prepared corpora and text; prepare all of them.')
  if len(set(made)) > 1:
    fault = 'the corpora of data.train were prepared with different vocabularies'
    raise InputError(f'{fault}; prepare them with one.')
  # Where data.train is prepared, data.eval may be text that no lexicon has marked.
  _check_marks(config, metas + [(name, meta) for name, meta in evals if meta])
  if is_prepared:
    folder = files.parts(config.data.train, languages)[0][1]
    tokenizer, path = tokenizers.load_folder(folder), config.tokenizer.path
    if path:
      named = tokenizers.load(path, do_lower_case=config.tokenizer.do_lower_case)
      if named.fingerprint != tokenizer.fingerprint:
        fault = f'tokenizer.path={path} is not the vocabulary that {folder} was prepared with'
        raise InputError(f'{fault}; leave it empty, or prepare the corpus again with --vocab.')
    if not path and not config.init_from:
      config.tokenizer.path = str(tokenizers.in_folder(Path(folder).expanduser()))
    config.tokenizer.do_lower_case = getattr(tokenizer, 'do_lower_case', True)
    if config.model.vocab_size != tokenizer.vocab_size and not config.init_from:
      log.info('model.vocab_size is that of %s: %d', folder, tokenizer.vocab_size)
      config.model.vocab_size = tokenizer.vocab_size
  known = []
  for name, meta in metas:
    known += [loading.joined(name, x) for x in (meta['languages'] if meta else ('',))]
  if len(known) > len(set(known)):
    advice = 'give each corpus its own name, or prepare them together'
    raise InputError(f'data.train names {quoted(max(known, key=known.count))} twice; {advice}.')
  if missing := sorted(set(languages) - set(known)):
    there = f'which is not in data.train: {", ".join(map(repr, known))}'
    raise InputError(f'corpus.languages has {missing[0]!r}, {there}; change corpus.languages.')
  if not languages and any(known):
    config.corpus.languages = tuple(known)
  if unknown := sorted({name for name, _ in config.corpus.weights} - set(known)):
    raise InputError(f'corpus.weights has {unknown[0]!r}, which is not among {", ".join(known)}.')
  return config


def _check_marks(config, metas):
  """InputError if the units of a masking policy were not marked when the corpus was prepared: the
  policy would silently mask other units."""
  policies = *values_of(config.masking.policy), config.eval_masking.policy
  for name in ('segmenter', 'phrases', 'entities'):
    policy, lexicon = (
      next((p for p in policies if LEXICONS.get(p) == name), ''),
      config.corpus[name],
    )
    asked = f'masking.policy={policy}' if policy else f'corpus.{name}={lexicon}'
    made = [meta[name] for _, meta in metas if meta]
    if policy and not lexicon and len(made) < len(metas):  # there is text
      raise InputError(f'{asked} needs corpus.{name}, a lexicon; name its file.')
    if (policy or lexicon) and not all(made):
      marks = 'marks that are made when a corpus is prepared'
      fault = f'{asked} needs {marks}, and this one was prepared without them'
      raise InputError(f'{fault}; prepare it again with --{name}.')


def texts(config):
  """The sentences of the training documents; {language: sentences} with several languages."""
  parts = files.parts(config.data.train, config.corpus.languages)
  out = {name: _sentences(config, spec) for name, spec in parts}
  return out if len(parts) > 1 else out[parts[0][0]]


def _sentences(config, spec):
  read = loading.documents(config, spec, Counter(), 'train')
  for name, sentences in tqdm.tqdm(read, desc='reading', unit=' documents', disable=None):
    if config.data.eval or not documents.held_out(name, config.corpus.eval_share):
      yield from sentences


def judged_under(config):
  """The seed and the masking of an evaluation, on which its numbers depend, {name: value}."""
  masking, cap = config.eval_masking, 0
  if not masking.policy:  # as in training
    masking, cap = config.masking, config.masking.max_predictions_per_seq
  rate = masking.masked_lm_prob
  return {
    'eval.seed': config.seed if config.eval.seed < 0 else config.eval.seed,
    'eval_masking.policy': values_of(masking.policy)[-1],
    'eval_masking.masked_lm_prob': rate,
    'eval_masking.mask_share': masking.mask_share,
    'eval_masking.random_share': masking.random_share,
    'predictions per row': cap or most_predictions(rate, config.data.seq_length),
  }


def objective(config, tokenizer, kind=MlmNsp, masks=True, **more):
  """The objective of a config. kind: MlmNsp or a similar class; more: its further fields.
  masks: it masks tokens, so the vocabulary needs [MASK]."""
  masking, under = config.masking, judged_under(config)
  most = most_predictions(masking.masked_lm_prob, config.data.seq_length)
  corruption = dict(
    policies=values_of(masking.policy),
    vocab_size=tokenizer.vocab_size,
    special_ids=tokenizer.special_ids,
    mask_id=tokenizer.mask_id if masks else None,
    masked_lm_prob=masking.masked_lm_prob,
    max_predictions=masking.max_predictions_per_seq or most,
    mask_share=masking.mask_share,
    random_share=masking.random_share,
  )
  in_evaluations = {'policies': (under['eval_masking.policy'],)}
  in_evaluations['max_predictions'] = under['predictions per row']
  for name in ('masked_lm_prob', 'mask_share', 'random_share'):
    in_evaluations[name] = under[f'eval_masking.{name}']
  model, pairs = models.ModelConfig(**config.model), pairs_of(config)
  slots, languages = config.data.examples_per_row, tuple(config.corpus.languages)
  fixed = model, config.data.seq_length, config.loss.nsp_weight, corruption
  return kind(
    *fixed,
    pairs=pairs,
    examples_per_row=slots,
    languages=languages,
    **more,
    eval_masking=in_evaluations,
    sbo_weight=config.loss.sbo_weight,
    lengths=lengths(config),
  )


def sources(config, tokenizer, splits=('train', 'eval'), further=lambda *arguments: None):
  """Rows of each split. With data.eval empty, documents are held out by a hash of their names.
  further(source, rows, corpora, train_corpora, share): called for each split, to add further facts
  to a source. rows: {language: Rows}; corpora of the split and of training: {language: (Corpus,
  unigram counts)}; share: {language: its share}."""
  data = config.data
  # `resolve` checks this before a training; an evaluation may come with another policy.
  _check_marks(config, loading.metas(data.train, config.corpus.languages))
  share = 0.0 if data.eval else config.corpus.eval_share
  corpora = {'train': {}, 'eval': {}}  # {split: {language: (Corpus, unigram counts [V])}}
  loaded = loading.load(config, data.train, tokenizer, 'train')
  for language, (whole, counts) in loaded.items():
    kept, held_corpus = whole.divided(share)
    if held_corpus is not None:
      held_counts = held_corpus.unigrams(tokenizer.vocab_size, data.skip_damaged)
      corpora['eval'][language] = held_corpus, held_counts
      counts = np.maximum(counts - held_counts, 0)
    corpora['train'][language] = kept, counts
  if data.eval:
    corpora['eval'] = loading.load(config, data.eval, tokenizer, 'eval')
  arguments = corpora, further
  return {x: _source(config, tokenizer, x, *arguments) for x in splits if corpora[x]}


def _source(config, tokenizer, split, corpora, further):
  """The rows of a split, a Mixture if there are several languages, with baselines."""
  of_split, languages, needed = corpora[split], list(corpora['train']), _documents_needed(config)
  few = [name for name, (corpus, _) in of_split.items() if corpus.number_of_documents < needed]
  if split == 'eval' and 0 < len(few) < len(of_split):
    log.warning('eval: too few documents to evaluate on %s', ', '.join(few))
    of_split = {name: pair for name, pair in of_split.items() if name not in few}
  parts, levels = {}, {}  # {language: its Rows}, {language: its unigram cross-entropy}
  for language, (corpus, counts) in of_split.items():
    what = f'{split} {language}'.strip()
    parts[language] = _rows(config, corpus, tokenizer, split, languages.index(language), what)
    train = tokenized.predictable(corpora['train'][language][1], tokenizer)
    levels[language] = tokenized.unigram_nats(train, tokenized.predictable(counts, tokenizer))
  if len(parts) == 1:
    (source,), (level,), share = parts.values(), levels.values(), dict.fromkeys(parts, 1.0)
  else:
    sizes = {language: len(corpus) for language, (corpus, _) in of_split.items()}
    seen = shares(sizes, config.corpus.sampling, dict(config.corpus.weights))
    per_row = {language: part.totals['tokens'] / len(part) for language, part in parts.items()}
    weights = {language: seen[language] / per_row[language] for language in parts}
    if split == 'train':
      log.info('share of the tokens seen: %s', ', '.join(f'{k} {x:.2%}' for k, x in seen.items()))
    source = Mixture(parts, {k: x / sum(weights.values()) for k, x in weights.items()})
    # In an evaluation every row counts once, in training as often as it is seen.
    share = seen if split == 'train' else {k: n / sum(sizes.values()) for k, n in sizes.items()}
    level = sum(share[language] * levels[language] for language in parts)
  source.baselines = {'mlm': LossLevel(level, 'unigram')}
  if config.loss.sbo_weight:
    source.baselines['sbo'] = LossLevel(level, 'unigram')
  if any(languages):
    source.baselines |= {f'mlm_{name}': LossLevel(x, 'unigram') for name, x in levels.items()}
  further(source, parts, of_split, corpora['train'], share)
  if config.loss.nsp_weight:
    name = pairs_of(config)
    share = prior([x.totals for x in parts.values()], name)
    source.baselines[f'{name}_accuracy'] = Level(share, 'prior')
  log.info(
    '%s: unigram cross-entropy %.3f nats per token; a loss per token that stays there has learned '
    'frequencies only',
    split,
    level,
  )
  return source


def _documents_needed(config):
  pair = PAIRS.get(config.corpus.rows)
  return pair.documents if pair else 1


def pairs_of(config):
  """The kind of sentence pairs of a config's head, also if its rows have no pairs."""
  return config.corpus.rows if config.corpus.rows in PAIRS else 'nsp'


def _rows(config, corpus, tokenizer, split, language, what):
  """The Rows of a corpus. language: its number; what: split and language, for messages."""
  number, needed = corpus.number_of_documents, _documents_needed(config)
  if number < needed:
    pairs = ' (sentence pairs take two)' if needed == 2 else ''
    advice = 'give more text, separate documents by blank lines, or change corpus.eval_share'
    if config.corpus.format == 'paragraphs':
      advice = 'a file is a document here (corpus.format=paragraphs); give more files, name some '
      advice += f'in data.eval, or {"raise" if split == "eval" else "lower"} corpus.eval_share'
    raise InputError(
      f'the {what} data has {number} documents and needs {needed}{pairs}; {advice} '
      f'({config.corpus.eval_share}), the share held out while data.eval is empty.'
    )
  data, short = config.data, config.corpus.short_seq_prob
  drawn_by = judged_under(config)['eval.seed'] if split == 'eval' else config.seed
  seed = drawn_by, split == 'eval', language
  dupe_factor = config.corpus.dupe_factor if split == 'train' else 1
  shape = {'seq_length': data.seq_length, 'examples_per_row': data.examples_per_row, 'seed': seed}
  cuts = {'kind': config.corpus.rows, 'short_seq_prob': short, 'dupe_factor': dupe_factor}
  of_corpus = BlockRows if isinstance(corpus, Blocks) else Rows
  out = of_corpus(corpus, tokenizer, language=language, **shape, **cuts)
  log.info(
    f'{what}: {number:,} documents, {len(corpus):,} tokens'
    + (f', of which rows are made {dupe_factor} times' if dupe_factor > 1 else '')
    + f' -> {len(out):,} rows of {data.seq_length}, {100 * out.fill:.1f} % filled, '
    f'{out.cut_tokens:,} tokens cut to fit'
  )
  if of_corpus is BlockRows:
    log.info(
      '%s: planned by block, %d units; rows of a pass that are left out, or twice: %.2f %%',
      what,
      corpus.units,
      100 * out.misses,
    )
  return out
