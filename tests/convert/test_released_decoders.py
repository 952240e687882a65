"""GPT-2, OpenAI-GPT and BART: what they write is written here, they are trained on, and go back.

test_released_families.py compares their logits and files. Slow tests compare with torch itself.
"""

import functools
import json

import jax
import numpy as np
import pytest
import released
import tokenizers as library
from golden import make_released_golden as hf
from refusal import refused
from released import folder_of, recorded_of, same

from bert_jax import config as c
from bert_jax import models, tokenizers
from bert_jax.convert import from_huggingface
from bert_jax.models import encoder, encoder_decoder
from bert_jax.models.decoding import sampling
from bert_jax.models.decoding.beam_search import beam_search
from bert_jax.models.tokens import Tokens
from bert_jax.objectives.encode import encode
from bert_jax.predict import Model
from bert_jax.run import initialization
from bert_jax.tasks import TASKS
from bert_jax.tools import convert
from bert_jax.workdir import trained


@pytest.fixture(scope='module')
def recorded():
  return recorded_of(hf)


LENGTHS = np.array([len(prompt) for prompt in hf.PROMPTS])
IDS = np.zeros((len(LENGTHS), max(LENGTHS)), np.int32)
for _row, _prompt in zip(IDS, hf.PROMPTS):
  _row[: len(_prompt)] = _prompt


def begun(found, params, beams):
  """What generation begins with: (logits, cache, step, places) of the
  prompts; of a BART they are the sources."""
  model, length = models.ModelConfig(**found.config.model), hf.LENGTHS[0]
  if 'decoder' not in params:
    prefill, step = encoder.one_token_steps(model, params)
    return *prefill(IDS, LENGTHS, length), step, LENGTHS
  places = np.broadcast_to(np.arange(IDS.shape[1]), IDS.shape)
  real = (places < LENGTHS[:, None]).astype(np.int32)
  batch = {'input_ids': IDS, 'token_type_ids': 0 * IDS, 'position_ids': places}
  hidden = encode(model, params['encoder'], batch | {'segment_ids': real})
  objective = TASKS['translation'].objective(found.config, found.tokenizer)
  begin, sources = np.full((len(IDS), 1), objective.begin_id), (hidden, Tokens(real))
  room = dict(length=length, copies=max(1, beams))
  read = encoder_decoder.prefilled(model, params, sources, begin, **room)
  return *read, np.ones(len(IDS), np.int32)


def generator(found, beams):
  """What makes [prompts, TOKENS] ids, -1 behind their ends, of parameters and a length penalty."""
  stop = hf.BART_END if 'decoder' in found.params else hf.END
  choice = sampling.Choice(stop_ids=(stop,))
  length = hf.LENGTHS[0]

  @jax.jit
  def run(params, length_penalty):
    logits, cache, step, places = begun(found, params, beams)
    settings = dict(max_tokens=hf.TOKENS, length=length)
    if beams:
      settings |= dict(beams=beams, length_penalty=length_penalty)
      return beam_search(step, cache, logits, places, end_id=stop, **settings)[0]
    keys = jax.random.split(jax.random.key(0), len(LENGTHS))
    state = sampling.begin(cache, logits, places, keys, choice, **settings)
    return sampling.advance(step, state, choice, length=length, upto=hf.TOKENS).ids

  return run


ALL = {case: hf.ways_of(case) for case in hf.WRITERS}
WAYS = [pytest.param(*x, marks=pytest.mark.slow, id=f'{x[0]}-all') for x in ALL.items()]
WAYS += [('gpt2', ['beam', 'beam long', 'beam sum']), ('bart', ['beam'])]


@pytest.mark.parametrize('case, ways', WAYS)
def test_what_is_generated_is_what_they_generate(tmp_path, recorded, case, ways):
  found = trained.load(folder_of(tmp_path, recorded, case))
  compiled = functools.cache(functools.partial(generator, found))
  for way in ways:
    options = {'length_penalty': 1.0} | hf.WAYS[way]
    ids = compiled(options.pop('num_beams', 0))(found.params, **options)
    np.testing.assert_array_equal(ids, recorded[case][way], way)


