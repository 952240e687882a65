"""Where a run begins: its own checkpoint, another run's, weights from elsewhere, or scratch."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bert_jax import checkpoint, manifest, models, sharding, tokenizers, workdirs
from bert_jax import config as config_lib
from bert_jax.convert import from_huggingface, hub, released_config, sentence_transformers
from bert_jax.errors import InputError
from bert_jax.tasks import TASKS

log = logging.getLogger('bert_jax')


class Origin(NamedTuple):
  """A trained model: params holds the parts (encoder, pooler, mlm, classifier...) it has.

  vector: what sentence-transformers makes of its hidden states.
  """

  config: Any
  tokenizer: tokenizers.Tokenizer
  params: dict
  step: int
  vector: sentence_transformers.Vector = sentence_transformers.SILENT


def load(source, which='latest', positions=0):
  """The Origin of a source: a workdir of ours, a Hugging Face folder (or the path of one inside an
  installed package, or a name on the Hub), or a folder of a TensorFlow checkpoint.

  which: 'latest', 'best' or a step, of a run. positions: rows the position table of a released
  model is to have; 0: as it is. The config of a released model is made from `configs/`.
  """
  folder = hub.folder(source)
  if from_huggingface.is_model(folder):
    refuse_which(source, which)
    return from_weights(folder, from_huggingface.read(folder, positions))
  if positions:
    raise InputError(f'{source} is a run, whose positions stay as they are; leave out positions.')
  return load_run(folder, which)


def refuse_which(source, which):
  """InputError if a checkpoint is asked for of a released model."""
  if which != 'latest':
    raise InputError(f'{source} is a released model and has no checkpoint {which}; leave it out.')


def from_weights(folder, weights):
  """The Origin of huggingface.Weights and the vocabulary that lies in their folder."""
  tokenizer = tokenizers.load_folder(folder)
  config = released_config.config_of(weights, tokenizer, sentence_transformers.longest(folder))
  if tokenizer.vocab_size > config.model.vocab_size:
    raise InputError(
      f'the vocabulary in {folder} has {tokenizer.vocab_size} pieces and the weights have '
      f'{config.model.vocab_size} rows for them; it is not theirs.'
    )
  if tokenizer.vocab_size < config.model.vocab_size / 2:
    raise InputError(
      f'the vocabulary in {folder} has {tokenizer.vocab_size} pieces only and the weights have '
      f'{config.model.vocab_size} rows for them; it is cut off, or not theirs.'
    )
  params = weights.tree(models.ModelConfig(**config.model))
  return Origin(config, tokenizer, jax.device_put(params), 0, sentence_transformers.read(folder))


def load_run(workdir, which='latest'):
  """The Origin of a run's checkpoint, on the first device of this process."""
  config = workdirs.read_config(workdir)
  tokenizer = tokenizers.load_folder(workdir)
  mesh = sharding.make_mesh(1, 1, 1, jax.local_devices()[:1])
  shapes = shapes_of(config, tokenizer, mesh)
  params, step = checkpoint.load_params(workdir, shapes, which, partial=True)
  return Origin(
    config, tokenizer, params, step, sentence_transformers.read(Path(workdir).expanduser())
  )


def shapes_of(config, tokenizer, mesh):
  """The parameters of a config's objective as ShapeDtypeStructs, placed on a mesh."""
  objective = TASKS[config.objective].objective(config, tokenizer)
  return sharding.placed(jax.eval_shape(objective.init, jax.random.key(0)), mesh)


def continued(workdir, resume_from):
  """(folder, meta) of the newest checkpoint of what this run continues, itself or the run of
  config.resume_from; (None, None) if it begins anew."""
  for folder in (workdir, resume_from):
    if folder and (meta := checkpoint.newest_meta(folder)):
      if meta.get('converted'):
        raise InputError(
          f'{folder} holds converted weights and no training to go on with; train in another '
          f'--workdir with --config.init_from={folder}.'
        )
      return folder, meta
  if resume_from:
    raise InputError(f'config.resume_from={resume_from} holds no checkpoint; train it first.')
  return None, None


def adopt_model(config, workdir):
  """With init_from, the sizes of the model are those of the weights; its dropout, attention
  implementation, dtype, scan and remat stay as this config says."""
  if not config.init_from:
    return config
  own = ('hidden_dropout_prob', 'attention_probs_dropout_prob', 'attention_implementation', 'dtype',
         'scan_layers', 'remat')  # fmt: skip
  # A run that has begun has them already, and needs init_from no more.
  begun = (workdir / workdirs.CONFIG).is_file()
  folder = workdir if begun else hub.folder(config.init_from)
  if from_huggingface.is_model(folder):
    source = from_huggingface.read_model(folder)
  else:
    source = workdirs.read_config(folder).model
  config = config.copy_and_resolve_references()
  changed = [f'{k} {config.model[k]} -> {v}' for k, v in source.items()
             if k not in own and config.model[k] != v]  # fmt: skip
  config.model.update({k: v for k, v in source.items() if k not in own})
  if changed:
    log.info('model sizes come from init_from: %s', ', '.join(changed))
  return config_lib.check(config)


def weights_of(config, mesh):
  """The parameters of config.init_from, a run or a released model, as its own objective names them;
  without a classifier that tells other labels apart."""
  folder = hub.folder(config.init_from)
  if from_huggingface.is_model(folder):
    weights = from_huggingface.read(folder)
    params = weights.tree(models.ModelConfig(**config.model))
    try:
      theirs = released_config.config_of(weights)
    except InputError as error:  # a head that ours has not, or labels
      log.warning('the head of %s is not taken: %s', folder, error)
      return {part: x for part, x in params.items() if part != 'classifier'}
  else:
    theirs = workdirs.read_config(folder)
    shapes = shapes_of(theirs, tokenizers.load_folder(folder), mesh)
    params, _ = checkpoint.load_params(folder, shapes, partial=True)
  if labels(theirs) != labels(config):
    params['classifier for other labels'] = params.pop('classifier', {})
  return params


def labels(config):
  """What a config's classifier tells apart."""
  block = {'classification': 'table', 'tagging': 'tagging'}.get(config.objective)
  return config.objective, *(config[block].labels if block else ())


def warm_start(params, source):
  """params with every array that `source` has too taken from it; what is new or unused is logged.

  Both are nested dicts of arrays; layers may be stacked in the one and not in the other. The whole
  encoder must be there with the same shapes; a head of another shape (other labels) stays new.
  """
  convert = models.stack_layers if 'layers' in params['encoder'] else models.unstack_layers
  source = dict(source, encoder=convert(source['encoder']))
  ours, theirs = manifest.flat(params), manifest.flat(source)
  taken = {n for n in ours.keys() & theirs.keys() if ours[n].shape == theirs[n].shape}
  for name in ours.keys() - taken:
    if name.startswith('encoder.'):
      there = theirs[name].shape if name in theirs else 'nothing'
      raise InputError(
        f'config.init_from has {there} for {name.replace(".", "/")}, which is {ours[name].shape} '
        'here; give both runs the same model.'
      )
  log.info(
    'init_from: taken: %s; new: %s; not used: %s',
    *(
      ', '.join(sorted({name.partition('.')[0] for name in names})) or 'none'
      for names in (taken, ours.keys() - taken, theirs.keys() - taken)
    ),
  )
  moved = {n: jax.device_put(theirs[n], x.sharding) if n in taken else x for n, x in ours.items()}
  return manifest.unflat(moved, params)
