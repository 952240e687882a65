"""A run in a few lines of Python: what the command line does with the same rows in a file."""

import dataclasses
import json
import pydoc
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import small_tables
from running import lines, read_weights, same_bits, saved, train_lines

import bert_jax
from bert_jax import config, evaluate, interactive, notebooks, train
from bert_jax.errors import InputError
from bert_jax.field import Field
from bert_jax.predict import __main__ as predict
from bert_jax.run import evaluation, initialization
from bert_jax.run.inputs import read_inputs
from bert_jax.tasks import TASKS
from bert_jax.tasks.ask import Ask
from bert_jax.tasks.record import Option, Prediction
from bert_jax.tools import convert
from bert_jax.tools.probe import __main__ as probe
from bert_jax.workdir import records, trained

pytestmark = pytest.mark.usefixtures('steps_once')
ROOT = Path(__file__).parents[1]
LABELS = 'urgent', 'later', 'never'
SMALL = """model.hidden_size=16 model.intermediate_size=32 model.num_hidden_layers=1
  model.num_attention_heads=2 log.tensorboard=false log.every=1 epochs=0 steps=9 checkpoint.every=4
  data.seq_length=32 table.text_column=body eval.every=4 checkpoint.keep_latest=9
  optimizer.learning_rate=0.05 optimizer.warmup=0 table.pooling=mean"""


def table(seed=0, number=30):
  rng = np.random.default_rng(seed)
  kinds = rng.integers(len(LABELS), size=number)  # three words tell which
  texts = [f'{small_tables.sentence(rng, most=5)} {small_tables.WORDS[k]} ' * 2 for k in kinds]
  labels = [LABELS[k] for k in kinds]
  return pd.DataFrame({'body': texts, 'label': labels, 'id': range(number)})


@pytest.fixture(scope='module')
def small(vocab):
  return small_tables.fields_of(SMALL, vocab)


@pytest.fixture(scope='module')
def run(small, tmp_path_factory):
  """A finished run on a table in memory. Do not write into its workdir."""
  return bert_jax.finetune(
    table(), tmp_path_factory.mktemp('own') / 'W', eval=table(1, 11), **small
  )


@pytest.fixture
def seen(monkeypatch):
  """Where the arguments of train.train go, in place of a training."""
  given = []
  monkeypatch.setattr(train, 'train', lambda *arguments: given.append(arguments) or (None, {}))
  return given


# ---- the best checkpoint -------------------------------------------------------------------------


