"""Pronouns: GAP and Winograd files read as published, scored as the official scorer does."""

import numpy as np
import published as p
import pytest

from bert_jax.errors import InputError
from bert_jax.tasks.coreference import reading, task
from bert_jax.tasks.coreference.gap_scores import gap_scores
from bert_jax.tasks.faulty_records import Problems

of_task = p.reader('coreference', reading.read)
NEAREST = 'offsets that are off (the nearest place taken)'


def read(path, split='train', task='gap', skip=False):
  return of_task(path, task, split, skip)


def spans(example):
  return [example.text[start:end] for start, end in example.spans]


def rows(letters, path, *fields):
  config = p.config_of('coreference', 'gap', path, *fields)
  return task.sources(config, letters, ('train',))['train']


# -- reading --------------------------------------------------------------------------------------


def test_gap_as_published(tmp_path):
  examples, problems = read(p.gap(tmp_path / 'a.tsv', p.ANN, p.EVE, p.HE))
  assert [example.gold for example in examples] == [0, 1, 2]
  assert spans(examples[0]) == ['she', 'Ann', 'Eve'] and spans(examples[2]) == ['him', 'Tom', 'Bob']
  assert (examples[1].where, examples[1].id) == ('a.tsv:3', 'g-2')
  assert problems.counts['examples'] == 3 and not problems.places


def test_a_test_set_without_answers_is_read_for_evaluation_only(tmp_path):
  keep = [i for i, name in enumerate(p.GAP) if not name.endswith('coref')]
  path = p.gap(tmp_path / 'a.tsv', [p.ANN[i] for i in keep], header=[p.GAP[i] for i in keep])
  blank = p.gap(tmp_path / 'b.tsv', ['' if x in ('TRUE', 'FALSE') else x for x in p.ANN])
  assert [read(spec, 'eval')[0][0].gold for spec in (path, blank)] == [None, None]
  half = p.gap(tmp_path / 'b.tsv', ['' if x == 'TRUE' else x for x in p.ANN])
  with pytest.raises(InputError, match="A-coref and B-coref are '' and 'false'"):
    read(half, 'eval')


def test_an_offset_that_is_off_takes_the_nearest_place_and_is_named(tmp_path):
  text = 'Annabel met Ann, and Ann met Eve when she left.'
  row = list(p.ANN)
  row[1:9] = text, 'she', text.index('she') - 1, 'Ann', 18, 'TRUE', 'Eve', text.index('Eve')
  (example,), problems = read(p.gap(tmp_path / 'a.tsv', row))
  assert example.spans[1] == (21, 24), 'the whole word at 21 is nearer than the one at 12'
  assert (problems.counts[NEAREST], problems.places[NEAREST]) == (2, ['a.tsv:2'])


