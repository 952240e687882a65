"""Measures how fast a GPT writes, beside Hugging Face's with its cache; see bench/__main__.py."""

import time

import numpy as np
from bench import peers
from bench.answers import with_random_weights

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.convert import from_huggingface

PROMPT = 32  # tokens


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
  words = np.array([p for p in tokenizer.pieces if p.isascii() and p.isalpha()])
  for count in (1, args.prompts):
    prompts = [' '.join(draws.choice(words, PROMPT - 1)) for _ in range(count)]  # and [CLS]
    ids = np.stack([[*tokenizer.begin_ids, *x] for x in tokenizer.ids_batch(prompts)])

    def ours(prompts=prompts):
      return sum(x['tokens'] for x in model.generate(prompts, max_tokens=args.tokens))

    sides = {'bert_jax': ours}
    if theirs:
      sides['transformers'] = lambda ids=ids: theirs(ids).shape[0] * args.tokens
    measured = peers.in_turn(sides, args.repeat, _tokens_per_s)
    line = {'what': f'{count} x {args.tokens} tokens after {PROMPT} each, tokens/s'}
    for name, values in measured.items():
      line |= peers.spread(name, values)
    yield line | peers.ratios(measured)


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
    return gpt.generate(
      ids,
      attention_mask=torch.ones_like(ids),
      max_new_tokens=tokens,
      do_sample=False,
      use_cache=True,
      pad_token_id=0,
    ).numpy()

  return write
