"""The model card of an export: data, metrics, no paths."""

import json
import re

import pytest
from released import made

from bert_jax import config as c
from bert_jax.tools import convert
from bert_jax.workdir import trained
from bert_jax.workdir.recorded import Split


def test_a_card_of_a_run(pretrained, tmp_path, corpus_file):
  """Metrics, data, and no folder of the machine, in the card as in config.json."""
  workdir, out = pretrained[0], tmp_path / 'hf'
  convert.convert(str(workdir), f'hf:{out}')
  card = (out / 'README.md').read_text()
  assert card.startswith('---\nlibrary_name: transformers\n')
  metrics = pretrained[2]
  for name in ('mlm', 'mlm_accuracy', 'nsp_accuracy'):
    assert f'- {name}: {metrics[name]:.3g}\n' in card
  assert 'judged by `mlm`' in card and '_below_' not in card and '- masked:' not in card
  for path in (workdir, corpus_file, tmp_path):
    for file in ('README.md', 'config.json'):
      assert str(path.parent) not in (out / file).read_text()
  assert not re.search(r'(?m)[\s"=\x60](/|~/|\.\./)\w', card)


def card_of(folder, head='classifier', config=(), **facts):
  """The card of a model of one of released.HEADS with these facts, after changes of its config."""
  model = made(head)
  model.config.update_from_flattened_dict(dict(config))
  convert.export_run(folder, model, facts)
  return (folder / 'README.md').read_text()


CUT, WINDOWS = 'cut at their end, as', 'for them it gives other answers'


@pytest.mark.parametrize(
  'head, fields, longer',
  [
    ('masked-lm', {}, ''),
    ('classifier', {}, CUT),
    ('classifier', {'table.long_texts': 'windows'}, WINDOWS),
    ('multi-label', {}, CUT),
    ('tagger', {}, WINDOWS),
    ('qa', {}, WINDOWS),
    ('choice', {}, WINDOWS),
  ],
)
def test_a_card_says_what_is_cut(tmp_path, head, fields, longer):
  card = card_of(tmp_path / 'hf', head, fields)
  assert longer in card and (CUT in card or WINDOWS in card) == bool(longer)
  assert (' A text has each label whose score is above 0.5.' in card) == (head == 'multi-label')


@pytest.mark.parametrize('step, seq_length', [(4, 9), (0, 9), (4, 500)])
def test_a_card_says_how_long_rows_were_in_training(tmp_path, step, seq_length):
  """If they are shorter than what the model reads, and it was trained by us."""
  fields = {'data.seq_length': seq_length, 'model.max_position_embeddings': 40}
  card = card_of(tmp_path / 'hf', 'masked-lm', fields, step=step)
  assert 'It reads 40 tokens of a text at most, special ones included.' in card
  assert (' Its training had rows of 9.\n' in card) == (step == 4 and seq_length == 9)


def test_a_number_goes_by_the_column_that_it_was_learned_from(tmp_path):
  metrics = {'squared_error': 1.2, 'squared_error_below_mean': 0.3, 'constant': 1.0, 'loss': 1.2}
  metrics['pearson_logistic_regression'] = 0.5
  fields = {'table.label_column': 'stars|score'}
  card = card_of(tmp_path / 'hf', 'regression', fields, metrics=metrics, step=4)
  assert 'It predicts a number, `stars`.' in card
  assert '- squared_error: 1.2\n' in card and 'below' not in card and '- loss' not in card
  assert '- pearson of a logistic regression on the vectors of the first weights: 0.5\n' in card
  assert '**It has collapsed**' in card and '- constant' not in card
  assert json.loads((tmp_path / 'hf' / 'config.json').read_text())['id2label'] == {'0': 'stars'}
  assert trained.load(tmp_path / 'hf').config.table.regression


@pytest.mark.parametrize('is_part', [True, False])
def test_a_card_says_how_many_examples_were_read(tmp_path, is_part):
  data = {'train': Split(examples=1701), 'eval': Split(examples=205, scored=204)}
  fields = {'batch_size': 5, 'optimizer.name': 'sgd', 'optimizer.batch_warmup': 3}
  facts = {'step': 7, 'is_part': is_part, 'data': data, 'languages': ['no', 'de']}
  card = card_of(tmp_path, config=fields, metrics={'accuracy': 0.9}, **facts)
  assert 'language: ["no", "de"]\n' in card
  assert 'It was trained on 1,701 examples, in 7 steps of up to 5 rows, by sgd with' in card
  of = 'a part of the held-out data' if is_part else 'held-out data (204 examples)'
  assert f'On {of}, at step 7' in card


def test_a_card_of_an_earlier_step_is_of_a_part(tmp_path):
  card = card_of(tmp_path, step=1, metrics={'mlm_accuracy': 0.3149}, is_part=True)
  assert 'On a part of the held-out data, at step 1' in card
  assert 'It was trained in 1 step of' in card
  assert '- mlm_accuracy: 0.315\n' in card


@pytest.mark.parametrize(
  'source, name',
  [
    ('hf:org/bert-base-german-cased', 'org/bert-base-german-cased'),
    ('/home/ada/secret/run_1', 'run_1'),
    (c.MINILM, 'sentence-transformers/all-MiniLM-L6-v2'),
  ],
)
def test_a_card_names_what_it_was_fine_tuned_from(tmp_path, source, name):
  card = card_of(tmp_path / 'hf', config={'init_from': source})
  assert f'It began with the weights of `{name}`.' in card and 'secret' not in card
  assert (f'\nbase_model: {name}\n' in card) == ('/' in name)
