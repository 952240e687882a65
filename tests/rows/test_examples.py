"""Packed rows of examples: what an example carries stays with it."""

import numpy as np
import pytest

from bert_jax.config import InputError
from bert_jax.rows.examples import Examples, by_example, tokens_of


def test_packed_examples_keep_their_values(tokenizer):
  """Every value of an example is found where the row says the example is."""
  rng = np.random.default_rng(0)
  texts = [(rng.integers(5, 15, rng.integers(1, 9)),) for _ in range(50)]
  lengths = [len(ids) + 2 for (ids,) in texts]
  labels = rng.integers(0, 9, 50)
  at = np.array([rng.integers(0, n) for n in lengths])
  tags = [rng.integers(1, 9, n) for n in lengths]
  carried = dict(per_example={'labels': labels}, positions={'at': at})
  carried |= dict(per_token={'tags': (tags, np.int32)})
  source = Examples(tokenizer, texts, seq_length=32, slots=5, **carried)
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
    assert ((groups > 0) == (ids > 0)).all()
    for group in set(groups) - {0}:
      own = ids[groups == group] - 1
      item = items[own[0]]
      assert list(own) == [e for e, x in enumerate(items) if x == item]
      assert (np.diff(np.flatnonzero(groups == group)) == 1).all()
  with pytest.raises(InputError, match='examples_per_row=4 at least'):
    Examples(tokenizer, texts, seq_length=32, slots=3, items=items)
  with pytest.raises(InputError, match='takes 16 tokens and a row has 15'):
    Examples(tokenizer, texts, seq_length=15, slots=4, items=items)


def test_a_row_never_holds_more_examples_than_its_slots(tokenizer):
  """Items of 3, 1, 1, 2, 1 and 1 examples of a token each, of which a row takes 4 at most."""
  items = np.repeat(np.arange(6), [3, 1, 1, 2, 1, 1])
  texts = [(np.full(1, 7, np.int32),) for _ in items]
  source = Examples(tokenizer, texts, seq_length=64, slots=4, items=items)
  seen = [e for i in range(len(source)) for e in source[i]['example_ids'] if e]
  assert sorted(seen) == list(range(1, 10))


def test_a_fingerprint_changes_with_whatever_an_example_carries(tokenizer):
  def fingerprint(token=7, label=1, at=2, tag=3, seq_length=16, item=1):
    texts = [(np.array([5, token], np.int32),), (np.array([6], np.int32),)]
    tags = [np.array([1, 2, 1, tag]), np.array([1, 1, 1])]
    carried = dict(per_example={'labels': np.array([0, label])}, items=[0, item])
    carried |= dict(positions={'at': np.array([1, at])}, per_token={'tags': (tags, np.int32)})
    return Examples(tokenizer, texts, seq_length=seq_length, slots=2, **carried).fingerprint

  changes = {'token': 8, 'label': 0, 'at': 1, 'tag': 2, 'seq_length': 17, 'item': 0}
  changed = {fingerprint(**{name: value}) for name, value in changes.items()}
  assert len({fingerprint(), *changed}) == 7 and fingerprint() == fingerprint()


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
