"""The names of TensorFlow 2's BERT encoders (Model Garden, official/nlp/bert) as google-research's.

An object-based checkpoint names a variable by its way through the objects: the layers that have
weights, in order (three embeddings, their LayerNorm, the blocks, the pooler), and the attributes of
a block. Heads are kept apart: [D, H, d] where version 1 has [D, D].
"""

import re

GRAPH = '_CHECKPOINTABLE_OBJECT_GRAPH'
END = '/.ATTRIBUTES/VARIABLE_VALUE'
EMBEDDINGS = ('word_embeddings', 'position_embeddings', 'token_type_embeddings')
BLOCK = {
  '_attention_layer/_query_dense': 'attention/self/query',
  '_attention_layer/_key_dense': 'attention/self/key',
  '_attention_layer/_value_dense': 'attention/self/value',
  '_attention_layer/_output_dense': 'attention/output/dense',
  '_attention_output_dense': 'attention/output/dense',  # of earlier releases
  '_attention_layer_norm': 'attention/output/LayerNorm',
  '_intermediate_dense': 'intermediate/dense',
  '_output_dense': 'output/dense',
  '_output_layer_norm': 'output/LayerNorm',
}


def version_1(name, layers):
  """The name in google-research/bert of a variable of an encoder of so many layers, or itself."""
  found = re.fullmatch(rf'(?:model/)?layer_with_weights-(\d+)/(.+){re.escape(END)}', name)
  if not found:
    return name
  number, (module, _, leaf) = int(found[1]), found[2].rpartition('/')
  if number < 3 and found[2] == 'embeddings':
    return f'bert/embeddings/{EMBEDDINGS[number]}'
  if number == 3 and not module:
    return f'bert/embeddings/LayerNorm/{leaf}'
  if 4 <= number < layers + 4 and module in BLOCK:
    return f'bert/encoder/layer_{number - 4}/{BLOCK[module]}/{leaf}'
  if number == layers + 4 and not module:
    return f'bert/pooler/dense/{leaf}'
  return name


def is_state(name):
  """Why a variable is none of the model's, or ''."""
  if name == GRAPH:
    return 'the graph of objects'
  if '.OPTIMIZER_SLOT' in name or re.match(r'(\w+/)?_?optimizer\b', name):
    return "the optimizer's"
  return "the training's" if re.match(r'(save_counter|global_step|step)/', name) else ''