def test_whoever_reads_a_run_takes_its_best_checkpoint(
  small, tmp_path, capsys, caplog, monkeypatch
):
  """Where checkpoint.best_metric is set; evaluations get worse, for their labels are others."""
  folder, rows = tmp_path / 'W', table(1, 11)
  rows['label'] = rows['label'].map(dict(zip(LABELS, np.roll(LABELS, 1))))
  chosen = {'checkpoint.best_metric': 'cross_entropy', 'checkpoint.best_mode': 'min'}
  fields = small | chosen | {'checkpoint.keep_latest': 1, 'table.pooling': 'cls'}
  told = []
  monkeypatch.setattr(evaluation, 'warn', lambda result, *_: told.append(result))
  run = bert_jax.finetune(table(), folder, eval=rows, **fields)
  losses = {line['step']: line['cross_entropy'] for line in lines(folder, 'eval')}
  best = min(losses, key=losses.get)
  assert best < 9 and saved(folder) == [best, 9] and run.model.step == best
  written = [json.loads(path.read_text()) for path in folder.glob('eval/*/scores.json')]
  assert {x['cross_entropy'] for x in written} == {losses[best], losses[9]} and len(written) == 2
  assert [x['cross_entropy'] for x in told] == [losses[best]]
  found = records.read(folder)  # a report has the last evaluation
  assert found.counted().step == 9 and found.examples['accuracy'] == len(rows)
  assert run.metrics['cross_entropy'] == losses[best] < losses[9]
  assert run.evaluate() == run.metrics == evaluate.evaluate(folder)[0]
  assert run.evaluate(checkpoint='latest')['cross_entropy'] == losses[9]
  again = bert_jax.finetune(table(), folder, eval=rows, **fields)  # it has ended
  assert again.metrics == run.metrics
  # The best by another metric is none.
  (tmp_path / 'copy').mkdir()
  copy = shutil.copytree(folder, tmp_path / 'copy' / 'W')
  last = bert_jax.finetune(
    table(), copy, eval=rows, **fields | {'checkpoint.best_metric': f'f1_{LABELS[0]}'}
  )
  assert last.model.step == 9 and last.metrics['cross_entropy'] == losses[9]
  # A run begins with the weights of the best, and goes on from the newest.
  table().to_csv(tmp_path / 'a.csv')
  other = small | {'data.train': tmp_path / 'a.csv', 'table.pooling': 'cls'}
  caplog.clear()
  _, weights = read_weights(configured(other, init_from=folder), tmp_path / 'new')
  assert f'{folder}: step {best} counts, the best by cross_entropy' in caplog.text
  same_bits(weights['encoder'], trained.load(folder, best).params['encoder'])
  goes_on = configured(other, resume_from=folder)
  for place in folder, tmp_path / 'new':
    assert initialization.start_of(goes_on, place).meta['step'] == 9
  models = {step: bert_jax.load(folder, checkpoint=step) for step in (best, 9)}
  (tmp_path / 'texts.txt').write_text(f'{rows.body[0]}\n')
  probed = ['--text', f'{tmp_path}/texts.txt', '--only', 'attention', '--out', f'{tmp_path}/probe']
  for step, given in (best, []), (9, ['--checkpoint', 'latest']):
    capsys.readouterr()
    evaluate.main(['--workdir', str(folder), *given])
    assert json.loads(capsys.readouterr().out)['step'] == step
    predict.main(['--model', str(folder), '--input', f'{tmp_path}/texts.txt', *given])
    (shares,) = models[step].classify([rows.body[0]])
    answer = json.loads(capsys.readouterr().out)
    assert answer['probabilities'] == pytest.approx(shares, abs=1e-4)
    probe.main(['--model', str(folder), *probed, *given])
    assert (tmp_path / 'probe' / f'{step}.json').is_file()
    convert.main(['--from', str(folder), '--to', f'hf:{tmp_path}/{step}', *given])
    exported = trained.load(tmp_path / str(step)).params['classifier']
    same_bits(exported, trained.load(folder, step).params['classifier'])
    card = (tmp_path / str(step) / 'README.md').read_text()
    assert f'at step {step} of one run' in card and f'cross_entropy: {losses[step]:.3g}\n' in card
    assert ('(seed 0), the best by `cross_entropy` on these same data;' in card) == (step == best)
  shutil.rmtree(folder / 'checkpoints' / str(best))
  with pytest.raises(InputError, match=f'checkpoint {best} .* is damaged.* such as latest'):
    bert_jax.load(folder)


def configured(fields, **more):
  given = [f'--config.{name}={x}' for name, x in (fields | more).items() if name != 'model']
  return config.load('configs/finetune.py:task=table,size=tiny', given)


def test_the_rate_if_none_is_given(small, tmp_path):
  """It is of the width of the model, and one that is given stays, when a run goes on, too."""
  rate, rows = 'optimizer.learning_rate', table()
  fields = {name: x for name, x in small.items() if name != rate}
  run = bert_jax.finetune(rows, tmp_path / 'W', **fields)
  assert run.model.config.optimizer.learning_rate == 2e-4
  again = bert_jax.finetune(rows, tmp_path / 'W', **fields)
  assert again.model.config.optimizer.learning_rate == 2e-4
  with pytest.raises(InputError, match='learning_rate.*: 0.0002 .* 3e-05'):
    bert_jax.finetune(rows, tmp_path / 'W', **fields, **{rate: 3e-5})
  fields['data.train'] = run.model.config.data.train
  for more, expected in [
    ({'model.hidden_size': 510}, 2e-4),
    ({'model.hidden_size': 512}, 3e-5),
    ({rate: 3e-5}, 3e-5),
    ({'resume_from': run.workdir}, 2e-4),
    ({'resume_from': run.workdir, rate: 3e-5}, 3e-5),
    ({'init_from': run.workdir}, 2e-4),
  ]:
    given = configured(fields, **more)
    start = initialization.start_of(given, tmp_path / 'new')
    found = initialization.config_of(start, given, tmp_path / 'new')
    assert found.optimizer.learning_rate == expected, more


