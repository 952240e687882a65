"""A run's folder: config.json, which ties it to one config, and run.json, the facts of the run.

config.json carries a seal, a hash of itself, and every checkpoint names the config and vocabulary
that it was saved with. Whoever reads weights calls check_belongs to see that these still match.
"""

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import files, hosts, tokenizers
from bert_jax.errors import InputError, log, writing
from bert_jax.files import Path
from bert_jax.text import arrow
from bert_jax.text.files import json_of, parts
from bert_jax.timeline import GROWTH
from bert_jax.tokenizers import run_tokenizer
from bert_jax.workdir import provenance

CONFIG = 'config.json'
ROWS = 'rows'  # the folder for rows that were in memory, whose names have their checksum
PACKAGES, CHANGES = 'packages.txt', 'code.diff'  # beside run.json
LENGTH = ('steps', 'epochs')
# Fields that a run may change for steps not yet taken (run/setup.check_past).
BY_STEP = [name for name, field in config_lib.ALL.items() if field.by_step]
MOVES = *LENGTH, 'min_steps', GROWTH, *BY_STEP
RECORDED = *MOVES, 'data.train'  # which differs if a workdir with ROWS was moved


def read_config(workdir: str | Path) -> ConfigDict:
  path = Path(workdir).expanduser() / CONFIG
  if not path.is_file():
    lacking = f'{CONFIG} is missing' if path.parent.is_dir() else 'there is no such folder'
    if (path.parent / 'adapter_config.json').is_file():
      lacking = 'adapter_config.json: an adapter (LoRA) without its model, which PEFT merges by '
      lacking += 'model.merge_and_unload().save_pretrained(OUT)'
    elif (path.parent / 'modules.json').is_file():
      lacking += '; early versions of sentence-transformers put it into a folder beside '
      lacking += 'modules.json, and SentenceTransformer(IN).save(OUT) now puts it into OUT'
    elif inside := [x for x in files.names(path.parent) if (path.parent / x / CONFIG).is_file()]:
      lacking += f'; in it there is {inside[0]}'
    raise InputError(f'{workdir} holds no run ({lacking}); give a workdir or a folder of a model.')
  content = json_of(path)
  if 'seal' in content and content['seal'] != files.seal(content):
    fault = f'{path} is not as the run wrote it: it was edited or is damaged. Bring it back, or'
    advice = 'delete it and train again; settings are changed by --config.NAME=VALUE'
    raise InputError(f'{fault} {advice}.')
  try:
    return config_lib.from_json(json.dumps(content))
  except (ValueError, KeyError, AttributeError, TypeError) as error:
    raise InputError(f'{path} is not the config of a run of this version: {error}') from None


def fingerprints(workdir: str | Path, config: ConfigDict) -> list[str]:
  """The fingerprints of a config: as it is, and with each earlier value of RECORDED fields."""
  return [*map(config_lib.fingerprint, (config, *configs(workdir, config)))]


def configs(workdir: str | Path, config: ConfigDict) -> Iterator[ConfigDict]:
  """Yields a config with each earlier value of RECORDED fields, and with those of config.json."""
  for values in lengths(workdir):
    config = config.copy_and_resolve_references()
    for name, value in values.items():
      config_lib.set_field(config, name, value)
    yield config


def lengths(workdir: Path | str) -> list[dict[str, Any]]:
  """The values that the RECORDED fields had earlier in a run, from `earlier_lengths` of its
  config.json: [[steps, epochs, {name: value} of further fields that had other values], ...]."""
  if not (content := json_of(Path(workdir).expanduser() / CONFIG)):
    return []
  earlier = content.get('earlier_lengths', [])
  now = {k: x for k, x in config_lib.flatten(read_config(workdir)).items() if k in RECORDED}
  return [now | dict(zip(LENGTH, x)) | dict(*x[len(LENGTH) :]) for x in earlier] + [now]


def check_belongs(workdir: str | Path, meta: Mapping[str, Any]) -> None:
  """InputError unless a checkpoint was saved with the config and the vocabulary in the workdir."""
  folder, number = Path(workdir).expanduser(), meta['step']
  config = read_config(folder)
  if meta['config'] not in fingerprints(folder, config):
    why = f'is not the config that checkpoint {number} was trained with'
    raise InputError(f'{folder / CONFIG} {why}; bring it back.')
  known, tokenizer = meta.get('vocabulary'), tokenizers.load_folder(folder)
  if not known:
    run_tokenizer.check_fits(tokenizer, config.model, folder)
  elif tokenizer.fingerprint != known:
    fault = f'{tokenizers.in_folder(folder)} is not the vocabulary that checkpoint {number} was'
    also = 'nor is what tokenizer_config.json says of case and accents'
    raise InputError(f'{fault} trained with, {also}; bring both back.')


def check(workdir: Path, config: ConfigDict) -> None:
  """InputError if the workdir is a file or holds a run that differs in more than MOVES and in where
  its ROWS are."""
  if workdir.exists() and not workdir.is_dir():
    raise InputError(f'{workdir} is a file; a workdir is a folder, new or of the same run.')
  different = []
  if files.exists(workdir / CONFIG):
    begun = read_config(workdir)
    name = Path(begun.data.train).name
    if name and config.data.train == str(workdir / ROWS / name):
      begun.data.train = config.data.train
    different = config_lib.changes(begun, config)
  if different := [x for x in different if x.partition(':')[0] not in MOVES]:
    more = f' and {len(different) - 3} more' if len(different) > 3 else ''
    fault = f'{workdir} holds a run with another config ({"; ".join(different[:3])}{more})'
    advice = 'folder (config.init_from or config.resume_from start from this one), or delete it'
    raise InputError(f'{fault}; use another {advice}.')


