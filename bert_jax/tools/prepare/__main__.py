"""Prepares a corpus: tokenizes text once, on all cores, for any number of runs.

    python -m bert_jax.tools.prepare --input 'books/*.md' --vocab V --out D
    python -m bert_jax.tools.prepare --input de='de/*.txt' --input fr='fr/*.txt' --vocab V --out D

and `bert_jax.train --config.data.train=D`. Files are cut into portions of whole documents, and what
the workers make of them is written in order, the same for any number of processes. Started again,
it continues after the last whole shard. With --beam it is an Apache Beam pipeline (beam.py).
"""

import argparse
import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax import tokenizers
from bert_jax.command_line import command_line, command_parser
from bert_jax.convert import hub
from bert_jax.corpus import shards, store
from bert_jax.errors import InputError, log
from bert_jax.files import Path
from bert_jax.tasks.pretraining import remarks
from bert_jax.text import documents, duplicates
from bert_jax.tools import arguments
from bert_jax.tools.prepare.steps import Settings, begin, results
from bert_jax.workdir import lock, provenance


def prepare(settings: Settings, out: Path | str, processes: int = 1) -> dict[str, Any]:
  """Prepares the corpus of some Settings in a folder, or resumes; returns corpus.json."""
  out = Path(out).expanduser()
  if (out / store.META).is_file():
    begin(settings, out)  # which refuses other settings
    log.info('%s is whole already', out)
    return store.read_meta(out)
  arguments.check_writable(out)
  with lock.held(out):
    return _prepare(settings, out, processes)


def _prepare(settings: Settings, out: Path, processes: int) -> dict[str, Any]:
  tokenizer, plan = begin(settings, out)
  seen = None
  if settings.duplicates != 'keep':
    seen = duplicates.Seen(settings.duplicates)
  number = store.finished(out)
  done = []  # the digests of the portions of whole shards
  for k in range(number):
    facts, arrays = store.read_facts(store.shard_path(out, k))
    done += facts['portions']
    if seen is not None:
      seen.add({name[5:]: array for name, array in arrays.items() if name.startswith('seen_')})
  shard = shards.Shard(out, number, tokenizer.vocab_size)
  with results(settings, processes, done) as made:
    for items, counts, portion in made:
      shard.add(items, counts, portion, seen)
      if shard.counts['bytes'] >= settings.shard_mb << 20:
        shard.close({} if seen is None else seen.state())
        shard = shards.Shard(out, shard.number + 1, tokenizer.vocab_size)
  if shard.portions:
    shard.close({} if seen is None else seen.state())
  return shards.finish(out, plan, tokenizer)


def parser() -> argparse.ArgumentParser:
  parser = command_parser('tools.prepare', __doc__)
  add = parser.add_argument
  arguments.add_text(add)
  vocab = 'folder of tools.vocab or of a model, hf:NAME, vocab.txt or *.model'
  add('--vocab', required=True, help=vocab)
  add('--cased', action='store_true', help='--vocab is a vocab.txt that is cased')
  add('--out', required=True, help='folder of the corpus; an unfinished one is resumed')
  add('--segmenter', default='', choices=('', 'jieba'), help='marks whole words of Chinese')
  add('--phrases', default='', metavar='FILE', help='lexicon of phrases, one a line')
  add('--entities', default='', metavar='FILE', help='lexicon of entities, one a line')
  removes = (
    'remove repeated documents; near: of Jaccard similarity 0.8, by MinHash (530 bytes a document)'
  )
  add('--duplicates', default='keep', choices=('keep', 'exact', 'near'), help=removes)
  add('--processes', type=int, default=provenance.cores(), help='default: one per core')
  add('--shard-mb', type=int, default=64, help='text in a shard of the output')
  add('--beam', action='store_true', help='run by Apache Beam; other arguments go to it')
  add('--shards', type=int, default=0, help='of a corpus by --beam; for compressed or TFDS input')
  return parser


def run(args: argparse.Namespace, beam_arguments: Sequence[str] = ()) -> dict[str, Any]:
  os.environ['TOKENIZERS_PARALLELISM'] = 'false'  # each process uses one core
  with vocabulary_folder(args) as vocab:
    specs = arguments.specs(args)
    inputs = []
    for language, spec in specs:
      inputs += [(language, path) for path in documents.sources(spec, args.format)]
    settings = Settings(
      inputs=tuple(inputs),
      vocab=str(vocab),
      format=args.format,
      text_field=args.text_field,
      split=args.split,
      segmenter=args.segmenter,
      phrases=args.phrases,
      entities=args.entities,
      duplicates=args.duplicates,
      shard_mb=args.shard_mb,
      skip_damaged=args.skip_damaged,
      text_encoding=args.text_encoding,
    )
    for language, sentence in about_lines(specs, args):
      log.warning('%s: %s', language or 'the text', sentence)
    if args.beam:
      from bert_jax.tools.prepare import beam as prepare_beam

      meta = prepare_beam.prepare(settings, args.out, beam_arguments, args.shards)
    else:
      meta = prepare(settings, args.out, args.processes)
  return meta


def about_lines(
  specs: Sequence[tuple[str, str]], args: argparse.Namespace
) -> Iterator[tuple[str, str]]:
  """Yields (language, a warning about files of many documents, or about lines that are no
  sentences), by a sample of the text."""
  for language, spec in specs:
    read = documents.documents(
      spec,
      format=args.format,
      text_field=args.text_field,
      skip=args.skip_damaged,
      split=args.split,
      encoding=args.text_encoding,
      counts=Counter(),
    )
    sampled = remarks.sample(read)
    about_files = remarks.about_files(sampled, args.format)
    for sentence in about_files + remarks.about_lines(sampled, args.format):
      yield language, sentence.replace('corpus.format=', '--format ')


@contextlib.contextmanager
def vocabulary_folder(args: argparse.Namespace) -> Iterator[Path]:
  """A context with the folder of --vocab; a vocab.txt or *.model gets a temporary folder."""
  path = hub.folder(args.vocab)
  if path.is_dir() and not args.cased:
    yield path
    return
  if path.is_dir():
    path = tokenizers.in_folder(path) or path
  with tempfile.TemporaryDirectory() as folder:
    tokenizers.load(path, do_lower_case=not args.cased).save(folder)
    yield Path(folder)


def main(argv: Sequence[str] | None = None) -> None:
  args, rest = parser().parse_known_args(argv)
  with command_line():
    if rest and not args.beam:
      raise InputError(f'argument {rest[0]!r} is not known; see --help')
    meta = run(args, rest)
    result = {'out': args.out, **meta['counts'], 'kept': meta['kept']}
    print(json.dumps(result, ensure_ascii=False))


if __name__ == '__main__':
  main()
