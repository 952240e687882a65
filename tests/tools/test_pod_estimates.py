"""What a step on many chips takes: collectives read from a compiled program, their time, money."""

import itertools
import re
import types
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from bert_jax.errors import InputError
from bert_jax.run import speed
from bert_jax.tools.preflight import chips, costs, hlo, links, step_time

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
  assert seconds(v5e, line, 'fsdp', 'reduce-scatter') == pytest.approx(64 * 3 / 4 / 50)
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
  (row,) = links.Timeline(program, network, 1e-9).rows
  assert (row.axes, row.number) == (axes, 1)
  assert row.seconds == pytest.approx(seconds * row.bytes / GB)


def test_a_strided_group_closes_a_ring():
  """Every second chip of a side of 16: around both ways, on links that two groups share."""
  network = links.Network(fake_mesh(16, 16, (16, 16)), chips.published_of('TPU v5 lite'))
  groups = links.groups_of('replica_groups=[32,8]<=[16,8,2]T(0,2,1)', 256)
  transfer = links.Transfer('all-gather', GB, groups)
  assert network.axes(transfer) == 'fsdp'
  assert network.seconds(transfer) == pytest.approx(7 / 8 / (2 * 50 / 2))
  around = links.Transfer('collective-permute', GB, ((15, 0), (0, 1)))
  assert network.seconds(around) == pytest.approx(1 / 50)


def test_equal_collectives_count_each():
  """Pieces of one chain are one transfer; equal ones beside it, on the same channel, are others."""
  again = next(line for line in STEP.splitlines() if '%all-gather.434' in line)
  text = STEP.replace(again, f'{again}\n{again.replace(".434", ".435")}')
  (once, one), (twice, two) = timeline(1e-9), timeline(1e-9, text)
  row = one['all-gather', False]
  assert two['all-gather', False].number == 2
  assert two['all-gather', False].bytes == 2 * row.bytes
  assert twice.seconds == pytest.approx(once.seconds + row.seconds)


def timeline(seconds_per_cycle, text=STEP):
  network = links.Network(fake_mesh(1, 4, (2, 2)), chips.published_of('TPU v5 lite'))
  line = links.Timeline(hlo.Program(text), network, seconds_per_cycle)
  return line, {(row.kind, row.beside): row for row in line.rows}


def test_what_is_not_started_before_is_waited_for():
  """Of a real step: the table is gathered at once (4 MiB in float32), a kernel of a layer beside a
  product, its piece in three fusions being one transfer; gradients are summed and scattered."""
  program = hlo.Program(STEP)
  cycles = sum(program.cycles().values())
  line, found = timeline(1e-9)
  assert {key: row.bytes for key, row in found.items()} == {
    ('all-gather', False): 8192 * 128 * 4,
    ('all-gather', True): 128 * 128 * 2,
    ('reduce-scatter', False): 5120 * 128 * 4,
    ('all-reduce', False): 2 * 4,
  }
  assert {row.axes for row in line.rows} == {'fsdp'} and {row.number for row in line.rows} == {1}
  table = 8192 * 128 * 4 * 3 / 4 / (100 * GB)
  assert found['all-gather', False].seconds == found['all-gather', False].waited
  assert found['all-gather', False].seconds == pytest.approx(table)
  # The product takes 1,000 times as long as the kernel that is gathered beside it.
  assert found['all-gather', True].waited == 0 < found['all-gather', True].seconds
  waited = sum(row.waited for row in line.rows)
  assert line.seconds == pytest.approx(cycles * 1e-9 + waited)
  # A chip that computes in no time waits for this one too.
  line, found = timeline(0.0)
  assert found['all-gather', True].waited == pytest.approx(found['all-gather', True].seconds)
  assert line.seconds == pytest.approx(sum(row.seconds for row in line.rows))


