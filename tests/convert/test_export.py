"""Our models as Hugging Face folders: back again bit for bit, and the same under their classes."""

import json

import jax
import numpy as np
import pytest
import tokenizers as library
from golden import make_released_golden as hf
from refusal import refused
from released import (
  HEADS,
  LABELS,
  TYPES,
  batch_of,
  compare,
  config_of,
  exported,
  made,
  random_like,
  rewrite,
  same,
  tensors_of,
)

from bert_jax import tokenizers
from bert_jax.convert import sentence_transformers
from bert_jax.predict import Model
from bert_jax.tasks import TASKS
from bert_jax.tools import convert
from bert_jax.workdir import trained

LONG = 'the old river ' * 5 + 'crosses ' * 4 + 'stone , near a market ! ' * 9  # over 24, too
TEXTS = ['The river crosses the OLD stone, near a market.', 'café, Café 河流!', 'a', 'déjà-vu 1,22']


def sent(folder, found):
  """The folder, with a Trained exported into it."""
  convert.export_run(folder, found, {})
  return folder


def goes_back(found, folder):
  """Is a folder read as the model that it was made of?"""
  again = trained.load(folder)
  same(found.params, again.params, found.config)
  assert again.tokenizer.fingerprint == found.tokenizer.fingerprint
  if 'pooler' not in found.params:  # a family may have another
    again.config.model.pooler = found.config.model.pooler
  for block in ('objective', 'model', 'table', 'tagging', 'qa', 'task', 'loss'):
    assert again.config.get(block) == found.config.get(block), block
  assert again.config.data.seq_length == found.config.data.seq_length


@pytest.mark.parametrize('types', TYPES)
@pytest.mark.parametrize('head', HEADS)
def test_there_and_back_is_the_same_model(tmp_path, head, types):
  found, folder = exported(tmp_path, head, type_vocab_size=types, hidden_act='gelu_tanh')
  goes_back(found, folder)
  has_pooler = 'pooler' in found.params
  assert config_of(folder)['model_type'] == ('bert' if types or has_pooler else 'distilbert')


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


@pytest.mark.parametrize('head, types', [('masked-lm', 0), *((head, 2) for head in ROBERTAS)])
def test_a_vocabulary_of_roberta_makes_a_roberta(tmp_path, head, types):
  """Its positions are counted from the id of its padding, and it has one token type."""
  found = roberta(tmp_path, head, types)
  content = config_of(sent(tmp_path / 'hf', found))
  assert content['architectures'][0].startswith('Roberta')
  known = [content[name] for name in ('model_type', 'max_position_embeddings', 'type_vocab_size')]
  assert known == ['roberta', found.config.model.max_position_embeddings + 2, 1]
  goes_back(found, tmp_path / 'hf')


@pytest.mark.parametrize(
  'pooling, sentence',
  [
    ('mean', 'no class for a model of classification with classifier, encoder alone'),
    ('pooled_mean', 'reads mean vectors, and Hugging Face.s Bert cls'),
  ],
)
def test_a_classifier_of_means_is_not_written_as_one_of_cls(tmp_path, pooling, sentence):
  found = made('classifier')
  found.config.table.pooling = pooling
  if pooling == 'mean':
    found.params.pop('pooler')
  with refused(sentence):
    sent(tmp_path / 'hf', found)


def test_a_size_of_heads_is_written_where_it_is_the_usual_one(tmp_path):
  found, folder = exported(tmp_path / 'hf', 'classifier', attention_head_size=6)
  same(found.params, trained.load(folder).params, found.config)
  with refused('model.attention_head_size is 5, and 0 in bert'):
    exported(tmp_path / 'other', 'classifier', attention_head_size=5)


def test_what_tells_two_texts_apart_is_no_roberta(tmp_path):
  found = roberta(tmp_path, 'qa', 2)
  found.params['encoder']['embeddings']['token_type_embeddings']['embedding'][1] += 1
  assert config_of(sent(tmp_path / 'hf', found))['model_type'] == 'bert'
  same(found.params, trained.load(tmp_path / 'hf').params, found.config)


