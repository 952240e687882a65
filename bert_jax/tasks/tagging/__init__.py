"""Tags of tokens."""
