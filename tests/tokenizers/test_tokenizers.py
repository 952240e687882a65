"""Tokenizers give Google's pieces, survive hostile text, and vocabularies are reproducible."""

import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from tokenizers import BertWordPieceTokenizer

from bert_jax import tokenizers
from bert_jax.config import InputError
from bert_jax.tokenizers import wordpiece as wordpiece_module
from bert_jax.tokenizers.sentencepiece_trainer import train_sentencepiece
from bert_jax.tokenizers.wordpiece_trainer import train_wordpiece

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / 'shared' / 'data'
needs_shared = pytest.mark.skipif(
  not SHARED.exists(), reason=f'needs the reference data in {SHARED}, which is not there'
)
RESERVED = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
# The vocabulary of Google's own test; [PAD] and [MASK] stand at the end to leave its ids alone.
TOY = '[UNK] [CLS] [SEP] want ##want ##ed wa un runn ##ing , [PAD] [MASK]'
CORPUS = [
  'The quick brown fox jumps over the lazy dog; the dog sleeps, the fox jumped twice.',
  'Café owners in Zürich jump at the chance: 120 quicker foxes, 3 lazier dogs!',
  'A [MASK] typed in the text, [CLS] and [SEP] too, and <s> or </s>, are plain words.',
  '快速的棕色狐狸跳过了懒狗。',
] * 20


def rejects(call):
  """The one sentence with which the call is refused."""
  with pytest.raises(InputError) as error:
    call()
  assert '\n' not in str(error.value)
  return str(error.value)


def wordpiece(words, **settings):
  return tokenizers.WordPiece(RESERVED + words.split(), tokenizers.Splitting(**settings))


def pieces(tokenizer, text):
  return ' '.join(tokenizer.pieces[i] for i in tokenizer.ids_batch([text])[0])


@pytest.fixture(scope='module')
def spm(tmp_path_factory):
  path = tmp_path_factory.mktemp('spm') / 'toy.model'
  train_sentencepiece(CORPUS, path, vocab_size=78)
  return tokenizers.load(path)


# ------------------------------------------------------------------------------ WordPiece


@needs_shared
def test_golden_questions_of_squad():
  tokenizer = tokenizers.load(SHARED / 'vocab' / 'bert-base-uncased.txt')
  golden = SHARED / 'golden' / 'tokenizer'
  questions = json.loads((golden / 'question_tokens.json').read_text())
  ids = json.loads((golden / 'tokenized_questions.json').read_text())
  ours = tokenizer.ids_batch([q['original'] for q in questions])
  assert len(ours) == 10570
  wrong = [q['original'] for q, a, b in zip(questions, ours, ids) if a.tolist() != b]
  assert not wrong
  named = [[tokenizer.pieces[i] for i in row] for row in ours]
  assert named == [q['wordpiece'] for q in questions]


@needs_shared
def test_uncased_vocabulary_is_the_released_one(tmp_path):
  """The shared copy spells [unk] in small letters; saved, it is the released file, MD5 and all."""
  tokenizer = tokenizers.load(SHARED / 'vocab' / 'bert-base-uncased.txt')
  assert (tokenizer.vocab_size, tokenizer.special_ids) == (30522, (0, 100, 101, 102, 103))
  saved = tokenizer.save(tmp_path)
  assert hashlib.md5(saved.read_bytes()).hexdigest() == '64800d5d8528ce344256daf115d4965e'


@needs_shared
@pytest.mark.parametrize('name', ['cased', 'chinese', 'multilingual-cased'])
def test_released_vocabularies_come_back_byte_for_byte(name, tmp_path):
  path = SHARED / 'vocab' / f'bert-base-{name}.txt'
  tokenizer = tokenizers.load(path, do_lower_case=False)
  assert tokenizer.save(tmp_path).read_bytes() == path.read_bytes()
  again = tokenizers.load(tmp_path / 'vocab.txt', do_lower_case=False)
  assert again.fingerprint == tokenizer.fingerprint


