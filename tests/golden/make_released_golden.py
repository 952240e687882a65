"""Records what models of Hugging Face compute and write, into hf_released.npz: ModernBERT, ALBERT,
ELECTRA, FNet, GPT-2, OpenAI-GPT, BART, XLM-R, CamemBERT, MPNet, Nomic's BERT, RoFormer, EuroBERT,
DistilBERT and T5's encoder.

    python tests/golden/make_released_golden.py    # torch 2.13 (CPU) and transformers 5.23 wrote it

With names of cases it records these anew and keeps the others (xlm-roberta and what follows it were
added by transformers 5.24).

As in make_hf_golden.py no weight is stored: weights are functions of their names, and batches of
seeds. What is stored is the config.json, the names and shapes of the tensors that they save, the
logits, and the tokens that continue some prompts, -1 behind their ends; from the former a folder is
written that is theirs but for its numbers.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy
from golden.make_hf_golden import adamw_losses, draw, save

FILE = Path(__file__).with_name('hf_released.npz')
STEPS, RATE, WEIGHT_DECAY = 20, 3e-3, 1.0
LENGTHS = 24, 9, 15, 4  # real tokens of each row
CLASSES = 2, 0, 1, 0  # the label of each, where whole rows have one
PAD, MASK, FIRST, VOCAB = 0, 4, 5, 26
END, BART_END, TOKENS = 25, 2, 10
SIZES = dict(vocab_size=VOCAB, hidden_size=12, num_hidden_layers=4, num_attention_heads=2)
SIZES |= dict(intermediate_size=20, max_position_embeddings=24, pad_token_id=PAD)
NARROW, WIDE = SIZES | {'embedding_size': 8}, SIZES | {'embedding_size': 12}
LABELS, MEAN = {'num_labels': 3}, {'classifier_pooling': 'mean'}
MODERN = SIZES | dict(bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3)
MODERN |= dict(local_attention=6, global_attn_every_n_layers=3)
BIASED = dict(norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True)
BIASED |= dict(decoder_bias=False, hidden_activation='silu', classifier_activation='silu')
BIASED |= dict(local_attention=5, global_attn_every_n_layers=2, norm_eps=1e-6)
BIASED |= dict(global_rope_theta=5000.0, local_rope_theta=100.0)
GPT = dict(vocab_size=VOCAB, n_embd=12, n_layer=3, n_head=2, n_positions=24)
GPT2 = GPT | dict(bos_token_id=END, eos_token_id=END)
UNTIED = dict(tie_word_embeddings=False, activation_function='gelu', layer_norm_epsilon=1e-3)
BART = dict(vocab_size=VOCAB, d_model=12, max_position_embeddings=24, forced_eos_token_id=None)
BART |= dict(encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=20)
BART |= dict(decoder_layers=3, decoder_attention_heads=2, decoder_ffn_dim=20)
SCALED = dict(decoder_layers=2, scale_embedding=True, activation_function='relu')
SCALED |= dict(decoder_start_token_id=0)
# fairseq's: positions begin at 2, behind the id of <pad>, and both texts have one token type.
XLM = SIZES | dict(pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1)
XLM |= dict(max_position_embeddings=26, layer_norm_eps=1e-5)
MPNET = {name: x for name, x in XLM.items() if name != 'type_vocab_size'}
NOMIC = SIZES | {'rope_parameters': {'rope_theta': 50.0, 'rope_type': 'default'}}
EURO = SIZES | dict(bos_token_id=2, eos_token_id=3, mask_token_id=4)
EURO |= {'rope_parameters': {'rope_theta': 70.0, 'rope_type': 'default'}}
BOS = {'classifier_pooling': 'bos'}
T5 = dict(vocab_size=VOCAB, d_model=12, num_layers=4, num_heads=2, d_kv=6, d_ff=20)
T5 |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=15)
DISTIL = dict(vocab_size=VOCAB, dim=12, n_layers=3, n_heads=2, hidden_dim=20, pad_token_id=PAD)
DISTIL |= dict(max_position_embeddings=24, seq_classif_dropout=0.3, qa_dropout=0.15)
CAMEMBERT = XLM | dict(bos_token_id=5, eos_token_id=6)
# {case: (class, its config)}.
WRITERS = {
  'gpt2': ('GPT2LMHeadModel', GPT2 | dict(n_inner=20)),
  'gpt2 untied': ('GPT2LMHeadModel', GPT2 | UNTIED),
  'openai-gpt': ('OpenAIGPTLMHeadModel', GPT),
  'bart': ('BartForConditionalGeneration', BART),
  'bart scaled': ('BartForConditionalGeneration', BART | SCALED),
}
CASES = {
  'modernbert': ('ModernBertForMaskedLM', MODERN),
  'modernbert biased': ('ModernBertForMaskedLM', MODERN | BIASED),
  'modernbert untied': ('ModernBertForMaskedLM', MODERN | {'tie_word_embeddings': False}),
  'modernbert classifier': ('ModernBertForSequenceClassification', MODERN | LABELS),
  'modernbert mean': ('ModernBertForSequenceClassification', MODERN | LABELS | MEAN),
  'modernbert tagger': ('ModernBertForTokenClassification', MODERN | LABELS),
  'modernbert qa': ('ModernBertForQuestionAnswering', MODERN | BIASED),
  'albert': ('AlbertForPreTraining', NARROW),
  'albert tagger': ('AlbertForTokenClassification', WIDE),
  'albert classifier': ('AlbertForSequenceClassification', NARROW | LABELS),
  'electra': ('ElectraForPreTraining', NARROW),
  'electra generator': ('ElectraForMaskedLM', NARROW),
  'electra classifier': ('ElectraForSequenceClassification', NARROW | LABELS),
  'electra qa': ('ElectraForQuestionAnswering', WIDE),
  'electra tagger': ('ElectraForTokenClassification', NARROW),
  'gpt2 classifier': ('GPT2ForSequenceClassification', GPT | LABELS | {'pad_token_id': PAD}),
  'fnet': ('FNetForPreTraining', SIZES),
  'fnet masked': ('FNetForMaskedLM', SIZES | {'hidden_act': 'relu'}),
  'fnet classifier': ('FNetForSequenceClassification', SIZES | LABELS),
  'xlm-roberta': ('XLMRobertaForMaskedLM', XLM),
  'xlm-roberta bare': ('XLMRobertaModel', XLM),
  'xlm-roberta classifier': ('XLMRobertaForSequenceClassification', XLM | LABELS),
  'xlm-roberta tagger': ('XLMRobertaForTokenClassification', XLM | LABELS),
  'xlm-roberta qa': ('XLMRobertaForQuestionAnswering', XLM),
  'xlm-roberta choice': ('XLMRobertaForMultipleChoice', XLM),
  'mpnet': ('MPNetForMaskedLM', MPNET),
  'mpnet bare': ('MPNetModel', MPNET),
  'mpnet classifier': ('MPNetForSequenceClassification', MPNET | LABELS),
  'mpnet tagger': ('MPNetForTokenClassification', MPNET | LABELS),
  'mpnet qa': ('MPNetForQuestionAnswering', MPNET),
  'mpnet choice': ('MPNetForMultipleChoice', MPNET),
  'nomic_bert': ('NomicBertForMaskedLM', SIZES),
  'nomic_bert bare': ('NomicBertModel', SIZES),
  'nomic_bert classifier': ('NomicBertForSequenceClassification', NOMIC | LABELS),
  'nomic_bert tagger': ('NomicBertForTokenClassification', SIZES | LABELS),
  'roformer': ('RoFormerForMaskedLM', NARROW),
  'roformer wide': ('RoFormerForMaskedLM', SIZES | {'hidden_act': 'relu'}),
  'roformer bare': ('RoFormerModel', NARROW),
  'roformer classifier': ('RoFormerForSequenceClassification', SIZES | LABELS),
  'roformer tagger': ('RoFormerForTokenClassification', SIZES | LABELS),
  'roformer qa': ('RoFormerForQuestionAnswering', SIZES),
  'eurobert': ('EuroBertForMaskedLM', EURO | {'num_key_value_heads': 1}),
  'eurobert biased': ('EuroBertForMaskedLM', EURO | {'attention_bias': True}),
  'eurobert bare': ('EuroBertModel', EURO | {'num_key_value_heads': 2, 'num_attention_heads': 6}),
  'eurobert late': ('EuroBertForSequenceClassification', EURO | LABELS),
  'eurobert mean': ('EuroBertForSequenceClassification', EURO | LABELS | MEAN),
  'eurobert bos': ('EuroBertForSequenceClassification', EURO | LABELS | BOS),
  'eurobert tagger': ('EuroBertForTokenClassification', EURO | LABELS),
  'camembert': ('CamembertForMaskedLM', CAMEMBERT),
  'camembert classifier': ('CamembertForSequenceClassification', CAMEMBERT | LABELS),
  'distilbert': ('DistilBertForMaskedLM', DISTIL | {'activation': 'relu'}),
  'distilbert classifier': ('DistilBertForSequenceClassification', DISTIL | LABELS),
  'distilbert choice': ('DistilBertForMultipleChoice', DISTIL),
  'roformer silu': ('RoFormerForSequenceClassification', SIZES | LABELS | {'hidden_act': 'silu'}),
  't5': ('T5EncoderModel', T5),
  't5 gated': ('T5EncoderModel', T5 | {'feed_forward_proj': 'gated-gelu'}),
} | WRITERS
# Whose losses are recorded.
TRAINED = 'modernbert', 'xlm-roberta', 'camembert', 'mpnet', 'distilbert classifier'
PROMPTS = [3, 17, 4, 9, 21], [8], [11, 12, 13], [END], [6, 6, 20, 2, 14, 7, 1]
# {name: arguments of generate}.
WAYS = {
  'greedy': {},
  'beam': dict(num_beams=4),
  'beam long': dict(num_beams=4, length_penalty=3.0),
  'beam sum': dict(num_beams=4, length_penalty=0.0),
}
BARE = 'last_hidden_state', 'pooler_output'  # what models without a head compute
FEW = 'greedy', 'beam'  # those of all writers but the first of a kind


def ways_of(case):
  return () if case not in WRITERS else tuple(WAYS) if case in ('gpt2', 'bart') else FEW


def draw_weight(name, shape, writes):
  """No bias is 0 and no norm 1; attention and logits are far from uniform. Some texts end."""
  if not writes:
    is_scale = 'norm' in name.lower() and name.endswith('weight')
    if name.endswith('encoder.embed_positions.weight'):  # RoFormer's sines and cosines
      return roformer_table(*shape)
    return (draw(name, shape) * 0.3 + is_scale).astype(np.float32)
  is_scale = ('ln_' in name or 'norm' in name) and name.endswith('weight')
  size = 0.1 if name.endswith('bias') else 0.2 if is_scale else 0.5
  if 'embed_positions' in name:  # else most targets of a BART would be one token again and again
    size = 1.0
  x = draw(name, shape) * size + is_scale
  if len(x) == VOCAB and 'model.' not in name:  # a GPT's words
    x[END] *= 2
  return x.astype(np.float32)


def roformer_table(length, width):
  """The buffer of a RoFormer, in which nothing is drawn."""
  angles = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
  return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def draw_batch(step=0, writes=False):
  """Rows of several lengths, padded behind. If the model does not write, with two texts each and an
  eighth of their tokens masked."""
  random, T = np.random.RandomState(step), LENGTHS[0]
  real = np.arange(T) < np.array(LENGTHS)[:, None]
  if writes:
    ids = np.where(real, random.randint(0, VOCAB, real.shape), 0)
    return {'input_ids': ids.astype(np.int64), 'attention_mask': real.astype(np.int64)}
  ids = np.where(real, FIRST + (VOCAB - FIRST) * random.random_sample(real.shape) ** 3, PAD)
  masked = real & (random.random_sample(real.shape) < 1 / 8)
  masked[:, 1] = True
  types = (np.arange(T) >= np.array(LENGTHS)[:, None] // 2) & real
  batch = {'labels': np.where(masked, ids, -100), 'input_ids': np.where(masked, MASK, ids)}
  batch |= {'attention_mask': real, 'token_type_ids': types}
  return {name: x.astype(np.int64) for name, x in batch.items()}


def write_folder(folder, case, config, shapes):
  """A folder as theirs, with the drawn weights. config: the text of config.json."""
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'config.json').write_text(config)
  drawn = {name: draw_weight(name, tuple(shape), case in WRITERS) for name, shape in shapes.items()}
  safetensors.numpy.save_file(drawn, folder / 'model.safetensors', {'format': 'pt'})


def load(folder):
  """Their model of a folder; all its tensors must be there and known."""
  import transformers

  name = json.loads((folder / 'config.json').read_text())['architectures'][0]
  model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
  for problem in ('missing_keys', 'unexpected_keys', 'mismatched_keys', 'error_msgs'):
    assert not info.get(problem), (name, problem, info[problem])
  return model.eval()


def inputs_of(model, batch):
  """What of a batch a model is given."""
  import torch

  no_types = (
    'eurobert',
    'modernbert',
    'distilbert',
    'roberta',
    'gpt2',
    'bart',
    'xlm-roberta',
    'camembert',
    'mpnet',
    't5',
  )
  no_types = dict.fromkeys(no_types, 'token_type_ids')
  without = (no_types | {'fnet': 'attention_mask'}).get(model.config.model_type)
  return {
    name: torch.tensor(x, dtype=torch.long)
    for name, x in batch.items()
    if name not in (without, 'labels')
  }


def computed(model, ways=()):
  """{name: array}: the logits of the batch, and what some of WAYS make of the prompts. Of a BART
  the prompts are the sources, and the targets of the batch its sources in another order."""
  import torch

  is_bart = model.config.is_encoder_decoder
  writes = is_bart or 'LMHead' in type(model).__name__
  with torch.no_grad():
    batch = inputs_of(model, draw_batch(writes=writes))
    if is_bart:
      batch['decoder_input_ids'] = batch['input_ids'].flip(1)
    if type(model).__name__.endswith('MultipleChoice'):  # each row is a question of one choice
      batch = {name: x[:, None] for name, x in batch.items()}
    computed = model(**batch).items()
    out = {name: x.numpy() for name, x in computed if 'logits' in name or name in BARE}
    for way in ways:
      out[way] = np.full((len(PROMPTS), TOKENS), -1, np.int32)
      for row, prompt in zip(out[way], PROMPTS):
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
  return out


def losses(model):
  """The losses of STEPS steps of AdamW, without dropout."""
  import torch

  def loss(step):
    batch = draw_batch(step)
    of_texts = type(model).__name__.endswith('ForSequenceClassification')
    labels = CLASSES if of_texts else batch['labels']
    return model(**inputs_of(model, batch), labels=torch.tensor(labels)).loss

  return adamw_losses(model, RATE, WEIGHT_DECAY, map(loss, range(STEPS)))


def record(case):
  """{name: array} of a case, as it is stored."""
  import transformers

  kind, settings = CASES[case]
  theirs = getattr(transformers, kind)
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    theirs(theirs.config_class(**settings)).save_pretrained(folder)
    saved = safetensors.numpy.load_file(folder / 'model.safetensors')
    shapes = {name: list(x.shape) for name, x in saved.items()}
    text = (folder / 'config.json').read_text()
    write_folder(folder, case, text, shapes)
    model = load(folder)
    out = {'config': np.array(text), 'shapes': np.array(json.dumps(shapes))}
    out |= computed(model, ways_of(case))
    return out | ({'losses': losses(model)} if case in TRAINED else {})


def recorded():
  """{case: {name: array}} of the file."""
  arrays, out = np.load(FILE), {case: {} for case in CASES}
  for name in arrays:
    case, _, part = name.partition('/')
    if case in out:
      out[case][part] = arrays[name]
  return out


if __name__ == '__main__':
  anew = sys.argv[1:] or CASES
  known = recorded() if sys.argv[1:] else {}
  save(FILE, {case: record(case) if case in anew else known[case] for case in CASES})
