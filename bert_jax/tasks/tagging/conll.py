"""Reads tagged sentences: files with a token and its columns on each line, or records of lists.

  task.format=columns   CoNLL-2000 to 2003, WNUT-17, PAN-X: any number of columns, the same on all
            lines, separated by tabs or, if the first line has no tab, by blanks. A blank line ends
            a sentence; -DOCSTART- lines begin documents. A line that begins with # and has another
            number of columns is a comment (GermEval 2014, whose tokens are in column 1 and whose
            tags are in columns 2 and 3)
  task.format=weibo     the same, of golden-horse's Weibo files: the place of each character in its
            word stands behind it, and is removed if it does so throughout the file
  task.format=conllu    ten columns (https://universaldependencies.org/format.html). Comments,
            ranges of multiword tokens (1-2) and empty nodes (1.1) are not tokens; '_' is not a tag
  .jsonl, .json, .parquet, .arrow, hf:, tfds:    records of "tokens" (or "words") and "tags" (or
            "ner_tags", "ner", "labels"; for CoNLL-U "upos", "pos_tags"), lists of as many strings,
            or of numbers whose names the schema has (ClassLabel). A tag of null is not known. They
            do not say where documents begin
  .csv      a header and a word a row, in columns such as sentence_id, words, labels (WORDS); the
            sentence may be named at its first word only, as in Kaggle's corpus

A file without a tag column is a test set: its tokens have no tags. A line that cannot be used makes
its whole sentence unusable, see tasks/faulty_records.py.
"""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import InputError, quoted
from bert_jax.tasks.faulty_records import Problems, Unusable, reads
from bert_jax.text import files, tables
from bert_jax.text.values import printed_value

CONLLU_COLUMNS = 10
# How the columns of a .csv with a word a row may be called.
SENTENCE = 'sentence_id|Sentence #|sentence|sent_id'
WORD = 'words|word|Word|tokens|token'
TAG = 'labels|label|tags|tag|Tag|ner_tags|ner'
HINT = 'name one of these so, or write CoNLL, a word and its tag a line'
LISTS = 'it is not {"tokens": [...], "tags": [...]} with as many strings in both'
NAMES = 'write a text (numbers have names where the schema of Parquet, hf: or tfds: has ClassLabel)'
NO_TOKENS = 'multiword ranges and empty nodes'
FAULTY = 'sentences with a faulty line'  # a kind of fault

# A character, or bytes of one, and its place.
_PLACED = re.compile(r'(?:^| )(.|\ufffd+)[0-9]+(?= |$)')
_NAME = re.compile(r'#\s*sent_id\b\s*=?\s*(.*)')


class Sentence(NamedTuple):
  where: str
  id: str
  tokens: tuple[str, ...]
  tags: tuple[str | None, ...] | None  # of each token; None: not known
  document: tuple  # names its document: equal for all sentences of one
  after_blank: tuple[bool, ...] = ()  # does each token follow a blank? (): all but the first


@reads('sentences', name='a file of tagged text')
def read(config: ConfigDict, split: str, problems: Problems) -> Iterator[Sentence]:
  """Yields the Sentences of a split; unusable ones go to `problems`. Its counts['documents'] stays
  0 if the data does not say where documents begin."""
  for number, sentence in enumerate(_sentences(config, split, problems)):
    if not sentence.tokens:
      problems.note('sentences without a token (left out)', sentence.where)
      continue
    if sentence.tags is None:
      problems.counts['sentences without tags'] += 1
    elif None in sentence.tags:
      problems.note('sentences with untagged tokens (not learnt, not scored)', sentence.where)
    yield sentence._replace(id=sentence.id or str(number))


def of_conllu(spec: str) -> Iterator[Sentence]:
  """Yields the Sentences of CoNLL-U with their parts of speech, without a config."""
  columns = {'token_column': 1, 'tag_column': 3}
  config = {'data': {'eval': spec}, 'task': {'format': 'conllu'}, 'tagging': columns}
  yield from read(ConfigDict(config), 'eval', Problems('eval'))


def _sentences(config, split, problems):
  is_conllu = config.task.format == 'conllu'
  kind = '.conllu' if is_conllu else ''
  for _, part in files.parts(config.data[split]):
    if files.is_named(part):
      yield from _of_lists(part, split, problems, is_conllu)
      continue
    for path in files.split_files(part, split, one=split != 'train', kind=kind):
      suffix = files.suffix(path)
      if suffix == '.csv':
        yield from _of_words(path, split, problems)
      elif suffix in tables.SUFFIXES and suffix != '.tsv':
        yield from _of_lists(str(path), split, problems, is_conllu)
      else:
        found = _of_lines(path, config, split, problems)
        yield from _without_places(list(found)) if config.task.format == 'weibo' else found


# -- lines -----------------------------------------------------------------------------------------


