"""What people send to `python -m bert_jax.predict`: damaged, odd and large lines, each answered."""

import contextlib
import copy
import functools
import io
import json
import os
import sys
import threading
import types
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.special import softmax
from small_tables import WORDS
from test_predict import NER, as_lines, load_pretrain, loaded, main, random_model, refused

from bert_jax.config import InputError
from bert_jax.convert.sentence_transformers import Vector
from bert_jax.predict import Model, __main__, export, lines, packed_rows
from bert_jax.tasks.ask import UNREAD, RecordProblems
from bert_jax.tasks.pretraining import ask as masked_words
from bert_jax.workdir import trained


def command(model, tmp_path, lines, *arguments):
  """The answers to a file of these bytes."""
  (tmp_path / 'in.txt').write_bytes(lines)
  places = '--input', tmp_path / 'in.txt', '--output', tmp_path / 'out.jsonl'
  main(model, *places, *arguments)
  return [json.loads(line) for line in (tmp_path / 'out.jsonl').read_text().splitlines()]


def test_damaged_lines_are_answered_and_counted(model_folder, tmp_path, capsys):
  lines = (
    b'\xef\xbb\xbfold [MASK]\n'  # a byte order mark
    b'old \0 [MASK]\n'
    b'old \xff [MASK]\r\n'
    b'{"text": "old \\ud83d [MASK]", "id": "\\ud83d"}\n'
    b'{"text": "old [MASK]", "id": ' + b'[' * 100_000 + b'\n'
    b'{"text": "old [MASK]", "id": [[1]]}\n'
    b'{"text": "old [MASK]", "id": 0.123456789}\n'
  )
  found = command(model_folder, tmp_path, lines, '--task', 'fill-mask')
  assert found[0]['text'] == 'old [MASK]'
  assert found[1]['line'] == 2 and 'NUL byte' in found[1]['error']
  assert found[2]['text'] == 'old \ufffd [MASK]'
  assert found[3]['text'] == 'old \ufffd [MASK]' and found[3]['id'] == '\ufffd'
  assert 'nested too deeply' in found[4]['error']
  assert "'id' is no text or number" in found[5]['error']
  assert found[6]['id'] == 0.123456789
  assert 'not valid UTF-8 (bad bytes became U+FFFD): 2' in capsys.readouterr().err


def test_no_line_at_all_is_said(model_folder, monkeypatch, capsys):
  monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(b'')))
  main(model_folder, '--task', 'fill-mask')
  assert 'there is no line in stdin: nothing is answered' in capsys.readouterr().err


@pytest.mark.parametrize(
  'source, out, task, said',
  [
    ('in.txt', 'in.txt', 'embed', 'is --input too'),
    ('in.txt', 'same.npy', 'embed', 'is --input too'),
    ('none.txt', 'out.jsonl', 'embed', 'none.txt cannot be read'),
    ('in.txt', 'out.jsonl', 'tag', "has no head for 'tag'"),
  ],
)
def test_a_mistake_leaves_all_files_as_they_were(
  source, out, task, said, model_folder, tmp_path, capsys
):
  for name in ('in.txt', 'out.jsonl'):
    (tmp_path / name).write_text('old river\n')
  (tmp_path / 'same.npy').symlink_to('in.txt')
  places = '--input', tmp_path / source, '--output', tmp_path / out
  assert said in refused(capsys, model_folder, *places, '--task', task)
  assert {path.read_text() for path in tmp_path.iterdir()} == {'old river\n'}


@pytest.mark.parametrize(
  'arguments, said',
  [
    ('--task classify --top-k 3', '--top-k says nothing to --task classify, only to fill'),
    ('--task tag --pooling cls', '--pooling says nothing to --task tag, only to embed'),
    ('--task embed --no-normalize --export X', '--no-normalize says nothing to --exp'),
    ('--task embed --strict --export X', '--export answers no lines'),
    ('--task tag --output x.npy', 'only embed writes .npy'),
    ('--task tagg', "task 'tagg' is not known; use one of"),
    ('--input dev.conll', '--config.data.eval=dev.conll tags and scores it'),
    ('--task fill-mask --top-k 0', 'top_k is 0; use 1 or more'),
    ('--output a.csv', '--output a.csv: answers are lines of JSON; name a .jsonl'),
    ('--output none/x', '--output none/x cannot be written'),
    ('--input none.txt', 'none.txt cannot be read'),
    ('--input none.csv --columns a', 'none.csv does not exist'),
  ],
)
def test_a_mistaken_argument_is_told_before_anything_is_loaded(arguments, said, capsys):
  (error,) = refused(capsys, 'no model', *arguments.split()).splitlines()
  assert said in error


