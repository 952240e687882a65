"""Units: words of the tokenizer or a segmenter, phrases and entities of a lexicon."""

import json
from collections import Counter

import numpy as np
import pytest
import sentencepiece
import vocabularies

from bert_jax import tokenizers
from bert_jax.corpus.tokenized import tokenize
from bert_jax.corpus.units import ENTITY, PHRASE, WORD, Marker
from bert_jax.text import documents as text
from bert_jax.text.documents import Sentences
from bert_jax.tokenizers.byte_level import byte_tokenizer
from bert_jax.tokenizers.sentence_piece import model_content

PIECES = [
  *('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'),
  *('.', 'new', 'york', 'times', 'the', 'city', '##s'),
  *'我在北京大学上学',
  *('ก', '##ข', '##ค'),
]


@pytest.fixture
def tokenizer(tmp_path):
  (tmp_path / 'vocab.txt').write_text('\n'.join(dict.fromkeys(PIECES)) + '\n')
  return tokenizers.load(tmp_path / 'vocab.txt')


def units(marker, text, bit):
  """The text's pieces, those of a unit joined by +."""
  counts = Counter()
  (record,) = marker([[text]], counts)
  out = []
  for token, start in zip(record.tokens, record.starts, strict=True):
    piece = marker.tokenizer.pieces[token]
    if start & bit or not out:
      out.append(piece)
    else:
      out[-1] += '+' + piece
  return ' '.join(out), counts


def test_words_are_the_tokenizers(tokenizer):
  for bit in (WORD, PHRASE, ENTITY):  # without lexicons the levels are alike
    found, _ = units(Marker(tokenizer), 'The citys. New York 在北京', bit)
    assert found == 'the city+##s . new york 在 北 京'


def test_phrases_and_entities_are_levels_of_their_own(tokenizer, tmp_path):
  pytest.importorskip('ahocorasick_rs')
  (tmp_path / 'p.txt').write_text('the new\n北京\n')
  (tmp_path / 'e.txt').write_text('New York Times\nYork City\n京大\n')
  marker = Marker(tokenizer, phrases=tmp_path / 'p.txt', entities=tmp_path / 'e.txt')
  text = 'the new york times . the new york citys'
  assert units(marker, text, WORD)[0] == 'the new york times . the new york city+##s'
  assert units(marker, text, PHRASE)[0] == 'the+new york times . the+new york city+##s'
  # The entity wins over the phrase that it overlaps; "York City" ends inside a word and is none.
  found, counts = units(marker, text, ENTITY)
  assert found == 'the new+york+times . the+new york city+##s'
  assert counts['phrases_matched'] == 2 and counts['entities_matched'] == 1
  assert units(marker, '在北京大学', PHRASE)[0] == '在 北+京 大 学'
  assert units(marker, '在北京大学', ENTITY)[0] == '在 北 京+大 学'


def test_an_entity_at_the_beginning_of_a_phrase_leaves_the_rest_of_it_a_unit(tokenizer, tmp_path):
  pytest.importorskip('ahocorasick_rs')
  (tmp_path / 'p.txt').write_text('new york times city\n')
  (tmp_path / 'e.txt').write_text('new york\n')
  marker = Marker(tokenizer, phrases=tmp_path / 'p.txt', entities=tmp_path / 'e.txt')
  text = 'the new york times city .'
  assert units(marker, text, PHRASE)[0] == 'the new+york+times+city .'
  assert units(marker, text, ENTITY)[0] == 'the new+york times+city .'


def test_a_word_of_the_tokenizer_is_never_torn(tokenizer, tmp_path):
  """Thai has no blanks: a lexicon's match may end where no word of the tokenizer does."""
  pytest.importorskip('ahocorasick_rs')
  for name, entry in (('head', 'กข'), ('tail', 'ขค')):
    (tmp_path / name).write_text(entry)
    found, counts = units(Marker(tokenizer, entities=tmp_path / name), 'the กขค .', ENTITY)
    assert found == 'the ก+##ข+##ค .' and counts['entities_matched'] == 0
  (tmp_path / 'whole').write_text('กขค')
  whole = Marker(tokenizer, entities=tmp_path / 'whole')
  # In the second the last token, [UNK], is longer than the match.
  for written, joined in ('กขค', 1), ('the งกขค', 0):
    assert units(whole, written, ENTITY)[1]['entities_matched'] == joined


