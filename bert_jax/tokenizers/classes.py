"""What transformers' class of a tokenizer (release 5.24) makes of the files beside a vocabulary:
settings that change what a tokenizer.json says, and tokens that are added.

The class is the tokenizer_class of tokenizer_config.json or of config.json, else the one that goes
with the model_type. Any that is not in SETTINGS, such as PreTrainedTokenizerFast, changes nothing.
"""

import re
from typing import Any

from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.text import files
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.wordpiece import special_token

_BERTS = 'bert', 'electra', 'distilbert', 'mpnet', 'nomicbert'
_ALBERTS = 'albert', 'fnet'
# (classes as in kind_of, key, its value where no file says it, type of a step in a tokenizer.json,
# the field of that step which has the value; or the value that goes without such a step).
SETTINGS = (
  (_BERTS, 'do_lower_case', True, 'BertNormalizer', 'lowercase'),
  (_BERTS, 'strip_accents', None, 'BertNormalizer', 'strip_accents'),
  (_BERTS, 'tokenize_chinese_chars', True, 'BertNormalizer', 'handle_chinese_chars'),
  (('roberta', 'bart', 'gpt2'), 'add_prefix_space', False, 'ByteLevel', 'add_prefix_space'),
  (_ALBERTS, 'do_lower_case', True, 'Lowercase', False),
  (_ALBERTS, 'keep_accents', False, 'StripAccents', True),
  (('debertav2',), 'do_lower_case', False, 'Lowercase', False),
  (('debertav2',), 'split_by_punct', False, 'Punctuation', False),
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


def as_class(path: Path, content: dict[str, Any]) -> dict[str, Any]:
  """The content of a tokenizer.json, of the vocabulary at a path, as its class reads it; InputError
  where they contradict each other."""
  settings, kind = settings_of(path), kind_of(path)
  for classes, key, usual, step, effect in SETTINGS:
    value, found = settings.get(key, usual), _steps(content, step)
    if kind in classes and isinstance(effect, str):
      for part in found:
        part[effect] = part.get('lowercase', False) if value is None else value
    elif kind in classes and bool(found) == (value == effect):
      raise InputError(
        f'{path} contradicts its class, {kind}, in which {key} is {value}; mend it, or '
        'tokenizer_config.json ("tokenizer_class": "PreTrainedTokenizerFast" reads it as it is).'
      )
  return content


def _steps(content, kind):
  """The steps of one type by which a tokenizer.json normalizes and splits texts."""
  steps = []
  for part in content.get('normalizer') or {}, content.get('pre_tokenizer') or {}:
    steps += part.get('normalizers') or part.get('pretokenizers') or [part]
  return [step for step in steps if step.get('type') == kind]


def with_added(path: Path, tokenizer: Tokenizer) -> Tokenizer:
  """A tokenizer with the tokens that files beside its vocabulary, at a path, add to it."""
  settings, given = settings_of(path), tokenizer.content['added_tokens']
  added = {token['content']: token for token in given}
  for i, token in (settings.get('added_tokens_decoder') or {}).items():
    added.setdefault(token['content'], token | {'id': int(i)})
  special = [text_of(token) for token in settings.get('additional_special_tokens') or ()]
  said = {}
  if 'added_tokens_decoder' not in settings:  # which newer files have in its place
    said = files.json_of(path.with_name('added_tokens.json'))
  ids = {piece: i for i, piece in enumerate(tokenizer.pieces)} | said
  for name in (*said, *special):
    token = special_token(ids.setdefault(name, len(ids)), name)
    if name not in special:
      token |= {'special': False, 'normalized': True}
    added.setdefault(name, token)
  if len(added) == len(given):
    return tokenizer
  content = tokenizer.content | {'added_tokens': [*added.values()]}
  around, source = tokenizer.around, tokenizer.source
  return Tokenizer(content, source=source, names=tokenizer.names, around=around)


def text_of(token: Any) -> Any:
  """A token that a file has as its text, or with how it is searched for."""
  return token.get('content') if isinstance(token, dict) else token
