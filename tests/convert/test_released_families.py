"""What others release: their weights compute the same here, and go back as theirs.

`recorded` is what golden/make_released_golden.py wrote; slow tests compare with torch itself.
"""

import json
import re

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from golden import make_released_golden as hf
from refusal import refused
from released import (
  adamw_losses,
  batch_of,
  compare,
  config_of,
  folder_of,
  masked,
  masked_objective,
  random_like,
  recorded_of,
  rewrite,
  same,
  tensors_of,
)

import bert_jax
from bert_jax import config as c
from bert_jax import models
from bert_jax.convert import from_huggingface, parameter_names
from bert_jax.convert.families import FAMILIES
from bert_jax.models import bands
from bert_jax.models.tokens import Pattern, Tokens
from bert_jax.objectives import mlm_nsp
from bert_jax.objectives.encode import encode
from bert_jax.run import initialization
from bert_jax.tasks import TASKS
from bert_jax.tools import convert
from bert_jax.workdir import trained

OUT = [case for case in hf.CASES if case != 'openai-gpt']  # those that are written, too


@pytest.fixture(scope='module')
def recorded():
  return recorded_of(hf)


def exported_again(tmp_path, recorded, case):
  """(a Trained made of a case, the folder to which it is exported); one goes through a workdir."""
  found, out = trained.load(folder_of(tmp_path / 'theirs', recorded, case)), tmp_path / 'hf'
  if case == 'bart scaled':
    convert.convert(str(tmp_path / 'theirs'), str(tmp_path / 'W'))
    convert.convert(str(tmp_path / 'W'), f'hf:{out}')
  else:
    convert.export_run(out, found, {})
  return found, out


def first_batch(case='modernbert'):
  return batch_of(hf.draw_batch(writes=case in hf.WRITERS))


@pytest.mark.parametrize('case', hf.CASES)
def test_their_weights_compute_what_they_recorded(tmp_path, recorded, case):
  weights = from_huggingface.read(folder_of(tmp_path, recorded, case))
  assert not weights.unused
  found = trained.load(tmp_path)
  assert found.config.model.causal == ('gpt' in case)
  compare(recorded[case], found, first_batch(case))


def for_training(found):
  """(the objective of a Trained without dropout, the batches of its steps)."""
  batches = [hf.draw_batch(i) for i in range(hf.STEPS)]
  if found.config.objective != 'classification':
    return masked_objective(found), [masked(batch) for batch in batches]
  probs = 'hidden_dropout_prob', 'attention_probs_dropout_prob', 'classifier_dropout_prob'
  found.config.model.update(dict.fromkeys(probs, 0.0))
  objective = TASKS['classification'].objective(found.config, found.tokenizer)
  labels = np.array(hf.CLASSES, np.int32)[:, None]
  weights = np.ones_like(labels, np.float32)
  return objective, [batch_of(x, labels=labels, weights=weights) for x in batches]


@pytest.mark.parametrize('case', hf.TRAINED)
def test_twenty_adamw_steps(tmp_path, recorded, case):
  found = trained.load(folder_of(tmp_path, recorded, case))
  objective, batches = for_training(found)
  losses = adamw_losses(objective, found.params, batches, hf.RATE, hf.WEIGHT_DECAY)
  for steps, atol in ((10, 3e-5), (hf.STEPS, 1e-3)):
    theirs = recorded[case]['losses'][:steps]
    np.testing.assert_allclose(losses[:steps], theirs, rtol=0, atol=atol)
  assert losses[-1] < losses[0] - 0.3


@pytest.mark.slow
@pytest.mark.parametrize('case', hf.CASES)
def test_their_classes_compute_what_is_recorded(transformers, recorded, case):
  for name, x in hf.record(case).items():
    if x.dtype == np.float32:
      np.testing.assert_allclose(x, recorded[case][name], rtol=0, atol=1e-5, err_msg=name)
    elif name in hf.WAYS:
      np.testing.assert_array_equal(x, recorded[case][name], name)


