"""Measures answers of a model: beside torch and ONNX Runtime, and in int8."""

import statistics
import tempfile
from pathlib import Path

import jax
import numpy as np
from bench import peers

from bert_jax import config as config_lib
from bert_jax import evaluate, models, tokenizers, train
from bert_jax.convert import from_huggingface
from bert_jax.errors import InputError
from bert_jax.predict import Model
from bert_jax.tasks import TASKS
from bert_jax.tasks.classification import reading
from bert_jax.tasks.faulty_records import Problems
from bert_jax.workdir import int8, trained

SENTENCE = 32  # tokens, where one sentence is asked for at a time
SHORTEST, LONGEST = 5, 128  # tokens of a sentence, where many are asked for at once
BATCH = 32  # sentences in a batch of Hugging Face's
ANSWERS = 30  # how often the one sentence is asked for in a run


def predict(args):
  """Yields results, of vectors of sentences from text to numpy by a BERT with random weights."""
  tokenizer = tokenizers.load_folder(from_huggingface.locate(peers.SOURCE))
  draws = np.random.default_rng(0)
  model, bag = (_random_model(args, arch, tokenizer, draws) for arch in ('', ',arch=bag'))
  student = _random_model(args, '', tokenizer, draws, model.config.model.num_hidden_layers // 2)
  one, many, lengths = _sentences(draws, tokenizer, args.sentences)
  with tempfile.TemporaryDirectory() as folder:
    theirs = peers.vectors(model.config.model, args.dtype, folder)
    small = with_random_weights(model.config, tokenizer, draws, in_int8=True)
    ours = {'bert_jax': model.embed, 'bert_jax, int8': small.embed}
    ours['half of the layers'] = student.embed
    sides = ours | {'bag of embeddings': bag.embed} | theirs
    median = lambda side: _median_ms(side, one)
    yield _line(f'one sentence of {SENTENCE} tokens, ms', sides, args.repeat, median)
    # torch.compile would compile for each length.
    theirs = {
      name: peers.in_batches(side, BATCH)
      for name, side in theirs.items()
      if name != 'torch.compile'
    }
    once = lambda side: peers.seconds(lambda: side(many))
    what = f'{len(many)} sentences of {lengths.mean():.0f} tokens on average, s'
    yield _line(what, ours | theirs, args.repeat, once)


def with_random_weights(config, tokenizer, draws, in_int8=False):
  """The Model of a config with weights drawn by a numpy generator."""
  objective = TASKS[config.objective].objective(config, tokenizer)
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  params = jax.tree.map(lambda x: 0.02 * draws.standard_normal(x.shape, np.float32), shapes)
  return Model(trained.Trained(config, tokenizer, params, 0), in_int8=in_int8)


def _random_model(args, arch, tokenizer, draws, layers=0):
  """The Model of random weights of configs/pretrain.py with this argument. layers: 0: all."""
  fields = [f'--config.model.dtype={args.dtype}']
  fields += [f'--config.model.num_hidden_layers={layers}'] * bool(layers)
  config = config_lib.load(f'configs/pretrain.py:size={args.size}{arch}', fields)
  return with_random_weights(config, tokenizer, draws)


def _median_ms(side, one):
  return 1000 * statistics.median(peers.seconds(lambda: side(one)) for _ in range(ANSWERS))


def _line(what, sides, repeat, measure):
  """The result {name: value} of sides in turn."""
  measured, line = peers.in_turn(sides, repeat, measure), {'what': what}
  for name, values in measured.items():
    line |= peers.spread(name, values)
  return line | peers.ratios(measured)


def _sentences(draws, tokenizer, number):
  """([one of SENTENCE tokens], many of mixed length, how many tokens these have)."""
  words = np.array([p for p in tokenizer.pieces if p.isascii() and p.isalpha()])
  sentence = lambda tokens: ' '.join(draws.choice(words, tokens - 2))
  lengths = np.clip(draws.lognormal(3.3, 0.7, number), SHORTEST, LONGEST).astype(int)
  return [sentence(SENTENCE)], [sentence(n) for n in lengths], lengths


def in_int8(args):
  """Yields results of a run with its weights in float32 and in int8: bytes, the metrics of an
  evaluation, and the time of sentences, in turn. Of a classifier of single texts, the sentences are
  classified, beside ONNX Runtime; else they become vectors. Without a run, SST-2 trains one."""
  if not (args.model or args.train):
    raise InputError('give --model, the workdir of a run, or --train, the train.tsv of SST-2.')
  with tempfile.TemporaryDirectory() as folder:
    workdir = args.model or _of_sst2(args, f'{folder}/W')
    overrides = [f'--config.data.eval={args.eval}'] if args.eval else []
    whole = trained.load(workdir)
    config = config_lib.override(whole.config, overrides)
    table = config.table if config.objective == 'classification' else None
    classifies = table and not (table.pair_column or table.regression or table.multi_label)
    sizes = {'bert_jax': 4 * models.count_parameters(whole.params)}
    sizes['bert_jax, int8'] = int8.size(int8.quantized(whole.params))
    ours = {name: Model(whole, in_int8=name.endswith('int8')) for name in sizes}
    sides = {name: x.classify if classifies else x.embed for name, x in ours.items()}
    scores, peer = {}, {}
    for name in sizes:
      scores[name], _ = evaluate.evaluate(
        workdir, overrides, out=f'{folder}/{name}', in_int8=name.endswith('int8')
      )
    if classifies and peers.installed('torch', 'transformers', *peers.ONNX):
      peer, of_peer = peers.classifiers(whole, Path(folder))
      sizes |= of_peer
      scores |= {name: _scores(side, config) for name, side in peer.items()}
    one, many, lengths = _sentences(np.random.default_rng(0), whole.tokenizer, args.sentences)
    median = lambda side: _median_ms(side, one)
    of_one = peers.in_turn(sides | peer, args.repeat, median)
    sides |= {name: peers.in_batches(side, BATCH) for name, side in peer.items()}
    of_many = peers.in_turn(sides, args.repeat, lambda side: peers.seconds(lambda: side(many)))
  for name, size in sizes.items():
    yield {
      'what': f'{name}: bytes, metrics, answers',
      'MB': round(size / 1e6, 2),
      'of float16': round(2 * size / sizes['bert_jax'], 4),
      **peers.spread(f'one sentence of {SENTENCE} tokens, ms', of_one[name]),
      **peers.spread(f'{len(many)} of {lengths.mean():.0f} tokens on average, s', of_many[name]),
      **{metric: round(value, 5) for metric, value in scores[name].items()},
    }
  yield {'what': 'int8, many sentences', **peers.ratios(of_many)}


def _of_sst2(args, workdir):
  """The workdir of the 6-layer model after a few steps of SST-2, evaluated on its dev.tsv."""
  given = [
    f'--config.data.train={args.train}',
    f'--config.steps={args.steps}',
    f'--config.data.eval={Path(args.train).with_name("dev.tsv")}',
    '--config.epochs=0.0',
    '--config.log.tensorboard=false',
  ]
  train.train(config_lib.load('configs/finetune.py:task=sst2,size=minilm', given), workdir)
  return workdir


def _scores(side, config):
  """The metric of a classifier: the share of the evaluation's texts that get their label."""
  examples = list(reading.read(config, 'eval', Problems('eval', config.data.skip_damaged)))
  answers = peers.in_batches(side, BATCH)([x.texts[0] for x in examples])
  labels = [label for batch in answers for label in batch]
  right = [x.label == label for x, label in zip(examples, labels, strict=True)]
  return {'classification_accuracy': float(np.mean(right))}
