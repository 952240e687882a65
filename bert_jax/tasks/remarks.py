"""Warns, before the first step, of a vocabulary that does not fit the text and of data that a run
can hardly learn from. REMARKS has all that is said, with the threshold above which it is; a sample
is measured, which takes seconds for any data."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.corpus.tokenized import spaced
from bert_jax.errors import listed
from bert_jax.tokenizers import Tokenizer

RECORDS = 200  # records or examples whose pieces are counted
COMPARED = 100_000  # examples of each split that are looked through for equal texts
LONGEST_WORD = 24  # characters; longer runs, such as a line of Thai, are not words


class Remark(NamedTuple):
  threshold: float  # the sentence is said of a larger value
  sentence: str  # with {value}, and {fix}: what to change


# Google's vocabularies cut English words into 1.06 pieces on average (punctuation counted) and, the
# multilingual one, German into 1.37; the English one cuts German into 1.9.
REMARKS = {
  'unknown': Remark(0.02,
    '{value} of the pieces are [UNK]: the vocabulary does not fit this text; {fix}.'),
  'pieces': Remark(1.75,
    'a word is {value} pieces on average: the vocabulary hardly fits this text; {fix}.'),
  # The same of several languages, or of a vocabulary that was trained on this text.
  'pieces_shared': Remark(2.5,
    'a word is {value} pieces on average: the vocabulary hardly fits this text; {fix}.'),
  'wrapped': Remark(0.3,
    '{value:.0%} of the lines go on in the next one, and each counts as a sentence; {fix}.'),
  'per_line': Remark(1.5, 'a line has {value:.1f} sentences on average and counts as one; {fix}.'),
  'files': Remark(4,
    'a file holds {value:.0f} documents on average, since a blank line ends one; {fix}.'),
  'alone': Remark(0.9,
    '{value:.0%} of the documents have one sentence, which none follows; {fix}.'),
  'copies': Remark(0,
    'evaluated texts that are in the training data, too, and may be known by heart: {value:,} (of '
    '100,000 of each that are compared); {fix}.'),
  'large_share': Remark(0.4, '{value:.0%} of the text is held out; {fix}.'),
  'documents': Remark(0,
    'evaluated documents that are in the training text, too: {value:,}; {fix}.'),
  'cut': Remark(0.05, '{value:.0%} of the texts are cut; if that matters, {fix}.'),
  'cut_tokens': Remark(0.5, '{value:.0%} of the tokens of examples are cut to fit; {fix}.'),
  'contradicted': Remark(0,
    'training texts that are read alike and have another label: {value}, such as {fix}.'),
  'alike': Remark(0, 'labels that differ from another in case alone: {value}; {fix}.'),
  'few': Remark(0.1,
    'so few examples are evaluated that a score is uncertain by {value:.0%} (1/sqrt(N)); {fix}.'),
  # The losses of single tokens by frequencies alone deviate by 2.9 nats (words of WikiText-2).
  'held_out': Remark(0.03,
    'so few tokens are held out that their loss is uncertain by {value:.2f} nats (3/sqrt(N)), '
    'and the loss of masked ones alone by more; {fix}.'),
  'once': Remark(0, 'training texts with a label that no other has: {value}; {fix}.'),
  'numbers': Remark(10, 'all {value} labels are numbers and are taken as classes; {fix}.'),
}  # fmt: skip


def about(name: str, value: float, fix: str) -> list[str]:
  """The sentence of REMARKS if a value is above its threshold, else []."""
  threshold, sentence = REMARKS[name]
  return [sentence.format(value=value, fix=fix)] if value > threshold else []


class Pieces(NamedTuple):
  """How a vocabulary cuts a text."""

  unknown: float  # share of [UNK] among the pieces
  per_word: float  # pieces of a word


def about_examples(
  config: ConfigDict, tokenizer: Tokenizer, sources: Mapping[str, Any]
) -> list[str]:
  """Warnings about labelled texts, the vocabulary and the splits. sources: {split: Examples}."""
  texts = sources['train'].texts
  sampled = (part for i in spaced(len(texts), RECORDS) for part in texts[i])
  out = about_vocabulary(config, {'': pieces(sampled, tokenizer)})
  if 'eval' in sources:
    out += about_copies(sources['train'], sources['eval'])
    scored = getattr(sources['eval'], 'scored', 0) or sources['eval'].size
    out += about('few', scored**-0.5, 'evaluate on more of them')
  return out


def about_copies(train: Any, evaluated: Any) -> list[str]:
  """A warning about evaluated Examples whose texts are trained on: their scores say little."""
  evaluated_counts = Counter(sampled_texts(evaluated.texts))
  trained_on = {text for text in sampled_texts(train.texts) if text in evaluated_counts}
  trained_on -= {b'', b'|'}  # without a token
  copies = sum(evaluated_counts[text] for text in trained_on)
  return about('copies', copies, 'leave them out of data.train or data.eval')


def about_contradictions(train: Any) -> list[str]:
  """A warning about texts of training Examples that stand there again, as far as they are read,
  with another label."""
  first, again = {}, []
  labels = train.per_example['labels']
  for i, text in zip(spaced(len(train.texts), COMPARED), sampled_texts(train.texts)):
    if text not in (b'', b'|') and first.setdefault(text, labels[i]) != labels[i]:
      again.append(i)
  shown = [' '.join(map(train.tokenizer.decode, train.texts[i])) for i in again[:1]]
  fix = 'keep one of the two, or read more of long texts (data.seq_length)'
  return about('contradicted', len(again), f'{listed(shown)}; {fix}')


def sampled_texts(texts: Sequence[Sequence[np.ndarray]]) -> Iterator[bytes]:
  """The token ids of a sample of texts, as bytes that can be compared."""
  for i in spaced(len(texts), COMPARED):
    yield b'|'.join(np.asarray(ids, np.int32).tobytes() for ids in texts[i])


def about_vocabulary(config: ConfigDict, cuts: Mapping[str, Pieces]) -> list[str]:
  """Warnings about a vocabulary that suits the text badly. cuts: {language: Pieces}."""
  trained = not (config.tokenizer.path or config.init_from)
  if config.tokenizer.kind == 'bytes' and trained:
    return []  # bytes fit all texts, and cut each word
  another = 'name another tokenizer.path, or leave it empty to train one on this text'
  if config.init_from:
    another = 'start from a model of this language (init_from)'
  cover = 'raise tokenizer.character_coverage' if trained else another
  more = 'raise model.vocab_size' if trained else another
  per_word = 'pieces_shared' if trained or len(cuts) > 1 else 'pieces'
  unknown = {language: cut.unknown for language, cut in cuts.items()}
  lengths = {language: cut.per_word for language, cut in cuts.items()}
  out = _about_languages('unknown', unknown, '{:.0%}', cover)
  return out + _about_languages(per_word, lengths, '{:.1f}', more)


def _about_languages(name, values, form, fix):
  """The sentence of REMARKS with each language whose value is above its threshold."""
  threshold, sentence = REMARKS[name]
  above = {language: value for language, value in values.items() if value > threshold}
  worst_first = sorted(above, key=above.__getitem__, reverse=True)
  shown = [f'{language} {form.format(above[language])}'.strip() for language in worst_first]
  return [sentence.format(value=', '.join(shown), fix=fix)] if shown else []


def pieces(records: Iterable[np.ndarray], tokenizer: Tokenizer) -> Pieces:
  """Computes Pieces from records, arrays of piece ids."""
  size = np.array([len(piece.removeprefix('##').removeprefix('▁')) for piece in tokenizer.pieces])
  total = unknown = words = word_pieces = 0
  for ids in records:
    if not len(ids):
      continue
    begins = np.flatnonzero(tokenizer.word_starts(ids, np.zeros(1, int)))
    begins = np.union1d([0], begins).astype(int)
    piece_counts = np.diff([*begins, len(ids)])
    characters = np.add.reduceat(size[ids], begins)
    is_unknown = ids == tokenizer.unk_id
    is_known = ~np.logical_or.reduceat(is_unknown, begins)
    is_word = is_known & (characters <= LONGEST_WORD) & (characters > 0)
    total += len(ids)
    unknown += int(is_unknown.sum())
    words += int(is_word.sum())
    word_pieces += int(piece_counts[is_word].sum())
  return Pieces(unknown / max(1, total), word_pieces / max(1, words))
