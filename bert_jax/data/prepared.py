"""A prepared corpus: a folder with a TFDS dataset, its vocabulary, and an index for planning rows.

  corpus.json      settings, counts, languages, fingerprints; written last: it makes a corpus whole
  plan.json        the settings it was begun with
  vocab.txt, ...   the vocabulary, as Tokenizer.save writes it
  corpus/1.0.0/    `tfds.data_source('corpus', data_dir=FOLDER, split='train')`: the records, in
                   shards train-00000.array_record, ...
  index/           00000.npz, ...: for each shard, what planning rows needs to know

A record is a document or, of a long one, 2,048 tokens of it: {name, language, tokens int32,
sentences int32 (tokens of each that begins here), starts uint8 (see records.py)}.
"""

import hashlib
import json
import logging
import zipfile
import zlib
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config import InputError, write_whole
from bert_jax.data.corpus import Corpus, DamagedRecord, offsets
from bert_jax.data.text import name_hash

log = logging.getLogger('bert_jax')

RECORD_TOKENS = 2048  # a row that is not in memory reads and decodes this much
META, PLAN = 'corpus.json', 'plan.json'
CACHE_TOKENS = 50_000_000  # 5 bytes each, of records read lately
_INDEX = (
  'sentences',
  'document_sentences',
  'document_records',
  'record_tokens',
  'languages',
  'names',
)


class Item(NamedTuple):
  """A document ready to be written."""

  name: str
  language: int  # number in the corpus' list of languages
  text_bytes: int
  tokens: np.ndarray  # [n] int32
  records: list[bytes]
  record_tokens: list[int]
  sentences: np.ndarray  # [sentences] int32, tokens of each
  key: int  # of its text; equal for equal texts
  signature: np.ndarray | None  # for near-duplicates


def features():
  import tensorflow_datasets as tfds

  def array(dtype):  # bytes: read by numpy in one go
    return tfds.features.Tensor(shape=(None,), dtype=dtype, encoding=tfds.features.Encoding.BYTES)

  return tfds.features.FeaturesDict(
    {
      'name': tfds.features.Text(),
      'language': tfds.features.Text(),
      'tokens': array(np.int32),
      'sentences': array(np.int32),
      'starts': array(np.uint8),
    }
  )


class Serializer:
  """Record -> bytes of tf.train.Example messages, the same in every process."""

  def __init__(self):
    from tensorflow_datasets.core import example_serializer

    self.features = features()
    self.serializer = example_serializer.ExampleSerializer(self.features.get_serialized_info())

  def __call__(self, name, language, record):
    """(messages, tokens in each): a long document becomes several."""
    begins = offsets(record.sentences)[:-1]
    messages, sizes = [], []
    for start in range(0, len(record.tokens), RECORD_TOKENS):
      part = slice(start, start + RECORD_TOKENS)
      own = (begins >= start) & (begins < start + RECORD_TOKENS)
      example = self.features.encode_example(
        {
          'name': name,
          'language': language,
          'tokens': record.tokens[part],
          'sentences': record.sentences[own],
          'starts': record.starts[part],
        }
      )
      message = self.serializer.get_tf_example(example)
      messages.append(message.SerializeToString(deterministic=True))  # maps have no order otherwise
      sizes.append(len(record.tokens[part]))
    return messages, sizes


