"""Tensors read from files of others: every form, damaged ones, and ones that mean harm."""

import json
import os
import pickle
import struct
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from bundles import numbers, rebuilt, table, text, write_bundle, zipped
from crc32c import crc32c
from refusal import refused

from bert_jax.convert import tensor_files, tensorflow_bundle, torch_pickle

X = np.arange(6, dtype=np.float32).reshape(2, 3)


# ---- torch's .bin --------------------------------------------------------------------------------


def test_a_bin_is_read_without_torch(tmp_path):
  half = np.array([1.5, -2], ml_dtypes.bfloat16)
  pickled = table(
    whole=rebuilt('0', 'FloatStorage', 6, 0, (2, 3), (3, 1)),
    turned=rebuilt('0', 'FloatStorage', 6, 0, (3, 2), (1, 3)),
    part=rebuilt('0', 'FloatStorage', 6, 4, (2,), (1,)),
    half=rebuilt('1', 'BFloat16Storage', 2, 0, (2,), (1,)),
    scalar=rebuilt('0', 'FloatStorage', 6, 5, (), ()),
  )
  found = torch_pickle.read(zipped(tmp_path / 'a.bin', pickled, s0=X.tobytes(), s1=half.tobytes()))
  expected = {'whole': X, 'turned': X.T, 'part': X.ravel()[4:], 'half': half, 'scalar': X[1, 2]}
  for name, x in expected.items():
    np.testing.assert_array_equal(found[name], x)


class Harm:
  def __init__(self, marker):
    self.marker = marker

  def __reduce__(self):
    return os.system, (f'touch {self.marker}',)


@pytest.mark.parametrize('form', ['zip', 'stream', 'table of a stream'])
def test_a_malicious_pickle_is_refused_and_nothing_of_it_runs(tmp_path, form):
  marker, path = tmp_path / 'harmed', tmp_path / 'pytorch_model.bin'
  evil = pickle.dumps({'bert.embeddings.LayerNorm.weight': Harm(marker)}, 2)
  if form == 'zip':
    zipped(path, evil)
  else:
    begin = [torch_pickle.MAGIC, 1001, {'little_endian': True}] if 'table' in form else []
    path.write_bytes(b''.join(pickle.dumps(x, 2) for x in begin) + evil)
  with refused('asks for (posix|nt).system.*nothing of it was run'):
    tensor_files.read(tmp_path)
  assert not marker.exists()
  pickle.loads(evil)  # it would have
  assert marker.exists()


BAD = 'builtins eval', 'torch load', 'numpy load', 'torch._utils __builtins__'


@pytest.mark.parametrize('name', [*BAD, 'collections OrderedDict.fromkeys'])
def test_only_what_tensors_are_made_of_has_a_name(tmp_path, name):
  pickled = b'\x80\x02}(' + text('a') + f'c{name}\n'.replace(' ', '\n').encode() + b')Ru.'
  with refused('is refused'):
    torch_pickle.read(zipped(tmp_path / 'a.bin', pickled))


@pytest.mark.parametrize(
  'place, sentence',
  [
    (('0', 'FloatStorage', 6, 0, (7,), (1,)), 'reaches beyond its storage'),
    (('0', 'FloatStorage', 6, 4, (2, 3), (3, 1)), 'reaches beyond its storage'),
    (('0', 'FloatStorage', 6, 0, (2,), (-1,)), 'strides'),
    (('0', 'FloatStorage', 60, 0, (60,), (1,)), 'has 6 numbers, not 60'),
    (('9', 'FloatStorage', 6, 0, (2, 3), (3, 1)), 'no item named'),
  ],
)
def test_a_tensor_lies_inside_its_storage(tmp_path, place, sentence):
  with refused(sentence):
    torch_pickle.read(zipped(tmp_path / 'a.bin', table(a=rebuilt(*place)), s0=X.tobytes()))


@pytest.mark.parametrize('inside, said', [(b'N', ''), (numbers(1, 2), 'inside another')])
def test_a_storage_inside_another_is_refused(tmp_path, inside, said):
  """As old versions of torch wrote views; None is no view."""
  whole = rebuilt('0', 'FloatStorage', 6, 0, (2, 3), (3, 1))
  path = zipped(tmp_path / 'a.bin', table(a=whole.replace(b'tQ', inside + b'tQ')), s0=X.tobytes())
  if said:
    with refused(said):
      torch_pickle.read(path)
  else:
    np.testing.assert_array_equal(torch_pickle.read(path)['a'], X)


