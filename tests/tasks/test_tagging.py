"""Tags: columns read as published, sentences in windows, and the numbers of conlleval."""

import itertools
import json

import jax
import numpy as np
import pyarrow as pa
import pytest
from published import SMALL, columns, jsonl, stacked
from pyarrow import parquet as pq
from refusal import refused
from scipy.special import softmax
from scipy.stats import entropy
from seqeval.metrics import classification_report
from sklearn import metrics as sklearn_metrics
from small_tables import fields

from bert_jax import config as c
from bert_jax import tokenizers
from bert_jax.errors import InputError
from bert_jax.rows import windows
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.tagging import conll, scores, task

WORDS = ['Ada', 'Paris', 'river', 'the', 'un', '##happy', 'old', 'a', '.']
NO_CHUNKS = 'checkpoint.best_metric=token_accuracy'
UNTAGGED = 'sentences with untagged tokens (not learnt, not scored)'


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
  path = tmp_path_factory.mktemp('vocab') / 'vocab.txt'
  path.write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]) + '\n')
  return tokenizers.load(path, do_lower_case=False)


def load(path, *more, task='ner', evaluation=''):
  data = f'data.train={path} data.eval={evaluation or path} data.seq_length=16'
  rows = 'data.examples_per_row=4 tokenizer.do_lower_case=false model.vocab_size=14'
  return c.load(f'configs/finetune.py:task={task}', fields(SMALL, data, rows, *more))


def read(spec, split='train', form='columns', at=(0, -1), skip=False):
  config, problems = c.defaults('tagging'), Problems(split, skip)
  config.task.format, config.data[split] = form, str(spec)
  config.tagging.token_column, config.tagging.tag_column = (1, 3) if form == 'conllu' else at
  return list(conll.read(config, split, problems)), problems


def source_of(config, tokenizer, split='eval'):
  config = task.resolve(config)
  return task.sources(config, tokenizer, (split,))[split], config


def outputs_of(source, config):
  """Outputs over a source as of a model, whose logits are drawn."""
  batch, rng = stacked(source), np.random.default_rng(3)
  logits = rng.normal(size=(*batch['input_ids'].shape, len(config.tagging.labels)))
  return {'logits': logits} | {name: batch[name] for name in ('example_ids', 'cls_positions')}


# ---- reading -------------------------------------------------------------------------------------


def test_conll2003_with_documents_bom_and_crlf(tmp_path):
  path = tmp_path / 'eng.train'
  path.write_bytes(
    b'\xef\xbb\xbf-DOCSTART- -X- -X- O\r\n\r\nAda NNP B-NP B-PER\r\nold JJ B-NP O\r\n\r\n\r\n'
    b'Paris NNP B-NP B-LOC\r\n\r\n-DOCSTART- -X- -X- O\r\n\r\nriver NN I-NP O'
  )
  found, problems = read(path)
  assert [(s.tokens, s.tags) for s in found] == [
    (('Ada', 'old'), ('B-PER', 'O')),
    (('Paris',), ('B-LOC',)),
    (('river',), ('O',)),
  ]
  assert found[0].document == found[1].document != found[2].document
  assert [s.where for s in found] == ['eng.train:3', 'eng.train:7', 'eng.train:11']
  assert [s.id for s in found] == ['0', '1', '2'] and problems.counts['documents'] == 2
  assert read(path, at=(0, 1))[0][0].tags == ('NNP', 'JJ')
  weibo = read(columns(tmp_path / 'b', '科0/O 技1/O 10/B-X', '20/O 11/O'), form='weibo')[0]
  assert [s.tokens for s in weibo] == [('科', '技', '1'), ('2', '1')], 'without their places'


@pytest.mark.parametrize('sentences', [
  ('tok0/O tok1/O', 'tok0/O'),
  ('科0/O 技1/O', '科/O 技/O'),
])  # fmt: skip
def test_numbers_that_are_no_places_stay(tmp_path, sentences):
  found = read(columns(tmp_path / 'a', *sentences), form='weibo')[0]
  assert found == read(tmp_path / 'a')[0] and ' '.join(found[0].tokens) in sentences[0].replace(
    '/O', ''
  )


