"""GPT-2, OpenAI-GPT and BART: their weights compute and generate the same here, and go back.

`recorded` is what golden/make_decoder_golden.py wrote; slow tests compare with torch itself.
"""

import json
import string

import jax
import numpy as np
import pytest
import safetensors.numpy
import tokenizers as library
from golden import make_decoder_golden as hf
from golden import make_released_golden as classes
from released import SIZES, WORDS, made, recorded_of
from test_export import same

from bert_jax import config as c
from bert_jax import models, tokenizers, train
from bert_jax.config import InputError
from bert_jax.convert import config_json, from_huggingface, parameter_names
from bert_jax.models import encoder, encoder_decoder, sampling
from bert_jax.models.beam_search import beam_search
from bert_jax.models.tokens import Tokens
from bert_jax.objectives.encode import encode
from bert_jax.predict import Model
from bert_jax.run import initialization
from bert_jax.tasks import TASKS
from bert_jax.tools import convert
from bert_jax.workdir import trained

LETTERS = string.ascii_lowercase
# {family: (its pieces, its merges)}.
VOCABULARIES = {
  'gpt2': ([*LETTERS[:23], 'Ġ', 'Ġt', '<|endoftext|>'], ['Ġ t']),
  'openai-gpt': (['<unk>', *LETTERS[:12], *(f'{x}</w>' for x in LETTERS[:12]), 'ab'], ['a b']),
  'bart': (['<s>', '<pad>', '</s>', '<unk>', *LETTERS[:20], 'Ġ', '<mask>'], []),
}
OUT = [case for case in hf.CASES if case != 'openai-gpt']  # those that are written, too


@pytest.fixture(scope='module')
def recorded():
  return recorded_of(hf)


def folder_of(path, recorded, case, **settings):
  """A folder as transformers saves a model of a case, with a vocabulary beside it."""
  content = json.loads(str(recorded[case]['config'])) | settings
  hf.write_folder(path, json.dumps(content), json.loads(str(recorded[case]['shapes'])))
  pieces, merges = VOCABULARIES[case.partition(' ')[0]]
  (path / 'vocab.json').write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
  (path / 'merges.txt').write_text('\n'.join(['#version: 0.2', *merges]) + '\n')
  return path


def changed(folder, change):
  """The folder with the {name: array} of its tensors changed."""
  path = folder / 'model.safetensors'
  safetensors.numpy.save_file(change(safetensors.numpy.load_file(path)), path)
  return folder


def logits_of(found):
  """[B, T, V] of the recorded batch."""
  theirs, model = hf.draw_batch(), models.ModelConfig(**found.config.model)
  ids, real = (theirs[name].astype(np.int32) for name in ('input_ids', 'attention_mask'))
  places = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
  batch = {'input_ids': ids, 'token_type_ids': 0 * ids, 'position_ids': places}
  if 'decoder' in found.params:
    objective = TASKS['translation'].objective(found.config, found.tokenizer)
    target = {'target_ids': ids[:, ::-1], 'target_position_ids': places}
    target |= {'target_segment_ids': 0 * ids + 1, 'segment_ids': real}
    # A target sees the sources of its segment: those of a row are one.
    return objective.logits(found.params, batch | target)[..., : hf.VOCAB]
  hidden = encode(model, found.params['encoder'], batch | {'segment_ids': real})
  table = found.params['encoder']['embeddings']['word_embeddings']['embedding']
  head = models.MaskedLMHead(model)
  return head.apply({'params': found.params.get('mlm', {})}, hidden, table)[..., : hf.VOCAB]


