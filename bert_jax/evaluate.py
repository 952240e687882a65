"""Evaluates a run on a split, exactly, from the command line.

    python -m bert_jax.evaluate --workdir W [--config.data.eval=FILE] [--checkpoint best]
    python -m bert_jax.evaluate --workdir W --eval "$DATA/panx/test-{language}.tsv" \
        --languages de,es
    python -m bert_jax.evaluate --workdir W --eval MNLI-m=DEV1.tsv --eval MNLI-mm=DEV2.tsv

prints the metrics of a finished run as one line of JSON, with what each is without reading the
input (metrics.beside), and writes answers to W/eval/NAME-STEP (or --out); see run/evaluation.py.

With --eval, a table of named sets and their mean is printed, and kept in W/eval/sets: trained on
one language and evaluated on many, that is the cross-lingual experiment of M-BERT (Pires et al.
2019, https://arxiv.org/abs/1906.01502).
"""

import contextlib
import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from bert_jax import config as config_lib
from bert_jax import hosts, metrics, sharding, step, tokenizers
from bert_jax.buckets import Bucket
from bert_jax.command_line import aligned, command_line, command_parser
from bert_jax.convert import from_huggingface
from bert_jax.errors import InputError, log
from bert_jax.files import Path, make_folder, write_json, write_whole
from bert_jax.models import layers
from bert_jax.rows.batches import batches_of
from bert_jax.run import evaluation, teacher
from bert_jax.tasks import TASKS, remarks
from bert_jax.tasks.labelled import Scored
from bert_jax.text import files
from bert_jax.workdir import contents, trained

SOON = 1 << 22  # bytes of a table that are read in a second or two


class Evaluation(NamedTuple):
  """The metrics of a checkpoint, saved at step `step`, on a named set; beside: metrics.beside."""

  name: str
  metrics: dict[str, float]
  step: int
  beside: dict[str, Any]


def evaluate(
  workdir: str | Path, overrides: Sequence[str] = (), which: str | int = 'latest', **options: Any
) -> tuple[dict[str, float], int]:
  """Evaluates a checkpoint on data.eval of its config: (metrics, step), as evaluate_on."""
  (result,) = evaluate_on(workdir, [('', '')], overrides, which, **options)
  return result.metrics, result.step


def evaluate_on(
  workdir: str | Path,
  parts: Sequence[tuple[str, str]],
  overrides: Sequence[str] = (),
  which: str | int = 'latest',
  out: str | Path = '',
) -> Iterator[Evaluation]:
  """Yields the Evaluation on each (name, data.eval or '': as in the config) of parts. out: folder
  of the answers; '': one in the workdir."""
  hosts.check()
  if from_huggingface.is_model(Path(workdir).expanduser()):
    advice = f'make it one by: python -m bert_jax.tools.convert --from {workdir} --to W'
    raise InputError(f'{workdir} is a released model and no run; {advice}')
  begun = contents.read_config(workdir)
  config = config_lib.override(begun, overrides)
  tokenizer = tokenizers.load_folder(workdir)
  task = TASKS[config.objective]
  objective = teacher.taught(config, task.objective(config, tokenizer), tokenizer)
  mesh = sharding.mesh_of(config, task)
  shapes = trained.shapes_of(config, tokenizer, mesh)
  # The checkpoint is read first: a mistake in it shows before large data is read.
  params, meta = trained.load_params(workdir, shapes, which)
  number = meta['step']
  is_given = config.data.train or config.data.eval or all(spec for _, spec in parts)
  if not is_given and meta.get('converted'):
    fault = f'{workdir} holds converted weights and no data'
    raise InputError(f'{fault}; name what to evaluate on, --config.data.eval=FILE.')
  rows_of_run = functools.cache(functools.partial(_trained_on, config, begun.data.eval, tokenizer))
  sources: dict[str, Any] = {}
  for name, spec in parts:
    if spec:
      config = config_lib.override(config, [f'--config.data.eval={spec}'])
    sources[name], is_known = _source(config, tokenizer)
    if sources[name] is None:
      raise InputError('there is nothing to evaluate on; set --config.data.eval=FILE.')
    # Of its own evaluation data the run has warned itself.
    is_new = config.data.eval != begun.data.eval and not is_known
    if is_new and isinstance(sources[name], Scored) and hosts.first() and (known := rows_of_run()):
      for said in remarks.about_copies(known, sources[name]):
        log.warning('%s', said)
  with jax.set_mesh(mesh), sharding.activation_rules():
    eval_step = jax.jit(layers.traced_in(config.model.dtype, step.make_eval_step(objective)))
    carry = evaluation.empty_carry(objective, config, mesh)
    constants = sharding.put(step.constants_of(config, objective), mesh)
    for (name, spec), source in zip(parts, sources.values(), strict=True):
      batches = batches_of(source, config, tokenizer, objective, mesh)
      inputs = params, carry, batches, constants, 0, objective.derived_metrics
      result, answers = evaluation.one_pass(eval_step, *inputs, scores=task.scores)
      evaluation.warn_of_collapse(result, source, answers)
      if answers:
        spec = spec or contents.evaluated_on(config.data.train, config.data.eval)
        inside = contents.answers_folder(workdir, spec, number)
        evaluation.write(Path(out, name) if out else inside, source, answers, result)
      yield Evaluation(name, result, number, evaluation.beside(result, source, answers))


