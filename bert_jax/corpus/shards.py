"""Writes a prepared corpus, shard by shard; prepared.py lists the files and reads them."""

import hashlib
import json
import logging
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_jax.corpus import blocks
from bert_jax.corpus.prepared import (
  INDEX,
  META,
  SIZES,
  data_folder,
  fingerprint,
  finished,
  read_index,
  shard_paths,
)
from bert_jax.corpus.tokenized import offsets
from bert_jax.errors import InputError, first_line
from bert_jax.files import seal, write_whole
from bert_jax.text.documents import name_hash

log = logging.getLogger('bert_jax')

RECORD_TOKENS = 2048  # the most in a record, which is read whole for each row that needs it


class Item(NamedTuple):
  """A document ready to be written."""

  name: str
  language: int  # number in the corpus' list of languages
  size: tuple[int, int]  # characters and bytes of its text
  tokens: np.ndarray  # [n] int32
  records: list[bytes]  # tf.train.Example messages
  record_tokens: list[int]  # tokens in each record
  sentences: np.ndarray  # [sentences] int32, tokens in each sentence
  key: int  # duplicates.exact_key of its text; 0 where duplicates are kept
  signature: np.ndarray | None  # for near-duplicates


def features():
  """The TFDS features of a record: the names and types of its fields."""
  import tensorflow_datasets as tfds

  def array(dtype):  # as bytes, which numpy reads at once
    return tfds.features.Tensor(shape=(None,), dtype=dtype, encoding=tfds.features.Encoding.BYTES)

  text = tfds.features.Text
  return tfds.features.FeaturesDict(
    {
      'name': text(),
      'language': text(),
      'tokens': array(np.int32),
      'sentences': array(np.int32),
      'starts': array(np.uint8),
    }
  )


class Serializer:
  """Serializes a Record as tf.train.Example messages, the same bytes in every process."""

  def __init__(self):
    from tensorflow_datasets.core import example_serializer

    self.features = features()
    self.serializer = example_serializer.ExampleSerializer(self.features.get_serialized_info())

  def __call__(self, name, language, record):
    """(messages, tokens in each); a document longer than RECORD_TOKENS becomes several messages."""
    begins = offsets(record.sentences)[:-1]
    messages, sizes = [], []
    for start in range(0, len(record.tokens), RECORD_TOKENS):
      part = slice(start, start + RECORD_TOKENS)
      begins_here = (begins >= start) & (begins < start + RECORD_TOKENS)
      example = self.features.encode_example(
        {
          'name': name,
          'language': language,
          'tokens': record.tokens[part],
          'sentences': record.sentences[begins_here],
          'starts': record.starts[part],
        }
      )
      message = self.serializer.get_tf_example(example)
      messages.append(message.SerializeToString(deterministic=True))  # maps have no order otherwise
      sizes.append(len(record.tokens[part]))
    return messages, sizes


