"""Measures steps of pre-training beside BertForPreTraining in torch."""

import jax
import numpy as np
from bench import peers

from bert_jax import config as config_lib
from bert_jax import sharding, step
from bert_jax.run import speed
from bert_jax.tasks import TASKS
from bert_jax.tools.preflight import estimate


def pretrain(args):
  """Yields the result {name: value} for each trainer, and their ratio; they take turns. 15 % of a
  row are predicted."""
  dtype = args.dtype or ('float32' if jax.default_backend() == 'cpu' else 'bfloat16')
  fields = {
    'batch_size': args.batch_size,
    'data.seq_length': args.seq_length,
    'model.dtype': dtype,
  }
  fields = [f'--config.{name}={value}' for name, value in fields.items()]
  config = config_lib.load(f'configs/pretrain.py:size={args.size}', [*fields, *args.rest])
  dtype = config.model.dtype
  objective = estimate.objective_of(config)
  rows = _rows(config, objective.masking['max_predictions'])
  sides = {'bert_jax': _ours(config, objective, rows, args.steps)}
  if peers.installed('torch', 'transformers'):
    sides['transformers'] = _theirs(config, rows, args.steps)
  tokens = config.batch_size * config.data.seq_length * args.steps
  tokens_per_s = lambda side: tokens / peers.seconds(side[0])
  measured = peers.in_turn(sides, args.repeat, tokens_per_s)
  flops_of_token = 3 * objective.flops(config.batch_size) * args.steps / tokens
  what = f'pretrain, {args.size}, {args.batch_size} x {args.seq_length}, {dtype}'
  peak = speed.peak_flops() / jax.device_count()  # both sides run on one
  for name, values in measured.items():
    shares = [x * flops_of_token / peak for x in values]
    held = sides[name][1]()
    yield {
      'what': f'{what}: {name}',
      **peers.spread('ms a step', [1e3 * tokens / args.steps / x for x in values]),
      **peers.spread('tokens/s', values),
      **(peers.spread('MFU', shares) if max(shares) <= 1 else {}),  # NaN: of an unknown device
      **({'GiB at most': round(held / 2**30, 2)} if held else {}),  # a CPU does not say
    }
  if 'transformers' in sides:
    yield {'what': what, **peers.ratios(measured)}


def _rows(config, K):
  """Random rows for both sides: full, of two segments, with K predictions each."""
  draws = np.random.default_rng(0)
  B, T = config.batch_size, config.data.seq_length
  return {
    'input_ids': draws.integers(5, config.model.vocab_size, (B, T)),
    'token_type_ids': np.tile(np.arange(T) >= T // 2, (B, 1)).astype(int),
    'positions': np.argsort(draws.random((B, T)))[:, :K],
    'labels': draws.integers(0, 2, B),
  }


def _ours(config, objective, rows, steps):
  """Two functions: one makes `steps` steps, one returns the peak memory in bytes (0: unknown)."""
  mesh = sharding.mesh_of(config, TASKS[config.objective], jax.devices()[:1])
  program = step.program(config, objective, mesh, config_lib.timeline_of(config))
  B, T = rows['input_ids'].shape
  arrays = {
    'input_ids': rows['input_ids'],
    'token_type_ids': rows['token_type_ids'],
    'position_ids': np.tile(np.arange(T), (B, 1)),
    'segment_ids': np.ones((B, T)),
    'cls_positions': np.zeros((B, 1)),
    'labels': rows['labels'][:, None],
    'weights': np.ones((B, 1)),
  }
  with jax.set_mesh(mesh), sharding.activation_rules():
    state = jax.jit(program.make_state)(step.keys(config.seed, config.prng_impl)[0])
    compiled = program.lower().compile()
  constants = sharding.put(program.constants, mesh)
  shapes = program.batch.items()
  batch = {name: jax.device_put(arrays[name].astype(x.dtype), x.sharding) for name, x in shapes}

  def run():
    nonlocal state
    for _ in range(steps):
      state, metrics = compiled(state, batch, constants)
    jax.block_until_ready(metrics)

  return run, lambda: (jax.devices()[0].memory_stats() or {}).get('peak_bytes_in_use', 0)


def _theirs(config, rows, steps):
  """The same two functions for BertForPreTraining: SDPA, AdamW, on a GPU torch.compile."""
  import torch
  import transformers

  gpu = torch.cuda.is_available() and jax.devices()[0].platform == 'gpu'
  device = 'cuda' if gpu else 'cpu'
  sizes = peers.bert_config(config.model, 'sdpa')
  model = transformers.BertForPreTraining(sizes).train().to(device)
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
  labels = np.full_like(rows['input_ids'], -100)
  at = np.arange(len(labels))[:, None], rows['positions']
  labels[at] = rows['input_ids'][at]
  arrays = {
    'input_ids': rows['input_ids'],
    'token_type_ids': rows['token_type_ids'],
    'labels': labels,
    'next_sentence_label': rows['labels'],
  }
  batch = {name: torch.tensor(x, device=device) for name, x in arrays.items()}
  forward = torch.compile(model) if gpu else model

  def run():
    for _ in range(steps):
      with torch.autocast(device, torch.bfloat16, enabled=config.model.dtype == 'bfloat16'):
        loss = forward(**batch).loss
      loss.backward()
      torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      optimizer.step()
      optimizer.zero_grad()
    loss.item()

  return run, lambda: torch.cuda.max_memory_allocated() if gpu else 0
