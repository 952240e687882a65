"""ModernBERT, ALBERT, ELECTRA and FNet: their weights compute the same here, and go back as theirs.

`recorded` is what golden/make_released_golden.py wrote; slow tests compare with torch itself.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from golden import make_released_golden as hf
from released import WORDS, logits_of, recorded_of
from test_export import same
from vocabularies import modern

from bert_jax import config as c
from bert_jax import models, optim, step, tokenizers, train
from bert_jax.config import InputError
from bert_jax.convert import config_json, from_huggingface, parameter_names
from bert_jax.objectives import mlm_nsp
from bert_jax.objectives.encode import encode
from bert_jax.run import initialization
from bert_jax.tasks import TASKS
from bert_jax.tools import convert
from bert_jax.workdir import trained

NAMES = {'sop_logits': 'seq_relationship_logits'}  # ALBERT's, as BERT's


@pytest.fixture(scope='module')
def recorded():
  return recorded_of(hf)


def folder_of(path, recorded, case, **settings):
  """A folder as transformers saves a model of a case, with a vocabulary beside it."""
  content = json.loads(str(recorded[case]['config'])) | settings
  hf.write_folder(path, json.dumps(content), json.loads(str(recorded[case]['shapes'])))
  (path / 'vocab.txt').write_text('\n'.join(WORDS) + '\n')
  return path


def batch_of(lengths=hf.LENGTHS):
  """The first batch, as ours."""
  theirs = hf.draw_batch(0)
  rows, T = theirs['input_ids'].shape
  places = np.broadcast_to(np.arange(T, dtype=np.int32), (rows, T))
  return {
    'input_ids': theirs['input_ids'].astype(np.int32),
    'token_type_ids': theirs['token_type_ids'].astype(np.int32),
    'position_ids': places,
    'segment_ids': theirs['attention_mask'].astype(np.int32),
    'cls_positions': np.zeros((rows, 1), np.int32),
    'masked_positions': places,
  }


def computed(found, batch):
  """{their name: array} of what a Trained computes of a batch."""
  if 'replaced' not in found.params:
    return logits_of(found, batch)
  from bert_jax.objectives import electra

  model = models.ModelConfig(**found.config.model)
  hidden = encode(model, found.params['encoder'], batch)
  return {'logits': electra.ReplacedHead(model).apply({'params': found.params['replaced']}, hidden)}


def compare(theirs, found, atol=1e-4):
  """Logits of theirs and ours, at tokens that are no padding."""
  batch, compared = batch_of(), 0
  real = batch['segment_ids'] > 0
  theirs = {NAMES.get(name, name): x for name, x in theirs.items() if 'logits' in name}
  for name, ours in computed(found, batch).items():
    ours = np.asarray(ours)
    other = theirs.pop(name).reshape(ours.shape)
    if ours.shape[:2] == real.shape:
      ours, other = ours[real], other[real]
    np.testing.assert_allclose(ours, other, rtol=0, atol=atol)
    assert np.std(other) > 0.01
    compared += 1
  assert compared and not theirs


@pytest.mark.parametrize('case', hf.CASES)
def test_their_weights_compute_what_they_recorded(tmp_path, recorded, case):
  folder = folder_of(tmp_path / 'hf', recorded, case)
  weights = from_huggingface.read(folder)
  assert not weights.unused and not weights.new
  compare(recorded[case], trained.load(folder))


@pytest.mark.slow
@pytest.mark.parametrize('case', hf.CASES)
def test_their_classes_compute_what_is_recorded(recorded, case):
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  for name, x in hf.record(case).items():
    if x.dtype == np.float32:
      np.testing.assert_allclose(x, recorded[case][name], rtol=0, atol=1e-5, err_msg=name)


def exported(tmp_path, recorded, case):
  """(a Trained made of a case, the folder that it is exported to)."""
  found = trained.load(folder_of(tmp_path / 'theirs', recorded, case))
  convert.convert(str(tmp_path / 'theirs'), str(tmp_path / 'W'))
  convert.convert(str(tmp_path / 'W'), f'hf:{tmp_path}/hf')
  return found, tmp_path / 'hf'


@pytest.mark.parametrize('case', hf.CASES)
def test_in_and_out_is_the_same_file(tmp_path, recorded, case):
  """Tensor by tensor, bit for bit, through a workdir of ours."""
  found, folder = exported(tmp_path, recorded, case)
  before, after = (
    safetensors.numpy.load_file(x / 'model.safetensors') for x in (tmp_path / 'theirs', folder)
  )
  as_bert = case == 'electra qa'  # its embeddings are as wide as it, so it is what a BERT is
  before = {k.replace('electra.', 'bert.') if as_bert else k: x for k, x in before.items()}
  assert before.keys() == after.keys()
  if case == 'fnet masked':  # its class has a pooler, on which nothing stands
    before |= {name: 0 * x for name, x in before.items() if 'pooler' in name}
  for name, x in before.items():
    np.testing.assert_array_equal(x, after[name], name)
  again = trained.load(folder)
  same(found.params, again.params, found.config)
  assert again.config == found.config
  theirs, ours = (
    json.loads((x / 'config.json').read_text()) for x in (tmp_path / 'theirs', folder)
  )
  differing = {key for key in theirs.keys() & ours.keys() if theirs[key] != ours[key]}
  differing -= {'bos_token_id', 'eos_token_id'}  # of the vocabulary that lies beside it here
  assert differing == ({'architectures', 'model_type'} if as_bert else set())


@pytest.mark.slow
@pytest.mark.parametrize('case', hf.CASES)
def test_their_classes_load_what_is_exported(tmp_path, recorded, case):
  """No tensor is missing or left over, and the logits are those of before."""
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  _, folder = exported(tmp_path, recorded, case)
  for name, x in hf.logits(hf.load(folder)).items():
    np.testing.assert_allclose(x, recorded[case][name], rtol=0, atol=1e-5)


def electra_of(found, sharing):
  """A Trained of an ELECTRA run whose generator has the weights of an ElectraForMaskedLM."""
  config = c.defaults('electra')
  config.model.update(
    found.config.model, hidden_size=24, num_attention_heads=4, intermediate_size=40
  )
  config.generator.update(size=0.5, embeddings=sharing)
  config.data.seq_length = found.config.data.seq_length
  objective = TASKS['electra'].objective(config, found.tokenizer)
  params = objective.init(jax.random.key(0))
  encoder = dict(found.params['encoder'])
  if sharing == 'shared':
    tables = dict(encoder['embeddings'])
    encoder['embeddings'] = {'projection': tables.pop('projection')}
    params['encoder']['embeddings'] |= tables
  params['generator'] = {'encoder': encoder, 'mlm': found.params['mlm']}
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  assert jax.tree.map(np.shape, params) == jax.tree.map(lambda x: x.shape, shapes)
  return trained.Trained(config, found.tokenizer, params, 7)


@pytest.mark.parametrize('sharing', ['shared', 'separate'])
def test_the_generator_of_a_run_goes_out_as_theirs(tmp_path, recorded, sharing):
  found = trained.load(folder_of(tmp_path / 'theirs', recorded, 'electra generator'))
  generator = trained.part_of(electra_of(found, sharing), 'generator')
  convert.export_run(tmp_path / 'hf', generator, {})
  before, after = (
    safetensors.numpy.load_file(tmp_path / x / 'model.safetensors') for x in ('theirs', 'hf')
  )
  assert before.keys() == after.keys()
  for name, x in before.items():
    np.testing.assert_array_equal(x, after[name], name)
  theirs, ours = (json.loads((tmp_path / x / 'config.json').read_text()) for x in ('theirs', 'hf'))
  for key in (
    'architectures',
    'model_type',
    'embedding_size',
    'hidden_size',
    'intermediate_size',
    'num_attention_heads',
    'num_hidden_layers',
    'hidden_act',
  ):
    assert ours[key] == theirs[key]
  compare(recorded['electra generator'], trained.load(tmp_path / 'hf'))


@pytest.mark.slow
def test_their_class_computes_the_generator_of_a_run(tmp_path, recorded):
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  found = trained.load(folder_of(tmp_path / 'theirs', recorded, 'electra generator'))
  generator = trained.part_of(electra_of(found, 'shared'), 'generator')
  convert.export_run(tmp_path / 'hf', generator, {})
  theirs = hf.load(tmp_path / 'hf')
  assert type(theirs).__name__ == 'ElectraForMaskedLM'
  compare(hf.logits(theirs), generator)


def test_a_generator_is_written_by_the_command(tmp_path, recorded):
  folder = folder_of(tmp_path / 'theirs', recorded, 'electra')
  with pytest.raises(InputError, match='has no generator; only runs of'):
    convert.convert(str(folder), f'hf:{tmp_path}/hf', part='generator')
  found = trained.load(folder_of(tmp_path / 'masked', recorded, 'electra generator'))
  model = electra_of(found, 'shared')
  convert.write_workdir(tmp_path / 'W', model, {})
  convert.main(['--from', str(tmp_path / 'W'), '--to', f'hf:{tmp_path}/hf', '--generator'])
  compare(recorded['electra generator'], trained.load(tmp_path / 'hf'))
  model.config.model.hidden_act = 'relu'
  with pytest.raises(InputError, match="hidden_act is relu, and Hugging Face's Electra is gelu"):
    convert.export_run(tmp_path / 'out', trained.part_of(model, 'generator'), {})


@pytest.mark.parametrize('case', hf.CASES)
def test_the_tables_of_names_have_every_parameter_of_a_model(tmp_path, recorded, case):
  """Those that the fields leave out are left out, so that nothing is asked for in vain."""
  found = trained.load(folder_of(tmp_path, recorded, case))
  task = TASKS[found.config.objective]
  shapes = jax.eval_shape(task.objective(found.config, found.tokenizer).init, jax.random.key(0))
  paths = from_huggingface.flatten(
    jax.tree.map(lambda x: np.broadcast_to(0, x.shape), shapes),
    models.ModelConfig(**found.config.model),
  )
  family = config_json.read(tmp_path).family
  family = family.named_as_classifier() if case == 'modernbert classifier' else family
  table = parameter_names.table(family, found.config.model)
  encoder = {path for path in paths if path.startswith('encoder/')}
  assert encoder == {path for path in table if path.startswith('encoder/')}
  assert {path for path in paths if not path.startswith('generator/')} <= table.keys()


def test_a_theta_of_local_layers_that_is_null_is_the_global_one(tmp_path, recorded):
  settings = {'rope_parameters': None, 'global_rope_theta': 7e4}
  for local, theta in ((None, 0), (5e3, 5e3)):
    folder = folder_of(tmp_path, recorded, 'modernbert', local_rope_theta=local, **settings)
    model = trained.load(folder).config.model
    assert (model.rotary_theta, model.local_rotary_theta) == (7e4, theta)


@pytest.mark.parametrize('case', ['modernbert', 'modernbert biased'])
@pytest.mark.parametrize('scan', [False, True])
def test_packed_rows_of_a_modernbert(tmp_path, recorded, case, scan):
  """Rows longer than the window, side by side, as each in a row of its own."""
  found = trained.load(folder_of(tmp_path, recorded, case))
  model = models.ModelConfig(**dict(found.config.model) | {'scan_layers': scan})
  objective = mlm_nsp.MlmNsp(model, 60, 0.0, {})
  params = from_huggingface.read(tmp_path).tree(model)
  batch = batch_of()
  real = batch['segment_ids'] > 0
  packed = {
    name: batch[name][real][None] for name in ('input_ids', 'token_type_ids', 'position_ids')
  }
  packed['segment_ids'] = np.repeat([1, 2, 3, 4], hf.LENGTHS)[None].astype(np.int32)
  packed['masked_positions'] = np.arange(real.sum(), dtype=np.int32)[None]
  ours, _ = objective.logits(params, packed)
  assert max(hf.LENGTHS) > 2 * model.attention_window
  theirs = recorded[case]['logits'][real]
  np.testing.assert_allclose(ours[0, :, : hf.VOCAB], theirs, rtol=0, atol=1e-4)


class Masked(mlm_nsp.MlmNsp):
  """MLM on batches that come masked."""

  def prepare(self, batch, rng, moment):
    return batch


def test_twenty_adamw_steps_of_a_modernbert(tmp_path, recorded):
  found = trained.load(folder_of(tmp_path, recorded, 'modernbert'))
  settings = found.config.optimizer.copy_and_resolve_references()
  settings.update(
    name='adamw',
    learning_rate=hf.RATE,
    schedule='constant',
    warmup=0.0,
    eps=1e-8,
    weight_decay=hf.WEIGHT_DECAY,
    clip_norm=0.0,
  )
  objective = Masked(models.ModelConfig(**found.config.model), 24, 0.0, {'max_predictions': 24})
  params = jax.tree.map(jnp.asarray, found.params)
  optimizer = optim.make_optimizer(settings, hf.STEPS, params)
  train_step = jax.jit(step.make_train_step(objective, lambda _: optimizer))
  constants = step.Constants(jax.random.key(0), jax.random.key(1), {}, {})
  state = step.State(jnp.zeros((), jnp.int32), params, optimizer.init(params), {})
  losses = []
  for i in range(hf.STEPS):
    theirs = hf.draw_batch(i)
    batch = batch_of() | {
      'input_ids': theirs['input_ids'].astype(np.int32),
      'masked_labels': np.maximum(theirs['labels'], 0).astype(np.int32),
      'masked_weights': (theirs['labels'] >= 0).astype(np.float32),
    }
    state, metrics = train_step(state, batch, constants)
    losses.append(float(metrics['loss']))
  np.testing.assert_allclose(losses, recorded['modernbert']['losses'], rtol=0, atol=1e-3)
  assert losses[-1] < losses[0] - 0.5


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
  'case, settings, sentence',
  [
    (
      'modernbert',
      {'rope_parameters': {'full_attention': {'rope_type': 'yarn'}}},
      "rope_type 'yarn' of full_attention; our encoder has default only",
    ),
    ('modernbert', {'rope_scaling': {'factor': 2}}, 'rope_scaling .* our encoder has none of it'),
    (
      'modernbert',
      {'layer_types': ['full_attention', 'full_attention', 'sliding_attention', 'full_attention']},
      'full_attention in every n-th layer',
    ),
    ('modernbert', {'classifier_activation': 'relu'}, 'have the activation of the layers, gelu'),
    ('modernbert', {'hidden_activation': 'quick_gelu'}, "hidden_act 'quick_gelu'; our encoder has"),
    ('modernbert', {'mlp_bias': 'no'}, "mlp_bias is 'no'; write true or false"),
    ('modernbert', {'local_attention': 6.5}, 'local_attention is 6.5; write a whole number'),
    ('modernbert', {'local_attention': 0}, 'local_attention is 0; write a positive number'),
    ('modernbert', {'global_rope_theta': None}, 'global_rope_theta is None; write a number'),
    ('modernbert', {'norm_bias': True}, 'the encoder of these weights is not whole: 9 missing'),
    ('modernbert', {'num_hidden_layers': 3, 'layer_types': None}, 'tensors that ours has not'),
    ('modernbert', {'intermediate_size': 19}, 'Wi.weight is .* write "intermediate_size": 20'),
    ('albert', {'num_hidden_groups': 2}, 'num_hidden_groups 2; our encoder has 1 only'),
    ('albert', {'inner_group_num': 2}, 'inner_group_num 2; our encoder has 1 only'),
    ('albert', {'embedding_size': 9}, 'and embedding_size is 9; write "embedding_size": 8'),
    ('fnet', {'use_tpu_fourier_optimizations': True}, 'optimizations True; our encoder has False'),
  ],
)
def test_an_option_that_we_lack_is_one_sentence(tmp_path, recorded, case, settings, sentence):
  folder = folder_of(tmp_path, recorded, case, **settings)
  with pytest.raises(InputError, match=sentence):
    trained.load(folder)


@pytest.mark.parametrize(
  'case, settings, sentence',
  [
    ('modernbert classifier', {'classifier_pooling': 'mean'}, 'reads the mean of all tokens'),
    (
      'modernbert classifier',
      {'architectures': ['ModernBertForTokenClassification']},
      'classifier of tokens has a dense layer and a norm, which ours has not',
    ),
    ('electra generator', {'hidden_act': 'relu'}, 'generator predicts with gelu'),
  ],
)
def test_a_head_that_is_not_ours_is_not_used(tmp_path, recorded, case, settings, sentence):
  folder = folder_of(tmp_path / 'hf', recorded, case, **settings)
  with pytest.raises(InputError, match=sentence):
    convert.convert(str(folder), str(tmp_path / 'W'))
  assert set(trained.load(folder).params) == {'encoder'}


@pytest.mark.parametrize('cut', [20, 0])
def test_a_fused_kernel_that_is_cut_is_not_whole(tmp_path, recorded, cut):
  path = folder_of(tmp_path, recorded, 'modernbert') / 'model.safetensors'
  tensors, name = safetensors.numpy.load_file(path), 'model.layers.0.attn.Wqkv.weight'
  tensors[name] = tensors[name][:cut].copy() if cut else np.ones((), np.float32)
  safetensors.numpy.save_file(tensors, path)
  with pytest.raises(InputError, match=rf'{name} is \(.*\), which is not 3 matrices of one size'):
    trained.load(tmp_path)


def test_the_classifier_of_an_electra_is_not_ours(tmp_path, recorded):
  folder = folder_of(
    tmp_path, recorded, 'electra tagger', architectures=['ElectraForSequenceClassification']
  )
  path = folder / 'model.safetensors'
  tensors = safetensors.numpy.load_file(path)
  tensors |= {'classifier.dense.weight': np.ones((12, 12), np.float32)}
  safetensors.numpy.save_file(tensors, path)
  assert 'has a dense layer with GELU' in from_huggingface.read(folder).unused['classifier.weight']
  assert set(trained.load(folder).params) == {'encoder'}


@pytest.mark.parametrize(
  'case, changes, sentence',
  [
    (
      'modernbert',
      {'norm': 'rms_norm'},
      "norm is rms_norm, and Hugging Face's ModernBert is layer",
    ),
    ('modernbert', {'feed_forward_bias': 'output'}, 'ModernBert is all or none'),
    ('albert', {'norm_placement': 'pre'}, "Hugging Face's Albert is post"),
    ('electra tagger', {'mlm_head': 'dense'}, "Hugging Face's Electra is transform"),
    ('albert', {'embedding_size': 0}, "embedding_size is 0, and Hugging Face's Albert is 12"),
    ('electra tagger', {'embedding_size': 12}, 'embedding_size is 12, and .* Electra is 0'),
    ('fnet', {'embedding_size': 8}, "embedding_size is 8, and Hugging Face's FNet is 12"),
  ],
)
def test_what_a_family_has_not_is_not_written(tmp_path, recorded, case, changes, sentence):
  found = trained.load(folder_of(tmp_path / 'theirs', recorded, case))
  found.config.model.update(changes)
  with pytest.raises(InputError, match=sentence):
    convert.export_run(tmp_path / 'hf', found, {})
  assert not (tmp_path / 'hf').exists()


def test_positions_that_are_no_table_are_not_cut(tmp_path, recorded):
  folder = folder_of(tmp_path, recorded, 'modernbert')
  with pytest.raises(InputError, match='has rotary positions and no table of them'):
    from_huggingface.read(folder, positions=8)


@pytest.mark.parametrize(
  'every, kinds', [(3, 'fssf'), (2, 'fsfs'), (1, 'ffff'), (0, 'ssss'), (4, 'fsss')]
)
def test_the_pattern_of_layers_is_read_and_written(tmp_path, recorded, every, kinds):
  names = {'f': 'full_attention', 's': 'sliding_attention'}
  said = {'layer_types': [names[kind] for kind in kinds]}
  found = trained.load(folder_of(tmp_path / 'theirs', recorded, 'modernbert', **said))
  model = found.config.model
  assert (model.global_attention_every, model.attention_window > 0) == (
    every % 4 * (every > 1) or 4 * (every == 4),
    every != 1,
  )
  convert.export_run(tmp_path / 'hf', found, {})
  assert (
    json.loads((tmp_path / 'hf' / 'config.json').read_text())['layer_types'] == said['layer_types']
  )
  assert trained.load(tmp_path / 'hf').config.model == model


def test_the_pairs_of_an_albert_are_of_sentence_order(tmp_path, recorded):
  assert trained.load(folder_of(tmp_path, recorded, 'albert')).config.corpus.rows == 'sop'


# ---- continued pre-training ----------------------------------------------------------------------


def test_rows_may_be_shorter_than_a_model_without_a_table_reads(tmp_path, recorded):
  folder = folder_of(tmp_path, recorded, 'modernbert')
  shorter, longer = (
    c.load(
      'configs/pretrain.py:continued,runlocal',
      [
        f'--config.init_from={folder}',
        '--config.data.seq_length=16',
        f'--config.model.max_position_embeddings={limit}',
      ],
    )
    for limit in (20, 30)
  )
  begins = initialization.beginning_of(shorter, ''), ('model.max_position_embeddings',)
  assert initialization.adopt_model(shorter, *begins).model.max_position_embeddings == 24
  with pytest.raises(InputError, match='max_position_embeddings is 24 in what .*=30 is given'):
    initialization.adopt_model(longer, *begins)


@pytest.mark.slow
def test_a_modernbert_is_trained_on_and_goes_back(tmp_path):
  """convert, ten steps, and out to a folder that AutoModelForMaskedLM loads, with our logits."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  theirs = tmp_path / 'theirs'
  vocab = modern(theirs).get_vocab_size()
  tokenizer = tokenizers.load_folder(theirs)
  ids = {f'{x}_token_id': getattr(tokenizer, f'{x}_id') for x in ('pad', 'cls', 'sep')}
  sizes = hf.MODERN | ids | {'vocab_size': vocab, 'max_position_embeddings': 64}
  torch.manual_seed(0)
  config = transformers.ModernBertConfig(**sizes)
  transformers.ModernBertForMaskedLM(config).save_pretrained(theirs)
  convert.main(['--from', str(theirs), '--to', str(tmp_path / 'W')])
  (tmp_path / 'text.txt').write_text('the old river\ncrosses the stone\n\n' * 40)
  config = c.load(
    'configs/pretrain.py',
    [
      f'--config.init_from={tmp_path}/W',
      f'--config.data.train={tmp_path}/text.txt',
      '--config.data.seq_length=32',
      '--config.steps=10',
      '--config.batch_size=4',
      '--config.corpus.rows=full',
      '--config.loss.nsp_weight=0',
      '--config.model.dtype=float32',
      '--config.log.tensorboard=false',
      '--config.checkpoint.every=10',
      '--config.optimizer.learning_rate=0.01',
      '--config.optimizer.warmup=0',
    ],
  )
  train.train(config, tmp_path / 'run')
  convert.main(['--from', str(tmp_path / 'run'), '--to', f'hf:{tmp_path}/hf'])
  model, info = transformers.AutoModelForMaskedLM.from_pretrained(
    tmp_path / 'hf', output_loading_info=True
  )
  assert not any(info[name] for name in ('missing_keys', 'unexpected_keys', 'mismatched_keys'))
  text = 'the river crosses [MASK] old stone'
  inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'hf')(text, return_tensors='pt')
  with torch.no_grad():
    expected = model.eval()(**inputs).logits.numpy()
  (row,) = inputs['input_ids'].numpy().astype(np.int32)
  assert row.tolist() == [tokenizer.cls_id, *tokenizer.encode_with_masks(text), tokenizer.sep_id]
  found = trained.load(tmp_path / 'run')
  places = np.arange(len(row), dtype=np.int32)[None]
  batch = {
    'input_ids': row[None],
    'token_type_ids': 0 * places,
    'position_ids': places,
    'segment_ids': 0 * places + 1,
    'masked_positions': places,
  }
  np.testing.assert_allclose(logits_of(found, batch)['logits'], expected, rtol=0, atol=1e-4)
  before = transformers.AutoModelForMaskedLM.from_pretrained(theirs)
  with torch.no_grad():
    assert np.abs(before.eval()(**inputs).logits.numpy() - expected).max() > 0.1


