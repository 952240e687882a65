"""Evaluates a run on a split, exactly, from the command line.

    python -m bert_jax.evaluate --workdir W [--config.data.eval=FILE] [--checkpoint latest]
    python -m bert_jax.evaluate --workdir W --eval "$DATA/panx/test-{language}.tsv" \
        --languages de,es
    python -m bert_jax.evaluate --workdir W --eval MNLI-m=DEV1.tsv --eval MNLI-mm=DEV2.tsv

prints the metrics of a finished run as one line of JSON, with what each is without reading the
input (metrics.beside), and writes answers to W/eval/NAME-STEP (or --out); see run/evaluation.py.

With --eval, a table of named sets and their mean is printed, and kept in W/eval/sets: trained on
one language and evaluated on many, that is the cross-lingual experiment of M-BERT (Pires et al.
2019, https://arxiv.org/abs/1906.01502).
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import hosts, metrics, sharding, step, tokenizers
from bert_jax.command_line import CHECKPOINT, aligned, command_line, command_parser
from bert_jax.convert import from_huggingface
from bert_jax.copies import keep_compiled
from bert_jax.errors import InputError, log
from bert_jax.files import Path, make_folder, write_sealed
from bert_jax.models import layers
from bert_jax.rows.batches import batches_of
from bert_jax.run import evaluation, teacher
from bert_jax.tasks import TASKS
from bert_jax.text import files
from bert_jax.workdir import contents, records, trained


class Evaluation(NamedTuple):
  """The metrics of a checkpoint, saved at step `step`, on a named set; beside: metrics.beside."""

  name: str
  metrics: dict[str, float]
  step: int
  beside: dict[str, Any]


def evaluate(
  workdir: str | Path,
  overrides: Sequence[str] = (),
  checkpoint: str | int = '',
  out: str | Path = '',
) -> tuple[dict[str, float], int]:
  """Evaluates a checkpoint on data.eval of its config: (metrics, step), as evaluate_on."""
  (result,) = evaluate_on(workdir, [('', '')], overrides, checkpoint, out)
  return result.metrics, result.step


def evaluate_on(
  workdir: str | Path,
  parts: Sequence[tuple[str, str]],
  overrides: Sequence[str] = (),
  checkpoint: str | int = '',
  out: str | Path = '',
) -> Iterator[Evaluation]:
  """Yields the Evaluation on each (name, data.eval or '': as in the config) of parts. out: folder
  of the answers; '': one in the workdir."""
  if from_huggingface.is_model(Path(workdir).expanduser()):
    raise InputError(
      f'{workdir} is a released model and no run; make it one by: '
      f'python -m bert_jax.tools.convert --from {workdir} --to W'
    )
  keep_compiled()
  config = config_of(workdir, overrides)
  tokenizer = tokenizers.load_folder(workdir)
  task = TASKS[config.objective]
  objective = teacher.taught(config, task.objective(config, tokenizer), tokenizer)
  mesh = sharding.mesh_of(config, task)
  shapes = trained.shapes_of(config, tokenizer, mesh)
  # The checkpoint is read first: a mistake in it shows before large data is read.
  params, meta = trained.load_params(workdir, shapes, checkpoint)
  number = meta['step']
  is_given = config.data.train or config.data.eval or all(spec for _, spec in parts)
  if not is_given and meta.get('converted'):
    raise InputError(
      f'{workdir} holds converted weights and no data; name what to evaluate on, data.eval=FILE.'
    )
  sources: dict[str, Any] = {}
  for name, spec in parts:
    if spec:
      config = config_lib.override(config, [f'--config.data.eval={spec}'])
    sources[name] = task.sources(config, tokenizer, ('eval',)).get('eval')
    if sources[name] is None:
      raise InputError('there are no rows to evaluate on; set data.eval (in Python give rows).')
    warn_of_rows(workdir, config, sources[name])
  with jax.set_mesh(mesh), sharding.activation_rules():
    eval_step = jax.jit(layers.traced_in(config.model.dtype, step.make_eval_step(objective)))
    carry = evaluation.empty_carry(objective, config, mesh)
    constants = sharding.put(step.constants_of(config, objective), mesh)
    for (name, spec), source in zip(parts, sources.values(), strict=True):
      result, answers = evaluation.one_pass(
        eval_step,
        params,
        carry,
        batches_of(source, config, tokenizer, objective, mesh),
        constants,
        objective=objective,
        scores=task.scores,
      )
      evaluation.warn(result, source, answers, task.judge(config))
      if answers:
        data = config.data
        folder = contents.answers_folder(workdir, data.train, spec or data.eval, number)
        if out:
          folder = Path(out, name)
        evaluation.write(folder, source, answers, result)
      yield Evaluation(name, result, number, evaluation.beside(result, source, answers))


def config_of(workdir: str | Path, overrides: Sequence[str]) -> ConfigDict:
  """The config of a run with some fields changed. InputError for a field on which its weights, or
  the order of their outputs, depend: that one is the run's."""
  begun = contents.read_config(workdir)
  config = config_lib.override(begun, overrides)
  given = config_lib.flatten(config)
  for name, value in config_lib.flatten(begun).items():
    if config_lib.ALL[name].affects & {'weights', 'vocabulary'} and given[name] != value:
      raise InputError(
        f'{name} is {value!r} in the run {workdir}, whose weights were trained so, and '
        f'{name}={given[name]} is given; leave that out.'
      )
  return config


