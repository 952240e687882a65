"""Reads SentencePiece's `*.model` files, and trains them: the same texts give the same bytes."""

import hashlib
import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_pb2  # which defines its classes when it is imported

from bert_jax.errors import InputError
from bert_jax.text import protobuf
from bert_jax.text.sentences import UNSPACED
from bert_jax.tokenizers.base import Encoding, Tokenizer, checked
from bert_jax.tokenizers.language_weights import Texts, WeightedLines

_TRAINER, _BLANK_IS_SUFFIX = 2, 24  # field numbers in sentencepiece_model.proto
_SLICE = 4096  # characters; SentencePiece leaves out longer lines
_LEFT_OUT = str.maketrans('\0\u2585', '  ')  # SentencePiece leaves out lines with these
_THREADS = 4  # a constant, since unigram's sums depend on how the words are dealt to threads
_RESERVED: dict[str, Any] = dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece='[PAD]')
_RESERVED |= dict(unk_piece='[UNK]', control_symbols=['[CLS]', '[SEP]', '[MASK]'])


class SentencePiece(Tokenizer):
  """A tokenizer of a model trained by `sentencepiece`, which includes normalisation and casing.
  Offsets leave out the space that is part of a word, so a lone '▁', that space, has empty ones."""

  def __init__(self, model: bytes, *, source: str = 'the model'):
    self._library = processor(model, source)
    pieces = [self._library.id_to_piece(i) for i in range(self._library.get_piece_size())]
    super().__init__(pieces, hashlib.sha256(model).hexdigest(), source)
    trainer = dict(protobuf.fields(protobuf.messages(model).get(_TRAINER, b'')))
    self._suffix = suffix = bool(trainer.get(_BLANK_IS_SUFFIX))  # treat_whitespace_as_suffix
    first, last = ('', '▁') if suffix else ('▁', '')
    # In scripts without blanks each piece is a word.
    begins, ends = re.compile(f'[{first}{UNSPACED}]'), re.compile(f'[{last}{UNSPACED}]$')
    self._begins_word = np.array([bool(begins.match(piece)) for piece in pieces])
    self._ends_word = np.array([bool(ends.search(piece)) for piece in pieces])
    self._blank = np.array([piece == '▁' and not suffix for piece in pieces])
    for i in (self.pad_id, self.cls_id, self.sep_id, self.mask_id):
      if not self._library.is_control(i):
        fault = f'{source} has {pieces[i]} as a piece that text could produce'
        raise InputError(f'{fault}; train it with --control_symbols')

  def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
    texts = checked(texts)
    protos = self._library.encode(texts, out_type='serialized_proto')
    return list(map(self._encoding, texts, protos))

  def _encoding(self, text: str, proto: bytes) -> Encoding:
    pieces = sentencepiece_pb2.SentencePieceText.FromString(proto).pieces  # pyrefly: ignore[missing-attribute]
    spans = np.array([(p.begin, p.end) for p in pieces], np.int32).reshape(-1, 2)
    utf8 = np.frombuffer(text.encode(), np.uint8)
    offsets = np.cumsum(np.append(0, (utf8 & 0xC0) != 0x80), dtype=np.int32)[spans]
    if self._suffix:
      blanks = [len(p.surface.rstrip()) - len(p.surface) for p in pieces]
    else:
      blanks = [len(p.surface) - len(p.surface.lstrip()) for p in pieces]
    offsets[:, int(self._suffix)] += np.array(blanks, np.int32)
    return self.encoding([p.id for p in pieces], offsets)

  def ids_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [np.array(ids, np.int32) for ids in self._library.encode(checked(texts), out_type=int)]

  def files(self) -> dict[str, bytes]:
    return {'spm.model': self._library.serialized_model_proto()}


def processor(model: bytes, source: str) -> Any:
  """The library's reader of a model; InputError if the bytes are none."""
  try:
    return sentencepiece.SentencePieceProcessor(model_proto=model)
  except RuntimeError as e:
    raise InputError(f'{source} is not a SentencePiece model; is it damaged or cut off?') from e


def train_sentencepiece(
  texts: Texts,
  *,
  vocab_size: int,
  model_type: str,
  do_lower_case: bool,
  character_coverage: float,
  sampling: float,
) -> tuple[SentencePiece, dict[str, Any]]:
  """Trains a model of a type, 'unigram' or 'bpe': (it, what was counted on the way).
  The ids are [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, then pieces; no text produces the
  reserved ones. The text is held in memory (46 MB of English: 1.1 GB, half a minute; unigram takes
  five times as long where there are no blanks). sampling: see language_weights.weights."""
  lines = WeightedLines(texts, sampling, _lines)
  model = train_model(
    sentence_iterator=iter(lines),
    vocab_size=vocab_size,
    model_type=model_type,
    character_coverage=character_coverage,
    normalization_rule_name='nmt_nfkc_cf' if do_lower_case else 'nmt_nfkc',
    max_sentence_length=4 * _SLICE,  # bytes
    **_RESERVED,
  )
  return SentencePiece(model), lines.counts | {'pieces': vocab_size, 'shares': lines.shares}


def _lines(text: str) -> list[str]:
  """Cuts a text into lines short enough that SentencePiece does not skip them."""
  lines = (line.strip() for line in text.translate(_LEFT_OUT).split('\n'))
  return [line[i : i + _SLICE] for line in lines for i in range(0, len(line), _SLICE)]


def train_model(**settings: Any) -> bytes:
  """Trains a model and returns its bytes; settings: arguments of SentencePieceTrainer.train."""
  model = io.BytesIO()
  settings |= dict(model_writer=model, num_threads=_THREADS, minloglevel=2)
  try:
    sentencepiece.SentencePieceTrainer.train(**settings)
  except RuntimeError as error:
    message, size = str(error), f'vocab_size {settings["vocab_size"]}'
    if match := re.search(r'smaller than required_chars\. \d+ vs (\d+)', message):
      fault = f'{size} cannot hold the characters of the corpus'
      raise InputError(f'{fault}; use {match[1]} or more, or lower character_coverage') from error
    if match := re.search(r'set it to a value <= (\d+)', message):
      fault = f'{size} is more than this corpus supports; use {match[1]} or less'
      raise InputError(fault) from error
    why = message.split('] ')[-1].strip()
    raise InputError(f'SentencePiece could not train on this corpus: {why}') from error
  return model.getvalue()