def released(folder, name, vocab):
  """Writes a random model of theirs as a folder -> (its class, the config file that goes on)."""
  import torch
  import transformers

  sizes = hf.SIZES | dict(vocab_size=vocab, max_position_embeddings=40, initializer_range=0.2)
  kind, changes, arch = {
    'albert': ('AlbertForPreTraining', {'embedding_size': 8}, 'arch=albert,'),
    'fnet': ('FNetForPreTraining', {}, 'arch=fnet,'),
    'electra': ('ElectraForPreTraining', {'embedding_size': 8}, 'arch=electra,'),
    'electra generator': ('ElectraForMaskedLM', {'embedding_size': 8}, ''),
    'roberta': ('RobertaForMaskedLM', {'type_vocab_size': 1, 'layer_norm_eps': 1e-5}, ''),
    'distilbert': ('DistilBertForMaskedLM', {'hidden_dim': 20}, ''),
    'bert': ('BertForPreTraining', {}, ''),
  }[name]
  torch.manual_seed(0)
  config = getattr(transformers, kind.partition('For')[0] + 'Config')(**sizes | changes)
  getattr(transformers, kind)(config).save_pretrained(folder)
  return kind, f'configs/pretrain.py:{arch}continued,runlocal'


@pytest.mark.slow
@pytest.mark.parametrize(
  'name, out',
  [
    ('albert', ''),
    ('fnet', ''),
    ('electra', ''),
    ('electra generator', ''),
    ('distilbert', ''),
    ('roberta', 'BertForMaskedLM'),
    ('bert', 'BertForMaskedLM'),
  ],
)
def test_each_family_is_trained_on_and_goes_back(tmp_path, name, out):
  """A few steps on a text, and out to a folder that their class loads, with our logits."""
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  folder = tmp_path / 'theirs'
  kind, spec = released(folder, name, len(WORDS))
  (folder / 'vocab.txt').write_text('\n'.join(WORDS) + '\n')
  (tmp_path / 'text.txt').write_text('the old river\ncrosses the stone\n\n' * 60)
  config = c.load(
    spec,
    [
      f'--config.init_from={folder}',
      f'--config.data.train={tmp_path}/text.txt',
      '--config.data.seq_length=24',
      '--config.steps=4',
      '--config.batch_size=4',
      '--config.model.dtype=float32',
      '--config.log.tensorboard=false',
      '--config.optimizer.learning_rate=0.01',
      '--config.optimizer.warmup=0',
    ],
  )
  train.train(config, tmp_path / 'run')
  convert.main(['--from', str(tmp_path / 'run'), '--to', f'hf:{tmp_path}/hf'])
  theirs = hf.load(tmp_path / 'hf')
  assert type(theirs).__name__ == (out or kind)
  compare(hf.logits(theirs), trained.load(tmp_path / 'run'))
  before, after = trained.load(folder).params, trained.load(tmp_path / 'run').params
  words = [
    x['encoder']['embeddings']['word_embeddings']['embedding'][: len(WORDS)]
    for x in (before, after)
  ]
  assert 0.001 < np.abs(words[0] - words[1]).max() < 0.1