def generated(found, way):
  """[prompts, TOKENS], -1 behind their ends: what one of hf.WAYS makes of the prompts."""
  options = dict(hf.WAYS[way])
  beams, length = options.pop('num_beams', 0), hf.LENGTHS[0]
  is_bart = 'decoder' in found.params
  stop, penalty = hf.BART_END if is_bart else hf.END, options.pop('repetition_penalty', 1.0)
  choice = sampling.Choice(stop_ids=(stop,), repetition_penalty=penalty)
  lengths = np.array([len(prompt) for prompt in hf.PROMPTS])
  ids = np.zeros((len(lengths), max(lengths)), np.int32)
  for row, prompt in zip(ids, hf.PROMPTS):
    row[: len(prompt)] = prompt
  model = models.ModelConfig(**found.config.model)

  def of_decoder(params):
    """As of_encoder, of a decoder whose sources are the prompts."""
    places = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    real = (places < lengths[:, None]).astype(np.int32)
    batch = {'input_ids': ids, 'token_type_ids': 0 * ids, 'position_ids': places}
    hidden = encode(model, params['encoder'], batch | {'segment_ids': real})
    objective = TASKS['translation'].objective(found.config, found.tokenizer)
    begin = np.full((len(ids), 1), objective.begin_id)
    read = encoder_decoder.prefilled(
      model, params, (hidden, Tokens(real)), begin, length=length, copies=max(1, beams)
    )
    return *read, np.ones(len(ids), np.int32), begin

  @jax.jit
  def run(params):
    if is_bart:
      logits, cache, step, places, before = of_decoder(params)
    else:
      prefill, step = encoder.one_token_steps(model, params)
      (logits, cache), places, before = prefill(ids, lengths, length), lengths, hf.PROMPTS
    seen = np.zeros(logits.shape, bool)
    for row, tokens in zip(seen, before):
      row[tokens] = True
    settings = dict(max_tokens=hf.TOKENS, length=length, seen_BV=seen)
    if beams:
      return beam_search(step, cache, logits, places, choice, beams=beams, **settings, **options)[0]
    keys = jax.random.split(jax.random.key(0), len(lengths))
    state = sampling.begin(cache, logits, places, keys, choice, **settings)
    return sampling.advance(step, state, choice, length=length, upto=hf.TOKENS).ids

  return np.asarray(run(found.params))


@pytest.mark.parametrize('case', hf.CASES)
def test_their_weights_compute_what_they_recorded(tmp_path, recorded, case):
  folder = folder_of(tmp_path, recorded, case)
  weights = from_huggingface.read(folder)
  assert not weights.unused and not weights.new
  found, real = trained.load(folder), hf.draw_batch()['attention_mask'] > 0
  if 'bart' in case:  # whose targets are whole rows
    real |= True
  assert found.config.model.causal == ('gpt' in case)
  theirs = recorded[case]['logits']
  np.testing.assert_allclose(logits_of(found)[real], theirs[real], rtol=0, atol=1e-4)
  assert np.std(theirs) > 0.1


@pytest.mark.parametrize(
  'case, way', [(case, way) for case in hf.CASES for way in hf.ways_of(case)]
)
def test_what_is_generated_is_what_they_generate(tmp_path, recorded, case, way):
  found = trained.load(folder_of(tmp_path, recorded, case))
  np.testing.assert_array_equal(generated(found, way), recorded[case][way])


def test_the_recorded_ways_differ(recorded):
  """Or the test above would not tell one from another."""
  rows = {way: recorded['gpt2'][way].tolist() for way in hf.WAYS}
  assert len({str(x) for x in rows.values()}) == len(rows)
  lengths = [row.index(-1) if -1 in row else hf.TOKENS for row in rows['beam']]
  assert len(set(lengths)) > 1 and hf.TOKENS in lengths  # some end by a token, and not all


@pytest.mark.slow
@pytest.mark.parametrize('case', hf.CASES)
def test_their_classes_compute_what_is_recorded(recorded, case):
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  for name, x in hf.record(case).items():
    if name == 'logits':
      np.testing.assert_allclose(x, recorded[case][name], rtol=0, atol=1e-5)
    elif name in hf.WAYS:
      np.testing.assert_array_equal(x, recorded[case][name], name)


def exported(tmp_path, recorded, case):
  """(a Trained made of a case, the folder that it is exported to)."""
  found = trained.load(folder_of(tmp_path / 'theirs', recorded, case))
  convert.convert(str(tmp_path / 'theirs'), str(tmp_path / 'W'))
  convert.convert(str(tmp_path / 'W'), f'hf:{tmp_path}/hf')
  return found, tmp_path / 'hf'


@pytest.mark.parametrize('case', OUT)
def test_in_and_out_is_the_same_file(tmp_path, recorded, case):
  """Tensor by tensor, bit for bit, through a workdir of ours."""
  found, folder = exported(tmp_path, recorded, case)
  before, after = (
    safetensors.numpy.load_file(x / 'model.safetensors') for x in (tmp_path / 'theirs', folder)
  )
  assert before.keys() == after.keys()
  for name, x in before.items():
    if 'bart' in case and name.endswith('embed_positions.weight'):
      x[:2] = 0  # they are of no position
    np.testing.assert_array_equal(x, after[name], name)
  again = trained.load(folder)
  same(found.params, again.params, found.config)
  assert again.config == found.config
  assert again.tokenizer.fingerprint == found.tokenizer.fingerprint
  theirs, ours = (
    json.loads((x / 'config.json').read_text()) for x in (tmp_path / 'theirs', folder)
  )
  for key in sorted(theirs.keys() & set(KEYS)):
    assert ours[key] == theirs[key] or (key, theirs[key]) == ('n_inner', None), key


