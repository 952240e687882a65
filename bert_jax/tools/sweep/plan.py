"""What a sweep checks before its first run begins, and what sweep.json says of its runs."""

from collections.abc import Sequence
from typing import Any

from bert_jax import files
from bert_jax.errors import InputError, about, log
from bert_jax.files import Path
from bert_jax.run import initialization
from bert_jax.tasks import TASKS
from bert_jax.text import files as text_files
from bert_jax.tokenizers import run_tokenizer
from bert_jax.tools.sweep.arms import PlannedRun
from bert_jax.workdir import contents, records


def check_sources(runs: Sequence[PlannedRun], only_printed: bool) -> None:
  """InputError if runs to start from (init_from) have not ended; a scheduler may wait for them."""
  sources = dict.fromkeys(run.config.init_from for run in runs)
  missing = []
  for name in sources:
    run = records.read(name)
    if (run.summary.state and not run.summary.has_ended) or not run.checkpoints:
      missing.append(name)
  if missing:
    sentence = (
      f'--from: {len(missing)} of the {len(sources)} runs to start from are not finished, the '
      f'first of which is {missing[0]}; train them first, or choose others with --seeds and --arms.'
    )
    if not only_printed:
      raise InputError(sentence)
    log.warning('%s', sentence)


def check_evaluations(runs: Sequence[PlannedRun]) -> None:
  """Says if steps end before the first evaluation of a curve."""
  for run in runs:
    every, steps = run.config.eval.every, run.config.steps
    if 0 < steps < every:
      log.warning(
        '%s: eval.every=%d is never reached in %d steps: only its last state is evaluated',
        run.folder, every, steps,
      )  # fmt: skip
      return


def check_files(runs: Sequence[PlannedRun]) -> None:
  """InputError if the data, the vocabulary or the weights that a run needs are not there; else each
  would find that at its start."""
  for run in runs:
    config = run.config
    task = TASKS[config.objective]
    languages = task.card(config).languages
    for name in ('train', 'eval'):
      spec = config.data[name]
      if '{language}' in spec and not (languages or task.reads_corpus):
        continue  # only the family knows which
      with about(f'{run.folder}: data.{name}'):
        for _, part in text_files.parts(spec, languages):
          if part and not text_files.is_named(part):
            text_files.expand(part)
    with about(run.folder):
      run_tokenizer.check_path(config)
      initialization.check_sources(config, begins=True)


def content_of(
  root: Path, runs: Sequence[PlannedRun], config: str, baseline: str | None
) -> dict[str, Any]:
  """The content of sweep.json: these runs, and those of an earlier sweep in the folder that have
  begun. baseline: the arm that --baseline names; None: the earlier sweep's, or the first arm."""
  path, sweep = root / records.SWEEP, records.read_sweep(root)
  if sweep and any(fault.startswith(str(path)) for fault in sweep.faults):
    raise InputError(f'{path} is damaged; remove it: the same command writes it anew.')
  earlier = {}
  for name, run in sweep.runs.items() if sweep else ():
    if files.exists(root / name / contents.CONFIG):
      earlier[name] = run.to_json()
  now = {run.folder: {'arm': run.arm, 'spec': run.spec, 'fields': run.fields} for run in runs}
  both = earlier | now
  first = runs[0].arm if runs else ''
  if baseline is None and sweep and sweep.baseline in {run['arm'] for run in both.values()}:
    first = sweep.baseline
  return {'config': config, 'baseline': first, 'runs': both}