def test_what_a_model_is_asked_unless_told():
  tasks = {'next sentence': 'next-sentence', 'encoder and pooler': 'embed'}
  tasks |= {'pretraining': 'fill-mask', 'classifier': 'classify'}
  for head, task in tasks.items():
    assert Model(made(head)).default_task == task
  with refused('dtype is .float16.; use float32 or'):
    Model(made('classifier'), dtype='float16')
  released = Model(made('classifier')._replace(step=0))
  assert released.pair([('old river', 'new')])[0].keys() == {'no', 'yes', 'maybe'}


def test_an_encoder_without_a_pooler(tmp_path):
  """BertModel finds one of zeros, the card says so, and we read none."""
  found = made('encoder and pooler', type_vocab_size=0, layer_norm_eps=1e-5)
  found.params.pop('pooler')
  folder = sent(tmp_path / 'hf', found)
  tensors = tensors_of(folder)
  assert not tensors['pooler.dense.weight'].any() and tensors['pooler.dense.bias'].shape == (12,)
  assert 'not pooler_output' in (folder / 'README.md').read_text()
  same(found.params, trained.load(folder).params, found.config)


PLACELESS = {'pretraining': 'generator/encoder/layer_0/output/kernel'}
PLACELESS |= {'masked-lm': 'rtd/dense/bias', 'tagger': 'encoder/layer_0/gate/bias'}


@pytest.mark.parametrize('head, path', PLACELESS.items())
def test_a_parameter_that_they_have_no_place_for_is_refused(tmp_path, head, path):
  found = made(head, type_vocab_size=0)
  *tower, leaf = path.split('/')
  inner = found.params
  for name in tower:
    inner = inner.setdefault(name, {})
  inner[leaf] = np.float32(0.5)  # the least that a fork may add: one number
  with refused(f'^{path} has no place in a .*bert model of Hugging Face'):
    sent(tmp_path / 'hf', found)
  assert not (tmp_path / 'hf').exists()


def test_an_export_names_no_folder_of_the_machine(tmp_path):
  found = made('masked-lm')
  found.config.corpus.phrases = str(tmp_path / 'phrases.txt')
  found.config.corpus.entities = '~ada/names/all.txt'
  found.config.data.train = str(tmp_path / 'corpus.txt')
  found.config.tokenizer.path = str(tmp_path / 'vocab.txt')
  for path in sent(tmp_path / 'hf', found).rglob('*'):
    content = path.read_bytes() if path.is_file() else b''
    assert str(tmp_path).encode() not in content and b'~ada' not in content, path
  corpus = trained.load(tmp_path / 'hf').config.corpus
  assert (corpus.phrases, corpus.entities) == ('phrases.txt', 'all.txt')


def test_how_sentence_transformers_makes_a_vector(tmp_path):
  _, folder = exported(tmp_path, 'encoder and pooler')
  rewrite(folder)
  assert trained.load(folder).vector == sentence_transformers.Vector('mean')
  for content, found in (
    ({'pooling_mode_cls_token': True, 'pooling_mode_mean_tokens': False}, 'cls'),
    ({'pooling_mode': 'cls', 'pooling_mode_mean_tokens': True}, 'cls'),
    ({'pooling_mode_lasttoken': True}, 'lasttoken'),
    ({'pooling_mode': ['max']}, 'max'),
    ({'pooling_mode_max_tokens': False}, 'mean'),
    ({'word_embedding_dimension': 12}, 'mean'),
  ):
    (folder / '1_Pooling' / 'config.json').write_text(json.dumps(content))
    assert trained.load(folder).vector.pooling == found
  content = {'pooling_mode_cls_token': True, 'pooling_mode_mean_tokens': True}
  (folder / '1_Pooling' / 'config.json').write_text(json.dumps(content))
  with refused("its pooling is 'cls', 'mean', and one is read"):
    Model(folder).embed(['rome'])
  (folder / 'modules.json').write_text('{')
  with refused('modules.json cannot be read as JSON'):
    trained.load(folder)