def _of_lines(path, config, split, problems):
  """Yields the sentences of a file; `id` is empty if the file does not name them."""
  name, is_conllu = path.name, config.task.format == 'conllu'
  lines = list(problems.lines(path))
  of_sentences = [line for line in lines if _kind(line) == 'sentence']
  if not of_sentences:
    return
  number, first = next((x for x in of_sentences if not x[1].startswith('#')), of_sentences[-1])
  separator = '\t' if '\t' in first or is_conllu else ' +'
  width = CONLLU_COLUMNS if is_conllu else len(_cells(first, separator))
  places = _places(config.tagging, f'{name}:{number}', width, split)
  for kind, group in itertools.groupby(lines, key=_kind):
    block = list(group)
    if kind == 'document':
      problems.counts['documents'] += len(block)
    if kind != 'sentence':
      continue
    named, pairs = '', []
    with problems.of_record(name):
      for number, line in block:
        cells = _cells(line, separator)
        if line.startswith('#') and (is_conllu or len(cells) != width):
          if comment := _NAME.match(line):
            named = comment[1].strip()
          continue
        token, tag = _token(cells, width, places, f'{name}:{number}')
        if is_conllu and not cells[0].isdecimal():
          problems.counts[NO_TOKENS] += 1
          continue
        pairs.append((token, None if is_conllu and tag == '_' else tag))
      document = path, problems.counts['documents']
      yield _sentence(f'{name}:{block[0][0]}', named, pairs, document)


def _without_places(sentences):
  """Sentences of characters without their places, if all have one: 1 of '10', 科 of '科0'."""
  out = []
  for sentence in sentences:
    characters = _PLACED.findall(' '.join(sentence.tokens))
    if len(characters) != len(sentence.tokens):
      return sentences
    out.append(sentence._replace(tokens=tuple(characters)))
  return out


def _kind(numbered):
  """What a line of a file belongs to: 'document' (its beginning), 'sentence' or ''."""
  if numbered[1].startswith('-DOCSTART-'):
    return 'document'
  return 'sentence' if numbered[1].strip(' \t') else ''


def _cells(line, separator):
  return [cell.strip(' ') for cell in re.split(separator, line.strip(' '))]


def _places(tagging, where, width, split):
  """The numbers of the columns of tokens and tags among `width`, from 0; of tags None, if there is
  no such column. InputError if there is no column of tokens or, in training, of tags."""
  token_at, tag_at = tagging.token_column % width, tagging.tag_column
  has_tags = -width <= tag_at < width and tag_at % width != token_at
  if not -width <= tagging.token_column < width or (split == 'train' and not has_tags):
    raise InputError(
      f'{where}: there are {width} columns, and tagging.token_column={tagging.token_column} and '
      f'tagging.tag_column={tag_at} should be two of them; columns count from 0, and training '
      'needs tags.'
    )
  return token_at, tag_at % width if has_tags else None


def _token(cells, width, places, where):
  """The token of the cells of a line, and its tag or None; Unusable if one is missing."""
  if len(cells) != width:
    fault = f'{len(cells)} columns where {width} are expected; repair the line'
    raise Unusable(fault, FAULTY, where)
  token_at, tag_at = places
  token, tag = cells[token_at], None if tag_at is None else cells[tag_at]
  if not token or tag == '':
    raise Unusable('its token or its tag is empty; repair the line', FAULTY, where)
  return token, tag


# -- tables ----------------------------------------------------------------------------------------


def _of_lists(spec, split, problems, is_conllu):
  """Yields the sentences of a table whose columns hold lists."""
  for where, row in problems.rows(spec):
    with problems.of_record(where, LISTS, 'records'):
      spellings = 'tags|upos|pos_tags' if is_conllu else 'tags|ner_tags|ner|labels'
      name = tables.first_of(row, spellings)
      tokens = _strings(row, tables.first_of(row, 'tokens|words'), str)
      tags = (None,) * len(tokens)
      if name or (split == 'train' and not tables.first_of(row.no_text, spellings)):
        tags = [tag or None for tag in _strings(row, name, str | None)]
      pairs = list(zip(tokens, tags, strict=True))
      if is_conllu:
        pairs = [pair for pair in pairs if pair[1] != '_']
        problems.counts[NO_TOKENS] += len(tokens) - len(pairs)
      yield _sentence(where, str(row.get('id', '')), pairs, ())


def _strings(row, column, kind):
  """The list of strings in a column of a row; Unusable if an element is not of this kind."""
  strings = printed_value(row[column])
  if not isinstance(strings, list):
    raise TypeError(f'{strings!r:.40} is no list')
  for number, x in enumerate(strings):
    if not isinstance(x, kind):
      fault = f'element {number} of {column!r} (from 0) is {quoted(x)}; {NAMES}'
      raise Unusable(fault, 'records')
  return strings


def _of_words(path, split, problems):
  """Yields the sentences of a .csv with a word a row."""
  rows = _words(path, split, problems)
  for _, group in itertools.groupby(rows, key=lambda row: row[0]):
    words = list(group)
    yield _sentence(words[0][1], '', [pair for _, _, pair in words], ())


def _words(path, split, problems):
  """Yields (number of its sentence, where, (word, tag or None)) of each row of a .csv."""
  sentence, number = '', 0
  for where, row in problems.rows(str(path)):
    has_tags = split == 'train' or bool(tables.first_of(row, TAG))
    names = [SENTENCE, WORD, TAG] if has_tags else [SENTENCE, WORD]
    with problems.of_record(where):
      cells = [cell.strip() for cell in problems.columns(row, names, where, HINT)]
      if cells[0] not in ('', sentence):
        sentence, number = cells[0], number + 1
      if not cells[1]:
        raise Unusable('its word is empty; repair the row', 'rows without a word')
      yield number, where, (cells[1], (cells[2] or None) if has_tags else None)


def _sentence(where, name, pairs, document):
  """The Sentence of (token, tag or None) pairs."""
  tags = tuple(tag for _, tag in pairs)
  known = tags if any(tags) else None
  return Sentence(where, name, tuple(token for token, _ in pairs), known, document)
