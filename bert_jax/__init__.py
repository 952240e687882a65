"""bert_jax: pre-train, fine-tune and take apart BERT-like Transformers in JAX."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from pathlib import Path

  from bert_jax.interactive import finetune, pretrain, start
  from bert_jax.predict.model import Model

__version__ = '0.2.0'
__all__ = ['finetune', 'load', 'pretrain', 'start']


def __dir__() -> list[str]:
  return [*__all__, '__version__']


def __getattr__(name: str) -> Any:
  """The functions of interactive.py when they are asked for: they import much."""
  if name not in __all__:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  from bert_jax import interactive

  return getattr(interactive, name)


def load(path: 'str | Path', checkpoint: str | int = '', dtype: str = '') -> 'Model':
  """Loads a trained Model from a run's workdir or a Hugging Face folder; see predict/model.py.
  checkpoint: of a run, 'latest', 'best' or a step; '': the best where checkpoint.best_metric is
  set, else the newest. dtype: 'float32', 'bfloat16' or '', the device's best."""
  from bert_jax.predict.model import Model  # `import bert_jax` alone stays light

  return Model(path, checkpoint, dtype)
