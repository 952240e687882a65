"""A model's losses on the pieces of a text and on minimal pairs, beside unigrams and bigrams.

A masked model is asked with one piece masked at a time (Salazar et al. 2020,
https://arxiv.org/abs/1910.14659), or with the later pieces of its word masked, too (Kauf & Ivanova
2023, https://arxiv.org/abs/2305.10588); a causal one from left to right. A minimal pair counts as
right if the good sentence has the higher sum of log probabilities (Warstadt et al. 2020, BLiMP,
https://arxiv.org/abs/1912.00582).

Unigrams: (count + 1) / (tokens + pieces of the vocabulary). Bigrams, given the previous piece (or
the beginning of the sentence), are mixed with unigrams as in Witten and Bell 1991: (count of the
pair + k * unigram) / (count of the previous piece + k), where k kinds of pieces follow it.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.command_line import progress
from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.predict import Model
from bert_jax.tasks.ask import RecordProblems
from bert_jax.tasks.pretraining.ask import TokenScores
from bert_jax.text import files
from bert_jax.tools.probe.data import Sentence, drawn

AT_ONCE = 64  # sentences
BANDS = {0: '0', 1: '1-9', 10: '10-99', 100: '100-999', 1000: '1000+'}  # {least count: name}
Sentences = Sequence[Sentence]


class Pair(NamedTuple):
  """A minimal pair."""

  good: str
  bad: str
  uid: str  # the paradigm, that is what it tests
  term: str  # the phenomenon
  field: str  # of linguistics
  group: str  # the NAME of its NAME=SPEC


def logs_of(
  model: Model,
  ids: Sequence[np.ndarray],
  counts: Counter[str],
  name: str,
  within_words: bool = False,
) -> list[np.ndarray]:
  """The log probabilities of the pieces in each array of ids. name: for the progress bar.
  within_words: as TokenScores."""
  ask: Any = model.ask('perplexity')
  outputs = ask.model.compiled(ask.outputs)
  problems, out = RecordProblems(), []
  for at in progress(range(0, len(ids), AT_ONCE), name, 'batches'):
    part = ids[at : at + AT_ONCE]
    examples = TokenScores(ask.model, part, part, problems, within_words)
    logs = {}
    if examples.texts:
      logs = dict(examples.logs(ask.model.outputs(outputs, examples)))
    for number in range(len(part)):
      out.append(logs.get(number, np.zeros(0)))
  counts.update(problems.counts)
  return out


def _pairs(ids: np.ndarray) -> list[tuple[int, int]]:
  """(the piece before, or -1, the piece) of each piece."""
  return list(itertools.pairwise([-1, *ids.tolist()]))


class Counts:
  """How often pieces, and pairs of neighbours, occur in arrays of ids."""

  def __init__(self, arrays: Iterable[np.ndarray], pieces: int):
    self.of_piece = np.zeros(pieces, np.int64)
    self.of_pair = Counter()
    self.before = Counter()
    for ids in arrays:
      pairs = _pairs(ids)
      np.add.at(self.of_piece, ids, 1)
      self.of_pair.update(pairs)
      self.before.update(before for before, _ in pairs)
    self.kinds = Counter(before for before, _ in self.of_pair)

  def unigram(self, ids: np.ndarray) -> np.ndarray:
    """[n] unigram log probabilities."""
    total = self.of_piece.sum() + len(self.of_piece)
    return np.log((self.of_piece[ids] + 1) / total)

  def bigram(self, ids: np.ndarray) -> np.ndarray:
    """[n] bigram log probabilities, each given the previous piece."""
    out = []
    for pair, unigram in zip(_pairs(ids), np.exp(self.unigram(ids))):
      before = self.before[pair[0]]
      kinds = self.kinds[pair[0]]
      if before:
        count = self.of_pair[pair] + kinds * unigram
        out.append(count / (before + kinds))
      else:
        out.append(unigram)
    return np.log(out)


def baselines(sentences: Sentences, pieces: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """For each Sentence (counts of its pieces, unigram and bigram log probabilities). What is counted
  is the even sentences for odd ones and vice versa, so that none counts for itself."""
  halves = []
  for others in (sentences[1::2], sentences[0::2]):
    halves.append(Counts([sentence.ids for sentence in others], pieces))
  out = []
  for i, sentence in enumerate(sentences):
    counts, ids = halves[i % 2], sentence.ids
    out.append((counts.of_piece[ids], counts.unigram(ids), counts.bigram(ids)))
  return out


def losses(model: Model, sentences: Sentences, counts: Counter[str]) -> dict[str, Any]:
  """Mean losses in nats a piece, of all pieces and by group: {'all', 'by_pos', 'by_frequency',
  'by_language'}, each {'pieces', 'loss', 'unigram', 'bigram'}. Frequency: as in `baselines`."""
  import pandas as pd  # slow to import

  logs = logs_of(model, [s.ids for s in sentences], counts, 'masked pieces')
  guesses = baselines(sentences, model.tokenizer.vocab_size)
  least = list(BANDS)
  of_sentences = []
  for sentence, log, (seen, unigram, bigram) in zip(sentences, logs, guesses, strict=True):
    columns: dict[str, Any] = {'loss': -log, 'unigram': -unigram, 'bigram': -bigram}
    columns['frequency'] = np.digitize(seen, least) - 1
    columns['language'] = sentence.language
    columns['pos'] = ''
    if sentence.tags:
      columns['pos'] = [sentence.tags[word] or '_' for word in sentence.word_of]
    of_sentences.append(pd.DataFrame(columns))
  pieces = pd.concat(of_sentences)

  def means(some: pd.DataFrame) -> dict[str, float]:
    mean = some[['loss', 'unigram', 'bigram']].mean()
    return {'pieces': len(some), **mean.to_dict()}

  def groups(name: str) -> dict[Any, dict[str, float]]:
    known = pieces[pieces[name] != '']
    return {key: means(some) for key, some in known.groupby(name)}

  by_frequency = {}
  for band, group in groups('frequency').items():
    by_frequency[BANDS[least[band]]] = group
  return {
    'all': means(pieces),
    'by_pos': groups('pos'),
    'by_frequency': by_frequency,
    'by_language': groups('language'),
  }


def read_pairs(specs: Sequence[str], most: int, counts: Counter[str]) -> list[Pair]:
  """Reads `most` pairs (0: all) of each file of BLiMP's JSONL: sentence_good, sentence_bad, UID."""
  out = []
  for spec in specs:
    for group, part in files.parts(spec):
      for path in files.expand(part):
        pairs = _pairs_of(path, group)
        out += drawn(pairs, most, 'pairs not used (--sentences)', counts)
  return out


