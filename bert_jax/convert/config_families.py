"""What the config.json of each family of models says, as fields of config.model, and back.

The defaults are those of the config classes of Hugging Face's library, for keys that are left out.
"""

from typing import NamedTuple

from bert_jax.config import model as config_model
from bert_jax.config import pasts
from bert_jax.errors import InputError, quoted

SIZES = (
  'vocab_size',
  'hidden_size',
  'num_hidden_layers',
  'num_attention_heads',
  'intermediate_size',
  'max_position_embeddings',
  'type_vocab_size',
)
OTHERS = {
  'layer_norm_eps': 1e-12,
  'initializer_range': 0.02,
  'hidden_dropout_prob': 0.1,
  'attention_probs_dropout_prob': 0.1,
}
# Fields that no config.json has: how tables are padded, how a model is initialized and computed.
OURS = (
  'vocab_multiple',
  'attention_implementation',
  'dtype',
  'scan_layers',
  'remat',
  'attention_output_dropout_prob',
  'scaled_initializer',
  'extend_positions',
  'new_top_layers',
)
# The fields of a BERT. A field that was added for later models has the value that it had in effect
# before it was there.
BERT = {name.removeprefix('model.'): x for name, x in pasts(config_model.FIELDS).items()} | {
  'position_embeddings': 'learned',
  'norm_placement': 'post',
  'tie_word_embeddings': True,
}
FULL, SLIDING = 'full_attention', 'sliding_attention'


class Family(NamedTuple):
  """The models of a family.
  name: what their classes are called before 'ForMaskedLM' and such. keys: {key of config.json: our
  field} where they differ; defaults: {our field: value} if it has none. fields: {our field: value
  in all of them}, where it is not as in a BERT. free: our fields that config.json says besides
  SIZES and OTHERS. fixed: {option: the values that it may have}. pooler: the endings of classes
  that have one, whether or not their head reads it. ids: {key: role of the token with that id}.
  pairs: what their head for pairs of texts says, as corpus.rows."""

  name: str
  keys: dict = {}
  defaults: dict = {}
  fields: dict = {}
  free: tuple = ()
  fixed: dict = {}
  pooler: tuple = ()
  ids: dict = {}
  pairs: str = 'nsp'


