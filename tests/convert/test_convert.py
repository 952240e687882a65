"""Weights of others become workdirs of ours: every spelling, every tensor accounted for."""

import dataclasses
import re
import sys
import types

import jax
import numpy as np
import pytest
import released
from refusal import refused
from released import exported, made, rewrite, same, started_from

from bert_jax import config as c
from bert_jax import evaluate
from bert_jax.config import InputError
from bert_jax.convert import from_huggingface, hub, tensorflow_bundle
from bert_jax.objectives.classification import Classification
from bert_jax.predict import Model
from bert_jax.run import initialization, warm_start
from bert_jax.run.inputs import read_inputs
from bert_jax.tasks import TASKS
from bert_jax.tasks.classification import task
from bert_jax.tokenizers import run_tokenizer
from bert_jax.tools import convert
from bert_jax.workdir import trained

SHORT = ['--config.data.seq_length=24']
WORD_TABLE = 'bert.embeddings.word_embeddings.weight'
TYPE_TABLE = 'bert.embeddings.token_type_embeddings.weight'


# ---- the golden files ----------------------------------------------------------------------------


RELEASED = [('tf_checkpoint', 46, 93), ('torch_checkpoint', 23, 0)]


@pytest.mark.parametrize('name, used, ignored', RELEASED)
def test_released_checkpoints(tmp_path, shared, name, used, ignored):
  source = shared / 'golden' / name
  convert.convert(str(source), str(tmp_path / 'W'))
  weights = from_huggingface.read(source)
  assert (len(weights.flat), len(weights.ignored)) == (used, ignored)
  assert not weights.unused
  again = trained.load(tmp_path / 'W')
  assert again.step == 0 and again.tokenizer.mask_id == 4
  convert.convert(str(tmp_path / 'W'), f'hf:{tmp_path}/hf')
  same(again.params, trained.load(tmp_path / 'hf').params, again.config)


def test_a_tensor_of_googles_is_where_it_belongs(shared):
  weights = from_huggingface.read(shared / 'golden' / 'tf_checkpoint')
  found = tensorflow_bundle.read(shared / 'golden' / 'tf_checkpoint' / 'bert_model.ckpt.index')
  layers = 'bert/encoder/layer_'
  for ours, theirs in {
    'encoder/layer_1/intermediate/kernel': f'{layers}1/intermediate/dense/kernel',
    'encoder/layer_0/attention_LayerNorm/scale': f'{layers}0/attention/output/LayerNorm/gamma',
    'mlm/bias': 'cls/predictions/output_bias',
    'nsp/dense/kernel': 'cls/seq_relationship/output_weights',
  }.items():
    turned = found[theirs].T if 'output_weights' in theirs else found[theirs]
    np.testing.assert_array_equal(weights.flat[ours], turned)
  slots = {why for name, why in weights.ignored.items() if 'adam' in name}
  assert slots == {"the optimizer's"} and weights.ignored['global_step'] == "the training's"


def test_half_precision_is_widened(tmp_path):
  found, folder = exported(tmp_path / 'hf')
  rewrite(folder, lambda tensors: {k: x.astype(np.float16) for k, x in tensors.items()})
  half = jax.tree.map(lambda x: np.asarray(x, np.float16).astype(np.float32), found.params)
  same(half, trained.load(folder).params, found.config)


# ---- spellings -----------------------------------------------------------------------------------

SPELLINGS = {
  'old names': lambda x: re.sub('Norm.bias', 'Norm.beta', re.sub('Norm.weight', 'Norm.gamma', x)),
  'of several devices': lambda name: f'module.{name}',
  'compiled on several devices': lambda name: f'_orig_mod.module.{name}',
  'of a class of its own': lambda name: f'net.bert_model.{name}',
  'encoder without its prefix': lambda name: name.removeprefix('bert.'),
}


@pytest.mark.parametrize('spelling', SPELLINGS)
def test_other_spellings_are_the_same_model(tmp_path, spelling):
  found, folder = exported(tmp_path / 'hf')

  def respelt(tensors):
    tensors['cls.predictions.decoder.weight'] = tensors[WORD_TABLE]
    tensors['bert.embeddings.position_ids'] = np.arange(24)[None]
    return {SPELLINGS[spelling](name): x for name, x in tensors.items()}

  rewrite(folder, respelt)
  weights = from_huggingface.read(folder)
  assert not weights.unused and len(weights.ignored) == 2
  same(found.params, trained.load(folder).params, found.config)


