"""Classification, regression and pairs: scores, long texts, weights, faulty tables."""

import itertools
import json
import re

import jax
import numpy as np
import pytest
from published import jsonl, predicted, telling, tfds_set
from scipy.optimize import minimize
from scipy.special import expit, softmax
from sklearn import metrics as sklearn_metrics
from sklearn.metrics import f1_score
from small_tables import WORDS, finetune, sentence, table

from bert_jax import config as c
from bert_jax.errors import InputError
from bert_jax.rows import windows
from bert_jax.rows.examples import by_example
from bert_jax.run import evaluation, initialization
from bert_jax.tasks.classification import encoded
from bert_jax.tasks.classification import reading as classification_reading
from bert_jax.tasks.classification import task as classification
from bert_jax.tasks.faulty_records import Problems
from bert_jax.text import documentation, documents

SEVERAL, REGRESSION = 'table.multi_label=true', 'table.regression=true'


def source_of(config, tokenizer, split='eval'):
  return classification.sources(config, tokenizer, (split,))[split]


def outputs_of(config, tokenizer):
  """(source of the evaluation, outputs over it as of a model, whose logits are drawn)."""
  config = c.check(classification.resolve(config))
  source, rng = source_of(config, tokenizer), np.random.default_rng(0)
  ids = np.stack([source[i]['example_ids'] for i in range(len(source))])
  logits = rng.normal(0, 2, (*ids.shape, max(1, len(config.table.labels))))
  return source, {'logits': logits.astype(np.float32), 'example_ids': ids}


def test_scores_are_those_of_scikit_learn(tmp_path, vocab, tokenizer):
  for labels, own in ((('0', '1'), 'f1'), (('a', 'b', 'c'), 'macro_f1')):
    path = table(tmp_path / 'dev.tsv', np.random.default_rng(1), 80, labels)
    config = finetune(vocab, path)
    source, outputs = outputs_of(config, tokenizer)
    score = source.score(source.answers(outputs))
    gold = [line.split('\t')[1] for line in path.read_text().splitlines()[1:]]
    _, (logits,) = by_example(outputs, 'logits')
    predicted = [labels[k] for k in logits.argmax(-1)]
    average = {'average': 'binary', 'pos_label': '1'} if own == 'f1' else {'average': 'macro'}
    assert score[own] == pytest.approx(sklearn_metrics.f1_score(gold, predicted, **average))
    assert score['matthews'] == pytest.approx(sklearn_metrics.matthews_corrcoef(gold, predicted))
    assert score['accuracy'] == np.mean(np.array(gold) == np.array(predicted))


def test_a_text_in_windows_is_read_whole_and_its_logits_averaged(tmp_path, vocab, tokenizer):
  path = tmp_path / 'dev.tsv'
  long = ' '.join(WORDS * 6)
  path.write_text(f'sentence\tlabel\n{long}\t0\nriver\t1\n')
  config = finetune(vocab, path, 'data.seq_length=64 task.max_length=18 table.long_texts=windows')
  source, outputs = outputs_of(config, tokenizer)
  assert list(source.text_of) == [0] * 7 + [1]  # 16 of 60 tokens, every 8
  ids = [list(source.texts[e][0]) for e in range(7)]
  whole = list(tokenizer.ids_batch([long])[0])
  assert ids[0] == whole[:16] and ids[6] == whole[48:64] and ids[1][:8] == ids[0][8:]
  weights = np.concatenate([source[i]['weights'] for i in range(len(source))])
  assert sorted(weights[weights > 0]) == pytest.approx([1 / 7] * 7 + [1])  # texts count alike
  answers = source.answers(outputs)
  _, (logits,) = by_example(outputs, 'logits')
  expected = softmax(logits[:7].mean(axis=0))
  assert list(answers[0]['probabilities'].values()) == pytest.approx(list(expected), abs=1e-6)
  # A text with a window that was not predicted has no answer.
  outputs['example_ids'] = np.where(outputs['example_ids'] == 3, 0, outputs['example_ids'])
  assert [a['text'] for a in source.answers(outputs)] == ['river']


