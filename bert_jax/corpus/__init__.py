"""A tokenized corpus, in memory or on disk, and the units in it that are masked together."""
