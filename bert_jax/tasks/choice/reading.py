"""Reads multiple-choice questions in the formats in which they are published.

  race   RACE (Lai et al. 2017): a folder with train/high, dev/middle.. whose files each hold a JSON
         object with article, questions, options, answers (letters) and id; or tfds:race/high,
         NAME=tfds:race/high,NAME=tfds:race/middle; or .parquet, hf:NAME, as a row each question
  swag   SWAG (Zellers et al. 2018): CSV with sent1, sent2, ending0.., label
  dream  DREAM (Sun et al. 2019) and C3 (Sun et al. 2020): JSON, a list of [turns of a dialogue or
         paragraphs, [{question, choice, answer (its text)}, ..], id]; or such rows of DREAM
  copa   SuperGLUE's COPA and XCOPA (JSONL, or tfds:super_glue/copa): premise, question (cause or
         effect), choice1, choice2, label

A model reads each choice as the context followed by the question and the choice. SWAG's context is
sent1, its question sent2. COPA's questions are worded as on its annotation sheets, in English for
every language, so that a model trained on one language meets the same question in another. A
question of RACE with a blank (_) has the choice in its place, as in RoBERTa.

A question with missing fields, fewer than two choices or an answer that is none of them cannot be
used; one without an answer is left out of training. Of equal choices the first is the answer.
"""

import re
from collections import Counter
from typing import NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import InputError, listed, quoted
from bert_jax.files import Path
from bert_jax.tasks.faulty_records import Problems, Unusable, reads, says_no_label
from bert_jax.text import files, tables
from bert_jax.text.values import json_value

LEVELS = 'middle', 'high'  # the kinds of school of RACE
HINT = 'call its columns sent1 (the context), sent2 (the question, or empty), ending0, .., label'
DIALOGUE = 'not [turns, [{question, choice, answer}, ..], id]'
COPA = {'cause': 'What was the cause of this?', 'effect': 'What happened as a result?'}
NO_ENDING = 'endings without a text (left out)'  # a kind of fault
_ENDING = re.compile(r'ending\d')
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


@reads('questions', name='data of the format in task.format')
def _read(config, split, problems):
  reader = {'race': _race, 'swag': _swag, 'dream': _dream, 'copa': _copa}[config.task.format]
  for _, spec in files.parts(config.data[split]):
    if config.task.format in ('race', 'dream') and files.suffix(Path(spec)) in ('.csv', '.tsv'):
      is_json = f'{spec} is a table, and {config.task.format} is JSON'
      raise InputError(f'data.{split}: {is_json}; use task=swag and {HINT}.')
    for where, fields, gold in reader(spec, split, problems):
      with problems.of_record(where):
        question = _checked(where, fields, gold, problems)
        if gold is not None or not problems.lacks('an answer', where, split):
          yield question


def _checked(where, fields, gold, problems):
  """Makes a Question. gold: the number of the right choice; a text that is none; None: unknown."""
  choices = fields['choices']
  if len(choices) < 2:
    few = f'there are {len(choices)} choices; a question needs two'
    raise Unusable(few, 'questions without a choice')
  if isinstance(gold, str):
    fault = f'its answer {quoted(gold)} is none of the {len(choices)} choices {listed(choices)}'
    raise Unusable(fault, 'answers that are no choice')
  parts = {'contexts': [fields['context']], 'questions': [fields['text']], 'choices': choices}
  for name, texts in parts.items():
    if not all(map(str.strip, texts)):
      problems.note(f'empty {name} (kept)', where)
  if len(set(choices)) < len(choices):
    problems.note('questions with equal choices (kept)', where)
  return Question(where, gold=gold, **fields | {'choices': tuple(choices)})


# -- a reader of each format: yields (where, {field of a Question: value}, gold as in _checked) ----


def _race(spec, split, problems):
  layout = 'no article, questions, options, answers and id of equal number'
  for where, passage in _passages(spec, split, problems):
    with problems.of_record(where, layout, 'passages without their fields'):
      if 'questions' not in passage:  # records of one question each
        texts = {f'{name}s': [passage[name]] for name in ('question', 'answer') if name in passage}
        passage = {**passage, 'options': [_list(passage['options'])], **texts, 'id': where}
      questions, options = (_list(passage[name]) for name in ('questions', 'options'))
      options = [_texts(_list(choices)) for choices in options]
      answers = _list(
        passage.get('answers') or ([None] * len(questions) if split != 'train' else [])
      )
      name = passage['id'] if 'id' in passage else passage['example_id']
      numbers = len(questions), len(options), len(answers)
      if len(set(numbers)) > 1:
        raise ValueError('{} questions, {} options, {} answers'.format(*numbers))
      article, name, *questions = _texts([passage['article'], name, *questions])
      level = next((part for part in re.split('[/:]', where) if part in LEVELS), '')
      of_all = dict(context=article, level=level, fills=True)
      for k, (text, choices, answer) in enumerate(zip(questions, options, _texts(answers))):
        gold = _gold(answer.upper(), choices)
        yield f'{where}:{k}', dict(of_all, id=f'{name}-{k}', text=text, choices=choices), gold


