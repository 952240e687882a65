"""bert_jax: pre-train, fine-tune and take apart BERT-like Transformers in JAX."""

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from bert_jax.interactive import finetune, pretrain, start
  from bert_jax.predict.model import Model

__version__ = '0.2.0'


def stopped(number: int, frame: Any) -> None:
  """Ends the process with a line and no traceback: the handler of signals before and after main."""
  os.write(2, b'stopped\n')
  os._exit(130)


if sys.argv[:1] == ['-m']:  # `python -m bert_jax.train`, which goes on to import for seconds
  for _number in (signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(_number) != signal.SIG_IGN:  # as nohup sets it
      signal.signal(_number, stopped)


def __getattr__(name: str) -> Any:
  """The functions of interactive.py when they are asked for: they import much."""
  if name not in ('finetune', 'pretrain', 'start'):
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  from bert_jax import interactive

  return getattr(interactive, name)


def load(path: str, which: str | int = 'latest', dtype: str = '') -> 'Model':
  """Loads a trained Model from a run's workdir or a Hugging Face folder; see predict/model.py.
  which: 'latest', 'best' or a step. dtype: 'float32', 'bfloat16' or '', the device's best."""
  from bert_jax.predict.model import Model  # `import bert_jax` alone stays light

  return Model(path, which, dtype)
