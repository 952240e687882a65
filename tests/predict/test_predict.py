"""A model is asked, in Python and on the command line: every task, bad input, streams, shapes."""

import contextlib
import functools
import inspect
import json
import os
import subprocess
import sys
from collections import Counter

import jax
import numpy as np
import pytest
from conftest import ROOT, fields
from references import drawn
from scipy.special import log_softmax, softmax
from small_tables import WORDS, sentence

import bert_jax
from bert_jax import config as c
from bert_jax.config import InputError
from bert_jax.predict import Model, __main__, lines, packed_rows
from bert_jax.predict.model import PREDICTIONS, method_of
from bert_jax.rows.examples import Examples
from bert_jax.tasks import TASKS
from bert_jax.tasks.ask import RecordProblems
from bert_jax.tasks.tagging import words
from bert_jax.workdir import trained

NER = "--config.tagging.labels=('B-PER','I-PER','O')"


def random_model(config, tokenizer):
  """A Model with weights large enough for answers that differ."""
  objective = TASKS[config.objective].objective(config, tokenizer)
  return Model(trained.Trained(config, tokenizer, drawn(objective.init), 0))


def load_pretrain(vocab, layers, spec='configs/pretrain.py:runlocal'):
  own = f'tokenizer.path={vocab} model.vocab_size={len(WORDS) + 5} model.num_hidden_layers={layers}'
  sizes = 'model.hidden_size=16 model.intermediate_size=32 model.max_position_embeddings=64'
  return c.load(spec, fields(own, sizes, 'data.seq_length=32'))


def sentences(number, seed=0, most=30):
  rng = np.random.default_rng(seed)
  return [sentence(rng, most=most) for _ in range(number)]


def as_lines(ask, texts):
  """What the command line says of lines, without their numbers."""
  answers = list(__main__.answered(ask, enumerate(texts, 1), (), Counter()))
  for answer in answers:
    answer.pop('line', None)
  return answers


loaded = functools.cache(Model)


def main(model, *arguments):
  """`python -m bert_jax.predict`, in this process, which loads a folder once."""

  def load(*given):
    loaded(*given).counts.clear()
    return loaded(*given)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(__main__, 'Model', load)
    __main__.main(['--model', str(model), *map(str, arguments)])


def refused(capsys, model, *arguments):
  """What the command says of a mistake."""
  capsys.readouterr()
  with pytest.raises(SystemExit) as stopped:
    main(model, *arguments)
  assert stopped.value.code == 2
  return capsys.readouterr().err


def test_every_task_has_a_method_with_its_options():
  """Whose defaults are those of the task: None."""
  for task, prediction in PREDICTIONS.items():
    method = getattr(Model, method_of(task))
    options = list(inspect.signature(method).parameters.values())[2:]
    assert [x.name for x in options] == list(prediction.options), task
    assert all(x.default is None for x in options), task


@pytest.mark.parametrize('task', ['', 'sst2', 'squad'])
def test_a_model_shows_what_it_can_be_asked(task, pretrained_model, make_model):
  model = make_model(task) if task else pretrained_model
  able = []
  for asked in PREDICTIONS:
    with contextlib.suppress(InputError):
      model.ask(asked)
      able.append(asked)
    assert (method_of(asked) in dir(model)) == (asked in able)
  assert {*model.tasks} == {*able} and {'predict', 'answer', 'states', 'config'} < {*dir(model)}
  assert f'asked to {", ".join(model.tasks)})' in repr(model) and 'embed' in able


# ---- the tasks -----------------------------------------------------------------------------------


def test_packed_answers_are_those_of_each_text_alone(pretrained_model, make_model):
  texts = sentences(40, most=14)  # alone in rows of 16 tokens
  together = pretrained_model.embed(texts)
  alone = np.concatenate([pretrained_model.embed([text]) for text in texts])
  np.testing.assert_allclose(together, alone, atol=2e-6)
  classifier = make_model('sst2')
  for text, shares in zip(texts[:10], classifier.classify(texts)):
    assert shares == pytest.approx(classifier.classify([text])[0], abs=1e-5)