def _source(config, tokenizer):
  """(the source of data.eval, or None; whether the run was trained on that, which is said)."""
  copies = files.trained_on(config.data.train, config.data.eval)
  if copies:
    named = f'{copies[0]}{f" and {len(copies) - 1} more" * (len(copies) > 1)}'
    log.warning('%s: the run was trained on this; see how it does on other texts.', named)
  task = TASKS[config.objective]
  sources = task.sources(config, tokenizer, ('eval',))
  return sources.get('eval'), bool(copies)


def _trained_on(config, own, tokenizer):
  """The training examples of a run whose data.eval was `own`, if they are in a small file."""
  with contextlib.suppress(InputError, OSError):  # it may be gone, or another by now
    path = Path(config.data.train).expanduser()
    if not isinstance(path, Bucket) and path.is_file() and path.stat().st_size <= SOON:
      config = config_lib.override(config, [f'--config.data.eval={own}'])
      return TASKS[config.objective].sources(config, tokenizer, ('train',)).get('train')
  return None


def evaluate_sets(
  workdir: str | Path,
  specs: Sequence[str],
  languages: Sequence[str] = (),
  out: str | Path = '',
  **options: Any,
) -> dict[str, Mapping[str, float]]:
  """Evaluates a workdir's checkpoint on named sets: {set: its metrics}. specs: NAME=DATA, or a path
  with {language}. out: folder of what is written; '': W/eval/sets. options: see evaluate_on."""
  parts = [part for spec in specs for part in files.parts(spec, languages)]
  if unnamed := [spec for name, spec in parts if not name]:
    raise InputError(f'--eval {unnamed[0]} has no name; write NAME={unnamed[0]}, or {{language}}.')
  names = [name for name, _ in parts]
  if repeated := sorted(name for name in names if names.count(name) > 1):
    raise InputError(f'--eval names {repeated[0]} twice; give each set another name.')
  out = Path(out or Path(workdir).expanduser() / 'eval' / 'sets')
  results: dict[str, Mapping[str, float]] = {}
  for name, result, *_ in evaluate_on(workdir, parts, out=out, **options):
    results[name] = result
    log.info('%s: %s', name, metrics.to_json(result))
  if hosts.first():
    make_folder(out)
    write_whole(out / 'table.txt', table(results) + '\n')
    write_json(out / 'scores.json', json.loads(metrics.to_json(results)))
  return results


def table(results: Mapping[str, Mapping[str, float]]) -> str:
  """The text of a table: a row for each set and one for their mean, a column for each metric."""
  names = list(dict.fromkeys(name for result in results.values() for name in result))
  columns = [[result.get(name, math.nan) for result in results.values()] for name in names]
  # A metric that a set does not have has no mean.
  columns = [[*values, math.fsum(values) / len(values)] for values in columns]
  shown = [[f'{x:.4f}' if x == x else '-' for x in values] for values in columns]
  return '\n'.join(aligned([('', *names), *zip([*results, 'mean'], *shown)]))


def main(argv: Sequence[str] | None = None) -> None:
  about = 'Evaluates a finished run; --config.NAME=VALUE changes fields of its config.'
  parser = command_parser('evaluate', about)
  add = parser.add_argument
  add('--workdir', required=True, help='the run')
  add('--eval', action='append', default=[], metavar='NAME=DATA', help='a set; may be repeated')
  add('--languages', default='', help='a,b,c: what {language} in --eval stands for')
  add('--checkpoint', default='latest', help='latest, best or a step')
  add('--out', default='', help='folder for the answers; default: in the workdir')
  hosts.add_argument(parser)
  args, overrides = parser.parse_known_args(argv)
  with command_line(), hosts.together():
    hosts.join(args.distributed)
    options = dict(overrides=overrides, which=args.checkpoint, out=args.out)
    if args.languages and not args.eval:
      raise InputError('--languages fills in {language} of --eval; name the sets by --eval.')
    if args.eval:
      languages = list(filter(None, args.languages.split(',')))
      results = evaluate_sets(args.workdir, args.eval, languages, **options)
      if hosts.first():
        print(table(results))
      return
    (result,) = evaluate_on(args.workdir, [('', '')], **options)
    if hosts.first():
      about = {'workdir': args.workdir, 'step': result.step}
      print(metrics.to_json(about | result.metrics | result.beside))


if __name__ == '__main__':
  main()
