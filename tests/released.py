"""Small models of every kind, as runs of ours would leave them or as others release them, for the
tests of conversions."""

import functools
import json
import string

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
import tokenizers as library
from golden import make_released_golden as hf

from bert_jax import config as c
from bert_jax import models, optim, sharding, step, tokenizers
from bert_jax.convert import from_huggingface, fused_tensors, parameter_names
from bert_jax.convert.families import FAMILIES
from bert_jax.objectives import electra, mlm_nsp
from bert_jax.objectives.encode import encode
from bert_jax.run import initialization, warm_start
from bert_jax.tasks import TASKS
from bert_jax.tokenizers.wordpiece import special_token
from bert_jax.tools import convert
from bert_jax.workdir import trained

WORDS = """[PAD] [UNK] [CLS] [SEP] [MASK] the river crosses old stone near market a café cafe ! , .
  1 ##2 ##s 河 流 deja - vu""".split()  # noqa: SIM905
SIZES = dict(vocab_size=len(WORDS), hidden_size=12, num_hidden_layers=2, num_attention_heads=2)
SIZES |= dict(intermediate_size=20, max_position_embeddings=24)
LABELS = ('B-PER', 'I-PER', 'O')
PLAIN = ['--config.loss.nsp_weight=0', '--config.corpus.rows=full']
UNTIED = [*PLAIN, '--config.model.tie_word_embeddings=false']
SEVERAL = ['--config.table.labels=red,blue', '--config.table.multi_label=true']
TABLE = 'finetune.py:task=table'
# head: (config file, what else it says, parts left out)
HEADS = {
  'pretraining': ('pretrain.py', [], ()),
  'masked-lm': ('pretrain.py', PLAIN, ()),
  'untied masked-lm': ('pretrain.py', UNTIED, ()),
  'next sentence': ('pretrain.py', [], ('mlm',)),
  'encoder and pooler': ('pretrain.py', [], ('mlm', 'nsp')),
  'classifier': (TABLE, ['--config.table.labels=no,yes,maybe'], ()),
  'multi-label': (TABLE, SEVERAL, ()),
  'regression': (TABLE, ['--config.table.regression=true'], ()),
  'tagger': ('finetune.py:task=ner', [f'--config.tagging.labels={",".join(LABELS)}'], ()),
  'qa': ('finetune.py:task=squad', ['--config.qa.max_query_length=8'], ()),
  'choice': ('finetune.py:task=swag', ['--config.task.max_length=24'], ()),
}
TYPES = (2, 0)  # token types
LETTERS = string.ascii_lowercase
# {family: (its pieces, its merges)}.
VOCABULARIES = {
  'gpt2': ([*LETTERS[:23], 'Ġ', 'Ġt', '<|endoftext|>'], ['Ġ t']),
  'openai-gpt': (['<unk>', *LETTERS[:12], *(f'{x}</w>' for x in LETTERS[:12]), 'ab'], ['a b']),
  'bart': (['<s>', '<pad>', '</s>', '<unk>', *LETTERS[:20], 'Ġ', '<mask>'], []),
}


# ---- models of ours ------------------------------------------------------------------------------


def random_like(shapes):
  """Parameters of these shapes, biases and norms drawn, too."""
  rng = np.random.default_rng(0)
  return jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)


def made(head, lower=True, **changes):
  """A Trained with random weights of one of HEADS."""
  found = _made(head, lower, **changes)
  config, params = found.config.copy_and_resolve_references(), jax.tree.map(np.copy, found.params)
  return found._replace(config=config, params=params)


