"""Records the exact bytes of what this code computes, to compare before and after a change.

    python tests/recorder.py --write before.json          # then change something
    python tests/recorder.py --compare before.json        # says what differs, and exits with 1
    python tests/recorder.py --compare before.json --only nsp      # a run alone: seconds

Golden runs are compared with a tolerance of 1e-4 and prove no bit. This program writes the SHA-256
of the parameters and optimizer state at the end of every golden run (tests/test_golden_runs.py) and
of a few more, their losses and evaluations as they are, and the fingerprints of their configs and
data. Records of two machines differ by rounding.

    python tests/recorder.py --goldens    # writes tests/golden/configs, every field of every config
                                          # that configs/ names, and tests/golden/affects.txt, what
                                          # each field affects, anew
"""

import argparse
import hashlib
import itertools
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
GOLDEN = HERE / 'tests' / 'golden' / 'configs'
AFFECTS = GOLDEN.parent / 'affects.txt'


# ---- named configs -------------------------------------------------------------------------------

SIZES = [f'size={size}' for size in ('tiny', 'mini', 'small', 'medium', 'base', 'large')]
ARCHITECTURES = """modern mosaic neo cramming albert fnet lstm conv bag tutorial roberta electra
deberta spanbert wwm ernie""".split()  # noqa: SIM905
TASKS = """docs cola sst2 mrpc stsb qqp mnli qnli rte wnli xnli pawsx ocnli table ner conll2003 panx
weibo pos squad squad2 tydiqa xquad cmrc race swag dream c3 copa xcopa gap wsc""".split()  # noqa: SIM905
CHOICES = ('race', 'swag', 'dream', 'c3', 'copa', 'xcopa')  # which are always packed
ABLATIONS = """masking_rate masking_policy corruption pairs lambda positions norm_placement norm
activation feed_forward tying depth_width packing lengths dropout batch learning_rate
vocabulary_size vocabulary_kind optimizer mixer objectives layer_decay""".split()  # noqa: SIM905


def with_runlocal(*arguments: str) -> list[str]:
  return [','.join(filter(None, (x, local))) for x in arguments for local in ('', 'runlocal')]


# {config file: its documented arguments}.
NAMED = {
  'pretrain': [
    *with_runlocal('', *SIZES, 'size=6/256', *(f'arch={arch}' for arch in ARCHITECTURES)),
    *with_runlocal('continued', *(
      f'arch={arch},continued' for arch in (
        'modern', 'albert', 'electra', 'deberta', 'fnet', 'roberta'))),
    *with_runlocal(*(f'objective={kind}' for kind in (
      'causal', 'masked', 'hybrid', 'diffusion', 'causal_then_masked'))),
    'data=wikipedia', 'lang=zh', 'lang=multi', 'data=wikipedia,lang=zh',
    'data=wikipedia,lang=multi', 'phase=128', 'phase=512', 'arch=electra,size=small',
    'arch=ernie,lang=zh', 'arch=wwm,lang=zh',
  ],
  'finetune': [
    *with_runlocal(*(f'task={task}' for task in TASKS)),
    *(f'task={task},unpacked' for task in TASKS if task not in CHOICES),
    *SIZES, *with_runlocal('size=minilm'),
  ],
  'quickstart': ['stage=pretrain', 'stage=finetune'],
  'causal_lm': with_runlocal('size=gpt2', 'size=gpt1', 'size=modern'),
  'transformer_xl': with_runlocal('size=base', 'size=large'),
  'translate': [*with_runlocal('size=base', 'size=big', 'size=small', 'denoise'),
                'pair=source-target', 'size=small,denoise'],
  'contrastive': [
    *with_runlocal(*(f'task={task}' for task in ('pairs', 'triples', 'stsb', 'squad', 'simcse'))),
    *SIZES, 'size=minilm',
  ],
  'distill': [*with_runlocal('', 'task=sst2'), 'task=sst2,unpacked', 'task=ner', 'task=squad'],
  'encoders': [f'arch={arch}' for arch in (
    'bert', 'modern', 'modern-recipe', 'modern-flops', 'lstm', 'conv', 'bag', 'fnet')],
  'ablations': [*with_runlocal(*ABLATIONS), 'masking_rate,size=large', 'layer_decay,task=sst2'],
}  # fmt: skip
# A file of a fork is there too, without arguments.
NAMED = {path.stem: [''] for path in sorted((HERE / 'configs').glob('*.py'))} | NAMED


def flat(config, prefix: str = '') -> dict[str, str]:
  """{'model.hidden_size': '128', ...} of a ConfigDict."""
  out = {}
  for key, value in config.items():
    if hasattr(value, 'items'):
      out |= flat(value, f'{prefix}{key}.')
    else:
      out[prefix + key] = repr(value)
  return out


