"""ModernBERT: rotary positions, gated feed-forward layers, and a pattern of local attention."""

from bert_jax.convert.families import record
from bert_jax.convert.families.record import Classifier, ReleasedFamily, layers
from bert_jax.errors import InputError, quoted

FULL, SLIDING = 'full_attention', 'sliding_attention'
_ENCODER = {
  'encoder/layer_#/gate': 'model.layers.#.mlp.Wi',  # the half that goes through the activation
  **layers(
    'model.layers.#.',
    ('attn.Wqkv', 'attn.Wqkv', 'attn.Wqkv', 'attn.Wo'),
    ('attn_norm', 'mlp.Wi', 'mlp.Wo', 'mlp_norm'),
  ),
  'encoder/embeddings/word_embeddings': 'model.embeddings.tok_embeddings',
  'encoder/embeddings/LayerNorm': 'model.embeddings.norm',
  'encoder/LayerNorm': 'model.final_norm',
}
_MLM = {'mlm/transform': 'head.dense', 'mlm/LayerNorm': 'head.norm'}
_MLM |= dict.fromkeys(('mlm', 'mlm/'), 'decoder')
# Its classifiers have the same head over [CLS], the mean or each token; that is our pooler.
_CLASSIFIER = _ENCODER | {'pooler/dense': 'head.dense', 'pooler/LayerNorm': 'head.norm'}


def _read(path, content):
  thetas = _thetas(path, content)
  window, every = _pattern(path, content)
  local = thetas[SLIDING] if window and thetas[SLIDING] != thetas[FULL] else 0.0
  return content | {
    'type_vocab_size': 0,
    'feed_forward_bias': 'all' if content['feed_forward_bias'] is True else 'none',
    'global_attention_every': every,
    'attention_window': window,
    'rotary_theta': thetas[FULL],
    'local_rotary_theta': local,
  }


def _thetas(path, content):
  """{kind of attention: its rotary theta}; InputError for other rotations."""
  thetas, ropes = {}, content.get('rope_parameters') or {}
  kinds = (FULL, 'global_rope_theta', 160_000.0), (SLIDING, 'local_rope_theta', 10_000.0)
  for kind, key, default in kinds:
    if set(ropes) - {FULL, SLIDING}:
      wanted = f'write an object with {FULL} and {SLIDING}'
      raise InputError(f'{path} says rope_parameters is {quoted(ropes)}; {wanted}.')
    if content.get(key, default) is None:  # local layers: the same as global ones
      default = thetas.get(FULL, default)
    usual = content.get(key) or default
    thetas[kind] = record.theta_of(path, content, usual, kind)
  return thetas


def _pattern(path, content):
  """(window of local layers, n where every n-th layer is global), 0 if there are none."""
  count, window = content.get('num_hidden_layers', 0), content['attention_window']
  every = content.get('global_attn_every_n_layers', 3)
  kinds = content.get('layer_types') or _kinds(count, every)
  for n in (0, every, *range(1, count + 1)):
    if kinds == _kinds(count, n):
      return (0, 0) if n == 1 else (window, n)
  pattern = 'our encoder has full_attention in every n-th layer from the first on'
  raise record.other_model(path, 'layer_types', kinds, pattern)


def _kinds(count, every):
  """The kinds of layers where every n-th one is global; 0: none."""
  return [FULL if every and i % every == 0 else SLIDING for i in range(count)]


def _write(model):
  every, window = model['global_attention_every'], model['attention_window']
  theta, local = model['rotary_theta'], model['local_rotary_theta']
  # If no layer is global, n is more than the number of layers.
  count = model['num_hidden_layers']
  return {
    'feed_forward_bias': model['feed_forward_bias'] == 'all',
    'local_attention': window or MODERNBERT.defaults['attention_window'],
    'global_attn_every_n_layers': (every if window else 1) or count + 1,
    'layer_types': _kinds(count, every if window else 1),
    'rope_parameters': {FULL: record.rope(theta), SLIDING: record.rope(local or theta)},
    'mlp_dropout': model['hidden_dropout_prob'],
    'classifier_dropout': model['hidden_dropout_prob'],
    'classifier_activation': record.activation_name(model['hidden_act'], 'gelu'),
    'classifier_pooling': 'cls',
  }


def _fits(exported):
  is_bare = {'classifier', 'span'} & {*exported.parts} and 'pooler' not in exported.parts
  return exported.model['feed_forward_bias'] != 'output' and not is_bare


_KEYS = dict(hidden_activation='hidden_act', norm_eps='layer_norm_eps', classifier_bias='head_bias')
_KEYS |= dict(embedding_dropout='hidden_dropout_prob', local_attention='attention_window')
_KEYS |= dict(attention_dropout='attention_probs_dropout_prob', mlp_bias='feed_forward_bias')
_DEFAULTS = dict(norm_bias=False, attention_bias=False, feed_forward_bias=False, head_bias=False)
_DEFAULTS |= dict(layer_norm_eps=1e-5, type_vocab_size=0, attention_window=128, decoder_bias=True)
_FIELDS = dict(position_embeddings='rotary', norm_placement='pre', feed_forward='glu')
MODERNBERT = ReleasedFamily(
  name='modernbert',
  classes='ModernBert',
  modules=_ENCODER | _MLM,
  prefix='model.',
  classifiers=(
    Classifier(_CLASSIFIER | {'span/dense': 'classifier'}, 'classifier.bias', 'QuestionAnswering'),
    Classifier(_CLASSIFIER | {'classifier/dense': 'classifier'}, 'classifier.bias', ''),
  ),
  keys=_KEYS,
  defaults=_DEFAULTS | record.NO_DROPOUT | dict(hidden_act='gelu', classifier_activation='gelu'),
  fields=_FIELDS | {'first_norm': False, 'pooler': 'transform', 'token_pooler': True},
  without_effect=('token_pooler',),
  free=('norm_bias', 'attention_bias', 'feed_forward_bias', 'head_bias', 'decoder_bias'),
  derived=('attention_window', 'global_attention_every', 'rotary_theta', 'local_rotary_theta'),
  unsaid=('type_vocab_size',),
  also={'classifier_activation': 'hidden_act'},
  # position_embedding_type means nothing to it, and mmBERT says sans_pos.
  fixed=dict(rope_scaling=(), position_embedding_type=('absolute', 'sans_pos'))
  | dict(classifier_pooling=('cls', 'mean')),
  ids=record.ENDS | {'cls_token_id': 'cls', 'sep_token_id': 'sep'},
  read=_read,
  write=_write,
  fits=_fits,
  not_given='token_type_ids',
)
