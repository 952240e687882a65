"""Small files of released models other than BERT's, for formats.py."""

import json

from tokenizers import pre_tokenizers

SIDES = 'encoder', 'decoder'
FULL, SLIDING = 'full_attention', 'sliding_attention'
ROPES = {
  kind: {'rope_type': 'default', 'rope_theta': theta}
  for kind, theta in ((FULL, 160_000.0), (SLIDING, 10_000.0))
}
FAMILIES = {  # {model_type: what its config.json says besides that of a BERT}
  'modernbert': {'layer_types': [FULL, *[SLIDING] * 11], 'rope_parameters': ROPES}
  | {'local_attention': 128, 'global_attn_every_n_layers': 12, 'norm_bias': False},
  'albert': {'num_hidden_groups': 1, 'inner_group_num': 1, 'embedding_size': 128},
  'gpt2': {'n_embd': 8, 'n_layer': 2, 'n_head': 2, 'n_positions': 16, 'n_inner': None},
  'bart': {'d_model': 8, 'is_encoder_decoder': True, 'decoder_start_token_id': 2}
  | {f'{side}_layers': 2 for side in SIDES}
  | {f'{side}_attention_heads': 2 for side in SIDES}
  | {f'{side}_ffn_dim': 16 for side in SIDES},
}


def configs(bert):
  """Yields (name, {file: content}) of the config.json of each of FAMILIES. bert: a BERT's."""
  for family, more in FAMILIES.items():
    content = {name: x for name, x in bert.items() if name != 'architectures'}
    content |= {'model_type': family} | more
    yield f'config.json of {family}', {'config.json': json.dumps(content).encode()}


def vocabularies():
  """Yields (name, {file: content}) of vocabularies of bytes, as a RoBERTa and a ModernBERT have
  them."""
  special, merges = ['<s>', '<pad>', '</s>', '<unk>', '<mask>'], [['t', 'h'], ['th', 'e']]
  pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), 'th', 'the']
  vocabulary = {piece: i for i, piece in enumerate(pieces)}
  lines = ['#version: 0.2', *map(' '.join, merges), '']
  files = {'vocab.json': json.dumps(vocabulary).encode(), 'merges.txt': '\n'.join(lines).encode()}
  yield 'vocab.json', files
  flags = dict.fromkeys(('single_word', 'lstrip', 'rstrip', 'normalized'), False)
  pieces = enumerate(special)
  added = [{'id': i, 'content': piece, 'special': True} | flags for i, piece in pieces]
  by_bytes = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True}
  by_bytes['use_regex'] = True
  model = {'type': 'BPE', 'vocab': vocabulary, 'merges': merges, 'dropout': None, 'unk_token': None}
  model |= {'continuing_subword_prefix': None, 'end_of_word_suffix': None}
  model |= {'fuse_unk': False, 'byte_fallback': False}
  whole = {'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': added}
  whole |= {'normalizer': {'type': 'NFC'}, 'pre_tokenizer': by_bytes, 'post_processor': None}
  whole |= {'decoder': by_bytes, 'model': model}
  yield 'tokenizer.json of bytes', {'tokenizer.json': json.dumps(whole).encode()}
