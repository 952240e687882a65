"""What lies beside a vocabulary: settings of its class, added tokens, a second vocabulary.

The last column of CASES is what transformers makes of such a folder; a slow test asks it again.
"""

import json

import numpy as np
import pytest
import vocabularies
from refusal import refused
from released import FAIRSEQ, VOCABULARIES, WORDS, unigram

from bert_jax import tokenizers
from bert_jax.tokenizers.byte_level import byte_level_content

TEXT = 'The RIVERS, café 河流 [E1] rivers[e2] a crosses [E2]'
BYTES = byte_level_content(*VOCABULARIES['gpt2'])
BYTES['model']['merges'] = ['Ġ t']
BLANKS = BYTES | {'pre_tokenizer': BYTES['pre_tokenizer'] | {'add_prefix_space': True}}
CASED = {'type': 'BertNormalizer', 'lowercase': False, 'clean_text': True, 'strip_accents': True}
CASED |= {'handle_chinese_chars': True}
CONTENTS = {
  'uncased': vocabularies.berts(),
  'cased': vocabularies.berts(normalizer=CASED),
  'bytes': BYTES,
  'blanks': BLANKS,
}
MAP, JSON = 'special_tokens_map.json', 'added_tokens.json'
# vocabulary | class | what the files beside it say | ids in transformers 5.24
CASES = """
uncased | BertTokenizer | {"do_lower_case": false} | 1 1 16 13 21 22 1 1 1 6 20 1 1 1 12 7 1 1 1
cased | BertTokenizerFast | {"strip_accents": false} | 5 6 20 16 13 21 22 1 1 1 6 20 1 1 1 12 7 1 1 1
cased | | {"tokenize_chinese_chars": false} | 5 6 20 16 14 1 1 1 1 6 20 1 1 1 12 7 1 1 1
uncased | DistilBertTokenizer | {"strip_accents": false} | 5 6 20 16 13 21 22 1 1 1 6 20 1 1 1 12 7 1 1 1
uncased | ElectraTokenizer | {"do_lower_case": false, "strip_accents": true} | 1 1 16 14 21 22 1 1 1 6 20 1 1 1 12 7 1 1 1
uncased | PreTrainedTokenizerFast | {"do_lower_case": false} | 5 6 20 16 14 21 22 1 1 1 6 20 1 1 1 12 7 1 1 1
bytes | RobertaTokenizerFast | {"add_prefix_space": true} | 24 7 4 23 2 0 19
blanks | GPT2Tokenizer | {} | 19 7 4 23 2 0 19
bytes | BartTokenizer | {"add_prefix_space": true} | 24 7 4 23 2 0 19
blanks | PreTrainedTokenizerFast | {"add_prefix_space": false} | 24 7 4 23 2 0 19
vocab.txt | BertTokenizer | {"added_tokens.json": {"[E1]": 26, "[E2]": 27}} | 5 6 20 16 14 21 22 26 6 20 27 12 7 27
vocab.txt | | {"added_tokens.json": {"[E1]": 26}, "special_tokens_map.json": {"additional_special_tokens": ["[E1]", "old"]}} | 5 6 20 16 14 21 22 26 6 20 1 1 1 12 7 1 1 1
uncased | BertTokenizer | {"added_tokens.json": {"[E2]": 26}, "added_tokens_decoder": {}} | 5 6 20 16 14 21 22 1 1 1 6 20 1 1 1 12 7 1 1 1
vocab.txt | BertTokenizer | {"added_tokens_decoder": {"26": {"content": "[E1]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": true, "special": false}, "27": {"content": "[E2]", "single_word": false, "lstrip": false, "rstrip": true, "normalized": false, "special": false}}} | 5 6 20 16 14 21 22 26 6 20 1 1 1 12 7 27
"""  # noqa: E501
CASES = [[cell.strip() for cell in line.split('|')] for line in CASES.strip().splitlines()]


def folder_of(path, vocabulary, kind, said, *_):
  """A folder with a vocabulary, and the files beside it."""
  path.mkdir(exist_ok=True)
  said = json.loads(said) | ({'tokenizer_class': kind} if kind else {})
  files = {name: said[name] for name in (MAP, JSON) if name in said}
  files['config.json'] = {'model_type': 'bert'}
  files['tokenizer_config.json'] = {name: x for name, x in said.items() if name not in files}
  if vocabulary == 'vocab.txt':
    (path / vocabulary).write_text('\n'.join(WORDS) + '\n')
    files['tokenizer_config.json'] |= {'do_lower_case': True}
  else:
    files['tokenizer.json'] = CONTENTS[vocabulary]
  for name, content in files.items():
    (path / name).write_text(json.dumps(content))
  return path


def text_of(case):
  return 'the cat' if case[0] in ('bytes', 'blanks') else TEXT


@pytest.mark.parametrize('case', CASES, ids=' '.join)
def test_ids_are_those_of_the_class_that_is_named(tmp_path, case):
  tokenizer = tokenizers.load_folder(folder_of(tmp_path, *case))
  (ids,) = tokenizer.ids_batch([text_of(case)])
  assert ' '.join(map(str, ids)) == case[-1]
  tokenizer.save(tmp_path / 'again')
  assert tokenizers.load_folder(tmp_path / 'again').fingerprint == tokenizer.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES, ids=' '.join)