def _pairs_of(path: Path, group: str) -> list[Pair]:
  pairs = []
  for number, line in files.lines(path, Counter()):
    record = files.parse_json(line, f'{path.name}:{number}', Counter())
    good, bad = record.get('sentence_good'), record.get('sentence_bad')
    if not isinstance(good, str) or not isinstance(bad, str):
      raise InputError(
        f'{path.name}:{number} lacks a text sentence_good or sentence_bad: it is no pair of BLiMP.'
      )
    pair = Pair(
      good,
      bad,
      uid=record.get('UID', path.stem),
      term=record.get('linguistics_term', ''),
      field=record.get('field', ''),
      group=group,
    )
    pairs.append(pair)
  return pairs


def minimal_pairs(
  model: Model, pairs: Sequence[Pair], counts: Counter[str], within_words: bool = False
) -> dict[str, Any]:
  """Scores minimal pairs of read_pairs: {'pairs', 'accuracy', 'ties', 'official', 'by_group',
  'by_uid', 'by_field', 'by_term', 'items'}.

  accuracy: of all pairs; one of sums that are equal up to rounding, or with an empty sentence, is
  wrong. official: the same with the ties right, as the script of BabyLM counts them. by_group: the
  mean over the paradigms of each group, which is what BabyLM's board shows. items: of each pair its
  paradigm, the two sums and which sentence is chosen: good, bad or tie."""
  texts = []
  for pair in pairs:
    texts += [pair.good, pair.bad]
  ids = model.tokenizer.ids_batch(texts)
  logs = logs_of(model, ids, counts, 'minimal pairs', within_words)
  sums = np.array([x.sum() if len(x) else np.nan for x in logs]).reshape(-1, 2)
  return judged(pairs, sums)


def judged(pairs: Sequence[Pair], sums: np.ndarray) -> dict[str, Any]:
  """What minimal_pairs returns, of the log probabilities [n, 2] of the sentences of n pairs."""
  import pandas as pd

  good, bad = sums.T
  is_tie = np.isclose(good, bad, rtol=1e-6, atol=1e-6)
  is_right = (good > bad) & ~is_tie
  frame = pd.DataFrame(pairs).assign(accuracy=is_right, official=is_right | is_tie)
  scores = ['accuracy', 'official']

  def by(name: str, some: pd.DataFrame) -> dict[Any, Any]:
    """The means by each of the values of a column that pairs have."""
    named = some[some[name] != '']
    return named.groupby(name)[scores].mean().to_dict('index')

  of_paradigms = frame.groupby(['group', 'uid'])[scores].mean().reset_index()
  items = pd.DataFrame(
    {
      'uid': frame.uid,
      'good': good,
      'bad': bad,
      'chosen': np.select([is_tie, is_right], ['tie', 'good'], 'bad'),
    }
  )
  return {
    'pairs': len(pairs),
    **frame[scores].mean().to_dict(),
    'ties': int(is_tie.sum()),
    'by_group': by('group', of_paradigms),
    'by_uid': by('uid', frame),
    'by_field': by('field', frame),
    'by_term': by('term', frame),
    'items': items,
  }