def test_toy_cases_of_google():
  tokenizer = tokenizers.WordPiece(TOY.split())
  assert pieces(tokenizer, 'UNwant\u00e9d,running') == 'un ##want ##ed , runn ##ing'
  assert tokenizer.ids_batch(['UNwant\u00e9d,running'])[0].tolist() == [7, 4, 5, 10, 8, 9]
  assert pieces(tokenizer, 'unwantedX running') == '[UNK] runn ##ing'
  assert pieces(tokenizer, '') == ''
  basic = wordpiece('ah 博 推 zz hello ! how are you ?')
  assert pieces(basic, 'ah\u535a\u63a8zz') == 'ah 博 推 zz'
  spaced = ' \tHeLLo!how  \n Are yoU?  '
  assert pieces(basic, spaced) == 'hello ! how are you ?'
  assert pieces(basic, 'H\u00e9llo') == 'hello'


def test_cased_keeps_case_and_accents():
  cased = wordpiece('Hello hello Héllo', do_lower_case=False)
  assert pieces(cased, 'Hello hello Héllo HELLO') == 'Hello hello Héllo [UNK]'


def test_emoji_is_a_character_and_control_characters_are_not():
  tokenizer = wordpiece('\U0001f4a9 \U0001f923 ab')
  assert pieces(tokenizer, '\U0001f4a9 \U0001f923') == '💩 🤣'
  assert pieces(tokenizer, 'a\u200d\x00\ufffdb') == 'ab'
  assert pieces(tokenizer, 'a\ud83db') == 'ab', 'half an emoji must not stop a run'


def test_long_words_are_unknown():
  tokenizer = wordpiece('a ##a')
  assert pieces(tokenizer, 'a' * 100) == 'a' + ' ##a' * 99
  assert pieces(tokenizer, 'a' * 101) == '[UNK]'


def test_reserved_tokens_typed_in_a_text_are_plain_text():
  tokenizer = wordpiece('mask [ ] sep')
  text = '[MASK] [SEP] [mask]'
  assert pieces(tokenizer, text) == '[ mask ] [ sep ] [ mask ]'
  assert not set(tokenizer.encode_batch([text])[0].ids) & set(tokenizer.special_ids)
  masked = tokenizer.encode_with_masks('[MASK] sep [MASK]')
  assert masked.tolist() == [tokenizer.mask_id, tokenizer.pieces.index('sep'), tokenizer.mask_id]
  assert masked.dtype == np.int32


def test_offsets_point_into_the_text_as_given():
  tokenizer = wordpiece('uber ##zug hello 博 推 i ##n caf ##e , !')
  text = '\t Überzug,  Hello\u200b!推博 İn cafe\u0301 \U0001f4a9?'
  encoding = tokenizer.encode_batch([text])[0]
  shown = [(tokenizer.pieces[i], text[a:b]) for i, (a, b) in zip(encoding.ids, encoding.offsets)]
  assert shown[:8] == [
    ('uber', 'Über'),
    ('##zug', 'zug'),
    (',', ','),
    ('hello', 'Hello'),
    ('!', '!'),
    ('推', '推'),
    ('博', '博'),
    ('i', 'İ'),
  ]
  assert shown[8:10] == [('##n', 'n'), ('caf', 'caf')]
  assert shown[10][0] == '##e' and shown[10][1][0] == 'e'
  assert shown[11:] == [('[UNK]', '\U0001f4a9'), ('[UNK]', '?')]
  assert encoding.word_starts.tolist() == [p[:2] != '##' for p, _ in shown]


def test_both_ways_of_encoding_agree():
  tokenizer = wordpiece('the fox ##es jump ##ed , q ##u ##i ##c ##k')
  texts = CORPUS[:4] + ['', '   ']
  fast, full = tokenizer.ids_batch(texts), tokenizer.encode_batch(texts)
  for ids, encoding in zip(fast, full):
    assert ids.dtype == encoding.ids.dtype == encoding.offsets.dtype == np.int32
    assert ids.tolist() == encoding.ids.tolist()
    assert encoding.offsets.shape == (len(ids), 2) and encoding.word_starts.shape == (len(ids),)
  assert full[-1].ids.size == 0


