"""Loads the corpora that a config names: tokenizes raw text and opens prepared corpora."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tqdm
from ml_collections import ConfigDict

from bert_jax.corpus import store
from bert_jax.corpus.store import Chunks, Store
from bert_jax.corpus.tokenized import Corpus, tokenize
from bert_jax.corpus.units import Marker
from bert_jax.errors import InputError, about, log
from bert_jax.text import documentation, files
from bert_jax.text import documents as text
from bert_jax.tokenizers import Tokenizer

Loaded = tuple[Corpus | Chunks, np.ndarray]  # a corpus, unigram counts [V]


def metas(spec: str, languages: Iterable[str]) -> list[tuple[str, dict[str, Any] | None]]:
  """The parts of a spec (data.train): [(language or '', corpus.json if prepared, else None)]."""
  out = []
  for name, part in files.parts(spec, languages):
    is_prepared = store.is_prepared(part)
    if part and not is_prepared and not files.is_named(part):
      files.expand(part)
    out.append((name, store.read_meta(part) if is_prepared else None))
  return out


def load(config: ConfigDict, spec: str, tokenizer: Tokenizer, split: str) -> dict[str, Loaded]:
  """Loads a split, {language: Loaded}; a large prepared corpus as Chunks."""
  out, marker = {}, None
  matched = Counter()  # entries of the lexicons
  for name, part in files.parts(spec, config.corpus.languages):
    if store.is_prepared(part):
      log.info('%s: %s', split, part)
      for language, loaded in _opened(config, name, part, tokenizer).items():
        out[joined(name, language)] = loaded
    else:
      marker = marker or marker_of(config, tokenizer)
      out[name] = _tokenize(config, part, marker, split, matched)
  for kind in ('phrases', 'entities'):
    lexicon = config.corpus[kind]
    if marker and lexicon and split == 'train' and not matched[f'{kind}_matched']:
      raise InputError(f'no line of {lexicon} occurs in the text; is it for this language?')
  out = _of_languages(config, out, split)
  for language, (_, counts) in out.items():
    _check_unknown(counts, tokenizer, f'{split} {language}'.strip())
  return out


def marker_of(config: ConfigDict, tokenizer: Tokenizer) -> Marker:
  """The Marker of raw text that a config describes."""
  return Marker(
    tokenizer,
    segmenter=config.corpus.segmenter,
    phrases=config.corpus.phrases,
    entities=config.corpus.entities,
    text_encoding=config.data.text_encoding,
  )


def _of_languages(config: ConfigDict, loaded: dict[str, Loaded], split: str) -> dict[str, Loaded]:
  """What was loaded of the languages of a config, in their order."""
  wanted = config.corpus.languages or ('',)
  unwanted = sorted(set(loaded) - set(wanted))
  out = {name: loaded[name] for name in wanted if name in loaded}
  if not out:
    theirs = unwanted[0] or 'text without a language'
    ours = ', '.join(wanted)
    raise InputError(f'data.{split} has {theirs}, data.train has {ours}; name them alike.')
  if unwanted:
    log.info('%s: not used, since not in corpus.languages: %s', split, ', '.join(unwanted))
  return out


def _check_unknown(counts: np.ndarray, tokenizer: Tokenizer, what: str) -> None:
  """Says how many tokens are [UNK]; InputError if most are."""
  unknown = counts[tokenizer.unk_id] / max(1, counts.sum())
  if unknown > 0.5:
    raise InputError(
      f'{unknown:.0%} of the {what} tokens are [UNK]: the vocabulary is not for this text; '
      'name another tokenizer.path (--vocab), or leave it empty.'
    )
  log.info('%s: %.2f %% of the tokens are [UNK]', what, 100 * unknown)


def _opened(config: ConfigDict, name: str, folder: str, tokenizer: Tokenizer) -> dict[str, Loaded]:
  """Opens a prepared corpus, {language: Loaded}. name: its name in the spec."""
  opened = Store(folder, tokenizer)
  languages = opened.meta['languages']
  wanted = config.corpus.languages
  used = [x for x in languages if not wanted or joined(name, x) in wanted]
  window = -(-config.corpus.window // max(1, len(used)))
  loaded = {}
  for language in used or languages[:1]:
    number = languages.index(language)
    loaded[language] = opened.text(number, window), opened.unigrams[number]
  return loaded


def _tokenize(
  config: ConfigDict, spec: str, marker: Marker, split: str, matched: Counter
) -> Loaded:
  """Tokenizes raw text. matched: counts of the entries of lexicons, increased."""
  counts = Counter()
  read = documents(config, spec, counts, split)
  bar = tqdm.tqdm(read, desc=f'reading {split} data', unit=' documents', disable=None)
  corpus = tokenize(bar, marker, counts)
  listed = [f'{n:,} {k.replace("_", " ")}' for k, n in sorted(counts.items()) if n]
  log.info('data.%s: %s', split, ', '.join(listed))
  matched.update(counts)
  return corpus, corpus.unigrams(marker.tokenizer.vocab_size)


def documents(
  config: ConfigDict, spec: str, counts: Counter, split: str
) -> Iterator[tuple[str, list[str]]]:
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
      skip=config.data.skip_damaged,
      encoding=config.data.text_encoding,
    )


def joined(name: str, language: str) -> str:
  """A language's full name: NAME in data.train, then / and its name in a prepared corpus."""
  return '/'.join(part for part in (name, language) if part)
