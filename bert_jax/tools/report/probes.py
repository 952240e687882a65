"""What tools.probe found of the runs of a report, among the scores of their evaluations."""

import collections
from collections.abc import Iterable
from dataclasses import replace

from bert_jax import files
from bert_jax.workdir.json_object import read_object
from bert_jax.workdir.recorded import Run


def with_probes(runs: Iterable[Run]) -> tuple[list[Run], list[str]]:
  """Adds what tools.probe found to the evaluations of the same steps: (runs, remarks). A run that
  was probed on other data than most runs in its folder stays as it was, with a remark."""
  each = [(run, *_probed(run)) for run in runs]
  beside = collections.defaultdict(collections.Counter)
  for run, _, data in each:
    beside[run.path.parent].update([data] if data else [])
  is_other = lambda run, data: data and data != beside[run.path.parent].most_common(1)[0][0]
  why = 'it was probed on other data than most runs beside it, so none of that is shown; probe all'
  remarks = [f'{run.path}: {why} by one command' for run, _, data in each if is_other(run, data)]
  return [run if is_other(run, data) else found for run, found, data in each], remarks


def _probed(run):
  """(a run with what tools.probe found, the checksums of the data that it was probed on)."""
  points, data = [], set()
  for point in run.points:
    if point.kind != 'train' and files.exists(path := run.path / 'probe' / f'{point.step}.json'):
      at = read_object(path)
      data.add(at.inside('settings').take('data', int, 0))
      found = {'probe_loss': at.inside('losses').inside('all').take('loss', float)}
      found['probe_pairs_accuracy'] = (pairs := at.inside('pairs')).take('accuracy', float)
      if (ties := pairs.take('ties', int)) is not None:  # which count as wrong
        found['probe_pairs_ties'] = ties / max(1, pairs.take('pairs', int, ties))
      best = max(at.inside('layers').take('accuracy', list, []), default=None)
      found['probe_tags_accuracy'] = best  # of the best layer
      known = {name: x for name, x in found.items() if x is not None}
      point = point._replace(values={**point.values, **known})
    points.append(point)
  return replace(run, points=tuple(points)), tuple(sorted(data))
