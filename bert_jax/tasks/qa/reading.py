"""Reads questions in SQuAD's JSON, from tables, and from TFDS data sets like `squad`.

SQuAD 1.1 and 2.0 have this format, and so do TyDi QA's gold passages, XQuAD, CMRC 2018 and MLQA
(scored here like SQuAD 1.1; its official script knows the articles of its languages).
A table (.csv, .tsv, .jsonl, .parquet, see text/tables.py) has the columns question, context and
answer (a text; answer_start, where it begins), or answers as Hugging Face's data sets have it,
{"text": [...], "answer_start": [...]}; and id, if there is one.
A spec is a file, a glob, a folder (the one file in it whose name contains `train`, or `dev` or
`valid`), tfds:squad/v1.1, hf:squad_v2, or several of these: NAME=SPEC,NAME=SPEC.

An answer that is not at its offset, or has none, is mended if the context has it exactly once, else
it is not learnt but counts in scores. A question with an empty list of answers, or with
is_impossible, is one that cannot be answered; with qa.unanswerable=false it is
predicted, but not learnt and not scored, as one without such a list.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import quoted
from bert_jax.tasks.faulty_records import Problems, Unusable, reads
from bert_jax.text import files, tables
from bert_jax.text.values import NotJson, finite_number, json_value

HINT = 'a table of questions has the columns question, context, answer; call them so'
FILE = "SQuAD's JSON is an object with data[..].paragraphs[..].qas[..]"
LAYOUT = 'a question has id, question and answers, [{"text", "answer_start"}, ..], and a context'
UNREADABLE = 'unreadable questions'  # a kind of fault


class Question(NamedTuple):
  where: str
  id: str
  text: str
  context: str
  gold: tuple[str, ...] | None  # its answers; (): it has none; None: not known
  starts: tuple[int, ...]  # the character of the context where each answer begins; -1: not known


@reads('questions', name="SQuAD's JSON, or tfds:squad/v1.1")
def questions(config: ConfigDict, split: str, problems: Problems) -> Iterator[Question]:
  """Yields the Questions of a split; unusable ones go to `problems`."""
  for _, spec in files.parts(config.data[split]):
    for where, context, record in records(spec, split, problems):
      with problems.of_record(where, LAYOUT, UNREADABLE):
        question = _question(where, context, record, problems)
        if question.gold is None or not (question.gold or config.qa.unanswerable):
          problems.note('questions without an answer (not learnt, not scored)', where)
        yield question


def records(spec: str, split: str, problems: Problems) -> Iterator[tuple[str, Any, Any]]:
  """Yields (where, context, record of a question as in SQuAD's JSON) of all files of a spec."""
  if files.is_named(spec):
    yield from _of_table(spec, problems)
    return
  for path in files.split_files(spec, split, one=True):
    if files.suffix(path) in tables.SUFFIXES and files.suffix(path) != '.json':
      yield from _of_table(str(path), problems)
    else:
      yield from _of_json(path, problems)


def _of_table(spec, problems):
  for where, row in problems.rows(spec):
    record: dict[str, Any] = {'id': where} | row
    with problems.of_record(where):
      question, context = problems.columns(row, ('question', 'context'), where, HINT)
      record['question'] = question
      if 'answers' in row:
        try:
          record['answers'] = json_value(row['answers'])
        except NotJson as error:
          raise Unusable(f'column answers is {error}', UNREADABLE) from None
      elif 'answer' in tables.columns_of(row):
        text, start = row.get('answer', ''), row.get('answer_start')
        record['answers'] = [{'text': text, 'answer_start': start}] if text.strip() else []
      yield where, context, record


def _of_json(path, problems):
  """Yields (where, context, data[a].paragraphs[p].qas[q]) of a file in SQuAD's JSON."""
  content = problems.json(path, path.name)
  if content is None:
    return
  with problems.of_record(path.name, FILE, 'unreadable files'):
    for a, article in enumerate(content['data']):
      for p, paragraph in enumerate(article['paragraphs']):
        for q, record in enumerate(paragraph['qas']):
          where = f'{path.name}:data[{a}].paragraphs[{p}].qas[{q}]'
          yield where, paragraph['context'], record


def _question(where, context, record, problems):
  name, text = str(record['id']), record['question']
  if not isinstance(text, str) or not isinstance(context, str):
    raise TypeError(f'{quoted(context)} or {quoted(text)} is no text')
  answers = [] if is_impossible(record) else _answers(record.get('answers'))
  gold, starts = [], []
  for answer, start in answers or ():
    if answer.strip():
      gold.append(answer)
      starts.append(_place(where, context, answer, start, problems))
  is_known = bool(gold) or answers == []
  return Question(where, name, text, context, tuple(gold) if is_known else None, tuple(starts))


def is_impossible(record: dict[str, Any]) -> bool:
  """Whether a record says that its question has no answer: by true, or as a table writes it."""
  return str(record.get('is_impossible')).lower() in ('true', '1')


def _answers(held):
  """[(text, where it begins in the context or None)] of a record's answers; None: it has none.
  They are a list of objects as in SQuAD, or an object of lists as Hugging Face has it."""
  if held is None:
    return None
  if isinstance(held, dict):
    texts, starts = held['text'], held.get('answer_start') or []
    if not isinstance(texts, list):
      raise TypeError(f'{quoted(held)} has no list of texts')
    return list(itertools.zip_longest(texts, starts))
  return [(answer['text'], answer.get('answer_start')) for answer in held]


def _place(where, context, text, start, problems):
  """The character of the context where an answer begins; -1: not known."""
  at = finite_number(str(start))
  if at is not None and at >= 0 and context.startswith(text, int(at)):
    return int(at)
  if context.count(text) == 1:
    problems.note('answers that are not at their offset (mended)', where)
    return context.index(text)
  problems.note('answers whose place in the context is not known (not learnt)', where)
  return -1
