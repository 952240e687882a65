"""Reads questions in SQuAD's JSON, from tables, and from TFDS data sets like `squad`.

SQuAD 1.1 and 2.0 have this format, and so do TyDi QA's gold passages, XQuAD, CMRC 2018 and MLQA.
MLQA is scored here like SQuAD 1.1, though its official script knows the articles and punctuation
of its languages and counts Chinese characters one by one.
A .csv, .tsv or .jsonl has the columns question, context and answer, or `answers` as Hugging Face's
data sets have it, {"text": [...], "answer_start": [...]}; and id, if there is one.
A spec is a file, a glob, a folder (the one file in it whose name contains `train`, or `dev` or
`valid`), tfds:squad/v1.1, tfds:squad/v2.0, or several of these: NAME=SPEC,NAME=SPEC.

Faults (see tasks/faulty_records.py):
  an answer that is not at its offset     its place is mended if the context has it exactly once;
                                          otherwise it is not learnt, but it counts in scores
  an answer that is part of a token       the whole token is learnt
  an empty answer                         is left out (a test set may hide its answers like that)
  no answer without qa.unanswerable, or   the question is predicted, but not learnt and not scored
  no list of answers at all
  "is_impossible": false, and no answer   the question has no answer
  an empty question or context            kept
  a repeated id                           kept, and each question is scored; files for official
                                          scripts, which allow one answer per id, have the first
  a question without id, text, context    cannot be used
"""

import contextlib
from typing import NamedTuple

from bert_jax.errors import InputError, listed
from bert_jax.tasks.faulty_records import names_data
from bert_jax.text import files, utf8, values


class Question(NamedTuple):
  where: str
  id: str
  text: str
  context: str
  gold: tuple[str, ...] | None  # its answers; (): it has none; None: not known
  starts: tuple[int, ...]  # the character of the context where each answer begins; -1: not known


@names_data
def questions(config, split, problems):
  """Yields the Questions of a split; unusable ones go to `problems`."""
  if not config.data[split]:
    raise InputError(f"data.{split} is empty; name a file in SQuAD's JSON, or tfds:squad/v1.1.")
  number = 0
  for _, spec in files.parts(config.data[split]):
    for where, context, record in records(spec, split, problems):
      question = _question(where, context, record, problems)
      if question is None:
        continue
      number += 1
      problems.counts['questions'] += 1
      problems.note_id(question.id, where, 'scored, but not in predictions.json')
      for name, text in (('questions', question.text), ('contexts', question.context)):
        if not text.strip():
          problems.note(f'empty {name} (kept)', where)
      if question.gold is None or not (question.gold or config.qa.unanswerable):
        problems.note('questions without an answer (not learnt, not scored)', where)
      yield question
  if not number:
    problems.nothing(config.data[split], 'questions')


def records(spec, split, problems):
  """Yields (where, context, record of a question as in SQuAD's JSON) of all files of a spec."""
  if spec.startswith('tfds:'):
    _, rows = files.tfds_rows(spec, 'train' if split == 'train' else 'validation')
    for where, row in rows:
      yield where, *_from_tfds(row, problems.counts)
    return
  for path in files.split_files(spec, split, one=True):
    of_table = files.suffix(path) in ('.csv', '.tsv', '.jsonl')
    yield from _from_table(path, problems) if of_table else _from_file(path, problems)


def _from_table(path, problems):
  """Yields (where, context, record of a question) of a table."""
  for where, row in problems.rows(str(path)):
    if 'question' not in row or 'context' not in row:
      fault = f'a table of questions has columns question, context, answer, not {listed(row)}'
      problems.wrong(getattr(row, 'header', '') or where, fault, 'rows without a column')
      continue
    record = {'id': where} | row
    if 'answers' in row:
      with contextlib.suppress(values.NotJson):  # not JSON, so not a list
        record['answers'], _ = values.json_text(row['answers'])
      record['answers'] = _as_list(record['answers'], problems.counts)
    elif 'answer' in row:
      record['answers'] = [{'text': row['answer']}]
    yield where, row['context'], record


def _from_file(path, problems):
  """Yields (where, context, data[a].paragraphs[p].qas[q]) of a file in SQuAD's JSON."""

  def each(holder, name, at):
    elements = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(elements, list):
      where = f'{path.name}:{at}'.removesuffix(':')
      sentence = f"there is no list {name!r}, which SQuAD's JSON has here"
      elements = problems.wrong(where, sentence, f'parts without {name}')
    for i, element in enumerate(elements or ()):
      yield f'{at}.{name}[{i}]'.removeprefix('.'), element

  if (content := problems.json(path, path.name)) is None:
    return
  for in_file, article in each(content, 'data', ''):
    for in_article, paragraph in each(article, 'paragraphs', in_file):
      for at, record in each(paragraph, 'qas', in_article):
        yield f'{path.name}:{at}', paragraph.get('context'), record


def _from_tfds(row, counts):
  """Converts a row of a TFDS data set like `squad` to (context, record of a question)."""
  row = {k: utf8.decode(x, counts) if isinstance(x, bytes) else x for k, x in row.items()}
  if 'answers' in row:
    row['answers'] = _as_list(row['answers'], counts)
  return row.get('context'), row


def _as_list(answers, counts):
  """Answers as SQuAD lists them, from one object with a list of texts and a list of places."""
  if not isinstance(answers, dict):
    return answers
  pairs = zip(answers.get('text', ()), answers.get('answer_start', ()))
  decoded = lambda text: utf8.decode(text, counts) if isinstance(text, bytes) else text
  return [{'text': decoded(text), 'answer_start': int(start)} for text, start in pairs]


def _question(where, context, record, problems):
  """Makes a Question of a record; None if it cannot be used."""
  if not isinstance(context, str):
    return problems.wrong(where, 'the question has no context', 'questions without a context')
  fields = record if isinstance(record, dict) else {}
  question_id, text = fields.get('id'), fields.get('question')
  if not isinstance(text, str) or not isinstance(question_id, str | int):
    missing = 'question' if isinstance(question_id, str | int) else 'id'
    return problems.wrong(where, f'there is no {missing!r}', f'questions without {missing}')
  answers = fields.get('answers')
  if not isinstance(answers, list | None):
    return problems.wrong(where, "'answers' is not a list", 'questions with unreadable answers')
  gold, starts = [], []
  for i, answer in enumerate(answers or ()):
    if not isinstance(answer, dict) or not isinstance(answer.get('text'), str):
      place = f'{where}.answers[{i}]'
      return problems.wrong(place, "there is no 'text'", 'questions with unreadable answers')
    if not answer['text'].strip():
      problems.note('empty answers (left out)', where)
      continue
    gold.append(answer['text'])
    starts.append(_place(where, context, answer['text'], answer.get('answer_start'), problems))
  gold = None if answers is None else tuple(gold)
  if gold == () and fields.get('is_impossible') is False:
    problems.note('questions without an answer that should have one', where)
  return Question(where, str(question_id), text, context, gold, tuple(starts))


def _place(where, context, text, start, problems):
  """The character of the context where an answer begins; -1: not known."""
  if isinstance(start, int) and start >= 0 and context[start : start + len(text)] == text:
    return start
  if context.count(text) == 1:
    problems.note('answers at another offset than theirs (mended)', where)
    return context.index(text)
  problems.note('answers that are not at their offset (not learnt)', where)
  return -1
