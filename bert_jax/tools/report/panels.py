"""The tables of a report as texts, panel by panel."""

from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from bert_jax.errors import InputError, counted, suggestion
from bert_jax.files import Path
from bert_jax.tools.report import linear
from bert_jax.tools.report import table as long_table
from bert_jax.tools.report.comparison import compare, crossed, effects
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

  @property
  def metric(self) -> str:
    return self.metrics[0]

  @property
  def arms(self) -> list[str]:
    """The baseline, and the other arms in the order of the plan."""
    arms = self.df[self.df.final].arm.unique()
    return sorted(arms, key=lambda arm: arm != self.baseline)

  def final(self, metric: str) -> pd.DataFrame:
    """The values of a metric that count."""
    return self.df[self.df.final & (self.df.metric == metric) & self.df.value.notna()]

  def compared(self, metric: str) -> pd.DataFrame:
    return compare(self.df, metric, self.baseline)


class Report(NamedTuple):
  panels: list[Panel]
  results: Results


def read(*folders: Path | str, baseline: str = '', svm: bool = False) -> Report:
  """Reads the runs below some folders. baseline: the arm to compare with; '': each sweep's.
  svm: adds a linear SVM beside classifiers."""
  results = long_table.results(folders)
  df = linear.with_svms(results) if svm else results.values.copy()
  if not df.final.any():
    raise InputError('no run has been evaluated yet; wait for the first evaluation.')
  arms = df.arm.unique()
  if baseline and baseline not in arms:
    raise InputError(
      f'no arm is called {baseline}{suggestion(baseline, arms)}; there are {", ".join(arms)}.'
    )
  panels = []
  for (task, under), _ in df[df.final].groupby(['task', 'under'], sort=False):
    of_panel = df[(df.task == task) & (df.under == under)]
    panels.append(_panel(task, under, of_panel, results, baseline))
  return Report(panels, results)


def _panel(task: str, under: str, df: pd.DataFrame, results: Results, baseline: str) -> Panel:
  of_task = results.runs[results.runs.task == task]
  runs = of_task[of_task.under == under]
  in_means = runs[runs.counts]
  final = df[df.final]
  judge = in_means.judge.mode()[0]
  # The terms of the loss stand there by their names.
  metrics = [name for name in final.metric.unique() if name != 'loss' or name == judge]
  baselines = [baseline, *in_means.arm[in_means.is_baseline]]
  of_runs = results.factors.loc[in_means.run]
  factors = of_runs.groupby(list(in_means.arm), sort=False).first()
  apart: list[str] = []
  if results.runs.sweep.nunique() > 1:
    apart.append(', '.join(in_means.sweep.unique()))
  others = [other.split('; ') for other in of_task.under.dropna().unique()]
  for part in under.split('; '):
    if not all(part in other for other in others):
      apart.append(part)
  return Panel(
    task=task,
    learned=in_means.learned.iloc[0] if in_means.learned.nunique() == 1 else task,
    apart=f' ({"; ".join(apart)})' if apart else '',
    df=df,
    runs=runs,
    factors=factors.loc[:, factors.nunique(dropna=False) > 1],
    metrics=sorted(metrics, key=lambda metric: metric != judge),
    baseline=next((arm for arm in baselines if arm in set(final.arm)), ''),
  )


def as_rows(table: pd.DataFrame) -> list[list[str]]:
  """The header and the rows of a table, as texts."""
  return [list(map(str, row)) for row in (table.columns, *table.to_numpy())]


# ---- Tables -------------------------------------------------------------------------------------


