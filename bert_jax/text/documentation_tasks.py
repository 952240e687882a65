"""Examples of every task, made of the embedded documentation, so that each config can be tried.

A spec docs:NAME is a file in the format in which data of this task is published: docs:squad is JSON
like SQuAD's, docs:en-de a table of the columns en and de. Its examples to evaluate on, of other
modules, are docs:NAME:eval. The tasks can be learned, but are of no use beyond that: what comes
next, which word is missing, which words are names in a program.
"""

import csv
import functools
import hashlib
import io
import itertools
import json
import random
import re
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bert_jax.errors import InputError
from bert_jax.files import Path, make_folder, names, write_whole
from bert_jax.text import documentation
from bert_jax.text.values import json_lines

PREFIX = 'docs:'
SIZES = {'train': 2000, 'eval': 300}  # passages
EVAL_SHARE = 10  # one module in so many is evaluated on
SENTENCES, SHORTEST, LONGEST = 4, 4, 40  # of a passage; words of a sentence
_TOKEN = re.compile(r'\w+(?:[._]\w+)*|[^\w\s]')
_IN_A_PROGRAM = re.compile(r'\w+[._]\w+[\w.]*|[A-Z]\w*[a-z]\w*[A-Z]\w*')
# {name: the columns of its table; - if there is no header}
TABLES = {
  **dict.fromkeys(('table', 'sst2'), 'sentence label'),
  'cola': '- source label note sentence',
  **dict.fromkeys(('mrpc', 'mnli', 'rte', 'wnli', 'ocnli'), 'sentence1 sentence2 label'),
  'stsb': 'sentence1 sentence2 score',
  'qqp': 'question1 question2 is_duplicate',
  'qnli': 'question sentence label',
  **dict.fromkeys(('xnli', 'pawsx'), '- sentence1 sentence2 label'),
}
NLI = 'entailment', 'neutral', 'contradiction'
LABELS = dict.fromkeys(('mnli', 'xnli', 'ocnli'), NLI)
LABELS |= dict.fromkeys(('qnli', 'rte'), ('entailment', 'not_entailment', 'not_entailment'))


class Passage(NamedTuple):
  module: str  # whose documentation has it
  sentences: Sequence[str]


def files(spec: str) -> list[Path]:
  """The files of docs:NAME, which are written into the user's cache if they are not there."""
  _, name, *rest = spec.split(':')
  split = ':'.join(rest) or 'train'
  write = WRITERS.get(spec.removeprefix(PREFIX)) or WRITERS.get(name)
  if re.fullmatch(r'\w+-\w+', name):
    write = functools.partial(_parallel, name.split('-'))
  if not write or split not in SIZES:
    known = f'{", ".join(WRITERS)}, en-de (any two names), and {PREFIX}NAME:eval'
    raise InputError(f'{spec} is no task of the embedded documentation; there are {known}.')
  passages = _passages(split)
  version = hashlib.sha256(f'{name} {passages} {Path(__file__).read_text()}'.encode())
  folder = documentation.cache_folder() / f'docs-{name}-{split}-{version.hexdigest()[:16]}'
  if not names(folder):
    make_folder(folder)
    made = list(write(passages, random.Random(f'{name} {split}')))
    for file, content in made[::-1]:  # the first one last, by which the folder is known to be whole
      write_whole(folder / file, content)
  return sorted(folder.iterdir())


@functools.cache
def _passages(split):
  """Stretches of sentences that follow one another, of the modules of a split."""
  out = []
  for module, sentences in documentation.documents():
    is_eval = zlib.crc32(module.encode()) % EVAL_SHARE == 0
    whole = [x for x in sentences if SHORTEST <= len(x.split()) <= LONGEST and x[0].isalpha()]
    if is_eval == (split == 'eval'):
      starts = range(0, len(whole) - SENTENCES + 1, SENTENCES)
      out += [Passage(module, whole[i : i + SENTENCES]) for i in starts]
  random.Random(0).shuffle(out)
  return out[: SIZES[split]]


