"""No default and no edit of a shared table changes a recipe in silence."""

import pytest
import recorder

from bert_jax import config

FILES = sorted(recorder.NAMED)


def found_and_gone(golden, found):
  """Lines for people: what differs of {arguments: {field: value}}, each difference once."""
  seen = {}
  for arguments, before in golden.items():
    now = found[arguments]
    for name in before | now:
      if (change := (before.get(name, 'not there'), now.get(name, 'not there')))[0] != change[1]:
        seen.setdefault((name, *change), []).append(arguments)
  return [
    f'{name}: {before} before, {now} now, in {len(specs)} configs such as {specs[0]!r}'
    for (name, before, now), specs in seen.items()
  ]


@pytest.mark.parametrize('file', FILES)
def test_every_named_config_is_as_it_was(file):
  """If a difference is meant, write the texts anew, and read their diff before you commit it:

  python tests/recorder.py --goldens
  """
  path = recorder.GOLDEN / f'{file}.txt'
  assert path.exists(), f'configs/{file}.py is new: python tests/recorder.py --goldens'
  golden = recorder.golden_configs(path.read_text())
  found = {x: recorder.named_config(recorder.HERE, f'{file}:{x}') for x in golden}
  for arguments in [*golden][::16]:
    loaded = config.load(f'configs/{file}.py:{arguments}')
    again = config.from_json(config.to_json(loaded))
    assert config.flatten(again) == config.flatten(loaded)
    assert config.fingerprint(again) == config.fingerprint(loaded)
  lines = found_and_gone(golden, found)
  shown = '\n  '.join(lines[:20])
  assert not lines, (
    f'configs/{file}.py gives other configs than it did:\n  {shown}\n'
    'If that was meant: python tests/recorder.py --goldens, and say in the commit what changed.'
  )