@pytest.mark.parametrize('norm_placement', ['post', 'pre'])
def test_embeddings_are_means_of_the_last_hidden_states(norm_placement, vocab, tokenizer):
  """With pre-LN, behind the norm that stands after the last block."""
  config, texts = load_pretrain(vocab, 1), sentences(5, most=14)
  config.model.norm_placement = norm_placement
  model = random_model(config, tokenizer)
  first = model.embed(texts, pooling='cls', normalize=False)
  for text, mean, cls, found in zip(texts, model.embed(texts), first, model.states(texts)):
    assert found.hidden.shape == (2, 2 + len(text.split()), 16)
    expected = found.hidden[-1].mean(axis=0)
    np.testing.assert_allclose(mean, expected / np.linalg.norm(expected), atol=1e-5)
    np.testing.assert_allclose(cls, found.hidden[-1][0], atol=1e-5)


def test_a_long_text_is_embedded_in_windows_weighted_by_tokens(pretrained_model):
  model, words = pretrained_model, sentences(1, most=30)[0].split() * 3
  words = (words * 9)[:70]  # limit 32: windows of 30 words begin at 0, 15, 30, 45
  model.counts.clear()
  whole, _ = model.embed([' '.join(words), ' '.join(words[:30])])  # one is long
  parts = [words[at : at + 30] for at in (0, 15, 30, 45)]
  states = [state.hidden[-1] for state in model.states([' '.join(part) for part in parts])]
  expected = np.mean(np.concatenate(states), axis=0)
  expected /= np.linalg.norm(expected)
  np.testing.assert_allclose(whole, expected, atol=1e-5)
  assert model.counts == {'texts in windows (longer than 32 tokens)': 1}


def test_fill_mask_reads_a_long_text_around_each_mask(pretrained_model):
  """As if its window was the text: of those that overlap by half the one it is deepest in."""
  model = pretrained_model
  words = sentences(1, most=30, seed=3)[0].split()
  words = (words * 40)[:200]
  words[5] = words[26] = words[150] = '[MASK]'
  masks, none, _ = model.fill_mask([' '.join(words), 'old river', ' '.join(words[:30])], top_k=3)
  assert len(masks) == 3 and none == []
  with pytest.raises(InputError, match=r'element 0: no \[MASK\] in the text'):
    model.fill_mask(['old river'])
  # Windows of 30 pieces begin at 0, 15, .. 135, 150, 165, 170. The second mask is in the first two,
  # 3 pieces from the end of the one and 11 from the beginning of the other.
  alone = model.fill_mask([' '.join(words[a : a + 30]) for a in (15, 135)], top_k=3)
  alone = [[model.fill_mask([' '.join(words[:30])], top_k=3)[0][0]], *alone]
  for found, (expected,) in zip(masks, alone):
    assert [piece for piece, _ in found] == [piece for piece, _ in expected]
    np.testing.assert_allclose([x for _, x in found], [x for _, x in expected], rtol=1e-4)


def test_pieces_of_bytes_are_shown_as_text(corpus_file, tmp_path):
  """In BabyLM's recipe, whose vocabulary writes a blank as Ġ."""
  small = {'model.num_hidden_layers': 1, 'model.vocab_size': 300, 'corpus.eval_share': 0.2}
  run = bert_jax.start('configs/babylm.py', str(corpus_file), tmp_path / 'W', steps=4, **small)
  ((found,),) = run.model.fill_mask(['the [MASK] is old'], top_k=300)
  pieces = {piece for piece, _ in found}
  known = [piece.replace('Ġ', ' ') for piece in run.model.tokenizer.pieces]
  assert len(pieces) == 300 and {' ', ' the', 'the'} <= pieces
  assert {x for x in known if x.isascii()} <= pieces and not {x for x in pieces if '\ufffd' in x}


def test_perplexity_is_that_of_each_token_masked_in_turn(pretrained_model):
  model, words = pretrained_model, ['old', 'river', 'new', 'garden']
  logs = []
  for k, word in enumerate(words):
    masked = ' '.join(words[:k] + ['[MASK]'] + words[k + 1 :])
    logs.append(np.log(dict(model.fill_mask([masked], top_k=99)[0][0])[word]))
  found = model.perplexity([' '.join(words), 'river'])
  assert found[0] == pytest.approx(np.exp(-np.mean(logs)), rel=1e-4)
  assert len(found) == 2 and found[1] > 1


