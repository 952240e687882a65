"""One of several processes: prints a hash of each row it holds, for tests/test_hosts.py."""

import hashlib
import json
import sys
from pathlib import Path

import jax
import numpy as np

address, count, index, first, last, config_file = sys.argv[1:]
if int(count) > 1:
  jax.distributed.initialize(address, int(count), int(index))

from bert_jax import config as config_lib  # noqa: E402
from bert_jax import sharding  # noqa: E402
from bert_jax.data import batching, vocabulary  # noqa: E402
from bert_jax.tasks import pretraining  # noqa: E402

config = pretraining.resolve(config_lib.from_json(Path(config_file).read_text()))
tokenizer = vocabulary.of_run(config, None, None)
source = pretraining.sources(config, tokenizer, ('train',))['train']
spec = pretraining.objective(config, tokenizer).spec(config.batch_size)
mesh = sharding.make_mesh(-1, 1, 1)
batches = batching.Batches(source, spec, sharding.batch_sharding(mesh), limits={}, seed=config.seed)
rows = {}
for step in range(int(first), int(last)):
  shards = {}
  for name, array in batches[step].items():
    for shard in array.addressable_shards:
      begin = shard.index[0].start or 0
      for k, row in enumerate(np.asarray(shard.data)):
        shards.setdefault(begin + k, hashlib.sha256()).update(name.encode() + row.tobytes())
  rows |= {f'{step}/{i}': digest.hexdigest()[:12] for i, digest in shards.items()}
print(json.dumps(rows))
