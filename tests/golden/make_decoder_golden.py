"""Records what Hugging Face's GPT-2, OpenAI-GPT and BART compute and generate, as hf_decoders.npz.

    python tests/golden/make_decoder_golden.py     # torch 2.13 (CPU) and transformers 5.23 wrote it

As in make_released_golden.py no weight is stored, but the config.json, the names and shapes of the
tensors that they save, and what follows from weights that are functions of their names: logits, and
the tokens that continue some prompts, -1 behind their ends.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy
from golden import make_released_golden as released
from golden.make_hf_golden import draw

FILE = Path(__file__).with_name('hf_decoders.npz')
LENGTHS = 24, 9, 15, 4  # real tokens of each row
END, VOCAB, TOKENS = 25, 26, 10
BART_END = 2
BART = dict(
  vocab_size=VOCAB,
  d_model=12,
  encoder_layers=2,
  decoder_layers=3,
  encoder_attention_heads=2,
  decoder_attention_heads=2,
  encoder_ffn_dim=20,
  decoder_ffn_dim=20,
  max_position_embeddings=24,
  forced_eos_token_id=None,
)
GPT = dict(vocab_size=VOCAB, n_embd=12, n_layer=3, n_head=2, n_positions=24)
# {case: (class, its config)}.
CASES = {
  'gpt2': ('GPT2LMHeadModel', GPT | dict(n_inner=20, bos_token_id=END, eos_token_id=END)),
  'gpt2 untied': (
    'GPT2LMHeadModel',
    GPT
    | dict(
      tie_word_embeddings=False,
      activation_function='gelu',
      layer_norm_epsilon=1e-3,
      bos_token_id=END,
      eos_token_id=END,
    ),
  ),
  'openai-gpt': ('OpenAIGPTLMHeadModel', GPT),
  'bart': ('BartForConditionalGeneration', BART),
  'bart scaled': (
    'BartForConditionalGeneration',
    BART
    | dict(
      decoder_layers=2, scale_embedding=True, activation_function='relu', decoder_start_token_id=0
    ),
  ),
}
PROMPTS = [3, 17, 4, 9, 21], [8], [11, 12, 13], [END], [6, 6, 20, 2, 14, 7, 1]
# {name: arguments of generate}.
WAYS = {
  'greedy': {},
  'beam': dict(num_beams=4),
  'beam long': dict(num_beams=4, length_penalty=3.0),
  'beam sum': dict(num_beams=4, length_penalty=0.0),
  'beam penalty': dict(num_beams=4, repetition_penalty=1.5),
}
FEW = 'greedy', 'beam'  # those of all cases but the first of a kind


def ways_of(case):
  return FEW if case in ('gpt2 untied', 'openai-gpt', 'bart scaled') else tuple(WAYS)


def draw_weight(name, shape):
  """No bias is 0 and no norm 1; attention and logits are far from uniform. Some sequences end."""
  is_scale = ('ln_' in name or 'norm' in name) and name.endswith('weight')
  size = 0.1 if name.endswith('bias') else 0.2 if is_scale else 0.5
  if 'embed_positions' in name:  # else most targets of a BART would be one token again and again
    size = 1.0
  x = draw(name, shape) * size + is_scale
  if len(x) == VOCAB and 'model.' not in name:  # a GPT's words
    x[END] *= 2
  return x.astype(np.float32)


def draw_batch():
  """Rows of several lengths, padded behind."""
  random = np.random.RandomState(0)
  real = np.arange(LENGTHS[0]) < np.array(LENGTHS)[:, None]
  ids = np.where(real, random.randint(0, VOCAB, real.shape), 0).astype(np.int64)
  return {'input_ids': ids, 'attention_mask': real.astype(np.int64)}


def write_folder(folder, config, shapes):
  """A folder as theirs, with the drawn weights. config: the text of config.json."""
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'config.json').write_text(config)
  tensors = {name: draw_weight(name, tuple(shape)) for name, shape in shapes.items()}
  safetensors.numpy.save_file(tensors, folder / 'model.safetensors', {'format': 'pt'})


def computed(model, ways=FEW):
  """{name: array}: the logits of the batch, and what some of WAYS make of the prompts. Of a BART
  the prompts are the sources, and the targets of the batch its sources in another order."""
  import torch

  is_bart = model.config.is_encoder_decoder
  with torch.no_grad():
    batch = {name: torch.tensor(x) for name, x in draw_batch().items()}
    if is_bart:
      batch['decoder_input_ids'] = batch['input_ids'].flip(1)
    out = {'logits': model(**batch).logits.numpy()}
    for way in ways:
      rows = np.full((len(PROMPTS), TOKENS), -1, np.int32)
      for row, prompt in zip(rows, PROMPTS):
        ids = model.generate(
          torch.tensor([prompt]),
          max_new_tokens=TOKENS,
          do_sample=False,
          pad_token_id=0,
          eos_token_id=BART_END if is_bart else END,
          attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
          **WAYS[way],
        )[0, 1 if is_bart else len(prompt) :]
        row[: len(ids)] = ids.numpy()
      out[way] = rows
  return out


def record(case):
  """{name: array} of a case, as it is stored."""
  import transformers

  kind, settings = CASES[case]
  model = getattr(transformers, kind)
  with tempfile.TemporaryDirectory() as folder:
    model(model.config_class(**settings)).save_pretrained(folder)
    saved = safetensors.numpy.load_file(Path(folder) / 'model.safetensors')
    shapes = {name: list(x.shape) for name, x in saved.items()}
    text = (Path(folder) / 'config.json').read_text()
    write_folder(Path(folder), text, shapes)
    out = computed(released.load(Path(folder)), ways_of(case))
  return {'config': np.array(text), 'shapes': np.array(json.dumps(shapes))} | out


def main():
  import torch
  import transformers

  arrays = {
    'versions': np.array([f'torch {torch.__version__}', f'transformers {transformers.__version__}'])
  }
  for case in CASES:
    arrays |= {f'{case}/{name}': x for name, x in record(case).items()}
    for way in ways_of(case):
      print(case, way, *(row.tolist() for row in arrays[f'{case}/{way}']), sep='\n  ')
  np.savez_compressed(FILE, **arrays)
  print(f'{FILE}: {FILE.stat().st_size:,} bytes')


if __name__ == '__main__':
  main()