@pytest.mark.parametrize(
  'a, b, room', [(10, 10, 9), (3, 10, 9), (10, 3, 9), (10, 10, 8), (2, 2, 9)]
)
def test_long_pairs_are_cut_as_the_reference_cuts_them(a, b, room):
  """google-research/bert run_classifier.py: pop from the end of the longer one, else the second."""
  first, second = list(range(a)), list(range(100, 100 + b))
  expected = first.copy(), second.copy()
  while len(expected[0]) + len(expected[1]) > room:
    (expected[0] if len(expected[0]) > len(expected[1]) else expected[1]).pop()
  got = windows.truncate((np.array(first), np.array(second)), room)
  assert tuple(map(list, got)) == expected


def test_several_labels_of_a_text(tmp_path, vocab, tokenizer):
  path, held = tmp_path / 'dev.jsonl', [['a', 'b'], [], ['b'], ['c']]
  jsonl(path, *({'sentence': text, 'label': x} for text, x in zip(WORDS, held)))
  config = finetune(vocab, path, SEVERAL)
  source, outputs = outputs_of(config, tokenizer)
  rows = (source[i]['labels'][source[i]['weights'] > 0] for i in range(len(source)))
  assert np.concatenate([*rows]).tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]]
  answers = source.answers(outputs)
  assert [list(a['gold']) for a in answers] == held
  jsonl(path, {'sentence': 'old'}, {'sentence': 'new', 'label': None})  # not known; none of them
  assert [e.label for e in classification_reading.read(config, 'eval', Problems('eval'))] == [
    None,
    (),
  ]


def labelled(tmp_path, vocab, *more, labels=('ab', 'ac', '')):
  """The resolved config of texts with these labels: a letter, a number, or several letters."""
  listed = lambda x: list(x) if 'table.multi_label=true' in more else x
  rows = ({'sentence': word, 'label': listed(x)} for word, x in zip(WORDS, labels))
  config = finetune(vocab, jsonl(tmp_path / 'rows.jsonl', *rows), *more)
  return c.check(classification.resolve(config))


def answers_of(config, tokenizer, logits):
  """(source, its answers to a model that gives these logits [E, labels])."""
  source = source_of(config, tokenizer)
  ids = np.arange(1, len(logits) + 1)[None]
  outputs = {'logits': np.array([logits], np.float32), 'example_ids': ids}
  return source, source.answers(outputs)


def test_a_label_is_held_from_a_half_on(tmp_path, vocab, tokenizer):
  config = labelled(tmp_path, vocab, SEVERAL)
  odds = np.log([[0.45 / 0.55, 0.55 / 0.45, 0.01], [99, 0.9, 1.1], [0.1, 0.2, 0.3]])
  source, answers = answers_of(config, tokenizer, odds)
  assert [a['prediction'] for a in answers] == [['b'], ['a', 'c'], []]
  assert answers[0]['probabilities'] == pytest.approx({'a': 0.45, 'b': 0.55, 'c': 1 / 101})
  # Each label is a question of its own: -log of what is given to yes or to no.
  assert answers[0]['loss'] == pytest.approx(-np.log([0.45, 0.55, 100 / 101]).sum(), abs=1e-5)
  assert answers[2]['loss'] == pytest.approx(np.log([1.1, 1.2, 1.3]).sum(), abs=1e-5)
  # Of 4 labels, 3 are found and one a is missed: an F1 of 2/3 for a, and of 1 for b and c.
  assert source.score(answers) == pytest.approx(
    {'micro_f1': 6 / 7, 'macro_f1': 8 / 9, 'subset_accuracy': 2 / 3}
  )


def test_numbers_are_scored_by_value_and_by_rank(tmp_path, vocab, tokenizer):
  config = labelled(tmp_path, vocab, REGRESSION, labels=(1, 2, 3, 4))
  source, answers = answers_of(config, tokenizer, [[1.5], [2.0], [2.5], [30.0]])
  assert [a['loss'] for a in answers] == pytest.approx([0.25, 0, 0.25, 676])
  gold, found = np.array([1, 2, 3, 4]) - 2.5, np.array([1.5, 2, 2.5, 30]) - 9
  pearson = gold @ found / np.sqrt(gold @ gold * (found @ found))
  scores = {'mean_absolute_error': 6.75, 'pearson': pearson, 'spearman': 1.0}
  assert source.score(answers) == pytest.approx(scores)
  chance = {'pearson': (0, 'chance'), 'spearman': (0, 'chance')}
  errors = {'squared_error': (1.25, 'mean'), 'mean_absolute_error': (1, 'mean')}  # from 2.5
  assert source.baselines == chance | errors


