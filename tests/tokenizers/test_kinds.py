"""Every kind of tokenizer: the ids of its maker's library, offsets, words, masks, files."""

import json
import re
import unicodedata

import numpy as np
import pytest
import tokenizers as library
import vocabularies
from refusal import refused
from released import WORDS, made
from vocabularies import TEXTS, as_google, berts, fairseq, gemma, gpt, gpt2, modern, roberta, spiece

from bert_jax import config as c
from bert_jax import tokenizers
from bert_jax.predict import Model
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.tagging import conll, task
from bert_jax.tokenizers import run_tokenizer
from bert_jax.tools import convert
from bert_jax.workdir.trained import load

SHIFT = {'xlm-roberta': 1, 'camembert': 4}  # {kind: how far fairseq's ids are from the model's}
PRECOMPILED = 'albert', 'fnet', 'kept', *SHIFT  # whose normalizer may part or join characters
KEPT = dict(do_lower_case=False, keep_accents=True, tokenizer_class='AlbertTokenizer')
XLM = ['<pad>', '<unk>', '<s>', '</s>', '<mask>']
PIECES = ['<pad>', '<unk>', *WORDS[2:5]]
# {kind: (a folder -> the library's tokenizer, our class, [CLS] [PAD] [SEP] [UNK] [MASK])}
KINDS = {
  'wordpiece': (vocabularies.wordpiece, tokenizers.WordPiece, WORDS[:5]),
  'roberta': (roberta, tokenizers.ByteLevel, ['<pad>', '<unk>', '<s>', '</s>', '<mask>']),
  'gpt2': (gpt2, tokenizers.ByteLevel, ['<|endoftext|>'] * 4),
  'gpt': (gpt, tokenizers.RustTokenizer, ['<unk>'] * 2),
  'modern': (modern, tokenizers.RustTokenizer, WORDS[:5]),
  'albert': (lambda path: spiece(path, 'albert'), tokenizers.RustTokenizer, PIECES),
  'fnet': (lambda path: spiece(path, 'fnet'), tokenizers.RustTokenizer, PIECES),
  'kept': (lambda path: spiece(path, 'fnet', **KEPT), tokenizers.RustTokenizer, None),
  'gemma': (gemma, tokenizers.RustTokenizer, ['<pad>', '<unk>', '<bos>', '<eos>', '<mask>']),
  'xlm-roberta': (lambda path: fairseq(path, 'xlm-roberta'), tokenizers.RustTokenizer, XLM),
  'camembert': (lambda path: fairseq(path, 'camembert'), tokenizers.RustTokenizer, XLM),
}


@pytest.fixture(scope='module', params=KINDS)
def pair(request, tmp_path_factory):
  """(kind, the library's tokenizer, ours)"""
  folder = tmp_path_factory.mktemp(request.param)
  theirs = KINDS[request.param][0](folder)
  return request.param, theirs, tokenizers.load_folder(folder)


def ids_of(kind, theirs, text):
  if kind in SHIFT:
    return [i + SHIFT[kind] if i else 3 for i in theirs.encode(text)]
  if kind in PRECOMPILED:
    return theirs.encode(as_google(text, kind != 'kept', kind == 'kept'))
  return theirs.encode(re.sub(r'<(/?\w+)>', r'< \1 >', text) if kind == 'gpt' else text).ids


def test_ids_offsets_and_words(pair):
  kind, theirs, ours = pair
  assert isinstance(ours, KINDS[kind][1])
  ids, encodings = ours.ids_batch(TEXTS), ours.encode_batch(TEXTS)
  for text, fast, (full, offsets, starts) in zip(TEXTS, ids, encodings):
    assert fast.tolist() == full.tolist() == ids_of(kind, theirs, text)
    assert fast.dtype == full.dtype == offsets.dtype == np.int32 and starts.dtype == bool
    assert offsets.shape == (len(full), 2) and starts.shape == (len(full),)
    spans = [text[start:end] for start, end in offsets]
    assert all(span == span.lstrip() or not span.strip() for span in spans)
    if '\u0301' not in text and kind not in (*PRECOMPILED, 'gemma'):  # its characters may be bytes
      assert ''.join(''.join(spans).split()) == ''.join(text.split())
  lengths = np.array([len(row) for row in ids])
  begins = (np.cumsum(lengths) - lengths)[lengths > 0]
  starts = ours.word_starts(np.concatenate(ids), begins)
  np.testing.assert_array_equal(starts, np.concatenate([e.word_starts for e in encodings]))
  for text in ('the rivers near', ' the rivers near'):
    (found,) = ours.encode_batch([text])
    at = found.offsets[found.word_starts, 0]
    assert [text[i] for i in at] == ['t', 'r', 'n'] and len(found.ids) > 3