_ENDS = {'bos_token_id': 'cls', 'eos_token_id': 'sep'}
_GPT = {
  'n_embd': 'hidden_size',
  'n_layer': 'num_hidden_layers',
  'n_head': 'num_attention_heads',
  'n_positions': 'max_position_embeddings',
  'resid_pdrop': 'hidden_dropout_prob',
  'attn_pdrop': 'attention_probs_dropout_prob',
  'layer_norm_epsilon': 'layer_norm_eps',
}
_GPT_DEFAULTS = {'hidden_act': 'gelu_new', 'layer_norm_eps': 1e-5, 'type_vocab_size': 0}
_GPT_FIELDS = {
  'causal': True,
  'embedding_norm': False,
  'mlm_head': 'none',
  'decoder_bias': False,
  'pooler': 'none',
}
FAMILIES = {
  'bert': Family('Bert', pooler=('Model',)),
  'roberta': Family('Roberta', pooler=('Model', 'ForMultipleChoice'), ids=_ENDS),
  'distilbert': Family(
    'DistilBert',
    keys={
      'dim': 'hidden_size',
      'n_layers': 'num_hidden_layers',
      'n_heads': 'num_attention_heads',
      'hidden_dim': 'intermediate_size',
      'activation': 'hidden_act',
      'dropout': 'hidden_dropout_prob',
      'attention_dropout': 'attention_probs_dropout_prob',
    },
    defaults={'type_vocab_size': 0},
  ),
  'albert': Family(
    'Albert',
    defaults={
      'hidden_act': 'gelu_new',
      'embedding_size': 128,
      'hidden_dropout_prob': 0.0,
      'attention_probs_dropout_prob': 0.0,
    },
    fields={'share_layers': True},
    free=('embedding_size',),
    fixed={'num_hidden_groups': (1,), 'inner_group_num': (1,)},
    pooler=('Model',),
    ids=_ENDS,
    pairs='sop',
  ),
  'electra': Family('Electra', defaults={'embedding_size': 128}, free=('embedding_size',)),
  'fnet': Family(
    'FNet',
    defaults={'hidden_act': 'gelu_new', 'num_attention_heads': 1, 'type_vocab_size': 4},
    fields={'mixer': 'fourier'},
    free=('embedding_size',),
    fixed={'use_tpu_fourier_optimizations': (False,)},
    pooler=('',),  # all
    ids=_ENDS,
  ),
  'modernbert': Family(
    'ModernBert',
    keys={
      'hidden_activation': 'hidden_act',
      'norm_eps': 'layer_norm_eps',
      'embedding_dropout': 'hidden_dropout_prob',
      'attention_dropout': 'attention_probs_dropout_prob',
      'local_attention': 'attention_window',
      'classifier_bias': 'head_bias',
      'mlp_bias': 'feed_forward_bias',
    },
    defaults={
      'layer_norm_eps': 1e-5,
      'hidden_dropout_prob': 0.0,
      'type_vocab_size': 0,
      'attention_probs_dropout_prob': 0.0,
      'attention_window': 128,
      'norm_bias': False,
      'attention_bias': False,
      'feed_forward_bias': False,
      'head_bias': False,
      'decoder_bias': True,
    },
    fields={
      'position_embeddings': 'rotary',
      'norm_placement': 'pre',
      'feed_forward': 'glu',
      'first_norm': False,
      'pooler': 'transform',
    },
    free=(
      'attention_window',
      'norm_bias',
      'attention_bias',
      'feed_forward_bias',
      'head_bias',
      'decoder_bias',
      'global_attention_every',
      'rotary_theta',
      'local_rotary_theta',
    ),
    fixed={'rope_scaling': (None,), 'classifier_pooling': ('cls', 'mean')},
    ids=_ENDS | {'cls_token_id': 'cls', 'sep_token_id': 'sep'},
  ),
  'openai-gpt': Family(
    'OpenAIGPT',
    keys=_GPT | {'afn': 'hidden_act'},
    defaults=_GPT_DEFAULTS,
    fields=_GPT_FIELDS,
  ),
  'gpt2': Family(
    'GPT2',
    keys=_GPT | {'activation_function': 'hidden_act', 'n_inner': 'intermediate_size'},
    defaults=_GPT_DEFAULTS,
    fields=_GPT_FIELDS | {'norm_placement': 'pre'},
    fixed={'scale_attn_weights': (True,), 'scale_attn_by_inverse_layer_idx': (False,)},
    ids=_ENDS,
  ),
  'bart': Family(
    'Bart',
    keys={
      'd_model': 'hidden_size',
      'encoder_layers': 'num_hidden_layers',
      'encoder_attention_heads': 'num_attention_heads',
      'encoder_ffn_dim': 'intermediate_size',
      'decoder_layers': 'num_decoder_layers',
      'activation_function': 'hidden_act',
      'dropout': 'hidden_dropout_prob',
      'attention_dropout': 'attention_probs_dropout_prob',
      'init_std': 'initializer_range',
      'scale_embedding': 'embedding_scale',
    },
    defaults={
      'layer_norm_eps': 1e-5,
      'type_vocab_size': 0,
      'attention_probs_dropout_prob': 0.0,
      'num_decoder_layers': 12,
      'embedding_scale': False,
    },
    fields={'mlm_head': 'none'},
    free=('num_decoder_layers', 'embedding_scale'),
    fixed={
      'is_encoder_decoder': (True,),
      'tie_word_embeddings': (True, None),
      'normalize_before': (False,),
      'add_final_layer_norm': (False,),
      'normalize_embedding': (True,),
      'static_position_embeddings': (False,),
    },
    ids=_ENDS,
  ),
}
POSITION_OFFSET = {'bart': 2}  # rows of its position tables that are of no position
NO_POOLER = 'openai-gpt', 'gpt2', 'bart'  # families in which model.pooler says nothing


def fields_of(path, family, content):
  """What is to be read: the content of a config.json with our names and values in place of a
  family's. InputError for an option that we lack."""
  theirs = FAMILIES[family]
  if family == 'modernbert':
    content = _attention_of(path, content) | {'type_vocab_size': 0}
  content = {theirs.keys.get(key, key): value for key, value in content.items()}
  content = theirs.defaults | content
  if family == 'fnet':  # its embeddings go through a dense layer, as wide as they are
    content['embedding_size'] = content.get('hidden_size')
  if family == 'electra' and content['embedding_size'] == content.get('hidden_size'):
    content['embedding_size'] = 0
  is_left_out = 'n_embd' in theirs.keys and content.get('intermediate_size') is None
  if is_left_out and isinstance(content.get('hidden_size'), int):
    content['intermediate_size'] = 4 * content['hidden_size']
  if family == 'openai-gpt' and content['hidden_act'] == 'gelu':  # its classes read it so
    content['hidden_act'] = 'gelu_new'
  if family == 'bart':
    for name in ('attention_heads', 'ffn_dim'):
      ours, other = content.get(theirs.keys[f'encoder_{name}']), content.get(f'decoder_{name}')
      if other not in (None, ours):
        raise InputError(
          f'{path} says decoder_{name} is {quoted(other)} and encoder_{name} is {quoted(ours)}; '
          'here both are the same, so it would not be the same model.'
        )
    if content['num_decoder_layers'] == content.get('num_hidden_layers'):
      content['num_decoder_layers'] = 0
  if 'feed_forward_bias' in theirs.free:
    content['feed_forward_bias'] = 'all' if content['feed_forward_bias'] is True else 'none'
  return content