@pytest.mark.parametrize('more, wanted', [((), ['u1', 'u2']), (['table.id_column=nr'], ['7', '9'])])
def test_answers_go_by_the_id_of_a_row(tmp_path, vocab, tokenizer, more, wanted):
  rows = (
    {'ID': f'u{k}', 'nr': n, 'sentence': 'old', 'label': 'ab'[k % 2]} for k, n in ((1, 7), (2, 9))
  )
  config = c.check(
    classification.resolve(finetune(vocab, jsonl(tmp_path / 'a.jsonl', *rows), *more))
  )
  assert [a['id'] for a in answers_of(config, tokenizer, [[0, 1], [1, 0]])[1]] == wanted


@pytest.mark.parametrize(
  'labels, options, kinds',
  [
    ('abbb', '', {'f1': 'constant'}),  # of the second label
    ('abbcc', '', {}),
    ('abb', 'table.labels=a,b,c', {}),  # macro F1 is of the labels that occur
    (['b', None, None, 'b', 'a'], 'table.labels=a,b', {'f1': 'constant'}),
  ],
)
def test_scores_are_compared_with_the_best_constant_answer(
  tmp_path, vocab, tokenizer, labels, options, kinds
):
  config = labelled(tmp_path, vocab, options, labels=labels)
  source = source_of(config, tokenizer)
  gold = [x for x in labels if x is not None]
  every = [source.scores([{'gold': x, 'prediction': y} for x in gold]) for y in {*gold}]
  assert {*every[0]} <= {*classification.objective(config, tokenizer).metrics}
  kinds |= dict.fromkeys(('accuracy', 'matthews', 'macro_f1'), 'majority')
  assert {name: source.baselines[name].kind for name in every[0]} == kinds
  for name in kinds:
    assert source.baselines[name].value == pytest.approx(max(x[name] for x in every))


@pytest.mark.parametrize('held', [
  ['a', 'a', 'a', 'ab', 'b', 'c', '', 'bc'],  # no label is held by most texts
  ['ab', 'c', ''],
  ['abd', 'a', 'ab', 'abc', '', 'b'],
])  # fmt: skip
def test_sets_of_labels_are_compared_with_the_best_constant_answer(
  held, tmp_path, vocab, tokenizer
):
  source = source_of(labelled(tmp_path, vocab, SEVERAL, labels=held), tokenizer)
  every = sorted(set(''.join(held)))
  answers = [x for n in range(len(every) + 1) for x in itertools.combinations(every, n)]
  scores = [
    source.scores([{'gold': [*x], 'prediction': [*answer]} for x in held]) for answer in answers
  ]
  kinds = {'micro_f1': 'constant', 'macro_f1': 'constant', 'subset_accuracy': 'majority'}
  for name, kind in kinds.items():
    level, of = source.baselines[name]
    assert of == kind and level == pytest.approx(max(x[name] for x in scores)) and level > 0


WEIGHTED = "table.class_weights=(('a',3.0),)"


