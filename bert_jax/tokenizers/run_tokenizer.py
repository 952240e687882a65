"""Chooses a run's tokenizer: from the weights it starts from, from a file, or a new one."""

from collections.abc import Callable, Iterable
from typing import Any

from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.errors import InputError, log
from bert_jax.files import Path
from bert_jax.tokenizers.byte_level import byte_tokenizer, train_byte_level
from bert_jax.tokenizers.language_weights import Texts
from bert_jax.tokenizers.sentence_piece_trainer import train_sentencepiece
from bert_jax.tokenizers.splitting import Splitting
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.wordpiece_trainer import train_wordpiece


def load_or_train(
  config: ConfigDict, folder: str | Path | None, texts: Callable[[], Iterable[str]]
) -> Tokenizer:
  """The tokenizer of a run: from the folder it starts from, else tokenizer.path, else one trained
  on texts(). InputError if the folder's vocabulary is not tokenizer.path's, or has not
  model.vocab_size pieces (but released weights may have more rows than pieces)."""
  settings, size = config.tokenizer, config.model.vocab_size
  named = None
  if settings.path and (not folder or Path(settings.path).is_file()):
    named = tokenizers.load(settings.path, do_lower_case=settings.do_lower_case)
  if folder:
    tokenizer = tokenizers.load_folder(folder)
    if named and named.fingerprint != tokenizer.fingerprint:
      raise InputError(f'tokenizer.path is not the vocabulary of {folder}; leave it empty.')
    check_fits(tokenizer, config.model, folder)
    return tokenizer
  if named:
    tokenizer = named
    if not config.model.causal:
      tokenizer.check_encloses()
  elif settings.kind in ('bytes', 'byte_bpe') and settings.do_lower_case:
    raise InputError(
      f'tokenizer.kind={settings.kind} keeps capitals; set tokenizer.do_lower_case=false.'
    )
  elif settings.kind == 'bytes':
    tokenizer = byte_tokenizer()
  else:
    log.info('training a %s vocabulary of %d pieces', settings.kind, size)
    tokenizer, counts = train(
      settings.kind,
      texts(),
      vocab_size=size,
      splitting=Splitting.of(settings),
      character_coverage=settings.character_coverage,
      sampling=config.corpus.sampling if 'corpus' in config else 1.0,
    )
    log.info('vocabulary: %s', describe(counts))
  if tokenizer.vocab_size != size:
    raise InputError(
      f'the vocabulary has {tokenizer.vocab_size} pieces and model.vocab_size is {size}; '
      f'set model.vocab_size={tokenizer.vocab_size}.'
    )
  return tokenizer


def check_fits(tokenizer: Tokenizer, model: ConfigDict, folder: str | Path) -> None:
  """InputError if a vocabulary has more pieces than weights have rows, or less than half of them,
  or an encoder's texts are not enclosed as here."""
  pieces, rows = tokenizer.vocab_size, model.vocab_size
  if not rows / 2 <= pieces <= rows:
    raise InputError(
      f'the vocabulary of {folder} has {pieces} pieces and its weights have {rows} rows; '
      'it is cut off, or not theirs: bring theirs back.'
    )
  if not model.causal:
    tokenizer.check_encloses()


def check_path(config: ConfigDict) -> None:
  """InputError if tokenizer.path of a new run names no file."""
  path = config.tokenizer.path
  if path and not Path(path).is_file():
    raise InputError(f'tokenizer.path={path} is no file; name a vocab.txt or *.model file.')


def train(
  kind: str,
  texts: Texts,
  *,
  vocab_size: int,
  splitting: Splitting,
  character_coverage: float,
  sampling: float,
) -> tuple[Tokenizer, dict[str, Any]]:
  """Trains a kind of vocabulary: (the tokenizer, counts)."""
  if kind == 'byte_bpe':
    return train_byte_level(texts, vocab_size=vocab_size, sampling=sampling)
  if kind == 'wordpiece':
    return train_wordpiece(
      texts,
      vocab_size=vocab_size,
      splitting=splitting,
      character_coverage=character_coverage,
      sampling=sampling,
    )
  return train_sentencepiece(
    texts,
    vocab_size=vocab_size,
    model_type=kind,
    do_lower_case=splitting.do_lower_case,
    character_coverage=character_coverage,
    sampling=sampling,
  )


def describe(counts: dict[str, Any]) -> str:
  """The counts of a trainer as text for the log: '12,345 words, ...'."""
  parts = [f'{n:,} {name.replace("_", " ")}' for name, n in counts.items() if name != 'shares']
  if len(counts['shares']) > 1:
    parts += [f'{share:.1%} {name}' for name, share in counts['shares'].items()]
  return ', '.join(parts)
