"""Whole runs: killed, stopped, resumed, fine-tuned, evaluated, asked; and users' mistakes."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from conftest import PEAK, ROOT, run_module, small_pretrain
from ml_collections import ConfigDict

from bert_jax import config as c
from bert_jax import evaluate, metrics, optim, predict, sharding, tokenizers
from bert_jax.config import InputError
from bert_jax.metrics import mean
from bert_jax.objectives import mlm_nsp
from bert_jax.run import evaluation, initialization, speed
from bert_jax.step import Program, State
from bert_jax.tasks import TASKS
from bert_jax.tools.report import __main__ as report
from bert_jax.tools.sweep import __main__ as sweep
from bert_jax.train import train
from bert_jax.workdir import checkpoint, contents, manifest
from bert_jax.workdir import weights as run_weights


def same_bits(a, b):
  flat, other = (jax.tree_util.tree_flatten_with_path(x)[0] for x in (a, b))
  for (path, x), (path2, y) in zip(flat, other, strict=True):
    assert path == path2
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y), str(path))


def lines(workdir, split):
  out = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  return [line for line in out if line['split'] == split]


def train_lines(workdir):
  kept = lambda line: {k: v for k, v in line.items() if k not in speed.MEASURED}
  return [kept(line) for line in lines(workdir, 'train')]


# ---- a run is a function of (config, step) -------------------------------------------------------


def start(config, workdir):
  """The run as a process of its own."""
  workdir.parent.mkdir(parents=True, exist_ok=True)
  path = workdir.parent / f'{workdir.name}.py'
  path.write_text(
    'from bert_jax import config as c\n'
    f'def get_config(arg): return c.from_json({c.to_json(config)!r})\n'
  )
  env = dict(os.environ, PYTHONPATH=str(ROOT))
  return subprocess.Popen(
    [sys.executable, '-m', 'bert_jax.train', '--config', path, '--workdir', workdir],
    cwd=ROOT,
    env=env,
    stderr=subprocess.PIPE,
    text=True,
  )


def test_killed_and_stopped_and_resumed_ends_with_the_same_bits(corpus_file, tmp_path):
  config = small_pretrain(
    corpus_file,
    '--config.steps=300',
    '--config.checkpoint.every=20',
    '--config.eval.every=0',
    '--config.log.every=20',
  )
  whole, _ = train(config, tmp_path / 'whole')

  workdir = tmp_path / 'cut'
  folder = workdir / 'checkpoints'
  process = start(config, workdir)
  while not (folder / '40').exists():  # killed without warning, somewhere after step 40
    assert process.poll() is None, process.stderr.read()
    time.sleep(0.005)
  process.kill()
  assert process.wait() == -signal.SIGKILL

  process = start(config, workdir)  # asked to stop: saves where it is and says so
  seen = ''
  while 'continuing at step' not in seen:
    seen = process.stderr.readline()
    assert seen, 'the run ended before it continued'
  process.send_signal(signal.SIGTERM)
  rest = process.communicate()[1]
  assert process.returncode == 130 and 'the same command continues' in rest, rest
  stopped = max(int(p.name) for p in folder.iterdir() if p.name.isdigit())
  assert 40 <= stopped < 300

  resumed, _ = train(config, workdir)
  same_bits(whole, resumed)
  assert train_lines(workdir)[-1] == train_lines(tmp_path / 'whole')[-1]
  steps = [line['step'] for line in train_lines(workdir)]
  assert steps == sorted(set(steps)), 'a line was written twice'


def test_a_run_that_left_no_checkpoint_begins_anew_and_says_so(corpus_file, tmp_path, caplog):
  caplog.set_level('INFO', 'bert_jax')
  config = small_pretrain(corpus_file)
  train(config, tmp_path / 'run')
  assert 'begins anew' not in caplog.text
  shutil.rmtree(tmp_path / 'run' / 'checkpoints')  # as if it was killed before the first
  train(config, tmp_path / 'run')
  assert f'{tmp_path / "run"} has left no checkpoint: this one begins anew' in caplog.text


def test_twice_in_one_process_is_the_same(corpus_file, pretrained, tmp_path):
  state, metrics = train(small_pretrain(corpus_file), tmp_path / 'again')
  same_bits(state, pretrained[1])
  assert metrics == pretrained[2]


def test_a_finished_run_stays_finished(corpus_file, pretrained, tmp_path, monkeypatch):
  shutil.copytree(pretrained[0], tmp_path / 'run')
  written = lambda: {x: x.read_bytes() for x in (tmp_path / 'run').rglob('*') if x.is_file()}
  before = written()

  def compiles(self):
    raise AssertionError('a step was compiled')

  monkeypatch.setattr(Program, 'lower', compiles)
  state, metrics = train(small_pretrain(corpus_file), tmp_path / 'run')
  same_bits(state, pretrained[1])
  assert metrics == pretrained[2] and written() == before
  # With its newest checkpoint damaged, or with more steps, there is something left to do.
  with pytest.raises(AssertionError, match='compiled'):
    train(small_pretrain(corpus_file, '--config.steps=21'), tmp_path / 'run')
  arrays = [x for x in (tmp_path / 'run' / 'checkpoints' / '20').rglob('*') if x.is_file()]
  largest = max(arrays, key=lambda x: x.stat().st_size)
  largest.write_bytes(bytes(x ^ 1 for x in largest.read_bytes()))
  with pytest.raises(AssertionError, match='compiled'):
    train(small_pretrain(corpus_file), tmp_path / 'run')


def test_resume_from_continues_elsewhere(corpus_file, pretrained, tmp_path):
  source = tmp_path / 'source'
  half = small_pretrain(corpus_file)
  shutil.copytree(pretrained[0], source)
  shutil.rmtree(source / 'checkpoints' / '20')
  config = c.override(half, [f'--config.resume_from={source}'])
  state, _ = train(config, tmp_path / 'elsewhere')
  same_bits(state, pretrained[1])
  # Once it has a checkpoint of its own, it goes on from that.
  beginning = initialization.beginning_of(config, tmp_path / 'elsewhere')
  assert (beginning.folder, beginning.meta['step']) == (tmp_path / 'elsewhere', 20)


def test_a_workdir_tells_about_its_run(pretrained):
  workdir = pretrained[0]
  facts = json.loads((workdir / 'run.json').read_text())
  assert facts['packages']['jax'] == jax.__version__
  assert facts['data']['train']['rows'] > 0 and facts['data']['train']['fingerprint']
  assert contents.read_config(workdir).seed == 0
  assert {line['step'] for line in lines(workdir, 'train')} == {5, 10, 15, 20}
  line = lines(workdir, 'train')[-1]
  assert line['mlm_below_unigram'] == pytest.approx(
    facts['data']['train']['baselines']['mlm'][0] - line['mlm']
  )
  assert 0 < line['fill'] <= 1 and line['tokens_per_s'] > 0
  # By hand, of 256 tokens, 40 predictions and 8 pairs: 2 operations for each weight a vector meets,
  # and for each pair of tokens in scores and in values; backward is twice as much as forward.
  encoder = 256 * 2 * (4 * 32 * 32 + 2 * 32 * 64 + 2 * 32 * 32)
  heads = 40 * 2 * (32 * 32 + 32 * 256) + 8 * 2 * (32 * 32 + 32 * 2)
  mfu = 3 * (encoder + heads) * line['steps_per_s'] / PEAK
  assert facts['costs'] == {
    'parameters': sum(x.size for x in jax.tree.leaves(pretrained[1].params)),
    'flops_per_step': 3 * (encoder + heads),
  }
  assert line['mfu'] == pytest.approx(mfu, rel=1e-6)
  assert {line['step'] for line in lines(workdir, 'eval')} == {10, 20}


def test_a_line_is_the_mean_since_the_line_before(corpus_file, pretrained, tmp_path):
  config = small_pretrain(
    corpus_file,
    '--config.steps=20',
    '--config.log.every=1',
    '--config.eval.every=0',
    '--config.checkpoint.every=0',
  )
  train(config, tmp_path / 'run')
  each = {line['step']: line for line in lines(tmp_path / 'run', 'train')}
  for line in lines(pretrained[0], 'train'):
    steps = range(line['step'] - 4, line['step'] + 1)
    for name in ('loss', 'grad_norm', 'nsp'):  # every step has as many pairs
      assert line[name] == pytest.approx(np.mean([each[i][name] for i in steps]), rel=1e-5)


def test_it_learns(corpus_file, tmp_path):
  """The corpus is so regular that 400 steps must bring the loss far below its unigram line."""
  config = small_pretrain(
    corpus_file,
    '--config.steps=400',
    '--config.optimizer.name=adamw',
    '--config.optimizer.learning_rate=3e-3',
    '--config.model.hidden_dropout_prob=0',
    '--config.model.attention_probs_dropout_prob=0',
    '--config.eval.every=0',
    '--config.checkpoint.every=0',
  )
  _, metrics = train(config, tmp_path / 'run')
  assert metrics['mlm_below_unigram'] > 0.5


# ---- checkpoints ---------------------------------------------------------------------------------


def flip_a_bit(folder):
  """In the middle of the largest file: array data."""
  path = max((p for p in folder.rglob('*') if p.is_file()), key=lambda p: p.stat().st_size)
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 4
  path.write_bytes(data)


def test_a_flipped_bit_is_found_and_the_checkpoint_before_it_used(
  corpus_file, pretrained, tmp_path, caplog
):
  workdir = tmp_path / 'run'
  shutil.copytree(pretrained[0], workdir)
  flip_a_bit(workdir / 'checkpoints' / '20')
  state, _ = train(small_pretrain(corpus_file), workdir)
  assert 'checkpoint 20 in' in caplog.text and 'checksum differs' in caplog.text
  same_bits(state, pretrained[1])  # steps 11 to 20 were run again
  assert (workdir / 'damaged-checkpoint-20').is_dir() and (workdir / 'checkpoints' / '20').is_dir()


def lose_the_metadata(folder):
  shutil.rmtree(folder / 'meta')


@pytest.mark.parametrize('harm', [flip_a_bit, lose_the_metadata])
def test_when_all_are_damaged_nothing_starts_from_scratch(corpus_file, pretrained, tmp_path, harm):
  workdir = tmp_path / 'run'
  shutil.copytree(pretrained[0], workdir)
  for step in ('10', '20'):
    harm(workdir / 'checkpoints' / step)
  with pytest.raises(InputError, match=r'all checkpoints .* are damaged \(10, 20\)'):
    train(small_pretrain(corpus_file), workdir)


def test_every_single_bit_counts_in_the_checksum():
  x = np.random.RandomState(0).randn(5, 7).astype(np.float32)
  one = manifest.array_table({'params': {'x': x}})['params/x']
  for i in range(0, x.nbytes * 8, 7):
    flipped = bytearray(x.tobytes())
    flipped[i // 8] ^= 1 << i % 8
    other = np.frombuffer(bytes(flipped), np.float32).reshape(x.shape)
    assert manifest.array_table({'params': {'x': other}})['params/x'] != one
  assert manifest.array_table({'params': {'x': x[::-1]}})['params/x'] != one


MANY_ARRAYS = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from bert_jax import sharding
from bert_jax.workdir import manifest

mesh = sharding.make_mesh(2, 2, 2, jax.devices())
where = [NamedSharding(mesh, PartitionSpec(*x)) for x in (('fsdp', 'tensor'), (None, 'fsdp'))]
arrays = {str(i): jax.device_put(jnp.ones((32, 64)), where[i % 2]) for i in range(100)}
for _ in range(60):
  manifest.array_table({'params': arrays})
"""


