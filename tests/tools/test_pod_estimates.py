"""What a step on many chips takes: collectives read from a compiled program, their time, money."""

import itertools
import types
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from bert_jax.errors import InputError
from bert_jax.run import speed
from bert_jax.tools.preflight import chips, hlo, links, step_time

STEP = Path(ROOT, 'tests/golden/pod_step.hlo.txt').read_text()
GB = 10**9


def fake_mesh(data, fsdp, sides, slices=1, on_chip=1, tensor=1, places=None):
  """A mesh over chips that stand in a grid, with `on_chip` devices on each; or at these places."""
  grid = itertools.product(range(slices), *(range(n) for n in sides), range(on_chip))
  places = [(0, *xy, 0) for xy in places] if places else grid
  devices = [types.SimpleNamespace(slice_index=s, coords=tuple(xyz)) for s, *xyz, _ in places]
  grid = np.empty(len(devices), object)
  grid[:] = devices
  shape = {'data': data, 'fsdp': fsdp, 'tensor': tensor}
  return types.SimpleNamespace(
    devices=grid.reshape(data, fsdp, tensor), shape=shape, size=len(devices)
  )


@pytest.mark.parametrize(
  ('text', 'groups'),
  [
    ('replica_groups={{0,2},{1,3}}, dimensions={0}', [(0, 2), (1, 3)]),
    ('replica_groups=[2,2]<=[4], x=[7,7]', [(0, 1), (2, 3)]),
    ('replica_groups=[2,2]<=[2,2]T(1,0), x', [(0, 2), (1, 3)]),
    ("replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_1'}, x", [(0, 1), (2, 3)]),
    ("replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0'}, x", [(0, 2), (1, 3)]),
    ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}, x", [(0, 1, 2, 3)]),
    ("replica_groups=mesh['a'=4] {'a':(2)2}, x", [(0, 1), (2, 3)]),
    ("replica_groups=mesh['a'=4] {'a':(1)2}, x", [(0, 2), (1, 3)]),
    ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}, x", [(0, 2), (1, 3)]),
    ("replica_groups=mesh['a'=1,'b'=4], device_ids=([2,2]T(1,0)) {'b'}, x", [(0, 2, 1, 3)]),
    ('source_target_pairs={{0,1},{1,2},{2,3}}, x', [(0, 1), (1, 2), (2, 3)]),
    ('replica_groups={}, x', [(0, 1, 2, 3)]),
    ('channel_id=3', [(0, 1, 2, 3)]),
  ],
)
def test_the_groups_of_a_collective_are_read_in_every_notation(text, groups):
  assert links.groups_of(text, 4) == tuple(groups)


def rows(mesh, axis):
  """The groups of positions along an axis of a mesh."""
  ids = np.arange(mesh.size).reshape(*mesh.shape.values())
  moved = np.moveaxis(ids, list(mesh.shape).index(axis), -1)
  return tuple(map(tuple, moved.reshape(-1, mesh.shape[axis]).tolist()))