def test_an_evaluation_by_which_no_best_can_be_chosen(small, tmp_path, caplog):
  fields = small | {'checkpoint.best_metric': 'macro_f1'}
  unlabelled = table(1, 11)[['body']]
  with pytest.raises(InputError, match="has a label.*the column 'label'; .* which has 'body'"):
    bert_jax.finetune(table(), tmp_path / 'W', eval=unlabelled, **fields)
  empty = table().assign(body=[None] * 30)
  for rows, evaluated, split in (empty, table(), 'train'), (table(), empty, 'eval'):
    with pytest.raises(InputError, match=f'data.{split}: all texts are empty; is it the right'):
      bert_jax.finetune(rows, tmp_path / 'W', eval=evaluated, **fields)
  (tmp_path / 'W/z.txt').touch()
  run = bert_jax.finetune(table(), tmp_path / 'W', **fields)
  assert 'W holds other files, such as z.txt; they stay' in caplog.text
  assert run.model.step == 9 and run.metrics == {}
  with pytest.raises(InputError, match='W kept no best checkpoint; use latest or a step'):
    bert_jax.load(tmp_path / 'W', 'best')
  fields |= {'data.train': tmp_path / 'a.csv'}
  rows = table()
  rows.loc[3, 'body'] = '?!'
  rows.to_csv(tmp_path / 'a.csv')
  read_inputs(configured(fields), tmp_path / 'new')
  assert caplog.text.count('train: 1 text without a letter (kept): empty, or') == 1
  assert 'so no step is the best by checkpoint.best_metric=macro_f1' in caplog.text
  fields |= {'steps': 0, 'epochs': 4}
  for least in 50, 100:
    given = configured(fields | {'min_steps': least})
    assert read_inputs(given, tmp_path / 'new').steps == least
  assert 'few to learn from' not in caplog.text
  steps = read_inputs(configured(fields), tmp_path / 'new').steps
  assert 1 < steps < 99
  assert f'{steps} steps by epochs=4, as given: few to learn from; min_steps=100' in caplog.text
  with pytest.raises(InputError, match='has no f2 for checkpoint.best_metric; it has .*macro_f1'):
    read_inputs(configured(fields | {'checkpoint.best_metric': 'f2'}), tmp_path / 'new')


# ---- rows in memory ------------------------------------------------------------------------------


def test_rows_in_memory_are_those_of_a_file(run, small, tmp_path, caplog):
  """The same steps as of the command on a CSV of the rows; and the same evaluation."""
  for split, rows in ('train', table()), ('eval', table(1, 11)):
    rows.to_csv(tmp_path / f'{split}.csv', index=False)
  paths = {f'data.{x}': tmp_path / f'{x}.csv' for x in ('train', 'eval')}
  _, metrics = train.train(configured(small, **paths), tmp_path / 'W')
  assert train_lines(tmp_path / 'W') == train_lines(run.workdir)
  assert metrics == run.metrics == run.evaluate() == run.evaluate(paths['data.eval'])
  assert run.evaluate(table(1, 11).to_dict('records')) == metrics
  assert run.evaluate(table(1, 11), 4) != metrics and saved(run.workdir) == [4, 8, 9]
  names = sorted(path.name.partition('-')[0] for path in (run.workdir / 'rows').iterdir())
  assert names == ['eval', 'train']  # the evaluations were of the same rows
  assert 'was trained on these very rows' not in caplog.text
  run.evaluate(table())
  assert 'was trained on these very rows' in caplog.text


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(run, small, tmp_path):
  with pytest.raises(KeyboardInterrupt, match='max_hours=1e-09 are over: saved at step 1'):
    bert_jax.finetune(table(), tmp_path / 'W', eval=table(1, 11), **small, max_hours=1e-9)
  assert saved(tmp_path / 'W') == [1]
  rows = (row for row in table().to_dict('records'))  # the same rows from elsewhere
  again = bert_jax.finetune(rows, tmp_path / 'W', eval=table(1, 11), **small)
  assert again.metrics == run.metrics
  assert train_lines(tmp_path / 'W') == train_lines(run.workdir)
  same_bits(*(trained.load(x, 9).params for x in (tmp_path / 'W', run.workdir)))


