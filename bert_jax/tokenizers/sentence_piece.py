"""SentencePiece tokenizers: Google's `*.model` files, by Google's library."""

import hashlib
import re
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_pb2  # which defines its classes when it is imported

from bert_jax.errors import InputError
from bert_jax.text.sentences import UNSPACED
from bert_jax.tokenizers.base import Encoding, Tokenizer, checked

_BEGINS_WORD = re.compile(f'[▁{UNSPACED}]')
_UNSPACED_END = re.compile(f'[{UNSPACED}]$')


class SentencePiece(Tokenizer):
  """A tokenizer of a model trained by `sentencepiece`, which includes normalisation and casing.
  Offsets leave out the space before a word, so a lone '▁', which is that space, has empty ones."""

  def __init__(self, model: bytes, *, source: str = 'the model'):
    try:
      self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as e:
      raise InputError(f'{source} is not a SentencePiece model; is it damaged or cut off?') from e
    pieces = [self._model.id_to_piece(i) for i in range(self._model.get_piece_size())]
    super().__init__(pieces, hashlib.sha256(model).hexdigest(), source)
    # In scripts without blanks each piece is a word.
    self._begins_word = np.array([bool(_BEGINS_WORD.match(piece)) for piece in pieces])
    self._ends_word = np.array([bool(_UNSPACED_END.search(piece)) for piece in pieces])
    self._blank = np.array([piece == '▁' for piece in pieces])
    for i in (self.pad_id, self.cls_id, self.sep_id, self.mask_id):
      if not self._model.is_control(i):
        fault = f'{source} has {pieces[i]} as an ordinary piece, which text could produce'
        raise InputError(f'{fault}; train it with --control_symbols instead')

  def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
    texts = checked(texts)
    return list(map(self._encoding, texts, self._model.encode(texts, out_type='serialized_proto')))

  def _encoding(self, text: str, proto: bytes) -> Encoding:
    pieces = sentencepiece_pb2.SentencePieceText.FromString(proto).pieces  # pyrefly: ignore[missing-attribute]
    spans = np.array([(p.begin, p.end) for p in pieces], np.int32).reshape(-1, 2)
    utf8 = np.frombuffer(text.encode(), np.uint8)
    offsets = np.cumsum(np.append(0, (utf8 & 0xC0) != 0x80), dtype=np.int32)[spans]
    offsets[:, 0] += np.array([len(p.surface) - len(p.surface.lstrip()) for p in pieces], np.int32)
    return self.encoding([p.id for p in pieces], offsets)

  def ids_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [np.array(ids, np.int32) for ids in self._model.encode(checked(texts), out_type=int)]

  def decode(self, ids: Iterable[int]) -> str:
    return self._decoded(ids, self._model.decode)

  def files(self) -> dict[str, bytes]:
    return {'spm.model': self._model.serialized_model_proto()}