def test_a_transfer_takes_what_its_bytes_need_on_the_links_of_its_group():
  """v5e: 400 GB/s in both directions of 4 links, so 50 GB/s one way on each; 25 Gb/s to slices."""
  v5e, v5p = chips.published_of('TPU v5 lite'), chips.published_of('TPU v5')

  def seconds(published, mesh, axis, kind='all-gather'):
    network = links.Network(mesh, published)
    transfer = links.Transfer(kind, 64 * GB, rows(mesh, axis))
    assert network.axes(transfer) == axis
    return network.seconds(transfer)

  line = fake_mesh(4, 4, (4, 4))  # fsdp along one side, which is no ring
  assert seconds(v5e, line, 'fsdp') == pytest.approx(64 * 3 / 4 / 50)
  assert seconds(v5e, line, 'fsdp', 'all-reduce') == pytest.approx(2 * 64 * 3 / 4 / 50)
  both = fake_mesh(1, 16, (4, 4))  # over two sides: the chip in the corner has two links
  assert seconds(v5e, both, 'fsdp') == pytest.approx(64 * 15 / 16 / 100)
  ring = fake_mesh(16, 16, (16, 16))  # a whole side of a pod is a ring
  assert seconds(v5e, ring, 'fsdp') == pytest.approx(64 * 15 / 16 / 100)
  # v5p: 100 GB/s on each of 6 links; three rings, and none where a side is no multiple of 4.
  assert seconds(v5p, fake_mesh(1, 64, (4, 4, 4)), 'fsdp') == pytest.approx(64 * 63 / 64 / 600)
  assert seconds(v5p, fake_mesh(1, 32, (2, 4, 4)), 'fsdp') == pytest.approx(64 * 31 / 32 / 300)
  # Two slices of 4: each chip sums its quarter with one other chip, over 25 Gb/s.
  inside, quarter = 2 * 64 * 3 / 4 / 100, 64 / 4
  far = fake_mesh(8, 1, (2, 2), slices=2)
  expected = inside + 2 * quarter / 2 / (25 / 8)
  assert seconds(v5e, far, 'data', 'all-reduce') == pytest.approx(expected)
  # Two devices of a chip share its links, whether they are in one group or in two.
  ours = chips.published_of('TPU7x')
  pairs = fake_mesh(1, 8, (2, 2, 1), on_chip=2)
  assert seconds(ours, pairs, 'fsdp') == pytest.approx(64 * 3 / 4 / 200)
  apart = fake_mesh(4, 2, (2, 2, 1), on_chip=2)
  assert seconds(ours, apart, 'fsdp') == 0
  assert seconds(ours, apart, 'data') == pytest.approx(2 * 64 * 3 / 4 / 200)


SEND = (
  '%send = (bf16[239,8,128]{2,1,0:T(8,128)(2,1)}, u32[], token[]) send(%x, %after), channel_id=5, '
  'is_host_transfer=true, frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}'
)


@pytest.mark.parametrize(('slices', 'sent'), [(2, 1.0), (4, 1.5)])
def test_a_program_of_several_slices_names_the_groups_of_one(slices, sent):
  """The links of each slice are its own; what a chip sends to other slices passes the network
  alone, and nothing hides it."""
  mesh = fake_mesh(4 * slices, 4, (4, 4), slices=slices)
  network = links.Network(mesh, chips.published_of('TPU v5 lite'))
  groups = rows(mesh, 'fsdp')
  for kind in ('all-gather', 'all-reduce'):
    every, one = (links.Transfer(kind, 64 * GB, x) for x in (groups, groups[:4]))
    once = 2 if kind == 'all-reduce' else 1
    assert network.seconds(one) == network.seconds(every) == pytest.approx(once * 64 * 3 / 4 / 50)
  program = hlo.Program('ENTRY %main (x: f32[8]) -> f32[8] {\n  ' + SEND + '\n}')
  (row,) = links.rows(program, network)
  assert (row.kind, row.axes, row.bytes, row.beside) == ('send', 'slices', 489472, False)
  assert row.seconds == pytest.approx(sent * 489472 / (25e9 / 8))


# Where mesh_utils puts the devices of a v5e:4x4 with data=2, fsdp=4, tensor=2.
CROSSED = [(2 * i + k, j) for i in range(2) for j in range(4) for k in range(2)]


FOURS = '{0,2,4,6},{8,10,12,14},{1,3,5,7},{9,11,13,15}'
PAIRS = (
  '{0,0},{8,2},{1,4},{9,6},{2,8},{10,10},{3,12},{11,14},{4,1},{12,3},{5,5},{13,7},{6,9},{14,11}'
)
EIGHT = "mesh['axis_0'=8,'axis_1'=1,'axis_2'=2], device_ids=([2,8]T(1,0)) {'axis_0'}"


