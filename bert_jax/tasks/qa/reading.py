"""Reads questions in SQuAD's JSON, from tables, and from TFDS data sets like `squad`.

SQuAD 1.1 and 2.0 have this format, and so do TyDi QA's gold passages, XQuAD, CMRC 2018 and MLQA
(scored here like SQuAD 1.1; its official script knows the articles of its languages).
A .csv, .tsv or .jsonl has the columns question, context and answer, or `answers` as Hugging Face's
data sets have it, {"text": [...], "answer_start": [...]}; and id, if there is one.
A spec is a file, a glob, a folder (the one file in it whose name contains `train`, or `dev` or
`valid`), tfds:squad/v1.1, tfds:squad/v2.0, or several of these: NAME=SPEC,NAME=SPEC.

An answer that is not at its offset is mended if the context has it exactly once, else it is not
learnt but counts in scores. A question that has no list of answers, or an empty one without
qa.unanswerable, is predicted, but not learnt and not scored.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import listed
from bert_jax.tasks.faulty_records import Problems, Unusable, reads
from bert_jax.text import files, values


class Question(NamedTuple):
  where: str
  id: str
  text: str
  context: str
  gold: tuple[str, ...] | None  # its answers; (): it has none; None: not known
  starts: tuple[int, ...]  # the character of the context where each answer begins; -1: not known


@reads(
  'questions', 'scored, but not in predictions.json', "a file in SQuAD's JSON, or tfds:squad/v1.1"
)
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
  if spec.startswith('tfds:'):
    yield from _from_table(spec, problems)
    return
  for path in files.split_files(spec, split, one=True):
    of_table = files.suffix(path) in ('.csv', '.tsv', '.jsonl')
    yield from _from_table(str(path), problems) if of_table else _from_file(path, problems)


def _from_table(spec, problems):
  """Yields (where, context, record of a question) of a table."""
  for where, row in problems.rows(spec):
    if 'question' not in row or 'context' not in row:
      fault = f'a table of questions has columns question, context, answer, not {listed(row)}'
      problems.wrong(getattr(row, 'header', '') or where, fault, 'rows without a column')
      continue
    record: dict[str, Any] = {'id': where} | row
    if 'is_impossible' in row:
      record['is_impossible'] = row['is_impossible'].strip().lower() in ('true', '1')
    if 'answers' in row:
      with contextlib.suppress(values.NotJson):  # not JSON, so not a list
        record['answers'], _ = values.json_text(row['answers'])
      if isinstance(answers := record['answers'], dict):  # of lists, as Hugging Face has it
        pairs = zip(answers.get('text', ()), answers.get('answer_start', ()))
        record['answers'] = [{'text': text, 'answer_start': int(at)} for text, at in pairs]
    elif 'answer' in row:
      record['answers'] = [{'text': row['answer']}]
    yield where, row['context'], record


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
  for in_file, article in each(content, 'data', ''):
    for in_article, paragraph in each(article, 'paragraphs', in_file):
      for at, record in each(paragraph, 'qas', in_article):
        yield f'{path.name}:{at}', paragraph.get('context'), record


def _question(where, context, record, problems):
  """Makes a Question of a record."""
  fields: dict[str, Any] = record if isinstance(record, dict) else {}
  identity, text, answers = fields.get('id'), fields.get('question'), fields.get('answers')
  if not isinstance(context, str):
    raise Unusable('the question has no context', 'questions without a context')
  if not isinstance(text, str) or not isinstance(identity, str | int):
    missing = 'question' if isinstance(identity, str | int) else 'id'
    raise Unusable(f'there is no {missing!r}', f'questions without {missing}')
  if not isinstance(answers, list | None):
    raise Unusable("'answers' is not a list", 'questions with unreadable answers')
  gold, starts = [], []
  for i, answer in enumerate(answers or ()):
    if not isinstance(answer, dict) or not isinstance(answer.get('text'), str):
      place = f'{where}.answers[{i}]'
      raise Unusable("there is no 'text'", 'questions with unreadable answers', place)
    if not answer['text'].strip():
      problems.note('empty answers (left out)', where)
      continue
    gold.append(answer['text'])
    starts.append(_place(where, context, answer['text'], answer.get('answer_start'), problems))
  if answers is not None and not gold and fields.get('is_impossible') is False:
    problems.note('questions without an answer that should have one', where)
  gold = None if answers is None else tuple(gold)
  return Question(where, str(identity), text, context, gold, tuple(starts))


def _place(where, context, text, start, problems):
  """The character of the context where an answer begins; -1: not known."""
  if isinstance(start, int) and start >= 0 and context[start : start + len(text)] == text:
    return start
  if context.count(text) == 1:
    problems.note('answers at another offset than theirs (mended)', where)
    return context.index(text)
  problems.note('answers that are not at their offset (not learnt)', where)
  return -1
