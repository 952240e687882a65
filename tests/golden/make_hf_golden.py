"""Records what Hugging Face's BertForPreTraining computes, into hf_bert.npz next to this file.

    python tests/golden/make_hf_golden.py        # torch 2.13 (CPU) and transformers 5.23 wrote it

No weight is stored: weights and batches are functions of seeds, in numpy, and both sides draw them
here. torch is imported by the functions that need it, so the tests can import the rest without.
"""

import dataclasses
import zlib
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name('hf_bert.npz')
STEPS = 20
WEIGHT_DECAY = 1.0  # in 20 steps, BERT's 0.01 would change no digit that is compared
PREDICTIONS = 5  # slots per row
MASK = 4  # id of the mask token; ids below are left out of the texts


@dataclasses.dataclass(frozen=True)
class Case:
  model: dict  # sizes, by BERT's names
  lengths: tuple  # real tokens of each row; the first is the longest
  learning_rate: float
  scale: float  # standard deviation of the weights: logits and attention far from uniform
  stride: int = 1  # every so many hidden units are recorded; all gradients only if it is 1


def sizes(width, layers, heads, intermediate, vocab, positions):
  of_layers = dict(num_hidden_layers=layers, num_attention_heads=heads)
  tables = dict(vocab_size=vocab, max_position_embeddings=positions)
  return dict(hidden_size=width, intermediate_size=intermediate, **of_layers, **tables)


CASES = {
  'base': Case(sizes(768, 2, 12, 3072, 997, 64), (40, 27, 13), 1e-4, 0.05, 4),
  'small': Case(sizes(36, 3, 3, 50, 101, 20), (17, 11, 5, 14, 8), 1e-3, 0.25),
  'full': Case(sizes(768, 12, 12, 3072, 30522, 512), (128, 77), 1e-4, 0.05),  # too big to record
}


def draw(name, shape):
  """Standard normal, a function of the name and the shape alone."""
  return np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)


def draw_weights(case, shapes):
  """{tensor name: shape} -> {tensor name: float32 array}; no bias is 0, no LayerNorm weight 1."""
  return {
    name: (draw(name, shape) * case.scale + name.endswith('LayerNorm.weight')).astype(np.float32)
    for name, shape in shapes.items()
  }


def draw_batch(case, step):
  """A batch in our format, masked already: rows of several lengths, about 1 token in 8 masked.

  Low ids are frequent, so that there is something to learn.
  """
  random = np.random.RandomState(step)
  B, T, K = len(case.lengths), case.lengths[0], PREDICTIONS
  batch = {name: np.zeros((B, T), np.int32) for name in ('input_ids', 'token_type_ids')}
  batch['position_ids'] = np.tile(np.arange(T, dtype=np.int32), (B, 1))
  batch['segment_ids'] = (np.arange(T) < np.array(case.lengths)[:, None]).astype(np.int32)
  batch['masked_positions'] = np.zeros((B, K), np.int32)
  batch['masked_labels'] = np.zeros((B, K), np.int32)
  batch['masked_weights'] = np.zeros((B, K), np.float32)
  batch['cls_positions'] = np.zeros((B, 1), np.int32)
  batch['labels'] = random.randint(0, 2, (B, 1)).astype(np.int32)
  batch['weights'] = np.ones((B, 1), np.float32)
  for b, length in enumerate(case.lengths):
    first, last = MASK + 1, case.model['vocab_size']
    batch['input_ids'][b, :length] = first + (last - first) * random.random_sample(length) ** 4
    batch['token_type_ids'][b, random.randint(1, length) : length] = 1
    masked = random.permutation(np.arange(1, length))[: min(PREDICTIONS, round(length / 8))]
    batch['masked_positions'][b, : len(masked)] = masked
    batch['masked_labels'][b, : len(masked)] = batch['input_ids'][b, masked]
    batch['masked_weights'][b, : len(masked)] = 1
    batch['input_ids'][b, masked] = MASK
  return batch


