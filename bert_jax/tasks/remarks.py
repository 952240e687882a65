"""Warns, before the first step, of data and settings that do not go well together.

Only what is out of the ordinary is said, with the field to set; the limits are below. Pieces are
counted in some records of each language, accents and lines in the beginnings of some files, so this
takes seconds for any corpus, and the same corpus gives the same sentences. A prepared corpus has no
text any more: `tools.prepare` warns of what is lost. Of labelled data, some examples are read.
"""

import contextlib
import itertools
import re
import unicodedata
from collections import Counter
from typing import NamedTuple

import numpy as np

from bert_jax.corpus import prepared
from bert_jax.corpus.tokenized import DamagedRecord
from bert_jax.rows.language_mixture import Mixture
from bert_jax.rows.sentence_pairs import PAIRS
from bert_jax.text import documents, files
from bert_jax.text.sentences import split_sentences
from bert_jax.tokenizers.wordpiece import Splitting, WordPiece

# The shares above which there is a warning: words that lose an accent, [UNK], words cut into
# single characters, random pairs, documents of one sentence, lines that go on in the next line.
ACCENTS, UNKNOWN, LETTERS, RANDOM, ALONE, WRAPPED = 0.02, 0.02, 0.4, 0.7, 0.5, 0.3
# Pieces of a word on average, punctuation counted. Google's vocabularies cut English into 1.06 and,
# the multilingual one, German into 1.37; the English one cuts German into 1.9. The second number is
# for a vocabulary of several languages, or one that was trained on this text.
PIECES, PIECES_SHARED = 1.75, 2.5
UNUSED = 0.1  # share of the pieces of a vocabulary that was trained on the text
PER_LINE = 1.5  # sentences, up to which a line counts as one sentence

FILES, CHARACTERS, RECORDS, EXAMPLES = 16, 500_000, 200, 2000  # the size of a sample
LONGEST_WORD = 24  # characters; longer runs, such as a line of Thai, are not words
SHOWN = 3  # languages that are named

_ENDS = re.compile(r'[.!?…。！？।॥؟۔:;"”’»)\]]\s*$')


class Pieces(NamedTuple):
  """Statistics of how a vocabulary cuts a text."""

  unknown: float  # share of [UNK] among the pieces
  per_word: float  # pieces of a word
  letters: float  # share of the words of 3 characters and more that are single characters


def remarks(config, tokenizer, sources):
  """Warnings about the training data, the vocabulary and the settings of a run on a corpus."""
  source = sources['train']
  parts = source.parts if isinstance(source, Mixture) else {'': source}
  cuts = {name: pieces(records(rows.sample), tokenizer) for name, rows in parts.items()}
  specs = dict(files.parts(config.data.train, config.corpus.languages))
  form, field = config.corpus.format, config.corpus.text_field
  texts = {name: sample(spec, form, field) for name, spec in specs.items()}
  out = about_accents(tokenizer, texts, cased(config))
  another = ''
  if any(map(prepared.is_prepared, specs.values())):
    another = 'prepare the corpus with another --vocab (tools.vocab trains one)'
  return (
    out + about_vocabulary(config, tokenizer, cuts, another) + about_pairs(config, parts, texts)
  )


def about_examples(config, tokenizer, texts, examples):
  """Warnings about labelled texts and the vocabulary. examples: the Examples made of the texts."""
  sample = ([text] for text in itertools.islice(texts, EXAMPLES))
  chosen = (part for i in chosen_of(len(examples.texts)) for part in examples.texts[i])
  cuts = {'': pieces(chosen, tokenizer)}
  out = about_accents(tokenizer, {'': sample}, cased(config))
  return out + about_vocabulary(config, tokenizer, cuts)


def cased(config):
  """The setting that makes a run keep capitals and accents, in words."""
  if config.init_from:
    return 'start from a cased model (init_from)'
  return 'set tokenizer.do_lower_case=false, with a cased vocabulary'


