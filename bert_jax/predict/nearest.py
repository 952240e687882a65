"""Finds the lines of a file nearest to a question: exact search, by comparing with every line.

The lines are embedded once. With keep_index their vectors are kept beside the file, as
FILE.vectors.npz, with a fingerprint of the lines and of all that makes a vector.
"""

import hashlib
import io
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from tqdm import tqdm

from bert_jax.errors import InputError, log, writing
from bert_jax.files import UNREADABLE, Path, read_npz, write_whole
from bert_jax.predict.sentence_vectors import POOLING, Embed
from bert_jax.tasks.ask import TOP_K
from bert_jax.tasks.record import Option, Prediction
from bert_jax.text import files
from bert_jax.workdir import manifest

if TYPE_CHECKING:
  from bert_jax.predict.model import Model

CHUNK = 1024  # lines that are embedded at a time


class Search(Embed):
  """Finds the top_k nearest lines of a file, `index`; its blank lines are left out."""

  exports = {}

  def __init__(
    self,
    model: 'Model',
    index: str = '',
    top_k: int = 5,
    keep_index: bool = False,
    pooling: str = '',
    text_encoding: str = '',
  ):
    super().__init__(model, pooling)
    if not index:
      raise InputError('search has nothing to search in; name a file of lines with --index FILE.')
    found, counts = Path(index).expanduser(), Counter()
    numbered = list(files.lines(found, counts, text_encoding))
    self.lines = [(n, line) for n, line in numbered if line.strip()]
    self.top_k = min(top_k, len(self.lines))
    if not self.lines:
      raise InputError(f'--index {index} holds blank lines only; give a file of texts.')
    if blank := len(numbered) - len(self.lines):
      model.counts['blank lines of the index (left out)'] += blank
    if faulty := counts['invalid_utf8_lines']:
      model.counts['lines of the index that are not UTF-8 (bad bytes became U+FFFD)'] += faulty
    kept = found.with_name(f'{found.name}.vectors.npz')
    self.vectors = self._kept_in(kept) if keep_index else self._embedded()  # [lines, D] float32

  def _kept_in(self, path):
    """The vectors in a file if its fingerprint fits, else computed and written there."""
    fingerprint = self._fingerprint()
    if path.exists():
      if (vectors := _read(path, fingerprint)) is not None:
        return vectors
      log.warning('%s is of other lines, another model or version, or damaged: made anew', path)
    vectors, out = self._embedded(), io.BytesIO()
    np.savez(out, vectors=vectors, fingerprint=fingerprint)
    with writing(path, 'leave out --keep-index'):
      write_whole(path, out.getvalue())
    return vectors

  def _embedded(self):
    texts, out = [line for _, line in self.lines], []
    starts = range(0, len(texts), CHUNK)
    for start in tqdm(starts, unit=f' x {CHUNK} lines', disable=not sys.stderr.isatty()):
      replies: Any = super().replies(texts[start : start + CHUNK])
      out += [answer['vector'] for answer, _ in replies]
    return np.stack(out)

  def _fingerprint(self):
    model, weights = self.model, manifest.fingerprint(jax.device_get(self.model.weights))
    about = model.tokenizer.fingerprint, model.limit, self.pooling, self.normalize, weights
    digest = hashlib.sha256(repr((about, sorted(model.config.model.items()))).encode())
    for _, line in self.lines:
      digest.update(model.vector.read_as(line).encode(errors='surrogatepass') + b'\n')
    return digest.hexdigest()

  def replies(self, records: Sequence[str]) -> list[tuple[Any, str]]:
    replies = zip(records, super().replies(records))
    return [(answer and self._nearest(answer, text), why) for text, (answer, why) in replies]

  def _nearest(self, answer, text):
    similar = self.vectors @ answer['vector']
    least = np.partition(similar, -self.top_k)[-self.top_k]
    # Equally near lines stay in the order of the file.
    best = sorted(np.flatnonzero(similar >= least), key=lambda i: -similar[i])[: self.top_k]
    found = ((*self.lines[i], float(similar[i])) for i in best)
    nearest = [{'line': number, 'score': score, 'text': line} for number, line, score in found]
    return {'text': text, 'nearest': nearest}

  def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
    return answer

  # pyrefly: ignore[bad-override]: these answers are no vectors
  def returned(self, answers: list[dict | None]) -> list[dict | None]:
    return answers


OPTIONS = {
  'index': Option(str, 'a file, of whose lines the nearest are the answer'),
  'top_k': TOP_K,
  'keep_index': Option(bool, 'keep its vectors in FILE.vectors.npz, and use those there'),
  'pooling': POOLING,
}
SEARCH = Prediction(Search, options=OPTIONS)


def _read(path: Path, fingerprint: str) -> np.ndarray | None:
  try:
    kept = read_npz(path)
    return kept['vectors'] if str(kept['fingerprint']) == fingerprint else None
  except UNREADABLE:
    return None
