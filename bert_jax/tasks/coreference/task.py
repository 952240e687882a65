"""The objective and rows of coreference: a pronoun stands for one of C candidates, or for none.

  gap           two candidates; the answer is A, B or neither. gap_scores.py computes the scores
  wsc, cluewsc  one candidate; the answer is true or false. The score is accuracy

reading.py reads the examples. A span becomes the tokens that share a character with it. A text that
is too long is cut around its spans, and counted.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.objectives.coreference import Coreference
from bert_jax.rows.examples import by_example
from bert_jax.tasks import labelled
from bert_jax.tasks.coreference.gap_scores import SCORES, gap_scores
from bert_jax.tasks.coreference.reading import Example, read
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.qa.spans import tokens_between
from bert_jax.tasks.scored import Scored, always, choice_of_label, entropy
from bert_jax.tokenizers import Tokenizer

# The answers in each format: one for each candidate, and one for no candidate.
ANSWERS = {'gap': ('A', 'B', 'neither'), 'wsc': ('true', 'false'), 'cluewsc': ('true', 'false')}


def objective(config: ConfigDict, tokenizer: Tokenizer) -> Coreference:
  candidates = len(ANSWERS[config.task.format]) - 1
  scores = SCORES if config.task.format == 'gap' else ()
  return labelled.objective(Coreference, config, candidates, scores=scores)


class Pronouns(Scored):
  """The rows of texts: [CLS] text [SEP], the first and last tokens of its spans, and the answer."""

  def __init__(
    self, config: ConfigDict, tokenizer: Tokenizer, examples: list[Example], problems: Problems
  ):
    self.format, self.names = config.task.format, ANSWERS[config.task.format]
    limit = labelled.limit(config)
    self.examples, self.tokens, texts, spans = [], [], [], []
    encodings = tokenizer.encode_batch([example.text for example in examples])
    for example, encoding in zip(examples, encodings):
      pieces = _pieces(example, encoding.offsets)
      size = pieces.max() + 1 - pieces.min()
      if size > limit - 2:
        fault = f'there are {size} tokens from name to name; raise task.max_length'
        problems.wrong(example.where, fault, 'examples whose names do not fit')
        continue
      start = start_of_context(len(encoding.ids), pieces, limit - 2)
      ids = encoding.ids[start : start + limit - 2]
      if len(ids) < len(encoding.ids):
        problems.counts[f'examples cut (longer than {limit} tokens)'] += 1
      self.examples.append(example)
      self.tokens.append(len(encoding.ids))
      texts.append((ids,))
      spans.append(1 + pieces - start)
    golds = [example.gold for example in self.examples]
    known = np.array([gold is not None for gold in golds], np.float32)
    labels, self.scored = np.array([gold or 0 for gold in golds], np.int32), int(known.sum())
    super().__init__(
      tokenizer,
      texts,
      positions={'spans': np.array(spans, np.int32).reshape(-1, len(self.names), 2)},
      per_example={'labels': labels, 'weights': known},
      **labelled.shape(config),
    )
    if known.any():
      logits = np.bincount(labels[known > 0], minlength=len(self.names))  # of the commonest answer
      alike = [self._answer(e, logits) for e in self.examples if e.gold is not None]
      scores = {name: x for name, x in self.scores(alike).items() if np.isfinite(x)}
      self.baselines |= always('majority', scores)
      self.baselines |= entropy(logits)

  def answers(self, outputs: Mapping[str, np.ndarray]) -> list[dict]:
    numbers, (logits,) = by_example(outputs, 'logits')
    answers = []
    for i, of_example in zip(numbers, logits):
      answer = self._answer(self.examples[i], of_example)
      answers.append(answer | {'length': self.tokens[i]})
    return answers

  def _answer(self, example: Example, logits: np.ndarray) -> dict[str, Any]:
    pronoun, *candidates = (example.text[start:end] for start, end in example.spans)
    out = {'id': example.id, 'where': example.where, 'text': example.text}
    out |= {'pronoun': pronoun, 'candidates': candidates}
    return out | choice_of_label(self.names, np.asarray(logits, np.float64), example.gold)

  def scores(self, answers: list[dict]) -> dict[str, float]:
    out = {'accuracy': float(np.mean([a['gold'] == a['prediction'] for a in answers]))}
    return out | (gap_scores(answers) if self.format == 'gap' else {})

  def files(self, answers: list[dict]) -> dict[str, str]:
    """The file for gap_scorer.py."""
    if self.format != 'gap':
      return {}
    lines = []
    for answer in answers:
      a, b = (str(answer['prediction'] == name).upper() for name in 'AB')
      lines.append(f'{answer["id"]}\t{a}\t{b}\n')
    return {'gap.tsv': ''.join(lines)}


texts = labelled.texts_of(read, lambda example: [example.text])
sources = labelled.sources_of(Pronouns, read)


def start_of_context(length: int, spans: np.ndarray, room: int) -> int:
  """The first of `room` tokens, out of `length`, that hold all spans [S, 2] (their first and last
  tokens) with equal context on both sides, as far as there is any."""
  first, size = int(spans.min()), int(spans.max() + 1 - spans.min())
  context = room - size
  return max(0, min(first - (context + 1) // 2, length - room))


def _pieces(example, offsets):
  """The first and last token that share a character with each span, [S, 2]."""
  out = []
  for start, end in example.spans:
    first, last = tokens_between(offsets, start, end)
    first = min(first, len(offsets) - 1)  # a name without a token takes the next one
    out.append((first, max(first, last)))
  return np.array(out)
