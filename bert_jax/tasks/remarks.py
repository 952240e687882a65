"""Warns, before the first step, of data and settings that do not go well together.

Only what is out of the ordinary is said, with the field to set; the limits are below. Pieces are
counted in some records or examples, accents and lines at the beginning of some files, which takes
seconds for any corpus. Of a prepared corpus, which has no text, `tools.prepare` warns.
"""

import contextlib
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax.corpus import prepared
from bert_jax.corpus.tokenized import DamagedRecord, Piece, spaced
from bert_jax.errors import listed
from bert_jax.objectives.masking import POLICIES, mask_tokens
from bert_jax.rows.language_mixture import Mixture
from bert_jax.rows.sentence_pairs import PAIRS
from bert_jax.text import documents, files
from bert_jax.text.sentences import split_sentences
from bert_jax.text.values import finite_number
from bert_jax.timeline import values_of
from bert_jax.tokenizers import Splitting, Tokenizer, WordPiece

# The shares above which there is a warning: words that lose an accent, [UNK], words cut into
# single characters, random pairs, documents of one sentence, lines that go on in the next line.
ACCENTS, UNKNOWN, LETTERS, RANDOM, ALONE, WRAPPED = 0.02, 0.02, 0.4, 0.7, 0.5, 0.3
# Pieces of a word on average, punctuation counted. Google's vocabularies cut English into 1.06 and,
# the multilingual one, German into 1.37; the English one cuts German into 1.9. The second number is
# for a vocabulary of several languages, or one that was trained on this text.
PIECES, PIECES_SHARED = 1.75, 2.5
UNUSED = 0.1  # share of the pieces of a vocabulary that was trained on the text
MASKED = 0.25  # how far the share of masked tokens may be from the one asked for, as a share of it
MASKED_ROWS = 64  # rows that are masked to find out
COPIES = 0.05  # share of the evaluated texts that are trained on, too
PER_LINE = 1.5  # sentences, up to which a line counts as one sentence

FILES, CHARACTERS, RECORDS, EXAMPLES = 16, 500_000, 200, 2000  # the size of a sample
COMPARED = 100_000  # examples of each split that are looked through for equal texts
LONGEST_WORD = 24  # characters; longer runs, such as a line of Thai, are not words
SHOWN = 3  # languages that are named

_ENDS = re.compile(r'[.!?…。！？।॥؟۔:;"”’»)\]]\s*$')


class Pieces(NamedTuple):
  """Statistics of how a vocabulary cuts a text."""

  unknown: float  # share of [UNK] among the pieces
  per_word: float  # pieces of a word
  letters: float  # share of the words of 3 characters and more that are single characters


def remarks(config: ConfigDict, tokenizer: Tokenizer, sources: Mapping[str, Any]) -> list[str]:
  """Warnings about the training data, the vocabulary and the settings of a run on a corpus."""
  source = sources['train']
  parts = source.parts if isinstance(source, Mixture) else {'': source}
  samples = {name: list(records(rows.sample)) for name, rows in parts.items()}
  cuts = {name: pieces((ids for ids, _ in x), tokenizer) for name, x in samples.items()}
  specs = dict(files.parts(config.data.train, config.corpus.languages))
  corpus, data = config.corpus, config.data
  how = corpus.format, corpus.text_field, data.skip_damaged, 'train', data.text_encoding
  texts = {name: sample(spec, *how) for name, spec in specs.items()}
  another = ''
  if any(map(prepared.is_prepared, specs.values())):
    another = 'prepare the corpus with another --vocab (tools.vocab trains one)'
  out = about_accents(tokenizer, texts, cased(config))
  out += about_vocabulary(config, tokenizer, cuts, another)
  out += about_masks(config, tokenizer, list(itertools.chain(*samples.values())))
  return out + about_pairs(config, parts, texts)


def about_examples(
  config: ConfigDict, tokenizer: Tokenizer, texts: Iterable[str], sources: Mapping[str, Any]
) -> list[str]:
  """Warnings about labelled texts, the vocabulary and the splits. sources: {split: its Examples};
  texts: those of 'train'."""
  sample, examples = ([text] for text in itertools.islice(texts, EXAMPLES)), sources['train']
  chosen = (part for i in spaced(len(examples.texts), RECORDS) for part in examples.texts[i])
  cuts = {'': pieces(chosen, tokenizer)}
  out = about_accents(tokenizer, {'': sample}, cased(config))
  out += about_vocabulary(config, tokenizer, cuts) + about_labels(config)
  return out + (about_copies(examples, sources['eval']) if 'eval' in sources else [])


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


def about_masks(
  config: ConfigDict, tokenizer: Tokenizer, records: Sequence[Piece]
) -> Iterator[str]:
  """Warns of policies that hide another share of a text than asked, since their units are long."""
  policies = [('masking', policy) for policy in values_of(config.masking.policy)]
  policies.append(('eval_masking', config.eval_masking.policy))
  for block, policy in policies if records else ():
    rate = config[block].masked_lm_prob
    share = masked(config, tokenizer, records, policy, rate) if POLICIES.get(policy) else rate
    if abs(share / rate - 1) > MASKED:
      hides = f'{block}.policy={policy} hides {share:.1%} of the tokens, where {rate:.0%} are asked'
      long = 'its units are too long, as are the words of text without blanks to this vocabulary'
      fixes = f'another tokenizer.kind, for Chinese corpus.segmenter, or {block}.policy=token'
      yield f'{hides} for: {long}; use {fixes}.'


