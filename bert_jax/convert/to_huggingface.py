"""A model of ours as a folder that Hugging Face's libraries load, no tensor missing or left over.

Weights with token types are written as a BERT. Without, they are a DistilBERT if they have no
pooler, and else a BERT whose token types are zeros. What neither can express is refused. What only
we have stands in config.json under `bert_jax`. A bare encoder without a pooler gets one of zeros,
since BertModel has one and would draw it at random.
"""

import json
import logging

import jax
import numpy as np

from bert_jax import __version__, models
from bert_jax import config as config_lib
from bert_jax.convert import checksums, exported_tokenizers, from_huggingface, sentence_transformers
from bert_jax.convert.config_json import DISTIL, OTHERS, SIZES
from bert_jax.convert.parameter_names import table
from bert_jax.convert.tensor_files import SAFETENSORS, write_safetensors
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


def write(out, trained, labels, facts):
  """Writes a trained.Trained as the folder `out` -> ({our path: name in the file}, {our path: why
  it is left out}). labels: of the classifier, in order. facts: of the run, for the model card."""
  config, tokenizer, params = trained.config, trained.tokenizer, jax.device_get(trained.params)
  model = models.ModelConfig(**config.model)
  _check(config, params)
  flat = from_huggingface.flatten(params, model)
  why = f'a {config.objective} model of theirs has no pooler'
  has_none = 'mlm' in params and 'nsp' not in params
  left_out = {path: why for path in flat if has_none and path.startswith('pooler/')}
  kept = {path: np.asarray(x, np.float32) for path, x in flat.items() if path not in left_out}
  parts = {path.partition('/')[0] for path in kept}
  family = 'bert'
  if not model.type_vocab_size and 'pooler' not in parts and model.layer_norm_eps == 1e-12:
    family = 'distilbert'
  head = _head(config, parts)
  is_bare = head.ending == 'Model'
  places = table(family, model.num_hidden_layers, model.tie_word_embeddings)
  if unknown := sorted(kept.keys() - places.keys()):
    raise InputError(
      f'{unknown[0]} has no place in a {family} model of Hugging Face ({len(unknown)} parameters '
      'have none); start an objective without it from this encoder with config.init_from.'
    )
  prefix = f'{family}.' if is_bare else ''
  names = {path: place.name.removeprefix(prefix) for path, place in places.items()}
  tensors = {names[path]: x.T if places[path].turned else x for path, x in kept.items()}
  D = model.hidden_size
  if family == 'bert' and not model.type_vocab_size:
    tensors[names[from_huggingface.TYPES]] = np.zeros((2, D), np.float32)
  lacks_pooler = family == 'bert' and is_bare and 'pooler' not in parts
  if lacks_pooler:
    tensors[names['pooler/dense/kernel']] = np.zeros((D, D), np.float32)
    tensors[names['pooler/dense/bias']] = np.zeros(D, np.float32)
  if family == 'bert' and 'mlm/decoder' in kept:  # an untied BERT has this bias twice
    tensors['cls.predictions.decoder.bias'] = tensors['cls.predictions.bias']
  settings = _config(config, model, family, head, labels, tokenizer)
  if lacks_pooler:
    settings['bert_jax']['pooler'] = False
  out.mkdir(parents=True, exist_ok=True)
  write_safetensors(out / SAFETENSORS, tensors, {'format': 'pt', 'bert_jax': __version__})
  note = exported_tokenizers.write(out, tokenizer, family, model.max_position_embeddings)
  notes = [text for text in (note, NO_POOLER if lacks_pooler else '') if text]
  for text in notes:
    log.warning('%s', text)
  if is_bare:
    longest, vector = min(config.data.seq_length, model.max_position_embeddings), trained.vector
    if not vector.other:
      vector = vector._replace(pooling=vector.pooling or 'mean')
    sentence_transformers.write(out, vector, D, longest)
  write_whole(out / 'README.md', _card(config, settings['architectures'][0], head, notes, facts))
  # Written last: a folder with a config.json is a whole model.
  text = json.dumps(settings, indent=2, ensure_ascii=False) + '\n'
  checksums.write(out, {'config.json': text})
  write_whole(out / 'config.json', text)
  return {path: names[path] for path in kept}, left_out