def claim(workdir: str | Path, config: ConfigDict, begins: bool = False) -> None:
  """Creates the workdir of a run and writes its config.json. begins: what an earlier run there had,
  which left no checkpoint, is no past of this one."""
  path = Path(workdir) / CONFIG
  now = {name: x for name, x in config_lib.flatten(config).items() if name in RECORDED}
  content, earlier = config.to_dict(), []
  for values in (now | x for x in ([] if begins else lengths(workdir))):
    others = {k: x for k, x in values.items() if k not in LENGTH and x != now.get(k)}
    if values != now:
      earlier.append([*(values[name] for name in LENGTH), *([others] if others else [])])
  if earlier:
    content['earlier_lengths'] = earlier
  with writing(workdir):
    files.make_folder(path.parent)
    files.write_sealed(path, content)


def evaluated_on(train: str, evaluation: str) -> str:
  """Names the evaluation data of a run for answers_folder; '' is the embedded data."""
  return evaluation or ('held_out' if train else '')


def answers_folder(workdir: Path | str, spec: str, number: int | str) -> Path:
  """The folder in a workdir for the answers on the data `spec` (see evaluated_on) at a step: one
  path is called by its last part, and earlier versions called it by all of them."""
  parent, own = Path(workdir).expanduser() / 'eval', f'-{zlib.crc32(spec.encode()):08x}'
  plain = lambda text: re.sub(r'[^\w.=-]+', '_', text).strip('_') or 'embedded'
  name = plain(spec.removeprefix('tfds:'))
  name = f'{name[-51:]}{own}' if len(name) > 60 else name
  path = re.fullmatch(r'(?!tfds:)[^=,{*]*/([^=,{*/]{1,51})', spec)
  if path and not files.exists(parent / f'{name}-{number}'):
    name = plain(path[1]) + own
  return parent / f'{name}-{number}'


def named_sets(config: ConfigDict, split: str) -> dict[str, str]:
  """{hf:NAME: its fingerprint} of the data sets of Hugging Face that a split of the data names."""
  if 'hf:' not in config.data[split]:  # {language} may be of another kind than below
    return {}
  blocks = (block for block in config.values() if isinstance(block, ConfigDict))
  languages = next((block.languages for block in blocks if 'languages' in block), ())
  specs = (spec for _, spec in parts(config.data[split], languages) if spec.startswith('hf:'))
  return {spec: arrow.hf_set(spec, split)[2] for spec in specs}


def write_facts(
  workdir: Path,
  config: ConfigDict,
  sources: Mapping[str, Any],
  mesh: jax.sharding.Mesh,
  costs: Mapping[str, Any],
  student: str = '',
) -> None:
  """Writes run.json (versions, commands, devices, mesh, data, named_sets; `earlier`: versions and
  devices before; `student`) and beside it packages.txt and code.diff (provenance.py)."""
  if not hosts.first():
    return
  path = workdir / 'run.json'
  before, commands, earlier = {}, [], []
  try:
    before = json_of(path)
    commands, earlier = list(before.get('commands', [])), list(before.get('earlier', []))
  except (InputError, TypeError):
    log.warning('%s is damaged and set aside as %s', path, files.set_aside(path))
  facts = made_by(mesh)
  if other := {name: x for name, x in before.items() if name in facts and facts[name] != x}:
    earlier.append(other | {'commands': len(commands)})
  facts['commands'] = [*commands, provenance.command()]
  facts |= {name: x for name, x in (('earlier', earlier), ('student', student)) if x}
  facts |= {'config': config_lib.fingerprint(config), 'costs': costs, 'data': {}}
  for split, s in sources.items():
    of_split = {'rows': len(s), 'fingerprint': s.fingerprint, 'baselines': s.baselines}
    of_split |= {'part': s.part} if getattr(s, 'part', {}) else {}
    of_split |= {'sets': sets} if (sets := named_sets(config, split)) else {}
    of_split |= {'examples': s.size} if hasattr(s, 'size') else {}
    if (scored := getattr(s, 'scored', None)) not in (None, of_split.get('examples')):
      of_split['scored'] = scored  # of the examples: the others have no gold
    facts['data'][split] = of_split
  beside = {PACKAGES: provenance.installed(), CHANGES: provenance.code_changes()}
  with writing(path):
    files.write_sealed(path, facts)
    for name, text in beside.items():
      if text:
        files.write_whole(workdir / name, text)
      else:
        (workdir / name).unlink(missing_ok=True)


def made_by(mesh: jax.sharding.Mesh) -> dict[str, Any]:
  """The versions, devices and environment of this process, on which a run's bits depend."""
  devices = f'{jax.device_count()} x {jax.devices()[0].device_kind}'
  here = {'devices': devices, 'processes': jax.process_count(), 'mesh': dict(mesh.shape)}
  if jax.default_backend() == 'cpu':  # whose sums are divided among them
    here['cores'] = provenance.cores()
  return provenance.versions() | provenance.machine() | here
