"""Makes small runs of one commit, and writes down what that commit says of them.

    python tests/golden/make_witnesses.py --root CHECKOUT [NAME ...]    # of daf2dea, those here

Each run is in golden/workdirs twice: as it was when it was stopped (NAME.tar.xz), and finished
(NAME finished.tar.xz). known.json has what CHECKOUT evaluates and answers, and how it goes on.
tests/workdir/test_witnesses.py asks the same of the code as it is.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
sys.path[0:1] = [str(HERE / 'tests'), str(HERE / 'tests' / 'workdir')]

CORPUS = 'tests/golden/old_corpus.txt'
PAIRS = 'tests/golden/workdirs/pairs.tsv'
COMMON = {
  'model.hidden_size': 8, 'model.num_hidden_layers': 1, 'model.num_attention_heads': 2,
  'model.intermediate_size': 16, 'model.dtype': 'float32', 'model.hidden_dropout_prob': 0.1,
  'batch_size': 8, 'steps': 14, 'data.seq_length': 16, 'optimizer.learning_rate': 0.01,
  'checkpoint.every': 0, 'checkpoint.minutes': 0, 'checkpoint.keep_latest': 1,
  'checkpoint.best_metric': '', 'eval.every': 0, 'eval.batches': 0, 'log.every': 1,
  'log.tensorboard': False,
}  # fmt: skip
TEXT = {
  'data.train': CORPUS, 'corpus.eval_share': 0.1, 'model.vocab_size': 80,
  'model.max_position_embeddings': 16, 'masking.max_predictions_per_seq': 4,
}  # fmt: skip
# {name: (config, what differs from COMMON, the step at which it is stopped, places of batches whose
# loss is said to have a spike)}
WITNESSES = {
  'growth': (
    'pretrain.py:runlocal',
    TEXT | {'optimizer.accumulation': 4, 'optimizer.batch_warmup': 0.7, 'optimizer.warmup': 3.0,
            'optimizer.horizon': 1.5},
    6, (),
  ),
  'stages': (
    'pretrain.py:runlocal',
    TEXT | {'masking.policy': 'token,whole_word@5,span@0.8', 'corpus.rows': 'full',
            'loss.nsp_weight': 0.0, 'corpus.lengths': '8,16@0.5', 'optimizer.schedule': 'cosine'},
    7, (),
  ),
  'rollback': (
    'pretrain.py:runlocal',
    TEXT | {'spikes.window': 4, 'spikes.zscore': 50.0, 'spikes.rollback': 4, 'corpus.rows': 'sop',
            'checkpoint.every': 4},
    7, (6,),
  ),
  'contrastive': (
    'contrastive.py:runlocal',
    {'data.train': PAIRS, 'data.eval': PAIRS, 'contrastive.widths': '(4, 8)', 'epochs': 0,
     'contrastive.anchor_column': 'first', 'contrastive.positive_column': 'second',
     'contrastive.chunks': 2, 'model.vocab_size': 80, 'model.max_position_embeddings': 16},
    6, (),
  ),
  'memory': (
    'transformer_xl.py:runlocal',
    {'data.train': CORPUS, 'corpus.eval_share': 0.1, 'model.memory_length': 12,
     'tokenizer.kind': 'wordpiece', 'model.vocab_size': 80, 'language_model.eval_memory': 20},
    6, (),
  ),
}  # fmt: skip


def write_pairs() -> None:
  rng, words = random.Random(0), ['river', 'market', 'engine', 'garden', 'old', 'new', 'stone']
  pick = lambda: ' '.join(rng.choice(words) for _ in range(rng.randrange(1, 6)))
  rows = ['first\tsecond', *(f'{pick()}\t{pick()}' for _ in range(40))]
  (HERE / PAIRS).write_text('\n'.join(rows) + '\n')


@contextlib.contextmanager
def disturbed(stop: int, spikes: tuple):
  """Sends SIGTERM after step `stop` is logged, and multiplies the losses of some batches, as
  modules of daf2dea let us."""
  from bert_jax.tally import Tally
  from bert_jax.training_log import Writer

  take, write = Tally.take, Writer.write

  def taking(self, inputs, out, number):
    if number - 1 + self.offset in spikes:
      out = out | {'loss': out['loss'] * 1000}
    return take(self, inputs, out, number)

  def writing(self, number, *arguments):
    write(self, number, *arguments)
    if number == stop:
      os.kill(os.getpid(), signal.SIGTERM)

  Tally.take, Writer.write = taking, writing
  try:
    yield
  finally:
    Tally.take, Writer.write = take, write


def make(name: str) -> dict:
  import test_witnesses as tests

  spec, changes, stop, spikes = WITNESSES[name]
  workdir = Path(name)
  fields = [f'--config.{key}={value}' for key, value in (COMMON | changes).items()]
  with disturbed(stop, spikes), contextlib.suppress(RuntimeError):
    tests.command('bert_jax.train', '--config', f'configs/{spec}', '--workdir', workdir, *fields)
  assert tests.steps(workdir) and max(tests.steps(workdir)) < 14, tests.steps(workdir)
  tests.pack(workdir, name)
  known = {'stopped': tests.evaluated(workdir)}
  shutil.rmtree(workdir)
  with tempfile.TemporaryDirectory() as folder:
    known['resumed'] = tests.resumed(again := tests.unpacked(name, Path(folder)))
    known['finished'] = tests.evaluated(again)
    for number in tests.steps(again)[:-1]:
      shutil.rmtree(again / 'checkpoints' / str(number))
    tests.pack(again, f'{name} finished')
    known['answers'] = tests.answered(again, name)
    if name == 'growth':
      out = Path(folder) / 'int8'
      tests.command('bert_jax.tools.convert', '--from', again, '--to', f'int8:{out}')
      tests.pack(out, 'int8')
      known['int8'] = tests.answered(out, 'growth')
  return known


def prune(workdir: Path) -> None:
  """Removes those files of Orbax that no restore reads: half of all bytes."""
  import jax
  import orbax.checkpoint as ocp

  def is_whole(item):
    try:
      jax.device_get(ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(item.resolve()))
      return True
    except Exception:
      return False

  for path in workdir.glob('checkpoints/*/*/ocdbt.process_0/d/*'):
    content = path.read_bytes()
    path.unlink()
    if not is_whole(path.parents[2]):
      path.write_bytes(content)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('--root', type=Path, required=True)
  parser.add_argument('name', nargs='*', help=', '.join(WITNESSES))
  args = parser.parse_args()
  root = args.root.resolve()
  write_pairs()
  sys.path.insert(0, str(root))
  import conftest  # noqa: F401 (the environment of the tests)
  import test_witnesses as tests

  known = json.loads(tests.KNOWN.read_text()) if tests.KNOWN.exists() else {}
  with tempfile.TemporaryDirectory() as folder:
    # The folders that commands name are those of the checkout, and the texts are here.
    os.chdir(folder)
    Path('configs').symlink_to(root / 'configs')
    Path('tests').symlink_to(HERE / 'tests')
    for name in args.name or WITNESSES:
      known[name] = make(name)
  known |= {'machine': tests.machine()}
  tests.KNOWN.write_text(json.dumps(known, indent=1) + '\n')
  for path in sorted(tests.FOLDER.glob('*.tar.xz')):
    with tempfile.TemporaryDirectory() as folder:
      name = path.name.removesuffix('.tar.xz')
      prune(workdir := tests.unpacked(name, Path(folder)))
      tests.pack(workdir, name)
    print(f'{path.stat().st_size:7,} bytes  {path.name}')


if __name__ == '__main__':
  main()
