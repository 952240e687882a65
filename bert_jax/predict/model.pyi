# tests/predict/test_model_stub.py compares it with model.py and the records of the families.
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy

import bert_jax.predict.hidden_states
from bert_jax.tasks.ask import Ask
from bert_jax.tasks.record import Prediction

OF_ALL: dict[str, Prediction]
PREDICTIONS: dict[str, Prediction]
METHODS: dict[str, str]

def known(task: str) -> None: ...
def methods(predictions: Mapping[str, Prediction]) -> dict[str, str]: ...

class Model:
  config: Any
  vector: Any
  family: Any
  objective: Any
  weights: Any
  limit: Any
  counts: Any
  tokenizer: Any
  step: Any
  in_int8: Any
  def __init__(
    self, source: Any, which: str | int = 'latest', dtype: str = '', in_int8: bool = False
  ) -> None: ...
  @property
  def params(self) -> dict[str, Any]: ...
  def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]: ...
  @property
  def default_task(self) -> str: ...
  def predict(self, values: Any, **options: Any) -> Any: ...
  def ask(self, task: str, **options: Any) -> Ask: ...
  def outputs(self, function: Callable[..., Any], examples: Any) -> dict[str, Any]: ...
  def note(self, counts: dict[str, int], read: Iterable[Any]) -> None: ...
  def hidden(self, params: Any, batch: Any) -> jax.Array: ...
  def word_hidden(self, params: Any, batch: Any) -> jax.Array: ...
  def mlm_logits(self, params: Any, hidden_BKD: jax.Array) -> jax.Array: ...
  def choose(self, values: Iterable[Any]) -> list: ...
  def classify(self, values: Iterable[Any]) -> list: ...
  def pair(self, values: Iterable[Any]) -> list: ...
  def coreference(self, values: Iterable[Any]) -> list: ...
  def fill_mask(
    self, values: Iterable[Any], top_k: int | None = 5
  ) -> list[list[list[tuple[str, float]]]]: ...
  def perplexity(self, values: Iterable[Any]) -> list[float]: ...
  def next_sentence(self, values: Iterable[Any]) -> list[float | None]: ...
  def generate(
    self,
    values: Iterable[Any],
    max_tokens: int | None = 50,
    temperature: float | None = 0.0,
    top_k: int | None = 0,
    top_p: float | None = 1.0,
    repetition_penalty: float | None = None,
    beams: int | None = None,
    length_penalty: float | None = None,
    stop: tuple | None = (),
    seed: int | None = 0,
    order: str | None = '',
  ) -> list: ...
  def answer(self, values: Iterable[Any], top_k: int | None = 5) -> list: ...
  def tag(self, values: Iterable[Any]) -> list: ...
  def translate(
    self,
    values: Iterable[Any],
    beams: int | None = None,
    length_penalty: float | None = None,
    max_tokens: int | None = None,
  ) -> list[str | None]: ...
  def embed(
    self, values: Iterable[Any], pooling: str | None = '', normalize: bool | None = None
  ) -> numpy.ndarray: ...
  def search(
    self,
    values: Iterable[Any],
    index: str | None = '',
    top_k: int | None = 5,
    keep_index: bool | None = False,
    pooling: str | None = '',
  ) -> list[dict | None]: ...
  def states(
    self,
    values: Iterable[Any],
    picture: str | None = '',
    layer: int | None = -1,
    head: int | None = -1,
  ) -> list[bert_jax.predict.hidden_states.States | None]: ...
