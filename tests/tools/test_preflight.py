"""Preflight: what it reads from a compiled program, and the real TPU compiler on a small step."""

import contextlib
import dataclasses
import json
import math
import os
import re
import time
import types

import jax
import jax.numpy as jnp
import pytest
from conftest import run_module, small_pretrain
from test_pod_estimates import fake_chip
from test_pod_estimates import fake_mesh as mesh_of

from bert_jax import command_line, models, sharding
from bert_jax import config as c
from bert_jax.config import InputError
from bert_jax.tasks import TASKS
from bert_jax.text import documents
from bert_jax.tools.preflight import __main__ as preflight
from bert_jax.tools.preflight import chips, compilation, estimate, hlo
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.prepare.steps import Settings
from bert_jax.workdir import contents

PROGRAM = """HloModule jit_train_step, is_scheduled=true

%fused (param_0: f32[8,16], param_1: bf16[16,16]) -> f32[8,16] {
  %param_0 = f32[8,16]{1,0:T(8,128)S(1)} parameter(0)
  %param_1 = bf16[16,16]{1,0} parameter(1)
  ROOT %convolution.1 = f32[8,16]{1,0} convolution(%param_0, %param_1), dim_labels=bf_io->bf, metadata={op_name="jit(train_step)/layer_0/attention/query/dot_general" stack_frame_id=1}
}

%piece (param_0: f32[8,16]) -> bf16[8,16] {
  ROOT %all-gather.7 = bf16[8,16]{1,0} all-gather(%p), channel_id=7, dimensions={0}
}

%body (state: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %state = (s32[], f32[8,16]{1,0}) parameter(0)
  %x = f32[8,16]{1,0} get-tuple-element(%state), index=1
  %fusion.1 = f32[8,16]{1,0} fusion(%x, %x), kind=kOutput, calls=%fused, metadata={op_name="jit(train_step)/layer_0/attention/query/dot_general"}, backend_config={"window_config":{"estimated_cycles":"100"}}
  %all-gather-start.1 = (f32[4,16]{1,0}, f32[8,16]{1,0}) all-gather-start(%fusion.1), dimensions={0}
  ROOT %out = (s32[], f32[8,16]{1,0}) tuple(%x, %fusion.1)
}

%cond.2 (state: (s32[], f32[8,16])) -> pred[] {
  %end = s32[]{:T(128)} constant(5)
  %count = s32[] get-tuple-element(%state), index=0
  ROOT %lt = pred[] compare(%count, %end), direction=LT
}

%cond.3 (state: (s32[], f32[8,16])) -> pred[] {
  ROOT %told = pred[] get-tuple-element(%state), index=0
}

ENTRY %main (p: f32[8,16]) -> f32[8,16] {
  %p = f32[8,16]{1,0} parameter(0), metadata={op_name="state.params"}
  %while.1 = (s32[], f32[8,16]{1,0}) while(%p), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"12"}}
  %all-reduce.1 = f32[1024]{0:T(1024)} all-reduce(%p), to_apply=%add, backend_config={"estimated_cycles":"7"}
  %reduce-scatter.1 = bf16[4,16]{1,0} reduce-scatter(%p), dimensions={0}
  %async.1 = bf16[8,16]{1,0} fusion(%p), calls=%piece
  ROOT %add.1 = f32[8,16]{1,0} add(%p, %p), metadata={op_name="jit(train_step)/optimizer/add"}, backend_config={"window_config":{"estimated_cycles":"5"}}
}
"""  # noqa: E501


def test_loops_count_as_often_as_they_run():
  program = hlo.Program(PROGRAM)
  assert program.cycles() == {'attention': 1200, 'collectives': 7, 'optimizer': 5}
  (product,) = program.float32_products('/layer')
  assert product.endswith('/attention/query/dot_general')
  assert program.float32_products('MaskedLM') == []
  assert program.largest(1) == [(4096, 'all-reduce.1')]


def test_the_length_of_a_loop_is_read_from_its_condition_too():
  counted = PROGRAM.replace('condition=%cond, ', 'condition=%cond.2, ').replace(
    ', backend_config={"known_trip_count":{"n":"12"}}', ''
  )
  assert hlo.Program(counted).cycles()['attention'] == 500
  assert hlo.Program(counted).endless() == []
  unsigned = counted.replace('%end = s32[]{:T(128)}', '%end = u32[]{:T(128)}')
  assert hlo.Program(unsigned).cycles()['attention'] == 500
  unknown = hlo.Program(counted.replace('=%cond.2, ', '=%cond.3, '))
  assert unknown.endless() == ['while.1']
  (said,) = estimate._warnings(unknown, 'float32')
  assert said == '1 loops of unknown length, such as while.1, are left out'


def test_conditionals_with_several_dear_branches_are_named():
  line = '  %if.1 = f32[8]{0} conditional(%p, %p), branch_computations={%body, OTHER}\n'
  program = lambda other: hlo.Program(
    PROGRAM.replace('  %async.1', line.replace('OTHER', other) + '  %async.1')
  )
  assert program('%piece').choices() == []  # which has no cycles
  assert program('%body').choices() == ['if.1']
  assert program('%body').cycles()['attention'] == 1200 + 2 * 100


