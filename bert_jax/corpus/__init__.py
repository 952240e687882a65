"""Tokenized corpora, in memory or on disk, with the units of tokens that are masked together."""
