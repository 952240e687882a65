"""Writes our vocabularies as files that Hugging Face's AutoTokenizer reads."""

import dataclasses
import json
import unicodedata

import tokenizers as library
from tokenizers import decoders, processors

from bert_jax import tokenizers
from bert_jax.convert.families.record import ReleasedFamily
from bert_jax.errors import InputError, quoted
from bert_jax.files import Path, write_json, write_whole
from bert_jax.tokenizers import Tokenizer

ROLES = dict(zip(('pad', 'unk', 'cls', 'sep', 'mask'), tokenizers.RESERVED))
INPUTS = ('input_ids', 'token_type_ids', 'attention_mask')
# {normalised É: the model card's sentence}.
CASINGS = {
  'e': 'lower-cases texts and strips accents',
  'é': 'lower-cases texts and keeps accents',
  'E': 'keeps capitals and strips accents',
  'É': 'keeps capitals and accents',
}
AS_SENTENCEPIECE = (
  'The vocabulary is a SentencePiece model, `spm.model`. AutoTokenizer has no class that reads it '
  'with these special tokens, so it is not set up: encode with the sentencepiece library, and put '
  '[CLS] before and [SEP] after each text.'
)
# Lines by which a written file is compared with its tokenizer: case, accents, blanks, numbers,
# punctuation and scripts without blanks.
SAMPLE = (
  "The Café's 2 doors aren't  open:\tcome at 10.30, please!",
  'ÉLAN, naïve Straße; Жёлтый дом — λόγος',
  '河流 and 東京タワー123',
)


def write(out: Path, tokenizer: Tokenizer, family: ReleasedFamily, longest: int, cuts: str) -> str:
  """Writes the files for a model that reads `longest` tokens of a text and loses the rest at the
  `right` or the `left`; returns a note for the model card, or ''."""
  tokenizer.save(out)
  if isinstance(tokenizer, tokenizers.SentencePiece):
    # Without this, AutoTokenizer makes one without pieces, to which every word is unknown.
    settings = {'tokenizer_class': 'spm.model (see README.md)'}
    write_whole(out / 'tokenizer_config.json', json.dumps(settings) + '\n')
    return AS_SENTENCEPIECE
  continues, ids = family.fields.get('causal', False), _special(tokenizer)
  if continues:
    ids |= {'bos': tokenizer.cls_id, 'eos': tokenizer.sep_id, 'pad': tokenizer.pad_id}
  special = {f'{role}_token': tokenizer.pieces[i] for role, i in ids.items()}
  inputs = [name for name in INPUTS if name != family.not_given]
  settings = special | {'model_max_length': longest, 'model_input_names': inputs}
  settings['tokenizer_class'] = 'PreTrainedTokenizerFast'
  if cuts != 'right':
    settings['truncation_side'] = cuts
  if isinstance(tokenizer, tokenizers.WordPiece) and not continues:
    settings['tokenizer_class'] = family.tokenizer_class
    settings |= dataclasses.asdict(tokenizer.splitting)
  write_json(out / 'tokenizer_config.json', settings)
  write_json(out / 'special_tokens_map.json', special)
  text = fast(tokenizer, continues).to_str(pretty=True)
  if isinstance(tokenizer, tokenizers.RustTokenizer):  # otherwise as it was read, letter for letter
    content = tokenizer.released | {'post_processor': json.loads(text)['post_processor']}
    text = json.dumps(content, indent=2, ensure_ascii=False) + '\n'
  write_whole(out / 'tokenizer.json', text)
  _check(out / 'tokenizer.json', tokenizer)
  return ''


def _check(path, tokenizer):
  """InputError unless the library reads the file as a tokenizer that gives the same ids as ours."""
  read = library.Tokenizer.from_file(str(path))
  read.no_padding()
  read.no_truncation()
  for text, ids in zip(SAMPLE, tokenizer.ids_batch(SAMPLE)):
    if read.encode(text, add_special_tokens=False).ids != ids.tolist():
      raise InputError(f'{path} gives other ids for {quoted(text)} than its vocabulary; report it.')


def casing(tokenizer: Tokenizer) -> str:
  """A sentence on what a vocabulary does to capitals and accents; '' if that is unknown."""
  if isinstance(tokenizer, tokenizers.SentencePiece):
    return ''
  # pyrefly: ignore[missing-attribute]: all but a SentencePiece have it
  normalizer = tokenizer.rust.normalizer
  text = normalizer.normalize_str('É') if normalizer else 'É'
  done = CASINGS.get(unicodedata.normalize('NFC', text))
  return f'Its vocabulary {done}.' if done else ''


def _special(tokenizer):
  """{role: id} of the reserved pieces that a vocabulary has under any of their names."""
  ends = tokenizer.reserved.get('[CLS]') == tokenizer.sep_id  # GPT-2's, neither [CLS] nor [SEP]
  roles = {role: name for role, name in ROLES.items() if not (ends and role in ('cls', 'sep'))}
  return {role: tokenizer.reserved[x] for role, x in roles.items() if x in tokenizer.reserved}


def fast(tokenizer: Tokenizer, continues: bool = False) -> library.Tokenizer:
  """Converts a tokenizer to one of the Rust library that adds and knows the special tokens.
  continues: for texts to be continued; only [CLS] goes before them, unless it also ends texts."""
  # pyrefly: ignore[missing-attribute]: all but a SentencePiece have it
  out = library.Tokenizer.from_str(tokenizer.rust.to_str())
  ends = {tokenizer.pieces[tokenizer.cls_id]: tokenizer.cls_id} if tokenizer.ends[0] else {}
  cls, sep = ''.join(f'{piece}:0 ' for piece in ends), tokenizer.pieces[tokenizer.sep_id]
  single = f'{cls}$A:0 {sep}:0'
  pair = f'{cls}$A:0 {f"{sep}:0 " * tokenizer.between}$B:1 {sep}:1'
  if continues:
    single = ''.join(f'{tokenizer.pieces[i]}:0 ' for i in tokenizer.begin_ids) + '$A:0'
    pair = f'{single} $B:1'
  ends = list((ends | {sep: tokenizer.sep_id}).items())
  template = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ends)
  is_own = isinstance(tokenizer, (tokenizers.WordPiece, tokenizers.RustTokenizer))
  out.post_processor = template if is_own else processors.Sequence([out.post_processor, template])
  if isinstance(tokenizer, tokenizers.RustTokenizer):
    return out  # its file says which tokens are special
  if isinstance(tokenizer, tokenizers.WordPiece):
    out.decoder = decoders.WordPiece(prefix='##')
  masks = ['[MASK]'] if isinstance(tokenizer, tokenizers.ByteLevel) else []
  names = {tokenizer.pieces[i]: name for name, i in tokenizer.reserved.items()}
  for piece, name in names.items():  # a byte-level mask takes the blank before it
    out.add_special_tokens([library.AddedToken(piece, lstrip=name in masks, special=True)])
  return out