# Keys of a config.json by which a model computes or writes something else.
KEYS = (
  'vocab_size',
  'n_embd',
  'n_layer',
  'n_head',
  'n_inner',
  'n_positions',
  'activation_function',
  'layer_norm_epsilon',
  'tie_word_embeddings',
  'bos_token_id',
  'eos_token_id',
  'embd_pdrop',
  'resid_pdrop',
  'attn_pdrop',
  'initializer_range',
  'd_model',
  'encoder_layers',
  'decoder_layers',
  'encoder_attention_heads',
  'decoder_attention_heads',
  'encoder_ffn_dim',
  'decoder_ffn_dim',
  'max_position_embeddings',
  'scale_embedding',
  'decoder_start_token_id',
  'dropout',
  'init_std',
  'attention_dropout',
  'is_encoder_decoder',
  'architectures',
  'model_type',
)


@pytest.mark.slow
@pytest.mark.parametrize('case', OUT)
def test_their_classes_load_what_is_exported(tmp_path, recorded, case):
  """No tensor is missing or left over, and logits and tokens are those of before, bit for bit."""
  pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  _, folder = exported(tmp_path, recorded, case)
  before, after = (hf.computed(classes.load(x)) for x in (tmp_path / 'theirs', folder))
  for name, x in before.items():
    np.testing.assert_array_equal(x, after[name], name)
  theirs = transformers.AutoTokenizer.from_pretrained(folder)
  (ids,) = trained.load(folder).tokenizer.ids_batch(['the stone'])
  if 'bart' in case:
    assert theirs('the stone')['input_ids'] == [0, *ids, hf.BART_END]
    assert (theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id) == (0, hf.BART_END, 25)
  else:
    assert theirs('the stone')['input_ids'] == ids.tolist()
    assert (theirs.bos_token_id, theirs.eos_token_id) == (hf.END, hf.END)
    assert theirs.mask_token_id is None


@pytest.mark.parametrize('case', hf.CASES)
def test_the_tables_of_names_have_every_parameter_of_a_model(tmp_path, recorded, case):
  found = trained.load(folder_of(tmp_path, recorded, case))
  paths = from_huggingface.flatten(found.params, models.ModelConfig(**found.config.model))
  table = parameter_names.table(config_json.read(tmp_path).family, found.config.model)
  assert paths.keys() == table.keys()


@pytest.mark.parametrize('case', ['gpt2', 'openai-gpt'])
def test_an_older_file_has_bare_names_and_masks(tmp_path, recorded, case):
  """As the first releases were saved: of the transformer alone, with its masks."""
  folder = folder_of(tmp_path, recorded, case)
  expected = logits_of(trained.load(folder))

  def older(tensors):
    tensors = {name.removeprefix('transformer.'): x for name, x in tensors.items()}
    masks = {f'h.{i}.attn.bias': np.tril(np.ones((1, 1, 24, 24), np.float32)) for i in range(3)}
    return tensors | masks

  weights = from_huggingface.read(changed(folder, older))
  assert not weights.unused
  assert weights.ignored == {
    f'h.{i}.attn.bias': "a buffer: a GPT's mask of later tokens" for i in range(3)
  }
  np.testing.assert_array_equal(logits_of(trained.load(folder)), expected)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
  'case, settings, sentence',
  [
    ('gpt2', {'scale_attn_by_inverse_layer_idx': True}, 'inverse_layer_idx True; our encoder has'),
    ('gpt2', {'scale_attn_weights': False}, 'scale_attn_weights False; our encoder has True only'),
    ('gpt2', {'add_cross_attention': True}, 'add_cross_attention True; our encoder has False'),
    (
      'gpt2',
      {'activation_function': 'quick_gelu'},
      "hidden_act 'quick_gelu'; our encoder has gelu",
    ),
    ('gpt2', {'n_inner': 19}, r'c_fc.bias is .20,., and .* is 19; write "n_inner": 20 in its'),
    ('gpt2', {'n_inner': None}, 'write "n_inner": 20 in its config.json'),
    ('gpt2', {'n_layer': 2}, 'tensors that ours has not .12, for example .transformer.h.2'),
    ('gpt2', {'n_layer': 4}, 'the encoder of these weights is not whole: 16 missing'),
    ('bart', {'decoder_attention_heads': 3}, 'decoder_attention_heads is 3 and .* is 2; here'),
    ('bart', {'normalize_before': True}, 'normalize_before True; our encoder has False only'),
    ('bart', {'decoder_layers': 4}, 'the decoder of these weights is not whole: 26 missing'),
    ('bart', {'decoder_layers': 1}, 'tensors that ours has not .52, for example .model.dec'),
    ('bart', {'max_position_embeddings': 26}, 'write "max_position_embeddings": 24 in its config'),
    ('bart', {'decoder_start_token_id': 5}, 'decoder_start_token_id is 5; here targets begin with'),
    (
      'bart',
      {'tie_word_embeddings': False},
      'tie_word_embeddings False; our encoder has True only',
    ),
    ('openai-gpt', {'n_embd': '12'}, "hidden_size is '12'; write a whole number"),
    *(
      ('gpt2', {'model_type': name}, f'model_type {name!r}; weights are read of .*bert, .*gpt2')
      for name in ('llama', 't5', 'opt', 'mistral', 'gpt_neox', 'qwen2')
    ),
  ],
)
def test_what_we_lack_is_one_sentence(tmp_path, recorded, case, settings, sentence):
  folder = folder_of(tmp_path, recorded, case, **settings)
  with pytest.raises(InputError, match=sentence):
    trained.load(folder)


