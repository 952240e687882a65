"""Writes the model card of an export: its README.md, which Hugging Face's Hub shows.

card.md.jinja says what stands in it. A comment at its top, which readers of the Hub do not see,
asks the author for what no run knows, such as the licence.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config import MINILM
from bert_jax.convert.hub import HUB
from bert_jax.tasks import TASKS
from bert_jax.tasks.record import Head

# Metrics that do not say how well a model answered; the terms of the loss stand there themselves.
NO_SCORES = {'masked', 'constant', 'loss'}


def write(
  config: ConfigDict, architecture: str, head: Head, notes: Sequence[str], facts: Mapping[str, Any]
) -> str:
  """The text of the card. notes: paragraphs that a reader must see. facts: the known ones of
  name, source, step, metrics, is_best (whether the step was chosen by them), is_part (whether these
  are of a part of the held-out data), data (of the run, {split: recorded.Split}), labels,
  languages (codes), and longest, the most tokens of a text."""
  import jinja2  # what trains needs none

  task = TASKS[config.objective]
  source = facts.get('source') or config.init_from
  if source == MINILM:
    source = f'{HUB}sentence-transformers/all-MiniLM-L6-v2'
  base = PurePosixPath(source).name  # no folder of the machine
  if source.startswith(HUB):
    base = source.removeprefix(HUB)
  metrics = facts.get('metrics') or {}
  scores, judge = {}, task.judge(config)
  for name, value in metrics.items():
    is_score = '_below_' not in name and name not in NO_SCORES - {judge}
    if is_score and isinstance(value, (int, float)):
      scores[name] = f'{value:.3g}'
  context = {'name': architecture} | dict(facts)
  context.update(
    architecture=architecture,
    config=config,
    card=task.card(config),
    pipeline=head.pipeline,
    notes=notes,
    source=source,
    base=base,
    collapsed='constant' in metrics,
    scores=scores,
    judge=judge,
  )
  template = Path(__file__).with_name('card.md.jinja').read_text()
  page = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
  return page.from_string(template).render(context)