def about_vocabulary(config, tokenizer, cuts, another=''):
  """Warnings about a vocabulary that suits the text badly. cuts: {language: Pieces}. another: how
  to change the vocabulary, if not by the fields that name one."""
  if config.tokenizer.kind == 'bytes' and not (config.tokenizer.path or config.init_from):
    return []  # bytes fit all texts, and cut each word
  out, trained = [], not (config.tokenizer.path or config.init_from)
  if config.init_from:
    another = 'start from a model of this language (init_from)'
  another = another or 'name another tokenizer.path, or leave it empty to train one on this text'
  more = 'raise model.vocab_size' if trained else another
  unknown = 'raise tokenizer.character_coverage' if trained else another
  for text, values, limit, advice in (
    ('{} of the pieces are [UNK]', {k: x.unknown for k, x in cuts.items()}, UNKNOWN, unknown),
    (
      '{} of the words are cut into single characters',
      {k: x.letters for k, x in cuts.items()},
      LETTERS,
      more,
    ),
  ):
    if shown := _named(values, limit, '{:.0%}'):
      out.append(f'{text.format(shown)}: the vocabulary does not fit this text; {advice}.')
  limit = PIECES_SHARED if trained or len(cuts) > 1 else PIECES
  shown = _named({name: cut.per_word for name, cut in cuts.items()}, limit, '{:.1f}')
  if shown and not any('single characters' in sentence for sentence in out):
    out.append(f'a word is {shown} pieces on average: the vocabulary hardly fits it; {more}.')
  unused = sum(piece.startswith('[unused') for piece in tokenizer.pieces)
  if trained and unused > UNUSED * tokenizer.vocab_size:
    held = f'the text gives {tokenizer.vocab_size - unused} pieces of {tokenizer.vocab_size}'
    out.append(f'{held}; model.vocab_size={tokenizer.vocab_size - unused} has no rows to spare.')
  return out


def about_accents(tokenizer, texts, cased):
  """Warnings about accents that the tokenizer strips. texts: {language: documents}, see sample.
  cased: the setting that keeps them, in words."""
  if not (isinstance(tokenizer, WordPiece) and tokenizer.splitting.strip_accents):
    return []
  lost = {name: accents(sample) for name, sample in texts.items()}
  shown = _named({name: share for name, (share, _) in lost.items()}, ACCENTS, '{:.0%}')
  if not shown:
    return []
  _, example = max(lost.values())
  lose = f'{shown} of the words lose their accents by lower-casing ({example})'
  return [f'{lose}; if they matter, {cased}.']


def about_pairs(config, parts, texts):
  """Warnings about the lines of the text and the sentence pairs made of them."""
  out, nsp = [], config.corpus.rows == 'nsp' and config.loss.nsp_weight > 0
  totals = sum((Counter(rows.totals) for rows in parts.values()), Counter())
  random = totals['ones'] / max(1, totals['examples'])
  alone = totals['alone'] / max(1, totals['documents'])
  lines_are, form = about_lines(texts, config.corpus.format)
  fix = f'corpus.format={form} makes sentences of them' if form else ''
  if nsp and random > RANDOM:
    because = lines_are or (
      f'{alone:.0%} of the documents have one sentence (a blank line ends a document)'
      if alone > ALONE
      else 'a sentence often fills a row'
    )
    none = 'corpus.rows=full with loss.nsp_weight=0 has no pairs'
    learns = ', so that there is hardly anything to learn from them' if random > 0.9 else ''
    fixes = ', '.join(filter(None, [fix or 'longer rows (data.seq_length) have fewer', none]))
    out.append(f'{random:.0%} of the NSP pairs are random{learns}: {because}; {fixes}.')
  elif lines_are and config.corpus.rows in (*PAIRS, 'single'):
    out.append(f'{lines_are}; {fix}.')
  return out


def about_lines(texts, form):
  """Finds lines that do not fit the format: (what is wrong, the format to set), or ('', '').
  texts: {language: documents}, see sample. form: the present format."""
  if form not in ('auto', 'sentences'):
    return '', ''
  per_line, wrapped = lines([x for documents in texts.values() for x in documents])
  if wrapped > WRAPPED:
    one = 'each counts as a sentence'
    return f'{wrapped:.0%} of the lines go on in the next one, and {one}', 'paragraphs'
  if per_line > PER_LINE:
    return f'a line has {per_line:.1f} sentences on average and counts as one', 'lines'
  return '', ''