@pytest.mark.parametrize(
  ('kind', 'groups', 'axes', 'seconds'),
  [
    # Neighbours: a link for each side that a group has.
    ('all-reduce', 'replica_groups=[8,2]<=[16]', 'tensor', 2 * 1 / 2 / 50),
    ('all-gather', f'replica_groups={{{FOURS}}}', 'fsdp', 3 / 4 / 50),
    ('all-gather', 'replica_groups=[4,4]<=[2,4,2]T(0,2,1)', 'fsdp', 3 / 4 / 50),
    ('all-gather', f'replica_groups={EIGHT}', 'fsdp+tensor', 7 / 8 / 100),
    # Two chips apart: two groups share the link in the middle.
    ('all-reduce', 'replica_groups=[8,2]<=[2,8]T(1,0)', 'data', 2 * 1 / 2 / 25),
    ('all-gather', 'replica_groups=[4,4]<=[4,2,2]T(2,1,0)', 'data+fsdp', 3 / 4 / (25 + 25)),
    # A permutation is taken to pass one link.
    ('collective-permute', f'source_target_pairs={{{PAIRS}}}', 'data+fsdp+tensor', 1 / 50),
  ],
)
def test_groups_of_chips_that_stand_apart_share_links(kind, groups, axes, seconds):
  line = f'%x = bf16[32,128,256]{{2,1,0}} {kind}(%p), channel_id=14, {groups}, dimensions={{0}}'
  program = hlo.Program('ENTRY %main (x: f32[8]) -> f32[8] {\n  ' + line + '\n}')
  mesh = fake_mesh(2, 4, (4, 4), tensor=2, places=CROSSED)
  network = links.Network(mesh, chips.published_of('TPU v5 lite'))
  (row,) = links.rows(program, network)
  assert (row.axes, row.number) == (axes, 1)
  assert row.seconds == pytest.approx(seconds * row.bytes / GB)


def moved(text=STEP):
  network = links.Network(fake_mesh(1, 4, (2, 2)), chips.published_of('TPU v5 lite'))
  return {(row.kind, row.beside): row for row in links.rows(hlo.Program(text), network)}


def test_the_transfers_of_a_real_step():
  """The table is gathered at once (4 MiB in float32), a kernel of a layer beside a product, its
  piece in three fusions being one transfer; gradients are summed and scattered."""
  found = moved()
  assert {key: row.bytes for key, row in found.items()} == {
    ('all-gather', False): 8192 * 128 * 4,
    ('all-gather', True): 128 * 128 * 2,
    ('reduce-scatter', False): 5120 * 128 * 4,
    ('all-reduce', False): 2 * 4,
  }
  assert {row.axes for row in found.values()} == {'fsdp'}
  table = 8192 * 128 * 4 * 3 / 4 / (100 * GB)
  assert found['all-gather', False].seconds == pytest.approx(table)


LOOP = """
%body (x: f32[8]) -> f32[8] {
  %start.1 = (f32[2], f32[8]) all-gather-start(%x), replica_groups={{0,1,2,3}}, dimensions={0}
  %done.1 = f32[8] all-gather-done(%start.1)
}
%sum (x: f32[800]) -> f32[8] {
  %x = f32[800] parameter(0)
  %sum.1 = f32[200] reduce-scatter(%x), replica_groups={{0,1,2,3}}, dimensions={0}
}
ENTRY %main (p: f32[8]) -> f32[8] {
  %x.1 = f32[8] while(%p), body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %started = ((f32[800]), f32[200]) async-start(%x.1), calls=%sum
  %goes_on = ((f32[800]), f32[200]) async-update(%started)
  %ended = f32[200] async-done(%goes_on)
}
"""


def test_what_is_started_early_is_counted_once_in_every_turn_of_a_loop():
  found = moved(LOOP)
  assert {key: (row.number, row.bytes) for key, row in found.items()} == {
    ('all-gather', True): (3, 96),
    ('reduce-scatter', True): (1, 3200),
  }
  assert found['all-gather', True].seconds == pytest.approx(3 * 32 * 3 / 4 / (100 * GB))


