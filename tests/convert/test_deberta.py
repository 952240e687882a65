"""DeBERTa-v3 in and out: the layouts of microsoft/deberta-v3-* and of transformers' classes.

Slow tests compare with transformers on drawn weights, in rows that are longer than twice the
distances with a vector of their own.
"""

import json

import jax
import numpy as np
import pytest
import released
import safetensors.numpy
from golden import make_released_golden as hf
from golden.make_hf_golden import adamw_losses
from refusal import refusal, refused
from released import (
  WORDS,
  batch_of,
  compare,
  config_of,
  exported,
  made,
  masked,
  random_like,
  rewrite,
  same,
  started_from,
  tensors_of,
)

from bert_jax import config as c
from bert_jax import models
from bert_jax.convert import from_huggingface
from bert_jax.models import relative
from bert_jax.objectives.encode import encode
from bert_jax.tasks import TASKS
from bert_jax.tools import convert
from bert_jax.workdir import trained

OURS = dict(position_embeddings='disentangled', position_buckets=6, max_relative_positions=9)
OURS |= dict(type_vocab_size=0, layer_norm_eps=1e-7, pooler='gelu', replaced_head='context')
V3 = hf.SIZES | dict(relative_attention=True, position_buckets=6, max_relative_positions=9)
V3 |= dict(norm_rel_ebd='layer_norm', share_att_key=True, pos_att_type='p2c|c2p')
V3 |= dict(position_biased_input=False)
PLAIN = dict(position_buckets=-1, max_relative_positions=-1, pos_att_type=['c2p'])
CASES = {
  'masked': ('MaskedLM', {}),
  'masked, newer': ('MaskedLM', {'legacy': False}),
  'masked, newer, tied to words all the same': (
    'MaskedLM',
    {'legacy': False, 'tie_word_embeddings': False},
  ),
  'masked, untied': ('MaskedLM', {'tie_word_embeddings': False}),
  'classifier': ('SequenceClassification', hf.LABELS),
  'classifier, plain': ('SequenceClassification', hf.LABELS | PLAIN),
  'tagger': ('TokenClassification', hf.LABELS),
  'qa': ('QuestionAnswering', {'pos_att_type': 'p2c', 'position_buckets': 10}),
  'choice': ('MultipleChoice', {}),
}


# ---- as transformers' classes --------------------------------------------------------------------


def theirs_of(folder, transformers, case):
  """A model of theirs with drawn weights, in a folder with a vocabulary."""
  kind, more = CASES[case]
  theirs = getattr(transformers, f'DebertaV2For{kind}')
  theirs(theirs.config_class(**V3 | more)).save_pretrained(folder)
  tensors = safetensors.numpy.load_file(folder / 'model.safetensors')
  shapes = {name: x.shape for name, x in tensors.items()}
  hf.write_folder(folder, case, (folder / 'config.json').read_text(), shapes)
  (folder / 'vocab.txt').write_text('\n'.join(WORDS) + '\n')
  return hf.load(folder)


def logits_of(model, batch):
  """{name: logits} of their model, and its hidden states."""
  import torch

  arrays = {k: x for k, x in hf.inputs_of(model, batch).items() if k != 'labels'}
  if 'MultipleChoice' in type(model).__name__:
    arrays = {name: x[:, None] for name, x in arrays.items()}
  with torch.no_grad():
    hidden = model.deberta(**hf.inputs_of(model, batch)).last_hidden_state
    return {k: x.numpy() for k, x in model(**arrays).items() if 'logits' in k}, hidden.numpy()


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_theirs_and_ours_compute_the_same_and_go_back(tmp_path, transformers, case):
  batch = hf.draw_batch()
  theirs, hidden = logits_of(theirs_of(tmp_path / 'theirs', transformers, case), batch)
  weights = from_huggingface.read(tmp_path / 'theirs')
  assert not weights.unused
  found, ours = trained.load(tmp_path / 'theirs'), batch_of(batch)
  compare(theirs, found, ours)
  real, model = ours['segment_ids'] > 0, models.ModelConfig(**found.config.model)
  mine = np.asarray(encode(model, found.params['encoder'], ours))[real]
  np.testing.assert_allclose(mine, hidden[real], rtol=0, atol=1e-4)
  convert.export_run(tmp_path / 'hf', found, {})
  before, after = tensors_of(tmp_path / 'theirs'), tensors_of(tmp_path / 'hf')
  for name, x in before.items():
    if name.startswith('lm_predictions'):  # written by the older names
      name = name.replace('lm_head.', '').replace('lm_predictions', 'cls.predictions.transform')
      name = name.replace('transform.bias', 'bias')
    if name == 'cls.predictions.bias':  # of no use beside the bias of a decoder that is not tied
      x = before.get('cls.predictions.decoder.bias', x)
    np.testing.assert_array_equal(x, after.pop(name), name)
  assert not after
  again, _ = logits_of(hf.load(tmp_path / 'hf'), batch)
  for name, x in again.items():
    np.testing.assert_allclose(x, theirs[name], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_twenty_adamw_steps(tmp_path, transformers):
  """Without dropout, at tokens that are masked."""
  import torch

  model = theirs_of(tmp_path, transformers, 'masked')
  batches = [hf.draw_batch(i) for i in range(hf.STEPS)]
  losses = (model(**hf.inputs_of(model, x), labels=torch.tensor(x['labels'])).loss for x in batches)
  theirs = adamw_losses(model, hf.RATE, hf.WEIGHT_DECAY, losses)

  found = trained.load(tmp_path)
  given = found.params, [masked(x) for x in batches], hf.RATE, hf.WEIGHT_DECAY
  ours = released.adamw_losses(released.masked_objective(found), *given)
  np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)
  print(f'losses: at most {np.abs(ours - theirs).max():.1e} apart')
  assert theirs[0] - theirs[-1] > 0.1


