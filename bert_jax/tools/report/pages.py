"""Writes a report from the same tables as HTML with pictures, Markdown, LaTeX, CSV and text."""

import html
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from bert_jax import files
from bert_jax.command_line import aligned
from bert_jax.errors import printable
from bert_jax.files import Path, write_whole
from bert_jax.tools.report import arms as report_arms
from bert_jax.tools.report import figures, tables
from bert_jax.tools.report.panels import Report
from bert_jax.tools.report.statistics import FEWEST
from bert_jax.tools.report.tables import Table

if TYPE_CHECKING:
  from matplotlib.figure import Figure

# Of each panel (name of the files, caption, {ending: content}).
Pictures = list[list[tuple[str, str, dict[str, bytes]]]]
# The formats of pictures, with metadata that leave out the date.
FORMATS = {'pdf': {'CreationDate': None}, 'svg': {'Date': None}, 'png': {}}
EARLIER = re.compile(r'-(curves|final|scores|lengths)(-\d+)?(-column)?\.(pdf|svg|png)$')
METHOD = (
  'Mean ± standard deviation over the seeds; intervals are Student’s t at 95 %, from '
  f'{FEWEST} seeds on. A difference is the mean of arm minus baseline over the '
  'seeds that both have; p is of a paired t-test, and corrected for all comparisons of its '
  'column (Holm), also where it stands beside a mean. Scores of N examples are rounded to 1/N, '
  'which is counted as variance where N is recorded (not of pre-training and probes). All of it '
  'speaks of other seeds on the same data, not of other examples.'
)
SHORT = 30  # letters of a cell that stand on one line
LETTER, APART = 4.2, 3  # points: a letter of footnotesize is wide, columns are apart (twice)
ROOM = 'A column of two (table) has some 240, both (table*) 450 to 500; --label shortens names.'
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1100px; margin: 2em auto;
       padding: 0 1em; }
h1, h2, h3 { line-height: 1.2; margin: 1.6em 0 .5em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .7em 0; }
th, td { text-align: left; padding: .25em .8em .25em 0; border-bottom: 1px solid #ddd;
         vertical-align: top; } .whole { white-space: nowrap; }
