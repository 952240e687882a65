"""Small models of every kind, as runs of ours would leave them, for the tests of conversions."""

import jax
import numpy as np

from bert_jax import config as c
from bert_jax import models, tokenizers
from bert_jax.convert import from_huggingface, parameter_names
from bert_jax.convert.families import FAMILIES
from bert_jax.objectives.encode import encode
from bert_jax.tasks import TASKS
from bert_jax.workdir import trained

WORDS = [
  '[PAD]',
  '[UNK]',
  '[CLS]',
  '[SEP]',
  '[MASK]',
  'the',
  'river',
  'crosses',
  'old',
  'stone',
  'near',
  'market',
  'a',
  'café',
  'cafe',
  '!',
  ',',
  '.',
  '1',
  '##2',
  '##s',
  '河',
  '流',
  'deja',
  '-',
  'vu',
]  # noqa: SIM905
SIZES = dict(
  vocab_size=len(WORDS),
  hidden_size=12,
  num_hidden_layers=2,
  num_attention_heads=2,
  intermediate_size=20,
  max_position_embeddings=24,
)
LABELS = ('B-PER', 'I-PER', 'O')
PLAIN = ['--config.loss.nsp_weight=0', '--config.corpus.rows=full']
# head: (config file, what else it says, parts left out)
HEADS = {
  'pretraining': ('pretrain.py', [], ()),
  'masked-lm': ('pretrain.py', PLAIN, ()),
  'untied masked-lm': ('pretrain.py', [*PLAIN, '--config.model.tie_word_embeddings=false'], ()),
  'next sentence': ('pretrain.py', [], ('mlm',)),
  'encoder and pooler': ('pretrain.py', [], ('mlm', 'nsp')),
  'classifier': ('finetune.py:task=table', ['--config.table.labels=no,yes,maybe'], ()),
  'multi-label': (
    'finetune.py:task=table',
    ['--config.table.labels=red,blue', '--config.table.multi_label=true'],
    (),
  ),
  'regression': ('finetune.py:task=table', ['--config.table.regression=true'], ()),
  'tagger': ('finetune.py:task=ner', [f'--config.tagging.labels={",".join(LABELS)}'], ()),
  'qa': ('finetune.py:task=squad', ['--config.qa.max_query_length=8'], ()),
  'choice': ('finetune.py:task=swag', ['--config.task.max_length=24'], ()),
}
TYPES = (2, 0)  # token types


def recorded_of(golden):
  """{case: {name: array}} of the FILE that a module golden/make_*.py wrote."""
  arrays = np.load(golden.FILE)
  parts = {case: [name for name in arrays if name.startswith(f'{case}/')] for case in golden.CASES}
  return {
    case: {name.partition('/')[2]: arrays[name] for name in names} for case, names in parts.items()
  }


def made(head, lower=True, **changes):
  """An Trained with random weights, biases and norms too, of one of HEADS."""
  file, more, without = HEADS[head]
  config = c.load(f'configs/{file}')
  config.model.update(SIZES | {'dtype': 'float32', 'hidden_act': 'gelu'} | changes)
  config.data.seq_length = 48 if head == 'choice' else 24
  config = c.override(config, more)
  tokenizer = tokenizers.WordPiece(WORDS, tokenizers.Splitting(lower))
  objective = TASKS[config.objective].objective(config, tokenizer)
  params = jax.eval_shape(objective.init, jax.random.key(0))
  rng = np.random.default_rng(0)
  params = jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), params)
  params = {part: tree for part, tree in params.items() if part not in without}
  model = models.ModelConfig(**config.model)
  flat = from_huggingface.flatten(params, model)  # rows that pad become zeros
  return trained.Trained(config, tokenizer, from_huggingface.tree(flat, model), 7)


def to_tensors(params, model):
  """{Hugging Face's name: array} of parameters of ours, as BERT's classes of theirs name them."""
  places = parameter_names.table(FAMILIES['bert'], vars(model))
  flat = from_huggingface.flatten(params, model)
  return {
    places[path].name: np.ascontiguousarray(x.T if places[path].turned else x)
    for path, x in flat.items()
  }


def to_params(tensors, model):
  """The inverse of to_tensors."""
  places = parameter_names.table(FAMILIES['bert'], vars(model))
  known = {place.name: (path, place.turned) for path, place in places.items()}
  flat = {known[name][0]: x.T if known[name][1] else x for name, x in tensors.items()}
  return from_huggingface.tree(flat, model)


def batch_of(config, rows=4):
  """Rows of different lengths with two texts each, padded."""
  rng = np.random.default_rng(1)
  T = 24
  lengths = np.array([T, 9, 15, 4])[:rows]
  real = np.arange(T) < lengths[:, None]
  types = (np.arange(T) >= lengths[:, None] // 2) & real
  return {
    'input_ids': np.where(real, rng.integers(5, len(WORDS), (rows, T)), 0).astype(np.int32),
    'token_type_ids': types.astype(np.int32) * (config.model.type_vocab_size > 1),
    'position_ids': np.broadcast_to(np.arange(T, dtype=np.int32), (rows, T)),
    'segment_ids': real.astype(np.int32),
    'cls_positions': np.zeros((rows, 1), np.int32),
    'masked_positions': np.broadcast_to(np.arange(T, dtype=np.int32), (rows, T)),
  }


def logits_of(found, batch):
  """{their name: array} of what our objective computes, of real tokens and words only."""
  config, params = found.config, found.params
  task = TASKS[config.objective]
  objective = task.objective(config, found.tokenizer)
  if task.reads_corpus and 'mlm' not in params:
    model = models.ModelConfig(**config.model)
    hidden = encode(model, params['encoder'], batch)
    pooled = models.Pooler(model).apply({'params': params['pooler']}, hidden[:, :1])
    if 'nsp' in params:
      nsp = models.Classifier(model, 2).apply({'params': params['nsp']}, pooled)
      return {'logits': np.asarray(nsp[:, 0])}
    return {'pooler_output': np.asarray(pooled[:, 0])}
  out = objective.logits(params, batch)
  if task.reads_corpus:
    mlm, nsp = out
    mlm = np.asarray(mlm)[..., : config.model.vocab_size]
    if nsp is None:
      return {'logits': mlm}
    return {'prediction_logits': mlm, 'seq_relationship_logits': np.asarray(nsp[:, 0])}
  out = np.asarray(out)
  if config.objective == 'qa':
    return {'start_logits': out[..., 0], 'end_logits': out[..., 1]}
  if config.objective == 'choice':
    return {'logits': out[:, 0]}
  return {'logits': out[:, 0] if out.ndim == 3 and out.shape[1] == 1 else out}
