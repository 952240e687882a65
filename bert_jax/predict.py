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
from scipy.special import expit, softmax

from bert_jax import checkpoint, sharding
from bert_jax import config as config_lib
from bert_jax.config import InputError
from bert_jax.data import files, tokenizers
from bert_jax.data.rows import build_row
from bert_jax.objectives import base
from bert_jax.tasks import TASKS, classification

log = logging.getLogger('bert_jax')

LENGTHS = (16, 32, 64, 128, 256, 512)  # rows are padded to one of these: a handful of compilations
ROWS = 32  # texts per batch


class Model:
  """The trained model of a workdir. Texts that are too long are cut, and `cut` counts them."""

  def __init__(self, workdir, which='latest'):
    config_lib.show_log()
    self.config = checkpoint.read_config(workdir)
    self.tokenizer = tokenizers.load_folder(workdir)
    self.objective = TASKS[self.config.objective].objective(self.config, self.tokenizer)
    shapes = jax.eval_shape(self.objective.init, jax.random.key(0))
    shapes = sharding.placed(shapes, sharding.make_mesh(1, 1, 1, jax.local_devices()[:1]))
    self.params, self.step = checkpoint.load_params(workdir, shapes, which)
    limit = self.config.data.seq_length  # what it was trained on; evaluation cuts there too
    if self.config.objective != 'mlm_nsp':
      limit = self.config.task.max_length or limit
    self.lengths = [n for n in LENGTHS if n < limit] + [limit]
    self.cut = 0
    pairs = self.config.objective == 'classification' and self.config.table.pair_column
    self.texts_per_example = 2 if pairs else 1
    self._logits = jax.jit(self.objective.logits)
    self._outputs = jax.jit(self.objective.predict)

  def fill_mask(self, texts, top_k=5):
    """For each text the candidates for each of its [MASK]s: [[(piece, probability), ...], ...]."""
    tokenizers.checked(texts)
    if self.config.objective != 'mlm_nsp':
      raise InputError(
        f'this model was trained for {self.config.objective!r} and has no masked-LM '
        'head; use a pre-trained one.'
      )
    results = []
    for start in range(0, len(texts), ROWS):
      chunk = texts[start : start + ROWS]
      batch = self._batch([(self.tokenizer.encode_with_masks(text),) for text in chunk])
      is_mask = batch['input_ids'] == self.tokenizer.mask_id
      K = 2 ** int(np.ceil(np.log2(max(1, is_mask.sum(1).max()))))
      positions = np.argsort(~is_mask, axis=1, kind='stable')[:, :K].astype(np.int32)
      extra = {'masked_positions': positions, 'cls_positions': 0 * positions[:, :1]}
      logits, _ = self._logits(self.params, batch | extra)
      values, ids = jax.device_get(
        jax.lax.top_k(jax.nn.softmax(logits), min(top_k, self.tokenizer.vocab_size))
      )
      for row in range(len(chunk)):
        slots = range(is_mask[row].sum())
        name = self.tokenizer.pieces
        results.append([[(name[i], float(p)) for i, p in zip(ids[row, k], values[row, k])]
                        for k in slots])  # fmt: skip
    return results

  def classify(self, texts):
    """For each text or (text, second text): {label: probability}, or a float (regression)."""
    if self.config.objective != 'classification':
      raise InputError(
        f'this model was trained for {self.config.objective!r} and has no classifier; fine-tune '
        'one (configs/finetune.py), or let bert_jax.evaluate write what this one answers on a file.'
      )
    if isinstance(texts, str):
      raise InputError(
        'classify takes a list of texts, or of pairs, and got one text; put it in [].'
      )
    pairs = [(t,) if isinstance(t, str) else tuple(t) for t in texts]
    for parts in pairs:
      if len(parts) != self.texts_per_example:
        raise InputError(
          f'this model reads {("single texts", "pairs")[self.texts_per_example - 1]} and got '
          f'{len(parts)} in {parts[0][:40]!r}; a tab separates the two texts of a pair.'
        )
    ids = iter(self.tokenizer.ids_batch(list(itertools.chain(*pairs))))
    room, keep = self.lengths[-1] - 1 - self.texts_per_example, self.config.table.long_texts
    windows, text_of = [], []
    for k in range(len(pairs)):
      parts = tuple(itertools.islice(ids, self.texts_per_example))
      long = sum(map(len, parts)) > room
      own = classification.cut(parts, room, keep) if long else [parts]
      self.cut += long and keep != 'windows'
      windows += own
      text_of += [k] * len(own)
    total = np.zeros((len(pairs), max(1, len(self.objective.labels))))
    for start in range(0, len(windows), ROWS):
      chunk = windows[start : start + ROWS]
      batch = self._batch(chunk)
      zeros = np.zeros((len(batch['input_ids']), 1), np.int32)
      batch |= {'cls_positions': zeros, 'example_ids': zeros}
      out = jax.device_get(self._outputs(self.params, batch))
      np.add.at(total, text_of[start : start + ROWS], out['logits'][: len(chunk), 0])
    logits = total / np.bincount(text_of, minlength=len(pairs))[:, None]
    if self.objective.regression:
      return [float(x) for x in logits[:, 0]]
    shares = expit(logits) if self.objective.multi_label else softmax(logits, axis=-1)
    return [dict(zip(self.objective.labels, map(float, row))) for row in shares]

  def _batch(self, rows):
    """Token arrays of each row -> a padded batch of one of a few shapes."""
    limit = self.lengths[-1]
    room = limit - 1 - max(map(len, rows))
    long = sum(sum(map(len, parts)) > room for parts in rows)
    self.cut += long
    rows = [classification.truncate(parts, room) for parts in rows]
    longest = max(sum(map(len, parts)) + len(parts) + 1 for parts in rows)
    length = next(n for n in self.lengths if n >= longest)
    out = [build_row(self.tokenizer, [[(ids, 0) for ids in parts]], length) for parts in rows]
    out += [out[0]] * ((ROWS if len(rows) > 1 else 1) - len(rows))
    return {name: np.stack([row[name] for row in out]) for name in base.row_spec(1, 1)}