LOOP = """
%body (x: f32[8]) -> f32[8] {
  %start.1 = (f32[2], f32[8]) all-gather-start(%x), replica_groups={{0,1,2,3}}, dimensions={0}
  %add.1 = f32[8] add(%x, %x), backend_config={"estimated_cycles":"10"}
  %done.1 = f32[8] all-gather-done(%start.1)
  %add.2 = f32[8] add(%x, %x), backend_config={"estimated_cycles":"100"}
}
%sum (x: f32[800]) -> f32[8] {
  %x = f32[800] parameter(0)
  %sum.1 = f32[200] reduce-scatter(%x), replica_groups={{0,1,2,3}}, dimensions={0}
}
ENTRY %main (p: f32[8]) -> f32[8] {
  %x.1 = f32[8] while(%p), body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %started = ((f32[800]), f32[200]) async-start(%x.1), calls=%sum
  %goes_on = ((f32[800]), f32[200]) async-update(%started)
  %add.3 = f32[8] add(%x.1, %x.1), backend_config={"estimated_cycles":"7"}
  %ended = f32[200] async-done(%goes_on)
}
"""


def test_pairs_of_start_and_done_hide_what_stands_between_them_in_every_turn_of_a_loop():
  cycle = 1e-12
  line, found = timeline(cycle, LOOP)
  moved = 32 * 3 / 4 / (100 * GB)
  row = found['all-gather', True]
  assert (row.number, row.bytes) == (3, 96)
  assert row.waited == pytest.approx(3 * (moved - 10 * cycle))
  row = found['reduce-scatter', True]
  assert row.waited == pytest.approx(row.seconds - 7 * cycle)
  assert line.seconds == pytest.approx(
    3 * (moved + 100 * cycle) + found['reduce-scatter', True].seconds
  )


def test_work_without_cycles_is_counted():
  program = hlo.Program(STEP)
  assert program.uncounted() == {'gathers': 1, 'scatters': 1, 'sorts': 1}
  counted = STEP.replace('jit(sort)/sort"}', 'jit(sort)/sort"}, {"estimated_cycles":"9"}')
  assert 'sorts' not in hlo.Program(counted).uncounted()
  unknown = hlo.Program(counted.replace('"9"', f'"{2**64 - 1}"'))
  assert unknown.uncounted()['unknown'] == 1 and unknown.cycles() == program.cycles()


def fake_chip(kind='TPU v5 lite'):
  published, peak = chips.published_of(kind), speed.peak_flops_of(kind)
  sheet = published.flops_per_cycle and published.flops_per_cycle / peak
  clocks = dict(seconds_per_cycle=0.9 * 131072 / 197e12, data_sheet_seconds=sheet)
  return types.SimpleNamespace(published=published, peak=peak, **clocks)


def report_of(text=STEP, kind='TPU v5 lite', sides=(2, 2)):
  program = hlo.Program(text)
  step = step_time.step_times(program, fake_mesh(1, 4, sides), fake_chip(kind), 4e9, 1000, 4)
  cycles = sum(program.cycles().values())
  memory = {'fits': True, 'hbm_bytes': 2 * GB, 'hbm_limit': 17 * GB}
  return step | memory | {'estimated_cycles': cycles}


def test_two_clocks_with_and_without_communication():
  report = report_of()
  both = {'compute_only', 'with_communication'}
  kinds = {clock: set(x) for clock, x in report['estimates'].items()}
  assert kinds == {'calibrated': both, 'data_sheet': both}
  cycles = report['estimated_cycles']
  calibrated, sheet = (x['compute_only'] for x in report['estimates'].values())
  assert sheet['step_s'] == pytest.approx(cycles * 131072 / 197e12)
  assert sheet['mfu'] == pytest.approx(1e9 / cycles / 131072)
  assert sheet['chip_hours'] == pytest.approx(1000 * 4 * sheet['step_s'] / 3600)
  assert calibrated['mfu'] == pytest.approx(sheet['mfu'] / 0.9)
  for estimate, full in zip(report['estimates'].values(), step_time.fullest(report), strict=True):
    alone, with_all = estimate['compute_only'], estimate['with_communication']
    assert with_all['step_s'] > alone['step_s'] and with_all['mfu'] < alone['mfu']
    assert full == with_all
  text = '\n'.join(step_time.text_of(report))
  assert 'by 400 GB/s of all links of a chip (cloud.google.com/tpu/docs/v5e)' in text
  assert 'since the compiler gives them no cycles: sorts 1, gathers 1, scatters 1' in text


