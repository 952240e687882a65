"""Tokenizers that are neither BERT's nor RoBERTa's: ModernBERT's, ALBERT's, FNet's, and others."""

import io
import json
import unicodedata

import numpy as np
import pytest
import sentencepiece
import tokenizers as library
from released import WORDS, made
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from bert_jax import tokenizers
from bert_jax.config import InputError
from bert_jax.tools import convert

TEXTS = [
  'the river crosses the old stone',
  ' The café near  the river!',
  '河流 crosses',
  '',
  'def f(x):\n        return 2,345 ',
  'cafe\u0301 ﬁre',
]


def modern(path):
  """A tokenizer as ModernBERT's (OLMo's, of the GPT-NeoX kind), trained here: NFC, byte-level BPE,
  runs of blanks and others added, special tokens in the middle of them."""
  out = library.Tokenizer(models.BPE())
  out.normalizer = normalizers.NFC()
  out.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  out.decoder = decoders.ByteLevel()
  out.train_from_iterator(
    TEXTS * 3,
    trainers.BpeTrainer(
      vocab_size=320,
      special_tokens=['|||IP_ADDRESS|||', '<|padding|>'],
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ),
  )
  out.add_tokens([library.AddedToken(' ' * n) for n in range(8, 1, -1)])
  out.add_special_tokens(['<|endoftext|>', '[UNK]', '[CLS]', '[SEP]', '[PAD]'])
  out.add_special_tokens([library.AddedToken('[MASK]', lstrip=True)])
  out.add_tokens([library.AddedToken('[unused0]', normalized=False)])
  path.mkdir(exist_ok=True)
  out.save(str(path / 'tokenizer.json'))
  return out


SPECIAL = {  # {model_type: how its spiece.model has the special tokens}
  'albert': dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1),
  'fnet': dict(unk_id=0, bos_id=1, eos_id=2, pad_id=3),
}


def spiece(path, kind, **settings):
  """A folder with the spiece.model of an ALBERT or FNet, trained here."""
  file = io.BytesIO()
  lines = [text.lower() for text in TEXTS if text] * 20 + ['in 1984, 1984, 1984,'] * 9
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(lines),
    model_writer=file,
    vocab_size=90,
    hard_vocab_limit=False,
    pad_piece='<pad>',
    control_symbols=['[CLS]', '[SEP]', '[MASK]'],
    minloglevel=2,
    user_defined_symbols=['(', ')'],
    **SPECIAL[kind],
  )
  path.mkdir(exist_ok=True)
  (path / 'spiece.model').write_bytes(file.getvalue())
  (path / 'config.json').write_text(json.dumps({'model_type': kind}))
  if settings:
    (path / 'tokenizer_config.json').write_text(json.dumps(settings))
  return path


def test_the_blank_that_every_text_gets_is_not_shown(tmp_path):
  modern(tmp_path)
  path = tmp_path / 'tokenizer.json'
  content = json.loads(path.read_text())
  content['pre_tokenizer']['add_prefix_space'] = True
  path.write_text(json.dumps(content))
  ours = tokenizers.load_folder(tmp_path)
  for text, shown in (('the river', 'the river'), (' crosses it ', 'crosses it ')):
    assert ours.decode(ours.ids_batch([text])[0]) == shown


def test_a_modern_tokenizer_is_read_as_it_is(tmp_path):
  theirs, ours = modern(tmp_path), tokenizers.load_folder(tmp_path)
  special = [theirs.token_to_id(f'[{x}]') for x in ('PAD', 'UNK', 'CLS', 'SEP', 'MASK')]
  assert [ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id] == special
  assert ours.vocab_size == theirs.get_vocab_size()
  for text, ids, encoding in zip(TEXTS, ours.ids_batch(TEXTS), ours.encode_batch(TEXTS)):
    assert ids.tolist() == theirs.encode(text).ids == encoding.ids.tolist()
    assert ours.decode(ids) == unicodedata.normalize('NFC', text)
    spans = [text[start:end] for start, end in encoding.offsets]
    assert all(span == span.lstrip() for span in spans)
    if '\u0301' not in text:  # an accent of its own the library counts to no piece
      assert ''.join(spans) == ''.join(text.split())
  blanks = theirs.token_to_id(' ' * 8)
  (code,) = ours.encode_batch([TEXTS[4]])
  at = code.ids.tolist().index(blanks)
  assert code.word_starts[at] and code.word_starts[at + 1]
  (words,) = ours.encode_batch(['the stones crossed'])
  assert words.word_starts.sum() == 3 < len(words.ids)


