"""What fine-tuned heads are asked: the Examples and the answers are those of their tasks.

classify         {"text"} or, of a model of pairs, {"text", "pair"}
tag              {"text"} or {"tokens": [..]}: entities, or a tag for each token. A text is cut at
                 blanks; punctuation on either side of a word, and each character of a script
                 without blanks, is a token of its own
answer           {"question", "context"}
choose           {"context", "question", "choices": [..]}
coreference      {"text", "pronoun", "a", "b"} and where they begin, {"pronoun-offset", ..}, which
                 may be left out of what occurs once; models of Winograd schemas have no "b"
next-sentence    {"text", "pair"}: does the pair follow the text? Asked of a pre-trained model
"""

import re
import unicodedata

from ml_collections import ConfigDict
from seqeval.metrics.sequence_labeling import get_entities

from bert_jax import models
from bert_jax.errors import InputError
from bert_jax.objectives import base
from bert_jax.predict.ask import Packed, check_top_k, numbered, texts_of
from bert_jax.tasks.choice import reading as choice_data
from bert_jax.tasks.choice import task as choice
from bert_jax.tasks.classification import reading as classification_data
from bert_jax.tasks.classification import task as classification
from bert_jax.tasks.coreference import reading as coreference_data
from bert_jax.tasks.coreference import task as coreference
from bert_jax.tasks.qa import reading as qa_data
from bert_jax.tasks.qa import task as qa
from bert_jax.tasks.tagging import task as tagging
from bert_jax.tasks.tagging.conll import Sentence
from bert_jax.text.sentences import UNSPACED

_RUNS = re.compile(rf'[{UNSPACED}]|[^\s{UNSPACED}]+')
PAIRS = {'nsp': ('next', 'random'), 'sop': ('in order', 'swapped')}  # what the label of a pair says


class Head(Packed):
  """Asks the head that the model was trained with."""

  examples_of = None  # the task's Examples

  def outputs(self, params, batch):
    return self.model.objective.predict(params, batch)

  def config(self, row=0):
    """The model's config with rows that hold any example, or `row` tokens."""
    config = self.model.config.copy_and_resolve_references()
    config.data.seq_length = row or self.model.limit
    config.data.examples_per_row = max(64, config.data.examples_per_row)
    config.task.max_length = self.model.limit
    return config

  def examples(self, records, problems):
    return self.examples_of(self.config(), self.model.tokenizer, numbered(records), problems)


class Classify(Head):
  examples_of = classification.Texts
  tabs = True  # so that a pair is told from a text

  @property
  def fields(self):
    return ('text', 'pair') if self.model.config.table.pair_column else ('text',)

  def of_parts(self, parts):
    if len(parts) != len(self.fields):
      if len(parts) == 2 and not self.model.step:
        raise InputError(
          'nothing says that this model reads pairs; if it does, use --task pair (in Python, '
          'model.pair)'
        )
      raise InputError(
        f'this model reads {("single texts", "pairs")[len(self.fields) - 1]} and got {len(parts)} '
        f'in {parts[0][:40]!r}; a tab separates the two texts of a pair'
      )
    return super().of_parts(parts)

  def record(self, given):
    if 'pair' in given and 'pair' not in self.fields:
      self.of_parts(texts_of(given, ('text', 'pair')))
    texts = texts_of(given, self.fields)
    return classification_data.Example('', '', tuple(texts), None)

  def shown(self, answer):
    out = dict(zip(self.fields, answer['texts']))
    if self.model.objective.regression:
      return out | {'value': answer['prediction']}
    if self.model.objective.multi_label:
      return out | {'labels': answer['prediction'], 'probabilities': answer['probabilities']}
    names = 'probability', 'probabilities'
    return out | {'label': answer['prediction']} | {name: answer[name] for name in names}


class Pair(Classify):
  """Of a released classifier nothing says whether it reads pairs, but for who asks."""

  fields = ('text', 'pair')


class NextSentence(Classify):
  """The pairs and the answers of a classifier, and the head of pre-training."""

  fields = ('text', 'pair')

  def of_parts(self, parts):
    return Packed.of_parts(self, parts)

  def outputs(self, params, batch):
    model = self.model.objective.model
    own = params | {'classifier': params['nsp']}
    logits = base.pooled_logits(model, models.Classifier(model, 2), own, batch)
    return {'logits': logits, 'example_ids': batch['example_ids']}

  def config(self, row=0):
    table = dict(
      labels=PAIRS[self.model.objective.pairs], multi_label=False, regression=False,
      long_texts='head',
    )  # fmt: skip
    length = self.model.limit
    return ConfigDict(dict(
      table=table, task=dict(max_length=length), data=dict(seq_length=length, examples_per_row=64)
    ))  # fmt: skip

  def shown(self, answer):
    out = dict(zip(self.fields, answer['texts']))
    return out | {'label': answer['prediction'], 'probabilities': answer['probabilities']}


