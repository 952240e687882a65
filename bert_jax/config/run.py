"""The config fields of the run itself: objective, length, devices, and the files it saves."""

from collections.abc import Iterator

from ml_collections import ConfigDict

from bert_jax.field import Field, affecting
from bert_jax.tasks import TASKS

FIELDS = {
  'objective': Field('', 'what is learned: selects data, heads and loss', allowed=tuple(TASKS),
    affects={'rows', 'weights'}),
  'seed': Field(0, 'the seed of everything random in the run', allowed='[0, 2147483647]',
    affects={'start'}),
  'prng_impl': Field('threefry2x32', 'random bits: the same on any mesh, or fast on TPUs',
    allowed=('threefry2x32', 'rbg')),
  'init_from': Field('', 'workdir, Hugging Face folder or hf:NAME, or TensorFlow checkpoint, whose '
    'weights, sizes and vocabulary this run starts from (elsewhere: model)', affects={'start'}),
  'resume_from': Field('', 'workdir whose whole state (step, optimizer) this run continues',
    affects={'start'}),
  'batch_size': Field(256, 'rows per step, over all devices (elsewhere: '
    'per_device_train_batch_size, train_batch_size)', allowed='[1, inf)'),
  'steps': Field(1_000_000, 'optimizer steps; 0: `epochs` counts; --config.steps alone '
    'makes epochs 0 (elsewhere: max_steps, num_train_steps)', allowed='[0, inf)'),
  'epochs': Field(0.0, 'passes over the training rows; 0: `steps` counts; --config.epochs '
    'alone makes steps 0 (elsewhere: num_epochs, num_train_epochs)', allowed='[0, inf)'),
  'min_steps': Field(0, 'the fewest steps of a run that counts `epochs`, in more passes if need '
    'be; --config.epochs alone makes it 0', allowed='[0, inf)'),
  'max_hours': Field(0.0, 'save and exit with status 3 after so long, to be started again; 0: no '
    'limit', allowed='[0, inf)', affects={'free'}),
} | affecting({'free'}, {
  'mesh.data': Field(-1, 'devices that split the batch; -1: all the rest', allowed='[-1, inf)'),
  'mesh.fsdp': Field(1, 'devices that split the batch and the parameters; 0: on TPUs up to 16, '
    'elsewhere 1', allowed='[-1, inf)'),
  'mesh.tensor': Field(1, 'devices that split each layer', allowed='[-1, inf)'),
  'mesh.slices': Field(1, 'TPU slices that mesh.data goes over first', allowed='[1, inf)'),
}) | {
  'mesh.sums': Field('model', 'the type in which gradients are summed over devices, once a step: '
    'model.dtype, or float32 (with gather=layer over mesh.data only); compiler: as XLA does, '
    'kernels in model.dtype, a table twice in each microbatch (contrastive always, and jax before '
    '0.10 with mesh.tensor or gather=layer)',
    allowed=('model', 'float32', 'compiler')),
  'mesh.gather': Field('step', 'how often devices gather parameters that mesh.fsdp splits: once a '
    'step, for 8 bytes of memory a parameter, or in each layer and microbatch',
    allowed=('step', 'layer')),
} | affecting({'judging'}, {
  'eval.every': Field(10_000, 'steps between evaluations; 0: only at the end', allowed='[0, inf)'),
  'eval.batches': Field(50, 'batches per evaluation while training; 0: all of them',
    allowed='[0, inf)'),
  'eval.seed': Field(0, 'the seed of the rows and masks that a run is evaluated on',
    allowed='[0, 2147483647]'),
  'eval.patience': Field(0, 'stop after this many evaluations without a better '
    'checkpoint.best_metric; 0: never (elsewhere: early_stopping)', allowed='[0, inf)'),
}) | affecting({'free'}, {
  'checkpoint.every': Field(10_000, 'steps between checkpoints; 0: only at the end',
    allowed='[0, inf)'),
  'checkpoint.minutes': Field(5.0, 'also save when the last checkpoint is so old; 0: do not',
    allowed='[0, inf)'),
  'checkpoint.keep_latest': Field(2, 'newest checkpoints to keep', allowed='[1, inf)'),
  'checkpoint.keep_every': Field(0, 'also keep those at multiples of this step; 0: none',
    allowed='[0, inf)'),
  'checkpoint.best_metric': Field('', 'also keep the best by this eval metric, which then counts '
    'wherever the run is read; empty: none',
    affects={'judging'}),
  'checkpoint.best_mode': Field('min', 'is a low or a high best_metric good',
    allowed=('min', 'max'), affects={'judging'}),
  'log.every': Field(100, 'steps between lines of metrics; 0: a tenth of the run, 50 at most',
    allowed='[0, inf)'),
  'log.tensorboard': Field(True, 'write TensorBoard event files too'),
  'log.wandb': Field('off', 'write to Weights & Biases too; offline: to WORKDIR/wandb',
    allowed=('off', 'online', 'offline')),
}) | {
  'spikes.window': Field(0, 'a loss is compared with those of so many steps before it; 0: no step '
    'is', allowed='[0, inf)'),
  'spikes.zscore': Field(6.0, 'a loss so many standard deviations above their mean is a spike: it '
    'is named and counted', allowed='(0, inf)'),
}  # fmt: skip


def rules(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  mesh, checkpoint = config.mesh, config.checkpoint
  yield (
    (config.steps > 0) != (config.epochs > 0),
    f'steps is {config.steps} and epochs is {config.epochs}; set exactly one above 0 (epochs=0 to '
    'count steps, steps=0 to count epochs).',
  )
  yield (
    (mesh.data, mesh.fsdp, mesh.tensor).count(-1) <= 1,
    'only one axis of the mesh can be -1 (all the rest).',
  )
  yield (
    mesh.data != 0 and mesh.tensor != 0,
    'a mesh axis is 0; use 1 to split nothing, -1 for all the rest.',
  )
  yield (
    not checkpoint.best_metric or config.eval.batches == 0,
    'checkpoint.best_metric compares whole evaluations; set eval.batches=0.',
  )
  yield (
    not config.eval.patience or bool(config.eval.every and checkpoint.best_metric),
    'eval.patience counts evaluations by checkpoint.best_metric; set it and eval.every.',
  )
  yield (
    not (config.init_from and config.resume_from),
    'init_from (weights only) and resume_from (whole state) are both set; choose one.',
  )