def test_a_chip_without_published_links_is_compute_only():
  report = report_of(kind='TPU v4', sides=(2, 2, 1))
  assert [set(x) for x in report['estimates'].values()] == [{'compute_only'}] * 2
  line = step_time.text_of(report)[-1]
  assert 'no bandwidth of the links of this chip is published' in line
  assert report['transfers'] == [] and 'all-gather 4.2 MB, ' in line


KERNEL = '  %kernel.1 = f32[8] custom-call(%p), custom_call_target="tpu_custom_call"\n}\n'


def test_kernels_without_cycles_leave_no_mfu():
  report = report_of(STEP.rstrip('}\n') + '}\n' + KERNEL)
  assert report['uncounted']['Pallas kernels'] == 1 and report['estimates'] == {}
  said = step_time.text_of(report)[0]
  assert said == 'no time and no MFU: the compiler gives no cycles to 1 Pallas kernels'
  report['uncounted']['unknown'] = 2
  assert '1 Pallas kernels and 2 operations of unknown cost' in step_time.text_of(report)[0]
  del report['uncounted']['unknown']
  assert costs.line(report) == 'yes, 2.0 of 17.0 GB; a step of - ms, MFU - (of computing alone -)'
  fast = costs.line(report_of())
  assert re.search(r'a step of 0\.1 ms, MFU 9% \(of computing alone 60% to 67%\)$', fast)
  assert costs.cost(report, (1.0, 0.5)) == {}


def run_of(seconds=((1.0, 2.0), (1.5, 3.0)), **facts):
  """A report of 864,000 steps of 1,000 rows of 50 tokens on 100 chips of 25 hosts."""
  of = lambda step_s: step_time.row(step_s, 0.5 / step_s, 864_000, 100)
  names = 'compute_only', 'with_communication'
  estimates = {k: dict(zip(names, map(of, x))) for k, x in enumerate(seconds)}
  counts = dict(steps=864_000, full_steps=864_000.0, tokens=43_200_000_000, passes=12.34)
  places = dict(chips=100, hosts=25, fits=True, hbm_bytes=3 * GB, hbm_limit=17 * GB)
  return counts | places | {'estimates': estimates, 'assumed': False} | facts