class Tag(Head):
  examples_of = tagging.Tagged
  others = ('tokens',)

  def record(self, given):
    if 'tokens' not in given:
      (text,) = texts_of(given, ('text',))
      spans = words(text)
      after_blank = tuple(a > 0 and text[a - 1].isspace() for a, _ in spans)
      tokens = tuple(text[a:b] for a, b in spans)
      return Sentence('', '', tokens, None, (text,), after_blank)
    tokens = given['tokens']
    if 'text' in given:
      raise InputError("'text' and 'tokens' are both there; give the one that is to be tagged")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
      raise InputError('\'tokens\' is no list of texts; write ["a", "b"]')
    if not tokens or not all(map(str.strip, tokens)):
      raise InputError('there are no tokens, or one of them is empty')
    return Sentence('', '', tuple(tokens), None, ())

  def config(self, row=0):
    config = super().config(row)
    config.tagging.document_context = False
    return config

  def examples(self, records, problems):
    sentences = numbered(records)
    # Each is a document of its own here.
    return tagging.Tagged(
      self.config(), self.model.tokenizer, sentences, range(len(sentences)), problems
    )

  def replies(self, records):
    return [
      (answer and answer | {'text': record.document}, why)
      for record, (answer, why) in zip(records, super().replies(records))
    ]

  def shown(self, answer):
    names = 'tokens', 'prediction', 'probability', 'text'
    tokens, tags, shares, text = (answer[name] for name in names)
    out, at = {'tokens': tokens}, None
    if text:
      at = words(text[0])
      out = {'text': text[0]}
    if not tagging.columns.are_chunks(self.model.objective.labels):
      out = {'tokens': tokens, 'tags': tags, 'probabilities': shares}
      return out | ({'offsets': [list(span) for span in at]} if at else {})
    entities = []
    for kind, first, last in get_entities(list(tags)):
      entity = {'type': kind, 'text': ' '.join(tokens[first : last + 1])}
      if at:
        start, end = at[first][0], at[last][1]
        entity |= {'text': text[0][start:end], 'start': start, 'end': end}
      entity |= {'tokens': [first, last + 1], 'probability': min(shares[first : last + 1])}
      entities.append(entity)
    return out | {'entities': entities}


class Answer(Head):
  """top_k: how many of the n best spans are told."""

  fields = ('question', 'context')
  examples_of = qa.Windows

  def __init__(self, model, top_k=5):
    super().__init__(model)
    check_top_k(top_k)
    self.top_k = top_k

  def config(self, row=0):
    config = super().config(row)
    config.qa.n_best_size = max(self.top_k, config.qa.n_best_size)
    return config

  def record(self, given):
    question, context = texts_of(given, self.fields)
    if not question.strip() or not context.strip():
      raise InputError('the question or its context is empty')
    return qa_data.Question('', '', question, context, None, ())

  def shown(self, answer):
    start, end = answer['span']
    out = {'question': answer['question'], 'answer': answer['prediction']}
    out |= {'probability': answer['probability'], 'start': start, 'end': end}
    names = 'text', 'probability', 'start', 'end'
    best = answer['nbest'][: self.top_k]
    return out | {'nbest': [{name: entry[name] for name in names} for entry in best]}


class Choose(Head):
  fields = ('context', 'question', 'choices')
  examples_of = choice.Choices

  def of_parts(self, parts):
    if len(parts) < 4:
      raise InputError('a line of a context, a question and two choices at least has three tabs')
    return dict(zip(self.fields, (*parts[:2], list(parts[2:]))))

  def record(self, given):
    context, question = texts_of(given, self.fields[:2])
    choices = given.get('choices')
    if not isinstance(choices, (list, tuple)) or not all(isinstance(x, str) for x in choices):
      raise InputError('\'choices\' is no list of texts; write ["a", "b"]')
    if len(choices) < 2:
      raise InputError(f'there are {len(choices)} choices; give two at least')
    fills = self.model.config.task.format == 'race'
    return choice_data.Question('', '', context, question, tuple(choices), None, fills=fills)

  def examples(self, records, problems):
    most = max(len(record.choices) for record in records)
    config = self.config(most * self.model.limit)
    config.data.examples_per_row = most
    return choice.Choices(config, self.model.tokenizer, numbered(records), problems)

  def shown(self, answer):
    names = 'question', 'choices', 'prediction', 'prediction_text', 'probability', 'probabilities'
    return {name: answer[name] for name in names}


class Coreference(Head):
  examples_of = coreference.Pronouns

  @property
  def fields(self):
    return ('text', 'pronoun', *('ab'[: self.model.objective.candidates]))

  @property
  def others(self):
    return [f'{name}-offset' for name in self.fields[1:]]

  def parsed(self, value):
    if isinstance(value, dict):  # GAP has capitals
      value = {str(name).lower(): x for name, x in value.items()}
    return super().parsed(value)

  def record(self, given):
    text, *spans = texts_of(given, self.fields)
    found = [_place(given, text, name, span) for name, span in zip(self.fields[1:], spans)]
    return coreference_data.Example('', '', text, tuple(found), None)

  def shown(self, answer):
    names = 'pronoun', 'candidates', 'prediction', 'probability', 'probabilities'
    return {name: answer[name] for name in names}


def _place(given, text, name, span):
  """(from, to) of a name in its text."""
  if not span or not (number := text.count(span)):
    raise InputError(f'{name} {span!r} is not in the text; write it as it stands there')
  offset = given.get(f'{name}-offset')
  if offset is None and number == 1:
    offset = text.index(span)
  if type(offset) is not int or offset < 0 or not text.startswith(span, offset):
    raise InputError(
      f'{span!r} is {number} times in the text, and not at {name}-offset {offset}; say where'
    )
  return offset, offset + len(span)


def words(text):
  """[(from, to)] of the tokens of a text that is to be tagged, in characters of it."""
  out = []
  for run in _RUNS.finditer(text):
    first, last = run.span()
    begin, end = first, last
    while begin < end and _is_mark(text[begin]):
      begin += 1
    while end > begin and _is_mark(text[end - 1]):
      end -= 1
    out += [(i, i + 1) for i in range(first, begin)]
    out += [(begin, end)] if begin < end else []
    out += [(i, i + 1) for i in range(end, last)]
  return out


def _is_mark(character):
  return unicodedata.category(character)[0] in 'PS'