def test_checksums_of_many_arrays_on_eight_devices_do_not_wait_for_one_another(tmp_path):
  """XLA lets a simulated device have 32 programs; one that waits for its turn may keep a thread
  that another, which sums over devices, waits for. It gives up after 40 seconds."""
  flags = '--xla_force_host_platform_device_count=8'
  env = dict(os.environ, PYTHONPATH=str(ROOT), JAX_PLATFORMS='cpu', XLA_FLAGS=flags)
  subprocess.run([sys.executable, '-c', MANY_ARRAYS], env=env, check=True, timeout=300)


def test_best_latest_and_every_are_kept(corpus_file, tmp_path):
  config = small_pretrain(
    corpus_file,
    '--config.steps=60',
    '--config.checkpoint.every=5',
    '--config.eval.every=5',
    '--config.checkpoint.keep_latest=2',
    '--config.checkpoint.keep_every=25',
    '--config.checkpoint.best_metric=nsp',
    '--config.eval.batches=0',
    '--config.optimizer.learning_rate=0.02',
  )
  train(config, tmp_path / 'run')
  history = {line['step']: line['nsp'] for line in lines(tmp_path / 'run', 'eval')}
  best = min(history, key=history.get)
  kept = {int(p.name) for p in (tmp_path / 'run' / 'checkpoints').iterdir() if p.name.isdigit()}
  assert kept == {best, 25, 50, 55, 60}
  _, step = evaluate.evaluate(tmp_path / 'run', which='best')
  assert step == best


