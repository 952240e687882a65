"""What holds for each family of labelled examples: packing changes no answer, encodings."""

import json

import jax
import numpy as np
import published as p
import pytest
from small_tables import WORDS
from small_tables import fields as small_fields

from bert_jax import config as c
from bert_jax.tasks import TASKS

FOUR = 'data.examples_per_row=4'
TEXT_ROWS = 'data.seq_length=32 data.examples_per_row=6 task.max_length=14'
p.ROWS |= {'tagging': f'{TEXT_ROWS} tokenizer.do_lower_case=false', 'classification': TEXT_ROWS}


def write_conll(folder):
  rng = np.random.default_rng(0)
  draw = lambda *of: rng.choice(of)
  tags = [f'{draw("Ada", "old", "unhappy")}/{draw("O", "B-X", "I-X")}' for _ in range(80)]
  sizes = np.cumsum([0, 30, 1, 5, 2, 9, 17, 3, 13])
  sentences = [' '.join(tags[a:b]) for a, b in zip(sizes, sizes[1:])]
  return p.columns(folder / 'a.conll', '-DOCSTART-/O', *sentences)


def write_table(folder):
  rng = np.random.default_rng(0)
  texts = (' '.join(rng.choice(WORDS, n)) for n in rng.integers(1, 20, 30))
  lines = ''.join(f'{text}\t{rng.integers(2)}\n' for text in texts)
  (folder / 'a.tsv').write_text(f'sentence\tlabel\n{lines}')
  return folder / 'a.tsv'


def write_choice(folder):
  return p.dream(folder / 'a.json', p.DIALOGUE, [['F: Hi.'], p.DIALOGUE[1][::-1], 'b'])


CASES = {  # {name: (family, task, write(folder) -> its file, fields)}
  'choice': ('choice', 'dream', write_choice, 'data.seq_length=256'),
  'gap': ('coreference', 'gap', lambda folder: p.gap(folder / 'a.tsv', p.ANN, p.HE, p.EVE), FOUR),
  'squad2': ('qa', 'squad2', lambda folder: p.squad(folder / 'a', *p.RECORDS, p.NONE), FOUR),
  'conll2003': ('tagging', 'conll2003', write_conll, ''),
  'sst2': ('classification', 'sst2', write_table, ''),
}


def made(name, folder, *more):
  kind, task, write, fields = CASES[name]
  config = p.config_of(kind, task, write(folder), fields, *more)
  return TASKS[config.objective].resolve(config)


def like(one, other, path=''):
  """Answers are the same, numbers to 1e-4."""
  if isinstance(one, dict):
    assert one.keys() == other.keys(), path
    one, other = list(one.values()), list(other.values())
  if isinstance(one, list | tuple):
    assert len(one) == len(other), path
    for k, pair in enumerate(zip(one, other)):
      like(*pair, f'{path}.{k}')
  else:
    assert one == (pytest.approx(other, abs=1e-4) if isinstance(one, float) else other), path


@pytest.mark.parametrize('name', CASES)
def test_packed_rows_answer_what_single_ones_do(name, tmp_path, letters):
  """The loss and the accuracy of the objective are the means of the answers; an empty row beside
  them changes nothing, and one alone has no NaN."""
  params, found = None, []
  for fields in ('', f'data.examples_per_row={3 if name == "choice" else 1}'):
    config = made(name, tmp_path, fields)
    task = TASKS[config.objective]
    objective, source = task.objective(config, letters), task.sources(config, letters, ('eval',))
    source, params = source['eval'], params or p.telling(objective)
    outputs, terms = p.predicted(objective, params, source)
    found.append((len(source), source.answers(outputs)))
    of_loss = terms['cross_entropy']
    if config.objective != 'qa':  # a window is an example there, an answer is of several
      total = sum(answer['loss'] for answer in found[-1][1])
      assert float(of_loss.value) == pytest.approx(total / float(of_loss.weight), abs=1e-5)
      accuracy = next(x for x in terms if x.endswith('accuracy'))
      score = source.score(found[-1][1])[accuracy]
      assert float(terms[accuracy].value) == pytest.approx(score, abs=1e-6)
  (few, packed), (more, alone) = found
  assert few < more and len(packed) == source.size
  like(packed, alone)
  assert len({json.dumps(answer['probability']) for answer in packed}) > 1
  rows = {k: x for k, x in p.stacked(source).items() if k in objective.spec(1)}
  both = {k: np.concatenate([x, np.zeros_like(x)]) for k, x in rows.items()}
  term = lambda params, batch: objective.terms(params, batch, None, False)[0]['cross_entropy']
  loss = jax.jit(jax.value_and_grad(lambda params, batch: term(params, batch).total))
  total, _ = loss(params, both)
  assert float(total) == pytest.approx(float(of_loss.total), rel=1e-5)
  total, gradient = loss(params, {k: np.zeros_like(x) for k, x in both.items()})
  assert total == 0 and not any(np.any(x) for x in jax.tree.leaves(gradient))