@pytest.mark.parametrize('case', ['gpt2', 'openai-gpt'])
def test_an_older_file_has_bare_names_and_masks(tmp_path, recorded, case):
  """As the first releases were saved: of the transformer alone, with its masks."""
  folder = folder_of(tmp_path, recorded, case)
  expected = trained.load(folder)
  masks = {f'h.{i}.attn.bias': np.tril(np.ones((1, 1, 24, 24), np.float32)) for i in range(3)}
  bare = lambda tensors: {name.removeprefix('transformer.'): x for name, x in tensors.items()}
  released.rewrite(folder, lambda tensors: bare(tensors) | masks)
  weights = from_huggingface.read(folder)
  assert not weights.unused
  assert weights.ignored == dict.fromkeys(masks, "a buffer: a GPT's mask of later tokens")
  same(trained.load(folder).params, expected.params, expected.config)


# ---- what a user does with them ------------------------------------------------------------------


def tuned(folder, tmp_path, *overrides):
  """The config of a run on pairs that begins with the weights of a folder, as it is adopted."""
  (tmp_path / 'pairs.tsv').write_text('en\tde\nold\tnew\n')
  fields = f'init_from={folder}', f'data.train={tmp_path}/pairs.tsv', 'data.seq_length=24'
  overrides = [f'--config.{x}' for x in (*fields, *overrides)]
  config = c.load('configs/translate.py:pair=en-de', overrides)
  beginning = initialization.start_of(config, '')
  return initialization.adopt_model(config, beginning, c.names_of(overrides))


def test_targets_begin_as_those_of_the_bart_that_a_run_starts_from(tmp_path, recorded):
  for case, begin, other in (('bart scaled', 'cls', 'sep'), ('bart', 'sep', 'cls')):
    folder = folder_of(tmp_path / 'theirs', recorded, case)
    assert tuned(folder, tmp_path).translation.begin == begin
    found = trained.load(folder)
    objective = TASKS['translation'].objective(found.config, found.tokenizer)
    assert objective.begin_id == getattr(found.tokenizer, f'{begin}_id')
    assert tuned(folder, tmp_path, f'translation.begin={other}').translation.begin == other


def test_a_run_with_any_vocabulary_goes_out_as_a_gpt2(tmp_path):
  """Whose prompts begin with [CLS], and whose texts end with [SEP]."""
  config = c.load('configs/causal_lm.py')
  config.model.update(released.SIZES | {'dtype': 'float32'})
  config.data.seq_length = 24
  tokenizer = tokenizers.wordpiece_tokenizer(released.WORDS)
  objective = TASKS['language_model'].objective(config, tokenizer)
  params = released.random_like(jax.eval_shape(objective.init, jax.random.key(0)))
  found = trained.Trained(config, tokenizer, params, 1)
  convert.export_run(tmp_path, found, {})
  same(found.params, trained.load(tmp_path).params, config)
  content, ids = released.config_of(tmp_path), [tokenizer.cls_id, tokenizer.sep_id]
  assert content['architectures'] == ['GPT2LMHeadModel']
  assert [content['bos_token_id'], content['eos_token_id']] == ids
  theirs = library.Tokenizer.from_file(str(tmp_path / 'tokenizer.json'))
  assert theirs.encode('the old river').ids == [ids[0], *tokenizer.ids_batch(['the old river'])[0]]
  config.model.update(norm_placement='post')
  with refused('norm_placement is post, and pre in gpt2'):
    convert.export_run(tmp_path / 'no', found, {})


