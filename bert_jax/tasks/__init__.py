"""What an objective is trained on: a module per family of tasks, each with the same four parts.

resolve(config) -> config          fills in what only the data can tell (a label set)
texts(config) -> iterator of str   what a vocabulary is trained on
objective(config, tokenizer) -> Objective
sources(config, tokenizer, splits) -> {split: Source}
"""

from bert_jax.tasks import choice, classification, coreference, pretraining, qa, tagging

TASKS = {
  'mlm_nsp': pretraining,
  'classification': classification,
  'choice': choice,
  'coreference': coreference,
  'qa': qa,
  'tagging': tagging,
}
