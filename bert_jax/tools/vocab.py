"""Trains a vocabulary; the same texts give the same bytes.

    python -m bert_jax.tools.vocab --input 'books/*.md' --kind wordpiece --size 30522 --out V
    python -m bert_jax.tools.vocab --input de='de/*.txt' --input sw='sw/*.txt' --sampling 0.7 ...

V/vocab.txt with its tokenizer_config.json is what Google's and Hugging Face's BERT tokenizers load;
the kinds unigram and bpe write a SentencePiece model, V/spm.model, and byte_bpe (with --cased) the
V/tokenizer.json of a RoBERTa.
"""

import json
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path

import tqdm

from bert_jax import tokenizers
from bert_jax.command_line import command_line
from bert_jax.errors import InputError
from bert_jax.text import documents as text
from bert_jax.tokenizers.byte_level_trainer import train_byte_level
from bert_jax.tokenizers.run_tokenizer import arguments_called, describe
from bert_jax.tokenizers.sentencepiece_trainer import train_sentencepiece
from bert_jax.tokenizers.wordpiece_trainer import train_wordpiece
from bert_jax.tools import arguments

log = logging.getLogger('bert_jax')


def train(args):
  """Trains a vocabulary as parsed arguments say, writes it to args.out, and returns the counts."""
  started, out = time.perf_counter(), Path(args.out).expanduser()
  is_wordpiece, of_bytes = args.kind == 'wordpiece', args.kind == 'byte_bpe'
  if args.no_cjk_spaces and not is_wordpiece:
    raise InputError('--no-cjk-spaces is for --kind wordpiece; the others put no spaces anywhere')
  arguments.check_writable(out)
  if of_bytes and not args.cased:
    raise InputError('--kind byte_bpe keeps capitals; say --cased')
  file = 'vocab.txt' if is_wordpiece else 'tokenizer.json' if of_bytes else 'spm.model'
  earlier = tokenizers.load_folder(out) if tokenizers.in_folder(out) else None
  another = InputError(f'{out} holds another vocabulary; choose another --out, or delete it')
  if earlier and (tokenizers.in_folder(out).name, earlier.vocab_size) != (file, args.size):
    raise another
  specs = {}
  for language, spec in arguments.specs(args):
    text.sources(spec, args.format)  # reports what does not exist before reading
    specs.setdefault(language, []).append(spec)
  counts, documents = Counter(invalid_utf8_lines=0), Counter()
  splitting = tokenizers.Splitting(not args.cased, not args.no_cjk_spaces)
  coverage = args.character_coverage
  settings = dict(vocab_size=args.size, character_coverage=coverage, sampling=args.sampling)
  bar = tqdm.tqdm(desc='reading', unit='B', unit_scale=True, disable=None)
  names = {'vocab_size': '--size', 'character_coverage': '--character-coverage'}
  with bar, tempfile.TemporaryDirectory() as scratch, arguments_called(names):
    path = Path(scratch) / file
    texts = {n: _sentences(args, n, part, counts, documents, bar) for n, part in specs.items()}
    if is_wordpiece:
      made = train_wordpiece(texts, path, splitting=splitting, **settings)
    elif of_bytes:
      made = train_byte_level(texts, path, vocab_size=args.size, sampling=args.sampling)
    else:
      settings |= {'model_type': args.kind, 'do_lower_case': not args.cased}
      made = train_sentencepiece(texts, path, **settings)
    tokenizer = tokenizers.load(path, **splitting.to_json())
  log.info('%s: %s', out, describe(made))
  if earlier is None:
    tokenizer.save(out)
  elif earlier.fingerprint == tokenizer.fingerprint:
    log.info('%s holds just this vocabulary already', out)
  else:
    raise another
  shares, seconds = made.pop('shares'), round(time.perf_counter() - started, 1)
  languages = {n: {'documents': documents[n], 'share': shares[n]} for n in specs}
  return {'out': str(out), **counts, **made, 'languages': languages, 'seconds': seconds}


def _sentences(args, language, specs, counts, documents, bar):
  """Yields the sentences of a language's specs, and counts its documents in `documents`."""
  for spec in specs:
    for document in text.documents(
      spec, split=args.split, format=args.format, text_field=args.text_field, counts=counts
    ):
      documents[language] += 1
      bar.set_postfix_str(f'{counts["documents"]:,} documents', refresh=False)
      bar.update(counts['bytes'] - bar.n)
      yield from document.sentences


def main(argv=None):
  parser = arguments.parser('vocab', __doc__)
  add = parser.add_argument
  arguments.add_text(add)
  add('--out', required=True, help='folder to write')
  add('--kind', default='wordpiece', choices=('wordpiece', 'unigram', 'bpe', 'byte_bpe'))
  add('--size', type=int, default=30522, help='number of pieces, default 30522')
  add('--cased', action='store_true', help='keep case and accents')
  add(
    '--character-coverage',
    type=float,
    default=0.99999,
    help='share of the text whose characters are kept; 0.9995 for Chinese, Japanese',
  )
  add('--no-cjk-spaces', action='store_true', help='a CJK character is not a word by itself')
  add('--sampling', type=float, default=1.0, help='S: a language counts as P(L)^S; M-BERT: 0.7')
  args = parser.parse_args(argv)
  with command_line():
    limits = {'size': (6, 10**7), 'character_coverage': (1e-9, 1), 'sampling': (0, 1)}
    for name, (low, high) in limits.items():
      if not low <= (value := getattr(args, name)) <= high:
        option = name.replace('_', '-')
        raise InputError(f'--{option} is {value}; use {low:g} to {high:g}')
    print(json.dumps(train(args), ensure_ascii=False))


if __name__ == '__main__':
  main()
