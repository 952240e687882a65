"""Chooses a run's tokenizer: from the weights it starts from, from a file, or a new one."""

import contextlib
import logging
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bert_jax import tokenizers
from bert_jax.errors import InputError
from bert_jax.tokenizers.byte_level import byte_tokenizer
from bert_jax.tokenizers.byte_level_trainer import train_byte_level
from bert_jax.tokenizers.sentencepiece_trainer import train_sentencepiece
from bert_jax.tokenizers.wordpiece import Splitting
from bert_jax.tokenizers.wordpiece_trainer import train_wordpiece

log = logging.getLogger('bert_jax')


def load_or_train(config, folder: str | Path | None, texts: Callable[[], Iterable[str]]):
  """The tokenizer of a run: from the folder it starts from, else tokenizer.path, else a new one.
  texts: returns the texts that a new vocabulary of model.vocab_size pieces is trained on.
  InputError if the folder's vocabulary is not tokenizer.path's, or has not model.vocab_size pieces
  (but released weights may have more rows than pieces)."""
  settings, size = config.tokenizer, config.model.vocab_size
  trains = not (folder or settings.path)
  if trains and settings.kind in ('bytes', 'byte_bpe') and settings.do_lower_case:
    kept = f'tokenizer.kind={settings.kind} keeps capitals'
    raise InputError(f'{kept}; set tokenizer.do_lower_case=false.')

  def from_path():
    return tokenizers.load(settings.path, do_lower_case=settings.do_lower_case)

  if folder:
    tokenizer = tokenizers.load_folder(folder)
    lower = getattr(tokenizer, 'do_lower_case', settings.do_lower_case)
    if lower != settings.do_lower_case:
      log.warning(
        'text is %s, as the vocabulary of %s asks, although tokenizer.do_lower_case is %s',
        'lower-cased' if lower else 'not lower-cased',
        folder,
        settings.do_lower_case,
      )
    if Path(settings.path).is_file() and from_path().fingerprint != tokenizer.fingerprint:
      raise InputError(
        f'tokenizer.path={settings.path} is not the vocabulary of {folder}, whose weights only fit '
        'their own; leave tokenizer.path empty.'
      )
  elif settings.path:
    tokenizer = from_path()
  elif settings.kind == 'bytes':
    tokenizer = byte_tokenizer()
  else:
    tokenizer = _trained(config, texts())
  if folder and tokenizer.vocab_size > size:
    raise InputError(
      f'the vocabulary of {folder} has {tokenizer.vocab_size} pieces and its weights have rows for '
      f'{size}; it is not theirs, so bring theirs back.'
    )
  if tokenizer.vocab_size > size or (tokenizer.vocab_size < size and not folder):
    raise InputError(
      f'the vocabulary has {tokenizer.vocab_size} pieces and model.vocab_size is {size}; set '
      f'--config.model.vocab_size={tokenizer.vocab_size}, or name another tokenizer.path.'
    )
  return tokenizer


def check_path(config):
  """InputError if tokenizer.path names no file. Only for new runs: a resumed run has its vocabulary
  in its workdir."""
  if (path := config.tokenizer.path) and not Path(path).is_file():
    raise InputError(f'tokenizer.path={path} is no file; name a vocab.txt or *.model file.')


def _trained(config, texts):
  """Trains a tokenizer of tokenizer.kind with model.vocab_size pieces."""
  settings, size = config.tokenizer, config.model.vocab_size
  log.info('training a %s vocabulary of %d pieces', settings.kind, size)
  common = {
    'vocab_size': size,
    'character_coverage': settings.character_coverage,
    'sampling': config.corpus.sampling if 'corpus' in config else 1.0,
  }
  names = {'vocab_size': 'model.vocab_size', 'character_coverage': 'tokenizer.character_coverage'}
  with tempfile.TemporaryDirectory() as scratch, arguments_called(names):
    if settings.kind == 'wordpiece':
      path = Path(scratch) / 'vocab.txt'
      splitting = Splitting(settings.do_lower_case)
      counts = train_wordpiece(texts, path, splitting=splitting, **common)
    elif settings.kind == 'byte_bpe':
      path = Path(scratch) / 'tokenizer.json'
      counts = train_byte_level(texts, path, vocab_size=size, sampling=common['sampling'])
    else:
      path = Path(scratch) / 'spm.model'
      common |= {'model_type': settings.kind, 'do_lower_case': settings.do_lower_case}
      counts = train_sentencepiece(texts, path, **common)
    tokenizer = tokenizers.load(path, do_lower_case=settings.do_lower_case)
  log.info('vocabulary: %s', describe(counts))
  return tokenizer


@contextlib.contextmanager
def arguments_called(names):
  """Renames a trainer's arguments in its errors to the user's. names: {argument: field}."""
  try:
    yield
  except InputError as error:
    raise InputError(re.sub('|'.join(names), lambda match: names[match[0]], str(error))) from None


def describe(counts: dict[str, Any]) -> str:
  """The counts of a trainer as text for the log: '12,345 words, ...'."""
  parts = [f'{n:,} {name.replace("_", " ")}' for name, n in counts.items() if name != 'shares']
  shares = counts['shares'] if len(counts['shares']) > 1 else {}
  return ', '.join(parts + [f'{share:.1%} {name}' for name, share in shares.items()])
