"""What lies on the disk belongs together: whoever reads it names what was changed, and goes on with
what is whole."""

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import fields, small_pretrain
from running import (
  edit,
  files_up_to,
  untrained,
  without_a_model,
)
from test_convert import exported

from bert_jax import config as c
from bert_jax import evaluate
from bert_jax.errors import InputError, farewell
from bert_jax.files import write_whole
from bert_jax.run import setup
from bert_jax.run.inputs import check_place, read_inputs
from bert_jax.tasks.pretraining import task as pretraining
from bert_jax.tools import convert
from bert_jax.train import train
from bert_jax.workdir import checkpoint, contents, lock, manifest, provenance, records, trained

pytestmark = pytest.mark.usefixtures('steps_once')


@pytest.fixture(scope='module')
def of_transformers(tmp_path_factory):
  return exported(tmp_path_factory.mktemp('released') / 'hf')[1]


@pytest.fixture
def released(of_transformers, tmp_path):
  """A copy of a folder that is exported for transformers, which may be harmed."""
  return shutil.copytree(of_transformers, tmp_path / 'hf')


@pytest.fixture(scope='module')
def trained_line(corpus_file, tmp_path_factory):
  """(workdir, results) of a finished run of two numbers."""
  path = tmp_path_factory.mktemp('line') / 'run'
  with without_a_model():
    return path, train(small_pretrain(corpus_file), path)[1]


@pytest.fixture
def of_line(trained_line, tmp_path):
  """A copy of its workdir, which may be harmed; BERT is a Line while it is used."""
  with without_a_model():
    yield shutil.copytree(trained_line[0], tmp_path / 'run')


READERS = 'evaluate', 'load', 'convert', 'init_from'


def read_by(reader, workdir, corpus_file, tmp_path):
  """Reads the weights of a run."""
  if reader == 'evaluate':
    evaluate.evaluate(workdir)
  elif reader == 'load':
    trained.load(workdir)
  elif reader == 'convert':
    convert.convert(str(workdir), f'hf:{tmp_path}/hf')
  else:
    train(small_pretrain(corpus_file, f'init_from={workdir}'), tmp_path / 'new')


# ---- config and vocabulary -----------------------------------------------------------------------


@pytest.mark.parametrize('harm', ['a line less', 'two lines swapped', 'case'])
def test_another_vocabulary_is_named(workdir, corpus_file, tmp_path, harm):
  path = workdir / 'vocab.txt'
  pieces = path.read_text().splitlines()
  if harm == 'a line less':
    del pieces[50]
  elif harm == 'two lines swapped':
    pieces[50], pieces[51] = pieces[51], pieces[50]
  else:
    lower = lambda content: content.update(do_lower_case=False)
    edit(path.with_name('tokenizer_config.json'), lower)
  path.write_text('\n'.join(pieces) + '\n')
  for reader in READERS:
    said = 'is not the vocabulary that checkpoint 20 was trained with'
    if (reader, harm) == ('init_from', 'a line less'):  # which sees that its size is another
      said = ''
    with pytest.raises(InputError, match=said):
      read_by(reader, workdir, corpus_file, tmp_path)


def test_a_converted_workdir_is_sealed_and_evaluated_on_what_is_named(
  released, tmp_path, monkeypatch
):
  convert.convert(str(released), str(tmp_path / 'W'))
  trained.load(tmp_path / 'W')
  monkeypatch.setattr(pretraining.loading.documentation, 'documents', None)  # would be read
  with pytest.raises(InputError, match=r'converted weights and no data; .*data.eval=FILE'):
    evaluate.evaluate(tmp_path / 'W')
  with pytest.raises(InputError, match=r'is a released model and no run; .*tools.convert --from'):
    evaluate.evaluate(released)
  path = tmp_path / 'W' / 'vocab.txt'
  pieces = path.read_text().splitlines()
  path.write_text('\n'.join(pieces[:5] + pieces[:4:-1]) + '\n')
  with pytest.raises(InputError, match='is not the vocabulary that checkpoint 0 was trained with'):
    trained.load(tmp_path / 'W')


