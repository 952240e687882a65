"""Second implementations of the formulas of models and optimizers: plain numpy, float64, loops."""

import functools
import math

import jax
import numpy as np
from scipy import special


def float64(tree):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), jax.device_get(tree))


def drawn(init, *arrays, seed=1):
  """Parameters as init(key, *arrays) makes them, but drawn by numpy, which compiles nothing; none
  is 0 or 1, as biases and scales of norms are at first."""
  rng = np.random.default_rng(seed)
  shapes = jax.eval_shape(lambda: init(jax.random.key(0), *arrays))
  draw = lambda path, x: rng.normal(path[-1].key == 'scale', 0.28, x.shape).astype(x.dtype)
  return jax.tree_util.tree_map_with_path(draw, shapes)


# ---- pieces of a layer ---------------------------------------------------------------------------


def dense(x, p):
  return x @ p['kernel'] + p.get('bias', 0)


def norm(config, x, p):
  """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang & Sennrich 2019)."""
  x = x - x.mean(-1, keepdims=True) * (config.norm == 'layer_norm')
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.layer_norm_eps)
  return x * p['scale'] + p.get('bias', 0)


log_softmax = functools.partial(special.log_softmax, axis=-1)
ACTIVATIONS = {
  'gelu': lambda x: x * 0.5 * (1 + special.erf(x / 2**0.5)),
  'gelu_tanh': lambda x: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
  'relu': lambda x: np.maximum(x, 0),
  'swish': lambda x: x * special.expit(x),
}


def sees(queries, keys, causal=False, window=0, places=()):
  """[B, Tq, Tk] bool, one question at a time. places: of the queries and of the keys."""
  out = np.zeros((*queries.shape, keys.shape[1]), bool)
  query_places, key_places = places or (range(out.shape[1]), range(out.shape[2]))
  for b, i, j in np.ndindex(*out.shape):
    back = query_places[i] - key_places[j]
    here = causal if isinstance(causal, bool) else causal[b]
    near = 0 <= back < window if here else -(window // 2) <= back <= window // 2
    out[b, i, j] = queries[b, i] == keys[b, j] > 0 and not (here and back < 0)
    out[b, i, j] &= near or window == 0
  return out


def attention(q, k, v, seen, bias=0.0):
  """softmax(q k' / sqrt(d) + bias) v over what is seen; 0 where nothing is. [B, Tq, H, d]"""
  scores = np.einsum('bqhd,bkhd->bhqk', q.astype(float), k) / q.shape[-1] ** 0.5 + bias
  weights = np.exp(scores - scores.max(-1, keepdims=True)) * seen[:, None]
  weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
  return np.einsum('bhqk,bkhd->bqhd', weights, v)


def attend(config, p, x, keys, seen, turn=lambda x: x, bias=0.0):
  """An attention layer of x [B, Tq, D] over keys [B, Tk, D]."""
  heads = lambda x, name: dense(x, p[name]).reshape(*x.shape[:2], config.num_attention_heads, -1)
  q, k, v = turn(heads(x, 'query')), turn(heads(keys, 'key')), heads(keys, 'value')
  return dense(attention(q, k, v, seen, bias).reshape(*x.shape[:2], -1), p['output'])


def feed_forward(config, p, x):
  act, y = ACTIVATIONS[config.hidden_act], dense(x, p['intermediate'])
  y = act(dense(x, p['gate'])) * y if config.feed_forward == 'glu' else act(y)
  return dense(y, p['output'])


# ---- positions -----------------------------------------------------------------------------------


def sinusoidal(positions, width):
  """Vaswani et al. 2017, 3.5."""
  angles = np.asarray(positions)[..., None] / 10000.0 ** (np.arange(width) // 2 * 2 / width)
  return np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles))


def rotary(x, positions, theta):
  """Su et al. 2021, as products of complex numbers. x [B, T, H, d]"""
  half = x.shape[-1] // 2
  turns = np.exp(1j * positions[..., None, None] * theta ** (-np.arange(half) / half))
  points = (x[..., :half] + 1j * x[..., half:]) * turns
  return np.concatenate([points.real, points.imag], axis=-1)


