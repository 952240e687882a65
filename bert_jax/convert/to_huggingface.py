"""A model of ours as a folder that Hugging Face's libraries load, no tensor missing or left over.

The fields of config.model say which family it is (config_families.py): an ALBERT shares its layers,
a ModernBERT has rotary positions, an FNet a Fourier transform, an ELECTRA narrow embeddings or the
head of its discriminator, and what is causal is a GPT-2. With a vocabulary as RoBERTa's they are a
RoBERTa, unless they tell the two texts of a pair apart. Other weights with token types are written
as a BERT. Without, they are a DistilBERT if they have no pooler, and else a BERT whose token types
are zeros. What no family can express is refused. What only we have stands in config.json under
`bert_jax`. Where a class of theirs has a pooler and the weights have none, it is one of zeros: it
would be drawn at random.
"""

import json
import logging

import jax
import numpy as np

from bert_jax import __version__, models
from bert_jax import config as config_lib
from bert_jax.convert import (
  checksums,
  config_json,
  exported_tokenizers,
  from_huggingface,
  model_card,
  sentence_transformers,
)
from bert_jax.convert.config_families import (
  FAMILIES,
  OTHERS,
  POSITION_OFFSET,
  SIZES,
  difference,
  keys_of,
)
from bert_jax.convert.parameter_names import copies, prefix_of, table
from bert_jax.convert.tensor_files import SAFETENSORS, write_safetensors
from bert_jax.errors import InputError
from bert_jax.files import write_whole
from bert_jax.tasks import TASKS

log = logging.getLogger('bert_jax')

NO_POOLER = (
  'The model has no pooler. {} has one, so its weights are here as zeros: its pooler_output means '
  'nothing, use last_hidden_state.'
)
ACTIVATIONS = {'gelu': 'gelu', 'gelu_tanh': 'gelu_pytorch_tanh', 'relu': 'relu', 'swish': 'silu'}


def write(out, trained, labels, facts):
  """Writes a trained.Trained as the folder `out` -> ({our path: name in the file}, {our path: why
  it is left out}). labels: of the classifier, in order. facts: of the run, for the model card."""
  config, tokenizer, params = trained.config, trained.tokenizer, jax.device_get(trained.params)
  model = models.ModelConfig(**config.model)
  flat = from_huggingface.flatten(params, model)
  parts = {path.partition('/')[0] for path in flat}
  family = _family(model, parts, tokenizer, flat.get(from_huggingface.TYPES))
  _check(config, params, family)
  head = _head(config, parts)
  why = f'a {head.ending} has none, it is for training alone'
  left_out = {path: why for path in flat if path.partition('/')[0] in head.beside}
  if 'pooler' in parts and 'pooler' not in head.parts and not _has_pooler(family, head):
    why = f'a {config.objective} model of theirs has no pooler'
    left_out |= {path: why for path in flat if path.startswith('pooler/')}
  kept = {path: np.asarray(x, np.float32) for path, x in flat.items() if path not in left_out}
  if family == 'bert' and not model.type_vocab_size:
    has_pooler = any(path.startswith('pooler/') for path in kept)
    family = 'bert' if has_pooler or model.layer_norm_eps != 1e-12 else 'distilbert'
  offset = POSITION_OFFSET.get(family, 0) + (family == 'roberta') * (tokenizer.pad_id + 1)
  tensors, names = _tensors(kept, family, head, model, offset)
  lacks_pooler = _has_pooler(family, head) and not any(x.startswith('pooler/') for x in kept)
  settings = _config(config, model, family, head, labels, tokenizer)
  if family == 'roberta':
    settings |= {
      'max_position_embeddings': model.max_position_embeddings + offset,
      'type_vocab_size': 1,
    }
  if lacks_pooler:
    settings['bert_jax']['pooler'] = False
  out.mkdir(parents=True, exist_ok=True)
  write_safetensors(out / SAFETENSORS, tensors, {'format': 'pt', 'bert_jax': __version__})
  # A text is cut where it was in training, so that the answers are the same.
  limit = config.task.max_length or config.data.seq_length if 'task' in config else 0
  longest = min(limit or model.max_position_embeddings, model.max_position_embeddings)
  tail = config_lib.flatten(config).get('table.long_texts') == 'tail'
  cuts = 'left' if tail else 'right'
  note = exported_tokenizers.write(out, tokenizer, family, longest, cuts)
  no_pooler = NO_POOLER.format(FAMILIES[family].name + head.ending) if lacks_pooler else ''
  notes = [text for text in (note, no_pooler) if text]
  for text in notes:
    log.warning('%s', text)
  if head.ending == 'Model':
    vector = trained.vector
    if not vector.other:
      vector = vector._replace(pooling=vector.pooling or 'mean')
    length = min(longest, config.data.seq_length)
    sentence_transformers.write(out, vector, model.hidden_size, length)
  facts = facts | {'casing': exported_tokenizers.casing(tokenizer), 'longest': longest}
  (architecture,) = settings['architectures']
  write_whole(out / 'README.md', model_card.write(config, architecture, head, notes, facts))
  # Written last: a folder with a config.json is a whole model.
  text = json.dumps(settings, indent=2, ensure_ascii=False) + '\n'
  checksums.write(out, {'config.json': text})
  write_whole(out / 'config.json', text)
  return {path: names[path] for path in kept}, left_out


