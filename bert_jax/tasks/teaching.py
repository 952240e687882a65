"""The fields of a run that learns from a teacher, in all families that can; objectives/distillation
says what they do."""

from bert_jax.field import Field

FIELDS = {
  'teacher': Field(str, None,
    'workdir, Hugging Face folder or hf:NAME of a trained model whose answers this one learns too; '
    'empty: none', '', past=''),
  'distillation.temperature': Field(float, '[1, inf)', 'divides the logits of both', 2.0, past=2.0),
  'distillation.soft_weight': Field(float, '[0, inf)',
    "weight in the loss of the teacher's probabilities", 0.5, past=0.5),
  'distillation.label_weight': Field(float, '[0, inf)',
    'weight in the loss of what is learned without a teacher', 0.5, past=0.5),
  'distillation.every_layer': Field(int, '[0, inf)',
    'the run starts from each n-th layer of its teacher, from the first, and the rest of it; 0: it '
    'does not', 0, past=0),
}  # fmt: skip


def rules(config):
  """Yields (what must hold, the sentence if it does not)."""
  every = config.distillation.every_layer
  yield (
    not every or not config.init_from,
    f'distillation.every_layer={every} starts from the teacher and init_from={config.init_from} '
    'from another model; set distillation.every_layer=0, or leave init_from empty.',
  )
  yield (
    config.distillation.soft_weight or config.distillation.label_weight,
    'distillation.soft_weight and label_weight are both 0, so there is nothing to learn.',
  )


def rules_to_begin(config):
  every = config.distillation.every_layer
  yield (
    not every or config.teacher,
    f'distillation.every_layer={every} starts from layers of a teacher and there is none; name it '
    'with --config.teacher=W.',
  )
