"""ModernBERT, ALBERT and FNet compute what Hugging Face's do: hidden states and logits of heads.

`golden` compares with numbers that were recorded, `live` (slow) with torch itself. No weight is
stored: they are functions of our parameters' paths, in numpy. To record again, with torch 2.13 and
transformers 5.23:

    PYTHONPATH=.:tests python tests/convert/test_families.py
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden.make_hf_golden import draw
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
SMALL = dict(
  vocab_size=101,
  hidden_size=24,
  num_attention_heads=3,
  intermediate_size=40,
  vocab_multiple=1,
  hidden_dropout_prob=0.0,
  attention_probs_dropout_prob=0.0,
  dtype='float32',
)
# {architecture: (fields of the model, lengths of rows)}. ModernBERT's rows are longer than its
# window, and long enough to be computed in blocks.
CASES = {
  'modern': (
    dict(
      num_hidden_layers=5,
      attention_window=16,
      max_position_embeddings=600,
      rotary_theta=160_000.0,
      attention_output_dropout_prob=0.0,
    ),
    (520, 57),
  ),
  'albert': (dict(num_hidden_layers=3, embedding_size=16, max_position_embeddings=32), (20, 11)),
  'fnet': (dict(num_hidden_layers=2, embedding_size=24, max_position_embeddings=32), (20, 20)),
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

  model = objective.model
  sizes = {
    field: getattr(model, field)
    for field in (
      'vocab_size',
      'hidden_size',
      'num_hidden_layers',
      'num_attention_heads',
      'intermediate_size',
      'max_position_embeddings',
    )
  }
  kind, config, tensors = {
    'modern': (
      transformers.ModernBertForMaskedLM,
      transformers.ModernBertConfig(
        **sizes, local_attention=16, attn_implementation='eager', pad_token_id=0
      ),
      modernbert,
    ),
    'albert': (
      transformers.AlbertForPreTraining,
      transformers.AlbertConfig(
        **sizes, embedding_size=16, hidden_dropout_prob=0, attn_implementation='eager'
      ),
      albert,
    ),
    'fnet': (
      transformers.FNetForPreTraining,
      transformers.FNetConfig(**sizes, type_vocab_size=4, hidden_dropout_prob=0),
      fnet,
    ),
  }[name]
  net = kind(config).eval()
  tensors = {k: torch.tensor(np.array(x)) for k, x in tensors(params, model).items()}
  missing, unknown = net.load_state_dict(tensors, strict=False)
  assert not unknown and all('decoder' in k or k.endswith('_ids') for k in missing), missing
  net.tie_weights()
  inputs = {
    'input_ids': batch['input_ids'],
    'attention_mask': batch['segment_ids'],
    'token_type_ids': batch['token_type_ids'],
  }
  if name == 'modern':
    del inputs['token_type_ids']
  if name == 'fnet':
    del inputs['attention_mask']
  with torch.no_grad():
    out = net(**{k: torch.tensor(x).long() for k, x in inputs.items()}, output_hidden_states=True)
  logits = out.logits if name == 'modern' else out.prediction_logits
  at = np.take_along_axis(logits.numpy(), batch['masked_positions'][:, :, None].astype(int), 1)
  found = {'mlm': at}
  hidden = net.base_model(**{k: torch.tensor(x).long() for k, x in inputs.items()})[0]
  found['hidden'] = hidden.detach().numpy()[batch['segment_ids'] > 0]
  if name == 'albert':
    found['nsp'] = out.sop_logits.numpy()
  if name == 'fnet':
    found['nsp'] = out.seq_relationship_logits.numpy()
  return found


def thinned(hidden):
  """About 40 of the hidden states, which are recorded."""
  return hidden[:: max(1, len(hidden) // 40)]


def torch_of(tree, name):
  """The tensors of one of our modules under their name."""
  names = {'kernel': 'weight', 'scale': 'weight', 'embedding': 'weight', 'bias': 'bias'}
  return {f'{name}.{names[k]}': x.T if k == 'kernel' else x for k, x in tree.items() if k in names}


def modernbert(params, model):
  encoder, mlm = params['encoder'], params['mlm']
  words = encoder['embeddings']['word_embeddings']['embedding']
  out = {'model.embeddings.tok_embeddings.weight': words, 'decoder.bias': mlm['bias']}
  out |= torch_of(encoder['embeddings']['LayerNorm'], 'model.embeddings.norm')
  out |= torch_of(encoder['LayerNorm'], 'model.final_norm')
  out |= torch_of(mlm['transform'], 'head.dense') | torch_of(mlm['LayerNorm'], 'head.norm')
  for i in range(model.num_hidden_layers):
    layer, name = encoder[f'layer_{i}'], f'model.layers.{i}'
    fused = [layer['attention'][part]['kernel'].T for part in ('query', 'key', 'value')]
    out[f'{name}.attn.Wqkv.weight'] = np.concatenate(fused)
    gate = [layer[part]['kernel'].T for part in ('gate', 'intermediate')]
    out[f'{name}.mlp.Wi.weight'] = np.concatenate(gate)
    out |= torch_of(layer['attention']['output'], f'{name}.attn.Wo')
    out |= torch_of(layer['output'], f'{name}.mlp.Wo')
    out |= torch_of(layer['output_LayerNorm'], f'{name}.mlp_norm')
    if i:
      out |= torch_of(layer['attention_LayerNorm'], f'{name}.attn_norm')
  return out


def embeddings(params, name):
  tree = params['encoder']['embeddings']
  parts = ('word_embeddings', 'position_embeddings', 'token_type_embeddings', 'LayerNorm')
  out = {}
  for part in parts:
    out |= torch_of(tree[part], f'{name}.embeddings.{part}')
  return out


def albert(params, model):
  encoder, mlm = params['encoder'], params['mlm']
  layer, name = encoder['layer_0'], 'albert.encoder.albert_layer_groups.0.albert_layers.0'
  out = embeddings(params, 'albert') | {'predictions.bias': mlm['bias']}
  projection = encoder['embeddings']['projection']
  out |= torch_of(projection, 'albert.encoder.embedding_hidden_mapping_in')
  for part in ('query', 'key', 'value'):
    out |= torch_of(layer['attention'][part], f'{name}.attention.{part}')
  out |= torch_of(layer['attention']['output'], f'{name}.attention.dense')
  out |= torch_of(layer['attention_LayerNorm'], f'{name}.attention.LayerNorm')
  out |= torch_of(layer['intermediate'], f'{name}.ffn') | torch_of(
    layer['output'], f'{name}.ffn_output'
  )
  out |= torch_of(layer['output_LayerNorm'], f'{name}.full_layer_layer_norm')
  out |= torch_of(mlm['transform'], 'predictions.dense')
  out |= torch_of(mlm['LayerNorm'], 'predictions.LayerNorm')
  out |= torch_of(params['pooler']['dense'], 'albert.pooler')
  return out | torch_of(params['nsp']['dense'], 'sop_classifier.classifier')


def fnet(params, model):
  encoder, mlm = params['encoder'], params['mlm']
  out = embeddings(params, 'fnet') | {'cls.predictions.bias': mlm['bias']}
  out |= torch_of(encoder['embeddings']['projection'], 'fnet.embeddings.projection')
  for i in range(model.num_hidden_layers):
    layer, name = encoder[f'layer_{i}'], f'fnet.encoder.layer.{i}'
    out |= torch_of(layer['fourier_LayerNorm'], f'{name}.fourier.output.LayerNorm')
    out |= torch_of(layer['intermediate'], f'{name}.intermediate.dense')
    out |= torch_of(layer['output'], f'{name}.output.dense')
    out |= torch_of(layer['output_LayerNorm'], f'{name}.output.LayerNorm')
  out |= torch_of(mlm['transform'], 'cls.predictions.transform.dense')
  out |= torch_of(mlm['LayerNorm'], 'cls.predictions.transform.LayerNorm')
  out |= {'cls.predictions.decoder.bias': mlm['bias']}
  out |= torch_of(params['pooler']['dense'], 'fnet.pooler.dense')
  return out | torch_of(params['nsp']['dense'], 'cls.seq_relationship')


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
    recorded = np.load(FILE)
    expected = {k.partition('/')[2]: recorded[k] for k in recorded if k.startswith(f'{name}/')}
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
  together = encode(objective.model, params['encoder'], {k: x[None] for k, x in packed.items()})
  start = 0
  for n in lengths:
    row = {name: x[None, start : start + n] for name, x in packed.items()}
    alone = encode(objective.model, params['encoder'], row)
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


def main():
  recorded = {}
  for name in CASES:
    objective = objective_of(name)
    found = theirs(name, objective, params_of(objective), batch_of(name))
    found['hidden'] = thinned(found['hidden'])
    recorded |= {f'{name}/{key}': x for key, x in found.items()}
  np.savez_compressed(FILE, **recorded)


if __name__ == '__main__':
  main()
