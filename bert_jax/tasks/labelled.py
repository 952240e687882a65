"""What families of labelled examples share: fields, rules, defaults, how rows are made."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax import models
from bert_jax.field import Field, affecting
from bert_jax.tasks import teaching
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.record import Card, Family
from bert_jax.tasks.remarks import about_examples
from bert_jax.tokenizers import Tokenizer

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
