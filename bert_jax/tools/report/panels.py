"""The tables of a report as texts, panel by panel."""

from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from bert_jax.errors import InputError, counted, suggestion
from bert_jax.files import Path
from bert_jax.tools.report import linear
from bert_jax.tools.report import table as long_table
from bert_jax.tools.report.comparison import compare, crossed, effects
from bert_jax.tools.report.statistics import SCORES
from bert_jax.tools.report.table import Results

NARROW = ['arm', 'seeds', 'mean ± sd', 'difference', 'p, corrected']  # the columns in LaTeX


@dataclass(frozen=True)
class Panel:
  """The arms of one task that were evaluated in one way, so that their numbers can be compared."""

  task: str
  learned: str  # what its runs learn; the task, if they differ in it
  apart: str  # what sets it apart from other panels, in brackets, or ''
  df: pd.DataFrame  # their part of the long table
  runs: pd.DataFrame  # their part of the table of runs
  factors: pd.DataFrame  # index arm: the fields in which arms differ, as texts
  metrics: list[str]  # the first one judges
  baseline: str  # an arm, or ''
  percent: bool

  @property
  def metric(self) -> str:
    return self.metrics[0]

  @property
  def arms(self) -> list[str]:
    """The baseline, and the other arms in the order of the plan."""
    return sorted(self.df[self.df.final].arm.unique(), key=lambda arm: arm != self.baseline)

  def final(self, metric: str) -> pd.DataFrame:
    """The values of a metric that count."""
    return self.df[self.df.final & (self.df.metric == metric) & self.df.value.notna()]

  def compared(self, metric: str) -> pd.DataFrame:
    return compare(self.df, metric, self.baseline)

  def number(self, value: float, metric: str, sign: str = '') -> str:
    """A value of a metric as a text."""
    digits = 2 if self.percent and SCORES.search(metric) else 4
    return f'{value:{sign}.{digits}f}' if value == value else '-'


class Report(NamedTuple):
  panels: list[Panel]
  results: Results


def read(
  *folders: Path | str,
  baseline: str = '',
  percent: bool = False,
  svm: bool = False,
) -> Report:
  """Reads the runs below some folders. baseline: the arm to compare with; '': each sweep's.
  percent: shows scores of up to 1 so. svm: adds a linear SVM beside classifiers."""
  results = long_table.results(*folders)
  df = linear.with_svms(results) if svm else results.values.copy()
  if not df.final.any():
    raise InputError('no run has been evaluated yet; wait for the first evaluation.')
  arms = df.arm.unique()
  if baseline and baseline not in arms:
    hint = suggestion(baseline, arms) or '.'
    raise InputError(f'no arm is called {baseline}; there are {", ".join(arms)}{hint}')
  if percent:
    for metric in filter(SCORES.search, df.metric.unique()):
      rows = df.metric == metric
      if df.value[rows].abs().max() <= 1:
        df.loc[rows, ['value', 'level']] *= 100
  panels = []
  for task, under in df[df.final][['task', 'under']].drop_duplicates().itertuples(index=False):
    part = df[(df.task == task) & (df.under == under)]
    panels.append(_panel(part, results, baseline, percent))
  return Report(panels, results)


def _panel(df: pd.DataFrame, results: Results, baseline: str, percent: bool) -> Panel:
  task, under = df.task.iloc[0], df.under.iloc[0]
  of_task = results.runs[results.runs.task == task]
  runs, final = of_task[of_task.under == under], df[df.final]
  in_means = runs[runs.counts]
  judge = in_means.judge.mode()[0]
  metrics = sorted(final.metric.unique(), key=lambda metric: metric != judge)
  baselines = [baseline, *in_means.arm[in_means.is_baseline]]
  base = next((arm for arm in baselines if arm in set(final.arm)), '')
  by_arm = results.factors.loc[in_means.run].groupby(list(in_means.arm), sort=False).first()
  apart = []
  if results.runs.sweep.nunique() > 1:
    apart.append(', '.join(in_means.sweep.unique()))
  others = [set(other.split('; ')) for other in of_task.under.dropna().unique()]
  apart += [part for part in under.split('; ') if not all(part in other for other in others)]
  return Panel(
    task=task,
    learned=in_means.learned.iloc[0] if in_means.learned.nunique() == 1 else task,
    apart=f' ({"; ".join(apart)})' if apart else '',
    df=df,
    runs=runs,
    factors=by_arm.loc[:, by_arm.nunique(dropna=False) > 1],
    metrics=metrics,
    baseline=base,
    percent=percent,
  )


def as_rows(table: pd.DataFrame) -> list[list[str]]:
  """The header and the rows of a table, as texts."""
  return [list(map(str, row)) for row in (table.columns, *table.to_numpy())]


# ---- Tables -------------------------------------------------------------------------------------


