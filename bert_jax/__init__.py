"""bert_jax: pre-train, fine-tune and take apart BERT-like Transformers in JAX."""

__version__ = '0.1.0'
