"""Every family reads from Parquet, Arrow and sets of Hugging Face what it reads from lines of JSON:
the same examples and, bit for bit, the same rows; also in the layouts that the Hub has."""

import csv
import json
from collections import Counter

import published as p
import pyarrow as pa
import pytest
from pyarrow import parquet
from small_tables import fields

from bert_jax import config as c
from bert_jax.errors import InputError
from bert_jax.tasks import TASKS
from bert_jax.tasks.classification import reading as classification
from bert_jax.tasks.faulty_records import Problems
from bert_jax.text import tables

TEXTS = ['He said "no".\nThen, left;', 'Café | 北京\tand', "it's a, b", 'one', '“two”', 'Three 3']
LABELS = ['up', 'down', 'up', 'left, or', None, 'down']
TABLE = [
  {'sentence': text, 'label': label, 'idx': 7 * k, 'sentence2': TEXTS[-k - 1]}
  for k, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True))
]
SCORES = 0.1, 2.0, 5.0, 3e-7, 1.25
SCORED = [
  {'sentence1': one, 'sentence2': other, 'score': score}
  for one, other, score in zip(TEXTS, TEXTS[1:], SCORES)
]
HELD = [['up'], [], ['down', 'left'], ['left', 'up'], ['down'], []]
SEVERAL = [{'sentence': text, 'label': held} for text, held in zip(TEXTS, HELD, strict=True)]
ASKED = [
  {'id': str(k), 'question': f'What is {k}?', 'context': f'{t} Ada went.', 'title': None,
   'answers': {'text': ['Ada', 'Ada went'][:k % 3], 'answer_start': [len(t) + 1] * (k % 3)}}
  for k, t in enumerate(TEXTS)
]  # fmt: skip
TAGGED = [
  {'id': str(k), 'tokens': text.split(), 'ner_tags': ['B-X', *['O'] * (len(text.split()) - 1)]}
  for k, text in enumerate(TEXTS)
]
TRANSLATED = [{'translation': {'en': t, 'de': u}} for t, u in zip(TEXTS, TEXTS[::-1], strict=True)]
NEGATIVES = [{'anchor': TEXTS[0], 'positive': TEXTS[1], 'negative': TEXTS[4]}]
NEGATIVES += [{'anchor': TEXTS[3], 'positive': TEXTS[5], 'negative': ''}]
GAP = [dict(zip(p.GAP, row, strict=True)) for row in (p.ANN, p.EVE, p.HE)]
SIMCSE = 'contrastive.anchor_column=sentence contrastive.positive_column='
CASES = {  # {name: (config, its fields, records)}
  'table': ('finetune.py:task=table', 'table.id_column=idx', TABLE),
  'pairs': ('finetune.py:task=mrpc', 'table.text_column=sentence table.labels=()', TABLE),
  'scores': ('finetune.py:task=stsb', '', SCORED),
  'several': ('finetune.py:task=table', 'table.multi_label=true', SEVERAL),
  'squad': ('finetune.py:task=squad2', '', ASKED),
  'ner': ('finetune.py:task=ner', '', TAGGED),
  'copa': ('finetune.py:task=copa', '', p.COPA),
  'gap': ('finetune.py:task=gap', '', GAP),
  'wsc': ('finetune.py:task=wsc', '', [p.SUE, p.SUE | {'label': False, 'idx': 4}]),
  'texts': ('contrastive.py:task=pairs', SIMCSE, TABLE),
  'triples': ('contrastive.py:task=triples', '', NEGATIVES),
  'en-de': ('translate.py:pair=en-de,size=small', '', TRANSLATED),
}


def config_of(name, spec):
  file, more, _ = CASES[name]
  config = c.load(f'configs/{file}', fields(f'data.train={spec} data.eval= {more}'))
  return TASKS[config.objective].resolve(config)


def rows_of(name, spec, tokenizer):
  """What identifies the rows of a spec: their arrays, and the labels, for which they stand."""
  config = config_of(name, spec)
  task = TASKS[config.objective]
  (source,) = task.sources(config, tokenizer, ('train',)).values()
  return source.fingerprint, list(task.texts(config)), config.get('table'), config.get('tagging')


def written(folder, kind, records):
  """The spec of some records in a format, by its suffix, or hf:."""
  table = pa.Table.from_pylist(records)
  path = folder / f'train{kind}'
  if kind == '.jsonl':
    return p.jsonl(path, *records)
  if kind == '.csv':
    with open(path, 'w', newline='') as file:
      rows = csv.DictWriter(file, records[0], extrasaction='ignore')
      rows.writeheader()
      rows.writerows(map(tables.row_of, records))
  elif kind == '.parquet':
    parquet.write_table(table, path, row_group_size=2)
  elif kind == '.arrow':
    with pa.ipc.new_file(str(path), table.schema) as writer:
      writer.write_table(table, 3)
  else:
    datasets = pytest.importorskip('datasets')
    datasets.disable_progress_bar()
    datasets.Dataset(table).save_to_disk(str(folder / 'saved'))
    return f'hf:{folder}/saved'
  return path


