"""What the modules of each family of models are called in released weights.

A family has a name for each module; the shape of a module and its parameters are the same for all.
Two or three of our modules may be one of theirs, which holds ours one after the other. Names of
parameters follow from these tables in parameter_names.py.
"""

# {path of a module: (its kind, its shape in the letters of FIELDS, its name in a BERT of torch, its
# name in a DistilBERT), those of the encoder below; '' where there is none. A dense layer is
# [in, out], C is any number of labels, and # stands for the number of a layer.
MODULES = {
  'pooler/dense': ('dense', 'DD', 'bert.pooler.dense', ''),
  'pooler/LayerNorm': ('norm', 'D', '', ''),
  'mlm/transform': ('dense', 'DE', 'cls.predictions.transform.dense', 'vocab_transform'),
  'mlm/LayerNorm': ('norm', 'E', 'cls.predictions.transform.LayerNorm', 'vocab_layer_norm'),
  'mlm': ('bias', 'V', 'cls.predictions', 'vocab_projector'),
  'mlm/': ('decoder', 'VE', 'cls.predictions.decoder', 'vocab_projector'),  # untied only
  'nsp/dense': ('dense', 'D2', 'cls.seq_relationship', ''),
  'classifier/dense': ('dense', 'DC', 'classifier', 'classifier'),
  'span/dense': ('dense', 'D2', 'qa_outputs', 'qa_outputs'),
  'replaced/dense': ('dense', 'DD', '', ''),  # the head of ELECTRA's discriminator
  'replaced/score': ('dense', 'D1', '', ''),
  'encoder/embeddings/projection': ('dense', 'ED', '', ''),
  'encoder/LayerNorm': ('norm', 'D', '', ''),  # after the last layer of a pre-LN model
  'encoder/layer_#/gate': ('dense', 'DF', '', ''),
  'encoder/layer_#/fourier_LayerNorm': ('norm', 'D', '', ''),
}
EMBEDDINGS = {  # the same names everywhere; a DistilBERT has no token types
  'word_embeddings': ('embed', 'VE'),
  'position_embeddings': ('embed', 'PE'),
  'token_type_embeddings': ('embed', 'TE'),
  'LayerNorm': ('norm', 'E'),
}
_LAYER = {
  'attention/query': ('dense', 'DD', 'attention.self.query', 'attention.q_lin'),
  'attention/key': ('dense', 'DD', 'attention.self.key', 'attention.k_lin'),
  'attention/value': ('dense', 'DD', 'attention.self.value', 'attention.v_lin'),
  'attention/output': ('dense', 'DD', 'attention.output.dense', 'attention.out_lin'),
  'attention_LayerNorm': ('norm', 'D', 'attention.output.LayerNorm', 'sa_layer_norm'),
  'intermediate': ('dense', 'DF', 'intermediate.dense', 'ffn.lin1'),
  'output': ('dense', 'FD', 'output.dense', 'ffn.lin2'),
  'output_LayerNorm': ('norm', 'D', 'output.LayerNorm', 'output_layer_norm'),
}
# A decoder has the layers of an encoder, with attention to it after the first sublayer.
MODULES |= {f'decoder/layer_#/{name}': (*kind[:2], '', '') for name, kind in _LAYER.items()} | {
  'decoder/embeddings/position_embeddings': ('embed', 'PE', '', ''),
  'decoder/embeddings/LayerNorm': ('norm', 'E', '', ''),
  'decoder/layer_#/cross_attention/query': ('dense', 'DD', '', ''),
  'decoder/layer_#/cross_attention/key': ('dense', 'DD', '', ''),
  'decoder/layer_#/cross_attention/value': ('dense', 'DD', '', ''),
  'decoder/layer_#/cross_attention/output': ('dense', 'DD', '', ''),
  'decoder/layer_#/cross_attention_LayerNorm': ('norm', 'D', '', ''),
}
for _name, _kind in EMBEDDINGS.items():
  _distil = '' if _name == 'token_type_embeddings' else f'distilbert.embeddings.{_name}'
  MODULES[f'encoder/embeddings/{_name}'] = (*_kind, f'bert.embeddings.{_name}', _distil)
for _name, (*_kind, _bert, _distil) in _LAYER.items():
  _names = f'bert.encoder.layer.#.{_bert}', f'distilbert.transformer.layer.#.{_distil}'
  MODULES[f'encoder/layer_#/{_name}'] = (*_kind, *_names)
