"""What the files of a workdir, and of a sweep's folder, record about runs; records.py reads it."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.files import Path
from bert_jax.metrics import Level
from bert_jax.timeline import Timeline


@dataclass(frozen=True)
class Split:
  """The facts in run.json about the data of one split."""

  rows: int = 0
  fingerprint: str = ''
  examples: int = 0  # of labelled data
  scored: int = 0  # those of them that have gold
  baselines: Mapping[str, Level] = field(default_factory=dict)
  part: Mapping[str, Level] = field(default_factory=dict)  # of the rows of the curve, if not all


@dataclass(frozen=True)
class Facts:
  """The content of run.json: the code, machine, model and data of a run."""

  made_by: Mapping[str, Any] = field(default_factory=dict)  # some of contents.made_by
  commands: Sequence[Mapping[str, Any]] = ()  # {'argv', 'time'} of each start
  earlier: Sequence[Mapping[str, Any]] = ()  # what `made_by` was before, for a run that moved
  data: Mapping[str, Split] = field(default_factory=dict)
  parameters: int | None = None
  flops_per_step: float | None = None  # of a full batch
  compile_seconds: float | None = None  # few if the program was compiled before
  flops_by_stage: Sequence[tuple[int, float]] = ()  # (first step, the same), if they differ
  source: str = ''  # of weights that were converted
  config: str = ''  # the fingerprint of the config; runs of earlier versions do not say it
  student: str = ''  # the workdir of the run for which this teacher was trained

  @property
  def commit(self) -> str:
    return self.made_by.get('commit', '')

  def split(self, name: str) -> Split:
    """The facts about the data of a split; empty if not recorded."""
    return self.data.get(name, Split())


@dataclass(frozen=True)
class Summary:
  """The content of summary.json: how far a run has come, and how it ended."""

  state: str = ''
  step: int = 0
  steps: int = 0  # the last one of the run; 0: not known
  objective: str = ''
  seed: int | None = None
  metric: str = ''
  config: str = ''
  bytes: int = 0  # of metrics.jsonl until then
  crc32: int = 0  # and their checksum
  # {'eval', 'whole', 'train': the last line}
  last: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

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
  lengths: Mapping[str, tuple[int, Mapping]] = field(default_factory=dict)  # see by_length
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

  @property
  def log_every(self) -> int:
    """The steps of which a line of training metrics is the mean; 0: not known."""
    begin = [] if self.fields.get('resume_from') else [0]  # else it began at a later step
    steps = itertools.pairwise(begin + [point.step for point in self.training])
    gaps = [step - before for before, step in steps]  # the last, or beside a lost line, is another
    return statistics.mode(gaps) if gaps else 0

  def is_part_at(self, step: int) -> bool:
    """Whether the evaluation of a step is of a part of the rows alone."""
    read = self.fields.get('eval.batches', 0) * self.fields.get('batch_size', 0)
    kinds = {point.kind for point in self.evaluations if point.step == step}
    return 0 < read < self.facts.split('eval').rows and 'whole' not in kinds

  def counted(self) -> Point | None:
    """The evaluation whose values count: the last one or, with eval.patience, the best."""
    evaluations, metric = self.evaluations, self.fields.get('checkpoint.best_metric', '')
    known = [(x, p) for p in evaluations if (x := p.values.get(metric)) is not None]
    if self.fields.get('eval.patience') and known:
      best = max if self.fields['checkpoint.best_mode'] == 'max' else min
      return best(known, key=lambda pair: pair[0])[1]
    return evaluations[-1] if evaluations else None

  def final(self, metric: str) -> float | None:
    """The value of a metric in the evaluation that counts; None if missing or not finite."""
    point = self.counted()
    return point.values.get(metric) if point else None

  def last_step(self) -> int:
    """The last step that has metrics or a checkpoint; 0: none."""
    return max([*self.checkpoints, *(point.step for point in self.points)], default=0)

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
    if self.facts.flops_per_step is None or (timeline := self.timeline) is None:
      return math.nan
    stages = self.facts.flops_by_stage or ((0, self.facts.flops_per_step),)
    stages = [(timeline.rows_before(first), flops) for first, flops in stages if first < step]
    ends = [*(begin for begin, _ in stages[1:]), timeline.rows_before(step)]
    counted = zip(stages, ends)
    return sum((end - begin) * flops for (begin, flops), end in counted) / timeline.batch_size

  def collapsed(self) -> bool:
    """Whether the evaluation that counts gave the same answer to every example."""
    point = self.counted()
    return point is not None and 'constant' in point.values

  def by_length(self, metric: str) -> dict[str, tuple[int, float]]:
    """The scores of the last evaluation by length: {'65-128' tokens: (examples, score)}."""
    scores = {tokens: (n, values.get(metric)) for tokens, (n, values) in self.lengths.items()}
    return {tokens: (n, score) for tokens, (n, score) in scores.items() if score is not None}


class Planned(NamedTuple):
  arm: str = ''
  spec: str = ''  # FILE:ARGS of its config
  fields: Sequence[str] = ()  # ['--config.NAME=VALUE', ...]


class Outcome(NamedTuple):
  """How a run of a sweep ended."""

  state: str = ''  # done, failed or stopped; '': it has not been run
  error: str = ''
  seconds: float = 0.0  # of all tries together
  metrics: Mapping[str, float | None] = {}  # of its last evaluation
  config: str = ''  # a hash of all fields, see tools.sweep
  jobs: int = 0  # how many runs the machine trained at once; 0: not recorded


@dataclass(frozen=True)
class Sweep:
  """The planned runs in a sweep's folder, and how they ended."""

  path: Path
  baseline: str  # the name of an arm, or ''
  runs: Mapping[str, Planned]  # {name of a folder: what is planned there}
  ended: Mapping[str, Outcome]
  faults: Sequence[str]