@pytest.mark.parametrize(
  'labels, options, prior, answer',
  [
    ('abbcbbbb', '', [1 / 8, 6 / 8, 1 / 8], softmax),
    ('abbb', WEIGHTED, [1 / 4, 3 / 4], lambda x: softmax(x) - [1 / 4, -1 / 4]),
    ('abbb', 'table.labels=a,b,c', [2 / 8, 6 / 8, 1 / 8], lambda x: softmax(x) * 9 / 8),
    (['ab', 'ac', 'a'], SEVERAL, [5 / 6, 1 / 3, 1 / 3], expit),
  ],
)
def test_a_new_head_begins_at_the_shares_of_the_labels(
  tmp_path, vocab, tokenizer, labels, options, prior, answer
):
  """Also at those that class weights make of them; a label that none or all have is half an example
  away from that."""
  config = labelled(tmp_path, vocab, options, labels=labels)
  config = initialization.with_prior(config, source_of(config, tokenizer, 'train'))
  assert config.table.prior == pytest.approx(prior, rel=1e-4)
  config.data.train = 'gone.tsv'  # the numbers are in the config
  objective = classification.objective(c.from_json(c.to_json(config)), tokenizer)
  params = objective.with_prior(objective.init(jax.random.key(0)))
  bias = np.asarray(params['classifier']['dense']['bias'])
  assert answer(bias) == pytest.approx(np.array(prior), rel=1e-4)
  config.table.prior = ()
  plain = classification.objective(config, tokenizer)
  params = plain.with_prior(plain.init(jax.random.key(0)))
  assert not params['classifier']['dense']['bias'].any()


@pytest.mark.parametrize(
  'labels, options',
  [
    ('abbcbbbbaab', ''),
    ('abbbcabb', "table.class_weights=(('a',3.0),('c',0.7))"),
    (['ab', 'ac', 'a', '', 'b'], SEVERAL),
    (['ab', 'ac', 'a', '', 'b'], SEVERAL + " table.class_weights=(('a',3.0),('c',0.7))"),
    (['b', None, None, 'b', 'a'], 'table.labels=a,b'),
  ],
)
def test_no_one_answer_for_all_has_a_smaller_loss_than_the_baseline(
  tmp_path, vocab, tokenizer, labels, options
):
  config = labelled(tmp_path, vocab, *options.split(), labels=labels)
  source, objective = source_of(config, tokenizer), classification.objective(config, tokenizer)
  (batch,) = source  # all of them are in one row

  def loss(logits):
    alike = np.broadcast_to(logits, (len(batch['weights']), len(logits))).astype(np.float32)
    return float(objective.logit_terms(alike, batch)['cross_entropy'].value)

  least = minimize(loss, np.zeros(len(objective.labels)), method='Powell').fun
  level, kind = source.baselines['cross_entropy']
  assert level == pytest.approx(least, abs=1e-4) and kind == 'entropy'


def test_numbers_begin_at_their_mean_and_have_the_loss_of_standardized_ones(
  tmp_path, vocab, tokenizer
):
  labels = 1010, 1030.5, 990, 1017
  config = labelled(tmp_path, vocab, REGRESSION, labels=labels)
  config = initialization.with_prior(config, source := source_of(config, tokenizer))
  mean, scale = config.table.prior
  assert (mean, scale) == pytest.approx((np.mean(labels), np.std(labels)), rel=1e-4)
  objective = classification.objective(config, tokenizer)
  outputs, terms = predicted(objective, objective.init(jax.random.key(0)), source)
  answers = source.answers(outputs)
  assert np.abs([a['prediction'] - mean for a in answers]).max() < scale
  loss = np.mean([a['loss'] for a in answers])
  assert float(terms['squared_error'].value) == pytest.approx(loss, rel=1e-4) and loss > 100
  assert objective.loss_weights['squared_error'] * np.var(labels) == pytest.approx(1, rel=1e-4)
  # The same answers by an objective that standardizes nothing, and back.
  params = telling(objective)
  outputs, _ = predicted(objective, params, source)
  config.table.prior = ()
  plain, folded = classification.objective(config, tokenizer), objective.exported(params)
  np.testing.assert_allclose(predicted(plain, folded, source)[0]['logits'], outputs['logits'], 1e-5)
  assert plain.exported(params) is params
  close = lambda x, y: np.testing.assert_allclose(x, y, 1e-4, 1e-4)
  jax.tree.map(close, params, objective.adopted(folded))