def _check(config, params):
  """InputError if there is no such model in Hugging Face's library."""
  model = config.model
  for field, value in FIXED.items():
    if model[field] != value:
      differ = f"model.{field} is {model[field]}, and Hugging Face's BERT is {value}"
      raise InputError(f'{differ}, so this model cannot be written as one.')
  if not TASKS[config.objective].heads:
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
    if parts >= set(head.parts):
      return head
  known = ', '.join(sorted(parts))
  raise InputError(f'of a model for {config.objective} only {known} is there; convert a whole one.')


def _config(config, model, family, head, labels, tokenizer):
  """The content of config.json."""
  fields = {'hidden_act': ACTIVATIONS[model.hidden_act]}
  fields |= {name: config.model[name] for name in (*SIZES, *OTHERS)}
  ours = {'version': __version__, 'objective': config.objective,
          'seq_length': config.data.seq_length}  # fmt: skip
  if head.ending != 'Model':  # a bare encoder was not trained here
    ours |= {block: config[block].to_dict() for block in TASKS[config.objective].blocks}
  if family == 'distilbert':
    keys = {field: key for key, field in DISTIL.items()}
    del fields['type_vocab_size'], fields['layer_norm_eps']
    fields = {keys.get(k, k): v for k, v in fields.items()} | {'sinusoidal_pos_embds': False}
  elif not model.type_vocab_size:
    fields['type_vocab_size'] = 2
    ours['model'] = {'type_vocab_size': 0}
  name = {'bert': 'Bert', 'distilbert': 'DistilBert'}[family]
  out = {'architectures': [name + head.ending], 'model_type': family, **fields,
         'tie_word_embeddings': model.tie_word_embeddings, 'pad_token_id': tokenizer.pad_id,
         'dtype': 'float32'}  # fmt: skip
  if problem := TASKS[config.objective].problem(config):
    out['problem_type'] = problem
    labels = labels or ('LABEL_0',)
  if labels:
    out['id2label'] = {str(i): label for i, label in enumerate(labels)}
    out['label2id'] = {label: i for i, label in enumerate(labels)}
  return out | {'bert_jax': ours}


def _card(config, architecture, head, notes, facts):
  """The text of the model card (README.md). notes: paragraphs that a reader must see. facts: the
  known ones of name, source, step, metrics, data, commands and versions."""
  lines = ['---', 'library_name: transformers', 'tags:', '- bert_jax']
  lines += [f'pipeline_tag: {head.pipeline}', '---'] if head.pipeline else ['---']
  model = config.model
  parts = [
    '\n'.join(lines),
    '# ' + (facts.get('name') or architecture),
    f'A `{architecture}` made with bert_jax: {model.num_hidden_layers} layers, {model.hidden_size} '
    f'wide, a vocabulary of {model.vocab_size:,} pieces, at most {model.max_position_embeddings} '
    f'tokens. Objective: `{config.objective}`.',
    *notes,
  ]
  if source := facts.get('source'):
    parts.append(f'Its weights were converted from `{source}`.')
  if metrics := facts.get('metrics'):
    rows = [f'| {name} | {value:.6g} |' for name, value in metrics.items()]
    title = f'## Metrics\n\nOn held-out data, at step {facts["step"]}:\n\n| metric | value |\n'
    parts.append(title + '|---|---|\n' + '\n'.join(rows))
  if config.data.train or facts.get('data'):
    lines = [f'- {split}: `{config.data[split] or "embedded or held out"}`'
             + (f', {known["rows"]:,} rows, fingerprint `{known["fingerprint"]}`' if known else '')
             for split, known in ((s, (facts.get('data') or {}).get(s)) for s in ('train', 'eval'))
             if known or config.data[split]]  # fmt: skip
    parts.append('## Data\n\n' + '\n'.join(lines))
  # Of converted weights nobody here knows how they were trained.
  title, known = ('Model', config.model) if source else ('Config', config)
  commands = [f'{c["time"]}  {" ".join(c["argv"])}' for c in facts.get('commands', ())]
  versions = json.dumps(facts['versions'], indent=2) if facts.get('versions') else ''
  blocks = {'Commands': '\n'.join(commands), 'Versions': versions}
  blocks[title] = config_lib.to_json(known).rstrip()
  parts += [f'## {title}\n\n```\n{text}\n```' for title, text in blocks.items() if text]
  return '\n\n'.join(parts) + '\n'