def test_one_of_several_processes_answers_nothing(monkeypatch, capsys):
  monkeypatch.setenv('SLURM_STEP_NUM_TASKS', '2')
  assert 'bert_jax.predict runs in one process' in refused(capsys, 'no model')


def test_arguments_of_another_task_than_the_models_own_are_told(model_folder, capsys):
  said = refused(capsys, model_folder, '--pooling', 'cls')
  assert '--pooling says nothing to --task fill-mask' in said
  assert 'only embed writes .npy' in refused(capsys, model_folder, '--output', 'x.npy')


ENCODED = 'utf-8', 'utf-8-sig', 'utf-16', 'cp1252', 'utf-16-le'


@pytest.mark.parametrize('encoding', ENCODED)
def test_a_file_and_stdin_are_read_alike(tmp_path, monkeypatch, encoding):
  (tmp_path / 'in.txt').write_text('old river\nGrüße\n', encoding=encoding)
  named = encoding if encoding == 'utf-16-le' else ''
  with open(tmp_path / 'in.txt') as stream:
    monkeypatch.setattr(sys, 'stdin', stream)
    for path in (tmp_path / 'in.txt', ''):
      found = [line for chunk in lines.chunks_of(path, (), Counter(), named) for line in chunk]
      assert found == [b'old river\n', 'Grüße\n'.encode()]
  (tmp_path / 'in.csv').write_text('id,text\n7,Grüße\n', encoding=encoding)
  (rows,) = lines.chunks_of(f'{tmp_path}/in.csv', ['text'], Counter(), named)
  assert rows == [(2, {'id': '7', 'text': 'Grüße'}, ('Grüße',))]


@pytest.mark.parametrize(
  'path, tabs, is_table',
  [('a.csv', True, 1), ('a.tsv', False, 1), ('a.tsv', True, 0), ('a.txt', False, 0), ('', True, 0)],
)
def test_a_table_is_not_read_as_lines(path, tabs, is_table):
  ask = types.SimpleNamespace(
    tabs=tabs, cells=(), fields=('text', 'pair'), spelt={'text': 'a b', 'pair': 'c'}.get
  )
  refused = pytest.raises(InputError, match=f"--input {path} is a table; .* --columns 'a b,c'")
  with refused if is_table else contextlib.nullcontext():
    lines.check_lines(path, ask)


def test_rows_of_a_table_are_asked(model_folder, tmp_path, capsys):
  table = tmp_path / 'in.csv'
  rows = '1;"old; [MASK]\nriver";a', '2;;b', '', '7;old', '3;[MASK] garden;'
  table.write_text('\n'.join(['id;body;team', *rows]))
  ask = '--input', table, '--task', 'fill-mask'
  main(model_folder, *ask, '--columns', 'body', '--output', tmp_path / 'out')
  first, second, third, last = map(json.loads, (tmp_path / 'out').read_text().splitlines())
  assert first['text'] == 'old; [MASK]\nriver' and last['text'] == '[MASK] garden'
  assert [x.get('id') for x in (first, second, third, last)] == ['1', '2', None, '3']
  assert second == {'line': 4, 'id': '2', 'error': 'the body of this row is empty'}
  assert third['line'] == 6 and 'in.csv:6: 2 columns where 3 are expected' in third['error']
  said = capsys.readouterr().err
  assert 'is a table' not in said and 'blank lines of the table (no answer): 1' in said
  assert '4 lines are in' in said
  for columns, said in (
    ('body, team', '--columns body, team: this task reads text; name a column for each'),
    ('bodi', "in.csv:1 has no column 'bodi', only 'id', 'body', 'team' (did you mean 'body'?)"),
  ):
    assert said in refused(capsys, model_folder, *ask, '--columns', columns)


def test_it_is_said_which_column_is_which_field(make_model, caplog):
  caplog.set_level('INFO', 'bert_jax')
  __main__._check_columns(make_model('sst2').ask('classify'), ('body',), 'body')
  assert not caplog.messages
  __main__._check_columns(make_model('swag').ask('choose'), ('sent1', 'e0', 'e1', 'e2'), '')
  assert caplog.messages == ['columns read as context: sent1; question: e0; choices: e1, e2']


