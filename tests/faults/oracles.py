"""Other programs that read what formats.py reads: csv, json, safetensors, tokenizers, str.split.

Each function takes a folder with a file, damaged or not, and gives what is to be read there in the
form of OURS; if it raises, or the file is not UTF-8, there is nothing to compare with.
"""

import csv
import io
import itertools
import json
import re
from functools import partial

import safetensors.numpy
import tokenizers

# {objective: all that is taught of an example}.
OURS = {
  'classification': lambda x: [list(x.texts), list(x.label) if type(x.label) is tuple else x.label],
  'choice': lambda x: [x.context, x.text, list(x.choices), x.gold],
  'coreference': lambda x: [x.text, [list(span) for span in x.spans], x.gold],
  'qa': lambda x: [x.id, x.text, x.context, x.gold and [*x.gold], [*x.starts]],
  'tagging': lambda x: [[*x.tokens], x.tags and [*x.tags]],
}


def text_of(folder):
  (path,) = (x for x in folder.rglob('*') if x.is_file())
  return path.read_bytes().decode('utf-8-sig')


def plain(folder, others='<doc '):
  """The words of each document; a blank line stands between two. others: a pattern of a first line
  that tells of another format, whatever the name of the file."""
  if re.match(others, (text := text_of(folder)).lstrip()):
    raise ValueError('of another format')
  lines = [line.split() for line in text.split('\n')]
  groups = itertools.groupby(lines, bool)
  return [[word for line in group for word in line] for has_words, group in groups if has_words]


def unmarked(documents):
  """The words of all documents without the marks of Markdown."""
  return re.sub('[-#=*_]', ' ', ' '.join(itertools.chain.from_iterable(documents))).split()


def jsonl(make, folder):
  return [make(json.loads(line)) for line in text_of(folder).split('\n') if line.strip()]


def table(delimiter, make, folder):
  """The rows of a table with a header; '' as delimiter: tabs, where a quote is a character."""
  if delimiter:
    rows = list(csv.reader(io.StringIO(text_of(folder), ''), delimiter=delimiter, strict=True))
  else:
    rows = [line.split('\t') for line in text_of(folder).split('\n')]
  (header, *rows) = [row for row in rows if any(map(str.strip, row))]
  return [make(dict(zip(map(str.strip, header), row, strict=True))) for row in rows]


def columns(token, tag, folder):
  """The sentences of a file with a token a line; in CoNLL-U (token 1) some lines hold none."""
  text = re.sub(r'(?m)^-DOCSTART-.*$', '', text_of(folder))  # which begins a document
  parts, out = re.split(r'\n(?:[ \t]*\n)+', text.strip(' \t\n')), []
  mark = '\t' if token or '\t' in parts[0].split('\n')[0] else ' '
  for part in parts:
    lines = [x for x in part.split('\n') if token == 0 or not re.match(r'#|\d+[-.]\d+\s', x)]
    cells = [[x for x in line.split(mark) if x] for line in lines]
    out += [[[x[token] for x in cells], [x[tag] for x in cells]]] if cells else []
  return out


def germeval(folder):
  """The sentences of a file with a number, a token and its tags a line, below comments."""
  text = text_of(folder).strip(' \t\n')
  cells_of = lambda line: [cell.strip(' ') for cell in line.split('\t')]
  width = next(len(cells_of(x)) for x in text.split('\n') if x.strip(' \t') and x[0] != '#')
  is_comment, out = lambda row: row[0][:1] == '#' and len(row) != width, []
  for part in re.split(r'\n(?:[ \t]*\n)+', text):
    rows = [*itertools.dropwhile(is_comment, map(cells_of, part.split('\n')))]
    out += [[[row[1] for row in rows], [row[-1] for row in rows]]] if rows else []
  return out


def lexicon(text, folder):
  """Where entries stand in a text, which ends no word of ASCII in the middle."""
  entries = {' '.join(line.split()).lower() for line in text_of(folder).split('\n')}
  entries = sorted(filter(lambda x: x and x[0] != '#', entries), key=len, reverse=True)
  edge = lambda x, is_none: is_none if x.isascii() and x.isalnum() else ''
  before, behind = '(?<![a-z0-9])', '(?![a-z0-9])'
  parts = [edge(x[0], before) + re.escape(x) + edge(x[-1], behind) for x in entries]
  return [list(found.span()) for found in re.finditer('|'.join(parts), text.lower())]


def squad(folder):
  out = []
  for part in json.loads(text_of(folder))['data']:
    for paragraph, q in ((p, q) for p in part['paragraphs'] for q in p['qas']):
      answers = [] if q.get('is_impossible') else q['answers']
      parts = [[answer[name] for answer in answers] for name in ('text', 'answer_start')]
      out.append([str(q['id']), q['question'], paragraph['context'], parts[0] or (), parts[1]])
  return out


