"""Loads the corpora that a config names: tokenizes raw text and opens prepared corpora."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tqdm
from ml_collections import ConfigDict

from bert_jax.corpus import blocks, prepared, tokenized
from bert_jax.corpus.blocks import Blocks, Index
from bert_jax.corpus.units import Encoder
from bert_jax.errors import InputError, about, log
from bert_jax.text import documentation, files
from bert_jax.text import documents as text
from bert_jax.tokenizers import Tokenizer

Loaded = tuple[tokenized.Corpus | Blocks, np.ndarray]  # a corpus, unigram counts [V]


def metas(spec: str, languages: Iterable[str]) -> list[tuple[str, dict[str, Any] | None]]:
  """The parts of a spec (data.train): [(language or '', corpus.json if prepared, else None)]."""
  out = []
  for name, part in files.parts(spec, languages):
    is_prepared = prepared.is_prepared(part)
    if part and not is_prepared and not files.is_named(part):
      files.expand(part)
    out.append((name, prepared.read_meta(part) if is_prepared else None))
  return out


def load(config: ConfigDict, spec: str, tokenizer: Tokenizer, split: str) -> dict[str, Loaded]:
  """Loads a split, {language: Loaded}; a prepared corpus of more than blocks.WHOLE as Blocks."""
  out, matched, encoder = {}, Counter(), None
  corpus, lexicons = config.corpus, {x: config.corpus[x] for x in ('phrases', 'entities')}
  for name, part in files.parts(spec, config.corpus.languages):
    if prepared.is_prepared(part):
      log.info('%s: %s', split, part)
      languages = _opened(config, name, part, tokenizer)
      out |= {joined(name, language): loaded for language, loaded in languages.items()}
    else:
      how = lexicons | {'segmenter': corpus.segmenter, 'by_sentence': corpus.encoding == 'sentence'}
      encoder = encoder or Encoder(tokenizer, text_encoding=config.data.text_encoding, **how)
      out[name] = _tokenize(config, part, encoder, split, matched)
  for kind, lexicon in lexicons.items():
    if encoder and lexicon and split == 'train' and not matched[f'{kind}_matched']:
      raise InputError(f'no line of {lexicon} occurs in the text; is it for this language?')
  wanted = config.corpus.languages or ('',)
  unwanted = sorted(set(out) - set(wanted))
  if not (out := {name: out[name] for name in wanted if name in out}):
    theirs, ours = unwanted[0] or 'text without a language', ', '.join(wanted)
    raise InputError(f'data.{split} has {theirs}, data.train has {ours}; name them alike.')
  if unwanted:
    log.info('%s: not used, since not in corpus.languages: %s', split, ', '.join(unwanted))
  for language, (_, counts) in out.items():
    unknown, what = counts[tokenizer.unk_id] / max(1, counts.sum()), f'{split} {language}'.strip()
    if unknown > 0.5:
      fault = f'{unknown:.0%} of the {what} tokens are [UNK]: the vocabulary is not for this text'
      raise InputError(f'{fault}; name another tokenizer.path (--vocab), or leave it empty.')
    log.info('%s: %.2f %% of the tokens are [UNK]', what, 100 * unknown)
  return out


def _opened(config, name, folder, tokenizer):
  """Opens a prepared corpus, {language: Loaded}. name: its name in the spec."""
  meta = prepared.read_meta(folder, tokenizer)
  languages = meta['languages']
  made, asked = meta.get('encoding', 'sentence'), config.corpus.encoding
  if tokenizer.reads_between and made != asked:
    effect = 'there are other pieces where sentences meet; prepare it (by document) again'
    log.warning('%s is encoded by %s, and corpus.encoding=%s: %s', folder, made, asked, effect)
  if 'blocks' in meta and len(index := Index(folder, meta)) > blocks.WHOLE:
    used = [x for x in languages if joined(name, x) in (config.corpus.languages or languages)]
    window = -(-config.corpus.window // max(1, len(used)))
    return {x: (Blocks(index, k, window), index.unigrams[k]) for k, x in enumerate(languages)}
  loaded = prepared.load(folder, tokenizer)
  select = lambda k: loaded.corpus.select(loaded.languages == k)
  return {x: (select(k), loaded.unigrams[k]) for k, x in enumerate(languages)}


def _tokenize(config, spec, encoder, split, matched):
  """Tokenizes raw text as Loaded. matched: counts of the entries of lexicons, increased."""
  counts = Counter()
  read = documents(config, spec, counts, split)
  bar = tqdm.tqdm(read, desc=f'reading {split} data', unit=' documents', disable=None)
  whole = tokenized.tokenize(bar, encoder, counts)
  said = (f'{n:,} {k.replace("_", " ")}' for k, n in sorted(counts.items()) if n)
  log.info('data.%s: %s', split, ', '.join(said))
  matched.update(counts)
  return whole, whole.unigrams(encoder.tokenizer.vocab_size)


def documents(
  config: ConfigDict, spec: str, counts: Counter, split: str
) -> Iterator[tuple[str, list[str]]]:
  """Yields (name, sentences) of a spec's documents; an empty spec is the embedded corpus."""
  if not spec:
    yield from documentation.documents()
    return
  of_tfds = 'train' if split == 'train' else 'validation'
  named = {'format': config.corpus.format, 'text_field': config.corpus.text_field}
  named |= {'skip': config.data.skip_damaged, 'encoding': config.data.text_encoding}
  with about(f'data.{split}'):
    yield from text.documents(spec, split=of_tfds, counts=counts, **named)


def joined(name: str, language: str) -> str:
  """A language's full name: NAME in data.train, then / and its name in a prepared corpus."""
  return '/'.join(filter(None, (name, language)))
