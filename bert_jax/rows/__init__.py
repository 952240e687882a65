"""From a corpus or examples to rows, and from rows to the global batch of a step."""
