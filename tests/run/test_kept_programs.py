"""What one run, or one step, keeps for the next: compiled programs, memory."""

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax._src import cache_key
from jax.experimental.compilation_cache import compilation_cache
from running import same_bits
from test_models import model
from test_objectives import MASKING
from test_step import ragged_batch
from toys import config_of

from bert_jax import config as config_lib
from bert_jax import copies, sharding, step
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.run import memory

HIT, MISS = '/jax/compilation_cache/cache_hits', '/jax/compilation_cache/cache_misses'


@pytest.fixture(scope='module')
def kept(tmp_path_factory):
  """The folder in which compiled programs are kept."""
  before = jax.config.jax_compilation_cache_dir
  folder = tmp_path_factory.mktemp('cache')
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(folder))
    jax.config.update('jax_compilation_cache_dir', None)
    copies.keep_compiled()
    yield folder / 'bert_jax' / 'compiled'
  jax.config.update('jax_compilation_cache_dir', before)
  compilation_cache.reset_cache()


class Start:
  """A start of a run, as a new process would begin it. found: was its compiled step there?"""

  def __init__(self, *settings, nsp_weight=0.7, options=None, steps=10, **sizes):
    config = config_of(*settings)
    sizes = {'initializer_range': 0.1, 'num_hidden_layers': 1} | sizes
    objective = MlmNsp(model(**sizes), 20, nsp_weight, MASKING)
    mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
    self.program = step.program(config, objective, mesh, config_lib.timeline_of(config, steps))
    events = []
    with jax.set_mesh(mesh), sharding.activation_rules():
      lowered = self.program.lower()
      jax.monitoring.register_event_listener(lambda event, **about: events.append(event))
      self.step = lowered.compile(options)
      jax.monitoring.clear_event_listeners()
    assert events.count(HIT) + events.count(MISS) == 1
    self.found = HIT in events


def test_a_run_finds_its_program(kept):
  first, again = Start(), Start()
  assert (first.found, again.found) == (False, True)
  others = 'seed=7 optimizer.learning_rate=0.3 optimizer.weight_decay=0.02'
  assert Start(f'{others} optimizer.warmup=3 optimizer.horizon=1.5', steps=20).found
  ends = []
  for start in (first, again):
    state = start.program.make_state(jax.random.key(3))
    ends.append(start.step(state, ragged_batch(), start.program.constants))
  same_bits(*ends)


OTHERS = {
  'rows': {'settings': 'batch_size=16'},
  'optimizer': {'settings': 'optimizer.beta2=0.97'},
  'optimizer by name': {'settings': 'optimizer.name=lamb'},
  'schedule': {'settings': 'optimizer.schedule=cosine'},
  'loss': {'nsp_weight': 0.4},
  'layers': {'num_hidden_layers': 2},
  'type': {'dtype': 'bfloat16'},
  'activation': {'hidden_act': 'relu'},
  'options of the compiler': {'options': {'xla_cpu_enable_fast_math': True}},
}


@pytest.mark.parametrize('name', OTHERS)
def test_another_run_does_not(kept, name):
  given = dict(OTHERS[name])
  settings = given.pop('settings', '')
  assert not Start(settings, **given).found


def test_nor_does_another_version_device_or_flag(kept, monkeypatch):
  Start()
  with monkeypatch.context() as patch:
    patch.setattr(cache_key, 'jaxlib_version_str', '0.0.1')
    assert not Start().found
  with monkeypatch.context() as patch:
    other = SimpleNamespace(fingerprint=lambda: 7, serialize=lambda: b'7')  # of jax 0.7
    patch.setattr(cache_key.xla_client, 'get_topology_for_devices', lambda devices: other)
    assert not Start().found
  with monkeypatch.context() as patch:
    patch.setenv('XLA_FLAGS', f'{os.environ["XLA_FLAGS"]} --xla_cpu_enable_fast_math=true')
    assert not Start().found
  assert Start().found


@pytest.mark.parametrize('share', [0, 0.6])
def test_a_damaged_one_is_compiled_anew(kept, share):
  Start()
  for path in kept.glob('jit_train_step-*-cache'):
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
  with pytest.warns(UserWarning, match='Error reading persistent compilation cache entry'):
    Start()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), 'mallopt'), reason='not glibc')
@pytest.mark.skipif(os.cpu_count() > memory.MOST_CORES, reason='many cores')
@pytest.mark.parametrize('room, is_kept', [(8, True), (1e9, False)])
def test_freed_memory_is_kept_where_there_is_room(room, is_kept):
  """A second array of 240 MB needs no new pages; also after a run that had room."""
  code = f"""if True:
    import resource
    from bert_jax.run import memory
    memory.one_heap()
    import jax
    import numpy as np
    def faults():
      len(b'x' * 240_000_000)
      return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step = jax.jit(lambda x: (x @ x) @ (x @ x.T)).lower(np.ones((300, 300))).compile()
    for memory.ROOM in 8, {room}:
      memory.keep(step, jax.make_mesh((1,), ('data',)))
    first = faults()
    print(faults() - first)"""
  out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert (int(out.stdout) < 50) == is_kept


@pytest.mark.parametrize('there_is', [1_000_000, 9_000_000])
def test_a_step_that_needs_more_memory_than_there_is(monkeypatch, caplog, there_is):
  monkeypatch.setattr(memory, '_there_is', lambda: there_is)
  step = jax.jit(lambda x: (x @ x) @ (x @ x.T)).lower(np.ones((600, 600))).compile()
  memory.keep(step, jax.make_mesh((1,), ('data',)))
  assert ('lower batch_size' in caplog.text) == (there_is < 2e6)
