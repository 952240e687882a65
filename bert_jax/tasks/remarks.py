"""Warns, before the first step, of a vocabulary that does not fit the text, and of examples whose
labels or splits look wrong. What is said of a corpus besides is in pretraining/remarks.py.

Only what is out of the ordinary is said, with the field to set; the limits are below. Pieces are
counted in some records or examples, and accents at the beginning, which takes seconds for any data.
"""

import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.corpus.tokenized import spaced
from bert_jax.errors import listed, quoted
from bert_jax.text.values import decimal_number, finite_number
from bert_jax.tokenizers import Splitting, Tokenizer, WordPiece

# The shares above which there is a warning: words that lose an accent, [UNK], words cut into
# single characters.
ACCENTS, UNKNOWN, LETTERS = 0.02, 0.02, 0.4
# Pieces of a word on average, punctuation counted. Google's vocabularies cut English into 1.06 and,
# the multilingual one, German into 1.37; the English one cuts German into 1.9. The second number is
# for a vocabulary of several languages, or one that was trained on this text.
PIECES, PIECES_SHARED = 1.75, 2.5
UNUSED = 0.1  # share of the pieces of a vocabulary that was trained on the text
COPIES = 0.05  # share of the evaluated texts that are trained on, too
RECORDS, EXAMPLES = 200, 2000  # the size of a sample
COMPARED = 100_000  # examples of each split that are looked through for equal texts
LONGEST_WORD = 24  # characters; longer runs, such as a line of Thai, are not words
SHOWN = 3  # languages that are named


class Pieces(NamedTuple):
  """Statistics of how a vocabulary cuts a text."""

  unknown: float  # share of [UNK] among the pieces
  per_word: float  # pieces of a word
  letters: float  # share of the words of 3 characters and more that are single characters


def about_examples(
  config: ConfigDict, tokenizer: Tokenizer, texts: Iterable[str], sources: Mapping[str, Any]
) -> list[str]:
  """Warnings about labelled texts, the vocabulary and the splits. sources: {split: its Examples};
  texts: those of 'train'."""
  sample, examples = [[text] for text in itertools.islice(texts, EXAMPLES)], sources['train']
  chosen = (part for i in spaced(len(examples.texts), RECORDS) for part in examples.texts[i])
  cuts = {'': pieces(chosen, tokenizer)}
  out = about_numbers(text for (text,) in sample)
  out += about_accents(tokenizer, {'': sample}, cased(config))
  out += about_vocabulary(config, tokenizer, cuts) + about_labels(config)
  return out + (about_copies(examples, sources['eval']) if 'eval' in sources else [])


def about_numbers(texts: Iterable[str]) -> list[str]:
  """A warning about texts that are numbers, as of another column of a table."""
  texts = [*filter(str.strip, texts)]
  if not texts or any(decimal_number(text)[0] is None for text in texts):
    return []
  return [f'all texts are numbers, such as {quoted(texts[0])}; name another column.']


def about_copies(train: Any, evaluated: Any) -> list[str]:
  """A warning about evaluated Examples whose texts are trained on: their scores say little."""
  keys = lambda texts: (
    b'|'.join(np.asarray(ids, np.int32).tobytes() for ids in texts[i])
    for i in spaced(len(texts), COMPARED)
  )
  held = Counter(keys(evaluated.texts))
  copies = sum(held[key] for key in held.keys() & set(filter(held.__contains__, keys(train.texts))))
  if copies <= COPIES * held.total():
    return []
  fault = 'at least ' * (len(train.texts) > COMPARED)
  fault += f'{copies:,} of {held.total():,} evaluated texts are in the training data, too'
  return [f'{fault}, and may be known by heart; evaluate on others (data.eval).']


def about_labels(config: ConfigDict) -> list[str]:
  """A warning about labels that differ in capitals, or in how letters or a number are written."""
  alike = {}
  for label in next((config[x].labels for x in ('table', 'tagging') if x in config), ()):
    number, letters = finite_number(label), unicodedata.normalize('NFKC', label).casefold()
    shown = ''.join(filter(str.isprintable, letters)) if number is None else str(number)
    alike.setdefault(shown, []).append(label)
  if not (twins := ['|'.join(group) for group in alike.values() if len(group) > 1]):
    return []
  fix = f'if each is one, write it one way (or, in a table, table.labels="{twins[0]},..")'
  return [f'labels that look alike: {listed(twins)}; {fix}.']


def cased(config: ConfigDict) -> str:
  """The setting that makes a run keep capitals and accents, in words."""
  if config.init_from:
    return 'start from a cased model (init_from)'
  return 'set tokenizer.do_lower_case=false, with a cased vocabulary'