@functools.cache
def _made(head, lower, **changes):
  file, more, without = HEADS[head]
  config = c.load(f'configs/{file}')
  config.model.update(SIZES | {'dtype': 'float32', 'hidden_act': 'gelu'} | changes)
  config.data.seq_length = 48 if head == 'choice' else 24
  config = c.override(config, more)
  tokenizer = tokenizers.wordpiece_tokenizer(WORDS, tokenizers.Splitting(lower))
  objective = TASKS[config.objective].objective(config, tokenizer)
  params = random_like(jax.eval_shape(objective.init, jax.random.key(0)))
  params = {part: tree for part, tree in params.items() if part not in without}
  model = models.ModelConfig(**config.model)
  flat = from_huggingface.flatten(params, model)  # rows that pad become zeros
  return trained.Trained(config, tokenizer, from_huggingface.tree(flat, model), 7)


def exported(folder, head='pretraining', **changes):
  """(Trained, its Hugging Face folder)."""
  found = made(head, **{'type_vocab_size': 2} | changes)
  convert.export_run(folder, found, {})
  return found, folder


def config_of(folder):
  """What the config.json of a folder says."""
  return json.loads((folder / 'config.json').read_text())


def tensors_of(folder):
  return safetensors.numpy.load_file(folder / 'model.safetensors')


def rewrite(folder, change=dict, **settings):
  """Applies a function to the tensors of a folder, and settings to its config.json, as others
  release models: without what is ours."""
  tensors = {k: np.ascontiguousarray(x) for k, x in change(tensors_of(folder)).items()}
  safetensors.numpy.save_file(tensors, folder / 'model.safetensors')
  theirs = {name: x for name, x in config_of(folder).items() if name != 'bert_jax'}
  (folder / 'config.json').write_text(json.dumps(theirs | settings))
  return folder


def to_tensors(params, model, family='bert'):
  """{Hugging Face's name: array} of parameters of ours, as classes of a family of theirs name
  them."""
  places = parameter_names.table(FAMILIES[family], vars(model))
  tensors = fused_tensors.joined(from_huggingface.flatten(params, model), places)
  return {name: np.ascontiguousarray(x) for name, x in tensors.items()}


def to_params(tensors, model):
  """The inverse of to_tensors, of a BERT."""
  places = parameter_names.table(FAMILIES['bert'], vars(model))
  known = {place.name: (path, place.turned) for path, place in places.items()}
  flat = {known[name][0]: x.T if known[name][1] else x for name, x in tensors.items()}
  return from_huggingface.tree(flat, model)


def same(a, b, config):
  """Are two trees of parameters the same bits?"""
  model = models.ModelConfig(**config.model)
  a, b = (from_huggingface.flatten(jax.device_get(tree), model) for tree in (a, b))
  assert a.keys() == b.keys()
  for path, x in a.items():
    assert x.tobytes() == b[path].tobytes(), path


# ---- models of others ----------------------------------------------------------------------------


recorded_of = functools.cache(lambda golden: golden.recorded())


def unigram(path, first, last='<mask>', **settings):
  """The tokenizer.json of a SentencePiece vocabulary of 26 pieces, such as fairseq's."""
  pieces = [*first, '▁', 't', '▁t', *LETTERS]
  vocabulary = [[piece, -float(i % 7)] for i, piece in enumerate(pieces[: len(WORDS) - 1])]
  special = [i for i, (piece, _) in enumerate(vocabulary) if '<' in piece] + [len(vocabulary)]
  vocabulary.append([last, 0.0])
  added = [special_token(i, vocabulary[i][0]) for i in special]
  space = {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'always', 'split': True}
  words = {'type': 'Sequence', 'pretokenizers': [{'type': 'WhitespaceSplit'}, space]}
  model = {
    'type': 'Unigram',
    'unk_id': first.index('<unk>'),
    'vocab': vocabulary,
    'byte_fallback': False,
  }
  content = {'version': '1.0', 'added_tokens': added, 'normalizer': None, 'decoder': space}
  content |= {'pre_tokenizer': words, 'post_processor': None, 'model': model}
  (path / 'tokenizer.json').write_text(json.dumps(content | settings))


