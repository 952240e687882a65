"""The objective and rows of token tagging (BERT, 5.3). conll.py reads, scores.py scores and
knows the schemes in which tags mark entities.

Each token is cut into word pieces by itself; for a byte-level vocabulary, whose pieces contain
blanks, all tokens but the first follow a blank. The first piece of a token learns its tag and
predicts it; with tagging.label_pieces=all all pieces learn it. A token without a piece is [UNK].

A sentence that is too long becomes windows that overlap by half. A token is learnt and predicted
once, in the window where its shorter side of context is longest. tagging.document_context fills
each row with neighbouring sentences of the same document (-DOCSTART-), as context only, as the BERT
paper does on CoNLL-2003.

A tag that the training data does not have stays in the gold tags of evaluation data: it is not in
the loss, but its token and its entity count as wrong. In training data it cannot be used.
"""

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from scipy.special import log_softmax

from bert_jax.errors import InputError, about, listed, quoted
from bert_jax.objectives.tagging import Tagging
from bert_jax.rows import windows
from bert_jax.rows.examples import tokens_of
from bert_jax.tasks import labelled
from bert_jax.tasks.faulty_records import Problems, Unusable
from bert_jax.tasks.labelled import Scored
from bert_jax.tasks.tagging import conll, scores
from bert_jax.tasks.tagging.conll import Sentence
from bert_jax.tasks.tagging.scores import are_chunks, check_chunks, is_chunk
from bert_jax.tokenizers import Tokenizer

LEAST = 1e-12  # the probability of a tag that the model does not have, for the loss of an answer


def resolve(config: ConfigDict) -> ConfigDict:
  """Fills in tagging.labels, if it is empty: the tags of the training data, sorted."""
  if not config.data.train:
    raise InputError('data.train is empty; name a file of tagged text.')
  if not config.tagging.labels:
    sentences = _read(config, 'train', Problems.of(config, 'train'))
    places = {tag: s.where for s in reversed(sentences) for tag in s.tags or () if tag}
    labels = sorted(places)
    if len(labels) < 2 or len(labels) > 1000:
      column = f'tagging.tag_column={config.tagging.tag_column} of data.train'
      tags = f'{len(labels)} different tags ({listed(labels, 3)})'
      raise InputError(f'{column} holds {tags}; name the column of the tags.')
    with about('data.train'):
      are_chunks(labels, places)
    config = config.copy_and_resolve_references()
    config.tagging.labels = tuple(labels)
  if config.checkpoint.best_metric == 'entity_f1' and not are_chunks(config.tagging.labels):
    tags = f'the tags of data.train ({", ".join(config.tagging.labels[:3])}, ..) mark no entities'
    fix = 'write B-NAME and I-NAME or, for parts of speech, set checkpoint.best_metric'
    raise InputError(f'{tags}; {fix}=token_accuracy, as task=pos does.')
  return config


def objective(config: ConfigDict, tokenizer: Tokenizer) -> Tagging:
  labels = tuple(config.tagging.labels)
  names = scores.ENTITY_SCORES if are_chunks(labels) else ('macro_f1',)
  prior = labelled.prior_of(config.tagging, labels)
  return labelled.objective(Tagging, config, labels, scores=names, prior=prior)


def rows(config: ConfigDict, tokenizer: Tokenizer, split: str, problems: Problems) -> 'Tagged':
  labels, data = config.tagging.labels, f'data.{split}={config.data[split]}'
  sentences = _known(_read(config, split, problems), split, labels, problems)
  if not sentences:
    problems.log()
    tags = f'are tagging.labels {listed(labels)} its tags?'
    raise InputError(f'no sentence of {data} is left; {tags}')
  if config.tagging.document_context and not problems.counts['documents']:
    fault = f'{data} does not say where documents begin (-DOCSTART- lines)'
    raise InputError(f'{fault}; set tagging.document_context=false.')
  if are_chunks(labels):
    check_chunks(sentences, problems)
  problems.counts['sentences'] = len(sentences)
  problems.counts['tokens'] = sum(len(sentence.tokens) for sentence in sentences)
  out = Tagged(config, tokenizer, sentences, problems)
  if split == 'train':
    labelled.log_labels('tags', labels, [out.gold[tag] for tag in labels])
  return out


sources = labelled.sources_of(rows)


def _read(config, split, problems):
  columns = config.tagging.token_column, config.tagging.tag_column
  layout = conll.Layout(config.task.format == 'conllu', *columns)
  with about(f'data.{split}'):
    return conll.read(config.data[split], split, problems, layout)


