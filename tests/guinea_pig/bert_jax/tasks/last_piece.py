"""The last piece of each stretch of a corpus; a trained model goes on with a text by one piece."""

import jax
import numpy as np

from bert_jax import models
from bert_jax.corpus import loading
from bert_jax.field import Field
from bert_jax.objectives.last_piece import LastPiece
from bert_jax.rows.corpus_rows import Rows
from bert_jax.rows.examples import Examples, by_example
from bert_jax.rows.plans import Cutting
from bert_jax.tasks import pretraining
from bert_jax.tasks.ask import Packed
from bert_jax.tasks.record import Family, Prediction


def objective(config, tokenizer):
  model = models.ModelConfig(**config.model)
  return LastPiece(model, config.data.seq_length, tokenizer.mask_id)


def sources(config, tokenizer, splits=('train', 'eval')):
  ((whole, _),) = loading.load(config, config.data.train, tokenizer, 'train').values()
  parts = dict(zip(('train', 'eval'), whole.divided(config.corpus.eval_share)))
  cutting = Cutting(config.last.rows, config.data.seq_length)
  seed = lambda split: (config.seed, split == 'eval', 0)
  return {x: Rows(parts[x], tokenizer, cutting, seed=seed(x)) for x in splits}


class Next(Packed):
  """What comes next after a text."""

  def examples(self, records, problems):
    return Ended(self.model, records)

  def outputs(self, params, batch):
    batch = batch | {'last_positions': batch['asked'][..., 0]}
    logits_BNV = self.model.objective.logits(params, batch)
    return {'shares': jax.nn.softmax(logits_BNV), 'example_ids': batch['example_ids']}


class Ended(Examples):
  """Texts with [MASK] at their end."""

  def __init__(self, model, records):
    mask, room = model.tokenizer.mask_id, model.limit - 3
    texts = [(np.append(ids[-room:], mask),) for ids in model.tokenizer.ids_batch(records)]
    asked = {'asked': np.array([[len(ids)] for (ids,) in texts], np.int32)}
    super().__init__(model.tokenizer, texts, seq_length=model.limit, slots=8, positions=asked)

  def answers(self, outputs):
    numbers, (shares,) = by_example(outputs, 'shares')
    best = zip(numbers.tolist(), shares.argmax(-1).tolist(), shares.max(-1).tolist())
    return [{'id': i, 'piece': self.tokenizer.pieces[k], 'probability': p} for i, k, p in best]


ROWS = Field('full', 'how documents become rows', allowed=('full', 'single'), affects={'rows'})


def rules(config):
  yield not config.data.eval, 'objective last_piece holds out documents; leave data.eval empty.'


TASK = Family(
  name='last_piece',
  resolve=lambda config: config,
  texts=pretraining.resolution.texts,
  objective=objective,
  sources=sources,
  main_metric=lambda config: 'last',
  fields=pretraining.CORPUS | {'last.rows': ROWS},
  rules=rules,
  defaults={'optimizer.warmup': 1.0, 'steps': 3, 'log.tensorboard': False},
  reads_corpus=True,
  predictions={'next': Prediction(Next)},
)