def test_a_workdir_that_was_moved_goes_on_with_the_same_rows(run, small, tmp_path):
  """They are read in its new place, and written there if they are not; the old one stays away."""
  old, moved = tmp_path / 'old', tmp_path / 'moved'
  with pytest.raises(KeyboardInterrupt):
    bert_jax.finetune(table(), old, eval=table(1, 11), **small, max_hours=1e-9)
  old.rename(moved)
  names = sorted(path.name for path in (moved / 'rows').iterdir())
  shutil.rmtree(moved / 'rows')
  again = bert_jax.finetune(table(), moved, eval=table(1, 11), **small)
  assert again.metrics == run.metrics == again.evaluate() and again.workdir == moved
  assert sorted(path.name for path in (moved / 'rows').iterdir()) == names and not old.exists()
  assert train_lines(moved) == train_lines(run.workdir)
  assert trained.load(moved, 1).step == 1  # saved before it was moved
  with pytest.raises(InputError, match="another config .*data.train: 'train-"):
    bert_jax.finetune(table(3), moved, eval=table(1, 11), **small)
  assert sorted(path.name for path in (moved / 'rows').iterdir()) == names
  with pytest.raises(InputError, match="another config .*data.train: .* -> '/else/train"):
    read_inputs(
      config.override(trained.load(moved).config, ['--config.data.train=/else/train']), moved
    )


def test_what_is_public_shows():
  """To completion, help() and a star, though all but load is imported when it is asked for."""
  assert dir(bert_jax) == ['__version__', 'cross_validate', 'finetune', 'load', 'pretrain', 'start']
  page = pydoc.plain(pydoc.render_doc(bert_jax))
  assert all(f'    {name}(' in page for name in bert_jax.__all__)
  star = {}
  exec('from bert_jax import *', star)
  assert star.keys() - {'__builtins__'} == {*bert_jax.__all__}


# ---- a config ------------------------------------------------------------------------------------


@pytest.mark.parametrize('call, spec, fields', [
  (dict(task='mrpc', model='minilm', epochs=2), 'finetune.py:task=mrpc,size=minilm', 'epochs=2'),
  (dict(task='rte,unpacked', model='2/128'), 'finetune.py:task=rte,unpacked,size=2/128', ''),
  (dict(model=Path('a') / 'b'), 'finetune.py:task=table', 'init_from=a/b'),
  (dict(model=interactive.Run(Path('a'), {})), 'finetune.py:task=table', 'init_from=a'),
  (dict(model='tiny', text_column='x', learning_rate=0.1), 'finetune.py:task=table,size=tiny',
   'table.text_column=x optimizer.learning_rate=0.1'),
  ({'table.labels': ('a', 'b'), 'table.multi_label': True, 'optimizer.learning_rate': 1e-4,
    'init_from': 'a'},
   'finetune.py:task=table',
   'table.labels=a,b table.multi_label=True optimizer.learning_rate=0.0001 init_from=a'),
])  # fmt: skip
def test_a_call_is_a_command(call, spec, fields, seen, monkeypatch, tmp_path):
  """Also in a folder without configs/."""
  fields = small_tables.fields(f'data.train=t.csv data.eval=e.csv {fields}')
  monkeypatch.chdir(tmp_path)
  made = bert_jax.finetune('t.csv', 'W', eval=Path('e.csv'), **call)
  ((given, folder, names),) = seen
  assert given == config.load(f'configs/{spec}', fields) and names == config.names_of(fields)
  assert folder == made.workdir == tmp_path / 'W' and list(tmp_path.iterdir()) == []


