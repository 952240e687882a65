"""The objective and rows of extractive question answering: the answer is a part of a context.

An example is [CLS] question [SEP] window of the context [SEP]; reading.py reads the questions,
spans.py finds the best spans, squad_scores.py scores. Answers are characters of the context as it
was given. Of several gold answers the first is learnt, and all count in the scores. In a window
without the whole answer, and for a question without one (SQuAD 2.0), the answer to learn is [CLS].

With qa.unanswerable the prediction is '' if the odds of no answer (the logits of [CLS] minus the
logits of the best span) are above qa.null_threshold. Scores whose names begin with best_ use the
threshold that is best on the evaluated data.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from scipy.special import softmax

from bert_jax.errors import InputError
from bert_jax.metrics import LossLevel
from bert_jax.objectives.qa import QuestionAnswering
from bert_jax.rows import windows
from bert_jax.rows.examples import tokens_of
from bert_jax.tasks import labelled
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.qa import squad_scores
from bert_jax.tasks.qa.reading import Question, questions
from bert_jax.tasks.qa.spans import Spans, best_spans, bounds_of, tokens_between
from bert_jax.tasks.scored import Scored, always
from bert_jax.tokenizers import Tokenizer

SPECIAL = 3  # [CLS] question [SEP] context [SEP]
NO_SPAN = -1e6  # the sum of logits that stands for the best span of an empty context
N_BEST = 20  # spans kept of each question
LEAST = 1e-12  # added to the probability of the gold answers, which may not be among these spans
_CHUNK = 1000  # contexts that are tokenized at once


def texts(config: ConfigDict) -> Iterator[str]:
  seen = set()
  for question in questions(config, 'train', Problems.of(config, 'train')):
    yield question.text
    if question.context not in seen:
      seen.add(question.context)
      yield question.context


def objective(config: ConfigDict, tokenizer: Tokenizer) -> QuestionAnswering:
  return labelled.objective(QuestionAnswering, config, unanswerable=config.qa.unanswerable)


class Windows(Scored):
  """The rows of questions: the windows of question i are examples first[i] to first[i + 1] - 1.
  Training leaves out the questions that have nothing to learn. plans: for each question (the first
  tokens of its windows; their bounds, see spans.bounds_of; the position in a window where
  the context begins). spans: for each question [(first, last)] tokens of its gold answers."""

  def __init__(
    self, config: ConfigDict, tokenizer: Tokenizer, questions: list[Question], problems: Problems
  ):
    self.qa, self.questions, limit = config.qa, questions, labelled.limit(config)
    encodings = _encoded(tokenizer, [question.context for question in questions])
    self.offsets = {context: encoding.offsets for context, encoding in encodings.items()}
    self.read, self.tokens = [encoding.ids for encoding in encodings.values()], []
    self.first, self.plans, self.spans = [0], [], []
    parts, positions, weights = [], [], []
    for question, ids in zip(questions, tokenizer.ids_batch([q.text for q in questions])):
      context, most = encodings[question.context].ids, self.qa.max_query_length
      self.tokens.append(len(ids) + len(context))
      if len(ids) > most:
        problems.note(f'questions cut (longer than {most} tokens)', question.where)
        ids = ids[:most]
      self.read.append(ids)
      ids, _ = tokenizer.pair(ids, context)
      room, begin = limit - SPECIAL - len(ids), len(ids) + 2
      if room < 1:
        raise InputError(
          f'a window of {limit} tokens has no room for a context beside a question of {len(ids)}; '
          'raise task.max_length or data.seq_length, or lower qa.max_query_length.'
        )
      starts = windows.starts(len(context), room, self.qa.doc_stride)
      self.plans.append((starts, bounds_of(starts, len(context), room), begin))
      spans = self._gold_tokens(question, problems)
      self.spans.append(spans)
      is_learnt = bool(spans) or (self.qa.unanswerable and question.gold == ())
      if is_learnt or problems.split != 'train':
        ends = np.minimum(starts + room, len(context))
        parts += [(ids, context[start:end]) for start, end in zip(starts, ends)]
        positions.append(self._positions(question, spans[:1], starts, ends, begin, problems))
        weights.append(np.full(len(starts), is_learnt, np.float32))
      self.first.append(len(parts))
    if problems.split == 'train' and not parts:
      raise InputError(
        'no question of data.train has an answer to learn; write answers as contexts have them, '
        'or set qa.unanswerable=true for questions that have none, as in SQuAD 2.0.'
      )
    start_positions, end_positions = np.concatenate(positions).T
    super().__init__(
      tokenizer,
      parts,
      per_example={'weights': np.concatenate(weights)},
      positions={'start_positions': start_positions, 'end_positions': end_positions},
      **labelled.shape(config),
    )
    self.size = len(questions)
    self._add_baselines()

  def _add_baselines(self):
    self.baselines['cross_entropy'] = LossLevel(float(np.mean(np.log(self.lengths))), 'uniform')
    golds = [question.gold for question in self.questions if question.gold is not None]
    names, share = ['exact', 'f1'], 0.0
    self.scored = sum(map(bool, golds))
    if self.qa.unanswerable:
      names += ['best_exact', 'best_f1']
      self.scored = len(golds)
      share = 100 * np.mean([gold == () for gold in golds]) if golds else 0.0
    if golds:
      self.baselines |= always('unanswered', dict.fromkeys(names, share))

  @staticmethod
  def _positions(question, spans, starts, ends, begin, problems):
    """The first and last position of the answer in each window, [W, 2]; 0 where it is not whole."""
    at = np.zeros((len(starts), 2), np.int32)
    for first, last in spans:
      whole = (starts <= first) & (last < ends)
      at[whole] = np.array([first, last]) - starts[whole, None] + begin
      if not whole.any():
        problems.note('answers that no window holds whole', question.where)
    return at

  def _gold_tokens(self, question, problems):
    """The (first, last) tokens of the gold answers whose place in the context is known."""
    spans, offsets = [], self.offsets[question.context]
    for text, start in zip(question.gold or (), question.starts, strict=True):
      first, last = tokens_between(offsets, start, start + len(text))
      if start >= 0 and first > last:
        problems.note('answers without a token (not learnt)', question.where)
      elif start >= 0:
        spans.append((first, last))
    return spans

  def answers(self, outputs: Mapping[str, np.ndarray]) -> list[dict]:
    starts = tokens_of(outputs, 'start_logits', self.lengths)
    ends = tokens_of(outputs, 'end_logits', self.lengths)
    out = []
    for i, (first, last) in enumerate(itertools.pairwise(self.first)):
      examples = range(first, last)
      if examples and all(e in starts for e in examples):
        out.append(self._answer(i, [starts[e] for e in examples], [ends[e] for e in examples]))
    return out

  def _answer(
    self, i: int, start_logits: list[np.ndarray], end_logits: list[np.ndarray]
  ) -> dict[str, Any]:
    """The answer to question i; start_logits, end_logits: an array over tokens for each window."""
    question, (starts, bounds, begin) = self.questions[i], self.plans[i]
    spans = best_spans(
      starts,
      bounds,
      [logits[begin:-1] for logits in start_logits],
      [logits[begin:-1] for logits in end_logits],
      longest=self.qa.max_answer_length,
      count=2 * N_BEST,  # more than are kept, since equal texts are merged
    )
    nbest = self._nbest(question, spans)
    answer = {
      'id': question.id,
      'where': question.where,
      'question': question.text,
      'length': self.tokens[i],
      'answer': nbest[0]['text'] if nbest else '',
    }
    answer['prediction'] = answer['answer']
    if self.qa.unanswerable:
      at_cls = [(float(s[0]), float(e[0])) for s, e in zip(start_logits, end_logits, strict=True)]
      start, end = min(at_cls, key=sum)
      answer['null_odds'] = start + end - (_sum(nbest[0]) if nbest else NO_SPAN)
      nbest = sorted([*nbest, _entry('', 0, 0, start, end)], key=_sum, reverse=True)
      if answer['null_odds'] > self.qa.null_threshold:
        answer['prediction'] = ''
    nbest = nbest or [_entry('', 0, 0, 0.0, 0.0)]
    for entry, share in zip(nbest, softmax([_sum(entry) for entry in nbest]), strict=True):
      entry['probability'] = float(share)
    predicted = next(entry for entry in nbest if entry['text'] == answer['prediction'])
    answer['probability'] = predicted['probability']
    answer['span'] = [predicted['start'], predicted['end']]
    if question.gold is not None and (question.gold or self.qa.unanswerable):
      answer['gold'] = list(question.gold)
      right = question.gold or ('',)
      share = sum(entry['probability'] for entry in nbest if entry['text'] in right)
      answer['loss'] = -math.log(share + LEAST)
    return answer | {'nbest': nbest}

  def _nbest(self, question: Question, spans: Spans) -> list[dict[str, Any]]:
    """The best spans with different texts, as entries of nbest_predictions.json."""
    offsets, entries = self.offsets[question.context], {}
    begins, ends = offsets[spans.first, 0].tolist(), offsets[spans.last, 1].tolist()
    logits = zip(spans.start_logits.tolist(), spans.end_logits.tolist())
    for begin, end, (start_logit, end_logit) in zip(begins, ends, logits, strict=True):
      text = question.context[begin:end]
      if text and text not in entries:
        entries[text] = _entry(text, begin, end, start_logit, end_logit)
    return list(entries.values())[:N_BEST]

  def scores(self, answers: list[dict]) -> dict[str, float]:
    predictions = [answer['prediction'] for answer in answers]
    golds = [answer['gold'] for answer in answers]
    if self.qa.unanswerable:
      texts = [answer['answer'] for answer in answers]
      odds = [answer['null_odds'] for answer in answers]
      best = squad_scores.best_thresholds(texts, golds, odds)
      return squad_scores.squad2(predictions, golds) | best
    if self.qa.answer_units == 'characters':
      return squad_scores.cmrc(predictions, golds)
    return squad_scores.squad(predictions, golds)

  def files(self, answers: list[dict]) -> dict[str, str]:
    """The files that run_squad.py writes and the official scripts read. From answers.json, the best
    spans whatever the threshold, and null_odds.json evaluate-v2.0.py finds the best threshold."""
    kinds = {'predictions.json': 'prediction', 'nbest_predictions.json': 'nbest'}
    if self.qa.unanswerable:
      kinds |= {'null_odds.json': 'null_odds', 'answers.json': 'answer'}
    out = {}
    for name, kind in kinds.items():
      by_id = {answer['id']: answer[kind] for answer in reversed(answers)}  # the first of an id
      in_order = {answer['id']: by_id[answer['id']] for answer in answers}
      out[name] = json.dumps(in_order, indent=1, ensure_ascii=False) + '\n'
    return out

  def constant(self, answers: list[dict]) -> str:
    return super().constant([a | {'prediction': a['prediction'] or 'no answer'} for a in answers])


def _encoded(tokenizer, contexts):
  """{context: its encoding}, some at a time, as encodings of the library are large."""
  out, contexts = {}, list(dict.fromkeys(contexts))
  for first in range(0, len(contexts), _CHUNK):
    part = contexts[first : first + _CHUNK]
    out |= zip(part, tokenizer.encode_batch(part), strict=True)
  return out


def _entry(text, start, end, start_logit, end_logit):
  """An entry of nbest_predictions.json, whose probability follows when all entries are known."""
  return {
    'text': text,
    'probability': 0.0,
    'start': start,
    'end': end,
    'start_logit': start_logit,
    'end_logit': end_logit,
  }


def _sum(entry):
  return entry['start_logit'] + entry['end_logit']


sources = labelled.sources_of(Windows, questions)