FAIRSEQ = {  # {family: the first pieces of its vocabulary}
  'xlm-roberta': ['<s>', '<pad>', '</s>', '<unk>'],
  'camembert': ['<s>NOTUSED', '<pad>', '</s>NOTUSED', '<unk>', '<unk>NOTUSED', '<s>', '</s>'],
}


def folder_of(path, recorded, case, **settings):
  """A folder as transformers saves a model of a recorded case, with a vocabulary beside it."""
  content = json.loads(str(recorded[case]['config'])) | settings
  hf.write_folder(path, case, json.dumps(content), json.loads(str(recorded[case]['shapes'])))
  if (family := case.partition(' ')[0]) in FAIRSEQ:
    unigram(path, FAIRSEQ[family])
    return path
  if family == 'roformer':  # not its own class, which splits words by a program
    (path / 'tokenizer_config.json').write_text('{"tokenizer_class": "BertTokenizer"}')
  if case not in hf.WRITERS:
    words = WORDS
    if family == 'mpnet':  # a BERT's reserved pieces are there, too
      words = ['<s>', '<pad>', '</s>', *WORDS[:22], '<mask>']
    (path / 'vocab.txt').write_text('\n'.join(words) + '\n')
    return path
  pieces, merges = VOCABULARIES[family]
  if family == 'openai-gpt':
    ids = {piece: i for i, piece in enumerate(pieces)}
    model = library.models.BPE(ids, [tuple(x.split()) for x in merges])
    model.unk_token, model.end_of_word_suffix = '<unk>', '</w>'
    theirs = library.Tokenizer(model)
    theirs.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    theirs.save(str(path / 'tokenizer.json'))
    return path
  (path / 'vocab.json').write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
  (path / 'merges.txt').write_text('\n'.join(['#version: 0.2', *merges]) + '\n')
  return path


def started_from(config, workdir):
  """(config, parameters) of config.init_from, as a run takes them over."""
  beginning = initialization.start_of(config, workdir)
  config = initialization.adopt_model(config, beginning)
  tokenizer = tokenizers.load_folder(config.init_from)
  objective = TASKS[config.objective].objective(config, tokenizer)
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  return config, warm_start.load_weights(beginning, config, objective, mesh)[0]


# ---- what they compute ---------------------------------------------------------------------------


def batch_of(batch, **more):
  """A batch of ours of one of theirs: {input_ids, attention_mask and, if any, token_type_ids}."""
  ids, real = (batch[name].astype(np.int32) for name in ('input_ids', 'attention_mask'))
  rows, T = ids.shape
  places = np.broadcast_to(np.arange(T, dtype=np.int32), (rows, T))
  types = batch.get('token_type_ids', 0 * ids).astype(np.int32)
  out = {'input_ids': ids, 'token_type_ids': types, 'position_ids': places, 'segment_ids': real}
  return out | {'cls_positions': np.zeros((rows, 1), np.int32), 'masked_positions': places} | more


def logits_of(found, batch):
  """{their name: array} of what a Trained computes of a batch, of words that are some. It is not
  compiled: most models here have the same operations, and few of them."""
  model = models.ModelConfig(**found.config.model)
  out = jax.device_get(forward(found)(found.params, batch))
  if found.config.objective == 'qa':
    return {'start_logits': out['logits'][..., 0], 'end_logits': out['logits'][..., 1]}
  is_of_words = lambda x: x.shape[-1] == model.padded_vocab_size
  return {k: x[..., : model.vocab_size] if is_of_words(x) else x for k, x in out.items()}


