"""Input of every kind of fault ends in one sentence, at once, and none in a traceback."""

import json
import struct
import time
import timeit
import zipfile
from collections import Counter

import pytest
from bundles import rebuilt, table, zipped
from refusal import refusal

from bert_jax import config as c
from bert_jax.convert import config_json, torch_pickle
from bert_jax.convert.families import record
from bert_jax.tasks.classification import reading as classification
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.tagging import conll
from bert_jax.text import documents, plain_formats
from bert_jax.text.values import NotJson, json_value, whole_number

HUGE, DEEP = '1' * 5_000, '[' * 100_000


def config_of(objective, path, **fields):
  config = c.defaults(objective)
  for name, value in {'data.train': str(path), **fields}.items():
    c.set_field(config, name, value)
  return config


def read(reader, objective, path, split='train', skip=False, **fields):
  problems = Problems(split, skip)
  found = list(reader(config_of(objective, path, **fields), split, problems))
  return found, problems


def refused(function, *arguments, most=700, **options):
  """The one short sentence by which a call refuses its input."""
  sentence = refusal(function, *arguments, **options)
  assert len(sentence) < most, sentence
  return sentence


# ---- JSON and numbers ----------------------------------------------------------------------------


def test_json_is_read_or_not_json():
  assert json_value('{"a": [1, "x"]}') == {'a': [1, 'x']} and json_value(b'[]') == []
  for text in DEEP, HUGE, '{', b'"\xff"':
    with pytest.raises(NotJson):
      json_value(text)
  assert json_value('[' * 100 + ']' * 100)
  given = '12', ' 7 ', '', '-1', '1.0', HUGE, '٣'
  assert [whole_number(x) for x in given] == [12, 7, None, None, None, None, 3]


LONG = 'x' * 9_000
SIZED = dict.fromkeys(record.SIZES, 2)
MODERN = {'model_type': 'modernbert', 'num_hidden_layers': 2}
ROPE = {'full_attention': {'rope_theta': LONG}}


@pytest.mark.parametrize(
  'content, named',
  [
    ({'model_type': LONG}, 'model_type'),
    (SIZED | {'vocab_size': -(10**4_000)}, 'vocab_size'),
    ({'model_type': 'gpt2', 'n_embd': None}, 'does not say'),
    (SIZED | {'model_type': 'modernbert', 'rope_parameters': ROPE}, 'rotary_theta'),
    (MODERN | {'layer_types': [['x'], 'x']}, 'layer_types'),
    ({'model_type': 'bart', 'encoder_ffn_dim': 2, 'decoder_ffn_dim': LONG}, 'decoder_ffn_dim'),
  ],
)
def test_what_a_released_config_says_is_checked_and_quoted_in_part(tmp_path, content, named):
  (tmp_path / 'config.json').write_text(json.dumps({'hidden_size': 2} | content))
  assert named in refused(config_json.read, tmp_path)


# ---- config files --------------------------------------------------------------------------------

HEAD = 'from bert_jax import config as c\n\n\ndef get_config(arg):\n'


@pytest.mark.parametrize(
  'content, place',
  [
    (HEAD + '  return c.defaults(\n', ':5'),
    (HEAD + "  x = 1\n  return nothing['a']\n", ':6'),
    ('import bert_jax.nothing\n', ':1'),
    ('\0', ''),
  ],
)
def test_a_mistake_in_a_config_file_is_one_sentence_with_its_line(tmp_path, content, place):
  path = tmp_path / 'mine.py'
  path.write_text(content)
  assert f'{path}{place}' in refused(c.load, str(path))


# ---- sizes that are lies -------------------------------------------------------------------------


@pytest.mark.parametrize(
  'shape, strides', [((2**30,), (0,)), ((2**15, 2**15), (0, 0)), ((6, 2**30), (1, 0))]
)
def test_a_small_bin_cannot_claim_gigabytes(tmp_path, shape, strides):
  place = rebuilt('0', 'FloatStorage', 6, 0, shape, strides)
  path = zipped(tmp_path / 'a.bin', table(w=place), s0=bytes(24))
  assert 'reaches beyond its storage of 6 numbers' in refused(torch_pickle.read, path)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
  number = 10_000_000
  path = tmp_path / 'a.bin'
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
    place = rebuilt('0', 'FloatStorage', number, 0, (number,), (1,))
    archive.writestr('archive/data.pkl', table(w=place))
    archive.writestr('archive/data/0', bytes(4 * number))
  assert path.stat().st_size < 50_000
  monkeypatch.setattr(zipfile.ZipFile, 'open', lambda *_, **__: pytest.fail('it was unpacked'))
  assert 'would unpack to 40,000,' in refused(torch_pickle.read, path)


def test_a_pickle_cannot_ask_for_memory_by_a_number(tmp_path):
  """The library makes a table as long as the largest number under which a value is kept."""
  for lie in (b'r' + struct.pack('<I', 2**31), b'\x95' + struct.pack('<Q', 2**40)):
    why = refused(torch_pickle.read, zipped(tmp_path / 'a.bin', b'\x80\x04}' + lie + b'.'))
    assert ' of 2147483648 in ' in why or '1099511627776' in why


# ---- time that grows with the square -------------------------------------------------------------


def grows(work, small, large):
  """How many times as long work(large) takes as work(small), the best of three each."""
  took = lambda size: timeit.repeat(lambda: work(size), timer=time.process_time, repeat=3, number=1)
  return max(1e-3, min(took(large))) / max(1e-3, min(took(small)))


