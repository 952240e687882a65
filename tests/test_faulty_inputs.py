"""Input of every kind of fault ends in one sentence, at once, and none in a traceback."""

import io
import json
import struct
import time
import timeit
import zipfile
from collections import Counter

import numpy as np
import pytest
from bundles import rebuilt, table, zipped
from refusal import refusal

from bert_jax import config as c
from bert_jax import tokenizers
from bert_jax.config import InputError
from bert_jax.convert import config_json, torch_pickle
from bert_jax.convert.families import record
from bert_jax.corpus import store
from bert_jax.errors import listed, quoted
from bert_jax.tasks import TASKS
from bert_jax.tasks.choice import reading as choice
from bert_jax.tasks.classification import reading as classification
from bert_jax.tasks.coreference import reading as coreference
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.tagging import conll, scores
from bert_jax.text import documents, plain_formats, tables
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
  for text_, why in (
    (DEEP, 'nested too deeply'),
    ('[' * 101 + ']' * 101, 'nested too deeply'),
    (HUGE, '4,300'),
    ('{', 'not JSON'),
    (b'"\xff"', 'not UTF-8'),
    ('{"a":' * 101 + '1' + '}' * 101, 'too deeply'),
  ):
    with pytest.raises(NotJson, match=why):
      json_value(text_)
  assert json_value('[' * 100 + ']' * 100) and len(json_value(json.dumps([[]] * 500))) == 500
  given = ('12', ' 7 ', '', '-1', '1.0', HUGE, '٣')
  assert [whole_number(x) for x in given] == [12, 7, None, None, None, None, 3]


def test_a_sentence_quotes_a_line_at_most():
  assert quoted('ab') == "'ab'" and quoted(None) == 'None' and quoted([1]) == '[1]'
  assert quoted('x' * 10_000) == f"'{'x' * 80}'.. (10,000 characters)"
  assert len(quoted(['x' * 10_000])) < 120 and 'digits' in quoted(10**5_000)
  assert listed('abc', 2) == "'a', 'b' and 1 more"


GAP = 'ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n'
SPANS = {'span1_text': 'Ann', 'span1_index': 0, 'span2_text': 'she', 'span2_index': 1}
WSC = {'text': 'Ann she', 'label': 1, 'target': SPANS}
COPA = {'premise': 'p', 'question': 'cause', 'choice1': 'a', 'choice2': 'b', 'label': HUGE}
RECORDS = {  # {name: (content, file)}
  'gap': (GAP + f'g\tAnn saw Eve.\tshe\t{HUGE}\tAnn\t0\tTRUE\tEve\t8\tFALSE\tu\n', 'a.tsv'),
  'wsc': (json.dumps(WSC).replace('0,', f'{HUGE},'), 'a.jsonl'),
  'wsc, a text': (json.dumps(WSC | {'target': SPANS | {'span1_index': HUGE}}), 'a.jsonl'),
  'wsc, a target': (json.dumps(WSC | {'target': DEEP}), 'a.jsonl'),
  'swag': (f',sent1,sent2,ending0,ending1,label\n0,a,b,c,d,{HUGE}\n', 'a.csv'),
  'copa': (json.dumps(COPA), 'a.jsonl'),
  'dream': (f'[[["a"], [{{"question": "q", "choice": ["a", "b"], "answer": {DEEP}', 'a.json'),
}


@pytest.mark.parametrize('name', RECORDS)
def test_huge_numbers_and_deep_json_in_records(tmp_path, name):
  content, file = RECORDS[name]
  path, format = tmp_path / file, name.partition(',')[0]
  path.write_text(content)
  kind, reader = ('coreference', coreference) if format in ('gap', 'wsc') else ('choice', choice)
  fields = {'task.format': format, 'task.max_length': 32}
  assert 'data.train' in refused(read, reader.read, kind, path, **fields)
  if kind == 'coreference' or format != 'dream':
    nothing = refused(read, reader.read, kind, path, skip=True, **fields)
    assert 'all 1 records were left out, the first of them since' in nothing


