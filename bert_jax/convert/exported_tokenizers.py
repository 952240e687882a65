"""Writes our vocabularies as files that Hugging Face's AutoTokenizer reads."""

import dataclasses
import json

import tokenizers as library

from bert_jax import tokenizers
from bert_jax.convert.families.record import ReleasedFamily
from bert_jax.files import Path, write_json, write_whole
from bert_jax.tokenizers import Tokenizer

ROLES = dict(zip(('pad', 'unk', 'cls', 'sep', 'mask'), tokenizers.RESERVED))
INPUTS = ('input_ids', 'token_type_ids', 'attention_mask')


def write(
  out: Path,
  tokenizer: Tokenizer,
  family: ReleasedFamily,
  longest: int,
  cuts: str,
  makes_vectors: bool = False,
) -> None:
  """Writes the files for a model that reads `longest` tokens of a text and loses the rest at the
  `right` or the `left`. makes_vectors: of texts, not of what they are to be continued from."""
  tokenizer.save(out)
  continues, ids = family.fields.get('causal', False), _special(tokenizer)
  if continues:
    ids |= {'bos': tokenizer.cls_id, 'eos': tokenizer.sep_id, 'pad': tokenizer.pad_id}
  special = {f'{role}_token': tokenizer.pieces[i] for role, i in ids.items()}
  inputs = [name for name in INPUTS if name != family.not_given]
  settings = special | {'model_max_length': longest, 'model_input_names': inputs}
  settings['tokenizer_class'] = 'PreTrainedTokenizerFast'
  if cuts != 'right':
    settings['truncation_side'] = cuts
  if tokenizer.splitting and not continues:
    settings['tokenizer_class'] = family.tokenizer_class
    settings |= dataclasses.asdict(tokenizer.splitting)
  write_json(out / 'tokenizer_config.json', settings)
  write_json(out / 'special_tokens_map.json', special)
  around = tokenizer.around if makes_vectors else around_of(tokenizer, continues)
  content = tokenizer.released(around)
  text = json.dumps(content, indent=2, ensure_ascii=False) + '\n'
  write_whole(out / 'tokenizer.json', text)


def _special(tokenizer):
  """{role: id} of the reserved pieces that a vocabulary has under any of their names."""
  ends = tokenizer.reserved.get('[CLS]') == tokenizer.sep_id  # GPT-2's, neither [CLS] nor [SEP]
  roles = {role: name for role, name in ROLES.items() if not (ends and role in ('cls', 'sep'))}
  return {role: tokenizer.reserved[x] for role, x in roles.items() if x in tokenizer.reserved}


def fast(tokenizer: Tokenizer) -> library.Tokenizer:
  """The library's tokenizer that is exported, which adds and knows the special tokens."""
  return library.Tokenizer.from_str(json.dumps(tokenizer.released(around_of(tokenizer))))


def around_of(tokenizer: Tokenizer, continues: bool = False) -> tokenizers.Around:
  """What stands around the texts of an exported model. continues: texts are continued; only [CLS]
  goes before them, unless it also ends texts."""
  if continues:
    return tokenizers.Around(tokenizer.begin_ids, (), ())
  cls = (tokenizer.cls_id,) if '[CLS]' in tokenizer.reserved else ()
  sep = (tokenizer.sep_id,)
  return tokenizers.Around(cls, sep * tokenizer.between, sep)
