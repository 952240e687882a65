"""Small files in the formats in which labelled data is published, and small models for them."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import drawn
from small_tables import fields

from bert_jax import config as c
from bert_jax.tasks.faulty_records import Problems

SMALL = """model.vocab_size=160 model.hidden_size=16 model.intermediate_size=24
  model.num_attention_heads=2 model.num_hidden_layers=1 batch_size=2 steps=2 epochs=0 eval.every=0
  checkpoint.every=0 log.tensorboard=false"""
ROWS = {  # the size of the rows of each kind of task
  'choice': 'data.seq_length=128 data.examples_per_row=8 task.max_length=32',
  'qa': 'data.seq_length=48 task.max_length=24 qa.max_query_length=8 qa.doc_stride=6 '
  'qa.max_answer_length=5',
  'coreference': 'data.seq_length=64 data.examples_per_row=2 checkpoint.best_metric=',
}


def config_of(kind, task, train, *more, evaluation='', small=True):
  """The config of a small model for a task of configs/finetune.py on these files."""
  sizes = (SMALL, ROWS[kind]) if small else ()
  data = f'data.train={train} data.eval={evaluation or train}'
  return c.load(f'configs/finetune.py:task={task},runlocal', fields(*sizes, data, *more))


def reader(kind, read):
  """read(spec, task, split, skip) -> (examples, problems), by a family's read(config, split, ..)"""

  def read_all(spec, task, split='train', skip=False):
    problems = Problems(split, skip)
    return list(read(config_of(kind, task, spec), split, problems)), problems

  return read_all


# -- files -----------------------------------------------------------------------------------------


def jsonl(path, *rows):
  path.write_text(''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows))
  return path


def whole(path, content):
  path.write_text(json.dumps(content, ensure_ascii=False, indent=1))
  return path


PASSAGE = {
  'id': 'high1.txt',
  'article': 'Ann met Eve in Rome.\nThey left late.',
  'questions': ['Who met Eve?', 'They _ in _ .'],
  'options': [['Ann', 'Al', 'Tom', 'Bob'], ['ate', 'met', 'sat', 'ran']],
  'answers': ['A', 'B'],
}
SWAG = ',video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3'
SWAG_ROW = '0,v,7,"She sits, then. She",She sits.,She,gold,"stands, and goes",eats,runs,flies'
READ = {'question': 'What did she do?', 'choice': ['Read.', 'Ran.', 'Sang.'], 'answer': 'Read.'}
ASKS = {'question': 'Who asks?', 'choice': ['M', 'F'], 'answer': 'M'}
DIALOGUE = [['M: Did you see a film?', 'F: No, I read.'], [READ, ASKS], '12-497']
COPA = [
  dict(zip(('premise', 'choice1', 'choice2', 'question', 'idx', 'label'), row))
  for row in (
    ('The man ran.', 'He was late.', 'He ate.', 'cause', 0, 0),
    ('It rained.', 'It was dry.', 'I got wet.', 'effect', 1, 1),
  )
]


def race(folder, *passages, split='train', level='high'):
  below = folder / split / level
  below.mkdir(parents=True, exist_ok=True)
  for k, passage in enumerate(passages, 1):
    whole(below / f'{k}.txt', passage)
  return folder


def swag(path, *lines, label=True):
  path.write_text('\n'.join([SWAG + ',label' * label, *lines]) + '\n')
  return path


def dream(path, *dialogues):
  return whole(path, dialogues)


GAP = ['ID', 'Text', 'Pronoun', 'Pronoun-offset', 'A', 'A-offset', 'A-coref', 'B', 'B-offset']
GAP += ['B-coref', 'URL']
TEXT = 'Ann met Eve when she was in Rome.'
ANN = ('g-1', TEXT, 'she', 17, 'Ann', 0, 'TRUE', 'Eve', 8, 'FALSE', 'u')
EVE = ('g-2', TEXT, 'she', 17, 'Ann', 0, 'FALSE', 'Eve', 8, 'TRUE', 'u')
HE = ('g-3', 'Tom saw Bob and Al with him.', 'him', 24, 'Tom', 0, 'FALSE', 'Bob', 8, 'FALSE', 'u')


def gap(path, *rows, header=GAP, ending='\n'):
  lines = ['\t'.join(map(str, row)) for row in (header, *rows)]
  path.write_bytes((ending.join(lines) + ending).encode())
  return path


def wsc(text, span1, span2, label=None, idx=0):
  named = {}
  for k, (name, index) in enumerate((span1, span2), 1):
    named |= {f'span{k}_text': name, f'span{k}_index': index}
  row = {'idx': idx, 'text': text, 'target': named}
  return row if label is None else row | {'label': label}


SUE = wsc('Sue saw Al and she left.', ('Sue', 0), ('she', 4), True)
CONTEXT = 'Élan  was born in (Rome), 12km from Ostia; he met 李白 there and left for Pisa in May.'


def asked(question, *answers, id='q1', context=CONTEXT, **more):
  """A question as in SQuAD's JSON."""
  found = [{'text': text, 'answer_start': context.find(text)} for text in answers]
  return {'id': id, 'question': question, 'answers': found} | more


RECORDS = [
  asked('He was born in?', 'Rome', id='a'),
  asked('How far?', '12km', '12km from Ostia', id='b'),
  asked('Who met him?', '李白', id='c'),
  asked('Who left for Pisa in May and who did not leave at all?', 'Élan', id='d'),
]
NONE = asked('Who is the king?', id='e', is_impossible=True)


def squad(path, *records, context=CONTEXT):
  content = {'version': '1.1', 'data': [{'paragraphs': [{'context': context, 'qas': records}]}]}
  path.write_text(json.dumps(content, ensure_ascii=False))
  return path


def columns(path, *sentences):
  """'Ada/B-PER old/O' and so on, tab-separated."""
  lines = (''.join(f'{x.replace("/", chr(9))}\n' for x in text.split()) for text in sentences)
  path.write_text('\n'.join(lines))
  return path


def tfds_set(folder, features, splits, name='tiny', config=''):
  """The spec of a data set of TFDS with these features and {split: rows}."""
  tfds = pytest.importorskip('tensorflow_datasets')
  tfds.disable_progress_bar()
  kinds = {key: tfds.features.Text() if kind is str else kind for key, kind in features.items()}

  class Tiny(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version('1.0.0')
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config)] if config else []

    def _info(self):
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(kinds))

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(rows) for split, rows in splits.items()}

    def _generate_examples(self, rows):
      yield from enumerate(rows)

  Tiny.name = name
  Tiny(data_dir=folder, file_format='array_record').download_and_prepare()
  return f'tfds:{folder}'


# -- models ----------------------------------------------------------------------------------------


def stacked(source):
  """All rows of a source as one batch."""
  return jax.tree.map(lambda *x: np.stack(x), *(source[i] for i in range(len(source))))


def telling(objective, seed=0):
  """Parameters large enough that what is read shows in the numbers."""
  return drawn(objective.init, seed=seed)


def predicted(objective, params, source):
  """What an objective predicts of a source and the terms of its loss, {name: Mean}."""
  batch = {k: jnp.asarray(x) for k, x in stacked(source).items() if k in objective.spec(1)}
  run = lambda p, b: (objective.predict(p, b), objective.terms(p, b, None, False)[0])
  return jax.device_get(jax.jit(run)(params, batch))