@pytest.mark.parametrize('content', [DEEP, f'{{"hidden_size": {HUGE}}}', '{"hidden_size": "\ud800'])
def test_damaged_config_json(tmp_path, content):
  (tmp_path / 'config.json').write_text(content, errors='surrogatepass')
  assert 'cannot be read as JSON' in refused(config_json.is_model, tmp_path)
  (tmp_path / 'vocab.txt').write_text('[PAD]\n')
  with pytest.raises((InputError, NotJson)):
    c.from_json((tmp_path / 'config.json').read_bytes())
  (tmp_path / 'corpus.json').write_bytes((tmp_path / 'config.json').read_bytes())
  assert 'cannot be read as JSON' in refused(store.read_meta, tmp_path)


LONG = 'x' * 9_000
SIZED = dict.fromkeys(record.SIZES, 2)
VOCAB, SETTINGS = {'vocab.txt': 'a\n'}, 'tokenizer_config.json'
MODERN = {'model_type': 'modernbert', 'num_hidden_layers': 2}
ROPE = {'full_attention': {'rope_theta': LONG}}


@pytest.mark.parametrize(
  'content, why',
  [
    ({'model_type': LONG}, 'says model_type'),
    (SIZED | {'vocab_size': -(10**4_000)}, 'write a positive number'),
    (SIZED | {'num_hidden_layers': 2 * 10**9}, 'num_hidden_layers is more than 10,000'),
    ({'model_type': 'gpt2', 'n_embd': None}, 'does not say'),
    (MODERN | {'num_hidden_layers': 2 * 10**9}, 'num_hidden_layers is more than 10,000'),
    ({'model_type': 'modernbert', 'rope_parameters': {'full_attention': 5}}, 'write an object'),
    ({'model_type': 'modernbert', 'rope_parameters': ROPE}, 'write a number above 1'),
    (MODERN | {'layer_types': [['x'], 'x']}, 'full_attention in every n-th layer'),
    ({'model_type': 'bart', 'encoder_ffn_dim': 2, 'decoder_ffn_dim': LONG}, "decoder_ffn_dim 'x"),
  ],
)
def test_what_a_released_config_says_is_checked_and_quoted_in_part(tmp_path, content, why):
  (tmp_path / 'config.json').write_text(json.dumps({'hidden_size': 2} | content))
  assert why in refused(config_json.read, tmp_path)


@pytest.mark.parametrize(
  'files, why',
  [
    ({'vocab.txt': f'[PAD]\n{LONG}\n{LONG}\n'}, 'as line 2 does'),
    (VOCAB | {SETTINGS: json.dumps({'do_lower_case': LONG})}, 'write true or false'),
    (VOCAB | {SETTINGS: f'{{"tokenizer_class": "Herbert{LONG}"}}'}, 'splits words otherwise'),
    ({'vocab.json': json.dumps({LONG: 'x'}), 'merges.txt': ''}, 'is no vocabulary of bytes'),
    ({'vocab.json': '{"a": 0}', 'merges.txt': LONG}, 'a line that is no pair'),
  ],
)
def test_a_vocabulary_is_quoted_in_part(tmp_path, files, why):
  for name, text_ in files.items():
    (tmp_path / name).write_text(text_)
  assert why in refused(tokenizers.load_folder, tmp_path)


# ---- config files --------------------------------------------------------------------------------

HEAD = 'from bert_jax import config as c\n\n\ndef get_config(arg):\n'


@pytest.mark.parametrize(
  'content, place, why',
  [
    (HEAD + '  return c.defaults(\n', ':5', 'SyntaxError'),
    (HEAD + "  x = 1\n  return nothing['a']\n", ':6', 'NameError: name'),
    ('import bert_jax.nothing\n', ':1', 'ModuleNotFoundError'),
    ('def get_config():\n  pass\n', ':1', 'TypeError: get_config() takes 0'),
    (HEAD + "  c.defaults('mlm_nsp')\n", ':4', 'returns None, a NoneType; return a ConfigDict'),
    ('\0', '', 'null bytes'),
  ],
)
def test_a_mistake_in_a_config_file_is_one_sentence_with_its_line(tmp_path, content, place, why):
  path = tmp_path / 'mine.py'
  path.write_text(content)
  sentence = refused(c.load, str(path))
  assert f'{path}{place}' in sentence and why in sentence


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


