"""What all fine-tuning shares: packed rows, early stopping, collapsed runs, transfer, GLUE."""

import json
import math

import jax
import numpy as np
import pytest
from scipy.special import softmax
from sklearn import metrics as sklearn_metrics

from bert_jax import config as c
from bert_jax import evaluate, predict, step, train
from bert_jax.config import InputError
from bert_jax.data import tokenizers
from bert_jax.data.examples import Examples, by_example, tokens_of
from bert_jax.tasks import classification
from bert_jax.tasks.problems import Problems
from bert_jax.tools import glue, report, transfer

WORDS = ['river', 'market', 'engine', 'garden', 'winter', 'letter', 'old', 'new', 'good', 'bad']


@pytest.fixture(scope='module')
def vocab(tmp_path_factory):
  path = tmp_path_factory.mktemp('vocab') / 'vocab.txt'
  path.write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]) + '\n')
  return path


@pytest.fixture(scope='module')
def tokenizer(vocab):
  return tokenizers.load(vocab)


def sentence(rng, least=1, most=9):
  return ' '.join(rng.choice(WORDS, rng.integers(least, most)))


def load(vocab, spec, *overrides):
  return c.load(
    spec,
    [
      f'--config.tokenizer.path={vocab}', f'--config.model.vocab_size={len(WORDS) + 5}',
      '--config.model.hidden_size=16', '--config.model.intermediate_size=32',
      '--config.model.num_hidden_layers=2', '--config.model.num_attention_heads=2',
      '--config.log.tensorboard=false', '--config.epochs=0', '--config.steps=2', *overrides,
    ],
  )  # fmt: skip


# ---- rows ----------------------------------------------------------------------------------------


def test_packed_examples_keep_their_values(tokenizer):
  """Every value of an example is found where the row says the example is."""
  rng = np.random.default_rng(0)
  texts = [(rng.integers(5, 15, rng.integers(1, 9)),) for _ in range(50)]
  lengths = [len(ids) + 2 for (ids,) in texts]
  labels = rng.integers(0, 9, 50)
  at = np.array([rng.integers(0, n) for n in lengths])
  tags = [rng.integers(1, 9, n) for n in lengths]
  source = Examples(
    tokenizer, texts, seq_length=32, slots=5, per_example={'labels': labels},
    positions={'at': at}, per_token={'tags': (tags, np.int32)},
  )  # fmt: skip
  assert len(source) < 25 and source.fill > 0.8
  seen = []
  for i in range(len(source)):
    row = source[i]
    for k in np.flatnonzero(row['example_ids']):
      e, begin = row['example_ids'][k] - 1, row['cls_positions'][k]
      seen.append(e)
      inside = slice(begin, begin + lengths[e])
      assert row['labels'][k] == labels[e] and row['weights'][k] == 1
      assert list(row['input_ids'][inside][1:-1]) == list(texts[e][0])
      assert row['at'][k] == begin + at[e]
      assert list(row['tags'][inside]) == list(tags[e])
      assert set(row['segment_ids'][inside]) == {k + 1}
      assert list(row['position_ids'][inside]) == list(range(lengths[e]))
    assert row['weights'].sum() == (row['example_ids'] > 0).sum()
  assert sorted(seen) == list(range(50))


def test_examples_of_an_item_share_a_row_side_by_side(tokenizer):
  texts = [(np.full(n, 7, np.int32),) for n in (3, 3, 3, 5, 5, 2, 2, 2, 2)]
  items = [0, 0, 0, 1, 1, 2, 2, 2, 2]
  source = Examples(tokenizer, texts, seq_length=32, slots=8, items=items)
  for i in range(len(source)):
    row = source[i]
    ids, groups = row['example_ids'], row['groups']
    for group in set(groups) - {0}:
      own = ids[groups == group] - 1
      item = items[own[0]]
      assert list(own) == [e for e, x in enumerate(items) if x == item]
      assert list(np.flatnonzero(groups == group)) == list(
        range(np.argmax(groups == group), np.argmax(groups == group) + len(own))
      )
  with pytest.raises(InputError, match='examples_per_row=4 at least'):
    Examples(tokenizer, texts, seq_length=32, slots=3, items=items)
  with pytest.raises(InputError, match='takes 16 tokens and a row has 15'):
    Examples(tokenizer, texts, seq_length=15, slots=4, items=items)