def test_a_table_of_choices_has_a_column_for_each(make_model):
  ask, named = make_model('swag').ask('choose'), 'sent1,sent2,ending0,ending1,..'
  with pytest.raises(InputError, match=f'is a table; .* --columns {named}, or give'):
    lines.check_lines('a.csv', ask)
  with pytest.raises(InputError, match=f'reads {named.replace(",", ", ")}; name a column for each'):
    __main__._check_columns(ask, ('sent1', 'sent2'), 'sent1,sent2')


def test_a_dash_is_stdin(model_folder, tmp_path, monkeypatch):
  monkeypatch.setattr('sys.stdin', types.SimpleNamespace(buffer=io.BytesIO(b'old river\n')))
  main(model_folder, '--task', 'embed', '--input', '-', '--output', tmp_path / 'out.jsonl')
  assert len((tmp_path / 'out.jsonl').read_text().splitlines()) == 1


def test_a_row_goes_by_the_column_that_named_it_in_training(make_model):
  ask = copy.copy(make_model('sst2').ask('classify'))
  row = {'sentence': 'old', 'Id': '7', 'Ticket-ID': 'T-1'}
  for name in ('Ticket-ID', 'ticket_id', 'TicketID', 'pairID', 'Nr Id'):
    assert ask.identity({'sentence': 'old', 'valid': 1, 'PAID': 2, name: 'x'}) == {'id': 'x'}, name
  assert ask.identity({'sentence': 'old', '#1 ID': 3, '#2 ID': 4}) == {}
  assert ask.identity({'sentence': 'old', 'annotator_id': ['a', 'b']}) == {}
  assert ask.identity(row) == {'id': '7'} and ask.identity({'sentence': 'old'}) == {}
  assert ask.identity({'sentence': 'old', 'idx': 5}) == {'id': 5}  # as training reads it, too
  config = ask.model.config.copy_and_resolve_references()
  config.table.id_column = 'Ticket-ID'
  ask.model = types.SimpleNamespace(config=config, counts=Counter())
  assert ask.identity(row) == {'id': 'T-1'} and ask.identity({'id': 3}) == {'id': 3}
  ask.parsed({'text': 'old', 'Ticket-ID': 'T-1'})
  assert not ask.model.counts[UNREAD]


def test_fields_that_are_not_read_are_counted(pretrained_model, make_model, caplog):
  counts = pretrained_model.counts
  counts.clear()
  lines = [{'text': 'old', 'id': 1}, {'text': 'old', 'foo': 1}, {'text': 'old', 'x': 1, 'y': 2}]
  found = as_lines(pretrained_model.ask('embed'), map(json.dumps, lines))
  assert [answer.keys() for answer in found] == [{'id', 'embedding'}, *2 * [{'embedding'}]]
  assert counts == {UNREAD: 2} and caplog.text.count("does not read the field 'foo'") == 1
  make_model('gap').coreference(
    [{'Text': 'a b c', 'Pronoun': 'a', 'A': 'b', 'B': 'c', 'A-offset': 2}]
  )
  assert not make_model('gap').counts[UNREAD]


def test_a_text_without_a_piece_has_no_perplexity(pretrained_model):
  for texts in (['\u200b'], ['\u200b', 'old river']):
    found = pretrained_model.perplexity(texts)
    assert np.isnan(found[0]) and not any(map(np.isnan, found[1:]))
  (answer,) = as_lines(pretrained_model.ask('perplexity'), ['\u200b'])
  assert answer == {'error': 'nothing of it can be answered: it has no token'}


def test_what_is_not_in_the_vocabulary_is_counted_once(pretrained_model, make_model):
  counts, what = pretrained_model.counts, 'pieces that are not in the vocabulary ([UNK])'
  counts.clear()
  pretrained_model.perplexity(['old \u16a0 river garden'])
  assert counts == {what: 1}
  counts.clear()
  long = ' '.join(['old'] * 40 + ['\u16a0'] + ['old'] * 40)  # in the middle of windows
  pretrained_model.embed([long])
  assert counts[what] == 1
  for task, options, asked in (
    ('sst2', ['--config.table.long_texts=windows'], long),
    ('ner', [NER], long),
    ('squad', ['--config.qa.max_query_length=8', '--config.qa.doc_stride=16'], ('old', long)),
    ('copa', [], ('\u16a0', 'old', 'river', 'garden')),
  ):
    model = make_model(task, *options)
    ask = model.ask(model.default_task)
    read = ask.examples([ask.parsed(asked)], RecordProblems()).read
    assert sum((ids == model.tokenizer.unk_id).sum() for ids in read) == 1, task