# What config.json may lack: their defaults, and what a class of theirs does not read.
NOT_WRITTEN = set(
  """activation_dropout add_cross_attention classifier_dropout classifier_dropout_prob
  decoder_layerdrop deterministic_flash_attn encoder_layerdrop head_dim initializer_cutoff_factor
  initializer_factor inner_group_num is_decoder is_encoder_decoder is_gated_act mlp_bias
  num_decoder_layers num_hidden_groups pretraining_tp reorder_and_upcast_attn rotary_value
  scale_attn_by_inverse_layer_idx scale_attn_weights scale_decoder_outputs
  sparse_pred_ignore_index sparse_prediction summary_activation summary_first_dropout
  summary_last_dropout summary_proj_to_labels summary_type summary_use_proj tpu_short_seq_length
  transformers_version use_cache use_tpu_fourier_optimizations""".split()  # noqa: SIM905
)


@pytest.mark.parametrize('case', OUT)
def test_in_and_out_is_the_same_file(tmp_path, recorded, case):
  """Tensor by tensor, bit for bit; and the same config.json."""
  found, folder = exported_again(tmp_path, recorded, case)
  before, after = tensors_of(tmp_path / 'theirs'), tensors_of(folder)
  as_bert = case == 'electra qa'  # its embeddings are as wide as it, so it is what a BERT is
  before = {k.replace('electra.', 'bert.') if as_bert else k: x for k, x in before.items()}
  assert before.keys() == after.keys()
  for name, x in before.items():
    if case == 'fnet masked' and 'pooler' in name:  # its class has one, on which nothing stands
      x = 0 * x
    if name.endswith(('embed_positions.weight', 'position_embeddings.weight')):
      offset = from_huggingface.describe(tmp_path / 'theirs').offset
      x[:offset] = 0  # rows of no position, of a BART and fairseq's others
    np.testing.assert_array_equal(x, after[name], name)
  again = trained.load(folder)
  same(found.params, again.params, found.config)
  again.config.model.pooler = found.config.model.pooler  # of a BERT another, which is not there
  assert again.config == found.config
  assert again.tokenizer.fingerprint == found.tokenizer.fingerprint
  theirs, ours = config_of(tmp_path / 'theirs'), config_of(folder)
  differing = {key for key in theirs.keys() & ours.keys() if theirs[key] != ours[key]}
  if case not in hf.WRITERS:  # of the vocabulary that lies beside it here
    differing -= {'bos_token_id', 'eos_token_id'}
  if not theirs['architectures'][0].endswith('ForSequenceClassification'):
    differing -= {'classifier_pooling'}
  expected = {'architectures', 'model_type'} if as_bert else set()
  if case in ('gpt2 untied', 'gpt2 classifier'):  # null, for four times the width
    expected = {'n_inner'}
  assert differing - {'pad_token_id'} == expected
  lacking = {key for key in theirs.keys() - ours.keys() if theirs[key] is not None} - NOT_WRITTEN
  lacking -= {'id2label', 'label2id'} if 'bart' in case else set()
  assert lacking == ({'embedding_size'} if as_bert else set())


@pytest.mark.slow
@pytest.mark.parametrize('case', OUT)
def test_their_classes_load_what_is_exported(tmp_path, transformers, recorded, case):
  """No tensor is missing or left over, and logits and tokens are those of before."""
  _, folder = exported_again(tmp_path, recorded, case)
  ways = hf.FEW if case in hf.WRITERS else ()
  for name, x in hf.computed(hf.load(folder), ways).items():
    np.testing.assert_allclose(x, recorded[case][name], rtol=0, atol=1e-5)
  if case not in hf.WRITERS:
    return
  theirs = transformers.AutoTokenizer.from_pretrained(folder)
  (ids,) = trained.load(folder).tokenizer.ids_batch(['the stone'])
  if 'bart' in case:
    assert theirs('the stone')['input_ids'] == [0, *ids, hf.BART_END]
    assert (theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id) == (0, hf.BART_END, 25)
  else:
    assert theirs('the stone')['input_ids'] == ids.tolist()
    assert (theirs.bos_token_id, theirs.eos_token_id) == (hf.END, hf.END)
    assert theirs.mask_token_id is None