def test_special_tokens(pair):
  """They are plain where they are typed."""
  kind, _, ours = pair
  names = KINDS[kind][2] or KINDS['fnet'][2]
  found = [ours.pad_id, ours.unk_id, *(ours.reserved.get(x) for x in tokenizers.RESERVED[2:])]
  assert [ours.pieces[i] for i in found if i is not None] == names
  typed = '[CLS] a [SEP][MASK] <pad>[PAD] <s> </s> <|endoftext|> <mask> <unk>'
  (ids,) = ours.ids_batch([typed])
  assert len(ids) > 20 and not set(ours.special_ids) - {ours.unk_id} & set(ids.tolist())
  if kind in ('gpt', 'gpt2'):
    with refused(r'has no \[MASK\] \(nor <mask>\), and what is asked'):
      ours.encode_with_masks('a [MASK]')
    return
  masked = ours.encode_with_masks('the [MASK] crosses')
  first, last = ours.ids_batch(['the', ' crosses'])
  assert masked.dtype == np.int32 and masked.tolist() == [*first, ours.mask_id, *last]
  padded = [ours.cls_id, *masked, ours.sep_id, ours.pad_id]
  assert ours.decode(padded) == 'the [MASK] crosses'


def test_text_comes_back(pair, tmp_path):
  kind, _, ours = pair
  known = 'the river crosses the old stone'
  for text in TEXTS if kind in ('roberta', 'gpt2', 'modern', 'gemma') else [known, '']:
    (ids,) = ours.ids_batch([text])
    assert ours.decode(ids) == (unicodedata.normalize('NFC', text) if kind == 'modern' else text)
  for again in (tokenizers.load(ours.save(tmp_path)), tokenizers.load_folder(tmp_path)):
    assert (again.fingerprint, again.pieces) == (ours.fingerprint, ours.pieces)


def test_only_lists_of_strings_are_texts(pair):
  for encode in (pair[2].ids_batch, pair[2].encode_batch):
    with refused('text 1 is bytes'):
      encode(['a', b'a'])
    with refused('put it in a list'):
      encode('a')


@pytest.mark.parametrize('kind', ['roberta', 'modern', 'albert', 'wordpiece', 'gemma', *SHIFT])
def test_what_is_exported_is_the_same_vocabulary(tmp_path, kind):
  KINDS[kind][0](tmp_path / 'theirs')
  ours = tokenizers.load_folder(tmp_path / 'theirs')
  found = made('masked-lm', vocab_size=ours.vocab_size)._replace(tokenizer=ours)
  out = tmp_path / 'hf'
  convert.export_run(out, found, {})
  again = library.Tokenizer.from_file(str(out / 'tokenizer.json'))
  (ids,) = ours.ids_batch([TEXTS[0]])
  assert again.encode(TEXTS[0]).ids == [ours.cls_id, *ids, ours.sep_id]
  for name in ('vocab.txt', 'tokenizer_config.json', 'checksums.json'):  # as transformers 5 does
    (out / name).unlink(missing_ok=True)
  assert load(out).tokenizer.fingerprint == ours.fingerprint
  if kind in ('modern', 'albert'):
    content = json.loads((out / 'tokenizer.json').read_text())
    content['added_tokens'][-1]['normalized'] ^= True
    (out / 'tokenizer.json').write_text(json.dumps(content))
    assert tokenizers.load_folder(out).fingerprint != ours.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['modern', 'albert', 'fnet', 'roberta', 'gemma', *SHIFT])
def test_their_tokenizer_reads_what_is_exported(tmp_path, kind):
  transformers = pytest.importorskip('transformers')
  KINDS[kind][0](tmp_path / 'theirs')
  ours = tokenizers.load_folder(tmp_path / 'theirs')
  found = made('masked-lm', vocab_size=ours.vocab_size)._replace(tokenizer=ours)
  convert.export_run(tmp_path / 'hf', found, {})
  readers = [transformers.AutoTokenizer.from_pretrained(tmp_path / 'hf')]
  if kind == 'roberta':
    mask = transformers.AddedToken('<mask>', lstrip=True, special=True)  # as its releases say
    read = transformers.RobertaTokenizer.from_pretrained
    readers.append(read(tmp_path / 'theirs', mask_token=mask))
  for theirs in readers:
    assert (theirs.mask_token_id, theirs.pad_token_id) == (ours.mask_id, ours.pad_id)
    for text in (text for text in TEXTS if '<mask>' not in text):
      expected = [ours.cls_id, *ours.ids_batch([text])[0], ours.sep_id]
      np.testing.assert_array_equal(theirs(text)['input_ids'], expected)
    text = f'the {theirs.mask_token} crosses'
    masked = theirs(text, add_special_tokens=False)['input_ids']
    assert masked == ours.encode_with_masks('the [MASK] crosses').tolist()


