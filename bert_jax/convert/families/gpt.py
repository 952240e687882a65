"""The first GPT, which is read only, and GPT-2."""

from bert_jax.convert.families.record import EMBEDDINGS, ENDS, Place, ReleasedFamily, layers

_MODULES = {'mlm/': 'lm_head'} | layers(
  'transformer.h.#.',
  ('attn.c_attn', 'attn.c_attn', 'attn.c_attn', 'attn.c_proj'),
  ('ln_1', 'mlp.c_fc', 'mlp.c_proj', 'ln_2'),
)
_KEYS = dict(n_embd='hidden_size', n_layer='num_hidden_layers', n_head='num_attention_heads')
_KEYS |= dict(n_positions='max_position_embeddings', resid_pdrop='hidden_dropout_prob')
_KEYS |= dict(attn_pdrop='attention_probs_dropout_prob', layer_norm_epsilon='layer_norm_eps')


def _tables(*names):
  return {f'encoder/embeddings/{x}': f'transformer.{name}' for x, name in zip(EMBEDDINGS, names)}


def _read(path, content):
  width = content.get('hidden_size')
  if content.get('intermediate_size') is None and isinstance(width, int):
    content['intermediate_size'] = 4 * width
  return content


def _read_first(path, content):
  content = _read(path, content)
  if content['hidden_act'] == 'gelu':  # its classes read it so
    content['hidden_act'] = 'gelu_new'
  return content


OPENAI_GPT = ReleasedFamily(
  name='openai-gpt',
  classes='OpenAIGPT',
  modules=_MODULES | _tables('tokens_embed', 'positions_embed'),
  places={'classifier/dense/kernel': Place('score.weight', True, 'DC')},
  prefix='transformer.',
  turned=False,
  keys=_KEYS | {'afn': 'hidden_act'},
  defaults={'hidden_act': 'gelu_new', 'layer_norm_eps': 1e-5, 'type_vocab_size': 0},
  fields=dict(causal=True, embedding_norm=False, mlm_head='none', decoder_bias=False)
  | dict(pooler='none', classifier_bias=False),
  unsaid=('type_vocab_size',),
  read=_read_first,
  fits=lambda exported: False,
)
GPT2 = OPENAI_GPT._replace(
  name='gpt2',
  classes='GPT2',
  modules=_MODULES | _tables('wte', 'wpe') | {'encoder/LayerNorm': 'transformer.ln_f'},
  keys=_KEYS | {'activation_function': 'hidden_act', 'n_inner': 'intermediate_size'},
  fields=OPENAI_GPT.fields | {'norm_placement': 'pre'},
  fixed={'scale_attn_weights': (True,), 'scale_attn_by_inverse_layer_idx': (False,)},
  ids=ENDS,
  read=_read,
  also={'embd_pdrop': 'hidden_dropout_prob'},
  fits=lambda exported: True,
  not_given='token_type_ids',
)