# {kind of module: {parameter: (how its name ends in torch, in TensorFlow)}}.
LEAVES = {
  'embed': {'embedding': ('.weight', '')},
  'norm': {'scale': ('.weight', '/gamma'), 'bias': ('.bias', '/beta')},
  'dense': {'kernel': ('.weight', '/kernel'), 'bias': ('.bias', '/bias')},
  'bias': {'bias': ('.bias', '')},
  'decoder': {'decoder': ('.weight', '')},
}

BERT = {ours: bert for ours, (_, _, bert, _) in MODULES.items() if bert}
DISTILBERT = {ours: distil for ours, (_, _, _, distil) in MODULES.items() if distil}
ROBERTA = {ours: theirs.replace('bert.', 'roberta.') for ours, theirs in BERT.items()} | {
  'mlm/transform': 'lm_head.dense',
  'mlm/LayerNorm': 'lm_head.layer_norm',
  'mlm': 'lm_head',
  'mlm/': 'lm_head.decoder',
}
del ROBERTA['nsp/dense']
# Its sequence classifier has a dense layer with tanh over <s>, which is our pooler, and no other.
ROBERTA_CLASSIFIER = ROBERTA | {
  'pooler/dense': 'classifier.dense',
  'classifier/dense': 'classifier.out_proj',
}
# google-research/bert, and its fine-tuned classifiers and SQuAD models.
GOOGLE = {
  ours: theirs.replace('.', '/').replace('encoder/layer/#', 'encoder/layer_#')
  for ours, theirs in BERT.items()
  if ours.partition('/')[0] in ('encoder', 'pooler', 'mlm') and ours != 'mlm/'
} | {'mlm': 'cls/predictions/output_bias'}
GOOGLE_OUTPUTS = {  # [out, in]
  'nsp/dense': 'cls/seq_relationship/output_',
  'classifier/dense': 'output_',
  'span/dense': 'cls/squad/output_',
}