def test_the_best_is_still_kept_after_a_resume(corpus_file, tmp_path):
  """Its score must come from the disk: a rate of 0.5 makes every later evaluation worse."""
  common = (
    '--config.checkpoint.every=5',
    '--config.eval.every=5',
    '--config.eval.batches=0',
    '--config.checkpoint.keep_latest=1',
    '--config.checkpoint.best_metric=mlm',
  )
  config = small_pretrain(corpus_file, '--config.steps=30', *common)
  train(config, tmp_path / 'run')
  saved = json.loads((tmp_path / 'run' / 'config.json').read_text())
  history = {line['step']: line['mlm'] for line in lines(tmp_path / 'run', 'eval')}
  best = min(history, key=history.get)
  worse = c.override(
    config,
    [
      '--config.optimizer.learning_rate=0.5',
      '--config.steps=60',
      f'--config.resume_from={tmp_path}/run',
    ],
  )
  shutil.copytree(tmp_path / 'run', tmp_path / 'worse')
  saved['optimizer']['learning_rate'], saved['steps'] = 0.5, 60
  saved['resume_from'] = f'{tmp_path}/run'
  del saved['seal']
  (tmp_path / 'worse' / 'config.json').write_text(json.dumps(saved))
  for path in (tmp_path / 'worse' / 'checkpoints').iterdir():
    assert path.name in (str(best), '30')
  with pytest.raises(InputError, match='config.json was changed since checkpoint 30'):
    train(worse, tmp_path / 'worse')
  meta = checkpoint.newest_meta(tmp_path / 'run')
  arguments = tmp_path / 'run', config.checkpoint, {k: meta[k] for k in ('config', 'data')}
  resumed = checkpoint.Checkpoints(*arguments, judged_by=meta['best']['of'])
  state, meta = resumed.restore(abstract_state(config, tmp_path / 'run'))
  assert not resumed.is_best({'mlm': history[best] + 0.1}, 31)
  assert resumed.best['step'] == best
  for k in (1, 2, 3):
    resumed.save(dataclasses.replace(state, step=state.step + k), {'mlm': history[best] + k}, {})
  resumed.wait()
  assert resumed.steps() == sorted({best, 33})
  # Judged on other data, the old best is none, however good its number.
  other = checkpoint.Checkpoints(*arguments, judged_by='mlm min other')
  for k in (4, 5):
    metrics = {'mlm': history[best] + k}
    other.is_best(metrics, 30 + k)
    other.save(dataclasses.replace(state, step=state.step + k), metrics, {})
  other.wait()
  assert other.steps() == [34, 35]
  shapes = abstract_state(config, tmp_path / 'run').params
  assert run_weights.load_params(tmp_path / 'run', shapes, 'best')[1] == 34


def abstract_state(config, workdir):
  """The shapes of a run's State on one device."""
  objective = TASKS['mlm_nsp'].objective(config, tokenizers.load_folder(workdir))

  def make():
    params = objective.init(jax.random.key(0))
    optimizer = optim.make_optimizer(config.optimizer, config.steps, params)
    return State(jax.numpy.zeros([], int), params, optimizer.init(params), {})

  one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), jax.eval_shape(make)
  )


