"""Says what a training step takes by the compiler alone, here and on TPUs."""

import jax

from bert_jax import config as config_lib
from bert_jax import sharding, step
from bert_jax.tasks import TASKS
from bert_jax.tools.preflight import __main__ as preflight
from bert_jax.tools.preflight import chips


def compiled(args):
  """Yields the memory of a config's step on one device of this machine, or with a topology what
  tools/preflight says of it: MFU, by its calibrated clock, is that of computing alone."""
  config = config_lib.load(args.config, args.rest)
  line = {'what': ' '.join(['compiled', args.config, args.topology or 'here', *args.rest])}
  if not args.topology:
    yield line | _here(config_lib.check(config))
    return
  devices = chips.devices_of(args.topology, config.mesh.slices)
  report = preflight.preflight(config, devices, chips.Chip(devices[0]))
  line |= {'GB': round(report['hbm_bytes'] / 1e9, 2)}
  line |= {'GB too much': max(0.0, round(report['hbm_over'] / 1e9, 2))}
  line |= {'warnings': len(report['warnings'])}
  if estimates := report.get('estimates'):  # of a step that fits
    clock = estimates['calibrated']
    line |= {'MFU': round(clock['compute_only']['mfu'], 4)}
    if 'with_communication' in clock:
      line |= {'MFU with communication': round(clock['with_communication']['mfu'], 4)}
    if 'data_sheet' in estimates:
      line |= {'MFU of the data sheet': round(estimates['data_sheet']['compute_only']['mfu'], 4)}
  yield line


def _here(config):
  mesh = sharding.mesh_of(config, TASKS[config.objective], jax.devices()[:1])
  timeline = config_lib.timeline_of(config, preflight.STEPS)
  program = step.program(config, preflight.objective_of(config), mesh, timeline)
  with jax.set_mesh(mesh), sharding.activation_rules():
    sizes = program.lower().compile().memory_analysis()
  state, work = sizes.argument_size_in_bytes / 2**30, sizes.temp_size_in_bytes / 2**30
  return {'GiB': round(state + work, 2), 'GiB of temporaries': round(work, 2)}
