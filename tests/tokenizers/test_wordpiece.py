"""WordPiece gives Google's pieces, survives hostile text, and reads a vocab.txt with its files."""

import hashlib
import itertools
import json

import numpy as np
import pytest
from refusal import refused

from bert_jax import tokenizers
from bert_jax.tokenizers import RESERVED, runs

# The vocabulary of Google's own test; [PAD] and [MASK] stand at the end to leave its ids alone.
TOY = '[UNK] [CLS] [SEP] want ##want ##ed wa un runn ##ing , [PAD] [MASK]'


def wordpiece(words, **settings):
  return tokenizers.wordpiece_tokenizer(
    [*RESERVED, *words.split()], tokenizers.Splitting(**settings)
  )


def pieces(tokenizer, text):
  return ' '.join(tokenizer.pieces[i] for i in tokenizer.ids_batch([text])[0])


def test_golden_questions_of_squad(shared):
  tokenizer = tokenizers.load(shared / 'vocab' / 'bert-base-uncased.txt')
  golden = shared / 'golden' / 'tokenizer'
  questions = json.loads((golden / 'question_tokens.json').read_text())
  ours = tokenizer.ids_batch([q['original'] for q in questions])
  assert len(ours) == 10570
  expected = json.loads((golden / 'tokenized_questions.json').read_text())
  assert [row.tolist() for row in ours] == expected
  named = [[tokenizer.pieces[i] for i in row] for row in ours]
  assert named == [q['wordpiece'] for q in questions]


def test_released_vocabularies_come_back_byte_for_byte(shared, tmp_path):
  """The shared copy of the uncased one spells [unk] in small letters; saved, it is the release."""
  for name in ('uncased', 'cased', 'chinese', 'multilingual-cased'):
    path, lower = shared / 'vocab' / f'bert-base-{name}.txt', name == 'uncased'
    tokenizer = tokenizers.load(path, do_lower_case=lower)
    saved = tokenizer.save(tmp_path / name).read_bytes()
    assert lower or saved == path.read_bytes()
    again = tokenizers.load(tmp_path / name / 'vocab.txt', do_lower_case=lower)
    assert again.fingerprint == tokenizer.fingerprint
    if lower:
      assert (tokenizer.vocab_size, tokenizer.special_ids) == (30522, (0, 100, 101, 102, 103))
      assert hashlib.md5(saved).hexdigest() == '64800d5d8528ce344256daf115d4965e'


@pytest.mark.parametrize(
  'words, settings, text, expected',
  [
    (TOY, {}, 'UNwant\u00e9d,running', 'un ##want ##ed , runn ##ing'),
    (TOY, {}, 'unwantedX running', '[UNK] runn ##ing'),
    ('ah 博 推 zz', {}, 'ah\u535a\u63a8zz', 'ah 博 推 zz'),
    ('hello ! how are you ?', {}, ' \tHeLLo!how  \n Are yoU?  ', 'hello ! how are you ?'),
    ('hello', {}, 'H\u00e9llo', 'hello'),
    ('Hello hello Héllo', {'do_lower_case': False}, 'Hello Héllo HELLO', 'Hello Héllo [UNK]'),
    ('über uber ##e', {'strip_accents': False}, 'Über UBER', 'über uber'),
    ('über uber ##e', {}, 'Über UBER', 'uber uber'),
    ('狐 狸 狐狸 ##狸 a', {}, 'a狐狸', 'a 狐 狸'),
    ('狐 狸 狐狸 ##狸 a', {'tokenize_chinese_chars': False}, '狐狸 狐狐狸', '狐狸 [UNK]'),
    ('\U0001f4a9 \U0001f923 ab', {}, '\U0001f4a9 \U0001f923', '💩 🤣'),
    ('ab', {}, 'a\u200d\x00\ufffdb', 'ab'),
    ('ab', {}, 'a\ud83db', 'ab'),  # half an emoji must not stop a run
    ('a ##a', {}, 'a' * 100, 'a' + ' ##a' * 99),
    ('a ##a', {}, 'a' * 101, '[UNK]'),
    ('mask [ ] sep', {}, '[MASK] [SEP] [mask]', '[ mask ] [ sep ] [ mask ]'),
  ],
)
def test_pieces_of_a_text(words, settings, text, expected):
  words = words.split()
  splitting = tokenizers.Splitting(**settings)
  ours = tokenizers.wordpiece_tokenizer(
    words if words[0] == '[UNK]' else [*RESERVED, *words], splitting
  )
  assert pieces(ours, text) == expected


