"""DistilBERT: a BERT without token types, whose pooler is part of its classifiers of texts."""

from bert_jax.convert.families.record import EMBEDDINGS, HEADS, ReleasedFamily, layers

_EMBEDDINGS = [name for name in EMBEDDINGS if name != 'token_type_embeddings']
_KEYS = dict(dim='hidden_size', n_layers='num_hidden_layers', n_heads='num_attention_heads')
_KEYS |= dict(hidden_dim='intermediate_size', activation='hidden_act')
_KEYS |= dict(dropout='hidden_dropout_prob', attention_dropout='attention_probs_dropout_prob')
_KEYS |= dict(seq_classif_dropout='classifier_dropout_prob', qa_dropout='span_dropout_prob')
_DROPOUT = dict(classifier_dropout_prob=0.2, span_dropout_prob=0.1)


DISTILBERT = ReleasedFamily(
  name='distilbert',
  classes='DistilBert',
  modules={f'encoder/embeddings/{x}': f'distilbert.embeddings.{x}' for x in _EMBEDDINGS}
  | layers(
    'distilbert.transformer.layer.#.',
    ('attention.q_lin', 'attention.k_lin', 'attention.v_lin', 'attention.out_lin'),
    ('sa_layer_norm', 'ffn.lin1', 'ffn.lin2', 'output_layer_norm'),
  )
  | {'mlm/transform': 'vocab_transform', 'mlm/LayerNorm': 'vocab_layer_norm'}
  | dict.fromkeys(('mlm', 'mlm/'), 'vocab_projector')
  | HEADS
  | {'pooler/dense': 'pre_classifier'},
  prefix='distilbert.',
  keys=_KEYS,
  defaults={'type_vocab_size': 0, **_DROPOUT},
  fields={'pooler': 'relu'},
  same={'classifier_dropout_prob': 'hidden_dropout_prob'},
  free=tuple(_DROPOUT),
  unsaid=('layer_norm_eps', 'type_vocab_size'),
  write=lambda model: {'sinusoidal_pos_embds': False},
  tokenizer_class='DistilBertTokenizer',
  not_given='token_type_ids',
)
