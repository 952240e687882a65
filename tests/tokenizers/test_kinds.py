"""Every kind of tokenizer: the ids of its maker's library, offsets, words, masks, files."""

import json
import re
import unicodedata

import numpy as np
import pytest
import sentencepiece
import tokenizers as library
import vocabularies
from refusal import refused
from released import WORDS, made
from vocabularies import TEXTS, as_google, berts, fairseq, gemma, gpt, gpt2, modern, roberta, spiece

from bert_jax import config as c
from bert_jax import tokenizers
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.tagging import conll, task
from bert_jax.tokenizers import run_tokenizer
from bert_jax.tokenizers.sentence_piece import model_content
from bert_jax.tools import convert
from bert_jax.workdir.trained import load

SHIFT = {'xlm-roberta': 1, 'camembert': 4}  # {kind: how far fairseq's ids are from the model's}
CHANGED = 'albert', 'fnet', 'kept', 'gemma', 'ours', *SHIFT  # whose characters are normalised
KEPT = dict(do_lower_case=False, keep_accents=True, tokenizer_class='AlbertTokenizer')
XLM = ['<pad>', '<unk>', '<s>', '</s>', '<mask>']
PIECES = ['<pad>', '<unk>', *WORDS[2:5]]


def ours(path):
  """A SentencePiece model as they are trained here, and its library's reader."""
  symbols = ['[CLS]', '[SEP]', '[MASK]']
  special = dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece='[PAD]', unk_piece='[UNK]')
  model = vocabularies.sentencepiece_model(control_symbols=symbols, **special)
  (path / 'spm.model').write_bytes(model)
  return sentencepiece.SentencePieceProcessor(model_proto=model)


# {kind: (a folder -> the library's tokenizer, [PAD] [UNK] [CLS] [SEP] [MASK])}
KINDS = {
  'wordpiece': (vocabularies.wordpiece, WORDS[:5]),
  'mpnet': (vocabularies.mpnet, [XLM[0], '[UNK]', *XLM[2:]]),
  'roberta': (roberta, XLM),
  'gpt2': (gpt2, ['<|endoftext|>'] * 4),
  'gpt': (gpt, ['<unk>'] * 2),
  'modern': (modern, WORDS[:5]),
  'ours': (ours, WORDS[:5]),
  'albert': (lambda path: spiece(path, 'albert'), PIECES),
  'fnet': (lambda path: spiece(path, 'fnet'), PIECES),
  'kept': (lambda path: spiece(path, 'fnet', **KEPT), PIECES),
  'gemma': (gemma, ['<pad>', '<unk>', '<bos>', '<eos>', '<mask>']),
  'xlm-roberta': (lambda path: fairseq(path, 'xlm-roberta'), XLM),
  'camembert': (lambda path: fairseq(path, 'camembert'), XLM),
}


@pytest.fixture(scope='module', params=KINDS)
def pair(request, tmp_path_factory):
  """(kind, the library's tokenizer, ours)"""
  folder = tmp_path_factory.mktemp(request.param)
  theirs = KINDS[request.param][0](folder)
  return request.param, theirs, tokenizers.load_folder(folder)


def ids_of(kind, theirs, text):
  if kind == 'ours':
    return theirs.encode(text)
  if kind in SHIFT:
    return [i + SHIFT[kind] if i else 3 for i in theirs.encode(text)]
  if kind in ('albert', 'fnet', 'kept'):
    return theirs.encode(as_google(text, kind != 'kept', kind == 'kept'))
  return theirs.encode(re.sub(r'<(/?\w+)>', r'< \1 >', text) if kind == 'gpt' else text).ids


def test_ids_offsets_and_words(pair):
  kind, theirs, tokenizer = pair
  ids, encodings = tokenizer.ids_batch(TEXTS), tokenizer.encode_batch(TEXTS)
  for text, fast, (full, offsets, starts) in zip(TEXTS, ids, encodings):
    assert fast.tolist() == full.tolist() == ids_of(kind, theirs, text)
    assert fast.dtype == full.dtype == offsets.dtype == np.int32 and starts.dtype == bool
    assert offsets.shape == (len(full), 2) and starts.shape == (len(full),)
    spans = [text[start:end] for start, end in offsets]
    assert all(span == span.lstrip() or not span.strip() for span in spans)
    if '\u0301' not in text and kind not in CHANGED:
      assert ''.join(''.join(spans).split()) == ''.join(text.split())
  lengths = np.array([len(row) for row in ids])
  begins = (np.cumsum(lengths) - lengths)[lengths > 0]
  starts = tokenizer.word_starts(np.concatenate(ids), begins)
  np.testing.assert_array_equal(starts, np.concatenate([e.word_starts for e in encodings]))
  for text in ('the rivers near', ' the rivers near'):
    (found,) = tokenizer.encode_batch([text])
    at = found.offsets[found.word_starts, 0]
    assert [text[i] for i in at] == ['t', 'r', 'n'] and len(found.ids) > 3