def test_pretraining_and_any_other_config(seen, tmp_path):
  texts = ['old river. new garden', 'winter letter']
  bert_jax.pretrain(texts, tmp_path / 'W', 'size=tiny,runlocal', **{'corpus.eval_share': 0.3})
  bert_jax.pretrain(None, tmp_path / 'W', 'data=wikipedia', model='M')
  bert_jax.start('configs/contrastive.py:task=pairs', [{'a': 'x', 'b': 'y'}], tmp_path / 'W2')
  (first, *_), (second, *_), (third, *_) = seen
  written = f'--config.data.train={first.data.train}', '--config.corpus.eval_share=0.3'
  assert first == config.load('configs/pretrain.py:size=tiny,runlocal', written)
  assert pd.read_parquet(first.data.train).to_dict('list') == {'text': texts}
  assert second == config.load('configs/pretrain.py:data=wikipedia', ['--config.init_from=M'])
  assert pd.read_parquet(third.data.train).to_dict('records') == [{'a': 'x', 'b': 'y'}]


@pytest.mark.parametrize('call, said', [
  (lambda W: bert_jax.start(['a text'], 'configs/pretrain.py', W), 'spec is a list; give a text'),
  (lambda W: bert_jax.pretrain(['a'], W, model='minilm', init_from='a'), 'init_from are both'),
  (lambda W: bert_jax.finetune(['a'], W, model='tiny', init_from='a'), 'init_from are both'),
  (lambda W: bert_jax.finetune(['a'], '', model='tiny'), 'workdir is empty; give the path'),
  (lambda W: bert_jax.finetune(['a'], W, model=0.5), 'model is a float; give a Run, or a path'),
  (lambda W: bert_jax.pretrain(['a'], W, 'size=tiny', model='minilm'), 'has a size of its own'),
  (lambda W: bert_jax.pretrain(['a'], __file__), 'test_interactive.py is a file; a workdir is'),
])  # fmt: skip
def test_arguments_that_do_not_fit(call, said, tmp_path):
  with pytest.raises(InputError, match=said):
    call(tmp_path / 'W')
  assert list(tmp_path.iterdir()) == []


def test_no_rows_are_no_embedded_task(tmp_path):
  with pytest.raises(InputError, match='train is None'):
    bert_jax.finetune(table().drop(columns='id', inplace=True), tmp_path / 'W', model='tiny')


@pytest.mark.parametrize('call, said', [
  ({'model': 'tiny', 'batches': 1, 'eval.batches': 2}, 'eval.batches is given twice'),
  (dict(model='tiny', data='a.csv'), "config has no field 'data'"),
  (dict(model='tiny', lable_column='a'), "did you mean 'label_column'"),
  (dict(model='tiny', task='ner', label_column='a'), 'table.label_column is a field of classif'),
  (dict(model='tiny', every=1), "config has no field 'every' .* 'eval.every', 'log.every'"),
  (dict(model='bert-elsewhere'), 'bert-elsewhere holds no run and no model'),
  (dict(epochs=2), "model is missing; give 'minilm', hf:NAME .* 'tiny' to start from random"),
  ({'model': 'tiny', 'data.train': 'a.csv'}, 'data.train is given twice, as rows and as a field'),
  (dict(model='tiny', eval=0.1), 'eval is 0.1; a share is table.eval_share or'),
])  # fmt: skip
def test_mistakes_are_the_sentences_of_the_command(call, said, tmp_path):
  with pytest.raises(InputError, match=said):
    bert_jax.finetune('nothing.csv', tmp_path / 'W', **call)
  assert list(tmp_path.iterdir()) == []


# ---- a run ---------------------------------------------------------------------------------------