def test_class_weights_count_in_the_loss_and_not_in_the_accuracy(tmp_path, vocab, tokenizer):
  path = tmp_path / 'train.tsv'
  path.write_text('sentence\tlabel\n' + 'river\ta\n' * 3 + 'market\tb\n')
  of = lambda weights: classification.resolve(
    finetune(vocab, path, f'table.class_weights={weights}')
  )
  balanced = of("('balanced',)")
  balanced.data.train = 'gone.tsv'  # the numbers are in the config
  objective = classification.objective(c.from_json(c.to_json(balanced)), tokenizer)
  assert objective.class_weights == pytest.approx((4 / 6, 2.0), abs=1e-5)
  config = of("(('b',3.0),)")
  objective = classification.objective(config, tokenizer)
  source = source_of(config, tokenizer, 'train')
  outputs, terms = predicted(objective, telling(objective), source)
  logits = outputs['logits'][0, :4]
  nats = -np.log(softmax(logits, axis=-1))[range(4), [0, 0, 0, 1]]
  assert float(terms['cross_entropy'].value) == pytest.approx(nats @ [1, 1, 1, 3] / 6, rel=1e-5)
  assert float(terms['accuracy'].weight) == 4


def test_train_examples_takes_the_same_few_for_every_seed(tmp_path, vocab, tokenizer):
  def rows(*more, split='train'):
    fields = 'table.labels=y,x', 'data.examples_per_row=1', *more
    config = labelled(tmp_path, vocab, *fields, labels='xy' * 5)
    assert config.table.labels == ('y', 'x')  # as given
    return source_of(config, tokenizer, split)

  few = 'task.train_examples=4'
  one, two = (rows(few, f'seed={seed}') for seed in (0, 1))
  assert len(one) == 4 and one.fingerprint == two.fingerprint
  # Drawn from all of them in their order, since a file may be sorted; evaluation is of everything.
  chosen = [WORDS.index(tokenizer.decode(ids)) for (ids,) in one.texts]
  assert chosen == sorted(chosen) and chosen not in ([0, 1, 2, 3], [6, 7, 8, 9])
  assert len(rows(few, split='eval')) == 10 and one.fingerprint != rows().fingerprint


@pytest.mark.parametrize(
  'fields', ['', 'table.long_texts=tail', 'table.pair_column=second', SEVERAL]
)
def test_examples_that_are_encoded_in_parts_have_the_same_rows(
  fields, tmp_path, vocab, tokenizer, monkeypatch
):
  """Of several labels the first that are met are not in sorted order."""
  rng = np.random.default_rng(0)
  labels = [*'cb', *rng.choice([*'abc'], 21)]
  rows = [{'sentence': sentence(rng), 'second': sentence(rng), 'label': x} for x in labels]
  if fields == SEVERAL:
    rows = [x | {'label': [x['label'], 'b'][: 1 + k % 2]} for k, x in enumerate(rows)]
  rows[5] = rows[5] | {'label': None}
  path = jsonl(tmp_path / 'train.jsonl', *rows)
  config = classification.resolve(finetune(vocab, path, fields, 'task.max_length=9'))
  sources = []
  for part in (4096, 5):
    monkeypatch.setattr(encoded, 'PART', part)
    sources += classification.sources(config, tokenizer).values()
  for whole, in_parts in zip(sources[:2], sources[2:], strict=True):
    assert whole.fingerprint == in_parts.fingerprint and whole.scored == in_parts.scored
    for one, other in zip(whole, in_parts, strict=True):
      jax.tree.map(np.testing.assert_array_equal, one, other)
  trained_on, evaluated = sources[2:]
  assert len(evaluated.examples) == 23 and not trained_on.examples, 'there may be millions'


