"""Writes a report: an HTML file with its pictures in it, Markdown, a LaTeX table, a CSV of runs,
and the text that the terminal shows, all of the same tables."""

import csv
import html
import io
import re
import statistics
from pathlib import Path

from bert_jax.command_line import aligned
from bert_jax.files import write_whole
from bert_jax.tools.report import figures as report_figures
from bert_jax.tools.report import lengths as report_lengths
from bert_jax.tools.report import runs as report_runs
from bert_jax.tools.report import statistics as report_statistics

FORMATS = ('pdf', 'svg', 'png')
HEADER = (
  'arm',
  'seeds',
  'mean ± sd',
  '95 % interval',
  'difference',
  '95 % interval of it',
  'p',
  'p, corrected',
)
NARROW = ('arm', 'seeds', 'mean ± sd', 'difference ± 95 %', 'p, corrected')  # of LaTeX
METHOD = (
  'Mean ± standard deviation over the seeds; intervals are Student’s t at 95 %, from '
  f'{report_statistics.FEWEST} seeds on. A difference is the mean of arm minus baseline over the '
  'seeds that both have; p is that of a paired t-test, and corrected for all comparisons of its '
  'table (Holm). Scores of N examples are rounded to 1/N, which is counted as variance. All of it '
  'speaks of other seeds on the same data, not of other examples.'
)
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1100px; margin: 2em auto;
       padding: 0 1em; }
h1, h2, h3 { line-height: 1.2; margin: 1.6em 0 .5em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .7em 0; }
th, td { text-align: left; padding: .25em .8em .25em 0; border-bottom: 1px solid #ddd;
         vertical-align: top; overflow-wrap: anywhere; }
