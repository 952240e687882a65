"""Reads tagged sentences: files with a token and its columns on each line, or data sets of TFDS.

  columns   CoNLL-2000 to 2003, WNUT-17, PAN-X, Weibo: any number of columns, the same on all lines,
            separated by tabs or, if the first line has no tab, by blanks. A blank line ends a
            sentence; -DOCSTART- lines begin documents. A line before a sentence that begins with #
            and has another number of columns is a comment (GermEval 2014, whose tokens are in
            column 1 and whose tags are in columns 2 and 3)
  CoNLL-U   ten columns (https://universaldependencies.org/format.html). Comments, ranges of
            multiword tokens (1-2) and empty nodes (1.1) are not tokens; '_' is not a tag; # newdoc
            begins a document
  .jsonl, .json, .parquet, .arrow, hf:    records of "tokens" and "tags" (or "ner_tags"; for CoNLL-U
            "upos", "pos_tags"), lists of as many strings, or of numbers whose names the schema has
  .csv, .tsv      a header and a word a row, in columns such as sentence_id, words, labels (WORDS);
            the sentence may be named at its first word only, as in Kaggle's corpus. Or records as
            above, with their lists in cells, as pandas or JSON write them
  tfds:     conll2003 (columns tokens, pos, chunks, ner), wikiann/xx (tokens, tags);
            universal_dependencies/xx and xtreme_pos/xx, in which ranges and empty nodes are tokens
            with the tag '_'. They do not say where documents begin

A file without a tag column is a test set: its tokens have no tags. golden-horse's Weibo files write
the place of each character in its word behind it; if all tokens end so, the places are removed. A
line that cannot be used makes its whole sentence unusable, see tasks/faulty_records.py.
"""

import contextlib
import itertools
import operator
import re
from typing import NamedTuple

from bert_jax.errors import InputError, listed, quoted
from bert_jax.tasks.faulty_records import Problems, Unusable
from bert_jax.text import files, tables
from bert_jax.text.values import printed_value, whole_number

CONLLU = ('idx', 'tokens', 'lemmas', 'upos', 'xpos', 'feats', 'head', 'deprel', 'deps', 'misc')
COLUMNS = ('tokens', 'pos', 'chunks', 'ner', 'tags')  # of TFDS, as far as a data set has them
# {column of a .csv: how it may be called, in lower case}
WORDS = {
  'sentence': ('sentence_id', 'sentence #', 'sentence', 'sent_id'),
  'word': ('words', 'word', 'tokens', 'token'),
  'tag': ('labels', 'label', 'tags', 'tag', 'ner_tags', 'ner'),
}

_COMMENT = re.compile(r'#\s*(sent_id|newdoc)\b\s*=?\s*(.*)')
_LIST = re.compile(r'\[.+\]', re.DOTALL)
_NO_WORD = re.compile(r'\d+[-.]\d+')


class Sentence(NamedTuple):
  where: str
  id: str
  tokens: tuple[str, ...]
  tags: tuple[str | None, ...] | None  # of each token; None: not known
  document: tuple  # names its document: equal for all sentences of one
  after_blank: tuple[bool, ...] = ()  # does each token follow a blank? (): all but the first


class Layout(NamedTuple):
  """How the lines of files are laid out. Columns count from 0; -1 is the last."""

  conllu: bool
  token_column: int
  tag_column: int

  def places(self, where: str, width: int, split: str) -> tuple[int, int | None]:
    """The numbers of the columns of tokens and tags, from 0; None: there is no column of tags.
    Unusable if these are not among the columns, of which there are `width`."""
    token_at, tag_at = (i if i >= 0 else width + i for i in self[1:])
    has, kind = f'there are {width} columns and', 'records'
    if not 0 <= token_at < width:
      fault = f'{has} tagging.token_column is {self.token_column}; columns count from 0'
      raise Unusable(fault, kind, where)
    if 0 <= tag_at < width and tag_at != token_at:
      return token_at, tag_at
    if split == 'train':
      fault = f'{has} none of them has the tags that tagging.tag_column={self.tag_column} asks for'
      raise Unusable(f'{fault}; training needs them', kind, where)
    return token_at, None


