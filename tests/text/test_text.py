"""Raw text to documents: formats, sentences, what is counted, and every error a file can cause."""

import gzip
import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import textwrap
from collections import Counter

import numpy as np
import pytest
from conftest import ROOT
from refusal import refusal

from bert_jax.text import documents as reader
from bert_jax.text import record_sources, tables
from bert_jax.text.documents import documents, held_out
from bert_jax.text.files import expand, suffix
from bert_jax.text.sentences import split_sentences


def read(spec, **options):
  counts = Counter()
  return list(documents(str(spec), counts=counts, **options)), counts


def fails(spec, **options):
  return refusal(read, spec, **options)


@pytest.mark.parametrize(
  'sentences',
  [
    ['Hello there.', 'How are you?', '"Fine!" he said.', '"Go."', 'She went.'],
    ['Mr. Smith met J. R. R. Tolkien in the U.S. Army.', 'He left…', 'And so it is.'],
    ['So am I.', 'Then he left, e.g. on foot.', 'Wait...', 'What?!', '(It works.)', 'Yes.'],
    ['See No. 5 of www.example.com for 3.14.', '"No.', 'I will not."'],
    ['1. The first item.', 'And more.'],
    ['„Ja.“', 'Er ging.', '¿Qué?', '¡No!'],
    ['Это так.', 'Правда?', 'Да.'],
    ['यह है।', 'वह है।'],
    ['مرحبا؟', 'نعم.'],
  ],
)
def test_sentences_of_languages_that_use_spaces(sentences):
  assert split_sentences(' '.join(sentences)) == sentences


def test_sentences_of_languages_without_spaces():
  sentences = ['他说：“你好！”', '然后走了。', '「はい。」', 'と言った……本当？！', '（完。）']
  assert split_sentences(''.join(sentences)) == sentences


def test_no_character_is_lost_and_long_rows_of_dots_take_no_time():
  text = ' «A.» b?! C…" d.e. F。G 3. H.\tI .\nJ) ' * 50 + '.' * 200_000 + 'x ' + 'A. ' * 50_000
  assert ''.join(''.join(split_sentences(text)).split()) == ''.join(text.split())
  assert split_sentences(' \n ') == []


def test_words_that_end_like_an_abbreviation_end_a_sentence():
  for text in ('Messrs. Dombey met Prof. Xu.', 'See vol. 3 and no. 7 of it.'):
    assert split_sentences(text) == [text]
  assert split_sentences('An XProf. He left. In all. No. 5') == [
    'An XProf.',
    'He left.',
    'In all.',
    'No. 5',
  ]


MARKDOWN = """\
# The Title

## Chapter I ##

A paragraph that is
wrapped. It has two sentences.

Another #paragraph.
-------
## Chapter II
The end.
"""
HALF = '{"text": "half \\ud83d", "body": "z"}'  # of an emoji, which no tokenizer could encode
JSONL = f'{{"text": "A b. C.\\n\\nD\\nE", "body": "x"}}\n{{"text": "", "body": "Ü."}}\n\n{HALF}\n'
WIKI = '<doc id="1" url="u" title="Dr. No">\nDr. No. Film\n\nIt is. A film.\n\n</doc>\n'
WIKI += '<doc id="2">\n</doc>\n<doc id="3">\nB\n'
WIKITEXT = ' \n = A = \n \n B . C .\n \n = = D = = \n \n = = = E = = = \n \n A = b = c . \n'
PLAIN = '\ufeffOne. Still one.\r\nTwo.\r\n\r\n \r\n\r\nThree.'
TITLES = '1: The Title | Chapter I | A paragraph that is wrapped. | It has two sentences.'