# ------------------------------------------------------------------------------ byte-level BPE


@pytest.fixture(scope='module')
def bytewise(tmp_path_factory):
  folder = tmp_path_factory.mktemp('roberta')
  roberta(folder)
  return tokenizers.load_folder(folder)


def test_a_mask_takes_one_blank_before_it(bytewise):
  text = '[MASK] [MASK]  crosses '
  assert bytewise.decode(bytewise.encode_with_masks(text)) == text


@pytest.mark.parametrize('prefix, shown', [(False, ' crosses it '), (True, 'crosses it ')])
def test_the_blank_that_every_text_gets_is_not_shown(tmp_path, prefix, shown):
  modern(tmp_path)
  path = tmp_path / 'tokenizer.json'
  content = json.loads(path.read_text())
  content['pre_tokenizer']['add_prefix_space'] = prefix
  path.write_text(json.dumps(content))
  ours = tokenizers.load_folder(tmp_path)
  assert ours.decode(ours.ids_batch([' crosses it '])[0]) == shown


def test_added_runs_of_blanks_are_words(tmp_path):
  blanks, ours = modern(tmp_path).token_to_id(' ' * 8), tokenizers.load_folder(tmp_path)
  (code,) = ours.encode_batch([TEXTS[4]])
  at = code.ids.tolist().index(blanks)
  assert code.word_starts[at] and code.word_starts[at + 1]


@pytest.mark.parametrize('blanks', [(), (False, True, True, True, True, True, False)])
def test_words_to_tag_are_the_pieces_they_are_in_a_text(bytewise, blanks):
  """Data says nothing of blanks: all words but the first are taken to stand after one."""
  text = 'the river crosses the old stone' + (' !', '!')[bool(blanks)]
  words = ('the', 'river', 'crosses', 'the', 'old', 'stone', '!')
  config = c.load('configs/finetune.py:task=ner', ['--config.tagging.labels=B-PER,I-PER,O'])
  sentence = conll.Sentence('', '', words, None, (), blanks)
  found = task.Tagged(config, bytewise, [sentence], Problems('eval'))
  (ids,) = bytewise.ids_batch([text])
  np.testing.assert_array_equal(found.texts[0][0], ids)
  assert not np.array_equal(ids, np.concatenate(bytewise.ids_batch(words)))


def test_two_texts_stand_two_seps_apart(bytewise, tokenizer):
  """RoBERTa's <s> A </s></s> B </s>, BERT's [CLS] A [SEP] B [SEP]."""
  first, second = np.array([7, 8], np.int32), np.array([9], np.int32)
  for ours, expected in ((bytewise, [[7, 8, bytewise.sep_id], [9]]), (tokenizer, [[7, 8], [9]])):
    assert [part.tolist() for part in ours.pair(first, second)] == expected


def test_a_gpt2_in_two_files_is_the_same(tmp_path):
  gpt2(tmp_path / 'one')
  model = json.loads((tmp_path / 'one' / 'tokenizer.json').read_text())['model']
  vocabulary = model['vocab'] | {'<|endoftext|>': len(model['vocab'])}
  (tmp_path / 'two').mkdir()
  (tmp_path / 'two' / 'vocab.json').write_text(json.dumps(vocabulary))
  merges = '\n'.join(['#version: 0.2', *map(' '.join, model['merges'])]) + '\n'
  (tmp_path / 'two' / 'merges.txt').write_text(merges)
  one, two = (tokenizers.load_folder(tmp_path / x) for x in ('one', 'two'))
  assert one.fingerprint == two.fingerprint and one.begin_ids == () == two.begin_ids


def test_its_own_mask_is_one_too(bytewise, tmp_path, caplog):
  found = made('masked-lm', vocab_size=bytewise.vocab_size)._replace(tokenizer=bytewise)
  ours, theirs = Model(found).fill_mask(['the [MASK] crosses', 'the <mask> crosses'])
  assert [piece for piece, _ in ours[0]] == [piece for piece, _ in theirs[0]]
  convert.export_run(tmp_path, found, {})
  path = tmp_path / 'tokenizer.json'
  tokenizers.load(path)
  assert 'leaves the blank' not in caplog.text
  path.write_text(path.read_text().replace('"lstrip": true', '"lstrip": false'))
  tokenizers.load(path)
  assert 'leaves the blank before <mask> to the text' in caplog.text


