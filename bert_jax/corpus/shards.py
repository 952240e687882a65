"""Writes a prepared corpus, shard by shard; prepared.py lists the files and reads them."""

import array
import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bert_jax.copies import place, staged
from bert_jax.corpus import blocks, prepared
from bert_jax.corpus.prepared import INDEX, SIZES, data_folder, features, shard_paths
from bert_jax.corpus.tokenized import offsets
from bert_jax.corpus.units import Record
from bert_jax.errors import InputError, Unwritten, first_line, log, stays
from bert_jax.files import Path, seal, write_whole
from bert_jax.text.duplicates import Seen
from bert_jax.tokenizers import Tokenizer

RECORD_TOKENS = 2048  # the most in a record, which is read whole for each row that needs it


class Item(NamedTuple):
  """A document ready to be written."""

  hash: int  # documents.text_hash
  language: int  # number in the corpus' list of languages
  size: tuple[int, int]  # characters and bytes of its text
  tokens: np.ndarray  # [n] int32
  records: list[bytes]  # tf.train.Example messages
  record_tokens: list[int]  # tokens in each record
  sentences: np.ndarray  # [sentences] int32, tokens in each sentence
  key: int  # duplicates.exact_key of its text; 0 where duplicates are kept
  signature: np.ndarray | None  # for near-duplicates


class Serializer:
  """Serializes a Record as tf.train.Example messages, the same bytes in every process."""

  def __init__(self):
    from tensorflow_datasets.core import example_serializer

    self.features = features()
    self.serializer = example_serializer.ExampleSerializer(self.features.get_serialized_info())

  def __call__(self, name: str, language: str, record: Record) -> tuple[list[bytes], list[int]]:
    """(messages, tokens in each); a document longer than RECORD_TOKENS becomes several messages."""
    begins, messages, sizes = offsets(record.sentences)[:-1], [], []
    for start in range(0, len(record.tokens), RECORD_TOKENS):
      part = slice(start, start + RECORD_TOKENS)
      begin_here = (begins >= part.start) & (begins < part.stop)
      content = {'tokens': record.tokens[part], 'starts': record.starts[part]}
      content |= {'name': name, 'language': language, 'sentences': record.sentences[begin_here]}
      message = self.serializer.get_tf_example(self.features.encode_example(content))
      messages.append(message.SerializeToString(deterministic=True))  # maps have no order otherwise
      sizes.append(len(content['tokens']))
    return messages, sizes


class Shard:
  """A shard being written; it does not count until `close` gives its files their names."""

  def __init__(self, folder: Path, number: int, vocab_size: int):
    from array_record.python import array_record_module

    self.path, self.index_path = shard_paths(folder, number)
    for path in (self.path, self.index_path):
      path.parent.mkdir(parents=True, exist_ok=True)
    self.scratch = staged(self.path.with_name(f'.{self.path.name}.tmp'))
    self.writer = array_record_module.ArrayRecordWriter(str(self.scratch), 'group_size:1')
    self.vocab_size = vocab_size
    # Lists would take some 900 bytes for each document, which may be a line of text.
    self.items = {x: array.array('I' if x == 'hashes' else 'i') for x in (*INDEX, *SIZES)}
    self.unigrams, self.by_language = {}, {}  # {language: [vocab_size]}, {language: Counter}
    self.blocks, self.counts, self.digest = 0, Counter(), hashlib.sha256()

  def add(self, items: Iterable[Item], counts: Mapping[str, int], seen: Seen | None) -> None:
    """Writes the documents of a text block that were not `seen` before; adds up its counts."""
    self.blocks += 1
    self.counts.update(counts)
    for item in items:
      if duplicate := ('' if seen is None else seen.is_duplicate(item.key, item.signature)):
        self.counts[f'{duplicate}_duplicates'] += 1
      else:
        self.write(item)

  def write(self, item: Item) -> None:
    """Writes one document."""
    try:
      for message in item.records:
        self.writer.write(message)
        self.digest.update(message)
    except Exception as error:
      raise self._unwritten(error) from error
    numbers = {'document_sentences': len(item.sentences), 'document_records': len(item.records)}
    numbers |= {'languages': item.language, 'hashes': item.hash}
    numbers |= zip(SIZES, item.size, strict=True)
    for name, number in numbers.items():
      self.items[name].append(number)
    self.items['sentences'].extend(item.sentences.tolist())
    self.items['record_tokens'].extend(item.record_tokens)
    if item.language not in self.unigrams:
      self.unigrams[item.language] = np.zeros(self.vocab_size, np.int64)
    np.add.at(self.unigrams[item.language], item.tokens, 1)
    sizes = {'sentences': len(item.sentences), 'tokens': len(item.tokens), 'bytes': item.size[1]}
    self.by_language.setdefault(item.language, Counter()).update(documents=1, **sizes)

  def close(self, seen: Mapping[str, np.ndarray]) -> None:
    """Finishes the shard. seen: the state of duplicates.Seen for a restart."""
    from array_record.python import array_record_module

    languages = sorted(self.unigrams)
    arrays: dict[str, Any] = {name: np.array(x) for name, x in self.items.items()}
    records = len(arrays['record_tokens'])
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
      with contextlib.closing(array_record_module.ArrayRecordReader(str(self.scratch))) as reader:
        if (held := reader.num_records()) != records:
          raise OSError(f'it holds {held} of {records} records')
      with self.index_path.open('wb') as file:
        np.savez_compressed(file, **arrays)
      place(self.scratch, self.path)
      self.scratch.unlink(missing_ok=True)
    except Exception as error:
      raise self._unwritten(error) from error

  def _unwritten(self, error):
    fault = f'{self.path} could not be written ({first_line(error)})'
    kind = InputError if isinstance(error, OSError) and stays(error) else Unwritten
    return kind(f'{fault}; free some space and run it again: finished shards stay')