def _rows(kind, rows):
  out = io.StringIO()
  csv.writer(out, 'excel-tab' if kind == 'tsv' else 'excel', lineterminator='\n').writerows(rows)
  return out.getvalue()


def _table(name, passages, rng):
  columns = TABLES[name].split()
  has_header, columns = columns[0] != '-', [x for x in columns if x != '-']
  is_pair = columns[1].startswith(('sentence', 'question'))
  labels, rows = LABELS.get(name, ('1', '0', '0')), []
  for passage in passages:
    kind = rng.randrange(3)  # of the second sentence: it is next, of the same passage, of another
    other = passage if kind < 2 else rng.choice(passages)
    first, second = passage.sentences[0], other.sentences[(1, 3, 3)[kind]]
    if not is_pair:
      words = first.split()
      rng.shuffle(words)
      first, kind = (' '.join(words), 1) if kind else (first, 0)  # are the words in order?
    shared = len({*first.split()} & {*second.split()}) / len({*first.split(), *second.split()})
    values = dict.fromkeys(('label', 'is_duplicate'), labels[kind])
    values |= {'score': round(5 * shared, 2), 'source': 'docs', 'note': ''}
    texts = iter((first, second))
    rows.append([values[x] if x in values else next(texts) for x in columns])
  yield 'table.tsv', _rows('tsv', [columns] * has_header + rows)


def _tagged(passages, rng, is_conllu=False):
  out = []
  for passage in passages:
    out += [] if is_conllu else ['-DOCSTART- O', '']
    for i, token in enumerate(_TOKEN.findall(passage.sentences[0]), 1):
      is_name, is_word = bool(_IN_A_PROGRAM.fullmatch(token)), token[0].isalpha()
      kind = 'PROPN' if is_name else 'X' if is_word else 'NUM' if token[0].isdigit() else 'PUNCT'
      line = f'{token} {"B-NAME" if is_name else "O"}'
      out.append('\t'.join([str(i), token, '_', kind, *'______']) if is_conllu else line)
    out.append('')
  yield 'tagged.conllu' if is_conllu else 'tagged.txt', '\n'.join(out) + '\n'


def _questions(passages, rng, some=False):
  """Of a sentence of the passage one word is asked for. some: a third have no answer."""
  articles = []
  for number, (module, sentences) in enumerate(passages):
    context, asked = ' '.join(sentences), rng.choice(sentences)
    word = rng.choice([*re.finditer(r'\w+', asked)])
    start = context.index(asked) + word.start()
    question = f'{asked[: word.start()]}what{asked[word.end() :]}'
    if is_impossible := some and number % 3 == 0:
      question = rng.choice(passages).sentences[0]
    answers = [] if is_impossible else [{'text': word[0], 'answer_start': start}]
    qa = {'id': str(number), 'question': question, 'answers': answers}
    qa |= {'is_impossible': is_impossible} if some else {}
    articles.append({'title': module, 'paragraphs': [{'context': context, 'qas': [qa]}]})
  yield 'squad.json', json.dumps({'version': 'docs', 'data': articles})


def _choices(passages, rng, number):
  """Yields (passage, what may follow its first sentences, which does)."""
  for passage in passages:
    choices = [x.sentences[-1] for x in rng.sample(passages, number)]
    gold = rng.randrange(number)
    choices[gold] = passage.sentences[-1]
    yield passage, choices, gold


def _race(passages, rng):
  for number, (passage, choices, gold) in enumerate(_choices(passages[:200], rng, 4)):
    asked = {'questions': ['What comes next?'], 'options': [choices], 'answers': ['ABCD'[gold]]}
    record = {'article': ' '.join(passage.sentences[:-1]), 'id': f'{number}.txt', **asked}
    yield f'{number}.txt', json.dumps(record)


def _swag(passages, rng):
  rows = [['sent1', 'sent2', *(f'ending{k}' for k in range(4)), 'label']]
  for passage, choices, gold in _choices(passages, rng, 4):
    rows.append([passage.sentences[0], '', *choices, gold])
  yield 'swag.csv', _rows('csv', rows)