def _passages(spec, split, problems):
  """Yields (where, passage) of RACE; `where` contains the level."""
  if _are_tables(spec):
    yield from ((where, tables.with_nulls(row)) for where, row in problems.rows(spec))
    return
  folder = Path(spec).expanduser() / ('train' if split == 'train' else 'dev')
  for path in files.expand(str(folder) if folder.is_dir() else spec):
    where = f'{path.parent.name}/{path.name}'
    if (passage := problems.json(path, where)) is not None:
      yield where, passage


def _swag(spec, split, problems):
  for number, (where, row) in enumerate(problems.rows(spec)):
    with problems.of_record(where):
      names = sorted(filter(_ENDING.fullmatch, {**row, **row.no_text})) or ['ending0']
      context, text, *choices = problems.columns(row, ['sent1', 'sent2', *names], where, HINT)
      gold = _gold(row.get('label'), names, names)  # which may be the word nan
      while choices and choices[-1].strip().lower() in ('', 'nan' * (gold != len(choices) - 1)):
        choices.pop()  # fewer than others have
        problems.note(NO_ENDING, where)
      name = row.get('', str(number))  # SWAG's first column has no name
      fields = {'context': context, 'text': text, 'choices': choices, 'id': name}
      yield where, fields, _gold(row.get('label'), choices, names)


def _copa(spec, split, problems):
  layout = 'premise, question (cause or effect), choice1 and choice2'
  for number, (where, row) in enumerate(problems.rows(spec)):
    with problems.of_record(where, f'no {layout}', 'records without their fields'):
      names = 'premise', 'choice1', 'choice2'
      context, *choices = problems.columns(row, names, where, f'COPA has {layout}')
      fields = {'context': context, 'text': COPA[row['question']], 'choices': choices}
      fields['id'] = row.get('idx', str(number))
      yield where, fields, _gold(row.get('label'), fields['choices'], ['choice1', 'choice2'])


def _are_tables(spec):
  """Whether a spec names a set, or tables of Arrow."""
  return files.is_named(spec) or any(files.suffix(x) in files.RECORDS for x in files.expand(spec))


def _dream(spec, split, problems):
  if _are_tables(spec):
    for where, row in problems.rows(spec):
      with problems.of_record(where, DIALOGUE, 'dialogues without their fields'):
        cells = tables.with_nulls(row)
        yield from _dialogue((row['dialogue'], [cells], row.get('id', where)), where, problems)
    return
  for path in files.split_files(spec, split):
    content = problems.json(path, path.name)
    if isinstance(content, list):
      for number, record in enumerate(content):
        where = f'{path.name}[{number}]'
        with problems.of_record(where, DIALOGUE, 'dialogues without their fields'):
          yield from _dialogue(record, where, problems)
    elif content is not None:
      problems.wrong(path.name, 'no JSON list; is it data of DREAM or C3?', 'files without a list')


def _dialogue(record, where, problems):
  """The questions about a dialogue, as a list: one that is faulty makes all of them so."""
  (turns, asked, name), out = record, []
  for k, question in enumerate(asked):
    place, choices = f'{where}:{k}', _texts(_list(question['choice']))
    text, answer = _texts([question['question'], question.get('answer')])
    fields = dict(id=f'{name}-{k}', text=text, choices=choices)
    fields['context'] = '\n'.join(_texts(_list(turns)))
    gold = None if not answer else choices.index(answer) if answer in choices else answer
    if gold == answer and answer.strip() in (plain := [choice.strip() for choice in choices]):
      problems.note('answers with other blanks than their choice (mended)', place)
      gold = plain.index(answer.strip())
    out.append((place, fields, gold))
  return out


def _gold(label, choices, columns=()):
  """The right choice as in _checked, from its number, column, letter or text."""
  label, number = (label or '').strip().removesuffix('.0'), len(choices)
  for known in ([*map(str, range(number))], columns, 'ABCDEFGHIJ'[:number], choices):
    if label and label in [*known]:
      return [*known].index(label)
  return None if says_no_label(label) else label


def _list(value):
  """The list that a value is, or that a data set of TFDS holds as JSON; TypeError if it is none."""
  if isinstance(value, str) and value.startswith('['):
    value = json_value(value)
  if not isinstance(value, list):
    raise TypeError(f'{quoted(value)} is no list')
  return value


def _texts(values):
  """Values that are texts or null, an empty text; TypeError if one is neither."""
  for value in values:
    if not (value is None or isinstance(value, str)):
      raise TypeError(f'{quoted(value)} is no text')
  return ['' if value is None else value for value in values]
