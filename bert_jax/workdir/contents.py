"""A run's folder: config.json, which ties it to one config, and run.json, the facts of the run.

Each file carries a seal, a hash of itself, and every checkpoint names the config and vocabulary
that it was saved with. Whoever reads weights calls check_belongs to see that these still match.
"""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import files, hosts, tokenizers
from bert_jax.errors import InputError, log, writing
from bert_jax.files import Path
from bert_jax.text.files import json_of
from bert_jax.workdir import lock, provenance
from bert_jax.workdir.recorded import Facts, Split

CONFIG, FACTS = 'config.json', 'run.json'
CHANGES = 'code.diff'  # beside run.json
# What is written into a workdir before a run begins there; crashes: by launch/attempt.
WRITTEN_BEFORE = {lock.NAME, config_lib.ROWS, 'crashes'}


def read_sealed(path: Path) -> dict[str, Any]:
  """The content of a JSON file of ours, {} if there is none; InputError if it is not as it was when
  it was sealed. One without a seal was written by hand, and is taken as it is."""
  content = json_of(path)
  has_seal = 'seal' in content
  if has_seal and content.pop('seal') != files.seal(content):
    raise InputError(
      f'{path} is not as it was written: it was edited or is damaged; bring it back.'
    )
  return content


def check_folder(workdir: Path) -> None:
  """InputError if a workdir is a file."""
  if workdir.exists() and not workdir.is_dir():
    raise InputError(f'{workdir} is a file; a workdir is a folder, new or of the same run.')


def warn_of_others(workdir: Path) -> None:
  """Warns if a folder in which no run has begun holds files that we have not written."""
  others = [name for name in files.names(workdir) if name[0] != '.' and name not in WRITTEN_BEFORE]
  if others and not files.exists(workdir / CONFIG):
    log.warning(
      f'{workdir} holds other files, such as {others[0]}; they stay, but give each run a folder of '
      'its own'
    )


# ---- config.json ---------------------------------------------------------------------------------


def read_config(workdir: str | Path) -> ConfigDict:
  """The config of a run; InputError if there is none that can be trusted."""
  return _read_config(workdir)[0]


def read_asked(workdir: str | Path) -> dict[str, Any]:
  """{field: what the command said, in JSON} of the fields of a run's config that were filled in by
  its data or by the model that it started from."""
  return _read_config(workdir)[1]


def _read_config(workdir):
  path = Path(workdir).expanduser() / CONFIG
  if not path.is_file():
    lacks = f'{CONFIG} is missing' if path.parent.is_dir() else 'there is no such folder'
    raise InputError(f'{workdir} holds no run ({lacks}); give a workdir or a model.')
  content = read_sealed(path)
  asked = content.pop('asked', {})
  try:
    return config_lib.from_json(json.dumps(content)), asked
  except (ValueError, KeyError, AttributeError, TypeError) as error:
    raise InputError(
      f'{path} is not the config of a run of this version ({error}). Of a released model make '
      'the workdir another folder (init_from starts from it); of an older run start a new one from '
      'its weights, with the code that wrote it, or train again.'
    ) from None


def claim(workdir: str | Path, config: ConfigDict, asked: Mapping[str, Any] | None = None) -> None:
  """Creates the workdir of a run and writes its config.json. asked: see read_asked."""
  content = config.to_dict()
  if asked:
    content['asked'] = asked
  with writing(workdir):
    files.make_folder(Path(workdir))
    files.write_sealed(Path(workdir) / CONFIG, content)


def check_belongs(workdir: str | Path, meta: Mapping[str, Any]) -> None:
  """InputError unless a checkpoint was saved with the config and the vocabulary in the workdir."""
  folder, number = Path(workdir).expanduser(), meta['step']
  if meta['config'] != config_lib.fingerprint(read_config(folder)):
    raise InputError(
      f'{folder / CONFIG} is not the config that checkpoint {number} was trained with; bring it '
      'back.'
    )
  if tokenizers.load_folder(folder).fingerprint != meta['vocabulary']:
    raise InputError(
      f'{tokenizers.in_folder(folder)} is not the vocabulary that checkpoint {number} was trained '
      'with, nor is what tokenizer_config.json says of case and accents; bring both back.'
    )


# ---- answers -------------------------------------------------------------------------------------


def answers_folder(workdir: Path | str, train: str, evaluation: str, number: int) -> Path:
  """The folder in a workdir for the answers at a step, by its data.train and data.eval. What is
  long is called by its end and a checksum of the whole."""
  spec = evaluation or ('held_out' if train else '')
  name = re.sub(r'[^\w.=-]+', '_', spec).strip('._') or 'embedded'
  if len(name) > 60:
    name = f'{name[-51:].lstrip("._")}-{zlib.crc32(spec.encode()):08x}'
  return Path(workdir).expanduser() / 'eval' / f'{name}-{number}'


# ---- run.json ------------------------------------------------------------------------------------


def split_of(source: Any) -> Split:
  """The facts about the source of a split."""
  examples = getattr(source, 'size', 0)
  return Split(
    rows=len(source),
    fingerprint=source.fingerprint,
    examples=examples,
    scored=getattr(source, 'scored', examples),
    baselines=source.baselines,
    part=source.part,
    measured=source.measured,
  )


def write_facts(
  workdir: Path,
  config: ConfigDict,
  sources: Mapping[str, Any],
  mesh: jax.sharding.Mesh,
  steps: int,
  parameters: int,
  flops_by_stage: Sequence[tuple[int, float]],
) -> None:
  """Writes run.json (recorded.Facts) and beside it code.diff (provenance.py)."""
  if not hosts.first():
    return
  path = workdir / FACTS
  try:
    before = Facts.from_json(read_sealed(path))
  except (InputError, TypeError, ValueError, KeyError, AttributeError) as error:
    log.warning('%s is damaged, and written anew: %s', path, error)
    before = Facts()
  now = made_by(mesh)
  facts = Facts(
    made_by=now,
    commands=[*before.commands, provenance.command() | {'steps': steps} | now],
    data={split: split_of(source) for split, source in sources.items()},
    steps=steps,
    parameters=parameters,
    flops_by_stage=flops_by_stage,
    config=config_lib.fingerprint(config),
  )
  changes = provenance.code_changes()
  with writing(path):
    files.write_sealed(path, facts.to_json())
    if changes:
      files.write_whole(workdir / CHANGES, changes)
    else:
      (workdir / CHANGES).unlink(missing_ok=True)


def made_by(mesh: jax.sharding.Mesh) -> dict[str, Any]:
  """The versions, devices and environment of this process, on which a run's bits depend."""
  here = {
    **provenance.versions(),
    **provenance.machine(),
    'devices': f'{jax.device_count()} x {jax.devices()[0].device_kind}',
    'processes': jax.process_count(),
    'mesh': dict(mesh.shape),
  }
  if jax.default_backend() == 'cpu':  # whose sums are divided among them
    here['cores'] = provenance.cores()
  return here
