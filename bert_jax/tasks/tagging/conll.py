"""Reads tagged sentences: files with a token and its columns on each line, or data sets of TFDS.

  columns   CoNLL-2000 to 2003, WNUT-17, PAN-X, Weibo: any number of columns, the same on all lines,
            separated by tabs or, if the first line has no tab, by blanks. A blank line ends a
            sentence; -DOCSTART- lines begin documents. A line before a sentence that begins with #
            and has another number of columns is a comment (GermEval 2014, whose tokens are in
            column 1 and whose tags are in columns 2 and 3)
  CoNLL-U   ten columns (https://universaldependencies.org/format.html). Comments, ranges of
            multiword tokens (1-2) and empty nodes (1.1) are not tokens; '_' is not a tag; # newdoc
            begins a document
  .jsonl    one object a line: "tokens" and "tags" (or "ner_tags"), lists of as many strings
  tfds:     conll2003 (columns tokens, pos, chunks, ner), wikiann/xx (tokens, tags);
            universal_dependencies/xx and xtreme_pos/xx, in which ranges and empty nodes are tokens
            with the tag '_'. They do not say where documents begin

A file without a tag column is a test set: its tokens have no tags. golden-horse's Weibo files write
the place of each character in its word behind it; if all tokens end so, the places are removed. A
line that cannot be used makes its whole sentence unusable, see tasks/faulty_records.py.

The tags of entities are O and B- I- (IOB), with E- S- (BIOES), or B- M- E- S- (BMES, usual for
Chinese), where M- is what I- is in BIOES. BILOU is not read.
"""

import itertools
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.errors import InputError, quoted
from bert_jax.tasks.faulty_records import Problems
from bert_jax.text import files, utf8
from bert_jax.text.values import whole_number

log = logging.getLogger('bert_jax')

CONLLU = ('idx', 'tokens', 'lemmas', 'upos', 'xpos', 'feats', 'head', 'deprel', 'deps', 'misc')
COLUMNS = ('tokens', 'pos', 'chunks', 'ner', 'tags')  # of TFDS, as far as a data set has them
SCHEMES = ('IOB2', 'IOB1', 'BIOES')

_CHUNK_TAG = re.compile(r'O|[BIES](-.+)?|M-.+')
_COMMENT = re.compile(r'#\s*(sent_id|newdoc)\b\s*=?\s*(.*)')
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
    """The numbers of the columns of tokens and tags, from 0; None: there is no column of tags."""
    token_at, tag_at = (i if i >= 0 else width + i for i in self[1:])
    if not 0 <= token_at < width:
      why = f'tagging.token_column is {self.token_column}; columns count from 0.'
      raise InputError(f'{where} has {width} columns and {why}')
    if 0 <= tag_at < width and tag_at != token_at:
      return token_at, tag_at
    if split == 'train':
      fault = f'none of them the tags that tagging.tag_column={self.tag_column} asks for'
      raise InputError(f'{where} has {width} columns, {fault}; training needs them.')
    return token_at, None


def read(
  spec: str, split: str, problems: Problems, *, conllu: bool, token_column: int, tag_column: int
) -> list[Sentence]:
  """The sentences of a split, in order; unusable ones go to `problems`. The last three arguments
  are a Layout. problems.counts['documents'] stays 0 if the data does not say where documents begin.
  InputError if the data is missing, empty or damaged, or if training data has no tags."""
  layout, sentences = Layout(conllu, token_column, tag_column), []
  for number, sentence in enumerate(_sentences(spec, split, problems, layout)):
    if not sentence.tokens:
      problems.note('sentences without a token (left out)', sentence.where)
      continue
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
    fault = f'column {token_column} of data.{split} counts the tokens: 1, 2, ..'
    words = 'name the column of the tokens (--config.tagging.token_column=1)'
    tags = f'of the tags (--config.tagging.tag_column=2), if it is not {tag_column}'
    raise InputError(f'{fault}; {words} and {tags}, where -1 is the last.')
  return _without_places(sentences, problems)


def _sentences(spec, split, problems, layout):
  for _, part in files.parts(spec):
    if part.startswith('tfds:'):
      yield from _tfds(part, split, problems, layout)
      continue
    for path in files.split_files(
      part, split, one=split != 'train', kind='.conllu' * layout.conllu
    ):
      read = _jsonl if files.suffix(path) == '.jsonl' else _file
      yield from read(path, split, problems, layout)