def test_perplexity_of_a_causal_model_is_of_each_piece_after_those_before(vocab, tokenizer):
  config = load_pretrain(vocab, 1, 'configs/causal_lm.py:runlocal')
  config.model.update(dtype='float32', num_attention_heads=2)
  model = random_model(config, tokenizer)
  pieces = model.params['encoder']['embeddings']['word_embeddings']['embedding']
  texts = 'old river new garden', 'river', ' '.join(WORDS * 4)  # of the last what fits
  for text, answer in zip(texts, as_lines(model.ask('perplexity'), texts), strict=True):
    ids = tokenizer.ids_batch([text])[0][:30]
    hidden = model.states([text])[0].hidden[-1]
    logs = log_softmax(hidden @ pieces[: tokenizer.vocab_size].T, axis=-1)[range(len(ids)), ids]
    assert answer['tokens'] == len(ids)
    assert answer['log_probability'] == pytest.approx(logs.sum(), rel=1e-5)
    assert answer['perplexity'] == pytest.approx(np.exp(-logs.mean()), rel=1e-5)
  assert model.counts['texts cut (longer than 32 tokens)'] == 2  # by either of them


@pytest.mark.parametrize(
  'rows, labels', [('nsp', ('next', 'random')), ('sop', ('in order', 'swapped'))]
)
def test_next_sentence_is_the_head_of_pretraining(rows, labels, vocab, tokenizer):
  """By numpy, on the pooled state of [CLS]. Label 0 is of the pair that is one."""
  config, pair = load_pretrain(vocab, 1), ('old river', 'new garden')
  config.corpus.rows = rows
  model = random_model(config, tokenizer)
  (inside,) = model.states([pair])
  pooler, head = model.params['pooler']['dense'], model.params['nsp']['dense']
  pooled = np.tanh(inside.hidden[-1][0] @ pooler['kernel'] + pooler['bias'])
  shares = softmax(pooled @ head['kernel'] + head['bias'])
  (answer,) = as_lines(model.ask('next-sentence'), ['\t'.join(pair)])
  assert answer['probabilities'] == pytest.approx(dict(zip(labels, shares)), abs=1e-5)
  assert answer['prediction'] == labels[shares.argmax()]
  assert model.next_sentence([pair, ('good', 'bad')])[0] == pytest.approx(shares[0], abs=1e-5)
  assert model.ask('next-sentence').labels == labels


def test_classify_says_what_it_reads(make_model):
  pairs = make_model('mrpc')
  (answer,) = as_lines(pairs.ask('pair'), ['old river\tnew garden'])
  assert answer['text'] == 'old river' and answer['pair'] == 'new garden'
  assert answer['prediction'] in ('0', '1') and sum(
    answer['probabilities'].values()
  ) == pytest.approx(1)
  same = as_lines(pairs.ask('classify'), [json.dumps({'text': 'old river', 'pair': 'new garden'})])
  assert same == [answer]
  assert pairs.classify(('old river', 'new')) == pairs.classify([('old river', 'new')])[0]
  (lacking,) = as_lines(pairs.ask('pair'), ['old river'])
  assert lacking['error'].startswith(
    '1 given where a record of this task has 2: text, pair (a line'
  )
  single = make_model('sst2')
  (released,) = as_lines(single.ask('classify'), ['old river\tnew garden'])
  assert released['error'].endswith('list); --task pair reads pairs')
  (released,) = as_lines(single.ask('pair'), ['old river\tnew garden'])
  assert released['pair'] == 'new garden'
  (number,) = as_lines(make_model('stsb').ask('pair'), ['old river\tnew garden'])
  assert isinstance(number['prediction'], float)
  both = [('old river', 'new'), ('good', 'bad')]
  assert pairs.pair(both) == pairs.classify(iter(both))


@pytest.mark.parametrize('name, reads_pairs', [('sst2', False), ('mrpc', True)])
def test_a_classifier_that_was_trained_here_knows_whether_it_reads_pairs(
  make_model, monkeypatch, name, reads_pairs
):
  model = make_model(name)
  assert 'pair' in model.tasks  # of a released one it is not known
  monkeypatch.setattr(model, 'step', 7)
  assert ('pair' in model.tasks) == reads_pairs and 'classify' in model.tasks
  if not reads_pairs:
    with pytest.raises(InputError, match='has no classifier of pairs; fine-tune one'):
      model.pair([('a', 'b')])