thead th { border-bottom: 1.5px solid #222; overflow-wrap: normal; }
tr.baseline { font-weight: 600; }
figure { margin: 1em 0; break-inside: avoid; } figure svg { max-width: 100%; height: auto; }
figcaption, .note { color: #555; font-size: 90%; }
.wide { overflow-x: auto; } li { overflow-wrap: anywhere; }
@media print { body { margin: 0; max-width: none; font-size: 10pt; } .wide { overflow: visible; }
  details > * { display: block; } h2, h3 { break-after: avoid; } tr { break-inside: avoid; } }
"""
COSTS = 'Costs (seconds depend on what else ran, such as --jobs)'
UNBEATEN = 'No arm beats a guess: nothing was learned that differences could speak of.'


def write(report, out, title):
  """Writes the files of a Report into a folder; returns their names."""
  out = Path(out)
  out.mkdir(parents=True, exist_ok=True)
  pictures = {}  # {number of a panel: [(name of the files, caption, svg), ...]}
  names = ['report.html', 'report.md', 'results.csv', 'table.tex']
  for earlier in (p for ending in FORMATS for p in out.glob(f'*-*.{ending}')):
    if re.search(r'-(curves|final|scores|lengths)(-\d+)?$', earlier.stem):
      earlier.unlink()  # perhaps of other runs
  for number, panel in enumerate(report.panels):
    for kind, caption, figure in report_figures.of_panel(panel):
      name = re.sub(r'\W+', '-', f'{panel.objective}-{panel.metrics[0]}-{kind}')
      name += f'-{number}' if panel.evaluated_on else ''
      drawn = saved(figure, name)
      for ending, content in drawn.items():
        write_whole(out / f'{name}.{ending}', content)
      pictures.setdefault(number, []).append((name, caption, drawn['svg'].decode()))
      names.append(f'{name}.{{{",".join(FORMATS)}}}')
  write_whole(out / 'report.html', page(report, title, pictures))
  write_whole(out / 'report.md', markdown(report, title, pictures))
  write_whole(out / 'results.csv', results(report))
  write_whole(out / 'table.tex', latex(report))
  return names


def saved(figure, name):
  """{ending: bytes} of a figure; the same each time, without the date."""
  import matplotlib

  out = {}
  with matplotlib.rc_context({'svg.hashsalt': name}):
    for ending in FORMATS:
      file = io.BytesIO()
      date = {'svg': {'Date': None}, 'pdf': {'CreationDate': None}, 'png': {}}[ending]
      figure.savefig(file, format=ending, dpi=150, metadata=date)
      out[ending] = file.getvalue()
  return out


def heading(panel):
  text = f'{panel.objective}: {panel.named(panel.metrics[0])}'
  return text + (f' ({panel.evaluated_on})' if panel.evaluated_on else '')


def cells(row, baseline):
  """The texts of a Row, as many as HEADER."""
  within = lambda x: f'{x[0]:.4f} to {x[1]:.4f}' if x else '-'
  start = (row.label, str(len(row.values)), mean_of(row), within(row.interval))
  if row.label == baseline:
    return (*start, 'baseline', '-', '-', '-')
  if row.difference is None:
    return (*start, *4 * '-')
  difference = row.difference
  fewer = f' ({difference.seeds} seeds)' if difference.seeds < len(row.values) else ''
  tests = probability(difference.p), probability(difference.corrected)
  return (*start, f'{difference.mean:+.4f}{fewer}', within(difference.interval), *tests)


def spread(values):
  """The text of the mean and standard deviation of some numbers."""
  sd = f' ± {statistics.stdev(values):.4f}' if len(values) > 1 else ''
  return f'{statistics.fmean(values):.4f}{sd}' if values else '-'


def mean_of(row):
  """That of a Row: '0.7100 ± 0.0700 (1 of 5 collapsed, 0.7400 ± 0.0100 without)'."""
  more = f' ({gone})' if (gone := collapsed(row)) else ''
  return spread(list(row.values.values())) + more


def collapsed(row):
  """'1 of 5 collapsed, 0.7400 ± 0.0100 without' of a Row, or ''."""
  gone = sum(row.sound.get(seed) != value for seed, value in row.values.items())
  without = f', {spread(list(row.sound.values()))} without' if row.sound else ''
  return f'{gone} of {len(row.values)} collapsed{without}' if gone else ''


def probability(p):
  return '-' if p is None else '< 0.0001' if p < 1e-4 else f'{p:.4f}'


def notes(panel):
  """Sentences on what a panel's table shows, and what it does not have, and why."""
  rows = panel.rows(panel.metrics[0])
  best = [arm.label for arm in panel.arms if any(x['config']['eval.patience'] for x in arm.runs)]
  yield (
    'Values are of the last evaluation of a run'
    + (
      best
      and (
        f'; those of {", ".join(best)}, which may stop early, of the one that was best by '
        'checkpoint.best_metric on the same examples, which flatters them'
      )
      or ''
    )
    + '.'
  )
  if any(row.sound != row.values for row in rows):
    yield 'Runs that collapsed, to one answer for every example, are in all means and tests.'
  if few := [row.label for row in rows if 0 < len(row.values) < report_statistics.FEWEST]:
    yield (
      f'No interval and no test of fewer than {report_statistics.FEWEST} seeds: {", ".join(few)}.'
    )
  if none := [row.label for row in rows if not row.values]:
    yield f'Without a number that is finite: {", ".join(none)}.'
  if not panel.baseline and len(rows) > 1:
    yield 'No arm is the baseline here, so there are no differences; --baseline names one.'
  if panel.baseline and (
    apart := [r.label for r in rows if r.values and not r.difference and r.label != panel.baseline]
  ):
    yield f'Without a seed that the baseline has too: {", ".join(apart)}.'
  if level := panel.level(panel.metrics[0]):
    of_text = level[1] == 'unigram'
    unit, better = (' nats', ', on held-out text; lower is better') if of_text else ('', '')
    yield f'To beat: {level[0]:.4f}{unit} ({level[1]}){better}.'
    if panel.is_unbeaten(rows):
      yield UNBEATEN


def scores(panel):
  """(header, rows) of the means of the other scores."""
  others = panel.metrics[1:]
  by_metric = [panel.rows(name) for name in others]
  return ('arm', *others), [
    (arm.label, *(mean_of(rows[i]) for rows in by_metric)) for i, arm in enumerate(panel.arms)
  ]


def more_tables(panel):
  """{title: (header, rows)} of what stands below the table of a panel, if there is a number."""
  lengths = report_lengths.table(panel.arms, panel.metrics[0])
  tables = {'By the length of the texts, mean (examples)': lengths, COSTS: costs(panel)}
  return {k: x for k, x in tables.items() if {cell for row in x[1] for cell in row[1:]} - {'-'}}


def costs(panel):
  """(header, rows) of parameters, operations, and tokens and time as means over an arm's runs."""
  rows = []
  for arm in panel.arms:
    ends = [(report_figures.points(run, panel.metrics[0]) or [{}])[-1] for run in arm.runs]
    means = [statistics.fmean(end.get(x, 0) for end in ends) for x in ('tokens', 'seconds')]
    counts = (f'{mean:,.0f}' if mean > 0 else '-' for mean in means)
    rows.append((arm.label, *report_runs.costs(arm.runs[0]), *counts))
  return ('arm', 'parameters', 'FLOPs', 'tokens, mean', 'seconds of training, mean'), rows


def differences(names, values):
  """(header, rows): a line for each field in which arms differ."""
  rows = [(name, *(each[i] for each in values.values())) for i, name in enumerate(names)]
  return ('field', *values), rows


def commits(report):
  commits = sorted({run['commit'][:12] + '+' * run['commit'].endswith('+') for run in report.runs})
  return f'Commits of the code: {", ".join(x or "not known" for x in commits)}.'


# ---- HTML ----------------------------------------------------------------------------------------


def html_table(header, rows, baseline=''):
  cell = lambda tag, text: f'<{tag}>{html.escape(text)}</{tag}>'
  out = ['<div class="wide"><table><thead><tr>', *(cell('th', x) for x in header), '</tr></thead>']
  for row in rows:
    marked = ' class="baseline"' if baseline and row[0] == baseline else ''
    out += [f'<tr{marked}>', *(cell('td', x) for x in row), '</tr>']
  return ''.join([*out, '</table></div>'])


def page(report, title, pictures):
  """The text of report.html."""
  say = html.escape
  out = [
    '<!doctype html><html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    f'<title>{say(title)}</title><style>{STYLE}</style></head><body><h1>{say(title)}</h1>',
    f'<p class="note">{say(METHOD)}</p>',
  ]
  for number, panel in enumerate(report.panels):
    rows = [cells(row, panel.baseline) for row in panel.rows(panel.metrics[0])]
    out += [f'<h2>{say(heading(panel))}</h2>', html_table(HEADER, rows, panel.baseline)]
    out += [f'<p class="note">{say(note)}</p>' for note in notes(panel)]
    for _, caption, svg in pictures.get(number, ()):
      drawing = svg[svg.index('<svg') :]
      out.append(f'<figure>{drawing}<figcaption>{say(caption)}</figcaption></figure>')
    if panel.metrics[1:]:
      out += ['<h3>Other scores, mean ± standard deviation</h3>', html_table(*scores(panel))]
    for name, table in more_tables(panel).items():
      out += [f'<h3>{say(name)}</h3>', html_table(*table)]
  out.append('<h2>In what the arms differ</h2>')
  for objective, (names, values) in report.differences.items():
    out.append(f'<h3>{say(objective)}</h3>')
    out.append(html_table(*differences(names, values)) if names else '<p>In nothing.</p>')
  if report.remarks:
    out += [
      '<h2>Left out, or to be looked at</h2><ul>',
      *(f'<li>{say(x)}</li>' for x in report.remarks),
      '</ul>',
    ]
  out += ['<h2>Runs</h2>', html_table(*listing(report))]
  out.append(f'<p class="note">{say(commits(report))}</p>')
  return '\n'.join([*out, '</body></html>\n'])


def listing(report):
  """(header, rows) of all runs."""
  arms = {id(run): arm.label for panel in report.panels for arm in panel.arms for run in arm.runs}
  rows = []
  for run in report.runs:
    last = str(max((line['step'] for line in run['lines']), default=0))
    seed, status = str(run['config'].get('seed', '-')), report.status.get(run['path'], '')
    rows.append((str(run['path']), arms.get(id(run), '-'), seed, last, status))
  return ('run', 'arm', 'seed', 'steps', ''), rows


# ---- Text, Markdown, LaTeX, CSV ------------------------------------------------------------------


def text(report):
  """What the terminal shows."""
  out = []
  for panel in report.panels:
    rows = [cells(row, panel.baseline) for row in panel.rows(panel.metrics[0])]
    out += [heading(panel), '', *aligned([HEADER, *rows]), '', *notes(panel), '']
    for name, (header, rows) in more_tables(panel).items():
      out += [name, *aligned([header, *rows]), '']
  return '\n'.join([*out, *report.remarks]).strip()


def markdown_table(header, rows):
  line = lambda row: '| ' + ' | '.join(text.replace('|', r'\|') for text in row) + ' |'
  return '\n'.join([line(header), '|' + '---|' * len(header), *map(line, rows), ''])


def markdown(report, title, pictures):
  """The text of report.md, which shows the SVG files beside it."""
  out = [f'# {title}', '', METHOD, '']
  for number, panel in enumerate(report.panels):
    rows = [cells(row, panel.baseline) for row in panel.rows(panel.metrics[0])]
    out += [f'## {heading(panel)}', '', markdown_table(HEADER, rows)]
    out += [f'{note}\n' for note in notes(panel)]
    out += [f'![{caption}]({name}.svg)\n' for name, caption, _ in pictures.get(number, ())]
    if panel.metrics[1:]:
      out += ['### Other scores, mean ± standard deviation', '', markdown_table(*scores(panel))]
    for name, table in more_tables(panel).items():
      out += [f'### {name}', '', markdown_table(*table)]
  for objective, (names, values) in report.differences.items():
    out += [f'## In what the arms of {objective} differ', '']
    out.append(markdown_table(*differences(names, values)) if names else 'In nothing.\n')
  if report.remarks:
    out += ['## Left out, or to be looked at', '', *(f'- {x}' for x in report.remarks), '']
  return '\n'.join([*out, commits(report), ''])


def latex(report):
  r"""The text of table.tex: a table of each panel, narrow enough for a column of text, which wants
  \usepackage{booktabs}. The other tables' numbers are in report.md."""
  out = []
  for panel in report.panels:
    out += [
      f'% {heading(panel)}. {METHOD}'.replace('’', "'"),
      r'{\small',
      r'\begin{tabular}{lrlll}',
      r'\toprule',
      latex_line(NARROW),
      r'\midrule',
    ]
    notes = []
    for row in panel.rows(panel.metrics[0]):
      label, seeds, _, _, difference, *_, corrected = cells(row, panel.baseline)
      if gone := collapsed(row):
        notes.append(gone)
      mean = spread(list(row.values.values())) + '†' * len(notes) * bool(gone)
      if row.difference and (within := row.difference.interval):
        difference += f' ± {(within[1] - within[0]) / 2:.4f}'
      out.append(latex_line((label, seeds, mean, difference, corrected)))
    out += [r'\bottomrule', r'\end{tabular}']
    out += [r'\par ' + latex_text('†' * i + ' ' + note) for i, note in enumerate(notes, 1)]
    out += [r'\par ' + UNBEATEN] * panel.is_unbeaten(panel.rows(panel.metrics[0])) + ['}', '']
  return '\n'.join(out)


SPECIAL = {
  '\\': r'\textbackslash{}',
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
  '±': r'$\pm$',
  '†': r'\dag{}',
  '<': r'$<$',
  '>': r'$>$',
  **{x: '\\' + x for x in '&%$#_{}'},
}


def latex_text(text):
  escaped = ''.join(SPECIAL.get(x, x) for x in text)
  return re.sub(r'(?<!\S)([-+])(?=\d)', r'$\1$', escaped)


def latex_line(row):
  return ' & '.join(map(latex_text, row)) + r' \\'


def results(report):
  """The text of results.csv: a line for each run, with its final scores and the fields in which
  runs differ."""
  metrics = list(dict.fromkeys(name for panel in report.panels for name in panel.metrics))
  fields = list(dict.fromkeys(x for names, _ in report.differences.values() for x in names))
  where = {
    id(run): (number, panel, arm)
    for number, panel in enumerate(report.panels)
    for arm in panel.arms
    for run in arm.runs
  }
  file = io.StringIO()
  writer = csv.writer(file, lineterminator='\n')
  writer.writerow(
    [
      'run',
      'objective',
      'table',
      'arm',
      'seed',
      'status',
      'step',
      'parameters',
      'flops',
      'tokens',
      'seconds',
      *metrics,
      *fields,
    ]
  )
  for run in report.runs:
    number, panel, arm = where.get(id(run), ('', None, None))
    points = report_figures.points(run, panel.metrics[0]) if panel else ()
    last = points[-1] if points else {'step': report_runs.last_step(run)}
    writer.writerow(
      [
        run['path'],
        run['config']['objective'],
        number,
        arm.label if arm else '',
        run['config'].get('seed', ''),
        report.status.get(run['path'], ''),
        last.get('step', ''),
        run['costs'].get('parameters', ''),
        *(last.get(name, '') for name in ('flops', 'tokens', 'seconds')),
        *(report_runs.final(run, name) if panel else None for name in metrics),
        *(run['config'].get(name, '') for name in fields),
      ]
    )
  return file.getvalue()
