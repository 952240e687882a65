"""The first piece of each row of a corpus; a trained model says which pieces may begin a text."""

import dataclasses

import jax
import numpy as np

from bert_jax import models
from bert_jax.corpus import loading
from bert_jax.errors import InputError
from bert_jax.field import Field
from bert_jax.objectives.first_piece import FirstPiece
from bert_jax.rows.corpus_rows import Rows
from bert_jax.rows.examples import Examples, by_example
from bert_jax.rows.plans import Cutting
from bert_jax.tasks import pretraining
from bert_jax.tasks.ask import Packed
from bert_jax.tasks.record import Card, Family, Option, Prediction


def objective(config, tokenizer):
  model = models.ModelConfig(**config.model)
  reader = dataclasses.replace(model, num_hidden_layers=config.reader.layers)
  return FirstPiece(model, reader, config.data.seq_length, tokenizer.mask_id)


def sources(config, tokenizer, splits=('train', 'eval')):
  ((whole, _),) = loading.load(config, config.data.train, tokenizer, 'train').values()
  parts = dict(zip(('train', 'eval'), whole.divided(config.corpus.eval_share)))
  cutting = Cutting('full', config.data.seq_length)
  seed = lambda split: (config.seed, split == 'eval', 0)
  return {x: Rows(parts[x], tokenizer, cutting, seed=seed(x)) for x in splits}


class Begins(Packed):
  """What may stand before a text. most: how many pieces."""

  def __init__(self, model, most=1):
    super().__init__(model)
    if most < 1:
      raise InputError(f'most is {most}; ask for 1 piece or more.')
    self.most = most

  def examples(self, records, problems):
    return Begun(self.model, records, self.most)

  def outputs(self, params, batch):
    batch = batch | {'first_positions': batch['cls_positions'] + 1}
    logits_BNV, _ = self.model.objective.logits(params, batch)
    return {'shares': jax.nn.softmax(logits_BNV), 'example_ids': batch['example_ids']}


class Begun(Examples):
  """Texts with [MASK] at their beginning."""

  def __init__(self, model, records, most):
    self.most, mask, room = most, model.tokenizer.mask_id, model.limit - 3
    texts = [(np.append(mask, ids[:room]),) for ids in model.tokenizer.ids_batch(records)]
    super().__init__(model.tokenizer, texts, seq_length=model.limit, slots=8)

  def answers(self, outputs):
    numbers, (shares,) = by_example(outputs, 'shares')
    best = np.argsort(-shares, axis=-1)[:, : self.most]
    pieces = ([self.tokenizer.pieces[k] for k in row] for row in best)
    return [{'id': int(i), 'pieces': row} for i, row in zip(numbers, pieces)]


LAYERS = Field(1, 'blocks of the narrow tower', allowed='[1, inf)', affects={'weights'})
LACKS = 'reader; train one with configs/first_piece.py'
MOST = {'most': Option(int, 'how many pieces; default: 1')}


def rules(config):
  yield not config.data.eval, 'objective first_piece holds out documents; leave data.eval empty.'


RECORD = Family(
  name='first_piece',
  texts=pretraining.resolution.texts,
  objective=objective,
  sources=sources,
  main_metric=lambda config: 'first',
  fields=pretraining.CORPUS | {'reader.layers': LAYERS},
  rules=rules,
  defaults={'optimizer.warmup': 1.0, 'steps': 3, 'log.tensorboard': False},
  reads_corpus=True,
  rows_follow=True,
  heads_besides=lambda config: {'of the reader, the number of its heads': 2},
  predictions={'begin-with': Prediction(Begins, ('encoder', 'reader', 'first'), LACKS, MOST)},
  card=lambda config: Card('the first piece of each row'),
)
