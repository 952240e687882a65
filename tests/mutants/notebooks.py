"""Faults put in by hand: what a notebook shows, where its runs are kept, a run that has ended."""

ENDED = 'tests/test_train.py::test_a_finished_run_stays_finished'
EXECUTED = 'tests/test_notebooks.py::test_a_killed_notebook_continues_and_a_finished_one_returns'
FOLDERS = 'tests/test_notebooks.py::test_folders_are_mounted'

MUTANTS = [
  # (name, file, text as it stands, text with the fault, tests that must fail)
  (
    'a run that has ended is compiled again',
    'bert_jax/run_setup.py',
    'if hosts.total(not has_ended):',
    'if hosts.total(True):',
    ENDED,
  ),
  (
    'a run with a damaged newest checkpoint counts as ended',
    'bert_jax/run_setup.py',
    "if meta['seal'] != beginning.meta['seal']:",
    'if not meta:',
    ENDED,
  ),
  (
    'the bar and the curve are shown anew each time',
    'bert_jax/notebooks.py',
    'self.handle.update({kind: content}, raw=True)',
    'self.handle.display({kind: content}, raw=True)',
    EXECUTED,
  ),
  (
    'a kernel counts as a terminal',
    'bert_jax/notebooks.py',
    "return hasattr(shell, 'kernel')",
    "return hasattr(shell, 'kernels')",
    EXECUTED,
  ),
  (
    'a line that was cut off stops the curve',
    'bert_jax/notebooks.py',
    'with contextlib.suppress(ValueError):',
    'with contextlib.suppress(OSError):',
    'tests/test_notebooks.py::test_a_curve_is_drawn_from_a_workdir',
  ),
  (
    'checkpoints in a bucket cannot be renamed',
    'bert_jax/notebooks.py',
    ", '--rename-dir-limit=100000'",
    '',
    FOLDERS,
  ),
  (
    'a bucket is taken for a folder',
    'bert_jax/workdirs.py',
    "if workdir.parts[:1] == ('gs:',):",
    "if workdir.parts[:1] == ('gs',):",
    'tests/test_notebooks.py::test_a_bucket_is_no_workdir',
  ),
  (
    'a state shows all its numbers',
    'bert_jax/step.py',
    'def __repr__(self):',
    'def __str__(self):',
    'tests/test_notebooks.py::test_a_state_and_a_model_are_one_line',
  ),
]
