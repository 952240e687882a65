"""What the record of each family writes into a config.json is what it reads from one."""

import json

import numpy as np
import pytest

from bert_jax.convert import config_json
from bert_jax.convert.families import FAMILIES, record

WRITTEN = [name for name in FAMILIES if name != 'openai-gpt']  # which is read only
PAD = 7  # its id


def drawn(family, rng):
  """{field: value} of a model that the family can express, each value drawn."""
  number, share = lambda: int(rng.integers(6, 90)), lambda: float(rng.uniform(0.01, 0.5))
  model = dict(config_json.BERT | family.fields)
  model |= {field: number() for field in config_json.SIZES} | {'num_hidden_layers': 5}
  model |= {field: share() for field in config_json.OTHERS}
  model['hidden_act'] = str(rng.choice(['gelu', 'gelu_tanh', 'relu', 'swish']))
  model['type_vocab_size'] = 1 if family.counts_offset else int(rng.integers(2, 5))
  model |= {field: (record.OTHERS | family.defaults)[field] for field in family.unsaid}
  if 'tie_word_embeddings' not in family.fields:
    model['tie_word_embeddings'] = bool(rng.integers(2))
  window, every = (0, 0) if rng.integers(3) == 0 else (number(), int(rng.choice([0, 2, 3])))
  width = model['hidden_size'] if family.fields.get('mixer') == 'fourier' else number() + 100
  others = {
    'embedding_size': width,
    'num_decoder_layers': int(rng.choice([0, 3])),
    'attention_window': window,
    'global_attention_every': every,
    'rotary_theta': 1000 + share(),
    'local_rotary_theta': share() + 2 if window and rng.integers(2) else 0.0,
    'feed_forward_bias': (biases := str(rng.choice(['all', 'none']))),
    'num_key_value_heads': int(rng.choice([0, 3])),
  }
  if 'decoder_bias' in family.derived:  # from feed_forward_bias
    others['decoder_bias'] = biases == 'all'
  for field in (*family.free, *family.derived):
    model[field] = others[field] if field in others else bool(rng.integers(2))
  return model


@pytest.mark.parametrize('name', WRITTEN)
def test_what_is_written_is_read(tmp_path, name):
  family, rng = FAMILIES[name], np.random.default_rng(sum(name.encode()))
  for _ in range(40):
    model = drawn(family, rng)
    content = config_json.write(family, model, family.offset(PAD))
    content |= {'model_type': name, 'pad_token_id': PAD}
    content['tie_word_embeddings'] = model['tie_word_embeddings']
    (tmp_path / 'config.json').write_text(json.dumps(content))
    found = config_json.read(tmp_path)
    assert found.family is family and found.offset == family.offset(PAD)
    assert found.model == model