def test_resume_from_of_another_model_is_refused(pretrained, corpus_file, tmp_path):
  other = f'resume_from={pretrained[0]} model.hidden_size=16 steps=40'
  config = small_pretrain(corpus_file, other)
  with pytest.raises(InputError, match='not the same model or optimizer'):
    train(config, tmp_path / 'new')
  assert not (tmp_path / 'new').exists()


def test_answers_are_called_by_their_data(tmp_path):
  def name(spec):
    return contents.answers_folder(tmp_path, 'a.tsv', spec, 7).name

  assert name('/home/me/new.csv') == 'home_me_new.csv-7' and name('') == 'held_out-7'
  assert name('en=a/b.tsv,de=a/*.tsv') == 'en=a_b.tsv_de=a_.tsv-7'
  assert name('../x/train.ndjson') == 'x_train.ndjson-7'
  assert name('x/..' * 40)[0] not in '._'
  assert len(name('x=y,' * 99)) < 80 and name('x=y,' * 99) != name('x=z,' + 'x=y,' * 98)


# ---- an evaluation -------------------------------------------------------------------------------


@pytest.mark.parametrize(
  'change',
  [
    'model.num_attention_heads=4',
    'model.layer_norm_eps=1e-3',
    'objective=electra',
    'tokenizer.do_lower_case=false',
  ],
)
def test_what_bears_on_weights_is_the_runs(change, workdir):
  """A value in the command of an evaluation that differs is named."""
  with pytest.raises(InputError, match=change.partition('=')[0]):
    evaluate.config_of(workdir, [f'--config.{change}'])
  same = f'--config.model.hidden_size={contents.read_config(workdir).model.hidden_size}'
  assert evaluate.config_of(workdir, ['--config.batch_size=4', same]).batch_size == 4


def test_rows_that_the_run_does_not_know_are_said(tmp_path, caplog):
  """A table has grown: its held-out share may hold rows that were trained on. With labels in
  another order the outputs would mean others."""
  rows = [f'the {word} is old\t{word}\n' for word in ('river', 'market') for _ in range(20)]
  data = tmp_path / 'a.tsv'
  data.write_text('sentence\tlabel\n' + ''.join(f'{n} {row}' for n, row in enumerate(rows)))
  small = f'data.train={data} data.eval= table.eval_share=0.3 steps=3 model.vocab_size=300'
  config = c.load('configs/finetune.py:task=table,runlocal', fields(small, 'batch_size=8'))
  workdir = untrained(config, tmp_path / 'run')
  inputs = read_inputs(config, tmp_path / 'new')
  setup.write_facts(dataclasses.replace(inputs, workdir=workdir), 0)
  evaluate.evaluate(workdir)
  assert 'these rows are not those' not in caplog.text
  with data.open('a') as file:
    file.write(''.join(f'{n} more {row}' for n, row in enumerate(rows)))
  evaluate.evaluate(workdir)
  assert 'these rows are not those on which the run was evaluated' in caplog.text
  with pytest.raises(InputError, match='table.labels'):
    evaluate.evaluate(workdir, ['--config.table.labels=river,market'])


def test_a_metric_that_a_set_lacks_has_no_mean():
  text = evaluate.table({'a': {'f1': 0.5, 'mse': 2.0}, 'b': {'f1': 0.25}})
  assert [row.split() for row in text.splitlines()] == [
    ['f1', 'mse'], ['a', '0.5000', '2.0000'], ['b', '0.2500', '-'], ['mean', '0.3750', '-']
  ]  # fmt: skip