def test_special_tokens(pair):
  """They are plain where they are typed."""
  kind, _, tokenizer = pair
  ids = [tokenizer.pad_id, tokenizer.unk_id]
  ids += [tokenizer.reserved[x] for x in tokenizers.RESERVED[2:] if x in tokenizer.reserved]
  assert [tokenizer.pieces[i] for i in ids] == KINDS[kind][1]
  typed = '[CLS] a [SEP][MASK] <pad>[PAD] <s> </s> <|endoftext|> <mask> <unk>'
  (ids,) = tokenizer.ids_batch([typed])
  assert len(ids) > 20 and not set(tokenizer.special_ids) - {tokenizer.unk_id} & set(ids.tolist())
  if kind in ('gpt', 'gpt2'):
    with refused(r'has no \[MASK\] \(nor <mask>\), and what is asked'):
      tokenizer.encode_with_masks('a [MASK]')
    return
  masked = tokenizer.encode_with_masks('the [MASK] crosses')
  first, last = tokenizer.ids_batch(['the', ' crosses'])
  assert masked.dtype == np.int32 and masked.tolist() == [*first, tokenizer.mask_id, *last]
  padded = [tokenizer.cls_id, *masked, tokenizer.sep_id, tokenizer.pad_id]
  assert tokenizer.decode(padded) == 'the [MASK] crosses'


def test_text_comes_back(pair, tmp_path):
  kind, _, tokenizer = pair
  known = 'the river crosses the old stone'
  for text in TEXTS if kind in ('roberta', 'gpt2', 'modern', 'gemma') else [known, '']:
    (ids,) = tokenizer.ids_batch([text])
    wanted = unicodedata.normalize('NFC', text) if kind == 'modern' else text
    assert tokenizer.decode(ids) == wanted
  for again in (tokenizers.load(tokenizer.save(tmp_path)), tokenizers.load_folder(tmp_path)):
    assert (again.fingerprint, again.pieces) == (tokenizer.fingerprint, tokenizer.pieces)
    assert (again.begin_ids, again.reserved) == (tokenizer.begin_ids, tokenizer.reserved)


def test_a_piece_is_shown_as_in_the_text(pair):
  kind, _, tokenizer = pair
  shown = [tokenizer.shown(i) for i in range(tokenizer.vocab_size)]
  assert '\ufffd' not in ''.join(shown)
  if not tokenizer.blank_is_of_word:  # else a letter may be a piece, and a byte another
    assert len({*shown}) == len(shown)
  (ids,) = tokenizer.ids_batch(['the river crosses the old stone'])
  text = ''.join(shown[i] for i in ids).strip()
  if kind not in ('wordpiece', 'mpnet', 'gpt'):  # these write no blanks
    assert text == 'the river crosses the old stone'


def test_only_lists_of_strings_are_texts(pair):
  for encode in (pair[2].ids_batch, pair[2].encode_batch):
    with refused('text 1 is bytes'):
      encode(['a', b'a'])
    with refused('put it in a list'):
      encode('a')