def test_offsets_point_into_the_text_as_given():
  tokenizer = wordpiece('uber ##zug hello 博 推 i ##n caf ##e , !')
  text = '\t Überzug,  Hello\u200b!推博 İn cafe\u0301 \U0001f4a9?'
  encoding = tokenizer.encode_batch([text])[0]
  shown = [(tokenizer.pieces[i], text[a:b]) for i, (a, b) in zip(encoding.ids, encoding.offsets)]
  accent = shown.pop(10)  # which may be a part of its letter
  assert accent[0] == '##e' and accent[1][0] == 'e'
  names = ['uber', '##zug', ',', 'hello', '!', '推', '博', 'i', '##n', 'caf', '[UNK]', '[UNK]']
  assert shown == list(zip(names, ['Über', 'zug', ',', 'Hello', *'!推博İn', 'caf', '💩', '?']))
  assert encoding.word_starts.tolist() == [p[:2] != '##' for p in (*names[:10], '##e', *names[10:])]


def test_the_cache_changes_no_ids(monkeypatch):
  """Runs between blanks are encoded by themselves: no rule reaches across a blank."""
  odd = (
    ' \t\r\n\0\x01\x0b\x0c\x1c\x1d\x1e\x1f\x7f\x85\xa0\xad\u1680\u180e\u2003\u200b\u200d\u2028'
    '\u202f\u2060\u3000\ufeff\ufffd\ue000\u0301\u0323\u0345\u1100\u1161\u0e17\u0e35'
    'İıẞßΣςÉé狐あ😀\U0002f800ﬁ.[]#aAb'
  )
  letters = sorted({c for x in odd for c in (x + x.lower() + x.upper()) if c.isprintable()} - {' '})
  rng = np.random.default_rng(0)
  drawn = lambda letters, size: ''.join(rng.choice([*letters], size))
  texts = [drawn(odd + '    ', rng.choice([0, 1, 3, 10, 40, 150])) for _ in range(600)]
  texts += ['x' * 300 + ' y', ' ', 'b ' * 50, 'a' * 15, 'a' * 25 + ' b', '[MASK] a']
  texts += [drawn(odd + '狐狐狐狐狐あ。', 60) for _ in range(120)]
  monkeypatch.setattr(runs, 'KNOWN_RUNS', 100)
  known = [*RESERVED, *letters, *('##' + c for c in letters), '##aa', 'ab', '狐狐', '##狐狐']
  for lower, chinese in itertools.product((True, False), (True, False)):
    ours = tokenizers.wordpiece_tokenizer(known, tokenizers.Splitting(lower, chinese))
    for batch in (texts[:330], texts[270:], texts[::-1], texts[:50]):
      same_both_ways(ours, batch)
    ours.ids_batch(['a' * 21, 'b' * 20, 'b' * 21 + ' c'])
    assert 'b' * 20 in ours._ids_of_runs and max(map(len, ours._ids_of_runs)) == 20
    assert len(ours._ids_of_runs) <= 100


def same_both_ways(tokenizer, texts):
  full, ids = tokenizer.encode_batch(texts), tokenizer.ids_batch(texts)
  assert [row.tolist() for row in ids] == [e.ids.tolist() for e in full]
  starts = tokenizer.word_starts(np.concatenate(ids), np.zeros(0, int))
  assert (starts == np.concatenate([e.word_starts for e in full])).all()


def test_decode_joins_pieces_and_hides_padding():
  tokenizer = wordpiece('jump ##ing fox')
  assert tokenizer.decode(np.array([2, 7, 4, 5, 6, 1, 3, 0, 0])) == 'fox [MASK] jumping [UNK]'


def test_the_fingerprint_tells_order_and_splitting_and_a_folder_keeps_them(tmp_path):
  default = wordpiece('狐 狐狸 A')
  others = [wordpiece('狐狸 狐 A')]
  flags = 'do_lower_case', 'tokenize_chinese_chars', 'strip_accents'
  others += [wordpiece('狐 狐狸 A', **{flag: False}) for flag in flags]
  assert len({default.fingerprint, *(x.fingerprint for x in others)}) == 5
  for tokenizer in (default, *others):
    path, splitting = tokenizer.save(tmp_path), tokenizer.splitting
    again = tokenizers.load(path, do_lower_case=splitting.do_lower_case)
    assert again.fingerprint == tokenizer.fingerprint
    assert tokenizers.load_folder(tmp_path).splitting == splitting
  default.save(tmp_path)
  (tmp_path / 'tokenizer_config.json').unlink()
  assert tokenizers.load(path).fingerprint == default.fingerprint


