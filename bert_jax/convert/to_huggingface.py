"""A model of ours as a folder that Hugging Face's libraries load, no tensor missing or left over.

Weights with token types are written as a BERT. Without, they are a DistilBERT if they have no
pooler, and else a BERT whose token types are zeros. What neither can express is refused, by the
name of the field. What only we have stands in config.json under `bert_jax`, where
`config_json.read` finds it. A bare encoder without a pooler gets one of zeros, since BertModel has
one and would draw it at random.
"""

import json
import logging

import numpy as np

from bert_jax import __version__, models
from bert_jax.convert import (
  config_json,
  exported_tokenizers,
  from_huggingface,
  model_card,
  parameter_names,
  sentence_transformers,
  tensor_files,
)
from bert_jax.errors import InputError
from bert_jax.tasks import TASKS
from bert_jax.whole_files import write_whole

log = logging.getLogger('bert_jax')

NO_POOLER = (
  'The model has no pooler. BertModel has one, so its weights are here as zeros: its pooler_output '
  'means nothing, use last_hidden_state.'
)
# What is the same in every model that Hugging Face calls a BERT.
FIXED = {'norm_placement': 'post', 'position_embeddings': 'learned', 'feed_forward': 'mlp',
         'norm': 'layer_norm', 'attention_window': 0}  # fmt: skip
ACTIVATIONS = {'gelu': 'gelu', 'gelu_tanh': 'gelu_pytorch_tanh', 'relu': 'relu', 'swish': 'silu'}


def write(
  out, config, tokenizer, params, labels=(), facts=None, vector=sentence_transformers.UNKNOWN
):
  """Writes the folder `out` -> ({path: (array, name in the file)}, {path: why it is left out}).

  labels: of the classifier, in order. facts: of the run, for the model card. vector: how
  sentence-transformers shall make one vector of a bare encoder's states.
  """
  model = models.ModelConfig(**config.model)
  _check(config, params)
  flat = from_huggingface.flatten(params, model)
  left_out = {
    path: f'a {config.objective} model of theirs has no {path.partition("/")[0]}'
    for path in flat
    if path.partition('/')[0] == 'pooler' and 'mlm' in params and 'nsp' not in params
  }
  kept = {path: np.asarray(x, np.float32) for path, x in flat.items() if path not in left_out}
  parts = {path.partition('/')[0] for path in kept}
  family = 'bert'
  if not model.type_vocab_size and 'pooler' not in parts and model.layer_norm_eps == 1e-12:
    family = 'distilbert'
  head = _head(config, parts)
  places = parameter_names.table(family, model.num_hidden_layers, model.tie_word_embeddings)
  bare = '' if head != 'Model' else f'{family}.'
  written = {path: (x, places[path].name.removeprefix(bare)) for path, x in kept.items()}
  tensors = {name: x.T if places[path].turned else x for path, (x, name) in written.items()}
  if family == 'bert' and not model.type_vocab_size:
    name = places[from_huggingface.TYPES].name.removeprefix(bare)
    tensors[name] = np.zeros((2, model.hidden_size), np.float32)
  lacks_pooler = family == 'bert' and head == 'Model' and 'pooler' not in parts
  if lacks_pooler:
    log.warning('%s', NO_POOLER)
    for leaf, shape in (('kernel', 2 * (model.hidden_size,)), ('bias', (model.hidden_size,))):
      name = places[f'pooler/dense/{leaf}'].name.removeprefix(bare)
      tensors[name] = np.zeros(shape, np.float32)
  if family == 'bert' and 'mlm/decoder' in kept:  # an untied BERT has this bias twice
    tensors['cls.predictions.decoder.bias'] = tensors['cls.predictions.bias']
  settings = _config(config, model, family, head, labels, tokenizer)
  if lacks_pooler:
    settings['bert_jax']['pooler'] = False
  out.mkdir(parents=True, exist_ok=True)
  metadata = {'format': 'pt', 'bert_jax': __version__}
  tensor_files.write_safetensors(out / tensor_files.SAFETENSORS, tensors, metadata)
  note = exported_tokenizers.write(out, tokenizer, family, model.max_position_embeddings)
  note = '\n\n'.join(filter(None, (note, NO_POOLER if lacks_pooler else '')))
  if head == 'Model':
    longest = min(config.data.seq_length, model.max_position_embeddings)
    if not vector.other:
      vector = vector._replace(pooling=vector.pooling or 'mean')
    sentence_transformers.write(out, vector, model.hidden_size, longest)
  write_whole(
    out / 'README.md', model_card.text(config, settings['architectures'][0], note, facts or {})
  )
  # Written last: a folder with a config.json is a whole model.
  write_whole(out / 'config.json', _json(settings))
  return written, left_out


def _check(config, params):
  """InputError if there is no such model in Hugging Face's library."""
  model = config.model
  for field, value in FIXED.items():
    if model[field] != value:
      raise InputError(
        f"model.{field} is {model[field]}, and Hugging Face's BERT is {value}, so this model "
        'cannot be written as one.'
      )
  if not TASKS[config.objective].heads:
    raise InputError(
      f'objective {config.objective} has a head that Hugging Face has not, so it cannot be '
      'written; start another objective from its encoder with config.init_from.'
    )
  if 'encoder' not in params:
    raise InputError('there is no encoder to write.')


def _head(config, parts):
  """How the name of the Hugging Face class of a model with these parts ends."""
  if 'nsp' in parts and 'pooler' not in parts:
    raise InputError('the next-sentence head stands on a pooler, and there is none to write.')
  for head in TASKS[config.objective].heads:
    if parts >= set(head.parts):
      return head.ending
  raise InputError(
    f'of a model for {config.objective} only {", ".join(sorted(parts))} is there; convert a whole '
    'one.'
  )


def _config(config, model, family, head, labels, tokenizer):
  """The content of config.json."""
  name = {'bert': 'Bert', 'distilbert': 'DistilBert'}[family]
  fields = {
    'hidden_act': ACTIVATIONS[model.hidden_act],
    **{name: config.model[name] for name in (*config_json.SIZES, *config_json.OTHERS)},
  }
  ours = {'version': __version__, 'objective': config.objective,
          'seq_length': config.data.seq_length}  # fmt: skip
  if head != 'Model':  # a bare encoder was not trained here
    ours |= {block: config[block].to_dict() for block in TASKS[config.objective].blocks}
  if family == 'distilbert':
    keys = {field: key for key, field in config_json.DISTIL.items()}
    fields = {keys.get(k, k): v for k, v in fields.items()}
    fields = {k: v for k, v in fields.items() if k not in ('type_vocab_size', 'layer_norm_eps')}
    fields |= {'sinusoidal_pos_embds': False}
  elif not model.type_vocab_size:
    fields['type_vocab_size'] = 2
    ours['model'] = {'type_vocab_size': 0}
  out = {'architectures': [name + head], 'model_type': family, **fields,
         'tie_word_embeddings': model.tie_word_embeddings, 'pad_token_id': tokenizer.pad_id,
         'dtype': 'float32'}  # fmt: skip
  if config.objective == 'classification':
    table = config.table
    out['problem_type'] = (
      'regression' if table.regression
      else 'multi_label_classification' if table.multi_label
      else 'single_label_classification'
    )  # fmt: skip
    labels = labels or ('LABEL_0',)
  if labels:
    out['id2label'] = {str(i): label for i, label in enumerate(labels)}
    out['label2id'] = {label: i for i, label in enumerate(labels)}
  return out | {'bert_jax': ours}


def _json(content):
  return json.dumps(content, indent=2, ensure_ascii=False) + '\n'
