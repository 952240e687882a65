"""What transformers' class of a tokenizer (release 5.24) makes of the files beside a vocabulary:
settings that change what a tokenizer.json says, and tokens that are added.

The class is the tokenizer_class of tokenizer_config.json or of config.json, else the one that goes
with the model_type. Any that is in neither table, such as PreTrainedTokenizerFast, changes nothing.
"""

import math
import re
from typing import Any

from bert_jax.errors import InputError, log
from bert_jax.files import Path
from bert_jax.text import files
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.wordpiece import special_token

_BERTS = 'bert', 'electra', 'distilbert', 'mpnet', 'nomicbert'
_OF_BYTES = 'roberta', 'bart', 'gpt2'
_ALBERTS = 'albert', 'fnet'
# Settings that replace what a tokenizer.json says: (classes as in kind_of, key, its value where no
# file says it, type of a step, the field of that step which gets the value).
REPLACED = (
  (_BERTS, 'do_lower_case', True, 'BertNormalizer', 'lowercase'),
  (_BERTS, 'strip_accents', None, 'BertNormalizer', 'strip_accents'),
  (_BERTS, 'tokenize_chinese_chars', True, 'BertNormalizer', 'handle_chinese_chars'),
  (_OF_BYTES, 'add_prefix_space', False, 'ByteLevel', 'add_prefix_space'),
)
# Settings with which a tokenizer.json has to agree: (classes, key, its value where no file says it,
# type of a step, the value that goes with such a step).
CHECKED = (
  (_ALBERTS, 'do_lower_case', True, 'Lowercase', True),
  (_ALBERTS, 'keep_accents', False, 'StripAccents', False),
  (('debertav2',), 'do_lower_case', False, 'Lowercase', True),
  (('debertav2',), 'split_by_punct', False, 'Punctuation', True),
)


def settings_of(path: Path) -> dict[str, Any]:
  """What is said of a tokenizer in the files beside its vocabulary."""
  settings = files.json_of(path.with_name('special_tokens_map.json'))
  return settings | files.json_of(path.with_name('tokenizer_config.json'))


def kind_of(path: Path) -> str:
  """The class of the tokenizer at a path, or else the model_type beside it, as one short word:
  xlmroberta of XLMRobertaTokenizerFast and of xlm-roberta; '': neither is said."""
  model = files.json_of(path.with_name('config.json'))
  kind = settings_of(path).get('tokenizer_class') or model.get('tokenizer_class')
  name = str(kind or model.get('model_type') or '').lower()
  return re.sub('tokenizer(fast)?$|[-_]', '', name)


def apply_class(path: Path, content: dict[str, Any]) -> None:
  """Changes the content of a tokenizer.json, of the vocabulary at a path, to how its class reads
  it, and logs what a default changes; InputError where file and class contradict each other."""
  settings, kind = settings_of(path), kind_of(path)
  for classes, key, usual, step, value_with_step in CHECKED:
    value, has_step = settings.get(key, usual), bool(_steps(content, step))
    if kind in classes and has_step != (bool(value) == value_with_step):
      raise InputError(
        f'{path} has {"a" if has_step else "no"} step {step} and contradicts its class, {kind}, in '
        f'which {key} is {value}; mend it, or tokenizer_config.json ("tokenizer_class": '
        '"PreTrainedTokenizerFast" reads it as it is).'
      )
  by_default = []
  for classes, key, usual, step, field in REPLACED:
    if kind not in classes:
      continue
    for part in _steps(content, step):
      value = settings.get(key, usual)
      if value is None:
        value = part.get('lowercase', False)
      if key not in settings and part.get(field) not in (None, value):
        by_default.append(f'{key} is {value}')
      part[field] = value
  if by_default:
    log.warning(
      '%s: by the default of its class, %s, %s, and not as the file says; to keep that, write it '
      'into tokenizer_config.json beside it',
      path,
      kind,
      ', '.join(by_default),
    )


def _steps(content, kind):
  """The steps of one type by which a tokenizer.json normalizes and splits texts."""
  steps = []
  for part in content.get('normalizer') or {}, content.get('pre_tokenizer') or {}:
    steps += part.get('normalizers') or part.get('pretokenizers') or [part]
  return [step for step in steps if step.get('type') == kind]


def with_added(path: Path, tokenizer: Tokenizer) -> Tokenizer:
  """A tokenizer with the tokens that files beside its vocabulary, at a path, add to it. Those for
  which the weights have no row are left out and logged; transformers fails where one is typed."""
  given = tokenizer.content['added_tokens']
  beside = _added_beside(path, tokenizer.pieces)
  added = {token['content']: token for token in beside + given}
  rows = files.json_of(path.with_name('config.json')).get('vocab_size') or math.inf
  needed = sum(tokenizer.around, ())  # run_tokenizer.check_fits refuses these
  without_row = {x for x in added if added[x]['id'] >= rows and added[x]['id'] not in needed}
  if without_row:
    log.warning(
      '%s: the weights, by config.json, have %d rows, so these added tokens are left out: %s',
      path,
      rows,
      ', '.join(sorted(without_row)),
    )
  kept = [added[name] for name in added.keys() - without_row]
  kept.sort(key=lambda token: token['id'])
  if kept == given:
    return tokenizer
  return Tokenizer(
    tokenizer.content | {'added_tokens': kept},
    source=tokenizer.source,
    names={role: name for role, name in tokenizer.names.items() if name not in without_row},
    around=tokenizer.around,
  )


def _added_beside(path, pieces):
  """The tokens that files beside a vocabulary of these pieces add, as in a tokenizer.json; the last
  of several with one name holds."""
  settings = settings_of(path)
  said, newer = {}, settings.get('added_tokens_decoder')
  if newer is None:  # older files have this one in its place
    said = files.json_of(path.with_name('added_tokens.json'))
  newer = [token | {'id': int(i)} for i, token in (newer or {}).items()]
  ids = {piece: i for i, piece in enumerate(pieces)} | said
  ids |= {token['content']: token['id'] for token in newer}
  tokens = [special_token(i, x) | {'special': False, 'normalized': True} for x, i in said.items()]
  for token in settings.get('additional_special_tokens') or ():
    name = text_of(token)
    tokens.append(special_token(ids.setdefault(name, len(ids)), name))
  return tokens + newer


def text_of(token: Any) -> Any:
  """A token that a file has as its text, or with how it is searched for."""
  return token.get('content') if isinstance(token, dict) else token
