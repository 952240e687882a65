"""Faults put in by hand: how the campaign of faults judges."""

JUDGED = 'tests/test_faultbench.py::test_how_the_end_of_a_run_is_judged'
ENDED = 'tests/test_faultbench.py::test_how_a_program_may_end'

MUTANTS = [
  # (name, file, text as it stands, text with the fault, tests that must fail)
  (
    'a traceback beside a good result is not noticed',
    'bert_jax/tools/fault_files.py',
    "if 'Traceback (most recent' in ended.log:",
    "if ended.code and 'Traceback (most recent' in ended.log:",
    ENDED,
  ),
  (
    'a program that is stuck counts as refused',
    'bert_jax/tools/fault_files.py',
    'if ended.code is None:',
    'if ended.code == 0:',
    ENDED,
  ),
  (
    'several sentences count as one',
    'bert_jax/tools/fault_runs.py',
    'self.code and len(sentences) == 1 and',
    'self.code and sentences and',
    ENDED,
  ),
  (
    "another checkpoint's answer passes without a word",
    'bert_jax/tools/fault_files.py',
    '(said and output in others)',
    'output in others',
    'tests/test_faultbench.py::test_how_a_reader_is_judged',
  ),
  (
    'training that begins anew is not lost',
    'bert_jax/tools/fault_files.py',
    'started.begin < least',
    'started.begin < 0',
    JUDGED,
  ),
  (
    'the lines of a run are not compared',
    'bert_jax/tools/fault_files.py',
    "'survived' if same and started.state == whole.state",
    "'survived' if started.state == whole.state",
    JUDGED,
  ),
  (
    'the last state of a run is not compared',
    'bert_jax/tools/fault_files.py',
    "'survived' if same and started.state == whole.state",
    "'survived' if same",
    JUDGED,
  ),
  (
    'lost work passes',
    'bert_jax/tools/faultbench.py',
    "not in ('survived', 'named')",
    "not in ('survived', 'named', 'lost')",
    'tests/test_faultbench.py::test_the_exit_status_and_the_way_to_repeat_a_bad_case',
  ),
]