@pytest.mark.parametrize(
  'kind', ['roberta', 'modern', 'ours', 'albert', 'wordpiece', 'mpnet', 'gemma', *SHIFT]
)
def test_what_is_exported_is_the_same_vocabulary(tmp_path, kind):
  (tmp_path / 'theirs').mkdir()
  KINDS[kind][0](tmp_path / 'theirs')
  tokenizer = tokenizers.load_folder(tmp_path / 'theirs')
  found = made('masked-lm', vocab_size=tokenizer.vocab_size)._replace(tokenizer=tokenizer)
  out = tmp_path / 'hf'
  convert.export_run(out, found, {})
  again = library.Tokenizer.from_file(str(out / 'tokenizer.json'))
  (ids,) = tokenizer.ids_batch([TEXTS[0]])
  assert again.encode(TEXTS[0]).ids == [tokenizer.cls_id, *ids, tokenizer.sep_id]
  for name in ('vocab.txt', 'tokenizer_config.json'):  # as transformers 5 does
    (out / name).unlink(missing_ok=True)
  assert load(out).tokenizer.fingerprint == tokenizer.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind', ['modern', 'ours', 'albert', 'fnet', 'mpnet', 'roberta', 'gemma', *SHIFT]
)
def test_their_tokenizer_reads_what_is_exported(tmp_path, kind):
  transformers = pytest.importorskip('transformers')
  (tmp_path / 'theirs').mkdir()
  KINDS[kind][0](tmp_path / 'theirs')
  tokenizer = tokenizers.load_folder(tmp_path / 'theirs')
  found = made('masked-lm', vocab_size=tokenizer.vocab_size)._replace(tokenizer=tokenizer)
  convert.export_run(tmp_path / 'hf', found, {})
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'hf')
  assert (theirs.mask_token_id, theirs.pad_token_id) == (tokenizer.mask_id, tokenizer.pad_id)
  for text in (text for text in TEXTS if '<mask>' not in text):
    expected = [tokenizer.cls_id, *tokenizer.ids_batch([text])[0], tokenizer.sep_id]
    np.testing.assert_array_equal(theirs(text)['input_ids'], expected)
  masked = theirs(f'the {theirs.mask_token} crosses', add_special_tokens=False)['input_ids']
  assert masked == tokenizer.encode_with_masks('the [MASK] crosses').tolist()


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
  tokenizer = tokenizers.load_folder(tmp_path)
  assert tokenizer.decode(tokenizer.ids_batch([' crosses it '])[0]) == shown


def test_added_runs_of_blanks_are_words(tmp_path):
  blanks, tokenizer = modern(tmp_path).token_to_id(' ' * 8), tokenizers.load_folder(tmp_path)
  (code,) = tokenizer.encode_batch([TEXTS[4]])
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


# ------------------------------------------------------------------------------ SentencePiece


def test_a_number_and_the_comma_behind_it_are_two_pieces(tmp_path):
  """As in ALBERT's code, whatever the vocabulary has."""
  theirs, tokenizer = spiece(tmp_path, 'albert'), tokenizers.load_folder(tmp_path)
  scores = dict(tokenizer.content['model']['vocab'])
  ending = [p for p in scores if len(p) > 1 and p[-1] == ',' and p[-2].isdigit()]
  assert ending
  for i, (piece, score) in enumerate(scores.items()):
    assert score == pytest.approx(theirs.get_score(i) - 100 * (piece in ending))


def test_a_model_and_a_tokenizer_json_are_of_one_vocabulary(tmp_path):
  fairseq(tmp_path, 'xlm-roberta')
  tokenizer = tokenizers.load_folder(tmp_path)
  tokenizer.save(tmp_path)
  (tmp_path / 'tokenizer_config.json').unlink()
  assert tokenizers.load_folder(tmp_path).fingerprint == tokenizer.fingerprint
  fairseq(tmp_path, 'xlm-roberta', ['an other river', 'of other stones'] * 9)
  with refused('bpe.model differ: the id of .* in the one and .* of this m'):
    tokenizers.load_folder(tmp_path)
  for name in ('sentencepiece.bpe.model', 'config.json'):
    (tmp_path / name).unlink()
  (tmp_path / 'spm.model').write_bytes(
    vocabularies.sentencepiece_model(control_symbols=['<mask>'], pad_id=3, pad_piece='<pad>')
  )
  with refused('spm.model differ'):
    tokenizers.load_folder(tmp_path)


LANGUAGES = ['eng', 'fra', 'deu', 'zho-CN', 'jpn', 'hin', 'rus', 'kor', 'tur', 'vie', 'ell', 'swa']
LANGUAGES += ['fas', 'ces', 'fin']


def lines_of(shared, number=700):
  files = [next((shared / 'ntrex').glob(f'*.{language}.txt')) for language in LANGUAGES]
  return [line for file in files for line in file.read_text().splitlines()[:number]]


