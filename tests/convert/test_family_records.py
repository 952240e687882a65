"""What the record of each family writes into a config.json is what it reads from one."""

import json
from pathlib import Path

import numpy as np
import pytest
from refusal import refused

from bert_jax.convert import config_json
from bert_jax.convert.families import FAMILIES, deberta, record
from bert_jax.errors import InputError

WRITTEN = [name for name in FAMILIES if name != 'openai-gpt']  # which is read only
PAD = 7  # its id, where none is asked for


def drawn(family, rng):
  """{field: value} of a model that the family can express, each value drawn."""
  number, share = lambda: int(rng.integers(6, 90)), lambda: float(rng.uniform(0.01, 0.5))
  model = dict(config_json.BERT | family.fields)
  model |= {field: number() for field in record.SIZES} | {'num_hidden_layers': 5}
  model['hidden_size'] *= model['num_attention_heads']
  model |= {field: share() for field in record.USUAL}
  model['hidden_act'] = str(rng.choice(['gelu', 'gelu_tanh', 'relu', 'swish']))
  model['type_vocab_size'] = 1 if family.counts_offset else int(rng.integers(2, 5))
  model |= {field: (record.USUAL | family.defaults)[field] for field in family.unsaid}
  if 'tie_word_embeddings' not in family.fields:
    model['tie_word_embeddings'] = bool(rng.integers(2))
  window, every = (0, 0) if rng.integers(3) == 0 else (number(), int(rng.choice([0, 2, 3])))
  width = model['hidden_size'] if family.fields.get('mixer') == 'fourier' else number() + 100
  others = {
    'pooler': model['hidden_act'],
    'classifier_dropout_prob': share(),
    'span_dropout_prob': share(),
    'embedding_size': width,
    'num_decoder_layers': int(rng.choice([0, 3])),
    'attention_window': window,
    'global_attention_every': every,
    'rotary_theta': 1000 + share(),
    'local_rotary_theta': share() + 2 if window and rng.integers(2) else 0.0,
    'feed_forward_bias': (biases := str(rng.choice(['all', 'none']))),
    'num_key_value_heads': int(rng.choice([0, 3])),
    'attention_head_size': int(rng.choice([0, 95])),
    'max_relative_positions': number(),
    'position_buckets': 6 if family.name == 't5' else int(rng.choice([0, 6])),
    'feed_forward': str(rng.choice(['mlp', 'glu'])),
    'pos_att_type': str(rng.choice(['c2p|p2c', 'p2c', 'c2p'])),
  }
  if 'decoder_bias' in family.derived:  # from feed_forward_bias
    others['decoder_bias'] = biases == 'all'
  for field in (*family.free, *family.derived):
    model[field] = others[field] if field in others else bool(rng.integers(2))
  return model


@pytest.mark.parametrize('name', WRITTEN)
def test_what_is_written_is_read(tmp_path, name):
  family, rng = FAMILIES[name], np.random.default_rng(sum(name.encode()))
  (pad,) = family.fixed.get('pad_token_id', (PAD,))
  for _ in range(40):
    model = drawn(family, rng)
    content = config_json.write(family, model, family.offset(pad))
    content |= {'model_type': name, 'pad_token_id': pad}
    content['tie_word_embeddings'] = model['tie_word_embeddings']
    (tmp_path / 'config.json').write_text(json.dumps(content))
    found = config_json.read(tmp_path)
    assert found.family is family and found.offset == family.offset(pad)
    assert found.model == model