IN_PART = {  # {name: (family, task, its file, its text)}; of three examples one has no gold
  'table': ('classification', 'sst2', 'a.csv', 'sentence,label\na b,0\nb,\nc c c,1\n'),
  'swag': (
    'choice',
    'swag',
    'a.csv',
    f'{p.SWAG},label\n' + ''.join(f'{p.SWAG_ROW},{x}\n' for x in ('1', '', '0')),
  ),
  'questions': ('qa', 'squad', 'a.csv', 'question,context,answer\na?,b c,c\nb?,c a,\nc?,a a b,b\n'),
  'words': ('tagging', 'ner', 'a.csv', 'sentence_id,words,labels\n1,a,O\n1,b,B-X\n2,c,\n3,b,O\n'),
}


@pytest.mark.parametrize('name', IN_PART)
def test_examples_without_gold_are_not_counted_as_scored(name, tmp_path, letters):
  kind, task, file, text = IN_PART[name]
  (tmp_path / file).write_text(text)
  config = TASKS[kind].resolve(p.config_of(kind, task, tmp_path / file, FOUR * (kind != 'choice')))
  objective = TASKS[kind].objective(config, letters)
  source = TASKS[kind].sources(config, letters, ('eval',))['eval']
  answers = source.answers(p.predicted(objective, p.telling(objective), source)[0])
  assert sum('gold' in answer for answer in answers) == source.scored == 2 < source.size == 3


LABELLED = 'table.text_column=text table.label_column=label'
ENCODED = {  # {name: (config, its file, its text, fields)}
  'corpus': ('pretrain.py:runlocal', 'a.txt', 'Größe läuft .\nJa .\n', ''),
  'jsonl': ('pretrain.py:runlocal', 'a.jsonl', '{"text": "Größe läuft."}\n', ''),
  'table': ('finetune.py:task=table', 'a.csv', 'text,label\nGröße,x\n', LABELLED),
  'ner': ('finetune.py:task=ner', 'a.conll', 'Größe O\nñandú B-X\n', ''),
  'words': ('finetune.py:task=ner', 'a.csv', 'word,tag,sentence_id\nGröße,O,1\n', ''),
  'squad': ('finetune.py:task=squad', 'a.json', '', ''),
  'questions': ('finetune.py:task=squad', 'a.csv', 'question,context,answer\nGröße?,Öl,Öl\n', ''),
  'swag': ('finetune.py:task=swag', 'a.csv', f'{p.SWAG},label\n{p.SWAG_ROW},1\n', ''),
  'dream': ('finetune.py:task=dream', 'a.json', '', ''),
  'gap': ('finetune.py:task=gap', 'a.tsv', '', ''),
  'pairs': ('contrastive.py:task=pairs,runlocal', 'a.tsv', 'anchor\tpositive\nÄ\tÖl\n', ''),
  'lines': ('contrastive.py:task=simcse,runlocal', 'a.txt', 'Größe\nñandú\n', ''),
  'parallel': ('translate.py:runlocal', 'a.en', 'Größe\nñandú\n', ''),
}


@pytest.mark.parametrize('name', ENCODED)
def test_every_reader_takes_the_encoding_that_is_named(name, tmp_path):
  config, file, text, fields = ENCODED[name]
  if name == 'squad':
    text = p.squad(tmp_path / file, *p.RECORDS).read_text()
  elif name == 'dream':
    text = p.dream(tmp_path / file, p.DIALOGUE).read_text()
  elif name == 'gap':
    text = p.gap(tmp_path / file, p.ANN).read_text()
  found = []
  for encoding in ('utf-8', 'utf-16-le'):
    (tmp_path / encoding).mkdir()
    path = tmp_path / encoding / file
    path.write_text(text, encoding)
    spec = f'en={path},de={path}' if name == 'parallel' else path
    own = f'data.train={spec} data.eval={spec} data.text_encoding={encoding}'
    loaded = c.load(f'configs/{config}', small_fields(own, fields))
    found.append([*TASKS[loaded.objective].texts(loaded)])
  assert found[0] == found[1] != []
