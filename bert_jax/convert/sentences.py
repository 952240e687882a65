"""What a folder of sentence-transformers says of the vector of a text: modules.json and
1_Pooling/config.json (www.sbert.net, "Creating Custom Models")."""

import logging

from bert_jax.config import InputError
from bert_jax.data import files

log = logging.getLogger('bert_jax')

MODES = {'pooling_mode_mean_tokens': 'mean', 'pooling_mode_cls_token': 'cls'}
KNOWN = ('Transformer', 'Pooling', 'Normalize')  # modules that we have


def pooling(folder):
  """'mean' or 'cls', or '' where nothing is said; what cannot be followed is warned of."""
  modules = files.json_of(folder / 'modules.json', list)
  paths = {}
  for module in modules:
    if not isinstance(module, dict):
      raise InputError(f'{folder}/modules.json is no list of objects; is it whole?')
    kind = str(module.get('type')).rpartition('.')[2]
    paths[kind] = str(module.get('path', ''))
    if kind not in KNOWN:
      log.warning('%s: its module %s is not read: vectors are without it', folder, kind)
  if 'Pooling' not in paths:
    return ''
  said = files.json_of(folder / paths['Pooling'] / 'config.json')
  modes = [name for name, on in said.items() if name.startswith('pooling_mode_') and on is True]
  found = MODES.get(modes[0]) if len(modes) == 1 else said.get('pooling_mode')
  if found in MODES.values():
    return found
  log.warning('%s: its pooling, %s, is not one of ours (mean, cls)', folder, found or modes)
  return ''
