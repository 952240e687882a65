"""Estimates a config's training step by compiling it: memory, cycles, time."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import sharding, step, tokenizers
from bert_jax.corpus import store
from bert_jax.objectives.base import Objective
from bert_jax.rows.sentence_pairs import PAIRS
from bert_jax.run import initialization
from bert_jax.tasks import TASKS, teaching
from bert_jax.tools.preflight import chips, compilation, hlo, step_time
from bert_jax.tools.preflight.compilation import Devices

STEPS = 1_000_000  # assumed for a run whose length depends on its data
Report = dict[str, Any]  # valid JSON


def of_its_run(config: ConfigDict, set_by_user: Collection[str] = ()) -> ConfigDict:
  """The config with what its run takes from elsewhere: the sizes of the model of init_from, and the
  vocabulary of a prepared corpus. set_by_user: see train.train."""
  start = initialization.start_of(config, '', weights=False)
  config = initialization.adopt_model(config, start, set_by_user)
  task = TASKS[config.objective]
  if task.reads_corpus and store.is_prepared(config.data.train):
    return task.resolve(config)
  return config


def objective_of(config: ConfigDict) -> Objective:
  """The objective of a config, with stand-ins for the words and the labels of its data."""
  task = TASKS[config.objective]
  config = task.stand_in(config.copy_and_resolve_references())
  words = (f'w{i}' for i in range(config.model.vocab_size - len(tokenizers.RESERVED)))
  tokenizer = tokenizers.wordpiece_tokenizer([*tokenizers.RESERVED, *words])
  if teaching.has_teacher(config):
    from bert_jax.run import teacher  # slow to import

    tokenizer = tokenizers.load_folder(teacher.folder_of(config))
    return teacher.taught(config, task.objective(config, tokenizer), tokenizer)
  return task.objective(config, tokenizer)


def length_of(config: ConfigDict) -> Report:
  """{'steps', 'assumed': are they STEPS, 'tokens': all positions of rows, and 'full_steps': its
  rows in full batches}."""
  rows, size = 0.0, config.batch_size * config.data.seq_length
  if store.is_prepared(config.data.train):
    text = sum(x['tokens'] for x in store.read_meta(config.data.train)['kept'].values())
    times = config.corpus.dupe_factor if config.corpus.rows in PAIRS else 1
    rows = times * text / config.data.seq_length
  steps = config_lib.step_count(config, rows) or STEPS
  timeline = config_lib.timeline_of(config, steps)
  tokens = timeline.rows_before(steps) * config.data.seq_length
  return {
    'steps': steps,
    'assumed': not (config.steps or rows),
    'tokens': tokens,
    'full_steps': tokens / size,
  }


def estimate(config: ConfigDict, devices: Devices, chip: chips.Chip) -> Report:
  """Compiles a config for devices and reports what its step takes."""
  config = config_lib.check(config)
  mesh = sharding.mesh_of(config, TASKS[config.objective], devices)
  objective = objective_of(config)
  flops = 3 * objective.flops(config.batch_size)  # backward is twice the forward pass
  length = length_of(config)
  program = step.program(config, objective, mesh, config_lib.timeline_of(config, length['steps']))
  with jax.set_mesh(mesh), sharding.activation_rules():
    lowered, where = program.lower(), list(mesh.devices.flat)
    compiled = compilation.compiled(lowered, where, 'a step for', sharding.compiler_options(mesh))
  used, sizes = compiled.used, compiled.sizes
  if compiled.text:  # aliased arguments and results share memory
    used = sum(sizes.values()) - 2 * sizes['alias']
  # Some kinds of chips are two devices each.
  number = len({(getattr(d, 'slice_index', 0), *d.coords) for d in devices})
  report = {
    'devices': f'{len(devices)} x {devices[0].device_kind}',
    'chips': number,
    'mesh': {name: int(n) for name, n in mesh.shape.items()},
    'rows_per_data_shard': config.batch_size // (mesh.shape['data'] * mesh.shape['fsdp']),
    'fits': bool(compiled.text),
    'hbm_limit': chip.hbm,
    'hbm_bytes': used,
    'dtype': config.model.dtype,
    'model_flops': int(flops),
    'warnings': [],
    'estimates': {},
    **length,
  }
  if not compiled.text:
    return report
  kernels = {}
  for name, kernel in compiled.kernels.items():
    kernels[name] = chip.as_estimated(compilation.Kernel(*kernel))
  parsed = hlo.Program(compiled.text, kernels)
  cycles = parsed.cycles()
  report |= {
    'estimated_cycles': sum(cycles.values()),
    'cycles': cycles,
    'kernels': kernels,
    'warnings': _warnings(parsed),
  }
  return report | step_time.step_times(parsed, mesh, chip, flops, length['full_steps'], number)


def _warnings(program: hlo.Program) -> list[str]:
  """Sentences on what a program's cycles leave out or count twice."""
  out = []
  loops = program.endless()
  if loops:
    out.append(f'{len(loops)} loops of unknown length, such as {loops[0]}, are left out')
  choices = program.choices()
  if choices:
    true = 'model.scan_layers=false gives the true sum'
    out.append(f'{len(choices)} conditionals, such as {choices[0]}, count all branches; {true}')
  return out


def changed(config: ConfigDict, fields: Mapping[str, Any]) -> ConfigDict:
  """A copy of a config with some fields changed, {name: value}."""
  config = config.copy_and_resolve_references()
  config.update_from_flattened_dict(fields)
  return config
