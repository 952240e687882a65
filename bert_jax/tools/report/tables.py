"""The tables of a report and the notes below them, for all its output formats."""

import csv
import io
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bert_jax.errors import counted
from bert_jax.files import Path
from bert_jax.tasks.labelled import FEWEST_TEXTS
from bert_jax.tools.report import arms as report_arms
from bert_jax.tools.report import curves
from bert_jax.tools.report.arms import Arm
from bert_jax.tools.report.panels import Panel, Report, Row
from bert_jax.tools.report.statistics import FEWEST

DIFFERENCE = 'difference', 'its 95 % interval', 'p', 'p, corrected'
HEADER = ('arm', 'seeds', 'mean ± sd', '95 % interval', *DIFFERENCE)
# The columns in LaTeX. A line end in a cell is one there, and a blank elsewhere.
NARROW = ('arm', 'seeds', 'mean ± sd', 'difference\n± 95 %', 'p,\ncorrected')
MARKS = '†‡§¶'  # one for each different note below a table in LaTeX
SCORES = 'Other scores, mean ± standard deviation'
UNTESTED = 'The baseline collapsed, so nothing is tested.'
UNBEATEN = 'No arm beats a guess: nothing was learned that differences could speak of.'


class Table(NamedTuple):
  """A table of texts. baseline: the first cell of its row for the baseline, or ''. dashes: what
  they mean, which its title says too, or ''."""

  title: str
  header: Sequence[str]
  rows: Sequence[Sequence[str]]
  baseline: str = ''
  dashes: str = ''


def main_table(panel: Panel) -> Table:
  """The table of the metric by which a panel is judged."""
  rows = [each for _, each in _rows(panel)]
  title = f'{panel.learned}: {panel.named(panel.metrics[0])}'
  title += f' ({panel.told_by})' if panel.told_by else ''
  return Table(title, HEADER, rows, panel.baseline)


def more_tables(panel: Panel) -> list[Table]:
  """The tables below the main table, if they have any number."""
  tables = {'no such score': _scores(panel)} if panel.metrics[1:] else {}
  if len(report_arms.lengths(panel.arms, panel.metrics[0])) > 1:
    tables[f'fewer than {FEWEST_TEXTS} texts'] = _lengths(panel.arms, panel.metrics[0])
  tables['not recorded'] = _costs(panel)
  filled = lambda table: {cell for row in table.rows for cell in row[1:]} - {'-'}
  return [with_dashes(table, why) for why, table in tables.items() if filled(table)]


def with_dashes(table: Table, why: str) -> Table:
  """The table, whose title says what its dashes mean, if it has some."""
  if not any('-' in row[1:] for row in table.rows):
    return table
  return table._replace(title=f'{table.title}; -: {why}', dashes=f'-: {why}')


def overview(report: Report, notes: list[str] | None = None) -> Table:
  """One table of several sweeps: a row for each arm, which is known by its name, and a column for
  the judging metric of each panel, with p, corrected, against the panel's baseline. An arm that has
  other numbers of seeds in other panels shows all these numbers. notes: see mean_of."""
  titles, arms = [], {}
  for number, panel in enumerate(report.panels):
    titles.append(panel.named(panel.metrics[0]) + (f'\n({panel.sweep})' if panel.sweep else ''))
    for row in panel.rows(panel.metrics[0]):
      p = row.difference.corrected if row.difference else None
      tested = f',\np {probability(p)}' if p is not None else ''
      shown = mean_of(row, notes) + (',\nbaseline' if row.label == panel.baseline else tested)
      arms.setdefault(row.label, {})[number] = str(len(row.values)), shown
  rows = []
  for name, by_panel in arms.items():
    seeds, shown = zip(*(by_panel.get(number, ('-', '-')) for number in range(len(titles))))
    numbers = {*seeds} - {'-'}
    rows.append((name, numbers.pop() if len(numbers) == 1 else ', '.join(seeds), *shown))
  # Panels of one sweep that were evaluated otherwise.
  told = lambda title, panel: f': {panel.evaluated_on}' * (titles.count(title) > 1)
  columns = [title + told(title, panel) for title, panel in zip(titles, report.panels)]
  baseline = next((panel.baseline for panel in report.panels if panel.baseline), '')
  table = Table('All sweeps', ('arm', 'seeds', *columns), rows, baseline)
  return with_dashes(table, 'no finished run of that arm')


