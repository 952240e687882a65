"""Trains SentencePiece models, by Google's library: the same texts give the same bytes."""

import io
import re
from pathlib import Path
from typing import Any

import sentencepiece

from bert_jax.errors import InputError
from bert_jax.tokenizers.language_weights import Texts, WeightedLines

_SLICE = 4096  # characters; SentencePiece leaves out longer lines
_LEFT_OUT = str.maketrans('\0\u2585', '  ')  # SentencePiece leaves out lines with these
_THREADS = 4  # a constant, since unigram's sums depend on how the words are dealt to threads
_RESERVED_IDS = dict(
  pad_id=0,
  pad_piece='[PAD]',
  unk_id=1,
  unk_piece='[UNK]',
  bos_id=-1,
  eos_id=-1,
  control_symbols=['[CLS]', '[SEP]', '[MASK]'],  # 2, 3, 4
)


def train_sentencepiece(
  texts: Texts,
  path: str | Path,
  *,
  vocab_size: int,
  model_type: str = 'unigram',
  do_lower_case: bool = False,
  character_coverage: float = 0.99999,
  sampling: float = 1.0,
) -> dict[str, Any]:
  """Writes a SentencePiece model (model_type 'unigram' or 'bpe') and returns what was counted.
  The ids are [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, then pieces; no text produces the
  reserved ones. The text is held in memory (46 MB of English: 1.1 GB, half a minute; unigram takes
  five times as long where there are no blanks). sampling: see language_weights.weights; 'shares' of
  the result is each language's share of the characters after that."""
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
  )
  Path(path).write_bytes(model)
  return lines.counts | {'pieces': vocab_size, 'shares': lines.shares}


def _lines(text: str) -> list[str]:
  """Cuts a text into lines short enough that SentencePiece does not skip them."""
  lines = (line.strip() for line in text.translate(_LEFT_OUT).split('\n'))
  return [line[i : i + _SLICE] for line in lines for i in range(0, len(line), _SLICE)]


def train_model(**settings) -> bytes:
  """Trains a model and returns its bytes; settings: arguments of SentencePieceTrainer.train."""
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      model_writer=model, num_threads=_THREADS, minloglevel=2, **settings
    )
  except RuntimeError as e:
    raise InputError(_explain(str(e), settings['vocab_size'])) from e
  return model.getvalue()


def _explain(message: str, vocab_size: int) -> str:
  """Turns an error of SentencePiece's trainer into a sentence with the fix."""
  if match := re.search(r'smaller than required_chars\. \d+ vs (\d+)', message):
    return (
      f'vocab_size {vocab_size} cannot hold the characters of the corpus; '
      f'use {match[1]} or more, or lower character_coverage'
    )
  if match := re.search(r'set it to a value <= (\d+)', message):
    return f'vocab_size {vocab_size} is more than this corpus supports; use {match[1]} or less'
  return f'SentencePiece could not train on this corpus: {message.split("] ")[-1].strip()}'