@pytest.mark.parametrize('kind', ['.parquet', '.arrow', 'hf:'])
@pytest.mark.parametrize('name', CASES)
def test_rows_are_those_of_lines_of_json(name, kind, tmp_path, letters):
  records = CASES[name][-1]
  wanted = rows_of(name, written(tmp_path, '.jsonl', records), letters)
  assert rows_of(name, written(tmp_path, kind, records), letters) == wanted
  assert rows_of(name, written(tmp_path, '.jsonl', records[::-1]), letters) != wanted


IN_CELLS = 'table', 'pairs', 'scores', 'several', 'squad', 'copa', 'gap', 'wsc'


@pytest.mark.parametrize('name', IN_CELLS)
def test_rows_are_those_of_a_csv_with_json_in_its_cells(name, tmp_path, letters):
  records = CASES[name][-1]
  wanted = rows_of(name, written(tmp_path, '.parquet', records), letters)
  assert rows_of(name, written(tmp_path, '.csv', records), letters) == wanted


def test_a_field_of_an_object_is_a_column(tmp_path, letters):
  nested = [{'sentence': {'of': row['sentence']}, 'label': row['label']} for row in TABLE]
  wanted = rows_of('table', written(tmp_path, '.jsonl', TABLE), letters)[1]
  for kind in ('.jsonl', '.parquet'):
    named = f'data.train={written(tmp_path, kind, nested)} table.text_column=sentence.of'
    config = c.load('configs/finetune.py:task=table', fields(named))
    assert list(TASKS['classification'].texts(config)) == wanted


def with_classes(records, **names):
  """A table whose columns hold the numbers of these names of classes, as the Hub writes them."""
  number = lambda x, known: [number(y, known) for y in x] if isinstance(x, list) else known.index(x)
  numbers = [row | {k: number(row[k], known) for k, known in names.items()} for row in records]
  of_class = {k: {'names': known, '_type': 'ClassLabel'} for k, known in names.items()}
  features = {
    k: {'feature': x, '_type': 'List'} if isinstance(records[0][k], list) else x
    for k, x in of_class.items()
  }
  about = json.dumps({'info': {'features': features}})
  return pa.Table.from_pylist(numbers).replace_schema_metadata({'huggingface': about})


def test_tags_and_labels_by_number_have_names(tmp_path, letters):
  wanted = rows_of('ner', written(tmp_path, '.jsonl', TAGGED), letters)
  path = tmp_path / 'train.parquet'
  parquet.write_table(with_classes(TAGGED, ner_tags=['I-X', 'B-X', 'O']), path)
  assert rows_of('ner', path, letters) == wanted
  parquet.write_table(parquet.read_table(path).replace_schema_metadata(), path)
  with pytest.raises(InputError, match='numbers have names where the schema'):
    rows_of('ner', path, letters)
  known = [row for row in TABLE if row['label']]
  wanted = rows_of('table', written(tmp_path, '.jsonl', known), letters)
  parquet.write_table(with_classes(known, label=['left, or', 'up', 'down']), path)
  assert rows_of('table', path, letters) == wanted


def test_what_is_held_out_is_a_share_of_the_training_split(tmp_path):
  """Of a set that has an evaluation split, too."""
  datasets, sets = pytest.importorskip('datasets'), {}
  for name in ('train', 'validation'):
    rows = [{'sentence': f'{name} {k}', 'label': 'up'} for k in range(20)]
    sets[name] = datasets.Dataset.from_list(rows)
  datasets.DatasetDict(sets).save_to_disk(str(tmp_path / 'saved'))
  given = f'data.train=hf:{tmp_path}/saved data.eval= table.eval_share=0.3'
  config = c.load('configs/finetune.py:task=table', fields(given))
  train, held = (list(classification.read(config, x, Problems(x))) for x in ('train', 'eval'))
  assert held and {x.texts[0] for x in train + held} == {f'train {k}' for k in range(20)}
  config.data.eval = f'hf:{tmp_path}/saved'
  assert len(list(classification.read(config, 'train', Problems('train')))) == 20


def test_null_cells_are_empty_texts_as_in_csv(tmp_path):
  counts = []
  for kind in ('.jsonl', '.parquet', '.csv'):
    holes = [row | {'sentence': row['sentence'] if k else None} for k, row in enumerate(TABLE)]
    path = written(tmp_path, kind, holes)
    config = c.load('configs/finetune.py:task=table', fields(f'data.train={path}'))
    problems = Problems('train')
    texts = [x.texts for x in classification.read(config, 'train', problems)]
    assert len(texts) == 5 and texts[0] == ('',) and all(text for (text,) in texts[1:])
    own = 'bytes', 'lines that end in CRLF (as in LF)'
    counts.append(Counter({k: n for k, n in problems.counts.items() if k not in own}))
  assert counts[0] == counts[1] == counts[2] and counts[0]['texts without a letter (kept)'] == 1
