"""Reads multiple-choice questions in the formats in which they are published.

  race   RACE (Lai et al. 2017): a folder with train/high, dev/middle.. whose files each hold a JSON
         object with article, questions, options, answers (letters) and id; or tfds:race/high,
         NAME=tfds:race/high,NAME=tfds:race/middle
  swag   SWAG (Zellers et al. 2018): CSV with sent1, sent2, ending0.., label
  dream  DREAM (Sun et al. 2019) and C3 (Sun et al. 2020): JSON, a list of [turns of a dialogue or
         paragraphs, [{question, choice, answer (its text)}, ..], id]
  copa   SuperGLUE's COPA and XCOPA (JSONL, or tfds:super_glue/copa): premise, question (cause or
         effect), choice1, choice2, label

A model reads each choice as the context followed by the question and the choice. SWAG's context is
sent1, its question sent2. COPA's questions are worded as on its annotation sheets, in English for
every language, so that a model trained on one language meets the same question in another. A
question of RACE with a blank (_) has the choice in its place, as in RoBERTa.

A question with missing fields, fewer than two choices, an answer that is none of them or, in
training, no answer cannot be used (see tasks/faulty_records.py); of equal choices the first is the
answer.
"""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import InputError, quoted
from bert_jax.tasks.faulty_records import Problems, reads
from bert_jax.text import files
from bert_jax.text.values import NotJson, json_value, whole_number

LEVELS = 'middle', 'high'  # the kinds of school of RACE
COPA = {'cause': 'What was the cause of this?', 'effect': 'What happened as a result?'}
_BLANK = re.compile(r'(?<!\w)_+|_+(?!\w)|_{2,}')  # RACE also writes "that_."; not my_name


class Question(NamedTuple):
  where: str
  id: str
  context: str
  text: str
  choices: tuple[str, ...]
  gold: int | None  # number of the right choice; None: not known
  level: str = ''  # one of LEVELS, or ''
  fills: bool = False  # does a choice fill the blanks of the text, if it has any?

  @property
  def seconds(self) -> list[str]:
    """The text that follows the context, for each choice."""
    if self.fills and _BLANK.search(self.text):
      return [_BLANK.sub(lambda _, choice=choice: choice, self.text) for choice in self.choices]
    return [f'{self.text} {choice}'.strip() for choice in self.choices]


def read(config: ConfigDict, split: str, problems: Problems) -> list[Question]:
  """The Questions of a split; unusable ones go to `problems`."""
  out = list(_read(config, split, problems))
  usual = Counter(len(question.choices) for question in out).most_common(1)[0][0]
  for question in out:
    if (number := len(question.choices)) != usual:
      kind = f'questions of {number} choices, where most have {usual} (kept)'
      problems.note(kind, question.where)
  return out


@reads('questions')
def _read(config, split, problems):
  if not config.data[split]:
    raise InputError(f'data.{split} is empty; name data of task.format={config.task.format}.')
  reader = {'race': _race, 'swag': _swag, 'dream': _dream, 'copa': _copa}[config.task.format]
  for _, spec in files.parts(config.data[split]):
    for where, fields, answer in reader(spec, split, problems):
      if question := _checked(where, fields, answer, split, problems):
        yield question


def _checked(where, fields, answer, split, problems):
  """Makes a Question; None if it cannot be used.
  answer: a function of the choices that returns the number of the right one, or None if no choice
  matches; or None if the data does not give the answer."""
  choices = fields['choices']
  if len(choices) < 2:
    sentence = f'there are {len(choices)} choices; a question needs two'
    return problems.wrong(where, sentence, 'questions without a choice')
  if answer is None and split == 'train':
    return problems.wrong(where, 'the answer is missing', 'questions without an answer')
  gold = None if answer is None else answer(choices)
  if answer is not None and (gold is None or not 0 <= gold < len(choices)):
    sentence = f'its answer is none of the {len(choices)} choices'
    return problems.wrong(where, sentence, 'answers that are no choice')
  parts = {'contexts': [fields['context']], 'questions': [fields['text']], 'choices': choices}
  for name, texts in parts.items():
    if not all(map(str.strip, texts)):
      problems.note(f'empty {name} (kept)', where)
  if len(set(choices)) < len(choices):
    problems.note('questions with equal choices (kept)', where)
  return Question(where, gold=gold, **fields | {'choices': tuple(choices)})


# -- answers that are a letter, a number or a text: each returns an `answer` for _checked ----------


def _letter(answer):
  letters = dict(zip('ABCDEFGHIJ', range(10)))
  return lambda choices: letters.get(answer.strip().upper())


def _number(answer):
  return lambda choices: whole_number(answer)


def _text(answer, where, problems):
  def number(choices):
    if answer in choices:
      return choices.index(answer)
    plain = [choice.strip() for choice in choices]
    if answer.strip() not in plain:
      return None
    problems.note('answers with other blanks than their choice (mended)', where)
    return plain.index(answer.strip())

  return number