# ------------------------------------------------------------------------------ files


@pytest.mark.parametrize(
  'name, content, says',
  [
    ('vocab.txt', b'', r'has no \[PAD\]'),
    ('vocab.txt', b'[PAD]\n\xff\xfe\n', 'is not built as a vocabulary is .*UnicodeDecodeError'),
    ('vocab.txt', '\n'.join([*RESERVED, 'a', '', 'b']), 'line 7 has nothing'),
    ('vocab.txt', '\n'.join([*RESERVED, 'a', 'b', 'a']), "line 8 has 'a', as line 6 does"),
    ('vocab.txt', None, 'is no file'),
    ('spm.model', b'not a model at all', 'not a SentencePiece model'),
  ],
)
def test_damaged_vocabularies_are_refused_in_one_sentence(tmp_path, name, content, says):
  if content is not None:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
  with refused(says):
    tokenizers.load(tmp_path / name)


@pytest.mark.parametrize('end', ['\r', '\r\n'])
def test_line_ends_of_other_systems_in_a_vocabulary(tmp_path, end):
  path = tmp_path / 'vocab.txt'
  path.write_bytes(end.join([*RESERVED, 'a', 'b', '', '']).encode())
  assert tokenizers.load(path).pieces == [*RESERVED, 'a', 'b']


@pytest.mark.parametrize('capitals, lower', [(0, True), (5, True), (6, False)])
def test_a_vocabulary_is_cased_by_the_share_of_its_words(tmp_path, capitals, lower):
  """Words of a domain in the unused places of an uncased vocabulary do not make it cased."""
  words = [f'{x}{y}' for x in 'abcdefghij' for y in 'abcdefghij']
  words[:capitals] = [word.upper() for word in words[:capitals]]
  (tmp_path / 'vocab.txt').write_text('\n'.join([*RESERVED, *words]) + '\n')
  assert tokenizers.load_folder(tmp_path).do_lower_case == lower


def test_casing_that_contradicts_the_files_is_refused(tmp_path):
  path = wordpiece('Hello', do_lower_case=False).save(tmp_path)
  with refused('do_lower_case is False; use that'):
    tokenizers.load(path)
  assert pieces(tokenizers.load(path, do_lower_case=False), 'Hello') == 'Hello'


def test_a_piece_that_is_missing_is_named_when_it_is_asked_for(tmp_path):
  (tmp_path / 'vocab.txt').write_text('\n'.join([*RESERVED[:4], 'a']))
  tokenizer = tokenizers.load_folder(tmp_path)
  with refused(r'has no \[MASK\]'):
    tokenizer.encode_with_masks('a [MASK]')


CONFIG = 'tokenizer_config'


@pytest.mark.parametrize(
  'file, content, says',
  [
    (CONFIG, '{', 'cannot be read as JSON'),
    (CONFIG, [], 'does not hold a JSON object'),
    (CONFIG, {'tokenizer_class': 'BertJapaneseTokenizer'}, 'class bertjapanese'),
    ('config', {'tokenizer_class': 'BertJapaneseTokenizer'}, 'class bertjapanese'),
    ('config', {'model_type': 'roformer'}, 'roformer'),
  ],
)
def test_words_found_in_another_way_are_refused(tmp_path, file, content, says):
  vocabulary = wordpiece('a').save(tmp_path)
  if file == 'config':  # which is asked where tokenizer_config.json says nothing
    (tmp_path / 'tokenizer_config.json').unlink()
  path = tmp_path / f'{file}.json'
  path.write_text(content if isinstance(content, str) else json.dumps(content))
  for read, place in (tokenizers.load, vocabulary), (tokenizers.load_folder, tmp_path):
    with refused(says):
      read(place)


def test_what_a_file_beside_it_leaves_open(tmp_path):
  wordpiece('a').save(tmp_path)
  said = dict.fromkeys(['do_lower_case', 'tokenize_chinese_chars', 'strip_accents'])
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(said))
  assert tokenizers.load_folder(tmp_path).fingerprint == wordpiece('a').fingerprint
