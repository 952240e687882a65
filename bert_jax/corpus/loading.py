"""Loads the corpora that a config names: tokenizes raw text and opens prepared corpora."""

import logging
from collections import Counter

import numpy as np
import tqdm

from bert_jax.corpus import blocks, prepared, tokenized
from bert_jax.corpus.units import Encoder
from bert_jax.errors import InputError, about
from bert_jax.text import documentation, files
from bert_jax.text import documents as text

log = logging.getLogger('bert_jax')


def metas(spec, languages):
  """The parts of a spec such as data.train: [(language or '', corpus.json if prepared, else None)].
  InputError for files that do not exist."""
  out = []
  for name, part in files.parts(spec, languages):
    is_prepared = prepared.is_prepared(part)
    if part and not is_prepared and not part.startswith('tfds:'):
      files.expand(part)
    out.append((name, prepared.read_meta(part) if is_prepared else None))
  return out


def load(config, spec, tokenizer, split):
  """Loads a split: {language: (Corpus, crc32 of each document's name [D], unigram counts [V])}; for
  a large prepared corpus (more than blocks.WHOLE blocks): (Blocks, None, unigram counts)."""
  out, matched, encoder = {}, Counter(), None
  for name, part in files.parts(spec, config.corpus.languages):
    if prepared.is_prepared(part):
      log.info('%s: %s', split, part)
      meta = prepared.meta_for(part, tokenizer)
      index = blocks.Index(part, meta) if 'blocks' in meta else ()  # () of an older version
      if len(index) > blocks.WHOLE:
        wanted = config.corpus.languages or meta['languages']
        used = sum(joined(name, language) in wanted for language in meta['languages'])
        for k, language in enumerate(meta['languages']):
          of_language = blocks.Blocks(index, k, -(-config.corpus.window // max(1, used)))
          out[joined(name, language)] = of_language, None, index.unigrams[k]
        continue
      loaded = prepared.load(part, tokenizer)
      for k, language in enumerate(meta['languages']):
        of_language = loaded.languages == k
        corpus, names = loaded.corpus.select(of_language), loaded.names[of_language]
        out[joined(name, language)] = corpus, names, loaded.unigrams[k]
    else:
      encoder = encoder or Encoder(
        tokenizer,
        segmenter=config.corpus.segmenter,
        phrases=config.corpus.phrases,
        entities=config.corpus.entities,
      )
      out[name] = _tokenize(config, part, encoder, split, matched)
  for lexicon in (config.corpus.phrases, config.corpus.entities):
    if encoder and lexicon and split == 'train' and not matched[lexicon]:
      raise InputError(f'no line of {lexicon} occurs in the text; is it for this language?')
  wanted = config.corpus.languages or ('',)
  unwanted = sorted(set(out) - set(wanted))
  if not (out := {name: out[name] for name in wanted if name in out}):
    raise InputError(
      f'data.{split} has {unwanted[0] or "text without a language"}, data.train has '
      f'{", ".join(wanted)}; name the languages alike.'
    )
  if unwanted:
    log.info('%s: not used, since not in corpus.languages: %s', split, ', '.join(unwanted))
  for language, (*_, counts) in out.items():
    _check_unknown(tokenizer, counts, f'{split} {language}'.strip())
  return out


def _tokenize(config, spec, encoder, split, matched):
  """Tokenizes raw text: (Corpus, crc32 of each document's name [D], unigram counts [V]).
  matched: {path of a lexicon: how many of its entries were met}, increased."""
  counts, names = Counter(), []

  def sentences():
    read = documents(config, spec, counts, split)
    bar = tqdm.tqdm(read, desc=f'reading {split} data', unit=' documents', disable=None)
    for name, sentences in bar:
      names.append(text.name_hash(name))
      yield sentences

  whole, kept = tokenized.tokenize(sentences(), encoder, counts)
  said = (f'{n:,} {k.replace("_", " ")}' for k, n in sorted(counts.items()) if n)
  log.info('%s: %s', split, ', '.join(said))
  matched[config.corpus.phrases] += counts['phrases_matched']
  matched[config.corpus.entities] += counts['entities_matched']
  return whole, np.array(names, np.uint32)[kept], whole.unigrams(encoder.tokenizer.vocab_size)


def _check_unknown(tokenizer, counts, what):
  """InputError if most tokens are [UNK]. what: which text, for messages."""
  unknown = counts[tokenizer.unk_id] / max(1, counts.sum())
  if unknown > 0.5:
    raise InputError(
      f'{unknown:.0%} of the {what} tokens are [UNK]: the vocabulary is not for this text; name '
      'another tokenizer.path, or leave it empty to train one (or prepare it with another --vocab).'
    )
  log.info('%s: %.2f %% of the tokens are [UNK]', what, 100 * unknown)


def documents(config, spec, counts, split):
  """Yields (name, sentences) of a spec's documents; an empty spec is the embedded corpus."""
  if not spec:
    yield from documentation.documents()
    return
  with about(f'data.{split}'):
    yield from text.documents(
      spec,
      split='train' if split == 'train' else 'validation',
      format=config.corpus.format,
      text_field=config.corpus.text_field,
      counts=counts,
    )


def joined(name, language):
  """A language's full name: NAME in data.train, then / and its name in a prepared corpus."""
  return '/'.join(filter(None, (name, language)))