def read(spec: str, split: str, problems: Problems, layout: Layout) -> list[Sentence]:
  """The sentences of a split, in order; unusable ones go to `problems`. Its counts['documents']
  stays 0 if the data does not say where documents begin."""
  sentences = []
  for number, sentence in enumerate(_sentences(spec, split, problems, layout)):
    if not sentence.tokens:
      problems.note('sentences without a token (left out)', sentence.where)
      continue
    if not all(map(str.strip, sentence.tokens)):
      problems.note('sentences with a token of blanks alone (kept)', sentence.where)
    sentence = sentence._replace(id=sentence.id or str(number))
    problems.note_id(sentence.id, sentence.where)
    if sentence.tags is None:
      problems.counts['sentences without tags'] += 1
    elif None in sentence.tags:
      problems.note('sentences with untagged tokens (not learnt, not scored)', sentence.where)
    sentences.append(sentence)
  if not sentences:
    problems.nothing(spec, 'sentences')
  if all(s.tokens == tuple(map(str, range(1, len(s.tokens) + 1))) for s in sentences):
    fault = f'column {layout.token_column} of data.{split} counts the tokens: 1, 2, ..'
    fix = 'name the columns of tokens (tagging.token_column=1) and of tags (tagging.tag_column=2)'
    raise InputError(f'{fault}; {fix}.')
  return _without_places(sentences, problems)


def _sentences(spec, split, problems, layout):
  for _, part in files.parts(spec):
    if files.is_named(part):
      yield from _of_lists(part, split, problems, layout)
      continue
    kind = '.conllu' * layout.conllu
    for path in files.split_files(part, split, one=split != 'train', kind=kind):
      if _are_records(path, problems):
        yield from _of_lists(str(path), split, problems, layout)
      elif files.suffix(path) == '.csv':
        yield from _of_words(path, split, problems)
      else:
        yield from _file(path, split, problems, layout)


def _are_records(path, problems):
  """Whether each row of a file is a sentence, as a list of tokens and one of tags."""
  if (kind := files.suffix(path)) not in ('.csv', '.tsv'):
    return kind in tables.SUFFIXES
  with contextlib.suppress(InputError):  # which the reader of the file raises, if it is a table
    _, row = next(Problems('train', True, problems.encoding).rows(str(path)))
    return _LIST.fullmatch(row.get('tokens', '').strip())


def _file(path, split, problems, layout):
  """Yields the sentences of a file; `id` is empty if the file does not name them."""
  name, counts, conllu, new = path.name, problems.counts, layout.conllu, problems.counts.copy()
  numbered = list(problems.lines(path, counts=new))
  plain = [line for line in numbered if _kind(line) == 'sentence'] or [(0, '')]
  number, first = next((line for line in plain if not line[1].startswith('#')), plain[-1])
  header = [] if conllu else first.lower().split('\t')
  at = {kind: header.index(x) for kind in WORDS for x in WORDS[kind][::-1] if x in header}
  if {'sentence', 'word'} <= at.keys():
    yield from _of_words(path, split, problems)  # which counts what it reads
    return
  counts |= new
  if not number:
    return
  if 'word' in at and ('tag' in at or (files.suffix(path), header[1:]) == ('.tsv', [])):
    problems.note('headers (left out)', f'{name}:{number}')
    numbered.remove((number, first))
    if layout[1:] == (0, -1):  # no columns are named elsewhere
      layout = layout._replace(token_column=at['word'], tag_column=at.get('tag', -1))
  separator = '\t' if '\t' in first or conllu else ' +'
  cells_of = lambda line: [cell.strip(' ') for cell in re.split(separator, line.strip(' '))]
  width = len(CONLLU) if conllu else len(cells_of(first))
  try:
    token_at, tag_at = layout.places(f'{name}:{number}', width, split)
  except Unusable as fault:  # here of all lines
    raise InputError(f'{name}:{number}: {fault.args[0]}.') from None
  for kind, group in itertools.groupby(numbered, key=_kind):
    block, named, rows = list(group), '', []
    if kind == 'document':
      counts['documents'] += len(block)
    if kind != 'sentence':
      continue
    with problems.of_record(name):
      for number, line in block:
        cells, comment = cells_of(line), _COMMENT.match(line) if conllu else None
        if comment and comment[1] == 'sent_id':
          named = comment[2].strip()
        elif comment:
          counts['documents'] += 1
        elif conllu and line.startswith('#'):
          continue
        elif line.startswith('#') and not rows and len(cells) != width:
          problems.note('comments before sentences (left out)', f'{name}:{number}')
        elif fault := _fault(cells, width, (token_at, tag_at), conllu):
          raise Unusable(fault, 'sentences with a faulty line', f'{name}:{number}')
        elif conllu and not cells[0].isdecimal():
          counts['multiword ranges' if '-' in cells[0] else 'empty nodes'] += 1
        else:
          rows.append(cells)
      tags = None if tag_at is None else tuple(row[tag_at] for row in rows)
      if conllu and tags:
        tags = tuple(None if tag == '_' else tag for tag in tags)
        tags = tags if any(tags) else None
      tokens = tuple(row[token_at] for row in rows)
      document = path, counts['documents']
      yield Sentence(f'{name}:{block[0][0]}', named, tokens, tags, document)