def test_how_a_vector_is_made_goes_along(tmp_path):
  """Pooling, length 1, and how many tokens are read; through a workdir, too."""
  found, vector = made('encoder and pooler'), sentence_transformers.Vector('cls', normalized=True)
  found.config.data.seq_length = 9  # of which its tables have more
  rewrite(sent(tmp_path / 'hf', found._replace(vector=vector)))
  path = tmp_path / 'hf' / 'sentence_bert_config.json'
  assert json.loads(path.read_text()) == {'max_seq_length': 9, 'do_lower_case': False}
  path.write_text(json.dumps({'max_seq_length': 16, 'do_lower_case': False}))
  convert.convert(str(tmp_path / 'hf'), f'{tmp_path}/W')
  convert.convert(f'{tmp_path}/W', f'hf:{tmp_path}/again')
  # The checkpoint says it: a file of sentence-transformers in a workdir changes nothing.
  (tmp_path / 'W' / 'modules.json').write_text('[]')
  for folder in ('W', 'again'):
    found = trained.load(tmp_path / folder)
    assert found.vector == vector and found.config.data.seq_length == 16
  model = Model(found)
  assert model.limit == 16 and model.ask('embed').pooling == 'cls'
  (tmp_path / 'hf' / 'sentence_bert_config.json').write_text('{}')  # as of version 5 on
  path = tmp_path / 'hf' / 'tokenizer_config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | {'model_max_length': 11}))
  assert trained.load(tmp_path / 'hf').config.data.seq_length == 11


def test_what_sentence_transformers_does_to_a_text(tmp_path, caplog):
  """Lower case and the default prompt: in a vector, in a workdir, and in what is exported."""
  _, folder = exported(tmp_path / 'hf', 'encoder and pooler', lower=False)
  rewrite(folder)
  plain = Model(trained.load(folder)).embed(['query: the river'])
  (folder / 'sentence_bert_config.json').write_text('{"do_lower_case": true}')
  said = {'prompts': {'query': 'Query: ', 'passage': 'P: '}, 'default_prompt_name': 'query'}
  path = folder / 'config_sentence_transformers.json'
  path.write_text(json.dumps(said))
  convert.convert(str(folder), str(tmp_path / 'W'))
  assert "embed puts its prompts before texts by name: 'passage'" in caplog.text
  convert.convert(str(tmp_path / 'W'), f'hf:{tmp_path}/again')
  for source in (folder, tmp_path / 'W', tmp_path / 'again'):
    np.testing.assert_array_equal(Model(trained.load(source)).embed(['The RIVER']), plain)


PROBLEMS = {'classifier': 'single_label', 'multi-label': 'multi_label', 'regression': 'regression'}


def test_problems_and_labels_are_told(tmp_path):
  for head, problem in PROBLEMS.items():
    assert config_of(exported(tmp_path / head, head)[1])['problem_type'].startswith(problem)
  settings = config_of(exported(tmp_path / 'tagger', 'tagger')[1])
  assert settings['id2label'] == {str(i): label for i, label in enumerate(LABELS)}
  assert settings['label2id'] == {label: i for i, label in enumerate(LABELS)}


def test_the_tokenizer_file_gives_our_ids(tmp_path):
  found, folder = exported(tmp_path, 'masked-lm')
  fast = library.Tokenizer.from_file(str(folder / 'tokenizer.json'))
  for text in TEXTS:
    (ids,) = found.tokenizer.ids_batch([text])
    assert fast.encode(text).ids == [2, *ids, 3]
    assert fast.encode(text, text).type_ids == [0] * (len(ids) + 2) + [1] * (len(ids) + 1)
  assert fast.encode('the [MASK]').ids[2] == 4


def test_the_head_of_span_boundaries_is_left_out(tmp_path):
  found = made('masked-lm')
  found.config.loss.sbo_weight, found.config.masking.policy = 1.0, 'span'
  objective = TASKS['mlm_nsp'].objective(found.config, found.tokenizer)
  sbo = random_like(jax.eval_shape(objective.init, jax.random.key(0)))['sbo']
  whole = found._replace(params=found.params | {'sbo': sbo})
  _, left_out = convert.export_run(tmp_path / 'hf', whole, {})
  assert left_out and all(path.startswith('sbo/') for path in left_out)
  again = trained.load(tmp_path / 'hf')
  same(found.params, again.params, found.config)
  assert again.config.loss.sbo_weight == 0 and again.config.masking.policy == 'span'


