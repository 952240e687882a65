"""Writing tokens one by one: drawn by chance, or by beam search."""
