"""Probes a run or released weights: losses of kinds of pieces, minimal pairs, layers, attention.

    python -m bert_jax.tools.probe --model W --conllu $DATA/ud/en_ewt-ud-dev.conllu \
        --pairs '$DATA/blimp/*.jsonl' [--checkpoint all] [--text de=german.txt]

W is a workdir, a Hugging Face folder, or another SRC of bert_jax.tools.convert. The probes are in
pieces.py (loss by part of speech, frequency and language, beside unigrams and bigrams; minimal
pairs) and layers.py (linear probes, attention). {language} in a SPEC stands for each of the run's
corpus.languages: --text 'wiki/{language}.txt'. The results are written as STEP.json to the folder
--out, W/probe for a run, and shown as a table, which is table.txt there.

--checkpoint all probes all checkpoints of a run that have not been probed yet: give the same
command while it trains (checkpoint.keep_every says which checkpoints stay).
"""

import argparse
import contextlib
import json
import logging
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax import hosts, predict
from bert_jax.command_line import aligned, command_line
from bert_jax.convert import from_huggingface, hub
from bert_jax.errors import InputError, unwritten
from bert_jax.files import write_whole
from bert_jax.predict.__main__ import keep_compiled
from bert_jax.tasks import TASKS
from bert_jax.text import files
from bert_jax.tools import arguments
from bert_jax.tools.probe import data as probe_data
from bert_jax.tools.probe import layers as probe_layers
from bert_jax.tools.probe import pieces as probe_pieces
from bert_jax.tools.probe.pieces import Pair
from bert_jax.workdir import checkpoint, contents

log = logging.getLogger('bert_jax')

KINDS = ('losses', 'pairs', 'layers', 'attention')


def steps_of(source: str, which: str) -> Sequence[str | int]:
  """The checkpoints to probe: steps of a run, or ['latest'] for released weights."""
  folder = hub.folder(source)
  if which != 'all' or from_huggingface.is_model(folder):
    return [which if which != 'all' else 'latest']
  with contextlib.closing(checkpoint.Checkpoints(folder)) as checkpoints:
    steps = checkpoints.steps()
  if not steps:
    raise InputError(f'{source} has no checkpoint yet; train it first.')
  return steps


def probe(
  model: predict.Model, args: argparse.Namespace, pairs: Sequence[Pair], counts: Counter[str]
) -> dict[str, Any]:
  """Probes a model as the arguments ask, {name: result}. counts: of the pairs left out."""
  counts, skipped, out = Counter(counts), {}, {'step': model.step}
  room, pieces = model.limit - 2, model.tokenizer
  read = lambda conllu, text, most: probe_data.read(pieces, conllu, text, most, room, counts)
  sentences = read(args.conllu, args.text, args.sentences)
  reference = read([], args.reference, 0) if args.reference else []
  tagged = [s for s in sentences if any(s.tags)]
  out |= {'sentences': len(sentences), 'tagged_sentences': len(tagged)}
  some = sentences[: args.attention_sentences]
  ways = {
    'losses': lambda: probe_pieces.losses(model, sentences, reference, counts),
    'pairs': lambda: probe_pieces.minimal_pairs(model, pairs, counts),
    'layers': lambda: probe_layers.linear(model, tagged, args.words, counts),
    'attention': lambda: probe_layers.attention(model, some),
  }
  given = {'losses': sentences, 'pairs': pairs, 'layers': tagged, 'attention': some}
  needs = {'pairs': '--pairs', 'layers': 'more sentences of --conllu'}
  for kind in args.only:
    try:
      if result := ways[kind]() if given[kind] else {}:
        out[kind] = result
      else:
        skipped[kind] = f'nothing to probe with; give {needs.get(kind, "--conllu or --text")}'
    except InputError as error:  # this model has no such head
      skipped[kind] = str(error)
  return out | {'counts': {k: n for k, n in counts.items() if n}, 'skipped': skipped}


