"""Measures answers of a model: beside torch and ONNX Runtime, and in int8; see tools/bench.py."""

import statistics
import tempfile

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import evaluate, int8, models, tokenizers, trained
from bert_jax.convert import from_huggingface
from bert_jax.predict import Model
from bert_jax.tasks import TASKS
from bert_jax.tools import bench_peers as peers

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
    ours = {'bert_jax': model.embed, 'half of the layers': student.embed}
    sides = ours | {'bag of embeddings': bag.embed} | theirs
    again = lambda side: [peers.seconds(lambda: side(one)) for _ in range(ANSWERS)]
    median = lambda side: statistics.median(again(side))
    yield _line(f'one sentence of {SENTENCE} tokens, ms', sides, args.repeat, median, 1000)

    def in_batches(side):
      return lambda texts: [side(texts[i : i + BATCH]) for i in range(0, len(texts), BATCH)]

    # torch.compile would compile for each length.
    theirs = {name: in_batches(side) for name, side in theirs.items() if name != 'torch.compile'}
    once = lambda side: peers.seconds(lambda: side(many))
    what = f'{len(many)} sentences of {lengths.mean():.0f} tokens on average, s'
    yield _line(what, ours | theirs, args.repeat, once, 1)


def with_random_weights(config, tokenizer, draws):
  """The Model of a config with weights drawn by a numpy generator."""
  objective = TASKS[config.objective].objective(config, tokenizer)
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  params = jax.tree.map(lambda x: 0.02 * draws.standard_normal(x.shape, np.float32), shapes)
  return Model(trained.Trained(config, tokenizer, params, 0))


def _random_model(args, arch, tokenizer, draws, layers=0):
  """The Model of random weights of configs/pretrain.py with this argument. layers: 0: all."""
  fields = [f'--config.model.dtype={args.dtype}']
  fields += [f'--config.model.num_hidden_layers={layers}'] * bool(layers)
  config = config_lib.load(f'configs/pretrain.py:size={args.size}{arch}', fields)
  return with_random_weights(config, tokenizer, draws)


def _line(what, sides, repeat, measure, scale):
  """The result {name: value} of sides in turn; scale: 1 gives seconds, 1000 milliseconds."""
  medians = peers.in_turn(sides, repeat, measure)
  values = {name: float(f'{scale * value:.3g}') for name, value in medians.items()}
  return {'what': what, **values, **peers.ratios(medians)}


def _sentences(draws, tokenizer, number):
  """([one of SENTENCE tokens], many of mixed length, how many tokens these have)."""
  words = np.array([p for p in tokenizer.pieces if p.isascii() and p.isalpha()])
  sentence = lambda tokens: ' '.join(draws.choice(words, tokens - 2))
  lengths = np.clip(draws.lognormal(3.3, 0.7, number), SHORTEST, LONGEST).astype(int)
  return [sentence(SENTENCE)], [sentence(n) for n in lengths], lengths


def in_int8(args):
  """Yields results of a run with its weights in float32 and in int8: bytes, the metrics of an
  evaluation, and the time of vectors of sentences, in turn."""
  overrides = [f'--config.data.eval={args.eval}'] if args.eval else []
  whole = trained.load(args.model)
  sizes = {'float32': 4 * models.count_parameters(whole.params)}
  sizes['int8'] = int8.size(int8.quantized(whole.params))
  sides = {name: Model(whole, in_int8=name == 'int8') for name in sizes}
  draws = np.random.default_rng(0)
  one, many, lengths = _sentences(draws, whole.tokenizer, args.sentences)
  ask = lambda texts, repeats: peers.in_turn(
    {name: lambda x=x: x.embed(texts) for name, x in sides.items()}, args.repeat,
    lambda side: statistics.median(peers.seconds(side) for _ in range(repeats)),
  )  # fmt: skip
  of_one, of_many = ask(one, ANSWERS), ask(many, 1)
  for name, size in sizes.items():
    with tempfile.TemporaryDirectory() as out:
      results, _ = evaluate.evaluate(args.model, overrides, out=out, in_int8=name == 'int8')
    yield {
      'weights': name,
      'MB': round(size / 1e6, 2),
      'of float16': round(2 * size / sizes['float32'], 4),
      f'one sentence of {SENTENCE} tokens, ms': round(1000 * of_one[name], 2),
      f'{len(many)} of {lengths.mean():.0f} tokens on average, s': round(of_many[name], 2),
      **{metric: round(value, 5) for metric, value in results.items()},
    }