@pytest.mark.parametrize('several', [False, True])
def test_a_label_that_is_never_answered_is_named(several, tmp_path, vocab, tokenizer, caplog):
  rng, names = np.random.default_rng(3), ('Art', 'News', 'Sport')
  labels = [names[2 if i % 8 == 0 else i % 2] for i in range(53)]
  rows = [f'{sentence(rng)}\t{label}' for label in labels]
  (tmp_path / 'dev.tsv').write_text('\n'.join(['sentence\tlabel', *rows]) + '\n')
  source, outputs = outputs_of(
    finetune(vocab, tmp_path / 'dev.tsv', f'table.multi_label={several}'), tokenizer
  )
  outputs['logits'][..., 2] = -9
  answers = source.answers(outputs)
  evaluation.warn({}, source, answers, 'accuracy')
  assert "never answered: 'Sport' (7 of 53); table.class_weights=('balanced',)" in caplog.text
  evaluation.write(tmp_path / 'out', source, answers, {})
  written = json.loads((tmp_path / 'out' / 'scores.json').read_text())
  rows = {row.pop('label'): row for row in written['by_label']}
  assert rows['Sport'] == {'examples': 7, 'answered': 0, 'right': 0, 'f1': 0}
  held = np.array([np.isin(names, answer['gold']) for answer in answers])
  given = np.array([np.isin(names, answer['prediction']) for answer in answers])
  for k, name in enumerate(names):
    expected = f1_score(held[:, k], given[:, k])
    assert rows[name]['f1'] == pytest.approx(expected)
  assert 0 < rows['Art']['f1'] < 1


def test_a_run_that_says_the_same_of_all_texts_has_collapsed(tmp_path, vocab, tokenizer):
  path = tmp_path / 'dev.tsv'
  path.write_text('sentence1\tsentence2\tscore\nriver\told\t1\nnew\tbad\t4\n')
  config = finetune(vocab, path, task='stsb')
  source, outputs = outputs_of(config, tokenizer)
  answers = source.answers(outputs)
  same = [dict(a, prediction=2.5 + 1e-6 * k) for k, a in enumerate(answers)]
  assert source.constant(same) == 'about 2.500'
  assert not source.constant([dict(a, prediction=a['gold'] + 0.1) for a in answers])
  source, outputs = outputs_of(labelled(tmp_path, vocab, labels='ab'), tokenizer)
  answers = source.answers(outputs)
  assert source.constant([dict(a, prediction='b') for a in answers]) == 'b'
  assert not source.constant([dict(a, prediction=a['gold']) for a in answers])
  assert not source.constant([dict(a, prediction='b', gold='b') for a in answers])


def of_cells(tmp_path, vocab, cells, *more, name='train.csv', mark=','):
  """(labels in training, labels in evaluation, label set) of a table of texts and these cells."""
  rows = [f'"text {i}"{mark}"{cell}"' for i, cell in enumerate(cells)]
  (tmp_path / name).write_text('\n'.join([f'sentence{mark}label', *rows, '']))
  config = classification.resolve(finetune(vocab, tmp_path / name, *more))
  labels = []
  for split in ('train', 'eval'):
    found = classification_reading.read(config, split, Problems.of(config, split))
    labels.append([x.label for x in found])
  return *labels, tuple(config.table.labels)


@pytest.mark.parametrize(
  'cells, more, labels, learnt',
  [
    ('yes - no  yes', '', ('no', 'yes'), '0 2 4'),  # SNLI's dash, and nothing
    ('0 2 -1 1 2', '', ('-1', '0', '1', '2'), '0 1 2 3 4'),  # a scale is learnt whole
    ('0 2 -1 1 -1.0', 'table.labels=0,1,2', ('0', '1', '2'), '0 1 3'),  # Hugging Face's SNLI
    ('2.0 1.5  2.0', '', ('1.5', '2.0'), '0 1 3'),
    ('+ -1 -1.0 +', '', ('+', '-1', '-1.0'), '0 1 2 3'),
    ('a NaN b null', 'table.labels=a,b', ('a', 'b'), '0 2'),
    ('a NaN b', 'table.labels=a,b,NaN', ('a', 'b', 'NaN'), '0 1 2'),
  ],
)
def test_a_row_without_a_label_is_not_learnt_and_not_scored(
  tmp_path, vocab, tokenizer, cells, more, labels, learnt
):
  cells = cells.split(' ')
  *read, found = of_cells(tmp_path, vocab, cells, more)
  train, held = ([None if x is None else str(x) for x in split] for split in read)
  known = [x if str(i) in learnt.split() else None for i, x in enumerate(cells)]
  assert (found, held) == (labels, known) and train == [x for x in known if x]


