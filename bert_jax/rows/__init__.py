"""From a corpus or examples to rows, and from rows to the global batch of a step."""

from absl import logging

logging.set_verbosity(logging.ERROR)  # importing grain warns where jaxlib is older than 0.11
