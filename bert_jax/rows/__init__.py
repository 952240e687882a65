"""Builds rows from a corpus or from examples, and the global batch of each step from rows."""

from absl import logging

logging.set_verbosity(logging.ERROR)  # importing grain warns where jaxlib is older than 0.11