def dream(folder):
  of_all = ((turns, q) for turns, asked, _ in json.loads(text_of(folder)) for q in asked)
  asked = lambda q: [q['question'], q['choice'], q['choice'].index(q['answer'])]
  return [['\n'.join(turns), *asked(q)] for turns, q in of_all]


def race(folder):
  found = json.loads(text_of(folder))
  asked = zip(found['questions'], found['options'], found['answers'], strict=True)
  return [[found['article'], q, of, [*'ABCD'].index(gold.upper())] for q, of, gold in asked]


def copa(x):
  asked = {'cause': 'What was the cause of this?', 'effect': 'What happened as a result?'}
  choices = [x if isinstance(x, str) else json.dumps(x) for x in (x['choice1'], x['choice2'])]
  return [x['premise'], asked[x['question']], choices, [*'01'].index(str(x['label']).strip())]


def gap(x):
  names = 'Pronoun', 'A', 'B'
  begins = [int(x[f'{name}-offset']) for name in names]
  marks = [{'TRUE': True, 'FALSE': False}[x[f'{k}-coref'].strip().upper()] for k in 'AB']
  spans = [[at, at + len(x[name])] for name, at in zip(names, begins)]
  return [x['Text'], spans, (marks + [True]).index(True)]


def wsc(x):
  """Spans are counted in words; the pronoun is the second."""
  text, of = x['text'], x['target']
  words, spans = [word.start() for word in re.finditer(r'\S+', text)], []
  for k in (2, 1):
    span, first = of[f'span{k}_text'], words[int(of[f'span{k}_index'])]
    begin = text.lower().index(span.lower(), first)
    spans.append([begin, begin + len(span)])
  return [text, spans, {'true': 0, '1': 0, 'false': 1, '0': 1}[str(x['label']).strip().lower()]]


labelled = lambda x: [[x['sentence']], x['label'].strip()]
answer = lambda x: [*'0123'].index(x['label'].strip())
endings = lambda x: [x[f'ending{k}'] for k in range(4)]
of_many = lambda x: [[x['sentence']], [name.strip() for name in x['label'] if name.strip()]]
# {format: what reads it}.
OTHERS = {
  'text a.txt': partial(plain, others='<doc |= .*=\\s*(\n|$)'),
  'text a.md': lambda folder: unmarked(plain(folder)),
  'text a.tokens': lambda folder: unmarked(plain(folder)),
  'text a.jsonl': lambda folder: [*filter(None, jsonl(lambda x: x['text'].split(), folder))],
  'TSV': partial(table, '', labelled),
  'CSV': partial(table, ';', labelled),
  'several labels': partial(jsonl, of_many),
  'numbers': partial(table, ',', lambda x: [[x['sentence']], float(x['label'])]),
  'GAP': partial(table, '', gap),
  'WSC': partial(jsonl, wsc),
  'SWAG': partial(table, ',', lambda x: [x['sent1'], x['sent2'], endings(x), answer(x)]),
  'COPA': partial(jsonl, copa),
  'DREAM': dream,
  'RACE': race,
  'SQuAD': squad,
  'CoNLL': partial(columns, 0, -1),
  'CoNLL-U': partial(columns, 1, 3),
  'GermEval': germeval,
}


bits = lambda found: {name: (x.dtype.str, x.shape, x.tobytes()) for name, x in found.items()}
tensors = lambda folder: bits(safetensors.numpy.load_file(folder / 'model.safetensors'))


def wordpiece(texts, folder):
  """The ids of texts under a vocab.txt whose lines all differ."""
  settings = json.loads((folder / 'tokenizer_config.json').read_text())
  lines = (folder / 'vocab.txt').read_bytes().decode().rstrip('\n').split('\n')
  vocab = {line: i for i, line in enumerate(lines)}
  is_plain = len(vocab) == len(lines) and all(line and line == line.strip() for line in lines)
  if not is_plain or settings['do_lower_case'] is not True:
    raise ValueError('not one piece a line, without blanks at its ends')
  fast = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token='[UNK]'))
  fast.normalizer = tokenizers.normalizers.BertNormalizer()
  fast.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
  return [x.ids for x in fast.encode_batch(texts, add_special_tokens=False)]


def whole(texts, folder):
  """The ids of texts under a tokenizer.json, or vocab.json and merges.txt."""
  if (folder / 'vocab.json').is_file():
    files = (str(folder / name) for name in ('vocab.json', 'merges.txt'))
    fast = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*files))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  else:
    fast = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
  return [x.ids for x in fast.encode_batch(texts, add_special_tokens=False)]
