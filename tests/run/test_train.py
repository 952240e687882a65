"""Whole runs: resumed, fine-tuned, evaluated, asked; and users' mistakes."""

import contextlib
import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import PEAK, fields, small_pretrain
from ml_collections import ConfigDict
from refusal import refused
from running import (
  bytes_of,
  edit,
  flip_a_bit,
  flipped,
  goes_on,
  lines,
  same_bits,
  saved,
  train_lines,
  untrained,
  without_a_model,
)

from bert_jax import config as c
from bert_jax import evaluate, hosts, metrics, tokenizers
from bert_jax.config import InputError
from bert_jax.rows.batches import Batches
from bert_jax.rows.source import Source
from bert_jax.run import evaluation, initialization, warm_start
from bert_jax.run.inputs import read_inputs
from bert_jax.step import Program, State
from bert_jax.tasks.scored import Scored
from bert_jax.train import train
from bert_jax.workdir import checkpoint, contents, manifest, records, trained

pytestmark = pytest.mark.usefixtures('steps_once')


# ---- a run is a function of (config, step) -------------------------------------------------------


def test_a_finished_run_stays_finished(corpus_file, pretrained, workdir, monkeypatch):
  before = bytes_of(workdir)

  def compiles(self):
    raise AssertionError('a step was compiled')

  monkeypatch.setattr(Program, 'lower', compiles)
  state, metrics = train(small_pretrain(corpus_file), workdir)
  same_bits(state, pretrained[1])
  assert metrics == pretrained[2] and bytes_of(workdir) == before
  # With its newest checkpoint damaged, or with more steps, there is something left to do.
  with pytest.raises(AssertionError, match='compiled'):
    train(small_pretrain(corpus_file, 'steps=21'), workdir)
  flip_a_bit(workdir / 'checkpoints' / '20')
  with pytest.raises(AssertionError, match='compiled'):
    train(small_pretrain(corpus_file), workdir)


def test_resume_from_continues_elsewhere(corpus_file, pretrained, workdir, tmp_path):
  config = small_pretrain(corpus_file, f'resume_from={workdir}')
  with pytest.raises(InputError, match='is at step 20 already; set steps above 20'):
    train(config, tmp_path / 'elsewhere')
  shutil.rmtree(workdir / 'checkpoints' / '20')
  state, _ = train(config, tmp_path / 'elsewhere')
  same_bits(state, pretrained[1])
  # Once it has a checkpoint of its own, it goes on from that.
  beginning = initialization.start_of(config, tmp_path / 'elsewhere')
  assert (beginning.folder, beginning.meta['step']) == (tmp_path / 'elsewhere', 20)


def test_a_workdir_tells_about_its_run(pretrained):
  workdir = pretrained[0]
  facts = json.loads((workdir / 'run.json').read_text())
  level, line = facts['data']['train']['baselines']['mlm'][0], lines(workdir, 'train')[-1]
  assert line['mlm_below_unigram'] == pytest.approx(level - line['mlm'])
  assert 0 < line['fill'] <= 1 and line['tokens_per_s'] > 0
  # By hand, of 256 tokens, 40 predictions and 8 pairs: 2 operations for each weight a vector meets,
  # and for each pair of tokens in scores and in values; backward is twice as much as forward.
  encoder = 256 * 2 * (4 * 32 * 32 + 2 * 32 * 64 + 2 * 32 * 32)
  heads = 40 * 2 * (32 * 32 + 32 * 256) + 8 * 2 * (32 * 32 + 32 * 2)
  mfu = 3 * (encoder + heads) * line['steps_per_s'] / PEAK
  assert facts['parameters'] == sum(x.size for x in jax.tree.leaves(pretrained[1].params))
  assert facts['flops_by_stage'] == [[0, 3 * (encoder + heads)]]
  assert line['mfu'] == pytest.approx(mfu, rel=1e-6)
  assert {line['step'] for line in lines(workdir, 'eval')} == {10, 20}


# ---- checkpoints ---------------------------------------------------------------------------------


