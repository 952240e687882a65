"""Encodes texts run by run, where a run is what stands between two blanks. Most runs occur again,
so their ids are remembered, which is several times as fast as encoding whole texts."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

MARK = '▁'  # how SentencePiece writes a space
SPACE = {'type': 'Metaspace', 'replacement': MARK, 'prepend_scheme': 'always', 'split': True}
KNOWN_RUNS = 500_000  # how many are remembered at most
LONGEST_RUN = 20  # characters; a longer one, such as an address, is not remembered
_LONG_RUNS = 12  # characters; texts whose runs are so long on average are not split at blanks
_HAS_CHINESE = re.compile('[\u4e00-\u9fff]{2}')
_CHINESE = re.compile('[\u4e00-\u9fff]|[^ \u4e00-\u9fff]+')  # a character, or the text between


class IdsOfRuns(dict):
  """A cache {run: its ids as bytes of int32}; a missing run is encoded when asked for.
  library: a tokenizer no rule of which reaches across a blank. characters_are_words: nor across a
  Chinese character."""

  def __init__(self, library: Any, characters_are_words: bool):
    super().__init__()
    self.library, self.characters_are_words = library, characters_are_words

  def __missing__(self, run: str) -> bytes:
    (encoding,) = self.library.encode_batch_fast([run], add_special_tokens=False)
    ids = np.array(encoding.ids, np.int32).tobytes()
    if len(self) >= KNOWN_RUNS:
      self.clear()
    if len(run) <= LONGEST_RUN:
      self[run] = ids
    return ids

  def of_texts(self, texts: list[str]) -> list[np.ndarray]:
    """The ids of each text, [n] int32."""
    out, whole = [], []
    for i, text in enumerate(texts):
      runs = self._split(text)
      if len(runs) == 1 and len(text) > LONGEST_RUN:
        whole.append(i)
        out.append(text)
      else:
        out.append(np.frombuffer(b''.join([self[run] for run in runs]), np.int32))
    encodings = self.library.encode_batch_fast([out[i] for i in whole], add_special_tokens=False)
    for i, encoding in zip(whole, encodings):
      out[i] = np.array(encoding.ids, np.int32)
    return out

  def _split(self, text: str) -> list[str]:
    """Splits a text at its blanks. A text of long runs stays whole, as they rarely repeat; Chinese
    is split at its characters, if these are words."""
    spaced = text.replace('\n', ' ').replace('\t', ' ').replace('\r', ' ')
    runs = spaced.split(' ')
    if len(text) < _LONG_RUNS * len(runs):
      return runs
    if self.characters_are_words and _HAS_CHINESE.search(text):
      return _CHINESE.findall(spaced)
    return [text]


def ends_at_blanks(content: Mapping[str, Any]) -> bool:
  """Whether texts are split as by sentence_piece.model_content: no piece reaches across a blank."""
  steps = (content.get('normalizer') or {}).get('normalizers') or ()
  kinds = [step['type'] for step in steps[-2:]]
  return kinds == ['Replace', 'Strip'] and content.get('pre_tokenizer') == SPACE