def test_weights_without_a_head_say_what_they_can_do(tmp_path):
  """A classifier by its class; by its pooler where config.json names no class."""
  objectives = {'classifier': 'classification', 'tagger': 'tagging', 'choice': 'choice', 'qa': 'qa'}
  for head, objective in objectives.items():
    _, folder = exported(tmp_path / head, head)
    assert trained.load(folder).config.objective == objective
    expected = {'choice': 'classification'}.get(objective, objective)
    assert trained.load(rewrite(folder, architectures=None)).config.objective == expected
  labels = lambda **said: trained.load(rewrite(tmp_path / 'tagger', **said)).config.tagging.labels
  assert labels() == released.LABELS
  assert labels(id2label=None) == ('LABEL_0', 'LABEL_1', 'LABEL_2')
  with refused('names 2 labels, and the classifier has 3'):
    labels(id2label={'0': 'a', '1': 'b'})


# ---- what does not fit ---------------------------------------------------------------------------


def test_what_has_no_place_is_an_error_unless_allowed(tmp_path, capsys):
  found, folder = exported(tmp_path / 'hf')
  rewrite(folder, lambda tensors: tensors | {'extra.weight': np.zeros(3, np.float32)})
  with refused('1 parts .* no place, for example extra.weight'):
    convert.convert(str(folder), str(tmp_path / 'W'))
  assert not (tmp_path / 'W').exists()
  convert.convert(str(folder), str(tmp_path / 'W'), strict=False)
  assert 'not used: extra.weight: no model here has such a tensor' in capsys.readouterr().out
  same(found.params, trained.load(tmp_path / 'W').params, found.config)


def test_a_head_that_is_not_whole_is_named(tmp_path):
  _, folder = exported(tmp_path / 'hf')
  rewrite(folder, lambda t: {k: x for k, x in t.items() if k != 'cls.predictions.bias'})
  weights = from_huggingface.read(folder)
  assert 'mlm' not in {path.partition('/')[0] for path in weights.flat}
  why = 'its mlm is not whole: cls.predictions.bias is missing'
  assert weights.unused['cls.predictions.transform.dense.bias'] == why


def ones(*shape, kind=np.float32):
  return np.ones(shape, kind)


@pytest.mark.parametrize(
  'name, x, sentence',
  [
    (WORD_TABLE, ones(26, 12, kind=np.int8), f'{WORD_TABLE} .*quantized'),
    (WORD_TABLE, np.nan * ones(26, 12), f'{WORD_TABLE} .*not finite'),
    (WORD_TABLE, ones(30, 12), r'is \(30, 12\), .* \(26, 12\); correct it'),
    ('cls.predictions.decoder.weight', ones(26, 12), 'differs from .*tie_word_embeddings'),
  ],
)
def test_a_tensor_that_does_not_fit_is_one_sentence(tmp_path, name, x, sentence):
  _, folder = exported(tmp_path / 'hf')
  rewrite(folder, lambda tensors: tensors | {name: x})
  with refused(sentence):
    trained.load(folder)


def test_a_run_on_standardized_numbers_is_a_model_in_their_units(tmp_path):
  """Loaded, exported, and as what another run begins from, whose numbers are others."""
  found = made('regression', type_vocab_size=2)
  found.config.table.prior = (1000.0, 8.0)
  convert.write_workdir(tmp_path / 'W', found, {})
  loaded = trained.load(tmp_path / 'W')
  head, was = loaded.params['classifier']['dense'], found.params['classifier']['dense']
  np.testing.assert_array_equal(head['kernel'], was['kernel'] * 8)
  np.testing.assert_array_equal(head['bias'], was['bias'] * 8 + 1000)
  assert loaded.config.table.prior == ()
  convert.convert(str(tmp_path / 'W'), f'hf:{tmp_path}/hf')
  same(loaded.params, trained.load(tmp_path / 'hf').params, loaded.config)
  (tmp_path / 'a.tsv').write_text('sentence\tlabel\nthe river\t5\na stone\t7\n')
  given = f'data.train={tmp_path}/a.tsv table.regression=true data.seq_length=24 steps=2 epochs=0'
  for source in ('W', 'hf'):
    more = f'init_from={tmp_path / source}', *given.split()
    config = c.load('configs/finetune.py:task=table', [f'--config.{x}' for x in more])
    inputs = read_inputs(config, tmp_path / 'run')
    assert inputs.config.table.prior == (6.0, 1.0)
    about = inputs.start, inputs.config, inputs.objective, inputs.mesh
    params, other_labels = warm_start.load_weights(*about)
    assert not other_labels
    np.testing.assert_allclose(params['classifier']['dense']['kernel'], head['kernel'])
    np.testing.assert_allclose(params['classifier']['dense']['bias'], head['bias'] - 6)