def gpt(path):
  """vocab.json and merges.txt of a GPT, trained here: lower case, </w> at the ends of words."""
  out = library.Tokenizer(models.BPE(unk_token='<unk>', end_of_word_suffix='</w>'))
  out.normalizer = normalizers.BertNormalizer(lowercase=True)
  out.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  out.decoder = decoders.BPEDecoder(suffix='</w>')
  out.train_from_iterator(
    TEXTS[:2] * 3,
    trainers.BpeTrainer(vocab_size=60, special_tokens=['<unk>'], end_of_word_suffix='</w>'),
  )
  path.mkdir(exist_ok=True)
  out.model.save(str(path))
  return out


def test_a_gpt_is_read_as_it_is(tmp_path):
  theirs, ours = gpt(tmp_path), tokenizers.load_folder(tmp_path)
  assert ours.pieces == [theirs.id_to_token(i) for i in range(theirs.get_vocab_size())]
  assert (ours.unk_id, ours.special_ids) == (0, (0,))
  for text in [*TEXTS, 'The <unk> RIVERS']:
    (encoding,) = ours.encode_batch([text])
    plain = text.replace('<unk>', '< unk >')  # typed, it is plain text
    assert encoding.ids.tolist() == theirs.encode(plain).ids == ours.ids_batch([text])[0].tolist()
  (encoding,) = ours.encode_batch(['the rivers near'])
  spans = ['the rivers near'[a:b] for a, b in encoding.offsets[encoding.word_starts]]
  assert [span[0] for span in spans] == ['t', 'r', 'n'] and len(encoding.ids) > 3
  assert ours.decode(encoding.ids) == 'the rivers near'
  with pytest.raises(InputError, match=r'has no \[SEP\] \(nor </s>\), and what is asked'):
    assert ours.sep_id
  ours.save(tmp_path / 'W')  # as tokenizer.json
  assert tokenizers.load_folder(tmp_path / 'W').fingerprint == ours.fingerprint


@pytest.mark.slow
def test_their_class_of_a_gpt_gives_the_same_ids(tmp_path):
  transformers = pytest.importorskip('transformers')
  gpt(tmp_path)
  theirs = transformers.OpenAIGPTTokenizer.from_pretrained(tmp_path)
  ours = tokenizers.load_folder(tmp_path)
  for text, ids in zip(TEXTS, ours.ids_batch(TEXTS)):
    assert theirs(text)['input_ids'] == ids.tolist()


@pytest.mark.parametrize('kind', ['modern', 'albert', 'fnet'])
def test_special_tokens_that_are_typed_are_plain(tmp_path, kind):
  modern(tmp_path) if kind == 'modern' else spiece(tmp_path, kind)
  ours = tokenizers.load_folder(tmp_path)
  typed = ' '.join(['[CLS] a [SEP][MASK] <pad>[PAD] <s> </s>', ours.pieces[ours.pad_id]])
  (ids,) = ours.ids_batch([typed])
  found = set(ours.special_ids) - {ours.unk_id}
  assert len(ids) > 20 and not found & set(ids.tolist())
  masked = ours.encode_with_masks('the [MASK] crosses')
  first, last = ours.ids_batch(['the', ' crosses'])
  assert masked.tolist() == [*first, ours.mask_id, *last]
  assert ours.decode(masked) == 'the [MASK] crosses'


def as_google(text, lower=True, accents=False):
  """What ALBERT's code makes of a text before SentencePiece (github.com/google-research/albert,
  tokenization.py, preprocess_text)."""
  text = ' '.join(text.split()).replace('``', '"').replace("''", '"')
  if not accents:
    text = unicodedata.normalize('NFKD', text)
    text = ''.join(c for c in text if not unicodedata.combining(c))
  return text.lower() if lower else text


