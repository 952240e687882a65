"""Loss and gradient norm, in turn, of three steps of each objective on meshes of 8 devices.

    python tests/layouts.py [--task A --task B] data,fsdp,tensor[,FIELD=VALUE] ...

1,1,1 is one of the devices. tests/test_layouts.py compares the lines; tests/programs.py compiles
the same steps for more devices. A task is one of TASKS, or a config such as
configs/finetune.py:task=table,objective=NAME.

Batches are drawn at random by the objective's own contract: what they say does not matter here.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import jax
import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from bert_jax import config as config_lib
from bert_jax import sharding, step
from bert_jax import tasks as families
from bert_jax.objectives.distillation import DistilledLanguageModel
from bert_jax.tools.preflight import estimate

TASKS = {
  'pretrain': 'configs/pretrain.py',
  'electra': 'configs/pretrain.py:arch=electra,size=small',
  'spanbert': 'configs/pretrain.py:arch=spanbert',
  'gpt': 'configs/causal_lm.py',
  'transformer_xl': 'configs/transformer_xl.py:runlocal',
  **{kind: f'configs/pretrain.py:objective={kind}' for kind in ('hybrid', 'diffusion')},
  'contrastive': 'configs/contrastive.py',
  'translation': 'configs/translate.py:pair=en-de,size=small',
  'distillation': 'configs/distill.py:runlocal',
  'denoising': 'configs/translate.py:denoise,size=small',
}
TASKS |= {
  task: f'configs/finetune.py:task={task}'
  for task in ('sst2', 'stsb', 'ner', 'squad', 'copa', 'gap')
}
SMALL = """
  batch_size=16 steps=3 epochs=0 data.seq_length=32 optimizer.warmup=0 optimizer.learning_rate=1e-2
  model.vocab_size=200 model.vocab_multiple=128 model.num_hidden_layers=1 model.hidden_size=32
  model.intermediate_size=64 model.num_attention_heads=8 model.max_position_embeddings=32
  model.dtype=float32""".split()  # noqa: SIM905


def batch_of(spec, vocab_size, seed):
  """Numbers for every array of a batch contract: two examples in each row of 32 tokens."""
  rng = np.random.RandomState(seed)
  B, T = len(spec['input_ids']), math.prod(spec['input_ids'].shape[1:])
  half = np.arange(T) // (T // 2)
  known = {
    'input_ids': rng.randint(5, vocab_size, (B, T)),
    'token_type_ids': rng.randint(0, 2, (B, T)),
    'position_ids': np.tile(np.arange(T), (B, 1)),
    'segment_ids': np.tile(1 + half, (B, 1)),
    'weights': rng.rand(B, 2) < 0.8,
    'cls_positions': np.tile([0, T // 2], (B, 1)),
    'groups': np.zeros((B, 2)),
    'tags': rng.randint(0, 3, (B, T)),
    'text_ids': 1 + np.minimum(np.arange(2 * B), 2 * B - 3).reshape(B, 2),  # some are equal
  }
  out = {}
  for name, want in spec.items():
    of_either_side = name.removeprefix('target_')
    drawn = known.get(of_either_side, rng.randint(0, 2, want.shape))
    drawn = np.asarray(drawn).reshape(B, -1)[:, : math.prod(want.shape[1:])]
    out[name] = drawn.reshape(want.shape).astype(want.dtype)  # some rows have parts
  return out


def made(task, shape, changes=(), devices=None):
  """The step.Program of a task on a mesh of these devices, and its config."""
  spec = TASKS.get(task, task)
  overrides = [*SMALL, *(f'mesh.{axis}={n}' for axis, n in zip(sharding.AXES, shape))]
  if 'task' in config_lib.load(spec):  # a family of examples
    overrides += ['data.examples_per_row=2', 'task.max_length=16']
  if task == 'contrastive':
    overrides.append('contrastive.chunks=2')
  overrides += changes
  config = config_lib.load(spec, [f'--config.{line}' for line in overrides])
  devices = (devices or jax.devices())[: np.prod(shape)]
  mesh = sharding.mesh_of(config, families.TASKS[config.objective], devices)
  objective = estimate.objective_of(config)
  if task == 'distillation':
    given = objective.init(jax.random.key(7))
    objective = DistilledLanguageModel(objective, objective, given, '', 2.0, 5.0, 2.0)
  return step.program(config, objective, mesh, config_lib.timeline_of(config)), config


def losses(task, shape, changes=()):
  """The loss and the norm of the gradient at each step, dropout on."""
  program, config = made(task, shape, changes)
  out = []
  with jax.set_mesh(program.mesh), sharding.activation_rules():
    key = step.keys(config.seed, config.prng_impl)[0]
    state = jax.jit(program.make_state, out_shardings=program.layout)(key)
    compiled = program.lower().compile()
    for seed in range(config.steps):
      drawn = batch_of(program.batch, config.model.vocab_size, seed)
      batch = {n: jax.device_put(x, program.batch[n].sharding) for n, x in drawn.items()}
      state, metrics = compiled(state, batch, program.constants)
      out += [float(metrics['loss']), float(metrics['grad_norm'])]
  return out


if __name__ == '__main__':
  parser = argparse.ArgumentParser()
  parser.add_argument('--task', action='append', help='may be repeated; default: all of them')
  parser.add_argument('meshes', nargs='+')
  args = parser.parse_args()
  for mesh in args.meshes:
    parts = mesh.split(',')
    shape, changes = [int(n) for n in parts[:3]], parts[3:]
    print(
      json.dumps([mesh, {task: losses(task, shape, changes) for task in args.task or TASKS}]),
      flush=True,
    )
