"""One of several processes: prints a hash of each row it holds, of each of several configs, for
tests/rows/test_hosts.py."""

import hashlib
import json
import sys
from pathlib import Path

import jax
import numpy as np


def rows(config_file, first, last):
  """{step/row: hash} of the rows that this process holds."""
  from bert_jax import config as config_lib  # after jax.distributed.initialize
  from bert_jax import sharding
  from bert_jax.rows import batches
  from bert_jax.tasks.pretraining import resolution, task
  from bert_jax.tokenizers import run_tokenizer

  config = resolution.resolve(config_lib.from_json(Path(config_file).read_text()))
  tokenizer = run_tokenizer.load_or_train(config, None, None)
  source = task.sources(config, tokenizer, ('train',))['train']
  spec = task.objective(config, tokenizer).spec(config.batch_size)
  where = sharding.batch_sharding(sharding.make_mesh(-1, 1, 1))
  batches = batches.Batches(source, spec, where, limits={}, seed=config.seed)
  out = {}
  for step in range(first, last):
    shards = {}
    for name, array in batches[step].items():
      for shard in array.addressable_shards:
        begin = shard.index[0].start or 0
        for k, row in enumerate(np.asarray(shard.data)):
          shards.setdefault(begin + k, hashlib.sha256()).update(name.encode() + row.tobytes())
    out |= {f'{step}/{i}': digest.hexdigest()[:12] for i, digest in shards.items()}
  return out


if __name__ == '__main__':
  address, count, index, first, last, *config_files = sys.argv[1:]
  jax.distributed.initialize(address, int(count), int(index))
  print(json.dumps([rows(file, int(first), int(last)) for file in config_files]))
