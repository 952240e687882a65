"""Pronouns: GAP and Winograd files read as published, scored as the official scorer does."""

import csv
import json
import logging
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import config as c
from bert_jax import tokenizers
from bert_jax.config import InputError
from bert_jax.evaluate import evaluate
from bert_jax.objectives.encode import encode
from bert_jax.tasks.coreference import reading, task
from bert_jax.tasks.coreference.gap_scores import gap_scores
from bert_jax.tasks.faulty_records import Problems
from bert_jax.train import train

HEADER = ['ID', 'Text', 'Pronoun', 'Pronoun-offset', 'A', 'A-offset', 'A-coref', 'B', 'B-offset']
HEADER += ['B-coref', 'URL']
TEXT = 'Ann met Eve when she was in Rome.'
ANN = ('g-1', TEXT, 'she', 17, 'Ann', 0, 'TRUE', 'Eve', 8, 'FALSE', 'u')
EVE = ('g-2', TEXT, 'she', 17, 'Ann', 0, 'FALSE', 'Eve', 8, 'TRUE', 'u')
HE = ('g-3', 'Tom saw Bob and Al with him.', 'him', 24, 'Tom', 0, 'FALSE', 'Bob', 8, 'FALSE', 'u')

SMALL = [
  '--config.model.vocab_size=120',
  '--config.model.hidden_size=32',
  '--config.model.intermediate_size=64',
  '--config.model.num_attention_heads=2',
  '--config.data.seq_length=64',
  '--config.data.examples_per_row=2',
  '--config.batch_size=2',
  '--config.steps=2',
  '--config.eval.every=0',
  '--config.checkpoint.every=0',
  '--config.checkpoint.best_metric=',
  '--config.log.tensorboard=false',
]


def gap_file(path, *rows, header=HEADER, ending='\n'):
  lines = ['\t'.join(map(str, row)) for row in (header, *rows)]
  path.write_bytes((ending.join(lines) + ending).encode())
  return path


def wsc_row(text, span1, span2, label=None, idx=0):
  named = {}
  for k, (name, index) in enumerate((span1, span2), 1):
    named |= {f'span{k}_text': name, f'span{k}_index': index}
  row = {'idx': idx, 'text': text, 'target': named}
  return row if label is None else row | {'label': label}


def jsonl(path, *rows):
  path.write_text(''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows))
  return path


def config(train, eval='', *overrides, task='gap', small=SMALL):
  return c.load(
    f'configs/finetune.py:task={task},runlocal',
    [*small, f'--config.data.train={train}', f'--config.data.eval={eval or train}', *overrides],
  )


def read(path, split='train', task='gap', skip=False):
  problems = Problems(split, skip)
  return list(reading.read(config(path, task=task), split, problems)), problems


def spans(example):
  return [example.text[start:end] for start, end in example.spans]


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
  path = tmp_path_factory.mktemp('vocab') / 'vocab.txt'
  letters = [*'abcdefghijklmnopqrstuvwxyz.,', *(f'##{x}' for x in 'abcdefghijklmnopqrstuvwxyz')]
  words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'she', 'ann', 'eve', *letters]
  path.write_text('\n'.join(words) + '\n')
  return tokenizers.load(path)


# -- reading --------------------------------------------------------------------------------------


def test_gap_as_published(tmp_path):
  examples, problems = read(gap_file(tmp_path / 'a.tsv', ANN, EVE, HE))
  assert [example.gold for example in examples] == [0, 1, 2]
  assert spans(examples[0]) == ['she', 'Ann', 'Eve'] and spans(examples[2]) == ['him', 'Tom', 'Bob']
  assert (examples[1].where, examples[1].id) == ('a.tsv:3', 'g-2')
  assert problems.counts['examples'] == 3


def test_several_files(tmp_path):
  gap_file(tmp_path / 'a.tsv', ANN)
  gap_file(tmp_path / 'b.tsv', EVE)
  examples, problems = read(f'a={tmp_path / "a.tsv"},b={tmp_path / "b.tsv"}')
  assert [e.where for e in examples] == ['a.tsv:2', 'b.tsv:2'] and problems.counts['files'] == 2


def test_gap_with_byte_order_mark_and_carriage_returns(tmp_path):
  path = gap_file(tmp_path / 'a.tsv', ANN, header=['\ufeffID', *HEADER[1:]], ending='\r\n')
  (example,), _ = read(path)
  assert (example.id, example.gold) == ('g-1', 0)


