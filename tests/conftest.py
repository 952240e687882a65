"""What the tests share: a small corpus with real structure, small configs, the real data."""

import functools
import gc
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# What one test has compiled the next one need not, whichever file it is in: half of the suite's
# time. Much of it is in the hundreds of operations that tests run one by one.
COMPILED = tempfile.TemporaryDirectory(prefix='bert_jax-compiled-')
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', COMPILED.name)
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
# Small programs are compiled once and run a few times, so most of the time went into making them
# fast: this compiles in a quarter of it. XLA_FLAGS= launch/test compiles them as a run does, and so
# do run_module(quick=False) and a test here and there.
QUICK = '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'
if tuple(map(int, metadata.version('jaxlib').split('.')[:2])) < (0, 11):  # later ones lack it
  QUICK += ' --xla_cpu_use_fusion_emitters=false'
os.environ.setdefault('XLA_FLAGS', QUICK)
# Tracing makes many small objects that live on; looking through them each time that 700 more are
# there took a sixth of a training.
gc.set_threshold(50_000, 20, 50)
ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / 'shared' / 'data'
# The files that take minutes go first, so that no process is left alone with one at the end.
LONG = """
  train night processes layouts golden_runs step worked_differences families belongs
  classification electra evaluation_masks huggingface released_families""".split()  # noqa: SIM905


def pytest_collection_modifyitems(config, items):
  if not hasattr(config, 'workerinput'):
    return
  place = {f'test_{name}': i for i, name in enumerate(LONG)}
  items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))


@pytest.fixture(scope='session')
def shared():
  """The folder of real data sets; tests that need it are skipped where it is absent."""
  if not SHARED.is_dir():
    pytest.skip(f'{SHARED} is not here')
  return SHARED


@pytest.fixture
def transformers():
  """Hugging Face's library; tests that need it, and torch, are skipped where it is absent."""
  pytest.importorskip('torch')
  return pytest.importorskip('transformers')


@pytest.fixture(scope='session')
def corpus_file(tmp_path_factory):
  """40 documents in BERT's format, each about one subject, so that neighbours can be told."""
  rng = random.Random(0)
  subjects = ['river', 'market', 'engine', 'garden', 'winter', 'letter', 'bridge', 'forest']
  verbs = ['crosses', 'holds', 'follows', 'meets', 'carries', 'finds']
  things = ['old stone', 'small boat', 'long road', 'quiet house', 'red lamp', 'open door']
  line = lambda subject: (
    f'the {subject} {rng.choice(verbs)} the {rng.choice(things)} near {subject} number '
    f'{rng.randrange(20)} .'
  )
  document = lambda i: '\n'.join(line(subjects[i % 8]) for _ in range(rng.randrange(6, 16)))
  documents = [document(i) for i in range(40)]
  path = tmp_path_factory.mktemp('corpus') / 'corpus.txt'
  path.write_text('\n\n'.join(documents) + '\n')
  return path


SMALL = """corpus.eval_share=0.2 model.vocab_size=200 model.num_hidden_layers=1 model.hidden_size=32
model.intermediate_size=64 model.max_position_embeddings=64 batch_size=8 data.seq_length=32 steps=20
eval.every=10 checkpoint.every=10 log.every=5 log.tensorboard=false"""


def fields(*texts):
  """Options of a command: 'steps=3 eval.every=0' is --config.steps=3 and --config.eval.every=0."""
  out = []
  for text in texts:
    is_short = '=' in text and not text.startswith('--')
    out += [f'--config.{word}' for word in text.split()] if is_short else [text]
  return out


def small_overrides(corpus_file):
  """Of configs/pretrain.py:runlocal: compiles in seconds; a layer, 32 wide, 20 steps of 8 x 32."""
  return fields(f'--config.data.train={corpus_file}', SMALL)


def small_pretrain(corpus_file, *overrides):
  """The config of small_overrides, and of overrides written as in `fields`."""
  from bert_jax import config

  given = [*small_overrides(corpus_file), *fields(*overrides)]
  return config.load('configs/pretrain.py:runlocal', given)


PEAK = 1e12  # operations per second of the device that `pretrained` believes to run on


@pytest.fixture(scope='session')
def pretrained(corpus_file, tmp_path_factory):
  """(workdir, State, metrics) of a finished small pre-training run. Do not write into it."""
  from bert_jax.run import speed
  from bert_jax.train import train

  workdir = tmp_path_factory.mktemp('pretrained') / 'run'
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(speed, 'peak_flops', lambda: PEAK)
    return workdir, *train(small_pretrain(corpus_file), workdir)


@pytest.fixture
def workdir(pretrained, tmp_path):
  """A copy of the workdir of `pretrained`, which may be harmed."""
  return shutil.copytree(pretrained[0], tmp_path / 'copied' / 'run')


# Fields that no step knows of.
BESIDE = 'checkpoint.', 'log.', 'spikes.', 'eval.every', 'eval.batches', 'eval.patience'
BESIDE += 'max_hours', 'data.train', 'data.eval', 'resume_from'