# ---- what a user does with them ------------------------------------------------------------------


def tuned(folder, tmp_path, *overrides):
  """The config of a run on pairs that begins with the weights of a folder, as it is adopted."""
  (tmp_path / 'pairs.tsv').write_text('en\tde\nold\tnew\n')
  fields = (
    f'init_from={folder}',
    f'data.train={tmp_path}/pairs.tsv',
    'data.seq_length=24',
    *overrides,
  )
  overrides = [f'--config.{x}' for x in fields]
  config = c.load('configs/translate.py:pair=en-de', overrides)
  beginning = initialization.beginning_of(config, '')
  return initialization.adopt_model(config, beginning, c.names_of(overrides))


@pytest.mark.parametrize('case, begin', [('bart', 'sep'), ('bart scaled', 'cls')])
def test_targets_begin_as_those_of_the_bart_that_a_run_starts_from(tmp_path, recorded, case, begin):
  folder, run = folder_of(tmp_path / 'theirs', recorded, case), tmp_path / 'run'
  assert tuned(folder, tmp_path).translation.begin == begin
  convert.convert(str(folder), str(run))
  assert tuned(run, tmp_path).translation.begin == begin
  other = {'sep': 'cls', 'cls': 'sep'}[begin]
  assert tuned(folder, tmp_path, f'translation.begin={other}').translation.begin == other


def continued(tmp_path, recorded):
  """(a GPT-2's folder, the workdir of a run from it, the folder that the run is exported to)."""
  theirs, run = folder_of(tmp_path / 'theirs', recorded, 'gpt2'), tmp_path / 'run'
  (tmp_path / 'text.txt').write_text('the old river\ncrosses the stone\n\n' * 20)
  config = c.load(
    'configs/causal_lm.py',
    [
      f'--config.init_from={theirs}',
      f'--config.data.train={tmp_path}/text.txt',
      f'--config.data.eval={tmp_path}/text.txt',
      '--config.data.seq_length=16',
      '--config.steps=3',
      '--config.data.examples_per_row=4',
      '--config.batch_size=4',
      '--config.model.dtype=float32',
      '--config.checkpoint.every=3',
      '--config.log.tensorboard=false',
      '--config.optimizer.warmup=0',
      '--config.optimizer.learning_rate=0.01',
    ],
  )
  train.train(config, run)
  convert.convert(str(run), f'hf:{tmp_path}/hf')
  return theirs, run, tmp_path / 'hf'


def test_a_gpt2_is_trained_on_and_goes_back(tmp_path, recorded):
  before, after, again = map(trained.load, continued(tmp_path, recorded))
  assert after.config.objective == again.config.objective == 'language_model'
  same(after.params, again.params, after.config)
  difference = logits_of(after) - logits_of(before)
  assert 0.1 < np.abs(difference).max() < 100
  np.testing.assert_array_equal(logits_of(after), logits_of(again))
  assert again.tokenizer.fingerprint == before.tokenizer.fingerprint


