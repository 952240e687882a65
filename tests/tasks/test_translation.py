"""Pairs of texts: what is read of files, the rows that both sides take, scores, and whole runs."""

import gzip
import json

import jax
import numpy as np
import pytest
from refusal import one_sentence
from running import read_weights, untrained
from small_tables import WORDS, sentence
from toys import load

from bert_jax.evaluate import evaluate
from bert_jax.predict import Model
from bert_jax.run import warm_start
from bert_jax.run.inputs import read_inputs
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.translation import reading, task
from bert_jax.timeline import EVALUATION

PAIRS = [('A dog runs .', 'Ein Hund rennt .'), ('Two men', 'Zwei Männer'), ('Good', 'Gut')]


def config(train='x', *overrides):
  return load('configs/translate.py:pair=en-de,size=small', f'data.train={train}', *overrides)


def read(train, *overrides, split='train', skip=False):
  of_split = f'data.{split}={train}'
  problems = Problems(split, skip)
  return list(reading.read(config('x', of_split, *overrides), split, problems)), problems


def parallel(folder, pairs=PAIRS, name='train', ending=''):
  for k, language in enumerate(('en', 'de')):
    text = ''.join(f'{pair[k]}\n' for pair in pairs).encode()
    path = folder / f'{name}.{language}{ending}'
    path.write_bytes(gzip.compress(text) if ending else text)
  return f'{folder}/{name}.{{language}}'


def texts_of(pairs):
  return [(pair.source, pair.target) for pair in pairs]


# ---- reading -------------------------------------------------------------------------------------


def written_in(form, folder):
  """(data.train, further fields) of PAIRS in a form."""
  if form == 'headerless':
    (folder / 'train.tsv').write_text(''.join(f'{a}\t{b}\n' for a, b in PAIRS))
    return folder / 'train.tsv', ('translation.columns=en,de',)
  if form == 'compressed':
    parallel(folder, ending='.gz')
    return f'{folder}/train.{{language}}.gz', ()
  if form == 'json':
    for k, (language, name) in enumerate((('en', 'text'), ('de', 'de'))):
      lines = ''.join(json.dumps({'id': 7, name: pair[k]}) + '\n' for pair in PAIRS)
      (folder / f'{language}.ndjson').write_text(lines)
    return f'en={folder}/en.ndjson,de={folder}/de.ndjson', ()
  parallel(folder)
  return f'en={folder}/train.en,de={folder}/train.de', ()


@pytest.mark.parametrize('form', ['named', 'compressed', 'headerless', 'json'])
def test_all_forms_of_parallel_text_are_read_alike(form, tmp_path):
  spec, fields = written_in(form, tmp_path)
  pairs, problems = read(spec, *fields)
  assert texts_of(pairs) == PAIRS and problems.counts['pairs'] == 3
  assert pairs[0].where.rpartition(':')[2] == '1'


@pytest.mark.parametrize('longer', ['en', 'de'])
def test_files_of_different_lengths_are_refused_at_the_first_line(longer, tmp_path):
  spec = parallel(tmp_path)
  with open(tmp_path / f'train.{longer}', 'a') as file:
    file.write('one more\nand another\n')
  with one_sentence('line 4'):
    read(spec, skip=True)  # nothing says which line is lost: it cannot be skipped


@pytest.mark.parametrize('empty', [('', 'Leer'), ('Empty', ' ')])
def test_an_empty_side_is_refused_at_its_line_or_left_out(empty, tmp_path):
  spec = parallel(tmp_path, [PAIRS[0], empty, PAIRS[1]])
  with one_sentence('train.en:2'):
    read(spec)
  kept, problems = read(spec, skip=True)
  assert texts_of(kept) == PAIRS[:2]
  assert problems.counts['pairs without a text (skipped)'] == 1


@pytest.mark.parametrize('line', ['', '{"id": 3}', '{"de": '])
def test_a_line_of_json_without_its_text_moves_no_other(tmp_path, line):
  parallel(tmp_path)
  (tmp_path / 'train.de.jsonl').write_text(f'{{"de": "Ein"}}\n{line}\n{{"de": "Gut"}}\n')
  with one_sentence('train.de.jsonl:2'):
    read(f'en={tmp_path}/train.en,de={tmp_path}/train.de.jsonl', skip=True)


def test_what_has_no_target_is_translated_and_not_scored_but_no_training_data(tmp_path):
  parallel(tmp_path)
  pairs, problems = read(f'en={tmp_path}/train.en', split='eval')
  assert texts_of(pairs)[1] == ('Two men', None)
  assert problems.counts['without a target (translated, not scored)'] == 3
  with one_sentence('de'):
    read(f'en={tmp_path}/train.en')


# ---- rows ----------------------------------------------------------------------------------------