def test_the_cache_changes_no_ids(monkeypatch):
  """Runs between blanks are encoded by themselves: no rule reaches across a blank."""
  odd = (
    ' \t\r\n\0\x01\x0b\x0c\x1c\x1d\x1e\x1f\x7f\x85\xa0\xad\u1680\u180e\u2003\u200b\u200d\u2028'
    '\u202f\u2060\u3000\ufeff\ufffd\ue000\u0301\u0323\u0345\u1100\u1161\u0e17\u0e35'
    'İıẞßΣςÉé狐あ😀\U0002f800ﬁ.[]#aAb'
  )
  letters = sorted({c for x in odd for c in (x + x.lower() + x.upper()) if c.isprintable()} - {' '})
  rng = np.random.default_rng(0)
  texts = [
    ''.join(rng.choice([*odd, *'    '], rng.choice([0, 1, 3, 10, 40, 150]))) for _ in range(1500)
  ]
  texts += ['x' * 300 + ' y', ' ', 'b ' * 50, 'a' * 15, 'a' * 25 + ' b']
  texts += [''.join(rng.choice([*odd, *'狐狐狐狐狐あ。'], 60)) for _ in range(300)]
  monkeypatch.setattr(wordpiece_module, '_KNOWN_RUNS', 100)
  pieces = RESERVED + letters + ['##' + c for c in letters] + ['##aa', 'ab', '狐狐', '##狐狐']
  for lower, chinese in itertools.product((True, False), (True, False)):
    options = {'do_lower_case': lower, 'tokenize_chinese_chars': chinese}
    tokenizer = tokenizers.WordPiece(pieces, tokenizers.Splitting(**options))
    for batch in (texts[:700], texts[600:], texts[::-1], texts[:50]):
      full, ids = tokenizer.encode_batch(batch), tokenizer.ids_batch(batch)
      assert [row.tolist() for row in ids] == [e.ids.tolist() for e in full]
      starts = tokenizer.word_starts(np.concatenate(ids), np.zeros(0, int))
      assert (starts == np.concatenate([e.word_starts for e in full])).all()
    assert max(map(len, tokenizer._known)) <= 20 and len(tokenizer._known) < 1000


def test_decode_joins_pieces_and_hides_padding():
  tokenizer = wordpiece('jump ##ing fox')
  ids = [2, 7, 4, 5, 6, 1, 3, 0, 0]
  assert tokenizer.decode(np.array(ids)) == 'fox [MASK] jumping [UNK]'


def test_fingerprint_tells_order_and_casing():
  words = ['a', 'b']
  same = tokenizers.WordPiece(RESERVED + words).fingerprint
  assert same == tokenizers.WordPiece(RESERVED + words).fingerprint
  others = [
    tokenizers.WordPiece(RESERVED + words[::-1]).fingerprint,
    tokenizers.WordPiece(RESERVED + words, tokenizers.Splitting(False)).fingerprint,
  ]
  assert len({same, *others}) == 3


def test_spaces_around_chinese_characters_are_a_flag_of_the_folder(tmp_path):
  words = '狐 狸 狐狸 ##狸 a'
  apart, joined = wordpiece(words), wordpiece(words, tokenize_chinese_chars=False)
  assert pieces(apart, 'a狐狸') == 'a 狐 狸' and pieces(joined, '狐狸 狐狐狸') == '狐狸 [UNK]'
  content = json.dumps(['wordpiece', True, apart.pieces])  # as before there was this flag
  assert apart.fingerprint == hashlib.sha256(content.encode()).hexdigest() != joined.fingerprint
  for tokenizer in (apart, joined):
    path = tokenizer.save(tmp_path)
    settings = json.loads((tmp_path / 'tokenizer_config.json').read_text())
    assert settings['tokenize_chinese_chars'] is (tokenizer is apart)
    for again in (tokenizers.load(path), tokenizers.load_folder(tmp_path)):
      assert again.fingerprint == tokenizer.fingerprint
  (tmp_path / 'tokenizer_config.json').unlink()
  assert tokenizers.load(path).fingerprint == apart.fingerprint
  assert tokenizers.load(path, tokenize_chinese_chars=False).fingerprint == joined.fingerprint


@needs_shared
def test_hugging_face_reads_what_we_save(tmp_path):
  transformers = pytest.importorskip('transformers')
  ours = tokenizers.load(SHARED / 'vocab' / 'bert-base-cased.txt', do_lower_case=False)
  ours.save(tmp_path)
  theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
  ids = [theirs(text, add_special_tokens=False)['input_ids'] for text in CORPUS[:2]]
  assert ids == [row.tolist() for row in ours.ids_batch(CORPUS[:2])]


# ------------------------------------------------------------------------------ files


