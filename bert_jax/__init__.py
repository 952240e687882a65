"""bert_jax: pre-train, fine-tune and take apart BERT-like Transformers in JAX."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from pathlib import Path

  from bert_jax.interactive import finetune, pretrain, start
  from bert_jax.predict.model import Model
  from bert_jax.tools.folds import cross_validate

__version__ = '0.2.0'
__all__ = ['cross_validate', 'finetune', 'load', 'pretrain', 'start']


def __dir__() -> list[str]:
  return [*__all__, '__version__']


def __getattr__(name: str) -> Any:
  """Functions that import much, when they are asked for."""
  if name not in __all__:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  if name == 'cross_validate':
    from bert_jax.tools.folds import cross_validate

    return cross_validate
  from bert_jax import interactive

  return getattr(interactive, name)


def load(path: 'str | Path', checkpoint: str | int = '', dtype: str = '') -> 'Model':
  """Loads a trained Model from a Run or its workdir, a Hugging Face folder, hf:NAME or 'minilm';
  see predict/model.py.
  checkpoint: of a run, 'latest', 'best' or a step; '': the best where checkpoint.best_metric is
  set, else the newest. dtype: 'float32', 'bfloat16' or '', the device's best."""
  from bert_jax.predict.model import Model  # `import bert_jax` alone stays light

  return Model(getattr(path, 'workdir', path), checkpoint, dtype)
