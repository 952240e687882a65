"""Reports the results of all runs in a folder: tables, pages and pictures.

    python -m bert_jax.tools.report S [FOLDER ...] [--baseline norm=layer_norm]

prints the tables and writes S/report: report.html (one file, with its pictures), report.md,
table.tex, results.csv (a line for each run), and each picture as PDF and PNG; all from the workdirs
alone. Of several sweeps (S S-sst2 S-cola) there is one table more, of all tasks.
"""

from collections.abc import Sequence

import jax

from bert_jax.command_line import command_line, command_parser
from bert_jax.errors import log
from bert_jax.files import Path
from bert_jax.tools import arguments
from bert_jax.tools.report import pages, panels


def main(argv: Sequence[str] | None = None) -> None:
  parser = command_parser('tools.report', __doc__)
  add = parser.add_argument
  add('folder', nargs='+', help='workdir, or a folder of workdirs')
  add('--baseline', default='', metavar='ARM', help="to compare with, if not the sweep's")
  add('--out', default='', metavar='DIR', help='default: the folder report in the first folder')
  add('--svm', action='store_true', help='TF-IDF + linear SVM beside classifiers')
  args = parser.parse_args(argv)
  with command_line():
    jax.config.update('jax_platforms', 'cpu')  # a TPU is for the runs
    folders = [Path(folder) for folder in args.folder]
    report = panels.read(*folders, baseline=args.baseline, svm=args.svm)
    out = Path(args.out or next(x for x in folders if x.is_dir()) / 'report')
    arguments.check_writable(out)
    try:
      written = pages.write(report, out, folders[0].resolve().name)
    finally:  # after the files, as who reads it may end first (| head), and if there can be none
      print(pages.text(report))
    log.info('written to %s: %s', out, ', '.join(written))


if __name__ == '__main__':
  main()
