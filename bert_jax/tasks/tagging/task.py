"""A tag for each token: named entities, chunks, parts of speech (BERT, 5.3).

Each token is cut into word pieces by itself, after a blank where a vocabulary has the blank in its
pieces (byte-level) and the token is not the first. Its first piece learns its tag and is asked for
it (tagging.label_pieces=all: all of them learn it, the first is asked). A token without a piece,
such as a control character, is [UNK].

A sentence that is too long becomes windows that overlap by half. A token is learnt and predicted
once, in the window where it has most context on its shorter side. tagging.document_context fills up
each row with the sentences around, of the same document, as the BERT paper does on CoNLL-2003:
documents must be marked (-DOCSTART-), and one sentence's own tokens are learnt or predicted.

How tags are scored stands in scores.py, how they are read in conll.py. A tag that the training data
does not have is kept in the gold tags and named. It is not in the loss, but it can never be
predicted: its token is wrong and its entity is missing, so accuracy and recall bear it. In training
data such a tag is faulty (see faulty_records.py).
"""

import itertools
from collections import Counter

import numpy as np
from scipy.special import log_softmax

from bert_jax import models
from bert_jax.errors import InputError
from bert_jax.objectives.tagging import Tagging
from bert_jax.rows.examples import Scored, tokens_of
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.tagging import conll
from bert_jax.tasks.tagging.scores import ENTITY_SCORES, conll_lines, conlleval, scores, tag_table

LEAST = 1e-12  # the probability of a tag that cannot be predicted


def resolve(config):
  """Fills in tagging.labels from the training data, sorted, if it is empty."""
  if not config.data.train:
    raise InputError('data.train is empty; name a file of tagged text.')
  if not config.tagging.labels:
    sentences = _read(config, 'train', Problems('train', config.data.skip_damaged))
    places = {tag: s.where for s in reversed(sentences) for tag in s.tags or () if tag}
    labels = sorted(places)
    if len(labels) < 2 or len(labels) > 1000:
      raise InputError(
        f'tagging.tag_column={config.tagging.tag_column} of data.train holds {len(labels)} '
        f'different tags ({", ".join(labels[:3])}); name the column of the tags.'
      )
    conll.are_chunks(labels, places)
    config = config.copy_and_resolve_references()
    config.tagging.labels = tuple(labels)
  if config.checkpoint.best_metric == 'entity_f1' and not conll.are_chunks(config.tagging.labels):
    raise InputError(
      f'the tags of data.train ({", ".join(config.tagging.labels[:3])}, ..) have no B- and I-, so '
      'they mark no entities; set checkpoint.best_metric=token_accuracy, as task=pos does.'
    )
  return config


def texts(config):
  for sentence in _read(config, 'train', Problems('train', True)):
    yield ' '.join(sentence.tokens)


def objective(config, tokenizer):
  del tokenizer
  return Tagging(
    models.ModelConfig(**config.model),
    config.data.seq_length,
    tuple(config.tagging.labels),
    examples_per_row=config.data.examples_per_row,
    scores=ENTITY_SCORES if conll.are_chunks(config.tagging.labels) else ('macro_f1',),
  )


def sources(config, tokenizer, splits=('train', 'eval')):
  out = {}
  for split in splits:
    if split == 'eval' and not config.data.eval:
      continue
    problems = Problems(split, config.data.skip_damaged)
    sentences = _known(_read(config, split, problems), split, config.tagging.labels, problems)
    if not sentences:
      problems.log()
      raise InputError(
        f'no sentence of data.{split}={config.data[split]} is left; are tagging.labels '
        f'{", ".join(map(repr, config.tagging.labels))} its tags?'
      )
    if config.tagging.document_context and not problems.counts['documents']:
      raise InputError(
        f'data.{split}={config.data[split]} does not say where documents begin (-DOCSTART- lines); '
        'set tagging.document_context=false.'
      )
    if conll.are_chunks(config.tagging.labels):
      conll.check_chunks(sentences, problems)
    problems.counts['sentences'] = len(sentences)
    problems.counts['tokens'] = sum(len(sentence.tokens) for sentence in sentences)
    numbers = problems.chosen(range(len(sentences)), config.task.train_examples)
    out[split] = Tagged(config, tokenizer, sentences, numbers, problems)
    problems.log()
  return out


