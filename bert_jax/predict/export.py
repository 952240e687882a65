"""Writes a model as a program that runs without this package: StableHLO, weights and tokenizer.

    python -m bert_jax.predict --model W --task embed --export DIR

writes model.stablehlo (jax.export; any number of rows, any length up to the model's; for CPUs, TPUs
and CUDA), weights.safetensors, the vocabulary, tokenizer.json and export.json, which names the
outputs and labels. The program is a function of ({name: weight}, input_ids, token_type_ids,
attention_mask), the last three int32 [B, T], and returns {name: array}: see predict/README.md.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jax import export as jax_export

from bert_jax import __version__
from bert_jax.convert import exported_tokenizers
from bert_jax.errors import InputError, writing
from bert_jax.files import Path, write_json, write_whole
from bert_jax.models import layers
from bert_jax.predict.model import PREDICTIONS, Model
from bert_jax.workdir import lock
from bert_jax.workdir.manifest import flat, unflat

PLATFORMS = 'cpu', 'tpu', 'cuda'
# {task: {output: its shape}}. Logits are as the head gives them, before a softmax or sigmoid.
OUTPUTS = {name: x.ask.exports for name, x in PREDICTIONS.items() if x.ask.exports}


def write(model: Model, task: str, folder: str | Path) -> None:
  if task not in OUTPUTS:
    raise InputError(f'task {task!r} cannot be exported; use one of {", ".join(OUTPUTS)}.')
  model.ask(task)  # an InputError if the model cannot do this task
  folder = Path(folder).expanduser()
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise InputError(f'--export {folder} is not empty; give a new folder.')
  params = model.params
  weights = flat(jax.tree.map(np.asarray, params))
  shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in weights.items()}
  any_size = jax_export.symbolic_shape('b, t', constraints=[f't <= {model.limit}'])
  rows = jax.ShapeDtypeStruct(any_size, jnp.int32)

  def run(weights, input_ids, token_type_ids, attention_mask):
    tree = unflat(weights, params)
    return forward(model, task, tree, input_ids, token_type_ids, attention_mask)

  function = jax.jit(layers.traced_in(model.config.model.dtype, run))
  exported = jax_export.export(function, platforms=PLATFORMS)(shapes, rows, rows, rows)
  about = dict(
    task=task,
    outputs=OUTPUTS[task],
    labels=list(model.ask(task).labels),
    max_length=model.limit,
    platforms=PLATFORMS,
    version=__version__,
  )
  if 'embedding' in OUTPUTS[task]:
    about |= {'prompt': model.vector.read_as(''), 'lower_case': model.vector.lower}
  with writing(folder), lock.whole_folder(folder) as out:
    model.tokenizer.save(out)
    tokenizer, pad_id = model.tokenizer, model.tokenizer.pad_id
    rust = exported_tokenizers.fast(tokenizer)
    rust.enable_truncation(model.limit)
    alone = model.row_length or None
    rust.enable_padding(pad_id=pad_id, pad_token=tokenizer.pieces[pad_id], length=alone)
    write_whole(out / 'tokenizer.json', rust.to_str())
    write_whole(out / 'model.stablehlo', bytes(exported.serialize()))
    write_whole(out / 'weights.safetensors', safetensors.numpy.save(weights))
    write_json(out / 'export.json', about)


def forward(
  model: Model, task: str, params: Any, input_ids: Any, token_type_ids: Any, attention_mask: Any
) -> dict[str, jax.Array]:
  """Runs the model: {output: array} for int32 arrays [B, T] that hold one example a row."""
  batch = {
    'input_ids': input_ids,
    'token_type_ids': token_type_ids,
    'position_ids': jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape),
    'segment_ids': attention_mask,
    'cls_positions': jnp.zeros_like(input_ids[:, :1]),
    'example_ids': jnp.ones_like(input_ids[:, :1]),
    'groups': jnp.ones_like(input_ids[:, :1]),  # every text is one window
  }
  ask: Any = model.ask(task)
  return ask.exported(params, batch)
