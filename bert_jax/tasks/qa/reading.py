"""Reads questions in SQuAD's JSON, from tables, and from TFDS data sets like `squad`.

SQuAD 1.1 and 2.0 have this format, and so do TyDi QA's gold passages, XQuAD, CMRC 2018 and MLQA
(scored here like SQuAD 1.1; its official script knows the articles of its languages).
A table (.csv, .tsv, .jsonl, .parquet, see text/tables.py) has the columns question, context and
answer, or `answers` as Hugging Face's data sets have it, {"text": [...], "answer_start": [...]},
also as answers.text and answers.answer_start; and id, if there is one.
A spec is a file, a glob, a folder (the one file in it whose name contains `train`, or `dev` or
`valid`), tfds:squad/v1.1, hf:squad_v2, or several of these: NAME=SPEC,NAME=SPEC.

An answer that is not at its offset, or has none, is mended if the context has it exactly once, else
it is not learnt but counts in scores. A question without answers (an empty list, or is_impossible,
which decides where there are answers as well) is one that cannot be answered; with
qa.unanswerable=false it is predicted, but not learnt and not scored, as one without such a list.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import quoted
from bert_jax.tasks.faulty_records import Problems, Unusable, is_empty, reads
from bert_jax.text import files, tables, values
from bert_jax.text.values import finite_number

HINT = 'a table of questions has the columns question, context, answer; call them so'
UNREADABLE = 'questions with unreadable answers'
_TRUTHS = {'true': True, 'yes': True, '1': True, 'false': False, 'no': False, '0': False}


class Question(NamedTuple):
  where: str
  id: str
  text: str
  context: str
  gold: tuple[str, ...] | None  # its answers; (): it has none; None: not known
  starts: tuple[int, ...]  # the character of the context where each answer begins; -1: not known


@reads('questions', 'scored, but not in predictions.json', "SQuAD's JSON, or tfds:squad/v1.1")
def questions(config: ConfigDict, split: str, problems: Problems) -> Iterator[Question]:
  """Yields the Questions of a split; unusable ones go to `problems`."""
  for _, spec in files.parts(config.data[split]):
    for where, context, record in records(spec, split, problems):
      with problems.of_record(where):
        question = _question(where, context, record, problems)
        for name, text in (('questions', question.text), ('contexts', question.context)):
          if not text.strip():
            problems.note(f'empty {name} (kept)', where)
        if question.gold is None or not (question.gold or config.qa.unanswerable):
          problems.note('questions without an answer (not learnt, not scored)', where)
        yield question


def records(spec: str, split: str, problems: Problems) -> Iterator[tuple[str, Any, Any]]:
  """Yields (where, context, record of a question as in SQuAD's JSON) of all files of a spec."""
  if files.is_named(spec):
    yield from _from_table(spec, problems)
    return
  for path in files.split_files(spec, split, one=True):
    of_table = files.suffix(path) in tables.SUFFIXES and files.suffix(path) != '.json'
    yield from _from_table(str(path), problems) if of_table else _from_file(path, problems)


def _from_table(spec, problems):
  """Yields (where, context, record of a question) of a table."""
  for where, row in problems.rows(spec):
    record: dict[str, Any] = {'id': where} | row
    with problems.of_record(where):
      question, context = problems.columns(row, ('question', 'context'), where, HINT)
      record |= {'question': question, 'context': context}
      if (flat := tables.fields(row, 'answers')) and 'answers' not in row:
        record['answers'] = {key: _value(cell, f'answers.{key}') for key, cell in flat.items()}
      elif name := tables.first_of(row, 'answers|answer'):
        record['answers'] = _answers_of_cell(row, name, context)
      yield where, context, record


def _answers_of_cell(row, name, context):
  """The answers in a cell, as _answers takes them: what JSON or pandas wrote there, or its text."""
  cell = row[name].strip()
  is_text = name not in ('answers', *row.no_text) and cell in context
  if not is_text and (value := _value(cell, name)) != cell:
    return value
  texts = [row[name]] if cell or name == 'answers' else []
  return {'text': texts, 'answer_start': texts and (row.get('answer_start') or None)}


def _value(cell, column):
  """What JSON or pandas wrote in a cell if it begins as a list or an object, else its text."""
  try:
    return values.printed_value(cell) if cell.strip()[:1] in ('[', '{') else cell
  except values.NotJson:
    raise Unusable(f'write JSON in column {column!r}, not {quoted(cell)}', UNREADABLE) from None


def _from_file(path, problems):
  """Yields (where, context, data[a].paragraphs[p].qas[q]) of a file in SQuAD's JSON."""

  def each(holder, name, at):
    elements = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(elements, list):
      sentence = f"there is no list {name!r}, which SQuAD's JSON has here"
      problems.wrong(f'{path.name}:{at}'.removesuffix(':'), sentence, f'parts without {name}')
      elements = []
    for i, element in enumerate(elements):
      yield f'{at}.{name}[{i}]'.removeprefix('.'), element

  if (content := problems.json(path, path.name)) is None:
    return
  content = {'data': content} if isinstance(content, list) else content
  for in_file, article in each(content, 'data', ''):
    if isinstance(article, dict) and 'question' in article:  # flat, as run_qa.py reads it
      yield f'{path.name}:{in_file}', article.get('context'), article
      continue
    # A list of paragraphs is what simpletransformers reads.
    is_paragraph = isinstance(article, dict) and 'qas' in article
    paragraphs = [(in_file, article)] if is_paragraph else each(article, 'paragraphs', in_file)
    for in_article, paragraph in paragraphs:
      for at, record in each(paragraph, 'qas', in_article):
        yield f'{path.name}:{at}', paragraph.get('context'), record


def _question(where, context, record, problems):
  """Makes a Question of a record."""
  fields: dict[str, Any] = record if isinstance(record, dict) else {}
  identity, text = fields.get('id'), fields.get('question')
  if not isinstance(context, str):
    raise Unusable('the question has no context', 'questions without a context')
  if not isinstance(text, str) or not isinstance(identity, str | int):
    missing = 'question' if isinstance(identity, str | int) else 'id'
    raise Unusable(f'there is no {missing!r}', f'questions without {missing}')
  answers, impossible = _answers(where, fields.get('answers')), is_impossible(fields)
  if impossible:
    if answers:
      problems.note('answers of questions marked impossible (left out)', where)
    answers = []
  gold, starts = [], []
  for answer, start in answers or ():
    if not answer.strip():
      problems.note('empty answers (left out)', where)
      continue
    gold.append(answer)
    starts.append(_place(where, context, answer, start, problems))
  if answers == [] and impossible is False:
    problems.note('questions without an answer that should have one', where)
  known = tuple(gold) if gold or answers == [] else None
  return Question(where, str(identity), text, context, known, tuple(starts))


def is_impossible(fields: dict[str, Any]) -> bool | None:
  """Whether a question has no answer; None if it does not say so or the contrary."""
  value = fields.get('is_impossible')
  if value is None or is_empty(str(value)):
    return None
  word = str(value).strip().lower().removesuffix('.0')  # 1.0 of pandas
  if word not in _TRUTHS:
    raise Unusable(f'is_impossible is {quoted(value)}; write true or false', UNREADABLE)
  return _TRUTHS[word]


def _answers(where, held):
  """[(text, where it begins in the context or None)] of a record's answers; None: it has none.
  They are a list of objects as in SQuAD, an object of lists or values (Hugging Face), or texts."""
  if held is None:
    return None
  several = lambda x: x if isinstance(x, list) else [x]
  if isinstance(held, dict):
    texts, starts = several(held.get('text')), several(held.get('answer_start'))
    if len(starts) > len(texts) and starts != [None]:
      raise Unusable(f'there are {len(starts)} answer_start for {len(texts)} answers', UNREADABLE)
    pairs: list[tuple[Any, Any]] = list(itertools.zip_longest(texts, starts[: len(texts)]))
  else:
    each = (x if isinstance(x, dict) else {'text': x} for x in several(held))
    pairs = [(x.get('text'), x.get('answer_start')) for x in each]
  for i, (text, _) in enumerate(pairs):
    if not isinstance(text, str):
      fault = f"there is no 'text', but {quoted(held if text is None else text)}"
      raise Unusable(fault, UNREADABLE, f'{where}.answers[{i}]')
  return pairs


def _place(where, context, text, start, problems):
  """The character of the context where an answer begins; -1: not known."""
  at = finite_number(str(start))
  if at is not None and at >= 0 and context[int(at) : int(at) + len(text)] == text:
    return int(at)
  what = 'without an offset' if at is None else 'at another offset than theirs'
  if context.count(text) == 1:
    problems.note(f'answers {what} ({"found" if at is None else "mended"})', where)
    return context.index(text)
  often = 'several times' if text in context else 'not'
  reason = 'not at their offset' if at is not None else f'{what}, {often} in the context'
  problems.note(f'answers that are {reason} (not learnt)', where)
  return -1