def _kind(numbered):
  """What a line of a file belongs to: 'document' (its beginning), 'sentence' or ''."""
  if numbered[1].startswith('-DOCSTART-'):
    return 'document'
  return 'sentence' if numbered[1].strip(' \t') else ''


def _fault(cells, width, at, conllu):
  """What is wrong with the cells of a line; '': nothing."""
  if len(cells) != width:
    return f'{len(cells)} columns where {width} are expected; repair the line'
  if not all(cells[i] for i in at if i is not None):
    return 'its token or its tag is empty; repair the line'
  if conllu and not cells[0].isdecimal() and not _NO_WORD.fullmatch(cells[0]):
    return f'its ID {quoted(cells[0])} is neither a number nor a range'
  return ''


def _of_lists(spec, split, problems, layout):
  """Yields the sentences of a table whose columns hold lists; those of TFDS are in its order."""
  shape = 'it is not {"tokens": [...], "tags": [...]} with as many strings in both'
  for where, row in problems.rows(spec):
    with problems.of_record(where, shape, 'records'):
      tags = tables.first_of(row, 'tags|ner_tags' + '|upos|pos_tags' * layout.conllu)
      names, at = ('tokens', tags or 'tags'), (0, 1 if tags or split == 'train' else None)
      if spec.startswith('tfds:'):
        names = CONLLU if layout.conllu else [name for name in COLUMNS if name in row]
        at = layout.places(where, len(names), split)
      lists = [printed_value(row[names[i]]) for i in at if i is not None]
      odd = [x for x in lists if not isinstance(x, list)]
      if odd := odd or [x for held in lists for x in held if not isinstance(x, str) or not x]:
        raise TypeError(f'these are not lists of strings, but hold {odd[0]!r:.40}')
      rows = list(zip(*lists, strict=True))
      if layout.conllu and len(lists) > 1:
        there = [(token, tag) for token, tag in rows if tag != '_']
        problems.counts['multiword ranges and empty nodes'] += len(rows) - len(there)
        rows = there
      tokens, *tags = zip(*rows) if rows else [()] * len(lists)
      yield Sentence(where, str(row.get('id', '')), tokens, tags[0] if tags else None, ())


def _of_words(path, split, problems):
  """Yields the sentences of a .csv with a word a row."""
  rows = _words(path, split, problems)
  for _, group in itertools.groupby(rows, key=operator.itemgetter(0)):
    _, where, tokens, tags = zip(*group)
    yield Sentence(where[0], '', tokens, tags if any(tags) else None, ())


def _words(path, split, problems):
  """Yields (number of its sentence, where, word, tag or None) of each row of a .csv."""
  sentence, number = '', 0
  for where, row in problems.rows(str(path)):
    lower = {name.lower(): name for name in row}
    held = {kind: [lower[x] for x in names if x in lower][:1] for kind, names in WORDS.items()}
    if missing := [kind for kind in held if not held[kind] and (kind, split) != ('tag', 'eval')]:
      known = ' and the '.join(f'{x} (one of {", ".join(WORDS[x])})' for x in missing)
      fault = f'{row.header}: there are columns {listed(row)} and none for the {known}'
      raise InputError(f'{fault}; name them so, or write CoNLL, a word and its tag a line.')
    named, word, *tags = (row[name].strip() for columns in held.values() for name in columns)
    if named and named != sentence:
      sentence, number = named, number + 1
    with problems.of_record(where):
      if not word:
        raise Unusable('its word is empty; repair the row', 'rows without a word')
      yield number, where, word, next(filter(None, tags), None)


def _without_places(sentences, problems):
  """Removes the places behind tokens, '科0 技1' -> '科 技', if nearly all count from 0 on."""
  right, number, out = 0, 0, []
  for sentence in sentences:
    ends = [max(1, len(token.rstrip('0123456789'))) for token in sentence.tokens]
    found = [whole_number(token[end:]) for token, end in zip(sentence.tokens, ends)]
    places = [place for place in found if place is not None]
    if len(places) < len(found):
      return sentences
    right += sum(place in (0, 1 + before) for before, place in zip([-1, *places], places))
    number += len(places)
    words = tuple(token[:end] for token, end in zip(sentence.tokens, ends))
    out.append(sentence._replace(tokens=words))
  if right < 0.99 * number:
    return sentences
  problems.counts['tokens with their place in the word (taken off)'] = number
  return out