def forward(found):
  """What computes {name: logits} of parameters as those of a Trained, and of a batch."""
  task, model = TASKS[found.config.objective], models.ModelConfig(**found.config.model)
  objective = task.objective(found.config, found.tokenizer)

  def run(params, batch):
    if 'decoder' in params:  # the targets are the sources in another order, and see all of them
      ids = batch['input_ids']
      target = {'target_ids': ids[:, ::-1], 'target_position_ids': batch['position_ids']}
      target['target_segment_ids'] = 0 * ids + 1
      return {'logits': objective.logits(params, batch | target)}
    hidden = encode(model, params['encoder'], batch)
    if 'replaced' in params:
      head = electra.ReplacedHead(model)
      return {'logits': head.apply({'params': params['replaced']}, hidden, batch['position_ids'])}
    if model.causal and 'classifier' not in params:
      return {'logits': models.word_logits(model, params, hidden)}
    if task.reads_corpus and 'mlm' not in params:
      out = {'last_hidden_state': hidden}
      if 'pooler' not in params:
        return out
      pooled = models.Pooler(model).apply({'params': params['pooler']}, hidden[:, :1])
      if 'nsp' not in params:
        return out | {'pooler_output': pooled[:, 0]}
      return {'logits': models.Classifier(model, 2).apply({'params': params['nsp']}, pooled)[:, 0]}
    out = objective.logits(params, batch)
    if task.reads_corpus:
      mlm, nsp = out
      if nsp is None:
        return {'logits': mlm}
      return {'prediction_logits': mlm, 'seq_relationship_logits': nsp[:, 0]}
    of_rows = found.config.objective == 'choice' or (out.ndim == 3 and out.shape[1] == 1)
    return {'logits': out[:, 0] if of_rows else out}

  return run


class Masked(mlm_nsp.MlmNsp):
  """MLM and NSP on batches that come masked."""

  def prepare(self, batch, rng, moment):
    return batch


def masked(batch):
  """A batch of theirs, with labels of -100 where nothing is masked, as Masked reads it."""
  labels = batch['labels'].astype(np.int32)
  weights = (labels >= 0).astype(np.float32)
  return batch_of(batch, masked_labels=np.maximum(labels, 0), masked_weights=weights)


def masked_objective(found):
  """What a Trained goes on with, without dropout."""
  no_dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  model = models.ModelConfig(**dict(found.config.model) | no_dropout)
  return Masked(model, model.max_position_embeddings, 0.0, {'policies': ('token',)})


def adamw_losses(objective, params, batches, rate, weight_decay):
  """The losses of a step of AdamW on each batch, at a constant rate."""
  settings = c.defaults('mlm_nsp').optimizer
  settings.update(name='adamw', learning_rate=rate, schedule='constant', warmup=0.0, eps=1e-8)
  settings.update(weight_decay=weight_decay, clip_norm=0.0, beta2=0.999)
  params = jax.tree.map(jnp.asarray, params)
  optimizer = optim.make_optimizer(settings, len(batches), params)
  train_step = jax.jit(step.make_train_step(objective, lambda _: optimizer))
  constants = step.Constants(jax.random.key(0), jax.random.key(1), {}, {})
  state, losses = step.State(jnp.zeros((), jnp.int32), params, optimizer.init(params), {}), []
  for batch in batches:
    state, metrics = train_step(state, batch, constants)
    losses.append(float(metrics['loss']))
  return losses


NAMES = {'sop_logits': 'seq_relationship_logits'}  # ALBERT's, as BERT's


def compare(theirs, found, batch, atol=1e-4):
  """Logits of theirs and ours, at tokens that are no padding: {name: array} of all that they have,
  and a Trained."""
  real = batch['segment_ids'] > 0
  if 'decoder' in found.params:  # whose targets are whole rows
    real = real | True
  ours = logits_of(found, batch)
  theirs = {NAMES.get(name, name): x for name, x in theirs.items()}
  assert ours.keys() == {name for name in theirs if 'logits' in name or name in ours}
  for name, x in ours.items():
    other = theirs[name].reshape(x.shape)
    if x.shape[:2] == real.shape:
      x, other = x[real], other[real]
    np.testing.assert_allclose(x, other, rtol=0, atol=atol)
    assert np.std(other) > 10 * atol
    print(f'{name}: at most {np.abs(x - other).max():.1e} apart')