@pytest.mark.parametrize(
  'name, format, content, expected',
  [
    ('a.txt', 'auto', PLAIN, '1: One. Still one. | Two. || 6: Three.'),
    ('a.md', 'auto', MARKDOWN, f'{TITLES} | Another #paragraph. || 10: Chapter II | The end.'),
    ('a.txt', 'paragraphs', '\nA b.\nC\nd.\n\nE.\n', '2: A b. | C d. | E.'),
    ('b.md', 'auto', '---\n\nA b\n***\n# C\n', '3: A b || 5: C'),
    ('a.jsonl', 'auto', JSONL, '1: A b. | C. | D | E || 4: half \ufffd'),
    ('a.ndjson', 'auto', JSONL, '1: A b. | C. | D | E || 4: half \ufffd'),
    ('a.txt', 'jsonl', JSONL, '1: A b. | C. | D | E || 4: half \ufffd'),
    ('a.txt', 'sentences', '{"a": 1}', '1: {"a": 1}'),
    ('wiki_00', 'wiki', WIKI, '1: Dr. No. Film | It is. | A film. || 9: B'),
    ('a.x', 'wikitext', WIKITEXT, '2: A | B . | C . || 6: D | E | A = b = c .'),
    ('a.txt', 'lines', 'Up. Two.\nB.\n\nC? Five!\n', '1: Up. | Two. | B. || 4: C? | Five!'),
  ],
)
def test_formats(tmp_path, name, format, content, expected):
  (tmp_path / name).write_bytes(content.encode())
  (tmp_path / f'{name}.gz').write_bytes(gzip.compress(content.encode()))
  for file in (name, f'{name}.gz'):
    found, _ = read(tmp_path / file, format=format)
    shown = [f'{name}: {" | ".join(sentences)}' for name, sentences in found]
    assert ' || '.join(shown).replace(f'{file}:', '') == expected


def test_what_is_counted(tmp_path):
  for name, content in {'a.txt': PLAIN, 'a.jsonl': JSONL}.items():
    (tmp_path / name).write_bytes(content.encode())
  counted = {'files': 1, 'bytes': 36, 'documents': 2, 'sentences': 3}
  assert read(tmp_path / 'a.txt')[1] == counted
  counts = read(tmp_path / 'a.jsonl')[1]
  assert (counts['empty_documents'], counts['invalid_utf8_lines']) == (1, 1)
  found, _ = read(tmp_path / 'a.jsonl', text_field='body')
  assert found == [('a.jsonl:1', ['x']), ('a.jsonl:2', ['Ü.']), ('a.jsonl:4', ['z'])]


def test_the_suffix_tells_the_format(tmp_path):
  names = {'a.JSONL': '.jsonl', 'a.b.json.gz': '.json', 'a.md.zst': '.md', 'a.gz': ''}
  names |= {'a.NDJSON': '.jsonl', 'a.jsonlines.gz': '.jsonl'}
  assert {name: suffix(tmp_path / name) for name in names} == names


FORMATS = {
  'sentences': 'One.\nTwo.\n\n\nThree.\nFour.\n\nFive.\n',
  'lines': 'One. Two.\nThree.\n\nFour? Five!\n\nSix.\n',
  'paragraphs': MARKDOWN * 2 + '# Three\n\n## Its first chapter\n\nA b.\n\nC d.\n',
  'wiki': '<doc id="1">\nOne\n\nA b. C d.\n</doc>\n<doc id="2">\nTwo\nE.\n</doc>\n',
  'wikitext': ' \n = A = \n \n One . Two .\n \n = = B = = \n Three .\n = C =\nx\n',
  'jsonl': ''.join(json.dumps({'text': f'Text {i}. More.\nEnd.'}) + '\n' for i in range(5)),
}


@pytest.mark.parametrize('format', FORMATS)
def test_portions_of_any_size_give_the_same_documents(tmp_path, monkeypatch, format):
  path = tmp_path / 'a.txt'
  path.write_text(FORMATS[format])
  whole, counts = read(path, format=format)
  assert len(whole) >= 2 and len(list(reader.portions(str(path), format))) == 1
  for size in (1, 10, 20):
    monkeypatch.setattr(reader, 'PORTION_BYTES', size)
    parts = list(reader.portions(str(path), format))
    assert len(parts) >= 2 and b''.join(portion.data for portion in parts) == path.read_bytes()
    assert parts[-1].position == path.stat().st_size
    assert read(path, format=format) == (whole, counts)


def test_portions_are_of_16_mb_at_most(tmp_path):
  """With another size the text of a run would change, since long documents end elsewhere."""
  (tmp_path / 'a.txt').write_bytes(19 * (b'x' * (2**20 - 1) + b'\n'))
  sizes = [len(block.data) for block in reader.portions(str(tmp_path / 'a.txt'))]
  assert sizes == [16 * 2**20, 3 * 2**20]


