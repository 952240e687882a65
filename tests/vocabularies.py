"""Vocabularies of other kinds than ours, trained here by the libraries of their makers, and folders
that hold them as they are released."""

import io
import json
import unicodedata

import sentencepiece
import tokenizers as library
from released import WORDS
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
  'the river crosses the old stone',
  ' The café near  the river!',
  '河流 crosses',
  '',
  'def f(x):\n        return 2,345 ',
  'cafe\u0301 ﬁre',
  "it's <mask> and </s> ",
  "a ``Quoted'' (CAFÉ) word",
]


def berts(**changes):
  """The content of an uncased BERT's tokenizer.json, with `changes`."""
  vocabulary = {word: i for i, word in enumerate(WORDS)}
  model = {'type': 'WordPiece', 'vocab': vocabulary, 'unk_token': '[UNK]'}
  model |= {'continuing_subword_prefix': '##', 'max_input_chars_per_word': 100}
  normalizer = {'type': 'BertNormalizer', 'lowercase': True, 'clean_text': True}
  normalizer |= {'handle_chinese_chars': True, 'strip_accents': None}
  whole = dict.fromkeys(['truncation', 'padding', 'post_processor', 'decoder'])
  whole |= {'version': '1.0', 'added_tokens': [], 'model': model, 'normalizer': normalizer}
  return whole | {'pre_tokenizer': {'type': 'BertPreTokenizer'}} | changes


def wordpiece(path):
  path.mkdir(exist_ok=True)
  (path / 'tokenizer.json').write_text(json.dumps(berts()))
  return library.Tokenizer.from_file(str(path / 'tokenizer.json'))


def mpnet(path, words=WORDS):
  """A vocab.txt with BERT's reserved pieces, too, which are read by the class of the tokenizer."""
  path.mkdir(exist_ok=True)
  words = ['<s>', '<pad>', '</s>', *words, '<mask>']
  (path / 'vocab.txt').write_text('\n'.join(words) + '\n')
  (path / 'tokenizer_config.json').write_text('{"tokenizer_class": "MPNetTokenizer"}')
  content = berts()
  content['model']['vocab'] = {word: i for i, word in enumerate(words)}
  return library.Tokenizer.from_str(json.dumps(content | {'added_tokens': []}))


def roberta(path):
  """Byte-level BPE in two files."""
  theirs = library.ByteLevelBPETokenizer()
  special = ['<s>', '<pad>', '</s>', '<unk>', '<mask>']
  theirs.train_from_iterator(TEXTS * 3, 320, 2, special_tokens=special)
  path.mkdir(exist_ok=True)
  theirs.save_model(str(path))
  return without_special_tokens(theirs)


def gpt2(path):
  """Byte-level BPE with one special token, which is the last."""
  theirs = library.ByteLevelBPETokenizer()
  theirs.train_from_iterator(TEXTS * 3, 319, 2)
  theirs.add_special_tokens(['<|endoftext|>'])
  path.mkdir(exist_ok=True)
  theirs.save(str(path / 'tokenizer.json'))
  return without_special_tokens(theirs)


def without_special_tokens(theirs):
  """What a text means in which special tokens are typed."""
  content = json.loads(theirs.to_str()) | {'added_tokens': []}
  return library.Tokenizer.from_str(json.dumps(content))


def modern(path):
  """A tokenizer as ModernBERT's (OLMo's, of the GPT-NeoX kind): NFC, byte-level BPE, runs of blanks
  and others added, special tokens in the middle of them."""
  out = library.Tokenizer(models.BPE())
  out.normalizer = normalizers.NFC()
  out.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  out.decoder = decoders.ByteLevel()
  special, letters = ['|||IP_ADDRESS|||', '<|padding|>'], pre_tokenizers.ByteLevel.alphabet()
  settings = dict(vocab_size=320, special_tokens=special, initial_alphabet=letters)
  out.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(**settings))
  out.add_tokens([library.AddedToken(' ' * n) for n in range(8, 1, -1)])
  out.add_special_tokens(['<|endoftext|>', '[UNK]', '[CLS]', '[SEP]', '[PAD]'])
  out.add_special_tokens([library.AddedToken('[MASK]', lstrip=True)])
  out.add_tokens([library.AddedToken('[unused0]', normalized=False)])
  path.mkdir(exist_ok=True)
  out.save(str(path / 'tokenizer.json'))
  return out


