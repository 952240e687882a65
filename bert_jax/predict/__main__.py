"""One line in, one line of JSON out.

    echo 'the [MASK] of the list' | python -m bert_jax.predict --model W --top-k 5
    python -m bert_jax.predict --model W2 --input reviews.txt --output labels.jsonl
    python -m bert_jax.predict --model minilm --task embed --input texts.txt --output texts.npy

--model is a run's workdir or a Hugging Face folder; --task what is asked, by default what the model
was trained for. A plain line is a text, or the fields of a record between tabs (a pair: text, tab,
second text; a question, tab, its context; context, question, choices). A line that begins with { is
a JSON object of the fields of the task, told in heads.py and words.py; an "id" in it comes back.

Every line gets its answer, in order and as soon as nothing more can be read at once. What cannot be
answered, such as an empty line, gets {"line": number from 1, "error": why}; these are counted, and
--strict stops at the first. The exit status is 1 if no line has an answer. Texts that are too long
are read in windows, or cut and counted.
"""

import argparse
import codecs
import itertools
import json
import logging
import os
import queue
import sys
import threading
from collections import Counter
from pathlib import Path

import jax
import numpy as np
from tqdm import tqdm

from bert_jax import config as config_lib
from bert_jax.config import InputError
from bert_jax.data import files
from bert_jax.predict import export
from bert_jax.predict.model import ASKS, Model

log = logging.getLogger('bert_jax')

CHUNK = 256  # lines that are answered together
WAIT = 0.02  # seconds without a new line after which those that are there are answered


def parser():
  out = argparse.ArgumentParser(
    prog='python -m bert_jax.predict', allow_abbrev=False, description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )  # fmt: skip
  add = out.add_argument
  add('--model', required=True, help="a run's workdir, or a Hugging Face folder")
  add('--task', default='', help=f'{", ".join(ASKS)}; default: what it can do')
  add('--checkpoint', default='latest', help='of a run: latest, best or a step')
  add('--input', default='', help='file of lines; default: stdin')
  add('--output', default='-', help='file of JSON lines, or .npy for embed; - is stdout')
  add('--strict', action='store_true', help='stop at the first line that cannot be answered')
  add('--top-k', type=int, default=5, help='fill-mask, answer: candidates told')
  add('--pooling', default='', help="embed: mean or cls; default: the model's own, or mean")
  add('--no-normalize', action='store_true', help='embed: vectors as long as they are')
  add(
    '--dtype', default='', help="float32, or bfloat16 for TPUs and GPUs; default: the model's own"
  )
  add('--picture', default='', help='attention: PNG to draw; -2, -3.. for further lines')
  add('--layer', type=int, default=-1, help='attention: layer to draw, from 0; default: the last')
  add('--head', type=int, default=-1, help='attention: head to draw, from 0; default: all')
  add('--export', default='', help='write the model of the task as StableHLO to this folder')
  add('--no-cache', action='store_true', help='do not keep what is compiled for the next time')
  return out


def main(argv=None):
  args = parser().parse_args(argv)
  with config_lib.command_line():
    if args.top_k < 1:
      raise InputError(f'--top-k is {args.top_k}; ask for at least 1 candidate.')
    if not args.no_cache:
      keep_compiled()
    model = Model(args.model, args.checkpoint, args.dtype)
    task = args.task or model.default_task
    if args.export:
      export.write(model, task, args.export)
      log.info('the program, its weights and its vocabulary are in %s', args.export)
      return
    with Writer(args) as writer:
      run(model.ask(task, **options(task, args)), args, writer, model.counts)
    for what, number in model.counts.items():
      log.warning('%s: %d', what, number)
    if writer.errors:
      log.warning('%d of %d lines have no answer', writer.errors, writer.lines)
      if writer.errors == writer.lines:
        sys.exit(1)


def options(task, args):
  """Those of the arguments that are the task's own."""
  if task == 'attention':
    return dict(picture=args.picture, layer=args.layer, head=args.head)
  if task == 'embed':
    return dict(pooling=args.pooling, normalize=not args.no_normalize)
  return dict(top_k=args.top_k) if task in ('fill-mask', 'answer') else {}


def run(ask, args, writer, counts):
  """Answers the lines of --input or stdin; counts those that are not valid UTF-8."""
  if args.input:
    lines = (raw for _, raw, _ in files.raw_lines(Path(args.input)))
    bar = iter(tqdm(lines, unit=' lines', disable=not sys.stderr.isatty()))
    chunks = iter(lambda: list(itertools.islice(bar, CHUNK)), [])
  else:
    chunks = as_they_come(sys.stdin.buffer)
  read = Counter()
  for chunk in chunks:
    if not writer.lines:
      chunk[0] = chunk[0].removeprefix(codecs.BOM_UTF8)
    for answer in answered(ask, [files.decode(raw, read) for raw in chunk], read):
      writer.write(answer)
    writer.flush()
  if number := read['invalid_utf8_lines']:
    counts['lines that are not valid UTF-8 (bad bytes became U+FFFD)'] += number