def test_records_keep_sentences_and_leave_empty_ones_out(tokenizer):
  counts = Counter()
  documents = [['new york', '\u200b', 'the city .'], ['\u200b'], ['times']]
  first, none, last = Marker(tokenizer)(documents, counts)
  assert first.sentences.tolist() == [2, 3] and first.tokens.dtype == np.int32
  assert none is None and counts['documents_without_tokens'] == 1
  assert last.tokens.tolist() == [tokenizer.pieces.index('times')] and counts['tokens'] == 6


WHOLE = 'The gulls  follow it. A boat!\n\nIt is nine.\tAnd\n', ' Two. Three'
WHOLE = *WHOLE, '河流很長。人们过河。 The end. เรือออก'


def kinds(tmp_path):
  """(tokenizer, the function that gives the ids of a whole text by the library of its makers)."""
  for make in (vocabularies.gpt2, vocabularies.roberta, vocabularies.modern):
    theirs = make(folder := tmp_path / make.__name__)
    yield tokenizers.load_folder(folder), lambda x, of=theirs: of.encode(x).ids
  symbols = {'control_symbols': ['[CLS]', '[SEP]', '[MASK]']}
  content = vocabularies.sentencepiece_model(pad_id=3, pad_piece='[PAD]', **symbols)
  theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
  yield tokenizers.Tokenizer(model_content(content)), lambda x: theirs.encode(x)


def test_a_document_is_encoded_as_the_text_that_it_is(tmp_path):
  """By every vocabulary to which it matters what stands before a sentence."""
  lines = [json.dumps({'text': text}) + '\n' for text in WHOLE]
  (tmp_path / 'a.jsonl').write_text(''.join(lines))
  documents = list(text.documents(str(tmp_path / 'a.jsonl'), counts=Counter()))
  sentences = [document.sentences for document in documents]
  for tokenizer, ids_of in kinds(tmp_path):
    found = Marker(tokenizer)(sentences, Counter())
    for record, whole, some in zip(found, WHOLE, sentences, strict=True):
      assert record.tokens.tolist() == list(ids_of(whole))
      ends = np.cumsum(record.sentences)
      parts = [tokenizer.decode(part) for part in np.split(record.tokens, ends[:-1])]
      if tokenizer.blank_is_of_word:
        assert ''.join(parts) == whole.removeprefix(' ' * tokenizer.add_prefix_space)
        assert [part.strip() for part in parts] == some
    corpus = tokenize(documents, Marker(tokenizer), Counter())
    assert corpus.sizes.tolist() == [[len(x), len(x.encode())] for x in WHOLE]


def test_characters_of_scripts_without_blanks_are_words_of_bytes_too(tmp_path):
  """A character of several pieces is one word; so is what stands behind a line end."""

  def words_of(marker, sentences, text):
    (record,) = marker([Sentences(sentences, text)], Counter())
    cuts = np.flatnonzero(record.starts & WORD)
    assert cuts[0] == 0
    words = np.split(record.tokens, cuts[1:])
    return ' '.join(marker.tokenizer.decode(part).strip() for part in words)

  for tokenizer in (byte_tokenizer(), *(x for x, _ in list(kinds(tmp_path))[:3])):
    sentences = ['河流 a1。', '過b', 'cd\tef']
    found = words_of(Marker(tokenizer), sentences, '河流 a1。過b\ncd\tef')
    assert found == '河 流 a1 。 過 b cd ef'
  pytest.importorskip('jieba')
  marker, text = Marker(byte_tokenizer(), segmenter='jieba'), '我在北京大学上学'
  assert words_of(marker, ['new.', text], f'new.{text}\n') == 'new. 我 在 北京大学 上学'
