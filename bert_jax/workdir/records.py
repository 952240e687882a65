"""Reads the files of a workdir, of a living or finished run, into a typed Run (recorded.py).

Whoever shows, compares, repeats or exports a run reads it here. A file that is damaged, missing or
from another run is left out and named in the run's `faults`. Files belong together if they agree in
the fingerprint of the config (in run.json, summary.json and each checkpoint), the fingerprint of
the training data, and the metrics that a checkpoint repeats.
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from bert_jax import config as config_lib
from bert_jax import files
from bert_jax.errors import InputError, quoted
from bert_jax.files import Path
from bert_jax.metrics import Level
from bert_jax.tasks import TASKS
from bert_jax.text.values import json_value
from bert_jax.workdir import contents, manifest, saved_steps
from bert_jax.workdir.json_object import JsonObject, is_of, read_object
from bert_jax.workdir.recorded import Facts, Outcome, Planned, Point, Run, Split, Summary, Sweep

FACTS, SUMMARY, METRICS = 'run.json', 'summary.json', 'metrics.jsonl'
SPLITS = 'eval', 'whole', 'train'  # of the lines of metrics.jsonl
SWEEP, LOGS = 'sweep.json', 'logs'  # in the folder of a sweep; logs/RUN.json says how a run ended
# {field of run.json: its type}: what the last bits of a run depend on, see contents.made_by.
MADE_BY = dict.fromkeys(('bert_jax', 'commit', 'python', 'processor', 'devices'), str)
MADE_BY |= {
  'processes': int,
  'cores': int,
  **dict.fromkeys(('packages', 'environment', 'mesh'), dict),
}


def read(folder: Path | str) -> Run:
  path, faults = Path(folder).expanduser(), []
  config, fields = None, {}
  try:
    config = contents.read_config(path)
    fields = config_lib.flatten(config)
  except InputError as error:
    faults.append(str(error))
  if not files.exists(path / FACTS):
    faults.append(f'{path / FACTS} is missing, so nothing is known of the code and the data')
  facts, summary = read_facts(path, faults), read_summary(path, faults)
  points = [*_points(path / METRICS, faults)]
  if facts.split('eval').rows > fields.get('eval.batches', 0) * fields.get('batch_size', 0) > 0:
    # Earlier versions evaluated the last state on all rows alone, and called that 'eval', too.
    ends = {summary.steps, *(x['steps'] for x in contents.lengths(path))} - {0}
    ends -= {point.step for point in points if point.kind == 'whole'}
    is_whole = lambda p: p.kind == 'eval' and p.step in ends and _is_of_all(p, facts, summary)
    points = [p._replace(kind='whole') if is_whole(p) else p for p in points]
  checkpoints, newest = _checkpoints(path / 'checkpoints', faults)
  judge = TASKS[config.objective].judge(config).metric if config else summary.metric or 'loss'
  run = Run(path, config, fields, judge, facts, summary, tuple(points), {}, checkpoints, newest)
  run = _without_strangers(run, faults)
  return replace(run, lengths=_lengths(run, faults), faults=tuple(faults))


def _is_of_all(point: Point, facts: Facts, summary: Summary) -> bool:
  """Whether an earlier version's `eval` at an end is of all rows: beside their baselines."""
  levels, values = facts.split('eval').baselines, point.values
  known = [(x.value, values.get(k), values.get(f'{k}_below_{x.kind}')) for k, x in levels.items()]
  known = [(x, a + b) for x, a, b in known if a is not None and b is not None]
  return all(math.isclose(*x) for x in known) if known else point.step == summary.steps


def below(*folders: Path | str) -> tuple[list[Run], list[str]]:
  """The runs with metrics below some folders, or InputError; sentences on what is left out, such
  as a teacher that a run has trained first, unless its folder is one of these."""
  runs, remarks, found = [], [], {}
  for folder in map(Path, folders):
    if not folder.is_dir():
      remarks.append(f'{folder} is no folder: left out')
    for path in sorted(folder.rglob(contents.CONFIG)):
      found.setdefault(path.resolve(), path.parent)
    for path in sorted(folder.rglob(METRICS)):
      if not files.exists(path.with_name(contents.CONFIG)):
        remarks.append(f'{path.parent} has {METRICS} and no {contents.CONFIG}: left out')
  for path in found.values():
    if not files.exists(path / METRICS):
      if files.exists(path / FACTS):
        remarks.append(f'{path} has written no metrics yet: left out')
      continue
    run = read(path)
    if run.config is None:
      remarks.append(f'{path} is left out: {run.faults[0]}')
    elif run.facts.student and path not in map(Path, folders):
      remarks.append(f'{path} is the teacher of {run.facts.student}: left out; name it to see it')
    else:
      runs.append(run)
      remarks += run.faults
  if not runs:
    about = ''.join(f'\n  {x}' for x in remarks)
    raise InputError(f'no run with metrics lies below {" or ".join(map(str, folders))}.{about}')
  return runs, remarks