class Shard:
  """One shard being written: invisible until `close`, which makes it whole."""

  def __init__(self, folder, number, vocab_size):
    from array_record.python import array_record_module

    self.path, self.index_path = shard_paths(folder, number)
    for path in (self.path, self.index_path):
      path.parent.mkdir(parents=True, exist_ok=True)
    self.scratch = self.path.with_name(f'.{self.path.name}.tmp')
    self.writer = array_record_module.ArrayRecordWriter(str(self.scratch), 'group_size:1')
    self.vocab_size = vocab_size
    self.items = {name: [] for name in _INDEX}
    self.unigrams = {}  # {language: [vocab_size]}
    self.counts = Counter()
    self.by_language = {}  # {language: Counter}
    self.digest = hashlib.sha256()
    self.blocks = 0

  def add(self, items, counts, seen):
    """Adds a block: its items but those that `seen` (duplicates.Seen or None) knows; counts."""
    self.blocks += 1
    self.counts.update(counts)
    for item in items:
      duplicate = '' if seen is None else seen.is_duplicate(item.key, item.signature)
      if duplicate:
        self.counts[f'{duplicate}_duplicates'] += 1
      else:
        self.write(item)

  def write(self, item):
    try:
      for message in item.records:
        self.writer.write(message)
        self.digest.update(message)
    except Exception as error:
      raise self._unwritten(error) from error
    self.items['sentences'].append(item.sentences)
    self.items['document_sentences'].append([len(item.sentences)])
    self.items['document_records'].append([len(item.records)])
    self.items['record_tokens'].append(item.record_tokens)
    self.items['languages'].append([item.language])
    self.items['names'].append([name_hash(item.name)])
    if item.language not in self.unigrams:
      self.unigrams[item.language] = np.zeros(self.vocab_size, np.int64)
    np.add.at(self.unigrams[item.language], item.tokens, 1)
    self.by_language.setdefault(item.language, Counter()).update(
      documents=1,
      sentences=len(item.sentences),
      tokens=len(item.tokens),
      bytes=item.text_bytes,
    )

  def close(self, seen):
    """seen: {name: array}, what duplicates.Seen needs after a restart."""
    languages = sorted(self.unigrams)
    records = sum(len(x) for x in self.items['record_tokens'])
    kinds = dict.fromkeys(_INDEX, np.int32) | {'names': np.uint32}
    arrays = {
      name: np.concatenate([*found, np.zeros(0, kinds[name])]).astype(kinds[name])
      for name, found in self.items.items()
    }
    facts = {
      'blocks': self.blocks,
      'counts': dict(self.counts),
      'by_language': {str(k): dict(v) for k, v in self.by_language.items()},
      'unigram_languages': languages,
      'sha256': self.digest.hexdigest(),
      'records': records,
    }
    try:
      self.writer.close()
      _check_written(self.scratch, records)
      with open(self.index_path, 'wb') as file:
        np.savez_compressed(
          file,
          **arrays,
          unigrams=np.array([self.unigrams[k] for k in languages], np.int64).reshape(
            -1, self.vocab_size
          ),
          facts=np.frombuffer(json.dumps(facts).encode(), np.uint8),
          **{f'seen_{name}': array for name, array in seen.items()},
        )
      self.scratch.rename(self.path)
    except Exception as error:
      raise self._unwritten(error) from error

  def _unwritten(self, error):
    return InputError(
      f'{self.path} could not be written ({str(error).splitlines()[0]:.150}); free some space and '
      'run the same command again: finished shards stay'
    )


def _check_written(path, records):
  from array_record.python import array_record_module

  reader = array_record_module.ArrayRecordReader(str(path))
  if reader.num_records() != records:
    raise OSError(f'it holds {reader.num_records()} of {records} records')
  reader.close()


def shard_paths(folder, number):
  """(records, index) of a shard."""
  records = data_folder(folder) / f'train-{number:05d}.array_record'
  return records, Path(folder) / 'index' / f'{number:05d}.npz'


def data_folder(folder):
  return Path(folder) / 'corpus' / '1.0.0'


def read_index(path):
  """(facts, {name: array}) of a shard's index."""
  try:
    with np.load(path) as found:
      arrays = {name: found[name] for name in found.files}
    return json.loads(arrays.pop('facts').tobytes()), arrays
  except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    raise InputError(
      f'{path} is damaged ({str(error).splitlines()[0]:.100}); prepare the corpus again'
    ) from error


def finished(folder):
  """How many shards of an unfinished corpus are whole, from the first on."""
  number = 0
  while all(path.is_file() for path in shard_paths(folder, number)):
    number += 1
  return number


def finish(folder, plan, tokenizer, counts=None):
  """Writes TFDS's metadata and, last, corpus.json; returns what it holds.

  counts: of what was read, if the shards do not know (Beam).
  """
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core import naming
  from tensorflow_datasets.core import splits as splits_lib

  indexes, unknown = [], 0
  for number in range(finished(folder)):
    facts, arrays = read_index(shard_paths(folder, number)[1])
    indexes.append(facts)
    unknown += int(arrays['unigrams'][:, tokenizer.unk_id].sum())
  languages = plan['languages']
  counts, kept = Counter(counts), {name: Counter() for name in languages}
  for facts in indexes:
    counts.update(facts['counts'])
    for k, numbers in facts['by_language'].items():
      kept[languages[int(k)]].update(numbers)
  counts['unknown_tokens'] = unknown
  share = unknown / max(1, sum(numbers['tokens'] for numbers in kept.values()))
  if share > 0.02:
    log.warning('%.1f %% of the tokens are [UNK]; is --vocab for this text?', 100 * share)
  empty = [name for name, numbers in kept.items() if not numbers['tokens']]
  if empty:
    raise InputError(
      f'nothing is left of {"language " + repr(empty[0]) if empty[0] else "the corpus"}: '
      f'{_list(counts)}; give it more text or a lower --min-characters'
    )
  for name in ('phrases', 'entities'):
    if plan[name] and not counts[f'{name}_matched']:
      raise InputError(f'no line of {plan[name]} occurs in the text; is it for this language?')
  where, template = data_folder(folder), '{SPLIT}-{SHARD_INDEX}.{FILEFORMAT}'
  tfds.folder_dataset.write_metadata(
    data_dir=where,
    features=features(),
    split_infos=[
      splits_lib.SplitInfo(
        name='train',
        shard_lengths=[facts['records'] for facts in indexes],
        num_bytes=sum(shard_paths(folder, k)[0].stat().st_size for k in range(len(indexes))),
        filename_template=naming.ShardedFileTemplate(
          template=template,
          data_dir=where,
          dataset_name='corpus',
          split='train',
          filetype_suffix='array_record',
        ),
      )
    ],
    filename_template=template,
    description='A tokenized corpus prepared by bert_jax.tools.prepare.',
    check_data=False,
  )
  digest = hashlib.sha256(
    json.dumps([tokenizer.fingerprint, [facts['sha256'] for facts in indexes]]).encode()
  )
  meta = plan | {
    'fingerprint': digest.hexdigest()[:16],
    'shards': len(indexes),
    'records': sum(facts['records'] for facts in indexes),
    'counts': dict(sorted(counts.items())),
    'kept': {name: dict(numbers) for name, numbers in kept.items()},
  }
  write_whole(Path(folder) / META, json.dumps(meta, indent=2, ensure_ascii=False) + '\n')
  return meta


