"""FNet: a Fourier transform mixes the tokens, and embeddings go through a dense layer."""

from bert_jax.convert.families.bert import BERT
from bert_jax.convert.families.record import ENDS, ReleasedFamily, renamed

_NAMES = {ours: name for ours, name in BERT.modules.items() if 'attention' not in ours}
FNET = ReleasedFamily(
  name='fnet',
  classes='FNet',
  modules=renamed(_NAMES, 'bert.', 'fnet.')
  | {
    'encoder/embeddings/projection': 'fnet.embeddings.projection',
    'encoder/layer_#/fourier_LayerNorm': 'fnet.encoder.layer.#.fourier.output.LayerNorm',
  },
  prefix='fnet.',
  defaults={'hidden_act': 'gelu_new', 'num_attention_heads': 1, 'type_vocab_size': 4},
  fields={'mixer': 'fourier'},
  free=('embedding_size',),
  fixed={'use_tpu_fourier_optimizations': (False,)},
  ids=ENDS,
  projects='full width',
  pooler=('',),  # all
  not_given='attention_mask',
)
