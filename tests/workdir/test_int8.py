"""Weights in int8: how far they move, what they cost, and what a program of them reads."""

import contextlib
import json
import re
import shutil
import time

import jax
import numpy as np
import pytest
import safetensors.numpy
from conftest import small_pretrain
from jax import export as jax_export
from refusal import refused
from running import same_bits

from bert_jax import models
from bert_jax.config import InputError
from bert_jax.evaluate import evaluate
from bert_jax.evaluate import main as evaluate_main
from bert_jax.predict import Model, export
from bert_jax.predict.__main__ import main as predict_main
from bert_jax.run import setup
from bert_jax.run.inputs import read_inputs
from bert_jax.workdir import int8, trained
from bert_jax.workdir.contents import answers_folder, evaluated_on

TEXTS = ['the river meets the old stone .', 'the [MASK] crosses the road', 'near number 7 .']


def some_params(width=384):
  """Parameters with numbers of very different sizes, by channel."""
  rng = np.random.default_rng(0)
  size = lambda shape: 10.0 ** rng.uniform(-6, 3, shape[-1])
  draw = lambda *shape: (rng.standard_normal(shape) * size(shape)).astype(np.float32)
  kernel = draw(width, 4 * width)
  kernel[:, 3] = 0
  table = draw(width, 1000).T.copy()
  tables = {'word_embeddings': {'embedding': table}, 'LayerNorm': {'scale': draw(width)}}
  layer = {'kernel': kernel, 'bias': draw(4 * width)}
  return {'encoder': {'embeddings': tables, 'layer_0': layer}}


def test_a_number_moves_by_half_a_scale_at_most_and_once():
  params = some_params()
  stored = int8.quantized(params)
  name, table = 'encoder.layer_0.kernel', 'encoder.embeddings.word_embeddings.embedding'
  assert stored[name + int8.SCALE].shape == (1, 4 * 384)  # of each column
  assert stored[table + int8.SCALE].shape == (1000, 1)  # of each word
  for place, axis in ((name, 0), (table, 1)):
    whole, x = stored[place], int8.manifest.flat(params)[place]
    assert (whole.dtype, stored[place + int8.SCALE].dtype) == (np.int8, np.float32)
    scale = stored[place + int8.SCALE].astype(np.float64)
    assert whole.min() >= -127
    error = np.abs(whole * scale - x)
    assert (error <= scale / 2 * (1 + 1e-6)).all() and error.max() > 0
    largest, most = (np.abs(x).max(axis=axis, keepdims=True) for x in (x, whole))
    used = largest > 0
    assert (most[used] == 127).all()
    np.testing.assert_allclose(scale[used], (largest / 127)[used], rtol=2**-15)
  again = int8.rounded(params)
  norms = lambda params: params['encoder']['embeddings']['LayerNorm']
  same_bits(norms(again), norms(params))
  same_bits(again['encoder']['layer_0']['bias'], params['encoder']['layer_0']['bias'])
  assert not np.any(again['encoder']['layer_0']['kernel'][:, 3])
  same_bits(int8.rounded(again), again)
  twice = int8.quantized(again)
  for name, x in stored.items():
    np.testing.assert_array_equal(twice[name], x, name)


def test_stacked_layers_have_scales_of_their_own():
  params = {'encoder': {f'layer_{i}': some_params()['encoder']['layer_0'] for i in range(2)}}
  params['encoder']['layer_1'] = jax.tree.map(lambda x: 3 * x, params['encoder']['layer_1'])
  stacked = models.stack_layers(params)
  same_bits(models.unstack_layers(int8.rounded(stacked)), int8.rounded(params))


def test_answers_in_int8_are_near_the_runs_own(pretrained, capsys, tmp_path):
  mine = Model(pretrained[0], in_int8=True).embed(TEXTS)
  whole = Model(pretrained[0]).embed(TEXTS)
  assert 1e-4 < np.abs(mine - whole).max() < 0.05
  (tmp_path / 'in.txt').write_text('\n'.join(TEXTS) + '\n')
  command = ['--model', str(pretrained[0]), '--task', 'embed', '--int8']
  predict_main([*command, '--input', str(tmp_path / 'in.txt')])
  said = [json.loads(line)['embedding'] for line in capsys.readouterr().out.splitlines()]
  np.testing.assert_allclose(said, mine, atol=1e-5)


