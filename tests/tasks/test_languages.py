"""Several languages or corpora in one run: their shares, their losses, what was seen of each."""

import json

import pytest
from conftest import small_pretrain

from bert_jax import config as config_lib
from bert_jax.config import InputError
from bert_jax.tasks.pretraining import task
from bert_jax.text import documents
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.prepare.steps import Settings
from bert_jax.train import train


@pytest.fixture(scope='module')
def corpora(corpus_file, tmp_path_factory):
  """A vocabulary, one corpus of two languages, and one of each."""
  folder = tmp_path_factory.mktemp('languages')
  whole = corpus_file.read_text()
  words = sorted(set(whole.split()))
  (folder / 'vocab').mkdir()
  upper = [word[::-1] for word in words if word[::-1] not in words]
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words, *upper]
  (folder / 'vocab' / 'vocab.txt').write_text('\n'.join(pieces) + '\n')
  (folder / 'fw.txt').write_text(whole)
  backwards = [' '.join(w[::-1] for w in line.split()) for line in whole.splitlines()[:250]]
  (folder / 'bw.txt').write_text('\n'.join(backwards))
  for name, languages in (('both', ('fw', 'bw')), ('fw', ('fw',)), ('bw', ('bw',))):
    files = tuple((k, f) for k in languages for f in documents.sources(str(folder / f'{k}.txt')))
    prepare.prepare(Settings(files, str(folder / 'vocab')), folder / name)
  return folder


def run(train_data, workdir, *more):
  config = small_pretrain(train_data, '--config.steps=12', '--config.log.every=4', *more)
  return train(config, workdir)


def lines(workdir, split):
  found = map(json.loads, (workdir / 'metrics.jsonl').read_text().splitlines())
  return [line for line in found if line['split'] == split]


def test_losses_and_tokens_of_each_language(corpora, tmp_path):
  changes = ('--config.corpus.sampling=0.3', '--config.corpus.eval_share=0.3')
  _, results = run(corpora / 'both', tmp_path / 'W', *changes)
  config = json.loads((tmp_path / 'W' / 'config.json').read_text())
  assert config['corpus']['languages'] == ['fw', 'bw']
  assert {'mlm_fw', 'mlm_bw', 'mlm_fw_below_unigram', 'mlm_bw_below_unigram'} <= results.keys()
  low, high = sorted((results['mlm_fw'], results['mlm_bw']))
  assert low < results['mlm'] < high
  seen = lines(tmp_path / 'W', 'train')
  for line in seen:
    total = line['seen_tokens_fw'] + line['seen_tokens_bw']
    assert line['seen_tokens'] == total > 0
  assert seen[-1]['seen_tokens'] > seen[0]['seen_tokens']
  meta = json.loads((corpora / 'both' / 'corpus.json').read_text())['kept']
  sizes = {k: v['tokens'] for k, v in meta.items()}
  natural = sizes['bw'] / sum(sizes.values())
  ratio = (sizes['bw'] / sizes['fw']) ** 0.3
  expected = ratio / (1 + ratio)
  share = seen[-1]['seen_tokens_bw'] / seen[-1]['seen_tokens']
  assert abs(share - expected) < 0.08 < expected - natural


def test_a_language_too_small_to_evaluate_is_left_out_and_named(corpora, tmp_path, caplog):
  with caplog.at_level('WARNING', 'bert_jax'):  # of the second language one document is held out
    _, results = run(corpora / 'both', tmp_path / 'W', '--config.steps=1')
  assert 'too few documents to evaluate on bw' in caplog.text
  assert 'mlm_fw' in results and 'mlm_bw' not in results


def test_what_was_seen_survives_a_resume_between_log_lines(corpora, tmp_path):
  run(corpora / 'both', tmp_path / 'whole')
  run(corpora / 'both', tmp_path / 'parts', '--config.steps=6')
  (tmp_path / 'parts').rename(tmp_path / 'first')
  run(corpora / 'both', tmp_path / 'second', f'--config.resume_from={tmp_path / "first"}')
  whole, parts = (lines(tmp_path / n, 'train')[-1] for n in ('whole', 'second'))
  for name in ('seen_tokens', 'seen_tokens_fw', 'seen_tokens_bw'):
    assert whole[name] == parts[name]


def test_corpora_side_by_side_and_text_by_language_are_mixtures_too(corpora, tmp_path):
  both = f'new={corpora / "fw"},old={corpora / "bw"}'
  config = task.resolve(small_pretrain(both))
  assert config.corpus.languages == ('new/fw', 'old/bw')
  path = str(corpora / '{language}.txt')
  config = small_pretrain(
    path,
    f'--config.tokenizer.path={corpora / "vocab" / "vocab.txt"}',
    "--config.corpus.languages=['bw','fw']",
    "--config.corpus.weights=[('bw',3.0)]",
    '--config.corpus.eval_share=0.3',
  )
  config.model.vocab_size = len((corpora / 'vocab' / 'vocab.txt').read_text().splitlines())
  _, results = train(config, tmp_path / 'W')
  assert {'mlm_fw', 'mlm_bw'} <= results.keys()