def test_metadata_that_was_changed_is_not_believed(pretrained, tmp_path):
  """A valid file with other numbers in it: its seal does not fit, so step 10 is the newest good."""
  workdir = tmp_path / 'run'
  shutil.copytree(pretrained[0], workdir)
  assert checkpoint.newest_meta(workdir)['step'] == 20
  path = workdir / 'checkpoints' / '20' / 'meta' / 'metadata'
  meta = json.loads(path.read_text())
  meta['metrics']['mlm'] /= 2
  path.write_text(json.dumps(meta))
  assert checkpoint.newest_meta(workdir)['step'] == 10


def kept_by(**changes):
  """The `checkpoint` block of a config, the best by `score` being kept."""
  return ConfigDict(
    dict(keep_latest=1, keep_every=0, best_metric='score', best_mode='max') | changes
  )


def test_one_number_that_is_not_finite_is_not_saved(tmp_path):
  for number in (np.nan, np.inf, -np.inf):
    bad = {'whole': jnp.ones((3, 4)), 'most of it': jnp.ones((5, 7)).at[2, 3].set(number)}
    with contextlib.closing(checkpoint.Checkpoints(tmp_path, kept_by())) as checkpoints:
      with pytest.raises(InputError, match='not finite after step 7'):
        checkpoints.save(State(jnp.int32(7), bad, {}, {}), {}, {})
      checkpoints.wait()
      assert checkpoints.steps() == []


def test_a_frozen_number_that_is_not_finite_is_saved(tmp_path):
  """It came that way; the loss would not be finite if it were used."""
  params = {'student': jnp.ones(1), 'scale': jnp.ones(1)}
  settings = toys.config_of('optimizer.freeze=scale').optimizer
  moments = optim.make_optimizer(settings, 10, params).init(params)
  with contextlib.closing(checkpoint.Checkpoints(tmp_path, kept_by())) as checkpoints:
    for name, number in (('student', 1), ('scale', 2)):
      bad = State(jnp.int32(number), params | {name: jnp.full(1, jnp.nan)}, moments, {})
      with pytest.raises(InputError) if number == 1 else contextlib.nullcontext():
        checkpoints.save(bad, {}, {})
    checkpoints.wait()
    assert checkpoints.steps() == [2]


@pytest.mark.parametrize('mode, best', [('max', [1, 3]), ('min', [1, 2, 4])])
def test_the_best_is_the_highest_or_the_lowest(mode, best, tmp_path):
  with contextlib.closing(checkpoint.Checkpoints(tmp_path, kept_by(best_mode=mode))) as checkpoints:
    scores = {1: 0.5, 2: 0.4, 3: 0.6, 4: 0.3, 5: 0.5, 6: float('nan')}
    found = [step for step, x in scores.items() if checkpoints.is_best({'score': x}, step)]
  assert found == best and checkpoints.best['step'] == best[-1]


def test_the_best_is_saved_when_no_checkpoint_is_due(corpus_file, tmp_path):
  """At a rate of 0.5 the first evaluation is the best one, and checkpoint.every saves nothing."""
  config = small_pretrain(
    corpus_file,
    '--config.steps=9',
    '--config.eval.every=3',
    '--config.eval.batches=0',
    '--config.checkpoint.every=0',
    '--config.checkpoint.best_metric=mlm',
    '--config.optimizer.learning_rate=0.5',
    '--config.optimizer.warmup=0',
  )
  train(config, tmp_path / 'run')
  history = {line['step']: line['mlm'] for line in lines(tmp_path / 'run', 'eval')}
  best = min(history, key=history.get)
  assert best < 9
  shapes = abstract_state(config, tmp_path / 'run').params
  assert run_weights.load_params(tmp_path / 'run', shapes, 'best')[1] == best


# ---- evaluations ---------------------------------------------------------------------------------


def test_the_last_evaluation_is_of_everything(corpus_file, tmp_path):
  """Those on the way look at eval.batches of them. At a rate of 0 nothing else differs."""
  config = small_pretrain(
    corpus_file,
    '--config.steps=2',
    '--config.eval.every=1',
    '--config.eval.batches=1',
    '--config.checkpoint.every=0',
    '--config.corpus.eval_share=0.4',
    '--config.optimizer.learning_rate=0',
  )
  train(config, tmp_path / 'run')
  first, last = lines(tmp_path / 'run', 'eval')
  whole, _ = evaluate.evaluate(tmp_path / 'run')
  assert {name: last[name] for name in whole} == pytest.approx(whole)
  assert first['mlm'] != pytest.approx(last['mlm'], rel=1e-6)


class Numbers:
  """Batches that are their numbers."""

  damaged_rows, skip_damaged, lanes = 0, False, False
  source = SimpleNamespace(baselines={})

  def __len__(self):
    return 10

  def __getitem__(self, i):
    return i


@pytest.mark.parametrize(
  'count, expected', [(1, [0]), (2, [0, 5]), (4, [0, 2, 5, 7]), (0, range(10)), (99, range(10))]
)
def test_an_evaluation_looks_at_batches_all_over_the_split(count, expected):
  seen = []

  def eval_step(params, carry, batch, index, constants):
    assert batch == index
    seen.append(batch)
    return {'score': metrics.Mean(np.float32(batch), np.float32(1 + batch))}, {}, carry

  result, _ = evaluation.one_pass(eval_step, {}, {}, Numbers(), None, count)
  assert seen == list(expected)
  # Totals over weights, not the mean of the batches' means.
  assert result['score'] == pytest.approx(sum(expected) / sum(1 + i for i in expected))


