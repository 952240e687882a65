"""The fields of the run itself: what is learned, how long, on which devices, and what is saved."""

import re

from bert_jax.errors import quoted
from bert_jax.field import Field
from bert_jax.tasks import TASKS

FIELDS = {
  'objective': Field(str, tuple(TASKS), 'what is learned: selects data, heads and loss', ''),
  'seed': Field(int, '[0, 2147483647]', 'the seed of everything random in the run', 0),
  'prng_impl': Field(str, ('threefry2x32', 'rbg'),
    'random bits: the same on any mesh, or fast on TPUs', 'threefry2x32'),
  'init_from': Field(str, None,
    'workdir, Hugging Face folder or hf:NAME, or TensorFlow checkpoint, whose weights, sizes and '
    'vocabulary this run starts from', ''),
  'resume_from': Field(str, None, 'workdir whose whole state (step, optimizer) this run continues',
    ''),
  'batch_size': Field(int, '[1, inf)', 'rows per step, over all devices', 256),
  'steps': Field(int, '[0, inf)', 'optimizer steps; 0: `epochs` counts', 1_000_000),
  'epochs': Field(float, '[0, inf)', 'passes over the training rows; 0: `steps` counts', 0.0),
  'max_hours': Field(float, '[0, inf)',
    'save and exit with status 3 after so long, to be started again; 0: no limit', 0.0, past=0.0),
  'profile': Field(str, None,
    'START:STOP: write a jax.profiler trace of the steps after START until STOP; empty: none', '',
    past=''),
  'mesh.data': Field(int, '[-1, inf)', 'devices that split the batch; -1: all the rest', -1),
  'mesh.fsdp': Field(int, '[-1, inf)',
    'devices that split the batch and the parameters; 0: on TPUs up to 16, elsewhere 1', 1),
  'mesh.tensor': Field(int, '[-1, inf)', 'devices that split each layer', 1),
  'mesh.slices': Field(int, '[1, inf)', 'TPU slices that mesh.data goes over first', 1),
  'eval.every': Field(int, '[0, inf)', 'steps between evaluations; 0: only at the end', 10_000),
  'eval.batches': Field(int, '[0, inf)', 'batches per evaluation while training; 0: all of them',
    50),
  'eval.seed': Field(int, '[-1, 2147483647]',
    'the seed of the rows and masks that a run is evaluated on; -1: `seed`', 0, -1),
  'eval.patience': Field(int, '[0, inf)',
    'stop after this many evaluations without a better checkpoint.best_metric; 0: never', 0),
  'checkpoint.every': Field(int, '[0, inf)', 'steps between checkpoints; 0: only at the end',
    10_000),
  'checkpoint.minutes': Field(float, '[0, inf)',
    'also save when the last checkpoint is so old; 0: do not', 5.0, past=0.0),
  'checkpoint.keep_latest': Field(int, '[1, inf)', 'newest checkpoints to keep', 2),
  'checkpoint.keep_every': Field(int, '[0, inf)',
    'also keep those at multiples of this step; 0: none', 0),
  'checkpoint.best_metric': Field(str, None, 'also keep the best by this eval metric; empty: none',
    ''),
  'checkpoint.best_mode': Field(str, ('min', 'max'), 'is a low or a high best_metric good', 'min'),
  'log.every': Field(int, '[1, inf)', 'steps between lines of metrics', 100),
  'log.tensorboard': Field(bool, None, 'write TensorBoard event files too', True),
  'log.wandb': Field(str, ('off', 'online', 'offline'),
    'write to Weights & Biases too; offline: to WORKDIR/wandb', 'off', past='off'),
  'log.parameters': Field(bool, None, 'a line for each parameter before the first step', False,
    past=False),
  'spikes.window': Field(int, '[0, inf)',
    'a loss is compared with those of so many steps before it; 0: no step is', 0, past=0),
  'spikes.zscore': Field(float, '(0, inf)',
    'a loss so many standard deviations above their mean is a spike: it is named and counted', 6.0,
    past=6.0),
  'spikes.rollback': Field(int, '[0, inf)',
    'go back to the last multiple of this step and past the data of the spike; 0: go on', 0,
    past=0),
}  # fmt: skip


def rules(config):
  """Yields (what must hold, the sentence if it does not)."""
  one = (config.steps > 0) != (config.epochs > 0)
  two = f'steps is {config.steps} and epochs is {config.epochs}; set exactly one above 0'
  yield one, f'{two} (--config.epochs=0 to count steps, --config.steps=0 to count epochs).'
  yield (
    profile_window(config.profile) is not None,
    f'profile is {quoted(config.profile)}; write the steps to trace as START:STOP, such as 10:13.',
  )
  axes = config.mesh.data, config.mesh.fsdp, config.mesh.tensor
  yield axes.count(-1) <= 1, 'only one axis of the mesh can be -1 (all the rest).'
  one = 0 not in (config.mesh.data, config.mesh.tensor)
  yield one, 'a mesh axis is 0; use 1 to split nothing, -1 for all the rest.'
  yield (
    not config.checkpoint.best_metric or config.eval.batches == 0,
    f'checkpoint.best_metric compares whole evaluations but eval.batches is '
    f'{config.eval.batches}; set eval.batches=0.',
  )
  yield (
    not config.eval.patience or (config.eval.every and config.checkpoint.best_metric),
    'eval.patience counts evaluations without a better best_metric; set that and eval.every.',
  )
  spikes = config.spikes
  yield (
    spikes.window > 0 or not spikes.rollback,
    'spikes.rollback goes back from spikes, and spikes.window=0 looks for none; set it to 100.',
  )
  holds = spikes.window != 1
  yield holds, 'spikes.window=1 has no standard deviation; use 2 or more, such as 100.'
  both = config.init_from and config.resume_from
  yield not both, 'init_from (weights only) and resume_from (whole state) are both set; choose one.'


def profile_window(text: str) -> tuple[int, int] | None:
  """(start, stop) of a config.profile 'START:STOP'; (0, 0) of ''; None if it is neither."""
  if not text:
    return 0, 0
  numbers = re.fullmatch(r'(\d{1,15}):(\d{1,15})', text)
  start, stop = map(int, numbers.groups()) if numbers else (0, 0)
  return (start, stop) if start < stop else None
