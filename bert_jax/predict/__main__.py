"""Answers lines of text with a trained model: one line in, one line of JSON out.

    echo 'the [MASK] of the list' | python -m bert_jax.predict --model W --top-k 5
    python -m bert_jax.predict --model W2 --input reviews.txt --output labels.jsonl
    python -m bert_jax.predict --model minilm --task embed --input texts.txt --output texts.npy
    echo 'The array is' | python -m bert_jax.predict --model W --task generate --max-tokens 20

--model is a run's workdir or a Hugging Face folder; --task what is asked, by default what the model
was trained for. A plain line is a text, or the fields of a record between tabs (a pair: text, tab,
second text; a question, tab, its context; context, question, choices). A line that begins with { is
a JSON object of the task's fields (bert_jax/predict/README.md has them); its "id" is repeated in
the answer, and fields that the task does not have are left out and counted. With --columns text, or
text,pair, a row of the table --input is asked in place of a line; from stdin or a pipe it is CSV.

Answers come in the order of the lines, as soon as no further line is there to be read. A line that
cannot be answered, such as an empty one, gets {"line": number from 1, "error": why} and its id;
these are counted, and --strict stops at the first. The exit status is 1 if no line has an answer.
Texts that are too long are read in windows, or cut and counted.
"""

import argparse
import contextlib
import io
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax import hosts
from bert_jax.buckets import Bucket
from bert_jax.command_line import command_line, command_parser
from bert_jax.copies import cache_folder
from bert_jax.errors import InputError, log, writing
from bert_jax.files import Path, write_npy
from bert_jax.predict import export, lines
from bert_jax.predict.model import PREDICTIONS, Model, check_known
from bert_jax.tasks.ask import Ask
from bert_jax.tasks.record import Option
from bert_jax.text import encodings, files, tables

# How the counts of tables.records and encodings.decode are worded.
FAULTS = {
  'invalid_utf8_lines': 'lines that are not valid UTF-8 (bad bytes became U+FFFD)',
  'blank_lines': 'blank lines of the table (no answer)',
}
# {option: {task: its Option}} for all tasks that have the option.
OPTIONS: dict[str, dict[str, Option]] = {}
for _task, _prediction in PREDICTIONS.items():
  for _name, _option in _prediction.options.items():
    OPTIONS.setdefault(_name, {})[_task] = _option


def parser() -> argparse.ArgumentParser:
  raw = argparse.RawDescriptionHelpFormatter
  out = command_parser('predict', __doc__, description=__doc__, formatter_class=raw)
  add = out.add_argument
  add('--model', required=True, help="a run's workdir, or a Hugging Face folder")
  add('--task', default='', help=f'{", ".join(PREDICTIONS)}; default: what it can do')
  add('--checkpoint', default='latest', help='of a run: latest, best or a step')
  add('--input', default='', help='file of lines; default, and -: stdin')
  table = '--input is a table (.csv, .parquet, ..; stdin and pipes: CSV): its column of texts'
  add('--columns', default='', help=f'{table}, or with commas one for each field of the task')
  add('--text-encoding', default='', help='of --input; default: as their letters tell')
  add('--output', default='-', help='file of JSON lines, or .npy of vectors; - is stdout')
  add('--strict', action='store_true', help='stop at the first line that cannot be answered')
  for name, of_tasks in OPTIONS.items():
    option = next(iter(of_tasks.values()))
    switch = {'action': 'store_const', 'const': not option.is_negated}
    how: Any = {bool: switch, tuple: {'action': 'append'}}.get(option.kind, {'type': option.kind})
    add(_flag(name, option), dest=name, help=_help(of_tasks), **how)
  add('--dtype', default='', help="float32 or bfloat16; default: the model's, on a CPU float32")
  add('--int8', action='store_true', help='with weights as they are in int8; so is --export then')
  add('--export', default='', help='write the model of the task as StableHLO to this folder')
  add('--no-cache', action='store_true', help='do not keep what is compiled for the next time')
  return out