def test_conllu_without_comments_ranges_and_empty_nodes(tmp_path):
  """The example of the format's own documentation, and a token that looks like a comment."""
  path = tmp_path / 'x.conllu'
  rest = '\t_' * 6
  path.write_text(
    f'# newdoc id = 1\n# sent_id = s-1\n# text = vámonos al mar\n1-2\tvámonos\t_\t_{rest}\n'
    f'1\tvamos\tir\tVERB{rest}\n2\tnos\tnosotros\tPRON{rest}\n2.1\tx\tx\tX{rest}\n\n'
    f'# newdoc\n# sent_id = s-1\n1\t#\t#\tSYM{rest}\n2\t10 000\t_\t_{rest}\n\n# nothing\n\n'
  )
  found, problems = read(path, form='conllu')
  assert [(s.tokens, s.tags, s.id, s.where) for s in found] == [
    (('vamos', 'nos'), ('VERB', 'PRON'), 's-1', 'x.conllu:1'),
    (('#', '10 000'), ('SYM', None), 's-1', 'x.conllu:9'),
  ]
  counts = {'multiword ranges and empty nodes': 2}
  counts |= {'sentences without a token (left out)': 1}
  counts |= {UNTAGGED: 1}
  assert counts.items() <= problems.counts.items()


def test_a_file_without_tags_is_a_test_set_and_no_training_data(tmp_path, tokenizer):
  path, test = columns(tmp_path / 'train', 'Ada/B-PER old/O'), columns(tmp_path / 'test', 'Ada old')
  found, problems = read(test, 'eval')
  assert found[0].tags is None and problems.counts['sentences without tags'] == 1
  with pytest.raises(InputError, match='test:1'):
    read(test)
  source, config = source_of(load(path, evaluation=test), tokenizer)
  answers = source.answers(outputs_of(source, config))
  assert 'gold' not in answers[0] and source.score(answers) == {}


@pytest.mark.parametrize('each', [True, False])
def test_a_table_of_words_names_its_sentences(tmp_path, each):
  """As simpletransformers writes it, and as Kaggle's corpus does, at the first word only."""
  again = '7' if each else ''
  text = f'7,Ada,B-PER\n{again},met,O\n8,Bo,B-PER\n{again and 8},left,O\n'
  (tmp_path / 'a.csv').write_text(f'Sentence #,Word,Tag\n{text}')
  sentences = read(tmp_path / 'a.csv')[0]
  assert [(x.where, x.tokens, x.tags) for x in sentences] == [
    ('a.csv:2', ('Ada', 'met'), ('B-PER', 'O')),
    ('a.csv:4', ('Bo', 'left'), ('B-PER', 'O')),
  ]
  (tmp_path / 'b.csv').write_text('sentence_id,words\n7,Ada\n8,Bo\n')
  assert [x.tags for x in read(tmp_path / 'b.csv', 'eval')[0]] == [None, None]


@pytest.mark.parametrize('split', ['train', 'eval'])
def test_a_word_without_a_tag_is_not_learnt_and_not_scored(tmp_path, split):
  text = '7,Ada,B-PER\n7,met,\n8,Bo,\n9,Al,B-PER\n'
  (tmp_path / 'a.csv').write_text(f'sentence_id,words,labels\n{text}')
  sentences, problems = read(tmp_path / 'a.csv', split)
  assert [x.tags for x in sentences] == [('B-PER', None), None, ('B-PER',)]
  assert problems.counts[UNTAGGED] == problems.counts['sentences without tags'] == 1


@pytest.mark.parametrize('split', ['train', 'eval'])
def test_an_empty_token_is_kept_and_a_tag_of_null_is_not_known(tmp_path, tokenizer, split):
  rows = [
    {'words': ['Ada', '', 'un'], 'ner_tags': ['B-PER', 'O', None]},
    {'words': ['Paris', 'old'], 'ner_tags': ['B-LOC', '']},
    {'words': ['river'], 'ner_tags': None},
  ]
  path = jsonl(tmp_path / 'a.ndjson', *rows)
  found, problems = read(path, split)
  assert [x.tokens for x in found] == [tuple(row['words']) for row in rows]
  assert [x.tags for x in found] == [('B-PER', 'O', None), ('B-LOC', None), None]
  assert (problems.counts[UNTAGGED], problems.counts['sentences without tags']) == (2, 1)
  source, _ = source_of(load(path), tokenizer, split)
  assert source.texts[0][0].tolist() == [5, tokenizer.unk_id, 9]