@pytest.mark.slow
@pytest.mark.parametrize('kind', [*SHIFT, 'gemma', 'mpnet'])
def test_ids_in_many_languages_are_those_of_transformers(tmp_path, shared, monkeypatch, kind):
  """Of a model alone, of what they save of it, and of what is exported of that."""
  transformers = pytest.importorskip('transformers')
  monkeypatch.setenv('TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK', 'true')  # sentencepiece's is new
  lines = lines_of(shared)
  assert len(lines) >= 10_000
  if kind == 'gemma':
    gemma(tmp_path / 'model', lines, 8000)
    (tmp_path / 'model' / 'config.json').write_text(json.dumps({'model_type': 'modernbert'}))
  elif kind == 'mpnet':
    words = (shared / 'vocab' / 'bert-base-uncased.txt').read_text().replace('[unk]', '[UNK]')
    vocabularies.mpnet(tmp_path / 'model', words.split())
  else:
    fairseq(tmp_path / 'model', kind, lines, 8000)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'model')
  theirs.save_pretrained(tmp_path / 'saved')
  expected = theirs(lines, add_special_tokens=False)['input_ids']
  for folder in ('model', 'saved'):
    tokenizer = tokenizers.load_folder(tmp_path / folder)
    assert [ids.tolist() for ids in tokenizer.ids_batch(lines)] == expected
    for role in ('cls', 'sep', 'pad', 'unk', 'mask'):
      named = {'cls': 'bos', 'sep': 'eos'}.get(role, role)
      assert getattr(tokenizer, f'{role}_id') == getattr(theirs, f'{named}_token_id')
  found = made('masked-lm', vocab_size=tokenizer.vocab_size)._replace(tokenizer=tokenizer)
  convert.export_run(tmp_path / 'hf', found, {})
  again = transformers.AutoTokenizer.from_pretrained(tmp_path / 'hf')
  assert again(lines, add_special_tokens=False)['input_ids'] == expected
  assert again(*lines[:2])['input_ids'] == theirs(*lines[:2])['input_ids']


@pytest.mark.parametrize('model_type', ['unigram', 'bpe'])
def test_ids_of_models_that_are_trained_here_are_sentencepieces(shared, model_type):
  """By the Rust library; of 1,500 lines in 15 languages all but one in a thousand."""
  lines = lines_of(shared, 100)
  control = dict(control_symbols=['[CLS]', '[SEP]', '[MASK]'], pad_id=3, pad_piece='[PAD]')
  settings = control | dict(vocab_size=3000, character_coverage=0.999)
  model = vocabularies.sentencepiece_model(lines, model_type=model_type, **settings)
  theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
  ids = tokenizers.Tokenizer(model_content(model)).ids_batch(lines)
  same = [a.tolist() == b for a, b in zip(ids, theirs.encode(lines), strict=True)]
  assert len(same) == 1500 and sum(same) >= 1498


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
  tokenizer = tokenizers.load_folder(tmp_path)
  assert tokenizer.splitting is None
  assert tokenizer.pieces == [theirs.id_to_token(i) for i in range(theirs.get_vocab_size())]
  for text in ('the OLD river crosses New York 12', 'cafés déjà-vu'):
    assert tokenizer.ids_batch([text])[0].tolist() == theirs.encode(text).ids
  (encoding,) = tokenizer.encode_batch(['the rivers'])
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
  added = {token['content']: token for token in plain.content['added_tokens']}
  size = plain.vocab_size
  for name in ('[E1]', 'river'):
    known = plain.pieces.index(name) if name in plain.pieces else size
    size += known == size
    added[name] = TOKEN | ADDED[flags] | {'id': known, 'content': name}
  added = sorted(added.values(), key=lambda token: token['id'])
  theirs = library.Tokenizer.from_file(
    str(written(tmp_path, plain.content | {'added_tokens': added}))
  )
  tokenizer = tokenizers.load(tmp_path / 'tokenizer.json')
  for text in SEARCHED:
    ids = theirs.encode(text, add_special_tokens=False).ids
    assert tokenizer.ids_batch([text])[0].tolist() == ids
    assert tokenizer.encode_batch([text])[0].ids.tolist() == ids
  typed = f'a {tokenizer.pieces[tokenizer.special_ids[-1]]} b'
  assert tokenizer.ids_batch([typed])[0].tolist() == plain.ids_batch([typed])[0].tolist()
  assert tokenizers.load(tokenizer.save(tmp_path / 'W')).fingerprint == tokenizer.fingerprint


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
    (template('[CLS] A', 'A B'), ((2,), None, None)),
    (template('[CLS] [MASK] A [SEP]', '[CLS] [MASK] A [SEP] B [SEP]'), ((2, 4), None, None)),
    (None, ((), None, None)),
  ],
)
def test_the_post_processor_says_what_stands_around_texts(tmp_path, post, expected):
  (tmp_path / 'config.json').write_text('{"model_type": "gpt2"}')
  written(tmp_path, berts(post_processor=post))
  tokenizer = tokenizers.load_folder(tmp_path)
  (tmp_path / 'config.json').write_text('{"objective": "mlm_nsp"}')
  tokenizer.save(tmp_path)
  for read in (tokenizer, tokenizers.load_folder(tmp_path)):
    assert read.begin_ids == expected[0] and read.fingerprint == tokenizer.fingerprint
    if expected[1]:
      read.check_encloses()
      assert (read.between, read.sep_id) == expected[1:]
    else:
      with refused('an encoder here reads .CLS. A .SEP. B .SEP.; mend'):
        read.check_encloses()