def main(argv: Sequence[str] | None = None) -> None:
  args = parser().parse_args(argv)
  args.input = args.input if args.input != '-' else ''
  with command_line():
    hosts.refuse_several('bert_jax.predict')
    if args.task:
      check(args, args.task)
    columns = tuple(name.strip() for name in args.columns.split(',') if name.strip())
    check_output(args.input, args.output)
    faults = Counter()
    asked = args.input, columns, faults, args.text_encoding
    chunks = iter(()) if args.export else lines.chunks_of(*asked)
    if not args.no_cache:
      keep_compiled()
    model = Model(args.model, args.checkpoint, args.dtype, args.int8)
    task = args.task or model.default_task
    check(args, task)
    if args.export:
      export.write(model, task, args.export)
      log.info('the program, its weights and its vocabulary are in %s', args.export)
      return
    options = {name: getattr(args, name) for name in PREDICTIONS[task].options}
    ask = model.ask(task, **options)
    if columns:
      _check_columns(ask, columns, args.columns)
    else:
      lines.check_lines(args.input, ask)
      chunks = lines.watched(chunks, ask)
    width = model.objective.model.vector_size
    place = contextlib.nullcontext() if args.output == '-' else writing(args.output)
    with place, Writer(args.output, args.strict, PREDICTIONS[task].array, width) as writer:
      for chunk in chunks:
        for answer, error in answered(ask, chunk, faults):
          writer.write(answer, error)
        writer.file.flush()
    if args.output != '-':
      log.info('%d lines are in %s', writer.lines, args.output)
    if not writer.lines:
      log.warning('there is no line in %s: nothing is answered', args.input or 'stdin')
    counts = model.counts + Counter({what: faults[fault] for fault, what in FAULTS.items()})
    for what, number in counts.items():
      log.warning('%s: %d', what, number)
    if writer.errors:
      message = '%d of %d lines have no answer; the first of them is %s'
      log.warning(message, writer.errors, writer.lines, writer.first)
      if writer.errors == writer.lines:
        sys.exit(1)


def _flag(name: str, option: Option) -> str:
  return f'--{"no-" * option.is_negated}{name.replace("_", "-")}'


def _help(of_tasks: dict[str, Option]) -> str:
  """The help of an option that several tasks have; tasks with the same help are named together."""
  tasks = {}
  for task, option in of_tasks.items():
    tasks.setdefault(option.help, []).append(task)
  return '; '.join(f'{", ".join(names)}: {text}' for text, names in tasks.items())


def check(args: argparse.Namespace, task: str) -> None:
  """InputError for an unknown task, and for arguments that the task does not use."""
  check_known(task)
  for name, of_tasks in OPTIONS.items():
    if (value := getattr(args, name)) is None:
      continue
    flag = _flag(name, next(iter(of_tasks.values())))
    if args.export or task not in of_tasks:
      where, those = '--export' if args.export else f'--task {task}', ' and '.join(of_tasks)
      raise InputError(f'{flag} says nothing to {where}, only to {those}; leave it out.')
    option = of_tasks[task]
    option.check(name, value)
    if option.needs and not getattr(args, option.needs):
      raise InputError(f'{flag} says nothing without --{option.needs}; add it, or leave this out.')
  if args.output.endswith('.npy') and not PREDICTIONS[task].array:
    those = ' and '.join(name for name, x in PREDICTIONS.items() if x.array)
    raise InputError(f'--output {args.output}: only {those} writes .npy; name a .jsonl.')
  if args.export and (args.input or args.output != '-' or args.strict):
    raise InputError('--export answers no lines; leave out --input, --output and --strict.')


def check_output(source: str, output: str) -> None:
  """InputError if answers to the file `source` cannot be written to `output`."""
  is_bucket, both = isinstance(path := Path(output), Bucket), (source, output)
  if path.suffix in tables.SUFFIXES and path.suffix not in ('.jsonl', '.json'):
    advice = 'name a .jsonl (in Python, model.predict(df) gives a table)'
    raise InputError(f'--output {output}: answers are lines of JSON; {advice}.')
  on_disk = all(map(os.path.isfile, both)) and os.path.samefile(*both)
  if on_disk or (is_bucket and path == Path(source)):
    raise InputError(f'--output {output} is --input too; name another file.')
  nearest = path if path.exists() else path.parent
  if output != '-' and (path.is_dir() or not (is_bucket or os.access(nearest, os.W_OK))):
    advice = 'name a file in a folder that is there and yours'
    raise InputError(f'--output {path} cannot be written; {advice}.')
  if is_bucket:
    Bucket(path.parent).check_writable()


def _check_columns(ask: Ask, columns: tuple[str, ...], named: str) -> None:
  try:
    held = ask.from_parts(columns)
  except InputError:
    reads = f'this task reads {", ".join(ask.cells or ask.fields)}; name a column for each'
    raise InputError(f'--columns {named}: {reads}.') from None
  if len(held) > 1:
    said = (f'{x}: {y if isinstance(y, str) else ", ".join(y)}' for x, y in held.items())
    log.info('columns read as %s', '; '.join(said))