@pytest.mark.parametrize('kind', ['Sequence', 'List'])
def test_classes_have_the_names_of_their_schema_and_other_numbers_are_named(tmp_path, kind):
  names = {'feature': {'names': ['O', 'B-PER'], '_type': 'ClassLabel'}, '_type': kind}
  about = {'huggingface': json.dumps({'info': {'features': {'ner_tags': names}}})}
  table = pa.table({'tokens': [['met', 'Ada'], ['Bo']], 'ner_tags': [[0, 1], [1]]})
  pq.write_table(table.replace_schema_metadata(about), tmp_path / 'a.parquet')
  found = read(tmp_path / 'a.parquet')[0]
  assert [x.tags for x in found] == [('O', 'B-PER'), ('B-PER',)]
  pq.write_table(table, tmp_path / 'b.parquet')
  with refused("b.parquet:0: element 0 of 'ner_tags' .* is 0; write a text .*ClassLabel"):
    read(tmp_path / 'b.parquet')
  for tokens, said in ((['a', None], "element 1 of 'tokens' .* is None"), ('"a"', 'it is not')):
    with refused(f'c.jsonl:1: {said}'):
      read(jsonl(tmp_path / 'c.jsonl', {'tokens': tokens, 'tags': ['O', 'O']}))


def test_ranges_in_a_table_are_no_tokens(tmp_path):
  """As universal_dependencies of TFDS has them, tagged '_'."""
  rows = [{'tokens': ['al', 'a', 'él'], 'upos': ['_', 'VERB', 'NOUN']}, {'tokens': [], 'upos': []}]
  (tmp_path / 'a.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  found, problems = read(tmp_path / 'a.jsonl', form='conllu')
  assert [(s.tokens, s.tags) for s in found] == [(('a', 'él'), ('VERB', 'NOUN'))]
  assert problems.counts['sentences without a token (left out)'] == 1


# ---- rows ----------------------------------------------------------------------------------------


def test_tags_stand_on_the_first_piece(tmp_path, tokenizer):
  path = columns(tmp_path / 'a', 'the/O unhappy/B-PER \x07/I-PER Ada/I-PER')
  source, config = source_of(load(path), tokenizer, 'train')
  assert config.tagging.labels == ('B-PER', 'I-PER', 'O')
  row = source[0]
  assert list(row['input_ids'][:7]) == [2, 8, 9, 10, tokenizer.unk_id, 5, 3]
  assert list(row['tags'][:7]) == [0, 3, 1, 0, 2, 2, 0] and not row['tags'][7:].any()
  assert source.baselines.pop('cross_entropy') == (pytest.approx(entropy((1, 2, 1))), 'entropy')
  assert source.baselines == {'token_accuracy': (0.5, 'majority')}  # I-PER begins entities
  config.tagging.prior = source.prior  # where a new head begins
  objective = task.objective(config, tokenizer)
  params = objective.with_prior(objective.init(jax.random.key(0)))
  shares = softmax(params['classifier']['dense']['bias'])
  assert source.prior == (0.25, 0.5, 0.25) == pytest.approx(shares)


def test_each_token_of_a_long_sentence_is_asked_where_it_has_most_context(tmp_path, tokenizer):
  words = [WORDS[i % 4] if i % 5 else 'unhappy' for i in range(60)]
  gold = ['OX'[i % 7 % 2] for i in range(60)]
  path = columns(tmp_path / 'a', ' '.join(f'{w}/{tag}' for w, tag in zip(words, gold)), 'Ada/O')
  source, _ = source_of(load(path, NO_CHUNKS), tokenizer)
  assert len(source.texts) > 8 and source.lengths.max() == 16
  place_of = np.cumsum([0] + [1 + (word == 'unhappy') for word in words])
  bounds = windows.around(0, place_of[-1], place_of[-1], 14)
  asked = []
  for (number, tokens, firsts), (start, stop) in zip(source.asked, bounds):
    assert number == 0 and (firsts == 1 + place_of[tokens] - start).all()
    asked += tokens.tolist()
    for place in place_of[tokens]:
      depths = [min(place - a, b - 1 - place) for a, b in bounds]
      assert min(place - start, stop - 1 - place) == max(depths)
  assert sorted(asked) == list(range(60))
  # It is learnt there and only there: logits that know the tags of the rows answer all of it.
  batch = stacked(source)
  outputs = {name: batch[name] for name in ('example_ids', 'cls_positions')}
  outputs['logits'] = np.eye(3)[batch['tags']][..., 1:]
  answers = source.answers(outputs)
  assert (batch['tags'] > 0).sum() == 61 and [a['prediction'] for a in answers] == [gold, ['O']]
  # A sentence with a window that was not predicted is left out.
  outputs['example_ids'] = np.where(outputs['example_ids'] == 2, 0, outputs['example_ids'])
  assert [a['id'] for a in source.answers(outputs)] == ['1']


def test_document_context_fills_rows_and_is_not_learnt(tmp_path, tokenizer):
  path = tmp_path / 'a.conll'
  path.write_text(
    '-DOCSTART- O\n\nAda O\nunhappy O\n\nriver B-X\nriver I-X\n\nParis O\nold O\na O\n'
    '-DOCSTART- O\n\n-DOCSTART- O\n\nthe O\n'
  )
  shown = {
    16: ['Ada un ##happy river river Paris old a'] * 3 + ['the'],
    8: ['Ada un ##happy river river Paris', 'un ##happy river river Paris old']
    + ['##happy river river Paris old a', 'the'],
  }
  learnt = {16: [[1, 2], [4, 5], [6, 7, 8], [1]], 8: [[1, 2], [3, 4], [4, 5, 6], [1]]}
  for length in shown:
    config = load(path, f'task.max_length={length}', task='conll2003')
    source, config = source_of(config, tokenizer)
    texts = [' '.join(tokenizer.pieces[i] for i in ids) for (ids,) in source.texts]
    assert texts == shown[length]
    assert [np.flatnonzero(t).tolist() for t in source.per_token['tags'][0]] == learnt[length]
    answers = source.answers(outputs_of(source, config))
    said = [' '.join(answer['tokens']) for answer in answers]
    assert said == ['Ada unhappy', 'river river', 'Paris old a', 'the']
  # Of the few that are trained on, the others are still the context.
  few = load(path, 'task.train_examples=1', task='conll2003')
  source, _ = source_of(few, tokenizer, 'train')
  assert len(source.texts) == 1 and len(source.texts[0][0]) in (8, 1)


# ---- scores --------------------------------------------------------------------------------------


def test_scores_are_those_of_conlleval(shared):
  """What the official scorer prints of the same file."""
  text = (shared / 'golden/conlleval/output.txt').read_text()
  parts = text.strip().split('\n\n')
  sentences = [[line.split()[-2:] for line in part.splitlines()] for part in parts]
  gold, predicted = ([[pair[k] for pair in s] for s in sentences] for k in (0, 1))
  found = scores.tag_scores(gold, predicted, chunks=True)
  of_all = dict(zip(('token_accuracy', *scores.ENTITY_SCORES), (84.08, 68.83, 80.83, 74.35)))
  types = 'f1_ADJP', 'f1_ADVP', 'f1_NP', 'f1_PP', 'f1_SBAR', 'f1_VP'
  of_types = dict(zip(types, (0.0, 52.63, 71.16, 90.36, 44.44, 73.80)))
  assert {name: round(100 * value, 2) for name, value in found.items()} == of_all | of_types


def encoded(spans, length, scheme):
  """Tags of (start, end, type) spans, apart from each other or side by side."""
  tags = ['O'] * length
  for start, end, kind in spans:
    tags[start:end] = [f'I-{kind}'] * (end - start)
    if scheme == 'BIOES' and end - start == 1:
      tags[start] = f'S-{kind}'
    elif scheme == 'BIOES':
      tags[start], tags[end - 1] = f'B-{kind}', f'E-{kind}'
    elif scheme == 'IOB2' or any((b, k) == (start, kind) for _, b, k in spans):
      tags[start] = f'B-{kind}'
  return tags


@pytest.mark.parametrize('scheme', ['IOB1', 'IOB2', 'BIOES'])
def test_entities_in_all_schemes(scheme):
  """Spans are drawn and compared as spans; their tags must score alike."""
  rng = np.random.default_rng(1)
  sides, right, found, there = ([], []), 0, 0, 0
  for _ in range(200):
    cuts = sorted(rng.choice(np.arange(13), 6, replace=False).tolist())
    spans = [(a, b, str(rng.choice(['PER', 'creative-work']))) for a, b in itertools.pairwise(cuts)]
    gold = {span for span in spans if rng.random() < 0.6}
    # What is predicted shares some with gold and does not overlap the rest.
    own = {s for s in gold if rng.random() < 0.5}
    free = [i for i in range(12) if not any(a <= i < b for a, b, _ in own)]
    own |= {(i, i + 1, 'PER') for i in free if rng.random() < 0.1}
    right, found, there = right + len(gold & own), found + len(own), there + len(gold)
    for side, spans in zip(sides, (gold, own)):
      side.append(encoded(spans, 12, scheme))
  score = scores.tag_scores(*sides, chunks=True)
  expected = right / found, right / there, 2 * right / (found + there)
  assert [score[name] for name in scores.ENTITY_SCORES] == pytest.approx(expected)
  report = classification_report(*sides, output_dict=True)
  for kind in ('PER', 'creative-work'):
    assert score[f'f1_{kind}'] == pytest.approx(report[kind]['f1-score'])


def test_other_tags_have_accuracy_and_macro_f1(tmp_path, tokenizer):
  rng = np.random.default_rng(0)
  gold, predicted = (rng.choice(['NOUN', 'VERB', 'X'], 50).tolist() for _ in range(2))
  score = scores.tag_scores([gold[:20], gold[20:]], [predicted[:20], predicted[20:]], False)
  assert score == {
    'token_accuracy': pytest.approx(sklearn_metrics.accuracy_score(gold, predicted)),
    'macro_f1': pytest.approx(sklearn_metrics.f1_score(gold, predicted, average='macro')),
  }
  path = columns(tmp_path / 'a', 'Ada/NOUN old/ADJ')
  source, _ = source_of(load(path, NO_CHUNKS), tokenizer)
  answer = {'gold': ['NOUN', None], 'prediction': ['NOUN', 'ADJ'], 'tokens': ['a b', ' ']}
  assert source.score([answer]) == {'token_accuracy': 1.0, 'macro_f1': 1.0}, 'unknown gold is none'


def test_a_tag_that_training_does_not_have_is_missed(tmp_path, tokenizer):
  path = columns(tmp_path / 'train', 'Ada/B-PER old/O')
  dev = columns(tmp_path / 'dev', 'Ada/B-PER Paris/B-LOC old/O')
  source, config = source_of(load(path, evaluation=dev), tokenizer)
  assert (source[0]['tags'] > 0).sum() == 2, 'it is not in the loss'
  # The best that one tag for all reaches: 1 of 3, since B-LOC counts and is always missed.
  assert source.baselines['token_accuracy'] == (pytest.approx(1 / 3), 'majority')
  (answer,) = source.answers(outputs_of(source, config))
  assert answer['gold'] == ['B-PER', 'B-LOC', 'O'] and answer['loss'] > 27
  best = source.score([dict(answer, prediction=['B-PER', 'O', 'O'])])
  assert best['token_accuracy'] == pytest.approx(2 / 3)
  assert (best['entity_precision'], best['entity_recall'], best['f1_LOC']) == (1.0, 0.5, 0.0)
  # In training data it is a fault.
  config.data.train, config.data.skip_damaged = str(dev), False
  with pytest.raises(InputError, match=r"dev:1: tag 'B-LOC' is not in the label set 'B-PER', 'O'"):
    source_of(config, tokenizer, 'train')
  config.data.skip_damaged = True
  columns(dev, 'Ada/B-PER Paris/B-LOC', 'old/O')
  assert len(source_of(config, tokenizer, 'train')[0].texts) == 1


def test_lines_for_conlleval_have_the_token_the_gold_tag_and_the_predicted_one():
  answer = {'tokens': ['New York', ' ', 'is'], 'prediction': ['B-LOC', 'O', 'I-X']}
  assert scores.conll_lines(answer) == 'New_York B-LOC\n_ O\nis I-X\n\n'
  answer['gold'] = ['O', 'B-X', None]
  assert scores.conll_lines(answer) == 'New_York O B-LOC\n_ B-X O\nis _ I-X\n\n'
