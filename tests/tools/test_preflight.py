"""Preflight: what it reads from a compiled program, and the real TPU compiler on a small step."""

import contextlib
import json
import math
import types

import jax
import jax.numpy as jnp
import pytest
from conftest import run_module, small_pretrain
from test_pod_estimates import fake_chip
from test_pod_estimates import fake_mesh as mesh_of

from bert_jax import config as c
from bert_jax import models, sharding
from bert_jax.errors import InputError
from bert_jax.text import documents
from bert_jax.tools.preflight import __main__ as preflight
from bert_jax.tools.preflight import best, chips, compilation, estimate, hlo, schedules, step_time
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


def test_conditionals_with_several_dear_branches_are_named():
  line = '  %if.1 = f32[8]{0} conditional(%p, %p), branch_computations={%body, OTHER}\n'
  program = lambda other: hlo.Program(
    PROGRAM.replace('  %async.1', line.replace('OTHER', other) + '  %async.1')
  )
  assert program('%piece').choices() == []  # which has no cycles
  assert program('%body').choices() == ['if.1']
  assert program('%body').cycles()['attention'] == 1200 + 2 * 100


SCHEDULE = """LB: loop body
     0   :  { %s0 = inlined_call_operand.hbm [shape: bf16[8,128], index: 0] }
   0x1   :  { %s1 = smov 0 } /* Start region 1 */
   0x2 LB: > { %s2 = sadd.s32 1, %s1 /* iteration index, stage = 1 */ }
base_bounds: (256, 8)
   0x3   : > { %s3 = smov 0 }
   0x4 LB: > > { %v4 = vld [vmem:[%s3]]  ;;  %p5 = scmp.ge.s32.totalorder %s3, 7 }
   0x5   :  {}
   0x6   : > > { %p6 = scmp.ge.s32.totalorder %s3, 3 /* loop exit test */ }
   0x7   : > > { %7 = sbr.rel (%p5) target bundleno = 9 (0x9), region = 8 }
   0x8   :  { %8 = sbr.rel (!%p6) target bundleno = 4 (0x4), region = 7 }
   0x9   : > { %p9 = scmp.ge.s32.totalorder %s2, BOUND /* loop exit test */ }
   0xa   :  { %10 = sbr.rel (!%p9) target bundleno = 2 (0x2), region = 9 }
   0xb   :  { %11 = vsyncpa [#allocation3], 1 }
"""


def test_kernels_take_the_cycles_of_their_schedules(tmp_path, monkeypatch):
  """3 bundles, and in each of 22 - 2 blocks 4 and three turns of 5; kernels that are the same are
  compiled once. What moves more bytes than fit in that time waits for them."""
  folder = tmp_path / 'schedules'
  folder.mkdir()
  monkeypatch.setattr(schedules, '_folder', folder)
  endings = {'0-fwd.1-01': '22', '0-bwd.7-01': '%s5', '0-<late-finalization>-02': '9'}
  for name, bound in endings.items():
    file = folder / f'{name}-packed-bundles-post-ra.txt'
    file.write_text(SCHEDULE.replace('BOUND', bound))
  map_of_same = 'key:fwd.1\nordinal:2\nequivalent_hlos[size=2]:\n  fwd.1\n  fwd.12\nkey:bwd.7\n'
  (folder / '0-TLP-00-deduplication-map.txt').write_text(map_of_same)
  cycles = 3 + (22 - 2) * (4 + 3 * 5)
  assert schedules.read(['fwd.12', 'fwd.1', 'bwd.7']) == {
    'fwd.12': cycles,
    'fwd.1': cycles,
    'bwd.7': 0,
  }
  assert not folder.exists() and schedules.read(['fwd.1']) == {}

  line = '  %fwd.12 = (f32[4,100]{1,0:T(8,128)}, bf16[9]{0:S(1)}) custom-call(%p, %p), CALL\n'
  line = line.replace(
    'CALL', 'custom_call_target="tpu_custom_call", metadata={op_name="/attention/"}'
  )
  text = PROGRAM.replace('  %async.1', line + '  %async.1')
  assert hlo.Program(text).kernels() == {'fwd.12': 1600 + 2 * 512}
  chip = chips.Chip.__new__(chips.Chip)
  chip.published, chip.seconds_per_cycle = chips.published_of('TPU v5 lite'), 0.5e-9
  in_estimates = chip.as_estimated(compilation.Kernel(cycles, 2624))
  assert in_estimates == round(cycles / 1.5e9 / 0.5e-9)
  assert chip.as_estimated(compilation.Kernel(cycles, 10**9)) == round(1e9 / 819e9 / 0.5e-9)
  assert chip.as_estimated(compilation.Kernel(0, 10**9)) == 0
  chip.published = chips.published_of('TPU v4')
  assert chip.as_estimated(compilation.Kernel(cycles, 2624)) == 0
  program = hlo.Program(text, {'fwd.12': in_estimates})
  assert program.cycles()['attention'] == 1200 + in_estimates and program.uncounted() == {}
  assert hlo.Program(text, {'fwd.12': 0}).uncounted() == {'Pallas kernels': 1}


