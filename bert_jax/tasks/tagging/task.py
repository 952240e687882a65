"""The objective and rows of token tagging (BERT, 5.3). conll.py reads, scores.py scores and
knows the schemes in which tags mark entities.

Each token is cut into word pieces by itself; for a byte-level vocabulary, whose pieces contain
blanks, all tokens but the first follow a blank. The first piece of a token learns its tag and
predicts it. A token without a piece is [UNK].

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
from bert_jax.tasks.scored import Scored, always, entropy, f1_of_all, label_shares, log_labels
from bert_jax.tasks.tagging import conll, scores
from bert_jax.tasks.tagging.conll import Sentence
from bert_jax.tasks.tagging.scores import are_chunks
from bert_jax.tokenizers import Tokenizer

LEAST = 1e-12  # the probability of a tag that the model does not have, for the loss of an answer


def resolve(config: ConfigDict) -> ConfigDict:
  """Fills in tagging.labels, if it is empty: the tags of the training data, sorted."""
  if not config.tagging.labels:
    found = set()
    for sentence in conll.read(config, 'train', Problems.of(config, 'train')):
      found.update(sentence.tags or ())
    labels = sorted(found - {None})
    if not 2 <= len(labels) <= 1000:
      raise InputError(
        f'tagging.tag_column={config.tagging.tag_column} of data.train holds {len(labels)} '
        f'different tags ({listed(labels, 3)}); name the column of the tags.'
      )
    with about('data.train'):
      are_chunks(labels)
    config = config.copy_and_resolve_references()
    config.tagging.labels = tuple(labels)
  if config.checkpoint.best_metric == 'entity_f1' and not are_chunks(config.tagging.labels):
    raise InputError(
      f'the tags of data.train ({", ".join(config.tagging.labels[:3])}, ..) mark no entities; '
      'write B-NAME and I-NAME or, for parts of speech, set '
      'checkpoint.best_metric=token_accuracy, as task=pos does.'
    )
  return config


def objective(config: ConfigDict, tokenizer: Tokenizer) -> Tagging:
  labels = tuple(config.tagging.labels)
  names = scores.ENTITY_SCORES if are_chunks(labels) else ('macro_f1',)
  prior = labelled.prior_of(config.tagging)
  return labelled.objective(Tagging, config, labels, scores=names, prior=prior)


def rows(config: ConfigDict, tokenizer: Tokenizer, split: str, problems: Problems) -> 'Tagged':
  labels, data = config.tagging.labels, f'data.{split}={config.data[split]}'
  sentences = list(_usable(conll.read(config, split, problems), split, labels, problems))
  if not sentences:
    problems.log()
    tags = f'are tagging.labels {listed(labels)} its tags?'
    raise InputError(f'no sentence of {data} is left; {tags}')
  if config.tagging.document_context and not problems.counts['documents']:
    raise InputError(
      f'{data} does not say where documents begin (-DOCSTART- lines); '
      'set tagging.document_context=false.'
    )
  problems.counts['sentences'] = len(sentences)
  problems.counts['tokens'] = sum(len(sentence.tokens) for sentence in sentences)
  tagged = Tagged(config, tokenizer, sentences, problems)
  if split == 'train':
    log_labels('tags', labels, [tagged.gold[tag] for tag in labels])
  return tagged


sources = labelled.sources_of(rows)


texts = labelled.texts_of(conll.read, lambda sentence: [' '.join(sentence.tokens)])


def _usable(sentences, split, labels, problems):
  """Yields the sentences; in training those whose tags are all labels."""
  for sentence in sentences:
    with problems.of_record(sentence.where):
      for tag in sentence.tags or ():
        if not tag or tag in labels:
          continue
        if split == 'train':
          raise Unusable(
            f'tag {quoted(tag)} is not in the label set {listed(labels)}; '
            'mend it or set tagging.labels',
            'sentences with an unknown tag',
          )
        kind = f'tags {quoted(tag)} that training does not have (always wrong)'
        problems.note(kind, sentence.where)
      yield sentence


class Tagged(Scored):
  """The rows of sentences: [CLS] pieces [SEP], and the tags of the tokens that are learnt there.
  Sentences that are not among task.train_examples are only context.
  asked: for each example (number of its sentence, numbers of the tokens that are predicted in it,
  the positions of their first pieces, where 0 is [CLS]). gold: how many tokens have each tag."""

  def __init__(
    self, config: ConfigDict, tokenizer: Tokenizer, sentences: list[Sentence], problems: Problems
  ):
    self.sentences, self.labels = sentences, tuple(config.tagging.labels)
    self.chunks = are_chunks(self.labels)
    self.label_ids = {label: k for k, label in enumerate(self.labels)}
    numbers = problems.chosen(range(len(sentences)), config.task.train_examples)
    pieces, begins = _pieces(tokenizer, sentences)
    self.read, self.sizes = [pieces], [int(at[-1] - at[0]) for at in begins]
    if config.tagging.document_context:
      context_of = _documents(sentences)
    else:
      context_of = [range(i, i + 1) for i in range(len(sentences))]
    limit = labelled.limit(config)
    texts, tags, self.asked = [], [], []
    for number in numbers:
      # The sentences of the context may fill up the rows of this one.
      context = context_of[number]
      begin, end = begins[context.start][0], begins[context.stop - 1][-1]
      token_at = begins[number] - begin  # where each token begins in the context
      cuts = windows.around(token_at[0], token_at[-1], end - begin, limit - 2)
      window_of = windows.owners(cuts, token_at[:-1])
      for k, (start, stop) in enumerate(cuts):
        tokens = np.flatnonzero(window_of == k)
        firsts = 1 + token_at[tokens] - start
        texts.append((pieces[begin + start : begin + stop],))
        tags.append(self._learnt(sentences[number], tokens, firsts, stop - start))
        self.asked.append((number, tokens, firsts))
    per_token = {'tags': (tags, np.int32)}
    super().__init__(tokenizer, texts, per_token=per_token, **labelled.shape(config))
    self.size = len(numbers)
    self.scored, self.gold = 0, Counter()
    for number in numbers:
      gold = list(filter(None, sentences[number].tags or ()))
      self.scored += bool(sentences[number].tags)
      self.gold.update(gold)
    self.baselines |= self._baselines(self.gold)
    learnt = np.bincount(np.concatenate(tags), minlength=2)[1:]  # by piece
    if learnt.any():
      self.baselines |= entropy(learnt)
    self.prior = label_shares([self.gold[label] for label in self.labels])

  def _learnt(self, sentence, tokens, firsts, size):
    """The tags of a row of `size` pieces between [CLS] and [SEP]: 1 + the number of a label; 0:
    none is learnt there. The first piece of token tokens[i] is firsts[i]."""
    row = np.zeros(size + 2, np.int32)
    if sentence.tags:
      for token, first in zip(tokens, firsts):
        row[first] = 1 + self.label_ids.get(sentence.tags[token], -1)
    return row

  def _baselines(self, gold):
    """The scores of always giving the most frequent tag. gold: {tag: number of tokens}."""
    known = [tag for tag, _ in gold.most_common() if tag in self.labels]
    if not known:
      return {}
    share = gold[known[0]] / gold.total()
    levels = {'token_accuracy': share}
    if not self.chunks:
      levels['macro_f1'] = f1_of_all(share) / len(gold)
    elif known[0] == 'O':
      types = sorted({f'f1_{tag[2:]}' for tag in gold if tag != 'O'})
      levels |= dict.fromkeys([*scores.ENTITY_SCORES, *types], 0)
    return always('majority', levels)

  def answers(self, outputs: Mapping[str, np.ndarray]) -> list[dict]:
    logits, out = tokens_of(outputs, 'logits', self.lengths), []
    for number, group in itertools.groupby(enumerate(self.asked), key=lambda item: item[1][0]):
      examples = list(group)
      if not all(example in logits for example, _ in examples):
        continue
      sentence = self.sentences[number]
      of_tokens = np.zeros((len(sentence.tokens), len(self.labels)))
      for example, (_, tokens, firsts) in examples:
        of_tokens[tokens] = logits[example][firsts]
      answer = self._answer(sentence, log_softmax(of_tokens, axis=-1))
      out.append(answer | {'length': self.sizes[number]})
    return out

  def _answer(self, sentence: Sentence, logs: np.ndarray) -> dict[str, Any]:
    answer = {
      'id': sentence.id,
      'where': sentence.where,
      'tokens': list(sentence.tokens),
      'prediction': [self.labels[k] for k in logs.argmax(axis=-1)],
      'probability': np.exp(logs.max(axis=-1)).tolist(),
    }
    if sentence.tags is not None:
      nats = 0.0
      for tag, of_token in zip(sentence.tags, logs):
        if tag:
          known = tag in self.label_ids
          nats -= float(of_token[self.label_ids[tag]] if known else np.log(LEAST))
      answer |= {'gold': list(sentence.tags), 'loss': nats}
    return answer

  def scores(self, answers: list[dict]) -> dict[str, float]:
    gold, predicted = _known_tags(answers)
    return scores.tag_scores(gold, predicted, self.chunks) if gold else {}

  def files(self, answers: list[dict]) -> dict[str, str]:
    """predictions.conll, which conlleval reads."""
    return {'predictions.conll': ''.join(map(scores.conll_lines, answers))}

  def constant(self, answers: list[dict]) -> str:
    predicted = {tag for answer in answers for tag in answer['prediction']}
    gold = {tag for answer in answers for tag in answer.get('gold', ())}
    return predicted.pop() if len(predicted) == 1 and len(gold) > 1 else ''


def _known_tags(answers):
  """The tags of tokens whose gold tag is known: (gold, predicted), [S] lists."""
  golds, predictions = [], []
  for answer in answers:
    if 'gold' in answer:
      pairs = [pair for pair in zip(answer['gold'], answer['prediction']) if pair[0]]
      golds.append([gold for gold, _ in pairs])
      predictions.append([prediction for _, prediction in pairs])
  return golds, predictions


def _documents(sentences):
  """The range of sentence numbers of its document, for each sentence."""
  out = []
  for _, group in itertools.groupby(sentences, key=lambda sentence: sentence.document):
    size = len(list(group))
    out += [range(len(out), len(out) + size)] * size
  return out


def _pieces(tokenizer, sentences):
  """Tokenizes sentences: (the piece ids of all tokens, concatenated; begins). begins: for each
  sentence of n tokens an array [n + 1], where each token begins and the last one ends."""
  tokens, after_blank = [], []
  for sentence in sentences:
    number = len(sentence.tokens)
    tokens += sentence.tokens
    after_blank += sentence.after_blank or [False] + [True] * (number - 1)
  unknown = np.array([tokenizer.unk_id], np.int32)  # of a token without a piece
  ids = [token if len(token) else unknown for token in tokenizer.words_batch(tokens, after_blank)]
  piece_at = np.concatenate([[0], np.cumsum([len(token) for token in ids], dtype=np.int64)])
  begins, at = [], 0
  for sentence in sentences:
    end = at + len(sentence.tokens)
    begins.append(piece_at[at : end + 1])
    at = end
  return np.concatenate(ids), begins