def test_one_label_of_several_is_no_regression(tmp_path):
  for problem in ('multi_label_classification', 'single_label_classification', None):
    _, folder = exported(tmp_path / f'{problem}', 'regression')
    rewrite(folder, problem_type=problem, id2label={'0': 'toxic'})
    table, several = trained.load(folder).config.table, problem == 'multi_label_classification'
    assert (table.regression, table.multi_label) == (not several, several)
    assert table.labels == (('toxic',) if several else ())


def test_what_is_written_wrongly_is_found(tmp_path):
  found, folder = exported(tmp_path / 'hf')
  again, paths = trained.load(folder), convert.flat_of(found).keys()
  convert.verify(found, again, paths, folder)
  for changed in ('last bit', 'missing', 'further'):
    wrong = trained.load(folder)
    biases = wrong.params['pooler']['dense']
    if changed == 'last bit':
      biases['bias'] = np.nextafter(biases['bias'], 1)
    elif changed == 'missing':
      biases.pop('bias')
    else:
      biases['other'] = biases['bias']
    with refused('^pooler/dense/(bias|other) in .* is not what was to be written'):
      convert.verify(found, wrong, paths, folder)
  other = again._replace(tokenizer=made('masked-lm', lower=False).tokenizer)
  with refused('the vocabulary in .* is not what was to be written'):
    convert.verify(found, other, paths, folder)


class Reversed(Classification):
  """Its answers are the classifier's, of the labels in reverse."""

  def predict(self, params, batch):
    found = super().predict(params, batch)
    return found | {'logits': found['logits'][..., ::-1]}


@pytest.fixture
def added():
  """What a test makes known is forgotten after it."""
  tables = TASKS, c.ALL, c.SHARED
  before = [dict(known) for known in tables]
  yield
  for known, old in zip(tables, before, strict=True):
    known.clear()
    known.update(old)


def test_an_objective_with_other_answers_is_not_written_as_a_plain_classifier(tmp_path, added):
  """Though its weights are read again bit for bit. Nothing of it is left."""

  def objective(config, tokenizer):
    return task.objective(config, tokenizer, Reversed)

  c.add(dataclasses.replace(TASKS['classification'], name='reversed', objective=objective))
  found = made('classifier')
  convert.write_workdir(tmp_path / 'W', found, {})
  convert.convert(str(tmp_path / 'W'), f'hf:{tmp_path}/same')
  found.config.objective = 'reversed'
  convert.write_workdir(tmp_path / 'W2', found, {})
  with refused("answers otherwise than the model: the objective of 'reversed'"):
    convert.convert(str(tmp_path / 'W2'), f'hf:{tmp_path}/other')
  assert not (tmp_path / 'other').exists()


def test_nothing_is_overwritten_and_nothing_half_left(tmp_path, monkeypatch, pretrained):
  _, folder = exported(tmp_path / 'hf')
  monkeypatch.chdir(tmp_path)
  for source, target, sentence in (
    (folder, folder, 'is not empty'),
    (folder, f'hf:{folder}', 'is not empty'),
    (pretrained[0], 'W', 'is a run already'),
  ):
    with refused(sentence):
      convert.convert(str(source), str(target))

  def fail(*_):
    raise InputError('not what was to be written')

  monkeypatch.setattr(convert, 'verify', fail)
  with refused('not what was to be written'):
    convert.convert(str(folder), 'hf:new')
  assert [path.name for path in tmp_path.iterdir()] == ['hf']


def test_weights_with_rows_that_no_piece_has_are_started_from(tmp_path):
  _, folder = exported(tmp_path / 'hf', vocab_size=30)
  config = c.load('configs/pretrain.py', [f'--config.init_from={folder}', *SHORT])
  beginning = initialization.start_of(config, tmp_path / 'W')
  config = initialization.adopt_model(config, beginning)
  tokenizer = run_tokenizer.load_or_train(config, folder, None)
  assert (config.model.vocab_size, tokenizer.vocab_size) == (30, 26)
  objective = TASKS['mlm_nsp'].objective(config, tokenizer)
  assert objective.masking['vocab_size'] == 26  # no word is drawn that is none