ENDS = {'sep': ['</s>', 2], 'cls': ['<s>', 0]}
TWO = {'type': 'RobertaProcessing', 'trim_offsets': True, 'add_prefix_space': False} | ENDS


@pytest.mark.parametrize(
  'kind, post, between',
  [
    ('MPNet', TWO, 2),
    ('PreTrained', TWO, 2),
    ('MPNet', {'type': 'BertProcessing'} | ENDS, 1),
    ('MPNet', None, 2),
    ('Bert', None, 1),
    ('Electra', None, 1),
  ],
)
def test_a_wordpiece_with_the_names_of_roberta_alone(tmp_path, kind, post, between):
  """Its vocab.txt is that of the tokenizer.json beside it, if there is one."""
  pieces = [XLM[2], XLM[0], XLM[3], XLM[1], '[UNK]', *WORDS[5:], XLM[4]]
  (tmp_path / 'vocab.txt').write_text('\n'.join(pieces))
  (tmp_path / 'tokenizer_config.json').write_text(f'{{"tokenizer_class": "{kind}Tokenizer"}}')
  if post:
    model = berts()['model'] | {'vocab': {piece: i for i, piece in enumerate(pieces)}}
    written(tmp_path, berts(model=model, post_processor=post))
  tokenizer = tokenizers.load_folder(tmp_path)
  assert tokenizer.pieces == pieces and (tokenizer.cls_id, tokenizer.unk_id) == (0, 4)
  tokenizer.save(tmp_path / 'W')
  for read in (tokenizer, tokenizers.load_folder(tmp_path / 'W')):
    assert read.around == ((0,), (2,) * between, (2,)) and read.between == between
    assert read.fingerprint == tokenizer.fingerprint


def test_a_new_encoder_takes_no_vocabulary_that_encloses_texts_otherwise(tmp_path):
  path = written(tmp_path, berts(post_processor=template('[CLS] A', '[CLS] A B')))
  settings = f'tokenizer.path={path}', f'model.vocab_size={len(WORDS)}'
  config = c.load('configs/pretrain.py:runlocal', [f'--config.{x}' for x in settings])
  with refused('an encoder here reads .CLS. A .SEP. B .SEP.; mend'):
    run_tokenizer.load_or_train(config, None, list)
  config.model.causal = True
  assert run_tokenizer.load_or_train(config, None, list).begin_ids == (2,)


@pytest.mark.parametrize('as_object', [False, True])
def test_a_mask_and_padding_may_have_other_names(tmp_path, as_object):
  """As EuroBERT's, whose padding is what ends a text; and what is exported says so again."""
  name = lambda x: {'content': x, 'lstrip': True} if as_object else x
  gemma(tmp_path / 'theirs', mask_token=name('<|mask|>'), pad_token=name('<eos>'))
  path = tmp_path / 'theirs' / 'tokenizer.json'
  path.write_text(path.read_text().replace('"<mask>"', '"<|mask|>"'))
  tokenizer = tokenizers.load_folder(tmp_path / 'theirs')
  found = [tokenizer.mask_id, tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id]
  assert found == [4, 1, 2, 1]
  (typed,) = tokenizer.ids_batch(['the <|mask|> <eos>'])
  assert not {1, 4} & set(typed.tolist())
  found = made('masked-lm', vocab_size=tokenizer.vocab_size)._replace(tokenizer=tokenizer)
  convert.write_workdir(tmp_path / 'W', found, {})
  convert.export_run(tmp_path / 'hf', found, {})
  for folder in ('W', 'hf'):
    again = tokenizers.load_folder(tmp_path / folder)
    assert (again.fingerprint, again.mask_id, again.pad_id) == (tokenizer.fingerprint, 4, 1)


