"""The steps of preparing a corpus, and the processes that take them where there is no Beam.

Worker processes import what they run, so it stands here and not in the command's own module.
"""

import collections
import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import tqdm

from bert_jax import tokenizers
from bert_jax.corpus import store
from bert_jax.corpus.shards import Item
from bert_jax.corpus.tokenized import digest_of, size_of
from bert_jax.corpus.units import Marker
from bert_jax.errors import InputError
from bert_jax.files import Path, names, write_whole
from bert_jax.text import arrow, documents, duplicates, files
from bert_jax.workdir import lock


class Settings(NamedTuple):
  """The settings of a corpus: what its records depend on."""

  inputs: tuple[tuple[str, str], ...]  # (language or '', file), in order
  vocab: str  # folder
  format: str = 'auto'
  text_field: str = 'text'
  split: str = 'train'
  segmenter: str = ''
  phrases: str = ''
  entities: str = ''
  duplicates: str = 'keep'  # or exact, near
  shard_mb: int = 64
  skip_damaged: bool = False
  text_encoding: str = ''

  def marker(self, tokenizer: tokenizers.Tokenizer) -> Marker:
    """The Marker of these settings; raises errors in segmenter and lexicons."""
    return Marker(
      tokenizer,
      segmenter=self.segmenter,
      phrases=self.phrases,
      entities=self.entities,
      text_encoding=self.text_encoding,
    )

  def portions(self, path: str) -> Iterator[documents.Portion]:
    """Cuts an input into portions of whole documents."""
    return documents.portions(path, self.format, self.split, self.text_encoding, self.text_field)

  @property
  def languages(self) -> tuple[str, ...]:
    return tuple(dict.fromkeys(language for language, _ in self.inputs))

  def file_sizes(self) -> list[int]:
    """The bytes of each input that is a file."""
    return [Path(f).stat().st_size for _, f in self.inputs if not files.is_named(f)]


class Maker:
  """Encodes portions: maker(language number, portion) -> (items, counts). One for each process."""

  def __init__(self, settings: Settings):
    self.settings = settings
    self.encode = settings.marker(tokenizers.load_folder(settings.vocab))
    self.signer = None
    if settings.duplicates == 'near':
      self.signer = duplicates.Signer()

  def __call__(self, language: int, portion: documents.Portion) -> tuple[list[Item], Counter[str]]:
    counts, kept = Counter(), []
    text_field, skip = self.settings.text_field, self.settings.skip_damaged
    for document in documents.read_portion(portion, text_field, counts, skip):
      kept.append(document.sentences)
    items = []
    for sentences, record in zip(kept, self.encode(kept, counts), strict=True):
      if record is not None:
        items.append(self._item(language, sentences, record))
    return items, counts

  def _item(self, language, sentences, record):
    whole = '\n'.join(sentences)
    size = size_of(self.encode.text_of(sentences))
    tokens, parts = len(record.tokens), len(record.sentences)
    return Item(
      record=record,
      facts=(tokens, parts, *size, documents.text_hash(sentences), language),
      key=0 if self.settings.duplicates == 'keep' else duplicates.exact_key(whole),
      signature=self.signer.signature(whole) if self.signer else None,
    )


def begin(
  settings: Settings, out: Path, by: str = 'processes'
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
  """Writes vocabulary and plan.json: (tokenizer, plan). InputError if another plan is there."""
  tokenizer = tokenizers.load_folder(settings.vocab)
  settings.marker(tokenizer)  # raises if a lexicon or the segmenter is not there
  plan = _plan(settings, tokenizer, by)
  path = out / store.PLAN
  if path.is_file():
    earlier = files.json_of(path)
    different = [name for name in plan if plan[name] != earlier.get(name)]
    if different:
      raise InputError(
        f'{out} was begun with other settings ({", ".join(different)}); choose another --out, or '
        'remove it'
      )
  else:
    others = [name for name in names(out) if not name.startswith('.') and name != lock.NAME]
    if others:
      raise InputError(f'{out} holds other files; give --out a new or an empty folder')
    out.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(plan, indent=2, ensure_ascii=False) + '\n')
  if not tokenizers.in_folder(out):
    tokenizer.save(out)
  return tokenizer, plan