def test_reading_time_grows_with_the_length_of_a_line(tmp_path):
  """16 times the text may take 16 times the time; with its square it would be 256 times."""
  cut = lambda size: list(documents._bounded('ab cd ' * size, Counter()))
  assert grows(cut, 200_000, 3_200_000) < 80
  for heading in ('# a' + ' ' * 8_000 + 'b', '# a' + ' #' * 4_000 + 'b'):
    assert plain_formats.heading_of(heading) == heading[2:]
  assert grows(lambda n: plain_formats.heading_of('# a' + ' ' * n + 'b'), 5_000, 80_000) < 80


# ---- texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('blank', ['\u3000', '\xa0', '\x85', '\x1c', ' \t'])
def test_the_cutter_and_the_reader_agree_on_what_is_blank(tmp_path, monkeypatch, blank):
  """Small portions give the documents that one large portion gives."""
  monkeypatch.setattr(documents, 'PORTION_BYTES', 1 << 20)
  chapters = f'# Title\n{blank}\n## Chapter\nBody one.\n{blank}\n## Next\nBody.\n'
  for name, text_ in (('a.md', chapters * 3), ('a.txt', f'One.\nTwo.\n{blank}\nThree.\n' * 3)):
    (tmp_path / name).write_text(text_)
    whole = list(documents.documents(str(tmp_path / name), counts=Counter()))
    monkeypatch.setattr(documents, 'PORTION_BYTES', 1)
    counts = Counter()
    assert list(documents.documents(str(tmp_path / name), counts=counts)) == whole
    assert len(list(documents.portions(str(tmp_path / name)))) == len(whole)
    monkeypatch.setattr(documents, 'PORTION_BYTES', 1 << 20)


# ---- tables --------------------------------------------------------------------------------------


def test_a_share_of_the_training_table_is_held_out(tmp_path):
  """By the text alone, whatever stands beside it."""
  rows = [f'text {k}\t{label}\n' for k, label in enumerate('a' * 60 + 'b' * 30 + 'c' * 10)]
  path = tmp_path / 'a.tsv'

  def split(name, rows):
    path.write_text('sentence\tlabel\n' + ''.join(rows))
    given = {'table.eval_share': 0.4}
    found, problems = read(classification.read, 'classification', path, name, **given)
    return {x.texts: x.label for x in found}, problems.counts

  (held, counts), (train, _) = split('eval', rows), split('train', rows)
  assert not held.keys() & train.keys() and len(held) + len(train) == 100
  assert counts['examples held out of training (table.eval_share)'] == len(held)
  drawn = {(x.split('\t')[0],) for x in rows if documents.held_out([x.split('\t')[0]], 0.4)}
  assert held.keys() == drawn
  assert split('eval', rows[::-1])[0] == held, 'whatever their order'
  more = split('eval', [*rows, *(f'more {k}\ta\n' for k in range(9))])[0]
  assert held.items() <= more.items(), 'whatever is added'
  doubled, _ = split('eval', [*rows, *rows])
  assert doubled.items() >= held.items(), 'equal texts stay together'


@pytest.mark.parametrize(
  'content, fields, named',
  [
    ('body,label\na,b\n', {}, "'body'"),
    ('sentence,label\na,b\nc\n', {}, 'a.csv'),
    ('sentence,label\na,2\n', {'table.labels': ('0', '1')}, "'2'"),
    ('sentence,label\na,x\n', {'table.regression': True}, 'table.regression'),
    ('sentence,label\na,\n', {}, 'without a label'),
    ('sentence,label\na,[x]\n', {}, 'table.multi_label'),
  ],
)
def test_a_table_that_cannot_be_read_names_its_field(tmp_path, content, fields, named):
  path = tmp_path / 'a.csv'
  path.write_text(content)
  sentence = refused(read, classification.read, 'classification', path, **fields)
  assert named in sentence and 'data.train' in sentence


@pytest.mark.parametrize('content, level', [
  ('sentence,label\na,b\nb,c\n', 'INFO'),
  ('sentence,label\na,b\nb,\n', 'WARNING'),
  ('sentence,label\na\udcff,b\nb,c\n', 'WARNING'),
])  # fmt: skip
def test_what_is_left_out_or_no_character_is_a_warning(tmp_path, content, level, caplog):
  path = tmp_path / 'a.csv'
  path.write_bytes(content.encode(errors='surrogateescape'))
  problems = Problems('train', skip=True)
  config = c.load('configs/finetune.py:task=table', [f'--config.data.train={path}'])
  with caplog.at_level('INFO', 'bert_jax'):
    list(classification.read(config, 'train', problems))
    problems.log()
  assert [record.levelname for record in caplog.records] == [level]


# ---- tags ----------------------------------------------------------------------------------------


def test_germeval_as_published(tmp_path):
  path = tmp_path / 'a.tsv'
  path.write_text('#\twiki [2009]\n1\tAda\tB-PER\tO\n2\tlacht\tO\tO\n\n#\tn-tv\n1\t#\tO\tB-X\n')
  columns = {'tagging.token_column': 1, 'tagging.tag_column': 2}
  sentences, _ = read(conll.read, 'tagging', path, **columns)
  assert [x.tokens for x in sentences] == [('Ada', 'lacht'), ('#',)]
  assert [x.tags for x in sentences] == [('B-PER', 'O'), ('O',)]
