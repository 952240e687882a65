"""How arrays are split over devices: the device mesh, and a table of rules by parameter path.

The mesh has three axes: `data` splits the batch; `fsdp` splits the batch and also stores each
parameter in pieces; `tensor` splits the layers (as Megatron does: first a matrix by columns, then
one by rows). One CPU is a mesh of 1x1x1. Models know nothing of it.
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import tree_leaves_with_path
from ml_collections import ConfigDict

from bert_jax.errors import InputError

AXES = ('data', 'fsdp', 'tensor')
BATCH = P(('data', 'fsdp'))  # splits the leading axis of all arrays in a batch
AUTO = 'auto'  # fsdp splits the largest dimension that it divides, if any
MIN_SIZE_TO_SPLIT = 2**14  # AUTO splits no array of fewer numbers
MOST = 16  # the most devices that share the parameters with mesh.fsdp=0
# Options of XLA for TPUs. Parameters are gathered before their product, not round a ring during it
# (1.5 times the cycles for BERT-base on 16 chips of v5e). Gradients of 1 MB and more are summed
# alone, beside the backward pass of the layers before; together, as by default, they wait for it.
TPU_OPTIONS: dict[str, Any] = {
  'xla_jf_spmd_threshold_for_windowed_einsum_mib': 2**20,
  'xla_jf_crs_combiner_threshold_in_bytes': 2**20,
  'xla_enable_async_all_reduce': 'true',  # as text, since its type differs between versions
  'xla_tpu_enable_async_collective_fusion_fuse_all_reduce': 'true',
}

LAYER = r'(^|/)layer(s|_\d+)/'  # the path of a block
ATTENTION = LAYER + '(cross_)?attention/'

# (regex, spec): the first regex that occurs in a parameter's path counts. A spec names the trailing
# dimensions, so it holds for scanned layers too, which have one more in front. The path of an
# optimizer's moment ends with the path of its parameter.
RULES = (
  # Tables are split by rows only: with a split width XLA rematerializes the gathered vectors.
  (r'(^|/)embeddings/word_embeddings/embedding$', P(('fsdp', 'tensor'), None)),
  (r'(^|/)(distances|(position|token_type)_embeddings)/embedding$', P()),
  (r'(^|/)decoder$', P(('fsdp', 'tensor'), None)),
  (r'(^|/)mlm/bias$', P(('fsdp', 'tensor'))),
  (ATTENTION + r'(query|key|value|relative/distance)/kernel$', P('fsdp', 'tensor')),
  (ATTENTION + r'((query|key|value)/|relative/(content|position)_)bias$', P('tensor')),
  (ATTENTION + r'output/kernel$', P('tensor', 'fsdp')),
  (LAYER + r'(intermediate|gate)/kernel$', P('fsdp', 'tensor')),
  (LAYER + r'(intermediate|gate)/bias$', P('tensor')),
  (LAYER + r'output/kernel$', P('tensor', 'fsdp')),
  (r'.', AUTO),
)

# The mesh axes for the logical axes that models name in their constraints (see Flax).
ACTIVATION_RULES = {'batch': ('data', 'fsdp'), 'length': None, 'hidden': None, 'heads': 'tensor'}


def shape_of(data: int, fsdp: int, tensor: int, number: int, slices: int = 1) -> dict[str, int]:
  """The sizes {axis: size} of a mesh over so many devices; one may be -1: as large as fits."""
  shape = [data, fsdp, tensor]
  known = math.prod(n for n in shape if n != -1)
  if -1 in shape and number % known == 0:
    shape[shape.index(-1)] = number // known
  if math.prod(shape) != number:
    raise InputError(
      f'mesh data={data} fsdp={fsdp} tensor={tensor} does not multiply to the {number} devices; '
      'let two axes divide it and leave one at -1.'
    )
  if shape[0] % slices:
    raise InputError(f'mesh.data {shape[0]} does not divide over mesh.slices={slices}; change one.')
  return dict(zip(AXES, shape))


def make_mesh(
  data: int, fsdp: int, tensor: int, devices: Sequence[jax.Device] | None = None, slices: int = 1
) -> Mesh:
  """A mesh over all devices; one of the sizes may be -1: as large as fits. slices: TPU slices, over
  which `data` goes first, so that only sums of gradients cross the network between them."""
  devices = devices or jax.devices()
  shape = [*shape_of(data, fsdp, tensor, len(devices), slices).values()]
  groups = _slices(devices, slices)
  shape[0] //= slices
  # jax.make_mesh does not split an axis of the chip topology between two mesh axes, except on v5e.
  # mesh_utils raises any of these three for shapes or topologies that it cannot handle.
  create = functools.partial(mesh_utils.create_device_mesh, allow_split_physical_axes=True)
  try:
    blocks = [create(shape, group) for group in groups]
  except (NotImplementedError, AssertionError, ValueError) as error:
    sizes = f'mesh data={shape[0] * slices} fsdp={shape[1]} tensor={shape[2]}'
    here = f'{len(devices)} {devices[0].device_kind}'
    raise InputError(f'{sizes} cannot be laid over {here} ({error}); use others.') from None
  return Mesh(np.concatenate(blocks), AXES, axis_types=(AxisType.Auto,) * 3)


def _slices(devices, slices):
  """The devices of each slice. Devices other than TPUs are cut into groups of the same size."""
  if devices[0].platform != 'tpu' and len(devices) % slices == 0:
    return np.array(devices).reshape(slices, -1).tolist()
  groups = {}
  for device in devices:
    groups.setdefault(getattr(device, 'slice_index', 0), []).append(device)
  if len(groups) != slices:
    raise InputError(f'the devices stand in {len(groups)} slices; set mesh.slices={len(groups)}.')
  return [groups[index] for index in sorted(groups)]


def axes_of(config: ConfigDict, number: int, platform: str) -> dict[str, int]:
  """The sizes {'data', 'fsdp', 'tensor', 'slices'} of a config's mesh over so many devices, where
  fsdp=0 is chosen here: on TPUs as many chips of a slice as divide the sizes of the model, 16 at
  most (the optimizer, which waits for memory, then takes a sixteenth of its time), elsewhere 1."""
  model = config.model
  mesh = {name: config.mesh[name] for name in (*AXES, 'slices')}
  if mesh['fsdp'] == 0:
    groups = abs(mesh['tensor'])
    groups *= mesh['slices'] if mesh['data'] == -1 else mesh['data']
    mesh['fsdp'] = 1
    if platform == 'tpu' and mesh['tensor'] != -1 and number % groups == 0:
      mesh['fsdp'] = math.gcd(
        MOST,
        number // groups,
        model.hidden_size,
        model.intermediate_size,
        model.vocab_multiple,
      )
  return mesh


def mesh_of(config: ConfigDict, family: Any, devices: Sequence[jax.Device] | None = None) -> Mesh:
  """The mesh of a config. InputError unless its batch and model fit. family: its task family."""
  devices = devices or jax.devices()
  mesh = make_mesh(**axes_of(config, len(devices), devices[0].platform), devices=devices)
  check_fits(mesh.shape, config, family)
  return mesh


def check_tpus(number: int, config: ConfigDict, family: Any) -> dict[str, int]:
  """The mesh {axis: size} of a config on so many devices of TPUs, none of which needs to be here.
  InputErrors as of `mesh_of`. How many heads init_from has, only the run knows."""
  shape = shape_of(number=number, **axes_of(config, number, 'tpu'))
  check_fits(shape | {'tensor': 1} if config.init_from else shape, config, family)
  return shape


def check_fits(mesh: Mapping[str, int], config: ConfigDict, family: Any) -> None:
  """InputError unless the batch divides over the mesh, {axis: size}, and the heads over its tensor
  axis."""
  shards, tensor = mesh['data'] * mesh['fsdp'], mesh['tensor']
  parts = config.optimizer.accumulation * family.microbatches(config)
  if config.batch_size // parts % shards:
    raise InputError(
      f'batch_size {config.batch_size} does not divide over {shards} data shards in {parts} '
      f'microbatches; use a multiple of {parts * shards}.'
    )
  names = 'model.num_attention_heads', 'model.num_key_value_heads'
  heads = {name: config.model[name.removeprefix('model.')] for name in names}
  for name, number in (heads | family.heads_besides(config)).items():
    if number % tensor:
      raise InputError(
        f'{name} {number} does not divide over mesh.tensor={tensor}; use a tensor size that '
        'divides it.'
      )


def path_name(path: Sequence[Any]) -> str:
  """A jax key path as 'encoder/layer_0/attention/query/kernel'."""
  return '/'.join(str(getattr(k, 'key', getattr(k, 'name', getattr(k, 'idx', k)))) for k in path)


def spec_of(
  name: str, shape: tuple[int, ...], mesh: Mesh, rules: Sequence[tuple[str, Any]] = RULES
) -> P:
  """The PartitionSpec of one array, by the first rule that matches its path `name`."""
  if not shape:
    return P()
  spec = next(spec for pattern, spec in rules if re.search(pattern, name))
  if spec == AUTO:
    return _auto(shape, mesh.shape['fsdp'])
  spec = P(*(None,) * (len(shape) - len(spec)), *spec)
  for size, axes in zip(shape, spec):
    parts = math.prod(mesh.shape[axis] for axis in _named(axes))
    if size % parts:
      raise InputError(
        f'{name} of shape {shape} does not divide over mesh axes {axes} ({parts} parts); change '
        'the mesh or that size (of words: vocab_multiple).'
      )
  return spec


def _named(axes):
  """The names of the mesh axes that an entry of a spec or of ACTIVATION_RULES has."""
  return (axes,) if isinstance(axes, str) else axes or ()


def _auto(shape, parts):
  axes = [axis for axis, size in enumerate(shape) if size % parts == 0]
  if parts == 1 or math.prod(shape) < MIN_SIZE_TO_SPLIT or not axes:
    return P()
  return P(*(None,) * max(axes, key=lambda axis: shape[axis]), 'fsdp')


def tree_shardings(tree: Any, mesh: Mesh, params: Any = None) -> Any:
  """A NamedSharding for every array (or shape) of a tree, by its path. params: of an optimizer's
  state, whose arrays of other shapes (Adafactor's sums) are split by the automatic rule."""
  shapes = {path_name(path): x.shape for path, x in tree_leaves_with_path(params)}

  def sharding_of(path, x):
    name = path_name(path)
    ends = (name[i:] for i in range(len(name)) if i == 0 or name[i - 1] == '/')
    shape = next((shapes[end] for end in ends if end in shapes), x.shape)
    rules = RULES if shape == x.shape else RULES[-1:]
    return NamedSharding(mesh, spec_of(name, x.shape, mesh, rules))

  return jax.tree_util.tree_map_with_path(sharding_of, tree)


def placed(tree: Any, mesh: Mesh, params: Any = None) -> Any:
  """A tree of arrays or shapes as ShapeDtypeStructs with their shardings; see tree_shardings."""
  where = tree_shardings(tree, mesh, params)
  return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, where)