def test_a_document_without_end_is_cut_and_counted(tmp_path, monkeypatch):
  lines = [f'Sentence {i}.' for i in range(40)]
  (tmp_path / 'a.txt').write_text('\n'.join(lines) + '\n\nThe last.\n')
  monkeypatch.setattr(reader, 'PORTION_BYTES', 100)
  monkeypatch.setattr(reader, 'LONGEST_DOCUMENT', 200)
  found, counts = read(tmp_path / 'a.txt')
  assert [s for d in found for s in d.sentences] == [*lines, 'The last.']
  # 504 bytes of lines of 12 and 13: they are cut behind 200 and 400.
  assert (len(found), counts['cut_documents'], counts['documents']) == (4, 2, 4)


def test_a_long_sentence_is_cut_at_its_last_blanks(tmp_path, monkeypatch):
  monkeypatch.setattr(reader, 'LONGEST_SENTENCE', 20)
  (tmp_path / 'a.txt').write_text(f'one two three four five six\nshort\n{"x" * 45} y\n')
  ((_, sentences),), counts = read(tmp_path / 'a.txt')
  assert sentences == ['one two three four', 'five six', 'short', 'x' * 20, 'x' * 20, 'xxxxx y']
  assert counts['cut_sentences'] == 3 and counts['sentences'] == 6


def test_folders_and_globs_are_read_in_sorted_order(tmp_path):
  for name in ('b.txt', 'a/z.txt', 'a/.hidden', '_SUCCESS', 'c.md', 'what?.txt'):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(name)
  names = ['z.txt:1', 'b.txt:1', 'c.md:1', 'what?.txt:1']
  assert [d.name for d in read(tmp_path)[0]] == names
  assert expand(f'{tmp_path}/*.txt') == [tmp_path / 'b.txt', tmp_path / 'what?.txt']
  assert expand(f'{tmp_path}/what?.txt') == [tmp_path / 'what?.txt']
  assert len(expand(f'{tmp_path}/**/*.txt')) == 3


def test_reading_is_a_stream(tmp_path):
  (tmp_path / 'a.txt').write_bytes(b'One.\n\n' * 1000 + b'\0')
  counts = Counter()
  found = documents(str(tmp_path / 'a.txt'), counts=counts)
  assert next(found).name == 'a.txt:1'
  assert counts['bytes'] < 20


PACKED = gzip.compress(random.Random(0).randbytes(5000).hex().encode() + b'\n')


@pytest.mark.parametrize(
  'name, content, message',
  [
    ('no.txt', None, 'no.txt. does not exist; give a file'),
    ('*.txt', None, r'no file matches .*/\*.txt; check'),
    ('', None, 'is a folder without files; give'),
    ('a.txt', b'', 'a.txt is empty; remove it, or write it again'),
    ('a.txt', b' \n\n', 'holds no text, only white space'),
    ('a.txt', b'text\nab\0c\n', r'line 2 has a NUL byte, 2 bytes in; leave .*\(--text-encoding'),
    ('a.txt.gz', PACKED[:2000], 'broken or truncated .gz file'),
    (
      'a.txt',
      b'{"text": "a"}\n\n{"b": 1}\nc\n',
      'a JSON object on each line; call it .jsonl or set',
    ),
    ('a.jsonl', b'{"text": "a"}\n{"text": "a"', r":2 is not JSON \(Expecting ',' .* column 13\)"),
    ('a.jsonl', b'{"id": 1, "body": "a"}', ":1 has no field 'text', only 'id', 'body'; set corpus"),
  ],
)
def test_errors_name_the_file_and_the_fix(tmp_path, name, content, message):
  if content is not None:
    (tmp_path / name).write_bytes(content)
  assert re.search(message, fails(tmp_path / name))


@pytest.mark.parametrize('kind', ['zip', 'tar', 'gztar', 'bztar', 'xztar'])
def test_what_is_packed_is_to_be_unpacked(tmp_path, kind):
  (tmp_path / 'in').mkdir()
  (tmp_path / 'in' / 'a.txt').write_text('The ferry leaves.')
  packed = shutil.make_archive(tmp_path / 'a.txt', kind, tmp_path / 'in')
  assert f'{packed} is packed, as .zip' in fails(packed)


@pytest.mark.parametrize('lines', ['A list follows.\n{"a": 1}', '{"a": 1}\nis JSON.'])
def test_a_text_may_hold_json(tmp_path, lines):
  (tmp_path / 'a.txt').write_text(lines)
  assert read(tmp_path / 'a.txt')[0][0].sentences == lines.split('\n')