@pytest.mark.parametrize(
  'change, sentence',
  [
    (lambda merges: merges[: merges.rindex(b' ')], 'merges.txt has a line that is no pair'),
    (lambda merges: merges + b'\xff\xfe \xff\n', 'merges.txt is not built .*UnicodeDecodeError'),
    (lambda merges: merges + b'zz qq\n', 'merges.txt is not built as a vocabulary is'),
  ],
)
def test_damaged_merges_are_one_sentence(tmp_path, change, sentence):
  roberta(tmp_path)
  path = tmp_path / 'merges.txt'
  path.write_bytes(change(path.read_bytes()))
  with refused(sentence):
    tokenizers.load_folder(tmp_path)


# ------------------------------------------------------------------------------ SentencePiece


def test_a_number_and_the_comma_behind_it_are_two_pieces(tmp_path):
  """As in ALBERT's code, whatever the vocabulary has."""
  theirs, ours = spiece(tmp_path, 'albert'), tokenizers.load_folder(tmp_path)
  scores = dict(ours.content['model']['vocab'])
  ending = [p for p in scores if len(p) > 1 and p[-1] == ',' and p[-2].isdigit()]
  assert ending
  for i, (piece, score) in enumerate(scores.items()):
    assert score == pytest.approx(theirs.get_score(i) - 100 * (piece in ending))


@pytest.mark.parametrize(
  'model_type, model, sentence',
  [
    (None, None, 'is not known to be of a family that is read'),
    ('xlnet', None, 'is not known to be of a family that is read'),
    ('xlm-roberta', None, 'begins with <pad> <unk> .CLS., and models of XLMRobertaTokenizer with'),
    ('albert', b'not a model', 'is not a SentencePiece model; is it damaged'),
    ('albert', 'bpe', 'is no unigram model, as all of AlbertTokenizer are'),
  ],
)
def test_another_spiece_model_is_refused(tmp_path, model_type, model, sentence):
  spiece(tmp_path, 'albert')
  (tmp_path / 'config.json').write_text(json.dumps({'model_type': model_type}))
  if model:
    bpe = lambda: vocabularies.sentencepiece_model(vocab_size=60, model_type='bpe')
    (tmp_path / 'spiece.model').write_bytes(bpe() if model == 'bpe' else model)
  with refused(sentence):
    tokenizers.load_folder(tmp_path)


def test_a_model_and_a_tokenizer_json_are_of_one_vocabulary(tmp_path):
  fairseq(tmp_path, 'xlm-roberta')
  ours = tokenizers.load_folder(tmp_path)
  ours.save(tmp_path)
  assert tokenizers.load_folder(tmp_path).fingerprint == ours.fingerprint
  fairseq(tmp_path, 'xlm-roberta', ['an other river', 'of other stones'] * 9)
  with refused('bpe.model differ: the id of .* in the one and .* of this m'):
    tokenizers.load_folder(tmp_path)


LANGUAGES = ['eng', 'fra', 'deu', 'zho-CN', 'jpn', 'hin', 'rus', 'kor', 'tur', 'vie', 'ell', 'swa']
LANGUAGES += ['fas', 'ces', 'fin']


@pytest.mark.slow
@pytest.mark.parametrize('kind', [*SHIFT, 'gemma'])
def test_ids_in_many_languages_are_those_of_transformers(tmp_path, shared, monkeypatch, kind):
  """Of a model alone, of what they save of it, and of what is exported of that."""
  transformers = pytest.importorskip('transformers')
  monkeypatch.setenv('TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK', 'true')  # sentencepiece's is new
  files = [next((shared / 'ntrex').glob(f'*.{language}.txt')) for language in LANGUAGES]
  lines = [line for file in files for line in file.read_text().splitlines()[:700]]
  assert len(lines) >= 10_000
  if kind == 'gemma':
    gemma(tmp_path / 'model', lines, 8000)
    (tmp_path / 'model' / 'config.json').write_text(json.dumps({'model_type': 'modernbert'}))
  else:
    fairseq(tmp_path / 'model', kind, lines, 8000)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'model')
  theirs.save_pretrained(tmp_path / 'saved')
  expected = theirs(lines, add_special_tokens=False)['input_ids']
  for folder in ('model', 'saved'):
    ours = tokenizers.load_folder(tmp_path / folder)
    assert [ids.tolist() for ids in ours.ids_batch(lines)] == expected
    found = [ours.cls_id, ours.sep_id, ours.pad_id, ours.unk_id, ours.mask_id]
    names = 'bos', 'eos', 'pad', 'unk', 'mask'
    assert found == [getattr(theirs, f'{name}_token_id') for name in names]
  found = made('masked-lm', vocab_size=ours.vocab_size)._replace(tokenizer=ours)
  convert.export_run(tmp_path / 'hf', found, {})
  again = transformers.AutoTokenizer.from_pretrained(tmp_path / 'hf')
  assert again(lines, add_special_tokens=False)['input_ids'] == expected
  assert again(*lines[:2])['input_ids'] == theirs(*lines[:2])['input_ids']