# What transformers calls the sizes of a DistilBERT, and what it sets otherwise than a BERT.
DISTILBERT = dict(vocab_size=70, dim=24, n_layers=3, n_heads=4, hidden_dim=40, activation='relu')
DISTILBERT |= dict(max_position_embeddings=33, dropout=0.3, attention_dropout=0.2)
OF_BERT = dict(vocab_size=70, hidden_size=24, num_hidden_layers=3, num_attention_heads=4)
OF_BERT |= dict(intermediate_size=40, hidden_act='relu', max_position_embeddings=33)
OF_BERT |= dict(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
TYPED = OF_BERT | {'type_vocab_size': 2}


@pytest.mark.parametrize('name, said', [('distilbert', DISTILBERT), ('bert', TYPED)])
def test_a_released_config_has_its_sizes_and_its_activation(tmp_path, name, said):
  (tmp_path / 'config.json').write_text(json.dumps({'model_type': name} | said))
  found = config_json.read(tmp_path).model
  assert {field: found[field] for field in OF_BERT} == OF_BERT
  assert found['type_vocab_size'] == (0 if name == 'distilbert' else 2)


FINAL = dict(add_final_layer_norm=True, normalize_before=True)
DECODERS = dict(add_cross_attention=True, is_decoder=True)
UNLIKE_BERT = dict(position_embedding_type='relative_key', feed_forward_type='geglu')
UNLIKE_BERT |= dict(pruned_heads={'1': [0]}, auto_map={'AutoModel': 'modeling.Model'})
DISTANCES = dict(share_att_key=False, position_biased_input=True, relative_attention=False)
DISTANCES |= dict(norm_rel_ebd='none', pooler_hidden_act='tanh')
SCALES = dict(scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False)
LACKING = {
  'albert': dict(inner_group_num=2, num_hidden_groups=2),
  'bart': FINAL | dict(is_encoder_decoder=False, tie_word_embeddings=False),
  'bert': DECODERS | UNLIKE_BERT,
  'deberta-v2': DISTANCES | dict(conv_kernel_size=3, pooler_dropout=0.1, type_vocab_size=2),
  'electra': dict(summary_activation='tanh', summary_type='last', summary_use_proj=False),
  'eurobert': dict(mlp_bias=True, tie_word_embeddings=True, classifier_pooling='last'),
  'fnet': dict(use_tpu_fourier_optimizations=True),
  'gpt2': SCALES | dict(add_cross_attention=True),
  'modernbert': dict(classifier_pooling='max', rope_scaling={'factor': 2}),
  'mpnet': dict(relative_attention_num_buckets=64, pad_token_id=0),
  'nomic_bert': dict(qkv_proj_bias=True, num_experts=8),
  'roberta': dict(is_encoder_decoder=True),
  'roformer': dict(rotary_value=True),
  't5': dict(is_decoder=True),
}
OPTIONS = [(name, option, value) for name, x in LACKING.items() for option, value in x.items()]


@pytest.mark.parametrize('name, option, value', OPTIONS)
def test_an_option_that_we_lack_is_refused_by_its_name(tmp_path, name, option, value):
  family = FAMILIES[name]
  content = config_json.write(family, drawn(family, np.random.default_rng(3)), 0)
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(content | {'model_type': name}))
  config_json.read(tmp_path)
  path.write_text(json.dumps(content | {'model_type': name, option: value}))
  with refused(f'says {option} .*; our encoder has'):
    config_json.read(tmp_path)


def test_a_classifier_has_the_activation_that_a_config_json_without_one_means(tmp_path):
  """ModernBERT's has gelu then, whatever its layers have."""
  content = config_json.write(
    FAMILIES['modernbert'], drawn(FAMILIES['modernbert'], np.random.default_rng(3)), 0
  )
  content |= {'model_type': 'modernbert', 'hidden_activation': 'silu'}
  del content['classifier_activation']
  (tmp_path / 'config.json').write_text(json.dumps(content))
  with refused("says classifier_activation 'gelu'; here it is hidden_act, 'silu'"):
    config_json.read(tmp_path)
  (tmp_path / 'config.json').write_text(json.dumps(content | {'hidden_activation': 'gelu'}))
  assert config_json.read(tmp_path).model['hidden_act'] == 'gelu'


# What transformers' config classes have where a config.json says nothing, of the keys read here.
DEFAULTS = json.loads(Path('tests/golden/released_defaults.json').read_text())
# What our encoder needs beside a default DeBERTa.
NEEDED = {'deberta-v2': deberta._SAID | {'pos_att_type': 'p2c'}}


@pytest.mark.parametrize('name', DEFAULTS)
def test_what_a_file_lacks_is_as_in_their_classes(tmp_path, name):
  """Each key that a file may lack is left out in turn."""
  whole = DEFAULTS[name] | NEEDED.get(name, {}) | {'model_type': name}

  def read(content):
    (tmp_path / 'config.json').write_text(json.dumps(content))
    return config_json.read(tmp_path)._replace(writing={})

  expected, compared = read(whole), 0
  for key in DEFAULTS[name]:
    try:
      found = read({other: value for other, value in whole.items() if other != key})
    except InputError:
      continue  # which is asked for
    assert found == expected, key
    compared += 1
  assert compared > 4


@pytest.mark.slow
@pytest.mark.parametrize('name', DEFAULTS)
def test_their_classes_have_these_defaults(transformers, name):
  known = transformers.CONFIG_MAPPING[name]().to_dict()
  assert {key: known[key] for key in DEFAULTS[name]} == DEFAULTS[name]


@pytest.mark.parametrize('said, local', [({}, 1e4), ({'local_rope_theta': None}, 0.0)])
def test_local_layers_turn_as_global_ones_where_their_theta_is_null(tmp_path, said, local):
  older = {'rope_parameters', 'layer_types'}  # files of before transformers 5
  content = {key: x for key, x in DEFAULTS['modernbert'].items() if key not in older}
  content |= {'model_type': 'modernbert', 'global_rope_theta': 5e5} | said
  (tmp_path / 'config.json').write_text(json.dumps(content))
  model = config_json.read(tmp_path).model
  assert (model['rotary_theta'], model['local_rotary_theta']) == (5e5, local)
