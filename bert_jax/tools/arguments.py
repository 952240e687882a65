"""Helpers that the command lines of several tools share."""

import argparse
import re
from collections.abc import Callable
from typing import Any

from bert_jax.buckets import Bucket
from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.text import files


def add_text(add: Callable[..., Any]) -> None:
  """Adds the arguments for reading text, such as --input. add: a parser's add_argument."""
  what = 'file, glob, folder, tfds:NAME[:SPLIT] or hf:NAME; may be repeated; '
  what += '{language}: each of --languages'
  add('--input', action='append', required=True, metavar='[LANGUAGE=]SPEC', help=what)
  add('--languages', default='', help='a,b,c')
  add('--format', default='auto', help='auto, sentences, lines, paragraphs, jsonl, wiki, wikitext')
  add('--text-field', default='text', help='of a record (JSONL, Parquet, TFDS, hf:)')
  add('--text-encoding', default='', help='of files that are not UTF-8; default: UTF-8')
  add('--split', default='train', help='of a set, tfds: or hf:')
  add('--skip-damaged', action='store_true', help='leave out records without a text; count them')


def specs(args: argparse.Namespace) -> list[tuple[str, str]]:
  """The inputs, [(language or '', spec), ...], from --input and --languages."""
  names = re.findall(r'[^,\s]+', args.languages)
  if names and not any('{language}' in spec for spec in args.input):
    raise InputError('--languages fills in {language}, which no --input has; write it there')
  return [part for spec in args.input for part in files.parts(spec, names)]


def check_writable(out: Path, option: str = '--out') -> None:
  """InputError if an option's folder cannot be made or written to."""
  if isinstance(out, Bucket):
    return out.check_writable()
  nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
  if not nearest.is_dir():
    raise InputError(f'{nearest} is a file; give {option} a folder')