def test_the_second_phase_continues_weights_and_schedule(corpora, tmp_path):
  first = config_lib.load('configs/pretrain.py:phase=128')
  second = config_lib.load('configs/pretrain.py:phase=512')
  assert (first.steps, second.steps) == (900_000, 1_000_000)
  assert round(first.steps * first.optimizer.horizon) == second.steps
  assert second.optimizer.horizon == 1
  assert (first.data.seq_length, second.data.seq_length) == (128, 512)
  one = run(
    corpora / 'fw',
    tmp_path / 'one',
    '--config.optimizer.horizon=1.5',
    '--config.steps=8',
  )[0]
  state, _ = run(
    corpora / 'fw',
    tmp_path / 'two',
    '--config.data.seq_length=64',
    '--config.masking.max_predictions_per_seq=10',
    f'--config.resume_from={tmp_path / "one"}',
  )
  assert int(one.step) == 8 and int(state.step) == 12
  assert [line['step'] for line in lines(tmp_path / 'two', 'train')] == [12]


@pytest.mark.parametrize(
  'changes, message',
  [
    (["--config.corpus.languages=['xx']"], "corpus.languages has 'xx', which is not in data.train"),
    (["--config.corpus.weights=[('xx',2.0)]"], "corpus.weights has 'xx', which is not among"),
    (['--config.masking.policy=entity'], 'prepare it again with --entities'),
    (['--config.corpus.segmenter=jieba'], 'corpus.segmenter=jieba needs marks that are made when'),
    (['--config.masking.policy=word'], "is not understood at 'word'; use one of token, whole_word"),
    (['--config.masking.policy=token,span@0'], 'does not begin at step 0 and go up'),
    (['--config.optimizer.horizon=0.5'], 'config.optimizer.horizon is 0.5, outside [1, inf)'),
  ],
)
def test_mistakes_are_one_sentence(corpora, changes, message):
  with pytest.raises(InputError) as error:
    task.resolve(small_pretrain(corpora / 'both', *changes))
  assert message in str(error.value) and '\n' not in str(error.value)


def test_a_policy_on_text_needs_its_lexicon(corpora):
  config = small_pretrain(corpora / 'fw.txt', '--config.masking.policy=token,entity@2')
  for check in (task.resolve, lambda config: task.sources(config, None)):
    with pytest.raises(InputError, match='masking.policy=entity needs corpus.entities, a lexicon'):
      check(config)


def test_evaluation_names_its_languages_as_training_does(corpora, tmp_path):
  with pytest.raises(InputError, match='data.eval has text without a language'):
    run(corpora / 'both', tmp_path / 'W', f'--config.data.eval={corpora / "fw.txt"}')


@pytest.mark.parametrize('policy', ['whole_word', 'span', 'token,whole_word@2'])
def test_policies_train(corpora, tmp_path, policy):
  _, results = run(
    corpora / 'fw', tmp_path / 'W', '--config.steps=4', f'--config.masking.policy={policy}'
  )
  assert results['mlm'] > 0


def test_entities_of_a_lexicon_train(corpora, tmp_path):
  pytest.importorskip('ahocorasick_rs')
  (tmp_path / 'entities.txt').write_text('small boat\nold stone\nred lamp\n')
  changes = (
    '--config.steps=4',
    f'--config.tokenizer.path={corpora / "vocab" / "vocab.txt"}',
    f'--config.corpus.entities={tmp_path / "entities.txt"}',
    '--config.masking.policy=token,entity@2',
  )
  config = small_pretrain(corpora / 'fw.txt', *changes)
  config.model.vocab_size = len((corpora / 'vocab' / 'vocab.txt').read_text().splitlines())
  _, results = train(config, tmp_path / 'W')
  assert results['mlm'] > 0
  (tmp_path / 'entities.txt').write_text('Timbuktu\n')
  with pytest.raises(InputError, match='no line of .*entities.txt occurs in the text'):
    train(config, tmp_path / 'W2')


def test_two_corpora_of_one_name_are_refused(corpora):
  both = f'a={corpora / "fw.txt"},a={corpora / "bw.txt"}'
  with pytest.raises(InputError, match="names 'a' twice"):
    task.resolve(small_pretrain(both))


def test_packed_and_sentence_order_rows_train(corpora, tmp_path):
  _, results = run(
    corpora / 'fw',
    tmp_path / 'W',
    '--config.steps=4',
    '--config.corpus.rows=sop',
    '--config.data.examples_per_row=3',
    '--config.corpus.short_seq_prob=0.9',
  )
  assert {'sop', 'sop_accuracy'} <= results.keys() and 'nsp' not in results
