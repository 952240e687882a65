"""Intrinsic evaluations: losses by group, minimal pairs, linear probes, attention."""

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from test_report import workdir

from bert_jax import command_line, predict
from bert_jax.config import InputError
from bert_jax.tokenizers import wordpiece
from bert_jax.tools.probe import __main__ as probe
from bert_jax.tools.probe import data as probe_data
from bert_jax.tools.probe import layers as probe_layers
from bert_jax.tools.probe import pieces as probe_pieces
from bert_jax.workdir import contents

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
  path.write_text('\n'.join([*lines, '{"sentence_good": 3}', 'no json']) + '\n')
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


def test_what_is_cut_and_left_out_is_counted(model, conllu, tmp_path):
  counts = Counter()
  (tmp_path / 'text.txt').write_text('the river\n\nholds the old stone\n')
  specs = [f'en={conllu}'], [f'de={tmp_path}/text.txt']
  read = probe_data.read(model.tokenizer, *specs, 10, 5, counts)
  assert counts['sentences not used (--sentences)'] == 14
  assert [s.language for s in read] == ['en'] * 10 + ['de'] * 2
  assert all(len(s.ids) <= 5 for s in read) and not read[-1].tags
  assert counts['sentences cut (longer than 5 pieces)'] >= 10
  with pytest.raises(InputError, match='--conllu .* holds no sentences'):
    probe_data.read(model.tokenizer, [str(tmp_path / 'text.txt')], [], 0, 30, Counter())


def test_files_are_read_in_the_encoding_that_is_named(tmp_path):
  """Of so few letters none is recognised."""
  pair = json.dumps({'sentence_good': 'шаг', 'sentence_bad': 'гаш'}, ensure_ascii=False)
  row = '\t'.join(['1', 'шаг', '_', 'NOUN', *['_'] * 6])
  for name, text in (('a.txt', 'шаг\n'), ('a.conllu', f'{row}\n\n'), ('a.jsonl', pair)):
    (tmp_path / name).write_bytes(text.encode('cp1251'))
  read, given = probe_data.read, (0, 9, Counter(), 'cp1251')
  tokenizer = wordpiece.wordpiece_tokenizer(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'шаг'])
  for specs in ([f'{tmp_path}/a.conllu'], []), ([], [f'{tmp_path}/a.txt']):
    (sentence,) = read(tokenizer, *specs, *given)
    assert sentence.words == ('шаг',) and sentence.ids.tolist() == [5]
  ((good, bad, *_),) = probe_pieces.read_pairs([f'{tmp_path}/a.jsonl'], 0, Counter(), 'cp1251')
  assert (good, bad) == ('шаг', 'гаш')


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
  base = probe_pieces.baselines(sentences[:2], [], 200)
  twin = [sentences[0], sentences[0]]
  assert (probe_pieces.baselines(twin, [], 200)[0][0] > 0).all()
  only = set(sentences[0].ids.tolist()) - set(sentences[1].ids.tolist())
  pairs = zip(sentences[0].ids.tolist(), base[0][0])
  assert only and all((n == 0) == (i in only) for i, n in pairs)
  (counted, *_), _ = probe_pieces.baselines(sentences[:2], [sentences[5]], 200)
  assert counted.sum() == sum((sentences[5].ids == i).sum() for i in sentences[0].ids)


def test_losses_by_group_add_up(model, sentences):
  some = [s._replace(language='de' if i % 2 else 'en') for i, s in enumerate(sentences)]
  result = probe_pieces.losses(model, some, [], Counter())
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
  counts = Counter()
  read = probe_pieces.read_pairs([str(pairs)], 0, counts)
  assert len(read) == 6 and counts['lines that are no minimal pair (left out)'] == 2
  result = probe_pieces.minimal_pairs(model, read, Counter())
  sums = lambda texts: [x['log_probability'] for x, _ in model.ask('perplexity').replies(texts)]
  right = np.array(sums([p[0] for p in read])) > sums([p[1] for p in read])
  assert result['accuracy'] == result['by_uid']['order'] == right.mean() and result['pairs'] == 6
  by_term = {t: right[[p[3] == t for p in read]].mean() for t in {p[3] for p in read}}
  assert result['by_term'] == by_term
  turned = [(bad, good, *rest) for good, bad, *rest in read]
  assert probe_pieces.minimal_pairs(model, turned, Counter())['accuracy'] == 1 - right.mean()
  same = [(good, good, 'u', '') for good, *_ in read]
  result = probe_pieces.minimal_pairs(model, same, Counter())
  assert result['ties'] == 6 and result['accuracy'] == 0