@pytest.mark.slow
def test_their_buckets_are_our_rows(transformers):
  import torch
  from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

  for buckets, longest in (256, 512), (6, 9), (32, 128), (320, 640), (64, 1000):
    at = np.arange(-3 * longest, 3 * longest)
    theirs = make_log_bucket_position(torch.tensor(at), buckets, longest).long().numpy() + buckets
    config = models.ModelConfig(position_buckets=buckets, max_relative_positions=longest)
    expected = theirs.clip(0, 2 * buckets - 1)
    np.testing.assert_array_equal(relative.rows_of(config, at), expected)


# ---- as released: replaced tokens ----------------------------------------------------------------


def pretrained(**changes):
  """A Trained as arch=deberta leaves it."""
  small = made('masked-lm')
  config = c.load('configs/pretrain.py:arch=deberta,runlocal')
  sizes = {name: small.config.model[name] for name in hf.SIZES if name != 'pad_token_id'}
  config.model.update(sizes | OURS | {'mask_decoder': 2, 'dtype': 'float32', 'hidden_act': 'gelu'})
  config.model.update(changes)
  config.data.seq_length = 24
  objective = TASKS['electra'].objective(config, small.tokenizer)
  params = random_like(jax.eval_shape(objective.init, jax.random.key(0)))
  words = params['encoder']['embeddings']['word_embeddings']['embedding']
  words[len(WORDS) :] = 0  # rows that pad
  return trained.Trained(config, small.tokenizer, params, 7)


def as_released(folder):
  """The folder of a pre-trained model with what else microsoft's have."""
  convert.export_run(folder, pretrained(), {})

  def more(tensors):
    D, V = V3['hidden_size'], len(WORDS)
    own = {'dense.weight': (D, D), 'dense.bias': D, 'LayerNorm.weight': D, 'LayerNorm.bias': D}
    own = {f'lm_predictions.lm_head.{k}': x for k, x in (own | {'bias': V}).items()}
    own['deberta.embeddings.position_embeddings.weight'] = V3['max_position_embeddings'], D
    return tensors | {name: np.full(x, 0.5, np.float32) for name, x in own.items()}

  return rewrite(folder, more)


def test_what_else_a_release_holds_is_named(tmp_path):
  folder = as_released(tmp_path)
  weights = from_huggingface.read(folder)
  assert weights.objective == 'electra' and len(weights.unused) == 6
  why = 'its masked-LM head reads a mask decoder, whose depth no config.json says'
  assert {*weights.unused.values()} == {why}
  found, expected = trained.load(folder), pretrained().params
  same({part: expected[part] for part in ('encoder', 'replaced')}, found.params, found.config)
  with refused('--allow-unused converts the rest'):
    convert.convert(str(folder), str(tmp_path / 'W'))
  # Files of discriminators may lack the table.
  rewrite(folder, lambda x: {name: x[name] for name in x if 'position_embeddings' not in name})
  weights = from_huggingface.read(folder)
  assert weights.objective == 'electra' and {*weights.unused.values()} == {why}
  assert len(weights.unused) == 5


def test_pretraining_goes_on_from_a_release(tmp_path):
  """Its generator begins with the words of the release, as the two of a new run are the same."""
  folder = as_released(tmp_path / 'theirs')
  config = c.load('configs/pretrain.py:arch=deberta,continued,runlocal')
  config.init_from, config.data.seq_length = str(folder), 24
  config, params = started_from(config, tmp_path / 'W')
  model = config.model
  assert (model.position_buckets, model.max_relative_positions, model.hidden_size) == (6, 9, 12)
  assert model.mask_decoder == 2  # no release says it
  assert params.keys() >= {'encoder', 'replaced', 'generator'}
  tables = params['generator']['encoder']['embeddings']
  words = params['encoder']['embeddings']['word_embeddings']['embedding']
  np.testing.assert_array_equal(tables['word_embeddings']['embedding'], words)
  config = c.load('configs/finetune.py:task=table', [f'--config.init_from={folder}'])
  config, params = started_from(config, tmp_path / 'F')
  assert config.model.position_embeddings == 'disentangled' and config.model.pooler == 'gelu'