# -- a reader of each format: yields (where, {field of a Question: value}, answer or None) ---------


def _race(spec, split, problems):
  for where, passage in _passages(spec, split, problems):
    try:
      article, questions, options = passage['article'], passage['questions'], passage['options']
      name = passage['id'] if 'id' in passage else passage['example_id']
      answers = passage.get('answers', [None] * len(questions) if split != 'train' else [])
      numbers = len(questions), len(options), len(answers)
      if len(set(numbers)) > 1:
        raise ValueError('{} questions, {} options, {} answers'.format(*numbers))
      _check_texts(article, name, *_list(questions), *(x for x in answers if x is not None))
      for choices in _list(options):
        _check_texts(*_list(choices))
    except (KeyError, TypeError, ValueError) as error:
      sentence = f'no article, questions, options, answers and id of equal number ({error!r:.100})'
      problems.wrong(where, sentence, 'passages without their fields')
      continue
    level = next((part for part in where.split('/') if part in LEVELS), '')
    for k, (text, choices, answer) in enumerate(zip(questions, options, answers)):
      fields = dict(id=f'{name}-{k}', context=article, text=text, choices=choices, level=level)
      yield f'{where}:{k}', fields | {'fills': True}, None if answer is None else _letter(answer)


def _passages(spec, split, problems):
  """Yields (where, passage) of RACE; `where` contains the level."""
  if spec.startswith('tfds:'):
    for where, row in problems.rows(spec, validation='dev'):
      lists = ('questions', 'options', 'answers')  # as JSON, if the data set has them
      names = [name for name in lists if row.get(name, '').startswith('[')]
      try:
        yield where, row | {name: json_value(row[name]) for name in names}
      except NotJson as error:
        problems.wrong(where, f'its lists are {error}', 'passages without their fields')
    return
  folder = Path(spec).expanduser() / ('train' if split == 'train' else 'dev')
  for path in files.expand(str(folder) if folder.is_dir() else spec):
    where = f'{path.parent.name}/{path.name}'
    passage = problems.json(path, where)
    if isinstance(passage, dict):
      yield where, passage
    elif passage is not None:
      problems.wrong(where, 'no JSON object; RACE has one in each file', 'files without a passage')


def _swag(spec, split, problems):
  for number, (where, row) in enumerate(problems.rows(spec)):
    if sentences := problems.columns(row, ('sent1', 'sent2'), where):
      endings = [row[name] for name in row if re.fullmatch(r'ending\d', name)]
      fields = dict(zip(('context', 'text'), sentences), choices=endings)
      fields['id'] = row.get('', str(number))  # SWAG's first column has no name
      yield where, fields, _number(row['label']) if row.get('label') else None


def _copa(spec, split, problems):
  for number, (where, row) in enumerate(problems.rows(spec)):
    try:
      fields = {'context': row['premise'], 'text': COPA[row['question']]}
      fields['choices'] = [row['choice1'], row['choice2']]
    except KeyError as error:
      sentence = f'no premise, question (cause or effect), choice1 and choice2 ({error!r:.100})'
      problems.wrong(where, sentence, 'records without their fields')
      continue
    fields['id'], label = row.get('idx', str(number)), row.get('label')
    label = {'choice1': '0', 'choice2': '1', '-1': ''}.get(label, label)
    yield where, fields, _number(label) if label else None


def _dream(spec, split, problems):
  for path in files.split_files(spec, split):
    content = problems.json(path, path.name)
    if isinstance(content, list):
      for number, record in enumerate(content):
        yield from _dialogue(record, f'{path.name}[{number}]', problems)
    elif content is not None:
      sentence = 'no JSON list; is it data of DREAM or C3?'
      problems.wrong(path.name, sentence, 'files without a list')


def _dialogue(record, where, problems):
  try:
    (turns, asked, name), questions = record, []
    for k, question in enumerate(asked):
      answer = question.get('answer')
      fields = dict(id=f'{name}-{k}', text=question['question'], choices=_list(question['choice']))
      fields['context'] = '\n'.join(_list(turns))
      _check_texts(fields['text'], *fields['choices'], answer or '')
      questions.append((fields, answer))
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    sentence = f'not [turns, [{{question, choice, answer}}, ..], id] ({error!r:.100})'
    problems.wrong(where, sentence, 'dialogues without their fields')
    return
  for k, (fields, answer) in enumerate(questions):
    yield f'{where}:{k}', fields, _text(answer, where, problems) if answer else None


def _list(value):
  if not isinstance(value, list):
    raise TypeError(f'{quoted(value)} is no list')
  return value


def _check_texts(*values):
  for value in values:
    if not isinstance(value, str):
      raise TypeError(f'{quoted(value)} is no text')