class Shard:
  """A shard being written; it does not count until `close` gives its files their names."""

  def __init__(self, folder, number, vocab_size):
    from array_record.python import array_record_module

    self.path, self.index_path = shard_paths(folder, number)
    for path in (self.path, self.index_path):
      path.parent.mkdir(parents=True, exist_ok=True)
    self.scratch = self.path.with_name(f'.{self.path.name}.tmp')
    self.writer = array_record_module.ArrayRecordWriter(str(self.scratch), 'group_size:1')
    self.vocab_size = vocab_size
    self.items = {name: [] for name in (*INDEX, *SIZES)}
    self.unigrams, self.by_language = {}, {}  # {language: [vocab_size]}, {language: Counter}
    self.blocks, self.counts, self.digest = 0, Counter(), hashlib.sha256()

  def add(self, items, counts, seen):
    """Writes the documents of a text block and adds up its counts.
    seen: a duplicates.Seen, to leave out duplicates of earlier documents, or None."""
    self.blocks += 1
    self.counts.update(counts)
    for item in items:
      if duplicate := ('' if seen is None else seen.is_duplicate(item.key, item.signature)):
        self.counts[f'{duplicate}_duplicates'] += 1
      else:
        self.write(item)

  def write(self, item):
    """Writes one document."""
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
    for name, size in zip(SIZES, item.size, strict=True):
      self.items[name].append([size])
    if item.language not in self.unigrams:
      self.unigrams[item.language] = np.zeros(self.vocab_size, np.int64)
    np.add.at(self.unigrams[item.language], item.tokens, 1)
    self.by_language.setdefault(item.language, Counter()).update(
      documents=1, sentences=len(item.sentences), tokens=len(item.tokens), bytes=item.size[1]
    )

  def close(self, seen):
    """Finishes the shard. seen: {name: array}, the state of duplicates.Seen for a restart."""
    languages = sorted(self.unigrams)
    records = sum(len(x) for x in self.items['record_tokens'])
    kinds = dict.fromkeys(self.items, np.int32) | {'names': np.uint32}
    arrays = {
      name: np.concatenate([*parts, np.zeros(0, kinds[name])]).astype(kinds[name])
      for name, parts in self.items.items()
    }
    facts = {
      'blocks': self.blocks,
      'counts': dict(self.counts),
      'by_language': {str(k): dict(v) for k, v in self.by_language.items()},
      'unigram_languages': languages,
      'sha256': self.digest.hexdigest(),
      'records': records,
    }
    unigrams = np.array([self.unigrams[k] for k in languages], np.int64)
    arrays['unigrams'] = unigrams.reshape(-1, self.vocab_size)
    arrays['facts'] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    arrays |= {f'seen_{name}': array for name, array in seen.items()}
    try:
      self.writer.close()
      _check_written(self.scratch, records)
      with open(self.index_path, 'wb') as file:
        np.savez_compressed(file, **arrays)
      self.scratch.rename(self.path)
    except Exception as error:
      raise self._unwritten(error) from error

  def _unwritten(self, error):
    return InputError(
      f'{self.path} could not be written ({first_line(error)}); free some space and '
      'run the same command again: finished shards stay'
    )


def _check_written(path, records):
  from array_record.python import array_record_module

  reader = array_record_module.ArrayRecordReader(str(path))
  if reader.num_records() != records:
    raise OSError(f'it holds {reader.num_records()} of {records} records')
  reader.close()


def finish(folder, plan, tokenizer, counts=None):
  """Writes TFDS's metadata and, last, corpus.json, whose content it returns.
  counts: {name: number} of what was read, for Beam, whose shards have no counts."""
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core import naming
  from tensorflow_datasets.core import splits as splits_lib

  indexes, unknown, parts = [], 0, blocks.Writer(folder)
  unigrams = np.zeros((len(plan['languages']), tokenizer.vocab_size), np.int64)
  for number in range(finished(folder)):
    facts, arrays = read_index(shard_paths(folder, number)[1])
    indexes.append(facts)
    unigrams[facts['unigram_languages']] += arrays['unigrams']
    unknown += int(arrays['unigrams'][:, tokenizer.unk_id].sum())
    parts.add(arrays)
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
  if empty := [name for name, numbers in kept.items() if not numbers['tokens']]:
    counted = ', '.join(f'{n:,} {k}' for k, n in sorted(counts.items()))
    raise InputError(
      f'nothing is left of {"language " + repr(empty[0]) if empty[0] else "the corpus"}: '
      f'{counted}; give it more text or a lower --min-characters, '
      'and another --out'
    )
  for name in ('phrases', 'entities'):
    if plan[name] and not counts[f'{name}_matched']:
      raise InputError(f'no line of {plan[name]} occurs in the text; is it for this language?')
  where, template = data_folder(folder), '{SPLIT}-{SHARD_INDEX}.{FILEFORMAT}'
  train = splits_lib.SplitInfo(
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
  tfds.folder_dataset.write_metadata(
    data_dir=where,
    features=features(),
    split_infos=[train],
    filename_template=template,
    description='A tokenized corpus prepared by bert_jax.tools.prepare.',
    check_data=False,
  )
  meta = plan | {
    'fingerprint': fingerprint(tokenizer.fingerprint, indexes),
    'shards': len(indexes),
    'records': sum(facts['records'] for facts in indexes),
    'counts': dict(sorted(counts.items())),
    'kept': {name: dict(numbers) for name, numbers in kept.items()},
  }
  if checksum := parts.close(unigrams):
    meta['blocks'] = checksum
  meta['seal'] = seal(meta)
  write_whole(Path(folder) / META, json.dumps(meta, indent=2, ensure_ascii=False) + '\n')
  return meta
