"""Reads multiple-choice questions in the formats in which they are published.

  race   RACE (Lai et al. 2017): a folder with train/high, dev/middle.. whose files each hold a JSON
         object with article, questions, options, answers (letters) and id; or tfds:race/high,
         NAME=tfds:race/high,NAME=tfds:race/middle; or .parquet, hf:NAME, as a row each question
  swag   SWAG (Zellers et al. 2018): CSV with sent1, sent2, ending0.., label (a number or letter)
  dream  DREAM (Sun et al. 2019) and C3 (Sun et al. 2020): JSON, a list of [turns of a dialogue or
         paragraphs, [{question, choice, answer (its text)}, ..], id]
  copa   SuperGLUE's COPA and XCOPA (JSONL, or tfds:super_glue/copa): premise, question (cause or
         effect), choice1, choice2, label (a number)

A model reads each choice as the context followed by the question and the choice. SWAG's context is
sent1, its question sent2. COPA's questions are worded as on its annotation sheets, in English for
every language, so that a model trained on one language meets the same question in another. A
question of RACE with a blank (_) has the choice in its place, as in RoBERTa.

A question with missing fields, fewer than two choices or an answer that is none of them cannot be
used; one without an answer is left out of training. Of equal choices the first is the answer.
Numbers of answers count from choice.first_label: from 1 if none of them is 0.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import listed, quoted
from bert_jax.files import Path
from bert_jax.tasks.faulty_records import Problems, Unusable, reads, says_no_label
from bert_jax.text import files, tables
from bert_jax.text.values import json_value

LETTERS = 'ABCDEFGHIJ'
PASSAGE = 'no article, questions, options, answers and id of equal number'
DIALOGUE = 'not [turns, [{question, choice, answer}, ..], id]'
PREMISE = 'no premise, question (cause or effect), choice1 and choice2'
SENTENCES = (
  'call its columns sent1 (the context), sent2 (the question, or empty), ending0, .., label'
)
COPA = {'cause': 'What was the cause of this?', 'effect': 'What happened as a result?'}
_ENDING = re.compile(r'ending\d')
_BLANK = re.compile(r'(?<!\w)_+|_+(?!\w)|_{2,}')  # RACE also writes "that_."; not my_name


class Question(NamedTuple):
  where: str
  id: str
  context: str
  text: str
  choices: tuple[str, ...]
  gold: Any  # number of the right choice; None: not known. While read: the answer, '' without one
  fills: bool = False  # does a choice fill the blanks of the text, if it has any?
  by_letter: bool = False  # is its answer a letter?

  @property
  def seconds(self) -> list[str]:
    """The text that follows the context, for each choice."""
    if self.fills and _BLANK.search(self.text):
      return [_BLANK.sub(lambda _, choice=choice: choice, self.text) for choice in self.choices]
    return [f'{self.text} {choice}'.strip() for choice in self.choices]


@reads('questions', name='data of the format in task.format')
def read(config: ConfigDict, split: str, problems: Problems) -> Iterator[Question]:
  """Yields the Questions of a split; unusable ones go to `problems`."""
  reader = {'race': _race, 'swag': _swag, 'dream': _dream, 'copa': _copa}[config.task.format]
  first = max(0, config.choice.first_label)
  numbers = [str(first + i) for i in range(len(LETTERS))]
  for _, spec in files.parts(config.data[split]):
    for question in reader(spec, split, problems):
      with problems.of_record(question.where):
        by_letter = question.gold.isalpha()
        known = LETTERS if by_letter else numbers
        if config.task.format == 'dream':
          known = question.choices
        gold = _gold(question, [*known[: len(question.choices)]])
        if gold is not None or not problems.lacks('an answer', question.where, split):
          yield question._replace(gold=gold, by_letter=by_letter)


def _gold(question, known):
  """The number of a question's answer among the known ones; None: there is no answer. Unusable if
  there is nothing to choose from, or the answer is no choice."""
  answer, choices, number = question.gold, question.choices, len(question.choices)
  if number < 2:
    few = f'there are {number} choices; a question needs two'
    raise Unusable(few, 'questions without a choice')
  if answer in known:
    return known.index(answer)
  if says_no_label(answer):
    return None
  raise Unusable(
    f'its answer {quoted(answer)} is none of the {number} choices {listed(choices)}',
    'answers that are no choice',
  )


def _label(row):
  """The label of a row, a number which pandas may have written as 1.0, or ''."""
  return row.get('label', '').strip().removesuffix('.0')


# -- a reader of each format; the gold of its Questions is their answer as a text ------------------


def _race(spec, split, problems):
  for where, passage in _passages(spec, split, problems):
    with problems.of_record(where, PASSAGE, 'passages without their fields'):
      yield from list(_of_passage(where, passage, split))


def _of_passage(where, passage, split):
  if 'questions' in passage:
    name = passage['id'] if 'id' in passage else passage['example_id']
    questions, options = _list(passage['questions']), _list(passage['options'])
    answers = passage.get('answers')
    if answers is None and split != 'train':
      answers = [None] * len(questions)
  else:  # records of one question each
    name, questions, options = where, [passage['question']], [passage['options']]
    answers = [passage.get('answer')]
  context = _text(passage['article'])
  of_passage = zip(_texts(questions), options, _texts(_list(answers)), strict=True)
  for k, (text, choices, answer) in enumerate(of_passage):
    choices = tuple(_texts(_list(choices)))
    gold = answer.strip().upper()
    yield Question(f'{where}:{k}', f'{name}-{k}', context, text, choices, gold, fills=True)


def _passages(spec, split, problems):
  """Yields (where, passage) of RACE, whose rows may be in a table of Arrow or a set."""
  if files.is_named(spec) or any(files.suffix(x) in files.RECORDS for x in files.expand(spec)):
    for where, row in problems.rows(spec):
      yield where, tables.with_nulls(row)
    return
  folder = Path(spec).expanduser() / ('train' if split == 'train' else 'dev')
  for path in files.expand(str(folder) if folder.is_dir() else spec):
    where = f'{path.parent.name}/{path.name}'
    passage = problems.json(path, where)
    if passage is not None:
      yield where, passage


def _swag(spec, split, problems):
  for number, (where, row) in enumerate(problems.rows(spec)):
    with problems.of_record(where):
      endings = sorted(filter(_ENDING.fullmatch, tables.columns_of(row))) or ['ending0']
      columns = ['sent1', 'sent2', *endings]
      context, text, *choices = problems.columns(row, columns, where, SENTENCES)
      while choices and not choices[-1].strip():  # fewer than others have
        choices.pop()
      name = row.get('', str(number))  # SWAG's first column has no name
      gold = _label(row)
      yield Question(where, name, context, text, tuple(choices), gold)


def _copa(spec, split, problems):
  for number, (where, row) in enumerate(problems.rows(spec)):
    with problems.of_record(where, PREMISE, 'records without their fields'):
      context, *choices = problems.columns(row, ('premise', 'choice1', 'choice2'), where)
      name, gold = row.get('idx', str(number)), _label(row)
      yield Question(where, name, context, COPA[row['question']], tuple(choices), gold)


def _dream(spec, split, problems):
  for where, dialogue in _dialogues(spec, split, problems):
    with problems.of_record(where, DIALOGUE, 'dialogues without their fields'):
      # A question that is faulty makes all of its dialogue so.
      yield from list(_of_dialogue(where, dialogue))


def _dialogues(spec, split, problems):
  """Yields (where, [turns, questions, id])."""
  for path in files.split_files(spec, split):
    content = problems.json(path, path.name)
    if isinstance(content, list):
      for number, dialogue in enumerate(content):
        yield f'{path.name}[{number}]', dialogue
    elif content is not None:
      problems.wrong(path.name, 'no JSON list; is it data of DREAM or C3?', 'files without a list')


def _of_dialogue(where, dialogue):
  turns, asked, name = dialogue
  context = '\n'.join(_texts(_list(turns)))
  for k, question in enumerate(asked):
    choices = tuple(_texts(_list(question['choice'])))
    gold = _text(question.get('answer'))
    yield Question(
      f'{where}:{k}', f'{name}-{k}', context, _text(question['question']), choices, gold
    )


def _list(value):
  """The list that a value is, or that a data set of TFDS holds as JSON; TypeError if it is none."""
  if isinstance(value, str) and value.startswith('['):
    value = json_value(value)
  if not isinstance(value, list):
    raise TypeError(f'{quoted(value)} is no list')
  return value


def _text(value):
  """A text, or an empty one for null; TypeError if it is neither."""
  if not (value is None or isinstance(value, str)):
    raise TypeError(f'{quoted(value)} is no text')
  return value or ''


def _texts(values):
  return [_text(value) for value in values]
