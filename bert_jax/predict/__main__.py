"""One line in, one line of JSON out.

    echo 'the [MASK] of the list' | python -m bert_jax.predict --model W --top-k 5
    python -m bert_jax.predict --model W2 --input reviews.txt --output labels.jsonl
    python -m bert_jax.predict --model minilm --task embed --input texts.txt --output texts.npy

--model is a run's workdir or a Hugging Face folder; --task what is asked, by default what the model
was trained for. A plain line is a text, or the fields of a record between tabs (a pair: text, tab,
second text; a question, tab, its context; context, question, choices). A line that begins with { is
a JSON object of the fields of the task, told in tasks/FAMILY/ask.py; an "id" in it comes back,
and what else is in it is left out and counted.

Every line gets its answer, in order and as soon as nothing more can be read at once. What cannot be
answered, such as an empty line, gets {"line": number from 1, "error": why} and its id; these are
counted, and --strict stops at the first. The exit status is 1 if no line has an answer. Texts that
are too long are read in windows, or cut and counted.
"""

import argparse
import codecs
import itertools
import json
import logging
import math
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
from bert_jax import hosts
from bert_jax.errors import InputError
from bert_jax.predict import export
from bert_jax.predict.model import PREDICTIONS, Model, known
from bert_jax.tasks.ask import check_top_k, is_id
from bert_jax.text import files

log = logging.getLogger('bert_jax')

CHUNK = 256  # lines that are answered together
WAIT = 0.02  # seconds without a new line after which those that are there are answered
# {argument: the tasks that look at it}, of those that not every task does.
OF_TASKS = {}
for _task, (_, _prediction) in PREDICTIONS.items():
  for _name in _prediction.ask.options:
    OF_TASKS.setdefault(_name, []).append(_task)


def parser():
  out = argparse.ArgumentParser(
    prog='python -m bert_jax.predict', allow_abbrev=False, description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )  # fmt: skip
  add = out.add_argument
  add('--model', required=True, help="a run's workdir, or a Hugging Face folder")
  add('--task', default='', help=f'{", ".join(PREDICTIONS)}; default: what it can do')
  add('--checkpoint', default='latest', help='of a run: latest, best or a step')
  add('--input', default='', help='file of lines; default: stdin')
  add('--output', default='-', help='file of JSON lines, or .npy for embed; - is stdout')
  add('--strict', action='store_true', help='stop at the first line that cannot be answered')
  add('--top-k', type=int, help='fill-mask, answer: candidates told; default: 5')
  add('--pooling', help="embed: mean or cls; default: the model's own, or mean")
  add('--no-normalize', action='store_const', const=True, help='embed: vectors as long as they are')
  add(
    '--dtype',
    default='',
    help="float32, or bfloat16 for TPUs and GPUs; default: the model's own, on a CPU float32",
  )
  add('--picture', help='attention: PNG to draw; -2, -3.. for further lines')
  add('--layer', type=int, help='attention: layer to draw, from 0; default: the last')
  add('--head', type=int, help='attention: head to draw, from 0; default: all')
  add('--export', default='', help='write the model of the task as StableHLO to this folder')
  add('--no-cache', action='store_true', help='do not keep what is compiled for the next time')
  return out


def main(argv=None):
  args = parser().parse_args(argv)
  with config_lib.command_line():
    hosts.refuse_several('bert_jax.predict')
    if args.task:
      check(args, args.task)
    writer, chunks = Writer(args), [] if args.export else chunks_of(args.input)
    if not args.no_cache:
      keep_compiled()
    model = Model(args.model, args.checkpoint, args.dtype)
    task = args.task or model.default_task
    check(args, task)
    if args.export:
      export.write(model, task, args.export)
      log.info('the program, its weights and its vocabulary are in %s', args.export)
      return
    ask = model.ask(task, **options(task, args))
    try:
      with writer.of(model.config.model.hidden_size):
        run(ask, chunks, writer, model.counts)
    except KeyboardInterrupt:
      kept = 'none of them is kept' if writer.vectors is not None else 'these are kept'
      raise KeyboardInterrupt(f'stopped after {writer.lines} answers; {kept}') from None
    for what, number in model.counts.items():
      log.warning('%s: %d', what, number)
    if writer.errors:
      message = '%d of %d lines have no answer; the first of them is %s'
      log.warning(message, writer.errors, writer.lines, writer.first)
      if writer.errors == writer.lines:
        sys.exit(1)


def check(args, task):
  """InputError for a task that there is not, and for arguments that it would not look at."""
  known(task)
  for name, tasks in OF_TASKS.items():
    if getattr(args, name) is not None and (args.export or task not in tasks):
      where = '--export' if args.export else f'--task {task}'
      raise InputError(
        f'--{name.replace("_", "-")} says nothing to {where}, only to {" and ".join(tasks)}; leave '
        'it out.'
      )
  if args.top_k is not None:
    check_top_k(args.top_k)
  if not args.picture and (args.layer, args.head) != (None, None):
    raise InputError('--layer and --head say what is drawn; add --picture FILE.png.')
  if args.output.endswith('.npy') and task != 'embed':
    raise InputError(f'--output {args.output}: only embed writes .npy; name a .jsonl.')
  if args.export and (args.input or args.output != '-' or args.strict):
    raise InputError('--export answers no lines; leave out --input, --output and --strict.')


