"""Records what Hugging Face's ModernBERT, ALBERT, ELECTRA and FNet compute, into hf_released.npz.

    python tests/golden/make_released_golden.py    # torch 2.13 (CPU) and transformers 5.23 wrote it

As in make_hf_golden.py no weight is stored: weights are functions of their names, and batches of
seeds. What is stored is the config.json, the names and shapes of the tensors that they save, and
the logits; from the former a folder is written that is theirs but for its numbers.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy
from golden.make_hf_golden import draw

FILE = Path(__file__).with_name('hf_released.npz')
STEPS, RATE, WEIGHT_DECAY = 20, 3e-3, 1.0
LENGTHS = 24, 9, 15, 4  # real tokens of each row
PAD, MASK, FIRST, VOCAB = 0, 4, 5, 26
SIZES = dict(
  vocab_size=VOCAB,
  hidden_size=12,
  num_hidden_layers=4,
  num_attention_heads=2,
  intermediate_size=20,
  max_position_embeddings=24,
  pad_token_id=PAD,
)
MODERN = SIZES | dict(
  bos_token_id=2,
  eos_token_id=3,
  cls_token_id=2,
  sep_token_id=3,
  local_attention=6,
  global_attn_every_n_layers=3,
)
BIASED = dict(
  norm_bias=True,
  attention_bias=True,
  mlp_bias=True,
  classifier_bias=True,
  decoder_bias=False,
  local_attention=5,
  global_attn_every_n_layers=2,
  hidden_activation='silu',
  classifier_activation='silu',
  norm_eps=1e-6,
  global_rope_theta=5000.0,
  local_rope_theta=100.0,
)
NARROW = SIZES | {'embedding_size': 8}
# {case: (class, its config)}.
CASES = {
  'modernbert': ('ModernBertForMaskedLM', MODERN),
  'modernbert biased': ('ModernBertForMaskedLM', MODERN | BIASED),
  'modernbert untied': ('ModernBertForMaskedLM', MODERN | {'tie_word_embeddings': False}),
  'modernbert classifier': ('ModernBertForSequenceClassification', MODERN | {'num_labels': 3}),
  'albert': ('AlbertForPreTraining', NARROW),
  'albert tagger': ('AlbertForTokenClassification', SIZES | {'embedding_size': 12}),
  'albert classifier': ('AlbertForSequenceClassification', NARROW | {'num_labels': 3}),
  'electra': ('ElectraForPreTraining', NARROW),
  'electra generator': ('ElectraForMaskedLM', NARROW),
  'electra qa': ('ElectraForQuestionAnswering', SIZES | {'embedding_size': 12}),
  'electra tagger': ('ElectraForTokenClassification', NARROW),
  'fnet': ('FNetForPreTraining', SIZES),
  'fnet masked': ('FNetForMaskedLM', SIZES | {'hidden_act': 'relu'}),
  'fnet classifier': ('FNetForSequenceClassification', SIZES | {'num_labels': 3}),
}


def draw_weight(name, shape):
  """No bias is 0 and no norm 1; attention is far from uniform."""
  is_scale = 'norm' in name.lower() and name.endswith('weight')
  return (draw(name, shape) * 0.3 + is_scale).astype(np.float32)


def draw_batch(step):
  """Rows of several lengths with two texts each, an eighth of their tokens masked."""
  random, T = np.random.RandomState(step), LENGTHS[0]
  real = np.arange(T) < np.array(LENGTHS)[:, None]
  ids = np.where(real, FIRST + (VOCAB - FIRST) * random.random_sample(real.shape) ** 3, PAD)
  masked = real & (random.random_sample(real.shape) < 1 / 8)
  masked[:, 1] = True
  return {
    'labels': np.where(masked, ids, -100).astype(np.int64),
    'input_ids': np.where(masked, MASK, ids).astype(np.int64),
    'attention_mask': real.astype(np.int64),
    'token_type_ids': ((np.arange(T) >= np.array(LENGTHS)[:, None] // 2) & real).astype(np.int64),
  }


def write_folder(folder, config, shapes):
  """A folder as theirs, with the drawn weights. config: the text of config.json."""
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'config.json').write_text(config)
  tensors = {name: draw_weight(name, tuple(shape)) for name, shape in shapes.items()}
  safetensors.numpy.save_file(tensors, folder / 'model.safetensors', {'format': 'pt'})


def load(folder):
  """Their model of a folder; all its tensors must be there and known."""
  import transformers

  name = json.loads((folder / 'config.json').read_text())['architectures'][0]
  model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
  for problem in ('missing_keys', 'unexpected_keys', 'mismatched_keys', 'error_msgs'):
    assert not info.get(problem), (name, problem, info[problem])
  return model.eval()


def inputs_of(model, batch, names=('input_ids', 'attention_mask', 'token_type_ids')):
  """What of a batch a model is given."""
  import torch

  without = {
    'modernbert': 'token_type_ids',
    'distilbert': 'token_type_ids',
    'fnet': 'attention_mask',
  }
  return {
    name: torch.tensor(batch[name])
    for name in names
    if name != without.get(model.config.model_type)
  }


def logits(model):
  """{name: array} of what a model computes of the first batch."""
  import torch

  with torch.no_grad():
    out = model(**inputs_of(model, draw_batch(0)))
  return {name: x.numpy() for name, x in out.items() if 'logits' in name}


def losses(model):
  """The losses of STEPS steps of AdamW, without dropout."""
  import torch

  plain = [p for n, p in model.named_parameters() if 'norm' in n or 'bias' in n]
  decayed = [p for n, p in model.named_parameters() if 'norm' not in n and 'bias' not in n]
  optimizer = torch.optim.AdamW(
    [{'params': decayed, 'weight_decay': WEIGHT_DECAY}, {'params': plain, 'weight_decay': 0.0}],
    lr=RATE,
    betas=(0.9, 0.999),
    eps=1e-8,
  )
  out = []
  for step in range(STEPS):
    batch = draw_batch(step)
    loss = model(**inputs_of(model, batch), labels=torch.tensor(batch['labels'])).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    out.append(loss.item())
  return np.array(out)


def record(case):
  """{name: array} of a case, as it is stored."""
  import transformers

  kind, settings = CASES[case]
  config = getattr(transformers, kind.partition('For')[0] + 'Config')(**settings)
  with tempfile.TemporaryDirectory() as folder:
    getattr(transformers, kind)(config).save_pretrained(folder)
    saved = safetensors.numpy.load_file(Path(folder) / 'model.safetensors')
    shapes = {name: list(x.shape) for name, x in saved.items()}
    text = (Path(folder) / 'config.json').read_text()
    write_folder(Path(folder), text, shapes)
    model = load(Path(folder))
    out = {'config': np.array(text), 'shapes': np.array(json.dumps(shapes))} | logits(model)
    return out | ({'losses': losses(model)} if case == 'modernbert' else {})


def main():
  import torch
  import transformers

  arrays = {
    'versions': np.array([f'torch {torch.__version__}', f'transformers {transformers.__version__}'])
  }
  for case in CASES:
    arrays |= {f'{case}/{name}': x for name, x in record(case).items()}
  np.savez_compressed(FILE, **arrays)
  print(f'{FILE}: {FILE.stat().st_size:,} bytes')


if __name__ == '__main__':
  main()