def test_hidden_states_are_those_of_predict(model, sentences):
  states = list(probe_layers.hidden(model, sentences[:5]))
  for i, text in enumerate(SENTENCES[:5]):
    expected = model.states([text])[0].hidden[:, 1:-1]
    np.testing.assert_allclose(states[i], expected, atol=1e-5)


def test_a_long_probe_says_how_far_it_is_where_no_bar_is_seen(
  model, sentences, monkeypatch, caplog
):
  monkeypatch.setattr(probe_pieces, 'AT_ONCE', 2)
  some = sentences[:5]
  for every, least in ((0, 1), (1000, 0)):  # seconds between lines
    monkeypatch.setattr(command_line, 'EVERY', every)
    caplog.clear()
    with caplog.at_level('INFO', 'bert_jax'):
      list(probe_layers.hidden(model, some))
      probe_pieces.logs_of(model, [s.ids for s in some], Counter(), 'masked pieces')
      probe_layers.attention(model, some)
    for said in (
      'layers: 4 of 5 sentences, about 00:0',
      'masked pieces: 2 of 3 batches, about 00:0',
      'attention: 1 of 5 sentences, about 00:0',
    ):
      assert caplog.text.count(said) == least, caplog.text


def test_of_a_sweep_all_runs_are_probed(tmp_path, monkeypatch, capsys, caplog):
  """And means over its seeds are shown; of each run as it is asked for. What is left out of the
  sentences of all is said once."""
  for seed in range(4):
    workdir(tmp_path / f'seed={seed}', [(500, 'eval', {'mlm': 4.0})], f'seed={seed}', 'steps=500')
  asked = []

  def run(args):
    asked.append((args.model, [*args.text]))
    args.text[:] = ['changed']
    if args.model.endswith('3'):
      raise InputError('it has no checkpoint')
    loss = {'losses': {'all': {'loss': 2.5 + len(asked)}}}
    (Path(args.model) / 'probe').mkdir()
    (Path(args.model) / 'probe' / '500.json').write_text(json.dumps(loss))
    counts = {'sentences not used': 1200, 'unknown pieces': 7 if len(asked) == 1 else 0}
    return [{'counts': {k: n for k, n in counts.items() if n}}]

  monkeypatch.setattr(probe, 'run', run)
  probe.main(['--model', str(tmp_path), '--text', 'a.txt'])
  assert asked == [(str(tmp_path / f'seed={seed}'), ['a.txt']) for seed in range(4)]
  out, said = capsys.readouterr()
  said += caplog.text
  assert f'left out: {tmp_path}/seed=3: it has no checkpoint' in said
  assert said.count('1,200 sentences not used') == 1 and f'{tmp_path}/seed=0: 7 unknown' in said
  assert 'probe_loss' in out and '4.5000 ± 1.0000' in out


@pytest.mark.parametrize(
  'sound, sentence', [('0', 'seed=1 and 1 more: no file'), ('-', 'error: no file')]
)
def test_what_keeps_runs_of_a_sweep_from_being_probed_is_said_once(
  sound, sentence, tmp_path, monkeypatch, capsys, caplog
):
  for seed in range(3):
    workdir(tmp_path / f'seed={seed}', [(500, 'eval', {'mlm': 4.0})], f'seed={seed}', 'steps=500')

  def run(args):
    if not args.model.endswith(sound):
      raise InputError('no file')
    return [{'counts': {}}]

  monkeypatch.setattr(probe, 'run', run)
  code = 0
  try:
    probe.main(['--model', str(tmp_path), '--text', 'a.txt'])
  except SystemExit as end:
    code = end.code
  said = capsys.readouterr().err + caplog.text
  assert sentence in said and said.count('left out') == (code == 0) == (sound == '0'), said
  assert [f'{tmp_path}/seed={seed} ({seed + 1} of 3)' in said for seed in range(3)] == 3 * [True]


def test_a_linear_probe_reads_the_word_from_the_embeddings(model, sentences):
  counts = Counter()
  result = probe_layers.linear(model, sentences, 1000, counts)
  assert len(result['accuracy']) == len(result['control']) == 2  # the embeddings and a layer
  assert result['accuracy'][0] > 0.95  # here a word says its part of speech
  scored = [tag for i, s in enumerate(sentences) for tag in s.tags if i % 5 == 4]
  assert result['words_scored'] == len(scored) and result['of_the_word'] == 1
  assert result['majority'] == scored.count('NOUN') / len(scored)
  assert probe_layers.linear(model, sentences, 20, counts)['words_trained'] == 20
  assert counts['words not probed (--words)'] > 0
  assert probe_layers.linear(model, [s._replace(tags=()) for s in sentences], 9, counts) == {}


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


