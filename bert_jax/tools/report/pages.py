"""The pages of a report: report.html with its pictures, report.md, table.tex and results.csv."""

import io
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from bert_jax import files
from bert_jax.command_line import aligned
from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.tools.report import figures, panels, sentences
from bert_jax.tools.report.panels import Panel, Report

WRITTEN = 'written.txt'  # the names of the files that a report has written, one a line
METHOD = (
  'Mean ± standard deviation over seeds, of the last evaluation of a run (with eval.patience of '
  'its best, which flatters). 95 % intervals: over other seeds Student’s t, over other examples '
  'Wilson’s. A difference is the mean of arm minus baseline over the seeds of both; p is of a '
  'paired t-test over seeds, corrected for all comparisons of its column (Holm), and over examples '
  'of McNemar’s exact test, the lowest and the highest of the seeds. Collapsed runs (one answer '
  'for every example) are in all means. -: no such number, or fewer than 3 seeds.'
)
CSV = (
  'results.csv has a line for each run, in the order of the tables: the run, its arm and how it '
  'ended, parameters and FLOPs, the commit of the code, the scores that count, and the fields in '
  'which runs differ, of the run that it started from as "init_from: NAME".'
)
PAGE = jinja2.Environment(autoescape=True, trim_blocks=True).from_string("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title><style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: .7em 0; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .25em .8em .25em 0; border-bottom: 1px solid #ddd; }
figure { margin: 1em 0 } figure svg { max-width: 100%; height: auto; } figcaption, p { color: #555 }
</style></head><body><h1>{{ title }}</h1><p>{{ method }}</p>
{% for section in sections %}<h2>{{ section.title }}</h2>
{{ section.table.to_html(index=False, border=0) | safe }}
{% for note in section.notes %}<p>{{ note }}</p>
{% endfor %}{% for picture in section.pictures %}
<figure>{{ picture.svg() | safe }}<figcaption>{{ picture.caption }}</figcaption></figure>
{% endfor %}{% endfor %}</body></html>
""")


class Picture(NamedTuple):
  name: str  # of its files
  caption: str
  figure: Figure

  def drawn(self, ending: str) -> bytes:
    """The content of a file."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context(figures.STYLE):
      self.figure.savefig(file, format=ending, dpi=150)
    return file.getvalue()

  def svg(self) -> str:
    text = self.drawn('svg').decode()
    return text[text.index('<svg') :]


class Section(NamedTuple):
  """A table of texts, with the notes and the pictures below it."""

  title: str
  table: pd.DataFrame
  notes: Sequence[str] = ()
  pictures: Sequence[Picture] = ()


def sections(report: Report, drawn: bool = True) -> Iterator[Section]:
  """Yields all parts of a report."""
  if len(report.panels) > 1:
    yield Section('All tasks', panels.overview(report))
  for number, panel in enumerate(report.panels):
    about = f'{panel.metric}{panel.apart}'
    yield Section(
      f'{panel.learned}: {about}',
      panels.comparison(panel, panel.metric),
      notes=list(sentences.notes(panel)),
      pictures=list(pictures_of(panel, number)) if drawn else [],
    )
    for title, table in panels.more_tables(panel).items():
      yield Section(f'{about}: {title}', table)
  yield Section(
    'Runs in no mean, or with a remark', panels.odd_runs(report), report.results.remarks
  )


def pictures_of(panel: Panel, number: int) -> Iterator[Picture]:
  import matplotlib

  final = (
    f'{sentences.strongest(panel)} Left: final values, a dot for each seed, the mean and its '
    'interval over seeds; dotted: a guess. Right: the difference of each seed to the baseline.'
  )
  along_steps = (
    'Means over seeds with their intervals, of the rows that are evaluated at every step; dotted: '
    'a guess on the same rows.'
  )
  name = re.sub(r'\W+', '-', f'{number}-{panel.task}-{panel.metric}')
  with matplotlib.rc_context(figures.STYLE):
    yield Picture(f'{name}-final', final, figures.finals(panel))
    curves = figures.curves(panel)
    if curves:
      yield Picture(f'{name}-curves', along_steps, curves)


def write(report: Report, out: Path | str, title: str) -> list[str]:
  """Writes the pages and pictures into a folder, in the place of those that a report wrote there
  before: (names of the files)."""
  out = Path(out)
  parts = list(sections(report))
  contents = {
    'report.html': html(parts, title).encode(),
    'report.md': markdown(parts, title).encode(),
    'table.tex': latex(report).encode(),
    'results.csv': panels.results_csv(report).encode(),
  }
  for part in parts:
    for picture in part.pictures:
      for ending in ('pdf', 'png'):
        contents[f'{picture.name}.{ending}'] = picture.drawn(ending)
  before = files.read_text(out / WRITTEN).split('\n')
  for name in contents:
    if name not in before and files.exists(out / name):
      raise InputError(f'{out / name} is not of a report; choose another folder by --out.')
  files.make_folder(out)
  for name in set(before) & set(files.names(out)):
    (out / name).unlink()  # it may show other runs
  files.write_whole(out / WRITTEN, '\n'.join(contents))
  for name, content in contents.items():
    files.write_whole(out / name, content)
  return list(contents)


def html(parts: Sequence[Section], title: str) -> str:
  return PAGE.render(title=title, sections=parts, method=METHOD)


def shown(report: Report) -> str:
  """The tables and pictures of a report as HTML, for a cell of a notebook."""
  return html(list(sections(report)), 'Report')


def markdown(parts: Sequence[Section], title: str) -> str:
  out = [f'# {plain(title)}', METHOD, CSV]
  for part in parts:
    lines = []
    for row in panels.as_rows(part.table):
      cells = ' | '.join(map(plain, row))
      lines.append(f'| {cells} |')
    lines.insert(1, '|' + '---|' * len(part.table.columns))
    out += [f'## {plain(part.title)}', '\n'.join(lines)]
    out += [plain(note) for note in part.notes]
    out += [f'![{plain(picture.caption)}]({picture.name}.png)' for picture in part.pictures]
  return '\n\n'.join(out) + '\n'


def plain(text: str) -> str:
  """A text that is no markup in Markdown."""
  return re.sub(r'[][!\\|<*_`]', r'\\\g<0>', text)


def latex(report: Report) -> str:
  """The main tables in LaTeX, without intervals; first that of all tasks, if there are several."""
  out = [r'% Needs \usepackage{booktabs}.', f'% {METHOD}']
  if len(report.panels) > 1:
    out += ['% All tasks', panels.overview(report).to_latex(index=False, escape=True)]
  for panel in report.panels:
    table = panels.comparison(panel, panel.metric)[panels.NARROW]
    out += [f'% {panel.learned}: {panel.metric}', table.to_latex(index=False, escape=True)]
  return '\n'.join(out)


def text(report: Report) -> str:
  """The tables of a report for a terminal."""
  out = []
  for part in sections(report, drawn=False):
    lines = aligned(panels.as_rows(part.table)) if len(part.table) else []
    out += [part.title, '', *lines, *part.notes, '']
  return '\n'.join([*out, METHOD])
