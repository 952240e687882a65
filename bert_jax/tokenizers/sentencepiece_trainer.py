"""Trains SentencePiece models, by Google's library: the same texts give the same bytes."""

import io
import re
from typing import Any

import sentencepiece

from bert_jax.errors import InputError
from bert_jax.tokenizers.language_weights import Texts, WeightedLines
from bert_jax.tokenizers.sentence_piece import SentencePiece

_SLICE = 4096  # characters; SentencePiece leaves out longer lines
_LEFT_OUT = str.maketrans('\0\u2585', '  ')  # SentencePiece leaves out lines with these
_THREADS = 4  # a constant, since unigram's sums depend on how the words are dealt to threads
_RESERVED_IDS = dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1)
_RESERVED = dict(pad_piece='[PAD]', unk_piece='[UNK]', control_symbols=['[CLS]', '[SEP]', '[MASK]'])


def train_sentencepiece(
  texts: Texts,
  *,
  vocab_size: int,
  model_type: str = 'unigram',
  do_lower_case: bool = False,
  character_coverage: float = 0.99999,
  sampling: float = 1.0,
) -> tuple[SentencePiece, dict[str, Any]]:
  """Trains a model of a type, 'unigram' or 'bpe': (it, what was counted on the way).
  The ids are [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, then pieces; no text produces the
  reserved ones. The text is held in memory (46 MB of English: 1.1 GB, half a minute; unigram takes
  five times as long where there are no blanks). sampling: see language_weights.weights; 'shares' is
  the share of the characters that each language then has."""
  if model_type not in ('unigram', 'bpe'):
    raise InputError(f"model_type is '{model_type}'; use 'unigram' or 'bpe'")
  lines = WeightedLines(texts, sampling, _lines)
  model = train_model(
    sentence_iterator=iter(lines),
    vocab_size=vocab_size,
    model_type=model_type,
    character_coverage=character_coverage,
    normalization_rule_name='nmt_nfkc_cf' if do_lower_case else 'nmt_nfkc',
    max_sentence_length=4 * _SLICE,  # bytes
    **_RESERVED_IDS,
    **_RESERVED,
  )
  counts = lines.counts | {'pieces': vocab_size, 'shares': lines.shares}
  return SentencePiece(model), counts


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
    sentence = f'SentencePiece could not train on this corpus: {message.split("] ")[-1].strip()}'
    if match := re.search(r'smaller than required_chars\. \d+ vs (\d+)', message):
      fix = f'use {match[1]} or more, or lower character_coverage'
      sentence = f'{size} cannot hold the characters of the corpus; {fix}'
    if match := re.search(r'set it to a value <= (\d+)', message):
      sentence = f'{size} is more than this corpus supports; use {match[1]} or less'
    raise InputError(sentence) from error
  return model.getvalue()