def test_what_is_done_to_names_is_told(make_model):
  """Of coreference: a name without a token is counted, and why none is answered is said."""
  model = make_model('gap')
  record = {'text': 'old \u200b river and good', 'pronoun': 'good', 'a': '\u200b', 'b': 'river'}
  assert model.coreference([record])[0]['candidates'] == ['\u200b', 'river']
  assert model.counts['names without a token (the next one taken)'] == 1
  long = 'old ' * 100
  record = {'text': f'{long}good', 'pronoun': 'good', 'a': long.strip(), 'b': 'good'}
  record['b-offset'] = 400
  found = as_lines(model.ask('coreference'), [json.dumps(record)] * 2)
  assert found[0]['error'].startswith('its names alone take more than 62 tokens')
  assert model.coreference([record]) == [None]
  negative = {'text': 'old river and river', 'pronoun': 'old', 'a': 'river', 'b': 'old'}
  negative['a-offset'] = -5
  (answer,) = as_lines(model.ask('coreference'), [json.dumps(negative)])
  assert 'not at a-offset -5' in answer['error']


def test_what_is_no_text_or_no_list_is_told(pretrained_model, make_model):
  single = make_model('sst2')
  lines = [
    '{"text": null, "pair": "b", "id": 1}',
    '{"text": "old", "ID": 2}',
    '{"text": "old", "id": NaN}',
  ]
  first, second, third = as_lines(single.ask('classify'), lines)
  assert third['error'].startswith("'id' is no text or number")
  assert first == {'id': 1, 'error': "'text' is no text; write it in quotes"}
  assert second['id'] == 2 and 'label' in second and not single.counts[UNREAD]
  with pytest.raises(InputError, match='embed: element 0: empty line'):
    pretrained_model.embed(['', ' '])
  with pytest.raises(InputError, match='top_k is -1'):
    pretrained_model.fill_mask(['the [MASK]'], top_k=-1)


def test_a_pipe_is_read_as_a_file_is():
  reads, writes = os.pipe()
  os.write(writes, b'old river\nnew\n')
  os.close(writes)
  assert list(lines.chunks_of(f'/dev/fd/{reads}', (), Counter())) == [[b'old river\n', b'new\n']]
  os.close(reads)


@pytest.mark.parametrize('is_stdin', [False, True])
def test_a_pipe_with_columns_is_csv(monkeypatch, is_stdin):
  reads, writes = os.pipe()
  os.write(writes, 'nr;body\n7;"Grüße;\nriver"\n;\n8\n'.encode('cp1252'))
  os.close(writes)
  monkeypatch.setattr(sys, 'stdin', os.fdopen(reads) if is_stdin else None)
  path = '' if is_stdin else f'/dev/fd/{reads}'
  (rows,) = lines.chunks_of(path, ['body'], counts := Counter())
  assert rows[0] == (2, {'nr': '7', 'body': 'Grüße;\nriver'}, ('Grüße;\nriver',))
  assert rows[1][0] == 5 and '1 columns where 2 are expected' in str(rows[1][2])
  assert len(rows) == 2 and counts['rows without a value (left out)'] == 1
  if not is_stdin:
    os.close(reads)


@pytest.mark.parametrize('content, fault', [('nr;body\n', 'no records'), ('', 'is empty')])
def test_a_pipe_without_rows_is_told(tmp_path, content, fault):
  os.mkfifo(pipe := tmp_path / 'pipe')
  writer = threading.Thread(target=pipe.write_text, args=(content,))
  writer.start()
  with pytest.raises(InputError, match=f'{pipe} .*{fault}'):
    lines.chunks_of(str(pipe), ['body'], Counter())
  writer.join()


def test_a_header_among_lines_is_named(caplog):
  ask = types.SimpleNamespace(
    fields=('text', 'pair'), cells=(), spelt={'text': 'a b', 'pair': 'c'}.get
  )
  for head, is_header in ('nr;"a b";c', 1), ('pair\ttext', 1), ('a b;d', 0), ('c', 0), ('', 0):
    caplog.clear()
    chunks = [[f'{head}\r\n'.encode(), b'a b;c'], [b'a b;c']]
    assert [*lines.watched(iter(chunks), ask)] == chunks
    assert len(caplog.messages) == is_header, head
  assert [*lines.watched(iter([[b'c;a b']]), ask)] and caplog.messages == [
    "the first line is answered as a text, 'c;a b'; if it is the header of a CSV, add --columns "
    "'a b,c'"
  ]