@pytest.mark.slow
def test_their_class_computes_what_a_run_from_theirs_does(tmp_path, recorded):
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  _, run, folder = continued(tmp_path, recorded)
  theirs, real = hf.computed(classes.load(folder)), hf.draw_batch()['attention_mask'] > 0
  ours = trained.load(run)
  np.testing.assert_allclose(logits_of(ours)[real], theirs['logits'][real], rtol=0, atol=1e-4)
  for way in ('greedy', 'beam'):
    np.testing.assert_array_equal(generated(ours, way), theirs[way])


def test_a_run_with_any_vocabulary_goes_out_as_a_gpt2(tmp_path):
  """Whose prompts begin with [CLS], and whose texts end with [SEP]."""
  config = c.load('configs/causal_lm.py')
  config.model.update(SIZES | {'dtype': 'float32'})
  config.data.seq_length = 24
  tokenizer = tokenizers.WordPiece(WORDS)
  params = TASKS['language_model'].objective(config, tokenizer).init(jax.random.key(0))
  found = trained.Trained(config, tokenizer, jax.device_get(params), 1)
  convert.export_run(tmp_path, found, {})
  same(found.params, trained.load(tmp_path).params, config)
  content = json.loads((tmp_path / 'config.json').read_text())
  assert content['architectures'] == ['GPT2LMHeadModel']
  ids = [tokenizer.cls_id, tokenizer.sep_id]
  assert [content['bos_token_id'], content['eos_token_id']] == ids
  theirs = library.Tokenizer.from_file(str(tmp_path / 'tokenizer.json'))
  assert theirs.encode('the old river').ids == [ids[0], *tokenizer.ids_batch(['the old river'])[0]]
  config.model.update(norm_placement='post')
  with pytest.raises(InputError, match="norm_placement is post, and Hugging Face's GPT2 is pre"):
    convert.export_run(tmp_path / 'no', found, {})


def test_a_causal_classifier_has_no_class_of_theirs(tmp_path):
  found = made('classifier', causal=True)
  with pytest.raises(InputError, match='no class that computes the same as a causal model'):
    convert.export_run(tmp_path / 'no', found, {})


@pytest.mark.parametrize('case', ['gpt2', 'openai-gpt'])
def test_a_released_gpt_continues_a_text_as_theirs_does(tmp_path, recorded, case):
  """The text alone is the prompt, as in their pipeline; masks it knows nothing of."""
  found = trained.load(folder_of(tmp_path, recorded, case))
  model, prompt = Model(found), 'dead bed'
  (answer,) = model.generate([prompt], max_tokens=4)
  (ids,) = found.tokenizer.ids_batch([prompt])
  room = np.zeros((1, 24), np.int32)
  for _ in range(answer['tokens']):
    room[0, : len(ids)] = ids
    places = np.arange(24, dtype=np.int32)[None]
    batch = {'input_ids': room, 'token_type_ids': 0 * room, 'position_ids': places}
    batch['segment_ids'] = (places < len(ids)).astype(np.int32)
    logits = model.mlm_logits(found.params, model.hidden(found.params, batch))
    ids = np.append(ids, np.argmax(logits[0, len(ids) - 1, : hf.VOCAB]))
  end = answer['ended']
  assert found.tokenizer.decode(ids[: len(ids) - end]) == prompt + answer['generated']
  assert answer['tokens'] == 4 or end
  with pytest.raises(InputError, match='causal: at a .MASK. it knows nothing'):
    model.fill_mask(['a [MASK]'])


def test_a_bart_writes_what_its_objective_does(tmp_path, recorded):
  """[SEP] stands before a target and is no part of it."""
  found = trained.load(folder_of(tmp_path, recorded, 'bart'))
  assert found.config.translation.begin == 'sep'
  objective = TASKS['translation'].objective(found.config, found.tokenizer)
  assert (objective.begin_id, objective.end_id) == (hf.BART_END, hf.BART_END)
  (text,) = Model(found).translate(['dead bed'], beams=2)
  assert isinstance(text, str)


def test_settings_of_generation_that_are_not_read_are_named(recorded, tmp_path, caplog):
  case = next(case for case in hf.CASES if case.startswith('bart'))
  settings = {'no_repeat_ngram_size': 3, 'min_length': 0, 'num_beams': 4}
  folder = folder_of(tmp_path / 'hf', recorded, case, **settings)
  (folder / 'generation_config.json').write_text(
    json.dumps({'min_length': 56, 'forced_bos_token_id': None})
  )
  trained.load(folder)
  assert 'no_repeat_ngram_size=3, min_length=56 of its generation is not read' in caplog.text
  caplog.clear()
  trained.load(folder_of(tmp_path / 'plain', recorded, case))
  assert 'generation' not in caplog.text