def test_all_checkpoints_are_probed_once(pretrained, conllu, pairs, tmp_path, capsys, monkeypatch):
  workdir = tmp_path / 'run'
  shutil.copytree(pretrained[0], workdir)
  given = f'--model {workdir} --conllu en={conllu} --pairs {pairs} --checkpoint all'
  arguments = [*given.split(), '--sentences', '10']
  probe.main(arguments)
  shown = capsys.readouterr().out
  assert (workdir / 'probe' / 'table.txt').read_text() == shown
  results = {n: json.loads((workdir / f'probe/{n}.json').read_text()) for n in (10, 20)}
  for n, result in results.items():
    assert result['step'] == n and not result['skipped'] and len(result['attention']) == 2
    assert result['counts']['lines that are no minimal pair (left out)'] == 2
    assert f'{n}    {result["losses"]["all"]["loss"]:.3f}' in shown
  assert results[10]['losses']['all']['loss'] > results[20]['losses']['all']['loss']
  for part in ('by pos', 'NOUN', 'by frequency', 'by language', 'majority', 'attends most to'):
    assert part in shown, part

  with monkeypatch.context() as patch:
    patch.delattr(predict, 'Model')  # so that no checkpoint can be probed again
    probe.main(arguments)
    assert capsys.readouterr().out == shown
    probe.main([*arguments, '--checkpoint', 'latest'])
    assert capsys.readouterr().out.splitlines()[1].startswith('20')
    with pytest.raises(AttributeError):  # other settings are another result
      probe.main([*arguments, '--words', '7'])
    # Another run's checkpoint of that step, too, is another result.
    (workdir / 'checkpoints/10/meta/metadata').touch()
    with pytest.raises(AttributeError):
      probe.main(arguments)
  # A checkpoint that cannot be read is left out and named; the others are probed.
  file = max((workdir / 'checkpoints/10/params').rglob('*'), key=lambda p: p.stat().st_size)
  file.write_bytes(b'damaged' * 9)
  probe.main([*arguments, '--words', '8'])
  assert capsys.readouterr().out.splitlines()[1].startswith('20')
  (aside,) = (workdir / 'probe').glob('20-*.json')  # what the first command found
  assert json.loads(aside.read_text()) == results[20]


def test_each_language_of_a_run_has_its_loss(pretrained, model, tmp_path, monkeypatch):
  """{language} in a spec stands for all languages of the run, not for the first."""
  long = ' '.join(SENTENCES[:5])  # of which the model reads 30 pieces, beside [CLS] and [SEP]
  for name, sentences in (('de', [SENTENCES[0], long]), ('en', SENTENCES[2:5])):
    (tmp_path / f'{name}.txt').write_text('\n'.join(sentences) + '\n')
  spec = str(tmp_path / '{language}.txt')
  config = contents.read_config(pretrained[0])
  command = ['--model', str(pretrained[0]), '--text', spec, '--only', 'losses']
  with config.unlocked():
    config.corpus.languages = ('en', 'de')
  monkeypatch.setattr(contents, 'read_config', lambda _: config)
  monkeypatch.setattr(predict, 'Model', lambda *_: model)
  probe.main([*command, '--out', str(tmp_path / 'out')])
  (path,) = (tmp_path / 'out').glob('*.json')
  result = json.loads(path.read_text())
  assert set(result['losses']['by_language']) == {'de', 'en'} and result['sentences'] == 5
  assert result['counts']['sentences cut (longer than 30 pieces)'] == 1


def test_what_is_asked_wrongly_is_a_sentence(pretrained, tmp_path, capsys):
  for arguments, sentence in (
    ([], 'there is nothing to probe with'),
    (['--text', 'x', '--only', 'syntax'], '--only syntax is not known'),
    (['--text', 'x', '--words', '0'], '--words is 0; use 1 or more'),
    (['--pairs', __file__], 'holds no minimal pair'),
    (['--text', '{language}.txt'], 'stands for languages, and this model names none'),
  ):
    with pytest.raises(SystemExit) as end:
      probe.main(['--model', str(pretrained[0]), *arguments])
    assert end.value.code == 2 and sentence in capsys.readouterr().err