def read_facts(workdir: Path | str, faults: list[str] | None = None) -> Facts:
  """Reads run.json of a workdir; what cannot be read is added to `faults`."""
  at = read_object(Path(workdir).expanduser() / FACTS, faults)
  costs, data = at.inside('costs'), at.inside('data')
  stages = [x.content for x in costs.objects('flops_by_stage', step=int, flops=float)]
  return Facts(
    made_by={k: x for k, kind in MADE_BY.items() if (x := at.take(k, kind)) is not None},
    commands=tuple(x.content for x in at.objects('commands', argv=list, time=str)),
    earlier=tuple(x.content for x in at.objects('earlier', commands=int)),
    data={name: _split(data.inside(name)) for name in data.content},
    flops_by_stage=tuple((x['step'], x['flops']) for x in stages),
    **costs.several(parameters=int, flops_per_step=float, compile_seconds=float),
    **at.several(source=str, config=str, student=str),
  )


def _split(at: JsonObject) -> Split:
  known = at.several(rows=int, fingerprint=str, examples=int)
  known['scored'] = at.take('scored', int, known.get('examples', 0))
  return Split(**known, baselines=_levels(at.inside('baselines')), part=_levels(at.inside('part')))


def _levels(at: JsonObject) -> dict[str, Level]:
  levels = {}
  for name in at.content:
    level = at.take(name, list)
    if level is not None and len(level) == 2 and is_of(level[0], float) and is_of(level[1], str):
      levels[name] = Level(*level)
    elif level is not None:
      at.wrong(name, 'a value and the name of who reaches it')
  return levels


def read_summary(workdir: Path | str, faults: list[str] | None = None) -> Summary:
  """Reads summary.json of a workdir; runs of the first versions have none."""
  at = read_object(Path(workdir).expanduser() / SUMMARY, faults)
  last = {split: line for split in SPLITS if (line := at.inside(split).content)}
  kinds: dict[str, type] = dict.fromkeys(('state', 'objective', 'metric', 'config'), str)
  kinds |= dict.fromkeys(('step', 'steps', 'seed', 'bytes', 'crc32'), int)
  return Summary(**at.several(**kinds), last=last)


def read_sweep(folder: Path | str) -> Sweep | None:
  """Reads a sweep's plan in a folder and how its runs ended; None if it holds no sweep."""
  path, faults = Path(folder).expanduser(), []
  if not files.exists(path / SWEEP):
    return None
  at = read_object(path / SWEEP, faults)
  if not faults and 'runs' not in at.content:
    faults.append(f'{path / SWEEP} names no runs')
  planned, kinds = at.inside('runs'), dict(arm=str, spec=str, fields=list)
  runs = {name: Planned(**planned.inside(name).several(**kinds)) for name in planned.content}
  for name in [name for name, run in runs.items() if '/' in name + run.arm or name in ('.', '..')]:
    faults.append(f'{path / SWEEP}: {quoted(name)} is no name of a run: left out')
    del runs[name]
  ended = {name: read_outcome(path, name, faults) for name in runs}
  return Sweep(path, at.take('baseline', str, ''), runs, ended, tuple(faults))


def read_outcome(folder: Path, name: str, faults: list[str] | None = None) -> Outcome:
  """How the named run of a sweep ended."""
  at = read_object(folder / LOGS / f'{name}.json', faults)
  kinds = dict(state=str, error=str, seconds=float, metrics=dict, config=str, jobs=int)
  return Outcome(**at.several(**kinds))


def line_of(text: bytes) -> dict[str, Any] | None:
  """A line of metrics.jsonl, {'step', 'split', metric: value}; None if it is damaged."""
  try:
    line = json_value(text)
    good = is_of(line['step'], int) and line['split'] in SPLITS
  except (ValueError, KeyError, TypeError):
    return None
  return line if good else None


def _points(path: Path, faults: list[str]) -> Iterator[Point]:
  damaged, wrong = [], []
  for number, text in enumerate((files.read_bytes(path) or b'').split(b'\n'), 1):
    if not text:
      continue
    if (line := line_of(text)) is None:
      damaged.append(number)
      continue
    step, split = line.pop('step'), line.pop('split')
    kept = {name: x for name, x in line.items() if x is None or is_of(x, float)}
    wrong += [f'line {number}: {name} is {quoted(line[name])}' for name in line if name not in kept]
    yield Point(step, split, kept)
  if damaged:
    which = f'{len(damaged)}; the first is line {damaged[0]}'
    faults.append(f'{path}: lines that are damaged are left out, {which}')
  if wrong:
    more = f', and {len(wrong) - 1} more' if len(wrong) > 1 else ''
    faults.append(f'{path}: values that are no numbers are left out: {wrong[0]}{more}')


