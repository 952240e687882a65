"""Distillation in any family: the fields and rules of a run that learns from a teacher, and the
Lesson it learns. objectives/distillation.py has the losses."""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from ml_collections import ConfigDict

from bert_jax import models
from bert_jax.errors import InputError, listed
from bert_jax.field import Field
from bert_jax.objectives.distillation import Distilled

if TYPE_CHECKING:
  from bert_jax.objectives.base import Objective

FIELDS = {
  'teacher': Field('',
    'workdir, Hugging Face folder or hf:NAME of a trained model whose answers this one learns too; '
    'empty: none',
    affects={'start', 'free'}),
} | {
  'distillation.temperature': Field(2.0, 'divides both logits', allowed='[1, inf)'),
  'distillation.soft_weight': Field(0.5, "weight in the loss of the teacher's probabilities",
    allowed='[0, inf)'),
  'distillation.label_weight': Field(0.5, 'weight in the loss of what is learned without a teacher',
    allowed='[0, inf)'),
  'distillation.every_layer': Field(0,
    'the run starts from each n-th layer of its teacher, from the first, and the rest of it; 0: it '
    'does not', allowed='[0, inf)', affects={'start'}),
}  # fmt: skip


def rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  """Yields (what must hold, the sentence if it does not)."""
  every = config.distillation.every_layer
  yield (
    not every or not config.init_from,
    f'distillation.every_layer={every} starts from the teacher and init_from={config.init_from} '
    'from another model; set distillation.every_layer=0, or leave init_from empty.',
  )


class Teacher(NamedTuple):
  """A trained model whose answers and layers a student imitates."""

  config: ConfigDict
  objective: Any  # an Objective
  model: models.ModelConfig  # computed as the student is
  params: dict


class Lesson(NamedTuple):
  """The objective of a student, and the parts of its teacher that it needs."""

  kind: type[Distilled]  # the student's objective, which wraps its objective without a teacher
  teacher: 'Objective'  # the objective of the teacher's model, for the student's rows
  params: dict  # the teacher's parameters that are needed


def has_teacher(config: ConfigDict) -> bool:
  return 'teacher' in config and bool(config.teacher)


def every_layer(config: ConfigDict) -> int:
  """The stride in which the teacher's layers initialize the student (2: every second); 0: none."""
  return config.distillation.every_layer if has_teacher(config) else 0


def source_of(config: ConfigDict) -> str:
  """The model from which a run starts, as config.init_from names it; '': none."""
  return config.teacher if every_layer(config) else config.init_from


def check_layers(config: ConfigDict) -> None:
  """InputError if a run is to start from layers of a teacher that is not named."""
  if 'distillation' in config and config.distillation.every_layer and not config.teacher:
    raise InputError(
      f'distillation.every_layer={config.distillation.every_layer} starts from layers of a teacher '
      'and there is none; name it with teacher=W.'
    )


def settings(config: ConfigDict) -> dict[str, Any]:
  """The arguments for the classes of objectives/distillation.py that the config sets."""
  return {name: x for name, x in config.distillation.items() if name != 'every_layer'}


def by_answers(config: ConfigDict, objective: Any, teacher: Teacher) -> Lesson:
  """The Lesson in which a student imitates the teacher's answers to labelled examples. InputError
  unless the teacher can answer the examples of this run, in the same form."""
  theirs, task = teacher.objective, teacher.config.objective
  if task != config.objective:
    raise InputError(
      f'the teacher {config.teacher} was trained for {task!r} and this run is for '
      f'{config.objective!r}; fine-tune a teacher for the same task.'
    )
  if objective.labels != theirs.labels:
    labels = listed(objective.labels, 5) or 'none'
    raise InputError(
      f'the teacher {config.teacher} has other labels ({listed(theirs.labels, 5) or "none"}) than '
      f"this run ({labels}); give the run the teacher's labels, in its order (in a table "
      'table.labels=LABEL|SPELLING,..).'
    )
  for name in objective.answer_fields:
    value, of_teacher = getattr(objective, name), getattr(theirs, name)
    if value != of_teacher:
      raise InputError(
        f'the teacher {config.teacher} was trained with {name}={of_teacher} and this run has '
        f'{value}, so their answers have not the same form; take what it has.'
      )
  parts = jax.eval_shape(theirs.init, jax.random.key(0))
  missing = sorted(parts.keys() - teacher.params.keys())
  if missing:
    raise InputError(
      f'the weights of the teacher {config.teacher} came without {missing[0]}; fine-tune it first.'
    )
  theirs = dataclasses.replace(
    theirs,
    model=teacher.model,
    seq_length=objective.seq_length,
    examples_per_row=objective.examples_per_row,
  )
  return Lesson(Distilled, theirs, {part: teacher.params[part] for part in parts})
