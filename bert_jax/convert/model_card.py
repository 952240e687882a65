"""The model card of an export: its README.md, which Hugging Face's Hub shows.

It says what the model is, in which language, what it was trained on, its metrics beside what one
reaches without reading the input, and the config, commands and versions that made it. It names no
folder of the machine that it was made on: of a path in a config or a command the last part is left.
"""

import json
import re
from pathlib import PurePosixPath

from bert_jax import config as config_lib
from bert_jax.tasks import TASKS

CODE = re.compile(r'[a-z]{2,3}(-[A-Za-z]{2,4})?')  # of a language, as the Hub knows them
# A path that says where it lies: absolute, in a home folder, up from here, or in a bucket.
_PLACE = re.compile(r'(^|[=,:])(?:(?:gs|s3):/)?(?:~[\w.-]*|\.\.?)?/(?!/[^/])[^=,:]*')


def write(config, architecture, head, notes, facts):
  """The text of the card. notes: paragraphs that a reader must see. facts: the known ones of name,
  source, step, metrics, data, commands, versions, and languages."""
  languages, source = languages_of(config, facts), without_places(facts.get('source', ''))
  lines = ['---', *(['language:', *(f'- {x}' for x in languages)] if languages else [])]
  lines += ['library_name: transformers', 'tags:', '- bert_jax']
  lines += [f'pipeline_tag: {head.pipeline}', '---'] if head.pipeline else ['---']
  model = config.model
  parts = [
    '\n'.join(lines),
    '# ' + (facts.get('name') or architecture),
    f'A `{architecture}` made with bert_jax: {model.num_hidden_layers} layers, {model.hidden_size} '
    f'wide, a vocabulary of {model.vocab_size:,} pieces, at most {model.max_position_embeddings} '
    f'tokens. Objective: `{config.objective}`. '
    + (f'Language: {", ".join(languages)}.' if languages else 'Its language was not stated.'),
    *notes,
  ]
  if source:
    parts.append(f'Its weights were converted from `{source}`.')
  if facts.get('metrics'):
    parts.append(_metrics(config, facts))
  if config.data.train or facts.get('data'):
    parts.append('## Data\n\n' + '\n'.join(_data(config, facts)))
  # Of converted weights nobody here knows how they were trained.
  title, known = ('Model', config.model) if source else ('Config', config)
  commands = [f'{c["time"]}  {_command(c["argv"])}' for c in facts.get('commands', ())]
  blocks = {
    'Commands': '\n'.join(commands),
    'Versions': json.dumps(facts['versions'], indent=2) if facts.get('versions') else '',
    title: json.dumps(without_places(json.loads(config_lib.to_json(known))), indent=2),
  }
  parts += [f'## {title}\n\n```\n{text}\n```' for title, text in blocks.items() if text]
  return '\n\n'.join(parts) + '\n'


def languages_of(config, facts):
  """The codes of the languages of a model: those that were stated, else those that its corpora are
  named by, else that of the embedded documentation; () if nothing says it."""
  if facts.get('languages'):
    return tuple(facts['languages'])
  named = config.corpus.languages if TASKS[config.objective].reads_corpus else ()
  if named and all(CODE.fullmatch(name) for name in named):
    return tuple(named)
  return ('en',) if facts.get('data') and not config.data.train else ()


def without_places(value):
  """A text, or a tree of lists and dicts of texts, with the last part of each path in its place."""
  if isinstance(value, dict):
    return {name: without_places(x) for name, x in value.items()}
  if isinstance(value, (list, tuple)):
    return [without_places(x) for x in value]
  if not isinstance(value, str):
    return value
  return _PLACE.sub(lambda match: match[1] + PurePosixPath(match[0]).name, value)


def _command(argv):
  """The command line of a run, as it is given."""
  program = PurePosixPath(argv[0])
  if 'bert_jax' in program.parts:  # python -m, whose first word is the path of the module
    inside = program.parts[len(program.parts) - 1 - program.parts[::-1].index('bert_jax') :]
    module = '.'.join(inside).removesuffix('.py').removesuffix('.__main__')
    return ' '.join(['python -m', module, *without_places(argv[1:])])
  return ' '.join([program.name, *without_places(argv[1:])])


def _metrics(config, facts):
  """Each metric beside its value for who does not read the input: a unigram model, the prior."""
  baselines = ((facts.get('data') or {}).get('eval') or {}).get('baselines') or {}
  derived = {f'{name}_below_{kind}' for name, (_, kind) in baselines.items()}
  judge = config.checkpoint.best_metric or TASKS[config.objective].main_metric(config)
  rows = ['| metric | value | without reading the input |', '|---|---|---|']
  for name, value in sorted(facts['metrics'].items(), key=lambda item: item[0] != judge):
    if name not in derived and isinstance(value, (int, float)):
      level, kind = baselines.get(name, (None, ''))
      rows.append(f'| {name} | {value:.6g} | {f"{kind} {level:.6g}" if kind else ""} |')
  text = f'On held-out data, at step {facts["step"]}'
  text += f'; the model is judged by `{judge}`:' if judge in facts['metrics'] else ':'
  return f'## Metrics\n\n{text}\n\n' + '\n'.join(rows)


def _data(config, facts):
  """A line for each split: where it is from, its rows and their fingerprint."""
  for split in ('train', 'eval'):
    known, spec = (facts.get('data') or {}).get(split), without_places(config.data[split])
    if known or spec:
      embedded = 'the documentation of Python packages' if not config.data.train else 'held out'
      more = f', {known["rows"]:,} rows, fingerprint `{known["fingerprint"]}`' if known else ''
      yield f'- {split}: `{spec or embedded}`{more}'