def test_a_run_in_hours_and_dollars_and_tokens():
  report = run_of()
  cost = costs.cost(report, (2.0, 0.25))
  time = {'days': [20, 30], 'chip_hours': [48_000, 72_000]}
  on_demand = {'price': 2.0, 'dollars': [96_000, 144_000]}
  assert cost == time | on_demand | {'spot': 0.25, 'spot_dollars': [24_000, 36_000]}
  assert costs.line(report | cost).endswith('; $96,000 to $144,000 on demand')
  assert costs.cost(report, (2.0, float('nan'))) == time | on_demand
  assert costs.cost(report, (float('nan'), float('nan'))) == time
  small = run_of(seconds=[(1e-4, 2e-4)], fits=None, passes=None)
  misfit = run_of(seconds=(), fits=False, hbm_bytes=19 * GB)
  reports = {'a': report | cost, 'b': small | costs.cost(small, (0.3, 0.5)), 'c': misfit}
  lines = costs.table(reports)
  head, *columns = zip(*(re.split('  +', line) for line in lines[:14]), strict=True)
  first, second, third = (dict(zip(head, column)) for column in columns)
  assert first == {'topology': 'a', 'chips, hosts': '100, 25', 'fits': 'yes, 3.0 of 17.0 GB'} | {
    'step, ms': '2,000.0 to 3,000.0', 'MFU': '17% to 25%', 'MFU of computing alone': '33% to 50%',
    'hours': '480.0 to 720.0', 'chip-hours': '48,000.0 to 72,000.0',
    'on demand': '$96,000 to $144,000', 'spot': '$24,000 to $36,000',
    'steps for 100 dollars': '600 to 900',
    'tokens/s a host': '667 to 1,000', 'tokens': '43.2 B', 'passes': '12.3',
  }  # fmt: skip
  assert (second['fits'], second['on demand'], second['spot']) == ('?', '$1.44', '$0.72')
  assert (second['step, ms'], second['passes']) == ('0.2', '-')
  # 864,000 steps of 0.2 ms (with communication) are 0.048 hours, of 100 chips 4.8.
  assert (second['hours'], second['steps for 100 dollars']) == ('0.05', '60,000,000')
  assert second['MFU'] != '-' == second['MFU of computing alone']
  assert third['fits'] == 'NO, 19.0 of 17.0 GB'
  assert {third[x] for x in ('step, ms', 'MFU', 'hours', 'on demand', 'tokens/s a host')} == {'-'}
  assert max(map(len, lines)) < 90 and any(x.startswith('?: not compiled') for x in lines)
  assert any('other models may cost twice as much' in x for x in lines)
  assert any('which data.train is not' in x for x in costs.table({'b': reports['b']}))
  known = costs.table({'a': report | cost})
  assert not any(line.startswith('?') for line in known) and known[-1].startswith('864,000 steps;')
  said = costs.table({'a': report | {'assumed': True}})[-1]
  assert said.startswith('864,000 steps assumed: its length depends on its data;')


def test_a_price_for_all_topologies_or_for_each():
  assert costs.rates('1.2,2.7', '.4', 2) == [(1.2, 0.4), (2.7, 0.4)]
  assert costs.rates('1.2', '0.3,0.4,0.5', 3) == [(1.2, 0.3), (1.2, 0.4), (1.2, 0.5)]
  assert np.isnan(costs.rates('', '', 1)).all()
  with pytest.raises(InputError, match='--spot is a share of --price; give both'):
    costs.rates('', '0.5', 3)
  wrong = [('1', '0'), ('1', '1.5'), ('1', '40%')]
  wrong += [(price, '') for price in ('0', '-1', 'x', '1,,2', '1.2.3', 'nan')]
  for pair in wrong:
    with pytest.raises(InputError, match='makes no sense: --price is dollars .*; one for all topo'):
      costs.rates(*pair, 3)
  for pair, many in ((('1,2', ''), 'price has 2'), (('1', '.1,.1,.1,.1'), 'spot has 4')):
    with pytest.raises(InputError, match=f'--{many} values, and there are 3 topologies'):
      costs.rates(*pair, 3)


def test_names_of_the_cloud_are_topologies():
  for line in (
    'v5litepod-16 v5e:4x4, v5litepod-1 v5e:1x1, v6e-256 v6e:16x16, v5p-8 v5p:2x2x1',
    'v5p-128 v5p:4x4x4, v4-32 v4:2x2x4, v3-8 v3:2x2, v2-32 v2:4x4, v5p-12288 v5p:16x16x24',
    'tpu-v5litepod-64 v5e:8x8, tpu-v6e-8 v6e:2x4, V5e-16 v5e:4x4, tpu7x:2x2x1 tpu7x:2x2x1',
    'v5e:4x4 v5e:4x4, v5e-64 v5e:8x8, v5litepod-64 v5e:8x8, v5e:8x8 v5e:8x8',
  ):
    for name, topology in map(str.split, line.split(',')):
      assert chips.topology_of(name) == topology


