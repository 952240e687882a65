"""Our vocabularies as files that Hugging Face's AutoTokenizer reads."""

import json

import tokenizers as library
from tokenizers import decoders, processors

from bert_jax import tokenizers
from bert_jax.whole_files import write_whole

ROLES = ('pad', 'unk', 'cls', 'sep', 'mask')
INPUTS = ('input_ids', 'token_type_ids', 'attention_mask')
# {family: the class of its WordPiece; what its models are not given}, if not as a BERT's.
CLASSES = {'distilbert': 'DistilBertTokenizer'}
WITHOUT = {'distilbert': 'token_type_ids', 'modernbert': 'token_type_ids', 'fnet': 'attention_mask'}


def write(out, tokenizer, family, longest):
  """Writes the files for a model of `longest` tokens; returns what its reader must see, or ''."""
  tokenizer.save(out)
  if isinstance(tokenizer, tokenizers.SentencePiece):
    # Without this, AutoTokenizer makes one of no pieces, to which every word is unknown.
    settings = {'tokenizer_class': 'spm.model (see README.md)'}
    write_whole(out / 'tokenizer_config.json', json.dumps(settings) + '\n')
    return (
      'The vocabulary is a SentencePiece model, `spm.model`. AutoTokenizer has no class that reads '
      'it with these special tokens, so it is not set up: encode with the sentencepiece library, '
      'and put [CLS] before and [SEP] after each text.'
    )
  special = {f'{role}_token': tokenizer.pieces[getattr(tokenizer, f'{role}_id')] for role in ROLES}
  inputs = [name for name in INPUTS if name != WITHOUT.get(family)]
  settings = special | {'model_max_length': longest, 'model_input_names': inputs}
  settings['tokenizer_class'] = 'PreTrainedTokenizerFast'
  if isinstance(tokenizer, tokenizers.WordPiece):
    settings['tokenizer_class'] = CLASSES.get(family, 'BertTokenizer')
    for name in ('do_lower_case', 'tokenize_chinese_chars', 'strip_accents'):
      settings[name] = getattr(tokenizer, name)
  for name, content in (('tokenizer_config.json', settings), ('special_tokens_map.json', special)):
    write_whole(out / name, json.dumps(content, indent=2) + '\n')
  text = fast(tokenizer).to_str(pretty=True)
  if isinstance(tokenizer, tokenizers.RustTokenizer):  # otherwise as it was read, letter for letter
    content = tokenizer.content | {'post_processor': json.loads(text)['post_processor']}
    text = json.dumps(content, indent=2, ensure_ascii=False) + '\n'
  write_whole(out / 'tokenizer.json', text)
  return ''


def fast(tokenizer):
  """A tokenizer as one of the Rust library, which adds and knows the special tokens."""
  out = library.Tokenizer.from_str(tokenizer.rust.to_str())
  cls, sep = (tokenizer.pieces[i] for i in (tokenizer.cls_id, tokenizer.sep_id))
  template = processors.TemplateProcessing(
    single=f'{cls}:0 $A:0 {sep}:0',
    pair=f'{cls}:0 $A:0 {f"{sep}:0 " * tokenizer.between}$B:1 {sep}:1',
    special_tokens=[(cls, tokenizer.cls_id), (sep, tokenizer.sep_id)],
  )
  if isinstance(tokenizer, tokenizers.WordPiece):
    out.decoder = decoders.WordPiece(prefix='##')
    out.post_processor = template
  elif isinstance(tokenizer, tokenizers.RustTokenizer):
    out.post_processor = template
    return out  # its file says which tokens are special
  else:
    out.post_processor = processors.Sequence([out.post_processor, template])
  lstrip = isinstance(tokenizer, tokenizers.ByteLevel)  # the blank before a mask is part of it
  mask = library.AddedToken(tokenizer.pieces[tokenizer.mask_id], lstrip=lstrip, special=True)
  out.add_special_tokens([tokenizer.pieces[getattr(tokenizer, f'{r}_id')] for r in ROLES[:-1]])
  out.add_special_tokens([mask])
  return out
