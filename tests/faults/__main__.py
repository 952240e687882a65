"""Reads damaged files of every format that a run reads, and says what became of each (inputs.py).

    python tests/faults --number 20000 --seed 0

Files whose reading ends in a traceback, takes too long or gives something else without a word are
named with their number; the exit status is then 1.
"""

import argparse
import collections
import logging
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(path) for path in Path(__file__).resolve().parents[1:3]]  # tests, and the root

from faults import inputs  # noqa: E402


def main():
  form = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser('tests/faults', description=__doc__, formatter_class=form)
  parser.add_argument('--number', type=int, default=1000, help='of damaged files')
  parser.add_argument('--seed', type=int, default=0, help='of what is damaged, and how')
  parser.add_argument('--first', type=int, default=0, help='the number of the first file')
  args = parser.parse_args()
  logging.disable(logging.WARNING)
  counts, bad = collections.Counter(), False
  with tempfile.TemporaryDirectory() as folder:
    campaign = inputs.Campaign(args.seed, folder)
    for i in range(len(campaign.formats)):  # what reading imports is no memory of a file
      campaign.judge(i)
    for i in range(args.first, args.first + args.number):
      name, done, verdict, text = campaign.judge(i)
      counts[verdict] += 1
      if verdict not in inputs.FINE:
        bad = True
        print(f'{i}: {done} {name}: {verdict}: {text}', file=sys.stderr)
  print(*(f'{n} {verdict}' for verdict, n in counts.most_common()), sep=', ')
  sys.exit(bad)


if __name__ == '__main__':
  main()
