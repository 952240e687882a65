"""A model's losses on the pieces of a text and on minimal pairs, beside unigrams and bigrams.

A masked model is asked with one piece masked at a time (Salazar et al. 2020,
https://arxiv.org/abs/1910.14659), a causal one from left to right. A minimal pair counts as right
if the good sentence has the higher sum of log probabilities (Warstadt et al. 2020, BLiMP,
https://arxiv.org/abs/1912.00582).

Unigrams: (count + 1) / (tokens + pieces of the vocabulary). Bigrams, given the previous piece (or
the beginning of the sentence), are mixed with unigrams as in Witten and Bell 1991: (count of the
pair + k * unigram) / (count of the previous piece + k), where k kinds of pieces follow it.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax.command_line import progress
from bert_jax.errors import InputError
from bert_jax.predict import Model
from bert_jax.tasks.ask import RecordProblems
from bert_jax.tasks.pretraining.ask import TokenScores
from bert_jax.text import files
from bert_jax.tools.probe.data import Sentence, drawn

AT_ONCE = 64  # sentences
BANDS = (1, 10, 100, 1000)  # counts at which a band of frequency begins
Sentences = Sequence[Sentence]
Pair = tuple[str, str, str, str]  # the good and the bad sentence, kind, field


def logs_of(
  model: Model, ids: Sequence[np.ndarray], counts: Counter[str], name: str
) -> list[np.ndarray]:
  """The log probabilities of the pieces in each array of ids. name: for the progress bar."""
  ask: Any = model.ask('perplexity')
  model, outputs = ask.model, ask.model.compiled(ask.outputs)
  problems, out = RecordProblems(), []
  for at in progress(range(0, len(ids), AT_ONCE), name, 'batches'):
    part = ids[at : at + AT_ONCE]
    examples = TokenScores(model, part, part, problems)
    logs = dict(examples.logs(model.outputs(outputs, examples))) if examples.texts else {}
    out += [logs.get(i, np.zeros(0)) for i in range(len(part))]
  counts.update(problems.counts)
  return out


def _pairs(ids: np.ndarray) -> list[tuple[int, int]]:
  """(the piece before, or -1, the piece) of each piece."""
  return list(itertools.pairwise([-1, *ids.tolist()]))


class Counts:
  """How often pieces, and pairs of neighbours, occur in arrays of ids."""

  def __init__(self, arrays: Iterable[np.ndarray], pieces: int):
    self.of_piece = np.zeros(pieces, np.int64)
    self.of_pair, self.before = Counter(), Counter()
    for ids in arrays:
      np.add.at(self.of_piece, ids, 1)
      self.of_pair.update(pairs := _pairs(ids))
      self.before.update(before for before, _ in pairs)
    self.kinds = Counter(before for before, _ in self.of_pair)

  def unigram(self, ids: np.ndarray) -> np.ndarray:
    """[n] unigram log probabilities."""
    return np.log((self.of_piece[ids] + 1) / (self.of_piece.sum() + len(self.of_piece)))

  def bigram(self, ids: np.ndarray) -> np.ndarray:
    """[n] bigram log probabilities, each given the previous piece."""
    pairs = _pairs(ids)
    of_pair = np.array([self.of_pair[pair] for pair in pairs], float)
    before = np.array([self.before[first] for first, _ in pairs], float)
    kinds = np.array([self.kinds[first] for first, _ in pairs], float)
    unigram, known = np.exp(self.unigram(ids)), before > 0
    mixed = (of_pair + kinds * unigram) / np.where(known, before + kinds, 1)
    return np.log(np.where(known, mixed, unigram))


def baselines(
  sentences: Sentences, reference: Sentences, pieces: int
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """For each Sentence (counts of its pieces, unigram and bigram log probabilities). reference: what
  is counted; []: even sentences for odd ones and vice versa, so that none counts for itself."""
  parts = [reference] if reference else [sentences[1::2], sentences[0::2]]
  counted = [Counts([sentence.ids for sentence in part], pieces) for part in parts]
  out = []
  for i, sentence in enumerate(sentences):
    counts, ids = counted[i % len(counted)], sentence.ids
    out.append((counts.of_piece[ids], counts.unigram(ids), counts.bigram(ids)))
  return out


def losses(
  model: Model, sentences: Sentences, reference: Sentences, counts: Counter[str]
) -> dict[str, Any]:
  """Mean losses in nats a piece, of all pieces and by group: {'all', 'by_pos', 'by_frequency',
  'by_language'}, each {'pieces', 'loss', 'unigram', 'bigram'}. Frequency: as in `baselines`."""
  logs = logs_of(model, [s.ids for s in sentences], counts, 'masked pieces')
  base = baselines(sentences, reference, model.tokenizer.vocab_size)
  none = np.zeros(0)
  counted, unigram, bigram = (np.concatenate([*column, none]) for column in zip(*base))
  columns = {'loss': np.concatenate([*logs, none]), 'unigram': unigram, 'bigram': bigram}
  frequency = np.digitize(counted, BANDS)
  names = ['0', *(f'{a}-{b - 1}' for a, b in zip(BANDS, BANDS[1:])), f'{BANDS[-1]}+']
  tags = [s.tags[w] or '_' if s.tags else '' for s in sentences for w in s.word_of]
  languages = np.repeat([s.language for s in sentences], [len(s.ids) for s in sentences])

  def means(which: np.ndarray) -> dict[str, float]:
    return {'pieces': int(which.sum())} | {k: float(-x[which].mean()) for k, x in columns.items()}

  def groups(keys: Any, order: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    keys = np.asarray(keys)
    known = [k for k in (order or sorted(set(keys))) if k and np.any(keys == k)]
    return {str(k): means(keys == k) for k in known}

  return {
    'asked': 'left to right' if model.config.model.causal else 'each piece masked alone',
    'counted': 'the reference' if reference else 'the other half of the sentences',
    'all': means(np.ones(len(frequency), bool)),
    'by_pos': groups(tags),
    'by_frequency': groups(np.array(names)[frequency], names),
    'by_language': groups(languages),
  }


def read_pairs(
  specs: Sequence[str], most: int, counts: Counter[str], encoding: str = ''
) -> list[Pair]:
  """Reads `most` pairs (0: all) of each file of BLiMP's JSONL: sentence_good, sentence_bad, UID.
  encoding: of the files, as data.text_encoding."""
  out = []
  for spec in specs:
    for path in files.expand(spec):
      pairs, stem, read = [], path.name.partition('.')[0], Counter()
      lines = [(n, line) for n, line in files.lines(path, read, encoding) if line.strip()]
      for number, line in lines:
        record = {}
        with contextlib.suppress(InputError):
          record = files.parse_json(line, f'{path.name}:{number}', read)
        texts = record.get('sentence_good'), record.get('sentence_bad')
        kinds = record.get('UID', stem), record.get('linguistics_term', '')
        if all(isinstance(text, str) for text in texts):
          pairs.append((*texts, *map(str, kinds)))
      counts['lines that are no minimal pair (left out)'] += len(lines) - len(pairs)
      out += drawn(pairs, most, 'pairs not used (--sentences)', counts)
  if specs and not out:
    form = 'JSONL with sentence_good and sentence_bad'
    raise InputError(f'--pairs {" ".join(specs)} holds no minimal pair; give {form}.')
  return out


def minimal_pairs(model: Model, pairs: Sequence[Pair], counts: Counter[str]) -> dict[str, Any]:
  """Scores minimal pairs of read_pairs: {'accuracy', 'pairs', 'ties', 'by_uid', 'by_term'}. A pair
  of sums that are equal up to rounding, or with an empty sentence, is wrong."""
  ids = model.tokenizer.ids_batch([text for good, bad, *_ in pairs for text in (good, bad)])
  logs = logs_of(model, ids, counts, 'minimal pairs')
  sums = np.array([x.sum() if len(x) else np.nan for x in logs]).reshape(-1, 2)
  equal = np.isclose(*sums.T, rtol=1e-6, atol=1e-6)
  right = (sums[:, 0] > sums[:, 1]) & ~equal

  def accuracies(field: int) -> dict[str, float]:
    """The accuracy by each value of a field of the pairs."""
    values = np.array([pair[field] for pair in pairs])
    return {str(x): float(right[values == x].mean()) for x in sorted({*values} - {''})}

  return {
    'pairs': len(pairs),
    'accuracy': float(right.mean()),
    'ties': int(equal.sum()),
    'by_uid': accuracies(2),
    'by_term': accuracies(3),
  }
