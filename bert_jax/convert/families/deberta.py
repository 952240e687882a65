"""DeBERTa-v2 and -v3: a BERT with disentangled attention, and no positions in its embeddings."""

from bert_jax.convert.families.bert import ENCODER, MLM
from bert_jax.convert.families.record import HEADS, OtherHead, ReleasedFamily, other_model, renamed

_TABLES = 'encoder/embeddings/position_embeddings', 'encoder/embeddings/token_type_embeddings'
_NAMES = {ours: name for ours, name in ENCODER.items() if ours not in _TABLES}
_NAMES |= {
  f'encoder/layer_#/attention/{x}': f'bert.encoder.layer.#.attention.self.{x}_proj'
  for x in ('query', 'key', 'value')
}
# Options that are no field of ours, and what a config.json means that lacks one.
_SAID = {'relative_attention': True, 'position_biased_input': False, 'share_att_key': True}
_SAID |= {'norm_rel_ebd': 'layer_norm'}
_UNSAID = {'relative_attention': False, 'position_biased_input': True, 'share_att_key': False}
_UNSAID |= {'norm_rel_ebd': 'none'}
_TERMS = 'c2p|p2c', 'c2p', 'p2c'
# Its own masked-LM head has other names than transformers' older class. The table is its decoder's.
_TABLE, _OWN = 'deberta.embeddings.position_embeddings', 'lm_predictions.position_embeddings'
_RENAMED = {_TABLE: _OWN, 'lm_predictions.lm_head.': 'cls.predictions.transform.'}
_RENAMED |= {'cls.predictions.transform.bias': 'cls.predictions.bias'}
_WHY = 'its masked-LM head reads a mask decoder, whose depth no config.json says'
_BEHIND_A_DECODER = OtherHead(('lm_predictions.', _TABLE), ('mlm',), _WHY)
_MARKS = f'{_OWN}.weight', 'mask_predictions.dense.weight'  # of pre-training, which has one


def _read(path, content):
  said, longest = content['pos_att_type'], content['max_relative_positions']
  terms = '|'.join(map(str, said)) if isinstance(said, list) else str(said).lower()
  terms = '|'.join(sorted(term.strip() for term in terms.split('|')))
  if terms not in _TERMS:
    raise other_model(path, 'pos_att_type', said, f'our encoder has {" or ".join(_TERMS)}')
  if content.get('legacy') is False:  # whose head reads the table of words, tied or not
    content = content | {'tie_word_embeddings': True}
  return content | {
    'pos_att_type': terms,
    'position_buckets': max(0, content['position_buckets']),
    'max_relative_positions': longest if longest > 0 else content.get('max_position_embeddings'),
  }


def _write(model):
  longest = model['max_relative_positions']
  return _SAID | {
    'pos_att_type': model['pos_att_type'],
    'position_buckets': model['position_buckets'] or -1,
    'max_relative_positions': -1 if longest == model['max_position_embeddings'] else longest,
    'pooler_hidden_act': 'gelu',
  }


def _canonical(name):
  for theirs, shared in _RENAMED.items():
    name = name.replace(theirs, shared)
  return name


DEBERTA = ReleasedFamily(
  name='deberta-v2',
  classes='DebertaV2',
  modules=renamed(_NAMES, 'bert.', 'deberta.')
  | MLM
  | HEADS
  | {
    'encoder/distances': 'deberta.encoder.rel_embeddings',
    'encoder/distances/LayerNorm': 'deberta.encoder.LayerNorm',
    'pooler/dense': 'pooler.dense',
    'replaced/LayerNorm': 'mask_predictions.LayerNorm',
    'replaced/dense': 'mask_predictions.dense',
    'replaced/score': 'mask_predictions.classifier',
  },
  prefix='deberta.',
  canonical=_canonical,
  defaults=_UNSAID
  | {'layer_norm_eps': 1e-7, 'type_vocab_size': 0, 'pos_att_type': None}
  | dict.fromkeys(('position_buckets', 'max_relative_positions'), -1),
  fields={'position_embeddings': 'disentangled', 'pooler': 'gelu', 'replaced_head': 'context'},
  derived=('pos_att_type', 'position_buckets', 'max_relative_positions'),
  unsaid=('type_vocab_size',),
  also={'pooler_hidden_size': 'hidden_size', 'embedding_size': 'hidden_size'},
  fixed={name: (value,) for name, value in _SAID.items()}
  | {'conv_kernel_size': (0,), 'pooler_dropout': (0,), 'pooler_hidden_act': ('gelu',)}
  | {'type_vocab_size': (0,)},
  read=_read,
  write=_write,
  no_class=('ForPreTraining',),
  other_head=lambda _, names: OtherHead() if {*_MARKS}.isdisjoint(names) else _BEHIND_A_DECODER,
)