def test_a_wordpiece_in_a_tokenizer_json(tmp_path):
  """The ids are what it says, whatever the order of its lines, and accents stay if it says so."""
  model = berts()['model']
  model['vocab'] = dict(reversed(model['vocab'].items()))
  normalizer = berts()['normalizer'] | {'strip_accents': False}
  tokenizer = tokenizers.load(written(tmp_path, berts(model=model, normalizer=normalizer)))
  assert tokenizer.splitting == tokenizers.Splitting(strip_accents=False)
  assert tokenizer.pieces == list(WORDS)
  assert tokenizer.decode(tokenizer.ids_batch(['Café CAFE'])[0]) == 'café cafe'


def test_words_of_jieba_are_named_with_what_can_be_read(tmp_path):
  """RoFormer's vocabulary has 今天, a word of jieba, which BERT's splitting never makes."""
  pieces = [*tokenizers.RESERVED, '今天', '今', '天', '好', 'bert']
  (tmp_path / 'vocab.txt').write_text('\n'.join(pieces) + '\n')
  (tmp_path / 'config.json').write_text('{"model_type": "roformer"}')
  with refused('words by jieba. To read it by characters.* write "tokenizer_class": "BertTok'):
    tokenizers.load_folder(tmp_path)
  (tmp_path / 'tokenizer_config.json').write_text('{"tokenizer_class": "BertTokenizer"}')
  (ids,) = tokenizers.load_folder(tmp_path).ids_batch(['Bert今天好'])
  assert [pieces[i] for i in ids] == ['bert', '今', '天', '好']


# ------------------------------------------------------------------------------ refusals

UNSPLIT = {'type': 'BPE', 'vocab': {'<s>': 0, '<unk>': 1}, 'merges': []}
SPM, CONFIG = 'spiece.model', 'tokenizer_config.json'
SYMBOLS = dict(pad_id=3, pad_piece='[PAD]', control_symbols=['[MASK]'])


@pytest.mark.parametrize(
  'files, sentence',
  [
    ({'tokenizer.json': berts(model=UNSPLIT, pre_tokenizer=None)}, 'is a BPE whose words cannot'),
    ({'tokenizer.json': berts(added_tokens=[{'id': 99, 'content': 'x'}])}, 'do not count from 0'),
    ({'tokenizer.json': berts(normalizer='lower')}, 'is not built as a vocabulary is'),
    ({'tokenizer.json': berts(), 'vocab.txt': 'a\nb'}, 'differ: the id of .a. is .* in the one'),
    ({SPM: b'no model', CONFIG: {'tokenizer_class': 'AlbertTokenizer'}}, 'is not a SentenceP'),
    ({SPM: dict(model_type='bpe', vocab_size=60), 'config.json': {'model_type': 'albert'}},
      'is a unigram model'),
    ({SPM: {}, 'config.json': {'model_type': 'xlnet'}}, 'not known to be of a family'),
    ({'spm.model': {}, 'config.json': {'model_type': 'deberta-v2'}}, 'begins with .PAD. .CLS.'),
    ({'spm.model': SYMBOLS | dict(add_dummy_prefix=False)}, 'gives other ids for .* than Sentenc'),
    ({'spm.model': SYMBOLS | dict(treat_whitespace_as_suffix=True)}, 'gives other ids for'),
    ({'vocab.json': {'a': 0, 'b</w>': 1}, 'merges.txt': 'a b\n'}, 'is no vocabulary of bytes'),
    ({}, 'holds no vocabulary'),
  ],
  ids=str,
)  # fmt: skip
def test_what_would_give_other_ids_is_refused(tmp_path, files, sentence):
  for name, content in files.items():
    if name.endswith('.model') and isinstance(content, dict):
      content = vocabularies.sentencepiece_model(**content)
    elif isinstance(content, dict):
      content = json.dumps(content)
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
  with refused(sentence):
    tokenizers.load_folder(tmp_path)