def test_attention_reads_a_text_or_two(pretrained_model):
  counts, what = pretrained_model.counts, 'pieces that are not in the vocabulary ([UNK])'
  counts.clear()
  pretrained_model.states(['old \u16a0'])
  assert counts == {what: 1}
  for text, cut in (('old ' * 30, 0), ('old ' * 31, 1), (('old ' * 20, 'new ' * 9), 0)):
    counts.clear()
    (found,) = pretrained_model.states([text])
    assert len(found.tokens) == pretrained_model.limit == 32 and counts.total() == cut
  found = as_lines(pretrained_model.ask('attention'), ['old\triver', 'old\triver\tgarden'])
  assert found[0]['tokens'] == ['[CLS]', 'old', '[SEP]', 'river', '[SEP]']
  assert found[1] == {'error': '3 fields where this task reads a text, or text and pair'}


def test_many_masks_are_filled_as_few_are(pretrained_model, monkeypatch):
  """In parts of AT_ONCE, wherever in a row they are; expected: the head over all tokens of each."""
  monkeypatch.setattr(masked_words, 'AT_ONCE', 8)
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


def test_a_line_of_nothing_but_masks_takes_little_memory(wide):
  """By XLA's own account; the line of 16,000 of them would have taken 1 GB for each batch."""
  ask = wide.ask('fill-mask')
  batch = next(packed_rows.batches(ask.examples([masked_words.MASK * 16_000], RecordProblems())))
  arrays = {name: np.stack([row[name] for row in batch]) for name in batch[0]}
  assert arrays['input_ids'].size == packed_rows.TOKENS
  held = ask._compiled.lower(wide.weights, arrays).compile().memory_analysis()
  assert held.temp_size_in_bytes < 3e8


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


def test_what_is_compiled_is_kept_unless_told(model_folder, tmp_path, monkeypatch):
  kept, asked = [], ['--input', str(tmp_path / 'in.txt'), '--model', str(model_folder)]
  (tmp_path / 'in.txt').write_text('old [MASK]\n')
  monkeypatch.setattr(__main__, 'Model', loaded)
  monkeypatch.setattr(__main__, 'keep_compiled', lambda: kept.append(len(kept)))
  for more, times in (([], 1), (['--no-cache'], 1), ([], 2)):
    __main__.main([*asked, *more])
    assert len(kept) == times


def test_the_exit_status_tells_if_nothing_was_answered(model_folder, tmp_path):
  with pytest.raises(SystemExit) as stopped:
    command(model_folder, tmp_path, b'no mask\n\n', '--task', 'fill-mask')
  assert stopped.value.code == 1
  assert len(command(model_folder, tmp_path, b'no mask\nold [MASK]\n', '--task', 'fill-mask')) == 2


@pytest.mark.skipif(not Path('/dev/full').exists(), reason='there is no /dev/full here')
def test_a_full_disk_is_told_and_a_reader_that_has_ended_is_none(
  model_folder, tmp_path, capsys, monkeypatch
):
  (tmp_path / 'in.txt').write_text('old [MASK]\n')
  with pytest.raises(SystemExit) as stopped:
    main(model_folder, '--input', tmp_path / 'in.txt', '--output', '/dev/full')
  assert stopped.value.code == 3 and '/dev/full' in capsys.readouterr().err
  read, write = os.pipe()
  os.close(read)
  with open(write, 'w') as out:
    monkeypatch.setattr(sys, 'stdout', out)
    main(model_folder, '--input', tmp_path / 'in.txt')
  assert 'cannot be written' not in capsys.readouterr().err


@pytest.mark.parametrize('name, kept', [('out.jsonl', 2), ('out.npy', 0)])
def test_a_stop_says_how_many_answers_are_kept(tmp_path, name, kept):
  path = tmp_path / name
  told = rf'2 answers; {"these" if kept else "none"}'
  with (
    pytest.raises(KeyboardInterrupt, match=told),
    __main__.Writer(str(path), False, 'embedding', 3) as to,
  ):
    for _ in range(2):
      to.write({'embedding': np.ones(3)}, '')
    raise KeyboardInterrupt
  assert (len(path.read_text().splitlines()) if path.exists() else 0) == kept