@pytest.mark.parametrize(
  'content, says',
  [
    (b'', 'is empty'),
    (b'[PAD]\n[UNK]\nab\x00c\n', 'line 3 holds a zero byte'),
    (b'[PAD]\n\xff\xfe\n', 'not UTF-8 on line 2'),
    ('\n'.join(RESERVED + ['a', 'b', 'a']).encode(), "the piece 'a' on lines 6 and 8"),
    ('\n'.join(RESERVED[:4] + ['a']).encode(), 'has no [MASK]'),
    ('\n'.join(RESERVED + ['', 'a']).encode(), 'nothing on line 6'),
  ],
)
def test_damaged_vocabularies_are_refused_in_one_sentence(tmp_path, content, says):
  path = tmp_path / 'vocab.txt'
  path.write_bytes(content)
  assert says in rejects(lambda: tokenizers.load(path))


def test_windows_line_ends_and_a_missing_last_one_are_harmless(tmp_path):
  path = tmp_path / 'vocab.txt'
  path.write_bytes('\r\n'.join(RESERVED + ['a']).encode('utf-8-sig'))
  assert tokenizers.load(path).pieces == RESERVED + ['a']


def test_wrong_paths_and_wrong_models_are_refused_in_one_sentence(tmp_path):
  assert 'does not exist' in rejects(lambda: tokenizers.load(tmp_path / 'vocab.txt'))
  assert 'is a folder' in rejects(lambda: tokenizers.load(tmp_path))
  model = tmp_path / 'spm.model'
  model.write_bytes(b'not a model at all')
  assert 'not a SentencePiece model' in rejects(lambda: tokenizers.load(model))


def other_model(**settings):
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=78, minloglevel=2, **settings
  )
  return model.getvalue()


def test_sentencepiece_models_of_others():
  assert 'has no [PAD]' in rejects(lambda: tokenizers.SentencePiece(other_model()))
  settings = dict(pad_id=3, pad_piece='<pad>')
  roberta = tokenizers.SentencePiece(other_model(control_symbols=['<mask>'], **settings))
  names = [roberta.pieces[i] for i in (roberta.pad_id, roberta.unk_id, roberta.cls_id)]
  assert names == ['<pad>', '<unk>', '<s>']
  assert [roberta.pieces[i] for i in (roberta.sep_id, roberta.mask_id)] == ['</s>', '<mask>']
  typed = other_model(user_defined_symbols=['<mask>'], **settings)
  assert 'text could produce' in rejects(lambda: tokenizers.SentencePiece(typed))


def test_casing_that_contradicts_the_files_is_refused(tmp_path):
  path = wordpiece('Hello', do_lower_case=False).save(tmp_path)
  assert 'use do_lower_case=False' in rejects(lambda: tokenizers.load(path))
  assert pieces(tokenizers.load(path, do_lower_case=False), 'Hello') == 'Hello'


def test_a_folder_that_says_nothing_is_cased_if_its_words_are(tmp_path):
  for words, text, shown in (
    ('hello ##s', 'Hellos', 'hello ##s'),
    ('Hello ##s', 'Hellos', 'Hello ##s'),
  ):
    (tmp_path / 'vocab.txt').write_text('\n'.join(RESERVED + words.split()) + '\n')
    assert pieces(tokenizers.load_folder(tmp_path), text) == shown


@pytest.mark.parametrize(
  'content, says',
  [
    ('{', 'cannot be read as JSON'),
    ('[]', 'does not hold a JSON object'),
    ('{"do_lower_case": 0}', 'do_lower_case is 0; write true or false'),
    ('{"tokenize_chinese_chars": "no"}', "tokenize_chinese_chars is 'no'; write true or false"),
  ],
)
def test_a_damaged_tokenizer_config_is_refused_in_one_sentence(tmp_path, content, says):
  path = wordpiece('a').save(tmp_path)
  (tmp_path / 'tokenizer_config.json').write_text(content)
  assert says in rejects(lambda: tokenizers.load_folder(tmp_path))
  assert says in rejects(lambda: tokenizers.load(path))
  nothing = '{"do_lower_case": null, "tokenize_chinese_chars": null}'  # as Hugging Face may write
  (tmp_path / 'tokenizer_config.json').write_text(nothing)
  assert tokenizers.load_folder(tmp_path).fingerprint == wordpiece('a').fingerprint