def test_a_flipped_bit_is_found(corpus_file, pretrained, workdir):
  flip_a_bit(workdir / 'checkpoints' / '20')
  state, _ = train(small_pretrain(corpus_file), workdir)
  same_bits(state, pretrained[1])  # steps 11 to 20 were run again
  assert (workdir / 'damaged-checkpoint-20').is_dir() and saved(workdir) == [10, 20]
  assert train_lines(workdir) == train_lines(pretrained[0])  # none of them twice


def test_every_single_bit_counts_in_the_checksum():
  table = lambda x: manifest.array_table({'params': {'x': x}})['params/x']
  for kind, step in (np.float32, 7), (jnp.bfloat16, 13), (np.int8, 11):
    x = (9 * np.random.RandomState(0).randn(5, 7)).astype(kind)
    for place in range(0, x.nbytes * 8, step):
      other = np.frombuffer(flipped(x.tobytes(), place), kind).reshape(x.shape)
      assert table(other) != table(x)
    assert table(x[::-1]) != table(x)


def test_best_latest_and_every_are_kept_also_after_a_resume(tmp_path):
  """The score of the best comes from the disk; judged on other data, it is none, and patience
  counts from there."""
  settings, steps, begun = kept_by(keep_latest=2, keep_every=16), [], []
  state = State(jnp.int32(0), {'x': jnp.arange(3.0)}, {}, {})
  shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
  for judged_by, scores in (
    ('here', {4: 0.5, 8: 0.75, 16: 0.25, 20: 0.5, 24: 0.7}),
    ('here', {25: 0.7, 26: 0.6, 27: 0.5}),
    ('elsewhere', {28: 0.5, 29: 0.25, 30: 0.4}),
  ):
    opened = checkpoint.Checkpoints(tmp_path, settings, judged_by=judged_by)
    with contextlib.closing(opened) as checkpoints:
      if steps:
        checkpoints.restore(jax.tree.map(shape, state))
        begun.append(checkpoints.best['since'])
      for number, score in scores.items():
        checkpoints.is_best({'score': score}, number)
        checkpoints.save(dataclasses.replace(state, step=jnp.int32(number)), {'score': score}, {})
        checkpoints.wait()
      steps.append(checkpoints.steps())
  assert steps == [[8, 16, 20, 24], [8, 16, 26, 27], [16, 28, 29, 30]] and begun == [8, 27]


def kept_by(**changes):
  """The `checkpoint` block of a config, the best by `score` being kept."""
  known = dict(keep_latest=1, keep_every=0, best_metric='score', best_mode='max')
  return ConfigDict(known | changes)