def test_a_program_of_others_splits_words_whatever_a_tokenizer_json_says(tmp_path):
  path = written(tmp_path, berts())
  tokenizers.load(path)
  (tmp_path / 'tokenizer_config.json').write_text('{"tokenizer_class": "RoFormerTokenizerFast"}')
  with refused('RoFormerTokenizerFast, which splits words otherwise than h'):
    tokenizers.load(path)


def test_words_of_jieba_are_named_with_what_can_be_read(tmp_path):
  """RoFormer's vocabulary has 今天, a word of jieba, which BERT's splitting never makes."""
  pieces = [*tokenizers.RESERVED, '今天', '今', '天', '好', 'bert']
  (tmp_path / 'vocab.txt').write_text('\n'.join(pieces) + '\n')
  path = tmp_path / 'tokenizer_config.json'
  for said in {'tokenizer_class': 'RoFormerTokenizer'}, {}:
    path.write_text(json.dumps(said))
    (tmp_path / 'config.json').write_text('{"model_type": "roformer"}')
    with refused('words by jieba. To read it by characters.* write "tokenizer_class": "BertTok'):
      tokenizers.load_folder(tmp_path)
  path.write_text('{"tokenizer_class": "BertTokenizer"}')
  (ids,) = tokenizers.load_folder(tmp_path).ids_batch(['Bert今天好'])
  assert [pieces[i] for i in ids] == ['bert', '今', '天', '好']


@pytest.mark.parametrize('as_object', [False, True])
def test_a_mask_and_padding_may_have_other_names(tmp_path, as_object):
  """As EuroBERT's, whose padding is what ends a text; and what is exported says so again."""
  name = lambda x: {'content': x, 'lstrip': True} if as_object else x
  gemma(tmp_path / 'theirs', mask_token=name('<|mask|>'), pad_token=name('<eos>'))
  path = tmp_path / 'theirs' / 'tokenizer.json'
  path.write_text(path.read_text().replace('"<mask>"', '"<|mask|>"'))
  ours = tokenizers.load_folder(tmp_path / 'theirs')
  assert (ours.mask_id, ours.pad_id, ours.cls_id, ours.sep_id) == (4, 1, 2, 1)
  (typed,) = ours.ids_batch(['the <|mask|> <eos>'])
  assert not {1, 4} & set(typed.tolist())
  found = made('masked-lm', vocab_size=ours.vocab_size)._replace(tokenizer=ours)
  convert.write_workdir(tmp_path / 'W', found, {})
  convert.export_run(tmp_path / 'hf', found, {})
  for folder in ('W', 'hf'):
    again = tokenizers.load_folder(tmp_path / folder)
    assert (again.fingerprint, again.mask_id, again.pad_id) == (ours.fingerprint, 4, 1)


def test_sentencepiece_models_of_others():
  made = lambda **settings: tokenizers.SentencePiece(vocabularies.sentencepiece_model(**settings))
  with refused(r'has no \[PAD\]'):
    made()
  pad = dict(pad_id=3, pad_piece='<pad>')
  ours = made(control_symbols=['<mask>'], **pad)
  ids = ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id
  assert [ours.pieces[i] for i in ids] == ['<pad>', '<unk>', '<s>', '</s>', '<mask>']
  with refused('text could produce'):
    made(user_defined_symbols=['<mask>'], **pad)


def test_words_end_at_the_blank_where_it_stands_behind_them():
  special = dict(control_symbols=['[CLS]', '[SEP]', '[MASK]'], pad_id=3, pad_piece='[PAD]')
  text = 'the old river 河流'
  for suffix in (False, True):
    settings = special | dict(treat_whitespace_as_suffix=suffix)
    ours = tokenizers.SentencePiece(vocabularies.sentencepiece_model(**settings))
    _, offsets, starts = ours.encode_batch([text])[0]
    words = [offsets[np.cumsum(starts) == i] for i in range(1, sum(starts) + 1)]
    words = [text[min(word[:, 0]) : max(word[:, 1])] for word in words]
    assert list(filter(None, words)) == ['the', 'old', 'river', '河', '流']


# ------------------------------------------------------------------------------ tokenizer.json


def written(tmp_path, content):
  path = tmp_path / 'tokenizer.json'
  path.write_text(json.dumps(content))
  return path


TOKEN = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
NEW, YORK = len(WORDS), TOKEN | {'id': len(WORDS), 'content': 'New York'}


