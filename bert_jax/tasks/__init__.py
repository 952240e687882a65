"""What an objective is trained on: a module per family of tasks, each with the same four parts.

resolve(config) -> config          fills in what only the data can tell (a label set)
texts(config) -> iterator of str   what a vocabulary is trained on
objective(config, tokenizer) -> Objective
sources(config, tokenizer, splits) -> {split: Source}
"""

from bert_jax.tasks.choice import task as choice
from bert_jax.tasks.classification import task as classification
from bert_jax.tasks.coreference import task as coreference
from bert_jax.tasks.pretraining import task as pretraining
from bert_jax.tasks.qa import task as qa
from bert_jax.tasks.tagging import task as tagging

TASKS = {
  'mlm_nsp': pretraining,
  'classification': classification,
  'choice': choice,
  'coreference': coreference,
  'qa': qa,
  'tagging': tagging,
}
