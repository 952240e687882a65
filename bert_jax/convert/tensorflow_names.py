"""Names of variables in TensorFlow 2's BERT encoders (Model Garden, official/nlp/bert).

An object-based checkpoint names a variable by the objects that lead to it: the number of a layer
with weights (three embeddings, their LayerNorm, the blocks, the pooler), then attributes inside it.
Here they become the names of google-research/bert, which is TensorFlow 1. Attention heads have a
separate axis: [D, H, d] where version 1 has [D, D].
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
  """The name in google-research/bert of a variable, if it is one of an encoder with that number of
  layers; else the name as it is."""
  match = re.fullmatch(rf'(?:model/)?layer_with_weights-(\d+)/(.+){re.escape(END)}', name)
  if not match:
    return name
  number, (module, _, leaf) = int(match[1]), match[2].rpartition('/')
  if number < 3 and match[2] == 'embeddings':
    return f'bert/embeddings/{EMBEDDINGS[number]}'
  if number == 3 and not module:
    return f'bert/embeddings/LayerNorm/{leaf}'
  if 4 <= number < layers + 4 and module in BLOCK:
    return f'bert/encoder/layer_{number - 4}/{BLOCK[module]}/{leaf}'
  if number == layers + 4 and not module:
    return f'bert/pooler/dense/{leaf}'
  return name


def not_a_parameter(name):
  """'' for a parameter of the model; else what the variable is."""
  if name == GRAPH:
    return 'the graph of objects'
  if '.OPTIMIZER_SLOT' in name or re.match(r'(\w+/)?_?optimizer\b', name):
    return "the optimizer's"
  return "the training's" if re.match(r'(save_counter|global_step|step)/', name) else ''
