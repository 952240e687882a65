"""The folder of a run: config.json, by which it belongs to one config, and run.json, its facts."""

import contextlib
import json
from pathlib import Path

import jax

from bert_jax import config as config_lib
from bert_jax import hosts, provenance
from bert_jax.errors import InputError
from bert_jax.whole_files import write_whole

CONFIG = 'config.json'


def read_config(workdir):
  """The config of the run in a workdir."""
  path = Path(workdir).expanduser() / CONFIG
  if not path.is_file():
    lacking = (
      f'{CONFIG} is missing' if path.parent.is_dir()
      else 'it is a file' if path.parent.is_file()
      else 'there is no such folder'
    )  # fmt: skip
    raise InputError(
      f'{workdir} holds no run ({lacking}); give the workdir of one or, to load or convert it, the '
      'folder of a model.'
    )
  try:
    return config_lib.from_json(path.read_text())
  except (ValueError, KeyError, AttributeError) as error:
    raise InputError(f'{path} is not the config of a run of this version: {error}') from None


def check(workdir, config):
  """InputError if the workdir is a file or holds a run of another config. Writes nothing."""
  workdir = Path(workdir)
  if workdir.exists() and not workdir.is_dir():
    raise InputError(f'{workdir} is a file; a --workdir is a folder, new or of the same run.')
  exists = (workdir / CONFIG).exists()
  if exists and (different := config_lib.changes(read_config(workdir), config)):
    more = f' and {len(different) - 3} more' if len(different) > 3 else ''
    raise InputError(
      f'{workdir} holds a run with another config ({"; ".join(different[:3])}{more}); use another '
      '--workdir (config.init_from or config.resume_from can start from this one), or delete it.'
    )


def claim(workdir, config):
  """Creates the workdir of a run and writes its config.json."""
  try:
    Path(workdir).mkdir(parents=True, exist_ok=True)
    write_whole(Path(workdir) / CONFIG, config_lib.to_json(config))
  except OSError as error:
    raise InputError(f'{workdir} cannot be written ({error.strerror}); use another.') from None


def write_facts(workdir, sources, mesh):
  """Writes run.json: versions, commands, devices, mesh, rows and fingerprint of each split."""
  if not hosts.first():
    return
  path = workdir / 'run.json'
  earlier = []
  with contextlib.suppress(OSError, ValueError, KeyError):
    earlier = json.loads(path.read_text())['commands']
  facts = provenance.versions() | {
    'commands': [*earlier, provenance.command()],
    'devices': f'{jax.device_count()} x {jax.devices()[0].device_kind}',
    'mesh': dict(mesh.shape),
    'data': {
      split: {'rows': len(s), 'fingerprint': s.fingerprint, 'baselines': s.baselines}
      for split, s in sources.items()
    },
  }
  write_whole(path, json.dumps(facts, indent=2) + '\n')
