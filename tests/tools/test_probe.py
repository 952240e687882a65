"""Intrinsic evaluations: losses by group, minimal pairs, linear probes, attention."""

import json
import shutil
from collections import Counter

import numpy as np
import pytest

from bert_jax import predict
from bert_jax.tools.probe import __main__ as probe
from bert_jax.tools.probe import data as probe_data
from bert_jax.tools.probe import layers as probe_layers
from bert_jax.tools.probe import pieces as probe_pieces

WORDS = {'DET': 'the', 'ADP': 'near', 'VERB': 'holds meets', 'ADJ': 'old small', 'PUNCT': '.'}
WORDS['NOUN'] = 'number river market garden stone boat'
TAGS = {word: tag for tag, words in WORDS.items() for word in words.split()}
SENTENCES = [
  f'the {a} {verb} the {thing} near {a} .'
  for a in ('river', 'market', 'garden')
  for verb in ('holds', 'meets')
  for thing in ('old stone', 'small boat', 'stone', 'boat')
]


@pytest.fixture(scope='module')
def conllu(tmp_path_factory):
  """24 tagged sentences, as CoNLL-U."""
  row = lambda i, word: '\t'.join([str(i), word, word, TAGS[word], *['_'] * 6]) + '\n'
  sentence = lambda words: ''.join(row(i, word) for i, word in enumerate(words, 1))
  path = tmp_path_factory.mktemp('ud') / 'x.conllu'
  path.write_text('\n'.join(f'# a comment\n{sentence(text.split())}' for text in SENTENCES) + '\n')
  return path


@pytest.fixture(scope='module')
def pairs(tmp_path_factory):
  """Minimal pairs: a sentence of the corpus, and the same with its words turned around."""
  path, lines = tmp_path_factory.mktemp('blimp') / 'order.jsonl', []
  for text in SENTENCES[:6]:
    words = text.split()
    fields = {'sentence_good': text, 'sentence_bad': ' '.join(words[::-1]), 'UID': 'order'}
    lines.append(json.dumps(fields | {'linguistics_term': words[1]}))
  path.write_text('\n'.join(lines) + '\n')
  return path


@pytest.fixture(scope='module')
def model(pretrained):
  return predict.Model(pretrained[0])


@pytest.fixture(scope='module')
def sentences(model, conllu):
  return probe_data.read(model.tokenizer, [str(conllu)], [], 0, 30, Counter())


def test_a_sentence_knows_the_word_of_each_piece(model, sentences):
  assert len(sentences) == 24
  for text, sentence in zip(SENTENCES, sentences):
    assert sentence.words == tuple(text.split())
    assert sentence.tags == tuple(TAGS[word] for word in sentence.words)
    np.testing.assert_array_equal(sentence.ids, model.tokenizer.ids_batch([text])[0])
    for k, word in enumerate(sentence.words):
      own = sentence.ids[sentence.word_of == k]
      assert model.tokenizer.decode(own) == word
      assert sentence.first[k] == np.flatnonzero(sentence.word_of == k)[0]


def test_the_loss_of_pieces_is_that_of_perplexity(model, sentences):
  """Each piece masked alone, in whatever rows and batches it is asked."""
  logs = probe_pieces.logs_of(model, [s.ids for s in sentences], Counter(), '')
  expected = model.ask('perplexity').replies(SENTENCES)
  for x, (answer, _), sentence in zip(logs, expected, sentences):
    assert len(x) == len(sentence.ids) == answer['tokens']
    assert x.sum() == pytest.approx(answer['log_probability'], rel=1e-5)


def test_unigrams_and_bigrams_are_distributions():
  arrays = [np.array(x) for x in ([1, 2, 1, 3], [2, 2], [1])]
  counts = probe_pieces.Counts(arrays, 5)
  every = np.arange(5)
  assert np.exp(counts.unigram(every)).sum() == pytest.approx(1)
  np.testing.assert_allclose(np.exp(counts.unigram(np.array([1, 0]))), [4 / 12, 1 / 12])
  for before in (1, 2, 3, 4):  # after 3 nothing was seen, nor was 4
    after = [np.exp(counts.bigram(np.array([before, x]))[1]) for x in every]
    assert sum(after) == pytest.approx(1)
  # Of 2 kinds that follow 1, 2 and 3, each once: (1 + 2 * 4 / 12) / (2 + 2).
  assert np.exp(counts.bigram(np.array([1, 2]))[1]) == pytest.approx((1 + 2 * 4 / 12) / 4)
  # 1 begins two of three sentences, 2 one: (2 + 2 * 4 / 12) / (3 + 2).
  assert np.exp(counts.bigram(np.array([1]))[0]) == pytest.approx((2 + 2 * 4 / 12) / 5)