def _dream(passages, rng, number):
  out = []
  for i, (passage, choices, gold) in enumerate(_choices(passages, rng, number)):
    asked = {'question': 'What comes next?', 'choice': choices, 'answer': choices[gold]}
    out.append([list(passage.sentences[:-1]), [asked], str(i)])
  yield 'dream.json', json.dumps(out)


def _copa(passages, rng):
  def record(i, passage, choices, gold):
    texts = {'premise': passage.sentences[-2], 'choice1': choices[0], 'choice2': choices[1]}
    return texts | {'question': 'effect', 'label': gold, 'idx': i}

  every = enumerate(_choices(passages, rng, 2))
  yield 'copa.jsonl', json_lines(record(i, *chosen) for i, chosen in every)


def _pronouns(passages, rng):
  """Yields (text, (name A, where), (name B, where), where "it" is, is A meant?): A or B goes on."""
  for a, b in itertools.pairwise(passages):
    is_a = rng.random() < 0.5
    one, two = (x.module.rpartition('.')[2] for x in (a, b))
    text = f'{one} says : {a.sentences[0]} '
    at_b = len(text)
    text += f'{two} says : {b.sentences[0]} Then '
    meant = (a if is_a else b).sentences[1]
    yield f'{text}it says : {meant}', (one, 0), (two, at_b), len(text), is_a


def _gap(passages, rng):
  columns = 'ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref'
  every = enumerate(_pronouns(passages, rng))
  rows = (
    [f'docs-{i}', text, 'it', at, *a, is_a, *b, not is_a] for i, (text, a, b, at, is_a) in every
  )
  yield 'gap.tsv', _rows('tsv', [columns.split(), *rows])


def _wsc(passages, rng):
  def record(i, text, a, b, at, is_a):
    word = lambda place: len(text[:place].split())
    target = {'span1_text': a[0], 'span1_index': word(a[1])}
    target |= {'span2_text': 'it', 'span2_index': word(at)}
    return {'text': text, 'target': target, 'label': is_a, 'idx': i}

  yield 'wsc.jsonl', json_lines(record(i, *x) for i, x in enumerate(_pronouns(passages, rng)))


def _vectors(passages, rng, negatives=0):
  header = ['anchor', 'positive', 'negative'][: 2 + negatives]
  rows = [header]
  for module, (first, second, *_) in passages:
    anchor = f'{module.rpartition(".")[2]}: {first}'
    others = {x.sentences[3] for x in rng.sample(passages, 2)} - {second}
    rows.append([anchor, second, *sorted(others)][: len(header)])
  yield 'pairs.csv', _rows('csv', rows)


def _texts(passages, rng):
  yield 'texts.txt', '\n'.join(x for passage in passages for x in passage.sentences) + '\n'


def _parallel(columns, passages, rng):
  rows = ((' '.join(x.sentences), x.sentences[0]) for x in passages)
  yield 'pairs.csv', _rows('csv', [columns, *rows])


# {name: a function of (passages, random numbers) that yields (name of a file, its text)}
WRITERS: dict[str, Callable] = {
  **{name: functools.partial(_table, name) for name in TABLES},
  **dict.fromkeys(('ner', 'conll2003', 'panx', 'weibo'), _tagged),
  'pos': functools.partial(_tagged, is_conllu=True),
  **dict.fromkeys(('squad', 'tydiqa', 'xquad', 'cmrc'), _questions),
  'squad2': functools.partial(_questions, some=True),
  'race': _race,
  'swag': _swag,
  'dream': functools.partial(_dream, number=3),
  'c3': functools.partial(_dream, number=4),
  **dict.fromkeys(('copa', 'xcopa'), _copa),
  'gap': _gap,
  'wsc': _wsc,
  'pairs': _vectors,
  'triples': functools.partial(_vectors, negatives=1),
  'simcse': _texts,
  'simcse:eval': functools.partial(_table, 'stsb'),
}
