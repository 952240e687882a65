"""ModernBERT, ALBERT and FNet compute what Hugging Face's do: hidden states and logits of heads.

`golden` compares with numbers that were recorded, `live` (slow) with torch itself. No weight is
stored: they are functions of our parameters' paths, in numpy. To record again, with torch 2.13 and
transformers 5.23:

    PYTHONPATH=.:tests python tests/convert/test_families.py
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden import make_released_golden as hf
from golden.make_hf_golden import draw, save
from released import recorded_of, to_tensors
from test_models import MASKING

from bert_jax import config as c
from bert_jax import models
from bert_jax.models import bands
from bert_jax.models.tokens import Pattern, Tokens
from bert_jax.objectives.encode import encode
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.workdir import manifest

FILE = Path(__file__).parents[1] / 'golden' / 'hf_families.npz'
ROOT = Path(__file__).parents[2]
SMALL = dict(vocab_size=101, hidden_size=24, num_attention_heads=3, intermediate_size=40)
SMALL |= dict(vocab_multiple=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
SMALL |= dict(dtype='float32')
MODERN = dict(num_hidden_layers=5, attention_window=16, max_position_embeddings=600)
MODERN |= dict(rotary_theta=160_000.0, attention_output_dropout_prob=0.0)
# {architecture: (fields of the model, lengths of rows)}. ModernBERT's rows are longer than its
# window, and long enough to be computed in blocks.
CASES = {
  'modern': (MODERN, (520, 57)),
  'albert': (dict(num_hidden_layers=3, embedding_size=16, max_position_embeddings=32), (20, 11)),
  'fnet': (dict(num_hidden_layers=2, embedding_size=24, max_position_embeddings=32), (20, 20)),
}
# {architecture: (their family, their class, what its config says besides sizes)}.
THEIRS = {
  'modern': ('modernbert', 'ModernBertForMaskedLM', dict(local_attention=16, pad_token_id=0)),
  'albert': ('albert', 'AlbertForPreTraining', dict(embedding_size=16, hidden_dropout_prob=0)),
  'fnet': ('fnet', 'FNetForPreTraining', dict(type_vocab_size=4, hidden_dropout_prob=0)),
}


def objective_of(name, **changes):
  fields, lengths = CASES[name]
  config = c.load(f'{ROOT}/configs/pretrain.py:arch={name}')
  model = models.ModelConfig(**dict(config.model) | SMALL | fields | changes)
  return MlmNsp(model, max(lengths), config.loss.nsp_weight, MASKING)


def params_of(objective):
  """Parameters of which no bias is 0 and no scale is 1."""
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  drawn = {
    path: (draw(path, x.shape) * 0.25 + path.endswith('scale')).astype(np.float32)
    for path, x in manifest.flat(shapes).items()
  }
  return manifest.unflat(drawn, shapes)


def batch_of(name):
  lengths, rng = CASES[name][1], np.random.RandomState(5)
  B, T = len(lengths), max(lengths)
  real = np.arange(T) < np.array(lengths)[:, None]
  types = real & (np.arange(T) > 5) & (name != 'modern')
  positions = np.stack([rng.permutation(n)[:6] for n in lengths])
  return {
    'input_ids': np.where(real, rng.randint(5, 101, (B, T)), 0).astype(np.int32),
    'token_type_ids': types.astype(np.int32),
    'position_ids': np.tile(np.arange(T, dtype=np.int32), (B, 1)),
    'segment_ids': real.astype(np.int32),
    'masked_positions': positions.astype(np.int32),
    'cls_positions': np.zeros((B, 1), np.int32),
  }


def computed(objective, params, batch):
  """{hidden: of real tokens, mlm: logits of words, nsp: of a pair, if there is such a head}."""

  @jax.jit
  def run(params, batch):
    mlm_BKV, nsp_BN2 = objective.logits(params, batch)
    return encode(objective.model, params['encoder'], batch), mlm_BKV, nsp_BN2

  hidden, mlm, nsp = jax.device_get(run(params, batch))
  out = {'hidden': hidden[batch['segment_ids'] > 0], 'mlm': mlm}
  return out if nsp is None else out | {'nsp': nsp[:, 0]}


def theirs(name, objective, params, batch):
  """The same by torch and transformers."""
  import torch
  import transformers

  family, kind, more = THEIRS[name]
  fields = 'vocab_size', 'hidden_size', 'num_hidden_layers', 'num_attention_heads'
  fields += 'intermediate_size', 'max_position_embeddings'
  sizes = {field: getattr(objective.model, field) for field in fields}
  more = more | ({} if name == 'fnet' else {'attn_implementation': 'eager'})
  kind = getattr(transformers, kind)
  net = kind(kind.config_class(**sizes, **more)).eval()
  tensors = to_tensors(params, objective.model, family)
  tensors = {k: torch.tensor(np.array(x)) for k, x in tensors.items()}
  missing, unknown = net.load_state_dict(tensors, strict=False)
  assert not unknown and all('decoder' in k or k.endswith('_ids') for k in missing), missing
  net.tie_weights()
  named = {'attention_mask': batch['segment_ids'], 'token_type_ids': batch['token_type_ids']}
  inputs = hf.inputs_of(net, {'input_ids': batch['input_ids']} | named)
  with torch.no_grad():
    out, hidden = net(**inputs), net.base_model(**inputs)[0].numpy()
  logits = (out.logits if name == 'modern' else out.prediction_logits).numpy()
  at = np.take_along_axis(logits, batch['masked_positions'][:, :, None].astype(int), 1)
  found = {'mlm': at, 'hidden': hidden[batch['segment_ids'] > 0]}
  if name == 'albert':
    found['nsp'] = out.sop_logits.numpy()
  if name == 'fnet':
    found['nsp'] = out.seq_relationship_logits.numpy()
  return found


def thinned(hidden):
  """About 40 of the hidden states, which are recorded."""
  return hidden[:: max(1, len(hidden) // 40)]


def computed_in_blocks(model, length):
  """Are layers with a window computed in blocks, in rows of this length?"""
  tokens = Tokens(np.ones((1, length), np.int32))
  blocks = bands.blocks_of(Pattern(tokens, tokens, window=model.attention_window), 0, length)
  return isinstance(blocks, bands.Bands)


@pytest.mark.parametrize(
  'source', ['golden', pytest.param('live', marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize('name', CASES)
def test_hidden_states_and_logits(name, source):
  objective = objective_of(name)
  params, batch = params_of(objective), batch_of(name)
  assert bool(computed_in_blocks(objective.model, objective.seq_length)) == (name == 'modern')
  if source == 'live':
    pytest.importorskip('torch')
    pytest.importorskip('transformers')
    expected = theirs(name, objective, params, batch)
    expected['hidden'] = thinned(expected['hidden'])
  else:
    expected = recorded_of(sys.modules[__name__])[name]
  found = computed(objective, params, batch)
  found['hidden'] = thinned(found['hidden'])
  assert found.keys() == expected.keys()
  for key, x in expected.items():
    np.testing.assert_allclose(found[key], x, rtol=0, atol=1e-4, err_msg=key)
    assert np.std(x) > 0.1


@pytest.mark.parametrize(
  'name, changes',
  [
    ('modern', {'scan_layers': True}),
    ('modern', {'scan_layers': True, 'remat': 'full'}),
    ('modern', {'attention_implementation': 'xla'}),
    ('albert', {'scan_layers': True}),
    ('albert', {'remat': 'dots'}),
    ('fnet', {'scan_layers': True}),
  ],
  ids=str,
)
def test_another_way_to_compute_is_the_same_model(name, changes):
  objective, batch = objective_of(name), batch_of(name)
  params, other = params_of(objective), objective_of(name, **changes)
  moved = models.stack_layers(params) if other.model.stacks_layers else params
  shapes = jax.eval_shape(other.init, jax.random.key(0))
  assert jax.tree.map(np.shape, moved) == jax.tree.map(lambda x: x.shape, shapes)
  assert jax.tree.structure(models.unstack_layers(moved)) == jax.tree.structure(params)
  found = computed(other, moved, batch)
  for key, x in computed(objective, params, batch).items():
    np.testing.assert_allclose(found[key], x, rtol=1e-5, atol=1e-5, err_msg=key)


def test_packed_rows_of_modernbert_are_its_rows():
  """Three examples, two of them longer than the window, in one row that is computed in blocks."""
  objective, batch = objective_of('modern'), batch_of('modern')
  params, lengths = params_of(objective), (250, 57, 213)
  ids = [batch['input_ids'][0, :n] for n in lengths]
  packed = {
    'input_ids': np.concatenate(ids),
    'token_type_ids': np.zeros(sum(lengths), np.int32),
    'position_ids': np.concatenate([np.arange(n) for n in lengths]),
    'segment_ids': np.repeat([1, 2, 3], lengths),
  }
  assert computed_in_blocks(objective.model, sum(lengths))
  run = jax.jit(lambda row: encode(objective.model, params['encoder'], row))
  together = run({k: x[None] for k, x in packed.items()})
  start = 0
  for n in lengths:
    alone = run({name: x[None, start : start + n] for name, x in packed.items()})
    np.testing.assert_allclose(together[:, start : start + n], alone, rtol=0, atol=3e-5)
    start += n


@pytest.mark.parametrize(
  'name, encoder, pooler', [('modern', 149_014_272, 0), ('albert', 11_092_992, 590_592)]
)
def test_parameter_counts_are_the_published_ones(name, encoder, pooler):
  """Those of AutoModel: 149,014,272, and 11,683,584 with its pooler."""
  config = c.load(f'{ROOT}/configs/pretrain.py:arch={name}')
  model = models.ModelConfig(**dict(config.model) | {'vocab_multiple': 1})
  shapes = jax.eval_shape(lambda key: models.init_encoder(model, key), jax.random.key(0))
  assert models.count_parameters(shapes) == encoder
  if pooler:
    x = jnp.zeros((1, 1, model.hidden_size))
    shapes = jax.eval_shape(models.Pooler(model).init, jax.random.key(0), x)
    assert models.count_parameters(shapes) == pooler


if __name__ == '__main__':
  recorded = {}
  for _name in CASES:
    _objective = objective_of(_name)
    recorded[_name] = theirs(_name, _objective, params_of(_objective), batch_of(_name))
    recorded[_name]['hidden'] = thinned(recorded[_name]['hidden'])
  save(FILE, recorded)
