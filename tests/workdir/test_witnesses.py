"""Runs of commit daf2dea in golden/workdirs still are runs: evaluated, asked, continued, shown.

They were made at that commit, with what the run of test_old_workdir has not:
growing batches, stages of masking and of lengths, a rollback after a spike, pairs of texts, the
memory of a Transformer-XL, a folder in int8. known.json holds what daf2dea said of them. If one of
these tests fails, users cannot go on with the runs they have. On the machine that wrote the file,
and one core of it (taskset -c 0), the bits must be equal, elsewhere numbers to 1e-4.
"""

import json
import math
import os
import platform
import re
import shutil
import tarfile
import zlib
from pathlib import Path

import pytest
from recorder import command
from running import goes_on

from bert_jax import config as config_lib
from bert_jax.tools.report import figures

FOLDER = Path(__file__).resolve().parents[1] / 'golden' / 'workdirs'
KNOWN = FOLDER / 'known.json'
NAMES = 'growth', 'stages', 'rollback', 'contrastive', 'memory'
MASKED = 'the river [MASK] the old stone .\nthe [MASK] holds the small boat near market .\n'
PLAIN = 'the river holds the old stone .\na letter near\n'
QUESTIONS = {
  'growth': ('fill-mask', MASKED, ()),
  'stages': ('perplexity', PLAIN, ()),
  'rollback': ('next-sentence', 'the old stone\tthe river .\na boat\tnear market\n', ()),
  'contrastive': ('embed', PLAIN, ()),
  'memory': ('generate', PLAIN, ('--max-tokens', '4')),
}


def machine() -> dict[str, str]:
  """What decides the bits of a run beside its code and config."""
  import jax

  try:
    lines = Path('/proc/cpuinfo').read_text().splitlines()
    about = [next(x for x in lines if x.startswith(name)) for name in ('model name', 'flags')]
  except (OSError, StopIteration):
    about = [platform.processor()]
  cpu = zlib.crc32('\n'.join(about).encode())
  flags = re.sub(r'\s*--xla_force_host_platform_device_count=1\b', '', os.environ['XLA_FLAGS'])
  cores = len(os.sched_getaffinity(0))  # among which sums are divided
  return {'jax': jax.__version__, 'cpu': str(cpu), 'XLA_FLAGS': flags, 'cores': str(cores)}


def pack(workdir: Path, name: str) -> None:
  """Writes the files of a workdir into an archive of golden/workdirs."""
  with tarfile.open(FOLDER / f'{name}.tar.xz', 'w:xz', preset=9) as archive:
    for path in sorted(workdir.rglob('*')):
      if path.is_file() and path.name != 'lock':
        archive.add(path, str(path.relative_to(workdir)))


def unpacked(name: str, folder: Path) -> Path:
  workdir = folder / 'run'
  with tarfile.open(FOLDER / f'{name}.tar.xz') as archive:
    archive.extractall(workdir, filter='data')
  return workdir


def steps(workdir: Path) -> list[int]:
  return sorted(int(path.parts[-3]) for path in workdir.glob('checkpoints/*/meta/metadata'))


def evaluated(workdir: Path) -> dict:
  (line,) = command('bert_jax.evaluate', '--workdir', workdir).splitlines()
  return {name: x for name, x in json.loads(line).items() if name != 'workdir'}


def answered(workdir: Path, name: str, *options: str) -> list:
  task, lines, more = QUESTIONS[name]
  arguments = ['--model', workdir, '--task', task, '--no-cache', *more, *options]
  return [json.loads(x) for x in command('bert_jax.predict', *arguments, stdin=lines).splitlines()]


