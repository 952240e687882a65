"""Whatever is written into a file comes back: any texts, by the readers of tables, tags, questions,
vocabularies and configs. Files are written by csv, json, or by hand."""

import csv
import io
import itertools
import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from bert_jax import config as c
from bert_jax import tokenizers
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.qa import reading
from bert_jax.tasks.tagging import conll
from bert_jax.text import tables
from bert_jax.tokenizers.reading import load

ROUNDS = settings(
  max_examples=25,
  derandomize=True,
  deadline=None,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# Characters that files can hold: a line break is a matter of quoting, see below.
CHARACTERS = st.characters(exclude_categories=('Cs', 'Cc'), exclude_characters='\ufeff\u2028\u2029')
TEXT = st.text(CHARACTERS | st.sampled_from('"\',;|\\ €é北')).map(str.strip).filter(bool)
WORD = st.text(CHARACTERS, min_size=1).filter(lambda x: len(x.split()) == 1 and x == x.strip())
LINES = st.lists(TEXT, min_size=1, max_size=3).map('\n'.join)
NAMES = ('text_a', 'text_b', 'label')
ROWS = st.lists(st.tuples(*[LINES] * len(NAMES)), min_size=1, max_size=6)


def read(path):
  counts = Counter()
  return [dict(row) for _, row in tables.records(str(path), counts=counts)], counts


@ROUNDS
@given(ROWS, st.sampled_from(',;|\t'), st.sampled_from(['utf-8', 'utf-8-sig', 'utf-16']))
@pytest.mark.parametrize('end', ['\n', '\r\n'])
def test_a_table_with_quotes(tmp_path, end, rows, delimiter, encoding):
  path = tmp_path / 'table.csv'
  with open(path, 'w', encoding=encoding, newline='') as file:
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
    writer.writerows([NAMES, *rows])
  assert read(path)[0] == [dict(zip(NAMES, row, strict=True)) for row in rows]


@ROUNDS
@given(ROWS)
def test_a_tsv_as_excel_writes_it(tmp_path, rows):
  path = tmp_path / 'table.tsv'
  with open(path, 'w', encoding='utf-8', newline='') as file:
    csv.writer(file, 'excel-tab', quoting=csv.QUOTE_ALL).writerows([NAMES, *rows])
  assert read(path)[0] == [dict(zip(NAMES, row, strict=True)) for row in rows]


@ROUNDS
@given(st.lists(st.tuples(WORD, TEXT, WORD), min_size=1, max_size=6))
def test_a_tsv_without_quoting_as_those_of_glue(tmp_path, rows):
  lines = ['\t'.join(NAMES), *('\t'.join(cells) for cells in rows)]
  assume('""' not in ''.join(lines))  # which shows that quotes are doubled
  (tmp_path / 'table.tsv').write_text('\n'.join(lines) + '\n')
  assert read(tmp_path / 'table.tsv')[0] == [dict(zip(NAMES, row, strict=True)) for row in rows]


@ROUNDS
@given(st.lists(st.tuples(*[st.text()] * 2), min_size=1, max_size=6), st.booleans())
def test_lines_of_json(tmp_path, rows, ascii_only):
  as_json = lambda row: json.dumps(dict(zip(NAMES, row, strict=False)), ensure_ascii=ascii_only)
  text = '\n'.join(map(as_json, rows))
  assume('\0' not in text)
  (tmp_path / 'rows.jsonl').write_bytes(text.encode('utf-8', 'surrogatepass'))
  found, _ = read(tmp_path / 'rows.jsonl')
  whole = lambda x: x.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')
  for row, wanted in zip(found, rows, strict=True):
    if not any('\ud800' <= x <= '\udfff' for x in ''.join(wanted)):
      assert tuple(row.values()) == wanted
    else:  # half a character is repaired
      assert ascii_only is False or tuple(row.values()) == tuple(map(whole, wanted))


@pytest.fixture(scope='module')
def squad():
  return c.load('configs/finetune.py:task=squad')


TAGS = st.sampled_from(['O', 'B-PER', 'I-PER', 'B-北', 'I-LOC'])
SENTENCES = st.lists(st.lists(st.tuples(WORD, TAGS), min_size=1, max_size=5), min_size=1)


@ROUNDS
@given(SENTENCES, st.sampled_from(['.conll', '.jsonl', '.csv']), st.sampled_from(' \t'))
def test_tagged_words(tmp_path, sentences, kind, blank):
  words = list(itertools.chain(*sentences))
  assume(not any(word.startswith(('#', '-DOCSTART-')) for word, _ in words))
  path, out = tmp_path / f'words{kind}', io.StringIO(newline='')
  if kind == '.conll':
    out.write('\n\n'.join('\n'.join(blank.join(word) for word in s) for s in sentences) + '\n')
  elif kind == '.jsonl':
    lists = (dict(zip(('tokens', 'tags'), zip(*s, strict=True))) for s in sentences)
    out.write('\n'.join(json.dumps(x, ensure_ascii=False) for x in lists))
  else:
    writer = csv.writer(out)
    writer.writerow(['sentence_id', 'words', 'labels'])
    writer.writerows([i, *word] for i, s in enumerate(sentences) for word in s)
  path.write_text(out.getvalue(), encoding='utf-8', newline='')
  config = c.defaults('tagging')
  config.data.train = str(path)
  found = conll.read(config, 'train', Problems('train'))
  assert [list(zip(s.tokens, s.tags, strict=True)) for s in found] == sentences


@ROUNDS
@given(TEXT, TEXT, TEXT, TEXT, st.sampled_from(['.json', '.jsonl', '.csv']))
def test_questions_and_their_answers(tmp_path, squad, before, answer, after, question, kind):
  context = f'{before} {answer} {after}'
  answers = {'text': [answer], 'answer_start': [len(before) + 1]}
  record = {'id': 'q1', 'question': question, 'context': context, 'answers': answers}
  path = tmp_path / f'questions{kind}'
  if kind == '.json':
    qa = {k: record[k] for k in ('id', 'question')}
    qa['answers'] = [{'text': answer, 'answer_start': len(before) + 1}]
    path.write_text(json.dumps({'data': [{'paragraphs': [{'context': context, 'qas': [qa]}]}]}))
  elif kind == '.csv':
    with open(path, 'w', newline='', encoding='utf-8') as file:
      writer = csv.DictWriter(file, record)
      writer.writeheader()
      writer.writerow(record | {'answers': json.dumps(answers)})
  else:
    path.write_text(json.dumps(record))
  squad.data.train = str(path)
  (found,) = reading.questions(squad, 'train', Problems('train'))
  assert (found.text, found.context, found.gold) == (question, context, (answer,))
  assert found.starts == (len(before) + 1,)


@ROUNDS
@given(st.lists(WORD, unique=True, max_size=20))
def test_a_vocabulary(tmp_path, words):
  pieces = list(dict.fromkeys(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words]))
  tokenizer = tokenizers.wordpiece_tokenizer(pieces, tokenizers.Splitting(do_lower_case=False))
  tokenizer.save(tmp_path)
  again = load(tmp_path / 'vocab.txt', do_lower_case=False)
  assert list(again.pieces) == pieces and again.fingerprint == tokenizer.fingerprint


