"""Reads tagged sentences: files with a token and its columns on each line, or records of lists.

  task.format=columns   CoNLL-2000 to 2003, WNUT-17, PAN-X: any number of columns, the same on all
            lines, separated by tabs or, if the first line has no tab, by blanks. A blank line ends
            a sentence; -DOCSTART- lines begin documents. A line that begins with # and has another
            number of columns is a comment (GermEval 2014, whose tokens are in column 1 and whose
            tags are in columns 2 and 3)
  task.format=weibo     the same, of golden-horse's Weibo files: the place of each character in its
            word stands behind it, and is removed
  task.format=conllu    ten columns (https://universaldependencies.org/format.html). Comments,
            ranges of multiword tokens (1-2) and empty nodes (1.1) are not tokens; '_' is not a tag;
            # newdoc begins a document
  .jsonl, .json, .parquet, .arrow, hf:    records of "tokens" and "tags" (or "ner_tags"; for CoNLL-U
            "upos", "pos_tags"), lists of as many strings, or of numbers whose names the schema has
  .csv      a header and a word a row, in columns such as sentence_id, words, labels (WORDS); the
            sentence may be named at its first word only, as in Kaggle's corpus
  tfds:     conll2003 (columns tokens, pos, chunks, ner), wikiann/xx (tokens, tags);
            universal_dependencies/xx and xtreme_pos/xx, in which ranges and empty nodes are tokens
            with the tag '_'. They do not say where documents begin

A file without a tag column is a test set: its tokens have no tags. A line that cannot be used makes
its whole sentence unusable, see tasks/faulty_records.py.
"""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from bert_jax.errors import InputError, listed
from bert_jax.tasks.faulty_records import Problems, Unusable
from bert_jax.text import files, tables
from bert_jax.text.values import printed_value

CONLLU = ('idx', 'tokens', 'lemmas', 'upos', 'xpos', 'feats', 'head', 'deprel', 'deps', 'misc')
COLUMNS = ('tokens', 'pos', 'chunks', 'ner', 'tags')  # of TFDS, as far as a data set has them
# {column of a .csv: how it may be called, in lower case}
WORDS = {
  'sentence': ('sentence_id', 'sentence #', 'sentence', 'sent_id'),
  'word': ('words', 'word', 'tokens', 'token'),
  'tag': ('labels', 'label', 'tags', 'tag', 'ner_tags', 'ner'),
}
LISTS = 'it is not {"tokens": [...], "tags": [...]} with as many strings in both'
NO_TOKENS = 'multiword ranges and empty nodes'
FAULTY = 'sentences with a faulty line'  # a kind of fault

_COMMENT = re.compile(r'#\s*(sent_id|newdoc)\b\s*=?\s*(.*)')


class Sentence(NamedTuple):
  where: str
  id: str
  tokens: tuple[str, ...]
  tags: tuple[str | None, ...] | None  # of each token; None: not known
  document: tuple  # names its document: equal for all sentences of one
  after_blank: tuple[bool, ...] = ()  # does each token follow a blank? (): all but the first


class Layout(NamedTuple):
  """How the lines of files are laid out. Columns count from 0; -1 is the last."""

  form: str  # columns, weibo or conllu
  token_column: int
  tag_column: int

  def places(self, where: str, width: int, split: str) -> tuple[int, int | None]:
    """The numbers of the columns of tokens and tags, from 0; None: there is no column of tags.
    InputError if these are not among the columns, of which there are `width`."""
    token_at = self.token_column if self.token_column >= 0 else width + self.token_column
    tag_at = self.tag_column if self.tag_column >= 0 else width + self.tag_column
    if not 0 <= token_at < width:
      raise InputError(
        f'{where}: there are {width} columns and tagging.token_column is {self.token_column}; '
        'columns count from 0.'
      )
    if 0 <= tag_at < width and tag_at != token_at:
      return token_at, tag_at
    if split == 'train':
      raise InputError(
        f'{where}: there are {width} columns and none of them has the tags that '
        f'tagging.tag_column={self.tag_column} asks for; training needs them.'
      )
    return token_at, None


def read(spec: str, split: str, problems: Problems, layout: Layout) -> list[Sentence]:
  """The sentences of a split, in order; unusable ones go to `problems`. Its counts['documents']
  stays 0 if the data does not say where documents begin."""
  sentences = []
  for number, sentence in enumerate(_sentences(spec, split, problems, layout)):
    if not sentence.tokens:
      problems.note('sentences without a token (left out)', sentence.where)
      continue
    sentence = sentence._replace(id=sentence.id or str(number))
    if sentence.tags is None:
      problems.counts['sentences without tags'] += 1
    elif None in sentence.tags:
      problems.note('sentences with untagged tokens (not learnt, not scored)', sentence.where)
    sentences.append(sentence)
  if not sentences:
    problems.nothing(spec, 'sentences')
  return sentences


def _sentences(spec, split, problems, layout):
  kind = '.conllu' if layout.form == 'conllu' else ''
  for _, part in files.parts(spec):
    if files.is_named(part):
      yield from _of_lists(part, split, problems, layout)
      continue
    for path in files.split_files(part, split, one=split != 'train', kind=kind):
      suffix = files.suffix(path)
      if suffix == '.csv':
        yield from _of_words(path, split, problems)
      elif suffix in tables.SUFFIXES and suffix != '.tsv':
        yield from _of_lists(str(path), split, problems, layout)
      else:
        yield from _of_lines(path, split, problems, layout)


# -- lines -----------------------------------------------------------------------------------------


