"""Groups runs into the arms of a report, which differ in the seed alone, and names them."""

import collections
import hashlib
import os
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.errors import InputError, quoted
from bert_jax.files import Path
from bert_jax.metrics import CROSS_ENTROPIES
from bert_jax.tasks import TASKS
from bert_jax.tasks.labelled import FEWEST_TEXTS
from bert_jax.workdir import records
from bert_jax.workdir.recorded import Run

MANY = 4  # fields in which runs may differ and still be named by them
# Fields that cannot change a run's result.
WITHOUT_EFFECT = {name for name, field in config_lib.ALL.items() if field.affects == {'free'}}
# Fields that decide which rows and which vocabulary a run reads.
READING = config_lib.fields_affecting('rows', 'vocabulary')
# The two parts of an evaluation that are compared by checksum.
ROWS, VOCABULARY = CHECKSUMS = 'rows of data.eval', 'vocabulary'
PRIORS = {task.prior for task in TASKS.values()} - {''}
SEED = re.compile(r',?seed=\d+$')  # how a sweep ends the name of a run's folder


@dataclass
class Arm:
  """Runs that differ in the seed alone. names: all names by which a user may call the arm. sweep:
  the end of the label that tells it from an arm of another sweep, ' (S-sst2)', or ''."""

  label: str
  names: set[str]
  runs: list[Run]
  sweep: str = ''


def judged(runs: Sequence[Run]) -> tuple[list[Run], dict[Path, dict[str, Any]]]:
  """(runs with what they were evaluated under in their fields, {path of a run: {name: value}}). A
  loss depends on the rows and the vocabulary, a score of labelled examples on the rows, whose
  checksum separates runs only if a file was changed between them."""
  out, evaluated_on, alike = [], {}, {}  # alike: {what decides the rows: {path of a run: checksum}}
  for run in runs:
    data = run.facts.split('eval')
    under = TASKS[run.config.objective].judge(run.config).under if run.config else {}
    out.append(replace(run, fields={k: under.get(k, x) for k, x in run.fields.items()}))
    path = tokenizers.in_folder(run.path)
    vocabulary = hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path else 'none'
    if under:
      rows = {ROWS: data.fingerprint or 'nothing', VOCABULARY: vocabulary}
      evaluated_on[run.path] = {**under, **rows}
      continue
    # What always the same answer scores tells other examples in a file of the same name; of several
    # baselines one that earlier versions record, too.
    levels = data.baselines.items()
    told = {k: x for k, x in levels if x.kind == 'unigram'}
    told = told or {k: x for k, x in levels if k.endswith('accuracy')}
    told = told or {k: x for k, x in levels if x.kind in CROSS_ENTROPIES}
    of = {'data.eval': run.fields['data.eval'] or run.fields['data.train']}
    evaluated_on[run.path] = of | {f'{k} of a {x.kind}': x.value for k, x in told.items()}
    reading = [(name, x) for name, x in run.fields.items() if name in READING]
    same = alike.setdefault(repr((reading, vocabulary)), {})
    same[run.path] = data.fingerprint or 'none'
  for some in alike.values():
    if len(set(some.values())) > 1:
      for path, fingerprint in some.items():
        evaluated_on[path][ROWS] = fingerprint
  return out, evaluated_on