def test_work_of_unknown_cost_is_counted_and_leaves_no_time():
  assert hlo.Program(STEP).uncounted() == {}
  line = '  %work = f32[8] custom-call(%x), custom_call_target="tpu_custom_call"\n'
  kernels = LOOP.replace('  %done.1', line + '  %done.1')
  assert hlo.Program(kernels).uncounted() == {'Pallas kernels': 3}
  mark = f'jit(sort)/sort"}}, {{"estimated_cycles":"{2**64 - 1}"}}'
  unknown = STEP.replace('jit(sort)/sort"}', mark)
  assert hlo.Program(unknown).cycles() == hlo.Program(STEP).cycles()
  assert hlo.Program(unknown).uncounted() == {'operations of unknown cost': 1}
  assert report_of(unknown)['estimates'] == {} != report_of()['estimates']


def fake_chip(kind='TPU v5 lite'):
  published, peak = chips.published_of(kind), speed.peak_flops_of(kind)
  return types.SimpleNamespace(published=published, peak=peak, seconds_per_cycle=0.9e-9)


def report_of(text=STEP, kind='TPU v5 lite', sides=(2, 2)):
  program = hlo.Program(text)
  step = step_time.step_times(program, fake_mesh(1, 4, sides), fake_chip(kind), 4e9, 1000, 4)
  cycles = sum(program.cycles().values())
  memory = {'fits': True, 'hbm_bytes': 2 * GB, 'hbm_limit': 17 * GB}
  return step | memory | {'estimated_cycles': cycles}


def test_the_time_of_a_step_with_and_without_communication():
  report = report_of()
  alone, with_all = report['estimates'].values()
  assert alone['step_s'] == pytest.approx(0.9e-9 * report['estimated_cycles'])
  assert alone['mfu'] == pytest.approx(4e9 / 4 / 197e12 / alone['step_s'])
  assert alone['chip_hours'] == pytest.approx(1000 * 4 * alone['step_s'] / 3600)
  blocking = sum(row['seconds'] for row in report['transfers'] if not row['beside'])
  assert with_all['step_s'] - alone['step_s'] == pytest.approx(blocking) and blocking > 0


def test_the_compiler_is_asked_for_the_slices_and_for_a_chip_alone(monkeypatch):
  asked, alone = [], {'chips_per_host_bounds': [1, 1, 1]}

  def described(*names, **options):
    asked.append((names, options))
    return types.SimpleNamespace(devices=(1, 2))

  for name in ('TPU_SKIP_MDS_QUERY', 'ALLOW_MULTIPLE_LIBTPU_LOAD'):
    monkeypatch.setenv(name, '1')
  monkeypatch.setattr(chips.importlib.util, 'find_spec', lambda _: True)
  monkeypatch.setattr('jax.experimental.topologies.get_topology_desc', described)
  for topology, slices, options in (
    ('v6e:1x1', 1, alone),
    ('v5p:1x1x1', 3, {'num_slices': 3} | alone),
    ('v4:2x2x2', 1, {'chip_config_name': 'megacore'}),
  ):
    assert chips.devices_of(topology, slices) == [1, 2]
    assert asked.pop() == ((topology, 'tpu'), options)
  with pytest.raises(InputError, match='--topology'):
    chips.devices_of('v5litepod-16')


@pytest.mark.parametrize(
  'count, mfu, alone, whole, is_told',
  [(16, 0.25, 38.9, 41.6, True), (4, 0.25, 38.9, 41.6, False)]
  + [(16, 0.28, 143.0, 145.5, False), (16, 0.66, 38.9, 41.6, False)],
)
def test_fewer_chips_are_advised_where_many_wait_for_one_another(count, mfu, alone, whole, is_told):
  times = {
    'compute_only': {'chip_hours': alone},
    'with_communication': {'mfu': mfu, 'chip_hours': whole},
  }
  told = step_time.advice({'chips': count, 'estimates': times})
  assert len(told) == is_told
  if is_told:
    assert '4 take at least 9.7 hours and 38.9 chip-hours, and these 16 2.6 hours' in told[0]