@pytest.mark.parametrize(
  'change',
  [
    {'normalizer': {'type': 'Lowercase'}},
    {'normalizer': berts()['normalizer'] | {'clean_text': False}},
    {'pre_tokenizer': {'type': 'Whitespace'}},
    {'added_tokens': [YORK]},
    {'added_tokens': [YORK | {'content': '<new>', 'special': True}, YORK | {'id': NEW + 1}]},
  ],
  ids=str,
)
def test_a_wordpiece_that_treats_text_otherwise(tmp_path, change):
  theirs = library.Tokenizer.from_file(str(written(tmp_path, berts(**change))))
  ours = tokenizers.load_folder(tmp_path)
  assert isinstance(ours, tokenizers.RustTokenizer)
  assert ours.pieces == [theirs.id_to_token(i) for i in range(theirs.get_vocab_size())]
  for text in ('the OLD river crosses New York 12', 'cafés déjà-vu'):
    assert ours.ids_batch([text])[0].tolist() == theirs.encode(text).ids
  (encoding,) = ours.encode_batch(['the rivers'])
  assert encoding.word_starts.tolist() == [True, True, False]


ADDED = {
  'special': {'special': True},
  'plain': {'normalized': True},
  'whole words': {'single_word': True},
  'with blanks': {'lstrip': True, 'rstrip': True, 'special': True},
}
SEARCHED = 'a [E1] the RIVERS, rivers[E1]  river  [E1] river s', '[E1]', 'x[E1]x river[e1]', ''


@pytest.mark.parametrize('flags', ADDED)
@pytest.mark.parametrize('kind', ['wordpiece', 'gpt2', 'roberta'])
def test_texts_are_searched_for_added_tokens(tmp_path, kind, flags):
  """Those that the vocabulary has and those that it lacks; but reserved ones stay plain."""
  KINDS[kind][0](tmp_path)
  plain = tokenizers.load_folder(tmp_path)
  content = json.loads(plain.rust.to_str())
  for i, name in enumerate(('[E1]', 'river', '<mask>', '[MASK]', '<|endoftext|>')):
    known = plain.pieces.index(name) if name in plain.pieces else len(plain.pieces) + i
    if name in ('[E1]', 'river') or name in plain.pieces:
      is_new = name in ('[E1]', 'river')
      token = TOKEN | (ADDED[flags] if is_new else {'special': True})
      content['added_tokens'].append(token | {'id': known, 'content': name})
  added = sorted(content['added_tokens'], key=lambda token: token['id'])
  for token in (token for token in added if token['id'] >= len(plain.pieces)):
    token['id'] = max(len(plain.pieces), 1 + added[added.index(token) - 1]['id'])
  theirs = library.Tokenizer.from_file(str(written(tmp_path, content | {'added_tokens': added})))
  ours = tokenizers.load(tmp_path / 'tokenizer.json')
  assert ours.pieces == [theirs.id_to_token(i) for i in range(theirs.get_vocab_size())]
  for text in SEARCHED:
    ids = theirs.encode(text, add_special_tokens=False).ids
    assert ours.ids_batch([text])[0].tolist() == ours.encode_batch([text])[0].ids.tolist() == ids
  typed = f'a {ours.pieces[ours.special_ids[-1]]} b'
  assert ours.ids_batch([typed])[0].tolist() == plain.ids_batch([typed])[0].tolist()
  assert tokenizers.load(ours.save(tmp_path / 'W')).fingerprint == ours.fingerprint


def test_a_run_goes_on_with_the_special_tokens_it_began_with(tmp_path):
  token = TOKEN | {'id': 5, 'content': 'the', 'special': True}
  written(tmp_path, berts(added_tokens=[token], normalizer={'type': 'Lowercase'}))
  new = tokenizers.load_folder(tmp_path)
  (tmp_path / 'config.json').write_text('{"objective": "mlm_nsp"}')
  old = tokenizers.load_folder(tmp_path)
  ids = [list(x.ids_batch(['rivers the river'])[0]) for x in (new, old)]
  assert ids == [[6, 20, 5, 6], [6, 20, 1, 6]] and new.fingerprint != old.fingerprint
  new.save(tmp_path)
  assert tokenizers.load_folder(tmp_path).fingerprint == new.fingerprint


@pytest.mark.parametrize(
  'file, said',
  [
    ('tokenizer_config', {'additional_special_tokens': ['near']}),
    ('tokenizer_config', {'extra_special_tokens': {'one': 'near'}}),
    ('tokenizer_config', {'added_tokens_decoder': {'10': TOKEN | {'content': 'near'}}}),
    ('special_tokens_map', {'additional_special_tokens': [TOKEN | {'content': 'near'}]}),
    ('added_tokens', {'near': 10}),
  ],
)
def test_tokens_beside_a_vocabulary_are_searched_for(tmp_path, file, said):
  """Where they are words of it, such as [unused1]: 'nearby' holds 'near'."""
  (tmp_path / 'vocab.txt').write_text('\n'.join(WORDS))
  plain = tokenizers.load_folder(tmp_path)
  (tmp_path / f'{file}.json').write_text(json.dumps(said))
  ours = tokenizers.load_folder(tmp_path)
  assert ours.pieces == plain.pieces and ours.decode([6, 20]) == 'rivers'
  assert [list(x.ids_batch(['nearby river'])[0]) for x in (plain, ours)] == [[1, 6], [10, 1, 6]]