def described(way: frozenset, ways: Mapping[frozenset, Sequence[Arm]]) -> str:
  """How one way of evaluating, of {way: arms}, differs from the others, or within an arm:
  'eval.seed=0 or 3; data.eval=a.txt'. A checksum shows only if the fields that decide it agree."""
  # Numbers without digits that nobody reads, paths as they are seen from here.
  said = lambda x: f'{x:.6g}' if isinstance(x, float) else str(x).removeprefix(f'{Path.cwd()}/')
  values = lambda way, name: sorted({said(dict(x).get(name)) for x in way})
  runs = {way: [run for arm in arms for run in arm.runs] for way, arms in ways.items()}
  fields = lambda way, name: sorted({str(run.fields.get(name)) for run in runs[way]})
  others = [other for other in ways if other != way]
  differ = lambda of, name: any(of(other, name) != of(way, name) for other in others)
  names = dict.fromkeys(name for some in ways for x in some for name, _ in x)
  apart = {
    name: each for name in names if len(each := values(way, name)) > 1 or differ(values, name)
  }
  if others and all(values(other, 'data.eval') != values(way, 'data.eval') for other in others):
    # The file says it: a level need not tell it from another of the same name.
    apart = {name: each for name, each in apart.items() if ' of a ' not in name}
  sums = {name: [x[:8] for x in apart.pop(name)] for name in CHECKSUMS if name in apart}
  if sums:
    known = [name for name in runs[way][0].fields if name in READING]
    apart |= {name: fields(way, name) for name in known if differ(fields, name)}
    read = lambda way: [fields(way, name) for name in known]
    if not others or read(way) in map(read, others):
      apart |= sums
  return '; '.join(f'{name}={" or ".join(each) or "none"}' for name, each in apart.items())


def names_of_folders(runs: Iterable[Run]) -> dict[str, str]:
  """{folder in which runs are: its name}, after the folders above it if others have that name."""
  whole = {str(run.path.parent): os.path.normpath(str(run.path.parent.absolute())) for run in runs}
  ends = lambda path: ['/'.join(path.split('/')[-n:]) for n in range(1, 1 + path.count('/'))]
  counts = collections.Counter(end for path in {*whole.values()} for end in ends(path))
  name = lambda path: next((end for end in ends(path) if counts[end] == 1), path)
  return {folder: name(path) for folder, path in whole.items()}


def sweeps_of(runs: Iterable[Run], words: Mapping[str, str]) -> str:
  """The folders in which runs are, 'S, S-sst2', as `words` call them."""
  return ', '.join(sorted({words[str(run.path.parent)] for run in runs}))


def without_copies(runs: Sequence[Run]) -> tuple[list[Run], dict[Path, Path]]:
  """(runs without copies, {path of a copy: path of the run that got furthest})."""
  kept, copies = {}, {}
  for run in sorted(runs, key=lambda run: -run.measured_step()):
    fields = {k: v for k, v in run.fields.items() if k not in WITHOUT_EFFECT}
    data = {split: facts.fingerprint for split, facts in run.facts.data.items()}
    key = repr((sorted(fields.items()), sorted(data.items()), run.facts.commit))
    first = kept.setdefault(key, run)
    if first is not run:
      copies[run.path] = first.path
  return [run for run in runs if run.path not in copies], copies


def values_of(runs: Iterable[Run], metric: str) -> dict[int, float]:
  """The final values of a metric, {seed: value}; runs of one seed are averaged."""
  by_seed = collections.defaultdict(list)
  for run in runs:
    if (value := run.final(metric)) is not None:
      by_seed[run.fields.get('seed', 0)].append(value)
  return {seed: statistics.fmean(by_seed[seed]) for seed in sorted(by_seed)}


def by_length(runs: Iterable[Run], metric: str) -> dict[str, tuple[int, list[float]]]:
  """{tokens: (examples, [score of each run])} of an arm's runs by length, shortest texts first.
  Lengths of fewer than FEWEST_TEXTS are left out."""
  out = {}
  for run in runs:
    for tokens, (count, score) in run.by_length(metric).items():
      if count >= FEWEST_TEXTS:
        out.setdefault(tokens, (count, []))[1].append(score)
  return dict(sorted(out.items(), key=lambda pair: int(pair[0].split('-')[0])))


def examples(runs: Iterable[Run], metric: str) -> int:
  """How many examples a score of these runs counts; 0 if not recorded, and for a loss."""
  counts = {}
  for run in runs:
    for tokens, (count, scores) in run.lengths.items():
      counts |= {tokens: count} if metric in scores and tokens not in counts else {}
  return sum(counts.values())