@pytest.mark.parametrize('settings', [{}, {'do_lower_case': False, 'keep_accents': True}], ids=str)
@pytest.mark.parametrize('kind', SPECIAL)
def test_a_spiece_model_is_read_as_google_reads_it(tmp_path, kind, settings):
  ours = tokenizers.load_folder(
    spiece(
      tmp_path, kind, **settings, **({'tokenizer_class': 'AlbertTokenizer'} if settings else {})
    )
  )
  theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / 'spiece.model'))
  names = ['<pad>', '<unk>', '[CLS]', '[SEP]', '[MASK]']
  special = [ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id]
  assert [theirs.id_to_piece(i) for i in special] == names
  for text in [*TEXTS, "a ``Quoted'' (CAFÉ) word"]:
    plain = as_google(text, not settings, bool(settings))
    (encoding,) = ours.encode_batch([text])
    assert encoding.ids.tolist() == theirs.encode(plain) == ours.ids_batch([text])[0].tolist()
    assert encoding.word_starts.sum() == len(plain.split())
    spans = [text[start:end] for start, end in encoding.offsets]
    assert all(span == span.strip() for span in spans)


def test_a_number_and_the_comma_behind_it_are_two_pieces(tmp_path):
  """As in ALBERT's code, whatever the vocabulary has."""
  ours = tokenizers.load_folder(spiece(tmp_path, 'albert'))
  scores = dict(ours.content['model']['vocab'])
  theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / 'spiece.model'))
  ending = [p for p in scores if len(p) > 1 and p[-1] == ',' and p[-2].isdigit()]
  assert ending
  for i, (piece, score) in enumerate(scores.items()):
    assert score == pytest.approx(theirs.get_score(i) - 100 * (piece in ending))


@pytest.mark.parametrize(
  'change, sentence',
  [
    (lambda folder: (folder / 'config.json').unlink(), 'is not known to be of an ALBERT or FNet'),
    (
      lambda folder: (folder / 'config.json').write_text('{"model_type": "xlnet"}'),
      'is not known to be of an ALBERT or FNet',
    ),
    (
      lambda folder: (folder / 'spiece.model').write_bytes(b'not a model'),
      'is not a SentencePiece model; is it damaged',
    ),
  ],
)
def test_another_spiece_model_is_refused(tmp_path, change, sentence):
  change(spiece(tmp_path, 'albert'))
  with pytest.raises(InputError, match=sentence):
    tokenizers.load_folder(tmp_path)


def test_a_bpe_is_no_spiece_model(tmp_path):
  file = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([text for text in TEXTS if text] * 20),
    model_writer=file,
    vocab_size=50,
    hard_vocab_limit=False,
    model_type='bpe',
    minloglevel=2,
  )
  (tmp_path / 'spiece.model').write_bytes(file.getvalue())
  (tmp_path / 'config.json').write_text(json.dumps({'model_type': 'albert'}))
  with pytest.raises(InputError, match='is no unigram model, as those of AlbertTokenizer are'):
    tokenizers.load_folder(tmp_path)