def is_chunk(label: str) -> bool:
  """Whether a tag is O, or one of B- I- M- E- S- and a type."""
  return bool(_CHUNK_TAG.fullmatch(label))


def as_bioes(tags: Iterable[str]) -> list[str]:
  """Writes I- for M- in tags, since libraries do not know M-."""
  return [f'I{tag[1:]}' if tag.startswith('M-') else tag for tag in tags]


def are_chunks(labels: Sequence[str], places: Mapping[str, str] | None = None) -> bool:
  """Whether tags mark chunks such as entities (O and B- I- M- E- S-), not classes of tokens.
  InputError if some mark chunks and others look like tags of another scheme; places: {tag: a place
  where it occurs}, for the error."""
  marked = [label for label in labels if label != 'O' and is_chunk(label)]
  others = [label for label in labels if not is_chunk(label)]
  if marked and others and 'O' in labels:
    where = f'{places[others[0]]}: ' if places else ''
    fault = f'tag {quoted(others[0])} is neither O nor begins with B- I- M- E- S-'
    advice = f'mend it, as {quoted(marked[0])} does (BILOU: write E- for L- and S- for U-)'
    raise InputError(f'{where}the {fault}; {advice}.')
  return bool(marked) and not others


def check_chunks(sentences: Sequence[Sentence], problems: Problems) -> None:
  """Counts the chunks, and warns of tags that break their scheme, which are kept. InputError if
  these are more than half as many as the chunks. The scheme is BIOES if there is an E- or S-.
  Otherwise it is IOB1 (Ramshaw and Marcus 1995: B- only between two adjacent chunks of a type) or
  IOB2 (each chunk begins with B-), whichever is broken by fewer tags."""
  breaks = {scheme: [] for scheme in SCHEMES}  # the places where a tag breaks each scheme
  marks, number = {tag[0] for sentence in sentences for tag in sentence.tags or () if tag}, 0
  for sentence in sentences:
    tags = ['O', *as_bioes(tag or 'O' for tag in sentence.tags or ()), 'O']
    for i, (before, tag) in enumerate(itertools.pairwise(tags), 1):
      mark, mark_before = tag[0], before[0]
      alike = mark_before != 'O' and tag[2:] == before[2:]
      inside = mark_before in 'BI' and mark in 'IE' and alike
      half = not inside and (mark_before in 'BI' or mark in 'IE')
      place = f'{sentence.where}, token {min(i, len(sentence.tokens))}'
      for scheme, is_broken in zip(
        SCHEMES, (mark == 'I' and not alike, mark == 'B' and not alike, half)
      ):
        breaks[scheme] += [place] * is_broken
      number += mark != 'O' and not inside
  schemes = ('BIOES',) if marks & {'E', 'S', 'M'} else ('IOB2', 'IOB1')
  scheme = min(schemes, key=lambda name: len(breaks[name]))
  name, places = 'BMES' if 'M' in marks else scheme, breaks[scheme]
  if number:
    problems.counts[f'chunks ({name})'] += number
  for place in places:
    problems.note(f'tags that break {name} (kept)', place)
  if places:
    fault = f'{len(places):,} tags break {name}, the scheme that their first letters mark'
    of_all = f'data.{problems.split} has {number:,} chunks'
    if 2 * len(places) > number:
      fix = 'write all tags in one of IOB1, IOB2, BIOES and BMES, or name their column'
      raise InputError(f'{places[0]}: {fault}, and {of_all}; {fix} (tagging.tag_column).')
    log.warning('%s: %s; they are kept (%s)', places[0], fault, of_all)