def answered(ask: Ask, chunk: Iterable[Any], faults: Counter) -> Iterator[tuple[dict, str]]:
  """Yields, for each line (in bytes) or row of a table, (answer, '') or ({"line": number of a row,
  "id": its id, if any}, why there is no answer). Lines that are not valid UTF-8 are counted."""
  chunk = list(chunk)
  parsed = [_parsed(ask, asked, faults) for asked in chunk]
  replies = ask.each([record for record, _ in parsed])
  for asked, (_, identity), (answer, error) in zip(chunk, parsed, replies):
    line = {'line': asked[0]} if isinstance(asked, tuple) else {}
    yield (line | identity, error) if answer is None else (identity | ask.shown(answer), '')


def _parsed(ask, asked, faults):
  """Parses a line or row: (record, or the InputError why it is none, {"id": ..} or {})."""
  identity = {}
  try:
    if isinstance(asked, tuple):
      _, row, cells = asked
      identity = ask.identity(row)
      if isinstance(cells, InputError):
        raise cells
      return ask.parsed(cells), identity
    line = encodings.decode(asked, faults).rstrip('\r\n')
    if not line.strip():
      raise InputError('empty line')
    if '\0' in line:
      raise InputError('the line has a NUL byte; if this is UTF-16, name it by --text-encoding')
    if not line.lstrip().startswith('{'):
      return ask.parsed(line.split('\t') if ask.tabs else (line,)), identity
    fields = files.parse_json(line, 'what begins with {', faults)
    identity = ask.identity(fields)
    value = identity.get('id')
    if isinstance(value, (dict, list)) or (isinstance(value, float) and not math.isfinite(value)):
      identity = {}
      raise InputError('\'id\' is no text or number; write "id": "a" or "id": 1')
    return ask.parsed(fields), identity
  except InputError as error:
    return error, identity


class Writer:
  """Writes answers as lines of JSON, or vectors (`array`, the key in an answer) as one .npy, with
  NaN for missing ones. first: the first line without an answer, and why."""

  def __init__(self, path: str, strict: bool, array: str, width: int):
    self.path, self.strict, self.array, self.width = path, strict, array, width
    self.lines, self.errors, self.first = 0, 0, ''
    self.vectors = [] if path.endswith('.npy') else None

  def __enter__(self) -> 'Writer':
    to_file = self.path != '-' and self.vectors is None
    if isinstance(sys.stdout, io.TextIOWrapper):
      sys.stdout.reconfigure(encoding='utf-8')
    self.file = Path(self.path).open('w', encoding='utf-8') if to_file else sys.stdout
    return self

  def __exit__(self, kind, error, trace) -> None:
    if self.file is not sys.stdout:
      self.file.close()
    if self.vectors is not None and not kind:
      write_npy(Path(self.path), np.array(self.vectors, np.float32).reshape(-1, self.width))
    if kind is KeyboardInterrupt:
      kept = 'none of them is kept' if self.vectors is not None else 'these are kept'
      raise KeyboardInterrupt(f'stopped after {self.lines} answers; {kept}') from None

  def write(self, answer: dict[str, Any], error: str) -> None:
    self.lines += 1
    if error:
      self.errors += 1
      answer = {'line': self.lines} | answer | {'error': error}
      self.first = self.first or f'line {answer["line"]}: {error}'
      if self.strict:
        raise InputError(self.first)
    if self.vectors is not None:
      self.vectors.append(answer.get(self.array, np.full(self.width, np.nan)))
    else:
      print(json.dumps(_rounded(answer), ensure_ascii=False), file=self.file)


def _rounded(value):
  """The JSON form of an answer: numbers with six digits, vectors with eight, the id unchanged."""
  if isinstance(value, dict):
    return {name: x if name == 'id' else _rounded(x) for name, x in value.items()}
  if isinstance(value, np.ndarray):
    return [round(x, 8) for x in value.tolist()]
  if isinstance(value, (list, tuple)):
    return [_rounded(x) for x in value]
  return round(value, 6) if isinstance(value, float) else value


def keep_compiled() -> None:
  """Lets JAX keep compiled programs in the user's cache folder, unless another one is set."""
  if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
    jax.config.update('jax_compilation_cache_dir', str(cache_folder()))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


if __name__ == '__main__':
  main()
