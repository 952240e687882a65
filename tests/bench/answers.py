"""Measures answers of a model, vectors and texts, beside torch and ONNX Runtime."""

import statistics
import tempfile
import time

import jax
import numpy as np
from bench import peers

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.convert import from_huggingface
from bert_jax.predict import Model
from bert_jax.tasks import TASKS
from bert_jax.workdir import trained

SENTENCE = 32  # tokens, where one sentence is asked for at a time
SHORTEST, LONGEST = 5, 128  # tokens of a sentence, where many are asked for at once
BATCH = 32  # sentences in a batch of Hugging Face's
PROMPT = 32  # tokens
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
    median = lambda side: _median_ms(side, one)
    measured = peers.in_turn(sides, args.repeat, median)
    yield _line(f'one sentence of {SENTENCE} tokens, ms', measured)
    theirs.pop('torch.compile', None)  # it would compile for each length
    sides = ours | {name: peers.in_batches(side, BATCH) for name, side in theirs.items()}
    measured = peers.in_turn(sides, args.repeat, lambda side: peers.seconds(lambda: side(many)))
    yield _line(f'{len(many)} sentences of {lengths.mean():.0f} tokens on average, s', measured)


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


def _median_ms(side, one):
  return 1000 * statistics.median(peers.seconds(lambda: side(one)) for _ in range(ANSWERS))


def _line(what, measured):
  """The result {name: value} of what was measured in turn."""
  line = {'what': what}
  for name, values in measured.items():
    line |= peers.spread(name, values)
  return line | peers.ratios(measured)


def _words(tokenizer):
  return np.array([p for p in tokenizer.pieces if p.isascii() and p.isalpha()])


def _sentences(draws, tokenizer, number):
  """([one of SENTENCE tokens], many of mixed length, how many tokens these have)."""
  words = _words(tokenizer)
  sentence = lambda tokens: ' '.join(draws.choice(words, tokens - 2))
  lengths = np.clip(draws.lognormal(3.3, 0.7, number), SHORTEST, LONGEST).astype(int)
  return [sentence(SENTENCE)], [sentence(n) for n in lengths], lengths


def generate(args):
  """Yields results, of the likeliest tokens after one prompt and after many, by a GPT with random
  weights: from the text of the prompts to that of the answers; theirs from ids to ids."""
  dtype = f'--config.model.dtype={args.dtype}'
  config = config_lib.load(f'configs/causal_lm.py:size={args.size}', [dtype])
  tokenizer = tokenizers.load_folder(from_huggingface.locate(peers.SOURCE))
  draws = np.random.default_rng(0)
  model = with_random_weights(config, tokenizer, draws)
  theirs = None
  if peers.installed('torch', 'transformers'):
    theirs = _their_tokens(config.model, args.dtype, args.tokens)
  words = _words(tokenizer)
  for count in (1, args.prompts):
    prompts = [' '.join(draws.choice(words, PROMPT - 1)) for _ in range(count)]  # and [CLS]
    ids = np.stack([[*tokenizer.begin_ids, *x] for x in tokenizer.ids_batch(prompts)])

    def ours(prompts=prompts):
      return sum(x['tokens'] for x in model.generate(prompts, max_tokens=args.tokens))

    sides = {'bert_jax': ours}
    if theirs:
      sides['transformers'] = lambda ids=ids: theirs(ids).shape[0] * args.tokens
    measured = peers.in_turn(sides, args.repeat, _tokens_per_s)
    yield _line(f'{count} x {args.tokens} tokens after {PROMPT} each, tokens/s', measured)


def _tokens_per_s(side):
  started = time.perf_counter()
  return side() / (time.perf_counter() - started)


def _their_tokens(model, dtype, tokens):
  """ids [B, T] -> the ids that their GPT2LMHeadModel writes after them, always `tokens` of them: it
  has no end, so that they need not look for one."""
  import torch
  import transformers

  config = transformers.GPT2Config(
    vocab_size=model.vocab_size,
    n_positions=model.max_position_embeddings,
    n_embd=model.hidden_size,
    n_layer=model.num_hidden_layers,
    n_head=model.num_attention_heads,
    eos_token_id=None,
  )
  gpt = transformers.GPT2LMHeadModel(config).eval().to(getattr(torch, dtype))

  @torch.no_grad()
  def write(ids):
    ids = torch.tensor(ids)
    options = dict(max_new_tokens=tokens, do_sample=False, use_cache=True, pad_token_id=0)
    return gpt.generate(ids, attention_mask=torch.ones_like(ids), **options).numpy()

  return write
