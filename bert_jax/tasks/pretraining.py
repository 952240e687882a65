"""Pre-training from raw text: documents -> tokens -> rows, and what a healthy run must beat."""

import logging
from collections import Counter

import tqdm

from bert_jax import models
from bert_jax.config import InputError
from bert_jax.data import corpus, docs, files, text
from bert_jax.objectives.mlm_nsp import MlmNsp

log = logging.getLogger('bert_jax')


def resolve(config):
  """config itself; a path that leads nowhere is found before anything long begins."""
  for spec in (config.data.train, config.data.eval):
    if spec and not spec.startswith('tfds:'):
      files.expand(spec)
  return config


def texts(config):
  found = _documents(config, config.data.train, Counter())
  for name, sentences in tqdm.tqdm(found, desc='reading', unit=' documents', disable=None):
    if not _held_out(config, name):
      yield from sentences


def objective(config, tokenizer):
  return MlmNsp(
    models.ModelConfig(**config.model),
    config.data.seq_length,
    config.loss.nsp_weight,
    dict(
      special_ids=tokenizer.special_ids,
      mask_id=tokenizer.mask_id,
      masked_lm_prob=config.masking.masked_lm_prob,
      max_predictions=config.masking.max_predictions_per_seq,
      mask_share=config.masking.mask_share,
      random_share=config.masking.random_share,
    ),
  )


def sources(config, tokenizer, splits=('train', 'eval')):
  """Rows of each split. With data.eval empty, documents are held out by a hash of their names."""
  data = config.data

  def read(spec, keep, what):
    counts = Counter()
    found = _documents(config, spec, counts, 'validation' if spec == data.eval else 'train')
    kept = (sentences for name, sentences in found if keep(name))
    bar = tqdm.tqdm(kept, desc=f'reading {what} data', unit=' documents', disable=None)
    tokens = corpus.tokenize(bar, tokenizer)
    log.info(
      '%s: %d documents, %d sentences, %d tokens (read: %s)',
      what,
      len(tokens.documents) - 1,
      len(tokens.sentences) - 1,
      len(tokens.tokens),
      ', '.join(f'{n:,} {k}' for k, n in sorted(counts.items())),
    )
    number, needed = len(tokens.documents) - 1, 1 if config.corpus.rows == 'full' else 2
    if number < needed:
      raise InputError(
        f'the {what} data has {number} documents and needs {needed} (sentence pairs take two); '
        'give more text, separate documents by blank lines, or change corpus.eval_share '
        f'({config.corpus.eval_share}), the share held out while data.eval is empty.'
      )
    unknown = float((tokens.tokens == tokenizer.unk_id).mean())
    if unknown > 0.5:
      raise InputError(
        f'{unknown:.0%} of the {what} tokens are [UNK]: the vocabulary is not for this text; name '
        'another tokenizer.path, or leave it empty to train one.'
      )
    log.log(
      logging.WARNING if unknown > 0.02 else logging.INFO, '%s: %.2f %% of the tokens are [UNK]',
      what, 100 * unknown,
    )  # fmt: skip
    return tokens

  masking, length = config.masking, data.seq_length
  if masking.max_predictions_per_seq < round(masking.masked_lm_prob * length):
    log.warning(
      'masking.max_predictions_per_seq=%d is fewer than %g of %d tokens: long rows are masked less',
      masking.max_predictions_per_seq, masking.masked_lm_prob, length,
    )  # fmt: skip
  train = read(data.train, lambda name: not _held_out(config, name), 'train')
  counts = corpus.unigram_counts(train, tokenizer)
  log.info(
    'unigram cross-entropy of the corpus under the vocabulary: %.3f nats per token; an MLM '
    'loss that stays there has learned frequencies only',
    corpus.unigram_nats(counts),
  )
  out = {}
  for split in splits:
    if split == 'train':
      tokens = train
    elif data.eval:
      tokens = read(data.eval, lambda name: True, 'eval')
    elif config.corpus.eval_share:
      tokens = read(data.train, lambda name: _held_out(config, name), 'eval')
    else:
      continue
    rows = _rows(config, tokens, tokenizer, split)
    level = corpus.unigram_nats(counts, corpus.unigram_counts(tokens, tokenizer))
    rows.baselines = {'mlm': (level, 'unigram')}
    if config.loss.nsp_weight:
      random_share = float(rows.plan[:, 4].mean())
      rows.baselines['nsp_accuracy'] = (max(random_share, 1 - random_share), 'prior')
      if random_share > 0.7:
        log.warning(
          '%s: %.0f %% of the pairs are random, since most documents are one sentence long (a '
          'blank line ends one): try corpus.format=paragraphs, or corpus.rows=full without NSP',
          split, 100 * random_share,
        )  # fmt: skip
    log.info(
      '%s: %d rows of %d tokens, %d tokens cut to fit',
      split,
      len(rows),
      config.data.seq_length,
      rows.cut_tokens,
    )
    out[split] = rows
  return out


def _held_out(config, name):
  """Is this document of data.train kept for evaluation?"""
  return not config.data.eval and text.held_out(name, config.corpus.eval_share)


def _rows(config, tokens, tokenizer, split):
  if config.corpus.rows == 'full':
    return corpus.FullRows(tokens, tokenizer, seq_length=config.data.seq_length)
  return corpus.NspRows(
    tokens,
    tokenizer,
    seq_length=config.data.seq_length,
    short_seq_prob=config.corpus.short_seq_prob,
    dupe_factor=config.corpus.dupe_factor if split == 'train' else 1,
    seed=(config.seed, split == 'eval'),
  )


def _documents(config, spec, counts, split='train'):
  if not spec:
    counts['embedded packages'] = len(docs.PACKAGES)
    return docs.documents()
  return text.documents(
    spec, split=split, format=config.corpus.format, text_field=config.corpus.text_field,
    counts=counts,
  )  # fmt: skip
