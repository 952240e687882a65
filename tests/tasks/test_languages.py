"""Several languages or corpora in one run: their shares, their losses, what was seen of each."""

import jax
import numpy as np
import pytest
from conftest import small_overrides, small_pretrain
from running import begun, goes_on
from small_tables import fields

from bert_jax import config as config_lib
from bert_jax import metrics
from bert_jax.errors import InputError
from bert_jax.run.inputs import read_inputs
from bert_jax.tasks.pretraining import resolution, task
from bert_jax.text import documents
from bert_jax.tokenizers import run_tokenizer
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.prepare.steps import Settings

MIXED = 'corpus.sampling=0.3 corpus.eval_share=0.25'


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


def on_text(corpora, name, *more):
  """The config of a run on text under the vocabulary of the corpora."""
  vocab = corpora / 'vocab' / 'vocab.txt'
  size = len(vocab.read_text().splitlines())
  words = f'tokenizer.path={vocab} model.vocab_size={size}'
  return small_pretrain(corpora / name, *fields(words, *more))


@pytest.mark.parametrize('objective', ['mlm_nsp', 'language_model'])
def test_the_baselines_of_all_batches_are_the_baselines_of_the_split(corpora, tmp_path, objective):
  """Of each language, too. Batches count what they hold; the split counts pieces of the text."""
  spec = 'configs/pretrain.py:runlocal'
  more = fields('corpus.rows=full loss.nsp_weight=0', MIXED)
  if objective == 'language_model':
    spec, more = 'configs/causal_lm.py:runlocal', fields(MIXED)
  given = [*small_overrides(corpora / 'both'), *more]
  batches = read_inputs(config_lib.load(spec, given), tmp_path / 'W').eval_batches
  sums, term = {}, 'mlm' if objective == 'mlm_nsp' else 'lm'
  for k in range(len(batches)):
    each = [level(batches[k]) for level in batches.source.levels]
    sums = metrics.add(sums, {name: x for found in each for name, x in found.items()})
  values = metrics.values(sums, {})
  for name in (term, f'{term}_accuracy', f'{term}_fw', f'{term}_bw'):
    level = batches.source.baselines[name]
    assert values[name] == pytest.approx(level.value, rel=1e-5 if term == 'mlm' else 3e-3), name
  assert values[f'{term}_fw'] != pytest.approx(values[f'{term}_bw'], rel=1e-2)


def source_of(config, split):
  """What the training or the evaluation of a config reads."""
  config = resolution.resolve(config)
  tokenizer = run_tokenizer.load_or_train(config, None, lambda: resolution.texts(config))
  return task.sources(config, tokenizer, (split,))[split]


def test_corpora_side_by_side_and_text_by_language_are_mixtures_too(corpora):
  both = f'new={corpora / "fw"},old={corpora / "bw"}'
  config = resolution.resolve(small_pretrain(both))
  assert config.corpus.languages == ('new/fw', 'old/bw')
  given = "corpus.languages=['bw','fw'] corpus.sampling=0.3"
  source = source_of(on_text(corpora, '{language}.txt', f'{given} corpus.eval_share=0.3'), 'train')
  assert {'mlm_fw', 'mlm_bw'} <= source.baselines.keys()
  # Each language is seen in proportion to its tokens to the power of 0.3.
  assert sum(source.weights.values()) == pytest.approx(1)
  counts = {k: (source.weights[k] / len(part), part.totals) for k, part in source.parts.items()}
  often = {k: weight * x['tokens'] / x['text_tokens'] for k, (weight, x) in counts.items()}
  sizes = {k: part.totals['text_tokens'] for k, part in source.parts.items()}
  assert sizes['bw'] != sizes['fw']
  assert often['bw'] / often['fw'] == pytest.approx((sizes['bw'] / sizes['fw']) ** -0.7, rel=0.01)
  # An evaluation reads each row once.
  held_out = source_of(on_text(corpora, '{language}.txt', f'{given} corpus.eval_share=0.3'), 'eval')
  for name, part in held_out.parts.items():
    assert held_out.weights[name] == pytest.approx(len(part) / len(held_out), rel=0.1)


def test_the_second_phase_continues(corpora, tmp_path):
  longer = 'data.seq_length=64 steps=14 eval.every=0'
  begun(small_pretrain(corpora / 'both', *fields(MIXED)), tmp_path / 'one', 12)
  own = fields(MIXED, longer, f'resume_from={tmp_path}/one')
  config = small_pretrain(corpora / 'both', *own)
  inputs = goes_on(config, tmp_path / 'two')
  assert (inputs.start.meta['step'], inputs.steps) == (12, 14) and not inputs.in_workdir


@pytest.mark.parametrize(
  'data, more, message',
  [
    ('both', "corpus.languages=['xx']", 'corpus.languages'),
    ('both', 'masking.policy=entity', '--entities'),
    ('both', 'masking.policy=word', 'masking.policy'),
    ('fw.txt', 'masking.policy=token,entity@2', 'corpus.entities'),
    ('both', 'data.eval={}/fw.txt', 'data.eval'),
    ('fw.txt', 'data.train=a={0}/fw.txt,a={0}/bw.txt', 'data.train'),
  ],
)
def test_mistakes_are_one_sentence(corpora, data, more, message):
  with pytest.raises(InputError) as error:
    config = resolution.resolve(small_pretrain(corpora / data, *fields(more.format(corpora))))
    task.sources(config, run_tokenizer.load_or_train(config, None, None))
  assert message in str(error.value) and '\n' not in str(error.value)


def test_packed_rows_and_stages_of_policies_with_a_lexicon_can_be_trained_on(corpora, tmp_path):
  pytest.importorskip('ahocorasick_rs')
  lexicon = tmp_path / 'entities.txt'
  lexicon.write_text('small boat\nold stone\nred lamp\n')
  packed = 'corpus.rows=sop data.examples_per_row=3 corpus.short_seq_prob=0.9 steps=3'
  stages = f'corpus.entities={lexicon} masking.policy=whole_word,span@1,entity@2'
  config = on_text(corpora, 'fw.txt', packed, stages)
  inputs = read_inputs(config, tmp_path / 'W')
  assert {'sop', 'sop_accuracy'} <= {*inputs.objective.metrics} - {'nsp'}
  for source in inputs.sources.values():
    level, kind = source.baselines['sop_accuracy']
    assert kind == 'prior' and 0.5 <= level < 0.7
  batches, line = [inputs.batches[step] for step in range(3)], inputs.timeline
  batch = max(batches, key=lambda batch: int(batch['segment_ids'].max()))
  assert batch['segment_ids'].max() > 1

  @jax.jit
  def hidden(step):
    ids = inputs.objective.prepare(batch, jax.random.key(0), line.at(step))['input_ids']
    return ids == inputs.tokenizer.mask_id

  both = [inputs.tokenizer.pieces.index(word) for word in ('old', 'stone')]
  ids = np.asarray(batch['input_ids'])
  row, at = np.nonzero((ids[:, :-1] == both[0]) & (ids[:, 1:] == both[1]))
  masks = map(np.asarray, map(hidden, (0, 2)))
  assert [(mask[row, at] != mask[row, at + 1]).any() for mask in masks] == [True, False]
