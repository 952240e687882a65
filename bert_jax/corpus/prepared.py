"""Reads a prepared corpus: a TFDS dataset, its vocabulary, and an index for planning rows.

  corpus.json      settings, counts, languages, fingerprints; written last, when all is finished
  plan.json        the settings that preparing began with
  vocab.txt, ...   the vocabulary, as Tokenizer.save writes it
  corpus/1.0.0/    `tfds.data_source('corpus', data_dir=FOLDER, split='train')`: the records, in
                   shards train-00000.array_record, ...
  index/           00000.npz, ...: for each shard, what planning rows needs to know; blocks.*: that
                   index again, in the parts by which a large corpus is read (blocks.py; optional)

A record, as shards.py writes it, is a document, or 2,048 tokens of a longer one: {name, language,
tokens int32, sentences int32 (tokens of each that begins here), starts uint8 (see units.py)}.
"""

import functools
import itertools
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from bert_jax.buckets import Bucket
from bert_jax.copies import fetched
from bert_jax.corpus.tokenized import Corpus, DamagedRecord, Piece, digest_of
from bert_jax.errors import InputError, first_line
from bert_jax.files import UNREADABLE, Path, names, read_npz, seal
from bert_jax.text import files, tfds
from bert_jax.text.values import json_value
from bert_jax.tokenizers import Tokenizer

META, PLAN = 'corpus.json', 'plan.json'
AGAIN = 'run the prepare that made the corpus again'
DAMAGED = 'is damaged; bring it back, or delete it and run the prepare that made the corpus again'
KEYS = {'vocabulary', 'languages', 'fingerprint', 'shards', 'records', 'counts', 'kept'}
CACHE_TOKENS = 64_000_000  # tokens of recently read records that stay in memory, in 5 bytes each
RECORD_TOKENS = 120  # tokens that take as much memory as the Python objects of a record, 600 bytes
OPEN_SHARDS = 64  # the most shards that a Reader keeps open
COPIED_AT_ONCE = threading.Semaphore(8)  # shards that are copied from a bucket at the same time
INDEX = (  # arrays of each shard's index; all but `hashes` are int32
  'sentences',  # tokens of each sentence
  'document_sentences',  # sentences of each document
  'document_records',  # records of each document
  'record_tokens',  # tokens of each record
  'languages',  # number of each document's language
  'hashes',  # uint32, documents.text_hash of each
)
SIZES = ('characters', 'bytes')  # int32, of each document's text; older corpora lack them


def shard_paths(folder: Path, number: int) -> tuple[Path, Path]:
  """(path of the records, path of the index) for a shard."""
  records = data_folder(folder) / f'train-{number:05d}.array_record'
  return records, folder / 'index' / f'{number:05d}.npz'


def data_folder(folder: Path) -> Path:
  return folder / 'corpus' / '1.0.0'


def features() -> Any:
  """The TFDS features of a record: the names and types of its fields."""
  from tensorflow_datasets import features as tfds

  array = {'shape': (None,), 'encoding': tfds.Encoding.BYTES}  # which numpy reads at once
  types = {'tokens': np.int32, 'sentences': np.int32, 'starts': np.uint8}
  arrays = {name: tfds.Tensor(dtype=dtype, **array) for name, dtype in types.items()}
  return tfds.FeaturesDict({'name': tfds.Text(), 'language': tfds.Text(), **arrays})


