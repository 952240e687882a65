"""Other programs that read what formats.py reads: csv, json, safetensors, tokenizers, str.split.

Each function takes a folder with a file, damaged or not, and gives what is to be read there in the
form of OURS; if it raises, or the file is not UTF-8, there is nothing to compare with.
"""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.numpy
import tokenizers

# {objective: what is compared of an example}.
OURS = {
  'classification': lambda x: [list(x.texts), list(x.label) if type(x.label) is tuple else x.label],
  'choice': lambda x: [x.context, list(x.choices)],
  'coreference': lambda x: x.text,
  'qa': lambda x: [x.id, x.text, x.context],
  'tagging': lambda x: [[*x.tokens], [*x.tags]],
}


def text_of(folder: Path) -> str:
  (path,) = (x for x in folder.rglob('*') if x.is_file())
  return path.read_bytes().decode('utf-8-sig')


def bare(text: str) -> str:
  return ''.join(text.split())


def plain(folder: Path) -> str:
  return bare(text_of(folder))


def markdown(folder: Path) -> str:
  return re.sub('[-#=*_]', '', plain(folder))


def jsonl(folder: Path) -> list[Any]:
  return [json.loads(line) for line in text_of(folder).split('\n') if line.strip()]


def as_text(x: Any) -> str:
  return x if isinstance(x, str) else json.dumps(x)


def table(delimiter: str, make: Callable[[dict[str, str]], Any], folder: Path) -> list[Any]:
  """The rows of a table with a header; '' as delimiter: tabs, where a quote is a character."""
  if delimiter:
    rows = list(csv.reader(io.StringIO(text_of(folder), ''), delimiter=delimiter, strict=True))
  else:
    rows = [line.split('\t') for line in text_of(folder).split('\n')]
  (header, *rows) = [row for row in rows if any(map(str.strip, row))]
  return [make(dict(zip(map(str.strip, header), row, strict=True))) for row in rows]


def columns(token: int, tag: int, folder: Path) -> list[Any]:
  """The sentences of a file with a token a line; in CoNLL-U (token 1) some lines hold none."""
  parts, out = re.split(r'\n(?:[ \t]*\n)+', text_of(folder).strip(' \t\n')), []
  mark = '\t' if token or '\t' in parts[0].split('\n')[0] else ' '
  for part in parts:
    lines = [x for x in part.split('\n') if token == 0 or not re.match(r'#|\d+[-.]\d+\s', x)]
    cells = [[x for x in line.split(mark) if x] for line in lines]
    out += [[[x[token] for x in cells], [x[tag] for x in cells]]] if cells else []
  return out


def squad(folder: Path) -> list[Any]:
  paragraphs = [p for part in json.loads(text_of(folder))['data'] for p in part['paragraphs']]
  return [[q['id'], q['question'], p['context']] for p in paragraphs for q in p['qas']]


def dream(folder: Path) -> list[Any]:
  found = json.loads(text_of(folder))
  return [['\n'.join(turns), q['choice']] for turns, asked, _ in found for q in asked]


def race(folder: Path) -> list[Any]:
  found = json.loads(text_of(folder))
  return [[found['article'], choices] for choices in found['options']]


# {format: what reads it}.
OTHERS: dict[str, Callable[[Path], Any]] = {
  'text a.txt': plain,
  'text a.md': markdown,
  'text a.jsonl': lambda folder: bare(''.join(x['text'] for x in jsonl(folder))),
  'TSV': lambda folder: table('', lambda x: [[x['sentence']], x['label'].strip()], folder),
  'CSV': lambda folder: table(';', lambda x: [[x['sentence']], x['label'].strip()], folder),
  'several labels': lambda folder: [
    [[x['sentence']], [y.strip() for y in x['label'] if y.strip()]] for x in jsonl(folder)
  ],
  'numbers': lambda folder: table(',', lambda x: [[x['sentence']], float(x['label'])], folder),
  'GAP': lambda folder: table('', lambda x: x['Text'], folder),
  'WSC': lambda folder: [x['text'] for x in jsonl(folder)],
  'SWAG': lambda folder: table(
    ',', lambda x: [x['sent1'], [x[f'ending{k}'] for k in range(4)]], folder
  ),
  'COPA': lambda folder: [
    [x['premise'], [as_text(x['choice1']), as_text(x['choice2'])]] for x in jsonl(folder)
  ],
  'DREAM': dream,
  'RACE': race,
  'SQuAD': squad,
  'CoNLL': lambda folder: columns(0, -1, folder),
  'CoNLL-U': lambda folder: columns(1, 3, folder),
}


def of_run(folder: Path) -> dict[str, Any]:
  return json.loads(text_of(folder))


def tensors(folder: Path) -> dict[str, Any]:
  found = safetensors.numpy.load_file(folder / 'model.safetensors').items()
  return {name: (x.dtype.str, x.shape, x.tobytes()) for name, x in found}


def wordpiece(folder: Path, texts: list[str]) -> list[list[int]]:
  """The ids of texts under a vocab.txt whose lines all differ."""
  settings = json.loads((folder / 'tokenizer_config.json').read_text())
  lines = (folder / 'vocab.txt').read_bytes().decode().rstrip('\n').split('\n')
  vocab = {line.strip(): i for i, line in enumerate(lines)}
  if len(vocab) < len(lines) or '' in vocab or settings['do_lower_case'] is not True:
    raise ValueError('not one piece a line')
  fast = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token='[UNK]'))
  fast.normalizer = tokenizers.normalizers.BertNormalizer()
  fast.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
  return [x.ids for x in fast.encode_batch(texts, add_special_tokens=False)]


def whole(folder: Path, texts: list[str]) -> list[list[int]]:
  """The ids of texts under a tokenizer.json, or vocab.json and merges.txt."""
  if (folder / 'vocab.json').is_file():
    files = (str(folder / name) for name in ('vocab.json', 'merges.txt'))
    fast = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*files))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  else:
    fast = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
  return [x.ids for x in fast.encode_batch(texts, add_special_tokens=False)]
