"""Evaluates one model on many sets and makes a table: the cross-lingual experiment of M-BERT.

    python -m bert_jax.tools.transfer --workdir W --eval "$DATA/panx/test-{language}.tsv" \
        --languages en,de,es,zh
    python -m bert_jax.tools.transfer --workdir W --eval de=DE.conllu --eval hi=HI.conllu

Trained on one language, evaluated on all that are named (Pires et al. 2019,
https://arxiv.org/abs/1906.01502). The table is printed and written, with the answers in each
language, to W/transfer (or --out); the last line is the mean over the sets.
"""

import json
import logging
import math
from pathlib import Path

from bert_jax import config as config_lib
from bert_jax import evaluate, metrics
from bert_jax.command_line import command_line
from bert_jax.errors import InputError
from bert_jax.text import files
from bert_jax.tools import arguments


def table(results):
  """The text of a table of {set: {metric: value}}: a row for each set, a column for each metric."""
  names = list(dict.fromkeys(name for result in results.values() for name in result))
  columns = [[result.get(name, math.nan) for result in results.values()] for name in names]
  # A metric that a set does not have has no mean.
  columns = [[*values, math.fsum(values) / len(values)] for values in columns]
  shown = [[f'{x:.4f}' if x == x else '-' for x in values] for values in columns]
  return '\n'.join(arguments.aligned([('', *names), *zip([*results, 'mean'], *shown)]))


def transfer(workdir, specs, languages=(), overrides=(), which='latest', out=''):
  """{name: {metric: value}} of a run on each set; specs: 'NAME=DATA' or a path with {language}."""
  parts = [part for spec in specs for part in files.parts(spec, languages)]
  if unnamed := [spec for name, spec in parts if not name]:
    raise InputError(f'--eval {unnamed[0]} has no name; write NAME={unnamed[0]}, or {{language}}.')
  names = [name for name, _ in parts]
  if repeated := sorted(name for name in names if names.count(name) > 1):
    raise InputError(f'--eval names {repeated[0]} twice; give each set another name.')
  out = Path(out or Path(workdir).expanduser() / 'transfer')
  results = {}
  for name, result, *_ in evaluate.evaluate_on(workdir, parts, overrides, which, out):
    results[name] = result
    logging.getLogger('bert_jax').info('%s: %s', name, metrics.to_json(result))
  out.mkdir(parents=True, exist_ok=True)
  config_lib.write_whole(out / 'table.txt', table(results) + '\n')
  scores = {name: json.loads(metrics.to_json(result)) for name, result in results.items()}
  config_lib.write_whole(out / 'scores.json', json.dumps(scores, indent=2) + '\n')
  return results


def main(argv=None):
  parser = arguments.parser('transfer', __doc__)
  add = parser.add_argument
  add('--workdir', required=True, help='the run')
  add('--eval', action='append', required=True, metavar='NAME=DATA', help='may be repeated')
  add('--languages', default='', help='a,b,c: what {language} stands for')
  add('--checkpoint', default='latest', help='latest, best or a step')
  add('--out', default='', help='folder; default: W/transfer')
  args, overrides = parser.parse_known_args(argv)
  with command_line():
    languages = [name for name in args.languages.split(',') if name]
    results = transfer(args.workdir, args.eval, languages, overrides, args.checkpoint, args.out)
    print(table(results))


if __name__ == '__main__':
  main()