def test_a_test_set_without_answers_is_read_for_evaluation_only(tmp_path):
  keep = [i for i, name in enumerate(HEADER) if not name.endswith('coref')]
  path = gap_file(tmp_path / 'a.tsv', [ANN[i] for i in keep], header=[HEADER[i] for i in keep])
  (example,), _ = read(path, 'eval')
  assert example.gold is None
  blank = gap_file(tmp_path / 'b.tsv', ['' if x in ('TRUE', 'FALSE') else x for x in ANN])
  (example,), _ = read(blank, 'eval')
  assert example.gold is None
  half = gap_file(tmp_path / 'b.tsv', ['' if x == 'TRUE' else x for x in ANN])
  with pytest.raises(InputError, match="A-coref and B-coref are '' and 'false'"):
    read(half, 'eval')
  with pytest.raises(InputError, match="no column 'A-coref'"):
    read(path)


def test_an_offset_that_is_off_takes_the_nearest_place_and_is_named(tmp_path, caplog):
  caplog.set_level(logging.INFO, 'bert_jax')
  text = 'Annabel met Ann, and Ann met Eve when she left.'
  row = list(ANN)
  row[1:9] = text, 'she', text.index('she') - 1, 'Ann', 18, 'TRUE', 'Eve', text.index('Eve')
  (example,), problems = read(gap_file(tmp_path / 'a.tsv', row))
  assert example.spans[1] == (21, 24), 'the whole word at 21 is nearer than the one at 12'
  problems.log()
  assert '2 offsets that are off (the nearest place taken) (a.tsv:2)' in caplog.text


@pytest.mark.parametrize(
  ('changes', 'sentence', 'kind'),
  [
    ({4: 'Zoe'}, "a.tsv:2: 'Zoe' is nowhere in its text", 'names that are not in their text'),
    ({1: ''}, "a.tsv:2: 'she' is nowhere in its text", 'names that are not in their text'),
    ({9: 'TRUE'}, "A-coref and B-coref are 'true' and 'true'", 'examples without one answer'),
    ({6: 'yes'}, "A-coref and B-coref are 'yes' and 'false'", 'examples without one answer'),
    ({3: 'x'}, "Pronoun-offset 'x' is no number", 'unreadable offsets'),
  ],
)
def test_faulty_examples_stop_the_run_or_are_skipped_by_name(tmp_path, changes, sentence, kind):
  bad = [changes.get(i, value) for i, value in enumerate(ANN)]
  path = gap_file(tmp_path / 'a.tsv', bad, EVE)
  with pytest.raises(InputError) as error:
    read(path)
  assert sentence in str(error.value) and '\n' not in str(error.value)
  examples, problems = read(path, skip=True)
  assert [example.id for example in examples] == ['g-2']
  assert problems.counts[f'{kind} (skipped)'] == 1
  assert problems.places[f'{kind} (skipped)'] == ['a.tsv:2']


