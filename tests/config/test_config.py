"""A config says everything, and a mistake in it is one sentence that names the fix."""

import dataclasses
import re
from pathlib import Path

import pytest
from refusal import refusal, refused

from bert_jax import config
from bert_jax.config import ALL, __main__, optimizer
from bert_jax.config.check import checked
from bert_jax.field import NO_PAST, Field
from bert_jax.tasks import TASKS

FULL = 'corpus.rows=lm loss.nsp_weight=0'
CUDNN = 'model.attention_implementation=cudnn model.dtype=float32'
PRETRAIN, TABLE, NER = 'pretrain.py:runlocal', 'finetune.py:task=table', 'finetune.py:task=ner'


@pytest.mark.parametrize(
  'spec, fields, named',
  [
    (PRETRAIN, 'model.hiden_size=64', "'model.hiden_size' (did you mean 'model.hidden_size'"),
    (PRETRAIN, 'model.num_layers=4', "did you mean 'model.num_hidden_layers'"),
    (PRETRAIN, 'model.d_model=4', "did you mean 'model.hidden_size'"),
    (PRETRAIN, 'seq_length=4', "did you mean 'data.seq_length'"),
    (PRETRAIN, 'lr=1', "did you mean 'optimizer.learning_rate'"),
    (PRETRAIN, 'per_device_train_batch_size=8', "did you mean 'batch_size'"),
    (
      NER,
      'table.eval_share=0.2',
      'a field of classification, and the config file chose another objective',
    ),
    (TABLE, 'corpus.eval_share=0.2', 'and the config file chose another objective'),
    (PRETRAIN, 'model.hidden_size=abc', 'model.hidden_size'),
    (PRETRAIN, 'model.hidden_size=64.5', 'not a whole number'),
    (PRETRAIN, 'batch_size=true', 'batch_size'),
    (PRETRAIN, 'log.tensorboard', 'set as --config.NAME=VALUE'),
    (PRETRAIN, 'log.tensorboard=3', 'log.tensorboard'),
    (PRETRAIN, 'optimizer.learning_rate=-1', 'optimizer.learning_rate'),
    (PRETRAIN, 'model.hidden_act=geluu', "is 'geluu'; use one of gelu, gelu_tanh, relu, swish"),
    (PRETRAIN, 'model.hidden_size=101', 'model.num_attention_heads'),
    (PRETRAIN, 'data.seq_length=1000', 'model.max_position_embeddings'),
    (PRETRAIN, 'model.attention_implementation=xla', 'cannot drop attention probabilities'),
    (PRETRAIN, f'{CUDNN} model.attention_probs_dropout_prob=0', 'model.dtype=bfloat16'),
    (PRETRAIN, 'optimizer.accumulation=5', 'optimizer.accumulation'),
    (PRETRAIN, 'mesh.fsdp=-1', 'mesh'),
    (PRETRAIN, 'optimizer.lr_multipliers=("a",)', 'optimizer.lr_multipliers'),
    (PRETRAIN, 'masking.mask_share=0.95', 'masking.mask_share'),
    (PRETRAIN, 'optimizer.no_decay=*bias*', "'*bias*'"),
    (PRETRAIN, 'optimizer.decay=0.1', 'optimizer.schedule=linear; wsd'),
    (PRETRAIN, 'corpus.rows=full', 'loss.nsp_weight'),
    (PRETRAIN, 'corpus.lengths=32', 'loss.nsp_weight=0'),
    (PRETRAIN, 'corpus.lengths=32,6@9', 'corpus.lengths'),
    (PRETRAIN, 'corpus.lengths=32@5', 'corpus.lengths'),
    (PRETRAIN, 'model.memory_length=32', 'model.memory_length'),
    (PRETRAIN, 'objective=electra', 'configs/pretrain.py:objective=NAME'),
    (PRETRAIN, 'objective=elctra', "'elctra'"),
    ('pretrain.py:arch=fnet', 'data.examples_per_row=4', 'data.examples_per_row'),
    ('pretrain.py:arch=fnet', f'{FULL} corpus.lengths=32', 'model.mixer'),
    ('transformer_xl.py:runlocal', f'{FULL} corpus.lengths=32', 'model.memory_length=0'),
    ('pretrain.py:arch=albert', 'optimizer.layer_lr_decay=0.9', 'model.share_layers'),
    ('pretrian.py', '', 'there are configs/ablations.py, configs/babylm.py'),
    ('pretrain.py:siz=tiny', '', "'siz' is not known here (did you mean 'size'?)"),
    ('pretrain.py:size', '', "'size' wants a value"),
    ('pretrain.py:size=giant', '', "size 'giant'"),
    ('finetune.py:objective=electra', '', 'configs/pretrain.py'),
    ('finetune.py:task=sst', '', "task 'sst'"),
  ],
)
def test_a_mistake_is_one_sentence_that_names_it(spec, fields, named):
  with refused(re.escape(named)):
    config.load(f'configs/{spec}', [f'--config.{x}' for x in fields.split()])