def test_superglue_counts_words_and_is_forgiven_what_it_gets_wrong(tmp_path):
  """The kinds of faults of the published file: case, punctuation, a span that is not to the letter;
  word 5 of the third text is "it", which also stands at character 5."""
  path = p.jsonl(
    tmp_path / 'train.jsonl',
    p.wsc('Mark told Pete lies about himself.', ('mark', 0), ('himself', 5), True, 7),
    p.wsc('He said: "It was him."', ('He', 0), ('it', 2), False, 8),
    p.wsc('Visitors saw that it meant it.', ('Visitors', 0), ('it', 5), True, 9),
    p.wsc('Lev Kamenev and then Zinoviev ran.', ('Kamenev and Zinoviev', 1), ('ran', 5), True),
    p.wsc('Sue saw Al and she left.', ('Sue', 2), ('she', 4), False),
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
  assert problems.places[names] == ['train.jsonl:4'] and problems.places[NEAREST] == [
    'train.jsonl:5'
  ]


def test_cluewsc_counts_characters(tmp_path):
  """The example of its own documentation."""
  text = '这时候放在床上枕头旁边的手机响了，我感到奇怪，因为欠费已被停机两个月，现在它突然响了。'
  bed = p.wsc(text, ('床', 5), ('它', 37), 'false', 261)
  phone = p.wsc(text, ('手机', 12), ('它', 37), 'true', 262)
  config = p.config_of('coreference', 'wsc', p.jsonl(tmp_path / 'dev.json', bed, phone))
  config.task.format = 'cluewsc'
  examples = list(reading.read(config, 'train', Problems('train')))
  assert [(spans(e), e.gold) for e in examples] == [(['它', '床'], 1), (['它', '手机'], 0)]


# -- rows -----------------------------------------------------------------------------------------


def test_spans_point_at_their_tokens_in_the_row(tmp_path, letters):
  source = rows(letters, p.gap(tmp_path / 'a.tsv', p.ANN, p.EVE))
  row = source[0]
  assert len(source) == 1 and list(row['example_ids']) == [1, 2]
  pieces = np.array(letters.pieces)[row['input_ids']]
  for k in range(2):
    assert [pieces[first] for first, _ in row['spans'][k]] == ['she', 'ann', 'eve']
    assert all(first == last for first, last in row['spans'][k])
    assert set(row['segment_ids'][row['spans'][k].ravel()]) == {k + 1}
  assert list(row['labels']) == [0, 1] and list(row['weights']) == [1, 1]
  assert source.baselines['accuracy'] == (0.5, 'majority')
  assert source.baselines['cross_entropy'] == (pytest.approx(np.log(2)), 'entropy')  # A and B
  # A for both: one of two right, one too many, one missed.
  assert source.baselines['gap_f1'] == (50.0, 'majority')
  outputs = {'logits': np.eye(3)[[2, 1]][None], 'example_ids': row['example_ids'][None]}
  files = source.files(source.answers(outputs))
  assert files['gap.tsv'] == 'g-1\tFALSE\tFALSE\ng-2\tFALSE\tTRUE\n'


def test_the_context_of_the_spans_is_as_long_on_both_sides():
  spans = np.array([[4, 5], [9, 9], [13, 14]])
  starts = [task.start_of_context(20, spans, room) for room in (11, 13, 16, 19, 20, 25)]
  assert starts == [4, 3, 1, 0, 0, 0]
  assert task.start_of_context(17, spans, 16) == 1


def test_a_long_text_keeps_what_is_near_its_spans(tmp_path, letters):
  text = 'b ' * 30 + 'Ann c c c c c c she c c Eve ' + 'd ' * 30
  at = [text.index(name) for name in ('she', 'Ann', 'Eve')]
  row = ('x', text, 'she', at[0], 'Ann', at[1], 'TRUE', 'Eve', at[2], 'FALSE', 'u')
  path = p.gap(tmp_path / 'a.tsv', row)
  source = rows(letters, path, 'task.max_length=17')
  shown = letters.decode(source[0]['input_ids'][:17])
  assert shown == 'b b ann c c c c c c she c c eve d d', 'nothing between is lost'
  pieces = np.array(letters.pieces)[source[0]['input_ids']]
  assert list(pieces[source[0]['spans'][0, :, 0]]) == ['she', 'ann', 'eve']
  with pytest.raises(InputError, match='a.tsv:2: there are 11 tokens from name to name'):
    rows(letters, path, 'task.max_length=12')


# -- scores ---------------------------------------------------------------------------------------


def test_gap_scores_by_hand():
  """Feminine: A right, B for A: 1 true, 1 false positive, 1 false negative: F1 50. Masculine: B
  right, A for neither, neither for B: 1 true, 1 false positive, 1 false negative: 50 as well; with
  the neither that is right nothing changes. An id that comes again is not looked at."""
  said = (
    ('7', 'they', 'A', 'A'),
    ('1', 'she', 'A', 'A'),
    ('2', 'Her', 'A', 'B'),
    ('3', 'he', 'B', 'B'),
    ('4', 'His', 'neither', 'A'),
    ('5', 'him', 'B', 'neither'),
    ('6', 'him', 'neither', 'neither'),
    ('1', 'she', 'A', 'B'),
  )
  answers = [dict(zip(('id', 'pronoun', 'gold', 'prediction'), row)) for row in said]
  got = gap_scores(answers[1:])
  assert got == {'gap_f1': 50.0, 'gap_f1_masculine': 50.0, 'gap_f1_feminine': 50.0, 'gap_bias': 1.0}
  got = gap_scores(answers)
  assert got['gap_f1'] == pytest.approx(100 * 2 * 0.6 * 0.6 / 1.2) and got['gap_bias'] == 1.0
  got = gap_scores(answers[3:])
  assert got['gap_f1_feminine'] == 0.0 and np.isnan(got['gap_bias'])
