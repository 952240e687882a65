"""A model as a program that runs without this package: StableHLO, weights and tokenizer.

    python -m bert_jax.predict --model W --task embed --export DIR

writes model.stablehlo (jax.export; any number of rows, any length up to the model's; for CPUs, TPUs
and CUDA), weights.safetensors, the vocabulary, tokenizer.json (not of a SentencePiece model) and
export.json, which names the outputs and labels. The program is a function of ({name: weight},
input_ids, token_type_ids, attention_mask), int32 [B, T], and gives {name: array}; README.md calls
one.
"""

import json
import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jax import export as jax_export

from bert_jax import __version__, models
from bert_jax.convert import exported_tokenizers
from bert_jax.errors import InputError
from bert_jax.manifest import flat, unflat
from bert_jax.objectives import base
from bert_jax.tasks.pretraining.ask import PAIRS
from bert_jax.tokenizers import SentencePiece
from bert_jax.whole_files import write_whole

log = logging.getLogger('bert_jax')

PLATFORMS = 'cpu', 'tpu', 'cuda'
# task: {output: its shape}. The softmax or sigmoid is left to the reader but for embed.
OUTPUTS = {
  'embed': {'embedding': '[B, D], of length 1', 'hidden': '[B, T, D]'},
  'fill-mask': {'logits': '[B, T, V]'},
  'next-sentence': {'logits': '[B, 2]'},
  'classify': {'logits': '[B, labels]'},
  'pair': {'logits': '[B, labels]'},
  'tag': {'logits': '[B, T, labels]'},
  'answer': {'start_logits': '[B, T]', 'end_logits': '[B, T]'},
  'choose': {'logits': '[B], of each choice'},
}
SENTENCEPIECE = (
  'the vocabulary is a SentencePiece model and no tokenizer.json is written: encode with the '
  'sentencepiece library and spm.model, and put [CLS] before and [SEP] after each text.'
)


def write(model, task, folder):
  """Writes the folder. InputError for a task that cannot be exported."""
  if task not in OUTPUTS:
    raise InputError(f'task {task!r} cannot be exported; use one of {", ".join(OUTPUTS)}.')
  model.ask(task)  # can it do this?
  folder = Path(folder).expanduser()
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise InputError(f'--export {folder} is not empty; give a new folder.')
  params = model.params
  weights = {name: np.asarray(x) for name, x in flat(params).items()}
  shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in weights.items()}
  rows = jax.ShapeDtypeStruct(
    jax_export.symbolic_shape('b, t', constraints=[f't <= {model.limit}']), jnp.int32
  )
  function = jax.jit(lambda weights, *rows: forward(model, task, unflat(weights, params), *rows))
  exported = jax_export.export(function, platforms=PLATFORMS)(shapes, rows, rows, rows)
  about = dict(
    task=task, outputs=OUTPUTS[task], max_length=model.limit, version=__version__,
    labels=labels_of(model, task), platforms=PLATFORMS,
  )  # fmt: skip
  try:
    model.tokenizer.save(folder)
    if isinstance(model.tokenizer, SentencePiece):
      log.warning('%s', SENTENCEPIECE)
    else:
      write_whole(folder / 'tokenizer.json', library(model.tokenizer, model.limit).to_str())
    write_whole(folder / 'model.stablehlo', bytes(exported.serialize()))
    write_whole(folder / 'weights.safetensors', safetensors.numpy.save(weights))
    write_whole(folder / 'export.json', json.dumps(about, indent=2) + '\n')
  except OSError as error:
    raise InputError(f'--export {folder} cannot be written ({error.strerror}).') from None


def labels_of(model, task):
  """What the last axis of logits tells apart, if that is labels."""
  if task == 'next-sentence':
    return list(PAIRS[model.objective.pairs])
  return list(getattr(model.objective, 'labels', ()))


def forward(model, task, params, input_ids, token_type_ids, attention_mask):
  """{output: array} of one example a row, [B, T] int32 arrays."""
  config = model.objective.model
  batch = {
    'input_ids': input_ids,
    'token_type_ids': token_type_ids if config.type_vocab_size else 0 * token_type_ids,
    'position_ids': jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape),
    'segment_ids': attention_mask,
    'cls_positions': jnp.zeros_like(input_ids[:, :1]),
    'example_ids': jnp.ones_like(input_ids[:, :1]),
  }
  if task in ('embed', 'fill-mask'):
    hidden = base.encode(config, params['encoder'], batch)
  if task == 'embed':
    kept = attention_mask[..., None].astype(jnp.float32)
    vector = jnp.sum(hidden * kept, axis=1) / jnp.maximum(jnp.sum(kept, axis=1), 1)
    if model.pooling == 'cls':
      vector = hidden[:, 0].astype(jnp.float32)
    length = jnp.linalg.norm(vector, axis=-1, keepdims=True)
    return {'embedding': vector / jnp.maximum(length, 1e-12), 'hidden': hidden}
  if task == 'fill-mask':
    table = params['encoder']['embeddings']['word_embeddings']['embedding']
    head = models.MaskedLMHead(config)
    return {'logits': head.apply({'params': params['mlm']}, hidden, table)}
  found = model.ask(task).outputs(params, batch)
  own = {name: found[name] for name in OUTPUTS[task]}
  return own if task in ('tag', 'answer') else {name: x[:, 0] for name, x in own.items()}


def library(tokenizer, limit):
  """A tokenizer of ours as one of the library `tokenizers`, with [CLS] and [SEP], cutting and
  padding; a [MASK] in the text is one."""
  out = exported_tokenizers.fast(tokenizer)
  out.enable_truncation(limit)
  out.enable_padding(pad_id=tokenizer.pad_id, pad_token=tokenizer.pieces[tokenizer.pad_id])
  return out