def test_no_sentence_counts_for_its_own_baseline(sentences):
  first, _ = probe_pieces.baselines(sentences[:2], 200)
  twins, _ = probe_pieces.baselines([sentences[0], sentences[0]], 200)
  assert (twins[0] > 0).all()
  ids = sentences[0].ids
  only = set(ids.tolist()) - set(sentences[1].ids.tolist())
  assert only and all((n == 0) == (i in only) for i, n in zip(ids.tolist(), first[0]))


def test_losses_by_group_add_up(model, sentences):
  some = [s._replace(language='de' if i % 2 else 'en') for i, s in enumerate(sentences)]
  result = probe_pieces.losses(model, some, Counter())
  every = result['all']
  assert every['pieces'] == sum(len(s.ids) for s in sentences)
  assert every['bigram'] < every['unigram']  # the words follow each other as in a grammar
  assert set(result['by_pos']) == set(TAGS.values()) and set(result['by_language']) == {'de', 'en'}
  for name in ('by_pos', 'by_frequency', 'by_language'):
    groups = result[name].values()
    assert sum(g['pieces'] for g in groups) == every['pieces']
    for column in ('loss', 'unigram', 'bigram'):
      total = sum(g['pieces'] * g[column] for g in groups)
      assert total == pytest.approx(every['pieces'] * every[column])
  dets = sum(word == 'the' for s in sentences for word in s.words)
  assert result['by_pos']['DET']['pieces'] == dets == 48


def test_minimal_pairs_are_judged_by_their_sums(model, pairs):
  read = probe_pieces.read_pairs([str(pairs)], 0, Counter())
  result = probe_pieces.minimal_pairs(model, read, Counter())
  sums = lambda texts: [x['log_probability'] for x, _ in model.ask('perplexity').replies(texts)]
  right = np.array(sums([p.good for p in read])) > sums([p.bad for p in read])
  assert result['accuracy'] == result['by_uid']['order']['accuracy'] == right.mean()
  assert result['pairs'] == 6 and result['ties'] == 0 and result['by_group'] == {}
  assert [item == 'good' for item in result['items'].chosen] == right.tolist()
  turned = [p._replace(good=p.bad, bad=p.good) for p in read]
  assert probe_pieces.minimal_pairs(model, turned, Counter())['accuracy'] == 1 - right.mean()
  same = [p._replace(bad=p.good) for p in read]
  result = probe_pieces.minimal_pairs(model, same, Counter())
  assert result['ties'] == 6 and (result['accuracy'], result['official']) == (0, 1)


def test_a_group_counts_each_paradigm_alike():
  """As BabyLM's board does; a tie is right there and wrong here."""
  uids = ['a', 'a', 'a', 'b', 'c']
  pairs = [
    probe_pieces.Pair('', '', uid, term='', field='syntax' * (uid != 'c'), group='blimp')
    for uid in uids
  ]
  sums = np.array([[-3, -4], [-5, -4], [-2, -1.5], [-7, -7], [-1, -3]])
  result = probe_pieces.judged(pairs, sums)
  assert result['accuracy'] == pytest.approx(2 / 5) and result['official'] == pytest.approx(3 / 5)
  assert result['by_group']['blimp']['accuracy'] == pytest.approx((1 / 3 + 0 + 1) / 3)
  assert result['by_group']['blimp']['official'] == pytest.approx((1 / 3 + 1 + 1) / 3)
  assert result['by_field'] == {'syntax': {'accuracy': 0.25, 'official': 0.5}}
  assert result['items'].chosen.tolist() == ['good', 'bad', 'bad', 'tie', 'good']


def test_within_words_a_piece_does_not_see_those_behind_it(model):
  """A word of several pieces is read from left to right; the other words are seen."""
  text = 'the garden meets a stonemarket .'
  (ids,) = model.tokenizer.ids_batch([text])
  starts = model.tokenizer.word_starts(ids, np.zeros(1, int))
  assert 0 < starts.sum() < len(ids)
  (logs,) = probe_pieces.logs_of(model, [ids], Counter(), '', within_words=True)
  word = np.cumsum(starts)
  logits_of = model.compiled(
    lambda params, row: model.mlm_logits(params, model.hidden(params, row))
  )
  for at in range(len(ids)):
    behind = (np.arange(len(ids)) >= at) & (word == word[at])
    masked = np.where(behind, model.tokenizer.mask_id, ids)
    tokens = np.array([[model.tokenizer.cls_id, *masked, model.tokenizer.sep_id]])
    batch = {'input_ids': tokens, 'segment_ids': np.ones_like(tokens)}
    batch['token_type_ids'] = np.zeros_like(tokens)
    batch['position_ids'] = np.arange(tokens.shape[1])[None]
    logits = np.asarray(logits_of(model.weights, batch), np.float64)[0, at + 1]
    expected = logits[ids[at]] - np.log(np.exp(logits).sum())
    assert logs[at] == pytest.approx(expected, abs=1e-4)