def test_held_out_is_a_stable_choice_of_about_the_share():
  texts = [('ticket', f'number {i} of {i % 7}') for i in range(20_000)]
  chosen = {text for text in texts if held_out(text, 0.05)}
  assert 900 < len(chosen) < 1100
  assert chosen < {text for text in texts if held_out(text, 0.1)}
  assert not any(held_out(text, 0) for text in texts) and all(held_out(text, 1) for text in texts)
  # As by coreutils: printf 'ticket\nnumber 3' | b2sum -l 32 prints a13bba8e, 0.6298 of its range.
  assert held_out(('ticket', 'number 3'), 0.6299)
  assert not held_out(('ticket', 'number 3'), 0.6298)


@pytest.mark.parametrize('share', [0.02, 0.1, 0.3])
def test_numbered_texts_are_held_out_as_a_draw_would(share):
  """In 60 sets of 1,000 texts that differ by a number the sizes vary as a binomial's do."""
  prefixes = [chr(97 + i % 26) * (1 + i // 26) for i in range(60)]
  sizes = [sum(held_out([f'{p}{i:04}'], share) for i in range(1000)) for p in prefixes]
  spread = np.std(sizes) / np.sqrt(1000 * share * (1 - share))
  assert abs(np.mean(sizes) - 1000 * share) < 0.01 * 1000 and 0.75 < spread < 1.25


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
  """A TFDS dataset, prepared here without TensorFlow or a network."""
  tfds = pytest.importorskip('tensorflow_datasets')
  tfds.disable_progress_bar()

  class TinyCorpus(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version('1.0.0')

    def _info(self):
      text, label = tfds.features.Text(), tfds.features.ClassLabel(names=['no', 'yes'])
      tags = tfds.features.Sequence(tfds.features.Text())
      features = {'text': text, 'label': label, 'score': np.float32, 'n': np.int32, 'tags': tags}
      features = tfds.features.FeaturesDict(features)
      return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
      return {'train': self._generate_examples(10, 1), 'validation': self._generate_examples(2, -1)}

    def _generate_examples(self, number, label):
      rest = {'label': label, 'score': 3.8, 'n': 7, 'tags': ['ü', 'b']}
      for i in range(number):
        yield i, {'text': f'Größe {i}. Two.\nThree.', **rest}

  folder = tmp_path_factory.mktemp('tfds')
  TinyCorpus(data_dir=folder, file_format='array_record').download_and_prepare()
  return folder


def test_tfds_by_folder_and_split(prepared):
  folder = prepared / 'tiny_corpus'
  found, counts = read(f'tfds:{folder}')
  assert sorted(d.sentences[0] for d in found) == [f'Größe {i}.' for i in range(10)]
  assert found[3].name == 'tiny_corpus/1.0.0:train:3'
  assert found[3].sentences[1:] == ['Two.', 'Three.']
  assert counts == {'documents': 10, 'sentences': 30, 'bytes': 220}
  assert read(f'tfds:{folder / "1.0.0"}:validation')[1]['documents'] == 2
  part, _ = read(f'tfds:{folder}:train[:40%]')
  assert [d.sentences for d in part] == [d.sentences for d in found[:4]]


def test_tfds_values_are_decoded_and_labels_named(prepared):
  folder, counts = prepared / 'tiny_corpus', Counter()
  ((where, row), *_) = tables.records(f'tfds:{folder}', counts=counts)
  assert where == 'tiny_corpus/1.0.0:train:0' and counts['records'] == 10
  assert row.pop('text').startswith('Größe ')
  assert row == {'label': 'yes', 'score': '3.8', 'n': '7', 'tags': '["ü", "b"]'}
  for spec, split in ((f'{folder}:validation', 'train'), (folder, 'validation')):
    rows = list(tables.records(f'tfds:{spec}', split=split, counts=counts))
    assert not any('label' in row for _, row in rows)  # a test set has none


def test_tfds_rows_in_several_portions(prepared, monkeypatch):
  spec = f'tfds:{prepared / "tiny_corpus"}'
  whole = read(spec)
  monkeypatch.setattr(record_sources, 'TFDS_ROWS', 4)
  assert [portion.position for portion in reader.portions(spec)] == [4, 8, 10]
  assert read(spec) == whole


def test_tfds_errors(prepared, tmp_path):
  folder = prepared / 'tiny_corpus'
  assert 'its splits are train, validation' in fails(f'tfds:{folder}:test')
  assert "no field 'body', only 'label', " in fails(f'tfds:{folder}', text_field='body')
  for spec in ('tfds:no_such_data', f'tfds:{tmp_path}', 'tfds:'):
    assert spec.partition(':')[2] in fails(spec)


@pytest.mark.parametrize('share', [0.5, 0.75])
def test_a_truncated_tfds_file_is_an_error_not_empty_documents(prepared, tmp_path, share):
  """Cut at a 64 KB block, TFDS opens it and returns rows of None."""
  shutil.copytree(prepared / 'tiny_corpus', tmp_path, dirs_exist_ok=True)
  (file,) = tmp_path.glob('**/*-train.array_record*')
  os.truncate(file, int(file.stat().st_size * share))
  assert re.search('prepare it again|cannot be read', fails(f'tfds:{tmp_path}'))


def test_tfds_by_name_imports_neither_tensorflow_nor_torch(prepared):
  code = """
    import sys
    from collections import Counter
    from bert_jax.text.tables import records
    from bert_jax.text.documents import documents
    assert 'tensorflow_datasets' not in sys.modules
    for name, number in {'tiny_corpus': 10, 'tiny_corpus:1.0.0:validation': 2}.items():
      assert len(list(documents(f'tfds:{name}', counts=Counter()))) == number
      assert len(list(records(f'tfds:{name}', counts=Counter()))) == number
    assert not {'tensorflow', 'torch', 'transformers'} & set(sys.modules)
  """
  environment = os.environ | {'TFDS_DATA_DIR': str(prepared)}
  command = [sys.executable, '-c', textwrap.dedent(code)]
  subprocess.run(command, check=True, cwd=ROOT, env=environment)


def test_no_word_of_a_real_book_is_lost(shared):
  path = shared / 'text_en/books/Homer - The Iliad.md'
  words_of = lambda text: [word for word in text.split() if set(word) - set('#-')]
  kept = [w for d in read(path)[0] for s in d.sentences for w in words_of(s)]
  assert kept == words_of(path.read_text())


@pytest.mark.parametrize(
  'name, format, content, expected',
  [
    ('a.jsonl', 'auto', '{"text": " One.  Two.\\n\\nThree "}\n', [' One.  Two.\n\nThree ']),
    ('a.txt', 'auto', 'One.\n  Two. \n\nThree\n', ['One.\nTwo.', 'Three']),
    ('a.md', 'auto', '# A #\n\nOne\nis. Two.\n\n---\n\nThree\n', ['A\n\nOne is. Two.\n\nThree']),
  ],
)
def test_a_document_has_the_text_that_its_sentences_stand_in(
  tmp_path, name, format, content, expected
):
  (tmp_path / name).write_text(content)
  found, _ = read(tmp_path / name, format=format)
  assert [sentences.text for _, sentences in found] == expected
  for _, sentences in found:
    parts = r'\s+'.join(map(re.escape, sentences))
    assert re.fullmatch(rf'\s*{parts}\s*', sentences.text)


def test_a_text_that_is_null_is_named_as_such_or_left_out_and_counted(tmp_path, caplog):
  rows = ['{"text": "One."}', '{"text": null}', '{"text": ["a"]}', '{broken', '{"text": "Two."}']
  (tmp_path / 'a.jsonl').write_text('\n'.join(rows) + '\n')
  said = fails(tmp_path / 'a.jsonl')
  assert "a.jsonl:2: field 'text' is null; set" in said and 'data.skip_damaged=true' in said
  with caplog.at_level(logging.WARNING, 'bert_jax'):
    found, counts = read(tmp_path / 'a.jsonl', skip=True)
  assert [d.name for d in found] == ['a.jsonl:1', 'a.jsonl:5'] and counts['left_out_records'] == 3
  assert len(caplog.records) == 1 and "a.jsonl:2: field 'text' is null" in caplog.text
  (tmp_path / 'b.jsonl').write_text(rows[1])
  assert 'holds no text, only 1 records without one' in fails(tmp_path / 'b.jsonl', skip=True)
