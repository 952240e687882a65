"""RoBERTa's kind of vocabulary, and vocabularies that lie in a tokenizer.json."""

import json

import numpy as np
import pytest
import tokenizers as library
from released import WORDS, made

from bert_jax import config as c
from bert_jax import tokenizers
from bert_jax.config import InputError
from bert_jax.predict import Model
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.tagging import conll, task
from bert_jax.tools import convert
from bert_jax.workdir.trained import load

SPECIAL = ['<s>', '<pad>', '</s>', '<unk>', '<mask>']
TEXTS = [
  'the river crosses the old stone',
  ' The café near the river!',
  '河流 crosses',
  '',
  "it's 2,345 ",
  '<mask> and </s> are plain words',
]


@pytest.fixture(scope='module')
def trained():
  """A byte-level BPE as Hugging Face's library trains it."""
  theirs = library.ByteLevelBPETokenizer()
  theirs.train_from_iterator(TEXTS * 3, 320, 2, special_tokens=SPECIAL)
  return theirs


@pytest.fixture
def folder(tmp_path, trained):
  trained.save_model(str(tmp_path))
  return tmp_path


def plain(trained):
  """The trained one without special tokens: what a text means that happens to hold one."""
  content = json.loads(trained.to_str()) | {'added_tokens': []}
  return library.Tokenizer.from_str(json.dumps(content))


def test_ids_and_offsets_are_those_of_the_library(folder, trained):
  ours, theirs = tokenizers.load_folder(folder), plain(trained)
  assert (ours.cls_id, ours.pad_id, ours.sep_id, ours.unk_id, ours.mask_id) == (0, 1, 2, 3, 4)
  for text, ids, encoding in zip(TEXTS, ours.ids_batch(TEXTS), ours.encode_batch(TEXTS)):
    assert ids.tolist() == theirs.encode(text).ids == encoding.ids.tolist()
    assert ours.decode(ids) == text
  found = ours.encode_batch([' The café'])[0]
  spans = [' The café'[a:b] for a, b in found.offsets]
  assert all(span == span.strip() != '' for span in spans)
  assert found.offsets[0, 0] == 1 and found.offsets[-1, 1] == 9
  for text in (' The café', 'The café'):  # the first word of a text may have no blank
    starts = ours.encode_batch([text])[0].word_starts
    assert starts[0] and starts.sum() == 2
  ids = ours.ids_batch(['café', 'the river'])
  starts = ours.word_starts(np.concatenate(ids), np.array([0, len(ids[0])]))
  assert starts.sum() == 3 and starts[0] and starts[len(ids[0])]
  assert not set(ours.special_ids) & set(np.concatenate(ours.ids_batch(TEXTS)).tolist())


def test_a_mask_takes_the_blank_before_it(folder):
  ours = tokenizers.load_folder(folder)
  ids = ours.encode_with_masks('the [MASK] crosses')
  first, last = ours.ids_batch(['the', ' crosses'])
  assert ids.tolist() == [*first, 4, *last]
  assert ours.decode(ids) == 'the [MASK] crosses'
  assert ours.decode(ours.encode_with_masks('[MASK] [MASK]  crosses ')) == '[MASK] [MASK]  crosses '


@pytest.mark.parametrize('blanks', [(), (False, True, True, True, True, True, False)])
def test_words_to_tag_are_the_pieces_they_are_in_a_text(folder, blanks):
  """Data says nothing of blanks: all words but the first are taken to stand after one."""
  ours = tokenizers.load_folder(folder)
  text = 'the river crosses the old stone' + (' !', '!')[bool(blanks)]
  words = ('the', 'river', 'crosses', 'the', 'old', 'stone', '!')
  config = c.load('configs/finetune.py:task=ner', ['--config.tagging.labels=B-PER,I-PER,O'])
  sentence = conll.Sentence('', '', words, None, (), blanks)
  found = task.Tagged(config, ours, [sentence], Problems('eval'))
  (ids,) = ours.ids_batch([text])
  np.testing.assert_array_equal(found.texts[0][0], ids)
  assert not np.array_equal(ids, np.concatenate(ours.ids_batch(words)))


def gpt2(path):
  """A folder with the vocabulary of a GPT-2, trained here: one special token, which is the last."""
  theirs = library.ByteLevelBPETokenizer()
  theirs.train_from_iterator(TEXTS * 3, 319, 2)
  theirs.add_special_tokens(['<|endoftext|>'])
  path.mkdir(exist_ok=True)
  theirs.save(str(path / 'tokenizer.json'))
  return theirs