def test_hidden_states_are_those_of_predict(model, sentences):
  states = list(probe_layers.hidden(model, sentences[:5]))
  for i, text in enumerate(SENTENCES[:5]):
    expected = model.states([text])[0].hidden[:, 1:-1]
    np.testing.assert_allclose(states[i], expected, atol=1e-5)


def test_a_linear_probe_reads_the_word_from_the_embeddings(model, sentences, monkeypatch):
  result = probe_layers.linear(model, sentences)
  assert len(result['accuracy']) == len(result['control']) == 2  # the embeddings and a layer
  assert result['accuracy'][0] > 0.95  # here a word says its part of speech
  scored = [tag for i, s in enumerate(sentences) for tag in s.tags if i % 5 == 4]
  assert result['words_scored'] == len(scored) and result['of_the_word'] == 1
  assert result['majority'] == scored.count('NOUN') / len(scored)
  monkeypatch.setattr(probe_layers, 'WORDS', 20)
  few = probe_layers.linear(model, sentences)
  assert (few['words_trained'], few['words_scored']) == (20, 5)
  assert probe_layers.linear(model, [s._replace(tags=()) for s in sentences]) == {}


def test_a_probe_is_scored_on_words_that_it_was_not_trained_on():
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(40, 30)), rng.integers(0, 2, 40)
  assert probe_layers._accuracy(x, y, x, y) > 0.9  # learnt by heart
  other = rng.normal(size=(400, 30)), rng.integers(0, 2, 400)
  assert 0.4 < probe_layers._accuracy(x, y, *other) < 0.6


def test_where_a_head_looks():
  n = 6
  maps = np.zeros((1, 3, n, n))
  maps[0, 0, np.arange(1, n), np.arange(n - 1)] = 1  # the one before
  maps[0, 1, :, 0] = maps[0, 1, :, -1] = 0.5
  maps[0, 2] = 1 / n
  sums = probe_layers._patterns(maps) / (n - 2)
  # first, last, itself, before, after, entropy, distance
  np.testing.assert_allclose(sums[:, 0, 0], [0.25, 0, 0, 1, 0, 0, 1], atol=1e-12)
  near = [0.5, 0.5, 0, 0.125, 0.125, np.log(2), 2.5]
  np.testing.assert_allclose(sums[:, 0, 1], near, atol=1e-12)
  np.testing.assert_allclose(sums[:5, 0, 2], 1 / n)
  assert sums[5, 0, 2] == pytest.approx(np.log(n))


def test_the_means_of_heads_are_over_pieces_of_all_sentences(model, sentences):
  """Of the maps that predict gives; special pieces are no queries."""
  heads = probe_layers.attention(model, sentences[:5])
  maps = [states.attention[:, :, 1:-1] for states in model.states(SENTENCES[:5])]
  assert len({x.shape[2] for x in maps}) > 1
  pieces = sum(x.shape[2] for x in maps)
  for head in heads:
    own = [x[head['layer'], head['head']] for x in maps]
    assert head['first'] == pytest.approx(sum(x[:, 0].sum() for x in own) / pieces, rel=1e-4)
    assert head['before'] == pytest.approx(sum(np.trace(x) for x in own) / pieces, rel=1e-4)


def test_all_checkpoints_are_probed(pretrained, conllu, pairs, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(pretrained[0], workdir)
  given = f'--model {workdir} --conllu en={conllu} --pairs turned={pairs} --checkpoint all'
  probe.main([*given.split(), '--sentences', '10'])
  results = {n: json.loads((workdir / f'probe/{n}.json').read_text()) for n in (10, 20)}
  for n, result in results.items():
    assert result['step'] == n and not result['skipped'] and len(result['attention']) == 2
    choices = (workdir / f'probe/{n}-pairs.jsonl').read_text().splitlines()
    right = sum(json.loads(line)['chosen'] == 'good' for line in choices)
    assert result['pairs']['by_group']['turned']['accuracy'] == right / 6
  assert results[10]['losses']['all']['loss'] > results[20]['losses']['all']['loss']
  assert 'not probed' not in (workdir / 'probe/table.txt').read_text()


def test_each_language_has_its_loss(pretrained, tmp_path):
  long = ' '.join(SENTENCES[:5])  # of which the model reads 30 pieces, beside [CLS] and [SEP]
  command = ['--model', str(pretrained[0]), '--only', 'losses,pairs', '--out', str(tmp_path)]
  for name, sentences in (('de', [SENTENCES[0], long]), ('en', SENTENCES[2:5])):
    path = tmp_path / f'{name}.txt'
    path.write_text('\n'.join(sentences) + '\n')
    command += ['--text', f'{name}={path}']
  probe.main(command)
  result = json.loads((tmp_path / '20.json').read_text())
  assert set(result['losses']['by_language']) == {'de', 'en'} and result['sentences'] == 5
  assert result['counts']['sentences cut (longer than 30 pieces)'] == 1
  assert list(result['skipped']) == ['pairs']
