"""The task families: what each objective is trained on, and what its models can be asked.

record.py says what a record of a family holds. A new family is its files and one line here.
"""
# ruff: noqa: F401

from bert_jax.tasks.choice import CHOICE
from bert_jax.tasks.classification import CLASSIFICATION
from bert_jax.tasks.contrastive import CONTRASTIVE
from bert_jax.tasks.coreference import COREFERENCE
from bert_jax.tasks.pretraining import PRETRAINING
from bert_jax.tasks.pretraining.distillation import DISTILLATION
from bert_jax.tasks.pretraining.electra import ELECTRA
from bert_jax.tasks.pretraining.language_model import LANGUAGE_MODEL
from bert_jax.tasks.qa import QA
from bert_jax.tasks.record import records
from bert_jax.tasks.tagging import TAGGING
from bert_jax.tasks.translation import TRANSLATION
from bert_jax.tasks.translation.denoising import DENOISING

TASKS = records(globals())  # {config.objective: its record}, of all records imported above