def resumed(workdir: Path) -> dict:
  """What a stopped run says when its first command is given again, and what it then holds."""
  arguments = json.loads((workdir / 'run.json').read_text())['commands'][0]['argv'][1:]
  arguments[arguments.index('--workdir') + 1] = workdir
  command('bert_jax.train', *arguments)
  lines = [json.loads(x) for x in (workdir / 'metrics.jsonl').read_text().splitlines()]
  train = [line for line in lines if line['split'] == 'train']
  number = steps(workdir)[-1]
  meta = workdir / 'checkpoints' / str(number) / 'meta' / 'metadata'
  meta = json.loads(meta.read_text())
  return {
    'step': number,
    'steps': [line['step'] for line in train],
    'losses': [line['loss'] for line in train],
    'rates': [line['learning_rate'] for line in train],
    'tokens': [line['seen_tokens'] for line in train],
    'rollbacks': train[-1].get('rollbacks', 0),
    'metrics': meta['metrics'],
    'fingerprints': [meta['config'], meta['data'], meta.get('vocabulary')],
    'arrays': {name: x[-1] for name, x in meta['arrays'].items()},
  }


# ---- tests ---------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def known():
  return json.loads(KNOWN.read_text())


def same(found, expected, exact, where=''):
  """Equal, or to 1e-4 if not exact; nothing that daf2dea said is gone, more may be said now."""
  assert type(found) is type(expected), where
  if isinstance(expected, dict):
    assert expected.keys() <= found.keys(), where
    for name in expected:
      same(found[name], expected[name], exact, f'{where} {name}')
  elif isinstance(expected, list):
    assert len(found) == len(expected), where
    for i, (one, other) in enumerate(zip(found, expected, strict=True)):
      same(one, other, exact, f'{where} {i}')
  elif isinstance(expected, float) and not exact:
    assert math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-4), where
  else:
    assert found == expected, where


@pytest.mark.parametrize('name', NAMES)
def test_it_can_go_on(name, tmp_path, known):
  """Its config, data and vocabulary are those that its checkpoint knows, and so are its arrays."""
  workdir = unpacked(name, tmp_path)
  words = json.loads((workdir / 'run.json').read_text())['commands'][0]['argv']
  fields = [word for word in words if word.startswith('--config.')]
  config = config_lib.load(words[words.index('--config') + 1], fields)
  inputs = goes_on(config, workdir)
  assert inputs.in_workdir and inputs.beginning.meta['step'] == steps(workdir)[-1] < inputs.steps
  fingerprints = [x for name, x in inputs.identity.items() if name != 'eval']  # not kept then
  assert fingerprints == known[name]['resumed']['fingerprints']


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_it_goes_on_and_ends_as_it_did(name, tmp_path, known):
  found, expected = resumed(unpacked(name, tmp_path)), known[name]['resumed']
  exact = machine() == known['machine']
  arrays, before = found.pop('arrays'), expected.pop('arrays')
  same(found, expected, exact)
  assert arrays.keys() == before.keys()
  assert not exact or arrays == before


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_it_evaluates_as_it_did_and_answers(name, tmp_path, known):
  exact = machine() == known['machine']
  stopped = unpacked(name, tmp_path / 'stopped')
  finished = unpacked(f'{name} finished', tmp_path / 'finished')
  same(evaluated(stopped), known[name]['stopped'], exact)
  same(evaluated(finished), known[name]['finished'], exact)
  same(answered(finished, name), known[name]['answers'], exact)


@pytest.mark.slow
def test_a_folder_in_int8_is_refused_and_its_run_answers_as_it_did(tmp_path, known, capsys):
  with pytest.raises(RuntimeError, match='ended with 2'):
    answered(unpacked('int8', tmp_path / 'int8'), 'growth')
  assert re.search(r'int8.*--int8', capsys.readouterr().err)
  run = unpacked('growth finished', tmp_path / 'finished')
  exact = machine() == known['machine']
  same(answered(run, 'growth', '--int8'), known['growth']['int8'], exact)


def test_they_are_shown_by_a_report(tmp_path, monkeypatch):
  """Each with the metric that it is judged by."""
  monkeypatch.setattr(figures, 'panel_figures', lambda *_: ())
  for name in NAMES:
    shutil.move(unpacked(f'{name} finished', tmp_path / name), tmp_path / 'S' / name)
  shown = command('bert_jax.tools.report', tmp_path / 'S')
  assert (tmp_path / 'S' / 'report' / 'report.html').is_file()
  rows = (tmp_path / 'S' / 'report' / 'results.csv').read_text().splitlines()
  assert all(sum(name in row for row in rows) >= 1 for name in NAMES), shown