def test_accents_that_stay_in_lower_case(tmp_path):
  """strip_accents false, as German uncased models have it; the ids are Hugging Face's."""
  path = wordpiece('über uber ##e', do_lower_case=True).save(tmp_path)
  said = {'do_lower_case': True, 'strip_accents': False}
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(said))
  tokenizer = tokenizers.load_folder(tmp_path)
  assert pieces(tokenizer, 'Über UBER') == 'über uber'
  plain = tokenizers.load(wordpiece('über uber ##e').save(tmp_path / 'plain'))
  assert pieces(plain, 'Über UBER') == 'uber uber' and plain.fingerprint != tokenizer.fingerprint
  theirs = BertWordPieceTokenizer(str(path), lowercase=True, strip_accents=False)
  text = 'Übere UBER über'
  ids = theirs.encode(text, add_special_tokens=False).ids
  assert tokenizer.ids_batch([text])[0].tolist() == ids
  tokenizer.save(tmp_path / 'again')
  assert tokenizers.load_folder(tmp_path / 'again').fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(
  'file, content, says',
  [
    ('tokenizer_config', {'tokenizer_class': 'BertJapaneseTokenizer'}, 'BertJapaneseTokenizer'),
    ('config', {'tokenizer_class': 'BertJapaneseTokenizer'}, 'BertJapaneseTokenizer'),
    ('tokenizer_config', {'word_tokenizer_type': 'mecab'}, 'word_tokenizer_type mecab'),
    ('tokenizer_config', {'subword_tokenizer_type': 'character'}, 'tokenizer_type character'),
    ('tokenizer_config', {'do_basic_tokenize': False}, 'do_basic_tokenize false'),
    ('tokenizer_config', {'never_split': ['a-b']}, 'never_split'),
    ('tokenizer_config', {'strip_accents': 'no'}, "strip_accents is 'no'"),
    ('added_tokens', {'new-token': 7}, "add 1 tokens .*'new-token'"),
    ('tokenizer_config', {'added_tokens_decoder': {'7': {'content': '<e>'}}}, "1 tokens .*'<e>'"),
    ('added_tokens', [], 'not hold a JSON object'),
  ],
)
def test_words_found_in_another_way_are_refused(tmp_path, file, content, says):
  wordpiece('a').save(tmp_path)
  if file == 'config':  # which is asked where tokenizer_config.json says nothing
    (tmp_path / 'tokenizer_config.json').unlink()
  path = tmp_path / f'{file}.json'
  path.write_text(json.dumps(content))
  assert re.search(says, rejects(lambda: tokenizers.load_folder(tmp_path)))
  harmless = {
    'added_tokens_decoder': {'4': {'content': '[MASK]'}},
    'tokenizer_class': 'BertTokenizer',
    'never_split': None,
    'do_basic_tokenize': True,
    'word_tokenizer_type': 'basic',
  }
  path.write_text(json.dumps({'[MASK]': 4} if file == 'added_tokens' else harmless))
  assert tokenizers.load_folder(tmp_path).fingerprint == wordpiece('a').fingerprint


def test_only_lists_of_strings_are_texts(spm):
  for tokenizer in (wordpiece('a'), spm):
    assert 'text 1 is bytes' in rejects(lambda t=tokenizer: t.ids_batch(['a', b'a']))
    assert 'put it in a list' in rejects(lambda t=tokenizer: t.encode_batch('a'))


# ------------------------------------------------------------------------------ training


def train(path, **settings):
  return train_wordpiece(CORPUS, path, **{'vocab_size': 300, **settings})


def test_trained_wordpiece_has_googles_layout_and_the_exact_size(tmp_path):
  counts = train(tmp_path / 'vocab.txt', vocab_size=200)
  lines = (tmp_path / 'vocab.txt').read_text().splitlines()
  assert len(lines) == len(set(lines)) == 200 and lines[:5] == RESERVED
  kept = counts['characters_kept']
  alphabet = lines[5 : 5 + kept]
  assert 'é' not in alphabet and {'f', '狐', '['} <= set(alphabet)
  # Chinese characters and punctuation always stand alone.
  inside = [c for c in alphabet if c.isalnum() and not '\u4e00' <= c <= '\u9fff']
  assert lines[5 + kept : 5 + kept + len(inside)] == ['##' + c for c in inside]
  assert not {'##狐', '##,', '##['} & set(lines)
  assert all(len(p.removeprefix('##')) > 1 for p in lines[5 + 2 * kept :])
  assert counts['unused'] == 0 and counts['pieces'] == 200
  tokenizer = tokenizers.load(tmp_path / 'vocab.txt')
  assert all(tokenizer.unk_id not in ids for ids in tokenizer.ids_batch(CORPUS))
  assert pieces(tokenizer, 'the dog') == 'the dog'