def options(task, args):
  """Those of the arguments that are the task's own, if they are given."""
  own = {name: getattr(args, name) for name, tasks in OF_TASKS.items() if task in tasks}
  if own.pop('no_normalize', None):
    own['normalize'] = False
  return {name: value for name, value in own.items() if value is not None}


def chunks_of(path):
  """An iterator over lists of lines, in bytes, of a file or, without one, of stdin. InputError at
  once for a file that cannot be read."""
  if not path and sys.stdin is None:
    raise InputError('there is no stdin; name a file with --input.')
  if not path:
    return _without_mark(as_they_come(sys.stdin.buffer))
  lines = (raw for _, raw, _ in files.raw_lines(Path(path)))
  bar = iter(tqdm(lines, unit=' lines', disable=not sys.stderr.isatty()))
  chunks = _without_mark(iter(lambda: list(itertools.islice(bar, CHUNK)), []))
  return itertools.chain([next(chunks)], chunks)


def _without_mark(chunks):
  """Takes the byte order mark from the first line; InputError if it is that of UTF-16."""
  for i, chunk in enumerate(chunks):
    if not i:
      if chunk[0].startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError('the input is UTF-16; convert it first: iconv -f utf-16 -t utf-8.')
      chunk[0] = chunk[0].removeprefix(codecs.BOM_UTF8)
    yield chunk


def run(ask, chunks, writer, counts):
  """Answers the lines of chunks; counts those that are not valid UTF-8."""
  read = Counter()
  for chunk in chunks:
    for answer in answered(ask, [files.decode(raw, read) for raw in chunk], read):
      writer.write(answer)
    writer.flush()
  if number := read['invalid_utf8_lines']:
    counts['lines that are not valid UTF-8 (bad bytes became U+FFFD)'] += number


def answered(ask, lines, counts):
  """Yields (dict, None) or (its id, why there is no answer) of each line."""
  parsed = [_parsed(ask, line.rstrip('\r\n'), counts) for line in lines]
  found = iter(ask.replies([record for record, _, error in parsed if not error]))
  for _, own, error in parsed:
    answer, error = (None, error) if error else next(found)
    yield (own, error) if answer is None else (own | ask.shown(answer), None)


def _parsed(ask, line, counts):
  """(record, {"id": its own} or {}, '') of a line, or (None, the same, why there is none)."""
  own = {}
  try:
    if not line.strip():
      raise InputError('empty line')
    if '\0' in line:
      raise InputError('the line has a NUL byte; if this is UTF-16, convert it to UTF-8')
    if not line.lstrip().startswith('{'):
      parts = line.split('\t') if ask.tabs else (line,)
      return ask.parsed(parts), own, ''
    given = files.parse_json(line, 'what begins with {', counts)
    name = next((name for name in given if is_id(name)), None)
    value = given.get(name)
    if isinstance(value, (dict, list)) or (isinstance(value, float) and not math.isfinite(value)):
      raise InputError(f'{name!r} is no text or number; write "id": "a" or "id": 1')
    own = {'id': value} if name else {}
    return ask.parsed(given), own, ''
  except InputError as error:
    return None, own, str(error)


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
  """Where answers go: JSON lines, or one array of the vectors of all lines (.npy), NaN where a line
  has none.

  Nothing that is there already is touched until `with` begins. first: of the lines without an
  answer, and why.
  """

  def __init__(self, args):
    self.path, self.strict, self.lines, self.errors, self.first = args.output, args.strict, 0, 0, ''
    self.vectors = [] if args.output.endswith('.npy') else None
    if args.input and _is_same_file(args.input, args.output):
      raise InputError(f'--output {args.output} is --input too; name another file.')
    path = Path(args.output)
    nearest = path if path.exists() else path.parent
    if args.output != '-' and (path.is_dir() or not os.access(nearest, os.W_OK)):
      raise InputError(
        f'--output {path} cannot be written; name a file in a folder that is there and yours.'
      )

  def of(self, width):
    """Itself, for vectors of this width."""
    self.width = width
    return self

  def __enter__(self):
    sys.stdout.reconfigure(encoding='utf-8')
    to_file = self.path != '-' and self.vectors is None
    self.file = open(self.path, 'w', encoding='utf-8') if to_file else sys.stdout
    return self

  def __exit__(self, *failure):
    if self.file is not sys.stdout:
      self.file.close()
    if self.vectors is not None and not any(failure):
      np.save(self.path, np.array(self.vectors, np.float32).reshape(-1, self.width))

  def write(self, answer):
    found, error = answer
    self.lines += 1
    if error:
      self.errors += 1
      self.first = self.first or f'line {self.lines}: {error}'
      if self.strict:
        raise InputError(self.first)
      found = {'line': self.lines} | found | {'error': error}
    if self.vectors is not None:
      self.vectors.append(found.get('embedding', np.full(self.width, np.nan)))
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