def test_a_run_shows_itself(run, monkeypatch, caplog, tmp_path):
  """In a file or, in a notebook, below the cell."""
  caplog.set_level('INFO', 'bert_jax')
  run.curve()
  assert caplog.messages == [f'curve: {run.workdir}/curve.png']
  assert (run.workdir / 'curve.png').is_file()
  notebooks.show_curve(tmp_path)
  assert 'there is no curve: no metric is known at two steps' in caplog.text
  assert re.match(rf'Run in {run.workdir}: .* below entropy\)', repr(run))
  assert f'accuracy {run.metrics["accuracy"]:.4g}' in repr(run)
  shown = []
  monkeypatch.setattr(notebooks, 'in_notebook', lambda: True)
  monkeypatch.setattr('IPython.display.display', lambda data, raw: shown.append(data))
  run.curve()
  assert [*shown[0]] == ['image/png']


def test_its_history_is_a_table(run):
  history = run.history
  evaluations = lines(run.workdir, 'eval')
  found = history[history.kind == 'eval']
  assert found.step.tolist() == [line['step'] for line in evaluations]
  assert found.accuracy.tolist() == [line['accuracy'] for line in evaluations]
  assert history.step.is_monotonic_increasing and 'learning_rate' in history


def test_its_worst_answers_are_a_table(run):
  worst, rows = run.worst(), table(1, 11)
  assert worst['loss'].is_monotonic_decreasing
  found = worst.loc[rows['id']]
  assert found['text'].tolist() == rows['body'].tolist()
  assert found['gold'].tolist() == rows['label'].tolist()
  assert found['prediction'].tolist() == run.model.predict(rows)['prediction'].tolist()
  others = table(2, 7)
  found = run.worst(others).loc[others['id']]
  assert found['gold'].tolist() == others['label'].tolist()


def test_its_model_answers_a_table(run):
  answers = run.model.predict(table(2, 7)[3:])
  shares = bert_jax.load(run).classify(table(2, 7)['body'][3:])
  assert list(answers.index) == [3, 4, 5, 6]
  found = answers[[f'probabilities.{label}' for label in shares[0]]]
  assert found.to_numpy().tolist() == [[*x.values()] for x in shares] and run.model is run.model
  assert answers['prediction'].tolist() == [max(x, key=x.get) for x in shares]
  body = [{'body': text} for text in table(2, 7)['body'][3:]]  # called as in its training
  assert [x['probabilities'] for x in run.model.predict(body)] == shares
  assert [
    x['probabilities'] for x in run.model.predict([{'text': x['body']} for x in body])
  ] == shares
  both = [x | {'text': 'old engine'} for x in body]
  found = [x['probabilities'] for x in run.model.predict(both)]
  assert found == run.model.classify(['old engine'] * 4)
  one, nothing = run.model.predict([body[0], {'sentence': 'old'}])  # alone in its row
  assert one['probabilities'] == pytest.approx(shares[0], rel=1e-5) and 'error' in nothing


def test_a_task_of_ones_own_is_answered_by_its_name(run, monkeypatch):
  class Deep(Ask):
    def __init__(self, model, depth=1):
      super().__init__(model)
      self.depth = depth

    def replies(self, records):
      return [({'text': text * self.depth}, '') for text in records]

  asked = Prediction(Deep, options={'depth': Option(int, 'how often', 1)})
  monkeypatch.setitem(TASKS['classification'].predictions, 'deep', asked)
  assert run.model.answer('deep', ['a', 'b'], depth=2) == [{'text': 'aa'}, {'text': 'bb'}]


# ---- a family of a notebook ----------------------------------------------------------------------


@pytest.fixture
def added(monkeypatch):
  """What a test makes known is forgotten after it."""
  tables = TASKS, config.ALL, config.SHARED
  before = [dict(known) for known in tables]
  yield
  for known, old in zip(tables, before, strict=True):
    known.clear()
    known.update(old)