def test_an_index_of_arrays_cannot_claim_gigabytes(tmp_path):
  file, header = io.BytesIO(), {'descr': '<i4', 'fortran_order': False, 'shape': (2**34,)}
  np.lib.format.write_array_header_1_0(file, header)
  with zipfile.ZipFile(tmp_path / store.FACTS, 'w') as archive:
    archive.writestr('sentences.npy', file.getvalue() + bytes(8))
  assert 'has not the bytes of its shape' in refused(store.read_facts, tmp_path)


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
  """Small blocks give the documents that one large block gives."""
  monkeypatch.setattr(documents, 'BLOCK_BYTES', 1 << 20)
  chapters = f'# Title\n{blank}\n## Chapter\nBody one.\n{blank}\n## Next\nBody.\n'
  for name, text_ in (('a.md', chapters * 3), ('a.txt', f'One.\nTwo.\n{blank}\nThree.\n' * 3)):
    (tmp_path / name).write_text(text_)
    whole = list(documents.documents(str(tmp_path / name), counts=Counter()))
    monkeypatch.setattr(documents, 'BLOCK_BYTES', 1)
    counts = Counter()
    assert list(documents.documents(str(tmp_path / name), counts=counts)) == whole
    assert len(list(documents.blocks(str(tmp_path / name)))) == len(whole)
    monkeypatch.setattr(documents, 'BLOCK_BYTES', 1 << 20)


def test_what_is_no_heading_of_wikitext():
  assert not any(map(plain_formats.wikitext_heading, ('= =', '=', '= a', '= = a =', 'a')))


# ---- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize('name', ['a.csv', 'a.tsv'])
@pytest.mark.parametrize('mark', [';', '|', ',', '\t'])
def test_the_header_shows_the_delimiter(tmp_path, name, mark):
  rows = [['sentence', 'label'], ['a; b, c', '1'], ['d', '0']]
  quote = (lambda x: x) if (name, mark) == ('a.tsv', '\t') else lambda x: f'"{x}"'
  (tmp_path / name).write_text(''.join(mark.join(map(quote, row)) + '\n' for row in rows))
  found = [row for _, row in tables.records(str(tmp_path / name), counts=Counter())]
  assert found == [{'sentence': 'a; b, c', 'label': '1'}, {'sentence': 'd', 'label': '0'}]


@pytest.mark.parametrize('several', [True, False])
def test_a_share_of_the_training_table_is_held_out(tmp_path, several):
  """By the text alone, whatever stands beside it; the only text of a label is trained on."""
  labels = [*'a' * 60, *'b' * 30, *'c' * 10]
  rows = [f'text {k}\t{label}\n' for k, label in enumerate(labels)]
  rare = ('a,d', 'b,e', 'a,d,f', 'g', 'g,h')
  rows += [f'rare {k}\t{label}\n' for k, label in enumerate(rare)]
  path = tmp_path / 'a.tsv'

  def split(name, rows, share=0.4):
    path.write_text('sentence\tlabel\n' + ''.join(rows))
    given = {'table.eval_share': share, 'table.multi_label': several}
    found, problems = read(classification.read, 'classification', path, name, **given)
    return {x.texts: x.label for x in found}, problems.counts

  (held, counts), (train, _) = split('eval', rows), split('train', rows)
  assert not held.keys() & train.keys() and len(held) + len(train) == len(rows)
  assert counts['examples held out of training (table.eval_share)'] == len(held)
  drawn = {(x.split('\t')[0],) for x in rows if documents.held_out([x.split('\t')[0]], 0.4)}
  kept = drawn - held.keys()
  assert held.keys() <= drawn and kept and all(texts[0].startswith('rare') for texts in kept)
  all_labels = {x for label in (*labels, *rare) for x in (label.split(',') if several else [label])}
  trained = train.values() if not several else [x for of_text in train.values() for x in of_text]
  assert {*trained} == all_labels
  assert split('eval', rows[::-1])[0] == held, 'whatever their order'
  more = split('eval', [*rows, *(f'more {k}\ta\n' for k in range(9))])[0]
  assert held.items() <= more.items(), 'whatever is added'
  doubled, counts = split('eval', [*rows, *rows])
  assert doubled.items() >= held.items(), 'equal texts stay together'
  assert counts['with the text of another (on its side of the split)'] == len(rows)
  with pytest.raises(InputError, match='table.eval_share=1e-06 of the 105 .* holds out none'):
    split('eval', rows, 1e-6)


