"""The reserved pieces of a vocabulary, and what stands around texts.

BERT reserves five pieces. GPT-2 has one, <|endoftext|>, which begins and ends a text; GPT has only
<unk>.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from tokenizers import processors

RESERVED = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
OTHER_NAMES = dict(zip(RESERVED, ('<pad>', '<unk>', '<s>', '</s>', '<mask>')))  # RoBERTa's
END_OF_TEXT = '<|endoftext|>'  # GPT-2's; stands for [CLS] and [SEP] where there are none
ROLES = dict(zip(('pad', 'unk', 'cls', 'sep', 'mask'), RESERVED))  # in tokenizer_config.json
SPELLINGS = {*RESERVED, *map(str.lower, RESERVED), *OTHER_NAMES.values(), END_OF_TEXT}


class Around(NamedTuple):
  """The ids that stand before, between and behind the texts of a pair."""

  before: tuple[int, ...]
  between: tuple[int, ...]
  behind: tuple[int, ...]


def reserved_id(pieces: list[str], name: str) -> int | None:
  """The id of a reserved piece in any of its spellings; None if it is missing."""
  for spelling in (name, name.lower(), OTHER_NAMES.get(name, name)):
    if spelling in pieces:
      return pieces.index(spelling)
  return None


def reserved_ids(pieces: list[str]) -> dict[str, int]:
  """{name: id} of the RESERVED pieces that are there; END_OF_TEXT stands for [CLS] and [SEP]."""
  end = reserved_id(pieces, END_OF_TEXT)
  ids = {}
  for name in RESERVED:
    i = reserved_id(pieces, name)
    if i is None and name in ('[CLS]', '[SEP]'):
      i = end
    if i is not None:
      ids[name] = i
  return ids


def usual_around(pieces: list[str], ids: dict[str, int]) -> Around:
  """[CLS] A [SEP] B [SEP], with two [SEP]s between the texts in RoBERTa's notation. ids: from
  reserved_ids. What a vocabulary lacks is left out."""
  cls, sep = ids.get('[CLS]'), ids.get('[SEP]')
  # GPT-2 gets the text alone, since its one special piece says that another text has ended.
  before = () if cls is None or pieces[cls] == END_OF_TEXT else (cls,)
  if sep is None or pieces[sep] == END_OF_TEXT:
    return Around(before, (), ())
  between = 2 if pieces[sep] == OTHER_NAMES['[SEP]'] else 1
  return Around(before, (sep,) * between, (sep,))


def template(pieces: Sequence[str], around: Around) -> dict[str, Any]:
  """The post_processor of a tokenizer.json that puts ids around texts."""
  before = [pieces[i] for i in around.before]
  between = [pieces[i] for i in around.between]
  behind = [pieces[i] for i in around.behind]
  in_second = [f'{piece}:1' for piece in behind]
  processor = processors.TemplateProcessing(
    single=[*before, '$A', *behind],
    pair=[*before, '$A', *between, '$B:1', *in_second],
    special_tokens=[(pieces[i], i) for ids in around for i in ids],
  )
  return json.loads(processor.__getstate__())