def lengths(arms: Iterable[Arm], metric: str) -> list[str]:
  """The buckets of length that occur in some arms, shortest first."""
  return list(by_length((run for arm in arms for run in arm.runs), metric))


def values_in(runs: Sequence[Run], name: str) -> list[Any]:
  """The values of a field in runs: of what the training data fills in, whether it does; of
  min_steps 0 where it changes nothing; of a path such as init_from with {seed} in place of the
  run's own, if no other seed beside it has the same path."""
  values, seeds = [run.fields.get(name) for run in runs], collections.defaultdict(set)
  if name in PRIORS:
    return ['data' if value else 'none' for value in values]
  if name == 'min_steps':
    longer = lambda run: config_lib.is_lengthened(run.config, run.facts.split('train').rows)
    return [value if run.config and longer(run) else 0 for run, value in zip(runs, values)]
  for run, value in zip(runs, values):
    seeds[run.path.parent, str(value)].add(run.fields.get('seed'))
  out = []
  for run, value in zip(runs, values):
    if isinstance(value, str) and len(seeds[run.path.parent, value]) == 1:
      value = re.sub(rf'\bseed={run.fields.get("seed")}\b', 'seed={seed}', value)
    out.append(value)
  return out


def varied(runs: Sequence[Run]) -> dict[str, list[Any]]:
  """{field: its values} of fields, except the seed, in which runs differ and that may change a
  result."""
  ignored = {'seed', 'eval.seed', *WITHOUT_EFFECT}
  names = [name for name in (runs[0].fields if runs else ()) if name not in ignored]
  every = {name: values_in(runs, name) for name in names}
  return {name: values for name, values in every.items() if len({*map(str, values)}) > 1}


def arms_of(runs: Sequence[Run], words: Mapping[str, str]) -> list[Arm]:
  """Groups the runs of one objective into arms, named by sweep.json, or else by the fields in which
  they differ, or, if these are many, by their folder; the folder is added to a name of several.
  The arms of a sweep stand in the order of its plan. words: {path of a folder: its name}."""
  sweeps = {run.path.parent: records.read_sweep(run.path.parent) for run in runs}
  places = list(sweeps)
  order = {x.path / name: i for x in sweeps.values() if x for i, name in enumerate(x.runs)}
  place = lambda run: (places.index(run.path.parent), order.get(run.path, len(order)))
  runs = sorted(runs, key=place)
  fields, groups = varied(runs), {}
  for run, *values in zip(runs, *fields.values()):
    each = zip(fields, values)
    text = ', '.join(f'{name}={"none" if value == "" else value}' for name, value in each)
    groups.setdefault(text, []).append(run)
  names, folders = [], []
  for text, members in groups.items():
    plans = [(run.path.name, sweeps[run.path.parent]) for run in members]
    planned = {plan.runs[name].arm if plan and name in plan.runs else '' for name, plan in plans}
    first, *others = sorted({SEED.sub('', name) for name, _ in plans})
    by_folder = f'{first} and {len(others)} more' if others else first
    in_sweep = planned.pop() if len(planned) == 1 else ''
    folders.append(by_folder)
    names.append(in_sweep or (text if len(fields) <= MANY else by_folder))
  parents = [sweeps_of(members, words) for members in groups.values()]
  several = lambda name: names.count(name) > 1
  ends = [f' ({of})' if several(name) else '' for name, of in zip(names, parents)]
  texts = [name + end for name, end in zip(names, ends)]
  of = zip(texts, names, ends, groups)
  of = [(name, end) if texts.count(text) == 1 else (key, '') for text, name, end, key in of]
  labels = [x + end for x, (_, end) in zip(shortened([x or 'all runs' for x, _ in of]), of)]
  texts = [name + end for name, end in of]
  bare = [label.removesuffix(end) for label, end in zip(labels, ends)]  # as tables show it
  each = zip(labels, bare, names, texts, folders, groups.values(), ends)
  return [Arm(label, {label, *called}, members, end) for label, *called, members, end in each]