def test_a_row_without_a_column_stops_the_run_or_is_skipped(tmp_path):
  rows = [dict(zip(HEADER, row)) for row in (ANN, EVE)]
  del rows[0]['A-coref']
  (tmp_path / 'a.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
  with pytest.raises(InputError, match="a.jsonl:1: has no column 'A-coref'"):
    read(tmp_path / 'a.jsonl')
  examples, problems = read(tmp_path / 'a.jsonl', skip=True)
  assert [e.id for e in examples] == ['g-2']
  assert problems.counts['rows without a column (skipped)'] == 1


def test_duplicated_ids_and_unknown_genders_are_kept_and_named(tmp_path):
  they = list(ANN)
  they[1:4] = 'Ann met Eve when they left.', 'they', 17
  examples, problems = read(gap_file(tmp_path / 'a.tsv', ANN, they))
  assert len(examples) == 2
  assert problems.places['ids that came before (not in the scores of GAP)'] == ['a.tsv:3']
  assert problems.places['pronouns of unknown gender (in the overall F1 only)'] == ['a.tsv:3']


def test_superglue_counts_words_and_is_forgiven_what_it_gets_wrong(tmp_path):
  """The kinds of faults of the published file: case, punctuation, a span that is not to the letter;
  word 5 of the third text is "it", which also stands at character 5."""
  path = jsonl(
    tmp_path / 'train.jsonl',
    wsc_row('Mark told Pete lies about himself.', ('mark', 0), ('himself', 5), True, 7),
    wsc_row('He said: "It was him."', ('He', 0), ('it', 2), False, 8),
    wsc_row('Visitors saw that it meant it.', ('Visitors', 0), ('it', 5), True, 9),
    wsc_row('Lev Kamenev and then Zinoviev ran.', ('Kamenev and Zinoviev', 1), ('ran', 5), True),
    wsc_row('Sue saw Al and she left.', ('Sue', 2), ('she', 4), False),
  )
  examples, problems = read(path, task='wsc')
  assert [spans(example) for example in examples] == [
    ['himself', 'Mark'],
    ['It', 'He'],
    ['it', 'Visitors'],
    ['ran', 'Kamenev and then'],
    ['she', 'Sue'],
  ]
  assert examples[2].spans[0][0] == 27
  assert [(e.id, e.gold) for e in examples[:3]] == [('7', 0), ('8', 1), ('9', 0)]
  names = 'spans that are not in their text (the words at their index taken)'
  assert problems.places[names] == ['train.jsonl:4']
  off = 'offsets that are off (the nearest place taken)'
  assert problems.places[off] == ['train.jsonl:5']
  assert problems.counts['spans, of which 8 lie where their index says, in words'] == 10


def test_cluewsc_counts_characters(tmp_path):
  """The example of its own documentation."""
  text = '这时候放在床上枕头旁边的手机响了，我感到奇怪，因为欠费已被停机两个月，现在它突然响了。'
  path = jsonl(
    tmp_path / 'dev.json',
    wsc_row(text, ('床', 5), ('它', 37), 'false', 261),
    wsc_row(text, ('手机', 12), ('它', 37), 'true', 262),
  )
  examples, problems = read(path, task='wsc')
  assert [(spans(e), e.gold) for e in examples] == [(['它', '床'], 1), (['它', '手机'], 0)]
  assert problems.counts['spans, of which 4 lie where their index says, in characters'] == 4


@pytest.mark.parametrize(
  ('row', 'sentence'),
  [
    ({'text': 'a b', 'label': True}, 'dev.jsonl:2: no text, target'),
    (wsc_row('He ran.', ('He', 0), ('ran', 1), 'maybe'), "label 'maybe' is neither true nor false"),
    (wsc_row('He ran.', ('Al', 9), ('ran', 1), True), "index 9 of 'Al' is past the 2 words"),
    (wsc_row('He ran.', ('Al', 9), ('Al', 8), True), "index 8 of 'Al' is past the 2 words"),
    (wsc_row('He ran.', (7, 0), ('ran', 1), True), 'dev.jsonl:2: no text, target'),
    (wsc_row('He ran.', ('He', float('inf')), ('ran', 1), True), 'dev.jsonl:2: no text, target'),
    (wsc_row('He ran.', ('He', 0), ('ran', 1)) | {'label': None}, "dev.jsonl:2: .*'label'"),
  ],
)
def test_faulty_schemas(tmp_path, row, sentence):
  good = wsc_row('Sue saw Al and she left.', ('Sue', 0), ('she', 4), True)
  path = jsonl(tmp_path / 'dev.jsonl', good, row)
  with pytest.raises(InputError, match=sentence.replace('(', r'\(')):
    read(path, task='wsc')
  examples, problems = read(path, task='wsc', skip=True)
  skipped = [number for kind, number in problems.counts.items() if kind.endswith('(skipped)')]
  assert len(examples) == 1 and skipped == [1], 'a record counts once, whatever is wrong with it'


# -- rows -----------------------------------------------------------------------------------------


def rows(config, tokenizer, split='train'):
  return task.sources(config, tokenizer, (split,))[split]


def test_spans_point_at_their_tokens_in_the_row(tmp_path, tokenizer):
  path = gap_file(tmp_path / 'a.tsv', ANN, EVE)
  source = rows(config(path), tokenizer)
  row = source[0]
  assert len(source) == 1 and list(row['example_ids']) == [1, 2]
  pieces = np.array(tokenizer.pieces)[row['input_ids']]
  for k in range(2):
    (she, ann, eve) = row['spans'][k]
    assert [pieces[s[0]] for s in (she, ann, eve)] == ['she', 'ann', 'eve']
    assert all(first == last for first, last in row['spans'][k])
    assert set(row['segment_ids'][row['spans'][k].ravel()]) == {k + 1}
  assert list(row['labels']) == [0, 1] and list(row['weights']) == [1, 1]
  assert source.baselines['coreference_accuracy'] == (0.5, 'majority')
  # A for both: one of two right, one too many, one missed.
  assert source.baselines['gap_f1'] == (50.0, 'majority')


def test_a_long_text_keeps_what_is_near_its_spans(tmp_path, tokenizer, caplog):
  text = 'b ' * 30 + 'Ann c c c c c c she c c Eve ' + 'd ' * 30
  at = [text.index(name) for name in ('she', 'Ann', 'Eve')]
  row = ('x', text, 'she', at[0], 'Ann', at[1], 'TRUE', 'Eve', at[2], 'FALSE', 'u')
  path = gap_file(tmp_path / 'a.tsv', row)
  caplog.set_level(logging.INFO, 'bert_jax')
  source = rows(config(path, '', '--config.task.max_length=17'), tokenizer)
  assert '1 examples cut (longer than 17 tokens)' in caplog.text
  shown = tokenizer.decode(source[0]['input_ids'][:17])
  assert shown == 'b b ann c c c c c c she c c eve d d', 'nothing between is lost'
  source = rows(config(path, '', '--config.task.max_length=8'), tokenizer)
  assert tokenizer.decode(source[0]['input_ids'][:8]) == 'ann c c she c eve', 'with a gap'
  pieces = np.array(tokenizer.pieces)[source[0]['input_ids']]
  assert list(pieces[source[0]['spans'][0, :, 0]]) == ['she', 'ann', 'eve']
  long = ('y', f'{"z" * 40} saw Eve as she', 'she', 52, 'z' * 40, 0, 'TRUE', 'Eve', 45, 'FALSE', '')
  path = gap_file(tmp_path / 'b.tsv', long, EVE)
  with pytest.raises(InputError, match='b.tsv:2: its names alone take more than 30 tokens'):
    rows(config(path, '', '--config.task.max_length=32'), tokenizer)
  skip = ['--config.task.max_length=32', '--config.data.skip_damaged=true']
  assert [e.id for e in rows(config(path, '', *skip), tokenizer).examples] == ['g-2']


# -- scores ---------------------------------------------------------------------------------------


def answer(id, pronoun, gold, prediction):
  return {'id': id, 'pronoun': pronoun, 'gold': gold, 'prediction': prediction}


def test_gap_scores_by_hand():
  """Feminine: A right, B for A: 1 true, 1 false positive, 1 false negative: F1 50. Masculine: B
  right, A for neither, neither for B: 1 true, 1 false positive, 1 false negative: 50 as well; with
  the neither that is right nothing changes. An id that comes again is not looked at."""
  answers = [
    answer('1', 'she', 'A', 'A'),
    answer('2', 'Her', 'A', 'B'),
    answer('3', 'he', 'B', 'B'),
    answer('4', 'His', 'neither', 'A'),
    answer('5', 'him', 'B', 'neither'),
    answer('6', 'him', 'neither', 'neither'),
    answer('1', 'she', 'A', 'B'),
  ]
  got = gap_scores(answers)
  assert got == {'gap_f1': 50.0, 'gap_f1_masculine': 50.0, 'gap_f1_feminine': 50.0, 'gap_bias': 1.0}
  got = gap_scores([answer('7', 'they', 'A', 'A'), *answers])
  assert got['gap_f1'] == pytest.approx(100 * 2 * 0.6 * 0.6 / 1.2) and got['gap_bias'] == 1.0
  got = gap_scores(answers[2:])
  assert got['gap_f1_feminine'] == 0.0 and np.isnan(got['gap_bias'])


def official(gold_path, lines):
  """gap_scorer.py's numbers, written anew from its rules: precision and recall in percent, then F1;
  a name counts by itself; no header in the predictions."""
  predicted = {}
  for id, a, b in (line.split('\t') for line in lines.splitlines()):
    predicted[id] = {'TRUE': True, 'FALSE': False}[a], {'TRUE': True, 'FALSE': False}[b]
  tally = {}
  with open(gold_path, newline='') as file:
    for row in csv.DictReader(file, delimiter='\t'):
      gender = 'F' if row['Pronoun'].lower() in ('she', 'her', 'hers') else 'M'
      for name, own in zip('AB', predicted[row['ID']]):
        for key in ('O', gender):
          tally.setdefault(key, Counter())[row[f'{name}-coref'] == 'TRUE', own] += 1
  out = {}
  for key, n in tally.items():
    recall = 100 * n[True, True] / max(1, n[True, True] + n[True, False])
    precision = 100 * n[True, True] / max(1, n[True, True] + n[False, True])
    out[key] = 2 * precision * recall / max(1e-9, precision + recall)
  return out


@pytest.mark.parametrize(
  ('name', 'golds'), [('development', (874, 925, 201)), ('validation', (187, 205, 62))]
)
def test_published_gap(shared, tokenizer, name, golds):
  """The published counts, no offset off; gold as prediction gives 100 and no bias; a noisy system
  is scored as the official rules do."""
  path = shared / f'gap/gap-{name}.tsv'
  examples, problems = read(path)
  assert tuple(Counter(e.gold for e in examples)[k] for k in range(3)) == golds
  assert not problems.places
  source = rows(config(path, '', '--config.task.max_length=64'), tokenizer)
  assert len(source.examples) == sum(golds)
  rng = np.random.default_rng(0)
  for noise in (0.0, 0.3):
    gold = np.array([e.gold for e in examples])
    said = np.where(rng.random(len(gold)) < noise, rng.integers(0, 3, len(gold)), gold)
    outputs = {'logits': np.eye(3)[said][:, None], 'example_ids': 1 + np.arange(len(gold))[:, None]}
    answers = source.answers(outputs)
    scores = source.score(answers)
    want = official(path, source.files(answers)['gap.tsv'])
    assert scores['gap_f1'] == pytest.approx(want['O'])
    assert scores['gap_f1_masculine'] == pytest.approx(want['M'])
    assert scores['gap_f1_feminine'] == pytest.approx(want['F'])
    assert scores['gap_bias'] == pytest.approx(want['F'] / want['M'])
    assert scores['coreference_accuracy'] == np.mean(said == gold)
    assert (scores['gap_f1'] == 100 and scores['gap_bias'] == 1) == (noise == 0)


# -- the objective --------------------------------------------------------------------------------


def outputs(objective, params, source):
  batch = {
    name: jnp.asarray(np.stack([source[i][name] for i in range(len(source))]))
    for name in objective.spec(1)
  }
  return jax.tree.map(np.asarray, jax.jit(objective.predict)(params, batch))


def telling(objective):
  """Parameters large enough that what is read shows in the numbers."""
  params = objective.init(jax.random.key(0))
  return jax.tree.map(lambda x: x * 8 if x.ndim > 1 else x, params)


def test_packed_rows_predict_what_single_ones_do(tmp_path, tokenizer):
  path = gap_file(tmp_path / 'a.tsv', ANN, HE, EVE)
  packed = config(path, '', '--config.data.examples_per_row=4')
  single = config(path, '', '--config.data.examples_per_row=1')
  params, answers = None, []
  for one in (packed, single):
    objective = task.objective(one, tokenizer)
    params = params or telling(objective)
    source = rows(one, tokenizer)
    answers.append(source.answers(outputs(objective, params, source)))
  assert len(rows(packed, tokenizer)) < 3 == len(rows(single, tokenizer))
  for a, b in zip(*answers, strict=True):
    assert a['id'] == b['id'] and a['prediction'] == b['prediction']
    np.testing.assert_allclose(
      list(a['probabilities'].values()), list(b['probabilities'].values()), atol=1e-4
    )


def test_the_head_by_hand_and_empty_rows(tmp_path, tokenizer):
  """Scores are relu([p; c; p * c] W) w + b, none of them is 0; an empty row gives no NaN."""
  one = config(gap_file(tmp_path / 'a.tsv', ANN))
  objective = task.objective(one, tokenizer)
  params = objective.init(jax.random.key(0))
  source = rows(one, tokenizer)
  batch = {name: source[0][name][None] for name in objective.spec(1)}
  encoded = jax.jit(lambda params, batch: encode(objective.model, params, batch))
  hidden = np.asarray(encoded(params['encoder'], batch))[0]
  p, a, b = (hidden[ends].ravel() for ends in batch['spans'][0, 0])
  first, last = (jax.tree.map(np.asarray, params['scorer'][name]) for name in ('hidden', 'score'))
  want = []
  for x in (a, b):
    inner = np.concatenate([p, x, p * x]) @ first['kernel'] + first['bias']
    want.append((np.maximum(inner, 0) @ last['kernel'] + last['bias'])[0])
  got = np.asarray(jax.jit(objective.logits)(params, batch))[0, 0]
  np.testing.assert_allclose(got, [*want, 0], atol=1e-5)
  empty = {name: jnp.zeros((1, *s.shape[1:]), s.dtype) for name, s in objective.spec(1).items()}

  @jax.jit
  @jax.grad
  def gradient(params):
    return objective.terms(params, empty, jax.random.key(1), True)[0]['coreference'].total

  grads = gradient(params)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(grads))