_HEADS = {'classifier/dense': 'classifier', 'span/dense': 'qa_outputs'}
ELECTRA = (
  {  # the MLM head is that of its generator
    ours: theirs.replace('bert.', 'electra.')
    for ours, theirs in BERT.items()
    if ours.startswith('encoder/')
  }
  | _HEADS
  | {
    'encoder/embeddings/projection': 'electra.embeddings_project',
    'replaced/dense': 'discriminator_predictions.dense',
    'replaced/score': 'discriminator_predictions.dense_prediction',
    'mlm/transform': 'generator_predictions.dense',
    'mlm/LayerNorm': 'generator_predictions.LayerNorm',
    'mlm': 'generator_lm_head',
    'mlm/': 'generator_lm_head',
  }
)
FNET = {
  ours: theirs.replace('bert.', 'fnet.') for ours, theirs in BERT.items() if 'attention' not in ours
} | {
  'encoder/embeddings/projection': 'fnet.embeddings.projection',
  'encoder/layer_#/fourier_LayerNorm': 'fnet.encoder.layer.#.fourier.output.LayerNorm',
}
_ALBERT_LAYER = {
  'attention/query': 'attention.query',
  'attention/key': 'attention.key',
  'attention/value': 'attention.value',
  'attention/output': 'attention.dense',
  'attention_LayerNorm': 'attention.LayerNorm',
  'intermediate': 'ffn',
  'output': 'ffn_output',
  'output_LayerNorm': 'full_layer_layer_norm',
}
ALBERT = (
  {f'encoder/embeddings/{name}': f'albert.embeddings.{name}' for name in EMBEDDINGS}
  | {
    f'encoder/layer_#/{ours}': f'albert.encoder.albert_layer_groups.0.albert_layers.0.{theirs}'
    for ours, theirs in _ALBERT_LAYER.items()
  }
  | _HEADS
  | {
    'encoder/embeddings/projection': 'albert.encoder.embedding_hidden_mapping_in',
    'pooler/dense': 'albert.pooler',
    'mlm/transform': 'predictions.dense',
    'mlm/LayerNorm': 'predictions.LayerNorm',
    'mlm': 'predictions',
    'mlm/': 'predictions.decoder',
    'nsp/dense': 'sop_classifier.classifier',
  }
)
_MODERNBERT_LAYER = {
  'attention_LayerNorm': 'attn_norm',
  'attention/query': 'attn.Wqkv',
  'attention/key': 'attn.Wqkv',
  'attention/value': 'attn.Wqkv',
  'attention/output': 'attn.Wo',
  'output_LayerNorm': 'mlp_norm',
  'gate': 'mlp.Wi',  # the half that goes through the activation
  'intermediate': 'mlp.Wi',
  'output': 'mlp.Wo',
}
_MODERNBERT = {
  f'encoder/layer_#/{ours}': f'model.layers.#.{theirs}'
  for ours, theirs in _MODERNBERT_LAYER.items()
} | {
  'encoder/embeddings/word_embeddings': 'model.embeddings.tok_embeddings',
  'encoder/embeddings/LayerNorm': 'model.embeddings.norm',
  'encoder/LayerNorm': 'model.final_norm',
}
MODERNBERT = _MODERNBERT | {
  'mlm/transform': 'head.dense',
  'mlm/LayerNorm': 'head.norm',
  'mlm': 'decoder',
  'mlm/': 'decoder',
}
# Its sequence classifier has the same head over [CLS]; that is our pooler, and no MLM head.
MODERNBERT_CLASSIFIER = _MODERNBERT | {
  'pooler/dense': 'head.dense',
  'pooler/LayerNorm': 'head.norm',
  'classifier/dense': 'classifier',
}
_GPT_LAYER = {
  'attention/query': 'attn.c_attn',
  'attention/key': 'attn.c_attn',
  'attention/value': 'attn.c_attn',
  'attention/output': 'attn.c_proj',
  'attention_LayerNorm': 'ln_1',
  'intermediate': 'mlp.c_fc',
  'output': 'mlp.c_proj',
  'output_LayerNorm': 'ln_2',
}
_GPT = {f'encoder/layer_#/{ours}': f'transformer.h.#.{x}' for ours, x in _GPT_LAYER.items()} | {
  'mlm/': 'lm_head',
}
OPENAI_GPT = _GPT | {
  'encoder/embeddings/word_embeddings': 'transformer.tokens_embed',
  'encoder/embeddings/position_embeddings': 'transformer.positions_embed',
}
GPT2 = _GPT | {
  'encoder/embeddings/word_embeddings': 'transformer.wte',
  'encoder/embeddings/position_embeddings': 'transformer.wpe',
  'encoder/LayerNorm': 'transformer.ln_f',
}
_BART_LAYER = {
  'attention/query': 'self_attn.q_proj',
  'attention/key': 'self_attn.k_proj',
  'attention/value': 'self_attn.v_proj',
  'attention/output': 'self_attn.out_proj',
  'attention_LayerNorm': 'self_attn_layer_norm',
  'intermediate': 'fc1',
  'output': 'fc2',
  'output_LayerNorm': 'final_layer_norm',
}
_BART_CROSS = {
  'cross_attention/query': 'encoder_attn.q_proj',
  'cross_attention/key': 'encoder_attn.k_proj',
  'cross_attention/value': 'encoder_attn.v_proj',
  'cross_attention/output': 'encoder_attn.out_proj',
  'cross_attention_LayerNorm': 'encoder_attn_layer_norm',
}
BART = {
  f'{tower}/layer_#/{ours}': f'model.{tower}.layers.#.{theirs}'
  for tower, layer in (('encoder', _BART_LAYER), ('decoder', _BART_LAYER | _BART_CROSS))
  for ours, theirs in layer.items()
} | {
  'encoder/embeddings/word_embeddings': 'model.shared',
  'encoder/embeddings/position_embeddings': 'model.encoder.embed_positions',
  'encoder/embeddings/LayerNorm': 'model.encoder.layernorm_embedding',
  'decoder/embeddings/position_embeddings': 'model.decoder.embed_positions',
  'decoder/embeddings/LayerNorm': 'model.decoder.layernorm_embedding',
  'mlm': 'final_logits',  # with _bias, not .bias
}
TABLES = {
  'bert': BERT,
  'roberta': ROBERTA,
  'roberta classifier': ROBERTA_CLASSIFIER,
  'distilbert': DISTILBERT,
  'google': GOOGLE,
  'albert': ALBERT,
  'electra': ELECTRA,
  'fnet': FNET,
  'modernbert': MODERNBERT,
  'modernbert classifier': MODERNBERT_CLASSIFIER,
  'openai-gpt': OPENAI_GPT,
  'gpt2': GPT2,
  'bart': BART,
}
UNTURNED = ('google', 'openai-gpt', 'gpt2')  # families whose kernels are [in, out], as ours
# {family: what the names of its encoder begin with}; else it is the family and a dot.
PREFIXES = {
  'modernbert': 'model.',
  'google': 'bert/',
  'openai-gpt': 'transformer.',
  'gpt2': 'transformer.',
  'bart': 'model.',
}
# {family: further names of the table of words, of which a file may hold copies}.
TIED = {
  'bart': (
    'model.encoder.embed_tokens.weight',
    'model.decoder.embed_tokens.weight',
    'lm_head.weight',
  )
}
