"""Reports the results of all runs in a folder: a table, pages and pictures.

    python -m bert_jax.tools.report S [FOLDER ...] [--baseline norm=layer_norm] [--metric nsp]

prints a table and writes S/report: report.html (one file, with its pictures), report.md, table.tex,
results.csv (a line for each run) and each picture as PDF, SVG and PNG, as wide as two columns of a
paper, and as NAME-column.pdf, as wide as one; all from the workdirs alone, with what tools.probe
found. Of several sweeps (S S-sst2 S-cola) there is one table more, which --table shows.

Runs that differ in nothing but the seed are an arm, one line of a table. Copies of a run count
once, unfinished runs only where no run is finished. Runs that were evaluated on other rows, or
under other masks, have tables of their own.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from bert_jax import tokenizers
from bert_jax.command_line import command_line, command_parser
from bert_jax.errors import InputError, log
from bert_jax.files import Path
from bert_jax.tasks import TASKS
from bert_jax.tools import arguments
from bert_jax.tools.report import figures, pages, panels, probes, tables
from bert_jax.workdir import records
from bert_jax.workdir.recorded import Point, Run

table = pages.text  # the tables of a Report as a text
shown = pages.shown  # the tables and pictures of a Report as HTML


def read(*folders: Path | str, svm: bool = False, **options: Any) -> panels.Report:
  """The Report of the runs below some folders, see panels.report. svm: adds a linear SVM."""
  runs, remarks = records.below(*folders)
  runs, of_probes = probes.with_probes(runs)
  runs += svms(runs) if svm else []
  return panels.report(runs, folders, remarks=[*remarks, *of_probes], **options)


def svms(runs: Sequence[Run]) -> list[Run]:
  """Runs of the family's plain baseline (an SVM), one for each training data of the runs."""
  out = {}
  for run in runs:
    family = TASKS[run.fields['objective']]
    baseline = family.plain_baseline
    if not baseline or not run.config or 'eval' not in run.facts.data:
      continue
    fields = {name: run.fields[name] for name in baseline.fields if name in run.fields}
    if (key := repr(fields)) in out:
      continue
    metrics = baseline.metrics(run.config, tokenizers.load_folder(run.path))
    fields |= {'objective': baseline.name, 'checkpoint.best_metric': '', 'eval.patience': 0}
    facts = dataclasses.replace(run.facts, parameters=None, flops_per_step=None)
    points, path = (Point(0, 'whole', metrics),), Path(f'{run.path} (SVM)')
    out[key] = Run(path, None, fields, family.main_metric(run.config), facts, points=points)
  return list(out.values())


def picture(report: panels.Report, path: Path | str) -> None:
  """Draws the curves of a Report into a file: a column for each of its tables."""
  import matplotlib  # slow to import

  try:
    with matplotlib.rc_context(figures.STYLE):
      figures.side_by_side(report.panels).savefig(path, dpi=120)
  except ValueError as error:
    raise InputError(f'--picture {path} cannot be written: {error}.') from None


def main(argv: Sequence[str] | None = None) -> None:
  parser = command_parser('tools.report', __doc__)
  add = parser.add_argument
  add('folder', nargs='+', help='workdir, or a folder of workdirs')
  add('--metric', default='', help='default: what the objective is judged by')
  add('--baseline', default='', metavar='LABEL', help="the arm to compare with, if not the sweep's")
  add('--out', default='', metavar='DIR', help='default: the folder report in the first folder')
  add('--title', default='', help='of the pages; default: the name of the first folder')
  add(
    '--label', action='append', default=[], metavar='OLD=NEW', help='renames an arm, score or sweep'
  )
  add('--table', action='store_true', help='show one table of all sweeps and tasks, in Markdown')
  add('--svm', action='store_true', help='TF-IDF + linear SVM beside classifiers')
  add('--picture', default='', metavar='PNG', help='draw the curves of all runs into this file too')
  args = parser.parse_args(argv)
  with command_line():
    jax.config.update('jax_platforms', 'cpu')  # a TPU is for the runs
    folders = [Path(folder) for folder in args.folder]
    how = {'baseline': args.baseline, 'renamed': args.label, 'svm': args.svm}
    report = read(*folders, metric=args.metric, **how)
    out = Path(args.out or next(x for x in folders if x.is_dir()) / 'report')
    every = tables.overview(report)
    below = [every.dashes] * bool(every.dashes)
    overall = '\n\n'.join(
      [pages.markdown_table(every).strip(), *below, *pages.overview_notes(report)]
    )
    try:
      arguments.check_writable(out)
      written = pages.write(report, out, args.title or folders[0].resolve().name)
      if args.picture:
        picture(report, args.picture)
    finally:  # after the files, as who reads it may end first (| head), and if there can be none
      print(overall if args.table else table(report))
    for remark in report.remarks if args.table else ():
      log.warning('%s', remark)
    log.info('written to %s: %s', out, ', '.join(written))
    if args.picture:
      print(f'curves: {args.picture}')


if __name__ == '__main__':
  main()