def _of_lines(path, split, problems, layout):
  """Yields the sentences of a file; `id` is empty if the file does not name them."""
  name, counts, is_conllu = path.name, problems.counts, layout.form == 'conllu'
  lines = list(problems.lines(path))
  of_sentences = [line for line in lines if _kind(line) == 'sentence']
  if not of_sentences:
    return
  number, first = next((x for x in of_sentences if not x[1].startswith('#')), of_sentences[-1])
  separator = '\t' if '\t' in first or is_conllu else ' +'
  width = len(CONLLU) if is_conllu else len(_cells(first, separator))
  token_at, tag_at = layout.places(f'{name}:{number}', width, split)
  for kind, group in itertools.groupby(lines, key=_kind):
    block = list(group)
    if kind == 'document':
      counts['documents'] += len(block)
    if kind != 'sentence':
      continue
    with problems.of_record(name):
      named, rows = '', []
      for number, line in block:
        comment = _COMMENT.match(line) if is_conllu else None
        cells = _cells(line, separator)
        if comment and comment[1] == 'sent_id':
          named = comment[2].strip()
        elif comment:
          counts['documents'] += 1
        elif line.startswith('#') and (is_conllu or len(cells) != width):
          continue
        elif _is_token(cells, width, (token_at, tag_at), is_conllu, f'{name}:{number}'):
          rows.append(cells)
        else:
          counts[NO_TOKENS] += 1
      tokens = tuple(_token(row[token_at], layout.form) for row in rows)
      tags = None
      if tag_at is not None:
        tags = tuple(None if is_conllu and row[tag_at] == '_' else row[tag_at] for row in rows)
      if not any(tags or ()):
        tags = None
      document = path, counts['documents']
      yield Sentence(f'{name}:{block[0][0]}', named, tokens, tags, document)


def _kind(numbered):
  """What a line of a file belongs to: 'document' (its beginning), 'sentence' or ''."""
  if numbered[1].startswith('-DOCSTART-'):
    return 'document'
  return 'sentence' if numbered[1].strip(' \t') else ''


def _cells(line, separator):
  return [cell.strip(' ') for cell in re.split(separator, line.strip(' '))]


def _is_token(cells, width, places, is_conllu, where):
  """Whether the cells of a line are those of a token; Unusable if something is wrong with them."""
  if len(cells) != width:
    fault = f'{len(cells)} columns where {width} are expected; repair the line'
    raise Unusable(fault, FAULTY, where)
  if not all(cells[i] for i in places if i is not None):
    raise Unusable('its token or its tag is empty; repair the line', FAULTY, where)
  return not is_conllu or cells[0].isdecimal()


def _token(cell, form):
  """A token; of Weibo without its place in the word: 1 of '10', 科 of '科0'."""
  return cell[: max(1, len(cell.rstrip('0123456789')))] if form == 'weibo' else cell


# -- tables ----------------------------------------------------------------------------------------


def _of_lists(spec, split, problems, layout):
  """Yields the sentences of a table whose columns hold lists; those of TFDS are in its order."""
  is_conllu = layout.form == 'conllu'
  for where, row in problems.rows(spec):
    with problems.of_record(where, LISTS, 'records'):
      if spec.startswith('tfds:'):
        names = CONLLU if is_conllu else [name for name in COLUMNS if name in row]
        token_at, tag_at = layout.places(where, len(names), split)
        tokens_name, tags_name = names[token_at], '' if tag_at is None else names[tag_at]
      else:
        spellings = 'tags|ner_tags|upos|pos_tags' if is_conllu else 'tags|ner_tags'
        tokens_name, tags_name = 'tokens', tables.first_of(row, spellings)
        if not tags_name and split == 'train':
          tags_name = 'tags'
      tokens, tags = _strings(row[tokens_name]), None
      if tags_name:
        tags = _strings(row[tags_name])
        pairs = list(zip(tokens, tags, strict=True))
        if is_conllu:
          pairs = [pair for pair in pairs if pair[1] != '_']
          problems.counts[NO_TOKENS] += len(tags) - len(pairs)
        tokens, tags = tuple(token for token, _ in pairs), tuple(tag for _, tag in pairs)
      yield Sentence(where, str(row.get('id', '')), tokens, tags, ())


def _strings(cell):
  """The list of strings in a cell; TypeError if it holds something else."""
  strings = printed_value(cell)
  if not isinstance(strings, list) or not all(isinstance(x, str) and x for x in strings):
    raise TypeError(f'{cell:.40} is no list of strings')
  return tuple(strings)


def _of_words(path, split, problems):
  """Yields the sentences of a .csv with a word a row."""
  rows = _words(path, split, problems)
  for _, group in itertools.groupby(rows, key=lambda row: row[0]):
    _, where, tokens, tags = zip(*group)
    yield Sentence(where[0], '', tokens, tags if any(tags) else None, ())


def _words(path, split, problems) -> Iterator[tuple[int, str, str, str | None]]:
  """Yields (number of its sentence, where, word, tag or None) of each row of a .csv."""
  sentence, number = '', 0
  for where, row in problems.rows(str(path)):
    lower = {name.lower(): cell.strip() for name, cell in row.items()}
    columns = {kind: tables.first_of(lower, '|'.join(names)) for kind, names in WORDS.items()}
    for kind, column in columns.items():
      if not column and (kind, split) != ('tag', 'eval'):
        raise InputError(
          f'{row.header}: there are columns {listed(row)} and none for the {kind} '
          f'(one of {", ".join(WORDS[kind])}); name them so, or write CoNLL, '
          'a word and its tag a line.'
        )
    if lower[columns['sentence']] not in ('', sentence):
      sentence, number = lower[columns['sentence']], number + 1
    with problems.of_record(where):
      word = lower[columns['word']]
      if not word:
        raise Unusable('its word is empty; repair the row', 'rows without a word')
      yield number, where, word, lower.get(columns['tag']) or None
