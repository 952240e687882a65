"""Runs one config many times, with several seeds and values of fields, and prints a table.

    python -m bert_jax.tools.sweep --config configs/finetune.py:runlocal --workdir W --seeds 3 \
        --vary optimizer.learning_rate=1e-4,3e-4 [--config.NAME=VALUE ...]

--vary :size=tiny,mini varies an argument of the config file (configs/pretrain.py:size=tiny). Every
combination has its folder under W; started again, finished runs are not repeated.
"""

import itertools
import logging
from pathlib import Path

import jax

from bert_jax import config as config_lib
from bert_jax import train
from bert_jax.errors import InputError
from bert_jax.tools import arguments, report


def combinations(config, vary, seeds):
  """Yields (name of the folder, config, arguments) of each run: for 'f.py:x', ['a=1,2', ':b=3'] and
  2 seeds first ('a=1,b=3,seed=0', 'f.py:x,b=3', ['--config.a=1', '--config.seed=0'])."""
  axes = []
  for text in vary:
    name, given, values = text.partition('=')
    if not given:
      raise InputError(f'--vary {text!r} is not NAME=VALUE,VALUE,...')
    axes.append([(name, value) for value in values.split(',')])
  axes.append([('seed', str(seed)) for seed in range(seeds)])
  for chosen in itertools.product(*axes):
    shown = ((name.strip(':'), value.strip('/').replace('/', '_')[-80:]) for name, value in chosen)
    folder = ','.join(f'{name}={value or "none"}' for name, value in shown)
    path, _, given = config.partition(':')
    of_file = [f'{name[1:]}={value}' for name, value in chosen if name.startswith(':')]
    spec = ':'.join([path, ','.join(filter(None, [given, *of_file]))])
    fields = [f'--config.{name}={value}' for name, value in chosen if not name.startswith(':')]
    yield folder, spec, fields


def main(argv=None):
  parser = arguments.parser('sweep', __doc__)
  add = parser.add_argument
  add('--config', required=True, metavar='FILE[:ARGS]')
  add('--workdir', required=True, help='folder of the runs')
  add('--seeds', type=int, default=3, help='runs of each combination')
  add('--vary', action='append', default=[], metavar='NAME=V1,V2', help='may be repeated')
  args, overrides = parser.parse_known_args(argv)
  with config_lib.command_line():
    if args.seeds < 1:
      raise InputError(f'--seeds is {args.seeds}; each combination runs with at least 1.')
    runs = []
    for name, spec, fields in combinations(args.config, args.vary, args.seeds):
      given = overrides + fields
      runs.append((name, config_lib.load(spec, given), config_lib.names_of(given)))
    # Runs that differ in a seed or a rate compile the same programs; not so where `epochs` decides
    # the number of steps, a constant of the schedule, and the rows (NSP pairs) follow the seed.
    jax.config.update('jax_compilation_cache_dir', str(Path(args.workdir) / '.jax_cache'))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.5)
    for i, (name, config, given) in enumerate(runs, 1):
      logging.getLogger('bert_jax').info('==== run %d of %d: %s', i, len(runs), name)
      train.train(config, Path(args.workdir) / name, given)
    print(report.table(report.read(args.workdir)))


if __name__ == '__main__':
  main()
