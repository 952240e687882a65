"""Questions as they are published: SQuAD's JSON, and TFDS data sets with the features of `squad`.

SQuAD 1.1 and 2.0, and the sets in their format: TyDi QA's gold passages, XQuAD, CMRC 2018; MLQA,
which is scored here as SQuAD 1.1 is (its own script knows the articles and the punctuation of its
languages, and counts Chinese characters one by one).
A spec is a file, a glob, a folder (the one file in it whose name has `train` in it, or `dev` or
`valid`), tfds:squad/v1.1, tfds:squad/v2.0, or several of these: NAME=SPEC,NAME=SPEC.

Rules for data that is off, each counted and named:
  an answer that is not at its offset     is used where the context has it, if that is once;
                                          otherwise it is not learnt, but it does count in scores
  an answer that is part of a token       the whole token is learnt
  an empty answer                         is none (a test set may hide its answers like that)
  no answer without qa.unanswerable, or   neither learnt nor scored, but predicted
  no list of answers at all
  "is_impossible": false, and no answer   has none
  an empty question or context            kept
  an id that came before                  kept, scored by itself; files for official scripts, which
                                          have one answer for an id, hold that of the first
  a question without id, text, context    stops the run; data.skip_damaged=true leaves it out
"""

from typing import NamedTuple

from bert_jax.errors import InputError
from bert_jax.text import files


class Question(NamedTuple):
  where: str
  id: str
  text: str
  context: str
  gold: tuple[str, ...] | None  # (): it has no answer; None: nobody says
  starts: tuple[int, ...]  # where each gold answer begins in the context; -1: not known


def questions(config, split, problems):
  """The Questions of a split, faulty ones left to `problems`."""
  if not config.data[split]:
    raise InputError(f"data.{split} is empty; name a file in SQuAD's JSON, or tfds:squad/v1.1.")
  number = 0
  for _, spec in files.parts(config.data[split]):
    for where, context, record in _records(spec, split, problems):
      question = _question(where, context, record, problems)
      if question is None:
        continue
      number += 1
      problems.counts['questions'] += 1
      problems.seen(question.id, where, 'scored, but not in predictions.json')
      for name, text in (('questions', question.text), ('contexts', question.context)):
        if not text.strip():
          problems.note(f'empty {name} (kept)', where)
      if question.gold is None or not (question.gold or config.qa.unanswerable):
        problems.note('questions without an answer (not learnt, not scored)', where)
      yield question
  if not number:
    raise InputError(f'data.{split}={config.data[split]} holds no questions; is it the right file?')


def _records(spec, split, problems):
  """Yields (where, context, record of a question as in SQuAD's JSON)."""
  if spec.startswith('tfds:'):
    _, rows = files.tfds_rows(spec, 'train' if split == 'train' else 'validation')
    for where, row in rows:
      yield where, *_of_tfds(row, problems.counts)
    return
  for path in files.of_split(spec, split, one=True):
    yield from _of_file(path, problems)


def _of_file(path, problems):
  """data[a].paragraphs[p].qas[q] of a file."""
  content = files.whole_json(path, path.name, problems.counts, problems.wrong)
  if content is None:
    return

  def each(holder, name, at):
    elements = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(elements, list):
      problems.wrong(
        f'{path.name}:{at}'.removesuffix(':'),
        f"there is no list {name!r}, which SQuAD's JSON has here",
        f'parts without {name}',
      )
      elements = []
    for i, element in enumerate(elements):
      yield f'{at}.{name}[{i}]'.removeprefix('.'), element

  for in_file, article in each(content, 'data', ''):
    for in_article, paragraph in each(article, 'paragraphs', in_file):
      for at, record in each(paragraph, 'qas', in_article):
        yield f'{path.name}:{at}', paragraph.get('context'), record


def _of_tfds(row, counts):
  """(context, record) of a row of a TFDS data set like `squad`."""
  row = {
    name: files.decode(value, counts) if isinstance(value, bytes) else value
    for name, value in row.items()
  }
  if isinstance(answers := row.get('answers'), dict):
    pairs = zip(answers.get('text', ()), answers.get('answer_start', ()))
    row['answers'] = [
      {'text': files.decode(text, counts), 'answer_start': int(start)} for text, start in pairs
    ]
  return row.get('context'), row


def _question(where, context, record, problems):
  """A Question, or None if it is faulty."""
  if not isinstance(context, str):
    return problems.wrong(where, 'the question has no context', 'questions without a context')
  given = record if isinstance(record, dict) else {}
  own, text = given.get('id'), given.get('question')
  if not isinstance(text, str) or not isinstance(own, str | int):
    missing = 'question' if isinstance(own, str | int) else 'id'
    return problems.wrong(where, f'there is no {missing!r}', f'questions without {missing}')
  answers = given.get('answers')
  if not isinstance(answers, list | None):
    return problems.wrong(where, "'answers' is not a list", 'questions with unreadable answers')
  gold, starts = [], []
  for i, answer in enumerate(answers or ()):
    if not isinstance(answer, dict) or not isinstance(answer.get('text'), str):
      return problems.wrong(
        f'{where}.answers[{i}]', "there is no 'text'", 'questions with unreadable answers'
      )
    if not answer['text'].strip():
      problems.note('empty answers (left out)', where)
      continue
    gold.append(answer['text'])
    starts.append(_place(where, context, answer['text'], answer.get('answer_start'), problems))
  gold = None if answers is None else tuple(gold)
  if gold == () and given.get('is_impossible') is False:
    problems.note('questions without an answer that should have one', where)
  return Question(where, str(own), text, context, gold, tuple(starts))


def _place(where, context, text, start, problems):
  """Where an answer begins in its context, -1 if that is not known."""
  if isinstance(start, int) and start >= 0 and context[start : start + len(text)] == text:
    return start
  if context.count(text) == 1:
    problems.note('answers at another offset than theirs (mended)', where)
    return context.index(text)
  problems.note('answers that are not at their offset (not learnt)', where)
  return -1
