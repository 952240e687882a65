"""Configs: read, changed from the command line, checked, compared.

A config file is a Python file with `get_config(arg) -> ConfigDict`, which begins with
`defaults(objective)` and changes some fields. It and the changes of the command line
(`--config.model.hidden_size=64`) are checked before anything is compiled.

The fields of every objective are in model.py, data.py, optimizer.py and run.py, the others in the
folders of task families. `python -m bert_jax.config` prints all.
"""
# ruff: noqa: F401, I001

from bert_jax.config.check import ALL, SHARED, add, check, fields, flatten
from bert_jax.config.check import nested, objectives, set_field
from bert_jax.config.check import step_count, timeline_of
from bert_jax.config.compare import LENGTH, ROWS, changes, fingerprint, pasts, without_workdir
from bert_jax.config.load import (
  CONFIGS,
  call,
  defaults,
  from_json,
  load,
  names_of,
  of_file,
  override,
  parse_arg,
)
from bert_jax.config.load import to_json
from bert_jax.config.model import MINILM, SIZES, bert
from bert_jax.errors import InputError