def _plan(settings: Settings, tokenizer: tokenizers.Tokenizer, by: str) -> dict[str, Any]:
  """The plan of a corpus, as JSON gives it back; only an equal plan may resume the corpus."""
  inputs = []
  for language, name in settings.inputs:
    size = 1 if files.is_named(name) else Path(name).stat().st_size
    if not size:
      raise InputError(f'{name} is empty; remove it, or write it again')
    if name.startswith('hf:'):
      size = arrow.hf_set(name, settings.split)[2]
    inputs.append((language, name, size))
  plan = settings._asdict() | {
    'languages': settings.languages,
    'vocabulary': tokenizer.fingerprint,
    'inputs': inputs,
    'lexicons': [_digest_of_file(settings.phrases), _digest_of_file(settings.entities)],
    'by': by,
  }
  del plan['vocab']
  return json.loads(json.dumps(plan))


def _digest_of_file(path: str) -> str:
  return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16] if path else ''


_maker: Maker  # of this process, if it is a worker


def _start(settings):
  global _maker
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process' to handle
  threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
  _maker = Maker(settings)


def _end_with(parent):
  parent.join()  # a main process that was killed with -9 cannot end its workers
  os._exit(1)


def _make(language, portion):
  return _maker(language, portion)


class Made(NamedTuple):
  """What is made of a portion of text."""

  items: list[Item]
  counts: Counter[str]
  portion: str  # digest of the text


@contextlib.contextmanager
def results(settings: Settings, processes: int, done: Sequence[str]) -> Iterator[Iterator[Made]]:
  """A context with an iterator over what is made of all portions but the first ones. done: the
  digests of those; InputError if their text has changed."""
  with contextlib.ExitStack() as stack:
    portions = _with_bar(settings, stack)
    for digest in done:
      if next((of_portion for _, _, of_portion in portions), '') != digest:
        raise InputError(
          'the text is not what it was when this corpus was begun; choose another --out'
        )
    if processes == 1:
      maker = Maker(settings)
      yield (Made(*maker(language, portion), digest) for language, portion, digest in portions)
      return
    context = multiprocessing.get_context('spawn')
    pool = futures.ProcessPoolExecutor(processes, context, _start, (settings,))
    stack.callback(pool.shutdown, wait=False, cancel_futures=True)
    try:
      yield _in_order(pool, portions, 2 * processes + 1)
    except futures.process.BrokenProcessPool:
      raise InputError(
        'a worker process was killed, perhaps for lack of memory; give the command again with '
        'fewer --processes'
      ) from None


Portions = Iterable[tuple[int, documents.Portion, str]]  # language number, portion, its digest


def _in_order(pool: futures.Executor, portions: Portions, ahead: int) -> Iterator[Made]:
  """Yields the results of portions in order, with `ahead` of them in the pool."""
  waiting = collections.deque()
  for language, portion, digest in portions:
    waiting.append((pool.submit(_make, language, portion), digest))
    if len(waiting) > ahead:
      result, digest = waiting.popleft()
      yield Made(*result.result(), digest)
  for result, digest in waiting:
    yield Made(*result.result(), digest)


def _with_bar(settings: Settings, stack: contextlib.ExitStack) -> Iterator[Any]:
  """Yields the portions of all inputs (see Portions), with a bar in MB/s or TFDS rows."""
  size = sum(settings.file_sizes())
  bar = tqdm.tqdm(
    desc='preparing',
    disable=None,
    unit='B' if size else 'row',
    unit_scale=bool(size),
    total=size or None,
  )
  stack.callback(bar.close)
  for language, path in settings.inputs:
    position = 0
    for portion in settings.portions(path):
      digest = digest_of([portion.format, str(portion.first), portion.data])
      yield settings.languages.index(language), portion, digest
      bar.update(portion.position - position)
      position = portion.position
