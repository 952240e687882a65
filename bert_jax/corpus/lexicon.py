"""Finds the words, phrases and names that are masked whole: of Chinese by a segmenter, jieba (Cui
et al. 2019), others in a user's lexicon, by ahocorasick_rs (ERNIE 1.0, Sun et al. 2019)."""

import functools
import importlib.util
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from bert_jax.errors import InputError
from bert_jax.files import brought
from bert_jax.text import encodings, files
from bert_jax.text.sentences import UNSPACED

_UNSPACED = re.compile(f'[{UNSPACED}]')
_HAN = re.compile('[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]')
_JOINERS = '\u200c\u200d'


class Segmenter:
  """Cuts Chinese into words by jieba, with the dictionary and the HMM it brings: a pure function of
  the text and jieba's version, without its cache in the temporary folder and `jieba.dt`."""

  def __init__(self):
    if importlib.util.find_spec('jieba') is None:
      raise InputError('the segmenter needs jieba; run: pip install jieba')

  def boundaries(self, text: str) -> np.ndarray | None:
    """bool [len(text)], True where a word begins; None for a text without any Han character, whose
    words the tokenizer finds. White space and punctuation are words too."""
    if not _HAN.search(text):
      return None
    lengths = [len(word) for word in _jieba()(text)]
    begins = np.zeros(len(text), bool)
    begins[np.cumsum([0, *lengths[:-1]])] = True
    return begins


@functools.cache
def _jieba() -> Callable[[str], Iterable[str]]:
  with warnings.catch_warnings(action='ignore'):  # about old escapes and pkg_resources
    import jieba
  tokenizer = jieba.Tokenizer()
  # What initialize() does without a cache, which may be of another version or of another user.
  tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
  tokenizer.initialized = True
  return tokenizer.cut


class Lexicon:
  """Finds the entries of a lexicon file (words, phrases or names, one a line) in texts.

  Blank lines and lines that begin with '#' are comments. Runs of white space in an entry count as
  one blank. Unicode forms are not normalised.
  do_lower_case: upper and lower case are the same.
  encoding: of the file.
  """

  def __init__(self, path: str, do_lower_case: bool, encoding: str = ''):
    file = brought(path)
    if not file.exists():
      raise InputError(f'lexicon {path} does not exist; give a text file with one entry on a line')
    counts = Counter()
    lines = [' '.join(line.split()) for _, line in files.lines(file, counts, encoding)]
    if counts['invalid_utf8_lines']:
      raise InputError(f'lexicon {path} is not UTF-8; convert it, or see {encodings.FIELD}')
    entries = [line for line in lines if line and line[0] != '#']
    if not entries:
      raise InputError(f'lexicon {path} has no entries; write one on a line')
    try:
      import ahocorasick_rs
    except ImportError:
      raise InputError('lexicons need ahocorasick_rs; run: pip install ahocorasick_rs') from None
    patterns = sorted(set(map(_lower, entries) if do_lower_case else entries))
    self.do_lower_case = do_lower_case
    self._automaton = ahocorasick_rs.AhoCorasick(patterns)

  def matches(self, text: str) -> list[tuple[int, int]]:
    """The matches in a text, [(start, end)] in characters: the leftmost, among those the longest.

    They do not overlap and neither begin nor end inside a word: 'art' is not in 'party'. In a
    script without blanks between words, they begin and end anywhere but before a combining mark.
    """
    folded = _lower(text) if self.do_lower_case else text
    found = self._automaton.find_matches_as_indexes(folded, overlapping=True)
    matches = []
    last = 0  # the end of the last match
    for _, start, end in sorted(found, key=lambda match: (match[1], -match[2])):
      cuts_word = _is_inside_word(text, start) or _is_inside_word(text, end)
      if start >= last and not cuts_word:
        matches.append((start, end))
        last = end
    return matches


def _lower(text: str) -> str:
  """Lower-cases a text character by character, so that its length stays."""
  # Only İ becomes two characters; only Σ looks at its neighbours, so its two small forms are one.
  return 'İ'.join(part.lower() for part in text.split('İ')).replace('ς', 'σ')


def _is_inside_word(text: str, i: int) -> bool:
  """Whether text[i - 1] and text[i] belong to one character, or word of a script with blanks."""
  if not 0 < i < len(text):
    return False
  if unicodedata.category(text[i])[0] == 'M':  # a combining mark
    return True
  pair = text[i - 1 : i + 1]
  return all(map(_is_letter, pair)) and not _UNSPACED.search(pair)


def _is_letter(character: str) -> bool:
  is_mark = unicodedata.category(character)[0] == 'M'
  return character.isalnum() or is_mark or character in _JOINERS
