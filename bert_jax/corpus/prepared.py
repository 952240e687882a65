"""A prepared corpus: a folder with a TFDS dataset, its vocabulary, and an index for planning rows.

  corpus.json      settings, counts, languages, fingerprints; written last: it makes a corpus whole
  plan.json        the settings it was begun with
  vocab.txt, ...   the vocabulary, as Tokenizer.save writes it
  corpus/1.0.0/    `tfds.data_source('corpus', data_dir=FOLDER, split='train')`: the records, in
                   shards train-00000.array_record, ...
  index/           00000.npz, ...: for each shard, what planning rows needs to know

A record is a document or, of a long one, 2,048 tokens of it: {name, language, tokens int32,
sentences int32 (tokens of each that begins here), starts uint8 (see records.py)}. Read
here, written in shards.py.
"""

import json
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.corpus.tokenized import Corpus, DamagedRecord, offsets
from bert_jax.errors import InputError

META, PLAN = 'corpus.json', 'plan.json'
CACHE_TOKENS = 50_000_000  # 5 bytes each, of records read lately
INDEX = (  # arrays of each shard
  'sentences',
  'document_sentences',
  'document_records',
  'record_tokens',
  'languages',
  'names',
)


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
  arrays = {name: [] for name in INDEX}
  unigrams = np.zeros((len(meta['languages']), tokenizer.vocab_size), np.int64)
  ends, paths = [0], []
  for number in range(meta['shards']):
    facts, found = read_index(shard_paths(folder, number)[1])
    for name in INDEX:
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