# ---- a failing evaluation, a carry, frozen parameters --------------------------------------------


def test_a_failing_evaluation_loses_nothing(corpus_file, pretrained, tmp_path, monkeypatch):
  """Without checkpoint.every the state is saved before the last evaluation, which is made up for
  when the same command is given again."""
  config = small_pretrain(
    corpus_file,
    '--config.checkpoint.every=0',
    '--config.checkpoint.best_metric=mlm',
    '--config.eval.batches=0',
    '--config.checkpoint.keep_latest=1',
  )
  run = evaluation.one_pass

  def fail(*arguments):
    if calls:
      raise MemoryError('no memory for the evaluation')
    calls.append(1)
    return run(*arguments)

  calls = []
  monkeypatch.setattr(evaluation, 'one_pass', fail)
  with pytest.raises(MemoryError):
    train(config, tmp_path / 'run')
  monkeypatch.undo()
  monkeypatch.chdir(ROOT)
  saved = {int(p.name) for p in (tmp_path / 'run' / 'checkpoints').iterdir()}
  assert saved == {10, 20}  # 10 was the best until then
  state, results = train(config, tmp_path / 'run')
  same_bits(state, pretrained[1])
  assert results == pretrained[2]
  assert [line['step'] for line in lines(tmp_path / 'run', 'eval')] == [10, 20]
  meta = checkpoint.newest_meta(tmp_path / 'run')
  best = min((line['mlm'], line['step']) for line in lines(tmp_path / 'run', 'eval'))[1]
  assert meta['metrics'] == results and meta['best']['step'] == best
  kept = {int(p.name) for p in (tmp_path / 'run' / 'checkpoints').iterdir()}
  assert kept == {best, 20}


def test_train_lines_tell_the_rate_and_the_norm_of_the_update(pretrained):
  o = contents.read_config(pretrained[0]).optimizer
  warmup = o.warmup if o.warmup >= 1 else round(o.warmup * 20)
  for line in lines(pretrained[0], 'train'):
    step = line['step'] - 1  # steps are counted from 0
    share = step / warmup if step < warmup else 1 - step / 20
    assert o.schedule == 'linear' and line['learning_rate'] == pytest.approx(
      o.learning_rate * share
    )
    # Each number moves by about the rate.
    assert 0.01 < line['update_norm'] / (line['learning_rate'] * 1e2) < 100


class Remembering(mlm_nsp.MlmNsp):
  """MLM whose rows also guess the mean word vector of the rows before them in their lane."""

  @property
  def metrics(self):
    return tuple(name for name in super().metrics if name != 'memory_accuracy')

  @property
  def loss_weights(self):
    return super().loss_weights | {'memory': 1.0}

  def carry(self, batch_size):
    return {'mean': jax.ShapeDtypeStruct((batch_size, self.model.hidden_size), jnp.float32)}

  def terms(self, params, batch, rng, train, carry=None, constants=None):
    terms, _ = super().terms(params, batch, rng, train)
    table_VD = params['encoder']['embeddings']['word_embeddings']['embedding']
    mean_BD = table_VD[batch['input_ids']].mean(axis=1)
    errors_B = jnp.sum((mean_BD - carry['mean']) ** 2, axis=1)
    terms['memory'] = mean(errors_B, jnp.ones_like(errors_B))
    return terms, {'mean': 0.9 * carry['mean'] + 0.1 * jax.lax.stop_gradient(mean_BD)}


def test_a_carry_is_saved_resumed_and_empty_where_an_evaluation_begins(
  corpus_file, tmp_path, monkeypatch
):
  pretraining = TASKS['mlm_nsp']
  remembering = lambda *arguments: Remembering(**vars(pretraining.objective(*arguments)))
  record = dataclasses.replace(pretraining, objective=remembering)
  monkeypatch.setitem(TASKS, 'mlm_nsp', record)
  config = small_pretrain(corpus_file, '--config.eval.batches=2')
  whole, results = train(config, tmp_path / 'run')
  assert whole.carry['mean'].shape == (8, 32) and np.abs(whole.carry['mean']).min(axis=0).max() > 0
  shutil.rmtree(tmp_path / 'run' / 'checkpoints' / '20')
  resumed, again = train(config, tmp_path / 'run')
  same_bits(whole, resumed)
  assert again == results
  assert evaluate.evaluate(tmp_path / 'run')[0] == pytest.approx(results, rel=1e-6)