thead th { border-bottom: 1.5px solid #222; }
tr.baseline { font-weight: 600; }
figure { margin: 1em 0; break-inside: avoid; } figure svg { max-width: 100%; height: auto; }
figcaption, .note { color: #555; font-size: 90%; }
.wide { overflow-x: auto; } li { overflow-wrap: anywhere; }
@media print { body { margin: 0; max-width: none; font-size: 10pt; } .wide { overflow: visible; }
  .whole { white-space: normal; } table { font-size: 8pt; }
  h2, h3 { break-after: avoid; } tr { break-inside: avoid; } }
"""
# The LaTeX commands for special characters.
SPECIAL = {x: '\\' + x for x in '&%$#_{}'} | {'±': r'$\pm$', '<': '$<$', '>': '$>$'}
SPECIAL |= dict(zip(tables.MARKS, (r'\dag{}', r'\ddag{}', r'\S{}', r'\P{}')))
SPECIAL |= {'\\': r'\textbackslash{}', '~': r'\textasciitilde{}', '^': r'\textasciicircum{}'}


def write(report: Report, out: Path | str, title: str) -> list[str]:
  out = Path(out)
  out.mkdir(parents=True, exist_ok=True)
  for earlier in filter(EARLIER.search, files.names(out)):
    (out / earlier).unlink()  # it may show other runs
  pictures, names = drawn(report, FORMATS), []
  for name, _, files_of in sum(pictures + drawn(report, ['pdf'], '-column'), []):
    for ending, content in files_of.items():
      write_whole(out / f'{name}.{ending}', content)
    endings = ','.join(files_of)
    names.append(f'{name}.{{{endings}}}' if len(files_of) > 1 else f'{name}.{endings}')
  texts = {
    'report.html': page(report, title, pictures),
    'report.md': markdown(report, title, pictures),
    'results.csv': tables.results(report),
    'table.tex': latex(report),
  }
  for name, text in texts.items():
    write_whole(out / name, text)
  return [*texts, *names]


def drawn(report: Report, endings: Iterable[str], column: str = '') -> Pictures:
  """Renders the pictures of a report, as wide as figures.WIDTHS says of `column`."""
  import matplotlib

  out = []
  with matplotlib.rc_context(figures.STYLE):
    of = lambda panel: '-'.join(filter(None, (panel.objective, panel.metrics[0], panel.sweep)))
    names = [re.sub(r'\W+', '-', of(panel)) for panel in report.panels]
    for number, (panel, base) in enumerate(zip(report.panels, names)):
      out.append([])
      for kind, caption, figure in figures.panel_figures(panel, figures.WIDTHS[column]):
        name = f'{base}-{kind}' + f'-{number}' * (names.count(base) > 1) + column
        out[-1].append((name, caption, saved(figure, name, endings)))
  return out


def saved(figure: 'Figure', name: str, endings: Iterable[str]) -> dict[str, bytes]:
  """Renders a figure, {ending: bytes}; without the date, so that the bytes are reproducible."""
  import matplotlib

  out = {}
  with matplotlib.rc_context({'svg.hashsalt': name}):
    for ending in endings:
      file = io.BytesIO()
      figure.savefig(file, format=ending, dpi=150, metadata=FORMATS[ending])
      out[ending] = file.getvalue()
  return out


def html_table(table: Table) -> str:
  breaks = r'/(?=\S)|,(?=[^\s\d])'  # in no number
  broken = lambda text: re.sub(breaks, r'\g<0><wbr>', html.escape(text))
  cell = lambda text: f'<td{" class=whole" * (len(text) <= SHORT)}>{broken(text)}</td>'
  header = ''.join(f'<th>{html.escape(x)}</th>' for x in table.header)
  out = [f'<div class="wide"><table><thead><tr>{header}</tr></thead>']
  for cells in table.rows:
    marked = ' class="baseline"' if table.baseline and cells[0] == table.baseline else ''
    out.append(f'<tr{marked}>{"".join(map(cell, cells))}</tr>')
  return ''.join([*out, '</table></div>'])


def headed(tag: str, table: Table) -> str:
  return f'<{tag}>{html.escape(table.title)}</{tag}>{html_table(table)}'


def note(text: str) -> str:
  return f'<p class="note">{html.escape(text)}</p>'


def shown(report: Report) -> str:
  """The tables and pictures of a report as HTML, for a cell of a notebook."""
  return '\n'.join(sections(report, drawn(report, ['svg'])))


def sections(report: Report, pictures: Pictures) -> Iterator[str]:
  """Yields the HTML of each panel's tables and pictures, and the remarks. A picture has its caption
  as its title."""
  for panel, some in zip(report.panels, pictures):
    yield headed('h2', tables.main_table(panel))
    yield from map(note, tables.notes(panel))
    for _, caption, content in some:
      svg = content['svg'].decode()
      caption = f'<figcaption>{html.escape(caption)}</figcaption>'
      yield f'<figure>{caption}{svg[svg.index("<svg") :]}</figure>'
    yield from (headed('h3', table) for table in tables.more_tables(panel))
  if report.remarks:
    remarks = (f'<li>{html.escape(x)}</li>' for x in report.remarks)
    yield f'<h2>Left out, or to be looked at</h2><ul>{"".join(remarks)}</ul>'


def page(report: Report, title: str, pictures: Pictures) -> str:
  out = [
    '<!doctype html><html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    f'<title>{html.escape(title)}</title><style>{STYLE}</style></head>',
    f'<body><h1>{html.escape(title)}</h1>{note(METHOD)}',
  ]
  if len(report.panels) > 1:
    out += [headed('h2', tables.overview(report)), *map(note, overview_notes(report))]
  out += sections(report, pictures)
  if differing := [table for table in tables.differences(report) if table.rows]:
    out += ['<h2>In what the arms differ</h2>', *(headed('h3', table) for table in differing)]
  out += [headed('h2', tables.listing(report)), note(tables.commits(report))]
  return '\n'.join([*out, '</body></html>\n'])


def plain(text: str) -> str:
  """A text without HTML, links and pictures, for Markdown."""
  escaped = html.escape(text, quote=False).replace('&lt; ', '< ')  # before a blank it is no tag
  return re.sub(r'[][!\\]', r'\\\g<0>', escaped)


def markdown_table(table: Table) -> str:
  cell = lambda text: ' '.join(plain(text).replace('|', r'\|').split('\n'))
  line = lambda row: '| ' + ' | '.join(map(cell, row)) + ' |'
  separator = '|' + '---|' * len(table.header)
  return '\n'.join([line(table.header), separator, *map(line, table.rows), ''])


def markdown(report: Report, title: str, pictures: Pictures) -> str:
  """The text of report.md, which shows the SVG files beside it."""
  section = lambda table, level='##': f'{level} {plain(table.title)}\n\n{markdown_table(table)}'
  out = [f'# {plain(title)}\n', f'{METHOD}\n']
  if len(report.panels) > 1:
    out += [
      section(tables.overview(report)),
      *(f'{plain(note)}\n' for note in overview_notes(report)),
    ]
  for panel, some in zip(report.panels, pictures):
    out.append(section(tables.main_table(panel)))
    out += [f'{plain(note)}\n' for note in tables.notes(panel)]
    out += [f'![{plain(caption)}]({name}.svg)\n' for name, caption, _ in some]
    out += [section(table, '###') for table in tables.more_tables(panel)]
  if differing := [table for table in tables.differences(report) if table.rows]:
    out += ['## In what the arms differ\n', *(section(table, '###') for table in differing)]
  if report.remarks:
    out += ['## Left out, or to be looked at\n', *(f'- {plain(x)}' for x in report.remarks), '']
  return '\n'.join([*out, plain(tables.commits(report)), ''])


def overview_notes(report: Report) -> Iterator[str]:
  """Sentences below the table of all sweeps, each of one of them: what no mean holds, and where
  differences say nothing."""
  for panel in report.panels:
    name = panel.learned + f' ({panel.sweep})' * bool(panel.sweep)
    yield from (f'{name}: {x}' for x in (*tables.absent(panel), *tables.warnings(panel)))


def latex(report: Report) -> str:
  """The text of table.tex: a table of all panels, if there are several, and one of each."""
  out, each = [r'% Needs \usepackage{booktabs}.'], []
  if len(report.panels) > 1:
    every = tables.overview(report, notes := [])
    notes += [*filter(None, [every.dashes]), *overview_notes(report)]
    each.append((every.title, every.header, every.rows, notes))
  for panel in report.panels:
    title = report_arms.readable([tables.main_table(panel).title])[0]
    each.append((title, tables.NARROW, *tables.narrow(panel)))
  for title, header, rows, notes in each:
    out.append(f'% {title}. {METHOD}'.replace('’', "'").replace('\n', ' '))
    out += [*tabular(header, rows), *(r'\par ' + tex(note) for note in notes), '}', '']
  return '\n'.join(out)


def tabular(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
  """Yields the lines of a table in LaTeX, after a comment that says how wide it is; in a group that
  its caller closes."""
  columns = zip(header, *rows)
  letters = [max(len(line) for cell in cells for line in cell.split('\n')) for cells in columns]
  points = LETTER * sum(letters) + 2 * APART * len(letters)
  yield f'% About {points:.0f} pt wide. {ROOM}'
  line = lambda row: ' & '.join(map(lines_of, row)) + r' \\'
  yield rf'{{\footnotesize\setlength{{\tabcolsep}}{{{APART}pt}}'
  yield from (rf'\begin{{tabular}}{{lr{"l" * (len(letters) - 2)}}}', r'\toprule', line(header))
  yield from (r'\midrule', *map(line, rows), r'\bottomrule', r'\end{tabular}')


def lines_of(text: str) -> str:
  """A cell in LaTeX, of one line or several."""
  first, *others = re.split(',?\n', text)
  cell = r' \\ '.join(map(tex, (first, *others)))
  return rf'\begin{{tabular}}[t]{{@{{}}l@{{}}}}{cell}\end{{tabular}}' if others else cell


def tex(text: str) -> str:
  escaped = ''.join(SPECIAL.get(x, x) for x in text)
  return re.sub(r'(?<!\S)([-+])(?=\d)', r'$\1$', escaped)


def text(report: Report) -> str:
  out = []
  for panel in report.panels:
    first, *others = tables.main_table(panel), *tables.more_tables(panel)
    out += [first.title, '', *aligned([first.header, *first.rows]), '']
    out += [*tables.notes(panel), '']
    for table in others:
      if not table.title.startswith(tables.SCORES):
        out += [table.title, *aligned([table.header, *table.rows]), '']
  return printable('\n'.join([*out, *report.remarks]).strip())