def _rows(panel):
  """(Row, its cells) of the metric by which a panel is judged."""
  rows = panel.rows(panel.metrics[0])
  baseline = next((row for row in rows if row.label == panel.baseline), None)
  return [(row, cells(row, baseline)) for row in rows]


def cells(row: Row, baseline: Row | None) -> tuple[str, ...]:
  """The cells of a Row, one for each column of HEADER. A difference over fewer seeds than one of
  its two means says over how many, since it is not the difference of these means."""
  within = lambda x: f'{x[0]:.4f} to {x[1]:.4f}' if x else '-'
  start = (row.label, str(len(row.values)), mean_of(row), within(row.interval))
  if row is baseline:
    return (*start, 'baseline', '-', '-', '-')
  if row.difference is None or baseline is None:
    return (*start, *4 * '-')
  difference, most = row.difference, max(len(row.values), len(baseline.values))
  fewer = f' ({counted(difference.seeds, "seeds")})' if difference.seeds < most else ''
  tests = probability(difference.p), probability(difference.corrected)
  return (*start, f'{difference.mean:+.4f}{fewer}', within(difference.interval), *tests)


def narrow(panel: Panel) -> tuple[list[tuple[str, ...]], list[str]]:
  """The main table for a column of text: (rows with the columns of NARROW, notes below them)."""
  rows, notes = [], []
  for row, (label, seeds, _, _, difference, *_, corrected) in _rows(panel):
    mean = mean_of(row, notes)
    if row.difference and (within := row.difference.interval):
      value, *fewer = difference.partition(' (')
      difference = f'{value} ± {(within[1] - within[0]) / 2:.4f}{"".join(fewer)}'
    rows.append((label, seeds, mean, difference, corrected))
  return rows, [*notes, *absent(panel), *untested(panel), *warnings(panel)]


def absent(panel: Panel) -> Iterator[str]:
  """A sentence on the runs that no mean holds, if there are some."""
  each = [f'{label} ({count} of {runs})' for label, (count, runs) in panel.missing.items()]
  if each:
    yield f'Runs that failed or have not ended are in no mean: {", ".join(each)}.'


def untested(panel: Panel) -> Iterator[str]:
  """Sentences on the dashes in a panel's table: each says why it is one, and of which arms."""
  rows, named = panel.rows(panel.metrics[0]), lambda some: ', '.join(row.label for row in some)
  gone = [row for row in rows if row.values and not row.values_without_collapsed]
  if any(row.values_without_collapsed != row.values for row in rows):
    but = f' but of arms of which all did: {named(gone)}' if gone else ''
    yield f'Collapsed runs (one answer for every example) are in all means, and in all tests{but}.'
  if few := [row for row in rows if 0 < len(row.values) < FEWEST]:
    yield f'No interval and no test of fewer than {FEWEST} seeds: {named(few)}.'
  if alike := [row for row in rows if len(row.values) >= FEWEST and not row.interval]:
    yield f'No interval where all seeds have the same: {named(alike)}.'
  if none := [row for row in rows if not row.values]:
    yield f'Without this number, or it is not finite: {named(none)}.'
  seeds = [len({run.fields.get('seed', 0) for run in arm.runs}) for arm in panel.arms]
  some = [(row.label, len(row.values), n) for row, n in zip(rows, seeds) if row.values]
  if part := [f'{label} ({found} of {n} seeds)' for label, found, n in some if found < n]:
    yield f'With this number, and finite, only in part: {", ".join(part)}.'
  if not panel.baseline and len(rows) > 1:
    yield 'No arm is the baseline here, so there are no differences; report --baseline names one.'
  others = [row for row in rows if row.values and row.label != panel.baseline and panel.baseline]
  if apart := [row for row in others if not row.difference]:
    yield f'Without a seed that the baseline has too: {named(apart)}.'
  known = [(row, x) for row in others if (x := row.difference) and row not in gone + few]
  if fewer := [row for row, x in known if x.seeds < FEWEST]:
    yield f'No test over fewer than {FEWEST} seeds that the baseline has too: {named(fewer)}.'
  alike = [row for row, x in known if x.seeds >= FEWEST and x.p is None]
  if alike and panel.baseline not in [row.label for row in gone]:
    yield f'No test of a difference that is the same for every seed: {named(alike)}.'