def test_two_steps_and_an_evaluation(tmp_path):
  path = gap_file(tmp_path / 'a.tsv', ANN, EVE, HE, ('g-4', *ANN[1:]))
  state, metrics = train(config(path), tmp_path / 'run')
  assert int(state.step) == 2
  result, _ = evaluate(tmp_path / 'run', out=tmp_path / 'out')
  assert set(task.SCORES) | {'coreference', 'coreference_accuracy'} <= set(result)
  assert result['coreference'] == pytest.approx(metrics['coreference'], abs=1e-5)
  lines = (tmp_path / 'out/gap.tsv').read_text().splitlines()
  assert [line.split('\t')[0] for line in lines] == ['g-1', 'g-2', 'g-3', 'g-4']
  assert all(set(line.split('\t')[1:]) <= {'TRUE', 'FALSE'} for line in lines)


def test_winograd_two_steps_and_an_evaluation(tmp_path):
  ann = wsc_row('Sue saw Al and she left.', ('Sue', 0), ('she', 4), True, 0)
  path = jsonl(tmp_path / 'train.jsonl', ann, ann | {'label': False, 'idx': 1})
  test = jsonl(tmp_path / 'test.jsonl', {k: v for k, v in ann.items() if k != 'label'})
  train(config(path, task='wsc'), tmp_path / 'run')
  result, _ = evaluate(tmp_path / 'run')
  assert result['coreference_accuracy'] == 0.5, 'one of two opposite labels'
  result, _ = evaluate(tmp_path / 'run', [f'--config.data.eval={test}'], out=tmp_path / 'out')
  (line,) = map(json.loads, (tmp_path / 'out/WSC.jsonl').read_text().splitlines())
  assert line['idx'] == 0 and line['label'] in ('True', 'False')
  assert 'coreference_accuracy' not in result
  jsonl(test, ann | {'label': None, 'idx': '²'})
  evaluate(tmp_path / 'run', [f'--config.data.eval={test}'], out=tmp_path / 'out')
  (line,) = map(json.loads, (tmp_path / 'out/WSC.jsonl').read_text().splitlines())
  assert line['idx'] == '²', 'a digit that is no number'


