"""Tokenizers, text to ids and back: WordPiece, SentencePiece, byte-level BPE, tokenizer.json.

The encoding is done by two libraries, Hugging Face's Rust `tokenizers` and Google's
`sentencepiece`. This package adds one interface for both, checks of the files, reserved tokens that
stay plain text where they are typed ("[MASK]"), and offsets in characters of the text as given.
"""
# ruff: noqa: F401

from bert_jax.tokenizers.base import RESERVED, Encoding, Tokenizer, checked
from bert_jax.tokenizers.byte_level import ByteLevel
from bert_jax.tokenizers.reading import in_folder, load, load_folder
from bert_jax.tokenizers.rust_tokenizer import RustTokenizer
from bert_jax.tokenizers.sentence_piece import SentencePiece
from bert_jax.tokenizers.wordpiece import MAX_WORD_CHARACTERS, Splitting, WordPiece