def test_a_head_that_is_not_ours_does_not_keep_the_encoder(tmp_path, caplog):
  _, folder = exported(tmp_path / 'hf', 'classifier')
  rewrite(folder, id2label={'0': 'a', '1': 'b'})
  short = [*SHORT, '--config.task.max_length=24', f'--config.init_from={folder}']
  config = c.load('configs/finetune.py:task=sst2', short)
  assert started_from(config, tmp_path / 'W')[1].keys() == {'encoder', 'pooler'}
  assert 'is not taken: id2label' in caplog.text


# ---- a converted workdir -------------------------------------------------------------------------


def test_a_converted_workdir_is_asked_and_started_from(tmp_path, caplog):
  found, folder = exported(tmp_path / 'hf', 'encoder and pooler')
  caplog.set_level('INFO', 'bert_jax')
  convert.convert(str(folder), str(tmp_path / 'W'))
  assert f'writing {tmp_path}/W' in caplog.messages, 'and no place for the time being'
  again = trained.load(tmp_path / 'W')
  assert set(again.params) == {'encoder', 'pooler'}
  with refused('has no mlm, nsp; .*with init_from'):
    evaluate.evaluate(tmp_path / 'W', ['--config.data.eval=none.txt'])  # and reads no data before
  own = [f'--config.init_from={tmp_path}/W', '--config.data.seq_length=24']
  config = c.load('configs/finetune.py:task=table', own)
  config, params = started_from(config, tmp_path / 'new')
  assert config.model.hidden_size == 12
  same(found.params, params, again.config)


def test_a_converted_classifier_is_evaluated_on_what_is_named(tmp_path):
  """What is right is what its logits say."""
  found, folder = exported(tmp_path / 'hf', 'classifier', num_hidden_layers=1)
  convert.convert(str(folder), str(tmp_path / 'W'))
  with refused('holds converted weights and no data; name what to'):
    evaluate.evaluate(tmp_path / 'W')
  texts, gold = ['the river crosses', 'old stone', 'the market'], ['yes', 'no', 'maybe']
  lines = ''.join(f'{text}\t{label}\n' for text, label in zip(texts, gold))
  (tmp_path / 'eval.tsv').write_text(f'sentence\tlabel\n{lines}')
  scores, _ = evaluate.evaluate(tmp_path / 'W', [f'--config.data.eval={tmp_path}/eval.tsv'])
  said = [max(x, key=x.get) for x in Model(found).classify(texts)]
  assert scores['accuracy'] == pytest.approx(np.mean(np.equal(said, gold)))


# ---- the Hub -------------------------------------------------------------------------------------


def test_a_name_that_no_folder_has_is_asked_of_the_hub(tmp_path, monkeypatch):
  """A path is never: there a stranger's weights may have its name."""
  _, folder = exported(tmp_path / 'hf')
  asked = []

  def snapshot_download(name, allow_patterns):
    asked.append((name, allow_patterns))
    if name != 'someone/model':
      raise OSError('404: no such repository')
    return str(folder)

  stand_in = types.SimpleNamespace(snapshot_download=snapshot_download)
  monkeypatch.setitem(sys.modules, 'huggingface_hub', stand_in)
  assert hub.folder(folder) == folder
  for local in ('some-model', 'someone/model', './some-model', '/some-model', 'a/b/c'):
    with refused('no such folder; check the path'):
      hub.folder(local)
  assert not asked and hub.folder('hf:someone/model') == folder
  assert asked == [('someone/model', [*hub.ABOUT, 'model*.safetensors'])]
  assert trained.load('hf:someone/model').config.objective == 'mlm_nsp'
  with refused('hf:some-model cannot be fetched .*404'):  # as bert-base-uncased: without an owner
    hub.folder('hf:some-model')
  (folder / 'model.safetensors').rename(folder / 'model.renamed')
  hub.folder('hf:someone/model')
  assert asked[-1] == ('someone/model', [*hub.ABOUT, 'pytorch_model*.bin'])
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  with refused('pip install huggingface_hub'):
    hub.folder('hf:someone/model')
  for module in stand_in, None:
    monkeypatch.setitem(sys.modules, 'huggingface_hub', module)
    with refused(f'cannot be fetched.*; the folder {folder} here is given without hf:'):
      hub.folder(f'hf:{folder}')


def test_a_vocabulary_that_is_cut_off_is_refused(tmp_path):
  _, folder = exported(tmp_path / 'hf')
  for path in folder.glob('tokenizer*.json'):
    path.unlink()
  words = (folder / 'vocab.txt').read_text().splitlines()
  (folder / 'vocab.txt').write_text('\n'.join(words[: len(words) // 4]) + '\n')
  with refused('pieces and its weights have .* cut off'):
    trained.load(folder)
