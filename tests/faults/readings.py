"""What the programs of bert_jax read, many times in one process: main() up to the first computing.

A program ends where it would begin to compute, and prints checksums of what it has read: the state,
the weights, every row. So a folder with a fault in it is read in a fraction of a second, by the
code that reads it in a run.
"""

import contextlib
import io
import signal
import sys

from faults.runs import PROGRAMS, Ended, all_of, digest, program

from bert_jax import train
from bert_jax.predict import model as predict_model
from bert_jax.run import evaluation, setup
from bert_jax.tools.report import pages
from bert_jax.workdir import provenance, trained

SECONDS, STUCK = 60, -1  # after which a program that reads counts as stuck, and then its code


class Done(SystemExit):
  """Raised where a program begins to compute."""


def tell(*words: object) -> None:
  print(*words)
  raise Done


def stop_before_computing() -> None:
  """Lets the programs of this process end where they would begin to compute."""

  def loop(run, state):
    inputs = run.inputs
    splits = (x for x in (inputs.batches, inputs.eval_batches) if x)
    rows = [[part[k] for k in range(len(part))] for part in splits]
    tell(int(state.step), digest(all_of(state)), digest((rows, run.constants)), run.results)

  def compiled(inputs, program, weights):
    begins = not inputs.beginning.continues
    return None, None, begins and setup.new_state(inputs, program, weights)

  def one_pass(_, params, carry, batches, constants, **__):
    rows = [batches[k] for k in range(len(batches))]
    tell(digest(params), digest((carry, rows, constants)))

  def ask(model, task, _read=predict_model.Model.ask, **options):
    if task == 'search':  # whose index is read in the end
      return _read(model, task, **options)
    facts = model.config.to_json(), model.tokenizer.fingerprint, model.vector, model.limit, task
    tell(digest(model.weights), model.step, *facts)

  train.loop, setup.compiled, evaluation.one_pass = loop, compiled, one_pass
  provenance.code_changes, provenance.installed, pages.write = str, str, lambda *_: []
  predict_model.Model.ask = ask


def load(folder: str) -> None:
  """What `predict` and `convert` load."""
  tell(digest(trained.load(folder).params))


PROGRAMS |= {'load': type('load', (), {'main': staticmethod(lambda argv: load(*argv))})}


def read(command: tuple[str, ...]) -> Ended:
  """Runs a command line in this process, in the current folder."""
  out, log = io.StringIO(), io.StringIO()
  signal.signal(signal.SIGALRM, lambda *_: sys.exit(STUCK))
  signal.alarm(SECONDS)
  try:
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(log):
      code = program(*command)
  finally:
    signal.alarm(0)
  code = None if code == STUCK else code
  return Ended(code, out.getvalue(), log.getvalue())
