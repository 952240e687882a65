"""Search: the nearest lines of a file, their order, and the vectors that are kept beside it."""

import jax
import numpy as np
import pytest
from small_tables import sentence
from test_predict import loaded, refused
from test_predict_lines import command

from bert_jax.config import InputError
from bert_jax.convert.sentence_transformers import Vector
from bert_jax.predict import Model, nearest
from bert_jax.predict import __main__ as predict
from bert_jax.workdir import trained

LINES = [sentence(np.random.default_rng(i), 2, 7) for i in range(40)]


@pytest.fixture
def index(tmp_path):
  path = tmp_path / 'lines.txt'
  path.write_text('\n'.join(['', *LINES, ' ']) + '\n')
  return path


def by_hand(model, question, k):
  """[(number of a line, similarity)], nearest first. Line 1 is blank."""
  vectors, (own,) = model.embed(LINES), model.embed([question])
  similar = vectors @ own
  order = np.argsort(-similar, kind='stable')[:k]
  return [(int(i) + 2, float(similar[i])) for i in order]


def test_a_line_finds_itself_first_and_others_by_their_similarity(pretrained_model, index):
  model = pretrained_model
  model.counts.clear()
  for answer, line in zip(model.search(LINES, index, top_k=3), LINES):
    assert answer['text'] == line and len(answer['nearest']) == 3
    first = answer['nearest'][0]
    assert first['text'] == line and first['score'] == pytest.approx(1, abs=1e-5)
    assert first['line'] == LINES.index(line) + 2
  assert model.counts['blank lines of the index (left out)'] == 2
  (answer,) = model.search(['old new river'], index)
  found = [(x['line'], x['score']) for x in answer['nearest']]
  for (line, score), (expected, similar) in zip(found, by_hand(model, 'old new river', 5)):
    assert line == expected and score == pytest.approx(similar, abs=1e-5)
  assert len(model.search(['old'], index, top_k=1000)[0]['nearest']) == len(LINES)


def test_lines_are_read_in_the_encoding_that_is_named_and_bad_bytes_counted(
  pretrained_model, index, tmp_path
):
  (tmp_path / 'b.txt').write_text(index.read_text(), 'utf-16-le')
  given = ['--model', 'W', '--index', str(tmp_path / 'b.txt'), '--text-encoding', 'utf-16-le']
  args = predict.options('search', predict.parser().parse_args(given))
  assert pretrained_model.ask('search', **args).lines == [*enumerate(LINES, 2)]
  (tmp_path / 'b.txt').write_bytes(b'good\nold \xff\n\xfe river\n')
  pretrained_model.counts.clear()
  pretrained_model.search(['good'], tmp_path / 'b.txt')
  (what,) = [name for name in pretrained_model.counts if 'not UTF-8' in name]
  assert pretrained_model.counts[what] == 2


def test_equal_lines_come_in_their_order(pretrained_model, tmp_path):
  path = tmp_path / 'lines.txt'
  path.write_text('bad\ngood\nbad\ngood\ngood\n')
  (answer,) = pretrained_model.search(['good'], path, top_k=2)
  assert [x['line'] for x in answer['nearest']] == [2, 4]


def test_vectors_that_are_not_scaled_are_compared_by_their_product(pretrained_model, index):
  own = pretrained_model
  model = Model(trained.Trained(own.config, own.tokenizer, own.params, 0, Vector('mean', False)))
  (answer,) = model.search(['old river'], index, top_k=4)
  vectors, (question,) = (own.embed(x, normalize=False) for x in (LINES, ['old river']))
  expected = np.sort(vectors @ question)[::-1][:4]
  np.testing.assert_allclose([x['score'] for x in answer['nearest']], expected, rtol=1e-5)


def test_kept_vectors_are_those_of_texts_with_their_prompt(pretrained_model, index):
  own = pretrained_model
  for vector in (Vector('mean', True), Vector('mean', True, prompts={'q': 'river '}, prompt='q')):
    model = Model(trained.Trained(own.config, own.tokenizer, own.params, 0, vector))
    expected = model.search(LINES[:2], index, top_k=3)
    for _ in range(2):
      assert model.search(LINES[:2], index, top_k=3, keep_index=True) == expected