@pytest.mark.parametrize(
  'change, kind, sentence',
  [
    ({}, 'BertTokenizer', ''),
    ({'pre_tokenizer': {'type': 'Whitespace'}}, 'PreTrainedTokenizerFast', ''),
    ({'pre_tokenizer': {'type': 'Whitespace'}}, 'BertTokenizer', 'differ: the pre_tokenizer of'),
    ({'normalizer': {'type': 'Lowercase'}}, None, 'differ: the normalizer of the second'),
    ({'added_tokens': [TOKEN | {'id': len(WORDS), 'content': '<e>'}]}, 'BertTokenizer', ''),
    ({'model': {'type': 'BPE', 'vocab': {}, 'merges': []}}, None, 'differ: the id of'),
  ],
)
def test_a_vocabulary_and_a_tokenizer_json_say_the_same(tmp_path, change, kind, sentence):
  (tmp_path / 'vocab.txt').write_text('\n'.join(WORDS))
  if kind:
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps({'tokenizer_class': kind}))
  theirs = library.Tokenizer.from_file(str(written(tmp_path, berts(**change))))
  if sentence:
    with refused(sentence):
      tokenizers.load_folder(tmp_path)
    return
  for text in ('déjà-vu, the river_crosses <e> river', 'a.b'):
    assert list(tokenizers.load_folder(tmp_path).ids_batch([text])[0]) == theirs.encode(text).ids


def template(single, pair):
  ids = {name: {'id': name, 'ids': [i], 'tokens': [name]} for i, name in enumerate(WORDS[:5])}
  part = lambda x: {'Sequence' if x in 'AB' else 'SpecialToken': {'id': x, 'type_id': 0}}
  parts = ([part(x) for x in names.split()] for names in (single, pair))
  names = 'type', 'single', 'pair', 'special_tokens'
  return dict(zip(names, ('TemplateProcessing', *parts, ids)))


@pytest.mark.parametrize(
  'post, expected',
  [
    ({'type': 'BertProcessing', 'sep': ['[SEP]', 3], 'cls': ['[CLS]', 2]}, ((2,), 1, 3)),
    (template('[CLS] A [SEP]', '[CLS] A [SEP] [SEP] B [SEP]'), ((2,), 2, 3)),
    (template('[PAD] A [MASK]', '[PAD] A [MASK] B [MASK]'), ((0,), 1, 4)),
    (template('[CLS] A', '[CLS] A B'), ((2,), None, None)),
    (template('[CLS] [MASK] A [SEP]', '[CLS] [MASK] A [SEP] B [SEP]'), ((2, 4), None, None)),
    (None, ((), None, None)),
  ],
)
def test_the_post_processor_says_what_stands_around_texts(tmp_path, post, expected):
  (tmp_path / 'config.json').write_text('{"model_type": "gpt2"}')
  written(tmp_path, berts(post_processor=post))
  ours = tokenizers.load_folder(tmp_path)
  (tmp_path / 'config.json').write_text('{"objective": "mlm_nsp"}')
  ours.save(tmp_path)
  for read in (ours, tokenizers.load_folder(tmp_path)):
    assert read.begin_ids == expected[0] and read.fingerprint == ours.fingerprint
  if expected[1]:
    ours.check_encloses()
    assert (ours.between, ours.sep_id) == expected[1:]
  else:
    with refused('an encoder here reads .CLS. A .SEP. B .SEP.; mend'):
      ours.check_encloses()


def config_with(path):
  settings = f'tokenizer.path={path}', f'model.vocab_size={len(WORDS)}'
  return c.load('configs/pretrain.py:runlocal', [f'--config.{x}' for x in settings])


def test_a_new_encoder_takes_no_vocabulary_that_encloses_texts_otherwise(tmp_path):
  path = written(tmp_path, berts(post_processor=template('[CLS] A', '[CLS] A B')))
  with refused('an encoder here reads .CLS. A .SEP. B .SEP.; mend'):
    run_tokenizer.load_or_train(config_with(path), None, list)
  config = config_with(path)
  config.model.causal = True
  assert run_tokenizer.load_or_train(config, None, list).begin_ids == (2,)


