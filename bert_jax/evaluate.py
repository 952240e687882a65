"""Evaluates a model on a split, exactly: while it is trained, and from the command line.

    python -m bert_jax.evaluate --workdir W [--config.data.eval=FILE] [--checkpoint best]

prints the metrics of a finished run as one line of JSON, with the number of examples and what each
metric is without reading the input (metrics.beside). The answers of a fine-tuned model are
written to W/eval/NAME-STEP (or --out): scores.json (by length, too), predictions.jsonl with
probabilities, worst.jsonl (the answers whose label was least likely), and files for official
scorers.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import jax

from bert_jax import config as config_lib
from bert_jax import hosts, metrics, sharding, step, tokenizers
from bert_jax.command_line import command_line
from bert_jax.convert import from_huggingface
from bert_jax.errors import InputError
from bert_jax.rows.batches import batches_of
from bert_jax.run import evaluation, teacher
from bert_jax.tasks import TASKS
from bert_jax.workdir import checkpoint, contents, int8, trained
from bert_jax.workdir import weights as run_weights


class Evaluation(NamedTuple):
  """The metrics of a checkpoint, of step `step`, on a named set; beside: see metrics.beside."""

  name: str
  metrics: dict
  step: int
  beside: dict


def evaluate(workdir, overrides=(), which='latest', out='', in_int8=False):
  """(metrics, step) of a workdir's checkpoint on the data.eval of its config or the overrides.
  The answers are written to the folder `out`; '': to one in the workdir. in_int8: with weights as
  they are in int8."""
  (result,) = evaluate_on(workdir, [('', '')], overrides, which, out, in_int8)
  return result.metrics, result.step


def evaluate_on(workdir, parts, overrides=(), which='latest', out='', in_int8=False):
  """Yields the Evaluation on each (name, data.eval or '') of parts; compiles only once."""
  hosts.check()
  if from_huggingface.is_model(Path(workdir).expanduser()):
    raise InputError(
      f'{workdir} is a released model and no run; make it a workdir, to be evaluated with '
      f'--config.data.eval=FILE, by: python -m bert_jax.tools.convert --from {workdir} --to W'
    )
  config = config_lib.override(contents.read_config(workdir), overrides)
  tokenizer = tokenizers.load_folder(workdir)
  task = TASKS[config.objective]
  objective = teacher.taught(config, task.objective(config, tokenizer), tokenizer)
  mesh = sharding.mesh_of(config)
  shapes = trained.shapes_of(config, tokenizer, mesh)
  # The checkpoint is read first, since a mistake in it shows sooner than large data is read.
  params, number = run_weights.load_params(workdir, shapes, which)
  if in_int8:
    hosts.refuse_several('bert_jax.evaluate --int8')
    params = jax.tree.map(lambda x, y: jax.device_put(y, x.sharding), params, int8.rounded(params))
  is_given = config.data.train or config.data.eval or all(spec for _, spec in parts)
  if not is_given and (checkpoint.newest_meta(workdir) or {}).get('converted'):
    raise InputError(
      f'{workdir} holds converted weights and no data; name what they are to be evaluated on: '
      '--config.data.eval=FILE.'
    )
  sources = {}
  for name, spec in parts:
    if spec:
      config = config_lib.override(config, [f'--config.data.eval={spec}'])
    of_splits = task.sources(config, tokenizer, ('eval',))
    task.check_sources(of_splits, '')
    sources[name] = of_splits.get('eval')
    if sources[name] is None:
      raise InputError('there is nothing to evaluate on; set --config.data.eval=FILE.')
  with jax.set_mesh(mesh), sharding.activation_rules():
    eval_step = jax.jit(step.make_eval_step(objective))
    carry = evaluation.empty_carry(objective, config, mesh)
    constants = sharding.put(step.constants_of(config, objective), mesh)
    for (name, spec), source in zip(parts, sources.values(), strict=True):
      batches = batches_of(source, config, tokenizer, objective, mesh)
      inputs = params, carry, batches, constants
      result, answers = evaluation.one_pass(eval_step, *inputs, shares=objective.shares)
      if answers:
        place = f'{number}-int8' if in_int8 else number
        folder = (
          Path(out, name) if out else evaluation.folder_of(workdir, spec or config.data.eval, place)
        )
        evaluation.write(folder, source, answers, result)
      yield Evaluation(name, result, number, evaluation.beside(result, source, answers))


def main(argv=None):
  parser = argparse.ArgumentParser(
    prog='python -m bert_jax.evaluate',
    allow_abbrev=False,
    description='Evaluates a finished run; --config.NAME=VALUE changes fields of its config.',
  )
  parser.add_argument('--workdir', required=True, help='the run')
  parser.add_argument('--checkpoint', default='latest', help='latest, best or a step')
  parser.add_argument('--out', default='', help='folder for the answers; default: in the workdir')
  parser.add_argument('--int8', action='store_true', help='with weights as they are in int8')
  hosts.add_argument(parser)
  args, overrides = parser.parse_known_args(argv)
  with command_line(), hosts.together():
    hosts.join(args.distributed)
    where = overrides, args.checkpoint, args.out, args.int8
    (result,) = evaluate_on(args.workdir, [('', '')], *where)
    if hosts.first():
      about = {'workdir': args.workdir, 'step': result.step}
      print(metrics.to_json(about | result.metrics | result.beside))


if __name__ == '__main__':
  main()
