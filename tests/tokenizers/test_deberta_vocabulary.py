"""The spm.model of a DeBERTa: SentencePiece's ids, then [MASK]; and what transformers reads."""

import json

import numpy as np
import pytest
import sentencepiece
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


def test_a_class_that_is_named_says_it_too_and_case_is_read(tmp_path):
  folder_of(tmp_path, 'bert', tokenizer_class='DebertaV2TokenizerFast', do_lower_case=True)
  plain = folder_of(tmp_path / 'plain')
  (ids,) = tokenizers.load_folder(tmp_path).ids_batch(['The IN'])
  assert ids.tolist() == plain.encode('the in')


@pytest.mark.slow
def test_transformers_reads_and_writes_the_same(tmp_path, transformers):
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