def test_a_gpt2_has_one_special_token_which_begins_and_ends_texts(tmp_path):
  theirs, ours = gpt2(tmp_path), tokenizers.load_folder(tmp_path)
  end = theirs.token_to_id('<|endoftext|>')
  assert isinstance(ours, tokenizers.ByteLevel) and end == ours.vocab_size - 1
  assert (ours.cls_id, ours.sep_id, ours.special_ids) == (end, end, (end,))
  (ids,) = ours.ids_batch(['the river <|endoftext|>'])  # which is plain where it is typed
  assert end not in ids and ours.decode([end, *ids, end]) == 'the river <|endoftext|>'
  assert ours.decode(range(end)) == ours.rust.decode(list(range(end)))
  for name in ('unk_id', 'pad_id'):  # no text has it, and nothing that is shown is padding
    assert getattr(ours, name) == end
  with pytest.raises(InputError, match='has no .MASK. .nor <mask>., and what is asked of this'):
    assert ours.mask_id
  with pytest.raises(InputError, match='has no .MASK.'):
    ours.encode_with_masks('a [MASK]')


def test_a_gpt2_in_two_files_is_the_same(tmp_path):
  gpt2(tmp_path / 'one')
  content = json.loads((tmp_path / 'one' / 'tokenizer.json').read_text())
  (tmp_path / 'two').mkdir()
  vocabulary = content['model']['vocab']
  vocabulary |= {'<|endoftext|>': len(vocabulary)}
  (tmp_path / 'two' / 'vocab.json').write_text(json.dumps(vocabulary))
  merges = [' '.join(pair) for pair in content['model']['merges']]
  (tmp_path / 'two' / 'merges.txt').write_text('\n'.join(['#version: 0.2', *merges]) + '\n')
  one, two = (tokenizers.load_folder(tmp_path / x) for x in ('one', 'two'))
  assert one.fingerprint == two.fingerprint


def test_two_texts_stand_two_seps_apart(folder, tokenizer):
  """RoBERTa's <s> A </s></s> B </s>, BERT's [CLS] A [SEP] B [SEP]."""
  first, second = np.array([7, 8], np.int32), np.array([9], np.int32)
  ours = tokenizers.load_folder(folder)
  assert [part.tolist() for part in ours.pair(first, second)] == [[7, 8, ours.sep_id], [9]]
  assert [part.tolist() for part in tokenizer.pair(first, second)] == [[7, 8], [9]]


def test_every_form_of_it_is_the_same(folder, trained, tmp_path):
  pair = tokenizers.load_folder(folder)
  (tmp_path / 'one').mkdir()
  trained.save(str(tmp_path / 'one' / 'tokenizer.json'))
  assert tokenizers.load_folder(tmp_path / 'one').fingerprint == pair.fingerprint
  pair.save(tmp_path / 'two')
  assert tokenizers.load_folder(tmp_path / 'two').fingerprint == pair.fingerprint


def test_a_wordpiece_in_a_tokenizer_json(tmp_path):
  """As transformers 5 saves one: without a vocab.txt."""
  for lower in (True, False):
    found = made('masked-lm', lower)
    out = tmp_path / str(lower)
    convert.export_run(out, found, {})
    for name in ('vocab.txt', 'tokenizer_config.json', 'checksums.json'):
      (out / name).unlink()
    assert load(out).tokenizer.fingerprint == found.tokenizer.fingerprint


def test_ids_of_a_tokenizer_json_are_what_it_says(tmp_path):
  """Whatever the order of its lines."""
  path = tmp_path / 'tokenizer.json'
  content = {
    'model': {'type': 'WordPiece', 'vocab': {w: i for i, w in reversed([*enumerate(WORDS)])}},
    'pre_tokenizer': {'type': 'BertPreTokenizer'},
    'normalizer': {'type': 'BertNormalizer', 'lowercase': True},
  }
  path.write_text(json.dumps(content))
  assert tokenizers.load(path).pieces == list(WORDS)