def test_entities_lie_in_the_text_as_given(make_model):
  model = make_model('ner', NER, '--config.data.examples_per_row=4')
  texts = ['  old River, (garden) "letter".', '老 new 市場 bad', ' '.join(WORDS * 30)]
  found = model.tag(texts)
  assert any(answer['entities'] for answer in found)
  for text, answer in zip(texts, found):
    assert [text[a:b] for a, b in answer['offsets']] == answer['tokens']
    assert len(answer['prediction']) == len(answer['probability']) == len(answer['tokens'])
    for entity in answer['entities']:
      assert text[entity['start'] : entity['end']] == entity['text'] == entity['text'].strip()
      assert entity['type'] == 'PER' and 0 < entity['probability'] <= 1
  pieces = [texts[0][a:b] for a, b in words(texts[0])]
  assert pieces == [*'old River , ( garden )'.split(), *'" letter " .'.split()]  # noqa: SIM905
  assert [a for a, _ in words('老 new 市場')] == [0, 2, 6, 7]
  (alone,) = model.tag([['old', 'river']])
  (record,) = model.tag([{'words': ['old', 'river'], 'n': 1}])  # as training reads them, too
  assert record == {'words': ['old', 'river'], 'n': 1} | alone
  assert model.tag(['old\triver'])[0]['tokens'] == ['old', 'river']


def test_tags_without_entities_come_with_each_token(make_model):
  model = make_model('pos', "--config.tagging.labels=('NOUN','VERB')")
  (found,) = model.tag(['old river.'])
  assert found['tokens'] == ['old', 'river', '.'] and len(found['prediction']) == 3
  assert found['offsets'] == [[0, 3], [4, 9], [9, 10]]


def test_answers_lie_in_the_context_as_given(make_model):
  model = make_model('squad', '--config.qa.max_query_length=8', '--config.qa.doc_stride=16')
  context = '  Old RIVER, ' + ' '.join(WORDS * 20)
  asked = [('good market', own) for own in ('the old, RIVER', context)]
  short, long = model.find_answers(asked, top_k=3)
  for answer, own in ((short, 'the old, RIVER'), (long, context)):
    assert answer['prediction'] == answer['nbest'][0]['text']
    assert 1 <= len(answer['nbest']) <= 3
    for entry in answer['nbest']:
      assert own[entry['start'] : entry['end']] == entry['text'] != ''


def test_a_question_may_have_any_number_of_choices(make_model):
  model = make_model('copa')
  question = ('old river', 'new?', 'good', 'bad')
  two, three = model.choose([question, (*question, 'market')])
  assert len(two['probabilities']) == 2 and len(three['probabilities']) == 3
  odds = [np.log(own['probabilities'][0] / own['probabilities'][1]) for own in (two, three)]
  assert odds[0] == pytest.approx(odds[1], abs=1e-4)  # a third choice takes from both alike
  assert two['prediction_text'] == question[2 + two['prediction']]
  record = {'context': 'old river', 'question': 'new?', 'choices': ['good', 'bad'], 'id': 'q7'}
  from_json, from_tabs = as_lines(model.ask('choose'), [json.dumps(record), '\t'.join(question)])
  assert from_json.pop('id') == 'q7' and from_json == from_tabs
  assert from_tabs['choices'] == ['good', 'bad']


def test_coreference_finds_its_names(make_model):
  model = make_model('gap')
  record = {'text': 'old river and new river: good', 'pronoun': 'good', 'a': 'old river'}
  record |= {'b': 'river', 'b-offset': 18}
  (answer,) = model.coreference([record])
  assert answer['a'] == 'old river' and answer['pronoun'] == 'good'
  assert set(answer['probabilities']) == {'A', 'B', 'neither'}
  gap = {k.title().replace('Offset', 'offset'): v for k, v in record.items()}
  given = answer.keys() & record.keys()
  assert model.coreference([gap]) == [gap | {k: v for k, v in answer.items() if k not in given}]
  lines = [dict(record, **{'b-offset': 17}), dict(record, a='market')]
  wrong = as_lines(model.ask('coreference'), map(json.dumps, lines))
  assert "'river' is 2 times in the text, and not at b-offset 17" in wrong[0]['error']
  assert "a 'market' is not in the text" in wrong[1]['error']


# ---- lines in, lines out -------------------------------------------------------------------------


def test_a_few_shapes_hold_everything(pretrained_model):
  ask = pretrained_model.ask('embed')
  texts = sentences(300, most=31)
  shapes = {
    (len(batch), len(batch[0]['input_ids']))
    for count in (1, 2, 3, 17, 100, 300)
    for batch in packed_rows.batches(ask.examples(texts[:count], RecordProblems()))
  }
  assert len(shapes) <= 6, shapes
  batches = list(packed_rows.batches(ask.examples(texts, RecordProblems())))
  tokens = sum((row['segment_ids'] > 0).sum() for batch in batches for row in batch)
  assert tokens > 0.85 * sum(row['segment_ids'].size for batch in batches for row in batch)
  seen = sorted(n for batch in batches for row in batch for n in row['example_ids'] if n)
  assert seen == list(range(1, 301))