def warnings(panel: Panel) -> list[str]:
  """Sentences on why differences say nothing."""
  rows = panel.rows(panel.metrics[0])
  gone = [x.label for x in rows if x.values and not x.values_without_collapsed]
  return [UNTESTED] * (panel.baseline in gone) + [UNBEATEN] * panel.is_unbeaten(rows)


def spread(values: Sequence[float]) -> str:
  """Formats the mean and standard deviation of some numbers."""
  sd = f' ± {statistics.stdev(values):.4f}' if len(values) > 1 else ''
  return f'{statistics.fmean(values):.4f}{sd}' if values else '-'


def mean_of(row: Row, notes: list[str] | None = None) -> str:
  """Formats a Row's mean: '0.7100 ± 0.0700 (1 of 5 collapsed, 0.7400 ± 0.0100 without)'. With
  `notes`, a mark stands in place of the brackets, and what it means is added to the notes."""
  mean, gone = spread(list(row.values.values())), collapsed(row)
  if notes is None or not gone:
    return f'{mean} ({gone})' if gone else mean
  marks = {text: mark for mark, _, text in (note.partition(' ') for note in notes)}
  if gone not in marks:
    marks[gone] = MARKS[len(notes) % len(MARKS)] * (len(notes) // len(MARKS) + 1)
    notes.append(f'{marks[gone]} {gone}')
  return mean + marks[gone]


def collapsed(row: Row) -> str:
  """Formats a Row's collapsed runs, '1 of 5 collapsed, 0.7400 ± 0.0100 without', or ''."""
  rest = row.values_without_collapsed
  gone = sum(rest.get(seed) != value for seed, value in row.values.items())
  without = f', {spread(list(rest.values()))} without' if rest else ''
  return f'{gone} of {len(row.values)} collapsed{without}' if gone else ''


def probability(p: float | None) -> str:
  return '-' if p is None else '< 0.0001' if p < 1e-4 else f'{p:.4f}'


def notes(panel: Panel) -> Iterator[str]:
  """Sentences on what a panel's table shows, and what is missing and why."""
  may_stop = [arm.label for arm in panel.arms if any(x.fields['eval.patience'] for x in arm.runs)]
  best = f'; of {", ".join(may_stop)}, where a run may stop early, of its best, which flatters them'
  yield f'Values are of the last evaluation of a run{best if may_stop else ""}.'
  yield from absent(panel)
  yield from untested(panel)
  if level := panel.level(panel.metrics[0]):
    is_text = level.kind.startswith('unigram')
    unit, better = (' nats', ', on held-out text; lower is better') if is_text else ('', '')
    but = f' Not beaten by {"; ".join(lost)}.' if (lost := panel.lost()) else ''
    yield f'To beat: {level.value:.4f}{unit} ({level.kind}){better}.{but}'
  yield from warnings(panel)


def _scores(panel: Panel) -> Table:
  """The table of the other scores' means."""
  first, *others = panel.metrics
  seeds = lambda row: len(row.values)
  fewer = lambda row, of: f' ({counted(seeds(row), "seeds")})' if 0 < seeds(row) < seeds(of) else ''
  by_arm = zip(panel.rows(first), *map(panel.rows, others))
  rows = [(of.label, *(mean_of(row) + fewer(row, of) for row in rows)) for of, *rows in by_arm]
  return Table(SCORES, ('arm', *map(panel.named, others)), rows)


def _lengths(arms: Sequence[Arm], metric: str) -> Table:
  """The table of a score's means by length of text, a column for each length."""
  columns, rows = report_arms.lengths(arms, metric), []
  for arm in arms:
    scores = report_arms.by_length(arm.runs, metric)
    means = {x: f'{statistics.fmean(values):.4f} ({n})' for x, (n, values) in scores.items()}
    rows.append((arm.label, *(means.get(x, '-') for x in columns)))
  header = ('arm', *(f'{x} tokens' for x in columns))
  runs = [run for arm in arms for run in arm.runs]
  shown = sum(n for n, _ in report_arms.by_length(runs, metric).values())
  few = report_arms.examples(runs, metric) - shown
  less = f'; {few:,} are left out, of lengths with fewer than {FEWEST_TEXTS}' if few > 0 else ''
  return Table(f'By the length of the texts, mean (examples{less})', header, rows)


def _costs(panel: Panel) -> Table:
  """The table of parameters and FLOPs, tokens and time (means); '-' if not recorded."""
  rows = []
  for arm in panel.arms:
    run = arm.runs[0]
    ends = [(curves.points(run, panel.metrics[0], '') or [{}])[-1] for run in arm.runs]
    each = ([end[x] for end in ends if end.get(x)] for x in ('tokens', 'seconds'))
    flops = run.flops_before(run.measured_step())
    parameters = '-' if run.facts.parameters is None else f'{run.facts.parameters:,}'
    counts = (f'{statistics.fmean(some):,.0f}' if some else '-' for some in each)
    rows.append((arm.label, parameters, '-' if math.isnan(flops) else f'{flops:.3g}', *counts))
  header = 'arm', 'parameters', 'FLOPs', 'tokens, mean', 'seconds of training, mean'
  return Table('Costs (seconds depend on what else ran, such as --jobs)', header, rows)


def differences(report: Report) -> list[Table]:
  """A table for each objective of the fields in which its arms differ. Its rows are the arms where
  these are more than the fields, else the fields."""
  out = []
  for objective, (names, values) in report.differences.items():
    header, rows = ('field', *values), list(zip(names, *values.values()))
    if len(values) > len(names) > 0:
      header, rows = ('arm', *names), [(arm, *each) for arm, each in values.items()]
    out.append(Table(objective, header, rows))
  return out


def listing(report: Report) -> Table:
  """The table of all runs with their status."""
  arms = {run.path: arm.label for panel in report.panels for arm in panel.arms for run in arm.runs}
  rows = []
  for run in report.runs:
    seed, status = str(run.fields.get('seed', '-')), report.status.get(run.path, '')
    step = str(run.measured_step())
    rows.append((str(run.path), arms.get(run.path, '-'), seed, step, status))
  return Table('Runs', ('run', 'arm', 'seed', 'steps', ''), rows)


def commits(report: Report) -> str:
  names = {run.facts.commit for run in report.runs}
  short = sorted({name[:12] + '+' * name.endswith('+') for name in names})
  return f'Commits of the code: {", ".join(name or "not known" for name in short)}.'


def results(report: Report) -> str:
  """The text of results.csv: a line for each run, with its final scores and varied fields."""
  metrics = list(dict.fromkeys(name for panel in report.panels for name in panel.metrics))
  fields = list(dict.fromkeys(x for names, _ in report.differences.values() for x in names))
  counted: dict[Path, dict[str, Any]] = {}
  for number, panel in enumerate(report.panels):
    for run, label in ((run, arm.label) for arm in panel.arms for run in arm.runs):
      last = (curves.points(run, panel.metrics[0], '') or [{}])[-1]
      scores = {name: run.final(name) for name in metrics}
      counted[run.path] = {**last, 'table': number, 'arm': label, **scores}
  about = 'run', 'objective', 'table', 'arm', 'seed', 'status', 'step', 'parameters'
  columns = [*about, 'flops', 'tokens', 'seconds', *metrics, *fields]
  file = io.StringIO()
  writer = csv.DictWriter(file, columns, restval='', extrasaction='ignore', lineterminator='\n')
  rows: list[dict[str, Any]] = [dict(zip(columns, columns))]
  for run in report.runs:
    row = {**run.fields, 'run': run.path, 'step': run.last_step(), **counted.get(run.path, {})}
    row |= {'status': report.status.get(run.path, ''), 'parameters': run.facts.parameters}
    rows.append(row)
  for row in rows:
    texts = {k: f"'{x}" for k, x in row.items() if str(x)[:1] in tuple('=+-@\t\r')}
    numbers = {k: x for k, x in row.items() if isinstance(x, (int, float))}
    writer.writerow(row | texts | numbers)  # a spreadsheet would run some texts as formulas
  return file.getvalue()
