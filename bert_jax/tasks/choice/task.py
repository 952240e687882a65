"""Multiple choice: RACE, SWAG, DREAM, C3, COPA, XCOPA; how they are read is told in choice_data.py.

A choice is an example, [CLS] context [SEP] question and choice [SEP] of task.max_length tokens at
most, and the choices of a question share a row. A context that is too long loses its end, as much
for every choice of a question as its longest needs. Where that is not enough, which only very long
choices need, question and choice lose their beginning. Both are counted. The score is accuracy; for
RACE also that of its middle and high school part.
"""

import json

import numpy as np
from scipy.special import log_softmax

from bert_jax import models
from bert_jax.errors import InputError
from bert_jax.objectives.choice import Choice
from bert_jax.rows.examples import Scored, by_example
from bert_jax.tasks.choice import reading
from bert_jax.tasks.faulty_records import Problems

SHOWN = 300  # characters of a context in an answer


def resolve(config):
  return config


def texts(config):
  for question in reading.read(config, 'train', Problems('train', config.data.skip_damaged)):
    yield question.context
    yield from question.seconds


def objective(config, tokenizer):
  del tokenizer
  levels = reading.LEVELS if config.task.format == 'race' else ()
  return Choice(
    models.ModelConfig(**config.model),
    config.data.seq_length,
    config.data.examples_per_row,
    scores=tuple(f'{level}_accuracy' for level in levels),
  )


def sources(config, tokenizer, splits=('train', 'eval')):
  out = {}
  for split in splits:
    if split == 'eval' and not config.data.eval:
      continue
    problems = Problems(split, config.data.skip_damaged)
    questions = reading.read(config, split, problems)
    questions = problems.chosen(questions, config.task.train_examples)
    out[split] = Choices(config, tokenizer, questions, problems)
    problems.log()
  return out


class Choices(Scored):
  """The rows of a split. An example is a choice; question_at [Q + 1]: a question's first choice."""

  def __init__(self, config, tokenizer, questions, problems):
    self.format, self.questions = config.task.format, questions
    numbers = np.array([len(question.choices) for question in questions])
    self.question_at = np.concatenate([[0], np.cumsum(numbers)])
    seq_length, most = config.data.seq_length, numbers.max()
    limit = config.task.max_length
    if most * limit > seq_length:
      raise InputError(
        f'a question of {most} choices takes {most} times task.max_length={limit} tokens and a row '
        f'has {seq_length}; set data.seq_length={most * limit} or '
        f'task.max_length={seq_length // most}.'
      )
    labels = np.zeros(self.question_at[-1], np.float32)
    golds = [q.gold for q in questions]
    pairs = _pairs(tokenizer, questions, limit, problems)
    contexts = [pairs[at][0] for at in self.question_at[:-1]]
    self.read = contexts + [ids for _, ids in pairs]
    labels[[at + gold for at, gold in zip(self.question_at, golds) if gold is not None]] = 1
    super().__init__(
      tokenizer,
      pairs,
      seq_length=seq_length,
      slots=config.data.examples_per_row,
      items=np.repeat(np.arange(len(questions)), numbers),
      per_example={'labels': labels},
    )
    known = [gold for gold in golds if gold is not None]
    if known:
      majority = np.bincount(known).max() / len(known)
      self.baselines['choice_accuracy'] = (float(majority), 'majority')
    problems.log_rows(self)

  def answers(self, outputs):
    numbers, (own,) = by_example(outputs, 'logits')
    logits, seen = np.zeros(self.question_at[-1]), np.zeros(self.question_at[-1], bool)
    logits[numbers], seen[numbers] = own, True
    spans = zip(self.questions, self.question_at, self.question_at[1:])
    return [
      self._answer(question, logits[first:last])
      for question, first, last in spans
      if seen[first:last].all()
    ]

  def _answer(self, question, logits):
    logs = log_softmax(logits)
    best = int(np.argmax(logs))
    context = question.context
    out = {
      'id': question.id,
      'where': question.where,
      'context': context if len(context) <= SHOWN else context[:SHOWN] + '…',
      'question': question.text,
      'choices': list(question.choices),
      'prediction': best,
      'prediction_text': question.choices[best],
      'probability': float(np.exp(logs[best])),
      'probabilities': np.exp(logs).tolist(),
    }
    if question.level:
      out['level'] = question.level
    if question.gold is not None:
      text = question.choices[question.gold]
      out |= {'gold': question.gold, 'gold_text': text, 'loss': float(-logs[question.gold])}
    return out

  def scores(self, answers):
    hits = np.array([a['gold'] == a['prediction'] for a in answers])
    levels = np.array([a.get('level', '') for a in answers])
    return {'choice_accuracy': float(hits.mean())} | {
      f'{level}_accuracy': float(hits[levels == level].mean())
      for level in reading.LEVELS
      if (levels == level).any()
    }

  def files(self, answers):
    """predictions.tsv, id and number of the choice from 0; SuperGLUE's COPA.jsonl.

    RACE, DREAM and SWAG publish no script that reads predictions.
    """
    lines = (f'{a["id"]}\t{a["prediction"]}\n' for a in answers)
    out = {'predictions.tsv': 'id\tprediction\n' + ''.join(lines)}
    if self.format == 'copa':
      ids = (int(a['id']) if a['id'].isdecimal() else a['id'] for a in answers)
      found = [{'idx': i, 'label': a['prediction']} for i, a in zip(ids, answers)]
      out['COPA.jsonl'] = ''.join(json.dumps(line) + '\n' for line in found)
    return out


def _pairs(tokenizer, questions, limit, problems):
  """[(ids of the context, ids of question and choice)] of every choice, `limit` in all at most."""
  room = limit - 2 - tokenizer.between
  contexts = list(dict.fromkeys(question.context for question in questions))
  contexts = dict(zip(contexts, tokenizer.ids_batch(contexts), strict=True))
  seconds = iter(tokenizer.ids_batch([x for question in questions for x in question.seconds]))
  out = []
  for question in questions:
    own = [next(seconds) for _ in question.choices]
    if any(len(ids) > room for ids in own):
      problems.note('questions whose choices lost their beginning', question.where)
      own = [ids[max(0, len(ids) - room) :] for ids in own]
    context = contexts[question.context]
    left = room - max(map(len, own))
    if len(context) > left:
      problems.counts[f'questions with a cut context (longer than {limit} tokens)'] += 1
    out += [tokenizer.pair(context[:left], ids) for ids in own]
  return out