def comparison(panel: Panel, metric: str) -> pd.DataFrame:
  """How the arms of a panel compare by a metric, as texts."""
  table = panel.compared(metric)
  most_seeds = table.seeds.iloc[0]  # of the baseline
  rows = []
  for arm, row in table.iterrows():
    difference = number(row.difference, '+')
    if arm == panel.baseline:
      difference = 'baseline'
    elif row.shared < max(row.seeds, most_seeds):
      difference += f' ({counted(int(row.shared), "seeds")})'
    lowest, highest = probability(row.p_examples_low), probability(row.p_examples_high)
    rows.append(
      {
        'arm': arm,
        'seeds': f'{row.seeds:.0f}',
        'mean ± sd': spread(row),
        '95 % over seeds': within(row.low, row.high),
        '95 % over examples': within(row.examples_low, row.examples_high),
        'difference': difference,
        'its 95 %': within(row.difference_low, row.difference_high),
        'p': probability(row.p),
        'p, corrected': probability(row.p_corrected),
        'p over examples': lowest if lowest == highest else f'{lowest} to {highest}',
      }
    )
  cells = pd.DataFrame(rows)
  for name in ('95 % over examples', 'p over examples'):
    if (cells[name] == '-').all():
      cells = cells.drop(columns=name)
  return cells


def spread(row: pd.Series) -> str:
  """'0.7100 ± 0.0700 (1 of 5 collapsed)'."""
  text = number(row['mean'])
  if pd.notna(row.sd):
    text += f' ± {number(row.sd)}'
  if row.collapsed:
    text += f' ({row.collapsed:.0f} of {row.seeds:.0f} collapsed)'
  return text


def number(value: float, sign: str = '') -> str:
  return f'{value:{sign}.4f}' if value == value else '-'


def within(low: float, high: float) -> str:
  if pd.isna(low):
    return '-'
  return f'{number(low)} to {number(high)}'


def probability(p: float) -> str:
  if pd.isna(p):
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
  tables = {}
  others = {'arm': panel.arms}
  for metric in panel.metrics[1:]:
    rows = panel.compared(metric).iterrows()
    others[metric] = [spread(row) for _, row in rows]
  if len(others) > 1:
    tables['other scores, mean ± sd'] = pd.DataFrame(others)
  factors = crossed(panel.factors)
  if panel.baseline in factors.index and len(factors.columns):
    title = 'main effects of crossed factors, and interactions (a x b)'
    tables[title] = table_of_effects(panel, factors)
  tables['arms: costs, and the fields in which they differ'] = table_of_arms(panel)
  return tables


def table_of_effects(panel: Panel, factors: pd.DataFrame) -> pd.DataFrame:
  metric = panel.metric
  rows = []
  for effect, row in effects(panel.df, metric, factors, panel.baseline).iterrows():
    rows.append(
      {
        'effect': effect,
        'mean': number(row.difference, '+'),
        'its 95 %': within(row.difference_low, row.difference_high),
        'p': probability(row.p),
      }
    )
  return pd.DataFrame(rows)


def table_of_arms(panel: Panel) -> pd.DataFrame:
  in_means = panel.runs[panel.runs.counts]
  costs = in_means.groupby('arm')[['parameters', 'flops']].mean()
  costs['tokens'] = panel.final(panel.metric).groupby('arm').tokens.mean()
  table = costs.map(cost).join(panel.factors, how='outer')
  return table.reindex(panel.arms).fillna('-').reset_index(names='arm')


def cost(number: float) -> str:
  """1,000,000 or 1.2e+10."""
  if pd.isna(number):
    return '-'
  return f'{number:,.0f}' if number < 1e9 else f'{number:.3g}'


def odd_runs(report: Report) -> pd.DataFrame:
  """The runs that are in no mean or have a remark."""
  runs = report.results.runs
  odd = runs[(runs.status != 'finished') | (runs.remark != '')]
  return odd[['run', 'arm', 'seed', 'status', 'remark']]


def results_csv(report: Report) -> str:
  """The text of results.csv: a line for each run, in the order of the tables."""
  results = report.results
  in_order = []
  for panel in report.panels:
    in_order += [panel.runs[panel.runs.arm == arm] for arm in panel.arms]
  runs = pd.concat([*in_order, results.runs]).drop_duplicates('run')
  columns = ['run', 'sweep', 'task', 'arm', 'seed', 'status', 'remark', 'step', 'parameters']
  columns += ['flops', 'commit']
  final = results.values[results.values.final]
  scores = final.pivot_table('value', 'run', 'metric', sort=False)
  runs = runs[columns].join(scores, on='run').join(results.factors, on='run')
  return runs.to_csv(index=False)