def test_their_classes_give_what_is_recorded(tmp_path, transformers, case):
  theirs = transformers.AutoTokenizer.from_pretrained(folder_of(tmp_path, *case))
  ids = theirs(text_of(case), add_special_tokens=False)['input_ids']
  assert ' '.join(map(str, ids)) == case[-1]


@pytest.mark.parametrize(
  'kind, normalizer, said, sentence',
  [
    ('albert', [], {}, 'class, albert, in which do_lower_case is True'),
    ('fnet', ['Lowercase', 'StripAccents'], {'keep_accents': True}, 'keep_accents is True'),
    ('deberta-v2', ['Lowercase'], {}, 'debertav2, in which do_lower_case is False'),
    ('deberta-v2', [], {'split_by_punct': True}, 'split_by_punct is True'),
  ],
)
def test_a_unigram_that_contradicts_its_class_is_refused(
  tmp_path, kind, normalizer, said, sentence
):
  steps = {'type': 'Sequence', 'normalizers': [{'type': step} for step in normalizer]}
  unigram(tmp_path, FAIRSEQ['xlm-roberta'], normalizer=steps)
  (tmp_path / 'config.json').write_text(json.dumps({'model_type': kind}))
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(said))
  with refused(sentence):
    tokenizers.load_folder(tmp_path)
  (tmp_path / 'tokenizer_config.json').write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
  assert tokenizers.load_folder(tmp_path).do_lower_case == ('Lowercase' in normalizer)


def test_a_default_that_changes_what_a_file_says_is_logged(tmp_path, caplog):
  for said, count in ('{}', 1), ('{"do_lower_case": true}', 0):
    caplog.clear()
    tokenizers.load_folder(folder_of(tmp_path, 'cased', '', said))
    assert caplog.text.count('by the default of its class, bert, do_lower_case is True') == count


@pytest.mark.parametrize('vocabulary', ['vocab.txt', 'uncased'])
def test_added_tokens_without_a_row_are_left_out(tmp_path, caplog, vocabulary):
  said = {JSON: {'[E1]': 26}, MAP: {'additional_special_tokens': ['[E2]', {'content': '[E3]'}]}}
  folder_of(tmp_path, vocabulary, 'BertTokenizer', json.dumps(said))
  (tmp_path / 'config.json').write_text('{"vocab_size": 27}')
  tokenizer = tokenizers.load_folder(tmp_path)
  assert tokenizer.searched_tokens == {'[E1]'}
  assert caplog.text.count('27 rows, so these added tokens are left out: [E2], [E3]') == 1


@pytest.mark.parametrize('token', ['</s>', '[SEP]', '[E1]'])
def test_pairs_of_a_gpt2_stand_side_by_side(tmp_path, token):
  said = json.dumps({MAP: {'additional_special_tokens': [token]}})
  tokenizer = tokenizers.load_folder(folder_of(tmp_path, 'bytes', 'GPT2Tokenizer', said))
  texts = tokenizer.ids_batch(['the cat', 'a'])
  assert token in tokenizer.pieces
  np.testing.assert_array_equal(np.concatenate(tokenizer.pair(*texts)), np.concatenate(texts))


SPIECE, FAIRSEQS = vocabularies.spiece, vocabularies.fairseq
MODELS = [('albert', SPIECE), ('fnet', SPIECE), ('xlm-roberta', FAIRSEQS), ('camembert', FAIRSEQS)]


@pytest.mark.parametrize('kind, make', [*MODELS, ('t5', lambda path, _: vocabularies.t5(path))])
def test_a_second_vocabulary_is_the_same_or_refused(tmp_path, kind, make):
  """Whatever class is named, and whichever of the two is asked for."""
  make(tmp_path, kind)
  (model,) = tmp_path.glob('*.model')
  tokenizer = tokenizers.load_folder(tmp_path)
  tokenizer.save(tmp_path)  # of no class
  assert tokenizers.load(model).fingerprint == tokenizer.fingerprint
  whole = tmp_path / 'tokenizer.json'
  content = json.loads(whole.read_text())
  content['model']['vocab'][20][1] -= 0.5
  whole.write_text(json.dumps(content))
  with refused(f'{model.name} differ: the score of .* is .* in the one'):
    tokenizers.load_folder(tmp_path)
  tokenizer.save(tmp_path)
  model.write_bytes(vocabularies.sentencepiece_model(['other rivers', 'of other stones'] * 9))
  for read, path in ((tokenizers.load_folder, tmp_path), (tokenizers.load, model)):
    with refused(f'{model.name} differ: the (id|score) of'):
      read(path)


def test_a_vocab_json_beside_a_tokenizer_json(tmp_path):
  folder_of(tmp_path, 'bytes', 'GPT2Tokenizer', '{}')
  (tmp_path / 'vocab.json').write_text(json.dumps(BYTES['model']['vocab']))
  assert tokenizers.load_folder(tmp_path).vocab_size == len(BYTES['model']['vocab'])
  (tmp_path / 'vocab.json').write_text(json.dumps(BYTES['model']['vocab'] | {'b': 0, 'a': 1}))
  with refused('vocab.json differ: the id of'):
    tokenizers.load(tmp_path / 'vocab.json')
