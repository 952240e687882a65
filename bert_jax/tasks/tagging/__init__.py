"""Tagging: a label for each token (named entities, chunks, parts of speech)."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.errors import InputError
from bert_jax.field import Field, affecting
from bert_jax.tasks import labelled
from bert_jax.tasks.ask import OfHead, texts_in
from bert_jax.tasks.record import Head, Prediction
from bert_jax.tasks.tagging import task
from bert_jax.tasks.tagging.conll import Sentence
from bert_jax.tasks.tagging.scores import are_chunks, as_bioes
from bert_jax.tasks.tagging.task import Tagged
from bert_jax.text.sentences import UNSPACED

_RUNS = re.compile(rf'[{UNSPACED}]|[^\s{UNSPACED}]+')
FIELDS = affecting({'rows'}, {
  'tagging.token_column': Field(0, 'column of the token, from 0; -1 is the last'),
  'tagging.tag_column': Field(-1, 'column of the tag'),
  'tagging.labels': Field((), 'the tags, in order; empty: as in training data, sorted',
    allowed=str, affects={'rows', 'weights'}),
  'tagging.prior': labelled.prior_field('share of each tag'),
  'tagging.document_context': Field(False, 'fill rows with the sentences around (-DOCSTART-)'),
})  # fmt: skip


def stand_in(config: ConfigDict) -> ConfigDict:
  config.tagging.labels = config.tagging.labels or ('0', '1')
  return config


class Tag(OfHead):
  """Asks a tagger: {"text"} or {"tokens": [..]}; the answer is a tag for each token, and entities
  if tags mark them."""

  examples_of, exports, others = Tagged, {'logits': '[B, T, labels]'}, ('tokens',)
  shows = 'prediction', 'probability', 'offsets', 'entities'

  def spelt(self, field: str) -> str:
    return 'tokens|words' if field == 'tokens' else super().spelt(field)

  def record(self, fields: dict[str, Any]) -> Sentence:
    if 'tokens' not in fields:
      (text,) = texts_in(fields, ('text',))
      spans = words(text)
      after_blank = tuple(begin > 0 and text[begin - 1].isspace() for begin, _ in spans)
      tokens = tuple(text[begin:end] for begin, end in spans)
      return Sentence('', '', tokens, None, (text,), after_blank)
    tokens = fields['tokens']
    are_texts = isinstance(tokens, list) and all(isinstance(x, str) for x in tokens)
    if not are_texts or not ''.join(tokens).strip():
      raise InputError('\'tokens\' is no list of texts; write ["a", "b"]')
    return Sentence('', '', tuple(tokens), None, ())

  def fields_of(self, value: Any) -> dict[str, Any]:
    is_tokens = isinstance(value, (list, tuple))
    return {'tokens': list(value)} if is_tokens else super().fields_of(value)

  def config(self, row: int = 0) -> ConfigDict:
    config = super().config(row)
    config.tagging.document_context = False
    return config

  def replies(self, records: Sequence[Sentence]) -> list[tuple[dict | None, str]]:
    replies = []
    for record, (answer, reason) in zip(records, super().replies(records)):
      if answer is not None:
        answer['text'] = record.document
      replies.append((answer, reason))
    return replies

  def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
    tokens, tags, probabilities = answer['tokens'], answer['prediction'], answer['probability']
    text = answer['text'][0] if answer['text'] else None
    offsets = words(text) if text is not None else None
    out = {'prediction': tags, 'probability': probabilities}
    if offsets:
      out |= {'tokens': tokens, 'offsets': [list(span) for span in offsets]}
    if not are_chunks(self.model.objective.labels):
      return out
    from seqeval.metrics.sequence_labeling import get_entities  # slow to import

    entities = []
    for kind, first, last in get_entities(as_bioes(tags)):
      entity = {'type': kind, 'text': ' '.join(tokens[first : last + 1])}
      if text is not None and offsets:
        start, end = offsets[first][0], offsets[last][1]
        entity |= {'text': text[start:end], 'start': start, 'end': end}
      entity['tokens'] = [first, last + 1]
      entity['probability'] = min(probabilities[first : last + 1])
      entities.append(entity)
    return out | {'entities': entities}


def words(text: str) -> list[tuple[int, int]]:
  """The tokens of a text, [(from, to)] in characters: what stands between blanks, each punctuation
  mark at its ends by itself, and each character of a script without blanks."""
  out = []
  for run in _RUNS.finditer(text):
    first, last = begin, end = run.span()
    while begin < end and _is_mark(text[begin]):
      begin += 1
    while end > begin and _is_mark(text[end - 1]):
      end -= 1
    out += [(i, i + 1) for i in range(first, begin)]
    if begin < end:
      out.append((begin, end))
    out += [(i, i + 1) for i in range(end, last)]
  return out


def _is_mark(character):
  return unicodedata.category(character)[0] in 'PS'


TAGGING = labelled.family(
  'tagging',
  objective=task.objective,
  texts=task.texts,
  sources=task.sources,
  resolve=task.resolve,
  formats=('columns', 'conllu', 'weibo'),
  main_metric=lambda config: 'token_accuracy',
  fields=FIELDS,
  defaults={'checkpoint.best_metric': 'entity_f1'},
  predictions={'tag': Prediction(Tag)},
  heads=(Head('ForTokenClassification', ('encoder', 'classifier'), 'token-classification'),),
  from_released=lambda config, released: config.tagging.update(labels=released.labels()),
  card=labelled.card_of(longer_texts='windows'),
  prior='tagging.prior',
  stand_in=stand_in,
)