@pytest.mark.parametrize(
  'text, used, limit',
  [
    ('XLA:TPU ... Ran out of memory in memory space hbm. Used 30.50G of 15.75G hbm.', 30.5, 15.75),
    ('memory required for HLO temporaries (8.00T) exceeds available HBM (15.75G).', 8192, 15.75),
  ],
)
def test_what_the_compiler_says_when_it_does_not_fit(text, used, limit):
  assert compilation.too_large(RuntimeError(text)) == (int(used * 2**30), int(limit * 2**30))
  with pytest.raises(InputError, match='takes no such program .something else.; change'):
    compilation.too_large(RuntimeError('something else'))
  with pytest.raises(InputError, match='16.00M vmem.*possible: a higher optimizer.accumulation'):
    compilation.too_large(RuntimeError('memory space vmem. Used 16.23M of 16.00M vmem.'))


@pytest.mark.parametrize('task', ['docs', 'stsb', 'ner', 'squad', 'dream', 'gap'])
def test_every_objective_has_a_step_without_its_data(task):
  config = c.load(f'configs/finetune.py:task={task},size=tiny', [])
  objective = estimate.objective_of(config)
  B, *parts = objective.spec(8)['input_ids'].shape
  assert (B, math.prod(parts)) == (8, config.data.seq_length)
  assert objective.flops(8) > 0


def test_a_family_says_what_stands_for_its_labels(monkeypatch):
  def stand_in(config):
    config.table.labels = ('a', 'b', 'c')
    return config

  config = c.load('configs/finetune.py:task=docs,size=tiny', [])
  record = dataclasses.replace(TASKS['classification'], stand_in=stand_in)
  monkeypatch.setitem(TASKS, 'classification', record)
  assert estimate.objective_of(config).labels == ('a', 'b', 'c')
  assert not config.table.labels


