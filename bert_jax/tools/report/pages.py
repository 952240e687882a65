"""Writes a report from the same tables as HTML with pictures, Markdown, LaTeX, CSV and text."""

import html
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.command_line import aligned
from bert_jax.files import write_whole
from bert_jax.tools.report import figures, tables
from bert_jax.tools.report.panels import Report
from bert_jax.tools.report.statistics import FEWEST
from bert_jax.tools.report.tables import Table

if TYPE_CHECKING:
  from matplotlib.figure import Figure

FORMATS = ('pdf', 'svg', 'png')
METHOD = (
  'Mean ± standard deviation over the seeds; intervals are Student’s t at 95 %, from '
  f'{FEWEST} seeds on. A difference is the mean of arm minus baseline over the '
  'seeds that both have; p is of a paired t-test, and corrected for all comparisons of its '
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
# The LaTeX commands for special characters.
SPECIAL = {x: '\\' + x for x in '&%$#_{}'} | {'±': r'$\pm$', '†': r'\dag{}', '<': '$<$', '>': '$>$'}
SPECIAL |= {'\\': r'\textbackslash{}', '~': r'\textasciitilde{}', '^': r'\textasciicircum{}'}


def write(report: Report, out: Path | str, title: str) -> list[str]:
  """Writes the files of a Report into a folder; returns their names."""
  out = Path(out)
  out.mkdir(parents=True, exist_ok=True)
  pictures, names = (
    [],
    [],
  )  # pictures: for each panel [{'name' of the files, 'caption', 'svg'}, ...]
  for earlier in (p for ending in FORMATS for p in out.glob(f'*-*.{ending}')):
    if re.search(r'-(curves|final|scores|lengths)(-\d+)?$', earlier.stem):
      earlier.unlink()  # it may show other runs
  for number, panel in enumerate(report.panels):
    pictures.append([])
    for kind, caption, figure in figures.panel_figures(panel):
      name = re.sub(r'\W+', '-', f'{panel.objective}-{panel.metrics[0]}-{kind}')
      name += f'-{number}' if panel.evaluated_on else ''
      drawn = saved(figure, name)
      for ending, content in drawn.items():
        write_whole(out / f'{name}.{ending}', content)
      svg = drawn['svg'].decode()
      pictures[-1].append({'name': name, 'caption': caption, 'svg': svg[svg.index('<svg') :]})
      names.append(f'{name}.{{{",".join(FORMATS)}}}')
  texts = {
    'report.html': page(report, title, pictures),
    'report.md': markdown(report, title, pictures),
    'results.csv': tables.results(report),
    'table.tex': latex(report),
  }
  for name, text in texts.items():
    write_whole(out / name, text)
  return [*texts, *names]


def saved(figure: 'Figure', name: str) -> dict[str, bytes]:
  """Renders a figure, {ending: bytes}; without the date, so that the bytes are reproducible."""
  import matplotlib

  out, undated = {}, {'svg': {'Date': None}, 'pdf': {'CreationDate': None}, 'png': {}}
  with matplotlib.rc_context({'svg.hashsalt': name}):
    for ending in FORMATS:
      file = io.BytesIO()
      figure.savefig(file, format=ending, dpi=150, metadata=undated[ending])
      out[ending] = file.getvalue()
  return out


# ---- HTML, Markdown, LaTeX -----------------------------------------------------------------------


def html_table(table: Table) -> str:
  cell = lambda tag, text: f'<{tag}>{html.escape(text)}</{tag}>'
  head = (cell('th', x) for x in table.header)
  out = ['<div class="wide"><table><thead><tr>', *head, '</tr></thead>']
  for row in table.rows:
    marked = ' class="baseline"' if table.baseline and row[0] == table.baseline else ''
    out += [f'<tr{marked}>', *(cell('td', x) for x in row), '</tr>']
  return ''.join([*out, '</table></div>'])


def page(report: Report, title: str, pictures: list) -> str:
  """The text of report.html."""
  say = html.escape
  out = [
    '<!doctype html><html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    f'<title>{say(title)}</title><style>{STYLE}</style></head><body><h1>{say(title)}</h1>',
    f'<p class="note">{say(METHOD)}</p>',
  ]
  for panel, drawn in zip(report.panels, pictures):
    table = tables.main_table(panel)
    out += [f'<h2>{say(table.title)}</h2>', html_table(table)]
    out += [f'<p class="note">{say(note)}</p>' for note in tables.notes(panel)]
    caption = lambda x: f'<figcaption>{say(x["caption"])}</figcaption>'
    out += [f'<figure>{x["svg"]}{caption(x)}</figure>' for x in drawn]
    for table in tables.more_tables(panel):
      out += [f'<h3>{say(table.title)}</h3>', html_table(table)]
  out.append('<h2>In what the arms differ</h2>')
  for table in tables.differences(report):
    out.append(f'<h3>{say(table.title)}</h3>')
    out.append(html_table(table) if table.rows else '<p>In nothing.</p>')
  if report.remarks:
    remarks = (f'<li>{say(x)}</li>' for x in report.remarks)
    out += ['<h2>Left out, or to be looked at</h2><ul>', *remarks, '</ul>']
  out += ['<h2>Runs</h2>', html_table(tables.listing(report))]
  out.append(f'<p class="note">{say(tables.commits(report))}</p>')
  return '\n'.join([*out, '</body></html>\n'])


def markdown_table(table: Table) -> str:
  line = lambda row: '| ' + ' | '.join(text.replace('|', r'\|') for text in row) + ' |'
  separator = '|' + '---|' * len(table.header)
  return '\n'.join([line(table.header), separator, *map(line, table.rows), ''])


def markdown(report: Report, title: str, pictures: list) -> str:
  """The text of report.md, which shows the SVG files beside it."""
  out = [f'# {title}', '', METHOD, '']
  for panel, drawn in zip(report.panels, pictures):
    table = tables.main_table(panel)
    out += [f'## {table.title}', '', markdown_table(table)]
    out += [f'{note}\n' for note in tables.notes(panel)]
    out += [f'![{x["caption"]}]({x["name"]}.svg)\n' for x in drawn]
    for table in tables.more_tables(panel):
      out += [f'### {table.title}', '', markdown_table(table)]
  for table in tables.differences(report):
    out += [f'## In what the arms of {table.title} differ', '']
    out.append(markdown_table(table) if table.rows else 'In nothing.\n')
  if report.remarks:
    out += ['## Left out, or to be looked at', '', *(f'- {x}' for x in report.remarks), '']
  return '\n'.join([*out, tables.commits(report), ''])


def latex(report: Report) -> str:
  r"""The text of table.tex: a table of each panel, narrow enough for a column of text. It needs
  \usepackage{booktabs}. The other tables' numbers are in report.md."""
  out, line = [], lambda row: ' & '.join(map(tex, row)) + r' \\'
  for panel in report.panels:
    rows, notes = tables.narrow(panel)
    out.append(f'% {tables.main_table(panel).title}. {METHOD}'.replace('’', "'"))
    out += [r'{\small', r'\begin{tabular}{lrlll}', r'\toprule', line(tables.NARROW), r'\midrule']
    out += [*map(line, rows), r'\bottomrule', r'\end{tabular}']
    out += [*(r'\par ' + tex(note) for note in notes), '}', '']
  return '\n'.join(out)


def tex(text: str) -> str:
  """Escapes a text for LaTeX."""
  escaped = ''.join(SPECIAL.get(x, x) for x in text)
  return re.sub(r'(?<!\S)([-+])(?=\d)', r'$\1$', escaped)


def text(report: Report) -> str:
  """The text that the terminal shows."""
  out = []
  for panel in report.panels:
    first, *others = tables.main_table(panel), *tables.more_tables(panel)
    out += [first.title, '', *aligned([first.header, *first.rows]), '']
    out += [*tables.notes(panel), '']
    for table in others:
      if table.title != tables.SCORES:
        out += [table.title, *aligned([table.header, *table.rows]), '']
  return '\n'.join([*out, *report.remarks]).strip()
