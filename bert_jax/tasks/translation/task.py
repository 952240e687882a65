"""The rows of translation pairs, and the scores of translations.

The sources and the targets of a row stand in two rows of tokens: [CLS] source [SEP], and [CLS]
target, of which each token is to be followed by the next and the last one by [SEP].

In training a pair with a side that is too long is left out and counted; translation.too_long=cut
keeps the beginning of both, and a target that is cut has no [SEP]. In an evaluation both are cut.

The scores are sacrebleu's BLEU and chrF of plain text (Post 2018,
https://arxiv.org/abs/1804.08771). Its signatures stand in sacrebleu.txt beside the answers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.corpus import tokenized
from bert_jax.errors import InputError
from bert_jax.metrics import LossLevel
from bert_jax.objectives.translation import TARGET, Translation
from bert_jax.rows.examples import by_example
from bert_jax.tasks import labelled
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.scored import Scored, always
from bert_jax.tasks.translation.reading import Pair, read
from bert_jax.tokenizers import Tokenizer

SCORES = 'bleu', 'chrf'


def target_length(config: ConfigDict) -> int:
  return config.translation.target_length or config.data.seq_length


def limits(config: ConfigDict) -> tuple[int, int]:
  """The most tokens of a source, [CLS] and [SEP] included, and of a target, with one of the two."""
  source, target, limit = config.data.seq_length, target_length(config), config.task.max_length
  return min(source, limit or source), min(target, limit or target)


def objective(config: ConfigDict, tokenizer: Tokenizer) -> Translation:
  fields = config.translation
  return labelled.objective(
    Translation,
    config,
    beams=fields.beams,
    length_penalty=fields.length_penalty,
    early_stopping=fields.early_stopping,
    smoothing=fields.label_smoothing,
    scores=SCORES if fields.beams else (),
    target_length=target_length(config),
    longest=limits(config)[1],
    begin_id=before(config, tokenizer)[0],
    end_id=tokenizer.sep_id,
  )


def before(config: ConfigDict, tokenizer: Tokenizer) -> tuple[int, ...]:
  """The ids before the text of a target: [CLS], or [SEP] [CLS] as in BART."""
  ids = tokenizer.cls_id, tokenizer.sep_id
  return ids[:1] if config.translation.begin == 'cls' else ids[::-1]


class Pairs(Scored):
  """The rows of pairs. targets: [E] arrays of the labels of each target; empty if none is known."""

  def __init__(
    self, config: ConfigDict, tokenizer: Tokenizer, pairs: list[Pair], problems: Problems
  ):
    self.target_length = target_length(config)
    self.begin_id, *first = before(config, tokenizer)
    source_limit, target_limit = limits(config)
    cuts = problems.split != 'train' or config.translation.too_long == 'cut'
    sources = tokenizer.ids_batch([pair.source for pair in pairs])
    targets = tokenizer.ids_batch([pair.target or '' for pair in pairs])
    first, end = np.array(first, np.int32), np.array([tokenizer.sep_id], np.int32)
    self.pairs, self.targets, self.tokens, texts = [], [], [], []
    for pair, source, target in zip(pairs, sources, targets):
      labels = target if pair.target is None else np.concatenate([first, target, end])
      if len(source) + 2 > source_limit or len(labels) > target_limit:
        both = f'{source_limit} and {target_limit} tokens'
        problems.note(f'pairs {"cut" if cuts else "left out"} (longer than {both})', pair.where)
        if not cuts:
          continue
      self.pairs.append(pair)
      self.tokens.append(len(source))
      texts.append((source[: source_limit - 2],))
      self.targets.append(labels[:target_limit])
    if not texts:
      problems.log()
      advice = 'raise task.max_length and data.seq_length, or set translation.too_long=cut'
      raise InputError(f'no pair of data.{problems.split} is short enough; {advice}.')
    of_target = np.array([len(labels) for labels in self.targets], np.int64)
    # The larger share of a row that a side takes, so that the rows of both sides have room.
    reserved_tokens = -(-of_target * config.data.seq_length // self.target_length)
    self.target_tokens = int(of_target.sum())
    super().__init__(tokenizer, texts, reserved_tokens=reserved_tokens, **labelled.shape(config))
    targets = (labels.tobytes() + b'|' for labels in self.targets)
    self.fingerprint = tokenized.digest_of([self.fingerprint, *targets])
    if all(pair.target is not None for pair in self.pairs):
      counts = np.bincount(np.concatenate(self.targets), minlength=tokenizer.vocab_size)
      shares = counts / counts.sum()
      nats = float(shares @ tokenized.unigram_table(counts, counts))
      self.baselines['translation_nats'] = LossLevel(nats, 'unigram')
      self.baselines |= always('majority', {'translation_accuracy': shares.max()})
    problems.counts['target tokens'] = self.target_tokens

  @property
  def fill(self) -> float:
    used = self.lengths.sum() + self.target_tokens
    return float(used / (len(self) * (self.seq_length + self.target_length)))

  def row(self, items: Any, length: int, slots: int) -> dict[str, np.ndarray]:
    row = super().row(items, length, slots)
    sides = np.zeros((4, self.target_length), np.int32)
    ids, labels, positions, segments = sides
    ids[:] = labels[:] = self.tokenizer.pad_id
    at = 0
    for k, example in enumerate(e for item in items for e in item):
      target = self.targets[example]
      end = at + len(target)
      ids[at:end], labels[at:end] = np.append(self.begin_id, target)[: len(target)], target
      positions[at:end], segments[at:end] = np.arange(len(target)), k + 1
      at = end
    return row | dict(zip(TARGET, sides))

  def answers(self, outputs: Mapping[str, np.ndarray]) -> list[dict]:
    numbers, (written, scores) = by_example(outputs, 'written', 'scores')
    answers = []
    for e, ids, score in zip(numbers, written, scores):
      pair = self.pairs[e]
      answer = {
        'id': pair.id,
        'where': pair.where,
        'length': self.tokens[e],
        'source': pair.source,
        'prediction': self.tokenizer.decode(ids[ids >= 0]),
        'score': float(score),
      }
      if pair.target is not None:
        answer['gold'] = pair.target
      answers.append(answer)
    return answers

  def scores(self, answers: list[dict]) -> dict[str, float]:
    return {name: score for name, (score, _, _) in sacrebleu_scores(answers).items()}

  def files(self, answers: list[dict]) -> dict[str, str]:
    """translations.txt, a line for each source, and the scores as sacrebleu prints them."""
    out = {'translations.txt': ''.join(f'{" ".join(a["prediction"].split())}\n' for a in answers)}
    known = [answer for answer in answers if 'gold' in answer]
    if known:
      scores = sacrebleu_scores(known).values()
      out['sacrebleu.txt'] = ''.join(f'{line}\n{signature}\n' for _, line, signature in scores)
    return out


def sacrebleu_scores(answers: list[dict]) -> dict[str, tuple[float, str, str]]:
  """Scores answers by sacrebleu: {metric: (score, sacrebleu's line and signature)}."""
  from sacrebleu.metrics import BLEU, CHRF  # slow to import

  texts, references = [a['prediction'] for a in answers], [[a['gold'] for a in answers]]
  out = {}
  for name, metric in zip(SCORES, (BLEU(), CHRF())):
    score = metric.corpus_score(texts, references)
    out[name] = float(score.score), str(score), str(metric.get_signature())
  return out


texts = labelled.texts_of(read, lambda pair: (pair.source, pair.target))
sources = labelled.sources_of(Pairs, read)