texts = labelled.texts_of(_read, lambda sentence: [' '.join(sentence.tokens)])


def _known(sentences, split, labels, problems):
  """The sentences without those with faulty tags; in training a tag must be in the label set."""
  out, chunks = [], are_chunks(labels)
  for sentence in sentences:
    unknown = [tag for tag in sentence.tags or () if tag and tag not in labels]
    faulty = [tag for tag in unknown if chunks and not is_chunk(tag)]
    with problems.of_record(sentence.where):
      if unknown and split == 'train':
        fault = f'tag {quoted(unknown[0])} is not in the label set {listed(labels)}; mend it'
        raise Unusable(f'{fault} or set tagging.labels', 'sentences with an unknown tag')
      if faulty:
        fault = f'tag {quoted(faulty[0])} is neither O nor begins with B- I- M- E- S-; mend it'
        raise Unusable(fault, 'sentences with a faulty tag')
      for tag in unknown:
        never = f'tags {quoted(tag)} that training does not have (always wrong)'
        problems.note(never, sentence.where)
      out.append(sentence)
  return out


class Tagged(Scored):
  """The rows of sentences: [CLS] pieces [SEP], and the tags of the tokens that are learnt there.
  Sentences that are not among task.train_examples are only context.
  asked: for each example (number of its sentence, numbers of the tokens that are predicted in it,
  the positions of their first pieces, where 0 is [CLS]). gold: how many tokens have each tag."""

  leaves_out = 'entities.txt', 'tags.txt', 'conlleval.txt'

  def __init__(
    self, config: ConfigDict, tokenizer: Tokenizer, sentences: list[Sentence], problems: Problems
  ):
    tagging, self.sentences, self.labels = config.tagging, sentences, tuple(config.tagging.labels)
    numbers = problems.chosen(range(len(sentences)), config.task.train_examples)
    self.chunks, limit = are_chunks(self.labels), labelled.limit(config)
    self.label_ids = {label: k for k, label in enumerate(self.labels)}
    pieces, begins = _pieces(tokenizer, sentences, problems)
    self.read, self.sizes = [pieces], [int(at[-1] - at[0]) for at in begins]
    around = [range(i, i + 1) for i in range(len(sentences))]
    if tagging.document_context:
      around = _documents(sentences)
    texts, tags, self.asked = [], [], []
    for number in numbers:
      sentence, context = sentences[number], around[number]  # the context may fill up its rows
      begin, end = begins[context.start][0], begins[context.stop - 1][-1]
      first = begins[number] - begin  # where each token begins in the context
      cuts = windows.around(first[0], first[-1], end - begin, limit - 2)
      if len(cuts) > 1:
        problems.note(f'sentences in windows (longer than {limit} tokens)', sentence.where)
      begins_at, ends_at = zip(*cuts)
      window_of = windows.owners(begins_at, ends_at, first[:-1])
      learnt = [1 + self.label_ids.get(tag, -1) for tag in sentence.tags or ()]
      for k, (start, stop) in enumerate(cuts):
        asked = np.flatnonzero(window_of == k)
        at, row = 1 + first[asked] - start, np.zeros(stop - start + 2, np.int32)
        ends = at + 1 if tagging.label_pieces == 'first' else 1 + first[asked + 1] - start
        for token, a, b in zip(asked, at, ends) if learnt else ():
          row[a : min(b, stop - start + 1)] = learnt[token]
        texts.append((pieces[begin + start : begin + stop],))
        tags.append(row)
        self.asked.append((number, asked, at))
    per_token = {'tags': (tags, np.int32)}
    super().__init__(tokenizer, texts, per_token=per_token, **labelled.shape(config))
    self.size = len(numbers)
    self.scored = sum(bool(sentences[number].tags) for number in numbers)
    self.gold = Counter(tag for number in numbers for tag in sentences[number].tags or () if tag)
    self.baselines |= self._baselines(self.gold)
    if (learnt := np.bincount(np.concatenate(tags), minlength=2)[1:]).any():  # by piece
      self.baselines |= labelled.entropy('tagging', learnt)
    self.prior = labelled.shares([self.gold[label] for label in self.labels])

  def _baselines(self, gold):
    """The scores of always giving the most frequent tag. gold: {tag: number of tokens}."""
    known = [tag for tag, _ in gold.most_common() if tag in self.labels]
    if not known:
      return {}
    share, scored = gold[known[0]] / gold.total(), {}
    if not self.chunks:
      scored = {'macro_f1': labelled.f1_of_all(share) / len(gold)}
    elif known[0] == 'O':
      types = sorted({f'f1_{tag[2:]}' for tag in gold if tag != 'O'})
      scored = dict.fromkeys([*scores.ENTITY_SCORES, *types], 0)
    return labelled.always('majority', {'token_accuracy': share} | scored)

  def answers(self, outputs: Mapping[str, np.ndarray]) -> list[dict]:
    logits, out = tokens_of(outputs, 'logits', self.lengths), []
    for number, group in itertools.groupby(enumerate(self.asked), key=lambda item: item[1][0]):
      group = list(group)
      if all(e in logits for e, _ in group):
        sentence = self.sentences[number]
        of_tokens = np.zeros((len(sentence.tokens), len(self.labels)))
        for e, (_, asked, at) in group:
          of_tokens[asked] = logits[e][at]
        answer = self._answer(sentence, log_softmax(of_tokens, axis=-1))
        out.append(answer | {'length': self.sizes[number]})
    return out

  def _answer(self, sentence: Sentence, logs: np.ndarray) -> dict[str, Any]:
    out = {'id': sentence.id, 'where': sentence.where, 'tokens': list(sentence.tokens)}
    out['prediction'] = [self.labels[k] for k in logs.argmax(axis=-1)]
    out['probability'] = np.exp(logs.max(axis=-1)).tolist()
    if sentence.tags is not None:
      both = [(self.label_ids.get(tag), x) for tag, x in zip(sentence.tags, logs) if tag]
      nats = [float(np.log(LEAST) if k is None else x[k]) for k, x in both]
      out |= {'gold': list(sentence.tags), 'loss': -sum(nats)}
    return out

  def scores(self, answers: list[dict]) -> dict[str, float]:
    gold, predicted = _known_tags(answers)
    return scores.tag_scores(gold, predicted, self.chunks) if gold else {}

  def files(self, answers: list[dict]) -> dict[str, str]:
    """predictions.conll, and a table of the scores of all types or tags."""
    out = {'predictions.conll': ''.join(map(scores.conll_lines, answers))}
    gold, predicted = _known_tags(answers)
    name = 'entities.txt' if self.chunks else 'tags.txt'
    return out | ({name: scores.table(gold, predicted, self.chunks)} if gold else {})

  def constant(self, answers: list[dict]) -> str:
    predicted = {tag for answer in answers for tag in answer['prediction']}
    gold = {tag for answer in answers for tag in answer.get('gold', ())}
    return predicted.pop() if len(predicted) == 1 and len(gold) > 1 else ''