def _family(model, parts, tokenizer, types):
  """The key of FAMILIES that weights with these parts are written as. types: the table of token
  types, or None."""
  if 'decoder' in parts:
    return 'bart'
  if model.causal:
    return 'gpt2'
  if model.mixer == 'fourier':
    return 'fnet'
  if model.position_embeddings == 'rotary':
    return 'modernbert'
  if model.share_layers:
    return 'albert'
  if model.embedding_size or 'replaced' in parts:
    return 'electra'
  tells_apart = 'nsp' in parts or (types is not None and (types != types[0]).any())
  return 'roberta' if tokenizer.between == 2 and not tells_apart else 'bert'


def _has_pooler(family, head):
  """Has their class a pooler, whatever its head reads?"""
  return head.ending.endswith(FAMILIES[family].pooler)


def _tensors(kept, family, head, model, offset):
  """({name in the file: array}, {our path: name in the file}) of {our path: array}. offset: rows of
  their table of positions before that of position 0."""
  is_classifier = 'classifier' in head.parts and (
    family == 'modernbert' or (family == 'roberta' and head.ending == 'ForSequenceClassification')
  )
  places = table(f'{family} classifier' if is_classifier else family, vars(model))
  if unknown := sorted(kept.keys() - places.keys()):
    raise InputError(
      f'{unknown[0]} has no place in a {family} model of Hugging Face ({len(unknown)} parameters '
      'have none); start an objective without it from this encoder with config.init_from.'
    )
  prefix = prefix_of(family) if head.ending == 'Model' else ''
  names = {path: place.name.removeprefix(prefix) for path, place in places.items()}
  parts, axes = {}, {names[path]: places[path].axis for path in kept}
  for path, x in kept.items():  # parts: {name: {number of a part: its numbers}}
    part, place = parts.setdefault(names[path], {}), places[path]
    part[place.part[0]] = x.T if place.turned else x[None] if place.is_row else x
  tensors = {
    name: np.concatenate([part[i] for i in sorted(part)], axes[name]) if len(part) > 1 else part[0]
    for name, part in parts.items()
  }
  for path in set(from_huggingface.ALL_POSITIONS) & kept.keys() if offset else ():
    tensors[names[path]] = np.pad(tensors[names[path]], ((offset, 0), (0, 0)))
  D, E = model.hidden_size, model.embedding_width
  if family == 'roberta' and model.type_vocab_size:  # two equal rows
    name = names[from_huggingface.TYPES]
    tensors[name] = tensors[name][:1]
  if from_huggingface.TYPES in names and not model.type_vocab_size:
    rows = 1 if family == 'roberta' else 2
    tensors[names[from_huggingface.TYPES]] = np.zeros((rows, E), np.float32)
  if _has_pooler(family, head) and 'pooler/dense/kernel' not in kept:
    tensors[names['pooler/dense/kernel']] = np.zeros((D, D), np.float32)
    tensors[names['pooler/dense/bias']] = np.zeros(D, np.float32)
  if 'mlm/decoder' in kept:  # an untied decoder has its bias, which some have twice
    for copy, original in copies(family, places).items():
      tensors[copy] = tensors[original]
  return tensors, names


