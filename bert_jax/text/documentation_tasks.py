"""Examples of some tasks, made of the embedded documentation, so that a config can be tried.

A spec docs:NAME is a file in the format in which data of this task is published: docs:squad is JSON
like SQuAD's, docs:en-de a table of the columns en and de. Its examples to evaluate on, of other
modules, are docs:NAME:eval. The tasks can be learned, but are of no use beyond that: are the words
in order, which words are names in a program, which word is missing, which sentence comes next.
"""

import csv
import functools
import hashlib
import io
import json
import random
import re
import zlib
from collections.abc import Iterable
from typing import Any

from bert_jax.errors import InputError
from bert_jax.files import Path, make_folder, names, write_whole
from bert_jax.text import documentation

PREFIX = 'docs:'
SIZES = {'train': 2000, 'eval': 300}  # passages; one module in EVAL_SHARE is evaluated on
EVAL_SHARE = 10
SENTENCES, SHORTEST, LONGEST = 4, 4, 40  # of a passage; words of a sentence
_TOKEN = re.compile(r'\w+(?:[._]\w+)*|[^\w\s]')
_IN_A_PROGRAM = re.compile(r'\w+[._]\w+[\w.]*|[A-Z]\w*[a-z]\w*[A-Z]\w*')


def files(spec: str) -> list[Path]:
  """The file of docs:NAME, which is written into the user's cache if it is not there."""
  _, name, *rest = spec.split(':')
  split = ':'.join(rest) or 'train'
  languages = re.fullmatch(r'(\w+)-(\w+)', name)
  if not (name in WRITERS or languages) or split not in SIZES:
    raise InputError(
      f'{spec}: the documentation has no such examples; name a file of yours in data.train, or one '
      f'of {", ".join(WRITERS)}, en-de (any two names) behind {PREFIX}, and {PREFIX}NAME:eval.'
    )
  passages = _passages(split)
  version = hashlib.sha256(f'{name} {passages} {Path(__file__).read_text()}'.encode())
  folder = documentation.cache_folder() / f'docs-{name}-{split}-{version.hexdigest()[:16]}'
  if not names(folder):
    make_folder(folder)
    rng = random.Random(f'{name} {split}')
    if languages:  # stretches of documentation and their first sentences
      rows = [(' '.join(sentences), sentences[0]) for _, sentences in passages]
      file, content = 'pairs.csv', _table(languages.groups(), rows)
    else:
      file, content = WRITERS[name](passages, rng)
    write_whole(folder / file, content)
  return sorted(folder.iterdir())


@functools.cache
def _passages(split: str) -> list[tuple[str, list[str]]]:
  """(module, sentences that follow one another in its documentation), of the modules of a split."""
  passages = []
  for module, sentences in documentation.documents():
    is_eval = zlib.crc32(module.encode()) % EVAL_SHARE == 0
    whole = [x for x in sentences if SHORTEST <= len(x.split()) <= LONGEST and x[0].isalpha()]
    if is_eval == (split == 'eval'):
      for i in range(0, len(whole) - SENTENCES + 1, SENTENCES):
        passages.append((module, whole[i : i + SENTENCES]))
  random.Random(0).shuffle(passages)
  return passages[: SIZES[split]]


def _table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
  out = io.StringIO()
  csv.writer(out, lineterminator='\n').writerows([header, *rows])
  return out.getvalue()


def _labels(passages, rng):
  """Are the words of a sentence in order?"""
  rows = []
  for _, sentences in passages:
    words, in_order = sentences[0].split(), rng.random() < 0.5
    if not in_order:
      rng.shuffle(words)
    rows.append([' '.join(words), int(in_order)])
  return 'table.csv', _table(['sentence', 'label'], rows)


def _tags(passages, rng):
  """Which tokens are names in a program?"""
  lines = []
  for _, sentences in passages:
    lines += ['-DOCSTART- O', '']
    for token in _TOKEN.findall(sentences[0]):
      lines.append(f'{token} {"B-NAME" if _IN_A_PROGRAM.fullmatch(token) else "O"}')
    lines.append('')
  return 'tagged.txt', '\n'.join(lines) + '\n'


def _spans(passages, rng):
  """Which word of a sentence of the passage is left out?"""
  articles = []
  for number, (module, sentences) in enumerate(passages):
    context, asked = ' '.join(sentences), rng.choice(sentences)
    word = rng.choice([*re.finditer(r'\w+', asked)])
    question = f'{asked[: word.start()]}what{asked[word.end() :]}'
    answer = {'text': word[0], 'answer_start': context.index(asked) + word.start()}
    qa = {'id': str(number), 'question': question, 'answers': [answer]}
    articles.append({'title': module, 'paragraphs': [{'context': context, 'qas': [qa]}]})
  return 'squad.json', json.dumps({'version': 'docs', 'data': articles})


def _pairs(passages, rng):
  """Which sentence follows a sentence of a module?"""
  rows = [[f'{name.rpartition(".")[2]}: {first}', second] for name, (first, second, *_) in passages]
  return 'pairs.csv', _table(['anchor', 'positive'], rows)


# {name: a function of (passages, random numbers) that gives (name of a file, its text)}
WRITERS = dict(table=_labels, sst2=_labels, ner=_tags, conll2003=_tags, squad=_spans, pairs=_pairs)