def _known_tags(answers):
  """The tags of tokens whose gold tag is known: (gold, predicted), [S] lists."""
  both = [list(zip(a['gold'], a['prediction'])) for a in answers if 'gold' in a]
  return tuple([[pair[k] for pair in pairs if pair[0]] for pairs in both] for k in (0, 1))


def _documents(sentences):
  """The range of sentence numbers of its document, for each sentence."""
  out = []
  for _, group in itertools.groupby(sentences, key=lambda sentence: sentence.document):
    size = len(list(group))
    out += [range(len(out), len(out) + size)] * size
  return out


def _pieces(tokenizer, sentences, problems):
  """Tokenizes sentences: (the piece ids of all tokens, concatenated; begins). begins: for each
  sentence of n tokens an array [n + 1], where each token begins and the last one ends."""
  blanks = (s.after_blank or (False, *[True] * (len(s.tokens) - 1)) for s in sentences)
  tokens = [token for sentence in sentences for token in sentence.tokens]
  ids = tokenizer.words_batch(tokens, list(itertools.chain.from_iterable(blanks)))
  places = ((s.where, i) for s in sentences for i in range(len(s.tokens)))
  for k, (where, i) in enumerate(places):
    if not len(ids[k]):
      problems.note('tokens without a word piece ([UNK] taken)', f'{where}, token {i + 1}')
      ids[k] = np.array([tokenizer.unk_id], np.int32)
  at = np.concatenate([[0], np.cumsum([len(token) for token in ids], dtype=np.int64)])
  token_at = np.concatenate([[0], np.cumsum([len(s.tokens) for s in sentences], dtype=np.int64)])
  return np.concatenate(ids), [at[a : b + 1] for a, b in itertools.pairwise(token_at)]