@pytest.fixture(scope='module')
def steps_once():
  """The steps of a file's runs are traced and compiled once for the same config, objective, mesh
  and timeline, of which a Program is a function; it must not change what is traced."""
  from bert_jax import config as config_lib
  from bert_jax import step

  make, programs, compiled = step.program, {}, {}

  def program(config, objective, mesh, timeline):
    fields = {k: x for k, x in config_lib.flatten(config).items() if not k.startswith(BESIDE)}
    parts = {k: x for k, x in vars(objective).items() if k != '_flops'}
    key = repr((fields, type(objective), parts, mesh, vars(timeline)))
    if key not in programs:
      programs[key] = make(config, objective, mesh, timeline)
    return programs[key]

  def once(lower):
    def lowered(self):
      key = lower, id(self)
      if key not in compiled:  # with the Program, so that no other gets its id
        compiled[key] = self, SimpleNamespace(compile=functools.cache(lower(self).compile))
      return compiled[key][1]

    return lowered

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(step, 'program', program)
    for name in ('lower', 'lower_evaluation'):
      patch.setattr(step.Program, name, once(getattr(step.Program, name)))
    yield


@pytest.fixture(scope='session')
def vocab(tmp_path_factory):
  """A vocabulary of the words of small_tables; some files have one of their own."""
  import small_tables  # it imports jax, which reads the environment above only once

  path = tmp_path_factory.mktemp('vocab') / 'vocab.txt'
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *small_tables.WORDS]
  path.write_text('\n'.join(pieces) + '\n')
  return path


@pytest.fixture(scope='session')
def tokenizer(vocab):
  from bert_jax import tokenizers

  return tokenizers.load(vocab)


@pytest.fixture(scope='session')
def letters(tmp_path_factory):
  """A tokenizer of some words, letters, digits and marks: nearly every word is several pieces."""
  from bert_jax import tokenizers

  path = tmp_path_factory.mktemp('letters') / 'vocab.txt'
  alphabet, words = 'abcdefghijklmnopqrstuvwxyz', 'rome he was born in met she ann eve'.split()  # noqa: SIM905
  ends = [f'##{x}' for x in (*alphabet, '2', 'km')]
  pieces = '[PAD] [UNK] [CLS] [SEP] [MASK]'.split(), words, alphabet, ends, '0123456789().,;?:李白'  # noqa: SIM905
  path.write_text('\n'.join(piece for part in pieces for piece in part) + '\n')
  return tokenizers.load(path)


# ---- small models that are asked (test_predict.py has the functions) -----------------------------


@pytest.fixture(scope='session')
def make_model(vocab, tokenizer):
  """A random Model of configs/finetune.py:task=NAME, of few words."""
  import small_tables
  from test_predict import random_model

  @functools.cache
  def make(task, *overrides):
    sizes = 'data.seq_length=64', 'model.max_position_embeddings=64', 'model.num_hidden_layers=1'
    given = '--config.data.train=none', *overrides, *fields(' '.join(sizes))
    config = small_tables.load(vocab, f'configs/finetune.py:task={task}', *given)
    return random_model(config, tokenizer)

  return make


@pytest.fixture(scope='session')
def pretrained_model(vocab, tokenizer):
  from test_predict import load_pretrain, random_model

  return random_model(load_pretrain(vocab, 1), tokenizer)


@pytest.fixture(scope='session')
def model_folder(pretrained_model, tmp_path_factory):
  """pretrained_model as others release one."""
  import safetensors.numpy
  from released import to_tensors

  folder, model = tmp_path_factory.mktemp('model'), pretrained_model.objective.model
  tensors = to_tensors(pretrained_model.params, model)
  safetensors.numpy.save_file(tensors, folder / 'model.safetensors')
  names = """vocab_size hidden_size num_hidden_layers num_attention_heads layer_norm_eps hidden_act
    intermediate_size max_position_embeddings type_vocab_size"""
  settings = {name: getattr(model, name) for name in names.split()}
  (folder / 'config.json').write_text(json.dumps(settings | {'model_type': 'bert'}))
  pretrained_model.tokenizer.save(folder)
  return folder


def run_module(*arguments, devices=1, quick=True, stdin='', check=True, timeout=600):
  """`python -m ARGUMENTS` from the repository root with `devices` simulated CPU devices. quick:
  compiled as the tests are; else as a user's run is."""
  flags = f'{os.environ["XLA_FLAGS"] * quick} --xla_force_host_platform_device_count={devices}'
  env = os.environ | dict(JAX_PLATFORMS='cpu', PYTHONPATH=str(ROOT), XLA_FLAGS=flags)
  how = dict(cwd=ROOT, env=env, input=stdin, capture_output=True, text=True, timeout=timeout)
  out = subprocess.run([sys.executable, '-m', *map(str, arguments)], **how)
  assert not check or out.returncode == 0, out.stderr[-3000:]
  return out


@pytest.fixture(autouse=True, scope='module')
def forgets():
  """What JAX has traced for a file is of no use to the next, and grows to gigabytes."""
  yield
  if jax := sys.modules.get('jax'):
    jax.clear_caches()


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
  monkeypatch.chdir(ROOT)
  yield
  for log in logging.root, logging.getLogger('bert_jax'):  # a command's, of a closed stderr
    for handler in [h for h in log.handlers if type(h) is logging.StreamHandler]:
      log.removeHandler(handler)
