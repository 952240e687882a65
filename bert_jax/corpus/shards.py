"""Writes a prepared corpus, shard by shard; store.py lists the files and reads them."""

import hashlib
import io
import json
import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bert_jax import files
from bert_jax.copies import place, staged
from bert_jax.corpus import store
from bert_jax.corpus.store import ARRAYS, COLUMNS, OF_DOCUMENTS
from bert_jax.corpus.tokenized import digest_of, offsets
from bert_jax.corpus.units import Record
from bert_jax.errors import InputError, writing
from bert_jax.files import Path
from bert_jax.text.duplicates import Seen
from bert_jax.tokenizers import Tokenizer

CHUNK_TOKENS, CHUNK_DOCUMENTS, MOST_TOKENS = 1 << 18, 16, 1 << 22
WHOLE = 1 << 26  # tokens: a corpus of fewer is planned at once, like text in memory


class Item(NamedTuple):
  """A document ready to be written."""

  record: Record
  facts: tuple[int, ...]  # see store.OF_DOCUMENTS
  key: int  # duplicates.exact_key of its text; 0 where duplicates are kept
  signature: np.ndarray | None  # for near-duplicates


def cut(tokens: np.ndarray, languages: np.ndarray) -> np.ndarray:
  """Cuts a shard into chunks: [C + 1] the first document of each chunk, then the end.

  A chunk is a run of documents of one language, of CHUNK_TOKENS and CHUNK_DOCUMENTS at least,
  unless it reaches MOST_TOKENS or the run ends before; a short rest goes to the chunk before it.
  tokens, languages: [documents] the token count and the language of each document.
  """
  at = offsets(tokens)
  begins = [0]
  run_ends = np.append(np.flatnonzero(np.diff(languages)) + 1, len(tokens))
  while begins[-1] < len(tokens):
    begin = begins[-1]
    run_end = int(run_ends[run_ends.searchsorted(begin, side='right')])
    most = at.searchsorted(at[begin] + MOST_TOKENS)
    enough = at.searchsorted(at[begin] + CHUNK_TOKENS)
    end = int(max(enough, min(begin + CHUNK_DOCUMENTS, most)))
    rest = at[run_end] - at[min(end, run_end)]
    few = run_end - end < CHUNK_DOCUMENTS and rest < MOST_TOKENS
    begins.append(run_end if few or rest < CHUNK_TOKENS // 2 else end)
  return np.array(begins)


class Shard:
  """A shard being made. It is in memory until `close` writes it and gives it its name, whole."""

  def __init__(self, folder: Path, number: int, vocab_size: int):
    self.path = store.shard_path(folder, number)
    self.number = number
    self.vocab_size = vocab_size
    self.types: dict[str, Any] = {
      'tokens': np.uint16 if vocab_size <= 2**16 else np.int32,
      'starts': np.uint8,
      'sentences': np.int32,
      'documents': np.uint32,
    }
    self.data = {name: bytearray() for name in ARRAYS}
    self.counts = Counter()
    self.portions = []  # digests of the text

  def add(
    self, items: Iterable[Item], counts: Mapping[str, int], portion: str, seen: Seen | None
  ) -> None:
    """Adds the documents of a portion of text that were not `seen` before, and its counts.

    portion: a digest of the text, by which a preparation that goes on knows that it is the same.
    """
    self.portions.append(portion)
    self.counts.update(counts)
    for item in items:
      duplicate = '' if seen is None else seen.is_duplicate(item.key, item.signature)
      if duplicate:
        self.counts[f'{duplicate}_duplicates'] += 1
      else:
        self.write(item)

  def write(self, item: Item) -> None:
    """Adds one document."""
    arrays = item.record._asdict() | {'documents': np.array(item.facts)}
    for name, array in arrays.items():
      self.data[name] += array.astype(self.types[name]).tobytes()

  def close(self, seen: Mapping[str, np.ndarray]) -> None:
    """Writes the shard. seen: the state of duplicates.Seen for a preparation that goes on."""
    arrays = {name: np.frombuffer(data, self.types[name]) for name, data in self.data.items()}
    arrays['documents'] = arrays['documents'].reshape(-1, len(OF_DOCUMENTS))
    facts = {
      'portions': self.portions,
      'counts': dict(self.counts),
      'sha256': hashlib.sha256(b''.join(self.data.values())).hexdigest(),
    }
    kept: dict[str, Any] = {f'seen_{name}': array for name, array in seen.items()}
    kept |= self._chunks(arrays)
    encoded_facts = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    scratch = staged(self.path.with_name(f'.{self.path.name}.tmp'))
    with writing(self.path, 'free some space and run it again: finished shards stay'):
      shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
      scratch.mkdir(parents=True)
      for name, array in arrays.items():
        files.write_npy(scratch / f'{name}.npy', array)
      with (scratch / store.FACTS).open('w+b') as file:
        np.savez_compressed(file, facts=encoded_facts, **kept)
      if scratch.parent == self.path.parent:
        shutil.rmtree(self.path, ignore_errors=True)  # one that was damaged
      place(scratch, self.path, last=(store.FACTS,))
      shutil.rmtree(scratch, ignore_errors=True)  # what was uploaded

  def _chunks(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns of the table of chunks for this shard; and how often each of its `languages` has
    each piece, `unigrams` [languages, vocab_size]."""
    documents = dict(zip(OF_DOCUMENTS, arrays['documents'].astype(np.int64).T, strict=True))
    begins = cut(documents['tokens'], documents['language'])
    at = {'documents': begins}
    at |= {name: offsets(documents[name])[begins] for name in ('tokens', 'sentences')}
    columns = {name: np.diff(ends) for name, ends in at.items()}
    columns['shard'] = np.full(len(begins) - 1, self.number)
    columns['language'] = documents['language'][begins[:-1]]
    columns['crc32'] = np.zeros(len(begins) - 1, np.int64)
    languages = np.unique(columns['language'])
    unigrams = np.zeros((len(languages), self.vocab_size), np.int64)
    for k, language in enumerate(columns['language']):
      for name, column in ARRAYS.items():
        part = arrays[name][at[column][k] : at[column][k + 1]]
        columns['crc32'][k] = zlib.crc32(part.tobytes(), int(columns['crc32'][k]))
      tokens = arrays['tokens'][at['tokens'][k] : at['tokens'][k + 1]]
      unigrams[languages == language] += np.bincount(tokens, minlength=self.vocab_size)
    return columns | {'languages': languages, 'unigrams': unigrams}


def finish(
  folder: Path, plan: Mapping[str, Any], tokenizer: Tokenizer, read: Mapping[str, int] | None = None
) -> dict[str, Any]:
  """Writes what is of all shards and, last, corpus.json; returns its content. read: Beam's
  counts."""
  counts = Counter(read)
  shards, tables, lengths = [], [], []
  unigrams = np.zeros((len(plan['languages']), tokenizer.vocab_size), np.int64)
  kept = {name: Counter() for name in plan['languages']}
  for number in range(store.finished(folder)):
    path = store.shard_path(folder, number)
    facts, arrays = store.read_facts(path)
    counts.update(facts['counts'])
    shards.append(facts['sha256'])
    tables.append([arrays[name] for name in COLUMNS])
    unigrams[arrays['languages']] += arrays['unigrams']
    rows = np.load(io.BytesIO((path / 'documents.npy').read_bytes()))
    documents = dict(zip(OF_DOCUMENTS, rows.T, strict=True))
    lengths.append(np.stack([documents['tokens'], documents['hash']], axis=1))
    for k, numbers in enumerate(kept.values()):
      is_of_language = documents['language'] == k
      numbers['documents'] += int(is_of_language.sum())
      for name in ('sentences', 'tokens', 'bytes'):
        numbers[name] += int(documents[name][is_of_language].sum())
  counts['unknown_tokens'] = int(unigrams[:, tokenizer.unk_id].sum())
  _check(plan, counts, kept)
  columns = dict(zip(COLUMNS, np.concatenate(tables, axis=1), strict=True))
  digest = ''
  if columns['documents'].sum() <= store.LENGTHS:
    content = io.BytesIO()
    np.save(content, np.concatenate(lengths))
    files.write_whole(folder / store.DOCUMENTS, content.getvalue())
    digest = hashlib.sha256(content.getvalue()).hexdigest()
  table = io.BytesIO()
  np.savez_compressed(table, unigrams=unigrams, **columns)
  files.write_whole(folder / store.TABLE, table.getvalue())
  meta = {
    **plan,
    'fingerprint': digest_of([json.dumps([plan['vocabulary'], shards])]),
    'shards': len(shards),
    'whole': WHOLE,
    'counts': dict(sorted(counts.items())),
    'kept': {name: dict(numbers) for name, numbers in kept.items()},
    'chunks': hashlib.sha256(table.getvalue()).hexdigest(),
    'documents': digest,
  }
  meta['seal'] = files.seal(meta)
  text = json.dumps(meta, indent=2, ensure_ascii=False) + '\n'
  files.write_whole(folder / store.META, text)
  return meta


def _check(plan, counts, kept):
  """InputError if a language has no text or a lexicon no match."""
  for name, numbers in kept.items():
    if not numbers['tokens']:
      what = f'language {name!r}' if name else 'the corpus'
      counted = ', '.join(f'{n:,} {k}' for k, n in sorted(counts.items()))
      raise InputError(f'nothing is left of {what}: {counted}; give more text, and another --out')
  for name in ('phrases', 'entities'):
    if plan[name] and not counts[f'{name}_matched']:
      raise InputError(f'no line of {plan[name]} occurs in the text; is it for this language?')