@pytest.mark.parametrize(
  'text, used, limit',
  [
    ('XLA:TPU ... Ran out of memory in memory space hbm. Used 30.50G of 15.75G hbm.', 30.5, 15.75),
    ('memory required for HLO temporaries (8.00T) exceeds available HBM (15.75G).', 8192, 15.75),
  ],
)
def test_what_the_compiler_says_when_it_does_not_fit(text, used, limit):
  assert compilation.too_large(RuntimeError(text)) == (int(used * 2**30), int(limit * 2**30))


NOWHERE = {
  'kernels': {},
  'fits': False,
  'estimates': {},
  'hbm_bytes': 19e9,
  'hbm_limit': 17e9,
  'chips': 16,
}
NOWHERE |= {'steps': 500, 'assumed': False, 'tokens': 4e9}


def grid(number):
  """Devices that stand in a grid of four columns."""
  return [types.SimpleNamespace(coords=divmod(i, 4), slice_index=0) for i in range(number)]


def fake_mesh(config, family, devices):
  fsdp = max(1, config.mesh.fsdp)
  return types.SimpleNamespace(shape={'data': len(devices) // fsdp, 'fsdp': fsdp, 'tensor': 1})


def as_if_compiled(report_of, monkeypatch):
  """Preflight reports what this function says, of chips that nothing is compiled for."""
  monkeypatch.setattr(estimate, 'estimate', report_of)
  monkeypatch.setattr(preflight, 'text_of', lambda report: f'fits: {report["fits"]}')
  monkeypatch.setattr(chips, 'Chip', lambda device: None)
  number = lambda name: math.prod(map(int, name.partition(':')[2].split('x')))
  monkeypatch.setattr(chips, 'devices_of', lambda name, slices: grid(number(name)))
  monkeypatch.setattr(sharding, 'mesh_of', fake_mesh)


def took(step_s):
  row = {'step_s': step_s, 'mfu': 0.5, 'chip_hours': 500 * step_s * 16 / 3600}
  return NOWHERE | {'fits': True, 'estimates': {'compute_only': row}}


@pytest.mark.parametrize(
  ('chips', 'mfu', 'is_told'), [(16, 0.24, True), (16, 0.3, False), (4, 0.1, False)]
)
def test_a_model_that_is_small_for_its_chips_is_told_what_fewer_take(chips, mfu, is_told):
  alone = {'step_s': 0.009, 'mfu': 0.27, 'chip_hours': 36.0}
  waiting = {'step_s': 0.01, 'mfu': mfu, 'chip_hours': 40.0}
  estimates = {'compute_only': alone, 'with_communication': waiting}
  lines = step_time.advice(NOWHERE | {'chips': chips, 'estimates': estimates})
  assert len(lines) == is_told and step_time.advice(NOWHERE) == []
  if is_told:
    assert '4 take at least 9.0 hours and 36.0 chip-hours, and these 16 2.5 hours' in lines[0]


def searched(seconds_of, monkeypatch, **changes):
  """What --best finds for 16 devices.
  seconds_of: config -> those of a step, 'unknown', or None: it is too large."""
  changes = {'batch_size': 1024, 'model.attention_implementation': 'einsum'} | changes
  config = estimate.changed(c.load('configs/pretrain.py:size=base'), changes)

  def report_of(config, devices, chip):
    seconds = seconds_of(config)
    if seconds is None:
      return NOWHERE
    if seconds == 'unknown':
      splash = {'splash_mha': 0} if config.model.attention_implementation == 'splash' else {}
      return NOWHERE | {'fits': True, 'kernels': splash}
    return took(seconds)

  as_if_compiled(report_of, monkeypatch)
  report = report_of(config, grid(16), None)
  fields, report = best.search(config, report, grid(16), None)
  return fields, best.seconds(report)


def test_what_is_faster_or_first_to_fit_is_kept(monkeypatch):
  def seconds(config):
    parts = {1: 1.0, 2: 0.9, 4: 0.95}.get(config.optimizer.accumulation, 2.0)
    mesh = {1: 10.0, 4: 7.0, 16: 8.0}[config.mesh.fsdp]
    kinds = {'einsum': 1.0, 'xla': 0.99, 'splash': 1.1}
    return mesh * parts * kinds[config.model.attention_implementation]

  # xla is faster by 1 % only, which is nothing.
  one = {'mesh.fsdp': 1, 'optimizer.accumulation': 1}
  found = {'mesh.data': -1, 'mesh.fsdp': 4, 'optimizer.accumulation': 2}
  assert searched(seconds, monkeypatch, **one) == (found, pytest.approx(6.3))
  by_parts = lambda config: 1.0 if config.optimizer.accumulation >= 16 else None
  parts = {'optimizer.accumulation': 4}
  assert searched(by_parts, monkeypatch, **parts) == ({'optimizer.accumulation': 16}, 1.0)
  by_layer = lambda config: 1.0 if config.mesh.gather == 'layer' else None
  fields, _ = searched(by_layer, monkeypatch, **{'mesh.fsdp': 4})
  assert fields == {'mesh.gather': 'layer'}
  assert searched(lambda config: 'unknown', monkeypatch) == ({}, math.inf)
  # Where kernels have no time, what they stand beside is compared with einsum.
  kind = 'model.attention_implementation'
  timed = lambda config: 'unknown' if config.model.attention_implementation == 'splash' else 3.0
  assert searched(timed, monkeypatch, **{kind: 'splash'}) == ({kind: 'einsum'}, 3.0)


@pytest.mark.parametrize(
  ('kernels', 'others'), [({}, ['xla', 'splash']), ({'splash_mha': 9}, ['einsum', 'xla'])]
)
def test_what_auto_is_is_not_tried_again(kernels, others, monkeypatch, caplog):
  caplog.set_level('INFO', 'bert_jax')
  as_if_compiled(None, monkeypatch)
  field = 'model.attention_implementation'
  config, report = c.load('configs/pretrain.py:size=base'), took(1.0) | {'kernels': kernels}
  assert [x for name, x in best.choices(config, report, grid(16)) if name == field] == others
  assert f'{field}=auto is {"splash" if kernels else "einsum"}' in caplog.text


def test_the_model_is_of_init_from_and_the_vocabulary_of_the_corpus(
  corpus_file, vocab, tmp_path, monkeypatch
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
  options = ['--topology', 'v5e:4x4', '--config', 'configs/pretrain.py:size=base']
  of_corpus, of_model = f'data.train={tmp_path / "D"}', f'init_from={tmp_path / "W"}'
  for given in (of_corpus, of_model):
    preflight.main([*options, f'--config.{given}'])
  pieces = len(vocab.read_text().split())
  assert [x.vocab_size for x in seen] == [pieces, 1234]
  assert [x.hidden_size for x in seen] == [768, 32]


def test_the_length_of_a_run_follows_from_its_prepared_corpus(tmp_path, monkeypatch):
  kept = {'en': {'tokens': 3_000_000}, 'de': {'tokens': 1_096_000}}
  monkeypatch.setattr(estimate.store, 'is_prepared', lambda spec: spec == 'D')
  monkeypatch.setattr(estimate.store, 'read_meta', lambda spec: {'kept': kept})
  config = c.load('configs/pretrain.py:size=tiny', ['--config.data.train=D'])
  config = estimate.changed(config, {'steps': 500, 'batch_size': 64})
  length = lambda **more: estimate.length_of(estimate.changed(config, more))
  assert (length()['tokens'], length()['assumed']) == (4_096_000, False)
  epochs = {'steps': 0, 'epochs': 2.5}
  # A pass over pairs is one over each of the five ways in which the text is cut into them.
  for rows, times in (('full', 2.5), ('nsp', 12.5)):
    read = length(**epochs, **{'corpus.rows': rows})
    assert (read['steps'], read['assumed']) == (500 * times, False)
    assert read['tokens'] == 4_096_000 * times
  assert length(**epochs, min_steps=7001)['steps'] == 7001
  read = length(**epochs, **{'data.train': 'texts/*.txt'})
  assert (read['steps'], read['assumed']) == (1_000_000, True)
  growing = {'optimizer.accumulation': 2, 'optimizer.batch_warmup': 100.0, 'steps': 1000}
  read = length(**growing)
  assert (read['full_steps'], read['tokens']) == (950, 950 * 64 * 128)


def test_a_program_is_compiled_once(tmp_path, monkeypatch):
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
  assert again == first and len(times) == 1
  assert 'HloModule' in first.text and set(first.sizes) == set(compilation.SIZES)
  # Anything that the result depends on: the options, the program, the compiler.
  compiled({'a': 1})
  monkeypatch.setattr(compilation, 'versions', lambda: 'jax 99')
  compiled()
  assert len(times) == 3


def test_schedules_of_a_program_that_was_refused_are_forgotten(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  monkeypatch.setattr(schedules, '_folder', tmp_path / 'schedules')
  lowered, left = jax.jit(lambda x: x @ x).lower(jnp.ones((8, 8))), []

  class Lowered:
    as_text = staticmethod(lowered.as_text)

    def compile(self):
      left.append(schedules._folder.exists())
      schedules._folder.mkdir()
      raise ValueError('vmem is full')

  for options in ({'a': 1}, {'a': 2}):
    with pytest.raises(InputError, match='vmem is full'):
      compilation.compiled(Lowered(), jax.devices()[:1], 'a step for', options)
  assert left == [False, False]


SIZES = dict(num_hidden_layers=1, hidden_size=128, num_attention_heads=2, intermediate_size=256)
SIZES |= dict(vocab_size=1000, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
SIZES['dtype'] = 'float32'
SMALL = [f'--config.model.{name}={x}' for name, x in SIZES.items()]
SMALL += ['--config.batch_size=64', '--config.data.seq_length=128', '--config.optimizer.warmup=0']
SMALL_STEP = ['bert_jax.tools.preflight', '--config', 'configs/pretrain.py', *SMALL, '--json']
SMALL_STEP += ['--topology', 'v5e:2x2', '--config.mesh.fsdp=1']


def test_a_report_is_of_the_compiled_program(monkeypatch):
  """Of PROGRAM, which takes 1,212 cycles, on four chips with a clock of one cycle a microsecond."""
  config = c.load('configs/pretrain.py', [*SMALL, '--config.steps=700'])
  mesh, chip = mesh_of(2, 2, (2, 2)), fake_chip()
  chip.hbm, chip.seconds_per_cycle = 7000, 1e-6
  devices = list(mesh.devices.flat)
  for device in devices:
    device.device_kind, device.platform = 'TPU v5 lite', 'tpu'
  made = [
    compilation.Compiled(PROGRAM, dict(zip(compilation.SIZES, (900, 70, 60, 5, 3))), 0, 0, {}),
    compilation.Compiled('', {}, 7100, 7050, {}),
  ]
  program = types.SimpleNamespace(lower=lambda: 'lowered')
  monkeypatch.setattr(estimate.sharding, 'mesh_of', lambda *_: mesh)
  monkeypatch.setattr(estimate.step, 'program', lambda *_: program)
  monkeypatch.setattr(estimate.jax, 'set_mesh', lambda mesh: contextlib.nullcontext())
  monkeypatch.setattr(compilation, 'compiled', lambda *given: made.pop(0))
  report, misfit = (estimate.estimate(config, devices, chip) for _ in range(2))
  assert report['fits'] and report['hbm_bytes'] == 900 + 70 - 60 + 5 + 3
  assert report['hbm_limit'] == 7000
  assert (report['devices'], report['rows_per_data_shard']) == ('4 x TPU v5 lite', 64 // 4)
  assert report['mesh'] == {'data': 2, 'fsdp': 2, 'tensor': 1} and report['full_steps'] == 700
  assert report['estimated_cycles'] == 1212 and report['cycles']['attention'] == 1200
  # The backward pass is twice the forward pass.
  assert report['model_flops'] == 3 * estimate.objective_of(config).flops(64)
  alone = report['estimates']['compute_only']
  assert alone['step_s'] == pytest.approx(1212e-6)
  assert alone['mfu'] == pytest.approx(report['model_flops'] / 4 / chip.peak / 1212e-6)
  assert alone['chip_hours'] == pytest.approx(700 * 4 * 1212e-6 / 3600)
  assert {row['kind'] for row in report['transfers']} >= {'all-gather', 'all-reduce'}
  assert not misfit['fits'] and misfit['estimates'] == {} and misfit['hbm_bytes'] == 7100


def test_a_chip_is_calibrated_by_two_programs(monkeypatch):
  """A large product and one that no chip has room for."""
  cpu = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  text = 'ENTRY %main (p: f32[8]) -> f32[8] {\n'
  text += '  %x = f32[8] add(%p, %p), backend_config={"estimated_cycles":"9000000"}\n}'

  def compiled(lowered, devices, what):
    large = 'tensor<8192x8192xbf16>' in lowered.as_text()
    return compilation.Compiled(text if large else '', {}, 0, 0 if large else 17_000, {})

  monkeypatch.setattr(chips.jax.sharding, 'SingleDeviceSharding', lambda device: cpu)
  monkeypatch.setattr(compilation, 'compiled', compiled)
  chip = chips.Chip(types.SimpleNamespace(device_kind='TPU v5 lite'))
  assert (chip.hbm, chip.peak) == (17_000, 197e12)
  assert chip.seconds_per_cycle == pytest.approx(2 * 8192**3 / 9e6 / 197e12)


@pytest.mark.slow
def test_the_tpu_compiler_takes_a_small_step():
  pytest.importorskip('libtpu', reason='the TPU compiler is not installed (pip install libtpu)')
  report = json.loads(run_module(*SMALL_STEP, quick=False).stdout)[0]
  assert report['fits'] and report['hbm_limit'] == int(15.75 * 2**30) > report['hbm_bytes']
  assert report['devices'] == '4 x TPU v5 lite' and report['rows_per_data_shard'] == 16
  assert report['dtype'] == 'float32' and not report['warnings']  # such products are asked for
  alone, with_all = report['estimates'].values()
  assert report['estimated_cycles'] > 0 and 0 < with_all['mfu'] < alone['mfu'] < 1
  assert {'attention', 'feed-forward', 'head', 'optimizer'} <= set(report['cycles'])
  # Data-parallel: the gradients cross once, and nothing else, those of the tied table together.
  (row, *rest) = report['transfers']
  assert (row['kind'], row['axes']) == ('all-reduce', 'data') and not rest
  objective = estimate.objective_of(c.load('configs/pretrain.py', SMALL))
  gradients = 4 * models.count_parameters(jax.eval_shape(objective.init, jax.random.key(0)))
  assert row['bytes'] == pytest.approx(gradients, rel=0.01)
