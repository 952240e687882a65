"""A JSON object of a file that may be damaged: its fields are read by type, and faults are told."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bert_jax.errors import InputError, quoted
from bert_jax.files import Path, seal
from bert_jax.text.files import json_of

_KINDS = {str: 'text', int: 'whole number', float: 'number', dict: 'object', list: 'list'}


def is_of(value: Any, kind: type) -> bool:
  """Whether a JSON value has a type. An integer counts as a float, a bool as no number."""
  return not isinstance(value, bool) and isinstance(value, (int, float) if kind is float else kind)


@dataclass(frozen=True)
class JsonObject:
  """A JSON object; a field of another type than asked for is missing, and told in `faults`."""

  where: str
  content: dict[str, Any]
  faults: list[str] = field(default_factory=list)

  def wrong(self, name: str, wanted: str) -> None:
    sentence = f'{self.where}: {name} is {quoted(self.content[name])}, and not {wanted}: left out'
    if sentence not in self.faults:
      self.faults.append(sentence)

  def take(self, name: str, kind: type, default: Any = None) -> Any:
    value = self.content.get(name)
    if value is None or is_of(value, kind):
      return default if value is None else value
    self.wrong(name, f'a {_KINDS[kind]}')
    return default

  def several(self, **kinds: type) -> dict[str, Any]:
    """The fields that are there, of {name: type}."""
    found = {name: self.take(name, kind) for name, kind in kinds.items()}
    return {name: value for name, value in found.items() if value is not None}

  def inside(self, name: str) -> 'JsonObject':
    return JsonObject(f'{self.where}: {name}', self.take(name, dict, {}), self.faults)

  def objects(self, name: str, **kinds: type) -> Iterator['JsonObject']:
    """The objects of a list that have all of these fields, {name: type}."""
    for i, value in enumerate(self.take(name, list, [])):
      at = JsonObject(f'{self.where}: {name}[{i}]', value if isinstance(value, dict) else {})
      if len(at.several(**kinds)) == len(kinds):
        yield at
      else:
        wanted = ', '.join(f'{field} (a {_KINDS[kind]})' for field, kind in kinds.items())
        self.faults.append(f'{at.where} is {quoted(value)}, and has no {wanted}: left out')


def read_object(path: Path, faults: list[str] | None = None) -> JsonObject:
  """The JSON object in a file; empty if it cannot be read. Faults are added to `faults`."""
  at = JsonObject(str(path), {}, [] if faults is None else faults)
  try:
    content = json_of(path)
    if 'seal' in content and content.pop('seal') != seal(content):
      at.faults.append(f'{path} is not as it was written, so what it says may be wrong')
    at.content.update(content)
  except InputError as error:
    at.faults.append(str(error))
  return at
