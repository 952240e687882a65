"""The spm.model of a DeBERTa: SentencePiece's ids, then [MASK]; and what transformers reads."""

import base64
import json
import types

import numpy as np
import pytest
import sentencepiece
from refusal import refused
from vocabularies import TEXTS, sentencepiece_model

from bert_jax import tokenizers
from bert_jax.convert import exported_tokenizers
from bert_jax.convert.families import FAMILIES

# As microsoft/deberta-v3-* have them.
SPECIAL = dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3, vocab_size=120)
SPECIAL |= dict(pad_piece='[PAD]', bos_piece='[CLS]', eos_piece='[SEP]', unk_piece='[UNK]')
ODD = [
  '  two  blanks\tand a tab ',
  'ﬁne ½ Ａ　Ｂ ｶﾞ é e\u0301tude',
  'a\u00a0b\r\nc',
  '',
  '   ',
  '[MASK] and [CLS] as text',
  'unknown: 龘龘 🙂',
]


def folder_of(path, kind='deberta-v2', model=None, **settings):
  """A folder as microsoft's, and SentencePiece's own reader of its model."""
  path.mkdir(exist_ok=True)
  data = sentencepiece_model(**SPECIAL) if model is None else model
  (path / 'spm.model').write_bytes(data)
  (path / 'config.json').write_text(json.dumps({'model_type': kind, 'hidden_size': 4}))
  if settings:
    (path / 'tokenizer_config.json').write_text(json.dumps(settings))
  return sentencepiece.SentencePieceProcessor(model_proto=data) if model is None else None


def test_ids_are_those_of_sentencepiece_and_the_mask_is_the_next(tmp_path):
  spm, ours = folder_of(tmp_path, do_lower_case=False), tokenizers.load_folder(tmp_path)
  size = spm.get_piece_size()
  assert (ours.pad_id, ours.cls_id, ours.sep_id, ours.unk_id, ours.mask_id) == (0, 1, 2, 3, size)
  assert ours.vocab_size == size + 1 and ours.between == 1 and ours.begin_ids == (1,)
  for text, ids in zip([*TEXTS, *ODD], ours.ids_batch([*TEXTS, *ODD])):
    assert ids.tolist() == spm.encode(text), text
  assert ours.encode_with_masks('a [MASK] b').tolist() == [*spm.encode('a'), size, *spm.encode('b')]
  (one,) = ours.encode_batch(['  Two wörds'])
  assert one.word_starts.sum() == 2 and one.word_starts[0]
  assert (one.offsets[0] >= 2).all() and one.offsets[-1, 1] == 11
  ours.save(tmp_path / 'W')
  again = tokenizers.load_folder(tmp_path / 'W')
  assert again.fingerprint == ours.fingerprint
  np.testing.assert_array_equal(again.ids_batch(TEXTS[:1])[0], ours.ids_batch(TEXTS[:1])[0])


def test_a_class_that_is_named_says_it_too_and_case_and_punctuation_are_read(tmp_path):
  folder_of(tmp_path, 'bert', tokenizer_class='DebertaV2TokenizerFast', do_lower_case=True)
  plain = folder_of(tmp_path / 'plain')
  (ids,) = tokenizers.load_folder(tmp_path).ids_batch(['The IN'])
  assert ids.tolist() == plain.encode('the in')
  folder_of(tmp_path / 'split', split_by_punct=True)
  (ids,) = tokenizers.load_folder(tmp_path / 'split').ids_batch(['in 1984,1984'])
  apart = [i for part in ('in 1984', ',', '1984') for i in plain.encode(part)]
  assert ids.tolist() == apart != plain.encode('in 1984,1984')


@pytest.mark.parametrize(
  'model, kind, sentence',
  [
    (dict(control_symbols=['[MASK]']), 'deberta-v2', r'without a \[MASK\]'),
    (dict(unk_piece='<unk>'), 'deberta-v2', 'models of DebertaV2Tokenizer with'),
    (dict(model_type='bpe', vocab_size=60), 'deberta-v2', 'is no unigram model'),
    (b'not a model', 'deberta-v2', 'is not a SentencePiece model; is it damaged'),
    (dict(), 'albert', r'has no \[MASK\]'),
  ],
  ids=str,
)
def test_another_model_is_refused(tmp_path, model, kind, sentence):
  data = model if isinstance(model, bytes) else sentencepiece_model(**SPECIAL | model)
  folder_of(tmp_path, kind, data)
  with refused(sentence):
    tokenizers.load_folder(tmp_path)


@pytest.mark.slow
def test_transformers_reads_and_writes_the_same(tmp_path, transformers):
  """Its conversion of such a model; the folder that we write; and the file that its class writes,
  which has another normaliser."""
  from transformers.convert_slow_tokenizer import DebertaV2Converter

  texts = [text for text in [*TEXTS, *ODD] if '[' not in text]
  folder_of(tmp_path, do_lower_case=False)
  ours = tokenizers.load_folder(tmp_path)
  mine = [ids.tolist() for ids in ours.ids_batch(texts)]
  exported_tokenizers.write(tmp_path / 'out', ours, FAMILIES['deberta-v2'], 24, 'right')
  read = transformers.AutoTokenizer.from_pretrained(tmp_path / 'out')
  assert read(texts)['input_ids'] == [[1, *ids, 2] for ids in mine]
  assert (read.mask_token_id, read.pad_token_id, read.unk_token_id) == (ours.mask_id, 0, 3)
  pair = read(texts[0], texts[1])
  assert pair['input_ids'] == [1, *mine[0], 2, *mine[1], 2] and max(pair['token_type_ids']) == 1

  vocabulary = [tuple(x) for x in ours.content['model']['vocab']]
  theirs = transformers.DebertaV2Tokenizer(vocab=vocabulary, unk_id=3)
  theirs.save_pretrained(tmp_path / 'theirs')
  (tmp_path / 'theirs' / 'config.json').write_text(json.dumps({'model_type': 'deberta-v2'}))
  again = tokenizers.load_folder(tmp_path / 'theirs')
  expected = theirs(texts, add_special_tokens=False)['input_ids']
  assert [ids.tolist() for ids in again.ids_batch(texts)] == expected
  assert (again.mask_id, again.cls_id, again.sep_id, again.pad_id) == (ours.mask_id, 1, 2, 0)
  # What transformers 4 made of the file, without its reader of protocol buffers.
  spec = types.SimpleNamespace(do_lower_case=False, split_by_punct=False, add_prefix_space=True)
  (steps,) = (x for x in ours.content['normalizer']['normalizers'] if x['type'] == 'Precompiled')
  table = base64.b64decode(steps['precompiled_charsmap'])
  proto = types.SimpleNamespace(normalizer_spec=types.SimpleNamespace(precompiled_charsmap=table))
  maker = types.SimpleNamespace(original_tokenizer=spec)
  backend = theirs.backend_tokenizer
  backend.normalizer = DebertaV2Converter.normalizer(maker, proto)
  backend.pre_tokenizer = DebertaV2Converter.pre_tokenizer(maker, '▁', True)
  assert [backend.encode(x, add_special_tokens=False).ids for x in texts] == mine