def named_config(root: Path, spec: str) -> dict[str, str]:
  """{field: value} of a config, such as of 'pretrain:size=tiny'; arms of a sweep are fields too."""
  from bert_jax.config import load

  file, _, arguments = spec.partition(':')
  path = root / 'configs' / f'{file}.py'
  fields = flat(load(f'{path}:{arguments}'))
  sweep = runpy.run_path(str(path)).get('sweep')
  if sweep:
    for i, (arm, own) in enumerate(sweep(arguments).items()):
      fields[f'arm {i}'] = ' '.join([f'{arm}:', *(f'{name}={x!r}' for name, x in own.items())])
  return dict(sorted(fields.items()))


def text_of(fields: dict[str, str]) -> str:
  return '\n'.join(f'{name}={value}' for name, value in fields.items())


def golden_text(configs: dict[str, dict[str, str]]) -> str:
  """A file of golden/configs. The first config has all its fields, and each other one those in
  which it differs from the config that it is most like: `:size=tiny like size=base`, and below it a
  line for each field, or -NAME for one that it has not."""
  parts = []
  for arguments, fields in configs.items():
    earlier = itertools.islice(configs, len(parts))
    options = [(name, changes(configs[name], fields)) for name in earlier]
    like, lines = min(options, key=lambda option: len(option[1]), default=('', changes({}, fields)))
    parts.append('\n'.join([f':{arguments} like {like}' if options else f':{arguments}', *lines]))
  return '\n\n'.join(parts) + '\n'


def changes(before: dict[str, str], fields: dict[str, str]) -> list[str]:
  lines = [f'{name}={value}' for name, value in fields.items() if before.get(name) != value]
  return lines + [f'-{name}' for name in before if name not in fields]


def golden_configs(content: str) -> dict[str, dict[str, str]]:
  """The inverse of golden_text."""
  configs = {}
  for part in content.rstrip('\n').split('\n\n'):
    (head, *lines) = part.split('\n')
    arguments, _, like = head.removeprefix(':').partition(' like ')
    fields = dict(configs[like]) if ' like ' in head else {}
    for line in lines:
      name, given, value = line.partition('=')
      if given:
        fields[name] = value
      else:
        del fields[name.removeprefix('-')]
    configs[arguments] = dict(sorted(fields.items()))
  return configs


def write_goldens() -> None:
  GOLDEN.mkdir(exist_ok=True)
  for file, specs in NAMED.items():
    configs = {arguments: named_config(HERE, f'{file}:{arguments}') for arguments in specs}
    (GOLDEN / f'{file}.txt').write_text(golden_text(configs))
  AFFECTS.write_text(text_of(affected()) + '\n')
  print(f'written: {GOLDEN.relative_to(HERE)}, {AFFECTS.relative_to(HERE)}')


def affected() -> dict[str, str]:
  """{field: what it affects} of all fields that a config may have."""
  from bert_jax.config import ALL

  return {name: ' '.join(sorted(ALL[name].affects)) for name in sorted(ALL)}


# ---- golden runs ---------------------------------------------------------------------------------

TINY = {
  'model.dtype': 'float32',
  'model.scan_layers': False,
  'optimizer.accumulation': 1,
  'optimizer.warmup': 3.0,
  'steps': 6,
}
WORDS = TINY | {'data.train': '{texts}/corpus.txt'}
# Further runs, of what no golden run has, by the same rules: {name: (config, what differs)}.
MORE_RUNS = {
  'translation': (
    'translate.py:pair=first-second,size=small',
    TINY | {'data.train': '{texts}/pairs.tsv', 'data.eval': '{texts}/pairs.tsv'},
  ),
  'denoising': (
    'translate.py:denoise,size=small',
    TINY | {'data.train': '{texts}/corpus.txt', 'data.examples_per_row': 1},
  ),
  'electra': (
    'pretrain.py:arch=electra,size=tiny',
    WORDS | {'model.embedding_size': 16, 'corpus.rows': 'full'},
  ),
  'spans and their boundaries, growing': (
    'pretrain.py:arch=spanbert,size=tiny',
    WORDS | {'optimizer.accumulation': 4, 'optimizer.batch_warmup': 0.5, 'steps': 10,
             'corpus.lengths': '16,32@0.5'},
  ),
  'an albert, bfloat16': ('pretrain.py:arch=albert,size=tiny', WORDS | {'model.dtype': 'bfloat16'}),
  'a modern one': ('pretrain.py:arch=modern,size=tiny', WORDS | {'optimizer.batch_warmup': 0.0}),
  'an fnet': ('pretrain.py:arch=fnet,size=tiny', WORDS | {'model.embedding_size': 32}),
}  # fmt: skip
TIMES = ('tokens_per_s', 'steps_per_s', 'mfu', 'data_wait', 'goodput', 'time', 'seconds', '_s')