def like(shapes: Any, sharding: NamedSharding) -> Any:
  """A tree of arrays or shapes as ShapeDtypeStructs, all with the same sharding."""
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)


def put(tree: Any, mesh: Mesh) -> Any:
  return jax.device_put(tree, tree_shardings(tree, mesh))


def batch_sharding(mesh: Mesh) -> NamedSharding:
  return NamedSharding(mesh, BATCH)


def activation_rules(besides: AbstractSet[str] = frozenset()) -> AbstractContextManager[None]:
  """A context for the constraints inside models. besides: axes that a shard_map has split."""
  rules: dict[str, Any] = {}
  for name, axes in ACTIVATION_RULES.items():
    rules[name] = tuple(axis for axis in _named(axes) if axis not in besides) or None
  return nn.logical_axis_rules(tuple(rules.items()))


def compiler_options(mesh: Mesh) -> dict[str, Any]:
  return TPU_OPTIONS if mesh.devices.flat[0].platform == 'tpu' else {}


def describe(params: Any, mesh: Mesh) -> str:
  """How many parameters there are, and their bytes on each device."""
  count, size = 0, 0
  for x in jax.tree.leaves(params):
    count += x.size
    size += math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
  return f'{count:,} parameters: {size:,} bytes on each of {mesh.size} devices'