def in_each_language(spec: str, languages: Sequence[str]) -> str:
  """Expands 'x/{language}.txt' to 'de=x/de.txt,en=x/en.txt'; other specs stay."""
  if '{language}' not in spec:
    return spec
  if not languages:
    raise InputError(
      f'{spec} stands for a file of each language, and the model has no corpus.languages; name the '
      'files: de=FILE,en=FILE.'
    )
  return ','.join(f'{name}={part}' for name, part in files.parts(spec, languages))


def settings_of(args: argparse.Namespace, pairs: Sequence[Pair]) -> dict[str, Any]:
  """The settings on which a result depends besides the weights."""
  specs = [part for x in (*args.conllu, *args.text, *args.reference) for _, part in files.parts(x)]
  read = [path for spec in specs for path in _files(spec)]
  names = 'conllu', 'text', 'reference', 'sentences', 'words', 'attention_sentences', 'only'
  out = {name: getattr(args, name) for name in names} | {'pairs': args.pairs}
  out['data'] = zlib.crc32(repr([*read, pairs]).encode())
  return json.loads(json.dumps(out))


def weights_of(model: str, step: str | int) -> int:
  """Identifies the weights of a checkpoint, which may be replaced by a later or another run's."""
  folder = Path(model).expanduser().resolve() / 'checkpoints' / str(step)
  return zlib.crc32(repr(_files(str(folder)) if folder.is_dir() else str(folder)).encode())