def _file(path, split, problems, layout):
  """Yields the sentences of a file; `id` is empty if the file does not name them."""
  name, counts, conllu = path.name, problems.counts, layout.conllu
  numbered = list(files.lines(path, counts))
  plain = [line for line in numbered if _kind(line) == 'sentence']
  if not plain:
    return
  number, first = next((line for line in plain if not line[1].startswith('#')), plain[-1])
  separator = '\t' if '\t' in first or conllu else ' +'
  cells_of = lambda line: [cell.strip(' ') for cell in re.split(separator, line.strip(' '))]
  width = len(CONLLU) if conllu else len(cells_of(first))
  token_at, tag_at = layout.places(f'{name}:{number}', width, split)
  document = 0  # its number
  for kind, group in itertools.groupby(numbered, key=_kind):
    block, named, rows, broken = list(group), '', [], False
    if kind == 'document':
      document += len(block)
      counts['documents'] += len(block)
    if kind != 'sentence':
      continue
    for number, line in block:
      cells, comment = cells_of(line), _COMMENT.match(line) if conllu else None
      if comment and comment[1] == 'sent_id':
        named = comment[2].strip()
      elif comment:
        counts['documents'] += 1
        document += 1
      elif conllu and line.startswith('#'):
        continue
      elif line.startswith('#') and not rows and len(cells) != width:
        problems.note('comments before sentences (left out)', f'{name}:{number}')
      elif fault := _fault(cells, width, (token_at, tag_at), conllu):
        problems.wrong(f'{name}:{number}', fault, 'sentences with a faulty line')
        broken = True
      elif conllu and not cells[0].isdecimal():
        counts['multiword ranges' if '-' in cells[0] else 'empty nodes'] += 1
      else:
        rows.append(cells)
    tags = None if tag_at is None else tuple(row[tag_at] for row in rows)
    if conllu and tags:
      tags = tuple(None if tag == '_' else tag for tag in tags)
      tags = tags if any(tags) else None
    if not broken:
      tokens = tuple(row[token_at] for row in rows)
      yield Sentence(f'{name}:{block[0][0]}', named, tokens, tags, (path, document))


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


def _jsonl(path, split, problems, layout):
  """Yields the sentences of a JSONL file."""
  for number, line in files.lines(path, problems.counts):
    where = f'{path.name}:{number}'
    if not line.strip():
      problems.counts['blank_lines'] += 1
      continue
    try:
      row = files.parse_json(line, where, problems.counts)
    except InputError as error:
      problems.wrong(where, str(error).removeprefix(f'{where} is '), 'lines without JSON')
      continue
    tokens: Any = row.get('tokens')
    tags = row.get('tags', row.get('ner_tags'))
    lists = [tokens] if tags is None and split != 'train' else [tokens, tags]
    strings = all(isinstance(x, list) and all(isinstance(y, str) and y for y in x) for x in lists)
    if not strings or len({len(x) for x in lists}) > 1:
      fault = 'it is not {"tokens": [...], "tags": [...]} with as many strings in both'
      problems.wrong(where, fault, 'records')
      continue
    yield Sentence(where, str(row.get('id', '')), tuple(tokens), tags and tuple(tags), ())


def _tfds(spec, split, problems, layout):
  features, rows = _open_tfds(spec, split)
  conllu, counts, there = layout.conllu, problems.counts, ', '.join(features)
  names = CONLLU if conllu else [name for name in COLUMNS if name in features]
  if not names:
    raise InputError(f'{spec} has no tokens, only {there}; is it tagged text?')
  at = layout.places(spec, len(names), split)
  chosen = [None if i is None else names[i] for i in at]
  if missing := [name for name in chosen if name and name not in features]:
    raise InputError(f'{spec} has no {missing[0]}, only {there}; see tagging.tag_column.')
  for where, row in rows:
    counts['records'] += 1
    texts = [[_text(x, features[name], counts) for x in row[name]] for name in chosen if name]
    tokens, tags = texts[0], texts[1] if texts[1:] else None
    if conllu and tags:
      words = [i for i, tag in enumerate(tags) if tag != '_']
      counts['multiword ranges and empty nodes'] += len(tags) - len(words)
      tokens, tags = ([side[i] for i in words] for side in (tokens, tags))
    if tags is not None and len(tags) != len(tokens):
      problems.wrong(where, f'{len(tokens)} tokens and {len(tags)} tags', 'records')
      continue
    yield Sentence(where, '', tuple(tokens), None if tags is None else tuple(tags), ())


def _open_tfds(spec, split):
  """Opens a TFDS split by the names it may have: (features, rows), as files.tfds_rows."""
  if split == 'train':
    return files.tfds_rows(spec, split)
  try:
    return files.tfds_rows(spec, 'dev')
  except InputError:
    return files.tfds_rows(spec, 'validation')


def _text(value, feature, counts):
  feature = getattr(feature, 'feature', feature)  # of a Sequence
  if hasattr(feature, 'int2str'):
    return feature.int2str(int(value))
  return utf8.decode(value, counts) if isinstance(value, bytes) else str(value)


def _without_places(sentences, problems):
  """Removes the places behind tokens, '科0 技1' -> '科 技', if the sentences have them: every token
  ends in a number that is nearly always 0 or one more than before."""
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
