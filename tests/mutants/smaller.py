"""Faults put in by hand: what a student learns from its teacher, and weights in int8."""

HEADS = 'tests/test_distillation.py::test_each_head_learns_its_own_terms_and_the_answers'
HEADS += '_of_the_teacher'
REFUSED = 'tests/test_distillation.py::test_a_teacher_that_does_not_fit_is_refused_in_a_sentence'
MOVES = 'tests/test_int8.py::test_a_number_moves_by_half_a_scale_at_most_and_once'

MUTANTS = [
  # (name, file, text as it stands, text with the fault, tests that must fail)
  (
    'a soft loss that is not multiplied by the square of the temperature',
    'bert_jax/objectives/base.py',
    'return temperature**2 * jnp.sum(',
    'return jnp.sum(',
    'tests/test_distillation.py::test_the_square_of_the_temperature_keeps_the_gradient_as_large',
  ),
  (
    'the temperature of the student is 1',
    'bert_jax/objectives/base.py',
    'mine = jax.nn.log_softmax(logits / temperature)',
    'mine = jax.nn.log_softmax(logits)',
    'tests/test_distillation.py::test_the_soft_loss_is_that_of_torch_without_the_entropy_of_the_'
    'teacher',
  ),
  (
    'a gradient reaches the teacher through its probabilities',
    'bert_jax/objectives/base.py',
    'jax.nn.log_softmax(jax.lax.stop_gradient(theirs) / temperature)',
    'jax.nn.log_softmax(theirs / temperature)',
    f'{HEADS}[classification]',
  ),
  (
    'a gradient reaches the teacher through its hidden states',
    'bert_jax/objectives/distillation.py',
    "jax.lax.stop_gradient(given['teacher']), self.teacher.model",
    "given['teacher'], self.teacher.model",
    f'{HEADS}[words]',
  ),
  (
    'the teacher has dropout',
    'bert_jax/objectives/distillation.py',
    "theirs = self.teacher.logits(given['teacher'], batch)",
    "theirs = self.teacher.logits(given['teacher'], batch, rng)",
    f'{HEADS}[tags]',
  ),
  (
    'the weight of labels is not asked',
    'bert_jax/objectives/distillation.py',
    'name: self.label_weight * x for',
    'name: x for',
    f'{HEADS}[spans]',
  ),
  (
    'the tokens of other examples are in the softmax of an answer',
    'bert_jax/objectives/qa.py',
    'jnp.where(self._inside(batch)[:, :, None], logits_B12T, OUTSIDE)',
    'jnp.where(self._inside(batch)[:, :, None], logits_B12T, logits_B12T)',
    'tests/test_distillation.py::test_only_tokens_of_the_example_and_choices_of_the_question_are_'
    'in_a_softmax',
  ),
  (
    'a student starts from the first layers',
    'bert_jax/teacher.py',
    "f'layer_{i * config.distillation.every_layer}'",
    "f'layer_{i}'",
    'tests/test_distillation.py::test_a_student_starts_from_every_second_layer',
  ),
  (
    'a teacher that was exchanged is not noticed',
    'bert_jax/manifest.py',
    "if not resumed_from and meta.get('teacher') != identity.get('teacher'):",
    'if False:',
    'tests/test_distillation.py::test_a_teacher_that_was_exchanged_is_noticed',
  ),
  (
    'labels in another order are those of the teacher',
    'bert_jax/teacher.py',
    'if objective.labels != theirs.labels:',
    'if len(objective.labels) != len(theirs.labels):',
    REFUSED,
  ),
  (
    'the probabilities of a teacher are of other words',
    'bert_jax/teacher.py',
    'if source.tokenizer.fingerprint != tokenizer.fingerprint:',
    'if source.tokenizer.vocab_size != tokenizer.vocab_size:',
    REFUSED,
  ),
  (
    'numbers are cut off, not rounded, in int8',
    'bert_jax/int8.py',
    'np.rint(x / scale)',
    'np.trunc(x / scale)',
    MOVES,
  ),
  (
    'scales with more bits than fit into an exact product',
    'bert_jax/int8.py',
    'BITS, MOST = 16, 127',
    'BITS, MOST = 30, 127',
    MOVES,
  ),
  (
    'a table of words has a scale for each column',
    'bert_jax/int8.py',
    "TABLES = 'embedding', 'decoder'",
    "TABLES = ('decoder',)",
    MOVES,
  ),
  (
    'stacked layers share a scale',
    'bert_jax/int8.py',
    'manifest.flat(models.unstack_layers(jax.device_get(params))).items()',
    'manifest.flat(jax.device_get(params)).items()',
    'tests/test_int8.py::test_stacked_layers_have_scales_of_their_own',
  ),
  (
    'damaged weights in int8 are read',
    'bert_jax/int8.py',
    "or hashlib.sha256(path.read_bytes()).hexdigest() != about['sha256']",
    '',
    'tests/test_int8.py::test_what_does_not_belong_together_is_refused',
  ),
  (
    'predict --int8 answers with the weights as they were',
    'bert_jax/predict/model.py',
    'params = int8.rounded(params) if in_int8 else params',
    'params = params',
    'tests/test_int8.py::test_a_folder_is_read_again_to_the_same_bits_and_answers_as_its_run_in_'
    'int8',
  ),
  (
    'a folder in int8 is asked for a checkpoint when it is converted',
    'bert_jax/tools/convert.py',
    'if not int8.is_int8(folder):',
    'if folder:',
    'tests/test_int8.py::test_a_folder_goes_out_to_hugging_face_and_comes_back',
  ),
  (
    'a teacher whose labels alone agree is taken',
    'bert_jax/teacher.py',
    "('multi_label', 'hierarchical', 'candidates')",
    "('hierarchical', 'candidates')",
    REFUSED,
  ),
  (
    'a teacher of whole windows is taken for windows together',
    'bert_jax/teacher.py',
    "('multi_label', 'hierarchical', 'candidates')",
    "('multi_label', 'candidates')",
    REFUSED,
  ),
  (
    'examples begin anywhere in the stretches of a teacher',
    'bert_jax/teacher.py',
    'and (not of_student or of_student % stretch):',
    'and False:',
    'tests/test_distillation.py::test_the_stretches_of_a_teacher_begin_with_examples',
  ),
]
