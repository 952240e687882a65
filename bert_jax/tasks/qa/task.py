"""Extractive question answering: the answer is a stretch of a context, or nothing (SQuAD).

A row is [CLS] question [SEP] window of the context [SEP]; see qa_data.py for what is read and
qa_windows.py for the windows. Answers are stretches of the context as it was given. Of several gold
answers the first is learnt, and all count in the scores (see qa_scores.py). A window without the
whole answer points at [CLS], as does a question that has none (qa.unanswerable, SQuAD 2.0).

There, '' is predicted where the odds of no answer, the logits of [CLS] minus those of the best
span, are above qa.null_threshold; scores named best_ are those of the threshold that is best on the
data evaluated.
"""

import json

import numpy as np
from scipy.special import softmax

from bert_jax import models
from bert_jax.errors import InputError
from bert_jax.objectives.qa import QuestionAnswering
from bert_jax.rows.examples import Scored, tokens_of
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.qa import reading, scores
from bert_jax.tasks.qa.windows import best_spans, judged, tokens_between, window_starts

SPECIAL = 3  # [CLS] question [SEP] context [SEP]
NO_SPAN = -1e6  # the logits of the best span of an empty context: surely no answer
_CHUNK = 1000  # contexts tokenized at once: the library's own encodings are large


def resolve(config):
  return config


def texts(config):
  seen = set()
  for question in reading.questions(config, 'train', Problems('train', config.data.skip_damaged)):
    yield question.text
    if question.context not in seen:
      seen.add(question.context)
      yield question.context


def objective(config, tokenizer):
  del tokenizer
  return QuestionAnswering(
    models.ModelConfig(**config.model),
    config.data.seq_length,
    examples_per_row=config.data.examples_per_row,
    unanswerable=config.qa.unanswerable,
  )


def sources(config, tokenizer, splits=('train', 'eval')):
  qa, limit = config.qa, config.task.max_length or config.data.seq_length
  if limit <= qa.max_query_length + SPECIAL + tokenizer.between - 1:
    raise InputError(
      f'a window of {limit} tokens has no room for a context beside a question of '
      f'qa.max_query_length {qa.max_query_length}; raise task.max_length or data.seq_length.'
    )
  if qa.unanswerable and qa.answer_units == 'characters':
    raise InputError(
      'qa.answer_units=characters scores as CMRC 2018, where every question has an answer; set '
      'qa.unanswerable=false or qa.answer_units=words.'
    )
  out = {}
  for split in splits:
    if split == 'eval' and not config.data.eval:
      continue
    problems = Problems(split, config.data.skip_damaged)
    questions = list(reading.questions(config, split, problems))
    questions = problems.chosen(questions, config.task.train_examples)
    out[split] = Windows(config, tokenizer, questions, problems, learn=split == 'train')
    problems.log()
    problems.log_rows(out[split])
  return out


