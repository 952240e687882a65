"""The steps of preparing a corpus, and the processes that take them where there is no Beam.

Worker processes import what they run, so it stands here and not in the command's own module.
"""

import collections
import contextlib
import hashlib
import itertools
import json
import multiprocessing
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from typing import Any, NamedTuple

import tqdm

from bert_jax import tokenizers
from bert_jax.corpus import prepared, shards
from bert_jax.corpus.tokenized import size_of
from bert_jax.corpus.units import Encoder
from bert_jax.errors import InputError
from bert_jax.files import Path, names, write_whole
from bert_jax.text import arrow, documents, duplicates, files, record_sources
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
  min_characters: int = 0
  duplicates: str = 'keep'  # or exact, near
  near_threshold: float = 0.8
  shard_mb: int = 64
  skip_damaged: bool = False
  text_encoding: str = ''

  def encoder(self, tokenizer: tokenizers.Tokenizer) -> Encoder:
    """The Encoder of these settings; raises errors in segmenter and lexicons."""
    names = 'segmenter', 'phrases', 'entities', 'text_encoding'
    return Encoder(tokenizer, **{name: getattr(self, name) for name in names})

  @property
  def languages(self) -> tuple[str, ...]:
    return tuple(dict.fromkeys(language for language, _ in self.inputs))

  def file_sizes(self) -> list[int]:
    """The bytes of each input that is a file."""
    return [Path(f).stat().st_size for _, f in self.inputs if not files.is_named(f)]


class Maker:
  """Encodes blocks: maker(language number, block) -> (items, counts). One for each process."""

  def __init__(self, settings: Settings):
    self.settings = settings
    self.read = {'text_field': settings.text_field, 'skip': settings.skip_damaged}
    self.encode = settings.encoder(tokenizers.load_folder(settings.vocab))
    self.serialize = shards.Serializer()
    kind = settings.duplicates
    self.key = duplicates.exact_key if kind != 'keep' else lambda text: 0
    self.signer = duplicates.Signer(settings.near_threshold) if kind == 'near' else None

  def __call__(
    self, language: int, block: documents.Block
  ) -> tuple[list[shards.Item], Counter[str]]:
    counts, kept = Counter(), []
    for document in documents.read_block(block, counts=counts, **self.read):
      if sum(map(len, document.sentences)) < self.settings.min_characters:
        counts['short_documents'] += 1
      else:
        kept.append(document)
    records = self.encode([document.sentences for document in kept], counts)
    pairs = zip(kept, records, strict=True)
    return [self._item(language, *pair) for pair in pairs if pair[1]], counts

  def _item(self, language, document, record):
    name, sentences = document
    whole, size = '\n'.join(sentences), size_of(self.encode.text_of(sentences))
    messages, lengths = self.serialize(name, self.settings.languages[language], record)
    written = record.tokens, messages, lengths, record.sentences
    signature = self.signer.signature(whole) if self.signer else None
    of_text = documents.text_hash(sentences)
    return shards.Item(of_text, language, size, *written, self.key(whole), signature)


def begin(
  settings: Settings, out: Path, by: str = 'processes'
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
  """Writes vocabulary and plan.json: (tokenizer, plan). InputError if another plan is there."""
  tokenizer = tokenizers.load_folder(settings.vocab)
  settings.encoder(tokenizer)  # raises if a lexicon or the segmenter is not there
  plan = _plan(settings, tokenizer, by)
  path, different = out / prepared.PLAN, 'everything'
  if path.is_file():
    earlier = files.json_of(path)
    different = ', '.join(name for name in plan if plan[name] != earlier.get(name))
    if different and (prepared.finished(out) or (out / prepared.META).is_file()):
      fault = f'with other settings ({different}); choose another --out'
      if different == 'block_rows' and different not in earlier:
        fix = 'train on it if it is whole, else choose another --out'
        fault = f'by an earlier version, in blocks of other sizes; {fix}'
      raise InputError(f'{out} was begun {fault}')
    if different:  # before the first whole shard, plan and vocabulary may change
      for name in (*tokenizers.FILES, 'tokenizer_config.json'):
        (out / name).unlink(missing_ok=True)
  elif any(not (x == lock.NAME or re.fullmatch(r'\..*\.tmp', x)) for x in names(out)):
    raise InputError(f'{out} holds other files; give --out a new or an empty folder')
  if different:
    out.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(plan, indent=2, ensure_ascii=False) + '\n')
  if not tokenizers.in_folder(out):
    tokenizer.save(out)
  return tokenizer, plan