@pytest.mark.parametrize(
  'change, sentence',
  [
    ({'model': {'type': 'Unigram', 'vocab': [[word, 0.0] for word in WORDS]}}, 'Unigram split by'),
    ({'model': {'type': 'Unigram', 'vocab': [['a', 0.0]]}}, 'has no .PAD. .nor <pad>'),
    ({'added_tokens': [{'id': 99, 'content': 'new'}]}, 'do not count from 0'),
    ({'added_tokens': [{'id': 99, 'content': 'new', 'special': True}]}, 'do not count from 0'),
    ({'added_tokens': [{'id': 99}]}, 'is not built as a vocabulary is .*KeyError'),
    ({'added_tokens': 3}, 'is not built as a vocabulary is'),
    ({'normalizer': 'lower'}, 'is not built as a vocabulary is'),
    ({'normalizer': {'type': 'BertNormalizer', 'lowercase': 'no'}}, "do_lower_case is 'no'"),
    ({'model': {'type': 'WordPiece', 'vocab': ['a', 'b']}}, 'is not built as a vocabulary is'),
    ({'model': {'type': 'WordPiece', 'vocab': {'a': '0'}}}, "the id of 'a' in .* is no number"),
    (
      {
        'model': {'type': 'BPE', 'vocab': {}},
        'normalizer': None,
        'pre_tokenizer': {'type': 'ByteLevel'},
      },
      'is not built .*KeyError: merges',
    ),
    (
      {
        'model': {
          'type': 'WordPiece',
          'vocab': {word: i for i, word in enumerate([*WORDS, '\ud83d'])},
        }
      },
      'is not built as a vocabulary is',
    ),
    (
      {
        'model': {
          'type': 'BPE',
          'vocab': {'<s>': 0, '<pad>': 1, '</s>': 2, '<unk>': 3, '<mask>': 4},
          'merges': ['a b'],
        },
        'normalizer': None,
        'pre_tokenizer': {'type': 'ByteLevel'},
      },
      'is not built as a vocabulary is',
    ),
  ],
)
def test_what_would_give_other_ids_is_refused(tmp_path, change, sentence):
  content = {
    'model': {'type': 'WordPiece', 'vocab': {word: i for i, word in enumerate(WORDS)}},
    'pre_tokenizer': {'type': 'BertPreTokenizer'},
    'normalizer': {'type': 'BertNormalizer', 'lowercase': True},
  }
  path = tmp_path / 'tokenizer.json'
  path.write_text(json.dumps(content))
  assert tokenizers.load(path).pieces == list(WORDS)
  path.write_text(json.dumps(content | change))
  with pytest.raises(InputError, match=sentence) as caught:
    tokenizers.load(path)
  assert '\n' not in str(caught.value)


def test_accents_that_a_tokenizer_json_keeps(tmp_path):
  content = {
    'model': {'type': 'WordPiece', 'vocab': {word: i for i, word in enumerate(WORDS)}},
    'pre_tokenizer': {'type': 'BertPreTokenizer'},
    'normalizer': {'type': 'BertNormalizer', 'lowercase': True, 'strip_accents': False},
  }
  path = tmp_path / 'tokenizer.json'
  path.write_text(json.dumps(content))
  (ids,) = tokenizers.load(path).ids_batch(['Café CAFE'])
  assert [WORDS[i] for i in ids] == ['café', 'cafe']


@pytest.mark.parametrize(
  'change, sentence',
  [
    (lambda merges: merges[: merges.rindex(b' ')], 'merges.txt has a line that is no pair'),
    (lambda merges: merges + b'\xff\xfe \xff\n', 'merges.txt is not built .*UnicodeDecodeError'),
    (lambda merges: merges + b'zz qq\n', 'merges.txt is not built as a vocabulary is'),
  ],
)
def test_damaged_merges_are_one_sentence(folder, change, sentence):
  path = folder / 'merges.txt'
  path.write_bytes(change(path.read_bytes()))
  with pytest.raises(InputError, match=sentence):
    tokenizers.load_folder(folder)


def test_its_own_mask_is_one_too(folder, caplog):
  tokenizer = tokenizers.load_folder(folder)
  found = made('masked-lm', vocab_size=tokenizer.vocab_size)._replace(tokenizer=tokenizer)
  ours, theirs = Model(found).fill_mask(['the [MASK] crosses', 'the <mask> crosses'])
  assert [piece for piece, _ in ours[0]] == [piece for piece, _ in theirs[0]]
  convert.export_run(folder / 'hf', found, {})
  path = folder / 'hf' / 'tokenizer.json'
  tokenizers.load(path)
  assert 'leaves the blank' not in caplog.text
  path.write_text(path.read_text().replace('"lstrip": true', '"lstrip": false'))
  tokenizers.load(path)
  assert 'leaves the blank before <mask> to the text' in caplog.text


@pytest.mark.slow
def test_their_roberta_tokenizer_gives_our_ids(folder, tmp_path):
  transformers = pytest.importorskip('transformers')
  mask = transformers.AddedToken('<mask>', lstrip=True, special=True)  # as RoBERTa's releases say
  theirs = transformers.RobertaTokenizer.from_pretrained(folder, mask_token=mask)
  ours = tokenizers.load_folder(folder)
  for text in TEXTS[:-1]:
    assert theirs(text)['input_ids'] == [0, *ours.ids_batch([text])[0], 2]
  assert theirs('the <mask> crosses')['input_ids'] == [
    0,
    *ours.encode_with_masks('the [MASK] crosses'),
    2,
  ]
  found = made('masked-lm', vocab_size=ours.vocab_size)
  convert.export_run(tmp_path / 'hf', found._replace(tokenizer=ours), {})
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'hf')
  assert (theirs.mask_token, theirs.pad_token_id) == ('<mask>', 1)
  for text in TEXTS[:-1]:
    assert theirs(text)['input_ids'] == [0, *ours.ids_batch([text])[0], 2]
  assert theirs('the <mask> crosses')['input_ids'] == [
    0,
    *ours.encode_with_masks('the [MASK] crosses'),
    2,
  ]
