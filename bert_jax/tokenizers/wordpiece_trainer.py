"""Trains WordPiece vocabularies: the same texts give the same bytes, on any machine.

Hugging Face's trainer breaks ties by hash order. So words are counted here as the tokenizer will
see them, SentencePiece's byte-pair trainer (Sennrich et al. 2016) chooses the merges, and its
pieces are written in Google's notation.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from typing import Any

import sentencepiece

from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.tokenizers.language_weights import Texts, by_language, weighted_shares, weights
from bert_jax.tokenizers.reserved import RESERVED
from bert_jax.tokenizers.sentence_piece_trainer import train_model
from bert_jax.tokenizers.splitting import MAX_WORD_CHARACTERS, Splitting
from bert_jax.tokenizers.tokenizer import Tokenizer, checked
from bert_jax.tokenizers.wordpiece import wordpiece_tokenizer

_SPACE = re.compile('[ \t\r\n]+')
_FIRST_SYMBOL = 0x10000  # symbols for SentencePiece lie above every character it treats specially


def train_wordpiece(
  texts: Texts,
  *,
  vocab_size: int,
  splitting: Splitting,
  character_coverage: float,
  sampling: float,
) -> tuple[Tokenizer, dict[str, Any]]:
  """Trains a vocabulary of exactly vocab_size pieces: (it, what was counted on the way).
  They are [PAD] [UNK] [CLS] [SEP] [MASK], each kept character as `x`, each again as `##x` (but
  those that always stand alone), then pieces in the order they were merged, then [unused0],
  [unused1], ... character_coverage: the rarest characters, together 1 - character_coverage of the
  text, are left out, and words that contain them will be [UNK]. SentencePiece's default of 0.9995
  would leave out the digits of English novels; for Chinese and Japanese it is right.
  sampling: see language_weights.weights."""
  counts = {name: _count_words(part, splitting) for name, part in by_language(texts).items()}
  sizes = {language: words.total() for language, words in counts.items()}
  times = weights(sizes, sampling)
  words, characters = Counter(), Counter()
  for language, language_words in counts.items():
    for word, count in language_words.items():
      words[word] += count * times[language]
  for word, count in words.items():
    for c in word:
      characters[c] += count
  alphabet = _cover(characters, character_coverage)
  # Chinese characters and punctuation always stand alone: no word goes on with them.
  inside = [c for c in alphabet if len(splitting.words('a' + c)) == 1]
  pieces = [*RESERVED, *alphabet, *('##' + c for c in inside)]
  if vocab_size < len(pieces):
    raise InputError(
      f'model.vocab_size (--size) {vocab_size} cannot hold the {len(alphabet)} characters '
      f'of the corpus and the {len(inside)} that continue a word; '
      f'use {len(pieces)} or more, or lower character_coverage'
    )
  kept = set(alphabet)
  mergeable = {}
  for word, count in words.items():
    if 1 < len(word) <= MAX_WORD_CHARACTERS and kept.issuperset(word):
      mergeable[word] = count
  pieces += _merges(mergeable, alphabet, vocab_size - len(pieces))
  unused = [f'[unused{i}]' for i in range(vocab_size - len(pieces))]
  counted = {
    'words': sum(sizes.values()),
    'distinct_words': len(words),
    'characters_kept': len(alphabet),
    'characters_dropped': len(characters) - len(alphabet),
    'pieces': len(pieces),
    'unused': len(unused),
    'shares': weighted_shares(sizes, times),
  }
  return wordpiece_tokenizer(pieces + unused, splitting), counted


def _count_words(texts: Iterable[str], splitting: Splitting) -> Counter:
  """Counts words, as the tokenizer sees them; each stretch between blanks is split only once."""
  stretches = Counter()
  for text in texts:
    stretches.update(_SPACE.split(checked([text])[0]))
  words = Counter()
  for stretch, count in stretches.items():
    for word in splitting.words(stretch):
      words[word] += count
  return words


def _cover(characters: Counter, coverage: float) -> list[str]:
  """The most frequent characters that make up `coverage` of the text, in code point order."""
  missing, kept = coverage * characters.total(), []
  for c, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
    if missing > 0:
      kept.append(c)
    missing -= count
  return sorted(kept)


def _merges(words: dict[str, int], alphabet: list[str], number: int) -> list[str]:
  """Up to `number` merged pieces in WordPiece notation, the most useful first. SentencePiece is
  given two symbols for a character, at the start of a word and inside: the difference of ##. It
  sorts the words, so their order does not matter."""
  if not words:
    return []
  first = {ord(c): _FIRST_SYMBOL + 2 * i for i, c in enumerate(alphabet)}
  inside = {c: symbol + 1 for c, symbol in first.items()}
  rows = {}
  for word, n in words.items():
    rows[word[0].translate(first) + word[1:].translate(inside)] = n
  symbols = len(set().union(*rows))
  with tempfile.TemporaryDirectory() as folder:
    table = Path(folder) / 'words.tsv'
    table.write_bytes(''.join(f'{row}\t{n}\n' for row, n in rows.items()).encode())
    model = train_model(  # words are taken as they are, and any piece may be merged with any
      input=str(table),
      input_format='tsv',
      vocab_size=1 + symbols + number,
      model_type='bpe',
      hard_vocab_limit=False,
      bos_id=-1,
      eos_id=-1,
      character_coverage=1.0,
      normalization_rule_name='identity',
      add_dummy_prefix=False,
      remove_extra_whitespaces=False,
      split_by_number=False,
      split_by_unicode_script=False,
      max_sentencepiece_length=MAX_WORD_CHARACTERS,
    )
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  merged = []
  for i in range(1, processor.get_piece_size()):  # 0 is its <unk>
    codes = [ord(symbol) - _FIRST_SYMBOL for symbol in processor.id_to_piece(i)]
    if len(codes) > 1:
      piece = ''.join(alphabet[code // 2] for code in codes)
      merged.append(f'##{piece}' if codes[0] % 2 else piece)
  return merged