def test_the_command_keeps_vectors_and_uses_them(
  model_folder, index, tmp_path, monkeypatch, capsys
):
  arguments = ['--task', 'search', '--index', str(index), '--top-k', '2']
  kept = tmp_path / 'lines.txt.vectors.npz'

  def answers():
    loaded.cache_clear()  # with the index that a model has read
    return command(model_folder, tmp_path, b'old river\n{"text": "good", "id": 7}\n\n', *arguments)

  first = answers()
  assert first[1]['id'] == 7 and len(first[0]['nearest']) == 2 and 'empty line' in first[2]['error']
  assert not kept.exists()
  arguments.append('--keep-index')
  assert answers() == first and kept.exists()
  embedded = nearest.Search._embedded
  monkeypatch.setattr(nearest.Search, '_embedded', lambda self: pytest.fail('embedded again'))
  assert answers() == first
  monkeypatch.setattr(nearest.Search, '_embedded', embedded)
  capsys.readouterr()
  whole, written = kept.read_bytes(), kept.stat().st_mtime_ns
  kept.write_bytes(damaged := whole[: len(whole) // 2])
  assert answers() == first and kept.read_bytes() != damaged
  assert 'is of other lines, another model or version, or damaged' in capsys.readouterr().err
  index.write_text('\n'.join(['', *LINES[1:], LINES[0]]) + '\n')
  lines = lambda answer: {x['text']: x['line'] for x in answer['nearest']}
  assert lines(answers()[0]) == {text: line - 1 for text, line in lines(first[0]).items()}
  assert kept.stat().st_mtime_ns > written


def test_a_kept_file_with_any_bit_flipped_is_whole_or_none(tmp_path):
  kept, vectors = tmp_path / 'lines.txt.vectors.npz', np.arange(6, dtype=np.float32).reshape(3, 2)
  np.savez(kept, vectors=vectors, fingerprint='lines')
  whole = kept.read_bytes()
  directory = whole.index(b'PK\x01\x02')
  for byte in range(directory, len(whole)):
    for bit in (1, 32):
      kept.write_bytes(whole[:byte] + bytes([whole[byte] ^ bit]) + whole[byte + 1 :])
      if (read := nearest._read(kept, 'lines')) is not None:
        np.testing.assert_array_equal(read, vectors)
  with open(kept, 'wb') as out:
    np.save(out, vectors)
  assert nearest._read(kept, 'lines') is None
  for other in (b'', b'no zip'):
    kept.write_bytes(other)
    assert nearest._read(kept, 'lines') is None


def test_vectors_of_another_model_or_pooling_are_not_used(pretrained_model, index, caplog):
  own = pretrained_model
  own.search(['old'], index, keep_index=True)
  (answer,) = own.search(['old river'], index, keep_index=True, pooling='cls')
  assert 'made anew' in caplog.text
  vectors, (question,) = (own.embed(x, pooling='cls') for x in (LINES, ['old river']))
  assert answer['nearest'][0]['score'] == pytest.approx(float((vectors @ question).max()), abs=1e-5)
  params = jax.tree.map(np.array, own.params)
  params['encoder']['embeddings']['word_embeddings']['embedding'] *= np.float32(1.01)
  other = Model(trained.Trained(own.config, own.tokenizer, params, 0, Vector('cls', True)))
  caplog.clear()
  other.search(['old'], index, keep_index=True)
  assert 'made anew' in caplog.text


def test_what_is_wrong_with_a_search_is_one_sentence(
  pretrained_model, model_folder, tmp_path, capsys
):
  (tmp_path / 'blank.txt').write_text('\n \n')
  for index, said in (
    ('', 'search has nothing to search in; name a file of lines with --index FILE'),
    (tmp_path / 'blank.txt', 'holds blank lines only'),
    (tmp_path / 'none.txt', 'cannot be read'),
  ):
    with pytest.raises(InputError, match=said):
      pretrained_model.search(['old'], index)
  for arguments, said in (
    (['--task', 'search'], 'name a file of lines with --index'),
    (['--task', 'search', '--index', 'x', '--top-k', '0'], 'top_k is 0; use 1 or more'),
    (['--task', 'embed', '--index', 'x'], '--index says nothing to --task embed, only to search'),
  ):
    assert said in refused(capsys, model_folder, *arguments)
