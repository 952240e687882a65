"""A run of any family that is killed ends as if nothing had been; what is damaged in a workdir is
named, or the model is read as it was."""

import random
import re
import shutil
import subprocess
import sys
import time

import pytest
import recorder
import test_golden_runs as golden
from conftest import ROOT
from running import flipped, same_bits, train_lines

from bert_jax import config as c
from bert_jax.errors import InputError
from bert_jax.train import train
from bert_jax.workdir import records, trained

pytestmark = pytest.mark.slow

RUNS = golden.RUNS | recorder.MORE_RUNS
OFTEN = {'checkpoint.every': 2, 'log.every': 1, 'eval.every': 4, 'eval.batches': 0, 'steps': 12}
CONFIG = 'from bert_jax import config\nget_config = lambda _: config.from_json({!r})\n'
KILLS = 3


@pytest.fixture(scope='module')
def texts(tmp_path_factory):
  folder = tmp_path_factory.mktemp('texts')
  golden.write_texts(folder)
  return folder


@pytest.fixture(scope='module')
def teacher(texts):
  train(golden.config_of('nsp', texts), texts / 'teacher')
  return texts / 'teacher'


@pytest.mark.parametrize('name', RUNS)
def test_a_run_that_is_killed_again_and_again_has_the_bits_of_one_that_is_not(
  name, texts, request, tmp_path, monkeypatch
):
  """At moments of every kind: while it reads, compiles, trains, evaluates, saves."""
  monkeypatch.setattr(golden, 'RUNS', RUNS)
  other = request.getfixturevalue('teacher') if 'teacher' in RUNS[name][1] else ''
  config = golden.config_of(name, texts, other, **OFTEN)
  train(config, tmp_path / 'whole')
  (tmp_path / 'config.py').write_text(CONFIG.format(c.to_json(config)))
  workdir, rng = tmp_path / 'run', random.Random(name)
  command = [sys.executable, '-m', 'bert_jax.train', '--config', str(tmp_path / 'config.py')]

  def start():
    return subprocess.Popen([*command, '--workdir', str(workdir)], cwd=ROOT, stderr=-1, text=True)

  for life in range(KILLS):
    process, path = start(), workdir / 'metrics.jsonl'
    before = path.read_bytes() if path.exists() else b''
    while process.poll() is None and (path.read_bytes() if path.exists() else b'') == before:
      time.sleep(0.02)  # until it writes a line
    time.sleep(rng.uniform(0, 0.7 * life))
    process.kill()
    process.communicate()
  last = start()
  _, said = last.communicate()
  assert not last.returncode, said[-3000:]
  found, expected = (records.read(x) for x in (workdir, tmp_path / 'whole'))
  assert found.newest['arrays'] == expected.newest['arrays'] and not found.faults
  assert train_lines(workdir) == train_lines(tmp_path / 'whole')


DAMAGES = {  # {name: a function of (random.Random, bytes)}; None: the file is gone
  'a flipped bit': lambda rng, data: flipped(data, rng.randrange(8 * len(data))),
  'cut': lambda rng, data: data[: rng.randrange(len(data))],
  'gone': None,
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_a_damaged_file_is_named_or_the_model_is_as_it_was(damage, pretrained, tmp_path, caplog):
  """Of every kind of file that a run leaves; that another checkpoint is read is said."""
  known = {step: trained.load(pretrained[0], step) for step in (10, 20)}
  rng, kinds = random.Random(damage), {}
  for path in sorted(pretrained[0].rglob('*')):
    if path.is_file() and path.stat().st_size:
      name = path.relative_to(pretrained[0])
      kinds.setdefault(re.sub(r'\d+|[0-9a-f]{32}', 'N', str(name)), name)
  assert len(kinds) > 8
  for number, name in enumerate(kinds.values()):
    workdir = shutil.copytree(pretrained[0], tmp_path / str(number))
    data = (workdir / name).read_bytes()
    (workdir / name).unlink()
    if DAMAGES[damage]:
      (workdir / name).write_bytes(DAMAGES[damage](rng, data))
    caplog.clear()
    try:
      found = trained.load(workdir)
    except InputError as error:
      assert '\n' not in str(error) and (name.name in str(error) or 'damaged' in str(error)), name
      continue
    finally:
      shutil.rmtree(workdir)
    assert found.step == 20 or 'damaged' in caplog.text, name
    same_bits(found.params, known[found.step].params)
    assert found.tokenizer.fingerprint == known[20].tokenizer.fingerprint