def comparison(panel: Panel, metric: str) -> pd.DataFrame:
  """How the arms of a panel compare by a metric, as texts."""
  table, rows = panel.compared(metric), []
  for arm, row in table.iterrows():
    ps = [probability(row.p_examples_low), probability(row.p_examples_high)]
    cells = {
      'arm': arm,
      'seeds': f'{row.seeds:.0f}',
      'mean ± sd': spread(panel, metric, row),
      '95 % over seeds': within(panel, metric, row.low, row.high),
      '95 % over examples': within(panel, metric, row.examples_low, row.examples_high),
      'difference': panel.number(row.difference, metric, '+'),
      'its 95 %': within(panel, metric, row.difference_low, row.difference_high),
      'p': probability(row.p),
      'p, corrected': probability(row.p_corrected),
      'p over examples': ' to '.join(dict.fromkeys(ps)),
    }
    if arm == panel.baseline:
      cells['difference'] = 'baseline'
    elif row.shared < max(row.seeds, table.seeds.iloc[0]):
      cells['difference'] += f' ({counted(int(row.shared), "seeds")})'
    rows.append(cells)
  cells = pd.DataFrame(rows)
  empty = [name for name in cells if 'examples' in str(name) and (cells[name] == '-').all()]
  return cells.drop(columns=empty)


def spread(panel: Panel, metric: str, row: pd.Series) -> str:
  """'0.7100 ± 0.0700 (1 of 5 collapsed, 0.7400 ± 0.0100 without)'."""

  def shown(mean: float, sd: float) -> str:
    text = panel.number(mean, metric)
    return f'{text} ± {panel.number(sd, metric)}' if sd == sd else text

  text = shown(row['mean'], row.sd)
  if row.collapsed:
    text += f' ({row.collapsed:.0f} of {row.seeds:.0f} collapsed'
    if row.mean_sound == row.mean_sound:
      text += f', {shown(row.mean_sound, row.sd_sound)} without'
    text += ')'
  return text


def within(panel: Panel, metric: str, low: float, high: float) -> str:
  return f'{panel.number(low, metric)} to {panel.number(high, metric)}' if low == low else '-'


def probability(p: float) -> str:
  if p != p:
    return '-'
  return '< 0.0001' if p < 1e-4 else f'{p:.4f}'


def overview(report: Report) -> pd.DataFrame:
  """One table of all panels: a row for each arm, a column for each task."""
  columns = {}
  for panel in report.panels:
    cells = comparison(panel, panel.metric).set_index('arm')
    tested = ('p ' + cells['p, corrected']).where(cells.difference != 'baseline', 'baseline')
    column = cells['mean ± sd'] + ', n = ' + cells.seeds + ', ' + tested
    columns[panel.metric + panel.apart] = column
  return pd.concat(columns, axis=1, sort=False).fillna('-').reset_index(names='arm')


def more_tables(panel: Panel) -> dict[str, pd.DataFrame]:
  """{title: table} of the further tables of a panel."""
  tables, others = {}, {}
  for metric in panel.metrics[1:]:
    rows = panel.compared(metric).iterrows()
    others[metric] = [spread(panel, metric, row) for _, row in rows]
  if others:
    tables['other scores, mean ± sd'] = pd.DataFrame({'arm': panel.arms, **others})
  factors = crossed(panel.factors)
  if panel.baseline in factors.index and len(factors.columns):
    rows = []
    for effect, row in effects(panel.df, panel.metric, factors, panel.baseline).iterrows():
      mean = panel.number(row.difference, panel.metric, '+')
      ends = within(panel, panel.metric, row.difference_low, row.difference_high)
      rows.append({'effect': effect, 'mean': mean, 'its 95 %': ends, 'p': probability(row.p)})
    tables['main effects of crossed factors, and interactions (a x b)'] = pd.DataFrame(rows)
  costs = panel.runs[panel.runs.counts].groupby('arm')[['parameters', 'flops']].mean()
  costs['tokens'] = panel.final(panel.metric).groupby('arm').tokens.mean()
  costs = costs.map(lambda x: '-' if pd.isna(x) else f'{x:,.0f}' if x < 1e9 else f'{x:.3g}')
  arms = costs.join(panel.factors, how='outer').reindex(panel.arms).fillna('-')
  tables['arms: costs, and the fields in which they differ'] = arms.reset_index(names='arm')
  return tables


def odd_runs(report: Report) -> pd.DataFrame:
  """The runs that are in no mean or have a remark."""
  runs = report.results.runs
  odd = runs[(runs.status != 'finished') | (runs.remark != '')]
  return odd[['run', 'arm', 'seed', 'status', 'remark']]


def results_csv(report: Report) -> str:
  """The text of results.csv: a line for each run, in the order of the tables."""
  results, runs = report.results, []
  for panel in report.panels:
    runs += [panel.runs[panel.runs.arm == arm] for arm in panel.arms]
  runs = pd.concat([*runs, results.runs]).drop_duplicates('run')
  columns = ['run', 'sweep', 'task', 'arm', 'seed', 'status', 'remark', 'step', 'parameters']
  final = results.values[results.values.final]
  scores = final.pivot_table('value', 'run', 'metric', sort=False)
  runs = runs[[*columns, 'flops', 'commit']].join(scores, on='run').join(results.factors, on='run')
  # A spreadsheet would run some texts as formulas.
  return runs.replace(r'^(?=[=+\-@\t\r])', "'", regex=True).to_csv(index=False)