@pytest.mark.parametrize('number', [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_not_saved(number, tmp_path):
  params = {'scale': jnp.ones((5, 7)).at[2, 3].set(number)}
  with contextlib.closing(checkpoint.Checkpoints(tmp_path, kept_by())) as checkpoints:
    with pytest.raises(InputError, match='step 7'):
      checkpoints.save(State(jnp.int32(7), params, {}, {}), {}, {})
    checkpoints.wait()
    assert not checkpoints.steps()


@pytest.mark.parametrize('mode, best', [('max', [1, 3, 7]), ('min', [1, 2, 4])])
def test_the_best_is_the_highest_or_the_lowest(mode, best, tmp_path):
  with contextlib.closing(checkpoint.Checkpoints(tmp_path, kept_by(best_mode=mode))) as checkpoints:
    scores = {1: 0.5, 2: 0.4, 3: 0.6, 4: 0.3, 5: 0.5, 6: float('nan'), 7: 0.6}
    found = [step for step, x in scores.items() if checkpoints.is_best({'score': x}, step)]
  assert found == best and checkpoints.best['step'] == best[-1]


# ---- evaluations ---------------------------------------------------------------------------------


class Numbers:
  """Batches that are their numbers."""

  lanes = False
  source, part = Source(), Batches.part

  def __len__(self):
    return 10

  def __getitem__(self, i):
    return i


@pytest.mark.parametrize(
  'count, expected', [(1, [0]), (2, [0, 5]), (4, [0, 2, 5, 7]), (0, range(10)), (99, range(10))]
)
def test_an_evaluation_looks_at_batches_all_over_the_split(count, expected):
  seen = []

  def eval_step(params, carry, batch, index, constants):
    assert batch == index
    seen.append(batch)
    return {'score': metrics.Mean(np.float32(batch), np.float32(1 + batch))}, {}, carry

  result, _ = evaluation.one_pass(eval_step, {}, {}, Numbers(), None, count)
  assert seen == list(expected)
  # Totals over weights, not the mean of the batches' means.
  assert result['score'] == pytest.approx(sum(expected) / sum(1 + i for i in expected))


def test_every_point_of_a_curve_is_of_the_same_rows(corpus_file, pretrained, tmp_path, monkeypatch):
  """Also the last one: the evaluation of all rows is a line of its own, which counts."""
  config, batches = small_pretrain(corpus_file, 'eval.batches=2'), []
  with monkeypatch.context() as patch:
    run = evaluation.one_pass
    patch.setattr(evaluation, 'one_pass', lambda *x, **k: batches.append(x[3]) or run(*x, **k))
    state, results = train(config, tmp_path / 'run')
  same_bits(state, pretrained[1])
  assert results == pretrained[2] and len(batches[0]) > 2  # of the run that reads all each time
  found = [(x['step'], x['split']) for x in lines(tmp_path / 'run') if x['split'] != 'train']
  assert found == [(10, 'eval'), (20, 'eval'), (20, 'whole')]
  read = records.read(tmp_path / 'run')
  assert not read.faults and [p.step for p in read.curve] == [10, 20]
  assert read.final('mlm') == results['mlm'] == read.newest['metrics']['mlm']
  # The same two batches have the same baselines at each step, which are not those of all rows.
  first, last, whole = (point.values for point in read.evaluations)
  assert not any('mlm_unigram' in values for values in (first, last, whole))
  part = read.facts.split('eval').part
  source = batches[0].source
  chosen = [batches[0][k * len(batches[0]) // 2] for k in range(2)]
  pieces = np.concatenate([np.asarray(b['input_ids']).ravel() for b in chosen]).tolist()
  special = {*tokenizers.load_folder(tmp_path / 'run').special_ids}
  shares = Counter(x for x in pieces if x not in special)
  level = part['mlm'].value
  assert level != source.baselines['mlm'].value and part['mlm'].kind == 'unigram'
  assert first['mlm_below_unigram'] == pytest.approx(level - first['mlm'], rel=1e-6)
  assert last['mlm_below_unigram'] == pytest.approx(level - last['mlm'], rel=1e-6)
  assert whole['mlm_below_unigram'] == source.baselines['mlm'].value - whole['mlm']
  most = shares.most_common(1)[0][1] / shares.total()  # here the piece is that of training, too
  assert part['mlm_accuracy'].value == pytest.approx(most, rel=1e-6)


@pytest.mark.parametrize('budget', [1 << 20, 43, 7])
def test_an_evaluation_has_each_answer_once_and_the_scores_of_the_first_process(
  budget, monkeypatch
):
  """budget: bytes of answers that stay on the devices, of 8 a batch."""
  rows = 2 * evaluation.HELD + 3
  thirds = np.arange(rows, dtype=np.float32) / np.float32(3)
  monkeypatch.setattr(evaluation, 'HELD_BYTES', budget)
  monkeypatch.setattr(hosts, 'from_first', lambda value: value or {'sum': 5.0})

  class Sums(Scored):
    fingerprint, __init__ = '', Source.__init__

    def answers(self, outputs):
      return [{'gold': 1.0, 'prediction': x} for x in outputs['x'].tolist()]

    def scores(self, answers):
      return {'sum': math.fsum(answer['prediction'] for answer in answers)}

  class Asked(Numbers):
    source = Sums()

    def __len__(self):
      return rows

  def eval_step(params, carry, batch, index, constants):
    x = jnp.full(2, batch / 3, jnp.float32)
    return {'score': metrics.Mean(x[0], jnp.float32(1))}, {'x': x}, carry

  Asked.source.scales = {'score_in_kg': ('score', 0.25), 'size_in_kg': ('size', 2.0)}
  mean = np.float64(thirds).sum() / rows
  for index in (0, 1):
    monkeypatch.setattr(jax, 'process_index', lambda index=index: index)
    result, answers = evaluation.one_pass(eval_step, {}, {}, Asked(), None)
    total = 5.0 if index else pytest.approx(2 * np.float64(thirds).sum())
    assert result == {'score': mean, 'score_in_kg': mean / 4, 'sum': total}
    assert len(answers) == (0 if index else 2 * rows)


@pytest.mark.parametrize('alike, weight, collapsed', [(1, 1, True), (0.9, 1, False), (0.8, 0.8, 0)])
def test_a_run_that_answers_one_piece_has_collapsed(alike, weight, collapsed):
  """By all its losses of pieces, in all batches; fewer than ten answers say nothing."""

  def eval_step(params, carry, batch, index, constants):
    term = lambda share: metrics.Mean(np.float32(share), np.float32(weight))
    of = {'lm_alike': term(weight), 'mlm_alike': term(min(alike, weight)), 'mlm': term(2)}
    return of | {'diffusion_alike': metrics.Mean(np.float32(0), np.float32(0))}, {}, 0  # none asked

  result, _ = evaluation.one_pass(eval_step, {}, {}, Numbers(), None)
  assert 'mlm_alike' not in result and ('constant' in result) == bool(collapsed)


# ---- patience, frozen parameters -----------------------------------------------------------------


def test_a_run_stops_when_its_metric_gets_no_better(corpus_file, tmp_path):
  """Evaluations are all alike: patience counts from the first, and the last of them is the best."""
  with without_a_model():
    judged = 'steps=40 eval.batches=0 checkpoint.every=0 checkpoint.best_metric=mlm'
    judged += ' optimizer.learning_rate=0'
    config = small_pretrain(corpus_file, judged, 'eval.every=3 eval.patience=2')
    state, results = train(config, tmp_path / 'run')
    assert int(state.step) == 9 and saved(tmp_path / 'run') == [6, 9]
    assert trained.load(tmp_path / 'run', 'best').step == 9
    again, same = train(config, tmp_path / 'run')
    assert int(again.step) == 9 and same == results
    # It counts from where a run begins: the evaluation at 10 is the best, then come three like it.
    more = f'eval.every=2 eval.patience=3 resume_from={tmp_path}/run'
    config = small_pretrain(corpus_file, judged, more)
    assert int(train(config, tmp_path / 'next')[0].step) == 16


# ---- mistakes ------------------------------------------------------------------------------------


def test_another_configs_workdir_is_refused_and_left_alone(corpus_file, workdir):
  before = bytes_of(workdir)
  with pytest.raises(InputError, match=r'another config \(seed: 0 -> 1\); give the values'):
    train(small_pretrain(corpus_file, 'seed=1'), workdir)
  assert bytes_of(workdir) == before


def test_a_config_that_was_changed_is_not_the_checkpoints(corpus_file, workdir):
  change = lambda saved: saved['optimizer'].update(learning_rate=0.5) or saved.pop('seal') and None
  edit(workdir / 'config.json', change)
  with pytest.raises(InputError, match='config.json was changed since checkpoint 20'):
    goes_on(small_pretrain(corpus_file, 'optimizer.learning_rate=0.5'), workdir)


@pytest.mark.parametrize(
  'overrides, named',
  [
    ('data.train=nowhere.txt', 'nowhere.txt'),
    ('batch_size=9 mesh.data=1 mesh.tensor=2', 'mesh'),
    ('tokenizer.path=nowhere/vocab.txt', 'nowhere/vocab.txt'),
    ('init_from=./nowhere', 'nowhere'),
    ('resume_from=tests', 'resume_from=tests'),
    ('model.vocab_size=30', 'model.vocab_size'),
    ('checkpoint.best_metric=accuracy eval.batches=0', 'best_metric'),
    (
      'checkpoint.best_metric=mlm checkpoint.best_mode=max eval.batches=0',
      'checkpoint.best_mode',
    ),
    ('tokenizer.path=tests/golden/vocab.txt model.vocab_size=300', 'model.vocab_size'),
    ('optimizer.warmup=30', 'warmup'),
  ],
)
def test_mistakes_are_one_sentence_and_leave_no_workdir(corpus_file, tmp_path, overrides, named):
  with refused(named):
    train(small_pretrain(corpus_file, overrides), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_a_program_ends_quietly_if_nobody_reads_its_output():
  """Also one that prints little, which Python holds back up to the end."""
  program = 'from bert_jax.command_line import command_line as c\nwith c():\n  print("a table")'
  read, write = os.pipe()
  os.close(read)
  done = subprocess.run([sys.executable, '-c', program], stdout=write, stderr=subprocess.PIPE)
  os.close(write)
  assert (done.returncode, done.stderr) == (0, b'')


# ---- from pre-trained weights to answers ---------------------------------------------------------


@pytest.fixture(scope='module')
def labelled(tmp_path_factory):
  """A table whose label is a word of the text."""
  rng = np.random.RandomState(0)
  folder = tmp_path_factory.mktemp('labelled')
  for name, count in (('train', 64), ('dev', 21)):
    rows = ['sentence\tlabel']
    for _ in range(count):
      label = ('river', 'market')[rng.randint(2)]
      rows.append(f'the {label} holds the old stone near {rng.randint(20)}\t{label}')
    (folder / f'{name}.tsv').write_text('\n'.join(rows) + '\n')
  return folder


def small_finetune(labelled, *overrides):
  seldom = 'eval.every=0 log.every=20 checkpoint.every=0 log.tensorboard=false'
  small = 'steps=150 batch_size=8 data.seq_length=16 optimizer.learning_rate=1e-3'
  data = f'data.train={labelled}/train.tsv data.eval={labelled}/dev.tsv'
  return c.load('configs/finetune.py:runlocal', fields(data, small, seldom, *overrides))


@pytest.mark.parametrize(
  'several, cells, labels, weights',
  [
    ('false', 'a,-,spam ', ('-', 'a', 'spam '), (1.0, 2.0, 0.666667)),
    ('true', 'a;b,c;d', ('a;b', 'c;d'), (1.5, 0.75)),
  ],
)
def test_a_run_goes_on_with_what_its_data_filled_in(tmp_path, several, cells, labels, weights):
  """Labels, their weights and the prior stay, whatever the same data would give now; what the
  command says otherwise is named."""
  rows = [f'a text\t{cell}\n' for i, cell in enumerate(cells.split(',')) for _ in range(1 + i)]
  (tmp_path / 'train.tsv').write_text('sentence\tlabel\n' + ''.join(rows))
  given = f'data.eval= table.multi_label={several} table.class_weights=balanced'
  config, workdir = small_finetune(tmp_path, given), tmp_path / 'W'
  begun, weights = c.override(config, []), tuple(zip(labels, weights))
  with begun.ignore_type():
    begun.table.labels, begun.table.class_weights = labels, weights
    begun.table.prior = (0.2, 0.3, 0.5)
  contents.claim(workdir, begun, initialization.asked_for(config, begun, workdir))

  def follows(command, workdir):
    return initialization.config_of(initialization.Start(), command, workdir)

  for command in (config, begun):
    assert c.flatten(follows(command, workdir)) == c.flatten(begun)
  assert follows(config, tmp_path / 'new').table != begun.table
  for change in ('table.labels=e,f', 'table.pooling=mean', 'optimizer.warmup=1'):
    with refused(f'holds a run with another config .*{change.partition("=")[0]}'):
      follows(small_finetune(tmp_path, given, change), workdir)
  longer = follows(small_finetune(tmp_path, given, 'steps=7'), workdir)
  assert longer.steps == 7 and longer.table == begun.table


@pytest.fixture(scope='module')
def finetuned(pretrained, labelled, tmp_path_factory):
  """(workdir, State, metrics, config) of a run whose init_from is gone."""
  folder = tmp_path_factory.mktemp('finetuned')
  source = shutil.copytree(pretrained[0], folder / 'source')
  config = small_finetune(labelled, f'init_from={source}')
  state, metrics = train(config, folder / 'run')
  shutil.rmtree(source)
  return folder / 'run', state, metrics, config


def test_fine_tuning_takes_sizes_vocabulary_and_weights(finetuned, pretrained):
  workdir, state, metrics, config = finetuned
  assert contents.read_config(workdir).model.hidden_size == 32
  assert (workdir / 'vocab.txt').read_bytes() == (pretrained[0] / 'vocab.txt').read_bytes()
  assert metrics['accuracy'] == 1.0
  again, metrics2 = train(config, workdir)  # a run that has begun needs init_from no more
  same_bits(state, again)
  assert metrics2 == metrics


def test_a_head_for_other_labels_starts_new(finetuned, labelled, tmp_path):
  """Also if there are as many."""
  text = (labelled / 'train.tsv').read_text().replace('\triver\n', '\tnot river\n')
  (tmp_path / 'train.tsv').write_text(text)
  given = f'init_from={finetuned[0]} data.train={tmp_path}/train.tsv data.eval='
  inputs = read_inputs(small_finetune(labelled, given), tmp_path / 'run')
  about = inputs.start, inputs.config, inputs.objective, inputs.mesh
  new = jax.jit(inputs.objective.init)(jax.random.key(1))
  params = warm_start.warm_start(new, *warm_start.load_weights(*about))
  kernel, other = (x['classifier']['dense']['kernel'] for x in (params, finetuned[1].params))
  assert kernel.shape == other.shape == (32, 2) and not np.allclose(kernel, other)
  for part in ('encoder', 'pooler'):
    same_bits(params[part], finetuned[1].params[part])


def test_a_classifier_of_another_objective_starts_new(labelled, tmp_path):
  """A regression has one output and no labels, as multiple choice has."""
  numbers = ''.join(f'old {n}\t{n}\n' for n in range(9))
  (tmp_path / 'n.tsv').write_text(f'sentence\tlabel\n{numbers}')
  asked = {'premise': 'old', 'choice1': 'river', 'choice2': 'road', 'question': 'cause', 'label': 1}
  rows = [json.dumps(asked | {'idx': n}) for n in range(9)]
  (tmp_path / 'copa.jsonl').write_text('\n'.join(rows) + '\n')
  plain = f'data.train={tmp_path}/n.tsv data.eval= checkpoint.best_metric='
  number = small_finetune(labelled, plain, 'table.regression=true table.prior=()')
  source = untrained(number, tmp_path / 'N')
  given = f'init_from={source} data.train={tmp_path}/copa.jsonl data.eval= checkpoint.best_metric='
  choice = c.load('configs/finetune.py:task=copa,runlocal', fields(given, 'batch_size=8 steps=3'))
  again = small_finetune(labelled, plain, f'table.regression=true init_from={source}')
  for config, is_new in ((choice, True), (again, False)):
    inputs = read_inputs(config, tmp_path / 'run')
    assert inputs.objective.labels == ()
    given = inputs.start, inputs.config, inputs.objective, inputs.mesh
    assert warm_start.load_weights(*given).other_labels == is_new


def test_another_vocabulary_of_the_same_size_is_refused(pretrained, labelled, tmp_path):
  pieces = (pretrained[0] / 'vocab.txt').read_text().splitlines()
  (tmp_path / 'vocab.txt').write_text('\n'.join(pieces[:5] + pieces[:4:-1]) + '\n')
  given = f'init_from={pretrained[0]} tokenizer.path={tmp_path}/vocab.txt'
  with pytest.raises(InputError, match='is not the vocabulary of'):
    train(small_finetune(labelled, given), tmp_path / 'run')


def test_evaluate_repeats_the_last_evaluation_and_reads_another_file(
  finetuned, labelled, tmp_path, capsys
):
  evaluate.main(['--workdir', str(finetuned[0])])
  result = json.loads(capsys.readouterr().out)
  for name, value in finetuned[2].items():
    assert result[name] == pytest.approx(value, abs=1e-5)
  data = json.loads((finetuned[0] / 'run.json').read_text())['data']
  assert (data['train']['examples'], data['eval']['examples'], result['examples']) == (64, 21, 21)
  level, _ = data['eval']['baselines']['accuracy']
  assert result['accuracy_majority'] == level >= 0.5
  header, *rows = (labelled / 'dev.tsv').read_text().splitlines()
  other = {'river': 'market', 'market': 'river'}
  wrong = [f'{text}\t{other[label]}' for text, label in (row.rsplit('\t', 1) for row in rows)]
  (tmp_path / 'wrong.tsv').write_text('\n'.join([header, *wrong, '']))
  result, _ = evaluate.evaluate(finetuned[0], [f'--config.data.eval={tmp_path}/wrong.tsv'])
  assert result['accuracy'] == 0.0