def test_moments_of_frozen_parameters_are_read_and_dropped_or_zero(pretrained, tmp_path):
  """Checkpoints of older versions hold them; a parameter that was frozen starts from zeros."""
  workdir = pretrained[0]
  config = contents.read_config(workdir)
  frozen = c.override(config, ['--config.optimizer.freeze=^encoder'])
  full, some = (abstract_state(x, workdir) for x in (config, frozen))
  with contextlib.closing(checkpoint.Checkpoints(workdir)) as checkpoints:
    state, meta = checkpoints.restore(some)
  manifest.check_continues(meta, some, meta, 20, False)
  same_bits(state.params, pretrained[1].params)
  moments = manifest.flat(state.opt_state)
  assert not [name for name in moments if 'encoder' in name] and '2.mu.mlm.bias' in moments
  same_bits(moments, {k: manifest.flat(pretrained[1].opt_state)[k] for k in moments})
  with contextlib.closing(
    checkpoint.Checkpoints(tmp_path / 'run', config.checkpoint)
  ) as checkpoints:
    checkpoints.save(state, {}, {})
    checkpoints.wait()
    back, _ = checkpoints.restore(full)
  for name, x in manifest.flat(back.opt_state).items():
    np.testing.assert_array_equal(x, moments.get(name, np.zeros_like(x)))
  same_bits(back.params, state.params)


# ---- mistakes ------------------------------------------------------------------------------------


def test_another_configs_workdir_is_refused_and_left_alone(corpus_file, pretrained, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(pretrained[0], workdir)
  before = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
  with pytest.raises(InputError, match=r'another config \(seed: 0 -> 1\); use another --workdir'):
    train(small_pretrain(corpus_file, '--config.seed=1'), workdir)
  assert {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()} == before


def test_other_data_under_the_same_name_is_refused(corpus_file, pretrained, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(pretrained[0], workdir)
  text = tmp_path / 'corpus.txt'
  text.write_text(corpus_file.read_text().replace('river', 'market'))
  config = small_pretrain(corpus_file, '--config.steps=40')
  saved = json.loads((workdir / 'config.json').read_text())
  saved['data']['train'], saved['steps'] = str(text), 40
  del saved['seal']
  (workdir / 'config.json').write_text(json.dumps(saved))
  with pytest.raises(InputError, match='training data is not what it was'):
    train(c.override(config, [f'--config.data.train={text}']), workdir)


@pytest.mark.parametrize('rate', ['1e38', '1e18'])
def test_numbers_that_are_not_finite_end_the_run_and_are_never_saved(corpus_file, tmp_path, rate):
  config = small_pretrain(
    corpus_file,
    f'--config.optimizer.learning_rate={rate}',
    '--config.optimizer.clip_norm=0',
    '--config.checkpoint.every=1',
    '--config.checkpoint.keep_latest=100',
    '--config.optimizer.warmup=0',
  )
  with pytest.raises(InputError, match='not finite after step|the (loss|grad_norm) is (nan|inf)'):
    train(config, tmp_path / 'run')
  objective = TASKS['mlm_nsp'].objective(config, tokenizers.load_folder(tmp_path / 'run'))
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  shapes = sharding.placed(shapes, sharding.make_mesh(-1, 1, 1))
  for step in checkpoint.Checkpoints(tmp_path / 'run').steps():
    params, _ = run_weights.load_params(tmp_path / 'run', shapes, step)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))


@pytest.mark.parametrize(
  'overrides, sentence',
  [
    (['--config.data.train=nowhere.txt'], 'nowhere.txt'),
    (
      ['--config.batch_size=9', '--config.mesh.data=1', '--config.mesh.tensor=2'],
      'does not multiply',
    ),
    (['--config.tokenizer.path=nowhere/vocab.txt'], 'path=nowhere/vocab.txt is no file; name a'),
    (['--config.resume_from=nowhere'], 'resume_from=nowhere does not exist; name a workdir'),
    (['--config.resume_from=tests'], 'resume_from=tests has no checkpoint; train it first'),
    (['--config.init_from=./nowhere'], 'nowhere holds no run'),
    (['--config.corpus.eval_share=0.0001'], 'eval data has 0 documents and needs 2'),
    (
      ['--config.corpus.eval_share=0.0001', '--config.corpus.format=paragraphs'],
      'needs 2 .*; a file is a document here .*; give more files, name some in data.eval, or lower',
    ),
    (['--config.model.vocab_size=30'], r'model.vocab_size 30 cannot hold .*; use \d+ or more, or'),
    (
      ['--config.checkpoint.best_metric=accuracy', '--config.eval.batches=0'],
      'is not among the metrics of this objective: mlm, mlm_accuracy, nsp',
    ),
  ],
)
def test_mistakes_are_one_sentence_and_leave_no_workdir(corpus_file, tmp_path, overrides, sentence):
  with pytest.raises(InputError, match=sentence) as caught:
    train(small_pretrain(corpus_file, *overrides), tmp_path / 'run')
  assert '\n' not in str(caught.value)
  assert not (tmp_path / 'run').exists()


def test_a_vocabulary_of_another_size_is_refused(corpus_file, pretrained, tmp_path):
  path = pretrained[0] / 'vocab.txt'
  config = small_pretrain(
    corpus_file, f'--config.tokenizer.path={path}', '--config.model.vocab_size=300'
  )
  with pytest.raises(
    InputError,
    match='has 200 pieces and model.vocab_size is 300; set --config.model.vocab_size=200',
  ):
    train(config, tmp_path / 'run')


def test_the_command_line_says_it_in_one_line():
  out = run_module(
    'bert_jax.train',
    '--config',
    'configs/pretrain.py:runlocal',
    '--config.model.hiden_size=64',
    check=False,
  )
  assert out.returncode == 2
  assert out.stderr.splitlines()[-1] == (
    "error: config has no field 'model.hiden_size'; did you mean 'model.hidden_size'?"
  )


# ---- from pre-trained weights to answers ---------------------------------------------------------