def test_few_rows_are_passed_over_more_often_unless_the_epochs_are_given():
  count = lambda *given: config.step_count(
    config.load('configs/finetune.py:task=table', [f'--config.{x}' for x in given]), 17
  )
  assert count() == 100 and count('min_steps=60') == 60 and count('batch_size=1') == 100
  assert count('epochs=5') == 11  # of 8 rows
  assert count('epochs=5', 'min_steps=13') == 13 and count('steps=7', 'epochs=0') == 7
  assert count('steps=7') == 7 and count('steps=7', 'batch_size=1') == 7
  passes = config.load('configs/pretrain.py', ['--config.epochs=1.5'])
  assert (passes.steps, passes.epochs) == (0, 1.5)
  with refused('steps is 3 and epochs is 1.0; set exactly one above 0'):
    config.load('configs/pretrain.py', ['--config.steps=3', '--config.epochs=1'])
  many = config.load('configs/finetune.py:task=table')
  assert config.step_count(many, 1700) == 638 and config.step_count(many, 0) == 0


GROWS = 'optimizer.batch_warmup=0.1'
BEST, PATIENCE = 'checkpoint.best_metric=mlm', 'eval.batches=0 eval.patience=1'


@pytest.mark.parametrize(
  'kept, broken',
  [
    ('steps=1', 'steps=0'),
    ('mesh.tensor=1', 'mesh.tensor=0'),
    ('mesh.data=-1 mesh.tensor=2', 'mesh.data=-1 mesh.tensor=-1'),
    (f'{BEST} eval.batches=0', f'{BEST} eval.batches=1'),
    (f'{BEST} {PATIENCE}', f'{BEST} {PATIENCE} eval.every=0'),
    ('init_from=a', 'init_from=a resume_from=b'),
    (f'{GROWS} optimizer.accumulation=2', f'{GROWS} optimizer.accumulation=1'),
    (f'{GROWS} optimizer.accumulation=4', f'{GROWS} optimizer.accumulation=4 steps=0 epochs=1'),
    ('optimizer.schedule=wsd optimizer.decay=0.1', 'optimizer.schedule=wsd optimizer.decay=0'),
    ('data.seq_length=64 model.max_position_embeddings=64', 'model.max_position_embeddings=63'),
    ('optimizer.lr_multipliers=(("a",0.1),)', 'optimizer.lr_multipliers=(("a",-0.01),)'),
  ],
)
def test_a_rule_holds_up_to_its_bound(kept, broken):
  fields = lambda text: [f'--config.{x}' for x in ('data.seq_length=64', *text.split())]
  load = lambda text: config.load('configs/pretrain.py:runlocal', fields(text))
  load(kept)
  refusal(load, broken)


def test_values_come_as_their_types():
  given = ['--config.optimizer.learning_rate=1', '--config.batch_size=64']
  given += ['--config.optimizer.lr_multipliers=(("pooler",10),)', '--config.data.train=1.txt']
  loaded = config.load('configs/pretrain.py:runlocal', ['--config.log.tensorboard=true', *given])
  assert loaded.optimizer.learning_rate == 1.0 and loaded.batch_size == 64
  assert loaded.log.tensorboard is True and loaded.data.train == '1.txt'
  of_dict = config.override(loaded, ["--config.optimizer.lr_multipliers={'pooler': 10}"])
  assert loaded.optimizer.lr_multipliers == of_dict.optimizer.lr_multipliers == (('pooler', 10),)


def test_a_field_is_set_as_it_comes_and_then_checked():
  loaded = config.load('configs/pretrain.py:runlocal')
  for value in (7, 'seven', 2.5, (1,)):
    config.set_field(loaded, 'batch_size', value)
    config.set_field(loaded, 'optimizer.beta1', value)
    assert loaded.batch_size == loaded.optimizer.beta1 == value
  with refused('is not a whole number|is no'):
    config.check(loaded)


@pytest.mark.parametrize(
  'field, inside, outside',
  [
    ('model.hidden_dropout_prob', [0, 0.99], [1, -0.01]),  # [0, 1)
    ('model.layer_norm_eps', [1e-12, 0.5], [0, 1]),  # (0, 1)
    ('tokenizer.character_coverage', [0.5, 1], [0, 1.01]),  # (0, 1]
    ('masking.mask_share', [0, 0.9], [-0.01, 1.01]),  # [0, 1]
    ('seed', [0, 2**31 - 1], [-1, 2**31]),
  ],
)
def test_bounds(field, inside, outside):
  loaded = config.load('configs/pretrain.py')
  for value in inside:
    config.set_field(loaded, field, value)
    config.check(loaded)
  for value in outside:
    config.set_field(loaded, field, value)
    with refused(f'config.{field} is .*, outside'):
      config.check(loaded)