def test_of_a_whole_t5_the_encoder_is_read(tmp_path, recorded):
  """As a T5ForConditionalGeneration has it, with the decoder's tensors beside it."""
  folder = folder_of(tmp_path / 'theirs', recorded, 't5 gated', is_encoder_decoder=True)
  expected, tensors = trained.load(folder), tensors_of(folder)
  copies = dict.fromkeys(
    ('encoder.embed_tokens.weight', 'lm_head.weight'), tensors['shared.weight']
  )
  decoder = {x.replace('encoder.', 'decoder.', 1): y for x, y in tensors.items() if 'layer' in x}
  more = {name: np.copy(x) for name, x in (copies | decoder).items()}
  rewrite(folder, lambda tensors: tensors | more)
  with refused(r'decoder\..*: only the encoder of a T5 is read; --allow-un'):
    convert.convert(str(folder), f'hf:{tmp_path}/hf')
  same(expected.params, trained.load(folder).params, expected.config)
  convert.convert(str(folder), f'hf:{tmp_path}/hf', strict=False)
  same(expected.params, trained.load(tmp_path / 'hf').params, expected.config)


def electra_of(found, sharing):
  """A Trained of an ELECTRA run whose generator has the weights of an ElectraForMaskedLM."""
  config, wider = c.defaults('electra'), dict(hidden_size=24, num_attention_heads=4)
  config.model.update(found.config.model, **wider, intermediate_size=40)
  config.generator.update(size=0.5, embeddings=sharing)
  config.data.seq_length = found.config.data.seq_length
  objective = TASKS['electra'].objective(config, found.tokenizer)
  params = random_like(jax.eval_shape(objective.init, jax.random.key(0)))
  shapes = jax.tree.map(np.shape, params)
  encoder = dict(found.params['encoder'])
  if sharing == 'shared':
    tables = dict(encoder['embeddings'])
    encoder['embeddings'] = {'projection': tables.pop('projection')}
    params['encoder']['embeddings'] |= tables
  params['generator'] = {'encoder': encoder, 'mlm': found.params['mlm']}
  assert jax.tree.map(np.shape, params) == shapes
  return trained.Trained(config, found.tokenizer, params, 7)


@pytest.mark.parametrize('sharing', ['shared', 'separate'])
def test_the_generator_of_a_run_goes_out_as_theirs(tmp_path, recorded, sharing):
  """From a workdir by the command, or by itself."""
  found = trained.load(folder_of(tmp_path / 'theirs', recorded, 'electra generator'))
  model = electra_of(found, sharing)
  if sharing == 'shared':
    convert.write_workdir(tmp_path / 'W', model, {})
    convert.main(['--from', str(tmp_path / 'W'), '--to', f'hf:{tmp_path}/hf', '--generator'])
  else:
    convert.export_run(tmp_path / 'hf', trained.part_of(model, 'generator'), {})
  before, after = tensors_of(tmp_path / 'theirs'), tensors_of(tmp_path / 'hf')
  assert before.keys() == after.keys()
  for name, x in before.items():
    np.testing.assert_array_equal(x, after[name], name)
  theirs, ours = config_of(tmp_path / 'theirs'), config_of(tmp_path / 'hf')
  sizes = 'embedding_size', 'hidden_size', 'intermediate_size', 'num_attention_heads'
  for key in ('architectures', 'model_type', 'num_hidden_layers', 'hidden_act', *sizes):
    assert ours[key] == theirs[key]
  model.config.model.hidden_act = 'relu'
  with refused('cannot be written'):
    convert.export_run(tmp_path / 'out', trained.part_of(model, 'generator'), {})