def test_outputs_come_back_in_the_order_of_the_examples():
  outputs = {
    'example_ids': np.array([[3, 1], [2, 0]]),
    'cls_positions': np.array([[0, 4], [0, 0]]),
    'logits': np.array([[[30], [10]], [[20], [0]]]),
    'tags': np.array([[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0]]),
  }
  numbers, (logits,) = by_example(outputs, 'logits')
  assert list(numbers) == [0, 1, 2] and list(logits[:, 0]) == [10, 20, 30]
  tags = tokens_of(outputs, 'tags', np.array([2, 3, 4]))
  assert {e: list(x) for e, x in tags.items()} == {0: [5, 6], 1: [7, 8, 9], 2: [1, 2, 3, 4]}


# ---- classification ------------------------------------------------------------------------------


def table(path, rng, number, labels=('0', '1'), most=9):
  rows = [f'{sentence(rng, most=most)}\t{labels[rng.integers(len(labels))]}' for _ in range(number)]
  path.write_text('\n'.join(['sentence\tlabel', *rows]) + '\n')
  return path


def outputs_of(config, tokenizer, split='eval'):
  """(source, outputs of a randomly initialised model over it)."""
  config = c.check(classification.resolve(config))
  source = classification.sources(config, tokenizer, (split,))[split]
  objective = classification.objective(config, tokenizer)
  params = objective.init(jax.random.key(1))
  # Larger weights, so that answers differ.
  params = jax.tree.map(lambda x: x * 8 if x.ndim == 2 else x, params)
  batch = jax.tree.map(lambda *x: np.stack(x), *(source[i] for i in range(len(source))))
  return source, jax.device_get(objective.predict(params, batch))


@pytest.mark.parametrize('implementation', ['einsum', 'xla'])
def test_packed_and_unpacked_answers_are_the_same(tmp_path, vocab, tokenizer, implementation):
  path = table(tmp_path / 'dev.tsv', np.random.default_rng(0), 60)
  answers = {}
  for slots in (1, 7):
    config = load(
      vocab, 'configs/finetune.py:task=sst2', f'--config.data.train={path}',
      f'--config.data.eval={path}', '--config.data.seq_length=32',
      f'--config.data.examples_per_row={slots}',
      f'--config.model.attention_implementation={implementation}',
      '--config.model.attention_probs_dropout_prob=0',
    )  # fmt: skip
    source, outputs = outputs_of(config, tokenizer)
    answers[slots] = source.answers(outputs)
  assert len(source) < 30 and len(answers[1]) == len(answers[7]) == 60
  for one, two in zip(answers[1], answers[7]):
    assert one['where'] == two['where'] and one['gold'] == two['gold']
    assert one['probabilities'] == pytest.approx(two['probabilities'], abs=1e-5)
  shares = [answer['probabilities']['1'] for answer in answers[1]]
  assert max(shares) - min(shares) > 0.05


def test_scores_are_those_of_scikit_learn(tmp_path, vocab, tokenizer):
  for labels, own in ((('0', '1'), 'f1'), (('a', 'b', 'c'), 'macro_f1')):
    path = table(tmp_path / 'dev.tsv', np.random.default_rng(1), 80, labels)
    config = load(
      vocab, 'configs/finetune.py', f'--config.data.train={path}', f'--config.data.eval={path}',
      '--config.data.seq_length=32',
    )  # fmt: skip
    source, outputs = outputs_of(config, tokenizer)
    score = source.score(source.answers(outputs))
    gold = [line.split('\t')[1] for line in path.read_text().splitlines()[1:]]
    _, (logits,) = by_example(outputs, 'logits')
    predicted = [labels[k] for k in logits.argmax(-1)]
    average = {'average': 'binary', 'pos_label': '1'} if own == 'f1' else {'average': 'macro'}
    assert score[own] == pytest.approx(sklearn_metrics.f1_score(gold, predicted, **average))
    assert score['matthews'] == pytest.approx(sklearn_metrics.matthews_corrcoef(gold, predicted))
    assert score['classification_accuracy'] == np.mean(np.array(gold) == np.array(predicted))


def test_a_text_in_windows_is_read_whole_and_its_logits_averaged(tmp_path, vocab, tokenizer):
  path = tmp_path / 'dev.tsv'
  long = ' '.join(WORDS * 6)
  path.write_text(f'sentence\tlabel\n{long}\t0\nriver\t1\n')
  config = load(
    vocab, 'configs/finetune.py', f'--config.data.train={path}', f'--config.data.eval={path}',
    '--config.data.seq_length=64', '--config.task.max_length=18',
    '--config.table.long_texts=windows',
  )  # fmt: skip
  source, outputs = outputs_of(config, tokenizer)
  assert list(source.text_of) == [0] * 7 + [1]  # 16 of 60 tokens, every 8
  ids = [list(ids) for (ids,) in source.texts[:7]]
  whole = list(tokenizer.ids_batch([long])[0])
  assert ids[0] == whole[:16] and ids[6] == whole[48:64] and ids[1][:8] == ids[0][8:]
  answers = source.answers(outputs)
  _, (logits,) = by_example(outputs, 'logits')
  expected = softmax(logits[:7].mean(axis=0))
  assert list(answers[0]['probabilities'].values()) == pytest.approx(list(expected), abs=1e-6)
  # A text with a window that was not predicted has no answer.
  outputs['example_ids'] = np.where(outputs['example_ids'] == 3, 0, outputs['example_ids'])
  assert [a['texts'] for a in source.answers(outputs)] == [['river']]


