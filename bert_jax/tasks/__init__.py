"""What an objective is trained on and asked: the record of each task family, see record.py.

A family is added by its own files and one line here.
"""
# ruff: noqa: F401

from bert_jax.tasks.choice import CHOICE
from bert_jax.tasks.classification import CLASSIFICATION
from bert_jax.tasks.coreference import COREFERENCE
from bert_jax.tasks.pretraining import PRETRAINING
from bert_jax.tasks.qa import QA
from bert_jax.tasks.record import records
from bert_jax.tasks.tagging import TAGGING

TASKS = records(globals())  # {config.objective: its record}, of all that are imported above