def test_an_int8_folder_of_an_earlier_version_is_refused_by_name(corpus_file, pretrained, tmp_path):
  folder = shutil.copytree(pretrained[0], tmp_path / 'in_int8')
  shutil.rmtree(folder / 'checkpoints')
  (folder / 'int8.json').write_text('{"step": 20}')
  config, new = small_pretrain(corpus_file, f'init_from={folder}'), tmp_path / 'run'
  for reads in (
    lambda: trained.load(folder),
    lambda: evaluate(folder),
    lambda: read_inputs(small_pretrain(corpus_file), folder),
    lambda: setup.prepare(read_inputs(config, new), contextlib.ExitStack(), time.monotonic()),
  ):
    with pytest.raises(InputError, match='holds weights in int8, which this version does not read'):
      reads()


def test_an_evaluation_says_what_int8_costs(pretrained, capsys, monkeypatch):
  evaluate_main(['--workdir', str(pretrained[0]), '--int8'])
  mine, whole = json.loads(capsys.readouterr().out), pretrained[2]['mlm']
  assert mine['step'] == 20 and 1e-6 < abs(mine['mlm'] - whole) < 0.01
  monkeypatch.setenv('SLURM_STEP_NUM_TASKS', '2')
  with refused('bert_jax.evaluate --int8 runs in one process'):
    evaluate(pretrained[0], in_int8=True)
  assert answers_folder('w', 'x', '20-int8').name == 'x-20-int8'
  names = {('', ''): 'embedded-3', ('a.tsv', ''): 'held_out-3', ('a.tsv', 'b.tsv'): 'b.tsv-3'}
  for data, name in names.items():
    assert answers_folder('w', evaluated_on(*data), 3).name == name


def test_answers_are_called_by_the_last_part_of_a_path(tmp_path):
  name = lambda spec: answers_folder(tmp_path, spec, 7).name
  assert re.fullmatch('new.csv-[0-9a-f]{8}-7', name('/home/me/new.csv'))
  assert re.fullmatch('new.csv-[0-9a-f]{8}-7', name('gs://bucket/new.csv'))
  assert name('/home/me/new.csv') != name('/home/you/new.csv')
  for several in ('en=a/b.tsv,de=a/c.tsv', 'a/*.tsv', 'wiki/{language}.txt', 'tfds:glue/sst2'):
    plain = re.sub('[^\\w.=]+', '_', several.removeprefix('tfds:'))
    assert name(several) == f'{plain.strip("_")}-7'
  (tmp_path / 'eval' / 'home_me_new.csv-7').mkdir(parents=True)  # of an earlier version
  assert name('/home/me/new.csv') == 'home_me_new.csv-7'


def test_an_exported_program_reads_int8(pretrained, tmp_path, monkeypatch):
  monkeypatch.setattr(export, 'PLATFORMS', ('cpu',))
  programs = []
  for in_int8 in (True, False):
    model, out = Model(pretrained[0], in_int8=in_int8), tmp_path / str(in_int8)
    export.write(model, 'embed', out)
    programs.append(jax_export.deserialize(bytearray((out / 'model.stablehlo').read_bytes())))
  weights = safetensors.numpy.load_file(tmp_path / 'True' / 'weights.safetensors')
  assert weights['encoder.layer_0.output.kernel'].dtype == np.int8
  ids = np.array([[*model.tokenizer.begin_ids, 9, 11, 3]], np.int32)
  rows = ids, np.zeros_like(ids), np.ones_like(ids)
  mine, other = (
    program.call(each, *rows)['embedding']
    for program, each in zip(programs, (weights, int8.floats(weights)))
  )
  np.testing.assert_allclose(mine, other, atol=1e-6)


def test_weights_that_int8_is_not_for_are_refused():
  with pytest.raises(InputError, match='for weights of two dimensions; leave'):
    int8.quantized({'student': np.zeros(3), 'scale': np.ones(1)})
  with pytest.raises(InputError, match='encoder.kernel has numbers that are not finite'):
    int8.quantized({'encoder': {'kernel': np.float32([[1, np.nan]])}})
