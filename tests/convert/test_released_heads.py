"""Heads of released models: those that are read, in training, and the sentence for the others."""

import jax
import numpy as np
import pytest
from golden import make_released_golden as hf
from refusal import refused
from released import (
  batch_of,
  config_of,
  exported,
  folder_of,
  made,
  recorded_of,
  rewrite,
  started_from,
)

from bert_jax import config as c
from bert_jax import evaluate, predict
from bert_jax.convert import from_huggingface
from bert_jax.predict import __main__ as predict_command
from bert_jax.tasks import TASKS
from bert_jax.tools import convert
from bert_jax.workdir import trained

# {case: (its class, prefix of the names of its head, why it is not read)}.
NO_NAME = 'no model here has such a tensor'
UNREAD = {
  't5': ('T5ForSequenceClassification', 'classification_head.', NO_NAME),
  'bart': ('BartForSequenceClassification', 'classification_head.', NO_NAME),
  'gpt2': ('GPT2ForTokenClassification', 'classifier.', NO_NAME),
  'roformer': ('RoFormerForMultipleChoice', 'classifier.', 'by the last token of a row'),
  'distilbert': ('DistilBertForReplies', 'reply.', NO_NAME),
}


@pytest.fixture(scope='module')
def recorded():
  return recorded_of(hf)


def unread(folder, recorded, case):
  """(the folder of a recorded case as a class with a head that is not read, words of the sentence
  about it)."""
  architecture, prefix, why = UNREAD[case]
  head = {f'{prefix}weight': np.ones((3, 12), np.float32), f'{prefix}bias': np.ones(3, np.float32)}
  of_words = 'cls.', 'vocab_', 'lm_head', 'transformer.lm_head', 'final_logits_bias'
  without = lambda x: {name: y for name, y in x.items() if not name.startswith(of_words)}
  folder_of(folder, recorded, case)
  rewrite(folder, lambda x: without(x) | head, architectures=[architecture])
  return folder, f'says {architecture}, whose head is not read .{prefix}bias: .*{why}'


@pytest.mark.parametrize('case', UNREAD)
def test_the_reason_why_a_head_is_not_read_is_said(tmp_path, capsys, recorded, case):
  """By whatever asks for it, and no other task answers unless it is named."""
  folder, sentence = unread(tmp_path / 'hf', recorded, case)
  model = predict.Model(folder)
  for ask in (model.predict, model.classify, model.choose, model.tag):
    with refused(sentence):
      ask(['the stone'])
  assert np.isfinite(model.embed(['abc'])).all()
  with pytest.raises(SystemExit):
    predict_command.main(['--model', str(folder)])
  assert UNREAD[case][0] in capsys.readouterr().err
  with refused(f'no place, for example {UNREAD[case][1]}bias: .*{UNREAD[case][2]}'):
    convert.convert(str(folder), str(tmp_path / 'W'))
  convert.convert(str(folder), str(tmp_path / 'W'), strict=False)
  assert f'predict --model {tmp_path}/W --task embed,' in capsys.readouterr().out
  with refused(sentence):
    predict.Model(tmp_path / 'W').predict(['the stone'])


def test_a_class_whose_head_is_not_there_is_no_encoder(tmp_path):
  """Unless other files say how its vectors are made."""
  _, folder = exported(tmp_path / 'hf', 'encoder and pooler')
  rewrite(folder, architectures=['BertForSequenceClassification'])
  assert predict.Model(folder).default_task == 'embed'
  for path in ('modules.json', '1_Pooling/config.json'):
    (folder / path).unlink()
  model = predict.Model(folder)
  with refused('says BertForSequenceClassification, whose head is not read .its weights: none of'):
    model.predict(['old river'])
  convert.convert(str(folder), str(tmp_path / 'W'))
  with refused('W has no mlm, nsp; config.json says BertForSequenceClassification'):
    evaluate.evaluate(tmp_path / 'W', ['--config.data.eval=x.txt'])


@pytest.mark.parametrize(
  'head, architecture, task',
  [
    ('classifier', 'BertForMultiLabelClassification', 'classify'),
    ('encoder and pooler', 'Contriever', 'embed'),
  ],
)
def test_weights_decide_where_a_class_has_another_name(tmp_path, head, architecture, task):
  _, folder = exported(tmp_path / 'hf', head)
  rewrite(folder, architectures=[architecture])
  (folder / 'modules.json').unlink(missing_ok=True)
  convert.convert(str(folder), str(tmp_path / 'W'))
  for path in (folder, tmp_path / 'W'):
    assert predict.Model(path).default_task == task


@pytest.mark.parametrize('other', ['roberta.', 'teacher.bert.', ''])
def test_a_file_of_two_models_is_refused(tmp_path, other):
  _, folder = exported(tmp_path / 'hf', 'pretraining')
  again = lambda x: {other + k.removeprefix('bert.'): y + 1 for k, y in x.items() if 'embed' in k}
  rewrite(folder, lambda x: x | again(x))
  with refused(f"holds 2 models, whose names begin with .*'{other}'"):
    from_huggingface.read(folder)


def test_a_classifier_that_begins_with_a_bare_distilbert_is_theirs(tmp_path, recorded):
  folder = folder_of(tmp_path / 'theirs', recorded, 'distilbert')
  begins = [f'--config.init_from={folder}', '--config.data.seq_length=24']
  config = c.load('configs/finetune.py:task=table', [*begins, '--config.table.labels=a,b'])
  config, params = started_from(config, tmp_path / 'run')
  assert (config.model.pooler, config.model.classifier_dropout_prob) == ('relu', 0.3)
  found = trained.load(folder)
  objective = TASKS['classification'].objective(config, found.tokenizer)
  params = objective.init(jax.random.key(0)) | {'encoder': params['encoder']}
  found = found._replace(config=config, params=jax.device_get(params))
  convert.export_run(tmp_path / 'hf', found, {})
  said = config_of(tmp_path / 'hf')
  assert said['architectures'] == ['DistilBertForSequenceClassification']
  assert (said['seq_classif_dropout'], said['qa_dropout']) == (0.3, 0.15)


@pytest.mark.parametrize(
  'head, field',
  [
    ('classifier', 'classifier_dropout_prob'),
    ('choice', 'classifier_dropout_prob'),
    ('qa', 'span_dropout_prob'),
  ],
)
def test_the_dropout_of_a_head_is_its_own(head, field):
  """A tagger's is that of hidden states."""
  batch = batch_of(hf.draw_batch())

  def spread(head, **changes):
    found = made(head, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **changes)
    objective = TASKS[found.config.objective].objective(found.config, found.tokenizer)
    draws = [objective.logits(found.params, batch, jax.random.key(i)) for i in (1, 2)]
    return np.abs(draws[0] - draws[1]).max()

  assert spread(head) == 0 < spread(head, **{field: 0.5})
  assert spread('tagger', **{field: 0.5}) == 0