def finish(
  folder: Path, plan: Mapping[str, Any], tokenizer: Tokenizer, read: Mapping[str, int] | None = None
) -> dict[str, Any]:
  """Writes TFDS's metadata and, last, corpus.json, and returns its content. read: Beam's counts."""
  languages, parts = plan['languages'], blocks.Writer(folder)
  unigrams = np.zeros((len(languages), tokenizer.vocab_size), np.int64)
  shards, counts, kept = [], Counter(read), {name: Counter() for name in languages}
  for number in range(prepared.finished(folder)):
    facts, arrays = prepared.read_index(shard_paths(folder, number)[1])
    shards.append(facts)
    unigrams[facts['unigram_languages']] += arrays['unigrams']
    parts.add(arrays)
    counts.update(facts['counts'])
    for k, numbers in facts['by_language'].items():
      kept[languages[int(k)]].update(numbers)
  counts['unknown_tokens'] = int(unigrams[:, tokenizer.unk_id].sum())
  _check(plan, counts, kept)
  records = [facts['records'] for facts in shards]
  _write_tfds(folder, records)
  meta = {
    **plan,
    'fingerprint': prepared.fingerprint(plan, shards),
    'shards': len(shards),
    'records': sum(records),
    'counts': dict(sorted(counts.items())),
    'kept': {name: dict(numbers) for name, numbers in kept.items()},
  }
  if checksum := parts.close(unigrams):
    meta['blocks'] = checksum
  meta['seal'] = seal(meta)
  write_whole(folder / prepared.META, json.dumps(meta, indent=2, ensure_ascii=False) + '\n')
  return meta


def _check(plan, counts, kept):
  """InputError if a language has no text or a lexicon no match; a warning about many [UNK]."""
  if empty := [name for name, numbers in kept.items() if not numbers['tokens']]:
    what = f'language {empty[0]!r}' if empty[0] else 'the corpus'
    counted = ', '.join(f'{n:,} {k}' for k, n in sorted(counts.items()))
    raise InputError(f'nothing is left of {what}: {counted}; give more text, and another --out')
  share = counts['unknown_tokens'] / sum(numbers['tokens'] for numbers in kept.values())
  if share > 0.02:
    log.warning('%.1f %% of the tokens are [UNK]; is --vocab for this text?', 100 * share)
  for name in ('phrases', 'entities'):
    if plan[name] and not counts[f'{name}_matched']:
      raise InputError(f'no line of {plan[name]} occurs in the text; is it for this language?')


def _write_tfds(folder, records):
  """Writes TFDS's metadata. records: how many each shard has."""
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core import naming
  from tensorflow_datasets.core import splits as splits_lib

  where: Any = staged(data_folder(folder))
  if where != data_folder(folder):
    where.mkdir(parents=True, exist_ok=True)
    (where / shard_paths(folder, 0)[0].name).touch()  # whose name tells TFDS the format
  template = '{SPLIT}-{SHARD_INDEX}.{FILEFORMAT}'
  names = {'dataset_name': 'corpus', 'split': 'train', 'filetype_suffix': 'array_record'}
  train = splits_lib.SplitInfo(
    name='train',
    shard_lengths=records,
    num_bytes=sum(shard_paths(folder, k)[0].stat().st_size for k in range(len(records))),
    filename_template=naming.ShardedFileTemplate(template=template, **names, data_dir=where),
  )
  tfds.folder_dataset.write_metadata(
    data_dir=where,
    features=features(),
    split_infos=[train],
    filename_template=template,
    description='A tokenized corpus prepared by bert_jax.tools.prepare.',
    check_data=False,
  )
  for name in ('dataset_info.json', 'features.json'):
    place(where / name, data_folder(folder) / name)