@pytest.mark.parametrize(
  'content, fields, why',
  [
    ('body,label\na,b\n', {}, "only 'body', 'label'; name one of these"),
    ('sentense,label\na,b\n', {}, "did you mean 'sentense'"),
    ('sentence,label\n,a\n ,b\n', {}, "all 2 texts in 'sentence' are empty; name another column"),
    ('sentence,label\na,b\nc\n', {}, '1 columns where 2 are expected'),
    ('sentence,label\na,2\n', {'table.labels': ('0', '1')}, "label '2' is not in the label set"),
    ('sentence,label\na,x\n', {'table.regression': True}, 'is not a number'),
    ('sentence,label\na,\n', {}, "no label in column 'label'"),
    ('sentence,label\na,[x]\n', {}, 'set table.multi_label=true'),
  ],
)
@pytest.mark.parametrize('split', ['train', 'eval'])
def test_a_table_that_cannot_be_read_names_its_field(tmp_path, content, fields, why, split):
  path = tmp_path / 'a.csv'
  path.write_text(content)
  given = {'data.eval': str(path), **fields}
  if split == 'eval' and 'no label' in why:
    assert [x.label for x in read(classification.read, 'classification', path, split, **given)[0]]
    return
  sentence = refused(read, classification.read, 'classification', path, split, **given)
  assert why in sentence and f'data.{split}: ' in sentence or f'data.{split}=' in sentence


@pytest.mark.parametrize(
  'content, why',
  [
    (f'sentence\tlabel\na\t{LONG}|\nb\ty\n', 'has a | in it'),
    (f'sentence\tlabel\na\t{LONG}\nb\t{LONG}\n', 'has the single label'),
  ],
)
def test_a_label_set_that_cannot_be(tmp_path, content, why):
  (tmp_path / 'a.tsv').write_text(content)
  config = config_of('classification', tmp_path / 'a.tsv')
  assert why in refused(TASKS['classification'].resolve, config)


# ---- tags ----------------------------------------------------------------------------------------


def tagged(path, at):
  problems = Problems('train')
  return conll.read(str(path), 'train', problems, conll.Layout('columns', *at)), problems.counts


def test_germeval_as_published(tmp_path):
  path = tmp_path / 'a.tsv'
  path.write_text('#\twiki [2009]\n1\tAda\tB-PER\tO\n2\tlacht\tO\tO\n\n#\tn-tv\n1\t#\tO\tB-X\n')
  sentences, _ = tagged(path, at=(1, 2))
  assert [x.tokens for x in sentences] == [('Ada', 'lacht'), ('#',)]
  assert [x.tags for x in sentences] == [('B-PER', 'O'), ('O',)]


def test_bmes_is_a_scheme(tmp_path):
  path = tmp_path / 'a.conll'
  path.write_text('我\tS-PER\n在\tO\n北\tB-LOC\n京\tM-LOC\n市\tE-LOC\n')
  (sentence,), _ = tagged(path, at=(0, -1))
  assert scores.are_chunks(sorted(set(sentence.tags)))
  wrong = ('S-PER', 'O', 'B-LOC', 'E-LOC', 'S-LOC')
  assert scores.entities([sentence.tags], [sentence.tags])[0] == (2, 2, 2)
  assert scores.entities([sentence.tags], [wrong])[0] == (1, 3, 2)


# ---- which data, which machine, no input ---------------------------------------------------------


def test_a_refusal_is_short_whatever_it_quotes():
  error = InputError(f'objective {"x" * 20_000!r} is not known; use one of a, b.')
  assert len(str(error)) < 1400 and str(error).startswith("objective 'xxx")
  assert str(error).endswith('; use one of a, b.') and str(InputError('short')) == 'short'


# ---- all formats ---------------------------------------------------------------------------------
