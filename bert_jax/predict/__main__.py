"""Answers lines of text with a trained model: one line in, one line of JSON out.

    echo 'the [MASK] of the list' | python -m bert_jax.predict --model W --top-k 5
    python -m bert_jax.predict --model W2 --input reviews.csv --output labels.jsonl
    python -m bert_jax.predict --model minilm --task embed --input texts.txt --output vectors.jsonl
    echo 'The array is' | python -m bert_jax.predict --model W --task generate --max-tokens 20

--model is a run's workdir or a Hugging Face folder; --task what is asked, by default what the model
was trained for. A plain line is a text, or the fields of a record between tabs (a pair: text, tab,
second text; a question, tab, its context; context, question, choices). A line that begins with { is
a JSON object of the task's fields (bert_jax/predict/README.md has them). Of a table (.csv, .tsv,
.parquet, ..) each row is asked, by the columns called as in training or as the fields, or by those
of --columns text,pair. All fields and columns stand beside the answer, whose name is "prediction".

Answers come in the order of the lines, as soon as no further line is there to be read. A line that
cannot be answered, such as an empty one, gets {"line": number from 1, "error": why} and its fields;
these are counted. The exit status is 1 if no line has an answer. Texts that are too long are read
in windows, or cut and counted.
"""

import argparse
import contextlib
import io
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.command_line import CHECKPOINT, command_line, command_parser
from bert_jax.copies import keep_compiled
from bert_jax.errors import InputError, about, log, writing
from bert_jax.files import Path
from bert_jax.predict import export, lines
from bert_jax.predict.model import OF_ALL, Model
from bert_jax.tasks import TASKS
from bert_jax.tasks.ask import Ask, nothing_in
from bert_jax.text import files, record_sources, tables

# How the counts of text/tables.py and text/files.py are worded.
FAULTS = {
  'invalid_utf8_lines': 'lines that are not valid UTF-8 (bad bytes became U+FFFD)',
  'blank_lines': 'blank lines of the table (no answer)',
}
# Options that also work with --export.
OF_EXPORT = 'model', 'task', 'checkpoint', 'dtype', 'export'


def options() -> dict[str, tuple[list[str], Any]]:
  """{option: (the tasks that have it, its tasks.record.Option)}."""
  out = {}
  for predictions in [*(family.predictions for family in TASKS.values()), OF_ALL]:
    for task, prediction in predictions.items():
      for name, option in prediction.options.items():
        tasks, _ = out.setdefault(name, ([], option))
        if task not in tasks:
          tasks.append(task)
  return out


def parser() -> argparse.ArgumentParser:
  raw = argparse.RawDescriptionHelpFormatter
  out = command_parser('predict', __doc__, description=__doc__, formatter_class=raw)
  add = out.add_argument
  add('--model', required=True, help="a run's workdir, or a Hugging Face folder")
  add('--task', default='', help='what is asked; default: what the model was trained for')
  add('--checkpoint', default='', help=CHECKPOINT)
  add('--input', default='', help='file of lines, or a table; default, and -: stdin')
  add('--columns', default='', help='the columns of the table to ask, one for each field')
  add('--text-encoding', default='', help='of the file; default: UTF-8')
  add('--output', default='-', help='file of JSON lines; - is stdout')
  for name, (tasks, option) in options().items():
    flag, about = f'--{name.replace("_", "-")}', f'{", ".join(tasks)}: {option.help}'
    if option.kind is bool:
      add(flag, action=argparse.BooleanOptionalAction, help=about)
    else:
      add(flag, type=option.kind, help=about)
  add('--dtype', default='', help="float32 or bfloat16; default: the model's, on a CPU float32")
  add('--export', default='', help='write the model of the task as StableHLO to this folder')
  return out


def main(argv: Sequence[str] | None = None) -> None:
  command = parser()
  args = command.parse_args(argv)
  args.input = '' if args.input == '-' else args.input
  with command_line():
    check(args, command)
    faults = Counter()
    chunks = iter(()) if args.export else chunks_of(args, faults)
    keep_compiled()
    model = Model(args.model, args.checkpoint, args.dtype)
    task = args.task or model.default_task
    if args.export:
      export.write(model, task, args.export)
      log.info('the program, its weights and its vocabulary are in %s', args.export)
      return
    ask = model.ask(task, **{name: getattr(args, name) for name in options()})
    columns = names_in(args.columns)
    if columns:
      with about(f'--columns {args.columns}'):
        ask.from_parts(columns)
    count, unanswered = 0, []
    with output(args.output) as file:
      for chunk in chunks:
        for answer in answered(ask, chunk, columns, faults):
          count += 1
          if 'error' in answer:
            unanswered.append(answer)
          print(json.dumps(answer, ensure_ascii=False, default=tables.text_of), file=file)
        file.flush()
    if args.output != '-':
      log.info('%d lines are in %s', count, args.output)
    tell(model, count, unanswered, faults, args.input)


