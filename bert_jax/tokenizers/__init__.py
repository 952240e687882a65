"""Tokenizers, text to ids and back: one class, Tokenizer, over the content of a tokenizer.json, and
makers of such content: WordPiece, SentencePiece, byte-level BPE.

Hugging Face's Rust library `tokenizers` encodes. This package adds reserved tokens that stay plain
text where they are typed ("[MASK]"), a cache of words, checks of the files, and trainers.
"""
# ruff: noqa: F401

from bert_jax.tokenizers.reading import FILES, in_folder, load, load_folder
from bert_jax.tokenizers.reserved import RESERVED, Around
from bert_jax.tokenizers.splitting import MAX_WORD_CHARACTERS, Splitting
from bert_jax.tokenizers.tokenizer import Encoding, Tokenizer, checked
from bert_jax.tokenizers.wordpiece import wordpiece_tokenizer