@pytest.mark.parametrize(
  'keep, expected', [('head', '0 1 2 3'), ('tail', '6 7 8 9'), ('head_tail', '0 7 8 9')]
)
def test_what_is_kept_of_a_long_text(keep, expected):
  ((kept,),) = classification.cut((np.arange(10),), 4, keep)
  assert ' '.join(map(str, kept)) == expected


def test_several_labels_of_a_text(tmp_path, vocab, tokenizer):
  path = tmp_path / 'dev.jsonl'
  rows = [('river', ['a', 'b']), ('market', []), ('old', ['b']), ('new', ['c'])]
  path.write_text(''.join(json.dumps({'sentence': t, 'label': y}) + '\n' for t, y in rows))
  config = load(
    vocab, 'configs/finetune.py', f'--config.data.train={path}', f'--config.data.eval={path}',
    '--config.data.seq_length=32', '--config.table.multi_label=true',
  )  # fmt: skip
  source, outputs = outputs_of(config, tokenizer)
  held = np.concatenate([source[i]['labels'][source[i]['weights'] > 0] for i in range(len(source))])
  assert held.tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]]
  answers = source.answers(outputs)
  assert [list(a['gold']) for a in answers] == [y for _, y in rows]
  perfect = [dict(a, prediction=a['gold']) for a in answers]
  assert source.score(perfect) == {'micro_f1': 1.0, 'macro_f1': 1.0, 'subset_accuracy': 1.0}
  for label in ('"[a"', '{"a": 1}', '[["a"]]', '[null]'):
    path.write_text(f'{{"sentence": "old", "label": {label}}}\n')
    with pytest.raises(InputError, match='dev.jsonl:1: label .* is no list of labels'):
      classification.sources(config, tokenizer, ('eval',))
  none = [dict(a, prediction=[]) for a in answers]
  assert source.score(none) == {'micro_f1': 0.0, 'macro_f1': 0.0, 'subset_accuracy': 0.25}


def test_class_weights_count_in_the_loss_and_not_in_the_accuracy(tmp_path, vocab, tokenizer):
  path = tmp_path / 'train.tsv'
  path.write_text('sentence\tlabel\n' + 'river\ta\n' * 3 + 'market\tb\n')
  options = [f'--config.data.train={path}', '--config.data.seq_length=16']
  balanced = load(
    vocab, 'configs/finetune.py', *options, "--config.table.class_weights=('balanced',)"
  )
  balanced = classification.resolve(balanced)
  balanced.data.train = 'gone.tsv'  # the numbers are in the config
  objective = classification.objective(c.from_json(c.to_json(balanced)), tokenizer)
  assert objective.class_weights == pytest.approx((4 / 6, 2.0), abs=1e-5)
  config = load(vocab, 'configs/finetune.py', *options, "--config.table.class_weights=(('b',3.0),)")
  config = classification.resolve(config)
  objective = classification.objective(config, tokenizer)
  source = classification.sources(config, tokenizer, ('train',))['train']
  batch = {name: x[None] for name, x in source[0].items()}
  params = objective.init(jax.random.key(0))
  logits = objective.logits(params, batch)[0, :4]
  nats = -np.log(softmax(logits, axis=-1))[range(4), [0, 0, 0, 1]]
  terms = objective.terms(params, batch, None, False)
  assert float(terms['classification'].value) == pytest.approx(nats @ [1, 1, 1, 3] / 6, rel=1e-5)
  assert float(terms['classification_accuracy'].weight) == 4
  config.table.class_weights = (('x', 2.0),)
  with pytest.raises(InputError, match="'x', which is not a label"):
    classification.objective(config, tokenizer)


