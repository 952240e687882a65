"""A prepared corpus of any size, whose blocks are made up, and what a training plans on it."""

import hashlib
import io

import numpy as np

from bert_jax.corpus import blocks
from bert_jax.rows import batches
from bert_jax.rows.block_rows import BlockRows


class Simulated(blocks.Index):
  """The table of a corpus of so many blocks of 512 documents of 512 tokens; parts are made up."""

  def part(self, block):
    rng = np.random.default_rng(block)
    sizes = rng.integers(64, 960, 512).astype(np.int32)
    ones = np.ones(512, np.int32)
    return {
      'hashes': rng.integers(0, 2**32, 512, np.uint32).view(np.int32),
      'characters': 5 * sizes,
      'bytes': 5 * sizes,
      'document_records': ones,
      'document_sentences': ones * 16,
      'sentences': np.repeat(sizes // 16, 16),
      'record_tokens': sizes // 16 * 16,
    }


def simulated(folder, number):
  """Writes the table of a Simulated of so many blocks; returns the facts of its corpus.json."""
  (folder / 'index').mkdir(parents=True)
  counts = dict(documents=512, sentences=512 * 16, records=512, tokens=1 << 18, stored=60_000)
  sizes = counts | dict.fromkeys(('shard', 'language', 'crc32'), 0)
  table = {name: np.full(number, value, np.int64) for name, value in sizes.items()}
  table['shard'] = np.arange(number) // 61
  data = io.BytesIO()
  np.savez_compressed(data, unigrams=np.ones((1, 30522), np.int64), **table)
  (folder / 'index' / 'blocks.npz').write_bytes(data.getvalue())
  digest = hashlib.sha256(data.getvalue()).hexdigest()
  shards = number // 61 + 1
  return {'languages': [''], 'blocks': digest, 'fingerprint': digest, 'shards': shards}


def begun(folder, facts, tokenizer, kind):
  """What a training plans on a simulated corpus: its rows, the documents that are held out, and
  their rows. It goes on at a late step, whose first row is looked up."""
  train, held = blocks.Blocks(Simulated(folder, facts), 0, 16).divided(0.01)
  settings = dict(seq_length=128, kind=kind, short_seq_prob=0.1, dupe_factor=5)
  rows = BlockRows(train, tokenizer, seed=(0, 0), **settings)
  evaluated = BlockRows(held, tokenizer, seed=(0, 1), **settings | {'dupe_factor': 1})
  assert 0 <= batches.endless(rows, 0, 256)[256 * 900_000] < len(rows)
  return rows, held, evaluated