def gemma(path, lines=(), vocab_size=400, **settings):
  """A tokenizer as mmBERT's, which is Gemma's: blanks are marks, unknown characters are bytes, tags
  of HTML are words, <bos> and <eos> stand around texts."""
  special, tags = ['<pad>', '<eos>', '<bos>', '<unk>', '<mask>'], ['\n\n', '<s>', '</s>', '▁▁']
  bytes_of = [f'<0x{i:02X}>' for i in range(256)]
  model = models.BPE(unk_token='<unk>', fuse_unk=True, byte_fallback=True)
  out = library.Tokenizer(model)
  out.normalizer = normalizers.Replace(' ', '▁')
  out.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='never')  # Gemma was trained so
  steps = decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse()
  out.decoder = decoders.Sequence([*steps])
  first = [*special, *tags, *bytes_of]
  trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=first, show_progress=False)
  out.train_from_iterator(lines or [text.lower() for text in TEXTS] * 3, trainer)
  content = json.loads(out.to_str())
  flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
  added = [{'id': i, 'content': x, **flags, 'special': i < 5} for i, x in enumerate(special + tags)]
  added[special.index('<mask>')]['lstrip'] = True
  out = library.Tokenizer.from_str(json.dumps(content | {'added_tokens': added}))
  out.pre_tokenizer = pre_tokenizers.Split(' ', 'merged_with_previous')
  ends = [('<bos>', 2), ('<eos>', 1)]
  pair = '<bos> $A <eos> $B:1 <eos>:1'
  template = dict(single='<bos> $A <eos>', pair=pair, special_tokens=ends)
  out.post_processor = processors.TemplateProcessing(**template)
  path.mkdir(exist_ok=True)
  out.save(str(path / 'tokenizer.json'))
  names = dict(bos_token='<bos>', eos_token='<eos>', mask_token='<mask>', pad_token='<pad>')
  names |= dict(unk_token='<unk>', tokenizer_class='PreTrainedTokenizerFast') | settings
  (path / 'tokenizer_config.json').write_text(json.dumps(names))
  plain = json.loads(out.to_str()) | {'added_tokens': added[5:]}
  return library.Tokenizer.from_str(json.dumps(plain | {'post_processor': None}))


def gpt(path):
  """The tokenizer.json of a GPT: lower case, </w> at the ends of words."""
  out = library.Tokenizer(models.BPE(unk_token='<unk>', end_of_word_suffix='</w>'))
  out.normalizer = normalizers.BertNormalizer(lowercase=True)
  out.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  out.decoder = decoders.BPEDecoder(suffix='</w>')
  settings = dict(vocab_size=60, special_tokens=['<unk>'], end_of_word_suffix='</w>')
  out.train_from_iterator(TEXTS[:2] * 3, trainers.BpeTrainer(**settings))
  path.mkdir(exist_ok=True)
  out.save(str(path / 'tokenizer.json'))
  return out


def fairseq(path, kind, lines=(), vocab_size=90):
  """The sentencepiece.bpe.model of an XLM-R or CamemBERT, as fairseq has it: SentencePiece's own
  special pieces. Returned is the library's reader of it."""
  model = sentencepiece_model(lines, vocab_size=vocab_size)
  path.mkdir(exist_ok=True)
  (path / 'sentencepiece.bpe.model').write_bytes(model)
  (path / 'config.json').write_text(json.dumps({'model_type': kind}))
  return sentencepiece.SentencePieceProcessor(model_proto=model)


def t5(path, lines=(), vocab_size=90):
  """The spiece.model of a T5. Returned is the library's reader of it."""
  special = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
  model = sentencepiece_model(lines, vocab_size=vocab_size, **special)
  path.mkdir(exist_ok=True)
  (path / 'spiece.model').write_bytes(model)
  (path / 'config.json').write_text(json.dumps({'model_type': 't5'}))
  return sentencepiece.SentencePieceProcessor(model_proto=model)


SPECIAL = {  # {model_type: how its spiece.model has the special tokens}
  'albert': dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1),
  'fnet': dict(unk_id=0, bos_id=1, eos_id=2, pad_id=3),
}


def sentencepiece_model(lines=(), **settings):
  """The bytes of a SentencePiece model."""
  file = io.BytesIO()
  lines = lines or [text.lower() for text in TEXTS if text] * 20 + ['in 1984, 1984, 1984,'] * 9
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(lines),
    model_writer=file,
    minloglevel=2,
    hard_vocab_limit=False,
    **{'vocab_size': 90} | settings,
  )
  return file.getvalue()


def spiece(path, kind, **settings):
  """The spiece.model of an ALBERT or FNet. settings: of its tokenizer_config.json, if there is one.
  Returned is what Google's code makes of a text."""
  control, plain = ['[CLS]', '[SEP]', '[MASK]'], ['(', ')']
  symbols = dict(pad_piece='<pad>', control_symbols=control, user_defined_symbols=plain)
  model = sentencepiece_model(**symbols, **SPECIAL[kind])
  path.mkdir(exist_ok=True)
  (path / 'spiece.model').write_bytes(model)
  (path / 'config.json').write_text(json.dumps({'model_type': kind}))
  if settings:
    (path / 'tokenizer_config.json').write_text(json.dumps(settings))
  return sentencepiece.SentencePieceProcessor(model_proto=model)


def as_google(text, do_lower_case=True, keep_accents=False):
  """What ALBERT's code makes of a text before SentencePiece (github.com/google-research/albert,
  tokenization.py, preprocess_text)."""
  text = ' '.join(text.split()).replace('``', '"').replace("''", '"')
  if not keep_accents:
    text = unicodedata.normalize('NFKD', text)
    text = ''.join(c for c in text if not unicodedata.combining(c))
  return text.lower() if do_lower_case else text