def test_faulty_rows_stop_the_run_or_are_counted_and_named(tmp_path, vocab, tokenizer, caplog):
  path = tmp_path / 'dev.tsv'
  path.write_bytes(b'\xef\xbb\xbfsentence\tlabel\r\nriver\t0\r\nold\t2\r\n\t1\r\nnew\r\nbad\t1\r\n')
  options = [f'--config.data.train={path}', f'--config.data.eval={path}']
  spec = 'configs/finetune.py:task=sst2'
  with pytest.raises(InputError, match=r"dev.tsv:3: label '2' is not in the label set"):
    classification.sources(load(vocab, spec, *options), tokenizer)
  caplog.set_level('INFO', 'bert_jax')
  config = load(vocab, spec, *options, '--config.data.skip_damaged=true')
  source = classification.sources(config, tokenizer, ('eval',))['eval']
  assert [e.texts[0] for e in source.examples] == ['river', '', 'bad']
  assert '1 rows with an unknown label (skipped) (dev.tsv:3)' in caplog.text
  assert '1 lines with another number of columns (skipped)' in caplog.text and ':5)' in caplog.text
  assert '1 empty texts (kept) (dev.tsv:4)' in caplog.text


def test_fields_that_are_missing_or_empty(tmp_path, vocab, tokenizer, caplog):
  path = tmp_path / 'dev.jsonl'
  path.write_text(
    '{"sentence": "river", "label": "1"}\n{"label": "1"}\n{"sentence": "old", "label": null}\n'
    '{"sentence": "new", "label": ""}\n'
  )
  spec = [
    'configs/finetune.py:task=sst2',
    f'--config.data.train={path}',
    f'--config.data.eval={path}',
  ]
  with pytest.raises(InputError, match=r"dev.jsonl:2: has no column 'sentence'"):
    classification.sources(load(vocab, *spec), tokenizer, ('eval',))
  caplog.set_level('INFO', 'bert_jax')
  config = load(vocab, *spec, '--config.data.skip_damaged=true')
  found = classification.sources(config, tokenizer)
  assert [e.texts[0] for e in found['eval'].examples] == ['river', 'old', 'new']
  assert found['eval'].gold == [1, None, None]
  assert '2 without a label (predicted, not scored)' in caplog.text
  assert [e.texts[0] for e in found['train'].examples] == ['river']
  assert '1 rows with an unknown label (skipped) (dev.jsonl:4)' in caplog.text
  path.write_text('{"sentence": "a", "label": "a|b"}\n{"sentence": "a", "label": "c"}\n')
  with pytest.raises(InputError, match="'a|b' has a"):
    classification.resolve(load(vocab, 'configs/finetune.py', *spec[1:]))