def read_index(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """Reads a shard's index: ({fact: value}, {name: array})."""
  try:
    arrays = read_npz(path)
    return json_value(arrays.pop('facts').tobytes()), arrays
  except (*UNREADABLE, MemoryError) as error:
    raise InputError(f'{path} is damaged ({first_line(error)}); prepare the corpus anew') from error


def finished(folder: Path) -> int:
  """The number of finished shards of a corpus, counted from the first."""
  is_there = lambda number: all(path.is_file() for path in shard_paths(folder, number))
  return next(number for number in itertools.count() if not is_there(number))


def is_prepared(spec: str) -> bool:
  """Whether a spec is the folder of a prepared corpus, finished or not."""
  return bool(spec) and any(files.exists(Path(spec) / name) for name in (META, PLAN))


def read_meta(folder: Path | str, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
  """The content of a finished corpus.json; InputError if damaged or of another vocabulary."""
  path = Path(folder).expanduser() / META
  if not path.is_file():
    raise InputError(f'{folder} is not finished; run the bert_jax.tools.prepare that made it again')
  meta = files.json_of(path)
  if 'seal' in meta:
    is_whole = meta['seal'] == seal(meta)
  else:  # an older version: it holds what plan.json says, and its own keys
    plan = files.json_of(path.with_name(PLAN))
    is_whole = meta == meta | plan and meta.keys() == KEYS | (plan or meta).keys()
    is_whole = is_whole and set(meta['kept']) == set(meta['languages'])
  if not is_whole:
    raise InputError(f'{path} {DAMAGED}')
  if tokenizer is not None and tokenizer.fingerprint != meta['vocabulary']:
    advice = 'prepare it again with --vocab, or begin from weights with its vocabulary'
    raise InputError(f'{folder} was prepared with another vocabulary than this run has; {advice}')
  return meta


def fingerprint(plan: Mapping[str, Any], facts: Iterable[Mapping[str, Any]]) -> str:
  """The fingerprint of a corpus, from the plan (or corpus.json) and the facts of its shards."""
  made = [plan['vocabulary'], [of_shard['sha256'] for of_shard in facts]]
  return digest_of([json.dumps(made + [plan[name] for name in ('encoding',) if name in plan])])


class Prepared(NamedTuple):
  """An opened prepared corpus."""

  corpus: Corpus
  languages: np.ndarray  # [documents] number of the document's language in meta['languages']
  unigrams: np.ndarray  # [languages, vocab_size] int64


def load(folder: Path | str, tokenizer: Tokenizer) -> Prepared:
  """Opens a prepared corpus: its index in memory, its records on disk. InputError if damaged."""
  folder = Path(folder).expanduser()
  meta = read_meta(folder, tokenizer)
  read = [read_index(shard_paths(folder, number)[1]) for number in range(meta['shards'])]
  all_facts, indexes = [facts for facts, _ in read], [arrays for _, arrays in read]
  if fingerprint(meta, all_facts) != meta['fingerprint']:
    raise InputError(f'{folder / META} {DAMAGED}')
  names = {*INDEX, *SIZES}.intersection(*indexes)
  joined = {name: np.concatenate([index[name] for index in indexes]) for name in names}
  unigrams = np.zeros((len(meta['languages']), tokenizer.vocab_size), np.int64)
  for facts, arrays in read:
    unigrams[facts['unigram_languages']] += arrays['unigrams']
  records = Reader(folder, [facts['records'] for facts in all_facts])
  corpus = corpus_of(records, np.arange(records.ends[-1]), joined, meta['fingerprint'])
  return Prepared(corpus, joined['languages'], unigrams)


def corpus_of(
  read: Callable[[int], Piece],
  records: np.ndarray,
  index: Mapping[str, np.ndarray],
  fingerprint: str,
) -> Corpus:
  """The Corpus of some records, by the arrays of their index."""
  there = index.keys() >= {*SIZES}
  sizes = np.stack([index[name] for name in SIZES], axis=1) if there else None
  tokens, sentences = index['record_tokens'], index['sentences']
  documents, hashes = index['document_sentences'], index['hashes'].view(np.uint32)
  return Corpus(read, records, tokens, sentences, documents, fingerprint, sizes, hashes)


class Reader:
  """Reads records by number, of which recent ones are kept. records: how many each shard has.
  room: how many tokens are kept, with RECORD_TOKENS more for each record."""

  def __init__(self, folder: Path, records: Iterable[int]):
    self.ends = np.cumsum([0, *records])  # number of each shard's first record, and the total
    self.paths = [shard_paths(folder, k)[0] for k in range(len(self.ends) - 1)]
    present = set(names(data_folder(folder)))  # one look for all shards
    if missing := [path for path in self.paths if path.name not in present]:
      raise InputError(f'{missing[0]} is missing; prepare the corpus again')
    if 'features.json' in present:  # which others read
      try:
        with tfds.features_of(data_folder(folder)) as reader:
          reader.from_config(str(fetched(data_folder(folder) / 'features.json').parent))
      except InputError:
        raise
      except Exception as error:  # TFDS raises a dozen unrelated types
        fault = f'features.json in {data_folder(folder)} is damaged ({first_line(error)})'
        raise InputError(f'{fault}; prepare the corpus again') from error
    self.features = features()
    self._opened = functools.lru_cache(OPEN_SHARDS)(self._open)
    self.cache, self.cached_tokens, self.room = OrderedDict(), 0, CACHE_TOKENS
    self.lock = threading.Lock()  # batches are made in a thread of their own
    self.copies: dict[int, Future] = {}  # of shards that are expected

  def __call__(self, record: int) -> Piece:
    with self.lock:
      if record not in self.cache:
        return self._read(record)
      self.cache.move_to_end(record)
      return self.cache[record]

  def _read(self, record):
    shard = int(self.ends.searchsorted(record, side='right')) - 1
    try:
      (message,) = self._opened(shard).read([record - int(self.ends[shard])])
      row = self.features.deserialize_example_np(message)
      tokens, starts = row['tokens'], row['starts']
      if tokens is None or starts is None:  # a file cut at ArrayRecord's blocks gives such rows
        raise ValueError('the file is truncated')
    except Exception as error:
      if isinstance(error, OSError) and isinstance(self.paths[shard], Bucket):
        raise  # it cannot be read now, and is not damaged
      where = f'{self.paths[shard]}: record {record - self.ends[shard]}'
      away = f'delete that file and {META}, and {AGAIN}'
      raise DamagedRecord(f'{where} is damaged ({first_line(error)}); {away}') from error
    self.cache[record] = tokens, starts
    self.cached_tokens += len(tokens) + RECORD_TOKENS
    while self.cached_tokens > self.room:
      self.cached_tokens -= len(self.cache.popitem(last=False)[1][0]) + RECORD_TOKENS
    return tokens, starts

  def _open(self, shard: int) -> Any:
    from array_record.python.array_record_module import ArrayRecordReader

    copy = self.copies.pop(shard, None)
    path = copy.result() if copy else fetched(self.paths[shard])
    settings = dict(options='readahead_buffer_size:0', file_reader_buffer_size=32768)
    return ArrayRecordReader(str(path), **settings)

  def expect(self, shard: int) -> None:
    """Begins to copy a shard from a bucket, in a thread of its own, before it is read."""
    if shard in self.copies or not isinstance(self.paths[shard], Bucket):
      return
    copy = self.copies[shard] = Future()

    def make():
      with COPIED_AT_ONCE:
        try:
          copy.set_result(fetched(self.paths[shard]))
        except Exception as error:
          copy.set_exception(error)

    threading.Thread(target=make, daemon=True).start()  # a process that ends does not wait for it