def gradient_summary(gradients):
  """{name: array} -> norms and products with a fixed random direction, in the order of names."""
  names = sorted(gradients)
  flat = {name: gradients[name].astype(np.float64) for name in names}
  return {
    'names': np.array(names),
    'norms': np.array([np.linalg.norm(flat[n]) for n in names]),
    'products': np.array([np.sum(flat[n] * draw(f'along {n}', flat[n].shape)) for n in names]),
  }


# ---------------------------------------------------------------- torch


def build(case):
  """BertForPreTraining in eval mode with the drawn weights."""
  import transformers

  as_published = dict(type_vocab_size=2, hidden_act='gelu', layer_norm_eps=1e-12)
  config = transformers.BertConfig(**case.model, **as_published, attn_implementation='eager')
  model = transformers.BertForPreTraining(config)
  shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
  load(model, draw_weights(case, shapes))
  return model.eval()


def load(model, tensors):
  """Every tensor finds its place, and only the tied decoder and buffers are left without one."""
  import torch

  result = model.load_state_dict({k: torch.tensor(v) for k, v in tensors.items()}, strict=False)
  left = [k for k in result.missing_keys if '.decoder.' not in k and 'position_ids' not in k]
  assert not left and not result.unexpected_keys, result


def forward(model, batch):
  """Their loss, hidden states of real tokens and logits at masked positions, as torch tensors."""
  import torch

  real = batch['masked_weights'] > 0
  rows, slots = np.nonzero(real)
  positions = batch['masked_positions'][rows, slots]
  labels = np.full(batch['input_ids'].shape, -100)
  labels[rows, positions] = batch['masked_labels'][rows, slots]
  inputs = {name: batch[name] for name in ('input_ids', 'token_type_ids')} | {'labels': labels}
  inputs |= dict(attention_mask=batch['segment_ids'], next_sentence_label=batch['labels'][:, 0])
  inputs = {name: torch.tensor(x, dtype=torch.long) for name, x in inputs.items()}
  out = model(**inputs, output_hidden_states=True)
  return {
    'loss': out.loss,
    'hidden': out.hidden_states[-1][torch.tensor(batch['segment_ids'] > 0)],
    'mlm': out.prediction_logits[rows, positions],
    'nsp': out.seq_relationship_logits,
  }


def adamw_losses(model, rate, weight_decay, losses):
  """The losses of steps of AdamW. losses: an iterator that computes the next one by the model as it
  is. Biases and norms do not decay."""
  import torch

  groups = {0.0: [], weight_decay: []}
  for name, x in model.named_parameters():
    groups[0.0 if 'norm' in name.lower() or 'bias' in name else weight_decay].append(x)
  parameters = [{'params': x, 'weight_decay': decay} for decay, x in groups.items()]
  optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.999), eps=1e-8)
  out = []
  for loss in losses:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    out.append(loss.item())
  return np.array(out)


def record(case):
  """What the tests compare, as numpy: one forward and backward pass, then STEPS steps of AdamW."""
  model = build(case)
  out = forward(model, draw_batch(case, 0))
  out['loss'].backward()
  gradients = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
  result = {name: x.detach().numpy() for name, x in out.items()} | gradient_summary(gradients)
  result['hidden'] = result['hidden'][:, :: case.stride]
  if case.stride == 1:
    result['gradients'] = np.concatenate([gradients[n].ravel() for n in sorted(gradients)])
  losses = (forward(model, draw_batch(case, step))['loss'] for step in range(STEPS))
  steps = adamw_losses(model, case.learning_rate, WEIGHT_DECAY, losses)
  return result | {'losses': steps}


def save(file, recorded):
  """Writes {case: {name: array}}, and the versions of the libraries that made it."""
  import torch
  import transformers

  versions = f'torch {torch.__version__}', f'transformers {transformers.__version__}'
  arrays = {f'{case}/{name}': x for case, parts in recorded.items() for name, x in parts.items()}
  np.savez_compressed(file, versions=np.array(versions), **arrays)
  print(f'{file}: {file.stat().st_size:,} bytes')


if __name__ == '__main__':
  save(FILE, {name: record(CASES[name]) for name in ('base', 'small')})