def test_a_causal_classifier_goes_out_if_it_reads_texts_alone(tmp_path):
  gpt2 = dict(pooler='none', classifier_bias=False, norm_placement='pre', mlm_head='none')
  gpt2 |= dict(type_vocab_size=0, embedding_norm=False, decoder_bias=False)
  found = released.made('classifier', causal=True, **gpt2)
  with refused('reads each text between .CLS. and .SEP.*table.ends=false'):
    convert.export_run(tmp_path / 'no', found, {})
  found.config.table.ends = False
  convert.export_run(tmp_path / 'hf', found, {})
  again = trained.load(tmp_path / 'hf')
  assert not again.config.table.ends
  released.same(found.params, again.params, found.config)
  found.config.model.classifier_bias = True
  with refused('classifier_bias is True, and False in gpt2'):
    convert.export_run(tmp_path / 'no', found, {})


def test_a_gpt2_writes_as_its_generation_config_says(recorded, tmp_path):
  """What is asked for comes first; the settings go with the model, and out again."""
  folder = folder_of(tmp_path / 'hf', recorded, 'gpt2')
  said = {'eos_token_id': [hf.END, 5], 'num_beams': 3}
  said |= {'length_penalty': 2, 'early_stopping': True}
  (folder / 'generation_config.json').write_text(json.dumps(said))
  found = trained.load(folder)
  assert Model(found).ask('generate').choice.stop_ids == (hf.END, 5)
  convert.export_run(tmp_path / 'out', found, {})
  assert json.loads((tmp_path / 'out' / 'generation_config.json').read_text()) == said
  again = trained.load(tmp_path / 'out').config.language_model.writing
  assert dict(again) == dict(found.config.language_model.writing)


@pytest.mark.parametrize('case, beams', [('gpt2', 'num_beams=3, '), ('bart', '')])
def test_settings_of_generation_that_are_not_read_are_named(
  tmp_path, recorded, caplog, case, beams
):
  said = dict(num_beams=3, repetition_penalty=1.5, min_length=0, max_length=20)
  folder = folder_of(tmp_path, recorded, case, **said)
  (folder / 'generation_config.json').write_text('{"forced_bos_token_id": 0, "do_sample": false}')
  trained.load(folder)
  named = f'forced_bos_token_id=0, {beams}repetition_penalty=1.5'
  assert f'by what is not read: {named}\n' in caplog.text


@pytest.mark.parametrize('case', ['openai-gpt', 'gpt2', 'gpt2 with a template'])
def test_a_run_classifies_by_what_a_gpt_reads(tmp_path, recorded, case):
  """Each text alone, or behind what its template puts before texts; a vocabulary needs no [SEP]."""
  name, _, template = case.partition(' ')
  folder = folder_of(tmp_path / 'gpt', recorded, name)
  tokenizer = tokenizers.load_folder(folder)
  begin = [tokenizer.cls_id] if template else []
  if template:
    content = tokenizer.released(tokenizers.Around((tokenizer.cls_id,), (), ()))
    (folder / 'tokenizer.json').write_text(json.dumps(content))
  (tmp_path / 't.tsv').write_text('sentence\tlabel\nab\tx\nab\ty\n')
  fields = f'init_from={folder}', f'data.train={tmp_path}/t.tsv', 'table.ends=false'
  overrides = [f'--config.{x}' for x in (*fields, 'data.seq_length=16')]
  config = c.load('configs/finetune.py:task=table', overrides)
  config = initialization.config_of(initialization.start_of(config, ''), config, tmp_path / 'W')
  rows = TASKS['classification'].sources(config, tokenizers.load_folder(folder), ['train'])['train']
  (ids,) = tokenizer.ids_batch(['ab'])
  row = rows[0]
  assert [*row['input_ids'][row['segment_ids'] == 1]] == begin + [*ids]
  config.init_from = str(released.exported(tmp_path / 'bert')[1])
  with refused('table.ends=false is for causal models'):
    initialization.config_of(initialization.start_of(config, ''), config, tmp_path / 'W')