def rows(pairs, tokenizer, *overrides, split='train'):
  fields = 'data.seq_length=12', 'data.examples_per_row=3', *overrides
  pairs = [reading.Pair(f'x:{i}', str(i), *pair) for i, pair in enumerate(pairs)]
  problems = Problems(split)
  return task.Pairs(config('x', *fields), tokenizer, pairs, problems), problems


def ids(tokenizer, text):
  return [tokenizer.pieces.index(word) for word in text.split()]


def test_both_sides_of_a_pair_have_its_segment_and_labels_are_the_next_tokens(tokenizer):
  source, _ = rows([('old river', 'new'), ('good', 'bad market winter')], tokenizer)
  assert len(source) == 1
  row = source[0]
  cls, sep = tokenizer.cls_id, tokenizer.sep_id
  a, b, x, y = (ids(tokenizer, t) for t in ('old river', 'good', 'new', 'bad market winter'))
  assert row['input_ids'].tolist() == [cls, *a, sep, cls, *b, sep] + [0] * 5
  assert row['segment_ids'].tolist() == [1] * 4 + [2] * 3 + [0] * 5
  assert row['target_ids'].tolist() == [cls, *x, cls, *y] + [0] * 6
  assert row['target_labels'].tolist() == [*x, sep, *y, sep] + [0] * 6
  assert row['target_segment_ids'].tolist() == [1] * 2 + [2] * 4 + [0] * 6
  assert row['target_position_ids'].tolist() == [0, 1, 0, 1, 2, 3] + [0] * 6
  assert row['example_ids'].tolist() == [1, 2, 0]
  assert source.fill == (7 + 6) / 24


def test_targets_as_those_of_a_bart_begin_with_sep_and_cls_is_predicted(tokenizer):
  source, _ = rows([('good', 'new')], tokenizer, 'translation.begin=sep')
  cls, sep, (x,) = tokenizer.cls_id, tokenizer.sep_id, ids(tokenizer, 'new')
  row = source[0]
  assert row['target_ids'].tolist() == [sep, cls, x] + [0] * 9
  assert row['target_labels'].tolist() == [cls, x, sep] + [0] * 9
  fields = 'data.seq_length=12', 'translation.begin=sep'
  assert task.objective(config('x', *fields), tokenizer).begin_id == sep
  assert tokenizer.decode(np.array([cls, x, sep])) == 'new'


def test_rows_have_room_for_the_longer_side_and_the_fingerprint_covers_the_targets(tokenizer):
  rng = np.random.default_rng(0)
  pairs = [(sentence(rng), sentence(rng)) for _ in range(60)]
  for length in (0, 9, 30):
    fields = ('data.seq_length=16', f'translation.target_length={length}')
    source, _ = rows(pairs, tokenizer, *fields)
    seen = [e for i in range(len(source)) for e in source[i]['example_ids'] if e]
    assert sorted(seen) == list(range(1, 1 + len(source.pairs)))
    labels = sum((source[i]['target_segment_ids'] > 0).sum() for i in range(len(source)))
    assert labels == source.target_tokens == sum(len(t) for t in source.targets)
  other = [(a, b) if i else (a, 'bad bad') for i, (a, b) in enumerate(pairs)]
  assert rows(pairs, tokenizer)[0].fingerprint != rows(other, tokenizer)[0].fingerprint


def test_long_pairs_are_left_out_of_training_or_cut_and_always_counted(tokenizer):
  long = ' '.join(WORDS * 2)
  pairs = [('old', 'new'), (long, 'new'), ('old', long)]
  source, problems = rows(pairs, tokenizer)
  assert [pair.id for pair in source.pairs] == ['0']
  assert problems.counts['pairs left out (longer than 12 and 12 tokens)'] == 2
  for kept, problems in (
    rows(pairs, tokenizer, 'translation.too_long=cut'),
    rows(pairs, tokenizer, split='eval'),
  ):
    assert len(kept.pairs) == 3 and problems.counts['pairs cut (longer than 12 and 12 tokens)'] == 2
    assert len(kept.texts[1][0]) == 10 and len(kept.targets[2]) == 12
    assert kept.targets[2][-1] != tokenizer.sep_id  # a text that goes on does not end here
    assert kept.pairs[2].target == long  # and is scored whole
  sides = 'data.seq_length=16', 'translation.target_length=8'  # each has a length of its own
  kept, _ = rows(pairs, tokenizer, *sides, split='eval')
  assert kept.texts[1][0].tolist() == ids(tokenizer, ' '.join((WORDS * 2)[:14]))
  assert kept.targets[2].tolist() == ids(tokenizer, ' '.join((WORDS * 2)[:8]))


def test_a_vocabulary_is_trained_on_both_sides(tmp_path):
  assert list(task.texts(config(parallel(tmp_path)))) == [text for pair in PAIRS for text in pair]


