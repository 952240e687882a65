"""What families of labelled examples share: fields, rules, defaults, rows that are scored."""

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from scipy.special import entr, log_softmax

from bert_jax import models
from bert_jax.errors import log, quoted
from bert_jax.field import Field, affecting
from bert_jax.metrics import Level, LossLevel
from bert_jax.rows.examples import Examples
from bert_jax.tasks import teaching
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.record import Card, Family
from bert_jax.tasks.remarks import about_examples
from bert_jax.tokenizers import Tokenizer

NAMED = 20  # labels that are named, each with its F1
# BERT's recipe for fine-tuning (Devlin et al. 2018, appendix A.3), with bias correction. Without
# it, as in BERT's release, the first steps are several times as long, and training on small data
# sets collapses (Mosbach et al. 2021, Zhang et al. 2021), as it does in few steps.
DEFAULTS = {
  'batch_size': 8,
  'steps': 0,
  'epochs': 3.0,
  'min_steps': 100,
  'data.examples_per_row': 16,
  'optimizer.name': 'adamw',
  'optimizer.learning_rate': 0.0,  # see rate_of
  'optimizer.warmup': 0.1,
  'eval.every': 0,
  'eval.batches': 0,
  'checkpoint.every': 1000,
  'checkpoint.keep_latest': 1,
  'checkpoint.best_mode': 'max',
  'log.every': 0,
}


def rate_of(config: ConfigDict) -> float:
  """The peak rate where none is given: the paper's or, for a narrow encoder, a larger one. Only
  MiniLM (384 wide) was measured: 701 topics of SIB-200 give it an accuracy of 0.902 with the larger
  rate and of 0.574 with the paper's. That narrow ends at 512 is a guess."""
  return 3e-5 if config.model.hidden_size >= 512 else 2e-4


def task_fields(formats: Sequence[str]) -> dict[str, Field]:
  """The fields of the block `task` for a family that reads these formats (the first: default)."""
  layout = 'how the files are laid out, see the module that reads them'
  most = 'tokens of an example (or choice), [CLS] and [SEP] included; 0, not of choices: seq_length'
  few = 'train on this many examples only; 0: all'
  fields = {
    'task.format': Field(formats[0], layout, allowed=tuple(formats)),
    'task.max_length': Field(0, most, allowed='[0, inf)'),
    'task.train_examples': Field(0, few, allowed='[0, inf)'),
  }
  return affecting({'rows'}, fields)


FROM_DATA = ('data',)


def prior_field(of: str) -> Field:
  """The field for what a new head begins at (Family.prior)."""
  how = "('data',): as in the training data, which a run fills in; empty: it begins at zeros"
  return Field(FROM_DATA, f'{of}, at which a new head begins; {how}', affects={'weights', 'start'})


def prior_of(block: ConfigDict) -> tuple[float, ...]:
  """The values of the field `prior`; (): it is empty, or not filled in."""
  return () if block.prior == FROM_DATA else tuple(map(float, block.prior))


def rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  """Yields (what must hold, the sentence if not) for each rule."""
  if 'teacher' in config:
    yield from teaching.rules(config)
  limit, row = config.task.max_length, config.data.seq_length
  yield (
    not 0 < limit < 8,
    f'task.max_length is {limit}; examples take 8 tokens at least, 0 is the whole row.',
  )
  yield (
    limit <= row,
    f'task.max_length {limit} is longer than the row, data.seq_length {row}; lower the one or '
    'raise the other.',
  )


def family(
  name: str,
  *,
  formats: Sequence[str],
  fields: Mapping[str, Field] | None = None,
  defaults: Mapping[str, Any] | None = None,
  has_teacher: bool = True,
  **more: Any,
) -> Family:
  """Makes the record of a family that reads files of these formats. fields, defaults: besides those
  of every family. has_teacher: it can be distilled. more: further fields of the record."""
  shared: dict[str, Any] = {'rules': rules, 'remarks': about_examples, 'card': card_of()}
  return Family(
    name=name,
    fields={**task_fields(formats), **(fields or {}), **(teaching.FIELDS if has_teacher else {})},
    defaults={**DEFAULTS, **(defaults or {})},
    limit_field='task.max_length',
    taught=teaching.by_answers if has_teacher else None,
    **(shared | more),
  )


