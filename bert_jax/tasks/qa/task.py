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
from bert_jax.tasks.labelled import Scored
from bert_jax.tasks.qa import squad_scores
from bert_jax.tasks.qa.reading import Question, questions
from bert_jax.tasks.qa.spans import Spans, best_spans, bounds_of, tokens_between
from bert_jax.tokenizers import Tokenizer

SPECIAL = 3  # [CLS] question [SEP] context [SEP]
NO_SPAN = -1e6  # the sum of logits that stands for the best span of an empty context
_CHUNK = 1000  # contexts that are tokenized at once, as the encodings of the library are large


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

  leaves_out = 'null_odds.json', 'answers.json'

  def __init__(
    self, config: ConfigDict, tokenizer: Tokenizer, questions: list[Question], problems: Problems
  ):
    self.qa, self.questions, limit = config.qa, questions, labelled.limit(config)
    encodings, contexts = {}, iter(dict.fromkeys(question.context for question in questions))
    while part := list(itertools.islice(contexts, _CHUNK)):
      encodings |= zip(part, tokenizer.encode_batch(part), strict=True)
    self.offsets = {context: encoding.offsets for context, encoding in encodings.items()}
    self.read, parts, self.tokens = [encoding.ids for encoding in encodings.values()], [], []
    at, weights, self.first, self.plans, self.spans = [], [], [0], [], []
    for question, ids in zip(questions, tokenizer.ids_batch([q.text for q in questions])):
      context = encodings[question.context].ids
      self.tokens.append(len(ids) + len(context))
      if len(ids) > (most := self.qa.max_query_length):
        problems.note(f'questions cut (longer than {most} tokens)', question.where)
        ids = ids[:most]
      self.read.append(ids)
      ids, _ = tokenizer.pair(ids, context)
      room, begin = limit - SPECIAL - len(ids), len(ids) + 2
      if room < 1:
        raise InputError(f'a window of {limit} tokens has no room beside a question of {len(ids)}.')
      starts = windows.starts(len(context), room, self.qa.doc_stride)
      self.plans.append((starts, bounds_of(starts, len(context), room), begin))
      self.spans.append(self._gold_tokens(question, problems))
      learnt = bool(self.spans[-1]) or (self.qa.unanswerable and question.gold == ())
      if learnt or problems.split != 'train':
        parts += [(ids, context[start : start + room]) for start in starts]
        ends = np.minimum(starts + room, len(context))
        at.append(self._positions(question, self.spans[-1][:1], starts, ends, begin, problems))
        weights.append(np.full(len(starts), learnt, np.float32))
      self.first.append(len(parts))
    if problems.split == 'train' and not parts:
      none = 'no question of data.train has an answer to learn; write answers as contexts have them'
      unanswered = any(question.gold == () for question in questions)
      more = ', or set qa.unanswerable=true for those that have none, as in SQuAD 2.0'
      raise InputError(f'{none}{more * unanswered}.')
    positions = dict(zip(('start_positions', 'end_positions'), np.concatenate(at).T))
    options = {'per_example': {'weights': np.concatenate(weights)}, 'positions': positions}
    super().__init__(tokenizer, parts, **options, **labelled.shape(config))
    self.size = len(questions)
    self.baselines['qa'] = LossLevel(float(np.mean(np.log(self.lengths))), 'uniform')
    known = [question.gold for question in questions if question.gold is not None]
    self.scored = len(known) if self.qa.unanswerable else sum(map(bool, known))
    if known:
      names = ('exact', 'f1') + ('best_exact', 'best_f1') * self.qa.unanswerable
      share = 100 * np.mean([gold == () for gold in known]) if self.qa.unanswerable else 0
      self.baselines |= labelled.always('unanswered', dict.fromkeys(names, share))

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
        if question.context[offsets[first, 0] : offsets[last, 1]] != text.strip():
          problems.note('answers not on token borders (whole tokens learnt)', question.where)
    return spans

  def answers(self, outputs: Mapping[str, np.ndarray]) -> list[dict]:
    logits = [tokens_of(outputs, f'{side}_logits', self.lengths) for side in ('start', 'end')]
    out = []
    for i, examples in enumerate(itertools.starmap(range, itertools.pairwise(self.first))):
      if examples and all(e in logits[0] for e in examples):
        out.append(self._answer(i, *([side[e] for e in examples] for side in logits)))
    return out

  def _answer(
    self, i: int, start_logits: list[np.ndarray], end_logits: list[np.ndarray]
  ) -> dict[str, Any]:
    """The answer to question i; start_logits, end_logits: an array over tokens for each window."""
    question, (starts, bounds, begin) = self.questions[i], self.plans[i]
    logits = ([x[begin:-1] for x in side] for side in (start_logits, end_logits))
    count = 2 * self.qa.n_best_size  # more than are kept, since equal texts are merged
    options = {'longest': self.qa.max_answer_length, 'count': count}
    nbest = self._nbest(question, best_spans(starts, bounds, *logits, **options))
    out: dict[str, Any] = {'id': question.id, 'where': question.where, 'question': question.text}
    out['length'], out['answer'] = self.tokens[i], nbest[0]['text'] if nbest else ''
    out['prediction'] = out['answer']
    if self.qa.unanswerable:
      at_cls = [(float(s[0]), float(e[0])) for s, e in zip(start_logits, end_logits, strict=True)]
      null = min(at_cls, key=sum)
      odds = sum(null) - (_sum(nbest[0]) if nbest else NO_SPAN)
      nbest = sorted([*nbest, _entry('', 0, 0, *null)], key=_sum, reverse=True)
      if odds > self.qa.null_threshold:
        out['prediction'] = ''
      out['null_odds'] = odds
    nbest = nbest or [_entry('', 0, 0, 0.0, 0.0)]
    for entry, share in zip(nbest, softmax(list(map(_sum, nbest))), strict=True):
      entry['probability'] = float(share)
    shown = next(entry for entry in nbest if entry['text'] == out['prediction'])
    out |= {'probability': shown['probability'], 'span': [shown['start'], shown['end']]}
    if question.gold is not None and (question.gold or self.qa.unanswerable):
      out['gold'] = list(question.gold)
      if nats := self._nats(i, start_logits, end_logits):
        out['loss'] = float(min(nats) if question.gold else max(nats))
    return out | {'nbest': nbest}

  def _nbest(self, question: Question, spans: Spans) -> list[dict[str, Any]]:
    """The best spans with different texts, as entries of nbest_predictions.json."""
    offsets, entries = self.offsets[question.context], {}
    columns = offsets[spans.first, 0], offsets[spans.last, 1], spans.start_logits, spans.end_logits
    for start, end, *logits in zip(*(column.tolist() for column in columns), strict=True):
      if text := question.context[start:end]:
        entries.setdefault(text, _entry(text, start, end, *logits))
    return list(entries.values())[: self.qa.n_best_size]

  def _nats(self, i, start_logits, end_logits):
    """The -log p of each gold span in each window that has it, or of [CLS] in each window."""
    starts, _, begin = self.plans[i]
    nats = []
    for at, start, end in zip(starts, start_logits, end_logits, strict=True):
      gold = [(first - at + begin, last - at + begin) for first, last in self.spans[i]]
      gold = [(a, b) for a, b in gold if a >= begin and b < len(end) - 1]
      total = np.logaddexp.reduce(start) + np.logaddexp.reduce(end)
      nats += [total - start[a] - end[b] for a, b in (gold if self.questions[i].gold else [(0, 0)])]
    return nats

  def scores(self, answers: list[dict]) -> dict[str, float]:
    predictions, golds = ([answer[name] for answer in answers] for name in ('prediction', 'gold'))
    if self.qa.unanswerable:
      best, odds = ([answer[name] for answer in answers] for name in ('answer', 'null_odds'))
      of_best = squad_scores.best_thresholds(best, golds, odds)
      return squad_scores.squad2(predictions, golds) | of_best
    scorer = squad_scores.cmrc if self.qa.answer_units == 'characters' else squad_scores.squad
    return scorer(predictions, golds)

  def files(self, answers: list[dict]) -> dict[str, str]:
    """The files that run_squad.py writes and the official scripts read. From answers.json, the best
    spans whatever the threshold, and null_odds.json evaluate-v2.0.py finds the best threshold."""
    kinds = {'predictions.json': 'prediction', 'nbest_predictions.json': 'nbest'}
    if self.qa.unanswerable:
      kinds |= {'null_odds.json': 'null_odds', 'answers.json': 'answer'}
    out = {name: {} for name in kinds}
    for answer in answers:
      for name, kind in kinds.items():
        out[name].setdefault(answer['id'], answer[kind])
    return {name: json.dumps(x, indent=1, ensure_ascii=False) + '\n' for name, x in out.items()}

  def constant(self, answers: list[dict]) -> str:
    return super().constant([a | {'prediction': a['prediction'] or 'no answer'} for a in answers])


def _entry(text, start, end, start_logit, end_logit):
  # The probability is filled in when all entries are known.
  out = {'text': text, 'probability': 0.0, 'start': start, 'end': end}
  return out | {'start_logit': start_logit, 'end_logit': end_logit}


def _sum(entry):
  return entry['start_logit'] + entry['end_logit']


sources = labelled.sources_of(Windows, questions)