def _plan(settings, tokenizer, by):
  """The plan of a corpus, as JSON gives it back; only an equal plan may resume the corpus."""
  inputs = []
  for language, name in settings.inputs:
    size = 1 if files.is_named(name) else Path(name).stat().st_size
    if not size:
      raise InputError(f'{name} is empty; remove it, or write it again')
    if record_sources.has_records(name):
      next(record_sources.blocks(name, settings.split))  # an InputError of a damaged one
    size = arrow.hf_set(name, settings.split)[2] if name.startswith('hf:') else size
    inputs.append((language, name, size))
  digest = lambda path: hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16] if path else ''
  plan = settings._asdict() | {
    'languages': settings.languages,
    'vocabulary': tokenizer.fingerprint,
    'inputs': inputs,
    'lexicons': [digest(settings.phrases), digest(settings.entities)],
    'by': by,
  }
  del plan['vocab']
  for name in ('skip_damaged', 'text_encoding'):
    if not plan[name]:  # as in corpora of earlier versions
      del plan[name]
  sources = [name for _, name in settings.inputs if record_sources.has_records(name)]
  if any(not name.startswith('tfds:') for name in sources):
    plan['block_rows'] = arrow.ROWS  # a corpus goes on after so many blocks
  if settings.encoder(tokenizer).reads_whole:  # those are encoded by sentence
    plan['encoding'] = 'document'
  return json.loads(json.dumps(plan))


_maker: Maker  # of this process, if it is a worker


def _start(settings):
  global _maker
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process' to handle
  threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
  _maker = Maker(settings)


def _end_with(parent):
  parent.join()  # a main process that was killed with -9 cannot end its workers
  os._exit(1)


def _make(language, block):
  return _maker(language, block)


@contextlib.contextmanager
def results(settings: Settings, processes: int, skip: int) -> Iterator[Iterator[tuple[Any, Any]]]:
  """A context with an iterator over (items, counts) of all blocks after the first `skip`."""
  with contextlib.ExitStack() as stack:
    remaining = itertools.islice(_with_bar(settings, stack), skip, None)
    if processes == 1:
      yield itertools.starmap(Maker(settings), remaining)
      return
    context = multiprocessing.get_context('spawn')
    pool = futures.ProcessPoolExecutor(processes, context, _start, (settings,))
    stack.callback(pool.shutdown, wait=False, cancel_futures=True)
    try:
      yield _in_order(pool, remaining, 2 * processes + 1)
    except futures.process.BrokenProcessPool:
      why = 'a worker process was killed, perhaps for lack of memory'
      raise InputError(f'{why}; give the command again with fewer --processes') from None


def _in_order(pool, blocks, ahead):
  """Yields the results of (language number, block) in order, with `ahead` of them in the pool."""
  waiting = collections.deque()
  for pair in blocks:
    waiting.append(pool.submit(_make, *pair))
    if len(waiting) > ahead:
      yield waiting.popleft().result()
  while waiting:
    yield waiting.popleft().result()


def _with_bar(settings, stack):
  """Yields (language number, block) of all inputs, in order, with a bar in MB/s or TFDS rows."""
  size = sum(settings.file_sizes())
  unit: Any = {'unit': 'B', 'unit_scale': True, 'total': size} if size else {'unit': 'row'}
  bar = stack.enter_context(tqdm.tqdm(desc='preparing', disable=None, **unit))
  positions = collections.Counter()  # {file: the position read up to}
  for language, path in settings.inputs:
    how = settings.format, settings.split, settings.text_encoding, settings.text_field
    for block in documents.blocks(path, *how):
      yield settings.languages.index(language), block
      bar.update(block.position - positions[block.path])
      positions[block.path] = block.position