def rename(arms: Sequence[Arm], renamed: Sequence[str]) -> set[str]:
  """Gives arms new labels, ['OLD=NEW', ...]; returns those that name one arm, or one of each
  sweep."""
  used = set()
  for text in renamed:
    old, _, new = text.rpartition('=')
    if not (old and new):
      fault = f'--label {quoted(text)} is not OLD=NEW'
      raise InputError(f'{fault}; write the name, = and another name.')
    matching = [arm for arm in arms if old in arm.names]
    if matching and len({arm.sweep for arm in matching}) == len(matching):
      for arm in matching:
        arm.label = new + arm.sweep * (len(matching) > 1)
        arm.names.add(new)
      used.add(text)
  labels = [arm.label for arm in arms]
  if twice := [label for label in labels if labels.count(label) > 1]:
    raise InputError(f'two arms are called {twice[0]}; give --label another name.')
  return used


def shortened(texts: Sequence[str]) -> list[str]:
  """Shortens fields to their last names, if these differ: ['optimizer.beta1=0.8,steps=1', ...] ->
  ['beta1=0.8, steps=1', ...]. Commas inside a path, as in S/a=1,seed=0, separate nothing."""
  field = r'((?:\w+\.)*)(\w+)(?==)'
  of = lambda text: rf'(^|, ){field}' if '/' in text else rf'(^|, |,(?!seed=)){field}'
  full = {prefix + name for text in texts for _, prefix, name in re.findall(of(text), text)}
  leaves = collections.Counter(name.rpartition('.')[2] for name in full)

  def short(match: re.Match[str]) -> str:
    prefix = match[2] if leaves[match[3]] > 1 else ''
    return (match[1] and ', ') + prefix + match[3]

  return readable([re.sub(of(text), short, text) for text in texts])


def readable(texts: Sequence[str]) -> list[str]:
  """Texts without the fields that all share, the folders of paths, and digits past the fourth, as
  long as none is empty or as another."""
  parts = [re.split(r', (?=[\w.]+=)', text) for text in texts]
  own = [', '.join(x for x in of if not all(x in y for y in parts)) for of in parts]
  out = own if all(own) else [*texts]
  rounded = lambda number: f'{float(number[0]):.4g}'
  for pattern, by in (r'(?<==)[^=, ]*/(?=[^/, ])', ''), (r'\d+\.\d{5,}(e[-+]?\d+)?', rounded):
    shorter = [re.sub(pattern, by, text) for text in out]
    out = shorter if len({*shorter}) == len({*out}) else out
  return out


def differing(arms: Sequence[Arm]) -> tuple[list[str], dict[str, Sequence[str]]]:
  """The fields in which the arms of an objective differ: (names, {label: [value of each]})."""
  runs = [run for arm in arms for run in arm.runs]
  fields = varied(runs)
  values = dict(zip((run.path for run in runs), zip(*fields.values())))
  rows = {arm.label: map(str, values.get(arm.runs[0].path, ())) for arm in arms if arm.runs}
  columns = zip(*map(without_shared_folders, zip(*rows.values()))) if fields else ()
  out: dict[str, Sequence[str]] = {label: () for label in rows}
  out.update(zip(rows, columns))
  return [*fields], out


def without_shared_folders(texts: Sequence[str]) -> list[str]:
  """Paths without the folders that all of them begin with: ['/d/a/x.csv', '/d/b/x.csv'] ->
  ['a/x.csv', 'b/x.csv']; texts of which one is no path stay, but for empty ones."""
  paths = {text for text in texts if text}
  is_path = lambda text: '/' in text and not re.match(r'\(|\w+=', text)  # no tuple, LANGUAGE=...
  if len(paths) < 2 or not all(map(is_path, paths)):
    return [*texts]
  shared = os.path.commonprefix([f'{path.rpartition("/")[0]}/' for path in paths])
  return [text[shared.rfind('/') + 1 :] for text in texts]