def _read(config, split, problems):
  return conll.read(
    config.data[split],
    split,
    problems,
    conllu=config.task.format == 'conllu',
    token_column=config.tagging.token_column,
    tag_column=config.tagging.tag_column,
  )


def _known(sentences, split, labels, problems):
  """The sentences, without those of training whose tags are not in the label set."""
  out = []
  for sentence in sentences:
    unknown = [tag for tag in sentence.tags or () if tag and tag not in labels]
    if unknown and split == 'train':
      problems.wrong(
        sentence.where,
        f'tag {unknown[0]!r} is not in the label set {", ".join(map(repr, labels))}; mend it or '
        'set tagging.labels',
        'sentences with an unknown tag',
      )
      continue
    faulty = [tag for tag in unknown if conll.are_chunks(labels) and not conll.is_chunk(tag)]
    if faulty:
      problems.wrong(
        sentence.where,
        f'tag {faulty[0]!r} is neither O nor begins with B- I- E- S-; mend it',
        'sentences with a faulty tag',
      )
      continue
    for tag in unknown:
      problems.note(f'tags {tag!r} that training does not have (always wrong)', sentence.where)
    out.append(sentence)
  return out


class Tagged(Scored):
  """The rows of a split: [CLS] pieces [SEP], and the tags of the tokens that are predicted there.

  numbers: which of the sentences are learnt or predicted; the others are context at most.
  asked: for each example the sentence it is of, its tokens to predict, and where their first pieces
  are in it (0 is its [CLS]).
  """

  def __init__(self, config, tokenizer, sentences, numbers, problems):
    tagging = config.tagging
    self.sentences, self.labels = sentences, tuple(tagging.labels)
    self.chunks = conll.are_chunks(self.labels)
    limit = config.task.max_length or config.data.seq_length
    label_ids = {label: k for k, label in enumerate(self.labels)}
    pieces, begins = _pieces(tokenizer, sentences, problems)
    self.read = [pieces]
    around = (
      _documents(sentences)
      if tagging.document_context
      else [range(i, i + 1) for i in range(len(sentences))]
    )
    texts, tags, self.asked = [], [], []
    for number in numbers:
      sentence = sentences[number]
      seen = around[number]
      begin, end = begins[seen.start][0], begins[seen.stop - 1][-1]
      first = begins[number] - begin  # where each token begins in what is seen
      own = windows(first[0], first[-1], end - begin, limit - 2)
      if len(own) > 1:
        problems.note(f'sentences in windows (longer than {limit} tokens)', sentence.where)
      window_of = best_windows(own, first[:-1])
      learnt = np.array([1 + label_ids.get(tag, -1) for tag in sentence.tags or ()], np.int32)
      for k, (start, stop) in enumerate(own):
        asked = np.flatnonzero(window_of == k)
        at = 1 + first[asked] - start
        row = np.zeros(stop - start + 2, np.int32)
        if len(learnt):
          ends = at + 1 if tagging.label_pieces == 'first' else 1 + first[asked + 1] - start
          for token, a, b in zip(asked, at, ends):
            row[a : min(b, stop - start + 1)] = learnt[token]
        texts.append((pieces[begin + start : begin + stop],))
        tags.append(row)
        self.asked.append((number, asked, at))
    super().__init__(
      tokenizer,
      texts,
      seq_length=config.data.seq_length,
      slots=config.data.examples_per_row,
      per_token={'tags': (tags, np.int32)},
    )
    gold = Counter(tag for number in numbers for tag in sentences[number].tags or () if tag)
    if known := [n for tag, n in gold.items() if tag in label_ids]:
      self.baselines['token_accuracy'] = (max(known) / gold.total(), 'majority')
    problems.log_rows(self)

  def answers(self, outputs):
    logits = tokens_of(outputs, 'logits', self.lengths)
    out = []
    groups = itertools.groupby(enumerate(self.asked), key=lambda item: item[1][0])
    for number, group in groups:
      group = list(group)
      if all(e in logits for e, _ in group):
        sentence = self.sentences[number]
        own = np.zeros((len(sentence.tokens), len(self.labels)))
        for e, (_, asked, at) in group:
          own[asked] = logits[e][at]
        out.append(self._answer(sentence, log_softmax(own, axis=-1)))
    return out

  def _answer(self, sentence, logs):
    out = {
      'id': sentence.id,
      'where': sentence.where,
      'tokens': list(sentence.tokens),
      'prediction': [self.labels[k] for k in logs.argmax(axis=-1)],
      'probability': np.exp(logs.max(axis=-1)).tolist(),
    }
    if sentence.tags is not None:
      out['gold'] = list(sentence.tags)
      out['loss'] = -sum(
        float(own[self.labels.index(tag)]) if tag in self.labels else float(np.log(LEAST))
        for tag, own in zip(sentence.tags, logs)
        if tag
      )
    return out

  def scores(self, answers):
    gold, predicted = _both(answers)
    return scores(gold, predicted, self.chunks) if gold else {}

  def files(self, answers):
    """predictions.conll, and a table of all types or tags."""
    out = {'predictions.conll': ''.join(map(conll_lines, answers))}
    gold, predicted = _both(answers)
    if gold and self.chunks:
      out['conlleval.txt'] = conlleval(gold, predicted)
    elif gold:
      out['tags.txt'] = tag_table(gold, predicted)
    return out

  def constant(self, answers):
    predicted = {tag for answer in answers for tag in answer['prediction']}
    gold = {tag for answer in answers for tag in answer.get('gold', ())}
    return predicted.pop() if len(predicted) == 1 and len(gold) > 1 else ''