def keys_of(family, model):
  """The inverse of fields_of: {key of config.json: value} of what only this family has."""
  theirs = FAMILIES[family]
  out = {name: model[name] for name in theirs.free}
  if 'feed_forward_bias' in out:
    out['feed_forward_bias'] = out['feed_forward_bias'] == 'all'
  if 'embedding_size' in out:
    out['embedding_size'] = out['embedding_size'] or model['hidden_size']
  if family == 'gpt2':
    out['embd_pdrop'] = model['hidden_dropout_prob']
  if family == 'bart':
    out |= {
      'num_decoder_layers': model['num_decoder_layers'] or model['num_hidden_layers'],
      'decoder_attention_heads': model['num_attention_heads'],
      'decoder_ffn_dim': model['intermediate_size'],
      'is_encoder_decoder': True,
    }
  if family == 'modernbert':
    every, window = (out.pop(x) for x in ('global_attention_every', 'attention_window'))
    theta, local = out.pop('rotary_theta'), out.pop('local_rotary_theta')
    # None of the layers are global: as if the first one were and there were none.
    layers = range(model['num_hidden_layers'])
    is_global = [not window or (every > 0 and i % every == 0) for i in layers]
    out |= {
      'local_attention': window or theirs.defaults['attention_window'],
      'global_attn_every_n_layers': (every if window else 1) or len(layers) + 1,
      'layer_types': [FULL if x else SLIDING for x in is_global],
      'rope_parameters': {
        kind: {'rope_type': 'default', 'rope_theta': x}
        for kind, x in ((FULL, theta), (SLIDING, local or theta))
      },
      'mlp_dropout': model['hidden_dropout_prob'],
      'classifier_dropout': model['hidden_dropout_prob'],
    }
  return out


def difference(family, model):
  """(field, its value there) of a field of config.model at which a family has another value than
  this one; or None."""
  theirs = FAMILIES[family]
  expected = BERT | theirs.fields
  for field, value in expected.items():
    said = field in (*theirs.free, *SIZES, *OTHERS, *OURS, 'tie_word_embeddings', 'hidden_act')
    said = said or (field == 'pooler' and family in NO_POOLER)
    if not said and field in model and model[field] != value:
      return field, value
  if 'feed_forward_bias' in theirs.free and model['feed_forward_bias'] == 'output':
    return 'feed_forward_bias', 'all or none'
  if family == 'bart' and model['layer_norm_eps'] != 1e-5:  # its config.json cannot say it
    return 'layer_norm_eps', 1e-5
  if family == 'bart' and not model['tie_word_embeddings']:
    return 'tie_word_embeddings', True
  if family == 'fnet' and model['embedding_size'] != model['hidden_size']:
    return 'embedding_size', model['hidden_size']
  return None


def _attention_of(path, content):
  """A ModernBERT's content with the thetas and the pattern of layers that it says in several ways
  as our fields. InputError for other rotations, and for layers without a period."""
  out, thetas, ropes = dict(content), {}, content.get('rope_parameters') or {}
  for kind, key, default in (
    (FULL, 'global_rope_theta', 160_000.0),
    (SLIDING, 'local_rope_theta', 10_000.0),
  ):
    rope = ropes.get(kind) or {}
    if set(ropes) - {FULL, SLIDING} or not isinstance(rope, dict):
      raise InputError(
        f'{path} says rope_parameters is {quoted(ropes)}; write an object with one for {FULL} and '
        f'one for {SLIDING}.'
      )
    if (scaling := rope.get('rope_type', 'default')) != 'default':
      raise InputError(
        f'{path} says rope_type {quoted(scaling)} of {kind}; our encoder has default only, so it '
        'would not be the same model.'
      )
    if content.get(key, default) is None:  # of local layers: that of the global ones
      default = thetas.get(FULL, default)
    thetas[kind] = theta = rope.get('rope_theta') or content.get(key) or default
    if not isinstance(theta, int | float) or not theta > 1:
      raise InputError(f'{path} says rope_theta {quoted(theta)} of {kind}; write a number above 1.')
  count, window = content.get('num_hidden_layers', 0), content.get('local_attention', 128)
  every = content.get('global_attn_every_n_layers', 3)
  for name, said in (('global_attn_every_n_layers', every), ('local_attention', window)):
    if said < 1:
      raise InputError(f'{path} says {name} is {quoted(said)}; write a positive number.')
  kinds = content.get('layer_types') or [SLIDING if i % every else FULL for i in range(count)]
  periods = (every, *range(1, count + 1))
  is_global = [kind == FULL for kind in kinds]
  fitting = (n for n in periods if is_global == [i % n == 0 for i in range(count)])
  every = next(fitting, 0) if any(is_global) else 0
  known = len(kinds) == count and all(kind in (FULL, SLIDING) for kind in kinds)
  if not known or (any(is_global) and not every):
    raise InputError(
      f'{path} says layer_types {quoted(kinds)}; our encoder has full_attention in every n-th '
      'layer from the first on, so it would not be the same model.'
    )
  if every == 1:
    every = window = 0
  local = thetas[SLIDING] if window and thetas[SLIDING] != thetas[FULL] else 0.0
  window_fields = {
    'global_attention_every': every,
    'local_attention': window,
    'rotary_theta': thetas[FULL],
    'local_rotary_theta': local,
  }
  return out | window_fields