def arrays_of(tree, prefix: str):
  """Yields (name, dtype, shape and SHA-256 of its bytes) of the arrays of a tree."""
  import jax
  import numpy as np

  for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]:
    x = np.asarray(jax.device_get(x))
    yield (
      f'{prefix}{jax.tree_util.keystr(path)}',
      f'{x.dtype}{list(x.shape)} {hashlib.sha256(x.tobytes()).hexdigest()}',
    )


class Runs:
  """The golden runs and those above, each trained when it is first asked for."""

  def __init__(self):
    import test_golden_runs

    self.golden = test_golden_runs
    self.golden.RUNS.update(MORE_RUNS)
    self.texts = Path('texts')
    self.texts.mkdir()
    self.golden.write_texts(self.texts)

  def trained(self, name: str):
    """(workdir, config, State, metrics of the evaluation) of a run that is finished."""
    import jax

    from bert_jax import train

    workdir = Path(f'run {list(self.golden.RUNS).index(name)}')
    original, ends = train.train, []

    def noting(config, *arguments):
      ends.append((config, *original(config, *arguments)))
      return ends[-1][1:]

    train.train = noting
    try:
      self.golden.numbers(name, self.texts, workdir)
    finally:
      train.train = original
    jax.clear_caches()
    return workdir, *ends[-1]


def record(only: str):
  """Yields (entry, value) of the golden runs that have `only` in their name."""
  from bert_jax.config import fingerprint

  runs = Runs()
  for name in filter(lambda name: only in name, runs.golden.RUNS):
    workdir, config, state, results = runs.trained(name)
    print(name, file=sys.stderr)
    yield f'{name}: fingerprint of the config', fingerprint(config)
    for line in map(json.loads, (workdir / 'metrics.jsonl').read_text().splitlines()):
      where = f'{name}: {line.pop("split")} of step {line.pop("step")}'
      for key, value in line.items():
        if not key.endswith(TIMES):
          yield f'{where}: {key}', value
    for key, value in results.items():
      yield f'{name}: the evaluation: {key}', value
    yield from arrays_of(state.params, f'{name}: params')
    yield from arrays_of(state.opt_state, f'{name}: opt_state')
    facts = json.loads((workdir / 'run.json').read_text())
    yield f'{name}: run.json: data', json.dumps(facts['data'], sort_keys=True)


def recorded(only: str) -> dict[str, str]:
  """{entry: value} of record, made in a folder of its own."""
  sys.path[0:1] = [str(HERE), str(HERE / 'tests'), str(HERE / 'tests' / 'run')]
  import conftest  # noqa: F401 (the environment of the tests, before JAX is imported)

  with tempfile.TemporaryDirectory(prefix='recorder-') as folder:
    # All paths are relative, since that of a text is a part of the fingerprint of a run.
    os.chdir(folder)
    Path('configs').symlink_to(HERE / 'configs')
    out = {name: str(value) for name, value in record(only)}
    os.chdir(HERE)
  return out


def differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
  """A line for each entry that is not as before."""
  lines = []
  for name in sorted(before.keys() | now.keys()):
    old, new = before.get(name, 'nothing'), now.get(name, 'nothing')
    if old != new:
      lines.append(f'{name}: {old} before, {new} now')
  return lines


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--write', type=Path, metavar='FILE', help='write the record')
  parser.add_argument('--compare', type=Path, metavar='FILE', help='say what is not as in a record')
  parser.add_argument(
    '--goldens', action='store_true', help='write tests/golden/configs and affects.txt anew'
  )
  parser.add_argument('--only', default='', metavar='TEXT', help='what has this in its name')
  args = parser.parse_args()
  write, compare = args.write and args.write.resolve(), args.compare and args.compare.resolve()
  if args.goldens:
    sys.path[0:1] = [str(HERE)]
    os.chdir(HERE)
    write_goldens()
  if not (write or compare):
    return
  found = recorded(args.only)
  if write:
    write.write_text(json.dumps(found, indent=1) + '\n')
  if compare:
    golden = json.loads(compare.read_text())
    before = {name: x for name, x in golden.items() if args.only in name.partition(': ')[0]}
    lines = differences(before, found)
    print('\n'.join(lines))
    print(f'{len(lines)} differences in {len(before)} entries')
    raise SystemExit(bool(lines))


if __name__ == '__main__':
  main()
