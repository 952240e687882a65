"""Trains vocabularies of SentencePiece. The same texts give the same bytes."""

import io
from typing import Any

import sentencepiece

from bert_jax.errors import InputError
from bert_jax.tokenizers.language_weights import Texts, WeightedLines
from bert_jax.tokenizers.sentence_piece import model_content
from bert_jax.tokenizers.tokenizer import Tokenizer

_SLICE = 4096  # characters; SentencePiece leaves out longer lines
_LEFT_OUT = str.maketrans('\0\u2585', '  ')  # SentencePiece leaves out lines with these
_THREADS = 4  # a constant, since unigram's sums depend on how the words are dealt to threads


def train_sentencepiece(
  texts: Texts,
  *,
  vocab_size: int,
  model_type: str,
  do_lower_case: bool,
  character_coverage: float,
  sampling: float,
) -> tuple[Tokenizer, dict[str, Any]]:
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
    pad_id=0,
    unk_id=1,
    bos_id=-1,
    eos_id=-1,
    pad_piece='[PAD]',
    unk_piece='[UNK]',
    control_symbols=['[CLS]', '[SEP]', '[MASK]'],
  )
  counts = lines.counts | {'pieces': vocab_size, 'shares': lines.shares}
  return Tokenizer(model_content(model)), counts


def _lines(text: str) -> list[str]:
  """Cuts a text into lines short enough that SentencePiece does not skip them."""
  cut = []
  for line in text.translate(_LEFT_OUT).split('\n'):
    line = line.strip()
    cut += [line[i : i + _SLICE] for i in range(0, len(line), _SLICE)]
  return cut


def train_model(**settings: Any) -> bytes:
  """Trains a model and returns its bytes; settings: arguments of SentencePieceTrainer.train."""
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      **settings, model_writer=model, num_threads=_THREADS, minloglevel=2
    )
  except RuntimeError as error:
    why = str(error).split('] ')[-1].strip()
    raise InputError(
      f'SentencePiece cannot train model.vocab_size (--size) {settings["vocab_size"]} pieces on '
      f'this corpus: {why}'
    ) from error
  return model.getvalue()