@pytest.mark.parametrize('data', ['{}', '{}/**/*.txt', '{}/r*/**/a?.txt', 'en={0}/a.txt,de={0}'])
def test_a_workdir_in_a_folder_of_data_is_refused(data, corpus_file, tmp_path):
  """The files of the run would be read with the data when it goes on."""
  shutil.copy(corpus_file, tmp_path / 'a.txt')
  config = small_pretrain(data.format(tmp_path))
  check_place(small_pretrain(tmp_path / '*.txt'), tmp_path / 'run')  # which are no others
  with pytest.raises(InputError, match='run lies in data.train=.*; name a workdir elsewhere'):
    train(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


# ---- checkpoints ---------------------------------------------------------------------------------


def test_a_renamed_checkpoint_is_not_of_its_new_step(of_line, corpus_file):
  folder = of_line / 'checkpoints'
  (folder / '20').rename(folder / '15')
  with pytest.raises(InputError, match='checkpoint 15 .* is damaged'):
    evaluate.evaluate(of_line, checkpoint='15')
  assert trained.load(of_line).step == 10
  state, _ = train(small_pretrain(corpus_file), of_line)
  assert (of_line / 'damaged-checkpoint-15').is_dir()
  assert int(state.step) == 20 and checkpoint.newest_meta(of_line)['step'] == 20


# ---- files that are there whole ------------------------------------------------------------------


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
  synced, path = [], tmp_path / 'file'
  sync = lambda number: synced.append((os.fstat(number).st_ino, path.exists()))
  monkeypatch.setattr(os, 'fsync', sync)
  write_whole(path, 'text')
  assert synced == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
  write_whole(tmp_path / 'file', 'old')
  with files_up_to(1000), pytest.raises(OSError, match='File too large') as error:
    write_whole(tmp_path / 'file', 'x' * 2000)
  assert error.value.filename == str(tmp_path / 'file')
  assert [path.name for path in tmp_path.iterdir()] == ['file']
  assert (tmp_path / 'file').read_text() == 'old'


# ---- one run at a time ---------------------------------------------------------------------------


HOLD = """
import pathlib, sys
from bert_jax.workdir import lock
with lock.held(pathlib.Path(sys.argv[1])):
  print('held', flush=True)
  sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
  """A process that trains in a workdir, as far as the lock can tell; closing its standard input
  ends it."""
  command = [sys.executable, '-c', HOLD, str(tmp_path / 'run')]
  pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
  with subprocess.Popen(command, **pipes) as process:
    assert process.stdout.readline() == b'held\n'
    yield process


def test_a_second_run_names_the_first(holder, tmp_path, corpus_file):
  with pytest.raises(InputError, match=rf'run is in use: process {holder.pid} of host') as caught:
    train(small_pretrain(corpus_file), tmp_path / 'run')
  assert farewell(caught.value)[1] == 3  # may be tried again
  holder.communicate()
  assert not (tmp_path / 'run').exists()
  with lock.held(tmp_path / 'run'):
    pass


def test_a_checkpoint_that_came_meanwhile(pretrained, corpus_file, tmp_path, monkeypatch):
  """While the input was read: it is not passed over."""

  @contextlib.contextmanager
  def held(workdir):  # the run that held the lock has just ended
    shutil.copytree(pretrained[0] / 'checkpoints', workdir / 'checkpoints')
    yield

  monkeypatch.setattr(lock, 'held', held)
  with pytest.raises(lock.Busy, match='another run has trained in .*; start it again'):
    train(small_pretrain(corpus_file), tmp_path / 'run')


@pytest.mark.parametrize('number', [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_disk_without_locks(tmp_path, monkeypatch, number):
  def flock(*_):
    raise OSError(number, os.strerror(number))

  monkeypatch.setattr(lock.fcntl, 'flock', flock)
  with lock.held(tmp_path):
    pass
  assert not (tmp_path / 'run.lock').exists()


def test_a_run_may_save_while_it_is_read(workdir):
  """It removes what was there when its folder was listed."""
  folder = workdir / 'checkpoints'

  def read(number):
    if (folder / '10').exists():
      shutil.move(folder / '10', folder / '25')
      shutil.move(folder / '20', folder / '30')
    if not (folder / str(number)).exists():
      raise manifest.Damaged(folder, number, 'its metadata is missing')
    return number

  with contextlib.closing(checkpoint.Checkpoints(workdir)) as checkpoints:
    assert checkpoints.newest_good(read) == (30, [])


def test_a_folder_that_is_written_at_once_leaves_nothing_beside_it(tmp_path):
  """Also when its writer fails."""
  for fails in (True, False):
    with contextlib.suppress(KeyError), lock.whole_folder(tmp_path / 'W') as folder:
      folder.mkdir()
      (folder / 'config.json').write_text('whole')
      if fails:
        raise KeyError
    assert [x.name for x in tmp_path.iterdir()] == ([] if fails else ['W'])
  assert [x.name for x in (tmp_path / 'W').iterdir()] == ['config.json']


def test_a_damaged_checkpoint_is_put_aside_by_the_run_that_writes_there_alone(workdir, monkeypatch):
  def restored(self, number, shapes):
    if number == 20:
      raise manifest.Damaged(self.folder, number, 'a bit is another')
    return number, {}

  aside, waits = workdir / 'damaged-checkpoint-20', []
  monkeypatch.setattr(checkpoint.Checkpoints, 'restored', restored)
  monkeypatch.setattr(checkpoint.hosts, 'wait', lambda name: waits.append(aside.is_dir()))
  settings = contents.read_config(workdir).checkpoint
  for arguments, names in (((), {'10', '20'}), ((settings,), {'10'})):
    with contextlib.closing(checkpoint.Checkpoints(workdir, *arguments)) as checkpoints:
      assert checkpoints.restore(None) == (10, {})
    assert {x.name for x in (workdir / 'checkpoints').iterdir() if x.name.isdigit()} == names
  assert waits == [True]  # no process opens the folder before it is moved


# ---- disks ---------------------------------------------------------------------------------------


def test_a_workdir_that_cannot_be_written_is_refused_before_compiling(corpus_file, monkeypatch):
  monkeypatch.setattr(setup, 'flops_of', None)  # is asked for after compiling
  with pytest.raises(InputError, match='/proc/nowhere/run cannot be written'):
    train(small_pretrain(corpus_file), '/proc/nowhere/run')


# ---- length --------------------------------------------------------------------------------------


def test_a_run_goes_on_to_more_steps_elsewhere(of_line, corpus_file):
  """Its records say so."""
  facts = json.loads((of_line / 'run.json').read_text())
  (of_line / 'code.diff').write_text('of another day')
  longer = small_pretrain(corpus_file, 'steps=22')
  state, _ = train(longer, of_line)
  assert int(state.step) == 22
  assert contents.read_config(of_line).steps == 22
  assert checkpoint.newest_meta(of_line)['config'] == c.fingerprint(longer)
  for number in (20, 22):  # of both lengths
    assert trained.load(of_line, number).step == number
  again = json.loads((of_line / 'run.json').read_text())
  assert [command['steps'] for command in again['commands']] == [20, 22] and again['steps'] == 22
  assert again['commands'][0] == facts['commands'][0] and again['made_by'] == facts['made_by']
  assert again['made_by'].items() <= again['commands'][1].items()
  changes, path = provenance.code_changes(), of_line / 'code.diff'
  assert path.read_text() == changes if changes else not path.exists()
  summary = json.loads((of_line / 'summary.json').read_text())
  assert (summary['state'], summary['step'], summary['last']['eval']['step']) == (
    'finished',
    22,
    22,
  )
  with pytest.raises(InputError, match='step 22 already, and .* end it at'):
    train(small_pretrain(corpus_file), of_line)


def test_a_run_that_died_before_its_first_new_step_goes_on(workdir, corpus_file):
  """Its config was written with the new steps, its summary was not."""
  longer = small_pretrain(corpus_file, 'steps=30')
  contents.claim(workdir, longer)
  assert setup.ended(read_inputs(longer, workdir)) is None
  assert records.read(workdir).summary.state == 'running'
  contents.claim(workdir, small_pretrain(corpus_file))
  assert setup.ended(read_inputs(small_pretrain(corpus_file), workdir))
  assert records.read(workdir).summary.state == 'finished'


# ---- where code came from ------------------------------------------------------------------------


def test_the_commit_goes_along_where_git_does_not(tmp_path, monkeypatch):
  monkeypatch.setattr(provenance, 'ROOT', tmp_path)
  (tmp_path / '.commit').write_text('abc1234+\n')
  assert provenance.commit() == 'abc1234+' and not provenance.code_changes()