@pytest.mark.parametrize('case', ['xlm-roberta', 'camembert', 'mpnet', 'electra generator'])
def test_a_head_that_is_always_gelu_is_ours_for_no_other_activation(tmp_path, recorded, case):
  """Neither in nor out; as a BERT, whose head has that of its layers, it goes out."""
  folder = folder_of(tmp_path / 'theirs', recorded, case, hidden_act='gelu_new')
  with refused('predicts with gelu, ours with its hidden_act; --allow-unused'):
    convert.convert(str(folder), f'hf:{tmp_path}/hf')
  assert 'mlm' not in trained.load(folder).params
  found = trained.load(folder_of(tmp_path / 'gelu', recorded, case))
  found.config.model.hidden_act = 'gelu_tanh'
  if case in ('mpnet', 'electra generator'):
    with refused('cannot be written'):
      convert.export_run(tmp_path / 'hf', found, {})
    return
  convert.export_run(tmp_path / 'hf', found, {})
  again = trained.load(tmp_path / 'hf')
  assert config_of(tmp_path / 'hf')['model_type'] == 'bert'
  same(found.params, again.params, found.config)
  assert again.config.model.hidden_act == 'gelu_tanh'


def test_a_model_without_a_generator_writes_none(tmp_path, recorded):
  folder = folder_of(tmp_path / 'theirs', recorded, 'electra')
  with refused('has no generator'):
    convert.convert(str(folder), f'hf:{tmp_path}/hf', part='generator')


def test_a_multilingual_modernbert(tmp_path, recorded):
  """mmBERT says that it has no positions, and one theta for both kinds of layers."""
  thetas = {f'{kind}_rope_theta': 160_000 for kind in ('local', 'global')}
  said = thetas | {'rope_parameters': None, 'position_embedding_type': 'sans_pos'}
  model = trained.load(folder_of(tmp_path, recorded, 'modernbert', **said)).config.model
  assert (model.rotary_theta, model.local_rotary_theta) == (160_000, 0)


@pytest.mark.parametrize('case', ['xlm-roberta', 'camembert classifier'])
def test_a_trained_one_stays_what_it_is(tmp_path, recorded, case):
  """With one token type, whatever it was trained on; and so it is read again."""
  found = trained.load(folder_of(tmp_path / 'theirs', recorded, case))
  found = found._replace(params=random_like(found.params))
  convert.export_run(tmp_path / 'hf', found, {})
  theirs, ours = config_of(tmp_path / 'theirs'), config_of(tmp_path / 'hf')
  for key in ('model_type', 'architectures', 'type_vocab_size', 'max_position_embeddings'):
    assert ours[key] == theirs[key]
  same(found.params, trained.load(tmp_path / 'hf').params, found.config)


HEADS = {'t5': 'SelfAttention', 'eurobert': 'self_attn', 'nomic_bert': 'attn'}


