"""What people send to `python -m bert_jax.predict`: odd lines and tables, and options."""

import argparse
import functools
import json
import os
import sys
from collections import Counter

import jax
import numpy as np
import pytest
from scipy.special import softmax
from small_tables import WORDS
from test_predict import as_lines, load_pretrain, main, random_model, refused

from bert_jax.config import InputError
from bert_jax.convert.sentence_transformers import Vector
from bert_jax.predict import Model, __main__, export, lines
from bert_jax.tasks.ask import RecordProblems
from bert_jax.tasks.pretraining import ask as masked_words
from bert_jax.text import tables
from bert_jax.workdir import trained


def command(model, tmp_path, content, *arguments):
  """The answers to a file of this content."""
  (tmp_path / 'in.txt').write_text(content)
  main(model, '--input', tmp_path / 'in.txt', '--output', tmp_path / 'out.jsonl', *arguments)
  return [json.loads(line) for line in (tmp_path / 'out.jsonl').read_text().splitlines()]


def test_odd_lines_are_answered_in_their_places(model_folder, tmp_path):
  content = (
    'old [MASK]\n\n'
    '{"text": "old \\ud83d [MASK]", "id": "\\ud83d"}\n'
    '{"text": "old [MASK]", "id": ' + '[' * 100_000 + '\n'
    '{"text": "old [MASK]", "id": 0.123456789}\n'
  )
  found = command(model_folder, tmp_path, content, '--task', 'fill-mask')
  assert found[1] == {'line': 2, 'error': 'empty line'}
  assert found[2]['text'] == 'old \ufffd [MASK]' and found[2]['id'] == '\ufffd'
  assert found[3]['line'] == 4 and 'is not JSON' in found[3]['error']
  assert found[4]['id'] == 0.123456789 and len(found) == 5