@pytest.mark.parametrize('file', ['vocab.txt', 'tokenizer.json'])
def test_a_run_that_read_less_of_its_vocabulary_goes_on(tmp_path, file):
  """tokenizer.path still is the file that it began from, or one with other pieces."""
  (tmp_path / 'W').mkdir()
  token = TOKEN | {'id': 10, 'content': WORDS[10], 'special': True}
  if file == 'vocab.txt':
    path, more = tmp_path / file, {'additional_special_tokens': [WORDS[10]]}
    path.write_text('\n'.join(WORDS))
    old = tokenizers.load(path)
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(more))
  else:
    content = berts(added_tokens=[token], normalizer={'type': 'Lowercase'})
    path = written(tmp_path, content | {'post_processor': template('[CLS] A', '[CLS] A B')})
    written(tmp_path / 'W', berts(normalizer={'type': 'Lowercase'}))
    old = tokenizers.load_folder(tmp_path / 'W')
  old.save(tmp_path / 'W')
  assert tokenizers.load(path).fingerprint != old.fingerprint
  load = lambda: run_tokenizer.load_or_train(config_with(path), tmp_path / 'W', list)
  assert load().fingerprint == old.fingerprint
  path.write_text(path.read_text().replace(WORDS[11], 'another'))
  with refused('is not the vocabulary of'):
    load()


@pytest.mark.parametrize('end', ['\r', '\r\n'])
def test_line_ends_of_other_systems_in_a_vocabulary(tmp_path, end):
  path = tmp_path / 'vocab.txt'
  path.write_bytes(end.join(WORDS).encode())
  assert tokenizers.load(path).pieces == list(WORDS)
  gpt(tmp_path)
  known, merges = tokenizers.load(tmp_path / 'vocab.json'), tmp_path / 'merges.txt'
  merges.write_bytes(merges.read_bytes().replace(b'\n', end.encode()))
  assert tokenizers.load(tmp_path / 'vocab.json').fingerprint == known.fingerprint


def test_a_wordpiece_in_a_tokenizer_json(tmp_path):
  """The ids are what it says, whatever the order of its lines, and accents stay if it says so."""
  model = berts()['model']
  model['vocab'] = dict(reversed(model['vocab'].items()))
  normalizer = berts()['normalizer'] | {'strip_accents': False}
  ours = tokenizers.load(written(tmp_path, berts(model=model, normalizer=normalizer)))
  assert isinstance(ours, tokenizers.WordPiece) and ours.pieces == list(WORDS)
  assert ours.decode(ours.ids_batch(['Café CAFE'])[0]) == 'café cafe'


BYTES = {'normalizer': None, 'pre_tokenizer': {'type': 'ByteLevel'}}
RESERVED = {'<s>': 0, '<pad>': 1, '</s>': 2, '<unk>': 3, '<mask>': 4}
UNSPLIT = {'type': 'BPE', 'vocab': RESERVED, 'merges': []}
HALF = {word: i for i, word in enumerate([*WORDS, '\ud83d'])}  # a character's


@pytest.mark.parametrize(
  'change, sentence',
  [
    ({'model': {'type': 'Unigram', 'vocab': [[word, 0.0] for word in WORDS]}}, 'Unigram split by'),
    ({'model': {'type': 'Unigram', 'vocab': [['a', 0.0]]}}, 'has no .PAD. .nor <pad>'),
    ({'added_tokens': [{'id': 99, 'content': 'new'}]}, 'do not count from 0'),
    ({'added_tokens': [{'id': 99}]}, 'is not built as a vocabulary is .*KeyError'),
    ({'normalizer': 'lower'}, 'is not built as a vocabulary is'),
    ({'normalizer': berts()['normalizer'] | {'lowercase': None}}, 'built as .*unpickle Normalizer'),
    ({'normalizer': berts()['normalizer'] | {'lowercase': 'no'}}, 'built as .*unpickle Normalizer'),
    ({'model': {'type': 'WordPiece', 'vocab': ['a', 'b']}}, 'is not built as a vocabulary is'),
    ({'model': {'type': 'WordPiece', 'vocab': {'a': '0'}}}, "the id of 'a' in .* is no number"),
    ({'model': {'type': 'BPE', 'vocab': {}}, **BYTES}, 'is not built .*KeyError: merges'),
    ({'model': berts()['model'] | {'vocab': HALF}}, 'is not built as a vocabulary is'),
    ({'model': UNSPLIT, 'pre_tokenizer': None}, 'is a BPE split by nothing, and read are Word'),
  ],
)
def test_what_would_give_other_ids_is_refused(tmp_path, change, sentence):
  with refused(sentence):
    tokenizers.load(written(tmp_path, berts(**change)))
