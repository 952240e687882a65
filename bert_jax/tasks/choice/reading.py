"""Questions with choices as they are published.

  race   RACE (Lai et al. 2017): a folder of files, a JSON object in each with article, questions,
         options, answers (letters) and id, below train/high, dev/middle..; or tfds:race/high,
         NAME=tfds:race/high,NAME=tfds:race/middle
  swag   SWAG (Zellers et al. 2018): CSV with sent1, sent2, ending0.., label
  dream  DREAM (Sun et al. 2019) and C3 (Sun et al. 2020): JSON, a list of [turns of a dialogue or
         paragraphs, [{question, choice, answer (its text)}, ..], id]
  copa   SuperGLUE's COPA and XCOPA (JSONL, or tfds:super_glue/copa): premise, question (cause or
         effect), choice1, choice2, label

A choice is read as the context followed by question and choice. SWAG's context is sent1, its
question sent2. The question of COPA is that of its own sheets, in English for every language, so
that what is learned in one is asked alike in another. A question of RACE with a blank (_) has it
filled by the choice, as RoBERTa does.

Faults, each counted and named (see problems.py):

  no answer in training, an answer that is none of the choices, fewer than two choices, fields that
  are not there                                       faulty
  blanks around an answer or its choice               mended
  empty contexts, questions and choices, another number of choices than most, choices that are
  equal (the first is the answer), ids that came before                              kept
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from bert_jax.errors import InputError
from bert_jax.text import files, tables

LEVELS = 'middle', 'high'  # of RACE
COPA = {'cause': 'What was the cause of this?', 'effect': 'What happened as a result?'}
_BLANK = re.compile(r'(?<!\w)_+|_+(?!\w)|_{2,}')  # RACE also writes "that_."; not my_name


class Question(NamedTuple):
  where: str
  id: str
  context: str
  text: str
  choices: tuple[str, ...]
  gold: int | None  # None: not known
  level: str = ''  # one of LEVELS, or ''
  fills: bool = False  # does a choice fill the blanks of the text, if it has any?

  @property
  def seconds(self):
    """What follows the context for each choice."""
    return [
      _BLANK.sub(lambda _, choice=choice: choice, self.text)
      if self.fills and _BLANK.search(self.text)
      else f'{self.text} {choice}'.strip()
      for choice in self.choices
    ]


def read(config, split, problems):
  """[Question] of a split, faulty ones left to `problems`."""
  if not config.data[split]:
    raise InputError(f'data.{split} is empty; name data of task.format={config.task.format}.')
  reader = {'race': _race, 'swag': _swag, 'dream': _dream, 'copa': _copa}[config.task.format]
  out = []
  for _, spec in files.parts(config.data[split]):
    for where, fields, answer in reader(spec, split, problems):
      question = _checked(where, fields, answer, split, problems)
      if question is None:
        continue
      problems.seen(question.id, where)
      out.append(question)
  if not out:
    raise InputError(f'data.{split}={config.data[split]} holds no questions; is it the right file?')
  problems.counts['questions'] += len(out)
  usual = Counter(len(question.choices) for question in out).most_common(1)[0][0]
  for question in out:
    if (number := len(question.choices)) != usual:
      problems.note(
        f'questions of {number} choices, where most have {usual} (kept)', question.where
      )
  return out


def _checked(where, fields, answer, split, problems):
  """A Question, or None if it is faulty; answer: a function from the choices to the number of the
  right one or None, or None if nobody says."""
  choices = fields['choices']
  if len(choices) < 2:
    problems.wrong(
      where, f'there are {len(choices)} choices; a question needs two', 'questions without a choice'
    )
    return None
  gold = None
  if answer is None and split == 'train':
    problems.wrong(where, 'the answer is missing', 'questions without an answer')
    return None
  if answer is not None:
    gold = answer(choices)
    if gold is None or not 0 <= gold < len(choices):
      problems.wrong(
        where, f'its answer is none of the {len(choices)} choices', 'answers that are no choice'
      )
      return None
  parts = {'contexts': [fields['context']], 'questions': [fields['text']], 'choices': choices}
  for name, texts in parts.items():
    if not all(text.strip() for text in texts):
      problems.note(f'empty {name} (kept)', where)
  if len(set(choices)) < len(choices):
    problems.note('questions with equal choices (kept)', where)
  return Question(where, gold=gold, **fields | {'choices': tuple(choices)})


# -- where answers come as a letter, a number or a text --------------------------------------------


def _letter(answer):
  letters = dict(zip('ABCDEFGHIJ', range(10)))
  return lambda choices: letters.get(answer.strip().upper())


def _number(answer):
  return lambda choices: int(answer) if answer.isdecimal() else None


def _text(answer, where, problems):
  def index(choices):
    if answer in choices:
      return choices.index(answer)
    plain = [choice.strip() for choice in choices]
    if answer.strip() not in plain:
      return None
    problems.note('answers with other blanks than their choice (mended)', where)
    return plain.index(answer.strip())

  return index


# -- one reader for each format: yields (where, fields of a Question, answer or None) --------------


def _race(spec, split, problems):
  for where, passage in _passages(spec, split, problems):
    try:
      article, questions, options = passage['article'], passage['questions'], passage['options']
      name = passage['id'] if 'id' in passage else passage['example_id']
      answers = passage.get('answers', [None] * len(questions) if split != 'train' else [])
      if not len(questions) == len(options) == len(answers):
        raise ValueError(
          f'{len(questions)} questions, {len(options)} options, {len(answers)} answers'
        )
      _check_texts(article, name, *_list(questions), *(x for x in answers if x is not None))
      for choices in _list(options):
        _check_texts(*_list(choices))
    except (KeyError, TypeError, ValueError) as error:
      problems.wrong(
        where,
        f'no article, questions, options, answers and id of equal number ({error!r})',
        'passages without their fields',
      )
      continue
    level = next((part for part in where.split('/') if part in LEVELS), '')
    for k, (text, choices, answer) in enumerate(zip(questions, options, answers)):
      fields = dict(id=f'{name}-{k}', context=article, text=text, choices=choices, level=level)
      yield f'{where}:{k}', fields | {'fills': True}, None if answer is None else _letter(answer)


def _passages(spec, split, problems):
  """Yields (where, passage of RACE); where has the level in it."""
  if spec.startswith('tfds:'):
    rows = tables.records(
      spec, split='train' if split == 'train' else 'dev', counts=problems.counts
    )
    for where, row in rows:
      lists = ('questions', 'options', 'answers')  # as JSON; another data set may have none
      names = [name for name in lists if row.get(name, '').startswith('[')]
      yield where, row | {name: json.loads(row[name]) for name in names}
    return
  folder = Path(spec).expanduser() / ('train' if split == 'train' else 'dev')
  for path in files.expand(str(folder) if folder.is_dir() else spec):
    where = f'{path.parent.name}/{path.name}'
    passage = files.whole_json(path, where, problems.counts, problems.wrong)
    if isinstance(passage, dict):
      yield where, passage
    elif passage is not None:
      problems.wrong(where, 'no JSON object; RACE has one in each file', 'files without a passage')


def _swag(spec, split, problems):
  for number, (where, row) in enumerate(_rows(spec, split, problems)):
    endings = [name for name in row if re.fullmatch(r'ending\d', name)]
    found = problems.columns(row, ('sent1', 'sent2'), where)
    if found is None:
      continue
    fields = dict(
      id=row.get('', str(number)),  # SWAG's first column has no name
      context=found[0],
      text=found[1],
      choices=[row[name] for name in endings],
    )
    yield where, fields, _number(row['label']) if row.get('label') else None


def _copa(spec, split, problems):
  for number, (where, row) in enumerate(_rows(spec, split, problems)):
    try:
      fields = dict(
        id=row.get('idx', str(number)),
        context=row['premise'],
        text=COPA[row['question']],
        choices=[row['choice1'], row['choice2']],
      )
    except KeyError as error:
      problems.wrong(
        where,
        f'no premise, question (cause or effect), choice1 and choice2 ({error!r})',
        'records without their fields',
      )
      continue
    label = {'choice1': '0', 'choice2': '1', '-1': ''}.get(row.get('label'), row.get('label'))
    yield where, fields, _number(label) if label else None


def _rows(spec, split, problems):
  split = 'train' if split == 'train' else 'validation'
  return tables.records(spec, split=split, counts=problems.counts, wrong=problems.wrong)


def _dream(spec, split, problems):
  for path in files.of_split(spec, split):
    content = files.whole_json(path, path.name, problems.counts, problems.wrong)
    if not isinstance(content, list):
      if content is not None:
        problems.wrong(
          path.name, 'no JSON list; is it data of DREAM or C3?', 'files without a list'
        )
      continue
    for number, record in enumerate(content):
      yield from _dialogue(record, f'{path.name}[{number}]', problems)


def _dialogue(record, where, problems):
  try:
    turns, questions, name = record
    found = []
    for k, own in enumerate(questions):
      answer = own.get('answer')
      fields = dict(id=f'{name}-{k}', text=own['question'], choices=_list(own['choice']))
      fields['context'] = '\n'.join(_list(turns))
      _check_texts(fields['text'], *fields['choices'], answer or '')
      found.append((fields, answer))
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    problems.wrong(
      where,
      f'not [turns, [{{question, choice, answer}}, ..], id] ({error!r})',
      'dialogues without their fields',
    )
    return
  for k, (fields, answer) in enumerate(found):
    yield f'{where}:{k}', fields, _text(answer, where, problems) if answer else None


def _list(value):
  if not isinstance(value, list):
    raise TypeError(f'{value!r:.40} is no list')
  return value


def _check_texts(*values):
  for value in values:
    if not isinstance(value, str):
      raise TypeError(f'{value!r:.40} is no text')