def warn_of_rows(workdir: str | Path, config: ConfigDict, source: Any) -> None:
  """Warns if the rows of an evaluation are not those that the run knows under the same name, or are
  those that it was trained on. Of rows that it knows, what was measured before it is known."""
  facts = records.read_facts(workdir)
  known, trained_on = facts.split('eval').fingerprint, facts.split('train').fingerprint
  if source.fingerprint == known:
    source.measured = facts.split('eval').measured
  if source.fingerprint == trained_on:
    log.warning('data.eval=%s: the run was trained on these very rows', config.data.eval)
  is_of_run = config.data.eval == contents.read_config(workdir).data.eval
  if hosts.first() and is_of_run and known and source.fingerprint != known:
    log.warning(
      'data.eval=%r: these rows are not those on which the run was evaluated: the data, or how it '
      'is read, has changed, and the run may have been trained on some of them',
      config.data.eval,
    )


def evaluate_sets(
  workdir: str | Path,
  specs: Sequence[str],
  languages: Sequence[str] = (),
  overrides: Sequence[str] = (),
  checkpoint: str | int = '',
  out: str | Path = '',
) -> dict[str, Mapping[str, float]]:
  """Evaluates a workdir's checkpoint on named sets: {set: its metrics}. specs: NAME=DATA, or a path
  with {language}. out: folder of what is written; '': W/eval/sets."""
  parts = [part for spec in specs for part in files.parts(spec, languages)]
  names = set()
  for name, spec in parts:
    if not name:
      raise InputError(f'--eval {spec} has no name; write NAME={spec}, or {{language}}.')
    if name in names:
      raise InputError(f'--eval names {name} twice; give each set another name.')
    names.add(name)
  out = Path(out or Path(workdir).expanduser() / 'eval' / 'sets')
  results: dict[str, Mapping[str, float]] = {}
  for part in evaluate_on(workdir, parts, overrides, checkpoint, out):
    results[part.name] = part.metrics
    log.info('%s: %s', part.name, metrics.to_json(part.metrics))
  if hosts.first():
    make_folder(out)
    write_sealed(out / 'scores.json', json.loads(metrics.to_json(results)))
  return results


def table(results: Mapping[str, Mapping[str, float]]) -> str:
  """The text of a table: a row for each set and one for their mean, a column for each metric. A
  metric that a set does not have has no mean."""
  names = list(dict.fromkeys(name for result in results.values() for name in result))
  rows = [('', *names)]
  values = {
    label: [result.get(name, math.nan) for name in names] for label, result in results.items()
  }
  columns = zip(*values.values())
  values['mean'] = [math.fsum(column) / len(column) for column in columns]
  for label, numbers in values.items():
    rows.append((label, *('-' if math.isnan(x) else f'{x:.4f}' for x in numbers)))
  return '\n'.join(aligned(rows))


def main(argv: Sequence[str] | None = None) -> None:
  about = 'Evaluates a finished run; --config.NAME=VALUE changes fields of its config.'
  parser = command_parser('evaluate', about)
  add = parser.add_argument
  add('--workdir', required=True, help='the run')
  add('--eval', action='append', default=[], metavar='NAME=DATA', help='a set; may be repeated')
  add('--languages', default='', help='a,b,c: what {language} in --eval stands for')
  add('--checkpoint', default='', help=CHECKPOINT)
  add('--out', default='', help='folder for the answers; default: in the workdir')
  hosts.add_argument(parser)
  args, overrides = parser.parse_known_args(argv)
  with command_line(), hosts.together():
    hosts.join(args.distributed)
    if args.eval:
      results = evaluate_sets(
        args.workdir,
        args.eval,
        languages=[name for name in args.languages.split(',') if name],
        overrides=overrides,
        checkpoint=args.checkpoint,
        out=args.out,
      )
      if hosts.first():
        print(table(results))
      return
    (result,) = evaluate_on(args.workdir, [('', '')], overrides, args.checkpoint, args.out)
    if hosts.first():
      about = {'workdir': args.workdir, 'step': result.step}
      print(metrics.to_json(about | result.metrics | result.beside))


if __name__ == '__main__':
  main()