def _check(config, params, family):
  """InputError if there is no such model in Hugging Face's library."""
  heads = TASKS[config.objective].heads
  if heads and config.model.causal and not any(head.causal for head in heads):
    raise InputError(
      f'Hugging Face has no class that computes the same as a causal model for {config.objective}, '
      'so it cannot be written; start a language model from its encoder with config.init_from.'
    )
  if config.model.position_embeddings == 'relative':
    raise InputError(
      "Hugging Face's library has no class with such relative positions, since it no longer ships "
      'Transformer-XL, so this model cannot be written; use it with bert_jax.predict.'
    )
  if different := difference(family, config.model):
    field, value = different
    name = FAMILIES[family].name
    differ = f"model.{field} is {config.model[field]}, and Hugging Face's {name} is {value}"
    raise InputError(f'{differ}, so this model cannot be written as one.')
  if family == 'electra' and 'mlm' in params and config.model.hidden_act != 'gelu':
    raise InputError(
      f"an ELECTRA's generator predicts with gelu, and model.hidden_act is "
      f'{config.model.hidden_act}, so this model cannot be written as one.'
    )
  if not heads:
    head = f'objective {config.objective} has a head that Hugging Face has not'
    how = 'start another objective from its encoder with config.init_from'
    raise InputError(f'{head}, so it cannot be written; {how}.')
  if 'encoder' not in params:
    raise InputError('there is no encoder to write.')


def _head(config, parts):
  """The Head of the Hugging Face model with these parts."""
  if 'nsp' in parts and 'pooler' not in parts:
    raise InputError('the next-sentence head stands on a pooler, and there is none to write.')
  for head in TASKS[config.objective].heads:
    if parts >= set(head.parts) and head.causal == config.model.causal:
      return head
  known = ', '.join(sorted(parts))
  raise InputError(f'of a model for {config.objective} only {known} is there; convert a whole one.')


def _without_places(block):
  """{field: value} of a block. Of a path, such as a lexicon's, the last part says what was read and
  the rest nothing."""
  block = block.to_dict()
  return {k: model_card.without_places(x) if isinstance(x, str) else x for k, x in block.items()}


def _config(config, model, family, head, labels, tokenizer):
  """The content of config.json."""
  usual = FAMILIES[family].defaults.get('hidden_act', 'gelu')
  is_usual = config_json.ACTIVATIONS[usual] == model.hidden_act
  fields = {'hidden_act': usual if is_usual else ACTIVATIONS[model.hidden_act]}
  fields |= {name: config.model[name] for name in (*SIZES, *OTHERS)}
  ours = {
    'version': __version__,
    'objective': config.objective,
    'seq_length': config.data.seq_length,
  }
  if head.ending != 'Model':  # a bare encoder was not trained here
    ours |= {block: _without_places(config[block]) for block in TASKS[config.objective].blocks}
    for block, _, field in (name.partition('.') for name in head.beside.values() if name):
      ours[block][field] = 0.0  # the head is left out, and its term with it
  fields |= keys_of(family, config.model)
  if family in ('distilbert', 'bart'):
    del fields['layer_norm_eps']
  if family == 'distilbert':
    fields['sinusoidal_pos_embds'] = False
  if family in ('distilbert', 'modernbert', 'gpt2', 'bart'):
    del fields['type_vocab_size']
  elif not model.type_vocab_size:
    fields['type_vocab_size'] = 2
    ours['model'] = {'type_vocab_size': 0}
  keys = {field: key for key, field in FAMILIES[family].keys.items()}
  fields = {keys.get(k, k): v for k, v in fields.items()}
  if family == 'modernbert':
    fields |= {'classifier_activation': fields['hidden_activation'], 'classifier_pooling': 'cls'}
  ids = {key: getattr(tokenizer, f'{role}_id') for key, role in FAMILIES[family].ids.items()}
  if family == 'bart':
    begin = config_lib.flatten(config).get(TASKS[config.objective].begin, 'cls')
    ids |= {
      'decoder_start_token_id': getattr(tokenizer, f'{begin}_id'),
      'forced_eos_token_id': None,
    }
  out = {
    'architectures': [FAMILIES[family].name + head.ending],
    'model_type': family,
    **fields,
    'tie_word_embeddings': model.tie_word_embeddings,
    'pad_token_id': tokenizer.pad_id,
    **ids,
    'dtype': 'float32',
  }
  if problem := TASKS[config.objective].problem(config):
    out['problem_type'] = problem
    labels = labels or ('LABEL_0',)
  if labels:
    out['id2label'] = {str(i): label for i, label in enumerate(labels)}
    out['label2id'] = {label: i for i, label in enumerate(labels)}
  return out | {'bert_jax': ours}