def slopes(heads):
  """Press et al. 2022: for no power of 2, also every other slope of the next power."""
  power = 2 ** int(math.log2(heads))
  first = [2 ** (-8 * (i + 1) / power) for i in range(power)]
  return first + (slopes(2 * power)[::2][: heads - power] if heads > power else [])


def bucket(distance, buckets, farthest):
  """Raffel et al. 2019, as in their code: the row of a distance, query minus key."""
  side, s = buckets // 2, abs(distance)
  near = side // 2
  if s >= near:
    share = math.log(s / near) / math.log(farthest / near)
    s = min(side - 1, near + int(share * (side - near)))
  return s + side * (distance < 0)


# ---- the encoder and its heads -------------------------------------------------------------------


def encoder(config, params, inputs, causal=False):
  """Hidden states [B, T, D] (Devlin et al. 2018; pre-LN: Xiong et al. 2020). params: of layers that
  are not stacked; inputs: arrays of ids by name."""
  x = embedded(config, params['embeddings'], inputs)
  return tower(config, params, config.num_hidden_layers, x, inputs, causal or config.causal)


def decoder(config, params, inputs, context):
  """The same of Vaswani et al. 2017. params: {'encoder', 'decoder': parameters}; context: (hidden
  states, segment ids) of the encoder."""
  words = {'word_embeddings': params['encoder']['embeddings']['word_embeddings']}
  x = embedded(config, params['decoder'].get('embeddings', {}) | words, inputs)
  count = config.num_decoder_layers or config.num_hidden_layers
  return tower(config, params['decoder'], count, x, inputs, True, context)


def embedded(config, tables, inputs):
  kind, E = config.position_embeddings, config.embedding_width
  x = tables['word_embeddings']['embedding'][inputs['input_ids']]
  x = x * (E**0.5 if config.embedding_scale else 1)
  if 'token_type_embeddings' in tables:
    x = x + tables['token_type_embeddings']['embedding'][inputs['token_type_ids']]
  if kind.startswith('learned'):
    x = x + tables['position_embeddings']['embedding'][inputs['position_ids']]
  if kind.endswith('sinusoidal'):
    scale = tables['position_embeddings']['scale'] if kind.startswith('scaled') else 1
    x = x + sinusoidal(inputs['position_ids'], E) * scale
  x = norm(config, x, tables['LayerNorm']) if config.embedding_norm else x
  return dense(x, tables['projection']) if config.embedding_size else x


def tower(config, params, count, x, inputs, causal, context=None):
  for i in range(count):
    p = params['layer_0' if config.share_layers else f'layer_{i}']
    ids = inputs['segment_ids'], inputs['position_ids']
    x = layer(config, p, x, *ids, i, causal, context, params.get('distances'))
  return norm(config, x, params['LayerNorm']) if config.norm_placement == 'pre' else x


def layer(config, p, x, segments, positions, i, causal, context=None, distances=None):
  every, kind, T = config.global_attention_every, config.position_embeddings, x.shape[1]
  is_local = config.attention_window and (not every or i % every)
  theta = is_local and config.local_rotary_theta or config.rotary_theta
  seen = sees(segments, segments, causal, is_local and config.attention_window)
  far = np.abs(np.subtract.outer(np.arange(T), np.arange(T)))
  bias = -np.multiply.outer(slopes(config.num_attention_heads), far) * (kind == 'alibi')
  turn = (lambda x: rotary(x, positions, theta)) if kind == 'rotary' else (lambda x: x)
  if kind.endswith('_bias'):  # added to scores, which in T5 are not divided
    sizes = config.distance_rows, config.max_relative_positions
    rows = [[bucket(q - k, *sizes) for k in range(T)] for q in range(T)]
    bias = np.moveaxis(distances['biases']['embedding'][rows], -1, 0)
    if kind == 'relative_bias':
      turn = lambda x: x * config.head_size**0.25
  pieces = {'attention': lambda x: attend(config, p['attention'], x, x, seen, turn, bias)}
  if context:
    keys, seen_keys = context[0], sees(segments, context[1])
    across = lambda x: attend(config, p['cross_attention'], x, keys, seen_keys)
    pieces['cross_attention'] = across
  pieces['output'] = lambda x: feed_forward(config, p, x)
  return residuals(config, p, pieces, x, bare=i == 0 and not config.first_norm)


