"""What the files of a workdir, and of a sweep's folder, record about runs; records.py reads them.

A Record a file: `to_json` gives what files.write_sealed writes, `from_json` reads it. Whatever
from_json raises means that the file is damaged, or of an earlier version.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.files import Path
from bert_jax.metrics import Level
from bert_jax.timeline import Timeline

SPLITS = 'eval', 'whole', 'train'  # of the lines of metrics.jsonl


class Record:
  """A dataclass that is written as JSON and read again."""

  def to_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)  # pyrefly: ignore[bad-argument-type]

  @classmethod
  def from_json(cls, content: Mapping[str, Any]) -> Any:
    names = {field.name for field in dataclasses.fields(cls)}  # pyrefly: ignore[bad-argument-type]
    return cls(**{name: x for name, x in content.items() if name in names})


@dataclass(frozen=True)
class Split(Record):
  """The facts in run.json about the data of one split."""

  rows: int = 0
  fingerprint: str = ''
  examples: int = 0  # of labelled data
  scored: int = 0  # examples with a known answer
  baselines: Mapping[str, Level] = field(default_factory=dict)
  part: Mapping[str, Level] = field(default_factory=dict)  # of the rows of the curve, if not all
  measured: Mapping[str, float] = field(default_factory=dict)  # see rows.source.Source

  @classmethod
  def from_json(cls, content: Mapping[str, Any]) -> 'Split':
    content = dict(content)
    for kind in ('baselines', 'part'):
      levels = content.get(kind, {})
      content[kind] = {name: Level(float(x), str(of)) for name, (x, of) in levels.items()}
    return super().from_json(content)


@dataclass(frozen=True)
class Facts(Record):
  """The content of run.json: the code, machine, model and data of a run."""

  made_by: Mapping[str, Any] = field(default_factory=dict)  # contents.made_by, of the last start
  # {'argv', 'time', 'steps' and all of made_by} of each start.
  commands: Sequence[Mapping[str, Any]] = ()
  data: Mapping[str, Split] = field(default_factory=dict)
  steps: int = 0  # the last one of the run
  parameters: int | None = None
  # (first step, FLOPs of a step with a full batch) of each stage of the run.
  flops_by_stage: Sequence[tuple[int, float]] = ()
  source: str = ''  # of weights that were converted
  config: str = ''  # the fingerprint of the config

  @property
  def commit(self) -> str:
    return self.made_by.get('commit', '')

  def split(self, name: str) -> Split:
    """The facts about the data of a split; empty if not recorded."""
    return self.data.get(name, Split())

  @classmethod
  def from_json(cls, content: Mapping[str, Any]) -> 'Facts':
    splits = content.get('data', {})
    data = {name: Split.from_json(split) for name, split in splits.items()}
    return super().from_json({**content, 'data': data})


@dataclass(frozen=True)
class Summary(Record):
  """The content of summary.json: how far a run has come, and how it ended."""

  # running (or killed), finished, 'stopped early' (eval.patience), stopped (by a signal or
  # max_hours; the same command continues it), failed
  state: str = ''
  step: int = 0
  steps: int = 0  # the last one of the run; 0: not known
  metric: str = ''  # by which the run is judged
  config: str = ''  # the fingerprint of the config
  bytes: int = 0  # of metrics.jsonl until then
  crc32: int = 0  # and their checksum
  # {'eval', 'whole', 'train': the last line of metrics.jsonl}; `whole` counts, else `eval`
  last: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
  error: str = ''

  @property
  def has_ended(self) -> bool:
    return self.state in ('finished', 'stopped early')


class Point(NamedTuple):
  """A line of metrics.jsonl."""

  step: int
  # 'train'; 'eval', of the same rows at each step; 'whole', of all rows where these are more
  kind: str
  values: Mapping[str, float | None]  # None: it was not finite


@dataclass(frozen=True)
class Run:
  """All that the files of a workdir record about its run."""

  path: Path
  config: ConfigDict | None  # None: there is none that can be trusted
  fields: Mapping[str, Any]  # the config as {'model.hidden_size': 128, ...}
  judge: str  # the name of the metric that the run is judged by
  facts: Facts = Facts()
  summary: Summary = Summary()
  points: Sequence[Point] = ()
  examples: Mapping[str, int] = field(default_factory=dict)  # {metric: how many have it}
  checkpoints: Sequence[int] = ()  # their steps
  newest: Mapping[str, Any] = field(default_factory=dict)  # metadata of the newest checkpoint
  faults: Sequence[str] = ()

  @property
  def evaluations(self) -> list[Point]:
    return [point for point in self.points if point.kind != 'train']

  @property
  def curve(self) -> list[Point]:
    """The evaluations of one set of rows, at all steps."""
    return [point for point in self.points if point.kind == 'eval']

  @property
  def training(self) -> list[Point]:
    return [point for point in self.points if point.kind == 'train']

  def is_part_at(self, step: int) -> bool:
    """Whether the evaluation of a step is of a part of the rows alone."""
    read = self.fields.get('eval.batches', 0) * self.fields.get('batch_size', 0)
    kinds = {point.kind for point in self.evaluations if point.step == step}
    return 0 < read < self.facts.split('eval').rows and 'whole' not in kinds

  def counted(self) -> Point | None:
    """The evaluation whose values count: the last one or, with eval.patience, the best, of
    equal ones the later."""
    if not self.evaluations:
      return None
    metric = self.fields.get('checkpoint.best_metric', '')
    known = []
    for point in self.evaluations:
      value = point.values.get(metric)
      if value is not None:
        known.append((value, point))
    if not self.fields.get('eval.patience') or not known:
      return self.evaluations[-1]
    best = max if self.fields['checkpoint.best_mode'] == 'max' else min
    return best(reversed(known), key=lambda pair: pair[0])[1]

  def final(self, metric: str) -> float | None:
    """The value of a metric in the evaluation that counts; None if missing or not finite."""
    point = self.counted()
    return point.values.get(metric) if point else None

  def last_step(self) -> int:
    """The last step that has metrics or a checkpoint; 0: none."""
    return max([*self.checkpoints, self.measured_step()])

  def measured_step(self) -> int:
    return max((point.step for point in self.points), default=0)

  @property
  def timeline(self) -> Timeline | None:
    """What the run does at each step; None without a config."""
    if self.config is None:
      return None
    return config_lib.timeline_of(self.config, self.config.steps or self.last_step())

  def flops_before(self, step: int) -> float:
    """The FLOPs of the training before a step; NaN if the run does not record them."""
    timeline = self.timeline
    if not self.facts.flops_by_stage or timeline is None:
      return math.nan
    stages = [(first, flops) for first, flops in self.facts.flops_by_stage if first < step]
    ends = [first for first, _ in stages[1:]] + [step]
    total = 0.0
    for (first, flops), end in zip(stages, ends):
      total += (timeline.rows_before(end) - timeline.rows_before(first)) * flops
    return total / timeline.batch_size

  def collapsed(self) -> bool:
    """Whether the evaluation that counts gave the same answer to every example."""
    point = self.counted()
    return point is not None and 'constant' in point.values


@dataclass(frozen=True)
class Planned(Record):
  """A planned run of a sweep."""

  arm: str = ''
  spec: str = ''  # FILE:ARGS of its config
  fields: Sequence[str] = ()  # ['--config.NAME=VALUE', ...]


@dataclass(frozen=True)
class Outcome(Record):
  """How a run of a sweep ended."""

  state: str = ''  # done, failed or stopped; '': it has not been run
  error: str = ''
  config: str = ''  # a hash of all fields, see tools.sweep


@dataclass(frozen=True)
class Sweep:
  """The planned runs in a sweep's folder, and how they ended."""

  path: Path
  baseline: str  # the name of an arm, or ''
  runs: Mapping[str, Planned]  # {name of a folder: what is planned there}
  ended: Mapping[str, Outcome]
  faults: Sequence[str]
