"""Questions to a classifier: {"text"} or, to a model of pairs, {"text", "pair"}."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from bert_jax.errors import InputError
from bert_jax.tasks.ask import OfHead, texts_of
from bert_jax.tasks.classification.reading import Example
from bert_jax.tasks.classification.task import Texts

if TYPE_CHECKING:
  from bert_jax.predict.model import Model


class Classify(OfHead):
  examples_of, exports = Texts, {'logits': '[B, labels]'}
  tabs = True  # so that a pair is never taken for a single text

  def __init__(self, model: 'Model'):
    super().__init__(model)
    if 'table' in model.config and model.config.table.pair_column:
      self.fields = ('text', 'pair')

  def config(self, row: int = 0) -> ConfigDict:
    config = super().config(row)
    if config.table.long_texts == 'hierarchical':  # a row holds all windows of a text
      config.data.seq_length = max(row, self.model.config.data.seq_length)
    return config

  def from_parts(self, parts: Sequence[str]) -> dict[str, Any]:
    if len(parts) != len(self.fields):
      if len(parts) == 2 and not self.model.step:
        advice = 'if it does, use --task pair (in Python, model.pair)'
        raise InputError(f'nothing says that this model reads pairs; {advice}')
      reads = f'this model reads {("single texts", "pairs")[len(self.fields) - 1]}'
      got = f'{len(parts)} in {parts[0][:40]!r}'
      raise InputError(f'{reads} and got {got}; a tab separates the two texts of a pair')
    return super().from_parts(parts)

  def record(self, fields: dict[str, Any]) -> Example:
    if 'pair' in fields and 'pair' not in self.fields:
      self.from_parts(texts_of(fields, ('text', 'pair')))
    return Example('', '', tuple(texts_of(fields, self.fields)), None)

  def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
    out = dict(zip(self.fields, answer['texts']))
    several, regression = self.model.objective.multi_label, self.model.objective.regression
    out['value' if regression else 'labels' if several else 'label'] = answer['prediction']
    names = 'probability', 'probabilities'
    return out | {name: answer[name] for name in names if name in answer}

  def returned(self, answers: list[dict | None]) -> list:
    name = 'prediction' if self.model.objective.regression else 'probabilities'
    return [answer and answer[name] for answer in answers]


class Pair(Classify):
  """Classifies pairs of texts. A released classifier does not say whether it reads pairs."""

  fields = ('text', 'pair')

  def __init__(self, model: 'Model'):
    if model.step and not model.config.table.pair_column:
      raise InputError('this model was trained on single texts, not on pairs; use classify.')
    super().__init__(model)
