"""Trains a vocabulary: the same texts give the same bytes.

    python -m bert_jax.tools.vocab --input 'books/*.md' --kind wordpiece --size 30522 --out V
    python -m bert_jax.tools.vocab --input de='de/*.txt' --input sw='sw/*.txt' --sampling 0.7 ...

V/vocab.txt with its tokenizer_config.json is what Google's and Hugging Face's BERT tokenizers load;
the kinds unigram and bpe write a SentencePiece model, V/spm.model. How: data/vocabulary.py.
"""

import argparse
import json
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path

import tqdm

from bert_jax import config as config_lib
from bert_jax.config import InputError
from bert_jax.data import files, text, tokenizers, vocabulary

log = logging.getLogger('bert_jax')


def train(args):
  """Writes the vocabulary of parsed arguments to args.out; returns what was counted on the way."""
  out = Path(args.out).expanduser()
  if out.exists() and not out.is_dir():
    raise InputError(f'{out} is a file; give --out a folder')
  if args.kind != 'wordpiece' and args.no_cjk_spaces:
    raise InputError('--no-cjk-spaces is for --kind wordpiece; the others put no spaces anywhere')
  specs = {}
  for language, spec in files.named(args.input, args.languages):
    text.sources(spec, args.format)  # what does not exist shows before anything is read
    specs.setdefault(language, []).append(spec)
  counts, started = Counter(), time.perf_counter()
  settings = {
    'vocab_size': args.size,
    'do_lower_case': not args.cased,
    'character_coverage': args.character_coverage,
    'sampling': args.sampling,
  }
  with tqdm.tqdm(desc='reading', unit='B', unit_scale=True, disable=None) as bar:
    texts = {name: _sentences(args, own, counts, bar) for name, own in specs.items()}
    with tempfile.TemporaryDirectory() as scratch:
      if args.kind == 'wordpiece':
        path = Path(scratch) / 'vocab.txt'
        settings['tokenize_chinese_chars'] = not args.no_cjk_spaces
        made = vocabulary.train_wordpiece(texts, path, **settings)
        pieces = path.read_text().splitlines()
        tokenizer = tokenizers.WordPiece(
          pieces,
          do_lower_case=not args.cased,
          tokenize_chinese_chars=not args.no_cjk_spaces,
        )
      else:
        path = Path(scratch) / 'spm.model'
        made = vocabulary.train_sentencepiece(texts, path, model_type=args.kind, **settings)
        tokenizer = tokenizers.load(path)
  if tokenizers.in_folder(out):
    if tokenizers.load_folder(out).fingerprint != tokenizer.fingerprint:
      raise InputError(f'{out} holds another vocabulary; choose another --out, or delete it')
    log.info('%s holds just this vocabulary already', out)
  else:
    tokenizer.save(out)
  return {'out': str(out), **counts, **made, 'seconds': round(time.perf_counter() - started, 1)}


def _sentences(args, specs, counts, bar):
  for spec in specs:
    for document in text.documents(
      spec, split=args.split, format=args.format, text_field=args.text_field, counts=counts
    ):
      bar.update(counts['bytes'] - bar.n)
      yield from document.sentences


def main(argv=None):
  parser = argparse.ArgumentParser(
    prog='python -m bert_jax.tools.vocab',
    allow_abbrev=False,
    description='Trains a vocabulary on text; the same text gives the same vocabulary.',
  )
  add = parser.add_argument
  add(
    '--input',
    action='append',
    required=True,
    metavar='[LANGUAGE=]SPEC',
    help='file, glob, folder or tfds:NAME[:SPLIT]; may be repeated; {language} in it stands for '
    'each of --languages',
  )
  add('--languages', default='', help='a,b,c, or a file with one a line')
  add('--out', required=True, help='folder to write')
  add('--kind', default='wordpiece', choices=('wordpiece', 'unigram', 'bpe'))
  add('--size', type=int, default=30522, help='number of pieces, default 30522')
  add('--cased', action='store_true', help='keep case and accents')
  add(
    '--character-coverage',
    type=float,
    default=0.99999,
    help='share of the characters of the text that are kept; 0.9995 for Chinese and Japanese',
  )
  add('--no-cjk-spaces', action='store_true', help='CJK characters are not words of their own')
  add('--sampling', type=float, default=1.0, help='S: a language counts as P(L)^S; M-BERT: 0.7')
  add('--format', default='auto', help='auto, sentences, lines, paragraphs, jsonl or wiki')
  add('--text-field', default='text', help='of a JSONL or TFDS record')
  add('--split', default='train', help='of a TFDS dataset')
  args = parser.parse_args(argv)
  with config_lib.command_line():
    for name, low, high in (
      ('size', 6, 10**7),
      ('character_coverage', 1e-9, 1),
      ('sampling', 0, 1),
    ):
      if not low <= getattr(args, name) <= high:
        raise InputError(
          f'--{name.replace("_", "-")} is {getattr(args, name)}; use {low:g} to {high:g}'
        )
    print(json.dumps(train(args)))


if __name__ == '__main__':
  main()