def answers(model, lines, top_k):
  """One JSON-ready dict for each line of text; a line that cannot be answered says why."""
  fill = model.config.objective == 'mlm_nsp'
  lines = iter(lines)
  while chunk := [line.rstrip('\r\n') for line in itertools.islice(lines, ROWS)]:
    parts = [tuple(line.split('\t')) if not fill else (line,) for line in chunk]
    wrong = [problem(model, line, p) for line, p in zip(chunk, parts)]
    good = [p for p, error in zip(parts, wrong) if not error]
    found = iter(model.fill_mask([p for (p,) in good], top_k) if fill else model.classify(good))
    for line, error in zip(chunk, wrong):
      if error:
        yield {'text': line, 'error': error}
        continue
      result = next(found)
      if fill:
        if len(result) < line.count('[MASK]'):
          yield {'text': line, 'error': f'a [MASK] lies beyond {model.lengths[-1]} tokens'}
          continue
        masks = [[{'piece': p, 'probability': round(v, 6)} for p, v in mask] for mask in result]
        yield {'text': line, 'masks': masks}
      elif model.objective.regression:
        yield {'text': line, 'value': result}
      elif model.objective.multi_label:
        labels = [name for name, share in result.items() if share > 0.5]
        shares = {name: round(value, 6) for name, value in result.items()}
        yield {'text': line, 'labels': labels, 'probabilities': shares}
      else:
        label = max(result, key=result.get)
        shares = {name: round(value, 6) for name, value in result.items()}
        yield {
          'text': line, 'label': label, 'probability': shares[label], 'probabilities': shares
        }  # fmt: skip


def problem(model, line, parts):
  """Why a line cannot be answered, or ''."""
  if not line.strip():
    return 'empty line'
  if model.config.objective == 'mlm_nsp':
    return '' if '[MASK]' in line else 'no [MASK] in the text'
  if len(parts) != model.texts_per_example:
    return f'{len(parts)} texts (split at tabs) where the model reads {model.texts_per_example}'
  return ''


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
    if args.top_k < 1:
      raise InputError(f'--top-k is {args.top_k}; ask for at least 1 candidate.')
    model = Model(args.model, args.checkpoint)
    sys.stdin.reconfigure(encoding='utf-8', errors='replace')
    lines = sys.stdin
    if args.input:
      lines = (line for _, line in files.lines(Path(args.input), Counter()))
    for answer in answers(model, lines, args.top_k):
      print(json.dumps(answer, ensure_ascii=False), flush=True)
    if model.cut:
      log.warning('%d texts were cut to %d tokens', model.cut, model.lengths[-1])


if __name__ == '__main__':
  main()