@pytest.mark.parametrize(
  'text, labels',
  [
    ('0,1', ('0', '1')),
    ('1.10,1.2', ('1.10', '1.2')),
    ('00,0', ('00', '0')),
    ('1_0,True', ('1_0', 'True')),
    ("('a,b', 'c')", ('a,b', 'c')),
    ('["a", "b"]', ('a', 'b')),
  ],
)
def test_labels_are_texts_whatever_they_look_like(text, labels):
  loaded = config.load('configs/finetune.py', [f'--config.table.labels={text}'])
  assert loaded.table.labels == labels


@pytest.mark.parametrize(
  'change, sentence',
  [
    (lambda x: x.optimizer.__delitem__('beta1'), 'config.optimizer.beta1 is missing'),
    (lambda x: x.optimizer.update(beta_1=0.1), 'beta_1.*nothing reads .did you mean .*beta1'),
    (lambda x: config.set_field(x, 'table.labels', 'a,b'), "labels is 'a,b', which is not a tuple"),
    (lambda x: x.update(masking={'masked_lm_prob': 0.15}), 'means nothing to objective'),
  ],
)
def test_a_field_that_is_missing_or_unread_is_named(change, sentence):
  loaded = config.load('configs/finetune.py')
  with loaded.unlocked():
    change(loaded)
  with refused(sentence):
    config.check(loaded)


def test_fingerprint_changes_with_what_decides_the_numbers_only():
  base = config.load('configs/pretrain.py')
  same = config.load('configs/pretrain.py', ['--config.checkpoint.every=7', '--config.mesh.fsdp=2'])
  other = config.load('configs/pretrain.py', ['--config.seed=7'])
  assert config.fingerprint(base) == config.fingerprint(same) != config.fingerprint(other)
  assert config.changes(base, other) == ['seed: 0 -> 7']


def test_defaults_and_pasts_are_values_that_their_fields_may_have():
  for name, field in ALL.items():
    allowed = None if field.by_step or name == 'objective' else field.allowed
    for value in {field.default, field.past} - {NO_PAST}:
      assert checked(name, value, field.type, allowed) == value
  for objective in TASKS:
    assert config.flatten(config.defaults(objective)).keys() == config.fields(objective).keys()


def test_fields_are_documented_and_none_is_dead():
  """Every field but a few self-explaining ones has a meaning, and the code reads it by its name."""
  code = '\n'.join(
    p.read_text()
    for p in Path('bert_jax').rglob('*.py')
    if p.parent != Path('bert_jax/config') and p.name not in ('__init__.py', 'fields.py')
  )
  called = {'model': 'config model self', 'tokenizer': 'settings'}
  called |= {'contrastive': 'settings fields contrastive', 'checkpoint': 'checkpoint keep settings'}
  called |= {'translation': 'translation fields'}
  attributes = {*re.findall(r'\b(?=(\w+\.\w+))', code)}  # of a.b.c both pairs
  quoted = {*re.findall(r"'(?=(\w+)')", code)}
  for name, field in ALL.items():
    block, _, leaf = name.rpartition('.')
    assert field.meaning, name
    reads = {f'{x}.{leaf}' for x in called.get(block, block or 'config').split()}
    assert reads & attributes or leaf in quoted, name


def test_the_table_of_fields_names_every_field_of_every_objective():
  lines = __main__.table().splitlines()
  assert max(map(len, lines)) <= 100
  assert {line.split()[0] for line in lines if line[0] not in '- '} == ALL.keys()
  text = ' '.join(line.strip() for line in lines)  # which may be wrapped anywhere
  assert "optimizer.schedule  str  'linear'" in text and "see timeline.py; linear is BERT's" in text
  of_task = [task for task in TASKS.values() if 'task.format' in task.fields]
  assert sum(line.startswith('task.format ') for line in lines) == len(of_task) > 1


def test_a_config_is_printed_with_marks_at_what_is_not_default():
  loaded = config.load('configs/pretrain.py:size=tiny,lang=multi', ['--config.seed=3'])
  text = '\n'.join(__main__.lines(loaded))
  assert max(map(len, text.splitlines())) <= 100
  lines = text.replace('\n    ', ' ').splitlines()
  assert lines.pop() == '# optimizer.learning_rate 0.0 -> 0.0001 from step 10000 on'
  assert [line.partition('=')[0] for line in lines] == list(config.flatten(loaded))
  assert 'seed=3  # not 0' in lines and "model.dtype='bfloat16'  # not 'float32'" in lines
  assert 'batch_size=256' in lines and "objective='mlm_nsp'" in lines
  defaults = config.flatten(config.defaults('mlm_nsp'))
  differ = [name for name, value in config.flatten(loaded).items() if value != defaults[name]]
  marked = [line.partition('=')[0] for line in lines if '  # not ' in line]
  assert marked == [name for name in differ if name != 'objective']


