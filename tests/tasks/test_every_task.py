"""What holds for each family of labelled examples: packing changes no answer, runs, files."""

import json

import jax
import numpy as np
import published as p
import pytest
from small_tables import WORDS
from small_tables import fields as small_fields

from bert_jax import config as c
from bert_jax import sharding, step
from bert_jax.run.inputs import read_inputs
from bert_jax.tasks import TASKS

FOUR = 'data.examples_per_row=4'
TEXT_ROWS = 'data.seq_length=32 data.examples_per_row=6 task.max_length=14'
p.ROWS |= {'tagging': f'{TEXT_ROWS} tokenizer.do_lower_case=false', 'classification': TEXT_ROWS}


def write_conll(folder, documents):
  rng = np.random.default_rng(0)
  tags = [
    f'{rng.choice(["Ada", "old", "unhappy"])}/{rng.choice(["O", "B-X", "I-X"])}' for _ in range(80)
  ]
  sizes = np.cumsum([0, 30, 1, 5, 2, 9, 17, 3, 13])
  sentences = [' '.join(tags[a:b]) for a, b in zip(sizes, sizes[1:])]
  return p.columns(folder / 'a.conll', *['-DOCSTART-/O'] * documents, *sentences)


def write_pos(folder, *, rest='\t_' * 6):
  words = zip(['Ada', 'old', 'unhappy', 'river'] * 3, ['PROPN', 'ADJ', 'ADJ', 'NOUN'] * 3)
  lines = ''.join(f'{k}\t{word}\t{word}\t{tag}{rest}\n' for k, (word, tag) in enumerate(words, 1))
  (folder / 'a.conllu').write_text(f'# text = x\n{lines}\n' * 5)
  return folder / 'a.conllu'


def write_race(folder):
  p.race(folder, p.PASSAGE)
  p.race(folder, p.PASSAGE, split='dev')
  return p.race(folder, p.PASSAGE | {'id': 'middle1.txt'}, split='dev', level='middle')


def write_cmrc(folder):
  context = '他在北京。后去长安。'
  records = [p.asked('他在哪里？', '北京', context=context, id=x) for x in 'abcd']
  return p.squad(folder / 'a.json', *records, context=context)


def write_table(folder):
  rng = np.random.default_rng(0)
  texts = (' '.join(rng.choice(WORDS, n)) for n in rng.integers(1, 20, 30))
  lines = ''.join(f'{text}\t{rng.integers(2)}\n' for text in texts)
  (folder / 'a.tsv').write_text(f'sentence\tlabel\n{lines}')
  return folder / 'a.tsv'


def write_choice(folder):
  return p.dream(folder / 'a.json', p.DIALOGUE, [['F: Hi.'], p.DIALOGUE[1][::-1], 'b'])


def write_wsc(folder):
  return p.jsonl(folder / 'a.jsonl', p.SUE, p.SUE | {'label': False, 'idx': 1})


CASES = {  # {name: (family, task, write(folder) -> its file, fields)}
  'choice': ('choice', 'dream', write_choice, 'data.seq_length=256'),
  'race': ('choice', 'race', write_race, ''),
  'copa': ('choice', 'copa', lambda folder: p.jsonl(folder / 'a.jsonl', *p.COPA), ''),
  'gap': ('coreference', 'gap', lambda folder: p.gap(folder / 'a.tsv', p.ANN, p.HE, p.EVE), FOUR),
  'wsc': ('coreference', 'wsc', write_wsc, ''),
  'squad2': ('qa', 'squad2', lambda folder: p.squad(folder / 'a', *p.RECORDS, p.NONE), FOUR),
  'cmrc': ('qa', 'cmrc', write_cmrc, ''),
  'ner': ('tagging', 'ner', lambda folder: write_conll(folder, 0), ''),
  'conll2003': ('tagging', 'conll2003', lambda folder: write_conll(folder, 1), ''),
  'pos': ('tagging', 'pos', write_pos, ''),
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


@pytest.mark.parametrize('name', ['choice', 'gap', 'squad2', 'conll2003', 'sst2'])
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
    of_loss = terms[config.objective]
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
  term = lambda params, batch: objective.terms(params, batch, None, False)[0][config.objective]
  loss = jax.jit(jax.value_and_grad(lambda params, batch: term(params, batch).total))
  total, _ = loss(params, both)
  assert float(total) == pytest.approx(float(of_loss.total), rel=1e-5)
  total, gradient = loss(params, {k: np.zeros_like(x) for k, x in both.items()})
  assert total == 0 and not any(np.any(x) for x in jax.tree.leaves(gradient))


FILES = {
  'race': ['predictions.tsv'],
  'copa': ['predictions.tsv', 'COPA.jsonl'],
  'gap': ['gap.tsv'],
  'wsc': ['WSC.jsonl', 'cluewsc_predict.json'],
  'cmrc': ['predictions.json', 'nbest_predictions.json'],
  'conll2003': ['predictions.conll', 'conlleval.txt'],
  'pos': ['predictions.conll', 'tags.txt'],
}


@pytest.mark.parametrize('name', ['race', 'gap', 'conll2003', 'cmrc'])
def test_a_run_can_begin(name, tmp_path):
  """Its rows are what the objective expects, and its step can be traced."""
  inputs = read_inputs(made(name, tmp_path), tmp_path / 'run')
  program = step.program(inputs.config, inputs.objective, inputs.mesh, inputs.timeline)
  batch, form = inputs.batches.at(0), lambda x: (x.shape, x.dtype)
  assert jax.tree.map(form, batch) == jax.tree.map(form, program.batch)
  with jax.set_mesh(inputs.mesh), sharding.activation_rules():
    state, metrics = jax.eval_shape(program.train_step, program.state, batch, program.constants)
  assert jax.tree.map(form, state) == jax.tree.map(form, program.state)
  assert {*inputs.objective.loss_weights} <= metrics.keys()


@pytest.mark.parametrize('name', FILES)
def test_files_of_answers(name, tmp_path, letters):
  config = made(name, tmp_path)
  task = TASKS[config.objective]
  objective, source = task.objective(config, letters), task.sources(config, letters, ('eval',))
  source = source['eval']
  answers = source.answers(p.predicted(objective, p.telling(objective), source)[0])
  files, metrics = source.files(answers), source.score(answers)
  assert {*FILES[name]} <= {*files}
  lines = files[FILES[name][0]].splitlines()
  if name in ('race', 'copa'):
    assert [x.split('\t') for x in lines[1:]] == [[a['id'], str(a['prediction'])] for a in answers]
    assert metrics['choice_accuracy'] == np.mean(
      [a['prediction_text'] == a['gold_text'] for a in answers]
    )
  elif name == 'gap':
    shown = {'A': 'TRUE\tFALSE', 'B': 'FALSE\tTRUE', 'neither': 'FALSE\tFALSE'}
    assert lines == [f'{a["id"]}\t{shown[a["prediction"]]}' for a in answers]
  elif name == 'wsc':
    labels = [{'idx': k, 'label': a['prediction'].title()} for k, a in enumerate(answers)]
    assert list(map(json.loads, lines)) == labels and metrics['coreference_accuracy'] == 0.5
  elif name == 'cmrc':
    assert json.loads('\n'.join(lines)) == {a['id']: a['prediction'] for a in answers}
  else:
    first = [
      f'{x} {y} {z}' for x, y, z in zip(*(answers[0][k] for k in ('tokens', 'gold', 'prediction')))
    ]
    assert lines[: len(first) + 1] == [*first, '']


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