def _files(spec: str) -> list:
  """The name, size and modification time of each file of a spec."""
  if spec.startswith('tfds:'):
    return [spec]
  stats = ((path, path.stat()) for path in files.expand(spec))
  return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def known(path: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
  """Reads the result in a file; None unless it has the same settings."""
  try:
    result = files.json_of(path)
  except InputError:
    return None
  return result if result.get('settings') == settings else None


def table(results: Sequence[Mapping[str, Any]]) -> list[str]:
  """The lines of a table with a row for each checkpoint, then the last checkpoint's by group."""
  losses, last = ('loss', 'unigram', 'bigram'), results[-1]
  rows: list[list] = [['step', *losses, 'pairs', 'best layer', 'its accuracy']]
  for result in results:
    every = result.get('losses', {}).get('all', {})
    accuracy = result.get('layers', {}).get('accuracy', [])
    best = max(range(len(accuracy)), key=accuracy.__getitem__, default='')
    row = [result['step'], *map(every.get, losses), result.get('pairs', {}).get('accuracy')]
    rows.append([*row, best, max(accuracy, default=None)])
  parts = [rows]
  for name in ('by_pos', 'by_frequency', 'by_language'):
    groups = last.get('losses', {}).get(name, {})
    rows = [[key, f'{g["pieces"]:,}', *(g[x] for x in losses)] for key, g in groups.items()]
    parts.append([[name.replace('_', ' '), 'pieces', *losses], *rows])
  for name in ('by_term', 'by_uid'):
    groups = last.get('pairs', {}).get(name, {})
    parts.append([[f'pairs {name.replace("_", " ")}', 'accuracy'], *map(list, groups.items())])
  if layers := last.get('layers'):
    pairs = enumerate(zip(layers['accuracy'], layers['control']))
    rows = [['layer', 'part of speech', 'control'], *([n, *both] for n, both in pairs)]
    usual = ["the word's usual tag", layers['of_the_word'], '']
    parts.append([*rows, ['majority', layers['majority'], ''], usual])
  if heads := last.get('attention'):
    names = 'first', 'last', 'itself', 'before', 'after'
    most = [(name, max(heads, key=lambda head, name=name: head[name])) for name in names]
    rows = [[name, head['layer'], head['head'], head[name]] for name, head in most]
    parts.append([['attends most to', 'layer', 'head', 'share'], *rows])
  lines = []
  for rows in parts:
    if len(rows) > 1:
      lines += ['', *aligned([list(map(_shown, row)) for row in rows])]
  return lines[1:] + [f'\nnot probed: {kind}: {why}' for kind, why in last['skipped'].items()]


def _shown(value: Any) -> str:
  return '' if value is None else f'{value:.3f}' if isinstance(value, float) else str(value)


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Probes as parsed arguments say; returns the results in the order of the checkpoints."""
  if not (args.conllu or args.text or args.pairs):
    raise InputError('there is nothing to probe with; give --conllu, --text or --pairs.')
  steps, results = steps_of(args.model, args.checkpoint), []
  released = from_huggingface.is_model(hub.folder(args.model))
  if released and not args.out:
    raise InputError(f'{args.model} is a released model; name a folder for the results with --out.')
  config = None if released else contents.read_config(args.model)
  languages = TASKS[config.objective].card(config).languages if config else ()
  for specs in (args.conllu, args.text, args.reference):
    specs[:] = [in_each_language(spec, languages) for spec in specs]
  out = Path(args.out or Path(args.model) / 'probe').expanduser()
  arguments.check_writable(out)
  pairs = probe_pieces.read_pairs(args.pairs, args.sentences, counts := Counter())
  settings, failed = settings_of(args, pairs), {}
  for number, which in enumerate(steps, 1):
    weights = settings | {'weights': weights_of(args.model, which)}
    result = None if which in ('latest', 'best') else known(out / f'{which}.json', weights)
    if not result:
      log.info('checkpoint %s (%d of %d)', which, number, len(steps))
      try:
        model = predict.Model(args.model, which)
      except InputError as error:
        if len(steps) == 1:
          raise
        failed[which] = str(error)  # it was removed, or is damaged; the others are probed
        continue
      result = {'model': Path(args.model).name, 'settings': weights}
      result |= probe(model, args, pairs, counts)
      path = out / f'{result["step"]}.json'
      try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(result, indent=1, ensure_ascii=False) + '\n')
      except OSError as error:
        raise unwritten(path, error) from None
    results.append(result)
  for which, sentence in failed.items():
    log.warning('checkpoint %s is left out: %s', which, sentence)
  if not results:
    raise InputError(f'no checkpoint of {args.model} can be read; the reasons stand above.')
  for kind, n in results[-1]['counts'].items():
    log.info('%s %s', f'{n:,}', kind)
  text = '\n'.join(table(results)) + '\n'
  write_whole(out / 'table.txt', text)
  print(text, end='')
  return results


def main(argv: Sequence[str] | None = None) -> None:
  parser = arguments.parser('probe', __doc__)
  add = parser.add_argument
  add('--model', required=True, metavar='W', help='workdir, or released weights')
  add('--checkpoint', default='latest', help='of a run: latest, best, a step, or all')
  add('--conllu', action='append', default=[], metavar='[LANGUAGE=]SPEC', help='tagged sentences')
  add('--text', action='append', default=[], metavar='[LANGUAGE=]SPEC', help='a sentence a line')
  more = dict(action='append', default=[], metavar='SPEC')
  counted = 'text whose unigrams and bigrams are the baselines; default: half of the sentences'
  add('--reference', help=counted, **more)
  add('--pairs', help="minimal pairs, BLiMP's JSONL", **more)
  add('--sentences', type=int, default=500, help='of each SPEC, and pairs of each file; 0: all')
  add('--words', type=int, default=6000, help='that a linear probe is trained on')
  add('--attention-sentences', type=int, default=100, help='that attention is averaged over')
  add('--only', type=lambda x: x.split(','), default=KINDS, metavar='A,B', help=', '.join(KINDS))
  add('--out', default='', help='folder of the results; default: MODEL/probe')
  args = parser.parse_args(argv)
  with command_line():
    hosts.refuse_several('bert_jax.tools.probe')
    if wrong := [kind for kind in args.only if kind not in KINDS]:
      raise InputError(f'--only {wrong[0]} is not known; use some of {", ".join(KINDS)}.')
    for name, least in (('sentences', 0), ('words', 1), ('attention_sentences', 1)):
      if (value := getattr(args, name)) < least:
        raise InputError(f'--{name.replace("_", "-")} is {value}; use {least} or more.')
    keep_compiled()
    run(args)


if __name__ == '__main__':
  main()