def test_a_small_corpus_is_filled_up(tmp_path):
  path = tmp_path / 'vocab.txt'
  counts = train_wordpiece(['ab ab b'], path, vocab_size=16)
  merged = [*RESERVED, 'a', 'b', '##a', '##b', 'ab']
  assert path.read_text().splitlines() == merged + [f'[unused{i}]' for i in range(6)]
  assert (counts['words'], counts['distinct_words']) == (3, 2)
  assert (counts['pieces'], counts['unused']) == (10, 6)
  tokenizer = tokenizers.load(path)
  assert tokenizer.special_ids == (0, 1, 2, 3, 4), '[unused0] is a piece like others'


def test_rare_characters_are_dropped_and_counted(tmp_path):
  texts = ['ab ' * 500 + 'axb']
  path = tmp_path / 'vocab.txt'
  counts = train_wordpiece(texts, path, vocab_size=12, character_coverage=0.999)
  assert (counts['characters_kept'], counts['characters_dropped']) == (2, 1)
  assert counts['words_with_dropped_characters'] == 1
  assert pieces(tokenizers.load(path), 'axb ab') == '[UNK] ab'


def test_cased_training_keeps_case(tmp_path):
  train(tmp_path / 'cased.txt', splitting=tokenizers.Splitting(do_lower_case=False))
  cased = tokenizers.load(tmp_path / 'cased.txt', do_lower_case=False)
  assert {'C', 'é'} <= set(cased.pieces) and 'e\u0301' not in ''.join(cased.pieces)


def test_vocabularies_are_the_same_bytes_in_every_process(tmp_path):
  script = (
    'import sys; sys.path.append("tests/tokenizers")\n'
    'from test_tokenizers import CORPUS, train_sentencepiece, train_wordpiece\n'
    'train_wordpiece(CORPUS, sys.argv[1] + "/vocab.txt", vocab_size=300)\n'
    'for kind in ("unigram", "bpe"):\n'
    '  train_sentencepiece(\n'
    '    CORPUS, sys.argv[1] + f"/{kind}.model", vocab_size=78, model_type=kind)'
  )
  digests = []
  for seed, threads in (('0', '1'), ('1', '8')):
    folder = tmp_path / seed
    folder.mkdir()
    env = {**os.environ, 'PYTHONHASHSEED': seed, 'RAYON_NUM_THREADS': threads}
    subprocess.run([sys.executable, '-c', script, str(folder)], cwd=ROOT, env=env, check=True)
    files = sorted(folder.iterdir())
    digests.append({f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files})
  assert len(digests[0]) == 3 and digests[0] == digests[1]


def test_training_that_cannot_work_is_refused_in_one_sentence(tmp_path):
  for trainer in (train_wordpiece, train_sentencepiece):

    def attempt(texts, size, trainer=trainer):
      return rejects(lambda: trainer(texts, tmp_path / 'out', vocab_size=size))

    assert 'holds no words' in attempt(['', ' \n '], 100)
    assert 'put it in a list' in attempt('one long string', 100)
    smallest = int(attempt(CORPUS, 20).split('use ')[1].split()[0])
    assert str(smallest) in attempt(CORPUS, smallest - 1)
    trainer(CORPUS, tmp_path / 'smallest', vocab_size=smallest)
  assert not (tmp_path / 'out').exists()
  too_large = rejects(lambda: train_sentencepiece(CORPUS, tmp_path / 'out', vocab_size=9999))
  largest = int(too_large.split('use ')[1].split()[0])
  counts = train_sentencepiece(CORPUS, tmp_path / 'most', vocab_size=largest)
  assert counts['pieces'] == largest
  bad_type = dict(vocab_size=78, model_type='word')
  said = rejects(lambda: train_sentencepiece(CORPUS, tmp_path / 'out', **bad_type))
  assert "use 'unigram' or 'bpe'" in said