def windows(first, last, length, room):
  """[(start, stop)] of windows of `room` pieces over pieces first..last of `length`.

  One window, with as much on either side, if they fit; else some that overlap by half.
  """
  if last - first <= room:
    start = min(first - (room - (last - first)) // 2, length - room)
    start = max(0, start)
    return [(start, min(start + room, length))]
  starts = [*range(first, last - room, max(1, room // 2)), last - room]
  return [(start, start + room) for start in starts]


def best_windows(own, at):
  """[n]: for each of the positions `at` the window where its shorter side is longest."""
  start, stop = np.array(own).T
  return np.argmax(np.minimum(at[:, None] - start, stop - 1 - at[:, None]), axis=1)


def _both(answers):
  """Gold and predicted tags [S] of the tokens whose tag is known."""
  pairs = [
    [(tag, own) for tag, own in zip(a['gold'], a['prediction']) if tag]
    for a in answers
    if 'gold' in a
  ]
  return [[tag for tag, _ in own] for own in pairs], [[tag for _, tag in own] for own in pairs]


def _documents(sentences):
  """[S] ranges: the sentences of the document that each is in."""
  out = []
  for _, group in itertools.groupby(sentences, key=lambda sentence: sentence.document):
    size = len(list(group))
    out += [range(len(out), len(out) + size)] * size
  return out


def _pieces(tokenizer, sentences, problems):
  """Piece ids of all tokens, and where in them those of each sentence begin and the last one ends,
  [S] arrays [n + 1]."""
  blanks = (s.after_blank or (False, *[True] * (len(s.tokens) - 1)) for s in sentences)
  ids = tokenizer.words_batch(
    [token for sentence in sentences for token in sentence.tokens],
    list(itertools.chain.from_iterable(blanks)),
  )
  places = ((s.where, i) for s in sentences for i in range(len(s.tokens)))
  for k, (where, i) in enumerate(places):
    if not len(ids[k]):
      problems.note('tokens without a word piece ([UNK] taken)', f'{where}, token {i + 1}')
      ids[k] = np.array([tokenizer.unk_id], np.int32)
  at = np.concatenate([[0], np.cumsum([len(own) for own in ids], dtype=np.int64)])
  token_at = np.concatenate([[0], np.cumsum([len(s.tokens) for s in sentences], dtype=np.int64)])
  return np.concatenate(ids), [at[a : b + 1] for a, b in itertools.pairwise(token_at)]
