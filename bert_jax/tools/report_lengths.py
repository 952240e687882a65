"""How scores depend on the length of a text: what a report says of the tables in scores.json."""

import statistics

from bert_jax.tools import arguments


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


def lines(shown):
  """The lines of a table of [(objective, in what the runs differ, metric, runs)] that has a column
  for each length that occurs; [] if no run has been scored by length."""
  rows = [(name, text, metric, by_length(runs, metric)) for name, text, metric, runs in shown]
  rows = [row for row in rows if row[3]]
  lengths = sorted({x for row in rows for x in row[3]}, key=shortest)
  if not lengths:
    return []
  table = [('objective', 'runs that differ in', 'metric', *(f'{x} tokens' for x in lengths))]
  for name, text, metric, scores in rows:
    cells = (
      f'{statistics.mean(scores[x][1]):.4f} ({scores[x][0]})' if x in scores else '-'
      for x in lengths
    )
    table.append((name, text or '-', metric, *cells))
  return ['by length (examples):', *arguments.aligned(table)]


def draw(axis, shown):
  """Draws the scores over the length, a line for each of [(label, metric, runs)]."""
  for label, metric, runs in shown:
    points = by_length(runs, metric)
    means = [statistics.mean(scores) for _, scores in points.values()]
    axis.plot(list(points), means, 'o-', label=label)
  axis.set(title='by length', xlabel='tokens of a text', ylabel=metric)
  axis.legend(fontsize=7)
