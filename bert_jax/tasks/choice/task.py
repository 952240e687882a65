"""The rows and scores of multiple choice (RACE, SWAG, DREAM, C3, COPA, XCOPA).

Each choice is an example, [CLS] context [SEP] question and choice [SEP], of task.max_length tokens
at most; the choices of a question share a row. A context that is too long loses its end: the same
number of tokens for all choices of a question, as the longest of them needs. If a question and a
choice alone are too long, they lose their beginning. Both are counted. The score is accuracy.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.errors import log
from bert_jax.metrics import LossLevel
from bert_jax.objectives.choice import Choice
from bert_jax.rows.examples import by_example
from bert_jax.tasks import labelled
from bert_jax.tasks.choice.reading import Question, read
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.scored import Scored, always, choice_of_label
from bert_jax.tokenizers import Tokenizer

SHOWN = 300  # the most characters of a context that an answer shows


def objective(config: ConfigDict, tokenizer: Tokenizer) -> Choice:
  return labelled.objective(Choice, config)


def resolve(config: ConfigDict) -> ConfigDict:
  """Fills in choice.first_label by the training data: 1 if no label there is 0 or a letter."""
  if config.choice.first_label >= 0 or config.task.format == 'dream':
    return config
  problems = Problems('train', skip=True, encoding=config.data.text_encoding)
  questions = read(config, 'train', problems)
  from_0 = any(question.gold == 0 or question.by_letter for question in questions)
  if not from_0:
    log.warning('no label of data.train is 0, so 1 is the first choice (else choice.first_label=0)')
  config = config.copy_and_resolve_references()
  config.choice.first_label = 1 - from_0
  return config


class Choices(Scored):
  """The rows of Q questions, an example for each choice.
  question_at [Q + 1]: the number of each question's first choice, and the number of all choices."""

  def __init__(
    self, config: ConfigDict, tokenizer: Tokenizer, questions: list[Question], problems: Problems
  ):
    self.questions = questions
    numbers = np.array([len(question.choices) for question in questions])
    self.question_at = np.concatenate([[0], np.cumsum(numbers)])
    pairs, self.tokens = _pairs(tokenizer, questions, config.task.max_length, problems)
    self.read = [pairs[at][0] for at in self.question_at[:-1]] + [ids for _, ids in pairs]
    labels, known = np.zeros(self.question_at[-1], np.float32), []
    for at, question in zip(self.question_at, questions):
      if question.gold is not None:
        labels[at + question.gold] = 1
        known.append(question)
    super().__init__(
      tokenizer,
      pairs,
      per_example={'labels': labels},
      items=np.repeat(np.arange(len(questions)), numbers),
      **labelled.shape(config),
    )
    self.scored = len(known)
    if known:
      golds = np.array([question.gold for question in known])
      share = np.bincount(golds).max() / len(golds)
      self.baselines |= always('majority', {'accuracy': share})
      nats = np.mean([np.log(len(question.choices)) for question in known])
      self.baselines['cross_entropy'] = LossLevel(float(nats), 'uniform')

  def answers(self, outputs: Mapping[str, np.ndarray]) -> list[dict]:
    numbers, (predicted,) = by_example(outputs, 'logits')
    logits, seen = np.zeros(self.question_at[-1]), np.zeros(self.question_at[-1], bool)
    logits[numbers], seen[numbers] = predicted, True
    answers = []
    for k, question in enumerate(self.questions):
      own = slice(self.question_at[k], self.question_at[k + 1])
      if seen[own].all():
        answers.append(self._answer(question, logits[own]) | {'length': self.tokens[k]})
    return answers

  def _answer(self, question: Question, logits: np.ndarray) -> dict[str, Any]:
    context, choices, gold = question.context, list(question.choices), question.gold
    if len(context) > SHOWN:
      context = f'{context[:SHOWN]}…'
    chosen = choice_of_label(range(len(choices)), logits, gold)
    answer = {
      'id': question.id,
      'where': question.where,
      'context': context,
      'question': question.text,
      'choices': choices,
      'prediction': chosen['prediction'],
      'prediction_text': choices[chosen['prediction']],
      'probability': chosen['probability'],
      'probabilities': list(chosen['probabilities'].values()),
    }
    if gold is not None:
      answer |= {'gold': gold, 'gold_text': choices[gold], 'loss': chosen['loss']}
    return answer

  def scores(self, answers: list[dict]) -> dict[str, float]:
    hits = [answer['gold'] == answer['prediction'] for answer in answers]
    return {'accuracy': float(np.mean(hits))}

  def files(self, answers: list[dict]) -> dict[str, str]:
    """predictions.tsv: id and number of the choice, from 0."""
    lines = (f'{a["id"]}\t{a["prediction"]}\n' for a in answers)
    return {'predictions.tsv': 'id\tprediction\n' + ''.join(lines)}


texts = labelled.texts_of(read, lambda question: (question.context, *question.seconds))
sources = labelled.sources_of(Choices, read)


def _pairs(tokenizer, questions, limit, problems):
  """Tokenizes and cuts every choice: ([(ids of the context, of question and choice)], [tokens of
  each question's longest choice before it was cut])."""
  most_tokens = limit - 2 - tokenizer.between  # of a context and a choice
  contexts = list(dict.fromkeys(question.context for question in questions))
  ids_of_context = dict(zip(contexts, tokenizer.ids_batch(contexts), strict=True))
  ids_of_all = iter(tokenizer.ids_batch([x for question in questions for x in question.seconds]))
  pairs, lengths = [], []
  for question in questions:
    choices = [next(ids_of_all) for _ in question.choices]
    longest = max(map(len, choices))
    if longest > most_tokens:
      problems.note('questions whose choices lost their beginning', question.where)
      choices = [ids[max(0, len(ids) - most_tokens) :] for ids in choices]
    context = ids_of_context[question.context]
    lengths.append(len(context) + longest)
    kept_of_context = most_tokens - max(map(len, choices))
    if len(context) > kept_of_context:
      problems.counts[f'questions with a cut context (longer than {limit} tokens)'] += 1
    pairs += [tokenizer.pair(context[:kept_of_context], ids) for ids in choices]
  return pairs, lengths