def test_tfds(tmp_path):
  tfds = pytest.importorskip('tensorflow_datasets')
  tfds.disable_progress_bar()
  text = tfds.features.Text()

  def builder(name, features, rows):
    class Tiny(tfds.core.GeneratorBasedBuilder, skip_registration=True):
      VERSION = tfds.core.Version('1.0.0')

      def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

      def _split_generators(self, dl_manager):
        return {'train': self._generate_examples(), 'validation': self._generate_examples()}

      def _generate_examples(self):
        yield from enumerate(rows)

    Tiny.name = name
    Tiny(data_dir=tmp_path / name, file_format='array_record').download_and_prepare()
    return f'tfds:{tmp_path / name}'

  kinds = {'offset': np.int32, 'coref': np.bool_}
  gap = {name: kinds.get(name.split('-')[-1], text) for name in HEADER}
  values = [x == 'TRUE' if x in ('TRUE', 'FALSE') else x for x in ANN]
  spec = builder('tiny_gap', gap, [dict(zip(HEADER, values))])
  (example,), _ = read(spec)
  assert spans(example) == ['she', 'Ann', 'Eve'] and example.gold == 0
  _, metrics = train(config(spec), tmp_path / 'run')
  assert 'gap_f1' in metrics

  names = ['span1_text', 'span2_text', 'span1_index', 'span2_index']
  label = tfds.features.ClassLabel(names=['False', 'True'])
  wsc = {'text': text, 'idx': np.int32, 'label': label}
  wsc |= {name: text if 'text' in name else np.int32 for name in names}
  row = dict(zip(names, ('Sue', 'she', 0, 4)), text='Sue saw Al and she left.', idx=3, label=1)
  (example,), _ = read(builder('tiny_wsc', wsc, [row]), task='wsc')
  assert spans(example) == ['she', 'Sue'] and (example.id, example.gold) == ('3', 0)