def card_of(longer_texts: str = 'head') -> Callable[[ConfigDict], Card]:
  """The `card` function of a family whose Card does not depend on the config."""

  def card(config: ConfigDict) -> Card:
    return Card(f'`{config.objective}`', longer_texts=longer_texts)

  return card


def objective(kind: type, config: ConfigDict, *arguments: Any, **options: Any) -> Any:
  """Makes an objective of a class `kind` for a config's model and rows."""
  options['examples_per_row'] = config.data.examples_per_row
  return kind(models.ModelConfig(**config.model), config.data.seq_length, *arguments, **options)


def limit(config: ConfigDict) -> int:
  """The most tokens of an example, special ones included."""
  return config.task.max_length or config.data.seq_length


def shape(config: ConfigDict) -> dict[str, Any]:
  """The arguments of rows.examples.Examples for the size of a row."""
  return {'seq_length': config.data.seq_length, 'slots': config.data.examples_per_row}


def texts_of(
  read: Callable[..., Iterable], texts: Callable[[Any], Iterable[str]]
) -> Callable[[ConfigDict], Iterator[str]]:
  """Makes a family's `texts` function, from texts(example) and read(config, split, problems)."""

  def of_training_data(config: ConfigDict) -> Iterator[str]:
    for example in read(config, 'train', Problems.of(config, 'train')):
      yield from texts(example)

  return of_training_data


def sources_of(
  rows: Callable[..., Any],
  read: Callable[..., Iterable] | None = None,
  has_eval: Callable[[ConfigDict], Any] = lambda config: config.data.eval,
) -> Callable[..., dict[str, Any]]:
  """Makes the `sources` function of a family, which logs problems, from rows(config, tokenizer,
  examples, problems). examples: some of what read(config, split, problems) yields, or, without
  `read`, the split. has_eval: whether a config has evaluation data."""

  def sources(
    config: ConfigDict, tokenizer: Tokenizer, splits: Sequence[str] = ('train', 'eval')
  ) -> dict[str, Any]:
    out = {}
    for split in splits:
      if split != 'train' and not has_eval(config):
        continue
      problems, examples = Problems.of(config, split), split
      if read:
        few = config.task.train_examples
        examples = list(problems.chosen(read(config, split, problems), few))
      out[split] = rows(config, tokenizer, examples, problems)
      problems.log(out[split])
      if problems.unscored:
        out[split].unscored = problems.unscored
    return out

  return sources


def log_labels(what: str, labels: Sequence[str], counts: Sequence[int] | np.ndarray) -> None:
  """Logs labels with their counts in the training data, the most frequent first. what: they are."""
  order = np.argsort(-np.asarray(counts), kind='stable')
  shown = [f'{quoted(labels[i])} {counts[i]:,}' for i in order[:NAMED]]
  if len(labels) > NAMED:
    shown.append(f'and {len(labels) - NAMED:,} more')
  log.info('%s: %s', what, ', '.join(shown))


def always(kind: str, scores: Mapping[str, Any]) -> dict[str, Level]:
  """Baselines of a kind, from the {metric: score} of one constant answer."""
  return {name: Level(float(score), kind) for name, score in scores.items()}


def entropy(counts: Any, weights: Any = 1.0) -> dict[str, LossLevel]:
  """{'cross_entropy': its baseline in nats}: the least that one answer for all examples can have,
  the entropy of their labels; {} if it is 0, below which nothing is. counts: [L] of each label,
  or [2, L] of the examples without and with each of several: then the mean of all labels. weights:
  [L] in the loss."""
  counts = np.asarray(counts, float)
  if counts.ndim == 1:
    counts, weights = (counts * weights)[:, None], 1.0
  nats = float(np.mean(weights * entr(counts / counts.sum(0)).sum(0)))
  return {'cross_entropy': LossLevel(nats, 'entropy')} if nats > 0 else {}


def label_shares(counts: Any, number: int = 0) -> tuple[float, ...]:
  """The share of each label by their counts among `number` examples; 0: each has one label. One
  that none or all have counts as half an example less or more, so that its logit is finite."""
  number = number or sum(counts)
  if not number:
    return ()
  exact = np.clip(counts, 0.5, number - 0.5) / number
  # What would be rounded to 1 is not rounded.
  return tuple(float(f'{x:.5g}') % 1 or float(x) for x in exact)