def answered(ask, lines, counts):
  """[(dict, None) or (None, why not)] of each line."""
  parsed = [_parsed(ask, line.rstrip('\r\n'), counts) for line in lines]
  found = iter(ask.replies([record for record, _, error in parsed if not error]))
  for _, own, error in parsed:
    answer, error = (None, error) if error else next(found)
    yield (None, error) if answer is None else (own | ask.shown(answer), None)


def _parsed(ask, line, counts):
  """(record, {"id": its own} or {}, '') of a line, or (None, {}, why there is none)."""
  try:
    if not line.strip():
      raise InputError('empty line')
    if '\0' in line:
      raise InputError('the line has a NUL byte; if this is UTF-16, convert it to UTF-8')
    if not line.startswith('{'):
      parts = line.split('\t') if ask.tabs else (line,)
      return ask.parsed(parts), {}, ''
    given = files.parse_json(line, 'what begins with {', counts)
    if isinstance(given.get('id'), (dict, list)):
      raise InputError('\'id\' is no text or number; write "id": "a" or "id": 1')
    return ask.parsed(given), {'id': given['id']} if 'id' in given else {}, ''
  except InputError as error:
    return None, {}, str(error)


def as_they_come(stream):
  """Lists of the lines of a stream, in bytes: as many as are there, CHUNK at most."""
  lines = queue.Queue(4 * CHUNK)

  def read():
    for raw in stream:
      lines.put(raw)
    lines.put(None)

  threading.Thread(target=read, daemon=True).start()
  chunk = []
  while True:
    try:
      line = lines.get(timeout=WAIT) if chunk else lines.get()
    except queue.Empty:
      yield chunk
      chunk = []
      continue
    if line is not None:
      chunk.append(line)
    if chunk and (line is None or len(chunk) == CHUNK):
      yield chunk
      chunk = []
    if line is None:
      return


class Writer:
  """Where answers go: JSON lines, or one array of the vectors of all lines (.npy)."""

  def __init__(self, args):
    self.path, self.strict, self.lines, self.errors = args.output, args.strict, 0, 0
    self.vectors = [] if args.output.endswith('.npy') else None
    if args.input and _is_same_file(args.input, args.output):
      raise InputError(f'--output {args.output} is --input too; name another file.')
    if self.vectors is not None and args.task not in ('', 'embed'):
      raise InputError(f'--output {args.output}: only embed writes .npy; name a .jsonl.')

  def __enter__(self):
    try:
      to_file = self.path != '-' and self.vectors is None
      self.file = open(self.path, 'w', encoding='utf-8') if to_file else sys.stdout
    except OSError as error:
      raise InputError(f'--output {self.path} cannot be written ({error.strerror}).') from None
    return self

  def __exit__(self, *failure):
    if self.file is not sys.stdout:
      self.file.close()
    if self.vectors is not None and not any(failure):
      width = max(map(len, self.vectors), default=0)
      table = [x if len(x) else np.full(width, np.nan) for x in self.vectors]
      np.save(self.path, np.array(table, np.float32).reshape(len(table), width))

  def write(self, answer):
    found, error = answer
    self.lines += 1
    if error:
      self.errors += 1
      if self.strict:
        raise InputError(f'line {self.lines}: {error}')
      found = {'line': self.lines, 'error': error}
    if self.vectors is not None:
      if 'embedding' not in found and not error:
        raise InputError(f'--output {self.path}: only embed writes .npy; name a .jsonl.')
      self.vectors.append(found.get('embedding', ()))
    else:
      print(json.dumps(_rounded(found), ensure_ascii=False), file=self.file)

  def flush(self):
    self.file.flush()


def _is_same_file(a, b):
  try:
    return os.path.isfile(b) and os.path.samefile(a, b)
  except OSError:  # the first is not there, which its reader says
    return False


def _rounded(value):
  """JSON-ready: probabilities with six digits, vectors with eight; an id as it came."""
  if isinstance(value, dict):
    return {name: x if name == 'id' else _rounded(x) for name, x in value.items()}
  if isinstance(value, np.ndarray):
    return [round(x, 8) for x in value.tolist()]
  if isinstance(value, (list, tuple)):
    return [_rounded(x) for x in value]
  return round(value, 6) if isinstance(value, float) else value


def keep_compiled():
  """Lets JAX keep what it compiles in the user's cache, unless it was told where."""
  if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
    home = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    jax.config.update('jax_compilation_cache_dir', str(Path(home) / 'bert_jax'))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


if __name__ == '__main__':
  main()