@pytest.fixture(scope='module')
def labelled(tmp_path_factory):
  """A table whose label is a word of the text."""
  rng = np.random.RandomState(0)
  folder = tmp_path_factory.mktemp('labelled')
  for name, count in (('train', 64), ('dev', 21)):
    rows = ['sentence\tlabel']
    for _ in range(count):
      label = ('river', 'market')[rng.randint(2)]
      rows.append(f'the {label} holds the old stone near {rng.randint(20)}\t{label}')
    (folder / f'{name}.tsv').write_text('\n'.join(rows) + '\n')
  return folder


def small_finetune(labelled, *overrides):
  return c.load(
    'configs/finetune.py:runlocal',
    [
      f'--config.data.train={labelled}/train.tsv',
      f'--config.data.eval={labelled}/dev.tsv',
      '--config.steps=150',
      '--config.batch_size=8',
      '--config.data.seq_length=16',
      '--config.optimizer.learning_rate=1e-3',
      '--config.eval.every=0',
      '--config.log.every=20',
      '--config.checkpoint.every=0',
      '--config.log.tensorboard=false',
      *overrides,
    ],
  )


@pytest.fixture(scope='module')
def finetuned(pretrained, labelled, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('finetuned') / 'run'
  config = small_finetune(labelled, f'--config.init_from={pretrained[0]}')
  return workdir, *train(config, workdir)


def test_fine_tuning_takes_sizes_vocabulary_and_weights(finetuned, pretrained):
  workdir, state, metrics = finetuned
  assert contents.read_config(workdir).model.hidden_size == 32
  assert (workdir / 'vocab.txt').read_bytes() == (pretrained[0] / 'vocab.txt').read_bytes()
  assert metrics['classification_accuracy'] == 1.0


def test_a_run_that_has_begun_needs_init_from_no_more(pretrained, labelled, tmp_path):
  source = tmp_path / 'source'
  shutil.copytree(pretrained[0], source)
  config = small_finetune(labelled, f'--config.init_from={source}')
  state, metrics = train(config, tmp_path / 'run')
  shutil.rmtree(source)
  again, metrics2 = train(config, tmp_path / 'run')
  same_bits(state, again)
  assert metrics2 == metrics


def test_a_head_for_other_labels_starts_new(finetuned, labelled, tmp_path, caplog):
  caplog.set_level('INFO', 'bert_jax')
  rows = (labelled / 'train.tsv').read_text().splitlines()
  (tmp_path / 'train.tsv').write_text('\n'.join([*rows, 'the winter\twinter']) + '\n')
  config = small_finetune(
    labelled,
    f'--config.init_from={finetuned[0]}',
    '--config.steps=1',
    f'--config.data.train={tmp_path}/train.tsv',
  )
  state, _ = train(config, tmp_path / 'run')
  assert state.params['classifier']['dense']['kernel'].shape == (32, 3)
  assert (
    'taken: encoder, pooler; new: classifier; not used: classifier for other labels' in caplog.text
  )


def test_a_head_for_as_many_other_labels_starts_new(finetuned, labelled, tmp_path, caplog):
  caplog.set_level('INFO', 'bert_jax')
  text = (labelled / 'train.tsv').read_text()
  one, other = sorted({line.split('\t')[1] for line in text.splitlines()[1:]})
  text = text.replace(f'\t{one}\n', f'\tnot {one}\n')
  (tmp_path / 'train.tsv').write_text(text)
  config = small_finetune(
    labelled,
    f'--config.init_from={finetuned[0]}',
    '--config.steps=1',
    '--config.data.eval=',
    f'--config.data.train={tmp_path}/train.tsv',
  )
  train(config, tmp_path / 'run')
  assert 'new: classifier; not used: classifier for other labels' in caplog.text


def test_another_vocabulary_of_the_same_size_is_refused(pretrained, labelled, tmp_path):
  pieces = (pretrained[0] / 'vocab.txt').read_text().splitlines()
  (tmp_path / 'vocab.txt').write_text('\n'.join(pieces[:5] + pieces[:4:-1]) + '\n')
  config = small_finetune(
    labelled, f'--config.init_from={pretrained[0]}', f'--config.tokenizer.path={tmp_path}/vocab.txt'
  )
  with pytest.raises(InputError, match='is not the vocabulary of'):
    train(config, tmp_path / 'run')


def test_a_mistyped_vocabulary_is_named_beside_init_from(corpus_file, pretrained, tmp_path):
  paths = f'--config.init_from={pretrained[0]}', '--config.tokenizer.path=nowhere/vocab.txt'
  with pytest.raises(InputError, match='tokenizer.path=nowhere/vocab.txt is no file'):
    train(small_pretrain(corpus_file, *paths), tmp_path / 'run')


def test_warm_start_copies_what_is_there_and_names_the_rest(pretrained, labelled, tmp_path, caplog):
  caplog.set_level('INFO', 'bert_jax')
  config = small_finetune(
    labelled,
    f'--config.init_from={pretrained[0]}',
    '--config.steps=1',
    '--config.optimizer.learning_rate=0',
  )
  state, _ = train(config, tmp_path / 'run')
  same_bits(state.params['encoder'], pretrained[1].params['encoder'])
  same_bits(state.params['pooler'], pretrained[1].params['pooler'])
  assert 'new: classifier; not used: mlm, nsp' in caplog.text


def test_warm_start_into_scanned_layers(pretrained, labelled, tmp_path):
  config = small_finetune(
    labelled,
    f'--config.init_from={pretrained[0]}',
    '--config.steps=1',
    '--config.optimizer.learning_rate=0',
    '--config.model.scan_layers=true',
  )
  state, _ = train(config, tmp_path / 'run')
  np.testing.assert_array_equal(
    state.params['encoder']['layers']['intermediate']['kernel'][0],
    pretrained[1].params['encoder']['layer_0']['intermediate']['kernel'],
  )


def test_evaluate_repeats_the_last_evaluation_and_reads_another_file(finetuned, labelled, tmp_path):
  out = run_module('bert_jax.evaluate', '--workdir', finetuned[0])
  result = json.loads(out.stdout)
  for name, value in finetuned[2].items():
    assert result[name] == pytest.approx(value, abs=1e-5)
  data = json.loads((finetuned[0] / 'run.json').read_text())['data']
  assert (data['train']['examples'], data['eval']['examples'], result['examples']) == (64, 21, 21)
  level, _ = data['eval']['baselines']['classification_accuracy']
  assert result['classification_accuracy_majority'] == level >= 0.5
  rows = (labelled / 'dev.tsv').read_text().splitlines()
  (tmp_path / 'wrong.tsv').write_text(
    '\n'.join(
      rows[:1]
      + [
        r.rsplit('\t', 1)[0] + '\t' + ('market' if r.endswith('river') else 'river')
        for r in rows[1:]
      ]
    )
    + '\n'
  )
  result, _ = evaluate.evaluate(finetuned[0], [f'--config.data.eval={tmp_path}/wrong.tsv'])
  assert result['classification_accuracy'] == 0.0


def test_predict_classifies_from_stdin(finetuned):
  out = run_module(
    'bert_jax.predict', '--model', finetuned[0], stdin='the river holds\n\nthe market holds\n'
  )
  first, empty, second = map(json.loads, out.stdout.splitlines())
  assert first['label'] == 'river' and second['label'] == 'market'
  assert first['probability'] == max(first['probabilities'].values()) > 0.5
  assert empty['error'] == 'empty line'


def test_predictions_do_not_depend_on_the_batch_they_come_in(finetuned):
  model = predict.Model(finetuned[0])
  texts = ['the river holds', 'market ' * 10, 'the old stone', 'red lamp']
  together = model.classify(texts)
  for text, result in zip(texts, together):
    assert model.classify([text])[0] == pytest.approx(result, abs=1e-5)
  assert not model.counts
  model.classify(['river ' * 15])  # training cut at 16 tokens, so do answers
  assert model.counts == {'examples cut (longer than 16 tokens)': 1}


def test_fill_mask_ranks_candidates_for_each_mask(pretrained):
  model = predict.Model(pretrained[0])
  one, two, none = model.fill_mask(['the [MASK] holds', '[MASK] river [MASK]', 'no mask'], top_k=3)
  assert [len(one), len(two), len(none)] == [1, 2, 0]
  values = [p for _, p in one[0]]
  assert len(values) == 3 and values == sorted(values, reverse=True) and 0 < sum(values) <= 1
  everything = model.fill_mask(['the [MASK] holds'], top_k=200)[0][0]
  assert sum(p for _, p in everything) == pytest.approx(1.0, abs=1e-4)


def test_a_model_is_not_asked_for_what_it_cannot_do(pretrained, finetuned):
  with pytest.raises(InputError, match='has no classifier'):
    predict.Model(pretrained[0]).classify(['x'])
  with pytest.raises(InputError, match='has no masked-LM head'):
    predict.Model(finetuned[0]).fill_mask(['[MASK]'])
  with pytest.raises(InputError, match='reads single texts and got 2'):
    predict.Model(finetuned[0]).classify([('a', 'b')])


@pytest.mark.slow
def test_sweep_runs_seeds_and_report_reads_workdirs_alone(pretrained, labelled, tmp_path, capsys):
  config = small_finetune(labelled)
  fixed = [
    'data.train',
    'data.eval',
    'steps',
    'batch_size',
    'data.seq_length',
    'eval.every',
    'checkpoint.every',
    'log.tensorboard',
    'optimizer.learning_rate',
  ]
  flat = c.flatten(config)
  sweep.main(
    [
      '--config',
      'configs/finetune.py:runlocal',
      '--workdir',
      str(tmp_path),
      '--seeds',
      '2',
      '--vary',
      f'init_from=,{pretrained[0]}',
      '--config.model.vocab_size=200',
      f'--config.tokenizer.path={pretrained[0]}/vocab.txt',
      '--config.model.num_hidden_layers=1',
      '--config.model.hidden_size=32',
      '--config.model.intermediate_size=64',
      '--config.model.max_position_embeddings=64',
      *(f'--config.{k}={flat[k]}' for k in fixed),
    ]
  )
  rows = capsys.readouterr().out.split('\n\n')[1].splitlines()
  assert len(rows) == 3 and rows[0].startswith('arm')
  assert '±' in rows[1] and 'init_from=none' in rows[1] and rows[2].startswith('init_from=')
  values = [
    lines(p.parent, 'eval')[-1]['classification_accuracy']
    for p in sorted(tmp_path.glob('init_from=none*/config.json'))
  ]
  assert f'{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}' in rows[1]
  report.main([str(tmp_path), '--picture', str(tmp_path / 'curves.png')])
  assert (tmp_path / 'curves.png').read_bytes().startswith(b'\x89PNG')