def residuals(config, p, pieces, x, bare=False):
  """x after some sublayers, {name of the norm: function}. bare: the first one has no norm."""
  for number, (name, piece) in enumerate(pieces.items()):
    normed = lambda x, name=name: norm(config, x, p[f'{name}_LayerNorm'])
    if config.norm_placement == 'pre':
      x = x + piece(x if bare and number == 0 else normed(x))
    else:
      x = normed(x + piece(x))
  return x


def transformed(config, x, p, kind):
  """What pooler or MLM head make of x before a product: 'none', 'tanh', 'dense' or 'transform'."""
  if kind == 'none':
    return x
  x = dense(x, p['dense' if 'dense' in p else 'transform'])
  x = np.tanh(x) if kind == 'tanh' else ACTIVATIONS[config.hidden_act](x)
  return norm(config, x, p['LayerNorm']) if kind == 'transform' else x


# ---- mixers of one example, [T, D] -> [T, D] -----------------------------------------------------


def lstm(p, x):
  """torch's equations but for the order of gates: input, forget, output, candidate."""
  h, outputs = x.shape[-1] // 2, []
  for way, steps in enumerate((range(len(x)), range(len(x) - 1, -1, -1))):
    hidden, cell, out = np.zeros(h), np.zeros(h), np.zeros((len(x), h))
    for t in steps:
      gates = dense(x[t], p['input'])[way * 4 * h : (way + 1) * 4 * h]
      i, f, o, candidate = np.split(gates + hidden @ p['recurrent'][way], 4)
      i, f, o = special.expit((i, f + 1, o))
      cell = f * cell + i * np.tanh(candidate)
      out[t] = hidden = o * np.tanh(cell)
    outputs.append(out)
  return np.concatenate(outputs, axis=-1)


def conv(p, x):
  x, gate = np.split(dense(x, p['input']), 2, axis=-1)
  reach = len(p['taps']) // 2
  padded = np.pad(x * special.expit(gate), [(reach, reach), (0, 0)])
  return dense(sum(padded[n : n + len(x)] * tap for n, tap in enumerate(p['taps'])), p['output'])


def bag(p, x):
  return dense(np.broadcast_to(x.mean(0), x.shape), p['output'])


MIXERS = {'lstm': lstm, 'conv': conv, 'bag': bag}

# ---- optimizers: the parameter w after some gradients --------------------------------------------


def adam(w, gradients, lr, b1, b2, eps, decay, kind='adamw', decays=True):
  """AdamW (with kind bert_adamw not corrected for the start of its means), and on top of it
  StableAdamW (Wortsman et al. 2023, algorithm 2) or LAMB (You et al. 2020, algorithm 2)."""
  m = v = np.zeros_like(w)
  for t, g in enumerate(gradients, 1):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
    m_hat, v_hat = (m, v) if kind == 'bert_adamw' else (m / (1 - b1**t), v / (1 - b2**t))
    update, rate = m_hat / (np.sqrt(v_hat) + eps) + decay * w * decays, lr
    if kind == 'stable_adamw':
      rate = lr / max(1, np.sqrt(np.mean(g**2 / np.maximum(v_hat, eps**2))))
    if kind == 'lamb' and decays and w.any():
      update = update * np.linalg.norm(w) / np.linalg.norm(update)
    w = w - rate * update
  return w


def muon(w, gradients, lr, decay):
  """Jordan 2024, and 0.2 * sqrt(max(in, out)) of Liu et al. 2025: Nesterov's momentum, made near
  orthogonal by five steps of Newton and Schulz."""
  buffer = np.zeros_like(w)
  for t, g in enumerate(gradients, 1):
    buffer = 0.95 * buffer + 0.05 * g
    x = 0.95 * buffer / (1 - 0.95 ** (t + 1)) + 0.05 * g / (1 - 0.95**t)
    x = x / (np.linalg.norm(x) + 1e-8)
    for _ in range(5):
      a = x @ x.T
      x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    w = w - lr * (0.2 * np.sqrt(max(w.shape)) * x + decay * w)
  return w