# ------------------------------------------------------------------------------ SentencePiece


def test_sentencepiece_round_trip(spm, tmp_path):
  assert spm.pieces[:5] == RESERVED and spm.special_ids == (0, 1, 2, 3, 4)
  text = 'The lazy fox jumped over 3 dogs!'
  ids = spm.ids_batch([text])[0]
  assert ids.dtype == np.int32 and spm.decode(ids) == text
  again = tokenizers.load(spm.save(tmp_path))
  assert again.fingerprint == spm.fingerprint
  assert again.ids_batch([text])[0].tolist() == ids.tolist()
  padded = [spm.cls_id, *ids, spm.sep_id, spm.pad_id]
  assert spm.decode(padded) == text


def test_sentencepiece_never_reads_a_reserved_token_from_text(spm):
  typed = ['[MASK] [CLS] x[SEP]', '<s> </s> <pad> <mask>'] + CORPUS
  control = {spm.pad_id, spm.cls_id, spm.sep_id, spm.mask_id}
  assert not control & {int(i) for ids in spm.ids_batch(typed) for i in ids}
  masked = spm.encode_with_masks('the [MASK] jumps')
  assert masked.tolist().count(spm.mask_id) == 1
  assert spm.decode(masked) == 'the [MASK] jumps'


def test_sentencepiece_offsets_point_into_the_text_as_given(spm):
  text = '  Café  owners 狐狸 \U0001f4a9 the dog '
  encoding = spm.encode_batch([text])[0]
  assert encoding.ids.tolist() == spm.ids_batch([text])[0].tolist()
  assert encoding.offsets.dtype == np.int32
  starts = [int(a) for a in encoding.offsets[encoding.word_starts, 0]]
  words = ['Café', 'owners', '狐', '狸', '\U0001f4a9', 'the', 'dog']  # Han characters are words
  assert starts == [text.index(w) for w in words]
  covered = ''.join(text[a:b] for a, b in encoding.offsets)
  assert covered == ''.join(text.split())
  assert spm.encode_batch([''])[0].offsets.shape == (0, 2)


def test_words_of_scripts_without_blanks(tmp_path):
  """Without a segmenter a piece of such a script is a word; letters after it begin one."""
  texts = [
    '今天天气很好。ABC公司 made it x',
    'これは日本語です。カタカナ',
    'ภาษาไทย abc',
    'the fox x',
  ]
  path = tmp_path / 'm.model'
  train_sentencepiece(texts * 50, path, vocab_size=47, character_coverage=1.0)
  tokenizer = tokenizers.load(path)

  def words(text):
    e = tokenizer.encode_batch([text])[0]
    ends = np.append(np.flatnonzero(e.word_starts)[1:], len(e.ids))
    spans = zip(e.offsets[e.word_starts, 0], e.offsets[ends - 1, 1])
    return [text[a:b] for a, b in spans]

  assert words('made 今天x the fox') == ['made', '今', '天', 'x', 'the', 'fox']
  assert words('x。ABC公司 made') == ['x', '。', 'ABC', '公', '司', 'made']
  assert words('日本カナ abc') == ['日', '本', 'カ', 'ナ', 'abc']
  assert ' '.join(words('ไทยx')) == 'ไ ท ย x'
  batch = [*texts, '', 'x', ' ', '今x', 'fox']
  ids, full = tokenizer.ids_batch(batch), tokenizer.encode_batch(batch)
  lengths = np.array([len(row) for row in ids])
  begins = (np.cumsum(lengths) - lengths)[lengths > 0]
  starts = tokenizer.word_starts(np.concatenate(ids), begins)
  assert (starts == np.concatenate([e.word_starts for e in full])).all()


def test_sentencepiece_leaves_no_text_out(tmp_path):
  """The library skips lines that are long or hold characters it uses itself."""
  texts = ['abc ' * 10, 'x' * 50_000, 'q\u2585z \0 j'] * 3
  counts = train_sentencepiece(
    texts, tmp_path / 'm.model', vocab_size=30, model_type='bpe', character_coverage=1.0
  )
  assert counts['characters'] >= 3 * 50_000
  assert set('abcxqzj') <= set(''.join(tokenizers.load(tmp_path / 'm.model').pieces))