@pytest.mark.parametrize(
  ('name', 'slices', 'counted'),
  [  # a host has 4 chips; those of v5e and v6e that are a slice of their own have up to 8
    ('v5litepod-8', 1, ('TPU v5e', 8, 8, 1)),
    ('v5e-16', 1, ('TPU v5e', 16, 16, 4)),
    ('v6e:2x4', 3, ('TPU v6e', 24, 24, 3)),
    ('v5p-16', 1, ('TPU v5p', 8, 8, 2)),
    ('v3-32', 2, ('TPU v3', 64, 32, 8)),
    ('tpu7x:2x2x1', 1, ('TPU7x', 8, 4, 1)),
  ],
)
def test_chips_and_hosts_are_counted(name, slices, counted):
  assert chips.counted(name, slices) == counted
  assert speed.peak_flops_of(counted[0]) > 0


@pytest.mark.parametrize('name', ['v5litepod-5', 'v6e-512', 'v5p-7', 'v4-4096000', 'v5e:3x7'])
def test_slices_that_are_not_offered_are_named(name):
  kind, mark = name.split('-' if '-' in name else ':')[0], '-' if '-' in name else ':'
  with pytest.raises(InputError, match=f'{name} is not offered; there are {kind}{mark}'):
    chips.topology_of(name)


def test_a_name_of_no_topology_is_named_with_and_without_the_compiler(monkeypatch):
  monkeypatch.setattr(chips.importlib.util, 'find_spec', lambda _: None)
  for name in ('v9', 'v9-3', 'v9:2x2', 'v5e', 'v5e:', '4x4'):
    with pytest.raises(InputError, match=f"--topology '{name}' does not exist; use v5e:1x1 2x2"):
      chips.devices_of(name)
  with pytest.raises(InputError, match='the TPU compiler is missing; pip install'):
    chips.devices_of('v5e:4x4')


def test_the_compiler_is_asked_for_the_slices_and_for_a_chip_alone(monkeypatch):
  asked, alone = [], {'chips_per_host_bounds': [1, 1, 1]}

  def described(*names, **options):
    asked.append((names, options))
    return types.SimpleNamespace(devices=(1, 2))

  for name in ('TPU_SKIP_MDS_QUERY', 'ALLOW_MULTIPLE_LIBTPU_LOAD'):
    monkeypatch.setenv(name, '1')
  monkeypatch.setattr(chips.importlib.util, 'find_spec', lambda _: True)
  monkeypatch.setattr('jax.experimental.topologies.get_topology_desc', described)
  for name, slices, topology, options in (
    ('v5litepod-16', 1, 'v5e:4x4', {}),
    ('v5e:4x4', 2, 'v5e:4x4', {'num_slices': 2}),
    ('v6e:1x1', 1, 'v6e:1x1', alone),
    ('v5p:1x1x1', 3, 'v5p:1x1x1', {'num_slices': 3} | alone),
    ('v4-16', 1, 'v4:2x2x2', {'chip_config_name': 'megacore'}),
  ):
    assert chips.devices_of(name, slices) == [1, 2]
    assert asked.pop() == ((topology, 'tpu'), options)


def test_the_compiler_has_the_devices_that_are_counted():
  pytest.importorskip('libtpu', reason='the TPU compiler is not installed (pip install libtpu)')
  for name in 'v2-8', 'v3-32', 'v4-8', 'v4:2x2x2', 'v5p-16', 'v5e-4', 'v6e-8':
    assert len(chips.devices_of(name)) == chips.counted(name)[1], name


def test_what_is_published_of_a_chip_fits_together():
  """The clock at which the matrix units reach the peak is that of a TPU."""
  for kind, published in chips.PUBLISHED.items():
    name = kind.split('|')[0].rstrip('?')
    assert chips.published_of(name) == published, name
    if published.flops_per_cycle:
      assert 0.7e9 < speed.peak_flops_of(name) / published.flops_per_cycle < 1.8e9, name
    assert bool(published.interconnect) == bool(published.source), name
  assert chips.published_of('TPU v5 lite').flops_per_cycle == 131072
  assert chips.published_of('Radeon') == chips.Published(None)
