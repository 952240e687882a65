"""Trains a vocabulary; the same texts give the same bytes.

    python -m bert_jax.tools.vocab --input 'books/*.md' --kind wordpiece --size 30522 --out V
    python -m bert_jax.tools.vocab --input de='de/*.txt' --input sw='sw/*.txt' --sampling 0.7 ...

V/vocab.txt with its tokenizer_config.json is what Google's and Hugging Face's BERT tokenizers load;
the kinds unigram and bpe (SentencePiece's) and byte_bpe (RoBERTa's, with --cased) write a
V/tokenizer.json.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import tqdm

from bert_jax import tokenizers
from bert_jax.command_line import command_line, command_parser
from bert_jax.errors import InputError, log
from bert_jax.files import Path
from bert_jax.text import documents as text
from bert_jax.tokenizers import run_tokenizer
from bert_jax.tools import arguments


def train(args: argparse.Namespace) -> dict[str, Any]:
  """Trains a vocabulary as parsed arguments say, writes it to args.out, and returns the counts."""
  out = Path(args.out).expanduser()
  arguments.check_writable(out)
  if args.kind == 'byte_bpe' and not args.cased:
    raise InputError('--kind byte_bpe keeps capitals; say --cased')
  earlier = tokenizers.load_folder(out) if tokenizers.in_folder(out) else None
  specs = {}
  for language, spec in arguments.specs(args):
    text.sources(spec, args.format)  # reports what does not exist before reading
    specs.setdefault(language, []).append(spec)
  counts, documents = Counter(invalid_utf8_lines=0), Counter()
  with tqdm.tqdm(desc='reading', unit='B', unit_scale=True, disable=None) as bar:
    texts = {}
    for language, some in specs.items():
      texts[language] = _sentences(args, language, some, counts, documents, bar)
    tokenizer, made = run_tokenizer.train(
      args.kind,
      texts,
      vocab_size=args.size,
      splitting=tokenizers.Splitting(not args.cased, not args.no_cjk_spaces),
      character_coverage=args.character_coverage,
      sampling=args.sampling,
    )
  log.info('%s: %s', out, run_tokenizer.describe(made))
  if earlier is None:
    tokenizer.save(out)
  elif earlier.fingerprint != tokenizer.fingerprint:
    raise InputError(f'{out} holds another vocabulary; choose another --out, or delete it')
  shares = made.pop('shares')
  languages = {}
  for language in specs:
    languages[language] = {'documents': documents[language], 'share': shares[language]}
  return {'out': str(out), **counts, **made, 'languages': languages}


def _sentences(args, language, specs, counts, documents, bar):
  """Yields the sentences of a language's specs, and counts its documents in `documents`."""
  for spec in specs:
    documents_of_spec = text.documents(
      spec,
      split=args.split,
      format=args.format,
      text_field=args.text_field,
      counts=counts,
      skip=args.skip_damaged,
      encoding=args.text_encoding,
    )
    for document in documents_of_spec:
      documents[language] += 1
      bar.set_postfix_str(f'{counts["documents"]:,} documents', refresh=False)
      bar.update(counts['bytes'] - bar.n)
      yield from document.sentences


def main(argv: Sequence[str] | None = None) -> None:
  parser = command_parser('tools.vocab', __doc__)
  add = parser.add_argument
  arguments.add_text(add)
  add('--out', required=True, help='folder to write')
  add('--kind', default='wordpiece', choices=('wordpiece', 'unigram', 'bpe', 'byte_bpe'))
  add('--size', type=int, default=30522, help='number of pieces, default 30522')
  add('--cased', action='store_true', help='keep case and accents')
  covered = 'share of the text whose characters are kept; 0.9995 for Chinese, Japanese'
  add('--character-coverage', type=float, default=0.99999, help=covered)
  add(
    '--no-cjk-spaces',
    action='store_true',
    help='wordpiece: CJK characters are not words',
  )
  add('--sampling', type=float, default=1.0, help='S: a language counts as P(L)^S; M-BERT: 0.7')
  args = parser.parse_args(argv)
  with command_line():
    if not 0 <= args.sampling <= 1:
      raise InputError(f'--sampling is {args.sampling}; use 0 to 1.')
    print(json.dumps(train(args), ensure_ascii=False))


if __name__ == '__main__':
  main()