NEWER = {'transform.dense': 'dense', 'transform.LayerNorm': 'LayerNorm', 'bias': 'bias'}


def test_a_masked_lm_head_has_two_layouts(tmp_path):
  """As transformers 5 writes with `legacy`, and without: then it reads the table of words, also
  where the config says that nothing is tied. A decoder that is not tied has its own bias."""
  found, folder = exported(tmp_path, 'masked-lm', **OURS)
  older = tensors_of(folder)

  def newer(tensors):
    tensors = {name: x for name, x in tensors.items() if 'decoder' not in name}
    for old, new in NEWER.items():
      before, after = f'cls.predictions.{old}', f'lm_predictions.lm_head.{new}'
      tensors = {name.replace(before, after): x for name, x in tensors.items()}
    return tensors

  for said in {}, {'legacy': False}, {'legacy': False, 'tie_word_embeddings': False}:
    rewrite(folder, newer, **said)
    weights, again = from_huggingface.read(folder), trained.load(folder)
    assert not weights.unused and again.config.objective == found.config.objective
    same(found.params, again.params, found.config)
  convert.export_run(tmp_path / 'again', again, {})
  written = tensors_of(tmp_path / 'again')
  assert written.keys() == older.keys()
  assert all(np.array_equal(x, written[name]) for name, x in older.items())
  words, bias = (np.random.default_rng(0).normal(size=x).astype(np.float32) for x in ((26, 12), 26))
  untied = {'cls.predictions.decoder.weight': words, 'cls.predictions.decoder.bias': bias}
  rewrite(tmp_path / 'again', lambda x: x | untied, tie_word_embeddings=False)
  weights = from_huggingface.read(tmp_path / 'again')
  np.testing.assert_array_equal(weights.flat['mlm/bias'], bias)
  np.testing.assert_array_equal(weights.flat['mlm/decoder'], words)
  assert not weights.unused
  assert weights.ignored['cls.predictions.bias'].startswith('the decoder is not tied, and adds cls')
  with refused('decoder.weight differs from .*; say "tie_word_embeddings": false'):
    from_huggingface.read(rewrite(tmp_path / 'again', tie_word_embeddings=True))


KINDS = 'masked-lm', 'classifier', 'regression', 'tagger', 'qa', 'choice'


@pytest.mark.parametrize('head', KINDS)
def test_out_and_in_is_the_same(tmp_path, head):
  found, folder = exported(tmp_path, head, **OURS)
  again = trained.load(folder)
  same(found.params, again.params, found.config)
  kept = {name: x for name, x in found.config.model.items() if name in OURS or name in hf.SIZES}
  assert {name: again.config.model[name] for name in kept} == kept
  said = config_of(folder)
  assert 'type_vocab_size' not in said and said['norm_rel_ebd'] == 'layer_norm'


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
  'said, sentence',
  [
    ({'pos_att_type': 'p2c|c2p|p2p'}, "says pos_att_type 'p2c|c2p|p2p'; our encoder has"),
    ({'pooler_hidden_size': 8}, 'says pooler_hidden_size 8; here it is hidden_size'),
    ({'position_buckets': 7, 'max_relative_positions': 3}, 'max_relative_positions is 3'),
  ],
  ids=str,
)
def test_another_model_is_one_sentence(tmp_path, said, sentence):
  _, folder = exported(tmp_path, 'classifier', **OURS)
  assert sentence in refusal(from_huggingface.read, rewrite(folder, **said))


@pytest.mark.parametrize('name', ['relative_attention', 'share_att_key', 'norm_rel_ebd'])
def test_what_is_not_said_is_not_taken_for_granted(tmp_path, name):
  _, folder = exported(tmp_path, 'classifier', **OURS)
  content = config_of(rewrite(folder))
  del content[name]
  (folder / 'config.json').write_text(json.dumps(content))
  with refused(f'says {name} .*; our encoder has'):
    from_huggingface.read(folder)


@pytest.mark.parametrize(
  'head, changes, sentence',
  [
    ('masked-lm', {'mask_decoder': 2}, 'mask_decoder is 2, and 0 in deberta-v2'),
    ('classifier', {'pooler': 'tanh'}, 'pooler is tanh, and gelu in deberta-v2'),
    ('tagger', {'embedding_size': 8}, 'model.embedding_size is 8'),
  ],
)
def test_what_has_no_key_of_theirs_is_not_written(tmp_path, head, changes, sentence):
  assert sentence in refusal(convert.export_run, tmp_path / 'hf', made(head, **OURS | changes), {})
