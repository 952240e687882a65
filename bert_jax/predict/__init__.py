"""A trained model as a function of text: bert_jax.load in Python, `python -m bert_jax.predict`."""

from bert_jax.predict.model import Model
