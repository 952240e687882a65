"""FNet: a Fourier transform mixes the tokens, and embeddings go through a dense layer."""

from bert_jax.convert.families.bert import BERT
from bert_jax.convert.families.record import ENDS, OtherHead, ReleasedFamily, renamed

_NAMES = {ours: name for ours, name in BERT.modules.items() if 'attention' not in ours}
_WHY = 'an FNet mixes all tokens of a row, and here the choices of a question share one'
_CHOICE = OtherHead(('classifier.',), ('classifier',), _WHY)
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
  lacks=('ForMultipleChoice',),
  pooler=('',),  # all
  other_head=lambda said, _: _CHOICE if 'MultipleChoice' in said.architecture else OtherHead(),
  not_given='attention_mask',
)
