"""Writes a model as a folder that Hugging Face's libraries load, no tensor missing or left over.

It becomes a model of the first family whose config.json says all of it; else it is refused.
Settings without a key of Hugging Face's stand in config.json under `bert_jax`. If the class has a
pooler and the weights have none, zeros are written: it would be drawn at random.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bert_jax import __version__, models
from bert_jax import config as config_lib
from bert_jax.convert import (
  config_json,
  exported_tokenizers,
  from_huggingface,
  model_card,
  sentence_transformers,
)
from bert_jax.convert.families import FAMILIES
from bert_jax.convert.families.record import Exported, ReleasedFamily
from bert_jax.convert.fused_tensors import joined
from bert_jax.convert.parameter_names import copies, part_of, table
from bert_jax.convert.tensor_files import SAFETENSORS, write_safetensors
from bert_jax.errors import InputError
from bert_jax.files import Path, write_json, write_whole
from bert_jax.tasks import TASKS
from bert_jax.tasks.record import Head

PLACES = '/', '~', './', '../', 'gs:', 's3:'  # with which a path of the author's machine begins

if TYPE_CHECKING:
  from bert_jax.workdir.trained import Trained


def write(
  out: Path, trained: 'Trained', labels: Sequence[str], facts: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, str]]:
  """Writes a model as the folder `out`; returns ({our path: name in the file}, {our path: why it is
  left out}). labels: of the classifier, in order. facts: of the run, for the card."""
  config, tokenizer = trained.config, trained.tokenizer
  model, task = models.ModelConfig(**config.model), TASKS[config.objective]
  flat = from_huggingface.flatten(jax.device_get(trained.params), model)
  head = head_of(config, {part_of(path) for path in flat})
  family = family_of(config.model, flat, tokenizer, head)
  has_class = head.class_suffix not in family.no_class
  architecture = family.classes + (head.class_suffix if has_class else 'Model')
  if head.class_suffix in family.lacks:
    raise InputError(
      f'Hugging Face has no {architecture} that computes the same, so this cannot be written; '
      'use it with bert_jax.predict.'
    )
  makes_vectors = head.class_suffix == 'Model' or bool(trained.vector.pooling)
  left_out = left_out_of(flat, family, head, config, makes_vectors)
  kept = {path: np.asarray(x, np.float32) for path, x in flat.items() if path not in left_out}
  offset = family.offset(tokenizer.pad_id)
  described = config_json.write(family, config.model, offset)
  type_rows = described.get('type_vocab_size', model.type_vocab_size)
  tensors, names = tensors_of(kept, family, head, model, offset, type_rows)
  dense_names = [name for name in tensors if name.startswith(sentence_transformers.DENSE)]
  dense = {name: tensors.pop(name) for name in dense_names}
  ours, notes = ours_of(config, head), []
  if type_rows != model.type_vocab_size:
    ours['model'] = {'type_vocab_size': model.type_vocab_size}
  if head.class_suffix.endswith(family.pooler) and 'pooler' not in map(part_of, kept):
    ours['pooler'] = False
    note = (
      f'The model has no pooler, and {architecture} has one: its weights are zeros here, so use '
      'last_hidden_state, not pooler_output.'
    )
    notes.append(note)
  settings = {'model_type': family.name, **described}
  settings |= settings_of(config, family, labels, tokenizer) | {'bert_jax': ours}
  if has_class:
    settings['architectures'] = [architecture]
  out.mkdir(parents=True, exist_ok=True)
  write_safetensors(out / SAFETENSORS, tensors, {'format': 'pt', 'bert_jax': __version__})
  # A text is cut where it was in training, so that the answers are the same.
  longest = min(task.limit(config) or model.max_position_embeddings, model.max_position_embeddings)
  if model.mixer == 'fourier':  # which mixes the padding of a row, too
    longest = config.data.seq_length
  cut_side = task.as_released(config).cut_side
  exported_tokenizers.write(out, tokenizer, family, longest, cut_side, makes_vectors)
  if makes_vectors:
    vector = trained.vector._replace(pooling=trained.vector.pooling or 'mean')
    length = min(longest, config.data.seq_length)
    sentence_transformers.write(out, vector, model.hidden_size, length, dense, model.projection_act)
  card = model_card.write(config, architecture, head, notes, {**facts, 'longest': longest})
  write_whole(out / 'README.md', card)
  _write_generation(out, dict(config_lib.flatten(config).get(task.writing, ())))
  # Written last: a folder with a config.json is a whole model.
  write_json(out / 'config.json', settings)
  return {path: names[path] for path in kept}, left_out


def _write_generation(out, writing):
  """Writes how a model of a translation task writes, if it is one."""
  if writing:
    theirs = {key: writing[x] for key, x in config_json.WRITING.items() if x in writing}
    write_json(out / 'generation_config.json', theirs)


def head_of(config: Any, parts: Collection[str]) -> Head:
  """The record of the Hugging Face class for a model with these parts, or an InputError."""
  if 'nsp' in parts and 'pooler' not in parts:
    raise InputError('the next-sentence head stands on a pooler, and there is none to write.')
  for head in TASKS[config.objective].heads:
    if head.causal == config.model.causal and set(head.parameters) <= set(parts):
      return head
  kind = 'causal model' if config.model.causal else 'model'
  raise InputError(
    f'Hugging Face has no class for a {kind} of {config.objective} with {", ".join(sorted(parts))} '
    'alone, so this cannot be written; use it with bert_jax.predict, or begin another by '
    'config.init_from.'
  )


def family_of(
  model: Mapping[str, Any], flat: Mapping[str, np.ndarray], tokenizer: Any, head: Head
) -> ReleasedFamily:
  """The family that a model with these parameters is written as, or an InputError."""
  parts = {part_of(path) for path in flat}
  types = flat.get(from_huggingface.TYPES)
  differ = types is not None and (types != types[0]).any()
  reads_pooler = 'pooler' in head.parameters or head.class_suffix == 'Model'
  exported = Exported(
    model,
    parts,
    tokenizer,
    tells_apart=bool(differ) or 'nsp' in parts,
    has_pooler='pooler' in parts and reads_pooler,
  )
  differences = {}
  for family in FAMILIES.values():
    if family.fits(exported):
      differences[family.name] = config_json.differences(family, exported)
  nearest = min(differences, key=lambda name: len(differences[name]))
  for field, value in differences[nearest].items():
    raise InputError(
      f'model.{field} is {model[field]}, and {value} in {nearest}, the nearest family of Hugging '
      "Face's, so this cannot be written; use it with bert_jax.predict."
    )
  return FAMILIES[nearest]


def left_out_of(
  flat: Mapping[str, Any],
  family: ReleasedFamily,
  head: Head,
  config: Any,
  makes_vectors: bool,
) -> dict[str, str]:
  """{our path: why the class of a head, or of what makes vectors, has no such parameter}."""
  training = f'a {head.class_suffix} has none, it is for training alone'
  reasons = dict.fromkeys(head.training_only, training)
  has_pooler = 'pooler' in head.parameters or head.class_suffix.endswith(family.pooler)
  if not has_pooler and not config.model.token_pooler:
    reasons['pooler'] = f'a {config.objective} model of theirs has no pooler'
  if not makes_vectors:
    reasons['projection'] = 'it goes with what makes vectors alone'
  return {path: reasons[part_of(path)] for path in flat if part_of(path) in reasons}


def tensors_of(
  kept: Mapping[str, np.ndarray],
  family: ReleasedFamily,
  head: Head,
  model: models.ModelConfig,
  offset: int,
  type_rows: int,
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
  """Renames {our path: array}: ({name in the file: array}, {our path: name in the file}). offset:
  rows of their position table before position 0. type_rows: rows of their token type table."""
  if 'classifier' in head.parameters or 'span' in head.parameters:
    family = family.named_as(head.class_suffix)
  prefix = family.prefix if head.class_suffix == 'Model' else ''
  places = {}
  for path, place in table(family, vars(model)).items():
    places[path] = place._replace(name=place.name.removeprefix(prefix))
  unknown = sorted(kept.keys() - places.keys())
  if unknown:
    raise InputError(
      f'{unknown[0]} has no place in a {family.name} model of Hugging Face; start an objective '
      'without it from this encoder by init_from.'
    )
  names = {path: place.name for path, place in places.items()}
  tensors = joined(kept, places)
  for name, x in family.buffers(vars(model)).items():
    tensors[name.removeprefix(prefix)] = x
  if offset:
    for path in from_huggingface.ALL_POSITIONS:
      if path in kept:
        tensors[names[path]] = np.pad(tensors[names[path]], ((offset, 0), (0, 0)))
  types = names.get(from_huggingface.TYPES)
  if types in tensors:
    tensors[types] = tensors[types][:type_rows]  # a RoBERTa's rows are equal
  elif types:
    tensors[types] = np.zeros((type_rows, model.embedding_width), np.float32)
  if head.class_suffix.endswith(family.pooler) and 'pooler/dense/kernel' not in kept:
    D = model.hidden_size
    tensors[names['pooler/dense/kernel']] = np.zeros((D, D), np.float32)
    tensors[names['pooler/dense/bias']] = np.zeros(D, np.float32)
  if 'mlm/decoder' in kept:  # an untied decoder has its bias, which some have twice
    for copy, original in copies(family, places).items():
      tensors[copy] = tensors[original]
  return tensors, names


def ours_of(config: Any, head: Head) -> dict[str, Any]:
  """The settings of a run that config.json keeps under bert_jax; of a path only its last part."""
  ours: dict[str, Any] = {'version': __version__, 'objective': config.objective}
  ours['seq_length'] = config.data.seq_length
  if head.class_suffix != 'Model':  # a bare encoder was not trained here
    for block in TASKS[config.objective].blocks:
      ours[block] = {}
      for field, value in config[block].to_dict().items():
        if isinstance(value, str) and len(value) > 1 and value.startswith(PLACES):
          value = PurePosixPath(value).name
        ours[block][field] = value
    for name in head.training_only.values():
      if name:  # the head is left out, and its term with it
        block, _, field = name.partition('.')
        ours[block][field] = 0.0
  return ours


def settings_of(
  config: Any, family: ReleasedFamily, labels: Sequence[str], tokenizer: Any
) -> dict[str, Any]:
  """The keys of config.json for the vocabulary and the head."""
  task = TASKS[config.objective]
  out = {
    'tie_word_embeddings': config.model.tie_word_embeddings,
    'pad_token_id': tokenizer.pad_id,
    'dtype': 'float32',
  }
  for key, role in family.ids.items():
    out[key] = getattr(tokenizer, f'{role}_id')
  if family.has_decoder:
    begin = config_lib.flatten(config).get(task.begin, 'cls')
    out['decoder_start_token_id'] = getattr(tokenizer, f'{begin}_id')
    out['forced_eos_token_id'] = None
  released = task.as_released(config)
  pooling = released.pooling
  if pooling != 'cls':
    if pooling not in (family.fixed.get('classifier_pooling') or ()):
      raise InputError(
        f"the classifier reads {pooling} vectors, and Hugging Face's {family.classes} cls, so this "
        'cannot be written; use it with bert_jax.predict.'
      )
    out['classifier_pooling'] = pooling
  if released.activation:
    out['sentence_transformers'] = {'activation_fn': released.activation}
  if released.problem:
    out['problem_type'] = released.problem
    labels = labels or (task.card(config).number,)
  if labels:
    out['id2label'] = {str(i): label for i, label in enumerate(labels)}
    out['label2id'] = {label: i for i, label in enumerate(labels)}
  return out