def f1_of_all(share: Any) -> Any:
  """The F1 of giving one label to every example, when it is right for this share of them."""
  return 2 * share / (1 + share)


def choice_of_label(labels: Sequence[Any], logits: np.ndarray, gold: int | None) -> dict[str, Any]:
  """The parts of an answer that say which of some labels is right: prediction, its probability,
  all probabilities and, if the number of the right label is known, gold and loss."""
  logs, best = log_softmax(logits), int(np.argmax(logits))
  probabilities = np.exp(logs).tolist()
  out = {
    'prediction': labels[best],
    'probability': probabilities[best],
    'probabilities': dict(zip(labels, probabilities)),
  }
  if gold is not None:
    out |= {'gold': labels[gold], 'loss': float(-logs[gold])}
  return out


def correlations(gold: Sequence[float], predicted: Sequence[float]) -> dict[str, float]:
  """Pearson's and Spearman's correlation; NaN where one side does not vary."""
  import scipy.stats  # slow to import

  if len(gold) < 2 or not np.std(gold) or not np.std(predicted):
    return {'pearson': float('nan'), 'spearman': float('nan')}
  return {
    'pearson': float(scipy.stats.pearsonr(gold, predicted).statistic),
    'spearman': float(scipy.stats.spearmanr(gold, predicted).statistic),
  }


class Scored(Examples, abc.ABC):
  """Examples that turn a model's outputs into answers, and score the answers.
  scored: how many examples have gold, and so are scored; None: all. unscored: why the first
  one that is not scored is not, or a guess.
  for_missed: what to do about labels that are never answered."""

  scored: int | None = None
  unscored = 'is there the column of labels, called as in the training data?'
  for_missed = ''

  @abc.abstractmethod
  def answers(self, outputs: Mapping[str, np.ndarray]) -> list[dict]:
    """The model's answers: a JSON-ready dict for each example that was predicted completely.
    outputs: {name: [R, ...]}, what the objective's `predict` returned for R rows. Keys: id, where
    (file and line), length (tokens of its texts before any is cut), the question, gold (if known),
    prediction, probability, loss (-log of the probability of the gold answer)."""

  def score(self, answers: list[dict]) -> dict[str, float]:
    """Scores answers as the task's official scorer does, {metric: number}; {} without gold."""
    known = [answer for answer in answers if 'gold' in answer]
    return self.scores(known) if known else {}

  @abc.abstractmethod
  def scores(self, answers: list[dict]) -> dict[str, float]:
    """Scores answers that all have gold, {metric: number}."""

  def by_length(self, answers: list[dict]) -> list[dict]:
    """Scores by length: [{'tokens': '65-128', 'examples': number, metric: score, ..}, ..]."""
    groups = {}
    for answer in answers:
      if 'gold' in answer:
        longest = max(64, 1 << (answer['length'] - 1).bit_length())
        groups.setdefault(longest, []).append(answer)
    out = []
    for longest, part in sorted(groups.items()):
      shortest = 0 if longest == 64 else longest // 2 + 1
      row = {'tokens': f'{shortest}-{longest}', 'examples': len(part)}
      out.append(row | self.scores(part))
    return out

  def by_label(self, answers: list[dict]) -> list[dict]:
    """How labels are answered: [{'label', 'examples': with it, 'answered': how often, 'right',
    'f1'}, ..], without those that neither are nor are answered."""
    del answers
    return []

  def files(self, answers: list[dict]) -> dict[str, str]:
    """Files for official scorers and leaderboards, {file name: content}."""
    del answers
    return {}

  def constant(self, answers: list[dict]) -> str:
    """The prediction, or about which number, if all are alike though their gold is not, else ''."""
    predicted = [answer['prediction'] for answer in answers if 'prediction' in answer]
    gold = [answer['gold'] for answer in answers if 'gold' in answer]
    if not predicted or not gold:
      return ''
    if isinstance(predicted[0], float):
      is_constant = np.std(predicted) < 1e-3 * np.std(gold)
      return f'about {np.mean(predicted):.3f}' if is_constant else ''
    is_constant = len(set(map(str, predicted))) == 1 and len(set(map(str, gold))) > 1
    return str(predicted[0]) if is_constant else ''