@pytest.fixture(scope='module')
def of_bytes(tmp_path_factory):
  """A byte-level vocabulary, as GPT-2 and RoBERTa have one, and what is read once it is saved."""
  folder, merges = tmp_path_factory.mktemp('bytes'), [('t', 'h'), ('th', 'e'), ('Ġ', 'the')]
  pieces = ['<s>', '<pad>', '</s>', '<unk>', '<mask>', *pre_tokenizers.ByteLevel.alphabet()]
  pieces += map(''.join, merges)
  (folder / 'vocab.json').write_text(json.dumps({x: i for i, x in enumerate(pieces)}))
  (folder / 'merges.txt').write_text('\n'.join(['#version: 0.2', *map(' '.join, merges), '']))
  tokenizer = tokenizers.load_folder(folder)
  tokenizer.save(folder / 'again')
  return tokenizer, tokenizers.load_folder(folder / 'again')


@ROUNDS
@given(st.text() | st.lists(st.sampled_from(['the', ' ', '<s>', '\n', 'é', 'h'])).map(''.join))
def test_any_text_under_a_vocabulary_of_bytes(of_bytes, text):
  (ids,), (again,) = (tokenizer.ids_batch([text]) for tokenizer in of_bytes)
  assert of_bytes[0].decode(ids) == text and [*again] == [*ids]
  assert of_bytes[0].fingerprint == of_bytes[1].fingerprint


FREE = {'data.train': TEXT, 'tokenizer.path': TEXT, 'seed': st.integers(0, 2**31 - 1)}
FREE |= {'optimizer.eps': st.floats(1e-9, 0.9), 'model.layer_norm_eps': st.floats(1e-12, 1)}


@ROUNDS
@given(st.fixed_dictionaries({}, optional=FREE))
def test_a_config(squad, values):
  config = squad.copy_and_resolve_references()
  config.update_from_flattened_dict(values)
  again = c.from_json(c.to_json(config))
  assert c.flatten(again) == c.flatten(config) == c.flatten(squad) | values
  said = c.override(squad, [f'--config.{k}={v}' for k, v in values.items()])
  assert c.flatten(said) == c.flatten(config)