# ---- scores --------------------------------------------------------------------------------------


def test_scores_are_those_of_sacrebleu_with_its_signature(tokenizer):
  """Hypothesis and reference of Papineni et al. 2002, section 2.1, as one sentence and a half; the
  numbers are those of the program sacrebleu 2.6.0 on the two files."""
  action = 'It is a guide to action'
  gold = [f'{action} that ensures that the military will forever heed Party commands.']
  said = [f'{action} which ensures that the military always obeys the commands of the party.']
  gold, said = [*gold, 'The dog, it runs.'], [*said, 'The dog runs.']
  source, _ = rows([('old', 'new')] * 2, tokenizer)
  answers = [{'prediction': p, 'gold': g} for p, g in zip(said, gold)]
  scores = source.scores(answers)
  assert scores == pytest.approx({'bleu': BLEU, 'chrf': CHRF}, abs=0.005)
  files = source.files([a | {'id': '0'} for a in answers])
  assert files['translations.txt'] == ''.join(f'{x}\n' for x in said)
  lines = files['sacrebleu.txt'].splitlines()
  assert lines[0].startswith(f'BLEU = {BLEU:.2f} ') and lines[2].startswith(f'chrF2 = {CHRF:.2f}')
  assert lines[1].startswith('nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:')
  assert 'sacrebleu.txt' not in source.files([{'prediction': 'x', 'id': '0'}])


BLEU, CHRF = 39.61, 61.11


# ---- runs ----------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def words(tmp_path_factory):
  """A folder of pairs, in which the target is the source with each word doubled in capitals."""
  folder, rng = tmp_path_factory.mktemp('words'), np.random.default_rng(0)
  for name, number in (('train', 60), ('val', 12)):
    sources = [sentence(rng, 1, 5) for _ in range(number)]
    parallel(folder, [(text, ' '.join(reversed(text.split()))) for text in sources], name)
  return folder


SMALL = """
  model.hidden_size=16 model.num_hidden_layers=1 model.num_attention_heads=2
  model.intermediate_size=32 model.max_position_embeddings=24 data.seq_length=24 batch_size=4
  optimizer.warmup=2 checkpoint.every=3 log.every=2 log.tensorboard=false
  tokenizer.do_lower_case=true"""


def small(words, vocab, *overrides):
  data = f'data.eval={words}/val.{{language}} tokenizer.path={vocab}'
  data += f' model.vocab_size={len(WORDS) + 5}'
  own = 'steps=6 eval.every=3 model.vocab_multiple=1 data.examples_per_row=4 translation.beams=2'
  return config(f'{words}/train.{{language}}', SMALL, data, own, *overrides)


@pytest.fixture(scope='module')
def translated(words, vocab, tmp_path_factory):
  """(workdir, its answers, the metrics of an evaluation) of a small model. Do not write into it."""
  workdir = untrained(small(words, vocab), tmp_path_factory.mktemp('translated') / 'run')
  return workdir, workdir / 'answers', evaluate(workdir, out=workdir / 'answers')[0]


def test_predictions_are_those_of_the_evaluation_whatever_shares_a_row(translated, words):
  workdir, folder, _ = translated
  model = Model(workdir)
  answers = [json.loads(x) for x in (folder / 'predictions.jsonl').read_text().splitlines()]
  sources = [answer['source'] for answer in answers]
  expected = [answer['prediction'] for answer in answers]
  assert model.translate(sources) == expected
  assert model.translate(sources[1:2]) == expected[1:2]


def test_a_model_of_denoising_begins_a_translation(corpus_file, words, tmp_path):
  data = f'data.train={corpus_file} corpus.eval_share=0.2 tokenizer.kind=wordpiece steps=4'
  own = 'model.vocab_size=220 eval.every=0 eval.batches=3'
  denoising = load('configs/translate.py:denoise,size=small', SMALL, data, own)
  untrained(denoising, tmp_path / 'whole')
  denoiser = read_inputs(denoising, tmp_path / 'read')
  source = denoiser.eval_batches.source
  assert not source.baselines  # most of a text can be copied
  rows = source.gather(range(len(source)))
  prepare = lambda rows: denoiser.objective.prepare(rows, jax.random.key(0), EVALUATION)
  found = jax.jit(prepare)(rows)
  assert 0.25 < found['hidden'].sum() / found['ordinary'].sum() < 0.35
  begins = f'init_from={tmp_path}/whole checkpoint.best_metric= translation.beams=0'
  config = small(words, '', own, begins)
  inputs, weights = read_weights(config, tmp_path / 'tuned')
  drawn = jax.eval_shape(inputs.objective.init, jax.random.key(0))
  assert jax.tree.structure(warm_start.warm_start(drawn, weights)) == jax.tree.structure(weights)