def test_a_loss_and_a_score_from_a_cell(small, tmp_path, added, monkeypatch):
  """As bert_jax/README.md has it, with a smaller model."""
  text = (ROOT / 'bert_jax' / 'README.md').read_text()
  (cell,) = re.findall(r'```python\n(.*?)```', text, re.S)
  finetune = bert_jax.finetune

  def smaller(rows, folder, *, model, **given):
    assert model == 'minilm'
    return finetune(rows, tmp_path / folder, **(small | given))

  monkeypatch.setattr(bert_jax, 'finetune', smaller, raising=False)
  names = {'rows': table(), 'held_out': table(1, 11), '__name__': 'cell'}
  exec(cell, names)
  run, missed = names['run'], names['missed']
  # The score is that of the answers, and decides which checkpoint is the best.
  asked = run.model.predict(table(1, 11)).assign(gold=table(1, 11)['label'])
  answers = asked.to_dict('records')
  assert run.metrics['missed'] == run.evaluate()['missed'] == missed(answers)
  assert len(set(asked['prediction'])) > 1
  found = {line['step']: line['missed'] for line in lines(run.workdir, 'eval')}
  assert run.model.step == min(found, key=found.get)
  assert min(found.values()) == run.metrics['missed'] and len(found) == 3
  assert 'missed' not in run.evaluate(table(2, 5)[['body']])  # which has no labels
  # The loss is the focal one, of the logits that the model has.
  p = np.array(
    [asked.loc[i, f'probabilities.{gold}'] for i, gold in enumerate(table(1, 11)['label'])]
  )
  focal = -((1 - p) ** 2) * np.log(p)
  assert run.metrics['focal'] == pytest.approx(np.mean(focal), rel=1e-4)
  assert run.metrics['loss'] == run.metrics['focal']
  # A baseline is of cross-entropy, and does not stand beside another loss.
  assert run.metrics['cross_entropy'] == pytest.approx(-np.mean(np.log(p)), rel=1e-4)
  beside = {name for name in run.metrics if '_below_' in name}
  assert beside == {'cross_entropy_below_entropy'}
  # The cell may be run again, and the run has ended.
  exec(cell, names)
  assert names['run'].metrics == run.metrics and TASKS['focal'] is names['FOCAL']


def test_a_record_of_a_notebook_is_known_as_ours_are(added, run):
  """By its own field, question and name; another of that name takes its place."""
  ours = TASKS['classification']
  asked = {**ours.predictions, 'of-mine': ours.predictions['classify']}
  fields = {**ours.fields, 'mine.size': Field(3, 'a number', allowed='[1, 9]')}
  mine = dataclasses.replace(ours, name='mine', predictions=asked, fields=fields)
  spec, size = 'configs/finetune.py:task=sst2,objective=mine', '--config.mine.size=5'
  with pytest.raises(InputError, match="'mine' is not known; .* or config.add"):
    config.load(spec, [size])
  assert config.add(mine) == 'mine' and config.load(spec, [size]).mine.size == 5
  source = trained.load(run.workdir)
  source.config.update(objective='mine', mine=dict(size=4))
  model = bert_jax.interactive.Model(source)
  assert model.answer('of-mine', ['old']) == run.model.predict(['old'])
  wider = fields | {'mine.size': Field(0.5, 'a share', allowed='[0, 9]')}
  config.add(dataclasses.replace(mine, fields=wider))  # the cell is run again
  assert config.load(spec, ['--config.mine.size=2.5']).mine.size == 2.5
  config.add(dataclasses.replace(ours, name='mine'))
  with pytest.raises(InputError, match="no field 'mine.size'"):
    config.load(spec, [size])
  with pytest.raises(InputError, match="'classification' is the name of a family of this package"):
    config.add(ours)
  assert 'other' not in TASKS and TASKS['classification'] is ours


def test_labels_in_the_place_of_the_folder(tmp_path):
  for call in (bert_jax.finetune, bert_jax.cross_validate):
    with pytest.raises(InputError, match='workdir is a Series; .* Labels are a column'):
      call(table().body, table().label, model='tiny')


def test_a_label_column_that_is_not_there_is_named(small, tmp_path):
  rows = table().rename(columns={'label': 'team'})
  named = "column 'label'; labels are a column of the table .*, which has 'body', 'team', 'id'"
  with pytest.raises(InputError, match=named):
    bert_jax.finetune(rows, tmp_path / 'W', **small)
  with pytest.raises(InputError, match=r"column 'Team'; .* \(did you mean 'team'\?\)"):
    bert_jax.finetune(rows, tmp_path / 'W', **small, **{'table.label_column': 'Team'})