def is_prepared(spec):
  """Is this the folder of a prepared corpus, finished or not?"""
  return bool(spec) and any((Path(spec).expanduser() / name).is_file() for name in (META, PLAN))


def read_meta(folder):
  path = Path(folder).expanduser() / META
  if not path.is_file():
    raise InputError(f'{folder} is not finished; run the bert_jax.tools.prepare that made it again')
  try:
    return json.loads(path.read_text())
  except ValueError as error:
    raise InputError(f'{path} is damaged ({error}); prepare the corpus again') from error


class Prepared(NamedTuple):
  """A prepared corpus, opened."""

  meta: dict[str, Any]
  corpus: Corpus
  languages: np.ndarray  # [documents] number of each one's language in meta['languages']
  names: np.ndarray  # [documents] uint32, crc32 of each one's name
  unigrams: np.ndarray  # [languages, vocab_size] int64


def load(folder, tokenizer):
  """Opens a prepared corpus: its index in memory, its records on disk. InputError if damaged."""
  folder = Path(folder).expanduser()
  meta = read_meta(folder)
  if tokenizer.fingerprint != meta['vocabulary']:
    raise InputError(
      f'{folder} was prepared with another vocabulary than this run has; prepare it again with '
      '--vocab, or start from weights that were trained with its own'
    )
  arrays = {name: [] for name in _INDEX}
  unigrams = np.zeros((len(meta['languages']), tokenizer.vocab_size), np.int64)
  ends, paths = [0], []
  for number in range(meta['shards']):
    facts, found = read_index(shard_paths(folder, number)[1])
    for name in _INDEX:
      arrays[name].append(found[name])
    unigrams[facts['unigram_languages']] += found['unigrams']
    ends.append(ends[-1] + facts['records'])
    paths.append(shard_paths(folder, number)[0])
  joined = {name: np.concatenate(found) for name, found in arrays.items()}
  corpus = Corpus(
    _Reader(folder, paths, np.array(ends)),
    np.arange(ends[-1]),
    offsets(joined['record_tokens']),
    offsets(joined['sentences']),
    offsets(joined['document_sentences']),
    meta['fingerprint'],
  )
  return Prepared(meta, corpus, joined['languages'], joined['names'], unigrams)


class _Reader:
  """record number -> (tokens, starts); what was read lately stays in memory, up to a limit."""

  def __init__(self, folder, paths, ends):
    import tensorflow_datasets as tfds

    self.paths, self.ends = paths, ends
    missing = [path for path in paths if not path.is_file()]
    if missing:
      raise InputError(f'{missing[0]} is missing; prepare the corpus again')
    try:
      self.source = tfds.builder_from_directory(str(data_folder(folder))).as_data_source('train')
      found = len(self.source)
    except Exception as error:
      raise InputError(
        f'{folder} cannot be opened ({str(error).splitlines()[0]:.150}); prepare the corpus again'
      ) from error
    if found != ends[-1]:
      raise InputError(f'{folder} holds {found} of {ends[-1]} records; prepare it again')
    self.cache, self.held, self.room = OrderedDict(), 0, CACHE_TOKENS

  def __call__(self, record):
    if record in self.cache:
      self.cache.move_to_end(record)
      return self.cache[record]
    try:
      row = self.source[record]
      tokens, starts = row['tokens'], row['starts']
      if tokens is None or starts is None:  # a file cut at ArrayRecord's blocks gives such rows
        raise ValueError('the file is truncated')
    except Exception as error:
      shard = int(self.ends.searchsorted(record, side='right')) - 1
      raise DamagedRecord(
        f'{self.paths[shard]}: record {record - self.ends[shard]} is damaged '
        f'({str(error).splitlines()[0]:.100}); prepare the corpus again, or set '
        'data.skip_damaged=true to leave such rows empty and count them'
      ) from error
    self.cache[record] = tokens, starts
    self.held += len(tokens)
    while self.held > self.room:
      self.held -= len(self.cache.popitem(last=False)[1][0])
    return tokens, starts


def _list(counts):
  return ', '.join(f'{n:,} {k}' for k, n in sorted(counts.items()))