@pytest.mark.parametrize(
  'arguments, said',
  [
    ('--output in.txt', '--output in.txt is --input too'),
    ('--output same.jsonl', '--output same.jsonl is --input too'),
    ('--output none/x', 'none/x'),
    ('--input none.txt', 'none.txt cannot be read'),
    ('--input none.csv', 'none.csv'),
    ('--columns bodi --input in.csv', "no column 'bodi'"),
    ('--columns body,team --input in.csv --task embed', 'text'),
    ('--text-encoding utf-99', "'utf-99' is no encoding"),
    ('--text-encoding cp1251 --input in.parquet', 'is for files of text, and in.parquet is none'),
    ('--output out.csv', 'answers are lines of JSON; call it .jsonl'),
    ('--task tag', "has no head for 'tag'"),
    ('--task tagg', "task 'tagg' is not known"),
    ('--top-k 0', 'top_k is 0'),
    ('--task perplexity --top-k 3', "perplexity has no option 'top_k'"),
    ('--pooling cls', "fill-mask has no option 'pooling'"),
    ('--task embed --pooling best', 'pooling'),
    ('--task embed --prompt best', 'the prompts of this model are: none'),
  ],
)
def test_a_mistake_is_told_and_leaves_all_files_as_they_were(
  arguments, said, model_folder, tmp_path, capsys, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  contents = {'in.txt': 'old river\n', 'out.jsonl': 'mine', 'in.csv': 'body;team\nold;a\n'}
  for name, content in contents.items():
    (tmp_path / name).write_text(content)
  (tmp_path / 'same.jsonl').symlink_to('in.txt')
  places = '--input', 'in.txt', '--output', 'out.jsonl'
  assert said in refused(capsys, model_folder, *places, *arguments.split())
  assert {name: (tmp_path / name).read_text() for name in contents} == contents


def test_every_option_changes_an_export_or_is_refused(capsys, tmp_path):
  """An option that an export does not have was ignored without a word."""
  values = {str: 'x', int: '3', float: '0.5', None: 'x'}
  tried = set()
  for action in __main__.parser()._actions:
    if action.dest in __main__.OF_EXPORT or action.dest == 'help':
      continue
    is_switch = isinstance(action, argparse.BooleanOptionalAction) or action.nargs == 0
    given = [action.option_strings[0]] + ([] if is_switch else [values[action.type]])
    said = refused(capsys, 'no model', '--export', tmp_path / 'out', *given)
    assert f'--export answers no lines; leave out {action.option_strings[0]}.' in said
    tried.add(action.dest)
  assert {'input', 'columns', 'text_encoding', 'output', 'top_k', 'normalize', 'seed'} <= tried


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig', 'utf-16', 'cp1252'])
def test_an_encoding_is_of_lines_and_of_tables(tmp_path, encoding):
  (tmp_path / 'in.txt').write_text('old river\nGrüße\n', encoding=encoding)
  (tmp_path / 'in.csv').write_text('id,text\n7,Grüße\n', encoding=encoding)
  chunks = [[(1, 'old river'), (2, 'Grüße')]]
  assert [*lines.of_file(str(tmp_path / 'in.txt'), encoding, Counter())] == chunks
  rows = [*lines.of_table(str(tmp_path / 'in.csv'), encoding, Counter())]
  assert rows == [[(2, {'id': '7', 'text': 'Grüße'})]]


@pytest.mark.parametrize('columns', ['body', ''])
def test_rows_of_a_table_are_asked(columns, model_folder, tmp_path, capsys):
  """By the columns that are named, or that are called as the fields of the task."""
  table, text = tmp_path / 'in.csv', columns or 'text'
  rows = '1;"old; [MASK]\nriver";a', '2;;b', '', '7;old', '3;[MASK] garden;'
  table.write_text('\n'.join([f'id;{text};team', *rows]))
  places = '--input', table, '--output', tmp_path / 'out'
  main(model_folder, *places, '--task', 'fill-mask', '--columns', columns)
  first, second, third, last = map(json.loads, (tmp_path / 'out').read_text().splitlines())
  assert first[text] == 'old; [MASK]\nriver' and last[text] == '[MASK] garden'
  assert [x.get('id') for x in (first, second, third, last)] == ['1', '2', None, '3']
  columns = {'id': '2', text: '', 'team': 'b'}
  assert second == {'line': 4, **columns, 'error': f'the {text} of this row is empty'}
  assert third['line'] == 6 and '2 columns where 3 are expected' in third['error']
  said = capsys.readouterr().err
  assert 'blank lines of the table (no answer): 1' in said and '4 lines are in' in said


def test_a_line_of_json_has_the_columns_of_the_training_data(make_model):
  ask = make_model('sst2').ask('classify')
  both = [json.dumps({name: 'old river', 'id': 3}) for name in ('sentence', 'text')]
  one, other = as_lines(ask, both)
  assert one.pop('sentence') == other.pop('text') and one == other
  assert one['id'] == 3 and 'prediction' in one
  null, _ = __main__.parsed(ask, tables.row_of({'sentence': None}), (), Counter())
  assert 'is empty' in str(null)  # and not the end of the command


def test_a_text_without_a_piece_has_no_perplexity(pretrained_model):
  for texts in (['\u200b'], ['\u200b', 'old river']):
    found = pretrained_model.perplexity(texts)
    assert np.isnan(found[0]) and not any(map(np.isnan, found[1:]))
  (answer,) = as_lines(pretrained_model.ask('perplexity'), ['\u200b'])
  why = 'nothing of it can be answered: it has no token'
  assert answer == {'text': '\u200b', 'error': why}


def test_what_is_not_in_the_vocabulary_is_counted_once(pretrained_model, make_model):
  counts, what = pretrained_model.counts, 'pieces that are not in the vocabulary ([UNK])'
  counts.clear()
  pretrained_model.perplexity(['old \u16a0 river garden'])
  assert counts == {what: 1}
  counts.clear()
  long = ' '.join(['old'] * 40 + ['\u16a0'] + ['old'] * 40)  # in the middle of windows
  pretrained_model.embed([long])
  assert counts[what] == 1


def test_what_is_no_text_or_no_list_is_told(pretrained_model, make_model):
  single = make_model('sst2')
  lines = [
    '{"text": null, "pair": "b", "id": 1}',
    '{"text": "old", "ID": 2}',
  ]
  first, second = as_lines(single.ask('classify'), lines)
  assert first['id'] == 1 and 'pair' in first['error']
  assert second['ID'] == 2 and 'prediction' in second
  with pytest.raises(InputError, match='embed: element 0: a int is no text'):
    pretrained_model.embed([3, None])
  with pytest.raises(InputError, match='top_k is -1'):
    pretrained_model.fill_mask(['the [MASK]'], top_k=-1)


def test_attention_reads_a_text_or_two(pretrained_model):
  counts, what = pretrained_model.counts, 'pieces that are not in the vocabulary ([UNK])'
  counts.clear()
  pretrained_model.states(['old \u16a0'])
  assert counts == {what: 1}
  for text, cut in (('old ' * 30, 0), ('old ' * 31, 1), (('old ' * 20, 'new ' * 9), 0)):
    counts.clear()
    (found,) = pretrained_model.states([text])
    assert len(found.tokens) == pretrained_model.limit == 32 and counts.total() == cut
  with pytest.raises(InputError, match='put what is asked in'):
    pretrained_model.states('old river')
  (found,) = pretrained_model.states([('old', 'river')])
  assert found.tokens == ['[CLS]', 'old', '[SEP]', 'river', '[SEP]']


def test_many_masks_are_filled_as_few_are(pretrained_model):
  """Wherever in a row they are; expected: the head over all tokens of each."""
  rng, texts = np.random.default_rng(0), []
  for number in (1, 3, 20, 28, 2):
    text = list(rng.choice(WORDS, 28))
    for at in rng.choice(28, number, replace=False):
      text[at] = masked_words.MASK
    texts.append(' '.join(text))
  model = pretrained_model
  ask = masked_words.FillMask(model, top_k=4)
  logits = model.compiled(lambda w, row: model.mlm_logits(w, model.hidden(w, row)))
  for text, answer in zip(texts, as_lines(ask, texts)):
    row = {name: x[None] for name, x in ask.examples([text], RecordProblems())[0].items()}
    shares = softmax(logits(model.weights, row)[0, :, : model.tokenizer.vocab_size], axis=-1)
    expected = shares[row['input_ids'][0] == model.tokenizer.mask_id]
    found = [[best['probability'] for best in own] for own in answer['masks']]
    np.testing.assert_allclose(found, -np.sort(-expected)[:, :4], rtol=1e-4)
    for own, best in zip(answer['masks'], expected.argmax(axis=-1)):
      assert own[0]['piece'] == model.tokenizer.pieces[best]


@pytest.fixture(scope='module')
def wide(vocab, tokenizer):
  """A Model with BERT's 30,522 rows, of which few have a piece."""
  config = load_pretrain(vocab, 1)
  config.model.vocab_size = 30522
  return random_model(config, tokenizer)


def test_rows_without_a_piece_fill_no_mask(tokenizer, wide):
  (((*found,),),) = wide.fill_mask(['old [MASK]'], top_k=30000)
  assert sorted(piece for piece, _ in found) == sorted(tokenizer.pieces)
  assert sum(share for _, share in found) < 0.1  # the probabilities are those of all rows


def test_embed_pools_as_the_model_was_trained(pretrained_model):
  own = pretrained_model
  found = trained.Trained(own.config, own.tokenizer, own.params, 0, Vector('cls', True))
  text = ['old river']
  vectors = Model(found).embed(text)
  assert np.allclose(vectors, own.embed(text, pooling='cls'), atol=1e-6)
  assert not np.allclose(vectors, own.embed(text), atol=1e-3)
  tokenizer = own.tokenizer
  ids = [tokenizer.cls_id, *tokenizer.ids_batch(text)[0], tokenizer.sep_id]
  for pooling in ('cls', 'mean'):  # exported, between a row that is longer and one that is empty
    model = Model(trained.Trained(own.config, tokenizer, own.params, 0, Vector(pooling, True)))
    rows = np.array([[*ids, *ids], [*ids, 0, 0, 0, 0], [0] * 8], np.int32)
    forward = functools.partial(export.forward, model, 'embed')
    out = jax.jit(forward)(own.params, rows, 0 * rows, (rows > 0).astype(np.int32))
    np.testing.assert_allclose(out['embedding'][1], own.embed(text, pooling=pooling)[0], atol=1e-5)


def test_an_export_goes_to_a_new_folder(pretrained_model, tmp_path):
  (tmp_path / 'vocab.txt').write_text('mine')
  with pytest.raises(InputError, match='is not empty'):
    export.write(pretrained_model, 'embed', tmp_path)
  assert (tmp_path / 'vocab.txt').read_text() == 'mine'


def test_the_exit_status_tells_if_nothing_was_answered(model_folder, tmp_path):
  with pytest.raises(SystemExit) as stopped:
    command(model_folder, tmp_path, 'no mask\n\n', '--task', 'fill-mask')
  assert stopped.value.code == 1
  assert len(command(model_folder, tmp_path, 'no mask\nold [MASK]\n', '--task', 'fill-mask')) == 2


def test_a_reader_that_has_ended_is_no_mistake(model_folder, tmp_path, capsys, monkeypatch):
  (tmp_path / 'in.txt').write_text('old [MASK]\n')
  read, write = os.pipe()
  os.close(read)
  with open(write, 'w') as out:
    monkeypatch.setattr(sys, 'stdout', out)
    main(model_folder, '--input', tmp_path / 'in.txt')
  assert 'cannot be written' not in capsys.readouterr().err


def test_an_empty_text_is_no_mistake_of_a_list(pretrained_model, make_model):
  """It has the vector of its special tokens; other tasks have no answer, though all are such."""
  model = pretrained_model
  (vector, *others), (state,) = model.embed(['', ' ', '\u200b']), model.states([''])
  expected = state.hidden[-1].mean(axis=0)
  np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-6)
  np.testing.assert_allclose(others, [vector] * 2, atol=1e-6)
  assert model.fill_mask(['']) == [[]] and np.isnan(model.perplexity(['']))
  assert model.generate(['']) == model.next_sentence([('', ' ')]) == [None]
  assert make_model('sst2').classify(['', ' ']) == [None] * 2
  assert make_model('mrpc').pair([('', '')]) == [None]
  assert (
    make_model('squad', '--config.qa.max_query_length=8').find_answers(
      [('', 'old'), ('old', ''), ('', '')]
    )
    == [None] * 3
  )