def _checkpoints(folder: Path, faults: list[str]) -> tuple[tuple[int, ...], Mapping[str, Any]]:
  """The steps of the checkpoints in a folder, and the metadata of the newest good one."""
  for number in saved_steps.newest_first(folder):
    try:
      newest = manifest.read(folder, number)
      return tuple(sorted(n for n in saved_steps.newest_first(folder) if n <= number)), newest
    except manifest.Damaged as error:
      if files.exists(folder / str(number)):  # else the run has removed it meanwhile
        faults.append(f'{error}: left out')
  return (), {}


def _lengths(run: Run, faults: list[str]) -> dict[str, tuple[int, dict[str, Any]]]:
  """The scores by length of a run's last evaluation; none in pre-training."""
  step = run.evaluations[-1].step if run.evaluations else 0
  data = [run.fields.get(name, '') for name in ('data.train', 'data.eval')]
  # Runs of earlier versions call every held-out share `embedded`.
  named = contents.evaluated_on(*data), data[1]
  folders = [contents.answers_folder(run.path, name, step) for name in named]
  folder = next((path for path in folders if files.exists(path)), folders[0])
  content, out = read_object(folder / 'scores.json', faults), {}
  for at in content.objects('by_length', tokens=str, examples=int):
    scores = {k: x for k, x in at.content.items() if x is None or is_of(x, float)}
    out[at.content['tokens']] = scores.pop('examples'), scores
  return out


def _without_strangers(run: Run, faults: list[str]) -> Run:
  """The run without the contents of files that belong to another run."""
  folder, newest = run.path, f'checkpoint {(run.checkpoints or [0])[-1]}'
  empty: dict[str, Any] = {FACTS: {'facts': Facts()}, SUMMARY: {'summary': Summary()}}
  empty[newest] = {'checkpoints': (), 'newest': {}}
  # The files that name a config's fingerprint, and whether it is the config in config.json.
  said = {FACTS: run.facts.config, SUMMARY: run.summary.config, newest: run.newest.get('config')}
  if config := run.config:
    known = contents.fingerprints(folder, config)
    agrees = {name: fingerprint in known for name, fingerprint in said.items() if fingerprint}
    mine = config.objective, config.seed
    if run.summary.objective and mine != (run.summary.objective, run.summary.seed):
      agrees[SUMMARY] = False
    others = [name for name, mine in agrees.items() if not mine]
    if others and len(others) == len(agrees):
      than = f'another run than {" and ".join(others)}, or was edited; bring it back'
      faults.insert(0, f'{folder / contents.CONFIG} is of {than}')
      return replace(run, config=None)
    for name in others:
      faults.append(f'{folder}: {name} is of another run than {contents.CONFIG}: left out')
      run = replace(run, **empty[name])
    is_whole = run.summary.steps in (0, config.steps or run.summary.steps)
    if not is_whole or run.summary.config not in ('', known[0]):  # it got more steps, not taken yet
      run = replace(run, summary=replace(run.summary, state='running'))
  data = run.facts.split('train').fingerprint
  if data and run.newest.get('data') and data != run.newest['data']:
    faults.append(f'{folder / FACTS} is of other training data than {newest}: left out')
    run = replace(run, facts=Facts())
  repeated = {newest: (run.newest.get('step'), run.newest.get('metrics') or {})}
  evaluated = [run.summary.last.get(kind, {}) for kind in ('eval', 'whole')]
  last = max(evaluated, key=lambda line: (line.get('step', 0), line.get('split') == 'whole'))
  repeated[SUMMARY] = last.get('step'), last
  for name, (step, values) in repeated.items():
    lines = [point.values for point in run.evaluations if point.step == step]
    if lines and not _same(values, lines[-1]):
      than = f'another run than {name}, by the evaluation at step {step}'
      faults.append(f'{folder / METRICS} is of {than}: left out')
      return replace(run, points=())
    there = run.points or (files.exists(folder / METRICS) and not faults)
    if values and not lines and there and name == SUMMARY:
      faults.append(f'{folder / METRICS} lacks the evaluation at step {step} that {SUMMARY} has')
  checked = (files.read_bytes(folder / METRICS) or b'')[: run.summary.bytes]
  is_said = not run.points or any('lines that are damaged' in fault for fault in faults)
  if zlib.crc32(checked) != run.summary.crc32 and not is_said:
    faults.append(f'{folder / METRICS} is not as the run wrote it, so what it says may be wrong')
  return run


def _same(some: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
  """Whether two lines of metrics agree in all numbers that both have."""
  pairs = [(some[name], others[name]) for name in some.keys() & others.keys() - {'step', 'split'}]
  numbers = (pair for pair in pairs if all(is_of(x, float) for x in pair))
  return all(math.isclose(*pair, rel_tol=1e-9) for pair in numbers)