def masked(
  config: ConfigDict, tokenizer: Tokenizer, records: Sequence[Piece], policy: str, rate: float
) -> float:
  """The share of the tokens of records that a policy hides, in full rows."""
  T = config.data.seq_length
  pieces = [(*piece, np.full(len(piece[0]), k, np.int32)) for k, piece in enumerate(records, 1)]
  ids, starts, segments = (np.concatenate(x)[: MASKED_ROWS * T] for x in zip(*pieces))
  rows = (np.pad(x, (0, -len(x) % T)).reshape(-1, T) for x in (ids, segments, starts))
  how: Any = {'special_ids': tokenizer.special_ids, 'vocab_size': tokenizer.vocab_size}
  how |= {'policies': (policy,), 'masked_lm_prob': rate, 'max_predictions': T, 'mask_id': 0}
  how |= {'mask_share': 0.8, 'random_share': 0.1}
  *_, masks_BK = mask_tokens(jax.random.key(0), *map(jax.numpy.asarray, rows), **how)
  return float(masks_BK.sum()) / len(ids)


def about_pairs(
  config: ConfigDict, parts: Mapping[str, Any], texts: Mapping[str, list[list[str]]]
) -> list[str]:
  """Warnings about the lines of the text and the sentence pairs made of them."""
  nsp = config.corpus.rows == 'nsp' and config.loss.nsp_weight > 0
  totals = sum((Counter(rows.totals) for rows in parts.values()), Counter())
  random = totals['ones'] / max(1, totals['examples'])
  alone = totals['alone'] / max(1, totals['documents'])
  lines_are, form = about_lines(texts, config.corpus.format)
  fix = f'corpus.format={form} makes sentences of them'
  if nsp and random > RANDOM:
    because = lines_are or 'a sentence often fills a row'
    if alone > ALONE and not lines_are:
      because = f'{alone:.0%} of the documents have one sentence (a blank line ends a document)'
    learns = ', so that there is hardly anything to learn from them' * (random > 0.9)
    fix = fix if form else 'longer rows (data.seq_length) have fewer'
    fixes = f'{fix}, corpus.rows=full with loss.nsp_weight=0 has no pairs'
    return [f'{random:.0%} of the NSP pairs are random{learns}: {because}; {fixes}.']
  if lines_are and config.corpus.rows in (*PAIRS, 'single'):
    return [f'{lines_are}; {fix}.']
  return []


def about_lines(texts: Mapping[str, list[list[str]]], form: str) -> tuple[str, str]:
  """Finds lines that do not fit their form: (what is wrong, the format to set), or ('', '').
  texts: {language: documents}, see sample."""
  if form not in ('auto', 'sentences'):
    return '', ''
  per_line, wrapped = lines([x for documents in texts.values() for x in documents])
  if wrapped > WRAPPED:
    fault = f'{wrapped:.0%} of the lines go on in the next one, and each counts as a sentence'
    return fault, 'paragraphs'
  few = f'a line has {per_line:.1f} sentences on average and counts as one', 'lines'
  return few if per_line > PER_LINE else ('', '')


def sample(spec: str, form: str, text_field: str, skip: bool = False, *how: str) -> list[list[str]]:
  """Reads some documents, lists of sentences, from the beginnings of some files; [] for a prepared
  corpus and the embedded documentation. Other arguments, how = split, encoding: see documents."""
  if not spec or prepared.is_prepared(spec):
    return []
  paths, out = documents.sources(spec, form), []
  chosen = [paths[i] for i in spaced(len(paths), FILES)]
  for path in chosen:
    room, of_rows = CHARACTERS // len(chosen), (text_field, Counter(), skip)
    blocks = documents.blocks(path, form, *how, text_field=text_field)
    for document in (x for block in blocks for x in documents.read_block(block, *of_rows)):
      ends = itertools.accumulate(map(len, document.sentences))
      out.append([s for s, end in zip(document.sentences, ends) if end - len(s) < room])
      room -= sum(map(len, out[-1]))
      if room <= 0:
        break
  return out


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


def lines(sample: list[list[str]]) -> tuple[float, float]:
  """Counts sentences in lines: (mean of a line, share of lines that go on in the next line)."""
  sentences = list(itertools.chain(*sample))
  split = sum(len(split_sentences(sentence)) for sentence in sentences)
  pairs = [pair for texts in sample for pair in itertools.pairwise(texts)]
  goes_on = sum(b[0].islower() and not _ENDS.search(a) for a, b in pairs)
  return split / max(1, len(sentences)), goes_on / max(1, len(pairs))


def records(corpus: Any) -> Iterator[Piece]:
  """The piece ids of some records of a corpus, and where units start in them."""
  for i in spaced(len(corpus.records), RECORDS):
    with contextlib.suppress(DamagedRecord):
      yield corpus.read(int(corpus.records[i]))


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