def with_heads_of_ten(recorded, case):
  """A recorded case whose two heads are not 6 wide, as is its config.json and each shape."""
  said = json.loads(str(recorded[case]['config']))
  said[FAMILIES[case].key_of('attention_head_size')] = 10
  shapes = json.loads(str(recorded[case]['shapes']))
  for name, (rows, *columns) in shapes.items():
    if f'.{HEADS[case]}.' in name and name.endswith('.weight') and 'bias' not in name:
      is_last = re.search(r'(\.o|o_proj|out_proj)\.weight$', name)
      shapes[name] = [rows, columns[0] * 10 // 6] if is_last else [rows * 10 // 6, *columns]
  return {case: {'config': json.dumps(said), 'shapes': json.dumps(shapes)}}


@pytest.mark.parametrize('width, size', [(12, 0), (13, 4), (11, 4)])
def test_a_size_of_heads_is_kept_unless_they_add_up(tmp_path, width, size):
  said = dict(model_type='t5', d_model=width, num_heads=3, d_kv=4, d_ff=7, num_layers=2)
  (tmp_path / 'config.json').write_text(json.dumps(said | {'vocab_size': 30}))
  assert from_huggingface.describe(tmp_path).model['attention_head_size'] == size


@pytest.mark.parametrize('case', HEADS)
def test_heads_need_not_add_up_to_the_width(tmp_path, recorded, case):
  """As in flan-t5-small, whose 6 heads of 64 stand in a width of 512."""
  changed = with_heads_of_ten(recorded, case)
  found = trained.load(folder_of(tmp_path / 'theirs', changed, case))
  assert found.config.model.attention_head_size == 10
  attention = found.params['encoder']['layer_0']['attention']
  assert attention['query']['kernel'].shape == (12, 20)
  assert attention['output']['kernel'].shape == (20, 12)
  model = models.ModelConfig(**found.config.model)
  assert np.isfinite(encode(model, found.params['encoder'], first_batch())).all()
  convert.export_run(tmp_path / 'hf', found, {})
  assert config_of(tmp_path / 'hf')[FAMILIES[case].key_of('attention_head_size')] == 10
  again = trained.load(tmp_path / 'hf')
  same(found.params, again.params, found.config)
  assert again.config.model == found.config.model


def test_a_nomic_may_be_written_as_by_its_makers(tmp_path, recorded, caplog):
  """Names of GPT-2 in its config.json, bert before names of tensors, code of theirs beside it."""
  folder = folder_of(tmp_path, recorded, 'nomic_bert')
  expected, said = trained.load(folder), config_of(folder)
  older = {new: old for old, new in FAMILIES['nomic_bert'].older.items()}
  said = {older.get(key, key): x for key, x in said.items() if key != 'head_dim'}
  said |= dict(activation_function='swiglu', rotary_emb_base=1000, prenorm=False)
  said['auto_map'] = {'AutoModel': 'modeling_hf_nomic_bert.NomicBertModel'}
  said['rope_parameters'] = {'rope_type': 'dynamic', 'factor': 2.0}
  (folder / 'config.json').write_text(json.dumps(said | {'max_trained_positions': 18}))
  rename = lambda x: {name.replace('nomic_bert.', 'bert.'): tensor for name, tensor in x.items()}
  safetensors.numpy.save_file(rename(tensors_of(folder)), folder / 'model.safetensors')
  found = trained.load(folder)
  assert 'rows with more than 18 tokens' in caplog.text
  assert found.config.model.max_position_embeddings == 18
  found.config.model.max_position_embeddings = expected.config.model.max_position_embeddings
  assert found.config.model == expected.config.model
  same(found.params, expected.params, found.config)


@pytest.mark.parametrize('family, name', [('nomic_bert', 'NomicBert'), ('fnet', 'FNet')])
def test_a_class_that_they_have_not_is_not_written(tmp_path, recorded, family, name):
  found = trained.load(folder_of(tmp_path / 'theirs', recorded, f'{family} classifier'))
  config = c.defaults('choice')
  config.model.update(found.config.model)
  with refused(f'has no {name}ForMultipleChoice that computes the same'):
    convert.export_run(tmp_path / 'hf', found._replace(config=config), {})


def test_packed_rows_of_a_modernbert(tmp_path, recorded):
  """Examples longer than the window, side by side in a row that is computed in blocks."""
  found = trained.load(folder_of(tmp_path, recorded, 'modernbert'))
  model = models.ModelConfig(**found.config.model)
  batch, times = first_batch(), 10
  real = batch['segment_ids'] > 0
  length = int(times * real.sum())
  names = 'input_ids', 'token_type_ids', 'position_ids'
  packed = {name: np.tile(batch[name][real], times)[None] for name in names}
  numbers = np.arange(4 * times, dtype=np.int32) + 1
  packed['segment_ids'] = np.repeat(numbers, times * hf.LENGTHS)[None]
  packed['masked_positions'] = np.arange(length, dtype=np.int32)[None]
  tokens = Tokens(packed['segment_ids'])
  pattern = Pattern(tokens, tokens, window=model.attention_window)
  assert isinstance(bands.blocks_of(pattern, 0, length), bands.Bands)
  objective, weights = mlm_nsp.MlmNsp(model, length, 0.0, {}), from_huggingface.read(tmp_path)
  ours, _ = jax.jit(objective.logits)(from_huggingface.tree(weights.flat, model), packed)
  theirs = np.tile(recorded['modernbert']['logits'][real], (times, 1))
  np.testing.assert_allclose(ours[0, :, : hf.VOCAB], theirs, rtol=0, atol=1e-4)


def test_parameter_counts_are_the_published_ones():
  """Those of AutoModel; an ALBERT's with its pooler."""
  numbers = {'modern': (149_014_272, ['encoder']), 'albert': (11_683_584, ['encoder', 'pooler'])}
  for arch, (number, parts) in numbers.items():
    config = c.load(f'configs/pretrain.py:arch={arch}')
    model = models.ModelConfig(**dict(config.model) | {'vocab_multiple': 1, 'scan_layers': True})
    shapes = jax.eval_shape(mlm_nsp.MlmNsp(model, 8, 1.0, {}).init, jax.random.key(0))
    assert models.count_parameters({part: shapes[part] for part in parts}) == number


KINDS = {'f': 'full_attention', 's': 'sliding_attention'}


PATTERNS = [('fssf', 3, True), ('ffff', 0, False), ('ssss', 0, True), ('fsss', 4, True)]


@pytest.mark.parametrize('kinds, every, windowed', PATTERNS)
def test_the_pattern_of_layers_is_read_and_written(tmp_path, recorded, kinds, every, windowed):
  said = {'layer_types': [KINDS[kind] for kind in kinds]}
  found = trained.load(folder_of(tmp_path / 'theirs', recorded, 'modernbert', **said))
  model = found.config.model
  assert (model.global_attention_every, model.attention_window > 0) == (every, windowed)
  convert.export_run(tmp_path / 'hf', found, {})
  assert config_of(tmp_path / 'hf')['layer_types'] == said['layer_types']
  assert trained.load(tmp_path / 'hf').config.model == model


TEXTS = ['the old stone', 'a', 'river near the market , deja - vu ' * 9, 'the river']


@pytest.mark.slow
def test_texts_of_an_fnet_are_padded_as_by_their_pipeline(tmp_path, transformers, recorded):
  """It mixes the padding, too; what is exported says so."""
  theirs = folder_of(tmp_path / 'theirs', recorded, 'fnet classifier')
  found = bert_jax.load(theirs).predict(TEXTS)
  convert.convert(str(theirs), f'hf:{tmp_path}/hf')
  assert "padding='max_length'" in (tmp_path / 'hf' / 'README.md').read_text()
  pipeline = transformers.pipeline('text-classification', str(tmp_path / 'hf'), top_k=None)
  for answer, expected in zip(found, pipeline(TEXTS, padding='max_length', truncation=True)):
    for label in expected:
      assert abs(answer[label['label']] - label['score']) < 1e-5


@pytest.mark.parametrize('kind', [np.float16, ml_dtypes.bfloat16, np.float32])
def test_a_table_of_sines_may_be_rounded_and_is_no_other(tmp_path, recorded, kind):
  folder = folder_of(tmp_path, recorded, 'roformer')
  rewrite(folder, lambda tensors: {name: x.astype(kind) for name, x in tensors.items()})
  assert trained.load(folder).config.model.position_embeddings == 'rotary'
  name = 'roformer.encoder.embed_positions.weight'
  rewrite(folder, lambda tensors: tensors | {name: tensors[name][:, ::-1]})
  with refused(f'{name} does not hold the numbers that follow from config.json'):
    trained.load(folder)


def test_the_pairs_of_an_albert_are_of_sentence_order(tmp_path, recorded):
  assert trained.load(folder_of(tmp_path, recorded, 'albert')).config.corpus.rows == 'sop'


# ---- what is refused -----------------------------------------------------------------------------

YARN = {'rope_parameters': {'full_attention': {'rope_type': 'yarn'}}}
ODD = {'layer_types': [KINDS[kind] for kind in 'ffsf']}


@pytest.mark.parametrize(
  'case, settings, sentence',
  [
    ('modernbert', YARN, "rope_type of full_attention 'yarn'; our encoder has default only"),
    ('eurobert', {'num_key_value_heads': 2}, 'weight is .12, 6., where config.json asks for'),
    ('roformer', {'attention_head_size': 5}, 'attention_head_size 5; here it is hidden_size'),
    ('nomic_bert', {'rope_scaling': {'rope_type': 'linear'}}, "rope_type 'linear'; our encoder"),
    ('modernbert', ODD, 'full_attention in every n-th layer'),
    ('modernbert', {'classifier_activation': 'relu'}, "activation 'relu'; here it is hidden_act"),
    ('t5', {'relative_attention_num_buckets': 10}, 'num_buckets 10; our encoder has a multiple of'),
    ('t5', {'feed_forward_proj': 'gated-gelu'}, 'not whole: 8 missing, for example t5.enc'),
    ('bart', {'decoder_layers': 1}, 'tensors that ours has not .52, for example .model.dec'),
    ('bart', {'decoder_attention_heads': 3}, 'heads 3; here it is num_attention_heads, 2'),
    ('bart', {'decoder_start_token_id': 5}, 'decoder_start_token_id 5; here targets begin with'),
  ],
)
def test_an_option_that_we_lack_is_one_sentence(tmp_path, recorded, case, settings, sentence):
  folder = folder_of(tmp_path, recorded, case, **settings)
  with refused(sentence):
    trained.load(folder)


def test_a_modernbert_may_have_each_kind_of_bias(tmp_path, recorded):
  """There is a place for each parameter of ours, and for none that the model has not."""
  found = trained.load(folder_of(tmp_path, recorded, 'modernbert'))
  model, counts = found.config.model, []
  for field in ('', 'norm_bias', 'attention_bias', 'head_bias'):
    model.update({x: x == field for x in ('norm_bias', 'attention_bias', 'head_bias')})
    objective = TASKS[found.config.objective].objective(found.config, found.tokenizer)
    params = random_like(jax.eval_shape(objective.init, jax.random.key(0)))
    ours = from_huggingface.flatten(params, models.ModelConfig(**model))
    places = parameter_names.table(FAMILIES['modernbert'], model).keys()
    assert ours.keys() == {x for x in places if x.partition('/')[0] in params}
    counts.append(len(ours))
  assert len(set(counts)) == 4


@pytest.mark.parametrize(
  'case, changes, sentence',
  [
    ('modernbert', {'norm': 'rms_norm'}, 'norm is rms_norm, and layer_norm in modernbert'),
    ('modernbert', {'feed_forward_bias': 'output'}, 'in the nearest family|, the nearest family'),
    ('eurobert', {'decoder_bias': True}, 'decoder_bias is True, and False in eurobert'),
    ('electra tagger', {'mlm_head': 'dense'}, 'mlm_head is dense, and transform in electra'),
    ('t5', {'position_buckets': 0}, 'position_embeddings is relative_bias, and '),
    ('fnet', {'embedding_size': 8}, 'embedding_size is 8, and 12 in fnet'),
  ],
)
def test_what_a_family_has_not_is_not_written(tmp_path, recorded, case, changes, sentence):
  found = trained.load(folder_of(tmp_path / 'theirs', recorded, case))
  found.config.model.update(changes)
  with refused(sentence):
    convert.export_run(tmp_path / 'hf', found, {})
  assert not (tmp_path / 'hf').exists()


def test_rows_may_be_shorter_than_a_model_without_a_table_reads(tmp_path, recorded):
  folder = folder_of(tmp_path, recorded, 'modernbert')
  begins = [f'--config.init_from={folder}', '--config.data.seq_length=16']
  load = lambda positions: c.load(
    'configs/pretrain.py:continued,runlocal',
    [*begins, f'--config.model.max_position_embeddings={positions}'],
  )
  shorter, longer = load(20), load(30)
  begins = initialization.start_of(shorter, ''), ('model.max_position_embeddings',)
  assert initialization.adopt_model(shorter, *begins).model.max_position_embeddings == 24
  with refused('max_position_embeddings is 24 in what .*=30 is given'):
    initialization.adopt_model(longer, *begins)