def about_vocabulary(
  config: ConfigDict, tokenizer: Tokenizer, cuts: Mapping[str, Pieces], another: str = ''
) -> list[str]:
  """Warnings about a vocabulary that suits the text badly. cuts: {language: Pieces}. another: how
  to change the vocabulary, if not by the fields that name one."""
  trained = not (config.tokenizer.path or config.init_from)
  if config.tokenizer.kind == 'bytes' and trained:
    return []  # bytes fit all texts, and cut each word
  another = another or 'name another tokenizer.path, or leave it empty to train one on this text'
  if config.init_from:
    another = 'start from a model of this language (init_from)'
  more = 'raise model.vocab_size' if trained else another
  cover = 'raise tokenizer.character_coverage' if trained else another
  of = {name: {k: getattr(cut, name) for k, cut in cuts.items()} for name in Pieces._fields}
  out, misfit = [], 'the vocabulary does not fit this text'
  if shown := _named(of['unknown'], UNKNOWN, '{:.0%}'):
    out.append(f'{shown} of the pieces are [UNK]: {misfit}; {cover}.')
  limit = PIECES_SHARED if trained or len(cuts) > 1 else PIECES
  if shown := _named(of['letters'], LETTERS, '{:.0%}'):
    out.append(f'{shown} of the words are cut into single characters: {misfit}; {more}.')
  elif shown := _named(of['per_word'], limit, '{:.1f}'):
    out.append(f'a word is {shown} pieces on average: the vocabulary hardly fits it; {more}.')
  size = tokenizer.vocab_size
  used = size - sum(piece.startswith('[unused') for piece in tokenizer.pieces)
  if trained and size - used > UNUSED * size:
    fault = f'the text gives {used} pieces of {size}, and the model has rows that no text uses'
    out.append(f'{fault}; model.vocab_size={used} is enough.')
  return out


def about_accents(
  tokenizer: Tokenizer, texts: Mapping[str, Iterable[Sequence[str]]], cased: str
) -> list[str]:
  """Warnings about accents that the tokenizer strips. texts: see about_lines."""
  if not (isinstance(tokenizer, WordPiece) and tokenizer.splitting.strip_accents):
    return []
  lost = {name: accents(sample) for name, sample in texts.items()}
  shown = _named({name: share for name, (share, _) in lost.items()}, ACCENTS, '{:.0%}')
  if not shown:
    return []
  example = f' ({word})' if (word := max(lost.values())[1]) else ''  # all may be too long to show
  lose = f'of the words lose their accents by lower-casing{example}'
  return [f'{shown} {lose}; if they matter, {cased}.']


def accents(sample: Iterable[Sequence[str]]) -> tuple[float, str]:
  """Counts words that lose an accent by lower-casing: (their share, 'word -> what is left')."""
  words = Counter(word for sentences in sample for text in sentences for word in text.split())
  ours, theirs = (Splitting(True, False, strip).normalizer for strip in (True, False))
  changed = Counter()
  for word, count in words.items():
    left, whole = (unicodedata.normalize('NFC', x.normalize_str(word)) for x in (ours, theirs))
    if not word.isascii() and left != whole:
      changed[f'{whole} -> {left}'] = count
  short = (x for x, _ in changed.most_common() if len(x) < LONGEST_WORD)
  return changed.total() / max(1, words.total()), next(short, '')


def pieces(records: Iterable[np.ndarray], tokenizer: Tokenizer) -> Pieces:
  """Computes Pieces from records, arrays of piece ids."""
  size = np.array([len(piece.removeprefix('##').removeprefix('▁')) for piece in tokenizer.pieces])
  total = unknown = words = word_pieces = long = letters = 0
  for ids in filter(len, records):
    begin = np.flatnonzero(tokenizer.word_starts(ids, np.zeros(1, int)))
    begin = np.union1d([0], begin).astype(int)
    pieces_of, characters = np.diff([*begin, len(ids)]), np.add.reduceat(size[ids], begin)
    longest, is_unknown = np.maximum.reduceat(size[ids], begin), ids == tokenizer.unk_id
    known = ~np.logical_or.reduceat(is_unknown, begin)
    word = known & (characters <= LONGEST_WORD) & (longest > 0)
    total, unknown = total + len(ids), unknown + int(is_unknown.sum())
    words, word_pieces = words + int(word.sum()), word_pieces + int(pieces_of[word].sum())
    three = word & (characters >= 3)
    long, letters = long + int(three.sum()), letters + int((three & (longest == 1)).sum())
  return Pieces(unknown / max(1, total), word_pieces / max(1, words), letters / max(1, long))


def _named(values: Mapping[str, float], limit: float, form: str) -> str:
  """Names the languages above a limit: 'de 12%, fr 8% and 3 more languages', or ''."""
  above = sorted(((x, name) for name, x in values.items() if x > limit), reverse=True)
  shown = ', '.join(f'{name} {form.format(x)}'.strip() for x, name in above[:SHOWN])
  return shown + (f' and {len(above) - SHOWN} more languages' if len(above) > SHOWN else '')