def sample(spec, form, text_field, split='train'):
  """Reads some documents, lists of sentences, from the beginnings of some files; [] for a prepared
  corpus and the embedded documentation. form, text_field, split: see documents.documents."""
  if not spec or prepared.is_prepared(spec):
    return []
  paths, out = documents.sources(spec, form), []
  chosen = [paths[i] for i in np.unique(np.linspace(0, len(paths) - 1, FILES).round().astype(int))]
  for path in chosen:
    read = (
      document
      for block in documents.blocks(path, form, split)
      for document in documents.read_block(block, text_field, Counter())
    )
    room = CHARACTERS // len(chosen)
    for document in read:
      ends = itertools.accumulate(map(len, document.sentences))
      out.append([s for s, end in zip(document.sentences, ends) if end - len(s) < room])
      room -= sum(map(len, out[-1]))
      if room <= 0:
        break
  return out


def accents(sample):
  """Counts words that lose an accent by lower-casing: (their share, 'word -> what is left')."""
  words = Counter(word for sentences in sample for text in sentences for word in text.split())
  ours, theirs = (Splitting(True, False, strip).normalizer for strip in (True, False))
  changed = Counter()
  for word, count in words.items():
    left, whole = (unicodedata.normalize('NFC', x.normalize_str(word)) for x in (ours, theirs))
    if not word.isascii() and left != whole:
      changed[f'{whole} -> {left}'] = count
  short = (x for x in changed.most_common() if len(x[0]) < LONGEST_WORD)
  example = next(short, ('', 0))[0]
  return changed.total() / max(1, words.total()), example


def lines(sample):
  """Counts sentences in lines: (mean of a line, share of lines that go on in the next line)."""
  number = len([sentence for texts in sample for sentence in texts])
  split = sum(len(split_sentences(sentence)) for texts in sample for sentence in texts)
  pairs = [pair for texts in sample for pair in itertools.pairwise(texts)]
  goes_on = sum(b[0].islower() and not _ENDS.search(a) for a, b in pairs)
  return split / max(1, number), goes_on / max(1, len(pairs))


def chosen_of(number):
  """At most RECORDS of the numbers below `number`, evenly spaced."""
  return np.unique(np.linspace(0, number - 1, RECORDS).round().astype(int)) if number else ()


def records(corpus):
  """The piece ids of some records of a corpus."""
  for i in chosen_of(len(corpus.records)):
    with contextlib.suppress(DamagedRecord):
      yield corpus.read(int(corpus.records[i]))[0]


def pieces(records, tokenizer):
  """Computes Pieces from records, arrays of piece ids."""
  size = np.array([len(piece.removeprefix('##').removeprefix('▁')) for piece in tokenizer.pieces])
  total = unknown = words = word_pieces = long = letters = 0
  for ids in filter(len, records):
    begin = np.flatnonzero(tokenizer.word_starts(ids, np.zeros(1, int)))
    begin = np.union1d([0], begin).astype(int)
    pieces_of, characters = np.diff([*begin, len(ids)]), np.add.reduceat(size[ids], begin)
    known = ~np.logical_or.reduceat(ids == tokenizer.unk_id, begin)
    word = known & (characters <= LONGEST_WORD) & (np.maximum.reduceat(size[ids], begin) > 0)
    total, unknown = total + len(ids), unknown + int(np.sum(ids == tokenizer.unk_id))
    words, word_pieces = words + int(word.sum()), word_pieces + int(pieces_of[word].sum())
    three = word & (characters >= 3)
    single = np.maximum.reduceat(size[ids], begin) == 1
    long, letters = long + int(three.sum()), letters + int((three & single).sum())
  return Pieces(unknown / max(1, total), word_pieces / max(1, words), letters / max(1, long))


def _named(values, limit, form):
  """Names the languages above a limit: 'de 12%, fr 8% and 3 more languages', or ''."""
  above = sorted(((x, name) for name, x in values.items() if x > limit), reverse=True)
  shown = ', '.join(f'{name} {form.format(x)}'.strip() for x, name in above[:SHOWN])
  return shown + (f' and {len(above) - SHOWN} more languages' if len(above) > SHOWN else '')