@pytest.mark.parametrize('task, none', [('sst2', -1), ('stsb', -1.0)])
def test_a_test_set_of_tfds_has_no_labels_and_numbers_of_its_own(
  task, none, tmp_path, vocab, tokenizer
):
  tfds = pytest.importorskip('tensorflow_datasets')
  tfds.disable_progress_bar()
  features = {'sentence': tfds.features.Text(), 'idx': np.int32}
  features['label'] = tfds.features.ClassLabel(names=['negative', 'positive'])
  if task == 'stsb':
    features = {'sentence1': features['sentence'], 'sentence2': features['sentence']}
    features |= {'label': np.float32, 'idx': np.int32}

  class Glue(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version('1.0.0')

    def _info(self):
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
      return {'train': self._generate_examples(1), 'test': self._generate_examples(none)}

    def _generate_examples(self, label):
      for k in range(10):
        yield (
          k,
          {name: WORDS[k] for name in features if 'sentence' in name} | {'label': label, 'idx': k},
        )

  Glue(data_dir=tmp_path, file_format='array_record').download_and_prepare()
  config = load(vocab, f'configs/finetune.py:task={task}', f'--config.data.train=tfds:{tmp_path}',
                f'--config.data.eval=tfds:{tmp_path}:test')  # fmt: skip
  source, outputs = outputs_of(config, tokenizer)
  assert source.gold == [None] * 10
  answers = source.answers(outputs)
  assert source.score(answers) == {}
  assert {a['id']: a['texts'][0] for a in answers} == {str(k): WORDS[k] for k in range(10)}


def test_a_regression_that_says_the_same_has_collapsed(tmp_path, vocab, tokenizer):
  path = tmp_path / 'dev.tsv'
  path.write_text('sentence1\tsentence2\tscore\nriver\told\t1\nnew\tbad\t4\n')
  config = load(vocab, 'configs/finetune.py:task=stsb', f'--config.data.train={path}',
                f'--config.data.eval={path}')  # fmt: skip
  source, outputs = outputs_of(config, tokenizer)
  answers = source.answers(outputs)
  same = [dict(a, prediction=2.5 + 1e-6 * k) for k, a in enumerate(answers)]
  assert source.constant(same) == '2.500'
  assert not source.constant([dict(a, prediction=a['gold'] + 0.1) for a in answers])


@pytest.mark.parametrize('keep', ['tail', 'windows'])
def test_predict_reads_long_texts_as_evaluation_does(keep, tmp_path, vocab):
  path = tmp_path / 'dev.tsv'
  path.write_text(f'sentence\tlabel\n{" ".join(WORDS * 4)}\t0\nriver\t1\n')
  config = load(
    vocab, 'configs/finetune.py:task=sst2', f'--config.data.train={path}',
    f'--config.data.eval={path}', '--config.data.seq_length=64', '--config.task.max_length=16',
    '--config.model.max_position_embeddings=16', f'--config.table.long_texts={keep}',
    '--config.optimizer.warmup=0', '--config.optimizer.learning_rate=0.1',
  )  # fmt: skip
  train.train(config, tmp_path / 'run')
  (folder,) = (tmp_path / 'run' / 'eval').iterdir()
  answers = [json.loads(line) for line in (folder / 'predictions.jsonl').read_text().splitlines()]
  model = predict.Model(tmp_path / 'run')
  for answer, shares in zip(answers, model.classify([a['texts'][0] for a in answers])):
    assert shares == pytest.approx(answer['probabilities'], abs=1e-5)
  assert model.cut == (keep == 'tail')


def test_a_file_without_header_may_have_one_and_may_lack_labels(tmp_path, vocab, tokenizer):
  """As XNLI's files: no header and no label in the test set; MNLI's training set has a header."""
  (tmp_path / 'train.tsv').write_text('premise\thypo\tlabel\nold\tnew\tcontradictory\n')
  (tmp_path / 'test.tsv').write_text('river\tbad\ngood\told\n')
  config = load(vocab, 'configs/finetune.py:task=xnli', f'--config.data.train={tmp_path}/train.tsv',
                f'--config.data.eval={tmp_path}/test.tsv')  # fmt: skip
  found = classification.sources(config, tokenizer)
  assert found['train'].examples[0].label == 'contradiction'
  assert [e.texts for e in found['eval'].examples] == [('river', 'bad'), ('good', 'old')]


def test_a_test_set_without_labels_is_predicted_and_not_scored(tmp_path, vocab, tokenizer):
  train_path = table(tmp_path / 'train.tsv', np.random.default_rng(0), 8)
  path = tmp_path / 'test.tsv'
  path.write_text('index\tsentence\n0\triver\n1\tmarket\n')
  config = load(
    vocab, 'configs/finetune.py:task=sst2', f'--config.data.train={train_path}',
    f'--config.data.eval={path}',
  )  # fmt: skip
  source, outputs = outputs_of(config, tokenizer)
  answers = source.answers(outputs)
  assert source.score(answers) == {} and 'gold' not in answers[0]
  lines = source.files(answers)['predictions.tsv'].splitlines()
  assert lines[0] == 'index\tprediction'
  assert [line.split('\t')[0] for line in lines[1:]] == ['0', '1']
  assert {line.split('\t')[1] for line in lines[1:]} <= {'0', '1'}


# ---- runs ----------------------------------------------------------------------------------------

GLUE = {  # the header of each published file, or none
  'cola': (None, 'gj04\t{1}\t\t{0}', ('0', '1')),
  'sst2': ('sentence\tlabel', '{0}\t{1}', ('0', '1')),
  'mrpc': ('Quality\t#1 ID\t#2 ID\t#1 String\t#2 String', '{1}\t1\t2\t{0}\t{2}', ('0', '1')),
  'stsb': ('index\tgenre\tsentence1\tsentence2\tscore', '0\tx\t{0}\t{2}\t{1}', ('0.5', '4.750')),
  'qqp': ('id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate', '0\t1\t2\t{0}\t{2}\t{1}', '01'),
  'mnli': (
    'index\tsentence1\tsentence2\tlabel1\tgold_label',
    '0\t{0}\t{2}\tneutral\t{1}',
    ('neutral', 'entailment', 'contradiction'),
  ),
  'qnli': (
    'index\tquestion\tsentence\tlabel',
    '0\t{0}\t{2}\t{1}',
    ('entailment', 'not_entailment'),
  ),
  'rte': (
    'index\tsentence1\tsentence2\tlabel',
    '0\t{0}\t{2}\t{1}',
    ('entailment', 'not_entailment'),
  ),
  'wnli': ('index\tsentence1\tsentence2\tlabel', '0\t{0}\t{2}\t{1}', ('0', '1')),
}
FOLDER = dict(zip(GLUE, glue.TASKS))


def glue_file(path, name, number, seed, labelled=True):
  header, line, labels = GLUE[name]
  rng = np.random.default_rng(seed)
  rows = [line.format(sentence(rng), labels[i % len(labels)], sentence(rng)) for i in range(number)]
  if not labelled:  # as the published test files: an index, and no label
    columns = {'cola': ['sentence'], 'sst2': ['sentence']}.get(name)
    wanted = columns or [x for x in header.split('\t') if 'sentence' in x or 'question' in x
                         or 'String' in x]  # fmt: skip
    header = '\t'.join(['index', *wanted])
    rows = ['\t'.join([str(i), *(sentence(rng) for _ in wanted)]) for i in range(number)]
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text('\n'.join([*([header] if header else []), *rows]) + '\n')


@pytest.fixture(scope='module')
def glue_runs(tmp_path_factory, vocab):
  """({name: workdir}, folder in the layout of the GLUE archive) of a run of two steps of each."""
  home = tmp_path_factory.mktemp('glue')
  runs = {}
  for name, folder in FOLDER.items():
    kinds = ('_matched', '_mismatched') if name == 'mnli' else ('',)
    glue_file(home / folder / 'train.tsv', name, 40, 0)
    for kind in kinds:
      glue_file(home / folder / f'dev{kind}.tsv', name, 20, 1)
      glue_file(home / folder / f'test{kind}.tsv', name, 10, 2, labelled=False)
    config = load(
      vocab, f'configs/finetune.py:task={name}', f'--config.data.train={home}/{folder}/train.tsv',
      f'--config.data.eval={home}/{folder}/dev{kinds[0]}.tsv', '--config.data.seq_length=32',
      '--config.optimizer.warmup=0', '--config.model.num_hidden_layers=1',
    )  # fmt: skip
    runs[folder] = home / 'runs' / folder
    train.train(config, runs[folder])
  return runs, home


def test_every_glue_task_trains_and_becomes_a_leaderboard_file(glue_runs, tmp_path):
  runs, home = glue_runs
  (home / 'diagnostic').mkdir()
  glue_file(home / 'diagnostic' / 'diagnostic.tsv', 'mnli', 10, 3, labelled=False)
  found = glue.glue(runs, home, tmp_path)
  files = {path.name for path in tmp_path.glob('*.tsv')}
  assert files == {
    'CoLA.tsv', 'SST-2.tsv', 'MRPC.tsv', 'STS-B.tsv', 'QQP.tsv', 'MNLI-m.tsv', 'MNLI-mm.tsv',
    'QNLI.tsv', 'RTE.tsv', 'WNLI.tsv', 'AX.tsv',
  }  # fmt: skip
  for path in tmp_path.glob('*.tsv'):
    lines = path.read_text().splitlines()
    assert lines[0] == 'index\tprediction' and len(lines) == 11
    assert [line.split('\t')[0] for line in lines[1:]] == [str(i) for i in range(10)]
  assert {line.split('\t')[1] for line in (tmp_path / 'RTE.tsv').read_text().splitlines()[1:]} <= {
    'entailment',
    'not_entailment',
  }
  results, value = found['MRPC']
  assert value == pytest.approx(
    (results['MRPC']['f1'] + results['MRPC']['classification_accuracy']) / 2
  )
  assert len(found['MNLI'][0]) == 2
  shown = glue.table(found)
  assert 'of 9 of 9 tasks' in shown
  average = np.mean([value for _, value in found.values()])
  assert math.isfinite(average) and f'{100 * average:.2f}' in shown.splitlines()[-1]


PAIRS = {  # other tasks on pairs, as their public files are
  'xnli': ('dev-de.tsv', ['{0}\t{1}\tneutral', '{0}\t{1}\tcontradiction']),
  'pawsx': ('dev.tsv', ['id\tsentence1\tsentence2\tlabel', '1\t{0}\t{1}\t0', '2\t{0}\t{1}\t1']),
  'ocnli': (
    'dev.json',
    [
      '{{"sentence1": "{0}", "sentence2": "{1}", "label": "entailment", "id": 0}}',
      '{{"sentence1": "{0}", "sentence2": "{1}", "label": "neutral", "id": 1}}',
      '{{"sentence1": "{0}", "sentence2": "{1}", "label": "-", "id": 2}}',  # no majority
    ],
  ),
  'table': ('dev.csv', ['sentence,label', '"{0}, {1}",a', '{0},b']),
}


@pytest.mark.parametrize('task', PAIRS)
def test_other_tables_train_and_evaluate(task, tmp_path, vocab):
  name, lines = PAIRS[task]
  rng = np.random.default_rng(0)
  text = '\n'.join(line.format(sentence(rng), sentence(rng)) for line in lines)
  (tmp_path / name).write_text(text + '\n')
  config = load(
    vocab, f'configs/finetune.py:task={task}', f'--config.data.train={tmp_path}/{name}',
    f'--config.data.eval={tmp_path}/{name}', '--config.data.seq_length=32',
    '--config.optimizer.warmup=0', '--config.model.num_hidden_layers=1',
  )  # fmt: skip
  _, metrics = train.train(config, tmp_path / 'run')
  assert metrics['classification_accuracy'] in (0.0, 0.5, 1.0)
  assert evaluate.evaluate(tmp_path / 'run')[0] == pytest.approx(metrics)


@pytest.mark.parametrize(
  'task, row, label',
  [  # names of columns and labels in tfds:glue
    ('cola', {'sentence': 'a', 'label': 'acceptable'}, 1),
    ('sst2', {'sentence': 'a', 'label': 'negative'}, 0),
    ('mrpc', {'sentence1': 'a', 'sentence2': 'b', 'label': 'equivalent'}, 1),
    ('qqp', {'question1': 'a', 'question2': 'b', 'label': 'duplicate'}, 1),
    ('mnli', {'premise': 'a', 'hypothesis': 'b', 'label': 'contradiction'}, 2),
    ('qnli', {'question': 'a', 'sentence': 'b', 'label': 'entailment'}, 0),
    ('rte', {'sentence1': 'a', 'sentence2': 'b', 'label': 'not_entailment'}, 1),
    ('wnli', {'sentence1': 'a', 'sentence2': 'b', 'label': 'entailment'}, 1),
    ('stsb', {'sentence1': 'a', 'sentence2': 'b', 'label': '3.8'}, 3.8),
  ],
)
def test_a_model_of_glues_files_reads_tfds_too(task, row, label, tmp_path, vocab, tokenizer):
  (tmp_path / 'dev.jsonl').write_text(json.dumps(row) + '\n')
  path = tmp_path / 'dev.jsonl'
  config = load(vocab, f'configs/finetune.py:task={task}', f'--config.data.train={path}',
                f'--config.data.eval={path}')  # fmt: skip
  source = classification.sources(config, tokenizer, ('eval',))['eval']
  assert source.gold == [label]


def test_evaluation_writes_what_was_answered(glue_runs):
  runs, home = glue_runs
  folder = next((runs['SST-2'] / 'eval').iterdir())
  answers = [json.loads(line) for line in (folder / 'predictions.jsonl').read_text().splitlines()]
  assert len(answers) == 20 and {a['where'] for a in answers} >= {'dev.tsv:2', 'dev.tsv:21'}
  worst = [json.loads(line) for line in (folder / 'worst.jsonl').read_text().splitlines()]
  losses = [a['loss'] for a in worst]
  assert losses == sorted(losses, reverse=True) and len(worst) == 20
  for answer in answers:
    own = answer['probabilities'][answer['gold']]
    assert answer['loss'] == pytest.approx(-math.log(own), rel=1e-5)
  scores = json.loads((folder / 'scores.json').read_text())
  right = np.mean([a['gold'] == a['prediction'] for a in answers])
  assert scores['classification_accuracy'] == pytest.approx(right)


def test_transfer_is_a_table_of_sets_and_metrics(glue_runs, tmp_path):
  runs, home = glue_runs
  for language, seed in (('de', 5), ('hi', 6)):
    glue_file(tmp_path / f'{language}.tsv', 'sst2', 15, seed)
  results = transfer.transfer(
    runs['SST-2'], [f'{tmp_path}/{{language}}.tsv', f'en={home}/SST-2/dev.tsv'], ['de', 'hi']
  )
  assert list(results) == ['de', 'hi', 'en']
  single, _ = evaluate.evaluate(runs['SST-2'], [f'--config.data.eval={tmp_path}/hi.tsv'])
  assert results['hi'] == single
  rows = transfer.table(results).splitlines()
  column = rows[0].split().index('classification_accuracy') + 1
  shown = [float(row.split()[column]) for row in rows[1:]]
  assert shown[-1] == pytest.approx(np.mean(shown[:-1]), abs=1e-4)
  assert (runs['SST-2'] / 'transfer' / 'hi' / 'predictions.jsonl').is_file()
  with pytest.raises(InputError, match='has no name'):
    transfer.transfer(runs['SST-2'], [f'{tmp_path}/de.tsv'])


def test_a_collapsed_run_is_named_and_left_out_of_a_second_line(glue_runs, tmp_path, caplog):
  """A model whose classifier ignores the text predicts one label for all."""
  runs, home = glue_runs
  config = c.from_json((runs['SST-2'] / 'config.json').read_text())
  tokenizer = tokenizers.load_folder(runs['SST-2'])
  objective = classification.objective(config, tokenizer)
  source = classification.sources(config, tokenizer, ('eval',))['eval']
  params = objective.init(jax.random.key(0))
  params['classifier'] = jax.tree.map(lambda x: x * 0 + np.arange(2.0), params['classifier'])
  batch = jax.tree.map(lambda *x: np.stack(x), *(source[i] for i in range(len(source))))
  _, outputs = step.make_eval_step(objective, key=jax.random.key(0))(params, batch, 0)
  answers = source.answers(jax.device_get(outputs))
  assert source.constant(answers) == '1'
  assert source.constant([dict(a, prediction=a['gold']) for a in answers]) == ''

  def run(name, seed, value, **more):
    (tmp_path / name).mkdir()
    config.seed = seed
    (tmp_path / name / 'config.json').write_text(c.to_json(config))
    (tmp_path / name / 'run.json').write_text(json.dumps({'data': {'eval': {'baselines': {}}}}))
    line = {'split': 'eval', 'step': 2, 'classification_accuracy': value} | more
    (tmp_path / name / 'metrics.jsonl').write_text(json.dumps(line) + '\n')

  for seed, value in enumerate((0.9, 0.92, 0.91)):
    run(f's{seed}', seed, value)
  run('s3', 3, 0.5, constant=1.0)
  lines = report.table(report.read(tmp_path)).splitlines()
  assert '0.8075' in lines[1] and ' 4 ' in lines[1]
  assert '0.9100 ± 0.0100' in lines[2] and 'without collapsed runs' in lines[2]
  assert lines[3].startswith('collapsed') and lines[3].endswith('s3')
  low, high = report.interval([0.9, 0.92, 0.91])
  assert (low, high) == pytest.approx((0.9, 0.92), abs=4e-3)


def test_a_run_stops_when_its_metric_gets_no_better(tmp_path, vocab, caplog):
  """With a rate of 0 nothing changes after the first evaluation; the run is then finished."""
  caplog.set_level('INFO', 'bert_jax')
  path = table(tmp_path / 'train.tsv', np.random.default_rng(0), 40)
  config = load(
    vocab, 'configs/finetune.py:task=sst2', f'--config.data.train={path}',
    f'--config.data.eval={path}', '--config.data.seq_length=32', '--config.steps=40',
    '--config.optimizer.learning_rate=0', '--config.eval.every=3', '--config.eval.patience=2',
    '--config.checkpoint.best_metric=classification_accuracy',
  )  # fmt: skip
  state, metrics = train.train(config, tmp_path / 'run')
  assert int(state.step) == 9 and 'no better classification_accuracy than at step 3' in caplog.text
  again, metrics2 = train.train(config, tmp_path / 'run')
  assert int(again.step) == 9 and metrics2 == metrics and 'has stopped early' in caplog.text
  with pytest.raises(InputError, match='eval.patience counts evaluations'):
    c.override(config, ['--config.eval.every=0'])


def test_patience_counts_from_where_a_run_begins_and_for_one_metric(tmp_path, vocab):
  path = table(tmp_path / 'train.tsv', np.random.default_rng(0), 40)
  options = [
    'configs/finetune.py:task=sst2', f'--config.data.train={path}', f'--config.data.eval={path}',
    '--config.data.seq_length=32', '--config.optimizer.learning_rate=0', '--config.eval.every=2',
    '--config.checkpoint.best_metric=classification_accuracy', '--config.model.num_hidden_layers=1',
  ]  # fmt: skip
  train.train(load(vocab, *options, '--config.steps=10'), tmp_path / 'one')
  more = ['--config.eval.patience=3', '--config.steps=30', f'--config.resume_from={tmp_path}/one']
  state, _ = train.train(load(vocab, *options, *more), tmp_path / 'two')
  assert int(state.step) == 12 + 3 * 2  # the first evaluation is the best, then three like it
  other = ['--config.checkpoint.best_metric=classification', '--config.checkpoint.best_mode=min']
  state, _ = train.train(load(vocab, *options, *more, *other), tmp_path / 'three')
  assert int(state.step) == 12 + 3 * 2


def test_problems_name_the_first_places(caplog):
  caplog.set_level('INFO', 'bert_jax')
  problems = Problems('train', skip=True)
  for i in range(5):
    problems.wrong(f'f:{i}', 'is bad', 'bad rows')
  problems.log()
  assert 'train: 5 bad rows (skipped) (f:0, f:1, f:2, ...)' in caplog.text