class Windows(Scored):
  """The windows of all questions; those of question i are examples first[i] to first[i + 1].

  learn: leaves out the questions that have nothing to learn.
  """

  def __init__(self, config, tokenizer, questions, problems, *, learn=False):
    self.qa, limit = config.qa, config.task.max_length or config.data.seq_length
    self.questions = questions
    contexts = list(dict.fromkeys(question.context for question in questions))
    encodings = {}
    for i in range(0, len(contexts), _CHUNK):
      part = contexts[i : i + _CHUNK]
      encodings |= zip(part, tokenizer.encode_batch(part), strict=True)
    self.offsets = {context: encoding.offsets for context, encoding in encodings.items()}
    self.read = [encoding.ids for encoding in encodings.values()]
    parts, positions, weights, self.first = [], [], [], [0]
    self.plans = []  # (starts of the windows, their bounds, where the context begins in a window)
    self.spans = []  # (first, last) tokens of the gold answers
    for question, ids in zip(questions, tokenizer.ids_batch([q.text for q in questions])):
      if len(ids) > self.qa.max_query_length:
        kind = f'questions cut (longer than {self.qa.max_query_length} tokens)'
        problems.note(kind, question.where)
        ids = ids[: self.qa.max_query_length]
      self.read.append(ids)
      context = encodings[question.context].ids
      ids, _ = tokenizer.pair(ids, context)
      room = limit - SPECIAL - len(ids)
      starts = window_starts(len(context), room, self.qa.doc_stride)
      spans = self._gold_tokens(question, problems)
      learnt = bool(spans) or (self.qa.unanswerable and question.gold == ())
      if learnt or not learn:
        at = np.zeros((len(starts), 2), np.int32)
        if spans:
          ends = np.minimum(starts + room, len(context))
          whole = (starts <= spans[0][0]) & (spans[0][1] < ends)
          at[whole] = np.array(spans[0]) - starts[whole, None] + len(ids) + 2
          if not whole.any():
            problems.note('answers that no window holds whole', question.where)
        parts += [(ids, context[start : start + room]) for start in starts]
        positions.append(at)
        weights.append(np.full(len(starts), learnt, np.float32))
      self.plans.append((starts, judged(starts, len(context), room), len(ids) + 2))
      self.spans.append(spans)
      self.first.append(len(parts))
    if learn and not parts:
      raise InputError(
        'no question of data.train has an answer to learn; '
        + ('see the counts of answers.' if self.qa.unanswerable else 'is it qa.unanswerable=true?')
      )
    start, end = np.concatenate(positions).T
    super().__init__(
      tokenizer,
      parts,
      seq_length=config.data.seq_length,
      slots=config.data.examples_per_row,
      per_example={'weights': np.concatenate(weights)},
      positions={'start_positions': start, 'end_positions': end},
    )
    self.baselines['qa'] = (float(np.mean(np.log(self.lengths))), 'uniform')

  def _gold_tokens(self, question, problems):
    """[(first, last token)] of the gold answers that are known to be in the context."""
    spans, offsets = [], self.offsets[question.context]
    for text, start in zip(question.gold or (), question.starts, strict=True):
      if start < 0:
        continue
      first, last = tokens_between(offsets, start, start + len(text))
      if first > last:
        problems.note('answers without a token (not learnt)', question.where)
        continue
      spans.append((first, last))
      if question.context[offsets[first, 0] : offsets[last, 1]] != text.strip():
        problems.note('answers not on token borders (whole tokens learnt)', question.where)
    return spans

  def answers(self, outputs):
    logits = [tokens_of(outputs, f'{side}_logits', self.lengths) for side in ('start', 'end')]
    out = []
    for i in range(len(self.questions)):
      own = range(self.first[i], self.first[i + 1])
      if own and all(e in logits[0] for e in own):
        out.append(self._answer(i, *([side[e] for e in own] for side in logits)))
    return out

  def _answer(self, i, start_logits, end_logits):
    """start_logits, end_logits: [W] arrays over the tokens of each window of question i."""
    question, (starts, bounds, begin) = self.questions[i], self.plans[i]
    nbest = self._nbest(
      question,
      best_spans(
        starts,
        bounds,
        *([x[begin:-1] for x in side] for side in (start_logits, end_logits)),
        longest=self.qa.max_answer_length,
        count=2 * self.qa.n_best_size,  # equal texts become one
      ),
    )
    out = {
      'id': question.id,
      'where': question.where,
      'question': question.text,
      'answer': nbest[0]['text'] if nbest else '',
    }
    if self.qa.unanswerable:
      at_cls = [(float(s[0]), float(e[0])) for s, e in zip(start_logits, end_logits, strict=True)]
      null = min(at_cls, key=sum)
      odds = sum(null) - (_sum(nbest[0]) if nbest else NO_SPAN)
      nbest = sorted([*nbest, _entry('', 0, 0, *null)], key=_sum, reverse=True)
      out['prediction'] = '' if odds > self.qa.null_threshold else out['answer']
      out['null_odds'] = odds
    else:
      nbest = nbest or [_entry('', 0, 0, 0.0, 0.0)]
      out['prediction'] = out['answer']
    for entry, share in zip(nbest, softmax(list(map(_sum, nbest))), strict=True):
      entry['probability'] = float(share)
    shown = next(entry for entry in nbest if entry['text'] == out['prediction'])
    out |= {'probability': shown['probability'], 'span': [shown['start'], shown['end']]}
    if question.gold is not None and (question.gold or self.qa.unanswerable):
      out['gold'] = list(question.gold)
      nats = self._nats(i, start_logits, end_logits)
      if nats:
        out['loss'] = float(max(nats) if not question.gold else min(nats))
    return out | {'nbest': nbest}

  def _nbest(self, question, spans):
    """The best spans with different texts, as entries of the file of the n best."""
    offsets, found = self.offsets[question.context], {}
    ends = (offsets[spans.first, 0], offsets[spans.last, 1])
    columns = (*ends, spans.start_logits, spans.end_logits)
    for start, end, *logits in zip(*(column.tolist() for column in columns), strict=True):
      text = question.context[start:end]
      if text and text not in found:
        found[text] = _entry(text, start, end, *logits)
    return list(found.values())[: self.qa.n_best_size]

  def _nats(self, i, start_logits, end_logits):
    """-log p of each gold span in each window that holds it, or in each window of no answer."""
    starts, _, begin = self.plans[i]
    found = []
    for at, start, end in zip(starts, start_logits, end_logits, strict=True):
      gold = [(first - at + begin, last - at + begin) for first, last in self.spans[i]]
      gold = [(a, b) for a, b in gold if a >= begin and b < len(end) - 1]
      if not self.questions[i].gold:
        gold = [(0, 0)]
      total = np.logaddexp.reduce(start) + np.logaddexp.reduce(end)
      found += [total - start[a] - end[b] for a, b in gold]
    return found

  def scores(self, answers):
    predictions, golds = ([answer[key] for answer in answers] for key in ('prediction', 'gold'))
    if self.qa.unanswerable:
      best = ([answer[key] for answer in answers] for key in ('answer', 'gold', 'null_odds'))
      return scores.squad2(predictions, golds) | scores.best_thresholds(*best)
    scorer = scores.cmrc if self.qa.answer_units == 'characters' else scores.squad
    return scorer(predictions, golds)

  def files(self, answers):
    """What run_squad.py writes and the official scripts read. answers.json: the best spans without
    a threshold; with null_odds.json evaluate-v2.0.py finds the best one on them."""
    kinds = {'predictions.json': 'prediction', 'nbest_predictions.json': 'nbest'}
    if self.qa.unanswerable:
      kinds |= {'null_odds.json': 'null_odds', 'answers.json': 'answer'}
    out = {name: {} for name in kinds}
    for answer in answers:
      for name, kind in kinds.items():
        out[name].setdefault(answer['id'], answer[kind])
    return {
      name: json.dumps(content, indent=1, ensure_ascii=False) + '\n'
      for name, content in out.items()
    }

  def constant(self, answers):
    return super().constant([a | {'prediction': a['prediction'] or 'no answer'} for a in answers])


def _entry(text, start, end, start_logit, end_logit):
  return {
    'text': text,
    'probability': 0.0,  # filled in when all are known
    'start': start,
    'end': end,
    'start_logit': start_logit,
    'end_logit': end_logit,
  }


def _sum(entry):
  return entry['start_logit'] + entry['end_logit']
