"""How scores depend on the length of a text: what a report says of the tables in scores.json."""

import statistics


def by_length(runs, metric):
  """{tokens: (examples, [score of each run])} of runs that differ in the seed only; texts of the
  shortest bucket first."""
  out = {}
  for run in runs:
    for line in run['by_length']:
      if line.get(metric) is not None:
        out.setdefault(line['tokens'], (line['examples'], []))[1].append(line[metric])
  return dict(sorted(out.items(), key=lambda item: shortest(item[0])))


def examples(runs, metric):
  """How many examples a score of these runs is of; 0 if they do not say, and of a loss."""
  return sum(count for count, _ in by_length(runs, metric).values())


def shortest(tokens):
  """The least length of a bucket, as 65 of '65-128'."""
  return int(tokens.split('-')[0])


def lengths(arms, metric):
  """The buckets of length that occur in some arms, shortest first."""
  return sorted({x for arm in arms for x in by_length(arm.runs, metric)}, key=shortest)


def table(arms, metric):
  """(header, rows) of means, with a column for each length that occurs."""
  columns, rows = lengths(arms, metric), []
  for arm in arms:
    scores = by_length(arm.runs, metric)
    means = {x: f'{statistics.fmean(values):.4f} ({n})' for x, (n, values) in scores.items()}
    rows.append((arm.label, *(means.get(x, '-') for x in columns)))
  return ('arm', *(f'{x} tokens' for x in columns)), rows
