"""The files by which Hugging Face's AutoTokenizer reads a vocabulary of ours."""

import json

import tokenizers as library
from tokenizers import decoders, models, pre_tokenizers, processors

from bert_jax.config import write_whole
from bert_jax.data import tokenizers

CLASSES = {'bert': 'BertTokenizer', 'distilbert': 'DistilBertTokenizer'}
INPUTS = {'bert': ['input_ids', 'token_type_ids', 'attention_mask'],
          'distilbert': ['input_ids', 'attention_mask']}  # fmt: skip
SENTENCEPIECE = (
  'The vocabulary is a SentencePiece model, `spm.model`. AutoTokenizer has no class that reads it '
  'with these special tokens, so it is not set up: encode with the sentencepiece library, and put '
  '[CLS] before and [SEP] after each text.'
)


def write(out, tokenizer, family, longest):
  """Writes the files into a folder; returns what a reader must know of them, or ''."""
  tokenizer.save(out)
  if not isinstance(tokenizer, tokenizers.WordPiece):
    return SENTENCEPIECE
  roles = dict(zip(('pad', 'unk', 'cls', 'sep', 'mask'), tokenizers.RESERVED))
  special = {f'{role}_token': token for role, token in roles.items()}
  settings = special | {
    'tokenizer_class': CLASSES[family],
    'do_lower_case': tokenizer.do_lower_case,
    'tokenize_chinese_chars': tokenizer.tokenize_chinese_chars,
    'strip_accents': None,
    'model_max_length': longest,
    'model_input_names': INPUTS[family],
  }
  for name, content in (
    ('tokenizer_config.json', settings),
    ('special_tokens_map.json', special),
  ):
    write_whole(out / name, json.dumps(content, indent=2) + '\n')
  write_whole(out / 'tokenizer.json', fast(tokenizer).to_str(pretty=True))
  return ''


def fast(tokenizer):
  """A WordPiece of ours as the Rust library's, with [CLS] A [SEP] B [SEP] and special tokens."""
  vocabulary = {piece: i for i, piece in enumerate(tokenizer.pieces)}
  out = library.Tokenizer(
    models.WordPiece(
      vocabulary, unk_token='[UNK]', max_input_chars_per_word=tokenizers.MAX_WORD_CHARACTERS
    )
  )
  out.normalizer = tokenizers.normalizer(tokenizer.do_lower_case, tokenizer.tokenize_chinese_chars)
  out.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  out.post_processor = processors.TemplateProcessing(
    single='[CLS]:0 $A:0 [SEP]:0',
    pair='[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1',
    special_tokens=[('[CLS]', tokenizer.cls_id), ('[SEP]', tokenizer.sep_id)],
  )
  out.decoder = decoders.WordPiece(prefix='##')
  out.add_special_tokens(list(tokenizers.RESERVED))
  return out
