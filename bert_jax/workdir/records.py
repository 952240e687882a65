"""Reads the files of a workdir, of a living or finished run, into a typed Run (recorded.py).

Whoever shows, compares, repeats or exports a run reads it here. A file whose seal is broken, or
that belongs to another run than config.json, is left out and named in the run's `faults`.
"""

import collections
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bert_jax import config as config_lib
from bert_jax import files
from bert_jax.errors import InputError, quoted
from bert_jax.files import Path
from bert_jax.tasks import TASKS
from bert_jax.text.values import json_value
from bert_jax.workdir import contents, manifest, saved_steps
from bert_jax.workdir.recorded import SPLITS, Facts, Outcome, Planned, Point, Run, Summary, Sweep

FACTS, SUMMARY, METRICS = 'run.json', 'summary.json', 'metrics.jsonl'
SWEEP, LOGS = 'sweep.json', 'logs'  # in the folder of a sweep; logs/RUN.json says how a run ended
# What reading a file may raise that is not as we wrote it.
UNREADABLE = InputError, TypeError, ValueError, KeyError, AttributeError


def read(folder: Path | str) -> Run:
  path = Path(folder).expanduser()
  faults = []
  config, fields = None, {}
  try:
    config = contents.read_config(path)
    fields = config_lib.flatten(config)
  except InputError as error:
    faults.append(str(error))
  facts, summary = read_facts(path, faults), read_summary(path, faults)
  checkpoints, newest = _checkpoints(path / 'checkpoints', faults)
  said = {FACTS: facts.config, SUMMARY: summary.config, 'checkpoints': newest.get('config', '')}
  for name, fingerprint in said.items():
    if config and fingerprint not in ('', config_lib.fingerprint(config)):
      faults.append(f'{path / name} is of another run than {contents.CONFIG}; bring it back')
      config, fields = None, {}
  if config and config.steps and summary.steps not in (0, config.steps):
    summary = replace(summary, state='running')  # the last command gave it more steps
  run = Run(
    path,
    config,
    fields,
    judge=TASKS[config.objective].judge(config) if config else summary.metric or 'loss',
    facts=facts,
    summary=summary,
    points=_points(path / METRICS, summary, faults),
    checkpoints=checkpoints,
    newest=newest,
  )
  return replace(run, examples=_examples(run, faults), faults=tuple(faults))


def below(*folders: Path | str) -> tuple[list[Run], list[str]]:
  """The runs with metrics below some folders, or InputError; sentences on what is left out."""
  runs, remarks, found = [], [], {}
  for folder in map(Path, folders):
    if not folder.is_dir():
      remarks.append(f'{folder} is no folder: left out')
    for path in sorted(folder.rglob(contents.CONFIG)):
      found.setdefault(path.resolve(), path.parent)
  for path in found.values():
    if files.exists(path / METRICS):
      run = read(path)
      if run.config is None:
        remarks.append(f'{path} is left out: {run.faults[0]}')
      else:
        runs.append(run)
        remarks += run.faults
    elif files.exists(path / FACTS):
      remarks.append(f'{path} has written no metrics yet: left out')
  if not runs:
    about = ''.join(f'\n  {x}' for x in remarks)
    raise InputError(f'no run with metrics lies below {" or ".join(map(str, folders))}.{about}')
  return runs, remarks


def _read(path: Path, kind: Any, faults: list[str] | None) -> Any:
  """kind.from_json of a sealed file; kind() if there is none, or with a fault if it is damaged."""
  try:
    return kind.from_json(contents.read_sealed(path))
  except UNREADABLE as error:
    if faults is not None:
      faults.append(f'{path} is damaged, or of an earlier version: left out ({error})')
    return kind()


def read_facts(workdir: Path | str, faults: list[str] | None = None) -> Facts:
  """The Facts in run.json of a workdir: empty ones if there is no such file, or if it is damaged.
  Then a sentence about it is added to `faults`, if they are given."""
  return _read(Path(workdir).expanduser() / FACTS, Facts, faults)


def read_summary(workdir: Path | str, faults: list[str] | None = None) -> Summary:
  """Reads summary.json of a workdir."""
  return _read(Path(workdir).expanduser() / SUMMARY, Summary, faults)


def read_outcome(folder: Path, name: str, faults: list[str] | None = None) -> Outcome:
  """How the named run of a sweep ended."""
  return _read(folder / LOGS / f'{name}.json', Outcome, faults)


def read_sweep(folder: Path | str) -> Sweep | None:
  """Reads a sweep's plan in a folder and how its runs ended; None if it holds no sweep."""
  path = Path(folder).expanduser()
  if not files.exists(path / SWEEP):
    return None
  faults = []
  runs, baseline = {}, ''
  try:
    content = contents.read_sealed(path / SWEEP)
    baseline = content.get('baseline', '')
    for name, planned in content['runs'].items():
      run = Planned.from_json(planned)
      if '/' in name + run.arm or name in ('.', '..'):
        faults.append(f'{path / SWEEP}: {quoted(name)} is no name of a run: left out')
      else:
        runs[name] = run
  except UNREADABLE as error:
    faults.append(f'{path / SWEEP} is damaged, or of an earlier version: left out ({error})')
  ended = {name: read_outcome(path, name, faults) for name in runs}
  return Sweep(path, baseline, runs, ended, tuple(faults))


def line_of(text: bytes) -> dict[str, Any] | None:
  """A line of metrics.jsonl, {'step', 'split', metric: value}; None if it is damaged."""
  try:
    line = json_value(text)
    return line if isinstance(line['step'], int) and line['split'] in SPLITS else None
  except (ValueError, KeyError, TypeError):
    return None


def _points(path: Path, summary: Summary, faults: list[str]) -> tuple[Point, ...]:
  """The lines of metrics.jsonl, if those that the summary knows are as they were written."""
  data = files.read_bytes(path) or b''
  lines = [line_of(text) for text in data.split(b'\n') if text]
  if zlib.crc32(data[: summary.bytes]) != summary.crc32:
    faults.append(f'{path} is damaged, or of another run than {SUMMARY}: left out')
    return ()
  if None in lines:
    faults.append(f'{path}: {lines.count(None)} damaged lines are left out')
  points = []
  for line in lines:
    if line is not None:
      points.append(Point(line.pop('step'), line.pop('split'), line))
  return tuple(points)


def _checkpoints(folder: Path, faults: list[str]) -> tuple[tuple[int, ...], Mapping[str, Any]]:
  """The steps of the checkpoints in a folder, and the metadata of the newest good one."""
  for number in saved_steps.newest_first(folder):
    try:
      newest = manifest.read(folder, number)
    except manifest.Damaged as error:
      if files.exists(folder / str(number)):  # else the run has removed it meanwhile
        faults.append(f'{error}: left out')
      continue
    return tuple(sorted(n for n in saved_steps.newest_first(folder) if n <= number)), newest
  return (), {}


def _examples(run: Run, faults: list[str]) -> dict[str, int]:
  """{metric: how many examples have it} of a run's answers; {} without any."""
  point = run.counted()
  if run.config is None or not point:
    return {}
  data = run.config.data
  path = contents.answers_folder(run.path, data.train, data.eval, point.step) / 'scores.json'
  examples = collections.Counter()
  try:
    for scores in contents.read_sealed(path).get('by_length', ()):
      examples.update(dict.fromkeys(scores, scores['examples']))
  except UNREADABLE as error:
    faults.append(f'{path} is damaged: left out ({error})')
  return dict(examples)