def test_outputs_of_batches_of_many_shapes_are_one_array(tokenizer):
  """A row for each of theirs, in order, whose end is zeros where others are longer."""
  examples = Examples(tokenizer, [[np.full(n, 5)] for n in (200, 9, 30, 31, 7)], seq_length=256)
  rows = [row for batch in packed_rows.batches(examples) for row in batch]
  as_read = lambda _, batch: {'ids': batch['input_ids'], 'first': batch['input_ids'][:, 0] + 1}
  found = packed_rows.outputs(as_read, {}, examples)
  assert found['ids'].shape == (len(rows), 256) and len({len(x['input_ids']) for x in rows}) > 1
  for ids, row in zip(found['ids'], rows):
    own = row['input_ids']
    assert (ids[: len(own)] == own).all() and not ids[len(own) :].any()
  np.testing.assert_array_equal(found['first'], found['ids'][:, 0] + 1)


def test_lines_are_answered_while_the_pipe_is_open(model_folder):
  """An interactive line gets its answer at once; the command as people run it."""
  env = dict(os.environ, PYTHONPATH=str(ROOT), JAX_PLATFORMS='cpu')
  command = [sys.executable, '-m', 'bert_jax.predict', '--model', str(model_folder), '--top-k', '2']
  pipes = dict.fromkeys(('stdin', 'stdout', 'stderr'), subprocess.PIPE)
  with subprocess.Popen(command, cwd=ROOT, env=env, text=True, **pipes) as run:
    for text in ('the [MASK] river', 'no mask'):
      run.stdin.write(text + '\n')
      run.stdin.flush()
      answer = json.loads(run.stdout.readline())  # before the next line is written
      assert ('masks' in answer) == ('MASK' in text)
    run.stdin.close()
    assert run.stdout.read() == '' and run.wait() == 0
    assert '1 of 2 lines have no answer' in run.stderr.read()


def test_files_in_and_out(model_folder, pretrained_model, tmp_path, capsys):
  (tmp_path / 'in.txt').write_text('old river\n\nnew market\n')
  common = '--task', 'embed', '--input', tmp_path / 'in.txt', '--output', tmp_path / 'out.jsonl'
  for options, normalize in (([], True), (['--no-normalize'], False)):
    main(model_folder, *common, *options)
    assert 'the first of them is line 2: empty line' in capsys.readouterr().err
    found = [json.loads(line) for line in (tmp_path / 'out.jsonl').read_text().splitlines()]
    assert found[1] == {'line': 2, 'error': 'empty line'}
    expected = pretrained_model.embed(['old river', 'new market'], normalize=normalize)
    vectors = [found[0]['embedding'], found[2]['embedding']]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_lines_come_as_they_are_there(monkeypatch):
  reads, writes = os.pipe()
  with open(reads) as stream:
    monkeypatch.setattr(sys, 'stdin', stream)
    chunks = lines.of_stdin(counts := Counter())
    os.write(writes, b'one\ntwo\r\n')
    assert next(chunks) == [(1, 'one'), (2, 'two\r')]
    os.write(writes, b'\xc3\xa4\n\nbad \xff\n' + b'en')
    assert next(chunks) == [(3, 'ä'), (4, ''), (5, 'bad \ufffd')]
    os.write(writes, b'd')
    os.close(writes)
    assert list(chunks) == [[(6, 'end')]] and counts == {'invalid_utf8_lines': 1}


@pytest.mark.parametrize('task', ['embed', 'classify', 'pair', 'tag', 'answer'])
def test_after_a_warm_up_no_text_waits_for_a_compilation(make_model, task):
  name = {'embed': 'table', 'classify': 'table', 'pair': 'mrpc', 'tag': 'ner', 'answer': 'squad'}
  labels = [NER] if task == 'tag' else []
  labels += ["--config.table.labels=('0','1')"] * (task in ('embed', 'classify'))
  labels += ['--config.qa.max_query_length=16'] * (task == 'answer')
  model = make_model(name[task], *labels)
  model.warm_up(task)
  found = []

  def heard(event, seconds, **about):
    found.extend([event] * event.endswith('backend_compile_duration'))

  jax.monitoring.register_event_duration_secs_listener(heard)
  rng, fields = np.random.default_rng(0), model.ask(task).fields
  for number in (*range(1, 40), 200):
    most = int(rng.choice([2, 5, 20, 100]))
    rows = [{x: sentence(rng, most=most) for x in fields} for _ in range(number)]
    model.answer(task, rows)
  jax.monitoring.clear_event_listeners()
  assert not found
