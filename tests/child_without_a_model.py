"""bert_jax.tools.sweep.child with two numbers in place of BERT."""

import running

from bert_jax.tools.sweep import child

with running.without_a_model():
  child.main()