@pytest.mark.parametrize(
  ('bytes_of', 'most'),
  [
    (lambda rows: 1000 + 30 * rows, 500),
    (lambda rows: 1000 + 3000 * rows, 5),
    (lambda rows: 1000 + rows // 2, estimate.MOST_ROWS),
    # What is recomputed near the limit takes no more memory, for a while.
    (lambda rows: min(1000 + 30 * rows, 15_900) if rows < 700 else 17_000, 699),
  ],
)
def test_the_largest_batch_is_found_in_a_few_compilations(bytes_of, most, monkeypatch):
  tried, devices = [], jax.devices()

  def compiled(config, *_):
    rows = config.batch_size // len(devices)
    tried.append(rows)
    over = bytes_of(rows) - 16_000
    sizes = {'hbm_bytes': 16_000 + over, 'hbm_limit': 16_000}
    return {'fits': over <= 0, 'estimates': {}} | sizes

  monkeypatch.setattr(estimate, 'estimate', compiled)
  noted = list[str]()
  found = estimate.largest_batch(c.load('configs/pretrain.py'), devices, None, noted.append)
  assert most * 15 / 16 <= found['batch_size'] / len(devices) <= most
  assert found['notes'] == [f'the largest batch_size that fits is {found["batch_size"]}']
  assert len(tried) == len(set(tried)) == len(noted) <= 10
  assert tried[0] == 256 // len(devices)  # of the config


NOWHERE = {'fits': False, 'estimates': {}, 'hbm_bytes': 19e9, 'hbm_limit': 17e9}


def as_if_compiled(report_of, monkeypatch):
  """Preflight reports what this function says, of chips that nothing is compiled for."""
  monkeypatch.setattr(estimate, 'estimate', report_of)
  monkeypatch.setattr(preflight, 'table', lambda report: f'fits: {report["fits"]}')
  monkeypatch.setattr(chips, 'Chip', lambda device: None)
  monkeypatch.setattr(chips, 'devices_of', lambda name, slices: grid(int(name.rpartition('-')[2])))
  monkeypatch.setattr(sharding, 'mesh_of', fake_mesh)


@pytest.mark.parametrize(
  'options', (['--topology', 'v5e-16'], ['--best', '--compare', 'v5e-16,v6e-32'])
)
def test_what_is_known_is_printed_at_ctrl_c(options, monkeypatch, capsys):
  def report_of(config, devices, chip):
    if config.mesh.fsdp == 4:
      raise KeyboardInterrupt
    return NOWHERE

  as_if_compiled(report_of, monkeypatch)
  with pytest.raises(SystemExit) as end:
    preflight.main(['--config', 'configs/pretrain.py:size=tiny', *options])
  out, err = capsys.readouterr()
  assert end.value.code == 130 and err.endswith('is known; what was compiled is kept\n')
  assert re.search(r'chips, hosts +16, 4\b.*\nfits +\?', err)  # before anything is compiled
  whole = '--best' in options and r'hosts .* 32, 8\nfits +NO, 19.0 of 17.0 GB +\?\n'
  assert not whole or re.search(whole, out)
  assert 'v5e-16: the config as it is: NO, 19.0 of 17.0 GB\n' in out
  assert 'v5e-16: mesh.data=-1 mesh.fsdp=16: NO, 19.0 of 17.0 GB\n' in out


def test_a_search_of_the_largest_batch_prints_at_ctrl_c_what_was_tried(monkeypatch, capsys):
  def report_of(config, devices, chip):
    if config.batch_size > 512:
      raise KeyboardInterrupt
    return NOWHERE | {'fits': True, 'hbm_bytes': config.batch_size * 1e7}

  as_if_compiled(report_of, monkeypatch)
  devices = [types.SimpleNamespace(platform='tpu')] * 16
  monkeypatch.setattr(chips, 'devices_of', lambda *_: devices)
  monkeypatch.setattr(sharding, 'axes_of', lambda *_: {})
  mesh = types.SimpleNamespace(shape={'data': 8, 'fsdp': 2})
  monkeypatch.setattr(sharding, 'make_mesh', lambda **_: mesh)
  argv = ['--config', 'configs/pretrain.py:size=tiny', '--config.batch_size=256']
  with pytest.raises(SystemExit) as end:
    preflight.main([*argv, '--topology', 'v5e-16', '--largest-batch'])
  out, err = capsys.readouterr()
  assert end.value.code == 130 and 'compilations of 1 to 5 minutes' in err
  for size, used in ((256, '2.6'), (512, '5.1')):
    assert f'v5e-16: batch_size={size}: yes, {used} of 17.0 GB' in out


def test_a_mesh_that_does_not_fit_is_told_before_a_chip_is_measured(monkeypatch):
  """Of the largest batch the rows are not asked, since it is searched."""
  as_if_compiled(lambda *_: NOWHERE, monkeypatch)

  def measured(device):
    raise LookupError

  def refused(config, family, devices):
    raise InputError('256 rows cannot be divided')

  monkeypatch.setattr(chips, 'Chip', measured)
  monkeypatch.setattr(sharding, 'mesh_of', refused)
  config = c.load('configs/pretrain.py:size=tiny')
  for largest, error in ((False, InputError), (True, LookupError)):
    args = types.SimpleNamespace(largest_batch=largest, best=False)
    with pytest.raises(error):
      next(preflight.compiled(args, [], config, 'v5e-16', (1.2, 0.4)))


def test_where_a_batch_does_not_divide_stands_what_does_in_place_of_a_price(monkeypatch, capsys):
  asked = []

  def report_of(config, devices, chip):
    asked.append(len(devices))
    estimates = {'calibrated': {'compute_only': {'step_s': 0.1, 'mfu': 0.5, 'chip_hours': 9.0}}}
    return NOWHERE | {'fits': True, 'estimates': estimates}

  as_if_compiled(report_of, monkeypatch)
  argv = ['--config', 'configs/pretrain.py:size=tiny', '--config.batch_size=80', '--price', '1.2']
  preflight.main([*argv, '--compare', 'v5e-16,v5e-32'])
  out, err = capsys.readouterr()
  for text, other in ((err, r'\?'), (out, 'yes, 19.0 of 17.0 GB')):
    assert re.search(rf'^fits +{other} +NO; use batch_size=64 or 96$', text, re.M)
    assert re.search(r'^on demand +\$\S+( to \$\S+)? +-$', text, re.M)
  assert 'v5e-32: batch_size 80 does not divide over 32 data shards; use' in out
  with pytest.raises(SystemExit) as end:
    preflight.main([*argv, '--compare', 'v5e-64,v5e-32'])
  out, err = capsys.readouterr()
  assert end.value.code == 2 and 'compiled' not in err and '$' not in out + err
  assert asked == [16] and 'NO; use batch_size=64 or 128' in out


def test_the_model_is_of_init_from_and_the_vocabulary_of_the_corpus(
  corpus_file, vocab, tmp_path, monkeypatch, capsys
):
  """As a run takes them; else the price would be of a model that nobody trains."""
  seen = []

  def report_of(config, devices, chip):
    seen.append(config.model)
    return NOWHERE | {'fits': True, 'estimates': {}}

  as_if_compiled(report_of, monkeypatch)
  settings = Settings(
    tuple(('', x) for x in documents.sources(str(corpus_file))), str(vocab.parent)
  )
  prepare.prepare(settings, tmp_path / 'D')
  roomy = 'model.max_position_embeddings=512'
  contents.claim(tmp_path / 'W', small_pretrain('x', f'{roomy} model.vocab_size=1234'))
  options = ['--topology', 'v5e-16', '--config', 'configs/pretrain.py:size=base']
  of_corpus, of_model = f'data.train={tmp_path / "D"}', f'init_from={tmp_path / "W"}'
  names = f'data.train=en={tmp_path / "D"},de={tmp_path / "D"}'
  for given in (of_corpus, names, of_model, 'data.train=not_here/*.txt'):
    preflight.main([*options, f'--config.{given}'])
  pieces = len(vocab.read_text().split())
  assert [x.vocab_size for x in seen] == [pieces, pieces, 1234, 30522]
  assert [x.hidden_size for x in seen] == [768, 768, 32, 768]
  for given, fault in (
    ([f'--config.{of_model}', '--config.model.hidden_size=96'], 'model.hidden_size is 32 in what'),
    (['--config.init_from=nowhere'], 'config.init_from: nowhere holds no run and no model'),
  ):
    with pytest.raises(SystemExit):
      preflight.main([*options, *given])
    assert f'error: {fault}' in capsys.readouterr().err


def test_a_corpus_that_is_not_here_is_named(tmp_path, caplog):
  (tmp_path / 'a.txt').write_text('text')
  for train, told in ((tmp_path, 0), ('tfds:wikipedia', 0), ('', 0), (tmp_path / 'D', 1)):
    caplog.clear()
    config = c.load('configs/pretrain.py:size=tiny', [f'--config.data.train={train}'])
    estimate.of_its_run(config)
    size = f'(the model is of vocab_size={config.model.vocab_size})'
    assert caplog.text.count('D does not exist') == caplog.text.count(size) == told


def test_what_cannot_be_divided_is_told_before_its_price(monkeypatch, capsys):
  as_if_compiled(lambda *_: NOWHERE, monkeypatch)
  for wrong in ('batch_size=1000', 'mesh.data=5', 'mesh.tensor=16'):
    argv = ['--config', 'configs/pretrain.py:size=tiny', f'--config.{wrong}', '--price', '1.2']
    with pytest.raises(SystemExit) as end:
      preflight.main([*argv, '--topology', 'v5e-16'])
    out, err = capsys.readouterr()
    assert end.value.code == 2 and 'error: ' in err and '$' not in out + err


@pytest.mark.parametrize('others', [True, False])
def test_what_does_not_fit_is_an_error_that_names_what_does(others, monkeypatch, capsys, caplog):
  """Rows in one or two parts do not fit, on another topology nothing does."""
  tried = {4: [], 16: []}

  def report_of(config, devices, chip):
    fits = config.optimizer.accumulation > 2 and len(devices) == 16
    tried[len(devices)].append(fits)
    estimates = {'calibrated': {'compute_only': {'step_s': 0.1, 'mfu': 0.5, 'chip_hours': 9.0}}}
    found = {'fits': True, 'estimates': estimates, 'full_steps': 50.0}
    return NOWHERE | (found if fits else {})

  as_if_compiled(report_of, monkeypatch)
  where = ['--compare', 'v5e-16,v5e-4'] if others else ['--topology', 'v5e-16']
  with pytest.raises(SystemExit) as end:
    preflight.main(['--config', 'configs/pretrain.py:size=tiny', '--price', '1.5', *where])
  out, err = capsys.readouterr()
  assert re.search(
    r'v5e-16: with this: yes, 19.0 of 17.0 GB; a step of 100.0 ms, .*; \$13.50 on demand', out
  )
  assert end.value.code == 2 and 'v5e-16 DOES NOT FIT; now it is searched what does' in err
  assert 'error: the config was not seen to fit as it is; what to do is said above.' in err
  assert 'v5e-16: python -m bert_jax.train --config configs/pretrain.py:size=tiny' in out
  assert '--config.optimizer.accumulation=4 --workdir WORKDIR' in out
  assert ('v5e-4: nothing that was tried fits; use more chips' in out) == others
  assert ('fits: False' in out) != others
  assert tried[16].index(True) == len(tried[16]) - 1  # the first that fits is enough
  most = [int(n) for n in re.findall(r'searching, mostly in less than (\d+) compilations', err)]
  assert len(most) == 1 + others and len(tried[16]) <= most[0]
  assert not others or len(tried[4]) == 1 + most[1]  # and once to see that it does not fit
  assert re.search('topology +v5e-16.*\nchips, hosts +16, 4.*\nfits +NO, 19.0 of 17.0 GB', out)


def test_an_estimate_at_once_is_of_the_peak_of_the_chips(tmp_path):
  """BERT-base with 20 predictions takes 69.9e9 FLOPs for a row of 128 (by hand); a v5e does 197e12
  a second. Batches grow from half over the first steps."""
  config = c.load('configs/pretrain.py:size=base', ['--config.batch_size=2048'])
  config = estimate.changed(config, {'steps': 1000, 'mesh.slices': 2, 'model.scan_layers': True})
  report = estimate.at_once(config, estimate.objective_of(config), 'v5e-16')
  fast, slow = (x['compute_only'] for x in report['estimates'].values())
  assert fast['step_s'] == pytest.approx(2048 * 69.9e9 / (32 * 197e12) / 0.75, rel=0.03)
  assert slow['step_s'] == pytest.approx(2.5 * fast['step_s']) and slow['mfu'] == 0.3
  assert fast['chip_hours'] == pytest.approx(32 * 1000 * fast['step_s'] / 3600)
  assert (report['chips'], report['hosts'], report['fits']) == (32, 8, None)
  assert (report['tokens'], report['passes']) == (1000 * 2048 * 128, None)
  of_v6e = estimate.at_once(config, estimate.objective_of(config), 'v6e-16')['estimates'].values()
  assert [x['compute_only']['mfu'] for x in of_v6e] == [0.45, 0.2]
  growing = {'optimizer.accumulation': 2, 'optimizer.batch_warmup': 100.0}
  read = estimate.length_of(estimate.changed(config, growing))
  assert (read['full_steps'], read['tokens']) == (950, 950 * 2048 * 128)


@pytest.mark.parametrize(
  ('config', 'rows', 'topology', 'compiled'),
  [  # as launch/README has them, with communication
    ('size=mini', 1024, 'v5e-64', [0.11, 0.12]),
    ('size=mini', 2048, 'v5e-16', [0.24]),
    ('size=tiny', 1024, 'v5e-16', [0.077, 0.086]),
    ('size=small', 1024, 'v5e-16', [0.36, 0.40]),
    ('size=base', 1024, 'v5e-16', [0.65]),
    ('size=base', 256, 'v5e-16', [0.36]),
    ('size=large', 512, 'v5e-16', [0.66]),
    ('size=large', 512, 'v6e-16', [0.34]),
    ('size=base', 1024, 'v6e-16', [0.33]),
    ('size=mini', 2048, 'v6e-16', [0.11]),
    ('size=tiny', 1024, 'v6e-8', [0.035, 0.048]),
    ('size=base', 4096, 'v5p-128', [0.48]),
    ('arch=cramming', 8192, 'v5e-16', [0.52]),
  ],
)
def test_what_the_compiler_finds_is_in_the_range_of_the_estimate(config, rows, topology, compiled):
  """Of narrow models and of few tokens a chip too."""
  config = c.load(f'configs/pretrain.py:{config}', [f'--config.batch_size={rows}'])
  estimates = estimate.at_once(config, estimate.objective_of(config), topology)['estimates']
  most, least = (x['compute_only']['mfu'] for x in estimates.values())
  assert all(least <= mfu <= most for mfu in compiled)


def test_passes_are_of_the_text_of_a_prepared_corpus(tmp_path, monkeypatch):
  kept = {'en': {'tokens': 3_000_000}, 'de': {'tokens': 1_096_000}}
  monkeypatch.setattr(estimate.store, 'is_prepared', lambda spec: spec == 'D')
  monkeypatch.setattr(estimate.store, 'read_meta', lambda spec: {'kept': kept})
  config = c.load('configs/pretrain.py:size=tiny', ['--config.data.train=D'])
  config = estimate.changed(config, {'steps': 500, 'batch_size': 64})
  length = lambda **more: estimate.length_of(estimate.changed(config, more))
  assert (length()['passes'], length()['assumed']) == (1.0, False)
  epochs = {'steps': 0, 'epochs': 2.5}
  # A pass over pairs is one over each of the five ways in which the text is cut into them.
  for rows, times in (('full', 2.5), ('nsp', 12.5)):
    read = length(**epochs, **{'corpus.rows': rows})
    assert (read['steps'], read['passes'], read['assumed']) == (500 * times, times, False)
    assert read['tokens'] == 4_096_000 * times
  assert length(**epochs, min_steps=7001)['steps'] == 7001
  read = length(**epochs, **{'data.train': 'texts/*.txt'})
  assert (read['steps'], read['passes'], read['assumed']) == (1_000_000, None, True)
  monkeypatch.setattr(estimate, 'newest_meta', {'W': {'step': 300}, 'W0': None}.get)
  assert [length(resume_from=x)['passes'] for x in ('W', 'W0')] == [0.4, 1.0]


def test_a_program_is_compiled_once(tmp_path, monkeypatch, capfd):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  lowered, times = jax.jit(lambda x: x @ x).lower(jnp.ones((8, 8))), []

  class Lowered:
    as_text = staticmethod(lowered.as_text)

    def compile(self):
      times.append(0)
      return lowered.compile()

  compiled = lambda options=None: compilation.compiled(
    Lowered(), jax.devices()[:1], 'a step for', options
  )
  first, again = compiled(), compiled()
  assert not first.cached and again == first._replace(cached=True) and len(times) == 1
  assert 'HloModule' in first.text and set(first.sizes) == set(compilation.SIZES)
  said = capfd.readouterr().err
  assert said == 'compiling a step for 1 cpu\n'
  # Anything that the result depends on: the options, the program, the compiler.
  compiled({'a': 1})
  before = {*tmp_path.rglob('*.gz')}
  monkeypatch.setattr(compilation, 'versions', lambda: 'jax 99')
  compiled()
  assert len(times) == 3
  (damaged,) = {*tmp_path.rglob('*.gz')} - before
  damaged.write_bytes(damaged.read_bytes()[:-9])
  compiled()
  assert len(times) == 4 and compiled().cached


class Misfit:
  """A lowered program that the compiler finds too large, after half a second."""

  def as_text(self):
    return 'module'

  def compile(self):
    os.write(2, b'noise of the compiler')
    time.sleep(0.5)
    raise RuntimeError('Ran out of memory in memory space hbm. Used 30.50G of 15.75G hbm.')


def test_a_program_that_does_not_fit_is_kept_and_compiling_says_that_it_goes_on(
  tmp_path, monkeypatch, capfd
):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  monkeypatch.setattr(command_line, 'EVERY', 0.05)
  for cached in (False, True):
    made = compilation.compiled(Misfit(), jax.devices()[:1], 'a step for')
    assert (made.text, made.used, made.cached) == ('', int(30.5 * 2**30), cached)
    assert made.limit == int(15.75 * 2**30)
  first, *rest = capfd.readouterr().err.splitlines()
  assert first == 'compiling a step for 1 cpu' and len(rest) > 2
  assert all(re.fullmatch(r'  still compiling after \d+ s', line) for line in rest)


def grid(number):
  """Devices that stand in a grid of four columns."""
  return [types.SimpleNamespace(coords=divmod(i, 4), slice_index=0) for i in range(number)]


def fake_mesh(config, family, devices):
  fsdp = max(1, config.mesh.fsdp)
  return types.SimpleNamespace(shape={'data': len(devices) // fsdp, 'fsdp': fsdp, 'tensor': 1})


def searched(seconds_of, monkeypatch, changes=()):
  """What --best finds for 16 devices.
  seconds_of: config -> those of a step, 'unknown', or None: it is too large."""
  config = estimate.changed(c.load('configs/pretrain.py:size=base'), {'batch_size': 1024})
  config = estimate.changed(config, dict(changes))
  monkeypatch.setattr(estimate.sharding, 'mesh_of', fake_mesh)
  tried = []

  def attempt(fields):
    tried.append(fields)
    seconds = seconds_of(estimate.changed(config, fields))
    if seconds is None:
      return {'fits': False}
    estimates = {'calibrated': {'compute_only': {}, 'with_communication': {'step_s': seconds}}}
    return {'fits': True, 'estimates': {} if seconds == 'unknown' else estimates}

  return *estimate.search(config, grid(16), attempt), tried


def test_the_best_of_a_few_compilations_is_found(monkeypatch):
  def seconds(config):
    parts = {1: 1.0, 2: 0.9, 4: 0.95}[config.optimizer.accumulation]
    mesh = {1: 10.0, 4: 7.0, 16: 8.0}[config.mesh.fsdp]
    return mesh * parts * {'einsum': 1.0, 'xla': 0.99}[config.model.attention_implementation]

  changes = {'mesh.fsdp': 1, 'optimizer.accumulation': 1}
  changes['model.attention_implementation'] = 'einsum'
  fields, report, own, tried = searched(seconds, monkeypatch, changes)
  # xla is faster by 1 % only, which is nothing.
  assert fields == {'mesh.data': -1, 'mesh.fsdp': 4, 'optimizer.accumulation': 2}
  assert estimate.seconds(report) == pytest.approx(6.3)
  assert estimate.seconds(own) == 10 and len(tried) <= 7
  monkeypatch.setattr(estimate, 'search', lambda *_: (fields, report, own))
  more = 'configs/pretrain.py', ['--config.seed=1'], None, None, None
  found = estimate.fastest(*more)
  gain, command = found['notes']
  assert found['step_time_over_config_as_it_is'] == pytest.approx(0.63) and '63.0%' in gain
  assert found['fields'] == fields and found['command'] == command
  assert command.startswith('python -m bert_jax.train --config configs/pretrain.py --config.seed=1')
  assert command.endswith('.mesh.fsdp=4 --config.optimizer.accumulation=2 --workdir WORKDIR')
  monkeypatch.setattr(estimate, 'search', lambda *_: ({}, own, own))
  gain, command = estimate.fastest(*more)['notes']
  assert gain.startswith('nothing that was tried is faster')
  assert command.endswith('=1 --workdir WORKDIR')


def test_what_does_not_fit_is_made_to_fit_by_parts_and_then_by_remat(monkeypatch):
  by_remat = lambda config: 1.0 if config.model.remat == 'full' else None
  by_parts = lambda config: 1.0 if config.optimizer.accumulation >= 16 else by_remat(config)
  fields, report, own, _ = searched(by_parts, monkeypatch)
  assert not own['fits'] and report['fits'] and fields == {'optimizer.accumulation': 16}
  assert searched(by_remat, monkeypatch)[0] == {'model.remat': 'full'}
  by_some = lambda config: None if config.model.remat == 'none' else 1.0  # less is tried first
  assert searched(by_some, monkeypatch)[0] == {'model.remat': 'dots'}


def test_kernels_without_cycles_cannot_be_searched():
  with pytest.raises(InputError, match='Pallas kernels cannot be estimated; set model.attention'):
    report = {'fits': True, 'estimates': {}, 'uncounted': {'Pallas kernels': 2}}
    estimate.seconds(report)


def test_a_mesh_of_unknown_time_is_passed_over_and_less_is_computed_again(monkeypatch):
  """The first mesh that is tried has no time. With remat=none nothing fits."""

  def seconds(config):
    if config.mesh.fsdp == 16:
      return 'unknown'
    return {'none': None, 'dots': 6.0, 'full': 10.0}[config.model.remat]

  changes = {'mesh.fsdp': 4, 'model.remat': 'full'}
  fields, report, *_ = searched(seconds, monkeypatch, changes)
  assert fields == {'model.remat': 'dots'} and estimate.seconds(report) == 6.0


def test_parameters_are_gathered_by_layer_where_there_is_no_room_for_all(monkeypatch):
  seconds = lambda config: 1.0 if config.mesh.gather == 'layer' else None
  fields, *_ = searched(seconds, monkeypatch, {'mesh.fsdp': 4})
  assert fields == {'mesh.gather': 'layer'}
  for changes in ({'mesh.fsdp': 4, 'mesh.gather': 'layer'}, {'mesh.fsdp': 1}):
    *_, tried = searched(lambda config: 1.0, monkeypatch, changes)
    assert not any('mesh.gather' in fields for fields in tried)


def test_what_fits_counts_even_if_its_time_is_not_known(monkeypatch):
  """As with kernels, whose cycles the compiler does not know."""
  seconds = lambda config: 'unknown' if config.optimizer.accumulation >= 4 else None
  changes = {'model.attention_implementation': 'splash'}
  fields, report, *_ = searched(seconds, monkeypatch, changes)
  assert report['fits'] and fields == {'optimizer.accumulation': 4}


def test_fewer_and_larger_parts_are_tried_where_they_fit(monkeypatch):
  seconds = lambda config: {64: 4.0, 16: 3.0, 8: 2.0, 4: 1.0}.get(config.optimizer.accumulation)
  changes = {'optimizer.accumulation': 16}
  fields, report, _, tried = searched(seconds, monkeypatch, changes)
  assert fields == {'optimizer.accumulation': 4} and estimate.seconds(report) == 1.0
  parts = [x['optimizer.accumulation'] for x in tried if 'optimizer.accumulation' in x]
  assert parts[:4] == [32, 8, 4, 2]  # 2 do not fit, and nothing beyond them is compiled


def test_the_fewest_parts_that_are_as_fast_are_proposed(monkeypatch):
  """64 parts of which none is needed: less than 2 % are no reason to keep them."""
  times = {64: 4.0, 32: 4.03, 16: 3.97, 8: 4.01, 4: 4.04, 2: 4.2}
  seconds = lambda config: times.get(config.optimizer.accumulation)
  fields, report, *_ = searched(seconds, monkeypatch, {'optimizer.accumulation': 64})
  assert fields == {'optimizer.accumulation': 4} and estimate.seconds(report) == 4.04


SIZES = dict(num_hidden_layers=1, hidden_size=128, num_attention_heads=2, intermediate_size=256)
SIZES |= dict(vocab_size=1000, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
SIZES['dtype'] = 'float32'
SMALL = [f'--config.model.{name}={x}' for name, x in SIZES.items()]
SMALL += ['--config.batch_size=64', '--config.data.seq_length=128', '--config.optimizer.warmup=0']
SMALL_STEP = ['bert_jax.tools.preflight', '--config', 'configs/pretrain.py', *SMALL, '--json']
SMALL_STEP += ['--topology', 'v5litepod-4', '--config.mesh.fsdp=1']


STATE = {'a': ((6, 7), 4, 3), 'b': ((96, 5), 2, 1)}  # {path: (shape, bytes of a number, parts)}


def test_a_report_is_of_the_compiled_program(monkeypatch):
  """Of PROGRAM, which takes 1,212 cycles, on four chips with a clock of one cycle a microsecond."""
  config = c.load('configs/pretrain.py', [*SMALL, '--config.steps=700'])
  mesh, chip = mesh_of(2, 2, (2, 2)), fake_chip()
  chip.hbm, chip.seconds_per_cycle = 7000, 1e-6
  devices = list(mesh.devices.flat)
  for device in devices:
    device.device_kind, device.platform = 'TPU v5 lite', 'tpu'
  shard = lambda parts: types.SimpleNamespace(shard_shape=lambda x: (x[0] // parts, *x[1:]))
  leaf = lambda shape, size, parts: types.SimpleNamespace(
    shape=shape, dtype=types.SimpleNamespace(itemsize=size), sharding=shard(parts)
  )
  made = [
    compilation.Compiled(PROGRAM, dict(zip(compilation.SIZES, (900, 70, 60, 5, 3))), 0, 0, 2, 1.5),
    compilation.Compiled('', {}, 7100, 7050, 0, 1.5),
  ]
  state, asked = {name: leaf(*x) for name, x in STATE.items()}, []
  program = types.SimpleNamespace(lower=lambda: 'lowered', state=state)
  monkeypatch.setattr(estimate.sharding, 'mesh_of', lambda *_: mesh)
  monkeypatch.setattr(estimate.step, 'program', lambda *_: program)
  monkeypatch.setattr(estimate.jax, 'set_mesh', lambda mesh: contextlib.nullcontext())
  monkeypatch.setattr(compilation, 'compiled', lambda *given: asked.append(given) or made.pop(0))
  report, misfit = (estimate.estimate(config, devices, chip) for _ in range(2))
  assert asked[0] == ('lowered', devices, 'a step for', sharding.compiler_options(mesh))
  assert report['fits'] and report['hbm_bytes'] == 900 + 70 - 60 + 5 + 3
  assert (report['hbm_limit'], report['hbm_over']) == (7000, 918 - 7000)
  assert (report['devices'], report['rows_per_data_shard']) == ('4 x TPU v5 lite', 64 // 4)
  assert report['mesh'] == {'data': 2, 'fsdp': 2, 'tensor': 1} and report['full_steps'] == 700
  assert report['largest_of_state'] == [{'name': 'b', 'bytes': 960}, {'name': 'a', 'bytes': 56}]
  assert report['largest_temporaries'][0] == {'name': 'all-reduce.1', 'bytes': 4096}
  assert report['estimated_cycles'] == 1212 and report['cycles']['attention'] == 1200
  assert len(report['warnings']) == 1 and '2 involuntary' in report['warnings'][0]
  # The backward pass is twice the forward pass.
  assert report['model_flops'] == 3 * estimate.objective_of(config).flops(64)
  alone = report['estimates']['calibrated']['compute_only']
  assert alone['step_s'] == pytest.approx(1212e-6)
  assert alone['mfu'] == pytest.approx(report['model_flops'] / 4 / chip.peak / 1212e-6)
  assert alone['chip_hours'] == pytest.approx(700 * 4 * 1212e-6 / 3600)
  assert {row['kind'] for row in report['transfers']} >= {'all-gather', 'all-reduce'}
  assert not misfit['fits'] and misfit['estimates'] == {} and misfit['hbm_over'] == 100
  for known in (report, misfit):
    said = [preflight.table(known | {'cached': kept}) for kept in (False, True)]
    assert ['before and kept' in text for text in said] == [False, True]
    assert ('1,212  together' in said[0]) == known['fits']
    assert 'largest buffers of state on a device:\n         0.0 MB  b\n' in said[0]
    assert ('largest buffers of temporaries' in said[0]) == known['fits']


def test_a_chip_is_calibrated_by_two_programs(monkeypatch):
  """A large product and one that no chip has room for."""
  cpu = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  text = 'ENTRY %main (p: f32[8]) -> f32[8] {\n'
  text += '  %x = f32[8] add(%p, %p), backend_config={"estimated_cycles":"9000000"}\n}'

  def compiled(lowered, devices, what):
    large = 'tensor<8192x8192xbf16>' in lowered.as_text()
    return compilation.Compiled(text if large else '', {}, 0, 0 if large else 17_000, 0, 1.0)

  monkeypatch.setattr(chips.jax.sharding, 'SingleDeviceSharding', lambda device: cpu)
  monkeypatch.setattr(compilation, 'compiled', compiled)
  chip = chips.Chip(types.SimpleNamespace(device_kind='TPU v5 lite'))
  assert (chip.hbm, chip.peak) == (17_000, 197e12)
  assert chip.flops_per_cycle == pytest.approx(2 * 8192**3 / 9e6)
  assert chip.seconds_per_cycle == pytest.approx(chip.flops_per_cycle / 197e12)
  assert chip.data_sheet_seconds == pytest.approx(4 * 2 * 128**2 / 197e12)  # four matrix units


@pytest.mark.slow
def test_the_tpu_compiler_takes_a_small_step():
  pytest.importorskip('libtpu', reason='the TPU compiler is not installed (pip install libtpu)')
  report = json.loads(run_module(*SMALL_STEP, quick=False).stdout)
  assert report['fits'] and report['hbm_limit'] == int(15.75 * 2**30) > report['hbm_bytes']
  assert report['devices'] == '4 x TPU v5 lite' and report['rows_per_data_shard'] == 16
  assert report['dtype'] == 'float32' and not report['warnings']  # such products are asked for
  alone, with_all = report['estimates']['calibrated'].values()
  assert report['estimated_cycles'] > 0 and 0 < with_all['mfu'] < alone['mfu'] < 1
  assert {'attention', 'feed-forward', 'head', 'optimizer'} <= set(report['cycles'])
  assert report['estimates']['data_sheet']['compute_only']['mfu'] < alone['mfu']
  # Data-parallel: the gradients cross once, and nothing else, those of the tied table together.
  (row, *rest) = report['transfers']
  assert (row['kind'], row['axes']) == ('all-reduce', 'data') and not rest
  objective = estimate.objective_of(c.load('configs/pretrain.py', SMALL))
  gradients = 4 * models.count_parameters(jax.eval_shape(objective.init, jax.random.key(0)))
  assert list(report['collective_bytes']) == ['all-reduce']
  assert report['collective_bytes']['all-reduce'] == pytest.approx(gradients, rel=0.01)
  with pytest.raises(InputError, match='--topology v5p:9x9x9 does not exist .*; use v5e:1x1 2x2'):
    chips.devices_of('v5p:9x9x9')
