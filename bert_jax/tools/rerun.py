"""Repeats a run from its config in a new workdir, and says whether it came out the same.

    python -m bert_jax.tools.rerun W --workdir AGAIN             # trains; given again, it continues
    python -m bert_jax.tools.rerun W --workdir AGAIN --dry-run   # only says what is not the same

A run is a function of its config, on the same code, packages, devices and data. These are compared
first, with what run.json, packages.txt and code.diff in W say, and each difference is named. Then
the run is trained, and its metrics and the checksums of its last state are compared with those of
W. --config.NAME=VALUE changes a field, such as data.train where the data lies elsewhere now. The
exit status is 1 if something that was compared did not come out the same, or if the repetition
ended before the run did; `compared` says how many of its steps and evaluations both have.
"""

import contextlib
import json
import logging
import sys
import time
from pathlib import Path

from bert_jax import config as config_lib
from bert_jax import hosts, train
from bert_jax.command_line import command_line
from bert_jax.errors import InputError, listed
from bert_jax.run import setup, speed
from bert_jax.text import files
from bert_jax.tools import arguments
from bert_jax.workdir import checkpoint, contents, provenance

log = logging.getLogger('bert_jax')

# Each time that a run is started, its first line counts the steps from there.
NOT_COMPARED = (*speed.MEASURED, 'steps')


def rerun(workdir, new, overrides=(), dry_run=False):
  """{name: value}: what is not the same, and unless dry_run what came out of it."""
  started = time.monotonic()
  hosts.check()
  workdir, new = Path(workdir).expanduser(), Path(new).expanduser()
  if workdir.resolve() == new.resolve():
    raise InputError(f'--workdir {new} is the run that is to be repeated; name another folder.')
  config = contents.read_config(workdir)
  inputs = setup.read_inputs(config_lib.override(config, overrides), new)
  meta = checkpoint.newest_meta(workdir) or {}
  others = differences(workdir, config, inputs, meta)
  for other in others:
    log.warning('not the same: %s', other)
  if not others:
    log.info('code, packages, devices, data and vocabulary are those of %s', workdir)
  if dry_run:
    return {'not_the_same': others}
  train.train_on(inputs, started)
  return {'workdir': str(new), 'not_the_same': others} | outcome(workdir, new, meta)


def differences(workdir, config, inputs, meta):
  """Sentences: in what this repetition differs from the run in a workdir. meta: of the run's newest
  checkpoint, or {}."""
  facts, known = files.json_of(workdir / 'run.json'), files.json_of(workdir / contents.CONFIG)
  if not facts:
    return ['there is no run.json, so nothing is known of the code, the devices and the data']
  out, here = [], contents.made_by(inputs.mesh)
  for name, value in here.items():
    if name not in facts:
      out.append(f'{name} was not recorded')
    elif name == 'packages':
      was = facts[name]
      out += [f'{p} {was.get(p)} -> {v}' for p, v in value.items() if was.get(p) != v]
    elif facts[name] != value:
      out.append(f'{name}: {facts[name]} -> {value}')
  out += _of_text(workdir / contents.CHANGES, provenance.code_changes(), 'the changed code')
  out += _of_packages(workdir / contents.PACKAGES, here['packages'])
  out += config_lib.changes(config, inputs.config)
  for split, source in inputs.sources.items():
    was = facts.get('data', {}).get(split, {}).get('fingerprint')
    if was != source.fingerprint:
      out.append(f'the data of {split}: fingerprint {was} -> {source.fingerprint}')
  if meta.get('vocabulary', inputs.tokenizer.fingerprint) != inputs.tokenizer.fingerprint:
    out.append('the vocabulary')
  if lengths := known.get('earlier_lengths'):
    out.append(f'the run had another length before: steps, epochs {lengths}')
  for before in facts.get('earlier', ()):
    names = listed([name for name in before if name != 'commands'])
    out.append(f'in its first {before["commands"]} commands the run had other {names}')
  for name in ('init_from', 'resume_from'):
    if config[name]:
      out.append(f'{name}={config[name]} is taken as it is now; what it was then is not recorded')
  return out


def _of_text(path, here, what):
  was = path.read_text(errors='replace') if path.is_file() else ''
  return [f'{what} ({path})'] if was != here else []


def _of_packages(path, named):
  """Sentences on the packages that are not among those that are named anyway."""
  if not path.is_file():
    return []
  was, now = (
    {name.lower(): version for name, _, version in (line.partition('==') for line in text.split())}
    for text in (path.read_text(), provenance.installed())
  )
  names = sorted(n for n in was.keys() | now.keys() if was.get(n) != now.get(n) and n not in named)
  shown = [f'{n} {was.get(n, "none")} -> {now.get(n, "none")}' for n in names]
  return [f'other packages: {listed(shown)}'] if shown else []


def lines(workdir):
  """{(step, split): metrics that do not depend on the clock} of metrics.jsonl."""
  path, out = workdir / 'metrics.jsonl', {}
  for text in path.read_text().splitlines() if path.is_file() else ():
    with contextlib.suppress(ValueError, KeyError, TypeError):  # half a line, of a kill
      line = json.loads(text)
      kept = {name: x for name, x in line.items() if name not in NOT_COMPARED}
      out[line['step'], line['split']] = kept
  return out


def outcome(workdir, new, meta):
  """{'compared', 'lines', 'same_lines', 'first_difference', 'state', 'same'} of two runs; one that
  ended before the first did is not the same. meta: of the newest checkpoint of the first, or {}."""
  was, now = lines(workdir), lines(new)
  common = [key for key in was if key in now]
  differ = [key for key in common if was[key] != now[key]]
  first = ''
  if differ:
    step, split = differ[0]
    a, b = was[differ[0]], now[differ[0]]
    name = next(name for name in [*a, *b] if a.get(name) != b.get(name))
    first = f'step {step}, {split}: {name} {a.get(name)} -> {b.get(name)}'
  state = 'not compared: the two have no checkpoint of the same step'
  with contextlib.closing(checkpoint.Checkpoints(new)) as checkpoints:
    if meta and meta['step'] in checkpoints.steps():
      same = checkpoints.meta(meta['step'])['arrays'] == meta['arrays']
      state = f'step {meta["step"]}: ' + ('the same bits' if same else 'other bits')
  last = lambda keys: max((step for step, _ in keys), default=0)
  evaluations = lambda keys: sum(split == 'eval' for _, split in keys)
  if not first and last(now) < last(was):
    first = f'the repetition ended at step {last(now)} and the run at step {last(was)}'
  same = not first and not state.endswith('other bits') and bool(common)
  compared = f'{last(common)} of {last(was)} steps, {evaluations(common)} of {evaluations(was)} '
  out = {'compared': f'{compared}evaluations', 'lines': len(common)}
  out['same_lines'] = len(common) - len(differ)
  return out | {'first_difference': first, 'state': state, 'same': same}


def main(argv=None):
  parser = arguments.parser('rerun', __doc__)
  parser.add_argument('source', metavar='W', help='the workdir of the run to be repeated')
  parser.add_argument('--workdir', required=True, help='where it is repeated')
  parser.add_argument('--dry-run', action='store_true', help='only say what is not the same')
  args, overrides = parser.parse_known_args(argv)
  with command_line():
    hosts.refuse_several('bert_jax.tools.rerun')
    result = rerun(args.source, args.workdir, overrides, args.dry_run)
    print(json.dumps(result, ensure_ascii=False))
  if not result.get('same', not result['not_the_same']):
    sys.exit(1)


if __name__ == '__main__':
  main()
