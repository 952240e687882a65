"""A trained model as a function of text: one line in, one line of JSON out.

    echo 'the [MASK] of the list' | python -m bert_jax.predict --model W --top-k 5
    echo 'a gorgeous film' | python -m bert_jax.predict --model W2

What is asked of a model follows from what it was trained for: fill-mask or classify. The second
text of a pair stands behind a tab.
"""

import argparse
import itertools
import json
import logging
import sys
from collections import Counter
from pathlib import Path

import jax
import numpy as np

from bert_jax import checkpoint
from bert_jax import config as config_lib
from bert_jax.config import InputError
from bert_jax.data import corpus, files, tokenizers
from bert_jax.objectives import base
from bert_jax.tasks import TASKS, classification

log = logging.getLogger('bert_jax')

LENGTHS = (16, 32, 64, 128, 256, 512)  # rows are padded to one of these: a handful of compilations
ROWS = 32  # texts per batch


class Model:
  """The trained model of a workdir. Texts that are too long are cut, and `cut` counts them."""

  def __init__(self, workdir, which='latest'):
    self.config = checkpoint.read_config(workdir)
    self.tokenizer = tokenizers.load_folder(workdir)
    self.objective = TASKS[self.config.objective].objective(self.config, self.tokenizer)
    shapes = jax.eval_shape(self.objective.init, jax.random.key(0))
    self.params, self.step = checkpoint.load_params(workdir, shapes, which)
    limit = self.config.model.max_position_embeddings
    self.lengths = [n for n in LENGTHS if n < limit] + [limit]
    self.cut = 0
    self._logits = jax.jit(self.objective.logits)
    self._outputs = jax.jit(self.objective.predict)

  def fill_mask(self, texts, top_k=5):
    """For each text the candidates for each of its [MASK]s: [[(piece, probability), ...], ...]."""
    if self.config.objective != 'mlm_nsp':
      raise InputError(
        f'this model was trained for {self.config.objective!r} and has no masked-LM '
        'head; use a pre-trained one.'
      )
    ids = [self.tokenizer.encode_with_masks(text) for text in texts]
    batch = self._batch([(x,) for x in ids])
    is_mask = batch['input_ids'] == self.tokenizer.mask_id
    K = 2 ** int(np.ceil(np.log2(max(1, is_mask.sum(1).max()))))
    positions = np.argsort(~is_mask, axis=1, kind='stable')[:, :K].astype(np.int32)
    logits, _ = self._logits(
      self.params,
      batch
      | {'masked_positions': positions, 'cls_positions': np.zeros((len(positions), 1), np.int32)},
    )
    probabilities, pieces = jax.lax.top_k(
      jax.nn.softmax(logits), min(top_k, self.tokenizer.vocab_size)
    )
    return [
      [
        [
          (self.tokenizer.pieces[i], float(p))
          for i, p in zip(pieces[row, k], probabilities[row, k])
        ]
        for k in range(is_mask[row].sum())
      ]
      for row in range(len(texts))
    ]

  def classify(self, texts):
    """For each text or (text, second text): {label: probability}, or a float (regression)."""
    if self.config.objective != 'classification':
      raise InputError(
        f'this model was trained for {self.config.objective!r} and has no classifier; '
        'fine-tune it first (configs/finetune.py).'
      )
    pairs = [(t,) if isinstance(t, str) else tuple(t) for t in texts]
    wanted = 2 if self.config.task.pair_column else 1
    for parts in pairs:
      if len(parts) != wanted:
        raise InputError(
          f'this model reads {("single texts", "pairs")[wanted - 1]} and got '
          f'{len(parts)} in {parts[0][:40]!r}; a tab separates the two texts of a pair.'
        )
    flat = self.tokenizer.ids_batch(list(itertools.chain(*pairs)))
    rows = list(zip(*[iter(flat)] * wanted))
    batch = self._batch(rows)
    batch['cls_positions'] = np.zeros((len(batch['input_ids']), 1), np.int32)
    out = jax.device_get(self._outputs(self.params, batch))
    if self.objective.regression:
      return [float(x) for x in out['values'][: len(texts), 0]]
    return [
      dict(zip(self.objective.labels, map(float, p))) for p in out['probabilities'][: len(texts), 0]
    ]

  def _batch(self, rows):
    """Token arrays of each row -> a padded batch of one of a few shapes."""
    limit = self.lengths[-1]
    room = limit - 1 - max(map(len, rows))
    long = sum(sum(map(len, parts)) > room for parts in rows)
    self.cut += long
    rows = [classification.truncate(parts, room) for parts in rows]
    longest = max(sum(map(len, parts)) + len(parts) + 1 for parts in rows)
    length = next(n for n in self.lengths if n >= longest)
    out = [corpus.row(self.tokenizer, parts, length) for parts in rows]
    out += [out[0]] * ((ROWS if len(rows) > 1 else 1) - len(rows))
    return {name: np.stack([row[name] for row in out]) for name in base.row_spec(1, 1)}


def answers(model, lines, top_k):
  """One JSON-ready dict for each line of text; an empty line gives an error entry and goes on."""
  lines = iter(lines)
  while chunk := list(itertools.islice(lines, ROWS)):
    chunk = [line.rstrip('\r\n') for line in chunk]
    texts = [line for line in chunk if line.strip()]
    if model.config.objective == 'mlm_nsp':
      results = iter(model.fill_mask(texts, top_k) if texts else ())
    else:
      results = iter(model.classify([tuple(t.split('\t')) for t in texts]) if texts else ())
    for line in chunk:
      out = {'text': line}
      if not line.strip():
        out['error'] = 'empty line'
      elif model.config.objective == 'mlm_nsp':
        masks = next(results)
        out['masks'] = [[{'piece': p, 'probability': round(v, 6)} for p, v in m] for m in masks]
        if not masks:
          out['error'] = 'no [MASK] in the text'
      elif model.objective.regression:
        out['value'] = next(results)
      else:
        result = next(results)
        out['label'] = max(result, key=result.get)
        out['probability'] = round(result[out['label']], 6)
        out['probabilities'] = {k: round(v, 6) for k, v in result.items()}
      yield out


def main(argv=None):
  parser = argparse.ArgumentParser(
    prog='python -m bert_jax.predict',
    allow_abbrev=False,
    description='Reads a text a line (stdin or --input) and writes a line of JSON for each.',
  )
  parser.add_argument('--model', required=True, help='workdir of a run')
  parser.add_argument('--checkpoint', default='latest', help='latest, best or a step')
  parser.add_argument('--input', default='', help='file of texts; default: stdin')
  parser.add_argument('--top-k', type=int, default=5, help='fill-mask: candidates per [MASK]')
  args = parser.parse_args(argv)
  with config_lib.command_line():
    model = Model(args.model, args.checkpoint)
    lines = sys.stdin
    if args.input:
      lines = (line for _, line in files.lines(Path(args.input), Counter()))
    for answer in answers(model, lines, args.top_k):
      print(json.dumps(answer, ensure_ascii=False), flush=True)
    if model.cut:
      log.warning('%d texts were cut to %d tokens', model.cut, model.lengths[-1])


if __name__ == '__main__':
  main()