def tell(model: Model, count: int, unanswered: list, faults: Counter, source: str) -> None:
  """Logs what happened to the lines; the exit status is 1 if none has an answer."""
  if not count:
    log.warning('there is no line in %s: nothing is answered', source or 'stdin')
  model.log_counts(Counter())
  for fault, what in FAULTS.items():
    if faults[fault]:
      log.warning('%s: %d', what, faults[fault])
  if unanswered:
    log.warning(
      f'{len(unanswered)} of {count} lines have no answer; the first of them is '
      f'line {unanswered[0]["line"]}: {unanswered[0]["error"]}'
    )
    if len(unanswered) == count:
      sys.exit(1)


def names_in(columns: str) -> list[str]:
  return [name.strip() for name in columns.split(',') if name.strip()]


def check(args: argparse.Namespace, command: argparse.ArgumentParser) -> None:
  """InputError for arguments that say nothing, or that would overwrite the input."""
  for name, value in vars(args).items():
    if args.export and name not in OF_EXPORT and value != command.get_default(name):
      flag = name.replace('_', '-')
      raise InputError(f'--export answers no lines; leave out --{flag}.')
  if (args.columns or args.text_encoding) and not args.input:
    raise InputError('--columns and --text-encoding are for a file; name it by --input.')
  if args.text_encoding and record_sources.has_records(args.input):
    raise InputError(f'--text-encoding is for files of text, and {args.input} is none; leave it.')
  if lines.is_table(args.output):
    raise InputError(f'--output {args.output}: answers are lines of JSON; call it .jsonl.')
  is_there = os.path.isfile(args.input) and os.path.isfile(args.output)
  if is_there and os.path.samefile(args.input, args.output):
    raise InputError(f'--output {args.output} is --input too; name another file.')


def chunks_of(args: argparse.Namespace, faults: Counter) -> lines.Chunks:
  """The chunks of the input; InputError if it cannot be read, before the model is."""
  if not args.input:
    return lines.of_stdin(faults)
  is_table = args.columns or lines.is_table(args.input)
  read = lines.of_table if is_table else lines.of_file
  chunks = read(args.input, args.text_encoding, faults)
  first = next(chunks, [])
  rows = [value for _, value in first if isinstance(value, tables.Row)]
  for name in names_in(args.columns) if rows else ():
    tables.column(rows[0], name, args.input)  # that it lacks is a mistake of the command
  return itertools.chain([first], chunks)


@contextlib.contextmanager
def output(path: str) -> Iterator[Any]:
  """The file of the answers, stdout if its path is -."""
  if path == '-':
    if isinstance(sys.stdout, io.TextIOWrapper):
      sys.stdout.reconfigure(encoding='utf-8')
    yield sys.stdout
  else:
    with writing(path), Path(path).open('w', encoding='utf-8') as file:
      yield file


def answered(
  ask: Ask, chunk: Iterable[tuple[int, Any]], columns: Sequence[str], faults: Counter
) -> Iterator[dict[str, Any]]:
  """Yields the answer to each (number, line or row), or {"line": number, "error": why}; both beside
  the fields of what was asked."""
  chunk, records, given = list(chunk), [], []
  for _, value in chunk:
    record, fields = parsed(ask, value, columns, faults)
    records.append(record)
    given.append(fields)
  for (number, _), fields, (answer, error) in zip(chunk, given, ask.each(records)):
    if answer is None:
      yield {'line': number, **fields, 'error': error}
    else:
      yield fields | _rounded(ask.shown(answer))


def parsed(ask: Ask, value: Any, columns: Sequence[str], faults: Counter) -> tuple[Any, dict]:
  """(the record of a line or row, or the InputError why it is none, its fields or {})."""
  fields = {}
  if isinstance(value, tables.Row):
    fields = ask.given(value)
    if not columns:
      return ask.of_table([tables.with_nulls(value)], 'predict')[0], fields
  try:
    if isinstance(value, InputError):
      return value, fields
    if isinstance(value, tables.Row):
      ask.check_names(fields)
      cells = tuple(tables.column(value, name, 'this row') for name in columns)
      if not any(map(str.strip, cells)):
        raise InputError(nothing_in(columns))
      return ask.record(ask.from_parts(cells)), fields
    line = value.rstrip('\r\n')
    if not line.strip():
      raise InputError('empty line')
    if not line.lstrip().startswith('{'):
      fields = ask.from_parts(line.split('\t') if ask.tabs else (line,))
    else:
      fields = files.parse_json(line, 'what begins with {', faults)
    return ask.element(fields), fields
  except InputError as error:
    return error, fields


def _rounded(value):
  """The JSON form of an answer: numbers with six digits, vectors with eight."""
  if isinstance(value, dict):
    return {name: _rounded(x) for name, x in value.items()}
  if isinstance(value, np.ndarray):
    return [round(x, 8) for x in value.tolist()]
  if isinstance(value, (list, tuple)):
    return [_rounded(x) for x in value]
  return round(value, 6) if isinstance(value, float) else value


if __name__ == '__main__':
  main()