@pytest.mark.parametrize('long_texts', ['head', 'tail', 'windows'])
def test_a_text_is_cut_where_it_was_in_training(tmp_path, long_texts):
  found = made('classifier')
  found.config.data.seq_length, found.config.table.long_texts = 10, long_texts
  folder = sent(tmp_path, found)
  settings = json.loads((folder / 'tokenizer_config.json').read_text())
  assert settings['model_max_length'] == 10
  assert settings.get('truncation_side', 'right') == ('left' if long_texts == 'tail' else 'right')
  said = 'for them it gives other answers' in (folder / 'README.md').read_text()
  assert said == (long_texts == 'windows')
  if not said:  # as others read it, too, and pairs
    again = trained.load(rewrite(folder))._replace(step=0)
    expected, found = (Model(x._replace(step=0)) for x in (found, again))
    for ask in (
      lambda model: model.classify([LONG]),
      lambda model: model.pair([(LONG, 'a market')]),
    ):
      assert ask(found)[0] == pytest.approx(ask(expected)[0], abs=1e-6)


def test_a_side_on_which_nothing_is_cut_here_is_named(tmp_path, caplog):
  _, folder = exported(tmp_path, 'masked-lm')
  path = folder / 'tokenizer_config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | {'truncation_side': 'left'}))
  trained.load(folder)
  assert 'cut at its end here, though truncation_side is left' in caplog.text


# ---- under their own classes ---------------------------------------------------------------------


def as_theirs(found, folder):
  """Are our logits of a Trained those of their class of a folder, at tokens that are no padding?"""
  batch, model = hf.draw_batch(), hf.load(folder)
  if not found.config.model.type_vocab_size:
    batch['token_type_ids'] *= 0
  inputs = hf.inputs_of(model, batch)
  if found.config.objective == 'choice':
    inputs = {name: x[None] for name, x in inputs.items()}
  theirs = {name: x.detach().numpy() for name, x in model(**inputs).items() if x.dim()}
  known = 'last_hidden_state', 'pooler_output'
  theirs = {name: x for name, x in theirs.items() if 'logits' in name or name in known}
  compare(theirs, found, batch_of(batch))


@pytest.mark.slow
@pytest.mark.parametrize('types', TYPES)
@pytest.mark.parametrize('head', HEADS)
def test_their_classes_compute_the_same(tmp_path, transformers, head, types):
  as_theirs(*exported(tmp_path, head, type_vocab_size=types))


@pytest.mark.slow
@pytest.mark.parametrize('types', TYPES)
@pytest.mark.parametrize('head', ROBERTAS)
def test_robertas_classes_compute_the_same(tmp_path, transformers, head, types):
  found = roberta(tmp_path, head, types)
  as_theirs(found, sent(tmp_path / 'hf', found))


@pytest.mark.slow
@pytest.mark.parametrize('long_texts', ['head', 'tail'])
def test_a_long_text_gets_the_same_answer_from_theirs(tmp_path, transformers, long_texts):
  found = made('classifier')
  found.config.data.seq_length, found.config.table.long_texts = 10, long_texts
  theirs = transformers.pipeline('text-classification', str(sent(tmp_path, found)), top_k=None)
  ours = Model(found._replace(step=0))
  for texts in (LONG,), (LONG, 'a market'), ('the river', LONG):
    asked = dict(zip(('text', 'text_pair'), texts))
    other = {answer['label']: answer['score'] for answer in theirs([asked], truncation=True)[0]}
    found = ours.pair([texts]) if len(texts) == 2 else ours.classify([*texts])
    assert found[0] == pytest.approx(other, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('types', TYPES)
@pytest.mark.parametrize('lower', [True, False])
def test_their_tokenizer_gives_our_ids(tmp_path, transformers, lower, types):
  found, folder = exported(tmp_path, 'masked-lm', lower=lower, type_vocab_size=types)
  theirs = transformers.AutoTokenizer.from_pretrained(folder)
  assert theirs.mask_token_id == 4 and theirs.model_max_length == 24
  assert ('token_type_ids' in theirs('a')) == bool(types)
  for text in TEXTS:
    (ids,) = found.tokenizer.ids_batch([text])
    assert theirs(text)['input_ids'] == [2, *ids, 3]