def test_a_field_knows_what_configs_without_it_meant(monkeypatch):
  """A field that is added is filled in where a run's config.json lacks it, leaves the fingerprint
  as it was, and has its default where a config file begins with defaults."""
  before = config.load('configs/pretrain.py')
  written, mark = config.to_json(before), config.fingerprint(before)
  added = Field(0.5, 'for this test', allowed='[0, inf)', past=0.0)
  for known in (config.SHARED, config.ALL, optimizer.FIELDS):
    monkeypatch.setitem(known, 'optimizer.momentum', added)
  with refused('config.optimizer.momentum is missing; begin'):
    config.check(before)
  assert config.load('configs/pretrain.py').optimizer.momentum == 0.5
  read = config.from_json(written)
  assert read.optimizer.momentum == 0.0 and config.fingerprint(read) == mark
  other = config.override(read, ['--config.optimizer.momentum=0.5'])
  assert config.fingerprint(other) != mark
  assert config.changes(read, other) == ['optimizer.momentum: 0.0 -> 0.5']
  assert config.from_json(config.to_json(other)).optimizer.momentum == 0.5
  with refused('optimizer.momentum is -1.0, outside'):
    config.override(read, ['--config.optimizer.momentum=-1'])
  forgotten = dataclasses.replace(added, past=NO_PAST)
  monkeypatch.setitem(config.SHARED, 'optimizer.momentum', forgotten)
  with refused('config.optimizer.momentum is missing; .*, or give a new Field a `past`'):
    config.from_json(written)


def test_where_a_corpus_is_held_out_decides_the_numbers_of_pretraining_only():
  """Without data.eval a share of data.train is held out, and is not trained on."""
  for spec, differs in (('configs/pretrain.py', True), ('configs/finetune.py:task=sst2', False)):
    one = config.load(spec, ['--config.data.train=a'])
    two = config.override(one, ['--config.data.eval=b'])
    three = config.override(one, ['--config.data.eval=c'])
    assert (config.fingerprint(one) != config.fingerprint(two)) == differs
    assert config.fingerprint(two) == config.fingerprint(three)
    assert config.changes(one, two) == (['data.eval is given: False -> True'] if differs else [])
    assert config.changes(two, three) == []


def test_how_a_config_divides_over_tpus_is_said():
  fields = ['--config.batch_size=96', '--config.mesh.slices=3']
  loaded = config.load('configs/pretrain.py:size=base', fields)
  *_, told = __main__.lines(loaded, 24)
  mesh = "mesh {'data': 3, 'fsdp': 8, 'tensor': 1}"
  assert told == f'# divides over 24 TPUs: {mesh}, 4 rows of a batch on each data shard'
  assert not any('TPUs' in line for line in __main__.lines(loaded))


def test_the_fields_of_a_model_that_a_run_starts_from_are_left_to_the_run():
  fields = ['--config.model.rotary_theta=500.0', '--config.teacher=W']
  config.load('configs/distill.py', [*fields, '--config.distillation.every_layer=2'])
  with refused('is for model.position_embeddings=rotary'):
    config.load('configs/distill.py', [*fields, '--config.distillation.every_layer=0'])


def test_sizes_are_those_of_the_released_models():
  tiny, mini, large = (2, 128, 2, 512), (4, 256, 4, 1024), (24, 1024, 16, 4096)
  for size, expected in dict(tiny=tiny, mini=mini, medium=(8, 512, 8, 2048), large=large).items():
    model = config.load(f'configs/pretrain.py:size={size}').model
    names = 'num_hidden_layers', 'hidden_size', 'num_attention_heads', 'intermediate_size'
    assert tuple(model[name] for name in names) == expected


CALLS = 'def rate():\n  return 1 / 0\n\n\ndef get_config(arg):\n  return both(arg)\n\n\n'


@pytest.mark.parametrize(
  'code, sentence',
  [
    ('get_configs = dict', 'a.py has no get_config'),
    ('def get_config(arg):\n  return arg', 'a.py has no get_config.* that returns a ConfigDict'),
    (f'{CALLS}def both(arg):\n  return rate()', 'a.py:2 is wrong: ZeroDivisionError'),
  ],
)
def test_a_config_file_that_gives_no_config_is_named(tmp_path, code, sentence):
  (tmp_path / 'a.py').write_text(code)
  with refused(sentence):
    config.load(f'{tmp_path}/a.py:size=tiny')