def test_a_damaged_bin_is_one_sentence(tmp_path, shared):
  whole = (shared / 'golden' / 'torch_checkpoint' / 'pytorch_model.bin').read_bytes()
  for damaged in (whole[:-100], whole[:2000], whole[:5], b'', b'hello world'):
    (tmp_path / 'pytorch_model.bin').write_bytes(damaged)
    with refused('cannot be read as weights of torch.*is it whole'):
      tensor_files.read(tmp_path)
  zipped(tmp_path / 'pytorch_model.bin', table(a=b'K\x01'))
  with refused('a is of type int and no tensor; save'):
    tensor_files.read(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('zip_form', [True, False])
def test_torch_writes_what_we_read(tmp_path, zip_form):
  torch = pytest.importorskip('torch')
  kinds = torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool
  table = {str(kind): torch.randn(4, 3).to(kind) for kind in kinds}
  table |= {'turned': table['torch.float32'].T, 'part': table['torch.float32'][1:, :2]}
  table['parameter'] = torch.nn.Parameter(torch.randn(2, 0, 3))
  for content in (table, {'state_dict': table}):
    path = tmp_path / 'pytorch_model.bin'
    torch.save(content, path, _use_new_zipfile_serialization=zip_form)
    found, _ = tensor_files.read(tmp_path)
    assert found.keys() == table.keys()
    for name, x in table.items():
      expected = x.detach().to(torch.float32) if x.dtype == torch.bfloat16 else x.detach()
      np.testing.assert_array_equal(found[name].astype(expected.numpy().dtype), expected.numpy())


# ---- safetensors ---------------------------------------------------------------------------------


def test_safetensors_whole_and_in_shards(tmp_path):
  table = {'a': X, 'b': X.astype(np.float16), 'c': X.astype(ml_dtypes.bfloat16)}
  header = {'c': {'dtype': 'BF16', 'shape': [2, 3], 'data_offsets': [0, 12]}}
  header = json.dumps(header).encode()
  raw = struct.pack('<Q', len(header)) + header + table['c'].tobytes()
  (tmp_path / 'model-2.safetensors').write_bytes(raw)  # the numpy side of the library has no BF16
  safetensors.numpy.save_file({k: table[k] for k in 'ab'}, tmp_path / 'model-1.safetensors')
  index = tmp_path / 'model.safetensors.index.json'
  places = {'a': 'model-1.safetensors', 'b': 'model-1.safetensors', 'c': 'model-2.safetensors'}
  index.write_text(json.dumps({'weight_map': places}))
  found, _ = tensor_files.read(tmp_path)
  assert found.keys() == table.keys()
  for name, x in table.items():
    np.testing.assert_array_equal(found[name], x)
  (tmp_path / 'model-2.safetensors').write_bytes(raw[:-1])
  with refused('model-2.safetensors cannot be read.*is it whole'):
    tensor_files.read(tmp_path)
  (tmp_path / 'model-2.safetensors').unlink()
  with refused('model-2.safetensors cannot be read'):
    tensor_files.read(tmp_path)
  index.unlink()
  with refused('has no model.safetensors, no pytorch_model.bin'):
    tensor_files.read(tmp_path)


# ---- TensorFlow ----------------------------------------------------------------------------------


def test_checksums_are_stored_as_tensorflow_stores_them():
  """Turned by 15 bits, plus a constant (LevelDB's util/crc32c.h), so never as they are."""
  assert crc32c(b'123456789') == 0xE3069283  # the check value of every catalogue of checksums
  assert crc32c(b'foo') == 0xCFC4AE1D
  assert tensorflow_bundle.stored_checksum(b'foo') == 0xFEBE8A61
  assert tensorflow_bundle.stored_checksum(b'') == 0xA282EAD8


def test_a_bundle_of_several_shards(tmp_path):
  table = {'a': X, 'bert/b': X.T.copy(), 'step': np.array(7), 'empty': np.zeros((0, 3), np.float32)}
  write_bundle(tmp_path, table)
  found, _ = tensor_files.read(tmp_path)
  assert found.keys() == table.keys()
  for name, x in table.items():
    np.testing.assert_array_equal(found[name], x)
    assert found[name].shape == x.shape
  (tmp_path / 'model.ckpt.data-00001-of-00002').unlink()
  with refused('data-00001-of-00002 is not beside it'):
    tensor_files.read(tmp_path)


def test_a_tensor_of_a_bundle_has_the_bytes_of_its_shape(tmp_path):
  torn = {name: getattr(X, name) for name in ('dtype', 'nbytes', 'tobytes')}
  write_bundle(tmp_path, {'b': SimpleNamespace(shape=(2, 4), **torn)})
  with refused(r'b has 24 bytes .*\[2, 4\]'):
    tensor_files.read(tmp_path)


def test_a_compressed_block_is_one_sentence(tmp_path):
  write_bundle(tmp_path, {'a': X}, kind=1)
  with refused('cannot be read .*compressed: save it again'):
    tensor_files.read(tmp_path)


def test_a_flipped_bit_of_a_bundle_is_found_wherever_it_is(tmp_path, shared):
  source = shared / 'golden' / 'tf_checkpoint'
  names = [p.name for p in source.glob('bert_model.ckpt.*')]
  rng = np.random.default_rng(0)
  for name in names:
    whole = (source / name).read_bytes()
    # The padding of the footer means nothing, so it is not looked at.
    for place in rng.integers(0, len(whole) - (48 if name.endswith('index') else 0), 20):
      for other in names:
        (tmp_path / other).write_bytes((source / other).read_bytes())
      damaged = bytearray(whole)
      damaged[place] ^= 1 << int(rng.integers(8))
      (tmp_path / name).write_bytes(damaged)
      with refused('is it whole'):
        tensor_files.read(tmp_path)
  (tmp_path / name).write_bytes(whole[: len(whole) // 2])
  with refused('is it whole'):
    tensor_files.read(tmp_path)