@pytest.mark.parametrize(
  'change',
  [
    {'normalizer': {'type': 'Lowercase'}},
    {'normalizer': {'type': 'BertNormalizer', 'clean_text': False, 'lowercase': True}},
    {'pre_tokenizer': {'type': 'Whitespace'}},
    {'added_tokens': [{'id': len(WORDS), 'content': 'New York'}]},
    {
      'added_tokens': [
        {'id': len(WORDS), 'content': '<new>', 'special': True},
        {'id': len(WORDS) + 1, 'content': 'New York'},
      ]
    },
  ],
  ids=str,
)
def test_a_wordpiece_that_treats_text_otherwise(tmp_path, change):
  token = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
  content = {
    'version': '1.0',
    'truncation': None,
    'padding': None,
    'post_processor': None,
    'decoder': None,
    'added_tokens': [],
    'model': {
      'type': 'WordPiece',
      'vocab': {word: i for i, word in enumerate(WORDS)},
      'unk_token': '[UNK]',
      'continuing_subword_prefix': '##',
      'max_input_chars_per_word': 100,
    },
    'pre_tokenizer': {'type': 'BertPreTokenizer'},
    'normalizer': {
      'type': 'BertNormalizer',
      'lowercase': True,
      'clean_text': True,
      'handle_chinese_chars': True,
      'strip_accents': None,
    },
  } | change
  content['normalizer'] = {'handle_chinese_chars': True, 'strip_accents': None} | content[
    'normalizer'
  ]
  content['added_tokens'] = [token | x for x in content['added_tokens']]
  (tmp_path / 'tokenizer.json').write_text(json.dumps(content))
  theirs = library.Tokenizer.from_file(str(tmp_path / 'tokenizer.json'))
  ours = tokenizers.load_folder(tmp_path)
  assert isinstance(ours, tokenizers.RustTokenizer)
  assert ours.pieces == [theirs.id_to_token(i) for i in range(theirs.get_vocab_size())]
  for text in ('the OLD river crosses New York 12', 'cafés déjà-vu'):
    assert ours.ids_batch([text])[0].tolist() == theirs.encode(text).ids
  (encoding,) = ours.encode_batch(['the rivers'])
  assert encoding.word_starts.tolist() == [True, True, False]


def test_a_split_of_unknown_kind_is_refused(tmp_path):
  modern(tmp_path)
  content = json.loads((tmp_path / 'tokenizer.json').read_text())
  content['pre_tokenizer'] = {'type': 'Sequence', 'pretokenizers': [{'type': 'Whitespace'}]}
  (tmp_path / 'tokenizer.json').write_text(json.dumps(content))
  with pytest.raises(InputError, match='is a BPE split by Whitespace; read are WordPiece and what'):
    tokenizers.load_folder(tmp_path)


@pytest.mark.parametrize('kind', ['modern', 'albert'])
def test_what_is_saved_and_exported_is_the_same_vocabulary(tmp_path, kind):
  folder = tmp_path / 'theirs'
  modern(folder) if kind == 'modern' else spiece(folder, kind)
  ours = tokenizers.load_folder(folder)
  ours.save(tmp_path / 'W')
  assert tokenizers.load_folder(tmp_path / 'W').fingerprint == ours.fingerprint
  found = made('masked-lm', vocab_size=ours.vocab_size)._replace(tokenizer=ours)
  convert.export_run(tmp_path / 'hf', found, {})
  again = library.Tokenizer.from_file(str(tmp_path / 'hf' / 'tokenizer.json'))
  (ids,) = ours.ids_batch([TEXTS[0]])
  assert again.encode(TEXTS[0]).ids == [ours.cls_id, *ids, ours.sep_id]
  assert tokenizers.load_folder(tmp_path / 'hf').fingerprint == ours.fingerprint
  content = (
    json.loads((folder / 'tokenizer.json').read_text()) if kind == 'modern' else ours.content
  )
  content['added_tokens'][-1]['normalized'] ^= True
  (tmp_path / 'W' / 'tokenizer.json').write_text(json.dumps(content))
  assert tokenizers.load_folder(tmp_path / 'W').fingerprint != ours.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['modern', 'albert', 'fnet'])
def test_their_tokenizer_reads_what_is_exported(tmp_path, kind):
  transformers = pytest.importorskip('transformers')
  folder = tmp_path / 'theirs'
  modern(folder) if kind == 'modern' else spiece(folder, kind)
  ours = tokenizers.load_folder(folder)
  found = made('masked-lm', vocab_size=ours.vocab_size)._replace(tokenizer=ours)
  convert.export_run(tmp_path / 'hf', found, {})
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'hf')
  assert (theirs.mask_token_id, theirs.pad_token_id) == (ours.mask_id, ours.pad_id)
  for text in TEXTS:
    expected = [ours.cls_id, *ours.ids_batch([text])[0], ours.sep_id]
    np.testing.assert_array_equal(theirs(text)['input_ids'], expected)
  masked = theirs('the [MASK] crosses', add_special_tokens=False)['input_ids']
  assert masked == ours.encode_with_masks('the [MASK] crosses').tolist()