@pytest.mark.parametrize('kind', ['classes', 'numbers'])
def test_a_tfds_test_set_whose_labels_are_hidden_is_not_scored(kind, tmp_path, vocab, tokenizer):
  """All are -1 there; as a number -1 is a label."""
  tfds = pytest.importorskip('tensorflow_datasets')
  more, feature = REGRESSION, np.float32
  if kind == 'classes':
    more, feature = 'table.labels=no,yes', tfds.features.ClassLabel(names=['no', 'yes'])
  labels = {'train': (1, 0), 'test': (-1, -1), 'validation': (-1, 1)}
  splits = {}
  for split, of_split in labels.items():
    splits[split] = [{'sentence': 'old river', 'label': label} for label in of_split]
  spec = tfds_set(tmp_path, {'sentence': str, 'label': feature}, splits)
  scored = []
  for split in labels:
    config = classification.resolve(finetune(vocab, spec, more, evaluation=f'{spec}:{split}'))
    scored.append(source_of(config, tokenizer).scored)
  assert scored == ([2, 0, 1] if kind == 'classes' else [2, 2, 2])


@pytest.mark.parametrize(
  'cells, more, labels, train',
  [
    (('spam', 'spam ', ' ham', 'Ham'), '', ('Ham', 'ham', 'spam'), ['spam', 'spam', 'ham', 'Ham']),
    (
      ("['x', 'y']", '[""y""]', '[]', "['y'\n 'x']"),  # as pandas, JSON and NumPy write them
      SEVERAL,
      ('x', 'y'),
      [('x', 'y'), ('y',), (), ('y', 'x')],
    ),
  ],
)
def test_blanks_go_and_lists_are_those_that_pandas_prints(
  tmp_path, vocab, tokenizer, cells, more, labels, train
):
  assert of_cells(tmp_path, vocab, cells, more) == (train, train, labels)


@pytest.mark.parametrize(
  'cells, mark, numbers',
  [
    ('1.234 2.5 7', ';', [1.234, 2.5, 7]),
    ('-1 0.5 1e3', ',', [-1, 0.5, 1000]),
    ('3,5 7', ';', None),
  ],
)
def test_numbers_have_decimal_points(tmp_path, vocab, cells, mark, numbers):
  of = lambda: of_cells(tmp_path, vocab, cells.split(), REGRESSION, mark=mark)
  if numbers is None:
    with pytest.raises(InputError, match="'3,5' is not a number; .* such as 3.5"):
      of()
    return
  assert of()[0] == numbers


def test_the_embedded_task_keeps_what_pretraining_holds_out(tmp_path, monkeypatch):
  """Evaluation texts come from modules that pre-training on the same documentation never reads."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  monkeypatch.setattr(documentation, 'PACKAGES', ('flax', 'grain', 'optax'))
  monkeypatch.setattr(documentation, 'labelled', documentation.labelled.__wrapped__)
  config = c.load('configs/quickstart.py:stage=finetune')
  read = {x: list(classification_reading.read(config, x, Problems(x))) for x in ('train', 'eval')}
  modules, texts = (
    {split: {of(e) for e in examples} for split, examples in read.items()}
    for of in (lambda e: e.where, lambda e: e.texts)
  )
  assert len(modules['eval']) > 9 and not modules['train'] & modules['eval']
  assert not texts['train'] & texts['eval']
  sentences = dict(documentation.documents())
  for spec in ('configs/quickstart.py:stage=pretrain', 'configs/pretrain.py:runlocal'):
    share = c.load(spec).corpus.eval_share
    assert all(documents.held_out(sentences[module], share) for module in modules['eval'])


@pytest.mark.parametrize(
  'labels, more, said',
  [('a|b a c', '', "label 'a|b' has a |"), ('a b a', 'table.eval_share=0.999999', 'holds out all')],
)
def test_labels_and_shares_that_leave_nothing_to_learn_are_refused(
  tmp_path, vocab, tokenizer, labels, more, said
):
  rows = [f'{WORDS[i]}\t{label}' for i, label in enumerate(labels.split())]
  path = tmp_path / 'train.tsv'
  path.write_text('\n'.join(['sentence\tlabel', *rows]))
  with pytest.raises(InputError, match=re.escape(said)):
    config = classification.resolve(finetune(vocab, path, 'data.eval=', more))
    source_of(config, tokenizer, 'train')
