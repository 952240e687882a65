"""The model card (README.md) of an exported model: what it is, and how it was made."""

import json

from bert_jax import config as config_lib
from bert_jax.tasks import TASKS


def text(config, architecture, note, facts):
  """The text of the card. note: a paragraph that a reader must see, or ''. facts: the known ones of
  name, source, step, metrics, data, commands and versions."""
  heads = TASKS[config.objective].heads
  task = next((head.pipeline for head in heads if architecture.endswith(head.ending)), '')
  head = ['---', 'library_name: transformers', 'tags:', '- bert_jax']
  head += [f'pipeline_tag: {task}'] if task else []
  model = config.model
  parts = [
    '\n'.join([*head, '---']),
    '# ' + (facts.get('name') or architecture),
    f'A `{architecture}` made with bert_jax: {model.num_hidden_layers} layers, {model.hidden_size} '
    f'wide, a vocabulary of {model.vocab_size:,} pieces, at most {model.max_position_embeddings} '
    f'tokens. Objective: `{config.objective}`.',
    note,
  ]
  if source := facts.get('source'):
    parts.append(f'Its weights were converted from `{source}`.')
  if metrics := facts.get('metrics'):
    rows = [f'| {name} | {value:.6g} |' for name, value in metrics.items()]
    title = f'## Metrics\n\nOn held-out data, at step {facts["step"]}:\n\n| metric | value |\n'
    parts.append(title + '|---|---|\n' + '\n'.join(rows))
  if config.data.train or facts.get('data'):
    lines = [f'- {split}: `{config.data[split] or "embedded or held out"}`'
             + (f', {known["rows"]:,} rows, fingerprint `{known["fingerprint"]}`' if known else '')
             for split, known in ((s, (facts.get('data') or {}).get(s)) for s in ('train', 'eval'))
             if known or config.data[split]]  # fmt: skip
    parts.append('## Data\n\n' + '\n'.join(lines))
  if commands := facts.get('commands'):
    lines = [f'{c["time"]}  {" ".join(c["argv"])}' for c in commands]
    parts.append('## Commands\n\n' + _block('\n'.join(lines)))
  if versions := facts.get('versions'):
    parts.append('## Versions\n\n' + _block(json.dumps(versions, indent=2)))
  # Of converted weights nobody here knows how they were trained.
  title, known = ('Model', config.model) if source else ('Config', config)
  parts.append(f'## {title}\n\n' + _block(config_lib.to_json(known).rstrip()))
  return '\n\n'.join(part for part in parts if part) + '\n'


def _block(text):
  return f'```\n{text}\n```'
